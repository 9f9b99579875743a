//! What a new map means to the OSD: its own state, its peers, splits, each PG's view.

use crate::life::Turn;
use crate::osd::OsdCore;
use crate::reader::StoreReader;
use bytes::Bytes;
use spirula_maps::OsdMap;
use spirula_messages::ceph::{MMgrMap, MOsdMap};
use spirula_pg::{MapView, Pg, PgEvent};
use spirula_store::StoreError;
use spirula_types::transaction::{MetaOp, Transaction};
use spirula_types::{OsdId, PgId, SpgId};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Key of the newest map processed, in the store's meta space.
pub(crate) const MAP_KEY: &[u8] = b"osdmap";

/// Does the map know of no OSDs but these? Asked of the first map that shows us up, which is newer
/// than whatever an earlier incarnation of ours did.
fn is_alone(map: &OsdMap, these: &BTreeSet<OsdId>) -> bool {
    map.osds().all(|o| these.contains(&o))
}

/// Between two requests for a whole map after one that did not fit, at first and at last.
const MAP_RETRY_MIN: Duration = Duration::from_secs(1);
const MAP_RETRY_MAX: Duration = Duration::from_secs(30);

/// When a map may be asked for again after one that did not fit, or did not come: at most once per
/// [`MAP_RETRY_MIN`], and ever more seldom while that does not help either.
#[derive(Debug, Default)]
pub(crate) struct MapRetry {
    next: Duration,
    /// The wait that leads there; zero without trouble.
    wait: Duration,
}

impl MapRetry {
    /// May one be asked for now? Then it is.
    fn may_ask(&mut self, now: Duration) -> bool {
        if now < self.next {
            return false;
        }
        self.wait = (self.wait * 2).clamp(MAP_RETRY_MIN, MAP_RETRY_MAX);
        self.next = now + self.wait;
        true
    }

    /// Maps come as they should.
    fn is_well(&mut self) {
        self.wait = Duration::ZERO;
    }

    /// One is missing; true if it has been for a while. At first it may be on its way.
    fn expects(&mut self, now: Duration) -> bool {
        let known = !self.wait.is_zero();
        if !known {
            (self.next, self.wait) = (now + MAP_RETRY_MIN, MAP_RETRY_MIN / 2);
        }
        known
    }
}

impl OsdCore {
    pub(crate) fn osd_map(&mut self, m: MOsdMap) {
        let (before, whole) = (self.maps.epoch(), self.maps.wants_whole());
        self.hurry(true);
        let mut result = self.maps.accept(self.cfg.fsid, m).map(|()| true);
        while let Ok(true) = result {
            result = self.maps.advance();
            if let Ok(true) = result {
                self.map_advanced();
                if self.life.is_over() {
                    // It was marked down too often. Further maps would have it open links again.
                    return;
                }
            }
        }
        if let Err(e) = result {
            tracing::error!("osd.{}: {e}", self.cfg.id);
            self.map_trouble(self.now.mono);
        }
        if whole && !self.maps.wants_whole() {
            // From here on each is wanted again.
            self.ask_for_maps();
        }
        if self.maps.epoch() > before {
            self.store_map();
            if before == 0 {
                self.send_boot();
            }
            self.ping(self.now.mono);
            self.early_go_on();
            self.reporter.changed();
        }
        self.hurry(false);
    }

    /// A map that does not fit: asks for a whole one, if it is time ([`MapRetry`]).
    fn map_trouble(&mut self, now: Duration) {
        if self.map_retry.may_ask(now) {
            self.ask_for_maps();
        }
    }

    /// Asks again for a map that fits, if it is time; forgets old trouble when one has come.
    pub(crate) fn keep_maps(&mut self, now: Duration) {
        if self.maps.wants_whole() {
            self.map_trouble(now);
        } else if !self.maps.has_gap() {
            self.map_retry.is_well();
        } else if self.map_retry.expects(now) {
            self.map_trouble(now);
        }
    }

    /// Writes down the newest map. Whatever the PGs stored because of it and older ones was
    /// submitted before, so a restart may go on from here.
    fn store_map(&mut self) {
        if self.waits.any() {
            // What a PG that waits wants stored because of it was not: a start is to show it this
            // map again.
            return;
        }
        let Some(store) = &mut self.store else { return };
        let value = self.maps.full().clone();
        let set = MetaOp::Set { key: Bytes::from_static(MAP_KEY), value };
        let stored = store.submit(Transaction { objects: Vec::new(), meta: vec![set] });
        if let Err(e @ StoreError::NoSpace { .. }) = stored {
            // A start from the map before shows the PGs what they have seen already.
            tracing::warn!("osd.{}: write OSD map: {e}", self.cfg.id);
        } else if let Err(e) = stored {
            self.fail(&format!("write OSD map: {e}"));
        }
    }

    /// One epoch: ourselves, our peers, splits, then every PG.
    pub(crate) fn map_advanced(&mut self) {
        self.perf.maps += 1;
        let epoch = self.maps.epoch();
        let Some(map) = self.maps.map().cloned() else { return };
        self.follow_pool_options(&map);
        let id = self.cfg.id;
        let own = map.is_up(id) && map.addrs(id).is_some_and(|a| a.client == self.me.addrs);
        let turn = self.life.shown(own);
        match turn {
            Turn::Up => tracing::debug!("osd.{id}: up in epoch {epoch}"),
            Turn::Lost => {
                self.wrongly_down();
                if self.life.is_over() {
                    return;
                }
            }
            Turn::None => {}
        }
        if self.life.is_now(own, epoch) && is_alone(&map, &self.cfg.started_together) {
            self.leases.nobody_holds_older();
        }
        // One that is not up asks who hears it, too: its boots say so.
        let others = map.osds().filter(|o| *o != id && map.is_up(*o));
        let wanted = others.filter_map(|o| Some((o, map.addrs(o)?.clone()))).collect();
        let open = self.opener();
        self.peers.follow(&wanted, self.now.mono, open);
        self.keep_sessions(&map);
        self.fold_pgs();
        self.split_pgs();
        if own {
            let new: Vec<SpgId> =
                self.maps.ours(id).filter(|pg| !self.pgs.contains_key(pg)).collect();
            for pg in new {
                self.pgs.insert(pg, Pg::new(pg, id, self.pg_cfg.clone()));
            }
        }
        self.show_map();
        // Not before: PGs that have not seen the map are given work while others are shown it, and
        // one that it replaces must not read by a lease that counts only with it.
        self.leases.map_advanced(epoch);
        if !own {
            self.life.all_quiet(epoch);
        }
        if turn == Turn::Lost {
            self.send_boot();
        }
    }

    /// Gives the newest map to all PGs.
    pub(crate) fn show_map(&mut self) {
        let all: Vec<SpgId> = self.pgs.keys().copied().collect();
        for pg in all {
            let view = self.view(pg.pg);
            self.feed_pg(pg, PgEvent::Map(Arc::new(view)));
        }
    }

    /// Folds the PGs that the newest map merges, before any sees it.
    fn fold_pgs(&mut self) {
        let epoch = self.maps.epoch();
        let pg_num = |pool| self.maps.pool(pool).map(|p| p.pg_num);
        let folds = spirula_pg::folds(&self.pgs, epoch, pg_num);
        let targets: Vec<SpgId> = folds.keys().copied().collect();
        if !folds
            .iter()
            .flat_map(|(id, sources)| sources.iter().chain([id]))
            .all(|pg| self.end_wait(*pg))
        {
            return;
        }
        for (id, sources) in folds {
            let (Some(store), Some(pool)) = (self.store.as_ref(), self.maps.pool(id.pg.pool))
            else {
                return;
            };
            let reader = StoreReader {
                store,
                fetched: &[],
                bad: &self.bad,
                waits: self.waits.any_for_room(),
            };
            let now = self.now.of_pg();
            let mut taken = Vec::new();
            for s in sources {
                let Some(mut pg) = self.pgs.remove(&s) else { continue };
                pg.retire(epoch, now, &reader, &self.leases, self.agenda.fresh());
                self.agenda.note(s);
                // A PG of that name that a later split makes counts its transactions anew.
                self.committing.forget(s);
                self.passed.forget(s);
                self.words.forget(s);
                taken.push(pg);
            }
            let mut pg = self
                .pgs
                .remove(&id)
                .unwrap_or_else(|| Pg::new(id, self.cfg.id, self.pg_cfg.clone()));
            let step = (epoch, pool.pg_num);
            pg.fold(
                taken,
                pool.merged.as_ref(),
                step,
                now,
                &reader,
                &self.leases,
                self.agenda.fresh(),
            );
            self.agenda.note(id);
            self.pgs.insert(id, pg);
        }
        self.perform();
        self.was_taken(&targets);
    }

    /// Splits the PGs of pools that have grown, before they see the map that says so.
    pub(crate) fn split_pgs(&mut self) {
        let epoch = self.maps.epoch();
        let grown: Vec<(SpgId, u32)> = self
            .pgs
            .iter()
            .filter_map(|(id, pg)| {
                let to = self.maps.pool(id.pg.pool)?.pg_num;
                (pg.exists() && pg.shaped() < epoch && pg.pg_num() < to).then_some((*id, to))
            })
            .collect();
        let parents: Vec<SpgId> = grown.iter().map(|(id, _)| *id).collect();
        if !parents.iter().all(|id| self.end_wait(*id)) {
            return;
        }
        for (id, to) in grown {
            let Some(pg) = self.pgs.get_mut(&id) else { continue };
            let store = self.store.as_ref();
            let Some(store) = store else { return };
            let reader = StoreReader {
                store,
                fetched: &[],
                bad: &self.bad,
                waits: self.waits.any_for_room(),
            };
            let now = self.now.of_pg();
            let children = pg.split(now, (epoch, to), &reader, &self.leases, self.agenda.fresh());
            self.agenda.note(id);
            for mut child in children {
                // The child counts its transactions anew, whatever was here of its name.
                self.committing.forget(child.id());
                // Peers that split before us may have written to the child already.
                if let Some(early) = self.pgs.remove(&child.id()).filter(|p| !p.exists()) {
                    child.inherit(early);
                }
                self.pgs.insert(child.id(), child);
            }
        }
        self.perform();
        self.was_taken(&parents);
    }

    pub(crate) fn mgr_map(&mut self, m: &MMgrMap) {
        let map: spirula_maps::MgrMap = match spirula_encoding::from_slice(&m.mgrmap) {
            Ok(map) => map,
            Err(e) => {
                tracing::error!("osd.{}: manager map: {e}", self.cfg.id);
                return;
            }
        };
        if self.mgr.follow(map.active_addrs) {
            self.keep_links(self.now.mono);
        }
    }

    /// What a PG is told of the newest map.
    pub(crate) fn view(&self, pg: PgId) -> MapView {
        MapView { live: self.life.is_live(), ..self.maps.view(pg) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_encoding::UTime;
    use spirula_types::Uuid;

    #[test]
    fn an_osd_elsewhere_may_hold_leases_be_it_up_or_down() {
        let mut map =
            OsdMap::fresh(Uuid([1; 16]), 5, UTime::default(), spirula_maps::Crush::default());
        map.set_max_osd(3);
        // Exists and is up; exists.
        (map.osd_state[0], map.osd_state[2]) = (3, 1);
        assert!(is_alone(&map, &[0, 1, 2].into()));
        assert!(!is_alone(&map, &[0, 1].into()));
        assert!(!is_alone(&map, &BTreeSet::new()));
    }
}
