//! Requests as operators see them: those under way (`dump_ops_in_flight`, `dump_blocked_ops`) and the slowest of the
//! latest (`dump_historic_ops` and its kin), with Ceph's keys.

use serde_json::{Value, json};
use spirula_encoding::UTime;
use std::collections::VecDeque;
use std::time::Duration;

/// Requests kept (Ceph's osd_op_history_size).
const KEPT: usize = 20;
/// For how long (osd_op_history_duration).
const AGE: Duration = Duration::from_secs(600);

/// A request of `dump_historic_slow_ops` took this long at least (osd_op_history_slow_op_threshold).
const SLOW: Duration = Duration::from_secs(10);
/// A request under way for longer is blocked (osd_op_complaint_time).
const COMPLAINT: Duration = Duration::from_secs(30);

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    /// What it asks for.
    pub description: String,
    /// Who asks: `client.4140`.
    pub client: String,
    /// From where.
    pub addr: String,
    /// The client's number for it.
    pub tid: u64,
}

impl Shown {
    /// As Ceph prints it: begun `age` before `wall`, worked on for `took`, where it stands.
    fn json(&self, wall: UTime, age: Duration, took: Duration, stands: &str, end: Option<&str>) -> Value {
        let begun = before(wall, age);
        let mut events = vec![json!({"event": "initiated", "time": begun, "duration": 0.0})];
        if let Some(end) = end {
            let at = before(wall, age.saturating_sub(took));
            events.push(json!({"event": end, "time": at, "duration": took.as_secs_f64()}));
        }
        json!({
            "description": self.description, "initiated_at": begun, "age": age.as_secs_f64(),
            "duration": took.as_secs_f64(),
            "type_data": {
                "flag_point": stands,
                "client_info": {"client": self.client, "client_addr": self.addr, "tid": self.tid},
                "events": events,
            },
        })
    }
}

/// The instant `ago` before `wall`, in words.
fn before(wall: UTime, ago: Duration) -> String {
    UTime::from_nanos(wall.as_nanos().saturating_sub(u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX))).to_iso()
}

/// A request that is not answered yet.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub op: Shown,
    pub age: Duration,
    /// Where it stands, in words.
    pub stands: &'static str,
}

impl Open {
    fn json(&self, wall: UTime) -> Value {
        self.op.json(wall, self.age, self.age, self.stands, None)
    }
}

/// The requests under way.
pub(crate) fn under_way(wall: UTime, ops: &[Open]) -> Value {
    let rows: Vec<Value> = ops.iter().map(|o| o.json(wall)).collect();
    json!({"ops": rows, "num_ops": rows.len()})
}

/// Those of them that take suspiciously long.
pub(crate) fn blocked(wall: UTime, ops: &[Open]) -> Value {
    let late = ops.iter().filter(|o| o.age >= COMPLAINT);
    let rows: Vec<Value> = late.map(|o| o.json(wall)).collect();
    json!({"ops": rows, "complaint_time": COMPLAINT.as_secs(), "num_blocked_ops": rows.len()})
}

#[derive(Debug)]
struct Done {
    op: Shown,
    at: Duration,
    took: Duration,
}

/// The slowest of the latest requests.
#[derive(Debug, Default)]
pub(crate) struct History {
    done: VecDeque<Done>,
}

impl History {
    /// A request was answered at `at`; `op` is made only if it is to be kept.
    pub fn note(&mut self, at: Duration, took: Duration, op: impl FnOnce() -> Shown) {
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
        self.done.push_back(Done { op: op(), at, took });
    }

    fn rows(&self, now: Duration, wall: UTime, done: &[&Done]) -> Vec<Value> {
        let row = |d: &&Done| {
            d.op.json(wall, now.saturating_sub(d.at) + d.took, d.took, "commit sent; apply or cleanup", Some("done"))
        };
        done.iter().map(row).collect()
    }

    /// As `dump_historic_ops` prints it, the oldest first; or the slowest first. `now` and `wall` are the same instant.
    pub fn dump(&self, now: Duration, wall: UTime, by_duration: bool) -> Value {
        let mut done: Vec<&Done> = self.done.iter().collect();
        if by_duration {
            done.sort_by_key(|d| std::cmp::Reverse(d.took));
        }
        json!({"size": KEPT, "duration": AGE.as_secs(), "ops": self.rows(now, wall, &done)})
    }

    /// As `dump_historic_slow_ops` prints it.
    pub fn dump_slow(&self, now: Duration, wall: UTime) -> Value {
        let slow: Vec<&Done> = self.done.iter().filter(|d| d.took >= SLOW).collect();
        json!({"num to keep": KEPT, "threshold to keep": SLOW.as_secs(), "Ops": self.rows(now, wall, &slow)})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(description: String) -> Shown {
        Shown { description, client: "client.7".to_owned(), addr: "v1:1.2.3.4:0/5".to_owned(), tid: 3 }
    }

    /// Keys, and the times of one request that took 12 s and ended 3 s ago.
    #[test]
    fn requests_have_cephs_keys_and_their_times() {
        let mut h = History::default();
        h.note(Duration::from_secs(100), Duration::from_secs(12), || op("slow".to_owned()));
        h.note(Duration::from_secs(101), Duration::from_secs(1), || op("quick".to_owned()));
        let (now, wall) = (Duration::from_secs(103), UTime { sec: 1_000_000, nsec: 0 });
        let all = h.dump(now, wall, false);
        let slow = &all["ops"][0];
        assert_eq!((slow["age"].as_f64(), slow["duration"].as_f64()), (Some(15.0), Some(12.0)));
        assert_eq!(slow["initiated_at"], UTime { sec: 999_985, nsec: 0 }.to_iso());
        assert_eq!(slow["type_data"]["client_info"]["client"], "client.7");
        assert_eq!(slow["type_data"]["events"][1]["time"], UTime { sec: 999_997, nsec: 0 }.to_iso());
        assert_eq!(h.dump(now, wall, true)["ops"][0]["description"], "slow");
        let kept = h.dump_slow(now, wall);
        assert_eq!((kept["Ops"].as_array().unwrap().len(), kept["threshold to keep"].as_u64()), (1, Some(10)));
        let open = [("a", 40), ("b", 1)].map(|(name, age)| Open {
            op: op(name.to_owned()),
            age: Duration::from_secs(age),
            stands: "started",
        });
        assert_eq!(under_way(wall, &open)["num_ops"], 2);
        let held = blocked(wall, &open);
        assert_eq!((held["num_blocked_ops"].as_u64(), held["ops"][0]["description"].as_str()), (Some(1), Some("a")));
    }

    #[test]
    fn slow_requests_stay_fast_ones_go_and_old_ones_are_forgotten() {
        let mut h = History::default();
        for i in 0..100u64 {
            h.note(Duration::from_secs(1), Duration::from_millis(i % 50), || op(format!("op {i}")));
        }
        let v = h.dump(Duration::from_secs(1), UTime { sec: 9, nsec: 0 }, false);
        assert_eq!(v["ops"].as_array().unwrap().len(), KEPT);
        assert!(v["ops"].as_array().unwrap().iter().all(|o| o["duration"].as_f64().unwrap() >= 0.038));
        h.note(Duration::from_secs(1000), Duration::ZERO, || op("late".to_owned()));
        assert_eq!(
            h.dump(Duration::from_secs(1000), UTime { sec: 9, nsec: 0 }, false)["ops"].as_array().unwrap().len(),
            1
        );
    }
}
