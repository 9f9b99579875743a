//! Tests of execution: a store in memory, samples from a real cluster, random vectors
//! against an obvious model, garbage.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

mod golden;
mod props;
mod snaps;
mod units;
mod watch;

use super::*;
use spirula_encoding::{Encode, UTime, to_vec};
use spirula_messages::cluster::entry::EntryKind;
use spirula_types::transaction::ObjectOp;
use spirula_types::{EVersion, EntityAddr, EntityName, ReqId};
use std::cell::Cell;
use std::collections::BTreeMap;

/// A stored object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stored {
    pub data: Vec<u8>,
    pub attrs: BTreeMap<Bytes, Bytes>,
    pub omap: BTreeMap<Bytes, Bytes>,
    pub header: Bytes,
}

/// A store in memory. Zero bytes count as holes.
#[derive(Default)]
pub(crate) struct MemStore {
    pub objects: BTreeMap<HObject, Stored>,
    /// Answers that are "not ready" before the first real one.
    pub not_ready: Cell<u32>,
    /// Nothing can be read.
    pub bad: Cell<bool>,
    /// Bytes that there is room for; `None` for any number.
    pub room: Option<u64>,
}

impl MemStore {
    fn get(&self, o: &HObject) -> Result<Option<&Stored>, ReadError> {
        if self.bad.get() {
            return Err(ReadError::Io(errno::EIO));
        }
        let left = self.not_ready.get();
        if left > 0 {
            self.not_ready.set(left - 1);
            return Err(ReadError::NotReady(Prefetch(vec![Want::Attrs(o.clone())])));
        }
        Ok(self.objects.get(o))
    }

    /// Applies a finished mutation as the store would.
    pub fn apply(&mut self, o: &HObject, ops: &[ObjectOp]) {
        for op in ops {
            if matches!(op, ObjectOp::Remove) {
                self.objects.remove(o);
                continue;
            }
            if let ObjectOp::CloneFrom(from) = op {
                let copy = self.objects.get(from).expect("what is cloned is there").clone();
                self.objects.insert(o.clone(), copy);
                continue;
            }
            if let ObjectOp::CloneRange { from, offset, length, to } = op {
                let source = &self.objects.get(from).expect("what is cloned is there").data;
                let mut data: Vec<u8> =
                    source.iter().skip(*offset as usize).take(*length as usize).copied().collect();
                data.resize(*length as usize, 0);
                self.apply(o, &[ObjectOp::Write { offset: *to, data: data.into() }]);
                continue;
            }
            let s = self.objects.entry(o.clone()).or_default();
            match op {
                ObjectOp::Touch | ObjectOp::Remove => {}
                ObjectOp::Write { offset, data } => {
                    let end = *offset as usize + data.len();
                    s.data.resize(s.data.len().max(end), 0);
                    s.data[*offset as usize..end].copy_from_slice(data);
                }
                ObjectOp::Zero { offset, length } => {
                    let end = (*offset + *length) as usize;
                    s.data.resize(s.data.len().max(end), 0);
                    s.data[*offset as usize..end].fill(0);
                }
                ObjectOp::Truncate { size } => s.data.resize(*size as usize, 0),
                ObjectOp::SetAttrs(kv) => s.attrs.extend(kv.iter().cloned()),
                ObjectOp::RmAttr(k) => {
                    s.attrs.remove(k);
                }
                ObjectOp::ClearAttrs => s.attrs.clear(),
                ObjectOp::OmapSet(kv) => {
                    assert!(
                        kv.is_sorted_by(|a, b| a.0 < b.0),
                        "omap pairs reach the store sorted and unique"
                    );
                    s.omap.extend(kv.iter().cloned());
                }
                ObjectOp::OmapRm(keys) => keys.iter().for_each(|k| {
                    s.omap.remove(k);
                }),
                ObjectOp::OmapRmRange { first, last } => {
                    s.omap.retain(|k, _| k < first || k >= last)
                }
                ObjectOp::OmapClear => {
                    s.omap.clear();
                    s.header = Bytes::new();
                }
                ObjectOp::OmapSetHeader(h) => s.header = h.clone(),
                ObjectOp::AllocHint(_) => {}
                ObjectOp::CloneFrom(_) | ObjectOp::CloneRange { .. } => unreachable!("done above"),
            }
        }
    }
}

impl ObjectReader for MemStore {
    fn attr(&self, o: &HObject, name: &[u8]) -> Result<Option<Bytes>, ReadError> {
        Ok(self.get(o)?.and_then(|s| s.attrs.get(name).cloned()))
    }
    fn attrs(&self, o: &HObject) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        let pairs = |s: &Stored| s.attrs.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        Ok(self.get(o)?.map(pairs).unwrap_or_default())
    }
    fn read(&self, o: &HObject, offset: u64, length: u64) -> Result<Bytes, ReadError> {
        let data = self.get(o)?.map_or(&[][..], |s| &s.data);
        let end = ((offset + length) as usize).min(data.len());
        Ok(Bytes::copy_from_slice(data.get(offset as usize..end).unwrap_or_default()))
    }
    fn size(&self, o: &HObject) -> Result<u64, ReadError> {
        Ok(self.get(o)?.map_or(0, |s| s.data.len() as u64))
    }
    fn extents(&self, o: &HObject, offset: u64, length: u64) -> Result<Vec<(u64, u64)>, ReadError> {
        let data = self.read(o, offset, length)?;
        let mut map: Vec<(u64, u64)> = Vec::new();
        for at in (0..data.len()).filter(|i| data[*i] != 0).map(|i| offset + i as u64) {
            match map.last_mut() {
                Some((a, n)) if *a + *n == at => *n += 1,
                _ => map.push((at, 1)),
            }
        }
        Ok(map)
    }
    fn omap_header(&self, o: &HObject) -> Result<Bytes, ReadError> {
        Ok(self.get(o)?.map(|s| s.header.clone()).unwrap_or_default())
    }
    fn omap_get(&self, o: &HObject, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        Ok(self.get(o)?.and_then(|s| s.omap.get(key).cloned()))
    }
    fn omap_range(&self, o: &HObject, range: OmapRange<'_>) -> Result<OmapPage, ReadError> {
        let mut page = OmapPage::default();
        let mut bytes = 0;
        let Some(s) = self.get(o)? else { return Ok(page) };
        for (k, v) in &s.omap {
            if **k < *range.from || range.until.is_some_and(|u| **k >= *u) {
                continue;
            }
            if page.entries.len() >= range.max_entries || bytes >= range.max_bytes {
                page.more = true;
                break;
            }
            bytes += k.len() + v.len();
            page.entries.push((k.clone(), v.clone()));
        }
        Ok(page)
    }
    fn list(&self, from: &HObject, until: &HObject, max: usize) -> Result<Vec<HObject>, ReadError> {
        Ok(self
            .objects
            .range(from.clone()..until.clone())
            .take(max)
            .map(|(o, _)| o.clone())
            .collect())
    }
    fn has_room_for(&self, bytes: u64, _: u64) -> bool {
        self.room.is_none_or(|room| bytes <= room)
    }
    fn takes_data(&self, bytes: u64) -> bool {
        self.room.is_none_or(|room| bytes <= room)
    }
    fn is_full(&self) -> bool {
        self.room == Some(0)
    }
    fn beside_data(&self, o: &HObject) -> u64 {
        let of = |s: &Stored| s.attrs.iter().map(|(k, v)| (k.len() + v.len()) as u64).sum();
        self.objects.get(o).map_or(0, of)
    }
    fn bad_offset(&self, _: &HObject) -> Option<u64> {
        None
    }
}

/// Client 4100, who has no connection and watches nothing.
pub(super) const ASKER: Asker<'static> = Asker {
    name: EntityName { kind: 8, num: 4100 },
    addr: EntityAddr::NONE,
    conn: 1,
    timeouts: Timeouts { watch: 30, notify: 30 },
    watched: None,
    next_notify: 7,
    may_notify: 100,
    room: 1 << 20,
};

/// One PG on a [`MemStore`], executing requests one after the other.
pub(crate) struct Bench {
    pub store: MemStore,
    pub limits: Limits,
    pub pool: PoolRules,
    pub flags: u32,
    pub snapid: u64,
    pub snaps: SnapContext,
    pub removed: SnapIntervals,
    pub version: u64,
    pub last_user_version: u64,
    pub fetched: Option<Fetched>,
    pub origin: Origin,
    pub asker: Asker<'static>,
}

impl Bench {
    pub fn new() -> Self {
        Self {
            store: MemStore::default(),
            limits: Limits::default(),
            pool: PoolRules::default(),
            flags: 0,
            snapid: SNAP_HEAD,
            snaps: SnapContext::default(),
            removed: SnapIntervals::new(),
            version: 0,
            last_user_version: 0,
            fetched: None,
            origin: Origin::default(),
            asker: ASKER,
        }
    }

    pub fn context<'a>(&'a self, object: &'a HObject) -> OpContext<'a> {
        OpContext {
            object,
            pg: PgId::new(1, 0),
            pg_num: 1,
            pool: self.pool,
            limits: &self.limits,
            flags: self.flags,
            snapid: self.snapid,
            context: &self.snaps,
            removed: &self.removed,
            last_user_version: self.last_user_version,
            origin: self.origin,
            fetched: self.fetched.as_ref(),
            asker: self.asker,
            #[cfg(feature = "plant-bugs")]
            bug: None,
        }
    }

    /// Executes without applying.
    pub fn dry(&self, object: &HObject, ops: &[OsdOp]) -> Result<Outcome, Pause> {
        let state = load_object(&self.store, object).unwrap();
        execute(&self.context(object), &state, &self.store, ops)
    }

    /// Executes and applies.
    pub fn run(&mut self, object: &HObject, ops: &[OsdOp]) -> Outcome {
        let mut outcome = self.dry(object, ops).expect("no pause");
        match std::mem::replace(&mut outcome.effect, Effect::None) {
            Effect::None => {}
            Effect::LogOnly => {
                self.version += 1;
                outcome.effect = Effect::LogOnly;
            }
            Effect::Apply(plan) => {
                outcome.user_version = self.apply(object, (*plan).clone(), outcome.result);
                outcome.effect = Effect::Apply(plan);
            }
        }
        outcome
    }

    /// Applies a plan; the user version of its last entry.
    pub fn apply(&mut self, object: &HObject, plan: WritePlan, result: i32) -> u64 {
        let stamp = Stamp {
            version: EVersion::new(1, self.version + 1),
            last_user_version: self.last_user_version,
            reqid: ReqId::default(),
            mtime: UTime { sec: self.version as u32 + 1, nsec: 0 },
            now: UTime { sec: 99, nsec: 0 },
            result,
            returns: Vec::new(),
        };
        self.version += plan.entries();
        let all = plan.stamp(stamp, object, 0);
        let mut user_version = 0;
        assert!(all.len() == 1 || self.snaps.seq > 0, "one object, one entry");
        for done in all {
            let object = &done.entry.object;
            self.store.apply(object, &done.ops);
            let stored = load_object(&self.store, object).unwrap();
            assert_eq!(stored, done.state, "stored state is the announced one");
            let stored = self.store.objects.get(object);
            assert_eq!(stored.map_or(0, |s| s.data.len() as u64), done.state.info.size);
            assert_eq!(done.entry.kind == EntryKind::Delete, stored.is_none());
            self.last_user_version = self.last_user_version.max(done.entry.user_version);
            user_version = done.entry.user_version;
        }
        user_version
    }
}

pub(crate) fn object(name: &str) -> HObject {
    HObject::head(1, Bytes::new(), Bytes::new(), Bytes::copy_from_slice(name.as_bytes()))
}

pub(crate) fn xattr_op(code: u16, name: &[u8], value: &[u8]) -> OsdOp {
    let mut o = OsdOp { indata: [name, value].concat().into(), ..OsdOp::new(code) };
    o.union[0..4].copy_from_slice(&(name.len() as u32).to_le_bytes());
    o.union[4..8].copy_from_slice(&(value.len() as u32).to_le_bytes());
    o
}

pub(super) fn cmpxattr(name: &[u8], value: &[u8], cmp: u8, mode: u8) -> OsdOp {
    let mut o = xattr_op(op::CMPXATTR, name, value);
    o.union[8] = cmp;
    o.union[9] = mode;
    o
}

/// An op whose input is the encoding of `value`.
pub(super) fn encoded<T: Encode>(code: u16, value: &T) -> OsdOp {
    OsdOp { indata: to_vec(value).into(), ..OsdOp::new(code) }
}

pub(super) fn b(s: &str) -> Bytes {
    Bytes::copy_from_slice(s.as_bytes())
}
