//! OSDs that fail without a word: who is silent, who is gone, who is marked out.
//!
//! An OSD goes down by its peers' reports, if there are enough of them, from enough places of the
//! CRUSH tree (`mon_osd_min_down_reporters`, `mon_osd_reporter_subtree_level`), about a silence
//! that is long enough (`osd_heartbeat_grace`), and as long as they are repeated. It goes down
//! earlier where as many of them miss it for longer than is usual, and its monitor misses it, too
//! (see "Quick"). It goes down at
//! once if its port refuses connections and it has no connection to a monitor either; while it has
//! one, the word of a single peer does not suffice, since a firewall may refuse in the OSD's name,
//! or the peer may lie. Where no peer is left to report, it goes down by the loss of its connection
//! to the monitor. An OSD that stays down is marked out, so that its data is copied elsewhere.
//! Rules and option names are Ceph's.
//!
//! **Quick.** How long a silence is unusual is known to those who hear the target all the time, and
//! each reporter says it (`patience_ms`; `spirula-osd`, `patience`): a second where all is calm,
//! more where machines are loaded, never more than the grace. Three things must come together. As
//! many independent reporters as the slow rule asks for say that the silence is longer; they miss
//! the target on every network; and its beacons stay out at its monitor ([`crate::beacons`]), which
//! come over a connection of their own. So its process stands still, or it is cut off from
//! everybody. A reporter in trouble of its own, a network between OSDs that is broken, a packet
//! that is lost: none of these does all of it. Where one of the three is missing or unknown, the
//! grace decides as ever. Nobody wins power by this: whoever lies has one word of those that are
//! needed, as with the slow rule, where it can say of any silence that it is long enough.
//!
//! **What a word counts for.** Silence counts as it was when its reporter said so, never the time
//! since: a word that the target lives may lie unread, here or at another monitor that stands
//! still. So reporters repeat what they say, and whose word is too young is no witness yet and
//! holds up nobody else's. A word does not count
//!
//! * from whom this monitor's side did not hear itself until just now ([`Beacons::is_settled`]): it
//!   was cut off, or stood still;
//! * for [`UNREAD`] after this monitor stood still ([`OsdTracker::ran`]), for what it did not read
//!   may take the word back;
//! * for [`SETTLES`] after this monitor began to lead others, if it is no quick one: it may have
//!   been said in a part of the cluster that was cut off with its monitor. A reporter that misses
//!   most of the others gives no quick word (`spirula-osd`, `peers`).
//!
//! The OSDs say nothing of a silence that was their own (`spirula-osd`, `patience`, "Apart"). What
//! another monitor keeps for the next leader is each reporter's last word (`Mon::supersede`).
//!
//! **Gone.** A report may say that the target's process is gone. Then the map says so
//! (`dead_epoch`), and the next primaries do not wait for the read leases that it held. The
//! reporter says it only on proof (`spirula-osd`, `peers`): its connection was refused, and either
//! it is on the same host, or the target's own kernel had closed an earlier connection in due form.
//!
//! **Damping.** An OSD that comes back and was alive all the time (`was_up` in its boot) was marked
//! down wrongly. How often that happens, and for how long, is kept in the map (`laggy_probability`,
//! `laggy_interval`). It gives more grace to that OSD, and to those whom it reports, where its word
//! alone has to be of a longer silence; it is
//! forgotten by halves (`mon_osd_laggy_halflife`). Of what lies between a reporter's patience and
//! the grace, the probability is the share that is waited for, too: after some wrong marks in a
//! row the grace alone counts. Silence on every path is held against that, however long one of them
//! was silent alone. An OSD whose own loop stood still for all of the grace, as its boot
//! says, was not marked down wrongly.
//!
//! Two OSDs that miss only each other are not for these rules: [`crate::pairs`].

use crate::beacons::Beacons;
use crate::event::{ConnId, Peer};
use crate::mon::Mon;
use crate::osd::{mark_dead, mark_down, mark_out, seconds_between, slot};
use crate::pairs::{Mute, PairTracker, Word, Words, pairs};
use crate::state::State;
use crate::work::Work;
use spirula_encoding::UTime;
use spirula_maps::OsdMap;
use spirula_maps::osdmap::{OsdXInfo, flags, state};
use spirula_messages::ceph::log::severity;
use spirula_messages::cluster::control::OsdFailureReport;
use spirula_types::{EntityType, OsdId};
use std::collections::{BTreeMap, BTreeSet};

/// `laggy_probability` of 1.
const CERTAIN: f64 = u32::MAX as f64;

/// Seconds after which a word of an unusual silence that was not repeated counts no more; it is
/// repeated at least every two.
const QUICK_FRESH: f64 = 3.0;
/// A monitor that did not run for more than so many seconds has not read what was said meanwhile,
/// and takes as many to read it.
const UNREAD: f64 = 0.5;
/// Seconds for which one that leads others from now on is told of silence that was none: as
/// `patience::SETTLES` of OSDs.
const SETTLES: f64 = 2.0;
/// Seconds without any connection after which an OSD counts as silent to its monitors.
const GONE_QUIET: f64 = 0.75;

/// What is known of OSDs besides the map. Lost at restart, and built up again by reports.
#[derive(Debug, Default)]
pub struct OsdTracker {
    /// Target → reporter → complaint.
    failures: Words,
    /// OSDs whose last connection to us went away, and when.
    lost: BTreeMap<OsdId, UTime>,
    /// Since when OSDs are down that went down while this monitor ran, in the steady time.
    down_since: BTreeMap<OsdId, UTime>,
    /// Open connections by OSD.
    open: BTreeMap<OsdId, u32>,
    /// OSDs that may not come up because others do not understand them, and in which words that was
    /// said.
    pub(crate) refused: BTreeMap<OsdId, String>,
    /// Who says that it runs.
    pub(crate) beacons: Beacons,
    /// Pairs that do not hear each other, and who is kept out for it.
    pub(crate) pairs: PairTracker,
    /// Nobody is judged by silence before.
    judges_from: UTime,
}

impl OsdTracker {
    pub(crate) fn session_opened(&mut self, peer: &Peer) {
        if let Ok(osd) = peer.id.parse::<OsdId>() {
            *self.open.entry(osd).or_insert(0) += 1;
            self.lost.remove(&osd);
        }
    }

    /// OSDs went down; those in `up` are up.
    pub(crate) fn went_down(
        &mut self,
        osds: impl Iterator<Item = OsdId>,
        up: &BTreeSet<OsdId>,
        now: UTime,
    ) {
        self.down_since.retain(|o, _| !up.contains(o));
        self.down_since.extend(osds.map(|o| (o, now)));
    }

    pub(crate) fn session_closed(&mut self, conn: ConnId, peer: &Peer, now: UTime) {
        // A client may be called by a number.
        if peer.kind != EntityType::Osd {
            return;
        }
        let Ok(osd) = peer.id.parse::<OsdId>() else { return };
        self.beacons.closed(osd, conn);
        if let Some(n) = self.open.get_mut(&osd) {
            *n -= 1;
            if *n == 0 {
                self.open.remove(&osd);
                self.lost.insert(osd, now);
            }
        }
    }

    /// It is connected to a monitor.
    pub(crate) fn is_connected(&self, osd: OsdId) -> bool {
        self.open.contains_key(&osd)
    }

    /// It does not say to any monitor that it runs, though it should.
    fn is_mute(&self, osd: OsdId, now: UTime) -> bool {
        match self.lost.get(&osd) {
            Some(since) if !self.is_connected(osd) => seconds_between(*since, now) >= GONE_QUIET,
            _ => self.beacons.is_silent(osd, now),
        }
    }

    /// This monitor runs; for how long it had not, in seconds. What it then has to read first may
    /// say that who was silent is not.
    pub(crate) fn ran(&mut self, now: UTime) -> f64 {
        let stood = self.beacons.ran(now);
        // Not for ever, where it runs by fits and starts.
        if stood > UNREAD && seconds_between(self.judges_from, now) >= UNREAD {
            self.judges_from =
                UTime::from_nanos(now.as_nanos().saturating_add((UNREAD * 1e9) as u64));
        }
        stood
    }

    /// This monitor leads from now on: OSDs that are up and connected to no monitor are watched.
    pub(crate) fn new_leader(&mut self, map: &OsdMap, now: UTime) {
        self.failures.clear();
        self.pairs.new_leader();
        self.lost = map
            .osds()
            .filter(|o| map.is_up(*o) && !self.open.contains_key(o))
            .map(|o| (o, now))
            .collect();
    }

    pub(crate) fn forget(&mut self, osd: OsdId) {
        self.failures.remove(&osd);
        for reports in self.failures.values_mut() {
            reports.remove(&osd);
        }
    }
}

/// The flag that keeps an OSD up in the map whatever happens to it, even where it stops by itself.
pub fn held_up(map: &OsdMap, osd: OsdId) -> Option<&'static str> {
    if map.has_flag(flags::NODOWN) {
        return Some("NODOWN flag set");
    }
    (map.held(osd) & state::NODOWN != 0).then_some("it is marked nodown")
}

/// Why an OSD may not be marked down now, if so.
pub fn down_refusal(state: &State, map: &OsdMap, osd: OsdId) -> Option<&'static str> {
    if let Some(why) = held_up(map, osd) {
        return Some(why);
    }
    let (all, up, _) = map.osd_counts();
    if all == 0 || f64::from(up) / f64::from(all) < state.option_f64("mon_osd_min_up_ratio") {
        return Some("too few OSDs are up");
    }
    None
}

/// Learns from an OSD's return: `lived` says that its process had been up before, so that the down
/// mark was wrong; else it was started anew, which speaks for it.
pub(crate) fn note_return(work: &mut Work, osd: OsdId, lived: bool) {
    let old = work.osd().xinfo(osd).copied().unwrap_or_default();
    if old.down_stamp.is_zero() || (!lived && old.laggy_interval == 0 && old.laggy_probability == 0)
    {
        return;
    }
    let weight = work.state.option_f64("mon_osd_laggy_weight").clamp(0.0, 1.0);
    let most = work.state.option_f64("mon_osd_laggy_max_interval");
    let mut seconds = seconds_between(old.down_stamp, work.now);
    if most > 0.0 {
        seconds = seconds.min(most);
    }
    let was = (f64::from(old.laggy_probability) / CERTAIN, f64::from(old.laggy_interval));
    let news = if lived { (1.0, seconds) } else { (0.0, 0.0) };
    let mix = |news: f64, was: f64| news * weight + was * (1.0 - weight);
    if let Some(x) = slot(&mut work.osd_mut().osd_xinfo, osd) {
        x.laggy_probability = (mix(news.0, was.0) * CERTAIN) as u32;
        x.laggy_interval = mix(news.1, was.1).round() as u32;
    }
}

/// How probable it is, 0 to 1, that a down mark is wrong, by what is not forgotten yet.
fn wrong(state: &State, x: &OsdXInfo, now: UTime) -> f64 {
    let half = state.option_f64("mon_osd_laggy_halflife");
    let age = seconds_between(x.down_stamp, now);
    let decay = if half > 0.0 { 0.5f64.powf(age / half) } else { 1.0 };
    decay * f64::from(x.laggy_probability) / CERTAIN
}

/// Seconds of patience that an OSD's past earns it.
fn earned(state: &State, x: &OsdXInfo, now: UTime) -> f64 {
    wrong(state, x, now) * f64::from(x.laggy_interval)
}

/// The share, 0 to 1, of what lies between the patience of `reporter` and the grace that is waited
/// for, too: the target was wrongly down before, or the reporter was.
fn share_of_grace(state: &State, map: &OsdMap, target: OsdId, reporter: OsdId, now: UTime) -> f64 {
    if !state.option_bool("mon_osd_adjust_heartbeat_grace") {
        return 0.0;
    }
    let of = |osd: OsdId| map.xinfo(osd).map_or(0.0, |x| wrong(state, x, now));
    (of(target) + of(reporter)).min(1.0)
}

/// Seconds that `target` may be silent to `reporter`: more for one that was often wrongly down, and
/// more if the reporter was, since then the fault may be with it.
fn grace_of(state: &State, map: &OsdMap, target: OsdId, reporter: OsdId, now: UTime) -> f64 {
    let grace = state.option_f64("osd_heartbeat_grace");
    if !state.option_bool("mon_osd_adjust_heartbeat_grace") {
        return grace;
    }
    let of = |osd: OsdId| map.xinfo(osd).map_or(0.0, |x| earned(state, x, now));
    grace + of(target) + of(reporter)
}

impl Mon {
    pub(crate) fn osd_failure(&mut self, r: &OsdFailureReport, work: &mut Work) {
        let map = work.osd();
        // About another incarnation: another address, or one that was up before this.
        let stale = map.addrs(r.target).is_none_or(|a| a.client != r.target_public)
            || map.info(r.target).is_none_or(|i| r.epoch < i.up_from);
        if r.alive {
            if let Some(reports) = self.osds.failures.get_mut(&r.target) {
                reports.remove(&r.reporter);
            }
            return;
        }
        if stale || !map.is_up(r.target) || !map.is_up(r.reporter) || r.reporter == r.target {
            return;
        }
        let heard = self.hears_of_silence(r);
        if !heard && !r.refused {
            return;
        }
        let silent_ms = if heard { r.failed_for_ms } else { 0 };
        let silent_since = UTime::from_nanos(
            self.steady.as_nanos().saturating_sub(silent_ms.saturating_mul(1_000_000)),
        );
        let refused = r.refused.then_some(r.gone);
        let usual = f64::from(r.patience_ms.0) / 1000.0;
        // An earlier release does not say for how long; then it is as long as usual, at least.
        let silent = if r.unheard_ms.0 > 0 { f64::from(r.unheard_ms.0) / 1000.0 } else { usual };
        let mute = Mute { silent, usual };
        let word = Word {
            silent_since,
            said: self.steady,
            waiting: r.waiting,
            outside: r.outside,
            refused,
            silent: silent_ms as f64 / 1000.0,
            mute: (heard && r.patience_ms.0 > 0).then_some(mute),
        };
        self.osds.failures.entry(r.target).or_default().insert(r.reporter, word);
        self.judge(r.target, work);
    }

    /// Counts what a reporter says of silence?
    fn hears_of_silence(&self, r: &OsdFailureReport) -> bool {
        // Alone it was cut off from no other monitor.
        let new = self.state.monmap.mons.len() > 1
            && seconds_between(self.judging_since, self.steady) < SETTLES;
        let quick = r.patience_ms.0 > 0;
        (quick || !new) && self.osds.beacons.is_settled(r.reporter, self.steady)
    }

    /// Marks `target` down if enough of its peers have missed it for long enough.
    fn judge(&mut self, target: OsdId, work: &mut Work) {
        let (map, now) = (work.osd(), self.steady);
        let (mute, unread) = (self.osds.is_mute(target, self.steady), self.osds.judges_from > now);
        let Some(reports) = self.osds.failures.get_mut(&target) else { return };
        if !map.is_up(target) {
            self.osds.failures.remove(&target);
            return;
        }
        // A reporter that is down itself may be the one that is cut off. One that does not repeat
        // what it said has heard the target again, and its word of that was lost with a connection.
        reports.retain(|osd, w| map.is_up(*osd) && w.is_fresh(now));
        let fast = work.state.option_bool("osd_fast_fail_on_connection_refused");
        let refused: BTreeMap<OsdId, bool> = reports
            .iter()
            .filter(|(_, w)| fast && w.is_fresh(self.steady))
            .filter_map(|(osd, w)| Some((*osd, w.refused?)))
            .collect();
        if let Some(first) = refused.keys().next() {
            let (have, needed) =
                witnesses(&work.state, map, target, &refused.keys().copied().collect());
            if (have >= needed || !self.osds.open.contains_key(&target))
                && down_refusal(&work.state, map, target).is_none()
            {
                let dead = refused.values().any(|gone| *gone);
                let gone = if dead { ", its process is gone" } else { "" };
                work.info(format!("osd.{target} reported immediately failed by osd.{first}{gone}"));
                let mark = if dead { mark_dead } else { mark_down };
                mark(work, target);
                self.osds.forget(target);
                return;
            }
        }
        if reports.is_empty() {
            self.osds.failures.remove(&target);
            return;
        }
        if unread {
            return;
        }
        let said: BTreeMap<OsdId, f64> = reports.iter().map(|(osd, w)| (*osd, w.silent)).collect();
        // When a switch is away all OSDs may report all others: nothing is worked out that cannot
        // count.
        if mute {
            let of = |w: &Word| w.mute.filter(|_| seconds_between(w.said, now) <= QUICK_FRESH);
            let quick: BTreeMap<OsdId, Mute> =
                reports.iter().filter_map(|(o, w)| Some((*o, of(w)?))).collect();
            if !quick.is_empty() && self.judge_quick(target, &quick, work) {
                return;
            }
        }
        let map = work.osd();
        let due = |osd: &OsdId| grace_of(&work.state, map, target, *osd, self.now);
        let ripe = said
            .into_iter()
            .map(|(osd, silent)| (osd, (silent, due(&osd))))
            .filter(|(_, w)| w.0 >= w.1)
            .collect();
        if let Some(why) = enough(&work.state, map, target, &ripe) {
            work.info(format!("osd.{target} failed ({why})"));
            mark_down(work, target);
            self.osds.forget(target);
        }
    }

    /// Marks `target` down, which its monitor misses, too, if enough of its peers have missed it
    /// for longer than is usual. `quick` says of each reporter for how long it has missed it, and
    /// how long is usual.
    fn judge_quick(
        &mut self,
        target: OsdId,
        quick: &BTreeMap<OsdId, Mute>,
        work: &mut Work,
    ) -> bool {
        let map = work.osd();
        let most = work.state.option_f64("osd_heartbeat_grace");
        let due = |osd: OsdId, usual: f64| {
            usual
                + share_of_grace(&work.state, map, target, osd, self.now) * (most - usual).max(0.0)
        };
        let ripe = quick
            .iter()
            .map(|(o, m)| (*o, (m.silent, due(*o, m.usual))))
            .filter(|(_, w)| w.0 >= w.1)
            .collect();
        let Some(why) = enough(&work.state, map, target, &ripe) else { return false };
        work.info(format!("osd.{target} failed ({why}, and no word to its monitor)"));
        mark_down(work, target);
        self.osds.forget(target);
        true
    }

    /// What only time brings: reports that ripen, lost connections, OSDs to be marked out,
    /// shut-out clients to be let in again.
    pub(crate) fn tick_osds(&mut self, work: &mut Work) {
        for target in self.osds.failures.keys().copied().collect::<Vec<_>>() {
            self.judge(target, work);
        }
        self.judge_lost(work);
        self.judge_pairs(work);
        self.mark_out_long_down(work);
        crate::time::end_fences(work, self.now);
    }

    /// Pairs that do not hear each other: one of the two goes, if requests wait.
    fn judge_pairs(&mut self, work: &mut Work) {
        let map = work.osd();
        let grace = work.state.option_f64("osd_heartbeat_grace");
        // Once for each: a host that fails is missed by all OSDs there are.
        let enough = |(osd, words): (&OsdId, &BTreeMap<OsdId, Word>)| {
            // Who says again and again that it has only just begun to miss it leaves the decision
            // to nobody.
            let old =
                words.iter().filter(|(_, w)| seconds_between(w.silent_since, self.steady) >= grace);
            let (have, needed) =
                witnesses(&work.state, map, *osd, &old.map(|(by, _)| *by).collect());
            (have >= needed).then_some(*osd)
        };
        let missed: BTreeSet<OsdId> = self.osds.failures.iter().filter_map(enough).collect();
        let mut pairs = pairs(&self.osds.failures, self.steady, grace, |osd| missed.contains(&osd));
        pairs.retain(|(a, b), _| map.is_up(*a) && map.is_up(*b));
        let (all, up, _) = map.osd_counts();
        let least = work.state.option_f64("mon_osd_min_up_ratio") * f64::from(all);
        let may = |osd: OsdId, more: usize| {
            held_up(map, osd).is_none() && f64::from(up) - more as f64 >= least
        };
        let unread = self.osds.judges_from > self.steady;
        let taken = if unread { Vec::new() } else { self.osds.pairs.judge(map, &pairs, &may) };
        let texts: Vec<String> = taken
            .iter()
            .filter_map(|(osd, two)| {
                let p = pairs.get(two)?;
                let other = if two.0 == *osd { two.1 } else { two.0 };
                let (seconds, n) = (seconds_between(p.since, self.steady), p.waiting);
                Some(format!(
                    "osd.{osd} marked down: it and osd.{other} have not heard each other for \
                        {seconds:.1} s, {n} requests \
                     wait for that, and its loss stops least; it may come back when it hears all \
                     that are up"
                ))
            })
            .collect();
        for ((osd, two), text) in taken.into_iter().zip(texts) {
            work.log(severity::WARN, text);
            mark_down(work, osd);
            self.osds.forget(osd);
            self.osds.pairs.taken(osd, two, self.steady);
            pairs.retain(|(a, b), _| *a != osd && *b != osd);
        }
        let (map, open) = (work.osd(), &self.osds.open);
        self.osds.pairs.forget_removed(map);
        self.osds.pairs.show(map, &pairs, |osd| open.contains_key(&osd));
    }

    /// OSDs without a connection to any monitor: where nobody else can report them it is the only
    /// sign of life; and one that cannot be told of new maps cannot serve for long
    /// (`mon_osd_report_timeout`).
    fn judge_lost(&mut self, work: &mut Work) {
        if self.osds.judges_from > self.steady {
            return;
        }
        let grace = work.state.option_f64("osd_heartbeat_grace");
        let longest = work.state.option_f64("mon_osd_report_timeout");
        for (osd, since) in self.osds.lost.clone() {
            if !work.osd().is_up(osd) {
                self.osds.lost.remove(&osd);
                continue;
            }
            let peers = work.osd().osds().filter(|o| *o != osd && work.osd().is_up(*o));
            let watched = peers.filter(|o| self.osds.open.contains_key(o)).count() > 0;
            let silent = seconds_between(since, self.steady);
            let why = match watched {
                false if silent >= grace => "no peer to ask",
                true if longest > 0.0 && silent >= longest => "that is too long",
                _ => continue,
            };
            if down_refusal(&work.state, work.osd(), osd).is_none() {
                work.info(format!(
                    "osd.{osd} marked down: no connection for {silent:.0} s and {why}"
                ));
                mark_down(work, osd);
                self.osds.forget(osd);
                // One loss is judged once.
                self.osds.lost.remove(&osd);
            }
        }
    }

    fn mark_out_long_down(&mut self, work: &mut Work) {
        let interval = work.state.option_f64("mon_osd_down_out_interval");
        let map = work.osd();
        if interval <= 0.0 || map.has_flag(flags::NOOUT) {
            return;
        }
        let adjust = work.state.option_bool("mon_osd_adjust_down_out_interval");
        // Time during which this monitor was not running does not count: perhaps nothing was.
        let down_for = |o: OsdId| {
            let down = self.osds.down_since.get(&o).copied().unwrap_or(self.judging_since);
            seconds_between(down, self.steady)
        };
        let patience = |map: &OsdMap, o: OsdId| {
            let more =
                map.xinfo(o).filter(|_| adjust).map_or(0.0, |x| earned(&work.state, x, self.now));
            interval + more
        };
        let due: Vec<OsdId> = map
            .osds()
            .filter(|o| map.is_down(*o) && map.is_in(*o) && map.held(*o) & state::NOOUT == 0)
            .filter(|o| down_for(*o) >= patience(map, *o))
            .collect();
        if due.is_empty() {
            return;
        }
        let limit = work.state.option("mon", "mon_osd_down_out_subtree_limit");
        for osd in due {
            let map = work.osd();
            let (all, _, r#in) = map.osd_counts();
            if f64::from(r#in) / f64::from(all.max(1))
                < work.state.option_f64("mon_osd_min_in_ratio")
            {
                return;
            }
            if subtree_is_down(map, osd, &limit) {
                continue;
            }
            let seconds = down_for(osd);
            work.info(format!("Marking osd.{osd} out (has been down for {seconds:.0} seconds)"));
            mark_out(work, osd, true);
        }
    }
}

/// If those who have missed `target` for long enough, and for how long each, and how long is
/// enough, suffice to mark it down: why.
fn enough(
    state: &State,
    map: &OsdMap,
    target: OsdId,
    ripe: &BTreeMap<OsdId, (f64, f64)>,
) -> Option<String> {
    let (have, needed) = witnesses(state, map, target, &ripe.keys().copied().collect());
    if have < needed || down_refusal(state, map, target).is_some() {
        return None;
    }
    let silent = ripe.values().map(|w| w.0).fold(f64::INFINITY, f64::min);
    let grace = ripe.values().map(|w| w.1).fold(0.0, f64::max);
    Some(format!("{have} reporters after {silent:.6} >= grace {grace:.6}"))
}

/// How many independent witnesses `reporters` are, and how many are needed. Reporters in one
/// subtree of type `mon_osd_reporter_subtree_level` count once; where the cluster has too few such
/// subtrees for what is wanted, every OSD counts.
fn witnesses(
    state: &State,
    map: &OsdMap,
    target: OsdId,
    reporters: &BTreeSet<OsdId>,
) -> (usize, usize) {
    let wanted = state.option_u64("mon_osd_min_down_reporters").max(1) as usize;
    let level = state.option("mon", "mon_osd_reporter_subtree_level");
    let others: Vec<OsdId> = map.osds().filter(|o| *o != target && map.is_up(*o)).collect();
    let kind = map.crush.type_id(&level);
    let place = |osd: OsdId| kind.and_then(|k| map.crush.ancestor_of_type(osd, k)).unwrap_or(osd);
    let places: BTreeSet<i32> = others.iter().map(|o| place(*o)).collect();
    let (have, possible) = if places.len() >= wanted {
        let have: BTreeSet<i32> = reporters.iter().map(|o| place(*o)).collect();
        (have.len(), places.len())
    } else {
        (reporters.len(), others.len())
    };
    (have, wanted.min(possible).max(1))
}

/// True if the whole subtree of type `limit` around `osd` is down: then its host or rack is,
/// not the disk, and copying everything elsewhere is not what is wanted.
fn subtree_is_down(map: &OsdMap, osd: OsdId, limit: &str) -> bool {
    let Some(kind) = map.crush.type_id(limit).filter(|k| *k > 0) else { return false };
    let Some(top) = map.crush.ancestor_of_type(osd, kind) else { return false };
    map.crush.osds_under(top).iter().all(|o| map.is_down(*o))
}
