//! `ceph -s`: everything on one screen.

use super::health::Health;
use crate::view::ClusterView;
use serde_json::{Map, Value, json};
use spirula_encoding::UTime;
use spirula_format::{Copies, Format, IoRates, age, bytes, si, to_json};
use spirula_maps::osdmap::flags;
use spirula_maps::{MdsMap, PgState, PoolSum, mds_state, release_name};

/// Flags of the OSD map that people set; the others are always there.
const SHOWN_FLAGS: u32 =
    !(flags::FRESH | flags::REQUIRE_JEWEL | flags::REQUIRE_KRAKEN | flags::REQUIRE_LUMINOUS);

/// Rates of a sum, ready for words.
pub(super) fn rates(sum: &PoolSum) -> IoRates {
    IoRates {
        read_bytes: sum.read_bytes_sec,
        write_bytes: sum.write_bytes_sec,
        reads: sum.read_ops_sec,
        writes: sum.write_ops_sec,
        recovered_bytes: sum.recover_bytes_sec,
        recovered_objects: sum.recover_objects_sec,
        recovered_keys: sum.recover_keys_sec,
    }
}

/// Copies of a sum, ready for words.
pub(super) fn copies(sum: &PoolSum) -> Copies {
    let s = &sum.stat.stats.sum;
    Copies {
        objects: s.num_objects,
        wanted: s.num_object_copies,
        degraded: s.num_objects_degraded,
        misplaced: s.num_objects_misplaced,
        unfound: s.num_objects_unfound,
    }
}

/// A count or size that a report may have wrong (negative): then 0.
pub(super) fn unsigned(v: i64) -> u64 {
    u64::try_from(v).unwrap_or(0)
}

/// `ceph status`.
pub fn status(view: &ClusterView<'_>, format: Format) -> String {
    if format.is_json() {
        let text = to_json(&json(view), format);
        return if text.ends_with('\n') { text } else { text + "\n" };
    }
    text(view)
}

fn since(view: &ClusterView<'_>, t: UTime) -> String {
    age(view.now.as_secs_f64() - t.as_secs_f64())
}

fn text(view: &ClusterView<'_>) -> String {
    let health = Health::of(view);
    let mut out =
        format!("  cluster:\n    id:     {}\n    health: {}\n", view.fsid, health.status());
    for line in health.summaries() {
        out += &format!("            {line}\n");
    }
    if let Some(line) = health.mutes_text() {
        out += &format!("            {line}\n");
    }
    out += " \n  services:\n";
    out += &services_block(view);
    out += " \n  data:\n";
    out += &volumes_line(view);
    out += &data_block(view);
    out += &io_block(view);
    out += &progress_block(view);
    out + " \n"
}

/// A line for each kind of daemon, what is said of it in one column; below it what daemons work at.
fn services_block(view: &ClusterView<'_>) -> String {
    /// Where the column begins if no kind has a longer name than three letters.
    const COLUMN: usize = "    mon: ".len();
    /// A kind with a longer name than this stands out of the column.
    const LONGEST: usize = 32;
    let services: Vec<(String, String)> = view.mgr.services.summaries().collect();
    let longest = services
        .iter()
        .map(|(kind, _)| kind.chars().count())
        .max()
        .unwrap_or_default()
        .min(LONGEST);
    let pad = " ".repeat(longest.saturating_sub("mon".len()));
    let mut out = String::new();
    for line in [mon_line(view), mgr_line(view), mds_line(view), osd_line(view)]
        .iter()
        .flat_map(|l| l.lines())
    {
        let (kind, text) = line.split_at_checked(COLUMN).unwrap_or((line, ""));
        out += &format!("{kind}{pad}{text}\n");
    }
    let column = longest.max("mon".len()) + 1;
    for (kind, text) in services {
        out += &format!("    {:<column$} {text}\n", format!("{kind}:"));
    }
    let tasks = view.mgr.services.tasks();
    if tasks.is_empty() { out } else { out + " \n  task status:\n" + &tasks }
}

fn mon_line(view: &ClusterView<'_>) -> String {
    let q = view.quorum;
    let mut out = format!(
        "    mon: {} daemons, quorum {} (age {})",
        view.monmap.len(),
        q.names.join(","),
        since(view, q.since)
    );
    let absent: Vec<&str> = view
        .monmap
        .iter()
        .map(|(_, m)| m.name.as_str())
        .filter(|n| !q.names.iter().any(|q| q == n))
        .collect();
    if !absent.is_empty() {
        out += &format!(", out of quorum: {}", absent.join(", "));
    }
    out + "\n"
}

fn mgr_line(view: &ClusterView<'_>) -> String {
    let m = view.mgrmap;
    let changed = |word: &str| {
        if m.active_change.is_zero() {
            String::new()
        } else {
            format!("{word}since {}", since(view, m.active_change))
        }
    };
    let mut out = "    mgr: ".to_owned();
    if m.active_gid == 0 {
        out += "no daemons active";
        let when = changed("");
        if !when.is_empty() {
            out += &format!(" ({when})");
        }
    } else {
        let starting = if m.available { "" } else { ", starting" };
        out += &format!("{}(active{starting}{})", m.active_name, changed(", "));
    }
    let standbys: Vec<&str> = m.standbys.values().map(|s| s.name.as_str()).collect();
    if !standbys.is_empty() {
        out += &format!(", standbys: {}", standbys.join(", "));
    }
    out + "\n"
}

fn mds_line(view: &ClusterView<'_>) -> String {
    let fs = &view.fsmap.filesystems;
    if fs.is_empty() {
        return String::new();
    }
    let sum = |count: fn(&MdsMap) -> usize| fs.iter().map(|f| count(&f.mds_map)).sum::<usize>();
    let (up, is_in) = (sum(|m| m.up.len()), sum(|m| m.in_ranks.len()));
    let mut out = format!("    mds: {up}/{is_in} daemons up");
    let parts = [
        (sum(|m| m.failed.len()), " (", " failed)"),
        (view.fsmap.standby_daemons.len(), ", ", " standby"),
        (sum(|m| m.in_state(mds_state::STANDBY_REPLAY).count()), ", ", " hot standby"),
    ];
    for (n, before, after) in parts.into_iter().filter(|(n, _, _)| *n > 0) {
        out += &format!("{before}{n}{after}");
    }
    out + "\n"
}

fn osd_line(view: &ClusterView<'_>) -> String {
    let map = view.osdmap;
    let (all, up, is_in) = map.osd_counts();
    let when =
        |t: UTime| if t.is_zero() { String::new() } else { format!(" (since {})", since(view, t)) };
    let mut out = format!(
        "    osd: {all} osds: {up} up{}, {is_in} in{}",
        when(map.last_up_change),
        when(map.last_in_change)
    );
    if !map.pg_temp.is_empty() {
        out += &format!("; {} remapped pgs", map.pg_temp.len());
    }
    out.push('\n');
    let set: Vec<&str> = flags::NAMES
        .iter()
        .filter(|(bit, _)| map.flags & SHOWN_FLAGS & bit != 0)
        .map(|(_, n)| *n)
        .collect();
    if !set.is_empty() {
        out += &format!("         flags {}\n", set.join(","));
    }
    out
}

fn volumes_line(view: &ClusterView<'_>) -> String {
    let fs = &view.fsmap.filesystems;
    if fs.is_empty() {
        return String::new();
    }
    let damaged = fs.iter().filter(|f| !f.mds_map.damaged.is_empty()).count();
    let (mut failed, mut recovering, mut stopped, mut healthy) = (0, 0, 0, 0);
    for m in fs.iter().map(|f| &f.mds_map) {
        *match (m.failed.is_empty(), m.is_degraded(), m.max_mds) {
            (false, _, _) => &mut failed,
            (_, true, _) => &mut recovering,
            (_, _, 0) => &mut stopped,
            _ => &mut healthy,
        } += 1;
    }
    let mut out = format!("    volumes: {healthy}/{} healthy", fs.len());
    let parts = [
        (recovering, ", ", " recovering"),
        (failed, ", ", " failed"),
        (stopped, ", ", " stopped"),
        (damaged, "; ", " damaged"),
    ];
    for (n, before, after) in parts.into_iter().filter(|(n, _, _)| *n > 0) {
        out += &format!("{before}{n}{after}");
    }
    out + "\n"
}

/// States and how many PGs are in each, most first.
fn states(view: &ClusterView<'_>) -> Vec<(PgState, u32)> {
    let mut v: Vec<(PgState, u32)> =
        view.mgr.digest.pg_states.iter().map(|(s, n)| (*s, *n)).collect();
    v.sort_by_key(|(s, n)| (std::cmp::Reverse(*n), *s));
    v
}

/// PGs in all, unknown, and known but not active.
fn idle_pgs(view: &ClusterView<'_>) -> (u32, u32, u32) {
    let d = &view.mgr.digest;
    let all = d.num_pgs();
    let unknown = d.pg_states.get(&PgState::UNKNOWN).copied().unwrap_or(0);
    let active = d.num_pgs_with(PgState::ACTIVE);
    (all, unknown, all.saturating_sub(active).saturating_sub(unknown))
}

/// A share in single precision, as Ceph computes it.
fn ratio(part: u32, of: u32) -> f32 {
    if of == 0 { 0.0 } else { part as f32 / of as f32 }
}

fn data_block(view: &ClusterView<'_>) -> String {
    let d = &view.mgr.digest;
    let sum = d.pool_sum();
    let s = &sum.stat.stats.sum;
    let space = view.space();
    let (all, unknown, inactive) = idle_pgs(view);
    let mut out = format!(
        "    pools:   {} pools, {all} pgs\n    objects: {} objects, {}\n    usage:   {} used, {} / \
            {} avail\n",
        d.pools.len(),
        si(unsigned(s.num_objects)),
        bytes(unsigned(s.num_bytes)),
        bytes(unsigned(space.used_raw())),
        bytes(unsigned(space.available)),
        bytes(unsigned(space.total)),
    );
    let mut lines = Vec::new();
    if unknown > 0 {
        lines.push(format!("{:.3}% pgs unknown", f64::from(ratio(unknown, all)) * 100.0));
    }
    if inactive > 0 {
        lines.push(format!("{:.3}% pgs not active", f64::from(ratio(inactive, all)) * 100.0));
    }
    lines.extend(copies(&sum).lines());
    let states = states(view);
    let width = states.iter().map(|(_, n)| n.to_string().len()).max().unwrap_or(1);
    lines.extend(states.iter().map(|(s, n)| format!("{n:<width$} {s}")));
    out += &format!("    pgs:     {}\n", lines.join("\n             "));
    out
}

fn io_block(view: &ClusterView<'_>) -> String {
    let r = rates(&view.mgr.digest.pool_sum());
    let mut out = String::new();
    if r.has_client_io() {
        out += &format!("    client:   {}\n", r.client_text());
    }
    if r.has_recovery() {
        out += &format!("    recovery: {}\n", r.recovery_text());
    }
    if out.is_empty() { out } else { format!(" \n  io:\n{out}") }
}

fn progress_block(view: &ClusterView<'_>) -> String {
    if view.mgr.progress.is_empty() {
        return String::new();
    }
    let mut out = " \n  progress:\n".to_owned();
    for (message, millionths) in view.mgr.progress.values() {
        let done = (*millionths as usize * 30 / 1_000_000).min(30);
        out += &format!("    {message}\n      [{}{}]\n", "=".repeat(done), ".".repeat(30 - done));
    }
    out
}

fn json(view: &ClusterView<'_>) -> Value {
    let map = view.osdmap;
    let (all, up, is_in) = map.osd_counts();
    let mut out = Map::new();
    out.insert("fsid".into(), view.fsid.to_string().into());
    out.insert("health".into(), Health::of(view).json(false));
    out.insert("election_epoch".into(), view.quorum.election_epoch.into());
    out.insert("quorum".into(), view.quorum.quorum.clone().into());
    out.insert("quorum_names".into(), view.quorum.names.clone().into());
    out.insert("quorum_age".into(), view.now.sec.saturating_sub(view.quorum.since.sec).into());
    out.insert(
        "monmap".into(),
        json!({
            "epoch": view.monmap.epoch,
            "min_mon_release_name": release_name(view.monmap.min_mon_release),
            "num_mons": view.monmap.len(),
        }),
    );
    out.insert(
        "osdmap".into(),
        json!({
            "epoch": map.epoch,
            "num_osds": all,
            "num_up_osds": up,
            "osd_up_since": map.last_up_change.sec,
            "num_in_osds": is_in,
            "osd_in_since": map.last_in_change.sec,
            "num_remapped_pgs": map.pg_temp.len(),
        }),
    );
    out.insert("pgmap".into(), pgmap_json(view));
    out.insert("fsmap".into(), fsmap_json(view));
    out.insert(
        "mgrmap".into(),
        json!({
            "available": view.mgrmap.available,
            "num_standbys": view.mgrmap.standbys.len(),
            "modules": view.mgrmap.modules,
            "services": view.mgrmap.services,
        }),
    );
    out.insert("servicemap".into(), view.servicemap());
    let progress: Map<String, Value> = view
        .mgr
        .progress
        .iter()
        .map(|(id, (message, millionths))| {
            (id.clone(), json!({"message": message, "progress": f64::from(*millionths) / 1e6, "add_to_ceph_s": true}))
        })
        .collect();
    out.insert("progress_events".into(), progress.into());
    out.into()
}

fn pgmap_json(view: &ClusterView<'_>) -> Value {
    let d = &view.mgr.digest;
    let sum = d.pool_sum();
    let space = view.space();
    let (all, unknown, inactive) = idle_pgs(view);
    let by_state: Vec<Value> = states(view)
        .iter()
        .map(|(s, n)| json!({"state_name": s.to_string(), "count": n}))
        .collect();
    let mut out = Map::new();
    out.insert("pgs_by_state".into(), by_state.into());
    out.insert("num_pgs".into(), all.into());
    out.insert("num_pools".into(), d.pools.len().into());
    out.insert("num_objects".into(), sum.stat.stats.sum.num_objects.into());
    out.insert("data_bytes".into(), sum.stat.stats.sum.num_bytes.into());
    out.insert("bytes_used".into(), space.used_raw().into());
    out.insert("bytes_avail".into(), space.available.into());
    out.insert("bytes_total".into(), space.total.into());
    if unknown > 0 {
        out.insert("unknown_pgs_ratio".into(), json!(f64::from(ratio(unknown, all))));
    }
    if inactive > 0 {
        out.insert("inactive_pgs_ratio".into(), json!(f64::from(ratio(inactive, all))));
    }
    copies(&sum).json(&mut out);
    let r = rates(&sum);
    r.recovery_json(&mut out);
    r.client_json(&mut out);
    out.into()
}

fn fsmap_json(view: &ClusterView<'_>) -> Value {
    let fsmap = view.fsmap;
    let mut out = Map::new();
    out.insert("epoch".into(), fsmap.epoch.into());
    let mut ranks = Vec::new();
    for fs in &fsmap.filesystems {
        let m = &fs.mds_map;
        // With several file systems the counts are those of the last, as in Ceph.
        out.insert("id".into(), fs.fscid.into());
        out.insert("up".into(), m.up.len().into());
        out.insert("in".into(), m.in_ranks.len().into());
        out.insert("max".into(), m.max_mds.into());
        for (rank, gid) in &m.up {
            let Some(info) = m.mds_info.get(gid) else { continue };
            ranks.push(json!({
                "filesystem_id": fs.fscid,
                "rank": rank,
                "name": info.name,
                "status": mds_state::name(info.state),
                "gid": gid,
            }));
        }
    }
    out.insert("by_rank".into(), ranks.into());
    out.insert("up:standby".into(), fsmap.standby_daemons.len().into());
    out.into()
}
