//! What must hold: some of it at every step, some once faults have stopped, and some of everything
//! that clients saw.
//!
//! * A term has one leader; an applied index has one state everywhere; an epoch has one content.
//! * No daemon stops by itself, and none is refused at its start, without a reason.
//! * Once faults have stopped, within bounded time: all monitors vote and agree, all OSDs are up,
//!   all PGs are active and clean, every request is answered.
//! * The logs of members agree with each other and with what was acknowledged ([`crate::logs`]).
//! * Registers of the monitors and objects of the OSDs are linearizable; what clients read last is
//!   what the changes say.
//! * Every copy of an object is the same, and every store is sound.

use crate::client::{Client, History};
use crate::commander::Commander;
use crate::content::{self, CLONED, Cell, Change};
use crate::extras::Extra;
use crate::monitor::MonActor;
use crate::osd::{OsdActor, TOLD};
use crate::past::{Look, Past};
use crate::scenario::Scene;
use crate::world::ActorId;
use crate::wrong::{Sign, Wrong};
use bytes::Bytes;
use spirula_history::registers;
use spirula_history::versions::{self, Order};
use spirula_maps::{OsdMap, PgState};
use spirula_types::{EVersion, OsdId, PgId, SNAP_HEAD};
use std::collections::BTreeMap;

/// Microseconds of peace in which everything must have come right again.
const PEACE_US: u64 = 120_000_000;
/// What a PG may be besides, while all is well.
const BUSY: PgState = PgState(PgState::SCRUBBING.0 | PgState::DEEP_SCRUB.0 | PgState::REPAIR.0);
/// States remembered for comparison; who is further behind is compared when it catches up.
const STATES_KEPT: usize = 200;

/// The keys in which two states differ.
fn difference(a: &Bytes, b: &Bytes) -> String {
    let keys = |s: &Bytes| -> BTreeMap<String, Bytes> {
        spirula_encoding::from_slice(s).unwrap_or_default()
    };
    let (a, b) = (keys(a), keys(b));
    let differs = |k: &&String| a.get(*k) != b.get(*k);
    let names: Vec<String> = a.keys().chain(b.keys()).filter(differs).cloned().collect();
    let shown: Vec<String> =
        names.iter().take(6).map(|k| format!("{k}: {:?} and {:?}", a.get(k), b.get(k))).collect();
    format!("{} keys, {}", names.len(), shown.join(", "))
}

type Operation = versions::Op<Change, Look, EVersion>;
type Objects<'a> = Order<'a, Change, Look, Past, EVersion>;
/// The data of every object that is followed, as it was read in the end, by pool and object;
/// `None`: it is not there.
pub type Finals = BTreeMap<(i64, u32), Option<Vec<Cell>>>;

impl Scene {
    /// Takes what the actors noted, and checks it.
    pub fn look(&mut self) -> Result<(), Wrong> {
        if let Some((id, why)) = self.world.exits.pop() {
            return Err(Sign::Exit.of(format!("actor {id} ended: {why}")));
        }
        while let Some(id) = self.world.acted.pop_first() {
            if self.mons.contains(&id) {
                self.look_at_monitor(id)?;
            } else if self.osds.contains(&id) {
                self.look_at_osd(id)?;
            } else if self.clients.contains(&id) {
                self.look_at_client(id)?;
            }
        }
        Ok(())
    }

    fn look_at_monitor(&mut self, m: ActorId) -> Result<(), Wrong> {
        let noted = self.world.with(m, |a: &mut MonActor| {
            (std::mem::take(&mut a.led), std::mem::take(&mut a.states), a.refused.take())
        });
        let Some((led, states, refused)) = noted else { return Ok(()) };
        if let Some(why) = refused {
            return Err(
                Sign::Refused.of(format!("a monitor's store is refused after a crash: {why}"))
            );
        }
        for (term, member) in led {
            let before = *self.leaders.entry(term).or_insert(member);
            if before != member {
                return Err(Sign::Monitors
                    .of(format!("members {before} and {member} both led in term {term}")));
            }
        }
        for (index, state) in states {
            let before = self.states.entry(index).or_insert_with(|| state.clone());
            if *before != state {
                let differs = difference(before, &state);
                return Err(Sign::Monitors.of(format!("two states after entry {index}: {differs}")));
            }
            while self.states.len() > STATES_KEPT {
                self.states.pop_first();
            }
        }
        Ok(())
    }

    fn look_at_osd(&mut self, id: ActorId) -> Result<(), Wrong> {
        self.look_at_logs(id)?;
        if (self.extras.has(Extra::Full) || self.extras.has(Extra::Room))
            && self.world.with(id, |a: &mut OsdActor| a.osd().is_some_and(|o| o.waits_for_room()))
                == Some(true)
        {
            self.probe("PG waits for room");
        }
        let noted = self.world.with(id, |a: &mut OsdActor| Some((a.id, a.ended.take()?)));
        let Some((osd, (why, disk_died))) = noted.flatten() else { return Ok(()) };
        if !disk_died && self.lies(id) && why.contains("store") {
            // What was not there after all may be anything.
            self.replace_the_liar(id);
            return Ok(());
        }
        match disk_died {
            true => self.probe("OSD stopped by its disk"),
            _ if why == TOLD => self.probe("OSD stopped as told"),
            _ => return Err(Sign::Exit.of(format!("osd.{osd} ends by itself: {why}"))),
        }
        // As whoever looks after processes does.
        let at = self.world.now + 500_000;
        self.down.entry(id).or_insert(at);
        Ok(())
    }

    fn look_at_client(&mut self, id: ActorId) -> Result<(), Wrong> {
        let take = |a: &mut Client| {
            (std::mem::take(&mut a.epochs), std::mem::take(&mut a.acked), a.wrong.take())
        };
        let Some((epochs, acked, wrong)) = self.world.with(id, take) else { return Ok(()) };
        acked.iter().for_each(|(pg, pg_num, version)| self.acked.note(*pg, *pg_num, *version));
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        self.look_at_leaders(acked.into_iter().map(|(pg, ..)| pg))?;
        for (epoch, hash) in epochs {
            if *self.epochs.entry(epoch).or_insert(hash) != hash {
                return Err(Sign::Monitors.of(format!("OSD map epoch {epoch} has two contents")));
            }
        }
        Ok(())
    }

    /// What was asked of the monitors.
    pub fn commands(&mut self) -> Vec<registers::Op> {
        let mut all = Vec::new();
        for c in self.commanders.clone() {
            all.extend(
                self.world.with(c, |c: &mut Commander| c.history.clone()).unwrap_or_default(),
            );
        }
        all
    }

    /// Faults stop, everything must come right, and have been right.
    pub fn peace(&mut self) -> Result<(), Wrong> {
        self.world.heal(true);
        for id in self.osds.clone() {
            // Disks that were about to die have been replaced in time. Whose disk has died ends
            // now: it may not have heard of it yet.
            let died = self.world.with(id, |o: &mut OsdActor| {
                o.disk.devices.iter().for_each(|d| d.live());
                o.disk.has_died()
            });
            if died.unwrap_or(false) {
                self.world.crash(id);
            }
        }
        (self.down, self.paused) = (BTreeMap::new(), BTreeMap::new());
        for id in self.mons.iter().chain(&self.osds).copied().collect::<Vec<_>>() {
            self.world.resume(id);
            self.world.start(id);
        }
        self.end_extras()?;
        for id in self.osds.clone() {
            // Everything is in, with its whole weight.
            let osd = self.world.with(id, |o: &mut OsdActor| o.id).unwrap_or(0);
            self.order_of_all(&format!(r#"{{"prefix": "osd in", "ids": ["{osd}"]}}"#));
            self.order_of_all(&format!(
                r#"{{"prefix": "osd reweight", "id": {osd}, "weight": 1.0}}"#
            ));
        }
        for c in self.commanders.clone() {
            self.world.with(c, |c: &mut Commander| c.quiet = true);
        }
        for c in self.clients.clone() {
            self.world.with(c, |c: &mut Client| c.quiet = true);
        }
        // What is damaged may have been found already.
        self.until_well_but(if self.rotten.is_some() {
            PgState::INCONSISTENT
        } else {
            PgState(0)
        })?;
        self.scrub_all()?;
        let calm = self.world.now;
        self.audit();
        self.until_well()?;
        if self.extras.has(Extra::Watches) {
            // Longer than between two pings, by which whoever has lost a watch learns it.
            self.run_for(3 * spirula_client::WATCH_PING.as_micros() as u64)?;
            self.until_well()?;
            self.book.verdict()?;
        }
        registers::linearizable(&self.commands()).map_err(|why| Sign::Registers.of(why))?;
        self.books_agree()?;
        let finals = self.check_objects(calm)?;
        if self.extras.has(Extra::Snaps) {
            self.forget_snapshots()?;
        }
        if self.extras.has(Extra::Pools) {
            self.deleted_is_gone()?;
        }
        // What coded objects were before goes once nobody can want it back; that is said to idle
        // members, too.
        if self.extras.has(Extra::Erasure) {
            self.run_for(10_000_000)?;
        }
        self.compare_copies(&finals)
    }

    fn until_well(&mut self) -> Result<(), Wrong> {
        self.until_well_but(PgState(0))
    }

    /// Until all is well, but for what PGs may be `besides`.
    pub fn until_well_but(&mut self, besides: PgState) -> Result<(), Wrong> {
        let until = self.world.now + PEACE_US;
        let mut next = 0;
        loop {
            let more = self.world.step(until);
            self.look()?;
            self.start_due();
            if self.world.now >= next {
                if self.complaint(besides).is_empty() {
                    return Ok(());
                }
                next = self.world.now + 200_000;
            }
            if !more {
                let still = self.complaint(besides);
                let sign =
                    if still.contains("recovery_unfound") { Sign::Unfound } else { Sign::Stuck };
                return Err(
                    sign.of(format!("{} s of peace and still: {still}", PEACE_US / 1_000_000))
                );
            }
        }
    }

    /// Removes all snapshots that are left, so that nothing of any is in the stores in the end.
    fn forget_snapshots(&mut self) -> Result<(), Wrong> {
        let first = self.clients.first().copied();
        first.and_then(|c| self.world.with(c, |c: &mut Client| c.forget = c.snaps.forget()));
        self.until_well()
    }

    /// Lets a client read every object.
    fn audit(&mut self) {
        let all = self.all_objects();
        let first = self.clients.first().copied();
        let audit = |c: &mut Client| {
            let heads = all.iter().map(|(pool, object)| (*pool, *object, SNAP_HEAD));
            let of = |(pool, snap): (i64, u64)| {
                all.iter().filter(move |o| o.0 == pool).map(move |o| (o.0, o.1, snap))
            };
            c.audit = heads.chain(c.snaps.live().into_iter().flat_map(of)).collect();
        };
        first.and_then(|c| self.world.with(c, audit));
    }

    /// Every object that there may be, by its pool.
    pub fn all_objects(&mut self) -> Vec<(i64, u32)> {
        let pools: Vec<i64> =
            self.map().map(|m| m.pools.keys().copied().collect()).unwrap_or_default();
        let objects = (0..self.objects).chain(CLONED..CLONED + self.objects);
        pools.iter().flat_map(|p| objects.clone().map(|o| (*p, o))).collect()
    }

    /// Why not all is well; empty if it is.
    fn complaint(&mut self, besides: PgState) -> String {
        let mut applied = Vec::new();
        let mut newest = None;
        for m in self.mons.clone() {
            let here = self.world.with(m, |a: &mut MonActor| {
                let mon = a.mon.as_ref()?;
                let node = mon.node()?;
                newest = Some(mon.state().osdmap.epoch);
                Some((
                    node.members().voters.contains(&node.id()),
                    mon.state().members.len(),
                    node.applied(),
                ))
            });
            match here.flatten() {
                Some((true, members, index)) if members == self.mons.len() => applied.push(index),
                other => return format!("monitor {m} does not vote: {other:?}"),
            }
        }
        if applied.iter().any(|a| Some(a) != applied.first()) {
            let mut seen = Vec::new();
            for m in self.mons.clone() {
                seen.push(self.world.with(m, |a: &mut MonActor| a.describe()).unwrap_or_default());
            }
            return format!("monitors are not at the same entry: {}", seen.join("; "));
        }
        for c in self.commanders.clone() {
            if !self.world.with(c, |c: &mut Commander| c.done()).unwrap_or(false) {
                return format!("commander {c} waits for an answer");
            }
        }
        if let Some(why) = self.unclean(newest.unwrap_or_default(), besides) {
            return why;
        }
        for c in self.clients.clone() {
            let waits =
                self.world.with(c, |c: &mut Client| (!c.done()).then(|| c.waits())).flatten();
            if let Some(waits) = waits {
                return format!("client {c} waits for answers: {waits}");
            }
        }
        String::new()
    }

    /// Which OSD or PG is not as it should be.
    pub fn unclean(&mut self, epoch: u32, besides: PgState) -> Option<String> {
        let map = self.map()?;
        if map.epoch != epoch {
            return Some(format!("clients have epoch {}, monitors {epoch}", map.epoch));
        }
        for o in self.osds.clone() {
            let at = self
                .world
                .with(o, |o: &mut OsdActor| (o.id, o.osd().map(spirula_osd::OsdCore::epoch)))?;
            if at.1 != Some(epoch) {
                return Some(format!("osd.{} has epoch {:?}, monitors {epoch}", at.0, at.1));
            }
            if !map.is_up(at.0) {
                return Some(format!("osd.{} is not up in epoch {epoch}", at.0));
            }
        }
        for pg in map.pgs() {
            let primary = map.pg_to_up_acting(pg);
            let state = self.pg_state(primary.acting_primary, pg);
            let well =
                state.is_some_and(|s| s & !(BUSY | besides) == PgState::ACTIVE | PgState::CLEAN);
            if !well || primary.up != primary.acting {
                let members = self.members_of(pg);
                return Some(format!(
                    "pg {pg} is {state:?} on {primary:?} in epoch {epoch}: {members}"
                ));
            }
        }
        None
    }

    /// What the OSDs say of a PG.
    fn members_of(&mut self, pg: PgId) -> String {
        let mut all = String::new();
        for o in self.osds.clone() {
            let says = |o: &mut OsdActor| {
                Some((o.id, o.osd()?.pgs().find(|p| p.id().pg == pg)?.query(), o.osd()?.space()?))
            };
            if let Some((id, text, space)) = self.world.with(o, says).flatten() {
                let said: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
                let (info, step) = (&said["info"], &said["recovery_state"]);
                let (update, les) = (&info["last_update"], &info["history"]["last_epoch_started"]);
                let state = &said["state"];
                all.push_str(&format!(
                    "\nosd.{id}: {state} last update {update}, started {les}, {step}, {space:?}"
                ));
            }
        }
        all
    }

    pub fn map(&mut self) -> Option<OsdMap> {
        let first = *self.clients.first()?;
        self.world.with(first, |c: &mut Client| c.map().cloned()).flatten()
    }

    pub fn actor_of(&mut self, osd: OsdId) -> Option<ActorId> {
        let all = self.osds.clone();
        all.into_iter().find(|a| self.world.with(*a, |o: &mut OsdActor| o.id) == Some(osd))
    }

    fn pg_state(&mut self, osd: OsdId, pg: PgId) -> Option<PgState> {
        let actor = self.actor_of(osd)?;
        let state = |o: &mut OsdActor| {
            o.osd()?.pgs().find(|p| p.id().pg == pg && p.is_primary()).map(|p| p.state().0)
        };
        self.world.with(actor, state).flatten()
    }

    /// Checks every object's history; returns the data that is there in the end.
    fn check_objects(&mut self, calm: u64) -> Result<Finals, Wrong> {
        let mut all: BTreeMap<(i64, u32), History> = BTreeMap::new();
        let pools: Vec<i64> =
            self.map().map(|m| m.pools.keys().copied().collect()).unwrap_or_default();
        for c in self.clients.clone() {
            let history = self
                .world
                .with(c, |c: &mut Client| std::mem::take(&mut c.history))
                .unwrap_or_default();
            self.operations += history.values().map(Vec::len).sum::<usize>();
            history.into_iter().for_each(|(o, h)| all.entry(o).or_default().extend(h));
            let without = self
                .world
                .with(c, |c: &mut Client| std::mem::take(&mut c.without))
                .unwrap_or_default();
            if let Some(pool) = without.iter().find(|p| pools.contains(p)) {
                return Err(Sign::Reply.of(format!(
                    "client {c} was told that there is no pool {pool}, and there is"
                )));
            }
        }
        let mut finals = Finals::new();
        let mut orders: BTreeMap<(i64, u32), Objects<'_>> = BTreeMap::new();
        // An object that is copied comes before its copies.
        // What was not answered when a pool was deleted may have happened.
        for (at @ (pool, object), history) in
            all.iter().filter(|((pool, _), _)| pools.contains(pool))
        {
            let named = |wrong: versions::Wrong| {
                let Wrong { sign, why } = wrong.into();
                sign.of(format!("object {object} of pool {pool}: {why}"))
            };
            let source = orders.get(&(*pool, content::origin(*object)));
            let apply = |s: &Past, c: &Change, op: &Operation| s.after(c, || copied(source, c, op));
            let order = Order::of(history, Past::default(), apply).map_err(named)?;
            let last = history.iter().filter_map(|op| match &op.what {
                versions::What::Read(look) if op.begun >= calm => Some(look),
                _ => None,
            });
            for look in last.clone() {
                order.ends_with(look, Past::fits).map_err(named)?;
            }
            order.reads(history, Past::fits).map_err(named)?;
            let head = last.clone().find(|look| look.snap == SNAP_HEAD);
            finals.insert(*at, head.and_then(|look| look.seen.as_ref()?.whole().cloned()));
            orders.insert(*at, order);
        }
        Ok(finals)
    }
}

/// What was copied by a change with this user version: what its source was at some time while it
/// ran.
fn copied(source: Option<&Objects<'_>>, c: &Change, op: &Operation) -> Result<Past, String> {
    let nothing = [Past::default()];
    let those = source.map_or(&nothing[..], |s| s.between(op.begun, op.ended));
    let is = |s: &&Past| {
        s.lost
            || match &s.head {
                Some(o) => c.result == 0 && o.version() == c.version,
                None => c.result != 0,
            }
    };
    let found = those.iter().find(is).cloned();
    found.ok_or_else(|| {
        format!(
            "a copy answered {} of user version {} is of none of {those:?}",
            c.result, c.version
        )
    })
}
