//! The health checks the monitor makes by itself, from its maps. What needs the state of
//! single PGs comes from the manager.

use super::health::{Check, Checks, Severity};
use crate::view::ClusterView;
use spirula_crush::CrushMap;
use spirula_maps::osdmap::{flags, pool, state};
use spirula_messages::cluster::quorum::PairTrouble;
use spirula_types::{Epoch, OSD_NONE, OsdId};
use std::collections::{BTreeMap, BTreeSet};

/// How long a cluster may be without a manager before that is worth a warning, seconds.
const MGR_GRACE: f64 = 30.0;
/// Fullness at which OSDs stop by themselves, whatever the map says (Ceph's default).
const FAILSAFE_RATIO: f32 = 0.97;

/// Cluster flags that somebody set for a while and may have forgotten.
const WARN_FLAGS: u32 = flags::NEARFULL
    | flags::FULL
    | flags::PAUSERD
    | flags::PAUSEWR
    | flags::PAUSEREC
    | flags::NOUP
    | flags::NODOWN
    | flags::NOIN
    | flags::NOOUT
    | flags::NOBACKFILL
    | flags::NORECOVER
    | flags::NOSCRUB
    | flags::NODEEP_SCRUB
    | flags::NOTIERAGENT
    | flags::NOSNAPTRIM
    | flags::NOREBALANCE;

/// All checks: ours and the manager's.
pub(super) fn all(view: &ClusterView<'_>) -> Checks {
    let mut out = Checks::new();
    monitors(view, &mut out);
    clocks(view, &mut out);
    rooms(view, &mut out);
    manager(view, &mut out);
    osds_down(view, &mut out);
    osd_pairs(view, &mut out);
    osd_states(view, &mut out);
    map_flags(view, &mut out);
    full_ratios(view, &mut out);
    pools(view, &mut out);
    few_osds(view, &mut out);
    old_crush(view, &mut out);
    never_out(view, &mut out);
    crashes(view, &mut out);
    users(view, &mut out);
    super::fs::checks(view, &mut out);
    for h in &view.mgr.health {
        let severity = if h.severity >= 2 { Severity::Error } else { Severity::Warning };
        out.insert(
            h.code.clone(),
            Check {
                severity,
                summary: h.summary.clone(),
                count: h.count,
                detail: h.detail.clone(),
            },
        );
    }
    out
}

fn add(
    out: &mut Checks,
    code: &str,
    severity: Severity,
    summary: String,
    count: u64,
    detail: Vec<String>,
) {
    out.insert(code.to_owned(), Check { severity, summary, count, detail });
}

fn warn(out: &mut Checks, code: &str, summary: String, detail: Vec<String>) {
    add(out, code, Severity::Warning, summary, detail.len() as u64, detail);
}

fn monitors(view: &ClusterView<'_>, out: &mut Checks) {
    if let Some(ticks) = view.quorum.stalled {
        let detail =
            "a majority is heard, but does not write down what the leader proposes; see the \
                monitors' logs"
                .to_owned();
        let summary = format!(
            "monitors have not agreed on a change for {} s: nothing can be changed",
            ticks / 10
        );
        add(out, "MON_STALLED", Severity::Error, summary, 1, vec![detail]);
    }
    if !view.undone.is_empty() {
        let detail = view.undone.iter().map(|(what, why)| format!("{what}: {why}")).collect();
        let summary = format!(
            "{} tasks of the monitors cannot be done: what they would change is not possible",
            view.undone.len()
        );
        add(out, "MON_TASK_REFUSED", Severity::Error, summary, view.undone.len() as u64, detail);
    }
    if let Some((bytes, parts)) = &view.quorum.unsendable {
        let mut detail: Vec<String> = parts
            .iter()
            .map(|(table, n)| format!("{table}: {} MiB. {}", n >> 20, smaller(table)))
            .collect();
        detail.push("then: ceph tell mon.* compact".to_owned());
        let summary = format!(
            "what the monitors keep has {} MiB: a monitor that is new, or was away for long, \
                cannot take it over",
            bytes >> 20
        );
        add(out, "MON_STATE_TOO_LARGE", Severity::Warning, summary, 1, detail);
    }
    if view.settled_osdmap < view.oldest_osdmap {
        let detail = vec![
            format!("epochs {} to {} are gone", view.settled_osdmap + 1, view.oldest_osdmap - 1),
            "a PG of which all members were away meanwhile may not know who has its newest data, \
                and wait"
                .to_owned(),
        ];
        let summary =
            "OSD maps that PGs need were too large to be kept: get all PGs clean".to_owned();
        add(out, "MON_OSDMAPS_GONE", Severity::Warning, summary, 1, detail);
    }
    if !view.quorum.contradicting.is_empty() {
        let detail = view.quorum.contradicting.iter().flat_map(|(name, why)| {
            [
                format!("mon.{name} contradicts what the others have agreed on: {why}"),
                format!(
                    "stop mon.{name} and fill it again from the others: spirula mon rejoin \
                    --id {name} --dir DIR"
                ),
            ]
        });
        let count = view.quorum.contradicting.len();
        let summary = match count {
            1 => "1 monitor takes no part: its store contradicts what the others have agreed on"
                .to_owned(),
            _ => format!(
                "{count} monitors take no part: their stores contradict what the others have \
                    agreed on"
            ),
        };
        add(out, "MON_CONTRADICTS", Severity::Error, summary, count as u64, detail.collect());
    }
    let told = view.quorum.forgotten_elsewhere.values().chain([&view.quorum.forgotten]).flatten();
    let forgotten: BTreeMap<&String, &Epoch> =
        told.filter(|(_, epoch)| **epoch > view.osdmap.epoch).collect();
    let detail: Vec<String> = forgotten
        .into_iter()
        .map(|(who, epoch)| {
            format!("{who} has OSD map {epoch}, the monitors' newest is {}", view.osdmap.epoch)
        })
        .collect();
    if !detail.is_empty() {
        let summary = format!(
            "monitors have forgotten what they agreed on, as {} daemons know: an older copy of a \
                monitor's store was put back",
            detail.len()
        );
        let way = "stop the monitors and put the newest copy back, or fill this one again from the \
            others ('spirula mon rejoin'); \
                   see docs/deploy.md";
        let count = detail.len() as u64;
        let detail = detail.into_iter().chain([way.to_owned()]).collect();
        add(out, "MON_ROLLED_BACK", Severity::Error, summary, count, detail);
    }
    let all = view.monmap.len();
    let up = view.quorum.quorum.len();
    if up >= all || up == 0 {
        return;
    }
    let detail = view
        .monmap
        .iter()
        .filter(|(rank, _)| !view.quorum.quorum.iter().any(|q| *q as usize == *rank))
        .map(|(rank, mon)| {
            format!("mon.{} (rank {rank}) addr {} is down (out of quorum)", mon.name, mon.addrs)
        })
        .collect();
    warn(
        out,
        "MON_DOWN",
        format!("{}/{all} mons down, quorum {}", all - up, view.quorum.names.join(",")),
        detail,
    );
}

/// Monitors whose clocks are too far from the leader's. Nothing depends on that but stamps.
fn clocks(view: &ClusterView<'_>, out: &mut Checks) {
    let text = view.config.get_for("mon", "mon_clock_drift_allowed");
    let text = text.or_else(|| view.defaults.get("mon_clock_drift_allowed").cloned());
    let allowed = text.and_then(|t| t.parse::<f64>().ok()).unwrap_or(0.05);
    let apart = view.quorum.skews.iter().filter_map(|(name, (skew, latency))| {
        let (skew, latency) = (*skew as f64 / 1e9, *latency as f64 / 1e9);
        // Half the way's time is how wrong the measurement can be.
        let far = skew.abs() > allowed + latency && view.quorum.names.contains(name);
        far.then(|| {
            (
                name,
                format!(
                    "mon.{name} clock skew {:.6}s > max {allowed}s (latency {latency:.6}s)",
                    skew.abs()
                ),
            )
        })
    });
    let (names, detail): (Vec<_>, Vec<_>) = apart.unzip();
    if !detail.is_empty() {
        let names: Vec<String> = names.into_iter().map(|n| format!("mon.{n}")).collect();
        warn(out, "MON_CLOCK_SKEW", format!("clock skew detected on {}", names.join(", ")), detail);
    }
}

/// Monitors whose disks are nearly full: one that cannot write stops.
fn rooms(view: &ClusterView<'_>, out: &mut Checks) {
    let (crit, warn) = view.room_bounds;
    let known = || view.quorum.room.iter().filter(|(name, _)| view.quorum.names.contains(name));
    let few: Vec<_> = known().filter(|(_, free)| **free <= crit).collect();
    let some: Vec<_> = known().filter(|(_, free)| **free > crit && **free <= warn).collect();
    for (code, severity, word, list) in [
        ("MON_DISK_CRIT", Severity::Error, "very low", few),
        ("MON_DISK_LOW", Severity::Warning, "low", some),
    ] {
        if list.is_empty() {
            continue;
        }
        let names: Vec<&str> = list.iter().map(|(name, _)| name.as_str()).collect();
        let (s, are) = if names.len() == 1 { ("", "is") } else { ("s", "are") };
        let summary = format!("mon{s} {} {are} {word} on available space", names.join(","));
        let detail: Vec<String> =
            list.iter().map(|(name, free)| format!("mon.{name} has {free}% avail")).collect();
        add(out, code, severity, summary, detail.len() as u64, detail);
    }
}

/// Who gets in, and with what keys.
fn users(view: &ClusterView<'_>, out: &mut Checks) {
    if !view.auth_safe {
        let detail = "whoever reaches a port may do everything; auth_cluster_required and \
            auth_service_required = \
                      cephx turn authentication on"
            .to_owned();
        warn(out, "AUTH_NOT_REQUIRED", "authentication is off".into(), vec![detail]);
        return;
    }
    let wanted =
        view.config.get_for("mon", "mon_warn_on_insecure_client_keys").is_some_and(|v| v == "true");
    for weak in view.auth.weak_key_checks().into_iter().filter(|w| w.error || wanted) {
        let severity = if weak.error { Severity::Error } else { Severity::Warning };
        add(out, weak.code, severity, weak.summary, weak.detail.len() as u64, weak.detail);
    }
}

/// Daemons that died lately, until somebody archives the reports.
fn crashes(view: &ClusterView<'_>, out: &mut Checks) {
    let detail = crate::commands::crash::recent(view.kv.crashes(), view.now);
    if !detail.is_empty() {
        let summary = format!("{} daemons have recently crashed", detail.len());
        warn(out, "RECENT_CRASH", summary, detail);
    }
}

fn manager(view: &ClusterView<'_>, out: &mut Checks) {
    let age = view.now.as_secs_f64() - view.quorum.since.as_secs_f64();
    let had_one = !view.mgr.stamp.is_zero();
    if !view.mgrmap.available && (had_one || age > MGR_GRACE) {
        add(out, "MGR_DOWN", Severity::Warning, "no active mgr".to_owned(), 0, Vec::new());
    }
}

/// `root=default,host=host2`: from the root down to the parent; empty for a root.
fn location(crush: &CrushMap, item: i32) -> String {
    let path = crush.full_location_ordered(item);
    path.iter().rev().map(|(kind, name)| format!("{kind}={name}")).collect::<Vec<_>>().join(",")
}

/// OSDs that should work and do not, and the hosts, racks… that are down as a whole.
fn osds_down(view: &ClusterView<'_>, out: &mut Checks) {
    let map = view.osdmap;
    let down: BTreeSet<OsdId> = map.osds().filter(|o| map.is_in(*o) && map.is_down(*o)).collect();
    let placed: BTreeSet<OsdId> = map
        .crush
        .buckets
        .iter()
        .flatten()
        .flat_map(|b| &b.items)
        .copied()
        .filter(|i| *i >= 0)
        .collect();
    let orphans: Vec<String> = placed
        .into_iter()
        .filter(|o| !map.exists(*o))
        .map(|o| format!("osd.{o} exists in crush map but not in osdmap"))
        .collect();
    if !orphans.is_empty() {
        let summary =
            format!("{} osds exist in the crush map but not in the osdmap", orphans.len());
        warn(out, "OSD_ORPHAN", summary, orphans);
    }
    if down.is_empty() {
        return;
    }
    let detail =
        down.iter().map(|o| format!("osd.{o} ({}) is down", location(&map.crush, *o))).collect();
    warn(out, "OSD_DOWN", format!("{} osds down", down.len()), detail);

    // By bucket type: buckets all of whose OSDs are down, with how many those are.
    let mut by_type: BTreeMap<u16, BTreeMap<i32, usize>> = BTreeMap::new();
    for bucket in map.crush.buckets.iter().flatten() {
        if map.crush.is_shadow(bucket.id) {
            continue;
        }
        let members = map.crush.osds_under(bucket.id);
        if members.iter().any(|o| down.contains(o)) && members.iter().all(|o| map.is_down(*o)) {
            by_type.entry(bucket.kind).or_default().insert(bucket.id, members.len());
        }
    }
    for (kind, buckets) in by_type {
        let Some(name) = map.crush.type_names.get(&i32::from(kind)) else { continue };
        let plural = if buckets.len() > 1 { "s" } else { "" };
        let sum: usize = buckets.values().sum();
        // Highest id first: hosts were numbered downwards as they came.
        let detail = buckets
            .iter()
            .rev()
            .map(|(id, n)| {
                let bucket = map.crush.names.get(id).map_or("?", String::as_str);
                let within = location(&map.crush, *id);
                let within = if within.is_empty() { String::new() } else { format!(" ({within})") };
                format!("{name} {bucket}{within} ({n} osds) is down")
            })
            .collect();
        let code = format!("OSD_{}_DOWN", name.to_uppercase());
        warn(out, &code, format!("{} {name}{plural} ({sum} osds) down", buckets.len()), detail);
    }
}

/// OSDs that do not hear each other while others hear both, and which of them is kept out for it.
fn osd_pairs(view: &ClusterView<'_>, out: &mut Checks) {
    if view.pairs.is_empty() {
        return;
    }
    let say = |p: &PairTrouble| {
        let now = match (p.out, p.waiting) {
            (OSD_NONE, 0) => "nothing waits for that".to_owned(),
            (OSD_NONE, n) => {
                format!(
                    "{n} requests wait for that, and taking one of the two down would stop more or \
                        is forbidden"
                )
            }
            (osd, _) => format!("osd.{osd} is kept out until it hears all that are up"),
        };
        format!(
            "osd.{} and osd.{} have not heard each other since {}; {now}",
            p.a,
            p.b,
            p.since.to_iso()
        )
    };
    let detail: Vec<String> = view.pairs.iter().map(say).collect();
    let summary = match view.pairs {
        [p] => format!("osd.{} and osd.{} do not hear each other", p.a, p.b),
        more => format!("{} pairs of osds do not hear each other", more.len()),
    };
    warn(out, "OSD_PAIR_UNREACHABLE", summary, detail);
}

/// Full OSDs, and OSDs with flags of their own.
fn osd_states(view: &ClusterView<'_>, out: &mut Checks) {
    let map = view.osdmap;
    let with = |bit: u32, what: &str| -> Vec<String> {
        map.osds()
            .filter(|o| map.is_up(*o) && map.is_in(*o) && map.state(*o) & bit != 0)
            .map(|o| format!("osd.{o} is {what}"))
            .collect()
    };
    let full = with(state::FULL, "full");
    if !full.is_empty() {
        let n = full.len();
        add(out, "OSD_FULL", Severity::Error, format!("{n} full osd(s)"), n as u64, full);
    }
    for (bit, word, what, code) in [
        (state::BACKFILLFULL, "backfillfull", "backfill full", "OSD_BACKFILLFULL"),
        (state::NEARFULL, "nearfull", "near full", "OSD_NEARFULL"),
    ] {
        let list = with(bit, what);
        if !list.is_empty() {
            warn(out, code, format!("{} {word} osd(s)", list.len()), list);
        }
    }

    let names = [
        (state::NOUP, "noup"),
        (state::NODOWN, "nodown"),
        (state::NOIN, "noin"),
        (state::NOOUT, "noout"),
    ];
    let words = |bits: u32| {
        let set: Vec<&str> =
            names.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect();
        set.join(",")
    };
    let nodes = map.crush_node_flags.iter().map(|(id, bits)| {
        let kind = map.crush.item_type(*id).and_then(|t| map.crush.type_name(t)).unwrap_or("node");
        format!(
            "{kind} {} has flags {}",
            map.crush.item_name(*id).unwrap_or("that is gone"),
            words(*bits)
        )
    });
    let classes = map.device_class_flags.iter().map(|(id, bits)| {
        let name = map.crush.class_names.get(id).map_or("a class that is gone", String::as_str);
        format!("device class '{name}' has flags {}", words(*bits))
    });
    let flagged: Vec<String> = map
        .osds()
        .filter_map(|o| {
            let set = words(map.state(o));
            (!set.is_empty()).then(|| format!("osd.{o} has flags {set}"))
        })
        .chain(nodes)
        .chain(classes)
        .collect();
    if !flagged.is_empty() {
        let summary = format!(
            "{} OSDs or CRUSH {{nodes, device-classes}} have {{NOUP,NODOWN,NOIN,NOOUT}} flags set",
            flagged.len()
        );
        warn(out, "OSD_FLAGS", summary, flagged);
    }
}

fn map_flags(view: &ClusterView<'_>, out: &mut Checks) {
    let map = view.osdmap;
    let set: Vec<&str> = flags::NAMES
        .iter()
        .filter(|(bit, _)| map.flags & WARN_FLAGS & bit != 0)
        .map(|(_, name)| *name)
        .collect();
    if set.is_empty() {
        return;
    }
    // Ceph counts every flag of the map here, also those that are always set.
    let count = flags::NAMES.iter().filter(|(bit, _)| map.flags & bit != 0).count() as u64;
    let summary = format!("{} flag(s) set", set.join(","));
    add(out, "OSDMAP_FLAGS", Severity::Warning, summary, count, Vec::new());
}

fn full_ratios(view: &ClusterView<'_>, out: &mut Checks) {
    let map = view.osdmap;
    let (near, mut backfill, mut full) =
        (map.nearfull_ratio, map.backfillfull_ratio, map.full_ratio);
    if near <= 0.0 && backfill <= 0.0 && full <= 0.0 {
        return;
    }
    let mut detail = Vec::new();
    if backfill < near {
        detail
            .push(format!("backfillfull_ratio ({backfill}) < nearfull_ratio ({near}), increased"));
        backfill = near;
    }
    if full < backfill {
        detail.push(format!("full_ratio ({full}) < backfillfull_ratio ({backfill}), increased"));
        full = backfill;
    }
    if FAILSAFE_RATIO < full {
        detail.push(format!(
            "osd_failsafe_full_ratio ({FAILSAFE_RATIO}) < full_ratio ({full}), increased"
        ));
    }
    if !detail.is_empty() {
        add(
            out,
            "OSD_OUT_OF_ORDER_FULL",
            Severity::Error,
            "full ratio(s) out of order".to_owned(),
            0,
            detail,
        );
    }
}

fn pools(view: &ClusterView<'_>, out: &mut Checks) {
    let map = view.osdmap;
    let mut full = Vec::new();
    let mut backfillfull = Vec::new();
    let mut nearfull = Vec::new();
    let mut single = Vec::new();
    let mut odd = Vec::new();
    let mut no_app = Vec::new();
    for (id, p) in &map.pools {
        let name = map.pool_name(*id);
        if p.has_flag(pool::flag::FULL_QUOTA) {
            full.push(format!("pool '{name}' is full (running out of quota)"));
        } else if p.has_flag(pool::flag::FULL) {
            full.push(format!("pool '{name}' is full (no space)"));
        } else if p.has_flag(pool::flag::BACKFILLFULL) {
            backfillfull.push(format!("pool '{name}' is backfillfull"));
        } else if p.has_flag(pool::flag::NEARFULL) {
            nearfull.push(format!("pool '{name}' is nearfull"));
        }
        if p.is_replicated() && p.size == 1 {
            single.push(format!("pool '{name}' has no replicas configured"));
        }
        if !p.pg_num_target.is_power_of_two() && p.autoscale_name() != "on" {
            odd.push(format!("pool '{name}' pg_num {} is not a power of two", p.pg_num_target));
        }
        let objects = view.pool_objects(*id);
        if objects > 0 && p.application_metadata.is_empty() && p.tier_of < 0 {
            no_app.push(format!("application not enabled on pool '{name}'"));
        }
    }
    for (code, words, list) in [
        ("POOL_FULL", "full", full),
        ("POOL_BACKFILLFULL", "backfillfull", backfillfull),
        ("POOL_NEARFULL", "nearfull", nearfull),
        ("POOL_NO_REDUNDANCY", "have no replicas configured", single),
        ("POOL_PG_NUM_NOT_POWER_OF_TWO", "have non-power-of-two pg_num", odd),
    ] {
        if !list.is_empty() {
            warn(out, code, format!("{} pool(s) {words}", list.len()), list);
        }
    }
    if !no_app.is_empty() {
        let n = no_app.len();
        no_app.push(
            "use 'ceph osd pool application enable <pool-name> <app-name>', where <app-name> is \
                'cephfs', 'rbd', \
             'rgw', or freeform for custom applications."
                .to_owned(),
        );
        let summary = format!("{n} pool(s) do not have an application enabled");
        add(out, "POOL_APP_NOT_ENABLED", Severity::Warning, summary, n as u64, no_app);
    }
}

fn few_osds(view: &ClusterView<'_>, out: &mut Checks) {
    let wanted = view.pool_default_size();
    let (have, ..) = view.osdmap.osd_counts();
    if u64::from(have) < wanted {
        let summary = format!("OSD count {have} < osd_pool_default_size {wanted}");
        add(out, "TOO_FEW_OSDS", Severity::Warning, summary, wanted - u64::from(have), Vec::new());
    }
}

/// A CRUSH map that moves more data than it has to, for clients that nobody has any more.
fn old_crush(view: &ClusterView<'_>, out: &mut Checks) {
    let crush = &view.osdmap.crush;
    let see = || {
        vec!["see http://docs.ceph.com/docs/master/rados/operations/crush-map/#tunables".to_owned()]
    };
    let (has, least) =
        (crush.min_required_version(), view.mon_option("mon_crush_min_required_version"));
    // By name, as Ceph compares them: releases are in the order of the alphabet.
    if view.mon_option("mon_warn_on_legacy_crush_tunables") == "true" && has < least.as_str() {
        let summary = format!("crush map has legacy tunables (require {has}, min is {least})");
        add(out, "OLD_CRUSH_TUNABLES", Severity::Warning, summary, 0, see());
    }
    if view.mon_option("mon_warn_on_crush_straw_calc_version_zero") == "true"
        && crush.tunables.straw_calc_version == 0
    {
        let summary = "crush map has straw_calc_version=0".to_owned();
        add(out, "OLD_CRUSH_STRAW_CALC_VERSION", Severity::Warning, summary, 0, see());
    }
}

/// OSDs that are down stay in for ever, as with the flag `noout`, which nothing else would tell.
fn never_out(view: &ClusterView<'_>, out: &mut Checks) {
    let interval = view.mon_option("mon_osd_down_out_interval").parse::<f64>();
    if view.mon_option("mon_warn_on_osd_down_out_interval_zero") == "true" && interval == Ok(0.0) {
        let summary = format!("mon {} has mon_osd_down_out_interval set to 0", view.quorum.leader);
        let detail = vec!["this has the same effect as the 'noout' flag".to_owned()];
        warn(out, "OSD_NO_DOWN_OUT_INTERVAL", summary, detail);
    }
}

/// How a table of the monitors' becomes smaller.
fn smaller(table: &str) -> &'static str {
    match table {
        "osdmap/full" | "osdmap/inc" => {
            "OSD maps: old ones go when all PGs are clean; a smaller CRUSH map, fewer pools and \
                upmaps make each smaller"
        }
        "kv" => "config-keys: ceph config-key dump, config-key rm, crash prune",
        "log" => "the cluster log: it ends by itself; report it if it is that large",
        "auth" => "users: ceph auth ls, auth rm",
        "config" | "defaults" => "options: ceph config dump, config rm",
        _ => "report this",
    }
}
