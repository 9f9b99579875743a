//! Messages of peers that cannot be taken yet: they wait for a map, for their turn, or for
//! something to be read.
//!
//! * *Early* is what came by a newer map than we have. Its senders wait for an answer, so there is
//!   little; more is dropped, and asked again (`repeat`).
//! * *Ripe* is what waited so and whose map has come: it is taken one for each event, since what
//!   one submits the next must be able to read.
//! * *Parked* is a question for whose answer something is read. A new interval forgets it: its
//!   sender asks anew.
//! * A *follower* is a push that was sent after a parked one of the same family (head and clones of
//!   one object), and may take ranges of what that one brings: it is looked at again when that one
//!   was.

use crate::api::{PeerMsg, PgEffect, ReadKey};
use crate::core::{Cx, PgCore};
use crate::exec::Prefetch;
use spirula_messages::cluster::pg::{CtlBody, PgTxn, TxnKind};
use spirula_types::{Epoch, Peer};
use std::collections::{BTreeMap, VecDeque};

/// Messages kept until the map they need arrives.
const EARLY_MAX: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Mail {
    early: Vec<(Peer, PeerMsg)>,
    ripe: VecDeque<(Peer, PeerMsg)>,
    parked: BTreeMap<u64, (Peer, PeerMsg)>,
    followers: Vec<(Peer, PeerMsg)>,
}

impl Mail {
    /// Does nothing wait for a map, or for its turn?
    pub fn is_empty(&self) -> bool {
        self.early.is_empty() && self.ripe.is_empty()
    }

    /// Takes over what came too early elsewhere.
    pub fn inherit(&mut self, old: Self) {
        self.early.extend(old.early);
    }

    /// Keeps a message until its map comes.
    pub fn keep_early(&mut self, from: Peer, msg: PeerMsg) {
        if self.early.len() < EARLY_MAX {
            self.early.push((from, msg));
        }
    }

    /// The map of this epoch has come.
    pub fn ripen(&mut self, epoch: Epoch) {
        let (ripe, early): (Vec<_>, _) =
            std::mem::take(&mut self.early).into_iter().partition(|(_, m)| m.since() <= epoch);
        self.early = early;
        self.ripe.extend(ripe);
    }

    /// Is there a message whose turn has come?
    pub fn has_ripe(&self) -> bool {
        !self.ripe.is_empty()
    }

    /// The message whose turn has come.
    pub fn next_ripe(&mut self) -> Option<(Peer, PeerMsg)> {
        self.ripe.pop_front()
    }

    /// Keeps what a peer sent until this is read.
    pub fn park(
        &mut self,
        core: &mut PgCore,
        from: Peer,
        msg: PeerMsg,
        what: Prefetch,
        cx: &mut Cx<'_>,
    ) {
        if self.parked.values().any(|(f, m)| *f == from && *m == msg) {
            return; // Repeated: it has one answer.
        }
        let n = core.seq();
        // Only a rebuild asks for attributes.
        let of_client = matches!(&msg, PeerMsg::Ctl(c) if matches!(c.body, CtlBody::ReadShard { attrs: false, .. }));
        let key = if of_client { ReadKey::Shard(n) } else { ReadKey::Recovery(n) };
        self.parked.insert(n, (from, msg));
        cx.out.push(PgEffect::Prefetch(key, what));
    }

    /// What was read under this number is there: the message that waited for it.
    pub fn unpark(&mut self, n: u64) -> Option<(Peer, PeerMsg)> {
        self.parked.remove(&n)
    }

    /// Keeps a push until those of its family that are parked were taken. False if none is.
    pub fn follow(&mut self, from: Peer, push: &PgTxn) -> bool {
        let Some((object, _)) = push.beside.first() else { return false };
        let is_kin = |(f, m): &(Peer, PeerMsg)| {
            let kin =
                |t: &PgTxn| t.beside.first().is_some_and(|(o, _)| o.is_of_same_object(object));
            *f == from && matches!(m, PeerMsg::Txn(t) if t.kind == TxnKind::Push && kin(t))
        };
        let any = self.parked.values().chain(&self.followers).any(is_kin);
        let msg = PeerMsg::Txn(push.clone());
        if any && !self.followers.iter().any(|(f, m)| *f == from && *m == msg) {
            self.followers.push((from, msg));
        }
        any
    }

    /// Those that follow what is taken now: they are to be [let go](Self::let_follow) afterwards.
    pub fn take_followers(&mut self) -> Vec<(Peer, PeerMsg)> {
        std::mem::take(&mut self.followers)
    }

    /// It is their turn.
    pub fn let_follow(&mut self, followers: Vec<(Peer, PeerMsg)>) {
        self.ripe.extend(followers);
    }

    /// Nothing is read for peers' questions any more.
    pub fn forget_parked(&mut self) {
        self.parked.clear();
        self.followers.clear();
    }
}
