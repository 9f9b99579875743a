//! A primary whose PG is active (or peered: too few members to serve, but recovering).

use crate::again::{Again, Repeat};
use crate::api::PgEffect;
use crate::commits::After;
use crate::core::{Cx, PgCore};
use crate::erasure::read::Gather;
use crate::lead::Lead;
use crate::lease::Leases;
use crate::missing::Missing;
use crate::recovery::Recovery;
use crate::requests::Standing;
use crate::scrub::Scrub;
use crate::snap::trim::Trim;
use crate::write::Inflight;
use spirula_encoding::UTime;
use spirula_maps::PgState;
use spirula_messages::cluster::pg::CtlBody;
use spirula_types::{EVersion, HObject, OsdId, Peer};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Another member, as its primary knows it.
#[derive(Debug, Default)]
pub(crate) struct PeerState {
    /// Of the acting set; else it is being backfilled.
    pub acting: bool,
    /// What it lacks of what its log names.
    pub missing: Missing,
    /// Objects up to here are as the log says.
    pub last_backfill: HObject,
    /// Objects it holds so far, while it is backfilled.
    pub copied: u64,
    /// Writes that it has not acknowledged.
    pub repeat: Repeat,
    /// Its newest entry when it missed one, and all from there was sent again.
    pub gap: Option<EVersion>,
}

/// A primary after peering.
#[derive(Debug)]
pub(crate) struct Primary {
    /// Members, ourselves included, that have not recorded the activation.
    pub activating: BTreeSet<Peer>,
    /// Number of the activation.
    pub run: u64,
    /// What those members were sent.
    pub activations: BTreeMap<Peer, CtlBody>,
    activation_repeat: Repeat,
    /// Number of what the members were told last ([`CtlBody::History`]), and who has not said that
    /// it has it.
    told: u64,
    untold: BTreeSet<Peer>,
    told_repeat: Repeat,
    /// All have.
    pub activated: bool,
    /// Enough members are acting.
    pub serving: bool,
    /// The creation waits for the monitor's word.
    pub fresh: bool,
    /// When that, or another acting set, was asked for.
    pub asked_ms: u64,
    /// When it began.
    pub entered: UTime,
    /// No request before: an older primary may still serve reads.
    pub wait_until: u64,
    /// The other acting members and those being backfilled.
    pub peers: BTreeMap<Peer, PeerState>,
    /// What each of them has made durable. The same OSDs, for the write path.
    pub replicas: Vec<(Peer, EVersion)>,
    /// What is durable here.
    pub local: EVersion,
    /// What is durable everywhere.
    pub committed: EVersion,
    /// Writes not durable everywhere, oldest first.
    pub inflight: VecDeque<Inflight>,
    /// All up members are whole and equal, and there are as many as wanted.
    pub clean: bool,
    /// The acting set asked for when recovery is done; empty for the one CRUSH gives.
    pub want: Option<Vec<OsdId>>,
    /// When to ask for it; 0 if that was done.
    pub hand_back_ms: u64,
    /// What the monitor was told for a merge: ready, with which map (or only able, in which
    /// interval).
    pub merge_told: Option<(bool, spirula_types::Epoch)>,
    pub recovery: Recovery,
    /// How far the members were told that all is rolled forward, while idle.
    told_rolled: EVersion,
    pub trim: Trim,
    pub scrub: Scrub,
    /// Recovery goes on at the next event: what was submitted in this one it must be able to read.
    pub pump_later: bool,
    /// Shards being read, by number.
    pub gathers: BTreeMap<u64, Gather>,
}

impl Primary {
    pub fn new(
        me: Peer,
        run: u64,
        at: EVersion,
        entered: UTime,
        wait_until: u64,
        fresh: bool,
    ) -> Self {
        Self {
            activating: [me].into(),
            run,
            activations: BTreeMap::new(),
            activation_repeat: Repeat::default(),
            told: 0,
            untold: BTreeSet::new(),
            told_repeat: Repeat::default(),
            activated: false,
            serving: false,
            fresh,
            asked_ms: 0,
            hand_back_ms: 0,
            entered,
            wait_until,
            peers: BTreeMap::new(),
            replicas: Vec::new(),
            local: at,
            committed: at,
            inflight: VecDeque::new(),
            clean: false,
            want: None,
            merge_told: None,
            recovery: Recovery::default(),
            told_rolled: EVersion::default(),
            trim: Trim::default(),
            scrub: Scrub::default(),
            pump_later: false,
            gathers: BTreeMap::new(),
        }
    }

    pub fn add(&mut self, osd: Peer, peer: PeerState, at: EVersion) {
        self.activating.insert(osd);
        self.replicas.push((osd, at));
        self.recovery.backfilling |= !peer.last_backfill.max;
        self.peers.insert(osd, peer);
    }

    /// Writes not durable everywhere.
    pub fn inflight(&self) -> usize {
        self.inflight.len()
    }

    pub fn wants_tick(&self, core: &PgCore) -> bool {
        self.must_roll_forward(core)
            || self.fresh
            || !self.activated
            || !self.untold.is_empty()
            || !self.inflight.is_empty()
            || !self.gathers.is_empty()
            || self.want.is_some()
            || self.merge_told.is_some()
            || self.wait_until > 0
            || self.trim.wants_tick()
            || self.recovery.wants_tick()
    }

    /// State bits.
    pub fn state(&self) -> PgState {
        if !self.activated {
            let fresh = if self.fresh { PgState::CREATING } else { PgState::UNKNOWN };
            return PgState::ACTIVATING | fresh;
        }
        let mut s = if self.serving { PgState::ACTIVE } else { PgState::PEERED };
        if self.clean {
            s |= PgState::CLEAN;
        }
        if self.wait_until > 0 {
            s |= PgState::WAIT;
        }
        s | self.recovery.state() | self.trim.state()
    }

    /// Does it serve? Not before those who waited for an older primary to read no more have gone
    /// on: a new request must not overtake them.
    pub fn serves(&self) -> bool {
        self.activated && self.serving && self.wait_until == 0
    }

    /// What a request meets that comes now.
    pub fn standing(&self) -> Standing {
        match self.serves() {
            true => Standing::Serves,
            false => {
                Standing::Waits { peered: self.activated, long: self.activated && !self.serving }
            }
        }
    }

    /// Do all whose leave it needs let it read at this time?
    pub fn lease_holds(&self, core: &PgCore, leases: &Leases, now_ms: u64) -> bool {
        planted!(core.cfg, ReadsWithoutLease)
            || self
                .replicas
                .iter()
                .filter(|(o, _)| {
                    !self.recovery.backfilling || self.peers.get(o).is_none_or(|p| p.acting)
                })
                .all(|(o, _)| o.osd == core.me.osd || leases.held_until(o.osd) > now_ms)
    }

    /// Has the primary to say by itself how far all is rolled forward? Only one that serves: what
    /// a smaller set agreed on is not yet part of every later history.
    pub(crate) fn must_roll_forward(&self, core: &PgCore) -> bool {
        let Some(newest) = core.info().map(|i| i.last_update()) else { return false };
        let idle = self.activated && self.serving && self.inflight() == 0;
        core.is_erasure() && idle && self.told_rolled < newest
    }
}

impl Lead<'_> {
    /// Tells members again in which state the PG becomes active, or what all have reached.
    pub(crate) fn repeat_told(&mut self, again: Again, cx: &mut Cx<'_>) {
        let a = &mut *self.primary;
        let late = again.whom(&mut a.activation_repeat, a.run, a.activations.keys().copied());
        let bodies: Vec<(Peer, CtlBody)> =
            late.into_iter().filter_map(|p| Some((p, a.activations.get(&p)?.clone()))).collect();
        let untold = again.whom(&mut a.told_repeat, a.told, a.untold.iter().copied());
        for (to, body) in bodies {
            self.core.send(to, body, cx);
        }
        if let Some(body) = self.reached(&untold) {
            untold.into_iter().for_each(|to| self.core.send(to, body.clone(), cx));
        }
    }

    /// What all have reached, to be told to these.
    fn reached(&self, to: &[Peer]) -> Option<CtlBody> {
        let (a, info) = (&*self.primary, self.core.info()?);
        let body = || CtlBody::History {
            seq: a.told,
            history_les: info.history_les,
            lec: info.lec,
            rolled: a.told_rolled,
            scrub: info.scrub,
            counted: (info.last_update(), info.head.counts),
            read: !self.core.readers().is_empty(),
        };
        (!to.is_empty()).then(body)
    }

    /// An idle primary says how far all is rolled forward.
    pub(crate) fn tell_rolled(&mut self, cx: &mut Cx<'_>) {
        if !self.primary.must_roll_forward(self.core) {
            return;
        }
        let a = &mut *self.primary;
        a.told_rolled = a.committed;
        let to = a.committed;
        self.tell_history(cx);
        let change = self.core.copy.roll_forward(to);
        self.core.submit(change, After::Nothing, cx);
    }

    /// Tells the members what all have reached.
    pub(crate) fn tell_history(&mut self, cx: &mut Cx<'_>) {
        let seq = self.core.seq();
        let a = &mut *self.primary;
        let all: Vec<Peer> = a.peers.keys().copied().collect();
        (a.told, a.untold) = (seq, all.iter().copied().collect());
        if let Some(body) = self.reached(&all) {
            all.into_iter().for_each(|to| self.core.send(to, body.clone(), cx));
        }
    }

    /// A member has durably what it was told.
    pub(crate) fn on_history_ack(&mut self, from: Peer, seq: u64) {
        let a = &mut *self.primary;
        if a.told == seq {
            a.untold.remove(&from);
        }
    }

    /// A newer map of the same interval.
    pub(crate) fn map_advanced(&mut self, cx: &mut Cx<'_>) {
        self.forget_lost_sources(cx);
        self.forget_dead_readers(cx);
        self.begin_recovery(cx);
        self.look_for_trims(cx);
        self.tell_merge(false, cx);
    }

    pub(crate) fn tick_members(&mut self, cx: &mut Cx<'_>) {
        self.tell_rolled(cx);
        self.look_for_trims(cx);
        let retry = self.core.cfg.retry_ms;
        self.end_lease_wait(cx);
        let a = &mut *self.primary;
        let hands_back = (1..=cx.now.mono_ms).contains(&a.hand_back_ms);
        if hands_back && let Some(want) = &a.want {
            (a.hand_back_ms, a.asked_ms) = (0, cx.now.mono_ms);
            cx.out.push(PgEffect::WantActing(want.clone()));
            return;
        }
        if cx.now.mono_ms < a.asked_ms + retry || planted!(self.core.cfg, NoRetry) {
            return;
        }
        let a = &mut *self.primary;
        a.asked_ms = cx.now.mono_ms;
        if a.fresh && a.activating.is_empty() {
            let epoch = self.core.info().map_or(0, |i| i.creation);
            cx.out.push(PgEffect::Created { pg: self.core.id, epoch });
        } else if let Some(want) = &a.want {
            cx.out.push(PgEffect::WantActing(want.clone()));
        } else {
            self.retry_recovery(cx);
            self.tell_merge(true, cx);
        }
    }

    /// Something is missing again: not clean any more.
    pub(crate) fn reopen(&mut self, cx: &mut Cx<'_>) {
        self.abort_scrub(cx);
        self.primary.clean = false;
        cx.out.push(PgEffect::StateChanged);
        self.tell_merge(false, cx);
    }

    /// A copy outside the members has called.
    pub(crate) fn notified(&mut self, from: Peer, cx: &mut Cx<'_>) {
        let a = &*self.primary;
        if a.clean {
            self.purge_strays(cx);
        } else {
            self.ask_for_unfound(from, cx);
        }
    }

    /// Everything is whole: other copies are not needed any more.
    pub(crate) fn purge_strays(&mut self, cx: &mut Cx<'_>) {
        let Some(view) = self.core.view.clone() else { return };
        for osd in std::mem::take(self.strays).into_keys() {
            if !view.acting.contains(&osd) && !view.up.contains(&osd) {
                self.core.send(osd, CtlBody::Delete, cx);
            }
        }
    }
}
