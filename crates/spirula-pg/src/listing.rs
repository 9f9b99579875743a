//! What a listing of a PG looks at: the objects that are stored here, and those that only the log
//! knows to exist because this copy lacks them.

use crate::exec::{ObjectReader, OmapPage, OmapRange, ReadError};
use crate::missing::Missing;
use bytes::Bytes;
use spirula_types::HObject;

/// A reader that lists objects that are missing here as if they were here. They exist: a listing
/// need not wait for their recovery, nor go without them.
pub(crate) struct WithMissing<'a> {
    pub reader: &'a dyn ObjectReader,
    pub missing: &'a Missing,
}

impl ObjectReader for WithMissing<'_> {
    fn attr(&self, object: &HObject, name: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.reader.attr(object, name)
    }

    fn attrs(&self, object: &HObject) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        self.reader.attrs(object)
    }

    fn read(&self, object: &HObject, offset: u64, length: u64) -> Result<Bytes, ReadError> {
        self.reader.read(object, offset, length)
    }

    fn read_with_crc(
        &self,
        object: &HObject,
        offset: u64,
        length: u64,
    ) -> Result<(Bytes, Option<u32>), ReadError> {
        self.reader.read_with_crc(object, offset, length)
    }

    fn size(&self, object: &HObject) -> Result<u64, ReadError> {
        self.reader.size(object)
    }

    fn extents(
        &self,
        object: &HObject,
        offset: u64,
        length: u64,
    ) -> Result<Vec<(u64, u64)>, ReadError> {
        self.reader.extents(object, offset, length)
    }

    fn omap_header(&self, object: &HObject) -> Result<Bytes, ReadError> {
        self.reader.omap_header(object)
    }

    fn omap_get(&self, object: &HObject, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.reader.omap_get(object, key)
    }

    fn omap_range(&self, object: &HObject, range: OmapRange<'_>) -> Result<OmapPage, ReadError> {
        self.reader.omap_range(object, range)
    }

    fn list(&self, from: &HObject, until: &HObject, max: usize) -> Result<Vec<HObject>, ReadError> {
        let mut found = self.reader.list(from, until, max)?;
        if !self.missing.is_empty() {
            let lacked = self
                .missing
                .from(from)
                .map(|(o, _)| o)
                .take_while(|o| *o < until || until.max)
                .take(max);
            found.extend(lacked.cloned());
            found.sort();
            found.dedup();
            found.truncate(max);
        }
        Ok(found)
    }

    fn has_room_for(&self, bytes: u64, pairs: u64) -> bool {
        self.reader.has_room_for(bytes, pairs)
    }

    fn takes_data(&self, bytes: u64) -> bool {
        self.reader.takes_data(bytes)
    }

    fn is_full(&self) -> bool {
        self.reader.is_full()
    }

    fn beside_data(&self, object: &HObject) -> u64 {
        self.reader.beside_data(object)
    }

    fn bad_offset(&self, object: &HObject) -> Option<u64> {
        self.reader.bad_offset(object)
    }
}
