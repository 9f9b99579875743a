//! Peering: how a primary proves which history of its PG is the one to serve, and brings every
//! member to it. The algorithm is that of the RADOS papers and Ceph.
//!
//! | step | file | ends when |
//! |---|---|---|
//! | hear everybody who may know of acknowledged writes | `info` | all answered, none is in the way |
//! | choose history and members | `choose` | the map's acting set is the one chosen (`pg_temp`) |
//! | take over the log of the best copy | `log` | own log is the authoritative one |
//! | learn what the members lack | `log` | all answered |
//! | be on record as alive (`up_thru`) | here | the map says so |
//! | bring all members to the log | `activate` | durable on all |
//!
//! Recovery of objects follows while the PG serves (`crate::recovery`).
//!
//! # Why no acknowledged write is lost
//! A write is acknowledged when every acting member of its interval has it durably. Its interval
//! has `up_thru` on record, so it counts as one that may have taken writes, and a later primary
//! hears one of its acting members (or waits, `down`), unless a later interval was activated on
//! all its members; by induction that one has the write. A member that answers has left older
//! intervals for good, so nothing is acknowledged behind the primary's back. Among the answers
//! the copy with the newest activation (les) and within it the longest log is taken: whatever was
//! acknowledged is in it, because the activation gave it all older history, and logs of one
//! interval are prefixes of one another.
//!
//! What a copy tells is durable before it tells it, so nothing unacknowledged that others build
//! on can vanish with a restart.
//!
//! # New PGs
//! That nobody has anything proves nothing. Only the monitor knows: while a PG is in its
//! creating set no primary ever served it, so it may begin empty. Such a copy is *unconfirmed*
//! until the monitor acknowledged that the PG left the set, naming the accepted creation; only
//! then it serves. Copies of other creations are void. A creation is named by its interval, and
//! the monitor accepts only the one it granted last: a primary that begins anew where an older
//! creation has its copies (and is granted that) does away with nothing that can still count.

mod activate;
pub(crate) mod choose;
mod info;
mod log;

pub(crate) use choose::{choose_whole, choose_whole_erasure};

use crate::again::{Again, Repeat};
use crate::api::{CreateAnswer, MapView, PgEffect};
use crate::commits::{After, Step};
use crate::core::Cx;
use crate::intervals::Prior;
use crate::log::PgLog;
use crate::missing::Missing;
use crate::pg::Pg;
use crate::role::Role;
use choose::Choice;
use spirula_encoding::UTime;
use spirula_maps::PgState;
use spirula_messages::cluster::pg::{CtlBody, PastInterval, PgInfo};
use spirula_types::{EVersion, Epoch, OsdId, Peer, PgId};
use std::collections::{BTreeMap, BTreeSet};

/// A primary on its way to being active.
#[derive(Debug, Default)]
pub(crate) struct Peering {
    /// The older intervals, ours or (if we have nothing) another's.
    past: Vec<PastInterval>,
    /// Newest activation that all its members share, as far as is known.
    history_les: Epoch,
    lec: Epoch,
    prior: Prior,
    /// What others have, by their answers or because they called; our own comes when all we have is
    /// durable.
    infos: BTreeMap<Peer, Option<PgInfo>>,
    asked: BTreeSet<Peer>,
    /// Who has answered, we included. Whoever only called has not said until when it lets an old
    /// primary read.
    answered: BTreeSet<Peer>,
    asked_ms: u64,
    repeat: Repeat,
    /// Until when primaries of older intervals may still serve reads.
    lease_until: u64,
    /// The same of intervals that count no more, by what holders say: the last epoch, until when.
    readers: BTreeMap<OsdId, (Epoch, u64)>,
    /// The monitor said that the PG exists (and which creation it accepted).
    exists: Option<Option<Epoch>>,
    /// Asked long enough that it is no passing state.
    slow: bool,
    phase: Phase,
    /// When it began.
    pub entered: UTime,
    choice: Choice,
    members: BTreeMap<Peer, Member>,
    fresh: bool,
    next: Next,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Next {
    #[default]
    Stay,
    Activate,
}

/// Where it is.
#[derive(Debug, Default)]
enum Phase {
    /// Collecting infos.
    #[default]
    Info,
    /// Asking the monitor whether the PG is new; then waiting for a holder to call.
    Create,
    /// Members of older intervals are down.
    Down(Vec<Peer>),
    /// No whole copy of the newest history. `bound`: there are whole ones, or ones being filled,
    /// but a later activation is known of which none is left.
    Incomplete { bound: bool },
    /// Waiting for the map to show this acting set; empty for the one CRUSH gives.
    Temp(Vec<OsdId>),
    /// Waiting for the authoritative log.
    Log,
    /// Waiting for members' logs.
    Missing(BTreeSet<Peer>),
    /// Waiting for the map to say that we are alive.
    UpThru,
    /// A new PG with too few members to begin.
    TooFew,
}

/// A member to be activated.
#[derive(Debug)]
pub(crate) struct Member {
    /// What it said it has.
    pub info: Option<PgInfo>,
    /// Newest common entry; `None`: it must forget its log and be backfilled.
    pub common: Option<EVersion>,
    /// What it will lack then.
    pub missing: Missing,
}

impl Pg {
    /// Runs `f` on the peering state, if there is one.
    fn peering(&mut self, cx: &mut Cx<'_>, f: impl FnOnce(&mut Self, &mut Peering, &mut Cx<'_>)) {
        match std::mem::replace(&mut self.role, Role::idle()) {
            Role::Peering(mut p) => {
                f(self, &mut p, cx);
                if p.next == Next::Activate {
                    self.activate(p, cx);
                } else {
                    self.role = Role::Peering(p);
                }
                cx.out.push(PgEffect::StateChanged);
            }
            other => self.role = other,
        }
    }

    /// What a member, or another who was asked, answers.
    pub(crate) fn on_peering_answer(&mut self, from: Peer, answer: CtlBody, cx: &mut Cx<'_>) {
        match answer {
            CtlBody::Info { info, past, lease_left_ms } => {
                self.on_info(from, info, past, lease_left_ms, cx)
            }
            CtlBody::Log { info, entries, missing } => {
                self.on_log(from, info, entries, missing, cx)
            }
            // Of the role before.
            _ => {}
        }
    }

    pub(crate) fn start_peering(&mut self, cx: &mut Cx<'_>) {
        self.role = Role::Peering(Box::new(Peering {
            past: if self.core.has_copy() { self.core.past().to_vec() } else { Vec::new() },
            history_les: self.core.info().map_or(0, |i| i.history_les),
            lec: self.core.info().map_or(0, |i| i.lec),
            asked_ms: cx.now.mono_ms,
            entered: cx.now.wall,
            ..Peering::default()
        }));
        let since = self.core.interval().since;
        let flushed = After::Step { since, step: Step::Flushed };
        if self.core.commits.after_all(flushed).is_some() {
            self.peering_flushed(cx);
        }
    }

    /// Gives up what the role does and peers anew in the same interval. Members change nothing
    /// before they are activated, so their older answers stay true; and what one said before it was
    /// activated comes before it says that it is.
    pub(crate) fn restart_peering(&mut self, cx: &mut Cx<'_>) {
        self.leave_role(cx);
        self.start_peering(cx);
    }

    /// All we had submitted is durable.
    pub(crate) fn peering_flushed(&mut self, cx: &mut Cx<'_>) {
        self.peering(cx, |pg, p, cx| {
            p.infos.insert(pg.core.me, pg.core.told_info(cx));
            p.answered.insert(pg.core.me);
            for (osd, (info, past)) in &pg.strays {
                if !p.infos.contains_key(osd) {
                    pg.learn(p, *osd, Some(info.clone()), past.clone(), cx);
                }
            }
            if p.infos.values().all(Option::is_none) {
                p.phase = Phase::Create;
                pg.ask_create(p, cx);
            } else {
                pg.hear(p, cx);
            }
        });
    }

    pub(crate) fn peering_map_advanced(&mut self, cx: &mut Cx<'_>) {
        let Some(view) = self.core.view.clone() else { return };
        let Role::Peering(p) = &self.role else { return };
        if p.infos.contains_key(&self.core.me)
            && (p.prior.affected_by(&view) || p.waits_for_absent(&view))
        {
            self.restart_peering(cx);
            return;
        }
        self.peering(cx, |pg, p, cx| {
            if matches!(p.phase, Phase::UpThru) {
                pg.wait_up_thru(p, cx);
            }
        });
    }

    /// OSDs that are up, and for which a primary waits though they are no members: whoever was a
    /// member before is asked, and a copy outside may have to give its log. With whether the PG
    /// could begin to serve if they were down.
    pub fn waits_outside(&self) -> Vec<(OsdId, bool)> {
        let (Role::Peering(p), Some(view)) = (&self.role, &self.core.view) else {
            return Vec::new();
        };
        let is_member = |o: OsdId| view.acting.iter().chain(&view.up).any(|m| m.osd == o);
        let (_, by) = p.state();
        let outside = by.into_iter().map(|m| m.osd).filter(|o| view.is_up(*o) && !is_member(*o));
        let outside: BTreeSet<OsdId> = outside.collect();
        outside.into_iter().map(|o| (o, p.can_spare(o, view, self.core.me))).collect()
    }

    /// The map must know that we are alive in this interval before we serve: then later
    /// primaries know that this interval may have taken writes.
    fn wait_up_thru(&mut self, p: &mut Peering, cx: &mut Cx<'_>) {
        let Some(view) = &self.core.view else { return };
        let on_record = view
            .osds
            .get(&self.core.me.osd)
            .is_some_and(|o| o.up_thru >= self.core.interval().since);
        if on_record || planted!(self.core.cfg, NoUpThru) {
            p.next = Next::Activate;
        } else if !matches!(p.phase, Phase::UpThru) {
            p.phase = Phase::UpThru;
            cx.out.push(PgEffect::Alive(view.epoch));
        }
    }

    fn ask_create(&mut self, p: &mut Peering, cx: &mut Cx<'_>) {
        let origin = origin_of(self.core.id, p);
        p.asked_ms = cx.now.mono_ms;
        cx.out.push(PgEffect::AskCreate { pg: origin, epoch: self.creation_asked(origin) });
    }

    /// What a creation is called for which the monitor is asked about `origin`.
    fn creation_asked(&self, origin: PgId) -> Epoch {
        if origin == self.core.id { self.core.interval().since } else { 0 }
    }

    pub(crate) fn on_create_answer(&mut self, answer: CreateAnswer, cx: &mut Cx<'_>) {
        self.peering(cx, |pg, p, cx| {
            if !matches!(p.phase, Phase::Create) {
                return;
            }
            match answer {
                CreateAnswer::Exists { winner } => {
                    p.exists = Some(winner);
                    if p.infos.values().any(Option::is_some) {
                        pg.hear(p, cx);
                    }
                }
                // An answer to an older question grants what another primary may have been granted
                // since.
                CreateAnswer::Granted { since, creation }
                    if creation == pg.creation_asked(origin_of(pg.core.id, p)) =>
                {
                    pg.begin_fresh(p, since, cx);
                }
                CreateAnswer::Granted { .. } => {}
            }
        });
    }

    /// Asks again who has not answered.
    pub(crate) fn repeat_peering(&mut self, again: Again, cx: &mut Cx<'_>) {
        let Some(view) = self.core.view.clone() else {
            return invariant!(self.core, "it peers without a map");
        };
        self.peering(cx, |pg, p, cx| {
            let log = CtlBody::GetLog { after: pg.core.log().tail() };
            let (step, silent, body) = match &p.phase {
                Phase::Info | Phase::Down(_) => {
                    let silent =
                        p.asked.iter().filter(|o| !p.answered.contains(o) && view.is_up(o.osd));
                    (
                        1,
                        silent.copied().collect(),
                        CtlBody::Query { holders: p.prior.holders.clone() },
                    )
                }
                Phase::Log => (2, vec![p.choice.auth], log),
                Phase::Missing(silent) => (3, silent.iter().copied().collect(), log),
                _ => (4, Vec::new(), log),
            };
            for to in again.whom(&mut p.repeat, step, silent) {
                pg.core.send(to, body.clone(), cx);
            }
        });
    }

    /// Repeats questions to the monitor.
    pub(crate) fn peering_tick(&mut self, cx: &mut Cx<'_>) {
        let retry = self.core.cfg.retry_ms;
        if planted!(self.core.cfg, NoRetry) {
            return;
        }
        self.peering(cx, |pg, p, cx| {
            if cx.now.mono_ms < p.asked_ms + retry {
                return;
            }
            p.asked_ms = cx.now.mono_ms;
            p.slow = true;
            match &p.phase {
                Phase::Create => pg.ask_create(p, cx),
                Phase::Temp(want) => cx.out.push(PgEffect::WantActing(want.clone())),
                Phase::UpThru => {
                    pg.wait_up_thru(p, cx);
                    if p.next == Next::Stay {
                        cx.out.push(PgEffect::Alive(pg.core.epoch()));
                    }
                }
                _ => {}
            }
        });
    }
}

/// The PG that is asked about: those of a split were created with the one they stem from.
fn origin_of(id: PgId, p: &Peering) -> PgId {
    p.infos.values().flatten().next().map_or(id, |i| i.origin)
}

impl Peering {
    /// Is nothing in the way of serving when this OSD is down, as far as is known?
    fn can_spare(&self, osd: OsdId, view: &MapView, me: Peer) -> bool {
        let mut without = view.clone();
        if let Some(o) = std::sync::Arc::make_mut(&mut without.osds).get_mut(&osd) {
            o.up = false;
        }
        let since = self.history_les.max(self.lec);
        let least = view.pool.as_ref().and_then(|p| p.shape).map_or(1, |s| s.k);
        Prior::new(&self.past, &without, since, me, least).blocked_by.is_none()
    }

    /// Is somebody down who is to give his log, or to serve? A copy outside the members may be
    /// either, and be none of those who must be heard: then no new interval begins when it goes.
    fn waits_for_absent(&self, view: &MapView) -> bool {
        match &self.phase {
            Phase::Log => !view.is_up(self.choice.auth.osd),
            Phase::Temp(_) => self.choice.want.iter().any(|p| !view.is_up(p.osd)),
            _ => false,
        }
    }

    /// State bits beside those that the sets give, and who is in the way.
    pub fn state(&self) -> (PgState, Vec<Peer>) {
        match &self.phase {
            Phase::Info => (PgState::PEERING, self.silent()),
            Phase::Create if self.exists.is_none() => {
                (PgState::CREATING | PgState::PEERING, Vec::new())
            }
            // Somebody has it, but nobody that is up.
            Phase::Create if self.slow => (PgState::DOWN, Vec::new()),
            Phase::Down(by) => (PgState::DOWN, by.clone()),
            Phase::Incomplete { .. } => (PgState::INCOMPLETE, Vec::new()),
            Phase::Missing(silent) => (PgState::PEERING, silent.iter().copied().collect()),
            Phase::Log => (PgState::PEERING, vec![self.choice.auth]),
            Phase::TooFew => (PgState::CREATING | PgState::PEERED, Vec::new()),
            Phase::Create | Phase::Temp(_) | Phase::UpThru => (PgState::PEERING, Vec::new()),
        }
    }

    fn silent(&self) -> Vec<Peer> {
        self.prior.probe.iter().filter(|o| !self.answered.contains(o)).copied().collect()
    }

    /// Who answered what, for `pg query`.
    pub fn infos(&self) -> impl Iterator<Item = (Peer, Option<&PgInfo>)> {
        self.infos.iter().map(|(o, i)| (*o, i.as_ref()))
    }

    /// Whom it asks, and who is down, for `pg query`.
    pub fn prior(&self) -> &Prior {
        &self.prior
    }

    /// Name of the step, for `pg query`.
    pub fn step(&self) -> &'static str {
        match self.phase {
            Phase::Down(_) => "Started/Primary/Peering/Down",
            Phase::Create if self.slow && self.exists.is_some() => "Started/Primary/Peering/Down",
            // Ceph's primaries ask nobody whether a PG is new.
            Phase::Info | Phase::Create | Phase::TooFew => "Started/Primary/Peering/GetInfo",
            Phase::Incomplete { .. } => "Started/Primary/Peering/Incomplete",
            Phase::Temp(_) => "Started/Primary/WaitActingChange",
            Phase::Log => "Started/Primary/Peering/GetLog",
            Phase::Missing(_) => "Started/Primary/Peering/GetMissing",
            Phase::UpThru => "Started/Primary/Peering/WaitUpThru",
        }
    }
}

impl Peering {
    /// Will it not end before something changes that may take long?
    pub fn stands_still(&self) -> bool {
        let (state, _) = self.state();
        [PgState::DOWN, PgState::INCOMPLETE, PgState::PEERED].iter().any(|s| state.any(*s))
    }

    /// What it waits for, in Ceph's words where Ceph has any, for `pg query`.
    pub fn comment(&self) -> Option<&'static str> {
        match self.phase {
            Phase::Down(_) => Some("not enough up instances of this PG to go active"),
            Phase::Incomplete { .. } => Some("not enough complete instances of this PG"),
            Phase::Temp(_) => Some("waiting for pg acting set to change"),
            Phase::UpThru => Some("waiting for osdmap to reflect a new up_thru for this osd"),
            Phase::Create if self.exists.is_some() => {
                Some("the PG exists, and no OSD that is up has it")
            }
            Phase::Create => Some("asking the monitors whether the PG is new"),
            Phase::TooFew => Some("too few OSDs are up to create the PG"),
            Phase::Info | Phase::Log | Phase::Missing(_) => None,
        }
    }

    /// Is it incomplete because of an activation that was heard of and of which no whole copy is
    /// left?
    pub fn is_bound(&self) -> bool {
        matches!(self.phase, Phase::Incomplete { bound: true })
    }

    /// Is it still asking what others have?
    pub fn is_asking(&self) -> bool {
        matches!(self.phase, Phase::Info)
    }
}

impl Member {
    /// A copy outside the members, with what it lacks of the history up to the common entry.
    pub fn source(
        info: PgInfo,
        log: PgLog,
        missing: Missing,
        common: Option<EVersion>,
        undo: bool,
    ) -> Self {
        let (mut log, mut missing) = (log, missing);
        if let Some(common) = common {
            // In an erasure-coded PG it can give what its objects were before (`erasure::read`).
            let mut undone = Vec::new();
            let undo = undo.then_some(&mut undone);
            crate::merge::merge(
                &mut log,
                &mut missing,
                &info.last_backfill,
                common,
                Vec::new(),
                undo,
            );
        }
        Self { info: Some(info), common, missing }
    }

    /// One that must begin from nothing.
    fn reset(info: Option<PgInfo>) -> Self {
        Self { info, common: None, missing: Missing::default() }
    }

    /// One that has nothing but whose history the log tells from the beginning.
    fn behind(
        info: Option<PgInfo>,
        log: PgLog,
        missing: Missing,
        common: EVersion,
        auth: &PgLog,
        undo: bool,
    ) -> Self {
        let (mut log, mut missing) = (log, missing);
        let divergent = log.rewind(common);
        let last_backfill =
            info.as_ref().map_or_else(spirula_types::HObject::max, |i| i.last_backfill.clone());
        let mut undone = Vec::new();
        let undo = undo.then_some(&mut undone);
        crate::merge::lacking(divergent, &mut missing, &last_backfill, auth.after(common), undo);
        Self { info, common: Some(common), missing }
    }
}
