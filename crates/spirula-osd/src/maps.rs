//! Following the OSD map: from the monitor's messages to what each PG must know.
//!
//! Keeps the newest map, the mapping of all PGs, and the latest incrementals as they came,
//! to hand on to clients that lag behind.

use bytes::Bytes;
use spirula_encoding::DecodeError;
use spirula_maps::osdmap::pool::flag;
use spirula_maps::osdmap::{ApplyError, EncodedOsdMap, Incremental, OsdMap, PgTable, flags};
use spirula_messages::ceph::MOsdMap;
use spirula_pg::exec::{Fullness, PoolRules};
use spirula_pg::{MapView, PoolView};
use spirula_types::{Epoch, OSD_NONE, OsdId, PgId, PoolId, Uuid};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Incrementals kept for clients; who lacks more gets a full map.
const KEEP: usize = 200;

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
    table: PgTable,
    osds: Arc<BTreeMap<OsdId, Epoch>>,
    pools: BTreeMap<PoolId, Arc<PoolView>>,
}

impl Maps {
    /// Epoch of the newest map, 0 before the first.
    pub fn epoch(&self) -> Epoch {
        self.map.as_ref().map_or(0, |m| m.epoch)
    }

    /// The newest map.
    pub fn map(&self) -> Option<&Arc<OsdMap>> {
        self.map.as_ref()
    }

    /// Takes what a message brings; true if there is a newer map now. Maps that leave a gap
    /// are not taken (the monitor sends what was subscribed to).
    ///
    /// # Errors
    /// [`MapError`]; the map is as before, or that of the last incremental that was good.
    pub fn take(&mut self, ours: Uuid, m: MOsdMap) -> Result<bool, MapError> {
        if m.fsid != ours {
            return Err(MapError::OtherCluster { ours, theirs: m.fsid });
        }
        let before = self.epoch();
        let mut result = Ok(());
        if let Some((epoch, bytes)) = m.fulls.into_iter().next_back()
            && epoch > before
            && !m.incrementals.iter().any(|(e, _)| *e == before + 1)
        {
            let full = EncodedOsdMap::from_bytes(bytes).map_err(|source| MapError::Decode { epoch, source })?;
            self.full = full.bytes().clone();
            self.map = Some(Arc::new(full.into_map()));
            self.recent.clear();
        }
        for (epoch, bytes) in m.incrementals {
            if epoch != self.epoch() + 1 || self.map.is_none() {
                continue;
            }
            if let Err(e) = self.apply(epoch, bytes) {
                result = Err(e);
                break;
            }
        }
        if self.epoch() > before {
            self.derive();
        }
        result.map(|()| self.epoch() > before)
    }

    fn apply(&mut self, epoch: Epoch, bytes: Bytes) -> Result<(), MapError> {
        let inc: Incremental =
            spirula_encoding::from_slice(&bytes).map_err(|source| MapError::Decode { epoch, source })?;
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

    fn derive(&mut self) {
        let Some(map) = &self.map else { return };
        self.table = map.map_all();
        let up = map.osds().filter(|o| map.is_up(*o));
        self.osds = Arc::new(up.map(|o| (o, map.info(o).map_or(0, |i| i.up_from))).collect());
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
                let view = PoolView {
                    size: usize::from(p.size),
                    min_size: usize::from(p.min_size),
                    pg_num: p.pg_num,
                    force_resend: p.last_force_op_resend,
                    rules: PoolRules {
                        erasure: p.is_erasure(),
                        append_alignment: appends_only.then(|| u64::from(p.stripe_width.max(1))),
                        fullness,
                    },
                };
                (*id, Arc::new(view))
            })
            .collect();
    }

    /// What the newest map says about a PG. Without a map: nothing is anywhere.
    pub fn view(&self, pg: PgId) -> MapView {
        let pool = self.pools.get(&pg.pool).filter(|p| pg.seed < p.pg_num).cloned();
        let clean = |v: &[OsdId]| v.iter().copied().filter(|o| *o != OSD_NONE).collect();
        let (up, acting, up_primary, primary) = match self.table.get(pg) {
            Some(m) => (clean(&m.up), clean(&m.acting), m.up_primary, m.acting_primary),
            None => (Vec::new(), Vec::new(), -1, -1),
        };
        MapView { epoch: self.epoch(), pool, up, acting, up_primary, primary, osds: self.osds.clone() }
    }

    /// PGs that this OSD is to serve.
    pub fn ours(&self, osd: OsdId) -> impl Iterator<Item = PgId> + '_ {
        self.table.iter().filter(move |(_, m)| m.is_acting(osd) || m.is_up(osd)).map(|(pg, _)| pg)
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

    #[test]
    fn full_map_then_incrementals_are_followed_and_gaps_ignored() {
        let (first, incs) = chain(5);
        let mut maps = Maps::default();
        assert!(maps.take(Uuid([1; 16]), message(vec![], vec![(1, first.to_bytes())])).unwrap());
        assert!(maps.take(Uuid([1; 16]), message(incs[..2].to_vec(), vec![])).unwrap());
        assert_eq!(maps.epoch(), 3);
        assert!(!maps.take(Uuid([1; 16]), message(incs[4..].to_vec(), vec![])).unwrap());
        assert!(maps.take(Uuid([1; 16]), message(incs[1..].to_vec(), vec![])).unwrap());
        assert_eq!(maps.epoch(), 6);
        assert_eq!(maps.since(6), None);
        assert_eq!(maps.since(4).unwrap().incrementals.len(), 2);
        assert_eq!(maps.since(0).unwrap().fulls.len(), 1);
    }

    #[test]
    fn damaged_maps_and_other_clusters_are_refused_and_change_nothing() {
        let (first, incs) = chain(2);
        let mut maps = Maps::default();
        maps.take(Uuid([1; 16]), message(vec![], vec![(1, first.to_bytes())])).unwrap();
        let mut bad = incs[0].1.to_vec();
        let n = bad.len();
        bad[n - 20] ^= 1;
        assert!(maps.take(Uuid([1; 16]), message(vec![(2, bad.into())], vec![])).is_err());
        assert!(maps.take(Uuid([9; 16]), message(vec![], vec![])).is_err());
        assert_eq!(maps.epoch(), 1);
    }
}
