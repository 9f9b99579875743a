//! Which states PGs went through, and when: `dump_pgstate_history`; and how long they stood so in
//! all: `dump_pg_recovery_stats`.
//!
//! The names are those of `ceph pg stat`, where Ceph tells those of its state machine. A PG that
//! this OSD does not lead has no state of its own: it is a `Replica`.

use serde_json::{Value, json};
use spirula_encoding::UTime;
use spirula_maps::PgState;
use spirula_types::{Epoch, SpgId};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// States kept of each PG; the oldest go.
const KEPT: usize = 32;

/// So many different states are counted by themselves; what is beyond counts as `other`.
const COUNTED: usize = 128;

/// Where a PG stands: its state if we lead it.
pub(crate) type Stand = Option<PgState>;

/// A PG came to stand so, at this epoch and time.
#[derive(Clone, Copy, Debug)]
struct Step {
    stand: Stand,
    epoch: Epoch,
    at: UTime,
}

/// How often PGs came to stand so and left again, and how long those that left stood so.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    entered: u64,
    left: u64,
    total: Duration,
    min: Duration,
    max: Duration,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    steps: BTreeMap<SpgId, VecDeque<Step>>,
    /// Since the start, or since it was reset.
    spent: BTreeMap<String, Spent>,
}

impl Passed {
    /// A PG stands so now.
    pub fn note(&mut self, id: SpgId, stand: Stand, epoch: Epoch, at: UTime) {
        let steps = self.steps.entry(id).or_default();
        let last = steps.back().copied();
        if last.is_some_and(|last| last.stand == stand) {
            return;
        }
        if steps.len() >= KEPT {
            steps.pop_front();
        }
        steps.push_back(Step { stand, epoch, at });
        if let Some(last) = last {
            // The wall clock may have been set back meanwhile.
            let stood = Duration::from_nanos(at.as_nanos().saturating_sub(last.at.as_nanos()));
            // Who entered before a reset is not counted when it leaves.
            if let Some(s) = self.spent.get_mut(&name(last.stand)).filter(|s| s.left < s.entered) {
                s.min = if s.left == 0 { stood } else { s.min.min(stood) };
                (s.left, s.total, s.max) =
                    (s.left + 1, s.total.saturating_add(stood), s.max.max(stood));
            }
        }
        let name = name(stand);
        let room = self.spent.len() < COUNTED || self.spent.contains_key(&name);
        self.spent.entry(if room { name } else { "other".to_owned() }).or_default().entered += 1;
    }

    /// Counting begins anew.
    pub fn reset(&mut self) {
        self.spent.clear();
    }

    /// How long PGs stood how, with Ceph's keys but for events, which are nothing that a PG here
    /// has.
    pub fn dump_spent(&self) -> Value {
        let time = |d: Duration| format!("{}.{:06}", d.as_secs(), d.subsec_micros());
        let one = |(name, s): (&String, &Spent)| {
            let nested: Vec<&str> = ["Started"].into_iter().chain(name.split('/')).collect();
            json!({"enter": s.entered, "exit": s.left, "total_time": time(s.total), "min_time": time(s.min),
                "max_time": time(s.max), "nested_states": nested})
        };
        self.spent.iter().map(one).collect()
    }

    /// The PG is here no more.
    pub fn forget(&mut self, id: SpgId) {
        self.steps.remove(&id);
    }

    /// With Ceph's keys, of the PGs that are here, with how they stand.
    pub fn dump(&self, here: impl Iterator<Item = (SpgId, Stand)>) -> Value {
        let one = |(id, stand): (SpgId, Stand)| {
            let steps = self.steps.get(&id).into_iter().flatten();
            let ends = steps.clone().skip(1).map(|next| Some(next.at)).chain([None]);
            let step = |(step, end): (&Step, Option<UTime>)| {
                let mut state = json!({"state": name(step.stand), "enter": step.at.to_iso()});
                // It stands so still, unless it does not: what ended it was no change that is noted
                // here.
                if let Some(end) = end {
                    state["exit"] = end.to_iso().into();
                }
                json!({"epoch": step.epoch.to_string(), "states": [state]})
            };
            json!({"pg": id.to_string(), "currently": name(stand), "history": steps.zip(ends).map(step).collect::<Value>()})
        };
        json!({ "pgs": here.map(one).collect::<Value>() })
    }
}

fn name(stand: Stand) -> String {
    stand.map_or_else(|| "Replica".to_owned(), |state| format!("Primary/{state}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_types::PgId;

    #[test]
    fn what_was_stood_is_summed_by_state_until_it_is_reset() {
        let (a, b) = (SpgId::new(PgId::new(1, 0), -1), SpgId::new(PgId::new(1, 1), -1));
        let (mut passed, at) = (Passed::default(), |ms: u64| UTime::from_nanos(ms * 1_000_000));
        for (id, from) in [(a, 0), (b, 100)] {
            passed.note(id, Some(PgState::PEERING), 3, at(from));
            passed.note(id, Some(PgState::ACTIVE), 3, at(from * 2 + 50));
        }
        let told = passed.dump_spent();
        let of = |told: &Value, last: &str| {
            told.as_array()
                .unwrap()
                .iter()
                .find(|r| r["nested_states"][2] == last)
                .cloned()
                .unwrap_or_default()
        };
        let peering = of(&told, "peering");
        assert_eq!((&peering["enter"], &peering["exit"]), (&json!(2), &json!(2)), "{told}");
        assert_eq!(
            (&peering["total_time"], &peering["max_time"]),
            (&json!("0.200000"), &json!("0.150000"))
        );
        assert_eq!(peering["min_time"], "0.050000");
        assert_eq!(
            (&of(&told, "active")["enter"], &of(&told, "active")["exit"]),
            (&json!(2), &json!(0))
        );
        passed.reset();
        assert_eq!(passed.dump_spent(), json!([]));
        passed.note(a, None, 4, at(900));
        let told = passed.dump_spent();
        assert_eq!((told.as_array().unwrap().len(), &told[0]["enter"]), (1, &json!(1)), "{told}");
        assert_eq!(told[0]["nested_states"], json!(["Started", "Replica"]));
    }

    #[test]
    fn each_state_is_told_once_with_when_it_ended_and_old_ones_go() {
        let id = SpgId::new(PgId::new(1, 0), -1);
        let (mut passed, at) = (Passed::default(), |n: u64| UTime::from_nanos(n * 1_000_000_000));
        passed.note(id, Some(PgState::PEERING), 3, at(1));
        passed.note(id, Some(PgState::PEERING), 4, at(2));
        passed.note(id, Some(PgState::ACTIVE), 4, at(3));
        let told = passed.dump([(id, None)].into_iter());
        let pg = &told["pgs"][0];
        assert_eq!((&pg["pg"], &pg["currently"]), (&json!("1.0"), &json!("Replica")));
        assert_eq!(pg["history"].as_array().map(Vec::len), Some(2), "{pg}");
        assert_eq!(pg["history"][0]["epoch"], "3");
        assert_eq!(pg["history"][0]["states"][0]["exit"], pg["history"][1]["states"][0]["enter"]);
        assert!(pg["history"][1]["states"][0].get("exit").is_none(), "{pg}");
        for n in 0..200 {
            passed.note(
                id,
                Some(if n % 2 == 0 { PgState::PEERING } else { PgState::ACTIVE }),
                5,
                at(n + 4),
            );
        }
        assert_eq!(
            passed.dump([(id, None)].into_iter())["pgs"][0]["history"].as_array().map(Vec::len),
            Some(KEPT)
        );
        passed.forget(id);
        assert_eq!(passed.dump([(id, None)].into_iter())["pgs"][0]["history"], json!([]));
    }
}
