//! Hearing everybody who may know of acknowledged writes, and deciding on what they say.

use super::choose::{choose, choose_erasure, find_auth, find_auth_erasure, is_bound};
use super::{Peering, Phase};
use crate::api::{MapView, PgEffect};
use crate::commits::After;
use crate::core::Cx;
use crate::intervals::{Prior, has_hole};
use crate::pg::Pg;
use spirula_messages::cluster::pg::{CtlBody, PastInterval, PgInfo};
use spirula_types::{Epoch, OsdId, Peer};
use std::collections::BTreeMap;

/// How many members of an interval know its history together.
fn pool_least(view: &MapView, one: bool) -> usize {
    let shape = view.pool.as_ref().and_then(|p| p.shape);
    if one { 1 } else { shape.map_or(1, |s| s.k) }
}

/// Of what is known of an old primary the later holds.
fn note_reader(
    readers: &mut BTreeMap<OsdId, (Epoch, u64)>,
    osd: OsdId,
    (last, until): (Epoch, u64),
) {
    let known = readers.entry(osd).or_insert((last, until));
    *known = (known.0.max(last), known.1.max(until));
}

impl Pg {
    /// Whom peering found to be waited for.
    pub(super) fn found_readers(
        &self,
        p: &Peering,
        view: &MapView,
        cx: &Cx<'_>,
    ) -> Vec<(OsdId, Epoch, u64)> {
        let mut all = BTreeMap::new();
        if !planted!(self.core.cfg, LeaseForgotten) {
            all.clone_from(&p.readers);
            for (osd, last, until) in self.core.readers() {
                note_reader(&mut all, *osd, (*last, *until));
            }
        }
        for osd in &p.prior.holders {
            note_reader(
                &mut all,
                *osd,
                (self.core.interval().since.saturating_sub(1), p.lease_until),
            );
        }
        self.core.old_readers(all, view, cx)
    }

    /// Asks whom it must, and goes on when all have answered.
    pub(super) fn hear(&mut self, p: &mut Peering, cx: &mut Cx<'_>) {
        let Some(view) = self.core.view.clone() else { return };
        p.phase = Phase::Info;
        for info in p.infos.values().flatten() {
            p.history_les = p.history_les.max(info.history_les);
            p.lec = p.lec.max(info.lec);
        }
        let since = p.history_les.max(p.lec);
        let least = pool_least(&view, planted!(self.core.cfg, OneHeard));
        p.prior = Prior::new(&p.past, &view, since, self.core.me, least);
        if planted!(self.core.cfg, PastIgnored) {
            p.prior.probe.retain(|o| view.acting.contains(o));
            p.prior.blocked_by = None;
        }
        let holders = p.prior.holders.clone();
        for holder in &holders {
            let left = cx.leases.granted_left(*holder, cx.now.mono_ms);
            p.lease_until = p.lease_until.max(cx.now.mono_ms + left);
        }
        for osd in p.prior.probe.clone() {
            if osd != self.core.me && p.asked.insert(osd) {
                self.core.send(osd, CtlBody::Query { holders: holders.clone() }, cx);
            }
        }
        if let Some(by) = p.prior.blocked_by.clone() {
            p.phase = Phase::Down(by);
        } else if p.silent().is_empty() {
            self.decide(p, cx);
        }
    }

    pub(super) fn on_info(
        &mut self,
        from: Peer,
        info: Option<PgInfo>,
        past: Vec<PastInterval>,
        lease_left_ms: u32,
        cx: &mut Cx<'_>,
    ) {
        self.peering(cx, |pg, p, cx| {
            if !matches!(p.phase, Phase::Info | Phase::Down(_)) || !p.asked.contains(&from) {
                return;
            }
            p.lease_until = p.lease_until.max(cx.now.mono_ms + u64::from(lease_left_ms));
            p.answered.insert(from);
            pg.learn(p, from, info, past, cx);
            pg.hear(p, cx);
        });
    }

    pub(super) fn learn(
        &self,
        p: &mut Peering,
        from: Peer,
        info: Option<PgInfo>,
        past: Vec<PastInterval>,
        cx: &Cx<'_>,
    ) {
        for r in info.iter().flat_map(|i| &i.readers) {
            note_reader(&mut p.readers, r.osd, (r.last, cx.now.mono_ms + u64::from(r.left_ms)));
        }
        // Who has nothing knows nothing of older intervals; any holder knows them all, unless it
        // skipped maps.
        let knows_none =
            !self.core.has_copy() && p.past.is_empty() || has_hole(&p.past) && !has_hole(&past);
        if knows_none && info.is_some() {
            p.past = past;
        }
        p.infos.insert(from, info);
    }

    pub(crate) fn on_notify(
        &mut self,
        from: Peer,
        info: PgInfo,
        past: Vec<PastInterval>,
        cx: &mut Cx<'_>,
    ) {
        let Some(view) = self.core.view.clone() else { return };
        if view.primary != self.core.me || info.pg != self.core.id {
            return;
        }
        if !view.acting.contains(&from) && !view.up.contains(&from) {
            self.strays.insert(from, (info.clone(), past.clone()));
        }
        if let Some(mut lead) = self.lead() {
            let a = &*lead.primary;
            if a.peers.contains_key(&from) && !a.activating.contains(&from) {
                // It had the activation, and has no part in the interval now: it could not follow.
                tracing::warn!(pg = %self.core.id, %from, "a member has left its role: peer anew");
                self.restart_peering(cx);
                cx.out.push(PgEffect::StateChanged);
            } else {
                lead.notified(from, cx);
            }
            return;
        }
        self.peering(cx, |pg, p, cx| {
            let flushed = p.infos.contains_key(&pg.core.me);
            match p.phase {
                Phase::Create if flushed => {
                    pg.learn(p, from, Some(info), past, cx);
                    if p.exists.is_some() || p.infos.values().flatten().any(|i| i.confirmed) {
                        pg.hear(p, cx);
                    }
                }
                Phase::Info | Phase::Down(_) | Phase::Incomplete { .. } if flushed => {
                    let news = p.infos.get(&from).is_none_or(Option::is_none);
                    if news && !p.asked.contains(&from) {
                        pg.learn(p, from, Some(info), past, cx);
                        pg.hear(p, cx);
                    }
                }
                _ if !flushed && !pg.core.has_copy() => pg.learn(p, from, Some(info), past, cx),
                _ => {}
            }
        });
    }

    /// Everybody has answered: which history is it, and who shall serve it?
    fn decide(&mut self, p: &mut Peering, cx: &mut Cx<'_>) {
        let Some(view) = self.core.view.clone() else { return };
        let Some(pool) = view.pool.clone() else { return };
        let known = || p.infos.values().flatten();
        // Copies without any history (being deleted, or never activated) count for nothing.
        let confirmed = known().find(|i| i.confirmed).map(|i| i.creation);
        let winner: Option<Epoch> = match (confirmed, p.exists) {
            (Some(creation), _) => Some(creation),
            (None, Some(winner)) => winner,
            (None, None) => {
                p.phase = Phase::Create;
                self.ask_create(p, cx);
                return;
            }
        };
        for info in p.infos.values_mut() {
            if info.as_ref().is_some_and(|i| i.les == 0 || winner.is_some_and(|w| i.creation != w))
            {
                *info = None;
            }
            if let Some(i) = info {
                i.confirmed = true;
            }
        }
        let own = p.infos.get(&self.core.me).cloned().flatten();
        match (self.core.info(), own) {
            (Some(_), Some(_)) => self.core.copy.confirm().saved_whole(),
            (Some(info), None) if info.confirmed || info.les > 0 => {
                // A void creation of ours: it never served. Nor is its record to be found after a
                // restart.
                tracing::info!(pg = %self.core.id, "drop a copy that was never the PG's");
                let change = self.core.copy.drop_creation();
                self.core.submit(change, After::Nothing, cx);
            }
            _ => {}
        }
        if planted!(self.core.cfg, HollowHistory) {
            p.infos.values_mut().flatten().for_each(|i| i.hollow = false);
        }
        let infos: BTreeMap<Peer, &PgInfo> = p
            .infos
            .iter()
            .filter(|(o, _)| view.is_up(o.osd))
            .filter_map(|(o, i)| Some((*o, i.as_ref()?)))
            .collect();
        if infos.is_empty() {
            // It exists, but nobody who is up has called.
            p.phase = Phase::Create;
            return;
        }
        let auth = match pool.shape {
            Some(_) if !planted!(self.core.cfg, LongestLog) => {
                find_auth_erasure(&infos, self.core.me)
            }
            _ => find_auth(&infos, self.core.me),
        };
        // Nobody but copies without the newest data: whoever else was there then is waited for,
        // while there is hope.
        if pool.shape.is_none() && auth.and_then(|a| infos.get(&a)).is_some_and(|i| i.hollow) {
            let hope = p.prior.down.iter().filter(|(_, lost)| **lost == Some(0));
            let hope: Vec<Peer> = hope.map(|(o, _)| *o).collect();
            if !hope.is_empty() && !planted!(self.core.cfg, HollowNotAwaited) {
                p.phase = Phase::Down(hope);
                return;
            }
        }
        let choice = auth.and_then(|auth| match pool.shape {
            Some(shape) => {
                let least = if planted!(self.core.cfg, BlankCounts) { 1 } else { shape.k };
                choose_erasure(&infos, auth, &view.up, &view.acting, pool.size, least)
            }
            None => {
                let lag = self.core.cfg.primary_lag;
                Some(choose(&infos, auth, &view.up, &view.acting, view.up_primary, pool.size, lag))
            }
        });
        let Some(choice) = choice else {
            p.phase = Phase::Incomplete { bound: is_bound(&infos) };
            return;
        };
        p.choice = choice;
        tracing::debug!(pg = %self.core.id, epoch = view.epoch, choice = ?p.choice, "peering \
            decided");
        if p.choice.want == view.acting {
            self.get_log(p, cx);
        } else {
            let want =
                if p.choice.want == view.up { Vec::new() } else { view.places(&p.choice.want) };
            p.asked_ms = cx.now.mono_ms;
            cx.out.push(PgEffect::WantActing(want.clone()));
            p.phase = Phase::Temp(want);
        }
    }
}
