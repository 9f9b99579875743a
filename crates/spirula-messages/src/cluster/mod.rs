//! Our own messages, between our daemons only. Types from 0x5300 up; every body is a
//! versioned struct, so that daemons of two releases can work together during an upgrade.

pub mod control;
pub mod entry;
pub mod pg;
pub mod quorum;
pub mod scrub;
