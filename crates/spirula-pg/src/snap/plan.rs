//! What a vector of ops becomes when there are snapshots.

use crate::exec::{
    Change, ObjectInfo, ObjectState, OpContext, SNAPSET_ATTR, SnapSet, StatDelta, WATCHERS_ATTR,
    WritePlan,
};
use bytes::Bytes;
use spirula_encoding::to_vec;
use spirula_types::transaction::ObjectOp;
use spirula_types::{EVersion, HObject};

impl WritePlan {
    /// The plan of a request that makes this change of a head, which was `base`.
    pub(crate) fn of_head(mut head: Change, base: &ObjectState, ctx: &OpContext<'_>) -> Self {
        let context = ctx.context;
        if base.snapset.is_empty() && context.seq == 0 {
            return Self { changes: vec![head] };
        }
        let mut set = base.snapset.clone();
        let mut changes = Vec::with_capacity(2);
        let before = set.own_bytes();
        if base.live()
            && let Some(id) = set.add_clone(context, base.info.size)
        {
            let mut clone = clone_of(&head.object, id, base);
            if planted!(ctx, CloneOfOlder)
                && let (Some(older), Some(op)) = (base.snapset.clones.last(), clone.ops.first_mut())
            {
                *op = ObjectOp::CloneFrom(HObject { snap: older.id, ..head.object.clone() });
            }
            changes.push(clone);
        }
        set.note_context(context);
        if planted!(ctx, ContextGoesBack) {
            set.seq = context.seq;
        }
        if !planted!(ctx, OverlapKept) {
            set.head_changes(&head.ops);
        }
        head.stats.bytes += set.own_bytes() - before;
        if head.delete && !set.clones.is_empty() {
            head.delete = false;
            head.state.exists = true;
            head.state.info.set(ObjectInfo::WHITEOUT, true);
            head.state.info.set(ObjectInfo::OMAP, false);
            head.stats.objects += 1;
        }
        let whiteout = |s: &ObjectState| i64::from(s.exists && s.info.has(ObjectInfo::WHITEOUT));
        head.stats.whiteouts += whiteout(&head.state) - whiteout(base);
        if !head.delete {
            let anew = |op: &ObjectOp| matches!(op, ObjectOp::Remove | ObjectOp::CloneFrom(_));
            if planted!(ctx, HistoryForgotten)
                && base.info.has(ObjectInfo::SNAPSET)
                && !head.ops.iter().any(anew)
            {
                set = base.snapset.clone();
            }
            if set != base.snapset || head.ops.iter().any(anew) {
                set_history(&mut head.ops, &set);
            }
            head.state.info.set(ObjectInfo::SNAPSET, true);
            head.state.snapset = set;
        }
        changes.push(head);
        Self { changes }
    }

    /// Bytes of the history that it stores with the head; 0 if that stays as it is.
    pub(crate) fn history_size(&self) -> usize {
        let sets = self.changes.last().into_iter().flat_map(|c| &c.ops).filter_map(|op| match op {
            ObjectOp::SetAttrs(kv) => Some(kv),
            _ => None,
        });
        sets.flatten().filter(|(k, _)| k == SNAPSET_ATTR).map(|(_, v)| v.len()).sum()
    }
}

/// Adds the attribute that holds a history.
pub(super) fn set_history(ops: &mut Vec<ObjectOp>, set: &SnapSet) {
    let attr = (Bytes::from_static(SNAPSET_ATTR), to_vec(set).into());
    match ops.last_mut() {
        Some(ObjectOp::SetAttrs(kv)) => kv.push(attr),
        _ => ops.push(ObjectOp::SetAttrs(vec![attr])),
    }
}

/// The change that makes a clone of a head that is `base`.
fn clone_of(head: &HObject, id: u64, base: &ObjectState) -> Change {
    let mut ops = vec![ObjectOp::CloneFrom(head.clone())];
    if base.info.has(ObjectInfo::SNAPSET) {
        ops.push(ObjectOp::RmAttr(Bytes::from_static(SNAPSET_ATTR)));
    }
    // Watches stay with the head.
    if base.info.has(ObjectInfo::WATCHED) {
        ops.push(ObjectOp::RmAttr(Bytes::from_static(WATCHERS_ATTR)));
    }
    let mut info = base.info;
    info.set(ObjectInfo::SNAPSET | ObjectInfo::WATCHED, false);
    // To the log it is a new object.
    (info.version, info.prior_version) = (EVersion::default(), EVersion::default());
    let omap_objects = i64::from(info.has(ObjectInfo::OMAP));
    Change {
        object: HObject { snap: id, ..head.clone() },
        ops,
        state: ObjectState { exists: true, info, ..ObjectState::default() },
        size_before: base.info.size,
        source: Some(head.clone()),
        frozen: true,
        delete: false,
        user_modify: false,
        user_version: None,
        stats: StatDelta { objects: 1, clones: 1, omap_objects, ..StatDelta::default() },
    }
}
