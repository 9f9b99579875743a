//! `ceph tell mgr.x …`: what this daemon says of itself.

use super::spec::{CommandSpec, Ctx, Reply};
use serde_json::json;
use spirula_types::EntityAddr;

macro_rules! tell {
    ($($sig:literal, $help:literal => $run:expr;)*) => {
        &[$(CommandSpec { sig: $sig, help: $help, module: "mgr", perm: "r", flags: 0, run: $run }),*]
    };
}

pub(super) const COMMANDS: &[CommandSpec] = tell! {
    "status", "high-level status" => status;
    "perf dump name=logger,type=CephString,req=false name=counter,type=CephString,req=false", "dump perfcounters value" => perf_dump;
    "perf schema name=logger,type=CephString,req=false name=counter,type=CephString,req=false", "dump perfcounters schema" => perf_schema;
    "dump_osd_network name=value,type=CephInt,req=false", "Dump osd heartbeat network ping times" => network;
    "sessions", "list existing sessions" => sessions;
    "mgr_status", "epoch of the manager map, and whether this manager serves" => mgr_status;
};

/// What Ceph's manager says of itself as the client of a file system, which it is to serve its
/// modules, and what it knows of the cluster. This one is no client: it holds no inode and no
/// directory entry, and has seen no map of a file system.
fn status(c: &Ctx<'_>) -> Reply {
    let own = &c.mgr.config;
    let main = own.addrs.0.first().copied().unwrap_or_default();
    let kind = match main.kind {
        EntityAddr::KIND_LEGACY => "v1",
        EntityAddr::KIND_MSGR2 => "v2",
        _ => "any",
    };
    let shown = main.addr.map_or_else(|| "-".to_owned(), |a| a.to_string());
    let addr = json!({"type": kind, "addr": shown, "nonce": main.nonce});
    c.json(&json!({
        "metadata": own.metadata,
        "dentry_count": 0,
        "dentry_pinned_count": 0,
        "id": own.gid,
        "inst": {"name": {"type": "mgr", "num": own.gid}, "addr": addr},
        "addr": addr,
        "inst_str": format!("mgr.{} {shown}/{}", own.gid, main.nonce),
        "addr_str": format!("{shown}/{}", main.nonce),
        "inode_count": 0,
        "mds_epoch": 0,
        "osd_epoch": c.mgr.map.epoch,
        "osd_epoch_barrier": 0,
        "blocklisted": c.mgr.map.blocklist.contains_key(&main),
        "fs_name": "",
        "name": own.name,
        "gid": own.gid,
        "addrs": own.addrs.to_string(),
        "active": c.mgr.mgrmap.active_gid == own.gid,
        "pgmap_version": c.mgr.pgmap.version(),
        "num_osds_reporting": c.mgr.osds.len(),
    }))
}

fn network(c: &Ctx<'_>) -> Reply {
    let threshold = c.int("value").map(|ms| u64::try_from(ms).unwrap_or(0));
    c.json(&crate::network::dump(&c.mgr.digest(), threshold))
}

fn mgr_status(c: &Ctx<'_>) -> Reply {
    c.json(&json!({"mgrmap_epoch": c.mgr.mgrmap.epoch, "initialized": c.mgr.mgrmap.active_gid == c.mgr.config.gid}))
}

fn perf_dump(c: &Ctx<'_>) -> Reply {
    let all = json!({
        "mgr": {
            "osdmap_epoch": c.mgr.map.epoch,
            "pgmap_version": c.mgr.pgmap.version(),
            "pgs": c.mgr.pgmap.pgs().len(),
            "osds": c.mgr.osds.len(),
        }
    });
    c.json(&spirula_settings::common::chosen(all, c.args))
}

fn perf_schema(c: &Ctx<'_>) -> Reply {
    let gauge = |nick: &str, meaning: &str| {
        json!({"type": 2, "metric_type": "gauge", "value_type": "integer", "description": meaning,
            "nick": nick, "priority": 8, "units": "none"})
    };
    let all = json!({
        "mgr": {
            "osdmap_epoch": gauge("map", "epoch of the OSD map"),
            "pgmap_version": gauge("pgm", "version of the statistics"),
            "pgs": gauge("pgs", "placement groups known"),
            "osds": gauge("osds", "OSDs that report"),
        }
    });
    c.json(&spirula_settings::common::chosen(all, c.args))
}

fn sessions(c: &Ctx<'_>) -> Reply {
    let list = c.mgr.sessions().map(
        |(id, p)| json!({"id": id, "entity": p.name.to_string(), "auth_id": p.auth_id, "addr": p.addrs.to_string()}),
    );
    c.json(&list.collect())
}
