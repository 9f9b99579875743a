//! What of an object a request uses beside its head.

use super::At;
use crate::exec::ObjectState;
use spirula_maps::SnapIntervals;
use spirula_messages::ceph::op::{self, OsdOp};
use spirula_types::{HObject, SNAP_DIR, SNAP_HEAD};

/// What a request for `snapid` is shown of an object. A clone is not shown any more from the moment
/// on at which the map says that its snapshot is removed. A head that was not changed since stays
/// shown: whether a snapshot is still there is not asked for it, as in Ceph
/// (`PrimaryLogPG::find_object_context`). Otherwise a rollback that races with the removal would
/// take heads for objects that did not exist yet, and remove them.
pub(crate) fn shown(state: &ObjectState, snapid: u64, removed: &SnapIntervals) -> At {
    if snapid == SNAP_HEAD || snapid == SNAP_DIR {
        return At::Head;
    }
    match state.snapset.at(snapid) {
        At::Clone(_) if removed.contains(snapid) => At::Nothing,
        at => at,
    }
}

/// The clones that a request uses: the one that it reads, those that it rolls back to. `head`: its
/// object.
pub(crate) fn clones_used(
    head: &HObject,
    state: &ObjectState,
    snapid: u64,
    ops: &[OsdOp],
    removed: &SnapIntervals,
) -> Vec<HObject> {
    let back = ops.iter().filter(|o| o.op == op::ROLLBACK).map(OsdOp::snap);
    let mut used: Vec<HObject> = Vec::new();
    for snap in std::iter::once(snapid).chain(back) {
        if let At::Clone(id) = shown(state, snap, removed)
            && !used.iter().any(|o| o.snap == id)
        {
            used.push(HObject { snap: id, ..head.clone() });
        }
    }
    used
}
