//! Following the OSD map: from the monitor's messages to what each PG must know.
//!
//! Takes the maps one epoch at a time, because intervals follow from every single one. Keeps the
//! newest map, the mapping of all PGs, and the latest incrementals as they came, to hand on to
//! clients that lag behind.

use bytes::Bytes;
use spirula_encoding::DecodeError;
use spirula_maps::osdmap::pool::flag;
use spirula_maps::osdmap::{
    ApplyError, EncodedOsdMap, Incremental, OsdMap, PgPool, PgTable, flags,
};
use spirula_messages::ceph::MOsdMap;
use spirula_pg::erasure::Shape;
use spirula_pg::exec::{Fullness, PoolRules};
use spirula_pg::{MapView, Merged, OsdView, Permits, PoolSnaps, PoolView, SnapContext};
use spirula_types::{EntityAddr, Epoch, OSD_NONE, OsdId, Peer, PgId, PoolId, SpgId, Uuid};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Incrementals kept for clients; who lacks more gets a full map.
const KEEP: usize = 200;

/// Incrementals kept that came and do not follow yet what is here.
const EARLY: usize = 1000;

/// Why maps were not taken.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// Bytes that are no map.
    #[error("OSD map {epoch}: {source}")]
    Decode {
        /// Its epoch.
        epoch: Epoch,
        /// What is wrong.
        source: DecodeError,
    },
    /// An incremental that does not fit.
    #[error("OSD map {epoch}: {source}")]
    Apply {
        /// Its epoch.
        epoch: Epoch,
        /// What is wrong.
        source: ApplyError,
    },
    /// Another cluster's map.
    #[error("OSD map of cluster {theirs}, ours is {ours}")]
    OtherCluster {
        /// Ours.
        ours: Uuid,
        /// The map's.
        theirs: Uuid,
    },
}

/// The newest map and what follows from it.
#[derive(Debug, Default)]
pub struct Maps {
    map: Option<Arc<OsdMap>>,
    full: Bytes,
    recent: VecDeque<(Epoch, Bytes)>,
    /// Came, and not yet applied; [`EARLY`] at most.
    incoming: BTreeMap<Epoch, Bytes>,
    /// With the oldest epoch that its sender has.
    incoming_full: Option<(Epoch, Bytes, Epoch)>,
    table: PgTable,
    /// First epoch of each PG's present interval, as far as we have followed.
    since: BTreeMap<PgId, Epoch>,
    osds: Arc<BTreeMap<OsdId, OsdView>>,
    blocklist: Arc<BTreeSet<EntityAddr>>,
    permits: Permits,
    pools: BTreeMap<PoolId, Arc<PoolView>>,
    /// The last step left maps out.
    gap: bool,
    /// And the monitors have none of them any more.
    trimmed: bool,
    /// Some came for which there was no room.
    cut: bool,
    /// The next epoch's map did not fit the one that is here: only a whole map helps.
    stuck: bool,
}

impl Maps {
    /// The map that an earlier run had processed last.
    ///
    /// # Errors
    /// [`MapError::Decode`].
    pub fn restore(bytes: Bytes) -> Result<Self, MapError> {
        let mut maps = Self::default();
        let full = EncodedOsdMap::from_bytes(bytes)
            .map_err(|source| MapError::Decode { epoch: 0, source })?;
        maps.full = full.bytes().clone();
        maps.map = Some(Arc::new(full.into_map()));
        maps.derive(None);
        Ok(maps)
    }

    /// The newest map, encoded.
    pub fn full(&self) -> &Bytes {
        &self.full
    }

    /// The oldest epoch that is kept here; 0 before the first map.
    pub fn oldest(&self) -> Epoch {
        self.recent.front().map_or(self.epoch(), |(e, _)| *e)
    }

    /// Epoch of the newest map, 0 before the first.
    pub fn epoch(&self) -> Epoch {
        self.map.as_ref().map_or(0, |m| m.epoch)
    }

    /// The newest map.
    pub fn map(&self) -> Option<&Arc<OsdMap>> {
        self.map.as_ref()
    }

    /// From which epoch on maps are wanted; 0 for the newest one as a whole, where there is none.
    pub fn wanted(&self) -> u64 {
        if self.map.is_none() { 0 } else { u64::from(self.epoch()) + 1 }
    }

    /// The map of the next epoch is wanted as a whole, since what came does not fit the one that is
    /// here. Not the newest one: PGs must see every epoch.
    pub fn wants_whole(&self) -> bool {
        self.stuck
    }

    /// What is wanted was asked for again.
    pub fn asked(&mut self) {
        self.cut = false;
    }

    /// What follows the newest map is not here, and later ones have come: if it is not on its way,
    /// nobody will send it who is not asked. To be looked at when [`Maps::advance`] leads no
    /// further.
    pub fn has_gap(&self) -> bool {
        self.map.is_some() && (self.cut || !self.incoming.is_empty())
    }

    /// Takes what a message brings, to be applied by [`Maps::advance`].
    ///
    /// # Errors
    /// [`MapError::OtherCluster`].
    pub fn accept(&mut self, ours: Uuid, m: MOsdMap) -> Result<(), MapError> {
        if m.fsid != ours {
            return Err(MapError::OtherCluster { ours, theirs: m.fsid });
        }
        self.incoming.extend(m.incrementals);
        // Those that are left out are asked for again when what is before them has come:
        // [`Maps::has_gap`].
        while self.incoming.len() > EARLY {
            self.cut |= self.incoming.pop_last().is_some();
        }
        if let Some((epoch, bytes)) = m.fulls.into_iter().next_back() {
            self.incoming_full = Some((epoch, bytes, m.oldest));
        }
        Ok(())
    }

    /// Goes on to the next epoch, if it has come; true if there is a newer map now. A full map of
    /// another epoch is used only where incrementals leave a gap.
    ///
    /// # Errors
    /// [`MapError`]; the map is as before.
    pub fn advance(&mut self) -> Result<bool, MapError> {
        let have = self.epoch();
        let before = self.map.clone();
        self.incoming = self.incoming.split_off(&(have + 1));
        let whole = self.incoming_full.as_ref().is_some_and(|(e, ..)| *e == have + 1);
        if self.map.is_some()
            && !whole
            && let Some(bytes) = self.incoming.remove(&(have + 1))
        {
            if let Err(e) = self.apply(have + 1, bytes) {
                self.incoming.clear();
                self.stuck = true;
                return Err(e);
            }
            (self.gap, self.trimmed) = (false, false);
        } else if let Some((epoch, bytes, oldest)) =
            self.incoming_full.take().filter(|(e, ..)| *e > have)
        {
            let full = EncodedOsdMap::from_bytes(bytes)
                .map_err(|source| MapError::Decode { epoch, source })?;
            self.full = full.bytes().clone();
            self.map = Some(Arc::new(full.into_map()));
            self.recent.clear();
            self.gap = epoch != have + 1;
            self.trimmed = self.gap && epoch <= oldest;
        } else {
            return Ok(false);
        }
        self.stuck = false;
        self.derive(before.as_deref());
        Ok(true)
    }

    fn apply(&mut self, epoch: Epoch, bytes: Bytes) -> Result<(), MapError> {
        let inc: Incremental = spirula_encoding::from_slice(&bytes)
            .map_err(|source| MapError::Decode { epoch, source })?;
        let Some(base) = &self.map else { return Ok(()) };
        let mut next = OsdMap::clone(base);
        self.full = next.apply_checked(&inc).map_err(|source| MapError::Apply { epoch, source })?;
        self.map = Some(Arc::new(next));
        self.recent.push_back((epoch, bytes));
        if self.recent.len() > KEEP {
            self.recent.pop_front();
        }
        Ok(())
    }

    /// The OSDs for which a PG's writes wait, by the newest map: those that serve it, and those
    /// that are to and are being filled.
    pub fn members(&self, pg: PgId) -> BTreeSet<OsdId> {
        let all = self.table.get(pg).into_iter().flat_map(|m| m.acting.iter().chain(&m.up));
        all.copied().filter(|o| *o != OSD_NONE).collect()
    }

    /// `before`: the map that the table is of.
    fn derive(&mut self, before: Option<&OsdMap>) {
        let Some(map) = self.map.clone() else { return };
        let table =
            before.map_or_else(|| map.map_all(), |before| map.map_all_after(before, &self.table));
        let old_pools = std::mem::take(&mut self.pools);
        self.osds = Arc::new(map.osds().map(|o| (o, osd_view(&map, o))).collect());
        if !self.blocklist.iter().eq(map.blocklist.keys()) {
            self.blocklist = Arc::new(map.blocklist.keys().copied().collect());
        }
        self.permits = Permits {
            no_recover: map.has_flag(flags::NORECOVER),
            no_backfill: map.has_flag(flags::NOBACKFILL),
            no_rebalance: map.has_flag(flags::NOREBALANCE),
            pause_reads: map.has_flag(flags::PAUSERD),
            pause_writes: map.has_flag(flags::PAUSEWR),
            no_trim: map.has_flag(flags::NOSNAPTRIM),
        };
        let cluster_full = map.has_flag(flags::FULL);
        self.pools = map
            .pools
            .iter()
            .map(|(id, p)| {
                let fullness = if p.has_flag(flag::FULL_QUOTA) {
                    Fullness::Quota
                } else if cluster_full || p.has_flag(flag::FULL) {
                    Fullness::Full
                } else {
                    Fullness::No
                };
                let appends_only = p.is_erasure() && !p.has_flag(flag::EC_OVERWRITES);
                // Its PGs see by its address whether it has changed.
                let old = old_pools.get(id).map(|o| &o.snaps.removed);
                let removed = match (map.removed_snaps_queue.get(id), old) {
                    (Some(removed), Some(old)) if **old == *removed => old.clone(),
                    (None, Some(old)) if old.is_empty() => old.clone(),
                    (removed, _) => Arc::new(removed.cloned().unwrap_or_default()),
                };
                // The merge that led from the map before to this one, if it was one.
                let before = old_pools.get(id).filter(|_| !self.gap).map(|o| o.pg_num);
                let m = &p.last_pg_merge_meta;
                let is_last =
                    before == Some(p.pg_num + 1) && m.source_pgid == PgId::new(*id, p.pg_num);
                let shape = p.is_erasure().then(|| shape_of(&map, p)).flatten();
                // Without a code nothing of it can be served.
                let unknown = p.is_erasure() && shape.is_none();
                let view = PoolView {
                    size: usize::from(p.size),
                    min_size: if unknown { usize::MAX } else { usize::from(p.min_size) },
                    shape,
                    pg_num: p.pg_num,
                    pg_num_pending: p.pg_num_pending,
                    pg_num_target: p.pg_num_target,
                    merged: is_last.then_some(Merged {
                        source: m.source_pgid,
                        source_version: m.source_version,
                        target_version: m.target_version,
                    }),
                    force_resend: p.last_force_op_resend,
                    rules: PoolRules {
                        erasure: p.is_erasure(),
                        append_alignment: appends_only.then(|| u64::from(p.stripe_width.max(1))),
                        fullness,
                    },
                    snaps: PoolSnaps {
                        context: p.is_pool_snaps_mode().then(|| {
                            let (seq, snaps) = p.snap_context();
                            SnapContext { seq, snaps }
                        }),
                        removed,
                    },
                };
                (*id, Arc::new(view))
            })
            .collect();
        let epoch = map.epoch;
        let mut since = BTreeMap::new();
        for (pg, m) in table.iter() {
            let alike = match (old_pools.get(&pg.pool), self.pools.get(&pg.pool)) {
                (Some(a), Some(b)) => a.is_same_for(b, pg.seed),
                _ => false,
            };
            // What was between is not known.
            let same = !self.gap && self.table.get(pg) == Some(m) && alike;
            let at = if same { self.since.get(&pg).copied() } else { None };
            since.insert(pg, at.unwrap_or(epoch));
        }
        (self.table, self.since) = (table, since);
    }

    /// What the newest map says about a PG. Without a map: nothing is anywhere.
    pub fn view(&self, pg: PgId) -> MapView {
        let pool = self.pools.get(&pg.pool).filter(|p| pg.seed < p.pg_num).cloned();
        let erasure = self.pools.get(&pg.pool).is_some_and(|p| p.rules.erasure);
        let (up, acting, up_primary, primary) = match self.table.get(pg) {
            Some(m) => {
                let (up, acting) =
                    (Peer::members(&m.up, erasure), Peer::members(&m.acting, erasure));
                let of = |set: &[Peer], osd| {
                    set.iter().find(|p| p.osd == osd).copied().unwrap_or_default()
                };
                let (first, primary) = (of(&up, m.up_primary), of(&acting, m.acting_primary));
                (up, acting, first, primary)
            }
            None => (Vec::new(), Vec::new(), Peer::NONE, Peer::NONE),
        };
        MapView {
            epoch: self.epoch(),
            since: self.since.get(&pg).copied().unwrap_or(0),
            gap: self.gap,
            trimmed: self.trimmed,
            pool,
            up,
            acting,
            up_primary,
            primary,
            live: false,
            osds: self.osds.clone(),
            permits: self.permits,
            blocklist: self.blocklist.clone(),
        }
    }

    /// PGs that this OSD is to serve, each with the shard.
    pub fn ours(&self, osd: OsdId) -> impl Iterator<Item = SpgId> + '_ {
        let mine = self.table.iter().filter(move |(_, m)| m.is_acting(osd) || m.is_up(osd));
        mine.flat_map(move |(pg, m)| {
            let erasure = self.pools.get(&pg.pool).is_some_and(|p| p.rules.erasure);
            let both = [Peer::members(&m.up, erasure), Peer::members(&m.acting, erasure)];
            let shards: BTreeSet<i8> =
                both.iter().flatten().filter(|p| p.osd == osd).map(|p| p.shard).collect();
            shards.into_iter().map(move |s| SpgId::new(pg, s))
        })
    }

    /// The pool as PGs see it.
    pub fn pool(&self, pool: PoolId) -> Option<&Arc<PoolView>> {
        self.pools.get(&pool)
    }

    /// What somebody who has `epoch` lacks; `None` if nothing.
    pub fn since(&self, epoch: Epoch) -> Option<MOsdMap> {
        let map = self.map.as_ref().filter(|m| m.epoch > epoch)?;
        let mut out = MOsdMap {
            fsid: map.fsid,
            oldest: self.recent.front().map_or(map.epoch, |(e, _)| *e),
            newest: map.epoch,
            ..MOsdMap::default()
        };
        if epoch > 0 && self.recent.front().is_some_and(|(first, _)| *first <= epoch + 1) {
            out.incrementals = self.recent.iter().filter(|(e, _)| *e > epoch).cloned().collect();
        } else {
            out.fulls = vec![(map.epoch, self.full.clone())];
        }
        Some(out)
    }
}

/// How an erasure-coded pool cuts its objects, by its profile; `None` if that makes no sense.
fn shape_of(map: &OsdMap, pool: &PgPool) -> Option<Shape> {
    let profile = map.ec_profiles.get(&pool.erasure_code_profile)?;
    let number = |key: &str| profile.get(key).and_then(|v| v.parse::<usize>().ok());
    let (k, m) = (number("k")?, number("m")?);
    let unit = u64::from(pool.stripe_width).checked_div(k as u64).filter(|u| *u > 0)?;
    (k + m == usize::from(pool.size)).then_some(Shape { k, m, unit })
}

fn osd_view(map: &OsdMap, osd: OsdId) -> OsdView {
    let info = map.info(osd).copied().unwrap_or_default();
    let up = map.is_up(osd);
    OsdView {
        up,
        up_from: info.up_from,
        up_thru: info.up_thru,
        lost_at: info.lost_at,
        dead: !up && map.xinfo(osd).is_some_and(|x| x.dead_epoch > info.up_from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_encoding::{UTime, to_vec};
    use spirula_maps::osdmap::Crush;

    fn chain(n: u32) -> (OsdMap, Vec<(Epoch, Bytes)>) {
        let first = OsdMap::fresh(Uuid([1; 16]), 1, UTime::ZERO, Crush::default());
        let mut map = first.clone();
        let mut incs = Vec::new();
        for _ in 0..n {
            let mut inc = Incremental::next(&map, UTime { sec: map.epoch, nsec: 0 });
            let full = inc.seal(&map).unwrap();
            incs.push((full.epoch, to_vec(&inc).into()));
            map = full.into_map();
        }
        (first, incs)
    }

    fn message(incrementals: Vec<(Epoch, Bytes)>, fulls: Vec<(Epoch, Bytes)>) -> MOsdMap {
        MOsdMap { fsid: Uuid([1; 16]), incrementals, fulls, oldest: 1, newest: 9 }
    }

    fn take(maps: &mut Maps, m: MOsdMap) -> Result<bool, MapError> {
        let before = maps.epoch();
        maps.accept(Uuid([1; 16]), m)?;
        while maps.advance()? {}
        Ok(maps.epoch() > before)
    }

    #[test]
    fn full_map_then_incrementals_are_followed_and_gaps_ignored() {
        let (first, incs) = chain(5);
        let mut maps = Maps::default();
        assert!(take(&mut maps, message(vec![], vec![(1, first.to_bytes())])).unwrap());
        assert!(take(&mut maps, message(incs[..2].to_vec(), vec![])).unwrap());
        assert_eq!(maps.epoch(), 3);
        assert!(!take(&mut maps, message(incs[4..].to_vec(), vec![])).unwrap());
        assert!(take(&mut maps, message(incs[1..].to_vec(), vec![])).unwrap());
        assert_eq!(maps.epoch(), 6);
        assert_eq!(maps.since(6), None);
        assert_eq!(maps.since(4).unwrap().incrementals.len(), 2);
        assert_eq!(maps.since(0).unwrap().fulls.len(), 1);
    }

    /// A map was lost on its way, and every later one comes: they do not pile up, and what is
    /// wanted is known.
    #[test]
    fn what_came_before_its_time_is_bounded_and_a_gap_is_seen() {
        let n = EARLY as u32 + 300;
        let (first, incs) = chain(n);
        let mut maps = Maps::default();
        assert!(!maps.has_gap());
        take(&mut maps, message(vec![], vec![(1, first.to_bytes())])).unwrap();
        assert!(!maps.has_gap());
        for inc in &incs[1..] {
            assert!(!take(&mut maps, message(vec![inc.clone()], vec![])).unwrap());
        }
        assert_eq!((maps.incoming.len(), maps.has_gap(), maps.wanted()), (EARLY, true, 2));
        assert!(take(&mut maps, message(incs[..1].to_vec(), vec![])).unwrap());
        // It took the place of the last one.
        assert_eq!((maps.epoch(), maps.incoming.len()), (1 + EARLY as u32, 0));
        assert!(maps.has_gap(), "some had to be left out");
        maps.asked();
        assert!(take(&mut maps, message(incs[EARLY..].to_vec(), vec![])).unwrap());
        assert_eq!((maps.epoch(), maps.has_gap()), (n + 1, false));
    }

    #[test]
    fn every_epoch_is_a_step_and_a_full_map_beyond_them_is_a_gap() {
        let (first, incs) = chain(5);
        let mut maps = Maps::default();
        take(&mut maps, message(vec![], vec![(1, first.to_bytes())])).unwrap();
        maps.accept(Uuid([1; 16]), message(incs[..2].to_vec(), vec![])).unwrap();
        let mut seen = Vec::new();
        while maps.advance().unwrap() {
            seen.push(maps.epoch());
            assert!(!maps.view(PgId::new(1, 0)).gap);
        }
        assert_eq!(seen, [2, 3]);
        let mut late = Maps::restore(first.to_bytes()).unwrap();
        take(&mut late, message(vec![], vec![(3, maps.full().clone())])).unwrap();
        assert!(late.epoch() == 3 && late.view(PgId::new(1, 0)).gap);
    }

    /// A map that does not fit would come again for ever; a whole one is asked for, and ends it.
    #[test]
    fn after_a_map_that_does_not_fit_a_whole_one_is_wanted() {
        let (first, incs) = chain(4);
        let mut maps = Maps::default();
        assert_eq!(maps.wanted(), 0);
        take(&mut maps, message(vec![], vec![(1, first.to_bytes())])).unwrap();
        assert_eq!(maps.wanted(), 2);
        // Of another history: what it was made of is not what is here.
        let mut other: Incremental = spirula_encoding::from_slice(&incs[0].1).unwrap();
        other.full_crc ^= 1;
        assert!(
            take(&mut maps, message(vec![(2, spirula_encoding::to_vec(&other).into())], vec![]))
                .is_err()
        );
        assert!((maps.epoch(), maps.wanted(), maps.wants_whole()) == (1, 2, true));
        let mut there = Maps::restore(first.to_bytes()).unwrap();
        take(&mut there, message(incs[..1].to_vec(), vec![])).unwrap();
        // Others may come with it that do not fit, either.
        let wrong = (2, incs[2].1.clone());
        assert!(take(&mut maps, message(vec![wrong], vec![(2, there.full().clone())])).unwrap());
        assert!((maps.epoch(), maps.wanted(), maps.wants_whole()) == (2, 3, false));
        assert!(!maps.view(PgId::new(1, 0)).gap, "no epoch was left out");
        assert!(take(&mut maps, message(incs[1..].to_vec(), vec![])).unwrap());
        assert_eq!(maps.epoch(), 5);
    }

    #[test]
    fn damaged_maps_and_other_clusters_are_refused_and_change_nothing() {
        let (first, incs) = chain(2);
        let mut maps = Maps::default();
        take(&mut maps, message(vec![], vec![(1, first.to_bytes())])).unwrap();
        let mut bad = incs[0].1.to_vec();
        let n = bad.len();
        bad[n - 20] ^= 1;
        assert!(take(&mut maps, message(vec![(2, bad.into())], vec![])).is_err());
        assert!(maps.accept(Uuid([9; 16]), message(vec![], vec![])).is_err());
        assert_eq!(maps.epoch(), 1);
    }
}
