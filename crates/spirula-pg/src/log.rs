//! The log of a PG: what was done lately, in which order, for whom.
//!
//! Two uses: a resent request is found here and answered instead of applied, and two copies
//! of a PG are compared by their logs instead of object by object. Holds every entry after
//! [`PgLog::tail`], and before that what is needed to answer resends ([`Dup`]), up to a bound.
//! Entries at or before the tail were committed on every acting member, so they are part of
//! every later history. In the store both are log entries; the tail tells which is which.

use bytes::Bytes;
use spirula_encoding::{DecodeError, UTime, from_slice};
use spirula_messages::cluster::entry::key_of;
pub use spirula_messages::cluster::entry::{EntryKind, LogEntry, OpReturn};
use spirula_types::{Dirty, EVersion, HObject, Peer, PgId, PoolId, ReqId};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// What is remembered of a request whose entry is trimmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dup {
    /// The entry's version.
    pub version: EVersion,
    /// The request.
    pub reqid: ReqId,
    /// User version it gave.
    pub user_version: u64,
    /// Its result.
    pub result: i32,
    /// Hash of its object.
    pub hash: u32,
    /// As in [`LogEntry`].
    pub home: u32,
    /// As in [`LogEntry`].
    pub returns: Vec<OpReturn>,
}

/// With what the PG writes of its own (clones, trims) a log remembers so many times as many entries
/// as requests, at most.
const WITH_OWN: usize = 4;

impl Dup {
    /// Is it of a write of the PG's own, which nobody sends again?
    fn is_nobodys(&self) -> bool {
        self.reqid == ReqId::default()
    }

    fn of(e: &LogEntry) -> Self {
        Self {
            version: e.version,
            reqid: e.reqid,
            user_version: e.user_version,
            result: e.result,
            hash: e.object.hash,
            home: e.home,
            returns: e.returns.clone(),
        }
    }

    /// Its place in the stored log.
    fn key(&self) -> EVersion {
        key_of(self.version, self.home)
    }

    /// As a log entry that changed nothing, for another copy's log. `pool` is the PG's.
    pub fn to_entry(self, pool: PoolId) -> LogEntry {
        LogEntry {
            version: self.version,
            prior: EVersion::default(),
            user_version: self.user_version,
            reqid: self.reqid,
            result: self.result,
            kind: EntryKind::Nothing,
            object: HObject::pool_start(pool, self.hash),
            mtime: UTime::ZERO,
            home: self.home,
            dirty: Dirty::All,
            returns: self.returns,
        }
    }
}

/// Bytes of outputs remembered of trimmed requests, at most: the log must fit into one transaction.
/// Beyond it the oldest requests are remembered without what their ops gave.
const RETURNS_KEPT: usize = 1 << 20;

/// Merged PGs beyond which no more requests are remembered.
const HOMES_MAX: usize = 8;

/// The log in memory.
#[derive(Clone, Debug, Default)]
pub struct PgLog {
    tail: EVersion,
    entries: VecDeque<LogEntry>,
    /// Sum of the entries' weights.
    bytes: usize,
    /// Requests of entries up to the tail, oldest first.
    dups: VecDeque<Dup>,
    /// How many of them are nobody's.
    nobodys: usize,
    /// Bytes of what their ops gave.
    returned: usize,
    /// How many of them have each home but 0: counted, since it is asked with each write.
    homes: BTreeMap<u32, usize>,
    /// Request → key of its entry. Only looked up, never walked.
    requests: HashMap<ReqId, EVersion>,
}

impl PgLog {
    /// A log that holds `entries` (versions rising); those up to `tail` only remember requests.
    pub fn new(tail: EVersion, entries: impl IntoIterator<Item = LogEntry>) -> Self {
        let mut log = Self { tail, ..Self::default() };
        for e in entries {
            if e.version <= tail {
                log.requests.insert(e.reqid, e.key());
                log.push_dup(Dup::of(&e));
            } else {
                log.push(e);
            }
        }
        log
    }

    /// Everything after this position is here.
    pub fn tail(&self) -> EVersion {
        self.tail
    }

    /// Newest position: of the last entry, or the tail.
    pub fn head(&self) -> EVersion {
        self.entries.back().map_or(self.tail, |e| e.version)
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// About how many bytes the entries have in a store.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// No entries?
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Entries, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &LogEntry> {
        self.entries.iter()
    }

    /// Trimmed requests that are still remembered, oldest first.
    pub fn dups(&self) -> impl DoubleEndedIterator<Item = &Dup> {
        self.dups.iter()
    }

    /// Appends all of them.
    pub fn extend(&mut self, entries: impl ExactSizeIterator<Item = LogEntry>) {
        self.entries.reserve(entries.len());
        self.requests.reserve(entries.len());
        entries.for_each(|e| self.push(e));
    }

    /// Appends.
    pub fn push(&mut self, e: LogEntry) {
        self.requests.insert(e.reqid, e.version);
        self.bytes += e.weight();
        self.entries.push_back(e);
    }

    fn position(&self, v: EVersion) -> Result<usize, usize> {
        self.entries.binary_search_by(|e| e.version.cmp(&v))
    }

    /// The entry at a version.
    pub fn at(&self, v: EVersion) -> Option<&LogEntry> {
        self.position(v).ok().and_then(|i| self.entries.get(i))
    }

    /// The newest entry that changed an object or removed it. What another copy is asked for is the
    /// version that this one made: a request that failed has an entry, and no copy has an object in
    /// its version.
    pub fn last_change(&self, object: &HObject) -> Option<&LogEntry> {
        self.entries.iter().rev().find(|e| e.object == *object && e.kind != EntryKind::Nothing)
    }

    /// The version in which a copy has an object that is there, as far as the log shows.
    pub fn last_made(&self, object: &HObject) -> Option<EVersion> {
        self.last_change(object).filter(|e| e.kind == EntryKind::Modify).map(|e| e.version)
    }

    /// Is this version part of the history, as far as the log shows: its tail or an entry?
    pub fn contains(&self, v: EVersion) -> bool {
        v == self.tail || self.position(v).is_ok()
    }

    /// What a request made: version, user version, result.
    pub fn find(&self, reqid: &ReqId) -> Option<Dup> {
        let v = *self.requests.get(reqid)?;
        if let Some(e) = self.at(v) {
            return Some(Dup::of(e));
        }
        let i = self.dups.binary_search_by(|d| d.key().cmp(&v)).ok()?;
        self.dups.get(i).cloned()
    }

    /// Entries after `v`, oldest first.
    pub fn after(&self, v: EVersion) -> impl Iterator<Item = &LogEntry> + Clone {
        let from = match self.position(v) {
            Ok(i) => i + 1,
            Err(i) => i,
        };
        self.entries.range(from..)
    }

    /// Where to trim so that `keep` entries stay, and fewer if they have more than `most` bytes
    /// (then an eighth more goes), at or before `floor`; `None` if fewer than `keep + slack` are
    /// there and they are not too large, or nothing may go.
    pub fn trim_point(
        &self,
        keep: usize,
        slack: usize,
        most: usize,
        floor: EVersion,
    ) -> Option<EVersion> {
        let mut stay = if self.entries.len() > keep + slack { keep } else { self.entries.len() };
        if self.bytes > most {
            let (mut bytes, mut few) = (self.bytes, self.entries.len());
            for e in &self.entries {
                if bytes <= most - most / 8 {
                    break;
                }
                bytes -= e.weight();
                few -= 1;
            }
            stay = stay.min(few.max(1));
        }
        let want = self.entries.get(self.entries.len().checked_sub(stay + 1)?)?.version;
        if want <= floor {
            return Some(want);
        }
        let i = match self.position(floor) {
            Ok(i) => i,
            Err(0) => return None,
            Err(i) => i - 1,
        };
        self.entries.get(i).map(|e| e.version)
    }

    /// Trims entries up to and including `to`; of them, at most `tracked` requests (counting
    /// the entries that stay) are remembered on. Returns up to where everything is forgotten.
    ///
    /// What the PG writes of its own takes no places among these, within a bound: there may be
    /// thousands of trims within the second in which a client whose connection broke sends again
    /// what was done.
    pub fn trim(&mut self, to: EVersion, tracked: usize) -> Option<EVersion> {
        while let Some(e) = self.entries.pop_front_if(|e| e.version <= to) {
            self.bytes -= e.weight();
            self.push_dup(Dup::of(&e));
        }
        self.tail = self.tail.max(to);
        self.forget(tracked)
    }

    /// Forgets the oldest requests beyond `tracked`; returns up to where everything is forgotten.
    ///
    /// Each PG whose requests are remembered keeps as many as a PG does. Within bounds: all of the
    /// log must fit into one transaction.
    fn forget(&mut self, tracked: usize) -> Option<EVersion> {
        let tracked = tracked.saturating_mul((1 + self.homes.len()).min(HOMES_MAX));
        let mut gone = None;
        let all = |log: &Self| log.dups.len() + log.entries.len();
        while (all(self) - self.nobodys > tracked || all(self) > tracked.saturating_mul(WITH_OWN))
            && let Some(d) = self.pop_dup()
        {
            if self.requests.get(&d.reqid) == Some(&d.key()) {
                self.requests.remove(&d.reqid);
            }
            gone = Some(d.key());
        }
        gone
    }

    fn push_dup(&mut self, d: Dup) {
        if d.home > 0 {
            *self.homes.entry(d.home).or_default() += 1;
        }
        self.nobodys += usize::from(d.is_nobodys());
        self.returned += OpReturn::weight(&d.returns);
        self.dups.push_back(d);
        while self.returned > RETURNS_KEPT
            && let Some(oldest) = self.dups.iter_mut().find(|d| !d.returns.is_empty())
        {
            self.returned -= OpReturn::weight(&std::mem::take(&mut oldest.returns));
        }
    }

    fn pop_dup(&mut self) -> Option<Dup> {
        let d = self.dups.pop_front()?;
        self.nobodys -= usize::from(d.is_nobodys());
        self.returned -= OpReturn::weight(&d.returns);
        if let Some(n) = self.homes.get_mut(&d.home) {
            *n -= 1;
            if *n == 0 {
                self.homes.remove(&d.home);
            }
        }
        Some(d)
    }

    /// The log of what `self` and `other`, the log of PG `seed`, become when they are merged at
    /// `at`: nothing but the requests of both, and whether any of them is forgotten, since more
    /// than [`PgLog::trim`] keeps were there. `pool` is theirs.
    pub fn folded(
        &self,
        other: Option<(&PgLog, u32)>,
        at: EVersion,
        pool: PoolId,
        tracked: usize,
    ) -> (PgLog, bool) {
        let all = |log: &PgLog| {
            let dups: Vec<Dup> =
                log.dups.iter().cloned().chain(log.entries.iter().map(Dup::of)).collect();
            dups
        };
        let mut dups = all(self);
        if let Some((log, seed)) = other {
            let theirs = all(log).into_iter();
            dups.extend(theirs.map(|d| Dup {
                home: if d.home == 0 { seed.saturating_add(1) } else { d.home },
                ..d
            }));
        }
        dups.sort_by_key(Dup::key);
        let mut log = PgLog::new(at, dups.into_iter().map(|d| d.to_entry(pool)));
        let forgot = log.forget(tracked).is_some();
        (log, forgot)
    }

    /// Up to which key what is stored stays when the log is rewound to `to`: requests of merged PGs
    /// are kept behind others of their epoch ([`key_of`]), so they may lie behind a tail of that
    /// epoch. Of such an epoch there are no entries after it: a PG writes in the epoch of its merge
    /// or later ones.
    pub fn kept_to(&self, to: EVersion) -> EVersion {
        self.dups.back().map_or(to, |d| d.key().max(to))
    }

    /// Forgets entries after `to` and returns them, oldest first.
    pub fn rewind(&mut self, to: EVersion) -> Vec<LogEntry> {
        let from = match self.position(to) {
            Ok(i) => i + 1,
            Err(i) => i,
        };
        let gone: Vec<LogEntry> = self.entries.drain(from..).collect();
        for e in &gone {
            self.bytes -= e.weight();
            if self.requests.get(&e.reqid) == Some(&e.version) {
                self.requests.remove(&e.reqid);
            }
        }
        gone
    }

    /// The newest position that this log and `other` (of another copy) have in common, looking
    /// at what both still hold. `None` if they do not meet.
    pub fn common(&self, other: &PgLog) -> Option<EVersion> {
        // A version names one entry of one history, so a common version means a common past.
        let entry = other.entries.iter().rev().map(|e| e.version).find(|v| self.contains(*v));
        entry.or_else(|| {
            // What is before a tail was committed everywhere, so both have it.
            let at = other.tail;
            // An entry there may be missing: it went to a sibling in a split.
            if at < self.tail {
                (self.tail <= other.head()).then_some(self.tail)
            } else {
                (at <= self.head()).then_some(at)
            }
        })
    }
}

/// The newest position of a log before `v`.
pub(crate) fn before(log: &PgLog, v: EVersion) -> EVersion {
    log.entries.iter().rev().map(|e| e.version).find(|e| *e < v).unwrap_or(log.tail)
}

/// The entries that a peer sent; `None` if they make no sense.
pub(crate) fn parse(pg: PgId, from: Peer, entries: &[Bytes]) -> Option<Vec<LogEntry>> {
    match entries.iter().map(|b| from_slice(b)).collect::<Result<Vec<LogEntry>, DecodeError>>() {
        Ok(entries) => Some(entries),
        Err(e) => {
            tracing::error!(%pg, %from, error = %e, "read peer's log");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use spirula_types::EntityName;
    use std::collections::BTreeSet;

    fn entry(epoch: u32, version: u64, object: &'static str) -> LogEntry {
        LogEntry {
            version: EVersion::new(epoch, version),
            prior: EVersion::default(),
            user_version: version,
            reqid: ReqId {
                name: EntityName::client(4),
                tid: version + u64::from(epoch) * 1000,
                inc: 0,
            },
            result: 0,
            kind: EntryKind::Modify,
            object: HObject::head(1, Bytes::new(), Bytes::new(), object.into()),
            mtime: UTime::ZERO,
            home: 0,
            dirty: Dirty::All,
            returns: Vec::new(),
        }
    }

    #[test]
    fn trimmed_requests_are_remembered_up_to_the_bound_with_result_and_version() {
        let mut log = PgLog::new(EVersion::default(), (1..=10).map(|v| entry(1, v, "a")));
        assert_eq!(log.trim(EVersion::new(1, 6), 8), Some(EVersion::new(1, 2)));
        assert_eq!((log.len(), log.tail(), log.dups().count()), (4, EVersion::new(1, 6), 4));
        let id = |v| entry(1, v, "a").reqid;
        assert_eq!(
            log.find(&id(5)).map(|d| (d.version, d.user_version)),
            Some((EVersion::new(1, 5), 5))
        );
        assert_eq!(log.find(&id(2)), None);
        // Through the store and back.
        let stored = log
            .dups()
            .cloned()
            .map(|d| d.to_entry(1))
            .chain(log.iter().cloned())
            .collect::<Vec<_>>();
        let again = PgLog::new(log.tail(), stored);
        assert_eq!(again.find(&id(3)), log.find(&id(3)));
        assert_eq!((again.len(), again.tail()), (4, log.tail()));
    }

    /// What the PG writes of its own (a thousand trims within a moment) makes no client's request
    /// forgotten, within a bound.
    #[test]
    fn what_is_nobodys_request_takes_no_place_among_those_remembered() {
        let own = |v: u64| LogEntry { reqid: ReqId::default(), ..entry(1, v, "a") };
        let all = (1..=10).map(|v| entry(1, v, "a")).chain((11..=40).map(own));
        let mut log = PgLog::new(EVersion::default(), all);
        assert_eq!(log.trim(EVersion::new(1, 38), 12), None);
        let known =
            |log: &PgLog| (1..=10).filter(|v| log.find(&entry(1, *v, "a").reqid).is_some()).count();
        assert_eq!((known(&log), log.dups().count()), (10, 38));
        // Through the store and back.
        let stored = log
            .dups()
            .cloned()
            .map(|d| d.to_entry(1))
            .chain(log.iter().cloned())
            .collect::<Vec<_>>();
        let mut again = PgLog::new(log.tail(), stored);
        for log in [&mut log, &mut again] {
            log.extend((41..=54).map(own).collect::<Vec<_>>().into_iter());
            assert_eq!(log.trim(EVersion::new(1, 52), 12), Some(EVersion::new(1, 6)));
            assert_eq!((known(log), log.dups().count() + log.len()), (4, 48));
        }
    }

    #[test]
    fn what_ops_gave_is_remembered_within_a_bound_and_the_oldest_goes_first() {
        let each = RETURNS_KEPT / 4;
        let with = |v: u64| LogEntry {
            returns: vec![
                OpReturn { rval: v as i32, data: vec![7; each - 8].into() };
                usize::from(v != 3)
            ],
            ..entry(1, v, "a")
        };
        let mut log = PgLog::new(EVersion::default(), (1..=7).map(with));
        log.trim(EVersion::new(1, 6), 100);
        let told = |log: &PgLog| -> Vec<usize> {
            (1..=7)
                .filter_map(|v| log.find(&entry(1, v, "a").reqid))
                .map(|d| d.returns.len())
                .collect()
        };
        assert_eq!(told(&log), [0, 1, 0, 1, 1, 1, 1], "1 is too much, 3 had none, 7 is no dup yet");
        // What is forgotten altogether makes room.
        log.trim(EVersion::new(1, 7), 4);
        assert_eq!(told(&log), [1, 1, 1, 1]);
        assert_eq!(log.returned, 4 * each);
    }

    #[test]
    fn trim_never_passes_the_floor_and_keeps_what_is_asked() {
        let log = PgLog::new(EVersion::default(), (1..=10).map(|v| entry(1, v, "a")));
        assert_eq!(log.trim_point(4, 2, 9999, EVersion::new(1, 10)), Some(EVersion::new(1, 6)));
        assert_eq!(log.trim_point(4, 2, 9999, EVersion::new(1, 3)), Some(EVersion::new(1, 3)));
        assert_eq!(log.trim_point(4, 2, 9999, EVersion::default()), None);
        assert_eq!(log.trim_point(8, 2, 9999, EVersion::new(1, 10)), None);
    }

    #[test]
    fn a_log_of_too_many_bytes_is_trimmed_however_few_its_entries_are() {
        let mut log = PgLog::new(EVersion::default(), (1..=10).map(|v| entry(1, v, "a")));
        let each = log.bytes() / 10;
        let newest = EVersion::new(1, 10);
        assert_eq!(log.trim_point(100, 0, 10 * each, newest), None);
        // To an eighth below the bound, so that the next entry does not trim again.
        assert_eq!(log.trim_point(100, 0, 8 * each, newest), Some(EVersion::new(1, 3)));
        assert_eq!(
            log.trim_point(100, 0, 8 * each, EVersion::new(1, 2)),
            Some(EVersion::new(1, 2))
        );
        assert_eq!(log.trim_point(100, 0, 0, newest), Some(EVersion::new(1, 9)));
        // What goes is not counted any more, at either end.
        log.trim(EVersion::new(1, 3), 100);
        log.rewind(EVersion::new(1, 8));
        assert_eq!(log.bytes(), 5 * each);
    }

    #[test]
    fn pgs_merged_again_and_again_remember_no_more_than_some_pgs_do() {
        let mut all = PgLog::default();
        for seed in 1..40_u32 {
            let of = |v: u64| LogEntry {
                reqid: ReqId { name: EntityName::client(u64::from(seed)), tid: v, inc: 0 },
                ..entry(1, v, "a")
            };
            let other = PgLog::new(EVersion::default(), (1..=10).map(of));
            let at = EVersion::new(1 + seed, 11);
            let (log, forgot) = all.folded(Some((&other, seed)), at, 1, 10);
            assert_eq!(
                (forgot, log.dups().count()),
                (seed as usize > HOMES_MAX, 10 * HOMES_MAX.min(seed as usize))
            );
            all = log;
        }
    }

    #[test]
    fn requests_of_two_logs_of_the_same_versions_are_all_found_in_what_they_become() {
        let mut a = PgLog::new(EVersion::default(), (1..=6).map(|v| entry(1, v, "a")));
        a.trim(EVersion::new(1, 3), 100);
        let other = |v: u64| LogEntry {
            reqid: ReqId { name: EntityName::client(9), tid: v, inc: 0 },
            user_version: 100 + v,
            ..entry(1, v, "b")
        };
        let b = PgLog::new(EVersion::default(), (2..=5).map(other));
        let at = EVersion::new(2, 7);
        let (both, forgot) = a.folded(Some((&b, 4)), at, 1, 100);
        assert!(!forgot);
        let entries: Vec<LogEntry> = both.dups().cloned().map(|d| d.to_entry(1)).collect();
        assert_eq!((both.tail(), both.head(), both.len(), entries.len()), (at, at, 0, 10));
        let keys: BTreeSet<EVersion> = entries.iter().map(LogEntry::key).collect();
        assert_eq!(keys.len(), 10, "each has a place of its own");
        let mut again = PgLog::new(at, entries);
        for v in 1..=6 {
            assert_eq!(
                again.find(&entry(1, v, "a").reqid).map(|d| (d.version.version, d.user_version)),
                Some((v, v))
            );
        }
        for v in 2..=5 {
            assert_eq!(
                again.find(&other(v).reqid).map(|d| (d.version.version, d.user_version)),
                Some((v, 100 + v))
            );
        }
        // Merged again, they keep what they are.
        let (third, _) = PgLog::default().folded(Some((&again, 2)), EVersion::new(3, 9), 1, 100);
        assert_eq!(third.find(&other(3).reqid).map(|d| (d.version.version, d.home)), Some((3, 5)));
        assert_eq!(
            third.find(&entry(1, 3, "a").reqid).map(|d| (d.version.version, d.home)),
            Some((3, 3))
        );
        // Rewound to where a split may put the tail, none of them goes from the store.
        let kept = again.kept_to(EVersion::new(1, 6));
        assert!(again.dups().all(|d| d.key() <= kept) && kept < EVersion::new(2, 0));
        assert_eq!(again.kept_to(EVersion::new(2, 9)), EVersion::new(2, 9));
        // As many as two PGs remember; the oldest go first.
        again.trim(at, 4);
        assert_eq!(again.dups().count(), 8);
        assert!(
            again.find(&entry(1, 1, "a").reqid).is_none() && again.find(&other(5).reqid).is_some()
        );
    }

    #[test]
    fn rewound_entries_come_back_and_their_requests_are_forgotten() {
        let mut log = PgLog::new(EVersion::default(), (1..=4).map(|v| entry(1, v, "a")));
        let gone = log.rewind(EVersion::new(1, 2));
        assert_eq!(gone.iter().map(|e| e.version.version).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(log.find(&gone[0].reqid), None);
        assert_eq!(log.head(), EVersion::new(1, 2));
    }

    #[test]
    fn logs_meet_at_their_newest_common_position() {
        let auth =
            PgLog::new(EVersion::new(1, 1), [entry(1, 2, "a"), entry(1, 3, "b"), entry(2, 4, "c")]);
        let other =
            PgLog::new(EVersion::default(), [entry(1, 1, "z"), entry(1, 2, "a"), entry(1, 4, "x")]);
        assert_eq!(auth.common(&other), Some(EVersion::new(1, 2)));
        let ends_at_tail = PgLog::new(EVersion::default(), [entry(1, 1, "z")]);
        assert_eq!(auth.common(&ends_at_tail), Some(EVersion::new(1, 1)));
        let too_old = PgLog::new(EVersion::default(), []);
        assert_eq!(auth.common(&too_old), None);
        let gap = PgLog::new(EVersion::new(1, 1), []);
        let child = PgLog::new(EVersion::default(), [entry(1, 4, "a")]);
        assert_eq!(child.common(&gap), Some(EVersion::new(1, 1)));
    }
}
