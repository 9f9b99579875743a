//! Messages between clients and monitors. Source: `docs/protocol/mon.md` §1.

use super::{get_paxos, kind, put_paxos, stats::PoolStats};
use crate::Body;
use bytes::Bytes;
use spirula_encoding::{DecodeError, Decoder, Encoder};
use spirula_types::{Epoch, PoolId, Uuid};
use std::collections::BTreeMap;

/// Keep-alive (2), empty; from a monitor to `ceph ping` it holds a JSON text.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MPing {
    /// Health and status as JSON, in a monitor's answer.
    pub text: Option<String>,
}

impl Body for MPing {
    const KIND: u16 = kind::PING;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::new();
        if let Some(t) = &self.text {
            o.str(t);
        }
        (o.into_vec(), Bytes::new())
    }

    fn read(_: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(front);
        Ok(Self { text: if d.is_empty() { None } else { Some(d.get()?) } })
    }
}

/// Asks for the monitor map (5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct MMonGetMap;

impl Body for MMonGetMap {
    const KIND: u16 = kind::MON_GET_MAP;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        (Vec::new(), Bytes::new())
    }

    fn read(_: u16, _: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        Ok(Self)
    }
}

/// Asks for space used and free (13).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct MStatfs {
    /// Version seen.
    pub version: u64,
    /// The cluster.
    pub fsid: Uuid,
    /// Only this data pool.
    pub pool: Option<PoolId>,
}

impl Body for MStatfs {
    const KIND: u16 = kind::STATFS;
    const VERSION: u16 = 2;
    const COMPAT: u16 = 1;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::with_capacity(44);
        put_paxos(&mut o, self.version);
        o.put(&self.fsid);
        o.bool(self.pool.is_some());
        if let Some(p) = self.pool {
            o.i64(p);
        }
        (o.into_vec(), Bytes::new())
    }

    fn read(version: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(front);
        Ok(Self {
            version: get_paxos(d)?,
            fsid: d.get()?,
            pool: if version >= 2 && d.bool()? { Some(d.i64()?) } else { None },
        })
    }
}

/// Answers [`MStatfs`] (14).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct MStatfsReply {
    /// The cluster.
    pub fsid: Uuid,
    /// Version of the statistics.
    pub version: u64,
    /// KiB in total.
    pub kb: u64,
    /// KiB used.
    pub kb_used: u64,
    /// KiB free.
    pub kb_avail: u64,
    /// Objects.
    pub num_objects: u64,
}

impl Body for MStatfsReply {
    const KIND: u16 = kind::STATFS_REPLY;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;
    const PRIORITY: u16 = kind::PRIORITY_MON;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::with_capacity(56);
        o.put(&self.fsid);
        for v in [self.version, self.kb, self.kb_used, self.kb_avail, self.num_objects] {
            o.u64(v);
        }
        (o.into_vec(), Bytes::new())
    }

    fn read(_: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(front);
        Ok(Self {
            fsid: d.get()?,
            version: d.u64()?,
            kb: d.u64()?,
            kb_used: d.u64()?,
            kb_avail: d.u64()?,
            num_objects: d.u64()?,
        })
    }
}

/// One entry of [`MMonSubscribe`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// What: `osdmap`, `monmap`, `config`, `mgrmap`, `log-info`…
    pub what: String,
    /// First epoch wanted; 0 for whatever is newest.
    pub start: u64,
    /// Only one answer (bit 0 of the flags).
    pub once: bool,
}

/// Subscribes (15). v2 (kernel) has no host name.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MMonSubscribe {
    /// The wanted maps.
    pub what: Vec<Subscription>,
    /// Name of the client's host.
    pub hostname: String,
}

impl Body for MMonSubscribe {
    const KIND: u16 = kind::MON_SUBSCRIBE;
    const VERSION: u16 = 3;
    const COMPAT: u16 = 1;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::new();
        o.list(&self.what, |o, s| {
            o.str(&s.what);
            o.u64(s.start);
            o.u8(u8::from(s.once));
        });
        o.str(&self.hostname);
        (o.into_vec(), Bytes::new())
    }

    fn read(version: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        if version < 2 {
            return Err(DecodeError::TooOld {
                what: "MMonSubscribe",
                version: version as u8,
                oldest: 2,
            });
        }
        let d = &mut Decoder::new(front);
        let what = d.list(13, |d| {
            Ok(Subscription { what: d.get()?, start: d.u64()?, once: d.u8()? & 1 != 0 })
        })?;
        Ok(Self { what, hostname: if version >= 3 { d.get()? } else { String::new() } })
    }
}

/// Ticket request within a session (17).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MAuth {
    /// Version seen.
    pub version: u64,
    /// 1 none, 2 cephx; 0 lists what the client knows.
    pub protocol: u32,
    /// The method's request.
    pub payload: Bytes,
    /// The client's monitor map.
    pub monmap_epoch: Epoch,
}

impl Body for MAuth {
    const KIND: u16 = kind::AUTH;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::new();
        put_paxos(&mut o, self.version);
        o.u32(self.protocol);
        o.put(&self.payload);
        o.u32(self.monmap_epoch);
        (o.into_vec(), Bytes::new())
    }

    fn read(_: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(front);
        Ok(Self {
            version: get_paxos(d)?,
            protocol: d.u32()?,
            payload: d.bytes()?,
            monmap_epoch: if d.is_empty() { 0 } else { d.u32()? },
        })
    }
}

/// Answers [`MAuth`] (18).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MAuthReply {
    /// As in the request.
    pub protocol: u32,
    /// 0 or −errno.
    pub result: i32,
    /// The client's global id.
    pub global_id: u64,
    /// The method's answer.
    pub payload: Bytes,
    /// Text for a failure.
    pub message: String,
}

impl Body for MAuthReply {
    const KIND: u16 = kind::AUTH_REPLY;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;
    const PRIORITY: u16 = kind::PRIORITY_MON;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::new();
        o.u32(self.protocol);
        o.i32(self.result);
        o.u64(self.global_id);
        o.put(&self.payload);
        o.str(&self.message);
        (o.into_vec(), Bytes::new())
    }

    fn read(_: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(front);
        Ok(Self {
            protocol: d.u32()?,
            result: d.i32()?,
            global_id: d.u64()?,
            payload: d.bytes()?,
            message: d.get()?,
        })
    }
}

/// Asks for the newest version of a map (19). The header's tid is 0; the handle pairs.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MMonGetVersion {
    /// Echoed.
    pub handle: u64,
    /// `osdmap`, `mdsmap`, `fsmap`…
    pub what: String,
}

impl Body for MMonGetVersion {
    const KIND: u16 = kind::MON_GET_VERSION;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::new();
        o.u64(self.handle);
        o.str(&self.what);
        (o.into_vec(), Bytes::new())
    }

    fn read(_: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(front);
        Ok(Self { handle: d.u64()?, what: d.get()? })
    }
}

/// Answers [`MMonGetVersion`] (20).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct MMonGetVersionReply {
    /// From the request.
    pub handle: u64,
    /// Newest committed version.
    pub newest: u64,
    /// Oldest kept version.
    pub oldest: u64,
}

impl Body for MMonGetVersionReply {
    const KIND: u16 = kind::MON_GET_VERSION_REPLY;
    const VERSION: u16 = 2;
    const COMPAT: u16 = 2;
    const PRIORITY: u16 = kind::PRIORITY_MON;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::with_capacity(24);
        o.u64(self.handle);
        o.u64(self.newest);
        o.u64(self.oldest);
        (o.into_vec(), Bytes::new())
    }

    fn read(version: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(front);
        Ok(Self {
            handle: d.u64()?,
            newest: d.u64()?,
            oldest: if version >= 2 { d.u64()? } else { 0 },
        })
    }
}

/// Operations of [`MPoolOp`].
pub mod pool_op {
    /// Creates a pool.
    pub const CREATE: u32 = 1;
    /// Deletes a pool.
    pub const DELETE: u32 = 2;
    /// Creates a pool snapshot by name.
    pub const CREATE_SNAP: u32 = 0x11;
    /// Deletes a pool snapshot by name.
    pub const DELETE_SNAP: u32 = 0x12;
    /// Allocates a self-managed snapshot id.
    pub const CREATE_UNMANAGED_SNAP: u32 = 0x21;
    /// Deletes a self-managed snapshot id.
    pub const DELETE_UNMANAGED_SNAP: u32 = 0x22;
}

/// Creates or deletes a pool or snapshot (49).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MPoolOp {
    /// Version seen.
    pub version: u64,
    /// The cluster.
    pub fsid: Uuid,
    /// The pool; 0 for creation.
    pub pool: u32,
    /// One of [`pool_op`].
    pub op: u32,
    /// Snapshot to delete.
    pub snap: u64,
    /// Name of the pool or snapshot.
    pub name: String,
    /// CRUSH rule for a new pool, −1 for the default (0 where it has no meaning).
    pub crush_rule: i16,
}

impl Body for MPoolOp {
    const KIND: u16 = kind::POOL_OP;
    const VERSION: u16 = 4;
    const COMPAT: u16 = 2;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::new();
        put_paxos(&mut o, self.version);
        o.put(&self.fsid);
        o.u32(self.pool);
        o.u32(self.op);
        o.u64(0); // owner, gone
        o.u64(self.snap);
        o.str(&self.name);
        o.u8(0); // crush rule in its old, 8-bit place
        o.i16(self.crush_rule);
        (o.into_vec(), Bytes::new())
    }

    fn read(version: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(front);
        let seen = get_paxos(d)?;
        let fsid = d.get()?;
        let pool = d.u32()?;
        let op = d.u32()?;
        d.u64()?;
        let snap = d.u64()?;
        let name = d.get()?;
        let old_rule = if version >= 3 { d.u8()? } else { 0 };
        let crush_rule = if version >= 4 { d.i16()? } else { i16::from(old_rule) };
        Ok(Self { version: seen, fsid, pool, op, snap, name, crush_rule })
    }
}

/// Answers [`MPoolOp`] (48).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MPoolOpReply {
    /// Committed version.
    pub version: u64,
    /// The cluster.
    pub fsid: Uuid,
    /// 0 or −errno.
    pub result: i32,
    /// OSD map epoch the client waits for.
    pub epoch: Epoch,
    /// For [`pool_op::CREATE_UNMANAGED_SNAP`]: the new snapshot id, a little-endian u64.
    pub data: Option<Bytes>,
}

impl Body for MPoolOpReply {
    const KIND: u16 = kind::POOL_OP_REPLY;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;
    const PRIORITY: u16 = kind::PRIORITY_MON;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::new();
        put_paxos(&mut o, self.version);
        o.put(&self.fsid);
        o.i32(self.result);
        o.u32(self.epoch);
        o.bool(self.data.is_some());
        if let Some(b) = &self.data {
            o.put(b);
        }
        (o.into_vec(), Bytes::new())
    }

    fn read(_: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(front);
        Ok(Self {
            version: get_paxos(d)?,
            fsid: d.get()?,
            result: d.i32()?,
            epoch: d.u32()?,
            data: if d.bool()? { Some(d.bytes()?) } else { None },
        })
    }
}

/// A command for the monitors (50).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MMonCommand {
    /// Version seen.
    pub version: u64,
    /// The cluster.
    pub fsid: Uuid,
    /// JSON, one text.
    pub cmd: Vec<String>,
    /// Input file; the data segment.
    pub input: Bytes,
}

impl Body for MMonCommand {
    const KIND: u16 = kind::MON_COMMAND;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::new();
        put_paxos(&mut o, self.version);
        o.put(&self.fsid);
        o.put(&self.cmd);
        (o.into_vec(), self.input.clone())
    }

    fn read(_: u16, front: &Bytes, data: &Bytes) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(front);
        Ok(Self {
            version: get_paxos(d)?,
            fsid: d.get()?,
            cmd: d.list(4, |d| d.get())?,
            input: data.clone(),
        })
    }
}

/// Answers [`MMonCommand`] (51).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MMonCommandAck {
    /// Epoch in which a change was committed.
    pub version: u64,
    /// 0 or −errno.
    pub result: i32,
    /// What the tool prints on stderr.
    pub status: String,
    /// The command, echoed.
    pub cmd: Vec<String>,
    /// What the tool prints on stdout; the data segment.
    pub output: Bytes,
}

impl Body for MMonCommandAck {
    const KIND: u16 = kind::MON_COMMAND_ACK;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;
    const PRIORITY: u16 = kind::PRIORITY_MON;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::new();
        put_paxos(&mut o, self.version);
        o.i32(self.result);
        o.str(&self.status);
        o.put(&self.cmd);
        (o.into_vec(), self.output.clone())
    }

    fn read(_: u16, front: &Bytes, data: &Bytes) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(front);
        Ok(Self {
            version: get_paxos(d)?,
            result: d.i32()?,
            status: d.get()?,
            cmd: d.list(4, |d| d.get())?,
            output: data.clone(),
        })
    }
}

/// Asks for statistics of pools by name (58).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MGetPoolStats {
    /// Version seen.
    pub version: u64,
    /// The cluster.
    pub fsid: Uuid,
    /// Names.
    pub pools: Vec<String>,
}

impl Body for MGetPoolStats {
    const KIND: u16 = kind::GET_POOL_STATS;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::new();
        put_paxos(&mut o, self.version);
        o.put(&self.fsid);
        o.put(&self.pools);
        (o.into_vec(), Bytes::new())
    }

    fn read(_: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(front);
        Ok(Self { version: get_paxos(d)?, fsid: d.get()?, pools: d.list(4, |d| d.get())? })
    }
}

/// Answers [`MGetPoolStats`] (59).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MGetPoolStatsReply {
    /// Version of the statistics.
    pub version: u64,
    /// The cluster.
    pub fsid: Uuid,
    /// By pool name; unknown names are left out.
    pub pools: BTreeMap<String, PoolStats>,
    /// Whether space is accounted by pool (true in Pacific).
    pub per_pool: bool,
}

impl Body for MGetPoolStatsReply {
    const KIND: u16 = kind::GET_POOL_STATS_REPLY;
    const VERSION: u16 = 2;
    const COMPAT: u16 = 1;
    const PRIORITY: u16 = kind::PRIORITY_MON;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::with_capacity(64 + self.pools.len() * 480);
        put_paxos(&mut o, self.version);
        o.put(&self.fsid);
        o.put(&self.pools);
        o.bool(self.per_pool);
        (o.into_vec(), Bytes::new())
    }

    fn read(version: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(front);
        Ok(Self {
            version: get_paxos(d)?,
            fsid: d.get()?,
            pools: d.get()?,
            per_pool: version >= 2 && d.bool()?,
        })
    }
}

/// Configuration options that differ from the default for the receiver (62).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MConfig {
    /// Name → value; may be empty, but the message must come.
    pub config: BTreeMap<String, String>,
}

impl Body for MConfig {
    const KIND: u16 = kind::CONFIG;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;
    const PRIORITY: u16 = kind::PRIORITY_MON;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::new();
        o.put(&self.config);
        (o.into_vec(), Bytes::new())
    }

    fn read(_: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        Ok(Self { config: Decoder::new(front).get()? })
    }
}

/// Snapshots an MDS wants removed (90); the monitor sends the same message back.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MRemoveSnaps {
    /// Version seen.
    pub version: u64,
    /// Snapshot ids by pool.
    pub snaps: BTreeMap<i32, Vec<u64>>,
}

impl Body for MRemoveSnaps {
    const KIND: u16 = kind::REMOVE_SNAPS;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::new();
        put_paxos(&mut o, self.version);
        o.put(&self.snaps);
        (o.into_vec(), Bytes::new())
    }

    fn read(_: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(front);
        Ok(Self { version: get_paxos(d)?, snaps: d.get()? })
    }
}
