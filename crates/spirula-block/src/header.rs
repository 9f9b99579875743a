//! What the header of an image says, and the calls of the class `rbd` that ask it.

use crate::layout::Layout;
use bytes::Bytes;
use spirula_encoding::{DecodeError, Decoder, Encoder};
use spirula_messages::ceph::OsdOp;
use spirula_types::{PoolId, SNAP_HEAD};

/// Feature bits of an image.
pub mod feature {
    pub use spirula_types::rbd::feature::*;

    /// What this crate can read.
    pub const READ: u64 = WRITE | JOURNALING | NON_PRIMARY;
    /// What this crate can write to.
    pub const WRITE: u64 = LAYERING
        | STRIPING
        | EXCLUSIVE_LOCK
        | OBJECT_MAP
        | FAST_DIFF
        | DEEP_FLATTEN
        | DATA_POOL
        | OPERATIONS;
}

/// Flags of an image or snapshot.
pub mod image_flag {
    /// The object map may be wrong.
    pub const MAP_INVALID: u64 = 1;
    /// What it says of changes since snapshots may be wrong.
    pub const DIFF_INVALID: u64 = 2;
}

/// Why an image with these features cannot be used so.
pub fn refused(features: u64, incompatible: u64, writes: bool) -> Option<&'static str> {
    let has = |f: u64| features & f != 0;
    if has(feature::MIGRATING) {
        return Some("it is being migrated; finish or abort that with 'rbd migration'");
    }
    if has(feature::DIRTY_CACHE) {
        return Some(
            "a client's persistent cache holds changes that are not in it; flush that with 'rbd \
                persistent-cache'",
        );
    }
    if writes && has(feature::JOURNALING) {
        return Some(
            "it has the feature journaling, which is not supported here; open it read-only, or \
                disable the feature with \
             'rbd feature disable'",
        );
    }
    if writes && has(feature::NON_PRIMARY) {
        return Some(
            "it is the copy of a mirrored image; open it read-only, or promote it with 'rbd mirror \
                image promote'",
        );
    }
    let unknown = if writes { features & !feature::WRITE } else { incompatible & !feature::READ };
    (unknown != 0).then_some("it has features that are not known here")
}

fn call(method: &str, input: impl FnOnce(&mut Encoder)) -> OsdOp {
    let mut e = Encoder::new();
    input(&mut e);
    OsdOp::call("rbd", method, e.as_slice())
}

/// Calls that ask, and what their answers say.
pub mod ask {
    use super::*;

    /// A call about the image as it is now, or at a snapshot.
    pub fn at(method: &str, snap: u64) -> OsdOp {
        call(method, |e| e.u64(snap))
    }

    /// A call without input.
    pub fn plain(method: &str) -> OsdOp {
        call(method, |_| {})
    }

    /// Features, and those of them that a client must know.
    pub fn features(writes: bool) -> OsdOp {
        call("get_features", |e| {
            e.u64(SNAP_HEAD);
            e.bool(!writes);
        })
    }
}

/// The first number of an answer.
///
/// # Errors
/// If it is shorter.
pub fn number(answer: &[u8]) -> Result<u64, DecodeError> {
    Decoder::new(answer).u64()
}

/// Two numbers.
///
/// # Errors
/// If it is shorter.
pub fn numbers(answer: &[u8]) -> Result<(u64, u64), DecodeError> {
    let d = &mut Decoder::new(answer);
    Ok((d.u64()?, d.u64()?))
}

/// Order and size.
///
/// # Errors
/// If it is none.
pub fn size(answer: &[u8]) -> Result<(u8, u64), DecodeError> {
    let d = &mut Decoder::new(answer);
    Ok((d.u8()?, d.u64()?))
}

/// A string.
///
/// # Errors
/// If it is none.
pub fn text(answer: &[u8]) -> Result<Bytes, DecodeError> {
    Decoder::new(answer).bytes()
}

/// The newest snapshot that was ever made, and those there are, newest first.
///
/// # Errors
/// If it is none.
pub fn context(answer: &[u8]) -> Result<(u64, Vec<u64>), DecodeError> {
    let d = &mut Decoder::new(answer);
    Ok((d.u64()?, d.list(8, Decoder::u64)?))
}

/// The name of a snapshot that a user made; `None` for others.
///
/// # Errors
/// If it is none.
pub fn snapshot(answer: &[u8]) -> Result<Option<Bytes>, DecodeError> {
    Decoder::new(answer).versioned("snapshot", 1, |d, _| {
        d.u64()?;
        let kind = d.versioned("snapshot namespace", 1, |d, _| d.u32())?;
        let name = d.bytes()?;
        Ok((kind == 0).then_some(name))
    })
}

/// The snapshot that an image was cloned from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parent {
    /// Its pool.
    pub pool: PoolId,
    /// Its namespace.
    pub namespace: Bytes,
    /// The image's id.
    pub image: Bytes,
    /// The snapshot.
    pub snap: u64,
}

/// Reads what `parent_get` answers; `None` for an image that is no clone.
///
/// # Errors
/// If it is none.
pub fn parent(answer: &[u8]) -> Result<Option<Parent>, DecodeError> {
    let p = Decoder::new(answer).versioned("parent", 1, |d, _| {
        Ok(Parent { pool: d.i64()?, namespace: d.bytes()?, image: d.bytes()?, snap: d.u64()? })
    })?;
    Ok((p.pool >= 0 && !p.image.is_empty()).then_some(p))
}

/// Reads what `parent_overlap_get` answers.
///
/// # Errors
/// If it is none.
pub fn overlap(answer: &[u8]) -> Result<Option<u64>, DecodeError> {
    let d = &mut Decoder::new(answer);
    Ok(if d.bool()? { Some(d.u64()?) } else { None })
}

/// Sets flags of the image, or of a snapshot.
pub fn set_flags(flags: u64, snap: u64) -> OsdOp {
    call("set_flags", |e| {
        e.u64(flags);
        e.u64(flags);
        e.u64(snap);
    })
}

/// Gives a clone's object what its parent has, unless it exists.
pub fn copy_up(data: &[u8]) -> OsdOp {
    OsdOp::call("rbd", "copyup", data)
}

/// What does not change while an image is.
#[derive(Clone, Debug)]
pub struct Fixed {
    /// How it is cut.
    pub layout: Layout,
    /// What the names of its objects begin with.
    pub prefix: Bytes,
    /// The pool of its objects.
    pub data_pool: PoolId,
}

impl Fixed {
    /// The name of an object.
    pub fn object(&self, number: u64) -> Bytes {
        let mut name = self.prefix.to_vec();
        name.extend_from_slice(format!(".{number:016x}").as_bytes());
        name.into()
    }
}
