//! The OSD maps that monitors keep: which go when, and how they travel.

use super::State;
use crate::diff;
use crate::txn::MonTxn;
use bytes::Bytes;
use spirula_encoding::{UTime, from_slice};
use spirula_maps::{EncodedOsdMap, Incremental, OsdMap};
use spirula_types::Epoch;
use std::sync::Arc;

/// A full OSD map is kept every so many epochs, besides the newest.
pub const FULL_EVERY: Epoch = 50;
/// Bytes of incrementals after which a full map is kept, whatever the epoch.
const FULL_BYTES: u64 = 16 << 20;
/// Bytes of a full map that travels in the entry of the change that makes it an old one. Whoever
/// applies that entry has a larger one, and is told to keep it: it would leave no room for the
/// change.
const FULL_TRAVELS: usize = spirula_quorum::FRAME_MAX / 16;
/// Bytes of kept maps behind the oldest full one above which older epochs go that nobody needs, be
/// they as many as were to be kept.
const KEEP_BYTES: u64 = 32 << 20;
/// The same for epochs that somebody needs. An OSD that comes with an older one learns of what was
/// in between from those that saw it.
const NEEDED_BYTES: u64 = 192 << 20;
/// Bytes of a map above which nothing is added to it by command. What happens by itself (OSDs come
/// and go) is never refused: each change is an incremental of its own, and full maps need no room
/// in the log.
pub const OSDMAP_MAX: usize = 6 << 20;

/// Why the OSD map cannot be changed so.
#[derive(Debug, thiserror::Error)]
pub enum AdvanceError {
    /// Something was added to a map that is large already.
    #[error(
        "the OSD map would have {0} bytes, and nothing is added to one of more than {OSDMAP_MAX}: \
            remove CRUSH buckets, rules and weight \
         sets, pools, profiles or upmaps that nobody uses (ceph osd getmap and ceph osd crush dump \
         show what is in it)"
    )]
    TooLarge(usize),
    /// A defect: see [`diff::advance`].
    #[error("{0}")]
    Unfit(String),
}

impl State {
    /// Oldest OSD map epoch that can still be served, with all that follow.
    pub fn oldest_osdmap(&self) -> Epoch {
        self.incrementals.first().map_or(self.osdmap.epoch, |e| e - 1)
    }

    /// The epoch before which every map is needed by nobody: all PGs were clean then, or later. It
    /// is the oldest that can be served, or older, where maps that are needed were too large to be
    /// kept; then the full map of it is kept beyond the gap.
    pub fn settled_osdmap(&self) -> Epoch {
        self.fulls.first().unwrap_or(self.osdmap.epoch)
    }

    /// The full OSD map of `epoch`, rebuilt from the nearest kept one before it.
    pub fn osdmap_at(&self, epoch: Epoch) -> Option<EncodedOsdMap> {
        if epoch == self.osdmap.epoch {
            return Some((*self.osdmap).clone());
        }
        if epoch < self.oldest_osdmap() {
            return None;
        }
        let (_, bytes) = self.fulls.range(..=epoch).next_back()?;
        let mut map: OsdMap = from_slice(bytes).ok()?;
        while map.epoch < epoch {
            let inc: Incremental = from_slice(self.incrementals.get(&(map.epoch + 1))?).ok()?;
            map.apply(&inc).ok()?;
        }
        (map.epoch == epoch).then(|| EncodedOsdMap::new(map))
    }

    /// Makes `edited`, a copy of the newest OSD map with changes, the newest. False if there
    /// were none. Epochs before `oldest` that are beyond the number to keep, or the bytes, go.
    ///
    /// # Errors
    /// [`AdvanceError`].
    pub fn advance_osdmap(
        &mut self,
        edited: &OsdMap,
        now: UTime,
        oldest: Epoch,
    ) -> Result<bool, AdvanceError> {
        let Some(mut inc) = diff::diff(&self.osdmap, edited, now) else { return Ok(false) };
        let next = diff::advance(&self.osdmap, &mut inc).map_err(AdvanceError::Unfit)?;
        let (before, after) = (self.osdmap.bytes().len(), next.bytes().len());
        if after > OSDMAP_MAX && after > before && diff::adds(&inc, &self.osdmap) {
            return Err(AdvanceError::TooLarge(after));
        }
        let kept =
            Epoch::try_from(self.option_u64("mon_min_osdmap_epochs")).unwrap_or(Epoch::MAX).max(1);
        let floor = inc.epoch.saturating_sub(kept).min(oldest);
        let unfolded = self.incrementals.bytes_from(self.fulls.last().map_or(0, |e| e + 1)..);
        if self.fulls.is_empty()
            || self.osdmap.epoch.is_multiple_of(FULL_EVERY)
            || unfolded > FULL_BYTES
        {
            Arc::make_mut(&mut self.fulls).insert(self.osdmap.epoch, self.osdmap.bytes().clone());
        }
        Arc::make_mut(&mut self.incrementals)
            .insert(inc.epoch, spirula_encoding::to_vec(&inc).into());
        self.osdmap = Arc::new(next);
        self.trim_osdmaps(floor, oldest);
        Ok(true)
    }

    /// Lets go of epochs before the newest full map that leaves those from `floor` on; of more, if
    /// what is kept has many bytes: up to `oldest` first, since epochs from there on are needed.
    fn trim_osdmaps(&mut self, floor: Epoch, oldest: Epoch) {
        let until = |e: Epoch| self.fulls.range(..=e).next_back().map(|(e, _)| *e);
        // The newest full map behind which there is that much. Full maps are few, and the newest of
        // them are looked at.
        let heavy = |bytes: u64| {
            let weight =
                |e: Epoch| self.fulls.bytes_from(e + 1..) + self.incrementals.bytes_from(e + 1..);
            self.fulls.keys().copied().rev().find(|e| weight(*e) >= bytes)
        };
        let settled = until(oldest).or(self.fulls.first());
        let begins = self.oldest_osdmap();
        // What was let go of once stays away, if it was needed or not.
        let not_needed = until(floor).max(heavy(KEEP_BYTES).min(settled)).max(Some(begins));
        let Some(keep) = not_needed.max(heavy(NEEDED_BYTES)) else { return };
        let Some(settled) = settled.map(|e| e.min(keep)) else { return };
        let (fulls, incs) = (Arc::make_mut(&mut self.fulls), Arc::make_mut(&mut self.incrementals));
        fulls.forget(..settled);
        if settled < keep {
            fulls.forget(settled + 1..keep);
        }
        incs.forget(..=keep);
    }

    pub(super) fn write_osdmaps(&self, old: Option<&Self>, txn: &mut MonTxn) {
        let Some(old) = old else {
            for (e, full) in self.fulls.iter() {
                txn.put(full_key(*e), full.clone());
            }
            for (e, inc) in self.incrementals.iter() {
                txn.put(inc_key(*e), inc.clone());
            }
            if self.fulls.is_empty() {
                txn.put(full_key(self.osdmap.epoch), self.osdmap.bytes().clone());
            }
            return;
        };
        if old.osdmap.epoch == self.osdmap.epoch {
            return;
        }
        for (e, full) in self.fulls.iter().filter(|(e, _)| !old.fulls.contains_key(e)) {
            if *e == old.osdmap.epoch && full.len() > FULL_TRAVELS {
                txn.put(keep_key(*e), Bytes::new());
            } else {
                txn.put(full_key(*e), full.clone());
            }
        }
        for (e, inc) in self.incrementals.range(old.osdmap.epoch + 1..) {
            txn.put(inc_key(*e), inc.clone());
        }
        for e in old.fulls.keys().filter(|e| !self.fulls.contains_key(e)) {
            txn.remove(full_key(*e));
        }
        // They go from the oldest on.
        for (e, _) in old.incrementals.range(..self.oldest_osdmap() + 1) {
            txn.remove(inc_key(*e));
        }
    }

    pub(super) fn apply_full(
        &mut self,
        epoch: Option<Epoch>,
        value: Option<&Bytes>,
    ) -> Result<(), String> {
        let epoch = epoch.ok_or("odd key")?;
        let fulls = Arc::make_mut(&mut self.fulls);
        match value {
            Some(bytes) => fulls.insert(epoch, bytes.clone()),
            None => fulls.remove(epoch),
        }
        Ok(())
    }

    pub(super) fn apply_keep(&mut self, epoch: Option<Epoch>) -> Result<(), String> {
        if epoch != Some(self.osdmap.epoch) {
            return Err(format!("the newest map has epoch {}", self.osdmap.epoch));
        }
        Arc::make_mut(&mut self.fulls).insert(self.osdmap.epoch, self.osdmap.bytes().clone());
        Ok(())
    }

    pub(super) fn apply_incremental(
        &mut self,
        epoch: Option<Epoch>,
        value: Option<&Bytes>,
    ) -> Result<(), String> {
        let epoch = epoch.ok_or("odd key")?;
        let incs = Arc::make_mut(&mut self.incrementals);
        let Some(bytes) = value else {
            incs.remove(epoch);
            return Ok(());
        };
        incs.insert(epoch, bytes.clone());
        self.osdmap = Arc::new(next_map(&self.osdmap, epoch, bytes)?);
        Ok(())
    }
}

pub(super) fn full_key(epoch: Epoch) -> String {
    format!("osdmap/full/{epoch:010}")
}

fn keep_key(epoch: Epoch) -> String {
    format!("osdmap/keep/{epoch:010}")
}

pub(super) fn inc_key(epoch: Epoch) -> String {
    format!("osdmap/inc/{epoch:010}")
}

/// The map of `epoch`, made of the one before.
pub(super) fn next_map(
    map: &EncodedOsdMap,
    epoch: Epoch,
    inc: &Bytes,
) -> Result<EncodedOsdMap, String> {
    let inc: Incremental = from_slice(inc).map_err(|e| e.to_string())?;
    if inc.epoch != epoch || epoch != map.epoch + 1 {
        return Err(format!("leads to epoch {}, the newest map has {}", inc.epoch, map.epoch));
    }
    let mut next = OsdMap::clone(map);
    next.apply(&inc).map_err(|e| e.to_string())?;
    Ok(EncodedOsdMap::new(next))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::kept::KeptMaps;
    use spirula_maps::{Crush, MonMap};
    use spirula_types::Uuid;
    use std::collections::BTreeMap;

    /// Goes on by `n` epochs; the maps before `needed` may go.
    fn go_on(
        s: &mut State,
        kept: &mut BTreeMap<String, Bytes>,
        n: u32,
        needed: impl Fn(Epoch) -> Epoch,
    ) {
        for _ in 0..n {
            let old = s.clone();
            let mut map = OsdMap::clone(&s.osdmap);
            map.flags ^= spirula_maps::osdmap::flags::NOOUT;
            assert!(s.advance_osdmap(&map, UTime::ZERO, needed(s.osdmap.epoch)).unwrap());
            for (key, value) in s.diff(&old).ops {
                match value {
                    Some(v) => drop(kept.insert(key, v)),
                    None => drop(kept.remove(&key)),
                }
            }
        }
    }

    pub(crate) fn new() -> (State, BTreeMap<String, Bytes>) {
        let fsid = Uuid([3; 16]);
        let monmap = MonMap::initial(fsid, UTime::ZERO, []);
        let s = State::new(monmap, OsdMap::fresh(fsid, 1, UTime::ZERO, Crush::default()), 0);
        let kept = s.to_txn().ops.into_iter().filter_map(|(k, v)| Some((k, v?))).collect();
        (s, kept)
    }

    #[test]
    fn maps_stay_bounded_over_ten_thousand_epochs_while_nobody_needs_old_ones() {
        let (mut s, mut kept) = new();
        let (mut most, mut bytes) = (0, 0);
        for _ in 0..20 {
            go_on(&mut s, &mut kept, 500, |now| now.saturating_sub(7));
            most = most.max(kept.keys().filter(|k| k.starts_with("osdmap/")).count());
            bytes = bytes.max(kept.values().map(Bytes::len).sum::<usize>());
        }
        assert_eq!(s.osdmap.epoch, 10_001);
        // 500 epochs, and up to the full map before them.
        assert!(most <= 500 + FULL_EVERY as usize + 14, "{most} maps kept");
        assert!(bytes < 600_000, "{bytes} bytes kept");
        assert_eq!(
            s.incrementals.len() + s.fulls.len(),
            kept.keys().filter(|k| k.starts_with("osdmap/")).count()
        );
        assert!(s.osdmap_at(9_501).is_some() && s.osdmap_at(9_300).is_none());
        let again = State::load(&kept).unwrap();
        assert_eq!((again.osdmap.epoch, again.oldest_osdmap()), (10_001, s.oldest_osdmap()));
    }

    #[test]
    fn maps_that_somebody_needs_stay_and_go_when_nobody_does() {
        let (mut s, mut kept) = new();
        go_on(&mut s, &mut kept, 1200, |_| 300);
        assert!((250..=300).contains(&s.oldest_osdmap()), "{}", s.oldest_osdmap());
        // It is not known who needs what.
        go_on(&mut s, &mut kept, 10, |_| 0);
        assert!((250..=300).contains(&s.oldest_osdmap()));
        go_on(&mut s, &mut kept, 1, |now| now);
        assert!((650..=711).contains(&s.oldest_osdmap()), "{}", s.oldest_osdmap());
        for e in [s.oldest_osdmap(), 900, 1212] {
            assert_eq!(s.osdmap_at(e).unwrap().epoch, e);
        }
    }

    /// A map whose CRUSH map has so many bytes, about; each number makes another.
    pub(crate) fn with_crush(base: &OsdMap, bytes: usize, number: usize) -> OsdMap {
        let mut crush = spirula_crush::CrushMap::clone(base.crush.map());
        let name = |i: i32| format!("{number:08}{}", "n".repeat(bytes / 16 - 8 + i as usize));
        crush.type_names.extend((100..116).map(|i| (i, name(i - 100))));
        OsdMap { crush: Crush::new(crush), ..base.clone() }
    }

    fn total(maps: &KeptMaps) -> u64 {
        maps.values().map(|b| b.len() as u64).sum()
    }

    /// Changes the CRUSH map, of that many bytes; what others do with the batch comes to the same,
    /// and so does what is stored.
    fn change_crush(s: &mut State, bytes: usize, number: usize, needed: Epoch) {
        let (old, edited) = (s.clone(), with_crush(&s.osdmap, bytes, number));
        assert!(s.advance_osdmap(&edited, UTime::ZERO, needed).unwrap());
        let txn = s.diff(&old);
        let size: usize = txn.ops.iter().filter_map(|(_, v)| Some(v.as_ref()?.len())).sum();
        assert!(size < spirula_quorum::FRAME_MAX / 2, "an entry of {size} bytes");
        let mut other = old;
        other.apply(&txn).unwrap();
        assert_eq!(other.osdmap.bytes(), s.osdmap.bytes());
        let all = |s: &State| {
            s.fulls
                .iter()
                .chain(s.incrementals.iter())
                .map(|(e, b)| (*e, b.clone()))
                .collect::<Vec<_>>()
        };
        assert!(all(&other) == all(s), "another monitor keeps other maps");
        assert_eq!(total(&s.incrementals), s.incrementals.bytes_from(0..));
    }

    /// Maps of megabytes are kept by their bytes: what was to be kept by number goes if nobody
    /// needs it.
    #[test]
    fn large_maps_that_nobody_needs_have_a_bound_in_bytes() {
        let (mut s, _) = new();
        let mut most = 0;
        for n in 0..500 {
            let needed = s.osdmap.epoch - 1;
            change_crush(&mut s, 2 << 20, n, needed);
            most = most.max(total(&s.incrementals) + total(&s.fulls));
        }
        // The newest 32 MiB, up to the full map before them, and the full maps.
        assert!(most < (32 + 16 + 3 + 9) << 20, "{most} bytes");
        assert!(s.incrementals.len() >= 15, "{}", s.incrementals.len());
        assert_eq!(
            (s.oldest_osdmap(), s.fulls.first()),
            (s.settled_osdmap(), s.incrementals.first().map(|e| e - 1))
        );
        let again = State::from_bytes(&s.to_bytes()).unwrap();
        assert_eq!((again.osdmap.epoch, again.oldest_osdmap()), (501, s.oldest_osdmap()));
        for e in s.oldest_osdmap()..=501 {
            assert_eq!(again.osdmap_at(e).unwrap().epoch, e);
        }
        assert!(s.osdmap_at(s.oldest_osdmap() - 1).is_none());
    }

    /// Epochs that PGs need, since they are not clean, are kept much longer, but not without end.
    /// That they were needed is known as long as they are: an OSD that is told that nobody needs
    /// them forgets with whom it was.
    #[test]
    fn large_maps_that_somebody_needs_are_kept_longer_and_are_never_said_to_be_settled() {
        let (mut s, mut kept) = new();
        go_on(&mut s, &mut kept, 60, |_| 0);
        let (mut most, mut longest) = (0, 0);
        for n in 0..80 {
            change_crush(&mut s, 5 << 20, n, 55);
            most = most.max(total(&s.incrementals) + total(&s.fulls));
            if s.oldest_osdmap() <= 55 {
                longest = n;
            }
        }
        assert!(most < (192 + 16 + 6 + 24) << 20, "{most} bytes");
        assert!(longest > 26, "only {longest} changes were kept for who needs them");
        assert_eq!(s.settled_osdmap(), 50);
        let begins = s.oldest_osdmap();
        assert!(begins > 80 && s.osdmap_at(begins).is_some() && s.osdmap_at(begins - 1).is_none());
        assert!(s.osdmap_at(50).is_none(), "it leads nowhere");
        let mut again = State::from_bytes(&s.to_bytes()).unwrap();
        assert_eq!((again.settled_osdmap(), again.oldest_osdmap()), (50, begins));
        // All are clean now.
        change_crush(&mut again, 1 << 20, 999, begins);
        assert_eq!((again.settled_osdmap(), again.oldest_osdmap()), (begins, begins));
    }

    /// A store of an earlier version, that had no full map for long, since they were too large, and
    /// all incrementals.
    #[test]
    fn a_store_with_many_large_incrementals_is_read_and_gets_smaller() {
        let (mut s, _) = new();
        let (mut incs, first) = (BTreeMap::new(), s.osdmap.bytes().clone());
        for n in 0..60 {
            change_crush(&mut s, 4 << 20, n, 0);
            incs.insert(s.osdmap.epoch, s.incrementals[&s.osdmap.epoch].clone());
        }
        (s.fulls, s.incrementals) =
            (Arc::new(BTreeMap::from([(1, first)]).into()), Arc::new(incs.into()));
        let mut s = State::from_bytes(&s.to_bytes()).unwrap();
        assert_eq!(
            (s.osdmap.epoch, s.oldest_osdmap(), s.osdmap_at(20).unwrap().epoch),
            (61, 1, 20)
        );
        // Not at once: OSDs that were stopped with it come back to what they had.
        change_crush(&mut s, 4 << 20, 100, 55);
        assert_eq!(s.oldest_osdmap(), 1);
        for n in 0..30 {
            let needed = s.osdmap.epoch - 1;
            change_crush(&mut s, 4 << 20, 101 + n, needed);
        }
        assert!(s.oldest_osdmap() > 61 && total(&s.incrementals) < 54 << 20);
    }

    /// A map that is too large can be made smaller, and what happens by itself goes on; nothing is
    /// added to it.
    #[test]
    fn a_large_map_takes_what_makes_it_smaller_and_refuses_what_is_added() {
        let (mut s, _) = new();
        s.osdmap = Arc::new(EncodedOsdMap::new(with_crush(&s.osdmap, 8 << 20, 0)));
        let refused = |s: &mut State, map: &OsdMap| {
            let (before, why) =
                (s.osdmap.epoch, s.advance_osdmap(map, UTime::ZERO, 0).unwrap_err());
            assert!(
                matches!(why, AdvanceError::TooLarge(n) if n > OSDMAP_MAX)
                    && why.to_string().contains("remove"),
                "{why}"
            );
            assert_eq!(s.osdmap.epoch, before);
        };
        let larger = with_crush(&s.osdmap, (8 << 20) + 64, 1);
        refused(&mut s, &larger);
        let mut named = OsdMap::clone(&s.osdmap);
        named.ec_profiles.insert("p".into(), BTreeMap::new());
        refused(&mut s, &named);
        let mut fenced = OsdMap::clone(&s.osdmap);
        fenced
            .blocklist
            .insert(spirula_types::EntityAddr::v2(([127, 0, 0, 1], 1).into(), 1), UTime::ZERO);
        assert!(s.advance_osdmap(&fenced, UTime::ZERO, 0).unwrap());
        assert!(s.osdmap.bytes().len() > 8 << 20);
        for bytes in [7 << 20, 6 << 20, 5 << 20] {
            let smaller = with_crush(&s.osdmap, bytes, 2);
            assert!(s.advance_osdmap(&smaller, UTime::ZERO, 0).unwrap());
        }
        let larger = with_crush(&s.osdmap, OSDMAP_MAX, 3);
        refused(&mut s, &larger);
        let fits = with_crush(&s.osdmap, OSDMAP_MAX - (64 << 10), 4);
        assert!(s.advance_osdmap(&fits, UTime::ZERO, 0).unwrap());
    }
}
