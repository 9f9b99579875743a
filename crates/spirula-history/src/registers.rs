//! Registers: values written whole, none of them twice.
//!
//! The check is Gibbons' and Korach's for values that are written once: the operations
//! of one value span a zone from the earliest answer to the latest begin. Zones that run forward
//! must not overlap, and none that runs backward may lie inside one that runs forward.

use std::collections::BTreeMap;

/// What an operation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Wrote this value; no value is written twice.
    Write(u64),
    /// Read this value, or that there is none.
    Read(Option<u64>),
}

/// One operation of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// Whose.
    pub client: usize,
    /// On which register.
    pub register: u64,
    /// What.
    pub action: Action,
    /// When it began, true time.
    pub begun: u64,
    /// When it was answered, if it was.
    pub ended: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Zone {
    value: u64,
    first_end: u64,
    last_begin: u64,
    write_begun: u64,
    written: bool,
}

/// Checks the operations of all registers.
///
/// # Errors
/// Two sentences on what cannot have happened.
pub fn linearizable(ops: &[Op]) -> Result<(), String> {
    let mut registers: BTreeMap<u64, Vec<&Op>> = BTreeMap::new();
    for op in ops {
        registers.entry(op.register).or_default().push(op);
    }
    registers
        .into_iter()
        .try_for_each(|(r, ops)| one_register(&ops).map_err(|e| format!("register {r}: {e}")))
}

fn one_register(ops: &[&Op]) -> Result<(), String> {
    // Value 0 is the empty register, written before all time.
    let first = Zone { value: 0, first_end: 0, last_begin: 0, write_begun: 0, written: true };
    let mut zones: BTreeMap<u64, Zone> = [(0, first)].into();
    for op in ops {
        let (value, end) = match (op.action, op.ended) {
            (Action::Write(v), end) => (v, end.unwrap_or(u64::MAX)),
            (Action::Read(v), Some(end)) => (v.unwrap_or(0), end),
            (Action::Read(_), None) => continue,
        };
        let blank =
            Zone { value, first_end: u64::MAX, last_begin: 0, write_begun: 0, written: false };
        let z = zones.entry(value).or_insert(blank);
        z.first_end = z.first_end.min(end);
        z.last_begin = z.last_begin.max(op.begun);
        if matches!(op.action, Action::Write(_)) {
            (z.write_begun, z.written) = (op.begun, true);
        }
    }
    for op in ops {
        if let (Action::Read(Some(v)), Some(end)) = (op.action, op.ended)
            && zones.get(&v).is_none_or(|z| !z.written || end < z.write_begun)
        {
            return Err(format!("client {} read {v:#x}, which was not written by then", op.client));
        }
    }
    // A value that was written by someone who never heard, and that nobody read, may be nothing.
    let zones: Vec<Zone> = zones.into_values().filter(|z| z.first_end != u64::MAX).collect();
    let forward: Vec<Zone> = zones.iter().copied().filter(|z| z.first_end < z.last_begin).collect();
    for (i, a) in forward.iter().enumerate() {
        for b in forward.iter().skip(i + 1) {
            if a.first_end < b.last_begin && b.first_end < a.last_begin {
                return Err(format!(
                    "{:#x} was there from {} to {} at least, and {:#x} from {} to {}",
                    a.value, a.first_end, a.last_begin, b.value, b.first_end, b.last_begin
                ));
            }
        }
        let inside = |b: &&Zone| {
            b.first_end >= b.last_begin && a.first_end < b.last_begin && b.first_end < a.last_begin
        };
        if let Some(b) = zones.iter().find(inside) {
            return Err(format!(
                "{:#x} came and went between {} and {}, while {:#x} was there from {} to {}",
                b.value, b.last_begin, b.first_end, a.value, a.first_end, a.last_begin
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(action: Action, begun: u64, ended: u64) -> Op {
        Op { client: 1, register: 0, action, begun, ended: (ended > 0).then_some(ended) }
    }

    #[test]
    fn histories_that_can_and_cannot_have_happened() {
        use Action::{Read, Write};
        let good: &[&[Op]] = &[
            &[op(Write(1), 1, 2), op(Read(Some(1)), 3, 4)],
            &[op(Read(None), 1, 5), op(Write(1), 2, 3), op(Read(Some(1)), 4, 6)],
            &[op(Write(1), 1, 0), op(Read(None), 5, 6), op(Read(Some(1)), 8, 9)],
            &[op(Write(1), 1, 10), op(Write(2), 2, 9), op(Read(Some(1)), 11, 12)],
        ];
        for h in good {
            linearizable(h).unwrap();
        }
        let bad: &[&[Op]] = &[
            // Stale.
            &[op(Write(1), 1, 2), op(Write(2), 3, 4), op(Read(Some(1)), 5, 6)],
            // Lost.
            &[op(Write(1), 1, 2), op(Read(None), 3, 4)],
            // Before it was written.
            &[op(Read(Some(1)), 1, 2), op(Write(1), 3, 4)],
            // Never written.
            &[op(Read(Some(7)), 1, 2)],
            // Twice: 1, then 2, then 1 again.
            &[
                op(Write(1), 1, 20),
                op(Write(2), 3, 4),
                op(Read(Some(1)), 1, 2),
                op(Read(Some(2)), 5, 6),
                op(Read(Some(1)), 7, 8),
            ],
            // Back and forth.
            &[
                op(Write(1), 1, 0),
                op(Write(2), 1, 0),
                op(Read(Some(1)), 5, 6),
                op(Read(Some(2)), 7, 8),
                op(Read(Some(1)), 9, 10),
            ],
        ];
        for h in bad {
            assert!(linearizable(h).is_err(), "{h:?}");
        }
    }
}
