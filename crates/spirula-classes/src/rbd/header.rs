//! The header of an image: size, features, flags, striping, times, metadata.

use super::types::{HEAD, Parent, Snap, feature};
use super::{Call, PAGE, snapshot};
use crate::{Stop, fail};
use bytes::Bytes;
use spirula_encoding::{UTime, to_vec};
use spirula_types::errno;
use std::collections::BTreeMap;

const METADATA: &str = "metadata_";

fn exists(call: &mut Call<'_>) -> Result<(), Stop> {
    call.object.stat().map(drop)
}

/// The one number that the input is.
fn number(call: &Call<'_>) -> Result<u64, Stop> {
    call.args(|d| d.u64())
}

pub(super) fn create(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (size, order, features, prefix, pool) = call.args(|d| {
        let (size, order, features, prefix) = (d.u64()?, d.u8()?, d.u64()?, d.bytes()?);
        Ok((size, order, features, prefix, if d.is_empty() { None } else { Some(d.i64()?) }))
    })?;
    let pool = pool.filter(|p| *p != super::types::NO_POOL);
    if features & !feature::ALL != 0 {
        return fail(errno::ENOSYS);
    }
    if prefix.is_empty() {
        return fail(errno::EINVAL);
    }
    if call.object.omap_get(b"object_prefix")?.is_some() {
        return fail(errno::EEXIST);
    }
    if features & feature::OPERATIONS != 0 || (features & feature::DATA_POOL != 0) != pool.is_some()
    {
        return fail(errno::EINVAL);
    }
    let now = to_vec(&call.object.now());
    let mut pairs = vec![
        ("access_timestamp", now.clone()),
        ("create_timestamp", now.clone()),
        ("features", to_vec(&features)),
        ("modify_timestamp", now),
        ("object_prefix", to_vec(&prefix)),
        ("order", to_vec(&order)),
        ("size", to_vec(&size)),
        ("snap_seq", to_vec(&0u64)),
    ];
    pairs.extend(pool.map(|p| ("data_pool_id", to_vec(&p))));
    call.object.omap_set(
        pairs.into_iter().map(|(k, v)| (Bytes::from_static(k.as_bytes()), v.into())).collect(),
    )?;
    Ok(0)
}

pub(super) fn get_features(call: &mut Call<'_>) -> Result<i32, Stop> {
    let read_only = call.args(|d| {
        d.u64()?; // A snapshot once: all have the features of the image now.
        if d.is_empty() { Ok(false) } else { d.bool() }
    })?;
    let features: u64 = call.need("features")?;
    let incompatible = if read_only { feature::INCOMPATIBLE } else { feature::WRITE_INCOMPATIBLE };
    call.output.u64(features);
    call.output.u64(features & incompatible);
    Ok(0)
}

pub(super) fn set_features(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (features, mask) = call.args(|d| Ok((d.u64()?, d.u64()?)))?;
    let old: u64 = call.key("features")?.unwrap_or_default();
    if mask & feature::INTERNAL != 0 {
        return fail(errno::EINVAL);
    }
    // Newer clients may name features that are unknown here.
    let mask = mask & feature::ALL;
    let (on, off) = (features & mask, !features & mask);
    if on & !feature::MUTABLE != 0 || off & !(feature::MUTABLE | feature::DISABLE_ONLY) != 0 {
        return fail(errno::EINVAL);
    }
    call.set("features", &(old & !mask | on))?;
    Ok(0)
}

pub(super) fn get_all_features(call: &mut Call<'_>) -> Result<i32, Stop> {
    call.output.u64(feature::ALL);
    Ok(0)
}

pub(super) fn get_size(call: &mut Call<'_>) -> Result<i32, Stop> {
    let snap = number(call)?;
    let order: u8 = call.need("order")?;
    let size = if snap == HEAD { call.need("size")? } else { snapshot::load(call, snap)?.size };
    call.output.u8(order);
    call.output.u64(size);
    Ok(0)
}

pub(super) fn set_size(call: &mut Call<'_>) -> Result<i32, Stop> {
    let size = number(call)?;
    let old: u64 = call.need("size")?;
    call.set("size", &size)?;
    // What an image loses, it has not from its parent any more.
    if size < old
        && let Some(mut parent) = call.key::<Parent>("parent")?
        && parent.exists()
        && parent.overlap.is_some_and(|o| o > size)
    {
        parent.overlap = Some(size);
        call.set("parent", &parent)?;
    }
    Ok(0)
}

pub(super) fn get_object_prefix(call: &mut Call<'_>) -> Result<i32, Stop> {
    let prefix: Bytes = call.need("object_prefix")?;
    call.output.put(&prefix);
    Ok(0)
}

pub(super) fn get_data_pool(call: &mut Call<'_>) -> Result<i32, Stop> {
    let pool: i64 = call.key("data_pool_id")?.unwrap_or(super::types::NO_POOL);
    call.output.i64(pool);
    Ok(0)
}

/// Bytes of a data object; 0 for more than a number can say.
fn object_size(order: u8) -> u64 {
    1u64.checked_shl(u32::from(order)).unwrap_or_default()
}

pub(super) fn get_stripe_unit_count(call: &mut Call<'_>) -> Result<i32, Stop> {
    exists(call)?;
    call.need_feature(feature::STRIPING)?;
    let unit = match call.key("stripe_unit")? {
        Some(unit) => unit,
        None => object_size(call.key("order")?.ok_or(Stop::Errno(errno::EIO))?),
    };
    let count: u64 = call.key("stripe_count")?.unwrap_or(1);
    call.output.u64(unit);
    call.output.u64(count);
    Ok(0)
}

pub(super) fn set_stripe_unit_count(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (unit, count) = call.args(|d| Ok((d.u64()?, d.u64()?)))?;
    if unit == 0 || count == 0 {
        return fail(errno::EINVAL);
    }
    exists(call)?;
    call.need_feature(feature::STRIPING)?;
    let size = object_size(call.need("order")?);
    if !size.is_multiple_of(unit) || unit > size {
        return fail(errno::EINVAL);
    }
    call.set("stripe_unit", &unit)?;
    call.set("stripe_count", &count)?;
    Ok(0)
}

fn get_time(call: &mut Call<'_>, key: &str) -> Result<i32, Stop> {
    let time: UTime = call.key(key)?.unwrap_or_default();
    call.output.put(&time);
    Ok(0)
}

fn set_time(call: &mut Call<'_>, key: &str) -> Result<i32, Stop> {
    exists(call)?;
    let now = call.object.now();
    call.set(key, &now)?;
    Ok(0)
}

pub(super) fn get_create_timestamp(call: &mut Call<'_>) -> Result<i32, Stop> {
    get_time(call, "create_timestamp")
}

pub(super) fn get_access_timestamp(call: &mut Call<'_>) -> Result<i32, Stop> {
    get_time(call, "access_timestamp")
}

pub(super) fn get_modify_timestamp(call: &mut Call<'_>) -> Result<i32, Stop> {
    get_time(call, "modify_timestamp")
}

pub(super) fn set_access_timestamp(call: &mut Call<'_>) -> Result<i32, Stop> {
    set_time(call, "access_timestamp")
}

pub(super) fn set_modify_timestamp(call: &mut Call<'_>) -> Result<i32, Stop> {
    set_time(call, "modify_timestamp")
}

pub(super) fn get_flags(call: &mut Call<'_>) -> Result<i32, Stop> {
    let snap = number(call)?;
    let flags: u64 = match snap {
        HEAD => call.key("flags")?.unwrap_or_default(),
        snap => snapshot::load(call, snap)?.flags,
    };
    call.output.u64(flags);
    Ok(0)
}

pub(super) fn set_flags(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (flags, mask, snap) =
        call.args(|d| Ok((d.u64()?, d.u64()?, if d.is_empty() { HEAD } else { d.u64()? })))?;
    let change = |old: u64| old & !mask | flags & mask;
    if snap == HEAD {
        let old = call.key("flags")?.unwrap_or_default();
        call.set("flags", &change(old))?;
    } else {
        let mut s: Snap = snapshot::load(call, snap)?;
        s.flags = change(s.flags);
        snapshot::store(call, snap, s)?;
    }
    Ok(0)
}

pub(super) fn op_features_get(call: &mut Call<'_>) -> Result<i32, Stop> {
    let features: u64 = call.key("op_features")?.unwrap_or_default();
    call.output.u64(features);
    Ok(0)
}

pub(super) fn op_features_set(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (features, mask) = call.args(|d| Ok((d.u64()?, d.u64()?)))?;
    if mask & !feature::OPS != 0 {
        return fail(errno::EINVAL);
    }
    call.set_op_features(features, mask)?;
    Ok(0)
}

fn metadata_key(name: &[u8]) -> Vec<u8> {
    [METADATA.as_bytes(), name].concat()
}

pub(super) fn metadata_list(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (after, max) = call.args(|d| Ok((d.bytes()?, d.u64()?)))?;
    let all = call.list(METADATA, &after, if max == 0 { PAGE } else { max })?;
    call.output.put(&all);
    Ok(0)
}

pub(super) fn metadata_set(call: &mut Call<'_>) -> Result<i32, Stop> {
    let pairs: BTreeMap<Bytes, Bytes> = call.few_args(|d| d.get())?;
    let pairs = pairs.into_iter().map(|(k, v)| (metadata_key(&k).into(), v)).collect();
    call.object.omap_set(pairs)?;
    Ok(0)
}

pub(super) fn metadata_remove(call: &mut Call<'_>) -> Result<i32, Stop> {
    let name = call.args(|d| d.bytes())?;
    call.unset(metadata_key(&name))?;
    Ok(0)
}

pub(super) fn metadata_get(call: &mut Call<'_>) -> Result<i32, Stop> {
    let name = call.args(|d| d.bytes())?;
    let value = call.object.omap_get(&metadata_key(&name))?.ok_or(Stop::Errno(errno::ENOENT))?;
    call.output.put(&value);
    Ok(0)
}
