//! Heartbeats between OSDs that take long: `dump_osd_network`, and what health says of them. OSDs
//! report such paths with their statistics ([`PathTimes`]).

use serde_json::{Value, json};
use spirula_maps::{PathTimes, PgDigest};
use spirula_messages::cluster::control::HealthInput;
use spirula_types::OsdId;

/// Milliseconds that Ceph finds long for a ping; what the answer names where nothing is asked for.
const LONG_MS: u64 = 1000;
/// Lines of detail.
const DETAIL_MAX: usize = 50;

fn all(digest: &PgDigest) -> Vec<(OsdId, &PathTimes)> {
    let mut all: Vec<_> =
        digest.osds.iter().flat_map(|(osd, o)| o.slow_paths.iter().map(|p| (*osd, p))).collect();
    all.sort_by_key(|(_, p)| std::cmp::Reverse(p.mean_us));
    all
}

/// Paths whose pings take so many milliseconds or more, of those that OSDs found to take long; the
/// slowest first.
pub(crate) fn dump(digest: &PgDigest, threshold: Option<u64>) -> Value {
    let least = threshold.unwrap_or(0) as f64;
    let rows = all(digest).into_iter().filter(|(_, p)| p.worst_ms() >= least);
    json!({"threshold": threshold.unwrap_or(LONG_MS), "entries": rows.map(|(from, p)| p.row(from)).collect::<Value>()})
}

/// `OSD_SLOW_PING_TIME_BACK` and `OSD_SLOW_PING_TIME_FRONT`.
pub(crate) fn checks(digest: &PgDigest, warning: u8) -> Vec<HealthInput> {
    let all = all(digest);
    let of = |front: bool| {
        let slow: Vec<_> = all.iter().filter(|(_, p)| p.front == front).collect();
        let (_, longest) = slow.first()?;
        let net = longest.interface();
        let line = |(from, p): &&&(OsdId, &PathTimes)| {
            let better = if p.mean_us[0] < p.mean_us[2] { " possibly improving" } else { "" };
            format!(
                "Slow OSD heartbeats on {net} from osd.{from} to osd.{} {:.3} msec{better}",
                p.to,
                p.worst_ms()
            )
        };
        let mut detail: Vec<String> = slow.iter().take(DETAIL_MAX).map(|s| line(&s)).collect();
        if slow.len() > DETAIL_MAX {
            detail.push(format!("{} more", slow.len() - DETAIL_MAX));
        }
        Some(HealthInput {
            code: format!("OSD_SLOW_PING_TIME_{}", net.to_uppercase()),
            severity: warning,
            summary: format!("Slow OSD heartbeats on {net} (longest {:.3}ms)", longest.worst_ms()),
            count: slow.len() as u64,
            detail,
        })
    };
    [false, true].into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_maps::OsdStatReport;

    fn path(to: OsdId, front: bool, ms: u64) -> PathTimes {
        PathTimes {
            to,
            front,
            mean_us: [ms * 1000, ms * 1000, ms * 500],
            last_ms: ms,
            ..PathTimes::default()
        }
    }

    #[test]
    fn what_osds_find_slow_is_shown_and_said_by_network_the_slowest_first() {
        let mut digest = PgDigest::default();
        assert_eq!(dump(&digest, None), json!({"threshold": 1000, "entries": []}));
        assert!(checks(&digest, 1).is_empty());
        let of =
            |slow_paths: Vec<PathTimes>| OsdStatReport { slow_paths, ..OsdStatReport::default() };
        digest.osds.insert(0, of(vec![path(1, false, 1200), path(1, true, 1500)]));
        digest.osds.insert(1, of(vec![path(0, false, 2000)]));
        let rows = dump(&digest, None);
        let row = &rows["entries"][0];
        assert_eq!(
            (&row["from osd"], &row["to osd"], &row["interface"]),
            (&json!(1), &json!(0), &json!("back"))
        );
        assert_eq!((&row["average"]["1min"], &row["last"]), (&json!(2000.0), &json!(2000)));
        assert_eq!(dump(&digest, Some(1500))["entries"].as_array().map(Vec::len), Some(2));
        let said = checks(&digest, 1);
        assert_eq!(
            said.iter().map(|c| &c.code[..]).collect::<Vec<_>>(),
            ["OSD_SLOW_PING_TIME_BACK", "OSD_SLOW_PING_TIME_FRONT"]
        );
        assert_eq!(said[0].summary, "Slow OSD heartbeats on back (longest 2000.000ms)");
        assert_eq!(
            said[0].detail[1],
            "Slow OSD heartbeats on back from osd.0 to osd.1 1200.000 msec"
        );
        assert_eq!((said[0].count, said[1].count), (2, 1));
        let all = digest.osds[&0].dump(Some(0));
        assert_eq!(
            all["network_ping_times"][0]["interfaces"].as_array().map(Vec::len),
            Some(2),
            "{all}"
        );
    }
}
