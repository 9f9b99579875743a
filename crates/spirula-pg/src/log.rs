//! The log of a PG: what was done lately, in which order, for whom.
//!
//! Two uses: a resent request is found here and answered instead of applied, and two copies
//! of a PG are compared by their logs instead of object by object. Holds every entry after
//! [`PgLog::tail`]. Entries at or before the tail were committed on every acting member, so
//! they are part of every later history.

use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use spirula_types::{EVersion, HObject, ReqId};
use std::collections::{BTreeSet, HashMap, VecDeque};

/// What an entry did to its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// Changed it.
    Modify,
    /// Removed it.
    Delete,
    /// Nothing: a writing request that failed or changed nothing.
    Nothing,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Its position, unique in the PG's history.
    pub version: EVersion,
    /// The object's version before.
    pub prior: EVersion,
    /// User version given to the object.
    pub user_version: u64,
    /// The request.
    pub reqid: ReqId,
    /// Its result.
    pub result: i32,
    /// What it did.
    pub kind: EntryKind,
    /// The object.
    pub object: HObject,
    /// Client's time.
    pub mtime: UTime,
}

impl Encode for LogEntry {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.version);
            o.put(&self.prior);
            o.u64(self.user_version);
            o.put(&self.reqid);
            o.i32(self.result);
            o.u8(match self.kind {
                EntryKind::Modify => 1,
                EntryKind::Delete => 2,
                EntryKind::Nothing => 3,
            });
            o.put(&self.object);
            o.put(&self.mtime);
        });
    }
}

impl Decode for LogEntry {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("log entry", 1, |d, _| {
            Ok(Self {
                version: d.get()?,
                prior: d.get()?,
                user_version: d.get()?,
                reqid: d.get()?,
                result: d.get()?,
                kind: match d.u8()? {
                    1 => EntryKind::Modify,
                    2 => EntryKind::Delete,
                    3 => EntryKind::Nothing,
                    v => return Err(DecodeError::Value { what: "log entry kind", value: i64::from(v) }),
                },
                object: d.get()?,
                mtime: d.get()?,
            })
        })
    }
}

impl LogEntry {
    /// The stored form.
    pub fn to_bytes(&self) -> Bytes {
        let mut o = Encoder::with_capacity(192 + self.object.name.len());
        o.put(self);
        o.into_bytes()
    }
}

/// How a copy differs from an authoritative one, as far as logs tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// These objects; entries up to `keep` are common.
    Objects {
        /// To be copied (or deleted, where the source lacks them).
        objects: BTreeSet<HObject>,
        /// Newest common position.
        keep: EVersion,
    },
    /// The logs do not reach back to a common position: compare everything.
    Unknown,
}

/// The log in memory.
#[derive(Clone, Debug, Default)]
pub struct PgLog {
    tail: EVersion,
    entries: VecDeque<LogEntry>,
    /// Request → version of its entry. Only looked up, never walked.
    requests: HashMap<ReqId, EVersion>,
}

impl PgLog {
    /// A log that holds `entries` (versions rising) and all that happened after `tail`.
    pub fn new(tail: EVersion, entries: impl IntoIterator<Item = LogEntry>) -> Self {
        let mut log = Self { tail, ..Self::default() };
        entries.into_iter().for_each(|e| log.push(e));
        log
    }

    /// Everything after this position is here.
    pub fn tail(&self) -> EVersion {
        self.tail
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// No entries?
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Entries, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &LogEntry> {
        self.entries.iter()
    }

    /// Appends.
    pub fn push(&mut self, e: LogEntry) {
        self.requests.insert(e.reqid, e.version);
        self.entries.push_back(e);
    }

    fn position(&self, v: EVersion) -> Result<usize, usize> {
        self.entries.binary_search_by(|e| e.version.cmp(&v))
    }

    /// The entry at a version.
    pub fn at(&self, v: EVersion) -> Option<&LogEntry> {
        self.position(v).ok().and_then(|i| self.entries.get(i))
    }

    /// The entry a request made.
    pub fn find(&self, reqid: &ReqId) -> Option<&LogEntry> {
        self.requests.get(reqid).and_then(|v| self.at(*v))
    }

    /// Entries after `v`, oldest first.
    pub fn after(&self, v: EVersion) -> impl Iterator<Item = &LogEntry> {
        let from = match self.position(v) {
            Ok(i) => i + 1,
            Err(i) => i,
        };
        self.entries.range(from..)
    }

    /// Where to trim so that `keep` entries stay, at or before `floor`; `None` if fewer than
    /// `keep + slack` are there or nothing may go.
    pub fn trim_point(&self, keep: usize, slack: usize, floor: EVersion) -> Option<EVersion> {
        if self.entries.len() <= keep + slack {
            return None;
        }
        let want = self.entries.get(self.entries.len() - keep - 1)?.version;
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

    /// Forgets entries up to and including `to`.
    pub fn trim(&mut self, to: EVersion) {
        while let Some(e) = self.entries.pop_front_if(|e| e.version <= to) {
            if self.requests.get(&e.reqid) == Some(&e.version) {
                self.requests.remove(&e.reqid);
            }
        }
        self.tail = self.tail.max(to);
    }

    /// Forgets entries after `to`.
    pub fn rewind(&mut self, to: EVersion) {
        while let Some(e) = self.entries.pop_back_if(|e| e.version > to) {
            if self.requests.get(&e.reqid) == Some(&e.version) {
                self.requests.remove(&e.reqid);
            }
        }
    }

    /// How the copy with log `other`, complete up to `other_head`, differs from the
    /// authoritative copy with this log, complete up to `head`.
    pub fn difference(&self, head: EVersion, other: &PgLog, other_head: EVersion) -> Difference {
        // A version names one entry of one history, so a common version means a common past.
        let common = other.entries.iter().rev().map(|e| e.version).find(|v| self.at(*v).is_some());
        let keep = if other_head == head {
            head
        } else if self.at(other_head).is_some() || other_head == self.tail {
            other_head
        } else if let Some(v) = common {
            v
        } else if other.tail >= self.tail {
            // What is before the other's tail was committed, so we have it too.
            other.tail
        } else if other.at(self.tail).is_some() {
            self.tail
        } else {
            return Difference::Unknown;
        };
        let objects = self.after(keep).chain(other.after(keep));
        let objects =
            objects.filter(|e| e.kind != EntryKind::Nothing).map(|e| e.object.clone()).collect::<BTreeSet<_>>();
        Difference::Objects { objects, keep }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_encoding::{from_slice, to_vec};
    use spirula_types::EntityName;

    fn entry(epoch: u32, version: u64, object: &'static str) -> LogEntry {
        LogEntry {
            version: EVersion::new(epoch, version),
            prior: EVersion::default(),
            user_version: version,
            reqid: ReqId { name: EntityName::client(4), tid: version + u64::from(epoch) * 1000, inc: 0 },
            result: 0,
            kind: EntryKind::Modify,
            object: HObject::head(1, Bytes::new(), Bytes::new(), object.into()),
            mtime: UTime::ZERO,
        }
    }

    fn names(d: Difference) -> Option<(Vec<String>, EVersion)> {
        let Difference::Objects { objects, keep } = d else { return None };
        let mut names: Vec<_> = objects.iter().map(|o| String::from_utf8_lossy(&o.name).into_owned()).collect();
        names.sort();
        Some((names, keep))
    }

    #[test]
    fn entry_round_trips() {
        let e = LogEntry { kind: EntryKind::Nothing, result: -17, ..entry(3, 4, "x") };
        assert_eq!(from_slice::<LogEntry>(&to_vec(&e)).unwrap(), e);
    }

    #[test]
    fn trimming_and_rewinding_forget_the_requests() {
        let mut log = PgLog::new(EVersion::default(), (1..=10).map(|v| entry(1, v, "a")));
        assert_eq!(log.trim_point(4, 2, EVersion::new(1, 10)), Some(EVersion::new(1, 6)));
        assert_eq!(log.trim_point(4, 2, EVersion::new(1, 3)), Some(EVersion::new(1, 3)));
        assert_eq!(log.trim_point(4, 6, EVersion::new(1, 3)), None);
        log.trim(EVersion::new(1, 6));
        log.rewind(EVersion::new(1, 8));
        assert_eq!(log.iter().map(|e| e.version.version).collect::<Vec<_>>(), [7, 8]);
        assert!(log.find(&entry(1, 6, "a").reqid).is_none());
        assert!(log.find(&entry(1, 9, "a").reqid).is_none());
        assert_eq!(log.find(&entry(1, 7, "a").reqid).unwrap().version.version, 7);
    }

    #[test]
    fn copy_behind_lacks_the_newer_entries() {
        let auth = PgLog::new(EVersion::default(), [entry(1, 1, "a"), entry(1, 2, "b"), entry(1, 3, "c")]);
        let other = PgLog::new(EVersion::default(), [entry(1, 1, "a")]);
        let d = auth.difference(EVersion::new(1, 3), &other, EVersion::new(1, 1));
        assert_eq!(names(d), Some((vec!["b".into(), "c".into()], EVersion::new(1, 1))));
    }

    #[test]
    fn divergent_entries_count_as_differences() {
        let auth = PgLog::new(EVersion::default(), [entry(1, 1, "a"), entry(3, 2, "b")]);
        let other = PgLog::new(EVersion::default(), [entry(1, 1, "a"), entry(1, 2, "x"), entry(1, 3, "y")]);
        let d = auth.difference(EVersion::new(3, 2), &other, EVersion::new(1, 3));
        assert_eq!(names(d), Some((vec!["b".into(), "x".into(), "y".into()], EVersion::new(1, 1))));
    }

    #[test]
    fn logs_that_do_not_meet_tell_nothing() {
        let auth = PgLog::new(EVersion::new(1, 5), [entry(1, 6, "a")]);
        let other = PgLog::new(EVersion::default(), [entry(1, 1, "a")]);
        assert_eq!(auth.difference(EVersion::new(1, 6), &other, EVersion::new(1, 1)), Difference::Unknown);
        let at_tail = PgLog::new(EVersion::default(), [entry(1, 5, "z")]);
        let d = auth.difference(EVersion::new(1, 6), &at_tail, EVersion::new(1, 5));
        assert_eq!(names(d), Some((vec!["a".into()], EVersion::new(1, 5))));
    }

    #[test]
    fn split_children_with_gaps_compare_by_their_tails() {
        // 2 and 3 went to a sibling; the other copy stopped at 2.
        let auth = PgLog::new(EVersion::new(1, 1), [entry(1, 4, "a")]);
        let other = PgLog::new(EVersion::new(1, 1), []);
        let d = auth.difference(EVersion::new(1, 5), &other, EVersion::new(1, 2));
        assert_eq!(names(d), Some((vec!["a".into()], EVersion::new(1, 1))));
    }
}
