//! Maps on their way to subscribers. The maps themselves stay encoded.
//! Source: `docs/protocol/mon.md` §1.

use super::{get_slice, kind, rest_slice};
use crate::Body;
use bytes::Bytes;
use spirula_encoding::{DecodeError, Decoder, Encoder};
use spirula_types::{Epoch, Uuid};

/// The monitor map (4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MMonMap {
    /// Encoded MonMap.
    pub monmap: Bytes,
}

impl Body for MMonMap {
    const KIND: u16 = kind::MON_MAP;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;
    const PRIORITY: u16 = kind::PRIORITY_MON;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::with_capacity(4 + self.monmap.len());
        o.put(&self.monmap);
        (o.into_vec(), Bytes::new())
    }

    fn read(_: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        Ok(Self { monmap: get_slice(&mut Decoder::new(front), front)? })
    }
}

/// OSD maps (41): incremental and full ones by epoch. Sent by monitors (priority 196) and
/// by OSDs to clients that lag behind (127).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MOsdMap {
    /// The cluster.
    pub fsid: Uuid,
    /// Encoded incrementals, ascending.
    pub incrementals: Vec<(Epoch, Bytes)>,
    /// Encoded full maps, ascending.
    pub fulls: Vec<(Epoch, Bytes)>,
    /// Oldest map the sender has.
    pub oldest: Epoch,
    /// Newest map the sender has.
    pub newest: Epoch,
}

impl Body for MOsdMap {
    const KIND: u16 = kind::OSD_MAP;
    const VERSION: u16 = 4;
    const COMPAT: u16 = 3;
    const PRIORITY: u16 = kind::PRIORITY_MON;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let maps = |m: &[(Epoch, Bytes)]| m.iter().map(|(_, b)| 8 + b.len()).sum::<usize>();
        let mut o = Encoder::with_capacity(40 + maps(&self.incrementals) + maps(&self.fulls));
        o.put(&self.fsid);
        o.put(&self.incrementals);
        o.put(&self.fulls);
        o.u32(self.oldest);
        o.u32(self.newest);
        o.u32(0); // gap removed snaps: none
        (o.into_vec(), Bytes::new())
    }

    fn read(version: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(front);
        let fsid = d.get()?;
        let mut maps = || d.list(8, |d| Ok((d.u32()?, get_slice(d, front)?)));
        let incrementals = maps()?;
        let fulls = maps()?;
        let (oldest, newest) = if version >= 2 { (d.u32()?, d.u32()?) } else { (0, 0) };
        Ok(Self { fsid, incrementals, fulls, oldest, newest })
    }
}

/// One file system's map (21).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MMdsMap {
    /// The cluster.
    pub fsid: Uuid,
    /// Its epoch.
    pub epoch: Epoch,
    /// Encoded MDSMap.
    pub mdsmap: Bytes,
    /// The file system's name.
    pub fs_name: String,
}

impl Body for MMdsMap {
    const KIND: u16 = kind::MDS_MAP;
    const VERSION: u16 = 2;
    const COMPAT: u16 = 1;
    const PRIORITY: u16 = kind::PRIORITY_MON;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::with_capacity(28 + self.mdsmap.len() + self.fs_name.len());
        o.put(&self.fsid);
        o.u32(self.epoch);
        o.put(&self.mdsmap);
        o.str(&self.fs_name);
        (o.into_vec(), Bytes::new())
    }

    fn read(version: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(front);
        Ok(Self {
            fsid: d.get()?,
            epoch: d.u32()?,
            mdsmap: get_slice(d, front)?,
            fs_name: if version >= 2 { d.get()? } else { String::new() },
        })
    }
}

macro_rules! epoch_and_map {
    ($(#[$doc:meta])* $name:ident, $kind:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            /// Its epoch.
            pub epoch: Epoch,
            /// The encoded map.
            pub map: Bytes,
        }

        impl Body for $name {
            const KIND: u16 = $kind;
            const VERSION: u16 = 1;
            const COMPAT: u16 = 1;
            const PRIORITY: u16 = kind::PRIORITY_MON;

            fn segments(&self) -> (Vec<u8>, Bytes) {
                let mut o = Encoder::with_capacity(4 + self.map.len());
                o.u32(self.epoch);
                o.raw(&self.map);
                (o.into_vec(), Bytes::new())
            }

            fn read(_: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
                let d = &mut Decoder::new(front);
                let epoch = d.u32()?;
                Ok(Self { epoch, map: rest_slice(d, front) })
            }
        }
    };
}

epoch_and_map!(
    /// All file systems' maps (45).
    MFsMap,
    kind::FS_MAP
);
epoch_and_map!(
    /// Names of the file systems (103).
    MFsMapUser,
    kind::FS_MAP_USER
);

/// The manager map (0x704).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MMgrMap {
    /// Encoded MgrMap.
    pub mgrmap: Bytes,
}

impl Body for MMgrMap {
    const KIND: u16 = kind::MGR_MAP;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;
    const PRIORITY: u16 = kind::PRIORITY_MON;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        (self.mgrmap.to_vec(), Bytes::new())
    }

    fn read(_: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        Ok(Self { mgrmap: front.clone() })
    }
}
