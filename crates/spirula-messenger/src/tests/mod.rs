//! Tests of whole connections: golden streams, two machines talking, broken links.

mod golden;
mod golden_cephx;
mod pair;
mod secure;
mod sessions;
mod wire;
