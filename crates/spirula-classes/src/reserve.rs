//! Class `2pc_queue`: a queue in which room is reserved before something is done that must be told
//! of, so that telling cannot fail for want of room. radosgw's persistent notifications use it.

use crate::queue::{self, OVERHEAD, Queue};
use crate::{Call, Class, R, RW, Stop, fail, method};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime, to_vec};
use spirula_types::errno;
use std::collections::BTreeMap;

pub(crate) const CLASS: Class = Class {
    name: "2pc_queue",
    methods: &[
        method("2pc_queue_init", RW, init),
        method("2pc_queue_get_capacity", R, queue::capacity),
        method("2pc_queue_reserve", RW, reserve),
        method("2pc_queue_commit", RW, commit),
        method("2pc_queue_abort", RW, abort),
        method("2pc_queue_list_reservations", R, list_reservations),
        method("2pc_queue_list_entries", R, queue::list),
        method("2pc_queue_remove_entries", RW, queue::remove),
        method("2pc_queue_expire_reservations", RW, expire),
    ],
};

/// The attribute for reservations that the head has no room for.
const ATTR: &[u8] = b"cls_queue_urgent_data";
/// Bytes of the head for reservations.
const OWN_MAX: u64 = 23552;

/// Room that is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reservation {
    size: u64,
    made: UTime,
}

impl Encode for Reservation {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u64(self.size);
            o.put(&self.made);
        });
    }
}

impl Decode for Reservation {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("reservation", 1, |d, _| Ok(Self { size: d.u64()?, made: d.get()? }))
    }
}

type Reservations = BTreeMap<u32, Reservation>;

/// What the head of the queue says of reservations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Reserved {
    size: u64,
    last: u32,
    in_head: Reservations,
    has_others: bool,
}

impl Encode for Reserved {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u64(self.size);
            o.u32(self.last);
            o.put(&self.in_head);
            o.bool(self.has_others);
        });
    }
}

impl Decode for Reserved {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("reserved room", 1, |d, _| {
            Ok(Self { size: d.u64()?, last: d.u32()?, in_head: d.get()?, has_others: d.bool()? })
        })
    }
}

/// The queue with its reservations: those in its head, and those in the attribute.
struct State {
    queue: Queue,
    reserved: Reserved,
    others: Reservations,
}

impl State {
    fn read(call: &mut Call<'_>) -> Result<Self, Stop> {
        let queue = Queue::read(call)?;
        let reserved: Reserved = Decoder::new(&queue.own).get()?;
        let others = if reserved.has_others { others(call)? } else { Reservations::new() };
        Ok(Self { queue, reserved, others })
    }

    fn write(mut self, call: &mut Call<'_>) -> Result<i32, Stop> {
        self.queue.own = to_vec(&self.reserved).into();
        self.queue.write(call)
    }

    /// Takes a reservation away, and its room back.
    fn take(&mut self, call: &mut Call<'_>, id: u32) -> Result<Option<Reservation>, Stop> {
        let mut taken = self.reserved.in_head.remove(&id);
        if taken.is_none() {
            taken = self.others.remove(&id);
            if taken.is_some() {
                call.store_attr(ATTR, &self.others)?;
            }
        }
        // Ceph takes back the size alone, and so loses the entries' overhead; whoever reads the
        // head here sees the same.
        self.reserved.size = self.reserved.size.wrapping_sub(taken.map_or(0, |r| r.size));
        Ok(taken)
    }
}

fn others(call: &mut Call<'_>) -> Result<Reservations, Stop> {
    match call.object.attr(ATTR) {
        Err(Stop::Errno(errno::ENOENT | errno::ENODATA)) => Ok(Reservations::new()),
        other => Ok(Decoder::new(&other?).get()?),
    }
}

fn init(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (size, _, _) = queue::init_args(call)?;
    Queue::init(call, size, OWN_MAX, to_vec(&Reserved::default()).into())
}

fn reserve(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (size, entries): (u64, u32) =
        call.args(|d| d.versioned("reservation", 1, |d, _| Ok((d.get()?, d.get()?))))?;
    if size == 0 || entries == 0 {
        return fail(errno::EINVAL);
    }
    let mut state = State::read(call)?;
    let wanted = size.saturating_add(u64::from(entries) * OVERHEAD);
    if wanted.saturating_add(state.reserved.size) > state.queue.free() {
        return fail(errno::ENOSPC);
    }
    state.reserved.size += wanted;
    state.reserved.last = state.reserved.last.wrapping_add(1);
    let (id, made) = (state.reserved.last, Reservation { size, made: call.object.now() });
    if state.reserved.in_head.insert(id, made).is_some() {
        return fail(errno::EAGAIN);
    }
    if to_vec(&state.reserved).len() as u64 > state.queue.own_max {
        state.reserved.in_head.remove(&id);
        state.others = others(call)?;
        if state.others.insert(id, made).is_some() {
            return fail(errno::EAGAIN);
        }
        state.reserved.has_others = true;
        call.store_attr(ATTR, &state.others)?;
    }
    state.write(call)?;
    call.output.versioned(1, 1, |o| o.u32(id));
    Ok(0)
}

fn commit(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (id, entries): (u32, Vec<Bytes>) = call.few_args(|d| {
        d.versioned("entries", 1, |d, _| Ok((d.get()?, d.list(4, Bytes::decode)?)))
    })?;
    let mut state = State::read(call)?;
    let Some(reservation) = state.take(call, id)? else { return fail(errno::ENOENT) };
    if reservation.size < entries.iter().map(|e| e.len() as u64).sum() {
        return fail(errno::EINVAL);
    }
    for entry in entries {
        state.queue.push(call, &entry)?;
    }
    state.write(call)
}

fn abort(call: &mut Call<'_>) -> Result<i32, Stop> {
    let id: u32 = call.args(|d| d.versioned("reservation", 1, |d, _| d.get()))?;
    let mut state = State::read(call)?;
    match state.take(call, id)? {
        Some(_) => state.write(call),
        None => Ok(0),
    }
}

fn list_reservations(call: &mut Call<'_>) -> Result<i32, Stop> {
    let State { reserved, mut others, .. } = State::read(call)?;
    others.extend(reserved.in_head);
    call.output.versioned(1, 1, |o| o.put(&others));
    Ok(0)
}

fn expire(call: &mut Call<'_>) -> Result<i32, Stop> {
    let before: UTime = call.args(|d| d.versioned("time", 1, |d, _| d.get()))?;
    let mut state = State::read(call)?;
    let old = |all: &Reservations| -> Vec<u32> {
        all.iter().filter(|(_, r)| r.made < before).map(|(id, _)| *id).collect()
    };
    let ids = [old(&state.reserved.in_head), old(&state.others)].concat();
    if ids.is_empty() {
        return Ok(0);
    }
    for id in ids {
        state.take(call, id)?;
    }
    state.write(call)
}

/// An object of Ceph's corpus, read and written.
#[cfg(test)]
pub(crate) fn again(kind: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    match kind {
        "cls_2pc_urgent_data" => crate::reencoded::<Reserved>(bytes),
        "cls_2pc_reservation" => crate::reencoded::<Reservation>(bytes),
        _ => None,
    }
}
