//! An image that moves: what its header says of the other half.

use super::Call;
use super::types::{Migration, feature};
use crate::{Stop, fail};
use spirula_types::errno;

const KEY: &str = "migration";

/// The image's features. An image of format 1, which has none, does not move here.
fn features(call: &mut Call<'_>) -> Result<u64, Stop> {
    call.key("features")?.ok_or(Stop::Errno(errno::ENXIO))
}

fn load(call: &mut Call<'_>) -> Result<Migration, Stop> {
    if features(call)? & feature::MIGRATING == 0 {
        return fail(errno::EINVAL);
    }
    call.need(KEY)
}

pub(super) fn migration_set(call: &mut Call<'_>) -> Result<i32, Stop> {
    let migration: Migration = call.args(|d| d.get())?;
    if call.object.omap_get(KEY.as_bytes())?.is_some() {
        return fail(errno::EEXIST);
    }
    let features = features(call)?;
    if features & feature::MIGRATING == 0 {
        call.set("features", &(features | feature::MIGRATING))?;
    } else if migration.half != Migration::DESTINATION {
        return fail(errno::EEXIST);
    }
    call.set(KEY, &migration)?;
    Ok(0)
}

pub(super) fn migration_set_state(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (state, description) = call.args(|d| Ok((d.u8()?, d.bytes()?)))?;
    let mut migration = load(call)?;
    (migration.state, migration.description) = (state, description);
    call.set(KEY, &migration)?;
    Ok(0)
}

pub(super) fn migration_get(call: &mut Call<'_>) -> Result<i32, Stop> {
    let migration = load(call)?;
    call.output.put(&migration);
    Ok(0)
}

pub(super) fn migration_remove(call: &mut Call<'_>) -> Result<i32, Stop> {
    let features = features(call)?;
    call.unset(KEY)?;
    if features & feature::MIGRATING != 0 {
        call.set("features", &(features & !feature::MIGRATING))?;
    }
    Ok(0)
}
