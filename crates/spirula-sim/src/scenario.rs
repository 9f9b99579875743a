//! One seed: what cluster it makes, and its course: growth, storm, peace, and the checks.

use crate::client::{Client, Pace};
use crate::commander::Commander;
use crate::disk::Disk;
use crate::extras::{Code, Extra, Extras, busy, filling, many, reading};
use crate::hardware::Coming;
use crate::logs::{Acked, Seen};
use crate::monitor::{MonActor, addr_of};
use crate::osd::{self, OsdActor};
use crate::past::Snaps;
use crate::rng::Rng;
use crate::troubles::Troubles;
use crate::watching::Book;
use crate::world::{ActorId, World};
use crate::wrong::{Sign, Wrong};
use bytes::Bytes;
use spirula_encoding::UTime;
use spirula_mon::image::Identity;
use spirula_mon::join::{MON_NAMES, given_by};
use spirula_mon::state::State;
use spirula_mon::{InitialPool, MkfsParams, NewMon, NewOsd, mkfs};
use spirula_pg::PgConfig;
use spirula_quorum::Snapshot;
use spirula_types::{OsdId, SpgId, Uuid};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

pub(crate) const FSID: Uuid = Uuid([9; 16]);

/// A bug put in on purpose, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A monitor's write counts as durable before it is.
    AckBeforeSync,
    /// The hard state is written at once, the entries it speaks of with the next write.
    IndexApartFromEntry,
    /// A monitor that leads, or believes so, answers reads without asking.
    StaleLeaderReads,
    /// A command is repeated under a new number.
    ResendAsNew,
    /// The leader makes entries that nobody can apply, and proposes them or not.
    Poison(spirula_mon::Poison),
    /// Nobody may be marked down while two OSDs do not hear each other.
    PairsLeft,
    /// Machines stand still together with their clocks for longer than is promised to do no harm.
    LongPauses,
    /// One in the PGs.
    Pg(spirula_pg::Bug),
}

impl Bug {
    /// Those that whole clusters show, each with the rarer trouble in which it shows (with that of
    /// the seed where none is named), and with what it must cause: another failure does not count.
    /// The simulators of PGs and of the quorum show more, with stories made for them.
    /// `GrantEpochIgnored` is shown by that of PGs alone, where a boot reaches the monitor late:
    /// else whoever has the map that shows a primary down grants it nothing more, and one that is
    /// up is asked.
    pub const ALL: [(Self, &[Extra], &[Sign]); 37] = {
        use spirula_pg::Bug as Of;
        /// What was acknowledged is not what is there, or was read.
        const ACKED: &[Sign] = &[Sign::Lost, Sign::Stale, Sign::Order, Sign::Answer, Sign::Log];
        const DATA: &[Sign] = &[
            Sign::Lost,
            Sign::Stale,
            Sign::Order,
            Sign::Answer,
            Sign::Copies,
            Sign::Reply,
            Sign::Unfound,
        ];
        /// A transaction is left out: an entry of the log, what it knows of a request, data.
        const LEFT_OUT: &[Sign] =
            &[Sign::Log, Sign::Books, Sign::Lost, Sign::Stale, Sign::Copies, Sign::Unfound];
        /// What a snapshot shows is not what was, or something of it stays.
        const SHOWN: &[Sign] = &[Sign::Stale, Sign::Lost, Sign::Answer, Sign::Copies, Sign::Scrub];
        [
            (Self::AckBeforeSync, &[], &[Sign::Monitors, Sign::Registers]),
            (Self::IndexApartFromEntry, &[], &[Sign::Monitors, Sign::Registers, Sign::Refused]),
            (Self::StaleLeaderReads, &[Extra::Leader], &[Sign::Registers]),
            (Self::ResendAsNew, &[], &[Sign::Registers]),
            (Self::Poison(spirula_mon::Poison::Proposed), &[], &[Sign::Exit]),
            (Self::PairsLeft, &[Extra::Pairs], &[Sign::Stalled]),
            (Self::LongPauses, &[Extra::Asleep], &[Sign::Stale, Sign::Serves]),
            (
                Self::Pg(Of::DupsForgotten),
                &[],
                &[Sign::Order, Sign::Answer, Sign::Lost, Sign::Stale, Sign::Books],
            ),
            (Self::Pg(Of::DupWithoutVersion), &[], &[Sign::Reply]),
            (Self::Pg(Of::DivergentDeleteKept), &[], DATA),
            (Self::Pg(Of::PastIgnored), &[Extra::Erasure, Extra::Sides], ACKED),
            (Self::Pg(Of::NoUpThru), &[Extra::Erasure, Extra::Sides], ACKED),
            (Self::Pg(Of::ReadsWithoutLease), &[Extra::Readers], &[Sign::Stale, Sign::Serves]),
            (Self::Pg(Of::LeaseNotAwaited), &[Extra::Readers], &[Sign::Stale, Sign::Serves]),
            (Self::Pg(Of::LeaseStretched), &[Extra::Readers], &[Sign::Stale, Sign::Serves]),
            (Self::Pg(Of::FailedReadForgotten), &[Extra::Rot, Extra::Grow], DATA),
            (Self::Pg(Of::ScrubShallow), &[Extra::Rot], &[Sign::Copies, Sign::Store, Sign::Reply]),
            (Self::Pg(Of::RepairTrustsPrimary), &[Extra::Rot, Extra::Erasure], DATA),
            (Self::Pg(Of::ScrubBesideWrites), &[Extra::Scrub], &[Sign::Scrub]),
            (Self::Pg(Of::LongestLog), &[Extra::Erasure], DATA),
            (Self::Pg(Of::UndoForgotten), &[Extra::Erasure], DATA),
            (Self::Pg(Of::RolledEarly), &[Extra::Erasure], DATA),
            (Self::Pg(Of::StripeNotRead), &[Extra::Erasure], DATA),
            (
                Self::Pg(Of::AnswersOvertake),
                &[Extra::Copies, Extra::Erasure],
                &[Sign::Store, Sign::Log, Sign::Unfound],
            ),
            (Self::Pg(Of::DeadWithoutProof), &[Extra::Readers], &[Sign::Stale, Sign::Serves]),
            (Self::Pg(Of::EarlyDropped), &[], &[Sign::Stuck]),
            (Self::Pg(Of::RoomNotAwaited), &[Extra::Room], LEFT_OUT),
            (Self::Pg(Of::RefusedKept), &[Extra::Room], DATA),
            (Self::Pg(Of::CloneOfOlder), &[Extra::Snaps], SHOWN),
            (Self::Pg(Of::ContextGoesBack), &[Extra::Snaps], SHOWN),
            (Self::Pg(Of::HistoryForgotten), &[Extra::Snaps], SHOWN),
            (Self::Pg(Of::RollbackHalf), &[Extra::Snaps], SHOWN),
            (Self::Pg(Of::TrimTakesMore), &[Extra::Snaps], SHOWN),
            (Self::Pg(Of::TrimNotAwaited), &[Extra::Snaps], SHOWN),
            (Self::Pg(Of::WatchesForgotten), &[Extra::Watches], &[Sign::Watch]),
            (Self::Pg(Of::UnconnectedPassed), &[Extra::Watches], &[Sign::Watch]),
            (Self::Pg(Of::EndedWatchAnswered), &[Extra::Watches], &[Sign::Watch]),
        ]
    };
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
    /// Prints what happens.
    pub tell: bool,
    /// Rarer trouble; by the seed if nothing is said.
    pub extras: Option<Extras>,
}

impl Options {
    /// As in CI.
    pub fn new(seed: u64) -> Self {
        Self { seed, storm_s: 25, bug: None, tell: false, extras: None }
    }
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Over everything that happened; the same for the same seed.
    pub hash: u64,
    /// Events.
    pub steps: u64,
    /// Microseconds of virtual time.
    pub time_us: u64,
    /// Commands that monitors answered.
    pub commands: usize,
    /// Operations that OSDs answered.
    pub operations: usize,
    /// Terms that had a leader.
    pub leaders: usize,
    /// The newest OSD map.
    pub epoch: u32,
    /// How often each rare thing happened.
    pub probes: BTreeMap<&'static str, u64>,
}

/// A run that shows something wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its seed.
    pub seed: u64,
    /// When, microseconds of virtual time.
    pub time_us: u64,
    /// What kind of wrong.
    pub sign: Sign,
    /// What.
    pub why: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (seed, at) = (self.seed, self.time_us as f64 / 1e6);
        let (sign, why) = (self.sign, &self.why);
        write!(
            f,
            "seed {seed}, after {at:.3} s: {sign:?}: {why}\nreplay: cargo xtask sim --seed {seed}"
        )
    }
}

/// Where the OSDs are in the world, by number; all actors share it.
pub(crate) type Osds = Arc<Mutex<BTreeMap<OsdId, ActorId>>>;

pub(crate) struct Scene {
    pub world: World,
    pub rng: Rng,
    pub mons: Vec<ActorId>,
    pub commanders: Vec<ActorId>,
    pub clients: Vec<ActorId>,
    pub osds: Vec<ActorId>,
    /// Faults this seed has: of monitors, of OSDs.
    pub faults: [u64; 2],
    /// Longest pause between two faults, microseconds.
    pub calm_us: u64,
    pub down: BTreeMap<ActorId, u64>,
    pub paused: BTreeMap<ActorId, u64>,
    pub healed_at: u64,
    pub wiped: bool,
    pub out: BTreeSet<OsdId>,
    pub extras: Extras,
    /// Those of them that have struck.
    pub tried: Extras,
    pub extra_rng: Rng,
    /// Disks that are slow: until when, and what they take usually.
    pub slowed: BTreeMap<ActorId, (u64, u64)>,
    /// OSDs for whose disks others leave no room, until when.
    pub short: BTreeMap<ActorId, u64>,
    pub troubles: Troubles,
    /// What clients know to have happened.
    pub acked: Acked,
    /// Copies of PGs as they were when they were looked at last.
    pub looked: BTreeMap<(OsdId, SpgId), Seen>,
    /// OSDs have a network of their own.
    pub apart: bool,
    /// OSDs that were marked down by order, each once.
    pub told_down: BTreeSet<OsdId>,
    pub manager: Option<ActorId>,
    pub fuzzer: Option<ActorId>,
    pub coming: Option<Coming>,
    pub disks_made: u8,
    pub at: Osds,
    /// Bounds of PGs.
    pub pg: PgConfig,
    /// The OSD whose data rots.
    pub rotten: Option<ActorId>,
    pub leaders: BTreeMap<u64, u64>,
    pub states: BTreeMap<u64, Bytes>,
    pub epochs: BTreeMap<u32, u64>,
    pub probes: BTreeMap<&'static str, u64>,
    pub objects: u32,
    /// What clients know of each other's watches.
    pub book: Book,
    /// Operations that OSDs answered.
    pub operations: usize,
    pub bug: Option<Bug>,
}

/// Runs one seed.
///
/// # Errors
/// [`Failure`] if something did not hold, or something in it panicked.
pub fn run(o: &Options) -> Result<Report, Failure> {
    let mut s = Scene::new(o);
    let course = std::panic::AssertUnwindSafe(|| {
        s.storm(o.storm_s * 1_000_000)?;
        s.outlast_cuts()?;
        s.cut_alone()?;
        s.peace()
    });
    let result = std::panic::catch_unwind(course).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Err(Sign::Panic.of(format!("a panic: {}", text.unwrap_or_default())))
    });
    let time_us = s.world.now;
    result.map_err(|Wrong { sign, why }| Failure { seed: o.seed, time_us, sign, why })?;
    let mut epoch = 0;
    for c in s.clients.clone() {
        epoch = s.world.with(c, |c: &mut Client| c.map().map_or(0, |m| m.epoch)).unwrap_or(epoch);
    }
    Ok(Report {
        hash: s.world.hash,
        steps: s.world.steps,
        time_us: s.world.now,
        commands: s.commands().iter().filter(|o| o.ended.is_some()).count(),
        operations: s.operations,
        leaders: s.leaders.len(),
        epoch,
        probes: std::mem::take(&mut s.probes),
    })
}

fn uuid_of_osd(id: OsdId) -> Uuid {
    Uuid([id as u8 + 1; 16])
}

/// Usual bytes of an OSD's data.
const OSD_BYTES: u64 = 24 << 20;

/// Bytes of an OSD's data.
pub(crate) fn osd_bytes(extras: Extras) -> u64 {
    if extras.has(Extra::Full) { 4 << 20 } else { OSD_BYTES }
}

impl Scene {
    pub(crate) fn new(o: &Options) -> Self {
        let mut rng = Rng::new(o.seed);
        let mut world = World::new(rng.bits());
        world.tell = o.tell;
        world.delay_us = *rng.pick(&[500, 3_000, 30_000]).unwrap_or(&1000);
        let count = *rng.pick(&[1usize, 3, 3, 3, 3, 5]).unwrap_or(&3);
        let extras = o.extras.unwrap_or_else(|| Extras::of(o.seed));
        let mut extra_rng = Rng::new(o.seed ^ 0x0dd5);
        let code = extras.has(Extra::Erasure).then(|| Code::draw(&mut extra_rng));
        let osd_count = rng.between(3, 5) as OsdId;
        // One more than a code needs, at times: with none to spare nothing is rebuilt elsewhere.
        let osd_count =
            code.map_or(osd_count, |c| osd_count.max((c.k + c.m + extra_rng.below(2)) as OsdId));
        // The last one lies, and has nothing of the coded pool.
        let keeps_out = extras.has(Extra::Lies);
        let osd_count = code
            .filter(|_| keeps_out)
            .map_or(osd_count, |c| osd_count.max((c.k + c.m + 1) as OsdId));
        let class = |id: OsdId| {
            if keeps_out && code.is_some() && id + 1 == osd_count { "hdd" } else { "ssd" }
        };
        let pools = (0..rng.between(1, 2)).map(|i| InitialPool {
            name: format!("pool{i}"),
            pg_num: *rng.pick(&[1, 2, 4, 8]).unwrap_or(&4),
            size: *rng.pick(&[3, 3, 3, 2]).unwrap_or(&3),
            application: "sim".into(),
        });
        let pools = pools.collect::<Vec<_>>();
        let uuid = |i: usize| Uuid([40 + i as u8; 16]);
        let name = |i: usize| char::from(b'a' + i as u8).to_string();
        let new_osd = |id: OsdId| NewOsd {
            id,
            uuid: uuid_of_osd(id),
            size_bytes: 10 << 30,
            host: format!("host{id}"),
            device_class: class(id).into(),
        };
        // Beside a rotten copy one that counts alone would be beyond the redundancy.
        let damaged = extras.has(Extra::Rot) || extras.has(Extra::Lies);
        let min_size = if damaged { "2" } else { "0" };
        let params = MkfsParams {
            fsid: FSID,
            mons: (0..count)
                .map(|i| NewMon { name: name(i), addrs: addr_of(i), uuid: uuid(i) })
                .collect(),
            osds: (0..osd_count).map(new_osd).collect(),
            failure_domain: "host".into(),
            defaults: [
                ("osd_pool_default_size".to_owned(), "3".to_owned()),
                // The liveness phase is not to wait for many small steps.
                ("target_max_misplaced_ratio".to_owned(), "1".to_owned()),
                ("mon_osd_min_up_ratio".to_owned(), "0".to_owned()),
                ("mon_allow_pool_delete".to_owned(), "true".to_owned()),
                ("osd_pool_default_min_size".to_owned(), min_size.to_owned()),
            ]
            .into(),
            pools,
            users: Default::default(),
            service_keys: Default::default(),
        };
        let mut first = mkfs(&params, UTime { sec: 1_795_000_000, nsec: 0 }).unwrap_or_default();
        // Another monitor's token was redeemed: it may come in.
        if let Ok(mut state) = State::from_bytes(&first.data) {
            Arc::make_mut(&mut state.kv).insert(
                format!("{MON_NAMES}{}", name(count)),
                given_by(UTime { sec: u32::MAX, nsec: 0 }, "").into(),
            );
            first.data = state.to_bytes();
        }
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
        // Many, on the same register, show best what a leader that is none any more answers.
        let (more, registers) = if extras.has(Extra::Leader) { (4, 1) } else { (0, 3) };
        let commanders = (0..rng.between(1, 3) + more).map(|_| {
            let mut c = Commander::new(mons.clone(), FSID, rng.fork(), o.bug);
            c.registers = registers;
            world.add(Box::new(c), 50_000)
        });
        let commanders = commanders.collect();
        let at = Osds::default();
        let objects = *rng.pick(&[2, 5, 12]).unwrap_or(&5);
        let objects = if extras.has(Extra::Overtaken) { 2 } else { objects };
        let mut osds = Vec::new();
        let pg = pg_config(&mut rng, o.bug);
        let apart = rng.one_in(2);
        for id in 0..osd_count {
            let identity =
                spirula_store::Identity { fsid: FSID, osd_uuid: uuid_of_osd(id), osd_id: id };
            let disk = osd::Disk::new(identity, osd_bytes(extras), &mut rng);
            let (host, mons, pg) = (format!("host{id}"), mons.clone(), pg.clone());
            let place = osd::Place { host, mons, osds: at.clone(), pg, apart };
            let mut actor = OsdActor::new(disk, place, rng.fork());
            actor.disk_us = *rng.pick(&[300, 2_000, 20_000]).unwrap_or(&2000);
            let actor = world.add(Box::new(actor), 10_000_000);
            at.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(id, actor);
            osds.push(actor);
        }
        for a in mons.iter().chain(&osds) {
            let (offset, drift) = (
                rng.between(0, 4_000_000) as i64 - 2_000_000,
                rng.between(0, 200_000) as i64 - 100_000,
            );
            if rng.one_in(3) {
                world.set_clock(*a, offset, drift);
            }
        }
        let pace = Pace {
            objects,
            under_way: rng.between(1, 4) as usize,
            idle: *rng.pick(&[1, 2, 5]).unwrap_or(&2),
            burst: 0,
            changes: *rng.pick(&[30, 50, 80]).unwrap_or(&50),
            cells: *rng.pick(&[100, 1000, 6000]).unwrap_or(&100),
            large: 20,
            copies: if extras.has(Extra::Copies) { 30 } else { 0 },
            snaps: extras.has(Extra::Snaps) && !extras.has(Extra::Full) && !extras.has(Extra::Room),
        };
        let pace = match () {
            () if extras.has(Extra::Full) => filling(pace),
            () if extras.has(Extra::Room) => busy(pace),
            () => pace,
        };
        let (objects, snaps) = (pace.objects, Snaps::default());
        let clients = (0..rng.between(1, 3)).map(|i| {
            let pace = if i > 0 && (extras.has(Extra::Readers) || extras.has(Extra::Asleep)) {
                reading(&pace)
            } else if i == 0
                && extras.has(Extra::Many)
                && !extras.has(Extra::Full)
                && !extras.has(Extra::Room)
            {
                many(pace.clone())
            } else {
                pace.clone()
            };
            let mut c = Client::new(mons.clone(), at.clone(), pace, rng.fork());
            c.backs_off = o.seed % 3 == 2;
            c.snaps = snaps.clone();
            world.add(Box::new(c), 50_000)
        });
        let clients = clients.collect();
        let mut scene = Self {
            faults: [rng.bits(), rng.bits()],
            calm_us: *rng.pick(&[1_500_000, 4_000_000]).unwrap_or(&1_500_000),
            world,
            rng,
            mons,
            commanders,
            clients,
            osds,
            down: BTreeMap::new(),
            paused: BTreeMap::new(),
            healed_at: 0,
            wiped: false,
            out: BTreeSet::new(),
            extras,
            tried: Extras::default(),
            extra_rng,
            slowed: BTreeMap::new(),
            short: BTreeMap::new(),
            troubles: Troubles::default(),
            acked: Acked::default(),
            looked: BTreeMap::new(),
            apart,
            told_down: BTreeSet::new(),
            manager: None,
            fuzzer: None,
            rotten: None,
            coming: None,
            disks_made: 0,
            at,
            pg,
            leaders: BTreeMap::new(),
            states: BTreeMap::new(),
            epochs: BTreeMap::new(),
            probes: BTreeMap::new(),
            objects,
            book: Book::default(),
            operations: 0,
            bug: o.bug,
        };
        scene.prepare_extras(code);
        scene
    }

    pub fn probe(&mut self, name: &'static str) {
        *self.probes.entry(name).or_insert(0) += 1;
    }

    fn storm(&mut self, until: u64) -> Result<(), Wrong> {
        let mut next_fault = 4_000_000;
        loop {
            let more = self.world.step(until.min(next_fault));
            if !more {
                if self.world.now >= until {
                    return Ok(());
                }
                self.fault();
                self.look_at_scrubs()?;
                if self.extras.any() && self.extra_rng.one_in(2) {
                    self.extra_fault();
                }
                next_fault = self.world.now + self.rng.between(50_000, self.calm_us);
            }
            self.look()?;
        }
    }
}

/// Bounds of PGs, small in most runs, so that what is rare elsewhere is common.
fn pg_config(rng: &mut Rng, bug: Option<Bug>) -> PgConfig {
    let mut cfg = PgConfig::default();
    cfg.log_keep = *rng.pick(&[1, 5, 40, 500]).unwrap_or(&40);
    cfg.log_max = cfg.log_keep + rng.pick(&[0, 10, 1000]).unwrap_or(&0);
    cfg.log_slack = rng.below(5) as usize;
    cfg.contexts = *rng.pick(&[2, 64]).unwrap_or(&2);
    cfg.push_bytes = *rng.pick(&[100, 4096, 4 << 20]).unwrap_or(&4096);
    cfg.push_window = rng.between(1, 8) as usize;
    // Small, so that it happens.
    cfg.primary_lag = 3 * cfg.push_window as u64;
    cfg.scan_objects = rng.between(1, 16) as usize;
    cfg.remove_batch = rng.between(1, 64) as usize;
    cfg.retry_ms = *rng.pick(&[300, 3000]).unwrap_or(&300);
    if let Some(Bug::Pg(bug)) = bug {
        cfg.bug = Some(bug);
    }
    cfg
}
