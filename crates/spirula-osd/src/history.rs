//! The slowest of the latest requests, for `dump_historic_ops`.

use serde_json::{Value, json};
use std::collections::VecDeque;
use std::time::Duration;

/// Requests kept (Ceph's osd_op_history_size).
const KEPT: usize = 20;
/// For how long (osd_op_history_duration).
const AGE: Duration = Duration::from_secs(600);

#[derive(Debug)]
struct Done {
    description: String,
    at: Duration,
    took: Duration,
}

/// The slowest of the latest requests.
#[derive(Debug, Default)]
pub(crate) struct History {
    done: VecDeque<Done>,
}

impl History {
    /// A request was answered at `at`; `description` is made only if it is to be kept.
    pub fn note(&mut self, at: Duration, took: Duration, description: impl FnOnce() -> String) {
        while self.done.front().is_some_and(|d| at.saturating_sub(d.at) > AGE) {
            self.done.pop_front();
        }
        if self.done.len() >= KEPT {
            let fastest = self.done.iter().enumerate().min_by_key(|(_, d)| d.took);
            match fastest.map(|(i, d)| (i, d.took)) {
                Some((i, least)) if least < took => drop(self.done.remove(i)),
                _ => return,
            }
        }
        self.done.push_back(Done { description: description(), at, took });
    }

    /// As Ceph prints it.
    pub fn dump(&self) -> Value {
        let ops: Vec<Value> =
            self.done.iter().map(|d| json!({"description": d.description, "duration": d.took.as_secs_f64()})).collect();
        json!({"size": KEPT, "duration": AGE.as_secs(), "num_ops": ops.len(), "ops": ops})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_requests_stay_fast_ones_go_and_old_ones_are_forgotten() {
        let mut h = History::default();
        for i in 0..100u64 {
            h.note(Duration::from_secs(1), Duration::from_millis(i % 50), || format!("op {i}"));
        }
        let v = h.dump();
        assert_eq!(v["num_ops"], KEPT as u64);
        assert!(v["ops"].as_array().unwrap().iter().all(|o| o["duration"].as_f64().unwrap() >= 0.038));
        h.note(Duration::from_secs(1000), Duration::ZERO, || "late".to_owned());
        assert_eq!(h.dump()["num_ops"], 1);
    }
}
