//! The store as the PGs see it.
//!
//! What is in memory is answered at once. Data that is not in memory comes by way of a helper
//! thread: the PG gets [`ReadError::NotReady`], asks for the data, and finds it when it is told
//! that the read is done, and only then (`reads` says why the data is never older than the store).
//! Attributes and omap are read inline: the store keeps what was used lately, and a miss costs one
//! lookup in the store's metadata.

use crate::osd::Piece;
use bytes::Bytes;
use spirula_pg::exec::{ObjectReader, OmapPage, OmapRange, Prefetch, ReadError, Want};
use spirula_store::{Read, ReadPlan, Store, StoreError};
use spirula_types::transaction::Transaction;
use spirula_types::{HObject, errno};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Objects with bad data whose place is remembered.
const BAD_NOTED: usize = 1024;

/// Where bad data was met last, by object. For messages only.
#[derive(Debug, Default)]
pub struct BadPlaces(BTreeMap<HObject, u64>);

impl BadPlaces {
    /// Notes where bad data was met, if it was.
    pub fn note(&mut self, object: &HObject, e: &ReadError) {
        if let ReadError::Checksum { offset } = e
            && self.0.len() < BAD_NOTED
        {
            self.0.insert(object.clone(), *offset);
        }
    }

    /// An object changed: what was met is not there any more, perhaps.
    pub fn forget(&mut self, object: &HObject) {
        if !self.0.is_empty() {
            self.0.remove(object);
        }
    }
}

/// A store, with what was read ahead from it for the reader.
pub struct StoreReader<'a> {
    /// The store.
    pub store: &'a Store,
    /// What was read ahead; none of it older than the store.
    pub fetched: &'a [Piece],
    /// Where bad data is.
    pub bad: &'a RefCell<BadPlaces>,
    /// A PG waits for room.
    pub waits: bool,
}

/// What a store's failure means to a request.
pub fn read_error(e: &StoreError) -> ReadError {
    match e {
        StoreError::Checksum { offset, .. } => {
            tracing::error!("{e}");
            ReadError::Checksum { offset: *offset }
        }
        other => {
            tracing::error!("{other}");
            ReadError::Io(errno::EIO)
        }
    }
}

/// If a transaction was refused because what it must be merged with cannot be read: the object,
/// and where.
pub fn rotten(e: &StoreError, txn: &Transaction) -> Option<(HObject, Option<u64>)> {
    match (e, txn.objects.as_slice()) {
        (StoreError::Checksum { object, offset }, _) => Some(((**object).clone(), Some(*offset))),
        (StoreError::Unreadable { object, .. }, _) => Some(((**object).clone(), None)),
        // What lies beside the metadata is nobody's by name: only a transaction of one object can
        // tell whose.
        (StoreError::Io { action: "read", .. }, [one]) => Some((one.object.clone(), None)),
        _ => None,
    }
}

impl StoreReader<'_> {
    /// The reads that a prefetch needs; nothing if all is in memory by now.
    pub fn plans(&self, prefetch: &Prefetch) -> Vec<(HObject, u64, u64, ReadPlan)> {
        let mut plans = Vec::new();
        for want in &prefetch.0 {
            if let Want::Data { object, offset, length } = want
                && let Ok(Read::NotReady(plan)) = self.store.read(object, *offset, *length)
            {
                plans.push((object.clone(), *offset, *length, plan));
            }
        }
        plans
    }
}

impl ObjectReader for StoreReader<'_> {
    fn attr(&self, object: &HObject, name: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.store.attr(object, name).map_err(|e| read_error(&e))
    }

    fn attrs(&self, object: &HObject) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        Ok(self.store.attrs(object).map_err(|e| read_error(&e))?.unwrap_or_default())
    }

    fn read(&self, object: &HObject, offset: u64, length: u64) -> Result<Bytes, ReadError> {
        Ok(self.read_with_crc(object, offset, length)?.0)
    }

    fn read_with_crc(
        &self,
        object: &HObject,
        offset: u64,
        length: u64,
    ) -> Result<(Bytes, Option<u32>), ReadError> {
        let here = |p: &&Piece| p.offset == offset && p.length == length && p.object == *object;
        if let Some(p) = self.fetched.iter().find(here) {
            return p.data.clone();
        }
        let read = self.store.read(object, offset, length).map_err(|e| {
            let e = read_error(&e);
            self.bad.borrow_mut().note(object, &e);
            e
        });
        match read? {
            Read::Ready(data) => Ok((data, None)),
            Read::Missing => Ok((Bytes::new(), None)),
            Read::NotReady(_) => Err(ReadError::NotReady(Prefetch(vec![Want::Data {
                object: object.clone(),
                offset,
                length,
            }]))),
        }
    }

    fn size(&self, object: &HObject) -> Result<u64, ReadError> {
        Ok(self.store.stat(object).map_err(|e| read_error(&e))?.map_or(0, |s| s.size))
    }

    fn extents(
        &self,
        object: &HObject,
        offset: u64,
        length: u64,
    ) -> Result<Vec<(u64, u64)>, ReadError> {
        Ok(self
            .store
            .extents(object, offset, length)
            .map_err(|e| read_error(&e))?
            .unwrap_or_default())
    }

    fn omap_header(&self, object: &HObject) -> Result<Bytes, ReadError> {
        Ok(self.store.omap_header(object).map_err(|e| read_error(&e))?.unwrap_or_default())
    }

    fn omap_get(&self, object: &HObject, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        let keys = [Bytes::copy_from_slice(key)];
        let found = self.store.omap_get(object, &keys).map_err(|e| read_error(&e))?;
        Ok(found.and_then(|pairs| pairs.into_iter().next()).map(|(_, v)| v))
    }

    fn omap_range(&self, object: &HObject, range: OmapRange<'_>) -> Result<OmapPage, ReadError> {
        // The store pages by "after"; the key before `from` is `from` without its end, so ask
        // for `from` itself first.
        let mut page = OmapPage::default();
        let mut left = range.max_entries;
        let mut bytes = range.max_bytes;
        let below = |k: &[u8]| range.until.is_none_or(|u| k < u);
        let mut after = None;
        if !range.from.is_empty() {
            if below(range.from)
                && let Some(v) = self.omap_get(object, range.from)?
            {
                left -= 1;
                bytes = bytes.saturating_sub(range.from.len() + v.len());
                page.entries.push((Bytes::copy_from_slice(range.from), v));
            }
            after = Some(range.from);
        }
        // One more than wanted tells whether there is more within the range.
        let rest = self
            .store
            .omap_range(object, after, b"", left.saturating_add(1), bytes.saturating_add(1))
            .map_err(|e| read_error(&e))?;
        let Some(rest) = rest else { return Ok(page) };
        let store_has_more = rest.more;
        for (k, v) in rest.pairs {
            if !below(&k) {
                return Ok(page);
            }
            if left == 0 || bytes == 0 {
                page.more = true;
                return Ok(page);
            }
            left -= 1;
            bytes = bytes.saturating_sub(k.len() + v.len());
            page.entries.push((k, v));
        }
        page.more = store_has_more;
        Ok(page)
    }

    fn list(&self, from: &HObject, until: &HObject, max: usize) -> Result<Vec<HObject>, ReadError> {
        // The last PG of a pool ends at the maximum, behind which other pools begin: the
        // store holds them all, a PG must see only its own.
        let pool_end = HObject::pool_start(from.pool.saturating_add(1), 0);
        self.store.list(from, until.min(&pool_end), max).map_err(|e| read_error(&e))
    }

    fn has_room_for(&self, bytes: u64, entries: u64) -> bool {
        self.store.has_room_for(bytes, entries)
    }

    fn takes_data(&self, bytes: u64) -> bool {
        bytes == 0 || bytes <= self.store.statfs().available
    }

    fn is_full(&self) -> bool {
        crate::space::is_failsafe_full(self.store, self.waits)
    }

    fn beside_data(&self, object: &HObject) -> u64 {
        self.store.beside_data(object)
    }

    fn bad_offset(&self, object: &HObject) -> Option<u64> {
        self.bad.borrow().0.get(object).copied()
    }
}
