//! Objects whose every change is answered with a version.
//!
//! The versions give the order; it must agree with time, and every read must have seen the
//! state between two changes that fit its time and what reads before it saw.

use std::fmt::Debug;

/// What an operation did.
#[derive(Clone, Debug)]
pub enum What<C, S, V> {
    /// A change, and its place in the order.
    Change(C, V),
    /// A read, and what it saw.
    Read(S),
}

/// One operation on the object, answered.
#[derive(Clone, Debug)]
pub struct Op<C, S, V> {
    /// When it began.
    pub begun: u64,
    /// When it was answered.
    pub ended: u64,
    /// What.
    pub what: What<C, S, V>,
}

/// Checks the operations on one object. `apply` makes the next state of a change and the last
/// state, or says why a change cannot have been answered as it was; `last` is what is there in
/// the end.
///
/// # Errors
/// What cannot have happened.
pub fn linearizable<C: Debug, S: Debug + PartialEq, V: Debug + Ord + Clone>(
    history: &[Op<C, S, V>],
    first: S,
    apply: impl Fn(&S, &C) -> Result<S, String>,
    last: Option<&S>,
) -> Result<(), String> {
    let mut changes: Vec<(&V, &C, &Op<C, S, V>)> = Vec::new();
    let mut reads: Vec<(&S, &Op<C, S, V>)> = Vec::new();
    for op in history {
        match &op.what {
            What::Change(change, version) => changes.push((version, change, op)),
            What::Read(seen) => reads.push((seen, op)),
        }
    }
    changes.sort_by(|a, b| a.0.cmp(b.0));
    for (a, b) in changes.iter().zip(changes.iter().skip(1)) {
        if a.0 == b.0 {
            return Err(format!("two changes in one place: {:?} and {:?}", a.2, b.2));
        }
    }
    let mut states = vec![first];
    let mut latest_begin = 0;
    for (_, change, op) in &changes {
        if op.ended < latest_begin {
            return Err(format!("a change that had ended is ordered after a later one: {op:?}"));
        }
        latest_begin = latest_begin.max(op.begun);
        if let Some(state) = states.last() {
            let next = apply(state, change).map_err(|e| format!("{op:?}: {e}"))?;
            states.push(next);
        }
    }
    if let (Some(is), Some(should)) = (last, states.last())
        && is != should
    {
        let ops: Vec<_> = changes.iter().rev().take(4).map(|c| c.2).collect();
        return Err(format!("there is {is:?}, after {ops:?} there should be {should:?}"));
    }
    reads.sort_by_key(|(_, op)| op.begun);
    // When reads done so far ended, and the newest state they saw.
    let mut before: Vec<(u64, usize)> = Vec::new();
    for (seen, op) in reads {
        let lowest = changes.iter().rposition(|c| c.2.ended < op.begun).map_or(0, |i| i + 1);
        let highest = changes.iter().position(|c| c.2.begun > op.ended).unwrap_or(changes.len());
        let earlier = before.iter().filter(|(end, _)| *end < op.begun).map(|(_, at)| *at).max().unwrap_or(0);
        let from = lowest.max(earlier);
        match (from..=highest).find(|i| states.get(*i) == Some(seen)) {
            Some(at) => before.push((op.ended, at)),
            None => return Err(format!("{op:?} saw none of {:?}", states.get(from..=highest.max(from)))),
        }
    }
    Ok(())
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
        check(&[put('a', 1, 1, 2), put('b', 2, 1, 5), saw("a", 3, 4), saw("ab", 3, 6)], Some("ab")).unwrap();
        check(&[put('b', 2, 1, 9), put('a', 1, 2, 8), saw("", 1, 3)], Some("ab")).unwrap();
        let bad: &[(&[Word], &str)] = &[
            (&[put('a', 1, 1, 2), saw("", 3, 4)], "a"),                 // stale
            (&[put('a', 1, 1, 2)], ""),                                 // lost
            (&[put('a', 1, 1, 2), put('b', 1, 1, 2)], "ab"),            // one place
            (&[put('a', 2, 1, 2), put('b', 1, 3, 4)], "ba"),            // against time
            (&[put('a', 1, 1, 2), put('a', 2, 1, 2)], "aa"),            // not so answered
            (&[put('a', 1, 5, 6), saw("a", 1, 2)], "a"),                // before it was there
            (&[put('a', 1, 1, 9), saw("a", 2, 3), saw("", 4, 5)], "a"), // back
        ];
        for (history, last) in bad {
            assert!(check(history, Some(last)).is_err(), "{history:?}");
        }
    }
}
