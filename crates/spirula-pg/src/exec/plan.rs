//! What a request wants to change: a plan without versions, and the same with the place in the log
//! that makes it definite.

use super::state::{INFO_ATTR, ObjectState};
use bytes::Bytes;
use spirula_encoding::UTime;
use spirula_messages::cluster::entry::{EntryKind, LogEntry, OpReturn};
use spirula_types::transaction::ObjectOp;
use spirula_types::{Dirty, EVersion, HObject, ReqId};

/// What a request adds to the PG's statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatDelta {
    /// Objects.
    pub objects: i64,
    /// Bytes of object data; of clones those that they share with nothing newer.
    pub bytes: i64,
    /// Clones, which are objects, too.
    pub clones: i64,
    /// Heads that are there for their clones only; they are objects, too.
    pub whiteouts: i64,
    /// Objects with an omap.
    pub omap_objects: i64,
    /// Read ops.
    pub reads: u64,
    /// KiB read, each op rounded up.
    pub read_kib: u64,
    /// Write ops.
    pub writes: u64,
    /// KiB written, each op rounded up.
    pub write_kib: u64,
}

impl StatDelta {
    pub(super) fn count_read(&mut self, bytes: u64) {
        self.reads += 1;
        self.read_kib += bytes.div_ceil(1024);
    }

    pub(super) fn count_write(&mut self, bytes: u64) {
        self.writes += 1;
        self.write_kib += bytes.div_ceil(1024);
    }
}

/// The change of one object, without a version.
#[derive(Clone, Debug)]
pub struct Change {
    /// The object.
    pub object: HObject,
    /// What changes, in order, without the `_` attribute.
    pub ops: Vec<ObjectOp>,
    /// The state after it; versions, request and times are those of before.
    pub state: ObjectState,
    /// Bytes of data that it starts from: the object's, 0 for one that did not exist; or its
    /// source's.
    pub size_before: u64,
    /// The object that it is made from: by a clone (`ops` begin with [`ObjectOp::CloneFrom`]). A
    /// member without that one cannot make the change.
    pub source: Option<HObject>,
    /// It is a clone for snapshots, whose times, request and user version are its source's.
    pub frozen: bool,
    /// The object is gone after it: log it as a deletion.
    pub delete: bool,
    /// It raises the user version (everything but watches and copies does).
    pub user_modify: bool,
    /// The user version a copy takes over from its source.
    pub user_version: Option<u64>,
    /// Statistics.
    pub stats: StatDelta,
}

/// What a request wants done, all of it or nothing: pure data, made by execution. Each change
/// becomes an entry of the log, in order; the last one is that of the object which the request
/// names, and its entry is the request's. (A vector of ops makes one change. A first write after a
/// snapshot makes two, the clone's and the head's; a trim as many as it takes.)
#[derive(Clone, Debug, Default)]
pub struct WritePlan {
    /// The changes. None at all: a request that failed or changed nothing, which only the log is to
    /// remember.
    pub changes: Vec<Change>,
}

/// What makes a plan definite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Position of its first log entry; the others follow, one after the other.
    pub version: EVersion,
    /// Newest user version given out in the PG before.
    pub last_user_version: u64,
    /// The request.
    pub reqid: ReqId,
    /// The client's time; zero leaves the object's alone.
    pub mtime: UTime,
    /// The OSD's time.
    pub now: UTime,
    /// The request's result.
    pub result: i32,
    /// What each of its ops gave, as far as that is remembered.
    pub returns: Vec<OpReturn>,
}

/// The change of one object with its version, and the log entry that says so.
#[derive(Clone, Debug)]
pub struct Stamped {
    /// The entry.
    pub entry: LogEntry,
    /// What changes, in order, complete.
    pub ops: Vec<ObjectOp>,
    /// The state after it, as the next execution starts from.
    pub state: ObjectState,
    /// Bytes of data that it starts from.
    pub size_before: u64,
    /// The object that it is made from.
    pub source: Option<HObject>,
    /// Statistics.
    pub stats: StatDelta,
}

impl WritePlan {
    /// How many entries it makes in the log.
    pub fn entries(&self) -> u64 {
        self.changes.len().max(1) as u64
    }

    /// Gives each change its version and its entry. `object` and `user_version` are those of the
    /// request, where nothing changes.
    pub fn stamp(self, stamp: Stamp, object: &HObject, user_version: u64) -> Vec<Stamped> {
        let Stamp {
            version: first,
            last_user_version: mut newest,
            reqid,
            mtime,
            now,
            result,
            returns,
        } = stamp;
        if self.changes.is_empty() {
            let entry = LogEntry {
                version: first,
                prior: EVersion::default(),
                user_version,
                reqid,
                result,
                kind: EntryKind::Nothing,
                object: object.clone(),
                mtime,
                home: 0,
                dirty: Dirty::All,
                returns,
            };
            let (ops, state, stats) = (Vec::new(), ObjectState::default(), StatDelta::default());
            return vec![Stamped { entry, ops, state, size_before: 0, source: None, stats }];
        }
        let mut all: Vec<Stamped> = Vec::with_capacity(self.changes.len());
        for (i, change) in self.changes.into_iter().enumerate() {
            let version = EVersion::new(first.epoch, first.version + i as u64);
            let done = change.stamp(version, newest, reqid, mtime, now);
            newest = newest.max(done.entry.user_version);
            all.push(done);
        }
        if let Some(s) = all.last_mut() {
            (s.entry.reqid, s.entry.result, s.entry.returns) = (reqid, result, returns);
        }
        all
    }
}

impl Change {
    /// Gives the change its version (`docs/protocol/osd.md` §5: one above the larger of the PG's
    /// and the object's, raised to the log version). Its entry is nobody's request yet.
    fn stamp(
        self,
        version: EVersion,
        newest: u64,
        reqid: ReqId,
        mtime: UTime,
        now: UTime,
    ) -> Stamped {
        let Self {
            object,
            mut ops,
            mut state,
            size_before,
            source,
            frozen,
            delete,
            user_modify,
            user_version,
            stats,
        } = self;
        let info = &mut state.info;
        let prior = info.version;
        if user_modify {
            info.user_version = (newest.max(info.user_version) + 1).max(version.version);
        } else if let Some(v) = user_version {
            info.user_version = v;
        }
        let user_version = info.user_version;
        // A new object, like one that is gone, differs in everything.
        let dirty =
            if delete || prior == EVersion::default() { Dirty::All } else { Dirty::of(&ops) };
        if delete {
            state = ObjectState::default();
        } else {
            info.version = version;
            info.prior_version = prior;
            if !frozen {
                info.last_reqid = reqid;
                if !mtime.is_zero() {
                    info.mtime = mtime;
                    info.local_mtime = now;
                }
            }
            let attr = (Bytes::from_static(INFO_ATTR), info.to_attr());
            match ops.last_mut() {
                Some(ObjectOp::SetAttrs(kv)) => kv.push(attr),
                _ => ops.push(ObjectOp::SetAttrs(vec![attr])),
            }
        }
        let kind = if delete { EntryKind::Delete } else { EntryKind::Modify };
        let entry = LogEntry {
            version,
            prior,
            user_version,
            reqid: ReqId::default(),
            result: 0,
            kind,
            object,
            mtime,
            home: 0,
            dirty,
            returns: Vec::new(),
        };
        Stamped { entry, ops, state, size_before, source, stats }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::object;
    use super::*;

    fn change(name: &str, version: u64, user_modify: bool) -> Change {
        let mut state = ObjectState { exists: true, ..ObjectState::default() };
        (state.info.version, state.info.user_version) = (EVersion::new(1, version), version);
        Change {
            object: object(name),
            ops: vec![ObjectOp::Truncate { size: 0 }],
            state,
            size_before: 5,
            source: None,
            frozen: false,
            delete: false,
            user_modify,
            user_version: None,
            stats: StatDelta::default(),
        }
    }

    fn stamp() -> Stamp {
        Stamp {
            version: EVersion::new(2, 9),
            last_user_version: 7,
            reqid: ReqId { tid: 5, ..ReqId::default() },
            mtime: UTime::ZERO,
            now: UTime { sec: 5, nsec: 0 },
            result: 1,
            returns: vec![OpReturn { rval: 1, data: Bytes::new() }],
        }
    }

    /// Several objects, as the first write after a snapshot changes them: one entry each, and the
    /// request is the last one's.
    #[test]
    fn each_change_of_a_plan_gets_an_entry_and_the_last_one_is_the_requests() {
        let plan = WritePlan { changes: vec![change("clone", 0, false), change("head", 4, true)] };
        assert_eq!(plan.entries(), 2);
        let all = plan.stamp(stamp(), &object("head"), 3);
        let seen: Vec<_> =
            all.iter().map(|s| (&s.entry.object, s.entry.version, s.entry.prior)).collect();
        let (clone, head) = (object("clone"), object("head"));
        assert_eq!(
            seen,
            [
                (&clone, EVersion::new(2, 9), EVersion::new(1, 0)),
                (&head, EVersion::new(2, 10), EVersion::new(1, 4))
            ]
        );
        assert_eq!(
            (all[0].entry.reqid, all[0].entry.result, all[0].entry.returns.len()),
            (ReqId::default(), 0, 0)
        );
        assert_eq!(
            (all[1].entry.reqid.tid, all[1].entry.result, all[1].entry.returns.len()),
            (5, 1, 1)
        );
        assert_eq!((all[0].entry.user_version, all[1].entry.user_version), (0, 10));
        // Each knows by itself which entry made it, and for whom.
        for s in &all {
            assert_eq!((s.state.info.version, s.state.info.last_reqid.tid), (s.entry.version, 5));
            assert!(
                matches!(s.ops.last(), Some(ObjectOp::SetAttrs(kv)) if kv.last().unwrap().0 == INFO_ATTR)
            );
        }
    }

    #[test]
    fn a_plan_without_changes_is_an_entry_that_remembers_the_request() {
        let all = WritePlan::default().stamp(stamp(), &object("a"), 3);
        let [only] = &all[..] else { panic!("{all:?}") };
        assert_eq!(
            (only.entry.kind, only.entry.version, only.entry.user_version),
            (EntryKind::Nothing, EVersion::new(2, 9), 3)
        );
        assert_eq!((only.entry.reqid.tid, only.entry.result, only.entry.returns.len()), (5, 1, 1));
        assert!(only.ops.is_empty());
    }
}
