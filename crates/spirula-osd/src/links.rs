//! The OSD's links: to monitor and manager, from clients. Those to other OSDs:
//! [`crate::heartbeat`].

use crate::access::Rights;
use crate::osd::{OsdCore, RETRY, Session};
use crate::outside::Watch;
use crate::unread::Owed;
use spirula_messages::cluster;
use spirula_messages::cluster::control::{OsdBoot, Since, WHOLE_OSDMAP};
use spirula_pg::{Backoffs, Pg, PgEvent};
use spirula_runtime::{Ended, Link, LinkId, MonNews, Peer};
use spirula_types::{AddrVec, EntityType, SpgId};
use std::sync::Arc;
use std::time::Duration;

/// The link to the manager, which maps name.
#[derive(Debug, Default)]
pub(crate) struct ManagerLink {
    link: Option<Link>,
    /// The manager is there.
    open: bool,
    /// Where it is; blank if there is none.
    addr: AddrVec,
    /// When it is tried again.
    retry: Duration,
}

impl ManagerLink {
    /// Is this the link?
    pub fn is(&self, id: LinkId) -> bool {
        self.link.as_ref().is_some_and(|l| l.id() == id)
    }

    /// The link, if the manager is there.
    pub fn open(&self) -> Option<&Link> {
        self.link.as_ref().filter(|_| self.open)
    }

    /// A map names the manager at `addr`; true if that is another one than before, which is to be
    /// reached at once.
    pub fn follow(&mut self, addr: AddrVec) -> bool {
        if addr == self.addr {
            return false;
        }
        self.close();
        (self.addr, self.retry) = (addr, Duration::ZERO);
        true
    }

    /// Opens the link, if there is none, there is a manager, and it is time.
    fn reopen(&mut self, now: Duration, connect: impl FnOnce(&AddrVec) -> Link) {
        if self.link.is_none() && now >= self.retry && !self.addr.is_blank() {
            self.link = Some(connect(&self.addr));
        }
    }

    /// A link is open; true if it is this one.
    fn opened(&mut self, id: LinkId) -> bool {
        let ours = self.is(id);
        self.open |= ours;
        ours
    }

    /// A link has ended; true if it was this one.
    fn closed(&mut self, id: LinkId, now: Duration) -> bool {
        let ours = self.is(id);
        if ours {
            (self.link, self.open, self.retry) = (None, false, now + RETRY);
        }
        ours
    }

    /// Closes it.
    pub fn close(&mut self) {
        self.open = false;
        if let Some(link) = self.link.take() {
            link.close();
        }
    }
}

impl OsdCore {
    pub(crate) fn opened(&mut self, link: Link, peer: Peer, outgoing: bool) {
        if outgoing {
            if self.mon.is(link.id()) {
                self.mon.set_start("osdmap", self.maps.wanted());
                let news = self.mon.opened_at(self.now.mono);
                self.mon_news(link.id(), news);
            } else if self.mgr.opened(link.id()) {
                self.reporter.want_full();
            }
            self.peer_opened(link.id(), false);
            // Peers are pinged at the next tick, which is due at once.
            return;
        }
        let rights = Rights::of(&peer);
        let addrs = Arc::new(peer.addrs.clone());
        let (backoffs, owed) = (Backoffs::default(), Owed::default());
        self.sessions.insert(link.id(), Session { link, peer, addrs, rights, backoffs, owed });
    }

    pub(crate) fn closed(&mut self, id: LinkId, ended: &Ended) {
        let now = self.now.mono;
        if self.mon.is(id) {
            let news = self.mon.closed_at(self.now.mono, &ended.why);
            self.mon_news(id, news);
        } else if self.mgr.closed(id, now) {
            // It is opened again soon.
        } else if self.sessions.remove(&id).is_some() {
            // Its requests need no answer any more.
            self.early.closed(id);
            self.unread.closed(id);
            self.waiting_closed(id);
            let asked = self.requests.any_of(id);
            let minds = |p: &Pg| asked || p.minds_connection(id);
            let pgs: Vec<SpgId> =
                self.pgs.iter().filter(|(_, p)| minds(p)).map(|(pg, _)| *pg).collect();
            for pg in pgs {
                self.feed_pg(pg, PgEvent::ConnClosed(id));
            }
        } else {
            self.peer_closed(id, ended);
        }
    }

    /// What the link to the monitor has to say. `id` is that link's; only what came over it has
    /// messages.
    pub(crate) fn mon_news(&mut self, id: LinkId, news: Vec<MonNews>) {
        for n in news {
            match n {
                MonNews::Opened => {
                    self.peers.found_monitor(self.now.mono);
                    self.clog.reconnected();
                    if self.maps.wants_whole() {
                        self.ask_for_maps();
                    }
                    self.send_boot();
                }
                MonNews::Lost(why) => tracing::warn!("osd.{}: monitor: {why}", self.cfg.id),
                // An OSD runs no commands at the monitors.
                MonNews::Answer(..) => {}
                MonNews::Message(m) => self.take(id, m),
            }
        }
    }

    pub(crate) fn keep_links(&mut self, now: Duration) {
        if self.life.is_over() {
            return;
        }
        let news = self.mon.tick_at(now);
        self.mon_news(0, news);
        let (outside, me) = (&self.outside, &self.me);
        self.mgr.reopen(now, |to| outside.connect(me, to, EntityType::Mgr, Watch::Usual));
        if self.mon.is_open() && self.life.may_boot_again(now) {
            self.send_boot();
        }
        let open = self.opener();
        self.peers.reopen(open);
    }

    /// Goes on with the OSD maps from the one that is wanted next, or asks for that one as a whole.
    pub(crate) fn ask_for_maps(&mut self) {
        self.maps.asked();
        let start = self.maps.wanted();
        match self.maps.wants_whole() {
            true => self.mon.ask_once(WHOLE_OSDMAP, start),
            false => self.mon.subscribe("osdmap", start),
        }
    }

    pub(crate) fn send_boot(&mut self) {
        // Without a map from before we are up we could not tell since when our intervals are: what
        // primaries of the first ones send would look too old.
        if !self.life.is_booting() || self.maps.epoch() == 0 {
            return;
        }
        let now = self.now.mono;
        self.life.boots(now);
        // One that was marked down though it lived waits until it and the others hear each other:
        // the monitor's decision.
        let (unheard, healthy) = (self.peers.unheard(now, self.grace()), self.is_healthy(now));
        let size_bytes = self.store.as_ref().map_or(0, |s| s.statfs().total);
        let mut metadata = self.cfg.metadata.clone();
        for (key, value) in [
            ("front_addr", self.me.addrs.to_string()),
            ("hb_front_addr", self.me.addrs.to_string()),
            ("back_addr", self.me_cluster.addrs.to_string()),
            ("hb_back_addr", self.me_cluster.addrs.to_string()),
            ("front_iface", String::new()),
            ("back_iface", String::new()),
            (cluster::BETWEEN_OSDS, cluster::between_osds()),
        ] {
            metadata.insert(key.to_owned(), value);
        }
        self.mon.send(OsdBoot {
            fsid: self.cfg.fsid,
            osd: self.cfg.id,
            uuid: self.cfg.uuid,
            public: self.me.addrs.clone(),
            cluster: self.me_cluster.addrs.clone(),
            hb_back: self.me_cluster.addrs.clone(),
            hb_front: self.me.addrs.clone(),
            features: self.me.features,
            newest_map: self.maps.epoch(),
            was_up: self.life.was_up(),
            unheard,
            healthy,
            quiet: self.life.quiet(),
            size_bytes,
            device_class: self.cfg.device_class.clone(),
            location: self.cfg.location.clone(),
            metadata,
            stood_ms: Since(u32::try_from(self.ran.stood(now).as_millis()).unwrap_or(u32::MAX)),
        });
    }
}
