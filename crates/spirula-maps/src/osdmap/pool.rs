//! A pool as the OSD map describes it.

use super::opts::PoolOpts;
use super::snaps::SnapIntervals;
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use spirula_types::{EVersion, Epoch, PgId, hash};
use std::collections::{BTreeMap, BTreeSet};

/// Pool type: copies.
pub const TYPE_REPLICATED: u8 = 1;
/// Pool type: erasure code.
pub const TYPE_ERASURE: u8 = 3;

/// Most PGs of a pool that we read; Ceph's own limit (mon_max_pool_pg_num) is a sixteenth.
pub const PG_NUM_MAX: u32 = 1 << 20;

/// Pool flag bits.
pub mod flag {
    /// Placement mixes the pool id in; always set.
    pub const HASHPSPOOL: u64 = 1;
    /// Full.
    pub const FULL: u64 = 1 << 1;
    /// Partial overwrites of erasure-coded objects allowed.
    pub const EC_OVERWRITES: u64 = 1 << 2;
    /// Tier that may lack objects.
    pub const INCOMPLETE_CLONES: u64 = 1 << 3;
    /// May not be deleted.
    pub const NODELETE: u64 = 1 << 4;
    /// `pg_num` may not change.
    pub const NOPGCHANGE: u64 = 1 << 5;
    /// `size` may not change.
    pub const NOSIZECHANGE: u64 = 1 << 6;
    /// Write hint.
    pub const WRITE_FADVISE_DONTNEED: u64 = 1 << 7;
    /// No scrub.
    pub const NOSCRUB: u64 = 1 << 8;
    /// No deep scrub.
    pub const NODEEP_SCRUB: u64 = 1 << 9;
    /// Full because of its quota.
    pub const FULL_QUOTA: u64 = 1 << 10;
    /// Nearly full.
    pub const NEARFULL: u64 = 1 << 11;
    /// Too full to backfill.
    pub const BACKFILLFULL: u64 = 1 << 12;
    /// Snapshots are managed by clients (rbd, cephfs).
    pub const SELFMANAGED_SNAPS: u64 = 1 << 13;
    /// Snapshots are the pool's.
    pub const POOL_SNAPS: u64 = 1 << 14;
    /// PGs are being created.
    pub const CREATING: u64 = 1 << 15;
    /// Operations fail with EIO.
    pub const EIO: u64 = 1 << 16;
    /// All snapshots may be removed.
    pub const BULK: u64 = 1 << 17;
}

const FLAG_NAMES: &[(u64, &str)] = &[
    (flag::HASHPSPOOL, "hashpspool"),
    (flag::FULL, "full"),
    (flag::EC_OVERWRITES, "ec_overwrites"),
    (flag::INCOMPLETE_CLONES, "incomplete_clones"),
    (flag::NODELETE, "nodelete"),
    (flag::NOPGCHANGE, "nopgchange"),
    (flag::NOSIZECHANGE, "nosizechange"),
    (flag::WRITE_FADVISE_DONTNEED, "write_fadvise_dontneed"),
    (flag::NOSCRUB, "noscrub"),
    (flag::NODEEP_SCRUB, "nodeep-scrub"),
    (flag::FULL_QUOTA, "full_quota"),
    (flag::NEARFULL, "nearfull"),
    (flag::BACKFILLFULL, "backfillfull"),
    (flag::SELFMANAGED_SNAPS, "selfmanaged_snaps"),
    (flag::POOL_SNAPS, "pool_snaps"),
    (flag::CREATING, "creating"),
    (flag::EIO, "eio"),
    (flag::BULK, "bulk"),
];

/// Bit of a pool flag's name.
pub fn flag_by_name(name: &str) -> Option<u64> {
    FLAG_NAMES.iter().find(|(_, n)| *n == name).map(|(b, _)| *b)
}

/// A snapshot of a whole pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolSnap {
    /// Id.
    pub id: u64,
    /// When it was made.
    pub stamp: UTime,
    /// Name.
    pub name: String,
}

impl Encode for PoolSnap {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(2, 2, |o| {
            o.u64(self.id);
            o.put(&self.stamp);
            o.put(&self.name);
        });
    }
}

impl Decode for PoolSnap {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("pool_snap_info_t", 2, |d, _| {
            Ok(Self { id: d.u64()?, stamp: d.get()?, name: d.get()? })
        })
    }
}

/// The last PG merge of a pool (pg_merge_meta_t).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PgMergeMeta {
    /// The PG merged into another.
    pub source_pgid: PgId,
    /// Epoch in which it was ready.
    pub ready_epoch: Epoch,
    /// Last epoch it was started in.
    pub last_epoch_started: Epoch,
    /// Last epoch it was clean in.
    pub last_epoch_clean: Epoch,
    /// Its last version.
    pub source_version: EVersion,
    /// The target's.
    pub target_version: EVersion,
}

impl Encode for PgMergeMeta {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.source_pgid);
            o.u32(self.ready_epoch);
            o.u32(self.last_epoch_started);
            o.u32(self.last_epoch_clean);
            o.put(&self.source_version);
            o.put(&self.target_version);
        });
    }
}

impl Decode for PgMergeMeta {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("pg_merge_meta_t", 1, |d, _| {
            Ok(Self {
                source_pgid: d.get()?,
                ready_epoch: d.u32()?,
                last_epoch_started: d.u32()?,
                last_epoch_clean: d.u32()?,
                source_version: d.get()?,
                target_version: d.get()?,
            })
        })
    }
}

/// A pool (pg_pool_t v29). Fields Ceph still carries but nobody uses are kept, so that
/// any map re-encodes to the same bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct PgPool {
    /// [`TYPE_REPLICATED`] or [`TYPE_ERASURE`].
    pub kind: u8,
    /// Copies, or k+m.
    pub size: u8,
    /// CRUSH rule.
    pub crush_rule: u8,
    /// 2: rjenkins.
    pub object_hash: u8,
    /// PGs.
    pub pg_num: u32,
    /// PGs for placement.
    pub pgp_num: u32,
    /// Epoch of the last change.
    pub last_change: Epoch,
    /// Newest snapshot id given out.
    pub snap_seq: u64,
    /// Epoch of the last snapshot change.
    pub snap_epoch: Epoch,
    /// Pool snapshots.
    pub snaps: BTreeMap<u64, PoolSnap>,
    /// Removed snapshots (pools from before Octopus; `[1~1]` marks self-managed mode).
    pub removed_snaps: SnapIntervals,
    /// Old owner.
    pub auid: u64,
    /// [`flag`] bits.
    pub flags: u64,
    /// Least number of acting OSDs for serving.
    pub min_size: u8,
    /// Quota in bytes, 0 none.
    pub quota_max_bytes: u64,
    /// Quota in objects, 0 none.
    pub quota_max_objects: u64,
    /// Tiers of this pool.
    pub tiers: BTreeSet<u64>,
    /// This is a tier of that pool, −1 none.
    pub tier_of: i64,
    /// 0 none.
    pub cache_mode: u8,
    /// −1 none.
    pub read_tier: i64,
    /// −1 none.
    pub write_tier: i64,
    /// Unused.
    pub properties: BTreeMap<String, String>,
    /// HitSet::Params as it stands on the wire (version, compat, length, body).
    pub hit_set_params: Bytes,
    /// Seconds per hit set.
    pub hit_set_period: u32,
    /// Hit sets kept.
    pub hit_set_count: u32,
    /// Bytes per stripe (k × unit), 0 for replicated pools.
    pub stripe_width: u32,
    /// Cache tier.
    pub target_max_bytes: u64,
    /// Cache tier.
    pub target_max_objects: u64,
    /// Cache tier.
    pub cache_target_dirty_ratio_micro: u32,
    /// Cache tier.
    pub cache_target_full_ratio_micro: u32,
    /// Cache tier.
    pub cache_min_flush_age: u32,
    /// Cache tier.
    pub cache_min_evict_age: u32,
    /// Name of the erasure-code profile.
    pub erasure_code_profile: String,
    /// Clients older than Luminous resend when this epoch passes.
    pub last_force_op_resend_preluminous: Epoch,
    /// Cache tier.
    pub min_read_recency_for_promote: u32,
    /// Hint given at creation.
    pub expected_num_objects: u64,
    /// Cache tier.
    pub cache_target_dirty_high_ratio_micro: u32,
    /// Cache tier.
    pub min_write_recency_for_promote: u32,
    /// Hit-set names use GMT.
    pub use_gmt_hitset: bool,
    /// Read all shards and answer with the first k.
    pub fast_read: bool,
    /// Cache tier.
    pub hit_set_grade_decay_rate: i32,
    /// Cache tier.
    pub hit_set_search_last_n: u32,
    /// Options set.
    pub opts: PoolOpts,
    /// Clients older than Nautilus resend when this epoch passes.
    pub last_force_op_resend_prenautilus: Epoch,
    /// Application to its key-values.
    pub application_metadata: BTreeMap<String, BTreeMap<String, String>>,
    /// When it was made.
    pub create_time: UTime,
    /// `pg_num` wanted.
    pub pg_num_target: u32,
    /// `pgp_num` wanted.
    pub pgp_num_target: u32,
    /// `pg_num` after the merge under way.
    pub pg_num_pending: u32,
    /// Clients resend when this epoch passes.
    pub last_force_op_resend: Epoch,
    /// 0 off, 1 warn, 2 on.
    pub pg_autoscale_mode: u8,
    /// Last merge.
    pub last_pg_merge_meta: PgMergeMeta,
}

impl Default for PgPool {
    /// A replicated pool with nothing set, as Ceph's constructor leaves it.
    fn default() -> Self {
        Self {
            kind: TYPE_REPLICATED,
            size: 0,
            crush_rule: 0,
            object_hash: 2,
            pg_num: 0,
            pgp_num: 0,
            last_change: 0,
            snap_seq: 0,
            snap_epoch: 0,
            snaps: BTreeMap::new(),
            removed_snaps: SnapIntervals::new(),
            auid: 0,
            flags: 0,
            min_size: 0,
            quota_max_bytes: 0,
            quota_max_objects: 0,
            tiers: BTreeSet::new(),
            tier_of: -1,
            cache_mode: 0,
            read_tier: -1,
            write_tier: -1,
            properties: BTreeMap::new(),
            hit_set_params: Bytes::from_static(&[1, 1, 1, 0, 0, 0, 0]),
            hit_set_period: 0,
            hit_set_count: 0,
            stripe_width: 0,
            target_max_bytes: 0,
            target_max_objects: 0,
            cache_target_dirty_ratio_micro: 400_000,
            cache_target_full_ratio_micro: 800_000,
            cache_min_flush_age: 0,
            cache_min_evict_age: 0,
            erasure_code_profile: String::new(),
            last_force_op_resend_preluminous: 0,
            min_read_recency_for_promote: 0,
            expected_num_objects: 0,
            cache_target_dirty_high_ratio_micro: 600_000,
            min_write_recency_for_promote: 0,
            use_gmt_hitset: true,
            fast_read: false,
            hit_set_grade_decay_rate: 0,
            hit_set_search_last_n: 0,
            opts: PoolOpts::default(),
            last_force_op_resend_prenautilus: 0,
            application_metadata: BTreeMap::new(),
            create_time: UTime::ZERO,
            pg_num_target: 0,
            pgp_num_target: 0,
            pg_num_pending: 0,
            last_force_op_resend: 0,
            pg_autoscale_mode: 0,
            last_pg_merge_meta: PgMergeMeta::default(),
        }
    }
}

impl PgPool {
    /// A replicated pool: min_size = size − size/2, hashpspool set, not yet created.
    pub fn replicated(size: u8, pg_num: u32, crush_rule: u8, created: UTime) -> Self {
        let mut p = Self {
            size,
            min_size: size - size / 2,
            crush_rule,
            flags: flag::HASHPSPOOL | flag::CREATING,
            create_time: created,
            ..Self::default()
        };
        p.set_pg_num(pg_num);
        p
    }

    /// An erasure-coded pool of k+m shards: min_size = k + 1 (at most k+m).
    pub fn erasure(
        k: u8,
        m: u8,
        stripe_unit: u32,
        profile: &str,
        pg_num: u32,
        crush_rule: u8,
        created: UTime,
    ) -> Self {
        let size = k.saturating_add(m);
        let mut p = Self::replicated(size, pg_num, crush_rule, created);
        p.kind = TYPE_ERASURE;
        p.min_size = k.saturating_add(1).min(size);
        p.stripe_width = u32::from(k) * stripe_unit;
        p.erasure_code_profile = profile.to_string();
        p
    }

    /// Sets `pg_num`, `pgp_num`, their targets and the pending number at once.
    pub fn set_pg_num(&mut self, pg_num: u32) {
        self.pg_num = pg_num;
        self.pgp_num = pg_num;
        self.pg_num_target = pg_num;
        self.pgp_num_target = pg_num;
        self.pg_num_pending = pg_num;
    }

    /// Copies rather than code?
    pub fn is_replicated(&self) -> bool {
        self.kind != TYPE_ERASURE
    }
    /// Erasure-coded?
    pub fn is_erasure(&self) -> bool {
        self.kind == TYPE_ERASURE
    }
    /// May acting sets close up over missing OSDs? (Else holes stay, by shard.)
    pub fn can_shift_osds(&self) -> bool {
        self.is_replicated()
    }
    /// Is this flag set?
    pub fn has_flag(&self, f: u64) -> bool {
        self.flags & f != 0
    }
    /// May objects of this pool have omap? (Not on erasure code.)
    pub fn supports_omap(&self) -> bool {
        self.is_replicated()
    }
    /// Must appended data be stripe-aligned? (Erasure code without overwrites.)
    pub fn requires_aligned_append(&self) -> bool {
        self.is_erasure() && !self.has_flag(flag::EC_OVERWRITES)
    }
    /// The pool's snapshots are its own.
    pub fn is_pool_snaps_mode(&self) -> bool {
        self.has_flag(flag::POOL_SNAPS)
    }
    /// Snapshots are the clients'.
    pub fn is_selfmanaged_snaps_mode(&self) -> bool {
        self.has_flag(flag::SELFMANAGED_SNAPS)
    }
    /// Is `snap` removed, as far as the pool itself knows?
    pub fn is_removed_snap(&self, snap: u64) -> bool {
        if self.is_pool_snaps_mode() {
            snap <= self.snap_seq && !self.snaps.contains_key(&snap)
        } else {
            self.removed_snaps.contains(snap)
        }
    }
    /// Pool snapshot ids, newest first: the snap context for writes in pool-snapshot mode.
    pub fn snap_context(&self) -> (u64, Vec<u64>) {
        (self.snap_seq, self.snaps.keys().rev().copied().collect())
    }
    /// Id of the pool snapshot called `name`.
    pub fn snap_by_name(&self, name: &str) -> Option<u64> {
        self.snaps.values().find(|s| s.name == name).map(|s| s.id)
    }
    /// Folds a raw hash into the number of a PG.
    pub fn pg_of_hash(&self, h: u32) -> u32 {
        hash::stable_mod(h, self.pg_num, hash::mask_for(self.pg_num))
    }
    /// `replicated`, `erasure`.
    pub fn type_name(&self) -> &'static str {
        match self.kind {
            TYPE_REPLICATED => "replicated",
            TYPE_ERASURE => "erasure",
            _ => "???",
        }
    }
    /// `none`, `writeback`, …
    pub fn cache_mode_name(&self) -> &'static str {
        match self.cache_mode {
            0 => "none",
            1 => "writeback",
            2 => "forward",
            3 => "readonly",
            4 => "readforward",
            5 => "readproxy",
            6 => "proxy",
            _ => "unknown",
        }
    }
    /// `off`, `warn`, `on`.
    pub fn autoscale_name(&self) -> &'static str {
        match self.pg_autoscale_mode {
            0 => "off",
            1 => "warn",
            2 => "on",
            _ => "???",
        }
    }
    /// Names of the flags set, joined by commas, lowest bit first.
    pub fn flag_names(&self) -> String {
        let names: Vec<&str> =
            FLAG_NAMES.iter().filter(|(b, _)| self.flags & b != 0).map(|(_, n)| *n).collect();
        names.join(",")
    }
}

impl Encode for PgPool {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(29, 5, |o| {
            o.u8(self.kind);
            o.u8(self.size);
            o.u8(self.crush_rule);
            o.u8(self.object_hash);
            o.u32(self.pg_num);
            o.u32(self.pgp_num);
            // "Localized" PGs, long gone.
            o.u32(0);
            o.u32(0);
            o.u32(self.last_change);
            o.u64(self.snap_seq);
            o.u32(self.snap_epoch);
            o.put(&self.snaps);
            o.put(&self.removed_snaps);
            o.u64(self.auid);
            o.u64(self.flags);
            // Crash replay interval, long gone.
            o.u32(0);
            o.u8(self.min_size);
            o.u64(self.quota_max_bytes);
            o.u64(self.quota_max_objects);
            o.put(&self.tiers);
            o.i64(self.tier_of);
            o.u8(self.cache_mode);
            o.i64(self.read_tier);
            o.i64(self.write_tier);
            o.put(&self.properties);
            o.raw(&self.hit_set_params);
            o.u32(self.hit_set_period);
            o.u32(self.hit_set_count);
            o.u32(self.stripe_width);
            o.u64(self.target_max_bytes);
            o.u64(self.target_max_objects);
            o.u32(self.cache_target_dirty_ratio_micro);
            o.u32(self.cache_target_full_ratio_micro);
            o.u32(self.cache_min_flush_age);
            o.u32(self.cache_min_evict_age);
            o.put(&self.erasure_code_profile);
            o.u32(self.last_force_op_resend_preluminous);
            o.u32(self.min_read_recency_for_promote);
            o.u64(self.expected_num_objects);
            o.u32(self.cache_target_dirty_high_ratio_micro);
            o.u32(self.min_write_recency_for_promote);
            o.bool(self.use_gmt_hitset);
            o.bool(self.fast_read);
            o.i32(self.hit_set_grade_decay_rate);
            o.u32(self.hit_set_search_last_n);
            o.put(&self.opts);
            o.u32(self.last_force_op_resend_prenautilus);
            o.put(&self.application_metadata);
            o.put(&self.create_time);
            o.u32(self.pg_num_target);
            o.u32(self.pgp_num_target);
            o.u32(self.pg_num_pending);
            // Merge epochs of a development release.
            o.u32(0);
            o.u32(0);
            o.u32(self.last_force_op_resend);
            o.u8(self.pg_autoscale_mode);
            o.put(&self.last_pg_merge_meta);
        });
    }
}

/// Reads a number of PGs: more than [`PG_NUM_MAX`] would be a map to exhaust its reader with.
fn pg_count(d: &mut Decoder<'_>) -> Result<u32, DecodeError> {
    let n = d.u32()?;
    if n > PG_NUM_MAX {
        return Err(DecodeError::Value { what: "pg_num", value: i64::from(n) });
    }
    Ok(n)
}

impl Decode for PgPool {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("pg_pool_t", 29, |d, v| {
            if v < 28 {
                return Err(DecodeError::TooOld { what: "pg_pool_t", version: v, oldest: 28 });
            }
            let mut p = Self {
                kind: d.u8()?,
                size: d.u8()?,
                crush_rule: d.u8()?,
                object_hash: d.u8()?,
                pg_num: pg_count(d)?,
                pgp_num: d.u32()?,
                ..Self::default()
            };
            d.skip(8)?;
            p.last_change = d.u32()?;
            p.snap_seq = d.u64()?;
            p.snap_epoch = d.u32()?;
            p.snaps = d.get()?;
            p.removed_snaps = d.get()?;
            p.auid = d.u64()?;
            p.flags = d.u64()?;
            d.skip(4)?;
            p.min_size = d.u8()?;
            p.quota_max_bytes = d.u64()?;
            p.quota_max_objects = d.u64()?;
            p.tiers = d.get()?;
            p.tier_of = d.i64()?;
            p.cache_mode = d.u8()?;
            p.read_tier = d.i64()?;
            p.write_tier = d.i64()?;
            p.properties = d.get()?;
            p.hit_set_params = raw_struct(d)?;
            p.hit_set_period = d.u32()?;
            p.hit_set_count = d.u32()?;
            p.stripe_width = d.u32()?;
            p.target_max_bytes = d.u64()?;
            p.target_max_objects = d.u64()?;
            p.cache_target_dirty_ratio_micro = d.u32()?;
            p.cache_target_full_ratio_micro = d.u32()?;
            p.cache_min_flush_age = d.u32()?;
            p.cache_min_evict_age = d.u32()?;
            p.erasure_code_profile = d.get()?;
            p.last_force_op_resend_preluminous = d.u32()?;
            p.min_read_recency_for_promote = d.u32()?;
            p.expected_num_objects = d.u64()?;
            p.cache_target_dirty_high_ratio_micro = d.u32()?;
            p.min_write_recency_for_promote = d.u32()?;
            p.use_gmt_hitset = d.bool()?;
            p.fast_read = d.bool()?;
            p.hit_set_grade_decay_rate = d.i32()?;
            p.hit_set_search_last_n = d.u32()?;
            p.opts = d.get()?;
            p.last_force_op_resend_prenautilus = d.u32()?;
            p.application_metadata = d.get()?;
            p.create_time = d.get()?;
            p.pg_num_target = d.u32()?;
            p.pgp_num_target = d.u32()?;
            p.pg_num_pending = d.u32()?;
            d.skip(8)?;
            p.last_force_op_resend = d.u32()?;
            p.pg_autoscale_mode = d.u8()?;
            if v >= 29 {
                p.last_pg_merge_meta = d.get()?;
            }
            Ok(p)
        })
    }
}

/// Takes a versioned struct as it stands: version, compat, length and body.
fn raw_struct(d: &mut Decoder<'_>) -> Result<Bytes, DecodeError> {
    let all = d.rest();
    let start = d.position();
    d.skip(2)?;
    d.blob()?;
    let len = d.position() - start;
    Ok(Bytes::copy_from_slice(all.get(..len).unwrap_or_default()))
}
