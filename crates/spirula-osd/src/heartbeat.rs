//! Heartbeats: pings, the read leases in their answers, reports of peers that do not answer, and
//! the word to the monitor that we run.
//!
//! How long a silence is before it is reported: [`crate::patience`]. What is made of the reports:
//! `spirula-mon`, `failure`. Why the whole is safe, and how long clients wait when an OSD stands
//! still: `docs/decisions/018-silence.md`.

use crate::osd::OsdCore;
use crate::outside::Watch;
use crate::peers::{Bounds, LEASE_MS, Silent, Waits, Way};
use crate::timers::HOUSEKEEPING;
use bytes::Bytes;
use spirula_maps::osdmap::OsdAddrs;
use spirula_maps::{OsdMap, PathTimes, PgState};
use spirula_messages::cluster::control::{OsdBeacon, OsdFailureReport, Since};
use spirula_messages::cluster::pg::{OsdPing, OsdPong, OsdRenewed};
use spirula_messages::{Body, Message};
use spirula_pg::{Pg, PgEvent};
use spirula_runtime::{Ended, Link, LinkId, Peer};
use spirula_types::{AddrVec, EntityType, OsdId, SpgId};
use std::collections::BTreeMap;
use std::time::Duration;

/// A loop that did not run for so long was stopped or starved; the silence of others until then
/// is its own.
const AWAY: Duration = Duration::from_millis(1000);
/// A request that has waited for so long may wait for a peer that is silent.
const WAITS: Duration = Duration::from_secs(1);
/// Milliseconds that Ceph finds long for a ping.
const SLOW_MS: f64 = 1000.0;
/// So many paths over which pings take long are reported.
const SLOW_PATHS: usize = 32;
/// Sets apart the nonce of connections for heartbeats: the far end keeps one session for each
/// address of ours.
const BEAT_NONCE: u32 = 1 << 31;

/// Ourselves on connections for heartbeats.
pub(crate) fn beating(me: &Peer) -> Peer {
    let mut me = me.clone();
    me.addrs.0.iter_mut().for_each(|a| a.nonce ^= BEAT_NONCE);
    me
}

/// What heartbeats are filled up with.
static FILLING: [u8; 16 << 10] = [0; 16 << 10];

/// A heartbeat with a body of at least so many bytes, up to [`FILLING`]'s.
fn filled(mut beat: Message, size: u64) -> Message {
    let want = usize::try_from(size).unwrap_or(usize::MAX).saturating_sub(beat.front.len());
    beat.data = Bytes::from_static(&FILLING[..want.min(FILLING.len())]);
    beat
}

/// Is this an OSD with these addresses, or one that beats for it?
fn is_of(peer: &Peer, addrs: &OsdAddrs) -> bool {
    let ours = [&addrs.client, &addrs.cluster];
    [peer, &beating(peer)].iter().any(|p| ours.contains(&&p.addrs))
}

impl OsdCore {
    /// Seconds of silence after which a peer is reported.
    pub(crate) fn grace(&self) -> Duration {
        Duration::from_secs(self.cfg.settings.number("osd_heartbeat_grace").unwrap_or(4).max(1))
    }

    /// How much silence of a peer is borne at least and at most.
    fn bounds(&self) -> Bounds {
        let least =
            self.cfg.settings.get("osd_heartbeat_min_grace").and_then(|s| s.parse::<f64>().ok());
        let least = Duration::try_from_secs_f64(least.unwrap_or(1.0)).unwrap_or(Duration::MAX);
        Bounds { least, grace: self.grace() }
    }

    /// The event loop runs, at `now`.
    pub(crate) fn note_run(&mut self, now: Duration) {
        let late = self.ran.at(now, HOUSEKEEPING);
        if late >= AWAY {
            self.peers.excuse(now);
        } else if !late.is_zero() {
            self.peers.late(late);
        }
    }

    /// Do enough of the others answer that it makes sense to be up
    /// (`osd_heartbeat_min_healthy_ratio`)? Else they would only report us again.
    pub(crate) fn is_healthy(&self, now: Duration) -> bool {
        let (answer, all) = self.peers.answering(now, self.grace());
        let ratio = self
            .cfg
            .settings
            .get("osd_heartbeat_min_healthy_ratio")
            .and_then(|r| r.parse::<f64>().ok());
        answer as f64 >= all as f64 * ratio.unwrap_or(0.33)
    }

    /// Bytes that heartbeats, questions and answers, have at least: a path that carries small
    /// frames only must not look whole.
    fn beat_size(&self) -> u64 {
        self.cfg.settings.number("osd_heartbeat_min_size").unwrap_or(2000)
    }

    /// Opens links to peers. Not a method that borrows all of us: the peers call it.
    pub(crate) fn opener(&self) -> impl Fn(&AddrVec, Way) -> Link + use<> {
        let outside = self.outside.clone();
        let (data, back, front) =
            (self.me_cluster.clone(), beating(&self.me_cluster), beating(&self.me));
        move |to, way| match way {
            Way::Data => outside.connect(&data, to, EntityType::Osd, Watch::Usual),
            Way::Back => outside.connect(&back, to, EntityType::Osd, Watch::Closely),
            Way::Front => outside.connect(&front, to, EntityType::Osd, Watch::Closely),
        }
    }

    /// A link to a peer is ready, or goes on; with `renewed`, in a new session in place of one that
    /// was lost. Where a session for data was lost, both ends' PGs are told, now that the next one
    /// is open: the far end's by the first message in it.
    pub(crate) fn peer_opened(&mut self, link: LinkId, renewed: bool) {
        if let Some(osd) = self.peers.opened(link, renewed, self.now.mono) {
            tracing::info!(
                "osd.{}: a new session with osd.{osd}, after one that was lost",
                self.cfg.id
            );
            self.peers.send(osd, OsdRenewed { osd: self.cfg.id }.into_message(0));
            self.tell_renewed(osd);
        }
    }

    /// Sessions that other OSDs began with us outlive their connections only while the map shows
    /// those OSDs up.
    pub(crate) fn keep_sessions(&self, map: &OsdMap) {
        for s in self.sessions.values().filter(|s| s.peer.kind == EntityType::Osd) {
            let id = s.peer.name().num as OsdId;
            let up = map.is_up(id) && map.addrs(id).is_some_and(|a| is_of(&s.peer, a));
            s.link.keep(up);
        }
    }

    /// Tells all PGs that what `osd` and we sent each other may be lost.
    pub(crate) fn tell_renewed(&mut self, osd: OsdId) {
        self.copies.may_be_lost(osd);
        for pg in self.pgs.keys().copied().collect::<Vec<SpgId>>() {
            self.feed_pg(pg, PgEvent::Renewed(osd));
        }
    }

    pub(crate) fn peer_closed(&mut self, link: LinkId, ended: &Ended) {
        self.peer_refused(link, ended);
        if self.peers.closed(link) {
            let open = self.opener();
            self.peers.reopen(open);
        }
    }

    /// Nobody listens at a peer's address, if `ended` says so.
    pub(crate) fn peer_refused(&mut self, link: LinkId, ended: &Ended) {
        if !ended.refused {
            return;
        }
        let ours =
            |a: &AddrVec| a.0.iter().filter_map(|a| a.addr).map(|a| a.ip()).collect::<Vec<_>>();
        let mine = [ours(&self.me.addrs), ours(&self.me_cluster.addrs)].concat();
        let here = |a: &AddrVec| ours(a).iter().all(|ip| mine.contains(ip));
        let now = self.now.mono;
        self.peers.refused(link, ended, now, here);
        self.report_silent(now);
    }

    /// Asks all peers, and tells the monitor that we run.
    pub(crate) fn ping(&mut self, now: Duration) {
        let ping = OsdPing { osd: self.cfg.id, epoch: self.maps.epoch(), sent_ms: self.now.ms() };
        let size = self.beat_size();
        self.perf.pings += self.peers.ping(now, || filled(ping.into_message(0), size));
        self.beacon();
    }

    /// Tells the monitor that we run. False without a monitor to tell.
    pub(crate) fn beacon(&mut self) -> bool {
        let open = self.mon.is_open();
        if open {
            let every = self.peers.ping_every().as_millis();
            self.mon.send(OsdBeacon { every_ms: u32::try_from(every).unwrap_or(u32::MAX) });
        }
        open
    }

    /// A peer asks: it gets an answer on the connection it asked over, and a lease if it is up; of
    /// what one that is down holds the next primaries wait for the end.
    pub(crate) fn pinged(&mut self, link: LinkId, from: OsdId, p: &OsdPing) {
        let Some(session) = self.sessions.get(&link) else { return };
        self.peers.spoke(from, self.now.mono, self.grace());
        // Its map may be newer than ours.
        let up = p.epoch > self.maps.epoch() || self.maps.map().is_some_and(|m| m.is_up(from));
        let length = self.peers.lease_ms(from, self.bounds());
        let lease = if up { self.leases.grant(from, length, self.now.ms()) } else { 0 };
        let pong = OsdPong {
            osd: self.cfg.id,
            epoch: self.maps.epoch(),
            sent_ms: p.sent_ms,
            lease_ms: u32::try_from(lease).unwrap_or(u32::MAX),
            full: self.is_failsafe_full(),
        };
        session.link.send(filled(pong.into_message(0), self.beat_size()));
    }

    /// A peer answers.
    pub(crate) fn ponged(&mut self, link: LinkId, from: OsdId, p: &OsdPong) {
        if p.full {
            self.full_peers.insert(from);
        } else {
            self.full_peers.remove(&from);
        }
        if p.sent_ms > self.now.ms() {
            tracing::warn!("osd.{}: osd.{from} answers what was not asked", self.cfg.id);
            return;
        }
        let granted = if self.pg_cfg.ignores_grant_epochs() { 0 } else { p.epoch };
        let length = if self.pg_cfg.stretches_leases() { LEASE_MS } else { u64::from(p.lease_ms) };
        self.leases.take(from, p.sent_ms, length, granted, self.maps.epoch());
        self.note_run(self.now.mono);
        self.peers.took(link, self.now.mono, self.now.ms().saturating_sub(p.sent_ms));
        if self.peers.heard(link, self.now.mono, self.grace()) {
            self.clear_peer(from);
        }
        let waiting: Vec<SpgId> =
            self.pgs.iter().filter(|(_, p)| p.waits_for_lease()).map(|(id, _)| *id).collect();
        for pg in waiting {
            self.feed_pg(pg, PgEvent::Tick);
        }
    }

    /// Milliseconds from which on a ping takes long: `mon_warn_on_slow_ping_time`, or that share of
    /// the grace which `mon_warn_on_slow_ping_ratio` says, but no less than [`SLOW_MS`]: our grace
    /// is a fifth of Ceph's.
    fn slow_ping_ms(&self) -> f64 {
        let number = |name: &str| {
            self.cfg.settings.get(name).and_then(|v| v.parse::<f64>().ok()).filter(|v| *v > 0.0)
        };
        let share = || {
            number("mon_warn_on_slow_ping_ratio").unwrap_or(0.05) * self.grace().as_millis() as f64
        };
        number("mon_warn_on_slow_ping_time").unwrap_or_else(|| share().max(SLOW_MS))
    }

    /// Paths whose pings take so many milliseconds or more, the slowest first.
    fn paths_from(&self, now: Duration, threshold: f64) -> Vec<PathTimes> {
        let wall = self.now.wall.as_nanos();
        let of = |(osd, way, trips): (OsdId, Way, &crate::trips::Trips)| {
            let at = wall.saturating_sub(trips.ago(now)?.as_nanos() as u64);
            let times =
                trips.times(now, osd, way == Way::Front, spirula_encoding::UTime::from_nanos(at));
            (times.worst_ms() >= threshold).then_some(times)
        };
        let mut all: Vec<PathTimes> = self.peers.trips().filter_map(of).collect();
        all.sort_by_key(|p| std::cmp::Reverse(p.mean_us));
        all
    }

    /// What is reported of paths whose pings take long: the slowest.
    pub(crate) fn slow_paths(&self, now: Duration) -> Vec<PathTimes> {
        let mut all = self.paths_from(now, self.slow_ping_ms());
        all.truncate(SLOW_PATHS);
        all
    }

    /// `dump_osd_network`: paths whose pings take `threshold` milliseconds or more; without one,
    /// those that take long.
    pub(crate) fn dump_network(&self, threshold: Option<u64>) -> serde_json::Value {
        let threshold = threshold.unwrap_or_else(|| self.slow_ping_ms() as u64);
        let rows = self.paths_from(self.now.mono, threshold as f64);
        let entries: Vec<_> = rows.iter().map(|p| p.row(self.cfg.id)).collect();
        serde_json::json!({"threshold": threshold, "entries": entries})
    }

    /// Reports peers that are silent.
    pub(crate) fn report_silent(&mut self, now: Duration) {
        // One that is not up itself is the one that is cut off; nobody would listen.
        if !self.life.is_live() || !self.mon.is_open() {
            return;
        }
        let me = self.cfg.id;
        let bounds = self.bounds();
        let (requests, pgs, maps) = (&self.requests, &self.pgs, &self.maps);
        let waiting = || {
            let stuck = pgs
                .iter()
                .filter(|(_, p)| p.is_primary() && !p.state().0.has(PgState::ACTIVE))
                .map(|(pg, _)| pg.pg);
            let late = requests
                .all()
                .filter(|(_, p)| now.saturating_sub(p.begun) >= WAITS)
                .map(|(_, p)| p.pg);
            let mut waiting: BTreeMap<OsdId, Waits> = BTreeMap::new();
            for osd in stuck.chain(late).flat_map(|pg| maps.members(pg)).filter(|o| *o != me) {
                waiting.entry(osd).or_default().all += 1;
            }
            for (osd, spare) in pgs.values().flat_map(Pg::waits_outside) {
                let w = waiting.entry(osd).or_default();
                w.all += 1;
                w.outside.all += 1;
                w.outside.spare += u32::from(spare);
            }
            waiting
        };
        for s in self.peers.silent(now, bounds, waiting) {
            self.report_peer(&s, false);
        }
        for osd in self.peers.cleared() {
            self.clear_peer(osd);
        }
    }

    /// What was said of a peer is so no more.
    fn clear_peer(&self, osd: OsdId) {
        let (silent, waiting) = (Duration::ZERO, Waits::default());
        self.report_peer(
            &Silent { osd, silent, refused: None, waiting, patience: None, unheard: silent },
            true,
        );
    }

    fn report_peer(&self, s: &Silent, alive: bool) {
        let Some(addrs) = self.peers.addrs(s.osd) else { return };
        self.mon.send(OsdFailureReport {
            reporter: self.cfg.id,
            target: s.osd,
            target_public: addrs.client.clone(),
            epoch: self.maps.epoch(),
            failed_for_ms: s.silent.as_millis() as u64,
            refused: s.refused.is_some(),
            gone: s.refused.is_some_and(|r| r.gone || self.pg_cfg.asks_no_proof()),
            alive,
            waiting: s.waiting.all,
            outside: s.waiting.outside,
            patience_ms: Since(
                s.patience.map_or(0, |p| u32::try_from(p.as_millis()).unwrap_or(u32::MAX).max(1)),
            ),
            unheard_ms: Since(u32::try_from(s.unheard.as_millis()).unwrap_or(u32::MAX)),
        });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;
    use spirula_types::EntityAddr;

    #[test]
    fn heartbeats_are_as_large_as_asked_for_and_mean_the_same() {
        let ping = OsdPing { osd: 1, epoch: 2, sent_ms: 3 };
        for size in [0, 10, 2000, 9000, 1 << 40] {
            let m = filled(ping.into_message(0), size);
            let most = (FILLING.len() + m.front.len()) as u64;
            assert!((m.front.len() + m.data.len()) as u64 >= size.min(most));
            assert_eq!(OsdPing::from_message(&m).unwrap(), ping);
        }
        assert_eq!(filled(ping.into_message(0), 0), ping.into_message(0));
    }

    #[test]
    fn all_links_of_an_incarnation_are_known_as_its_own_and_no_others() {
        let addr = |port, nonce| AddrVec(vec![EntityAddr::v2(([10, 0, 0, 1], port).into(), nonce)]);
        let addrs = OsdAddrs {
            client: addr(1, 7),
            cluster: addr(2, 7),
            hb_back: addr(2, 7),
            hb_front: addr(1, 7),
        };
        let at = |addrs| Peer { addrs, ..Peer::new(EntityType::Osd, "5") };
        for ours in [addr(1, 7), addr(2, 7)] {
            assert!(is_of(&at(ours.clone()), &addrs) && is_of(&beating(&at(ours)), &addrs));
        }
        let earlier = at(addr(2, 6));
        assert!(!is_of(&earlier, &addrs) && !is_of(&beating(&earlier), &addrs));
    }
}
