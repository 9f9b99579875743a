//! `ceph tell mgr.x …`: what this daemon says of itself.

use super::spec::{CommandSpec, Ctx, Reply};
use serde_json::json;

macro_rules! tell {
    ($($sig:literal, $help:literal => $run:expr;)*) => {
        &[$(CommandSpec { sig: $sig, help: $help, module: "mgr", perm: "r", flags: 0, run: $run }),*]
    };
}

pub(super) const COMMANDS: &[CommandSpec] = tell! {
    "status", "high-level status" => status;
    "perf dump name=logger,type=CephString,req=false name=counter,type=CephString,req=false", "dump perfcounters value" => perf_dump;
    "perf schema name=logger,type=CephString,req=false name=counter,type=CephString,req=false", "dump perfcounters schema" => perf_schema;
    "sessions", "list existing sessions" => sessions;
    "mgr_status", "epoch of the manager map, and whether this manager serves" => mgr_status;
};

fn status(c: &Ctx<'_>) -> Reply {
    c.json(&json!({
        "name": c.mgr.config.name,
        "gid": c.mgr.config.gid,
        "addrs": c.mgr.config.addrs.to_string(),
        "active": c.mgr.mgrmap.active_gid == c.mgr.config.gid,
        "osd_epoch": c.mgr.map.epoch,
        "pgmap_version": c.mgr.pgmap.version(),
        "num_osds_reporting": c.mgr.osds.len(),
    }))
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
