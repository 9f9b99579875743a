//! Tests against bytes and tools that are not ours.

#![allow(clippy::unwrap_used, missing_docs)]

mod after;
mod corpus;
mod dumps;
mod golden;
mod mutated;
mod random;
mod support;
mod tools;
