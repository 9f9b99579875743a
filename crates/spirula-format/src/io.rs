//! What clients and recovery are doing, in Ceph's words: shared by `status`, `pg stat`,
//! `osd pool stats`.

use crate::units::{bytes, si};
use serde_json::{Map, Value};

/// Work done within a span of time. Negative counters count as zero: a restarted OSD may
/// report less than before.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct IoDelta {
    /// Reads.
    pub reads: i64,
    /// KiB read.
    pub read_kib: i64,
    /// Writes.
    pub writes: i64,
    /// KiB written.
    pub write_kib: i64,
    /// Objects recovered.
    pub recovered_objects: i64,
    /// Bytes recovered.
    pub recovered_bytes: i64,
    /// Omap keys recovered.
    pub recovered_keys: i64,
    /// The span in seconds; without one there are no rates.
    pub seconds: f64,
}

impl IoDelta {
    fn rate(&self, v: i64) -> u64 {
        if self.seconds > 0.0 { (v.max(0) as f64 / self.seconds) as u64 } else { 0 }
    }

    fn rate_kib(&self, v: i64) -> u64 {
        self.rate(v.max(0).saturating_mul(1024))
    }

    /// Bytes read, bytes written, reads and writes per second.
    pub fn client_rates(&self) -> (u64, u64, u64, u64) {
        (self.rate_kib(self.read_kib), self.rate_kib(self.write_kib), self.rate(self.reads), self.rate(self.writes))
    }

    /// True if clients did anything.
    pub fn has_client_io(&self) -> bool {
        self.seconds > 0.0 && (self.reads > 0 || self.writes > 0)
    }

    /// True if anything was recovered.
    pub fn has_recovery(&self) -> bool {
        self.seconds > 0.0 && (self.recovered_objects > 0 || self.recovered_bytes > 0 || self.recovered_keys > 0)
    }

    /// `1.2 MiB/s rd, 3 KiB/s wr, 10 op/s rd, 2 op/s wr`; empty when idle.
    pub fn client_text(&self) -> String {
        let mut out = String::new();
        if !self.has_client_io() {
            return out;
        }
        let (rd_bytes, wr_bytes, rd, wr) = self.client_rates();
        if self.reads > 0 {
            out += &format!("{}/s rd, ", bytes(rd_bytes));
        }
        if self.writes > 0 {
            out += &format!("{}/s wr, ", bytes(wr_bytes));
        }
        out + &format!("{} op/s rd, {} op/s wr", si(rd), si(wr))
    }

    /// The same as members of `map`.
    pub fn client_json(&self, map: &mut Map<String, Value>) {
        if !self.has_client_io() {
            return;
        }
        let (rd_bytes, wr_bytes, rd, wr) = self.client_rates();
        if self.reads > 0 {
            map.insert("read_bytes_sec".into(), rd_bytes.into());
        }
        if self.writes > 0 {
            map.insert("write_bytes_sec".into(), wr_bytes.into());
        }
        map.insert("read_op_per_sec".into(), rd.into());
        map.insert("write_op_per_sec".into(), wr.into());
    }

    /// The form of `pg stat`: `1.2 MiB/s rd, 3 KiB/s wr, 12 op/s`.
    pub fn client_text_total(&self) -> String {
        let mut out = String::new();
        if !self.has_client_io() {
            return out;
        }
        let (rd_bytes, wr_bytes, ..) = self.client_rates();
        if self.reads > 0 {
            out += &format!("{}/s rd, ", bytes(rd_bytes));
        }
        if self.writes > 0 {
            out += &format!("{}/s wr, ", bytes(wr_bytes));
        }
        out + &format!("{} op/s", si(self.rate(self.reads.max(0) + self.writes.max(0))))
    }

    /// The same as members of `map`.
    pub fn client_json_total(&self, map: &mut Map<String, Value>) {
        if !self.has_client_io() {
            return;
        }
        let (rd_bytes, wr_bytes, ..) = self.client_rates();
        if self.reads > 0 {
            map.insert("read_bytes_sec".into(), rd_bytes.into());
        }
        if self.writes > 0 {
            map.insert("write_bytes_sec".into(), wr_bytes.into());
        }
        map.insert("io_sec".into(), self.rate(self.reads.max(0) + self.writes.max(0)).into());
    }

    /// `12 MiB/s, 3 keys/s, 4 objects/s`; empty without recovery.
    pub fn recovery_text(&self) -> String {
        if !self.has_recovery() {
            return String::new();
        }
        let mut out = format!("{}/s", bytes(self.rate(self.recovered_bytes)));
        if self.recovered_keys > 0 {
            out += &format!(", {} keys/s", si(self.rate(self.recovered_keys)));
        }
        out + &format!(", {} objects/s", si(self.rate(self.recovered_objects)))
    }

    /// The same as members of `map`.
    pub fn recovery_json(&self, map: &mut Map<String, Value>) {
        if !self.has_recovery() {
            return;
        }
        map.insert("recovering_objects_per_sec".into(), self.rate(self.recovered_objects).into());
        map.insert("recovering_bytes_per_sec".into(), self.rate(self.recovered_bytes).into());
        map.insert("recovering_keys_per_sec".into(), self.rate(self.recovered_keys).into());
        map.insert("num_objects_recovered".into(), self.recovered_objects.max(0).into());
        map.insert("num_bytes_recovered".into(), self.recovered_bytes.max(0).into());
        map.insert("num_keys_recovered".into(), self.recovered_keys.max(0).into());
    }
}

/// How many copies there are of those there should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// Objects.
    pub objects: i64,
    /// Copies wanted.
    pub wanted: i64,
    /// Copies lacking.
    pub degraded: i64,
    /// Copies on OSDs they should not stay on.
    pub misplaced: i64,
    /// Objects without a good copy.
    pub unfound: i64,
}

/// One deviation: name in JSON, count, total.
type Deviation = (&'static str, i64, i64);

impl Copies {
    fn deviations(&self) -> Vec<Deviation> {
        let mut out = Vec::new();
        if self.degraded > 0 && self.wanted > 0 {
            out.push(("degraded", self.degraded, self.wanted));
        }
        if self.misplaced > 0 && self.wanted > 0 {
            out.push(("misplaced", self.misplaced, self.wanted));
        }
        if self.unfound > 0 && self.objects > 0 {
            out.push(("unfound", self.unfound, self.objects));
        }
        out
    }

    /// `3/30 objects degraded (10.000%)` and the like, one line each.
    pub fn lines(&self) -> Vec<String> {
        self.deviations().into_iter().map(|(what, n, of)| fraction_text(what, n, of)).collect()
    }

    /// The degraded line alone, if any.
    pub fn degraded_line(&self) -> Option<String> {
        (self.degraded > 0 && self.wanted > 0).then(|| fraction_text("degraded", self.degraded, self.wanted))
    }

    /// The misplaced line alone, if any.
    pub fn misplaced_line(&self) -> Option<String> {
        (self.misplaced > 0 && self.wanted > 0).then(|| fraction_text("misplaced", self.misplaced, self.wanted))
    }

    /// The unfound line alone, if any.
    pub fn unfound_line(&self) -> Option<String> {
        (self.unfound > 0 && self.objects > 0).then(|| fraction_text("unfound", self.unfound, self.objects))
    }

    /// The same as members of `map`.
    pub fn json(&self, map: &mut Map<String, Value>) {
        for (what, n, of) in self.deviations() {
            map.insert(format!("{what}_objects"), n.into());
            map.insert(format!("{what}_total"), of.into());
            // Through percent and back, as Ceph does: the last digit differs otherwise.
            let ratio = n as f64 / of as f64 * 100.0 / 100.0;
            map.insert(format!("{what}_ratio"), ratio.into());
        }
    }
}

fn fraction_text(what: &str, n: i64, of: i64) -> String {
    format!("{n}/{of} objects {what} ({:.3}%)", n as f64 / of as f64 * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_io_in_words_and_numbers() {
        let io = IoDelta { reads: 20, read_kib: 2048, writes: 5, write_kib: 20, seconds: 2.0, ..IoDelta::default() };
        assert_eq!(io.client_text(), "1 MiB/s rd, 10 KiB/s wr, 10 op/s rd, 2 op/s wr");
        assert_eq!(io.client_text_total(), "1 MiB/s rd, 10 KiB/s wr, 12 op/s");
        let mut map = Map::new();
        io.client_json(&mut map);
        assert_eq!(
            Value::from(map).to_string(),
            r#"{"read_bytes_sec":1048576,"write_bytes_sec":10240,"read_op_per_sec":10,"write_op_per_sec":2}"#
        );
    }

    #[test]
    fn idle_and_backward_counters_say_nothing() {
        assert_eq!(IoDelta::default().client_text(), "");
        let back = IoDelta { reads: -5, writes: -1, recovered_objects: -2, seconds: 1.0, ..IoDelta::default() };
        assert_eq!(back.client_text(), "");
        assert_eq!(back.recovery_text(), "");
        let no_time = IoDelta { reads: 5, ..IoDelta::default() };
        assert_eq!(no_time.client_text(), "");
    }

    #[test]
    fn recovery_in_words() {
        let io = IoDelta {
            recovered_objects: 8,
            recovered_bytes: 4 << 20,
            recovered_keys: 2,
            seconds: 2.0,
            ..IoDelta::default()
        };
        assert_eq!(io.recovery_text(), "2 MiB/s, 1 keys/s, 4 objects/s");
    }

    #[test]
    fn missing_copies() {
        let c = Copies { objects: 10, wanted: 30, degraded: 10, misplaced: 3, unfound: 1 };
        assert_eq!(
            c.lines(),
            ["10/30 objects degraded (33.333%)", "3/30 objects misplaced (10.000%)", "1/10 objects unfound (10.000%)"]
        );
        assert!(Copies::default().lines().is_empty());
    }
}
