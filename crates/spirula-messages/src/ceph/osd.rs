//! Messages between clients and OSDs. Source: `docs/protocol/osd.md` §2, §3, §6, §7.

use super::op::{OP_WIRE_LEN, OsdOp, split};
use super::{join, kind};
use crate::Body;
use bytes::Bytes;
use spirula_encoding::{DecodeError, Decoder, Encoder, UTime};
use spirula_types::{EVersion, Epoch, HObject, ObjectLocator, PgId, ReqId, SNAP_HEAD, SpgId};

/// Flags of [`MOsdOp`] and [`MOsdOpReply`].
pub mod flag {
    /// Reply flag: this is an acknowledgement.
    pub const ACK: u32 = 0x1;
    /// Reply once, after commit.
    pub const ONDISK: u32 = 0x4;
    /// A resend: look for a duplicate.
    pub const RETRY: u32 = 0x8;
    /// The vector reads (a hint).
    pub const READ: u32 = 0x10;
    /// The vector writes (a hint).
    pub const WRITE: u32 = 0x20;
    /// Fail if the snapshot context is older than the object's.
    pub const ORDERSNAP: u32 = 0x40;
    /// The request's snapshot context counts, also where snapshots are the pool's.
    pub const ENFORCE_SNAPC: u32 = 0x10_0000;
    /// Meaningless; `rados rm` sets it.
    pub const PEERSTAT_OLD: u32 = 0x80;
    /// Any replica may serve it.
    pub const BALANCE_READS: u32 = 0x100;
    /// It names a PG, not an object.
    pub const PGOP: u32 = 0x400;
    /// It may execute class code.
    pub const EXEC: u32 = 0x800;
    /// A near replica may serve it.
    pub const LOCALIZE_READS: u32 = 0x2000;
    /// Order it with writes.
    pub const RWORDERED: u32 = 0x4000;
    /// Ignore cache tiers.
    pub const IGNORE_CACHE: u32 = 0x8000;
    /// Skip read/write locks.
    pub const SKIPRWLOCKS: u32 = 0x1_0000;
    /// Ignore cache overlays.
    pub const IGNORE_OVERLAY: u32 = 0x2_0000;
    /// The client knows about redirects.
    pub const KNOWN_REDIR: u32 = 0x40_0000;
    /// On a full pool fail instead of waiting.
    pub const FULL_TRY: u32 = 0x80_0000;
    /// Allowed even when full.
    pub const FULL_FORCE: u32 = 0x100_0000;
    /// Writes may return data.
    pub const RETURNVEC: u32 = 0x400_0000;
}

/// Operations on one object, or on a PG (type 42).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MOsdOp {
    /// The PG and, in erasure-coded pools, the shard.
    pub spg: SpgId,
    /// All 32 bits of the object's hash; the position for PG ops.
    pub hash: u32,
    /// The client's OSD map epoch.
    pub epoch: Epoch,
    /// See [`flag`].
    pub flags: u32,
    /// All zero from clients: they are named by their session and the header's tid.
    pub reqid: ReqId,
    /// Tracing ids, zero.
    pub trace: [u64; 3],
    /// Incarnation of the client, 0.
    pub client_inc: u32,
    /// The client's clock; becomes the object's modification time.
    pub mtime: UTime,
    /// Pool, key, namespace.
    pub locator: ObjectLocator,
    /// Object name, empty for PG ops.
    pub oid: Bytes,
    /// The vector.
    pub ops: Vec<OsdOp>,
    /// What to read: [`SNAP_HEAD`], `SNAP_DIR` or a snapshot.
    pub snapid: u64,
    /// Newest snapshot of the write's context.
    pub snap_seq: u64,
    /// The write's snapshots, newest first.
    pub snaps: Vec<u64>,
    /// Number of the attempt from 0; the reply echoes it.
    pub retry_attempt: i32,
    /// The client's features.
    pub features: u64,
}

impl MOsdOp {
    /// A request for the head of an object with nothing else set.
    pub fn new(spg: SpgId, hash: u32, locator: ObjectLocator, oid: Bytes, ops: Vec<OsdOp>) -> Self {
        Self {
            spg,
            hash,
            epoch: 0,
            flags: 0,
            reqid: ReqId::default(),
            trace: [0; 3],
            client_inc: 0,
            mtime: UTime::ZERO,
            locator,
            oid,
            ops,
            snapid: SNAP_HEAD,
            snap_seq: 0,
            snaps: Vec::new(),
            retry_attempt: 0,
            features: spirula_types::features::PACIFIC,
        }
    }

    /// The object it names, as a head.
    pub fn hobject(&self) -> HObject {
        // A key equal to the name places the object no differently and is not kept.
        let key =
            if self.locator.key == self.oid { Bytes::new() } else { self.locator.key.clone() };
        HObject {
            key,
            name: self.oid.clone(),
            snap: SNAP_HEAD,
            hash: self.hash,
            max: false,
            namespace: self.locator.namespace.clone(),
            pool: self.spg.pg.pool,
        }
    }

    /// Whether a flag is set.
    pub fn has_flag(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Reads a vector's fixed parts and slices its inputs out of `data`.
    fn get_ops(d: &mut Decoder<'_>, data: &Bytes) -> Result<Vec<OsdOp>, DecodeError> {
        let n = usize::from(d.u16()?);
        check_count(d, n, OP_WIRE_LEN)?;
        let mut rest = data.clone();
        let mut ops = Vec::with_capacity(n);
        for _ in 0..n {
            let (mut op, len) = OsdOp::get_fixed(d)?;
            op.indata = split(&mut rest, len)?;
            ops.push(op);
        }
        Ok(ops)
    }

    fn get_trace(d: &mut Decoder<'_>) -> Result<[u64; 3], DecodeError> {
        Ok([d.u64()?, d.u64()?, d.u64()?])
    }

    /// Layouts 4 to 6, of clients without the newer op encodings.
    fn read_v4(version: u16, d: &mut Decoder<'_>, data: &Bytes) -> Result<Self, DecodeError> {
        let client_inc = d.u32()?;
        let epoch = d.u32()?;
        let flags = d.u32()?;
        let mtime = d.get()?;
        d.get::<EVersion>()?;
        let locator = d.get()?;
        let pg: PgId = d.get()?;
        let oid = d.get()?;
        let ops = Self::get_ops(d, data)?;
        let snapid = d.u64()?;
        let snap_seq = d.u64()?;
        let snaps = d.list(8, Decoder::u64)?;
        let retry_attempt = d.i32()?;
        let features = if version >= 5 { d.u64()? } else { 0 };
        let mut reqid: ReqId = if version >= 6 { d.get()? } else { ReqId::default() };
        if reqid.tid == 0 {
            reqid.inc = client_inc as i32;
        }
        Ok(Self {
            spg: SpgId { pg, shard: -1 },
            hash: pg.seed,
            epoch,
            flags,
            reqid,
            trace: [0; 3],
            client_inc,
            mtime,
            locator,
            oid,
            ops,
            snapid,
            snap_seq,
            snaps,
            retry_attempt,
            features,
        })
    }
}

/// Checks that `n` elements of `size` bytes can be left.
fn check_count(d: &Decoder<'_>, n: usize, size: usize) -> Result<(), DecodeError> {
    let have = d.remaining();
    if n.saturating_mul(size) > have { Err(DecodeError::Count { count: n, have }) } else { Ok(()) }
}

impl Body for MOsdOp {
    const KIND: u16 = kind::OSD_OP;
    const VERSION: u16 = 8;
    const COMPAT: u16 = 3;
    const PRIORITY: u16 = kind::PRIORITY_CLIENT_OP;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::with_capacity(
            200 + self.oid.len()
                + self.locator.key.len()
                + self.locator.namespace.len()
                + self.ops.len() * OP_WIRE_LEN
                + self.snaps.len() * 8,
        );
        o.put(&self.spg);
        o.u32(self.hash);
        o.u32(self.epoch);
        o.u32(self.flags);
        o.put(&self.reqid);
        for t in self.trace {
            o.u64(t);
        }
        o.u32(self.client_inc);
        o.put(&self.mtime);
        o.put(&self.locator);
        o.put(&self.oid);
        o.u16(self.ops.len() as u16);
        for op in &self.ops {
            op.put_fixed(&mut o, op.indata.len());
        }
        o.u64(self.snapid);
        o.u64(self.snap_seq);
        o.put(&self.snaps);
        o.i32(self.retry_attempt);
        o.u64(self.features);
        (o.into_vec(), join(self.ops.iter().map(|op| &op.indata)))
    }

    fn read(version: u16, front: &Bytes, data: &Bytes) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(front);
        match version {
            0..4 => {
                return Err(DecodeError::TooOld {
                    what: "MOSDOp",
                    version: version as u8,
                    oldest: 4,
                });
            }
            4..7 => return Self::read_v4(version, d, data),
            _ => {}
        }
        let (spg, hash, epoch, flags, reqid, trace);
        if version == 7 {
            let pg: PgId = d.get()?;
            spg = SpgId { pg, shard: -1 };
            hash = pg.seed;
            epoch = d.u32()?;
            flags = d.u32()?;
            d.get::<EVersion>()?;
            reqid = d.get()?;
            trace = [0; 3];
        } else {
            spg = d.get()?;
            hash = d.u32()?;
            epoch = d.u32()?;
            flags = d.u32()?;
            reqid = d.get()?;
            trace = Self::get_trace(d)?;
            // From v9 on a tracing struct (version 1, compat 1, short) may follow here; in
            // v8 the same place holds client_inc, which is 0 from every client.
            if version >= 9 && matches!(d.rest(), [1, 1, 0..=64, 0, 0, 0, ..]) {
                d.versioned("trace", 1, |_, _| Ok(()))?;
            }
        }
        Ok(Self {
            spg,
            hash,
            epoch,
            flags,
            reqid,
            trace,
            client_inc: d.u32()?,
            mtime: d.get()?,
            locator: d.get()?,
            oid: d.get()?,
            ops: Self::get_ops(d, data)?,
            snapid: d.u64()?,
            snap_seq: d.u64()?,
            snaps: d.list(8, Decoder::u64)?,
            retry_attempt: d.i32()?,
            features: d.u64()?,
        })
    }
}

/// What became of one op.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct OpResult {
    /// The op as in the request, its `indata` replaced by the **output**.
    pub op: OsdOp,
    /// Its own result.
    pub rval: i32,
    /// The crc32c of the output from seed `0xffff_ffff`, where whoever read it knows it. It is not
    /// on the wire.
    pub output_crc: Option<u32>,
}

/// Answers an [`MOsdOp`] (type 43).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MOsdOpReply {
    /// Object name.
    pub oid: Bytes,
    /// The PG.
    pub pg: PgId,
    /// The request's flags and [`flag::ACK`].
    pub flags: u64,
    /// 0 or −errno (pgnls: 0 or 1).
    pub result: i32,
    /// Zero.
    pub bad_replay: EVersion,
    /// The OSD's map epoch.
    pub epoch: Epoch,
    /// Results in request order.
    pub ops: Vec<OpResult>,
    /// As in the request; another value makes the client drop the reply.
    pub retry_attempt: i32,
    /// Version of the log entry of a write; zero for reads.
    pub replay_version: EVersion,
    /// User version of the object.
    pub user_version: u64,
}

impl MOsdOpReply {
    /// A reply to `request` with `result` and no outputs.
    pub fn to(request: &MOsdOp, epoch: Epoch, result: i32) -> Self {
        Self::with(request, epoch, result, Self::none(request))
    }

    /// The crc32c of the message's data from seed `0xffff_ffff`, if it is known: that of the only
    /// output there is.
    pub fn data_crc(&self) -> Option<u32> {
        let mut filled = self.ops.iter().filter(|r| !r.op.indata.is_empty());
        let only = filled.next()?;
        if filled.next().is_some() { None } else { only.output_crc }
    }

    /// The ops of `request` as those of a reply where none of them gave anything.
    pub fn none(request: &MOsdOp) -> Vec<OpResult> {
        let none = |op: &OsdOp| OpResult {
            op: OsdOp { indata: Bytes::new(), ..*op },
            rval: 0,
            output_crc: None,
        };
        request.ops.iter().map(none).collect()
    }

    /// A reply to `request` with `result` and what each op gave.
    pub fn with(request: &MOsdOp, epoch: Epoch, result: i32, ops: Vec<OpResult>) -> Self {
        Self {
            oid: request.oid.clone(),
            pg: request.spg.pg,
            flags: u64::from(request.flags | flag::ACK),
            result,
            bad_replay: EVersion::default(),
            epoch,
            ops,
            retry_attempt: request.retry_attempt,
            replay_version: EVersion::default(),
            user_version: 0,
        }
    }
}

impl Body for MOsdOpReply {
    const KIND: u16 = kind::OSD_OP_REPLY;
    const VERSION: u16 = 8;
    const COMPAT: u16 = 2;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o =
            Encoder::with_capacity(112 + self.oid.len() + self.ops.len() * (OP_WIRE_LEN + 4));
        o.put(&self.oid);
        o.put(&self.pg);
        o.u64(self.flags);
        o.i32(self.result);
        o.put(&self.bad_replay);
        o.u32(self.epoch);
        o.len32(self.ops.len());
        for r in &self.ops {
            r.op.put_fixed(&mut o, r.op.indata.len());
        }
        o.i32(self.retry_attempt);
        for r in &self.ops {
            o.i32(r.rval);
        }
        o.put(&self.replay_version);
        o.u64(self.user_version);
        o.u8(0); // no redirect
        o.zeros(24); // trace
        (o.into_vec(), join(self.ops.iter().map(|r| &r.op.indata)))
    }

    fn read(version: u16, front: &Bytes, data: &Bytes) -> Result<Self, DecodeError> {
        if version < 7 {
            return Err(DecodeError::TooOld {
                what: "MOSDOpReply",
                version: version as u8,
                oldest: 7,
            });
        }
        let d = &mut Decoder::new(front);
        let oid = d.get()?;
        let pg = d.get()?;
        let flags = d.u64()?;
        let result = d.i32()?;
        let bad_replay = d.get()?;
        let epoch = d.u32()?;
        let n = d.count(OP_WIRE_LEN)?;
        let mut ops = Vec::with_capacity(n);
        let mut rest = data.clone();
        for _ in 0..n {
            let (mut op, len) = OsdOp::get_fixed(d)?;
            op.indata = split(&mut rest, len)?;
            ops.push(OpResult { op, rval: 0, output_crc: None });
        }
        let retry_attempt = d.i32()?;
        for r in &mut ops {
            r.rval = d.i32()?;
        }
        let replay_version = d.get()?;
        let user_version = d.u64()?;
        // A redirect (to a manifest object) and tracing ids may follow; we send neither and
        // as a client do not follow redirects, which no pool of ours makes.
        Ok(Self {
            oid,
            pg,
            flags,
            result,
            bad_replay,
            epoch,
            ops,
            retry_attempt,
            replay_version,
            user_version,
        })
    }
}

/// A notification to a watcher, or its completion to the notifier (type 44).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MWatchNotify {
    /// One of [`notify_op`].
    pub opcode: u8,
    /// Cookie of the watch, or of the notify for its completion.
    pub cookie: u64,
    /// User version of the object.
    pub version: u64,
    /// The notification.
    pub notify_id: u64,
    /// What the notifier sent.
    pub payload: Bytes,
    /// 0, or −ETIMEDOUT in a completion.
    pub return_code: i32,
    /// Global id of the notifier.
    pub notifier: u64,
    /// Data segment: the replies, in a completion.
    pub data: Bytes,
}

/// Opcodes of [`MWatchNotify`].
pub mod notify_op {
    /// For a watcher: somebody notified.
    pub const NOTIFY: u8 = 1;
    /// For the notifier: all answered, or time is over.
    pub const COMPLETE: u8 = 2;
    /// For a watcher: the watch is gone.
    pub const DISCONNECT: u8 = 3;
}

/// Reply to a notification, by watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotifyReply {
    /// Global id of the watcher.
    pub client: u64,
    /// Its watch.
    pub cookie: u64,
    /// What it answered.
    pub reply: Bytes,
}

/// A completion's content: replies, and (global id, cookie) of watchers that did not answer.
pub type Completion = (Vec<NotifyReply>, Vec<(u64, u64)>);

impl MWatchNotify {
    /// The data segment of a completion: replies, and the watchers that did not answer.
    pub fn completion_data(replies: &[NotifyReply], missed: &[(u64, u64)]) -> Bytes {
        let mut o = Encoder::new();
        o.list(replies, |o, r| {
            o.u64(r.client);
            o.u64(r.cookie);
            o.put(&r.reply);
        });
        o.put(missed);
        o.into_bytes()
    }

    /// Reads [`MWatchNotify::completion_data`].
    ///
    /// # Errors
    /// [`DecodeError`] for anything else.
    pub fn read_completion(data: &[u8]) -> Result<Completion, DecodeError> {
        let d = &mut Decoder::new(data);
        let replies = d.list(20, |d| {
            Ok(NotifyReply { client: d.u64()?, cookie: d.u64()?, reply: d.bytes()? })
        })?;
        let missed = d.list(16, |d| d.get())?;
        Ok((replies, missed))
    }
}

impl Body for MWatchNotify {
    const KIND: u16 = kind::WATCH_NOTIFY;
    const VERSION: u16 = 3;
    const COMPAT: u16 = 1;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::with_capacity(48 + self.payload.len());
        o.u8(1);
        o.u8(self.opcode);
        o.u64(self.cookie);
        o.u64(self.version);
        o.u64(self.notify_id);
        o.put(&self.payload);
        o.i32(self.return_code);
        o.u64(self.notifier);
        (o.into_vec(), self.data.clone())
    }

    fn read(version: u16, front: &Bytes, data: &Bytes) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(front);
        let inner = d.u8()?;
        Ok(Self {
            opcode: d.u8()?,
            cookie: d.u64()?,
            version: d.u64()?,
            notify_id: d.u64()?,
            payload: if inner >= 1 { d.bytes()? } else { Bytes::new() },
            return_code: if version >= 2 { d.i32()? } else { 0 },
            notifier: if version >= 3 { d.u64()? } else { 0 },
            data: data.clone(),
        })
    }
}

/// Asks a client to hold back, or resend, ops on a range of objects (type 61).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MOsdBackoff {
    /// The PG.
    pub spg: SpgId,
    /// Map epoch.
    pub epoch: Epoch,
    /// One of [`backoff_op`].
    pub op: u8,
    /// Identifies the backoff.
    pub id: u64,
    /// First object held back.
    pub begin: HObject,
    /// First object not held back.
    pub end: HObject,
}

/// Opcodes of [`MOsdBackoff`].
pub mod backoff_op {
    /// Hold back.
    pub const BLOCK: u8 = 1;
    /// The client does.
    pub const ACK_BLOCK: u8 = 2;
    /// Resend.
    pub const UNBLOCK: u8 = 3;
}

impl Body for MOsdBackoff {
    const KIND: u16 = kind::OSD_BACKOFF;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::with_capacity(128);
        o.put(&self.spg);
        o.u32(self.epoch);
        o.u8(self.op);
        o.u64(self.id);
        o.put(&self.begin);
        o.put(&self.end);
        (o.into_vec(), Bytes::new())
    }

    fn read(_: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(front);
        Ok(Self {
            spg: d.get()?,
            epoch: d.u32()?,
            op: d.u8()?,
            id: d.u64()?,
            begin: d.get()?,
            end: d.get()?,
        })
    }
}
