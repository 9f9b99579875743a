//! The health checks that need the state of single PGs, or what OSDs say of themselves.

use crate::pgmap::PgMap;
use spirula_encoding::UTime;
use spirula_format::{Copies, age, bytes};
use spirula_maps::osdmap::opts::opt;
use spirula_maps::{OsdMap, PgDigest, PgStat, PgState};
use spirula_messages::cluster::control::{HealthInput, SMALL_BACK, SMALL_FRONT};
use spirula_settings::Settings;
use spirula_types::{OsdId, PgId};
use std::collections::BTreeMap;

/// A state must last this long before it counts as stuck, seconds.
pub const STUCK_AFTER: f64 = 60.0;
/// Lines of detail per check.
const DETAIL_MAX: usize = 50;

/// Slow operations of one OSD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlowOps {
    /// How many.
    pub count: u32,
    /// Age of the oldest, milliseconds.
    pub oldest_ms: u64,
}

const WARNING: u8 = 1;
const ERROR: u8 = 2;

/// What a PG's state means for its users, in the order Ceph checks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Consequence {
    Unavailable,
    Degraded,
    BackfillFull,
    Damaged,
    RecoveryFull,
}

impl Consequence {
    /// Code, severity, first words.
    fn words(self) -> (&'static str, u8, &'static str) {
        match self {
            Self::Unavailable => ("PG_AVAILABILITY", WARNING, "Reduced data availability: "),
            Self::Degraded => ("PG_DEGRADED", WARNING, "Degraded data redundancy: "),
            Self::BackfillFull => (
                "PG_BACKFILL_FULL",
                WARNING,
                "Low space hindering backfill (add storage if this doesn't resolve itself): ",
            ),
            Self::Damaged => ("PG_DAMAGED", ERROR, "Possible data damage: "),
            Self::RecoveryFull => ("PG_RECOVERY_FULL", ERROR, "Full OSDs blocking recovery: "),
        }
    }
}

/// When a PG was last not in a state; `None` for states that count at once.
type Since = Option<fn(&PgStat) -> UTime>;

/// State, whether its absence counts, its name in the check, what it means, since when.
/// Ordered by the state's bit, as Ceph lists them.
const RULES: &[(PgState, bool, &str, Consequence, Since)] = &[
    (PgState::ACTIVE, true, "inactive", Consequence::Unavailable, Some(|s| s.last_active)),
    (PgState::DOWN, false, "down", Consequence::Unavailable, None),
    (PgState::RECOVERY_UNFOUND, false, "recovery_unfound", Consequence::Damaged, None),
    (PgState::BACKFILL_UNFOUND, false, "backfill_unfound", Consequence::Damaged, None),
    (PgState::DEGRADED, false, "degraded", Consequence::Degraded, None),
    (PgState::INCONSISTENT, false, "inconsistent", Consequence::Damaged, None),
    (
        PgState::PEERING,
        false,
        "peering",
        Consequence::Unavailable,
        Some(|s| s.last_active.max(s.last_peered)),
    ),
    (PgState::INCOMPLETE, false, "incomplete", Consequence::Unavailable, None),
    (PgState::STALE, false, "stale", Consequence::Unavailable, Some(|s| s.last_unstale)),
    (PgState::BACKFILL_TOOFULL, false, "backfill_toofull", Consequence::BackfillFull, None),
    (PgState::UNDERSIZED, false, "undersized", Consequence::Degraded, Some(|s| s.last_fullsized)),
    (PgState::RECOVERY_TOOFULL, false, "recovery_toofull", Consequence::RecoveryFull, None),
    (PgState::SNAPTRIM_ERROR, false, "snaptrim_error", Consequence::Damaged, None),
];

#[derive(Default)]
struct Causes {
    /// How many PGs, by index of the rule.
    by_rule: BTreeMap<usize, u64>,
    /// One line per PG; the last rule that matches words it.
    lines: BTreeMap<PgId, String>,
}

/// All checks.
pub fn checks(
    pgs: &PgMap,
    digest: &PgDigest,
    map: &OsdMap,
    slow: &BTreeMap<OsdId, SlowOps>,
    small_paths: &BTreeMap<(OsdId, OsdId), u8>,
    settings: &Settings,
    now: UTime,
) -> Vec<HealthInput> {
    let mut out = Vec::new();
    pg_states(pgs, digest, map, now, &mut out);
    objects(pgs, digest, &mut out);
    pool_quotas(digest, map, &mut out);
    pg_numbers(pgs, digest, map, settings, &mut out);
    repairs(digest, &mut out);
    not_scrubbed(pgs, map, settings, now, &mut out);
    large_omaps(digest, map, &mut out);
    slow_ops(slow, &mut out);
    paths(small_paths, &mut out);
    out.extend(crate::network::checks(digest, WARNING));
    out
}

/// OSDs that their process cannot run.
pub fn stopped(osds: &BTreeMap<OsdId, String>) -> Option<HealthInput> {
    let detail: Vec<String> =
        osds.iter().take(DETAIL_MAX).map(|(osd, why)| format!("osd.{osd}: {why}")).collect();
    let summary = format!("{} osds cannot run on their stores", osds.len());
    (!osds.is_empty())
        .then(|| check("OSD_STORE_UNUSABLE", ERROR, summary, osds.len() as u64, detail))
}

fn check(
    code: &str,
    severity: u8,
    summary: String,
    count: u64,
    detail: Vec<String>,
) -> HealthInput {
    HealthInput { code: code.to_owned(), severity, summary, count, detail }
}

/// How the copies of a pool, or of all pools, stand.
pub(crate) fn copies(sum: &spirula_maps::ObjectStatSum) -> Copies {
    Copies {
        objects: sum.num_objects,
        wanted: sum.num_object_copies,
        degraded: sum.num_objects_degraded,
        misplaced: sum.num_objects_misplaced,
        unfound: sum.num_objects_unfound,
    }
}

fn pg_states(pgs: &PgMap, digest: &PgDigest, map: &OsdMap, now: UTime, out: &mut Vec<HealthInput>) {
    let clean = PgState::ACTIVE;
    let watched = RULES.iter().filter(|r| !r.1).fold(PgState::UNKNOWN, |acc, r| acc | r.0);
    if digest.pg_states.keys().all(|s| s.has(clean) && !s.any(watched)) {
        return;
    }
    let cutoff = now.as_secs_f64() - STUCK_AFTER;
    let mut found: BTreeMap<Consequence, Causes> = BTreeMap::new();
    for (pg, stat) in pgs.pgs() {
        for (index, (state, inverted, name, consequence, since)) in RULES.iter().enumerate() {
            if stat.state.has(*state) == *inverted {
                continue;
            }
            let since = since.map(|f| f(stat));
            if let Some(since) = since {
                let moving = if since.is_zero() { stat.last_change } else { since };
                if moving.as_secs_f64() >= cutoff {
                    continue;
                }
            }
            let causes = found.entry(*consequence).or_default();
            *causes.by_rule.entry(index).or_insert(0) += 1;
            if causes.lines.len() > DETAIL_MAX && !causes.lines.contains_key(pg) {
                continue;
            }
            causes.lines.insert(*pg, pg_line(*pg, stat, name, since, map, now));
        }
    }
    for (consequence, causes) in found {
        let (code, severity, first) = consequence.words();
        let mut summary = first.to_owned();
        if consequence == Consequence::Degraded
            && let Some(line) = copies(&digest.pool_sum().stat.stats.sum).degraded_line()
        {
            summary += &format!("{line}, ");
        }
        let counts: Vec<String> = causes
            .by_rule
            .iter()
            .map(|(index, n)| {
                let name = RULES.get(*index).map_or("", |r| r.2);
                format!("{n} {} {name}", if *n > 1 { "pgs" } else { "pg" })
            })
            .collect();
        summary += &counts.join(", ");
        let count = causes.by_rule.values().sum();
        out.push(check(code, severity, summary, count, causes.lines.into_values().collect()));
    }
}

fn pg_line(
    pg: PgId,
    stat: &PgStat,
    name: &str,
    since: Option<UTime>,
    map: &OsdMap,
    now: UTime,
) -> String {
    let acting = set_text(&stat.acting);
    let mut line = match since {
        Some(t) => {
            let how_long = if t.is_zero() {
                "since forever".to_owned()
            } else {
                format!("for {}", age(now.as_secs_f64() - t.as_secs_f64()))
            };
            format!(
                "pg {pg} is stuck {name} {how_long}, current state {}, last acting {acting}",
                stat.state
            )
        }
        None => {
            let mut text = format!("pg {pg} is {}, acting {acting}", stat.state);
            if stat.stats.num_objects_unfound > 0 {
                text += &format!(", {} unfound", stat.stats.num_objects_unfound);
            }
            text
        }
    };
    if stat.state.has(PgState::INCOMPLETE)
        && let Some(pool) = map.pool(pg.pool)
        && pool.min_size > 1
    {
        line += &format!(
            " (reducing pool {} min_size from {} may help; search ceph.com/docs for 'incomplete')",
            map.pool_name(pg.pool),
            pool.min_size
        );
    }
    line
}

/// `[1,2,2147483647]`: a place that nobody fills is that number in all of Ceph's texts but `pg ls`.
pub(crate) fn set_text(osds: &[OsdId]) -> String {
    let items: Vec<String> = osds.iter().map(ToString::to_string).collect();
    format!("[{}]", items.join(","))
}

fn objects(pgs: &PgMap, digest: &PgDigest, out: &mut Vec<HealthInput>) {
    let sum = digest.pool_sum().stat.stats.sum;
    let c = copies(&sum);
    if let Some(line) = c.unfound_line() {
        let mut detail = Vec::new();
        for (pg, stat) in pgs.pgs().iter().filter(|(_, s)| s.stats.num_objects_unfound > 0) {
            if detail.len() > DETAIL_MAX {
                detail.push("(additional pgs left out for brevity)".to_owned());
                break;
            }
            detail.push(format!("pg {pg} has {} unfound objects", stat.stats.num_objects_unfound));
        }
        out.push(check("OBJECT_UNFOUND", WARNING, line, c.unfound.max(0) as u64, detail));
    }
    if sum.num_scrub_errors > 0 {
        let n = sum.num_scrub_errors;
        out.push(check(
            "OSD_SCRUB_ERRORS",
            ERROR,
            format!("{n} scrub errors"),
            n as u64,
            Vec::new(),
        ));
    }
}

/// Pools close to their quota. A pool that reached it is the monitor's to report.
fn pool_quotas(digest: &PgDigest, map: &OsdMap, out: &mut Vec<HealthInput>) {
    /// Share of the quota from which it is worth a warning (Ceph's default; its "critical"
    /// threshold is off by default).
    const WARN_AT: f64 = 0.75;
    let mut near = Vec::new();
    let mut pools = 0u64;
    for (id, pool) in &map.pools {
        let Some(sum) = digest.pools.get(id) else { continue };
        let sum = &sum.stat.stats.sum;
        let name = map.pool_name(*id);
        let close = |have: i64, max: u64| {
            let have = have.max(0) as u64;
            max > 0 && have < max && have as f64 >= max as f64 * WARN_AT
        };
        let mut hit = false;
        if close(sum.num_objects, pool.quota_max_objects) {
            near.push(format!(
                "pool '{name}' has {} objects (max {})",
                sum.num_objects, pool.quota_max_objects
            ));
            hit = true;
        }
        if close(sum.num_bytes, pool.quota_max_bytes) {
            let have = bytes(sum.num_bytes.max(0) as u64);
            near.push(format!("pool '{name}' has {have} (max {})", bytes(pool.quota_max_bytes)));
            hit = true;
        }
        pools += u64::from(hit);
    }
    if pools > 0 {
        out.push(check("POOL_NEAR_FULL", WARNING, format!("{pools} pools nearfull"), pools, near));
    }
}

fn pg_numbers(
    pgs: &PgMap,
    digest: &PgDigest,
    map: &OsdMap,
    settings: &Settings,
    out: &mut Vec<HealthInput>,
) {
    let (_, _, osds_in) = map.osd_counts();
    let most =
        settings.get("mon_max_pg_per_osd").and_then(|v| v.parse::<usize>().ok()).unwrap_or(0);
    if osds_in > 0 && most > 0 {
        let up = usize::try_from(digest.pool_sum().stat.up).unwrap_or(0);
        let per = up.max(pgs.pgs().len()) / osds_in as usize;
        if per > most {
            let summary = format!("too many PGs per OSD ({per} > max {most})");
            out.push(check("TOO_MANY_PGS", WARNING, summary, (per - most) as u64, Vec::new()));
        }
    }
    let smaller: Vec<String> = map
        .pools
        .iter()
        .filter(|(_, p)| p.pg_num_target > p.pgp_num_target)
        .map(|(id, p)| {
            format!(
                "pool {} pg_num {} > pgp_num {}",
                map.pool_name(*id),
                p.pg_num_target,
                p.pgp_num_target
            )
        })
        .collect();
    if !smaller.is_empty() {
        let n = smaller.len();
        out.push(check(
            "SMALLER_PGP_NUM",
            WARNING,
            format!("{n} pools have pg_num > pgp_num"),
            n as u64,
            smaller,
        ));
    }
}

/// OSDs that had to repair many objects on reading: their device is going bad.
fn repairs(digest: &PgDigest, out: &mut Vec<HealthInput>) {
    /// Repaired reads above which an OSD is named (Ceph's default).
    const MANY: u64 = 10;
    let detail: Vec<String> = digest
        .osds
        .iter()
        .filter(|(_, r)| r.num_shards_repaired > MANY)
        .map(|(o, r)| format!("osd.{o} had {} reads repaired", r.num_shards_repaired))
        .collect();
    if !detail.is_empty() {
        let n = detail.len();
        out.push(check(
            "OSD_TOO_MANY_REPAIRS",
            WARNING,
            format!("Too many repaired reads on {n} OSDs"),
            n as u64,
            detail,
        ));
    }
}

/// PGs whose last scrub is too long ago: by half of `osd_scrub_max_interval`, or three quarters
/// of `osd_deep_scrub_interval`, more than that (`mon_warn_pg_not_…_ratio`).
fn not_scrubbed(
    pgs: &PgMap,
    map: &OsdMap,
    settings: &Settings,
    now: UTime,
    out: &mut Vec<HealthInput>,
) {
    let option = |name: &str| settings.get(name).and_then(|v| v.parse::<f64>().ok()).unwrap_or(0.0);
    for (code, what, ratio, interval, of_pool) in [
        (
            "PG_NOT_SCRUBBED",
            "scrubbed",
            "mon_warn_pg_not_scrubbed_ratio",
            "osd_scrub_max_interval",
            opt::SCRUB_MAX_INTERVAL,
        ),
        (
            "PG_NOT_DEEP_SCRUBBED",
            "deep-scrubbed",
            "mon_warn_pg_not_deep_scrubbed_ratio",
            "osd_deep_scrub_interval",
            opt::DEEP_SCRUB_INTERVAL,
        ),
    ] {
        let (ratio, common) = (option(ratio), option(interval));
        if ratio <= 0.0 || common <= 0.0 {
            continue;
        }
        let (mut detail, mut count) = (Vec::new(), 0u64);
        for (pg, stat) in pgs.pgs() {
            let last = if code == "PG_NOT_SCRUBBED" {
                stat.last_scrub_stamp
            } else {
                stat.last_deep_scrub_stamp
            };
            let every = map
                .pool(pg.pool)
                .and_then(|p| p.opts.double(of_pool))
                .filter(|s| *s > 0.0)
                .unwrap_or(common);
            if last.is_zero() || now.as_secs_f64() - last.as_secs_f64() <= every * (1.0 + ratio) {
                continue;
            }
            count += 1;
            if detail.len() < DETAIL_MAX {
                detail.push(format!("pg {pg} not {what} since {}", last.to_iso()));
            }
        }
        if count > 0 {
            let more = count as usize - detail.len();
            if more > 0 {
                detail.push(format!("{more} more pgs... "));
            }
            out.push(check(
                code,
                WARNING,
                format!("{count} pgs not {what} in time"),
                count,
                detail,
            ));
        }
    }
}

/// Objects whose omap is too large, as deep scrubs found.
fn large_omaps(digest: &PgDigest, map: &OsdMap, out: &mut Vec<HealthInput>) {
    let of_pool = digest.pools.iter().map(|(id, p)| (*id, p.stat.stats.sum.num_large_omap_objects));
    let large: Vec<_> = of_pool.filter(|(_, n)| *n > 0).collect();
    let count: i64 = large.iter().map(|(_, n)| n).sum();
    let found = |(id, n): &(spirula_types::PoolId, i64)| {
        format!("{n} large objects found in pool '{}'", map.pool_name(*id))
    };
    let mut detail: Vec<String> = large.iter().take(DETAIL_MAX).map(found).collect();
    if count > 0 {
        detail.push(
            "Search the cluster log for 'Large omap object found' for more details.".to_owned(),
        );
        let summary = format!("{count} large omap objects");
        out.push(check("LARGE_OMAP_OBJECTS", WARNING, summary, count.unsigned_abs(), detail));
    }
}

fn slow_ops(slow: &BTreeMap<OsdId, SlowOps>, out: &mut Vec<HealthInput>) {
    let slow: Vec<(&OsdId, &SlowOps)> = slow.iter().filter(|(_, s)| s.count > 0).collect();
    let count: u64 = slow.iter().map(|(_, s)| u64::from(s.count)).sum();
    let Some(oldest) = slow.iter().map(|(_, s)| s.oldest_ms).max() else { return };
    let who = match slow.as_slice() {
        [(osd, _)] => format!("osd.{osd} has slow ops"),
        many => {
            let names: Vec<String> = many.iter().map(|(o, _)| format!("osd.{o}")).collect();
            format!("daemons [{}] have slow ops.", names.join(","))
        }
    };
    let summary = format!("{count} slow ops, oldest one blocked for {} sec, {who}", oldest / 1000);
    out.push(check("SLOW_OPS", WARNING, summary, slow.len() as u64, Vec::new()));
}

/// Paths from OSD to OSD that carry small frames only, as the first of each pair reports.
fn paths(small: &BTreeMap<(OsdId, OsdId), u8>, out: &mut Vec<HealthInput>) {
    if small.is_empty() {
        return;
    }
    let line = |((from, to), nets): (&(OsdId, OsdId), &u8)| {
        let net = match *nets {
            SMALL_BACK => "the cluster network",
            SMALL_FRONT => "the public network",
            _ => "both networks",
        };
        format!(
            "osd.{from} to osd.{to} in {net}: connections open, but heartbeats of \
                osd_heartbeat_min_size bytes do not come through; check that all interfaces, \
                bonds, tunnels and switches on the way have the MTU that the hosts have (ping -M \
                do -s SIZE)"
        )
    };
    let mut detail: Vec<String> = small.iter().take(DETAIL_MAX).map(line).collect();
    if small.len() > DETAIL_MAX {
        detail.push(format!("{} more", small.len() - DETAIL_MAX));
    }
    let (count, s) = (small.len(), if small.len() == 1 { "" } else { "s" });
    let carry = if count == 1 { "carries" } else { "carry" };
    let summary = format!("{count} path{s} between OSDs {carry} small network frames only (MTU?)");
    out.push(check("OSD_PATH_MTU", WARNING, summary, count as u64, detail));
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_maps::{OsdStatReport, PgPool};
    use spirula_types::Uuid;

    const T0: u32 = 1_795_200_000;

    fn t(sec: u32) -> UTime {
        UTime { sec: T0 + sec, nsec: 0 }
    }

    struct World {
        map: OsdMap,
        pgs: PgMap,
        slow: BTreeMap<OsdId, SlowOps>,
        paths: BTreeMap<(OsdId, OsdId), u8>,
    }

    /// Pool `rp` with two PGs, both active and clean since second 10.
    fn world() -> World {
        let mut map = OsdMap::fresh(Uuid([1; 16]), 5, t(0), spirula_maps::Crush::default());
        map.set_max_osd(2);
        for i in 0..2 {
            map.osd_state[i] = 3;
            map.osd_weight[i] = 0x10000;
        }
        map.pools.insert(2, PgPool::replicated(3, 2, 0, t(0)));
        map.pool_names.insert(2, "rp".into());
        let mut pgs = PgMap::default();
        pgs.follow(&map, t(0));
        let mut w = World { map, pgs, slow: BTreeMap::new(), paths: BTreeMap::new() };
        for seed in 0..2 {
            put(&mut w, seed, 10, PgState::ACTIVE | PgState::CLEAN);
        }
        w
    }

    fn put(w: &mut World, seed: u32, at: u32, state: PgState) {
        let pg = PgId::new(2, seed);
        let mut s = w.pgs.pgs()[&pg].clone();
        s.touch(t(at), state);
        s.reported_epoch = 5;
        s.reported_seq += 1;
        s.acting = vec![1, 0];
        s.acting_primary = 1;
        s.stats.num_objects = 3;
        s.stats.num_object_copies = 9;
        s.stats.num_objects_degraded = if state.has(PgState::DEGRADED) { 3 } else { 0 };
        w.pgs.report(&w.map, t(at), 1, OsdStatReport::default(), [(pg, s)]);
    }

    fn found(w: &World, at: u32) -> Vec<HealthInput> {
        checks(
            &w.pgs,
            &w.pgs.digest(&w.map),
            &w.map,
            &w.slow,
            &w.paths,
            &Settings::default(),
            t(at),
        )
    }

    #[test]
    fn clean_pgs_are_nothing_to_talk_about() {
        assert_eq!(found(&world(), 500), []);
    }

    #[test]
    fn degraded_counts_at_once_and_undersized_after_a_minute() {
        let mut w = world();
        put(&mut w, 0, 20, PgState::ACTIVE | PgState::UNDERSIZED | PgState::DEGRADED);
        let at_once = found(&w, 25);
        assert_eq!(at_once.len(), 1);
        assert_eq!(at_once[0].code, "PG_DEGRADED");
        assert_eq!(
            at_once[0].summary,
            "Degraded data redundancy: 3/18 objects degraded (16.667%), 1 pg degraded"
        );
        assert_eq!(at_once[0].detail, ["pg 2.0 is active+undersized+degraded, acting [1,0]"]);
        let later = found(&w, 83);
        assert_eq!(
            later[0].summary,
            "Degraded data redundancy: 3/18 objects degraded (16.667%), 1 pg degraded, 1 pg \
                undersized"
        );
        assert_eq!(later[0].count, 2);
        assert_eq!(
            later[0].detail,
            ["pg 2.0 is stuck undersized for 63s, current state active+undersized+degraded, \
                    last acting [1,0]"]
        );
    }

    #[test]
    fn inactive_and_stale_pgs_are_unavailable() {
        let mut w = world();
        put(&mut w, 0, 20, PgState::PEERING | PgState::DOWN);
        let at_once = found(&w, 25);
        assert_eq!(at_once[0].summary, "Reduced data availability: 1 pg down");
        let later = found(&w, 200);
        assert_eq!(
            later[0].summary,
            "Reduced data availability: 1 pg inactive, 1 pg down, 1 pg peering"
        );

        let mut w = world();
        w.map.osd_state[1] = 1;
        w.pgs.follow(&w.map, t(30));
        assert_eq!(found(&w, 60), []);
        let later = found(&w, 95);
        assert_eq!(later[0].summary, "Reduced data availability: 2 pgs stale");
        assert_eq!(
            later[0].detail[0],
            "pg 2.0 is stuck stale for 65s, current state stale+active+clean, last acting [1,0]"
        );
    }

    #[test]
    fn unknown_pgs_count_after_a_minute() {
        let mut w = world();
        w.map.pools.insert(3, PgPool::replicated(3, 1, 0, t(100)));
        w.map.modified = t(100);
        w.pgs.follow(&w.map, t(100));
        assert_eq!(found(&w, 130), []);
        let later = found(&w, 161);
        assert_eq!(
            later[0].detail,
            ["pg 3.0 is stuck inactive for 61s, current state unknown, last acting []"]
        );
    }

    #[test]
    fn large_omaps_are_counted_by_pool() {
        let mut w = world();
        for (seed, n) in [(0, 2), (1, 1)] {
            let pg = PgId::new(2, seed);
            let mut s = w.pgs.pgs()[&pg].clone();
            s.reported_seq += 1;
            s.stats.num_large_omap_objects = n;
            w.pgs.report(&w.map, t(20), 1, OsdStatReport::default(), [(pg, s)]);
        }
        let [found] = &found(&w, 30)[..] else { panic!("{:?}", found(&w, 30)) };
        let said = (&found.code[..], found.severity, &found.summary[..], found.count);
        assert_eq!(said, ("LARGE_OMAP_OBJECTS", WARNING, "3 large omap objects", 3));
        assert_eq!(found.detail[0], "3 large objects found in pool 'rp'");
    }

    #[test]
    fn damage_is_an_error() {
        let mut w = world();
        put(&mut w, 0, 20, PgState::ACTIVE | PgState::CLEAN | PgState::INCONSISTENT);
        let f = found(&w, 25);
        assert_eq!((f[0].code.as_str(), f[0].severity), ("PG_DAMAGED", 2));
        assert_eq!(f[0].summary, "Possible data damage: 1 pg inconsistent");
    }

    #[test]
    fn slow_operations() {
        let mut w = world();
        w.slow.insert(0, SlowOps { count: 3, oldest_ms: 35_500 });
        assert_eq!(
            found(&w, 25)[0].summary,
            "3 slow ops, oldest one blocked for 35 sec, osd.0 has slow ops"
        );
        w.slow.insert(1, SlowOps { count: 1, oldest_ms: 40_000 });
        assert_eq!(
            found(&w, 25)[0].summary,
            "4 slow ops, oldest one blocked for 40 sec, daemons [osd.0,osd.1] have slow ops."
        );
    }

    #[test]
    fn osds_that_their_process_cannot_run_are_errors_with_the_reason_of_each() {
        assert_eq!(stopped(&BTreeMap::new()), None);
        let osds = BTreeMap::from([(1, "no store; do this".to_owned()), (4, "no room".to_owned())]);
        let h = stopped(&osds).unwrap();
        assert_eq!((h.code.as_str(), h.severity, h.count), ("OSD_STORE_UNUSABLE", ERROR, 2));
        assert_eq!(h.detail, ["osd.1: no store; do this", "osd.4: no room"]);
    }

    #[test]
    fn paths_that_carry_small_frames_only_are_named() {
        let mut w = world();
        w.paths.insert((0, 1), SMALL_BACK);
        let f = found(&w, 25);
        assert_eq!(f[0].code, "OSD_PATH_MTU");
        assert_eq!(f[0].summary, "1 path between OSDs carries small network frames only (MTU?)");
        assert!(f[0].detail[0].starts_with(
            "osd.0 to osd.1 in the cluster network: connections open, but heartbeats of osd_"
        ));
        w.paths.insert((1, 0), SMALL_BACK | SMALL_FRONT);
        let f = found(&w, 25);
        assert_eq!(f[0].summary, "2 paths between OSDs carry small network frames only (MTU?)");
        assert!(f[0].detail[1].contains("osd.1 to osd.0 in both networks"));
    }

    #[test]
    fn pools_close_to_their_quota() {
        let mut w = world();
        w.map.pools.get_mut(&2).unwrap().quota_max_objects = 7;
        let f = found(&w, 25);
        assert_eq!(
            (f[0].code.as_str(), f[0].detail[0].as_str()),
            ("POOL_NEAR_FULL", "pool 'rp' has 6 objects (max 7)")
        );
        // At the quota the monitor speaks.
        w.map.pools.get_mut(&2).unwrap().quota_max_objects = 6;
        assert_eq!(found(&w, 25), []);
    }
}
