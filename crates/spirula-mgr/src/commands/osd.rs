//! `osd …`: what the PG map says about OSDs and pools.

use super::autoscale::Row;
use super::pg::json_inner;
use super::python;
use super::spec::{CommandSpec, Ctx, Reply, parse_osd};
use crate::health::copies;
use crate::mgr::{Mgr, rates_of};
use crate::pgmap::is_osd;
use serde_json::{Map, Value, json};
use spirula_format::{Align, TextTable, to_json};
use spirula_maps::osdmap::{opts::opt, pool};
use spirula_maps::{OsdMap, PgStat, PgState, StoreStatfs};
use spirula_types::{OsdId, PgId, errno};
use std::collections::{BTreeMap, BTreeSet};

macro_rules! commands {
    ($($module:literal $perm:literal, $sig:literal, $help:literal => $run:expr;)*) => {
        &[$(CommandSpec { sig: $sig, help: $help, module: $module, perm: $perm, flags: 0, run: $run }),*]
    };
}

pub(super) const COMMANDS: &[CommandSpec] = commands! {
    "osd" "r", "osd perf", "print dump of OSD perf summary stats" => perf;
    "osd" "r", "osd df name=output_method,type=CephChoices,strings=plain|tree,req=false \
        name=filter_by,type=CephChoices,strings=class|name,req=false \
        name=filter,type=CephString,req=false", "show OSD utilization" => super::osd_df::df;
    "osd" "r", "osd blocked-by", "print histogram of which OSDs are blocking their peers" => blocked_by;
    "osd" "r", "osd pool stats name=pool_name,type=CephPoolname,req=false", "obtain stats from all \
        pools, or from specified pool" => pool_stats;
    "osd" "r", "osd safe-to-destroy name=ids,type=CephString,n=N", "check whether osd(s) can be \
        safely destroyed without reducing data durability" => safe_to_destroy;
    "osd" "r", "osd ok-to-stop name=ids,type=CephString,n=N name=max,type=CephInt,req=false", "check whether osd(s) can be safely stopped without reducing immediate data availability" => ok_to_stop;
    "mgr" "r", "osd status name=bucket,type=CephString,req=false", "Show the status of OSDs within \
        a bucket, or all" => status;
    "osd" "rw", "osd scrub name=who,type=CephString", "initiate scrub on osd <who>, or use \
        <all|any> to scrub all" => super::scrub::osd;
    "osd" "rw", "osd deep-scrub name=who,type=CephString", "initiate deep scrub on osd <who>, or \
        use <all|any> to deep scrub all" => super::scrub::osd;
    "osd" "rw", "osd repair name=who,type=CephString", "initiate repair on osd <who>, or use \
        <all|any> to repair all" => super::scrub::osd;
    "osd" "rw", "osd pool scrub name=who,type=CephPoolname,n=N", "initiate scrub on pool <who>" => super::scrub::pool;
    "osd" "rw", "osd pool deep-scrub name=who,type=CephPoolname,n=N", "initiate deep-scrub on pool \
        <who>" => super::scrub::pool;
    "osd" "rw", "osd pool repair name=who,type=CephPoolname,n=N", "initiate repair on pool <who>" => super::scrub::pool;
    "osd" "rw", "osd pool force-recovery name=who,type=CephPoolname,n=N", "initiate recovery of \
        specified pool <who> first" => super::force::pool;
    "osd" "rw", "osd pool force-backfill name=who,type=CephPoolname,n=N", "initiate backfill of \
        specified pool <who> first" => super::force::pool;
    "osd" "rw", "osd pool cancel-force-recovery name=who,type=CephPoolname,n=N", "restore normal \
        recovery priority of specified pool <who>" => super::force::pool;
    "osd" "rw", "osd pool cancel-force-backfill name=who,type=CephPoolname,n=N", "restore normal \
        recovery priority of specified pool <who>" => super::force::pool;
};

fn perf(c: &Ctx<'_>) -> Reply {
    let osds = c.mgr.pgmap.osds(&c.mgr.map);
    if c.format.is_json() {
        let infos: Vec<Value> = osds
            .iter()
            .map(|(id, r)| {
                json!({
                    "id": id,
                    "perf_stats": {
                        "commit_latency_ms": r.commit_ms(),
                        "apply_latency_ms": r.apply_ms(),
                        "commit_latency_ns": r.commit_latency_ns,
                        "apply_latency_ns": r.apply_latency_ns,
                    },
                })
            })
            .collect();
        return json_inner(c, "osdstats", json!({"osd_perf_infos": infos}));
    }
    let mut t = TextTable::new();
    for h in ["osd", "commit_latency(ms)", "apply_latency(ms)"] {
        t.column(h, Align::Left, Align::Right);
    }
    for (id, r) in &osds {
        t.row([id.to_string(), r.commit_ms().to_string(), r.apply_ms().to_string()]);
    }
    Reply::data(t.to_string())
}

fn blocked_by(c: &Ctx<'_>) -> Reply {
    let blocked = c.mgr.pgmap.blocked_by();
    if c.format.is_json() {
        let infos: Vec<Value> =
            blocked.iter().map(|(id, n)| json!({"id": id, "num_blocked": n})).collect();
        return json_inner(c, "osd_blocked_by", json!({"osd_blocked_by_infos": infos}));
    }
    let mut t = TextTable::new();
    t.column("osd", Align::Left, Align::Right).column("num_blocked", Align::Left, Align::Right);
    for (id, n) in &blocked {
        t.row([id.to_string(), n.to_string()]);
    }
    Reply::data(t.to_string())
}

fn pool_stats(c: &Ctx<'_>) -> Reply {
    let map = &c.mgr.map;
    let only = match c.str("pool_name") {
        None => None,
        Some(name) => match map.pool_by_name(&name) {
            Some(id) => Some(id),
            None => return Reply::err(errno::ENOENT, format!("unrecognized pool '{name}'")),
        },
    };
    let digest = c.mgr.digest();
    let mut text = String::new();
    let mut list = Vec::new();
    for id in map.pools.keys().filter(|id| only.is_none_or(|o| o == **id)) {
        let sum = digest.pools.get(id).copied().unwrap_or_default();
        let rates = rates_of(&sum);
        let copies = copies(&sum.stat.stats.sum);
        let name = map.pool_name(*id);
        if c.format.is_json() {
            let (mut recovery, mut recovery_rate, mut client) =
                (Map::new(), Map::new(), Map::new());
            copies.json(&mut recovery);
            rates.recovery_json(&mut recovery_rate);
            rates.client_json(&mut client);
            list.push(json!({
                "pool_name": name,
                "pool_id": id,
                "recovery": recovery,
                "recovery_rate": recovery_rate,
                "client_io_rate": client,
            }));
            continue;
        }
        let mut lines = copies.lines();
        if rates.has_recovery() {
            lines.push(format!("recovery io {}", rates.recovery_text()));
        }
        if rates.has_client_io() {
            lines.push(format!("client io {}", rates.client_text()));
        }
        if lines.is_empty() {
            lines.push("nothing is going on".to_owned());
        }
        text += &format!("pool {name} id {id}\n");
        for l in lines {
            text += &format!("  {l}\n");
        }
        text.push('\n');
    }
    if c.format.is_json() {
        return c.json(&list.into());
    }
    let reply = Reply::data(text);
    if map.pools.is_empty() { reply.with_rs("there are no pools!") } else { reply }
}

/// The OSDs named in `ids`; `all`, `any` and `*` name all.
fn ids(c: &Ctx<'_>) -> Result<BTreeSet<OsdId>, Reply> {
    let mut out = BTreeSet::new();
    for word in c.list("ids") {
        if ["all", "any", "*"].contains(&word.as_str()) {
            return Ok(c.mgr.map.osds().collect());
        }
        match parse_osd(&word) {
            Some(osd) => out.insert(osd),
            None => return Err(Reply::invalid(format!("unable to parse osd id value \"{word}\""))),
        };
    }
    if out.is_empty() { Err(Reply::invalid("must specify one or more OSDs")) } else { Ok(out) }
}

/// `0,1,2`.
fn join(osds: &BTreeSet<OsdId>) -> String {
    osds.iter().map(OsdId::to_string).collect::<Vec<_>>().join(",")
}

fn safe_to_destroy(c: &Ctx<'_>) -> Reply {
    let osds = match ids(c) {
        Ok(osds) => osds,
        Err(reply) => return reply,
    };
    let map = &c.mgr.map;
    let unknown = c.mgr.pgmap.unknown_pgs();
    if unknown > 0 {
        return Reply::err(
            errno::EAGAIN,
            format!("{unknown} pgs have unknown state; cannot draw any conclusions"),
        );
    }
    let clean = PgState::ACTIVE | PgState::CLEAN;
    let all_clean = c.mgr.pgmap.pgs().values().all(|s| s.state.has(clean));
    let counts = c.mgr.pgmap.counts_by_osd();
    let (mut active, mut missing, mut stored, mut safe) =
        (BTreeSet::new(), BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut affected = 0;
    for osd in &osds {
        let mapped = counts.get(osd).map_or(0, |n| n.acting + n.up_not_acting);
        if !map.exists(*osd) {
            safe.insert(*osd);
        } else if mapped > 0 {
            affected += mapped;
            active.insert(*osd);
        } else if all_clean {
            safe.insert(*osd);
        } else {
            match c.mgr.pgmap.osd(*osd) {
                Some(r) if map.is_up(*osd) && r.num_pgs > 0 => stored.insert(*osd),
                Some(_) if map.is_up(*osd) => safe.insert(*osd),
                _ => missing.insert(*osd),
            };
        }
    }
    if c.format.is_json() {
        return c.json(&json!({
            "safe_to_destroy": safe,
            "active": active,
            "missing_stats": missing,
            "stored_pgs": stored,
        }));
    }
    if active.is_empty() && missing.is_empty() && stored.is_empty() {
        return Reply::ok(format!(
            "OSD(s) {} are safe to destroy without reducing data durability.",
            join(&osds)
        ));
    }
    let mut rs = String::new();
    if !safe.is_empty() {
        rs += &format!(
            "OSD(s) {} are safe to destroy without reducing data durability. ",
            join(&safe)
        );
    }
    if !active.is_empty() {
        rs += &format!("OSD(s) {} have {affected} pgs currently mapped to them. ", join(&active));
    }
    if !missing.is_empty() {
        rs += &format!(
            "OSD(s) {} have no reported stats, and not all PGs are active+clean; we cannot draw \
                any conclusions. ",
            join(&missing)
        );
    }
    if !stored.is_empty() {
        rs += &format!(
            "OSD(s) {} last reported they still store some PG data, and not all PGs are \
                active+clean; we cannot be \
             sure they aren't still needed.",
            join(&stored)
        );
    }
    let busy = !active.is_empty() || !stored.is_empty();
    Reply::err(if busy { errno::EBUSY } else { errno::EAGAIN }, rs)
}

/// What stopping some OSDs would do to PGs.
#[derive(Default)]
struct Offline {
    ok: u64,
    unknown: Vec<String>,
    no_pool: Vec<String>,
    already_inactive: Vec<String>,
    become_inactive: Vec<String>,
    become_degraded: Vec<String>,
    become_more_degraded: Vec<String>,
    not_ok: u64,
}

/// The members of a PG that hold everything. A degraded PG's members may not; those count
/// only if all copies that lack are those of members that are missing altogether.
fn complete_members(stat: &PgStat, size: usize) -> BTreeSet<OsdId> {
    let members: BTreeSet<OsdId> = stat.acting.iter().copied().filter(|o| is_osd(*o)).collect();
    if !stat.state.has(PgState::DEGRADED) {
        return members;
    }
    let absent = size.saturating_sub(members.len()) as i64;
    if stat.stats.num_objects_degraded <= stat.stats.num_objects * absent {
        return members;
    }
    // The primary serves, so what it has is what there is.
    members.into_iter().filter(|o| *o == stat.acting_primary).collect()
}

fn offline(map: &OsdMap, pgs: &BTreeMap<PgId, PgStat>, stop: &BTreeSet<OsdId>) -> Offline {
    let mut out = Offline::default();
    for (pg, stat) in pgs {
        let id = pg.to_string();
        if stat.state == PgState::UNKNOWN {
            out.unknown.push(id);
            continue;
        }
        if !stat.acting.iter().any(|o| stop.contains(o)) {
            continue;
        }
        let Some(pool) = map.pool(pg.pool) else {
            out.no_pool.push(id);
            out.not_ok += 1;
            continue;
        };
        let left = complete_members(stat, pool.size.into()).difference(stop).count();
        let inactive = !stat.state.has(PgState::ACTIVE);
        let too_few = left < usize::from(pool.min_size);
        if inactive {
            out.already_inactive.push(id.clone());
        }
        if too_few {
            out.become_inactive.push(id.clone());
        }
        if inactive || too_few {
            out.not_ok += 1;
        } else {
            out.ok += 1;
            let list = if stat.state.has(PgState::DEGRADED) {
                &mut out.become_more_degraded
            } else {
                &mut out.become_degraded
            };
            list.push(id);
        }
    }
    out
}

fn ok_to_stop(c: &Ctx<'_>) -> Reply {
    let osds = match ids(c) {
        Ok(osds) => osds,
        Err(reply) => return reply,
    };
    let o = offline(&c.mgr.map, c.mgr.pgmap.pgs(), &osds);
    let ok = o.not_ok == 0 && o.unknown.is_empty();
    let mut map = Map::new();
    map.insert("ok_to_stop".into(), ok.into());
    map.insert("osds".into(), json!(osds));
    map.insert("num_ok_pgs".into(), o.ok.into());
    map.insert("num_not_ok_pgs".into(), o.not_ok.into());
    let bad = o.not_ok;
    let unknown = o.unknown.len();
    for (name, list) in [
        ("unknown", o.unknown),
        ("bad_no_pool", o.no_pool),
        ("bad_already_inactive", o.already_inactive),
        ("bad_become_inactive", o.become_inactive),
        ("ok_become_degraded", o.become_degraded),
        ("ok_become_more_degraded", o.become_more_degraded),
    ] {
        if !list.is_empty() {
            map.insert(name.into(), list.into());
        }
    }
    let format = if c.format.is_json() { c.format } else { spirula_format::Format::Json };
    let reply = Reply::data(to_json(&map.into(), format) + "\n");
    if unknown > 0 {
        let rs = format!("{unknown} pgs have unknown state; cannot draw any conclusions");
        return reply.with_rs(rs).with_ret(-errno::EAGAIN);
    }
    if !ok {
        let rs =
            format!("unsafe to stop osd(s) at this time ({bad} PGs are or would become offline)");
        return reply.with_rs(rs).with_ret(-errno::EBUSY);
    }
    reply
}

/// The bucket an OSD lies in, normally a host.
fn host(map: &OsdMap, osd: OsdId) -> &str {
    map.crush.parent_of(osd).and_then(|b| map.crush.item_name(b.id)).unwrap_or_default()
}

fn status(c: &Ctx<'_>) -> Reply {
    let map = &c.mgr.map;
    let members = match c.str("bucket") {
        None => None,
        Some(name) => match map.crush.bucket_by_name(&name) {
            Some(b) => Some(map.crush.osds_under(b.id)),
            // Ceph's answer, in its place: it says so where the table would be.
            None => return Reply::data(format!("Bucket '{name}' not found\n")),
        },
    };
    let mut t = TextTable::new();
    for h in ["ID", "HOST", "USED", "AVAIL", "WR OPS", "WR DATA", "RD OPS", "RD DATA", "STATE"] {
        let align = if h == "HOST" || h == "STATE" { Align::Left } else { Align::Right };
        t.column(h, align, align);
    }
    let kib = |v: i64| u64::try_from(v).unwrap_or(0) >> 10 << 10;
    // What an OSD that is down last reported is not so any more, for all that we know.
    for osd in map.osds().filter(|o| members.as_ref().is_none_or(|m| m.contains(o))) {
        let up = map.is_up(osd);
        let statfs: StoreStatfs =
            c.mgr.pgmap.osd(osd).filter(|_| up).map(|r| r.statfs).unwrap_or_default();
        let entry = c.mgr.osds.get(&osd).filter(|_| up);
        let known = c.mgr.osds.get(&osd).map_or("", |e| e.hostname.as_str());
        let rate = |name: &str| entry.map_or(0, |e| e.rate(name));
        let bits = map.state(osd);
        let states = spirula_maps::osdmap::state_names(bits);
        t.row([
            osd.to_string(),
            // The machine's name; an OSD that never reported is where the CRUSH map has it, and a
            // destroyed one nowhere.
            match known {
                _ if bits & spirula_maps::osdmap::state::DESTROYED != 0 => String::new(),
                "" => host(map, osd).to_owned(),
                name => name.to_owned(),
            },
            python::units(kib(statfs.used_raw()), 5, false),
            python::units(kib(statfs.available), 5, false),
            python::units(rate("op_w"), 5, true),
            python::units(rate("op_in_bytes"), 5, false),
            python::units(rate("op_r"), 5, true),
            python::units(rate("op_out_bytes"), 5, false),
            states.join(","),
        ]);
    }
    Reply::data(python::table(&t))
}

impl Mgr {
    /// Rows of `osd pool autoscale-status`.
    pub(super) fn autoscale_rows(&self) -> Vec<Row> {
        let digest = self.digest();
        let total = digest.osd_sum(|_| true).statfs.total;
        let root = self.map.crush.roots().last().copied().unwrap_or(-1);
        self.map
            .pools
            .iter()
            .map(|(id, p)| {
                let sum = digest.pools.get(id).copied().unwrap_or_default();
                let rate = raw_rate(p, &self.map);
                let s = &sum.stat.store_stats;
                let stored = if sum.stat.num_store_stats > 0 {
                    (s.data_stored as f64 / rate) as u64
                } else {
                    u64::try_from(sum.stat.stats.sum.num_bytes).unwrap_or(0)
                };
                Row {
                    pool: *id,
                    name: self.map.pool_name(*id).to_owned(),
                    logical_used: stored,
                    rate,
                    capacity: u64::try_from(total).unwrap_or(0),
                    root,
                    bias: p.opts.double(opt::PG_AUTOSCALE_BIAS).unwrap_or(1.0),
                    pg_num: p.pg_num_target,
                    mode: p.autoscale_name(),
                    bulk: p.has_flag(pool::flag::BULK),
                    target_bytes: p
                        .opts
                        .int(opt::TARGET_SIZE_BYTES)
                        .and_then(|v| u64::try_from(v).ok())
                        .unwrap_or(0),
                    target_ratio: p.opts.double(opt::TARGET_SIZE_RATIO).unwrap_or(0.0),
                }
            })
            .collect()
    }
}

/// Raw bytes per byte stored: the size of a replicated pool, (k+m)/k of an erasure-coded one.
pub(super) fn raw_rate(p: &spirula_maps::PgPool, map: &OsdMap) -> f64 {
    if !p.is_erasure() {
        return f64::from(p.size.max(1));
    }
    let k = map
        .ec_profiles
        .get(&p.erasure_code_profile)
        .and_then(|profile| profile.get("k"))
        .and_then(|k| k.parse::<f64>().ok())
        .filter(|k| *k > 0.0)
        .unwrap_or_else(|| f64::from(p.size.max(1)));
    f64::from(p.size) / k
}
