//! What is known of an object beside its data: [`ObjectInfo`], stored as its attribute
//! `_`, and [`SnapSet`], stored as its attribute `snapset` when there is something in it; who
//! watches it is in [`super::watch`].
//!
//! User attributes are stored under their name with `_` in front.

use super::reader::{ObjectReader, ReadError};
use super::watch::{self, WATCHERS_ATTR, Watcher};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime, from_slice};
use spirula_types::{EVersion, HObject, ReqId, errno};

/// Raw name of the attribute that holds the [`ObjectInfo`].
pub const INFO_ATTR: &[u8] = b"_";
/// Raw name of the attribute that holds the [`SnapSet`].
pub const SNAPSET_ATTR: &[u8] = b"snapset";

/// Raw name of a user attribute.
pub fn user_attr(name: &[u8]) -> Bytes {
    let mut raw = Vec::with_capacity(name.len() + 1);
    raw.push(b'_');
    raw.extend_from_slice(name);
    raw.into()
}

/// The user's name of a raw attribute, `None` for our own attributes.
pub fn user_name(raw: &Bytes) -> Option<Bytes> {
    (raw.len() > 1 && raw.first() == Some(&b'_')).then(|| raw.slice(1..))
}

/// An object's metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Log position of the last change.
    pub version: EVersion,
    /// Log position of the change before.
    pub prior_version: EVersion,
    /// Version clients see.
    pub user_version: u64,
    /// Request that made the last change.
    pub last_reqid: ReqId,
    /// Modification time, as the client set it.
    pub mtime: UTime,
    /// The OSD's clock at the last change that set `mtime`.
    pub local_mtime: UTime,
    /// Size in bytes.
    pub size: u64,
    /// [`ObjectInfo::OMAP`], [`ObjectInfo::WHITEOUT`], [`ObjectInfo::SNAPSET`],
    /// [`ObjectInfo::WATCHED`].
    pub flags: u32,
    /// Newest truncation known (CephFS); 0 for none.
    pub truncate_seq: u32,
    /// Size that truncation asked for.
    pub truncate_size: u64,
    /// Allocation hint: size the object will reach.
    pub expected_object_size: u64,
    /// Allocation hint: size of its writes.
    pub expected_write_size: u64,
    /// Allocation hint flags.
    pub alloc_hint_flags: u32,
}

impl ObjectInfo {
    /// Flag: keys or a header were set in the omap since it was last cleared.
    pub const OMAP: u32 = 1;
    /// Flag: deleted, but kept for its clones.
    pub const WHITEOUT: u32 = 2;
    /// Flag: there is a `snapset` attribute.
    pub const SNAPSET: u32 = 4;
    /// Flag: there is a `watchers` attribute.
    pub const WATCHED: u32 = 8;

    /// Is a flag set?
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Sets or clears a flag.
    pub fn set(&mut self, flag: u32, on: bool) {
        if on { self.flags |= flag } else { self.flags &= !flag }
    }

    /// The stored form.
    pub fn to_attr(&self) -> Bytes {
        let mut out = Encoder::with_capacity(160);
        out.put(self);
        out.into_bytes()
    }
}

impl Encode for ObjectInfo {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.version);
            o.put(&self.prior_version);
            o.u64(self.user_version);
            o.put(&self.last_reqid);
            o.put(&self.mtime);
            o.put(&self.local_mtime);
            o.u64(self.size);
            o.u32(self.flags);
            o.u32(self.truncate_seq);
            o.u64(self.truncate_size);
            o.u64(self.expected_object_size);
            o.u64(self.expected_write_size);
            o.u32(self.alloc_hint_flags);
        });
    }
}

impl Decode for ObjectInfo {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("object info", 1, |d, _| {
            Ok(Self {
                version: d.get()?,
                prior_version: d.get()?,
                user_version: d.u64()?,
                last_reqid: d.get()?,
                mtime: d.get()?,
                local_mtime: d.get()?,
                size: d.u64()?,
                flags: d.u32()?,
                truncate_seq: d.u32()?,
                truncate_size: d.u64()?,
                expected_object_size: d.u64()?,
                expected_write_size: d.u64()?,
                alloc_hint_flags: d.u32()?,
            })
        })
    }
}

/// A clone of an object, kept for snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clone {
    /// Its id: the newest snapshot it serves.
    pub id: u64,
    /// The snapshots it serves, newest first.
    pub snaps: Vec<u64>,
    /// Ranges (offset, length) it shares with the next newer one.
    pub overlap: Vec<(u64, u64)>,
    /// Its size in bytes.
    pub size: u64,
}

/// An object's snapshot history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapSet {
    /// Newest snapshot context the head was written under.
    pub seq: u64,
    /// Clones, oldest first.
    pub clones: Vec<Clone>,
}

impl Encode for SnapSet {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u64(self.seq);
            o.list(&self.clones, encode_clone);
        });
    }
}

/// Wire form of a clone, the same in a stored [`SnapSet`] and in `list_snaps`.
pub(super) fn encode_clone(o: &mut Encoder, c: &Clone) {
    o.versioned(1, 1, |o| {
        o.u64(c.id);
        o.put(&c.snaps);
        o.put(&c.overlap);
        o.u64(c.size);
    });
}

impl Decode for SnapSet {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("snapset", 1, |d, _| {
            let seq = d.u64()?;
            let clones = d.list(30, |d| {
                d.versioned("clone", 1, |d, _| {
                    Ok(Clone { id: d.u64()?, snaps: d.get()?, overlap: d.get()?, size: d.u64()? })
                })
            })?;
            Ok(Self { seq, clones })
        })
    }
}

/// An object as execution starts from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectState {
    /// Is it stored?
    pub exists: bool,
    /// Its metadata; default if it is not stored.
    pub info: ObjectInfo,
    /// Its snapshot history.
    pub snapset: SnapSet,
    /// Who watches it, in order of their keys.
    pub watchers: Vec<Watcher>,
}

impl ObjectState {
    /// Does it exist for clients (stored and not a whiteout)?
    pub fn live(&self) -> bool {
        self.exists && !self.info.has(ObjectInfo::WHITEOUT)
    }

    /// Reads the state from the value of the `_` attribute, for objects without snapshots and
    /// watchers.
    ///
    /// # Errors
    /// [`DecodeError`] when it is not an [`ObjectInfo`].
    pub fn from_info_attr(value: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self { exists: true, info: from_slice(value)?, ..Self::default() })
    }
}

/// Loads the state of the head or clone `object`; absent objects give the default state.
///
/// # Errors
/// [`ReadError`] of the reader; `Io(EIO)` when what is stored cannot be decoded.
pub fn load_object(reader: &dyn ObjectReader, object: &HObject) -> Result<ObjectState, ReadError> {
    let bad = |_| ReadError::Io(errno::EIO);
    let Some(attr) = reader.attr(object, INFO_ATTR)? else { return Ok(ObjectState::default()) };
    let mut state = ObjectState::from_info_attr(&attr).map_err(bad)?;
    if state.info.has(ObjectInfo::SNAPSET) {
        let attr = reader.attr(object, SNAPSET_ATTR)?.ok_or(ReadError::Io(errno::EIO))?;
        state.snapset = from_slice(&attr).map_err(bad)?;
    }
    if state.info.has(ObjectInfo::WATCHED) {
        // Without its attribute the flag says nothing: whoever loses a watch begins it anew, and an
        // object that cannot be loaded is lost.
        match reader.attr(object, WATCHERS_ATTR)? {
            Some(attr) => state.watchers = watch::from_attr(&attr).map_err(bad)?,
            None => state.info.set(ObjectInfo::WATCHED, false),
        }
    }
    Ok(state)
}
