//! Which Ceph we speak as, and who we really are.

/// The Ceph release whose protocol and command line we follow.
pub const CEPH: &str = "16.2.15";
/// Its name.
pub const RELEASE: &str = "pacific";
/// What daemons report as their version, in the form that Ceph's tools expect.
pub const TEXT: &str =
    concat!("ceph version 16.2.15 (spirula ", env!("CARGO_PKG_VERSION"), ") pacific (stable)");
