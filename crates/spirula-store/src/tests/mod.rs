//! Tests of the whole store: against a reference model, on simulated devices that lose
//! and tear writes, and on real files.

mod ageing;
mod alphabet;
mod compressed;
mod crash;
mod faults;
mod flips;
mod image;
mod in_use;
mod layers;
mod limits;
mod looks;
mod model;
mod opening;
mod order;
mod planted;
mod random;
mod real;
pub(crate) mod sim;
mod space;
mod tools;

use crate::layout::{self, Devices, Layout, Plan};
use crate::superblock::HEADER;
use crate::{Identity, Result, Store, StoreOptions};
use sim::World;
use spirula_buffer::PayloadPool;
use spirula_types::Uuid;
use std::time::{Duration, Instant};

pub(crate) const IDENTITY: Identity =
    Identity { fsid: Uuid([1; 16]), osd_uuid: Uuid([2; 16]), osd_id: 3 };

/// A tiny store: checkpoints come often, the journal wraps soon.
pub(crate) fn tiny() -> StoreOptions {
    let pool = PayloadPool::new(8 << 20);
    StoreOptions {
        size: 8 << 20,
        journal_size: 256 << 10,
        cache_bytes: 48 << 10,
        kept_bytes: 256 << 10,
        pool,
        io: crate::Io::Threads,
    }
}

/// Runs `work` on so many threads to its end and says every ten seconds how far it is; `ended` is
/// called when one has ended while others go on. How many panicked.
fn soak(threads: usize, work: impl Fn() + Sync, say: impl Fn(), ended: impl Fn()) -> usize {
    std::thread::scope(|s| {
        let all: Vec<_> = (0..threads).map(|_| s.spawn(&work)).collect();
        let mut said = Instant::now();
        while all.iter().any(|t| !t.is_finished()) {
            std::thread::sleep(Duration::from_millis(200));
            if said.elapsed() >= Duration::from_secs(10) {
                said = Instant::now();
                say();
            }
            if all.iter().any(|t| t.is_finished()) {
                ended();
            }
        }
        all.into_iter().filter_map(|t| t.join().err()).count()
    })
}

fn format(world: &World, opts: &StoreOptions) {
    let plan = Plan {
        identity: IDENTITY,
        store_uuid: Uuid([4; 16]),
        device_uuids: [Uuid([5; 16]), Uuid([6; 16]), Uuid([7; 16])],
        journal_size: opts.journal_size,
        journal_hint: String::new(),
        meta_hint: String::new(),
    };
    layout::format(&world.devices(), &plan).unwrap();
}

/// Space for metadata beside a test's data, bytes.
const META: u64 = 3 << 20;

/// Fresh simulated devices with a store: journal and metadata have their own.
pub(crate) fn create(opts: &StoreOptions) -> World {
    let world = World::new(&[HEADER + opts.size, HEADER + opts.journal_size, HEADER + META]);
    format(&world, opts);
    world
}

/// The same with everything on one device.
pub(crate) fn create_single(opts: &StoreOptions) -> World {
    let world = World::new(&[HEADER + opts.journal_size + opts.size + META]);
    format(&world, opts);
    world
}

pub(crate) fn open_as(world: &World, opts: &StoreOptions, expected: Identity) -> Result<Store> {
    let acks = world.clone();
    let errors = world.clone();
    let layout = Layout::read(&world.devices(), Some(expected))?;
    Store::open_layout(
        layout,
        Vec::new(),
        opts,
        Box::new(move |seq| acks.ack(seq)),
        Box::new(move |e| errors.failed(e)),
    )
}

pub(crate) fn open(world: &World, opts: &StoreOptions) -> Result<Store> {
    open_as(world, opts, IDENTITY)
}

/// The same without threads of its own: where many states are opened, most of the time would go
/// into them.
pub(crate) fn open_stepped(world: &World, opts: &StoreOptions) -> Result<Store> {
    let (acks, errors) = (world.clone(), world.clone());
    let on_commit = Box::new(move |seq| acks.ack(seq));
    Store::open_stepped(
        &world.devices(),
        Some(IDENTITY),
        opts,
        on_commit,
        Box::new(move |e| errors.failed(e)),
    )
}

impl World {
    pub(crate) fn devices(&self) -> Devices {
        let other = |n: usize| (self.count() > n).then(|| self.device(n));
        Devices { main: self.device(0), journal: other(1), meta: other(2) }
    }

    /// Changes data of a store made by [`create`].
    pub(crate) fn edit_data(&self, f: impl FnOnce(&mut [u8])) {
        self.edit(0, |d| f(&mut d[HEADER as usize..]));
    }

    /// Changes the journal of a store made by [`create`].
    pub(crate) fn edit_ring(&self, f: impl FnOnce(&mut [u8])) {
        self.edit(1, |d| f(&mut d[HEADER as usize..]));
    }
}

/// Everything the store can check by itself is in order.
pub(crate) fn sound(store: &Store, what: &str) {
    let found = crate::tools::check(store, false).unwrap();
    assert!(found.problems.is_empty(), "{what}: {:?}", found.problems);
}
