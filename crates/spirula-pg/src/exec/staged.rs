//! An object as the ops of a vector see it: what is stored, with what earlier ops of the
//! same vector changed laid over it.
//!
//! The changes are kept as the transaction's own ops. Reading back what was just written is
//! rare, so the overlay is derived from them only when it is asked for: writing pays nothing.

use super::Limits;
use super::plan::{Change, StatDelta};
use super::reader::{ObjectReader, OmapPage, OmapRange, ReadError};
use super::state::{ObjectInfo, ObjectState, load_object, user_name};
use super::vector::Stop;
use super::watch::{self, WATCHERS_ATTR, Watcher};
use bytes::Bytes;
use spirula_types::limits::{pair_size, size_of};
use spirula_types::transaction::ObjectOp;
use spirula_types::{HObject, errno};
use std::collections::BTreeMap;
use std::ops::Bound;

/// Unit in which the store keeps data, bytes.
const STORE_BLOCK: u64 = 4096;

/// Bytes beside data for which there may be no room though the OSD is not full yet.
const MUCH: usize = 1 << 20;

/// The omap's changes, in a form that can be looked up.
#[derive(Default)]
struct OmapOverlay {
    /// Ops of the vector already taken in.
    folded: usize,
    /// What is stored is hidden.
    cleared: bool,
    /// Ranges of what is stored that are hidden.
    removed: Vec<(Bytes, Bytes)>,
    /// Keys set (`Some`) and removed (`None`).
    entries: BTreeMap<Bytes, Option<Bytes>>,
    header: Option<Bytes>,
}

impl OmapOverlay {
    fn fold(&mut self, ops: &[ObjectOp]) {
        for op in ops.get(self.folded..).unwrap_or_default() {
            match op {
                ObjectOp::OmapSet(kv) => {
                    self.entries.extend(kv.iter().map(|(k, v)| (k.clone(), Some(v.clone()))));
                }
                ObjectOp::OmapRm(keys) => {
                    self.entries.extend(keys.iter().map(|k| (k.clone(), None)))
                }
                ObjectOp::OmapRmRange { first, last } => {
                    self.entries.retain(|k, _| k < first || k >= last);
                    self.removed.push((first.clone(), last.clone()));
                }
                // All that is stored is another object's.
                ObjectOp::CloneFrom(_) => *self = Self::default(),
                ObjectOp::OmapClear | ObjectOp::Remove => {
                    *self = Self { cleared: true, header: Some(Bytes::new()), ..Self::default() };
                }
                ObjectOp::OmapSetHeader(h) => self.header = Some(h.clone()),
                _ => {}
            }
        }
        self.folded = ops.len();
    }

    /// Does the overlay hide what is stored under `key`?
    fn hides(&self, key: &[u8]) -> bool {
        self.cleared
            || self.entries.contains_key(key)
            || self.removed.iter().any(|(a, b)| **a <= *key && *key < **b)
    }
}

/// See the module.
pub(super) struct Staged<'a> {
    reader: &'a dyn ObjectReader,
    object: &'a HObject,
    /// The object before the vector.
    pub base: &'a ObjectState,
    /// The clone that the vector rolled it back to, with what is stored of that: what is not
    /// changed is read there.
    rolled: Option<Box<(HObject, ObjectState)>>,
    /// Is it stored now?
    pub exists: bool,
    /// Its metadata now.
    pub info: ObjectInfo,
    /// Who watches it now.
    pub watchers: Vec<Watcher>,
    /// Did an op change it, be it only formally?
    pub modified: bool,
    /// Did an op change it so that users see a new version?
    pub user_modify: bool,
    /// User version taken over by a copy.
    pub copied_version: Option<u64>,
    /// Statistics so far.
    pub stats: StatDelta,
    ops: Vec<ObjectOp>,
    omap: OmapOverlay,
}

impl<'a> Staged<'a> {
    pub fn new(reader: &'a dyn ObjectReader, object: &'a HObject, base: &'a ObjectState) -> Self {
        Self {
            reader,
            object,
            base,
            rolled: None,
            exists: base.exists,
            info: base.info,
            watchers: base.watchers.clone(),
            modified: false,
            user_modify: false,
            copied_version: None,
            stats: StatDelta::default(),
            ops: Vec::new(),
            omap: OmapOverlay::default(),
        }
    }

    /// Does it exist for clients?
    pub fn live(&self) -> bool {
        self.exists && !self.info.has(ObjectInfo::WHITEOUT)
    }

    /// The finished change.
    pub fn into_change(mut self) -> Change {
        let omap =
            |exists: bool, info: &ObjectInfo| i64::from(exists && info.has(ObjectInfo::OMAP));
        self.stats.omap_objects =
            omap(self.exists, &self.info) - omap(self.base.exists, &self.base.info);
        self.keep_watchers();
        let stored = self.stored();
        Change {
            size_before: if stored.exists { stored.info.size } else { 0 },
            object: self.object.clone(),
            ops: self.ops,
            state: ObjectState {
                exists: self.exists,
                info: self.info,
                snapset: self.base.snapset.clone(),
                watchers: self.watchers,
            },
            source: self.rolled.map(|r| r.0),
            frozen: false,
            delete: !self.exists,
            user_modify: self.user_modify,
            user_version: self.copied_version,
            stats: self.stats,
        }
    }

    /// Has the change store who watches, if that is not what is stored.
    fn keep_watchers(&mut self) {
        if !self.exists {
            self.watchers.clear();
            // It may be stored all the same, as a whiteout.
            self.info.set(ObjectInfo::WATCHED, false);
            return;
        }
        // A clone has none, and neither has what is made from one.
        let kept = self.rolled.is_none() && self.base_visible();
        let stored: &[Watcher] = if kept { &self.base.watchers } else { &[] };
        if *stored != *self.watchers {
            match self.watchers.is_empty() {
                true => self.rm_attr(WATCHERS_ATTR.into()),
                false => self.set_attr(WATCHERS_ATTR.into(), watch::to_attr(&self.watchers)),
            }
        }
        self.info.set(ObjectInfo::WATCHED, !self.watchers.is_empty());
    }

    // ---- limits ----

    /// Is what the vector made of the object something that every member's store takes? Looked
    /// at before the change has a place in the log.
    pub fn check(&self, limits: &Limits) -> Result<(), Stop> {
        let size = size_of(&self.ops).map_err(|_| Stop::Errno(errno::E2BIG))?;
        if size > limits.max_change {
            return Err(Stop::Errno(errno::E2BIG));
        }
        let grows = |op: &ObjectOp| match op {
            ObjectOp::OmapSet(_) | ObjectOp::OmapSetHeader(_) | ObjectOp::SetAttrs(_) => {
                size_of(std::slice::from_ref(op)).unwrap_or_default()
            }
            _ => 0,
        };
        let pairs = |op: &ObjectOp| match op {
            ObjectOp::OmapSet(pairs) | ObjectOp::SetAttrs(pairs) => pairs.len(),
            _ => 1,
        };
        let mut beside =
            if size > MUCH { self.ops.iter().map(grows).sum::<usize>() as u64 } else { 0 };
        let brings = |op: &ObjectOp| {
            matches!(op, ObjectOp::Write { .. } | ObjectOp::OmapSet(_) | ObjectOp::OmapSetHeader(_))
                || matches!(op, ObjectOp::CloneFrom(_) | ObjectOp::CloneRange { .. })
        };
        // What only takes something away is never refused for room; every change ends with an
        // attribute.
        let takes = self
            .ops
            .iter()
            .any(|op| !brings(op) && !matches!(op, ObjectOp::SetAttrs(_) | ObjectOp::Touch));
        if self.exists && (self.ops.iter().any(brings) || !takes) {
            beside += self.reader.beside_data(self.object);
        }
        if beside > MUCH as u64
            && !self.reader.has_room_for(beside, self.ops.iter().map(pairs).sum::<usize>() as u64)
        {
            return Err(Stop::Errno(errno::ENOSPC));
        }
        if self.ops.iter().any(|op| matches!(op, ObjectOp::SetAttrs(_))) {
            let attrs = self.attrs()?;
            let users = attrs.iter().filter(|(k, _)| user_name(k).is_some());
            let size: usize = users.map(|(k, v)| pair_size(k, v)).sum();
            if size > limits.max_attrs {
                return Err(Stop::Errno(errno::E2BIG));
            }
        }
        Ok(())
    }

    // ---- changes ----

    /// What is stored, of the object that is read for this one.
    fn stored(&self) -> &ObjectState {
        self.rolled.as_ref().map_or(self.base, |r| &r.1)
    }

    /// The object that is read for this one.
    fn read_from(&self) -> &HObject {
        self.rolled.as_ref().map_or(self.object, |r| &r.0)
    }

    /// Is anything that is stored still visible?
    fn base_visible(&self) -> bool {
        self.stored().exists && !matches!(self.ops.first(), Some(ObjectOp::Remove))
    }

    /// Makes the object exist. No transaction op: the `_` attribute that ends every change
    /// creates it.
    pub fn create(&mut self) {
        if !self.exists {
            self.exists = true;
            self.stats.objects += 1;
        }
        self.info.set(ObjectInfo::WHITEOUT, false);
        self.modified = true;
    }

    /// Takes the client's allocation hint; the store hears of new flags only.
    pub fn alloc_hint(&mut self, object_size: u64, write_size: u64, flags: u32) {
        self.create();
        self.info.expected_object_size = object_size;
        self.info.expected_write_size = write_size;
        if self.info.alloc_hint_flags != flags {
            self.info.alloc_hint_flags = flags;
            self.ops.push(ObjectOp::AllocHint(flags));
        }
    }

    fn resize(&mut self, size: u64) {
        self.stats.bytes += size.cast_signed() - self.info.size.cast_signed();
        self.info.size = size;
    }

    /// Writes bytes (not none).
    pub fn write(&mut self, offset: u64, data: Bytes) {
        let end = offset + data.len() as u64;
        self.ops.push(ObjectOp::Write { offset, data });
        if end > self.info.size {
            self.resize(end);
        }
    }

    /// Zeroes a range that ends before the object's end.
    pub fn zero(&mut self, offset: u64, length: u64) {
        self.ops.push(ObjectOp::Zero { offset, length });
        self.modified = true;
    }

    /// Sets the size.
    pub fn truncate(&mut self, size: u64) {
        self.ops.push(ObjectOp::Truncate { size });
        self.resize(size);
        self.modified = true;
    }

    /// Makes the object what one of its clones is, whatever it was.
    pub fn roll_back(&mut self, clone: HObject, state: ObjectState) {
        self.create();
        self.ops = vec![ObjectOp::CloneFrom(clone.clone())];
        self.omap = OmapOverlay::default();
        self.resize(state.info.size);
        self.info.set(ObjectInfo::OMAP, state.info.has(ObjectInfo::OMAP));
        self.rolled = Some(Box::new((clone, state)));
    }

    /// The state of an object by the name that it is stored under.
    pub fn load(&self, object: &HObject) -> Result<ObjectState, ReadError> {
        load_object(self.reader, object)
    }

    /// Removes the object with all it has. Its user version lives on for a recreation.
    pub fn remove(&mut self) {
        self.ops.clear();
        self.rolled = None;
        if self.base.exists {
            self.ops.push(ObjectOp::Remove);
        }
        self.omap =
            OmapOverlay { cleared: true, header: Some(Bytes::new()), ..OmapOverlay::default() };
        self.omap.folded = self.ops.len();
        self.resize(0);
        self.stats.objects -= 1;
        self.info.truncate_seq = 0;
        self.info.truncate_size = 0;
        // As in Ceph 16.2, an object recreated by the same vector keeps its omap flag.
        self.info.set(ObjectInfo::WHITEOUT, false);
        self.exists = false;
        // What the vector itself created and removes leaves no trace.
        self.modified = self.base.exists;
    }

    /// Sets an attribute by its raw name.
    pub fn set_attr(&mut self, name: Bytes, value: Bytes) {
        match self.ops.last_mut() {
            Some(ObjectOp::SetAttrs(kv)) => match kv.iter_mut().find(|(k, _)| *k == name) {
                Some(pair) => pair.1 = value,
                None => kv.push((name, value)),
            },
            _ => self.ops.push(ObjectOp::SetAttrs(vec![(name, value)])),
        }
    }

    /// Removes an attribute by its raw name.
    pub fn rm_attr(&mut self, name: Bytes) {
        self.ops.push(ObjectOp::RmAttr(name));
        self.modified = true;
    }

    /// Sets omap pairs.
    pub fn omap_set(&mut self, pairs: Vec<(Bytes, Bytes)>) {
        if !pairs.is_empty() {
            self.ops.push(ObjectOp::OmapSet(pairs));
        }
        self.info.set(ObjectInfo::OMAP, true);
    }

    /// Removes omap keys.
    pub fn omap_rm(&mut self, keys: Vec<Bytes>) {
        if !keys.is_empty() {
            self.ops.push(ObjectOp::OmapRm(keys));
        }
        self.modified = true;
    }

    /// Removes omap keys in `[first, last)`.
    pub fn omap_rm_range(&mut self, first: Bytes, last: Bytes) {
        if first < last {
            self.ops.push(ObjectOp::OmapRmRange { first, last });
        }
        self.modified = true;
    }

    /// Removes all omap pairs and the header.
    pub fn omap_clear(&mut self) {
        self.ops.push(ObjectOp::OmapClear);
        self.info.set(ObjectInfo::OMAP, false);
        self.modified = true;
    }

    /// Sets the omap header.
    pub fn omap_set_header(&mut self, header: Bytes) {
        self.ops.push(ObjectOp::OmapSetHeader(header));
        self.info.set(ObjectInfo::OMAP, true);
    }

    // ---- data ----

    fn data_changed(&self) -> bool {
        self.ops.iter().any(|op| {
            matches!(
                op,
                ObjectOp::Write { .. }
                    | ObjectOp::Zero { .. }
                    | ObjectOp::Truncate { .. }
                    | ObjectOp::Remove
            )
        })
    }

    fn read_base(&self, offset: u64, length: u64) -> Result<(Bytes, Option<u32>), ReadError> {
        let (data, crc) = self.reader.read_with_crc(self.read_from(), offset, length)?;
        // The size in the `_` attribute and the data disagree: do not make bytes up.
        if data.len() as u64 == length { Ok((data, crc)) } else { Err(ReadError::Io(errno::EIO)) }
    }

    /// Reads the stored blocks that a write changes in part: the store must merge them, and
    /// must not wait for the device then, nor find out that they are damaged.
    pub fn warm(&self, offset: u64, length: u64) -> Result<(), ReadError> {
        let size = if self.base_visible() { self.stored().info.size } else { 0 };
        let end = offset + length;
        let first = offset / STORE_BLOCK * STORE_BLOCK;
        let last = end / STORE_BLOCK * STORE_BLOCK;
        let cut =
            |block: u64| block < size && (offset > block || end < (block + STORE_BLOCK).min(size));
        for block in
            [Some(first), (last != first && last < end).then_some(last)].into_iter().flatten()
        {
            if cut(block) {
                self.reader.read(self.read_from(), block, (size - block).min(STORE_BLOCK))?;
            }
        }
        Ok(())
    }

    /// Part of `[offset, offset + length)` that the stored data covers, as a length.
    fn base_length(&self, offset: u64, length: u64) -> u64 {
        if self.base_visible() {
            self.stored().info.size.saturating_sub(offset).min(length)
        } else {
            0
        }
    }

    /// Reads bytes within the object's size.
    pub fn read(&self, offset: u64, length: u64) -> Result<Bytes, ReadError> {
        Ok(self.read_with_crc(offset, length)?.0)
    }

    /// The same with their checksum, where they are as stored and whoever read them knows it:
    /// [`ObjectReader::read_with_crc`].
    pub fn read_with_crc(
        &self,
        offset: u64,
        length: u64,
    ) -> Result<(Bytes, Option<u32>), ReadError> {
        if length == 0 {
            return Ok((Bytes::new(), None));
        }
        if !self.data_changed() {
            return self.read_base(offset, length);
        }
        let mut out = vec![0; length as usize];
        let stored = self.base_length(offset, length);
        if stored > 0 {
            out[..stored as usize].copy_from_slice(&self.read_base(offset, stored)?.0);
        }
        let end = offset + length;
        // The part of the buffer that [from, to) of the object falls on.
        let part = |from: u64, to: u64| {
            let (a, b) = (from.clamp(offset, end) - offset, to.clamp(offset, end) - offset);
            a as usize..b.max(a) as usize
        };
        for op in &self.ops {
            match op {
                ObjectOp::Write { offset: at, data } => {
                    let to = part(*at, at + data.len() as u64);
                    let skip = (offset + to.start as u64).saturating_sub(*at) as usize;
                    let n = to.len();
                    if n > 0 {
                        out[to].copy_from_slice(&data[skip..skip + n]);
                    }
                }
                ObjectOp::Zero { offset: at, length } => out[part(*at, at + length)].fill(0),
                ObjectOp::Truncate { size } => out[part(*size, u64::MAX)].fill(0),
                _ => {}
            }
        }
        Ok((out.into(), None))
    }

    /// The parts of a range within the object's size that are not holes.
    pub fn extents(&self, offset: u64, length: u64) -> Result<Vec<(u64, u64)>, ReadError> {
        if length == 0 {
            return Ok(Vec::new());
        }
        let stored = self.base_length(offset, length);
        let mut map = match stored {
            0 => Vec::new(),
            n => self.reader.extents(self.read_from(), offset, n)?,
        };
        let end = offset + length;
        let clip = |from: u64, to: u64| (from.clamp(offset, end), to.clamp(offset, end));
        for op in &self.ops {
            match op {
                ObjectOp::Write { offset: at, data } => {
                    let (a, b) = clip(*at, at + data.len() as u64);
                    cut(&mut map, a, b);
                    if a < b {
                        map.push((a, b - a));
                    }
                }
                ObjectOp::Zero { offset: at, length } => {
                    let (a, b) = clip(*at, at + length);
                    cut(&mut map, a, b);
                }
                ObjectOp::Truncate { size } => {
                    let (a, b) = clip(*size, u64::MAX);
                    cut(&mut map, a, b);
                }
                _ => {}
            }
        }
        map.sort_unstable();
        map.dedup_by(|next, last| {
            let joins = last.0 + last.1 == next.0;
            if joins {
                last.1 += next.1;
            }
            joins
        });
        Ok(map)
    }

    // ---- attributes ----

    /// An attribute by its raw name.
    pub fn attr(&self, name: &[u8]) -> Result<Option<Bytes>, ReadError> {
        for op in self.ops.iter().rev() {
            match op {
                ObjectOp::SetAttrs(kv) => {
                    if let Some((_, v)) = kv.iter().rev().find(|(k, _)| k == name) {
                        return Ok(Some(v.clone()));
                    }
                }
                ObjectOp::RmAttr(k) if k == name => return Ok(None),
                ObjectOp::ClearAttrs | ObjectOp::Remove => return Ok(None),
                _ => {}
            }
        }
        if self.stored().exists { self.reader.attr(self.read_from(), name) } else { Ok(None) }
    }

    /// All attributes, raw names ascending.
    pub fn attrs(&self) -> Result<BTreeMap<Bytes, Bytes>, ReadError> {
        let mut map = BTreeMap::new();
        if self.base_visible() {
            map.extend(self.reader.attrs(self.read_from())?);
        }
        for op in &self.ops {
            match op {
                ObjectOp::SetAttrs(kv) => map.extend(kv.iter().cloned()),
                ObjectOp::RmAttr(k) => {
                    map.remove(k);
                }
                ObjectOp::ClearAttrs => map.clear(),
                _ => {}
            }
        }
        Ok(map)
    }

    /// An attribute by its raw name, as it was before the vector.
    pub fn attr_before(&self, name: &[u8]) -> Result<Option<Bytes>, ReadError> {
        if self.base.exists { self.reader.attr(self.object, name) } else { Ok(None) }
    }

    /// All attributes, raw names ascending, as they were before the vector.
    pub fn attrs_before(&self) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        let mut attrs = if self.base.exists { self.reader.attrs(self.object)? } else { Vec::new() };
        attrs.sort();
        Ok(attrs)
    }

    // ---- omap ----

    /// The omap header.
    pub fn omap_header(&mut self) -> Result<Bytes, ReadError> {
        self.omap.fold(&self.ops);
        match &self.omap.header {
            Some(h) => Ok(h.clone()),
            None if self.stored().exists => self.reader.omap_header(self.read_from()),
            None => Ok(Bytes::new()),
        }
    }

    /// The value of an omap key.
    pub fn omap_get(&mut self, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.omap.fold(&self.ops);
        if let Some(v) = self.omap.entries.get(key) {
            return Ok(v.clone());
        }
        if self.omap.hides(key) || !self.stored().exists {
            return Ok(None);
        }
        self.reader.omap_get(self.read_from(), key)
    }

    /// A range of the omap.
    pub fn omap_range(&mut self, range: OmapRange<'_>) -> Result<OmapPage, ReadError> {
        self.omap.fold(&self.ops);
        let overlay = &self.omap;
        let visible = self.stored().exists && !overlay.cleared;
        if visible && overlay.entries.is_empty() && overlay.removed.is_empty() {
            return self.reader.omap_range(self.read_from(), range);
        }
        let bounds =
            (Bound::Included(range.from), range.until.map_or(Bound::Unbounded, Bound::Excluded));
        if range.until.is_some_and(|u| u < range.from) {
            return Ok(OmapPage::default());
        }
        let mut changed = overlay
            .entries
            .range::<[u8], _>(bounds)
            .filter_map(|(k, v)| v.clone().map(|v| (k.clone(), v)))
            .peekable();
        let mut from = Bytes::copy_from_slice(range.from);
        let mut page = OmapPage::default();
        let mut bytes = 0;
        let mut more_stored = visible;
        let mut stored = Vec::new().into_iter().peekable();
        loop {
            while stored.peek().is_none() && more_stored {
                let next =
                    self.reader.omap_range(self.read_from(), OmapRange { from: &from, ..range })?;
                let Some((last, _)) = next.entries.last() else {
                    more_stored = false;
                    break;
                };
                from = after(last);
                more_stored = next.more;
                let entries: Vec<_> =
                    next.entries.into_iter().filter(|(k, _)| !overlay.hides(k)).collect();
                stored = entries.into_iter().peekable();
            }
            let take_changed = match (changed.peek(), stored.peek()) {
                (None, None) => return Ok(page),
                (Some(c), Some(s)) => c.0 < s.0,
                (c, _) => c.is_some(),
            };
            if page.entries.len() >= range.max_entries || bytes >= range.max_bytes {
                page.more = true;
                return Ok(page);
            }
            let next = if take_changed { changed.next() } else { stored.next() };
            let Some((k, v)) = next else { return Ok(page) };
            bytes += k.len() + v.len();
            page.entries.push((k, v));
        }
    }
}

/// The smallest key after `key`.
pub(super) fn after(key: &[u8]) -> Bytes {
    let mut k = Vec::with_capacity(key.len() + 1);
    k.extend_from_slice(key);
    k.push(0);
    k.into()
}

/// Takes `[a, b)` out of a list of (offset, length).
fn cut(map: &mut Vec<(u64, u64)>, a: u64, b: u64) {
    if a >= b {
        return;
    }
    let mut tails = Vec::new();
    map.retain_mut(|(at, n)| {
        let end = *at + *n;
        if end <= a || *at >= b {
            return true;
        }
        if end > b {
            tails.push((b, end - b));
        }
        *n = a.saturating_sub(*at);
        *n > 0
    });
    map.append(&mut tails);
}
