//! `ceph report`: everything the monitor knows, as one JSON text for support.

use super::health::Health;
use crate::view::ClusterView;
use serde_json::{Map, Value, json};
use spirula_encoding::crc::crc32c;
use spirula_format::{Format, to_json};
use spirula_maps::{OsdStatReport, PgState, PoolStat};

/// Seed of the checksum in the status text (Ceph's: its old monitor port).
const CRC_SEED: u32 = 6789;

/// The report: output and status text. `version` is our release.
pub fn report(view: &ClusterView<'_>, version: &str, format: Format) -> (String, String) {
    let format = if format.is_json() { format } else { Format::JsonPretty };
    let text = to_json(&json(view, version), format);
    let status = format!("report {}", crc32c(CRC_SEED, text.as_bytes()));
    (text, status)
}

/// A pool's dump without its number.
fn sum_json(stat: &PoolStat) -> Value {
    let mut v = stat.dump(0, 0);
    if let Some(map) = v.as_object_mut() {
        map.shift_remove("poolid");
        map.shift_remove("num_pg");
    }
    v
}

fn json(view: &ClusterView<'_>, version: &str) -> Value {
    let d = &view.mgr.digest;
    let mut out = Map::new();
    let mut put = |key: &str, v: Value| {
        out.insert(key.to_owned(), v);
    };
    put("version", version.into());
    put("commit", "".into());
    put("timestamp", view.now.to_iso().into());
    put("tag", "".into());
    put("health", Health::of(view).json(true));
    put("monmap_first_committed", view.monmap.epoch.into());
    put("monmap_last_committed", view.monmap.epoch.into());
    put("monmap", view.monmap.dump());
    put("quorum", view.quorum.quorum.clone().into());
    put("osdmap", view.osdmap.dump());
    let metadata: Vec<Value> = view
        .osd_metadata
        .iter()
        .map(|(id, facts)| {
            let mut one = Map::new();
            one.insert("id".into(), (*id).into());
            one.extend(facts.iter().map(|(k, v)| (k.clone(), v.clone().into())));
            one.into()
        })
        .collect();
    put("osd_metadata", metadata.into());
    put("osdmap_first_committed", view.oldest_osdmap.into());
    put("osdmap_last_committed", view.osdmap.epoch.into());
    put("crushmap", view.osdmap.crush.dump());
    put("fsmap", view.fsmap.dump());
    put("mgrmap", view.mgrmap.dump());
    put("num_pg", d.num_pgs().into());
    put("num_pg_active", d.num_pgs_with(PgState::ACTIVE).into());
    put("num_pg_unknown", d.pg_states.get(&PgState::UNKNOWN).copied().unwrap_or(0).into());
    put("num_osd", d.osds.len().into());
    put("pool_sum", sum_json(&d.pool_sum().stat));
    put("osd_sum", OsdStatReport { statfs: view.space(), ..OsdStatReport::default() }.dump(None));
    let pools: Vec<Value> = d.pools.iter().map(|(id, p)| p.stat.dump(*id, p.num_pgs)).collect();
    put("pool_stats", pools.into());
    let osds: Vec<Value> = d.osds.iter().map(|(id, o)| json!({"osd": id, "seq": o.seq})).collect();
    put("osd_stats", osds.into());
    let states: Vec<Value> = d.pg_states.iter().map(|(s, n)| json!({"state": s.to_string(), "num": n})).collect();
    put("num_pg_by_state", states.into());
    put("servicemap", view.servicemap());
    out.into()
}
