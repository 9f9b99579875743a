//! Which monitor to talk to: one after the other until one answers.

use spirula_types::AddrVec;

/// The monitors a daemon knows, and the one it tries now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mons {
    all: Vec<AddrVec>,
    at: usize,
}

impl Mons {
    /// Begins with the one that `draw` (any number) picks, so that not everyone asks the same.
    pub fn new(all: Vec<AddrVec>, draw: u64) -> Self {
        let at = if all.is_empty() { 0 } else { (draw % all.len() as u64) as usize };
        Self { all, at }
    }

    /// The one to try now; blank if none is known.
    pub fn current(&self) -> AddrVec {
        self.all.get(self.at).cloned().unwrap_or_default()
    }

    /// The current one does not answer: on to the next.
    pub fn next(&mut self) {
        self.at = if self.at + 1 < self.all.len() { self.at + 1 } else { 0 };
    }

    /// The monitors of a newer map. An empty list changes nothing.
    pub fn replace(&mut self, all: Vec<AddrVec>) {
        if all.is_empty() || all == self.all {
            return;
        }
        let now = self.current();
        self.at = all.iter().position(|a| *a == now).unwrap_or(0);
        self.all = all;
    }

    /// All of them.
    pub fn all(&self) -> &[AddrVec] {
        &self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_types::EntityAddr;

    fn addr(port: u16) -> AddrVec {
        AddrVec::one(EntityAddr::v2(([127, 0, 0, 1], port).into(), 0))
    }

    #[test]
    fn every_monitor_gets_its_turn_and_a_new_map_keeps_the_current_one() {
        let mut m = Mons::new(vec![addr(1), addr(2), addr(3)], 4);
        assert_eq!(m.current(), addr(2));
        m.next();
        m.next();
        assert_eq!(m.current(), addr(1));
        m.replace(vec![addr(9), addr(1)]);
        assert_eq!(m.current(), addr(1));
        m.replace(Vec::new());
        m.next();
        assert_eq!(m.current(), addr(9));
        assert!(Mons::default().current().is_blank());
    }
}
