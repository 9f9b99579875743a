//! Class `cephfs`: what `cephfs-data-scan` gathers of a file's objects at the first of them.

use crate::{Call, Class, RW, Stop, method};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, from_slice};
use spirula_types::errno;

pub(crate) const CLASS: Class = Class {
    name: "cephfs",
    methods: &[method("accumulate_inode_metadata", RW, accumulate_inode_metadata)],
};

/// The last object of a file, and its size.
struct Ceiling {
    index: u64,
    size: u64,
}

impl Encode for Ceiling {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u64(self.index);
            o.u64(self.size);
        });
    }
}

impl Decode for Ceiling {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("last object", 1, |d, _| Ok(Self { index: d.u64()?, size: d.u64()? }))
    }
}

/// Notes a value in an attribute, unless the one that is there is as great. What is no such value
/// is replaced.
fn raise<T: Encode + Decode>(
    call: &mut Call<'_>,
    attr: &[u8],
    new: &T,
    greater: impl FnOnce(&T) -> bool,
) -> Result<(), Stop> {
    let old = match call.object.attr(attr) {
        Err(Stop::Errno(errno::ENOENT | errno::ENODATA)) => Bytes::new(),
        other => other?,
    };
    if from_slice::<T>(&old).is_ok_and(|old| !greater(&old)) {
        return Ok(());
    }
    call.store_attr(attr, new)
}

fn accumulate_inode_metadata(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (names, index, size, mtime) = call.args(|d| {
        d.versioned("inode metadata", 1, |d, _| {
            Ok(([d.bytes()?, d.bytes()?, d.bytes()?], d.u64()?, d.u64()?, d.i64()?))
        })
    })?;
    let [ceiling, mtimes, sizes] = names;
    raise(call, &ceiling, &Ceiling { index, size }, |old| index > old.index)?;
    raise(call, &mtimes, &mtime, |old| mtime > *old)?;
    raise(call, &sizes, &size, |old| size > *old)?;
    Ok(0)
}
