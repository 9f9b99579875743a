//! Scrub: the primary compares all members' copies of every object, a few objects at a time.
//!
//! Only a clean PG is scrubbed. For each chunk: writes to its objects wait, those under way are
//! awaited, then every member makes a map of what it holds of the chunk's range; a deep scrub
//! reads data and omap past every cache. Since a member's messages arrive in order, all maps
//! show the same moment. `compare` says which copies are good; writes go on; between chunks the
//! PG rests as long as the chunk took.
//!
//! A chunk is as small for an object with thousands of clones: it may end between two of them. What
//! was found of the clones before is kept until the head has come, whose history is compared with
//! all of them at once. In the meantime writes make newer clones, which stand behind what was
//! looked at, and trims take clones away, which are forgotten ([`Scrub::trimmed`]).
//!
//! Reading a chunk may take long. Writes wait for it for 30 s at most; then they go on, and it is
//! tried again in smaller pieces, at last without reading what cannot be read meanwhile: the log
//! says how many objects these were.
//!
//! The objects are counted, too (`tally`). Counts of the PG that differ are an error that a repair
//! corrects; those that were only estimated, by a split, are corrected at once, and so is what only
//! reading shows (keys and bytes of omaps): as in Ceph.
//!
//! What was found is kept until the next scrub, or until the bad copies are replaced: by a
//! repair (the bad copies count as missing, recovery does the rest), or because a client's
//! request met one.

mod compare;
mod list;
mod snaps;
mod tally;

use crate::api::{LargeOmap, LogLevel, PgEffect};
use crate::core::{Cx, PgCore};
use crate::exec::{Outcome, StatDelta};
use crate::lead::Lead;
use crate::pg::Pg;
use crate::requests::Requests;
use crate::role::Role;
use crate::shard::{object_of_store, store_object};
use crate::write::Inflight;
use compare::{Finding, compare, compare_shards, shard};
use snaps::SnapFinding;
use spirula_encoding::UTime;
use spirula_maps::PgState;
use spirula_messages::ceph::op::OsdOp;
use spirula_messages::cluster::pg::CtlBody;
use spirula_messages::cluster::scrub::{ScrubMap, ScrubObject};
use spirula_types::{Epoch, HObject, OsdId, Peer};
use std::collections::{BTreeMap, BTreeSet};
use tally::Tally;

/// Objects kept of what a scrub found; more are counted only.
const FOUND_MAX: usize = 10_000;

/// Where a chunk from `from` on ends whose last name is `last`, before the name `next`: an object
/// is in it with all its clones or not at all, if others are in it; else it ends behind its last
/// clone, so that a newer one is in the next chunk.
fn chunk_end(from: &HObject, last: &HObject, next: &HObject) -> HObject {
    let begin = next.family_start();
    if begin > *from { begin } else { HObject { snap: last.snap + 1, ..last.clone() } }
}

/// What a primary remembers of scrubs, and the one that runs.
#[derive(Debug, Default)]
pub(crate) struct Scrub {
    run: Option<Run>,
    /// What the last one found; `None` before the first of this primary.
    found: Option<BTreeMap<HObject, Finding>>,
    /// What it found of histories and clones.
    snaps: BTreeMap<HObject, SnapFinding>,
}

#[derive(Debug)]
enum Phase {
    /// Rests until then.
    Rest(u64),
    /// Waits for the shell's turn.
    Turn,
    /// Waits for writes under way.
    Drain,
    /// Waits for maps.
    Maps,
}

/// How long a chunk's maps may take while writes to it wait, or if nothing is read for them.
const MAPS_MS: u64 = 30_000;
/// How long they may take at all.
const LOST_MS: u64 = 600_000;

/// A scrub.
#[derive(Debug)]
struct Run {
    deep: bool,
    repair: bool,
    /// Of more than this an omap is reported, and how many are.
    large: LargeOmap,
    large_omaps: u32,
    phase: Phase,
    /// The chunk.
    from: HObject,
    to: HObject,
    chunk_began: u64,
    /// Objects of the chunk, and how many it may have.
    objects: usize,
    most: usize,
    /// The chunk is not read, since that takes too long; and the objects of which that was so.
    unread: bool,
    all_unread: usize,
    /// When the maps were asked for.
    asked: u64,
    seq: u64,
    waiting: BTreeSet<Peer>,
    maps: BTreeMap<Peer, ScrubMap>,
    found: BTreeMap<HObject, Finding>,
    snaps: BTreeMap<HObject, SnapFinding>,
    tally: Tally,
    /// Clones that were looked at of the object within which the next chunk begins, ascending, as
    /// [`snaps::judge`] wants them.
    clones: Vec<(HObject, Option<ScrubObject>)>,
    /// Errors found and not repaired.
    shallow: u32,
    deep_errors: u32,
    /// All errors found, and those of them whose repair has begun.
    errors: u32,
    fixed: u32,
}

impl Run {
    /// Requests that waited for the chunk go on.
    fn release(&self, requests: &mut Requests) {
        requests.resume(|o| *o >= self.from && o.family_start() < self.to);
    }

    /// Is this object in the chunk whose maps are made, or can a write of it make or remove a clone
    /// there?
    fn covers(&self, object: &HObject) -> bool {
        let rests = matches!(self.phase, Phase::Rest(_) | Phase::Turn);
        !rests && *object >= self.from && object.family_start() < self.to
    }
}

impl Scrub {
    /// The answer to a vector that lists what the newest scrub found, in this interval, by its
    /// primary `me`; `None` to any other vector.
    pub(crate) fn inconsistencies(&self, ops: &[OsdOp], since: Epoch, me: Peer) -> Option<Outcome> {
        list::answer(ops, since, me, self.found.as_ref(), &self.snaps)
    }

    /// What is looked at may not be any more: a scrub under way ends.
    pub fn abort(&mut self, requests: &mut Requests, cx: &mut Cx<'_>) {
        if let Some(r) = self.run.take() {
            cx.out.push(PgEffect::ScrubEnded { done: false, unread: false });
            r.release(requests);
        }
    }

    /// A write changes an object.
    pub fn wrote(&mut self, object: &HObject, d: &StatDelta) {
        if let Some(r) = &mut self.run {
            let counted_to =
                if matches!(r.phase, Phase::Rest(_) | Phase::Turn) { &r.to } else { &r.from };
            if object < counted_to {
                r.tally.wrote(d);
            }
        }
    }

    /// A clone comes. It stands behind what was looked at, unless its object went with all its
    /// clones since, and came again under an old context: then it is there, and nobody has judged
    /// it.
    pub fn cloned(&mut self, clone: &HObject) {
        if let Some(r) = &mut self.run
            && *clone < r.to
            && clone.is_of_same_object(&r.to)
            && let Err(i) = r.clones.binary_search_by(|(o, _)| o.cmp(clone))
        {
            r.clones.insert(i, (clone.clone(), None));
        }
    }

    /// A clone goes: it is not in its head's history any more when the scrub comes to that.
    pub fn trimmed(&mut self, clone: &HObject) {
        if let Some(r) = &mut self.run
            && let Ok(i) = r.clones.binary_search_by(|(o, _)| o.cmp(clone))
        {
            r.clones.remove(i);
        }
    }

    /// Must a write to this object wait?
    pub fn blocks(&self, object: &HObject) -> bool {
        self.run.as_ref().is_some_and(|r| r.covers(object))
    }

    /// Does the next chunk wait for the shell's turn?
    pub fn wants_turn(&self) -> bool {
        self.run.as_ref().is_some_and(|r| matches!(r.phase, Phase::Turn))
    }

    /// Is one under way?
    pub fn is_running(&self) -> bool {
        self.run.is_some()
    }

    pub fn state(&self) -> PgState {
        let Some(r) = &self.run else { return PgState::UNKNOWN };
        let deep = if r.deep { PgState::DEEP_SCRUB } else { PgState::UNKNOWN };
        let repair = if r.repair { PgState::REPAIR } else { PgState::UNKNOWN };
        PgState::SCRUBBING | deep | repair
    }
}

fn name(deep: bool, repair: bool) -> &'static str {
    match (deep, repair) {
        (_, true) => "repair",
        (true, false) => "deep-scrub",
        (false, false) => "scrub",
    }
}

impl Pg {
    /// When the last scrub, and the last deep one, was; zero for never. `None` unless this OSD
    /// leads the PG and it is clean.
    pub fn scrub_stamps(&self) -> Option<(UTime, UTime)> {
        let clean = self.primary().is_some_and(|p| p.clean);
        self.core.info().filter(|_| clean).map(|i| (i.scrub.last_stamp, i.scrub.last_deep_stamp))
    }

    /// Our own map is made.
    pub(crate) fn on_scrub_mapped(&mut self, seq: u64, map: Option<ScrubMap>, cx: &mut Cx<'_>) {
        let named =
            |m: ScrubMap| ScrubMap(m.0.into_iter().map(|(o, c)| (object_of_store(o), c)).collect());
        let map = if self.core.me.shard >= 0 { map.map(named) } else { map };
        match &self.role {
            Role::Replica(r) => self.core.send(r.primary(), CtlBody::Scrubbed { seq, map }, cx),
            Role::Primary(_) => {
                let me = self.core.me;
                if let Some(mut lead) = self.lead() {
                    lead.on_scrubbed(me, seq, map, cx);
                }
            }
            _ => {}
        }
    }
}

impl Lead<'_> {
    /// Starts a scrub, if the PG is clean; else says at once that it has ended.
    pub(crate) fn on_scrub(&mut self, deep: bool, repair: bool, large: LargeOmap, cx: &mut Cx<'_>) {
        let clean = self.primary.clean && self.primary.serving;
        if !clean || self.primary.scrub.run.is_some() {
            cx.out.push(PgEffect::ScrubEnded { done: false, unread: false });
            return;
        }
        let (from, _) = self.core.span();
        self.primary.scrub.run = Some(Run {
            deep,
            repair,
            large,
            large_omaps: 0,
            phase: Phase::Turn,
            to: from.clone(),
            from,
            chunk_began: cx.now.mono_ms,
            objects: 0,
            most: usize::MAX,
            unread: false,
            all_unread: 0,
            asked: 0,
            seq: 0,
            waiting: BTreeSet::new(),
            maps: BTreeMap::new(),
            found: BTreeMap::new(),
            snaps: BTreeMap::new(),
            tally: Tally::default(),
            clones: Vec::new(),
            shallow: 0,
            deep_errors: 0,
            errors: 0,
            fixed: 0,
        });
        cx.out.extend([PgEffect::StateChanged, PgEffect::WantTurn]);
    }

    /// The PG is no longer what a scrub may look at.
    pub(crate) fn abort_scrub(&mut self, cx: &mut Cx<'_>) {
        self.primary.scrub.abort(self.requests, cx);
    }

    /// The link to an OSD was renewed: what it was asked for, or has said, may be lost. The shell
    /// tries again later.
    pub(crate) fn abort_scrub_with(&mut self, osd: OsdId, cx: &mut Cx<'_>) {
        if self.primary.scrub.run.as_ref().is_some_and(|r| r.waiting.iter().any(|p| p.osd == osd)) {
            self.abort_scrub(cx);
            cx.out.push(PgEffect::StateChanged);
        }
    }

    /// The next objects: writes to them wait from now on.
    pub(crate) fn begin_chunk(&mut self, cx: &mut Cx<'_>) {
        let (_, end) = self.core.span();
        let Some(r) = &self.primary.scrub.run else { return };
        let max =
            if r.deep { self.core.cfg.scrub_chunk.div_ceil(4) } else { self.core.cfg.scrub_chunk }
                .max(1)
                .min(r.most);
        let from = r.to.clone();
        let (to, objects) = match cx.reader.list(&from, &end, max + 1) {
            Ok(found) if found.len() > max => {
                let bound =
                    found.last_chunk().map_or(end, |[last, next]| chunk_end(&from, last, next));
                (bound, max)
            }
            Ok(found) => (end, found.len()),
            Err(e) => {
                tracing::error!(pg = %self.core.id, error = %e, "list objects for scrub");
                return self.abort_scrub(cx);
            }
        };
        let seq = self.core.seq();
        let Some(r) = &mut self.primary.scrub.run else { return };
        (r.from, r.to, r.seq, r.phase, r.chunk_began) =
            (from, to, seq, Phase::Drain, cx.now.mono_ms);
        r.objects = objects;
        self.scrub_drained(cx);
    }

    /// Asks for the maps once no write to the chunk is under way.
    pub(crate) fn scrub_drained(&mut self, cx: &mut Cx<'_>) {
        let a = &mut *self.primary;
        let Some(r) = &mut a.scrub.run else { return };
        let busy = a.inflight.iter().flat_map(Inflight::objects).any(|o| r.covers(o))
            && !planted!(self.core.cfg, ScrubBesideWrites);
        if !matches!(r.phase, Phase::Drain) || busy {
            return;
        }
        (r.phase, r.asked) = (Phase::Maps, cx.now.mono_ms);
        cx.out.push(PgEffect::WakeAt(r.asked + MAPS_MS));
        r.maps.clear();
        r.waiting = a.peers.keys().copied().chain([self.core.me]).collect();
        let (seq, from, to, deep) = (
            r.seq,
            r.from.clone(),
            r.to.clone(),
            r.deep && !r.unread && !planted!(self.core.cfg, ScrubShallow),
        );
        let members: Vec<Peer> = a.peers.keys().copied().collect();
        for m in members {
            self.core.send(
                m,
                CtlBody::ScrubScan { seq, from: from.clone(), to: to.clone(), deep },
                cx,
            );
        }
        scan(self.core, seq, &from, to, deep, cx);
    }

    /// A member's map of the chunk.
    pub(crate) fn on_scrubbed(
        &mut self,
        from: Peer,
        seq: u64,
        map: Option<ScrubMap>,
        cx: &mut Cx<'_>,
    ) {
        let Some(r) = &mut self.primary.scrub.run else { return };
        if r.seq != seq || !matches!(r.phase, Phase::Maps) || !r.waiting.remove(&from) {
            return;
        }
        let Some(map) = map else { return self.abort_scrub(cx) };
        r.maps.insert(from, map);
        if !r.waiting.is_empty() {
            return;
        }
        let mut objects: BTreeMap<HObject, BTreeMap<Peer, Option<ScrubObject>>> = BTreeMap::new();
        let members: Vec<Peer> = r.maps.keys().copied().collect();
        for (osd, map) in std::mem::take(&mut r.maps) {
            for (o, copy) in map.0 {
                if o >= r.from && o < r.to {
                    let of = objects
                        .entry(o)
                        .or_insert_with(|| members.iter().map(|m| (*m, None)).collect());
                    of.insert(osd, Some(copy));
                }
            }
        }
        let shape = self.core.view.as_ref().and_then(|v| v.pool.as_ref()).and_then(|p| p.shape);
        let mut lines = Vec::new();
        let mut bad = Vec::new();
        let known = r.clones.len();
        let mut whole = std::mem::take(&mut r.clones);
        for (o, copies) in objects {
            let found = match &shape {
                Some(shape) => compare_shards(&copies, shape, self.core.me),
                None => compare(&copies, self.core.me),
            };
            #[cfg(feature = "plant-bugs")]
            let found = match planted!(self.core.cfg, RepairTrustsPrimary) {
                true => found.map(|f| f.blaming_all_but(self.core.me)),
                false => found,
            };
            r.tally.add(&o, &copies, found.as_ref());
            let good = snaps::good(&copies, found.as_ref());
            if let Some(copy) =
                good.filter(|c| c.omap_keys > r.large.keys || c.omap_bytes > r.large.bytes)
            {
                r.large_omaps += 1;
                // Word for word as health tells people to look for it.
                let text = format!(
                    "Large omap object found. Object: {o} PG: {}.{:x} ({}) Key count: {} Size \
                        (bytes): {}",
                    o.pool, o.hash, self.core.id, copy.omap_keys, copy.omap_bytes
                );
                cx.out.push(PgEffect::Log { level: LogLevel::Warning, text });
            }
            whole.push((o.clone(), good.cloned()));
            let Some(f) = found else { continue };
            let (shallow, deep) = f.count();
            r.shallow += shallow;
            r.deep_errors += deep;
            r.errors += shallow + deep;
            if r.repair && f.good.is_some() {
                r.fixed += shallow + deep;
                bad.push((o.clone(), f.clone()));
            }
            for (osd, s) in f.shards.iter().filter(|(_, s)| s.bad) {
                lines.push(format!("{} shard {osd} soid {o} : {}", self.core.id, what(s.errors)));
            }
            if f.good.is_none() {
                lines.push(format!(
                    "{} soid {o} : failed to pick suitable auth object",
                    self.core.id
                ));
            }
            if r.found.len() < FOUND_MAX {
                r.found.insert(o, f);
            }
        }
        let cut = whole.iter().position(|(o, _)| o.is_of_same_object(&r.to)).unwrap_or(whole.len());
        // As many as an object may have clones: those that are kept already are not looked at
        // again.
        let known = if cut == 0 { known } else { 0 };
        r.clones = if cut == 0 { std::mem::take(&mut whole) } else { whole.split_off(cut) };
        r.clones
            .iter_mut()
            .skip(known)
            .filter_map(|(_, copy)| copy.as_mut())
            .for_each(snaps::keep_info);
        for (o, f) in snaps::judge(&whole) {
            r.shallow += f.count();
            r.errors += f.count();
            lines.push(format!("{} soid {o} : {}", self.core.id, f.words()));
            if r.snaps.len() < FOUND_MAX {
                r.snaps.insert(o, f);
            }
        }
        // While writes still wait, so that the good copy's version is the newest.
        self.repair_found(&bad, cx);
        let Some(mut r) = self.primary.scrub.run.take() else { return };
        r.release(self.requests);
        // What follows what could not be read is as slow, likely.
        if std::mem::take(&mut r.unread) {
            r.all_unread += r.objects;
        } else {
            r.most = r.most.saturating_mul(2);
        }
        lines
            .into_iter()
            .for_each(|text| cx.out.push(PgEffect::Log { level: LogLevel::Error, text }));
        let (_, end) = self.core.span();
        if r.to >= end {
            return self.finish_scrub(r, cx);
        }
        let rest = cx.now.mono_ms + cx.now.mono_ms.saturating_sub(r.chunk_began).clamp(5, 1000);
        r.phase = Phase::Rest(rest);
        self.primary.scrub.run = Some(r);
        cx.out.push(PgEffect::WakeAt(rest));
    }

    /// Time passed.
    pub(crate) fn scrub_tick(&mut self, cx: &mut Cx<'_>) {
        if let Some(r) = &self.primary.scrub.run
            && matches!(r.phase, Phase::Maps)
            && cx.now.mono_ms >= r.asked + MAPS_MS
        {
            if r.deep && !r.unread && cx.now.mono_ms < r.asked + LOST_MS {
                if self.requests.waits(|o| r.covers(o)) {
                    self.shrink_chunk(cx);
                } else {
                    cx.out.push(PgEffect::WakeAt(cx.now.mono_ms + 1000));
                }
                return;
            }
            // Lost with a connection that broke, say: writes must not wait for ever. The shell
            // tries again later.
            let silent: Vec<String> = r.waiting.iter().map(ToString::to_string).collect();
            tracing::warn!(pg = %self.core.id, silent = silent.join(","), "a scrub is given up: no \
                map came");
            self.abort_scrub(cx);
            cx.out.push(PgEffect::StateChanged);
            return;
        }
        if let Some(r) = &mut self.primary.scrub.run
            && let Phase::Rest(until) = r.phase
            && cx.now.mono_ms >= until
        {
            r.phase = Phase::Turn;
            cx.out.push(PgEffect::WantTurn);
        }
    }

    /// Reading the chunk takes too long for the writes that wait: it is tried again in smaller
    /// pieces.
    fn shrink_chunk(&mut self, cx: &mut Cx<'_>) {
        let Some(mut r) = self.primary.scrub.run.take() else {
            return invariant!(self.core, "a chunk of no scrub is made smaller");
        };
        r.release(self.requests);
        tracing::info!(pg = %self.core.id, objects = r.objects, "a chunk of a scrub takes long and \
            is tried again, smaller");
        r.unread = r.objects <= 1;
        r.most = (r.objects / 2).max(1);
        r.waiting.clear();
        r.maps.clear();
        r.to.clone_from(&r.from);
        r.phase = Phase::Turn;
        self.primary.scrub.run = Some(r);
        cx.out.push(PgEffect::WantTurn);
    }

    /// All chunks are done.
    fn finish_scrub(&mut self, mut r: Run, cx: &mut Cx<'_>) {
        let Some(info) = self.core.info() else { return };
        let (mut counts, mut history, at) = (info.head.counts, info.scrub, info.last_update());
        if counts.estimated {
            r.tally.correct(&mut counts);
        }
        if r.deep {
            r.tally.correct_omaps(&mut counts);
        }
        if let Some(text) = r.tally.mismatch(&counts) {
            let text = format!("{} {} : {text}", self.core.id, name(r.deep, r.repair));
            cx.out.push(PgEffect::Log { level: LogLevel::Error, text });
            r.errors += 1;
            if r.repair {
                r.tally.correct(&mut counts);
                r.fixed += 1;
            } else {
                r.shallow += 1;
            }
        }
        let h = &mut history;
        (h.last, h.last_stamp) = (at, cx.now.wall);
        h.shallow_errors = r.shallow;
        if r.deep {
            h.deep_errors = r.deep_errors;
            // What was not read may be large still.
            h.large_omaps =
                if r.all_unread == 0 { r.large_omaps } else { h.large_omaps.max(r.large_omaps) };
        }
        // What was not read may have rotted for as long as since the last time.
        if r.deep && r.all_unread == 0 {
            (h.last_deep, h.last_deep_stamp) = (at, cx.now.wall);
        }
        if h.shallow_errors + h.deep_errors == 0 {
            h.last_clean_stamp = cx.now.wall;
        }
        let errors = r.errors;
        let kind = name(r.deep, r.repair);
        let log = |error: bool, text: String| {
            let level = if error { LogLevel::Error } else { LogLevel::Info };
            PgEffect::Log { level, text }
        };
        if r.all_unread > 0 {
            let text = format!(
                "{} {kind}: {} objects were not read, it took too long",
                self.core.id, r.all_unread
            );
            cx.out.push(log(false, text));
        }
        if errors == 0 {
            cx.out.push(log(false, format!("{} {kind} ok", self.core.id)));
        } else {
            let missing = r
                .found
                .values()
                .filter(|f| f.shards.values().any(|s| s.errors & shard::MISSING != 0))
                .count();
            let others = r.found.len() - missing;
            let id = self.core.id;
            if !r.found.is_empty() {
                cx.out.push(log(
                    true,
                    format!("{id} {kind} {missing} missing, {others} inconsistent objects"),
                ));
            }
            let fixes = if r.repair { format!(", {} fixed", r.fixed) } else { String::new() };
            cx.out.push(log(true, format!("{id} {kind} {errors} errors{fixes}")));
        }
        // What only a deep scrub can see stays known until the next deep one.
        let mut found = r.found;
        if !r.deep
            && let Some(old) = self.primary.scrub.found.take()
        {
            for (o, f) in old.into_iter().filter(|(_, f)| f.count().1 > 0) {
                found.entry(o).or_insert(f);
            }
        }
        self.primary.scrub.found = Some(found);
        self.primary.scrub.snaps = r.snaps;
        let change = self.core.copy.scrubbed(counts, history);
        self.save_scrub(change, cx);
        cx.out.push(PgEffect::ScrubEnded { done: true, unread: r.all_unread > 0 });
    }

    /// Every bad copy of these objects counts as missing from now on; recovery replaces it.
    fn repair_found(&mut self, found: &[(HObject, Finding)], cx: &mut Cx<'_>) {
        for (o, f) in found {
            let version = f.info.version;
            for osd in f.shards.iter().filter(|(_, s)| s.bad).map(|(osd, _)| *osd) {
                if osd == self.core.me {
                    self.requests.forget_object(o);
                    self.repairs.mark_unreadable(self.core, o.clone(), version, cx);
                } else if self.peer_is_rotten(osd, o.clone(), version, None) {
                    self.core.send(
                        osd,
                        CtlBody::Rotten { object: o.clone(), version, offset: None },
                        cx,
                    );
                }
            }
        }
        if !found.is_empty() {
            self.primary.clean = false;
            self.tell_merge(false, cx);
            self.begin_recovery(cx);
        }
    }

    /// A copy was replaced: what was found of it is no longer so. Had the last scrub found it bad,
    /// and that by reading?
    pub(crate) fn scrub_repaired(&mut self, object: &HObject, osd: Peer) -> Option<bool> {
        if let Some(r) = &mut self.primary.scrub.run
            && let Some(deep) = healed(&mut r.found, object, osd)
        {
            let count = if deep { &mut r.deep_errors } else { &mut r.shallow };
            *count = count.saturating_sub(1);
        }
        healed(self.primary.scrub.found.as_mut()?, object, osd)
    }
}

/// Has the shell make our map, of the names that the objects have in the store.
pub(crate) fn scan(
    core: &PgCore,
    seq: u64,
    from: &HObject,
    to: HObject,
    deep: bool,
    cx: &mut Cx<'_>,
) {
    let from = store_object(from, core.me.shard);
    let to = if to.max && core.me.shard >= 0 {
        HObject::pool_start(from.pool.saturating_add(1), 0)
    } else {
        store_object(&to, core.me.shard)
    };
    cx.out.push(PgEffect::ScrubScan { seq, from, to, deep });
}

/// Takes a copy out of what was found bad: whether it was found by reading.
fn healed(found: &mut BTreeMap<HObject, Finding>, object: &HObject, osd: Peer) -> Option<bool> {
    let f = found.get_mut(object)?;
    let s = f.shards.get_mut(&osd).filter(|s| s.bad)?;
    (s.bad, s.errors) = (false, 0);
    let deep = s.deep;
    if f.count() == (0, 0) {
        found.remove(object);
    }
    Some(deep)
}

/// What is wrong with a copy, in words.
fn what(errors: u64) -> &'static str {
    match errors {
        e if e & shard::MISSING != 0 => "missing",
        e if e & shard::READ_ERROR != 0 => "candidate had a read error",
        e if e & shard::INFO_MISSING != 0 => "candidate had a missing info key",
        e if e & shard::INFO_CORRUPTED != 0 => "candidate had a corrupt info",
        e if e & (shard::OBJ_SIZE_INFO_MISMATCH | shard::SIZE_MISMATCH_INFO) != 0 => {
            "candidate size mismatch"
        }
        e if e & (shard::SNAPSET_MISSING | shard::SNAPSET_CORRUPTED) != 0 => {
            "candidate had a bad snapset"
        }
        _ => "differs from the other copies",
    }
}
