//! Class `timeindex`: values by the time at which something is to happen to them. radosgw finds by
//! it what has expired.
//!
//! An entry is an omap key `1_SECONDS.MICROSECONDS_NAME`, with leading zeros, so that keys are in
//! the order of time.

use crate::{Call, Class, R, RW, Stop, fail, method};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use spirula_types::errno;

pub(crate) const CLASS: Class = Class {
    name: "timeindex",
    methods: &[method("add", RW, add), method("list", R, list), method("trim", RW, trim)],
};

const PREFIX: &[u8] = b"1_";
/// Most entries that a call lists or removes.
const MOST: u64 = 1000;
/// Longest name that a listing gives back.
const LONGEST_NAME: usize = 255;

/// Start of the keys of a time.
pub(crate) fn time_key(time: UTime) -> Bytes {
    format!("1_{:010}.{:06}_", time.sec, time.nsec / 1000).into()
}

/// Is a key behind all that start with `end`? Or does it start so, and `with` says that that is
/// enough?
pub(crate) fn is_past(key: &[u8], end: &[u8], with: bool) -> bool {
    let start = key.get(..end.len().min(key.len())).unwrap_or_default();
    if with { start >= end } else { start > end }
}

struct Entry {
    time: UTime,
    name: Bytes,
    value: Bytes,
}

impl Encode for Entry {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.time);
            o.put(&self.name);
            o.put(&self.value);
        });
    }
}

impl Decode for Entry {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("entry", 1, |d, _| Ok(Self { time: d.get()?, name: d.get()?, value: d.get()? }))
    }
}

impl Entry {
    /// The entry of a key. What is no key of this class has no time and no name. Ceph takes the
    /// microseconds for nanoseconds, and ends the name at a blank.
    fn of(key: &[u8], value: Bytes) -> Self {
        let rest = key.strip_prefix(PREFIX).unwrap_or_default();
        let number = |part: &[u8]| std::str::from_utf8(part).ok().and_then(|p| p.parse().ok());
        let parsed = || {
            let dot = rest.iter().position(|b| *b == b'.')?;
            let end = dot + rest.get(dot..)?.iter().position(|b| *b == b'_')?;
            let time =
                UTime { sec: number(rest.get(..dot)?)?, nsec: number(rest.get(dot + 1..end)?)? };
            Some((time, rest.get(end + 1..)?))
        };
        let (time, name) = parsed().unwrap_or_default();
        let name = name.split(u8::is_ascii_whitespace).next().unwrap_or_default();
        let name =
            Bytes::copy_from_slice(name.get(..name.len().min(LONGEST_NAME)).unwrap_or_default());
        Self { time, name, value }
    }
}

fn add(call: &mut Call<'_>) -> Result<i32, Stop> {
    let entries =
        call.few_args(|d| d.versioned("add entries", 1, |d, _| d.list(22, Entry::decode)))?;
    let pairs: Vec<(Bytes, Bytes)> = entries
        .into_iter()
        .map(|e| ([&time_key(e.time)[..], &e.name].concat().into(), e.value))
        .collect();
    if !pairs.is_empty() {
        call.object.omap_set(pairs)?;
    }
    Ok(0)
}

fn list(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (from, marker, to, max): (UTime, Bytes, UTime, i32) = call.args(|d| {
        d.versioned("list entries", 1, |d, _| Ok((d.get()?, d.get()?, d.get()?, d.i32()?)))
    })?;
    let start = if marker.is_empty() { time_key(from) } else { marker };
    let end = (to >= from).then(|| time_key(to));
    // A negative number is as good as the largest.
    let max = u64::try_from(max).unwrap_or(MOST).min(MOST);
    let page = call.object.omap_page(&start, PREFIX, max + 1)?;
    let (mut entries, mut marker) = (Vec::new(), Bytes::new());
    let mut pairs = page.pairs.into_iter();
    let mut seen = 0;
    let truncated = loop {
        if seen == max {
            break pairs.next().is_some();
        }
        let Some((key, value)) = pairs.next() else { break false };
        seen += 1;
        if end.as_ref().is_some_and(|end| is_past(&key, end, true)) {
            break false;
        }
        marker = key.clone();
        entries.push(Entry::of(&key, value));
    };
    call.output.versioned(1, 1, |o| {
        o.put(&entries);
        o.put(&marker);
        o.bool(truncated);
    });
    Ok(0)
}

fn trim(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (from, to, from_marker, to_marker): (UTime, UTime, Bytes, Bytes) = call.args(|d| {
        d.versioned("trim entries", 1, |d, _| Ok((d.get()?, d.get()?, d.get()?, d.get()?)))
    })?;
    let start = if from_marker.is_empty() { time_key(from) } else { from_marker };
    let end = if to_marker.is_empty() { time_key(to) } else { to_marker };
    let page = call.object.omap_page(&start, PREFIX, MOST)?;
    let keys: Vec<Bytes> =
        page.pairs.into_iter().map(|(k, _)| k).take_while(|k| !is_past(k, &end, false)).collect();
    if keys.is_empty() {
        return fail(errno::ENODATA);
    }
    call.object.omap_remove(keys)?;
    Ok(0)
}
