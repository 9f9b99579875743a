//! Where PGs are served by one map.
//!
//! CRUSH takes more time than all else that is done to send a small operation. What it gave for a
//! PG holds for as long as the map is the same: a map's contents follow from its epoch, so that
//! whatever was found by another epoch is forgotten, and nothing else.

use super::Target;
use spirula_maps::OsdMap;
use spirula_types::{Epoch, PgId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// PGs that are remembered; all are forgotten when there would be more.
const MOST: usize = 16_384;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Places {
    epoch: Epoch,
    known: BTreeMap<PgId, Arc<Target>>,
}

impl Places {
    /// Where an object of this pool and hash is served by `map`; `None` without the pool.
    pub(super) fn of(&mut self, map: &OsdMap, pool: i64, hash: u32) -> Option<Arc<Target>> {
        let pg = PgId::new(pool, map.pool(pool)?.pg_of_hash(hash));
        if self.epoch != map.epoch || self.known.len() >= MOST {
            self.epoch = map.epoch;
            self.known.clear();
        }
        if let Some(known) = self.known.get(&pg) {
            return Some(known.clone());
        }
        let target = Arc::new(Target::of(map, pg)?);
        self.known.insert(pg, target.clone());
        Some(target)
    }
}
