//! Class `refcount`: an object that goes when nobody refers to it any more. References have names
//! ("tags").
//!
//! An object that was never told of a reference may count as referred to once, by nobody in
//! particular (an *implicit* reference, of the empty name): then whoever drops the first one drops
//! that.

use crate::{Call, Class, R, RW, Stop, fail, method};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};
use spirula_types::errno;
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const CLASS: Class = Class {
    name: "refcount",
    methods: &[
        method("get", RW, get),
        method("put", RW, put),
        method("set", RW, set),
        method("read", R, read),
    ],
};

/// The attribute that holds the references.
const ATTR: &[u8] = b"refcount";

/// Who refers to the object.
#[derive(Clone, Debug, Default)]
struct References {
    /// By name. The flag is always true.
    held: BTreeMap<Bytes, bool>,
    /// Names that were dropped: a name that is dropped twice counts once.
    dropped: BTreeSet<Bytes>,
}

impl Encode for References {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(2, 1, |o| {
            o.put(&self.held);
            o.put(&self.dropped);
        });
    }
}

impl Decode for References {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("references", 2, |d, v| {
            Ok(Self { held: d.get()?, dropped: if v >= 2 { d.get()? } else { BTreeSet::new() } })
        })
    }
}

fn load(call: &mut Call<'_>, implicit: bool) -> Result<References, Stop> {
    Ok(call.stored_attr(ATTR)?.unwrap_or_else(|| {
        let nobody = implicit.then(|| (Bytes::new(), true));
        References { held: nobody.into_iter().collect(), ..References::default() }
    }))
}

/// A name, and whether an implicit reference counts.
fn one(call: &Call<'_>) -> Result<(Bytes, bool), Stop> {
    call.args(|d| d.versioned("reference", 1, |d, _| Ok((d.get()?, d.bool()?))))
}

fn get(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (name, implicit) = one(call)?;
    let mut references = load(call, implicit)?;
    references.held.insert(name, true);
    call.store_attr(ATTR, &references)?;
    Ok(0)
}

fn put(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (name, implicit) = one(call)?;
    let mut references = load(call, implicit)?;
    if references.held.is_empty() {
        return fail(errno::EINVAL);
    }
    let held = if references.held.contains_key(&name) { name.clone() } else { Bytes::new() };
    let found = references.held.contains_key(&held) && (held == name || implicit);
    if !found || !references.dropped.insert(name) {
        return Ok(0);
    }
    references.held.remove(&held);
    if references.held.is_empty() {
        call.object.remove()?;
    } else {
        call.store_attr(ATTR, &references)?;
    }
    Ok(0)
}

fn set(call: &mut Call<'_>) -> Result<i32, Stop> {
    let names: Vec<Bytes> =
        call.few_args(|d| d.versioned("references", 1, |d, _| d.list(4, Bytes::decode)))?;
    if names.is_empty() {
        call.object.remove()?;
        return Ok(0);
    }
    let held = names.into_iter().map(|n| (n, true)).collect();
    call.store_attr(ATTR, &References { held, ..References::default() })?;
    Ok(0)
}

fn read(call: &mut Call<'_>) -> Result<i32, Stop> {
    let implicit = call.args(|d| d.versioned("read references", 1, |d, _| d.bool()))?;
    let references = load(call, implicit)?;
    call.output.versioned(1, 1, |o| o.list(references.held.keys(), |o, name| o.put(name)));
    Ok(0)
}
