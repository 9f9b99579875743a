//! Ops on an object's bytes, existence and metadata.

use super::staged::Staged;
use super::state::{Clone, ObjectInfo, encode_clone};
use super::vector::{Ran, Stop, Vector};
use crate::snap::{self, At};
use bytes::Bytes;
use spirula_encoding::Encoder;
use spirula_messages::ceph::op::{self, Extent, OsdOp};
use spirula_types::{HObject, SNAP_HEAD, errno};

/// Result of a byte comparison that fails at offset n: −4095 − n.
const MISMATCH_BASE: i64 = -4095;

/// Some CephFS clients say "never truncated" as sequence 1, size −1.
fn normal(mut e: Extent) -> Extent {
    if e.truncate_seq == 1 && e.truncate_size == u64::MAX {
        e.truncate_seq = 0;
        e.truncate_size = 0;
    }
    e
}

/// The part of a range below `size`, as a length.
fn clamp(offset: u64, length: u64, size: u64) -> u64 {
    length.min(size.saturating_sub(offset))
}

impl Vector<'_> {
    /// Size that a read with a newer file-system truncation than the object's sees.
    fn size_for(&self, e: &Extent) -> u64 {
        let info = &self.object.info;
        let beyond = e.offset.saturating_add(e.length) > e.truncate_size;
        if info.truncate_seq < e.truncate_seq && beyond {
            info.size.min(e.truncate_size)
        } else {
            info.size
        }
    }

    /// Bytes of the object, counted against the reply's bound.
    pub(super) fn bytes(&mut self, offset: u64, length: u64) -> Result<Bytes, Stop> {
        self.reserve(length)?;
        Ok(self.object.read(offset, length)?)
    }

    pub(super) fn read(&mut self, e: Extent, out: &mut OsdOp, crc: &mut Option<u32>) -> Ran {
        let e = normal(e);
        let size = self.size_for(&e);
        let length = if e.length == 0 { size } else { e.length };
        let length = clamp(e.offset, length, size);
        self.reserve(length)?;
        (out.indata, *crc) = self.object.read_with_crc(e.offset, length)?;
        let n = out.indata.len() as u64;
        out.set_length(n);
        self.object.stats.count_read(n);
        Ok(0)
    }

    pub(super) fn sparse_read(&mut self, e: Extent, out: &mut OsdOp) -> Ran {
        let e = normal(e);
        if e.truncate_seq != 0 {
            return Err(Stop::Errno(errno::EINVAL));
        }
        let map =
            self.object.extents(e.offset, clamp(e.offset, e.length, self.object.info.size))?;
        let total: u64 = map.iter().map(|(_, n)| n).sum();
        self.reserve(total.saturating_add(16 * map.len() as u64 + 8))?;
        let mut o = Encoder::with_capacity(total as usize + 16 * map.len() + 8);
        o.put(&map);
        o.u32(total as u32);
        for (at, n) in &map {
            o.raw(&self.object.read(*at, *n)?);
        }
        out.set_length(total);
        out.indata = o.into_bytes();
        self.object.stats.count_read(total);
        Ok(0)
    }

    pub(super) fn mapext(&mut self, e: Extent, out: &mut OsdOp) -> Ran {
        self.replicated_only()?;
        let map =
            self.object.extents(e.offset, clamp(e.offset, e.length, self.object.info.size))?;
        self.reserve(16 * map.len() as u64 + 4)?;
        let mut o = Encoder::with_capacity(16 * map.len() + 4);
        o.put(&map);
        out.indata = o.into_bytes();
        self.object.stats.count_read(out.indata.len() as u64);
        Ok(self.result)
    }

    pub(super) fn stat_op(&mut self, out: &mut OsdOp) -> Ran {
        self.must_exist()?;
        let mut o = Encoder::with_capacity(16);
        o.u64(self.object.info.size);
        o.put(&self.object.info.mtime);
        out.indata = o.into_bytes();
        self.object.stats.count_read(0);
        Ok(self.result)
    }

    pub(super) fn cmpext(&mut self, o: &OsdOp) -> Ran {
        let e = normal(o.extent());
        let length = clamp(e.offset, e.length, self.size_for(&e));
        let stored = if self.object.live() { self.bytes(e.offset, length)? } else { Bytes::new() };
        self.object.stats.count_read(stored.len() as u64);
        // Beyond the stored bytes an object reads as zeros.
        let same =
            stored.iter().chain(std::iter::repeat(&0)).zip(&o.indata).position(|(a, b)| a != b);
        match same {
            None => Ok(0),
            Some(at) => {
                Err(Stop::Mismatch(i32::try_from(MISMATCH_BASE - at as i64).unwrap_or(i32::MIN)))
            }
        }
    }

    pub(super) fn assert_version(&self, o: &OsdOp) -> Ran {
        let version = self.object.info.user_version;
        match o.assert_version() {
            0 => Err(Stop::Errno(errno::EINVAL)),
            v if v < version => Err(Stop::Errno(errno::ERANGE)),
            v if v > version => Err(Stop::Errno(errno::EOVERFLOW)),
            _ => Ok(self.result),
        }
    }

    pub(super) fn list_snaps(&mut self, out: &mut OsdOp) -> Ran {
        let Staged { base, info, .. } = &self.object;
        let head = Clone { id: SNAP_HEAD, size: info.size, ..Clone::default() };
        let head = (!info.has(ObjectInfo::WHITEOUT)).then_some(head);
        // Here the snapshots of a clone ascend.
        let ascending =
            |c: &Clone| Clone { snaps: c.snaps.iter().rev().copied().collect(), ..c.clone() };
        let clones = base.snapset.clones.iter().map(ascending);
        let mut o = Encoder::new();
        o.versioned(2, 1, |o| {
            o.list(clones.chain(head), |o, c| encode_clone(o, &c));
            o.u64(base.snapset.seq);
        });
        out.indata = o.into_bytes();
        self.object.stats.count_read(0);
        Ok(0)
    }

    /// Makes the head what it was at a snapshot: the clone's content, nothing if it did not exist;
    /// a head that was not changed since stays.
    pub(super) fn rollback(&mut self, o: &OsdOp) -> Ran {
        match snap::shown(self.object.base, o.snap(), self.ctx.removed) {
            // Nothing of it changes, and it is a change all the same, as in Ceph: the version
            // grows, and what the context names anew gets a clone.
            At::Head => self.object.modified |= self.object.live(),
            At::Nothing => {
                if self.object.live() {
                    self.object.remove();
                    self.end_watches();
                    self.object.stats.count_write(0);
                }
            }
            At::Clone(id) => {
                let clone = HObject { snap: id, ..self.ctx.object.clone() };
                let state = self.object.load(&clone)?;
                if !state.exists {
                    return Err(Stop::Errno(errno::EIO));
                }
                self.object.roll_back(clone, state);
                if planted!(self.ctx, RollbackHalf) {
                    self.object.truncate(self.object.info.size / 32 * 16);
                }
            }
        }
        Ok(0)
    }

    /// Checks a range to be written against the largest object.
    fn check_range(&self, offset: u64, length: u64) -> Result<(), Stop> {
        let max = self.ctx.limits.max_object_size;
        let ok = offset < max && offset.checked_add(length).is_some_and(|end| end <= max);
        if ok { Ok(()) } else { Err(Stop::Errno(errno::EFBIG)) }
    }

    pub(super) fn write(&mut self, e: Extent, mut data: Bytes) -> Ran {
        let e = normal(e);
        if e.length != data.len() as u64 {
            return Err(Stop::Errno(errno::EINVAL));
        }
        if let Some(stripe) = self.ctx.pool.append_alignment {
            let end = if self.object.exists { self.object.info.size } else { 0 };
            if !e.offset.is_multiple_of(stripe.max(1)) || e.offset != end {
                return Err(Stop::Errno(errno::EOPNOTSUPP));
            }
        }
        let info = &self.object.info;
        if info.truncate_seq > e.truncate_seq && e.offset.saturating_add(e.length) > info.size {
            // Sent before a truncation that came first: what lies beyond it is lost.
            data.truncate(clamp(e.offset, e.length, info.size) as usize);
        }
        if e.truncate_seq > info.truncate_seq {
            // Sent after a truncation that has not come yet: truncate first.
            if self.object.live() {
                if e.truncate_size > self.ctx.limits.max_object_size {
                    return Err(Stop::Errno(errno::EFBIG));
                }
                if e.truncate_size != info.size {
                    self.object.truncate(e.truncate_size);
                }
            }
            self.object.info.truncate_seq = e.truncate_seq;
            self.object.info.truncate_size = e.truncate_size;
        }
        self.check_range(e.offset, data.len() as u64)?;
        self.object.create();
        self.object.stats.count_write(data.len() as u64);
        if !data.is_empty() {
            if !self.ctx.pool.erasure {
                self.object.warm(e.offset, data.len() as u64)?;
            }
            self.object.write(e.offset, data);
        } else if e.offset > self.object.info.size {
            self.object.truncate(e.offset);
        }
        Ok(0)
    }

    pub(super) fn write_full(&mut self, e: Extent, data: Bytes) -> Ran {
        let length = data.len() as u64;
        if e.length != length {
            return Err(Stop::Errno(errno::EINVAL));
        }
        self.check_range(0, length)?;
        self.object.create();
        self.object.stats.count_write(length);
        // Erasure-coded pools rewrite whole stripes: start from nothing.
        if self.ctx.pool.erasure && self.object.info.size > 0 {
            self.object.truncate(0);
        } else if length < self.object.info.size {
            self.object.truncate(length);
        }
        if length > 0 {
            self.object.write(0, data);
        }
        Ok(0)
    }

    pub(super) fn append(&mut self, e: Extent, data: Bytes) -> Ran {
        let Staged { exists, info, .. } = &self.object;
        let offset = if *exists { info.size } else { 0 };
        let truncate_seq = info.truncate_seq;
        self.write(Extent { offset, length: e.length, truncate_size: 0, truncate_seq }, data)
    }

    pub(super) fn write_same(&mut self, o: &OsdOp) -> Ran {
        let (offset, length, pattern) = o.writesame_args();
        if length == 0 {
            return Ok(0);
        }
        if pattern == 0 || !length.is_multiple_of(pattern) || pattern != o.indata.len() as u64 {
            return Err(Stop::Errno(errno::EINVAL));
        }
        self.check_range(offset, length)?;
        self.reserve(length)?;
        let data = o.indata.repeat((length / pattern) as usize);
        self.write(Extent { offset, length, ..Extent::default() }, data.into())
    }

    pub(super) fn zero(&mut self, e: Extent) -> Ran {
        let appends_only = self.ctx.pool.append_alignment.is_some();
        if e.length == 0 && !appends_only {
            return Ok(0);
        }
        let max = self.ctx.limits.max_object_size;
        let size = self.object.info.size;
        if self.object.exists
            && e.offset < max
            && (1..=max).contains(&e.length)
            && e.offset + e.length >= size
        {
            // Zeroing an object's end cuts it off.
            if e.offset >= size {
                return Ok(self.result);
            }
            return self.truncate(Extent { offset: e.offset, ..Extent::default() });
        }
        if appends_only {
            return Err(Stop::Errno(errno::EOPNOTSUPP));
        }
        self.check_range(e.offset, e.length)?;
        if self.object.live() {
            self.object.zero(e.offset, e.length);
            self.object.stats.count_write(0);
        }
        Ok(0)
    }

    pub(super) fn trim_truncate(&mut self, e: Extent) -> Ran {
        let e = normal(e);
        self.truncate(Extent { offset: e.truncate_size, ..e })
    }

    pub(super) fn truncate(&mut self, e: Extent) -> Ran {
        let e = normal(e);
        if self.ctx.pool.append_alignment.is_some() {
            return Err(Stop::Errno(errno::EOPNOTSUPP));
        }
        if !self.object.live() {
            return Ok(0);
        }
        self.check_range(e.offset, e.length)?;
        if e.truncate_seq != 0 {
            if e.offset != e.truncate_size {
                return Err(Stop::Errno(errno::EINVAL));
            }
            if e.truncate_seq <= self.object.info.truncate_seq {
                return Ok(0);
            }
            self.object.info.truncate_seq = e.truncate_seq;
            self.object.info.truncate_size = e.truncate_size;
        }
        self.object.truncate(e.offset);
        self.object.stats.count_write(0);
        Ok(0)
    }

    pub(super) fn create(&mut self, o: &OsdOp) -> Ran {
        if self.object.live() && o.flags & op::FLAG_EXCL != 0 {
            return Err(Stop::Errno(errno::EEXIST));
        }
        self.object.create();
        Ok(0)
    }

    pub(super) fn delete(&mut self) -> Ran {
        self.must_exist()?;
        self.object.remove();
        self.end_watches();
        self.object.stats.count_write(0);
        Ok(0)
    }

    pub(super) fn set_alloc_hint(&mut self, o: &OsdOp) -> Ran {
        let hint = o.alloc_hint();
        self.object.alloc_hint(hint.object_size, hint.write_size, hint.flags);
        Ok(0)
    }
}
