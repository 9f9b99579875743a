//! What clients and recovery are doing, in Ceph's words: shared by `status`, `pg stat`,
//! `osd pool stats`.

use crate::units::{bytes, si};
use serde_json::{Map, Value};

/// Work per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoRates {
    /// Clients' bytes read.
    pub read_bytes: u64,
    /// Clients' bytes written.
    pub write_bytes: u64,
    /// Clients' reads.
    pub reads: u64,
    /// Clients' writes.
    pub writes: u64,
    /// Bytes recovered.
    pub recovered_bytes: u64,
    /// Objects recovered.
    pub recovered_objects: u64,
    /// Omap keys recovered.
    pub recovered_keys: u64,
}

impl IoRates {
    /// True if clients did anything.
    pub fn has_client_io(&self) -> bool {
        self.read_bytes | self.write_bytes | self.reads | self.writes != 0
    }

    /// True if anything was recovered.
    pub fn has_recovery(&self) -> bool {
        self.recovered_bytes | self.recovered_objects | self.recovered_keys != 0
    }

    fn throughput_text(&self) -> String {
        let mut out = String::new();
        if self.read_bytes | self.reads != 0 {
            out += &format!("{}/s rd, ", bytes(self.read_bytes));
        }
        if self.write_bytes | self.writes != 0 {
            out += &format!("{}/s wr, ", bytes(self.write_bytes));
        }
        out
    }

    fn throughput_json(&self, map: &mut Map<String, Value>) {
        if self.read_bytes | self.reads != 0 {
            map.insert("read_bytes_sec".into(), self.read_bytes.into());
        }
        if self.write_bytes | self.writes != 0 {
            map.insert("write_bytes_sec".into(), self.write_bytes.into());
        }
    }

    /// `1.2 MiB/s rd, 3 KiB/s wr, 10 op/s rd, 2 op/s wr`; empty when idle.
    pub fn client_text(&self) -> String {
        if !self.has_client_io() {
            return String::new();
        }
        format!("{}{} op/s rd, {} op/s wr", self.throughput_text(), si(self.reads), si(self.writes))
    }

    /// The same as members of `map`.
    pub fn client_json(&self, map: &mut Map<String, Value>) {
        if !self.has_client_io() {
            return;
        }
        self.throughput_json(map);
        map.insert("read_op_per_sec".into(), self.reads.into());
        map.insert("write_op_per_sec".into(), self.writes.into());
    }

    /// The form of `pg stat`: `1.2 MiB/s rd, 3 KiB/s wr, 12 op/s`.
    pub fn client_text_total(&self) -> String {
        if !self.has_client_io() {
            return String::new();
        }
        format!("{}{} op/s", self.throughput_text(), si(self.reads.saturating_add(self.writes)))
    }

    /// The same as members of `map`.
    pub fn client_json_total(&self, map: &mut Map<String, Value>) {
        if !self.has_client_io() {
            return;
        }
        self.throughput_json(map);
        map.insert("io_sec".into(), self.reads.saturating_add(self.writes).into());
    }

    /// `12 MiB/s, 3 keys/s, 4 objects/s`; empty without recovery.
    pub fn recovery_text(&self) -> String {
        if !self.has_recovery() {
            return String::new();
        }
        let mut out = format!("{}/s", bytes(self.recovered_bytes));
        if self.recovered_keys > 0 {
            out += &format!(", {} keys/s", si(self.recovered_keys));
        }
        out + &format!(", {} objects/s", si(self.recovered_objects))
    }

    /// The same as members of `map`; the totals are those of one second.
    pub fn recovery_json(&self, map: &mut Map<String, Value>) {
        if !self.has_recovery() {
            return;
        }
        map.insert("recovering_objects_per_sec".into(), self.recovered_objects.into());
        map.insert("recovering_bytes_per_sec".into(), self.recovered_bytes.into());
        map.insert("recovering_keys_per_sec".into(), self.recovered_keys.into());
        map.insert("num_objects_recovered".into(), self.recovered_objects.into());
        map.insert("num_bytes_recovered".into(), self.recovered_bytes.into());
        map.insert("num_keys_recovered".into(), self.recovered_keys.into());
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
        (self.degraded > 0 && self.wanted > 0)
            .then(|| fraction_text("degraded", self.degraded, self.wanted))
    }

    /// The misplaced line alone, if any.
    pub fn misplaced_line(&self) -> Option<String> {
        (self.misplaced > 0 && self.wanted > 0)
            .then(|| fraction_text("misplaced", self.misplaced, self.wanted))
    }

    /// The unfound line alone, if any.
    pub fn unfound_line(&self) -> Option<String> {
        (self.unfound > 0 && self.objects > 0)
            .then(|| fraction_text("unfound", self.unfound, self.objects))
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
        let io = IoRates {
            reads: 10,
            read_bytes: 1 << 20,
            writes: 2,
            write_bytes: 10 << 10,
            ..IoRates::default()
        };
        assert_eq!(io.client_text(), "1 MiB/s rd, 10 KiB/s wr, 10 op/s rd, 2 op/s wr");
        assert_eq!(io.client_text_total(), "1 MiB/s rd, 10 KiB/s wr, 12 op/s");
        let mut map = Map::new();
        io.client_json(&mut map);
        assert_eq!(
            Value::from(map).to_string(),
            r#"{"read_bytes_sec":1048576,"write_bytes_sec":10240,"read_op_per_sec":10,"write_op_per_sec":2}"#
        );
        // A real cluster under a write load.
        let io = IoRates { writes: 345, write_bytes: 22_613_475, ..IoRates::default() };
        assert_eq!(io.client_text(), "22 MiB/s wr, 0 op/s rd, 345 op/s wr");
        assert_eq!(io.client_text_total(), "22 MiB/s wr, 345 op/s");
    }

    #[test]
    fn idle_says_nothing() {
        assert_eq!(IoRates::default().client_text(), "");
        assert_eq!(IoRates::default().client_text_total(), "");
        assert_eq!(IoRates::default().recovery_text(), "");
    }

    #[test]
    fn recovery_in_words() {
        let io = IoRates {
            recovered_objects: 4,
            recovered_bytes: 2 << 20,
            recovered_keys: 1,
            ..IoRates::default()
        };
        assert_eq!(io.recovery_text(), "2 MiB/s, 1 keys/s, 4 objects/s");
    }

    #[test]
    fn missing_copies() {
        let c = Copies { objects: 10, wanted: 30, degraded: 10, misplaced: 3, unfound: 1 };
        assert_eq!(
            c.lines(),
            [
                "10/30 objects degraded (33.333%)",
                "3/30 objects misplaced (10.000%)",
                "1/10 objects unfound (10.000%)"
            ]
        );
        assert!(Copies::default().lines().is_empty());
    }
}
