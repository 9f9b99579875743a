//! Clients that append unique tokens and read them back, and the check of what they saw.

use crate::world::{Map, POOL, Pace, Rng};
use bytes::Bytes;
use spirula_messages::ceph::op::OsdOp;
use spirula_messages::ceph::osd::{MOsdOp, MOsdOpReply};
use spirula_types::{Epoch, HObject, ObjectLocator, OsdId, SpgId};
use std::collections::BTreeMap;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    pub osd: OsdId,
    pub boot: u64,
}

#[derive(Clone, Debug)]
pub struct Done {
    pub object: usize,
    pub append: Option<u64>,
    pub invoked: u64,
    pub done: Option<u64>,
    pub seen: Vec<u64>,
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
    let osd = *map.acting(object(i).pg(map.pg_num)).first()?;
    map.up.get(&osd).map(|(_, boot)| Target { osd, boot: *boot })
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
        let mut ops = Vec::new();
        if append {
            if rng.chance(20) {
                ops.push(OsdOp::setxattr(b"last", &text));
            }
            if rng.chance(20) {
                ops.push(OsdOp::omap_set_vals(&[(text.clone(), text.clone())]));
            }
            ops.push(OsdOp::append(text));
        } else {
            ops.push(OsdOp::read(0, 0));
        }
        let pg = o.pg(map.pg_num);
        let locator = ObjectLocator { pool: POOL, key: Bytes::new(), namespace: Bytes::new(), hash: -1 };
        let mut msg = Box::new(MOsdOp::new(SpgId { pg, shard: -1 }, o.hash, locator, o.name.clone(), ops));
        msg.epoch = self.epoch;
        self.history.insert(
            tid,
            Done {
                object: i,
                append: append.then_some(token),
                invoked: now,
                done: None,
                seen: Vec::new(),
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
                || old.pg_num != new.pg_num
                || old.size != new.size
                || old.acting(a) != new.acting(b)
                || target(old, p.object) != target(new, p.object);
            p.msg.epoch = new.epoch;
            p.msg.spg.pg = b;
            if changed && let Some(t) = target(new, p.object) {
                p.attempt += 1;
                again.push((*tid, p.attempt, t, p.msg.clone()));
            }
        }
        again
    }

    pub fn on_reply(&mut self, now: u64, tid: u64, attempt: i32, reply: MOsdOpReply) {
        if self.pending.get(&tid).is_none_or(|p| p.attempt != attempt) {
            return;
        }
        self.pending.remove(&tid);
        let d = self.history.get_mut(&tid).unwrap();
        d.done = Some(now);
        d.user_version = reply.user_version;
        if d.append.is_some() {
            assert_eq!(reply.result, 0, "an append fails: {reply:?}");
        } else if reply.result == 0 {
            let data = &reply.ops[0].op.indata;
            d.seen = tokens(data);
        } else {
            assert_eq!(reply.result, -2, "a read fails: {reply:?}");
        }
    }
}

pub fn tokens(data: &[u8]) -> Vec<u64> {
    assert_eq!(data.len() % 16, 0, "torn append");
    data.chunks(16).map(|c| std::str::from_utf8(c).unwrap().parse().unwrap()).collect()
}

/// Appends of one object must be one sequence that explains everything anybody saw.
///
/// With a short log a late resend is not recognised, so `twice` allows it.
pub fn check(history: &[&Done], fin: &[u64], twice: bool) -> Result<(), String> {
    let mut place = BTreeMap::new();
    for (i, t) in fin.iter().enumerate() {
        if twice && place.contains_key(t) {
            continue;
        }
        if place.insert(*t, i).is_some() {
            return Err(format!("token {t} was applied twice"));
        }
    }
    for d in history {
        let Some(done) = d.done else { continue };
        match d.append {
            Some(t) if !place.contains_key(&t) => return Err(format!("acknowledged token {t} is lost")),
            Some(_) => {}
            None if !fin.starts_with(&d.seen) => {
                return Err(format!("read saw {:?}, history is {fin:?}", d.seen));
            }
            None => {}
        }
        // What was done before another began must be before it.
        let end = |d: &Done| d.append.map_or(d.seen.len(), |t| place[&t] + 1);
        for later in history.iter().filter(|l| l.done.is_some() && l.invoked > done) {
            let ok = if later.append.is_some() { end(later) > end(d) } else { end(later) >= end(d) };
            if !ok {
                return Err(format!("{d:?} finished before {later:?} began; history {fin:?}"));
            }
            if later.append.is_some() && d.append.is_some() && later.user_version <= d.user_version {
                return Err(format!("user version went back: {d:?} {later:?}"));
            }
        }
    }
    Ok(())
}
