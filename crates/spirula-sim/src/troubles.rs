//! Trouble that asks for care: pairs of OSDs that do not hear each other, orders of an
//! administrator under load, disks that lie, machines that are suspended. What each of them leaves
//! behind ends with peace ([`Scene::end_troubles`]).

use crate::client::Client;
use crate::device::Lie;
use crate::extras::Extra;
use crate::hardware::Coming;
use crate::osd::OsdActor;
use crate::rng::Rng;
use crate::scenario::{Bug, Scene};
use crate::world::{ActorId, Clocks, Net};
use crate::wrong::{Sign, Wrong};
use spirula_pg::PAUSE_MS;
use spirula_runtime::limits;
use spirula_types::{OSD_NONE, PgId};
use std::collections::{BTreeMap, BTreeSet};

/// Microseconds of a second.
const SECOND: u64 = 1_000_000;
/// Flags of the OSD map that orders set and take back.
const FLAGS: [&str; 7] = ["nodown", "noup", "nodown", "noup", "noout", "norecover", "nobackfill"];
/// Pools made under load, at most at the same time.
const POOLS_MADE: usize = 2;
/// Time for all to be well before two OSDs do not hear each other, and how long a request may wait
/// then: several times as long as it takes to mark one of them down.
const WELL_US: u64 = 60 * SECOND;
const STALL_US: u64 = 30 * SECOND;
/// Time in which what is deleted must be gone in peace.
const DELETED_US: u64 = 60 * SECOND;

/// What these troubles have under way.
#[derive(Debug, Default)]
pub struct Troubles {
    /// Flags set, and until when.
    flags: BTreeMap<&'static str, u64>,
    /// Pools made, by name, and how many ever were.
    pools: BTreeSet<String>,
    pools_made: u64,
    /// PGs whose placement was ordered.
    upmaps: BTreeSet<PgId>,
    /// The OSD whose disk lies.
    liar: Option<ActorId>,
    /// It lost what it had not written: until it is whole again nobody else may be taken away.
    pub careful: bool,
}

impl Scene {
    /// Who lies lies from the first.
    pub fn prepare_troubles(&mut self) {
        if self.extras.has(Extra::Overtaken) {
            for o in self.osds.clone() {
                let late = self.extra_rng.between(20_000, 2 * SECOND);
                self.world.with(o, |o: &mut OsdActor| {
                    o.read_us = Some(late);
                    o.disk.devices.iter().for_each(|d| d.chill(1));
                });
            }
        }
        // Never a member of an erasure-coded pool. There a write counts when all members have it,
        // and it takes k of its shards to read it, so the log of the member that has least decides:
        // what one lacks was not acknowledged, and is taken back by all. A disk that said that it
        // had flushed makes that untrue, and nothing could tell such a write from one that was on
        // its way. In a replicated pool the longest log decides, and a liar only lacks what others
        // have. So beside an erasure-coded pool it is the OSD of another device class, see
        // `Scene::new`.
        if self.extras.has(Extra::Lies) {
            let coded = self.extras.has(Extra::Erasure);
            let liar = if coded {
                self.osds.last().copied()
            } else {
                self.extra_rng.pick(&self.osds).copied()
            };
            let Some(liar) = liar else { return };
            self.troubles.liar = Some(liar);
            self.rotten.get_or_insert(liar);
            let lie = if self.extra_rng.one_in(4) { Lie::Any } else { Lie::Ordered };
            self.world.with(liar, |o: &mut OsdActor| o.disk.lie(Some(lie)));
        }
    }

    /// Is it the OSD whose disk lies?
    pub fn lies(&self, actor: ActorId) -> bool {
        self.troubles.liar == Some(actor)
    }

    /// Ends what is over; true if everything else has to wait.
    pub fn troubles_go_on(&mut self) -> bool {
        let now = self.world.now;
        self.world.heal_due();
        for (flag, _) in self.troubles.flags.extract_if(.., |_, at| *at <= now).collect::<Vec<_>>()
        {
            self.order_of_all(&format!(r#"{{"prefix": "osd unset", "key": "{flag}"}}"#));
        }
        if self.troubles.careful && self.is_whole() {
            self.troubles.careful = false;
        }
        self.troubles.careful
    }

    /// Two OSDs do not hear each other, or one does not hear the other, in one network or both.
    pub fn cut_pair(&mut self) {
        let mut rng = self.extra_rng.fork();
        let (Some(a), Some(b)) = (rng.pick(&self.osds).copied(), rng.pick(&self.osds).copied())
        else {
            return;
        };
        if a == b {
            return;
        }
        let longest = *rng.pick(&[10, 10, 60, 600]).unwrap_or(&10);
        let until = self.world.now + rng.between(SECOND, longest * SECOND);
        self.cut_two(&mut rng, (a, b), until);
    }

    fn cut_two(&mut self, rng: &mut Rng, (a, b): (ActorId, ActorId), until: u64) {
        let both = [Net::Public, Net::Cluster];
        let nets = match rng.below(3) {
            _ if !self.apart => &both[..1],
            0 => &both[..],
            1 => {
                self.probe("pair cut in the public network");
                &both[..1]
            }
            _ => {
                self.probe("pair cut in the cluster network");
                &both[1..]
            }
        };
        let one_way = rng.one_in(3);
        self.probe(if one_way { "pair cut one way" } else { "pair cut" });
        for net in nets {
            self.world.cut_in(*net, a, b, until);
            if !one_way {
                self.world.cut_in(*net, b, a, until);
            }
        }
    }

    /// Cuts of pairs may last for longer than the storm. Some of them are waited for, with no new
    /// trouble beside them: for minutes clients go on, and two OSDs do not hear each other.
    pub fn outlast_cuts(&mut self) -> Result<(), Wrong> {
        let Some(until) = self.world.cut_until().filter(|until| *until > self.world.now) else {
            return Ok(());
        };
        if !self.extra_rng.one_in(4) {
            return Ok(());
        }
        self.probe("pair cut for long");
        while self.world.now < until {
            self.run_for(SECOND)?;
            self.end_due();
            self.end_due_extras();
        }
        Ok(())
    }

    /// Of a cluster in which all is well two OSDs do not hear each other, and nothing else happens:
    /// clients go on all the time, where the pool can do without one of the two.
    pub fn cut_alone(&mut self) -> Result<(), Wrong> {
        let others = [Extra::Full, Extra::Room, Extra::Rot, Extra::Lies, Extra::Fuzz]
            .into_iter()
            .any(|e| self.extras.has(e));
        if !self.extras.has(Extra::Pairs) || others || !self.extra_rng.one_in(2) {
            return Ok(());
        }
        self.world.heal(true);
        self.healed_at = 0;
        for actor in self.osds.iter().chain(&self.mons).copied().collect::<Vec<_>>() {
            self.world.load(actor, 0, 0);
        }
        let patience = self.world.now + WELL_US;
        while !self.is_whole() || !self.troubles.flags.is_empty() || !self.slowed.is_empty() {
            if self.world.now > patience {
                self.probe("no pair cut alone: not whole");
                return Ok(());
            }
            self.run_for(SECOND)?;
            self.end_due();
            self.end_due_extras();
        }
        if self.bug == Some(Bug::PairsLeft) {
            self.troubles.flags.insert("nodown", u64::MAX);
            self.order_of_all(r#"{"prefix": "osd set", "key": "nodown"}"#);
            self.run_for(2 * SECOND)?;
        }
        let mut rng = self.extra_rng.fork();
        let (Some(a), Some(b)) = (rng.pick(&self.osds).copied(), rng.pick(&self.osds).copied())
        else {
            return Ok(());
        };
        if a == b {
            return Ok(());
        }
        self.probe("pair cut alone");
        let began = self.world.now;
        let until = began + rng.between(40 * SECOND, 100 * SECOND);
        self.cut_two(&mut rng, (a, b), until);
        while self.world.now < until {
            self.run_for(SECOND)?;
            self.end_due();
            let Some(map) = self.map() else { return Ok(()) };
            let goes_on = |pool| map.pool(pool).is_some_and(|p| p.size > p.min_size);
            let now = self.world.now;
            for c in self.clients.clone() {
                let waits = self
                    .world
                    .with(c, |c: &mut Client| c.stands_still(now, began, STALL_US, goes_on))
                    .flatten();
                if let Some(waits) = waits {
                    let two = [a, b].map(|o| self.osd_id(o));
                    return Err(Sign::Stalled.of(format!(
                        "osd.{} and osd.{} have not heard each other for {} s, and client {c} \
                            stands still: {waits}",
                        two[0],
                        two[1],
                        (now - began) / SECOND
                    )));
                }
            }
        }
        Ok(())
    }

    /// Clients lose connections to OSDs, or have enough of an answer that does not come.
    pub fn break_clients(&mut self) {
        for c in self.clients.clone() {
            if self.extra_rng.one_in(2) {
                self.probe("client reconnects");
                self.world.with(c, |c: &mut Client| c.breaks += 1);
            }
        }
    }

    /// An OSD keeps no session whose connection ends, for a while, as one for which too many wait;
    /// and some end. On those made in that time no more may wait than a few messages, perhaps:
    /// sessions are lost by that, too.
    pub fn lose_sessions(&mut self) {
        let Some(target) = self.extra_rng.pick(&self.osds).copied() else { return };
        let until = self.world.now + self.extra_rng.between(500_000, 5 * SECOND);
        let bytes = *self
            .extra_rng
            .pick(&[limits::SESSION_BYTES, 8 << 10, 2 << 10])
            .unwrap_or(&limits::SESSION_BYTES);
        self.world
            .with(target, |o: &mut OsdActor| (o.forgets_until, o.session_bytes) = (until, bytes));
        let most = self.extra_rng.between(1, 6);
        self.world.reset_streams_of(target, most);
    }

    /// A flag of the OSD map is set for a while.
    pub fn set_flag(&mut self) {
        let Some(flag) = self.extra_rng.pick(&FLAGS).copied() else { return };
        if self.troubles.flags.contains_key(flag) {
            return;
        }
        self.probe(match flag {
            "nodown" => "nodown set",
            "noup" => "noup set",
            _ => "flag set",
        });
        let until = self.world.now + self.extra_rng.between(SECOND, 15 * SECOND);
        self.troubles.flags.insert(flag, until);
        self.order(format!(r#"{{"prefix": "osd set", "key": "{flag}"}}"#));
    }

    /// A pool is made, or one that was made is deleted.
    pub fn make_or_delete_pool(&mut self) {
        let full = self.troubles.pools.len() >= POOLS_MADE;
        if full || !self.troubles.pools.is_empty() && self.extra_rng.one_in(2) {
            let Some(name) = self.troubles.pools.pop_first() else { return };
            self.probe("pool deleted");
            self.orders_in_turn([format!(
                r#"{{"prefix": "osd pool delete", "pool": "{name}", "pool2": "{name}", "yes_i_really_really_mean_it": true}}"#
            )]);
            return;
        }
        self.probe("pool made");
        self.troubles.pools_made += 1;
        let (name, pg_num) =
            (format!("made{}", self.troubles.pools_made), self.extra_rng.between(1, 4));
        self.orders_in_turn([format!(
            r#"{{"prefix": "osd pool create", "pool": "{name}", "pg_num": {pg_num}}}"#
        )]);
        self.troubles.pools.insert(name);
    }

    /// The administrator changes where data are, and how many copies count.
    pub fn reshape(&mut self) {
        let mut rng = self.extra_rng.fork();
        let Some(map) = self.map() else { return };
        let osd = rng.pick(&self.osds).copied().map_or(0, |o| self.osd_id(o));
        match rng.below(5) {
            0 => {
                // A write that counts with one copy is lost with it.
                let alone = [Extra::Rot, Extra::Lies].into_iter().any(|e| self.extras.has(e));
                let val = rng.between(if alone { 2 } else { 1 }, 3);
                self.probe("min_size changed");
                self.order(format!(
                    r#"{{"prefix": "osd pool set", "pool": "pool0", "var": "min_size", "val": "{val}"}}"#
                ));
            }
            1 | 2 => {
                let pgs: Vec<PgId> = map.pgs().collect();
                let Some(pg) = rng.pick(&pgs).copied() else { return };
                let up = map.pg_to_up_acting(pg).up;
                let Some(from) = rng.pick(&up).copied().filter(|o| *o != OSD_NONE) else { return };
                let coded = map.pool(pg.pool).is_some_and(|p| p.is_erasure());
                let lies = self.troubles.liar.is_some_and(|l| self.osd_id(l) == osd);
                if up.contains(&osd) || coded && lies {
                    return;
                }
                self.probe("placement ordered");
                self.troubles.upmaps.insert(pg);
                self.orders_in_turn([
                    r#"{"prefix": "osd set-require-min-compat-client", "version": "luminous"}"#.to_owned(),
                    format!(r#"{{"prefix": "osd pg-upmap-items", "pgid": "{pg}", "id": [{from}, {osd}]}}"#),
                ]);
            }
            3 => {
                self.probe("CRUSH weight changed");
                let weight = rng.pick(&["0.0030", "0.0098", "0.0200"]).copied().unwrap_or("0.0098");
                self.order(format!(
                    r#"{{"prefix": "osd crush reweight", "name": "osd.{osd}", "weight": {weight}}}"#
                ));
            }
            _ => {
                self.probe("host moved");
                let rack = rng.between(0, 1);
                self.orders_in_turn([
                    format!(
                        r#"{{"prefix": "osd crush add-bucket", "name": "rack{rack}", "type": "rack", "args": ["root=default"]}}"#
                    ),
                    format!(r#"{{"prefix": "osd crush move", "name": "host{osd}", "args": ["rack=rack{rack}"]}}"#),
                ]);
            }
        }
    }

    /// A virtual machine is paused with its clocks, for no longer than is promised to do no harm:
    /// it does not notice. Nor may its clock run late besides, against that of anybody who gives it
    /// leases.
    fn pause_with_clocks(&mut self, target: ActorId) {
        let rate = self.world.local(target).drift;
        let late = self.osds.iter().any(|o| self.world.local(*o).drift > rate);
        if late
            || self.paused.contains_key(&target)
            || !self.world.is_up(target)
            || self.world.is_paused(target)
        {
            return;
        }
        self.probe("all clocks stood still");
        let ms = self.extra_rng.between(1, PAUSE_MS - 1);
        self.world.suspend(target, Clocks::Still);
        self.world.wakes(target, ms * 1000);
    }

    /// A machine is suspended, or a virtual one stopped, whose wall clock stands still, or all its
    /// clocks.
    pub fn suspend(&mut self) {
        if self.extra_rng.one_in(2)
            && let Some(target) = self.extra_rng.pick(&self.osds).copied()
        {
            self.pause_with_clocks(target);
        }
        let all: Vec<ActorId> = self.osds.iter().chain(&self.mons).copied().collect();
        let Some(target) = self.extra_rng.pick(&all).copied() else { return };
        if self.paused.contains_key(&target) || !self.world.is_up(target) {
            return;
        }
        self.probe("machine suspended");
        let wall_still = self.extra_rng.one_in(2);
        if wall_still {
            self.probe("wall clock stood still");
        }
        self.world.suspend(target, if wall_still { Clocks::WallStill } else { Clocks::Go });
        self.paused.insert(target, self.world.now + self.extra_rng.between(100_000, 20 * SECOND));
    }

    /// Some machines have so much to do that what runs on them is held up every now and then.
    pub fn load(&mut self) {
        let all: Vec<ActorId> = self.osds.iter().chain(&self.mons).copied().collect();
        let until = self.world.now + self.extra_rng.between(SECOND, 20 * SECOND);
        for _ in 0..self.extra_rng.between(1, 4) {
            let most = self
                .extra_rng
                .pick(&[200_000, 600_000, 1_500_000, 5 * SECOND])
                .copied()
                .unwrap_or(SECOND);
            if let Some(target) = self.extra_rng.pick(&all).copied() {
                self.probe("machine loaded");
                self.world.load(target, until, most);
            }
        }
    }

    /// An OSD is suspended, and when it wakes up it hears only those who only read.
    pub fn sleep(&mut self) {
        let Some(osd) = self.extra_rng.pick(&self.osds).copied() else { return };
        if self.world.now < self.healed_at
            || self.paused.contains_key(&osd)
            || !self.world.is_up(osd)
        {
            return;
        }
        self.probe("OSD asleep");
        let apart: Vec<ActorId> = self.clients.iter().skip(1).copied().chain([osd]).collect();
        self.part(&apart, None);
        if self.extra_rng.one_in(3) {
            // It sleeps little, and no clock of its own says so. Others take its place at once.
            self.pause_with_clocks(osd);
            let id = self.osd_id(osd);
            self.order(format!(r#"{{"prefix": "osd down", "ids": ["{id}"]}}"#));
            self.healed_at = self.world.now + 8 * SECOND;
            return;
        }
        let wakes = self.world.now + self.extra_rng.between(5 * SECOND, 12 * SECOND);
        let clocks = match self.extra_rng.one_in(2) {
            _ if self.bug == Some(Bug::LongPauses) => Clocks::Still,
            true => Clocks::WallStill,
            false => Clocks::Go,
        };
        self.world.suspend(osd, clocks);
        self.paused.insert(osd, wakes);
        self.healed_at = wakes + 4 * SECOND;
    }

    /// An OSD goes, while all is whole, and is declared lost before it comes back with what it had.
    pub fn declare_lost(&mut self) {
        if !self.is_whole() {
            return self.probe("no OSD lost: not whole");
        }
        let Some(target) = self.extra_rng.pick(&self.osds).copied().filter(|o| !self.lies(*o))
        else {
            return;
        };
        if self.rotten.is_some_and(|r| r != target) {
            // Beside damage on one disk no other may be lost.
            return self.probe("no OSD lost: another is damaged");
        }
        self.probe("OSD declared lost");
        let id = self.osd_id(target);
        self.world.crash(target);
        self.world.with(target, |o: &mut OsdActor| o.no_disk = true);
        self.orders_in_turn([
            format!(r#"{{"prefix": "osd down", "ids": ["{id}"]}}"#),
            format!(r#"{{"prefix": "osd lost", "id": {id}, "yes_i_really_mean_it": true}}"#),
        ]);
        let after = self.extra_rng.between(0, 8 * SECOND);
        self.coming = Some(Coming { actor: target, since: self.world.now + after });
    }

    /// The power of the OSD whose disk lies fails, while all is whole.
    pub fn catch_the_liar(&mut self) {
        let Some(liar) = self.troubles.liar else { return self.probe("no disk lies any more") };
        if !self.counts_by_two(false) || !self.is_whole() {
            return self.probe("no power failed at who lies: not whole");
        }
        self.probe("power failed at who lies");
        if self.extras.has(Extra::Erasure) {
            self.probe("power failed at who lies beside a coded pool");
        }
        self.troubles.careful = true;
        self.kill(liar, 3 * SECOND);
    }

    /// A disk that lied may be beyond use; then it gets another.
    pub fn replace_the_liar(&mut self, actor: ActorId) {
        self.probe("disk of who lies replaced");
        self.down.remove(&actor);
        self.troubles.liar = None;
        self.replace_disk(actor, false);
    }

    /// Everything is put back as it was.
    pub fn end_troubles(&mut self) {
        self.world.heal(true);
        for flag in std::mem::take(&mut self.troubles.flags).into_keys() {
            self.order_of_all(&format!(r#"{{"prefix": "osd unset", "key": "{flag}"}}"#));
        }
        if let Some(liar) = self.troubles.liar {
            self.world.with(liar, |o: &mut OsdActor| o.disk.lie(None));
        }
        for pg in std::mem::take(&mut self.troubles.upmaps) {
            self.order_of_all(&format!(r#"{{"prefix": "osd rm-pg-upmap-items", "pgid": "{pg}"}}"#));
        }
        if self.extras.has(Extra::Shape) {
            self.order_of_all(
                r#"{"prefix": "osd pool set", "pool": "pool0", "var": "min_size", "val": "2"}"#,
            );
            for o in self.osds.clone() {
                let id = self.osd_id(o);
                self.order_of_all(&format!(
                    r#"{{"prefix": "osd crush reweight", "name": "osd.{id}", "weight": 0.0098}}"#
                ));
            }
        }
        self.troubles.careful = false;
        for o in self.osds.clone() {
            self.world.with(o, |o: &mut OsdActor| (o.read_us, o.forgets_until) = (None, 0));
        }
        for actor in self.osds.iter().chain(&self.mons).copied().collect::<Vec<_>>() {
            self.world.load(actor, 0, 0);
        }
    }

    /// In peace nothing stays of pools that were deleted.
    pub fn deleted_is_gone(&mut self) -> Result<(), Wrong> {
        let until = self.world.now + DELETED_US;
        loop {
            let Some(map) = self.map() else { return Ok(()) };
            let stays = |o: &mut OsdActor| {
                let pg = o.osd()?.pgs().find(|p| !map.pools.contains_key(&p.id().pg.pool))?;
                Some(format!("osd.{} still has pg {} of a deleted pool", o.id, pg.id()))
            };
            let stays =
                self.osds.clone().into_iter().find_map(|o| self.world.with(o, stays).flatten());
            match stays {
                None => return Ok(()),
                Some(why) if self.world.now > until => return Err(Sign::Stuck.of(why)),
                Some(_) => self.run_for(200_000)?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extras::Extras;
    use crate::scenario::{Options, run};

    /// Cuts alone, in the first seeds that have one, and the same with nobody marked down.
    #[test]
    fn clients_go_on_while_a_pair_is_cut_and_would_not_by_themselves() {
        let of = |seed, bug| Options {
            extras: Some(Extras::these(&[Extra::Pairs])),
            bug,
            ..Options::new(seed)
        };
        let (mut cut, mut stood) = (0, 0);
        for seed in 0..40 {
            let report = run(&of(seed, None)).unwrap_or_else(|f| panic!("{f}"));
            if !report.probes.contains_key("pair cut alone") {
                continue;
            }
            cut += 1;
            stood += u64::from(
                run(&of(seed, Some(Bug::PairsLeft))).is_err_and(|f| f.sign == Sign::Stalled),
            );
            if cut >= 3 && stood >= 1 {
                return;
            }
        }
        panic!(
            "{cut} pairs cut alone, and clients stood still in {stood} of them where nobody may be \
                marked down"
        );
    }
}
