//! Checkers of histories: can clients have seen what they saw, if every operation took effect
//! once, at one moment between its begin and its answer?
//!
//! * [`registers`] — values that are written whole, each written once; the order is unknown
//! * [`versions`] — changes of any kind, each answered with its place in the order
//!
//! Pure; knows of no daemon and no protocol. Times are numbers that grow.

#![cfg_attr(
    test,
    allow(clippy::unwrap_used, reason = "a test that cannot go on should stop where it is")
)]

pub mod registers;
pub mod versions;
