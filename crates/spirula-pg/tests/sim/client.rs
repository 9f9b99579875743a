//! Clients that append unique tokens and read them back, and the check of what they saw.

use crate::world::{Map, POOL, Pace, Rng};
use bytes::Bytes;
use spirula_messages::ceph::op::OsdOp;
use spirula_messages::ceph::osd::{MOsdOp, MOsdOpReply};
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
    /// Appends this token, or (0) deletes.
    pub write: Option<u64>,
    pub invoked: u64,
    pub done: Option<u64>,
    pub seen: Vec<u64>,
    pub result: i32,
    pub version: EVersion,
    pub user_version: u64,
}

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
    /// It asks for no map before.
    pub blind_until: u64,
}

pub fn object(i: usize) -> HObject {
    HObject::head(POOL, Bytes::new(), Bytes::new(), format!("object{i}").into())
}

fn target(map: &Map, i: usize) -> Option<Target> {
    let first = *map.members(object(i).pg(map.pg_num)).first()?;
    map.up.get(&first.osd).map(|(_, boot)| Target { osd: first.osd, shard: first.shard, boot: *boot })
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
            blind_until: 0,
        }
    }

    pub fn idle(&self) -> bool {
        self.pending.is_empty()
    }

    pub fn new_op(&mut self, now: u64, map: &Map, pace: &Pace, rng: &mut Rng) -> Option<(u64, Target, Box<MOsdOp>)> {
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
        let mut ops = Vec::new();
        if delete {
            ops.push(OsdOp::delete());
        } else if append {
            if rng.chance(20) {
                ops.push(OsdOp::setxattr(b"last", &text));
            }
            if map.ec.is_none() && rng.chance(20) {
                ops.push(OsdOp::omap_set_vals(&[(text.clone(), text.clone())]));
            }
            ops.push(OsdOp::append(text));
        } else {
            ops.push(OsdOp::read(0, 0));
        }
        let pg = o.pg(map.pg_num);
        let locator = ObjectLocator { pool: POOL, key: Bytes::new(), namespace: Bytes::new(), hash: -1 };
        let mut msg = Box::new(MOsdOp::new(SpgId { pg, shard: target.shard }, o.hash, locator, o.name.clone(), ops));
        msg.epoch = self.epoch;
        self.history.insert(
            tid,
            Done {
                object: i,
                write: append.then_some(if delete { 0 } else { token }),
                invoked: now,
                done: None,
                seen: Vec::new(),
                result: 0,
                version: EVersion::default(),
                user_version: 0,
            },
        );
        self.pending.insert(tid, Pending { attempt: 0, msg: msg.clone(), object: i });
        Some((tid, target, msg))
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

    pub fn on_reply(&mut self, now: u64, tid: u64, attempt: i32, reply: MOsdOpReply, rot: bool) {
        if self.pending.get(&tid).is_none_or(|p| p.attempt != attempt) {
            return;
        }
        self.pending.remove(&tid);
        let d = self.history.get_mut(&tid).unwrap();
        d.done = Some(now);
        d.user_version = reply.user_version;
        (d.result, d.version) = (reply.result, reply.replay_version);
        if rot && d.write.is_none() && reply.result == -5 {
            // No good copy within reach: it says so.
            self.history.remove(&tid);
            return;
        }
        match d.write {
            Some(_) if rot && reply.result == -5 => {}
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
    data.chunks(16).map(|c| std::str::from_utf8(c).unwrap().parse().unwrap()).collect()
}

/// Is the history of one object linearizable? Every write is answered with its version, which
/// gives the order; each read must have seen the state between two writes that fit its time.
pub fn check(history: &[&Done], fin: Option<&[u64]>) -> Result<(), String> {
    let mut writes: Vec<&Done> = history.iter().copied().filter(|d| d.write.is_some()).collect();
    if let Some(open) = history.iter().find(|d| d.done.is_none()) {
        return Err(format!("never answered: {open:?}"));
    }
    writes.sort_by_key(|d| d.version);
    if let Some(w) = writes.windows(2).find(|w| w[0].version == w[1].version) {
        return Err(format!("two writes in one place: {w:?}"));
    }
    // The state after each write; `None`: no object.
    let mut states: Vec<Option<Vec<u64>>> = vec![None];
    let mut latest_start = 0;
    for d in &writes {
        let last = states.last().cloned().flatten();
        if d.done < Some(latest_start) {
            return Err(format!("a write that had ended is ordered after a later one: {d:?}"));
        }
        latest_start = latest_start.max(d.invoked);
        states.push(match d.write {
            _ if d.result == -5 => last,
            Some(0) => {
                if (d.result == 0) != last.is_some() {
                    return Err(format!("{d:?} on {last:?}"));
                }
                None
            }
            token => {
                let mut now = last.unwrap_or_default();
                now.extend(token);
                Some(now)
            }
        });
    }
    if states.last().and_then(|s| s.as_deref()) != fin {
        return Err(format!("stored {fin:?}, acknowledged {:?}; history {history:?}", states.last()));
    }
    let mut reads: Vec<&Done> = history.iter().copied().filter(|d| d.write.is_none()).collect();
    reads.sort_by_key(|d| d.invoked);
    // (end, place) of reads done so far.
    let mut before: Vec<(u64, usize)> = Vec::new();
    for d in reads {
        let done = d.done.unwrap_or(u64::MAX);
        let lowest = writes.iter().rposition(|w| w.done < Some(d.invoked)).map_or(0, |i| i + 1);
        let highest = writes.iter().position(|w| w.invoked > done).unwrap_or(writes.len());
        let earlier = before.iter().filter(|(end, _)| *end < d.invoked).map(|(_, at)| *at).max().unwrap_or(0);
        let from = lowest.max(earlier);
        let saw = |s: &Option<Vec<u64>>| s.as_deref() == (d.result == 0).then_some(&d.seen[..]);
        match (from..=highest).find(|i| states.get(*i).is_some_and(saw)) {
            Some(at) => before.push((done, at)),
            None => return Err(format!("{d:?} saw none of {:?}", states.get(from..=highest.max(from)))),
        }
    }
    Ok(())
}
