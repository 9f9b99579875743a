//! Names and ids: the directory of images (and that of groups, which is alike), an image's id by
//! its name, the trash, namespaces.

use super::types::Trashed;
use super::{Call, valid_id};
use crate::{Stop, fail, stored};
use bytes::Bytes;
use spirula_encoding::to_vec;
use spirula_types::errno;
use std::collections::BTreeMap;

const ID: &str = "id_";
const NAME: &str = "name_";

/// State of a directory: images may be added.
const READY: u8 = 0;
/// State of a directory: its namespace is about to be removed.
const ADD_DISABLED: u8 = 1;

fn key(prefix: &str, rest: &[u8]) -> Bytes {
    [prefix.as_bytes(), rest].concat().into()
}

pub(super) fn get_id(call: &mut Call<'_>) -> Result<i32, Stop> {
    let size = call.object.stat()?.size;
    if size == 0 {
        return fail(errno::ENOENT);
    }
    let data = call.object.read(0, size)?;
    let id: Bytes = stored(&data)?;
    call.output.put(&id);
    Ok(0)
}

pub(super) fn set_id(call: &mut Call<'_>) -> Result<i32, Stop> {
    let size = call.object.stat()?.size;
    let id = call.args(|d| d.bytes())?;
    if !valid_id(&id) {
        return fail(errno::EINVAL);
    }
    if size != 0 {
        return fail(errno::EEXIST);
    }
    call.object.write(0, to_vec(&id).into())?;
    Ok(0)
}

pub(super) fn dir_get_id(call: &mut Call<'_>) -> Result<i32, Stop> {
    let name = call.args(|d| d.bytes())?;
    let id: Bytes = call.need(key(NAME, &name))?;
    call.output.put(&id);
    Ok(0)
}

pub(super) fn dir_get_name(call: &mut Call<'_>) -> Result<i32, Stop> {
    let id = call.args(|d| d.bytes())?;
    let name: Bytes = call.need(key(ID, &id))?;
    call.output.put(&name);
    Ok(0)
}

/// Where a listing begins, and how long it may be.
fn range(call: &Call<'_>) -> Result<(Bytes, u64), Stop> {
    call.args(|d| Ok((d.bytes()?, d.u64()?)))
}

pub(super) fn dir_list(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (after, max) = range(call)?;
    let images = call.list(NAME, &after, max)?;
    let images: BTreeMap<Bytes, Bytes> = images
        .into_iter()
        .map(|(name, id)| Ok((name, stored(&id)?)))
        .collect::<Result<_, Stop>>()?;
    call.output.put(&images);
    Ok(0)
}

fn add(call: &mut Call<'_>, name: &Bytes, id: &Bytes) -> Result<i32, Stop> {
    let pairs = vec![(key(ID, id), to_vec(name).into()), (key(NAME, name), to_vec(id).into())];
    call.object.omap_set(pairs)?;
    Ok(0)
}

/// Fails unless a name and an id belong together.
fn check(call: &mut Call<'_>, name: &Bytes, id: &Bytes) -> Result<(), Stop> {
    let stored_id: Bytes = call.need(key(NAME, name))?;
    let stored_name: Bytes = call.need(key(ID, id))?;
    if stored_name != *name || stored_id != *id { fail(errno::ESTALE) } else { Ok(()) }
}

pub(super) fn dir_add_image(call: &mut Call<'_>) -> Result<i32, Stop> {
    call.object.create(false)?;
    let (name, id) = call.args(|d| Ok((d.bytes()?, d.bytes()?)))?;
    if name.is_empty() || !valid_id(&id) {
        return fail(errno::EINVAL);
    }
    if call.object.omap_get(&key(NAME, &name))?.is_some() {
        return fail(errno::EEXIST);
    }
    if call.object.omap_get(&key(ID, &id))?.is_some() {
        return fail(errno::EBADF);
    }
    add(call, &name, &id)
}

pub(super) fn dir_remove_image(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (name, id) = call.args(|d| Ok((d.bytes()?, d.bytes()?)))?;
    check(call, &name, &id)?;
    call.object.omap_remove(vec![key(ID, &id), key(NAME, &name)])?;
    Ok(0)
}

pub(super) fn dir_rename_image(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (from, to, id) = call.args(|d| Ok((d.bytes()?, d.bytes()?, d.bytes()?)))?;
    check(call, &from, &id)?;
    if to.is_empty() || !valid_id(&id) {
        return fail(errno::EINVAL);
    }
    // The name that it has is taken, too.
    if call.object.omap_get(&key(NAME, &to))?.is_some() {
        return fail(errno::EEXIST);
    }
    call.unset(key(NAME, &from))?;
    add(call, &to, &id)
}

pub(super) fn dir_state_assert(call: &mut Call<'_>) -> Result<i32, Stop> {
    let state = call.args(|d| d.u8())?;
    if call.need::<u8>("state")? == state { Ok(0) } else { fail(errno::ENOENT) }
}

pub(super) fn dir_state_set(call: &mut Call<'_>) -> Result<i32, Stop> {
    let state = call.args(|d| d.u8())?;
    match state {
        READY => {}
        ADD_DISABLED => {
            call.object.stat()?;
            if !call.list(NAME, b"", 1)?.is_empty() {
                return fail(errno::EBUSY);
            }
        }
        _ => return fail(errno::EINVAL),
    }
    call.set("state", &state)?;
    Ok(0)
}

pub(super) fn trash_add(call: &mut Call<'_>) -> Result<i32, Stop> {
    call.object.create(false)?;
    let (id, image): (Bytes, Trashed) = call.args(|d| Ok((d.bytes()?, d.get()?)))?;
    if !valid_id(&id) {
        return fail(errno::EINVAL);
    }
    if call.key::<Trashed>(key(ID, &id))?.is_some() {
        return fail(errno::EEXIST);
    }
    call.set(key(ID, &id), &image)?;
    Ok(0)
}

/// What is stored of the image in the trash that the input names; ENOENT if there is none.
fn trashed(call: &mut Call<'_>, id: &[u8]) -> Result<Bytes, Stop> {
    call.object.omap_get(&key(ID, id))?.ok_or(Stop::Errno(errno::ENOENT))
}

pub(super) fn trash_remove(call: &mut Call<'_>) -> Result<i32, Stop> {
    let id = call.args(|d| d.bytes())?;
    trashed(call, &id)?;
    call.unset(key(ID, &id))?;
    Ok(0)
}

pub(super) fn trash_list(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (after, max) = range(call)?;
    let images = call.list(ID, &after, max)?;
    let images: BTreeMap<Bytes, Trashed> = images
        .into_iter()
        .map(|(id, image)| Ok((id, stored(&image)?)))
        .collect::<Result<_, Stop>>()?;
    call.output.put(&images);
    Ok(0)
}

pub(super) fn trash_get(call: &mut Call<'_>) -> Result<i32, Stop> {
    let id = call.args(|d| d.bytes())?;
    let image = trashed(call, &id)?;
    call.output.raw(&image);
    Ok(0)
}

pub(super) fn trash_state_set(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (id, new, expected) = call.args(|d| Ok((d.bytes()?, d.u8()?, d.u8()?)))?;
    let mut image: Trashed = call.need(key(ID, &id))?;
    if image.state == expected {
        image.state = new;
        call.set(key(ID, &id), &image)?;
    } else if image.state != new {
        return fail(errno::ESTALE);
    }
    Ok(0)
}

pub(super) fn namespace_add(call: &mut Call<'_>) -> Result<i32, Stop> {
    let name = call.args(|d| d.bytes())?;
    if call.object.omap_get(&key(NAME, &name))?.is_some() {
        return fail(errno::EEXIST);
    }
    call.object.omap_set(vec![(key(NAME, &name), Bytes::new())])?;
    Ok(0)
}

pub(super) fn namespace_remove(call: &mut Call<'_>) -> Result<i32, Stop> {
    let name = call.args(|d| d.bytes())?;
    if call.object.omap_get(&key(NAME, &name))?.is_none() {
        return fail(errno::ENOENT);
    }
    call.unset(key(NAME, &name))?;
    Ok(0)
}

pub(super) fn namespace_list(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (after, max) = range(call)?;
    let names = call.list(NAME, &after, max)?;
    call.output.list(names, |o, (name, _)| o.put(&name));
    Ok(0)
}
