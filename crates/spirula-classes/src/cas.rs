//! Class `cas`: chunks of data that others refer to, by name of what they contain. The last
//! reference takes the chunk along.

use crate::{Call, Class, R, RW, Stop, fail, method};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};
use spirula_types::{HObject, errno};

pub(crate) const CLASS: Class = Class {
    name: "cas",
    methods: &[
        method("chunk_create_or_get_ref", RW, create_or_get),
        method("chunk_get_ref", RW, get),
        method("chunk_put_ref", RW, put),
        method("references_chunk", R, references),
    ],
};

/// The attribute that holds the references.
const ATTR: &[u8] = b"chunk_refs";
/// Flag: the data of a chunk that there is must be the same.
const VERIFY: u64 = 1;
/// Forms of references: objects by name, or their number alone.
const OBJECTS: u8 = 1;
const NUMBER: u8 = 5;
const ENOMSG: i32 = 42;
const ENOLINK: i32 = 67;

/// Who refers to a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
enum References {
    /// In the order of objects; one that refers twice is named twice.
    Objects(Vec<HObject>),
    /// So many.
    Number(u64),
}

impl Encode for References {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| match self {
            Self::Objects(objects) => {
                o.u8(OBJECTS);
                o.versioned(1, 1, |o| o.put(objects));
            }
            Self::Number(number) => {
                o.u8(NUMBER);
                o.versioned(1, 1, |o| o.u64(*number));
            }
        });
    }
}

impl Decode for References {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("references", 1, |d, _| match d.u8()? {
            OBJECTS => {
                let mut objects = d.versioned("objects", 1, |d, _| d.list(30, HObject::decode))?;
                objects.sort();
                Ok(Self::Objects(objects))
            }
            NUMBER => d.versioned("number", 1, |d, _| d.u64()).map(Self::Number),
            kind => Err(DecodeError::Value { what: "kind of references", value: kind.into() }),
        })
    }
}

impl References {
    fn add(&mut self, source: HObject) {
        match self {
            Self::Objects(objects) => {
                objects.insert(objects.partition_point(|o| *o <= source), source)
            }
            Self::Number(number) => *number = number.wrapping_add(1),
        }
    }

    /// Drops one; false if there is none.
    fn drop(&mut self, source: &HObject) -> bool {
        match self {
            Self::Objects(objects) => match objects.iter().position(|o| o == source) {
                Some(at) => {
                    objects.remove(at);
                    true
                }
                None => false,
            },
            Self::Number(0) => false,
            Self::Number(number) => {
                *number -= 1;
                true
            }
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::Number(0)) || *self == Self::Objects(Vec::new())
    }
}

/// The references of a chunk; ENOENT without it.
fn load(call: &mut Call<'_>) -> Result<References, Stop> {
    Ok(call.stored_attr(ATTR)?.unwrap_or(References::Objects(Vec::new())))
}

fn create_or_get(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (source, flags, data): (HObject, u64, Bytes) =
        call.args(|d| d.versioned("chunk", 1, |d, _| Ok((d.get()?, d.get()?, d.get()?))))?;
    let mut references = match load(call) {
        Err(Stop::Errno(errno::ENOENT)) => {
            call.object.write_full(data)?;
            References::Objects(Vec::new())
        }
        other => {
            let references = other?;
            if flags & VERIFY != 0 && call.object.read(0, u64::MAX)? != data {
                return fail(ENOMSG);
            }
            references
        }
    };
    references.add(source);
    call.store_attr(ATTR, &references)?;
    Ok(0)
}

fn source(call: &Call<'_>) -> Result<HObject, Stop> {
    call.args(|d| d.versioned("reference", 1, |d, _| d.get()))
}

fn get(call: &mut Call<'_>) -> Result<i32, Stop> {
    let source = source(call)?;
    let mut references = load(call)?;
    references.add(source);
    call.store_attr(ATTR, &references)?;
    Ok(0)
}

fn put(call: &mut Call<'_>) -> Result<i32, Stop> {
    let source = source(call)?;
    let mut references = load(call)?;
    if !references.drop(&source) {
        return fail(ENOLINK);
    }
    if references.is_empty() {
        call.object.remove()?;
    } else {
        call.store_attr(ATTR, &references)?;
    }
    Ok(0)
}

/// Does the object's manifest name a chunk? No object here has a manifest.
fn references(call: &mut Call<'_>) -> Result<i32, Stop> {
    call.args(|d| d.blob().map(drop))?;
    fail(ENOLINK)
}

/// An object of Ceph's corpus, read and written.
#[cfg(test)]
pub(crate) fn again(kind: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    match kind {
        "chunk_refs_t" => crate::reencoded::<References>(bytes),
        _ => None,
    }
}
