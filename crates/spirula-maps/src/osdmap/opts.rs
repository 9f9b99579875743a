//! Pool options: the ones a pool overrides, by number, with their names and types.

use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};
use std::collections::BTreeMap;

/// Value of a pool option.
#[derive(Clone, Debug, PartialEq)]
pub enum PoolOptValue {
    /// Text (wire type 0).
    Str(String),
    /// Number (wire type 1).
    Int(i64),
    /// Float (wire type 2).
    Double(f64),
}

/// Type of a pool option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolOptType {
    /// Text.
    Str,
    /// Number.
    Int,
    /// Float.
    Double,
}

/// Numbers of the options we use ourselves.
pub mod opt {
    /// Least seconds between shallow scrubs.
    pub const SCRUB_MIN_INTERVAL: i32 = 0;
    /// Seconds after which a scrub is late.
    pub const SCRUB_MAX_INTERVAL: i32 = 1;
    /// Seconds between deep scrubs.
    pub const DEEP_SCRUB_INTERVAL: i32 = 2;
    /// Priority of recovery, from −10 to 10.
    pub const RECOVERY_PRIORITY: i32 = 3;
    /// `recovery_op_priority`: whose turn of recovery comes first.
    pub const RECOVERY_OP_PRIORITY: i32 = 4;
    /// `scrub_priority`: whose turn of a scrub comes first.
    pub const SCRUB_PRIORITY: i32 = 5;
    /// Compression mode.
    pub const COMPRESSION_MODE: i32 = 6;
    /// Compression algorithm.
    pub const COMPRESSION_ALGORITHM: i32 = 7;
    /// Required ratio for keeping a compressed blob.
    pub const COMPRESSION_REQUIRED_RATIO: i32 = 8;
    /// Most bytes compressed as one piece.
    pub const COMPRESSION_MAX_BLOB_SIZE: i32 = 9;
    /// Fewer bytes are not compressed.
    pub const COMPRESSION_MIN_BLOB_SIZE: i32 = 10;
    /// Kind of data checksums, one of the `CSUM_…` numbers.
    pub const CSUM_TYPE: i32 = 11;
    /// Value of [`CSUM_TYPE`]: xxHash64.
    pub const CSUM_XXHASH64: i64 = 3;
    /// Value of [`CSUM_TYPE`]: crc32c.
    pub const CSUM_CRC32C: i64 = 4;
    /// Value of [`CSUM_TYPE`]: the low 16 bits of crc32c.
    pub const CSUM_CRC32C_16: i64 = 5;
    /// Value of [`CSUM_TYPE`]: the low 8 bits of crc32c.
    pub const CSUM_CRC32C_8: i64 = 6;
    /// Least `pg_num` for the autoscaler.
    pub const PG_NUM_MIN: i32 = 15;
    /// Expected bytes in the pool.
    pub const TARGET_SIZE_BYTES: i32 = 16;
    /// Expected share of the cluster.
    pub const TARGET_SIZE_RATIO: i32 = 17;
    /// Factor for the autoscaler.
    pub const PG_AUTOSCALE_BIAS: i32 = 18;
    /// Most `pg_num` for the autoscaler.
    pub const PG_NUM_MAX: i32 = 23;
}

/// Options of Pacific, ordered by name (the order in which Ceph prints them): name, number, type.
pub const POOL_OPTS: &[(&str, i32, PoolOptType)] = {
    use PoolOptType::{Double, Int, Str};
    &[
        ("compression_algorithm", 7, Str),
        ("compression_max_blob_size", 9, Int),
        ("compression_min_blob_size", 10, Int),
        ("compression_mode", 6, Str),
        ("compression_required_ratio", 8, Double),
        ("csum_max_block", 12, Int),
        ("csum_min_block", 13, Int),
        ("csum_type", 11, Int),
        ("dedup_cdc_chunk_size", 22, Int),
        ("dedup_chunk_algorithm", 21, Str),
        ("dedup_tier", 20, Int),
        ("deep_scrub_interval", 2, Double),
        ("fingerprint_algorithm", 14, Str),
        ("pg_autoscale_bias", 18, Double),
        ("pg_num_max", 23, Int),
        ("pg_num_min", 15, Int),
        ("read_lease_interval", 19, Double),
        ("recovery_op_priority", 4, Int),
        ("recovery_priority", 3, Int),
        ("scrub_max_interval", 1, Double),
        ("scrub_min_interval", 0, Double),
        ("scrub_priority", 5, Int),
        ("target_size_bytes", 16, Int),
        ("target_size_ratio", 17, Double),
    ]
};

/// Number and type of the option called `name`.
pub fn lookup(name: &str) -> Option<(i32, PoolOptType)> {
    POOL_OPTS.iter().find(|(n, ..)| *n == name).map(|(_, k, t)| (*k, *t))
}

/// A pool's options (pool_opts_t v2), by number.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolOpts(pub BTreeMap<i32, PoolOptValue>);

impl PoolOpts {
    /// A number, if set.
    pub fn int(&self, key: i32) -> Option<i64> {
        match self.0.get(&key) {
            Some(PoolOptValue::Int(v)) => Some(*v),
            _ => None,
        }
    }

    /// A float, if set.
    pub fn double(&self, key: i32) -> Option<f64> {
        match self.0.get(&key) {
            Some(PoolOptValue::Double(v)) => Some(*v),
            _ => None,
        }
    }

    /// A text, if set.
    pub fn str(&self, key: i32) -> Option<&str> {
        match self.0.get(&key) {
            Some(PoolOptValue::Str(v)) => Some(v),
            _ => None,
        }
    }

    /// Options that are set and known, in the order Ceph prints them.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, &PoolOptValue)> {
        POOL_OPTS.iter().filter_map(|(n, k, _)| Some((*n, self.0.get(k)?)))
    }
}

impl Encode for PoolOpts {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(2, 1, |o| {
            o.list(&self.0, |o, (k, v)| {
                o.i32(*k);
                match v {
                    PoolOptValue::Str(s) => {
                        o.i32(0);
                        o.put(s);
                    }
                    PoolOptValue::Int(i) => {
                        o.i32(1);
                        o.i64(*i);
                    }
                    PoolOptValue::Double(f) => {
                        o.i32(2);
                        o.f64(*f);
                    }
                }
            });
        });
    }
}

impl Decode for PoolOpts {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("pool_opts_t", 2, |d, v| {
            let n = d.count(8)?;
            let mut m = BTreeMap::new();
            for _ in 0..n {
                let key = d.i32()?;
                let value = match d.i32()? {
                    0 => PoolOptValue::Str(d.get()?),
                    // v1 (Mimic and older) had 32-bit numbers.
                    1 if v >= 2 => PoolOptValue::Int(d.i64()?),
                    1 => PoolOptValue::Int(i64::from(d.i32()?)),
                    2 => PoolOptValue::Double(d.f64()?),
                    t => {
                        return Err(DecodeError::Value {
                            what: "pool option type",
                            value: i64::from(t),
                        });
                    }
                };
                m.insert(key, value);
            }
            Ok(Self(m))
        })
    }
}
