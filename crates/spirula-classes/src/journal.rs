//! Class `journal`: the header of a journal, and its data objects. Images with the feature
//! `journaling` write one.
//!
//! A journal has *clients*, who say how far they have read or played it back, and *tags*, which say
//! whose the entries from some point on are. Tags that no client needs any more go.

use crate::{Call, Class, R, RW, Stop, fail, method};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, to_vec};
use spirula_types::errno;
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const CLASS: Class = Class {
    name: "journal",
    methods: &[
        method("create", RW, create),
        method("get_order", R, get_order),
        method("get_splay_width", R, get_splay_width),
        method("get_pool_id", R, get_pool_id),
        method("get_minimum_set", R, get_minimum_set),
        method("set_minimum_set", RW, set_minimum_set),
        method("get_active_set", R, get_active_set),
        method("set_active_set", RW, set_active_set),
        method("get_client", R, get_client),
        method("client_register", RW, client_register),
        method("client_update_data", RW, client_update_data),
        method("client_update_state", RW, client_update_state),
        method("client_unregister", RW, client_unregister),
        method("client_commit", RW, client_commit),
        method("client_list", R, client_list),
        method("get_next_tag_tid", R, get_next_tag_tid),
        method("get_tag", R, get_tag),
        method("tag_create", RW, tag_create),
        method("tag_list", R, tag_list),
        method("guard_append", RW, guard_append),
        method("append", RW, append),
    ],
};

const ORDER: &str = "order";
const SPLAY_WIDTH: &str = "splay_width";
const POOL: &str = "pool_id";
const MINIMUM_SET: &str = "minimum_set";
const ACTIVE_SET: &str = "active_set";
const NEXT_TAG: &str = "next_tag_tid";
const NEXT_CLASS: &str = "next_tag_class";
const CLIENT: &str = "client_";
const TAG: &str = "tag_";

/// A class of tags that is to be made.
const NEW_CLASS: u64 = u64::MAX;
/// State of a client that nobody waits for.
const DISCONNECTED: u8 = 1;
/// Most pairs that are read at a time.
const PAGE: u64 = 64;

/// A place in a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Position {
    object: u64,
    tag: u64,
    entry: u64,
}

/// How far a client is: a place in each object that is written at a time, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Positions(Vec<Position>);

impl Encode for Positions {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.list(&self.0, |o, p| {
                o.versioned(1, 1, |o| {
                    o.u64(p.object);
                    o.u64(p.tag);
                    o.u64(p.entry);
                });
            });
        });
    }
}

impl Decode for Positions {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let one = |d: &mut Decoder<'_>| {
            d.versioned("position", 1, |d, _| {
                Ok(Position { object: d.u64()?, tag: d.u64()?, entry: d.u64()? })
            })
        };
        Ok(Self(d.versioned("positions", 1, |d, _| d.list(30, one))?))
    }
}

/// Who reads a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Client {
    id: Bytes,
    data: Bytes,
    commit: Positions,
    state: u8,
}

impl Encode for Client {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.id);
            o.put(&self.data);
            o.put(&self.commit);
            o.u8(self.state);
        });
    }
}

impl Decode for Client {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("client", 1, |d, _| {
            Ok(Self { id: d.get()?, data: d.get()?, commit: d.get()?, state: d.u8()? })
        })
    }
}

/// Whose the entries from some point on are.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Tag {
    tid: u64,
    class: u64,
    data: Bytes,
}

impl Encode for Tag {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u64(self.tid);
            o.u64(self.class);
            o.put(&self.data);
        });
    }
}

impl Decode for Tag {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("tag", 1, |d, _| Ok(Self { tid: d.u64()?, class: d.u64()?, data: d.get()? }))
    }
}

/// The value under a key; EINVAL if it cannot be read.
fn need<T: Decode>(call: &mut Call<'_>, key: impl AsRef<[u8]>) -> Result<T, Stop> {
    let value = call.object.omap_get(key.as_ref())?.ok_or(Stop::Errno(errno::ENOENT))?;
    Ok(Decoder::new(&value).get()?)
}

fn set<T: Encode>(call: &mut Call<'_>, key: impl AsRef<[u8]>, value: &T) -> Result<(), Stop> {
    call.object.omap_set(vec![(Bytes::copy_from_slice(key.as_ref()), to_vec(value).into())])
}

fn is_there(call: &mut Call<'_>, key: impl AsRef<[u8]>) -> Result<bool, Stop> {
    Ok(call.object.omap_get(key.as_ref())?.is_some())
}

fn client_key(id: &[u8]) -> Vec<u8> {
    [CLIENT.as_bytes(), id].concat()
}

fn tag_key(tid: u64) -> String {
    format!("{TAG}{tid:016x}")
}

/// All values whose keys start with a prefix; EIO for one that cannot be read.
fn all<T: Decode>(call: &mut Call<'_>, prefix: &str) -> Result<Vec<(Bytes, T)>, Stop> {
    let mut found = Vec::new();
    let mut last = Bytes::new();
    loop {
        let page = call.object.omap_page(&last, prefix.as_bytes(), PAGE)?;
        for (key, value) in page.pairs {
            found.push((key.clone(), crate::stored(&value)?));
            last = key;
        }
        if !page.more {
            return Ok(found);
        }
    }
}

fn create(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (order, width, pool) = call.args(|d| Ok((d.u8()?, d.u8()?, d.i64()?)))?;
    if is_there(call, ORDER)? {
        return fail(errno::EEXIST);
    }
    let none = to_vec(&0u64);
    let pairs = [
        (ACTIVE_SET, none.clone()),
        (MINIMUM_SET, none.clone()),
        (NEXT_CLASS, none.clone()),
        (NEXT_TAG, none),
        (ORDER, vec![order]),
        (POOL, to_vec(&pool)),
        (SPLAY_WIDTH, vec![width]),
    ];
    call.object.omap_set(
        pairs.into_iter().map(|(k, v)| (Bytes::from_static(k.as_bytes()), v.into())).collect(),
    )?;
    Ok(0)
}

/// Gives the value under a key.
fn give<T: Decode + Encode>(call: &mut Call<'_>, key: &str) -> Result<i32, Stop> {
    let value: T = need(call, key)?;
    call.output.put(&value);
    Ok(0)
}

fn get_order(call: &mut Call<'_>) -> Result<i32, Stop> {
    let order: u8 = need(call, ORDER)?;
    call.output.u8(order);
    Ok(0)
}

fn get_splay_width(call: &mut Call<'_>) -> Result<i32, Stop> {
    let width: u8 = need(call, SPLAY_WIDTH)?;
    call.output.u8(width);
    Ok(0)
}

fn get_pool_id(call: &mut Call<'_>) -> Result<i32, Stop> {
    give::<i64>(call, POOL)
}

fn get_minimum_set(call: &mut Call<'_>) -> Result<i32, Stop> {
    give::<u64>(call, MINIMUM_SET)
}

fn get_active_set(call: &mut Call<'_>) -> Result<i32, Stop> {
    give::<u64>(call, ACTIVE_SET)
}

fn get_next_tag_tid(call: &mut Call<'_>) -> Result<i32, Stop> {
    give::<u64>(call, NEXT_TAG)
}

/// Raises a number under a key.
fn raise(call: &mut Call<'_>, key: &str, old: u64, new: u64) -> Result<i32, Stop> {
    match new.cmp(&old) {
        std::cmp::Ordering::Less => return fail(errno::ESTALE),
        std::cmp::Ordering::Equal => {}
        std::cmp::Ordering::Greater => set(call, key, &new)?,
    }
    Ok(0)
}

fn set_minimum_set(call: &mut Call<'_>) -> Result<i32, Stop> {
    let new = call.args(|d| d.u64())?;
    let active: u64 = need(call, ACTIVE_SET)?;
    if active < new {
        return fail(errno::EINVAL);
    }
    let old = need(call, MINIMUM_SET)?;
    raise(call, MINIMUM_SET, old, new)
}

fn set_active_set(call: &mut Call<'_>) -> Result<i32, Stop> {
    let new = call.args(|d| d.u64())?;
    let minimum: u64 = need(call, MINIMUM_SET)?;
    if minimum > new {
        return fail(errno::EINVAL);
    }
    let old = need(call, ACTIVE_SET)?;
    raise(call, ACTIVE_SET, old, new)
}

fn get_client(call: &mut Call<'_>) -> Result<i32, Stop> {
    let id = call.args(|d| d.bytes())?;
    let client: Client = need(call, client_key(&id))?;
    call.output.put(&client);
    Ok(0)
}

/// Where a new client starts: at the oldest place that a client is at; at the beginning if one is
/// there.
fn oldest(call: &mut Call<'_>) -> Result<Positions, Stop> {
    let clients = all::<Client>(call, CLIENT)?;
    let mut oldest: Option<Positions> = None;
    for (_, client) in clients {
        let Some(first) = client.commit.0.first() else { return Ok(Positions::default()) };
        let older = oldest
            .as_ref()
            .and_then(|o| o.0.first())
            .is_none_or(|o| (first.tag, first.entry) < (o.tag, o.entry));
        if older {
            oldest = Some(client.commit);
        }
    }
    Ok(oldest.unwrap_or_default())
}

fn client_register(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (id, data) = call.args(|d| Ok((d.bytes()?, d.bytes()?)))?;
    need::<u8>(call, ORDER)?;
    if is_there(call, client_key(&id))? {
        return fail(errno::EEXIST);
    }
    let commit = oldest(call)?;
    set(call, client_key(&id), &Client { id: id.clone(), data, commit, state: 0 })?;
    Ok(0)
}

fn client_update_data(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (id, data) = call.args(|d| Ok((d.bytes()?, d.bytes()?)))?;
    let mut client: Client = need(call, client_key(&id))?;
    client.data = data;
    set(call, client_key(&id), &client)?;
    Ok(0)
}

fn client_update_state(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (id, state) = call.args(|d| Ok((d.bytes()?, d.u8()?)))?;
    let mut client: Client = need(call, client_key(&id))?;
    client.state = state;
    set(call, client_key(&id), &client)?;
    Ok(0)
}

fn client_unregister(call: &mut Call<'_>) -> Result<i32, Stop> {
    let id = call.args(|d| d.bytes())?;
    if !is_there(call, client_key(&id))? {
        return fail(errno::ENOENT);
    }
    call.object.omap_remove(vec![client_key(&id).into()])?;
    expire_tags(call)?;
    Ok(0)
}

fn client_commit(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (id, commit): (Bytes, Positions) = call.args(|d| Ok((d.bytes()?, d.get()?)))?;
    let width: u8 = need(call, SPLAY_WIDTH)?;
    if commit.0.len() > usize::from(width) {
        return fail(errno::EINVAL);
    }
    let mut client: Client = need(call, client_key(&id))?;
    if client.commit != commit {
        client.commit = commit;
        set(call, client_key(&id), &client)?;
    }
    Ok(0)
}

fn client_list(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (after, max) = call.args(|d| Ok((d.bytes()?, d.u64()?)))?;
    let last = if after.is_empty() { Vec::new() } else { client_key(&after) };
    // One answer, as long as it may be.
    let page = call.object.omap_page(&last, CLIENT.as_bytes(), max)?;
    let clients: BTreeMap<Bytes, Client> = page
        .pairs
        .iter()
        .map(|(_, value)| crate::stored::<Client>(value).map(|c| (c.id.clone(), c)))
        .collect::<Result<_, Stop>>()?;
    call.output.list(clients.values(), |o, c| o.put(c));
    Ok(0)
}

fn get_tag(call: &mut Call<'_>) -> Result<i32, Stop> {
    let tid = call.args(|d| d.u64())?;
    let tag: Tag = need(call, tag_key(tid))?;
    call.output.put(&tag);
    Ok(0)
}

/// Removes the tags that no client needs any more: those before the newest of their class up to the
/// oldest tag that one is at. With a client that is at no place yet nothing goes.
fn expire_tags(call: &mut Call<'_>) -> Result<(), Stop> {
    let mut oldest: Option<u64> = None;
    for (_, client) in all::<Client>(call, CLIENT)? {
        if client.state == DISCONNECTED {
            continue;
        }
        let Some(tag) = client.commit.0.iter().map(|p| p.tag).min() else { return Ok(()) };
        oldest = Some(oldest.map_or(tag, |o| o.min(tag)));
    }
    let Some(oldest) = oldest else { return Ok(()) };
    let tags = all::<Tag>(call, TAG)?;
    if tags.iter().any(|(key, tag)| tag_key(tag.tid).as_bytes() != &key[..]) {
        return fail(errno::EINVAL);
    }
    // The first tag at or behind the oldest place counts, and those behind it do not.
    let end = tags.iter().position(|(_, t)| t.tid >= oldest).map_or(tags.len(), |i| i + 1);
    let seen = tags.get(..end).unwrap_or_default();
    let newest: BTreeMap<u64, u64> = seen.iter().map(|(_, t)| (t.class, t.tid)).collect();
    let gone: Vec<Bytes> = seen
        .iter()
        .filter(|(_, t)| newest.get(&t.class).is_some_and(|n| t.tid < *n))
        .map(|(k, _)| k.clone())
        .collect();
    if gone.is_empty() { Ok(()) } else { call.object.omap_remove(gone) }
}

fn tag_create(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (tid, class, data) = call.args(|d| Ok((d.u64()?, d.u64()?, d.bytes()?)))?;
    if is_there(call, tag_key(tid))? {
        return fail(errno::EEXIST);
    }
    let next: u64 = need(call, NEXT_TAG)?;
    if tid != next {
        return fail(errno::ESTALE);
    }
    let next_class: u64 = need(call, NEXT_CLASS)?;
    let class = match class {
        NEW_CLASS => {
            set(call, NEXT_CLASS, &next_class.wrapping_add(1))?;
            next_class
        }
        class if class >= next_class => return fail(errno::EINVAL),
        class => class,
    };
    expire_tags(call)?;
    set(call, NEXT_TAG, &tid.wrapping_add(1))?;
    set(call, tag_key(tid), &Tag { tid, class, data })?;
    Ok(0)
}

fn tag_list(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (after, max, id, class) = call.args(|d| {
        Ok((d.u64()?, d.u64()?, d.bytes()?, if d.bool()? { Some(d.u64()?) } else { None }))
    })?;
    let client: Client = need(call, client_key(&id))?;
    let oldest = client.commit.0.iter().map(|p| p.tag).min();
    let tags: Vec<Tag> = all::<Tag>(call, TAG)?.into_iter().map(|(_, t)| t).collect();
    // Of each class what the client is behind, up to where it is.
    let mut from: BTreeMap<u64, u64> = BTreeMap::new();
    if let Some(oldest) = oldest {
        for tag in &tags {
            from.insert(tag.class, tag.tid);
            if tag.tid >= oldest {
                break;
            }
        }
    }
    let mut listed: BTreeSet<u64> = BTreeSet::new();
    let mut out = Vec::new();
    for tag in tags {
        let wanted = (after == 0 || tag.tid > after)
            && from.get(&tag.class).is_none_or(|f| tag.tid >= *f)
            && class.is_none_or(|c| c == tag.class);
        if wanted && listed.insert(tag.tid) {
            out.push(tag);
        }
        if out.len() as u64 >= max {
            break;
        }
    }
    call.output.put(&out);
    Ok(0)
}

/// Fails with EOVERFLOW if the object has reached a size.
fn guard(call: &mut Call<'_>, size: u64) -> Result<u64, Stop> {
    let has = match call.object.stat() {
        Ok(stat) => stat.size,
        Err(Stop::Errno(errno::ENOENT)) => return Ok(0),
        Err(e) => return Err(e),
    };
    if has >= size { fail(errno::EOVERFLOW) } else { Ok(has) }
}

fn guard_append(call: &mut Call<'_>) -> Result<i32, Stop> {
    let size = call.args(|d| d.u64())?;
    guard(call, size)?;
    Ok(0)
}

/// Appends to a data object, unless it has reached a size.
fn append(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (size, data) = call.args(|d| Ok((d.u64()?, d.bytes()?)))?;
    let end = guard(call, size)?;
    call.object.write(end, data)?;
    Ok(0)
}
