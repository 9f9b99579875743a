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

use crate::api::{PeerMsg, PgEffect};
use crate::pg::{Cx, Pg, Role};
use spirula_types::{EVersion, OsdId, Peer};

/// How many times `retry_ms` the longest interval between two repeats is.
const SLOWEST: u64 = 8;

/// When an open exchange is repeated next. Looked at by ticks only: costs nothing while answers
/// come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Repeat {
    /// What is open; another one begins with the first interval.
    key: u64,
    next_ms: u64,
    /// 0: nothing was open.
    wait_ms: u64,
}

/// Which open exchanges to repeat.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Again {
    /// All with this OSD: the link to it was renewed. Else those whose time has come.
    link: Option<OsdId>,
    now_ms: u64,
    base_ms: u64,
}

impl Again {
    /// What is open with an OSD whose link was renewed (`link`), or what has waited for long. The
    /// first interval is `base_ms`.
    pub fn new(link: Option<OsdId>, now_ms: u64, base_ms: u64) -> Self {
        Self { link, now_ms, base_ms: base_ms.max(1) }
    }

    /// Of those that owe an answer to `key`, to whom the question is repeated.
    pub fn whom(
        &self,
        r: &mut Repeat,
        key: u64,
        open: impl IntoIterator<Item = Peer>,
    ) -> Vec<Peer> {
        let mut open: Vec<Peer> = open.into_iter().collect();
        if let Some(link) = self.link {
            open.retain(|p| p.osd == link);
            return open;
        }
        if open.is_empty() {
            *r = Repeat::default();
        } else if r.wait_ms == 0 || r.key != key {
            *r = Repeat { key, next_ms: self.now_ms + self.base_ms, wait_ms: self.base_ms };
            open.clear();
        } else if self.now_ms < r.next_ms {
            open.clear();
        } else {
            r.wait_ms = (2 * r.wait_ms).min(SLOWEST * self.base_ms);
            r.next_ms = self.now_ms + r.wait_ms;
        }
        open
    }
}

impl Repeat {
    /// Was it repeated twice by now, with no answer?
    pub fn is_late(&self, base_ms: u64) -> bool {
        self.wait_ms >= 4 * base_ms
    }
}

impl Pg {
    /// The link to an OSD was renewed: what was on its way, in either direction, may be lost.
    pub(crate) fn on_renewed(&mut self, osd: OsdId, cx: &mut Cx<'_>) {
        if matches!(self.role, Role::Idle)
            && self.core.view.as_ref().is_some_and(|v| v.live && v.primary.osd == osd)
        {
            self.notify(cx);
        }
        self.abort_scrub_with(osd, cx);
        self.repeat_open(Some(osd), cx);
        self.run_pending(cx);
    }

    /// Repeats what is open: with an OSD, or what has waited for long.
    pub(crate) fn repeat_open(&mut self, link: Option<OsdId>, cx: &mut Cx<'_>) {
        if planted!(self.core.cfg, LossUntold) {
            return;
        }
        let again = Again::new(link, cx.now.mono_ms, self.core.cfg.retry_ms);
        match &mut self.role {
            Role::Peering(_) => self.repeat_peering(again, cx),
            Role::Active(_) => {
                self.repeat_stream(again, cx);
                self.repeat_told(again, cx);
                self.repeat_recovery(again, cx);
                self.repeat_gathers(again, cx);
            }
            Role::Replica(r) => r.repeat(&self.core, again, cx),
            Role::Idle | Role::Removing(_) => {}
        }
    }

    /// Sends writes again to members that have not acknowledged them.
    fn repeat_stream(&mut self, again: Again, cx: &mut Cx<'_>) {
        let Role::Active(a) = &mut self.role else { return };
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
        let Role::Active(a) = &self.role else { return };
        let first = a.inflight.partition_point(|f| f.version() <= after);
        let all = a.inflight.range(first..).filter_map(|f| f.sent_to(to));
        cx.out.extend(all.map(|w| PgEffect::Send(to, PeerMsg::Write(w.clone()))));
    }

    /// A member lacks what comes after `have`, and got something later.
    pub(crate) fn on_gap(&mut self, from: Peer, have: EVersion, cx: &mut Cx<'_>) {
        if planted!(self.core.cfg, LossUntold) {
            return;
        }
        let Role::Active(a) = &mut self.role else { return };
        let Some(p) = a.peers.get_mut(&from) else { return };
        // What was sent again meets the same gap no second time, unless it is lost, too: then its
        // time comes.
        if p.gap.replace(have) != Some(have) {
            tracing::info!(pg = %self.core.id, %from, %have, "writes to a member were lost: sent \
                again");
            self.resend_after(from, have, cx);
        }
    }

    /// Member: is this the next entry? If not, what is to be said is said.
    pub(crate) fn is_next(
        &mut self,
        from: Peer,
        version: EVersion,
        follows: EVersion,
        cx: &mut Cx<'_>,
    ) -> bool {
        let Some(head) = self.core.info().map(|i| i.last_update()) else { return false };
        if planted!(self.core.cfg, GapAccepted) {
            return version > head;
        }
        if version <= head {
            self.acknowledge_again(from, head, cx);
            return false;
        }
        if follows > head {
            self.tell_gap(head, cx);
            return false;
        }
        if follows != head {
            invariant!(
                self.core,
                "a write of {from} with version {version} follows {follows}, and {head} is here"
            );
            return false;
        }
        true
    }

    /// Member: has all come on which this depends? If not, what is to be said is said.
    pub(crate) fn has_come(&mut self, follows: EVersion, cx: &mut Cx<'_>) -> bool {
        let Some(head) = self.core.info().map(|i| i.last_update()) else { return false };
        if follows > head && !planted!(self.core.cfg, GapAccepted) {
            self.tell_gap(head, cx);
            return false;
        }
        true
    }

    fn tell_gap(&mut self, have: EVersion, cx: &mut Cx<'_>) {
        if let Role::Replica(r) = &mut self.role {
            r.tell_gap(&self.core, have, cx);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_is_repeated_at_growing_intervals_and_at_once_on_a_renewed_link() {
        let mut r = Repeat::default();
        let (a, b) = (Peer::whole(1), Peer::whole(2));
        let at = |now_ms| Again { link: None, now_ms, base_ms: 10 };
        let mut said = Vec::new();
        for now in 0..1000 {
            if !at(now).whom(&mut r, 7, [a, b]).is_empty() {
                said.push(now);
            }
        }
        assert_eq!(said, [10, 30, 70, 150, 230, 310, 390, 470, 550, 630, 710, 790, 870, 950]);
        let renewed = Again { link: Some(2), ..at(1000) };
        assert_eq!(renewed.whom(&mut r, 7, [a, b]), [b]);
        // Another question begins anew; none forgets.
        assert!(at(1100).whom(&mut r, 8, [a]).is_empty());
        assert_eq!(at(1110).whom(&mut r, 8, [a]), [a]);
        assert!(at(1111).whom(&mut r, 8, []).is_empty());
        assert!(at(2000).whom(&mut r, 8, [a]).is_empty());
    }
}
