//! What metadata servers tell the monitors. Source: `docs/protocol/mds.md` §5.

use super::{get_paxos, kind, put_paxos};
use crate::Body;
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};
use spirula_types::Uuid;
use std::collections::{BTreeMap, BTreeSet};

/// The state in a beacon of a server that just started; only then its facts are in it.
const BOOT: i32 = -4;

/// One thing that a metadata server finds wrong (MDSHealthMetric).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MdsMetric {
    /// Number of the kind of trouble; 0 is none.
    pub kind: u16,
    /// As health checks have it: 0 error, 1 warning, 2 fine.
    pub severity: u8,
    /// A sentence for people.
    pub message: String,
    /// Facts about it.
    pub metadata: BTreeMap<String, String>,
}

impl Encode for MdsMetric {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u16(self.kind);
            o.u8(self.severity);
            o.str(&self.message);
            o.put(&self.metadata);
        });
    }
}

impl Decode for MdsMetric {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("MDSHealthMetric", 1, |d, _| {
            Ok(Self { kind: d.u16()?, severity: d.u8()?, message: d.get()?, metadata: d.get()? })
        })
    }
}

/// Everything that a metadata server finds wrong (MDSHealth).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MdsHealth {
    /// One by one.
    pub metrics: Vec<MdsMetric>,
}

impl Encode for MdsHealth {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| o.put(&self.metrics));
    }
}

impl Decode for MdsHealth {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("MDSHealth", 1, |d, _| Ok(Self { metrics: d.get()? }))
    }
}

/// "I am here, in this state" (100), every few seconds; the monitor sends it back with the same
/// number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MMdsBeacon {
    /// Epoch of the map that the server acts by.
    pub epoch: u64,
    /// The cluster.
    pub fsid: Uuid,
    /// The server's global id.
    pub gid: u64,
    /// The state that it is in, or would like to be in.
    pub state: i32,
    /// Number of the beacon.
    pub seq: u64,
    /// The server's name.
    pub name: String,
    /// Encoded CompatSet: what it understands.
    pub compat: Bytes,
    /// What it finds wrong.
    pub health: MdsHealth,
    /// Facts about it, when it boots.
    pub facts: BTreeMap<String, String>,
    /// Its features.
    pub features: u64,
    /// The file system that it would rather serve; empty for any.
    pub fs: String,
}

/// Reads a CompatSet, three sets of numbers with names, and gives back its bytes.
fn compat_slice(d: &mut Decoder<'_>, front: &Bytes) -> Result<Bytes, DecodeError> {
    let before = d.rest();
    for _ in 0..3 {
        d.u64()?;
        d.get::<BTreeMap<u64, String>>()?;
    }
    let len = before.len() - d.rest().len();
    Ok(front.slice_ref(before.get(..len).unwrap_or_default()))
}

/// An empty CompatSet, as a monitor sends.
const NO_COMPAT: &[u8] = &[0; 36];

impl Body for MMdsBeacon {
    const KIND: u16 = kind::MDS_BEACON;
    const VERSION: u16 = 8;
    const COMPAT: u16 = 6;
    const PRIORITY: u16 = kind::PRIORITY_MON;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::new();
        put_paxos(&mut o, self.epoch);
        o.put(&self.fsid);
        o.u64(self.gid);
        o.i32(self.state);
        o.u64(self.seq);
        o.str(&self.name);
        o.i32(-1); // rank it would follow, gone
        o.str(""); // name of a server it would follow, gone
        o.raw(if self.compat.is_empty() { NO_COMPAT } else { &self.compat });
        o.put(&self.health);
        if self.state == BOOT {
            o.put(&self.facts);
        }
        o.u64(self.features);
        o.i32(-1); // file system it would follow in, gone
        o.bool(false); // whether it would follow, gone
        o.str(&self.fs);
        (o.into_vec(), Bytes::new())
    }

    fn read(version: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(front);
        let mut b = Self {
            epoch: get_paxos(d)?,
            fsid: d.get()?,
            gid: d.u64()?,
            state: d.i32()?,
            seq: d.u64()?,
            name: d.get()?,
            ..Self::default()
        };
        d.i32()?;
        d.blob()?;
        b.compat = compat_slice(d, front)?;
        b.health = d.get()?;
        if b.state == BOOT {
            b.facts = d.get()?;
        }
        b.features = d.u64()?;
        d.i32()?;
        if version >= 7 {
            d.bool()?;
        }
        if version >= 8 {
            b.fs = d.get()?;
        }
        Ok(b)
    }
}

/// The ranks to which a metadata server moves parts of its tree (0x20a).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MMdsLoadTargets {
    /// Version seen.
    pub version: u64,
    /// The server's global id.
    pub gid: u64,
    /// The ranks.
    pub targets: BTreeSet<i32>,
}

impl Body for MMdsLoadTargets {
    const KIND: u16 = kind::MDS_OFFLOAD_TARGETS;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::new();
        put_paxos(&mut o, self.version);
        o.u64(self.gid);
        o.put(&self.targets);
        (o.into_vec(), Bytes::new())
    }

    fn read(_: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(front);
        Ok(Self { version: get_paxos(d)?, gid: d.u64()?, targets: d.get()? })
    }
}
