//! What the changes of any sequence of verbs have stored is the copy.
//!
//! Not compared, because they are not stored: until when older primaries read, purged snapshots,
//! and the highest number that was given out.

use super::*;
use crate::exec::tests::{MemStore, object};
use crate::log::EntryKind;
use crate::missing_prefix;
use proptest::prelude::*;
use spirula_encoding::UTime;
use spirula_messages::cluster::write::Logged;
use spirula_types::{Dirty, EntityName, ReqId};

const OSD: OsdId = 3;

/// The keys and logs of a store.
#[derive(Clone, Default)]
struct Keys {
    records: BTreeMap<Bytes, Bytes>,
    logs: BTreeMap<PgId, BTreeMap<EVersion, Bytes>>,
}

impl Keys {
    fn apply(&mut self, change: Change) {
        for op in change.into_transaction().meta {
            match op {
                MetaOp::Set { key, value } => drop(self.records.insert(key, value)),
                MetaOp::Remove { key } => drop(self.records.remove(&key)),
                MetaOp::LogAppend { pg, version, entry } => {
                    self.logs.entry(pg).or_default().insert(version, entry);
                }
                MetaOp::LogTrim { pg, to } => {
                    self.logs.entry(pg).or_default().retain(|v, _| *v > to);
                }
                MetaOp::LogRewind { pg, to } => {
                    self.logs.entry(pg).or_default().retain(|v, _| *v <= to);
                }
                MetaOp::LogRemove { pg } => drop(self.logs.remove(&pg)),
            }
        }
    }

    fn stored(&self, id: SpgId) -> Stored {
        let record = |key: Bytes| self.records.get(&key).cloned().unwrap_or_default();
        let prefix = missing_prefix(id);
        let missing = self.records.iter().filter(|(k, _)| k.starts_with(&prefix));
        let log = self.logs.get(&id.pg).into_iter().flat_map(|l| l.values().cloned());
        Stored {
            record: record(info_key(id)),
            head: record(head_key(id)),
            log: log.collect(),
            missing: missing.map(|(k, v)| (k.clone(), v.clone())).collect(),
        }
    }

    /// Is this what is stored?
    fn hold(&self, copy: &PgCopy) {
        let stored = self.stored(copy.id);
        let Some(info) = &copy.info else {
            assert!(stored.record.is_empty() && stored.head.is_empty());
            assert!(stored.missing.is_empty() && copy.missing.is_empty());
            return;
        };
        let held = PgCopy::load(copy.id, copy.cfg.clone(), &stored).unwrap();
        assert_eq!(held.info.as_ref(), Some(info));
        assert_eq!(held.missing, copy.missing);
        assert_eq!(held.interval, copy.interval);
        assert_eq!(held.past, copy.past);
        assert_eq!(held.shaped, copy.shaped);
        let whose = |c: &PgCopy| c.readers.iter().map(|r| (r.0, r.1)).collect::<Vec<_>>();
        assert_eq!(whose(&held), whose(copy));
        assert_eq!(held.log.tail(), copy.log.tail());
        assert!(held.log.iter().eq(copy.log.iter()), "{:?}\n{:?}", held.log, copy.log);
        assert!(held.log.dups().eq(copy.log.dups()), "{:?}\n{:?}", held.log, copy.log);
    }
}

#[derive(Clone, Copy, Debug)]
enum Verb {
    Append,
    KeptFrom,
    LackChange,
    WantsNoMore,
    GiveUp,
    CountRead,
    RollForward,
    Lack,
    Hold,
    FilledTo,
    CloseInterval,
    BeginInterval,
    Confirm,
    DropCreation,
    BeginEmpty,
    TakeOver,
    Activate,
    AllActivated,
    FollowReset,
    FollowAfter,
    Begin,
    NoteHistory,
    IsClean,
    ReadBy,
    ReadByNobody,
    Scrubbed,
    Repaired,
    NotePurged,
    Split,
    Fold,
    Void,
    Gone,
    FallBack,
}

const VERBS: &[Verb] = {
    use Verb::*;
    &[
        Append,
        Append,
        Append,
        Append,
        Append,
        Append,
        KeptFrom,
        LackChange,
        WantsNoMore,
        GiveUp,
        CountRead,
        RollForward,
        Lack,
        Lack,
        Hold,
        FilledTo,
        CloseInterval,
        BeginInterval,
        Confirm,
        DropCreation,
        BeginEmpty,
        TakeOver,
        TakeOver,
        Activate,
        AllActivated,
        FollowReset,
        FollowAfter,
        FollowAfter,
        Begin,
        NoteHistory,
        IsClean,
        ReadBy,
        ReadByNobody,
        Scrubbed,
        Repaired,
        NotePurged,
        Split,
        Fold,
        Void,
        Gone,
        FallBack,
    ]
};

/// A copy, the children that were split from it, and what is stored of all of them.
struct World {
    copy: PgCopy,
    children: Vec<PgCopy>,
    keys: Keys,
    epoch: Epoch,
    requests: u64,
    arg: u32,
}

impl World {
    fn new(shard: i8) -> Self {
        let cfg = PgConfig { dups_tracked: 4, ..PgConfig::default() };
        let mut w = Self {
            copy: PgCopy::new(SpgId::new(PgId::new(1, 0), shard), Arc::new(cfg)),
            children: Vec::new(),
            keys: Keys::default(),
            epoch: 2,
            requests: 0,
            arg: 0,
        };
        w.begin();
        w
    }

    /// A number below `n`.
    fn draw(&mut self, n: u32) -> u32 {
        self.arg = self.arg.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.arg >> 8) % n
    }

    fn object(&mut self) -> HObject {
        object(["a", "b", "c", "d", "e"][self.draw(5) as usize])
    }

    fn now(&self) -> UTime {
        UTime { sec: self.epoch, nsec: 0 }
    }

    fn entry(&mut self, version: EVersion) -> LogEntry {
        self.requests += 1;
        let kinds = [EntryKind::Modify, EntryKind::Modify, EntryKind::Delete, EntryKind::Nothing];
        let object = self.object();
        let prior = self.copy.log.last_made(&object).unwrap_or_default();
        LogEntry {
            version,
            prior,
            user_version: version.version,
            reqid: ReqId { name: EntityName::client(4), tid: self.requests, inc: 0 },
            result: 0,
            kind: kinds[self.draw(4) as usize],
            object,
            mtime: UTime::ZERO,
            home: 0,
            dirty: Dirty::All,
            returns: Vec::new(),
        }
    }

    /// Entries after this one, in a new epoch.
    fn entries_after(&mut self, v: EVersion) -> Vec<LogEntry> {
        self.epoch += 1;
        let n = u64::from(self.draw(4));
        (1..=n).map(|i| self.entry(EVersion::new(self.epoch, v.version + i))).collect()
    }

    /// A position of the log.
    fn position(&mut self) -> EVersion {
        let at = self.draw(1 + self.copy.log.len() as u32) as usize;
        self.copy.log.iter().map(|e| e.version).nth(at).unwrap_or(self.copy.log.tail())
    }

    /// Each split makes one child, the newest of which is folded first.
    fn pg_num(&self) -> u32 {
        1 << self.children.len()
    }

    fn has(&self) -> bool {
        self.copy.info.as_ref().is_some_and(|i| i.les > 0)
    }

    fn begin(&mut self) {
        let id = self.copy.id.pg;
        let (pg_num, last_backfill) = (self.pg_num(), HObject::max());
        let info = PgInfo { pg: id, origin: id, pg_num, last_backfill, ..PgInfo::default() };
        self.copy.begin_empty(info).saved_whole();
        self.activate(true);
    }

    fn activate(&mut self, fresh: bool) {
        let pg_num = self.pg_num();
        let scrub = ScrubHistory { last_stamp: self.now(), repaired: 2, ..Default::default() };
        let a = Activated {
            les: (fresh || self.draw(2) == 0).then_some(self.epoch),
            pg_num,
            lec: self.draw(self.epoch),
            history_les: self.draw(self.epoch),
            scrub: Some(scrub),
            readers: self.readers(),
            fresh,
        };
        let change = self.copy.activate(a, Vec::new()).unwrap();
        self.keys.apply(change);
    }

    fn readers(&mut self) -> Vec<Reader> {
        (0..self.draw(3)).map(|i| (i as OsdId, self.epoch, 17)).collect()
    }

    /// A write with what is pending; the change that stores it.
    fn write(&mut self, lacks: Pending) -> Change {
        let n = u64::from(1 + self.draw(3));
        let first = self.copy.next_version(self.epoch, n);
        let versions = (0..n).map(|i| EVersion::new(first.epoch, first.version + i));
        let entries: Vec<Logged> = versions.map(|v| Logged::new(self.entry(v))).collect();
        let mut head = self.copy.info.as_ref().map(|i| i.head).unwrap_or_default();
        head.last_update = entries.last().unwrap().entry.version;
        head.counts.writes += 1;
        head.rolled = head.rolled.max(self.position());
        if self.draw(3) == 0 {
            head.log_tail = self.position().max(head.log_tail);
        }
        self.copy.append(&WriteRecord::new(head, entries), Vec::new(), lacks)
    }

    fn told(&mut self, entries: &[LogEntry], tail: EVersion) -> PgInfo {
        let id = self.copy.id.pg;
        let last_update = entries.last().map_or(tail, |e| e.version);
        let head = PgHead { last_update, log_tail: tail, ..PgHead::default() };
        PgInfo {
            pg: id,
            origin: id,
            pg_num: self.pg_num(),
            les: self.epoch,
            last_backfill: HObject::max(),
            head,
            readers: vec![OldReader { osd: 4, last: 1, left_ms: 12 }],
            ..PgInfo::default()
        }
    }

    fn take_over(&mut self) {
        let at = self.position();
        let ours: Vec<LogEntry> =
            self.copy.log.iter().take_while(|e| e.version <= at).cloned().collect();
        let entries = [ours, self.entries_after(at)].concat();
        let auth = self.told(&entries, self.copy.log.tail());
        let (change, _) = self.copy.take_over(&auth, entries, &[], &MemStore::default()).unwrap();
        self.keys.apply(change);
    }

    fn follow(&mut self, reset: bool, own: bool) {
        let at = if own { self.position() } else { EVersion::default() };
        let entries = self.entries_after(at);
        let told = self.told(&entries, at);
        let bytes = entries.iter().map(LogEntry::to_bytes).collect();
        let log = match reset {
            true => {
                // Some of them only remember requests.
                let tail = entries.first().map_or(at, |e| e.version);
                LogUpdate::Reset { tail, entries: bytes }
            }
            false => LogUpdate::After { after: at, entries: bytes },
        };
        let reader = MemStore::default();
        let (change, _) =
            self.copy.follow((&told, own), Vec::new(), (log, entries), Vec::new(), &reader);
        self.keys.apply(change);
    }

    fn next_interval(&mut self) {
        self.epoch += 1;
        let acting = Peer::members(&[OSD, self.draw(3) as OsdId], false);
        let primary = acting[0];
        let view = MapView {
            epoch: self.epoch,
            up: acting.clone(),
            acting,
            primary,
            up_primary: primary,
            gap: self.draw(4) == 0,
            trimmed: self.draw(2) == 0,
            ..MapView::default()
        };
        let next = Interval::of(0, &view, view.epoch);
        if let Some(change) = self.copy.close_interval(next, &view, None) {
            self.keys.apply(change);
        }
    }

    fn split(&mut self) {
        let from = self.pg_num();
        if from >= 8 {
            return;
        }
        self.epoch += 1;
        let ids = crate::children_of(self.copy.id.pg, from, from * 2);
        let ids = std::iter::once(self.copy.id.pg).chain(ids);
        let parts: Vec<_> = ids.map(|id| (id, PgCounts::default())).collect();
        let (change, children) = self.copy.split(&parts, (self.epoch, from * 2));
        self.keys.apply(change);
        self.children.extend(children);
    }

    fn fold(&mut self) {
        let Some(mut child) = self.children.pop() else { return };
        self.epoch += 1;
        let all = [&self.copy, &child].map(|c| c.log.head().version);
        let at = EVersion::new(self.epoch, all.into_iter().max().unwrap() + 1);
        let good = (self.draw(2) == 0 && self.has()).then_some(at);
        let change = self.copy.fold(vec![(&mut child, None)], good, (self.epoch, self.pg_num()));
        self.keys.apply(change);
        self.keys.hold(&child);
    }

    fn save(&mut self, pending: Pending) {
        pending.saved_whole();
        let change = self.copy.save();
        self.keys.apply(change);
    }

    /// What happens to what is lacked is stored with a write, or at once.
    fn lacks(&mut self, pending: Pending) {
        let change = match self.draw(2) {
            0 => self.copy.settle(pending),
            _ => self.write(pending),
        };
        self.keys.apply(change);
    }

    fn on_object(&mut self, verb: Verb) {
        let object = self.object();
        let item = self.copy.missing.get(&object).cloned();
        match verb {
            Verb::KeptFrom => {
                let entry = self.entry(EVersion::new(self.epoch, 1000));
                let (_, pending) = self.copy.is_kept_from(&entry);
                self.lacks(pending);
            }
            Verb::LackChange => {
                let entry = self.entry(EVersion::new(self.epoch, 1000));
                let pending = self.copy.lack_change(&entry);
                self.lacks(pending);
            }
            Verb::WantsNoMore => {
                let pending = self.copy.wants_no_more(&object);
                self.lacks(pending);
            }
            Verb::GiveUp => {
                let gone = self.draw(2) == 0;
                let pending = self.copy.give_up(&object, gone);
                let change = self.write(pending);
                self.keys.apply(change);
            }
            Verb::Hold if item.is_some() => {
                let last = self.draw(2) == 0;
                let change = self.copy.hold(vec![ObjectUpdate { object, ops: Vec::new() }], last);
                self.keys.apply(change);
            }
            _ => {
                let change = self.copy.lack(object, self.copy.log.head());
                self.keys.apply(change);
            }
        }
    }

    /// Those that are there for a copy that counts.
    fn on_copy(&mut self, verb: Verb) {
        let change = match verb {
            Verb::Append => self.write(Pending::default()),
            Verb::CountRead => {
                let pending = self.copy.count_read(1, 4);
                self.write(pending)
            }
            Verb::RollForward => {
                let to = self.position();
                self.copy.roll_forward(to)
            }
            Verb::FilledTo => {
                let object = self.object();
                self.copy.filled_to(object)
            }
            Verb::AllActivated => {
                let served = (self.draw(2) == 0).then_some(self.epoch);
                let awaited = self.draw(2) == 0;
                self.copy.all_activated(served, awaited)
            }
            Verb::NoteHistory => {
                let h = History {
                    history_les: self.draw(self.epoch),
                    lec: self.draw(self.epoch),
                    rolled: self.position(),
                    scrub: ScrubHistory { shallow_errors: 2, ..Default::default() },
                    counted: (self.position(), PgCounts { objects: 7, ..Default::default() }),
                    read: self.draw(2) == 0,
                };
                self.copy.note_history(&h)
            }
            Verb::IsClean => self.copy.is_clean(self.epoch),
            Verb::Scrubbed => {
                let history = ScrubHistory { deep_errors: 3, ..Default::default() };
                self.copy.scrubbed(PgCounts { bytes: 5, ..Default::default() }, history)
            }
            Verb::Repaired => {
                let deep = [None, Some(false), Some(true)][self.draw(3) as usize];
                self.copy.repaired(deep)
            }
            // The store refuses a write.
            _ => {
                drop(self.write(Pending::default()));
                let stored = self.keys.stored(self.copy.id);
                let held = PgCopy::load(self.copy.id, self.copy.cfg.clone(), &stored).unwrap();
                self.copy.fall_back(held).unwrap()
            }
        };
        self.keys.apply(change);
    }

    fn step(&mut self, verb: Verb) {
        match verb {
            Verb::TakeOver => self.take_over(),
            Verb::Begin => self.follow(false, false),
            Verb::CloseInterval => self.next_interval(),
            Verb::BeginInterval => {
                let first = Interval { since: self.epoch, ..Interval::default() };
                let pending = self.copy.begin_interval(first);
                self.save(pending);
            }
            Verb::Confirm => {
                let pending = self.copy.confirm();
                self.save(pending);
            }
            Verb::ReadBy => {
                let readers = self.readers();
                let pending = self.copy.read_by(readers);
                self.save(pending);
            }
            Verb::ReadByNobody => {
                let change = self.copy.read_by_nobody();
                self.keys.apply(change);
            }
            Verb::NotePurged => {
                let mut gone = SnapIntervals::new();
                gone.insert(u64::from(self.draw(9)), 1);
                self.copy.note_purged(&gone, 3);
            }
            Verb::Void | Verb::Gone => {
                let change = self.copy.void();
                self.keys.apply(change);
                if matches!(verb, Verb::Gone) {
                    let change = self.copy.is_gone();
                    self.keys.apply(change);
                }
            }
            Verb::Fold => self.fold(),
            // A creation was dropped, or there is none yet.
            Verb::BeginEmpty if !self.has() => self.begin(),
            _ if !self.has() => {}
            Verb::DropCreation if self.copy.log.dups().next().is_none() => {
                if self.copy.log.is_empty() {
                    let change = self.copy.drop_creation();
                    self.keys.apply(change);
                }
            }
            Verb::Activate => self.activate(false),
            Verb::FollowReset => self.follow(true, true),
            Verb::FollowAfter => self.follow(false, true),
            Verb::Split => self.split(),
            Verb::KeptFrom
            | Verb::LackChange
            | Verb::WantsNoMore
            | Verb::GiveUp
            | Verb::Lack
            | Verb::Hold => self.on_object(verb),
            Verb::BeginEmpty | Verb::DropCreation => {}
            _ => self.on_copy(verb),
        }
    }

    /// The store refuses what was submitted since `before`.
    fn refuse(&mut self, before: Keys) {
        let (id, cfg) = (self.copy.id, self.copy.cfg.clone());
        let stored = before.stored(id);
        let held = match stored.record.is_empty() {
            true => PgCopy::new(id, cfg),
            false => PgCopy::load(id, cfg, &stored).unwrap(),
        };
        self.keys = before;
        if let Some(change) = self.copy.fall_back(held) {
            self.keys.apply(change);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn prop_what_is_stored_is_the_copy(
        shard in prop::sample::select(vec![-1i8, 2]),
        steps in prop::collection::vec((prop::sample::select(VERBS), any::<u32>()), 1..60),
    ) {
        let mut w = World::new(shard);
        for (verb, arg) in steps {
            w.arg = arg;
            let before = w.keys.clone();
            let shaped = w.copy.shaped;
            w.step(verb);
            // Some are refused, where the PG may fall back then.
            let splits = matches!(verb, Verb::Split | Verb::Fold | Verb::NotePurged);
            if arg % 5 == 0 && !splits && can_fall_back(&w.copy, shaped, &before) {
                w.refuse(before);
            }
            if w.copy.info.is_none() {
                let log = w.keys.logs.get(&w.copy.id.pg);
                assert!(log.is_none_or(BTreeMap::is_empty), "a log is stored of nothing");
                let none = w.copy.log.is_empty() && w.copy.log.dups().next().is_none();
                assert!(none, "there is a log of nothing");
            }
            w.keys.hold(&w.copy);
            w.children.iter().for_each(|c| w.keys.hold(c));
        }
    }
}

/// Can the copy fall back to what was stored `before`? As `Pg::can_fall_back` says.
fn can_fall_back(copy: &PgCopy, shaped: Epoch, before: &Keys) -> bool {
    let stored = before.stored(copy.id);
    if stored.record.is_empty() {
        return copy.shaped == 0;
    }
    let pg_num = stored.info().ok().map(|i| i.pg_num);
    copy.shaped == shaped && copy.info.as_ref().is_none_or(|i| Some(i.pg_num) == pg_num)
}

/// A copy that is void, of which an object was found bad all the same; `gone`: its end has come.
fn voided(gone: bool) -> World {
    let mut w = World::new(-1);
    let change = w.write(Pending::default());
    w.keys.apply(change);
    let change = w.copy.void();
    w.keys.apply(change);
    let change = w.copy.lack(object("a"), EVersion::new(1, 1));
    w.keys.apply(change);
    if gone {
        let change = w.copy.is_gone();
        w.keys.apply(change);
    }
    w
}

#[test]
fn nothing_is_left_of_what_is_gone() {
    let w = voided(true);
    w.keys.hold(&w.copy);
}

#[test]
fn a_void_copy_that_takes_over_a_log_or_begins_anew_lacks_nothing_of_before() {
    let mut w = voided(false);
    w.take_over();
    w.keys.hold(&w.copy);
    let mut w = voided(false);
    w.follow(false, false);
    w.keys.hold(&w.copy);
}

#[test]
fn a_copy_falls_back_from_what_it_lacked_and_got() {
    let mut w = World::new(-1);
    let change = w.write(Pending::default());
    w.keys.apply(change);
    let change = w.copy.lack(object("a"), EVersion::new(1, 1));
    w.keys.apply(change);
    let before = w.keys.clone();
    drop(w.copy.lack(object("b"), EVersion::new(1, 1)));
    drop(w.copy.hold(vec![ObjectUpdate { object: object("a"), ops: Vec::new() }], true));
    w.refuse(before);
    w.keys.hold(&w.copy);
    assert!(w.copy.missing.contains(&object("a")) && !w.copy.missing.contains(&object("b")));
}

/// A change that cannot be taken back, of an object that the new history changes, too: the newer
/// version is what is needed.
#[test]
fn what_cannot_be_undone_is_lacked_in_the_version_that_the_new_history_gives_it() {
    let mut w = World::new(1);
    let entry = |w: &mut World, v: EVersion, prior: EVersion| {
        let kind = EntryKind::Modify;
        LogEntry { kind, object: object("a"), prior, ..w.entry(v) }
    };
    let (v1, v2, v3) = (EVersion::new(2, 1), EVersion::new(2, 2), EVersion::new(3, 2));
    for (v, prior) in [(v1, EVersion::default()), (v2, v1)] {
        let e = entry(&mut w, v, prior);
        let head = PgHead { last_update: v, ..w.copy.info.as_ref().unwrap().head };
        let record = WriteRecord::new(head, vec![Logged::new(e)]);
        let change = w.copy.append(&record, Vec::new(), Pending::default());
        w.keys.apply(change);
    }
    let e = entry(&mut w, v3, v1);
    let mut auth = w.told(std::slice::from_ref(&e), v1);
    auth.head.log_tail = EVersion::default();
    let first = w.copy.log.at(v1).unwrap().clone();
    let (change, spoilt) =
        w.copy.take_over(&auth, vec![first, e], &[], &MemStore::default()).unwrap();
    w.keys.apply(change);
    assert_eq!(spoilt.len(), 1);
    assert_eq!(w.copy.missing.get(&object("a")).map(|i| i.need), Some(v3));
    w.keys.hold(&w.copy);
}
