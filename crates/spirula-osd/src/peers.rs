//! Other OSDs: links to them, how long they have been silent, whether their process is gone.
//!
//! Up to three links lead to a peer, all of them to one incarnation of it (its addresses in the
//! map): one for data, and one for heartbeats in each of the two networks, so that nothing stands
//! in a ping's way. Every OSD pings every other one on both networks; a peer counts as silent if
//! one of the two brings no answer for the whole grace. If **none** brings an answer for longer
//! than is usual for this peer lately ([`crate::patience`]), that is reported at once. The answers
//! are read leases, too; a lease is about as long as the granter's patience with the asker
//! ([`Peers::lease_ms`]), so that a wait for leases adds little to the time in which a silent
//! primary is found out.
//!
//! **What is sent to a peer that is up arrives, in order and once, or every PG is told.** A link
//! for data is a session that outlives its connections (`spirula-runtime`) for as long as the map
//! shows the peer's incarnation up. A session may be lost all the same, with both processes alive,
//! and then the map will never show it. So the loss is noted here with the path, and the link is
//! made anew until it opens. Then [`Peers::opened`] says so, the first message of the new session
//! (`OsdRenewed`) tells the peer, and the PGs of both ends ask and send again what is open between
//! the two. They do not do that earlier, because what they sent while the new session is not open
//! could be lost with it. The sender alone notices for both ends, since it is the sender's numbers
//! that a session keeps: whatever becomes of the far end's half, the sender's half is refused when
//! it goes on, or never opens.
//!
//! Between hosts that are cut off from each other TCP asks ever more rarely whether the other host
//! is there. Therefore links for heartbeats are made anew when nothing is acknowledged for 1.5 s
//! ([`crate::outside::Watch::Closely`]), and are tried again about every second. When a heartbeat
//! link goes on over a new connection, the link for data is made anew at once, too, and what waits
//! in its session arrives.
//!
//! **A path that carries small frames only** (the frames of a network may be larger at its ends
//! than on the way) lets connections open, because a handshake is small, and loses all that
//! matters. Heartbeats are as large as the larger frames (`osd_heartbeat_min_size`), as Ceph's are,
//! so a peer behind such a path is silent like one that is cut off. What tells the two apart:
//! connections for heartbeats to it open again and again ([`SMALL_OPENS`] times since it was last
//! heard, and lately), and each ends because nothing more is acknowledged. A process that hangs
//! opens no connection, since the loop that would shake hands is the loop that would answer.
//!
//! **Refused** is a peer whose address answers connections with "nobody listens" (ECONNREFUSED). A
//! process that is slow, stopped (SIGSTOP), out of descriptors, or cut off does not refuse: its
//! kernel keeps the port. The monitor marks a peer that refuses down without waiting for more
//! reports.
//!
//! **Gone** is a peer whose process certainly runs no more. Then others do not wait for the read
//! leases that it held; if it did run, a client could read old data from it. A refusal alone is no
//! proof: a firewall between two hosts may refuse in a peer's name (`REJECT --reject-with
//! tcp-reset`) while the peer serves clients elsewhere. A peer counts as gone in two cases:
//!
//! * It is on our own address. What the kernel says of its own ports passes no firewall between
//!   hosts; a port of ours that refuses belongs to no process, and an OSD never closes its port
//!   before it has stopped serving.
//! * Its own kernel closed an established connection of this incarnation in due form (FIN) before
//!   its port refused. Firewalls forge resets, not FINs. A peer that lives ends its connections
//!   with resets, too (`spirula-runtime`), but for those that it closes when it has stopped
//!   serving.
//!
//! A process that was killed while it had something to read ends the connection concerned with a
//! reset; its other connections end in due form. So a refusal without proof is reported [`PROOF`]
//! later: once the map shows the peer down, proof changes nothing.
//!
//! The addresses must be the peer's own: translated ones (NAT) with several OSDs behind one address
//! are not supported, as in Ceph.

use crate::patience::{Apart, Gaps, Lesson};
use crate::trips::Trips;
use spirula_maps::osdmap::OsdAddrs;
use spirula_messages::Message;
use spirula_messages::cluster::control::{Outside, SMALL_BACK, SMALL_FRONT};
use spirula_runtime::{Ended, Link, LinkId};
use spirula_types::{AddrVec, OsdId};
use std::collections::BTreeMap;
use std::time::Duration;

/// Between two pings to a peer, where there are few; where there are many, [`PING_EACH`] for each
/// of them, up to [`PING_MOST`]. So an OSD sends no more than 120 a second in each network, until
/// it has 60 peers.
pub const PING_EVERY: Duration = Duration::from_millis(250);
const PING_EACH: Duration = Duration::from_millis(8);
const PING_MOST: Duration = Duration::from_millis(500);
/// Longest read lease, milliseconds; what an OSD that restarts takes its earlier leases for. The
/// same in the whole cluster, see `spirula_pg::Leases`.
pub const LEASE_MS: u64 = 3000;
/// A lease is so much longer than the granter's patience, milliseconds. The holder uses
/// `spirula_pg::PAUSE_MS` less of it: of a lease that goes with a patience of a second the time of
/// three pings.
const LEASE_OVER_MS: u64 = 400;
/// How long a refusal waits for the proof that the peer is gone.
const PROOF: Duration = Duration::from_millis(150);
/// So many connections for heartbeats opened since a ping was last answered, the last of them
/// within [`SMALL_LATELY`]: small frames pass, and large ones do not.
const SMALL_OPENS: u32 = 2;
/// Longer than it takes to give one up and open the next.
const SMALL_LATELY: Duration = Duration::from_secs(6);
/// How often a report is repeated: one of an unusual silence that is shorter than the grace, and
/// any other. The monitor counts the silence that it was told of, not the time since.
const REPORT_MUTE_EVERY: Duration = Duration::from_secs(1);
const REPORT_EVERY: Duration = Duration::from_secs(2);
/// For so long is remembered what a process was like that the map shows down.
const LEFT: Duration = Duration::from_secs(600);

/// What a link is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// PGs' messages, in the cluster network.
    Data,
    /// Heartbeats in the cluster network.
    Back,
    /// Heartbeats in the public network, if that is another one.
    Front,
}

#[derive(Debug)]
struct Path {
    link: Link,
    /// It was open since it was made: then it may be made again at once.
    opened: bool,
    /// When a ping was last answered on it, or when we began to ask.
    heard: Duration,
    /// Of the time since then: in which we did not run.
    late: Duration,
    /// How regular the answers were.
    gaps: Gaps,
    /// One was.
    answered: bool,
    /// Connections that opened since then, and when the last one did.
    opens: u32,
    opened_at: Duration,
    /// A session ended with what was sent in it, and no other has opened since.
    lost: bool,
    /// How long pings on it took.
    trips: Trips,
}

/// How a port that refuses is to be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The process is certainly gone.
    pub gone: bool,
}

/// One other OSD, in one incarnation.
#[derive(Debug)]
struct Peer {
    addrs: OsdAddrs,
    paths: BTreeMap<Way, Path>,
    /// When it was last reported, and as what.
    reported: Option<(Duration, Told)>,
    refused: Option<Refusal>,
    /// Since when.
    refused_at: Duration,
    /// What wrong marks taught.
    lesson: Lesson,
}

/// A process that the map shows down. It may be there all the same, and come back.
#[derive(Debug)]
struct Left {
    addrs: OsdAddrs,
    gaps: BTreeMap<Way, Gaps>,
    lesson: Lesson,
    at: Duration,
    /// When it was last heard, and the time in which we did not run; none once it has spoken again,
    /// or if we were away.
    heard: Option<Duration>,
}

/// As what a peer was reported: what is news is told at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    refused: Option<Refusal>,
    /// Anything waited for it.
    waits: bool,
    /// It was silent on every path for longer than is usual.
    mute: bool,
    /// It was silent for the whole grace.
    long: bool,
}

/// How much silence is borne.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// No less than this, however regular a peer was.
    pub least: Duration,
    /// No more than this, whatever was before.
    pub grace: Duration,
}

impl Peer {
    fn beats(&self) -> impl Iterator<Item = &Path> {
        self.paths.iter().filter(|(way, _)| **way != Way::Data).map(|(_, path)| path)
    }

    /// Silence that is not unusual for this peer.
    fn patience(&self, b: Bounds) -> Duration {
        let by_path =
            self.beats().map(|p| p.gaps.patience(b.least, b.grace)).max().unwrap_or(b.grace);
        by_path.max(self.lesson.patience(b.grace))
    }

    /// If it is silent on every path for longer than is usual, while we ran: how long is usual.
    fn mute(&self, now: Duration, b: Bounds) -> Option<Duration> {
        let silent = self.unheard_for(now)?;
        Some(self.patience(b)).filter(|patience| silent >= *patience)
    }

    /// For how long nothing came on any path, while we ran.
    fn unheard_for(&self, now: Duration) -> Option<Duration> {
        self.beats().map(|p| now.saturating_sub(p.heard + p.late)).min()
    }

    /// The refusal that is to be reported.
    fn known_refusal(&self, now: Duration) -> Option<Refusal> {
        self.refused.filter(|r| r.gone || now.saturating_sub(self.refused_at) >= PROOF)
    }

    fn silent(&self, now: Duration) -> Duration {
        self.beats().map(|p| now.saturating_sub(p.heard)).max().unwrap_or_default()
    }
}

/// All other OSDs that are up.
#[derive(Debug, Default)]
pub struct Peers {
    by_osd: BTreeMap<OsdId, Peer>,
    by_link: BTreeMap<LinkId, (OsdId, Way)>,
    /// When the next pings go out.
    next_ping: Duration,
    left: BTreeMap<OsdId, Left>,
    apart: Apart,
    /// Who was reported and is not silent any more, as far as we may say.
    cleared: Vec<OsdId>,
}

/// What waits for a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Requests, and PGs that cannot begin to serve.
    pub all: u32,
    /// Of these, PGs of which the peer is no member.
    pub outside: Outside,
}

/// A peer to be reported to the monitor.
#[derive(Debug, PartialEq, Eq)]
pub struct Silent {
    /// The peer.
    pub osd: OsdId,
    /// For how long.
    pub silent: Duration,
    /// Its port refuses connections.
    pub refused: Option<Refusal>,
    /// What waits for it here.
    pub waiting: Waits,
    /// If it is silent on every path, for longer than is usual: how long is usual.
    pub patience: Option<Duration>,
    /// For how long it is silent on every path, while we ran.
    pub unheard: Duration,
}

fn address(addrs: &OsdAddrs, way: Way) -> &AddrVec {
    match way {
        Way::Data => &addrs.cluster,
        Way::Back => &addrs.hb_back,
        Way::Front => &addrs.hb_front,
    }
}

impl Peers {
    /// Makes the peers those of the map: `wanted` are the others that are up, with their
    /// addresses; `open` opens a link. Links of gone incarnations are closed.
    pub fn follow(
        &mut self,
        wanted: &BTreeMap<OsdId, OsdAddrs>,
        now: Duration,
        mut open: impl FnMut(&AddrVec, Way) -> Link,
    ) {
        let gone: Vec<OsdId> = self
            .by_osd
            .iter()
            .filter(|(osd, p)| wanted.get(osd) != Some(&p.addrs))
            .map(|(osd, _)| *osd)
            .collect();
        for osd in gone {
            let Some(p) = self.remove(osd) else { continue };
            let heard = p.beats().map(|p| p.heard + p.late).max();
            let gaps = p.paths.into_iter().map(|(way, path)| (way, path.gaps)).collect();
            self.left.insert(osd, Left { addrs: p.addrs, gaps, lesson: p.lesson, at: now, heard });
        }
        self.left.retain(|_, l| now.saturating_sub(l.at) <= LEFT);
        for (osd, addrs) in wanted {
            if self.by_osd.contains_key(osd) {
                continue;
            }
            let mut ways = vec![Way::Data, Way::Back];
            if addrs.hb_front != addrs.hb_back {
                ways.push(Way::Front);
            }
            // What is known of an earlier process says nothing of this one.
            let known = self.left.remove(osd).filter(|l| l.addrs == *addrs);
            let gaps = |way| {
                known.as_ref().and_then(|l| l.gaps.get(&way)).map(Gaps::anew).unwrap_or_default()
            };
            let mut paths = BTreeMap::new();
            for way in ways {
                let link = open(address(addrs, way), way);
                self.by_link.insert(link.id(), (*osd, way));
                paths.insert(
                    way,
                    Path {
                        link,
                        opened: false,
                        heard: now,
                        late: Duration::ZERO,
                        gaps: gaps(way),
                        answered: false,
                        opens: 0,
                        opened_at: now,
                        lost: false,
                        trips: Trips::default(),
                    },
                );
            }
            let lesson = known.as_ref().map(|l| l.lesson).unwrap_or_default();
            let (reported, refused, refused_at) = (None, None, Duration::ZERO);
            let peer = Peer { addrs: addrs.clone(), paths, reported, refused, refused_at, lesson };
            self.by_osd.insert(*osd, peer);
            self.next_ping = Duration::ZERO;
        }
    }

    fn remove(&mut self, osd: OsdId) -> Option<Peer> {
        let p = self.by_osd.remove(&osd)?;
        for path in p.paths.values() {
            self.by_link.remove(&path.link.id());
            path.link.close();
        }
        Some(p)
    }

    /// A peer asks something itself. If the map shows it down, that was wrong where it is heard
    /// again before the grace is over.
    pub fn spoke(&mut self, osd: OsdId, now: Duration, grace: Duration) {
        let Some(left) = self.left.get_mut(&osd) else { return };
        if let Some(gap) =
            left.heard.take().map(|heard| now.saturating_sub(heard)).filter(|gap| *gap < grace)
        {
            left.lesson.learn(now, gap);
        }
    }

    /// A monitor was found, at `now`.
    pub fn found_monitor(&mut self, now: Duration) {
        self.apart.found_monitor(now);
    }

    /// Peers to be cleared of what was reported of them, each once.
    pub fn cleared(&mut self) -> Vec<OsdId> {
        std::mem::take(&mut self.cleared)
    }

    /// Sends to a peer; without a link to it the message is lost, as on a network.
    pub fn send(&self, osd: OsdId, message: Message) {
        if let Some(path) = self.by_osd.get(&osd).and_then(|p| p.paths.get(&Way::Data)) {
            path.link.send(message);
        }
    }

    /// Which peer an outgoing link leads to.
    pub fn by_link(&self, link: LinkId) -> Option<OsdId> {
        self.by_link.get(&link).map(|(osd, _)| *osd)
    }

    /// An outgoing link is ready, or goes on over a new connection; `renewed` if in a new session
    /// in place of one that was lost. Returns the peer if what it was sent before may be lost.
    pub fn opened(&mut self, link: LinkId, renewed: bool, now: Duration) -> Option<OsdId> {
        let (osd, way) = *self.by_link.get(&link)?;
        let p = self.by_osd.get_mut(&osd)?;
        let path = p.paths.get_mut(&way)?;
        (path.opens, path.opened_at) = (path.opens.saturating_add(1), now);
        let again = std::mem::replace(&mut path.opened, true);
        let lost = std::mem::take(&mut path.lost) || renewed;
        if again
            && way == Way::Back
            && let Some(data) = p.paths.get(&Way::Data)
        {
            // The network had lost what was sent there, which TCP does not find out soon.
            data.link.renew();
        }
        // Pings and their answers are sent again and again anyway.
        (lost && way == Way::Data).then_some(osd)
    }

    /// Nobody listens at the far end of an outgoing link; `here` says whether an address is this
    /// host's.
    pub fn refused(
        &mut self,
        link: LinkId,
        ended: &Ended,
        now: Duration,
        here: impl Fn(&AddrVec) -> bool,
    ) {
        let Some((osd, way)) = self.by_link.get(&link) else { return };
        let Some(p) = self.by_osd.get_mut(osd) else { return };
        let gone =
            ended.hung_up || here(address(&p.addrs, *way)) || p.refused.is_some_and(|r| r.gone);
        if p.refused.replace(Refusal { gone }).is_none() {
            p.refused_at = now;
        }
    }

    /// An outgoing link ended, with what was sent over it. True if it is to be made again at once
    /// ([`Peers::reopen`]); else that is for the next round.
    pub fn closed(&mut self, link: LinkId) -> bool {
        let Some((osd, way)) = self.by_link.remove(&link) else { return false };
        let Some(path) = self.by_osd.get_mut(&osd).and_then(|p| p.paths.get_mut(&way)) else {
            return false;
        };
        path.link.close();
        path.lost = true;
        std::mem::take(&mut path.opened)
    }

    /// Opens the broken links again.
    pub fn reopen(&mut self, mut open: impl FnMut(&AddrVec, Way) -> Link) {
        for (osd, p) in &mut self.by_osd {
            for (way, path) in &mut p.paths {
                if path.link.is_closed() {
                    path.link = open(address(&p.addrs, *way), *way);
                    self.by_link.insert(path.link.id(), (*osd, *way));
                }
            }
        }
    }

    /// A ping was answered on `link`. True: the peer had been reported and lives after all.
    pub fn heard(&mut self, link: LinkId, now: Duration, grace: Duration) -> bool {
        let Some((osd, way)) = self.by_link.get(&link) else { return false };
        let Some(p) = self.by_osd.get_mut(osd) else { return false };
        if let Some(path) = p.paths.get_mut(way) {
            // Before the first answer we may have asked over a connection that was not there yet.
            if path.answered {
                let gap = now.saturating_sub(path.heard + path.late);
                path.gaps.add(now, gap);
                p.lesson.heard(now, gap);
            }
            (path.heard, path.late, path.answered, path.opens) = (now, Duration::ZERO, true, 0);
        }
        p.refused = None;
        p.silent(now) < grace && p.reported.take().is_some()
    }

    /// A ping on `link` took `ms` milliseconds there and back.
    pub fn took(&mut self, link: LinkId, now: Duration, ms: u64) {
        if let Some((osd, way)) = self.by_link.get(&link)
            && let Some(path) = self.by_osd.get_mut(osd).and_then(|p| p.paths.get_mut(way))
        {
            path.trips.add(now, ms);
        }
    }

    /// How long pings took, by peer and network.
    pub fn trips(&self) -> impl Iterator<Item = (OsdId, Way, &Trips)> {
        self.by_osd
            .iter()
            .flat_map(|(osd, p)| p.paths.iter().map(|(way, path)| (*osd, *way, &path.trips)))
    }

    /// The incarnation of a peer.
    pub fn addrs(&self, osd: OsdId) -> Option<&OsdAddrs> {
        self.by_osd.get(&osd).map(|p| &p.addrs)
    }

    /// Between two pings to a peer.
    pub fn ping_every(&self) -> Duration {
        let all = u32::try_from(self.by_osd.len()).unwrap_or(u32::MAX);
        PING_EACH.saturating_mul(all).clamp(PING_EVERY, PING_MOST)
    }

    /// When [`Peers::ping`] is due.
    pub fn next_ping(&self) -> Duration {
        self.next_ping
    }

    /// Sends `ping` to all peers, on every network; returns how many went out.
    pub fn ping(&mut self, now: Duration, ping: impl Fn() -> Message) -> u64 {
        self.next_ping = now + self.ping_every();
        let mut sent = 0;
        for path in self.by_osd.values().flat_map(Peer::beats) {
            path.link.send(ping());
            sent += 1;
        }
        sent
    }

    /// Length of the read lease that a peer gets, milliseconds.
    pub fn lease_ms(&self, osd: OsdId, b: Bounds) -> u64 {
        let patience = self.by_osd.get(&osd).map_or(b.grace, |p| p.patience(b));
        LEASE_MS.min(patience.as_millis() as u64 + LEASE_OVER_MS)
    }

    /// We did not run for `late`, and have not read what peers answered meanwhile: it is not
    /// counted against them, but for the whole grace.
    pub fn late(&mut self, late: Duration) {
        for path in self.by_osd.values_mut().flat_map(|p| p.paths.values_mut()) {
            path.late += late;
        }
        for heard in self.left.values_mut().filter_map(|l| l.heard.as_mut()) {
            *heard += late;
        }
    }

    /// We ourselves were away: what was not heard meanwhile says nothing about the peers.
    pub fn excuse(&mut self, now: Duration) {
        for path in self.by_osd.values_mut().flat_map(|p| p.paths.values_mut()) {
            (path.heard, path.late, path.opens) = (now, Duration::ZERO, 0);
        }
        self.left.values_mut().for_each(|l| l.heard = None);
    }

    /// Peers to which a path carries small frames only, with the networks in which it does
    /// (`SMALL_BACK`, `SMALL_FRONT`).
    pub fn small_paths(&self, now: Duration, grace: Duration) -> BTreeMap<OsdId, u8> {
        let is = |p: &Path| {
            let since = |at| now.saturating_sub(at);
            since(p.heard) >= grace && p.opens >= SMALL_OPENS && since(p.opened_at) < SMALL_LATELY
        };
        let of = |p: &Peer| {
            let bit = |way| if way == Way::Back { SMALL_BACK } else { SMALL_FRONT };
            let small = p.paths.iter().filter(|(way, path)| **way != Way::Data && is(path));
            small.fold(0, |bits, (way, _)| bits | bit(*way))
        };
        self.by_osd.iter().map(|(osd, p)| (*osd, of(p))).filter(|(_, bits)| *bits > 0).collect()
    }

    /// Peers to report now: those that refuse, at once or nearly so; those that are silent on one
    /// path for the grace, or on every path for longer than is usual. `waiting` says what waits
    /// here for which. Those that were reported and are none of that any more are to be cleared
    /// ([`Peers::cleared`]).
    pub fn silent(
        &mut self,
        now: Duration,
        b: Bounds,
        waiting: impl FnOnce() -> BTreeMap<OsdId, Waits>,
    ) -> Vec<Silent> {
        // Who misses most of the others at once is cut off itself, and accuses nobody before the
        // whole grace is over. How long each is silent by now counts, not whose patience has ended:
        // that differs.
        let recent = (2 * self.ping_every()).max(b.least / 2);
        let missed = self
            .by_osd
            .values()
            .filter(|p| p.unheard_for(now).is_some_and(|s| s >= recent))
            .count();
        let cut_off = missed > 1.max(self.by_osd.len() / 2);
        self.apart.at(now, cut_off, recent);
        let as_of = self.apart.as_of(now);
        let mute = |p: &Peer| p.mute(as_of, b).filter(|_| !cut_off);
        let told = |p: &Peer| {
            p.silent(as_of) >= b.grace || mute(p).is_some() || p.known_refusal(now).is_some()
        };
        for (osd, p) in self.by_osd.iter_mut().filter(|(_, p)| p.reported.is_some() && !told(p)) {
            p.reported = None;
            self.cleared.push(*osd);
        }
        if !self.by_osd.values().any(told) {
            return Vec::new();
        }
        let waiting = waiting();
        let mut out = Vec::new();
        for (osd, p) in self.by_osd.iter_mut().filter(|(_, p)| told(p)) {
            let (silent, refused, patience) = (p.silent(as_of), p.known_refusal(now), mute(p));
            let unheard = p.unheard_for(as_of).unwrap_or_default();
            let waiting = waiting.get(osd).copied().unwrap_or_default();
            let long = silent >= b.grace;
            let what = Told { refused, waits: waiting.all > 0, mute: patience.is_some(), long };
            let again = if what.mute && !long { REPORT_MUTE_EVERY } else { REPORT_EVERY };
            let due = p.reported.is_none_or(|(at, before)| {
                now.saturating_sub(at) >= again
                    || before.refused != what.refused
                    || what.waits && !before.waits
                    || what.mute != before.mute
                    || what.long && !before.long
            });
            if due {
                p.reported = Some((now, what));
                out.push(Silent { osd: *osd, silent, refused, waiting, patience, unheard });
            }
        }
        out
    }

    /// How many peers answer on every network, of how many.
    pub fn answering(&self, now: Duration, grace: Duration) -> (usize, usize) {
        (self.by_osd.len() - self.unheard(now, grace).len(), self.by_osd.len())
    }

    /// The peers that do not answer on every network, or have not yet.
    pub fn unheard(&self, now: Duration, grace: Duration) -> Vec<OsdId> {
        let answers = |p: &Peer| {
            p.silent(now) < grace
                && p.paths.iter().all(|(way, path)| *way == Way::Data || path.answered)
        };
        self.by_osd.iter().filter(|(_, p)| !answers(p)).map(|(osd, _)| *osd).collect()
    }

    /// The OSDs we exchange heartbeats with.
    pub fn osds(&self) -> Vec<OsdId> {
        self.by_osd.keys().copied().collect()
    }

    /// Closes everything.
    pub fn close(&mut self) {
        for osd in self.osds() {
            self.remove(osd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_runtime::Network;
    use spirula_types::EntityAddr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn addr(port: u16) -> AddrVec {
        AddrVec(vec![EntityAddr::v2(([10, 0, 0, 1], port).into(), 7)])
    }

    /// Links that never get anywhere: their fate is told by the test.
    #[derive(Default)]
    struct Nowhere(AtomicU64);

    impl Network for Nowhere {
        fn carry(&self, _: LinkId, _: Message) {}
        fn close(&self, _: LinkId) {}
        fn renew(&self, _: LinkId) {}
        fn keep(&self, _: LinkId, _: bool) {}
    }

    /// One peer, with such links.
    struct World {
        peers: Peers,
        nowhere: Arc<Nowhere>,
    }

    impl World {
        fn new(two_networks: bool) -> Self {
            let mut w = Self { peers: Peers::default(), nowhere: Arc::default() };
            let front = addr(if two_networks { 4 } else { 3 });
            let addrs =
                OsdAddrs { client: addr(1), cluster: addr(2), hb_back: addr(3), hb_front: front };
            let open = w.opener();
            w.peers.follow(&[(5, addrs)].into(), SECOND, open);
            w
        }

        fn opener(&self) -> impl Fn(&AddrVec, Way) -> Link + use<> {
            let nowhere = self.nowhere.clone();
            move |_, _| Link::carried(nowhere.0.fetch_add(1, Ordering::Relaxed), nowhere.clone())
        }

        fn link(&self, way: Way) -> LinkId {
            self.peers.by_link.iter().find(|(_, (_, w))| *w == way).map(|(id, _)| *id).unwrap()
        }

        fn refused_by(&mut self, way: Way, ended: &Ended, here: bool) {
            let link = self.link(way);
            if ended.refused {
                self.peers.refused(link, ended, SECOND, |_| here);
            }
            self.peers.closed(link);
        }

        fn refused(&mut self, hung_up: bool, here: bool) -> Vec<Silent> {
            let ended = Ended { why: String::new(), refused: true, hung_up };
            self.refused_by(Way::Data, &ended, here);
            self.peers.silent(SECOND + PROOF, BOUNDS, BTreeMap::new)
        }
    }

    const SECOND: Duration = Duration::from_secs(1);
    const BOUNDS: Bounds = Bounds { least: SECOND, grace: Duration::from_secs(4) };

    #[test]
    fn refusal_is_reported_at_once_and_is_proof_only_here_or_after_a_hang_up() {
        for (hung_up, here, gone) in
            [(false, false, false), (true, false, true), (false, true, true)]
        {
            let said = World::new(false).refused(hung_up, here);
            assert_eq!(
                said,
                [Silent {
                    osd: 5,
                    silent: PROOF,
                    refused: Some(Refusal { gone }),
                    waiting: Waits::default(),
                    patience: None,
                    unheard: PROOF,
                }]
            );
        }
        let mut w = World::new(false);
        w.refused_by(Way::Data, &"reset".into(), true);
        assert_eq!(w.peers.silent(2 * SECOND, BOUNDS, BTreeMap::new), []);
    }

    #[test]
    fn proof_that_comes_later_is_reported_without_waiting() {
        let mut w = World::new(false);
        assert_eq!(w.refused(false, false).len(), 1);
        assert_eq!(w.peers.silent(SECOND + PROOF, BOUNDS, BTreeMap::new), [], "said already");
        let open = w.opener();
        w.peers.reopen(open);
        assert_eq!(w.refused(true, false)[0].refused, Some(Refusal { gone: true }));
    }

    #[test]
    fn a_refusal_without_proof_waits_for_it_and_proof_is_told_at_once() {
        let refused = |hung_up| Ended { why: String::new(), refused: true, hung_up };
        let mut w = World::new(false);
        w.refused_by(Way::Data, &refused(false), false);
        assert_eq!(w.peers.silent(SECOND, BOUNDS, BTreeMap::new), []);
        w.refused_by(Way::Back, &refused(true), false);
        assert_eq!(
            w.peers.silent(SECOND, BOUNDS, BTreeMap::new)[0].refused,
            Some(Refusal { gone: true })
        );
    }

    #[test]
    fn silence_on_either_network_counts_unless_we_were_away() {
        let mut w = World::new(true);
        let (back, front) = (w.link(Way::Back), w.link(Way::Front));
        assert!(!w.peers.heard(back, 5 * SECOND, 4 * SECOND));
        assert_eq!(w.peers.answering(5 * SECOND, 4 * SECOND), (0, 1), "on one network only");
        let said = w.peers.silent(6 * SECOND, BOUNDS, BTreeMap::new);
        assert_eq!(
            said,
            [Silent {
                osd: 5,
                silent: 5 * SECOND,
                refused: None,
                waiting: Waits::default(),
                patience: None,
                unheard: SECOND
            }]
        );
        assert!(w.peers.heard(front, 6 * SECOND, 4 * SECOND), "it lives after all");
        assert_eq!(w.peers.answering(6 * SECOND, 4 * SECOND), (1, 1));
        assert_eq!(w.peers.silent(6 * SECOND, BOUNDS, BTreeMap::new), []);
        w.peers.excuse(30 * SECOND);
        assert_eq!(w.peers.silent(31 * SECOND, BOUNDS, BTreeMap::new), []);
    }

    #[test]
    fn a_link_that_never_opened_waits_for_the_next_round() {
        let mut w = World::new(false);
        let link = w.link(Way::Back);
        assert!(!w.peers.closed(link));
        let open = w.opener();
        w.peers.reopen(open);
        let link = w.link(Way::Back);
        assert_eq!(w.peers.opened(link, false, SECOND), None);
        assert!(w.peers.closed(link));
    }

    #[test]
    fn a_lost_session_is_told_once_and_when_the_next_one_is_open() {
        let refused = Ended { why: String::new(), refused: true, hung_up: false };
        for ended in [refused, "nothing to authenticate with".into(), "reset".into()] {
            let mut w = World::new(false);
            assert_eq!(w.peers.opened(w.link(Way::Data), false, SECOND), None, "the first one");
            assert_eq!(
                w.peers.opened(w.link(Way::Data), false, SECOND),
                None,
                "resumed: nothing is lost"
            );
            w.refused_by(Way::Data, &ended, false);
            // The next link does not open, either.
            let open = w.opener();
            w.peers.reopen(open);
            w.refused_by(Way::Data, &ended, false);
            let back = w.link(Way::Back);
            w.peers.heard(back, SECOND, 4 * SECOND);
            let open = w.opener();
            w.peers.reopen(open);
            assert_eq!(w.peers.opened(w.link(Way::Data), false, SECOND), Some(5), "{ended}");
            assert_eq!(w.peers.opened(w.link(Way::Data), false, SECOND), None, "told already");
            assert_eq!(
                w.peers.opened(w.link(Way::Data), true, SECOND),
                Some(5),
                "the far end had forgotten the session"
            );
            let back = w.link(Way::Back);
            assert_eq!(w.peers.opened(back, true, SECOND), None, "nothing of a PG goes there");
        }
    }

    #[test]
    fn a_path_that_opens_again_and_again_but_loses_pings_carries_small_frames_only() {
        let grace = 4 * SECOND;
        let small = |w: &World, at: u32| w.peers.small_paths(at * SECOND, grace);
        let mut w = World::new(true);
        let (back, front) = (w.link(Way::Back), w.link(Way::Front));
        for at in 1..8 {
            w.peers.opened(front, false, at * SECOND);
            w.peers.heard(back, at * SECOND, grace);
        }
        assert_eq!(small(&w, 8), [(5, SMALL_FRONT)].into());
        // Nothing opens any more: it is cut off.
        assert_eq!(small(&w, 20), [].into());
        w.peers.opened(front, false, 20 * SECOND);
        assert_eq!(small(&w, 20), [(5, SMALL_FRONT)].into());
        w.peers.heard(front, 21 * SECOND, grace);
        assert_eq!(small(&w, 21), [].into(), "one was answered");
        // One connection that opened and was cut off then.
        w.peers.opened(back, false, 22 * SECOND);
        assert_eq!(small(&w, 27), [].into());
        w.peers.opened(back, false, 27 * SECOND);
        assert_eq!(small(&w, 27), [(5, SMALL_BACK)].into());
        w.peers.excuse(28 * SECOND);
        assert_eq!(small(&w, 40), [].into(), "we were away");
    }

    /// Answers on these ways, so many, four a second; when the last one came.
    fn regular(w: &mut World, ways: &[Way], from: Duration, n: u32) -> Duration {
        let links: Vec<LinkId> = ways.iter().map(|way| w.link(*way)).collect();
        let mut now = from;
        for _ in 0..n {
            now += Duration::from_millis(250);
            for link in &links {
                w.peers.heard(*link, now, BOUNDS.grace);
            }
        }
        now
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn whoever_was_regular_is_reported_early_if_it_is_silent_on_every_path() {
        let mut w = World::new(true);
        let at = regular(&mut w, &[Way::Back, Way::Front], SECOND, 12);
        assert_eq!(w.peers.silent(at + 999 * MS, BOUNDS, BTreeMap::new), []);
        let said = w.peers.silent(at + SECOND, BOUNDS, BTreeMap::new);
        assert_eq!((said[0].silent, said[0].patience), (SECOND, Some(SECOND)));
        assert_eq!(w.peers.silent(at + 1100 * MS, BOUNDS, BTreeMap::new), [], "said already");
        // One network answers again: what was said is taken back, and the other's silence is told
        // when the grace is over.
        assert!(w.peers.heard(w.link(Way::Front), at + 1200 * MS, BOUNDS.grace));
        let at_front = regular(&mut w, &[Way::Front], at + 1200 * MS, 11);
        assert_eq!(w.peers.silent(at_front, BOUNDS, BTreeMap::new), [], "{at_front:?}");
        let said = w.peers.silent(at + 4 * SECOND, BOUNDS, BTreeMap::new);
        assert_eq!((said[0].silent, said[0].patience), (4 * SECOND, None));
        // And when that one falls silent, too, that is news. It had been silent for 1.2 s before,
        // so that more is usual now.
        let silent = |w: &mut World, ms| w.peers.silent(at_front + ms * MS, BOUNDS, BTreeMap::new);
        assert_eq!(silent(&mut w, 2_100).len(), 1, "repeated");
        assert_eq!(silent(&mut w, 3_599), []);
        assert_eq!(silent(&mut w, 3_600)[0].patience, Some(3_600 * MS));
    }

    #[test]
    fn whoever_is_late_itself_accuses_nobody_of_that_time_but_for_the_whole_grace() {
        let mut w = World::new(false);
        let at = regular(&mut w, &[Way::Back], SECOND, 12);
        w.peers.late(700 * MS);
        assert_eq!(w.peers.silent(at + 1600 * MS, BOUNDS, BTreeMap::new), []);
        assert_eq!(w.peers.silent(at + 1700 * MS, BOUNDS, BTreeMap::new).len(), 1);
        let at = regular(&mut w, &[Way::Back], at + 1700 * MS, 1);
        (0..50).for_each(|_| w.peers.late(900 * MS));
        assert_eq!(w.peers.silent(at + 3900 * MS, BOUNDS, BTreeMap::new), []);
        let said = w.peers.silent(at + 4 * SECOND, BOUNDS, BTreeMap::new);
        assert_eq!((said.len(), said[0].patience), (1, None), "the grace is the end");
    }

    /// The map shows it down at `at`, and up again at `back`; what it is asked by then comes over
    /// new links.
    fn gone_and_back(
        w: &mut World,
        at: Duration,
        back: Duration,
        port: u16,
        spoke: Option<Duration>,
    ) {
        let open = w.opener();
        w.peers.follow(&BTreeMap::new(), at, open);
        if let Some(spoke) = spoke {
            w.peers.spoke(5, spoke, BOUNDS.grace);
            w.peers.spoke(5, spoke + 2 * SECOND, BOUNDS.grace);
        }
        let addrs =
            OsdAddrs { client: addr(port), cluster: addr(2), hb_back: addr(3), hb_front: addr(3) };
        let open = w.opener();
        w.peers.follow(&[(5, addrs)].into(), back, open);
    }

    #[test]
    fn a_process_that_was_wrongly_down_is_known_when_it_is_back_and_given_more_time() {
        // When it speaks again, after its last answer; at which port; and what is usual then, when
        // it is known again.
        for (spoke, port, usual) in [
            (Some(1_300), 1, 3_900),
            (Some(3_700), 1, 4_000),
            (Some(4_000), 1, 1_500),
            (None, 1, 1_500),
            (Some(1_300), 9, 1_000),
        ] {
            let mut w = World::new(false);
            let at = regular(&mut w, &[Way::Back], SECOND, 12);
            w.peers.heard(w.link(Way::Back), at + 500 * MS, BOUNDS.grace);
            let last = at + 500 * MS;
            gone_and_back(
                &mut w,
                last + 1500 * MS,
                last + 5 * SECOND,
                port,
                spoke.map(|ms| last + ms * MS),
            );
            assert_eq!(w.peers.lease_ms(5, BOUNDS), LEASE_MS, "as one that is not known yet");
            // Without a pause for the gap to be forgotten in.
            let at = regular(&mut w, &[Way::Back], last + 5 * SECOND, 11);
            assert_eq!(
                w.peers.silent(at + (usual - 1) * MS, BOUNDS, BTreeMap::new),
                [],
                "{spoke:?} {port}"
            );
            let said = w.peers.silent(at + usual * MS, BOUNDS, BTreeMap::new);
            assert_eq!((said.len(), said[0].patience), (1, Some(usual * MS)), "{spoke:?} {port}");
        }
    }

    #[test]
    fn what_is_so_no_more_is_taken_back_also_where_one_network_stays_silent() {
        let mut w = World::new(true);
        let at = regular(&mut w, &[Way::Back, Way::Front], SECOND, 12);
        let at = regular(&mut w, &[Way::Front], at, 20);
        let said = w.peers.silent(at + SECOND, BOUNDS, BTreeMap::new);
        assert_eq!(
            (said[0].silent, said[0].unheard, said[0].patience),
            (6 * SECOND, SECOND, Some(SECOND))
        );
        // One of them is heard again: the other is silent all the same, and that is said at once.
        assert!(!w.peers.heard(w.link(Way::Front), at + 1100 * MS, BOUNDS.grace));
        let said = w.peers.silent(at + 1100 * MS, BOUNDS, BTreeMap::new);
        assert_eq!(
            (said[0].silent, said[0].unheard, said[0].patience),
            (6100 * MS, Duration::ZERO, None)
        );
        assert_eq!(w.peers.cleared(), NOBODY);
        w.peers.excuse(at + 1200 * MS);
        assert_eq!(w.peers.silent(at + 1300 * MS, BOUNDS, BTreeMap::new), []);
        assert_eq!((w.peers.cleared(), w.peers.cleared()), (vec![5], vec![]));
    }

    #[test]
    fn an_unusual_silence_is_repeated_each_second_and_told_when_it_has_lasted_for_the_grace() {
        let mut w = World::new(false);
        let at = regular(&mut w, &[Way::Back], SECOND, 12);
        let said = |w: &mut World| {
            let at_ms = (0..9000)
                .step_by(100)
                .filter(|ms| !w.peers.silent(at + *ms * MS, BOUNDS, BTreeMap::new).is_empty());
            at_ms.collect::<Vec<u32>>()
        };
        assert_eq!(said(&mut w), [1000, 2000, 3000, 4000, 6000, 8000]);
    }

    const NOBODY: [OsdId; 0] = [];

    /// Several peers, all on one network.
    fn many(n: OsdId) -> (World, Vec<LinkId>) {
        let mut w = World::new(false);
        let addrs =
            |o| OsdAddrs { client: addr(o), cluster: addr(o), hb_back: addr(o), hb_front: addr(o) };
        let open = w.opener();
        w.peers.follow(&(0..n).map(|o| (o, addrs(10 + o as u16))).collect(), SECOND, open);
        let link = |o| {
            w.peers
                .by_link
                .iter()
                .find(|(_, at)| **at == (o, Way::Back))
                .map(|(id, _)| *id)
                .unwrap()
        };
        let links = (0..n).map(link).collect();
        (w, links)
    }

    #[test]
    fn who_was_cut_off_accuses_nobody_of_that_time_and_takes_back_what_it_said() {
        let (mut w, links) = many(3);
        let hear = |w: &mut World, some: &[usize], now| {
            some.iter().for_each(|i| {
                w.peers.heard(links[*i], now, BOUNDS.grace);
            });
        };
        let silent = |w: &mut World, now| {
            let said = w.peers.silent(now, BOUNDS, BTreeMap::new);
            said.into_iter().map(|s| s.osd).collect::<Vec<_>>()
        };
        let calm = |w: &mut World, from: Duration| {
            (1..=12).fold(from, |_, i| {
                let now = from + i * 250 * MS;
                hear(w, &[0, 1, 2], now);
                assert_eq!(silent(w, now), NOBODY);
                now
            })
        };
        // All are lost, and come back one after the other.
        let at = calm(&mut w, SECOND);
        for ms in (100..2000).step_by(100) {
            assert_eq!(silent(&mut w, at + ms * MS), NOBODY);
        }
        hear(&mut w, &[0, 1], at + 2000 * MS);
        for ms in (2000..3900).step_by(100) {
            assert_eq!(silent(&mut w, at + ms * MS), NOBODY, "{ms}");
            hear(&mut w, &[0, 1], at + ms * MS);
        }
        assert_eq!(silent(&mut w, at + 4100 * MS), [2], "it does not come");
        // For longer than the grace.
        let at = calm(&mut w, at + 20 * SECOND);
        for ms in (100..4000).step_by(100) {
            assert_eq!(silent(&mut w, at + ms * MS), NOBODY);
        }
        assert_eq!(silent(&mut w, at + 4000 * MS), [0, 1, 2]);
        w.peers.cleared();
        hear(&mut w, &[0, 1], at + 4500 * MS);
        assert_eq!((silent(&mut w, at + 4500 * MS), w.peers.cleared()), (vec![], vec![2]));
        assert_eq!(silent(&mut w, at + 6400 * MS), NOBODY);
    }

    #[test]
    fn whoever_has_just_found_a_monitor_accuses_nobody_of_silence() {
        let mut w = World::new(false);
        let at = regular(&mut w, &[Way::Back], SECOND, 12);
        w.peers.found_monitor(at + 5 * SECOND);
        assert_eq!(w.peers.silent(at + 6900 * MS, BOUNDS, BTreeMap::new), []);
        assert_eq!(w.peers.silent(at + 7 * SECOND, BOUNDS, BTreeMap::new).len(), 1);
    }

    #[test]
    fn a_lease_is_as_long_as_the_patience_and_a_little_longer_and_never_longer_than_the_longest() {
        let mut w = World::new(false);
        assert_eq!(w.peers.lease_ms(5, BOUNDS), LEASE_MS, "not known yet");
        assert_eq!(w.peers.lease_ms(6, BOUNDS), LEASE_MS, "nobody knows it");
        let at = regular(&mut w, &[Way::Back], SECOND, 12);
        assert_eq!(w.peers.lease_ms(5, BOUNDS), 1400);
        w.peers.heard(w.link(Way::Back), at + 600 * MS, BOUNDS.grace);
        assert_eq!(w.peers.lease_ms(5, BOUNDS), 2200);
        let of = |n: usize| {
            let mut p = Peers::default();
            let addrs =
                OsdAddrs { client: addr(1), cluster: addr(2), hb_back: addr(3), hb_front: addr(3) };
            p.follow(&(0..n as OsdId).map(|o| (o, addrs.clone())).collect(), SECOND, w.opener());
            p.ping_every().as_millis()
        };
        assert_eq!((of(0), of(2), of(30), of(50), of(99)), (250, 250, 250, 400, 500));
    }
}
