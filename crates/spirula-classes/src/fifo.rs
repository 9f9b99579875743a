//! Class `fifo`: a queue over many objects, one with what is known of all (`meta`), and parts with
//! entries. radosgw keeps the log of changed buckets in such ones.
//!
//! A part has a header in its first 512 bytes, then entries: each a fixed prefix with the part's
//! magic number, a header and data.

use crate::{Call, Class, R, RW, Stop, fail, method};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime, to_vec};
use spirula_types::errno;
use std::collections::BTreeSet;

pub(crate) const CLASS: Class = Class {
    name: "fifo",
    methods: &[
        method("create_meta", RW, create_meta),
        method("get_meta", R, get_meta),
        method("update_meta", RW, update_meta),
        method("init_part", RW, init_part),
        method("push_part", RW, push_part),
        method("trim_part", RW, trim_part),
        method("part_list", R, list_part),
        method("get_part_info", R, part_info),
    ],
};

/// Bytes for a part's header.
const HEADER: u64 = 512;
/// Bytes of an entry's prefix, and of its header.
const PREFIX: u64 = 44;
const ENTRY_HEADER: u64 = 14;
const OVERHEAD: u64 = PREFIX + ENTRY_HEADER;
/// Most entries that are listed at a time.
const LISTED: i32 = 512;
/// Most bytes that one listing reads, so that what it finds fits an answer.
const LISTED_BYTES: u64 = 32 << 20;

fn optional<T: Decode>(d: &mut Decoder<'_>) -> Result<Option<T>, DecodeError> {
    if d.bool()? { d.get().map(Some) } else { Ok(None) }
}

/// Which version of the meta data. Who changes it names the one that it has read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Version {
    instance: Bytes,
    number: u64,
}

impl Encode for Version {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.instance);
            o.u64(self.number);
        });
    }
}

impl Decode for Version {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("version", 1, |d, _| Ok(Self { instance: d.get()?, number: d.u64()? }))
    }
}

/// Bounds of parts, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bounds {
    part: u64,
    entry: u64,
    /// A part is full when its end is above this.
    full: u64,
}

impl Encode for Bounds {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u64(self.part);
            o.u64(self.entry);
            o.u64(self.full);
        });
    }
}

impl Decode for Bounds {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("bounds", 1, |d, _| {
            Ok(Self { part: d.u64()?, entry: d.u64()?, full: d.u64()? })
        })
    }
}

/// A step that is to be done to a part: what (create it, make it the head, remove it), and to
/// which. Releases before 16.2.5 kept tags of parts, too; what later ones say of tags is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Step {
    op: i32,
    part: i64,
}

impl Step {
    fn is_valid(self) -> bool {
        matches!(self.op, 1..=3) && self.part >= 0
    }
}

impl Encode for Step {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.i32(self.op);
            o.i64(self.part);
            o.blob(b"");
        });
    }
}

impl Decode for Step {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("step", 1, |d, _| {
            let step = Self { op: d.i32()?, part: d.i64()? };
            d.blob()?;
            if step.is_valid() {
                Ok(step)
            } else {
                Err(DecodeError::Value { what: "step", value: step.op.into() })
            }
        })
    }
}

/// What is known of the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Meta {
    id: Bytes,
    version: Version,
    /// Start of the parts' names.
    prefix: Bytes,
    bounds: Bounds,
    tail: i64,
    head: i64,
    min_push: i64,
    max_push: i64,
    journal: BTreeSet<Step>,
}

impl Encode for Meta {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.id);
            o.put(&self.version);
            o.put(&self.prefix);
            o.put(&self.bounds);
            o.i64(self.tail);
            o.i64(self.head);
            o.i64(self.min_push);
            o.i64(self.max_push);
            // Tags of parts, and that of the head.
            o.u32(0);
            o.blob(b"");
            o.list(&self.journal, |o, step| {
                o.i64(step.part);
                o.put(step);
            });
        });
    }
}

impl Decode for Meta {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("queue's meta data", 1, |d, _| {
            let mut meta = Self {
                id: d.get()?,
                version: d.get()?,
                prefix: d.get()?,
                bounds: d.get()?,
                ..Self::default()
            };
            (meta.tail, meta.head, meta.min_push, meta.max_push) =
                (d.i64()?, d.i64()?, d.i64()?, d.i64()?);
            d.list(12, |d| {
                d.i64()?;
                d.blob().map(drop)
            })?;
            d.blob()?;
            let step = |d: &mut Decoder<'_>| {
                d.i64()?;
                d.get()
            };
            meta.journal = d.list(30, step)?.into_iter().collect();
            Ok(meta)
        })
    }
}

impl Meta {
    /// Reads the whole object. EIO if it is something else.
    fn read(call: &mut Call<'_>) -> Result<Self, Stop> {
        let size = call.object.stat()?.size;
        let data = call.object.read(0, size)?;
        if data.is_empty() {
            return fail(errno::ENODATA);
        }
        Decoder::new(&data).get().map_err(|_| Stop::Errno(errno::EIO))
    }

    /// The same, if it has this version. ECANCELED if not.
    fn expect(call: &mut Call<'_>, version: Option<&Version>) -> Result<Self, Stop> {
        let meta = Self::read(call)?;
        if version.is_some_and(|v| *v != meta.version) { fail(errno::ECANCELED) } else { Ok(meta) }
    }

    fn write(&self, call: &mut Call<'_>) -> Result<i32, Stop> {
        call.object.write_full(to_vec(self).into())?;
        Ok(0)
    }
}

/// Letters that no other object gets.
fn letters(call: &mut Call<'_>, count: usize) -> Bytes {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = Vec::with_capacity(count + 10);
    while text.len() < count {
        let bits = call.object.unique();
        text.extend(
            (0..10).filter_map(|i| LETTERS.get((bits >> (6 * i)) as usize % LETTERS.len())),
        );
    }
    text.truncate(count);
    text.into()
}

fn create_meta(call: &mut Call<'_>) -> Result<i32, Stop> {
    struct Args {
        id: Bytes,
        version: Option<Version>,
        prefix: Option<Bytes>,
        bounds: Bounds,
        exclusive: bool,
    }
    let a = call.args(|d| {
        d.versioned("queue", 1, |d, _| {
            let (id, version) = (d.get()?, optional(d)?);
            // The name of its pool, and of the namespace there.
            d.blob()?;
            d.blob()?;
            let prefix = optional(d)?;
            let bounds = Bounds { part: d.u64()?, entry: d.u64()?, full: 0 };
            Ok(Args { id, version, prefix, bounds, exclusive: d.bool()? })
        })
    })?;
    if a.id.is_empty()
        || a.bounds.part == 0
        || a.bounds.entry == 0
        || a.bounds.entry > a.bounds.part
    {
        return fail(errno::EINVAL);
    }
    match call.object.stat() {
        Err(Stop::Errno(errno::ENOENT)) => {}
        Err(e) => return Err(e),
        Ok(_) if a.exclusive => return fail(errno::EEXIST),
        Ok(_) => {
            let meta = match Meta::read(call) {
                Err(Stop::Errno(errno::ENODATA)) => return fail(errno::EIO),
                other => other?,
            };
            let same = meta.id == a.id
                && a.prefix.is_none_or(|prefix| prefix == meta.prefix)
                && a.version.is_none_or(|version| version == meta.version);
            return if same { Ok(0) } else { fail(errno::EEXIST) };
        }
    }
    let version = match a.version {
        Some(version) if !version.instance.is_empty() => version,
        Some(version) => Version { instance: letters(call, 16), ..version },
        None => Version { instance: letters(call, 16), number: 1 },
    };
    let prefix = match a.prefix {
        Some(prefix) => prefix,
        None => [&a.id[..], b".", &letters(call, 12)].concat().into(),
    };
    let full = a.bounds.part.wrapping_sub(a.bounds.entry).wrapping_sub(OVERHEAD);
    let meta = Meta {
        id: a.id,
        version,
        prefix,
        bounds: Bounds { full, ..a.bounds },
        head: -1,
        max_push: -1,
        ..Meta::default()
    };
    meta.write(call)
}

fn get_meta(call: &mut Call<'_>) -> Result<i32, Stop> {
    let version: Option<Version> = call.args(|d| d.versioned("version", 1, |d, _| optional(d)))?;
    let meta = Meta::expect(call, version.as_ref())?;
    call.output.versioned(1, 1, |o| {
        o.put(&meta);
        o.u32(HEADER as u32);
        o.u32(OVERHEAD as u32);
    });
    Ok(0)
}

fn update_meta(call: &mut Call<'_>) -> Result<i32, Stop> {
    struct Args {
        version: Version,
        tail: Option<i64>,
        head: Option<i64>,
        min_push: Option<i64>,
        max_push: Option<i64>,
        add: Vec<Step>,
        remove: Vec<Step>,
    }
    let a = call.few_args(|d| {
        d.versioned("update", 1, |d, _| {
            Ok(Args {
                version: d.get()?,
                tail: optional(d)?,
                head: optional(d)?,
                min_push: optional(d)?,
                max_push: optional(d)?,
                add: d.list(22, Step::decode)?,
                remove: d.list(22, Step::decode)?,
            })
        })
    })?;
    if a.version.instance.is_empty() {
        return fail(errno::EINVAL);
    }
    let before = Meta::expect(call, Some(&a.version))?;
    let mut meta = before.clone();
    meta.tail = a.tail.unwrap_or(meta.tail);
    meta.min_push = a.min_push.unwrap_or(meta.min_push);
    meta.max_push = a.max_push.unwrap_or(meta.max_push);
    meta.head = a.head.unwrap_or(meta.head);
    let mut changed = false;
    for step in a.add {
        changed |= meta.journal.insert(step);
    }
    for step in a.remove {
        changed |= meta.journal.remove(&step);
    }
    if !changed && meta == before {
        return Ok(0);
    }
    meta.version.number = meta.version.number.wrapping_add(1);
    meta.write(call)
}

/// The header of a part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Part {
    bounds: Bounds,
    /// Begins each entry.
    magic: u64,
    /// Where the first entry is, the last, and the next one will be.
    first: u64,
    last: u64,
    end: u64,
    first_index: u64,
    next_index: u64,
    /// When an entry was added last.
    time: UTime,
}

impl Encode for Part {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.blob(b"");
            o.put(&self.bounds);
            let numbers =
                [self.magic, self.first, self.last, self.end, self.first_index, self.next_index];
            numbers.iter().for_each(|n| o.u64(*n));
            o.put(&self.time);
        });
    }
}

impl Decode for Part {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("header of a part", 1, |d, _| {
            d.blob()?;
            Ok(Self {
                bounds: d.get()?,
                magic: d.u64()?,
                first: d.u64()?,
                last: d.u64()?,
                end: d.u64()?,
                first_index: d.u64()?,
                next_index: d.u64()?,
                time: d.get()?,
            })
        })
    }
}

/// An entry of a part.
struct Entry {
    index: u64,
    data: Bytes,
    time: UTime,
    /// Where it is, and where the next one is.
    at: u64,
    next: u64,
}

impl Part {
    fn read(call: &mut Call<'_>) -> Result<Self, Stop> {
        let header = call.object.read(0, HEADER)?;
        Decoder::new(&header).get().map_err(|_| Stop::Errno(errno::EIO))
    }

    fn write(&self, call: &mut Call<'_>) -> Result<i32, Stop> {
        let header = to_vec(self);
        if header.len() as u64 > HEADER {
            return fail(errno::EIO);
        }
        call.object.write(0, header.into())?;
        Ok(0)
    }

    fn is_full(&self) -> bool {
        self.end > self.bounds.full
    }

    /// Exactly so many bytes; ERANGE if there are fewer.
    fn bytes(call: &mut Call<'_>, at: u64, length: u64) -> Result<Bytes, Stop> {
        let bytes = call.object.read(at, length)?;
        if bytes.len() as u64 == length { Ok(bytes) } else { fail(errno::ERANGE) }
    }

    /// The entry at a place.
    fn entry(&self, call: &mut Call<'_>, at: u64) -> Result<Entry, Stop> {
        if at >= self.end {
            return fail(errno::ENOENT);
        }
        let prefix = Self::bytes(call, at, PREFIX)?;
        let mut d = Decoder::new(&prefix);
        let (magic, prefix, header, data, index) =
            (d.u64()?, d.u64()?, d.u64()?, d.u64()?, d.u64()?);
        let Some(start) = at.checked_add(prefix) else { return fail(errno::ERANGE) };
        let (Some(body), Some(next)) = (
            start.checked_add(header),
            start.checked_add(header).and_then(|body| body.checked_add(data)),
        ) else {
            return fail(errno::ERANGE);
        };
        if magic != self.magic || prefix < PREFIX {
            return fail(errno::ERANGE);
        }
        let header = Self::bytes(call, start, header)?;
        let time = Decoder::new(&header).versioned("entry's header", 1, |d, _| d.get());
        let time = time.map_err(|_| Stop::Errno(errno::EIO))?;
        Ok(Entry { index, data: Self::bytes(call, body, data)?, time, at, next })
    }
}

fn init_part(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (_, bounds): (Bytes, Bounds) =
        call.args(|d| d.versioned("part", 1, |d, _| Ok((d.get()?, d.get()?))))?;
    match call.object.stat() {
        Err(Stop::Errno(errno::ENOENT)) => {}
        Err(e) => return Err(e),
        Ok(stat) if stat.size == 0 => {}
        Ok(_) => {
            let part = Part::read(call)?;
            return if part.bounds == bounds { Ok(0) } else { fail(errno::EEXIST) };
        }
    }
    let (magic, time) = (call.object.unique(), call.object.now());
    Part { bounds, magic, first: HEADER, end: HEADER, time, ..Part::default() }.write(call)
}

fn push_part(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (_, entries, total): (Bytes, Vec<Bytes>, u64) = call.few_args(|d| {
        d.versioned("entries", 1, |d, _| Ok((d.get()?, d.list(4, Bytes::decode)?, d.get()?)))
    })?;
    let mut part = Part::read(call)?;
    if total.saturating_add(entries.len() as u64 * OVERHEAD) > part.bounds.part {
        return fail(errno::EINVAL);
    }
    if part.is_full() {
        return fail(errno::ERANGE);
    }
    if entries.iter().map(|e| e.len() as u64).sum::<u64>() != total {
        return fail(errno::EINVAL);
    }
    let (start, now) = (part.end, call.object.now());
    let mut out = Encoder::new();
    let mut pushed = 0;
    for entry in &entries {
        if part.is_full() {
            break;
        }
        part.last = part.end;
        [part.magic, PREFIX, ENTRY_HEADER, entry.len() as u64, part.next_index]
            .iter()
            .for_each(|n| out.u64(*n));
        out.u32(0);
        out.versioned(1, 1, |o| o.put(&now));
        out.raw(entry);
        part.end = part.end.saturating_add(OVERHEAD + entry.len() as u64);
        part.next_index = part.next_index.wrapping_add(1);
        pushed += 1;
    }
    part.time = now;
    if pushed == 0 {
        // Ceph says EFAULT.
        return fail(14);
    }
    call.object.write(start, out.into_bytes())?;
    part.write(call)?;
    Ok(pushed)
}

fn trim_part(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (_, at, exclusive): (Option<Bytes>, u64, bool) =
        call.args(|d| d.versioned("trim", 1, |d, _| Ok((optional(d)?, d.get()?, d.get()?))))?;
    let mut part = Part::read(call)?;
    if at < part.first || exclusive && at == part.first {
        return Ok(0);
    }
    if at >= part.end {
        if part.is_full() {
            // Nothing will be added to it.
            call.object.remove()?;
            return Ok(0);
        }
        part.first = part.end;
        part.first_index = part.next_index;
    } else {
        let entry = part.entry(call, at)?;
        (part.first, part.first_index) =
            if exclusive { (at, entry.index) } else { (entry.next, entry.index.wrapping_add(1)) };
    }
    part.write(call)
}

fn list_part(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (_, after, max): (Option<Bytes>, u64, i32) =
        call.args(|d| d.versioned("listing", 1, |d, _| Ok((optional(d)?, d.get()?, d.get()?))))?;
    let part = Part::read(call)?;
    let mut at = after.max(part.first);
    if after >= part.first && at < part.end {
        at = part.entry(call, at)?.next;
    }
    let (from, mut entries) = (at, Vec::new());
    while at < part.end
        && (entries.len() as i64) < i64::from(max.min(LISTED))
        && at - from < LISTED_BYTES
    {
        let entry = part.entry(call, at)?;
        at = entry.next;
        entries.push(entry);
    }
    call.output.versioned(1, 1, |o| {
        o.blob(b"");
        o.list(&entries, |o, e| {
            o.versioned(1, 1, |o| {
                o.put(&e.data);
                o.u64(e.at);
                o.put(&e.time);
            });
        });
        o.bool(at < part.end);
        o.bool(part.is_full());
    });
    Ok(0)
}

fn part_info(call: &mut Call<'_>) -> Result<i32, Stop> {
    call.args(|d| d.versioned("question", 1, |_, _| Ok(())))?;
    let part = Part::read(call)?;
    call.output.versioned(1, 1, |o| o.put(&part));
    Ok(0)
}
