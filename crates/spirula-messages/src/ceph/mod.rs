//! Ceph's own messages, as its clients send and expect them (`docs/protocol`).
//!
//! One struct per message type; its name is Ceph's in Rust spelling (`MOSDOp` is [`MOsdOp`]).
//! Each implements [`crate::Body`]: `MOsdOp::from_message(&m)?` reads one,
//! `body.into_message(tid)` makes one. Maps inside messages are carried encoded: this crate
//! knows no map.
//!
//! * [`op`] — one operation of an op vector: numbers, names, typed arguments, constructors
//! * [`osd`] — client ↔ OSD: ops and replies, notifications, backoffs
//! * [`mon`] — client ↔ monitor: subscriptions, commands, pools, statistics, tickets
//! * [`maps`] — maps on their way to whoever subscribed
//! * [`mds`] — metadata server → monitor
//! * [`mgr`] — client ↔ manager; [`command`] — `ceph tell`; [`log`] — the cluster log
//! * [`stats`] — the pool statistics inside `MGetPoolStatsReply`
//!
//! Decoders copy names (a name must not pin a 4 MiB receive buffer) and slice payloads.
//! Versions are those a Pacific 16.2.15 peer uses after agreeing on
//! [`spirula_types::features::PACIFIC`].

pub mod command;
pub mod kind;
pub mod log;
pub mod maps;
pub mod mds;
pub mod mgr;
pub mod mon;
pub mod op;
pub mod osd;
pub mod stats;

pub use command::{MCommand, MCommandReply};
pub use log::{LogEntry, MLog, MLogAck};
pub use maps::{MFsMap, MFsMapUser, MMdsMap, MMgrMap, MMonMap, MOsdMap};
pub use mds::{MMdsBeacon, MMdsLoadTargets, MdsHealth, MdsMetric};
pub use mgr::{
    MMgrClose, MMgrCommand, MMgrCommandReply, MMgrConfigure, MMgrOpen, MMgrReport, ServiceDaemon,
};
pub use mon::{
    MAuth, MAuthReply, MConfig, MGetPoolStats, MGetPoolStatsReply, MMonCommand, MMonCommandAck,
    MMonGetMap, MMonGetVersion, MMonGetVersionReply, MMonSubscribe, MPing, MPoolOp, MPoolOpReply,
    MRemoveSnaps, MStatfs, MStatfsReply, Subscription,
};
pub use op::OsdOp;
pub use osd::{MOsdBackoff, MOsdOp, MOsdOpReply, MWatchNotify, OpResult};
pub use stats::{ObjectStats, PoolStats, StoreStats};

use bytes::Bytes;
use spirula_encoding::{DecodeError, Decoder, Encoder};

/// Writes the prefix of every message that once belonged to a Paxos service: version, an
/// unused rank (−1) and an unused tid (0). Source: `docs/protocol/mon.md` §1.
fn put_paxos(out: &mut Encoder, version: u64) {
    out.u64(version);
    out.i16(-1);
    out.u64(0);
}

/// Reads that prefix; only the version has a meaning.
fn get_paxos(d: &mut Decoder<'_>) -> Result<u64, DecodeError> {
    let version = d.u64()?;
    d.i16()?;
    d.u64()?;
    Ok(version)
}

/// Reads a blob as a slice of `whole`, the buffer `d` reads from: no copy.
fn get_slice(d: &mut Decoder<'_>, whole: &Bytes) -> Result<Bytes, DecodeError> {
    Ok(whole.slice_ref(d.blob()?))
}

/// The bytes not read yet, as a slice of `whole`.
fn rest_slice(d: &Decoder<'_>, whole: &Bytes) -> Bytes {
    whole.slice_ref(d.rest())
}

/// Joins the parts of a data segment; without a copy if only one is not empty.
fn join<'a>(parts: impl Iterator<Item = &'a Bytes> + Clone) -> Bytes {
    let mut filled = parts.clone().filter(|p| !p.is_empty());
    match (filled.next(), filled.next()) {
        (None, _) => Bytes::new(),
        (Some(one), None) => one.clone(),
        _ => {
            let mut all = Vec::with_capacity(parts.clone().map(Bytes::len).sum());
            for p in parts {
                all.extend_from_slice(p);
            }
            all.into()
        }
    }
}
