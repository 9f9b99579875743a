//! Counters of one OSD: what `perf dump` prints and the manager gets.

use serde_json::{Value, json};
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
        if n == 0 { 0 } else { (self.sum.saturating_sub(before.sum).as_nanos() / u128::from(n)) as u64 }
    }

    fn dump(&self) -> Value {
        let sum = self.sum.as_secs_f64();
        json!({"avgcount": self.count, "sum": sum, "avgtime": if self.count == 0 { 0.0 } else { sum / self.count as f64 }})
    }
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
}

impl Perf {
    /// As `perf dump` prints it; `pgs` and `primaries` are gauges of the moment.
    pub fn dump(&self, pgs: usize, primaries: usize, used: u64, total: u64) -> Value {
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
            "map_messages": self.maps,
            "heartbeats": self.pings,
            "numpg": pgs,
            "numpg_primary": primaries,
            "numpg_replica": pgs - primaries.min(pgs),
            "stat_bytes": total,
            "stat_bytes_used": used,
            "stat_bytes_avail": total.saturating_sub(used),
        }, "store": {
            "transactions": self.transactions,
            "commit_latency": self.commit_latency.dump(),
        }})
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

#[cfg(test)]
mod tests {
    use super::*;

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
