//! What is to be removed some time after its object was: by its tag, and by the time. New gateways
//! use class `rgw_gc`.

use crate::{Call, Stop, stored};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use spirula_types::errno;

const BY_TAG: &[u8] = b"0_";
const BY_TIME: &[u8] = b"1_";
/// Entries that are listed unless another number is asked for.
const LISTED: u32 = 128;

/// An object in a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Object {
    pool: Bytes,
    locator: Bytes,
    key: super::types::Key,
}

impl Encode for Object {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(2, 1, |o| {
            o.put(&self.pool);
            o.put(&self.key.name);
            o.put(&self.locator);
            o.put(&self.key);
        });
    }
}

impl Decode for Object {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("object to remove", 2, |d, v| {
            let (pool, name, locator) = (d.get()?, d.get()?, d.get()?);
            let key = if v >= 2 { d.get()? } else { super::types::Key::named(name) };
            Ok(Self { pool, locator, key })
        })
    }
}

/// Objects that are to be removed together, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waste {
    /// Name of the whole.
    pub tag: Bytes,
    objects: Vec<Object>,
    /// When they may go.
    pub due: UTime,
}

impl Encode for Waste {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.tag);
            o.versioned(1, 1, |o| o.put(&self.objects));
            o.put(&self.due);
        });
    }
}

impl Decode for Waste {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("objects to remove", 1, |d, _| {
            let tag = d.get()?;
            let objects = d.versioned("chain of objects", 1, |d, _| d.list(38, Object::decode))?;
            Ok(Self { tag, objects, due: d.get()? })
        })
    }
}

impl Waste {
    /// The same, to be removed so many seconds after now.
    pub(crate) fn after(self, now: UTime, seconds: u32) -> Self {
        let due =
            UTime::from_nanos(now.as_nanos().saturating_add(u64::from(seconds) * 1_000_000_000));
        Self { due, ..self }
    }

    /// The arguments of a method that sets when it is due: in how many seconds, and what.
    pub(crate) fn args(call: &Call<'_>) -> Result<(u32, Self), Stop> {
        call.few_args(|d| d.versioned("objects to remove", 1, |d, _| Ok((d.u32()?, d.get()?))))
    }
}

fn tag_key(tag: &[u8]) -> Bytes {
    [BY_TAG, tag].concat().into()
}

fn time_key(time: UTime) -> Bytes {
    format!("1_{:011}.{:09}", time.sec, time.nsec).into()
}

fn put(call: &mut Call<'_>, seconds: u32, waste: Waste) -> Result<i32, Stop> {
    match call.key::<Waste>(tag_key(&waste.tag)) {
        Ok(Some(old)) => call.unset(time_key(old.due))?,
        Ok(None) | Err(Stop::Errno(_)) => {}
        Err(e) => return Err(e),
    }
    let waste = waste.after(call.object.now(), seconds);
    call.set(tag_key(&waste.tag), &waste)?;
    call.set(time_key(waste.due), &waste)?;
    Ok(0)
}

pub(super) fn set(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (seconds, waste) = Waste::args(call)?;
    put(call, seconds, waste)
}

pub(super) fn defer(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (seconds, tag): (u32, Bytes) =
        call.args(|d| d.versioned("deferral", 1, |d, _| Ok((d.get()?, d.get()?))))?;
    let waste = call.need(tag_key(&tag))?;
    put(call, seconds, waste)
}

/// What of the waste is listed: after a marker, how much, and whether only what is due.
pub(crate) struct Listing {
    pub marker: Bytes,
    pub max: u32,
    pub due_only: bool,
}

impl Listing {
    pub(crate) fn read(call: &Call<'_>) -> Result<Self, Stop> {
        let listing = call.args(|d| {
            d.versioned("listing of waste", 2, |d, v| {
                Ok(Self {
                    marker: d.get()?,
                    max: d.u32()?,
                    due_only: if v >= 2 { d.bool()? } else { true },
                })
            })
        })?;
        Ok(Self { max: if listing.max == 0 { LISTED } else { listing.max }, ..listing })
    }
}

/// The answer to a listing; a marker if there is more.
pub(crate) fn answer(call: &mut Call<'_>, entries: &[Waste], more: Option<&[u8]>) {
    call.output.versioned(2, 1, |o| {
        o.put(entries);
        o.blob(more.unwrap_or_default());
        o.bool(more.is_some());
    });
}

pub(super) fn list(call: &mut Call<'_>) -> Result<i32, Stop> {
    let listing = Listing::read(call)?;
    let start =
        if listing.marker.is_empty() { Bytes::from_static(BY_TIME) } else { listing.marker };
    let end = time_key(call.object.now());
    let page = call.pairs(&start, b"", listing.max.into())?;
    let (mut entries, mut last, mut more) = (Vec::new(), Bytes::new(), page.more);
    for (key, value) in page.pairs {
        if listing.due_only && key >= end || !key.starts_with(BY_TIME) {
            more = false;
            break;
        }
        entries.push(stored::<Waste>(&value)?);
        last = key;
    }
    answer(call, &entries, more.then_some(&last[..]));
    Ok(0)
}

pub(super) fn remove(call: &mut Call<'_>) -> Result<i32, Stop> {
    let tags: Vec<Bytes> = call.few_args(|d| d.versioned("tags", 1, |d, _| d.get()))?;
    for tag in tags {
        let Some(waste) = call.key::<Waste>(tag_key(&tag))? else { continue };
        match call.object.omap_remove(vec![time_key(waste.due), tag_key(&tag)]) {
            Err(Stop::Errno(errno::ENOENT)) => {}
            other => other?,
        }
    }
    Ok(0)
}

/// An object of Ceph's corpus, read and written.
#[cfg(test)]
pub(super) fn again(kind: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    match kind {
        "cls_rgw_gc_obj_info" => crate::reencoded::<Waste>(bytes),
        _ => None,
    }
}
