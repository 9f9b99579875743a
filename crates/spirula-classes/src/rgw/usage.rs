//! The log of usage: who did how much with which bucket in which hour. Each entry is there by time
//! and by user.

use crate::{Call, Stop, fail, stored};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};
use spirula_types::errno;
use std::collections::BTreeMap;

/// Most entries that are read or removed at a time, unless another number is asked for.
const MOST: u32 = 1000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    sent: u64,
    received: u64,
    ops: u64,
    successful: u64,
}

impl Usage {
    fn add(&mut self, other: Self) {
        self.sent = self.sent.wrapping_add(other.sent);
        self.received = self.received.wrapping_add(other.received);
        self.ops = self.ops.wrapping_add(other.ops);
        self.successful = self.successful.wrapping_add(other.successful);
    }

    fn fields(self, out: &mut Encoder) {
        [self.sent, self.received, self.ops, self.successful].iter().for_each(|n| out.u64(*n));
    }

    fn read(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { sent: d.u64()?, received: d.u64()?, ops: d.u64()?, successful: d.u64()? })
    }
}

impl Encode for Usage {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| self.fields(o));
    }
}

impl Decode for Usage {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("usage", 1, |d, _| Self::read(d))
    }
}

/// What one user did with one bucket in one hour.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Record {
    owner: Bytes,
    /// Who pays, if that is not the owner.
    payer: Bytes,
    bucket: Bytes,
    epoch: u64,
    total: Usage,
    by_category: BTreeMap<Bytes, Usage>,
}

impl Encode for Record {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(3, 1, |o| {
            o.put(&self.owner);
            o.put(&self.bucket);
            o.u64(self.epoch);
            self.total.fields(o);
            o.put(&self.by_category);
            o.put(&self.payer);
        });
    }
}

impl Decode for Record {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("usage record", 3, |d, v| {
            let mut record =
                Self { owner: d.get()?, bucket: d.get()?, epoch: d.u64()?, ..Self::default() };
            record.total = Usage::read(d)?;
            if v >= 2 {
                record.by_category = d.get()?;
            } else {
                record.by_category.insert(Bytes::new(), record.total);
            }
            if v >= 3 {
                record.payer = d.get()?;
            }
            Ok(record)
        })
    }
}

/// Has a user no name, whatever its tenant?
fn is_nobody(user: &[u8]) -> bool {
    user.is_empty() || user.ends_with(b"$")
}

impl Record {
    fn user(&self) -> &Bytes {
        if is_nobody(&self.payer) { &self.owner } else { &self.payer }
    }

    fn add(&mut self, other: &Self) {
        if is_nobody(&self.owner) {
            self.owner = other.owner.clone();
            self.bucket = other.bucket.clone();
            self.epoch = other.epoch;
            self.payer = other.payer.clone();
        }
        for (category, usage) in &other.by_category {
            self.by_category.entry(category.clone()).or_default().add(*usage);
            self.total.add(*usage);
        }
    }

    fn by_time(&self, user: &[u8]) -> Bytes {
        [format!("{:011}_", self.epoch).as_bytes(), user, b"_", &self.bucket].concat().into()
    }

    fn by_user(&self, user: &[u8]) -> Bytes {
        [user, format!("_{:011}_", self.epoch).as_bytes(), &self.bucket].concat().into()
    }
}

pub(super) fn add(call: &mut Call<'_>) -> Result<i32, Stop> {
    let records: Vec<Record> = call.few_args(|d| {
        d.versioned("usage to add", 2, |d, _| {
            d.versioned("usage", 1, |d, _| d.list(60, Record::decode))
        })
    })?;
    for mut record in records {
        let user = record.user().clone();
        let at = record.by_time(&user);
        if let Some(value) = call.object.omap_get(&at)? {
            let Ok(old) = stored::<Record>(&value) else { return fail(errno::EINVAL) };
            record.add(&old);
        }
        call.set(&at, &record)?;
        call.set(record.by_user(&user), &record)?;
    }
    Ok(0)
}

/// Which records.
struct Range {
    from: u64,
    to: u64,
    user: Bytes,
    bucket: Bytes,
}

/// Records of a range, after a key or from the start: at most `max`, whether there may be more, and
/// where to go on.
fn records(
    call: &mut Call<'_>,
    range: &Range,
    after: Bytes,
    max: u32,
) -> Result<(Vec<Record>, bool, Bytes), Stop> {
    let by_user = !range.user.is_empty();
    let start = match (after.is_empty(), by_user) {
        (false, _) => after,
        (true, true) => {
            [&range.user[..], format!("_{:011}_", range.from).as_bytes()].concat().into()
        }
        (true, false) => format!("{:011}", range.from).into(),
    };
    let end = format!("{:011}", range.to);
    let users = [&range.user[..], b"_"].concat();
    let page = call.pairs(&start, b"", max.into())?;
    let (mut found, mut last) = (Vec::new(), Bytes::new());
    for (key, value) in page.pairs {
        last = key.clone();
        if if by_user { !key.starts_with(&users) } else { key[..] >= *end.as_bytes() } {
            return Ok((found, false, last));
        }
        let Ok(record) = stored::<Record>(&value) else { return fail(errno::EINVAL) };
        if !range.bucket.is_empty() && range.bucket != record.bucket || record.epoch < range.from {
            continue;
        }
        if record.epoch >= range.to {
            return Ok((found, false, last));
        }
        found.push(record);
    }
    Ok((found, page.more, last))
}

pub(super) fn read(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (range, after, max): (Range, Bytes, u32) = call.args(|d| {
        d.versioned("usage to read", 2, |d, v| {
            let mut range =
                Range { from: d.u64()?, to: d.u64()?, user: d.get()?, bucket: Bytes::new() };
            let (after, max) = (d.get()?, d.u32()?);
            if v >= 2 {
                range.bucket = d.get()?;
            }
            Ok((range, after, max))
        })
    })?;
    let (found, truncated, last) = records(call, &range, after, if max == 0 { MOST } else { max })?;
    let mut usage: BTreeMap<(Bytes, Bytes), Record> = BTreeMap::new();
    for record in found {
        usage.entry((record.user().clone(), record.bucket.clone())).or_default().add(&record);
    }
    call.output.versioned(1, 1, |o| {
        o.list(&usage, |o, ((user, bucket), record)| {
            o.versioned(1, 1, |o| {
                o.put(user);
                o.put(bucket);
            });
            o.put(record);
        });
        o.bool(truncated);
        o.blob(if truncated { &last } else { b"" });
    });
    Ok(0)
}

pub(super) fn trim(call: &mut Call<'_>) -> Result<i32, Stop> {
    call.object.stat()?;
    let range = call.args(|d| {
        d.versioned("usage to trim", 3, |d, v| {
            let bucket = |d: &mut Decoder<'_>| if v >= 3 { d.get() } else { Ok(Bytes::new()) };
            Ok(Range { from: d.u64()?, to: d.u64()?, user: d.get()?, bucket: bucket(d)? })
        })
    })?;
    let (found, more, _) = records(call, &range, Bytes::new(), MOST)?;
    if found.is_empty() && !more {
        return fail(errno::ENODATA);
    }
    let keys: Vec<Bytes> =
        found.iter().flat_map(|r| [r.by_time(&r.owner), r.by_user(&r.owner)]).collect();
    if !keys.is_empty() {
        call.object.omap_remove(keys)?;
    }
    Ok(0)
}

pub(super) fn clear(call: &mut Call<'_>) -> Result<i32, Stop> {
    match call.object.omap_clear() {
        Err(Stop::Errno(errno::ENOENT)) => Ok(0),
        other => other.map(|()| 0),
    }
}

/// An object of Ceph's corpus, read and written.
#[cfg(test)]
pub(super) fn again(kind: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    match kind {
        "rgw_usage_log_entry" => crate::reencoded::<Record>(bytes),
        _ => None,
    }
}
