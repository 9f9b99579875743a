//! Snapshots of an image, each under the key `snapshot_ID` (16 hexadecimal digits).

use super::Call;
use super::types::{HEAD, Namespace, Parent, Snap, feature};
use crate::{Stop, fail, stored};
use bytes::Bytes;
use spirula_types::errno;

const PREFIX: &str = "snapshot_";
/// Largest id that a snapshot may have.
const LARGEST: u64 = u64::MAX - 3;
/// Protection: not protected.
const UNPROTECTED: u8 = 0;
/// First number that is no protection status.
const PROTECTION_END: u8 = 3;

fn key(id: u64) -> String {
    format!("{PREFIX}{id:016x}")
}

/// A snapshot by its id; ENOENT if there is none.
pub(super) fn load(call: &mut Call<'_>, id: u64) -> Result<Snap, Stop> {
    call.need(key(id))
}

/// Writes a snapshot. A parent that an old release wrote into it becomes the image's.
pub(super) fn store(call: &mut Call<'_>, id: u64, mut snap: Snap) -> Result<(), Stop> {
    if snap.parent.exists() {
        let known = call.key::<Parent>("parent")?.is_some_and(|p| p.exists());
        if !known {
            // That head is no child of it any more.
            call.set("parent", &Parent { overlap: None, ..snap.parent.clone() })?;
        }
        snap.overlap = snap.parent.overlap;
        snap.parent = Parent::default();
    }
    call.set(key(id), &snap)
}

/// All snapshots, ids ascending.
pub(super) fn all(call: &mut Call<'_>) -> Result<Vec<Snap>, Stop> {
    call.list(PREFIX, b"", u64::MAX)?.iter().map(|(_, value)| stored(value)).collect()
}

/// The id that the input is.
fn id_of(call: &Call<'_>) -> Result<u64, Stop> {
    call.args(|d| d.u64())
}

/// The snapshot that the input names; EINVAL for the image as it is now.
fn named(call: &mut Call<'_>) -> Result<Snap, Stop> {
    match id_of(call)? {
        HEAD => fail(errno::EINVAL),
        id => load(call, id),
    }
}

pub(super) fn get_snapcontext(call: &mut Call<'_>) -> Result<i32, Stop> {
    let keys = call.list(PREFIX, b"", u64::MAX)?;
    let id =
        |key: &Bytes| std::str::from_utf8(key).ok().and_then(|k| u64::from_str_radix(k, 16).ok());
    let ids: Vec<u64> = keys.iter().rev().map(|(k, _)| id(k).unwrap_or_default()).collect();
    let seq: u64 = call.need("snap_seq")?;
    call.output.u64(seq);
    call.output.put(&ids);
    Ok(0)
}

pub(super) fn get_snapshot_name(call: &mut Call<'_>) -> Result<i32, Stop> {
    let snap = named(call)?;
    call.output.put(&snap.name);
    Ok(0)
}

pub(super) fn get_snapshot_timestamp(call: &mut Call<'_>) -> Result<i32, Stop> {
    let snap = named(call)?;
    call.output.put(&snap.time);
    Ok(0)
}

pub(super) fn snapshot_get(call: &mut Call<'_>) -> Result<i32, Stop> {
    let snap = named(call)?;
    snap.put_info(&mut call.output);
    Ok(0)
}

pub(super) fn snapshot_add(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (name, id, namespace) = call.args(|d| {
        Ok((d.bytes()?, d.u64()?, if d.is_empty() { Namespace::User } else { d.get()? }))
    })?;
    if namespace == Namespace::Unknown || id > LARGEST {
        return fail(errno::EINVAL);
    }
    let seq: u64 = call.need("snap_seq")?;
    if id < seq {
        return fail(errno::ESTALE);
    }
    let size = call.need("size")?;
    let flags = call.key("flags")?.unwrap_or_default();
    let limit: u64 = call.key("snap_limit")?.unwrap_or(u64::MAX);
    for (i, old) in all(call)?.iter().enumerate() {
        if i as u64 + 1 >= limit {
            return fail(errno::EDQUOT);
        }
        if old.name == name && old.namespace == namespace || old.id == id {
            return fail(errno::EEXIST);
        }
    }
    let parent = call.key("parent")?.unwrap_or_default();
    let time = call.object.now();
    let snap = Snap { id, name, size, flags, namespace, time, parent, ..Snap::default() };
    if snap.in_trash() {
        call.set_op_features(feature::OP_SNAP_TRASH, feature::OP_SNAP_TRASH)?;
    }
    call.set("snap_seq", &id)?;
    store(call, id, snap)?;
    Ok(0)
}

pub(super) fn snapshot_rename(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (id, name) = call.args(|d| Ok((d.u64()?, d.bytes()?)))?;
    if all(call)?.iter().any(|s| s.namespace == Namespace::User && s.name == name) {
        return fail(errno::EEXIST);
    }
    let mut snap = load(call, id)?;
    if snap.namespace != Namespace::User {
        return fail(errno::EINVAL);
    }
    snap.name = name;
    store(call, id, snap)?;
    Ok(0)
}

pub(super) fn snapshot_remove(call: &mut Call<'_>) -> Result<i32, Stop> {
    let id = id_of(call)?;
    let snap = load(call, id)?;
    if snap.protection != UNPROTECTED || snap.children > 0 {
        return fail(errno::EBUSY);
    }
    call.unset(key(id))?;
    let others: Vec<Snap> = all(call)?.into_iter().filter(|s| s.id != id).collect();
    let some_has_parent = others.iter().any(Snap::has_parent);
    let parent = call.key::<Parent>("parent")?.filter(Parent::exists);
    let head_has_parent = parent.as_ref().is_some_and(|p| p.overlap.is_some());
    if parent.is_some() && !head_has_parent && !some_has_parent {
        call.unset("parent")?;
    }
    let mut gone = 0;
    if !some_has_parent && !head_has_parent {
        gone |= feature::OP_CLONE_CHILD;
    }
    if !others.iter().any(Snap::in_trash) {
        gone |= feature::OP_SNAP_TRASH;
    }
    if gone != 0 {
        call.set_op_features(0, gone)?;
    }
    Ok(0)
}

pub(super) fn snapshot_trash_add(call: &mut Call<'_>) -> Result<i32, Stop> {
    let id = id_of(call)?;
    let mut snap = load(call, id)?;
    if snap.protection != UNPROTECTED {
        return fail(errno::EBUSY);
    }
    if snap.in_trash() {
        return fail(errno::EEXIST);
    }
    call.set_op_features(feature::OP_SNAP_TRASH, feature::OP_SNAP_TRASH)?;
    let name = std::mem::replace(&mut snap.name, call.new_uuid());
    snap.namespace = Namespace::Trash { name, kind: snap.namespace.kind() };
    store(call, id, snap)?;
    Ok(0)
}

pub(super) fn snapshot_get_limit(call: &mut Call<'_>) -> Result<i32, Stop> {
    let limit: u64 = call.key("snap_limit")?.unwrap_or(u64::MAX);
    call.output.u64(limit);
    Ok(0)
}

pub(super) fn snapshot_set_limit(call: &mut Call<'_>) -> Result<i32, Stop> {
    let limit = id_of(call)?;
    if limit == u64::MAX {
        call.unset("snap_limit")?;
        return Ok(0);
    }
    if limit < call.list(PREFIX, b"", u64::MAX)?.len() as u64 {
        return fail(errno::ERANGE);
    }
    call.set("snap_limit", &limit)?;
    Ok(0)
}

pub(super) fn get_protection_status(call: &mut Call<'_>) -> Result<i32, Stop> {
    let id = id_of(call)?;
    call.object.stat()?;
    if id == HEAD {
        return fail(errno::EINVAL);
    }
    let snap = load(call, id)?;
    if snap.protection >= PROTECTION_END {
        return fail(errno::EIO);
    }
    call.output.u8(snap.protection);
    Ok(0)
}

pub(super) fn set_protection_status(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (id, status) = call.args(|d| Ok((d.u64()?, d.u8()?)))?;
    call.object.stat()?;
    call.need_feature(feature::LAYERING)?;
    if id == HEAD || status >= PROTECTION_END {
        return fail(errno::EINVAL);
    }
    let mut snap = load(call, id)?;
    snap.protection = status;
    store(call, id, snap)?;
    Ok(0)
}
