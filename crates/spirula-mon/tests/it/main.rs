//! The monitor from outside: events in, effects out, with a store that keeps every commit.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop where it is")]

mod admin;
mod clocks;
mod commands;
mod effects;
mod harness;
mod life;
mod limits;
mod managers;
mod mds;
mod mds_words;
mod merges;
mod snaps;
mod three;
