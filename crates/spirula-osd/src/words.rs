//! What the PGs have to say to the monitor, gathered until the end of a batch.
//!
//! Each kind of word goes in one message for all PGs. What is said twice meanwhile is said once, as
//! it was said last.

use spirula_messages::cluster::control::{
    MergeWord, OsdAlive, OsdPgTemp, PgCreateAsk, PgMerges, PgsCreated,
};
use spirula_messages::{Body, Message};
use spirula_types::{Epoch, OsdId, PgId, SpgId};
use std::collections::{BTreeMap, BTreeSet};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Words {
    /// PGs of which is asked whether they may be created, each with the newest epoch in which one
    /// asked.
    asking: BTreeMap<PgId, Epoch>,
    /// Who is here that has asked for the monitor's word about a PG since this process began.
    askers: BTreeMap<PgId, BTreeSet<SpgId>>,
    created: Vec<(PgId, Epoch)>,
    merges: BTreeMap<PgId, MergeWord>,
    /// Newest epoch that the map's `up_thru` of us must reach; 0 for none.
    alive: Epoch,
    /// Acting sets to ask for.
    acting: BTreeMap<PgId, Vec<OsdId>>,
}

impl Words {
    /// `by` asks whether `pg` may be created, in `epoch`. It may ask for the one that it stems
    /// from.
    pub fn ask(&mut self, by: SpgId, pg: PgId, epoch: Epoch) {
        self.askers.entry(pg).or_default().insert(by);
        // What the PG itself asks is asked for those that stem from it, too.
        let asked = self.asking.entry(pg).or_insert(0);
        *asked = epoch.max(*asked);
    }

    /// Whoever asked about this PG. They stay noted: the answer that has come may be to an older
    /// question, and the answer to the newest is still to come.
    pub fn askers(&self, pg: PgId) -> Vec<SpgId> {
        self.askers.get(&pg).into_iter().flatten().copied().collect()
    }

    /// A PG is here no more.
    pub fn forget(&mut self, by: SpgId) {
        self.askers.retain(|_, all| {
            all.remove(&by);
            !all.is_empty()
        });
    }

    /// A PG was created, in `epoch`.
    pub fn created(&mut self, pg: PgId, epoch: Epoch) {
        self.created.push((pg, epoch));
    }

    /// What a PG that is to be merged says.
    pub fn merge(&mut self, pg: PgId, word: MergeWord) {
        self.merges.insert(pg, word);
    }

    /// The map is to say that we were alive in this epoch.
    pub fn alive(&mut self, epoch: Epoch) {
        self.alive = self.alive.max(epoch);
    }

    /// A PG wants to be served by these.
    pub fn want_acting(&mut self, pg: PgId, want: Vec<OsdId>) {
        self.acting.insert(pg, want);
    }

    /// Takes what was gathered, as messages of this OSD, whose newest map is of `epoch`.
    pub fn take(&mut self, osd: OsdId, epoch: Epoch) -> Vec<Message> {
        let mut out = Vec::new();
        if !self.asking.is_empty() {
            out.push(PgCreateAsk { osd, pgids: std::mem::take(&mut self.asking) }.into_message(0));
        }
        if self.alive > 0 {
            out.push(OsdAlive { osd, want: std::mem::take(&mut self.alive) }.into_message(0));
        }
        if !self.acting.is_empty() {
            out.push(
                OsdPgTemp { osd, epoch, pgs: std::mem::take(&mut self.acting) }.into_message(0),
            );
        }
        if !self.merges.is_empty() {
            out.push(PgMerges { osd, pgs: std::mem::take(&mut self.merges) }.into_message(0));
        }
        if !self.created.is_empty() {
            let pgids = std::mem::take(&mut self.created).into_iter().collect();
            out.push(PgsCreated { osd, pgids }.into_message(0));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_word_is_one_message_and_is_said_once() {
        let (mut w, pg) = (Words::default(), PgId::new(1, 0));
        let child = SpgId::new(PgId::new(1, 4), -1);
        w.ask(SpgId::new(pg, -1), pg, 5);
        w.ask(child, pg, 3);
        w.alive(7);
        w.alive(6);
        w.want_acting(pg, vec![1, 2]);
        w.want_acting(pg, vec![2]);
        let told = w.take(3, 9);
        let kinds: Vec<u16> = told.iter().map(|m| m.kind).collect();
        assert_eq!(kinds, [PgCreateAsk::KIND, OsdAlive::KIND, OsdPgTemp::KIND]);
        assert_eq!(PgCreateAsk::from_message(&told[0]).unwrap().pgids, [(pg, 5)].into());
        assert_eq!(OsdAlive::from_message(&told[1]).unwrap().want, 7);
        let temp = OsdPgTemp::from_message(&told[2]).unwrap();
        assert_eq!((temp.epoch, temp.pgs), (9, [(pg, vec![2])].into()));
        assert!(w.take(3, 9).is_empty());
        assert_eq!(w.askers(pg), [SpgId::new(pg, -1), child], "the answer is still to come");
        w.forget(SpgId::new(pg, -1));
        assert_eq!(w.askers(pg), [child]);
        w.forget(child);
        assert!(w.askers.is_empty(), "nothing stays of PGs that are gone");
    }
}
