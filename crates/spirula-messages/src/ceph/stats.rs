//! Statistics of a pool, inside `MGetPoolStatsReply`. Layout: `docs/protocol/mon.md` §2 and
//! `vectors/maps/poolstats-reply.json`.

use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};

macro_rules! object_stats {
    ($($(#[$doc:meta])* $name:ident: $t:ident;)*) => {
        /// Counts of a pool or PG (`object_stat_sum_t` v20). Field names are Ceph's.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
        pub struct ObjectStats {
            $($(#[$doc])* pub $name: $t,)*
        }

        impl Encode for ObjectStats {
            fn encode(&self, out: &mut Encoder) {
                out.versioned(20, 14, |o| { $(o.$t(self.$name);)* });
            }
        }

        impl Decode for ObjectStats {
            fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                d.versioned("object_stat_sum_t", 20, |d, v| {
                    if v < 20 {
                        return Err(DecodeError::TooOld { what: "object_stat_sum_t", version: v, oldest: 20 });
                    }
                    Ok(Self { $($name: d.$t()?,)* })
                })
            }
        }
    };
}

object_stats! {
    /// Bytes stored.
    num_bytes: i64;
    /// Objects, clones included.
    num_objects: i64;
    /// Clones.
    num_object_clones: i64;
    /// Objects times copies.
    num_object_copies: i64;
    /// Missing on the primary.
    num_objects_missing_on_primary: i64;
    /// Copies missing.
    num_objects_degraded: i64;
    /// Objects nobody has.
    num_objects_unfound: i64;
    /// Reads.
    num_rd: i64;
    /// KiB read.
    num_rd_kb: i64;
    /// Writes.
    num_wr: i64;
    /// KiB written.
    num_wr_kb: i64;
    /// Scrub errors.
    num_scrub_errors: i64;
    /// Objects recovered.
    num_objects_recovered: i64;
    /// Bytes recovered.
    num_bytes_recovered: i64;
    /// Keys recovered.
    num_keys_recovered: i64;
    /// Shallow scrub errors.
    num_shallow_scrub_errors: i64;
    /// Deep scrub errors.
    num_deep_scrub_errors: i64;
    /// Objects dirty.
    num_objects_dirty: i64;
    /// Whiteouts.
    num_whiteouts: i64;
    /// Objects omap.
    num_objects_omap: i64;
    /// Objects hit set archive.
    num_objects_hit_set_archive: i64;
    /// Objects misplaced.
    num_objects_misplaced: i64;
    /// Bytes hit set archive.
    num_bytes_hit_set_archive: i64;
    /// Flush.
    num_flush: i64;
    /// Flush kb.
    num_flush_kb: i64;
    /// Evict.
    num_evict: i64;
    /// Evict kb.
    num_evict_kb: i64;
    /// Promote.
    num_promote: i64;
    /// Flush mode high.
    num_flush_mode_high: i32;
    /// Flush mode low.
    num_flush_mode_low: i32;
    /// Evict mode some.
    num_evict_mode_some: i32;
    /// Evict mode full.
    num_evict_mode_full: i32;
    /// Objects pinned.
    num_objects_pinned: i64;
    /// Objects missing.
    num_objects_missing: i64;
    /// Legacy snapsets.
    num_legacy_snapsets: i64;
    /// Large omap objects.
    num_large_omap_objects: i64;
    /// Objects manifest.
    num_objects_manifest: i64;
    /// Omap bytes.
    num_omap_bytes: i64;
    /// Omap keys.
    num_omap_keys: i64;
    /// Objects repaired.
    num_objects_repaired: i64;
}

/// Space of a pool (`store_statfs_t` v1), in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StoreStats {
    /// Total.
    pub total: i64,
    /// Available.
    pub available: i64,
    /// Internally reserved.
    pub internally_reserved: i64,
    /// Allocated.
    pub allocated: i64,
    /// Data stored.
    pub data_stored: i64,
    /// Data compressed.
    pub data_compressed: i64,
    /// Data compressed allocated.
    pub data_compressed_allocated: i64,
    /// Data compressed original.
    pub data_compressed_original: i64,
    /// Omap allocated.
    pub omap_allocated: i64,
    /// Internal metadata.
    pub internal_metadata: i64,
}

impl Encode for StoreStats {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.i64(self.total);
            o.i64(self.available);
            o.i64(self.internally_reserved);
            o.i64(self.allocated);
            o.i64(self.data_stored);
            o.i64(self.data_compressed);
            o.i64(self.data_compressed_allocated);
            o.i64(self.data_compressed_original);
            o.i64(self.omap_allocated);
            o.i64(self.internal_metadata);
        });
    }
}

impl Decode for StoreStats {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("store_statfs_t", 1, |d, _| {
            Ok(Self {
                total: d.i64()?,
                available: d.i64()?,
                internally_reserved: d.i64()?,
                allocated: d.i64()?,
                data_stored: d.i64()?,
                data_compressed: d.i64()?,
                data_compressed_allocated: d.i64()?,
                data_compressed_original: d.i64()?,
                omap_allocated: d.i64()?,
                internal_metadata: d.i64()?,
            })
        })
    }
}

/// Statistics of a pool (`pool_stat_t` v7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PoolStats {
    /// Object counts.
    pub stats: ObjectStats,
    /// Log entries.
    pub log_size: i64,
    /// Log entries on disk.
    pub ondisk_log_size: i64,
    /// Up OSDs, summed over the PGs.
    pub up: i32,
    /// Acting OSDs, summed over the PGs.
    pub acting: i32,
    /// Space.
    pub store: StoreStats,
    /// OSDs that contributed.
    pub num_store_stats: u32,
}

impl Encode for PoolStats {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(7, 5, |o| {
            o.versioned(2, 2, |o| {
                o.put(&self.stats);
                o.u32(0); // statistics by category: gone
            });
            o.i64(self.log_size);
            o.i64(self.ondisk_log_size);
            o.i32(self.up);
            o.i32(self.acting);
            o.put(&self.store);
            o.u32(self.num_store_stats);
        });
    }
}

impl Decode for PoolStats {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("pool_stat_t", 7, |d, v| {
            if v < 7 {
                return Err(DecodeError::TooOld { what: "pool_stat_t", version: v, oldest: 7 });
            }
            Ok(Self {
                stats: d.versioned("object_stat_collection_t", 2, |d, _| d.get())?,
                log_size: d.i64()?,
                ondisk_log_size: d.i64()?,
                up: d.i32()?,
                acting: d.i32()?,
                store: d.get()?,
                num_store_stats: d.u32()?,
            })
        })
    }
}
