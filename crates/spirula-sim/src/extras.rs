//! Trouble that only some seeds have: erasure-coded pools and rarer faults.
//!
//! A seed's extras, and when they strike, are drawn from a stream of their own, so that one more
//! kind changes nothing in the seeds that lack it.

use crate::client::{Client, Pace};
use crate::commander::Commander;
use crate::fuzzer::{Fuzzer, is_of_the_story};
use crate::manager::Manager;
use crate::osd::OsdActor;
use crate::rng::Rng;
use crate::scenario::{FSID, Scene};
use crate::watching::Watching;
use crate::world::ActorId;
use crate::wrong::{Sign, Wrong};
use spirula_encoding::UTime;
use spirula_maps::osdmap::flag as pool_flag;
use spirula_maps::{OsdMap, PgState};
use spirula_types::PgId;
use std::collections::{BTreeMap, BTreeSet};

/// A kind of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extra {
    /// An erasure-coded pool beside the others.
    Erasure,
    /// The cluster falls apart into two sides, each with OSDs and clients; what the monitors lack
    /// may be marked down at once.
    Sides,
    /// A connection ends for one side long before the other, whose bytes still come.
    HalfOpen,
    /// A disk answers late.
    Slow,
    /// Wall clocks jump.
    Clocks,
    /// PGs are scrubbed while everything else happens.
    Scrub,
    /// Data of one OSD rots, or cannot be read, while all else is whole.
    Rot,
    /// Disks are swapped for empty ones, while all else is whole.
    Swap,
    /// More OSDs join.
    Grow,
    /// Disks are small and clients write much; in peace they delete it.
    Full,
    /// The monitor that leads is cut off from the other monitors, while commands still reach it.
    Leader,
    /// All clients but the first only read, and are cut off together with an OSD, which is marked
    /// down.
    Readers,
    /// Objects are made copies of each other.
    Copies,
    /// Two OSDs do not hear each other, while everybody else hears both.
    Pairs,
    /// Clients lose their connections, and come again.
    Clients,
    /// Reads that wait for the disk take long, and writes overtake them.
    Overtaken,
    /// OSDs are declared lost, and come back.
    Lost,
    /// Flags hold the map back: nodown, noup and others.
    Flags,
    /// Pools are made and deleted.
    Pools,
    /// The administrator changes min_size, weights, placements and the tree of hosts.
    Shape,
    /// Machines are suspended, and wall clocks may stand still.
    Suspend,
    /// Machines are loaded, so that event loops run late.
    Load,
    /// A disk says that it has flushed, and has not; its power fails while all else is whole.
    Lies,
    /// OSDs forget the sessions that others have with them, though both live.
    Sessions,
    /// Connections between OSDs are reset within any of the bytes that are under way.
    Resets,
    /// All clients but the first only read, and wake up with an OSD that was suspended while others
    /// took its place.
    Asleep,
    /// A client sends the monitors whatever bytes and arguments there are.
    Fuzz,
    /// Others take the room of the file systems on which OSDs' disks lie, and give it back.
    Room,
    /// Clients watch objects and notify those who do.
    Watches,
    /// Clients make snapshots, read at them, roll objects back to them, and remove them. Not where
    /// there is no room for them.
    Snaps,
    /// One client has many requests under way: it begins them by the dozen, also on one object.
    Many,
}

impl Extra {
    /// All of them, by the name that `--faults` takes, and one in how many of the seeds with extras
    /// has it (0: none, only who asks for it by name, as planted bugs do). Snapshots and watches
    /// are nothing rare: they are in one of so many of all seeds.
    pub const ALL: [(&'static str, Self, u64); 31] = [
        ("erasure", Self::Erasure, 2),
        ("sides", Self::Sides, 2),
        ("half-open", Self::HalfOpen, 2),
        ("slow", Self::Slow, 3),
        ("clocks", Self::Clocks, 3),
        ("scrub", Self::Scrub, 3),
        ("rot", Self::Rot, 3),
        ("swap", Self::Swap, 3),
        ("grow", Self::Grow, 4),
        ("full", Self::Full, 5),
        ("leader", Self::Leader, 3),
        ("readers", Self::Readers, 3),
        ("copies", Self::Copies, 3),
        ("pairs", Self::Pairs, 4),
        ("clients", Self::Clients, 4),
        ("overtaken", Self::Overtaken, 4),
        ("lost", Self::Lost, 4),
        ("flags", Self::Flags, 4),
        ("pools", Self::Pools, 4),
        ("shape", Self::Shape, 4),
        ("suspend", Self::Suspend, 4),
        ("lies", Self::Lies, 5),
        ("sessions", Self::Sessions, 4),
        ("resets", Self::Resets, 4),
        ("asleep", Self::Asleep, 4),
        ("fuzz", Self::Fuzz, 1),
        ("room", Self::Room, 4),
        ("load", Self::Load, 4),
        ("many", Self::Many, 4),
        ("snaps", Self::Snaps, 4),
        ("watches", Self::Watches, 4),
    ];

    /// What happens at least once in many seeds that have it, or it did not come about.
    pub fn shows(self) -> &'static [&'static str] {
        match self {
            Self::Erasure => &["pg_num of a coded pool changed"],
            Self::Sides => &["two sides"],
            Self::HalfOpen => &["connection half open"],
            Self::Slow => &["disk slow"],
            Self::Clocks => &["clock jumped"],
            Self::Scrub => &["scrub ordered"],
            Self::Rot => &["block rotten"],
            Self::Swap => &["disk swapped", "OSD purged"],
            Self::Grow => &["OSD added"],
            Self::Full => &["pools full"],
            Self::Leader => &["leader cut off"],
            Self::Readers => &["readers cut off", "firewall refuses", "OSD stops unanswered"],
            Self::Copies => &["objects copied"],
            Self::Pairs => &[
                "pair cut",
                "pair cut one way",
                "pair cut in the public network",
                "pair cut in the cluster network",
                "pair cut for long",
                "pair cut alone",
            ],
            Self::Clients => &["client reconnects", "read given up"],
            Self::Overtaken => &["client reconnects", "read given up"],
            Self::Lost => &["OSD declared lost"],
            Self::Flags => &["nodown set", "noup set"],
            Self::Pools => &["pool made", "pool deleted"],
            Self::Shape => {
                &["min_size changed", "placement ordered", "CRUSH weight changed", "host moved"]
            }
            Self::Suspend => {
                &["machine suspended", "wall clock stood still", "all clocks stood still"]
            }
            Self::Load => &["machine loaded"],
            Self::Many => &["many requests under way"],
            Self::Lies => &["power failed at who lies"],
            Self::Sessions => &["session lost", "session resumed", "session overfull"],
            Self::Asleep => &["OSD asleep", "all clocks stood still"],
            Self::Fuzz => &[
                "odd command refused",
                "odd command done",
                "fuzzer thrown out",
                "odd operation refused",
                "odd operation done",
            ],
            Self::Room => &["room taken", "PG waits for room"],
            Self::Resets => &["stream reset", "session resumed"],
            Self::Watches => &[
                "watch had",
                "watch lost",
                "notification complete",
                "notification late",
                "notified again",
            ],
            Self::Snaps => {
                &["snapshot made", "snapshot removed", "read at a snapshot", "rolled back"]
            }
        }
    }
}

/// Which of them a seed has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extras(u32);

impl Extras {
    /// Those of these names, apart from each other by commas.
    ///
    /// # Errors
    /// The name that is none.
    pub fn named(names: &str) -> Result<Self, String> {
        names.split(',').filter(|n| !n.is_empty()).try_fold(Self(0), |all, name| {
            match Extra::ALL.iter().find(|(n, ..)| *n == name) {
                Some((_, e, _)) => Ok(all.and(*e)),
                None => {
                    let known: Vec<&str> = Extra::ALL.iter().map(|(n, ..)| *n).collect();
                    Err(format!("there are no faults '{name}'; there are {}", known.join(", ")))
                }
            }
        })
    }

    /// All of these.
    pub fn these(all: &[Extra]) -> Self {
        all.iter().fold(Self(0), |sum, e| sum.and(*e))
    }

    /// Those of a seed: every third has some.
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0xe87a);
        // A stream of their own: they are in seeds without any other trouble, too.
        let mut snaps = Rng::new(seed ^ 0x54a9);
        let draw = |all: Self, rng: &mut Rng, (_, e, n): &(&str, Extra, u64)| {
            if *n > 0 && rng.one_in(*n) { all.and(*e) } else { all }
        };
        let (common, rare): (Vec<_>, Vec<_>) =
            Extra::ALL.iter().partition(|(_, e, _)| matches!(e, Extra::Snaps | Extra::Watches));
        let all = common.into_iter().fold(Self(0), |all, kind| draw(all, &mut snaps, kind));
        if seed % 3 != 2 {
            return all;
        }
        rare.into_iter().fold(all, |all, kind| draw(all, &mut rng, kind))
    }

    /// This one, too.
    #[must_use]
    pub fn and(self, e: Extra) -> Self {
        Self(self.0 | 1 << e as u32)
    }

    /// Is it one of them?
    pub fn has(self, e: Extra) -> bool {
        self.0 & 1 << e as u32 != 0
    }

    /// Is there any?
    pub fn any(self) -> bool {
        self.0 != 0
    }
}

/// An erasure-coded pool of a seed.
#[derive(Clone, Copy, Debug)]
pub struct Code {
    pub k: u64,
    pub m: u64,
    /// Clients may write parts of objects.
    pub overwrites: bool,
}

impl Code {
    /// One, and how many OSDs it asks for at least.
    pub fn draw(rng: &mut Rng) -> Self {
        let (k, m) =
            *rng.pick(&[(2, 1), (2, 1), (2, 2), (2, 2), (3, 2), (4, 2)]).unwrap_or(&(2, 1));
        Self { k, m, overwrites: !rng.one_in(4) }
    }
}

/// Time for answers to orders in peace.
const ORDERS_US: u64 = 60_000_000;
/// Time for scrubs in peace.
const SCRUBS_US: u64 = 120_000_000;
/// Disks swapped at most.
const SWAPS_MAX: u8 = 3;
/// A disk whose writes take so much longer at most, microseconds.
const SLOW_US: u64 = 1_500_000;

impl Scene {
    /// What the extras need before anything begins.
    pub fn prepare_extras(&mut self, code: Option<Code>) {
        self.prepare_troubles();
        if [Extra::Scrub, Extra::Rot, Extra::Full, Extra::Lies, Extra::Room]
            .into_iter()
            .any(|e| self.extras.has(e))
        {
            let manager = Manager::new(self.mons.clone(), self.extra_rng.fork());
            self.manager = Some(self.world.add(Box::new(manager), 250_000));
        }
        if self.extras.has(Extra::Fuzz) {
            let fuzzer = Fuzzer::new(self.mons.clone(), FSID, self.extra_rng.fork());
            self.fuzzer = Some(self.world.add(Box::new(fuzzer), 200_000));
            for c in self.clients.clone() {
                self.world.with(c, |c: &mut Client| c.odd = true);
            }
        }
        if self.extras.has(Extra::Watches) {
            let mut rng = Rng::new(self.extra_rng.bits());
            for c in self.clients.clone() {
                let watching = Watching::new(self.book.clone(), rng.fork());
                self.world.with(c, |c: &mut Client| c.watching = Some(watching));
            }
        }
        let Some(Code { k, m, overwrites }) = code else { return };
        // See `Scene::prepare_troubles`.
        let class = if self.extras.has(Extra::Lies) { r#", "crush-device-class=ssd""# } else { "" };
        let pg_num = self.extra_rng.pick(&[1, 2, 4]).copied().unwrap_or(2);
        self.orders_in_turn([
            format!(
                r#"{{"prefix": "osd erasure-code-profile set", "name": "code", "profile": ["k={k}", "m={m}", "crush-failure-domain=host", "stripe_unit=4096"{class}]}}"#
            ),
            format!(
                r#"{{"prefix": "osd pool create", "pool": "coded", "pg_num": {pg_num}, "pool_type": "erasure", "erasure_code_profile": "code"}}"#
            ),
        ]);
        if self.extras.has(Extra::Rot) && m == 1 {
            // See `Scene::rot`.
            let set = format!(
                r#"{{"prefix": "osd pool set", "pool": "coded", "var": "min_size", "val": "{}"}}"#,
                k + 1
            );
            self.orders_in_turn([set]);
        }
        if overwrites {
            let set = r#"{"prefix": "osd pool set", "pool": "coded", "var": "allow_ec_overwrites", "val": "true"}"#;
            self.orders_in_turn([set.to_owned()]);
        }
    }

    /// Gives the monitors orders, each after the answer to the one before.
    pub fn orders_in_turn(&mut self, orders: impl IntoIterator<Item = String>) {
        let Some(c) = self.commanders.first().copied() else { return };
        self.world.with(c, |c: &mut Commander| c.orders.extend(orders));
    }

    /// Ends what is over of the extras.
    pub fn end_due_extras(&mut self) {
        let now = self.world.now;
        for (id, (_, usual)) in
            self.slowed.extract_if(.., |_, (until, _)| *until <= now).collect::<Vec<_>>()
        {
            self.world.with(id, |o: &mut OsdActor| o.disk_us = usual);
        }
        self.new_disks_start();
        self.give_room_back(now);
    }

    /// Ends what is over of the extras, and perhaps begins something.
    pub fn extra_fault(&mut self) {
        self.end_due_extras();
        if self.troubles.careful {
            return;
        }
        // All is whole only seldom.
        if self.extras.has(Extra::Swap) && self.disks_made < SWAPS_MAX {
            self.swap_disk();
        }
        if self.extras.has(Extra::Rot) {
            self.rot();
        }
        if self.extras.has(Extra::Lies) {
            self.catch_the_liar();
        }
        if self.extras.has(Extra::Room) {
            self.press_who_waits();
        }
        if self.extras.has(Extra::Lost) && self.extra_rng.one_in(2) {
            self.declare_lost();
        }
        if self.troubles.careful {
            return;
        }
        let now_and_then = |e: &Extra| self.extras.has(*e) && *e != Extra::Fuzz;
        let here: Vec<Extra> = Extra::ALL.iter().map(|(_, e, _)| *e).filter(now_and_then).collect();
        // Each strikes once before any strikes again: a seed with many has few turns for each.
        let rest: Vec<Extra> = here.iter().copied().filter(|e| !self.tried.has(*e)).collect();
        let Some(what) = self.extra_rng.pick(if rest.is_empty() { &here } else { &rest }).copied()
        else {
            return;
        };
        self.tried = self.tried.and(what);
        match what {
            Extra::Erasure => self.grow_coded(),
            Extra::Sides => self.two_sides(),
            Extra::HalfOpen => {
                for _ in 0..self.extra_rng.between(1, 4) {
                    self.probe("connection half open");
                    let late = self.extra_rng.between(100_000, 5_000_000);
                    self.world.half_open(late);
                }
            }
            Extra::Slow => self.slow_disk(),
            Extra::Clocks => self.clock_jumps(),
            Extra::Scrub => {
                let how = self
                    .extra_rng
                    .pick(&["scrub", "deep-scrub", "deep-scrub", "repair"])
                    .copied()
                    .unwrap_or("scrub");
                self.probe("scrub ordered");
                self.tell_manager(format!(r#"{{"prefix": "osd {how}", "who": "all"}}"#));
            }
            Extra::Grow => self.add_osd(),
            Extra::Leader => self.cut_leader(),
            Extra::Readers => self.cut_readers(),
            Extra::Pairs => self.cut_pair(),
            Extra::Clients | Extra::Overtaken => self.break_clients(),
            Extra::Flags => self.set_flag(),
            Extra::Pools => self.make_or_delete_pool(),
            Extra::Shape => self.reshape(),
            Extra::Suspend => self.suspend(),
            Extra::Asleep => self.sleep(),
            Extra::Load => self.load(),
            Extra::Sessions => self.lose_sessions(),
            Extra::Room if self.short.is_empty() => self.take_room(),
            Extra::Resets => {
                let most = self.extra_rng.between(1, 10);
                for _ in 0..self.world.reset_streams(most) {
                    self.probe("stream reset");
                }
            }
            Extra::Rot
            | Extra::Swap
            | Extra::Full
            | Extra::Copies
            | Extra::Lost
            | Extra::Lies
            | Extra::Fuzz
            | Extra::Room
            | Extra::Snaps
            | Extra::Watches
            | Extra::Many => {}
        }
    }

    /// The fuzzer says nothing more, and what it made goes.
    fn end_fuzz(&mut self) -> Result<(), Wrong> {
        let Some(fuzzer) = self.fuzzer else { return Ok(()) };
        self.world.with(fuzzer, |f: &mut Fuzzer| f.quiet = true);
        // What it said last is answered, too.
        self.run_for(3_000_000)?;
        let said = self.world.with(fuzzer, |f: &mut Fuzzer| (f.answered, f.thrown_out));
        let ([refused, done], thrown_out) = said.unwrap_or_default();
        let mut odd = [0; 2];
        for c in self.clients.clone() {
            let answered = self.world.with(c, |c: &mut Client| c.odd_answered).unwrap_or_default();
            odd = [odd[0] + answered[0], odd[1] + answered[1]];
        }
        for (name, n) in [
            ("odd command refused", refused),
            ("odd command done", done),
            ("fuzzer thrown out", thrown_out),
            ("odd operation refused", odd[0]),
            ("odd operation done", odd[1]),
        ] {
            if n > 0 {
                *self.probes.entry(name).or_insert(0) += n;
            }
        }
        let Some(map) = self.map() else { return Ok(()) };
        for name in map.pool_names.values().filter(|n| !is_of_the_story(n)) {
            let set = serde_json::json!({"prefix": "osd pool set", "pool": name, "var": "nodelete", "val": "0"});
            let delete = serde_json::json!({
                "prefix": "osd pool delete", "pool": name, "pool2": name, "yes_i_really_really_mean_it": true,
            });
            self.orders_in_turn([set.to_string(), delete.to_string()]);
        }
        Ok(())
    }

    /// What began ends with peace.
    pub fn end_extras(&mut self) -> Result<(), Wrong> {
        self.end_fuzz()?;
        if self.extras.has(Extra::Full) {
            let was_full =
                |s: &mut Self, c| s.world.with(c, |c: &mut Client| c.was_full).unwrap_or(false);
            if self.clients.clone().into_iter().any(|c| was_full(self, c)) {
                self.probe("pools full");
            }
            let all = self.all_objects();
            let first = self.clients.first().copied();
            first.and_then(|c| self.world.with(c, |c: &mut Client| c.purge = all));
        }
        let counts = |c: &mut Client| (c.guarded, c.given_up);
        for (guarded, given_up) in self
            .clients
            .clone()
            .into_iter()
            .filter_map(|c| self.world.with(c, counts))
            .collect::<Vec<_>>()
        {
            for (name, n) in [
                ("guard held", guarded[0]),
                ("guard failed", guarded[1]),
                ("read given up", given_up),
            ] {
                if n > 0 {
                    *self.probes.entry(name).or_insert(0) += n;
                }
            }
        }
        for o in self.osds.clone() {
            let sessions = self.world.with(o, |o: &mut OsdActor| o.sessions).unwrap_or_default();
            let fell = self.world.with(o, |o: &mut OsdActor| o.fallen_back).unwrap_or_default();
            let [lost, resumed, overfull] = sessions;
            let all = [
                ("session lost", lost),
                ("session resumed", resumed),
                ("session overfull", overfull),
            ];
            for (name, n) in all.into_iter().chain([("PG fell back", fell)]) {
                if n > 0 {
                    *self.probes.entry(name).or_insert(0) += n;
                }
            }
        }
        let copied = |s: &mut Self, c| s.world.with(c, |c: &mut Client| c.copied).unwrap_or(0);
        if self.clients.clone().into_iter().any(|c| copied(self, c) > 0) {
            self.probe("objects copied");
        }
        for (i, name) in Extra::Snaps.shows().iter().enumerate() {
            let done = |c: &mut Client| c.of_snaps.get(i).copied().unwrap_or(0);
            let all = self
                .clients
                .clone()
                .into_iter()
                .map(|c| self.world.with(c, done).unwrap_or(0))
                .sum::<u64>();
            if all > 0 {
                *self.probes.entry(name).or_insert(0) += all;
            }
        }
        for (i, name) in Extra::Watches.shows().iter().enumerate() {
            let done = |c: &mut Client| {
                c.watching.as_ref().and_then(|w| w.counts.get(i)).copied().unwrap_or(0)
            };
            let all = self
                .clients
                .clone()
                .into_iter()
                .map(|c| self.world.with(c, done).unwrap_or(0))
                .sum::<u64>();
            if all > 0 {
                *self.probes.entry(name).or_insert(0) += all;
            }
        }
        let many =
            |s: &mut Self, c| s.world.with(c, |c: &mut Client| c.most >= BURST).unwrap_or(false);
        if self.clients.clone().into_iter().any(|c| many(self, c)) {
            self.probe("many requests under way");
        }
        let told = |s: &mut Self, c| s.world.with(c, |c: &mut Client| c.backoffs).unwrap_or(0);
        if self.clients.clone().into_iter().any(|c| told(self, c) > 0) {
            self.probe("clients backed off");
        }
        let until = self.world.now + ORDERS_US;
        while self.coming.is_some() {
            if self.world.now > until {
                return Err(Sign::Stuck.of("orders are not answered in peace"));
            }
            self.run_for(100_000)?;
            self.new_disks_start();
        }
        self.give_room_back(u64::MAX);
        for (id, (_, usual)) in std::mem::take(&mut self.slowed) {
            self.world.with(id, |o: &mut OsdActor| o.disk_us = usual);
        }
        self.end_troubles();
        Ok(())
    }

    /// The administrator gives the manager a command.
    pub fn tell_manager(&mut self, order: String) {
        if let Some(m) = self.manager {
            self.world.with(m, |m: &mut Manager| m.orders.push_back(order));
        }
    }

    /// No scrub may have found what was not done.
    pub fn look_at_scrubs(&mut self) -> Result<(), Wrong> {
        if self.rotten.is_some() || self.manager.is_none() {
            return Ok(());
        }
        self.inconsistent()
            .map_or(Ok(()), |why| Err(Sign::Scrub.of(format!("nothing was damaged, yet {why}"))))
    }

    /// In peace everything is scrubbed and what is bad is repaired, as often as it takes.
    pub fn scrub_all(&mut self) -> Result<(), Wrong> {
        if self.manager.is_none() {
            return Ok(());
        }
        let before = self.scrubbed_at();
        let until = self.world.now + SCRUBS_US;
        loop {
            self.tell_manager(r#"{"prefix": "osd repair", "who": "all"}"#.to_owned());
            self.run_for(10_000_000)?;
            self.look_at_scrubs()?;
            self.until_well_but(PgState::INCONSISTENT)?;
            let after = self.scrubbed_at();
            // Those that are merged away meanwhile need none.
            let all = after.iter().all(|(pg, at)| before.get(pg) != Some(at));
            if all && !after.is_empty() && self.inconsistent().is_none() {
                return Ok(());
            }
            if self.world.now > until {
                let found = self.inconsistent();
                return Err(Sign::Scrub
                    .of(format!("not scrubbed in peace: {before:?}, {after:?}, {found:?}")));
            }
        }
    }

    /// Lets time pass.
    pub fn run_for(&mut self, us: u64) -> Result<(), Wrong> {
        let until = self.world.now + us;
        while self.world.step(until) {
            self.look()?;
            self.start_due();
        }
        Ok(())
    }

    /// A PG in which a scrub has found something.
    fn inconsistent(&mut self) -> Option<String> {
        let bad = |o: &mut OsdActor| {
            let p = o.osd()?.pgs().find(|p| p.state().0.has(PgState::INCONSISTENT))?;
            Some(format!("osd.{} finds pg {} inconsistent: {}", o.id, p.id(), p.query()))
        };
        self.osds.clone().into_iter().find_map(|o| self.world.with(o, bad).flatten())
    }

    /// When each PG was scrubbed deeply, as its primary has it.
    fn scrubbed_at(&mut self) -> BTreeMap<PgId, UTime> {
        let mut all = BTreeMap::new();
        for o in self.osds.clone() {
            self.world.with(o, |o: &mut OsdActor| {
                let led = o.osd().into_iter().flat_map(|o| o.pgs()).filter(|p| p.is_primary());
                all.extend(led.filter_map(|p| Some((p.id().pg, p.scrub_stamps()?.1))));
            });
        }
        all
    }

    fn grow_coded(&mut self) {
        if self.extra_rng.one_in(4) {
            self.probe("pg_num of a coded pool changed");
            let val = self.extra_rng.pick(&[4, 6, 8]).copied().unwrap_or(4);
            self.order(format!(
                r#"{{"prefix": "osd pool set", "pool": "coded", "var": "pg_num", "val": "{val}"}}"#
            ));
        }
    }

    /// Some OSDs with some clients on one side, everything else on the other.
    fn two_sides(&mut self) {
        if self.world.now < self.healed_at {
            return;
        }
        self.probe("two sides");
        let mut rng = self.extra_rng.fork();
        let mut apart: BTreeSet<ActorId> = BTreeSet::new();
        for _ in 0..rng.between(1, 2) {
            apart.extend(rng.pick(&self.osds));
        }
        let osds: Vec<ActorId> = apart.iter().copied().collect();
        apart.extend(self.clients.iter().filter(|_| rng.one_in(2)));
        apart.extend(self.mons.iter().filter(|_| rng.one_in(6)));
        self.part(&apart.into_iter().collect::<Vec<_>>(), None);
        self.healed_at = self.world.now + rng.between(500_000, 12_000_000);
        // Whoever is not heard of may be marked down before the others miss it.
        if rng.one_in(2) {
            for o in osds.into_iter().filter(|_| rng.one_in(2)) {
                let id = self.osd_id(o);
                if self.told_down.insert(id) {
                    self.probe("OSD marked down by order");
                    self.order(format!(r#"{{"prefix": "osd down", "ids": ["{id}"]}}"#));
                }
            }
        }
    }

    /// The monitor that leads hears no other one for some time, nor is it heard; everyone else
    /// hears it.
    fn cut_leader(&mut self) {
        let Some(leader) = self.mons.clone().into_iter().find(|m| self.leads(*m)) else { return };
        if self.world.now < self.healed_at {
            return;
        }
        self.probe("leader cut off");
        for other in self.mons.clone().into_iter().filter(|m| *m != leader) {
            self.world.cut(leader, other);
            self.world.cut(other, leader);
        }
        self.healed_at = self.world.now + self.extra_rng.between(1_500_000, 4_000_000);
    }

    /// An OSD and those who only read know of nothing else for some time, in which others take the
    /// OSD's place.
    fn cut_readers(&mut self) {
        if self.world.now < self.healed_at {
            return;
        }
        let Some(osd) = self.extra_rng.pick(&self.osds).copied() else { return };
        self.probe("readers cut off");
        let apart: Vec<ActorId> = self.clients.iter().skip(1).copied().chain([osd]).collect();
        let how = self.extra_rng.below(3);
        let stops = how == 0 && !self.lies(osd);
        self.part(&apart, stops.then_some(osd));
        self.healed_at = self.world.now + self.extra_rng.between(4_000_000, 16_000_000);
        if stops {
            self.probe("OSD stops unanswered");
            self.world.with(osd, |o: &mut OsdActor| o.stop());
            self.down.insert(osd, self.healed_at);
            return;
        }
        if how == 1 {
            self.probe("firewall refuses");
            self.world.rejects.insert(osd);
            return;
        }
        let id = self.osd_id(osd);
        self.order(format!(r#"{{"prefix": "osd down", "ids": ["{id}"]}}"#));
    }

    /// These and all others do not hear each other, but for what `speaks`, one of these, says to
    /// monitors.
    pub fn part(&mut self, apart: &[ActorId], speaks: Option<ActorId>) {
        let all = [&self.mons, &self.commanders, &self.osds, &self.clients].into_iter().flatten();
        let rest: Vec<ActorId> = all.copied().filter(|a| !apart.contains(a)).collect();
        for a in apart {
            for b in &rest {
                if speaks != Some(*a) || !self.mons.contains(b) {
                    self.world.cut(*a, *b);
                }
                self.world.cut(*b, *a);
            }
        }
    }

    fn slow_disk(&mut self) {
        let Some(target) = self.extra_rng.pick(&self.osds).copied() else { return };
        if self.slowed.contains_key(&target) {
            return;
        }
        self.probe("disk slow");
        let until = self.world.now + self.extra_rng.between(500_000, 10_000_000);
        let usual =
            self.world.with(target, |o: &mut OsdActor| std::mem::replace(&mut o.disk_us, SLOW_US));
        self.slowed.insert(target, (until, usual.unwrap_or(2000)));
    }

    fn clock_jumps(&mut self) {
        let all: Vec<ActorId> = self.osds.iter().chain(&self.mons).copied().collect();
        let Some(target) = self.extra_rng.pick(&all).copied() else { return };
        self.probe("clock jumped");
        let most = self.extra_rng.pick(&[2, 60, 3600]).copied().unwrap_or(2) * 1_000_000;
        let by = self.extra_rng.between(0, 2 * most) as i64 - most as i64;
        self.world.jump_clock(target, by);
    }
}

/// How clients fill small disks.
pub fn filling(pace: Pace) -> Pace {
    Pace {
        objects: 60,
        under_way: pace.under_way.min(2),
        idle: 1,
        changes: 80,
        cells: 8000,
        large: 2,
        ..pace
    }
}

/// How clients write much, so that much is under way when room goes.
pub fn busy(pace: Pace) -> Pace {
    Pace {
        under_way: pace.under_way + 3,
        idle: 1,
        changes: 80,
        cells: pace.cells.max(1000),
        large: 4,
        ..pace
    }
}

/// Operations that a client with many begins at once.
const BURST: usize = 40;

/// How one client has many requests under way. Where there is no room that is as it is: nobody gets
/// an answer.
pub fn many(pace: Pace) -> Pace {
    Pace { under_way: 5 * BURST, burst: BURST, ..pace }
}

/// How clients go on reading what they reach while they wait for what they do not.
pub fn reading(pace: &Pace) -> Pace {
    Pace { changes: 0, under_way: 400, idle: 1, copies: 0, snaps: false, ..pace.clone() }
}

/// The stripe, in bytes, in whole numbers of which a pool's objects must be written; 0: any number
/// will do.
pub fn appends_only(map: &OsdMap, pool: i64) -> u64 {
    let p = map.pool(pool).filter(|p| p.is_erasure() && !p.has_flag(pool_flag::EC_OVERWRITES));
    p.map_or(0, |p| u64::from(p.stripe_width))
}
