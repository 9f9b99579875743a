//! May a change be merged with the shard that is stored?
//!
//! # Why no write makes a spoilt shard look sound
//! A change of a shard leaves alone what it does not name, and sets the shard's length. Where the
//! shard was shorter than it had to be that would put zeros where acknowledged bytes were, and
//! where it was longer it would let old bytes come back behind its end; afterwards nothing would
//! tell it from a sound one, and `k` shards with it among them make up bytes. So a shard takes a
//! change only if it is what the change is made for: the version before it, as long as that
//! version's size says ([`super::Shape::shard_len`]). Else it is a bad copy (`repair`): its member
//! stores the log entry, lacks the change and says so before it acknowledges; the primary itself
//! rebuilds its shard before it executes the write. A change that begins by removing the object is
//! merged with nothing. One that is made from another object (a clone of its head, a head that is
//! rolled back) is only as good as that one is here: the same is asked of it, its version where the
//! write says which. In a replicated pool, too, since a backfill may have come to the clone and not
//! to its head; there the store compares what is read with its checksums, and the length need not
//! be looked at.

use crate::core::PgCore;
use crate::exec::{INFO_ATTR, ObjectInfo, ObjectReader, ReadError};
use crate::log::LogEntry;
use spirula_encoding::from_slice;
use spirula_messages::cluster::write::Share;
use spirula_types::{EVersion, HObject};

/// Can our copy take this share of an entry's change? Yes, too, where there is nothing to be
/// merged.
///
/// # Errors
/// Those of [`ObjectReader`].
pub(crate) fn can_merge(
    core: &PgCore,
    entry: &LogEntry,
    share: Share,
    reader: &dyn ObjectReader,
) -> Result<bool, ReadError> {
    if share != Share::Merged || core.missing().contains(&entry.object) {
        return Ok(true);
    }
    has_sound_shard(core, &entry.object, entry.prior, reader)
}

/// Can our copy of this object be what another is made from? Not if we lack it, if it is not there,
/// if it is not of this version, where that is known, or if its shard is not as long as it says.
///
/// # Errors
/// Those of [`ObjectReader`].
pub(crate) fn can_make_from(
    core: &PgCore,
    source: &HObject,
    version: Option<EVersion>,
    reader: &dyn ObjectReader,
) -> Result<bool, ReadError> {
    // The second line of defence against a primary that errs; a bug planted there takes both away.
    if core.missing().contains(source) && !planted!(core.cfg, MadeWithoutSource) {
        return Ok(false);
    }
    let Some(attr) = reader.attr(source, INFO_ATTR)? else {
        return Ok(planted!(core.cfg, MadeWithoutSource) && !core.is_erasure());
    };
    let info =
        from_slice::<ObjectInfo>(&attr).ok().filter(|i| version.is_none_or(|v| i.version == v));
    let Some(info) = info else {
        return Ok(planted!(core.cfg, MadeWithoutSource) && !core.is_erasure());
    };
    let Some(shape) = core.shape().filter(|_| core.is_erasure()) else { return Ok(true) };
    Ok(reader.size(source)? == shape.shard_len(info.size))
}

/// Is our shard of this object the one of this version, and as long as it must be? Yes in a
/// replicated pool.
///
/// # Errors
/// Those of [`ObjectReader`].
pub(crate) fn has_sound_shard(
    core: &PgCore,
    object: &HObject,
    version: EVersion,
    reader: &dyn ObjectReader,
) -> Result<bool, ReadError> {
    let Some(shape) =
        core.shape().filter(|_| core.is_erasure() && !planted!(core.cfg, ShortShardPadded))
    else {
        return Ok(true);
    };
    let info =
        reader.attr(object, INFO_ATTR)?.and_then(|attr| from_slice::<ObjectInfo>(&attr).ok());
    let Some(info) = info.filter(|i| i.version == version) else { return Ok(false) };
    Ok(reader.size(object)? == shape.shard_len(info.size))
}
