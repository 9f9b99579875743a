//! Which relatives of an object are whole where a copy of it is to be made: see [`super::share`].

use super::share::{Family, Relative, Way, newest_clone};
use super::{REFUSED_MAX, lacks_of};
use crate::core::{Cx, PgCore};
use crate::erasure::sound::can_make_from;
use crate::exec::{Prefetch, ReadError};
use crate::lead::Lead;
use crate::missing::Missing;
use crate::primary::Primary;
use spirula_types::{Dirty, EVersion, HObject, Peer, SNAP_HEAD};

/// Is a relative whole at a member, or will it be when what is sent now comes?
fn is_at(a: &Primary, osd: Peer, relative: &HObject) -> bool {
    let r = &a.recovery;
    if r.ops.get(relative).is_some_and(|op| op.is_sent_to(osd)) {
        return true;
    }
    let reached = match r.backfills.get(&osd) {
        Some(b) => relative <= b.started() && !b.is_under_way(relative),
        None => a.peers.get(&osd).is_some_and(|p| *relative <= p.last_backfill),
    };
    reached && a.peers.get(&osd).is_some_and(|p| !p.missing.contains(relative))
}

impl Lead<'_> {
    /// The head that comes before this clone: its history says what they share, so it must be here.
    /// And whoever has an older version of it gets what differs, and the clone then shares with it.
    pub(super) fn head_first(&self, object: &HObject) -> Option<HObject> {
        let (a, head) = (&*self.primary, object.to_head());
        if head == *object || a.recovery.unfound.contains(&head) {
            return None;
        }
        let parts = |m: &Missing| m.get(&head).is_some_and(|i| lacks_of(i) != Dirty::All);
        let older = a.peers.values().any(|p| p.missing.contains(object) && parts(&p.missing));
        (self.core.missing().contains(&head) || older).then_some(head)
    }

    /// The relatives of an object that are whole here and at all these members.
    pub(crate) fn relatives_at(
        &self,
        family: &Family,
        object: &HObject,
        targets: &[Peer],
        cx: &Cx<'_>,
    ) -> Result<Vec<Relative>, ReadError> {
        let a = &*self.primary;
        let refused = a.recovery.ops.get(object).map_or(0, |op| op.refused);
        if refused >= REFUSED_MAX
            || planted!(self.core.cfg, SharesNothing)
            || targets.iter().any(|t| self.repairs.is_bad(object, *t))
        {
            return Ok(Vec::new());
        }
        if targets.contains(&self.core.me)
            && self.core.is_replaced(object, cx).map_err(ReadError::NotReady)?
        {
            return Ok(Vec::new());
        }
        family.relatives(object, |o| {
            let there = |t: &Peer| *t == self.core.me || is_at(a, *t, o);
            if self.core.missing().contains(o) || !targets.iter().all(there) {
                return Ok(None);
            }
            self.core.whole_version(o, cx)
        })
    }

    /// How an object that all of these lack is made there. What cannot be read of its relatives is
    /// not shared.
    pub(super) fn way_to(
        &self,
        object: &HObject,
        targets: &[Peer],
        cx: &Cx<'_>,
    ) -> Result<Way, Prefetch> {
        let way = || -> Result<Way, ReadError> {
            let Some(family) = self.core.family_of(object, cx)? else {
                return Ok(Way::plain(Dirty::All));
            };
            let relatives = self.relatives_at(&family, object, targets, cx)?;
            Ok(family.way(object, &relatives, self.core.cfg.share_block))
        };
        match way() {
            Ok(way) => Ok(way),
            Err(ReadError::NotReady(what)) => Err(what),
            Err(_) => Ok(Way::plain(Dirty::All)),
        }
    }

    /// What is here beside an object that we lack all of: by its history, or, where that is what we
    /// lack, by the names that are here.
    pub(super) fn own_relatives(
        &self,
        object: &HObject,
        cx: &Cx<'_>,
    ) -> Result<Vec<Relative>, Prefetch> {
        let refused = self.primary.recovery.ops.get(object).map_or(0, |op| op.refused);
        let all = self.core.missing().get(object).is_some_and(|i| lacks_of(i) == Dirty::All);
        if !all
            || refused >= REFUSED_MAX
            || self.repairs.is_bad(object, self.core.me)
            || self.core.is_replaced(object, cx)?
        {
            return Ok(Vec::new());
        }
        let has = |o: &HObject| {
            if self.core.missing().contains(o) { Ok(None) } else { self.core.whole_version(o, cx) }
        };
        let found = match self.core.family_of(object, cx) {
            Ok(Some(family)) => family.relatives(object, has),
            Ok(None) if object.snap == SNAP_HEAD => newest_clone(cx.reader, object, has),
            Ok(None) => Ok(Vec::new()),
            Err(e) => Err(e),
        };
        match found {
            Ok(near) => Ok(near),
            Err(ReadError::NotReady(what)) => Err(what),
            Err(_) => Ok(Vec::new()),
        }
    }
}

impl PgCore {
    /// Is a copy here that is lacked all the same: a bad one?
    pub(crate) fn is_replaced(&self, object: &HObject, cx: &Cx<'_>) -> Result<bool, Prefetch> {
        if self.missing().get(object).is_none_or(|i| i.have != EVersion::default()) {
            return Ok(false);
        }
        match self.stored_version(object, cx.reader) {
            Ok(version) => Ok(version != EVersion::default()),
            Err(ReadError::NotReady(what)) => Err(what),
            Err(_) => Ok(true),
        }
    }

    /// In which version a relative is here, if others can be made from it.
    fn whole_version(&self, object: &HObject, cx: &Cx<'_>) -> Result<Option<EVersion>, ReadError> {
        let version = self.stored_version(object, cx.reader)?;
        let sound = version != EVersion::default()
            && can_make_from(self, object, Some(version), cx.reader)?;
        Ok(sound.then_some(version))
    }

    /// The history of an object, if its head is here.
    pub(crate) fn family_of(
        &self,
        object: &HObject,
        cx: &Cx<'_>,
    ) -> Result<Option<Family>, ReadError> {
        let head = object.to_head();
        if self.missing().contains(&head) { Ok(None) } else { Family::read(cx.reader, &head) }
    }

    /// Are these whole here, in these versions?
    pub(crate) fn has_beside(&self, beside: &[Relative], cx: &Cx<'_>) -> Result<bool, Prefetch> {
        for (object, version) in beside {
            if planted!(self.cfg, SharesWithAny) {
                continue;
            }
            let here = |v| can_make_from(self, object, Some(v), cx.reader);
            match self.stored_version(object, cx.reader).and_then(|v| Ok(v == *version && here(v)?))
            {
                Ok(true) => {}
                Err(ReadError::NotReady(what)) => return Err(what),
                _ => return Ok(false),
            }
        }
        Ok(true)
    }
}
