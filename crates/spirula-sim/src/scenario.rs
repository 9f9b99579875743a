//! One seed: a cluster, a storm, peace, and the checks.

use crate::check;
use crate::client::Client;
use crate::disk::Disk;
use crate::monitor::{MonActor, addr_of};
use crate::osd::OsdActor;
use crate::rng::Rng;
use crate::world::{ActorId, World};
use bytes::Bytes;
use spirula_encoding::UTime;
use spirula_mon::image::Identity;
use spirula_mon::{MkfsParams, NewMon, NewOsd, mkfs};
use spirula_quorum::Snapshot;
use spirula_types::Uuid;
use std::collections::BTreeMap;

const FSID: Uuid = Uuid([9; 16]);
/// Microseconds of peace in which everything must have come right again.
const PEACE_US: u64 = 25_000_000;

/// States remembered for comparison; who is further behind is compared when it catches up.
const STATES_KEPT: usize = 200;

/// A bug put in on purpose, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A write counts as durable before it is.
    AckBeforeSync,
    /// The hard state is written at once, the entries it speaks of with the next write.
    IndexApartFromEntry,
    /// A monitor that leads, or believes so, answers reads without asking.
    StaleLeaderReads,
    /// A request is repeated under a new number.
    ResendAsNew,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::AckBeforeSync, Self::IndexApartFromEntry, Self::StaleLeaderReads, Self::ResendAsNew];
}

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Draws everything.
    pub seed: u64,
    /// Seconds of faults, in virtual time.
    pub storm_s: u64,
    /// Planted bug.
    pub bug: Option<Bug>,
}

impl Options {
    /// As in CI.
    pub fn new(seed: u64) -> Self {
        Self { seed, storm_s: 25, bug: None }
    }
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Over everything that happened; the same for the same seed.
    pub hash: u64,
    /// Events.
    pub steps: u64,
    /// Operations answered.
    pub answered: usize,
    /// Terms that had a leader.
    pub leaders: usize,
    /// How often each rare thing happened.
    pub probes: BTreeMap<&'static str, u64>,
}

/// A run that shows something wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its seed.
    pub seed: u64,
    /// What.
    pub why: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {}: {}\nreplay: cargo xtask sim --seed {}", self.seed, self.why, self.seed)
    }
}

/// The keys in which two states differ.
fn difference(a: &Bytes, b: &Bytes) -> String {
    let keys = |s: &Bytes| -> BTreeMap<String, Bytes> { spirula_encoding::from_slice(s).unwrap_or_default() };
    let (a, b) = (keys(a), keys(b));
    let differs = |k: &&String| a.get(*k) != b.get(*k);
    let names: Vec<String> = a.keys().chain(b.keys()).filter(differs).cloned().collect();
    let shown: Vec<String> = names.iter().take(6).map(|k| format!("{k}: {:?} and {:?}", a.get(k), b.get(k))).collect();
    format!("{} keys, {}", names.len(), shown.join(", "))
}

struct Scene {
    world: World,
    rng: Rng,
    mons: Vec<ActorId>,
    clients: Vec<ActorId>,
    osds: Vec<ActorId>,
    /// Faults this seed has.
    faults: u64,
    down: BTreeMap<ActorId, u64>,
    paused: BTreeMap<ActorId, u64>,
    healed_at: u64,
    wiped: bool,
    leaders: BTreeMap<u64, u64>,
    states: BTreeMap<u64, Bytes>,
    epochs: BTreeMap<u32, u64>,
    probes: BTreeMap<&'static str, u64>,
    bug: Option<Bug>,
}

/// Runs one seed.
///
/// # Errors
/// [`Failure`] if something did not hold.
pub fn run(o: &Options) -> Result<Report, Failure> {
    let mut s = Scene::new(o);
    s.storm(o.storm_s * 1_000_000).and_then(|()| s.peace()).map_err(|why| Failure { seed: o.seed, why })?;
    let answered = s.history().iter().filter(|o| o.ended.is_some()).count();
    Ok(Report {
        hash: s.world.hash,
        steps: s.world.steps,
        answered,
        leaders: s.leaders.len(),
        probes: std::mem::take(&mut s.probes),
    })
}

impl Scene {
    fn new(o: &Options) -> Self {
        let mut rng = Rng::new(o.seed);
        let mut world = World::new(rng.bits());
        world.delay_us = *rng.pick(&[500, 3_000, 30_000]).unwrap_or(&1000);
        let count = *rng.pick(&[1usize, 3, 3, 3, 5]).unwrap_or(&3);
        let uuid = |i: usize| Uuid([40 + i as u8; 16]);
        let name = |i: usize| char::from(b'a' + i as u8).to_string();
        let new_osd = |id: i32| NewOsd {
            id,
            uuid: Uuid([id as u8 + 1; 16]),
            size_bytes: 10 << 30,
            host: format!("host{id}"),
            device_class: "ssd".into(),
        };
        let params = MkfsParams {
            fsid: FSID,
            mons: (0..count).map(|i| NewMon { name: name(i), addrs: addr_of(i), uuid: uuid(i) }).collect(),
            osds: (0..3).map(new_osd).collect(),
            failure_domain: "host".into(),
            defaults: [
                ("osd_pool_default_size".to_owned(), "3".to_owned()),
                ("mon_osd_min_up_ratio".to_owned(), "0".to_owned()),
            ]
            .into(),
            pools: Vec::new(),
            users: Default::default(),
            service_keys: Default::default(),
        };
        let first = mkfs(&params, UTime { sec: 1_795_000_000, nsec: 0 }).unwrap_or_default();
        let mut mons = Vec::new();
        for i in 0..count {
            let identity = Identity { fsid: FSID, uuid: uuid(i), member: i as u64 + 1 };
            let disk = Disk::new(identity, &first, o.bug);
            let mut actor = MonActor::new(&name(i), disk, Vec::new(), rng.fork(), o.bug);
            actor.disk_us = *rng.pick(&[500, 3_000, 40_000]).unwrap_or(&2000);
            mons.push(world.add(Box::new(actor), 100_000));
        }
        // One more that joins on the way, in some runs.
        if count < 5 && rng.one_in(3) {
            let identity = Identity { fsid: FSID, uuid: uuid(9), member: 0 };
            let disk = Disk::new(identity, &Snapshot::default(), o.bug);
            let seeds = mons.iter().map(|m| addr_of(*m)).collect();
            let actor = MonActor::new(&name(count), disk, seeds, rng.fork(), o.bug);
            mons.push(world.add(Box::new(actor), 100_000));
        }
        for m in &mons {
            let (offset, drift) =
                (rng.between(0, 4_000_000) as i64 - 2_000_000, rng.between(0, 200_000) as i64 - 100_000);
            if rng.one_in(3) {
                world.set_clock(*m, offset, drift);
            }
        }
        let mut clients = Vec::new();
        for _ in 0..rng.between(2, 4) {
            let c = Client::new(mons.clone(), FSID, rng.fork(), o.bug);
            clients.push(world.add(Box::new(c), 50_000));
        }
        let mut osds = Vec::new();
        for id in 0..3 {
            let a = OsdActor::new(id, Uuid([id as u8 + 1; 16]), FSID, mons.clone(), rng.fork());
            osds.push(world.add(Box::new(a), 100_000));
        }
        let faults = rng.bits();
        Self {
            world,
            rng,
            mons,
            clients,
            osds,
            faults,
            down: BTreeMap::new(),
            paused: BTreeMap::new(),
            healed_at: 0,
            wiped: false,
            leaders: BTreeMap::new(),
            states: BTreeMap::new(),
            epochs: BTreeMap::new(),
            probes: BTreeMap::new(),
            bug: o.bug,
        }
    }

    fn probe(&mut self, name: &'static str) {
        *self.probes.entry(name).or_insert(0) += 1;
    }

    fn storm(&mut self, until: u64) -> Result<(), String> {
        let mut next_fault = 2_000_000;
        loop {
            let more = self.world.step(until.min(next_fault));
            if !more {
                if self.world.now >= until {
                    return Ok(());
                }
                self.fault();
                next_fault = self.world.now + self.rng.between(50_000, 1_500_000);
            }
            self.look()?;
        }
    }

    fn fault(&mut self) {
        let now = self.world.now;
        let due =
            |m: &BTreeMap<ActorId, u64>| m.iter().filter(|(_, t)| **t <= now).map(|(i, _)| *i).collect::<Vec<_>>();
        for id in due(&self.down) {
            self.down.remove(&id);
            self.world.start(id);
        }
        for id in due(&self.paused) {
            self.paused.remove(&id);
            self.world.resume(id);
        }
        if now >= self.healed_at {
            self.world.heal();
        }
        let kind = self.rng.below(8);
        // Every seed lacks some faults.
        if self.faults & (1 << kind) == 0 {
            return;
        }
        let Some(mon) = self.rng.pick(&self.mons).copied() else { return };
        let leader = self.mons.clone().into_iter().find(|m| self.leads(*m));
        let target = if self.rng.one_in(2) { leader.unwrap_or(mon) } else { mon };
        match kind {
            0 | 1 => {
                self.probe("monitor killed");
                self.world.crash(target);
                self.down.insert(target, now + self.rng.between(100_000, 5_000_000));
            }
            2 => {
                self.probe("monitor stopped");
                self.world.pause(target);
                self.paused.insert(target, now + self.rng.between(500_000, 8_000_000));
            }
            3 => {
                self.probe("monitor cut off");
                for other in self.mons.clone() {
                    self.world.cut(target, other);
                    self.world.cut(other, target);
                }
                self.healed_at = now + self.rng.between(500_000, 8_000_000);
            }
            4 => {
                self.probe("one way cut");
                let all: Vec<ActorId> = self.mons.iter().chain(&self.clients).copied().collect();
                if let Some(other) = self.rng.pick(&all).copied() {
                    let (a, b) = if self.rng.one_in(2) { (target, other) } else { (other, target) };
                    self.world.cut(a, b);
                    self.healed_at = now + self.rng.between(500_000, 8_000_000);
                }
            }
            5 => {
                self.probe("connection broken");
                self.world.break_a_connection();
            }
            6 => {
                self.probe("everything killed");
                if self.rng.one_in(4) {
                    for m in self.mons.clone() {
                        self.world.crash(m);
                        self.down.insert(m, now + self.rng.between(100_000, 2_000_000));
                    }
                } else if let Some(osd) = self.rng.pick(&self.osds).copied() {
                    self.world.crash(osd);
                    self.down.insert(osd, now + self.rng.between(100_000, 2_000_000));
                }
            }
            _ => self.lose_a_disk(target),
        }
    }

    /// A monitor loses its disk and joins anew, if the others can do without it.
    fn lose_a_disk(&mut self, target: ActorId) {
        if self.wiped || self.mons.len() < 3 || self.down.contains_key(&target) {
            return;
        }
        let voters = |w: &mut World, m: ActorId| {
            w.with(m, |a: &mut MonActor| a.mon.as_ref().and_then(|m| Some(m.node()?.members().voters.len()))).flatten()
        };
        if voters(&mut self.world, target).is_none_or(|v| v < 3) {
            return;
        }
        self.wiped = true;
        self.probe("disk lost");
        self.world.crash(target);
        let seeds = self.mons.iter().filter(|m| **m != target).map(|m| addr_of(*m)).collect();
        let bug = self.bug;
        self.world.with(target, |a: &mut MonActor| {
            let identity = Identity { fsid: FSID, uuid: Uuid([99; 16]), member: 0 };
            a.join_anew(Disk::new(identity, &Snapshot::default(), bug), seeds);
        });
        self.down.insert(target, self.world.now + 500_000);
    }

    fn leads(&mut self, mon: ActorId) -> bool {
        let leads = |a: &mut MonActor| a.mon.as_ref().is_some_and(|m| m.leads());
        self.world.is_up(mon) && self.world.with(mon, leads).unwrap_or(false)
    }

    /// Takes what the actors noted, and checks it.
    fn look(&mut self) -> Result<(), String> {
        if let Some((id, why)) = self.world.exits.pop() {
            return Err(format!("actor {id} ended: {why}"));
        }
        for m in self.mons.clone() {
            let noted = self.world.with(m, |a: &mut MonActor| {
                (std::mem::take(&mut a.led), std::mem::take(&mut a.states), a.refused.take())
            });
            let Some((led, states, refused)) = noted else { continue };
            if let Some(why) = refused {
                return Err(format!("a monitor's store is refused after a crash: {why}"));
            }
            for (term, member) in led {
                let before = *self.leaders.entry(term).or_insert(member);
                if before != member {
                    return Err(format!("members {before} and {member} both led in term {term}"));
                }
            }
            for (index, state) in states {
                let before = self.states.entry(index).or_insert_with(|| state.clone());
                if *before != state {
                    return Err(format!("two states after entry {index}: {}", difference(before, &state)));
                }
                while self.states.len() > STATES_KEPT {
                    self.states.pop_first();
                }
            }
        }
        for id in self.osds.clone() {
            let noted = self.world.with(id, |a: &mut OsdActor| (std::mem::take(&mut a.epochs), a.wrong.take()));
            let Some((epochs, wrong)) = noted else { continue };
            if let Some(why) = wrong {
                return Err(why);
            }
            for (epoch, hash) in epochs {
                if *self.epochs.entry(epoch).or_insert(hash) != hash {
                    return Err(format!("OSD map epoch {epoch} has two contents"));
                }
            }
        }
        Ok(())
    }

    fn history(&mut self) -> Vec<check::Op> {
        let mut all = Vec::new();
        for c in self.clients.clone() {
            all.extend(self.world.with(c, |c: &mut Client| c.history.clone()).unwrap_or_default());
        }
        all
    }

    fn peace(&mut self) -> Result<(), String> {
        self.world.heal();
        for id in self.mons.iter().chain(&self.osds).copied().collect::<Vec<_>>() {
            self.world.resume(id);
            self.world.start(id);
        }
        for c in self.clients.clone() {
            self.world.with(c, |c: &mut Client| c.quiet = true);
        }
        for o in self.osds.clone() {
            self.world.with(o, |o: &mut OsdActor| o.quiet = true);
        }
        let until = self.world.now + PEACE_US;
        loop {
            let more = self.world.step(until);
            self.look()?;
            if self.world.steps.is_multiple_of(64) && self.all_well() {
                break;
            }
            if !more {
                return Err(format!("{} s of peace and still: {}", PEACE_US / 1_000_000, self.complaint()));
            }
        }
        check::linearizable(&self.history())
    }

    fn all_well(&mut self) -> bool {
        self.complaint().is_empty()
    }

    fn complaint(&mut self) -> String {
        for c in self.clients.clone() {
            if !self.world.with(c, |c: &mut Client| c.done()).unwrap_or(false) {
                return format!("client {c} waits for an answer");
            }
        }
        for o in self.osds.clone() {
            if !self.world.with(o, |o: &mut OsdActor| o.is_in_map()).unwrap_or(false) {
                return format!("OSD actor {o} is not up in its map");
            }
        }
        let mut applied = Vec::new();
        for m in self.mons.clone() {
            let here = self.world.with(m, |a: &mut MonActor| {
                let mon = a.mon.as_ref()?;
                let node = mon.node()?;
                Some((node.members().voters.contains(&node.id()), mon.state().members.len(), node.applied()))
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
        String::new()
    }
}
