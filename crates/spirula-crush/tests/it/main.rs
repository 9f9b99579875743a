//! CRUSH against Ceph: golden maps and mappings, and the installed `crushtool`.

#![allow(clippy::unwrap_used, reason = "a test may fail that way")]

mod editing;
mod golden;
mod malformed;
mod mapping;
mod random;
mod tool;
