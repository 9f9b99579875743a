//! Tests of whole connections: golden streams, two machines talking, broken links.

mod golden;
mod pair;
mod sessions;
mod wire;
