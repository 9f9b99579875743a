//! What is to be done before the OSD takes the next event: what PGs wish for, and what they are to
//! be told.
//!
//! Wishes go first, in the order in which PGs had them. Only when there are none left is a PG told
//! something: a PG counts on seeing what it submitted, and on its messages leaving in the order of
//! its wishes.

use spirula_pg::{PeerMsg, PgEffect, PgEvent};
use spirula_types::{Peer, SpgId};
use std::collections::VecDeque;

/// See the module.
#[derive(Default)]
pub(crate) struct Agenda {
    wishes: VecDeque<(SpgId, PgEffect)>,
    events: VecDeque<(SpgId, PgEvent)>,
    /// Messages from one shard here to another.
    own_mail: VecDeque<(Peer, PeerMsg)>,
    /// What the PG wishes that is being told something.
    fresh: Vec<PgEffect>,
}

impl Agenda {
    /// Where a PG that is told something puts its wishes; [`Agenda::note`] follows.
    pub fn fresh(&mut self) -> &mut Vec<PgEffect> {
        &mut self.fresh
    }

    /// What is there are the wishes of this PG.
    pub fn note(&mut self, id: SpgId) {
        self.wishes.extend(self.fresh.drain(..).map(|e| (id, e)));
    }

    /// A PG wishes this, behind what there is.
    pub fn wish(&mut self, id: SpgId, wishes: impl IntoIterator<Item = PgEffect>) {
        self.wishes.extend(wishes.into_iter().map(|e| (id, e)));
    }

    /// The next wish.
    pub fn next_wish(&mut self) -> Option<(SpgId, PgEffect)> {
        self.wishes.pop_front()
    }

    /// The next wish of this PG, before those of others.
    pub fn next_wish_of(&mut self, id: SpgId) -> Option<PgEffect> {
        let at = self.wishes.iter().position(|(pg, _)| *pg == id)?;
        self.wishes.remove(at).map(|(_, wish)| wish)
    }

    /// A PG is to be told this, behind what is to be told.
    pub fn tell(&mut self, id: SpgId, events: impl IntoIterator<Item = PgEvent>) {
        self.events.extend(events.into_iter().map(|e| (id, e)));
    }

    /// A PG is to be told this, in this order, before anything else is told.
    pub fn tell_first(&mut self, id: SpgId, events: impl DoubleEndedIterator<Item = PgEvent>) {
        events.rev().for_each(|e| self.events.push_front((id, e)));
    }

    /// What is to be told next; not before all wishes have been performed.
    pub fn next_event(&mut self) -> Option<(SpgId, PgEvent)> {
        self.events.pop_front()
    }

    /// A shard here says this to another one here.
    pub fn mail(&mut self, from: Peer, msg: PeerMsg) {
        self.own_mail.push_back((from, msg));
    }

    /// The next of such messages.
    pub fn next_mail(&mut self) -> Option<(Peer, PeerMsg)> {
        self.own_mail.pop_front()
    }

    /// Takes all wishes; [`Agenda::put_behind`] follows. For a planted bug only.
    pub fn take_wishes(&mut self) -> VecDeque<(SpgId, PgEffect)> {
        std::mem::take(&mut self.wishes)
    }

    /// Puts wishes behind those that there are now.
    pub fn put_behind(&mut self, wishes: VecDeque<(SpgId, PgEffect)>) {
        self.wishes.extend(wishes);
    }

    /// Nothing is to be done any more.
    pub fn clear(&mut self) {
        self.wishes.clear();
        self.events.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_types::PgId;

    #[test]
    fn what_is_told_first_keeps_its_order_and_goes_before_the_rest() {
        let (mut a, id) = (Agenda::default(), SpgId::new(PgId::new(1, 0), -1));
        let is = |e: Option<(SpgId, PgEvent)>| match e {
            Some((_, PgEvent::Renewed(osd))) => osd,
            _ => -1,
        };
        a.tell(id, [PgEvent::Renewed(3)]);
        a.tell_first(id, [PgEvent::Renewed(1), PgEvent::Renewed(2)].into_iter());
        assert_eq!(
            [is(a.next_event()), is(a.next_event()), is(a.next_event()), is(a.next_event())],
            [1, 2, 3, -1]
        );
    }

    #[test]
    fn wishes_of_one_pg_may_go_before_those_of_others() {
        let (mut a, id) = (Agenda::default(), |seed| SpgId::new(PgId::new(1, seed), -1));
        a.wish(id(1), [PgEffect::WantTurn, PgEffect::Repaired]);
        a.fresh().push(PgEffect::StateChanged);
        a.note(id(2));
        assert!(
            matches!(a.next_wish_of(id(2)), Some(PgEffect::StateChanged))
                && a.next_wish_of(id(2)).is_none()
        );
        assert!(matches!(a.next_wish(), Some((pg, PgEffect::WantTurn)) if pg == id(1)));
        a.clear();
        assert!(a.next_wish().is_none());
    }
}
