//! The OSD map for people: `ceph osd dump`, plain and JSON, `osd pool ls detail`.
//!
//! Keys, their order and every word are those of Ceph 16.2.15 (`osdmaptool --dump json`,
//! `--print`). Addresses in the blocklist come sorted; Ceph prints them in hash order.

use super::blocklist::is_range;
use super::opts::PoolOptValue;
use super::{OsdMap, PgPool, SnapIntervals, WEIGHT_IN, flags, state};
use crate::json::{number_from_f64, object};
use crate::release_name;
use crate::show::{addr_text, addrs_json, addrs_text, commas, legacy_text};
use serde_json::{Map, Value};
use spirula_format::general;
use spirula_types::{EntityAddr, OsdId, PgId, PoolId};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// 16.16 fixed point as a float.
fn fixed(v: u32) -> f64 {
    // Ceph divides as 32-bit floats, which is exact up to 24 bits.
    f64::from(v as f32 / WEIGHT_IN as f32)
}

/// A 32-bit float as streams print it, with six digits.
fn six(v: f64) -> String {
    general(v, 6)
}

fn names_of(bits: u32, table: &[(u32, &'static str)]) -> Vec<&'static str> {
    table.iter().filter(|(b, _)| bits & b != 0).map(|(_, n)| *n).collect()
}

/// Names of cluster flags, in Ceph's printing order, joined by commas.
pub fn flag_names(bits: u32) -> String {
    names_of(bits, flags::NAMES).join(",")
}

/// Bit of a cluster flag's name (`pause` is two bits).
pub fn flag_by_name(name: &str) -> Option<u32> {
    if name == "pause" {
        return Some(flags::PAUSERD | flags::PAUSEWR);
    }
    flags::NAMES.iter().find(|(_, n)| *n == name).map(|(b, _)| *b)
}

/// Names of state bits, sorted.
pub fn state_names(bits: u32) -> Vec<&'static str> {
    let mut v = names_of(bits, state::NAMES);
    v.sort_unstable();
    v
}

fn strings(v: impl IntoIterator<Item = &'static str>) -> Value {
    Value::Array(v.into_iter().map(Value::from).collect())
}

fn snaps_json(m: &BTreeMap<PoolId, SnapIntervals>) -> Value {
    let interval = |(b, l): (u64, u64)| object! { "begin" => b, "length" => l };
    let one = |(pool, s): (&PoolId, &SnapIntervals)| {
        object! { "pool" => *pool, "snaps" => Value::Array(s.intervals().map(interval).collect()) }
    };
    Value::Array(m.iter().map(one).collect())
}

fn opt_json(v: &PoolOptValue) -> Value {
    match v {
        PoolOptValue::Str(s) => s.as_str().into(),
        PoolOptValue::Int(i) => (*i).into(),
        PoolOptValue::Double(f) => number_from_f64(*f),
    }
}

fn text_map(m: &BTreeMap<String, String>) -> Value {
    Value::Object(m.iter().map(|(k, v)| (k.clone(), Value::from(v.as_str()))).collect())
}

impl PgPool {
    /// As `osd pool ls detail -f json` prints a pool (less the id and name in front).
    fn dump_into(&self, m: &mut Map<String, Value>) {
        let merge = &self.last_pg_merge_meta;
        let snap = |s: &super::PoolSnap| {
            object! { "snapid" => s.id, "stamp" => s.stamp.to_iso(), "name" => s.name.as_str() }
        };
        let apps =
            self.application_metadata.iter().map(|(k, v)| (k.clone(), text_map(v))).collect();
        let body = object! {
            "create_time" => self.create_time.to_iso(),
            "flags" => self.flags,
            "flags_names" => self.flag_names(),
            "type" => self.kind,
            "size" => self.size,
            "min_size" => self.min_size,
            "crush_rule" => self.crush_rule,
            "peering_crush_bucket_count" => 0,
            "peering_crush_bucket_target" => 0,
            "peering_crush_bucket_barrier" => 0,
            "peering_crush_bucket_mandatory_member" => spirula_types::OSD_NONE,
            "object_hash" => self.object_hash,
            "pg_autoscale_mode" => self.autoscale_name(),
            "pg_num" => self.pg_num,
            "pg_placement_num" => self.pgp_num,
            "pg_placement_num_target" => self.pgp_num_target,
            "pg_num_target" => self.pg_num_target,
            "pg_num_pending" => self.pg_num_pending,
            "last_pg_merge_meta" => object! {
                "source_pgid" => merge.source_pgid.to_string(),
                "ready_epoch" => merge.ready_epoch,
                "last_epoch_started" => merge.last_epoch_started,
                "last_epoch_clean" => merge.last_epoch_clean,
                "source_version" => merge.source_version.to_string(),
                "target_version" => merge.target_version.to_string(),
            },
            "last_change" => self.last_change.to_string(),
            "last_force_op_resend" => self.last_force_op_resend.to_string(),
            "last_force_op_resend_prenautilus" => self.last_force_op_resend_prenautilus.to_string(),
            "last_force_op_resend_preluminous" => self.last_force_op_resend_preluminous.to_string(),
            "auid" => self.auid,
            "snap_mode" => if self.is_pool_snaps_mode() { "pool" } else { "selfmanaged" },
            "snap_seq" => self.snap_seq,
            "snap_epoch" => self.snap_epoch,
            "pool_snaps" => Value::Array(self.snaps.values().map(snap).collect()),
            "removed_snaps" => self.removed_snaps.to_string(),
            "quota_max_bytes" => self.quota_max_bytes,
            "quota_max_objects" => self.quota_max_objects,
            "tiers" => self.tiers.iter().copied().collect::<Vec<u64>>(),
            "tier_of" => self.tier_of,
            "read_tier" => self.read_tier,
            "write_tier" => self.write_tier,
            "cache_mode" => self.cache_mode_name(),
            "target_max_bytes" => self.target_max_bytes,
            "target_max_objects" => self.target_max_objects,
            "cache_target_dirty_ratio_micro" => self.cache_target_dirty_ratio_micro,
            "cache_target_dirty_high_ratio_micro" => self.cache_target_dirty_high_ratio_micro,
            "cache_target_full_ratio_micro" => self.cache_target_full_ratio_micro,
            "cache_min_flush_age" => self.cache_min_flush_age,
            "cache_min_evict_age" => self.cache_min_evict_age,
            "erasure_code_profile" => self.erasure_code_profile.as_str(),
            "hit_set_params" => object! { "type" => self.hit_set_type() },
            "hit_set_period" => self.hit_set_period,
            "hit_set_count" => self.hit_set_count,
            "use_gmt_hitset" => self.use_gmt_hitset,
            "min_read_recency_for_promote" => self.min_read_recency_for_promote,
            "min_write_recency_for_promote" => self.min_write_recency_for_promote,
            "hit_set_grade_decay_rate" => self.hit_set_grade_decay_rate,
            "hit_set_search_last_n" => self.hit_set_search_last_n,
            "grade_table" => Vec::<Value>::new(),
            "stripe_width" => self.stripe_width,
            "expected_num_objects" => self.expected_num_objects,
            "fast_read" => self.fast_read,
            "options" => Value::Object(self.opts.named().map(|(k, v)| (k.to_string(), opt_json(v))).collect()),
            "application_metadata" => Value::Object(apps),
        };
        if let Value::Object(b) = body {
            m.extend(b);
        }
    }

    fn hit_set_type(&self) -> &'static str {
        // Version, compat, length; then the type.
        match self.hit_set_params.get(6) {
            Some(1) => "explicit_hash",
            Some(2) => "explicit_object",
            Some(3) => "bloom",
            _ => "none",
        }
    }

    /// As `ceph osd dump` prints a pool after its number and name.
    pub fn text(&self) -> String {
        let mut o = self.type_name().to_string();
        if self.is_erasure() {
            let _ = write!(o, " profile {}", self.erasure_code_profile);
        }
        let hash = if self.object_hash == 2 { "rjenkins" } else { "unknown" };
        let _ = write!(
            o,
            " size {} min_size {} crush_rule {} object_hash {hash} pg_num {} pgp_num {}",
            self.size, self.min_size, self.crush_rule, self.pg_num, self.pgp_num
        );
        for (name, v, usual) in [
            ("pg_num_target", self.pg_num_target, self.pg_num),
            ("pgp_num_target", self.pgp_num_target, self.pgp_num),
            ("pg_num_pending", self.pg_num_pending, self.pg_num),
        ] {
            if v != usual {
                let _ = write!(o, " {name} {v}");
            }
        }
        let _ =
            write!(o, " autoscale_mode {} last_change {}", self.autoscale_name(), self.last_change);
        let lfor = [
            self.last_force_op_resend,
            self.last_force_op_resend_prenautilus,
            self.last_force_op_resend_preluminous,
        ];
        if lfor.iter().any(|e| *e != 0) {
            let _ = write!(o, " lfor {}/{}/{}", lfor[0], lfor[1], lfor[2]);
        }
        let mut put = |on: bool, name: &str, v: &dyn std::fmt::Display| {
            if on {
                let _ = write!(o, " {name} {v}");
            }
        };
        put(self.auid != 0, "owner", &self.auid);
        put(self.flags != 0, "flags", &self.flag_names());
        put(self.quota_max_bytes != 0, "max_bytes", &self.quota_max_bytes);
        put(self.quota_max_objects != 0, "max_objects", &self.quota_max_objects);
        put(!self.tiers.is_empty(), "tiers", &commas(&self.tiers));
        put(self.tier_of >= 0, "tier_of", &self.tier_of);
        put(self.read_tier >= 0, "read_tier", &self.read_tier);
        put(self.write_tier >= 0, "write_tier", &self.write_tier);
        put(self.cache_mode != 0, "cache_mode", &self.cache_mode_name());
        put(self.target_max_bytes != 0, "target_bytes", &self.target_max_bytes);
        put(self.target_max_objects != 0, "target_objects", &self.target_max_objects);
        let recency = self.min_read_recency_for_promote;
        put(recency != 0, "min_read_recency_for_promote", &recency);
        let recency = self.min_write_recency_for_promote;
        put(recency != 0, "min_write_recency_for_promote", &recency);
        put(true, "stripe_width", &self.stripe_width);
        put(self.expected_num_objects != 0, "expected_num_objects", &self.expected_num_objects);
        put(self.fast_read, "fast_read", &u8::from(self.fast_read));
        for (name, v) in self.opts.named() {
            match v {
                PoolOptValue::Str(s) => put(true, name, s),
                PoolOptValue::Int(i) => put(true, name, i),
                PoolOptValue::Double(f) => put(true, name, &six(*f)),
            }
        }
        let apps = commas(self.application_metadata.keys());
        put(!apps.is_empty(), "application", &apps);
        o
    }
}

impl OsdMap {
    /// One pool as in `osd dump -f json` (`id_key` is "pool") and `osd pool ls detail -f json`
    /// ("pool_id").
    pub fn dump_pool(&self, id: PoolId, pool: &PgPool, id_key: &str) -> Value {
        let mut m = Map::new();
        m.insert(id_key.to_string(), id.into());
        let name = self.pool_names.get(&id).map_or("<unknown>", String::as_str);
        m.insert("pool_name".to_string(), name.into());
        pool.dump_into(&mut m);
        Value::Object(m)
    }

    /// `osd pool ls detail -f json`.
    pub fn dump_pools(&self) -> Value {
        Value::Array(self.pools.iter().map(|(id, p)| self.dump_pool(*id, p, "pool_id")).collect())
    }

    /// The oldest client release that can use this map as it is.
    pub fn min_compat_client(&self) -> u8 {
        let c = &self.crush;
        let t = &c.tunables;
        // Weight sets that an old client can read as plain weights need nothing of it.
        let compat_args = |args: &spirula_crush::ChooseArgs| {
            args.values()
                .filter(|a| !(a.weight_sets.is_empty() && a.ids.is_empty()))
                .all(|a| a.weight_sets.len() == 1 && a.ids.is_empty())
        };
        let choose_args = match c.choose_args.len() {
            0 => false,
            1 => !c.choose_args.get(&-1).is_some_and(compat_args),
            _ => true,
        };
        let straw2 = c.buckets.iter().flatten().any(|b| b.alg() == spirula_crush::alg::STRAW2);
        let tiers = self.pools.values().any(|p| !p.tiers.is_empty() || p.tier_of >= 0);
        let affinity = self.primary_affinity.iter().any(|a| *a != WEIGHT_IN);
        if choose_args || !self.pg_upmap.is_empty() || !self.pg_upmap_items.is_empty() {
            12
        } else if t.chooseleaf_stable != 0 {
            10
        } else if straw2 {
            8
        } else if affinity || t.chooseleaf_vary_r != 0 || tiers {
            6
        } else if t.chooseleaf_descend_once != 0
            || t.choose_local_tries != 2
            || t.choose_local_fallback_tries != 5
            || t.choose_total_tries != 19
            || self.pools.values().any(|p| p.has_flag(super::pool::flag::HASHPSPOOL))
        {
            4
        } else {
            1
        }
    }

    fn dump_osd(&self, osd: OsdId) -> Value {
        let addrs = self.addrs(osd).cloned().unwrap_or_default();
        let info = self.info(osd).copied().unwrap_or_default();
        object! {
            "osd" => osd,
            "uuid" => self.uuid(osd).unwrap_or_default().to_string(),
            "up" => i32::from(self.is_up(osd)),
            "in" => i32::from(self.is_in(osd)),
            "weight" => number_from_f64(fixed(self.weight(osd))),
            "primary_affinity" => number_from_f64(fixed(self.affinity(osd))),
            "last_clean_begin" => info.last_clean_begin,
            "last_clean_end" => info.last_clean_end,
            "up_from" => info.up_from,
            "up_thru" => info.up_thru,
            "down_at" => info.down_at,
            "lost_at" => info.lost_at,
            "public_addrs" => addrs_json(&addrs.client),
            "cluster_addrs" => addrs_json(&addrs.cluster),
            "heartbeat_back_addrs" => addrs_json(&addrs.hb_back),
            "heartbeat_front_addrs" => addrs_json(&addrs.hb_front),
            "public_addr" => legacy_text(&addrs.client),
            "cluster_addr" => legacy_text(&addrs.cluster),
            "heartbeat_back_addr" => legacy_text(&addrs.hb_back),
            "heartbeat_front_addr" => legacy_text(&addrs.hb_front),
            "state" => strings(state_names(self.state(osd))),
        }
    }

    fn dump_xinfo(&self, osd: OsdId) -> Value {
        let x = self.xinfo(osd).copied().unwrap_or_default();
        let laggy = x.laggy_probability as f32 / u32::MAX as f32;
        object! {
            "osd" => osd,
            "down_stamp" => x.down_stamp.to_iso(),
            "laggy_probability" => number_from_f64(f64::from(laggy)),
            "laggy_interval" => x.laggy_interval,
            // Ceph dumps it signed.
            "features" => x.features as i64,
            "old_weight" => x.old_weight,
            "last_purged_snaps_scrub" => x.last_purged_snaps_scrub.to_iso(),
            "dead_epoch" => x.dead_epoch,
        }
    }

    /// `ceph osd dump -f json`.
    pub fn dump(&self) -> Value {
        let mut flags_set = names_of(self.flags, flags::NAMES);
        flags_set.sort_unstable();
        let sets = |(pg, v): (&PgId, &Vec<OsdId>)| object! { "pgid" => pg.to_string(), "osds" => v.clone() };
        let items = |(pg, v): (&PgId, &Vec<(OsdId, OsdId)>)| {
            let m = v.iter().map(|(f, t)| object! { "from" => *f, "to" => *t }).collect();
            object! { "pgid" => pg.to_string(), "mappings" => Value::Array(m) }
        };
        let primary_temp =
            self.primary_temp.iter().flat_map(|(pg, o)| [Value::from(pg.to_string()), (*o).into()]);
        let entries = |ranges| {
            let of = self.blocklist.iter().filter(move |(a, _)| is_range(a) == ranges);
            Value::Object(of.map(|(a, t)| (addr_text(a), Value::from(t.to_iso()))).collect())
        };
        let profiles = self.ec_profiles.iter().map(|(k, v)| (k.clone(), text_map(v)));
        let named = |names: &BTreeMap<i32, String>, m: &BTreeMap<i32, u32>| {
            let name = |id: &i32| names.get(id).cloned().unwrap_or_else(|| id.to_string());
            Value::Object(m.iter().map(|(id, f)| (name(id), strings(state_names(*f)))).collect())
        };
        object! {
            "epoch" => self.epoch,
            "fsid" => self.fsid.to_string(),
            "created" => self.created.to_iso(),
            "modified" => self.modified.to_iso(),
            "last_up_change" => self.last_up_change.to_iso(),
            "last_in_change" => self.last_in_change.to_iso(),
            "flags" => flag_names(self.flags),
            "flags_num" => self.flags,
            "flags_set" => strings(flags_set),
            "crush_version" => self.crush_version,
            "full_ratio" => number_from_f64(f64::from(self.full_ratio)),
            "backfillfull_ratio" => number_from_f64(f64::from(self.backfillfull_ratio)),
            "nearfull_ratio" => number_from_f64(f64::from(self.nearfull_ratio)),
            "cluster_snapshot" => self.cluster_snapshot.as_str(),
            "pool_max" => self.pool_max,
            "max_osd" => self.max_osd(),
            "require_min_compat_client" => release_name(self.require_min_compat_client),
            "min_compat_client" => release_name(self.min_compat_client()),
            "require_osd_release" => release_name(self.require_osd_release),
            "pools" => Value::Array(self.pools.iter().map(|(id, p)| self.dump_pool(*id, p, "pool")).collect()),
            "osds" => Value::Array(self.osds().map(|o| self.dump_osd(o)).collect()),
            "osd_xinfo" => Value::Array(self.osds().map(|o| self.dump_xinfo(o)).collect()),
            "pg_upmap" => Value::Array(self.pg_upmap.iter().map(sets).collect()),
            "pg_upmap_items" => Value::Array(self.pg_upmap_items.iter().map(items).collect()),
            "pg_temp" => Value::Array(self.pg_temp.iter().map(sets).collect()),
            "primary_temp" => Value::Array(primary_temp.collect()),
            "blocklist" => entries(false),
            "range_blocklist" => entries(true),
            "erasure_code_profiles" => Value::Object(profiles.collect()),
            "removed_snaps_queue" => snaps_json(&self.removed_snaps_queue),
            "new_removed_snaps" => snaps_json(&self.new_removed_snaps),
            "new_purged_snaps" => snaps_json(&self.new_purged_snaps),
            "crush_node_flags" => named(&self.crush.names, &self.crush_node_flags),
            "device_class_flags" => named(&self.crush.class_names, &self.device_class_flags),
            "stretch_mode" => object! {
                "stretch_mode_enabled" => false,
                "stretch_bucket_count" => 0,
                "degraded_stretch_mode" => 0,
                "recovering_stretch_mode" => 0,
                "stretch_mode_bucket" => 0,
            },
        }
    }

    /// `ceph osd pool ls detail`: a line per pool, more lines for its snapshots.
    pub fn pools_text(&self) -> String {
        let mut o = String::new();
        for (id, p) in &self.pools {
            let name = self.pool_names.get(id).map_or("<unknown>", String::as_str);
            let _ = writeln!(o, "pool {id} '{name}' {}", p.text());
            for (sid, s) in &p.snaps {
                let _ = writeln!(o, "\tsnap {sid} '{}' {}", s.name, s.stamp.to_iso());
            }
            if !p.removed_snaps.is_empty() {
                let _ = writeln!(o, "\tremoved_snaps {}", p.removed_snaps);
            }
            if let Some(q) = self.removed_snaps_queue.get(id) {
                let _ = writeln!(o, "\tremoved_snaps_queue {q}");
            }
        }
        o
    }

    fn osd_text(&self, osd: OsdId) -> String {
        let mut o = format!(
            "osd.{osd} {} {} weight {}",
            if self.is_up(osd) { "up  " } else { "down" },
            if self.is_in(osd) { "in " } else { "out" },
            six(fixed(self.weight(osd)))
        );
        if self.affinity(osd) != WEIGHT_IN {
            let _ = write!(o, " primary_affinity {}", six(fixed(self.affinity(osd))));
        }
        let i = self.info(osd).copied().unwrap_or_default();
        let _ = write!(
            o,
            " up_from {} up_thru {} down_at {} last_clean_interval [{},{})",
            i.up_from, i.up_thru, i.down_at, i.last_clean_begin, i.last_clean_end
        );
        if i.lost_at != 0 {
            let _ = write!(o, " lost_at {}", i.lost_at);
        }
        let a = self.addrs(osd).cloned().unwrap_or_default();
        let states = state_names(self.state(osd)).join(",");
        let _ = write!(o, " {} {} {states}", addrs_text(&a.client), addrs_text(&a.cluster));
        if let Some(u) = self.uuid(osd).filter(|u| !u.is_zero()) {
            let _ = write!(o, " {u}");
        }
        o
    }

    /// `ceph osd dump`, with a newline at the end.
    pub fn dump_text(&self) -> String {
        let mut o = String::new();
        let _ = writeln!(o, "epoch {}\nfsid {}", self.epoch, self.fsid);
        let _ =
            writeln!(o, "created {}\nmodified {}", self.created.to_iso(), self.modified.to_iso());
        let _ =
            writeln!(o, "flags {}\ncrush_version {}", flag_names(self.flags), self.crush_version);
        let _ = writeln!(o, "full_ratio {}", six(f64::from(self.full_ratio)));
        let _ = writeln!(o, "backfillfull_ratio {}", six(f64::from(self.backfillfull_ratio)));
        let _ = writeln!(o, "nearfull_ratio {}", six(f64::from(self.nearfull_ratio)));
        if self.require_min_compat_client != 0 {
            let _ = writeln!(
                o,
                "require_min_compat_client {}",
                release_name(self.require_min_compat_client)
            );
        }
        let _ = writeln!(o, "min_compat_client {}", release_name(self.min_compat_client()));
        if self.require_osd_release != 0 {
            let _ = writeln!(o, "require_osd_release {}", release_name(self.require_osd_release));
        }
        o.push_str("stretch_mode_enabled false\n");
        if !self.cluster_snapshot.is_empty() {
            let _ = writeln!(o, "cluster_snapshot {}", self.cluster_snapshot);
        }
        o.push_str(&self.pools_text());
        let _ = writeln!(o, "max_osd {}", self.max_osd());
        for osd in self.osds() {
            let _ = writeln!(o, "{}", self.osd_text(osd));
        }
        for (pg, v) in &self.pg_upmap {
            let _ = writeln!(o, "pg_upmap {pg} [{}]", commas(v));
        }
        for (pg, v) in &self.pg_upmap_items {
            let _ =
                writeln!(o, "pg_upmap_items {pg} [{}]", commas(v.iter().flat_map(|(f, t)| [f, t])));
        }
        for (pg, v) in &self.pg_temp {
            let _ = writeln!(o, "pg_temp {pg} [{}]", commas(v));
        }
        for (pg, v) in &self.primary_temp {
            let _ = writeln!(o, "primary_temp {pg} {v}");
        }
        for (a, t) in &self.blocklist {
            let what = if is_range(a) { "range blocklist" } else { "blocklist" };
            let _ = writeln!(o, "{what} {} expires {}", addr_text(a), t.to_iso());
        }
        o
    }

    /// A blocklist entry as commands print it (`127.0.0.1:0/123`, `cidr:10.0.0.0:0/8`).
    pub fn blocklist_text(a: &EntityAddr) -> String {
        addr_text(a)
    }
}
