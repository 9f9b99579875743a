//! Class `user`: the buckets of one of radosgw's users, by name, and what they come to, in the
//! omap's header.

use crate::{Call, Class, R, RW, Stop, fail, method, stored};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use spirula_types::errno;

pub(crate) const CLASS: Class = Class {
    name: "user",
    methods: &[
        method("set_buckets_info", RW, set),
        method("complete_stats_sync", RW, complete_sync),
        method("remove_bucket", RW, remove),
        method("list_buckets", R, list),
        method("get_header", R, header),
        method("reset_user_stats", RW, reset),
        method("reset_user_stats2", RW, reset_stepwise),
    ],
};

/// Most buckets that are read at a time.
const MOST: u64 = 1000;

/// Which bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Bucket {
    name: Bytes,
    marker: Bytes,
    id: Bytes,
    placement: Bytes,
    /// Pools of its own, where it has no placement: for data, index, and what is no data yet.
    data_pool: Bytes,
    index_pool: Bytes,
    extra_pool: Bytes,
}

impl Encode for Bucket {
    fn encode(&self, out: &mut Encoder) {
        // The newer form only where it says more: older gateways read this, too.
        if self.placement.is_empty() {
            out.versioned(7, 3, |o| {
                o.put(&self.name);
                o.put(&self.data_pool);
                o.put(&self.marker);
                o.put(&self.id);
                o.put(&self.index_pool);
                o.put(&self.extra_pool);
            });
        } else {
            out.versioned(9, 8, |o| {
                o.put(&self.name);
                o.put(&self.marker);
                o.put(&self.id);
                o.put(&self.placement);
            });
        }
    }
}

impl Decode for Bucket {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("bucket", 8, |d, v| {
            let mut b = Self { name: d.get()?, ..Self::default() };
            if v < 8 {
                b.data_pool = d.get()?;
            }
            if v >= 2 {
                b.marker = d.get()?;
                b.id = if v <= 3 { d.u64()?.to_string().into() } else { d.get()? };
            }
            if v >= 8 {
                b.placement = d.get()?;
                if v == 8 && b.placement.is_empty() {
                    (b.data_pool, b.index_pool, b.extra_pool) = (d.get()?, d.get()?, d.get()?);
                }
                return Ok(b);
            }
            b.index_pool = if v >= 5 { d.get()? } else { b.data_pool.clone() };
            if v >= 7 {
                b.extra_pool = d.get()?;
            }
            Ok(b)
        })
    }
}

/// A bucket, and what it comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Entry {
    bucket: Bucket,
    size: u64,
    rounded: u64,
    created: UTime,
    objects: u64,
    /// It counts for the user's totals.
    counted: bool,
}

impl Encode for Entry {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(9, 5, |o| {
            o.blob(b"");
            o.u64(self.size);
            o.u32(self.created.sec);
            o.u64(self.objects);
            o.put(&self.bucket);
            o.u64(self.rounded);
            o.bool(self.counted);
            o.put(&self.created);
        });
    }
}

impl Decode for Entry {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("bucket's entry", 9, |d, v| {
            d.blob()?;
            let mut e = Self { size: d.u64()?, ..Self::default() };
            e.created = UTime { sec: d.u32()?, nsec: 0 };
            if v >= 2 {
                e.objects = d.u64()?;
            }
            if v >= 3 {
                e.bucket = d.get()?;
            }
            e.rounded = if v >= 4 { d.u64()? } else { e.size };
            if v >= 6 {
                e.counted = d.bool()?;
            }
            if v >= 7 {
                e.created = d.get()?;
            }
            Ok(e)
        })
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Totals {
    objects: u64,
    size: u64,
    rounded: u64,
}

impl Totals {
    fn add(&mut self, e: &Entry) {
        self.objects = self.objects.wrapping_add(e.objects);
        self.size = self.size.wrapping_add(e.size);
        self.rounded = self.rounded.wrapping_add(e.rounded);
    }

    fn subtract(&mut self, e: &Entry) {
        self.objects = self.objects.wrapping_sub(e.objects);
        self.size = self.size.wrapping_sub(e.size);
        self.rounded = self.rounded.wrapping_sub(e.rounded);
    }
}

impl Encode for Totals {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u64(self.objects);
            o.u64(self.size);
            o.u64(self.rounded);
        });
    }
}

impl Decode for Totals {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("totals", 1, |d, _| {
            Ok(Self { objects: d.u64()?, size: d.u64()?, rounded: d.u64()? })
        })
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Header {
    totals: Totals,
    synced: UTime,
    updated: UTime,
}

impl Encode for Header {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.totals);
            o.put(&self.synced);
            o.put(&self.updated);
        });
    }
}

impl Decode for Header {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("user's header", 1, |d, _| {
            Ok(Self { totals: d.get()?, synced: d.get()?, updated: d.get()? })
        })
    }
}

fn set(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (entries, add, time): (Vec<Entry>, bool, UTime) = call.few_args(|d| {
        d.versioned("buckets", 1, |d, _| Ok((d.list(50, Entry::decode)?, d.get()?, d.get()?)))
    })?;
    let mut header: Header = call.header()?;
    for given in entries {
        let name = given.bucket.name.clone();
        if name.is_empty() {
            return fail(errno::EINVAL);
        }
        let mut entry = match call.key::<Entry>(&name)? {
            // It was removed meanwhile.
            None if !add => continue,
            None => given.clone(),
            Some(mut entry) => {
                if add {
                    // Moved to other shards, or made anew.
                    entry.bucket.id = given.bucket.id.clone();
                    entry.created = given.created;
                }
                entry
            }
        };
        if entry.counted {
            header.totals.subtract(&entry);
        }
        (entry.size, entry.rounded, entry.objects) = (given.size, given.rounded, given.objects);
        entry.counted = true;
        call.set(&name, &entry)?;
        header.totals.add(&entry);
    }
    header.updated = header.updated.max(time);
    call.set_header(&header)?;
    Ok(0)
}

fn complete_sync(call: &mut Call<'_>) -> Result<i32, Stop> {
    let time: UTime = call.args(|d| d.versioned("time", 1, |d, _| d.get()))?;
    let mut header: Header = call.header()?;
    header.synced = header.synced.max(time);
    call.set_header(&header)?;
    Ok(0)
}

fn remove(call: &mut Call<'_>) -> Result<i32, Stop> {
    let bucket: Bucket = call.args(|d| d.versioned("bucket", 1, |d, _| d.get()))?;
    let mut header: Header = call.header()?;
    if bucket.name.is_empty() {
        return fail(errno::EINVAL);
    }
    let Some(entry) = call.key::<Entry>(&bucket.name)? else { return Ok(0) };
    call.unset(&bucket.name)?;
    if entry.counted {
        header.totals.subtract(&entry);
        call.set_header(&header)?;
    }
    Ok(0)
}

fn list(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (after, max, end): (Bytes, i32, Bytes) = call.args(|d| {
        d.versioned("listing", 2, |d, v| {
            Ok((d.get()?, d.i32()?, if v >= 2 { d.get()? } else { Bytes::new() }))
        })
    })?;
    // A negative number is as good as the largest.
    let page = call.pairs(&after, b"", u64::try_from(max).unwrap_or(MOST).min(MOST))?;
    let (mut entries, mut marker, mut truncated) = (Vec::new(), Bytes::new(), page.more);
    for (key, value) in page.pairs {
        marker = key;
        if !end.is_empty() && end <= marker {
            truncated = false;
            break;
        }
        // One that cannot be read is left out, as in Ceph.
        if let Ok(entry) = stored::<Entry>(&value) {
            entries.push(entry);
        }
    }
    call.output.versioned(1, 1, |o| {
        o.put(&entries);
        o.blob(if truncated { &marker } else { b"" });
        o.bool(truncated);
    });
    Ok(0)
}

fn header(call: &mut Call<'_>) -> Result<i32, Stop> {
    call.args(|d| d.versioned("question", 1, |_, _| Ok(())))?;
    let header: Header = call.header()?;
    call.output.versioned(1, 1, |o| o.put(&header));
    Ok(0)
}

/// Adds up the buckets after a key: whether there are more, and the last of them.
fn count(
    call: &mut Call<'_>,
    after: &[u8],
    totals: &mut Totals,
) -> Result<(bool, Option<Bytes>), Stop> {
    let page = call.pairs(after, b"", MOST)?;
    for (_, value) in &page.pairs {
        totals.add(&stored(value)?);
    }
    Ok((page.more, page.pairs.last().map(|(key, _)| key.clone())))
}

fn reset(call: &mut Call<'_>) -> Result<i32, Stop> {
    let updated: UTime = call.args(|d| d.versioned("time", 1, |d, _| d.get()))?;
    let (mut totals, mut after) = (Totals::default(), Bytes::new());
    while let (true, Some(last)) = count(call, &after, &mut totals)? {
        after = last;
    }
    call.set_header(&Header { totals, synced: UTime::ZERO, updated })?;
    Ok(0)
}

fn reset_stepwise(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (updated, after, mut totals): (UTime, Bytes, Totals) = call
        .args(|d| d.versioned("step of a reset", 1, |d, _| Ok((d.get()?, d.get()?, d.get()?))))?;
    let (more, last) = count(call, &after, &mut totals)?;
    if !more {
        call.set_header(&Header { totals, synced: UTime::ZERO, updated })?;
    }
    call.output.versioned(1, 1, |o| {
        o.put(&last.unwrap_or_default());
        o.put(&totals);
        o.bool(more);
    });
    Ok(0)
}

/// An object of Ceph's corpus, read and written.
#[cfg(test)]
pub(crate) fn again(kind: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    match kind {
        "cls_user_bucket" => crate::reencoded::<Bucket>(bytes),
        "cls_user_bucket_entry" => crate::reencoded::<Entry>(bytes),
        "cls_user_header" => crate::reencoded::<Header>(bytes),
        "cls_user_stats" => crate::reencoded::<Totals>(bytes),
        _ => None,
    }
}
