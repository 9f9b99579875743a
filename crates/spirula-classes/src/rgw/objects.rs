//! What the gateway asks of objects that hold data.

use crate::{Call, Stop, fail};
use bytes::Bytes;
use spirula_encoding::{UTime, to_vec};
use spirula_types::errno;

/// Attributes whose names start with a prefix; none of an object that does not exist.
fn prefixed(call: &mut Call<'_>, prefixes: &[Bytes]) -> Result<Vec<(Bytes, Bytes)>, Stop> {
    let mut attrs = match call.object.attrs() {
        Err(Stop::Errno(errno::ENOENT)) => Vec::new(),
        other => other?,
    };
    attrs.retain(|(name, _)| prefixes.iter().any(|prefix| name.starts_with(prefix)));
    Ok(attrs)
}

/// Removes the object, but for attributes with some prefixes.
pub(super) fn remove(call: &mut Call<'_>) -> Result<i32, Stop> {
    let keep: Vec<Bytes> = call.few_args(|d| d.versioned("removal", 1, |d, _| d.get()))?;
    let kept = if keep.is_empty() { Vec::new() } else { prefixed(call, &keep)? };
    call.object.remove()?;
    if !kept.is_empty() {
        call.object.create(false)?;
    }
    for (name, value) in kept {
        call.object.set_attr(&name, value)?;
    }
    Ok(0)
}

/// Notes the PG's version in an attribute: of two contents the later one's is higher.
pub(super) fn store_version(call: &mut Call<'_>) -> Result<i32, Stop> {
    let attr: Bytes = call.args(|d| d.versioned("attribute", 1, |d, _| d.get()))?;
    let version = call.object.version();
    call.object.set_attr(&attr, to_vec(&version).into())?;
    Ok(0)
}

pub(super) fn check_attrs(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (prefix, fail_if_there): (Bytes, bool) =
        call.args(|d| d.versioned("attributes' prefix", 1, |d, _| Ok((d.get()?, d.get()?))))?;
    if prefix.is_empty() {
        return fail(errno::EINVAL);
    }
    let there = !prefixed(call, &[prefix])?.is_empty();
    if there == fail_if_there { fail(errno::ECANCELED) } else { Ok(0) }
}

pub(super) fn check_mtime(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (given, how, precise): (UTime, u8, bool) = call.args(|d| {
        d.versioned("time of change", 2, |d, v| {
            Ok((d.get()?, d.get()?, if v >= 2 { d.get()? } else { false }))
        })
    })?;
    let stored = match call.object.stat() {
        Err(Stop::Errno(errno::ENOENT)) => UTime::ZERO,
        other => other?.mtime,
    };
    let rounded = |t: UTime| if precise { t } else { UTime { nsec: 0, ..t } };
    let (stored, given) = (rounded(stored), rounded(given));
    let holds = match how {
        0 => stored == given,
        1 => stored < given,
        2 => stored <= given,
        3 => stored > given,
        4 => stored >= given,
        _ => return fail(errno::EINVAL),
    };
    if holds { Ok(0) } else { fail(errno::ECANCELED) }
}
