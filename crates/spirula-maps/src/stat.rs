//! Ceph's statistics of objects, pools and stores.

use serde_json::{Map, Value, json};
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};
use spirula_types::PoolId;

macro_rules! counters {
    ($(#[$m:meta])* $name:ident { $($(#[$fm:meta])* $f:ident : $t:ident),* $(,)? }) => {
        $(#[$m])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$fm])* pub $f: $t,)* }
        impl $name {
            /// Adds every counter of `o`.
            pub fn add(&mut self, o: &Self) {
                $(self.$f = self.$f.wrapping_add(o.$f);)*
            }
            /// Subtracts every counter of `o`.
            pub fn sub(&mut self, o: &Self) {
                $(self.$f = self.$f.wrapping_sub(o.$f);)*
            }
            /// Names and values, in Ceph's field order.
            pub fn fields(&self) -> Vec<(&'static str, i64)> {
                vec![$((stringify!($f), i64::from(self.$f)),)*]
            }
            fn encode_fields(&self, o: &mut Encoder) {
                $(o.$t(self.$f);)*
            }
            fn decode_fields(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                Ok(Self { $($f: d.$t()?,)* })
            }
        }
    };
}

counters! {
    /// What a PG or pool holds and has done (object_stat_sum_t v20). Bytes, objects, operations,
    /// KiB as named.
    ObjectStatSum {
        /// Logical bytes.
        num_bytes: i64,
        /// Objects, clones included.
        num_objects: i64,
        /// Clones among them.
        num_object_clones: i64,
        /// Objects times copies wanted.
        num_object_copies: i64,
        /// Objects the primary lacks.
        num_objects_missing_on_primary: i64,
        /// Copies lacking.
        num_objects_degraded: i64,
        /// Objects with no known good copy.
        num_objects_unfound: i64,
        /// Reads.
        num_rd: i64,
        /// KiB read.
        num_rd_kb: i64,
        /// Writes.
        num_wr: i64,
        /// KiB written.
        num_wr_kb: i64,
        /// Errors found by scrub.
        num_scrub_errors: i64,
        /// Objects recovered.
        num_objects_recovered: i64,
        /// Bytes recovered.
        num_bytes_recovered: i64,
        /// Omap keys recovered.
        num_keys_recovered: i64,
        /// Errors found by shallow scrub.
        num_shallow_scrub_errors: i64,
        /// Errors found by deep scrub.
        num_deep_scrub_errors: i64,
        /// Dirty objects (cache tiers).
        num_objects_dirty: i64,
        /// Deleted heads with clones.
        num_whiteouts: i64,
        /// Objects with omap.
        num_objects_omap: i64,
        /// Hit-set objects.
        num_objects_hit_set_archive: i64,
        /// Copies on wrong OSDs.
        num_objects_misplaced: i64,
        /// Bytes of hit sets.
        num_bytes_hit_set_archive: i64,
        /// Flushes.
        num_flush: i64,
        /// KiB flushed.
        num_flush_kb: i64,
        /// Evictions.
        num_evict: i64,
        /// KiB evicted.
        num_evict_kb: i64,
        /// Promotions.
        num_promote: i64,
        /// PGs flushing hard.
        num_flush_mode_high: i32,
        /// PGs flushing.
        num_flush_mode_low: i32,
        /// PGs evicting.
        num_evict_mode_some: i32,
        /// PGs full.
        num_evict_mode_full: i32,
        /// Pinned objects.
        num_objects_pinned: i64,
        /// Objects missing on any shard.
        num_objects_missing: i64,
        /// Snapsets of an old form.
        num_legacy_snapsets: i64,
        /// Objects with too large an omap.
        num_large_omap_objects: i64,
        /// Manifest objects.
        num_objects_manifest: i64,
        /// Omap bytes.
        num_omap_bytes: i64,
        /// Omap keys.
        num_omap_keys: i64,
        /// Objects repaired.
        num_objects_repaired: i64,
    }
}

impl ObjectStatSum {
    /// As Ceph dumps it: other names and another order than on the wire.
    pub fn dump(&self) -> Value {
        let mut rest = self.fields();
        let mut m = Map::new();
        for key in DUMP_ORDER {
            let field = match *key {
                "num_read" => "num_rd",
                "num_read_kb" => "num_rd_kb",
                "num_write" => "num_wr",
                "num_write_kb" => "num_wr_kb",
                same => same,
            };
            if let Some(at) = rest.iter().position(|(n, _)| *n == field) {
                m.insert((*key).into(), rest.swap_remove(at).1.into());
            }
        }
        Value::Object(m)
    }
}

const DUMP_ORDER: &[&str] = &[
    "num_bytes",
    "num_objects",
    "num_object_clones",
    "num_object_copies",
    "num_objects_missing_on_primary",
    "num_objects_missing",
    "num_objects_degraded",
    "num_objects_misplaced",
    "num_objects_unfound",
    "num_objects_dirty",
    "num_whiteouts",
    "num_read",
    "num_read_kb",
    "num_write",
    "num_write_kb",
    "num_scrub_errors",
    "num_shallow_scrub_errors",
    "num_deep_scrub_errors",
    "num_objects_recovered",
    "num_bytes_recovered",
    "num_keys_recovered",
    "num_objects_omap",
    "num_objects_hit_set_archive",
    "num_bytes_hit_set_archive",
    "num_flush",
    "num_flush_kb",
    "num_evict",
    "num_evict_kb",
    "num_promote",
    "num_flush_mode_high",
    "num_flush_mode_low",
    "num_evict_mode_some",
    "num_evict_mode_full",
    "num_objects_pinned",
    "num_legacy_snapsets",
    "num_large_omap_objects",
    "num_objects_manifest",
    "num_omap_bytes",
    "num_omap_keys",
    "num_objects_repaired",
];

impl Encode for ObjectStatSum {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(20, 14, |o| self.encode_fields(o));
    }
}

impl Decode for ObjectStatSum {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("object_stat_sum_t", 20, |d, v| {
            if v < 20 {
                return Err(DecodeError::TooOld {
                    what: "object_stat_sum_t",
                    version: v,
                    oldest: 20,
                });
            }
            Self::decode_fields(d)
        })
    }
}

/// Statistics of a collection of objects (object_stat_collection_t).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectStatCollection {
    /// The sum.
    pub sum: ObjectStatSum,
}

impl Encode for ObjectStatCollection {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(2, 2, |o| {
            o.put(&self.sum);
            // Per-category sums, gone since Emperor.
            o.u32(0);
        });
    }
}

impl Decode for ObjectStatCollection {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("object_stat_collection_t", 2, |d, _| Ok(Self { sum: d.get()? }))
    }
}

counters! {
    /// Space of a store, or a pool's part of it, in bytes (store_statfs_t).
    StoreStatfs {
        /// Size of the device.
        total: i64,
        /// Bytes still free.
        available: i64,
        /// Bytes kept by the store for itself.
        internally_reserved: i64,
        /// Bytes allocated.
        allocated: i64,
        /// Bytes of user data.
        data_stored: i64,
        /// Bytes after compression, of what was compressed.
        data_compressed: i64,
        /// Bytes allocated for compressed data.
        data_compressed_allocated: i64,
        /// Bytes before compression, of what was compressed.
        data_compressed_original: i64,
        /// Bytes of omap.
        omap_allocated: i64,
        /// Bytes of metadata.
        internal_metadata: i64,
    }
}

impl StoreStatfs {
    /// Raw bytes in use: all that is neither free nor reserved.
    pub fn used_raw(&self) -> i64 {
        self.total.wrapping_sub(self.available).wrapping_sub(self.internally_reserved)
    }

    /// As Ceph dumps it.
    pub fn dump(&self) -> Value {
        Value::Object(self.fields().into_iter().map(|(k, v)| (k.to_string(), v.into())).collect())
    }
}

impl Encode for StoreStatfs {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| self.encode_fields(o));
    }
}

impl Decode for StoreStatfs {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("store_statfs_t", 1, |d, _| Self::decode_fields(d))
    }
}

/// Statistics of a pool (pool_stat_t v7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStat {
    /// Objects.
    pub stats: ObjectStatCollection,
    /// Log entries.
    pub log_size: i64,
    /// Log entries on disk.
    pub ondisk_log_size: i64,
    /// Number of up slots over all PGs.
    pub up: i32,
    /// Number of acting slots over all PGs.
    pub acting: i32,
    /// Space.
    pub store_stats: StoreStatfs,
    /// How many OSDs reported `store_stats`.
    pub num_store_stats: u32,
}

impl PoolStat {
    /// As `pg dump pools -f json` prints an entry, key by key.
    pub fn dump(&self, pool: PoolId, num_pgs: u32) -> Value {
        json!({
            "poolid": pool,
            "num_pg": num_pgs,
            "stat_sum": self.stats.sum.dump(),
            "store_stats": self.store_stats.dump(),
            "log_size": self.log_size,
            "ondisk_log_size": self.ondisk_log_size,
            "up": self.up,
            "acting": self.acting,
            "num_store_stats": self.num_store_stats,
        })
    }
}

impl Encode for PoolStat {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(7, 5, |o| {
            o.put(&self.stats);
            o.i64(self.log_size);
            o.i64(self.ondisk_log_size);
            o.i32(self.up);
            o.i32(self.acting);
            o.put(&self.store_stats);
            o.u32(self.num_store_stats);
        });
    }
}

impl Decode for PoolStat {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("pool_stat_t", 7, |d, v| {
            if v < 7 {
                return Err(DecodeError::TooOld { what: "pool_stat_t", version: v, oldest: 7 });
            }
            Ok(Self {
                stats: d.get()?,
                log_size: d.i64()?,
                ondisk_log_size: d.i64()?,
                up: d.i32()?,
                acting: d.i32()?,
                store_stats: d.get()?,
                num_store_stats: d.u32()?,
            })
        })
    }
}
