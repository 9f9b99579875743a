//! Class `version`: a version number with a tag on an object, for optimistic writers. radosgw keeps
//! its metadata by it.

use crate::{Call, Class, R, RW, Stop, fail, method};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};
use spirula_types::errno;

pub(crate) const CLASS: Class = Class {
    name: "version",
    methods: &[
        method("set", RW, set),
        method("inc", RW, inc),
        method("inc_conds", RW, inc),
        method("read", R, read),
        method("check_conds", R, check_conds),
    ],
};

/// The attribute that holds the version.
const ATTR: &[u8] = b"ceph.objclass.version";
/// Characters of a tag that is made here.
const TAG: usize = 24;

/// A version. The tag tells apart what was created twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Version {
    number: u64,
    tag: Bytes,
}

impl Encode for Version {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u64(self.number);
            o.put(&self.tag);
        });
    }
}

impl Decode for Version {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("object version", 1, |d, _| Ok(Self { number: d.u64()?, tag: d.get()? }))
    }
}

/// A condition on the stored version: how it compares with a given one.
struct Condition {
    given: Version,
    how: u32,
}

impl Condition {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("condition", 1, |d, _| Ok(Self { given: d.get()?, how: d.u32()? }))
    }

    fn holds(&self, stored: &Version) -> bool {
        let given = &self.given;
        match self.how {
            1 => stored == given,
            2 => stored.number > given.number,
            3 => stored.number >= given.number,
            4 => stored.number < given.number,
            5 => stored.number <= given.number,
            6 => stored.tag == given.tag,
            7 => stored.tag != given.tag,
            _ => true,
        }
    }
}

/// The conditions in the input; the version before them is not looked at.
fn conditions(call: &Call<'_>) -> Result<Vec<Condition>, Stop> {
    call.args(|d| {
        d.versioned("conditions", 1, |d, _| {
            d.get::<Version>()?;
            d.list(6, Condition::decode)
        })
    })
}

/// The stored version, if there is one.
fn load(call: &mut Call<'_>) -> Result<Option<Version>, Stop> {
    match call.stored_attr(ATTR) {
        Err(Stop::Errno(errno::ENOENT)) => Ok(None),
        other => other,
    }
}

/// A tag that no other object gets.
fn tag(call: &mut Call<'_>) -> Bytes {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut tag = Vec::with_capacity(TAG);
    while tag.len() < TAG {
        let bits = call.object.unique();
        // Ten letters of 6 bits each.
        tag.extend((0..10).map(|i| LETTERS[(bits >> (6 * i)) as usize % LETTERS.len()]));
    }
    tag.truncate(TAG);
    tag.into()
}

fn set(call: &mut Call<'_>) -> Result<i32, Stop> {
    let version: Version = call.args(|d| d.versioned("set version", 1, |d, _| d.get()))?;
    call.store_attr(ATTR, &version)?;
    Ok(0)
}

fn inc(call: &mut Call<'_>) -> Result<i32, Stop> {
    let conditions = conditions(call)?;
    let mut version = match load(call)? {
        Some(version) => version,
        None => Version { number: 1, tag: tag(call) },
    };
    if !conditions.iter().all(|c| c.holds(&version)) {
        return fail(errno::ECANCELED);
    }
    version.number = version.number.wrapping_add(1);
    call.store_attr(ATTR, &version)?;
    Ok(0)
}

fn read(call: &mut Call<'_>) -> Result<i32, Stop> {
    let version = load(call)?.unwrap_or_default();
    call.output.versioned(1, 1, |o| o.put(&version));
    Ok(0)
}

fn check_conds(call: &mut Call<'_>) -> Result<i32, Stop> {
    let conditions = conditions(call)?;
    let version = load(call)?.unwrap_or_default();
    if conditions.iter().all(|c| c.holds(&version)) { Ok(0) } else { fail(errno::ECANCELED) }
}
