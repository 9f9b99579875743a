//! `pg …`: the PG map in all its forms.

use super::spec::{CommandSpec, Ctx, Reply};
use crate::health::{STUCK_AFTER, copies, set_text};
use crate::mgr::rates_of;
use crate::pgmap::is_osd;
use serde_json::{Map, Value, json};
use spirula_format::{Align, Format, TextTable, age, bytes, to_json};
use spirula_maps::{
    ObjectStatSum, OsdStatReport, PgDigest, PgStat, PgState, PoolStat, PoolSum, StoreStatfs,
};
use spirula_types::{OsdId, PgId, PoolId, errno};
use std::collections::{BTreeMap, BTreeSet};

macro_rules! commands {
    ($($perm:literal, $sig:literal, $help:literal => $run:expr;)*) => {
        &[$(CommandSpec { sig: $sig, help: $help, module: "pg", perm: $perm, flags: 0, run: $run }),*]
    };
}

pub(super) const COMMANDS: &[CommandSpec] = commands! {
    "r", "pg stat", "show placement group status." => stat;
    "r", "pg dump name=dumpcontents,type=CephChoices,strings=all|summary|sum|delta|pools|osds|pgs|pgs_brief,n=N,req=false", "show human-readable versions of pg map (only 'all' valid with plain)" => dump;
    "r", "pg dump_json name=dumpcontents,type=CephChoices,strings=all|summary|sum|pools|osds|pgs,n=N,req=false", "show human-readable version of pg map in json only" => dump_json;
    "r", "pg dump_pools_json", "show pg pools info in json only" => dump_pools_json;
    "r", "pg ls-by-pool name=poolstr,type=CephString name=states,type=CephString,n=N,req=false", "list pg with pool = [poolname]" => ls_by_pool;
    "r", "pg ls-by-primary name=osd,type=CephOsdName name=pool,type=CephInt,req=false \
        name=states,type=CephString,n=N,req=false", "list pg with primary = [osd]" => ls_by_primary;
    "r", "pg ls-by-osd name=osd,type=CephOsdName name=pool,type=CephInt,req=false \
        name=states,type=CephString,n=N,req=false", "list pg on osd [osd]" => ls_by_osd;
    "r", "pg ls name=pool,type=CephInt,req=false name=states,type=CephString,n=N,req=false", "list \
        pg with specific pool, osd, state" => ls;
    "r", "pg dump_stuck name=stuckops,type=CephChoices,strings=inactive|unclean|stale|undersized|degraded,n=N,req=false name=threshold,type=CephInt,req=false", "show information about stuck pgs" => dump_stuck;
    "r", "pg debug name=debugop,type=CephChoices,strings=unfound_objects_exist|degraded_pgs_exist", "show debug info about pgs" => debug;
    "rw", "pg scrub name=pgid,type=CephPgid", "start scrub on <pgid>" => super::scrub::pg;
    "rw", "pg deep-scrub name=pgid,type=CephPgid", "start deep-scrub on <pgid>" => super::scrub::pg;
    "rw", "pg repair name=pgid,type=CephPgid", "start repair on <pgid>" => super::scrub::pg;
    "rw", "pg force-recovery name=pgid,type=CephPgid,n=N", "force recovery of <pgid> first" => super::force::pg;
    "rw", "pg force-backfill name=pgid,type=CephPgid,n=N", "force backfill of <pgid> first" => super::force::pg;
    "rw", "pg cancel-force-recovery name=pgid,type=CephPgid,n=N", "restore normal recovery \
        priority of <pgid>" => super::force::pg;
    "rw", "pg cancel-force-backfill name=pgid,type=CephPgid,n=N", "restore normal backfill \
        priority of <pgid>" => super::force::pg;
};

const OMAP_NOTE: &str = "\n* NOTE: Omap statistics are gathered during deep scrub and may be \
    inaccurate soon afterwards depending on utilization. See \
    http://docs.ceph.com/en/latest/dev/placement-group/#omap-statistics for further details.\n";

/// Wraps a member as all PG commands do: `{"pg_ready":true,"name":…}`.
fn ready(name: &str, value: Value) -> Value {
    let mut map = Map::new();
    map.insert("pg_ready".into(), true.into());
    map.insert(name.to_owned(), value);
    map.into()
}

/// JSON of commands whose inner part Ceph copies line by line: that leaves a line end
/// before the last brace.
pub(super) fn json_inner(c: &Ctx<'_>, name: &str, value: Value) -> Reply {
    let text = to_json(&ready(name, value), c.format);
    let end = if c.format == Format::Json { "\n}" } else { "\n\n}\n" };
    match text.trim_end().strip_suffix('}') {
        Some(inner) => Reply::data(inner.trim_end_matches('\n').to_owned() + end),
        None => Reply::data(text),
    }
}

/// `114 pgs: 114 active+clean; 101 MiB data, 1.1 GiB used, 11 GiB / 12 GiB avail`.
fn stat(c: &Ctx<'_>) -> Reply {
    let d = c.mgr.digest();
    let sum = d.pool_sum();
    let space = d.osd_sum(|_| true).statfs;
    let rates = rates_of(&sum);
    let copies = copies(&sum.stat.stats.sum);
    if c.format.is_json() {
        let states: Vec<Value> =
            d.pg_states.iter().map(|(s, n)| json!({"name": s.to_string(), "num": n})).collect();
        let mut map = Map::new();
        map.insert("num_pg_by_state".into(), states.into());
        map.insert("num_pgs".into(), d.num_pgs().into());
        map.insert("num_bytes".into(), sum.stat.stats.sum.num_bytes.into());
        map.insert("total_bytes".into(), space.total.into());
        map.insert("total_avail_bytes".into(), space.available.into());
        map.insert("total_used_bytes".into(), used(&space).into());
        map.insert("total_used_raw_bytes".into(), space.used_raw().into());
        rates.client_json_total(&mut map);
        copies.json(&mut map);
        rates.recovery_json(&mut map);
        return json_inner(c, "pg_summary", map.into());
    }
    let states: Vec<String> = d.pg_states.iter().map(|(s, n)| format!("{n} {s}")).collect();
    let mut line = format!(
        "{} pgs: {}; {} data, {} used, {} / {} avail",
        d.num_pgs(),
        states.join(", "),
        size(sum.stat.stats.sum.num_bytes),
        size(used(&space)),
        size(space.available),
        size(space.total)
    );
    let client = rates.client_text_total();
    if !client.is_empty() {
        line += &format!("; {client}");
    }
    for l in copies.lines() {
        line += &format!("; {l}");
    }
    let recovery = rates.recovery_text();
    if !recovery.is_empty() {
        line += &format!("; {recovery} recovering");
    }
    Reply::data(line + "\n")
}

/// Bytes in use; the store reserves nothing, so raw and net use are one.
pub(super) fn used(s: &StoreStatfs) -> i64 {
    s.used_raw()
}

/// A size for people; negative ones (a store that counts wrongly) are 0.
pub(super) fn size(v: i64) -> String {
    bytes(u64::try_from(v).unwrap_or(0))
}

fn dump_json(c: &Ctx<'_>) -> Reply {
    // The argument is accepted and, as in Ceph, ignored.
    dump_what(c, &BTreeSet::from(["all".to_owned()]), Format::Json)
}

fn dump_pools_json(c: &Ctx<'_>) -> Reply {
    dump_what(c, &BTreeSet::from(["pools".to_owned()]), Format::Json)
}

fn dump(c: &Ctx<'_>) -> Reply {
    let mut what: BTreeSet<String> = c.list("dumpcontents").into_iter().collect();
    if what.is_empty() {
        what.insert("all".to_owned());
    }
    dump_what(c, &what, c.format)
}

fn dump_what(c: &Ctx<'_>, what: &BTreeSet<String>, format: Format) -> Reply {
    let d = c.mgr.digest();
    let has = |w: &str| what.contains(w);
    let words: Vec<&str> = what.iter().map(String::as_str).collect();
    let rs = format!("dumped {}", words.join(","));
    let data = if format.is_json() {
        let mut map = Map::new();
        map.insert("pg_ready".into(), true.into());
        if has("all") {
            let mut all = basic_json(c, &d);
            all.insert("pg_stats".into(), pgs_json(c, false));
            all.insert("pool_stats".into(), pools_json(&d));
            osds_json(&d, &mut all);
            map.insert("pg_map".into(), all.into());
        } else if has("summary") || has("sum") {
            map.insert("pg_map".into(), basic_json(c, &d).into());
        } else {
            if has("pools") {
                map.insert("pool_stats".into(), pools_json(&d));
            }
            if has("osds") {
                osds_json(&d, &mut map);
            }
            if has("pgs") {
                map.insert("pg_stats".into(), pgs_json(c, false));
            }
            if has("pgs_brief") {
                map.insert("pg_stats".into(), pgs_json(c, true));
            }
            if has("delta") {
                let mut inner = Map::new();
                inner.insert("pg_stats_delta".into(), delta_json(c));
                map.insert("delta".into(), inner.into());
            }
        }
        to_json(&map.into(), format)
    } else if has("all") {
        basic_text(c)
            + &pgs_text(c.mgr.pgmap.pgs().iter())
            + &pools_text(&d, false)
            + &sum_text(&d, false)
            + &osds_text(c, &d)
            + OMAP_NOTE
    } else if has("summary") || has("sum") {
        basic_text(c) + &sum_text(&d, true) + &osd_sum_text(&d) + OMAP_NOTE
    } else {
        let mut out = String::new();
        if has("pgs_brief") {
            out += &brief_text(c.mgr.pgmap.pgs().iter());
        }
        if has("pgs") {
            out += &pgs_text(c.mgr.pgmap.pgs().iter());
        }
        if has("pools") {
            out += &pools_text(&d, !has("pgs"));
        }
        if has("osds") {
            out += &osds_text(c, &d);
        }
        if has("pgs") || has("pools") {
            out += OMAP_NOTE;
        }
        out
    };
    Reply::data(data).with_rs(rs)
}

fn basic_text(c: &Ctx<'_>) -> String {
    format!(
        "version {}\nstamp {}\nlast_osdmap_epoch 0\nlast_pg_scan 0\n",
        c.mgr.pgmap.version(),
        c.mgr.pgmap.stamp().to_iso()
    )
}

fn basic_json(c: &Ctx<'_>, d: &PgDigest) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("version".into(), c.mgr.pgmap.version().into());
    map.insert("stamp".into(), c.mgr.pgmap.stamp().to_iso().into());
    map.insert("last_osdmap_epoch".into(), 0.into());
    map.insert("last_pg_scan".into(), 0.into());
    map.insert("pg_stats_sum".into(), sum_json(&d.pool_sum().stat));
    map.insert("osd_stats_sum".into(), osd_sum_json(d));
    map.insert("pg_stats_delta".into(), delta_json(c));
    map
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

fn delta_json(c: &Ctx<'_>) -> Value {
    let (sum, seconds) = c.mgr.pgmap.delta();
    let mut stat = PoolStat::default();
    stat.stats.sum = sum;
    let mut v = sum_json(&stat);
    if let Some(map) = v.as_object_mut() {
        map.insert("stamp_delta".into(), format!("{seconds:.6}").into());
    }
    v
}

fn osd_sum_json(d: &PgDigest) -> Value {
    let sum = d.osd_sum(|_| true);
    let total = OsdStatReport {
        statfs: sum.statfs,
        num_pgs: d.osds.values().map(|o| o.num_pgs).sum(),
        snap_trim_queue_len: u32::try_from(sum.snap_trim_queue_len).unwrap_or(u32::MAX),
        num_snap_trimming: d.osds.values().map(|o| o.num_snap_trimming).sum(),
        num_shards_repaired: d.osds.values().map(|o| o.num_shards_repaired).sum(),
        ..OsdStatReport::default()
    };
    let mut v = total.dump(None);
    if let Some(map) = v.as_object_mut() {
        for key in ["num_osds", "num_per_pool_osds", "num_per_pool_omap_osds"] {
            map.insert(key.into(), sum.num_osds.into());
        }
    }
    v
}

fn pgs_json(c: &Ctx<'_>, brief: bool) -> Value {
    let one = |(pg, s): (&PgId, &PgStat)| {
        if brief {
            json!({
                "pgid": pg.to_string(),
                "state": s.state.to_string(),
                "up": s.up,
                "acting": s.acting,
                "up_primary": s.up_primary,
                "acting_primary": s.acting_primary,
            })
        } else {
            s.dump(*pg)
        }
    };
    c.mgr.pgmap.pgs().iter().map(one).collect::<Vec<_>>().into()
}

fn pools_json(d: &PgDigest) -> Value {
    d.pools.iter().map(|(id, p)| p.stat.dump(*id, p.num_pgs)).collect::<Vec<_>>().into()
}

fn osds_json(d: &PgDigest, map: &mut Map<String, Value>) {
    let osds: Vec<Value> = d.osds.iter().map(|(id, o)| o.dump(Some(*id))).collect();
    // By pool, then by OSD.
    let mut statfs = BTreeMap::new();
    for (osd, report) in &d.osds {
        for (pool, s) in &report.pool_statfs {
            let mut one = Map::new();
            one.insert("poolid".into(), (*pool).into());
            one.insert("osd".into(), (*osd).into());
            if let Value::Object(rest) = s.dump() {
                one.extend(rest);
            }
            statfs.insert((*pool, *osd), Value::from(one));
        }
    }
    let statfs: Vec<Value> = statfs.into_values().collect();
    map.insert("osd_stats".into(), osds.into());
    map.insert("pool_statfs".into(), statfs.into());
}

fn table(headings: &[&str]) -> TextTable {
    let mut t = TextTable::new();
    for (i, h) in headings.iter().enumerate() {
        t.column(h, Align::Left, if i == 0 { Align::Left } else { Align::Right });
    }
    t
}

/// The counters every PG table shows.
fn counter_cells(s: &ObjectStatSum) -> [i64; 8] {
    [
        s.num_objects,
        s.num_objects_missing_on_primary,
        s.num_objects_degraded,
        s.num_objects_misplaced,
        s.num_objects_unfound,
        s.num_bytes,
        s.num_omap_bytes,
        s.num_omap_keys,
    ]
}

const COUNTERS: [&str; 10] = [
    "OBJECTS",
    "MISSING_ON_PRIMARY",
    "DEGRADED",
    "MISPLACED",
    "UNFOUND",
    "BYTES",
    "OMAP_BYTES*",
    "OMAP_KEYS*",
    "LOG",
    "DISK_LOG",
];

fn pgs_text<'a>(pgs: impl Iterator<Item = (&'a PgId, &'a PgStat)>) -> String {
    let mut headings = vec!["PG_STAT"];
    headings.extend(COUNTERS);
    headings.extend([
        "STATE",
        "STATE_STAMP",
        "VERSION",
        "REPORTED",
        "UP",
        "UP_PRIMARY",
        "ACTING",
        "ACTING_PRIMARY",
        "LAST_SCRUB",
        "SCRUB_STAMP",
        "LAST_DEEP_SCRUB",
        "DEEP_SCRUB_STAMP",
        "SNAPTRIMQ_LEN",
    ]);
    let mut t = table(&headings);
    for (pg, s) in pgs {
        let mut row = vec![pg.to_string()];
        row.extend(counter_cells(&s.stats).map(|v| v.to_string()));
        row.extend([
            s.log_size.to_string(),
            s.log_size.to_string(),
            s.state.to_string(),
            s.last_change.to_iso(),
            s.version.to_string(),
            format!("{}:{}", s.reported_epoch, s.reported_seq),
            set_text(&s.up),
            s.up_primary.to_string(),
            set_text(&s.acting),
            s.acting_primary.to_string(),
            s.last_scrub.to_string(),
            s.last_scrub_stamp.to_iso(),
            s.last_deep_scrub.to_string(),
            s.last_deep_scrub_stamp.to_iso(),
            s.snaptrimq_len.to_string(),
        ]);
        t.row(row);
    }
    t.to_string()
}

fn brief_text<'a>(pgs: impl Iterator<Item = (&'a PgId, &'a PgStat)>) -> String {
    let mut t = table(&["PG_STAT", "STATE", "UP", "UP_PRIMARY", "ACTING", "ACTING_PRIMARY"]);
    for (pg, s) in pgs {
        t.row([
            pg.to_string(),
            s.state.to_string(),
            set_text(&s.up),
            s.up_primary.to_string(),
            set_text(&s.acting),
            s.acting_primary.to_string(),
        ]);
    }
    t.to_string()
}

fn pools_text(d: &PgDigest, header: bool) -> String {
    let rows = d.pools.iter().map(|(id, p)| (id.to_string(), p));
    sums_text("POOLID", header, rows)
}

fn sum_text(d: &PgDigest, header: bool) -> String {
    let sum = d.pool_sum();
    sums_text("PG_STAT", header, std::iter::once(("sum".to_owned(), &sum)))
}

fn sums_text<'a>(
    first: &str,
    header: bool,
    rows: impl Iterator<Item = (String, &'a PoolSum)>,
) -> String {
    let mut headings = vec![first];
    headings.extend(COUNTERS);
    if !header {
        headings = vec![""; headings.len()];
    }
    let mut t = table(&headings);
    for (name, p) in rows {
        let mut row = vec![name];
        row.extend(counter_cells(&p.stat.stats.sum).map(|v| v.to_string()));
        row.extend([p.stat.log_size.to_string(), p.stat.ondisk_log_size.to_string()]);
        t.row(row);
    }
    t.to_string()
}

fn space_cells(s: &StoreStatfs) -> [String; 4] {
    [size(used(s)), size(s.available), size(s.used_raw()), size(s.total)]
}

fn osds_text(c: &Ctx<'_>, d: &PgDigest) -> String {
    let counts = c.mgr.pgmap.counts_by_osd();
    let mut t = table(&[
        "OSD_STAT",
        "USED",
        "AVAIL",
        "USED_RAW",
        "TOTAL",
        "HB_PEERS",
        "PG_SUM",
        "PRIMARY_PG_SUM",
    ]);
    for (osd, r) in &d.osds {
        let n = counts.get(osd).copied().unwrap_or_default();
        let mut row = vec![osd.to_string()];
        row.extend(space_cells(&r.statfs));
        row.extend([
            set_text(&r.hb_peers),
            (n.acting + n.up_not_acting).to_string(),
            n.primary.to_string(),
        ]);
        t.row(row);
    }
    let mut row = vec!["sum".to_owned()];
    row.extend(space_cells(&d.osd_sum(|_| true).statfs));
    // The sum has no cells for the last three columns, but they are padded.
    row.extend(["", "", ""].map(str::to_owned));
    t.row(row);
    t.to_string()
}

fn osd_sum_text(d: &PgDigest) -> String {
    let mut t = table(&["OSD_STAT", "USED", "AVAIL", "USED_RAW", "TOTAL"]);
    let mut row = vec!["sum".to_owned()];
    row.extend(space_cells(&d.osd_sum(|_| true).statfs));
    t.row(row);
    t.to_string()
}

fn ls_by_pool(c: &Ctx<'_>) -> Reply {
    let name = c.str("poolstr").unwrap_or_default();
    match c.mgr.map.pool_by_name(&name) {
        Some(pool) => list(c, Some(pool), None, false),
        None => failed(c, errno::ENOENT, format!("pool {name} does not exist")),
    }
}

fn ls_by_primary(c: &Ctx<'_>) -> Reply {
    by_osd(c, true)
}

fn ls_by_osd(c: &Ctx<'_>) -> Reply {
    by_osd(c, false)
}

fn by_osd(c: &Ctx<'_>, primary: bool) -> Reply {
    match c.osd("osd") {
        Some(osd) => list(c, c.int("pool"), Some(osd), primary),
        None => Reply::invalid("invalid osd id"),
    }
}

fn ls(c: &Ctx<'_>) -> Reply {
    list(c, c.int("pool"), None, false)
}

/// A failure; in JSON form the wrapping object comes all the same.
fn failed(c: &Ctx<'_>, errno: i32, rs: String) -> Reply {
    let mut reply = Reply::err(errno, rs);
    if c.format.is_json() {
        reply.data = to_json(&json!({"pg_ready": true}), c.format);
    }
    reply
}

fn list(c: &Ctx<'_>, pool: Option<PoolId>, osd: Option<OsdId>, primary: bool) -> Reply {
    if let Some(p) = pool.filter(|p| !c.mgr.map.pools.contains_key(p)) {
        return failed(c, errno::ENOENT, format!("pool {p} does not exist"));
    }
    if let Some(o) = osd.filter(|o| !c.mgr.map.is_up(*o)) {
        return failed(c, errno::EAGAIN, format!("osd {o} is not up"));
    }
    let mut wanted: Option<PgState> = None;
    for word in c.list("states") {
        if word == "all" {
            wanted = None;
            break;
        }
        let Some(state) = PgState::parse(&word) else {
            let names: Vec<&str> = PgState::NAMES.iter().map(|(_, n)| *n).collect();
            let rs =
                format!("'{word}' is not a valid pg state, available choices: {}", names.join("+"));
            return failed(c, errno::EINVAL, rs);
        };
        wanted = Some(wanted.unwrap_or_default() | state);
    }
    let pgs: Vec<(&PgId, &PgStat)> = c
        .mgr
        .pgmap
        .pgs()
        .iter()
        .filter(|(pg, s)| {
            pool.is_none_or(|p| pg.pool == p)
                && osd.is_none_or(|o| {
                    if primary { s.acting_primary == o } else { s.acting.contains(&o) }
                })
                && wanted.is_none_or(|w| s.state.any(w) || (w == PgState::UNKNOWN && s.state == w))
        })
        .collect();
    if c.format.is_json() {
        let mut map = Map::new();
        map.insert("pg_ready".into(), true.into());
        if !pgs.is_empty() {
            let list: Vec<Value> = pgs.iter().map(|(pg, s)| s.dump(**pg)).collect();
            map.insert("pg_stats".into(), list.into());
        }
        return c.json(&map.into());
    }
    if pgs.is_empty() {
        return Reply::default();
    }
    Reply::data(list_text(c, &pgs) + OMAP_NOTE)
}

/// `[1,2,NONE]p1`, as `pg ls` prints sets.
fn set_with_primary(osds: &[OsdId], primary: OsdId) -> String {
    let name = |o: &OsdId| if is_osd(*o) { o.to_string() } else { "NONE".to_owned() };
    let items: Vec<String> = osds.iter().map(name).collect();
    format!("[{}]p{primary}", items.join(","))
}

fn list_text(c: &Ctx<'_>, pgs: &[(&PgId, &PgStat)]) -> String {
    let mut t = table(&[
        "PG",
        "OBJECTS",
        "DEGRADED",
        "MISPLACED",
        "UNFOUND",
        "BYTES",
        "OMAP_BYTES*",
        "OMAP_KEYS*",
        "LOG",
        "STATE",
        "SINCE",
        "VERSION",
        "REPORTED",
        "UP",
        "ACTING",
        "SCRUB_STAMP",
        "DEEP_SCRUB_STAMP",
    ]);
    for (pg, s) in pgs {
        let [objects, _, rest @ ..] = counter_cells(&s.stats);
        let mut row = vec![pg.to_string(), objects.to_string()];
        row.extend(rest.map(|v| v.to_string()));
        row.extend([
            s.log_size.to_string(),
            s.state.to_string(),
            age(c.now.wall.as_secs_f64() - s.last_change.as_secs_f64()),
            s.version.to_string(),
            format!("{}:{}", s.reported_epoch, s.reported_seq),
            set_with_primary(&s.up, s.up_primary),
            set_with_primary(&s.acting, s.acting_primary),
            s.last_scrub_stamp.to_iso(),
            s.last_deep_scrub_stamp.to_iso(),
        ]);
        t.row(row);
    }
    t.to_string()
}

fn dump_stuck(c: &Ctx<'_>) -> Reply {
    let mut kinds = c.list("stuckops");
    if kinds.is_empty() {
        kinds.push("unclean".to_owned());
    }
    let known = ["inactive", "unclean", "undersized", "degraded", "stale", "peering"];
    if let Some(bad) = kinds.iter().find(|k| !known.contains(&k.as_str())) {
        return Reply::data(format!("Unknown type: {bad}\n"))
            .with_rs("failed")
            .with_ret(-errno::EINVAL);
    }
    let threshold = c.int("threshold").map_or(STUCK_AFTER, |t| t as f64);
    let cutoff = c.now.wall.as_secs_f64() - threshold;
    let stuck = |s: &PgStat| {
        kinds.iter().any(|k| {
            let (applies, since) = match k.as_str() {
                "inactive" => (!s.state.has(PgState::ACTIVE), s.last_active),
                "unclean" => (!s.state.has(PgState::CLEAN), s.last_clean),
                "degraded" => (s.state.has(PgState::DEGRADED), s.last_undegraded),
                "undersized" => (s.state.has(PgState::UNDERSIZED), s.last_fullsized),
                "stale" => (s.state.has(PgState::STALE), s.last_unstale),
                _ => (s.state.has(PgState::PEERING), s.last_active.max(s.last_peered)),
            };
            applies && since.as_secs_f64() < cutoff
        })
    };
    let pgs: BTreeMap<&PgId, &PgStat> =
        c.mgr.pgmap.pgs().iter().filter(|(_, s)| stuck(s)).collect();
    if c.format.is_json() {
        let list: Vec<Value> = pgs.iter().map(|(pg, s)| s.dump(**pg)).collect();
        return json_inner(c, "stuck_pg_stats", list.into()).with_rs("ok");
    }
    if pgs.is_empty() {
        return Reply::ok("ok");
    }
    Reply::data(brief_text(pgs.into_iter())).with_rs("ok")
}

fn debug(c: &Ctx<'_>) -> Reply {
    let sums = c.mgr.pgmap.pgs().values().map(|s| &s.stats);
    let found = match c.str("debugop").as_deref() {
        Some("degraded_pgs_exist") => sums.into_iter().any(|s| s.num_objects_degraded > 0),
        None | Some("unfound_objects_exist") => sums.into_iter().any(|s| s.num_objects_unfound > 0),
        Some(other) => return Reply::invalid(format!("unknown debugop '{other}'")),
    };
    let mut out = if found { "TRUE\n" } else { "FALSE\n" }.to_owned();
    if c.format.is_json() {
        out += &to_json(&json!({"pg_ready": true}), c.format);
    }
    Reply::data(out)
}
