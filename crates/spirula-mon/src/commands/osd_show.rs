//! Questions about OSDs, PGs and where things are.

use super::{
    Args, CommandResult, CommandSpec, FLAG_DEPRECATED, Outcome, json_out, misc, settle,
    text_or_json,
};
use crate::mon::CommandCtx;
use crate::osd::seconds_between;
use serde_json::{Map, Value, json};
use spirula_format::{Align, TextTable, age, general};
use spirula_maps::OsdMap;
use spirula_types::errno::{EINVAL, ENOENT};
use spirula_types::{OSD_NONE, ObjectLocator, OsdId, PgId};
use std::collections::BTreeMap;

pub(super) const SPECS: &[CommandSpec] = &[
    CommandSpec {
        sig: "osd stat",
        help: "print summary of OSD map",
        module: "osd",
        perm: "r",
        flags: 0,
        run: stat,
    },
    CommandSpec {
        sig: "osd ls name=epoch,type=CephInt,range=0,req=false",
        help: "show all OSD ids",
        module: "osd",
        perm: "r",
        flags: 0,
        run: ls,
    },
    CommandSpec {
        sig: "osd ls-tree name=epoch,type=CephInt,range=0,req=false \
            name=name,type=CephString,req=true",
        help: "show OSD ids under bucket <name> in the CRUSH map",
        module: "osd",
        perm: "r",
        flags: 0,
        run: ls_tree,
    },
    CommandSpec {
        sig: "osd getmaxosd",
        help: "show largest OSD id",
        module: "osd",
        perm: "r",
        flags: 0,
        run: getmaxosd,
    },
    CommandSpec {
        sig: "osd find name=id,type=CephOsdName",
        help: "find osd <id> in the CRUSH map and show its location",
        module: "osd",
        perm: "r",
        flags: 0,
        run: find,
    },
    CommandSpec {
        sig: "osd metadata name=id,type=CephOsdName,req=false",
        help: "fetch metadata for osd {id} (default all)",
        module: "osd",
        perm: "r",
        flags: 0,
        run: metadata,
    },
    CommandSpec {
        sig: "osd count-metadata name=property,type=CephString",
        help: "count OSDs by metadata field property",
        module: "osd",
        perm: "r",
        flags: 0,
        run: count_metadata,
    },
    CommandSpec {
        sig: "osd versions",
        help: "check running versions of OSDs",
        module: "osd",
        perm: "r",
        flags: 0,
        run: versions,
    },
    CommandSpec {
        sig: "osd numa-status",
        help: "show NUMA status of OSDs",
        module: "osd",
        perm: "r",
        flags: 0,
        run: numa,
    },
    CommandSpec {
        sig: "osd map name=pool,type=CephPoolname name=object,type=CephObjectname \
            name=nspace,type=CephString,req=false",
        help: "find pg for <object> in <pool> with [namespace]",
        module: "osd",
        perm: "r",
        flags: 0,
        run: map_object,
    },
    CommandSpec {
        sig: "osd lspools",
        help: "list pools",
        module: "osd",
        perm: "r",
        flags: FLAG_DEPRECATED,
        run: lspools,
    },
    CommandSpec {
        sig: "osd info name=id,type=CephOsdName,req=false",
        help: "print osd's {id} information (instead of all osds from map)",
        module: "osd",
        perm: "r",
        flags: 0,
        run: info,
    },
    CommandSpec {
        sig: "osd last-stat-seq name=id,type=CephOsdName",
        help: "get the last pg stats sequence number reported for this osd",
        module: "osd",
        perm: "r",
        flags: 0,
        run: last_stat_seq,
    },
    CommandSpec {
        sig: "osd utilization",
        help: "get basic pg distribution stats",
        module: "osd",
        perm: "r",
        flags: 0,
        run: utilization,
    },
    CommandSpec {
        sig: "osd get-require-min-compat-client",
        help: "get the minimum client version we will maintain compatibility with",
        module: "osd",
        perm: "r",
        flags: 0,
        run: get_min_compat,
    },
    CommandSpec {
        sig: "pg map name=pgid,type=CephPgid",
        help: "show mapping of pg to osds",
        module: "pg",
        perm: "r",
        flags: 0,
        run: pg_map,
    },
];

/// The OSD map of the epoch asked for, else the newest.
pub(super) fn map_at(ctx: &CommandCtx<'_>, args: &Args) -> Result<OsdMap, (i32, String)> {
    match args.int("epoch").and_then(|e| u32::try_from(e).ok()).filter(|e| *e != 0) {
        None => Ok(ctx.work.osd().clone()),
        Some(e) => ctx
            .work
            .state
            .osdmap_at(e)
            .map(spirula_maps::EncodedOsdMap::into_map)
            .ok_or_else(|| (ENOENT, format!("there is no map for epoch {e}"))),
    }
}

/// An OSD that must exist.
pub(super) fn existing(map: &OsdMap, osd: OsdId) -> Result<OsdId, (i32, String)> {
    if map.exists(osd) { Ok(osd) } else { Err((ENOENT, format!("osd.{osd} does not exist"))) }
}

/// `[2,0]`.
pub(super) fn ids_text(ids: &[OsdId]) -> String {
    let words: Vec<String> = ids.iter().map(OsdId::to_string).collect();
    format!("[{}]", words.join(","))
}

fn stat(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let map = ctx.work.osd();
    let (all, up, r#in) = map.osd_counts();
    let remapped = remapped_pgs(map);
    let since = |t| age(seconds_between(t, ctx.mon.now));
    let text = || {
        let mut o = format!("{all} osds: {up} up");
        if !map.last_up_change.is_zero() {
            o += &format!(" (since {})", since(map.last_up_change));
        }
        o += &format!(", {in} in");
        if !map.last_in_change.is_zero() {
            o += &format!(" (since {})", since(map.last_in_change));
        }
        o += &format!("; epoch: e{}", map.epoch);
        if remapped > 0 {
            o += &format!("; {remapped} remapped pgs");
        }
        let flags = map.flags & !spirula_maps::osdmap::flags::FRESH;
        if flags != 0 {
            o += &format!("\nflags {}", spirula_maps::osdmap::flag_names(flags));
        }
        o + "\n"
    };
    let value = || {
        json!({
            "epoch": map.epoch,
            "num_osds": all,
            "num_up_osds": up,
            "osd_up_since": map.last_up_change.sec,
            "num_in_osds": r#in,
            "osd_in_since": map.last_in_change.sec,
            "num_remapped_pgs": remapped,
        })
    };
    text_or_json(ctx, text, value)
}

/// PGs whose acting set is not what CRUSH says.
fn remapped_pgs(map: &OsdMap) -> usize {
    map.pg_temp.keys().filter(|pg| map.pool(pg.pool).is_some()).count()
}

fn ls(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    settle(map_at(ctx, args).map(|map| list_ids(ctx, map.osds().collect())))
}

fn list_ids(ctx: &CommandCtx<'_>, ids: Vec<OsdId>) -> CommandResult {
    text_or_json(ctx, || ids.iter().map(|o| format!("{o}\n")).collect(), || json!(ids))
}

fn ls_tree(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let run = || -> Outcome {
        let map = map_at(ctx, args)?;
        let name = args.str("name");
        let id = map
            .crush
            .item_id(&name)
            .ok_or_else(|| (ENOENT, format!("\"{name}\" does not exist")))?;
        Ok(list_ids(ctx, map.crush.osds_under(id).into_iter().filter(|o| map.exists(*o)).collect()))
    };
    settle(run())
}

fn getmaxosd(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let map = ctx.work.osd();
    let text = || format!("max_osd = {} in epoch {}\n", map.max_osd(), map.epoch);
    text_or_json(ctx, text, || json!({"epoch": map.epoch, "max_osd": map.max_osd()}))
}

fn find(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let run = || -> Outcome {
        let map = ctx.work.osd();
        let osd = existing(map, args.osd("id")?)?;
        let mut out = Map::new();
        out.insert("osd".into(), osd.into());
        out.insert(
            "addrs".into(),
            super::addrs_json(&map.addrs(osd).cloned().unwrap_or_default().client),
        );
        out.insert("osd_fsid".into(), map.uuid(osd).unwrap_or_default().to_string().into());
        let facts = ctx.work.state.osd_metadata.get(&osd);
        for (key, fact) in [
            ("host", "hostname"),
            ("pod_name", "pod_name"),
            ("pod_namespace", "pod_namespace"),
            ("container_name", "container_name"),
        ] {
            if let Some(v) = facts.and_then(|f| f.get(fact)) {
                out.insert(key.into(), v.clone().into());
            }
        }
        out.insert("crush_location".into(), json!(map.crush.full_location(osd)));
        Ok(json_out(ctx, &Value::Object(out)))
    };
    settle(run())
}

fn metadata(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let one = |osd: OsdId| {
        let mut m = Map::new();
        m.insert("id".into(), osd.into());
        // Whatever it says of itself, its number is a number.
        let facts = ctx.work.state.osd_metadata.get(&osd).into_iter().flatten();
        for (k, v) in facts.filter(|(k, _)| *k != "id") {
            m.insert(k.clone(), v.clone().into());
        }
        Value::Object(m)
    };
    let run = || -> Outcome {
        if !args.has("id") {
            return Ok(json_out(ctx, &Value::Array(ctx.work.osd().osds().map(one).collect())));
        }
        let osd = existing(ctx.work.osd(), args.osd("id")?)?;
        Ok(json_out(ctx, &one(osd)))
    };
    settle(run())
}

fn count_metadata(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let property = args.str("property");
    let of = |osd: OsdId| {
        ctx.work
            .state
            .osd_metadata
            .get(&osd)
            .and_then(|m| m.get(&property))
            .map_or("unknown", String::as_str)
    };
    json_out(ctx, &json!(misc::count_versions(ctx.work.osd().osds().map(of))))
}

fn versions(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    json_out(ctx, &json!(misc::osd_versions(ctx)))
}

fn numa(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let rows = ctx.work.state.osd_metadata.iter().filter(|(osd, _)| ctx.work.osd().exists(**osd));
    let hosts: Vec<_> =
        rows.map(|(osd, m)| (*osd, m.get("hostname").cloned().unwrap_or_default())).collect();
    // No OSD binds itself to a NUMA node, or finds out at which its disk and network are.
    let text = || {
        let mut t = TextTable::new();
        t.column("OSD", Align::Left, Align::Right).column("HOST", Align::Left, Align::Left);
        for heading in ["NETWORK", "STORAGE", "AFFINITY"] {
            t.column(heading, Align::Right, Align::Right);
        }
        t.column("CPUS", Align::Left, Align::Left);
        for (osd, host) in &hosts {
            t.row([osd.to_string().as_str(), host.as_str(), "-", "-", "-", "-"]);
        }
        t.to_string()
    };
    text_or_json(ctx, text, || {
        hosts.iter().map(|(osd, host)| json!({"osd": osd, "host": host})).collect()
    })
}

fn map_object(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let run = || -> Outcome {
        let map = ctx.work.osd();
        let pool_name = args.str("pool");
        let pool = map
            .pool_by_name(&pool_name)
            .ok_or_else(|| (ENOENT, format!("pool {pool_name} does not exist")))?;
        let (name, space) = (args.str("object"), args.str("nspace"));
        let raw = spirula_types::hash::object_hash(space.as_bytes(), b"", name.as_bytes());
        let locator = ObjectLocator {
            pool,
            namespace: space.clone().into_bytes().into(),
            key: Default::default(),
            hash: -1,
        };
        let pg = map
            .object_to_pg(&locator, name.as_bytes())
            .ok_or_else(|| (ENOENT, format!("pool {pool_name} does not exist")))?;
        let at = map.pg_to_up_acting(pg);
        let full = if space.is_empty() { name.clone() } else { format!("{space}/{name}") };
        let raw_pg = PgId::new(pool, raw);
        let text = || {
            format!(
                "osdmap e{} pool '{pool_name}' ({pool}) object '{full}' -> pg {raw_pg} ({pg}) -> \
                    up ({}, p{}) acting ({}, p{})\n",
                map.epoch,
                ids_text(&at.up),
                at.up_primary,
                ids_text(&at.acting),
                at.acting_primary
            )
        };
        let value = || {
            json!({
                "epoch": map.epoch,
                "pool": pool_name,
                "pool_id": pool,
                "objname": full,
                "raw_pgid": raw_pg.to_string(),
                "pgid": pg.to_string(),
                "up": at.up,
                "up_primary": at.up_primary,
                "acting": at.acting,
                "acting_primary": at.acting_primary,
            })
        };
        Ok(text_or_json(ctx, text, value))
    };
    settle(run())
}

/// A PG given as `2.1f`, which must exist.
pub(super) fn parse_pg(map: &OsdMap, text: &str) -> Result<PgId, (i32, String)> {
    let pg = PgId::parse(text).ok_or_else(|| (EINVAL, format!("invalid pgid '{text}'")))?;
    let exists = map.pool(pg.pool).is_some_and(|p| pg.seed < p.pg_num);
    if exists { Ok(pg) } else { Err((ENOENT, format!("pg '{text}' does not exist"))) }
}

fn pg_map(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let run = || -> Outcome {
        let map = ctx.work.osd();
        let text = args.str("pgid");
        let raw = PgId::parse(&text).ok_or_else(|| (EINVAL, format!("invalid pgid '{text}'")))?;
        let pool =
            map.pool(raw.pool).ok_or_else(|| (ENOENT, format!("pg '{text}' does not exist")))?;
        let pg = PgId::new(raw.pool, pool.pg_of_hash(raw.seed));
        let at = map.pg_to_up_acting(pg);
        let text = || {
            format!(
                "osdmap e{} pg {raw} ({pg}) -> up {} acting {}\n",
                map.epoch,
                ids_text(&at.up),
                ids_text(&at.acting)
            )
        };
        let value = || json!({"epoch": map.epoch, "raw_pgid": raw.to_string(), "pgid": pg.to_string(), "up": at.up, "acting": at.acting});
        Ok(text_or_json(ctx, text, value))
    };
    settle(run())
}

fn lspools(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let names = &ctx.work.osd().pool_names;
    let text = || names.iter().map(|(id, n)| format!("{id} {n}\n")).collect();
    let value = || names.iter().map(|(id, n)| json!({"poolnum": id, "poolname": n})).collect();
    text_or_json(ctx, text, value)
}

fn info(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let run = || -> Outcome {
        let map = ctx.work.osd();
        let wanted = if args.has("id") {
            Some(existing(map, args.osd("id")?).map_err(|(_, why)| (EINVAL, why))?)
        } else {
            None
        };
        let dump = map.dump();
        let osds = dump.get("osds").and_then(Value::as_array).cloned().unwrap_or_default();
        let is = |v: &Value| wanted.is_none_or(|w| v.get("osd") == Some(&json!(w)));
        let picked: Vec<Value> = osds.into_iter().filter(is).collect();
        let text = || {
            let prefix = |line: &&str| match wanted {
                Some(w) => line.starts_with(&format!("osd.{w} ")),
                None => line.starts_with("osd."),
            };
            map.dump_text().lines().filter(prefix).map(|l| format!("{l}\n")).collect()
        };
        let value = || match wanted {
            Some(_) => picked.first().cloned().unwrap_or(Value::Null),
            None => Value::Array(picked.clone()),
        };
        Ok(text_or_json(ctx, text, value))
    };
    settle(run())
}

fn last_stat_seq(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let run = || -> Outcome {
        let osd = existing(ctx.work.osd(), args.osd("id")?)?;
        let seq = ctx.mon.mgr.knowledge.digest.osds.get(&osd).map_or(0, |r| r.seq);
        Ok(text_or_json(ctx, || format!("{seq}"), || json!(seq)))
    };
    settle(run())
}

fn utilization(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let map = ctx.work.osd();
    let mut count: BTreeMap<OsdId, u64> =
        map.osds().filter(|o| map.is_in(*o)).map(|o| (o, 0)).collect();
    for (id, pool) in &map.pools {
        for seed in 0..pool.pg_num {
            for osd in
                map.pg_to_up_acting(PgId::new(*id, seed)).up.into_iter().filter(|o| *o != OSD_NONE)
            {
                *count.entry(osd).or_insert(0) += 1;
            }
        }
    }
    let n = count.len() as f64;
    if count.is_empty() {
        return text_or_json(ctx, || "no in osds\n".into(), || json!({}));
    }
    let avg = count.values().sum::<u64>() as f64 / n;
    let dev = (count.values().map(|c| (*c as f64 - avg).powi(2)).sum::<f64>() / n).sqrt();
    let expected = (avg * (1.0 - 1.0 / n)).max(0.0).sqrt();
    let min = count.iter().min_by_key(|(_, c)| **c).map_or((0, 0), |(o, c)| (*o, *c));
    let max = count.iter().max_by_key(|(_, c)| **c).map_or((0, 0), |(o, c)| (*o, *c));
    let g = |v: f64| general(v, 6);
    let text = || {
        format!(
            "avg {}\nstddev {} (expected baseline {})\nmin osd.{} with {} pgs ({} * mean)\nmax \
                osd.{} with {} pgs ({} * mean)\n",
            g(avg),
            g(dev),
            g(expected),
            min.0,
            min.1,
            g(min.1 as f64 / avg),
            max.0,
            max.1,
            g(max.1 as f64 / avg)
        )
    };
    let value = || {
        json!({
            "avg_pgs": avg, "std_dev": dev, "expected_baseline_std_dev": expected,
            "min_osd": min.0, "min_osd_pgs": min.1, "max_osd": max.0, "max_osd_pgs": max.1,
        })
    };
    text_or_json(ctx, text, value)
}

fn get_min_compat(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let release = spirula_maps::release_name(ctx.work.osd().require_min_compat_client);
    CommandResult::data(format!("{release}\n"))
}
