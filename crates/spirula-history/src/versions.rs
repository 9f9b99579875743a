//! Objects whose every change is answered with a version.
//!
//! The versions give the order; it must agree with time, and every read must have seen the
//! state between two changes that fit its time and what reads before it saw.

use std::fmt::Debug;

/// What an operation did.
#[derive(Clone, Debug)]
pub enum What<C, R, V> {
    /// A change, and its place in the order.
    Change(C, V),
    /// A read, and what it saw.
    Read(R),
}

/// One operation on the object, answered.
#[derive(Clone, Debug)]
pub struct Op<C, R, V> {
    /// When it began.
    pub begun: u64,
    /// When it was answered.
    pub ended: u64,
    /// What.
    pub what: What<C, R, V>,
}

/// What cannot have happened, and why, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// Two changes have the same place in the order.
    Place(String),
    /// A change that had ended before another began comes after it.
    Time(String),
    /// A change cannot have been answered as it was in the state that it found.
    Change(String),
    /// What is there in the end is not what the changes make.
    Last(String),
    /// A read saw nothing that was there while it ran.
    Read(String),
}

impl Wrong {
    /// In words.
    pub fn why(&self) -> &str {
        let (Self::Place(why)
        | Self::Time(why)
        | Self::Change(why)
        | Self::Last(why)
        | Self::Read(why)) = self;
        why
    }
}

/// The changes of an object in their order, and what was there between them.
#[derive(Debug)]
pub struct Order<'a, C, R, S, V> {
    changes: Vec<(&'a V, &'a C, &'a Op<C, R, V>)>,
    /// One more than changes.
    states: Vec<S>,
}

impl<'a, C: Debug, R: Debug, S: Debug, V: Debug + Ord> Order<'a, C, R, S, V> {
    /// Puts the changes among `history` into their order. `apply` makes the next state of a change
    /// and the last state, or says why a change cannot have been answered as it was.
    ///
    /// # Errors
    /// What cannot have happened.
    pub fn of(
        history: &'a [Op<C, R, V>],
        first: S,
        apply: impl Fn(&S, &C, &Op<C, R, V>) -> Result<S, String>,
    ) -> Result<Self, Wrong> {
        let change = |op: &'a Op<C, R, V>| match &op.what {
            What::Change(change, version) => Some((version, change, op)),
            What::Read(_) => None,
        };
        let mut changes: Vec<_> = history.iter().filter_map(change).collect();
        changes.sort_by(|a, b| a.0.cmp(b.0));
        for (a, b) in changes.iter().zip(changes.iter().skip(1)) {
            if a.0 == b.0 {
                return Err(Wrong::Place(format!(
                    "two changes in one place: {:?} and {:?}",
                    a.2, b.2
                )));
            }
        }
        let mut states = vec![first];
        let mut latest_begin = 0;
        for (_, change, op) in &changes {
            if op.ended < latest_begin {
                return Err(Wrong::Time(format!(
                    "a change that had ended is ordered after a later one: {op:?}"
                )));
            }
            latest_begin = latest_begin.max(op.begun);
            if let Some(state) = states.last() {
                let next =
                    apply(state, change, op).map_err(|e| Wrong::Change(format!("{op:?}: {e}")))?;
                states.push(next);
            }
        }
        Ok(Self { changes, states })
    }

    /// All that may have been there at some time from `begun` to `ended`, by place.
    fn window(&self, begun: u64, ended: u64) -> (usize, usize) {
        let lowest = self.changes.iter().rposition(|c| c.2.ended < begun).map_or(0, |i| i + 1);
        let highest =
            self.changes.iter().position(|c| c.2.begun > ended).unwrap_or(self.changes.len());
        (lowest, highest)
    }

    /// What may have been there at some time from `begun` to `ended`.
    pub fn between(&self, begun: u64, ended: u64) -> &[S] {
        let (lowest, highest) = self.window(begun, ended);
        self.states.get(lowest..=highest.max(lowest)).unwrap_or_default()
    }

    /// What the changes make.
    pub fn last(&self) -> Option<&S> {
        self.states.last()
    }

    /// Checks what is there in the end.
    ///
    /// # Errors
    /// [`Wrong::Last`].
    pub fn ends_with(&self, is: &R, fits: impl Fn(&S, &R) -> bool) -> Result<(), Wrong> {
        match self.last() {
            Some(should) if !fits(should, is) => {
                let ops: Vec<_> = self.changes.iter().rev().take(4).map(|c| c.2).collect();
                Err(Wrong::Last(format!(
                    "there is {is:?}, after {ops:?} there should be {should:?}"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Checks the reads of a history: `fits` says whether a read that saw this can have seen that
    /// state.
    ///
    /// # Errors
    /// [`Wrong::Read`].
    pub fn reads(
        &self,
        history: &[Op<C, R, V>],
        fits: impl Fn(&S, &R) -> bool,
    ) -> Result<(), Wrong> {
        let read = |op: &'_ Op<C, R, V>| matches!(op.what, What::Read(_));
        let mut reads: Vec<&Op<C, R, V>> = history.iter().filter(|op| read(op)).collect();
        reads.sort_by_key(|op| op.begun);
        // When reads done so far ended, and the newest state they saw.
        let mut before: Vec<(u64, usize)> = Vec::new();
        for op in reads {
            let What::Read(seen) = &op.what else { continue };
            let (lowest, highest) = self.window(op.begun, op.ended);
            let earlier = before
                .iter()
                .filter(|(end, _)| *end < op.begun)
                .map(|(_, at)| *at)
                .max()
                .unwrap_or(0);
            let from = lowest.max(earlier);
            match (from..=highest).find(|i| self.states.get(*i).is_some_and(|s| fits(s, seen))) {
                Some(at) => before.push((op.ended, at)),
                None => {
                    let those = self.states.get(from..=highest.max(from));
                    return Err(Wrong::Read(format!("{op:?} saw none of {those:?}")));
                }
            }
        }
        Ok(())
    }
}

/// Checks the operations on one object whose reads see all of it. `apply` makes the next state of a
/// change and the last state, or says why a change cannot have been answered as it was; `last` is
/// what is there in the end.
///
/// # Errors
/// What cannot have happened.
pub fn linearizable<C: Debug, S: Debug + PartialEq, V: Debug + Ord + Clone>(
    history: &[Op<C, S, V>],
    first: S,
    apply: impl Fn(&S, &C) -> Result<S, String>,
    last: Option<&S>,
) -> Result<(), String> {
    let check = || {
        let order = Order::of(history, first, |s, c, _| apply(s, c))?;
        last.map_or(Ok(()), |is| order.ends_with(is, |s, is| s == is))?;
        order.reads(history, |s, seen| s == seen)
    };
    check().map_err(|wrong: Wrong| wrong.why().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Word = Op<char, String, u32>;

    fn put(c: char, version: u32, begun: u64, ended: u64) -> Word {
        Op { begun, ended, what: What::Change(c, version) }
    }

    fn saw(text: &str, begun: u64, ended: u64) -> Word {
        Op { begun, ended, what: What::Read(text.to_owned()) }
    }

    fn check(history: &[Word], last: Option<&str>) -> Result<(), String> {
        let apply = |s: &String, c: &char| {
            if s.contains(*c) { Err(format!("{c} is there")) } else { Ok(format!("{s}{c}")) }
        };
        linearizable(history, String::new(), apply, last.map(str::to_owned).as_ref())
    }

    #[test]
    fn histories_that_can_and_cannot_have_happened() {
        check(&[put('a', 1, 1, 2), put('b', 2, 1, 5), saw("a", 3, 4), saw("ab", 3, 6)], Some("ab"))
            .unwrap();
        check(&[put('b', 2, 1, 9), put('a', 1, 2, 8), saw("", 1, 3)], Some("ab")).unwrap();
        let bad: &[(&[Word], &str)] = &[
            (&[put('a', 1, 1, 2), saw("", 3, 4)], "a"),      // stale
            (&[put('a', 1, 1, 2)], ""),                      // lost
            (&[put('a', 1, 1, 2), put('b', 1, 1, 2)], "ab"), // one place
            (&[put('a', 2, 1, 2), put('b', 1, 3, 4)], "ba"), // against time
            (&[put('a', 1, 1, 2), put('a', 2, 1, 2)], "aa"), // not so answered
            (&[put('a', 1, 5, 6), saw("a", 1, 2)], "a"),     // before it was there
            (&[put('a', 1, 1, 9), saw("a", 2, 3), saw("", 4, 5)], "a"), // back
        ];
        for (history, last) in bad {
            assert!(check(history, Some(last)).is_err(), "{history:?}");
        }
    }

    #[test]
    fn reads_of_parts_fit_what_they_can_have_seen_and_wrongs_say_which() {
        type Part = Op<char, (usize, char), u32>;
        let put = |c, version, begun, ended| Part { begun, ended, what: What::Change(c, version) };
        let saw = |at, c, begun, ended| Part { begun, ended, what: What::Read((at, c)) };
        let fits = |s: &String, (at, c): &(usize, char)| s.chars().nth(*at) == Some(*c);
        let check = |history: &[Part], last: (usize, char)| {
            let order = Order::of(history, String::new(), |s, c, _| match c {
                '!' => Err("no".into()),
                c => Ok(format!("{s}{c}")),
            })?;
            order.ends_with(&last, fits)?;
            order.reads(history, fits)?;
            Ok(order.between(3, 4).to_vec())
        };
        let (a, b) = (put('a', 1, 1, 2), put('b', 2, 4, 5));
        let good = [a.clone(), b.clone(), saw(0, 'a', 3, 3), saw(1, 'b', 3, 6)];
        assert_eq!(check(&good, (1, 'b')), Ok(vec!["a".to_owned(), "ab".to_owned()]));
        let place = [a.clone(), put('c', 1, 1, 2)];
        assert!(matches!(check(&place, (0, 'a')), Err(Wrong::Place(_))));
        let time = [put('b', 2, 1, 2), put('a', 3, 1, 9), put('c', 1, 3, 4)];
        assert!(matches!(check(&time, (0, 'c')), Err(Wrong::Time(_))));
        assert!(matches!(check(&[put('!', 1, 1, 2)], (0, 'a')), Err(Wrong::Change(_))));
        assert!(matches!(check(std::slice::from_ref(&a), (0, 'b')), Err(Wrong::Last(_))));
        assert!(matches!(check(&[a, b, saw(1, 'b', 3, 3)], (1, 'b')), Err(Wrong::Read(_))));
    }
}
