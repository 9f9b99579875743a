//! What of watches and notifications is not stored: who can be told something, until when, and what
//! was told.
//!
//! Who watches an object is stored with it ([`exec::Watcher`](crate::exec::Watcher)) and changed by
//! writes like any other. This module keeps, at the primary and in memory, what goes with that: the
//! connection by which each watch is reached, the time at which it ends, and the notifications
//! under way. `exec` gives what an op means for them ([`WatchEffect`]); it is carried out when the
//! request is answered, so a watch is reached from the moment on in which its client may count on
//! it, and not before it is durable.
//!
//! # When what is known
//! An object's watches are known from the first request on that is executed on it in an interval
//! ([`Lead::know_watches`]); as in Ceph nobody looks for them before. They begin unconnected, with
//! all of their time, so the watches of a client that is gone end one timeout after somebody asks
//! for the object. What is stored is followed: a watch that is known and not stored any more ends,
//! one that is stored and not known begins. So what is here may be lost at any time (and is, when
//! the primary changes or the PG is split or merged), and costs nothing but the time by which a
//! dead client's watch is kept longer. While the primary stays, it is kept beyond the interval: a
//! client need not see that one ended, and would not connect again.
//!
//! # Why no watch that its client counts on misses a notification
//! A client counts on its watch while pings are answered. A ping is answered only by the connection
//! that the watch is reached by; like any read it is executed after all earlier changes of the
//! object are durable, and under a read lease. A notification is a read, too. So at the time of a
//! ping that is answered well no newer primary exists that could have begun a notification, every
//! notification that was begun here before was sent by this connection or is still under way, and
//! every one that begins later, here or elsewhere, finds the watch stored and waits for it: until
//! it is answered, its time is over (then the notifier is told who did not answer), or the watch
//! has ended, which a client hears by the next ping. A watch that is connected again is told what
//! is under way.
//!
//! # Time
//! A PG that knows of a watch or a notification is ticked ([`Pg::wants_tick`]); it then does what
//! is due, if it serves. That notifications' time is over it says only under a read lease.
//!
//! The time of a watch runs while its client can ping. Requests for a PG that does not serve, or
//! for an object that cannot be had, wait, or their client is told to hold them
//! ([`crate::backoff`]). So all watches begin their time anew when the PG begins to serve, as in
//! Ceph, and those of an object while clients are told to hold what they have for it, and when they
//! are told to go on.
//!
//! # Bounds
//! Watches of an object: [`Limits::max_watchers`](crate::exec::Limits::max_watchers).
//! Notifications: [`notify::NOTIFIES`] in a PG, [`notify::NOTIFIES_EACH`] of one connection,
//! [`notify::NOTIFY_BYTES`] of payloads and answers in a PG; what would be more is refused with
//! EBUSY. A notification whose notifier's connection is gone is given up: nobody is left who could
//! be told how it ended, and a client that comes again notifies again.

mod notify;
#[cfg(test)]
mod tests;
pub(crate) mod watched;

use crate::MapView;
use crate::api::{ConnId, PgEffect};
use crate::core::Cx;
use crate::exec::{WatchEffect, WatchKey, Watcher};
use crate::lead::Lead;
use crate::pg::Pg;
use crate::requests::Own;
use notify::Notifies;
use spirula_messages::ceph::op::{self, OsdOp, watch};
use spirula_messages::ceph::osd::{MWatchNotify, notify_op};
use spirula_types::{EntityName, HObject, ReqId};
use std::collections::{BTreeMap, BTreeSet};
use watched::Watch;
pub use watched::Watched;

/// Between two attempts to remove a watch, milliseconds.
const AGAIN_MS: u64 = 5000;
/// Never, in milliseconds.
const NEVER: u64 = u64::MAX;

/// A watch, for showing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownWatch {
    /// The object.
    pub object: HObject,
    /// Who watches it, and since when from where.
    pub watcher: Watcher,
}

/// Who asked, for what becomes of watches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who {
    pub conn: ConnId,
    pub name: EntityName,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    /// Objects that are watched, as far as they are known.
    objects: BTreeMap<HObject, Watched>,
    notifies: Notifies,
}

impl Watches {
    /// What is known of an object's watches.
    pub fn of(&self, object: &HObject) -> Option<&Watched> {
        self.objects.get(object)
    }

    /// Number of the next notification, in the time of the map of this epoch.
    pub fn next_notify(&self, epoch: u32) -> u64 {
        self.notifies.next(epoch)
    }

    /// How many notifications may this connection begin, and how many bytes is there room for?
    pub fn may_notify(&self, conn: ConnId) -> (usize, usize) {
        self.notifies.room(conn)
    }

    /// Is a watch, or a notification, of this connection here?
    pub fn minds(&self, conn: ConnId) -> bool {
        self.objects.values().any(|o| o.watches.values().any(|w| w.conn == Some(conn)))
            || self.notifies.are_of(conn)
    }

    /// Others lead now, or the PG has other objects: what is known is of no use.
    pub fn clear(&mut self) {
        self.objects.clear();
        self.notifies.clear();
    }

    /// A role ends: what is stored may change before the next.
    pub fn leave_role(&mut self) {
        for o in self.objects.values_mut() {
            o.unsure = true;
            o.watches.values_mut().for_each(|w| (w.leaving, w.again_ms) = (false, 0));
        }
    }

    fn watch(&mut self, object: &HObject, key: WatchKey) -> Option<&mut Watch> {
        self.objects.get_mut(object)?.watches.get_mut(&key)
    }

    /// Forgets a watch; what waited for its answer does so no longer.
    fn forget(
        &mut self,
        object: &HObject,
        key: WatchKey,
        out: &mut Vec<PgEffect>,
    ) -> Option<Watch> {
        let watched = self.objects.get_mut(object)?;
        let watch = watched.watches.remove(&key)?;
        if watched.watches.is_empty() {
            self.objects.remove(object);
        }
        for id in &watch.owes {
            self.notifies.gone(*id, key, out);
        }
        Some(watch)
    }

    /// What is stored of an object's watches has been read.
    fn know(&mut self, object: &HObject, stored: &[Watcher], now_ms: u64, out: &mut Vec<PgEffect>) {
        let known = self.objects.get(object);
        if known.is_some_and(|o| !o.unsure) || known.is_none() && stored.is_empty() {
            return;
        }
        let watched = self.objects.entry(object.clone()).or_default();
        watched.unsure = false;
        let is_stored = |key: &WatchKey| stored.iter().any(|w| w.key() == *key);
        let gone: Vec<WatchKey> =
            watched.watches.keys().filter(|k| !is_stored(k)).copied().collect();
        for w in stored {
            watched.watches.entry(w.key()).or_insert_with(|| Watch::new(w, now_ms));
        }
        for key in gone {
            if let Some(conn) = self.forget(object, key, out).and_then(|w| w.conn) {
                out.push(disconnected(conn, key.0));
            }
        }
    }

    /// A watch is connected.
    fn connect(
        &mut self,
        object: &HObject,
        w: &Watcher,
        pings: bool,
        conn: ConnId,
        now_ms: u64,
        out: &mut Vec<PgEffect>,
    ) {
        let watch = self.objects.entry(object.clone()).or_default();
        let watch = watch.watches.entry(w.key()).or_insert_with(|| Watch::new(w, now_ms));
        watch.renew(now_ms);
        let before = std::mem::replace(&mut watch.conn, (conn != 0).then_some(conn));
        watch.pings = pings;
        if !pings && watch.conn.is_some() {
            watch.ends_ms = NEVER;
        }
        if before != watch.conn && conn != 0 {
            for id in &watch.owes {
                out.extend(
                    self.notifies.told(*id, w.cookie).map(|m| PgEffect::Tell(conn, Box::new(m))),
                );
            }
        }
    }

    /// A connection is gone.
    pub fn closed(&mut self, conn: ConnId, now_ms: u64) {
        for w in self
            .objects
            .values_mut()
            .flat_map(|o| o.watches.values_mut())
            .filter(|w| w.conn == Some(conn))
        {
            w.conn = None;
            if !w.pings {
                w.renew(now_ms);
            }
        }
        for (id, object, waiting) in self.notifies.closed(conn) {
            for key in waiting {
                if let Some(w) = self.watch(&object, key) {
                    w.owes.remove(&id);
                }
            }
        }
    }

    /// Everybody who watches an object is told something.
    fn notify(&mut self, object: &HObject, n: notify::Begun, now_ms: u64, out: &mut Vec<PgEffect>) {
        let (id, timeout) = (n.id, n.timeout);
        let mut waiting = BTreeSet::new();
        let mut reached = Vec::new();
        if let Some(watched) = self.objects.get_mut(object) {
            for (key, w) in &mut watched.watches {
                w.owes.insert(id);
                waiting.insert(*key);
                reached.extend(w.conn.map(|conn| (conn, key.0)));
            }
        }
        let ends_ms = now_ms + u64::from(timeout) * 1000;
        self.notifies.begin(object, n, waiting, ends_ms);
        for (conn, cookie) in reached {
            out.extend(self.notifies.told(id, cookie).map(|m| PgEffect::Tell(conn, Box::new(m))));
        }
        self.notifies.complete(id, out);
    }

    /// Whoever cannot be told of a notification is waited for no longer: a bug to be planted.
    fn pass_unconnected(&mut self, object: &HObject, id: u64, out: &mut Vec<PgEffect>) {
        let Some(watched) = self.objects.get_mut(object) else { return };
        for (key, w) in watched.watches.iter_mut().filter(|(_, w)| w.conn.is_none()) {
            if w.owes.remove(&id) {
                self.notifies.gone(id, *key, out);
            }
        }
    }

    /// Clients could not ping their watches, of this object or (`None`) of any: these have all of
    /// their time again. `connected`: only those whose clients are connected; nobody else was kept
    /// from pinging.
    pub fn renew(&mut self, object: Option<&HObject>, connected: bool, now_ms: u64) {
        let those =
            self.objects.iter_mut().filter(|(o, _)| object.is_none_or(|object| *o == object));
        let watches = those.flat_map(|(_, of)| of.watches.values_mut());
        for w in watches.filter(|w| !connected || w.conn.is_some()) {
            // One that lasts as long as its connection is not to end earlier.
            w.ends_ms = w.ends_ms.max(now_ms + u64::from(w.timeout) * 1000);
        }
    }

    /// Somebody has answered a notification.
    fn acked(
        &mut self,
        object: &HObject,
        name: EntityName,
        id: u64,
        cookie: Option<u64>,
        reply: &bytes::Bytes,
        out: &mut Vec<PgEffect>,
    ) {
        let Some(watched) = self.objects.get_mut(object) else { return };
        let its = |key: &WatchKey| key.1 == name && cookie.is_none_or(|c| c == key.0);
        for (key, w) in watched.watches.iter_mut().filter(|(k, _)| its(k)) {
            if w.owes.remove(&id) {
                self.notifies.answered(id, *key, reply.clone(), out);
            }
        }
    }

    /// Notifications whose time is over end.
    fn end_notifies(&mut self, now_ms: u64, out: &mut Vec<PgEffect>) {
        for (id, object, missed) in self.notifies.time_out(now_ms, out) {
            for key in missed {
                if let Some(w) = self.watch(&object, key) {
                    w.owes.remove(&id);
                }
            }
        }
    }

    /// Watches that are to go, and are not going yet.
    fn due(&self, now_ms: u64, view: &MapView) -> Vec<(HObject, WatchKey)> {
        let all =
            self.objects.iter().flat_map(|(o, of)| of.watches.iter().map(move |(k, w)| (o, k, w)));
        let due = all.filter(|(_, _, w)| !w.leaving && w.is_due(now_ms, view));
        due.map(|(o, k, _)| (o.clone(), *k)).collect()
    }

    /// Is this watch to go?
    pub fn is_due(&self, object: &HObject, key: WatchKey, now_ms: u64, view: &MapView) -> bool {
        self.objects
            .get(object)
            .and_then(|o| o.watches.get(&key))
            .is_some_and(|w| w.is_due(now_ms, view))
    }

    /// Nothing to be told to anybody, and nothing whose time could be over?
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.notifies.is_empty()
    }
}

impl Watch {
    fn is_due(&self, now_ms: u64, view: &MapView) -> bool {
        self.ends_ms <= now_ms || view.shuts_out(&self.addr)
    }
}

/// A client hears that its watch has ended.
fn disconnected(conn: ConnId, cookie: u64) -> PgEffect {
    PgEffect::Tell(
        conn,
        Box::new(MWatchNotify {
            opcode: notify_op::DISCONNECT,
            cookie,
            version: 0,
            notify_id: 0,
            payload: bytes::Bytes::new(),
            return_code: 0,
            notifier: 0,
            data: bytes::Bytes::new(),
        }),
    )
}

impl Pg {
    /// What is known of the watches of its objects.
    pub fn watchers(&self) -> Vec<ShownWatch> {
        let shown = |object: &HObject, key: &WatchKey, w: &Watch| ShownWatch {
            object: object.clone(),
            watcher: Watcher { cookie: key.0, name: key.1, timeout: w.timeout, addr: w.addr },
        };
        let all = self.watches.objects.iter();
        all.flat_map(|(o, of)| of.watches.iter().map(move |(k, w)| shown(o, k, w))).collect()
    }

    /// Is a watch, or a notification, of this connection here?
    pub fn minds_connection(&self, conn: ConnId) -> bool {
        self.watches.minds(conn)
    }
}

impl Lead<'_> {
    /// An object's state has been loaded: who watches it is known.
    pub(crate) fn know_watches(&mut self, object: &HObject, stored: &[Watcher], cx: &mut Cx<'_>) {
        let stored = if planted!(self.core.cfg, WatchesForgotten) { &[] } else { stored };
        self.watches.know(object, stored, cx.now.mono_ms, cx.out);
        if self.watches.of(object).is_some() {
            self.remove_due(cx);
        }
    }

    /// A request begins a change by which watches will be connected: they do not end meanwhile.
    pub(crate) fn watches_planned(
        &mut self,
        object: &HObject,
        effects: &[WatchEffect],
        cx: &Cx<'_>,
    ) {
        for e in effects {
            match e {
                WatchEffect::Connect { watcher, .. } => {
                    if let Some(w) = self.watches.watch(object, watcher.key()) {
                        w.ends_ms = w.ends_ms.max(cx.now.mono_ms + u64::from(w.timeout) * 1000);
                    }
                }
                WatchEffect::Notify { id, .. } => self.watches.notifies.planned(*id),
                _ => {}
            }
        }
    }

    /// Carries out what a request that has been answered means for watches. `version` is the
    /// object's user version.
    pub(crate) fn watch_effects(
        &mut self,
        object: &HObject,
        effects: &[WatchEffect],
        who: Who,
        version: u64,
        cx: &mut Cx<'_>,
    ) {
        let now = cx.now.mono_ms;
        for e in effects {
            match e {
                WatchEffect::Connect { watcher, pings } => {
                    self.watches.connect(object, watcher, *pings, who.conn, now, cx.out);
                }
                WatchEffect::Pinged(cookie) => {
                    if let Some(w) = self.watches.watch(object, (*cookie, who.name)) {
                        w.renew(now);
                    }
                }
                WatchEffect::Ended { key, tell } => {
                    let gone = self.watches.forget(object, *key, cx.out);
                    cx.out.extend(
                        gone.and_then(|w| w.conn)
                            .filter(|_| *tell)
                            .map(|conn| disconnected(conn, key.0)),
                    );
                }
                // Nobody is left to be told what came of it.
                WatchEffect::Notify { .. } if who.conn == 0 => {}
                WatchEffect::Notify { id, cookie, timeout, payload } => {
                    let n = notify::Begun {
                        id: *id,
                        conn: who.conn,
                        client: who.name.num as u64,
                        cookie: *cookie,
                        version,
                        payload: payload.clone(),
                        timeout: *timeout,
                    };
                    self.watches.notify(object, n, now, cx.out);
                    if planted!(self.core.cfg, UnconnectedPassed) {
                        self.watches.pass_unconnected(object, *id, cx.out);
                    }
                }
                WatchEffect::Ack { id, cookie, reply } => {
                    self.watches.acked(object, who.name, *id, *cookie, reply, cx.out);
                }
            }
        }
        if effects.iter().any(|e| matches!(e, WatchEffect::Connect { .. })) {
            // Its client may have been shut out meanwhile.
            self.remove_due(cx);
        }
    }

    /// Time passed, or a map came: what is due is done.
    pub(crate) fn watch_tick(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now.mono_ms;
        if self.watches.is_empty() || !self.primary.serves() {
            return;
        }
        for w in self.watches.objects.values_mut().flat_map(|o| o.watches.values_mut()) {
            if (1..=now).contains(&w.again_ms) {
                (w.leaving, w.again_ms) = (false, 0);
            }
        }
        // Whoever may have been replaced says nothing.
        if self.primary.lease_holds(self.core, cx.leases, now) {
            self.watches.end_notifies(now, cx.out);
        }
        self.remove_due(cx);
    }

    /// A watch that was to be removed need not be: its client is there again, or it is not stored
    /// any more.
    pub(crate) fn watch_stays(
        &mut self,
        object: &HObject,
        key: WatchKey,
        stored: bool,
        cx: &mut Cx<'_>,
    ) {
        if !stored {
            let gone = self.watches.forget(object, key, cx.out);
            cx.out.extend(gone.and_then(|w| w.conn).map(|conn| disconnected(conn, key.0)));
        } else if let Some(w) = self.watches.watch(object, key) {
            w.leaving = false;
        }
    }

    /// A request to remove a watch has ended: if the watch is still there, it is tried again later.
    pub(crate) fn watch_not_removed(&mut self, object: &HObject, key: WatchKey, cx: &Cx<'_>) {
        if let Some(w) = self.watches.watch(object, key) {
            (w.leaving, w.again_ms) = (true, cx.now.mono_ms + AGAIN_MS);
        }
    }

    /// The answer to a request for watches was lost, and is said again: they are connected by the
    /// connection that asks now.
    pub(crate) fn connect_again(
        &mut self,
        object: &HObject,
        ops: &[OsdOp],
        stored: &[Watcher],
        who: Who,
        cx: &mut Cx<'_>,
    ) {
        let mut effects = Vec::new();
        for o in ops.iter().filter(|o| o.op == op::WATCH) {
            let args = o.watch_args();
            let connects = matches!(args.op, watch::WATCH | watch::LEGACY_WATCH | watch::RECONNECT);
            let found = stored.iter().find(|w| connects && w.key() == (args.cookie, who.name));
            let pings = args.op != watch::LEGACY_WATCH;
            effects.extend(found.map(|w| WatchEffect::Connect { watcher: *w, pings }));
        }
        self.watch_effects(object, &effects, who, 0, cx);
    }

    /// Begins to remove the watches whose time is over, and those of clients that are shut out: by
    /// a request of our own, that takes its turn like others'.
    fn remove_due(&mut self, cx: &mut Cx<'_>) {
        let Some(view) = self.core.view.clone().filter(|_| self.primary.serves()) else { return };
        for (object, key) in self.watches.due(cx.now.mono_ms, &view) {
            let Some(w) = self.watches.watch(&object, key) else { continue };
            w.leaving = true;
            tracing::debug!(pg = %self.core.id, %object, client = %key.1, cookie = key.0, "a watch \
                ends");
            let unwatch = vec![OsdOp::watch(key.0, watch::UNWATCH, 0, 0)];
            let whose = ReqId { name: key.1, ..ReqId::default() };
            self.enqueue_own(&object, unwatch, whose, Own::Unwatch(key));
        }
    }

    /// Is a watch to go, by its time or by its client's address?
    pub(crate) fn is_watch_due(&self, object: &HObject, key: WatchKey, cx: &Cx<'_>) -> bool {
        let due = |view| self.watches.is_due(object, key, cx.now.mono_ms, view);
        self.core.view.as_deref().is_some_and(due)
    }
}
