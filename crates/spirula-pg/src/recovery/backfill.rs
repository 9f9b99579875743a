//! Backfill: filling a member whose log could not be brought up to date, in object order.
//!
//! Listings of both sides are compared piece by piece; what differs is sent, what the primary
//! lacks is deleted. Everything up to `started` is equal or on its way: writes go there in full.
//! Beyond it the member gets only log entries, and the comparison will find what changed. The
//! member records how far it is (`last_backfill`), so that a restart goes on from there.
//!
//! A listing that cannot be read, here or there, ends the try: its reservations go to others, and
//! the next tick tries again from where this one came to.

use crate::pg::{Cx, Pg, Role};
use crate::repeat::{Again, Repeat};
use spirula_messages::cluster::pg::CtlBody;
use spirula_types::{EVersion, HObject, Peer};
use std::collections::{BTreeMap, VecDeque};

/// One member's backfill.
#[derive(Debug)]
pub(crate) struct Backfill {
    /// All up to here are equal, or on their way.
    pub started: HObject,
    /// Ours from `started` to `mine_next`.
    mine: BTreeMap<HObject, EVersion>,
    mine_next: HObject,
    /// The member's from `started` to `theirs_next`.
    theirs: BTreeMap<HObject, EVersion>,
    theirs_next: HObject,
    asked: bool,
    /// On their way, in order: the object, the one before it, and whether it has arrived.
    under_way: VecDeque<(HObject, HObject, bool)>,
    told: HObject,
    untold: usize,
    finishing: bool,
    /// Listings asked for, and words of its progress: the last of each may be open.
    asks: u64,
    tellings: u64,
    scan_repeat: Repeat,
    told_repeat: Repeat,
}

impl Backfill {
    /// What is on its way.
    pub fn under_way(&self) -> impl Iterator<Item = &HObject> {
        self.under_way.iter().filter(|u| !u.2).map(|u| &u.0)
    }

    fn new(from: &HObject) -> Self {
        Self {
            started: from.clone(),
            mine: BTreeMap::new(),
            mine_next: from.clone(),
            theirs: BTreeMap::new(),
            theirs_next: from.clone(),
            asked: false,
            under_way: VecDeque::new(),
            told: from.clone(),
            untold: 0,
            finishing: false,
            asks: 0,
            tellings: 0,
            scan_repeat: Repeat::default(),
            told_repeat: Repeat::default(),
        }
    }

    pub fn note_written(&mut self, object: &HObject, version: Option<EVersion>) {
        if *object > self.started && *object < self.mine_next {
            match version {
                Some(v) => drop(self.mine.insert(object.clone(), v)),
                None => drop(self.mine.remove(object)),
            }
        }
    }

    pub fn is_under_way(&self, object: &HObject) -> bool {
        self.under_way().any(|o| o == object)
    }

    pub fn landed(&mut self, object: &HObject) {
        if let Some(u) = self.under_way.iter_mut().find(|(o, ..)| o == object) {
            u.2 = true;
            self.untold += 1;
        }
        while self.under_way.pop_front_if(|u| u.2).is_some() {}
    }

    /// All up to here is durable at the member.
    fn done(&self) -> &HObject {
        self.under_way.front().map_or(&self.started, |(_, before, _)| before)
    }

    /// The next object that both sides are known about, with both versions.
    fn next(&mut self) -> Option<(HObject, Option<EVersion>, Option<EVersion>)> {
        let bound = (&self.mine_next).min(&self.theirs_next);
        let a = self.mine.keys().next();
        let b = self.theirs.keys().next();
        let o = match (a, b) {
            (Some(a), Some(b)) => a.min(b),
            (a, b) => a.or(b)?,
        };
        if !bound.max && o >= bound {
            return None;
        }
        let o = o.clone();
        let (x, y) = (self.mine.remove(&o), self.theirs.remove(&o));
        Some((o, x, y))
    }

    /// Is nothing left but objects under way of this kind?
    pub fn is_filled_but(&self, kind: impl Fn(&HObject) -> bool) -> bool {
        self.exhausted()
            && !self.under_way.is_empty()
            && self.under_way.iter().all(|(o, _, landed)| *landed || kind(o))
    }

    fn exhausted(&self) -> bool {
        self.mine.is_empty() && self.theirs.is_empty() && self.mine_next.max && self.theirs_next.max
    }
}

/// What a step did.
enum Did {
    Something,
    Nothing,
}

impl Pg {
    pub(super) fn begin_backfills(&mut self) {
        let Role::Active(a) = &mut self.role else { return };
        for (osd, p) in a.peers.iter().filter(|(_, p)| !p.last_backfill.max) {
            a.recovery.backfills.entry(*osd).or_insert_with(|| Backfill::new(&p.last_backfill));
        }
    }

    /// Does one piece of work for some member; false if there is none to do now.
    pub(super) fn backfill_step(&mut self, cx: &mut Cx<'_>) -> Result<bool, crate::exec::Prefetch> {
        let Role::Active(a) = &mut self.role else { return Ok(false) };
        let members: Vec<Peer> = a.recovery.backfills.keys().copied().collect();
        for osd in members {
            if let Did::Something = self.backfill_member(osd, cx)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn backfill_member(
        &mut self,
        osd: Peer,
        cx: &mut Cx<'_>,
    ) -> Result<Did, crate::exec::Prefetch> {
        let max = self.core.cfg.scan_objects.max(1);
        let Some(b) = self.backfill_of(osd) else { return Ok(Did::Nothing) };
        if b.mine.is_empty() && !b.mine_next.max {
            let from = b.mine_next.clone();
            match self.list_versions(&from, max, cx.reader) {
                Ok((mut found, next)) => {
                    // What we lack is listed, too: in the version that it should have.
                    let lacked =
                        self.core.missing().from(&from).take_while(|(o, _)| next.max || **o < next);
                    found.extend(lacked.map(|(o, i)| (o.clone(), i.need)));
                    let Some(b) = self.backfill_of(osd) else { return Ok(Did::Nothing) };
                    // The last object handled may be where the listing begins.
                    b.mine = found.into_iter().filter(|(o, _)| *o > b.started).collect();
                    b.mine_next = next;
                }
                Err(crate::exec::ReadError::NotReady(what)) => return Err(what),
                Err(e) => {
                    tracing::error!(pg = %self.core.id, error = %e, "list objects for backfill");
                    self.backfill_later(cx);
                    return Ok(Did::Nothing);
                }
            }
            return Ok(Did::Something);
        }
        if b.theirs.is_empty() && !b.theirs_next.max {
            if !std::mem::replace(&mut b.asked, true) {
                let from = b.theirs_next.clone();
                b.asks += 1;
                self.core.send(osd, CtlBody::Scan { from, max: max as u32 }, cx);
                self.take_turn();
            }
            return Ok(Did::Nothing);
        }
        // Not while the object is on its way elsewhere: one recovery of an object at a time.
        let first =
            [b.mine.keys().next(), b.theirs.keys().next()].into_iter().flatten().min().cloned();
        let Role::Active(a) = &mut self.role else { return Ok(Did::Nothing) };
        // Nor while a relative is, with which it shares what is alike.
        if first.is_some_and(|o| a.recovery.ops.contains_key(&o) || a.recovery.family_busy(&o)) {
            return Ok(Did::Nothing);
        }
        let Some(b) = a.recovery.backfills.get_mut(&osd) else { return Ok(Did::Nothing) };
        let Some((object, mine, theirs)) = b.next() else {
            if b.exhausted() && !b.started.max {
                b.started = HObject::max();
                self.backfill_progress(cx);
            }
            return Ok(Did::Nothing);
        };
        let before = std::mem::replace(&mut b.started, object.clone());
        let same = mine == theirs && mine != Some(EVersion::default());
        let peer = a.peers.get_mut(&osd);
        if let (Some(p), true) = (peer, mine.is_some()) {
            p.copied += 1;
        }
        if same {
            b.untold += 1;
        } else if self.core.missing().contains(&object) {
            // It goes there when it is here, see `on_pull_durable`; the backfill is not done
            // before.
            b.under_way.push_back((object.clone(), before, false));
            a.recovery.demand(&object);
        } else {
            b.under_way.push_back((object.clone(), before, false));
            self.take_turn();
            match mine {
                Some(version) if self.core.is_erasure() => {
                    self.rebuild_object(&object, vec![osd], version)
                }
                mine => self.push_object(&object, vec![osd], mine.is_none()),
            }
        }
        Ok(Did::Something)
    }

    fn take_turn(&mut self) {
        if let Role::Active(a) = &mut self.role {
            a.recovery.turns = a.recovery.turns.saturating_sub(1);
        }
    }

    fn backfill_of(&mut self, osd: Peer) -> Option<&mut Backfill> {
        match &mut self.role {
            Role::Active(a) => a.recovery.backfills.get_mut(&osd),
            _ => None,
        }
    }

    pub(crate) fn on_scanned(
        &mut self,
        from: Peer,
        start: &HObject,
        objects: Vec<(HObject, EVersion)>,
        next: HObject,
        cx: &mut Cx<'_>,
    ) {
        let Some(b) = self.backfill_of(from) else { return };
        if *start == b.theirs_next && std::mem::take(&mut b.asked) {
            b.theirs = objects.into_iter().filter(|(o, _)| *o > b.started).collect();
            b.theirs_next = next;
            self.pump(cx);
        }
    }

    /// A member cannot list what it has.
    pub(crate) fn on_scan_failed(&mut self, from: Peer, start: &HObject, cx: &mut Cx<'_>) {
        let Some(b) = self.backfill_of(from).filter(|b| b.asked && b.theirs_next == *start) else {
            return;
        };
        b.asked = false;
        tracing::warn!(pg = %self.core.id, %from, "a member cannot list its objects: the backfill \
            waits");
        self.backfill_later(cx);
    }

    /// Tells members how far they are.
    pub(super) fn backfill_progress(&mut self, cx: &mut Cx<'_>) {
        let tell_every = (self.core.cfg.scan_objects / 4).max(1);
        let Role::Active(a) = &mut self.role else { return };
        let mut tell = Vec::new();
        for (osd, b) in &mut a.recovery.backfills {
            let done = b.done().clone();
            if done > b.told && !b.finishing && (done.max || b.untold >= tell_every) {
                b.told = done.clone();
                b.tellings += 1;
                b.untold = 0;
                b.finishing = done.max;
                tell.push((*osd, done));
            }
        }
        for (osd, last_backfill) in tell {
            self.tell_progress(osd, last_backfill, cx);
        }
    }

    fn tell_progress(&self, to: Peer, last_backfill: HObject, cx: &mut Cx<'_>) {
        let follows = self.core.info().map(|i| i.last_update()).unwrap_or_default();
        self.core.send(to, CtlBody::Progress { last_backfill, follows }, cx);
    }

    /// Asks and tells again what was not answered.
    pub(super) fn repeat_backfills(&mut self, again: Again, cx: &mut Cx<'_>) {
        let max = self.core.cfg.scan_objects.max(1) as u32;
        let Role::Active(a) = &mut self.role else {
            return invariant!(self.core, "a backfill is repeated without an active primary");
        };
        let (mut scans, mut tell) = (Vec::new(), Vec::new());
        for (osd, b) in &mut a.recovery.backfills {
            for to in again.whom(&mut b.scan_repeat, b.asks, b.asked.then_some(*osd)) {
                scans.push((to, CtlBody::Scan { from: b.theirs_next.clone(), max }));
            }
            let open = a.peers.get(osd).is_some_and(|p| p.last_backfill < b.told).then_some(*osd);
            for to in again.whom(&mut b.told_repeat, b.tellings, open) {
                tell.push((to, b.told.clone()));
            }
        }
        scans.into_iter().for_each(|(to, body)| self.core.send(to, body, cx));
        tell.into_iter().for_each(|(to, at)| self.tell_progress(to, at, cx));
    }

    pub(crate) fn on_progress_ack(&mut self, from: Peer, last_backfill: &HObject, cx: &mut Cx<'_>) {
        let Role::Active(a) = &mut self.role else { return };
        let Some(p) = a.peers.get_mut(&from).filter(|p| p.last_backfill < *last_backfill) else {
            return;
        };
        if a.activating.contains(&from) {
            return; // Of an activation that is over.
        }
        p.last_backfill = last_backfill.clone();
        if last_backfill.max {
            a.recovery.backfills.remove(&from);
            self.begin_recovery(cx);
        }
    }
}
