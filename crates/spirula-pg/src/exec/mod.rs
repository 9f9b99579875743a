//! Execution of a RADOS op vector on one object: the one place where ops have meaning.
//!
//! [`execute`] takes the object's state, a reader and the vector and gives an [`Outcome`]:
//! results for the reply and an [`Effect`]: nothing, a log entry, or a [`WritePlan`]. Nothing
//! happens until the caller applies it, so a request may be executed again at will: after a
//! [`Pause`], or when it was overtaken. Ops see what earlier ops of the vector did; a vector
//! that fails has no effect.
//!
//! [`execute_pg`] does the same for requests on a PG (listings).
//!
//! Does not know versions, logs or replicas: [`WritePlan::stamp`] stamps a plan with the
//! version the caller gives it. What snapshots make of a request, and show to one, is in
//! [`crate::snap`]. Calls of object classes are run by `call`; what they do is in
//! `spirula-classes`.
//!
//! Never panics on any input, and holds at most [`Limits::max_reply_size`] of output.
//! Sources: `docs/protocol/osd.md` §3–§5, §8, §9; behaviour of Ceph 16.2's OSD where
//! that is silent.

#![allow(clippy::result_large_err, reason = "a pause is no larger than an outcome")]

mod attrs;
mod call;
mod checksum;
mod copy;
mod data;
mod limits;
mod list;
mod omap;
mod plan;
mod reader;
mod staged;
mod state;
#[cfg(test)]
pub(crate) mod tests;
mod vector;
mod watch;

pub use crate::snap::At as SnapAt;
pub use copy::{Fetched, Source, WholeObject};
pub use limits::Limits;
pub use list::{execute_pg, pg_end, pg_start};
pub use plan::{Change, Stamp, Stamped, StatDelta, WritePlan};
pub use reader::{ObjectReader, OmapPage, OmapRange, Prefetch, ReadError, Want};
pub use state::{
    Clone as ObjectClone, INFO_ATTR, ObjectInfo, ObjectState, SNAPSET_ATTR, SnapSet, load_object,
    user_attr, user_name,
};

pub use watch::{Asker, Timeouts, WATCHERS_ATTR, WatchEffect, WatchKey, Watcher, are_watchers};

use crate::snap::{self, At, SnapContext};
use bytes::Bytes;
use spirula_classes::{Class, Method};
use spirula_encoding::UTime;
use spirula_maps::SnapIntervals;
use spirula_messages::ceph::op::{self, OsdOp};
use spirula_messages::ceph::osd::{OpResult, flag};
use spirula_messages::cluster::entry::OpReturn;
use spirula_types::{EntityAddr, HObject, PgId, ReqId, SNAP_DIR, SNAP_HEAD, errno};
use staged::Staged;
use vector::Vector;

/// May the pool take more data?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fullness {
    /// Yes.
    #[default]
    No,
    /// The pool, or a device below it, is full (ENOSPC).
    Full,
    /// The pool has reached its quota (EDQUOT).
    Quota,
}

/// What execution must know of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolRules {
    /// Erasure-coded: no omap.
    pub erasure: bool,
    /// Erasure-coded without overwrites: writes must append at multiples of this (the stripe
    /// width in bytes), and neither zero nor truncate.
    pub append_alignment: Option<u64>,
    /// May it take more data?
    pub fullness: Fullness,
}

/// Who sent a request, and when it is executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The request.
    pub reqid: ReqId,
    /// Its client's address.
    pub addr: EntityAddr,
    /// The OSD's wall clock.
    pub now: UTime,
}

/// The circumstances of one request.
#[derive(Clone, Copy, Debug)]
pub struct OpContext<'a> {
    /// The head of the object. For PG requests only pool and namespace count.
    pub object: &'a HObject,
    /// The PG.
    pub pg: PgId,
    /// Number of PGs in the pool.
    pub pg_num: u32,
    /// The pool.
    pub pool: PoolRules,
    /// Bounds.
    pub limits: &'a Limits,
    /// The message's flags ([`flag`]).
    pub flags: u32,
    /// What to read: [`SNAP_HEAD`], [`SNAP_DIR`] or a snapshot id.
    pub snapid: u64,
    /// The snapshots that a write must leave as they are.
    pub context: &'a SnapContext,
    /// Snapshots that are removed.
    pub removed: &'a SnapIntervals,
    /// Newest user version given out in the PG.
    pub last_user_version: u64,
    /// Who asks, and when.
    pub origin: Origin,
    /// The object a former execution asked for with [`Pause::Fetch`].
    pub fetched: Option<&'a Fetched>,
    /// Who asks.
    pub asker: Asker<'a>,
    /// A bug that the simulator plants.
    #[cfg(feature = "plant-bugs")]
    pub bug: Option<crate::api::Bug>,
}

/// What a request leaves behind.
#[derive(Debug)]
pub enum Effect {
    /// Nothing: reply at once.
    None,
    /// A writing request that failed or changed nothing: a log entry without a change, so
    /// that a resend is answered alike.
    LogOnly,
    /// A change, to be stamped, logged, replicated and committed before the reply.
    Apply(Box<WritePlan>),
}

/// What to answer, and what to do.
#[derive(Debug)]
pub struct Outcome {
    /// Result of the request: −errno, 0, or 1 (listings at their end; reads that end in a
    /// comparison of attributes).
    pub result: i32,
    /// Per-op results; each op's `indata` is its output.
    pub ops: Vec<OpResult>,
    /// User version for the reply, unless the effect is [`Effect::Apply`]
    /// (then that of its last entry counts).
    pub user_version: u64,
    /// What to do.
    pub effect: Effect,
    /// Reads to count: a plan carries its own.
    pub stats: StatDelta,
    /// It failed because something that is stored cannot be read, and not because an op says EIO of
    /// its own.
    pub unreadable: bool,
    /// What becomes of watches and notifications when it is answered.
    pub watch: Vec<WatchEffect>,
}

/// Why a request has no outcome yet. Nothing happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Load this, then execute again.
    Prefetch(Prefetch),
    /// The pool is full: keep or drop the request without a reply (the client resends it when
    /// the pool's flag goes).
    Full,
    /// Get this object, then execute again with [`OpContext::fetched`].
    Fetch(Source),
}

/// What kind of request a vector is, by its ops alone: message flags are only hints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpClass {
    /// It reads.
    pub read: bool,
    /// It may change the object.
    pub write: bool,
    /// It works on a PG, not an object.
    pub pg: bool,
    /// It must be ordered with writes even if it only reads (a watch's ping).
    pub ordered: bool,
    /// It begins, keeps up or ends a watch.
    pub watch: bool,
}

/// Classifies a vector.
pub fn classify(ops: &[OsdOp]) -> OpClass {
    let mut class = OpClass::default();
    for o in ops {
        // A ping renews a watch in memory only: it is ordered, not logged.
        class.watch |= o.op == op::WATCH;
        if o.op == op::WATCH && o.watch_args().op == op::watch::PING {
            class.ordered = true;
        } else {
            class.write |= writes(o);
        }
        class.read |= o.op & op::MODE_READ != 0;
        class.pg |= o.is_pg_op();
    }
    class
}

/// May this op change the object? A call may if its method is registered so, whatever the request's
/// flags say.
pub fn writes(o: &OsdOp) -> bool {
    o.is_write() || o.op == op::CALL && called(o).is_some_and(|(_, method)| method.flags.write)
}

/// The class and method that an op calls, if there is such a one.
pub fn called(o: &OsdOp) -> Option<(&'static Class, &'static Method)> {
    let args = o.call_args().ok()?;
    spirula_classes::find(&args.class, &args.method).ok()
}

/// May this vector change the object?
pub fn is_write(ops: &[OsdOp]) -> bool {
    classify(ops).write
}

/// Executes a vector on the object `ctx.object` whose present state is `state`.
///
/// # Errors
/// [`Pause`] when it must be executed again later. What is wrong with the request is in
/// [`Outcome::result`].
pub fn execute(
    ctx: &OpContext<'_>,
    state: &ObjectState,
    reader: &dyn ObjectReader,
    ops: &[OsdOp],
) -> Result<Outcome, Pause> {
    let class = classify(ops);
    if let Err(errno) = check_request(ctx, state, class, ops) {
        return Ok(Outcome::refused(ops, -errno));
    }
    let At::Clone(id) = snap::shown(state, ctx.snapid, ctx.removed) else {
        return run(ctx, class, Staged::new(reader, ctx.object, state), ops);
    };
    let clone = HObject { snap: id, ..ctx.object.clone() };
    match load_object(reader, &clone) {
        Ok(shown) if shown.exists => {
            // Class methods ask for the history of the object, whatever they are shown of it.
            let shown = ObjectState { snapset: state.snapset.clone(), ..shown };
            run(ctx, class, Staged::new(reader, &clone, &shown), ops)
        }
        Err(ReadError::NotReady(what)) => Err(Pause::Prefetch(what)),
        // Its head says that there is one.
        Ok(_) | Err(_) => Ok(Outcome { unreadable: true, ..Outcome::refused(ops, -errno::EIO) }),
    }
}

/// Runs a vector that nothing is wrong with.
fn run(
    ctx: &OpContext<'_>,
    class: OpClass,
    object: Staged<'_>,
    ops: &[OsdOp],
) -> Result<Outcome, Pause> {
    let mut vector = Vector::new(ctx, object);
    let (result, results) = vector.run(ops)?;
    let unreadable = vector.unreadable && result < 0;
    let (staged, watch) = vector.into_parts();
    let outcome = conclude(ctx, class, staged, result, results)?;
    // A change that was refused at the end has no effect on watches, either.
    let watch = if outcome.result < 0 { Vec::new() } else { watch };
    Ok(Outcome { unreadable, watch, ..outcome })
}

/// Checks what can be refused without running an op. The error is a positive errno.
fn check_request(
    ctx: &OpContext<'_>,
    state: &ObjectState,
    class: OpClass,
    ops: &[OsdOp],
) -> Result<(), i32> {
    let limits = ctx.limits;
    if ops.is_empty() || class.pg {
        return Err(errno::EINVAL);
    }
    if ops.len() > limits.max_ops {
        return Err(errno::E2BIG);
    }
    ops.iter().filter(|o| o.op == op::CALL).try_for_each(call::check)?;
    let object = ctx.object;
    if object.name.len() > limits.max_name_len
        || object.key.len() > limits.max_name_len
        || object.namespace.len() > limits.max_namespace_len
    {
        return Err(errno::ENAMETOOLONG);
    }
    if object.name.is_empty() {
        return Err(errno::EINVAL);
    }
    if class.write {
        if ctx.snapid != SNAP_HEAD
            || !ctx.context.is_valid()
            || ctx.context.snaps.len() > limits.max_snaps
        {
            return Err(errno::EINVAL);
        }
        if ctx.flags & flag::ORDERSNAP != 0 && ctx.context.seq < state.snapset.seq {
            return Err(errno::EOLDSNAPC);
        }
        // Bytes of a head and of its clone are not read for one request: they come from many
        // shards.
        if ctx.pool.erasure && ops.iter().skip(1).any(|o| o.op == op::ROLLBACK) {
            return Err(errno::EOPNOTSUPP);
        }
        if ops.iter().map(|o| o.indata.len() as u64).sum::<u64>() > limits.max_write_size {
            return Err(errno::EMSGSIZE);
        }
    }
    // list_snaps belongs to the snapshot directory, and nothing else does.
    if ops.iter().any(|o| (o.op == op::LIST_SNAPS) != (ctx.snapid == SNAP_DIR)) {
        return Err(errno::EINVAL);
    }
    if class.write {
        return Ok(());
    }
    // A deleted head has a history as long as it has clones.
    let there = match snap::shown(state, ctx.snapid, ctx.removed) {
        At::Head if ctx.snapid == SNAP_DIR => state.exists,
        At::Head => state.live(),
        At::Clone(_) => state.exists,
        At::Nothing => false,
    };
    if there { Ok(()) } else { Err(errno::ENOENT) }
}

/// Decides what becomes of an executed vector.
fn conclude(
    ctx: &OpContext<'_>,
    class: OpClass,
    staged: Staged<'_>,
    result: i32,
    mut ops: Vec<OpResult>,
) -> Result<Outcome, Pause> {
    let base_version = staged.base.info.user_version;
    let without_effect = |result: i32, ops: Vec<OpResult>, effect, stats| Outcome {
        result,
        ops,
        user_version: match result {
            // The floor of whatever version the object will get.
            e if e == -errno::ENOENT => ctx.last_user_version,
            0.. => base_version,
            _ if matches!(effect, Effect::LogOnly) => base_version,
            _ => 0,
        },
        effect,
        stats,
        unreadable: false,
        watch: Vec::new(),
    };
    if result < 0 || !staged.modified {
        let effect = if class.write { Effect::LogOnly } else { Effect::None };
        let stats = if result < 0 { StatDelta::default() } else { staged.stats };
        return Ok(without_effect(result, ops, effect, stats));
    }
    if ctx.pool.fullness != Fullness::No
        && (staged.stats.bytes > 0 || staged.stats.objects > 0)
        && ctx.flags & flag::FULL_FORCE == 0
    {
        if ctx.flags & flag::FULL_TRY == 0 {
            return Err(Pause::Full);
        }
        let e = if ctx.pool.fullness == Fullness::Quota { errno::EDQUOT } else { errno::ENOSPC };
        return Ok(without_effect(-e, ops, Effect::None, StatDelta::default()));
    }
    let mut result = result;
    if ctx.flags & flag::RETURNVEC != 0 {
        for r in ops.iter_mut().filter(|r| r.op.indata.len() > ctx.limits.max_write_op_reply) {
            r.op.indata = Bytes::new();
            r.rval = -errno::EOVERFLOW;
            result = -errno::EOVERFLOW;
        }
        if returned(&ops) > ctx.limits.max_returns {
            result = -errno::EOVERFLOW;
        }
        if result < 0 {
            return Ok(without_effect(result, ops, Effect::None, StatDelta::default()));
        }
    } else {
        result = 0;
        ops.iter_mut().for_each(|r| r.op.indata = Bytes::new());
    }
    let stats = StatDelta::default();
    let base = staged.base;
    let plan = WritePlan::of_head(staged.into_change(), base, ctx);
    // The history was not there yet when the vector's change was looked at. Without a new clone it
    // grows by few ranges only ([`SnapSet::head_changes`]), so what is deleted or overwritten under
    // the same context is never refused.
    if plan.changes.len() > 1 && plan.history_size() > ctx.limits.max_history {
        return Ok(without_effect(-errno::E2BIG, ops, Effect::LogOnly, stats));
    }
    let effect = Effect::Apply(Box::new(plan));
    Ok(Outcome {
        result,
        ops,
        user_version: base_version,
        effect,
        stats,
        unreadable: false,
        watch: Vec::new(),
    })
}

/// Bytes that a log remembers of what these ops gave.
fn returned(ops: &[OpResult]) -> usize {
    ops.iter().map(|r| 8 + r.op.indata.len()).sum()
}

impl Outcome {
    /// What the log remembers of what each op gave, for resends: where the request's flags ask for
    /// it, and within the bounds. (A change that would give more is refused; what failed may have
    /// given anything.)
    pub fn returns(&self, flags: u32, limits: &Limits) -> Vec<OpReturn> {
        if flags & flag::RETURNVEC == 0 || 8 * self.ops.len() > limits.max_returns {
            return Vec::new();
        }
        let small = returned(&self.ops) <= limits.max_returns;
        let kept = |data: &Bytes| if small { Bytes::copy_from_slice(data) } else { Bytes::new() };
        self.ops.iter().map(|r| OpReturn { rval: r.rval, data: kept(&r.op.indata) }).collect()
    }

    /// A request refused before any op ran.
    fn refused(ops: &[OsdOp], result: i32) -> Self {
        let ops = ops
            .iter()
            .map(|o| OpResult { op: without_data(o), rval: 0, output_crc: None })
            .collect();
        let (effect, stats) = (Effect::None, StatDelta::default());
        Self { result, ops, user_version: 0, effect, stats, unreadable: false, watch: Vec::new() }
    }
}

/// An op's fixed part.
pub(crate) fn without_data(o: &OsdOp) -> OsdOp {
    OsdOp { op: o.op, flags: o.flags, union: o.union, indata: Bytes::new() }
}
