//! Why nothing that is lost between two OSDs is waited for: every exchange can be repeated, and is.
//!
//! # What links do
//! Messages between two OSDs arrive in the order in which they were sent, none twice, but any of
//! them may be lost: when a session is lost, all that waited in it goes.
//! [`crate::PgEvent::Renewed`] says at both ends that this may have happened; nothing here relies
//! on its being said at once, or at all.
//!
//! # The rule
//! Each exchange between two members is **idempotent at its receiver**, and each open one is
//! **repeated** by the side that waits, as it was sent: at once when the link to that OSD was
//! renewed, else at intervals that begin with `retry_ms` and double up to eight times that, so that
//! a slow disk is not buried under questions that it will answer. What was answered is not open any
//! more; since messages keep their order, a repeated one never arrives behind what was sent after
//! its answer.
//!
//! | exchange | who repeats | how the receiver knows it again |
//! |---|---|---|
//! | `Query` → `Info`, `GetLog` → `Log` | primary that peers | tells what is so; an answer that nobody waits for is ignored |
//! | `Notify` | holder that has no part in the interval, until it has one, or is deleted | tells what is so |
//! | `Activate` → `Activated` | primary | number of the activation (`run`): it is not carried out twice |
//! | `Write` → `Ack`, `Gap` | primary, all in order from the first that is not acknowledged | its place in the log, see below |
//! | `History` → `HistoryAck` | primary | only ever raises what it tells |
//! | `Push` → `PushAck`, `PushRefused` | primary, the same piece | its number: it is not applied again, nor after a later one of the object |
//! | `Pull` → `Pulled`, `ReadShard` → `Shard`, `PullFailed` | primary | reads only; the asker takes the first answer to a number |
//! | `Scan` → `Scanned`, `Progress` → `ProgressAck` | primary | reads only; only ever raises the bound |
//! | `Reserve` → `Reserved`, `TooFull`; `Release` → `Released` | primary | number of the reservation |
//! | `TooFull` → `Release` | member that takes back what it granted | number of the reservation |
//! | `Rotten` → `RottenAck` | member | the copy is missing already |
//! | `ScrubScan` → `Scrubbed` | nobody: the scrub is given up, and begun anew | |
//! | `Rotten` of the primary, `Delete` | nobody: the push that follows says it, too; the stray calls again | |
//!
//! # The stream of writes
//! Acknowledgements are cumulative, so a member must have all up to what it acknowledges: **a
//! member takes only the next entry of its log**. A write names the entry that it follows (not by
//! counting: versions may have holes). If that is the member's newest one it is taken, with all
//! entries that it makes; one that the member has is acknowledged again when it is durable; one
//! beyond a gap is dropped, and the primary is told once what is here. The primary keeps each
//! write's messages until all members have acknowledged it, and sends again all from the gap on, in
//! order (go-back-N). So what a member has of an interval is a prefix of its primary's log.
//!
//! A message that has its meaning only at a point of the log carries that point, and a member that
//! is not there yet drops it. Such are a push (it contains all that the primary had written of the
//! object; a write that comes after it must be a later one), and the word how far a backfill has
//! come (a log entry that comes without its change counts as a change that was kept back only if
//! the backfill has passed its object).
//!
//! A primary never gives out a version twice
//! ([`PgCore::next_version`](crate::core::PgCore::next_version)), also where entries were taken
//! back in between, so a version names one entry of one history. Writes carry the number of the
//! activation they belong to: one of an older activation of the same interval is nothing to a
//! member.
//!
//! # A member that leaves its role
//! A member that cannot follow (a message makes no sense to it) takes no more writes and calls its
//! primary, like any holder without a part in the interval. To a primary that takes it for an
//! active member this says that it must peer anew, in the same interval.

use crate::again::Again;
use crate::api::{PeerMsg, PgEffect};
use crate::core::Cx;
use crate::lead::Lead;
use crate::pg::Pg;
use crate::role::Role;
use spirula_types::{EVersion, OsdId, Peer};

impl Pg {
    /// The link to an OSD was renewed: what was on its way, in either direction, may be lost.
    pub(crate) fn on_renewed(&mut self, osd: OsdId, cx: &mut Cx<'_>) {
        if matches!(self.role, Role::Idle(_))
            && self.core.view.as_ref().is_some_and(|v| v.live && v.primary.osd == osd)
        {
            self.call_primary(cx);
        }
        if let Some(mut lead) = self.lead() {
            lead.abort_scrub_with(osd, cx);
        }
        self.repeat_open(Some(osd), cx);
        if let Some(mut lead) = self.lead() {
            lead.run_pending(cx);
        }
    }

    /// Repeats what is open: with an OSD, or what has waited for long.
    pub(crate) fn repeat_open(&mut self, link: Option<OsdId>, cx: &mut Cx<'_>) {
        if planted!(self.core.cfg, LossUntold) {
            return;
        }
        let again = Again::new(link, cx.now.mono_ms, self.core.cfg.retry_ms);
        match &mut self.role {
            Role::Peering(_) => self.repeat_peering(again, cx),
            Role::Primary(_) => {
                if let Some(mut lead) = self.lead() {
                    lead.repeat(again, cx);
                }
            }
            Role::Replica(r) => r.repeat(&self.core, again, cx),
            Role::Idle(_) | Role::Removing(_) => {}
        }
    }
}

impl Lead<'_> {
    /// Sends writes again to members that have not acknowledged them.
    pub(crate) fn repeat_stream(&mut self, again: Again, cx: &mut Cx<'_>) {
        let a = &mut *self.primary;
        let newest = a.inflight.back().map(crate::write::Inflight::version);
        let mut late = Vec::new();
        for (peer, acked) in &a.replicas {
            let open = newest.is_some_and(|n| n > *acked).then_some(*peer);
            if let Some(p) = a.peers.get_mut(peer) {
                late.extend(
                    again.whom(&mut p.repeat, acked.version, open).into_iter().map(|p| (p, *acked)),
                );
            }
        }
        for (to, acked) in late {
            self.resend_after(to, acked, cx);
        }
    }

    /// Sends all writes after this one again.
    fn resend_after(&mut self, to: Peer, after: EVersion, cx: &mut Cx<'_>) {
        let a = &*self.primary;
        let first = a.inflight.partition_point(|f| f.version() <= after);
        let all = a.inflight.range(first..).filter_map(|f| f.sent_to(to));
        cx.out.extend(all.map(|w| PgEffect::Send(to, PeerMsg::Write(w.clone()))));
    }

    /// A member lacks what comes after `have`, and got something later.
    pub(crate) fn on_gap(&mut self, from: Peer, have: EVersion, cx: &mut Cx<'_>) {
        if planted!(self.core.cfg, LossUntold) {
            return;
        }
        let a = &mut *self.primary;
        let Some(p) = a.peers.get_mut(&from) else { return };
        // What was sent again meets the same gap no second time, unless it is lost, too: then its
        // time comes.
        if p.gap.replace(have) != Some(have) {
            tracing::info!(pg = %self.core.id, %from, %have, "writes to a member were lost: sent \
                again");
            self.resend_after(from, have, cx);
        }
    }
}
