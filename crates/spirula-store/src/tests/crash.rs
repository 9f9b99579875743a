//! Crashes: a workload is recorded, then for points in its event order the devices are
//! put into states they might be in after a power cut there. After each: the store opens,
//! is sound, holds every acknowledged transaction, is in the state of some prefix, takes
//! new work and opens again.
//!
//! Unflushed writes persist in any subset, on each device by itself, torn at 512 bytes; a
//! durable one may be missing until it has returned. Workloads are all of one and two operations of
//! an alphabet (module [`super::alphabet`]), and long random ones.
//! In CI each short one runs in one of 24 settings; the soak goes on through the others.

use super::alphabet::{self, Base};
use super::model::{Model, random_txn};
use super::sim::{Disk, Event, Image, Rng, World};
use super::{create, create_single, open, open_stepped, sound, tiny};
use crate::{Store, StoreOptions};
use spirula_types::transaction::{ObjectOp, Transaction};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const SECTOR: usize = 512;
/// Of more loose writes than this, not every prefix is tried.
const MANY: usize = 4;

/// What of a write has arrived.
#[derive(Clone, Copy)]
enum Part {
    Nothing,
    Whole,
    /// Some of its sectors, as this number says.
    Torn(u64),
}

impl Part {
    fn put(self, disk: &mut Disk, offset: usize, data: &[u8]) {
        match self {
            Self::Nothing => {}
            Self::Whole => disk.write(data, offset).unwrap(),
            Self::Torn(how) => {
                let mut rng = Rng(how);
                let sectors = data.len().div_ceil(SECTOR) as u64;
                let (mode, at) = (rng.below(4), rng.below(sectors));
                for (i, sector) in data.chunks(SECTOR).enumerate() {
                    let keep = match mode {
                        // A beginning, an end, all but one, any.
                        0 => (i as u64) < at,
                        1 => (i as u64) >= at,
                        2 => i as u64 != at,
                        _ => rng.below(2) == 0,
                    };
                    if keep {
                        disk.write(sector, offset + i * SECTOR).unwrap();
                    }
                }
            }
        }
    }
}

/// Device states along a recording.
struct Player<'a> {
    events: &'a [Event],
    at: usize,
    /// What is surely there.
    durable: Image,
    /// Writes that may have arrived or not.
    loose: Vec<usize>,
    acked: u64,
}

/// What a power cut after these events leaves for sure: nothing of what was not made durable.
pub(crate) fn durable_only(start: Image, events: &[Event]) -> Image {
    let mut player = Player::new(start, events, 0);
    player.advance(events.len());
    player.durable
}

impl<'a> Player<'a> {
    fn new(start: Image, events: &'a [Event], acked: u64) -> Self {
        Self { events, at: 0, durable: start, loose: Vec::new(), acked }
    }

    /// Writes that `which` says are durable now.
    fn settle(&mut self, which: impl Fn(usize, &Event) -> bool) {
        let (gone, left) = self.loose.iter().partition(|i| which(**i, &self.events[**i]));
        self.loose = left;
        let gone: Vec<usize> = gone;
        for i in gone {
            if let Event::Write { dev, offset, data, .. } = &self.events[i] {
                Part::Whole.put(&mut self.durable.devices[*dev], *offset, data);
            }
        }
    }

    fn advance(&mut self, to: usize) {
        while self.at < to {
            match &self.events[self.at] {
                Event::Write { .. } => self.loose.push(self.at),
                Event::Done(number) => self.settle(|i, _| i == *number),
                Event::Flush { dev, since } => {
                    let of = |e: &Event| matches!(e, Event::Write { dev: d, durable: false, .. } if d == dev);
                    self.settle(|i, e| i < *since && of(e));
                }
                Event::Ack(seq) => self.acked = self.acked.max(*seq),
            }
            self.at += 1;
        }
    }

    /// The state in which these arrived.
    fn state(&self, parts: &[(usize, Part)]) -> Image {
        let mut image = self.durable.clone();
        for (event, part) in parts {
            if let Event::Write { dev, offset, data, .. } = &self.events[*event] {
                part.put(&mut image.devices[*dev], *offset, data);
            }
        }
        image
    }

    /// States in which a crash here might leave the devices. Thorough: all prefixes of what
    /// is loose (some, where it is much), a subset, and one that is torn; else all of it,
    /// one of the others, and now and then nothing.
    fn states(&self, rng: &mut Rng, thorough: bool) -> Vec<Image> {
        let loose = &self.loose;
        let whole = |n: usize| loose.iter().take(n).map(|i| (*i, Part::Whole)).collect::<Vec<_>>();
        // One that is late, or never comes: what was written after it is there.
        let late = |rng: &mut Rng| {
            let late = rng.below(loose.len() as u64 - 1) as usize;
            let others = loose
                .iter()
                .enumerate()
                .filter(|(n, _)| *n != late)
                .map(|(_, i)| (*i, Part::Whole));
            self.state(&others.collect::<Vec<_>>())
        };
        if !thorough {
            let all = self.state(&whole(loose.len()));
            if loose.is_empty() {
                return vec![all];
            }
            let n = rng.below(loose.len() as u64) as usize;
            let mut parts = whole(n);
            match rng.below(3) {
                0 => parts.push((loose[n], Part::Torn(rng.next()))),
                1 => parts.extend(loose[n + 1..].iter().map(|i| (*i, Part::Whole))),
                _ => {}
            }
            let mut out = vec![all, self.state(&parts)];
            if rng.below(2) == 0 {
                out.push(self.state(&[]));
            }
            if loose.len() > 1 {
                out.push(late(rng));
            }
            return out;
        }
        let all = loose.len() <= MANY;
        let mut out: Vec<_> = (0..=loose.len())
            .filter(|n| all || *n == 0 || *n == loose.len() || rng.below(loose.len() as u64) == 0)
            .map(|n| self.state(&whole(n)))
            .collect();
        if loose.is_empty() {
            return out;
        }
        if loose.len() > 1 {
            out.push(late(rng));
            let some: Vec<_> = loose
                .iter()
                .map(|i| (*i, [Part::Nothing, Part::Whole][rng.below(2) as usize]))
                .collect();
            out.push(self.state(&some));
        }
        // The one under way is the likeliest to be torn.
        let n = if rng.below(2) == 0 {
            loose.len() - 1
        } else {
            rng.below(loose.len() as u64) as usize
        };
        let mut torn = whole(n);
        torn.push((loose[n], Part::Torn(rng.next())));
        out.push(self.state(&torn));
        out
    }
}

/// How closely to look.
struct Depth {
    /// See [`Player::states`].
    thorough: bool,
    /// Every crash point (1), or one of about half as many.
    step: u64,
    /// One state in so many crashes once more, at every point while it recovers.
    again: u64,
}

/// How many states were tried, and how many more came that were the same as one before.
#[derive(Default)]
pub(crate) struct Tally {
    pub states: AtomicU64,
    pub same: AtomicU64,
}

impl Tally {
    pub fn states(&self) -> u64 {
        self.states.load(Ordering::Relaxed)
    }
}

/// Tries states, each once, and counts them.
struct Trial<'a> {
    opts: &'a StoreOptions,
    /// What the store must be after each transaction; the first is `first`.
    models: &'a [Model],
    first: u64,
    what: String,
    /// Hashes of the images tried, with what was acknowledged, and whether it was the
    /// recovery that crashed.
    seen: HashSet<(u64, u64, bool)>,
    tally: &'a Tally,
}

impl Trial<'_> {
    /// Is this the first time?
    fn first(&mut self, image: &Image, acked: u64, again: bool) -> bool {
        let new = self.seen.insert((image.mark(), acked, again));
        (if new { &self.tally.states } else { &self.tally.same }).fetch_add(1, Ordering::Relaxed);
        new
    }

    /// Opens a store: without threads, but for every eighth state.
    fn open(&self, world: &World, what: &str) -> Store {
        let threads = self.tally.states().is_multiple_of(8);
        let store = if threads { open(world, self.opts) } else { open_stepped(world, self.opts) };
        store.unwrap_or_else(|e| panic!("{what}: does not open: {e}"))
    }

    /// Opens a store in this state and looks at everything.
    fn verify(&self, world: &World, acked: u64, what: &str) -> (Store, Model) {
        let mut store = self.open(world, what);
        let seq = store.last_seq();
        assert!(seq >= acked, "{what}: transaction {acked} was acknowledged, recovered only {seq}");
        let model = seq.checked_sub(self.first).and_then(|n| self.models.get(n as usize));
        let model = model.unwrap_or_else(|| panic!("{what}: recovered {seq}, which never was"));
        let what = format!("{what}, recovered {seq}, acknowledged {acked}");
        model.check(&mut store, &what);
        sound(&store, &what);
        (store, model.clone())
    }

    /// As above, then works on and opens it again.
    fn verify_and_work(&self, image: Image, acked: u64, what: &str) -> Vec<Event> {
        let world = World::from_image(image);
        world.record();
        let (mut store, mut model) = self.verify(&world, acked, what);
        let events = world.take_events();
        for (n, object) in
            model.objects.keys().take(2).cloned().collect::<Vec<_>>().iter().enumerate()
        {
            let mut t = Transaction::default();
            t.object(
                object,
                ObjectOp::Write { offset: 4000, data: super::model::pattern(7, 5000) },
            );
            if n == 1 {
                t.object(&alphabet::other(object), ObjectOp::CloneFrom(object.clone()));
            }
            // There may be no space for it.
            if store.submit(t.clone()).is_ok() {
                model.apply(&t);
            }
        }
        store.flush().unwrap();
        if acked.is_multiple_of(2) {
            store.close().unwrap();
        } else {
            drop(store);
        }
        let mut store = self.open(&world, &format!("{what}, worked on"));
        model.check(&mut store, &format!("{what}, worked on"));
        sound(&store, &format!("{what}, worked on"));
        events
    }

    /// Tries crash points of a recording from event `from` on.
    fn play(
        &mut self,
        start: Image,
        events: &[Event],
        from: usize,
        acked: u64,
        rng: &mut Rng,
        how: &Depth,
    ) {
        let mut player = Player::new(start, events, acked);
        let mut point = from;
        while point <= events.len() {
            player.advance(point);
            for image in player.states(rng, how.thorough) {
                if !self.first(&image, player.acked, false) {
                    continue;
                }
                let what = format!("{}, crash at event {point} of {}", self.what, events.len());
                let recovery = self.verify_and_work(image.clone(), player.acked, &what);
                if rng.below(how.again) > 0 {
                    continue;
                }
                let mut second = Player::new(image, &recovery, player.acked);
                for at in 0..=recovery.len() {
                    second.advance(at);
                    for image in second.states(rng, false) {
                        if self.first(&image, player.acked, true) {
                            let what = format!("{what}, and at event {at} of its recovery");
                            // Work goes on after a second crash as after the first.
                            if rng.below(3) == 0 {
                                self.verify_and_work(image, player.acked, &what);
                            } else {
                                self.verify(&World::from_image(image), player.acked, &what);
                            }
                        }
                    }
                }
            }
            point += 1 + rng.below(how.step) as usize;
        }
    }
}

/// Number of workloads of one and two operations.
const SHORT: u64 = {
    let n = alphabet::OPERATIONS.len() as u64;
    n * (n + 1)
};

/// Crash points of the short workload of that number (below [`SHORT`]) in one of
/// [`Base::VARIANTS`] settings.
fn short_workload(bases: &[Base], number: u64, variant: u64, thorough: bool, tally: &Tally) {
    let ops = alphabet::OPERATIONS;
    let n = ops.len() as u64;
    let (first, second) =
        (ops[(number % n) as usize], (number / n).checked_sub(1).map(|j| ops[j as usize]));
    let base = &bases[(variant % bases.len() as u64) as usize];
    let how = variant / bases.len() as u64;
    let name = format!(
        "{} then {}, {}, variant {how}",
        first.0,
        second.map_or("nothing", |s| s.0),
        base.name
    );
    let world = World::from_image(base.image.clone());
    let start = world.image();
    world.record();
    let mut models = vec![base.model.clone()];
    let opened;
    {
        let mut store = alphabet::open(&world, &base.opts);
        opened = world.recorded();
        for (k, op) in std::iter::once(first).chain(second).enumerate() {
            let mut model = models.last().unwrap().clone();
            let txn = (op.1)(&model, 1000 + k as u64);
            store.submit(txn.clone()).unwrap_or_else(|e| panic!("{name}: {e}"));
            model.apply(&txn);
            models.push(model);
            if how & 1 == 0 {
                store.flush().unwrap();
            }
        }
        store.flush().unwrap();
        if how & 2 == 0 {
            store.close().unwrap();
        }
    }
    let events = world.take_events();
    let (opts, first) = (&base.opts, base.seq);
    let mut trial = Trial { opts, models: &models, first, what: name, seen: HashSet::new(), tally };
    let mut rng = Rng(number * Base::VARIANTS + variant);
    // Crashes at an opening are those of recoveries; not everybody tries them all.
    let from = if thorough { 0 } else { opened };
    let depth = Depth { thorough, step: 1, again: if thorough { 12 } else { 60 } };
    trial.play(start, &events, from, base.seq, &mut rng, &depth);
}

/// The setting of a workload in a round: in [`Base::VARIANTS`] rounds it meets all.
fn variant(number: u64, round: u64) -> u64 {
    (number * 7 + round) % Base::VARIANTS
}

/// Crash points of all short workloads whose number is `part` modulo `parts`, in one setting
/// each; at most about `limit` states.
pub(crate) fn short_workloads(part: u64, parts: u64, limit: u64, tally: &Tally) {
    let bases: Vec<Base> = Base::all();
    for number in (part..SHORT).step_by(parts as usize) {
        if tally.states() < limit {
            short_workload(&bases, number, variant(number, 0), false, tally);
        }
    }
}

/// A random transaction after that state, of that number.
type Draw<'a> = &'a dyn Fn(&mut Rng, &Model, u64) -> Transaction;

/// Submits random transactions; models by transaction number are added to `models`.
fn work(
    world: &World,
    opts: &StoreOptions,
    rng: &mut Rng,
    models: &mut Vec<Model>,
    count: u64,
    draw: Draw<'_>,
) {
    let mut store = alphabet::open(world, opts);
    models.truncate(store.last_seq() as usize + 1);
    for _ in 0..count {
        let mut model = models.last().unwrap().clone();
        let txn = draw(rng, &model, models.len() as u64);
        if let Ok(seq) = store.submit(txn.clone()) {
            model.apply(&txn);
            models.push(model);
            assert_eq!(seq, models.len() as u64 - 1);
        }
        if rng.below(5) == 0 {
            store.flush().unwrap();
        }
        if rng.below(30) == 0 {
            // Idle: the last frame is marked.
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
    store.flush().unwrap();
    if rng.below(2) == 0 {
        store.close().unwrap();
    }
}

/// Sampled crash points of one long random workload.
pub(crate) fn long_workload(seed: u64, count: u64, tally: &Tally) {
    let big = seed.is_multiple_of(3);
    let mut opts = tiny();
    // Little space, so that freed blocks are soon taken again; a longer journal or a larger
    // overlay, so that this happens between two checkpoints.
    opts.size = if big {
        [3 << 20, 4 << 20][seed as usize % 2]
    } else {
        [384 << 10, 640 << 10][seed as usize % 2]
    };
    sampled(seed, opts, count, &|rng, model, number| random_txn(rng, model, number, big), tally);
}

/// The same of one in which an object, its clones and theirs come, change and go.
fn clones_workload(seed: u64, count: u64, tally: &Tally) {
    let opts = StoreOptions { size: 3 << 20, ..tiny() };
    sampled(seed, opts, count, &|rng, model, _| super::layers::family_txn(rng, model), tally);
}

fn sampled(seed: u64, mut opts: StoreOptions, count: u64, draw: Draw<'_>, tally: &Tally) {
    opts.journal_size = [256 << 10, 1 << 20][seed as usize / 2 % 2];
    opts.cache_bytes = [48 << 10, 1 << 20][seed as usize / 4 % 2];
    // Shared or separate devices: what a flush covers differs.
    let world = if (seed / 8).is_multiple_of(2) { create(&opts) } else { create_single(&opts) };
    let mut rng = Rng(seed);
    let mut models = vec![Model::default()];
    // Some history, so that the ring has been round and space reused.
    let before = rng.below(150);
    work(&world, &opts, &mut rng, &mut models, before, draw);
    let start = world.image();
    let acked = models.len() as u64 - 1;
    world.record();
    // Checkpoints that take long: the journal fills up meanwhile.
    world.set_slow(seed.is_multiple_of(2).then_some(2));
    work(&world, &opts, &mut rng, &mut models, count, draw);
    let events = world.take_events();
    let what = format!("seed {seed}");
    let mut trial =
        Trial { opts: &opts, models: &models, first: 0, what, seen: HashSet::new(), tally };
    trial.play(start, &events, 0, acked, &mut rng, &Depth { thorough: true, step: 24, again: 10 });
}

fn short(part: u64) {
    let tally = Tally::default();
    short_workloads(part, 4, u64::MAX, &tally);
    println!("{} crash states of short workloads, part {part}", tally.states());
    // How many there are depends on how threads took turns: 1,400 on a busy machine, 2,000 on a
    // quiet one.
    assert!(tally.states() >= 1000, "only {} states", tally.states());
}

#[test]
fn every_crash_point_of_one_and_two_operations_recovers_0() {
    short(0);
}

#[test]
fn every_crash_point_of_one_and_two_operations_recovers_1() {
    short(1);
}

#[test]
fn every_crash_point_of_one_and_two_operations_recovers_2() {
    short(2);
}

#[test]
fn every_crash_point_of_one_and_two_operations_recovers_3() {
    short(3);
}

#[test]
fn sampled_crash_points_of_long_workloads_with_checkpoints_recover() {
    let (tally, mut seed) = (Tally::default(), 1000);
    while tally.states() < 3500 {
        long_workload(seed, 120, &tally);
        seed += 1;
    }
    println!("{} crash states of long workloads, seeds 1000 to {seed}", tally.states());
}

#[test]
fn sampled_crash_points_of_clones_that_come_and_go_recover() {
    let (tally, mut seed) = (Tally::default(), 2000);
    while tally.states() < 400 {
        clones_workload(seed, 60, &tally);
        seed += 1;
    }
    println!("{} crash states of clones, seeds 2000 to {seed}", tally.states());
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(default)
}

/// Rounds over all short workloads, each in another setting, with long ones between, until
/// `SPIRULA_CRASH_STATES` states have been tried or every setting has been.
#[test]
#[ignore = "takes minutes: cargo xtask soak store"]
fn soak_of_crash_states() {
    const LONG_EVERY: u64 = 15;
    let wanted = number("SPIRULA_CRASH_STATES", u64::MAX);
    let base_seed = number("SPIRULA_CRASH_SEED", 5000);
    let (tally, next, stop) = (Tally::default(), AtomicU64::new(0), AtomicBool::new(false));
    let bases = Base::all();
    let say = |when: &str| {
        let (states, same) = (tally.states(), tally.same.load(Ordering::Relaxed));
        let unit = next.load(Ordering::Relaxed).min(SHORT * Base::VARIANTS);
        let (rounds, long) = (unit as f64 / SHORT as f64, unit / LONG_EVERY);
        println!(
            "{when}: {states} crash states ({same} more were the same as another), {rounds:.2} \
                rounds of {SHORT} short workloads, {long} long ones"
        );
    };
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let unit = next.fetch_add(1, Ordering::Relaxed);
            // Whole rounds: every workload is tried as often.
            if unit >= SHORT * Base::VARIANTS
                || unit.is_multiple_of(SHORT) && tally.states() >= wanted
            {
                stop.store(true, Ordering::Relaxed);
                return;
            }
            let (round, workload) = (unit / SHORT, unit % SHORT);
            short_workload(&bases, workload, variant(workload, round), true, &tally);
            if unit.is_multiple_of(LONG_EVERY) {
                long_workload(base_seed + unit, 150, &tally);
                clones_workload(base_seed + unit, 60, &tally);
            }
        }
    };
    // Much of it is waiting for threads of stores.
    let threads = 3 * std::thread::available_parallelism().map_or(1, usize::from);
    let failed =
        super::soak(threads, work, || say("so far"), || stop.store(true, Ordering::Relaxed));
    say("in all");
    assert_eq!(failed, 0, "a state did not recover: see above");
    let all = next.load(Ordering::Relaxed) >= SHORT * Base::VARIANTS;
    assert!(all || tally.states() >= wanted, "only {} states", tally.states());
}
