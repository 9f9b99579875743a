//! OSD ↔ OSD messages (types 0x5340–0x537f).
//!
//! | type | body | carries |
//! |---|---|---|
//! | 0x5340 | [`PgTxn`] | one transaction: a client write to a replica, a recovery push, an answer to a pull; its payload is the data segment |
//! | 0x5341 | [`PgAcks`] | commits of replicated writes, any number of PGs |
//! | 0x5342 | [`PgCtls`] | peering and recovery control, any number of PGs |
//! | 0x5350 | [`OsdPing`] | heartbeat and read lease, question |
//! | 0x5351 | [`OsdPong`] | heartbeat and read lease, answer |
//!
//! Bodies that hold a list exist so that a daemon can batch what it has for one peer.
//! Messages of one PG between two OSDs must stay in order. What they mean, and why that is
//! safe, is written in `spirula-pg`.

use crate::Body;
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};
use spirula_types::{EVersion, Epoch, HObject, OsdId, PgId};

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
}

impl PgCounts {
    fn fields(&self) -> [i64; 9] {
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
        let v = d.list(8, Decoder::i64)?;
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
        })
    }
}

/// A member of an old home set has been told that the PG moves to another one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seal {
    /// Peering epoch of the primary that moves it.
    pub epoch: Epoch,
    /// The new home set.
    pub home: Vec<OsdId>,
}

impl Encode for Seal {
    fn encode(&self, out: &mut Encoder) {
        out.u32(self.epoch);
        out.put(&self.home);
    }
}

impl Decode for Seal {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { epoch: d.get()?, home: d.get()? })
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
    /// The monitor has said that this history is the PG's one; see `spirula-pg`.
    pub confirmed: bool,
    /// Newest log entry.
    pub last_update: EVersion,
    /// The log holds every entry after this one.
    pub log_tail: EVersion,
    /// Newest user version given out.
    pub last_user_version: u64,
    /// Epoch of the last activation this copy took part in or was copied from; 0 is never.
    pub les: Epoch,
    /// The primary of that activation.
    pub primary: OsdId,
    /// The home set of that activation.
    pub home: Vec<OsdId>,
    /// A move to another home set has begun.
    pub seal: Option<Seal>,
    /// The objects are exactly those of `last_update`. False while being recovered.
    pub complete: bool,
    /// What it holds and has served.
    pub counts: PgCounts,
}

impl Encode for PgInfo {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.pg);
            o.u32(self.pg_num);
            o.u32(self.created);
            o.put(&self.origin);
            o.bool(self.confirmed);
            o.put(&self.last_update);
            o.put(&self.log_tail);
            o.u64(self.last_user_version);
            o.u32(self.les);
            o.i32(self.primary);
            o.put(&self.home);
            put_opt(o, self.seal.as_ref());
            o.bool(self.complete);
            o.put(&self.counts);
        });
    }
}

impl Decode for PgInfo {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("PgInfo", 1, |d, _| {
            Ok(Self {
                pg: d.get()?,
                pg_num: d.get()?,
                created: d.get()?,
                origin: d.get()?,
                confirmed: d.get()?,
                last_update: d.get()?,
                log_tail: d.get()?,
                last_user_version: d.get()?,
                les: d.get()?,
                primary: d.get()?,
                home: d.get()?,
                seal: get_opt(d)?,
                complete: d.get()?,
                counts: d.get()?,
            })
        })
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

/// What a [`PgTxn`] is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxnKind {
    /// A client's write, for a replica. Acknowledged by [`RepAck`].
    Write,
    /// A piece of recovery. Acknowledged by [`CtlBody::PushAck`].
    Push,
    /// The answer to [`CtlBody::Pull`].
    Pulled,
}

/// A transaction sent to another OSD (type 0x5340).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PgTxn {
    /// The PG.
    pub pg: PgId,
    /// The activation ([`TxnKind::Write`]) or peering epoch it belongs to.
    pub epoch: Epoch,
    /// Purpose.
    pub kind: TxnKind,
    /// Numbers pushes and pulls.
    pub seq: u64,
    /// Version of a write's log entry.
    pub version: EVersion,
    /// Of a pulled object: where to go on; `None` at its end.
    pub next: Option<CopyCursor>,
    /// First part of `Transaction::split`.
    pub header: Bytes,
    /// Second part of it.
    pub payload: Bytes,
}

impl Body for PgTxn {
    const KIND: u16 = 0x5340;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::with_capacity(96 + self.header.len());
        o.versioned(1, 1, |o| {
            o.put(&self.pg);
            o.u32(self.epoch);
            o.u8(match self.kind {
                TxnKind::Write => 1,
                TxnKind::Push => 2,
                TxnKind::Pulled => 3,
            });
            o.u64(self.seq);
            o.put(&self.version);
            put_opt(o, self.next.as_ref());
            o.put(&self.header);
        });
        (o.into_vec(), self.payload.clone())
    }

    fn read(_version: u16, front: &Bytes, data: &Bytes) -> Result<Self, DecodeError> {
        Decoder::new(front).versioned("PgTxn", 1, |d, _| {
            Ok(Self {
                pg: d.get()?,
                epoch: d.get()?,
                kind: match d.u8()? {
                    1 => TxnKind::Write,
                    2 => TxnKind::Push,
                    3 => TxnKind::Pulled,
                    v => return Err(DecodeError::Value { what: "transaction kind", value: i64::from(v) }),
                },
                seq: d.get()?,
                version: d.get()?,
                next: get_opt(d)?,
                header: {
                    // Shares the segment's memory.
                    let b = d.blob()?;
                    front.slice_ref(b)
                },
                payload: data.clone(),
            })
        })
    }
}

/// A replica has made everything of an activation durable up to a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepAck {
    /// The PG.
    pub pg: PgId,
    /// The activation.
    pub epoch: Epoch,
    /// Newest durable version.
    pub version: EVersion,
}

impl Encode for RepAck {
    fn encode(&self, out: &mut Encoder) {
        out.i64(self.pg.pool);
        out.u32(self.pg.seed);
        out.u32(self.epoch);
        out.put(&self.version);
    }
}

impl Decode for RepAck {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { pg: PgId::new(d.get()?, d.get()?), epoch: d.get()?, version: d.get()? })
    }
}

macro_rules! list_body {
    ($(#[$doc:meta])* $name:ident($item:ty) = $kind:literal, $min:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name(pub Vec<$item>);

        impl Body for $name {
            const KIND: u16 = $kind;
            const VERSION: u16 = 1;
            const COMPAT: u16 = 1;

            fn segments(&self) -> (Vec<u8>, Bytes) {
                let mut o = Encoder::with_capacity(16 + self.0.len() * 64);
                o.versioned(1, 1, |o| o.list(&self.0, |o, v| o.put(v)));
                (o.into_vec(), Bytes::new())
            }

            fn read(_version: u16, front: &Bytes, _data: &Bytes) -> Result<Self, DecodeError> {
                Decoder::new(front).versioned(stringify!($name), 1, |d, _| Ok(Self(d.list($min, |d| d.get())?)))
            }
        }
    };
}

list_body! {
    /// Commits of replicated writes (type 0x5341).
    PgAcks(RepAck) = 0x5341, 28
}

list_body! {
    /// Peering and recovery control (type 0x5342).
    PgCtls(PgCtl) = 0x5342, 22
}

/// Peering and recovery control of one PG.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PgCtl {
    /// The PG.
    pub pg: PgId,
    /// Peering epoch of the primary concerned. The receiver needs a map at least so new.
    pub epoch: Epoch,
    /// What it says.
    pub body: CtlBody,
}

/// What a [`PgCtl`] says. "Primary" is the one peering or active in its epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CtlBody {
    /// Primary → any: what have you? The receiver takes no more part in older epochs.
    Query,
    /// Answer to [`CtlBody::Query`].
    Info {
        /// Nothing, or what it holds.
        info: Option<PgInfo>,
        /// How long the primary named in `info` may still serve reads by a lease from the sender.
        lease_left_ms: u32,
    },
    /// Holder → primary, unasked: I have a copy.
    Notify {
        /// What it holds.
        info: PgInfo,
    },
    /// Primary → holder: send your log.
    GetLog,
    /// Answer to [`CtlBody::GetLog`].
    Log {
        /// Its log.
        tail: EVersion,
        /// Encoded entries, oldest first.
        entries: Vec<Bytes>,
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
    /// Primary → holder: send a piece of an object.
    Pull {
        /// Comes back in the [`PgTxn`].
        seq: u64,
        /// The object.
        object: HObject,
        /// From where.
        cursor: CopyCursor,
    },
    /// A push is durable.
    PushAck {
        /// Its number.
        seq: u64,
    },
    /// Primary → recovered OSD: your objects are now those of this history; take its log.
    Finish {
        /// Info of the history.
        info: PgInfo,
        /// Keep your entries up to here; `None`: keep none.
        keep: Option<EVersion>,
        /// Encoded entries that follow.
        entries: Vec<Bytes>,
    },
    /// That is durable.
    Finished,
    /// Primary → member of the old home set: the PG moves.
    Seal {
        /// The new home set.
        home: Vec<OsdId>,
    },
    /// That is durable.
    Sealed,
    /// Primary → acting: this is the state in which the PG becomes active.
    Activate {
        /// The info to record.
        info: PgInfo,
        /// Start from nothing: a PG that never existed.
        fresh: bool,
    },
    /// That is durable.
    Activated,
    /// To a primary: I am not (any more) in your epoch; peer again with a map at least this new.
    Nack {
        /// Epoch of the sender's map.
        map: Epoch,
    },
    /// Active primary → stray: the PG is safe without you, delete it.
    Delete,
}

impl CtlBody {
    fn code(&self) -> u8 {
        match self {
            Self::Query => 1,
            Self::Info { .. } => 2,
            Self::Notify { .. } => 3,
            Self::GetLog => 4,
            Self::Log { .. } => 5,
            Self::Scan { .. } => 6,
            Self::Scanned { .. } => 7,
            Self::Pull { .. } => 8,
            Self::PushAck { .. } => 9,
            Self::Finish { .. } => 10,
            Self::Finished => 11,
            Self::Seal { .. } => 12,
            Self::Sealed => 13,
            Self::Activate { .. } => 14,
            Self::Activated => 15,
            Self::Nack { .. } => 16,
            Self::Delete => 17,
        }
    }
}

impl Encode for PgCtl {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.i64(self.pg.pool);
            o.u32(self.pg.seed);
            o.u32(self.epoch);
            o.u8(self.body.code());
            match &self.body {
                CtlBody::Info { info, lease_left_ms } => {
                    put_opt(o, info.as_ref());
                    o.u32(*lease_left_ms);
                }
                CtlBody::Notify { info } => o.put(info),
                CtlBody::Log { tail, entries } => {
                    o.put(tail);
                    o.put(entries);
                }
                CtlBody::Scan { from, max } => {
                    o.put(from);
                    o.u32(*max);
                }
                CtlBody::Scanned { from, objects, next } => {
                    o.put(from);
                    o.put(objects);
                    o.put(next);
                }
                CtlBody::Pull { seq, object, cursor } => {
                    o.u64(*seq);
                    o.put(object);
                    o.put(cursor);
                }
                CtlBody::PushAck { seq } => o.u64(*seq),
                CtlBody::Finish { info, keep, entries } => {
                    o.put(info);
                    put_opt(o, keep.as_ref());
                    o.put(entries);
                }
                CtlBody::Seal { home } => o.put(home),
                CtlBody::Activate { info, fresh } => {
                    o.put(info);
                    o.bool(*fresh);
                }
                CtlBody::Nack { map } => o.u32(*map),
                CtlBody::Query
                | CtlBody::GetLog
                | CtlBody::Finished
                | CtlBody::Sealed
                | CtlBody::Activated
                | CtlBody::Delete => {}
            }
        });
    }
}

impl Decode for PgCtl {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("PgCtl", 1, |d, _| {
            let pg = PgId::new(d.get()?, d.get()?);
            let epoch = d.get()?;
            let body = match d.u8()? {
                1 => CtlBody::Query,
                2 => CtlBody::Info { info: get_opt(d)?, lease_left_ms: d.get()? },
                3 => CtlBody::Notify { info: d.get()? },
                4 => CtlBody::GetLog,
                5 => CtlBody::Log { tail: d.get()?, entries: d.get()? },
                6 => CtlBody::Scan { from: d.get()?, max: d.get()? },
                7 => CtlBody::Scanned { from: d.get()?, objects: d.get()?, next: d.get()? },
                8 => CtlBody::Pull { seq: d.get()?, object: d.get()?, cursor: d.get()? },
                9 => CtlBody::PushAck { seq: d.get()? },
                10 => CtlBody::Finish { info: d.get()?, keep: get_opt(d)?, entries: d.get()? },
                11 => CtlBody::Finished,
                12 => CtlBody::Seal { home: d.get()? },
                13 => CtlBody::Sealed,
                14 => CtlBody::Activate { info: d.get()?, fresh: d.get()? },
                15 => CtlBody::Activated,
                16 => CtlBody::Nack { map: d.get()? },
                17 => CtlBody::Delete,
                v => return Err(DecodeError::Value { what: "PG control", value: i64::from(v) }),
            };
            Ok(Self { pg, epoch, body })
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn info() -> PgInfo {
        PgInfo {
            pg: PgId::new(2, 7),
            pg_num: 8,
            created: 3,
            origin: PgId::new(2, 3),
            confirmed: true,
            last_update: EVersion::new(9, 100),
            log_tail: EVersion::new(4, 10),
            last_user_version: 101,
            les: 8,
            primary: 1,
            home: vec![0, 1, 2],
            seal: Some(Seal { epoch: 9, home: vec![3] }),
            complete: true,
            counts: PgCounts { objects: 5, written_kb: -1, ..PgCounts::default() },
        }
    }

    #[test]
    fn every_control_message_round_trips() {
        let o = HObject::head(2, Bytes::new(), Bytes::new(), "o".into());
        let bodies = [
            CtlBody::Query,
            CtlBody::Info { info: Some(info()), lease_left_ms: 5 },
            CtlBody::Info { info: None, lease_left_ms: 0 },
            CtlBody::Notify { info: info() },
            CtlBody::GetLog,
            CtlBody::Log { tail: EVersion::new(1, 2), entries: vec!["a".into(), "b".into()] },
            CtlBody::Scan { from: HObject::min(), max: 100 },
            CtlBody::Scanned {
                from: HObject::min(),
                objects: vec![(o.clone(), EVersion::new(3, 4))],
                next: HObject::max(),
            },
            CtlBody::Pull {
                seq: 4,
                object: o,
                cursor: CopyCursor { offset: 1, data_done: true, omap_from: "k".into() },
            },
            CtlBody::PushAck { seq: 9 },
            CtlBody::Finish { info: info(), keep: Some(EVersion::new(1, 1)), entries: vec!["e".into()] },
            CtlBody::Finished,
            CtlBody::Seal { home: vec![1, 2] },
            CtlBody::Sealed,
            CtlBody::Activate { info: info(), fresh: true },
            CtlBody::Activated,
            CtlBody::Nack { map: 77 },
            CtlBody::Delete,
        ];
        let all = PgCtls(bodies.into_iter().map(|body| PgCtl { pg: PgId::new(2, 7), epoch: 5, body }).collect());
        assert_eq!(PgCtls::from_message(&all.clone().into_message(1)).unwrap(), all);
    }

    #[test]
    fn transactions_acks_and_pings_round_trip() {
        let t = PgTxn {
            pg: PgId::new(2, 7),
            epoch: 5,
            kind: TxnKind::Pulled,
            seq: 8,
            version: EVersion::new(5, 6),
            next: Some(CopyCursor::default()),
            header: "header".into(),
            payload: "payload".into(),
        };
        assert_eq!(PgTxn::from_message(&t.clone().into_message(1)).unwrap(), t);
        let a = PgAcks(vec![RepAck { pg: PgId::new(1, 2), epoch: 3, version: EVersion::new(4, 5) }; 3]);
        assert_eq!(PgAcks::from_message(&a.clone().into_message(1)).unwrap(), a);
        let p = OsdPong { osd: 1, epoch: 2, sent_ms: 3, lease_ms: 4 };
        assert_eq!(OsdPong::from_message(&p.into_message(1)).unwrap(), p);
    }

    proptest! {
        #[test]
        fn prop_garbage_is_refused_without_panic(bytes: Vec<u8>) {
            let b = Bytes::from(bytes);
            let _ = PgTxn::read(1, &b, &b);
            let _ = PgAcks::read(1, &b, &b);
            let _ = PgCtls::read(1, &b, &b);
            let _ = OsdPing::read(1, &b, &b);
        }
    }
}
