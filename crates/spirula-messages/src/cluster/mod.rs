//! Our own messages, between our daemons only. Types from 0x5300 up. Every body is a versioned
//! struct whose unknown tail a reader skips, so a field can be added without a break. A body that
//! changes otherwise says so by its version, and a reader of the version before refuses it: OSDs of
//! two versions are not meant to work together (`docs/upgrade.md`).

pub mod control;
pub mod entry;
pub mod pg;
pub mod quorum;
pub mod scrub;
pub mod write;
