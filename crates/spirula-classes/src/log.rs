//! Class `log`: entries by time, which zones read from each other. An entry is an omap key as in
//! class `timeindex`.

use crate::timeindex::{is_past, time_key};
use crate::{Call, Class, R, RW, Stop, fail, method, stored};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use spirula_types::errno;

pub(crate) const CLASS: Class = Class {
    name: "log",
    methods: &[
        method("add", RW, add),
        method("list", R, list),
        method("trim", RW, trim),
        method("info", R, info),
    ],
};

const PREFIX: &[u8] = b"1_";
/// Most entries that are listed at a time.
const MOST: u64 = 1000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Entry {
    /// Its key.
    id: Bytes,
    section: Bytes,
    name: Bytes,
    time: UTime,
    data: Bytes,
}

impl Encode for Entry {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(2, 1, |o| {
            o.put(&self.section);
            o.put(&self.name);
            o.put(&self.time);
            o.put(&self.data);
            o.put(&self.id);
        });
    }
}

impl Decode for Entry {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("log entry", 2, |d, v| {
            let mut e = Self {
                section: d.get()?,
                name: d.get()?,
                time: d.get()?,
                data: d.get()?,
                ..Self::default()
            };
            if v >= 2 {
                e.id = d.get()?;
            }
            Ok(e)
        })
    }
}

/// The highest key, and the latest time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Header {
    marker: Bytes,
    time: UTime,
}

impl Encode for Header {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.marker);
            o.put(&self.time);
        });
    }
}

impl Decode for Header {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("log header", 1, |d, _| Ok(Self { marker: d.get()?, time: d.get()? }))
    }
}

fn add(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (entries, monotonic): (Vec<Entry>, bool) = call.few_args(|d| {
        d.versioned("entries", 2, |d, v| {
            Ok((d.list(26, Entry::decode)?, if v >= 2 { d.bool()? } else { true }))
        })
    })?;
    let mut header: Header = call.header()?;
    for mut entry in entries {
        let mut time = entry.time;
        if monotonic && time < header.time {
            time = header.time;
        } else if time > header.time {
            header.time = time;
        }
        if entry.id.is_empty() {
            let number = format!("{}.{}", call.object.version(), call.object.steps());
            entry.id = [&time_key(time)[..], number.as_bytes()].concat().into();
        }
        header.marker = header.marker.max(entry.id.clone());
        call.set(&entry.id, &entry)?;
    }
    call.set_header(&header)?;
    Ok(0)
}

fn list(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (from, marker, to, max): (UTime, Bytes, UTime, i32) = call
        .args(|d| d.versioned("listing", 1, |d, _| Ok((d.get()?, d.get()?, d.get()?, d.i32()?))))?;
    let start = if marker.is_empty() { time_key(from) } else { marker };
    let end = (!from.is_zero() && to >= from).then(|| time_key(to));
    // None and a negative number are as good as the largest.
    let max = u64::try_from(max).ok().filter(|max| (1..MOST).contains(max)).unwrap_or(MOST);
    let page = call.pairs(&start, PREFIX, max)?;
    let (mut entries, mut marker, mut truncated) = (Vec::new(), Bytes::new(), page.more);
    for (key, value) in page.pairs {
        marker = key;
        if end.as_ref().is_some_and(|end| is_past(&marker, end, true)) {
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
        o.put(&marker);
        o.bool(truncated);
    });
    Ok(0)
}

fn trim(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (from, to, from_marker, to_marker): (UTime, UTime, Bytes, Bytes) = call.args(|d| {
        d.versioned("trim", 2, |d, v| {
            let (from, to) = (d.get()?, d.get()?);
            Ok(if v >= 2 {
                (from, to, d.get()?, d.get()?)
            } else {
                (from, to, Bytes::new(), Bytes::new())
            })
        })
    })?;
    let start = if from_marker.is_empty() { time_key(from) } else { from_marker };
    let end: Bytes = match to_marker.is_empty() {
        // The next time that keys tell apart.
        true => time_key(UTime::from_nanos(to.as_nanos().saturating_add(1000))),
        false => [&to_marker[..], b"\0"].concat().into(),
    };
    let page = call.pairs(&start, b"", 1)?;
    match page.pairs.into_iter().next() {
        Some((first, _)) if first <= end => call.object.omap_remove_range(first, end)?,
        _ => return fail(errno::ENODATA),
    }
    Ok(0)
}

fn info(call: &mut Call<'_>) -> Result<i32, Stop> {
    call.args(|d| d.versioned("question", 1, |_, _| Ok(())))?;
    let header: Header = call.header()?;
    call.output.versioned(1, 1, |o| o.put(&header));
    Ok(0)
}

/// An object of Ceph's corpus, read and written.
#[cfg(test)]
pub(crate) fn again(kind: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    match kind {
        "cls_log_entry" => crate::reencoded::<Entry>(bytes),
        "cls_log_header" => crate::reencoded::<Header>(bytes),
        _ => None,
    }
}
