//! The other end of a recovery: what the primary has reserved here, on our OSD.
//!
//! One reservation at a time: a later question of the primary replaces an earlier one, whose
//! release may be lost. Whether there is room the shell says ([`PgEffect::Reserve`]); it may say
//! later that there is none any more. Then the primary is told until it has given the reservation
//! back.

use crate::again::{Again, Repeat};
use crate::api::{PgEffect, Reservation};
use crate::core::{Cx, PgCore};
use spirula_messages::cluster::pg::CtlBody;
use spirula_types::{HObject, Peer};
use std::collections::BTreeMap;

/// Pushes that are remembered when they are durable: more than are on their way at a time.
const PUSHES_KEPT: usize = 256;

/// The pushes of this interval, by number: of which object each is, and whether it is durable. One
/// that is repeated is not applied again: what came since may share with what it brought.
#[derive(Debug, Default)]
pub(crate) struct Pushes(BTreeMap<u64, (HObject, bool)>);

impl Pushes {
    /// Was it applied, and is it durable?
    pub fn get(&self, seq: u64) -> Option<bool> {
        self.0.get(&seq).map(|(_, durable)| *durable)
    }

    /// Was one of this object applied that was sent after this one? The primary has given this one
    /// up then; it waited here for something to be read.
    pub fn is_overtaken(&self, seq: u64, object: &HObject) -> bool {
        self.0.range(seq..).any(|(n, (o, _))| *n != seq && o == object)
    }

    /// It is applied.
    pub fn applied(&mut self, seq: u64, object: HObject) {
        self.0.insert(seq, (object, false));
    }

    /// It is durable. Of those the oldest are forgotten.
    pub fn durable(&mut self, seq: u64) {
        if let Some(push) = self.0.get_mut(&seq) {
            push.1 = true;
        }
        while self.0.len() > PUSHES_KEPT
            && let Some(oldest) = self.0.iter().find(|(_, (_, durable))| *durable).map(|(n, _)| *n)
        {
            self.0.remove(&oldest);
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Target {
    /// The number, what, and whether it was granted.
    reserved: Option<(u64, Reservation, bool)>,
    /// A reservation that was taken back, by its number, until its primary has given it back.
    refused: Option<(Peer, u64)>,
    repeat: Repeat,
}

impl Target {
    /// Does the primary have to be told something until it has heard it?
    pub fn wants_tick(&self) -> bool {
        self.refused.is_some()
    }

    /// The primary wants to recover to us.
    pub fn on_reserve(
        &mut self,
        core: &PgCore,
        from: Peer,
        seq: u64,
        backfill: bool,
        cx: &mut Cx<'_>,
    ) {
        match self.reserved {
            Some((n, ..)) if n > seq => return,
            Some((n, _, granted)) if n == seq => {
                if granted {
                    core.send(from, CtlBody::Reserved { seq }, cx);
                }
                return;
            }
            _ => {}
        }
        self.clear(cx);
        let r = Reservation::Remote { primary: from, backfill };
        self.reserved = Some((seq, r, false));
        cx.out.push(PgEffect::Reserve(r));
    }

    /// The primary needs it no more.
    pub fn on_release(&mut self, seq: u64, cx: &mut Cx<'_>) {
        if self.reserved.is_some_and(|(n, ..)| n <= seq) {
            self.release(cx);
        }
        self.refused.take_if(|(_, n)| *n <= seq);
    }

    /// Our OSD lets us; false if nobody wants it any more.
    pub fn on_reserved(&mut self, core: &PgCore, what: Reservation, cx: &mut Cx<'_>) -> bool {
        let (Some((seq, r, granted)), Reservation::Remote { primary, .. }) =
            (&mut self.reserved, what)
        else {
            return false;
        };
        if *r != what {
            return false;
        }
        *granted = true;
        core.send(primary, CtlBody::Reserved { seq: *seq }, cx);
        true
    }

    /// Our OSD has no room, or none any more.
    pub fn on_refused(&mut self, core: &PgCore, what: Reservation, cx: &mut Cx<'_>) {
        if let Reservation::Remote { primary, .. } = what
            && let Some((seq, ..)) = self.reserved.take_if(|(_, r, _)| *r == what)
        {
            (self.refused, self.repeat) = (Some((primary, seq)), Repeat::default());
            core.send(primary, CtlBody::TooFull { seq }, cx);
        }
    }

    /// Says again that there is no room here: a reservation that was granted may be taken back, and
    /// its primary asks no more.
    pub fn repeat_refused(&mut self, core: &PgCore, again: Again, cx: &mut Cx<'_>) {
        let Some((primary, seq)) = self.refused else { return };
        for to in again.whom(&mut self.repeat, seq, [primary]) {
            core.send(to, CtlBody::TooFull { seq }, cx);
        }
    }

    /// Nothing is reserved any more, and nothing refused: the primary begins anew, or the role
    /// ends.
    pub fn clear(&mut self, cx: &mut Cx<'_>) {
        self.refused = None;
        self.release(cx);
    }

    fn release(&mut self, cx: &mut Cx<'_>) {
        if let Some((_, r, _)) = self.reserved.take() {
            cx.out.push(PgEffect::Unreserve(r));
        }
    }
}
