//! What a new map means to the OSD: its own state, its peers, splits, each PG's view.

use crate::daemon::{Life, Osd, mono_ms};
use crate::reader::StoreReader;
use spirula_messages::ceph::{MMgrMap, MOsdMap};
use spirula_pg::{MapView, Now, Pg, PgEvent};
use spirula_runtime::clock;
use spirula_types::{EntityType, PgId};
use std::sync::Arc;
use std::time::Duration;

impl Osd {
    pub(crate) fn osd_map(&mut self, m: MOsdMap) {
        match self.maps.take(self.cfg.fsid, m) {
            Ok(true) => self.map_advanced(),
            Ok(false) => {}
            Err(e) => {
                tracing::error!("osd.{}: {e}", self.cfg.id);
                // Ask again from what we have; a full map heals a damaged incremental.
                self.subscribe();
            }
        }
    }

    pub(crate) fn map_advanced(&mut self) {
        self.perf.maps += 1;
        let epoch = self.maps.epoch();
        let Some(map) = self.maps.map().cloned() else { return };
        self.leases.map_advanced(epoch);
        self.follow_pool_options(&map);
        let id = self.cfg.id;
        let own = map.is_up(id) && map.addrs(id).is_some_and(|a| a.client == self.me.addrs);
        match (self.life, own) {
            (Life::Booting, true) => {
                tracing::debug!("osd.{id}: up in epoch {epoch}");
                self.life = Life::Active;
            }
            (Life::Active, false) => {
                tracing::warn!("osd.{id}: map {epoch} marks us down, but we live; asking to be marked up");
                self.life = Life::Booting;
                self.send_boot();
            }
            _ => {}
        }
        let others = map.osds().filter(|o| *o != id && map.is_up(*o));
        let wanted = others.filter_map(|o| Some((o, map.addrs(o)?.cluster.clone()))).collect();
        let (hub, me, login, sink, on) = (&self.hub, &self.me_cluster, &self.login, self.mailbox.sink(), &self.on);
        let now = clock::monotonic();
        self.peers.follow(&wanted, now, |addrs| hub.connect(me, login, &sink, addrs, EntityType::Osd, on));
        self.split_pgs();
        if own {
            let new: Vec<PgId> = self.maps.ours(id).filter(|pg| !self.pgs.contains_key(pg)).collect();
            for pg in new {
                self.pgs.insert(pg, Pg::new(pg, id, self.pg_cfg.clone()));
            }
        }
        let all: Vec<PgId> = self.pgs.keys().copied().collect();
        for pg in all {
            let view = self.view(pg);
            self.feed_pg(pg, PgEvent::Map(Arc::new(view)));
        }
        self.ping(now);
        for (link, m) in std::mem::take(&mut self.early) {
            self.message(link, m);
        }
        self.reporter.changed();
    }

    /// Splits the PGs of pools that have grown, before they see the map that says so.
    pub(crate) fn split_pgs(&mut self) {
        let grown: Vec<(PgId, u32)> = self
            .pgs
            .iter()
            .filter_map(|(id, pg)| {
                let to = self.maps.pool(id.pool)?.pg_num;
                (pg.exists() && pg.pg_num() < to).then_some((*id, to))
            })
            .collect();
        for (id, to) in grown {
            let Some(pg) = self.pgs.get_mut(&id) else { continue };
            let store = self.store.as_ref();
            let Some(store) = store else { return };
            let reader = StoreReader { store, shelf: &self.shelf };
            let now = Now { mono_ms: mono_ms(), wall: clock::wall() };
            let children = pg.split(now, to, &reader, &self.leases, &mut self.scratch);
            self.effects.extend(self.scratch.drain(..).map(|e| (id, e)));
            for child in children {
                self.pgs.insert(child.id(), child);
            }
        }
        self.perform();
    }

    pub(crate) fn mgr_map(&mut self, m: &MMgrMap) {
        let map: spirula_maps::MgrMap = match spirula_encoding::from_slice(&m.mgrmap) {
            Ok(map) => map,
            Err(e) => {
                tracing::error!("osd.{}: manager map: {e}", self.cfg.id);
                return;
            }
        };
        if map.active_addrs != self.mgr_addr {
            self.mgr_addr = map.active_addrs;
            if let Some(old) = self.mgr.take() {
                old.close();
            }
            (self.mgr_open, self.mgr_retry) = (false, Duration::ZERO);
            self.keep_links(clock::monotonic());
        }
    }

    /// What a PG is told of the newest map. Until that shows this incarnation up, it is told
    /// that we are down and serve nothing: after a restart we have forgotten our promises,
    /// and must answer no peer before everyone can know of the restart.
    pub(crate) fn view(&self, pg: PgId) -> MapView {
        let mut view = self.maps.view(pg);
        if self.life == Life::Booting {
            (view.acting, view.up, view.primary, view.up_primary) = (Vec::new(), Vec::new(), -1, -1);
            let mut others = (*view.osds).clone();
            others.remove(&self.cfg.id);
            view.osds = Arc::new(others);
        }
        view
    }
}
