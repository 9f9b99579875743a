//! Clients that append unique tokens and read them back, and the check of what they saw.

use crate::past::{Change, Past, Seen};
use crate::world::{Map, POOL, Pace, Rng};
use bytes::Bytes;
use spirula_history::versions::{Op, Order, What, Wrong};
use spirula_messages::ceph::op::{self, OsdOp};
use spirula_messages::ceph::osd::{MOsdBackoff, MOsdOp, MOsdOpReply, backoff_op};
use spirula_types::{EVersion, Epoch, HObject, ObjectLocator, OsdId, SpgId};
use std::collections::BTreeMap;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    pub osd: OsdId,
    pub shard: i8,
    pub boot: u64,
}

#[derive(Clone, Debug)]
pub struct Done {
    pub object: usize,
    /// Appends this token, or (0) deletes, or rolls back.
    pub write: Option<u64>,
    /// The snapshot that it rolls back to, or reads at.
    pub snap: Option<u64>,
    /// The snapshots it knows of, newest first, and how many there ever were.
    pub context: Vec<u64>,
    pub seq: u64,
    pub invoked: u64,
    pub done: Option<u64>,
    pub seen: Vec<u64>,
    pub result: i32,
    pub version: EVersion,
    pub user_version: u64,
}

/// A request to be sent again: its number, the attempt, where to, and what.
pub type Again = (u64, i32, Target, Box<MOsdOp>);

struct Pending {
    attempt: i32,
    msg: Box<MOsdOp>,
    object: usize,
}

pub struct Client {
    id: usize,
    pub epoch: Epoch,
    next: u64,
    pending: BTreeMap<u64, Pending>,
    pub history: BTreeMap<u64, Done>,
    pub quiet: bool,
    /// Only appends, or only reads.
    pub only: Option<bool>,
    /// What it was told to hold back, by OSD and boot.
    held: BTreeMap<(OsdId, u64), Vec<MOsdBackoff>>,
    /// It asks for no map before.
    pub blind_until: u64,
    /// Writes that were refused.
    pub refused: u64,
}

pub fn object(i: usize) -> HObject {
    HObject::head(POOL, Bytes::new(), Bytes::new(), format!("object{i}").into())
}

/// Is this object in a backoff's range?
fn within(b: &MOsdBackoff, o: &HObject) -> bool {
    *o == b.begin || (b.begin < *o && *o < b.end)
}

fn target(map: &Map, i: usize) -> Option<Target> {
    let first = *map.members(object(i).pg(map.pg_num)).first()?;
    map.up.get(&first.osd).map(|(_, boot)| Target {
        osd: first.osd,
        shard: first.shard,
        boot: *boot,
    })
}

impl Client {
    pub fn new(id: usize) -> Self {
        Self {
            id,
            epoch: 1,
            next: 0,
            pending: BTreeMap::new(),
            history: BTreeMap::new(),
            quiet: false,
            only: None,
            held: BTreeMap::new(),
            blind_until: 0,
            refused: 0,
        }
    }

    pub fn idle(&self) -> bool {
        self.pending.is_empty()
    }

    pub fn new_op(
        &mut self,
        now: u64,
        map: &Map,
        pace: &Pace,
        rng: &mut Rng,
    ) -> Option<(u64, Target, Box<MOsdOp>)> {
        if self.pending.len() >= pace.under_way || self.quiet {
            return None;
        }
        let i = rng.below(pace.objects);
        let target = target(map, i)?;
        self.next += 1;
        let tid = self.next;
        let o = object(i);
        let append = self.only.unwrap_or_else(|| rng.chance(pace.appends));
        let token = (self.id as u64 + 1) * 1_000_000 + tid;
        let text = Bytes::from(format!("{token:016}"));
        let delete = append && rng.chance(pace.deletes);
        // No draw where it is not asked for: other seeds stay what they are.
        let refused = append && pace.refused > 0 && rng.chance(pace.refused);
        // Nor where there are no snapshots.
        let snap = (pace.snaps > 0 && !map.snaps.is_empty() && rng.chance(pace.snaps))
            .then(|| map.snaps[rng.below(map.snaps.len())]);
        // What it would be rolled back to, while it is removed, nobody can say.
        let snap = snap.filter(|s| !(refused || delete || append && map.retiring.contains(s)));
        let mut ops = Vec::new();
        if let (true, Some(snap)) = (append, snap) {
            ops.push(OsdOp::rollback(snap));
        } else if refused {
            ops.extend([OsdOp::assert_ver(u64::MAX), OsdOp::append(text)]);
        } else if delete {
            ops.push(OsdOp::delete());
        } else if append {
            if rng.chance(20) {
                ops.push(OsdOp::setxattr(b"last", &text));
            }
            if map.ec.is_none() && rng.chance(20) {
                ops.push(OsdOp::omap_set_vals(&[(text.clone(), text.clone())]));
            }
            let mut padded = text.to_vec();
            if map.ec.is_none() {
                padded.resize(pace.token.max(16), 0);
            }
            ops.push(OsdOp::append(padded.into()));
        } else {
            ops.push(OsdOp::read(0, 0));
        }
        let pg = o.pg(map.pg_num);
        let locator =
            ObjectLocator { pool: POOL, key: Bytes::new(), namespace: Bytes::new(), hash: -1 };
        let mut msg = Box::new(MOsdOp::new(
            SpgId { pg, shard: target.shard },
            o.hash,
            locator,
            o.name.clone(),
            ops,
        ));
        msg.epoch = self.epoch;
        if append {
            (msg.snap_seq, msg.snaps) = (map.snap_seq, map.snaps.clone());
        } else if let Some(snap) = snap {
            msg.snapid = snap;
        }
        let done = Done {
            object: i,
            write: append.then_some(if delete { 0 } else { token }),
            snap,
            context: msg.snaps.clone(),
            seq: msg.snap_seq,
            invoked: now,
            done: None,
            seen: Vec::new(),
            result: 0,
            version: EVersion::default(),
            user_version: 0,
        };
        // What is refused is no change, and reads nothing.
        if !refused {
            self.history.insert(tid, done);
        }
        self.pending.insert(tid, Pending { attempt: 0, msg: msg.clone(), object: i });
        Some((tid, target, msg))
    }

    /// Is something under way that was asked for when there were fewer snapshots, or that is rolled
    /// back to this one?
    pub fn lags(&self, snap_seq: u64, snap: u64) -> bool {
        let back = |p: &Pending| p.msg.ops.iter().any(|o| o.op == op::ROLLBACK && o.snap() == snap);
        self.pending.values().any(|p| p.msg.snap_seq < snap_seq || back(p))
    }

    /// Does something under way name this snapshot?
    pub fn names(&self, snap: u64) -> bool {
        self.pending.values().any(|p| p.msg.snaps.contains(&snap))
    }

    /// The next map; what must be sent again.
    pub fn on_map(&mut self, old: &Map, new: &Map) -> Vec<(u64, i32, Target, Box<MOsdOp>)> {
        self.epoch = new.epoch;
        let mut again = Vec::new();
        for (tid, p) in &mut self.pending {
            let o = object(p.object);
            let (a, b) = (o.pg(old.pg_num), o.pg(new.pg_num));
            let changed = a != b
                || !old.pool().is_same_for(&new.pool(), a.seed)
                || old.acting(a) != new.acting(b)
                || target(old, p.object) != target(new, p.object);
            p.msg.epoch = new.epoch;
            p.msg.spg.pg = b;
            if changed && let Some(t) = target(new, p.object) {
                p.msg.spg.shard = t.shard;
                p.attempt += 1;
                again.push((*tid, p.attempt, t, p.msg.clone()));
            }
        }
        again
    }

    /// Its connection broke: all that is under way is sent again over a new one.
    pub fn reconnect(&mut self, map: &Map) -> Vec<(u64, i32, Target, Box<MOsdOp>)> {
        self.held.clear();
        let again = |(tid, p): (&u64, &mut Pending)| {
            let t = target(map, p.object)?;
            p.attempt += 1;
            Some((*tid, p.attempt, t, p.msg.clone()))
        };
        self.pending.iter_mut().filter_map(again).collect()
    }

    /// Was it told to hold this?
    pub fn holds(&self, t: &Target, m: &MOsdOp) -> bool {
        let told = self.held.get(&(t.osd, t.boot));
        told.is_some_and(|all| all.iter().any(|b| b.spg == m.spg && within(b, &m.hobject())))
    }

    /// An OSD says what to hold, or to hold no more; the acknowledgement, and what must be sent
    /// again.
    pub fn on_backoff(
        &mut self,
        at: (OsdId, u64),
        m: MOsdBackoff,
        map: &Map,
    ) -> (Option<MOsdBackoff>, Vec<Again>) {
        let told = self.held.entry(at).or_default();
        if m.op == backoff_op::BLOCK {
            assert!(
                told.iter().all(|b| (b.spg, &b.begin) != (m.spg, &m.begin)),
                "told twice to hold {m:?}"
            );
            told.push(m.clone());
            return (Some(MOsdBackoff { op: backoff_op::ACK_BLOCK, ..m }), Vec::new());
        }
        let before = told.len();
        told.retain(|b| b.id != m.id);
        assert_eq!(told.len() + 1, before, "told to go on with what it does not hold: {m:?}");
        let mut again = Vec::new();
        for (tid, p) in self
            .pending
            .iter_mut()
            .filter(|(_, p)| p.msg.spg == m.spg && within(&m, &p.msg.hobject()))
        {
            if let Some(t) = target(map, p.object).filter(|t| (t.osd, t.boot) == at) {
                p.attempt += 1;
                again.push((*tid, p.attempt, t, p.msg.clone()));
            }
        }
        (None, again)
    }

    /// Changes of one object took place in the order in which it asked for them.
    pub fn in_order(&self) -> Result<(), String> {
        let mut last: BTreeMap<usize, &Done> = BTreeMap::new();
        for d in
            self.history.values().filter(|d| d.write.is_some() && d.version != EVersion::default())
        {
            if let Some(l) = last.insert(d.object, d).filter(|l| l.version >= d.version) {
                return Err(format!("client {}: {d:?} took place before {l:?}", self.id));
            }
        }
        Ok(())
    }

    pub fn on_reply(&mut self, now: u64, tid: u64, attempt: i32, reply: MOsdOpReply) {
        if self.pending.get(&tid).is_none_or(|p| p.attempt != attempt) {
            return;
        }
        self.pending.remove(&tid);
        let Some(d) = self.history.get_mut(&tid) else {
            assert!(reply.result < 0, "a write with a guard that cannot hold is done: {reply:?}");
            self.refused += 1;
            return;
        };
        d.done = Some(now);
        d.user_version = reply.user_version;
        (d.result, d.version) = (reply.result, reply.replay_version);
        match d.write {
            Some(0) => assert!(matches!(reply.result, 0 | -2), "a delete fails: {reply:?}"),
            Some(_) => assert_eq!(reply.result, 0, "an append fails: {reply:?}"),
            None if reply.result == 0 => d.seen = tokens(&reply.ops[0].op.indata),
            None => assert_eq!(reply.result, -2, "a read fails: {reply:?}"),
        }
        assert!(d.write.is_none() || d.version.version > 0, "a write's answer lacks its version");
    }
}

pub fn tokens(data: &[u8]) -> Vec<u64> {
    assert_eq!(data.len() % 16, 0, "torn append");
    let said = data.chunks(16).filter(|c| c.iter().any(|b| *b != 0));
    let token = |c| {
        std::str::from_utf8(c)
            .ok()
            .and_then(|t| t.parse().ok())
            .unwrap_or_else(|| panic!("torn append: {c:?}"))
    };
    said.map(token).collect()
}

/// Is the history of one object linearizable? `fin` is what is stored in the end, and what
/// snapshots there are then.
pub fn check(history: &[&Done], fin: &Past, snaps: &[u64]) -> Result<(), String> {
    let mut ops = Vec::new();
    for d in history {
        let Some(ended) = d.done else { return Err(format!("never answered: {d:?}")) };
        let what = match d.write {
            Some(_) => What::Change(*d, d.version),
            None if d.snap.is_some_and(|s| !snaps.contains(&s)) => What::Read(Seen::Gone),
            None => What::Read(Seen::At(d.snap, (d.result == 0).then(|| d.seen.clone()))),
        };
        ops.push(Op { begun: d.invoked, ended, what });
    }
    let apply = |past: &Past, d: &&Done, _: &_| match (d.write, d.snap) {
        _ if d.result == -5 => Ok(past.clone()),
        (Some(0), _) if (d.result == 0) != past.head.is_some() => Err(format!("on {past:?}")),
        (Some(0), _) => Ok(past.after(Change::Delete, d.seq, &d.context)),
        (_, Some(snap)) => Ok(past.after(Change::Back(snap), d.seq, &d.context)),
        (token, None) => Ok(past.after(Change::Append(token), d.seq, &d.context)),
    };
    let judge = || {
        let order = Order::of(&ops, Past::default(), apply)?;
        order.ends_with(&Seen::All(fin.clone(), snaps.to_vec()), Past::fits)?;
        order.reads(&ops, Past::fits)
    };
    judge().map_err(|wrong: Wrong| wrong.why().to_owned())
}
