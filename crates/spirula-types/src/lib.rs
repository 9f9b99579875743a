//! The vocabulary everything else is written in.
//!
//! Pure values: ids, epochs, versions, addresses, object names and their hash, error
//! numbers, feature bits. Wire forms follow `docs/protocol/README.md` and `osd.md`.
//!
//! * [`PgId`], [`SpgId`], [`EVersion`], [`ReqId`] — placement groups and their history
//! * [`HObject`], [`ObjectLocator`] — object identity and the sort order of a PG
//! * [`EntityAddr`], [`AddrVec`], [`EntityName`] — who and where
//! * [`transaction`] — what a PG asks its store to change; [`limits`] — how much at a time;
//!   [`Dirty`] — what differs between two versions of an object
//! * [`hash`] — rjenkins, `stable_mod`; [`errno`] — Ceph's (Linux's) error numbers
//! * [`features`] — connection feature bits; [`names`] — what may be called how

mod addr;
mod dirty;
pub mod errno;
pub mod features;
pub mod hash;
pub mod limits;
pub mod names;
mod object;
mod pg;
pub mod rbd;
pub mod transaction;
pub mod version;

pub use addr::{AddrVec, EntityAddr, EntityName, EntityType};
pub use dirty::{BLOCK as DIRTY_BLOCK, Dirty};
pub use object::{HObject, NS_ALL, ObjectLocator, SNAP_DIR, SNAP_HEAD};
pub use pg::{EVersion, Peer, PgId, ReqId, SpgId};

/// Version number of a map; 0 means "none yet".
pub type Epoch = u32;
/// Number of an OSD; −1 means "none".
pub type OsdId = i32;
/// Number of a pool, from 1.
pub type PoolId = i64;
/// Bits of a pool's number; in a store those above say which shard of an erasure-coded object
/// something is, and whether it is kept to undo a change of it.
pub const POOL_BITS: u32 = 47;

/// The pool for whose objects a store uses this number.
pub fn pool_of_store(pool: PoolId) -> PoolId {
    if pool < 0 { pool } else { pool & ((1 << POOL_BITS) - 1) }
}
/// The slot value for "no OSD here" in an acting set (CRUSH_ITEM_NONE).
pub const OSD_NONE: OsdId = 0x7fff_ffff;

/// A 16-byte identifier (cluster fsid, OSD uuid).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// Marks 16 random bytes as a version 4 (random) UUID.
    pub fn from_random(mut b: [u8; 16]) -> Self {
        b[6] = (b[6] & 0x0f) | 0x40;
        b[8] = (b[8] & 0x3f) | 0x80;
        Self(b)
    }

    /// Parses `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`; `None` if it is not of that form.
    pub fn parse(s: &str) -> Option<Self> {
        let hex: Vec<u8> = s.bytes().filter(|b| *b != b'-').collect();
        if s.len() != 36 || hex.len() != 32 || !hex.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let mut out = [0; 16];
        for (o, pair) in out.iter_mut().zip(hex.chunks(2)) {
            *o = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(out))
    }

    /// True for the all-zero uuid.
    pub fn is_zero(&self) -> bool {
        self.0 == [0; 16]
    }
}

impl std::fmt::Display for Uuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, b) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{b:02x}")?;
        }
        Ok(())
    }
}
impl std::fmt::Debug for Uuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}
impl spirula_encoding::Encode for Uuid {
    fn encode(&self, out: &mut spirula_encoding::Encoder) {
        out.raw(&self.0);
    }
}
impl spirula_encoding::Decode for Uuid {
    fn decode(
        d: &mut spirula_encoding::Decoder<'_>,
    ) -> Result<Self, spirula_encoding::DecodeError> {
        Ok(Self(d.array()?))
    }
}
