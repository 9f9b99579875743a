//! The copy of a PG that is stored here: its record, its log, its missing set. **Everything that
//! changes it goes through [`PgCopy`]**, whose fields nobody else can write.
//!
//! Each verb says what happens to the copy (a write is appended, an object is lacked, an
//! authoritative log is taken over), and gives what makes that durable: a [`Change`], which
//! [`PgCore::submit`](crate::core::PgCore::submit) gives to the store. Where what happens is stored
//! only with what follows in the same event, or by the next transaction that stores everything, the
//! verb gives a [`Pending`] instead, and its caller has to say by which of them.
//!
//! A copy that is loaded from what its changes have stored is the same copy; `tests` tries that
//! with any sequence of verbs. Not stored are until when older primaries may read, which snapshots
//! were purged and which numbers of entries were given out: after a restart the first is assumed to
//! be the worst, the second unknown, and the third is the newest entry's.

use crate::api::{MapView, PgConfig};
use crate::core::UNKNOWN_MS;
use crate::erasure::undo;
use crate::exec::ObjectReader;
use crate::intervals::{Interval, forget_before};
use crate::log::{LogEntry, PgLog};
use crate::merge::merge;
use crate::missing::Missing;
use crate::stored::{Record, Stored, head_key, info_key};
use bytes::Bytes;
use spirula_encoding::{DecodeError, from_slice, to_vec};
use spirula_maps::SnapIntervals;
use spirula_messages::cluster::pg::{
    LogUpdate, MissingItem, OldReader, PastInterval, PgCounts, PgHead, PgInfo,
};
use spirula_messages::cluster::scrub::ScrubHistory;
use spirula_messages::cluster::write::WriteRecord;
use spirula_types::transaction::{MetaOp, ObjectOp, ObjectUpdate, Transaction};
use spirula_types::{EVersion, Epoch, HObject, OsdId, Peer, PgId, SpgId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A primary of an older interval that may still serve reads, the last epoch of its interval, and
/// until when; a time that is not known any more, after a restart, is [`UNKNOWN_MS`].
pub(crate) type Reader = (OsdId, Epoch, u64);

/// Objects whose divergent change has no undo copy here: each is lacked in the version before it,
/// and the primary does not know that.
pub(crate) type Spoilt = Vec<(HObject, EVersion)>;

/// What makes durable what a verb of [`PgCopy`] did.
///
/// Only such verbs make one that touches the PG's records, and each holds what the missing set has
/// changed by. So it cannot happen any more that a caller changes the missing set and submits a
/// transaction that does not say so, or submits records that are not those in memory; and one that
/// is not submitted at all is a warning of the compiler.
#[must_use = "nothing of it is stored before it is submitted"]
#[derive(Debug, Default)]
pub(crate) struct Change {
    txn: Transaction,
}

impl Change {
    /// A change of objects that leaves the PG's records as they are.
    pub(crate) fn of_objects(objects: Vec<ObjectUpdate>) -> Self {
        Self { txn: Transaction { objects, meta: Vec::new() } }
    }

    /// The transaction, for [`PgCore::submit`](crate::core::PgCore::submit) and
    /// [`PgCore::amend`](crate::core::PgCore::amend) alone.
    pub(crate) fn into_transaction(self) -> Transaction {
        self.txn
    }
}

/// Something happened to the copy that is not stored yet, and that a later [`Change`] of it will
/// hold whichever verb makes that. Which one it is, its caller says.
#[must_use = "who stores it must be said"]
#[derive(Debug, Default)]
pub(crate) struct Pending(());

impl Pending {
    /// Both of them are pending: what stores the one stores the other.
    pub(crate) fn and(self, _: Self) -> Self {
        self
    }

    /// It is stored by the next [`PgCopy::save`], or by another verb that stores everything, in
    /// this event or in a later one: until then a restart may forget it.
    pub(crate) fn saved_whole(self) {}

    /// It is stored by the next write, as what is in the PG's head or missing set is.
    pub(crate) fn with_next_write(self) {}
}

/// What an activation makes of the primary's own copy.
pub(crate) struct Activated {
    /// The interval in which it is activated, if it has enough members to be written.
    pub(crate) les: Option<Epoch>,
    pub(crate) pg_num: u32,
    /// The newest epochs that any of its members knows.
    pub(crate) lec: Epoch,
    pub(crate) history_les: Epoch,
    /// The newest scrub that any of them knows.
    pub(crate) scrub: Option<ScrubHistory>,
    pub(crate) readers: Vec<Reader>,
    /// The PG begins empty.
    pub(crate) fresh: bool,
}

/// What a primary tells of what all members have reached.
pub(crate) struct History {
    pub(crate) history_les: Epoch,
    pub(crate) lec: Epoch,
    pub(crate) rolled: EVersion,
    pub(crate) scrub: ScrubHistory,
    /// Its counts, and where in the log they are so.
    pub(crate) counted: (EVersion, PgCounts),
    /// Older primaries may still serve reads.
    pub(crate) read: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct PgCopy {
    id: SpgId,
    cfg: Arc<PgConfig>,
    /// What is stored of the PG here; `None`: nothing.
    info: Option<PgInfo>,
    log: PgLog,
    missing: Missing,
    interval: Interval,
    /// Closed intervals since the PG was last known to be clean, those that may have taken writes.
    past: Vec<PastInterval>,
    /// Epoch of the map for which this copy was split or folded last: it is shown none before.
    shaped: Epoch,
    readers: Vec<Reader>,
    /// The highest number of an entry that was given out here.
    issued: u64,
    /// Snapshots that the map has called removed, and calls so no more.
    purged: SnapIntervals,
    record_key: Bytes,
    head_key: Bytes,
}

impl PgCopy {
    /// A PG of which nothing is stored here.
    pub(crate) fn new(id: SpgId, cfg: Arc<PgConfig>) -> Self {
        Self {
            id,
            cfg,
            info: None,
            log: PgLog::default(),
            missing: Missing::default(),
            interval: Interval::default(),
            past: Vec::new(),
            shaped: 0,
            readers: Vec::new(),
            issued: 0,
            purged: SnapIntervals::new(),
            record_key: info_key(id),
            head_key: head_key(id),
        }
    }

    /// A PG as it was stored.
    ///
    /// # Errors
    /// [`DecodeError`] when a record or the log is damaged.
    pub(crate) fn load(
        id: SpgId,
        cfg: Arc<PgConfig>,
        stored: &Stored,
    ) -> Result<Self, DecodeError> {
        let Record { mut info, interval, past, shaped } = from_slice(&stored.record)?;
        if info.pg != id.pg {
            return Err(DecodeError::Value {
                what: "PG record of another PG",
                value: i64::from(info.pg.seed),
            });
        }
        let head: PgHead = from_slice(&stored.head)?;
        // A member's log may begin later than its primary's.
        let tail = head.log_tail.max(info.head.log_tail);
        info.head = PgHead { log_tail: tail, ..head };
        let entries: Vec<LogEntry> =
            stored.log.iter().map(|b| from_slice(b)).collect::<Result<_, _>>()?;
        Ok(Self {
            log: PgLog::new(tail, entries),
            missing: Missing::load(id, stored.missing.iter().cloned())?,
            readers: info.readers.iter().map(|r| (r.osd, r.last, UNKNOWN_MS)).collect(),
            interval,
            past,
            shaped,
            info: Some(info),
            ..Self::new(id, cfg)
        })
    }

    // ---- what it is ----

    pub(crate) fn info(&self) -> Option<&PgInfo> {
        self.info.as_ref()
    }

    pub(crate) fn log(&self) -> &PgLog {
        &self.log
    }

    pub(crate) fn missing(&self) -> &Missing {
        &self.missing
    }

    pub(crate) fn interval(&self) -> &Interval {
        &self.interval
    }

    pub(crate) fn past(&self) -> &[PastInterval] {
        &self.past
    }

    pub(crate) fn shaped(&self) -> Epoch {
        self.shaped
    }

    pub(crate) fn readers(&self) -> &[Reader] {
        &self.readers
    }

    pub(crate) fn purged(&self) -> &SnapIntervals {
        &self.purged
    }

    fn is_erasure(&self) -> bool {
        self.id.shard >= 0
    }

    /// Does it count? One that is being deleted does not.
    fn counts(&self) -> bool {
        self.info.as_ref().is_some_and(|i| i.les > 0)
    }

    // ---- how it is stored ----

    /// The change that stores what every write changes, as it is in memory.
    fn head_op(&self) -> MetaOp {
        let key = self.head_key.clone();
        match &self.info {
            Some(info) => MetaOp::Set { key, value: to_vec(&info.head).into() },
            None => MetaOp::Remove { key },
        }
    }

    /// The changes that store everything but objects and log as it is in memory.
    fn record_ops(&mut self, out: &mut Vec<MetaOp>) {
        let reader = |(osd, last, _): &Reader| OldReader { osd: *osd, last: *last, left_ms: 0 };
        if let Some(info) = &mut self.info {
            info.readers = self.readers.iter().map(reader).collect();
        }
        let key = self.record_key.clone();
        out.push(match &self.info {
            Some(info) => {
                let record = Record {
                    info: info.clone(),
                    interval: self.interval.clone(),
                    past: self.past.clone(),
                    shaped: self.shaped,
                };
                MetaOp::Set { key, value: to_vec(&record).into() }
            }
            None => MetaOp::Remove { key },
        });
        out.push(self.head_op());
        self.missing.take_changes(self.id, out);
    }

    /// What a verb did, where the records are as they were: the missing set may not be.
    fn changed(&mut self, mut txn: Transaction) -> Change {
        self.missing.take_changes(self.id, &mut txn.meta);
        Change { txn }
    }

    /// What a verb did, and everything that is in memory.
    fn whole(&mut self, mut txn: Transaction) -> Change {
        self.record_ops(&mut txn.meta);
        Change { txn }
    }

    /// Stores everything that is in memory.
    pub(crate) fn save(&mut self) -> Change {
        self.whole(Transaction::default())
    }

    /// Stores what is missing, or is so no more, and is not stored yet.
    pub(crate) fn settle(&mut self, _: Pending) -> Change {
        self.changed(Transaction::default())
    }

    fn append_op(&self, e: &LogEntry, entry: Bytes) -> MetaOp {
        MetaOp::LogAppend { pg: self.id.pg, version: e.key(), entry }
    }

    // ---- writes ----

    /// The version of the next entry, never one that was given out before (entries may have been
    /// taken back since). The first of so many, which follow each other.
    pub(crate) fn next_version(&mut self, epoch: Epoch, entries: u64) -> EVersion {
        let newest = self.info.as_ref().map_or(0, |i| i.last_update().version);
        let first = self.issued.max(newest) + 1;
        self.issued = first + entries.max(1) - 1;
        EVersion::new(epoch, first)
    }

    /// Takes a write into the log and the head, with the `objects` that change here: the same at
    /// the primary and at every other member. `lacks` says what is not among them; what was
    /// missing, or is from now on, is recorded in it, too.
    ///
    /// Our own log may begin later than the primary's, never earlier; and what of an erasure-coded
    /// PG can still be taken back is our own matter. All else of the head is the primary's word.
    pub(crate) fn append(
        &mut self,
        record: &WriteRecord,
        objects: Vec<ObjectUpdate>,
        _lacks: Pending,
    ) -> Change {
        let mut txn = Transaction { objects, meta: Vec::with_capacity(2 + record.entries.len()) };
        for e in &record.entries {
            self.log.push(e.entry.clone());
        }
        let told = &record.head;
        let erasure = self.is_erasure();
        if let Some(info) = &mut self.info {
            // Means nothing in a replicated pool.
            let rolled = if erasure { info.head.rolled } else { told.rolled };
            info.head = PgHead { rolled, forgot: info.head.forgot || told.forgot, ..*told };
        }
        // Before the log is trimmed: the entries say which copies go.
        self.roll(told.rolled, &mut txn.objects);
        let forgotten = self.trim(told.log_tail);
        // Nearly always what we store is what the primary made of it.
        let as_told = self.info.as_ref().is_some_and(|i| i.head == *told);
        txn.meta.push(match as_told {
            true => MetaOp::Set { key: self.head_key.clone(), value: record.stored.clone() },
            false => self.head_op(),
        });
        let pg = self.id.pg;
        let entries = record.entries.iter().map(|e| MetaOp::LogAppend {
            pg,
            version: e.entry.version,
            entry: e.stored.clone(),
        });
        txn.meta.extend(entries);
        txn.meta.extend(forgotten.map(|to| MetaOp::LogTrim { pg, to }));
        self.changed(txn)
    }

    /// Trims the log up to `tail`, if it begins before; up to where everything is forgotten then.
    fn trim(&mut self, tail: EVersion) -> Option<EVersion> {
        let mut forgotten = None;
        if tail > self.log.tail() {
            let tracked = if planted!(self.cfg, DupsForgotten) { 0 } else { self.cfg.dups_tracked };
            forgotten = self.log.trim(tail, tracked);
        }
        if let Some(info) = &mut self.info {
            info.head.log_tail = self.log.tail();
            info.head.forgot |= forgotten.is_some();
        }
        forgotten
    }

    /// A read was answered. No transaction is worth that: the next write stores it.
    pub(crate) fn count_read(&mut self, reads: u64, kib: u64) -> Pending {
        if let Some(info) = &mut self.info {
            info.head.counts.reads += reads as i64;
            info.head.counts.read_kb += kib as i64;
        }
        Pending(())
    }

    /// All up to `to` can no more be taken back: its undo copies go.
    pub(crate) fn roll_forward(&mut self, to: EVersion) -> Change {
        let mut txn = Transaction::default();
        self.roll(to, &mut txn.objects);
        txn.meta.push(self.head_op());
        self.changed(txn)
    }

    fn roll(&mut self, to: EVersion, objects: &mut Vec<ObjectUpdate>) {
        let erasure = self.is_erasure();
        let Some(info) = &mut self.info else { return };
        let from = info.head.rolled;
        if !erasure || to <= from {
            return;
        }
        info.head.rolled = to;
        objects.extend(undo::forgotten(&self.log, from, to));
    }

    // ---- what it lacks ----

    /// An object that is here cannot be read: it is lacked in this version until another copy's
    /// content replaces it.
    pub(crate) fn lack(&mut self, object: HObject, version: EVersion) -> Change {
        self.missing.set(object, version, EVersion::default());
        self.changed(Transaction::default())
    }

    /// An entry comes into our log, and we never had what it did.
    pub(crate) fn lack_change(&mut self, entry: &LogEntry) -> Pending {
        let item = MissingItem { need: entry.version, withheld: true, ..MissingItem::default() };
        self.missing.put(entry.object.clone(), item);
        Pending(())
    }

    /// A change is kept from us, because we lack the object that it changes: more of it is lacked.
    /// False if that was not known here.
    pub(crate) fn is_kept_from(&mut self, entry: &LogEntry) -> (bool, Pending) {
        let object = &entry.object;
        // What would be made from an object that we lack is kept from us with it.
        let family = self.missing.from(&object.family_start()).next();
        let made_from = family.is_some_and(|(o, _)| o.is_of_same_object(object));
        let known = self.missing.written(object, entry.version, &entry.dirty, MissingItem::default);
        self.missing.withhold(object);
        (known || made_from, Pending(()))
    }

    /// An object is lacked no more, because it is not wanted any more.
    pub(crate) fn wants_no_more(&mut self, object: &HObject) -> Pending {
        self.missing.remove(object);
        Pending(())
    }

    /// No copy of an object is to be had: an older version is to be the newest, or none (`gone`),
    /// as the write says that follows.
    pub(crate) fn give_up(&mut self, object: &HObject, gone: bool) -> Pending {
        self.missing.remove(object);
        if let Some(info) = self.info.as_mut().filter(|_| gone) {
            let c = &mut info.head.counts;
            c.objects = (c.objects - 1).max(0);
            // How large it was is not known.
            c.estimated = true;
            if c.objects == 0 {
                c.bytes = 0;
            }
        }
        Pending(())
    }

    /// A piece of the copies of these objects is here, the last one or not. A missing object stays
    /// so until the last piece; what it had before is gone with the first.
    pub(crate) fn hold(&mut self, objects: Vec<ObjectUpdate>, last: bool) -> Change {
        for u in &objects {
            if last {
                self.missing.remove(&u.object);
            } else if let Some(i) = self.missing.get(&u.object)
                && i.have != EVersion::default()
            {
                let need = i.need;
                self.missing.set(u.object.clone(), need, EVersion::default());
            }
        }
        self.changed(Transaction { objects, meta: Vec::new() })
    }

    /// A backfill has come so far.
    pub(crate) fn filled_to(&mut self, object: HObject) -> Change {
        if let Some(info) = &mut self.info {
            info.last_backfill = object;
        }
        self.save()
    }

    // ---- peering ----

    /// Writes down the interval that ends before `view`, and begins the `next` one. That is
    /// stored only where there is a copy.
    pub(crate) fn close_interval(
        &mut self,
        next: Interval,
        view: &MapView,
        old: Option<&MapView>,
    ) -> Option<Change> {
        self.write_down(view, old);
        self.interval = next;
        self.info.is_some().then(|| self.save())
    }

    /// The first interval of which anything is known here.
    pub(crate) fn begin_interval(&mut self, first: Interval) -> Pending {
        self.interval = first;
        Pending(())
    }

    fn write_down(&mut self, view: &MapView, old: Option<&MapView>) {
        let Some(info) = &mut self.info else {
            self.past.clear();
            return;
        };
        if view.gap && view.trimmed {
            // The PG was clean in this epoch or later: what was before matters no more.
            info.lec = info.lec.max(view.epoch);
            self.past.clear();
            return;
        }
        let last = match old {
            Some(o) if view.gap => o.epoch,
            _ => view.epoch - 1,
        };
        let seen = old.filter(|_| !view.gap && !planted!(self.cfg, Foretold));
        let closed = self.interval.close(last, seen, info.lec);
        if closed.rw {
            match self.past.last_mut() {
                Some(p)
                    if planted!(self.cfg, LostForever)
                        && p.acting == closed.acting
                        && p.primary == closed.primary =>
                {
                    p.last = closed.last;
                }
                // Whoever must be heard for the later one is heard for the earlier one, too; so an
                // OSD that comes and goes adds no more than the sets it makes. The one that stays
                // begins where the later one begins: who was declared lost before, and came back to
                // take part in it, is waited for.
                _ => {
                    self.past.retain(|p| p.acting != closed.acting || p.primary != closed.primary);
                    self.past.push(closed);
                }
            }
        }
        if view.gap && view.epoch > last + 1 {
            let (first, last) = (last + 1, view.epoch - 1);
            self.past.push(PastInterval {
                first,
                last,
                primary: Peer::NONE,
                rw: true,
                ..PastInterval::default()
            });
        }
        forget_before(&mut self.past, info.lec);
    }

    /// The monitor has accepted the creation that this copy is of.
    pub(crate) fn confirm(&mut self) -> Pending {
        if let Some(info) = &mut self.info {
            info.confirmed = true;
        }
        Pending(())
    }

    /// It is of a creation that was not accepted: it never was the PG's.
    pub(crate) fn drop_creation(&mut self) -> Change {
        self.info = None;
        self.log = PgLog::default();
        self.missing.clear();
        self.save()
    }

    /// A PG begins empty, as `info` says.
    pub(crate) fn begin_empty(&mut self, info: PgInfo) -> Pending {
        self.info = Some(info);
        self.past.clear();
        self.log = PgLog::default();
        self.missing.clear();
        Pending(())
    }

    /// Primary: makes the log of the authoritative copy `auth` ours, of which `entries` were asked
    /// for. `past` is what peering has heard of older intervals. `None` if the logs do not meet.
    pub(crate) fn take_over(
        &mut self,
        auth: &PgInfo,
        entries: Vec<LogEntry>,
        past: &[PastInterval],
        reader: &dyn ObjectReader,
    ) -> Option<(Change, Spoilt)> {
        let theirs = PgLog::new(self.log.tail().max(auth.log_tail()), entries);
        let common = theirs.common(&self.log)?;
        if !self.counts() {
            // We have nothing, and the log tells everything.
            self.log = PgLog::default();
            self.missing.clear();
            let head = PgHead { rolled: EVersion::default(), ..auth.head };
            let last_backfill = HObject::max();
            self.info = Some(PgInfo { les: 0, last_backfill, missing: 0, head, ..auth.clone() });
            self.past = past.to_vec();
        }
        let delta: Vec<LogEntry> = theirs.after(common).cloned().collect();
        let mut txn = Transaction::default();
        txn.meta.push(MetaOp::LogRewind { pg: self.id.pg, to: self.log.kept_to(common) });
        txn.meta.extend(delta.iter().map(|e| self.append_op(e, e.to_bytes())));
        let spoilt = self.merge(common, delta, reader, &mut txn.objects);
        if let Some(info) = &mut self.info {
            // Our tail may lie behind its newest entry where a split left a gap.
            let last_update = auth.last_update().max(self.log.head());
            let (rolled, forgot) = (info.head.rolled, info.head.forgot || auth.head.forgot);
            let log_tail = self.log.tail();
            info.head = PgHead { log_tail, last_update, rolled, forgot, ..auth.head };
            info.les = info.les.max(auth.les);
        }
        Some((self.whole(txn), spoilt))
    }

    /// Merges into log and missing set; adds to `objects` what happens to them.
    fn merge(
        &mut self,
        common: EVersion,
        delta: Vec<LogEntry>,
        reader: &dyn ObjectReader,
        objects: &mut Vec<ObjectUpdate>,
    ) -> Spoilt {
        let last_backfill =
            self.info.as_ref().map_or_else(HObject::max, |i| i.last_backfill.clone());
        #[cfg(feature = "plant-bugs")]
        if planted!(self.cfg, DivergentDeleteKept) || planted!(self.cfg, DeletedComesBack) {
            objects.extend(removals(self.merge_badly(common, delta, &last_backfill)));
            return Spoilt::new();
        }
        let mut undone = Vec::new();
        let undo = self.is_erasure().then_some(&mut undone);
        if undo.is_some() {
            objects.extend(undo::beyond(&self.log, common, &last_backfill));
        }
        let removed = merge(&mut self.log, &mut self.missing, &last_backfill, common, delta, undo);
        if planted!(self.cfg, UndoForgotten) {
            undone.clear();
        }
        let spoilt = undo::undo(self.id.pg, undone, reader, objects);
        for (object, version) in &spoilt {
            // The new history may have changed it, too: then that is the version to have.
            let need = self.missing.get(object).map_or(*version, |i| i.need.max(*version));
            self.missing.set(object.clone(), need, EVersion::default());
        }
        objects.extend(removals(removed));
        spoilt
    }

    #[cfg(feature = "plant-bugs")]
    fn merge_badly(
        &mut self,
        common: EVersion,
        delta: Vec<LogEntry>,
        last: &HObject,
    ) -> std::collections::BTreeSet<HObject> {
        use crate::log::EntryKind::Delete;
        let divergent: Vec<LogEntry> = self.log.after(common).cloned().collect();
        let mut removed = merge(&mut self.log, &mut self.missing, last, common, delta, None);
        if planted!(self.cfg, DivergentDeleteKept) {
            for e in divergent.iter().filter(|e| e.kind == Delete) {
                self.missing.remove(&e.object);
            }
        } else {
            removed.retain(|o| !divergent.iter().any(|e| e.object == *o));
        }
        removed
    }

    /// Primary: it is activated. `leftovers` go with that. `None` without a copy.
    pub(crate) fn activate(
        &mut self,
        a: Activated,
        leftovers: Vec<ObjectUpdate>,
    ) -> Option<Change> {
        self.readers = a.readers;
        let info = self.info.as_mut()?;
        info.les = a.les.unwrap_or(info.les);
        info.pg_num = a.pg_num;
        info.lec = info.lec.max(a.lec);
        info.history_les = info.history_les.max(a.history_les);
        if let Some(newest) = a.scrub
            && (newest.last_stamp, newest.repaired) > (info.scrub.last_stamp, info.scrub.repaired)
        {
            info.scrub = newest;
        }
        let mut txn = Transaction { objects: leftovers, meta: Vec::new() };
        if a.fresh {
            txn.meta.push(MetaOp::LogRemove { pg: self.id.pg });
        }
        Some(self.whole(txn))
    }

    /// Primary: all members are activated; in the interval `served`, if it serves. No older primary
    /// reads any more, unless they are `awaited`.
    pub(crate) fn all_activated(&mut self, served: Option<Epoch>, awaited: bool) -> Change {
        if !awaited {
            self.readers.clear();
        }
        if let (Some(info), Some(since)) = (&mut self.info, served) {
            info.history_les = info.history_les.max(since);
        }
        self.save()
    }

    /// Member: takes over log and history as its primary tells them (`told`, `past`, `log`, whose
    /// entries are `parsed`), and deletes what `remains` of what is not wanted any more. A copy
    /// that is not `own` counts for nothing.
    pub(crate) fn follow(
        &mut self,
        (told, own): (&PgInfo, bool),
        past: Vec<PastInterval>,
        (log, parsed): (LogUpdate, Vec<LogEntry>),
        remains: Vec<ObjectUpdate>,
        reader: &dyn ObjectReader,
    ) -> (Change, Spoilt) {
        let pg = self.id.pg;
        let mut txn = Transaction { objects: remains, meta: Vec::new() };
        let mut spoilt = Spoilt::new();
        let own = self.info.take().filter(|_| own);
        if own.is_none() {
            self.past = past;
        }
        match log {
            LogUpdate::Reset { tail, entries } => {
                txn.meta.push(MetaOp::LogRemove { pg });
                let ops = parsed.iter().zip(entries).map(|(e, entry)| self.append_op(e, entry));
                txn.meta.extend(ops);
                self.log = PgLog::new(tail, parsed);
                self.missing.clear();
                let head = PgHead { rolled: told.last_update(), ..told.head };
                self.info = Some(PgInfo { head, ..told.clone() });
            }
            LogUpdate::After { after, entries } => {
                self.info = Some(self.followed(own, told));
                txn.meta.push(MetaOp::LogRewind { pg, to: self.log.kept_to(after) });
                let ops = parsed.iter().zip(entries).map(|(e, entry)| self.append_op(e, entry));
                txn.meta.extend(ops);
                spoilt = self.merge(after, parsed, reader, &mut txn.objects);
            }
        }
        let (log_tail, head) = (self.log.tail(), self.log.head());
        if let Some(info) = &mut self.info {
            // Our tail may lie behind the newest entry where a split left a gap.
            let last_update = info.last_update().max(head);
            info.head = PgHead { log_tail, last_update, ..info.head };
        }
        (self.whole(txn), spoilt)
    }

    /// The info of a copy, or of one that begins with nothing, that goes on as a primary tells.
    fn followed(&mut self, own: Option<PgInfo>, told: &PgInfo) -> PgInfo {
        let base = own.unwrap_or_else(|| {
            self.log = PgLog::default();
            self.missing.clear();
            let (last_backfill, head) = (HObject::max(), PgHead::default());
            PgInfo { les: 0, last_backfill, head, ..told.clone() }
        });
        let (les, last_backfill, rolled) =
            (base.les.max(told.les), base.last_backfill, base.head.rolled);
        let forgot = base.head.forgot || told.head.forgot;
        let head = PgHead { rolled, forgot, ..told.head };
        PgInfo { last_backfill, les, head, ..told.clone() }
    }

    /// Member: takes over what all have reached. Rolled forward is what all have acknowledged.
    pub(crate) fn note_history(&mut self, h: &History) -> Change {
        let mut txn = Transaction::default();
        if !h.read {
            self.readers.clear();
        }
        if let Some(info) = &mut self.info {
            info.history_les = info.history_les.max(h.history_les);
            info.lec = info.lec.max(h.lec);
            info.confirmed = true;
            info.scrub = h.scrub;
            // Elsewhere in the log they would be wrong; the next write brings them.
            if info.last_update() == h.counted.0 {
                info.head.counts = h.counted.1;
            }
            let known = h.rolled <= info.last_update();
            forget_before(&mut self.past, info.lec);
            if known {
                self.roll(h.rolled, &mut txn.objects);
            }
        }
        self.whole(txn)
    }

    /// The PG is clean: what was before matters no more.
    pub(crate) fn is_clean(&mut self, epoch: Epoch) -> Change {
        if let Some(info) = &mut self.info {
            info.lec = epoch;
        }
        self.past.clear();
        self.save()
    }

    /// These may still serve reads as primaries of older intervals.
    pub(crate) fn read_by(&mut self, readers: Vec<Reader>) -> Pending {
        self.readers = readers;
        Pending(())
    }

    /// No older primary reads any more.
    pub(crate) fn read_by_nobody(&mut self) -> Change {
        self.readers.clear();
        self.save()
    }

    // ---- scrub, snapshots ----

    /// A scrub has ended, and may have corrected what is counted.
    pub(crate) fn scrubbed(&mut self, counts: PgCounts, history: ScrubHistory) -> Change {
        if let Some(info) = &mut self.info {
            (info.head.counts, info.scrub) = (counts, history);
        }
        self.save()
    }

    /// A member's copy of an object is whole again. `deep`: the last scrub had found it bad, by
    /// reading or not.
    pub(crate) fn repaired(&mut self, deep: Option<bool>) -> Change {
        if let Some(info) = &mut self.info {
            let s = &mut info.scrub;
            s.repaired += 1;
            match deep {
                Some(true) => s.deep_errors = s.deep_errors.saturating_sub(1),
                Some(false) => s.shallow_errors = s.shallow_errors.saturating_sub(1),
                None => {}
            }
        }
        self.save()
    }

    /// These snapshots are purged; as many intervals of them are remembered, the newest. It is not
    /// stored.
    pub(crate) fn note_purged(&mut self, gone: &SnapIntervals, most: usize) {
        self.purged.union(gone);
        while self.purged.count() > most {
            let oldest = self.purged.intervals().next();
            let Some((first, n)) = oldest else { return };
            self.purged.remove(first, n);
        }
    }

    // ---- more of them, and fewer ----

    /// Splits it for the pool of `pg_num` PGs in the map of `epoch` into these PGs, the first of
    /// which is its own, with what each of them counts; the copies of the others.
    pub(crate) fn split(
        &mut self,
        parts: &[(PgId, PgCounts)],
        (epoch, pg_num): (Epoch, u32),
    ) -> (Change, Vec<Self>) {
        let mut txn = Transaction::default();
        let mut children = Vec::new();
        let mut logs = self.split_log(pg_num);
        let Some(info) = self.info.clone() else { return (Change::default(), children) };
        self.shaped = epoch;
        let count = parts.len() as u32;
        for ((id, counts), part) in parts.iter().zip(0..) {
            let entries = logs.remove(id).unwrap_or_default();
            txn.meta.push(MetaOp::LogRemove { pg: *id });
            for e in &entries {
                txn.meta.push(MetaOp::LogAppend { pg: *id, version: e.key(), entry: e.to_bytes() });
            }
            let tail = tail_after_split(self.is_erasure(), &info, &entries);
            let log = PgLog::new(tail, entries);
            // Its own newest entry, so that positions can be compared with other copies'.
            let head =
                PgHead { last_update: log.head(), log_tail: tail, counts: *counts, ..info.head };
            let scrub = info.scrub.part(part, count);
            let info = PgInfo { pg: *id, pg_num, head, scrub, ..info.clone() };
            if *id == self.id.pg {
                (self.info, self.log) = (Some(info), log);
                self.record_ops(&mut txn.meta);
            } else {
                let missing = self.missing.split_off(|o| o.pg(pg_num) == *id);
                let mut child = self.child(*id, info, log, missing);
                child.record_ops(&mut txn.meta);
                children.push(child);
            }
        }
        // What moved to children is gone from the parent's missing set.
        (self.changed(txn), children)
    }

    /// Its log's entries, those first that only remember requests, by the PG that each goes to.
    fn split_log(&self, pg_num: u32) -> BTreeMap<PgId, Vec<LogEntry>> {
        let mut logs: BTreeMap<PgId, Vec<LogEntry>> = BTreeMap::new();
        let dups = self.log.dups().cloned().map(|d| d.to_entry(self.id.pg.pool));
        for e in dups.chain(self.log.iter().cloned()) {
            logs.entry(e.object.pg(pg_num)).or_default().push(e);
        }
        logs
    }

    fn child(&self, id: PgId, info: PgInfo, log: PgLog, missing: Missing) -> Self {
        Self {
            info: Some(info),
            log,
            missing,
            shaped: self.shaped,
            past: self.past.clone(),
            interval: self.interval.clone(),
            readers: self.readers.clone(),
            ..Self::new(SpgId::new(id, self.id.shard), self.cfg.clone())
        }
    }

    /// Folds `sources`, each with the newest map that it has seen, into this one for the pool of
    /// `pg_num` PGs in the map of `epoch`; nothing is left of them. `good`: all of them are what
    /// was to be merged, and their common history ends so. If they are not, this copy is void.
    pub(crate) fn fold(
        &mut self,
        mut sources: Vec<(&mut Self, Option<&MapView>)>,
        good: Option<EVersion>,
        (epoch, pg_num): (Epoch, u32),
    ) -> Change {
        let mut txn = Transaction::default();
        // Nothing of a good copy will be taken back, and of any other nothing counts: undo copies
        // go.
        for copy in sources.iter_mut().map(|(s, _)| &mut **s).chain([&mut *self]) {
            let all = copy.info.as_ref().map(PgInfo::last_update);
            all.into_iter().for_each(|to| copy.roll(to, &mut txn.objects));
        }
        for (s, view) in sources {
            if let Some(at) = good {
                self.take_in(s, view, at);
            } else if let (None, Some(theirs)) = (&self.info, &s.info) {
                self.info = Some(PgInfo { pg: self.id.pg, ..theirs.clone() });
            }
            s.info = None;
            s.missing.clear();
            s.record_ops(&mut txn.meta);
            txn.meta.push(MetaOp::LogRemove { pg: s.id.pg });
        }
        txn.meta.push(MetaOp::LogRemove { pg: self.id.pg });
        if good.is_none() {
            self.make_void();
        } else {
            let entries = self.log.dups().cloned().map(|d| d.to_entry(self.id.pg.pool));
            txn.meta.extend(entries.map(|e| self.append_op(&e, e.to_bytes())));
        }
        if let Some(info) = &mut self.info {
            info.pg_num = pg_num;
        }
        self.shaped = epoch;
        self.whole(txn)
    }

    /// Makes the histories of two good copies one, which ends at `at`.
    fn take_in(&mut self, s: &mut Self, view: Option<&MapView>, at: EVersion) {
        let epoch = at.epoch;
        let (Some(info), Some(theirs)) = (&mut self.info, &s.info) else { return };
        let forgetful = planted!(self.cfg, FoldForgetsRequests);
        let (log, forgot) = self.log.folded(
            (!forgetful).then_some((&s.log, s.id.pg.seed)),
            at,
            self.id.pg.pool,
            self.cfg.dups_tracked,
        );
        self.log = log;
        info.head = PgHead {
            last_update: at,
            log_tail: at,
            last_user_version: info.head.last_user_version.max(theirs.head.last_user_version),
            counts: sum(&info.head.counts, &theirs.head.counts),
            rolled: at,
            forgot: forgot || info.head.forgot || theirs.head.forgot,
        };
        info.les = epoch - 1;
        info.history_les = info.history_les.min(theirs.history_les);
        info.lec = info.lec.min(theirs.lec);
        info.scrub = info.scrub.joined(&theirs.scrub);
        for (object, item) in s.missing.iter() {
            self.missing.put(object.clone(), item.clone());
        }
        let closed = s.interval.close(epoch - 1, view, theirs.lec);
        self.past.append(&mut s.past);
        self.past.extend(closed.rw.then_some(closed));
        self.past.sort_by_key(|i| (i.first, i.last));
        self.past.dedup();
        self.readers.append(&mut s.readers);
    }

    /// From here on this copy counts for nothing, even after a restart.
    fn make_void(&mut self) {
        self.log = PgLog::default();
        self.missing.clear();
        self.past.clear();
        if let Some(info) = &mut self.info {
            *info = PgInfo {
                pg: info.pg,
                pg_num: info.pg_num,
                created: info.created,
                origin: info.origin,
                creation: info.creation,
                last_backfill: HObject::min(),
                ..PgInfo::default()
            };
        }
    }

    // ---- its end ----

    /// It is to be deleted, and counts for nothing from here on.
    pub(crate) fn void(&mut self) -> Change {
        self.make_void();
        let mut change = self.save();
        change.txn.meta.push(MetaOp::LogRemove { pg: self.id.pg });
        change
    }

    /// Its last object is deleted: nothing is stored of it.
    pub(crate) fn is_gone(&mut self) -> Change {
        self.info = None;
        // A read that failed meanwhile may have found something bad.
        self.missing.clear();
        // It came from no split any more.
        self.shaped = 0;
        self.save()
    }

    /// The store holds this and will never hold what came after; what is known of intervals stays.
    /// The change stores that anew, if there is a copy.
    pub(crate) fn fall_back(&mut self, held: Self) -> Option<Change> {
        if !planted!(self.cfg, RefusedKept) {
            (self.info, self.log, self.missing) = (held.info, held.log, held.missing);
        }
        if self.info.is_none() {
            self.past.clear();
            return None;
        }
        Some(self.save())
    }
}

/// Where the log of a PG that comes out of a split begins, given its entries. The parent's
/// tail may lie behind all that other members have of this part, because what was there went
/// to a sibling, and then it would look as if they lacked something; so it is the part's own
/// newest trimmed entry, as far as that is remembered. If there is none, the log reaches back
/// to the beginning in an erasure-coded PG that remembers all that was ever made, where those
/// members are needed; a replicated one finds among its members who can go on
/// ([`choose`](crate::peering)).
fn tail_after_split(erasure: bool, info: &PgInfo, entries: &[LogEntry]) -> EVersion {
    let tail = info.log_tail();
    let trimmed = entries.iter().map(|e| e.version).filter(|v| *v <= tail).max();
    let remembers_all = erasure && !info.head.forgot;
    trimmed.unwrap_or(if remembers_all { EVersion::default() } else { tail })
}

fn sum(a: &PgCounts, b: &PgCounts) -> PgCounts {
    PgCounts {
        objects: a.objects + b.objects,
        bytes: a.bytes + b.bytes,
        omap_objects: a.omap_objects + b.omap_objects,
        omap_keys: a.omap_keys + b.omap_keys,
        omap_bytes: a.omap_bytes + b.omap_bytes,
        reads: a.reads + b.reads,
        read_kb: a.read_kb + b.read_kb,
        writes: a.writes + b.writes,
        written_kb: a.written_kb + b.written_kb,
        estimated: a.estimated || b.estimated,
        clones: a.clones + b.clones,
        whiteouts: a.whiteouts + b.whiteouts,
    }
}

/// Updates that delete these objects.
pub(crate) fn removals(objects: impl IntoIterator<Item = HObject>) -> Vec<ObjectUpdate> {
    objects.into_iter().map(|object| ObjectUpdate { object, ops: vec![ObjectOp::Remove] }).collect()
}

#[cfg(test)]
mod tests;
