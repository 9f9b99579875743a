//! What a method sees of the object that it is called on, and of who calls.

use bytes::Bytes;
use spirula_encoding::{DecodeError, UTime};
use spirula_types::{EntityAddr, EntityName, errno};

/// Why a method does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It fails with this positive errno.
    Errno(i32),
    /// The object cannot answer yet, and knows what it waits for. The method is run again later,
    /// from its start.
    Later,
}

/// Input that cannot be read.
impl From<DecodeError> for Stop {
    fn from(_: DecodeError) -> Self {
        Self::Errno(errno::EINVAL)
    }
}

/// Who calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// Its name.
    pub name: EntityName,
    /// Its address.
    pub addr: EntityAddr,
}

/// Size and time of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Bytes of data.
    pub size: u64,
    /// When it was last changed, as the client said.
    pub mtime: UTime,
}

/// Some pairs of an omap, keys ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Keys and values.
    pub pairs: Vec<(Bytes, Bytes)>,
    /// There are more after these.
    pub more: bool,
}

/// The object that a method is called on, with what the request changed before laid over it. An
/// object that does not exist has no data and an empty omap, and is created by whatever is written.
/// Every call may fail with [`Stop::Later`], and with EIO for what cannot be read; with E2BIG when
/// the call has read more than a request may.
pub trait Object {
    /// Who calls.
    fn caller(&self) -> Caller;

    /// The OSD's wall clock.
    fn now(&self) -> UTime;

    /// A number that nobody gets twice, for tags. It is no secret.
    fn unique(&mut self) -> u64;

    /// Size and time.
    ///
    /// # Errors
    /// ENOENT.
    fn stat(&mut self) -> Result<Stat, Stop>;

    /// At most `length` bytes from `offset`; fewer at the end.
    ///
    /// # Errors
    /// EOPNOTSUPP in erasure-coded pools.
    fn read(&mut self, offset: u64, length: u64) -> Result<Bytes, Stop>;

    /// A user attribute.
    ///
    /// # Errors
    /// ENOENT without the object, ENODATA without the attribute.
    fn attr(&mut self, name: &[u8]) -> Result<Bytes, Stop>;

    /// All user attributes, names ascending.
    ///
    /// # Errors
    /// ENOENT.
    fn attrs(&mut self) -> Result<Vec<(Bytes, Bytes)>, Stop>;

    /// The value of an omap key.
    ///
    /// # Errors
    /// None of its own.
    fn omap_get(&mut self, key: &[u8]) -> Result<Option<Bytes>, Stop>;

    /// At most `max` omap pairs whose keys start with `prefix`, after the key `after`; fewer where
    /// one answer would be too long.
    ///
    /// # Errors
    /// None of its own.
    fn omap_page(&mut self, after: &[u8], prefix: &[u8], max: u64) -> Result<Page, Stop>;

    /// The omap's header; empty if there is none.
    ///
    /// # Errors
    /// None of its own.
    fn omap_header(&mut self) -> Result<Bytes, Stop>;

    /// The newest user version that was given out in the object's PG. A change that this request
    /// makes gets a higher one.
    fn version(&self) -> u64;

    /// How many ops of the request were done before this call, and how often calls have asked the
    /// object for something: with [`version`](Self::version) a name that is given once.
    fn steps(&self) -> u32;

    /// The newest snapshot that the object was written under; 0 for none. A deleted object of which
    /// there are clones has one, too.
    ///
    /// # Errors
    /// ENOENT.
    fn snap_seq(&mut self) -> Result<u64, Stop>;

    /// Who watches the object. A client with two watches is named twice.
    ///
    /// # Errors
    /// ENOENT.
    fn watchers(&mut self) -> Result<Vec<Caller>, Stop>;

    /// Creates the object.
    ///
    /// # Errors
    /// EEXIST if it must not be there yet and is.
    fn create(&mut self, exclusive: bool) -> Result<(), Stop>;

    /// Writes data.
    ///
    /// # Errors
    /// EFBIG.
    fn write(&mut self, offset: u64, data: Bytes) -> Result<(), Stop>;

    /// Makes a range zeros; its end is cut off if the range covers it.
    ///
    /// # Errors
    /// EFBIG.
    fn zero(&mut self, offset: u64, length: u64) -> Result<(), Stop>;

    /// Sets the size of an object that there is.
    ///
    /// # Errors
    /// EFBIG.
    fn truncate(&mut self, size: u64) -> Result<(), Stop>;

    /// Replaces the data.
    ///
    /// # Errors
    /// EFBIG, as for every write.
    fn write_full(&mut self, data: Bytes) -> Result<(), Stop>;

    /// Removes the object.
    ///
    /// # Errors
    /// ENOENT.
    fn remove(&mut self) -> Result<(), Stop>;

    /// Sets a user attribute.
    ///
    /// # Errors
    /// ENAMETOOLONG, EFBIG; EINVAL for an empty name.
    fn set_attr(&mut self, name: &[u8], value: Bytes) -> Result<(), Stop>;

    /// Sets omap pairs.
    ///
    /// # Errors
    /// EOPNOTSUPP in erasure-coded pools, ENAMETOOLONG.
    fn omap_set(&mut self, pairs: Vec<(Bytes, Bytes)>) -> Result<(), Stop>;

    /// Removes omap keys, be they there or not.
    ///
    /// # Errors
    /// ENOENT without the object; EOPNOTSUPP in erasure-coded pools.
    fn omap_remove(&mut self, keys: Vec<Bytes>) -> Result<(), Stop>;

    /// Removes the omap keys from `first` on, up to the one before `end`.
    ///
    /// # Errors
    /// As [`omap_remove`](Self::omap_remove).
    fn omap_remove_range(&mut self, first: Bytes, end: Bytes) -> Result<(), Stop>;

    /// Removes all omap keys and the header.
    ///
    /// # Errors
    /// As [`omap_remove`](Self::omap_remove).
    fn omap_clear(&mut self) -> Result<(), Stop>;

    /// Sets the omap's header.
    ///
    /// # Errors
    /// EOPNOTSUPP in erasure-coded pools.
    fn omap_set_header(&mut self, header: Bytes) -> Result<(), Stop>;
}
