//! Falling back to what the store holds, when the store would not take what the PG had decided on.
//!
//! A store without room refuses transactions. The shell keeps them, and all that comes after them,
//! for as long as only the PG's own interval is concerned
//! ([`PgEffect::Submit`](crate::PgEffect::Submit)). It does so no longer when somebody else would
//! wait for this member ([`Pg::must_hear`]): a map begins another interval, or the primary peers
//! anew; nor for longer than some seconds, since what takes no room (a deletion) waits behind what
//! does. Then nothing of what was refused will ever be stored, and the PG forgets it
//! ([`PgEvent::Unstored`](crate::PgEvent::Unstored)).
//!
//! # Why that is safe
//! To the others a member that falls back is one that crashed before the refused transaction was on
//! its disk, of which only what it had sent before is left: the case for which there is peering.
//! * *Nobody counts on it.* Whatever says that something is durable here (an acknowledgement, an
//!   answer, an activation) is said when its token is committed ([`After`]), and so never for a
//!   refused transaction or a later one. Those words are dropped.
//! * *Nothing is torn.* The store took all transactions before the refused one and none after it,
//!   for the shell keeps the order. So log, missing set and record are those of one moment. What
//!   was read by way of the refused changes is forgotten with the role: requests go back to
//!   waiting, and are looked up in the log like any that are sent again.
//! * *What does not come from the store stays.* Maps were seen whether or not that was stored: the
//!   interval and the older ones stay as they are, and are stored again. Numbers that were given
//!   out (versions, activations, questions) are not given out a second time: a version that another
//!   member has names that entry.
//! * *A version stays one entry's.* A primary's entries that are given up have an older epoch than
//!   all that follow where it falls back with a new interval. Where it does so within one (it has
//!   waited for too long) it peers anew: all members of the interval are heard before it makes
//!   another entry, the longest log among theirs counts, and what a member has beyond that is taken
//!   back there. One that cannot be heard is down, which is a new interval.
//!   A member that falls back in the middle of an interval has no part in it any more until its
//!   primary activates it anew.
//!
//! What is given up may have been decided by all, and be acknowledged without a copy here: this
//! member lacks the object then, as any does that was away, and the PG is degraded. What the pool's
//! `min_size` asks for is for peering and recovery to see to.

use crate::api::{PeerMsg, PgEvent, Token};
use crate::commits::After;
use crate::core::Cx;
use crate::pg::Pg;
use crate::role::Role;
use crate::stored::{Record, Stored};
use spirula_encoding::from_slice;
use spirula_messages::cluster::pg::CtlBody;

impl Pg {
    /// Must the PG be told this though its store refuses a transaction? It is to fall back before
    /// that: others wait for it to leave what it does. What it is told of its own interval can wait
    /// for room with it.
    pub fn must_hear(&self, event: &PgEvent) -> bool {
        match event {
            PgEvent::Map(view) => self.core.is_changed_by(view),
            PgEvent::Peer(from, PeerMsg::Ctl(c)) => {
                let asks = matches!(
                    c.body,
                    CtlBody::Query { .. }
                        | CtlBody::GetLog { .. }
                        | CtlBody::Activate { .. }
                        | CtlBody::Delete
                );
                asks && *from != self.core.me
                    && self.core.leader() == *from
                    && c.epoch >= self.core.interval().since
            }
            _ => false,
        }
    }

    /// Has the PG something of this connection, so that it must hear of its end?
    pub fn knows(&self, conn: crate::ConnId) -> bool {
        let is_under_way =
            || self.primary().is_some_and(|a| a.inflight.iter().any(|f| f.is_of(conn)));
        self.held.knows(conn) || self.requests.knows(conn) || is_under_way()
    }

    /// Can the PG fall back to this? Not where the refused transaction was a split or a merge: its
    /// parts would overlap.
    pub fn can_fall_back(&self, stored: &Stored) -> bool {
        if stored.record.is_empty() {
            return self.core.shaped() == 0;
        }
        let record = from_slice::<Record>(&stored.record);
        record.is_ok_and(|r| {
            r.shaped == self.core.shaped()
                && self.core.info().is_none_or(|i| i.pg_num == r.info.pg_num)
        })
    }

    /// The store will never hold the transaction of this token, nor a later one: see the module.
    pub(crate) fn on_unstored(&mut self, refused: Token, stored: &Stored, cx: &mut Cx<'_>) {
        let held = match stored.record.is_empty() {
            true => Pg::new(self.id(), self.core.me.osd, self.core.cfg.clone()),
            false => match Pg::load(self.id(), self.core.me.osd, self.core.cfg.clone(), stored) {
                Ok(held) => held,
                Err(e) => return invariant!(self.core, "what the store holds cannot be read: {e}"),
            },
        };
        self.core.commits.forget_from(refused);
        let leads = matches!(self.role, Role::Peering(_) | Role::Primary(_));
        self.leave_role(cx);
        self.mail.forget_parked();
        self.requests.forget_objects();
        if let Some(change) = self.core.copy.fall_back(held.core.copy) {
            self.core.submit(change, After::Nothing, cx);
        }
        if self.core.view.as_ref().is_some_and(|v| v.pool.is_none()) {
            self.remove_pool_gone(cx);
        } else if leads {
            self.start_peering(cx);
        } else if self.core.is_live() {
            self.call_primary(cx);
            self.resume_removal(cx);
            self.check_removed(cx);
        }
        cx.out.push(crate::PgEffect::StateChanged);
    }
}
