//! Buckets with a lifecycle, and how far their daily walk has come.

use crate::{Call, Stop, stored};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};
use spirula_types::errno;

/// A bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Bucket {
    name: Bytes,
    /// When its walk began, seconds since 1970.
    started: u64,
    /// How far its walk is.
    status: u32,
}

impl Encode for Bucket {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.name);
            o.u64(self.started);
            o.u32(self.status);
        });
    }
}

impl Decode for Bucket {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("lifecycle of a bucket", 1, |d, _| {
            Ok(Self { name: d.get()?, started: d.u64()?, status: d.u32()? })
        })
    }
}

impl Bucket {
    /// The form of older releases.
    fn old(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { name: d.get()?, started: 0, status: d.u32()? })
    }

    fn arg(call: &Call<'_>) -> Result<Self, Stop> {
        call.args(|d| {
            d.versioned("lifecycle", 2, |d, v| if v < 2 { Self::old(d) } else { d.get() })
        })
    }
}

pub(super) fn get(call: &mut Call<'_>) -> Result<i32, Stop> {
    let name: Bytes = call.args(|d| d.versioned("bucket", 1, |d, _| d.get()))?;
    let bucket: Bucket = call.need(&name)?;
    call.output.versioned(1, 1, |o| o.put(&bucket));
    Ok(0)
}

pub(super) fn set(call: &mut Call<'_>) -> Result<i32, Stop> {
    let bucket = Bucket::arg(call)?;
    call.set(&bucket.name, &bucket)?;
    Ok(0)
}

pub(super) fn remove(call: &mut Call<'_>) -> Result<i32, Stop> {
    let bucket = Bucket::arg(call)?;
    call.unset(&bucket.name)?;
    Ok(0)
}

pub(super) fn next(call: &mut Call<'_>) -> Result<i32, Stop> {
    let after: Bytes = call.args(|d| d.versioned("bucket", 1, |d, _| d.get()))?;
    let page = call.pairs(&after, b"", 1)?;
    let bucket: Bucket =
        page.pairs.first().map(|(_, value)| stored(value)).transpose()?.unwrap_or_default();
    call.output.versioned(2, 2, |o| o.put(&bucket));
    Ok(0)
}

pub(super) fn list(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (version, after, max): (u8, Bytes, u32) =
        call.args(|d| d.versioned("listing of buckets", 3, |d, v| Ok((v, d.get()?, d.get()?))))?;
    let page = call.pairs(&after, b"", max.into())?;
    let mut buckets = Vec::with_capacity(page.pairs.len());
    for (_, value) in page.pairs {
        let mut d = Decoder::new(&value);
        let bucket = Bucket::decode(&mut d).or_else(|_| Bucket::old(&mut Decoder::new(&value)));
        buckets.push(bucket.map_err(|_| Stop::Errno(errno::EIO))?);
    }
    call.output.versioned(version, 1, |o| {
        match version {
            // Names and how far they are, in the order of the names.
            0..=2 => o.list(&buckets, |o, b| {
                o.put(&b.name);
                o.u32(b.status);
            }),
            _ => o.put(&buckets),
        }
        o.bool(page.more);
    });
    Ok(0)
}

/// How far the walk over the buckets is. Later releases add to it: what they say is kept as it
/// came.
struct Progress(Bytes);

/// Ceph 18.2's form ends with when the walk came round last, and says that 16.2 cannot read it.
const PROGRESS_VERSION: u8 = 2;

impl Progress {
    /// When the walk began, and the bucket where it is: an i64 and a string.
    fn check(d: &mut Decoder<'_>) -> Result<(), DecodeError> {
        d.versioned("progress", PROGRESS_VERSION, |d, _| {
            d.u64()?;
            d.blob().map(drop)
        })
    }

    fn none() -> Self {
        let mut out = Encoder::new();
        out.versioned(1, 1, |o| {
            o.u64(0);
            o.blob(b"");
        });
        Self(out.into_bytes())
    }

    /// As many bytes as it has. What later releases add is behind what earlier ones read, so it is
    /// readable from the first form on, whatever its writer says: gateways of both releases may
    /// walk in turn.
    fn read(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let whole = d.rest();
        let from = d.position();
        Self::check(d)?;
        let length = d.position() - from;
        let mut bytes = whole.get(..length).unwrap_or_default().to_vec();
        if let Some(compat) = bytes.get_mut(1) {
            *compat = 1;
        }
        Ok(Self(bytes.into()))
    }
}

pub(super) fn put_head(call: &mut Call<'_>) -> Result<i32, Stop> {
    let head = call.args(|d| d.versioned("progress", 1, |d, _| Progress::read(d)))?;
    call.object.omap_set_header(head.0)?;
    Ok(0)
}

pub(super) fn get_head(call: &mut Call<'_>) -> Result<i32, Stop> {
    let header = call.object.omap_header()?;
    let head = if header.is_empty() {
        Progress::none()
    } else {
        Progress::read(&mut Decoder::new(&header))?
    };
    call.output.versioned(1, 1, |o| o.raw(&head.0));
    Ok(0)
}

/// An object of Ceph's corpus, read and written.
#[cfg(test)]
pub(super) fn again(kind: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    match kind {
        "cls_rgw_lc_entry" => crate::reencoded::<Bucket>(bytes),
        _ => None,
    }
}
