//! Class `rgw_gc`: a queue of what is to be removed some time after its object was (see
//! [`crate::rgw`]'s `gc` for the older form).
//!
//! Entries are in the order in which they are due. That one is deferred is noted beside the queue:
//! in its head as long as there is room, then in an attribute.

use crate::queue::{Place, Queue, place};
use crate::rgw::{Listing, Waste, answer};
use crate::{Call, Class, R, RW, Stop, fail, method};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime, to_vec};
use spirula_types::errno;
use std::collections::BTreeMap;

pub(crate) const CLASS: Class = Class {
    name: "rgw_gc",
    methods: &[
        method("rgw_gc_queue_init", RW, init),
        method("rgw_gc_queue_enqueue", RW, enqueue),
        method("rgw_gc_queue_list_entries", R, list),
        method("rgw_gc_queue_remove_entries", RW, remove),
        method("rgw_gc_queue_update_entry", RW, defer),
    ],
};

/// The attribute for deferrals that the head has no room for.
const ATTR: &[u8] = b"cls_queue_urgent_data";
/// Bytes of the head for deferrals (`rgw_gc_max_deferred_entries_size`).
const OWN_MAX: u64 = 3072;
/// Entries that are removed unless another number is asked for.
const REMOVED: u64 = 128;

/// Until when tags are deferred.
type Until = BTreeMap<Bytes, UTime>;

/// What the head of the queue says of deferrals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Deferrals {
    in_head: Until,
    /// How many there may be.
    most: u32,
    heads: u32,
    /// How many are in the attribute.
    others: u32,
}

impl Encode for Deferrals {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.in_head);
            o.u32(self.most);
            o.u32(self.heads);
            o.u32(self.others);
        });
    }
}

impl Decode for Deferrals {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("deferrals", 1, |d, _| {
            Ok(Self { in_head: d.get()?, most: d.u32()?, heads: d.u32()?, others: d.u32()? })
        })
    }
}

/// The queue with its deferrals.
struct Gc {
    queue: Queue,
    deferrals: Deferrals,
    /// Those in the attribute; read only if there are some.
    others: Until,
}

/// The deferrals in the attribute.
fn others(call: &mut Call<'_>) -> Result<Until, Stop> {
    match call.object.attr(ATTR) {
        Err(Stop::Errno(errno::ENOENT | errno::ENODATA)) => Ok(Until::new()),
        other => Ok(Decoder::new(&other?).get()?),
    }
}

impl Gc {
    fn read(call: &mut Call<'_>) -> Result<Self, Stop> {
        let queue = Queue::read(call)?;
        let deferrals: Deferrals = if queue.own.is_empty() {
            Deferrals::default()
        } else {
            Decoder::new(&queue.own).get()?
        };
        let others = if deferrals.others > 0 { others(call)? } else { Until::new() };
        Ok(Self { queue, deferrals, others })
    }

    fn write(mut self, call: &mut Call<'_>) -> Result<i32, Stop> {
        self.queue.own = to_vec(&self.deferrals).into();
        self.queue.write(call)
    }

    /// Until when an entry is deferred.
    fn until(&self, tag: &Bytes) -> Option<UTime> {
        self.deferrals.in_head.get(tag).or_else(|| self.others.get(tag)).copied()
    }
}

fn init(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (size, most): (u64, u64) =
        call.args(|d| d.versioned("queue", 1, |d, _| Ok((d.get()?, d.get()?))))?;
    let deferrals = Deferrals { most: most as u32, ..Deferrals::default() };
    Queue::init(call, size, OWN_MAX, to_vec(&deferrals).into())
}

fn enqueue(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (seconds, waste) = Waste::args(call)?;
    let waste = waste.after(call.object.now(), seconds);
    let mut queue = Queue::read(call)?;
    queue.push(call, &to_vec(&waste))?;
    queue.write(call)
}

fn list(call: &mut Call<'_>) -> Result<i32, Stop> {
    let listing = Listing::read(call)?;
    let gc = Gc::read(call)?;
    let now = call.object.now();
    let (mut entries, mut counted) = (Vec::new(), 0);
    let mut at = place(&listing.marker);
    let more = loop {
        let listed = gc.queue.list(call, at, u64::from(listing.max - counted))?;
        let nothing = listed.entries.is_empty();
        at = listed.next;
        for entry in listed.entries {
            let waste: Waste = Decoder::new(&entry.data).get()?;
            if gc.until(&waste.tag).is_some_and(|until| until > waste.due) {
                continue;
            }
            counted += 1;
            if !listing.due_only || waste.due <= now {
                entries.push(waste);
            }
        }
        if nothing || counted >= listing.max || !listed.more {
            break listed.more;
        }
    };
    let next = at.text();
    answer(call, &entries, more.then_some(&next[..]));
    Ok(0)
}

fn remove(call: &mut Call<'_>) -> Result<i32, Stop> {
    let number: u64 = call.args(|d| d.versioned("removal", 1, |d, _| d.get()))?;
    let number = if number == 0 { REMOVED } else { number };
    let mut gc = Gc::read(call)?;
    let (mut at, mut counted, mut dropped) = (Place::default(), 0, false);
    // The entry behind those that go says where they end.
    let end = loop {
        let listed = gc.queue.list(call, at, number.saturating_add(1) - counted)?;
        let Some(last) = listed.entries.last().map(|e| e.place) else { break None };
        at = listed.next;
        for entry in listed.entries {
            let waste: Waste = Decoder::new(&entry.data).get()?;
            match gc.until(&waste.tag) {
                Some(until) if until > waste.due => continue,
                Some(until) if until == waste.due => {
                    if gc.deferrals.in_head.remove(&waste.tag).is_some() {
                        gc.deferrals.heads = gc.deferrals.heads.saturating_sub(1);
                    } else if gc.others.remove(&waste.tag).is_some() {
                        gc.deferrals.others = gc.deferrals.others.saturating_sub(1);
                        dropped = true;
                    }
                }
                _ => {}
            }
            counted += 1;
        }
        if counted > number {
            break Some(last);
        }
        if !listed.more {
            break Some(at);
        }
    };
    if let Some(end) = end {
        gc.queue.remove(call, end)?;
    }
    if dropped {
        call.store_attr(ATTR, &gc.others)?;
    }
    gc.write(call)
}

fn defer(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (seconds, waste) = Waste::args(call)?;
    let Waste { tag, due, .. } = waste.after(call.object.now(), seconds);
    let queue = Queue::read(call)?;
    let mut gc = Gc { deferrals: Decoder::new(&queue.own).get()?, queue, others: Until::new() };
    if let Some(until) = gc.deferrals.in_head.get_mut(&tag) {
        *until = due;
    } else {
        gc.others = others(call)?;
        if let Some(until) = gc.others.get_mut(&tag) {
            *until = due;
            call.store_attr(ATTR, &gc.others)?;
        } else {
            gc.deferrals.in_head.insert(tag.clone(), due);
            gc.deferrals.heads = gc.deferrals.heads.saturating_add(1);
            if to_vec(&gc.deferrals).len() as u64 > gc.queue.own_max {
                gc.deferrals.in_head.remove(&tag);
                gc.deferrals.heads -= 1;
                gc.deferrals.others = gc.deferrals.others.saturating_add(1);
                gc.others.insert(tag, due);
                call.store_attr(ATTR, &gc.others)?;
            }
        }
    }
    if u64::from(gc.deferrals.heads) + u64::from(gc.deferrals.others) > u64::from(gc.deferrals.most)
    {
        return fail(errno::ENOSPC);
    }
    gc.write(call)
}

/// An object of Ceph's corpus, read and written.
#[cfg(test)]
pub(crate) fn again(kind: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    match kind {
        "cls_rgw_gc_urgent_data" => crate::reencoded::<Deferrals>(bytes),
        _ => None,
    }
}
