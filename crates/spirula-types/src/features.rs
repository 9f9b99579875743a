//! Connection feature bits (`docs/protocol/README.md` §2).

/// What a Pacific 16.2.15 peer offers; offering exactly this makes every client use the
/// encodings written down in `docs/protocol`.
pub const PACIFIC: u64 = 0x3f01_cfbd_fffd_ffff;
/// Clients speak in `entity_addrvec` (bit 59).
pub const MSG_ADDR2: u64 = 1 << 59;
/// Clients that know backoffs (bit 21 in its second meaning, which bit 57 gives it).
pub const RADOS_BACKOFF: u64 = 1 << 21 | 1 << 57;
/// The one feature we require of a peer.
pub const REQUIRED: u64 = MSG_ADDR2;

/// msgr2 banner feature: 2.1 frames (preamble, per-segment crc).
pub const MSGR2_REVISION_1: u64 = 1;
