//! An index of the groups by the class of their longest free run: for each class a bit per
//! group, so that the next group of a class is found by words of 64.

#[cfg(test)]
use std::cell::Cell;

/// See the module.
pub(super) struct Index {
    groups: usize,
    classes: Vec<Vec<u64>>,
    /// Groups in each class.
    counts: [usize; Index::CLASSES],
    /// How many groups were handed out.
    #[cfg(test)]
    looks: Cell<usize>,
}

impl Index {
    /// Powers of two up to a group's length.
    pub const CLASSES: usize = 16;

    /// None of so many groups has anything free.
    pub fn new(groups: usize) -> Self {
        let classes = vec![vec![0; groups.div_ceil(64)]; Self::CLASSES];
        Self {
            groups,
            classes,
            counts: [0; Self::CLASSES],
            #[cfg(test)]
            looks: Cell::new(0),
        }
    }

    /// Memory it takes, bytes.
    pub fn memory(&self) -> usize {
        Self::CLASSES * self.groups.div_ceil(64) * 8
    }

    /// A group goes from one class to another; `None`: nothing is free in it.
    pub fn put(&mut self, group: usize, before: Option<u8>, now: Option<u8>) {
        if before == now {
            return;
        }
        let (word, bit) = (group / 64, 1 << (group % 64));
        if let Some(class) = before {
            self.classes[usize::from(class)][word] &= !bit;
            self.counts[usize::from(class)] -= 1;
        }
        if let Some(class) = now {
            self.classes[usize::from(class)][word] |= bit;
            self.counts[usize::from(class)] += 1;
        }
    }

    /// The groups of a class, from number `first` on and round.
    pub fn from(&self, class: usize, first: usize) -> impl Iterator<Item = usize> {
        let words = &self.classes[class];
        let next = move |from: usize, until: usize| {
            let mut g = from;
            while g < until {
                #[cfg(test)]
                super::look(1);
                let left = words[g / 64] & (u64::MAX << (g % 64));
                if left != 0 {
                    let found = g / 64 * 64 + left.trailing_zeros() as usize;
                    return (found < until).then_some(found);
                }
                g = (g / 64 + 1) * 64;
            }
            None
        };
        let (mut at, mut wrapped) = (first, false);
        let mut left = self.counts[class];
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let found = if wrapped { None } else { next(at, self.groups) };
            let found = match found {
                Some(g) => g,
                None => {
                    if !wrapped {
                        (at, wrapped) = (0, true);
                    }
                    next(at, first)?
                }
            };
            (at, left) = (found + 1, left - 1);
            #[cfg(test)]
            self.looks.set(self.looks.get() + 1);
            Some(found)
        })
    }

    /// Groups handed out so far.
    #[cfg(test)]
    pub fn looks(&self) -> usize {
        self.looks.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn prop_groups_of_a_class_come_in_order_from_anywhere(
            groups in 1usize..300,
            puts in proptest::collection::vec((any::<u16>(), proptest::option::of(0u8..16)), 0..300),
            first: u16,
        ) {
            let (mut index, mut model) = (Index::new(groups), vec![None; groups]);
            for (g, class) in puts {
                let g = usize::from(g) % groups;
                index.put(g, model[g], class);
                model[g] = class;
            }
            let first = usize::from(first) % groups;
            for class in 0..16u8 {
                let has = |g: &usize| model[*g] == Some(class);
                let expected: Vec<usize> = (first..groups).filter(has).chain((0..first).filter(has)).collect();
                prop_assert_eq!(index.from(class.into(), first).collect::<Vec<_>>(), expected);
            }
        }
    }
}
