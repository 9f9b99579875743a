//! `mon scrub`: do all monitors hold the same state?
//!
//! Monitors apply the same entries in the same order, so after an entry their states are the same,
//! to the byte. Where they are not, memory or program is at fault, and nobody sees it before
//! somebody asks the monitor that is wrong. So the leader names the entry that it has applied last,
//! and what each table of its state comes to then. Every other monitor compares when it has applied
//! that entry, and says which tables differ; one that is past it says that, and all are asked about
//! a newer one. What came of it is in the cluster log, as with Ceph.

use crate::event::MonEffect;
use crate::mon::Mon;
use crate::state::State;
use spirula_encoding::crc::crc32c;
use spirula_messages::Body;
use spirula_messages::ceph::log::severity;
use spirula_messages::cluster::quorum::{MonScrub, MonScrubbed};
use spirula_quorum::MemberId;
use std::collections::{BTreeMap, BTreeSet};

/// Rows and checksum of each table.
type Sums = BTreeMap<String, (u64, u64)>;

/// Ticks for which an answer is awaited.
const PATIENCE: u64 = 50;
/// Entries that are named one after the other where others are past them.
const ENTRIES: u32 = 20;

/// What a monitor knows of scrubs.
#[derive(Debug, Default)]
pub(crate) struct Scrubs {
    /// At the leader: the one that it asked for.
    running: Option<Running>,
    /// Elsewhere: the leader's sums after an entry that is not applied yet.
    asked: Option<(MemberId, MonScrub)>,
    /// What is to be said in the cluster log.
    said: Vec<(u16, String)>,
}

#[derive(Debug)]
struct Running {
    index: u64,
    sums: Sums,
    /// Who has not answered.
    waits: BTreeSet<MemberId>,
    /// Which tables differ at whom.
    differs: BTreeMap<String, Vec<String>>,
    agree: Vec<String>,
    since: u64,
    entries: u32,
}

/// What a state comes to, by table.
pub(crate) fn sums(state: &State) -> Sums {
    let mut sums = Sums::new();
    for (key, value) in state.to_txn().ops {
        let table = key.split('/').next().unwrap_or_default();
        let (rows, sum) = sums.entry(table.to_owned()).or_insert((0, u64::from(u32::MAX)));
        // Rows come in the order of their keys. Both lengths are in it, so that no byte can be of
        // one or the other.
        let mut crc = *sum as u32;
        for part in [key.as_bytes(), value.as_deref().unwrap_or_default()] {
            crc = crc32c(crc, &(part.len() as u64).to_le_bytes());
            crc = crc32c(crc, part);
        }
        (*rows, *sum) = (*rows + 1, u64::from(crc));
    }
    sums
}

/// The tables in which two states differ.
fn differing(a: &Sums, b: &Sums) -> Vec<String> {
    let tables: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    tables.into_iter().filter(|t| a.get(*t) != b.get(*t)).cloned().collect()
}

impl Mon {
    /// The leader begins a scrub; one under way is given up.
    pub(crate) fn begin_scrub(&mut self, out: &mut Vec<MonEffect>) {
        self.scrub_after(0, out);
    }

    fn scrub_after(&mut self, entries: u32, out: &mut Vec<MonEffect>) {
        let others = self.others();
        let (index, sums) = (self.applied(), sums(&self.state));
        let ask = MonScrub { index, tables: sums.clone() };
        for m in &others {
            self.send_member(*m, ask.clone().into_message(0), out);
        }
        let agree = vec![self.name.clone()];
        let (waits, differs) = (others.into_iter().collect(), BTreeMap::new());
        self.scrubs.running =
            Some(Running { index, sums, waits, differs, agree, since: self.ticks(), entries });
        self.end_scrub(false);
    }

    /// The leader asks what the state comes to.
    pub(crate) fn on_scrub(&mut self, leader: MemberId, ask: MonScrub, out: &mut Vec<MonEffect>) {
        self.scrubs.asked = Some((leader, ask));
        self.answer_scrub(out);
    }

    /// Answers if the entry that was asked about is applied.
    pub(crate) fn answer_scrub(&mut self, out: &mut Vec<MonEffect>) {
        let applied = self.applied();
        let Some((leader, ask)) = self.scrubs.asked.take_if(|(_, ask)| ask.index <= applied) else {
            return;
        };
        let past = ask.index < applied;
        let differ = if past { Vec::new() } else { differing(&ask.tables, &sums(&self.state)) };
        self.send_member(
            leader,
            MonScrubbed { index: ask.index, past, differ }.into_message(0),
            out,
        );
    }

    /// Another monitor has compared.
    pub(crate) fn on_scrubbed(
        &mut self,
        member: MemberId,
        name: &str,
        m: MonScrubbed,
        out: &mut Vec<MonEffect>,
    ) {
        let Some(s) = self
            .scrubs
            .running
            .as_mut()
            .filter(|s| s.index == m.index && s.waits.contains(&member))
        else {
            return;
        };
        if m.past && s.entries < ENTRIES {
            let entries = s.entries + 1;
            return self.scrub_after(entries, out);
        }
        if !m.past {
            s.waits.remove(&member);
            match m.differ.is_empty() {
                true => s.agree.push(name.to_owned()),
                false => drop(s.differs.insert(name.to_owned(), m.differ)),
            }
        }
        self.end_scrub(m.past);
    }

    /// Ends a scrub that all have answered, or that has waited long enough.
    pub(crate) fn tick_scrub(&mut self) {
        if !self.q.leads() {
            self.scrubs.running = None;
            return self.scrubs.said.clear();
        }
        self.scrubs.asked = None;
        let now = self.ticks();
        let late =
            self.scrubs.running.as_ref().is_some_and(|s| now.saturating_sub(s.since) >= PATIENCE);
        if late {
            self.end_scrub(true);
        }
    }

    fn end_scrub(&mut self, anyhow: bool) {
        let Some(s) = self.scrubs.running.take_if(|s| anyhow || s.waits.is_empty()) else { return };
        let of = |what: fn(&(u64, u64)) -> u64| {
            let all: Vec<String> =
                s.sums.iter().map(|(table, sum)| format!("{table}={}", what(sum))).collect();
            all.join(",")
        };
        let (keys, sums) = (of(|s| s.0), of(|s| s.1));
        let mut agree = s.agree;
        agree.sort();
        let mut said = Vec::new();
        if s.differs.is_empty() {
            let line = format!(
                "scrub ok on {}: ScrubResult(keys {{{keys}}} crc {{{sums}}})",
                agree.join(",")
            );
            said.push((severity::INFO, line));
        } else {
            said.push((severity::ERROR, "scrub mismatch".to_owned()));
            let leader = format!(" mon.{} ScrubResult(keys {{{keys}}} crc {{{sums}}})", self.name);
            said.push((severity::ERROR, leader));
        }
        for (name, tables) in &s.differs {
            said.push((severity::ERROR, format!(" mon.{name} differs in {}", tables.join(", "))));
        }
        let silent: Vec<String> =
            s.waits.iter().filter_map(|m| Some(self.state.members.get(m)?.name.clone())).collect();
        if !silent.is_empty() {
            said.push((
                severity::WARN,
                format!("scrub: no answer from mon.{}", silent.join(", mon.")),
            ));
        }
        self.scrubs.said.extend(said);
    }

    /// What is to be said of scrubs in the cluster log.
    pub(crate) fn take_scrub_lines(&mut self) -> Vec<(u16, String)> {
        std::mem::take(&mut self.scrubs.said)
    }

    /// What is to be said, where that cannot be done now.
    pub(crate) fn scrub_lines(&mut self) -> &mut Vec<(u16, String)> {
        &mut self.scrubs.said
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_encoding::UTime;
    use spirula_maps::{Crush, MonMap, OsdMap};
    use spirula_types::Uuid;
    use std::sync::Arc;

    #[test]
    fn every_row_counts_for_its_table() {
        let now = UTime { sec: 1_795_000_000, nsec: 0 };
        let map =
            OsdMap::fresh(Uuid([1; 16]), 3, now, Crush::new(spirula_crush::CrushMap::default()));
        let state = State::new(MonMap::initial(Uuid([1; 16]), now, []), map, 0);
        let with = |rows: &[(&str, &'static str)]| {
            let mut s = state.clone();
            for (k, v) in rows {
                Arc::make_mut(&mut s.kv).insert((*k).to_owned(), v.as_bytes().into());
            }
            sums(&s)
        };
        let one = with(&[("a", "bc")]);
        assert_eq!(one, with(&[("a", "bc")]));
        assert_eq!(one.get("kv").map(|s| s.0), Some(1));
        for other in [&[("ab", "c")][..], &[("a", "bd")], &[], &[("a", "bc"), ("b", "")]] {
            assert_eq!(differing(&one, &with(other)), ["kv"], "{other:?}");
        }
    }
}
