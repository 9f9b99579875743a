//! Other OSDs: links, heartbeats, read leases, failure reports.
//!
//! A link to a peer exists for one incarnation of it (its address in the map). When it
//! breaks, what was under way is lost with it and the map will show what happened: either
//! the peer restarted (new address), or the two are cut off and one of them goes down.
//! Every OSD pings every other one; the answers are life signs and read leases.

use spirula_messages::Message;
use spirula_runtime::{Link, LinkId};
use spirula_types::{AddrVec, OsdId};
use std::collections::BTreeMap;
use std::time::Duration;

/// Between two pings to a peer.
pub const PING_EVERY: Duration = Duration::from_millis(500);
/// Length of a read lease, milliseconds. The same in the whole cluster, see
/// `spirula_pg::Leases`.
pub const LEASE_MS: u64 = 3000;
/// Silence after which a peer is reported to the monitor; Ceph's osd_heartbeat_grace.
pub const GRACE: Duration = Duration::from_secs(20);
/// How often a report is repeated.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// One other OSD, in one incarnation.
#[derive(Debug)]
pub struct Peer {
    /// Its address in the map.
    pub addrs: AddrVec,
    /// The way to it.
    pub link: Link,
    /// When it last answered a ping, or when we began to ask.
    pub heard: Duration,
    /// When the last ping went out.
    pub pinged: Duration,
    /// When it was last reported.
    pub reported: Option<Duration>,
    /// Its link broke with "nobody listens there".
    pub refused: bool,
}

/// All other OSDs that are up.
#[derive(Debug, Default)]
pub struct Peers {
    by_osd: BTreeMap<OsdId, Peer>,
    by_link: BTreeMap<LinkId, OsdId>,
}

/// A peer to be reported to the monitor.
#[derive(Debug, PartialEq, Eq)]
pub struct Silent {
    /// The peer.
    pub osd: OsdId,
    /// Its incarnation.
    pub addrs: AddrVec,
    /// For how long.
    pub silent: Duration,
    /// Its port refuses connections.
    pub refused: bool,
}

impl Peers {
    /// Makes the peers those of the map: `wanted` are the others that are up, with their
    /// addresses; `open` opens a link. Links of gone incarnations are closed.
    pub fn follow(&mut self, wanted: &BTreeMap<OsdId, AddrVec>, now: Duration, mut open: impl FnMut(&AddrVec) -> Link) {
        let gone: Vec<OsdId> =
            self.by_osd.iter().filter(|(osd, p)| wanted.get(osd) != Some(&p.addrs)).map(|(osd, _)| *osd).collect();
        for osd in gone {
            self.remove(osd);
        }
        for (osd, addrs) in wanted {
            if !self.by_osd.contains_key(osd) {
                let link = open(addrs);
                self.by_link.insert(link.id(), *osd);
                let peer = Peer {
                    addrs: addrs.clone(),
                    link,
                    heard: now,
                    pinged: Duration::ZERO,
                    reported: None,
                    refused: false,
                };
                self.by_osd.insert(*osd, peer);
            }
        }
    }

    fn remove(&mut self, osd: OsdId) {
        if let Some(p) = self.by_osd.remove(&osd) {
            self.by_link.remove(&p.link.id());
            p.link.close();
        }
    }

    /// Sends to a peer; without a link to it the message is lost, as on a network.
    pub fn send(&self, osd: OsdId, message: Message) {
        if let Some(p) = self.by_osd.get(&osd) {
            p.link.send(message);
        }
    }

    /// Which peer an outgoing link leads to.
    pub fn by_link(&self, link: LinkId) -> Option<OsdId> {
        self.by_link.get(&link).copied()
    }

    /// An outgoing link broke. It is opened again by `open`, at the next ping round at the
    /// earliest ([`Peers::reopen`]).
    pub fn closed(&mut self, link: LinkId, refused: bool) -> Option<OsdId> {
        let osd = self.by_link.remove(&link)?;
        if let Some(p) = self.by_osd.get_mut(&osd) {
            p.refused = refused;
            p.link.close();
        }
        Some(osd)
    }

    /// Opens the broken links again.
    pub fn reopen(&mut self, mut open: impl FnMut(&AddrVec) -> Link) {
        for (osd, p) in &mut self.by_osd {
            if p.link.is_closed() {
                p.link = open(&p.addrs);
                self.by_link.insert(p.link.id(), *osd);
            }
        }
    }

    /// A ping was answered.
    pub fn heard(&mut self, osd: OsdId, now: Duration) -> bool {
        let Some(p) = self.by_osd.get_mut(&osd) else { return false };
        p.heard = now;
        p.refused = false;
        // True: it had been reported and lives after all.
        p.reported.take().is_some()
    }

    /// The incarnation of a peer.
    pub fn addrs(&self, osd: OsdId) -> Option<&AddrVec> {
        self.by_osd.get(&osd).map(|p| &p.addrs)
    }

    /// Peers whose next ping is due; they count as pinged now.
    pub fn due(&mut self, now: Duration) -> Vec<OsdId> {
        let mut due = Vec::new();
        for (osd, p) in &mut self.by_osd {
            if p.pinged.is_zero() || now.saturating_sub(p.pinged) >= PING_EVERY {
                p.pinged = now;
                due.push(*osd);
            }
        }
        due
    }

    /// Peers to report now.
    pub fn silent(&mut self, now: Duration) -> Vec<Silent> {
        let mut out = Vec::new();
        for (osd, p) in &mut self.by_osd {
            let silent = now.saturating_sub(p.heard);
            let due = p.reported.is_none_or(|at| now.saturating_sub(at) >= REPORT_EVERY);
            if due && (silent >= GRACE || p.refused) {
                p.reported = Some(now);
                out.push(Silent { osd: *osd, addrs: p.addrs.clone(), silent, refused: p.refused });
            }
        }
        out
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
