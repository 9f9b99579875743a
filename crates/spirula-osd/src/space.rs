//! How full the store is, and which requests a full one refuses.

use crate::osd::OsdCore;
use spirula_maps::osdmap::opts::opt;
use spirula_maps::osdmap::state;
use spirula_maps::{OsdMap, PgPool};
use spirula_messages::ceph::{OsdOp, op};
use spirula_pg::exec;
use spirula_store::{Algorithm, Checksum, CompressionMode, PoolOptions, Statfs, Store};
use spirula_types::PgId;

/// Most space of a store that is not offered, bytes.
const KEPT_BACK: u64 = 256 << 20;
/// Use above which nothing that grows is written.
const FAILSAFE_RATIO: f64 = 0.97;

/// Space of a store as it is offered: see [`OsdCore::space`]. `waits`: a PG waits for room.
fn offered(store: &Store, waits: bool) -> Statfs {
    let mut s = store.statfs();
    let kept = (s.total / 8).min(KEPT_BACK);
    s.available = if waits { 0 } else { s.available.saturating_sub(kept) };
    s.total = s.total.saturating_sub(kept + s.kept) + s.beside;
    s
}

fn is_above(s: &Statfs, ratio: f64) -> bool {
    s.total.saturating_sub(s.available) as f64 >= ratio * s.total as f64
}

/// The space when the copies hold the bytes that are due, and nothing old besides. In what is due,
/// what clones share counts once: so it must in what is here, or each snapshot would pass for
/// something old.
fn when_whole(mut s: Statfs, due: u64) -> Statfs {
    let old = u128::from(s.packed.saturating_sub(due));
    let freed = old * u128::from(s.used) / u128::from(s.packed.max(1));
    s.available = s.total.min(s.available.saturating_add(u64::try_from(freed).unwrap_or(u64::MAX)));
    s
}

/// Is a store so full that nothing that grows is written?
pub(crate) fn is_failsafe_full(store: &Store, waits: bool) -> bool {
    is_above(&offered(store, waits), FAILSAFE_RATIO)
}

impl OsdCore {
    /// Space of the store as it is reported: some is kept back for what is on its way when
    /// the cluster learns that it is full, and for deleting. What lies beside the data space
    /// counts, too, so that what is used is what the host's disk has of it.
    pub fn space(&self) -> Option<Statfs> {
        Some(offered(self.store.as_ref()?, self.waits.any_for_room()))
    }

    /// Tells the store how the data of each pool is to be stored.
    pub(crate) fn follow_pool_options(&mut self, map: &OsdMap) {
        if map.state(self.cfg.id) & state::FULL != 0 {
            self.reporter.map_says_full();
        }
        let Some(store) = &mut self.store else { return };
        for (id, pool) in &map.pools {
            store.set_pool_options(*id, pool_options(pool));
        }
    }

    /// Above the map's full ratio?
    pub(crate) fn is_full(&self) -> bool {
        self.is_above(self.maps.map().map_or(0.95, |m| f64::from(m.full_ratio)))
    }

    /// Does the newest map say that we are full?
    pub(crate) fn is_full_in_map(&self) -> bool {
        self.maps.map().is_some_and(|m| m.state(self.cfg.id) & state::FULL != 0)
    }

    /// So full that not even what a client forces is written (Ceph's `osd_failsafe_full_ratio`)?
    pub(crate) fn is_failsafe_full(&self) -> bool {
        self.is_above(FAILSAFE_RATIO)
    }

    /// Is a member of the PG so full? Its disk may be smaller than ours; a write that it has no
    /// room for would stop it.
    pub(crate) fn has_full_member(&self, pg: PgId) -> bool {
        let Some(map) = self.maps.map().filter(|_| !self.full_peers.is_empty()) else {
            return false;
        };
        let placed = map.pg_to_up_acting(pg);
        placed.up.iter().chain(&placed.acting).any(|o| self.full_peers.contains(o))
    }

    /// Too full to be the target of a backfill, or of recovery by the log?
    ///
    /// A backfill is judged by how full the OSD will be when its copies hold what they should. One
    /// that was away while most was deleted comes back full of what the backfill alone takes away:
    /// judged by what it has, it would wait for ever.
    pub(crate) fn is_too_full(&self, backfill: bool) -> bool {
        if !backfill {
            return self.is_full();
        }
        let ratio = self.maps.map().map_or(0.9, |m| f64::from(m.backfillfull_ratio));
        let Some(s) = self.space().filter(|s| is_above(s, ratio)) else { return false };
        let due = self.pgs.values().map(|p| p.bytes_due()).fold(0, u64::saturating_add);
        is_above(&s, FAILSAFE_RATIO) || is_above(&when_whole(s, due), ratio)
    }

    fn is_above(&self, ratio: f64) -> bool {
        self.space().is_some_and(|s| is_above(&s, ratio))
    }
}

/// What a pool's options say of how its data is stored; the store's defaults for the rest.
fn pool_options(pool: &PgPool) -> PoolOptions {
    let mut o = PoolOptions::default();
    let opts = &pool.opts;
    o.mode = match opts.str(opt::COMPRESSION_MODE) {
        Some("passive") => CompressionMode::Passive,
        Some("aggressive") => CompressionMode::Aggressive,
        Some("force") => CompressionMode::Force,
        _ => CompressionMode::None,
    };
    match opts.str(opt::COMPRESSION_ALGORITHM) {
        Some("lz4") => o.algorithm = Algorithm::Lz4,
        Some("zstd") => o.algorithm = Algorithm::Zstd,
        Some("zlib") => o.algorithm = Algorithm::Zlib,
        Some("none") => o.mode = CompressionMode::None,
        _ => {}
    }
    if let Some(r) = opts.double(opt::COMPRESSION_REQUIRED_RATIO) {
        o.required_ratio = r;
    }
    let size = |key| opts.int(key).and_then(|n| u32::try_from(n).ok());
    o.max_blob = size(opt::COMPRESSION_MAX_BLOB_SIZE).unwrap_or(o.max_blob);
    o.min_blob = size(opt::COMPRESSION_MIN_BLOB_SIZE).unwrap_or(o.min_blob);
    match opts.int(opt::CSUM_TYPE) {
        Some(opt::CSUM_XXHASH64) => o.checksum = Checksum::Xxhash64,
        Some(opt::CSUM_CRC32C_16) => o.checksum = Checksum::Crc32c16,
        Some(opt::CSUM_CRC32C_8) => o.checksum = Checksum::Crc32c8,
        _ => {}
    }
    o
}

/// Does a request take space (or may it)? One that `tries` (FULL_TRY, as what removes images does)
/// calls methods that bring next to nothing on a full OSD, too.
pub(crate) fn grows(ops: &[OsdOp], tries: bool) -> bool {
    ops.iter().any(|o| match o.op {
        op::CALL => {
            exec::called(o).is_some_and(|(class, m)| m.flags.write && (!tries || class.brings(m)))
        }
        op::WRITE
        | op::WRITEFULL
        | op::APPEND
        | op::WRITESAME
        | op::CREATE
        | op::SETXATTR
        | op::OMAP_SET_VALS
        | op::OMAP_SET_HEADER
        | op::COPY_FROM
        | op::COPY_FROM2 => true,
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_old_counts_as_free_when_a_copy_is_to_be_filled() {
        let s = Statfs { total: 1000, available: 80, used: 600, packed: 500, ..Statfs::default() };
        assert!(is_above(&s, 0.9));
        // Of 500 bytes 400 are old: they take 480 of the 600 that are used.
        assert_eq!(when_whole(s, 100).available, 560);
        // A copy that grows, or of which nothing is old, gives nothing.
        assert_eq!((when_whole(s, 500).available, when_whole(s, 900).available), (80, 80));
        assert_eq!(when_whole(Statfs { packed: 0, ..s }, 0).available, 80);
        // A hundred clones that share what they hold are not old.
        assert_eq!(when_whole(Statfs { stored: 50_000, ..s }, 500).available, 80);
    }
}
