//! Messages for other OSDs that are gathered until the end of a batch, and what goes before them.
//!
//! Acknowledgements and control messages of all PGs for one peer leave in one message each. The
//! order in which PGs decided on messages for a peer is kept: what was gathered is not overtaken by
//! a write, nor acknowledgements by a control message that came after them.

use crate::peers::Peers;
use spirula_messages::Body;
use spirula_messages::cluster::pg::{PgAcks, PgCtl, PgCtls, RepAck};
use spirula_pg::PeerMsg;
use spirula_types::OsdId;
use std::collections::BTreeMap;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    acks: BTreeMap<OsdId, Vec<RepAck>>,
    ctls: BTreeMap<OsdId, Vec<PgCtl>>,
}

impl Outbox {
    /// Sends a PG's message to a peer, or gathers it.
    pub fn send(&mut self, osd: OsdId, msg: PeerMsg, peers: &Peers) {
        match msg {
            PeerMsg::Write(w) => {
                self.flush_peer(osd, peers);
                peers.send(osd, w.to_message(0));
            }
            PeerMsg::Txn(t) => {
                // What was gathered before it must not be overtaken.
                self.flush_peer(osd, peers);
                peers.send(osd, t.into_message(0));
            }
            PeerMsg::Ack(a) => self.acks.entry(osd).or_default().push(a),
            PeerMsg::Ctl(c) => {
                if self.acks.contains_key(&osd) {
                    self.flush_acks(osd, peers);
                }
                self.ctls.entry(osd).or_default().push(*c);
            }
        }
    }

    fn flush_acks(&mut self, osd: OsdId, peers: &Peers) {
        if let Some(acks) = self.acks.remove(&osd) {
            peers.send(osd, PgAcks(acks).into_message(0));
        }
    }

    fn flush_peer(&mut self, osd: OsdId, peers: &Peers) {
        // Control before acknowledgements: the order in which they were gathered, see `send`.
        if let Some(ctls) = self.ctls.remove(&osd) {
            peers.send(osd, PgCtls(ctls).into_message(0));
        }
        self.flush_acks(osd, peers);
    }

    /// Sends all that was gathered.
    pub fn flush(&mut self, peers: &Peers) {
        let mut osds: Vec<OsdId> = self.ctls.keys().copied().collect();
        osds.extend(self.acks.keys().copied());
        for osd in osds {
            self.flush_peer(osd, peers);
        }
    }
}
