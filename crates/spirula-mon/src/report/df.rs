//! `ceph df`: raw space by device class, and what each pool holds and could still take.

use super::status::unsigned;
use crate::view::ClusterView;
use serde_json::{Map, Value, json};
use spirula_format::{Align, Format, TextTable, bytes, percent, si, to_json};
use spirula_maps::{PgPool, PoolSum, StoreStatfs};
use spirula_types::PoolId;
use std::collections::BTreeMap;

/// `ceph df` and `ceph df detail`.
pub fn df(view: &ClusterView<'_>, detail: bool, format: Format) -> String {
    let pools = pools(view);
    if format.is_json() {
        let text = to_json(&json(view, &pools, detail), format);
        return if text.ends_with('\n') { text } else { text + "\n" };
    }
    text(view, &pools, detail)
}

/// One pool's line. Ceph computes these in single precision; so do we, to agree to the digit.
struct Row<'a> {
    id: PoolId,
    name: &'a str,
    pool: &'a PgPool,
    sum: PoolSum,
    stored_data: u64,
    stored_omap: u64,
    used_data: u64,
    used_omap: u64,
    raw_rate: f32,
    /// Raw bytes that can still be written before the first OSD is full.
    avail_raw: u64,
}

impl Row<'_> {
    fn stored(&self) -> u64 {
        self.stored_data + self.stored_omap
    }

    fn used(&self) -> u64 {
        self.used_data + self.used_omap
    }

    fn used_ratio(&self) -> f32 {
        let used = self.used() as f32;
        if self.avail_raw > 0 {
            used / (used + self.avail_raw as f32)
        } else if used > 0.0 {
            1.0
        } else {
            0.0
        }
    }

    fn max_avail(&self) -> u64 {
        if self.raw_rate > 0.0 { (self.avail_raw as f32 / self.raw_rate) as u64 } else { 0 }
    }
}

/// Raw bytes per byte stored: the size of a replicated pool, (k+m)/k of an erasure-coded one.
pub fn raw_rate(view: &ClusterView<'_>, pool: &PgPool) -> f32 {
    if !pool.is_erasure() {
        return f32::from(pool.size);
    }
    let profile = view.osdmap.ec_profiles.get(&pool.erasure_code_profile);
    let number = |key: &str| profile.and_then(|p| p.get(key)).and_then(|v| v.parse::<f32>().ok());
    match (number("k"), number("m")) {
        (Some(k), Some(m)) if k > 0.0 => (k + m) / k,
        _ => f32::from(pool.size),
    }
}

/// Raw bytes that a CRUSH rule can still take: the least, over its OSDs, of an OSD's room
/// below the full ratio divided by its share of the rule's weight.
pub fn rule_avail(view: &ClusterView<'_>, rule: u32) -> u64 {
    let full = view.osdmap.full_ratio;
    let mut least: Option<i64> = None;
    for (osd, share) in view.osdmap.crush.rule_weights(rule) {
        let Some(report) = view.mgr.digest.osds.get(&osd) else { continue };
        let s = &report.statfs;
        // An OSD that is out reports nothing; one without weight gets no data.
        if s.total == 0 || share as f32 <= 0.0 {
            continue;
        }
        let unusable = (s.total >> 10) as f64 * (1.0 - f64::from(full));
        let room = ((s.available >> 10) as f64 - unusable).max(0.0) * 1024.0;
        let projected = (room / f64::from(share as f32)) as i64;
        least = Some(least.map_or(projected, |l| l.min(projected)));
    }
    unsigned(least.unwrap_or(0))
}

fn pools<'a>(view: &ClusterView<'a>) -> Vec<Row<'a>> {
    let mut avail: BTreeMap<u32, u64> = BTreeMap::new();
    let map = view.osdmap;
    let mut out = Vec::new();
    for (id, pool) in &map.pools {
        let Some(sum) = view.mgr.digest.pools.get(id).copied() else { continue };
        let rule = u32::from(pool.crush_rule);
        let avail_raw = *avail.entry(rule).or_insert_with(|| rule_avail(view, rule));
        let rate = raw_rate(view, pool);
        let net = |raw: i64| if rate > 0.0 { (raw as f32 / rate) as u64 } else { 0 };
        let (store, s) = (&sum.stat.store_stats, &sum.stat.stats.sum);
        let (stored_data, stored_omap, used_data, used_omap) = if sum.stat.num_store_stats > 0 {
            // Where the stores do not tell omap by pool (ours know it only as a whole), the PGs do.
            let (omap, raw_omap) = match unsigned(store.omap_allocated) {
                0 => (
                    unsigned(s.num_omap_bytes),
                    (unsigned(s.num_omap_bytes) as f64 * f64::from(rate)) as u64,
                ),
                raw => (net(store.omap_allocated), raw),
            };
            (net(store.data_stored), omap, unsigned(store.allocated), raw_omap)
        } else {
            // No OSD tells pools apart (yet): what the PGs say is the best there is.
            let (data, omap) = (unsigned(s.num_bytes), unsigned(s.num_omap_bytes));
            let raw = |v: u64| (v as f64 * f64::from(rate)) as u64;
            (data, omap, raw(data), raw(omap))
        };
        out.push(Row {
            id: *id,
            name: map.pool_name(*id),
            pool,
            sum,
            stored_data,
            stored_omap,
            used_data,
            used_omap,
            raw_rate: rate,
            avail_raw,
        });
    }
    out
}

/// Bytes that a pool takes of the OSDs, and that may still be written into it.
pub(crate) fn used_and_left(view: &ClusterView<'_>, id: PoolId) -> (u64, u64) {
    let row = pools(view).into_iter().find(|r| r.id == id);
    row.map_or((0, crate::pools::max_avail(view, id)), |r| (r.used(), r.max_avail()))
}

/// Space by device class.
pub(super) fn classes(view: &ClusterView<'_>) -> BTreeMap<String, StoreStatfs> {
    let mut out: BTreeMap<String, StoreStatfs> = BTreeMap::new();
    for (osd, report) in &view.mgr.digest.osds {
        if let Some(class) = view.osdmap.crush.class_of(*osd) {
            out.entry(class.to_owned()).or_default().add(&report.statfs);
        }
    }
    out
}

/// Used share of raw space, single precision.
fn raw_ratio(s: &StoreStatfs) -> f32 {
    if s.total > 0 { s.used_raw() as f32 / s.total as f32 } else { 0.0 }
}

fn text(view: &ClusterView<'_>, pools: &[Row<'_>], detail: bool) -> String {
    let mut raw = TextTable::new();
    raw.column("CLASS", Align::Left, Align::Left);
    for h in ["SIZE", "AVAIL", "USED", "RAW USED", "%RAW USED"] {
        raw.column(h, Align::Right, Align::Right);
    }
    let classes = classes(view);
    let total = view.space();
    for (name, s) in classes.iter().map(|(n, s)| (n.as_str(), s)).chain([("TOTAL", &total)]) {
        raw.row([
            name.to_owned(),
            bytes(unsigned(s.total)),
            bytes(unsigned(s.available)),
            bytes(unsigned(s.used_raw())),
            bytes(unsigned(s.used_raw())),
            percent(raw_ratio(s) * 100.0),
        ]);
    }

    let mut t = TextTable::new();
    t.column("POOL", Align::Left, Align::Left);
    let split: &[&str] = if detail { &["(DATA)", "(OMAP)"] } else { &[] };
    let last: &[&str] = if detail {
        &["QUOTA OBJECTS", "QUOTA BYTES", "DIRTY", "USED COMPR", "UNDER COMPR"]
    } else {
        &[]
    };
    let headings = ["ID", "PGS", "STORED"]
        .iter()
        .chain(split)
        .chain(&["OBJECTS", "USED"])
        .chain(split)
        .chain(&["%USED", "MAX AVAIL"])
        .chain(last);
    for h in headings {
        t.column(h, Align::Right, Align::Right);
    }
    for r in pools {
        let mut row =
            vec![r.name.to_owned(), r.id.to_string(), r.pool.pg_num.to_string(), bytes(r.stored())];
        if detail {
            row.extend([bytes(r.stored_data), bytes(r.stored_omap)]);
        }
        row.extend([si(unsigned(r.sum.stat.stats.sum.num_objects)), bytes(r.used())]);
        if detail {
            row.extend([bytes(r.used_data), bytes(r.used_omap)]);
        }
        row.extend([percent(r.used_ratio() * 100.0), bytes(r.max_avail())]);
        if detail {
            let quota =
                |v: u64, show: fn(u64) -> String| if v == 0 { "N/A".to_owned() } else { show(v) };
            let store = &r.sum.stat.store_stats;
            row.extend([
                quota(r.pool.quota_max_objects, si),
                quota(r.pool.quota_max_bytes, bytes),
                "N/A".to_owned(),
                bytes(unsigned(store.data_compressed_allocated)),
                bytes(unsigned(store.data_compressed_original)),
            ]);
        }
        t.row(row);
    }
    format!("--- RAW STORAGE ---\n{raw} \n--- POOLS ---\n{t}")
}

fn json(view: &ClusterView<'_>, pools: &[Row<'_>], detail: bool) -> Value {
    let total = view.space();
    let reporting = view.mgr.digest.osds.keys().filter(|o| view.osdmap.is_in(**o)).count();
    let space = |s: &StoreStatfs| {
        json!({
            "total_bytes": s.total,
            "total_avail_bytes": s.available,
            "total_used_bytes": s.used_raw(),
            "total_used_raw_bytes": s.used_raw(),
            "total_used_raw_ratio": f64::from(raw_ratio(s)),
        })
    };
    let mut stats = space(&total);
    if let Some(map) = stats.as_object_mut() {
        for key in ["num_osds", "num_per_pool_osds", "num_per_pool_omap_osds"] {
            map.insert(key.into(), reporting.into());
        }
    }
    let by_class: Map<String, Value> =
        classes(view).iter().map(|(n, s)| (n.clone(), space(s))).collect();
    let list: Vec<Value> = pools
        .iter()
        .map(|r| json!({"name": r.name, "id": r.id, "stats": pool_json(r, detail)}))
        .collect();
    json!({"stats": stats, "stats_by_class": by_class, "pools": list})
}

fn pool_json(r: &Row<'_>, detail: bool) -> Value {
    let s = &r.sum.stat.stats.sum;
    let mut out = Map::new();
    let mut put = |key: &str, v: Value| {
        out.insert(key.to_owned(), v);
    };
    put("stored", r.stored().into());
    if detail {
        put("stored_data", r.stored_data.into());
        put("stored_omap", r.stored_omap.into());
    }
    put("objects", s.num_objects.into());
    put("kb_used", r.used().div_ceil(1024).into());
    put("bytes_used", r.used().into());
    if detail {
        put("data_bytes_used", r.used_data.into());
        put("omap_bytes_used", r.used_omap.into());
    }
    put("percent_used", json!(f64::from(r.used_ratio())));
    put("max_avail", r.max_avail().into());
    if detail {
        put("quota_objects", r.pool.quota_max_objects.into());
        put("quota_bytes", r.pool.quota_max_bytes.into());
        put("dirty", 0.into());
        put("rd", s.num_rd.into());
        put("rd_bytes", s.num_rd_kb.saturating_mul(1024).into());
        put("wr", s.num_wr.into());
        put("wr_bytes", s.num_wr_kb.saturating_mul(1024).into());
        put("compress_bytes_used", r.sum.stat.store_stats.data_compressed_allocated.into());
        put("compress_under_bytes", r.sum.stat.store_stats.data_compressed_original.into());
        put("stored_raw", ((r.stored() as f32 * r.raw_rate) as u64).into());
        put("avail_raw", r.avail_raw.into());
    }
    out.into()
}
