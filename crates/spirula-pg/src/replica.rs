//! A member that takes writes from the primary of the present interval, and what it is to it.
//!
//! A member is activated by its primary, and takes part until the interval ends, or until it finds
//! that it cannot follow: then it says so, and its primary peers anew. All that it remembers of its
//! part is here, and goes with it.

use crate::again::{Again, Repeat};
use crate::api::PeerMsg;
use crate::commits::After;
use crate::copy::{History, Spoilt};
use crate::core::{Cx, PgCore};
use crate::exec::Prefetch;
use crate::mail::Mail;
use crate::recovery::share::Relative;
use crate::recovery::{Pushes, Target};
use crate::repair::Repairs;
use crate::scrub;
use spirula_messages::cluster::pg::{CtlBody, PgTxn};
use spirula_types::transaction::Transaction;
use spirula_types::{EVersion, HObject, Peer};
use std::collections::BTreeMap;

/// See the module.
#[derive(Debug)]
pub(crate) struct Replica {
    primary: Peer,
    /// Number of its activation.
    run: u64,
    /// The newest entry that was here when the primary was told that a later one came.
    gap: Option<EVersion>,
    /// Pushes that were applied here.
    pushes: Pushes,
    /// Copies found bad that the primary has not noted yet: the version, and the first bad byte if
    /// it is known.
    rotten: BTreeMap<HObject, (EVersion, Option<u64>)>,
    rotten_repeat: Repeat,
    /// What the primary has reserved here.
    pub target: Target,
}

impl Replica {
    /// A member that this primary has activated. `before`: what it was before, if it was one in
    /// this interval; `spoilt`: what it lacks since it took over the log, which the primary does
    /// not know.
    pub fn new(primary: Peer, run: u64, before: Option<Self>, spoilt: Spoilt) -> Self {
        let (pushes, rotten_repeat) =
            before.map(|r| (r.pushes, r.rotten_repeat)).unwrap_or_default();
        let rotten = spoilt.into_iter().map(|(object, version)| (object, (version, None)));
        Self {
            primary,
            run,
            gap: None,
            pushes,
            rotten: rotten.collect(),
            rotten_repeat,
            target: Target::default(),
        }
    }

    /// Who leads.
    pub fn primary(&self) -> Peer {
        self.primary
    }

    /// Number of its activation.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// Does the primary have to be told something until it has heard it?
    pub fn wants_tick(&self) -> bool {
        !self.rotten.is_empty() || self.target.wants_tick()
    }

    /// Says again what was not heard.
    pub fn repeat(&mut self, core: &PgCore, again: Again, cx: &mut Cx<'_>) {
        let open = (!self.rotten.is_empty()).then_some(self.primary);
        if !again.whom(&mut self.rotten_repeat, 0, open).is_empty() {
            self.tell_all_rotten(core, cx);
        }
        self.target.repeat_refused(core, again, cx);
    }

    /// What only the primary of a member says to it, and is nothing to any other holder.
    pub fn on_order(
        &mut self,
        from: Peer,
        order: CtlBody,
        core: &mut PgCore,
        repairs: &mut Repairs,
        cx: &mut Cx<'_>,
    ) {
        match order {
            CtlBody::History { seq, history_les, lec, rolled, scrub, counted, read } => {
                let h = History { history_les, lec, rolled, scrub, counted, read };
                self.on_history(from, seq, &h, core, cx);
            }
            CtlBody::Progress { last_backfill, follows } => {
                self.on_progress(from, last_backfill, follows, core, cx);
            }
            CtlBody::Reserve { seq, backfill } => {
                self.target.on_reserve(core, from, seq, backfill, cx);
            }
            CtlBody::RottenAck { object, version } => self.heard_rotten(&object, version),
            // The primary found our copy bad.
            CtlBody::Rotten { object, version, .. } => {
                repairs.mark_unreadable(core, object, version, cx);
            }
            CtlBody::ScrubScan { seq, from: first, to, deep } => {
                let (begin, end) = core.span();
                scrub::scan(core, seq, &first.max(begin), to.min(end), deep, cx);
            }
            _ => {}
        }
    }

    fn on_history(&self, from: Peer, seq: u64, h: &History, core: &mut PgCore, cx: &mut Cx<'_>) {
        if core.info().is_none() {
            return;
        }
        let change = core.copy.note_history(h);
        let ack = core.ctl(from, CtlBody::HistoryAck { seq });
        core.submit(change, After::Send(from, ack), cx);
    }

    fn on_progress(
        &mut self,
        from: Peer,
        last_backfill: HObject,
        follows: EVersion,
        core: &mut PgCore,
        cx: &mut Cx<'_>,
    ) {
        if !self.has_come(from, follows, core, cx) {
            return;
        }
        let Some(info) = core.info() else { return };
        let news = (last_backfill > info.last_backfill).then(|| last_backfill.clone());
        let ack = core.ctl(from, CtlBody::ProgressAck { last_backfill });
        if let Some(news) = news {
            let change = core.copy.filled_to(news);
            core.submit(change, After::Send(from, ack), cx);
        } else {
            core.send_again(from, ack, cx);
        }
    }

    // ---- bad copies ----

    /// The copy of an object here is bad, which the primary is to hear until it has.
    pub fn note_rotten(&mut self, object: HObject, version: EVersion, offset: Option<u64>) {
        self.rotten.insert(object, (version, offset));
    }

    /// The primary has noted it.
    fn heard_rotten(&mut self, object: &HObject, version: EVersion) {
        if self.rotten.get(object).is_some_and(|(told, _)| *told <= version) {
            self.rotten.remove(object);
        }
    }

    /// The primary begins anew, and will hear what is lacked here.
    pub fn forget_rotten(&mut self) {
        self.rotten.clear();
    }

    /// Tells the primary of all copies that are bad here.
    pub fn tell_all_rotten(&self, core: &PgCore, cx: &mut Cx<'_>) {
        for (object, (version, offset)) in &self.rotten {
            let (object, version, offset) = (object.clone(), *version, *offset);
            core.send(self.primary, CtlBody::Rotten { object, version, offset }, cx);
        }
    }

    // ---- pushes ----

    /// A piece of an object that the primary has us make.
    pub fn on_push(
        &mut self,
        from: Peer,
        t: PgTxn,
        core: &mut PgCore,
        mail: &mut Mail,
        repairs: &mut Repairs,
        cx: &mut Cx<'_>,
    ) {
        if !self.has_come(from, t.follows, core, cx) {
            return;
        }
        if !cx.reader.takes_data(t.payload.len() as u64) {
            // It is sent again until there is room. The store would refuse it, and what makes room
            // would wait behind it.
            tracing::debug!(pg = %core.id, %from, "no room for a push");
            return;
        }
        if let Some(durable) = self.pushes.get(t.seq) {
            // Repeated while it is on its way to the disk: it has one answer.
            if durable {
                core.send(from, CtlBody::PushAck { seq: t.seq }, cx);
            }
            return;
        }
        if mail.follow(from, &t) {
            return;
        }
        let txn = match Transaction::join(&t.header, &t.payload) {
            Ok(txn) => txn,
            Err(e) => {
                tracing::error!(pg = %core.id, %from, error = %e, "read push");
                return;
            }
        };
        if txn.objects.iter().any(|u| self.pushes.is_overtaken(t.seq, &u.object)) {
            return;
        }
        match may_share(core, &txn, &t.beside, cx) {
            Ok(true) => {}
            Ok(false) => return core.send(from, CtlBody::PushRefused { seq: t.seq }, cx),
            Err(what) => return mail.park(core, from, PeerMsg::Txn(t), what, cx),
        }
        let last = t.next.is_none();
        for u in &txn.objects {
            self.pushes.applied(t.seq, u.object.clone());
        }
        for u in txn.objects.iter().filter(|_| last) {
            self.rotten.remove(&u.object);
        }
        let after = After::Pushed { since: core.interval().since, to: from, seq: t.seq };
        repairs.apply_piece(core, false, txn, last, after, cx);
    }

    /// A push is durable here.
    pub fn pushed(&mut self, seq: u64) {
        self.pushes.durable(seq);
    }

    // ---- the stream of writes ----

    /// Is this the next entry? If not, what is to be said is said.
    pub fn is_next(
        &mut self,
        from: Peer,
        version: EVersion,
        follows: EVersion,
        core: &mut PgCore,
        cx: &mut Cx<'_>,
    ) -> bool {
        let Some(head) = core.info().map(|i| i.last_update()) else { return false };
        if planted!(core.cfg, GapAccepted) {
            return version > head;
        }
        if version <= head {
            self.acknowledge_again(from, head, core, cx);
            return false;
        }
        if follows > head {
            self.tell_gap(from, head, core, cx);
            return false;
        }
        if follows != head {
            invariant!(
                core,
                "a write of {from} with version {version} follows {follows}, and {head} is here"
            );
            return false;
        }
        true
    }

    /// Has all come on which this depends? If not, what is to be said is said.
    fn has_come(&mut self, from: Peer, follows: EVersion, core: &PgCore, cx: &mut Cx<'_>) -> bool {
        let Some(head) = core.info().map(|i| i.last_update()) else { return false };
        if follows > head && !planted!(core.cfg, GapAccepted) {
            self.tell_gap(from, head, core, cx);
            return false;
        }
        true
    }

    /// Once for each gap: all that is on its way behind the lost one meets it.
    fn tell_gap(&mut self, from: Peer, have: EVersion, core: &PgCore, cx: &mut Cx<'_>) {
        if self.gap.replace(have) != Some(have) {
            core.send(from, CtlBody::Gap { have }, cx);
        }
    }
}

/// Can what a push brings take ranges of these here? Not what replaces a bad copy: the bad block
/// might be what it would share. (It is known as such by being there and lacked altogether; the
/// first piece of a copy takes its record away.)
fn may_share(
    core: &PgCore,
    txn: &Transaction,
    beside: &[Relative],
    cx: &Cx<'_>,
) -> Result<bool, Prefetch> {
    if beside.is_empty() {
        return Ok(true);
    }
    for u in &txn.objects {
        if core.is_replaced(&u.object, cx)? {
            return Ok(false);
        }
    }
    core.has_beside(beside, cx)
}
