//! Notifications under way: who has still to answer, and what the others answered.

use crate::api::{ConnId, PgEffect};
use crate::exec::WatchKey;
use bytes::Bytes;
use spirula_messages::ceph::osd::{MWatchNotify, NotifyReply, notify_op};
use spirula_types::{HObject, errno};
use std::collections::{BTreeMap, BTreeSet};

/// Notifications under way in a PG, at most.
pub(super) const NOTIFIES: usize = 1024;
/// Notifications of one connection under way in a PG, at most.
pub(super) const NOTIFIES_EACH: usize = 256;
/// Bytes of the payloads and answers of a PG's notifications, at most.
pub(super) const NOTIFY_BYTES: usize = 32 << 20;

/// A notification that begins.
#[derive(Clone, Debug)]
pub(super) struct Begun {
    pub id: u64,
    /// The notifier's connection.
    pub conn: ConnId,
    /// Global id of the notifier.
    pub client: u64,
    /// What it calls the notification.
    pub cookie: u64,
    /// The object's user version.
    pub version: u64,
    /// What watchers are told.
    pub payload: Bytes,
    /// Seconds.
    pub timeout: u32,
}

/// A notification under way.
#[derive(Clone, Debug)]
struct Notify {
    object: HObject,
    begun: Begun,
    /// Who has not answered.
    waiting: BTreeSet<WatchKey>,
    replies: Vec<NotifyReply>,
    ends_ms: u64,
}

impl Notify {
    fn bytes(&self) -> usize {
        self.begun.payload.len() + self.replies.iter().map(|r| r.reply.len()).sum::<usize>()
    }

    /// What a watcher is told, by its name of the watch.
    fn told(&self, cookie: u64) -> MWatchNotify {
        let b = &self.begun;
        MWatchNotify {
            opcode: notify_op::NOTIFY,
            cookie,
            version: b.version,
            notify_id: b.id,
            payload: b.payload.clone(),
            return_code: 0,
            notifier: b.client,
            data: Bytes::new(),
        }
    }

    /// What the notifier is told at the end.
    fn ended(mut self, timed_out: bool) -> PgEffect {
        self.replies.sort_by_key(|r| (r.client, r.cookie));
        let mut missed: Vec<(u64, u64)> =
            self.waiting.iter().map(|(cookie, name)| (name.num as u64, *cookie)).collect();
        missed.sort_unstable();
        let b = self.begun;
        let m = MWatchNotify {
            opcode: notify_op::COMPLETE,
            cookie: b.cookie,
            version: b.version,
            notify_id: b.id,
            payload: Bytes::new(),
            return_code: if timed_out { -errno::ETIMEDOUT } else { 0 },
            notifier: b.client,
            data: MWatchNotify::completion_data(&self.replies, &missed),
        };
        PgEffect::Tell(b.conn, Box::new(m))
    }
}

/// The notifications under way in a PG.
#[derive(Debug, Default)]
pub(super) struct Notifies {
    all: BTreeMap<u64, Notify>,
    /// Number of the last one.
    last: u64,
    /// Of payloads and answers.
    bytes: usize,
}

/// One that is given up: its number, its object, and who had not answered.
pub(super) type GivenUp = (u64, HObject, BTreeSet<WatchKey>);

impl Notifies {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn clear(&mut self) {
        self.all.clear();
        self.bytes = 0;
    }

    /// Numbers rise, and those of a later primary are higher: it has a newer map.
    pub fn next(&self, epoch: u32) -> u64 {
        (self.last + 1).max(u64::from(epoch) << 32)
    }

    /// This number is given out, though its notification begins only when what it came with is
    /// written.
    pub fn planned(&mut self, id: u64) {
        self.last = self.last.max(id);
    }

    pub fn room(&self, conn: ConnId) -> (usize, usize) {
        let of_it = self.all.values().filter(|n| n.begun.conn == conn).count();
        let number =
            NOTIFIES.saturating_sub(self.all.len()).min(NOTIFIES_EACH.saturating_sub(of_it));
        (number, NOTIFY_BYTES.saturating_sub(self.bytes))
    }

    pub fn are_of(&self, conn: ConnId) -> bool {
        self.all.values().any(|n| n.begun.conn == conn)
    }

    pub fn begin(
        &mut self,
        object: &HObject,
        begun: Begun,
        waiting: BTreeSet<WatchKey>,
        ends_ms: u64,
    ) {
        self.last = self.last.max(begun.id);
        self.bytes += begun.payload.len();
        let n = Notify { object: object.clone(), waiting, replies: Vec::new(), ends_ms, begun };
        self.all.insert(n.begun.id, n);
    }

    /// What is told of it to a watcher, by its name of the watch.
    pub fn told(&self, id: u64, cookie: u64) -> Option<MWatchNotify> {
        Some(self.all.get(&id)?.told(cookie))
    }

    fn take(&mut self, id: u64) -> Option<Notify> {
        let n = self.all.remove(&id)?;
        self.bytes = self.bytes.saturating_sub(n.bytes());
        Some(n)
    }

    /// If nobody has to answer any more, the notifier is told.
    pub fn complete(&mut self, id: u64, out: &mut Vec<PgEffect>) {
        if self.all.get(&id).is_some_and(|n| n.waiting.is_empty()) {
            out.extend(self.take(id).map(|n| n.ended(false)));
        }
    }

    /// A watcher has answered.
    pub fn answered(&mut self, id: u64, key: WatchKey, reply: Bytes, out: &mut Vec<PgEffect>) {
        if let Some(n) = self.all.get_mut(&id)
            && n.waiting.remove(&key)
        {
            self.bytes += reply.len();
            n.replies.push(NotifyReply { client: key.1.num as u64, cookie: key.0, reply });
            self.complete(id, out);
        }
    }

    /// A watch has ended.
    pub fn gone(&mut self, id: u64, key: WatchKey, out: &mut Vec<PgEffect>) {
        if let Some(n) = self.all.get_mut(&id)
            && n.waiting.remove(&key)
        {
            self.complete(id, out);
        }
    }

    /// A connection is gone, and with it those who wanted to hear of these.
    pub fn closed(&mut self, conn: ConnId) -> Vec<GivenUp> {
        let its: Vec<u64> =
            self.all.iter().filter(|(_, n)| n.begun.conn == conn).map(|(id, _)| *id).collect();
        its.into_iter().filter_map(|id| self.take(id).map(|n| (id, n.object, n.waiting))).collect()
    }

    /// Those whose time is over end.
    pub fn time_out(&mut self, now_ms: u64, out: &mut Vec<PgEffect>) -> Vec<GivenUp> {
        let over: Vec<u64> =
            self.all.iter().filter(|(_, n)| n.ends_ms <= now_ms).map(|(id, _)| *id).collect();
        let mut given_up = Vec::with_capacity(over.len());
        for id in over {
            let Some(n) = self.take(id) else { continue };
            given_up.push((id, n.object.clone(), n.waiting.clone()));
            out.push(n.ended(true));
        }
        given_up
    }
}
