//! Planted bugs count as found only by what they must cause: the words that the checks say it with.

use spirula_pg::Bug;
use std::panic::{RefUnwindSafe, catch_unwind, set_hook, take_hook};

/// A read saw nothing that was there while it ran.
pub const STALE: &str = "saw none of";
/// What is there in the end is not what the acknowledged changes make.
pub const END: &str = "there is All(";
/// A change was answered as it cannot have been.
const ANSWER: &str = " }: on Past {";
/// A resend is answered otherwise than what it repeats.
pub const OTHER_ANSWER: &str = "got another answer";
/// Two changes have one place.
const PLACE: &str = "two changes in one place";
/// Nobody has an object that was acknowledged.
pub const UNFOUND: &str = "+recovery_unfound";
pub const UNFILLED: &str = "+backfill_unfound";
/// Copies, or shards, of an object.
const COPIES: &str = " differs";
/// Bytes that no client wrote in one piece.
const TORN: &str = "torn append";
/// What an object's history says that two clones share.
pub const SHARED: &str = "what the history says of clone";

/// What was acknowledged is not there, or was not when it was read.
pub const ACKED: &[&str] = &[STALE, END, ANSWER, PLACE];
/// Or nobody has it.
pub const LOST: &[&str] = &[STALE, END, ANSWER, PLACE, UNFOUND, UNFILLED];
/// Or it is not the same everywhere.
pub const DATA: &[&str] = &[STALE, END, ANSWER, PLACE, UNFOUND, UNFILLED, COPIES, TORN];
/// Or what is to be taken back of it stays for ever.
pub const TAKEN_BACK: &[&str] = &[
    STALE,
    END,
    ANSWER,
    PLACE,
    UNFOUND,
    UNFILLED,
    COPIES,
    TORN,
    "keeps something to be taken back",
];
/// A change took place twice.
pub const DONE_TWICE: &[&str] = &[OTHER_ANSWER, STALE, END, ANSWER, PLACE];
/// Snapshots show what was not, or cannot be put together.
pub const PAST: &[&str] =
    &[SHARED, " has a history with clones ", STALE, END, ANSWER, UNFOUND, UNFILLED, COPIES, TORN];

/// What goes wrong when this runs, and be it a panic.
fn failure(run: impl FnOnce() -> Option<String> + std::panic::UnwindSafe) -> Option<String> {
    catch_unwind(run).unwrap_or_else(|e| {
        let said = e.downcast_ref::<String>().cloned();
        Some(
            said.or_else(|| e.downcast_ref::<&str>().map(|s| (*s).to_owned()))
                .unwrap_or_else(|| "a panic".to_owned()),
        )
    })
}

/// A way to run a seed for a bug, with it planted or (`None`) the same without: what goes wrong?
pub type Run<'a> = &'a (dyn Fn(Bug, Option<Bug>, u64) -> Option<String> + RefUnwindSafe);

/// Each of these planted bugs must make one of the first `seeds` seeds fail in one of the ways to
/// run them, and with one of its words; nothing may be wrong with that seed without it.
pub fn all_caught(bugs: &[(Bug, &[&str])], seeds: u64, runs: &[Run<'_>]) {
    let quiet = take_hook();
    set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for (bug, words) in bugs {
        let mut others = Vec::new();
        let all = (0..seeds).flat_map(|seed| runs.iter().map(move |run| (seed, run)));
        let failures = all
            .filter_map(|(seed, run)| Some((seed, run, failure(|| run(*bug, Some(*bug), seed))?)));
        let caught = failures.into_iter().find(|(seed, run, e)| {
            if !words.iter().any(|w| e.contains(w)) {
                others.push(format!("seed {seed}: {e:.300}"));
                return false;
            }
            let without = failure(|| run(*bug, None, *seed));
            others.extend(
                without.iter().map(|e| format!("seed {seed}, which fails without it: {e:.300}")),
            );
            without.is_none()
        });
        match caught {
            Some((seed, _, e)) => println!("{bug:?}: caught by seed {seed}: {e:.300}"),
            None => missed.push(bug),
        }
        others.iter().for_each(|e| println!("  {bug:?} does not count as caught by {e}"));
    }
    set_hook(quiet);
    assert!(missed.is_empty(), "not caught in {seeds} seeds: {missed:?}");
}

/// A planted bug must make some of the first `seeds` seeds fail, and with these words.
pub fn fails_with(
    words: &str,
    seeds: u64,
    run: impl Fn(u64) -> Result<(), String> + RefUnwindSafe,
) {
    let quiet = take_hook();
    set_hook(Box::new(|_| {}));
    let all: Vec<String> = (0..seeds).filter_map(|seed| failure(|| run(seed).err())).collect();
    set_hook(quiet);
    let (found, other): (Vec<&String>, Vec<&String>) = all.iter().partition(|e| e.contains(words));
    println!("{words}: {} of {seeds}, and {} fail otherwise", found.len(), other.len());
    assert!(
        !found.is_empty(),
        "never {words:?} in {seeds} seeds; {} other failures: {:?}",
        other.len(),
        other.first()
    );
}
