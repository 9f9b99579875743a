//! Calls of object classes: the object as a class method sees it, and what becomes of what the
//! method gives.
//!
//! A method reads what the vector before it left and changes the same
//! [`Staged`](super::staged::Staged): its changes are the vector's. Attributes alone it sees as
//! they were before the vector, as in Ceph: radosgw replaces an object by removing it first, and
//! has the version of what it has removed checked then. It is held to the limits of ops, and may
//! read as much as one request may put out. What it reads and does not put out counts, too, so that
//! no call takes more memory than a read does.

use super::called;
use super::state::{user_attr, user_name};
use super::vector::{Ran, Stop, Vector};
use bytes::Bytes;
use spirula_classes::{Caller, Method, Object, Page, Stat, Stop as Halt, Unknown};
use spirula_encoding::UTime;
use spirula_messages::ceph::op::{Extent, OsdOp};
use spirula_types::errno;
use spirula_types::limits::pair_size;

/// Most times that a call may ask for something or change something.
const MOST_STEPS: u32 = 1 << 20;
/// A block of the stores, bytes.
const BLOCK: u64 = 4096;

/// Is a call one of a method that there is? The error is a positive errno, and Ceph's. (A class
/// that is none of those that an OSD is to load is forbidden before that, whether there is such a
/// one or not.)
pub(super) fn check(o: &OsdOp) -> Result<(), i32> {
    let args = o.call_args().map_err(|_| errno::EINVAL)?;
    match spirula_classes::find(&args.class, &args.method) {
        Ok(_) => Ok(()),
        Err(Unknown::Class | Unknown::Method) => Err(errno::EOPNOTSUPP),
    }
}

impl Vector<'_> {
    /// Runs a class method. What it puts out counts even if it fails, as in Ceph.
    pub(super) fn call(&mut self, o: &OsdOp, out: &mut OsdOp) -> Ran {
        let args = o.call_args()?;
        let Some((_, method)) = called(o) else { return Err(Stop::Errno(errno::EOPNOTSUPP)) };
        if method.flags.write {
            self.object.user_modify = true;
        }
        let mut seen = Seen { vector: self, method, steps: 0, trespass: false, stop: None };
        let (result, output) = method.run(&mut seen, args.input);
        let Seen { trespass, stop, .. } = seen;
        self.reserve(output.len() as u64)?;
        out.set_length(output.len() as u64);
        out.indata = output;
        match result {
            // What it waits for, or the result of a comparison: no errno.
            Err(Halt::Later) => Err(stop.unwrap_or(Stop::Errno(errno::EIO))),
            _ if trespass => Err(Stop::Errno(errno::EIO)),
            Err(Halt::Errno(e)) => Err(Stop::Errno(e)),
            Ok(result) => Ok(result),
        }
    }
}

/// An object as a method sees it.
struct Seen<'v, 'a> {
    vector: &'v mut Vector<'a>,
    method: &'static Method,
    /// Calls so far.
    steps: u32,
    /// It did what it is not registered for.
    trespass: bool,
    /// Why it must wait.
    stop: Option<Stop>,
}

impl<'a> Seen<'_, 'a> {
    fn step<T>(&mut self, f: impl FnOnce(&mut Vector<'a>) -> Result<T, Stop>) -> Result<T, Halt> {
        self.steps += 1;
        self.vector.steps += 1;
        if self.steps > MOST_STEPS {
            return Err(Halt::Errno(errno::E2BIG));
        }
        f(self.vector).map_err(|stop| match stop {
            Stop::Errno(e) => Halt::Errno(e),
            other => {
                self.stop = Some(other);
                Halt::Later
            }
        })
    }

    fn reads<T>(&mut self, f: impl FnOnce(&mut Vector<'a>) -> Result<T, Stop>) -> Result<T, Halt> {
        if !self.method.flags.read {
            // Refused before anything is done: a client that lets its op fail (FAILOK) has no
            // output of it.
            self.trespass = true;
            return Err(Halt::Errno(errno::EIO));
        }
        self.step(f)
    }

    fn writes(&mut self, f: impl FnOnce(&mut Vector<'a>) -> Ran) -> Result<(), Halt> {
        if !self.method.flags.write {
            // Nor is anything changed by who may only read.
            self.trespass = true;
            return Err(Halt::Errno(errno::EIO));
        }
        self.step(f).map(drop)
    }
}

impl Object for Seen<'_, '_> {
    fn caller(&self) -> Caller {
        let origin = &self.vector.ctx.origin;
        Caller { name: origin.reqid.name, addr: origin.addr }
    }

    fn now(&self) -> UTime {
        self.vector.ctx.origin.now
    }

    fn unique(&mut self) -> u64 {
        let origin = &self.vector.ctx.origin;
        self.vector.drawn += 1;
        // A request is executed once with effect, so what names it names nothing else.
        let parts = [
            origin.reqid.name.num.cast_unsigned(),
            origin.reqid.tid,
            u64::from(origin.reqid.inc.cast_unsigned()),
            origin.now.as_nanos(),
            self.vector.drawn,
        ];
        parts.iter().fold(0, |h, part| mix(h ^ part))
    }

    fn stat(&mut self) -> Result<Stat, Halt> {
        // Not counted as reading, as in Ceph.
        self.step(|v| {
            v.must_exist()?;
            Ok(Stat { size: v.object.info.size, mtime: v.object.info.mtime })
        })
    }

    fn read(&mut self, offset: u64, length: u64) -> Result<Bytes, Halt> {
        self.reads(|v| {
            v.replicated_only()?;
            let length = length.min(v.object.info.size.saturating_sub(offset));
            v.bytes(offset, length)
        })
    }

    fn attr(&mut self, name: &[u8]) -> Result<Bytes, Halt> {
        self.reads(|v| {
            v.must_exist()?;
            // The empty name names none: under it the object's metadata are stored.
            let value =
                if name.is_empty() { None } else { v.object.attr_before(&user_attr(name))? };
            let value = value.ok_or(Stop::Errno(errno::ENODATA))?;
            v.reserve(value.len() as u64)?;
            Ok(value)
        })
    }

    fn attrs(&mut self) -> Result<Vec<(Bytes, Bytes)>, Halt> {
        self.reads(|v| {
            v.must_exist()?;
            let attrs = v.object.attrs_before()?;
            v.reserve(size_of(attrs.iter().map(|(k, v)| (k, v))))?;
            Ok(attrs.into_iter().filter_map(|(k, v)| Some((user_name(&k)?, v))).collect())
        })
    }

    fn omap_get(&mut self, key: &[u8]) -> Result<Option<Bytes>, Halt> {
        self.reads(|v| {
            let value = if v.has_omap() { v.object.omap_get(key)? } else { None };
            v.reserve(value.as_ref().map_or(0, |v| v.len() as u64))?;
            Ok(value)
        })
    }

    fn omap_page(&mut self, after: &[u8], prefix: &[u8], max: u64) -> Result<Page, Halt> {
        self.reads(|v| {
            let page = v.omap_page(after, prefix, max)?;
            v.reserve(size_of(page.entries.iter().map(|(k, v)| (k, v))))?;
            Ok(Page { pairs: page.entries, more: page.more })
        })
    }

    fn omap_header(&mut self) -> Result<Bytes, Halt> {
        self.reads(|v| {
            let header = if v.has_omap() { v.object.omap_header()? } else { Bytes::new() };
            v.reserve(header.len() as u64)?;
            Ok(header)
        })
    }

    fn version(&self) -> u64 {
        self.vector.ctx.last_user_version
    }

    fn steps(&self) -> u32 {
        self.vector.steps
    }

    fn snap_seq(&mut self) -> Result<u64, Halt> {
        self.step(|v| {
            // A deleted object with clones has a history, as in Ceph (`cls_get_snapset_seq`).
            let history = &v.object.base.snapset;
            let known = v.object.live() || v.object.exists && !history.clones.is_empty();
            if !known {
                return Err(Stop::Errno(errno::ENOENT));
            }
            Ok(history.seq)
        })
    }

    fn watchers(&mut self) -> Result<Vec<Caller>, Halt> {
        // Not counted as reading, as in Ceph.
        self.step(|v| {
            v.must_exist()?;
            let all = v.object.watchers.clone();
            v.reserve((all.len() * std::mem::size_of::<Caller>()) as u64)?;
            Ok(all.iter().map(|w| Caller { name: w.name, addr: w.addr }).collect())
        })
    }

    fn create(&mut self, exclusive: bool) -> Result<(), Halt> {
        self.writes(|v| v.create(&OsdOp::create(exclusive)))
    }

    fn write(&mut self, offset: u64, data: Bytes) -> Result<(), Halt> {
        // Counted as what the store takes for it: whole blocks, also of one byte.
        let (first, end) =
            (offset / BLOCK, offset.saturating_add(data.len() as u64).div_ceil(BLOCK));
        self.writes(|v| {
            v.reserve(end.saturating_sub(first).max(1).saturating_mul(BLOCK))?;
            v.write(Extent { offset, length: data.len() as u64, ..Extent::default() }, data)
        })
    }

    fn zero(&mut self, offset: u64, length: u64) -> Result<(), Halt> {
        self.writes(|v| v.zero(Extent { offset, length, ..Extent::default() }))
    }

    fn truncate(&mut self, size: u64) -> Result<(), Halt> {
        self.writes(|v| v.truncate(Extent { offset: size, ..Extent::default() }))
    }

    fn omap_remove(&mut self, keys: Vec<Bytes>) -> Result<(), Halt> {
        self.writes(|v| v.rm_keys(keys))
    }

    fn omap_remove_range(&mut self, first: Bytes, end: Bytes) -> Result<(), Halt> {
        self.writes(|v| v.rm_range(first, end))
    }

    fn omap_clear(&mut self) -> Result<(), Halt> {
        self.writes(Vector::omap_clear)
    }

    fn omap_set_header(&mut self, header: Bytes) -> Result<(), Halt> {
        self.writes(|v| {
            v.reserve(header.len() as u64)?;
            v.omap_set_header(&header)
        })
    }

    fn write_full(&mut self, data: Bytes) -> Result<(), Halt> {
        self.writes(|v| {
            v.reserve(data.len() as u64)?;
            v.write_full(Extent { length: data.len() as u64, ..Extent::default() }, data)
        })
    }

    fn remove(&mut self) -> Result<(), Halt> {
        self.writes(Vector::delete)
    }

    fn set_attr(&mut self, name: &[u8], value: Bytes) -> Result<(), Halt> {
        self.writes(|v| {
            v.reserve(value.len() as u64)?;
            v.setxattr(&OsdOp::setxattr(name, &value))
        })
    }

    fn omap_set(&mut self, pairs: Vec<(Bytes, Bytes)>) -> Result<(), Halt> {
        self.writes(|v| {
            v.reserve(size_of(pairs.iter().map(|(k, v)| (k, v))))?;
            v.set_pairs(pairs)
        })
    }
}

/// Memory that pairs take.
fn size_of<'a>(pairs: impl Iterator<Item = (&'a Bytes, &'a Bytes)>) -> u64 {
    pairs.map(|(k, v)| pair_size(k, v) as u64).sum()
}

/// Mixes the bits of a number: SplitMix64's finalizer, which gives no two numbers the same.
fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
