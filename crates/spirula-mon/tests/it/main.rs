//! The monitor from outside: events in, effects out, with a store that keeps every commit.

mod commands;
mod harness;
mod life;
