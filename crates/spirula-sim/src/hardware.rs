//! Disks that rot, disks that are lost, and new disks. What is lost for good is lost while
//! everything else is whole.

use crate::commander::Commander;
use crate::osd::{self, OsdActor};
use crate::scenario::{FSID, Scene, osd_bytes};
use crate::world::ActorId;
use spirula_maps::PgState;
use spirula_types::{OsdId, Uuid};
use std::sync::PoisonError;

/// What a store leaves to others of the file system that it lies on, bytes.
const HOST_MARGIN: u64 = 64 << 20;

/// An OSD that waits for the monitors to know its new disk.
#[derive(Clone, Copy, Debug)]
pub struct Coming {
    pub actor: ActorId,
    /// When its orders were given, or until when it stays away besides.
    pub since: u64,
}

impl Scene {
    /// Is everything up and every PG clean, with nothing lost since?
    pub fn is_whole(&mut self) -> bool {
        let up = self
            .mons
            .iter()
            .chain(&self.osds)
            .all(|a| self.world.is_up(*a) && !self.world.is_paused(*a));
        let calm = self.world.now >= self.healed_at && self.coming.is_none();
        let Some(epoch) = self.map().map(|m| m.epoch).filter(|_| up && calm) else { return false };
        self.unclean(epoch, PgState(0)).is_none()
    }

    /// Does every pool count a write only when one copy more has it than it takes to read it?
    /// `coded`: those that are erasure-coded, too.
    pub fn counts_by_two(&mut self, coded: bool) -> bool {
        let Some(map) = self.map() else { return false };
        map.pools.values().filter(|p| coded || !p.is_erasure()).all(|p| {
            let profile = map.ec_profiles.get(&p.erasure_code_profile).filter(|_| p.is_erasure());
            let k = profile.map_or(Some(1), |p| p.get("k")?.parse::<u8>().ok());
            k.is_some_and(|k| p.min_size > k)
        })
    }

    /// Damages some of what one OSD holds. It is always the same one, and everything is whole at
    /// that time; what is written later and counts has another copy, too. So there are good copies
    /// elsewhere whatever happens next: perhaps away for a while, for which their readers wait, but
    /// nobody gets an error, and in peace nothing is lost.
    pub fn rot(&mut self) {
        if !self.is_whole() {
            return self.probe("nothing to rot: not whole");
        }
        if !self.counts_by_two(true) {
            return self.probe("nothing to rot: one copy counts");
        }
        let mut rng = self.extra_rng.fork();
        let Some(target) = self.rotten.or_else(|| rng.pick(&self.osds).copied()) else { return };
        self.rotten = Some(target);
        for _ in 0..rng.between(1, 20) {
            let rots = |o: &mut OsdActor| {
                o.disk.devices.first().is_some_and(|d| d.rot(osd::LABEL, &mut rng))
            };
            let rotten = self.world.with(target, rots).unwrap_or(false);
            self.probe(if rotten { "block rotten" } else { "nothing to rot: no data" });
        }
    }

    /// Others fill the file systems of some disks, until later.
    pub fn take_room(&mut self) {
        let mut rng = self.extra_rng.fork();
        let how_many = if rng.one_in(6) { self.osds.len() as u64 } else { rng.between(1, 2) };
        for _ in 0..how_many {
            let Some(target) = rng.pick(&self.osds).copied() else { return };
            self.probe("room taken");
            let left = *rng.pick(&[0, 0, 8 << 10, 200 << 10]).unwrap_or(&0);
            self.leave_room(target, Some(left));
            // Now and then for longer than a PG waits.
            let most = if rng.one_in(4) { 45_000_000 } else { 12_000_000 };
            let until = self.world.now + rng.between(500_000, most);
            self.short.insert(target, until);
        }
    }

    /// While a PG waits for room, what its other members need of it changes.
    pub fn press_who_waits(&mut self) {
        let waits = |o: &mut OsdActor| o.osd().is_some_and(spirula_osd::OsdCore::waits_for_room);
        let short: Vec<ActorId> = self.short.keys().copied().collect();
        let Some(target) = short.into_iter().find(|o| self.world.with(*o, waits) == Some(true))
        else {
            return;
        };
        match self.extra_rng.below(4) {
            0 => {}
            1 => {
                let id = self.osd_id(target);
                if self.told_down.insert(id) {
                    self.probe("OSD marked down by order");
                    self.order(format!(r#"{{"prefix": "osd down", "ids": ["{id}"]}}"#));
                }
            }
            2 => {
                let val = self.extra_rng.pick(&[4, 6, 8, 12]).copied().unwrap_or(8);
                self.order(format!(
                    r#"{{"prefix": "osd pool set", "pool": "pool0", "var": "pg_num", "val": "{val}"}}"#
                ));
            }
            _ => {
                let others: Vec<ActorId> =
                    self.osds.iter().copied().filter(|o| *o != target).collect();
                if let Some(other) =
                    self.extra_rng.pick(&others).copied().filter(|o| !self.lies(*o))
                {
                    self.probe("OSD killed beside one without room");
                    self.kill(other, 10_000_000);
                }
            }
        }
    }

    /// A disk may use so many bytes more; `None`: all it has.
    pub fn leave_room(&mut self, target: ActorId, left: Option<u64>) {
        let room = left.map(|left| HOST_MARGIN + left);
        self.world.with(target, |o: &mut OsdActor| {
            o.disk.devices.iter().take(1).for_each(|d| d.leave(room))
        });
    }

    /// The time of those who lack room until `now` is over.
    pub fn give_room_back(&mut self, now: u64) {
        for (id, _) in self.short.extract_if(.., |_, until| *until <= now).collect::<Vec<_>>() {
            self.leave_room(id, None);
        }
    }

    /// An OSD's disk is replaced by an empty one.
    pub fn swap_disk(&mut self) {
        if !self.is_whole() {
            return self.probe("no disk swapped: not whole");
        }
        // Beside damage on one disk no other may be lost.
        let Some(target) = self.rotten.or_else(|| self.extra_rng.pick(&self.osds).copied()) else {
            return;
        };
        let purge = self.extra_rng.one_in(3);
        self.probe(if purge { "OSD purged" } else { "disk swapped" });
        self.replace_disk(target, purge);
    }

    /// An OSD goes, and comes back with an empty disk; `purge`: the maps forget it meanwhile.
    pub fn replace_disk(&mut self, target: ActorId, purge: bool) {
        let id = self.osd_id(target);
        self.world.crash(target);
        let (disk, uuid) = self.new_disk(id);
        self.world.with(target, |o: &mut OsdActor| (o.disk, o.no_disk) = (disk, true));
        let how = if purge { "purge-actual" } else { "destroy-actual" };
        self.orders_in_turn([
            format!(r#"{{"prefix": "osd down", "ids": ["{id}"]}}"#),
            format!(r#"{{"prefix": "osd {how}", "id": {id}, "yes_i_really_mean_it": true}}"#),
            format!(r#"{{"prefix": "osd new", "uuid": "{uuid}", "id": {id}}}"#),
        ]);
        if purge {
            self.orders_in_turn([format!(
                r#"{{"prefix": "osd crush add", "id": {id}, "weight": 0.0098, "args": ["host=host{id}", "root=default"]}}"#
            )]);
        }
        self.coming = Some(Coming { actor: target, since: self.world.now });
    }

    /// One more OSD joins, on a host of its own.
    pub fn add_osd(&mut self) {
        if self.coming.is_some() || self.osds.len() >= 9 || self.world.now < self.healed_at {
            return;
        }
        self.probe("OSD added");
        let id = self.osds.len() as OsdId;
        let (disk, uuid) = self.new_disk(id);
        let place = osd::Place {
            host: format!("host{id}"),
            mons: self.mons.clone(),
            osds: self.at.clone(),
            pg: self.pg.clone(),
            apart: self.apart,
        };
        let mut actor = OsdActor::new(disk, place, self.extra_rng.fork());
        actor.no_disk = true;
        let actor = self.world.add(Box::new(actor), 10_000_000);
        self.at.lock().unwrap_or_else(PoisonError::into_inner).insert(id, actor);
        self.osds.push(actor);
        self.orders_in_turn([
            format!(r#"{{"prefix": "osd new", "uuid": "{uuid}", "id": {id}}}"#),
            // As much as each of the first ones.
            format!(r#"{{"prefix": "osd crush add", "id": {id}, "weight": 0.0098, "args": ["host=host{id}", "root=default"]}}"#),
        ]);
        self.coming = Some(Coming { actor, since: self.world.now });
    }

    /// Starts who waited, once the monitors know its disk.
    pub fn new_disks_start(&mut self) {
        let Some(Coming { actor, since }) = self.coming else { return };
        let Some(c) = self.commanders.first().copied() else { return };
        let told = self.world.with(c, |c: &mut Commander| c.has_no_orders()).unwrap_or(false);
        if told && self.world.now > since {
            self.coming = None;
            self.world.with(actor, |o: &mut OsdActor| o.no_disk = false);
            self.world.start(actor);
        }
    }

    fn new_disk(&mut self, id: OsdId) -> (osd::Disk, Uuid) {
        self.disks_made += 1;
        let uuid = Uuid([100 + self.disks_made; 16]);
        let identity = spirula_store::Identity { fsid: FSID, osd_uuid: uuid, osd_id: id };
        (osd::Disk::new(identity, osd_bytes(self.extras), &mut self.extra_rng), uuid)
    }
}
