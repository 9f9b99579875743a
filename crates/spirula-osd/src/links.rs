//! The OSD's links: to monitor and manager, from clients. Those to other OSDs: [`crate::heartbeat`].

use crate::access::Rights;
use crate::daemon::{Life, Osd, RETRY, Session};
use crate::heartbeat::AWAY;
use crate::unread::Owed;
use spirula_messages::Body;
use spirula_messages::ceph::{MMonGetVersion, MMonMap, MMonSubscribe, Subscription};
use spirula_messages::cluster::control::OsdBoot;
use spirula_pg::{Backoffs, PgEvent};
use spirula_runtime::{Ended, Link, LinkId, Peer, clock};
use spirula_types::{AddrVec, EntityType, SpgId};
use std::time::Duration;

/// Between two questions to the monitor whether it is there.
const MON_ASK: Duration = Duration::from_millis(1000);
/// Silence of the monitor after which another one is tried.
const MON_SILENCE: Duration = Duration::from_millis(2500);

impl Osd {
    pub(crate) fn opened(&mut self, link: Link, peer: Peer, outgoing: bool) {
        if outgoing {
            if self.mon.as_ref().is_some_and(|l| l.id() == link.id()) {
                self.mon_open = true;
                self.mon_heard = clock::monotonic();
                self.clog.reconnected();
                self.renew();
                self.subscribe();
                self.send_boot();
            } else if self.mgr.as_ref().is_some_and(|l| l.id() == link.id()) {
                self.mgr_open = true;
                self.reporter.want_full();
            }
            self.peer_opened(link.id(), false);
            // Peers are pinged at the next tick, which is due at once.
            return;
        }
        let rights = Rights::of(&peer);
        self.sessions
            .insert(link.id(), Session { link, peer, rights, backoffs: Backoffs::default(), owed: Owed::default() });
    }

    pub(crate) fn closed(&mut self, id: LinkId, ended: &Ended) {
        let now = clock::monotonic();
        if self.mon.as_ref().is_some_and(|l| l.id() == id) {
            self.lose_monitor(&ended.why, now + RETRY);
        } else if self.mgr.as_ref().is_some_and(|l| l.id() == id) {
            (self.mgr, self.mgr_open, self.mgr_retry) = (None, false, now + RETRY);
        } else if self.sessions.remove(&id).is_some() {
            // Its requests need no answer any more.
            self.early.closed(id);
            self.unread.closed(id);
            let pgs: Vec<SpgId> = self.pgs.keys().copied().collect();
            if self.ops.values().any(|p| p.link == id) {
                for pg in pgs {
                    self.feed_pg(pg, PgEvent::ConnClosed(id));
                }
            }
        } else {
            self.peer_closed(id, ended);
        }
    }

    pub(crate) fn connect(&self, to: &AddrVec, kind: EntityType) -> Link {
        self.hub.connect(&self.me, &self.login, &self.mailbox.sink(), to, kind, &self.on)
    }

    /// Asks the monitor for tickets and keys that are missing or end soon.
    pub(crate) fn renew(&self) {
        if let Some(link) = self.mon.as_ref().filter(|_| self.mon_open) {
            self.cfg.auth.requests().into_iter().for_each(|m| link.send(m));
        }
    }

    /// Goes to the next monitor, not before `retry`.
    fn lose_monitor(&mut self, why: &str, retry: Duration) {
        // Once: it goes on trying.
        if self.mon_lost != why {
            tracing::warn!("osd.{}: monitor: {why}", self.cfg.id);
            self.mon_lost = why.to_owned();
        }
        (self.mon, self.mon_open, self.mon_retry) = (None, false, retry);
        self.cfg.mons.next();
    }

    /// A monitor that is cut off, stopped, or without a majority gives no maps, and its host may
    /// still acknowledge what we send. It is asked for something that only one in the quorum
    /// answers; without a word we go to the next. `last` is when this was called before.
    pub(crate) fn watch_monitor(&mut self, now: Duration, last: Duration) {
        if now.saturating_sub(last) >= AWAY {
            // The silence is our own.
            self.mon_heard = now;
        }
        let Some(link) = &self.mon else { return };
        if now.saturating_sub(self.mon_heard) >= MON_SILENCE {
            link.close();
            self.lose_monitor(&format!("no word for {MON_SILENCE:?}"), now);
        } else if self.mon_open && now.saturating_sub(self.mon_asked) >= MON_ASK {
            self.mon_asked = now;
            self.to_mon(MMonGetVersion { handle: 0, what: "osdmap".into() });
        }
    }

    pub(crate) fn keep_links(&mut self, now: Duration) {
        if self.life == Life::Stopped {
            return;
        }
        if self.mon.is_none() && now >= self.mon_retry {
            self.mon = Some(self.connect(&self.cfg.mons.current(), EntityType::Mon));
            self.mon_heard = now;
        }
        if self.mgr.is_none() && now >= self.mgr_retry && !self.mgr_addr.is_blank() {
            self.mgr = Some(self.connect(&self.mgr_addr.clone(), EntityType::Mgr));
        }
        if self.mon_open && self.life == Life::Booting && now.saturating_sub(self.boot_sent) >= RETRY {
            self.send_boot();
        }
        let open = self.opener();
        self.peers.reopen(open);
    }

    pub(crate) fn to_mon<B: Body>(&self, body: B) {
        if let Some(link) = &self.mon
            && self.mon_open
        {
            link.send(body.into_message(0));
        }
    }

    pub(crate) fn subscribe(&self) {
        let start = self.maps.wanted();
        let what = vec![
            Subscription { what: "osdmap".into(), start, once: false },
            Subscription { what: "mgrmap".into(), start: 0, once: false },
            Subscription { what: "monmap".into(), start: 0, once: false },
            Subscription { what: "config".into(), start: 0, once: false },
        ];
        self.to_mon(MMonSubscribe { what, hostname: self.cfg.host.clone() });
    }

    /// The monitors changed: the next attempt goes to one of these.
    pub(crate) fn mon_map(&mut self, m: &MMonMap) {
        match spirula_encoding::from_slice::<spirula_maps::MonMap>(&m.monmap) {
            Ok(map) => self.cfg.mons.replace(map.mons.values().map(|m| m.addrs.clone()).collect()),
            Err(e) => tracing::warn!("osd.{}: monitor map: {e}", self.cfg.id),
        }
    }

    pub(crate) fn send_boot(&mut self) {
        // Without a map from before we are up we could not tell since when our intervals are: what
        // primaries of the first ones send would look too old.
        if self.life != Life::Booting || self.maps.epoch() == 0 {
            return;
        }
        let now = clock::monotonic();
        self.boot_sent = now;
        // One that was marked down though it lived waits until it and the others hear each other: the monitor's decision.
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
        ] {
            metadata.insert(key.to_owned(), value);
        }
        self.to_mon(OsdBoot {
            fsid: self.cfg.fsid,
            osd: self.cfg.id,
            uuid: self.cfg.uuid,
            public: self.me.addrs.clone(),
            cluster: self.me_cluster.addrs.clone(),
            hb_back: self.me_cluster.addrs.clone(),
            hb_front: self.me.addrs.clone(),
            features: self.me.features,
            newest_map: self.maps.epoch(),
            was_up: self.was_up,
            unheard,
            healthy,
            quiet: self.quiet,
            size_bytes,
            device_class: self.cfg.device_class.clone(),
            location: self.cfg.location.clone(),
            metadata,
        });
    }
}
