//! Our own messages, between our daemons only. Types from 0x5300 up. Every body is a versioned
//! struct whose unknown tail a reader skips, so a field can be added without a break. A body that
//! changes otherwise says so by its version, and a reader of the version before refuses it: OSDs of
//! two versions are not meant to work together (`docs/upgrade.md`).

pub mod control;
pub mod entry;
pub mod images;
pub mod pg;
pub mod quorum;
pub mod scrub;
pub mod write;

use crate::Body;

/// Key among an OSD's metadata of [`between_osds`].
pub const BETWEEN_OSDS: &str = "osd_messages";

/// What this program's OSDs say to each other, in a word: kinds of messages, each with its version.
/// OSDs that differ in it do not understand each other.
pub fn between_osds() -> String {
    fn one<M: Body>() -> String {
        format!("{:x}.{}", M::KIND, M::VERSION)
    }
    [
        one::<pg::PgTxn>(),
        one::<pg::PgAcks>(),
        one::<pg::PgCtls>(),
        one::<write::PgWrite>(),
        one::<pg::OsdPing>(),
        one::<pg::OsdPong>(),
        one::<pg::OsdRenewed>(),
    ]
    .join(" ")
}
