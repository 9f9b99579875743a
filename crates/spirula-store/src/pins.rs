//! Reads under way in other threads, and the blocks they read: these stay as they are until
//! the read is done, should they be freed meanwhile. Nothing else waits for a read.

use crate::alloc::PhysRun;
use std::sync::Arc;

struct Pin {
    /// The transaction that came next when the read was planned: what was freed before is
    /// none of its.
    before: u64,
    /// In order, none touching the next.
    runs: Vec<PhysRun>,
    /// Shared with the read.
    alive: Arc<()>,
    /// Freed since, and kept for it: by which transaction, and what.
    kept: Vec<(u64, PhysRun)>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Pins(Vec<Pin>);

impl Pins {
    /// Adds a read of `runs`, which lasts as long as what is returned.
    pub fn add(&mut self, before: u64, mut runs: Vec<PhysRun>) -> Arc<()> {
        runs.sort_unstable_by_key(|r| r.start);
        // A plan may name a blob and a part of it.
        runs.dedup_by(|next, last| {
            let joins = next.start <= last.start + last.len;
            if joins {
                last.len = last.len.max(next.start + next.len - last.start);
            }
            joins
        });
        let alive = Arc::new(());
        self.0.push(Pin { before, runs, alive: alive.clone(), kept: Vec::new() });
        alive
    }

    /// Takes a run freed by transaction `seq` if a read needs it; false if it may be reused.
    pub fn keep(&mut self, seq: u64, run: PhysRun) -> bool {
        let reads = |p: &Pin| {
            let next = p.runs.partition_point(|r| r.start + r.len <= run.start);
            Arc::strong_count(&p.alive) > 1
                && p.before <= seq
                && p.runs.get(next).is_some_and(|r| r.start < run.start + run.len)
        };
        match self.0.iter_mut().find(|p| reads(p)) {
            Some(p) => {
                p.kept.push((seq, run));
                true
            }
            None => false,
        }
    }

    /// Forgets reads that are done. What was kept for them is to be looked at again.
    pub fn ended(&mut self) -> Vec<(u64, PhysRun)> {
        let ended = self.0.extract_if(.., |p| Arc::strong_count(&p.alive) == 1);
        ended.flat_map(|p| p.kept).collect()
    }

    /// All that is kept.
    pub fn kept(&self) -> impl Iterator<Item = &(u64, PhysRun)> {
        self.0.iter().flat_map(|p| &p.kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_of_runs_within_each_other_keeps_all_of_them() {
        let run = |start, len| PhysRun { start, len };
        let mut pins = Pins::default();
        let _read =
            pins.add(5, vec![run(30, 10), run(0, 100), run(10, 10), run(200, 5), run(205, 1)]);
        assert!(pins.keep(6, run(50, 5)) && pins.keep(6, run(99, 1)) && pins.keep(6, run(205, 1)));
        assert!(!pins.keep(6, run(100, 100)) && !pins.keep(6, run(206, 9)));
    }

    #[test]
    fn a_read_keeps_its_own_blocks_and_no_others() {
        let run = |start, len| PhysRun { start, len };
        let mut pins = Pins::default();
        let a = pins.add(5, vec![run(100, 10), run(20, 5)]);
        let b = pins.add(7, vec![run(105, 1)]);
        // Freed before it was planned; not its; its, in part.
        assert!(!pins.keep(4, run(100, 1)));
        assert!(!pins.keep(9, run(25, 75)) && !pins.keep(9, run(110, 9)));
        assert!(pins.keep(6, run(24, 2)) && pins.keep(9, run(90, 30)));
        assert_eq!((pins.ended(), pins.kept().count()), (Vec::new(), 2));
        drop(a);
        let again = pins.ended();
        assert_eq!(again, [(6, run(24, 2)), (9, run(90, 30))]);
        // Another read needs one of them still.
        assert!(!pins.keep(6, run(24, 2)) && pins.keep(9, run(90, 30)));
        drop(b);
        assert_eq!(pins.ended(), [(9, run(90, 30))]);
        assert!(!pins.keep(9, run(90, 30)));
    }
}
