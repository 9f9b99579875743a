//! `ceph tell mgr.x …`: what this daemon says of itself.

use super::spec::{CommandSpec, Ctx, Reply};
use serde_json::json;
use spirula_types::errno;

macro_rules! tell {
    ($($sig:literal, $help:literal => $run:expr;)*) => {
        &[$(CommandSpec { sig: $sig, help: $help, module: "mgr", perm: "r", flags: 0, run: $run }),*]
    };
}

pub(super) const COMMANDS: &[CommandSpec] = tell! {
    "version", "get ceph version" => version;
    "config show", "dump current config settings" => config_show;
    "config get name=var,type=CephString", "get the config value" => config_get;
    "status", "high-level status" => status;
    "perf dump", "dump perfcounters value" => perf_dump;
};

fn version(c: &Ctx<'_>) -> Reply {
    let version = c.mgr.config.metadata.get("ceph_version_short").map_or(env!("CARGO_PKG_VERSION"), String::as_str);
    c.json(&json!({"version": version, "release": "pacific", "release_type": "stable"}))
}

fn config_show(c: &Ctx<'_>) -> Reply {
    c.json(&json!(c.mgr.options))
}

fn config_get(c: &Ctx<'_>) -> Reply {
    let var = c.str("var").unwrap_or_default();
    match c.mgr.options.get(&var) {
        Some(v) => {
            let mut map = serde_json::Map::new();
            map.insert(var, v.clone().into());
            c.json(&map.into())
        }
        None => Reply::err(errno::ENOENT, format!("error getting '{var}': not set")),
    }
}

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

fn perf_dump(c: &Ctx<'_>) -> Reply {
    c.json(&json!({
        "mgr": {
            "osdmap_epoch": c.mgr.map.epoch,
            "pgmap_version": c.mgr.pgmap.version(),
            "pgs": c.mgr.pgmap.pgs().len(),
            "osds": c.mgr.osds.len(),
        }
    }))
}
