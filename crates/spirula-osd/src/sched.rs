//! What background work may do beside clients: reservations and turns.
//!
//! A PG takes part in recovery only under a reservation, of which an OSD gives few at a time
//! (`osd_max_backfills`). Each piece of work — an object recovered, a chunk scrubbed, a batch of a
//! stray copy's objects deleted, some objects trimmed — begins in a turn. Turns go to recovery
//! first, then to deletion, then to trimming, then to scrub, within a class to pools of a higher
//! `recovery_op_priority` or `scrub_priority` first and else in the order they were asked for, as
//! far as the clients' latency allows ([`crate::pace`]). But what frees space, deletion and
//! trimming, has every fifth turn beside recovery, which takes space and may go on for days. An
//! object that a client waits for needs no turn.

use crate::osd::OsdCore;
use crate::pace::{HANGS, Limit, Pacer};
use serde_json::{Value, json};
use spirula_maps::osdmap::opts::opt;
use spirula_messages::cluster::control::OsdForce;
use spirula_pg::{OpId, PgEvent, Reservation, TurnKind};
use spirula_settings::Settings;
use spirula_types::SpgId;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Bytes that an object's recovery counts for besides its data.
const OBJECT_COST: u64 = 32 << 10;
/// Bytes that a batch of deletions, or of trims, counts for.
const REMOVAL_COST: u64 = 1 << 20;
/// Without clients, and without a number set, as many objects at a time as hold this much.
const UNDER_WAY_BYTES: u64 = 48 << 20;
/// But no more than this.
const UNDER_WAY_MAX: usize = 64;
/// Turns that recovery has one after the other while something wants to free space.
const RECOVERY_IN_TURN: u32 = 4;
/// Objects trimmed in a turn.
const TRIMS: usize = 8;
/// Bytes of an object sent at a time without clients, and beside them.
const PIECES: (u64, u64) = (4 << 20, 1 << 20);

/// Priorities of pools that have none of their own, as Ceph's `osd_recovery_op_priority` and
/// `osd_scrub_priority` have them.
const OF_RECOVERY: i64 = 3;
const OF_SCRUBS: i64 = 5;

/// The options that the scheduler obeys (Ceph's names).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RecoveryOptions {
    /// `osd_max_backfills`: PGs that recover at a time, as primary and as target each.
    pub max_backfills: usize,
    /// `osd_recovery_max_active`, or that of the device's kind: objects recovered at a time.
    pub max_active: usize,
    /// It was set, so it is no matter of judgement.
    pub max_active_set: bool,
    /// `osd_recovery_sleep`: least time between two turns of recovery.
    pub recovery_sleep: Duration,
    /// `osd_scrub_sleep`: the same, chunks of scrubs.
    pub scrub_sleep: Duration,
    /// `osd_snap_trim_sleep`: the same, objects that are trimmed.
    pub trim_sleep: Duration,
}

impl RecoveryOptions {
    /// As the options say; `class` of the device: `hdd` or another.
    pub fn of(s: &Settings, class: &str) -> Self {
        let kind = if class == "hdd" { "hdd" } else { "ssd" };
        let count = |name: &str| s.number(name).map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        let seconds = |name: &str| {
            let v: f64 = s.get(name).and_then(|v| v.parse().ok()).unwrap_or(0.0);
            Duration::try_from_secs_f64(v).unwrap_or_default().min(Duration::from_secs(60))
        };
        let of_kind = format!("osd_recovery_max_active_{kind}");
        let all = count("osd_recovery_max_active").filter(|n| *n > 0);
        let sleep =
            seconds("osd_recovery_sleep").max(seconds(&format!("osd_recovery_sleep_{kind}")));
        Self {
            max_backfills: count("osd_max_backfills").unwrap_or(1).max(1),
            max_active: all.or(count(&of_kind)).unwrap_or(10).max(1),
            max_active_set: all.is_some() || s.given(&of_kind).is_some(),
            recovery_sleep: sleep,
            scrub_sleep: seconds("osd_scrub_sleep"),
            trim_sleep: seconds("osd_snap_trim_sleep"),
        }
    }
}

/// A PG that waits for a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting {
    pg: SpgId,
    what: Reservation,
    /// Higher first: forced, then the pool's `recovery_priority`.
    priority: i64,
}

/// Reservations and turns of one OSD.
#[derive(Debug)]
pub(crate) struct Scheduler {
    pub(crate) options: RecoveryOptions,
    pub(crate) pacer: Pacer,
    granted: Vec<(SpgId, Reservation)>,
    waiting: VecDeque<Waiting>,
    /// Answers for PGs, to be given when what they want now is performed.
    ready: VecDeque<(SpgId, PgEvent)>,
    /// PGs that want a turn, in order.
    turns: VecDeque<SpgId>,
    next_recovery: Duration,
    next_scrub: Duration,
    next_trim: Duration,
    /// Clients' requests with lower numbers have hung for [`HANGS`], or are answered.
    hung: OpId,
    /// Since the start.
    objects: u64,
    bytes: u64,
    scrubbed: u64,
    removals: u64,
    /// Bytes of an object, lately.
    object_bytes: u64,
    given: BTreeMap<&'static str, u64>,
    /// Turns that recovery has had since something that frees space had one, while such work was
    /// there to be done.
    passed_over: u32,
}

fn is_local(r: &Reservation) -> bool {
    matches!(r, Reservation::Local { .. })
}

fn is_backfill(r: &Reservation) -> bool {
    match r {
        Reservation::Local { backfill } | Reservation::Remote { backfill, .. } => *backfill,
    }
}

/// Whose turn it is: of the PGs that may have one, each with its place in the queue, what it wants
/// it for and its pool's priority for that. `passed_over`: recovery has had as many turns as it may
/// have before something that frees space has one.
fn first(
    may: impl Iterator<Item = (usize, Option<TurnKind>, i64)>,
    passed_over: bool,
) -> Option<(usize, Option<TurnKind>)> {
    let order = |k: Option<TurnKind>| match k {
        None => 0,
        Some(k) if passed_over && frees(k) => 0,
        Some(TurnKind::Recovery) => 1,
        Some(TurnKind::Removal) => 2,
        Some(TurnKind::Trim) => 3,
        Some(TurnKind::Scrub) => 4,
    };
    may.min_by_key(|(at, k, priority)| (order(*k), -priority, *at)).map(|(at, k, _)| (at, k))
}

/// Does a turn of this kind free space?
fn frees(kind: TurnKind) -> bool {
    matches!(kind, TurnKind::Removal | TurnKind::Trim)
}

fn word(kind: TurnKind) -> &'static str {
    match kind {
        TurnKind::Recovery => "recovery",
        TurnKind::Removal => "removal",
        TurnKind::Trim => "snaptrim",
        TurnKind::Scrub => "scrub",
    }
}

impl Scheduler {
    pub(crate) fn new(options: RecoveryOptions) -> Self {
        Self {
            options,
            pacer: Pacer::default(),
            granted: Vec::new(),
            waiting: VecDeque::new(),
            ready: VecDeque::new(),
            turns: VecDeque::new(),
            next_recovery: Duration::ZERO,
            next_scrub: Duration::ZERO,
            next_trim: Duration::ZERO,
            hung: 0,
            objects: 0,
            bytes: 0,
            scrubbed: 0,
            removals: 0,
            object_bytes: 4 << 20,
            given: BTreeMap::new(),
            passed_over: 0,
        }
    }

    /// Whose turn it is ([`first`]); it counts as given.
    fn choose(
        &mut self,
        wanted: &[(usize, Option<TurnKind>, i64)],
    ) -> Option<(usize, Option<TurnKind>)> {
        let (at, kind) = first(wanted.iter().copied(), self.passed_over >= RECOVERY_IN_TURN)?;
        let frees_space = wanted.iter().any(|(_, k, _)| k.is_some_and(frees));
        if let Some(k) = kind {
            *self.given.entry(word(k)).or_default() += 1;
            self.passed_over = match k {
                TurnKind::Recovery if frees_space => self.passed_over + 1,
                TurnKind::Removal | TurnKind::Trim => 0,
                _ => self.passed_over,
            };
        }
        Some((at, kind))
    }

    /// Recovery moved this much.
    pub(crate) fn recovered(&mut self, objects: u64, bytes: u64) {
        self.objects += objects;
        self.bytes += bytes;
        if bytes > 0 {
            self.object_bytes = (self.object_bytes * 7 + bytes) / 8;
        }
        self.pacer.worked(bytes + objects * OBJECT_COST);
    }

    /// A scrub read this much.
    pub(crate) fn scrubbed(&mut self, bytes: u64) {
        self.scrubbed += bytes;
        self.pacer.worked(bytes);
    }

    /// Age of the oldest request that has not hung for long; `waiting` are those from
    /// [`Self::hung`] on with when they came, in order.
    fn oldest(
        &mut self,
        now: Duration,
        waiting: impl Iterator<Item = (OpId, Duration)>,
    ) -> Option<Duration> {
        for (op, begun) in waiting {
            let age = now.saturating_sub(begun);
            if age < HANGS {
                return Some(age);
            }
            self.hung = op + 1;
        }
        None
    }

    /// Does any PG here recover, or wait to?
    pub(crate) fn is_recovering(&self) -> bool {
        !self.granted.is_empty() || !self.waiting.is_empty()
    }

    /// Gives reservations that are free. The higher priority first, then recovery by the log before
    /// backfill.
    fn grant(&mut self) {
        for local in [true, false] {
            while self.granted.iter().filter(|(_, r)| is_local(r) == local).count()
                < self.options.max_backfills
            {
                let of_side =
                    self.waiting.iter().enumerate().filter(|(_, w)| is_local(&w.what) == local);
                let key = |i: usize, w: &Waiting| {
                    (std::cmp::Reverse(w.priority), is_backfill(&w.what), i)
                };
                let Some(at) = of_side.min_by_key(|(i, w)| key(*i, w)).map(|(i, _)| i) else {
                    break;
                };
                let Some(w) = self.waiting.remove(at) else { break };
                self.granted.push((w.pg, w.what));
                self.ready.push_back((w.pg, PgEvent::Reserved(w.what)));
            }
        }
    }

    /// Objects that may be recovered at a time.
    fn width(&self) -> usize {
        let judged = (UNDER_WAY_BYTES / self.object_bytes.max(1)) as usize;
        let most = match self.options.max_active_set {
            true => self.options.max_active,
            false => {
                judged.clamp(self.options.max_active, UNDER_WAY_MAX.max(self.options.max_active))
            }
        };
        self.pacer.width(most, self.object_bytes + OBJECT_COST)
    }

    /// When a turn that is wanted may be possible, as of `now`; `None` if none is.
    pub(crate) fn next(&self, now: Duration) -> Option<Duration> {
        if self.turns.is_empty() {
            return None;
        }
        let sleeping = self.next_recovery.min(self.next_scrub).min(self.next_trim);
        Some(self.pacer.next().min(sleeping.max(now + Duration::from_millis(1))))
    }

    /// How many PGs of some wait for a turn.
    pub(crate) fn wanted(&self, of: impl Fn(&SpgId) -> bool) -> usize {
        self.turns.iter().filter(|pg| of(pg)).count()
    }

    /// For `tell osd.N dump_scheduler`.
    pub(crate) fn dump(&self) -> Value {
        let (n, p99, base) = self.pacer.latencies();
        let limit = match self.pacer.limit() {
            Limit::None => json!("none, no client is there"),
            Limit::Rest => json!("rests, to see the clients' latency without it"),
            Limit::Rate(r) => json!(r as u64),
        };
        json!({
            "clients": {"requests_looked_at": n, "p99_us": p99 as u64, "p99_without_background_us": base.map(|b| b as u64)},
            "limit_bytes_per_second": limit,
            "objects_at_a_time": self.width(),
            "max_backfills": self.options.max_backfills,
            "reservations_held": self.granted.iter().map(|(pg, r)| json!({"pgid": pg.to_string(), "kind": kind(r)})).collect::<Vec<_>>(),
            "reservations_wanted": self.waiting.len(),
            "turns_wanted": self.turns.len(),
            "turns_given": self.given,
            "recovered_objects": self.objects,
            "recovered_bytes": self.bytes,
            "scrubbed_bytes": self.scrubbed,
            "removal_batches": self.removals,
        })
    }

    /// For `tell osd.N dump_recovery_reservations`, in Ceph's shape.
    pub(crate) fn dump_reservations(&self) -> Value {
        let side = |local: bool| {
            let held: Vec<Value> = self
                .granted
                .iter()
                .filter(|(_, r)| is_local(r) == local)
                .map(|(pg, _)| json!({"item": pg.to_string(), "prio": 0, "can_preempt": false}))
                .collect();
            let mut queues: BTreeMap<i64, Vec<Value>> = BTreeMap::new();
            for w in self.waiting.iter().filter(|w| is_local(&w.what) == local) {
                queues
                    .entry(w.priority)
                    .or_default()
                    .push(json!({"item": w.pg.to_string(), "prio": w.priority}));
            }
            let queues: Vec<Value> = queues
                .into_iter()
                .map(|(p, items)| json!({"priority": p, "items": items}))
                .collect();
            json!({"max_allowed": self.options.max_backfills, "min_priority": 0, "queues": queues, "in_progress": held})
        };
        json!({"local_reservations": side(true), "remote_reservations": side(false)})
    }
}

fn kind(r: &Reservation) -> &'static str {
    match (is_local(r), is_backfill(r)) {
        (true, false) => "recovery as primary",
        (true, true) => "backfill as primary",
        (false, false) => "recovery as target",
        (false, true) => "backfill as target",
    }
}

impl OsdCore {
    pub(crate) fn reserve(&mut self, id: SpgId, what: Reservation) {
        let pool = self.maps.map().and_then(|m| m.pools.get(&id.pg.pool));
        let of_pool =
            pool.and_then(|p| p.opts.int(opt::RECOVERY_PRIORITY)).unwrap_or(0).clamp(-10, 10);
        let forced = self.pgs.get(&id).is_some_and(|p| p.is_forced(is_backfill(&what)));
        let priority = if forced { 255 } else { of_pool };
        let full = match what {
            Reservation::Remote { backfill, .. } => self.is_too_full(backfill),
            Reservation::Local { .. } => self.is_full(),
        };
        if self.has_no_room_for(id, what, full) {
            self.sched.ready.push_back((id, PgEvent::Refused(what)));
            return;
        }
        self.sched.waiting.push_back(Waiting { pg: id, what, priority });
        self.sched.grant();
    }

    pub(crate) fn unreserve(&mut self, id: SpgId, what: Reservation) {
        self.sched.granted.retain(|g| *g != (id, what));
        self.sched.waiting.retain(|w| (w.pg, w.what) != (id, what));
        self.sched
            .ready
            .retain(|(pg, e)| *pg != id || !matches!(e, PgEvent::Reserved(r) if *r == what));
        self.sched.grant();
    }

    /// A full disk has no room for what a PG is to receive, be it from its primary, or as a primary
    /// that lacks objects itself.
    fn has_no_room_for(&self, id: SpgId, what: Reservation, full: bool) -> bool {
        full && self.pgs.get(&id).is_none_or(|p| p.takes_space(&what))
    }

    /// Ends what we take part in, and what fills our own disk, when there is no room left for it:
    /// backfill above `backfillfull_ratio` as in Ceph, recovery by the log when nothing that grows
    /// is written any more.
    pub(crate) fn refuse_when_full(&mut self) {
        let full = |what: &Reservation| match what {
            Reservation::Remote { backfill: true, .. } => self.is_too_full(true),
            _ => self.is_failsafe_full(),
        };
        let ends = |(id, what): &(SpgId, Reservation)| self.has_no_room_for(*id, *what, full(what));
        let ended: Vec<(SpgId, Reservation)> =
            self.sched.granted.iter().copied().filter(ends).collect();
        for (id, what) in ended {
            self.unreserve(id, what);
            self.feed_pg(id, PgEvent::Refused(what));
        }
    }

    /// Some PGs' recovery goes before others', or no longer.
    pub(crate) fn forced(&mut self, o: &OsdForce) {
        let led = |id: &SpgId| o.pgs.contains(&id.pg);
        for pg in self.pgs.keys().copied().filter(led).collect::<Vec<_>>() {
            self.feed_pg(pg, PgEvent::Force { backfill: o.backfill, on: o.on });
        }
        // To their places in the queue.
        let wanted: Vec<Waiting> = self.sched.waiting.drain(..).collect();
        for w in wanted {
            self.reserve(w.pg, w.what);
        }
        self.perform();
    }

    pub(crate) fn want_turn(&mut self, id: SpgId) {
        if !self.sched.turns.contains(&id) {
            self.sched.turns.push_back(id);
        }
    }

    /// The next answer or turn for a PG; `None` when there is none now. Asked for when all
    /// that PGs wanted before is performed, so that a PG's effects keep their order.
    pub(crate) fn next_work(&mut self) -> Option<(SpgId, PgEvent)> {
        if let Some(ready) = self.sched.ready.pop_front() {
            return Some(ready);
        }
        if self.sched.turns.is_empty() || !self.sched.pacer.may_begin() {
            return None;
        }
        let now = self.now.mono;
        let local = self.sched.granted.iter().filter(|(_, r)| is_local(r));
        let under_way: usize =
            local.filter_map(|(pg, _)| self.pgs.get(pg)).map(|p| p.recovering()).sum();
        let room = self.sched.width().saturating_sub(under_way);
        let s = &self.sched;
        let kind = |pg: &SpgId| self.pgs.get(pg).and_then(|p| p.turn_kind());
        let may = |k: Option<TurnKind>| match k {
            Some(TurnKind::Recovery) => room > 0 && now >= s.next_recovery,
            Some(TurnKind::Scrub) => now >= s.next_scrub,
            Some(TurnKind::Trim) => now >= s.next_trim,
            // Who wants nothing any more is answered, too, and forgotten.
            Some(TurnKind::Removal) | None => true,
        };
        let map = self.maps.map();
        let priority = |pg: &SpgId, k: Option<TurnKind>| {
            let of_pool =
                |key| map.and_then(|m| m.pools.get(&pg.pg.pool)).and_then(|p| p.opts.int(key));
            match k {
                Some(TurnKind::Recovery) => {
                    of_pool(opt::RECOVERY_OP_PRIORITY).unwrap_or(OF_RECOVERY)
                }
                Some(TurnKind::Scrub) => of_pool(opt::SCRUB_PRIORITY).unwrap_or(OF_SCRUBS),
                Some(TurnKind::Removal | TurnKind::Trim) | None => 0,
            }
        };
        let wanted =
            s.turns.iter().enumerate().map(|(i, pg)| (i, pg, kind(pg))).filter(|(.., k)| may(*k));
        let wanted: Vec<_> = wanted.map(|(i, pg, k)| (i, k, priority(pg, k))).collect();
        let (at, kind) = self.sched.choose(&wanted)?;
        let pg = self.sched.turns.remove(at)?;
        let free = self.sched.pacer.limit() == Limit::None;
        let s = &mut self.sched;
        match kind {
            Some(TurnKind::Recovery) => s.next_recovery = now + s.options.recovery_sleep,
            Some(TurnKind::Scrub) => s.next_scrub = now + s.options.scrub_sleep,
            Some(TurnKind::Removal) => {
                s.removals += 1;
                s.pacer.worked(REMOVAL_COST);
            }
            Some(TurnKind::Trim) => {
                s.next_trim = now + s.options.trim_sleep;
                s.pacer.worked(REMOVAL_COST);
            }
            None => {}
        }
        let work = match kind {
            Some(TurnKind::Trim) if s.options.trim_sleep.is_zero() => TRIMS,
            Some(TurnKind::Trim) => 1,
            _ if free && s.options.recovery_sleep.is_zero() => room.clamp(1, 8),
            _ => 1,
        };
        Some((pg, PgEvent::Turn { work, piece: if free { PIECES.0 } else { PIECES.1 } }))
    }

    /// Time passed: the pace is adapted, turns that have become possible are given.
    pub(crate) fn schedule(&mut self, now: Duration) {
        // Requests are numbered in the order they came.
        let waiting = self.requests.since(self.sched.hung);
        let oldest = self.sched.oldest(now, waiting);
        let wall = self.now.wall;
        let wall = Duration::new(wall.sec.into(), wall.nsec);
        self.sched.pacer.tick(now, wall, oldest);
        self.perform();
    }

    /// Takes over the options.
    pub(crate) fn follow_options(&mut self) {
        self.sched.options = RecoveryOptions::of(&self.cfg.settings, &self.cfg.device_class);
        self.sched.grant();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_settings::Source;
    use spirula_types::{Peer, PgId};

    const L: Reservation = Reservation::Local { backfill: false };
    const B: Reservation = Reservation::Local { backfill: true };

    fn scheduler() -> Scheduler {
        let mut settings = Settings::default();
        settings.set(Source::Override, "osd_max_backfills", "1").unwrap();
        Scheduler::new(RecoveryOptions::of(&settings, "ssd"))
    }

    fn want(s: &mut Scheduler, seed: u32, what: Reservation, priority: i64) {
        s.waiting.push_back(Waiting { pg: SpgId::whole(PgId::new(1, seed)), what, priority });
        s.grant();
    }

    #[test]
    fn few_pgs_recover_at_a_time_the_log_before_backfill_and_the_forced_first() {
        let mut s = scheduler();
        want(&mut s, 0, B, 0);
        want(&mut s, 1, B, 0);
        want(&mut s, 2, L, 0);
        want(&mut s, 3, B, 5);
        want(&mut s, 4, Reservation::Remote { primary: Peer::whole(1), backfill: true }, 0);
        let mut order = Vec::new();
        while let Some((pg, _)) = s.ready.pop_front() {
            order.push(pg.pg.seed);
            if pg.pg.seed < 4 {
                s.granted.retain(|(p, _)| *p != pg);
                s.grant();
            }
        }
        assert_eq!(order, [0, 4, 3, 2, 1], "targets are counted by themselves");
    }

    #[test]
    fn turns_go_by_class_then_by_the_pools_priority_then_in_order() {
        use TurnKind::{Recovery, Removal, Scrub};
        let of = |all: &[(Option<TurnKind>, i64)], passed_over: bool| {
            first(all.iter().enumerate().map(|(i, (k, p))| (i, *k, *p)), passed_over)
                .map(|(at, _)| at)
        };
        let turn = |all: &[(Option<TurnKind>, i64)]| of(all, false);
        let (r, s) = (Some(Recovery), Some(Scrub));
        assert_eq!(
            turn(&[(s, 9), (r, 3), (r, 3)]),
            Some(1),
            "recovery goes before scrubs whatever their priority"
        );
        assert_eq!(turn(&[(r, 3), (r, 7), (r, 7)]), Some(1));
        assert_eq!(turn(&[(s, 5), (s, 1), (s, 6)]), Some(2));
        assert_eq!(turn(&[(s, 63), (Some(Removal), 0)]), Some(1));
        assert_eq!(turn(&[(r, 63), (None, 0)]), Some(1));
        assert_eq!(turn(&[]), None);
        // What frees space is not passed over for ever, the oldest of it.
        let trim = Some(TurnKind::Trim);
        let mut sched = scheduler();
        let given: Vec<_> = (0..20)
            .filter_map(|_| sched.choose(&[(0, r, 3), (1, trim, 0)]))
            .map(|(at, _)| at)
            .collect();
        assert_eq!(given, [0, 0, 0, 0, 1].repeat(4));
        (0..9).for_each(|_| {
            assert_eq!(sched.choose(&[(0, r, 3)]), Some((0, r)), "nobody is passed over")
        });
        assert_eq!(sched.choose(&[(0, r, 3), (1, trim, 0)]), Some((0, r)));
        assert_eq!(turn(&[(r, 3), (trim, 0), (Some(Removal), 0)]), Some(0));
        assert_eq!(of(&[(r, 3), (trim, 0), (Some(Removal), 0)], true), Some(1));
        assert_eq!(of(&[(s, 9), (r, 3)], true), Some(1));
    }

    #[test]
    fn a_request_that_hangs_for_long_hides_no_younger_one() {
        let mut s = scheduler();
        let at = Duration::from_secs;
        let ops = BTreeMap::from([(4, at(100)), (5, at(101)), (9, at(108))]);
        let from = |s: &Scheduler| {
            ops.range(s.hung..).map(|(o, t)| (*o, *t)).collect::<Vec<_>>().into_iter()
        };
        let waiting = from(&s);
        assert_eq!(s.oldest(at(109), waiting), Some(at(9)));
        let waiting = from(&s);
        assert_eq!(s.oldest(at(112), waiting), Some(at(4)));
        assert_eq!(s.hung, 6, "those two are not looked at again");
        let waiting = from(&s);
        assert_eq!(s.oldest(at(120), waiting), None);
    }

    #[test]
    fn options_have_cephs_names_and_the_devices_kind_decides() {
        let mut settings = Settings::default();
        let ssd = RecoveryOptions::of(&settings, "ssd");
        assert_eq!(
            (ssd.max_active, ssd.max_active_set, ssd.recovery_sleep),
            (10, false, Duration::ZERO)
        );
        assert_eq!(RecoveryOptions::of(&settings, "hdd").max_active, 3);
        settings.set(Source::Mon, "osd_recovery_max_active", "5").unwrap();
        settings.set(Source::Mon, "osd_recovery_sleep", "0.25").unwrap();
        let k = RecoveryOptions::of(&settings, "hdd");
        assert_eq!(
            (k.max_active, k.max_active_set, k.recovery_sleep),
            (5, true, Duration::from_millis(250))
        );
    }

    #[test]
    fn small_objects_go_many_at_a_time_unless_a_number_is_set() {
        let mut s = scheduler();
        assert_eq!(s.width(), 12);
        (0..100).for_each(|_| s.recovered(1, 4096));
        assert_eq!(s.width(), UNDER_WAY_MAX);
        (s.options.max_active, s.options.max_active_set) = (3, true);
        assert_eq!(s.width(), 3);
    }
}
