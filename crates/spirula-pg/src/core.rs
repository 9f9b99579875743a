//! What every part of a PG works on: who it is, its interval, and its copy.
//!
//! The copy ([`PgCopy`]) owns what is stored of the PG besides its objects. The order in which that
//! becomes durable is here: a [`Change`] is submitted with what is to follow it ([`After`]), and
//! nothing that tells of it leaves before ([`PgCore::submit`], [`Commits`]). This knows no
//! role, no request and no recovery: those are parts of [`Pg`](crate::Pg), which change what is
//! here, and have it stored, in the same event.

use crate::api::{MapView, Now, PeerMsg, PgConfig, PgEffect};
use crate::commits::{After, Commits};
use crate::copy::{Change, PgCopy, Reader};
use crate::erasure::Shape;
use crate::exec::{INFO_ATTR, ObjectInfo, ObjectReader, ReadError};
use crate::intervals::Interval;
use crate::lease::Leases;
use crate::log::PgLog;
use crate::missing::Missing;
use crate::shard::localize;
use crate::stored::Stored;
use crate::write::backend::Backend;
use spirula_encoding::{DecodeError, UTime, from_slice};
use spirula_maps::SnapIntervals;
use spirula_messages::cluster::control::MergeWord;
use spirula_messages::cluster::pg::{CtlBody, Ends, OldReader, PastInterval, PgCtl, PgInfo};
use spirula_types::transaction::Transaction;
use spirula_types::{EVersion, Epoch, HObject, OsdId, Peer, PgId, SpgId, hash};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A time that was forgotten with a restart.
pub(crate) const UNKNOWN_MS: u64 = u64::MAX;

/// What every handler needs.
pub(crate) struct Cx<'a> {
    pub now: Now,
    pub reader: &'a dyn ObjectReader,
    pub leases: &'a Leases,
    pub out: &'a mut Vec<PgEffect>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct PgCore {
    pub(crate) id: PgId,
    /// Who we are among its members.
    pub(crate) me: Peer,
    pub(crate) cfg: Arc<PgConfig>,
    /// What is stored of the PG here, and its verbs.
    pub(crate) copy: PgCopy,
    /// When the interval was learned of.
    pub(crate) interval_stamp: UTime,
    /// It may have begun before: not all of its maps were seen here.
    guessed: bool,
    /// Members that call the interval by a later epoch of it.
    called: BTreeMap<Peer, Epoch>,
    pub(crate) view: Option<Arc<MapView>>,
    /// Requests sent with an older map were meant for another primary's time.
    pub(crate) primary_since: Epoch,
    /// What follows when what was submitted is durable.
    pub(crate) commits: Commits,
    next_seq: u64,
    /// What cannot happen has happened, see `invariant!`.
    broken: bool,
    /// When it was said last, and when it had its consequence.
    broken_ms: u64,
}

impl PgCore {
    /// A PG of which nothing is stored here.
    pub(crate) fn new(id: SpgId, osd: OsdId, cfg: Arc<PgConfig>) -> Self {
        Self::with(id, osd, cfg.clone(), PgCopy::new(id, cfg))
    }

    /// A PG as it was stored.
    ///
    /// # Errors
    /// [`DecodeError`] when a record or the log is damaged.
    pub(crate) fn load(
        id: SpgId,
        osd: OsdId,
        cfg: Arc<PgConfig>,
        stored: &Stored,
    ) -> Result<Self, DecodeError> {
        let copy = PgCopy::load(id, cfg.clone(), stored)?;
        Ok(Self::with(id, osd, cfg, copy))
    }

    /// A PG of which this is here.
    pub(crate) fn with(id: SpgId, osd: OsdId, cfg: Arc<PgConfig>, copy: PgCopy) -> Self {
        Self {
            id: id.pg,
            me: Peer::new(osd, id.shard),
            cfg,
            copy,
            interval_stamp: UTime::ZERO,
            guessed: false,
            called: BTreeMap::new(),
            view: None,
            primary_since: 0,
            commits: Commits::new(),
            next_seq: 1,
            broken: false,
            broken_ms: 0,
        }
    }

    // ---- the copy ----

    /// What is stored of the PG here; `None`: nothing.
    pub(crate) fn info(&self) -> Option<&PgInfo> {
        self.copy.info()
    }

    pub(crate) fn log(&self) -> &PgLog {
        self.copy.log()
    }

    pub(crate) fn missing(&self) -> &Missing {
        self.copy.missing()
    }

    pub(crate) fn interval(&self) -> &Interval {
        self.copy.interval()
    }

    /// Closed intervals since the PG was last known to be clean, those that may have taken writes.
    pub(crate) fn past(&self) -> &[PastInterval] {
        self.copy.past()
    }

    /// Primaries of older intervals that may still serve reads.
    pub(crate) fn readers(&self) -> &[Reader] {
        self.copy.readers()
    }

    /// Epoch of the map for which the copy was split or folded last: it is shown none before.
    pub(crate) fn shaped(&self) -> Epoch {
        self.copy.shaped()
    }

    /// Snapshots that the map has called removed, and calls so no more.
    pub(crate) fn purged(&self) -> &SnapIntervals {
        self.copy.purged()
    }

    /// Its id, with the shard that is ours.
    pub(crate) fn spg(&self) -> SpgId {
        SpgId::new(self.id, self.me.shard)
    }

    /// Epoch of the newest map, 0 before the first.
    pub(crate) fn epoch(&self) -> Epoch {
        self.view.as_ref().map_or(0, |v| v.epoch)
    }

    pub(crate) fn is_live(&self) -> bool {
        self.view.as_ref().is_some_and(|v| v.live)
    }

    pub(crate) fn is_acting(&self) -> bool {
        self.view.as_ref().is_some_and(|v| v.acting.contains(&self.me))
    }

    /// Does the map want a copy here?
    pub(crate) fn is_member(&self) -> bool {
        self.view.as_ref().is_some_and(|v| v.acting.contains(&self.me) || v.up.contains(&self.me))
    }

    pub(crate) fn leader(&self) -> Peer {
        self.view.as_ref().map_or(Peer::NONE, |v| v.primary)
    }

    /// Is what this OSD does for the PG over with this map?
    pub(crate) fn is_changed_by(&self, view: &MapView) -> bool {
        let was_live = self.view.as_ref().is_some_and(|v| v.live);
        view.gap || view.live != was_live || !self.interval().continues(self.id.seed, view)
    }

    /// How the pool cuts its objects; `None` for a replicated pool.
    pub(crate) fn shape(&self) -> Option<Shape> {
        self.view.as_ref()?.pool.as_ref()?.shape
    }

    /// Is it a PG of an erasure-coded pool?
    pub(crate) fn is_erasure(&self) -> bool {
        self.me.shard >= 0
    }

    /// How the pool keeps its objects.
    pub(crate) fn backend(&self) -> Backend {
        self.shape().map_or(Backend::Replicated, Backend::Erasure)
    }

    /// Is a merge of this PG pending, so that nothing may be written?
    pub(crate) fn is_premerge(&self) -> bool {
        self.interval().premerge && !planted!(self.cfg, WritesWhilePending)
    }

    pub(crate) fn is_whole_at(&self, version: EVersion) -> bool {
        self.has_copy() && self.info().is_some_and(|i| i.is_whole() && i.last_update() == version)
    }

    /// Is there a copy that counts? One that is being deleted does not.
    pub(crate) fn has_copy(&self) -> bool {
        self.info().is_some_and(|i| i.les > 0)
    }

    /// First and after-last position of the PG's objects.
    pub(crate) fn span(&self) -> (HObject, HObject) {
        let in_map = self.view.as_ref().and_then(|v| v.pool.as_ref()).map(|p| p.pg_num);
        let pg_num = in_map.or(self.info().map(|i| i.pg_num)).unwrap_or(1);
        (crate::exec::pg_start(self.id), crate::exec::pg_end(self.id, pg_num))
    }

    /// Objects from `start` on with their versions, and where to go on.
    pub(crate) fn list_versions(
        &self,
        start: &HObject,
        max: usize,
        reader: &dyn ObjectReader,
    ) -> Result<(Vec<(HObject, EVersion)>, HObject), ReadError> {
        let (first, end) = self.span();
        let start = start.max(&first);
        let mut found = reader.list(start, &end, max.max(1) + 1)?;
        let next = if found.len() > max.max(1) {
            found.pop().unwrap_or_else(HObject::max)
        } else {
            HObject::max()
        };
        let mut objects = Vec::with_capacity(found.len());
        for o in found {
            let version = match reader.attr(&o, INFO_ATTR)? {
                // An object whose record is missing or damaged equals no other.
                Some(attr) => {
                    from_slice::<ObjectInfo>(&attr).map(|i| i.version).unwrap_or_default()
                }
                None => EVersion::default(),
            };
            objects.push((o, version));
        }
        Ok((objects, next))
    }

    /// Version of a stored object; zero if it is not there, or not whole.
    pub(crate) fn stored_version(
        &self,
        object: &HObject,
        reader: &dyn ObjectReader,
    ) -> Result<EVersion, ReadError> {
        Ok(match reader.attr(object, INFO_ATTR)? {
            Some(attr) => from_slice::<ObjectInfo>(&attr).map(|i| i.version).unwrap_or_default(),
            None => EVersion::default(),
        })
    }

    pub(crate) fn seq(&mut self) -> u64 {
        self.next_seq += 1;
        self.next_seq
    }

    /// The version of the next entry; the first of so many, see [`PgCopy::next_version`].
    pub(crate) fn next_version(&mut self, entries: u64) -> EVersion {
        self.copy.next_version(self.epoch(), entries)
    }

    // ---- what is stored, and when it is durable ----

    /// Submits a change; `after` happens when it is durable.
    pub(crate) fn submit(&mut self, change: Change, after: After, cx: &mut Cx<'_>) {
        let mut txn = change.into_transaction();
        localize(&mut txn, self.me.shard);
        let token = self.commits.submitted(after);
        cx.out.push(PgEffect::Submit(token, txn));
    }

    /// Sends this when all that was submitted before is durable; at once if it is.
    pub(crate) fn send_when_durable(&mut self, to: Peer, msg: PeerMsg, cx: &mut Cx<'_>) {
        if let Some(After::Send(to, msg)) = self.commits.after_all(After::Send(to, msg)) {
            cx.out.push(PgEffect::Send(to, msg));
        }
    }

    /// The same for an answer that may be on its way already: it is not said twice.
    pub(crate) fn send_again(&mut self, to: Peer, msg: PeerMsg, cx: &mut Cx<'_>) {
        let msg = After::Send(to, msg);
        if !self.commits.will(&msg)
            && let Some(After::Send(to, msg)) = self.commits.after_all(msg)
        {
            cx.out.push(PgEffect::Send(to, msg));
        }
    }

    /// A new interval: nobody has called it by any name yet.
    pub(crate) fn forget_names(&mut self) {
        self.called.clear();
    }

    /// A member calls the interval so.
    pub(crate) fn is_called(&mut self, by: Peer, name: Epoch) {
        self.called.insert(by, name);
    }

    /// May the interval have begun earlier than we know?
    pub(crate) fn is_guessed(&self) -> bool {
        self.guessed
    }

    /// The first interval of which anything is known here; it may have begun earlier.
    pub(crate) fn begin_interval(&mut self, first: Interval) {
        self.guessed = true;
        self.copy.begin_interval(first).saved_whole();
    }

    /// The interval is over, and the `next` one begins with `view`, or earlier where maps before it
    /// were not seen. That is stored where there is a copy.
    pub(crate) fn next_interval(
        &mut self,
        next: Interval,
        view: &MapView,
        old: Option<&MapView>,
        cx: &mut Cx<'_>,
    ) {
        self.guessed = view.gap;
        if let Some(change) = self.copy.close_interval(next, view, old) {
            self.submit(change, After::Nothing, cx);
        }
    }

    /// Adds to what is submitted instead of a transaction that the store refused.
    pub(crate) fn amend(&mut self, txn: &mut Transaction, change: Change) {
        txn.meta.extend(change.into_transaction().meta);
    }

    // ---- the interval ----

    /// Calls the interval as each member does.
    pub(crate) fn call_as_called(&self, out: &mut [PgEffect]) {
        if self.called.is_empty() {
            return;
        }
        for e in out {
            if let PgEffect::Send(to, msg) = e
                && let Some(name) = self.called.get(to)
            {
                msg.raise_since(*name);
            }
        }
    }

    // ---- what others are told ----

    /// The info as others may see it.
    pub(crate) fn told_info(&self, cx: &Cx<'_>) -> Option<PgInfo> {
        let info = self.info().cloned().filter(|_| self.has_copy())?;
        let all = planted!(self.cfg, MissingIsHollow);
        let hollow =
            self.missing().iter().any(|(_, i)| (i.withheld || all) && i.need.epoch >= info.les);
        Some(PgInfo {
            missing: self.missing().len() as u32,
            hollow,
            readers: self.told_readers(cx),
            ..info
        })
    }

    /// Who may still serve reads as the primary of an older interval, for others.
    pub(crate) fn told_readers(&self, cx: &Cx<'_>) -> Vec<OldReader> {
        let left = |until: u64| {
            self.reads_until(until, cx).saturating_sub(cx.now.mono_ms).min(u64::from(u32::MAX))
                as u32
        };
        let all = self.readers().iter().map(|(osd, last, until)| OldReader {
            osd: *osd,
            last: *last,
            left_ms: left(*until),
        });
        all.filter(|r| r.left_ms > 0).collect()
    }

    /// Until when an old primary may read: the worst, where that was forgotten.
    pub(crate) fn reads_until(&self, until: u64, cx: &Cx<'_>) -> u64 {
        if until == UNKNOWN_MS { cx.leases.forgotten_until() } else { until }
    }

    /// What of this still holds: who may serve reads as the primary of an interval that is over,
    /// and until when.
    pub(crate) fn old_readers(
        &self,
        known: BTreeMap<OsdId, (Epoch, u64)>,
        view: &MapView,
        cx: &Cx<'_>,
    ) -> Vec<(OsdId, Epoch, u64)> {
        // One that is up again, or was, began anew or has heard of it.
        let reads = |osd: OsdId, last: Epoch| {
            osd != self.me.osd
                && view.osds.get(&osd).is_none_or(|o| !o.up && !o.dead && o.up_from <= last)
        };
        let all =
            known.into_iter().map(|(o, (last, until))| (o, last, self.reads_until(until, cx)));
        all.filter(|(o, last, until)| *until > cx.now.mono_ms && reads(*o, *last)).collect()
    }

    pub(crate) fn send(&self, to: Peer, body: CtlBody, cx: &mut Cx<'_>) {
        cx.out.push(PgEffect::Send(to, self.ctl(to, body)));
    }

    pub(crate) fn ctl(&self, to: Peer, body: CtlBody) -> PeerMsg {
        PeerMsg::Ctl(Box::new(PgCtl {
            pg: self.id,
            ends: self.ends(to),
            epoch: self.interval().since,
            body,
        }))
    }

    /// The shards at the ends of a message to `to`.
    pub(crate) fn ends(&self, to: Peer) -> Ends {
        Ends { from: self.me.shard, to: to.shard }
    }

    /// What the monitor was told for a merge is no longer so: a merge that it began now would hold
    /// up writes for nothing.
    pub(crate) fn take_back_merge(&self, cx: &mut Cx<'_>) {
        cx.out.push(PgEffect::Mergeable(MergeWord { epoch: self.epoch(), ..MergeWord::default() }));
    }

    // ---- what cannot happen ----

    /// See `invariant!`.
    pub(crate) fn is_broken(&mut self, what: std::fmt::Arguments<'_>) {
        if cfg!(any(debug_assertions, feature = "plant-bugs")) {
            panic!("pg {}: {what}", self.spg());
        }
        self.breaks(what);
    }

    /// What a release does then.
    pub(crate) fn breaks(&mut self, what: std::fmt::Arguments<'_>) {
        // Said once until it has its consequence, which comes at intervals.
        if !std::mem::replace(&mut self.broken, true) {
            tracing::error!(pg = %self.id, osd = %self.me, "cannot happen: {what}");
        }
    }
    /// Has it happened, and had no consequence yet?
    pub(crate) fn must_mend(&self) -> bool {
        self.broken
    }

    /// May it have its consequence now? Not too often. Then it counts as mended.
    pub(crate) fn mends(&mut self, cx: &Cx<'_>) -> bool {
        let early = self.broken_ms > 0 && cx.now.mono_ms < self.broken_ms + self.cfg.retry_ms;
        if self.broken && !early {
            (self.broken, self.broken_ms) = (false, cx.now.mono_ms.max(1));
            return true;
        }
        false
    }
}

/// Are the hashes of a PG the same in a pool of `a` and of `b` PGs?
pub(crate) fn has_range(pg: PgId, a: u32, b: u32) -> bool {
    hash::range_bits(pg.seed, a) == hash::range_bits(pg.seed, b)
}
