//! OSD ↔ OSD messages (types 0x5340–0x537f).
//!
//! | type | body | carries |
//! |---|---|---|
//! | 0x5340 | [`PgTxn`] | one transaction: a recovery push, an answer to a pull; its payload is the data segment |
//! | 0x5341 | [`PgAcks`] | commits of replicated writes, any number of PGs |
//! | 0x5342 | [`PgCtls`] | peering and recovery control, any number of PGs |
//! | 0x5343 | [`super::write::PgWrite`] | a write, for one member; its payload is the data segment |
//! | 0x5350 | [`OsdPing`] | heartbeat and read lease, question |
//! | 0x5351 | [`OsdPong`] | heartbeat and read lease, answer |
//! | 0x5352 | [`OsdRenewed`] | what was sent before, over an earlier session, may be lost |
//!
//! Bodies that hold a list exist so that a daemon can batch what it has for one peer.
//! Messages of one PG between two OSDs must stay in order. What they mean, and why that is
//! safe, is written in `spirula-pg`.

use super::scrub::{ScrubHistory, ScrubMap};
use crate::Body;
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};
use spirula_types::{Dirty, EVersion, Epoch, HObject, OsdId, Peer, PgId};

/// Counts of what a PG holds and has served. Objects, bytes, operations, KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PgCounts {
    /// Objects.
    pub objects: i64,
    /// Logical bytes.
    pub bytes: i64,
    /// Objects with omap.
    pub omap_objects: i64,
    /// Omap keys.
    pub omap_keys: i64,
    /// Omap bytes.
    pub omap_bytes: i64,
    /// Reads served.
    pub reads: i64,
    /// KiB read.
    pub read_kb: i64,
    /// Writes served.
    pub writes: i64,
    /// KiB written.
    pub written_kb: i64,
    /// Objects, bytes and omaps were estimated: the next scrub corrects them.
    pub estimated: bool,
    /// Objects that are clones.
    pub clones: i64,
    /// Objects that are deleted and stay for their clones.
    pub whiteouts: i64,
}

impl PgCounts {
    fn fields(&self) -> [i64; 12] {
        [
            self.objects,
            self.bytes,
            self.omap_objects,
            self.omap_keys,
            self.omap_bytes,
            self.reads,
            self.read_kb,
            self.writes,
            self.written_kb,
            i64::from(self.estimated),
            self.clones,
            self.whiteouts,
        ]
    }
}

impl Encode for PgCounts {
    fn encode(&self, out: &mut Encoder) {
        out.list(self.fields(), |o, v| o.i64(v));
    }
}

impl Decode for PgCounts {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        // Each write brings one: no list is made of it. What a later version has more is passed
        // over.
        let mut v = [0; 12];
        for i in 0..d.count(8)? {
            let value = d.i64()?;
            if let Some(field) = v.get_mut(i) {
                *field = value;
            }
        }
        let f = |i: usize| v.get(i).copied().unwrap_or(0);
        Ok(Self {
            objects: f(0),
            bytes: f(1),
            omap_objects: f(2),
            omap_keys: f(3),
            omap_bytes: f(4),
            reads: f(5),
            read_kb: f(6),
            writes: f(7),
            written_kb: f(8),
            estimated: f(9) != 0,
            clones: f(10),
            whiteouts: f(11),
        })
    }
}

/// What every write changes of a PG: the small record that goes with each transaction, the same
/// on every member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PgHead {
    /// Newest log entry.
    pub last_update: EVersion,
    /// The sender's log holds every entry after this one; a member's own may begin later.
    pub log_tail: EVersion,
    /// Newest user version given out.
    pub last_user_version: u64,
    /// What the PG holds and has served.
    pub counts: PgCounts,
    /// In an erasure-coded pool: entries after this one can still be taken back here.
    pub rolled: EVersion,
    /// Requests were made here, or in what this PG was split from or merged of, that the log does
    /// not remember any more.
    pub forgot: bool,
}

impl Encode for PgHead {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(3, 1, |o| {
            o.put(&self.last_update);
            o.put(&self.log_tail);
            o.u64(self.last_user_version);
            o.put(&self.counts);
            o.put(&self.rolled);
            o.bool(self.forgot);
        });
    }
}

impl Decode for PgHead {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("PgHead", 3, |d, v| {
            Ok(Self {
                last_update: d.get()?,
                log_tail: d.get()?,
                last_user_version: d.get()?,
                counts: d.get()?,
                rolled: if v >= 2 { d.get()? } else { EVersion::default() },
                // Whoever did not say so may have.
                forgot: if v >= 3 { d.bool()? } else { true },
            })
        })
    }
}

/// A closed interval: epochs in which the PG's sets of OSDs stayed the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PastInterval {
    /// First epoch.
    pub first: Epoch,
    /// Last epoch.
    pub last: Epoch,
    /// Up set.
    pub up: Vec<Peer>,
    /// Acting set. Empty and `rw`: the maps of that time are lost, anybody may have served.
    pub acting: Vec<Peer>,
    /// Primary of the acting set.
    pub primary: Peer,
    /// It may have taken writes.
    pub rw: bool,
}

impl Encode for PastInterval {
    fn encode(&self, out: &mut Encoder) {
        out.u32(self.first);
        out.u32(self.last);
        out.put(&self.up);
        out.put(&self.acting);
        out.put(&self.primary);
        out.bool(self.rw);
    }
}

impl Decode for PastInterval {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            first: d.get()?,
            last: d.get()?,
            up: d.get()?,
            acting: d.get()?,
            primary: d.get()?,
            rw: d.bool()?,
        })
    }
}

/// The primary of an older interval, which may not know that it was replaced and serve reads by
/// leases that it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OldReader {
    /// The OSD.
    pub osd: OsdId,
    /// Last epoch of that interval, or a later one: an incarnation that began after it does not
    /// read.
    pub last: Epoch,
    /// For how long it may still read, at most, milliseconds from when this is sent on. Means
    /// nothing where it is stored.
    pub left_ms: u32,
}

impl Encode for OldReader {
    fn encode(&self, out: &mut Encoder) {
        out.put(&self.osd);
        out.u32(self.last);
        out.u32(self.left_ms);
    }
}

impl Decode for OldReader {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { osd: d.get()?, last: d.u32()?, left_ms: d.u32()? })
    }
}

/// What an OSD durably knows of a PG it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PgInfo {
    /// The PG.
    pub pg: PgId,
    /// PG number of the pool when this copy was last split.
    pub pg_num: u32,
    /// Epoch the PG's history starts in.
    pub created: Epoch,
    /// The PG under whose name it was created (itself, or the parent it was split from).
    pub origin: PgId,
    /// The interval whose primary created this history; another creation's copy is void once one
    /// is confirmed.
    pub creation: Epoch,
    /// The monitor has accepted that creation.
    pub confirmed: bool,
    /// What writes change.
    pub head: PgHead,
    /// First epoch of the last interval this copy was activated in; 0 for never.
    pub les: Epoch,
    /// First epoch of the last interval that every member is known to have been activated in.
    pub history_les: Epoch,
    /// Last epoch in which the PG was clean.
    pub lec: Epoch,
    /// Objects up to here are as the log says; the maximum for a whole copy.
    pub last_backfill: HObject,
    /// Objects that the log names and that this copy lacks. Counted when it is sent.
    pub missing: u32,
    /// Of what was written since its last activation it has got entries without data: its newest
    /// ones may be in the log of nobody who has their data. Found out when it is sent.
    pub hollow: bool,
    /// Its scrubs.
    pub scrub: ScrubHistory,
    /// Primaries of older intervals that may still serve reads. As they are when it is sent.
    pub readers: Vec<OldReader>,
}

impl PgInfo {
    /// Are all objects there, but for the missing ones?
    pub fn is_whole(&self) -> bool {
        self.last_backfill.max
    }

    /// Newest log entry.
    pub fn last_update(&self) -> EVersion {
        self.head.last_update
    }

    /// The log holds every entry after this one.
    pub fn log_tail(&self) -> EVersion {
        self.head.log_tail
    }
}

impl Encode for PgInfo {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(5, 2, |o| {
            o.put(&self.pg);
            o.u32(self.pg_num);
            o.u32(self.created);
            o.put(&self.origin);
            o.u32(self.creation);
            o.bool(self.confirmed);
            o.put(&self.head);
            o.u32(self.les);
            o.u32(self.history_les);
            o.u32(self.lec);
            o.put(&self.last_backfill);
            o.u32(self.missing);
            o.put(&self.scrub);
            o.bool(self.hollow);
            o.put(&self.readers);
        });
    }
}

impl Decode for PgInfo {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("PgInfo", 5, |d, v| {
            if v < 2 {
                // The form of the majority scheme, which no release had.
                return Err(DecodeError::Value { what: "PgInfo version", value: i64::from(v) });
            }
            Ok(Self {
                pg: d.get()?,
                pg_num: d.get()?,
                created: d.get()?,
                origin: d.get()?,
                creation: d.get()?,
                confirmed: d.get()?,
                head: d.get()?,
                les: d.get()?,
                history_les: d.get()?,
                lec: d.get()?,
                last_backfill: d.get()?,
                missing: d.get()?,
                scrub: if v >= 3 { d.get()? } else { ScrubHistory::default() },
                hollow: v >= 4 && d.get()?,
                readers: if v >= 5 { d.get()? } else { Vec::new() },
            })
        })
    }
}

/// An object that a copy lacks in the version its log names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingItem {
    /// The version wanted.
    pub need: EVersion,
    /// The version that is stored whole; zero for none.
    pub have: EVersion,
    /// What differs between the two.
    pub dirty: Dirty,
    /// The copy's newest entry of it came without its change: nobody else need have that.
    pub withheld: bool,
}

impl Encode for MissingItem {
    fn encode(&self, out: &mut Encoder) {
        out.put(&self.need);
        out.put(&self.have);
        out.put(&self.dirty);
        out.bool(self.withheld);
    }
}

impl Decode for MissingItem {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { need: d.get()?, have: d.get()?, dirty: d.get()?, withheld: d.bool()? })
    }
}

/// What a primary gives a member to bring its log up to date.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogUpdate {
    /// Forget your log, these are its entries; all objects will be compared (backfill).
    Reset {
        /// The log holds every entry after this one.
        tail: EVersion,
        /// Encoded entries, oldest first; those up to the tail only remember their requests.
        entries: Vec<Bytes>,
    },
    /// Forget your entries after `after`, these follow.
    After {
        /// Newest entry that is common.
        after: EVersion,
        /// Encoded entries, oldest first.
        entries: Vec<Bytes>,
    },
}

impl Encode for LogUpdate {
    fn encode(&self, out: &mut Encoder) {
        let (kind, at, entries) = match self {
            Self::Reset { tail, entries } => (1, tail, entries),
            Self::After { after, entries } => (2, after, entries),
        };
        out.u8(kind);
        out.put(at);
        out.put(entries);
    }
}

impl Decode for LogUpdate {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        match d.u8()? {
            1 => Ok(Self::Reset { tail: d.get()?, entries: d.get()? }),
            2 => Ok(Self::After { after: d.get()?, entries: d.get()? }),
            v => Err(DecodeError::Value { what: "log update", value: i64::from(v) }),
        }
    }
}

fn put_opt<T: Encode>(o: &mut Encoder, v: Option<&T>) {
    o.bool(v.is_some());
    if let Some(v) = v {
        o.put(v);
    }
}

fn get_opt<T: Decode>(d: &mut Decoder<'_>) -> Result<Option<T>, DecodeError> {
    if d.bool()? { d.get().map(Some) } else { Ok(None) }
}

/// How far the copy of one object has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyCursor {
    /// Data bytes copied.
    pub offset: u64,
    /// All data is copied.
    pub data_done: bool,
    /// First omap key not copied yet.
    pub omap_from: Bytes,
}

impl Encode for CopyCursor {
    fn encode(&self, out: &mut Encoder) {
        out.u64(self.offset);
        out.bool(self.data_done);
        out.put(&self.omap_from);
    }
}

impl Decode for CopyCursor {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { offset: d.get()?, data_done: d.get()?, omap_from: d.get()? })
    }
}

/// The shards at both ends of a message, −1 in replicated pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The sender's.
    pub from: i8,
    /// The receiver's.
    pub to: i8,
}

impl Default for Ends {
    /// Of a replicated pool.
    fn default() -> Self {
        Self { from: -1, to: -1 }
    }
}

impl Encode for Ends {
    fn encode(&self, out: &mut Encoder) {
        out.u8(self.from as u8);
        out.u8(self.to as u8);
    }
}

impl Decode for Ends {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { from: d.u8()? as i8, to: d.u8()? as i8 })
    }
}

/// What a [`PgTxn`] is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxnKind {
    /// A piece of recovery. Acknowledged by [`CtlBody::PushAck`].
    Push,
    /// The answer to [`CtlBody::Pull`].
    Pulled,
    /// The answer to [`CtlBody::ReadShard`]: attributes in the header, data in the payload.
    Shard,
}

/// A longer first part of a transaction goes with its payload: values of an omap may be more
/// than a message's front takes.
pub(super) const HEADER_IN_FRONT: usize = 1 << 20;

/// A transaction sent to another OSD (type 0x5340).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PgTxn {
    /// The PG.
    pub pg: PgId,
    /// The shards that send and receive it.
    pub ends: Ends,
    /// The peering epoch it belongs to.
    pub epoch: Epoch,
    /// Purpose.
    pub kind: TxnKind,
    /// Numbers pushes and pulls.
    pub seq: u64,
    /// Version of the object.
    pub version: EVersion,
    /// Of a push: the newest entry whose change it may contain. A member takes it only at that
    /// point of its log, or later.
    pub follows: EVersion,
    /// Of a pulled object: where to go on; `None` at its end.
    pub next: Option<CopyCursor>,
    /// Of a piece of an object: heads or clones of the same object of which it takes ranges. It is
    /// taken only where these are whole in these versions.
    pub beside: Vec<(HObject, EVersion)>,
    /// Of the first piece of a pulled object that takes such ranges: what its further pieces are to
    /// bring.
    pub lacks: Dirty,
    /// First part of `Transaction::split`.
    pub header: Bytes,
    /// Second part of it.
    pub payload: Bytes,
}

impl Body for PgTxn {
    const KIND: u16 = 0x5340;
    const VERSION: u16 = 6;
    const COMPAT: u16 = 6;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::with_capacity(112 + self.header.len());
        o.versioned(6, 6, |o| {
            o.put(&self.pg);
            o.put(&self.ends);
            o.u32(self.epoch);
            o.u8(match self.kind {
                // 1 was a write, which has a message of its own since version 5.
                TxnKind::Push => 2,
                TxnKind::Pulled => 3,
                TxnKind::Shard => 4,
            });
            o.u64(self.seq);
            o.put(&self.version);
            o.put(&self.follows);
            put_opt(o, self.next.as_ref());
            o.put(&self.beside);
            o.put(&self.lacks);
            if self.header.len() <= HEADER_IN_FRONT {
                o.put(&self.header);
                o.u64(0);
            } else {
                o.put(&Bytes::new());
                o.u64(self.header.len() as u64);
            }
        });
        let data = if self.header.len() <= HEADER_IN_FRONT {
            self.payload.clone()
        } else {
            [&self.header[..], &self.payload[..]].concat().into()
        };
        (o.into_vec(), data)
    }

    fn read(_version: u16, front: &Bytes, data: &Bytes) -> Result<Self, DecodeError> {
        Decoder::new(front).versioned("PgTxn", 6, |d, v| {
            if v < 6 {
                return Err(DecodeError::Value { what: "PgTxn version", value: i64::from(v) });
            }
            let mut t = Self {
                pg: d.get()?,
                ends: d.get()?,
                epoch: d.get()?,
                kind: match d.u8()? {
                    2 => TxnKind::Push,
                    3 => TxnKind::Pulled,
                    4 => TxnKind::Shard,
                    v => {
                        return Err(DecodeError::Value {
                            what: "transaction kind",
                            value: i64::from(v),
                        });
                    }
                },
                seq: d.get()?,
                version: d.get()?,
                follows: d.get()?,
                next: get_opt(d)?,
                beside: d.get()?,
                lacks: d.get()?,
                header: {
                    // Shares the segment's memory.
                    let b = d.blob()?;
                    front.slice_ref(b)
                },
                payload: data.clone(),
            };
            let with_payload = usize::try_from(d.u64()?).unwrap_or(usize::MAX);
            if with_payload > 0 {
                if with_payload > data.len() {
                    return Err(DecodeError::Truncated { need: with_payload, have: data.len() });
                }
                t.header = data.slice(..with_payload);
                t.payload = data.slice(with_payload..);
            }
            Ok(t)
        })
    }
}

/// A replica has made everything of an activation durable up to a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepAck {
    /// The PG.
    pub pg: PgId,
    /// The shards that send and receive it.
    pub ends: Ends,
    /// The activation.
    pub epoch: Epoch,
    /// Newest durable version.
    pub version: EVersion,
}

impl Encode for RepAck {
    fn encode(&self, out: &mut Encoder) {
        out.i64(self.pg.pool);
        out.u32(self.pg.seed);
        out.put(&self.ends);
        out.u32(self.epoch);
        out.put(&self.version);
    }
}

impl Decode for RepAck {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            pg: PgId::new(d.get()?, d.get()?),
            ends: d.get()?,
            epoch: d.get()?,
            version: d.get()?,
        })
    }
}

macro_rules! list_body {
    ($(#[$doc:meta])* $name:ident($item:ty) = $kind:literal, $version:literal, $min:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name(pub Vec<$item>);

        impl Body for $name {
            const KIND: u16 = $kind;
            const VERSION: u16 = $version;
            const COMPAT: u16 = $version;

            fn segments(&self) -> (Vec<u8>, Bytes) {
                let mut o = Encoder::with_capacity(16 + self.0.len() * 64);
                o.versioned($version, $version, |o| o.list(&self.0, |o, v| o.put(v)));
                (o.into_vec(), Bytes::new())
            }

            fn read(_version: u16, front: &Bytes, _data: &Bytes) -> Result<Self, DecodeError> {
                Decoder::new(front).versioned(stringify!($name), $version, |d, v| {
                    if v < $version {
                        return Err(DecodeError::Value { what: stringify!($name), value: i64::from(v) });
                    }
                    Ok(Self(d.list($min, |d| d.get())?))
                })
            }
        }
    };
}

list_body! {
    /// Commits of replicated writes (type 0x5341).
    PgAcks(RepAck) = 0x5341, 3, 30
}

list_body! {
    /// Peering and recovery control (type 0x5342).
    PgCtls(PgCtl) = 0x5342, 4, 24
}

/// Peering and recovery control of one PG.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PgCtl {
    /// The PG.
    pub pg: PgId,
    /// The shards that send and receive it.
    pub ends: Ends,
    /// First epoch of the interval it belongs to. The receiver needs a map at least so new, and
    /// ignores what belongs to an interval that is over.
    pub epoch: Epoch,
    /// What it says.
    pub body: CtlBody,
}

/// What a [`PgCtl`] says. "Primary" is the one of its interval.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "control messages are few and short-lived")]
pub enum CtlBody {
    /// Primary → any: what have you?
    Query {
        /// OSDs that may hold read leases as primaries of older intervals.
        holders: Vec<OsdId>,
    },
    /// Answer to [`CtlBody::Query`]. All it tells is durable.
    Info {
        /// Nothing, or what it holds.
        info: Option<PgInfo>,
        /// The older intervals it knows of.
        past: Vec<PastInterval>,
        /// For how long one of the holders may still serve reads by a lease from the sender.
        lease_left_ms: u32,
    },
    /// Holder → primary, unasked: I have a copy.
    Notify {
        /// What it holds.
        info: PgInfo,
        /// The older intervals it knows of.
        past: Vec<PastInterval>,
    },
    /// Primary → holder: send your log after this entry, and what is missing.
    GetLog {
        /// Newest entry not wanted.
        after: EVersion,
    },
    /// Answer to [`CtlBody::GetLog`].
    Log {
        /// What it holds.
        info: PgInfo,
        /// Encoded entries, oldest first.
        entries: Vec<Bytes>,
        /// What is missing.
        missing: Vec<(HObject, MissingItem)>,
    },
    /// Primary → member: this is the state in which the PG becomes active.
    Activate {
        /// Numbers the activations of an interval, of which there may be several; rising.
        run: u64,
        /// The primary's info.
        info: PgInfo,
        /// The older intervals.
        past: Vec<PastInterval>,
        /// How to get the log.
        log: LogUpdate,
        /// Start from nothing: a PG that never existed.
        fresh: bool,
    },
    /// That is durable.
    Activated {
        /// The activation's number.
        run: u64,
    },
    /// Primary → member: what all have reached.
    History {
        /// Comes back in the answer; rising.
        seq: u64,
        /// See [`PgInfo::history_les`].
        history_les: Epoch,
        /// See [`PgInfo::lec`].
        lec: Epoch,
        /// In an erasure-coded pool: all up to here is on every member and will not be taken back.
        rolled: EVersion,
        /// The PG's scrubs.
        scrub: ScrubHistory,
        /// What the PG holds when its newest entry is the first of these: a scrub may have
        /// corrected it.
        counted: (EVersion, PgCounts),
        /// Primaries of older intervals may still serve reads ([`PgInfo::readers`]).
        read: bool,
    },
    /// That is durable.
    HistoryAck {
        /// As told.
        seq: u64,
    },
    /// Member → primary: a write, or what depends on one, came that follows an entry which has not
    /// come.
    Gap {
        /// The newest entry that came.
        have: EVersion,
    },
    /// Primary → holder: list objects from `from` on.
    Scan {
        /// First object wanted.
        from: HObject,
        /// At most so many.
        max: u32,
    },
    /// Answer to [`CtlBody::Scan`].
    Scanned {
        /// As asked.
        from: HObject,
        /// Objects and their versions (zero: none recorded), in order.
        objects: Vec<(HObject, EVersion)>,
        /// Where to go on; the maximum at the end.
        next: HObject,
    },
    /// Other answer to [`CtlBody::Scan`]: the listing cannot be read.
    ScanFailed {
        /// As asked.
        from: HObject,
    },
    /// Primary → holder: send a piece of an object.
    Pull {
        /// Comes back in the [`PgTxn`].
        seq: u64,
        /// The object.
        object: HObject,
        /// The version wanted.
        need: EVersion,
        /// From where.
        cursor: CopyCursor,
        /// What of it: the asker has the rest.
        dirty: Dirty,
        /// About so many bytes at a time.
        piece: u64,
        /// Heads or clones of the same object that the asker has whole, with their versions: what
        /// the object shares with them is not to be sent, but taken of them.
        beside: Vec<(HObject, EVersion)>,
    },
    /// Answer to [`CtlBody::Pull`] and [`CtlBody::ReadShard`]: the object is not here whole in the
    /// version wanted.
    PullFailed {
        /// The question's number.
        seq: u64,
        /// The object.
        object: HObject,
        /// The version that is here whole; zero if there is none, or it cannot be read.
        has: EVersion,
    },
    /// A push is not taken: not all that it takes ranges of ([`PgTxn::beside`]) is here in those
    /// versions.
    PushRefused {
        /// Its number.
        seq: u64,
    },
    /// A push is durable.
    PushAck {
        /// Its number.
        seq: u64,
    },
    /// Primary → backfilled member: objects up to here are as the log says.
    Progress {
        /// See [`PgInfo::last_backfill`].
        last_backfill: HObject,
        /// Only for a member that has this entry: those before it were sent with the older bound in
        /// mind.
        follows: EVersion,
    },
    /// That is durable.
    ProgressAck {
        /// As told.
        last_backfill: HObject,
    },
    /// Primary → member: may I recover to you?
    Reserve {
        /// The question's number, which names the reservation; rising. It replaces those before it.
        seq: u64,
        /// It is a backfill.
        backfill: bool,
    },
    /// You may.
    Reserved {
        /// The reservation.
        seq: u64,
    },
    /// The backfill cannot be taken (any more): too little space.
    TooFull {
        /// The reservation.
        seq: u64,
    },
    /// No need any more.
    Release {
        /// The reservation.
        seq: u64,
    },
    /// It is released.
    Released {
        /// The reservation.
        seq: u64,
    },
    /// Primary of a clean PG → stray: the PG is safe without you, delete it.
    Delete,
    /// Member → primary: my copy of this object is bad, I count it as missing. Primary → member:
    /// yours is.
    Rotten {
        /// The object.
        object: HObject,
        /// The version wanted.
        version: EVersion,
        /// First bad byte, if that is known.
        offset: Option<u64>,
    },
    /// Primary → member: I have noted that your copy is bad.
    RottenAck {
        /// The object.
        object: HObject,
        /// As told.
        version: EVersion,
    },
    /// Primary → member: what do you hold from `from` up to before `to`?
    ScrubScan {
        /// Comes back in the answer.
        seq: u64,
        /// First object.
        from: HObject,
        /// After the last one.
        to: HObject,
        /// Read everything.
        deep: bool,
    },
    /// Answer to [`CtlBody::ScrubScan`].
    Scrubbed {
        /// The question's number.
        seq: u64,
        /// What is there; `None` when it could not be listed.
        map: Option<ScrubMap>,
    },
    /// Primary → holder of a shard: send a part of it. Answered by [`TxnKind::Shard`] or
    /// [`CtlBody::PullFailed`].
    ReadShard {
        /// Comes back in the answer.
        seq: u64,
        /// The object.
        object: HObject,
        /// In this version.
        version: EVersion,
        /// First byte of the shard.
        offset: u64,
        /// Bytes of the shard, at most.
        length: u64,
        /// Send the attributes, too.
        attrs: bool,
    },
}

impl CtlBody {
    fn code(&self) -> u8 {
        match self {
            Self::Query { .. } => 1,
            Self::Info { .. } => 2,
            Self::Notify { .. } => 3,
            Self::GetLog { .. } => 4,
            Self::Log { .. } => 5,
            Self::Activate { .. } => 6,
            Self::Activated { .. } => 7,
            Self::History { .. } => 8,
            Self::Scan { .. } => 9,
            Self::Scanned { .. } => 10,
            Self::Pull { .. } => 11,
            Self::PullFailed { .. } => 12,
            Self::PushAck { .. } => 13,
            Self::Progress { .. } => 14,
            Self::ProgressAck { .. } => 15,
            Self::Reserve { .. } => 16,
            Self::Reserved { .. } => 17,
            Self::TooFull { .. } => 18,
            Self::Release { .. } => 19,
            Self::Delete => 20,
            Self::Rotten { .. } => 21,
            Self::ScrubScan { .. } => 22,
            Self::Scrubbed { .. } => 23,
            Self::HistoryAck { .. } => 24,
            Self::ReadShard { .. } => 25,
            Self::ScanFailed { .. } => 33,
            Self::PushRefused { .. } => 34,
            Self::Gap { .. } => 26,
            Self::Released { .. } => 27,
            Self::RottenAck { .. } => 28,
        }
    }
}

impl Encode for PgCtl {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(5, 5, |o| {
            o.i64(self.pg.pool);
            o.u32(self.pg.seed);
            o.put(&self.ends);
            o.u32(self.epoch);
            o.u8(self.body.code());
            match &self.body {
                CtlBody::Query { holders } => o.put(holders),
                CtlBody::Info { info, past, lease_left_ms } => {
                    put_opt(o, info.as_ref());
                    o.put(past);
                    o.u32(*lease_left_ms);
                }
                CtlBody::Notify { info, past } => {
                    o.put(info);
                    o.put(past);
                }
                CtlBody::GetLog { after } => o.put(after),
                CtlBody::Log { info, entries, missing } => {
                    o.put(info);
                    o.put(entries);
                    o.put(missing);
                }
                CtlBody::Activate { run, info, past, log, fresh } => {
                    o.u64(*run);
                    o.put(info);
                    o.put(past);
                    o.put(log);
                    o.bool(*fresh);
                }
                CtlBody::History { seq, history_les, lec, rolled, scrub, counted, read } => {
                    o.u64(*seq);
                    o.u32(*history_les);
                    o.u32(*lec);
                    o.put(rolled);
                    o.put(scrub);
                    o.put(&counted.0);
                    o.put(&counted.1);
                    o.bool(*read);
                }
                CtlBody::Gap { have } => o.put(have),
                CtlBody::Scan { from, max } => {
                    o.put(from);
                    o.u32(*max);
                }
                CtlBody::Scanned { from, objects, next } => {
                    o.put(from);
                    o.put(objects);
                    o.put(next);
                }
                CtlBody::Pull { seq, object, need, cursor, dirty, piece, beside } => {
                    o.u64(*seq);
                    o.put(object);
                    o.put(need);
                    o.put(cursor);
                    o.put(dirty);
                    o.u64(*piece);
                    o.put(beside);
                }
                CtlBody::PullFailed { seq, object, has } => {
                    o.u64(*seq);
                    o.put(object);
                    o.put(has);
                }
                CtlBody::Activated { run: seq }
                | CtlBody::HistoryAck { seq }
                | CtlBody::PushAck { seq }
                | CtlBody::PushRefused { seq }
                | CtlBody::Reserved { seq }
                | CtlBody::TooFull { seq }
                | CtlBody::Release { seq }
                | CtlBody::Released { seq } => o.u64(*seq),
                CtlBody::Progress { last_backfill, follows } => {
                    o.put(last_backfill);
                    o.put(follows);
                }
                CtlBody::ProgressAck { last_backfill } => o.put(last_backfill),
                CtlBody::Reserve { seq, backfill } => {
                    o.u64(*seq);
                    o.bool(*backfill);
                }
                CtlBody::RottenAck { object, version } => {
                    o.put(object);
                    o.put(version);
                }
                CtlBody::Rotten { object, version, offset } => {
                    o.put(object);
                    o.put(version);
                    put_opt(o, offset.as_ref());
                }
                CtlBody::ScrubScan { seq, from, to, deep } => {
                    o.u64(*seq);
                    o.put(from);
                    o.put(to);
                    o.bool(*deep);
                }
                CtlBody::Scrubbed { seq, map } => {
                    o.u64(*seq);
                    put_opt(o, map.as_ref());
                }
                CtlBody::ReadShard { seq, object, version, offset, length, attrs } => {
                    o.u64(*seq);
                    o.put(object);
                    o.put(version);
                    o.u64(*offset);
                    o.u64(*length);
                    o.bool(*attrs);
                }
                CtlBody::ScanFailed { from } => o.put(from),
                CtlBody::Delete => {}
            }
        });
    }
}

impl Decode for PgCtl {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("PgCtl", 5, |d, v| {
            if v < 5 {
                return Err(DecodeError::Value { what: "PgCtl version", value: i64::from(v) });
            }
            let pg = PgId::new(d.get()?, d.get()?);
            let ends = d.get()?;
            let epoch = d.get()?;
            let body = match d.u8()? {
                1 => CtlBody::Query { holders: d.get()? },
                2 => CtlBody::Info { info: get_opt(d)?, past: d.get()?, lease_left_ms: d.get()? },
                3 => CtlBody::Notify { info: d.get()?, past: d.get()? },
                4 => CtlBody::GetLog { after: d.get()? },
                5 => CtlBody::Log { info: d.get()?, entries: d.get()?, missing: d.get()? },
                6 => CtlBody::Activate {
                    run: d.get()?,
                    info: d.get()?,
                    past: d.get()?,
                    log: d.get()?,
                    fresh: d.get()?,
                },
                7 => CtlBody::Activated { run: d.get()? },
                8 => CtlBody::History {
                    seq: d.get()?,
                    history_les: d.get()?,
                    lec: d.get()?,
                    rolled: d.get()?,
                    scrub: d.get()?,
                    counted: (d.get()?, d.get()?),
                    read: d.bool()?,
                },
                9 => CtlBody::Scan { from: d.get()?, max: d.get()? },
                10 => CtlBody::Scanned { from: d.get()?, objects: d.get()?, next: d.get()? },
                11 => CtlBody::Pull {
                    seq: d.get()?,
                    object: d.get()?,
                    need: d.get()?,
                    cursor: d.get()?,
                    dirty: d.get()?,
                    piece: d.get()?,
                    beside: d.get()?,
                },
                12 => CtlBody::PullFailed { seq: d.get()?, object: d.get()?, has: d.get()? },
                13 => CtlBody::PushAck { seq: d.get()? },
                14 => CtlBody::Progress { last_backfill: d.get()?, follows: d.get()? },
                15 => CtlBody::ProgressAck { last_backfill: d.get()? },
                16 => CtlBody::Reserve { seq: d.get()?, backfill: d.get()? },
                17 => CtlBody::Reserved { seq: d.get()? },
                18 => CtlBody::TooFull { seq: d.get()? },
                19 => CtlBody::Release { seq: d.get()? },
                20 => CtlBody::Delete,
                21 => CtlBody::Rotten { object: d.get()?, version: d.get()?, offset: get_opt(d)? },
                22 => CtlBody::ScrubScan {
                    seq: d.get()?,
                    from: d.get()?,
                    to: d.get()?,
                    deep: d.get()?,
                },
                23 => CtlBody::Scrubbed { seq: d.get()?, map: get_opt(d)? },
                24 => CtlBody::HistoryAck { seq: d.get()? },
                25 => CtlBody::ReadShard {
                    seq: d.get()?,
                    object: d.get()?,
                    version: d.get()?,
                    offset: d.get()?,
                    length: d.get()?,
                    attrs: d.get()?,
                },
                34 => CtlBody::PushRefused { seq: d.get()? },
                33 => CtlBody::ScanFailed { from: d.get()? },
                26 => CtlBody::Gap { have: d.get()? },
                27 => CtlBody::Released { seq: d.get()? },
                28 => CtlBody::RottenAck { object: d.get()?, version: d.get()? },
                v => return Err(DecodeError::Value { what: "PG control", value: i64::from(v) }),
            };
            Ok(Self { pg, ends, epoch, body })
        })
    }
}

macro_rules! ping {
    ($(#[$doc:meta])* $name:ident = $kind:literal { $($(#[$fdoc:meta])* $field:ident : $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty),* }

        impl Body for $name {
            const KIND: u16 = $kind;
            const VERSION: u16 = 1;
            const COMPAT: u16 = 1;
            const PRIORITY: u16 = 196;
            fn segments(&self) -> (Vec<u8>, Bytes) {
                let mut o = Encoder::with_capacity(64);
                o.versioned(1, 1, |o| { $(o.put(&self.$field);)* });
                (o.into_vec(), Bytes::new())
            }
            fn read(_version: u16, front: &Bytes, _data: &Bytes) -> Result<Self, DecodeError> {
                Decoder::new(front).versioned(stringify!($name), 1, |d, _| Ok(Self { $($field: d.get()?),* }))
            }
        }
    };
}

ping! {
    /// A heartbeat that also asks for a read lease (type 0x5350).
    OsdPing = 0x5350 {
        /// The sender.
        osd: OsdId,
        /// Epoch of its map.
        epoch: Epoch,
        /// Its monotonic clock, milliseconds; comes back in the answer.
        sent_ms: u64,
    }
}

ping! {
    /// Answer to [`OsdPing`]: the sender grants a read lease (type 0x5351). See
    /// `spirula_pg::Leases`.
    OsdPong = 0x5351 {
        /// The sender.
        osd: OsdId,
        /// Epoch of its map when it granted.
        epoch: Epoch,
        /// The question's.
        sent_ms: u64,
        /// Length of the lease from `sent_ms` on, milliseconds; 0 for none.
        lease_ms: u32,
        /// Its store has no room for anything that grows.
        full: bool,
    }
}

ping! {
    /// First message of a session for data that comes after one that was lost with both OSDs alive
    /// (type 0x5352): what the sender said before may never have arrived, so every PG begins its
    /// exchanges with it anew.
    OsdRenewed = 0x5352 {
        /// The sender.
        osd: OsdId,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::scrub::ScrubObject;
    use proptest::prelude::*;

    fn info() -> PgInfo {
        PgInfo {
            pg: PgId::new(2, 7),
            pg_num: 8,
            created: 3,
            origin: PgId::new(2, 3),
            creation: 4,
            confirmed: true,
            head: PgHead {
                last_update: EVersion::new(9, 100),
                log_tail: EVersion::new(4, 10),
                last_user_version: 101,
                counts: PgCounts { objects: 5, written_kb: -1, ..PgCounts::default() },
                rolled: EVersion::new(9, 99),
                forgot: true,
            },
            les: 8,
            history_les: 7,
            lec: 6,
            last_backfill: HObject::max(),
            missing: 3,
            hollow: true,
            scrub: ScrubHistory {
                last: EVersion::new(9, 90),
                repaired: 2,
                ..ScrubHistory::default()
            },
            readers: vec![OldReader { osd: 3, last: 5, left_ms: 700 }],
        }
    }

    fn past() -> Vec<PastInterval> {
        let (a, b) = (Peer::new(1, 0), Peer::whole(2));
        vec![PastInterval {
            first: 3,
            last: 7,
            up: vec![a, b],
            acting: vec![b],
            primary: b,
            rw: true,
        }]
    }

    #[test]
    fn every_control_message_round_trips() {
        let o = HObject::head(2, Bytes::new(), Bytes::new(), "o".into());
        let dirty = Dirty::nothing();
        let item = MissingItem {
            need: EVersion::new(3, 4),
            have: EVersion::default(),
            dirty,
            withheld: true,
        };
        let scrubbed = ScrubObject {
            size: 3,
            attrs: vec![("_".into(), "info".into())],
            omap_digest: None,
            data_digest: Some(7),
            read_error: true,
            omap_keys: 3,
            omap_bytes: 40,
        };
        let bodies = [
            CtlBody::Query { holders: vec![3] },
            CtlBody::Info { info: Some(info()), past: past(), lease_left_ms: 5 },
            CtlBody::Info { info: None, past: Vec::new(), lease_left_ms: 0 },
            CtlBody::Notify { info: info(), past: past() },
            CtlBody::GetLog { after: EVersion::new(1, 2) },
            CtlBody::Log {
                info: info(),
                entries: vec!["a".into(), "b".into()],
                missing: vec![(o.clone(), item)],
            },
            CtlBody::Activate {
                run: 3,
                info: info(),
                past: past(),
                log: LogUpdate::Reset { tail: EVersion::new(1, 1), entries: vec!["e".into()] },
                fresh: true,
            },
            CtlBody::Activate {
                run: 3,
                info: info(),
                past: Vec::new(),
                log: LogUpdate::After { after: EVersion::new(1, 1), entries: Vec::new() },
                fresh: false,
            },
            CtlBody::Activated { run: 3 },
            CtlBody::History {
                seq: 7,
                history_les: 4,
                lec: 3,
                rolled: EVersion::new(4, 5),
                scrub: info().scrub,
                counted: (EVersion::new(4, 6), info().head.counts),
                read: true,
            },
            CtlBody::HistoryAck { seq: 7 },
            CtlBody::Gap { have: EVersion::new(4, 4) },
            CtlBody::Scan { from: HObject::min(), max: 100 },
            CtlBody::Scanned {
                from: HObject::min(),
                objects: vec![(o.clone(), EVersion::new(3, 4))],
                next: HObject::max(),
            },
            CtlBody::Pull {
                seq: 4,
                object: o.clone(),
                need: EVersion::new(3, 4),
                cursor: CopyCursor { offset: 1, data_done: true, omap_from: "k".into() },
                dirty: Dirty::Parts { data: vec![(4096, 8192)], omap: true },
                piece: 1 << 20,
                beside: vec![(o.clone(), EVersion::new(3, 5))],
            },
            CtlBody::PushRefused { seq: 9 },
            CtlBody::PullFailed { seq: 4, object: o.clone(), has: EVersion::new(3, 4) },
            CtlBody::PushAck { seq: 9 },
            CtlBody::Progress { last_backfill: o.clone(), follows: EVersion::new(1, 1) },
            CtlBody::ProgressAck { last_backfill: o.clone() },
            CtlBody::Reserve { seq: 5, backfill: true },
            CtlBody::Reserved { seq: 5 },
            CtlBody::TooFull { seq: 5 },
            CtlBody::Release { seq: 5 },
            CtlBody::Released { seq: 5 },
            CtlBody::RottenAck { object: o.clone(), version: EVersion::new(1, 2) },
            CtlBody::Delete,
            CtlBody::Rotten { object: o.clone(), version: EVersion::new(1, 2), offset: Some(4096) },
            CtlBody::ScrubScan { seq: 1, from: HObject::min(), to: o.clone(), deep: true },
            CtlBody::Scrubbed { seq: 1, map: None },
            CtlBody::Scrubbed { seq: 1, map: Some(ScrubMap(vec![(o, scrubbed)])) },
            CtlBody::ReadShard {
                seq: 1,
                object: HObject::head(2, Bytes::new(), Bytes::new(), "s".into()),
                version: EVersion::new(1, 2),
                offset: 4096,
                length: 8192,
                attrs: true,
            },
            CtlBody::ScanFailed { from: HObject::min() },
        ];
        let all = PgCtls(
            bodies
                .into_iter()
                .map(|body| PgCtl {
                    pg: PgId::new(2, 7),
                    ends: Ends { from: 1, to: 0 },
                    epoch: 5,
                    body,
                })
                .collect(),
        );
        assert_eq!(PgCtls::from_message(&all.clone().into_message(1)).unwrap(), all);
    }

    #[test]
    fn transactions_acks_and_pings_round_trip() {
        let t = PgTxn {
            pg: PgId::new(2, 7),
            ends: Ends { from: 0, to: 2 },
            epoch: 5,
            kind: TxnKind::Pulled,
            seq: 8,
            version: EVersion::new(5, 6),
            follows: EVersion::new(5, 5),
            next: Some(CopyCursor::default()),
            beside: vec![(
                HObject::head(2, Bytes::new(), Bytes::new(), "o".into()),
                EVersion::new(5, 4),
            )],
            lacks: Dirty::Parts { data: vec![(4096, 8192)], omap: true },
            header: "header".into(),
            payload: "payload".into(),
        };
        assert_eq!(PgTxn::from_message(&t.clone().into_message(1)).unwrap(), t);
        // What is too long for a message's front goes with the payload.
        let long = PgTxn { header: vec![7; HEADER_IN_FRONT + 1].into(), ..t.clone() };
        let message = long.clone().into_message(1);
        assert!(message.front.len() < 1000 && message.data.len() == HEADER_IN_FRONT + 8);
        assert_eq!(PgTxn::from_message(&message).unwrap(), long);
        let a = PgAcks(vec![
            RepAck {
                pg: PgId::new(1, 2),
                ends: Ends::default(),
                epoch: 3,
                version: EVersion::new(4, 5)
            };
            3
        ]);
        assert_eq!(PgAcks::from_message(&a.clone().into_message(1)).unwrap(), a);
        let p = OsdPong { osd: 1, epoch: 2, sent_ms: 3, lease_ms: 4, full: true };
        assert_eq!(OsdPong::from_message(&p.into_message(1)).unwrap(), p);
        assert_eq!(
            OsdRenewed::from_message(&OsdRenewed { osd: 7 }.into_message(1)).unwrap(),
            OsdRenewed { osd: 7 }
        );
    }

    proptest! {
        #[test]
        fn prop_garbage_is_refused_without_panic(bytes: Vec<u8>) {
            let b = Bytes::from(bytes);
            let _ = PgTxn::read(3, &b, &b);
            let _ = PgAcks::read(2, &b, &b);
            let _ = PgCtls::read(2, &b, &b);
            let _ = OsdPing::read(1, &b, &b);
        }
    }
}
