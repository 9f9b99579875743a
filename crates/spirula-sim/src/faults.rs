//! What goes wrong in a storm.

use crate::commander::Commander;
use crate::disk::Disk;
use crate::monitor::{MonActor, addr_of};
use crate::osd::OsdActor;
use crate::rng::Rng;
use crate::scenario::{FSID, Scene};
use crate::world::{ActorId, World};
use spirula_mon::image::Identity;
use spirula_quorum::Snapshot;
use spirula_types::{OsdId, Uuid};

/// Bits of a monitor's store that flip, one after the other, before its disk is lost.
const ROTS: usize = 8;

impl Scene {
    /// Ends what is over, and begins something.
    pub fn fault(&mut self) {
        let careful = self.end_due();
        match self.rng.one_in(2) {
            true => self.monitor_fault(),
            false if careful => {}
            false => self.osd_fault(),
        }
    }

    /// Ends what is over; true if everything else has to wait.
    pub fn end_due(&mut self) -> bool {
        let now = self.world.now;
        self.start_due();
        for (id, _) in self.paused.extract_if(.., |_, at| *at <= now) {
            self.world.resume(id);
        }
        if now >= self.healed_at {
            self.world.heal(false);
        }
        self.troubles_go_on()
    }

    /// Starts again what is to start by now.
    pub fn start_due(&mut self) {
        let now = self.world.now;
        self.new_disks_start();
        for (id, _) in self.down.extract_if(.., |_, at| *at <= now) {
            self.world.start(id);
        }
    }

    fn until(&mut self, longest_us: u64) -> u64 {
        self.world.now + self.rng.between(100_000, longest_us)
    }

    pub fn kill(&mut self, id: ActorId, longest_us: u64) {
        self.world.crash(id);
        let at = self.until(longest_us);
        self.down.insert(id, at);
    }

    fn monitor_fault(&mut self) {
        let kind = self.rng.below(7);
        // Every seed lacks some faults.
        if self.faults[0] & (1 << kind) == 0 {
            return;
        }
        let Some(mon) = self.rng.pick(&self.mons).copied() else { return };
        let leader = self.mons.clone().into_iter().find(|m| self.leads(*m));
        let target = if self.rng.one_in(2) { leader.unwrap_or(mon) } else { mon };
        match kind {
            0 | 1 => {
                self.probe("monitor killed");
                self.kill(target, 5_000_000);
            }
            2 => {
                self.probe("monitor stopped");
                self.world.pause(target);
                let at = self.until(8_000_000);
                self.paused.insert(target, at);
            }
            3 => {
                self.probe("monitor cut off");
                for other in self.mons.clone() {
                    self.world.cut(target, other);
                    self.world.cut(other, target);
                }
                self.healed_at = self.until(8_000_000);
            }
            4 => {
                self.probe("one way cut");
                let all: Vec<ActorId> = self
                    .mons
                    .iter()
                    .chain(&self.commanders)
                    .chain(&self.osds)
                    .chain(&self.clients)
                    .copied()
                    .collect();
                if let Some(other) = self.rng.pick(&all).copied() {
                    let (a, b) = if self.rng.one_in(2) { (target, other) } else { (other, target) };
                    self.world.cut(a, b);
                    self.healed_at = self.until(8_000_000);
                }
            }
            5 => {
                self.probe("all monitors killed");
                if self.rng.one_in(4) {
                    for m in self.mons.clone() {
                        self.kill(m, 2_000_000);
                    }
                }
            }
            _ => self.lose_a_disk(target),
        }
    }

    fn osd_fault(&mut self) {
        let kind = self.rng.below(13);
        if self.faults[1] & (1 << kind) == 0 {
            return;
        }
        let Some(target) = self.rng.pick(&self.osds).copied() else { return };
        // Only while all is whole may it lose what it has not written.
        let dies = matches!(kind, 0..=2 | 10..);
        if dies && self.lies(target) {
            return;
        }
        match kind {
            0 | 1 => {
                self.probe("OSD killed");
                self.kill(target, 6_000_000);
            }
            2 => {
                if self.rng.one_in(3) {
                    self.probe("all OSDs killed");
                    for o in
                        self.osds.clone().into_iter().filter(|o| !self.lies(*o)).collect::<Vec<_>>()
                    {
                        self.kill(o, 2_000_000);
                    }
                } else {
                    self.probe("two OSDs killed");
                    let other = self.rng.pick(&self.osds).copied().unwrap_or(target);
                    self.kill(target, 4_000_000);
                    if !self.lies(other) {
                        self.kill(other, 4_000_000);
                    }
                }
            }
            3 => {
                self.probe("OSD stopped");
                self.world.pause(target);
                let at = self.until(30_000_000);
                self.paused.insert(target, at);
            }
            4 => {
                self.probe("OSD cut off");
                let clients_too = self.rng.one_in(2);
                let mons_too = self.rng.one_in(2);
                let mut others = self.osds.clone();
                others.extend(self.mons.iter().filter(|_| mons_too));
                others.extend(self.clients.iter().filter(|_| clients_too));
                for other in others.into_iter().filter(|o| *o != target) {
                    self.world.cut(target, other);
                    self.world.cut(other, target);
                }
                self.healed_at = self.until(30_000_000);
            }
            5 => {
                self.probe("OSDs cut one way");
                let others: Vec<ActorId> = self.osds.iter().chain(&self.clients).copied().collect();
                if let Some(other) = self.rng.pick(&others).copied() {
                    let (a, b) = if self.rng.one_in(2) { (target, other) } else { (other, target) };
                    self.world.cut(a, b);
                    self.healed_at = self.until(30_000_000);
                }
            }
            6 | 7 => {
                self.probe("connection broken");
                self.world.break_a_connection();
            }
            8 => self.move_data(target),
            9 => self.change_pool(),
            10 => {
                self.probe("disk dies");
                let n = self.rng.below(30);
                self.world.with(target, |o: &mut OsdActor| {
                    o.disk.devices.iter().for_each(|d| d.die_after(n))
                });
                // Whether it stops or not: it is started again.
                let at = self.until(6_000_000);
                self.down.insert(target, at);
            }
            11 => {
                self.probe("OSD told to stop");
                self.world.with(target, |o: &mut OsdActor| o.stop());
                // Its next event lets it see that.
                let at = self.until(6_000_000);
                self.down.insert(target, at);
            }
            _ => {
                self.probe("OSD killed again and again");
                self.kill(target, 300_000);
            }
        }
    }

    /// Gives the monitors an order.
    pub fn order(&mut self, text: String) {
        let Some(c) = self.rng.pick(&self.commanders).copied() else { return };
        self.world.with(c, |c: &mut Commander| c.orders.push_back(text));
    }

    /// Has every commander give the monitors an order: it comes after all that were given before.
    pub fn order_of_all(&mut self, text: &str) {
        for c in self.commanders.clone() {
            self.world.with(c, |c: &mut Commander| c.orders.push_back(text.to_owned()));
        }
    }

    pub fn osd_id(&mut self, actor: ActorId) -> OsdId {
        self.world.with(actor, |o: &mut OsdActor| o.id).unwrap_or(0)
    }

    fn move_data(&mut self, target: ActorId) {
        let id = self.osd_id(target);
        if self.rng.one_in(3) {
            self.probe("reweight");
            let weight = self.rng.between(1, 10);
            self.order(format!(
                r#"{{"prefix": "osd reweight", "id": {id}, "weight": {}.{}}}"#,
                weight / 10,
                weight % 10
            ));
        } else if self.out.remove(&id) {
            self.probe("in");
            self.order(format!(r#"{{"prefix": "osd in", "ids": ["{id}"]}}"#));
        } else if self.out.len() + 3 < self.osds.len() + usize::from(self.rng.one_in(3)) {
            self.probe("out");
            self.out.insert(id);
            self.order(format!(r#"{{"prefix": "osd out", "ids": ["{id}"]}}"#));
        }
    }

    fn change_pool(&mut self) {
        let (var, val) = if self.rng.one_in(2) {
            self.probe("pool size changed");
            ("size", *self.rng.pick(&[2, 3, 3]).unwrap_or(&3))
        } else {
            self.probe("pg_num changed");
            ("pg_num", *self.rng.pick(&[4, 6, 8, 12, 16]).unwrap_or(&8))
        };
        self.order(format!(
            r#"{{"prefix": "osd pool set", "pool": "pool0", "var": "{var}", "val": "{val}"}}"#
        ));
    }

    /// A monitor loses its disk and joins anew, if the others can do without it.
    fn lose_a_disk(&mut self, target: ActorId) {
        if self.wiped || self.mons.len() < 3 || self.down.contains_key(&target) {
            return;
        }
        let voters = |w: &mut World, m: ActorId| {
            w.with(m, |a: &mut MonActor| {
                a.mon.as_ref().and_then(|m| Some(m.node()?.members().voters.len()))
            })
            .flatten()
        };
        if voters(&mut self.world, target).is_none_or(|v| v < 3) {
            return;
        }
        self.wiped = true;
        // Before it is lost it rots, wherever that may be. It must not be started with: a vote or
        // an entry would be forgotten.
        let mut rng = Rng::new(self.world.now);
        let refused = |a: &mut MonActor| {
            (0..ROTS).all(|_| {
                let mut rotten = a.disk.clone();
                rotten.rot(&mut rng);
                rotten.open().is_err()
            })
        };
        match self.world.with(target, refused) {
            Some(false) => {
                self.world.exits.push((target, "it takes a rotten store for a whole one".into()))
            }
            _ => self.probe("monitor's disk rotten, and lost"),
        }
        self.world.crash(target);
        let seeds = self.mons.iter().filter(|m| **m != target).map(|m| addr_of(*m)).collect();
        let bug = self.bug;
        self.world.with(target, |a: &mut MonActor| {
            let identity = Identity { fsid: FSID, uuid: Uuid([99; 16]), member: 0 };
            a.join_anew(Disk::new(identity, &Snapshot::default(), bug), seeds);
        });
        self.down.insert(target, self.world.now + 500_000);
    }

    /// Is it up, and does it lead?
    pub fn leads(&mut self, mon: ActorId) -> bool {
        let leads = |a: &mut MonActor| a.mon.as_ref().is_some_and(|m| m.leads());
        self.world.is_up(mon) && self.world.with(mon, leads).unwrap_or(false)
    }
}
