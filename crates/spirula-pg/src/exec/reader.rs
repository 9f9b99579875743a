//! How execution sees stored objects.

use bytes::Bytes;
use spirula_types::HObject;

/// Something a reader needs in memory before it can answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// The object's attributes.
    Attrs(HObject),
    /// A range of the object's data.
    Data {
        /// The object.
        object: HObject,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// Values and header of the object's omap, at least from `from` on.
    Omap {
        /// The object.
        object: HObject,
        /// First key of interest.
        from: Bytes,
    },
    /// Object names from `from` on.
    Names {
        /// First name of interest.
        from: HObject,
    },
}

/// What to load before a parked request is executed again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefetch(pub Vec<Want>);

/// Why a reader has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Not in memory. Execution stops without effect; load this and execute again.
    #[error("not in memory yet: {0:?}")]
    NotReady(Prefetch),
    /// The device failed with this (positive) error number.
    #[error("store error {0}")]
    Io(i32),
    /// Stored bytes do not match their checksum.
    #[error("stored bytes do not match their checksum")]
    Checksum {
        /// Offset in the object of the first bad byte.
        offset: u64,
    },
}

/// A slice of an omap to read. Keys compare as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OmapRange<'a> {
    /// First key wanted.
    pub from: &'a [u8],
    /// First key no longer wanted; `None` for no bound.
    pub until: Option<&'a [u8]>,
    /// Most entries to return, at least 1.
    pub max_entries: usize,
    /// Stop after the entry with which keys and values reach this many bytes, at least 1.
    pub max_bytes: usize,
}

/// Entries of an omap, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OmapPage {
    /// Keys and values.
    pub entries: Vec<(Bytes, Bytes)>,
    /// True if the range holds entries after these.
    pub more: bool,
}

/// Read access to the objects of one PG as they are before the request. Absent objects
/// have no attributes, no data and an empty omap. Must answer alike when asked again
/// within one execution.
pub trait ObjectReader {
    /// One attribute by its raw name; `None` if the object or the attribute is absent.
    ///
    /// # Errors
    /// [`ReadError`], as for every method.
    fn attr(&self, object: &HObject, name: &[u8]) -> Result<Option<Bytes>, ReadError>;

    /// All attributes, raw names ascending.
    ///
    /// # Errors
    /// [`ReadError`].
    fn attrs(&self, object: &HObject) -> Result<Vec<(Bytes, Bytes)>, ReadError>;

    /// `length` bytes from `offset`, holes as zeros; the caller asks for nothing beyond the
    /// object's size.
    ///
    /// # Errors
    /// [`ReadError`].
    fn read(&self, object: &HObject, offset: u64, length: u64) -> Result<Bytes, ReadError>;

    /// As [`ObjectReader::read`], with the crc32c (seed `0xffff_ffff`) of all that is returned,
    /// where it is known already.
    ///
    /// # Errors
    /// [`ReadError`].
    fn read_with_crc(
        &self,
        object: &HObject,
        offset: u64,
        length: u64,
    ) -> Result<(Bytes, Option<u32>), ReadError> {
        Ok((self.read(object, offset, length)?, None))
    }

    /// Bytes of the object's data as they are stored, holes included; 0 for an object that is
    /// absent. In a sound object that is what its record says.
    ///
    /// # Errors
    /// [`ReadError`].
    fn size(&self, object: &HObject) -> Result<u64, ReadError>;

    /// The parts of `[offset, offset + length)` that are not holes, as (offset, length),
    /// ascending and disjoint. One extent that covers all is a legal answer.
    ///
    /// # Errors
    /// [`ReadError`].
    fn extents(
        &self,
        object: &HObject,
        offset: u64,
        length: u64,
    ) -> Result<Vec<(u64, u64)>, ReadError>;

    /// The omap header, empty if none was set.
    ///
    /// # Errors
    /// [`ReadError`].
    fn omap_header(&self, object: &HObject) -> Result<Bytes, ReadError>;

    /// The value of one omap key.
    ///
    /// # Errors
    /// [`ReadError`].
    fn omap_get(&self, object: &HObject, key: &[u8]) -> Result<Option<Bytes>, ReadError>;

    /// Entries of a range of the omap, ascending.
    ///
    /// # Errors
    /// [`ReadError`].
    fn omap_range(&self, object: &HObject, range: OmapRange<'_>) -> Result<OmapPage, ReadError>;

    /// At most `max` objects `o` of the PG with `from <= o < until`, ascending, clones included.
    /// Never one of another pool, even where `until` is the maximum.
    ///
    /// # Errors
    /// [`ReadError`].
    fn list(&self, from: &HObject, until: &HObject, max: usize) -> Result<Vec<HObject>, ReadError>;

    /// Is there room for a change that brings so many bytes beside data (omap, attributes), of so
    /// many pairs? Asked only for much: what is full by and by the map says.
    fn has_room_for(&self, bytes: u64, pairs: u64) -> bool;

    /// Would the store take so many bytes of data now, as far as it knows?
    fn takes_data(&self, bytes: u64) -> bool;

    /// Is the store so full that nothing is written any more that makes it grow? What only readers
    /// want fetched from another copy waits then.
    fn is_full(&self) -> bool;

    /// Bytes that the store writes anew beside data, whatever is changed in the object: its
    /// attributes.
    fn beside_data(&self, object: &HObject) -> u64;

    /// Where bad data of the object was met last, if that is known. For messages only.
    fn bad_offset(&self, object: &HObject) -> Option<u64>;
}
