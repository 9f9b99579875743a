//! What a load found: latencies, and what ended in each second.

use crate::prelude::*;
use hdrhistogram::Histogram;

/// Least latency that is told from zero, nanoseconds.
const LEAST: u64 = 1_000;
/// Greatest that is told from greater ones, nanoseconds: an hour.
const GREATEST: u64 = 3_600_000_000_000;
/// Quantiles that are reported, with their names.
pub const QUANTILES: [(&str, f64); 6] = [
    ("p50", 0.5),
    ("p90", 0.9),
    ("p95", 0.95),
    ("p99", 0.99),
    ("p99.9", 0.999),
    ("p99.99", 0.9999),
];

/// A second of a load.
#[derive(Clone, Debug)]
pub struct Second {
    /// Operations that ended in it.
    pub ops: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their latencies, nanoseconds.
    pub latency: Histogram<u64>,
}

/// Latencies from a microsecond to an hour, to three digits.
pub fn histogram() -> Histogram<u64> {
    // These bounds can be had; with others the histogram would grow by itself.
    Histogram::new_with_bounds(LEAST, GREATEST, 3)
        .unwrap_or_else(|_| unreachable!("bounds of a histogram"))
}

/// A short histogram for one second: two digits.
fn short() -> Histogram<u64> {
    Histogram::new_with_bounds(LEAST, GREATEST, 2)
        .unwrap_or_else(|_| unreachable!("bounds of a histogram"))
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Record {
    /// Operations that ended well.
    pub ops: u64,
    /// Those of them that read.
    pub reads: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Operations that were due by a rate and never begun.
    pub missed: u64,
    /// Time from the end of the warm-up to the last answer.
    pub took: Duration,
    /// Latencies, nanoseconds.
    pub latency: Histogram<u64>,
    /// Second by second.
    pub seconds: Vec<Second>,
}

impl Default for Record {
    fn default() -> Self {
        Self {
            ops: 0,
            reads: 0,
            bytes: 0,
            errors: 0,
            missed: 0,
            took: Duration::ZERO,
            latency: histogram(),
            seconds: Vec::new(),
        }
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

impl Record {
    /// An operation ended `at` after the warm-up, and `took` so long.
    pub fn add(&mut self, at: Duration, took: Duration, bytes: u64, is_read: bool) {
        self.ops += 1;
        self.reads += u64::from(is_read);
        self.bytes += bytes;
        self.took = self.took.max(at);
        self.latency.saturating_record(nanos(took));
        // A day, whatever the clock says.
        let second = (at.as_secs() as usize).min(86_400);
        while self.seconds.len() <= second {
            self.seconds.push(Second { ops: 0, bytes: 0, latency: short() });
        }
        if let Some(s) = self.seconds.get_mut(second) {
            s.ops += 1;
            s.bytes += bytes;
            s.latency.saturating_record(nanos(took));
        }
    }

    /// Takes another generator's findings in.
    pub fn merge(&mut self, other: &Self) {
        self.ops += other.ops;
        self.reads += other.reads;
        self.bytes += other.bytes;
        self.errors += other.errors;
        self.missed += other.missed;
        self.took = self.took.max(other.took);
        // Both have the same bounds.
        let _ = self.latency.add(&other.latency);
        for (i, s) in other.seconds.iter().enumerate() {
            match self.seconds.get_mut(i) {
                Some(own) => {
                    own.ops += s.ops;
                    own.bytes += s.bytes;
                    let _ = own.latency.add(&s.latency);
                }
                None => self.seconds.push(s.clone()),
            }
        }
    }

    /// Operations a second.
    pub fn iops(&self) -> f64 {
        if self.took.is_zero() { 0.0 } else { self.ops as f64 / self.took.as_secs_f64() }
    }

    /// Bytes a second.
    pub fn rate(&self) -> f64 {
        if self.took.is_zero() { 0.0 } else { self.bytes as f64 / self.took.as_secs_f64() }
    }

    /// All of it, as another process takes it in ([`Record::merge`]).
    pub fn exact(&self) -> Value {
        let seconds: Vec<Value> =
            self.seconds.iter().map(|s| json!([s.ops, s.bytes, pairs(&s.latency)])).collect();
        json!({
            "ops": self.ops, "reads": self.reads, "bytes": self.bytes, "errors": self.errors, "missed": self.missed,
            "took_ns": nanos(self.took), "latency": pairs(&self.latency), "seconds": seconds,
        })
    }

    /// The same back; `None` where it is none.
    pub fn from_exact(v: &Value) -> Option<Self> {
        let number = |key: &str| v[key].as_u64();
        // A day, as in [`Record::add`].
        let seconds = v["seconds"].as_array().filter(|s| s.len() <= 86_401)?.iter().map(|s| {
            Some(Second {
                ops: s[0].as_u64()?,
                bytes: s[1].as_u64()?,
                latency: from_pairs(&s[2], short())?,
            })
        });
        Some(Self {
            ops: number("ops")?,
            reads: number("reads")?,
            bytes: number("bytes")?,
            errors: number("errors")?,
            missed: number("missed")?,
            took: Duration::from_nanos(number("took_ns")?),
            latency: from_pairs(&v["latency"], histogram())?,
            seconds: seconds.collect::<Option<_>>()?,
        })
    }

    /// As it stands in a result: rates, latencies in milliseconds, the histogram (upper bound in
    /// ms, count) and the seconds.
    pub fn json(&self) -> Value {
        let ms = |ns: u64| round(ns as f64 / 1e6, 4);
        let h = &self.latency;
        let mut latency =
            json!({"mean": round(h.mean() / 1e6, 4), "min": ms(h.min()), "max": ms(h.max())});
        for (name, q) in QUANTILES {
            latency[name] = json!(ms(h.value_at_quantile(q)));
        }
        let histogram: Vec<Value> = h
            .iter_log(10_000, 1.12)
            .filter(|i| i.count_since_last_iteration() > 0)
            .map(|i| json!([ms(i.value_iterated_to()), i.count_since_last_iteration()]))
            .collect();
        let series: Vec<Value> = self
            .seconds
            .iter()
            .enumerate()
            .map(|(i, s)| {
                let q = |q: f64| ms(s.latency.value_at_quantile(q));
                json!({"t": i + 1, "ops": s.ops, "bytes": s.bytes, "p50": q(0.5), "p99": q(0.99), "max": ms(s.latency.max())})
            })
            .collect();
        json!({
            "ops": self.ops, "reads": self.reads, "bytes": self.bytes, "errors": self.errors, "missed": self.missed,
            "took_s": round(self.took.as_secs_f64(), 3), "iops": round(self.iops(), 2),
            "bytes_per_s": round(self.rate(), 0), "latency_ms": latency, "histogram_ms": histogram, "series": series,
        })
    }
}

/// A histogram as pairs of a latency and how many had it; nothing is lost.
fn pairs(h: &Histogram<u64>) -> Value {
    h.iter_recorded().map(|i| json!([i.value_iterated_to(), i.count_at_value()])).collect()
}

/// The same back.
fn from_pairs(v: &Value, mut into: Histogram<u64>) -> Option<Histogram<u64>> {
    for p in v.as_array()? {
        into.saturating_record_n(p[0].as_u64()?, p[1].as_u64()?);
    }
    Some(into)
}

/// `v` with so many digits after the point.
pub fn round(v: f64, digits: i32) -> f64 {
    let f = 10f64.powi(digits);
    (v * f).round() / f
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_percentiles_and_sums_are_those_of_all_generators() {
        let (mut a, mut b) = (Record::default(), Record::default());
        for i in 0..100 {
            a.add(Duration::from_millis(i * 20), Duration::from_millis(1), 4096, true);
        }
        b.add(Duration::from_millis(2500), Duration::from_millis(500), 4096, false);
        a.merge(&b);
        let j = a.json();
        assert_eq!((a.ops, a.reads, a.bytes), (101, 100, 101 * 4096));
        assert_eq!(j["series"].as_array().unwrap().len(), 3);
        assert_eq!(j["series"][2]["ops"], 1);
        assert!((j["latency_ms"]["p50"].as_f64().unwrap() - 1.0).abs() < 0.01, "{j}");
        assert!((j["latency_ms"]["max"].as_f64().unwrap() - 500.0).abs() < 1.0, "{j}");
        assert!((a.iops() - 101.0 / 2.5).abs() < 0.01);
        let counted: u64 =
            j["histogram_ms"].as_array().unwrap().iter().map(|p| p[1].as_u64().unwrap()).sum();
        assert_eq!(counted, 101);
    }
}
