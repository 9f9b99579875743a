//! The change a vector makes, before and after it gets its version.

use super::state::{INFO_ATTR, ObjectState};
use bytes::Bytes;
use spirula_encoding::UTime;
use spirula_types::transaction::ObjectOp;
use spirula_types::{EVersion, ReqId};

/// What a request adds to the PG's statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatDelta {
    /// Objects.
    pub objects: i64,
    /// Bytes of object data.
    pub bytes: i64,
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

/// A change without a version. Make one with [`super::execute`].
#[derive(Clone, Debug)]
pub struct Mutation {
    /// Changes to the head, in order, without its `_` attribute.
    pub ops: Vec<ObjectOp>,
    /// The state after it; versions, request and times are those of before.
    pub state: ObjectState,
    /// The object is gone after it: log it as a deletion.
    pub delete: bool,
    /// It raises the user version (everything but watches and copies does).
    pub user_modify: bool,
    /// The user version a copy takes over from its source.
    pub user_version: Option<u64>,
    /// Statistics.
    pub stats: StatDelta,
}

/// What makes a mutation definite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Position of its log entry.
    pub version: EVersion,
    /// Newest user version given out in the PG before.
    pub last_user_version: u64,
    /// The request.
    pub reqid: ReqId,
    /// The client's time; zero leaves the object's alone.
    pub mtime: UTime,
    /// The OSD's time.
    pub now: UTime,
}

/// A mutation with its version.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Changes to the head, in order, complete.
    pub ops: Vec<ObjectOp>,
    /// The state after it, as the next execution starts from.
    pub state: ObjectState,
    /// The object is gone: log it as a deletion.
    pub delete: bool,
    /// Version the object had before (of the log entry).
    pub prior_version: EVersion,
    /// User version for the log entry and the reply.
    pub user_version: u64,
    /// Statistics.
    pub stats: StatDelta,
}

impl Mutation {
    /// Gives the change its version (`docs/protocol/osd.md` §5: one above the larger of the
    /// PG's and the object's, raised to the log version).
    pub fn finish(self, stamp: &Stamp) -> Finished {
        let Self { mut ops, mut state, delete, user_modify, user_version, stats } = self;
        let info = &mut state.info;
        let prior_version = info.version;
        if user_modify {
            info.user_version = (stamp.last_user_version.max(info.user_version) + 1).max(stamp.version.version);
        } else if let Some(v) = user_version {
            info.user_version = v;
        }
        let user_version = info.user_version;
        if delete {
            state = ObjectState::default();
        } else {
            info.version = stamp.version;
            info.prior_version = prior_version;
            info.last_reqid = stamp.reqid;
            if !stamp.mtime.is_zero() {
                info.mtime = stamp.mtime;
                info.local_mtime = stamp.now;
            }
            let attr = (Bytes::from_static(INFO_ATTR), info.to_attr());
            match ops.last_mut() {
                Some(ObjectOp::SetAttrs(kv)) => kv.push(attr),
                _ => ops.push(ObjectOp::SetAttrs(vec![attr])),
            }
        }
        Finished { ops, state, delete, prior_version, user_version, stats }
    }
}
