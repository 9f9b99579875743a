//! Where a member's objects and records are in its OSD's store.
//!
//! Several shards of one PG may lie in one store. Objects keep their names between members; in
//! the store the shard is part of the pool's number, so that each shard's objects are a range
//! of their own, in the same order. Whole copies (replicated pools) stay under the pool's own
//! number. Undo copies of an erasure-coded PG ([`undo_object`]) have ranges beside them.
//!
//! The translation happens here alone: for reads in [`ShardReader`], for changes in
//! [`localize`].

use crate::exec::{ObjectReader, OmapPage, OmapRange, ReadError};
use bytes::Bytes;
use spirula_types::transaction::{MetaOp, ObjectOp, Transaction};
use spirula_types::{EVersion, HObject, POOL_BITS, PgId, PoolId, SpgId};

/// Marks undo copies.
const UNDO: PoolId = 1 << POOL_BITS;
/// First bit of the shard (plus one) in a pool's number in the store.
const SHARD_BIT: u32 = POOL_BITS + 1;

/// The number under which a shard of a pool is stored; the pool's own for shard −1.
pub fn store_pool(pool: PoolId, shard: i8) -> PoolId {
    if shard < 0 { pool } else { pool | (PoolId::from(shard) + 1) << SHARD_BIT }
}

/// The name of a member's log in its store.
pub fn store_pg(id: SpgId) -> PgId {
    PgId::new(store_pool(id.pg.pool, id.shard), id.pg.seed)
}

/// The name of what an object was before the entry `version`, while that can be undone.
pub fn undo_object(object: &HObject, version: EVersion) -> HObject {
    HObject { pool: object.pool | UNDO, snap: version.version, ..object.clone() }
}

/// An object's name in the store.
pub fn store_object(object: &HObject, shard: i8) -> HObject {
    if shard < 0 || object.pool < 0 {
        object.clone()
    } else {
        HObject { pool: store_pool(object.pool, shard), ..object.clone() }
    }
}

/// An object's name, from its name in the store. Undo copies keep their mark.
pub fn object_of_store(mut object: HObject) -> HObject {
    if object.pool >= 0 {
        object.pool &= (1 << SHARD_BIT) - 1;
    }
    object
}

/// Makes a transaction one of the store: objects and logs get the names they have there.
pub fn localize(txn: &mut Transaction, shard: i8) {
    if shard < 0 {
        return;
    }
    for u in &mut txn.objects {
        u.object.pool = store_pool(u.object.pool, shard);
        for op in &mut u.ops {
            match op {
                ObjectOp::CloneFrom(from) | ObjectOp::CloneRange { from, .. } => {
                    from.pool = store_pool(from.pool, shard);
                }
                _ => {}
            }
        }
    }
    for m in &mut txn.meta {
        match m {
            MetaOp::LogAppend { pg, .. }
            | MetaOp::LogTrim { pg, .. }
            | MetaOp::LogRewind { pg, .. }
            | MetaOp::LogRemove { pg } => pg.pool = store_pool(pg.pool, shard),
            MetaOp::Set { .. } | MetaOp::Remove { .. } => {}
        }
    }
}

/// A store as one shard sees it.
pub(crate) struct ShardReader<'a> {
    pub inner: &'a dyn ObjectReader,
    pub shard: i8,
}

impl ShardReader<'_> {
    fn name(&self, object: &HObject) -> HObject {
        store_object(object, self.shard)
    }
}

impl ObjectReader for ShardReader<'_> {
    fn attr(&self, object: &HObject, name: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.inner.attr(&self.name(object), name)
    }

    fn attrs(&self, object: &HObject) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        self.inner.attrs(&self.name(object))
    }

    fn read(&self, object: &HObject, offset: u64, length: u64) -> Result<Bytes, ReadError> {
        self.inner.read(&self.name(object), offset, length)
    }

    fn read_with_crc(
        &self,
        object: &HObject,
        offset: u64,
        length: u64,
    ) -> Result<(Bytes, Option<u32>), ReadError> {
        self.inner.read_with_crc(&self.name(object), offset, length)
    }

    fn size(&self, object: &HObject) -> Result<u64, ReadError> {
        self.inner.size(&self.name(object))
    }

    fn extents(
        &self,
        object: &HObject,
        offset: u64,
        length: u64,
    ) -> Result<Vec<(u64, u64)>, ReadError> {
        self.inner.extents(&self.name(object), offset, length)
    }

    fn omap_header(&self, object: &HObject) -> Result<Bytes, ReadError> {
        self.inner.omap_header(&self.name(object))
    }

    fn omap_get(&self, object: &HObject, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.inner.omap_get(&self.name(object), key)
    }

    fn omap_range(&self, object: &HObject, range: OmapRange<'_>) -> Result<OmapPage, ReadError> {
        self.inner.omap_range(&self.name(object), range)
    }

    fn list(&self, from: &HObject, until: &HObject, max: usize) -> Result<Vec<HObject>, ReadError> {
        let from = self.name(from);
        // The end of a pool's last PG is the maximum, behind which other shards begin.
        let until = if until.max {
            HObject::pool_start(from.pool.saturating_add(1), 0)
        } else {
            self.name(until)
        };
        let found = self.inner.list(&from, &until, max)?;
        Ok(found.into_iter().map(object_of_store).collect())
    }

    fn has_room_for(&self, bytes: u64, pairs: u64) -> bool {
        self.inner.has_room_for(bytes, pairs)
    }

    fn takes_data(&self, bytes: u64) -> bool {
        self.inner.takes_data(bytes)
    }

    fn is_full(&self) -> bool {
        self.inner.is_full()
    }

    fn beside_data(&self, object: &HObject) -> u64 {
        self.inner.beside_data(&self.name(object))
    }

    fn bad_offset(&self, object: &HObject) -> Option<u64> {
        self.inner.bad_offset(&self.name(object))
    }
}
