//! copy_from: making the object a copy of another, possibly of another PG.
//!
//! Execution cannot reach other objects. It asks for the source with [`Pause::Fetch`]; the
//! caller gets it from wherever it lives and executes again with the answer.

use super::Pause;
use super::reader::{ObjectReader, OmapRange, ReadError};
use super::state::{ObjectInfo, load_object, user_name};
use super::vector::{Ran, Stop, Vector};
use bytes::Bytes;
use spirula_encoding::Decoder;
use spirula_messages::ceph::op::{self, OsdOp};
use spirula_types::{HObject, ObjectLocator, errno};

/// copy_from2 flag: the input ends with truncate sequence and size.
const FLAG_TRUNCATE_SEQ: u8 = 0x10;
/// All flags copy_from2 knows.
const FLAGS: u8 = 0x1f;

/// An object to be fetched. Its `hash` is computed from its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The object, head or clone.
    pub object: HObject,
    /// User version it must have (ERANGE if it is newer, EOVERFLOW if older); 0 for any.
    pub version: u64,
}

/// The answer to [`Pause::Fetch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// It cannot be had; the positive errno (ENOENT, ERANGE…) fails the op.
    Failed(i32),
    /// All of it.
    Object(Box<WholeObject>),
}

/// Everything a copy takes over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeObject {
    /// What was asked for.
    pub source: Source,
    /// Its bytes.
    pub data: Bytes,
    /// Its user attributes, raw names.
    pub attrs: Vec<(Bytes, Bytes)>,
    /// Its omap header.
    pub omap_header: Bytes,
    /// Its omap, keys ascending.
    pub omap: Vec<(Bytes, Bytes)>,
    /// Its user version, modification time, truncation and flags.
    pub info: ObjectInfo,
}

impl Fetched {
    /// Reads the head of a local object whole, for sources on the same OSD.
    ///
    /// # Errors
    /// [`ReadError`] of the reader; what is wrong with the source is in the answer.
    pub fn read(reader: &dyn ObjectReader, source: &Source) -> Result<Self, ReadError> {
        let object = &source.object;
        let state = load_object(reader, object)?;
        if !state.live() {
            return Ok(Self::Failed(errno::ENOENT));
        }
        let info = state.info;
        match source.version {
            0 => {}
            v if v < info.user_version => return Ok(Self::Failed(errno::ERANGE)),
            v if v > info.user_version => return Ok(Self::Failed(errno::EOVERFLOW)),
            _ => {}
        }
        let data = if info.size == 0 { Bytes::new() } else { reader.read(object, 0, info.size)? };
        let mut attrs = reader.attrs(object)?;
        attrs.retain(|(k, _)| user_name(k).is_some());
        let (mut omap_header, mut omap) = (Bytes::new(), Vec::new());
        if info.has(ObjectInfo::OMAP) {
            omap_header = reader.omap_header(object)?;
            let all = OmapRange {
                from: b"",
                until: None,
                max_entries: usize::MAX,
                max_bytes: usize::MAX,
            };
            omap = reader.omap_range(object, all)?.entries;
        }
        Ok(Self::Object(Box::new(WholeObject {
            source: source.clone(),
            data,
            attrs,
            omap_header,
            omap,
            info,
        })))
    }
}

impl Vector<'_> {
    pub(super) fn copy_from(&mut self, o: &OsdOp) -> Ran {
        const EINVAL: Stop = Stop::Errno(errno::EINVAL);
        let args = o.copy_from_args();
        let second = o.op == op::COPY_FROM2;
        if second && args.flags & !FLAGS != 0 {
            return Err(EINVAL);
        }
        let mut d = Decoder::new(&o.indata);
        let name = d.bytes()?;
        let locator: ObjectLocator = d.get()?;
        let truncate = if second && args.flags & FLAG_TRUNCATE_SEQ != 0 {
            Some((d.u32()?, d.u64()?))
        } else {
            None
        };
        let mut object = HObject::head(locator.pool, locator.namespace, locator.key, name);
        object.snap = args.src_snap;
        if object == *self.ctx.object || object.name.is_empty() {
            return Err(EINVAL);
        }
        let wanted = Source { object, version: args.src_version };
        match self.ctx.fetched {
            Some(Fetched::Failed(e)) => Err(Stop::Errno(*e)),
            Some(Fetched::Object(whole)) if whole.source == wanted => {
                let WholeObject { data, attrs, omap_header, omap, info, .. } = &**whole;
                let has_omap = info.has(ObjectInfo::OMAP);
                if has_omap && self.ctx.pool.erasure {
                    return Err(Stop::Errno(errno::EOPNOTSUPP));
                }
                if data.len() as u64 > self.ctx.limits.max_object_size {
                    return Err(Stop::Errno(errno::EFBIG));
                }
                if self.object.exists {
                    self.object.remove();
                }
                self.object.create();
                if !data.is_empty() {
                    self.object.write(0, data.clone());
                }
                for (k, v) in attrs {
                    self.object.set_attr(k.clone(), v.clone());
                }
                if has_omap {
                    self.object.omap_set(omap.clone());
                    if !omap_header.is_empty() {
                        self.object.omap_set_header(omap_header.clone());
                    }
                }
                self.take_over(info, truncate);
                self.object.stats.count_write(data.len() as u64);
                Ok(0)
            }
            // Asking for one source after the other would never end.
            Some(_) => Err(Stop::Errno(errno::EOPNOTSUPP)),
            None => Err(Stop::Pause(Box::new(Pause::Fetch(wanted)))),
        }
    }

    /// Takes version, time and truncation over from the source.
    fn take_over(&mut self, source: &ObjectInfo, truncate: Option<(u32, u64)>) {
        let (seq, size) = truncate.unwrap_or((source.truncate_seq, source.truncate_size));
        let info = &mut self.object.info;
        info.mtime = source.mtime;
        info.truncate_seq = seq;
        info.truncate_size = size;
        self.object.copied_version = Some(source.user_version);
    }
}
