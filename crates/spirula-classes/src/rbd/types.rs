//! Values of the class `rbd`: as they are stored, and as clients send and get them.

use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use std::collections::{BTreeMap, BTreeSet};

/// "No snapshot": the image as it is now.
pub(super) use spirula_types::SNAP_HEAD as HEAD;
/// No pool.
pub(super) const NO_POOL: i64 = -1;

/// Feature bits of an image.
pub(super) mod feature {
    pub use spirula_types::rbd::feature::*;

    /// All there are.
    pub const ALL: u64 = (1 << 12) - 1;
    /// Clients that do not know them cannot read the image.
    pub const INCOMPATIBLE: u64 = LAYERING | STRIPING | DATA_POOL;
    /// Clients that do not know them cannot write to the image.
    pub const WRITE_INCOMPATIBLE: u64 = ALL & !DIRTY_CACHE;
    /// May be switched on and off.
    pub const MUTABLE: u64 =
        EXCLUSIVE_LOCK | OBJECT_MAP | FAST_DIFF | JOURNALING | NON_PRIMARY | DIRTY_CACHE;
    /// May be switched off.
    pub const DISABLE_ONLY: u64 = DEEP_FLATTEN;
    /// Set by this class alone.
    pub const INTERNAL: u64 = OPERATIONS | MIGRATING;

    /// Operation feature: a snapshot has clones of the second kind.
    pub const OP_CLONE_PARENT: u64 = 1;
    /// Operation feature: the image is such a clone.
    pub const OP_CLONE_CHILD: u64 = 2;
    /// Operation feature: the image is in a group.
    pub const OP_GROUP: u64 = 4;
    /// Operation feature: a snapshot is in the trash.
    pub const OP_SNAP_TRASH: u64 = 8;
    /// All operation features.
    pub const OPS: u64 = 15;
}

/// An optional value: a byte that says whether there is one.
pub(super) fn put_option(out: &mut Encoder, v: Option<u64>) {
    out.bool(v.is_some());
    if let Some(v) = v {
        out.u64(v);
    }
}

pub(super) fn get_option(d: &mut Decoder<'_>) -> Result<Option<u64>, DecodeError> {
    Ok(if d.bool()? { Some(d.u64()?) } else { None })
}

/// What an image was cloned from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parent {
    pub pool: i64,
    pub namespace: Bytes,
    pub image: Bytes,
    pub snap: u64,
    /// Bytes of the image as it is now that come from there; `None`: only snapshots have some.
    pub overlap: Option<u64>,
}

impl Default for Parent {
    fn default() -> Self {
        Self {
            pool: NO_POOL,
            namespace: Bytes::new(),
            image: Bytes::new(),
            snap: HEAD,
            overlap: None,
        }
    }
}

impl Parent {
    /// Does it name an image?
    pub fn exists(&self) -> bool {
        self.snap != HEAD && self.pool >= 0 && !self.image.is_empty()
    }

    /// Who it is, without the overlap.
    pub fn put_spec(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.i64(self.pool);
            o.put(&self.namespace);
            o.put(&self.image);
            o.u64(self.snap);
        });
    }

    pub fn get_spec(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("parent", 1, |d, _| {
            Ok(Self {
                pool: d.i64()?,
                namespace: d.get()?,
                image: d.get()?,
                snap: d.u64()?,
                overlap: None,
            })
        })
    }
}

impl Encode for Parent {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(2, 2, |o| {
            o.i64(self.pool);
            o.put(&self.namespace);
            o.put(&self.image);
            o.u64(self.snap);
            put_option(o, self.overlap);
        });
    }
}

impl Decode for Parent {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("parent", 2, |d, v| {
            let pool = d.i64()?;
            let namespace = if v >= 2 { d.get()? } else { Bytes::new() };
            let (image, snap) = (d.get()?, d.u64()?);
            let overlap = if v >= 2 { get_option(d)? } else { Some(d.u64()?).filter(|o| *o > 0) };
            Ok(Self { pool, namespace, image, snap, overlap })
        })
    }
}

/// What a snapshot is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Namespace {
    /// A user's.
    #[default]
    User,
    /// Part of a group's.
    Group { pool: i64, group: Bytes, snapshot: Bytes },
    /// Removed, but in use: what it was before.
    Trash { name: Bytes, kind: u32 },
    /// For mirroring.
    Mirror(Box<Mirror>),
    /// Some other kind.
    Unknown,
}

/// A snapshot for mirroring.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mirror {
    pub state: u8,
    pub complete: bool,
    pub peers: BTreeSet<Bytes>,
    pub primary: Bytes,
    pub primary_snap: u64,
    pub last_copied: u64,
    pub snap_seqs: BTreeMap<u64, u64>,
}

impl Namespace {
    pub const TRASH: u32 = 2;

    /// The number of its kind.
    pub fn kind(&self) -> u32 {
        match self {
            Self::User => 0,
            Self::Group { .. } => 1,
            Self::Trash { .. } => Self::TRASH,
            Self::Mirror(_) => 3,
            Self::Unknown => u32::MAX,
        }
    }
}

impl Encode for Namespace {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u32(self.kind());
            match self {
                Self::User | Self::Unknown => {}
                Self::Group { pool, group, snapshot } => {
                    o.i64(*pool);
                    o.put(group);
                    o.put(snapshot);
                }
                Self::Trash { name, kind } => {
                    o.put(name);
                    o.u32(*kind);
                }
                Self::Mirror(m) => {
                    o.u8(m.state);
                    o.bool(m.complete);
                    o.put(&m.peers);
                    o.put(&m.primary);
                    o.u64(m.primary_snap);
                    o.u64(m.last_copied);
                    o.put(&m.snap_seqs);
                }
            }
        });
    }
}

impl Decode for Namespace {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("snapshot namespace", 1, |d, _| {
            Ok(match d.u32()? {
                0 => Self::User,
                1 => Self::Group { pool: d.i64()?, group: d.get()?, snapshot: d.get()? },
                Self::TRASH => Self::Trash { name: d.get()?, kind: d.u32()? },
                3 => Self::Mirror(Box::new(Mirror {
                    state: d.u8()?,
                    complete: d.bool()?,
                    peers: d.get()?,
                    primary: d.get()?,
                    primary_snap: d.u64()?,
                    last_copied: d.u64()?,
                    snap_seqs: d.get()?,
                })),
                _ => Self::Unknown,
            })
        })
    }
}

/// A snapshot of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Snap {
    pub id: u64,
    pub name: Bytes,
    pub size: u64,
    /// 0 unprotected, 1 on its way there, 2 protected.
    pub protection: u8,
    pub flags: u64,
    pub namespace: Namespace,
    pub time: UTime,
    /// Clones of the second kind.
    pub children: u32,
    /// Bytes that come from the image's parent.
    pub overlap: Option<u64>,
    /// The parent, where an old release wrote it here.
    pub parent: Parent,
}

impl Snap {
    /// Does it have a parent?
    pub fn has_parent(&self) -> bool {
        self.parent.pool != NO_POOL || self.overlap.is_some()
    }

    pub fn in_trash(&self) -> bool {
        self.namespace.kind() == Namespace::TRASH
    }

    /// What a client is told of it.
    pub fn put_info(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u64(self.id);
            o.put(&self.namespace);
            o.put(&self.name);
            o.u64(self.size);
            o.put(&self.time);
            o.u32(self.children);
        });
    }
}

impl Encode for Snap {
    /// Without a parent: that is stored once for the image.
    fn encode(&self, out: &mut Encoder) {
        out.versioned(8, 8, |o| {
            o.u64(self.id);
            o.put(&self.name);
            o.u64(self.size);
            o.u8(self.protection);
            o.u64(self.flags);
            o.put(&self.namespace);
            o.put(&self.time);
            o.u32(self.children);
            put_option(o, self.overlap);
        });
    }
}

impl Decode for Snap {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        // The compatible version says more than usual: from 8 on two fields are gone.
        let compat = d.rest().get(1).copied().unwrap_or_default();
        d.versioned("snapshot", 8, |d, v| {
            let mut s = Self { id: d.u64()?, name: d.get()?, size: d.u64()?, ..Self::default() };
            if compat < 8 {
                d.u64()?;
                if v >= 2 {
                    s.parent = d.get()?;
                }
            }
            if v >= 3 {
                s.protection = d.u8()?;
            }
            if v >= 4 {
                s.flags = d.u64()?;
            }
            if v >= 5 {
                s.namespace = d.get()?;
            }
            if v >= 6 {
                s.time = d.get()?;
            }
            if v >= 7 {
                s.children = d.u32()?;
            }
            if v >= 8 {
                s.overlap = get_option(d)?;
            }
            Ok(s)
        })
    }
}

/// A clone of the second kind, as its parent knows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Child {
    pub pool: i64,
    pub namespace: Bytes,
    pub image: Bytes,
}

impl Encode for Child {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(2, 1, |o| {
            o.i64(self.pool);
            o.put(&self.image);
            o.put(&self.namespace);
        });
    }
}

impl Decode for Child {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("child", 2, |d, v| {
            let (pool, image) = (d.i64()?, d.get()?);
            Ok(Self { pool, image, namespace: if v >= 2 { d.get()? } else { Bytes::new() } })
        })
    }
}

/// A group, by its pool and id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub pool: i64,
    pub id: Bytes,
}

impl Encode for Group {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.i64(self.pool);
            o.put(&self.id);
        });
    }
}

impl Decode for Group {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("group", 1, |d, _| Ok(Self { pool: d.i64()?, id: d.get()? }))
    }
}

/// An image of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupImage {
    pub image: Bytes,
    pub pool: i64,
}

impl Encode for GroupImage {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.image);
            o.i64(self.pool);
        });
    }
}

impl Decode for GroupImage {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("image of a group", 1, |d, _| Ok(Self { image: d.get()?, pool: d.i64()? }))
    }
}

/// A snapshot of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupSnap {
    pub id: Bytes,
    pub name: Bytes,
    /// 0 for one that is being made.
    pub state: u8,
    /// Pool, image and snapshot of each image.
    pub snaps: Vec<(i64, Bytes, u64)>,
}

impl Encode for GroupSnap {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.id);
            o.put(&self.name);
            o.u8(self.state);
            o.list(&self.snaps, |o, (pool, image, snap)| {
                o.versioned(1, 1, |o| {
                    o.i64(*pool);
                    o.put(image);
                    o.u64(*snap);
                });
            });
        });
    }
}

impl Decode for GroupSnap {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("snapshot of a group", 1, |d, _| {
            let (id, name, state) = (d.get()?, d.get()?, d.u8()?);
            let snaps = d.list(26, |d| {
                d.versioned("snapshot of an image", 1, |d, _| Ok((d.i64()?, d.get()?, d.u64()?)))
            })?;
            Ok(Self { id, name, state, snaps })
        })
    }
}

/// An image in the trash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trashed {
    /// Who put it there.
    pub source: u8,
    pub name: Bytes,
    pub deleted: UTime,
    pub deferred: UTime,
    pub state: u8,
}

impl Encode for Trashed {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(2, 1, |o| {
            o.u8(self.source);
            o.put(&self.name);
            o.put(&self.deleted);
            o.put(&self.deferred);
            o.u8(self.state);
        });
    }
}

impl Decode for Trashed {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("image in the trash", 2, |d, v| {
            let (source, name, deleted, deferred) = (d.u8()?, d.get()?, d.get()?, d.get()?);
            Ok(Self { source, name, deleted, deferred, state: if v >= 2 { d.u8()? } else { 0 } })
        })
    }
}

/// An image that moves: what each of its two halves knows of the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Migration {
    /// 1 the source, 2 the destination.
    pub half: u8,
    pub pool: i64,
    pub namespace: Bytes,
    pub name: Bytes,
    pub image: Bytes,
    pub snap_seqs: BTreeMap<u64, u64>,
    pub overlap: u64,
    pub flatten: bool,
    pub mirroring: bool,
    pub state: u8,
    pub description: Bytes,
    pub mirror_mode: u8,
    /// Where the source is, if it is no image of a cluster.
    pub source: Bytes,
}

impl Migration {
    pub const DESTINATION: u8 = 2;
}

impl Encode for Migration {
    fn encode(&self, out: &mut Encoder) {
        // What an old client would take for an image of a cluster it must not read.
        out.versioned(3, if self.source.is_empty() { 1 } else { 3 }, |o| {
            o.u8(self.half);
            o.i64(self.pool);
            o.put(&self.namespace);
            o.put(&self.name);
            o.put(&self.image);
            o.put(&self.snap_seqs);
            o.u64(self.overlap);
            o.bool(self.flatten);
            o.bool(self.mirroring);
            o.u8(self.state);
            o.put(&self.description);
            o.u8(self.mirror_mode);
            o.put(&self.source);
        });
    }
}

impl Decode for Migration {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("migration", 3, |d, v| {
            Ok(Self {
                half: d.u8()?,
                pool: d.i64()?,
                namespace: d.get()?,
                name: d.get()?,
                image: d.get()?,
                snap_seqs: d.get()?,
                overlap: d.u64()?,
                flatten: d.bool()?,
                mirroring: d.bool()?,
                state: d.u8()?,
                description: d.get()?,
                mirror_mode: if v >= 2 { d.u8()? } else { 0 },
                source: if v >= 3 { d.get()? } else { Bytes::new() },
            })
        })
    }
}
