//! What an image was cloned from, and what was cloned from it.
//!
//! A clone of the first kind is noted in the object `rbd_children` of its pool; its parent's
//! snapshot is protected. A clone of the second kind is noted in its parent's header.

use super::types::{Child, HEAD, Parent, feature, put_option};
use super::{Call, snapshot};
use crate::{Stop, fail};
use bytes::Bytes;
use spirula_encoding::Encoder;
use spirula_types::errno;
use std::collections::BTreeSet;

/// Makes the image a clone. `again`: whatever parent it has had.
fn attach(call: &mut Call<'_>, parent: &Parent, again: bool) -> Result<i32, Stop> {
    call.object.stat()?;
    call.need_feature(feature::LAYERING)?;
    let overlap = parent.overlap.unwrap_or_default();
    if !parent.exists() || overlap == 0 {
        return fail(errno::EINVAL);
    }
    if let Some(old) = call.key::<Parent>("parent")? {
        let same = Parent { overlap: parent.overlap, ..old.clone() } == *parent;
        if (old.overlap.is_some() || !same) && !again {
            return fail(errno::EEXIST);
        }
    }
    let size: u64 = call.need("size")?;
    call.set("parent", &Parent { overlap: Some(overlap.min(size)), ..parent.clone() })?;
    Ok(0)
}

/// Makes the image its own. `old`: the caller knows no namespaces.
fn detach(call: &mut Call<'_>, old: bool) -> Result<i32, Stop> {
    call.object.stat()?;
    let features = match call.key::<u64>("features")? {
        Some(features) if features & feature::LAYERING != 0 => features,
        _ => return fail(errno::ENOEXEC),
    };
    let mut parent: Parent = call.need("parent")?;
    if old && !parent.namespace.is_empty() {
        return fail(errno::EXDEV);
    }
    if parent.overlap.is_none() {
        return fail(errno::ENOENT);
    }
    let mut kept = false;
    for mut snap in snapshot::all(call)?.into_iter().filter(super::types::Snap::has_parent) {
        if features & feature::DEEP_FLATTEN == 0 {
            kept = true;
            break;
        }
        (snap.parent, snap.overlap) = (Parent::default(), None);
        snapshot::store(call, snap.id, snap)?;
    }
    if kept {
        // The image has no part of its parent any more, but its snapshots do.
        parent.overlap = None;
        call.set("parent", &parent)?;
    } else {
        call.unset("parent")?;
        call.set_op_features(0, feature::OP_CLONE_CHILD)?;
    }
    Ok(0)
}

pub(super) fn get_parent(call: &mut Call<'_>) -> Result<i32, Stop> {
    let snap = call.args(|d| d.u64())?;
    call.object.stat()?;
    let mut parent = Parent::default();
    if call.has_feature(feature::LAYERING)? {
        parent = call.key("parent")?.unwrap_or_default();
        if !parent.namespace.is_empty() {
            return fail(errno::EXDEV);
        }
        if snap != HEAD {
            let snap = match snapshot::load(call, snap) {
                Err(Stop::Errno(errno::ENOENT)) => super::types::Snap::default(),
                other => other?,
            };
            if snap.parent.exists() {
                parent = snap.parent;
            } else if snap.overlap.is_none() {
                parent = Parent::default();
            } else if parent.exists() {
                parent.overlap = snap.overlap;
            } else {
                return fail(errno::EINVAL);
            }
        }
    }
    call.output.i64(parent.pool);
    call.output.put(&parent.image);
    call.output.u64(parent.snap);
    call.output.u64(parent.overlap.unwrap_or_default());
    Ok(0)
}

pub(super) fn set_parent(call: &mut Call<'_>) -> Result<i32, Stop> {
    let parent = call.args(|d| {
        let (pool, image, snap, overlap) = (d.i64()?, d.get()?, d.u64()?, Some(d.u64()?));
        Ok(Parent { pool, namespace: Bytes::new(), image, snap, overlap })
    })?;
    attach(call, &parent, false)
}

pub(super) fn remove_parent(call: &mut Call<'_>) -> Result<i32, Stop> {
    detach(call, true)
}

pub(super) fn parent_get(call: &mut Call<'_>) -> Result<i32, Stop> {
    call.object.stat()?;
    let mut parent = Parent::default();
    if call.has_feature(feature::LAYERING)? {
        parent = match call.key("parent")? {
            Some(parent) => parent,
            // An old release wrote it into the snapshots.
            None => snapshot::all(call)?
                .into_iter()
                .map(|s| s.parent)
                .rfind(Parent::exists)
                .unwrap_or_default(),
        };
    }
    parent.put_spec(&mut call.output);
    Ok(0)
}

pub(super) fn parent_overlap_get(call: &mut Call<'_>) -> Result<i32, Stop> {
    let snap = call.args(|d| d.u64())?;
    let mut overlap = None;
    if call.has_feature(feature::LAYERING)? {
        overlap = if snap == HEAD {
            call.key::<Parent>("parent")?.and_then(|p| p.overlap)
        } else {
            let snap = snapshot::load(call, snap)?;
            snap.overlap.or(Some(snap.parent).filter(Parent::exists).and_then(|p| p.overlap))
        };
    }
    put_option(&mut call.output, overlap);
    Ok(0)
}

pub(super) fn parent_attach(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (parent, again) = call.args(|d| {
        let mut parent = Parent::get_spec(d)?;
        parent.overlap = Some(d.u64()?);
        Ok((parent, !d.is_empty() && d.bool()?))
    })?;
    attach(call, &parent, again)
}

pub(super) fn parent_detach(call: &mut Call<'_>) -> Result<i32, Stop> {
    detach(call, false)
}

/// A snapshot as a key of `rbd_children`: pool, image and snapshot as in the input. With it what
/// follows there.
fn children_key(call: &Call<'_>, child: bool) -> Result<(Bytes, Bytes), Stop> {
    call.args(|d| {
        let mut key = Encoder::new();
        key.u64(d.u64()?);
        key.blob(d.blob()?);
        key.u64(d.u64()?);
        Ok((key.into_bytes(), if child { d.bytes()? } else { Bytes::new() }))
    })
}

pub(super) fn add_child(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (key, child) = children_key(call, true)?;
    let mut children: BTreeSet<Bytes> = call.key(&key)?.unwrap_or_default();
    if !children.insert(child) {
        return fail(errno::EEXIST);
    }
    call.set(key, &children)?;
    Ok(0)
}

pub(super) fn remove_child(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (key, child) = children_key(call, true)?;
    let mut children: BTreeSet<Bytes> = call.need(&key)?;
    if !children.remove(&child) {
        return fail(errno::ENOENT);
    }
    if children.is_empty() {
        call.unset(key)?
    } else {
        call.set(key, &children)?
    }
    Ok(0)
}

pub(super) fn get_children(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (key, _) = children_key(call, false)?;
    let children: BTreeSet<Bytes> = call.need(key)?;
    call.output.put(&children);
    Ok(0)
}

/// Where the clones of the second kind of a snapshot are.
fn clones_key(snap: u64) -> String {
    format!("snap_children_{snap:016x}")
}

pub(super) fn child_attach(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (id, child): (u64, Child) = call.args(|d| Ok((d.u64()?, d.get()?)))?;
    let mut snap = snapshot::load(call, id)?;
    if snap.in_trash() {
        return fail(errno::ENOENT);
    }
    let mut children: BTreeSet<Child> = call.key(clones_key(id))?.unwrap_or_default();
    if !children.insert(child) {
        return fail(errno::EEXIST);
    }
    call.set(clones_key(id), &children)?;
    snap.children = snap.children.saturating_add(1);
    snapshot::store(call, id, snap)?;
    call.set_op_features(feature::OP_CLONE_PARENT, feature::OP_CLONE_PARENT)?;
    Ok(0)
}

pub(super) fn child_detach(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (id, child): (u64, Child) = call.args(|d| Ok((d.u64()?, d.get()?)))?;
    let mut snap = snapshot::load(call, id)?;
    let mut children: BTreeSet<Child> = call.key(clones_key(id))?.unwrap_or_default();
    if snap.children as usize != children.len() {
        return fail(errno::EINVAL);
    }
    if !children.remove(&child) {
        return fail(errno::ENOENT);
    }
    if children.is_empty() {
        call.unset(clones_key(id))?
    } else {
        call.set(clones_key(id), &children)?
    }
    snap.children = children.len() as u32;
    snapshot::store(call, id, snap)?;
    if children.is_empty() && !snapshot::all(call)?.iter().any(|s| s.id != id && s.children > 0) {
        call.set_op_features(0, feature::OP_CLONE_PARENT)?;
    }
    Ok(0)
}

pub(super) fn children_list(call: &mut Call<'_>) -> Result<i32, Stop> {
    let id = call.args(|d| d.u64())?;
    snapshot::load(call, id)?;
    let children: BTreeSet<Child> = call.need(clones_key(id))?;
    call.output.put(&children);
    Ok(0)
}
