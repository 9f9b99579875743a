//! The execution of the first request of an object's queue, in five steps.
//!
//! | step | question |
//! |---|---|
//! | `load_first` | What is the object like, and who watches it? |
//! | `run_own` | Is it the PG's own request, and still wanted? |
//! | `used_by_first` | Is all that it uses here, and sound? |
//! | `execute_first` | What would it do? (pure: `exec`) |
//! | `conclude_first` | Is that read, written, waited for, or refused? |
//!
//! Each step may end the turn: [`Break`] says whether the next request may go on.

use super::request::Own;
use super::turn::Sound;
use crate::api::{PgEffect, Phase, PoolView};
use crate::core::Cx;
use crate::erasure::read::{EcReader, For};
use crate::erasure::stripe::Stripes;
use crate::exec::{self, Asker, ObjectReader, OpContext, Origin, Outcome, Pause};
use crate::lead::Lead;
use crate::requests::request::Request;
use crate::snap::{self, SnapContext};
use crate::watch::Watches;
use crate::write::backend::Backend;
use spirula_messages::ceph::op;
use spirula_messages::ceph::osd::flag;
use spirula_types::{EVersion, Epoch, HObject, errno};
use std::ops::ControlFlow::{self, Break, Continue};

/// Who asks, and what its watches of the object are like.
pub(super) fn asker<'a>(
    q: &Request,
    object: &HObject,
    watches: &'a Watches,
    epoch: Epoch,
) -> Asker<'a> {
    let op = &q.op;
    // Few requests need to know.
    let notifies = op.msg.ops.iter().any(|o| matches!(o.op, op::NOTIFY | op::NOTIFY_ACK));
    let (may_notify, room) = if notifies { watches.may_notify(op.conn) } else { (0, 0) };
    Asker {
        name: op.reqid.name,
        addr: op.addr(),
        conn: op.conn,
        timeouts: op.timeouts,
        watched: if q.class.watch { watches.of(object) } else { None },
        next_notify: watches.next_notify(epoch),
        may_notify,
        room,
    }
}

/// What a request would do, or why that cannot be said yet.
struct Executed {
    /// The object of which bytes are read: its clone, if the request uses one; and its version.
    read: (HObject, EVersion),
    outcome: Result<Outcome, Pause>,
    /// What of other members' shards is to be read before that is right.
    lacks: Option<Stripes>,
}

impl Lead<'_> {
    /// Takes the turn of the first request of an object. False if it must wait, and those behind it
    /// with it.
    pub(super) fn run_first(&mut self, object: &HObject, cx: &mut Cx<'_>) -> bool {
        let Some(view) = self.core.view.clone() else { return false };
        let Some(pool) = &view.pool else { return false };
        let steps = |lead: &mut Self, cx: &mut Cx<'_>| -> ControlFlow<bool> {
            lead.load_first(object, cx)?;
            lead.run_own(object, cx)?;
            let used = lead.used_by_first(object, pool, cx)?;
            let executed = lead.execute_first(object, pool, view.epoch, used, cx)?;
            Break(lead.conclude_first(object, executed, cx))
        };
        match steps(self, cx) {
            Break(next) => next,
            Continue(()) => false,
        }
    }

    /// Loads the object and what is stored of its watches.
    fn load_first(&mut self, object: &HObject, cx: &mut Cx<'_>) -> ControlFlow<bool> {
        let Some(context) = self.requests.contexts.get_mut(object) else { return Break(false) };
        let Some(q) = context.queue.front() else { return Break(false) };
        if context.state.is_some() {
            return Continue(());
        }
        match exec::load_object(cx.reader, object) {
            Ok(state) => {
                let watchers = state.watchers.clone();
                let again = q.class.write && q.class.watch;
                context.state = Some(state);
                self.know_watches(object, &watchers, cx);
                // A watch is connected by the newest request for it, for which it must be known.
                if again && self.answered_before(object, cx) { Break(true) } else { Continue(()) }
            }
            Err(exec::ReadError::NotReady(what)) => {
                let id = q.op.id;
                Break(self.park_first(object, id, what, cx))
            }
            Err(e) => {
                tracing::error!(pg = %self.core.id, %object, error = %e, "load object");
                if self.heal(object, EVersion::default(), cx) {
                    return Break(false);
                }
                self.refuse_first(object, cx)
            }
        }
    }

    /// The first request cannot be carried out: its data is unreadable, and nobody can be asked.
    fn refuse_first<T>(&mut self, object: &HObject, cx: &mut Cx<'_>) -> ControlFlow<bool, T> {
        let Some(context) = self.requests.contexts.get_mut(object) else { return Break(false) };
        if let Some(q) = context.queue.pop_front() {
            self.reply_error(&q, -errno::EIO, cx);
        }
        Break(true)
    }

    /// What the PG asks of itself: a watch may have been renewed since, and a trim has a way of its
    /// own.
    fn run_own(&mut self, object: &HObject, cx: &mut Cx<'_>) -> ControlFlow<bool> {
        let Some(context) = self.requests.contexts.get(object) else { return Break(false) };
        let (Some(state), Some(q)) = (&context.state, context.queue.front()) else {
            return Break(false);
        };
        match q.own {
            Some(Own::Unwatch(key)) => {
                let stored = state.watchers.iter().any(|w| w.key() == key);
                if !stored || !self.is_watch_due(object, key, cx) {
                    self.requests.context(object).queue.pop_front();
                    self.watch_stays(object, key, stored, cx);
                    return Break(true);
                }
            }
            own => {
                if !state.watchers.is_empty() && self.watches.of(object).is_none() {
                    // Made by a write of our own, not loaded.
                    let watchers = state.watchers.clone();
                    self.know_watches(object, &watchers, cx);
                }
                if let Some(Own::Trim(number)) = own {
                    return Break(self.trim_first(object, number, cx));
                }
            }
        }
        Continue(())
    }

    /// What the first request uses, each in the version that it has here: the head, and clones that
    /// are to be read, last the one of which bytes are read. A write is made only for shards that
    /// are sound.
    fn used_by_first(
        &mut self,
        object: &HObject,
        pool: &PoolView,
        cx: &mut Cx<'_>,
    ) -> ControlFlow<bool, Vec<(HObject, EVersion)>> {
        let Some(context) = self.requests.contexts.get(object) else { return Break(false) };
        let (Some(state), Some(q)) = (&context.state, context.queue.front()) else {
            return Break(false);
        };
        let (id, write) = (q.op.id, q.class.write);
        let clones =
            snap::clones_used(object, state, q.op.msg.snapid, &q.op.msg.ops, &pool.snaps.removed);
        let mut used = vec![(object.clone(), state.info.version)];
        let stored = state.exists;
        for clone in clones {
            if self.must_recover_first(&clone, write, cx)
                && !planted!(self.core.cfg, CloneNotRecovered)
            {
                return Break(self.wait_for_clone(object, id, &clone, cx));
            }
            match exec::load_object(cx.reader, &clone) {
                Ok(state) => used.push((clone, state.info.version)),
                Err(exec::ReadError::NotReady(what)) => {
                    return Break(self.park_first(object, id, what, cx));
                }
                Err(error) => {
                    tracing::error!(pg = %self.core.id, %clone, %error, "load a clone");
                    used.push((clone, EVersion::default()));
                }
            }
        }
        if write && stored {
            match self.has_sound_shards(object, id, &used, cx) {
                Sound::Yes => {}
                // What is read comes back here, or recovery.
                Sound::NotRead | Sound::Replaced => return Break(false),
                Sound::No => return self.refuse_first(object, cx),
            }
        }
        Continue(used)
    }

    /// Executes the first request on what is here, which changes nothing yet.
    fn execute_first(
        &mut self,
        object: &HObject,
        pool: &PoolView,
        epoch: Epoch,
        mut used: Vec<(HObject, EVersion)>,
        cx: &mut Cx<'_>,
    ) -> ControlFlow<bool, Executed> {
        self.requests.first_enters(object, Phase::Execute, cx);
        let Some(context) = self.requests.contexts.get(object) else { return Break(false) };
        let (Some(state), Some(q)) = (&context.state, context.queue.front()) else {
            return Break(false);
        };
        let Some((read, version)) = used.pop() else { return Break(false) };
        let told = SnapContext { seq: q.op.msg.snap_seq, snaps: q.op.msg.snaps.clone() };
        let context_of = match q.own {
            // A watch that ends by itself changes nothing that a snapshot shows, and makes no
            // clone, as in Ceph.
            Some(_) => SnapContext::default(),
            None => pool
                .snaps
                .context_of(told, q.op.msg.flags & flag::ENFORCE_SNAPC != 0)
                .without(self.core.purged()),
        };
        let ctx = OpContext {
            object,
            pg: self.core.id,
            pg_num: pool.pg_num,
            pool: pool.rules,
            limits: &self.core.cfg.limits,
            flags: q.op.msg.flags,
            snapid: q.op.msg.snapid,
            context: &context_of,
            removed: &pool.snaps.removed,
            last_user_version: self.core.info().map_or(0, |i| i.head.last_user_version),
            origin: Origin { reqid: q.op.reqid, addr: q.op.addr(), now: cx.now.wall },
            fetched: q.fetched.as_deref(),
            asker: asker(q, object, self.watches, epoch),
            #[cfg(feature = "plant-bugs")]
            bug: self.core.cfg.bug,
        };
        let pieces = q.gathered.of(version);
        #[cfg(feature = "plant-bugs")]
        let pieces = if planted!(self.core.cfg, PiecesKept) { q.gathered.of_any() } else { pieces };
        let erasure = EcReader { inner: cx.reader, pieces };
        let backend = pool.shape.map_or(Backend::Replicated, Backend::Erasure);
        let reader: &dyn ObjectReader = if pool.shape.is_some() { &erasure } else { cx.reader };
        let outcome = exec::execute(&ctx, state, reader, &q.op.msg.ops);
        let lacks = backend
            .lacks(&outcome, pieces)
            .filter(|_| outcome.is_err() || !planted!(self.core.cfg, StripeNotRead));
        Continue(Executed { read: (read, version), outcome, lacks })
    }

    /// Does what execution has found: reads first, waits, or answers and writes. May others go on?
    fn conclude_first(&mut self, object: &HObject, executed: Executed, cx: &mut Cx<'_>) -> bool {
        let Executed { read: (read, version), outcome, lacks } = executed;
        let Some(context) = self.requests.contexts.get_mut(object) else { return false };
        let Some(id) = context.queue.front().map(|q| q.op.id) else { return false };
        if let Some(stripes) = lacks {
            self.requests.park_first(object, id, cx);
            if !self.gather(&read, version, stripes, For::Op(id), cx) {
                self.op_unreadable(&read, id, cx);
            }
            return false; // What follows it has run, if it reads what cannot be had.
        }
        match outcome {
            Err(Pause::Prefetch(what)) => self.park_first(object, id, what, cx),
            Err(Pause::Fetch(source)) => {
                context.copying = Some(id);
                self.requests.first_enters(object, Phase::Copy, cx);
                self.requests.reads.insert(id, Some(object.clone()));
                cx.out.push(PgEffect::Fetch(id, source));
                true
            }
            Err(Pause::Full) => {
                // No answer: the client sends it again when the pool has room.
                let own = context.queue.pop_front().and_then(|q| q.own);
                own.into_iter().for_each(|own| self.own_failed(object, own, cx));
                cx.out.push(PgEffect::Drop(id));
                true
            }
            Ok(outcome) => {
                if outcome.unreadable
                    && outcome.result == -errno::EIO
                    && self.heal(&read, version, cx)
                {
                    // The last commit comes back here, or recovery.
                    let is_clone = read != *object && self.core.missing().contains(&read);
                    return is_clone && self.wait_for_clone(object, id, &read, cx);
                }
                let Some(context) = self.requests.contexts.get_mut(object) else { return false };
                if let Some(mut q) = context.queue.pop_front() {
                    let gathered = std::mem::take(&mut q.gathered);
                    self.watches_planned(object, &outcome.watch, cx);
                    self.conclude(object, q, outcome, gathered.of(version), cx);
                }
                true
            }
        }
    }
}
