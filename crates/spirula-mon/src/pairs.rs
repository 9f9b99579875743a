//! Two OSDs that cannot hear each other while others hear both.
//!
//! Neither of the two is silent for enough witnesses to go down by the rule of [`crate::failure`],
//! and every PG that one of them leads and the other is a member of stands still. Left alone, that
//! lasts as long as the fault. So one of the two is taken: it is marked down, and kept out until it
//! hears everybody.
//!
//! **Evidence.** A pair is two OSDs that are up, each of which says of the other, freshly
//! ([`FRESH`]), that it has been silent for `osd_heartbeat_grace` and [`OTHERS_SPEAK`] more. By
//! then whoever else misses one of them has said so, and the old rule decides. A heartbeat is a
//! question and its answer, so deafness in one direction silences both. Where only one of the two
//! complains (it cannot open connections to the other, say), and has done so for twice the grace,
//! only the one that complains can be taken. Nothing is taken before one of the two says that
//! requests of clients, or PGs that cannot begin to serve, wait for the other.
//!
//! **Outside of the members.** A primary that peers asks members of older intervals, too, and waits
//! for them while they are up. By the map such a pair shares nothing. So each OSD says how many PGs
//! that it leads wait for the other OSD although that is no member ([`Outside`]), and how many of
//! these could go on if the other were down. They count as PGs that stand still with both, and that
//! go on without the one that leads them, or without the other if they do not need it. No OSD is
//! believed more of them than it leads PGs.
//!
//! **What a liar can do.** An OSD that complains alone takes nobody down but itself. Two OSDs that
//! accuse each other lose one of the two at most; an OSD that really hears the liar says nothing
//! against it, so that needs the liar to be deaf as well. OSDs that were kept out because of
//! another one count against that one the next time ([`Question::accused`]), so a liar goes second
//! at the latest.
//!
//! **Which one** ([`take`]). PGs are counted, by the map: how many go on without an OSD that stand
//! still with it (a write waits for all members, and for those that are being filled), less how
//! many stop that serve now (`min_size`). An OSD that does not win more than it loses is never
//! taken. Of the others the one that wins most goes; then the one with more complaints (it hears
//! fewer peers); then the one that leads fewer PGs; then the one with the higher number. This is
//! repeated until no pair is left that makes requests wait: of two hosts that do not hear each
//! other the OSDs of one go, of three OSDs that do not hear each other two go. `nodown` and
//! `mon_osd_min_up_ratio` are respected.
//!
//! **Kept out.** Every boot of an OSD says which OSDs that are up it does not hear. An OSD that was
//! up before in its process (so that it asked), or that was taken, is not let in while there is
//! one: it would be the same again. It is let in all the same if PGs stop without it, and not fewer
//! than would stand still with it; that is the same count as above, so an OSD that is let in so is
//! not taken again. The count knows places, not histories. So an OSD is also let in, for as long as
//! it takes until it is taken again, while PGs are `down` or `incomplete` for want of OSDs that are
//! down, and, less and less often, while objects are wanting ([`tries_after`]). A leader that is
//! new knows nothing of earlier decisions; what the boots say suffices.
//!
//! **A link that comes and goes.** An OSD that was taken several times must hear all for longer
//! before it is let in: 1, 2, 4, … 60 s ([`steady_for`]). That is forgotten after ten minutes
//! without trouble. It protects PGs that serve: where PGs stand still without the OSD, a second is
//! enough.

use crate::osd::seconds_between;
use spirula_encoding::UTime;
use spirula_maps::OsdMap;
use spirula_maps::osdmap::UpActing;
use spirula_messages::cluster::control::Outside;
use spirula_messages::cluster::quorum::PairTrouble;
use spirula_types::{Epoch, OSD_NONE, OsdId};
use std::collections::{BTreeMap, BTreeSet};

/// Seconds after which a complaint that was not repeated counts no more; it is repeated every two.
const FRESH: f64 = 6.5;
/// Seconds beyond the grace that third parties have to speak: as long as their heartbeats are
/// apart, and a little.
const OTHERS_SPEAK: f64 = 0.75;
/// Longest time for which an OSD must hear all before it comes back, seconds.
const STEADY_MAX: f64 = 60.0;
/// Seconds for which it must at least, where PGs stand still without it.
const SOON: f64 = 1.0;
/// Seconds without trouble after which earlier times are forgotten.
const FORGIVEN: f64 = 600.0;
/// Most pairs that are judged at once, and told of.
const PAIRS_MAX: usize = 4096;

/// One OSD's complaint about another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word {
    /// When the other last answered it.
    pub silent_since: UTime,
    /// When it said so last.
    pub said: UTime,
    /// Requests and PGs that wait for the other.
    pub waiting: u32,
    /// Of the PGs among them: those of which the other is no member.
    pub outside: Outside,
    /// Its port refuses connections; with that, whether its process is certainly gone.
    pub refused: Option<bool>,
    /// For how long the other had been silent when it said so, on one path at least, in seconds.
    pub silent: f64,
    /// It was silent on every path, for longer than is usual.
    pub mute: Option<Mute>,
}

/// Silence on every path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mute {
    /// For how long, when it was said, in seconds.
    pub silent: f64,
    /// How long is usual, seconds.
    pub usual: f64,
}

impl Word {
    /// It was said lately, and repeated if it is old.
    pub fn is_fresh(&self, now: UTime) -> bool {
        seconds_between(self.said, now) <= FRESH
    }
}

/// Complaints: about whom, from whom.
pub(crate) type Words = BTreeMap<OsdId, BTreeMap<OsdId, Word>>;

/// Two OSDs, the lower number first.
pub(crate) type Two = (OsdId, OsdId);

fn two(a: OsdId, b: OsdId) -> Two {
    (a.min(b), a.max(b))
}

/// Two OSDs of which at least one does not hear the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pair {
    /// Since when.
    pub since: UTime,
    /// Requests and PGs that wait because of it.
    pub waiting: u32,
    /// PGs that wait for the one, of which it is no member, by the word of the other: of the one
    /// with the lower number, of the other.
    pub outside: [Outside; 2],
    /// The only one that says so; none if both do.
    pub alone: Option<OsdId>,
}

impl Pair {
    /// Of the PGs that wait for somebody outside of their members: how many go on when `osd`, one
    /// of the two, is gone?
    fn freed(&self, key: Two, osd: OsdId, placed: &Placed) -> usize {
        let [of_first, of_second] = self.outside;
        let (led, others) =
            if osd == key.0 { (of_second, of_first) } else { (of_first, of_second) };
        let other = if osd == key.0 { key.1 } else { key.0 };
        let (mine, theirs) = (placed.led_by(osd), placed.led_by(other));
        mine.min(led.all as usize) + theirs.min(others.spare as usize)
    }
}

/// The pairs that have lasted long enough, by what is said of whom. `grace`: seconds of silence
/// that nobody minds; `enough`: so many miss this OSD that the rule for the silent decides about
/// it.
pub(crate) fn pairs(
    words: &Words,
    now: UTime,
    grace: f64,
    enough: impl Fn(OsdId) -> bool,
) -> BTreeMap<Two, Pair> {
    let fresh =
        |by: OsdId, of: OsdId| words.get(&of).and_then(|w| w.get(&by)).filter(|w| w.is_fresh(now));
    let mut out = BTreeMap::new();
    for (of, by) in words.iter().flat_map(|(of, by)| by.keys().map(|by| (*of, *by))) {
        let key = two(of, by);
        if out.len() >= PAIRS_MAX || out.contains_key(&key) || enough(of) || enough(by) {
            continue;
        }
        let Some(one) = fresh(by, of) else { continue };
        let other = fresh(of, by);
        let (since, patience) = match other {
            Some(other) => (one.silent_since.max(other.silent_since), grace + OTHERS_SPEAK),
            None => (one.silent_since, 2.0 * grace + OTHERS_SPEAK),
        };
        if seconds_between(since, now) >= patience {
            let waiting = one.waiting.saturating_add(other.map_or(0, |o| o.waiting));
            let (told, answer) = (one.outside, other.map_or(Outside::default(), |o| o.outside));
            let outside = if of == key.0 { [told, answer] } else { [answer, told] };
            out.insert(key, Pair { since, waiting, outside, alone: other.is_none().then_some(by) });
        }
    }
    out
}

/// Who serves a PG.
#[derive(Clone, Debug)]
struct Place {
    /// The leader first.
    members: Vec<OsdId>,
    /// Who is to be a member and is being filled: each write waits for it, too.
    filled: Vec<OsdId>,
    /// So many members it needs.
    needed: usize,
}

/// Who serves what.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placed {
    pgs: Vec<Place>,
    of: BTreeMap<OsdId, Vec<usize>>,
}

impl Placed {
    /// By a map.
    pub fn by(map: &OsdMap) -> Self {
        let mut out = Self::default();
        for (pg, m) in map.map_all().iter() {
            let needed = map.pool(pg.pool).map_or(1, |p| usize::from(p.min_size));
            out.add_pg(m, needed);
        }
        out
    }

    /// Adds a PG that is placed so.
    fn add_pg(&mut self, m: &UpActing, needed: usize) {
        let mut members: Vec<OsdId> = m.acting.iter().copied().filter(|o| *o != OSD_NONE).collect();
        if let Some(at) = members.iter().position(|o| *o == m.acting_primary)
            && let Some(head) = members.get_mut(..=at)
        {
            head.rotate_right(1);
        }
        let filled =
            m.up.iter().copied().filter(|o| *o != OSD_NONE && !members.contains(o)).collect();
        self.add(Place { members, filled, needed });
    }

    fn add(&mut self, place: Place) {
        for osd in place.members.iter().chain(&place.filled) {
            self.of.entry(*osd).or_default().push(self.pgs.len());
        }
        self.pgs.push(place);
    }

    fn of(&self, osd: OsdId) -> impl Iterator<Item = &Place> {
        self.of.get(&osd).into_iter().flatten().filter_map(|at| self.pgs.get(*at))
    }

    fn led_by(&self, osd: OsdId) -> usize {
        self.of(osd).filter(|p| p.members.first() == Some(&osd)).count()
    }

    /// Of the PGs of `osd`: how many go on without it that stand still with it, and how many stop
    /// that serve with it. `gone` are out already; the two of a pair in `apart` do not hear each
    /// other, and a PG whose leader does not hear a member, or one that is being filled, stands
    /// still.
    fn without(
        &self,
        osd: OsdId,
        gone: &BTreeSet<OsdId>,
        apart: impl Fn(OsdId, OsdId) -> bool,
    ) -> Harm {
        let serves = |p: &Place, less: Option<OsdId>| {
            let there = |o: &OsdId| !gone.contains(o) && Some(*o) != less;
            let mut members = p.members.iter().copied().filter(there);
            let Some(leader) = members.next() else { return false };
            if p.filled.iter().copied().filter(there).any(|o| apart(leader, o)) {
                return false;
            }
            let mut n = 1;
            for member in members {
                if apart(leader, member) {
                    return false;
                }
                n += 1;
            }
            n >= p.needed
        };
        let mut harm = Harm::default();
        for p in self.of(osd) {
            match (serves(p, None), serves(p, Some(osd))) {
                (false, true) => harm.go_on += 1,
                (true, false) => harm.stop += 1,
                _ => {}
            }
        }
        harm
    }
}

/// What the loss of an OSD does, in PGs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Harm {
    /// Stand still with it and go on without.
    pub go_on: usize,
    /// Serve with it and stop without.
    pub stop: usize,
}

/// What there is to decide.
pub(crate) struct Question<'a> {
    /// Who does not hear whom.
    pub pairs: &'a BTreeMap<Two, Pair>,
    /// Who serves what.
    pub placed: &'a Placed,
    /// So many others are kept out because of this OSD.
    pub accused: &'a dyn Fn(OsdId) -> usize,
    /// This OSD may be marked down, if so many were before.
    pub may: &'a dyn Fn(OsdId, usize) -> bool,
}

/// The OSDs to be marked down, and the pair for which each is, in order.
pub(crate) fn take(q: &Question<'_>) -> Vec<(OsdId, Two)> {
    let mut gone = BTreeSet::new();
    let mut out = Vec::new();
    loop {
        let left: Vec<(&Two, &Pair)> =
            q.pairs.iter().filter(|((a, b), _)| !gone.contains(a) && !gone.contains(b)).collect();
        let apart = |a, b| q.pairs.contains_key(&two(a, b));
        // Each with the pair that makes most wait.
        let mut candidates: BTreeMap<OsdId, (u32, Two)> = BTreeMap::new();
        let mut complaints: BTreeMap<OsdId, usize> = BTreeMap::new();
        for (key, pair) in &left {
            for osd in [key.0, key.1] {
                *complaints.entry(osd).or_default() += 1;
                if pair.waiting > 0
                    && pair.alone.is_none_or(|alone| alone == osd)
                    && (q.may)(osd, out.len())
                {
                    let c = candidates.entry(osd).or_insert((pair.waiting, **key));
                    *c = (*c).max((pair.waiting, **key));
                }
            }
        }
        let best = candidates
            .into_iter()
            .filter_map(|(osd, (_, key))| {
                let mut harm = q.placed.without(osd, &gone, apart);
                let of_it = left.iter().filter(|((a, b), _)| *a == osd || *b == osd);
                harm.go_on +=
                    of_it.map(|(key, pair)| pair.freed(**key, osd, q.placed)).sum::<usize>();
                let wins = harm.go_on.checked_sub(harm.stop).filter(|n| *n > 0)?;
                let against = complaints.get(&osd).copied().unwrap_or(0) + (q.accused)(osd);
                Some((wins, against, std::cmp::Reverse(q.placed.led_by(osd)), osd, key))
            })
            .max();
        let Some((.., osd, key)) = best else { return out };
        gone.insert(osd);
        out.push((osd, key));
    }
}

/// For how many seconds an OSD must hear all before it comes back, the `times`-th time.
fn steady_for(times: u32) -> f64 {
    tries_after(times).min(STEADY_MAX)
}

/// After how many seconds an OSD that does not hear all may bring the objects that are wanting,
/// when it was taken so often. Objects may be lost for good, and with each return PGs stand still
/// until it is taken again: in the end that is a fiftieth of the time.
fn tries_after(times: u32) -> f64 {
    if times == 0 { 0.0 } else { f64::from(1u32 << (times - 1).min(10)) }
}

/// An OSD that is, or was, kept out.
#[derive(Clone, Debug)]
struct Kept {
    /// Since when, this time.
    since: UTime,
    /// It is out. Else it has come back, and this is kept for the next time.
    out: bool,
    /// Whom it does not hear, as far as known.
    unheard: BTreeSet<OsdId>,
    /// Since when it hears all.
    hears_all: Option<UTime>,
    /// This time it was out because it did not hear some that are up, or was taken for that.
    deaf: bool,
    /// How often it was taken.
    times: u32,
    /// When it last came back.
    back: UTime,
    /// With which map, for which OSDs unheard, it was found that it must wait; or that it is
    /// needed.
    found: Option<(Epoch, BTreeSet<OsdId>, bool)>,
}

/// What the leader knows of pairs besides the map. Lost with its office.
#[derive(Debug, Default)]
pub(crate) struct PairTracker {
    kept: BTreeMap<OsdId, Kept>,
    /// The pairs for which nothing could be done, with which map.
    stuck: (Epoch, BTreeMap<Two, (bool, [Outside; 2])>),
    /// For health: of the leader, or as it told.
    pub shown: Vec<PairTrouble>,
}

/// What an OSD that wants in says of itself.
pub(crate) struct Wish<'a> {
    /// Who.
    pub osd: OsdId,
    /// It was up before, in this process.
    pub was_up: bool,
    /// OSDs that the map shows up and that it does not hear.
    pub unheard: BTreeSet<OsdId>,
    /// It hears enough of the others for it to make sense.
    pub healthy: bool,
    /// PGs say that they cannot begin without OSDs that are down.
    pub starved: bool,
    /// PGs say that objects are wanting.
    pub wanting: bool,
    /// The map now.
    pub map: &'a OsdMap,
}

impl PairTracker {
    /// This monitor leads from now on.
    pub fn new_leader(&mut self) {
        *self = Self::default();
    }

    /// It was taken for `pair`.
    pub fn taken(&mut self, osd: OsdId, pair: Two, now: UTime) {
        let other = if pair.0 == osd { pair.1 } else { pair.0 };
        let k = self.note(osd, now);
        k.times += 1;
        k.deaf = true;
        k.unheard = [other].into();
    }

    fn note(&mut self, osd: OsdId, now: UTime) -> &mut Kept {
        let fresh = || Kept {
            since: now,
            out: true,
            unheard: BTreeSet::new(),
            hears_all: None,
            deaf: false,
            times: 0,
            back: UTime::ZERO,
            found: None,
        };
        let k = self.kept.entry(osd).or_insert_with(fresh);
        if !k.out {
            let times = if seconds_between(k.back, now) > FORGIVEN { 0 } else { k.times };
            *k = Kept { times, ..fresh() };
        }
        k
    }

    /// How many others are kept out because they do not hear it.
    pub fn accused(&self, osd: OsdId) -> usize {
        self.kept.values().filter(|k| k.out && k.unheard.contains(&osd)).count()
    }

    /// It was out because it and others that are up did not hear each other, and has not come back
    /// since: it was no mistake to mark it down, whichever rule did.
    pub fn was_deaf(&self, osd: OsdId) -> bool {
        self.kept.get(&osd).is_some_and(|k| k.out && k.deaf)
    }

    /// May it come up?
    pub fn may_boot(&mut self, wish: Wish<'_>, now: UTime) -> bool {
        let Wish { osd, was_up, unheard, healthy, starved, wanting, map } = wish;
        let known = self.kept.get(&osd).is_some_and(|k| k.out);
        if !known && (!was_up || unheard.is_empty() && healthy) {
            return true;
        }
        let k = self.note(osd, now);
        k.unheard.clone_from(&unheard);
        k.deaf |= !unheard.is_empty();
        if !unheard.is_empty() || !healthy {
            k.hears_all = None;
            // Each time it is taken again it waits for longer, so that what is wrong here ends in
            // the end.
            let out_for = seconds_between(k.since, now);
            let brings = wanting && out_for >= tries_after(k.times);
            return healthy
                && (brings || out_for >= steady_for(k.times) && (starved || k.needed(osd, map)));
        }
        let steady = seconds_between(*k.hears_all.get_or_insert(now), now);
        // PGs that stand still for want of it are not held up by a link that may break again: that
        // it holds now is enough.
        let due = steady_for(k.times);
        steady >= due || steady >= due.min(SOON) && (starved || wanting || k.needed(osd, map))
    }

    /// It comes up.
    pub fn booted(&mut self, osd: OsdId, now: UTime) {
        if let Some(k) = self.kept.get_mut(&osd) {
            (k.out, k.back) = (false, now);
        }
        self.kept.retain(|_, k| k.out || seconds_between(k.back, now) <= FORGIVEN);
    }

    /// It exists no more.
    pub fn forget_removed(&mut self, map: &OsdMap) {
        self.kept.retain(|osd, _| map.exists(*osd));
    }

    /// Whom to mark down. Asked again, with the same map and pairs, it says nobody without counting
    /// anew.
    pub fn judge(
        &mut self,
        map: &OsdMap,
        pairs: &BTreeMap<Two, Pair>,
        may: &dyn Fn(OsdId, usize) -> bool,
    ) -> Vec<(OsdId, Two)> {
        if pairs.values().all(|p| p.waiting == 0) {
            return Vec::new();
        }
        let asked =
            (map.epoch, pairs.iter().map(|(two, p)| (*two, (p.waiting > 0, p.outside))).collect());
        if self.stuck == asked {
            return Vec::new();
        }
        let placed = Placed::by(map);
        let accused = |osd| self.accused(osd);
        let taken = take(&Question { pairs, placed: &placed, accused: &accused, may });
        if taken.is_empty() {
            self.stuck = asked;
        }
        taken
    }

    /// What health says: pairs that are up, and who is kept out because of whom. `here` says that
    /// an OSD is connected: what is known of one that went away is no news.
    pub fn show(
        &mut self,
        map: &OsdMap,
        pairs: &BTreeMap<Two, Pair>,
        here: impl Fn(OsdId) -> bool,
    ) {
        let mut shown: Vec<PairTrouble> = Vec::new();
        for ((a, b), p) in pairs {
            shown.push(PairTrouble {
                a: *a,
                b: *b,
                since: p.since,
                waiting: p.waiting,
                out: OSD_NONE,
            });
        }
        for (osd, k) in
            self.kept.iter().filter(|(osd, k)| k.out && map.is_down(**osd) && here(**osd))
        {
            let others = k.unheard.iter().filter(|o| map.is_up(**o));
            shown.extend(others.map(|o| PairTrouble {
                a: *osd,
                b: *o,
                since: k.since,
                waiting: 0,
                out: *osd,
            }));
        }
        shown.truncate(PAIRS_MAX);
        self.shown = shown;
    }
}

impl Kept {
    /// More PGs stop without it than would stand still with it.
    fn needed(&mut self, osd: OsdId, map: &OsdMap) -> bool {
        if let Some((epoch, unheard, needed)) = &self.found
            && (*epoch, unheard) == (map.epoch, &self.unheard)
        {
            return *needed;
        }
        let mut with = map.clone();
        if let Some(s) = crate::osd::slot(&mut with.osd_state, osd) {
            *s |= spirula_maps::osdmap::state::UP;
        }
        let apart = |a: OsdId, b: OsdId| {
            a == osd && self.unheard.contains(&b) || b == osd && self.unheard.contains(&a)
        };
        let harm = Placed::by(&with).without(osd, &BTreeSet::new(), apart);
        let needed = harm.stop > 0 && harm.go_on <= harm.stop;
        self.found = Some((map.epoch, self.unheard.clone(), needed));
        needed
    }
}

#[cfg(test)]
mod tests;
