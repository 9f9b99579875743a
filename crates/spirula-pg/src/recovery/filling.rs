//! What a primary does for the members that it backfills: it carries out what each member's
//! [`Backfill`] wants, and tells it what became of that.
//!
//! A listing that cannot be read, here or there, ends the try: its reservations go to others, and
//! the next tick tries again from where this one came to.

use super::backfill::{Act, Backfill, Next};
use crate::again::Again;
use crate::core::Cx;
use crate::exec::{Prefetch, ReadError};
use crate::lead::Lead;
use spirula_messages::cluster::pg::CtlBody;
use spirula_types::{EVersion, HObject, Peer};

/// What a step did.
enum Did {
    Something,
    Nothing,
}

impl Lead<'_> {
    pub(super) fn begin_backfills(&mut self) {
        let a = &mut *self.primary;
        for (osd, p) in a.peers.iter().filter(|(_, p)| !p.last_backfill.max) {
            a.recovery.backfills.entry(*osd).or_insert_with(|| Backfill::new(&p.last_backfill));
        }
    }

    /// Does one piece of work for some member; false if there is none to do now.
    pub(super) fn backfill_step(&mut self, cx: &mut Cx<'_>) -> Result<bool, Prefetch> {
        let a = &mut *self.primary;
        let members: Vec<Peer> = a.recovery.backfills.keys().copied().collect();
        for osd in members {
            if let Did::Something = self.backfill_member(osd, cx)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn backfill_member(&mut self, osd: Peer, cx: &mut Cx<'_>) -> Result<Did, Prefetch> {
        let max = self.core.cfg.scan_objects.max(1);
        let a = &mut *self.primary;
        // Not while the object is on its way elsewhere: one recovery of an object at a time. Nor
        // while a relative is, with which it shares what is alike.
        let (ops, missing) = (&a.recovery.ops, self.core.missing());
        let busy = |o: &HObject| ops.contains_key(o) || super::family_busy(ops, o);
        let Some(b) = a.recovery.backfills.get_mut(&osd) else { return Ok(Did::Nothing) };
        match b.next(busy, |o| missing.contains(o)) {
            Next::ListHere(from) => return self.list_for_backfill(osd, &from, max, cx),
            Next::ListThere(from) => {
                self.core.send(osd, CtlBody::Scan { from, max: max as u32 }, cx);
                self.take_turn();
                return Ok(Did::Nothing);
            }
            Next::Compared => {
                self.backfill_progress(cx);
                return Ok(Did::Nothing);
            }
            Next::Wait => return Ok(Did::Nothing),
            Next::Object { object, ours, act } => {
                if let (Some(p), true) = (a.peers.get_mut(&osd), ours) {
                    p.copied += 1;
                }
                match act {
                    Act::Keep => {}
                    // See `on_pull_durable`.
                    Act::Fetch => a.recovery.demand(&object),
                    Act::Send(version) if self.core.is_erasure() => {
                        self.take_turn();
                        self.rebuild_object(&object, vec![osd], version);
                    }
                    Act::Send(_) | Act::Remove => {
                        self.take_turn();
                        self.push_object(&object, vec![osd], act == Act::Remove);
                    }
                }
            }
        }
        Ok(Did::Something)
    }

    /// Lists our own objects for a member's backfill.
    fn list_for_backfill(
        &mut self,
        osd: Peer,
        from: &HObject,
        max: usize,
        cx: &mut Cx<'_>,
    ) -> Result<Did, Prefetch> {
        match self.core.list_versions(from, max, cx.reader) {
            Ok((mut found, next)) => {
                // What we lack is listed, too: in the version that it should have.
                let lacked =
                    self.core.missing().from(from).take_while(|(o, _)| next.max || **o < next);
                found.extend(lacked.map(|(o, i)| (o.clone(), i.need)));
                let Some(b) = self.backfill_of(osd) else { return Ok(Did::Nothing) };
                b.listed_here(found, next);
                Ok(Did::Something)
            }
            Err(ReadError::NotReady(what)) => Err(what),
            Err(e) => {
                tracing::error!(pg = %self.core.id, error = %e, "list objects for backfill");
                self.backfill_later(cx);
                Ok(Did::Nothing)
            }
        }
    }

    fn take_turn(&mut self) {
        let r = &mut self.primary.recovery;
        r.turns = r.turns.saturating_sub(1);
    }

    fn backfill_of(&mut self, osd: Peer) -> Option<&mut Backfill> {
        self.primary.recovery.backfills.get_mut(&osd)
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
        if b.listed_there(start, objects, next) {
            self.pump(cx);
        }
    }

    /// A member cannot list what it has.
    pub(crate) fn on_scan_failed(&mut self, from: Peer, start: &HObject, cx: &mut Cx<'_>) {
        if !self.backfill_of(from).is_some_and(|b| b.not_listed(start)) {
            return;
        }
        tracing::warn!(pg = %self.core.id, %from, "a member cannot list its objects: the backfill \
            waits");
        self.backfill_later(cx);
    }

    /// Tells members how far they are.
    pub(super) fn backfill_progress(&mut self, cx: &mut Cx<'_>) {
        let tell_every = (self.core.cfg.scan_objects / 4).max(1);
        let a = &mut *self.primary;
        let progress = |(osd, b): (&Peer, &mut Backfill)| Some((*osd, b.progress(tell_every)?));
        let tell: Vec<_> = a.recovery.backfills.iter_mut().filter_map(progress).collect();
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
        let a = &mut *self.primary;
        let (mut scans, mut tell) = (Vec::new(), Vec::new());
        for (osd, b) in &mut a.recovery.backfills {
            if let Some(from) = b.ask_again(again, *osd) {
                scans.push((*osd, CtlBody::Scan { from, max }));
            }
            let reached = a.peers.get(osd).map(|p| &p.last_backfill);
            tell.extend(b.tell_again(again, *osd, reached).map(|at| (*osd, at)));
        }
        scans.into_iter().for_each(|(to, body)| self.core.send(to, body, cx));
        tell.into_iter().for_each(|(to, at)| self.tell_progress(to, at, cx));
    }

    pub(crate) fn on_progress_ack(&mut self, from: Peer, last_backfill: &HObject, cx: &mut Cx<'_>) {
        let a = &mut *self.primary;
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
