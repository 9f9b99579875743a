//! Monitor ↔ monitor messages (types 0x5360–0x536f).
//!
//! They may be lost; whoever needs an answer asks again. `boot` numbers one run of the sender
//! (or, in answers, of the receiver), so that nothing said to an earlier run is taken by a
//! later one.
//!
//! | sender → receiver | messages |
//! |---|---|
//! | any → any | [`QuorumFrame`], [`MonRelay`] |
//! | joining → any → leader | [`MonJoin`] |
//! | leader → joining | [`MonWelcome`] |
//! | other → leader | [`MonForward`], [`MonSession`], [`MonGidsAsk`], [`MonTimeReply`], [`MonForgotten`], [`MonScrubbed`] |
//! | leader → other | [`MonForwardDone`], [`MonRouted`], [`MonGidsGrant`], [`MonTime`], [`MonRemoved`], [`MonForgotten`], [`MonScrub`] |

use super::control::{Since, control};
use crate::{Body, Message};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use spirula_types::{AddrVec, Epoch, OsdId, Uuid};
use std::collections::BTreeMap;

/// A message inside another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Carried(pub Message);

impl Encode for Carried {
    fn encode(&self, out: &mut Encoder) {
        let m = &self.0;
        out.u16(m.kind);
        out.u64(m.tid);
        out.u16(m.priority);
        out.u16(m.version);
        out.u16(m.compat);
        out.blob(&m.front);
        out.blob(&m.middle);
        out.blob(&m.data);
    }
}

impl Decode for Carried {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self(Message {
            kind: d.u16()?,
            tid: d.u64()?,
            priority: d.u16()?,
            version: d.u16()?,
            compat: d.u16()?,
            front: d.bytes()?,
            middle: d.bytes()?,
            data: d.bytes()?,
        }))
    }
}

/// Who a carried message is from, as the monitor it connected to found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarriedPeer {
    /// Kind of entity, as on the wire.
    pub kind: u8,
    /// Name without the kind.
    pub id: String,
    /// Global id.
    pub global_id: u64,
    /// Where it came from.
    pub addrs: AddrVec,
    /// Feature bits.
    pub features: u64,
}

impl Encode for CarriedPeer {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u8(self.kind);
            o.str(&self.id);
            o.u64(self.global_id);
            o.put(&self.addrs);
            o.u64(self.features);
        });
    }
}

impl Decode for CarriedPeer {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("CarriedPeer", 1, |d, _| {
            Ok(Self {
                kind: d.u8()?,
                id: d.get()?,
                global_id: d.u64()?,
                addrs: d.get()?,
                features: d.u64()?,
            })
        })
    }
}

control! {
    /// A frame of the agreement itself.
    QuorumFrame = 0x5360 {
        /// Member that sends.
        from: u64,
        /// Its bytes, `spirula-quorum`'s business.
        frame: Bytes,
    }
}

control! {
    /// A monitor without a member number asks for one. Anyone passes it on to the leader.
    MonJoin = 0x5361 {
        /// Cluster it wants to join.
        fsid: Uuid,
        /// Its name.
        name: String,
        /// Its store's identity; another one than before means that it lost its disk.
        uuid: Uuid,
        /// Where it listens.
        addrs: AddrVec,
    }
}

control! {
    /// The number is durably given; frames of the agreement follow.
    MonWelcome = 0x5362 {
        /// For the store with this identity.
        uuid: Uuid,
        /// Its member number.
        member: u64,
        /// Everyone's: number → (name, addresses).
        members: BTreeMap<u64, (String, AddrVec)>,
    }
}

control! {
    /// A request of somebody connected to the sender, for the leader. Repeated until
    /// [`MonForwardDone`] comes.
    MonForward = 0x5363 {
        /// The sender's run.
        boot: u64,
        /// Number of this request in it.
        id: u64,
        /// The connection it came over.
        conn: u64,
        /// Who asks.
        peer: CarriedPeer,
        /// What.
        message: Carried,
    }
}

control! {
    /// The request is done with; an answer, if there is one, was sent before.
    MonForwardDone = 0x5364 {
        /// The receiver's run.
        boot: u64,
        /// Of the request.
        id: u64,
    }
}

control! {
    /// A message for somebody connected to the receiver.
    MonRouted = 0x5365 {
        /// The receiver's run.
        boot: u64,
        /// The connection.
        conn: u64,
        /// The message; of kind 0: close the connection.
        message: Carried,
    }
}

control! {
    /// A daemon's connection came or went, or became silent, or speaks again.
    MonSession = 0x5366 {
        /// The sender's run.
        boot: u64,
        /// The connection.
        conn: u64,
        /// It is there.
        open: bool,
        /// Whose it is.
        peer: CarriedPeer,
        /// Over it an OSD says that it runs ([`super::control::OsdBeacon`]): the last word is
        /// longer ago than it should be (1), or is not (2); 0 if it never said so.
        silent: Since<u8>,
    }
}

control! {
    /// What a manager said, for every monitor's reports.
    MonRelay = 0x5367 {
        /// Who said it.
        peer: CarriedPeer,
        /// What.
        message: Carried,
    }
}

control! {
    /// The sender runs out of global ids.
    MonGidsAsk = 0x5368 {
        /// The sender's run.
        boot: u64,
    }
}

control! {
    /// Global ids that nobody else gives out.
    MonGidsGrant = 0x5369 {
        /// The receiver's run.
        boot: u64,
        /// The first.
        from: u64,
        /// One past the last.
        to: u64,
    }
}

/// Two OSDs of which at least one does not hear the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairTrouble {
    /// One of them.
    pub a: OsdId,
    /// The other.
    pub b: OsdId,
    /// Since when, by the leader's clock.
    pub since: UTime,
    /// Requests and PGs that wait because of it.
    pub waiting: u32,
    /// The one that is kept out for it; [`spirula_types::OSD_NONE`] while both are up.
    pub out: OsdId,
}

impl Encode for PairTrouble {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.a);
            o.put(&self.b);
            o.put(&self.since);
            o.u32(self.waiting);
            o.put(&self.out);
        });
    }
}

impl Decode for PairTrouble {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("PairTrouble", 1, |d, _| {
            Ok(Self { a: d.get()?, b: d.get()?, since: d.get()?, waiting: d.u32()?, out: d.get()? })
        })
    }
}

control! {
    /// What time is it there? And what the leader sees of the quorum.
    MonTime = 0x536a {
        /// The leader's clock as it would be if nobody had ever set one.
        sent: UTime,
        /// Names of the monitors it hears, itself among them.
        quorum: Vec<String>,
        /// When this quorum formed, by its clock.
        since: UTime,
        /// Clock differences it measured, in nanoseconds, and half the way's time.
        skews: BTreeMap<String, (i64, i64)>,
        /// Pairs of OSDs that do not hear each other.
        pairs: Vec<PairTrouble>,
        /// By monitor: how much of the disk that holds its store is free, in per cent.
        room: BTreeMap<String, u32>,
        /// By monitor: what `mon metadata` shows of it.
        facts: Since<BTreeMap<String, BTreeMap<String, String>>>,
        /// Monitors that contradict what is agreed on, and in what.
        contradicting: Since<BTreeMap<String, String>>,
    }
}

control! {
    /// Answer to [`MonTime`].
    MonTimeReply = 0x536b {
        /// Echo.
        sent: UTime,
        /// The answerer's clock.
        here: UTime,
        /// How much of the disk that holds its store is free, in per cent; more than 100 if it does
        /// not know.
        room: u32,
        /// What `mon metadata` shows of it.
        facts: Since<BTreeMap<String, String>>,
        /// The answerer's run, and every connection that it has: any other of it that the leader
        /// knows is gone, and the word of that was lost. The run is 0 where an earlier release does
        /// not say.
        sessions: Since<(u64, Vec<u64>)>,
        /// Why the answerer refuses what the leader says was agreed on; empty if it does not.
        contradicts: Since<String>,
    }
}

control! {
    /// Daemons of which the sender knows that they have OSD maps which the monitors do not have;
    /// what a leader says includes what others told it. Goes along with each [`MonTime`] and its
    /// answer, and replaces what the sender said before.
    MonForgotten = 0x536d {
        /// The newest map of each.
        daemons: BTreeMap<String, Epoch>,
    }
}

control! {
    /// What the leader's state comes to after an entry: is the receiver's the same?
    MonScrub = 0x536e {
        /// The entry.
        index: u64,
        /// Rows and checksum of each table.
        tables: BTreeMap<String, (u64, u64)>,
    }
}

control! {
    /// Answers a [`MonScrub`].
    MonScrubbed = 0x536f {
        /// The entry.
        index: u64,
        /// The sender had applied a later one already, and cannot tell.
        past: bool,
        /// Tables that differ.
        differ: Vec<String>,
    }
}

control! {
    /// The receiver is a member no more.
    MonRemoved = 0x536c {
        /// The number it had.
        member: u64,
    }
}
