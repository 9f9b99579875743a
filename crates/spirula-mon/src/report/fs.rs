//! What there is to say of file systems: their health, and the line of `mds stat`.

use super::health::{Check, Checks, Severity};
use crate::mds::ranks;
use crate::view::ClusterView;
use spirula_maps::{FsMap, MdsMap, mds_state};
use spirula_messages::ceph::MdsMetric;
use std::collections::BTreeMap;

/// What kinds of trouble servers tell of, by number: code and summary.
const METRICS: &[(u16, &str, &str)] = &[
    (1, "MDS_TRIM", "%num% MDSs behind on trimming"),
    (2, "MDS_CLIENT_RECALL", "%num% clients failing to respond to cache pressure"),
    (3, "MDS_CLIENT_LATE_RELEASE", "%num% clients failing to respond to capability release"),
    (
        4,
        "MDS_CLIENT_RECALL_MANY",
        "%num% MDSs have many clients failing to respond to cache pressure",
    ),
    (
        5,
        "MDS_CLIENT_LATE_RELEASE_MANY",
        "%num% MDSs have many clients failing to respond to capability release",
    ),
    (6, "MDS_CLIENT_OLDEST_TID", "%num% clients failing to advance oldest client/flush tid"),
    (
        7,
        "MDS_CLIENT_OLDEST_TID_MANY",
        "%num% MDSs have clients failing to advance oldest client/flush tid",
    ),
    (8, "MDS_DAMAGE", "%num% MDSs report damaged metadata"),
    (9, "MDS_READ_ONLY", "%num% MDSs are read only"),
    (10, "MDS_SLOW_REQUEST", "%num% MDSs report slow requests"),
    (11, "MDS_CACHE_OVERSIZED", "%num% MDSs report oversized cache"),
    (12, "MDS_SLOW_METADATA_IO", "%num% MDSs report slow metadata IOs"),
];

/// Adds to the checks of one code a line for one more thing.
fn note(out: &mut Checks, code: &str, severity: Severity, summary: &str, line: String) {
    let fresh = || Check { severity, summary: summary.to_owned(), count: 0, detail: Vec::new() };
    let check = out.entry(code.to_owned()).or_insert_with(fresh);
    check.severity = check.severity.max(severity);
    check.detail.push(line);
}

/// Puts the number of things into a summary, and the words that go with it.
fn counted(summary: &str, n: usize) -> String {
    let one = n == 1;
    summary
        .replace("%num%", &n.to_string())
        .replace("%plurals%", if one { "" } else { "s" })
        .replace("%isorare%", if one { "is" } else { "are" })
        .replace("%hasorhave%", if one { "has" } else { "have" })
}

/// The checks of file systems and of their servers.
pub(super) fn checks(view: &ClusterView<'_>, out: &mut Checks) {
    let mut found = Checks::new();
    let map = view.fsmap;
    for fs in &map.filesystems {
        of_one(map, fs.fscid, &fs.mds_map, &mut found);
    }
    for (gid, health) in view.mds_health {
        let Some(info) = map.info(*gid).filter(|i| i.rank >= 0) else { continue };
        for metric in &health.metrics {
            let Some((_, code, summary)) = METRICS.iter().find(|(kind, _, _)| *kind == metric.kind)
            else {
                continue;
            };
            let severity = if metric.severity == 0 { Severity::Error } else { Severity::Warning };
            let line = format!(
                "mds.{}(mds.{}): {}{}",
                info.name,
                info.rank,
                metric.message,
                facts(metric)
            );
            note(&mut found, code, severity, summary, line);
        }
    }
    let wanted =
        map.filesystems.iter().map(|f| missing_standbys(map, &f.mds_map)).max().unwrap_or(0);
    if wanted > 0 {
        let line = format!("have {}; want {wanted} more", map.standby_daemons.len());
        let summary = "insufficient standby MDS daemons available";
        note(&mut found, "MDS_INSUFFICIENT_STANDBY", Severity::Warning, summary, line);
    }
    for (code, mut check) in found {
        check.count = check.detail.len() as u64;
        check.summary = counted(&check.summary, check.detail.len());
        out.insert(code, check);
    }
}

/// The facts of a metric, as they follow its sentence.
fn facts(metric: &MdsMetric) -> String {
    let words: Vec<String> = metric.metadata.iter().map(|(k, v)| format!("{k}: {v}")).collect();
    words.join(", ")
}

fn missing_standbys(map: &FsMap, m: &MdsMap) -> usize {
    let there = map.standby_daemons.len() + m.in_state(mds_state::STANDBY_REPLAY).count();
    m.standbys_wanted().saturating_sub(there)
}

fn of_one(map: &FsMap, fscid: i32, m: &MdsMap, out: &mut Checks) {
    let name = &m.fs_name;
    let mut add = |code: &str, severity, summary: &str, line: String| {
        note(out, code, severity, summary, line)
    };
    for rank in &m.damaged {
        let summary = "%num% mds daemon%plurals% damaged";
        add("MDS_DAMAGE", Severity::Error, summary, format!("fs {name} mds.{rank} is damaged"));
    }
    if m.is_degraded() {
        let summary = "%num% filesystem%plurals% %isorare% degraded";
        add("FS_DEGRADED", Severity::Warning, summary, format!("fs {name} is degraded"));
    }
    let stuck = match map.by_id(fscid) {
        Some(fs) => m.failed.iter().filter(|r| ranks::replacement(map, fs, **r).is_none()).count(),
        None => 0,
    };
    if stuck > 0 {
        let summary = "%num% filesystem%plurals% %hasorhave% a failed mds daemon";
        let plural = if stuck > 1 { "s" } else { "" };
        add(
            "FS_WITH_FAILED_MDS",
            Severity::Warning,
            summary,
            format!("fs {name} has {stuck} failed mds{plural}"),
        );
    }
    let (is_in, max) = (m.in_ranks.len(), usize::try_from(m.max_mds).unwrap_or(0));
    if is_in < max {
        let summary = "%num% filesystem%plurals% %isorare% online with fewer MDS than max_mds";
        let line = format!("fs {name} has {is_in} MDS online, but wants {max}");
        add("MDS_UP_LESS_THAN_MAX", Severity::Warning, summary, line);
    }
    if m.up.is_empty() && max > 0 {
        let summary = "%num% filesystem%plurals% %isorare% offline";
        add(
            "MDS_ALL_DOWN",
            Severity::Error,
            summary,
            format!("fs {name} is offline because no MDS is active for it."),
        );
    }
    if m.inline_data_enabled {
        let summary = "%num% filesystem%plurals% with deprecated feature inline_data";
        add(
            "FS_INLINE_DATA_DEPRECATED",
            Severity::Warning,
            summary,
            format!("fs {name} has deprecated feature inline_data enabled."),
        );
    }
}

/// `ceph mds stat`, without a newline.
pub(crate) fn stat_text(map: &FsMap) -> String {
    let count = map.filesystems.len();
    let degraded = |m: &MdsMap| format!("{}:{}/{}", m.fs_name, m.up.len(), m.in_ranks.len());
    let mut out = if count <= 3 {
        let each = map.filesystems.iter().map(|f| &f.mds_map);
        let words = each.map(|m| {
            if m.is_degraded() {
                degraded(m)
            } else {
                format!("{}:{}", m.fs_name, m.in_ranks.len())
            }
        });
        words.collect::<Vec<_>>().join(" ")
    } else {
        let bad =
            map.filesystems.iter().map(|f| &f.mds_map).filter(|m| m.is_degraded()).map(degraded);
        let bad = bad.collect::<Vec<_>>().join(", ");
        if bad.is_empty() { format!("{count} fs") } else { format!("{count} fs (degraded: {bad})") }
    };
    let mut by_rank = BTreeMap::new();
    let mut by_state: BTreeMap<String, usize> = BTreeMap::new();
    for info in map.servers() {
        let mut state = mds_state::name(info.state).to_owned();
        if info.is_laggy() {
            state += "(laggy or crashed)";
        }
        match map.fs_of(info.gid).filter(|_| info.holds_rank()) {
            Some(fs) => drop(
                by_rank.insert((&fs.mds_map.fs_name, info.rank), format!("{}={state}", info.name)),
            ),
            None => *by_state.entry(state).or_default() += 1,
        }
    }
    if !by_rank.is_empty() {
        let key =
            |fs: &str, rank: i32| if count > 1 { format!("{fs}:{rank}") } else { rank.to_string() };
        let words: Vec<String> =
            by_rank.into_iter().map(|((fs, rank), s)| format!("{}={s}", key(fs, rank))).collect();
        out += &format!(" {{{}}}", words.join(","));
    }
    for (state, n) in by_state.into_iter().rev() {
        out += &format!(" {n} {state}");
    }
    let sum = |count: fn(&MdsMap) -> usize| {
        map.filesystems.iter().map(|f| count(&f.mds_map)).sum::<usize>()
    };
    for (n, word) in [(sum(|m| m.failed.len()), "failed"), (sum(|m| m.damaged.len()), "damaged")] {
        if n > 0 {
            out += &format!(", {n} {word}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_count() {
        assert_eq!(
            counted("%num% filesystem%plurals% %isorare% degraded", 1),
            "1 filesystem is degraded"
        );
        assert_eq!(
            counted("%num% filesystem%plurals% %hasorhave% a failed mds daemon", 2),
            "2 filesystems have a failed mds daemon"
        );
    }
}
