//! Counters of one OSD: what `perf dump` prints and the manager gets.

use serde_json::{Value, json};
use spirula_store::{PoolSpace, Statfs};
use std::collections::BTreeMap;
use std::time::Duration;

/// A count and a sum of seconds, as Ceph's "time average" counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Average {
    /// Number of samples.
    pub count: u64,
    /// Their sum.
    pub sum: Duration,
}

impl Average {
    /// Adds a sample.
    pub fn add(&mut self, d: Duration) {
        self.count += 1;
        self.sum += d;
    }

    /// Mean since `before`, nanoseconds; 0 without new samples.
    pub fn mean_since(&self, before: &Self) -> u64 {
        let n = self.count.saturating_sub(before.count);
        if n == 0 {
            0
        } else {
            (self.sum.saturating_sub(before.sum).as_nanos() / u128::from(n)) as u64
        }
    }

    fn dump(&self) -> Value {
        let sum = self.sum.as_secs_f64();
        json!({"avgcount": self.count, "sum": sum, "avgtime": if self.count == 0 { 0.0 } else { sum / self.count as f64 }})
    }
}

/// Space of the store at a moment, as the OSD reports it.
#[derive(Clone, Debug, Default)]
pub struct Space {
    /// All of it.
    pub store: Statfs,
    /// What pools have of it.
    pub pools: Vec<PoolSpace>,
}

/// Counters of one OSD since its start.
#[derive(Clone, Debug, Default)]
pub struct Perf {
    /// Client requests answered.
    pub ops: u64,
    /// Of these, reads.
    pub reads: u64,
    /// Of these, writes.
    pub writes: u64,
    /// Payload bytes received with writes.
    pub in_bytes: u64,
    /// Payload bytes sent with reads.
    pub out_bytes: u64,
    /// From a request's arrival to its answer.
    pub latency: Average,
    /// The same, reads.
    pub read_latency: Average,
    /// The same, writes.
    pub write_latency: Average,
    /// From a transaction's submission to its being durable.
    pub commit_latency: Average,
    /// Transactions submitted.
    pub transactions: u64,
    /// Writes taken as a replica.
    pub subop_writes: u64,
    /// Requests parked until their data was read from the disk.
    pub parked_reads: u64,
    /// OSD maps taken.
    pub maps: u64,
    /// Heartbeats sent.
    pub pings: u64,
    /// Bad copies replaced by good ones.
    pub repaired: u64,
    /// Client requests counted by their block images.
    pub image_ops: u64,
}

impl Perf {
    /// As `perf dump` prints it; `pgs`, `primaries` and `space` are gauges of the moment.
    pub fn dump(&self, pgs: usize, primaries: usize, space: &Space) -> Value {
        let store = &space.store;
        let sum = |part: fn(&PoolSpace) -> u64| space.pools.iter().map(part).sum::<u64>();
        json!({"osd": {
            "op_wip": 0,
            "op": self.ops,
            "op_in_bytes": self.in_bytes,
            "op_out_bytes": self.out_bytes,
            "op_latency": self.latency.dump(),
            "op_r": self.reads,
            "op_r_out_bytes": self.out_bytes,
            "op_r_latency": self.read_latency.dump(),
            "op_w": self.writes,
            "op_w_in_bytes": self.in_bytes,
            "op_w_latency": self.write_latency.dump(),
            "subop_w": self.subop_writes,
            "parked_reads": self.parked_reads,
            "op_image": self.image_ops,
            "map_messages": self.maps,
            "heartbeats": self.pings,
            "numpg": pgs,
            "numpg_primary": primaries,
            "numpg_replica": pgs - primaries.min(pgs),
            "stat_bytes": store.total,
            "stat_bytes_used": store.total.saturating_sub(store.available),
            "stat_bytes_avail": store.available,
        }, "store": {
            "transactions": self.transactions,
            "commit_latency": self.commit_latency.dump(),
        }, "bluefs": {
            "db_total_bytes": store.metadata_total,
            "db_used_bytes": store.metadata,
            "wal_total_bytes": store.journal,
            "wal_used_bytes": store.journal,
        }, "bluestore": {
            "bluestore_allocated": store.used,
            "bluestore_stored": store.stored,
            "bluestore_compressed": sum(|s| s.compressed),
            "bluestore_compressed_allocated": sum(|s| s.compressed_allocated),
            "bluestore_compressed_original": sum(|s| s.compressed_original),
        }})
    }

    /// Counters of the logger `which` (`osd`, `store`, `all`) begin again at nothing.
    pub fn reset(&mut self, which: &str) {
        let old = std::mem::take(self);
        if which == "osd" {
            (self.transactions, self.commit_latency) = (old.transactions, old.commit_latency);
        } else if which == "store" {
            *self = Self { transactions: 0, commit_latency: Average::default(), ..old };
        }
    }

    /// Monotonic counters for the manager's rates.
    pub fn counters(&self) -> BTreeMap<String, u64> {
        [
            ("op", self.ops),
            ("op_r", self.reads),
            ("op_w", self.writes),
            ("op_in_bytes", self.in_bytes),
            ("op_out_bytes", self.out_bytes),
            ("subop_w", self.subop_writes),
        ]
        .map(|(k, v)| (k.to_owned(), v))
        .into()
    }
}

/// What `perf dump` shows: section, name, kind, short name, meaning.
const SCHEMA: &[(&str, &str, Shape, &str, &str)] = {
    use Shape::{Average as Avg, Count, Gauge};
    &[
        ("osd", "op_wip", Gauge, "wip", "client operations being worked on"),
        ("osd", "op", Count, "ops", "client operations answered"),
        ("osd", "op_in_bytes", Count, "wr", "bytes received with writes"),
        ("osd", "op_out_bytes", Count, "rd", "bytes sent with reads"),
        ("osd", "op_latency", Avg, "lat", "from a request's arrival to its answer"),
        ("osd", "op_r", Count, "rop", "reads answered"),
        ("osd", "op_r_out_bytes", Count, "rob", "bytes sent with reads"),
        ("osd", "op_r_latency", Avg, "rlat", "the same latency, reads"),
        ("osd", "op_w", Count, "wop", "writes answered"),
        ("osd", "op_w_in_bytes", Count, "wib", "bytes received with writes"),
        ("osd", "op_w_latency", Avg, "wlat", "the same latency, writes"),
        ("osd", "subop_w", Count, "sop", "writes taken as a replica"),
        ("osd", "parked_reads", Count, "park", "reads that waited for the disk"),
        (
            "osd",
            "op_image",
            Count,
            "img",
            "requests counted by their block images, while somebody asks for that",
        ),
        ("osd", "map_messages", Count, "map", "OSD maps taken"),
        ("osd", "heartbeats", Count, "hb", "heartbeats sent"),
        ("osd", "numpg", Gauge, "pgs", "placement groups"),
        ("osd", "numpg_primary", Gauge, "prim", "placement groups led"),
        ("osd", "numpg_replica", Gauge, "repl", "placement groups followed"),
        ("osd", "stat_bytes", Gauge, "size", "bytes of the store"),
        ("osd", "stat_bytes_used", Gauge, "used", "bytes used"),
        ("osd", "stat_bytes_avail", Gauge, "free", "bytes free"),
        ("store", "transactions", Count, "txns", "transactions submitted"),
        (
            "store",
            "commit_latency",
            Avg,
            "clat",
            "from a transaction's submission to its being durable",
        ),
        ("bluefs", "db_total_bytes", Gauge, "b", "bytes of the device that metadata is on"),
        ("bluefs", "db_used_bytes", Gauge, "u", "bytes that metadata takes of it"),
        ("bluefs", "wal_total_bytes", Gauge, "walb", "bytes of the journal"),
        ("bluefs", "wal_used_bytes", Gauge, "walu", "bytes of it that are taken: all, always"),
        (
            "bluestore",
            "bluestore_allocated",
            Gauge,
            "al_b",
            "bytes of the device that objects take",
        ),
        ("bluestore", "bluestore_stored", Gauge, "st_b", "bytes in objects"),
        ("bluestore", "bluestore_compressed", Gauge, "c", "bytes of compressed data"),
        (
            "bluestore",
            "bluestore_compressed_allocated",
            Gauge,
            "c_al",
            "bytes of the device that it takes",
        ),
        ("bluestore", "bluestore_compressed_original", Gauge, "c_or", "bytes that it was before"),
    ]
};

/// How much a counter is worth showing, as Ceph counts: `ceph daemonperf` shows those from 8.
fn priority(name: &str) -> u8 {
    match name {
        "op" => 10,
        "op_latency" => 9,
        "op_wip" | "op_in_bytes" | "op_out_bytes" | "op_r" | "op_w" | "subop_w" | "numpg"
        | "commit_latency" => 8,
        _ => 5,
    }
}

/// Kind of a counter.
#[derive(Clone, Copy)]
enum Shape {
    Gauge,
    Count,
    Average,
}

/// As `perf schema` prints it. The type bits are Ceph's: 1 time, 2 integer, 4 average, 8 counter.
pub fn schema() -> Value {
    let mut out = serde_json::Map::new();
    for (section, name, shape, nick, meaning) in SCHEMA {
        let (bits, metric, value) = match shape {
            Shape::Gauge => (2, "gauge", "integer"),
            Shape::Count => (10, "counter", "integer"),
            Shape::Average => (5, "gauge", "real-integer-pair"),
        };
        let row = json!({"type": bits, "metric_type": metric, "value_type": value, "description": meaning,
            "nick": nick, "priority": priority(name), "units": "none"});
        if let Value::Object(rows) = out.entry(*section).or_insert_with(|| json!({})) {
            rows.insert((*name).to_owned(), row);
        }
    }
    Value::Object(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_describes_exactly_what_is_dumped() {
        let names = |v: &Value| -> Vec<(String, Vec<String>)> {
            let keys = |v: &Value| v.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
            v.as_object().unwrap().iter().map(|(k, v)| (k.clone(), keys(v))).collect()
        };
        assert_eq!(names(&schema()), names(&Perf::default().dump(1, 1, &Space::default())));
    }

    /// `ceph daemonperf` fails where no counter has priority 8.
    #[test]
    fn what_matters_is_shown_by_daemonperf() {
        let all = schema();
        assert_eq!(all["osd"]["op"]["priority"], 10);
        assert_eq!(all["store"]["commit_latency"]["priority"], 8);
        assert_eq!(all["osd"]["map_messages"]["priority"], 5);
    }

    #[test]
    fn a_reset_takes_the_counters_of_its_logger() {
        let full = || Perf { ops: 3, transactions: 4, ..Perf::default() };
        for (which, ops, transactions) in [("osd", 0, 4), ("store", 3, 0), ("all", 0, 0)] {
            let mut p = full();
            p.reset(which);
            assert_eq!((p.ops, p.transactions), (ops, transactions), "{which}");
        }
    }

    #[test]
    fn mean_counts_only_what_is_new() {
        let mut a = Average::default();
        a.add(Duration::from_millis(10));
        let before = a;
        a.add(Duration::from_millis(2));
        a.add(Duration::from_millis(4));
        assert_eq!(a.mean_since(&before), 3_000_000);
        assert_eq!(a.mean_since(&a), 0);
    }
}
