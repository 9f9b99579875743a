//! Commands about the cluster as a whole and about who is connected.

use super::{Args, CommandResult, CommandSpec, FLAG_HIDDEN, FLAG_TELL, json_out, text_or_json};
use crate::access::Access;
use crate::mon::{CommandCtx, Mon};
use serde_json::{Map, Value, json};
use spirula_types::EntityType;
use spirula_types::errno::EOPNOTSUPP;
use std::collections::BTreeMap;

/// What we call ourselves where Ceph's daemons name their version. The first part is the
/// release whose protocol we speak: programs compare it.
pub const VERSION_TEXT: &str =
    concat!("ceph version 16.2.15 (spirula ", env!("CARGO_PKG_VERSION"), ") pacific (stable)");

pub(super) const SPECS: &[CommandSpec] = &[
    CommandSpec {
        sig: "fsid",
        help: "show cluster FSID/UUID",
        module: "mon",
        perm: "r",
        flags: 0,
        run: fsid,
    },
    CommandSpec {
        sig: "version",
        help: "show mon daemon version",
        module: "mon",
        perm: "r",
        flags: FLAG_HIDDEN | FLAG_TELL,
        run: version,
    },
    CommandSpec {
        sig: "versions",
        help: "check running versions of ceph daemons",
        module: "mon",
        perm: "r",
        flags: 0,
        run: versions,
    },
    CommandSpec {
        sig: "features",
        help: "report of connected features",
        module: "mon",
        perm: "r",
        flags: 0,
        run: features,
    },
    CommandSpec {
        sig: "quorum_status",
        help: "report status of monitor quorum",
        module: "mon",
        perm: "r",
        flags: 0,
        run: quorum_status,
    },
    CommandSpec {
        sig: "mon_status",
        help: "report status of monitors",
        module: "mon",
        perm: "r",
        flags: FLAG_HIDDEN | FLAG_TELL,
        run: mon_status,
    },
    CommandSpec {
        sig: "time-sync-status",
        help: "show time sync status",
        module: "mon",
        perm: "r",
        flags: 0,
        run: time_sync,
    },
    CommandSpec {
        sig: "node ls name=type,type=CephChoices,strings=all|osd|mon|mds|mgr,req=false",
        help: "list all nodes in cluster [type]",
        module: "mon",
        perm: "r",
        flags: 0,
        run: node_ls,
    },
    CommandSpec {
        sig: "sessions",
        help: "list existing sessions",
        module: "mon",
        perm: "r",
        flags: FLAG_HIDDEN | FLAG_TELL,
        run: sessions,
    },
    CommandSpec {
        sig: "ops",
        help: "show the ops currently in flight",
        module: "mon",
        perm: "r",
        flags: FLAG_HIDDEN | FLAG_TELL,
        run: no_ops,
    },
    CommandSpec {
        sig: "dump_historic_ops",
        help: "show recent ops",
        module: "mon",
        perm: "r",
        flags: FLAG_HIDDEN | FLAG_TELL,
        run: no_history,
    },
    CommandSpec {
        sig: "tell name=target,type=CephName name=args,type=CephString,n=N",
        help: "send a command to a specific daemon",
        module: "mon",
        perm: "rw",
        flags: 0,
        run: tell,
    },
];

fn fsid(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let fsid = ctx.mon.fsid().to_string();
    text_or_json(ctx, || format!("{fsid}\n"), || json!({ "fsid": fsid }))
}

fn version(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let value = || json!({"version": VERSION_TEXT, "release": "pacific", "release_type": "stable"});
    text_or_json(ctx, || format!("{VERSION_TEXT}\n"), value)
}

/// Version → number of daemons.
pub(super) fn count_versions<'a>(texts: impl Iterator<Item = &'a str>) -> BTreeMap<String, u64> {
    let mut out = BTreeMap::new();
    for t in texts {
        *out.entry(t.to_owned()).or_insert(0) += 1;
    }
    out
}

/// Versions that OSDs told.
pub(super) fn osd_versions(ctx: &CommandCtx<'_>) -> BTreeMap<String, u64> {
    count_versions(
        ctx.work
            .state
            .osd_metadata
            .values()
            .map(|m| m.get("ceph_version").map_or("unknown", String::as_str)),
    )
}

/// Versions of the managers in the map.
pub(super) fn mgr_versions(ctx: &CommandCtx<'_>) -> BTreeMap<String, u64> {
    let map = &ctx.work.state.mgrmap;
    let active = (map.active_gid != 0).then_some(&map.active_name);
    let names = active.into_iter().chain(map.standbys.values().map(|s| &s.name));
    let version =
        |n: &String| ctx.work.state.mgr_metadata.get(n)?.get("ceph_version").map(String::as_str);
    count_versions(names.map(|n| version(n).unwrap_or("unknown")))
}

/// Versions of the monitors, as far as this one has heard of the others.
pub(super) fn mon_versions(ctx: &CommandCtx<'_>) -> BTreeMap<String, u64> {
    let told =
        |name: &String| ctx.mon.quorum.facts.get(name)?.get("ceph_version").map(String::as_str);
    let own = |name: &String| (*name == ctx.mon.name).then_some(VERSION_TEXT);
    let of = |name| told(name).or_else(|| own(name)).unwrap_or("unknown");
    count_versions(ctx.work.state.monmap.iter().map(|(_, m)| of(&m.name)))
}

fn versions(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let parts = [
        ("mon", mon_versions(ctx)),
        ("mgr", mgr_versions(ctx)),
        ("osd", osd_versions(ctx)),
        ("mds", super::mds::counted(ctx, "ceph_version")),
    ];
    // A manager has told of the others: gateways, mirror daemons.
    let others = ctx.mon.mgr.knowledge.services.counted("ceph_version");
    let parts = parts.map(|(kind, counts)| (kind.to_owned(), counts)).into_iter().chain(others);
    let mut overall = BTreeMap::new();
    let mut out = Map::new();
    for (kind, counts) in parts {
        for (v, n) in &counts {
            *overall.entry(v.clone()).or_insert(0) += n;
        }
        out.insert(kind, json!(counts));
    }
    out.insert("overall".to_owned(), json!(overall));
    json_out(ctx, &Value::Object(out))
}

fn features(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    json_out(ctx, &feature_map(ctx.mon))
}

/// Who is connected, by kind and features: kind → list of features with their number.
fn feature_map(mon: &Mon) -> Value {
    let mut groups: BTreeMap<(u8, u64), u64> = BTreeMap::new();
    // Ourselves, who are in no session.
    groups.insert((EntityType::Mon as u8, spirula_types::features::PACIFIC), 1);
    for s in mon.sessions.values() {
        *groups.entry((s.peer.kind as u8, s.peer.features)).or_insert(0) += 1;
    }
    let mut out = Map::new();
    for ((kind, features), num) in groups {
        let name = EntityType::from_wire(kind).map_or("unknown", EntityType::as_str);
        let entry = json!({"features": format!("{features:#x}"), "release": release_of(features), "num": num});
        if let Some(list) = out.entry(name).or_insert_with(|| json!([])).as_array_mut() {
            list.push(entry);
        }
    }
    Value::Object(out)
}

/// The oldest release with all these bits, as far as bits tell them apart.
fn release_of(features: u64) -> &'static str {
    const SERVER_LUMINOUS: u64 = 1 << 21;
    const SERVER_JEWEL: u64 = 1 << 57;
    if features & SERVER_LUMINOUS != 0 {
        "luminous"
    } else if features & SERVER_JEWEL != 0 {
        "jewel"
    } else {
        "unknown"
    }
}

fn quorum_json(mon: &Mon) -> Value {
    let q = &mon.quorum;
    let age = crate::osd::seconds_between(q.since, mon.now) as u64;
    json!({
        "election_epoch": q.election_epoch,
        "quorum": q.quorum,
        "quorum_names": q.names,
        "quorum_leader_name": q.leader,
        "quorum_age": age,
        "features": {
            "quorum_con": spirula_types::features::PACIFIC.to_string(),
            "quorum_mon": spirula_maps::mon_feature_names(mon.state().monmap.persistent_features),
        },
        "monmap": mon.state().monmap.dump(),
    })
}

fn quorum_status(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    // Compact also as plain text, as the real one.
    if ctx.format == spirula_format::Format::Plain {
        return CommandResult::data(quorum_json(ctx.mon).to_string() + "\n");
    }
    json_out(ctx, &quorum_json(ctx.mon))
}

fn mon_status_json(mon: &Mon) -> Value {
    let q = &mon.quorum;
    let rank = mon.state().monmap.rank_of(&mon.name).unwrap_or(0);
    json!({
        "name": mon.name,
        "rank": rank,
        "state": match q.leader.as_str() {
            "" if mon.member() == 0 => "probing",
            "" => "electing",
            name if name == mon.name => "leader",
            _ => "peon",
        },
        "election_epoch": q.election_epoch,
        "quorum": q.quorum,
        "quorum_age": crate::osd::seconds_between(q.since, mon.now) as u64,
        "features": {
            "required_con": spirula_types::features::REQUIRED.to_string(),
            "required_mon": spirula_maps::mon_feature_names(mon.state().monmap.persistent_features),
            "quorum_con": spirula_types::features::PACIFIC.to_string(),
            "quorum_mon": spirula_maps::mon_feature_names(mon.state().monmap.persistent_features),
        },
        "outside_quorum": mon.state().monmap.ranks.iter().filter(|n| !q.names.contains(n)).collect::<Vec<_>>(),
        "extra_probe_peers": [],
        "sync_provider": [],
        "monmap": mon.state().monmap.dump(),
        "feature_map": feature_map(mon),
        "stretch_mode": false,
    })
}

fn mon_status(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    json_out(ctx, &mon_status_json(ctx.mon))
}

/// The text in a monitor's answer to `ceph ping`.
pub(super) fn ping_text(mon: &Mon) -> String {
    let health = crate::report::health(&mon.view(), false, spirula_format::Format::Json);
    let health: Value = serde_json::from_str(&health).unwrap_or(Value::Null);
    spirula_format::pretty(&json!({"health": health, "mon_status": mon_status_json(mon)}))
}

fn time_sync(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let q = &ctx.mon.quorum;
    let checks = json!({"epoch": q.election_epoch, "round": 0, "round_status": "finished"});
    if q.skews.is_empty() {
        return json_out(ctx, &json!({ "timechecks": checks }));
    }
    let mut skews = serde_json::Map::new();
    for name in &q.names {
        let (skew, latency) = q.skews.get(name).copied().unwrap_or_default();
        let (skew, latency) = (skew as f64 / 1e9, latency as f64 / 1e9);
        let health = if skew.abs() > 0.05 + latency { "HEALTH_WARN" } else { "HEALTH_OK" };
        skews.insert(name.clone(), json!({"skew": skew, "latency": latency, "health": health}));
    }
    json_out(ctx, &json!({ "time_skew_status": skews, "timechecks": checks }))
}

fn node_ls(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let state = &ctx.work.state;
    let host = |m: Option<&crate::state::Metadata>| {
        m.and_then(|m| m.get("hostname")).cloned().unwrap_or_else(|| "localhost".to_owned())
    };
    let mut mons: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for (_, m) in state.monmap.iter() {
        mons.entry(host(ctx.mon.quorum.facts.get(&m.name)))
            .or_default()
            .push(m.name.clone().into());
    }
    let mut osds: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for osd in ctx.work.osd().osds() {
        osds.entry(host(state.osd_metadata.get(&osd))).or_default().push(osd.into());
    }
    let mut mgrs: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let active = (state.mgrmap.active_gid != 0).then_some(&state.mgrmap.active_name);
    for name in active.into_iter().chain(state.mgrmap.standbys.values().map(|s| &s.name)) {
        mgrs.entry(host(state.mgr_metadata.get(name))).or_default().push(name.clone().into());
    }
    let value = match args.str("type").as_str() {
        "mon" => json!(mons),
        "osd" => json!(osds),
        "mgr" => json!(mgrs),
        "mds" => json!(super::mds::by_host(ctx)),
        _ => json!({"mon": mons, "osd": osds, "mds": super::mds::by_host(ctx), "mgr": mgrs}),
    };
    json_out(ctx, &value)
}

fn sessions(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let one = |s: &crate::session::Session| {
        let (caps, status) = match &s.access {
            Access::Nothing => ("", "none"),
            // A daemon of this process, or a cluster without authentication: no ticket, so none to
            // reclaim an id with.
            Access::Everything => ("allow *", "none"),
            Access::Granted { session, .. } => (session.caps.as_str(), "new_ok"),
        };
        json!({
            "name": s.peer.entity().to_string(),
            "entity_name": s.peer.auth_name(),
            "addrs": super::addrs_json(&s.peer.addrs),
            "socket_addr": super::addr_json(&s.peer.addrs.msgr2()),
            "con_type": s.peer.kind.as_str(),
            "con_features": s.peer.features,
            "con_features_hex": format!("{:x}", s.peer.features),
            "con_features_release": release_of(s.peer.features),
            "open": true,
            "caps": {"text": caps},
            "authenticated": !matches!(s.access, Access::Nothing),
            "global_id": s.peer.global_id,
            "global_id_status": status,
            "osd_epoch": s.osdmap_sent(),
            "remote_host": s.hostname,
        })
    };
    let list: Vec<Value> = ctx.mon.sessions.values().map(one).collect();
    json_out(ctx, &Value::Array(list))
}

fn no_ops(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    // Commands finish within one step; what waits for the disk is not an op of its own.
    json_out(ctx, &json!({"ops": [], "num_ops": 0}))
}

fn no_history(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    // A monitor keeps none of what it has answered: a history of no length.
    json_out(ctx, &json!({"size": 0, "duration": 0, "ops": []}))
}

fn tell(_: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    CommandResult::err(
        EOPNOTSUPP,
        "the monitor passes no commands on; the CLI tells daemons itself",
    )
}
