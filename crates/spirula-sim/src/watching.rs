//! Clients that watch objects and notify those who do, and what they may rely on.
//!
//! All clients share a book of their watches ([`Book`]); each notification has a number that is its
//! payload. What must hold, whatever happens in between:
//!
//! * A notification that ends as complete was answered by everybody who watched the object from
//!   before it began, and does so still: by name, with the answer that was given. Who is not named
//!   in it must have lost his watch, and learns it in the end.
//! * One whose time is over names those who did not answer; who is named neither way must have lost
//!   his watch, too.
//! * Nobody is named as having answered who did not, or otherwise than he did.
//! * In the time of peace each notification comes to an end, and nobody believes in a watch that is
//!   gone.
//!
//! The machine that keeps watches is the one that Spirula's own programs have
//! ([`spirula_client::Watches`]). What a client believes of its watch is what that machine tells
//! it: [`WatchOut::Watching`] and [`WatchOut::Lost`].

use crate::content::locator;
use crate::rng::Rng;
use crate::wrong::{Sign, Wrong};
use bytes::Bytes;
use spirula_client::{Objecter, ObjecterOut, Reply, Request, WatchOut, Watches};
use spirula_encoding::UTime;
use spirula_messages::ceph::MWatchNotify;
use spirula_messages::ceph::op::OsdOp;
use spirula_messages::ceph::osd::NotifyReply;
use spirula_types::errno;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Objects of each pool that are watched.
const OBJECTS: u64 = 2;
/// Watches, and notifications, of a client at a time.
const WATCHES: usize = 3;
const NOTIFIES: usize = 3;

/// A pool, and a number.
type Place = (i64, u64);
/// Global id of a client, and what it calls its watch.
type Name = (u64, u64);

/// A watch, as its holder believes.
#[derive(Debug)]
struct Held {
    at: Place,
    /// Since when, true microseconds.
    from: u64,
    /// It was lost, or its holder wanted no more of it.
    ended: bool,
}

#[derive(Debug, Default)]
struct Pages {
    held: BTreeMap<Name, Held>,
    last: u64,
    /// Which notifications a watch has answered.
    answered: BTreeSet<(Name, u64)>,
    /// Watches that must prove to be lost, and why.
    doubts: Vec<(Name, String)>,
}

/// What all clients know of each other's watches.
#[derive(Clone, Debug, Default)]
pub struct Book(Arc<Mutex<Pages>>);

impl Book {
    fn open(&self) -> std::sync::MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In the end: is somebody left who believes in a watch, and was passed over?
    pub fn verdict(&self) -> Result<(), Wrong> {
        let pages = self.open();
        let believes = |name: &Name| pages.held.get(name).is_some_and(|h| !h.ended);
        match pages.doubts.iter().find(|(name, _)| believes(name)) {
            Some((name, why)) => {
                Err(Sign::Watch.of(format!("{name:?} still believes in its watch, yet {why}")))
            }
            None => Ok(()),
        }
    }
}

/// A notification of ours.
#[derive(Debug)]
struct Asked {
    at: Place,
    number: u64,
    begun: u64,
}

/// One client's part.
pub struct Watching {
    pub book: Book,
    rng: Rng,
    machine: Watches,
    /// Objects that are being made, to be watched then.
    making: BTreeMap<u64, Place>,
    /// Watches that are wanted or there.
    mine: BTreeMap<u64, Place>,
    asked: BTreeMap<u64, Asked>,
    /// How many watches were had, and lost; notifications that ended as complete, and late; that
    /// were told again.
    pub counts: [u64; 5],
}

impl Watching {
    /// Nothing yet.
    pub fn new(book: Book, rng: Rng) -> Self {
        Self {
            book,
            rng,
            machine: Watches::new(0),
            making: BTreeMap::new(),
            mine: BTreeMap::new(),
            asked: BTreeMap::new(),
            counts: [0; 5],
        }
    }

    /// Does it wait for nothing?
    pub fn done(&self) -> bool {
        self.asked.is_empty() && self.making.is_empty()
    }

    /// What it waits for.
    pub fn waits(&self) -> String {
        format!("notifications {:?}, objects to watch {:?}", self.asked, self.making)
    }

    fn name_of(at: Place) -> Bytes {
        format!("watched{}", at.1).into()
    }

    /// Time passes: begins something, now and then. `pools`: where.
    pub fn tick(
        &mut self,
        (mono, now): (Duration, u64),
        me: u64,
        pools: &[i64],
        objecter: &mut Objecter,
        todo: &mut Vec<ObjecterOut>,
    ) -> Result<(), String> {
        self.machine.tick(mono, objecter, todo);
        if pools.is_empty() {
            return Ok(());
        }
        let (pool, number) =
            (self.rng.pick(pools).copied().unwrap_or_default(), self.rng.below(OBJECTS));
        let at = (pool, number);
        match self.rng.below(60) {
            0..4 if self.mine.len() + self.making.len() < WATCHES => {
                let ops = vec![OsdOp::create(false)];
                let request = Request::new(locator(pool), Self::name_of(at), ops, UTime::ZERO);
                self.making.insert(objecter.submit(request, todo), at);
            }
            4..8 if self.asked.len() < NOTIFIES => {
                let number = {
                    let mut pages = self.book.open();
                    pages.last += 1;
                    pages.last
                };
                let (payload, timeout) = (number.to_string().into(), self.rng.between(1, 8) as u32);
                let cookie = self.machine.notify(
                    &locator(pool),
                    &Self::name_of(at),
                    payload,
                    timeout,
                    objecter,
                    todo,
                );
                self.asked.insert(cookie, Asked { at, number, begun: now });
            }
            8 if self.rng.one_in(4) => {
                let Some(cookie) = self.mine.keys().next().copied() else { return Ok(()) };
                self.end(me, cookie);
                let mut out = Vec::new();
                self.machine.unwatch(cookie, objecter, todo, &mut out);
                return self.hear((mono, now), me, out, objecter, todo);
            }
            _ => {}
        }
        Ok(())
    }

    /// A watch is believed in no more.
    fn end(&mut self, me: u64, cookie: u64) {
        self.mine.remove(&cookie);
        if let Some(held) = self.book.open().held.get_mut(&(me, cookie)) {
            held.ended = true;
        }
    }

    /// Connections or maps have changed.
    pub fn look(&mut self, objecter: &mut Objecter, todo: &mut Vec<ObjecterOut>) {
        self.machine.look(objecter, todo);
    }

    /// An operation is finished; `None` if it is none of these.
    pub fn reply(
        &mut self,
        at: (Duration, u64),
        me: u64,
        tid: u64,
        reply: &Reply,
        objecter: &mut Objecter,
        todo: &mut Vec<ObjecterOut>,
    ) -> Option<Result<(), String>> {
        if let Some(place) = self.making.remove(&tid) {
            if reply.result == 0 {
                let timeout = *self.rng.pick(&[6, 6, 10, 30]).unwrap_or(&30);
                let cookie = self.machine.watch(
                    &locator(place.0),
                    &Self::name_of(place),
                    timeout,
                    objecter,
                    todo,
                );
                self.mine.insert(cookie, place);
            }
            // Else the pool is gone, or has no room.
            return Some(Ok(()));
        }
        let mut out = Vec::new();
        let known = self.machine.done(at.0, tid, reply, objecter, &mut out);
        known.then(|| self.hear(at, me, out, objecter, todo))
    }

    /// An OSD tells something about watches.
    pub fn message(
        &mut self,
        at: (Duration, u64),
        me: u64,
        m: MWatchNotify,
        objecter: &mut Objecter,
        todo: &mut Vec<ObjecterOut>,
    ) -> Result<(), String> {
        let mut out = Vec::new();
        self.machine.message(m, objecter, &mut out);
        self.hear(at, me, out, objecter, todo)
    }

    fn hear(
        &mut self,
        (_, now): (Duration, u64),
        me: u64,
        out: Vec<WatchOut>,
        objecter: &mut Objecter,
        todo: &mut Vec<ObjecterOut>,
    ) -> Result<(), String> {
        for o in out {
            match o {
                WatchOut::Watching(cookie) => {
                    let Some(at) = self.mine.get(&cookie).copied() else { continue };
                    self.counts[0] += 1;
                    let held = Held { at, from: now, ended: false };
                    self.book.open().held.insert((me, cookie), held);
                }
                WatchOut::Lost(cookie, _) => {
                    self.counts[1] += u64::from(self.mine.contains_key(&cookie));
                    self.end(me, cookie);
                }
                WatchOut::Unwatched(_) => {}
                WatchOut::Notified { cookie, id, payload, .. } => {
                    let said = std::str::from_utf8(&payload).ok().and_then(|p| p.parse().ok());
                    let number: u64 = said.ok_or_else(|| format!("was notified of {payload:?}"))?;
                    // Some do not answer.
                    if self.rng.one_in(12) {
                        continue;
                    }
                    self.counts[4] +=
                        u64::from(!self.book.open().answered.insert(((me, cookie), number)));
                    self.machine.acknowledge(cookie, id, &answer(number, cookie), objecter, todo);
                }
                WatchOut::Notification { cookie, result, replies, missed } => {
                    let Some(asked) = self.asked.remove(&cookie) else { continue };
                    self.ended(&asked, result, &replies, &missed, now)?;
                }
            }
        }
        Ok(())
    }

    /// A notification of ours has come to an end.
    fn ended(
        &mut self,
        asked: &Asked,
        result: i32,
        replies: &[NotifyReply],
        missed: &[Name],
        now: u64,
    ) -> Result<(), String> {
        let late = result == -errno::ETIMEDOUT;
        if result != 0 && !late {
            // The object or the pool is not there, or it was one too many.
            return Ok(());
        }
        let Asked { at, number, begun } = asked;
        if late == missed.is_empty() {
            return Err(format!(
                "notification {number} is answered {result}, and {missed:?} did not answer"
            ));
        }
        self.counts[if late { 3 } else { 2 }] += 1;
        let mut pages = self.book.open();
        for r in replies {
            let gave = pages.answered.contains(&((r.client, r.cookie), *number));
            if !gave || r.reply[..] != answer(*number, r.cookie)[..] {
                return Err(format!("notification {number} has an answer that nobody gave: {r:?}"));
            }
        }
        let named: BTreeSet<Name> =
            replies.iter().map(|r| (r.client, r.cookie)).chain(missed.iter().copied()).collect();
        let lives = |h: &Held| h.at == *at && h.from < *begun && !h.ended;
        let passed = pages.held.iter().filter(|(name, h)| lives(h) && !named.contains(name));
        let passed: Vec<Name> = passed.map(|(name, _)| *name).collect();
        for name in passed {
            let why = format!(
                "notification {number} of {at:?}, begun at {begun}, ended {result} at {now} \
                    without it"
            );
            pages.doubts.push((name, why));
        }
        Ok(())
    }
}

/// What a watch answers to a notification.
fn answer(number: u64, cookie: u64) -> Vec<u8> {
    format!("{number} {cookie}").into_bytes()
}
