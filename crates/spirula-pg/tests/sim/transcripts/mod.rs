//! Ten pieces of a PG's life, as text to read: what came in at each member, and what it did.
//!
//! Each story drives a small world by hand, in an order that is not left to chance, and what comes
//! out of it must be what stands in `tests/transcripts`. `SPIRULA_TRANSCRIPTS=write` writes it
//! there: look at the difference, as at code. That a PG does what is right is the other tests'
//! business; these say when it does something else than before.

mod words;

use crate::client::object;
use crate::hand::Hand;
use crate::scenarios::PG;
use crate::world::{End, World};
use bytes::Bytes;
use spirula_messages::ceph::op::{OsdOp, watch};
use spirula_pg::shard::store_object;
use spirula_pg::{PgConfig, PgEffect, PgEvent};
use spirula_types::{OsdId, SpgId};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// What is written down of a world.
#[derive(Default)]
pub struct Script {
    lines: Vec<String>,
    /// The line of the event that is handled, and whether it stays if nothing comes of it.
    head: Option<(usize, bool)>,
    /// The state that each was last said to be in.
    states: BTreeMap<(OsdId, SpgId), String>,
    /// Another PG than the first is named.
    others: bool,
}

impl Script {
    fn name(&self, id: OsdId, pg: SpgId) -> String {
        if pg.pg == PG && !self.others {
            format!("osd.{id}")
        } else {
            format!("osd.{id} pg {}", pg.pg)
        }
    }

    /// A PG is about to handle an event.
    pub fn begins(&mut self, id: OsdId, pg: SpgId, e: &PgEvent) {
        let (text, stays) = words::event(e);
        self.head = Some((self.lines.len(), stays));
        self.lines.push(format!("{}  <- {text}", self.name(id, pg)));
    }

    /// Not an event, but something that the OSD does with the PG.
    pub fn does(&mut self, id: OsdId, pg: SpgId, what: &str) {
        self.lines.push(format!("{}  <- {what}", self.name(id, pg)));
    }

    /// What it wants done.
    pub fn wants(&mut self, pg: SpgId, e: &PgEffect) {
        for line in words::effect(e, pg).into_iter().flatten() {
            self.lines.push(format!("          {line}"));
        }
    }

    /// It has handled the event, and is in this state.
    pub fn ends(&mut self, id: OsdId, pg: SpgId, state: &str) {
        let before = self.states.insert((id, pg), state.to_owned());
        if before.as_deref() != Some(state) && !state.is_empty() {
            self.lines.push(format!("          is {state}"));
        }
        if let Some((at, false)) = self.head.take()
            && self.lines.len() == at + 1
        {
            self.lines.pop();
        }
    }

    fn says(&mut self, text: &str) {
        if self.lines.last().is_some_and(|l| !l.is_empty()) {
            self.lines.push(String::new());
        }
        self.lines.push(format!("# {text}"));
    }
}

/// A world whose events come in order.
struct Tale {
    h: Hand,
}

impl Drop for Tale {
    fn drop(&mut self) {
        // Whoever looks for the cause reads how far it came.
        if std::thread::panicking()
            && let Some(s) = &self.h.w.script
        {
            println!("{}", s.lines.join("\n"));
        }
    }
}

impl Tale {
    /// One PG on the first `size` of so many OSDs, which serves; `ec`: data and parity shards.
    fn new(
        osds: usize,
        size: usize,
        ec: Option<(usize, usize)>,
        cfg: impl Fn(&mut PgConfig),
    ) -> Self {
        let mut w = World::new(2, osds, size, 1, 1);
        let c = Arc::make_mut(&mut w.cfg);
        *c = PgConfig { retry_ms: 1000, ..PgConfig::default() };
        cfg(c);
        (w.scrubs, w.mon_loses, w.backs_off) = (false, false, false);
        let first = w.maps.last_mut().unwrap();
        first.ec = ec;
        first.min_size = ec.map_or(2.min(size), |(k, _)| k);
        w.clients[0].quiet = true;
        (0..osds as OsdId).for_each(|id| w.start(id));
        let out = (size as OsdId..osds as OsdId).collect();
        w.change_map(|m| m.out = out);
        let first = w.map().members(PG)[0];
        let mut t = Self { h: Hand::new(w, first) };
        t.runs();
        t.passes(3000);
        t.h.w.script = Some(Script::default());
        t.restates();
        t
    }

    /// The states that the story begins in go without saying.
    fn restates(&mut self) {
        let states = self.h.w.states();
        self.script().states = states;
    }

    fn script(&mut self) -> &mut Script {
        self.h.w.script.as_mut().expect("it is written down")
    }

    fn says(&mut self, text: &str) {
        self.script().says(text);
    }

    /// All that is due happens, until nothing is left; no time passes.
    fn runs(&mut self) {
        for _ in 0..10_000 {
            if !self.h.w.round() {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    /// Time passes, all that is due happens.
    fn passes(&mut self, ms: u64) {
        let end = self.h.w.now + ms;
        while self.h.w.now < end {
            self.h.w.now += 250;
            self.h.w.ping_all();
            self.runs();
            self.h.w.tick_all();
            self.runs();
        }
    }

    /// A client sends this to the PG's primary.
    fn asks(&mut self, conn: u64, op: OsdOp) -> u64 {
        self.h.send(conn, op)
    }

    fn result(&self, op: u64) -> Option<i32> {
        self.h.w.told.get(&op).map(|r| r.result)
    }

    /// Who leads is asked from now on.
    fn follows_the_primary(&mut self) {
        let first = self.h.w.map().members(PG)[0];
        (self.h.at, self.h.id) = (first.osd, SpgId::new(PG, first.shard));
    }

    fn primary(&self) -> OsdId {
        self.h.w.map().members(PG)[0].osd
    }

    fn member(&self, n: usize) -> OsdId {
        self.h.w.map().members(PG)[n].osd
    }

    fn dies(&mut self, id: OsdId) {
        self.h.w.crash(id);
        self.h.w.mark_down(id);
        self.follows_the_primary();
    }

    /// What the story has to show for it.
    fn state(&self) -> String {
        let first = self.h.w.map().members(PG)[0];
        self.h.w.nodes[first.osd as usize].pgs[&SpgId::new(PG, first.shard)].state().0.to_string()
    }

    /// Is it what was written down?
    fn reads_as(mut self, name: &str, about: &str) {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("tests/transcripts")
            .join(format!("{name}.txt"));
        let mut text = format!("{about}\n\n");
        for line in &self.script().lines {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        if std::env::var("SPIRULA_TRANSCRIPTS").is_ok_and(|v| v == "write") {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            return std::fs::write(&path, text).unwrap();
        }
        let was = std::fs::read_to_string(&path).unwrap_or_default();
        let mut differ = was.lines().zip(text.lines()).enumerate().filter(|(_, (a, b))| a != b);
        if let Some((n, (a, b))) = differ.next() {
            panic!(
                "{}, line {}: it was\n{a}\nand is\n{b}\nIf that is meant, write it down: \
                 SPIRULA_TRANSCRIPTS=write cargo test -p spirula-pg --test sim transcripts",
                path.display(),
                n + 1
            );
        }
        assert_eq!(was.lines().count(), text.lines().count(), "{}", path.display());
    }
}

fn bytes_of(byte: u8, n: usize) -> Bytes {
    vec![byte; n].into()
}

#[test]
fn a_write_and_a_read() {
    let mut t = Tale::new(3, 3, None, |_| {});
    t.says(
        "A client appends. The primary gives the entry its version, and sends it to both others.",
    );
    let op = t.asks(1, OsdOp::append(bytes_of(b'a', 16)));
    t.says(
        "Each member stores object, log entry and head in one transaction, and answers when it \
         is durable.",
    );
    t.runs();
    assert_eq!(t.result(op), Some(0));
    t.says("A read is answered at once: the others have granted a lease, so nobody else leads.");
    let op = t.asks(1, OsdOp::read(0, 16));
    assert!(t.result(op).is_some());
    t.reads_as("01-write", "A write, durable on all members before it is answered, and a read.");
}

#[test]
fn a_gap() {
    let mut t = Tale::new(3, 3, None, |_| {});
    let (first, third) = (t.primary(), t.member(2));
    t.says("A write, of which one member's message is lost on the way.");
    t.asks(1, OsdOp::append(bytes_of(b'a', 16)));
    assert!(t.h.w.lose_write(first, third).is_some());
    t.runs();
    t.says(
        "The next write follows an entry that the member has not: it says up to where it has all.",
    );
    let op = t.asks(1, OsdOp::append(bytes_of(b'b', 16)));
    t.runs();
    assert_eq!(t.result(op), Some(0));
    t.reads_as("02-gap", "A member that misses a write takes none after it until it has it.");
}

#[test]
fn a_death() {
    let mut t = Tale::new(3, 3, None, |_| {});
    t.asks(1, OsdOp::append(bytes_of(b'a', 16)));
    t.runs();
    let (first, second, third) = (t.primary(), t.member(1), t.member(2));
    t.script().lines.clear();
    t.says("A second write reaches one of the other members only, then the primary dies.");
    t.h.w.slow.insert((End::Osd(first), End::Osd(third)), u64::MAX);
    t.asks(1, OsdOp::append(bytes_of(b'b', 16)));
    t.runs();
    t.dies(first);
    t.says(
        "The map shows it down. The next member leads, asks who has what, and brings the other \
         up to it. Before it activates, the map must know that it lives.",
    );
    t.runs();
    t.says("The new primary serves.");
    t.passes(4000);
    assert_eq!(t.primary(), second);
    let op = t.asks(1, OsdOp::append(bytes_of(b'c', 16)));
    t.runs();
    assert_eq!(t.result(op), Some(0), "{}", t.state());
    t.reads_as(
        "03-death",
        "The primary dies with a write under way: peering, activation, and a write of the new one.",
    );
}

#[test]
fn a_backfill() {
    let mut t = Tale::new(2, 1, None, |c| {
        (c.log_keep, c.log_max, c.log_slack, c.scan_objects) = (1, 1, 0, 2);
    });
    for n in 0..5 {
        t.h.object = n;
        t.asks(1, OsdOp::write_full(bytes_of(b'a' + n as u8, 16)));
        t.runs();
    }
    let old = t.primary();
    t.script().lines.clear();
    t.says(
        "The PG's one copy is to move. The new OSD has nothing, and the log is too short to \
         tell all.",
    );
    t.h.w.change_map(|m| m.out = [old].into());
    t.passes(6000);
    assert_ne!(t.primary(), old);
    assert_eq!(t.state(), "active+clean");
    t.reads_as(
        "04-backfill",
        "A copy moves: the old one serves while the new one is filled, in object order.",
    );
}

#[test]
fn a_watch() {
    let mut t = Tale::new(3, 3, None, |_| {});
    t.asks(1, OsdOp::append(bytes_of(b'a', 16)));
    t.runs();
    t.script().lines.clear();
    t.says("A client watches an object: that is a write, stored with the object.");
    t.asks(1, OsdOp::watch(7, watch::WATCH, 1, 30));
    t.runs();
    let first = t.primary();
    t.says("The primary dies. The client finds the new one and connects its watch again.");
    t.dies(first);
    t.passes(4000);
    t.asks(1, OsdOp::watch(7, watch::RECONNECT, 2, 30));
    t.runs();
    t.says(
        "Another client notifies: who watches is told, and the notifier answered when all have \
         said something.",
    );
    let op = t.asks(2, OsdOp::notify(9, 30, b"news"));
    t.runs();
    let id = t.h.w.notified.last().copied().expect("a watcher was told");
    t.asks(1, OsdOp::notify_ack(id, 7, b"heard"));
    t.runs();
    assert_eq!(t.result(op), Some(0));
    t.reads_as("05-watch", "A watch outlives the primary at which it was made.");
}

#[test]
fn a_trim() {
    let mut t = Tale::new(2, 2, None, |_| {});
    t.asks(1, OsdOp::write_full(bytes_of(b'a', 16)));
    t.runs();
    t.h.w.change_map(|m| (m.snap_seq, m.snaps) = (1, vec![1]));
    t.runs();
    t.script().lines.clear();
    t.says("A write under snapshot 1: the head is cloned first, each member from its own.");
    t.h.snaps = vec![1];
    t.asks(1, OsdOp::write(0, bytes_of(b'b', 8)));
    t.runs();
    t.says(
        "The snapshot is removed. The primary looks for what belongs to it, and trims it as a \
         write.",
    );
    t.h.w.change_map(|m| {
        m.snaps.clear();
        Arc::make_mut(&mut m.removed).insert(1, 1);
    });
    t.passes(2000);
    let clone = store_object(&spirula_types::HObject { snap: 1, ..object(0) }, -1);
    assert!(!t.h.w.nodes[0].store.applied.objects.contains_key(&clone));
    t.reads_as("06-trim", "A clone for a snapshot, and its end when the snapshot is removed.");
}

#[test]
fn a_split() {
    let mut t = Tale::new(2, 2, None, |_| {});
    for n in 0..4 {
        t.h.object = n;
        t.asks(1, OsdOp::write_full(bytes_of(b'a', 16)));
        t.runs();
    }
    t.script().lines.clear();
    t.script().others = true;
    t.says("The pool gets two PGs. Each member splits its own copy with the map that says so.");
    t.h.w.change_map(|m| m.grow(1));
    t.passes(4000);
    assert_eq!(t.state(), "active+clean");
    t.reads_as(
        "07-split",
        "A PG splits: objects, log and requests go to the half that they belong to.",
    );
}

#[test]
fn an_erasure_coded_overwrite_that_is_taken_back() {
    let mut t = Tale::new(3, 3, Some((2, 1)), |_| {});
    t.asks(1, OsdOp::write_full(bytes_of(b'a', 32)));
    t.runs();
    t.passes(1000);
    let (first, second, third) = (t.primary(), t.member(1), t.member(2));
    t.script().lines.clear();
    t.says("An overwrite comes to two of three shards: each keeps what it overwrites.");
    t.h.w.slow.insert((End::Osd(first), End::Osd(third)), u64::MAX);
    t.asks(1, OsdOp::write(0, bytes_of(b'b', 16)));
    t.runs();
    t.says(
        "The primary dies. Of the two that are left one has the overwrite: too few to read it, \
         so it is taken back.",
    );
    t.dies(first);
    t.passes(4000);
    assert_eq!(t.primary(), second);
    let op = t.asks(1, OsdOp::read(0, 32));
    t.runs();
    let told = t.h.w.told.get(&op).map(|r| r.ops[0].op.indata.clone());
    assert_eq!(told, Some(bytes_of(b'a', 32)), "{}", t.state());
    t.reads_as("08-undo", "A write of an erasure-coded PG that too few shards have is undone.");
}

#[test]
fn a_lease_that_is_waited_for() {
    let mut t = Tale::new(3, 3, None, |_| {});
    t.asks(1, OsdOp::append(bytes_of(b'a', 16)));
    t.runs();
    let (old, at, id) = (t.primary(), t.h.at, t.h.id);
    t.script().lines.clear();
    t.says("The primary is marked down, lives, and does not hear of it.");
    t.h.w.nodes[old as usize].blind_until = u64::MAX;
    t.h.w.mark_down(old);
    t.follows_the_primary();
    t.runs();
    t.says(
        "A write comes to the new primary: it waits, for the old one may still serve reads by \
         its leases.",
    );
    let write = t.asks(1, OsdOp::append(bytes_of(b'b', 16)));
    t.runs();
    assert_eq!(t.result(write), None);
    t.says("The old one answers such a read: nothing newer exists.");
    (t.h.at, t.h.id) = (at, id);
    t.h.epoch = Some(t.h.w.nodes[old as usize].epoch);
    let read = t.asks(2, OsdOp::read(0, 64));
    assert!(t.result(read).is_some());
    t.says("The leases are over: the old one's reads wait, the new one writes.");
    t.passes(4000);
    assert_eq!(t.result(write), Some(0));
    let late = t.asks(2, OsdOp::read(0, 64));
    t.runs();
    assert_eq!(t.result(late), None);
    t.reads_as(
        "09-lease",
        "A primary that was replaced reads nothing stale, and its follower waits for that.",
    );
}

#[test]
fn a_rotten_copy() {
    let mut t = Tale::new(3, 3, None, |_| {});
    t.asks(1, OsdOp::append(bytes_of(b'a', 16)));
    t.runs();
    let first = t.primary();
    t.script().lines.clear();
    t.h.w.nodes[first as usize].store.rotten.insert(object(0));
    t.says("The primary's copy of an object is bad, which its checksum says when a client reads.");
    let op = t.asks(1, OsdOp::read(0, 64));
    t.says("The object counts as missing, another member gives it, and the read is answered.");
    t.passes(1000);
    assert!(t.result(op).is_some_and(|r| r >= 0));
    assert_eq!(t.state(), "active+clean");
    t.reads_as(
        "10-rotten",
        "A copy that cannot be read is replaced before anybody sees what is in it.",
    );
}
