//! Backfill: filling a member whose log could not be brought up to date, in object order.
//!
//! Listings of both sides are compared piece by piece; what differs is sent, what the primary
//! lacks is deleted. Everything up to [`Backfill::started`] is equal or on its way: writes go there
//! in full. Beyond it the member gets only log entries, and the comparison will find what changed.
//! The member records how far it is (`last_backfill`), so that a restart goes on from there.
//!
//! [`Backfill`] decides, and does nothing: what it has to know it is told, and what it wants it
//! answers ([`Next`]). So it is tested with two maps of objects and nothing else
//! (`backfill/tests.rs`); a primary carries it out in `filling`.

#[cfg(test)]
mod tests;

use crate::again::{Again, Repeat};
use spirula_types::{EVersion, HObject, Peer};
use std::collections::{BTreeMap, VecDeque};

/// One member's backfill.
#[derive(Debug)]
pub(super) struct Backfill {
    /// See [`Backfill::started`].
    started: HObject,
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

/// What a backfill needs next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Our own objects from here on: [`Backfill::listed_here`].
    ListHere(HObject),
    /// The member's objects from here on: [`Backfill::listed_there`], or
    /// [`Backfill::not_listed`].
    ListThere(HObject),
    /// This object is the next; `ours`: it is one of ours.
    Object { object: HObject, ours: bool, act: Act },
    /// All is compared, and all that differs is on its way.
    Compared,
    /// Nothing, until something arrives.
    Wait,
}

/// What becomes of an object.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// It is the same at both.
    Keep,
    /// It is sent in this version: [`Backfill::landed`].
    Send(EVersion),
    /// It is removed at the member: [`Backfill::landed`].
    Remove,
    /// We lack it. It goes to the member when it is here, and the backfill is not done before:
    /// [`Backfill::landed`].
    Fetch,
}

impl Backfill {
    /// A backfill that begins behind `from`: up to there the member is as the log says.
    pub fn new(from: &HObject) -> Self {
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

    /// All objects up to here are equal, or on their way.
    pub fn started(&self) -> &HObject {
        &self.started
    }

    /// Objects that are on their way.
    pub fn under_way(&self) -> impl Iterator<Item = &HObject> {
        self.under_way.iter().filter(|u| !u.2).map(|u| &u.0)
    }

    /// Is this object on its way?
    pub fn is_under_way(&self, object: &HObject) -> bool {
        self.under_way().any(|o| o == object)
    }

    /// Is nothing left but objects under way of this kind?
    pub fn is_filled_but(&self, kind: impl Fn(&HObject) -> bool) -> bool {
        self.is_exhausted()
            && !self.under_way.is_empty()
            && self.under_way.iter().all(|(o, _, landed)| *landed || kind(o))
    }

    // ---- what is to be done ----

    /// What is needed next. An object that is `busy` is waited for; one that is `lacked` cannot be
    /// sent from here now.
    pub fn next(
        &mut self,
        busy: impl Fn(&HObject) -> bool,
        lacked: impl Fn(&HObject) -> bool,
    ) -> Next {
        if self.mine.is_empty() && !self.mine_next.max {
            return Next::ListHere(self.mine_next.clone());
        }
        if self.theirs.is_empty() && !self.theirs_next.max {
            if std::mem::replace(&mut self.asked, true) {
                return Next::Wait;
            }
            self.asks += 1;
            return Next::ListThere(self.theirs_next.clone());
        }
        if self.first().is_some_and(busy) {
            return Next::Wait;
        }
        let Some((object, mine, theirs)) = self.pop() else {
            if self.started.max {
                return Next::Wait;
            }
            self.started = HObject::max();
            return Next::Compared;
        };
        let before = std::mem::replace(&mut self.started, object.clone());
        // An object whose record is damaged is listed without a version, and equals none.
        let act = if mine == theirs && mine != Some(EVersion::default()) {
            self.untold += 1;
            Act::Keep
        } else {
            self.under_way.push_back((object.clone(), before, false));
            match mine {
                _ if lacked(&object) => Act::Fetch,
                Some(version) => Act::Send(version),
                None => Act::Remove,
            }
        };
        Next::Object { object, ours: mine.is_some(), act }
    }

    /// The next object that either side has, with both versions. Where a side has nothing left it
    /// was listed to its end, so nothing of it comes before.
    fn pop(&mut self) -> Option<(HObject, Option<EVersion>, Option<EVersion>)> {
        let o = self.first()?.clone();
        let (x, y) = (self.mine.remove(&o), self.theirs.remove(&o));
        Some((o, x, y))
    }

    fn first(&self) -> Option<&HObject> {
        [self.mine.keys().next(), self.theirs.keys().next()].into_iter().flatten().min()
    }

    fn is_exhausted(&self) -> bool {
        self.mine.is_empty() && self.theirs.is_empty() && self.mine_next.max && self.theirs_next.max
    }

    // ---- what happened ----

    /// What we have up to before `next`, and what we lack of what we should have.
    pub fn listed_here(&mut self, objects: Vec<(HObject, EVersion)>, next: HObject) {
        // The last object handled may be where the listing begins.
        self.mine = objects.into_iter().filter(|(o, _)| *o > self.started).collect();
        self.mine_next = next;
    }

    /// What the member has from `start` on up to before `next`; false if nobody waits for that.
    pub fn listed_there(
        &mut self,
        start: &HObject,
        objects: Vec<(HObject, EVersion)>,
        next: HObject,
    ) -> bool {
        if *start != self.theirs_next || !std::mem::take(&mut self.asked) {
            return false;
        }
        self.theirs = objects.into_iter().filter(|(o, _)| *o > self.started).collect();
        self.theirs_next = next;
        true
    }

    /// The member cannot list what it has from `start` on; false if nobody waits for that.
    pub fn not_listed(&mut self, start: &HObject) -> bool {
        *start == self.theirs_next && std::mem::take(&mut self.asked)
    }

    /// An object that was on its way is at the member now (or gone there).
    pub fn landed(&mut self, object: &HObject) {
        if let Some(u) = self.under_way.iter_mut().find(|(o, ..)| o == object) {
            u.2 = true;
            self.untold += 1;
        }
        while self.under_way.pop_front_if(|u| u.2).is_some() {}
    }

    /// A write has made this version of an object here, or removed it.
    pub fn note_written(&mut self, object: &HObject, version: Option<EVersion>) {
        if *object > self.started && *object < self.mine_next {
            match version {
                Some(v) => drop(self.mine.insert(object.clone(), v)),
                None => drop(self.mine.remove(object)),
            }
        }
    }

    // ---- what the member is told ----

    /// All up to here is durable at the member.
    fn done(&self) -> &HObject {
        self.under_way.front().map_or(&self.started, |(_, before, _)| before)
    }

    /// How far the member is, if it is to be told: after each `every` objects, and at the end.
    pub fn progress(&mut self, every: usize) -> Option<HObject> {
        let done = self.done();
        if *done <= self.told || self.finishing || !(done.max || self.untold >= every) {
            return None;
        }
        self.told = done.clone();
        self.tellings += 1;
        self.untold = 0;
        self.finishing = self.told.max;
        Some(self.told.clone())
    }

    /// From where on the member is asked again for a listing that did not come.
    pub fn ask_again(&mut self, again: Again, member: Peer) -> Option<HObject> {
        let to = again.whom(&mut self.scan_repeat, self.asks, self.asked.then_some(member));
        (!to.is_empty()).then(|| self.theirs_next.clone())
    }

    /// How far the member is told again that it is; it has recorded `reached`.
    pub fn tell_again(
        &mut self,
        again: Again,
        member: Peer,
        reached: Option<&HObject>,
    ) -> Option<HObject> {
        let open = reached.is_some_and(|r| *r < self.told).then_some(member);
        let to = again.whom(&mut self.told_repeat, self.tellings, open);
        (!to.is_empty()).then(|| self.told.clone())
    }
}
