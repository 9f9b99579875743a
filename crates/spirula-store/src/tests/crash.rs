//! Crashes: a workload is recorded, then for points in its event order the devices are
//! put into states they might be in after a power cut there. After each: the store opens,
//! every acknowledged transaction is there, the state is that of some prefix, and work
//! goes on.
//!
//! Unflushed writes persist in any subset, torn at 512 bytes; the event at the crash point
//! is under way. `SPIRULA_CRASH_STATES` sets how many states are tried (default 1200).

use super::model::{Model, random_txn};
use super::sim::{Event, Image, Rng, World};
use super::{create, create_single, open, tiny};
use crate::StoreOptions;

const SECTOR: usize = 512;

/// Puts some sectors of a write onto a device.
fn tear(rng: &mut Rng, mode: u64, device: &mut [u8], offset: usize, data: &[u8]) {
    for (i, sector) in data.chunks(SECTOR).enumerate() {
        let keep = match mode {
            0 => false,
            1 => true,
            2 => rng.below(2) == 0,
            // A prefix.
            _ => i * 3 < data.len() / SECTOR * ((mode as usize) % 4),
        };
        if keep {
            let at = offset + i * SECTOR;
            device[at..at + sector.len()].copy_from_slice(sector);
        }
    }
}

/// Device states along a recording.
struct Player<'a> {
    events: &'a [Event],
    at: usize,
    /// What is surely there.
    durable: Image,
    unflushed: Vec<usize>,
    acked: u64,
}

impl<'a> Player<'a> {
    fn new(start: Image, events: &'a [Event], acked: u64) -> Self {
        Self { events, at: 0, durable: start, unflushed: Vec::new(), acked }
    }

    fn put(durable: &mut Image, e: &Event) {
        if let Event::Write { dev, offset, data, .. } = e {
            durable.devices[*dev][*offset..*offset + data.len()].copy_from_slice(data);
        }
    }

    fn advance(&mut self, to: usize) {
        while self.at < to {
            match &self.events[self.at] {
                e @ Event::Write { durable: true, .. } => Self::put(&mut self.durable, e),
                Event::Write { .. } => self.unflushed.push(self.at),
                Event::Flush { dev } => {
                    let (events, durable) = (self.events, &mut self.durable);
                    self.unflushed.retain(|i| match &events[*i] {
                        e @ Event::Write { dev: d, .. } if d == dev => {
                            Self::put(durable, e);
                            false
                        }
                        _ => true,
                    });
                }
                Event::Ack(seq) => self.acked = *seq,
            }
            self.at += 1;
        }
    }

    /// A state in which a crash here might leave the devices.
    fn crash(&self, rng: &mut Rng) -> Image {
        let mut image = self.durable.clone();
        let all = rng.below(4);
        for i in &self.unflushed {
            if let Event::Write { dev, offset, data, .. } = &self.events[*i] {
                let mode = if all < 2 { all } else { rng.below(7) };
                tear(rng, mode, &mut image.devices[*dev], *offset, data);
            }
        }
        match self.events.get(self.at) {
            Some(Event::Write { dev, offset, data, .. }) => {
                let mode = rng.below(7);
                tear(rng, mode, &mut image.devices[*dev], *offset, data);
            }
            _ => {}
        }
        image
    }
}

/// Submits random transactions; models by transaction number are added to `models`.
fn work(world: &World, opts: &StoreOptions, rng: &mut Rng, models: &mut Vec<Model>, count: u64, big: bool) {
    let mut store = open(world, opts).unwrap();
    models.truncate(store.last_seq() as usize + 1);
    for _ in 0..count {
        let mut model = models.last().unwrap().clone();
        let txn = random_txn(rng, &model, models.len() as u64, big);
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

fn verify(image: Image, opts: &StoreOptions, models: &[Model], acked: u64, what: &str) -> World {
    let world = World::from_image(image);
    world.record();
    let mut store = open(&world, opts).unwrap_or_else(|e| panic!("{what}: does not open: {e}"));
    let seq = store.last_seq();
    assert!(seq >= acked, "{what}: transaction {acked} was acknowledged, recovered only {seq}");
    assert!((seq as usize) < models.len(), "{what}: recovered {seq}, which never was");
    models[seq as usize].check(&mut store, &format!("{what}, recovered {seq}, acknowledged {acked}"));
    drop(store);
    world
}

fn states() -> u64 {
    std::env::var("SPIRULA_CRASH_STATES").ok().and_then(|s| s.parse().ok()).unwrap_or(1200)
}

fn enumerate(seed: u64, count: u64, big: bool, every: bool, tried: &mut u64) {
    let mut opts = tiny();
    // Little space, so that freed blocks are soon taken again; a longer journal or a larger
    // overlay, so that this happens between two checkpoints.
    opts.size = if big { [3 << 20, 4 << 20][seed as usize % 2] } else { [384 << 10, 640 << 10][seed as usize % 2] };
    opts.journal_size = [256 << 10, 1 << 20][seed as usize / 2 % 2];
    opts.cache_bytes = [48 << 10, 1 << 20][seed as usize / 4 % 2];
    // Shared or separate devices: what a flush covers differs.
    let world = if (seed / 8).is_multiple_of(2) { create(&opts) } else { create_single(&opts) };
    let mut rng = Rng(seed);
    let mut models = vec![Model::default()];
    // Some history, so that the ring has been round and space reused.
    let before = rng.below(150);
    work(&world, &opts, &mut rng, &mut models, before, big);
    let start = world.image();
    let acked = models.len() as u64 - 1;
    world.record();
    work(&world, &opts, &mut rng, &mut models, count, big);
    let events = world.take_events();
    let mut player = Player::new(start, &events, acked);
    let mut point = 0;
    while point <= events.len() {
        player.advance(point);
        let what = format!("seed {seed}, crash at event {point} of {}", events.len());
        let image = player.crash(&mut rng);
        *tried += 1;
        let recovered = verify(image.clone(), &opts, &models, player.acked, &what);
        match rng.below(8) {
            // A second crash, during the recovery.
            0 | 1 => {
                let again = recovered.take_events();
                let mut second = Player::new(image, &again, player.acked);
                second.advance(rng.below(again.len() as u64 + 1) as usize);
                *tried += 1;
                verify(second.crash(&mut rng), &opts, &models, player.acked, &format!("{what}, and in recovery"));
            }
            // Work goes on; and the next crash is after that.
            2 => {
                let mut models = models.clone();
                work(&recovered, &opts, &mut rng, &mut models, 10, big);
                let acked = models.len() as u64 - 1;
                verify(recovered.image(), &opts, &models, acked, &format!("{what}, worked on"));
            }
            _ => {}
        }
        point += if every { 1 } else { 1 + rng.below(7) as usize };
    }
}

#[test]
fn every_crash_point_of_short_workloads_recovers() {
    let mut tried = 0;
    let mut seed = 1;
    while tried < states() / 2 {
        enumerate(seed, 1 + seed % 3, false, true, &mut tried);
        seed += 1;
    }
    println!("{tried} states");
}

#[test]
fn sampled_crash_points_of_long_workloads_recover() {
    let mut tried = 0;
    let mut seed = 1000;
    while tried < states() / 2 {
        enumerate(seed, 120, seed % 3 == 0, false, &mut tried);
        seed += 1;
    }
    println!("{tried} states");
}
