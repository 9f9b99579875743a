//! Peering: how a primary proves which history of its PG is the one to serve.
//!
//! # Words
//! The *home set* H of an activation is the set of OSDs that count for its quorums. *les* is
//! the map epoch in which the activating primary began to peer. An epoch names one map, a map
//! names one primary per PG, and a primary peers at most once per epoch, so a les names one
//! attempt. A *majority* of H is ⌊|H|/2⌋ + 1 of its members.
//!
//! # Rules
//! 1. A member that answered a query of epoch e takes part in nothing of older epochs (its
//!    promise). A restart forgets promises, but then the member is up only since a later
//!    epoch, and refuses everything older than that.
//! 2. An activation (les, H) needs the durable consent of every acting member A, and A holds a
//!    majority of H (and min_size). Before, every member of A was made equal to the
//!    authoritative copy. A write is acknowledged when it is durable on all of A.
//! 3. To activate, a primary hears from all of A, from a majority of H_last (the home set of
//!    the highest les it heard of), and takes the copy with the highest (les, last update).
//!    A copy that was being recovered is no source. An OSD that has nothing counts for nothing.
//! 4. H changes only like this: all members of the new H' are made equal, then a majority of
//!    H_last durably records the seal (les', H'), then all of H' durably record les' and H',
//!    then H' serves. A primary that meets a seal newer than any les it heard of must either
//!    find les' recorded, or a complete member of H' that has not recorded les' and has now
//!    promised not to; else it waits.
//! 5. Reads need a lease from all of A (`lease.rs`).
//!
//! # Why no acknowledged write is lost
//! Let w be acknowledged in (les, H), and P' activate later. By induction over epochs P'
//! knows of (les, H) or something later: if H was not left, P' heard a majority of H, which
//! meets the majority A of every activation over H; if H was left for H', it heard a majority
//! of H, which meets the majority that recorded the seal, so it went on to H' (rule 4). The
//! member in the intersection either consented to les before it promised to P', and then tells
//! les and holds w (it acknowledged w, or w came after its promise and was never acknowledged),
//! or it promised first, and then les never became active. Among the copies heard, the one with
//! the highest les began as an equal of all history before les, and within one les logs are
//! prefixes of one another, so the longest contains w.
//!
//! # New PGs
//! That nobody has anything proves nothing. Only the monitor knows: while a PG is in its
//! creating set no primary ever served it, so it may begin empty. Such an activation is
//! *unconfirmed* until the monitor acknowledged that the PG left the set, naming the accepted
//! activation; only then it serves. Unconfirmed copies that are not the accepted one are void.

use crate::api::{CreateAnswer, PgEffect};
use crate::log::{LogEntry, PgLog};
use crate::ops::Active;
use crate::pg::{After, Cx, Pg, Role, Step};
use crate::recovery::{Job, difference_of};
use bytes::Bytes;
use spirula_encoding::from_slice;
use spirula_maps::PgState;
use spirula_messages::cluster::pg::{CtlBody, PgInfo, Seal};
use spirula_types::transaction::Transaction;
use spirula_types::{EVersion, Epoch, OsdId};
use std::collections::{BTreeMap, BTreeSet};

/// A primary on its way to serving.
#[derive(Debug)]
pub(crate) struct Peering {
    /// Epoch of the attempt, the les of its activation.
    pub epoch: Epoch,
    /// Begin again with a map at least so new (0: no).
    repeer_at: Epoch,
    infos: BTreeMap<OsdId, Option<PgInfo>>,
    /// Whom we asked, or would have, and since when it was up then.
    asked: BTreeMap<OsdId, Option<Epoch>>,
    asked_ms: u64,
    /// (primary, its activation, until when it may read), as members told.
    leases: Vec<(OsdId, Epoch, u64)>,
    lease_until: u64,
    /// Ask everybody: the data is somewhere.
    ask_all: bool,
    /// The monitor said that the PG exists (and which creation it accepted).
    exists: Option<Option<Epoch>>,
    pub phase: Phase,
    pub plan: Option<Plan>,
    /// Log of the authoritative copy, if that is not ours.
    pub auth_log: Option<PgLog>,
    next: Next,
}

#[derive(Debug, PartialEq, Eq)]
enum Next {
    Stay,
    Serve,
}

/// Where it is.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Collecting infos.
    Info,
    /// Asking the monitor whether the PG is new.
    Create { asked_ms: u64 },
    /// Cannot go on until the map or a stray brings something new.
    Blocked { state: PgState, by: Vec<OsdId> },
    /// Collecting logs.
    Logs { missing: BTreeSet<OsdId>, logs: BTreeMap<OsdId, PgLog> },
    /// Waiting for the shell's leave to recover.
    Reserve,
    /// Making our own copy equal.
    Pull(Box<Job>),
    /// Making the other members equal.
    Push(Vec<Job>),
    /// Telling the old home set.
    Seal { acks: BTreeSet<OsdId> },
    /// Waiting for the leases of an older primary to end.
    Lease,
    /// Waiting for the members' consent.
    Activate { begun: bool, missing: BTreeSet<OsdId> },
    /// Waiting for the monitor to close the creation.
    Confirm { asked_ms: u64 },
}

/// What is going to be activated.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Who has the authoritative copy.
    auth: OsdId,
    /// Its info.
    pub auth_info: PgInfo,
    old_home: Vec<OsdId>,
    home: Vec<OsdId>,
    /// Members that must be made equal.
    behind: Vec<OsdId>,
    /// Their logs, where known.
    logs: BTreeMap<OsdId, PgLog>,
    fresh: bool,
}

fn majority(n: usize) -> usize {
    n / 2 + 1
}

impl Pg {
    /// Runs `f` on the peering state, if there is one (of `epoch`).
    pub(crate) fn peering(
        &mut self,
        epoch: Option<Epoch>,
        cx: &mut Cx<'_>,
        f: impl FnOnce(&mut Self, &mut Peering, &mut Cx<'_>),
    ) {
        match std::mem::replace(&mut self.role, Role::Idle) {
            Role::Peering(mut p) if epoch.is_none_or(|e| e == p.epoch) => {
                f(self, &mut p, cx);
                if p.next == Next::Serve {
                    self.serve(*p, cx);
                } else {
                    self.role = Role::Peering(p);
                }
            }
            other => self.role = other,
        }
    }

    pub(crate) fn start_peering(&mut self, cx: &mut Cx<'_>) {
        let epoch = self.epoch();
        (self.promised, self.promised_to) = (epoch, self.osd);
        let mut p = Peering {
            epoch,
            repeer_at: 0,
            infos: BTreeMap::new(),
            asked: BTreeMap::new(),
            asked_ms: cx.now.mono_ms,
            leases: Vec::new(),
            lease_until: 0,
            ask_all: false,
            exists: None,
            phase: Phase::Info,
            plan: None,
            auth_log: None,
            next: Next::Stay,
        };
        if let Some(info) = &self.info {
            let left = cx.leases.granted_left(info.primary, cx.now.mono_ms);
            p.leases.push((info.primary, info.les, cx.now.mono_ms + left));
        }
        p.infos.insert(self.osd, self.info.clone());
        p.asked.insert(self.osd, self.view.as_ref().and_then(|v| v.up_from(self.osd)));
        self.role = Role::Peering(Box::new(p));
        self.peering(None, cx, |pg, p, cx| pg.ask_and_decide(p, cx));
    }

    /// Gives up what the role does and peers anew, in a newer epoch.
    pub(crate) fn restart_peering(&mut self, cx: &mut Cx<'_>) {
        self.leave_role(cx);
        self.start_peering(cx);
        cx.out.push(PgEffect::StateChanged);
    }

    /// A newer map of the same interval.
    pub(crate) fn peering_map_advanced(&mut self, cx: &mut Cx<'_>) {
        let Some(view) = self.view.clone() else { return };
        let again = match &self.role {
            Role::Peering(p) => {
                (p.repeer_at > 0 && view.epoch >= p.repeer_at)
                    || p.asked.iter().any(|(o, since)| view.up_from(*o) != *since)
                    || (p.ask_all && view.osds.keys().any(|o| !p.asked.contains_key(o)))
            }
            Role::Active(a) => a.repeer_at > 0 && view.epoch >= a.repeer_at,
            _ => false,
        };
        if again {
            self.restart_peering(cx);
        }
    }

    pub(crate) fn on_nack(&mut self, epoch: Epoch, map: Epoch, cx: &mut Cx<'_>) {
        let want = map.max(epoch + 1);
        let at = match &mut self.role {
            Role::Peering(p) if p.epoch == epoch => &mut p.repeer_at,
            Role::Active(a) if a.les == epoch => &mut a.repeer_at,
            _ => return,
        };
        if self.view.as_ref().is_some_and(|v| v.epoch >= want) {
            self.restart_peering(cx);
        } else if *at < want {
            *at = want;
            cx.out.push(PgEffect::NeedMap(want));
        }
    }

    // ---- infos ----

    fn ask_and_decide(&mut self, p: &mut Peering, cx: &mut Cx<'_>) {
        let Some(view) = self.view.clone() else { return };
        let mut whom: BTreeSet<OsdId> = view.acting.iter().chain(&self.strays).copied().collect();
        for info in p.infos.values().flatten() {
            whom.extend(&info.home);
            whom.extend(info.seal.iter().flat_map(|s| &s.home));
        }
        if p.ask_all {
            whom.extend(view.osds.keys());
        }
        for osd in whom {
            if let std::collections::btree_map::Entry::Vacant(e) = p.asked.entry(osd) {
                let up_from = *e.insert(view.up_from(osd));
                if up_from.is_some() {
                    self.send(osd, p.epoch, CtlBody::Query, cx);
                }
            }
        }
        if p.asked.iter().all(|(o, up)| up.is_none() || p.infos.contains_key(o)) {
            self.decide(p, cx);
            cx.out.push(PgEffect::StateChanged);
        }
    }

    pub(crate) fn on_info(
        &mut self,
        from: OsdId,
        epoch: Epoch,
        info: Option<PgInfo>,
        lease_left_ms: u32,
        cx: &mut Cx<'_>,
    ) {
        self.peering(Some(epoch), cx, |pg, p, cx| {
            let pg_num = pg.view.as_ref().and_then(|v| v.pool.as_ref()).map(|pool| pool.pg_num);
            let foreign = |i: &PgInfo| i.pg != pg.id || Some(i.pg_num) != pg_num;
            if !matches!(p.phase, Phase::Info) || info.as_ref().is_some_and(foreign) {
                return;
            }
            if let Some(i) = &info {
                p.leases.push((i.primary, i.les, cx.now.mono_ms + u64::from(lease_left_ms)));
            }
            p.infos.insert(from, info);
            pg.ask_and_decide(p, cx);
        });
    }

    pub(crate) fn on_notify(&mut self, from: OsdId, info: PgInfo, cx: &mut Cx<'_>) {
        let Some(view) = self.view.clone() else { return };
        if view.acting.contains(&from) || view.primary != self.osd {
            return;
        }
        self.strays.insert(from);
        if let Role::Active(a) = &self.role {
            let les = a.les;
            if info.les < les && self.info.as_ref().is_some_and(|i| !i.home.contains(&from)) {
                self.send(from, les, CtlBody::Delete, cx);
            }
            return;
        }
        self.peering(None, cx, |pg, p, cx| {
            let early = matches!(p.phase, Phase::Info | Phase::Create { .. } | Phase::Blocked { .. });
            if early && p.asked.get(&from).is_none_or(Option::is_none) && view.up_from(from).is_some() {
                p.asked.remove(&from);
                p.phase = Phase::Info;
                pg.ask_and_decide(p, cx);
            }
        });
    }

    // ---- decision ----

    fn block(&mut self, p: &mut Peering, state: PgState, by: Vec<OsdId>) {
        tracing::debug!(pg = %self.id, epoch = p.epoch, %state, ?by, "blocked");
        p.phase = Phase::Blocked { state, by };
    }

    /// Everybody asked has answered: which history is it, and who shall serve it?
    fn decide(&mut self, p: &mut Peering, cx: &mut Cx<'_>) {
        let Some(view) = self.view.clone() else { return };
        let Some(pool) = view.pool.clone() else { return };
        self.settle_leases(p);
        // Copies that never took part in an activation and were not finished tell nothing.
        let mut known: BTreeMap<OsdId, PgInfo> =
            p.infos.iter().filter_map(|(o, i)| Some((*o, i.clone()?))).filter(|(_, i)| i.les > 0).collect();
        match known.values().filter(|i| i.confirmed).map(|i| i.les).max() {
            Some(les) => known.retain(|_, i| i.confirmed || i.les <= les),
            None => match p.exists {
                None => {
                    self.ask_create(p, cx);
                    return;
                }
                Some(Some(winner)) => known.retain(|_, i| i.les == winner),
                Some(None) => {}
            },
        }
        let Some(last) = known.values().max_by_key(|i| (i.les, i.last_update)).cloned() else {
            if !std::mem::replace(&mut p.ask_all, true) {
                self.ask_and_decide(p, cx);
            } else {
                self.block(p, PgState::INCOMPLETE, Vec::new());
            }
            return;
        };
        let absent = |home: &[OsdId]| home.iter().copied().filter(|o| !known.contains_key(o)).collect::<Vec<_>>();
        let lacking = |by: &[OsdId]| {
            let down = by.iter().any(|o| view.up_from(*o).is_none());
            if down { PgState::DOWN } else { PgState::INCOMPLETE }
        };
        // Rule 4: has the PG moved on?
        let seal = known.values().filter_map(|i| i.seal.clone()).max_by_key(|s| s.epoch);
        if let Some(Seal { epoch, home }) = seal.filter(|s| s.epoch > last.les) {
            let refuted = home.iter().filter_map(|o| known.get(o)).any(|i| i.complete && i.les < epoch);
            if !refuted {
                let by = absent(&home);
                self.block(p, lacking(&by), by);
                return;
            }
        }
        // Rule 3: a majority of the last home set.
        let heard = last.home.iter().filter(|o| known.contains_key(o)).count();
        if heard < majority(last.home.len()) {
            let by = absent(&last.home);
            self.block(p, lacking(&by), by);
            return;
        }
        let best = last.last_update;
        let equal = |i: &PgInfo| i.complete && i.last_update == best;
        let source = |o: &OsdId| known.get(o).is_some_and(equal);
        let auth = [self.osd].iter().chain(&view.acting).copied().find(source);
        let Some(auth) = auth.or_else(|| known.keys().copied().find(source)) else {
            self.block(p, PgState::INCOMPLETE, absent(&last.home));
            return;
        };
        // Rule 2, or 4 where the home set changes.
        let acting = &view.acting;
        let inside = acting.iter().all(|o| last.home.contains(o));
        let shrinks = acting.len() >= pool.size && acting.len() < last.home.len();
        let stay = inside && acting.len() >= majority(last.home.len()) && !shrinks;
        let need = if stay { pool.min_size } else { pool.min_size.max(majority(pool.size)) };
        if acting.len() < need {
            self.block(p, PgState::PEERED, Vec::new());
            return;
        }
        let home = if stay { last.home.clone() } else { acting.clone() };
        let behind: Vec<OsdId> = acting.iter().copied().filter(|o| !source(o)).collect();
        let mut missing: BTreeSet<OsdId> =
            behind.iter().copied().filter(|o| *o != self.osd && known.get(o).is_some_and(|i| i.complete)).collect();
        if auth != self.osd {
            missing.insert(auth);
        }
        let Some(auth_info) = known.remove(&auth) else { return };
        let auth_info = PgInfo { confirmed: true, les: last.les, home: last.home.clone(), ..auth_info };
        for osd in &missing {
            self.send(*osd, p.epoch, CtlBody::GetLog, cx);
        }
        p.plan = Some(Plan { auth, auth_info, old_home: last.home, home, behind, logs: BTreeMap::new(), fresh: false });
        p.phase = Phase::Logs { missing, logs: BTreeMap::new() };
        self.logs_arrived(p, cx);
    }

    /// Until when older primaries may still serve reads. One that answered us has stopped; one
    /// that came up anew since its activation is another process.
    fn settle_leases(&self, p: &mut Peering) {
        let Some(view) = &self.view else { return };
        let open = p.leases.iter().filter(|(holder, les, _)| {
            *holder != self.osd && !p.infos.contains_key(holder) && view.up_from(*holder).is_none_or(|up| up <= *les)
        });
        p.lease_until = open.map(|(_, _, until)| *until).max().unwrap_or(0);
    }

    // ---- creation ----

    fn ask_create(&mut self, p: &mut Peering, cx: &mut Cx<'_>) {
        let origin = p.infos.values().flatten().find(|i| i.les > 0).map_or(self.id, |i| i.origin);
        p.phase = Phase::Create { asked_ms: cx.now.mono_ms };
        cx.out.push(PgEffect::AskCreate { pg: origin, epoch: p.epoch });
    }

    pub(crate) fn on_create_answer(&mut self, answer: CreateAnswer, cx: &mut Cx<'_>) {
        self.peering(None, cx, |pg, p, cx| {
            let Phase::Create { .. } = p.phase else { return };
            let (Some(view), id) = (pg.view.clone(), pg.id) else { return };
            let Some(pool) = &view.pool else { return };
            match answer {
                CreateAnswer::Exists { winner } => {
                    p.exists = Some(winner);
                    p.phase = Phase::Info;
                    pg.ask_and_decide(p, cx);
                }
                CreateAnswer::Granted { .. } if view.acting.len() < pool.min_size.max(majority(pool.size)) => {
                    pg.block(p, PgState::CREATING | PgState::PEERED, Vec::new());
                    cx.out.push(PgEffect::StateChanged);
                }
                CreateAnswer::Granted { since } => {
                    let auth_info = PgInfo {
                        pg: id,
                        origin: id,
                        pg_num: pool.pg_num,
                        created: since,
                        complete: true,
                        primary: pg.osd,
                        ..PgInfo::default()
                    };
                    p.plan = Some(Plan {
                        auth: pg.osd,
                        auth_info,
                        old_home: Vec::new(),
                        home: view.acting.clone(),
                        behind: Vec::new(),
                        logs: BTreeMap::new(),
                        fresh: true,
                    });
                    pg.wait_for_leases(p, cx);
                }
            }
        });
    }

    pub(crate) fn on_created_ack(&mut self, winner: Option<Epoch>, cx: &mut Cx<'_>) {
        self.peering(None, cx, |pg, p, cx| {
            if !matches!(p.phase, Phase::Confirm { .. }) {
                return;
            }
            if winner.is_none_or(|w| w == p.epoch) {
                if let Some(info) = &mut pg.info {
                    info.confirmed = true;
                }
                p.next = Next::Serve;
            } else {
                // Another attempt was accepted; this one is void. Look for the other.
                p.repeer_at = p.epoch + 1;
                cx.out.push(PgEffect::NeedMap(p.epoch + 1));
            }
        });
    }

    // ---- logs and recovery ----

    pub(crate) fn on_log(&mut self, from: OsdId, epoch: Epoch, tail: EVersion, entries: Vec<Bytes>, cx: &mut Cx<'_>) {
        self.peering(Some(epoch), cx, |pg, p, cx| {
            let Phase::Logs { missing, logs } = &mut p.phase else { return };
            match entries.iter().map(|b| from_slice::<LogEntry>(b)).collect::<Result<Vec<_>, _>>() {
                Ok(entries) if missing.remove(&from) => {
                    logs.insert(from, PgLog::new(tail, entries));
                    pg.logs_arrived(p, cx);
                }
                Ok(_) => {}
                Err(e) => tracing::error!(pg = %pg.id, from, error = %e, "read peer's log"),
            }
        });
    }

    fn logs_arrived(&mut self, p: &mut Peering, cx: &mut Cx<'_>) {
        let Phase::Logs { missing, logs } = &mut p.phase else { return };
        let Some(plan) = &mut p.plan else { return };
        if !missing.is_empty() {
            return;
        }
        plan.logs = std::mem::take(logs);
        p.auth_log = if plan.auth == self.osd { None } else { plan.logs.remove(&plan.auth) };
        if plan.behind.is_empty() {
            self.recovered(p, cx);
        } else {
            p.phase = Phase::Reserve;
            self.reserved = true;
            cx.out.push(PgEffect::RecoveryWanted);
        }
    }

    pub(crate) fn on_recovery_granted(&mut self, cx: &mut Cx<'_>) {
        self.peering(None, cx, |pg, p, cx| {
            if !matches!(p.phase, Phase::Reserve) {
                return;
            }
            let Some(plan) = &p.plan else { return };
            if plan.behind.contains(&pg.osd) {
                let auth_log = p.auth_log.as_ref().unwrap_or(&pg.log);
                let d = difference_of(auth_log, plan.auth_info.last_update, pg.info.as_ref(), Some(&pg.log));
                p.phase = Phase::Pull(Box::new(Job::new(plan.auth, false, d)));
                pg.pump_jobs(p, cx);
            } else {
                pg.push_all(p, cx);
            }
            cx.out.push(PgEffect::StateChanged);
        });
    }

    fn push_all(&mut self, p: &mut Peering, cx: &mut Cx<'_>) {
        let Some(plan) = &p.plan else { return };
        let auth_log = p.auth_log.as_ref().unwrap_or(&self.log);
        let jobs = plan.behind.iter().filter(|o| **o != self.osd).map(|o| {
            let info = p.infos.get(o).and_then(Option::as_ref);
            Job::new(*o, true, difference_of(auth_log, plan.auth_info.last_update, info, plan.logs.get(o)))
        });
        p.phase = Phase::Push(jobs.collect());
        self.pump_jobs(p, cx);
    }

    pub(crate) fn jobs_done(&mut self, p: &mut Peering, cx: &mut Cx<'_>) {
        match p.phase {
            Phase::Pull(_) => self.push_all(p, cx),
            Phase::Push(_) => self.recovered(p, cx),
            _ => {}
        }
        cx.out.push(PgEffect::StateChanged);
    }

    // ---- activation ----

    /// All acting members are equal.
    fn recovered(&mut self, p: &mut Peering, cx: &mut Cx<'_>) {
        if std::mem::take(&mut self.reserved) {
            cx.out.push(PgEffect::RecoveryDone);
        }
        let Some(plan) = &p.plan else { return };
        let same = plan.home.len() == plan.old_home.len() && plan.home.iter().all(|o| plan.old_home.contains(o));
        if same {
            self.wait_for_leases(p, cx);
            return;
        }
        let home = plan.home.clone();
        // Only members that are part of the last history can seal it; see `decide`.
        let old: Vec<OsdId> = plan.old_home.iter().copied().filter(|o| self.can_seal(p, *o)).collect();
        p.phase = Phase::Seal { acks: BTreeSet::new() };
        for osd in old {
            if osd != self.osd {
                self.send(osd, p.epoch, CtlBody::Seal { home: home.clone() }, cx);
            } else if let Some(info) = &mut self.info {
                info.seal = Some(Seal { epoch: p.epoch, home: home.clone() });
                let txn = Transaction { objects: Vec::new(), meta: vec![self.info_op()] };
                self.submit(txn, After::Step { epoch: p.epoch, step: Step::Sealed }, cx);
            }
        }
    }

    fn can_seal(&self, p: &Peering, osd: OsdId) -> bool {
        p.infos.get(&osd).is_some_and(Option::is_some)
    }

    pub(crate) fn on_sealed(&mut self, from: OsdId, epoch: Epoch, cx: &mut Cx<'_>) {
        self.peering(Some(epoch), cx, |pg, p, cx| {
            let (Phase::Seal { acks }, Some(plan)) = (&mut p.phase, &p.plan) else { return };
            if plan.old_home.contains(&from) {
                acks.insert(from);
            }
            if acks.len() >= majority(plan.old_home.len()) {
                pg.wait_for_leases(p, cx);
            }
        });
    }

    fn wait_for_leases(&mut self, p: &mut Peering, cx: &mut Cx<'_>) {
        p.phase = Phase::Lease;
        if cx.now.mono_ms >= p.lease_until {
            self.begin_activation(p, cx);
        } else {
            cx.out.push(PgEffect::WakeAt(p.lease_until));
            cx.out.push(PgEffect::StateChanged);
        }
    }

    fn begin_activation(&mut self, p: &mut Peering, cx: &mut Cx<'_>) {
        p.phase = Phase::Activate { begun: false, missing: BTreeSet::new() };
        self.activate_self(p, cx);
    }

    /// Records the activation here and asks the members to.
    pub(crate) fn activate_self(&mut self, p: &mut Peering, cx: &mut Cx<'_>) {
        let (Phase::Activate { begun, missing }, Some(plan), Some(view)) = (&mut p.phase, &p.plan, &self.view) else {
            return;
        };
        if *begun {
            return;
        }
        let (fresh, epoch) = (plan.fresh, p.epoch);
        let base = match &self.info {
            Some(info) if !fresh => info.clone(),
            _ => plan.auth_info.clone(),
        };
        let info = PgInfo {
            les: epoch,
            primary: self.osd,
            home: plan.home.clone(),
            seal: None,
            confirmed: !fresh,
            pg_num: view.pool.as_ref().map_or(base.pg_num, |pool| pool.pg_num),
            ..base
        };
        let members = view.acting.clone();
        match self.activation_txn(info.clone(), fresh, cx.reader) {
            Ok(txn) => {
                *begun = true;
                missing.extend(&members);
                self.submit(txn, After::Step { epoch, step: Step::Activated }, cx);
                for osd in members.into_iter().filter(|o| *o != self.osd) {
                    self.send(osd, epoch, CtlBody::Activate { info: info.clone(), fresh }, cx);
                }
            }
            Err(crate::exec::ReadError::NotReady(what)) => {
                let n = self.seq();
                self.pump_read = Some(n);
                cx.out.push(PgEffect::Prefetch(crate::ReadKey::Recovery(n), what));
            }
            Err(e) => tracing::error!(pg = %self.id, error = %e, "list objects for activation"),
        }
        cx.out.push(PgEffect::StateChanged);
    }

    pub(crate) fn on_activated(&mut self, from: OsdId, epoch: Epoch, cx: &mut Cx<'_>) {
        self.peering(Some(epoch), cx, |pg, p, cx| {
            let Phase::Activate { begun: true, missing } = &mut p.phase else { return };
            missing.remove(&from);
            if !missing.is_empty() {
                return;
            }
            if p.plan.as_ref().is_some_and(|plan| plan.fresh) {
                p.phase = Phase::Confirm { asked_ms: cx.now.mono_ms };
                cx.out.push(PgEffect::Created { pg: pg.id, epoch });
            } else {
                p.next = Next::Serve;
            }
        });
    }

    /// Everything is proven and durable.
    fn serve(&mut self, p: Peering, cx: &mut Cx<'_>) {
        let (Some(view), Some(info)) = (self.view.clone(), &self.info) else { return };
        let others: Vec<OsdId> = view.acting.iter().copied().filter(|o| *o != self.osd).collect();
        let home = info.home.clone();
        let mut active = Active::new(p.epoch, &others, info.last_update);
        active.repeer_at = p.repeer_at;
        self.role = Role::Active(Box::new(active));
        self.ops.forget_objects();
        cx.out.push(PgEffect::StateChanged);
        // Everyone at home is durable, so other copies are not needed any more.
        let holders = p.infos.iter().filter(|(_, i)| i.is_some()).map(|(o, _)| *o);
        let strays: BTreeSet<OsdId> = holders.chain(self.strays.iter().copied()).collect();
        for osd in strays.into_iter().filter(|o| !home.contains(o) && !view.acting.contains(o)) {
            self.send(osd, p.epoch, CtlBody::Delete, cx);
        }
        self.run_waiting(cx);
    }

    /// Repeats questions; ends the wait for leases.
    pub(crate) fn peering_tick(&mut self, cx: &mut Cx<'_>) {
        let retry = self.cfg.retry_ms;
        self.peering(None, cx, |pg, p, cx| {
            let now = cx.now.mono_ms;
            let epoch = p.epoch;
            match &mut p.phase {
                Phase::Info if now >= p.asked_ms + retry => {
                    p.asked_ms = now;
                    let silent = p.asked.iter().filter(|(o, up)| up.is_some() && !p.infos.contains_key(o));
                    for osd in silent.map(|(o, _)| *o) {
                        pg.send(osd, epoch, CtlBody::Query, cx);
                    }
                }
                Phase::Create { asked_ms } if now >= *asked_ms + retry => pg.ask_create(p, cx),
                Phase::Confirm { asked_ms } if now >= *asked_ms + retry => {
                    *asked_ms = now;
                    cx.out.push(PgEffect::Created { pg: pg.id, epoch });
                }
                Phase::Lease if now >= p.lease_until => pg.begin_activation(p, cx),
                _ => {}
            }
        });
    }
}

impl Peering {
    /// State bits beside those that the acting set gives, and who is in the way.
    pub fn state(&self) -> (PgState, Vec<OsdId>) {
        let waiting = || -> Vec<OsdId> {
            self.asked.iter().filter(|(o, up)| up.is_some() && !self.infos.contains_key(o)).map(|(o, _)| *o).collect()
        };
        let fresh = match &self.plan {
            Some(plan) if plan.fresh => PgState::CREATING,
            _ => PgState::UNKNOWN,
        };
        match &self.phase {
            Phase::Info => (PgState::PEERING, waiting()),
            Phase::Create { .. } => (PgState::CREATING | PgState::PEERING, Vec::new()),
            Phase::Blocked { state, by } => (*state, by.clone()),
            Phase::Logs { missing, .. } => (PgState::PEERING, missing.iter().copied().collect()),
            Phase::Reserve => (PgState::PEERED | PgState::RECOVERY_WAIT | PgState::DEGRADED, Vec::new()),
            Phase::Pull(job) if job.backfill => {
                (PgState::PEERED | PgState::BACKFILLING | PgState::DEGRADED, Vec::new())
            }
            Phase::Push(jobs) if jobs.iter().any(|j| j.backfill) => {
                (PgState::PEERED | PgState::BACKFILLING | PgState::DEGRADED, Vec::new())
            }
            Phase::Pull(_) | Phase::Push(_) => (PgState::PEERED | PgState::RECOVERING | PgState::DEGRADED, Vec::new()),
            Phase::Seal { .. } => (PgState::PEERING, Vec::new()),
            Phase::Lease => (PgState::PEERED | PgState::WAIT, Vec::new()),
            Phase::Activate { .. } | Phase::Confirm { .. } => (PgState::ACTIVATING | fresh, Vec::new()),
        }
    }

    /// Who answered what, for `pg query`.
    pub fn infos(&self) -> impl Iterator<Item = (OsdId, Option<&PgInfo>)> {
        self.infos.iter().map(|(o, i)| (*o, i.as_ref()))
    }
}
