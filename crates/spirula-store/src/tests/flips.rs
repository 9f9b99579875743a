//! Bit flips anywhere in an image. What is live (labels, frames of the journal, pages of the
//! metadata, blocks of data) is found out independently of checksums; a flip there is told,
//! always. A flip elsewhere does no harm, told or not. Never are wrong bytes returned, and
//! nothing is dropped in silence.
//!
//! Bytes that neither an opening nor a check nor a reader of everything looks at are dead
//! for certain; one bit of every other byte is flipped (soak) or of a sample (CI).

use super::image::content;
use super::model::{Model, random_txn};
use super::sim::{Image, Rng, World};
use super::{create, create_single, open, tiny};
use crate::superblock::{COPY, COPY_STRIDE, HEADER};
use crate::tools::{check, stats};
use crate::{BLOCK, StoreOptions};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SECTOR: u64 = 512;

/// An image and what it holds.
struct Subject {
    what: String,
    opts: StoreOptions,
    image: Image,
    content: String,
    /// Device, first byte and length of what is live.
    live: Vec<(usize, u64, u64)>,
    /// Sectors that somebody looks at.
    read: BTreeSet<(usize, u64)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Told,
    Harmless,
    Wrong,
}

impl Subject {
    /// A store with some of everything: all of it in the metadata, or in the journal.
    fn new(single: bool, closed: bool) -> Self {
        let opts = StoreOptions {
            size: 512 << 10,
            journal_size: [1 << 20, 256 << 10][usize::from(closed)],
            cache_bytes: 4 << 20,
            kept_bytes: 0,
            ..tiny()
        };
        let world = if single { create_single(&opts) } else { create(&opts) };
        let ring_at = if single { 0 } else { 1 };
        let mut store = super::alphabet::open(&world, &opts);
        let (mut rng, mut model) = (Rng(40 + u64::from(single)), Model::default());
        for step in 0..if closed { 70 } else { 18 } {
            let t = random_txn(&mut rng, &model, step + 1, false);
            if store.submit(t.clone()).is_ok() {
                model.apply(&t);
            }
            if !closed {
                store.flush().unwrap();
            }
        }
        store.flush().unwrap();
        let mut live: Vec<_> = Vec::new();
        if closed {
            store.close().unwrap();
        } else {
            // An idle moment later, the last frame is known to have been durable.
            let mark = |w: &World| {
                let ring = w.image().devices[ring_at].bytes().split_off(HEADER as usize);
                let mut at = 0;
                let mut frames = Vec::new();
                while ring[at..].starts_with(b"SPJF") {
                    let body =
                        u32::from_le_bytes(ring[at + 68..at + 72].try_into().unwrap()) as usize;
                    frames.push((ring_at, HEADER + at as u64, 96 + body as u64));
                    at += (96 + body).next_multiple_of(4096);
                }
                (ring[at..].starts_with(b"SPJM"), frames)
            };
            let begun = Instant::now();
            while !mark(&world).0 {
                assert!(begun.elapsed() < Duration::from_secs(120), "never marked");
                std::thread::sleep(Duration::from_millis(2));
            }
            live.extend(mark(&world).1);
            assert!(live.len() > 3, "{} frames", live.len());
            drop(store);
        }
        let image = world.image();
        for dev in 0..world.count() {
            live.extend([0, COPY_STRIDE].map(|at| (dev, at, COPY as u64)));
        }
        let what = format!("one device: {single}, closed: {closed}");
        // What the tree reads in its check is its pages.
        let world = World::from_image(image.clone());
        let store = open(&world, &opts).unwrap();
        if closed {
            world.note_reads();
            assert!(store.meta.tree().check().problems.is_empty());
            let pages: BTreeSet<_> =
                world.take_reads().iter().map(|(d, s)| (*d, s * SECTOR / 4096 * 4096)).collect();
            assert_eq!(pages.len() as u64 * 4096, stats(&store).unwrap().metadata_live, "{what}");
            live.extend(pages.into_iter().map(|(d, at)| (d, at, 4096)));
        }
        // Blocks whose content is in the journal are written again from there.
        let data_at = HEADER + if single { opts.journal_size } else { 0 };
        let blocks = store.alloc().blocks();
        let data = (0..blocks).filter(|b| store.alloc().holds_data(*b));
        live.extend(data.filter(|_| closed).map(|b| (0, data_at + b * BLOCK, BLOCK)));
        drop(store);
        let mut subject =
            Self { what, opts, image, content: String::new(), live, read: BTreeSet::new() };
        // All that is looked at when nothing is wrong.
        let world = World::from_image(subject.image.clone());
        world.note_reads();
        let store = open(&world, &subject.opts).unwrap();
        assert_eq!(check(&store, true).unwrap().problems, Vec::<String>::new());
        subject.content = content(&store);
        subject.read = world.take_reads();
        assert!(subject.content.lines().count() > 10, "{}", subject.content);
        for (dev, at, len) in &subject.live {
            let unread = (at / SECTOR..(at + len).div_ceil(SECTOR))
                .find(|s| !subject.read.contains(&(*dev, *s)));
            assert_eq!(
                unread, None,
                "{}: nobody looks at a live sector of device {dev}",
                subject.what
            );
        }
        subject
    }

    fn is_live(&self, dev: usize, byte: u64) -> bool {
        self.live.iter().any(|(d, at, len)| *d == dev && (*at..at + len).contains(&byte))
    }

    fn flip(&self, dev: usize, bit: u64) -> Verdict {
        let world = World::from_image(self.image.clone());
        world.rot(dev, bit);
        let Ok(store) = open(&world, &self.opts) else { return Verdict::Told };
        match check(&store, true) {
            Ok(c) if c.problems.is_empty() && c.notes.is_empty() => {}
            Ok(c) if c.problems.is_empty() && content(&store) != self.content => {
                return Verdict::Wrong;
            }
            _ => return Verdict::Told,
        }
        if content(&store) == self.content { Verdict::Harmless } else { Verdict::Wrong }
    }
}

/// What became of flips.
#[derive(Default)]
struct Tally {
    live: AtomicU64,
    told: AtomicU64,
    dead: AtomicU64,
    dead_told: AtomicU64,
}

impl Tally {
    /// Flips a bit of that byte.
    fn flip(&self, subject: &Subject, dev: usize, byte: u64, bit: u64) {
        let verdict = subject.flip(dev, byte * 8 + bit);
        let what = format!("{}: device {dev}, byte {byte}, bit {bit}", subject.what);
        assert_ne!(verdict, Verdict::Wrong, "{what}: wrong content, and nobody said so");
        let live = subject.is_live(dev, byte);
        assert!(!live || verdict == Verdict::Told, "{what}: live, and nobody noticed");
        let told = u64::from(verdict == Verdict::Told);
        let (all, of) = if live { (&self.live, &self.told) } else { (&self.dead, &self.dead_told) };
        all.fetch_add(1, Ordering::Relaxed);
        of.fetch_add(told, Ordering::Relaxed);
    }

    fn say(&self, when: &str) {
        let [live, told, dead, dead_told] = [&self.live, &self.told, &self.dead, &self.dead_told]
            .map(|n| n.load(Ordering::Relaxed));
        println!(
            "{when}: {live} flips of live bytes, {told} told; {dead} of dead ones, no harm done, \
                {dead_told} told"
        );
    }
}

fn subjects() -> Vec<Subject> {
    [(false, true), (true, true), (false, false), (true, false)]
        .map(|(s, c)| Subject::new(s, c))
        .into()
}

#[test]
pub(crate) fn sampled_bit_flips_anywhere_are_told_or_do_no_harm() {
    let (tally, mut rng) = (Tally::default(), Rng(20));
    for subject in subjects() {
        let sectors: Vec<_> = subject.read.iter().collect();
        for _ in 0..100 {
            let (dev, sector) = sectors[rng.below(sectors.len() as u64) as usize];
            tally.flip(&subject, *dev, sector * SECTOR + rng.below(SECTOR), rng.below(8));
            let (dev, at, len) = subject.live[rng.below(subject.live.len() as u64) as usize];
            tally.flip(&subject, dev, at + rng.below(len), rng.below(8));
        }
    }
    tally.say("seed 20");
    assert!(tally.live.into_inner() > 400);
}

#[test]
#[ignore = "takes minutes: cargo xtask soak store"]
fn soak_of_bit_flips() {
    for subject in subjects() {
        let (tally, next) = (Tally::default(), AtomicUsize::new(0));
        let sectors: Vec<_> = subject.read.iter().copied().collect();
        let bytes = subject.image.devices.iter().map(|d| d.len() as u64).sum::<u64>();
        let looked = sectors.len() as u64 * SECTOR;
        println!("{}: image of {bytes} bytes, {looked} of which are looked at", subject.what);
        let work = || {
            while let Some((dev, sector)) = sectors.get(next.fetch_add(1, Ordering::Relaxed)) {
                let mut rng = Rng(*sector);
                for byte in sector * SECTOR..(sector + 1) * SECTOR {
                    tally.flip(&subject, *dev, byte, rng.below(8));
                }
            }
        };
        let threads = 2 * std::thread::available_parallelism().map_or(1, usize::from);
        let failed = super::soak(threads, work, || tally.say("so far"), || ());
        assert_eq!(failed, 0, "{}: a flip was not borne: see above", subject.what);
        tally.say(&subject.what);
    }
}
