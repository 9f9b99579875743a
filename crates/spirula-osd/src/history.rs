//! Requests as operators see them: those under way (`dump_ops_in_flight`, `dump_blocked_ops`) and
//! the slowest of the latest (`dump_historic_ops` and its kin), with Ceph's keys, and the phases of
//! each ([`Phase`]) as its events.
//!
//! A PG tells of each phase that a request comes into; the shell, which has the clock, notes when
//! ([`Trail`]). Ceph's words stand for what is the same there.

use serde_json::{Value, json};
use spirula_encoding::UTime;
use spirula_pg::Phase;
use spirula_types::OsdId;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::Duration;

/// Requests kept (Ceph's osd_op_history_size).
const KEPT: usize = 20;
/// For how long (osd_op_history_duration).
const AGE: Duration = Duration::from_secs(600);

/// A request of `dump_historic_slow_ops` took this long at least
/// (osd_op_history_slow_op_threshold).
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

/// Steps kept of a request. One with more has waited often: its newest step then takes the place of
/// the one before.
const STEPS: usize = 40;

/// The phases that a request went through in its PG, and when it came into each (monotonic clock).
#[derive(Clone, Debug, Default)]
pub(crate) struct Trail(Vec<(Phase, Duration)>);

impl Trail {
    /// The request came into a phase.
    pub fn note(&mut self, phase: Phase, at: Duration) {
        let full = self.0.len() >= STEPS;
        match self.0.last_mut() {
            Some((last, _)) if *last == phase => {}
            Some(last) if full => *last = (phase, at),
            _ => self.0.push((phase, at)),
        }
    }

    /// The phase in which it is, or was last.
    pub fn phase(&self) -> Phase {
        self.0.last().map_or(Phase::Arrived, |(phase, _)| *phase)
    }

    fn events(&self) -> Vec<(Cow<'static, str>, Duration)> {
        self.0.iter().map(|(phase, at)| (event(*phase).into(), *at)).collect()
    }
}

/// A phase in Ceph's words for events, where it has any.
fn event(phase: Phase) -> &'static str {
    match phase {
        Phase::Arrived => "reached_pg",
        Phase::Map => "wait for new map",
        Phase::Peered => "waiting for peered",
        Phase::Active => "waiting for active",
        Phase::Paused => "waiting for the end of a pause",
        Phase::Turn => "waiting for rw locks",
        Phase::Missing | Phase::Clone => "waiting for missing object",
        Phase::Degraded => "waiting for degraded object",
        Phase::Scrub => "waiting for scrub",
        Phase::Merge => "waiting for the merge of its pg",
        Phase::Lease => "waiting for readable",
        Phase::Read => "waiting for what is read for it",
        Phase::Copy => "waiting for the object that it copies",
        Phase::Execute => "started",
        Phase::Commit => "waiting for subops",
    }
}

impl Shown {
    /// As Ceph prints it. `begun` and the times of the events are on the clock of `now`, which is
    /// the same instant as `wall`; `ended`: when it was done, unless it is under way. An event
    /// lasts until the next; at the last one stands how long all took.
    fn json(
        &self,
        (now, wall): (Duration, UTime),
        begun: Duration,
        mut events: Vec<(Cow<'static, str>, Duration)>,
        stands: &str,
        ended: Option<Duration>,
    ) -> Value {
        events.insert(0, ("initiated".into(), begun));
        events.extend(ended.map(|at| ("done".into(), at)));
        let took = ended.unwrap_or(now).saturating_sub(begun);
        let ends = events.iter().skip(1).map(|(_, at)| Some(*at)).chain([None]);
        let row = |((event, at), end): (&(Cow<'static, str>, Duration), Option<Duration>)| {
            let lasted = end.map_or(took, |end| end.saturating_sub(*at));
            json!({"event": event, "time": before(wall, now.saturating_sub(*at)), "duration": lasted.as_secs_f64()})
        };
        let rows: Vec<Value> = events.iter().zip(ends).map(row).collect();
        json!({
            "description": self.description, "initiated_at": before(wall, now.saturating_sub(begun)),
            "age": now.saturating_sub(begun).as_secs_f64(), "duration": took.as_secs_f64(),
            "type_data": {
                "flag_point": stands,
                "client_info": {"client": self.client, "client_addr": self.addr, "tid": self.tid},
                "events": rows,
            },
        })
    }
}

/// The instant `ago` before `wall`, in words.
fn before(wall: UTime, ago: Duration) -> String {
    UTime::from_nanos(
        wall.as_nanos().saturating_sub(u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX)),
    )
    .to_iso()
}

/// A request that is not answered yet.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    op: Shown,
    begun: Duration,
    events: Vec<(Cow<'static, str>, Duration)>,
    /// Where it stands, in words.
    stands: Cow<'static, str>,
}

impl Open {
    /// A request in its PG. `awaited`: who has not made it durable, in [`Phase::Commit`].
    pub fn in_pg(op: Shown, begun: Duration, trail: &Trail, awaited: &[OsdId]) -> Self {
        let mut events = trail.events();
        let stands = match trail.phase() {
            Phase::Arrived => "reached pg".into(),
            Phase::Commit => "waiting for sub ops".into(),
            phase => event(phase).into(),
        };
        if let Some((last, _)) = events.last_mut().filter(|_| !awaited.is_empty()) {
            let whom: Vec<String> = awaited.iter().map(ToString::to_string).collect();
            *last = format!("{last} from {}", whom.join(",")).into();
        }
        Self { op, begun, events, stands }
    }

    /// A request that waits for something before its PG is told of it; nobody notes since when.
    pub fn kept(op: Shown, now: Duration, what_for: &'static str) -> Self {
        Self { op, begun: now, events: vec![(what_for.into(), now)], stands: what_for.into() }
    }

    fn json(&self, now: Duration, wall: UTime) -> Value {
        self.op.json((now, wall), self.begun, self.events.clone(), &self.stands, None)
    }
}

/// The requests under way.
pub(crate) fn under_way(now: Duration, wall: UTime, ops: &[Open]) -> Value {
    let rows: Vec<Value> = ops.iter().map(|o| o.json(now, wall)).collect();
    json!({"ops": rows, "num_ops": rows.len()})
}

/// Those of them that take suspiciously long.
pub(crate) fn blocked(now: Duration, wall: UTime, ops: &[Open]) -> Value {
    let late = ops.iter().filter(|o| now.saturating_sub(o.begun) >= COMPLAINT);
    let rows: Vec<Value> = late.map(|o| o.json(now, wall)).collect();
    json!({"ops": rows, "complaint_time": COMPLAINT.as_secs(), "num_blocked_ops": rows.len()})
}

#[derive(Debug)]
struct Done {
    op: Shown,
    at: Duration,
    took: Duration,
    trail: Trail,
}

/// The slowest of the latest requests.
#[derive(Debug, Default)]
pub(crate) struct History {
    done: VecDeque<Done>,
}

impl History {
    /// A request was answered at `at`; `op` is made only if it is to be kept.
    pub fn note(&mut self, at: Duration, took: Duration, trail: Trail, op: impl FnOnce() -> Shown) {
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
        self.done.push_back(Done { op: op(), at, took, trail });
    }

    fn rows(&self, now: Duration, wall: UTime, done: &[&Done]) -> Vec<Value> {
        let row = |d: &&Done| {
            let mut events = d.trail.events();
            let stands = match d.trail.phase() {
                Phase::Commit => {
                    events.push(("commit_sent".into(), d.at));
                    "commit sent; apply or cleanup"
                }
                Phase::Execute => "started",
                _ => "reached pg",
            };
            d.op.json((now, wall), d.at.saturating_sub(d.took), events, stands, Some(d.at))
        };
        done.iter().map(row).collect()
    }

    /// As `dump_historic_ops` prints it, the oldest first; or the slowest first. `now` and `wall`
    /// are the same instant.
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
        Shown {
            description,
            client: "client.7".to_owned(),
            addr: "v1:1.2.3.4:0/5".to_owned(),
            tid: 3,
        }
    }

    /// Keys, and the times of one request that took 12 s and ended 3 s ago.
    #[test]
    fn requests_have_cephs_keys_and_their_times() {
        let mut h = History::default();
        let secs = Duration::from_secs;
        let mut trail = Trail::default();
        let steps =
            [(Phase::Peered, 89), (Phase::Peered, 90), (Phase::Execute, 98), (Phase::Commit, 99)];
        steps.into_iter().for_each(|(phase, at)| trail.note(phase, secs(at)));
        h.note(secs(100), secs(12), trail.clone(), || op("slow".to_owned()));
        h.note(secs(101), secs(1), Trail::default(), || op("quick".to_owned()));
        let (now, wall) = (secs(103), UTime { sec: 1_000_000, nsec: 0 });
        let all = h.dump(now, wall, false);
        let slow = &all["ops"][0];
        assert_eq!((slow["age"].as_f64(), slow["duration"].as_f64()), (Some(15.0), Some(12.0)));
        assert_eq!(slow["initiated_at"], UTime { sec: 999_985, nsec: 0 }.to_iso());
        let told = &slow["type_data"];
        assert_eq!(
            (&told["client_info"]["client"], &told["flag_point"]),
            (&json!("client.7"), &json!("commit sent; apply or cleanup"))
        );
        let events = |op: &Value| -> Vec<(String, f64)> {
            let row = |e: &Value| {
                (e["event"].as_str().unwrap().to_owned(), e["duration"].as_f64().unwrap())
            };
            op["type_data"]["events"].as_array().unwrap().iter().map(row).collect()
        };
        let expected = [
            ("initiated", 1.0),
            ("waiting for peered", 9.0),
            ("started", 1.0),
            ("waiting for subops", 1.0),
            ("commit_sent", 0.0),
            ("done", 12.0),
        ];
        assert_eq!(events(slow), expected.map(|(e, d)| (e.to_owned(), d)));
        assert_eq!(told["events"][5]["time"], UTime { sec: 999_997, nsec: 0 }.to_iso());
        assert_eq!(all["ops"][1]["type_data"]["flag_point"], "reached pg");
        assert_eq!(h.dump(now, wall, true)["ops"][0]["description"], "slow");
        let kept = h.dump_slow(now, wall);
        assert_eq!(
            (kept["Ops"].as_array().unwrap().len(), kept["threshold to keep"].as_u64()),
            (1, Some(10))
        );
        let open = [("a", 63, &[1, 2][..]), ("b", 102, &[])];
        let open = open.map(|(name, begun, awaited)| {
            Open::in_pg(op(name.to_owned()), secs(begun), &trail, awaited)
        });
        let flying = under_way(now, wall, &open);
        assert_eq!(flying["num_ops"], 2);
        assert_eq!(flying["ops"][0]["type_data"]["flag_point"], "waiting for sub ops");
        assert_eq!(
            events(&flying["ops"][0])[3],
            ("waiting for subops from 1,2".to_owned(), 40.0),
            "so long in all"
        );
        let held = blocked(now, wall, &open);
        assert_eq!(
            (held["num_blocked_ops"].as_u64(), held["ops"][0]["description"].as_str()),
            (Some(1), Some("a"))
        );
    }

    #[test]
    fn a_request_that_waits_again_and_again_keeps_few_steps_and_the_newest() {
        let mut trail = Trail::default();
        for i in 0..1000 {
            trail.note(if i % 2 == 0 { Phase::Read } else { Phase::Turn }, Duration::from_secs(i));
        }
        assert_eq!(
            (trail.0.len(), trail.0.last()),
            (STEPS, Some(&(Phase::Turn, Duration::from_secs(999))))
        );
    }

    #[test]
    fn slow_requests_stay_fast_ones_go_and_old_ones_are_forgotten() {
        let mut h = History::default();
        for i in 0..100u64 {
            h.note(Duration::from_secs(1), Duration::from_millis(i % 50), Trail::default(), || {
                op(format!("op {i}"))
            });
        }
        let v = h.dump(Duration::from_secs(1), UTime { sec: 9, nsec: 0 }, false);
        assert_eq!(v["ops"].as_array().unwrap().len(), KEPT);
        assert!(
            v["ops"].as_array().unwrap().iter().all(|o| o["duration"].as_f64().unwrap() >= 0.038)
        );
        h.note(Duration::from_secs(1000), Duration::ZERO, Trail::default(), || {
            op("late".to_owned())
        });
        assert_eq!(
            h.dump(Duration::from_secs(1000), UTime { sec: 9, nsec: 0 }, false)["ops"]
                .as_array()
                .unwrap()
                .len(),
            1
        );
    }
}
