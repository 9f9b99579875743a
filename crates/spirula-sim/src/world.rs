//! Time, links, and who gets what when.
//!
//! Links keep order and lose nothing while they live; a link that is cut loses what is sent into
//! the cut direction, and ends for both sides a while later. Different links overtake each other.
//! OSDs have connections of bytes between them ([`crate::stream`]).

use crate::rng::Rng;
use crate::stream::{Broken, Part, Stream};
use crate::tell;
use spirula_encoding::UTime;
use spirula_encoding::crc::crc32c;
use spirula_messages::Message;
use spirula_messages::cluster::quorum::Carried;
use spirula_messenger::Limits;
use spirula_mon::Peer;
use spirula_types::EntityAddr;
use std::any::Any;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::IpAddr;
use std::time::Duration;

/// A network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Net {
    /// Where everybody is.
    Public,
    /// Where only OSDs are.
    Cluster,
}

/// The third byte of an address in the cluster network.
pub const CLUSTER: u8 = 3;

impl Net {
    pub(crate) fn of(addr: &EntityAddr) -> Self {
        match addr.addr.map(|a| a.ip()) {
            Some(IpAddr::V4(ip)) if ip.octets().get(2) == Some(&CLUSTER) => Self::Cluster,
            _ => Self::Public,
        }
    }
}

/// Number of an actor.
pub type ActorId = usize;

/// What the clocks of a machine do that is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clocks {
    /// They go on: the monotonic one that daemons use counts that time (`spirula_runtime::clock`).
    Go,
    /// The wall clock does not, as that of a virtual machine that is stopped.
    WallStill,
    /// None does, as those of a virtual machine that is paused with its clocks.
    Still,
}

/// What an actor knows of time and itself.
#[derive(Clone, Copy, Debug)]
pub struct Local {
    /// Its own number.
    pub id: ActorId,
    /// Its monotonic clock.
    pub mono: Duration,
    /// Microseconds that its clocks gain in a second.
    pub drift: i64,
    /// Its wall clock.
    pub wall: UTime,
    /// True time in microseconds; for notes, not for decisions.
    pub true_us: u64,
}

/// What happens to an actor.
#[derive(Clone, Debug)]
pub enum Input {
    /// It runs, for the first time or again; what it had in memory is gone.
    Start,
    /// Its regular tick.
    Tick,
    /// Somebody connected, or a connection it asked for is there.
    Opened {
        /// The connection.
        conn: u64,
        /// Who is there.
        peer: Peer,
        /// The other actor.
        from: ActorId,
    },
    /// A message.
    Message {
        /// Over which connection.
        conn: u64,
        /// What.
        message: Message,
    },
    /// The connection is gone, or did not come to be.
    Closed {
        /// Which.
        conn: u64,
        /// How it ended.
        end: End,
    },
    /// A timer it set is due: a disk's write, for example.
    Timer(u64),
    /// A connection of bytes is there: one it called for, or somebody's.
    Called {
        /// Which.
        conn: u64,
        /// The other actor.
        from: ActorId,
        /// In which network.
        net: Net,
    },
    /// Bytes came.
    Bytes {
        /// Over which connection.
        conn: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// A connection of bytes is over, or did not come to be.
    Broken {
        /// Which.
        conn: u64,
        /// How.
        how: Broken,
    },
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// Nobody listens there.
    Refused,
    /// The process at the other side ended, and nobody listens there any more.
    Gone,
    /// The other side closed it.
    Closed,
    /// No answer came for a while.
    Silent,
}

/// What an actor does.
#[derive(Clone, Debug)]
pub enum Output {
    /// Connects to another actor, as `peer`, with a number from [`World::conn_numbers`] on that
    /// it picks itself.
    Connect {
        /// Number of the connection.
        conn: u64,
        /// To whom.
        to: ActorId,
        /// The address it is to have, if that matters.
        addr: EntityAddr,
        /// Who says so.
        peer: Peer,
    },
    /// Calls another actor for a connection of bytes.
    Dial {
        /// Number of the connection.
        conn: u64,
        /// Whom.
        to: ActorId,
        /// In which network.
        net: Net,
        /// How long sent bytes may stay unacknowledged, microseconds.
        patience_us: u64,
    },
    /// Bytes for a connection.
    Write(u64, Vec<u8>),
    /// Ends a connection of bytes.
    Hang(u64, Broken),
    /// Sends; lost if the connection is gone.
    Send(u64, Message),
    /// Ends a connection for both sides.
    Close(u64),
    /// Wants [`Input::Timer`] after so many microseconds.
    Timer(u64, u64),
    /// It ends by itself, with a reason: nothing but a defect would give one.
    Exit(String),
    /// It ends by itself.
    Stop,
}

/// A state machine in the world.
pub trait Actor {
    /// Advances by one event.
    fn handle(&mut self, local: Local, input: Input, out: &mut Vec<Output>);
    /// The process is gone: memory is lost, disks keep what they keep.
    fn crash(&mut self, rng: &mut Rng);
    /// May `peer`, who asks for somebody at `addr`, connect now? A refused connection closes.
    fn admits(&mut self, peer: &mut Peer, addr: &EntityAddr) -> bool;
    /// For checks that know what it is.
    fn as_any(&mut self) -> &mut dyn Any;
}

struct Slot {
    actor: Option<Box<dyn Actor>>,
    up: bool,
    incarnation: u64,
    paused: bool,
    waiting: Vec<Input>,
    /// Wall clock: offset, and microseconds it gains per second.
    offset_us: i64,
    drift: i64,
    /// Since when its machine is suspended, and what its clocks do meanwhile.
    still: Option<(u64, Clocks)>,
    /// So many microseconds its monotonic clock did not count.
    uncounted: u64,
    tick_us: u64,
    /// Until when its machine is so loaded that it runs by fits and starts, and how long it is held
    /// up at most.
    busy: (u64, u64),
    /// It is held up by that.
    held: bool,
}

/// Microseconds after which a connection ends that lost a message in a cut.
const HOLED_US: u64 = 2_000_000;

struct Conn {
    ends: [ActorId; 2],
    net: Net,
    /// When the last message in each direction arrives.
    last: [u64; 2],
    ending: bool,
    /// Which sides know already that it has ended, and how late bytes come in each direction.
    left: [bool; 2],
    lag_us: [u64; 2],
    /// A message in that direction was lost in a cut: nothing comes through any more, for a stream
    /// has no holes.
    holed: [bool; 2],
    /// Who asks for it and for whom, until it is there.
    asking: Option<(Peer, EntityAddr)>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    Tick(ActorId, u64),
    Timer(ActorId, u64, u64),
    Open(u64),
    Bytes {
        conn: u64,
        to: ActorId,
        bytes: Vec<u8>,
    },
    End(u64, End),
    Start(ActorId),
    /// It was held up, and goes on; it was suspended, and wakes up.
    Goes(ActorId, u64),
    Wakes(ActorId, u64),
    /// One side learns that a connection has ended.
    Left(u64, usize),
    /// Of connections of bytes: a call arrives, and until when it is repeated; a part arrives in a
    /// direction; patience with one ends; it is asked again; a side hears that it was reset.
    Call(u64, u64),
    Part(u64, usize, u64),
    Patience(u64, usize, u64),
    Again(u64, usize),
    Torn(u64, usize),
}

/// Actors, links, time.
pub struct World {
    /// True time, microseconds.
    pub now: u64,
    /// For faults and links.
    pub rng: Rng,
    slots: Vec<Slot>,
    conns: BTreeMap<u64, Conn>,
    pub(crate) streams: BTreeMap<u64, Stream>,
    /// Parts under way on them, by number.
    pub(crate) under_way: BTreeMap<u64, Part>,
    pub(crate) parts: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    seq: u64,
    /// Directions that are cut, in a network, and until when by themselves.
    cuts: BTreeMap<(ActorId, ActorId, Net), Option<u64>>,
    /// In whose name a firewall refuses calls into a cut.
    pub rejects: BTreeSet<ActorId>,
    /// Longest delay of a message, microseconds.
    pub delay_us: u64,
    /// Hash over all that happened.
    pub hash: u64,
    /// Events so far.
    pub steps: u64,
    /// Prints what happens.
    pub tell: bool,
    /// To whom something happened since they were looked at last. One event may concern two: both
    /// ends of a connection.
    pub acted: BTreeSet<ActorId>,
    /// Why actors ended by themselves.
    pub exits: Vec<(ActorId, String)>,
}

const EPOCH_SECS: u64 = 1_795_000_000;

impl World {
    /// An empty world.
    pub fn new(seed: u64) -> Self {
        Self {
            now: 0,
            rng: Rng::new(seed),
            slots: Vec::new(),
            conns: BTreeMap::new(),
            streams: BTreeMap::new(),
            under_way: BTreeMap::new(),
            parts: 0,
            events: BinaryHeap::new(),
            seq: 0,
            cuts: BTreeMap::new(),
            rejects: BTreeSet::new(),
            delay_us: 1000,
            hash: 0xcbf2_9ce4_8422_2325,
            steps: 0,
            tell: false,
            acted: BTreeSet::new(),
            exits: Vec::new(),
        }
    }

    /// Connection numbers of actor `id` start here and go up; nobody else uses them.
    pub fn conn_numbers(id: ActorId) -> u64 {
        (id as u64 + 1) << 32
    }

    /// Puts an actor in, with its tick's length; it starts at once.
    pub fn add(&mut self, actor: Box<dyn Actor>, tick_us: u64) -> ActorId {
        let id = self.slots.len();
        self.slots.push(Slot {
            actor: Some(actor),
            up: false,
            incarnation: 0,
            paused: false,
            waiting: Vec::new(),
            offset_us: 0,
            drift: 0,
            still: None,
            uncounted: 0,
            tick_us,
            busy: (0, 0),
            held: false,
        });
        self.at(0, Event::Start(id));
        id
    }

    /// Sets an actor's clock wrong: by how much, and what it gains per second.
    pub fn set_clock(&mut self, id: ActorId, offset_us: i64, drift_us_per_s: i64) {
        if let Some(s) = self.slots.get_mut(id) {
            (s.offset_us, s.drift) = (offset_us, drift_us_per_s);
        }
    }

    /// An actor's wall clock is set, forwards or backwards.
    pub fn jump_clock(&mut self, id: ActorId, by_us: i64) {
        if let Some(s) = self.slots.get_mut(id) {
            s.offset_us += by_us;
        }
    }

    /// Looks into an actor.
    pub fn with<T: 'static, R>(&mut self, id: ActorId, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.slots.get_mut(id)?.actor.as_mut()?.as_any().downcast_mut().map(f)
    }

    /// Is it running (perhaps paused)?
    pub fn is_up(&self, id: ActorId) -> bool {
        self.slots.get(id).is_some_and(|s| s.up)
    }

    /// Is it stopped?
    pub fn is_paused(&self, id: ActorId) -> bool {
        self.slots.get(id).is_some_and(|s| s.paused)
    }

    fn say(&self, id: ActorId, what: &str) {
        if self.tell {
            println!("{:>12} actor {id} {what}", self.now);
        }
    }

    /// Kills it.
    pub fn crash(&mut self, id: ActorId) {
        self.say(id, "crashes");
        let Some(s) = self.slots.get_mut(id).filter(|s| s.up) else { return };
        s.up = false;
        (s.paused, s.still, s.held) = (false, None, false);
        s.incarnation += 1;
        s.waiting.clear();
        if let Some(a) = &mut s.actor {
            a.crash(&mut self.rng);
        }
        let mine: Vec<u64> =
            self.conns.iter().filter(|(_, c)| c.ends.contains(&id)).map(|(n, _)| *n).collect();
        for conn in mine {
            self.end_soon(conn, 2_000, End::Gone);
        }
        self.streams_die(id);
    }

    /// Starts it again.
    pub fn start(&mut self, id: ActorId) {
        if !self.is_up(id) {
            self.at(0, Event::Start(id));
        }
    }

    /// Stops it without killing it; what comes waits.
    pub fn pause(&mut self, id: ActorId) {
        self.say(id, "is stopped");
        if let Some(s) = self.slots.get_mut(id).filter(|s| s.up) {
            s.paused = true;
        }
    }

    /// As [`Self::pause`], and its kernel answers nobody.
    pub fn suspend(&mut self, id: ActorId, clocks: Clocks) {
        let now = self.now;
        self.pause(id);
        if let Some(s) = self.slots.get_mut(id).filter(|s| s.paused) {
            s.still.get_or_insert((now, clocks));
        }
    }

    /// It goes on after so many microseconds.
    pub fn wakes(&mut self, id: ActorId, after_us: u64) {
        let inc = self.slots.get(id).map_or(0, |s| s.incarnation);
        self.at(after_us, Event::Wakes(id, inc));
    }

    /// Lets it go on.
    pub fn resume(&mut self, id: ActorId) {
        self.say(id, "goes on");
        let Some(s) = self.slots.get_mut(id).filter(|s| s.paused) else { return };
        s.paused = false;
        if let Some((since, clocks)) = s.still.take() {
            let us = self.now - since;
            s.offset_us -= if clocks == Clocks::Go { 0 } else { us as i64 };
            s.uncounted += if clocks == Clocks::Still { us } else { 0 };
        }
        self.catch_up(id);
        self.ways_healed();
    }

    /// What came while it did not run.
    fn catch_up(&mut self, id: ActorId) {
        let waiting = self.slots.get_mut(id).map(|s| std::mem::take(&mut s.waiting));
        for input in waiting.unwrap_or_default() {
            self.give(id, input);
        }
    }

    /// Its machine is loaded until `until`: every now and then it is held up, for `most_us` at
    /// most. Its kernel answers meanwhile.
    pub fn load(&mut self, id: ActorId, until: u64, most_us: u64) {
        self.say(id, "is loaded");
        if let Some(s) = self.slots.get_mut(id) {
            s.busy = (until, most_us);
        }
    }

    /// Is its machine suspended?
    pub(crate) fn is_still(&self, id: ActorId) -> bool {
        self.slots.get(id).is_some_and(|s| s.still.is_some())
    }

    /// Cuts one direction; connections that use it end some time later.
    pub fn cut(&mut self, from: ActorId, to: ActorId) {
        if self.tell {
            println!("{:>12} cut from {from} to {to}", self.now);
        }
        self.cuts.extend([Net::Public, Net::Cluster].map(|net| ((from, to, net), None)));
        self.end_cut(from, to, |_| true);
    }

    /// Cuts one direction in one network until `until`.
    pub fn cut_in(&mut self, net: Net, from: ActorId, to: ActorId, until: u64) {
        if self.tell {
            println!("{:>12} cut from {from} to {to} in {net:?} until {until}", self.now);
        }
        self.cuts.insert((from, to, net), Some(until));
        self.end_cut(from, to, |c| c.net == net);
    }

    /// Connections that a cut concerns end some time later.
    fn end_cut(&mut self, from: ActorId, to: ActorId, concerns: impl Fn(&Conn) -> bool) {
        let hit = |c: &Conn| c.ends.contains(&from) && c.ends.contains(&to) && concerns(c);
        let hit: Vec<u64> = self.conns.iter().filter(|(_, c)| hit(c)).map(|(n, _)| *n).collect();
        for conn in hit {
            let after = self.rng.between(200_000, 4_000_000);
            self.end_soon(conn, after, End::Silent);
        }
    }

    pub(crate) fn is_cut(&self, from: ActorId, to: ActorId, net: Net) -> bool {
        self.cuts.contains_key(&(from, to, net))
    }

    /// Heals all cuts but those with an end of their own, and these, too, once it has come or if it
    /// is `peace`.
    pub fn heal(&mut self, peace: bool) {
        let (before, now) = (self.cuts.len(), self.now);
        self.cuts.retain(|_, until| until.is_some_and(|at| at > now && !peace));
        self.rejects.clear();
        self.healed(before);
    }

    /// When the last of the cuts that have an end of their own ends.
    pub fn cut_until(&self) -> Option<u64> {
        self.cuts.values().flatten().max().copied()
    }

    /// Heals what has come to its end.
    pub fn heal_due(&mut self) {
        let (before, now) = (self.cuts.len(), self.now);
        self.cuts.retain(|_, until| until.is_none_or(|at| at > now));
        self.healed(before);
    }

    fn healed(&mut self, before: usize) {
        if self.cuts.len() == before {
            return;
        }
        if self.tell {
            println!("{:>12} healed", self.now);
        }
        self.ways_healed();
    }

    /// Puts bytes on their way.
    fn transmit(&mut self, conn: u64, way: usize, bytes: Vec<u8>) {
        let delay = self.rng.between(50, self.delay_us);
        let Some(c) = self.conns.get_mut(&conn) else { return };
        let (Some(to), Some(last)) = (c.ends.get(1 - way).copied(), c.last.get_mut(way)) else {
            return;
        };
        *last = (*last).max(self.now + delay + c.lag_us.get(way).copied().unwrap_or_default()) + 1;
        let at = *last;
        self.at(at - self.now, Event::Bytes { conn, to, bytes });
    }

    pub(crate) fn at(&mut self, after_us: u64, event: Event) {
        self.seq += 1;
        self.events.push(Reverse((self.now + after_us, self.seq, event)));
    }

    fn end_soon(&mut self, conn: u64, after_us: u64, end: End) {
        if let Some(c) = self.conns.get_mut(&conn).filter(|c| !c.ending) {
            c.ending = true;
            self.at(after_us, Event::End(conn, end));
        }
    }

    pub(crate) fn mix(&mut self, v: u64) {
        self.hash = (self.hash ^ v).wrapping_mul(0x0100_0000_01b3);
    }

    /// Lets the next thing happen; false if nothing will before `until`.
    pub fn step(&mut self, until: u64) -> bool {
        if self.events.peek().is_none_or(|Reverse((t, _, _))| *t > until) {
            self.now = self.now.max(until);
            return false;
        }
        let Some(Reverse((time, _, event))) = self.events.pop() else { return false };
        self.now = time;
        self.steps += 1;
        self.mix(time);
        match event {
            Event::Start(id) => {
                let Some(s) = self.slots.get_mut(id).filter(|s| !s.up) else { return true };
                s.up = true;
                s.incarnation += 1;
                if self.tell {
                    println!("{:>12} actor {id} starts", self.now);
                }
                let (inc, tick) = (s.incarnation, s.tick_us);
                self.mix(id as u64);
                let first = self.rng.below(tick.max(1));
                self.at(first, Event::Tick(id, inc));
                self.give(id, Input::Start);
            }
            Event::Tick(id, inc) => {
                let Some(s) = self.slots.get(id).filter(|s| s.up && s.incarnation == inc) else {
                    return true;
                };
                let (runs, tick, busy) = (!s.paused && !s.held, s.tick_us, s.busy);
                let next = (tick as i64 - (tick as i64 * s.drift) / 1_000_000).max(1) as u64;
                self.at(next, Event::Tick(id, inc));
                if runs && busy.0 > self.now && self.rng.one_in(5) {
                    let late = self.rng.between(busy.1 / 10, busy.1);
                    if let Some(s) = self.slots.get_mut(id) {
                        s.held = true;
                    }
                    self.at(late, Event::Goes(id, inc));
                } else if runs {
                    self.give(id, Input::Tick);
                }
            }
            Event::Goes(id, inc) => {
                let Some(s) = self.slots.get_mut(id).filter(|s| s.up && s.incarnation == inc)
                else {
                    return true;
                };
                s.held = false;
                self.catch_up(id);
                self.give(id, Input::Tick);
            }
            Event::Wakes(id, inc) => {
                if self.slots.get(id).is_some_and(|s| s.incarnation == inc) {
                    self.resume(id);
                }
            }
            Event::Timer(id, inc, n) => {
                if self.slots.get(id).is_some_and(|s| s.up && s.incarnation == inc) {
                    self.give(id, Input::Timer(n));
                }
            }
            Event::Bytes { conn, to, bytes } => {
                self.mix(conn ^ u64::from(crc32c(1, &bytes)));
                if self.tell {
                    tell::message(self.now, &self.conns.get(&conn).map(|c| c.ends), to, &bytes);
                }
                let heard =
                    |c: &Conn| c.ends.iter().zip(&c.left).any(|(end, left)| *end == to && !left);
                if self.conns.get(&conn).is_some_and(heard)
                    && let Ok(Carried(message)) = spirula_encoding::from_slice(&bytes)
                {
                    self.give(to, Input::Message { conn, message });
                }
            }
            Event::End(conn, end) => {
                if let Some(c) = self.conns.remove(&conn) {
                    if self.tell {
                        println!("{:>12} connection of {:?}: {end:?}", self.now, c.ends);
                    }
                    for (actor, _) in c.ends.into_iter().zip(c.left).filter(|(_, left)| !left) {
                        self.give(actor, Input::Closed { conn, end });
                    }
                }
            }
            Event::Left(conn, side) => {
                let here = self
                    .conns
                    .get_mut(&conn)
                    .and_then(|c| Some((*c.ends.get(side)?, c.left.get_mut(side)?)));
                if let Some((actor, left)) = here {
                    *left = true;
                    self.give(actor, Input::Closed { conn, end: End::Silent });
                }
            }
            Event::Open(conn) => self.open(conn),
            Event::Call(conn, until) => self.call(conn, until),
            Event::Part(conn, way, number) => self.arrive(conn, way, number),
            Event::Patience(conn, way, since) => self.impatient(conn, way, since),
            Event::Again(conn, way) => self.ask_again(conn, way),
            Event::Torn(conn, side) => self.torn(conn, side),
        }
        true
    }

    fn open(&mut self, conn: u64) {
        let Some(c) = self.conns.get_mut(&conn).filter(|c| !c.ending) else { return };
        let ([from, to], Some((mut peer, addr))) = (c.ends, c.asking.clone()) else { return };
        let net = c.net;
        if self.is_cut(from, to, net) || self.is_cut(to, from, net) || self.is_paused(to) {
            let after = self.rng.between(1_000_000, 3_000_000);
            self.end_soon(conn, after, End::Silent);
        } else if !self.is_up(to) {
            self.end_soon(conn, 100, End::Refused);
        } else if !self.admits(to, &mut peer, &addr) {
            self.end_soon(conn, 100, End::Closed);
        } else {
            if let Some(c) = self.conns.get_mut(&conn) {
                c.asking = None;
            }
            self.give(to, Input::Opened { conn, peer: peer.clone(), from });
            self.give(from, Input::Opened { conn, peer, from: to });
        }
    }

    /// An actor's view of time.
    pub fn local(&self, id: ActorId) -> Local {
        let (offset, drift) = self.slots.get(id).map_or((0, 0), |s| (s.offset_us, s.drift));
        let gained = (self.now as i128 * i128::from(drift) / 1_000_000) as i64;
        let us = (EPOCH_SECS * 1_000_000 + self.now) as i64 + offset + gained;
        let uncounted = self.slots.get(id).map_or(0, |s| s.uncounted) as i64;
        let mono = Duration::from_micros((self.now as i64 + gained - uncounted).max(0) as u64);
        Local {
            id,
            mono,
            drift,
            wall: UTime::from_nanos(us.max(0) as u64 * 1000),
            true_us: self.now,
        }
    }

    pub(crate) fn give(&mut self, id: ActorId, input: Input) {
        let local = self.local(id);
        let Some(s) = self.slots.get_mut(id).filter(|s| s.up) else { return };
        if s.paused || s.held {
            s.waiting.push(input);
            return;
        }
        let Some(actor) = &mut s.actor else { return };
        self.acted.insert(id);
        let mut out = Vec::new();
        actor.handle(local, input, &mut out);
        for o in out {
            self.perform(id, o);
        }
    }

    fn perform(&mut self, id: ActorId, output: Output) {
        match output {
            Output::Connect { conn, to, addr, peer } => {
                let delay = self.rng.between(100, self.delay_us);
                let last = [self.now + delay; 2];
                let asking = Some((peer, addr));
                let (left, lag_us) = ([false; 2], [0; 2]);
                let (ends, net) = ([id, to], Net::of(&addr));
                self.conns.insert(
                    conn,
                    Conn {
                        ends,
                        net,
                        last,
                        ending: false,
                        left,
                        lag_us,
                        holed: [false; 2],
                        asking,
                    },
                );
                self.at(delay, Event::Open(conn));
            }
            Output::Send(conn, message) => {
                let Some(c) = self.conns.get(&conn) else { return };
                let way = usize::from(c.ends.first() != Some(&id));
                let Some(to) = c.ends.get(1 - way).copied() else { return };
                let cut = self.is_cut(id, to, c.net);
                let limits = Limits::default();
                let segments = [(&message.front, limits.front), (&message.middle, limits.middle)];
                if segments.iter().any(|(s, most)| s.len() > *most)
                    || message.data.len() > limits.data
                {
                    // No messenger takes such a frame.
                    return self.end_soon(conn, 100, End::Closed);
                }
                let Some(holed) = self.conns.get_mut(&conn).and_then(|c| c.holed.get_mut(way))
                else {
                    return;
                };
                let begins = cut && !*holed;
                *holed |= cut;
                if begins {
                    // Its sender gives up at last, whatever else ends it before.
                    self.end_soon(conn, HOLED_US, End::Silent);
                } else if !*holed {
                    self.transmit(conn, way, spirula_encoding::to_vec(&Carried(message)));
                }
            }
            Output::Close(conn) => self.end_soon(conn, 500, End::Closed),
            Output::Dial { conn, to, net, patience_us } => {
                self.dial(conn, id, to, net, patience_us)
            }
            Output::Write(conn, bytes) => self.write(id, conn, bytes),
            Output::Hang(conn, how) => self.hang_up(id, conn, how),
            Output::Timer(n, after) => {
                let inc = self.slots.get(id).map_or(0, |s| s.incarnation);
                self.at(after, Event::Timer(id, inc, n));
            }
            Output::Exit(why) => {
                self.exits.push((id, why));
                self.crash(id);
            }
            Output::Stop => self.crash(id),
        }
    }

    fn admits(&mut self, to: ActorId, peer: &mut Peer, addr: &EntityAddr) -> bool {
        self.slots.get_mut(to).and_then(|s| s.actor.as_mut()).is_some_and(|a| a.admits(peer, addr))
    }

    /// A random connection ends for one side; what it has sent comes `late_us` later, and still
    /// later the other learns that it has ended.
    pub fn half_open(&mut self, late_us: u64) {
        let whole = |c: &Conn| !c.ending && c.asking.is_none();
        let all: Vec<u64> = self.conns.iter().filter(|(_, c)| whole(c)).map(|(n, _)| *n).collect();
        let Some(conn) = self.rng.pick(&all).copied() else { return };
        let side = self.rng.below(2) as usize;
        // What is sent from now on until it notices comes late.
        let notices = self.rng.between(1_000, 1_000_000);
        if let Some(lag) = self.conns.get_mut(&conn).and_then(|c| c.lag_us.get_mut(side)) {
            *lag = late_us;
        }
        self.at(notices, Event::Left(conn, side));
        self.end_soon(conn, notices + late_us + 1_000_000, End::Silent);
    }

    /// Breaks a random connection.
    pub fn break_a_connection(&mut self) {
        let all: Vec<u64> = self.conns.keys().chain(self.streams.keys()).copied().collect();
        let Some(conn) = self.rng.pick(&all).copied() else { return };
        if self.conns.contains_key(&conn) {
            self.end_soon(conn, 100, End::Silent);
        } else {
            self.reset_stream(conn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connects to another when it starts, and admits everybody.
    struct End {
        calls: Option<ActorId>,
    }

    impl Actor for End {
        fn handle(&mut self, _: Local, input: Input, out: &mut Vec<Output>) {
            if let (Input::Start, Some(to)) = (input, self.calls) {
                let addr = EntityAddr::v2(([10, 0, 0, 1], 1).into(), 0);
                let peer = Peer {
                    kind: spirula_types::EntityType::Client,
                    id: "admin".into(),
                    global_id: 1,
                    addrs: spirula_types::AddrVec::one(addr),
                    features: 0,
                };
                out.push(Output::Connect { conn: 1, to, addr, peer });
            }
        }

        fn crash(&mut self, _: &mut Rng) {}

        fn admits(&mut self, _: &mut Peer, _: &EntityAddr) -> bool {
            true
        }

        fn as_any(&mut self) -> &mut dyn Any {
            self
        }
    }

    /// Whoever ends as somebody connects to it is looked at, too.
    #[test]
    fn both_ends_of_a_connection_have_acted_when_it_opens() {
        let mut w = World::new(1);
        let to = w.add(Box::new(End { calls: None }), 10_000_000);
        let from = w.add(Box::new(End { calls: Some(to) }), 10_000_000);
        let is_open = |w: &World| w.conns.get(&1).is_some_and(|c| c.asking.is_none());
        while !is_open(&w) {
            w.acted.clear();
            assert!(w.step(1_000_000), "the connection is not opened");
        }
        assert_eq!(w.acted, BTreeSet::from([to, from]));
    }
}
