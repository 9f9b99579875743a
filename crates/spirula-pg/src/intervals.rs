//! Intervals: epochs in which the sets of a PG stay the same, and what the closed ones mean for
//! peering.
//!
//! Intervals follow from the maps alone, so all OSDs that saw the same maps agree on them; the
//! first epoch of one is its name, and every message between OSDs about a PG carries it. A
//! member that has reached an interval takes no more part in older ones.
//!
//! Who took a whole map and not those before it (they are gone at the monitors, or the next one did
//! not fit) cannot tell when the interval began that it finds, and calls it by the epoch of that
//! map. Every epoch belongs to one interval of a PG, and who has the maps up to an epoch and has
//! seen none end its interval knows that it is one of it. So a message is of the receiver's
//! interval if it is called by **any epoch from the receiver's name on**, and the receiver answers
//! by the name that it was given. A name before the receiver's own is of an older interval, or of a
//! time of which it knows nothing: it takes no part in that, and lets a primary that asks hear its
//! own name. What such a member does not know of older intervals it learns from one that does.
//!
//! A closed interval *may have taken writes* if its acting set was large enough and its primary
//! is on record (`up_thru`) as alive in it: a primary becomes active only after the map says so.
//! Whoever wants to serve later must hear at least one acting member of every such interval
//! since the last activation that all members are known to share, because a write is
//! acknowledged only when every acting member has it.

use crate::api::MapView;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};
use spirula_messages::cluster::pg::PastInterval;
use spirula_types::hash::range_bits;
use spirula_types::{Epoch, OsdId, Peer};
use std::collections::{BTreeMap, BTreeSet};

/// The interval a PG is in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Its first epoch; 0 before the first map.
    pub since: Epoch,
    /// Up set.
    pub up: Vec<Peer>,
    /// Acting set.
    pub acting: Vec<Peer>,
    /// Primary of the up set.
    pub up_primary: Peer,
    /// Primary of the acting set.
    pub primary: Peer,
    /// Pool size.
    pub size: u32,
    /// Pool's least size to serve.
    pub min_size: u32,
    /// PGs in the pool; 0 once the pool is deleted.
    pub pg_num: u32,
    /// A merge of the PG is pending.
    pub premerge: bool,
}

impl Encode for Interval {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(2, 1, |o| {
            o.u32(self.since);
            o.put(&self.up);
            o.put(&self.acting);
            o.put(&self.up_primary);
            o.put(&self.primary);
            o.u32(self.size);
            o.u32(self.min_size);
            o.u32(self.pg_num);
            o.bool(self.premerge);
        });
    }
}

impl Decode for Interval {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("interval", 2, |d, v| {
            Ok(Self {
                since: d.get()?,
                up: d.get()?,
                acting: d.get()?,
                up_primary: d.get()?,
                primary: d.get()?,
                size: d.get()?,
                min_size: d.get()?,
                pg_num: d.get()?,
                premerge: v >= 2 && d.bool()?,
            })
        })
    }
}

impl Interval {
    /// The interval of PG `seed` that begins in `since`, as the map describes it.
    pub fn of(seed: u32, view: &MapView, since: Epoch) -> Self {
        let pool = view.pool.as_deref();
        Self {
            since,
            up: view.up.clone(),
            acting: view.acting.clone(),
            up_primary: view.up_primary,
            primary: view.primary,
            size: pool.map_or(0, |p| p.size as u32),
            min_size: pool.map_or(0, |p| p.min_size as u32),
            pg_num: pool.map_or(0, |p| p.pg_num),
            premerge: view.is_premerge(seed),
        }
    }

    /// Does the interval of PG `seed` go on with this map? Splits and merges of others do not end
    /// it.
    pub fn continues(&self, seed: u32, view: &MapView) -> bool {
        let pool = view.pool.as_deref();
        self.up == view.up
            && self.acting == view.acting
            && self.up_primary == view.up_primary
            && self.primary == view.primary
            && self.size == pool.map_or(0, |p| p.size as u32)
            && self.min_size == pool.map_or(0, |p| p.min_size as u32)
            && match pool {
                Some(p) => {
                    self.pg_num > 0 && range_bits(seed, self.pg_num) == range_bits(seed, p.pg_num)
                }
                None => self.pg_num == 0,
            }
            && self.premerge == view.is_premerge(seed)
    }

    /// The closed interval, whose last map was `last`; without that map the worst is assumed.
    /// `lec` is the last epoch in which the PG is known to have been clean.
    pub fn close(&self, last_epoch: Epoch, last: Option<&MapView>, lec: Epoch) -> PastInterval {
        let could = self.primary.is_some()
            && !self.acting.is_empty()
            && self.acting.len() >= self.min_size as usize;
        let alive = match last {
            None => true,
            Some(view) => {
                let of_primary = view.osds.get(&self.primary.osd);
                of_primary
                    .is_some_and(|o| o.up && o.up_from <= self.since && o.up_thru >= self.since)
                    || (self.since..=last_epoch).contains(&lec)
            }
        };
        PastInterval {
            first: self.since,
            last: last_epoch,
            up: self.up.clone(),
            acting: self.acting.clone(),
            primary: self.primary,
            rw: could && alive,
        }
    }
}

/// Whom a primary must hear.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prior {
    /// Those that are up: all of them are asked.
    pub probe: BTreeSet<Peer>,
    /// Members of older intervals that are down, and when each was declared lost (0: it was not;
    /// `None`: the map knows it no more). Their return changes the picture, and so does that
    /// declaration.
    pub down: BTreeMap<Peer, Option<Epoch>>,
    /// An interval that may have taken writes has no member up: these are in the way. `None`:
    /// nothing is in the way.
    pub blocked_by: Option<Vec<Peer>>,
    /// Primaries of older intervals that are not known to have stopped.
    pub holders: Vec<OsdId>,
}

impl Prior {
    /// Works it out. `les` is the newest activation known to be shared by all its members.
    /// `least`: members of an interval that know its history together.
    pub fn new(past: &[PastInterval], view: &MapView, les: Epoch, me: Peer, least: usize) -> Self {
        let mut p = Self::default();
        p.probe.extend(view.up.iter().chain(&view.acting).copied());
        for i in past.iter().filter(|i| i.rw && i.last >= les) {
            let mut heard = 0;
            let mut down = Vec::new();
            for osd in &i.acting {
                let known = view.osds.get(&osd.osd);
                match known {
                    Some(o) if o.up => {
                        p.probe.insert(*osd);
                        heard += 1;
                        continue;
                    }
                    // Declared lost after it took part, or gone from the map: by an
                    // administrator's word, go on without it.
                    Some(o) if o.lost_at > i.first => {}
                    None => {}
                    Some(_) => down.push(*osd),
                }
                p.down.insert(*osd, known.map(|o| o.lost_at));
            }
            if heard < least && (!down.is_empty() || i.acting.is_empty()) {
                p.blocked_by.get_or_insert_default().extend(&down);
            }
            let silent = i.primary.is_some()
                && i.primary.osd != me.osd
                && view
                    .osds
                    .get(&i.primary.osd)
                    .is_none_or(|o| !o.up && !o.dead && o.up_from <= i.last);
            if silent && !p.holders.contains(&i.primary.osd) {
                p.holders.push(i.primary.osd);
            }
        }
        if let Some(by) = &mut p.blocked_by {
            by.sort_unstable();
            by.dedup();
        }
        p
    }

    /// Does this map change whom to hear?
    pub fn affected_by(&self, view: &MapView) -> bool {
        let up = |o: &Peer| view.osds.get(&o.osd).is_some_and(|o| o.up);
        // An OSD is declared lost as of the epoch in which it went down, which is an older one.
        self.down.iter().any(|(o, lost)| up(o) || view.osds.get(&o.osd).map(|v| v.lost_at) != *lost)
            || self.probe.iter().any(|o| !up(o))
    }
}

/// Are there epochs of which nothing is known?
pub fn has_hole(past: &[PastInterval]) -> bool {
    past.iter().any(|i| i.rw && i.acting.is_empty())
}

/// Drops intervals that can matter no more: those that ended before the PG was last clean.
pub fn forget_before(past: &mut Vec<PastInterval>, lec: Epoch) {
    past.retain(|i| i.last >= lec);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::OsdView;
    use std::sync::Arc;

    fn view(epoch: Epoch, osds: &[(OsdId, bool, Epoch, Epoch)]) -> MapView {
        let osds: BTreeMap<OsdId, OsdView> = osds
            .iter()
            .map(|(o, up, up_from, up_thru)| {
                (
                    *o,
                    OsdView { up: *up, up_from: *up_from, up_thru: *up_thru, ..OsdView::default() },
                )
            })
            .collect();
        MapView { epoch, osds: Arc::new(osds), ..MapView::default() }
    }

    fn interval(since: Epoch, acting: &[OsdId], min_size: u32) -> Interval {
        let acting = Peer::members(acting, false);
        let primary = acting.first().copied().unwrap_or_default();
        Interval { since, acting, primary, min_size, ..Interval::default() }
    }

    #[test]
    fn an_interval_took_writes_only_if_its_primary_is_on_record_as_alive() {
        let i = interval(10, &[1, 2], 2);
        let alive = view(14, &[(1, true, 5, 10)]);
        let silent = view(14, &[(1, true, 5, 9)]);
        assert!(i.close(14, Some(&alive), 0).rw);
        assert!(!i.close(14, Some(&silent), 0).rw);
        // It was clean meanwhile, so it did.
        assert!(i.close(14, Some(&silent), 12).rw);
        // Without its last map the worst is assumed, but never of too small a set.
        assert!(i.close(14, None, 0).rw);
        assert!(!interval(10, &[1], 2).close(14, None, 0).rw);
    }

    #[test]
    fn one_member_of_every_interval_must_be_heard() {
        let past = [
            PastInterval {
                first: 3,
                last: 5,
                acting: Peer::members(&[1, 2], false),
                primary: Peer::whole(1),
                rw: true,
                ..Default::default()
            },
            PastInterval {
                first: 6,
                last: 9,
                acting: vec![Peer::whole(3)],
                primary: Peer::whole(3),
                rw: true,
                ..Default::default()
            },
        ];
        let v = view(10, &[(0, true, 1, 0), (1, true, 1, 0), (2, false, 1, 0), (3, false, 1, 0)]);
        let p = Prior::new(&past, &v, 0, Peer::whole(0), 1);
        assert_eq!(p.blocked_by, Some(vec![Peer::whole(3)]));
        assert_eq!(p.holders, [3]);
        assert!(p.probe.contains(&Peer::whole(1)) && p.down.contains_key(&Peer::whole(2)));
        // An activation after it makes the older interval uninteresting.
        assert!(!Prior::new(&past[..1], &v, 6, Peer::whole(0), 1).probe.contains(&Peer::whole(1)));
        let back = view(11, &[(1, true, 1, 0), (3, true, 11, 0)]);
        assert!(p.affected_by(&back));
    }

    #[test]
    fn a_member_declared_lost_or_removed_is_waited_for_no_more() {
        let acting = Peer::members(&[2], false);
        let past = [PastInterval {
            first: 6,
            last: 9,
            primary: acting[0],
            acting,
            rw: true,
            ..Default::default()
        }];
        let with = |epoch, lost_at| {
            let mut v = view(epoch, &[(0, true, 1, 0), (2, false, 1, 0)]);
            Arc::make_mut(&mut v.osds).get_mut(&2).unwrap().lost_at = lost_at;
            v
        };
        let p = Prior::new(&past, &with(12, 0), 0, Peer::whole(0), 1);
        assert_eq!(p.blocked_by, Some(vec![Peer::whole(2)]));
        assert!(!p.affected_by(&with(13, 0)));
        // The monitor says since when it is gone: it went down in epoch 10.
        let lost = with(13, 10);
        assert!(p.affected_by(&lost));
        let next = Prior::new(&past, &lost, 0, Peer::whole(0), 1);
        assert!(next.blocked_by.is_none() && !next.affected_by(&with(14, 10)));
        let removed = view(14, &[(0, true, 1, 0)]);
        assert!(
            p.affected_by(&removed)
                && Prior::new(&past, &removed, 0, Peer::whole(0), 1).blocked_by.is_none()
        );
    }
}
