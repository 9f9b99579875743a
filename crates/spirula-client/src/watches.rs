//! Watches on objects, and notifications.
//!
//! A watch is known to the OSD that serves its object by the client's name and a *cookie*. It
//! outlives connections and intervals for its timeout (the OSD's, 30 s by default): whoever says
//! within it that the watch goes on (*reconnect*) keeps it, and is told again of each notification
//! that it has not acknowledged. So nothing is missed while [`Watches`] keeps a watch. Once it is
//! gone at the OSD it cannot be had back: the holder is told ([`WatchOut::Lost`]), has to look for
//! itself what it has missed, and may begin another one.
//!
//! * Each watch has an *anchor* at the [`Objecter`]; when that has moved the watch is registered
//!   again, by a new operation with the next *generation*. It must be a new one: an OSD that has
//!   done an operation does not do it again, so one that is sent twice registers nothing on the new
//!   connection.
//! * Every [`PING`] the OSD is asked whether it still has the watch. An answer to a question from
//!   before the watch moved says nothing and is ignored.
//! * A notification of ours is done when the OSD says who answered and who did not. What is not
//!   done when its object moves is sent again, and may reach watchers twice.
//!
//! The shell sends what [`Objecter`] puts out, hands every
//! [`ObjecterOut::Done`](crate::ObjecterOut) in first, and calls [`Watches::look`] after each event
//! that it has given to the objecter. Bounds: a watch and a notification are taken on at the
//! holder's request only, and an OSD tells of no further notification while one waits for the
//! holder's acknowledgement longer than its own timeout.

use crate::{Objecter, ObjecterOut, Reply, Request};
use bytes::Bytes;
use spirula_encoding::UTime;
use spirula_messages::ceph::MWatchNotify;
use spirula_messages::ceph::op::{OsdOp, watch};
use spirula_messages::ceph::osd::{NotifyReply, flag, notify_op};
use spirula_types::{ObjectLocator, errno};
use std::collections::BTreeMap;
use std::time::Duration;

/// Between two questions whether a watch is still there.
pub const PING: Duration = Duration::from_secs(5);

/// What the holder is to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchOut {
    /// This watch is there: notifications from now on are told.
    Watching(u64),
    /// Somebody notified; wants [`Watches::acknowledge`].
    Notified {
        /// The watch.
        cookie: u64,
        /// The notification.
        id: u64,
        /// Global id of the notifier.
        notifier: u64,
        /// What it sent.
        payload: Bytes,
    },
    /// This watch could not be had, or is gone, with −errno; it is forgotten here. Notifications
    /// may have been missed.
    Lost(u64, i32),
    /// Nobody watches under this cookie any more, as was wanted.
    Unwatched(u64),
    /// A notification of ours is done.
    Notification {
        /// What [`Watches::notify`] gave.
        cookie: u64,
        /// 0, or −errno: ETIMEDOUT if somebody did not answer in time.
        result: i32,
        /// Who answered, and what.
        replies: Vec<NotifyReply>,
        /// Global id and cookie of those who did not.
        missed: Vec<(u64, u64)>,
    },
}

#[derive(Debug)]
struct Watch {
    locator: ObjectLocator,
    oid: Bytes,
    /// Seconds; 0 for the OSD's default.
    timeout: u32,
    /// Registrations that were answered or sent after the first.
    generation: u32,
    /// The OSD has said once that it is there.
    known: bool,
    /// The registration under way.
    registering: Option<u64>,
    /// The ping under way.
    pinging: Option<u64>,
    /// When the next one is due.
    ping_at: Duration,
}

#[derive(Debug)]
struct Notify {
    locator: ObjectLocator,
    oid: Bytes,
    payload: Bytes,
    /// Seconds.
    timeout: u32,
    /// The operation under way.
    asking: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Register(u64),
    Ping(u64),
    Unwatch(u64),
    Acknowledge,
    Notify(u64),
}

/// A client's watches, and the notifications that it has sent.
#[derive(Debug, Default)]
pub struct Watches {
    watches: BTreeMap<u64, Watch>,
    notifies: BTreeMap<u64, Notify>,
    sent: BTreeMap<u64, Sent>,
    last_cookie: u64,
    now: Duration,
}

impl Watches {
    /// None yet. Cookies begin above `first`; those of one client must differ while it lives.
    pub fn new(first: u64) -> Self {
        Self { last_cookie: first, ..Self::default() }
    }

    fn submit(
        &mut self,
        (locator, oid): (&ObjectLocator, &Bytes),
        op: OsdOp,
        what: Sent,
        objecter: &mut Objecter,
        todo: &mut Vec<ObjecterOut>,
    ) -> u64 {
        let writes = op.is_write();
        let mut request = Request::new(locator.clone(), oid.clone(), vec![op], UTime::ZERO);
        if writes {
            // A watch must not end because there is no room for data.
            request.flags = flag::FULL_TRY;
        }
        let tid = objecter.submit(request, todo);
        self.sent.insert(tid, what);
        tid
    }

    /// An answer to this operation is not waited for any more.
    fn forget(&mut self, tid: Option<u64>, objecter: &mut Objecter) {
        if let Some(tid) = tid {
            self.sent.remove(&tid);
            objecter.cancel(tid);
        }
    }

    /// Begins to watch an object; `timeout` in seconds, 0 for the OSD's default. Gives the cookie.
    /// [`WatchOut::Watching`] or [`WatchOut::Lost`] follows.
    pub fn watch(
        &mut self,
        locator: &ObjectLocator,
        oid: &Bytes,
        timeout: u32,
        objecter: &mut Objecter,
        todo: &mut Vec<ObjecterOut>,
    ) -> u64 {
        self.last_cookie += 1;
        let cookie = self.last_cookie;
        objecter.anchor(cookie, locator, oid);
        let watch = Watch {
            locator: locator.clone(),
            oid: oid.clone(),
            timeout,
            generation: 0,
            known: false,
            registering: None,
            pinging: None,
            ping_at: Duration::MAX,
        };
        self.watches.insert(cookie, watch);
        self.register(cookie, objecter, todo);
        cookie
    }

    /// Says to the OSD that this watch is, or goes on.
    fn register(&mut self, cookie: u64, objecter: &mut Objecter, todo: &mut Vec<ObjecterOut>) {
        let Some(w) = self.watches.get_mut(&cookie) else { return };
        let (registering, pinging) = (w.registering.take(), w.pinging.take());
        w.ping_at = Duration::MAX;
        let op = if w.known { watch::RECONNECT } else { watch::WATCH };
        w.generation += u32::from(w.known);
        let (locator, oid) = (w.locator.clone(), w.oid.clone());
        let op = OsdOp::watch(cookie, op, w.generation, w.timeout);
        self.forget(registering, objecter);
        self.forget(pinging, objecter);
        let tid = self.submit((&locator, &oid), op, Sent::Register(cookie), objecter, todo);
        if let Some(w) = self.watches.get_mut(&cookie) {
            w.registering = Some(tid);
        }
    }

    /// Ends a watch. [`WatchOut::Unwatched`] follows, also where there is none.
    pub fn unwatch(
        &mut self,
        cookie: u64,
        objecter: &mut Objecter,
        todo: &mut Vec<ObjecterOut>,
        out: &mut Vec<WatchOut>,
    ) {
        let Some(w) = self.drop_watch(cookie, objecter) else {
            out.push(WatchOut::Unwatched(cookie));
            return;
        };
        let op = OsdOp::watch(cookie, watch::UNWATCH, w.generation, 0);
        self.submit((&w.locator, &w.oid), op, Sent::Unwatch(cookie), objecter, todo);
    }

    /// A watch is over on this side.
    fn drop_watch(&mut self, cookie: u64, objecter: &mut Objecter) -> Option<Watch> {
        let w = self.watches.remove(&cookie)?;
        objecter.weigh(cookie);
        self.forget(w.registering, objecter);
        self.forget(w.pinging, objecter);
        Some(w)
    }

    /// Answers a notification that was told to a watch.
    pub fn acknowledge(
        &mut self,
        cookie: u64,
        id: u64,
        reply: &[u8],
        objecter: &mut Objecter,
        todo: &mut Vec<ObjecterOut>,
    ) {
        let Some(w) = self.watches.get(&cookie) else { return };
        let (locator, oid) = (w.locator.clone(), w.oid.clone());
        let op = OsdOp::notify_ack(id, cookie, reply);
        self.submit((&locator, &oid), op, Sent::Acknowledge, objecter, todo);
    }

    /// Notifies all who watch an object and waits `timeout` seconds for their answers. Gives a
    /// cookie; [`WatchOut::Notification`] follows.
    pub fn notify(
        &mut self,
        locator: &ObjectLocator,
        oid: &Bytes,
        payload: Bytes,
        timeout: u32,
        objecter: &mut Objecter,
        todo: &mut Vec<ObjecterOut>,
    ) -> u64 {
        self.last_cookie += 1;
        let cookie = self.last_cookie;
        objecter.anchor(cookie, locator, oid);
        let n =
            Notify { locator: locator.clone(), oid: oid.clone(), payload, timeout, asking: None };
        self.notifies.insert(cookie, n);
        self.send_notify(cookie, objecter, todo);
        cookie
    }

    fn send_notify(&mut self, cookie: u64, objecter: &mut Objecter, todo: &mut Vec<ObjecterOut>) {
        let Some(n) = self.notifies.get_mut(&cookie) else { return };
        let op = OsdOp::notify(cookie, n.timeout, &n.payload);
        let (locator, oid, asking) = (n.locator.clone(), n.oid.clone(), n.asking.take());
        self.forget(asking, objecter);
        let tid = self.submit((&locator, &oid), op, Sent::Notify(cookie), objecter, todo);
        if let Some(n) = self.notifies.get_mut(&cookie) {
            n.asking = Some(tid);
        }
    }

    fn end_notify(
        &mut self,
        cookie: u64,
        end: WatchOut,
        objecter: &mut Objecter,
        out: &mut Vec<WatchOut>,
    ) {
        if let Some(n) = self.notifies.remove(&cookie) {
            objecter.weigh(cookie);
            self.forget(n.asking, objecter);
            out.push(end);
        }
    }

    /// Says again what the OSDs may have forgotten.
    pub fn look(&mut self, objecter: &mut Objecter, todo: &mut Vec<ObjecterOut>) {
        for cookie in objecter.moved() {
            self.register(cookie, objecter, todo);
            self.send_notify(cookie, objecter, todo);
        }
    }

    /// When [`Watches::tick`] wants to be called.
    pub fn deadline(&self) -> Duration {
        self.watches.values().map(|w| w.ping_at).min().unwrap_or(Duration::MAX)
    }

    /// Time has come to `now`.
    pub fn tick(&mut self, now: Duration, objecter: &mut Objecter, todo: &mut Vec<ObjecterOut>) {
        self.now = now;
        let due: Vec<u64> = self
            .watches
            .iter()
            .filter(|(_, w)| w.ping_at <= now)
            .map(|(cookie, _)| *cookie)
            .collect();
        for cookie in due {
            let Some(w) = self.watches.get_mut(&cookie) else { continue };
            w.ping_at = Duration::MAX;
            let (locator, oid) = (w.locator.clone(), w.oid.clone());
            let op = OsdOp::watch(cookie, watch::PING, w.generation, 0);
            let tid = self.submit((&locator, &oid), op, Sent::Ping(cookie), objecter, todo);
            if let Some(w) = self.watches.get_mut(&cookie) {
                w.pinging = Some(tid);
            }
        }
    }

    /// An operation is finished. False if it is none of these.
    pub fn done(
        &mut self,
        now: Duration,
        tid: u64,
        reply: &Reply,
        objecter: &mut Objecter,
        out: &mut Vec<WatchOut>,
    ) -> bool {
        self.now = now;
        let Some(sent) = self.sent.remove(&tid) else { return false };
        match sent {
            Sent::Register(cookie) | Sent::Ping(cookie) if reply.result < 0 => {
                if self.drop_watch(cookie, objecter).is_some() {
                    out.push(WatchOut::Lost(cookie, reply.result));
                }
            }
            Sent::Register(cookie) => {
                if let Some(w) = self.watches.get_mut(&cookie) {
                    (w.registering, w.ping_at) = (None, now + PING);
                    if !std::mem::replace(&mut w.known, true) {
                        out.push(WatchOut::Watching(cookie));
                    }
                }
            }
            Sent::Ping(cookie) => {
                if let Some(w) = self.watches.get_mut(&cookie) {
                    (w.pinging, w.ping_at) = (None, now + PING);
                }
            }
            Sent::Unwatch(cookie) => out.push(WatchOut::Unwatched(cookie)),
            Sent::Notify(cookie) if reply.result < 0 => {
                let (replies, missed) = (Vec::new(), Vec::new());
                let end = WatchOut::Notification { cookie, result: reply.result, replies, missed };
                self.end_notify(cookie, end, objecter, out);
            }
            Sent::Notify(cookie) => {
                if let Some(n) = self.notifies.get_mut(&cookie) {
                    n.asking = None;
                }
            }
            // The notifier may have gone, or was told that we did not answer.
            Sent::Acknowledge => {}
        }
        true
    }

    /// An OSD tells of a notification, or what became of ours.
    pub fn message(&mut self, m: MWatchNotify, objecter: &mut Objecter, out: &mut Vec<WatchOut>) {
        match m.opcode {
            notify_op::NOTIFY if self.watches.contains_key(&m.cookie) => {
                let (id, notifier) = (m.notify_id, m.notifier);
                out.push(WatchOut::Notified { cookie: m.cookie, id, notifier, payload: m.payload });
            }
            notify_op::COMPLETE => {
                let (replies, missed) = MWatchNotify::read_completion(&m.data).unwrap_or_default();
                let end = WatchOut::Notification {
                    cookie: m.cookie,
                    result: m.return_code,
                    replies,
                    missed,
                };
                self.end_notify(m.cookie, end, objecter, out);
            }
            notify_op::DISCONNECT if self.drop_watch(m.cookie, objecter).is_some() => {
                out.push(WatchOut::Lost(m.cookie, -errno::ENOTCONN));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
