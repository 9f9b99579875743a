//! `ceph report`: everything the monitor knows, as one JSON text for support.
//!
//! Numbers that Ceph has from Paxos are those of the quorum's log here: what of it is kept, and the
//! term.

use super::health::Health;
use crate::view::ClusterView;
use serde_json::{Map, Value, json};
use spirula_auth::{CryptoKey, KeyType};
use spirula_encoding::UTime;
use spirula_encoding::crc::crc32c;
use spirula_format::{Format, to_json};
use spirula_maps::{OsdStatReport, PgState, PoolStat, StoreStatfs};
use spirula_types::{OSD_NONE, OsdId, Uuid};
use std::collections::BTreeMap;

/// Seed of the checksum in the status text (Ceph's: its old monitor port).
const CRC_SEED: u32 = 6789;

/// The quorum's log, as far as this monitor has applied it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreed {
    /// The oldest entry that is kept by itself; what was before is in a snapshot.
    pub first: u64,
    /// The newest entry.
    pub last: u64,
    /// The term of the last election.
    pub term: u64,
}

/// The report: output and status text. `version` is our release.
pub fn report(
    view: &ClusterView<'_>,
    agreed: Agreed,
    version: &str,
    format: Format,
) -> (String, String) {
    let format = if format.is_json() { format } else { Format::JsonPretty };
    let text = to_json(&json(view, agreed, version), format);
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

/// Of some OSDs together, with Ceph's keys: as one of them, but for what counts them.
fn sum_of_osds<'a>(statfs: StoreStatfs, osds: impl Iterator<Item = &'a OsdStatReport>) -> Value {
    let (mut all, mut n, mut in_pools) =
        (OsdStatReport { statfs, ..OsdStatReport::default() }, 0u32, 0u32);
    for o in osds {
        n += 1;
        in_pools += u32::from(!o.pool_statfs.is_empty());
        // What a sender says is not trusted to add up.
        all.num_pgs = all.num_pgs.saturating_add(o.num_pgs);
        all.num_shards_repaired = all.num_shards_repaired.saturating_add(o.num_shards_repaired);
        all.snap_trim_queue_len = all.snap_trim_queue_len.saturating_add(o.snap_trim_queue_len);
        all.num_snap_trimming = all.num_snap_trimming.saturating_add(o.num_snap_trimming);
        all.commit_latency_ns = all.commit_latency_ns.saturating_add(o.commit_latency_ns);
        all.apply_latency_ns = all.apply_latency_ns.saturating_add(o.apply_latency_ns);
    }
    let mut v = all.dump(None);
    if let Some(map) = v.as_object_mut() {
        map.insert("num_osds".into(), n.into());
        map.insert("num_per_pool_osds".into(), in_pools.into());
        map.insert("num_per_pool_omap_osds".into(), in_pools.into());
    }
    v
}

fn by_class(view: &ClusterView<'_>) -> Value {
    let osds = &view.mgr.digest.osds;
    let class_of = |osd: &OsdId| view.osdmap.crush.class_of(*osd);
    let one = |(class, statfs): (String, StoreStatfs)| {
        let of_it = osds.iter().filter(|(osd, _)| class_of(osd) == Some(&class)).map(|(_, o)| o);
        let sum = sum_of_osds(statfs, of_it);
        (class, sum)
    };
    Value::Object(super::df::classes(view).into_iter().map(one).collect())
}

/// How many PGs each OSD leads, serves, and is only to serve, as the map places them.
fn by_osd(view: &ClusterView<'_>) -> Value {
    let mut of: BTreeMap<OsdId, [u32; 3]> = BTreeMap::new();
    let mut count = |osd: OsdId, which: usize| {
        if osd >= 0 && osd != OSD_NONE {
            of.entry(osd).or_default()[which] += 1;
        }
    };
    for (_, m) in view.osdmap.map_all().iter() {
        count(m.acting_primary, 0);
        m.acting.iter().for_each(|o| count(*o, 1));
        m.up.iter().filter(|o| !m.acting.contains(o)).for_each(|o| count(*o, 2));
    }
    let row = |(osd, [led, acting, up]): (OsdId, [u32; 3])| json!({"osd": osd, "num_primary_pg": led, "num_acting_pg": acting, "num_up_not_acting_pg": up});
    of.into_iter().map(row).collect()
}

/// A name of the cluster that does not tell its id: the same for one cluster for ever.
fn fingerprint(fsid: Uuid) -> Uuid {
    let key = CryptoKey::new(KeyType::Aes, UTime::ZERO, &fsid.0).ok();
    let hash = key.map(|k| k.hmac_sha256(b"spirula cluster fingerprint"));
    let mut id = [0; 16];
    id.iter_mut().zip(hash.unwrap_or_default()).for_each(|(to, from)| *to = from);
    Uuid(id)
}

fn json(view: &ClusterView<'_>, agreed: Agreed, version: &str) -> Value {
    let d = &view.mgr.digest;
    let mut out = Map::new();
    let mut put = |key: &str, v: Value| {
        out.insert(key.to_owned(), v);
    };
    put("cluster_fingerprint", fingerprint(view.fsid).to_string().into());
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
            one.extend(facts.iter().map(|(k, v)| (k.clone(), v.clone().into())));
            one.insert("id".into(), (*id).into());
            one.into()
        })
        .collect();
    put("osd_metadata", metadata.into());
    // How far single OSDs and pools are is known to the manager alone.
    let clean = json!({"min_last_epoch_clean": d.oldest_needed, "last_epoch_clean": {"per_pool": []}, "osd_epochs": []});
    put("osdmap_clean_epochs", clean);
    put("osdmap_first_committed", view.oldest_osdmap.into());
    put("osdmap_last_committed", view.osdmap.epoch.into());
    put("crushmap", view.osdmap.crush.dump());
    put("fsmap", view.fsmap.dump());
    put("mdsmap_first_committed", view.fsmap.epoch.into());
    put("mdsmap_last_committed", view.fsmap.epoch.into());
    let users = view.auth.iter().count();
    put(
        "auth",
        json!({"first_committed": agreed.first, "last_committed": agreed.last, "num_secrets": users}),
    );
    put("mgrmap", view.mgrmap.dump());
    put("num_pg", d.num_pgs().into());
    put("num_pg_active", d.num_pgs_with(PgState::ACTIVE).into());
    put("num_pg_unknown", d.pg_states.get(&PgState::UNKNOWN).copied().unwrap_or(0).into());
    put("num_osd", d.osds.len().into());
    put("pool_sum", sum_json(&d.pool_sum().stat));
    put(
        "osd_sum",
        sum_of_osds(
            view.space(),
            d.osds.iter().filter(|(o, _)| view.osdmap.is_in(**o)).map(|(_, o)| o),
        ),
    );
    put("osd_sum_by_class", by_class(view));
    let pools: Vec<Value> = d.pools.iter().map(|(id, p)| p.stat.dump(*id, p.num_pgs)).collect();
    put("pool_stats", pools.into());
    let osds: Vec<Value> = d.osds.iter().map(|(id, o)| json!({"osd": id, "seq": o.seq})).collect();
    put("osd_stats", osds.into());
    let states: Vec<Value> =
        d.pg_states.iter().map(|(s, n)| json!({"state": s.to_string(), "num": n})).collect();
    put("num_pg_by_state", states.into());
    put("num_pg_by_osd", by_osd(view));
    put("purged_snaps", json!([]));
    put("servicemap", view.servicemap());
    let paxos = json!({"first_committed": agreed.first, "last_committed": agreed.last, "last_pn": agreed.term,
        "accepted_pn": agreed.term});
    put("paxos", paxos);
    out.into()
}
