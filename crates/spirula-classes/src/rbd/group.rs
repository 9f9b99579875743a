//! Groups of images, and their snapshots. (The directory of groups is like that of images.)

use super::Call;
use super::types::{Group, GroupImage, GroupSnap, NO_POOL, feature};
use crate::{Stop, fail, stored};
use bytes::Bytes;
use spirula_types::errno;

/// Where an image says which group it is in.
const MEMBERSHIP: &str = "rbd_group_ref";
const IMAGE: &str = "image_";
const SNAP: &str = "snapshot_";
/// State of a snapshot that is being made.
const INCOMPLETE: u8 = 0;

impl GroupImage {
    /// Its key without the prefix; nothing for no image.
    fn rest(&self) -> Vec<u8> {
        [format!("{:016x}_", self.pool).as_bytes(), &self.image].concat()
    }

    fn key(&self) -> Bytes {
        if self.pool == NO_POOL {
            Bytes::new()
        } else {
            [IMAGE.as_bytes(), &self.rest()].concat().into()
        }
    }

    /// The image of a key without its prefix.
    fn of(rest: &[u8]) -> Result<Self, Stop> {
        let Some(at) = rest.iter().position(|b| *b == b'_') else { return fail(errno::EIO) };
        let (pool, image) = rest.split_at(at);
        let pool = std::str::from_utf8(pool)
            .ok()
            .and_then(|p| u64::from_str_radix(p, 16).ok())
            .unwrap_or_default();
        Ok(Self {
            pool: pool.cast_signed(),
            image: Bytes::copy_from_slice(image.get(1..).unwrap_or_default()),
        })
    }
}

pub(super) fn group_image_set(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (image, state): (GroupImage, u8) =
        call.args(|d| d.versioned("image of a group", 1, |d, _| Ok((d.get()?, d.u8()?))))?;
    call.set(image.key(), &state)?;
    Ok(0)
}

pub(super) fn group_image_remove(call: &mut Call<'_>) -> Result<i32, Stop> {
    let image: GroupImage = call.args(|d| d.get())?;
    call.unset(image.key())?;
    Ok(0)
}

pub(super) fn group_image_list(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (after, max): (GroupImage, u64) = call.args(|d| Ok((d.get()?, d.u64()?)))?;
    let rest = if after.pool == NO_POOL { Vec::new() } else { after.rest() };
    let mut images = Vec::new();
    for (key, state) in call.list(IMAGE, &rest, max)? {
        let state: u8 = stored(&state)?;
        images.push((GroupImage::of(&key)?, state));
    }
    call.output.list(images, |o, (image, state)| {
        o.versioned(1, 1, |o| {
            o.put(&image);
            o.u8(state);
        });
    });
    Ok(0)
}

/// The group that the image says it is in.
fn membership(call: &mut Call<'_>) -> Result<Option<Group>, Stop> {
    match call.key(MEMBERSHIP) {
        Err(Stop::Errno(errno::EIO)) => fail(errno::EINVAL),
        other => other,
    }
}

pub(super) fn image_group_add(call: &mut Call<'_>) -> Result<i32, Stop> {
    let group: Group = call.args(|d| d.get())?;
    match membership(call)? {
        Some(old) if old == group => return Ok(0),
        Some(_) => return fail(errno::EEXIST),
        None => {}
    }
    call.set_op_features(feature::OP_GROUP, feature::OP_GROUP)?;
    call.set(MEMBERSHIP, &group)?;
    Ok(0)
}

pub(super) fn image_group_remove(call: &mut Call<'_>) -> Result<i32, Stop> {
    let group: Group = call.args(|d| d.get())?;
    match membership(call)? {
        Some(old) if old == group => {}
        Some(_) => return fail(errno::EBADF),
        None => return fail(errno::ENOENT),
    }
    call.unset(MEMBERSHIP)?;
    call.set_op_features(0, feature::OP_GROUP)?;
    Ok(0)
}

pub(super) fn image_group_get(call: &mut Call<'_>) -> Result<i32, Stop> {
    let group = membership(call)?.unwrap_or(Group { pool: NO_POOL, id: Bytes::new() });
    call.output.put(&group);
    Ok(0)
}

fn snap_key(id: &[u8]) -> Bytes {
    [SNAP.as_bytes(), id].concat().into()
}

/// At most so many snapshots of the group, after one.
fn snaps(call: &mut Call<'_>, after: &[u8], max: u64) -> Result<Vec<GroupSnap>, Stop> {
    call.list(SNAP, after, max)?.iter().map(|(_, snap)| stored(snap)).collect()
}

pub(super) fn group_snap_set(call: &mut Call<'_>) -> Result<i32, Stop> {
    let snap: GroupSnap = call.args(|d| d.get())?;
    if snap.name.is_empty() || snap.id.is_empty() {
        return fail(errno::EINVAL);
    }
    if snaps(call, b"", u64::MAX)?.iter().any(|s| s.name == snap.name && s.id != snap.id) {
        return fail(errno::EEXIST);
    }
    if snap.state == INCOMPLETE && call.object.omap_get(&snap_key(&snap.id))?.is_some() {
        return fail(errno::EEXIST);
    }
    call.set(snap_key(&snap.id), &snap)?;
    Ok(0)
}

pub(super) fn group_snap_remove(call: &mut Call<'_>) -> Result<i32, Stop> {
    let id = call.args(|d| d.bytes())?;
    call.unset(snap_key(&id))?;
    Ok(0)
}

pub(super) fn group_snap_get_by_id(call: &mut Call<'_>) -> Result<i32, Stop> {
    let id = call.args(|d| d.bytes())?;
    let snap: GroupSnap = call.need(snap_key(&id))?;
    call.output.put(&snap);
    Ok(0)
}

pub(super) fn group_snap_list(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (after, max): (GroupSnap, u64) = call.args(|d| Ok((d.get()?, d.u64()?)))?;
    let snaps = snaps(call, &after.id, max)?;
    call.output.put(&snaps);
    Ok(0)
}
