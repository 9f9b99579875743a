//! Watches and notifications: what their ops mean, and how watchers are kept with an object.
//!
//! Who watches an object is a part of the object: a sorted list ([`Watcher`]), stored as its
//! attribute `watchers` when somebody does, and changed by plans like everything else of it. What
//! of a watch is not stored (its connection, its time, what it was told) the PG keeps
//! ([`crate::watch`]): execution looks at it, and gives what is to become of it as
//! [`WatchEffect`]s, which the PG carries out when the request is answered.

use super::state::ObjectInfo;
use super::vector::{Ran, Stop, Vector, slice};
use crate::watch::watched::Watched;
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};
use spirula_messages::ceph::op::{OsdOp, watch};
use spirula_types::{EntityAddr, EntityName, errno};

/// Raw name of the attribute that holds the [`Watcher`]s, if there are any.
pub const WATCHERS_ATTR: &[u8] = b"watchers";

/// Names a watch of an object: the cookie that its client gave it, and the client. In this order
/// watchers are listed.
pub type WatchKey = (u64, EntityName);

/// Somebody who watches an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watcher {
    /// What its client calls the watch.
    pub cookie: u64,
    /// The client.
    pub name: EntityName,
    /// After so many seconds without a word of the client the watch ends.
    pub timeout: u32,
    /// Where the client was when it began to watch, for showing and for blocklists.
    pub addr: EntityAddr,
}

impl Watcher {
    /// Its name among the object's.
    pub fn key(&self) -> WatchKey {
        (self.cookie, self.name)
    }
}

impl Encode for Watcher {
    fn encode(&self, o: &mut Encoder) {
        o.u64(self.cookie);
        o.put(&self.name);
        o.u32(self.timeout);
        o.put(&self.addr);
    }
}

impl Decode for Watcher {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { cookie: d.u64()?, name: d.get()?, timeout: d.u32()?, addr: d.get()? })
    }
}

/// The stored form of an object's watchers.
pub(super) fn to_attr(watchers: &[Watcher]) -> Bytes {
    let mut o = Encoder::with_capacity(16 + 64 * watchers.len());
    o.versioned(1, 1, |o| o.list(watchers, |o, w| o.put(w)));
    o.into_bytes()
}

/// Reads [`to_attr`].
pub(super) fn from_attr(value: &[u8]) -> Result<Vec<Watcher>, DecodeError> {
    Decoder::new(value).versioned("watchers", 1, |d, _| d.list(21, |d| d.get()))
}

/// Is this the stored form of watchers?
pub fn are_watchers(value: &[u8]) -> bool {
    from_attr(value).is_ok()
}

/// Who asks, and what its watches are like at present.
#[derive(Clone, Copy, Debug)]
pub struct Asker<'a> {
    /// The client.
    pub name: EntityName,
    /// Where it is.
    pub addr: EntityAddr,
    /// Its connection.
    pub conn: crate::ConnId,
    /// Seconds that count where it wishes for none.
    pub timeouts: Timeouts,
    /// What is known of the object's watches beside who they are; `None` if nothing is.
    pub watched: Option<&'a Watched>,
    /// Number of the next notification.
    pub next_notify: u64,
    /// How many notifications it may begin.
    pub may_notify: usize,
    /// How many bytes of notifications, or of answers to them, there is room for.
    pub room: usize,
}

/// Timeouts for those who do not say any, seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Of watches (`osd_client_watch_timeout`).
    pub watch: u32,
    /// Of notifications (`osd_default_notify_timeout`).
    pub notify: u32,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { watch: 30, notify: 30 }
    }
}

/// What becomes of watches and notifications when a request is answered, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEffect {
    /// A watch of the asker is connected by the connection that the request came by.
    Connect {
        /// The watch.
        watcher: Watcher,
        /// Its client pings it, and it ends when these stay out; else it lasts as long as the
        /// connection, and the timeout longer.
        pings: bool,
    },
    /// The asker has pinged a watch.
    Pinged(u64),
    /// A watch ends.
    Ended {
        /// Which.
        key: WatchKey,
        /// Its client does not know yet.
        tell: bool,
    },
    /// All watchers are told something.
    Notify {
        /// Number of the notification.
        id: u64,
        /// What the asker calls it.
        cookie: u64,
        /// After so many seconds no more answers are waited for.
        timeout: u32,
        /// What they are told.
        payload: Bytes,
    },
    /// The asker has heard a notification.
    Ack {
        /// Number of the notification.
        id: u64,
        /// By this watch of its; `None`: by all.
        cookie: Option<u64>,
        /// What it answers.
        reply: Bytes,
    },
}

impl WatchEffect {
    /// If a watch ends, its client does not know yet.
    pub(crate) fn tells(&mut self) {
        if let Self::Ended { tell, .. } = self {
            *tell = true;
        }
    }
}

impl Vector<'_> {
    pub(super) fn watch(&mut self, o: &OsdOp) -> Ran {
        self.must_exist()?;
        let args = o.watch_args();
        let asker = self.ctx.asker;
        let key = (args.cookie, asker.name);
        let at = self.object.watchers.binary_search_by_key(&key, Watcher::key);
        let timeout = if args.timeout == 0 { asker.timeouts.watch } else { args.timeout };
        let asks = matches!(args.op, watch::RECONNECT | watch::PING);
        if asks && at.is_err() && planted!(self.ctx, EndedWatchAnswered) {
            return Ok(0);
        }
        match args.op {
            watch::WATCH | watch::LEGACY_WATCH => {
                let watcher = match at {
                    Ok(i) => self.object.watchers.get(i).copied(),
                    Err(i) => {
                        if self.object.watchers.len() >= self.ctx.limits.max_watchers {
                            return Err(Stop::Errno(errno::E2BIG));
                        }
                        let new = Watcher {
                            cookie: args.cookie,
                            name: asker.name,
                            timeout,
                            addr: asker.addr,
                        };
                        self.object.watchers.insert(i, new);
                        self.object.modified = true;
                        Some(new)
                    }
                };
                let pings = args.op == watch::WATCH;
                self.watch_effects
                    .extend(watcher.map(|watcher| WatchEffect::Connect { watcher, pings }));
            }
            watch::RECONNECT => {
                let found = at.ok().and_then(|i| self.object.watchers.get(i).copied());
                let watcher = found.ok_or(Stop::Errno(errno::ENOTCONN))?;
                self.watch_effects.push(WatchEffect::Connect { watcher, pings: true });
            }
            watch::PING => {
                at.map_err(|_| Stop::Errno(errno::ENOTCONN))?;
                // By another connection than its own its client would not be reached.
                if !asker.watched.is_some_and(|w| w.is_connected(key, asker.conn)) {
                    return Err(Stop::Errno(errno::ETIMEDOUT));
                }
                self.watch_effects.push(WatchEffect::Pinged(args.cookie));
            }
            watch::UNWATCH => {
                if let Ok(i) = at {
                    self.object.watchers.remove(i);
                    self.object.modified = true;
                    self.watch_effects.push(WatchEffect::Ended { key, tell: false });
                }
            }
            // As in Ceph, nothing at all.
            _ => {}
        }
        Ok(0)
    }

    /// All watchers are to be told: the answer is the notification's number.
    pub(super) fn notify(&mut self, o: &OsdOp, out: &mut OsdOp) -> Ran {
        let mut d = Decoder::new(&o.indata);
        // What cannot be read, as in Ceph, is nothing, and waited for as long as usual.
        let mut read = || -> Result<(u32, Bytes), DecodeError> {
            d.u32()?;
            Ok((d.u32()?, slice(&mut d, &o.indata)?))
        };
        let (timeout, payload) = read().unwrap_or_default();
        let asker = self.ctx.asker;
        let begun =
            self.watch_effects.iter().filter(|e| matches!(e, WatchEffect::Notify { .. })).count();
        if payload.len() > self.ctx.limits.max_notify {
            return Err(Stop::Errno(errno::E2BIG));
        }
        if begun >= asker.may_notify || payload.len() > asker.room.saturating_sub(self.told) {
            return Err(Stop::Errno(errno::EBUSY));
        }
        self.told += payload.len();
        let id = asker.next_notify + begun as u64;
        let timeout = if timeout == 0 { asker.timeouts.notify } else { timeout };
        let cookie = o.cookie();
        // The message would be held by it.
        let payload = Bytes::copy_from_slice(&payload);
        self.watch_effects.push(WatchEffect::Notify { id, cookie, timeout, payload });
        let mut e = Encoder::new();
        e.u64(id);
        out.indata = e.into_bytes();
        self.object.stats.count_read(0);
        Ok(self.result)
    }

    pub(super) fn notify_ack(&mut self, o: &OsdOp) -> Ran {
        let asker = self.ctx.asker;
        let mut d = Decoder::new(&o.indata);
        let mut read = || -> Result<(u64, u64, Bytes), DecodeError> {
            let (id, cookie) = (d.u64()?, d.u64()?);
            Ok((
                id,
                cookie,
                if d.remaining() == 0 { Bytes::new() } else { slice(&mut d, &o.indata)? },
            ))
        };
        let ack = match read() {
            Ok((id, cookie, reply)) => {
                if reply.len() > self.ctx.limits.max_notify {
                    return Err(Stop::Errno(errno::E2BIG));
                }
                if reply.len() > asker.room.saturating_sub(self.told) {
                    return Err(Stop::Errno(errno::EBUSY));
                }
                self.told += reply.len();
                WatchEffect::Ack { id, cookie: Some(cookie), reply: Bytes::copy_from_slice(&reply) }
            }
            // The old form has the number where others have the cookie.
            Err(_) => WatchEffect::Ack { id: o.cookie(), cookie: None, reply: Bytes::new() },
        };
        self.watch_effects.push(ack);
        self.object.stats.count_read(0);
        Ok(self.result)
    }

    pub(super) fn list_watchers(&mut self, out: &mut OsdOp) -> Ran {
        let mut o = Encoder::new();
        o.versioned(1, 1, |o| {
            o.list(&self.object.watchers, |o, w| {
                o.versioned(2, 1, |o| {
                    o.put(&w.name);
                    o.u64(w.cookie);
                    o.u32(w.timeout);
                    o.put(&w.addr);
                });
            });
        });
        out.indata = o.into_bytes();
        self.object.stats.count_read(0);
        Ok(0)
    }
}

impl Vector<'_> {
    /// The object goes, and with it all watches: their clients are told.
    pub(super) fn end_watches(&mut self) {
        let all = std::mem::take(&mut self.object.watchers);
        self.watch_effects
            .extend(all.iter().map(|w| WatchEffect::Ended { key: w.key(), tell: true }));
        self.object.info.set(ObjectInfo::WATCHED, false);
    }
}
