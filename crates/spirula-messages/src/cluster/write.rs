//! A write on its way from its primary to another member (type 0x5343).
//!
//! What it means for the PG is typed: entries, head, and how much of each entry's change the member
//! gets. The changes of objects themselves are for the member's store alone; nobody has to look
//! into them to know what the write is.

use super::entry::LogEntry;
use super::pg::{Ends, HEADER_IN_FRONT, PgHead};
use crate::Body;
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, from_slice, to_vec};
use spirula_types::{EVersion, Epoch, PgId};
use std::sync::Arc;

/// How much of an entry's change a member gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Nothing but the entry: the member lacks the object, or its backfill has not come to it; or
    /// there is no change.
    Entry,
    /// A change to be merged with what the member has of the object.
    Merged,
    /// All that the object is from now on, or its end: what the member had does not matter.
    Whole,
}

/// What a member gets of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    /// How much of its change.
    pub share: Share,
    /// How many updates of objects that is; they come in the order of the entries.
    pub updates: u32,
}

/// An entry, and as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged {
    /// The entry.
    pub entry: LogEntry,
    /// [`LogEntry::to_bytes`] of it, by the OSD that made it.
    pub stored: Bytes,
}

impl Logged {
    /// An entry made here.
    pub fn new(entry: LogEntry) -> Self {
        Self { stored: entry.to_bytes(), entry }
    }
}

/// What a write is for all members alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteRecord {
    /// What it makes of the PG's head. `log_tail`: up to where the primary's log is trimmed with
    /// it. `rolled`: up to where all members have everything.
    pub head: PgHead,
    /// The head as it is stored, by the OSD that made it.
    pub stored: Bytes,
    /// Its entries, versions rising, at least one; the last one's is the head's.
    pub entries: Vec<Logged>,
}

impl WriteRecord {
    /// One made here.
    pub fn new(head: PgHead, entries: Vec<Logged>) -> Self {
        Self { stored: to_vec(&head).into(), head, entries }
    }
}

/// A write, for one member. Acknowledged by [`super::pg::RepAck`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PgWrite {
    /// The PG.
    pub pg: PgId,
    /// The shards that send and receive it.
    pub ends: Ends,
    /// First epoch of the interval it belongs to.
    pub epoch: Epoch,
    /// The activation it belongs to ([`super::pg::CtlBody::Activate`]).
    pub run: u64,
    /// The newest entry before its own: a member takes it only at that point of its log.
    pub follows: EVersion,
    /// What it is.
    pub record: Arc<WriteRecord>,
    /// What the member gets, for each entry.
    pub given: Vec<Given>,
    /// The updates, first part of `Transaction::split`.
    pub header: Bytes,
    /// Second part of it.
    pub payload: Bytes,
}

impl PgWrite {
    /// The newest entry that it makes.
    pub fn version(&self) -> EVersion {
        self.record.head.last_update
    }
}

impl Encode for Given {
    fn encode(&self, out: &mut Encoder) {
        out.u8(match self.share {
            Share::Entry => 0,
            Share::Merged => 1,
            Share::Whole => 2,
        });
        out.u32(self.updates);
    }
}

impl Decode for Given {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let share = match d.u8()? {
            0 => Share::Entry,
            1 => Share::Merged,
            2 => Share::Whole,
            v => return Err(DecodeError::Value { what: "share of a change", value: i64::from(v) }),
        };
        Ok(Self { share, updates: d.u32()? })
    }
}

impl Body for PgWrite {
    const KIND: u16 = 0x5343;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let entries: usize = self.record.entries.iter().map(|e| e.stored.len()).sum();
        let in_front = self.header.len() <= HEADER_IN_FRONT;
        let mut o =
            Encoder::with_capacity(256 + entries + if in_front { self.header.len() } else { 0 });
        o.versioned(1, 1, |o| {
            o.put(&self.pg);
            o.put(&self.ends);
            o.u32(self.epoch);
            o.u64(self.run);
            o.put(&self.follows);
            o.put(&self.record.stored);
            o.list(self.record.entries.iter().zip(&self.given), |o, (e, given)| {
                o.put(&e.stored);
                o.put(given);
            });
            if in_front {
                o.put(&self.header);
                o.u64(0);
            } else {
                o.put(&Bytes::new());
                o.u64(self.header.len() as u64);
            }
        });
        let data = if in_front {
            self.payload.clone()
        } else {
            [&self.header[..], &self.payload[..]].concat().into()
        };
        (o.into_vec(), data)
    }

    fn read(_version: u16, front: &Bytes, data: &Bytes) -> Result<Self, DecodeError> {
        Decoder::new(front).versioned("PgWrite", 1, |d, _| {
            let (pg, ends, epoch, run, follows) =
                (d.get()?, d.get()?, d.get()?, d.get()?, d.get()?);
            // Copied out, like the entries: the store keeps both for longer than the message.
            let stored: Bytes = d.get()?;
            let head: PgHead = from_slice(&stored)?;
            let all = d.list(16, |d| {
                let stored: Bytes = d.get()?;
                Ok((Logged { entry: from_slice(&stored)?, stored }, d.get::<Given>()?))
            })?;
            let (entries, given): (Vec<Logged>, Vec<Given>) = all.into_iter().unzip();
            let rising = entries.is_sorted_by(|a, b| a.entry.version < b.entry.version);
            if !rising || entries.last().is_none_or(|e| e.entry.version != head.last_update) {
                return Err(DecodeError::Value {
                    what: "entries of a write",
                    value: entries.len() as i64,
                });
            }
            // The changes share the segment's memory.
            let mut header = front.slice_ref(d.blob()?);
            let mut payload = data.clone();
            let with_payload = usize::try_from(d.u64()?).unwrap_or(usize::MAX);
            if with_payload > 0 {
                if with_payload > data.len() {
                    return Err(DecodeError::Truncated { need: with_payload, have: data.len() });
                }
                (header, payload) = (data.slice(..with_payload), data.slice(with_payload..));
            }
            let record = Arc::new(WriteRecord { head, stored, entries });
            Ok(Self { pg, ends, epoch, run, follows, record, given, header, payload })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::EntryKind;
    use super::*;
    use proptest::prelude::*;
    use spirula_encoding::UTime;
    use spirula_types::{Dirty, HObject, ReqId};

    fn write(versions: &[u64]) -> PgWrite {
        let entry = |v: u64| LogEntry {
            version: EVersion::new(5, v),
            prior: EVersion::default(),
            user_version: v,
            reqid: ReqId::default(),
            result: 0,
            kind: EntryKind::Modify,
            object: HObject::head(2, Bytes::new(), Bytes::new(), "o".into()),
            mtime: UTime::ZERO,
            home: 0,
            dirty: Dirty::All,
            returns: Vec::new(),
        };
        let entries: Vec<Logged> = versions.iter().map(|v| Logged::new(entry(*v))).collect();
        let last_update = entries.last().map_or(EVersion::default(), |e| e.entry.version);
        let share = [Share::Entry, Share::Merged, Share::Whole];
        PgWrite {
            pg: PgId::new(2, 7),
            ends: Ends { from: 0, to: 2 },
            epoch: 5,
            run: 8,
            follows: EVersion::new(5, 5),
            given: entries
                .iter()
                .zip(share)
                .map(|(_, share)| Given { share, updates: 2 })
                .collect(),
            record: Arc::new(WriteRecord::new(
                PgHead { last_update, ..PgHead::default() },
                entries,
            )),
            header: "header".into(),
            payload: "payload".into(),
        }
    }

    #[test]
    fn a_write_of_one_entry_or_of_several_round_trips() {
        for versions in [&[6][..], &[6, 7, 9]] {
            let w = write(versions);
            assert_eq!(PgWrite::from_message(&w.clone().into_message(1)).unwrap(), w);
            // What is too long for a message's front goes with the payload.
            let long = PgWrite { header: vec![7; HEADER_IN_FRONT + 1].into(), ..w };
            let message = long.clone().into_message(1);
            assert!(message.front.len() < 2000 && message.data.len() == HEADER_IN_FRONT + 8);
            assert_eq!(PgWrite::from_message(&message).unwrap(), long);
        }
    }

    #[test]
    fn a_write_whose_head_is_not_its_last_entrys_is_refused() {
        for versions in [&[][..], &[7, 6], &[6, 6]] {
            assert!(
                PgWrite::from_message(&write(versions).into_message(1)).is_err(),
                "{versions:?}"
            );
        }
        let mut w = write(&[6, 7]);
        let head = PgHead { last_update: EVersion::new(5, 8), ..PgHead::default() };
        w.record = Arc::new(WriteRecord::new(head, w.record.entries.clone()));
        assert!(PgWrite::from_message(&w.into_message(1)).is_err());
    }

    proptest! {
        #[test]
        fn prop_garbage_is_refused_without_panic(bytes: Vec<u8>) {
            let b = Bytes::from(bytes);
            let _ = PgWrite::read(1, &b, &b);
        }
    }
}
