//! What the hardware could have given, and what held the rest up.
//!
//! The expected figure is arithmetic on baselines that were measured (`spirula bench disk`,
//! `spirula bench net`) and on the pool's geometry: disks × what one gives ÷ copies. The bottleneck
//! is named only with its evidence, a figure that was seen while it ran.

use crate::load::Mode;
use crate::prelude::*;
use crate::progress::bytes_rate;
use crate::session::Session;
use crate::used::Used;
use spirula_maps::OsdMap;
use spirula_types::PoolId;
use std::collections::BTreeSet;

/// A pool, and what is below it.
#[derive(Clone, Debug, Default)]
pub struct Geometry {
    /// The pool's number.
    pub pool: PoolId,
    /// Its name.
    pub name: String,
    /// Copies, or data and coding shards together.
    pub size: u64,
    /// Of those so many hold data; 1 in replicated pools.
    pub data: u64,
    /// PGs.
    pub pg_num: u32,
    /// OSDs that are up and in.
    pub osds: u64,
    /// Disks below them: distinct pairs of host and device.
    pub disks: u64,
    /// This run made the pool, and removes it.
    pub made: bool,
}

impl Geometry {
    /// Of the pool with this name; `None` without one.
    pub fn of(map: &OsdMap, name: &str) -> Option<Self> {
        let (id, _) = map.pool_names.iter().find(|(_, n)| *n == name)?;
        let pool = map.pool(*id)?;
        let osds = (0..map.osd_state.len() as i32)
            .filter(|o| map.is_up(*o) && map.is_in(*o))
            .count() as u64;
        let profile = map.ec_profiles.get(&pool.erasure_code_profile);
        let k = profile
            .and_then(|p| p.get("k"))
            .and_then(|k| k.parse().ok())
            .filter(|_| pool.is_erasure());
        Some(Self {
            pool: *id,
            name: name.to_owned(),
            size: u64::from(pool.size),
            data: k.unwrap_or(1),
            pg_num: pool.pg_num,
            osds,
            disks: 0,
            made: false,
        })
    }

    /// Asks which disks are below the OSDs.
    pub fn count_disks(&mut self, session: &Session) {
        let all = session.ask("osd metadata").unwrap_or_default();
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let disks: BTreeSet<(String, String)> = all
            .as_array()
            .into_iter()
            .flatten()
            .map(|o| (text(&o["hostname"]), text(&o["devices"])))
            .filter(|(_, d)| !d.is_empty())
            .collect();
        self.disks = disks.len() as u64;
    }

    /// As it stands in a result.
    pub fn json(&self) -> Value {
        json!({
            "name": self.name, "id": self.pool, "size": self.size, "data_shards": self.data, "pg_num": self.pg_num,
            "osds": self.osds, "disks": self.disks,
        })
    }
}

/// What one disk gave, by the test's name: operations a second, and bytes.
#[derive(Clone, Debug, Default)]
pub struct Baseline {
    tests: Vec<(String, f64, f64)>,
}

impl Baseline {
    /// From a result of `spirula bench disk`: the mean over devices of each test that ran alone.
    pub fn of(result: &Value) -> Self {
        let mut tests: Vec<(String, f64, f64, f64)> = Vec::new();
        for run in result["runs"].as_array().into_iter().flatten() {
            let (Some(test), true) = (run["test"].as_str(), run["alone"] == true) else { continue };
            let number = |key: &str| run["found"][key].as_f64().unwrap_or(0.0);
            let (iops, rate) = (number("iops"), number("bytes_per_s"));
            match tests.iter_mut().find(|t| t.0 == test) {
                Some(t) => (t.1, t.2, t.3) = (t.1 + iops, t.2 + rate, t.3 + 1.0),
                None => tests.push((test.to_owned(), iops, rate, 1.0)),
            }
        }
        Self {
            tests: tests.into_iter().map(|(t, iops, rate, n)| (t, iops / n, rate / n)).collect(),
        }
    }

    fn get(&self, test: &str) -> Option<(f64, f64)> {
        self.tests.iter().find(|t| t.0 == test).map(|t| (t.1, t.2))
    }

    /// What the pool could give: operations a second, and how that was computed.
    pub fn expected(&self, g: &Geometry, mode: Mode, size: u64) -> Option<Value> {
        if g.disks == 0 {
            return None;
        }
        let disks = g.disks as f64;
        let reads = match mode {
            Mode::Seq | Mode::Rand => 1.0,
            Mode::Mixed(percent) => f64::from(percent) / 100.0,
            Mode::Write | Mode::RandWrite | Mode::Remove => 0.0,
        };
        // Each byte is written so often; each byte is read once.
        let times = g.size as f64 / g.data as f64;
        let large = size >= 256 << 10;
        let one = |test: &str, copies: f64| {
            let (iops, rate) = self.get(test)?;
            let per_disk = if large { rate / size as f64 } else { iops };
            Some((per_disk, disks * per_disk / copies))
        };
        let read = one(if large { "seqread" } else { "randread" }, 1.0);
        let write = one(
            if large { "seqwrite" } else { "syncwrite" },
            if large { times } else { g.size as f64 },
        );
        let words = |one: (f64, f64), what: &str, copies: f64| {
            let copies =
                if copies == 1.0 { String::new() } else { format!(" ÷ {}", round(copies, 2)) };
            let unit = if large { "requests of that size at its sequential rate" } else { what };
            format!(
                "{disks} disk{} × {:.0} {unit}{copies}",
                if disks == 1.0 { "" } else { "s" },
                one.0
            )
        };
        let iops = match reads {
            1.0 => read?.1,
            0.0 => write?.1,
            // Time for a mixture is the sum of the times of its parts.
            r => 1.0 / (r / read?.1 + (1.0 - r) / write?.1),
        };
        let how = match (reads, read, write) {
            (1.0, Some(r), _) => words(r, "random 4 KiB reads", 1.0),
            (_, r, Some(w)) => {
                let copies = if large { times } else { g.size as f64 };
                let of_writes = words(w, "synced 4 KiB writes", copies);
                match r.filter(|_| reads > 0.0) {
                    Some(r) => format!(
                        "{of_writes} for writes, {} for reads",
                        words(r, "random 4 KiB reads", 1.0)
                    ),
                    None => of_writes,
                }
            }
            _ => return None,
        };
        Some(
            json!({"iops": round(iops, 1), "bytes_per_s": round(iops * size as f64, 0), "how": how}),
        )
    }
}

/// A disk that flushes its cache for more of the time than this is what writes wait for.
const SYNC_BOUND: f64 = 0.6;

/// What held it up, and by which evidence.
pub fn bottleneck(used: &Used, in_flight: u64, iops: f64, mean_ms: f64) -> Value {
    let percent = |part: f64| format!("{:.0} %", part * 100.0);
    let said = |what: &str, evidence: String| json!({"what": what, "evidence": evidence});
    let whose = used.daemons.first();
    if let Some((name, rate, speed)) = &used.net
        && rate / speed > 0.85
    {
        return said(
            "one network link",
            format!("{name} carried {} of {}", bytes_rate(*rate), bytes_rate(*speed)),
        );
    }
    if used.busy > 0.88 {
        let who = match whose {
            Some((name, cores)) => format!("; most of it {name} with {cores:.2} cores"),
            None => String::new(),
        };
        let who = if used.others > 0.2 {
            format!(
                "{who}; {:.2} cores went to what is neither the cluster's nor the load generator's",
                used.others
            )
        } else {
            who
        };
        return said(
            "CPU of this machine",
            format!("its CPUs were {} busy{who}", percent(used.busy)),
        );
    }
    if let Some((name, thread, part)) = &used.thread
        && *part > 0.9
    {
        return said(
            "CPU: one thread",
            format!("thread {thread} of {name} used {} of a core", percent(*part)),
        );
    }
    if let Some((name, part, flushes)) = &used.sync
        && *part > SYNC_BOUND
    {
        return said(
            "syncs of a disk",
            format!(
                "{name} flushed its cache {flushes:.0} times a second, {:.2} ms each: {} of the \
                    time, on the way of every write; CPUs were {} busy",
                1000.0 * part / flushes.max(1e-9),
                percent(part.min(1.0)),
                percent(used.busy)
            ),
        );
    }
    if let Some((name, busy, writes)) = &used.disk
        && (*busy > 0.85 || used.iowait > 0.3)
    {
        return said(
            "disk",
            format!(
                "{name} was busy {} of the time with {writes:.0} writes a second; CPUs waited for \
                    disks {}",
                percent(*busy),
                percent(used.iowait)
            ),
        );
    }
    // By Little's law what is in flight is rate × time: nothing was full, so time was spent waiting
    // for each single answer.
    said(
        "latency of single requests",
        format!(
            "{in_flight} in flight at {mean_ms:.2} ms each are {iops:.0} a second; CPUs were {} \
                busy, disks {}: more in flight may give more",
            percent(used.busy),
            used.disk.as_ref().map_or("idle".to_owned(), |d| percent(d.1)),
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in the container-SSD report: 9 disks of 600, 3 copies.
    #[test]
    fn the_expected_figure_is_disks_times_their_figure_by_copies() {
        let run = |test: &str, iops: f64, rate: f64, alone: bool| json!({"test": test, "alone": alone, "found": {"iops": iops, "bytes_per_s": rate}});
        let b = Baseline::of(&json!({"runs": [
            run("syncwrite", 500.0, 2e6, true), run("syncwrite", 700.0, 3e6, true), run("syncwrite", 1.0, 1.0, false),
            run("randread", 900.0, 4e6, true), run("seqwrite", 100.0, 100e6, true),
        ]}));
        let g = Geometry { size: 3, data: 1, disks: 9, ..Geometry::default() };
        let e = b.expected(&g, Mode::Write, 4096).unwrap();
        assert_eq!(e["iops"], 1800.0);
        assert_eq!(e["how"], "9 disks × 600 synced 4 KiB writes ÷ 3");
        assert_eq!(b.expected(&g, Mode::Rand, 4096).unwrap()["iops"], 8100.0);
        let coded = Geometry { size: 6, data: 4, disks: 6, ..Geometry::default() };
        assert_eq!(b.expected(&coded, Mode::Write, 4 << 20).unwrap()["bytes_per_s"], 400e6);
        assert!(b.expected(&Geometry::default(), Mode::Write, 4096).is_none(), "no disk is known");
        assert!(b.expected(&g, Mode::Seq, 4 << 20).is_none(), "it was not measured");
    }

    #[test]
    fn a_bottleneck_is_named_with_its_evidence() {
        let busy = Used { busy: 0.97, daemons: vec![("osd.3".into(), 1.6)], ..Used::default() };
        assert!(
            bottleneck(&busy, 16, 100.0, 1.0)["evidence"]
                .as_str()
                .unwrap()
                .contains("osd.3 with 1.60 cores")
        );
        let disk = Used { busy: 0.2, disk: Some(("sda".into(), 0.99, 300.0)), ..Used::default() };
        assert_eq!(bottleneck(&disk, 16, 100.0, 1.0)["what"], "disk");
        let sync = Used { sync: Some(("sda".into(), 0.9, 600.0)), ..disk };
        let sync = bottleneck(&sync, 16, 100.0, 1.0);
        assert_eq!(sync["what"], "syncs of a disk");
        assert!(
            sync["evidence"]
                .as_str()
                .unwrap()
                .contains("600 times a second, 1.50 ms each: 90 % of the time"),
            "{sync}"
        );
        let net = Used { net: Some(("eth0".into(), 120e6, 125e6)), ..Used::default() };
        assert_eq!(bottleneck(&net, 16, 100.0, 1.0)["what"], "one network link");
        assert_eq!(
            bottleneck(&Used::default(), 1, 100.0, 10.0)["what"],
            "latency of single requests"
        );
    }
}
