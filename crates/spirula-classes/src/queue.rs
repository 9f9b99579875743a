//! Class `queue`: a ring of entries in an object's data, behind a head that says where it begins
//! and ends.
//!
//! An entry is a mark, its length and its bytes; one that does not fit before the end of the ring
//! goes on at its start. A place in the ring is an offset in the object with the number of rounds
//! that the ring had made. Classes `rgw_gc` and `2pc_queue` use the same queue, and keep something
//! of their own in its head.

use crate::{Call, Class, R, RW, Stop, fail, method};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, to_vec};
use spirula_types::errno;

pub(crate) const CLASS: Class = Class {
    name: "queue",
    methods: &[
        method("queue_init", RW, init),
        method("queue_get_capacity", R, capacity),
        method("queue_enqueue", RW, enqueue),
        method("queue_list_entries", R, list),
        method("queue_remove_entries", RW, remove),
    ],
};

/// Marks of a head and of an entry.
const HEAD: u16 = 0xdead;
const ENTRY: u16 = 0xbeef;
/// Bytes of a mark and a length.
pub(crate) const OVERHEAD: u64 = 10;
/// Bytes that a head has without what others keep in it.
const HEAD_SIZE: u64 = 1024;
/// Most bytes that one listing reads, so that what it finds fits an answer.
const LISTED: u64 = 32 << 20;

/// A place in the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    round: u64,
    offset: u64,
}

impl Encode for Place {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u64(self.round);
            o.u64(self.offset);
        });
    }
}

impl Decode for Place {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("place", 1, |d, _| Ok(Self { round: d.u64()?, offset: d.u64()? }))
    }
}

impl Place {
    pub(crate) fn text(self) -> Bytes {
        format!("{}/{}", self.round, self.offset).into()
    }

    /// The place that a text names; the zero place if it names none.
    fn parse(text: &[u8]) -> Self {
        let parsed = || {
            let (round, offset) = std::str::from_utf8(text).ok()?.split_once('/')?;
            Some(Self { round: round.parse().ok()?, offset: offset.parse().ok()? })
        };
        parsed().unwrap_or_default()
    }
}

/// The head of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Queue {
    /// Where the ring starts in the object.
    start: u64,
    front: Place,
    tail: Place,
    /// Where the ring ends.
    end: u64,
    /// Most bytes that `own` may have.
    pub own_max: u64,
    /// What belongs to the class that uses the queue.
    pub own: Bytes,
}

impl Encode for Queue {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u64(self.start);
            o.put(&self.front);
            o.put(&self.tail);
            o.u64(self.end);
            o.u64(self.own_max);
            o.put(&self.own);
        });
    }
}

impl Decode for Queue {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("head of a queue", 1, |d, _| {
            Ok(Self {
                start: d.u64()?,
                front: d.get()?,
                tail: d.get()?,
                end: d.u64()?,
                own_max: d.u64()?,
                own: d.get()?,
            })
        })
    }
}

/// An entry, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub data: Bytes,
    pub place: Place,
}

impl Encode for Entry {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.data);
            o.put(&self.place.text());
        });
    }
}

/// What a listing finds.
#[derive(Debug)]
pub(crate) struct Listed {
    pub entries: Vec<Entry>,
    pub more: bool,
    /// Where to go on.
    pub next: Place,
}

impl Queue {
    /// Makes a queue for so many bytes of entries in an object that has none.
    pub(crate) fn init(
        call: &mut Call<'_>,
        size: u64,
        own_max: u64,
        own: Bytes,
    ) -> Result<i32, Stop> {
        match Self::read(call) {
            Ok(_) => return fail(errno::EEXIST),
            Err(Stop::Errno(errno::EINVAL)) => {}
            Err(e) => return Err(e),
        }
        let (Some(start), Some(end)) = (
            HEAD_SIZE.checked_add(own_max),
            HEAD_SIZE.checked_add(own_max).and_then(|start| start.checked_add(size)),
        ) else {
            return fail(errno::EINVAL);
        };
        let place = Place { round: 0, offset: start };
        Self { start, front: place, tail: place, end, own_max, own }.write(call)
    }

    /// Reads the head. What there is no head in is EINVAL, as in Ceph.
    pub(crate) fn read(call: &mut Call<'_>) -> Result<Self, Stop> {
        let head = call.object.read(0, OVERHEAD)?;
        let mut d = Decoder::new(&head);
        let (mark, length) = (d.u16()?, d.u64()?);
        if mark != HEAD {
            return fail(errno::EINVAL);
        }
        let queue: Self = Decoder::new(&call.object.read(OVERHEAD, length)?).get()?;
        let inside = |p: Place| (queue.start..=queue.end).contains(&p.offset);
        let ring = Place { round: queue.front.round.saturating_add(1), offset: queue.front.offset };
        if !inside(queue.front)
            || !inside(queue.tail)
            || queue.tail < queue.front
            || queue.tail > ring
        {
            return fail(errno::EINVAL);
        }
        Ok(queue)
    }

    /// Writes the head.
    pub(crate) fn write(&self, call: &mut Call<'_>) -> Result<i32, Stop> {
        let head = to_vec(self);
        let mut out = Encoder::with_capacity(head.len() + OVERHEAD as usize);
        out.u16(HEAD);
        out.u64(head.len() as u64);
        out.raw(&head);
        if out.len() as u64 > self.start {
            return fail(errno::EINVAL);
        }
        call.object.write(0, out.into_bytes())?;
        Ok(0)
    }

    /// Bytes that entries may have.
    pub(crate) fn capacity(&self) -> u64 {
        self.end - self.start
    }

    /// Bytes between two places, the first not behind the second.
    fn distance(&self, from: Place, to: Place) -> u64 {
        match from.round == to.round {
            true => to.offset.saturating_sub(from.offset),
            false => (self.end - from.offset) + to.offset.saturating_sub(self.start),
        }
    }

    /// Bytes that are free.
    pub(crate) fn free(&self) -> u64 {
        self.capacity().saturating_sub(self.distance(self.front, self.tail))
    }

    /// The place so many bytes behind one; at most a round.
    fn advance(&self, from: Place, by: u64) -> Place {
        let left = self.end - from.offset;
        match by < left {
            true => Place { offset: from.offset + by, ..from },
            false => {
                Place { round: from.round.saturating_add(1), offset: self.start + (by - left) }
            }
        }
    }

    /// Adds an entry. ENOSPC if it does not fit.
    pub(crate) fn push(&mut self, call: &mut Call<'_>, data: &[u8]) -> Result<(), Stop> {
        let mut entry = Encoder::with_capacity(data.len() + OVERHEAD as usize);
        entry.u16(ENTRY);
        entry.u64(data.len() as u64);
        entry.raw(data);
        let mut entry = entry.into_bytes();
        let length = entry.len() as u64;
        if length > self.free() {
            return fail(errno::ENOSPC);
        }
        let left = (self.end - self.tail.offset).min(length);
        let rest = entry.split_off(left as usize);
        call.object.write(self.tail.offset, entry)?;
        if !rest.is_empty() {
            call.object.write(self.start, rest)?;
        }
        self.tail = self.advance(self.tail, length);
        Ok(())
    }

    /// Bytes of the ring from a place on; EINVAL if there are not so many before the tail.
    fn bytes(&self, call: &mut Call<'_>, from: Place, length: u64) -> Result<Bytes, Stop> {
        if length > self.distance(from, self.tail) {
            return fail(errno::EINVAL);
        }
        let left = (self.end - from.offset).min(length);
        let first = call.object.read(from.offset, left)?;
        if left == length {
            return Ok(first);
        }
        let rest = call.object.read(self.start, length - left)?;
        Ok([first, rest].concat().into())
    }

    /// At most `max` entries from a place on; the zero place is the front.
    pub(crate) fn list(&self, call: &mut Call<'_>, from: Place, max: u64) -> Result<Listed, Stop> {
        let mut at = if from.offset == 0 { self.front } else { from };
        if at < self.front || at > self.tail || !(self.start..=self.end).contains(&at.offset) {
            return fail(errno::EINVAL);
        }
        let (mut entries, mut read) = (Vec::new(), 0);
        while at != self.tail && (entries.len() as u64) < max && read < LISTED {
            let header = self.bytes(call, at, OVERHEAD)?;
            let mut d = Decoder::new(&header);
            let (mark, length) = (d.u16()?, d.u64()?);
            if mark != ENTRY || length > self.capacity() {
                return fail(errno::EINVAL);
            }
            let data = self.bytes(call, self.advance(at, OVERHEAD), length)?;
            if data.len() as u64 != length {
                return fail(errno::EINVAL);
            }
            entries.push(Entry { data, place: at });
            at = self.advance(at, OVERHEAD + length);
            read += OVERHEAD + length;
        }
        Ok(Listed { entries, more: at != self.tail, next: at })
    }

    /// Removes the entries before a place.
    pub(crate) fn remove(&mut self, call: &mut Call<'_>, end: Place) -> Result<(), Stop> {
        if self.front == self.tail {
            return Ok(());
        }
        // The end of the ring is its start, a round later.
        let end = if end.offset == self.end { self.advance(end, 0) } else { end };
        if end < self.front || end > self.tail || end.offset < self.start || end.offset > self.end {
            return fail(errno::EINVAL);
        }
        // What was removed takes no room.
        if end.round == self.front.round {
            call.object.zero(self.front.offset, end.offset - self.front.offset)?;
        } else {
            call.object.zero(self.front.offset, self.end - self.front.offset)?;
            call.object.zero(self.start, end.offset - self.start)?;
        }
        self.front = end;
        Ok(())
    }
}

fn init(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (size, own_max, own) = init_args(call)?;
    Queue::init(call, size, own_max, own)
}

/// Bytes for entries, bytes for what belongs to the class that uses the queue, and that.
pub(crate) fn init_args(call: &Call<'_>) -> Result<(u64, u64, Bytes), Stop> {
    call.args(|d| d.versioned("queue", 1, |d, _| Ok((d.get()?, d.get()?, d.get()?))))
}

pub(crate) fn capacity(call: &mut Call<'_>) -> Result<i32, Stop> {
    let capacity = Queue::read(call)?.capacity();
    call.output.versioned(1, 1, |o| o.u64(capacity));
    Ok(0)
}

fn enqueue(call: &mut Call<'_>) -> Result<i32, Stop> {
    let entries: Vec<Bytes> =
        call.few_args(|d| d.versioned("entries", 1, |d, _| d.list(4, Bytes::decode)))?;
    let mut queue = Queue::read(call)?;
    if queue.free() == 0 {
        return fail(errno::ENOSPC);
    }
    for entry in entries {
        queue.push(call, &entry)?;
    }
    queue.write(call)
}

pub(crate) fn list(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (max, from): (u64, Bytes) =
        call.args(|d| d.versioned("listing", 1, |d, _| Ok((d.get()?, d.get()?))))?;
    let queue = Queue::read(call)?;
    let listed = queue.list(call, Place::parse(&from), max)?;
    call.output.versioned(1, 1, |o| {
        o.bool(listed.more);
        o.put(&listed.next.text());
        o.put(&listed.entries);
    });
    Ok(0)
}

pub(crate) fn remove(call: &mut Call<'_>) -> Result<i32, Stop> {
    let end: Bytes = call.args(|d| d.versioned("removal", 1, |d, _| d.get()))?;
    let mut queue = Queue::read(call)?;
    queue.remove(call, Place::parse(&end))?;
    queue.write(call)
}

/// The place that a text names.
pub(crate) fn place(text: &[u8]) -> Place {
    Place::parse(text)
}

/// An object of Ceph's corpus, read and written.
#[cfg(test)]
pub(crate) fn again(kind: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    match kind {
        "cls_queue_head" => crate::reencoded::<Queue>(bytes),
        "cls_queue_marker" => crate::reencoded::<Place>(bytes),
        _ => None,
    }
}
