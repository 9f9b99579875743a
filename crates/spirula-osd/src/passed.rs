//! Which states PGs went through, and when: `dump_pgstate_history`.
//!
//! The names are those of `ceph pg stat`, where Ceph tells those of its state machine. A PG that this OSD does not lead
//! has no state of its own: it is a `Replica`.

use serde_json::{Value, json};
use spirula_encoding::UTime;
use spirula_maps::PgState;
use spirula_types::{Epoch, SpgId};
use std::collections::{BTreeMap, VecDeque};

/// States kept of each PG; the oldest go.
const KEPT: usize = 32;

/// Where a PG stands: its state if we lead it.
pub(crate) type Stand = Option<PgState>;

/// A PG came to stand so, at this epoch and time.
#[derive(Clone, Copy, Debug)]
struct Step {
    stand: Stand,
    epoch: Epoch,
    at: UTime,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Passed(BTreeMap<SpgId, VecDeque<Step>>);

impl Passed {
    /// A PG stands so now.
    pub fn note(&mut self, id: SpgId, stand: Stand, epoch: Epoch, at: UTime) {
        let steps = self.0.entry(id).or_default();
        if steps.back().is_some_and(|last| last.stand == stand) {
            return;
        }
        if steps.len() >= KEPT {
            steps.pop_front();
        }
        steps.push_back(Step { stand, epoch, at });
    }

    /// The PG is here no more.
    pub fn forget(&mut self, id: SpgId) {
        self.0.remove(&id);
    }

    /// With Ceph's keys, of the PGs that are here, with how they stand.
    pub fn dump(&self, here: impl Iterator<Item = (SpgId, Stand)>) -> Value {
        let one = |(id, stand): (SpgId, Stand)| {
            let steps = self.0.get(&id).into_iter().flatten();
            let ends = steps.clone().skip(1).map(|next| Some(next.at)).chain([None]);
            let step = |(step, end): (&Step, Option<UTime>)| {
                let mut state = json!({"state": name(step.stand), "enter": step.at.to_iso()});
                // It stands so still, unless it does not: what ended it was no change that is noted here.
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
            passed.note(id, Some(if n % 2 == 0 { PgState::PEERING } else { PgState::ACTIVE }), 5, at(n + 4));
        }
        assert_eq!(passed.dump([(id, None)].into_iter())["pgs"][0]["history"].as_array().map(Vec::len), Some(KEPT));
        passed.forget(id);
        assert_eq!(passed.dump([(id, None)].into_iter())["pgs"][0]["history"], json!([]));
    }
}
