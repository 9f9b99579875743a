//! Tests of the whole store: against a reference model, on simulated devices that lose
//! and tear writes, and on real files.

mod crash;
mod faults;
mod model;
mod random;
mod real;
mod sim;

use crate::open::{Parts, new_superblock};
use crate::{Identity, Result, Store, StoreOptions};
use sim::World;
use spirula_buffer::PayloadPool;
use spirula_types::Uuid;

pub(crate) const IDENTITY: Identity = Identity { fsid: Uuid([1; 16]), osd_uuid: Uuid([2; 16]), osd_id: 3 };

/// A tiny store: checkpoints come often, the journal wraps soon.
pub(crate) fn tiny() -> StoreOptions {
    StoreOptions { size: 8 << 20, journal_size: 256 << 10, cache_bytes: 48 << 10, pool: PayloadPool::new(8 << 20) }
}

/// Fresh simulated devices with a superblock.
pub(crate) fn create(opts: &StoreOptions) -> World {
    let world = World::new(&[8192, opts.journal_size as usize, opts.size as usize]);
    new_superblock(IDENTITY, Uuid([4; 16]), opts).write(&*world.parts().superblock).unwrap();
    world
}

pub(crate) fn open(world: &World, opts: &StoreOptions) -> Result<Store> {
    let acks = world.clone();
    let errors = world.clone();
    Store::open_parts(
        world.parts(),
        Some(IDENTITY),
        None,
        opts,
        Box::new(move |seq| acks.ack(seq)),
        Box::new(move |e| errors.failed(e)),
    )
}

impl World {
    pub(crate) fn parts(&self) -> Parts {
        Parts { superblock: self.device(0), journal: self.device(1), block: self.device(2), meta: self.meta() }
    }
}
