//! Reports for people: cluster status, health, space, everything at once.
//!
//! Pure functions of a [`ClusterView`](crate::view::ClusterView); text and JSON as Ceph 16.2
//! prints them (facts: `tests/data/vectors/cli-output` and a real cluster asked for each
//! state). They change nothing; what a mute is worth is decided here ([`health::Health`]) and
//! made durable by the monitor.

mod checks;
pub mod df;
pub(crate) mod fs;
pub mod health;
pub mod status;
#[cfg(test)]
mod tests;
mod whole;

pub use df::df;
pub use health::health;
pub use status::status;
pub use whole::{Agreed, report};

use crate::view::ClusterView;
use serde_json::Value;
use spirula_maps::StoreStatfs;
use spirula_types::PoolId;

/// Readings that several reports share.
impl ClusterView<'_> {
    /// Space of all OSDs that are in.
    pub(crate) fn space(&self) -> StoreStatfs {
        self.mgr.digest.osd_sum(|o| self.osdmap.is_in(o)).statfs
    }

    /// Objects in a pool, as far as known.
    fn pool_objects(&self, pool: PoolId) -> i64 {
        self.mgr.digest.pools.get(&pool).map_or(0, |p| p.stat.stats.sum.num_objects)
    }

    /// Copies that new pools get.
    fn pool_default_size(&self) -> u64 {
        const CEPHS_DEFAULT: u64 = 3;
        const NAME: &str = "osd_pool_default_size";
        let set = self.config.get_for("mon", NAME).or_else(|| self.defaults.get(NAME).cloned());
        set.and_then(|v| v.parse().ok()).unwrap_or(CEPHS_DEFAULT)
    }

    /// An option of monitors: as it is set, as it was when the cluster was made, or Ceph's default.
    fn mon_option(&self, name: &str) -> String {
        let set = self.config.get_for("mon", name).or_else(|| self.defaults.get(name).cloned());
        set.unwrap_or_else(|| {
            crate::options::find(name).map_or_else(String::new, |o| o.default.to_owned())
        })
    }

    /// The service map, as far as a manager has told it.
    fn servicemap(&self) -> Value {
        self.mgr.services.dump()
    }
}
