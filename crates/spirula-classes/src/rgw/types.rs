//! What class `rgw` stores and is sent: entries of a bucket's index, its header, the histories of
//! versioned objects.

use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use std::collections::BTreeMap;

/// Operations that may be pending on one object. A gateway's that has failed are forgotten after
/// two minutes; in memory each takes three times its room in the entry.
pub(super) const PENDING_MAX: usize = 1 << 16;
/// Bytes that sizes are rounded up to in totals.
const ROUND: u64 = 4096;

/// An object's name in a bucket, and which version of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Key {
    pub name: Bytes,
    /// Empty for an object without versions, and for the version "null".
    pub instance: Bytes,
}

impl Key {
    pub fn named(name: Bytes) -> Self {
        Self { name, instance: Bytes::new() }
    }
}

impl Encode for Key {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.name);
            o.put(&self.instance);
        });
    }
}

impl Decode for Key {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("object key", 1, |d, _| Ok(Self { name: d.get()?, instance: d.get()? }))
    }
}

/// A number in as few bytes as it needs.
fn packed(out: &mut Encoder, n: u64) {
    match n {
        0..=0x7f => out.u8(n as u8),
        0x80..0x100 => {
            out.u8(0x81);
            out.u8(n as u8);
        }
        // Ceph writes 65536, too, into these two bytes, and reads 0 then.
        0x100..0x1_0000 => {
            out.u8(0x82);
            out.u16(n as u16);
        }
        0x1_0000..=0x100_0000 => {
            out.u8(0x84);
            out.u32(n as u32);
        }
        _ => {
            out.u8(0x88);
            out.u64(n);
        }
    }
}

fn unpacked(d: &mut Decoder<'_>) -> Result<u64, DecodeError> {
    Ok(match d.u8()? {
        n @ 0..=0x7f => n.into(),
        0x81 => d.u8()?.into(),
        0x82 => d.u16()?.into(),
        0x84 => d.u32()?.into(),
        0x88 => d.u64()?,
        _ => return Err(DecodeError::Value { what: "packed number", value: -1 }),
    })
}

/// The version of the data that an entry is about: a pool, and a number that rises there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DataVersion {
    pub pool: i64,
    pub epoch: u64,
}

impl Default for DataVersion {
    fn default() -> Self {
        Self { pool: -1, epoch: 0 }
    }
}

impl Encode for DataVersion {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            packed(o, self.pool.cast_unsigned());
            packed(o, self.epoch);
        });
    }
}

impl Decode for DataVersion {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("data version", 1, |d, _| {
            Ok(Self { pool: unpacked(d)?.cast_signed(), epoch: unpacked(d)? })
        })
    }
}

/// What a listing shows of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Meta {
    /// Which of the header's totals it counts for.
    pub category: u8,
    /// Bytes stored.
    pub size: u64,
    pub mtime: UTime,
    pub etag: Bytes,
    pub owner: Bytes,
    pub owner_name: Bytes,
    pub content_type: Bytes,
    /// Bytes as its users see them, whatever compression makes of them.
    pub accounted: u64,
    pub user_data: Bytes,
    pub storage_class: Bytes,
    pub appendable: bool,
}

impl Encode for Meta {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(7, 3, |o| {
            o.u8(self.category);
            o.u64(self.size);
            o.put(&self.mtime);
            o.put(&self.etag);
            o.put(&self.owner);
            o.put(&self.owner_name);
            o.put(&self.content_type);
            o.u64(self.accounted);
            o.put(&self.user_data);
            o.put(&self.storage_class);
            o.bool(self.appendable);
        });
    }
}

impl Decode for Meta {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("entry's meta data", 7, |d, v| {
            let mut meta = Self {
                category: d.u8()?,
                size: d.u64()?,
                mtime: d.get()?,
                etag: d.get()?,
                owner: d.get()?,
                owner_name: d.get()?,
                content_type: d.get()?,
                ..Self::default()
            };
            meta.accounted = if v >= 4 { d.u64()? } else { meta.size };
            if v >= 5 {
                meta.user_data = d.get()?;
            }
            if v >= 6 {
                meta.storage_class = d.get()?;
            }
            if v >= 7 {
                meta.appendable = d.bool()?;
            }
            Ok(meta)
        })
    }
}

/// An operation that has begun, and not been completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pending {
    pub state: u8,
    pub begun: UTime,
    pub op: u8,
}

impl Encode for Pending {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(2, 2, |o| {
            o.u8(self.state);
            o.put(&self.begun);
            o.u8(self.op);
        });
    }
}

impl Decode for Pending {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("pending operation", 2, |d, _| {
            Ok(Self { state: d.u8()?, begun: d.get()?, op: d.u8()? })
        })
    }
}

/// An entry of the index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub key: Key,
    pub version: DataVersion,
    pub locator: Bytes,
    /// There is data. Else the entry stands for what is pending only.
    pub exists: bool,
    pub meta: Meta,
    /// By tag, in the order in which equal tags came.
    pub pending: Vec<(Bytes, Pending)>,
    /// Version of the index when it was written.
    pub index_version: u64,
    /// Of the operation that made it so.
    pub tag: Bytes,
    pub flags: u16,
    /// Its place among the object's versions; the higher, the newer. 0 for an entry without.
    pub versioned_epoch: u64,
}

impl Entry {
    /// One of the versions of an object.
    pub const VERSION: u16 = 1;
    /// The newest of them.
    pub const CURRENT: u16 = 2;
    /// What a deletion left in place of data.
    pub const DELETE_MARKER: u16 = 4;
    /// Under the plain name: says only that the object has versions.
    pub const PLACEHOLDER: u16 = 8;
    /// Not stored: a common prefix, in listings.
    pub const COMMON_PREFIX: u16 = 0x8000;

    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Is it what a listing of the bucket without versions shows?
    pub fn is_visible(&self) -> bool {
        (!self.has(Self::VERSION) || self.has(Self::CURRENT)) && !self.has(Self::DELETE_MARKER)
    }

    /// Notes a pending operation.
    pub fn begin(&mut self, tag: Bytes, pending: Pending) {
        let at = self.pending.partition_point(|(t, _)| *t <= tag);
        self.pending.insert(at, (tag, pending));
    }
}

impl Encode for Entry {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(8, 3, |o| {
            o.put(&self.key.name);
            o.u64(self.version.epoch);
            o.bool(self.exists);
            o.put(&self.meta);
            o.put(&self.pending);
            o.put(&self.locator);
            o.put(&self.version);
            packed(o, self.index_version);
            o.put(&self.tag);
            o.put(&self.key.instance);
            o.u16(self.flags);
            o.u64(self.versioned_epoch);
        });
    }
}

impl Decode for Entry {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("index entry", 8, |d, v| {
            let mut entry = Self { key: Key::named(d.get()?), ..Self::default() };
            entry.version.epoch = d.u64()?;
            entry.exists = d.bool()?;
            entry.meta = d.get()?;
            let n = d.u32()?;
            if n as usize > PENDING_MAX {
                return Err(DecodeError::Value {
                    what: "number of pending operations",
                    value: n.into(),
                });
            }
            entry.pending = (0..n).map(|_| d.get()).collect::<Result<_, _>>()?;
            if !entry.pending.is_sorted_by(|a, b| a.0 <= b.0) {
                entry.pending.sort_by(|a, b| a.0.cmp(&b.0));
            }
            entry.locator = d.get()?;
            if v >= 4 {
                entry.version = d.get()?;
            }
            if v >= 5 {
                entry.index_version = unpacked(d)?;
                entry.tag = d.get()?;
            }
            if v >= 6 {
                entry.key.instance = d.get()?;
            }
            if v >= 7 {
                entry.flags = d.u16()?;
            }
            if v >= 8 {
                entry.versioned_epoch = d.u64()?;
            }
            Ok(entry)
        })
    }
}

/// Totals of the entries of one category.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stats {
    pub size: u64,
    pub rounded: u64,
    pub entries: u64,
    pub stored: u64,
}

impl Stats {
    /// What one entry counts for.
    pub fn of(meta: &Meta) -> Self {
        let rounded = meta.accounted.wrapping_add(ROUND - 1) & !(ROUND - 1);
        Self { size: meta.accounted, rounded, entries: 1, stored: meta.size }
    }

    pub fn add(&mut self, other: Self) {
        self.size = self.size.wrapping_add(other.size);
        self.rounded = self.rounded.wrapping_add(other.rounded);
        self.entries = self.entries.wrapping_add(other.entries);
        self.stored = self.stored.wrapping_add(other.stored);
    }

    pub fn subtract(&mut self, other: Self) {
        self.size = self.size.wrapping_sub(other.size);
        self.rounded = self.rounded.wrapping_sub(other.rounded);
        self.entries = self.entries.wrapping_sub(other.entries);
        self.stored = self.stored.wrapping_sub(other.stored);
    }
}

impl Encode for Stats {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(3, 2, |o| {
            o.u64(self.size);
            o.u64(self.rounded);
            o.u64(self.entries);
            o.u64(self.stored);
        });
    }
}

impl Decode for Stats {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("category's totals", 3, |d, v| {
            let mut stats =
                Self { size: d.u64()?, rounded: d.u64()?, entries: d.u64()?, stored: 0 };
            stats.stored = if v >= 3 { d.u64()? } else { stats.size };
            Ok(stats)
        })
    }
}

/// Whether the index is being moved to another number of shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resharding {
    /// 0 for no.
    pub status: u8,
    /// Where to.
    pub target: Bytes,
    pub shards: i32,
}

impl Default for Resharding {
    fn default() -> Self {
        Self { status: 0, target: Bytes::new(), shards: -1 }
    }
}

impl Encode for Resharding {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u8(self.status);
            o.put(&self.target);
            o.i32(self.shards);
        });
    }
}

impl Decode for Resharding {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("resharding", 1, |d, _| {
            Ok(Self { status: d.u8()?, target: d.get()?, shards: d.i32()? })
        })
    }
}

/// The header of a shard of an index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    /// By category.
    pub stats: BTreeMap<u8, Stats>,
    /// Seconds after which what is pending is taken for lost; 0 for the default.
    pub tag_timeout: u64,
    /// Rises with every change.
    pub version: u64,
    pub master_version: u64,
    /// Of the newest entry of the log.
    pub max_marker: Bytes,
    pub resharding: Resharding,
    /// Nothing is logged.
    pub sync_stopped: bool,
}

impl Header {
    pub fn of(&mut self, category: u8) -> &mut Stats {
        self.stats.entry(category).or_default()
    }

    /// Takes an entry from the totals, if it counts for them.
    pub fn subtract(&mut self, entry: &Entry) {
        if entry.exists {
            self.of(entry.meta.category).subtract(Stats::of(&entry.meta));
        }
    }
}

impl Encode for Header {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(7, 2, |o| {
            o.put(&self.stats);
            o.u64(self.tag_timeout);
            o.u64(self.version);
            o.u64(self.master_version);
            o.put(&self.max_marker);
            o.put(&self.resharding);
            o.bool(self.sync_stopped);
        });
    }
}

impl Decode for Header {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("index header", 7, |d, v| {
            let mut header = Self { stats: d.get()?, ..Self::default() };
            if v >= 3 {
                header.tag_timeout = d.u64()?;
            }
            if v >= 4 {
                header.version = d.u64()?;
                header.master_version = d.u64()?;
            }
            if v >= 5 {
                header.max_marker = d.get()?;
            }
            if v >= 6 {
                header.resharding = d.get()?;
            }
            if v >= 7 {
                header.sync_stopped = d.bool()?;
            }
            Ok(header)
        })
    }
}

/// Something that the gateway must do yet, after which version of a versioned object is the newest
/// has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeadLog {
    pub epoch: u64,
    pub op: u8,
    pub tag: Bytes,
    pub key: Key,
    pub delete_marker: bool,
}

impl HeadLog {
    /// The object's head is to be this version's.
    pub const LINK: u8 = 1;
    /// The object's head is to go.
    pub const UNLINK: u8 = 2;
    /// A version's data is to go.
    pub const REMOVE: u8 = 3;
}

impl Encode for HeadLog {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u64(self.epoch);
            o.u8(self.op);
            o.put(&self.tag);
            o.put(&self.key);
            o.bool(self.delete_marker);
        });
    }
}

impl Decode for HeadLog {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("head's log", 1, |d, _| {
            Ok(Self {
                epoch: d.u64()?,
                op: d.u8()?,
                tag: d.get()?,
                key: d.get()?,
                delete_marker: d.bool()?,
            })
        })
    }
}

/// Which version of a versioned object is the newest ("object logical head").
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub key: Key,
    pub delete_marker: bool,
    pub epoch: u64,
    /// By epoch.
    pub log: BTreeMap<u64, Vec<HeadLog>>,
    pub tag: Bytes,
    pub exists: bool,
    pub pending_removal: bool,
}

impl Encode for Head {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.key);
            o.bool(self.delete_marker);
            o.u64(self.epoch);
            o.put(&self.log);
            o.put(&self.tag);
            o.bool(self.exists);
            o.bool(self.pending_removal);
        });
    }
}

impl Decode for Head {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("logical head", 1, |d, _| {
            Ok(Self {
                key: d.get()?,
                delete_marker: d.bool()?,
                epoch: d.u64()?,
                log: d.get()?,
                tag: d.get()?,
                exists: d.bool()?,
                pending_removal: d.bool()?,
            })
        })
    }
}

/// What happened to an entry, for other zones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LogEntry {
    pub id: Bytes,
    pub key: Key,
    pub time: UTime,
    pub version: DataVersion,
    pub op: u8,
    pub state: u8,
    pub index_version: u64,
    pub tag: Bytes,
    pub flags: u16,
    pub owner: Bytes,
    pub owner_name: Bytes,
    /// Zones that it has been to.
    pub zones: Vec<Bytes>,
}

impl Encode for LogEntry {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(4, 1, |o| {
            o.put(&self.id);
            o.put(&self.key.name);
            o.put(&self.time);
            o.put(&self.version);
            o.put(&self.tag);
            o.u8(self.op);
            o.u8(self.state);
            packed(o, self.index_version);
            o.put(&self.key.instance);
            o.u16(self.flags);
            o.put(&self.owner);
            o.put(&self.owner_name);
            o.put(&self.zones);
        });
    }
}

impl Decode for LogEntry {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("entry of the index log", 4, |d, v| {
            let mut entry = Self { id: d.get()?, key: Key::named(d.get()?), ..Self::default() };
            entry.time = d.get()?;
            entry.version = d.get()?;
            entry.tag = d.get()?;
            entry.op = d.u8()?;
            entry.state = d.u8()?;
            entry.index_version = unpacked(d)?;
            if v >= 2 {
                entry.key.instance = d.get()?;
                entry.flags = d.u16()?;
            }
            if v >= 3 {
                entry.owner = d.get()?;
                entry.owner_name = d.get()?;
            }
            if v >= 4 {
                entry.zones = d.get()?;
            }
            Ok(entry)
        })
    }
}

/// An object of Ceph's corpus, read and written.
#[cfg(test)]
pub(super) fn again(kind: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    match kind {
        "rgw_bucket_dir_entry" => crate::reencoded::<Entry>(bytes),
        "rgw_bucket_dir_entry_meta" => crate::reencoded::<Meta>(bytes),
        "rgw_bucket_dir_header" => crate::reencoded::<Header>(bytes),
        "rgw_bucket_category_stats" => crate::reencoded::<Stats>(bytes),
        "rgw_bucket_entry_ver" => crate::reencoded::<DataVersion>(bytes),
        "rgw_bucket_olh_entry" => crate::reencoded::<Head>(bytes),
        "rgw_bucket_olh_log_entry" => crate::reencoded::<HeadLog>(bytes),
        "rgw_bucket_pending_info" => crate::reencoded::<Pending>(bytes),
        "rgw_bi_log_entry" => crate::reencoded::<LogEntry>(bytes),
        "cls_rgw_obj_key" => crate::reencoded::<Key>(bytes),
        "cls_rgw_bucket_instance_entry" => crate::reencoded::<Resharding>(bytes),
        _ => None,
    }
}
