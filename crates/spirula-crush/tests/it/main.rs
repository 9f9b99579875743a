//! CRUSH against Ceph: golden maps and mappings, and the installed `crushtool`.

mod editing;
mod golden;
mod malformed;
mod mapping;
mod random;
mod tool;
