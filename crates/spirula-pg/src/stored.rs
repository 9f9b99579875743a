//! What is stored of a PG besides its objects: records, under which keys.

use crate::intervals::Interval;
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, from_slice};
use spirula_messages::cluster::pg::{PastInterval, PgInfo};
use spirula_types::{Epoch, PgId, SpgId};

/// How a member's records are called in its store, after the prefix.
pub(crate) fn record_name(id: SpgId) -> String {
    let shard = if id.shard >= 0 { format!("s{}", id.shard) } else { String::new() };
    format!("{}.{:08x}{shard}", id.pg.pool, id.pg.seed)
}

/// Key of a PG's record in the store's meta space.
pub fn info_key(id: SpgId) -> Bytes {
    Bytes::from(format!("pg.{}", record_name(id)))
}

/// Key of the small record that every write changes.
pub fn head_key(id: SpgId) -> Bytes {
    Bytes::from(format!("pgh.{}", record_name(id)))
}

/// The PG whose record has this key, and the shard; `None` for other records.
pub fn parse_info_key(key: &[u8]) -> Option<SpgId> {
    let rest = std::str::from_utf8(key).ok()?.strip_prefix("pg.")?;
    let (pool, seed) = rest.split_once('.')?;
    let (seed, shard) = match seed.split_once('s') {
        Some((seed, shard)) => (seed, shard.parse().ok().filter(|s| *s >= 0)?),
        None => (seed, -1),
    };
    Some(SpgId::new(PgId::new(pool.parse().ok()?, u32::from_str_radix(seed, 16).ok()?), shard))
}

/// What is stored of a PG besides its objects, its log and its missing set.
pub(crate) struct Record {
    pub info: PgInfo,
    pub interval: Interval,
    pub past: Vec<PastInterval>,
    pub shaped: Epoch,
}

impl Encode for Record {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(3, 2, |o| {
            o.put(&self.info);
            o.put(&self.interval);
            o.put(&self.past);
            o.u32(self.shaped);
        });
    }
}

impl Decode for Record {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("PG record", 3, |d, v| {
            if v < 2 {
                return Err(DecodeError::Value { what: "PG record version", value: i64::from(v) });
            }
            let (info, interval, past) = (d.get()?, d.get()?, d.get()?);
            Ok(Self { info, interval, past, shaped: if v >= 3 { d.u32()? } else { 0 } })
        })
    }
}

/// A PG's records as a store holds them.
#[derive(Clone, Debug, Default)]
pub struct Stored {
    /// Under [`info_key`].
    pub record: Bytes,
    /// Under [`head_key`].
    pub head: Bytes,
    /// Its log, oldest first.
    pub log: Vec<Bytes>,
    /// All records under [`crate::missing_prefix`].
    pub missing: Vec<(Bytes, Bytes)>,
}

impl Stored {
    /// What the records say of the PG, for showing.
    ///
    /// # Errors
    /// When they make no sense.
    pub fn info(&self) -> Result<PgInfo, DecodeError> {
        let mut info = from_slice::<Record>(&self.record)?.info;
        if !self.head.is_empty() {
            info.head = from_slice(&self.head)?;
        }
        Ok(info)
    }
}
