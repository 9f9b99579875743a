//! Moving weight from OSDs that hold much to those that hold little, by use or by number of PGs.
//! Rules, limits and texts are those of Ceph's manager; here the monitor does it, from the newest
//! digest.

use super::{Args, CommandResult, CommandSpec, Outcome, settle};
use crate::mon::CommandCtx;
use crate::osd;
use serde_json::{Map, Value, json};
use spirula_format::{Format, general, to_json};
use spirula_maps::osdmap::{PgTable, WEIGHT_IN};
use spirula_types::errno::EINVAL;
use spirula_types::{OSD_NONE, OsdId, PoolId};
use std::collections::{BTreeMap, BTreeSet};

/// Too little to judge by.
const EDOM: i32 = 33;

macro_rules! spec {
    ($words:literal, $pools:literal, $help:literal, $perm:literal, $run:expr) => {
        CommandSpec {
            sig: concat!(
                $words,
                " name=oload,type=CephInt,req=false name=max_change,type=CephFloat,req=false \
                    name=max_osds,type=CephInt,req=false",
                $pools
            ),
            help: $help,
            module: "osd",
            perm: $perm,
            flags: 0,
            run: $run,
        }
    };
}

pub(super) const SPECS: &[CommandSpec] = &[
    spec!(
        "osd reweight-by-utilization",
        " name=no_increasing,type=CephChoices,strings=--no-increasing,req=false",
        "reweight OSDs by utilization [overload-percentage-for-consideration, default 120]",
        "rw",
        |ctx, args| run(ctx, args, false, true)
    ),
    spec!(
        "osd test-reweight-by-utilization",
        " name=no_increasing,type=CephBool,req=false",
        "dry run of reweight OSDs by utilization [overload-percentage-for-consideration, default \
            120]",
        "r",
        |ctx, args| run(ctx, args, false, false)
    ),
    spec!(
        "osd reweight-by-pg",
        " name=pools,type=CephPoolname,n=N,req=false",
        "reweight OSDs by PG distribution [overload-percentage-for-consideration, default 120]",
        "rw",
        |ctx, args| run(ctx, args, true, true)
    ),
    spec!(
        "osd test-reweight-by-pg",
        " name=pools,type=CephPoolname,n=N,req=false",
        "dry run of reweight OSDs by PG distribution [overload-percentage-for-consideration, \
            default 120]",
        "r",
        |ctx, args| run(ctx, args, true, false)
    ),
];

/// What was asked for.
struct Wish {
    by_pg: bool,
    /// Percent of the average beyond which an OSD is overloaded.
    oload: i64,
    max_change: f64,
    max_osds: usize,
    pools: BTreeSet<PoolId>,
    no_increasing: bool,
}

/// One OSD's weights before and after, 16.16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    osd: OsdId,
    from: u32,
    to: u32,
}

fn run(ctx: &mut CommandCtx<'_>, args: &Args, by_pg: bool, change: bool) -> CommandResult {
    let mut go = || -> Outcome {
        let option = |name| ctx.work.state.option_f64(name);
        let mut pools = BTreeSet::new();
        for name in args.list("pools") {
            let id = ctx.work.osd().pool_by_name(&name);
            pools.insert(id.ok_or_else(|| {
                (spirula_types::errno::ENOENT, format!("pool '{name}' does not exist"))
            })?);
        }
        let w = Wish {
            by_pg,
            oload: args.int("oload").unwrap_or(120),
            max_change: args
                .float("max_change")
                .unwrap_or_else(|| option("mon_reweight_max_change")),
            max_osds: args
                .int("max_osds")
                .unwrap_or_else(|| option("mon_reweight_max_osds") as i64)
                .max(0) as usize,
            pools,
            no_increasing: args.bool("no_increasing"),
        };
        if w.max_change <= 0.0 {
            return Err((
                EINVAL,
                format!("max_change {} must be positive", general(w.max_change, 6)),
            ));
        }
        if w.max_osds == 0 {
            return Err((EINVAL, "max_osds must be positive".into()));
        }
        let (average, used) = use_of(ctx, &w)?;
        let map = ctx.work.osd();
        let weights: BTreeMap<OsdId, u32> = used.keys().map(|o| (*o, map.weight(*o))).collect();
        let changes = changes(&w, average, &used, &weights);
        let before = map.map_all();
        let mut after = map.clone();
        changes.iter().for_each(|c| osd::set_weight(&mut after, c.osd, c.to));
        let after = after.map_all();
        let data = told(ctx.format, &w, average, &changes, &moves(&w, &before, &after));
        let done = change && !changes.is_empty();
        if done {
            changes.iter().for_each(|c| osd::set_weight(ctx.work.osd_mut(), c.osd, c.to));
        }
        // Done, Ceph says nothing more than what changes.
        let rs = if done { String::new() } else { "no change".to_owned() };
        Ok(CommandResult { ret: 0, rs, data: data.into() })
    };
    settle(go())
}

/// The average use, and each OSD's: PGs by CRUSH weight, or the part of its space.
fn use_of(ctx: &CommandCtx<'_>, w: &Wish) -> Result<(f64, BTreeMap<OsdId, f64>), (i32, String)> {
    if w.oload <= 100 {
        let text = "You must give a percentage higher than 100. The reweighting threshold will be \
            calculated as <average-utilization> times <input-percentage>. For example, an argument \
            of 200 would reweight OSDs which are twice as utilized as the average OSD.\n";
        return Err((EINVAL, text.into()));
    }
    let map = ctx.work.osd();
    let option = |name| ctx.work.state.option_f64(name);
    if w.by_pg {
        let mut count: BTreeMap<OsdId, u64> = BTreeMap::new();
        for (_, m) in
            map.map_all().iter().filter(|(pg, _)| w.pools.is_empty() || w.pools.contains(&pg.pool))
        {
            m.acting
                .iter()
                .filter(|o| **o != OSD_NONE)
                .for_each(|o| *count.entry(*o).or_insert(0) += 1);
        }
        let weight =
            |o: OsdId| f64::from(map.crush.item_weight(o).unwrap_or(0)) / f64::from(WEIGHT_IN);
        let copies: u64 = count.values().sum();
        count.retain(|o, _| weight(*o) > 0.0);
        let osds = count.len() as u64;
        if osds == 0 || ((copies / osds) as f64) < option("mon_reweight_min_pgs_per_osd") {
            return Err((
                EDOM,
                format!("Refusing to reweight: we only have {copies} PGs across {osds} osds!\n"),
            ));
        }
        let total: f64 = count.keys().map(|o| weight(*o)).sum();
        return Ok((
            copies as f64 / total,
            count.into_iter().map(|(o, n)| (o, n as f64 / weight(o))).collect(),
        ));
    }
    let digest = &ctx.view().mgr.digest;
    let sum = digest.osd_sum(|_| true);
    let (total, used) = (sum.statfs.total.max(0), sum.statfs.used_raw().max(0));
    if ((total / i64::from(sum.num_osds.max(1))) as f64) < option("mon_reweight_min_bytes_per_osd")
    {
        return Err((
            EDOM,
            format!("Refusing to reweight: we only have {} kb across all osds!\n", total / 1024),
        ));
    }
    if used < 5 << 20 {
        return Err((
            EDOM,
            format!(
                "Refusing to reweight: we only have {} kb used across all osds!\n",
                used / 1024
            ),
        ));
    }
    let each = digest.osds.iter().filter(|(_, r)| r.statfs.total > 0);
    let each = each
        .map(|(o, r)| (*o, r.statfs.used_raw().max(0) as f64 / r.statfs.total as f64))
        .collect();
    Ok((used as f64 / total as f64, each))
}

/// Which weights change: those furthest from the average first, down where an OSD is overloaded, up
/// where it is below the average.
fn changes(
    w: &Wish,
    average: f64,
    used: &BTreeMap<OsdId, f64>,
    weights: &BTreeMap<OsdId, u32>,
) -> Vec<Change> {
    let overload = average * w.oload as f64 / 100.0;
    let step = (w.max_change * f64::from(WEIGHT_IN)) as u32;
    let mut order: Vec<(OsdId, f64)> = used.iter().map(|(o, u)| (*o, *u)).collect();
    order.sort_by(|a, b| (b.1 - average).abs().total_cmp(&(a.1 - average).abs()));
    let mut out = Vec::new();
    for (osd, util) in order {
        let from = weights.get(&osd).copied().unwrap_or(0);
        if from == 0 || out.len() >= w.max_osds {
            continue;
        }
        let fair = average / util * f64::from(from);
        if util >= overload {
            let to = (fair as u32).max(from.saturating_sub(step));
            out.push(Change { osd, from, to });
        } else if !w.no_increasing && util <= average {
            let to = (fair.min(f64::from(WEIGHT_IN)) as u32)
                .min(from.saturating_add(step))
                .min(WEIGHT_IN);
            if to > from {
                out.push(Change { osd, from, to });
            }
        }
    }
    out
}

/// What the new weights would do to the PGs, in the words of `osd utilization`.
#[derive(Debug, Default)]
struct Moves {
    moved: u64,
    total: u64,
    average: f64,
    deviation: (f64, f64),
    expected: f64,
    least: (OsdId, u64, u64),
    most: (OsdId, u64, u64),
}

fn moves(w: &Wish, before: &PgTable, after: &PgTable) -> Moves {
    let mut m = Moves::default();
    let mut count: BTreeMap<OsdId, (u64, u64)> = BTreeMap::new();
    for (pg, old) in
        before.iter().filter(|(pg, _)| w.pools.is_empty() || w.pools.contains(&pg.pool))
    {
        let new = after.get(pg).map(|n| n.up.as_slice()).unwrap_or_default();
        for o in old.up.iter().filter(|o| **o != OSD_NONE) {
            m.total += 1;
            m.moved += u64::from(!new.contains(o));
            count.entry(*o).or_default().0 += 1;
        }
        new.iter().filter(|o| **o != OSD_NONE).for_each(|o| count.entry(*o).or_default().1 += 1);
    }
    if count.is_empty() {
        return m;
    }
    let n = count.len() as f64;
    m.average = m.total as f64 / n;
    let deviation = |of: fn(&(u64, u64)) -> u64| {
        (count.values().map(|c| (of(c) as f64 - m.average).powi(2)).sum::<f64>() / n).sqrt()
    };
    m.deviation = (deviation(|c| c.0), deviation(|c| c.1));
    m.expected = (m.average * (1.0 - 1.0 / n)).max(0.0).sqrt();
    let row = |(o, c): (&OsdId, &(u64, u64))| (*o, c.0, c.1);
    m.least = count.iter().min_by_key(|(_, c)| c.0).map(row).unwrap_or_default();
    m.most = count.iter().max_by_key(|(_, c)| c.0).map(row).unwrap_or_default();
    m
}

fn told(format: Format, w: &Wish, average: f64, changes: &[Change], m: &Moves) -> String {
    let share = |v: u32| f64::from(v) / f64::from(WEIGHT_IN);
    let overload = average * w.oload as f64 / 100.0;
    let mean = m.average.max(f64::MIN_POSITIVE);
    let percent = if m.total > 0 { m.moved as f64 * 100.0 / m.total as f64 } else { 0.0 };
    if format.is_json() {
        let rows: Vec<Value> = changes
            .iter()
            .map(|c| json!({"osd": c.osd, "weight": share(c.from), "new_weight": share(c.to)}))
            .collect();
        let mut out = Map::new();
        for (k, v) in [
            ("overload_min", json!(w.oload)),
            ("max_change", json!(w.max_change)),
            ("max_change_osds", json!(w.max_osds)),
            ("average_utilization", json!(average)),
            ("overload_utilization", json!(overload)),
            ("reweights", rows.into()),
        ] {
            out.insert(k.to_owned(), v);
        }
        let mut spread = Map::new();
        for (k, v) in [
            ("moved_pgs", json!(m.moved)),
            ("total_pgs", json!(m.total)),
            ("avg_pgs", json!(m.average)),
            ("std_dev", json!(m.deviation.0)),
            ("new_std_dev", json!(m.deviation.1)),
            ("expected_baseline_std_dev", json!(m.expected)),
            ("min_osd", json!(m.least.0)),
            ("min_osd_pgs", json!(m.least.1)),
            ("new_min_osd_pgs", json!(m.least.2)),
            ("max_osd", json!(m.most.0)),
            ("max_osd_pgs", json!(m.most.1)),
            ("new_max_osd_pgs", json!(m.most.2)),
        ] {
            spread.insert(k.to_owned(), v);
        }
        out.insert("utilization".to_owned(), spread.into());
        return to_json(&Value::Object(out), format);
    }
    let g = |v: f64| general(v, 6);
    let end = |name: &str, (osd, old, new): (OsdId, u64, u64)| {
        format!(
            "{name} osd.{osd} with {old} -> {new} pgs ({} -> {} * mean)\n",
            g(old as f64 / mean),
            g(new as f64 / mean)
        )
    };
    let mut out = format!("moved {} / {} ({}%)\n", m.moved, m.total, g(percent));
    out += &format!("avg {}\n", g(m.average));
    out += &format!(
        "stddev {} -> {} (expected baseline {})\n",
        g(m.deviation.0),
        g(m.deviation.1),
        g(m.expected)
    );
    out += &end("min", m.least);
    out += &end("max", m.most);
    out += &format!(
        "\noload {}\nmax_change {}\nmax_change_osds {}\n",
        w.oload,
        g(w.max_change),
        w.max_osds
    );
    out += &format!("average_utilization {average:.4}\noverload_utilization {overload:.4}\n");
    for c in changes {
        out += &format!("osd.{} weight {:.4} -> {:.4}\n", c.osd, share(c.from), share(c.to));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish() -> Wish {
        Wish {
            by_pg: false,
            oload: 120,
            max_change: 0.05,
            max_osds: 4,
            pools: BTreeSet::new(),
            no_increasing: false,
        }
    }

    fn run(w: &Wish, used: &[f64], weights: &[u32]) -> Vec<(OsdId, u32)> {
        let of = |i: usize| i as OsdId;
        let used: BTreeMap<OsdId, f64> =
            used.iter().enumerate().map(|(i, u)| (of(i), *u)).collect();
        let weights = weights.iter().enumerate().map(|(i, u)| (of(i), *u)).collect();
        let average = used.values().sum::<f64>() / used.len() as f64;
        changes(w, average, &used, &weights).into_iter().map(|c| (c.osd, c.to)).collect()
    }

    #[test]
    fn overloaded_osds_lose_weight_in_small_steps_and_idle_ones_gain_up_to_one() {
        let one = WEIGHT_IN;
        // The average is 0.4: 0.6 is too much, 0.45 is not.
        assert_eq!(run(&wish(), &[0.6, 0.45, 0.35, 0.2], &[one; 4]), [(0, one - 3276)]);
        // The one that is used least comes first (it is as far away), and gains; one that is out is
        // left alone.
        assert_eq!(
            run(&wish(), &[0.45, 0.45, 0.4, 0.3], &[one, one, 0, 0x8000]),
            [(3, 0x8000 + 3276)]
        );
        assert_eq!(
            run(&Wish { no_increasing: true, ..wish() }, &[0.45, 0.45, 0.4, 0.3], &[0x8000; 4]),
            []
        );
        assert_eq!(
            run(&Wish { max_change: 1.0, ..wish() }, &[0.6, 0.2], &[one; 2]),
            [(0, (one as f64 / 1.5) as u32)]
        );
    }

    #[test]
    fn no_more_osds_than_asked_for_change() {
        let w = Wish { max_osds: 1, ..wish() };
        assert_eq!(run(&w, &[0.9, 0.8, 0.1, 0.1], &[WEIGHT_IN; 4]).len(), 1);
    }
}
