//! A store in memory that loses what was not committed when its process dies.

use bytes::Bytes;
use spirula_encoding::crc::crc32c;
use spirula_encoding::from_slice;
use spirula_messages::cluster::pg::PgHead;
use spirula_messages::cluster::scrub::{ScrubMap, ScrubObject};
use spirula_pg::exec::{ObjectReader, OmapPage, OmapRange, Prefetch, ReadError, Want};
use spirula_pg::shard::store_pg;
use spirula_pg::{Stored, head_key, info_key};
use spirula_types::transaction::{MetaOp, ObjectOp, ObjectUpdate, Transaction};
use spirula_types::{DIRTY_BLOCK, EVersion, HObject, PgId, SNAP_HEAD, SpgId};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Objects share whole blocks of so many bytes. Clients' objects are small.
pub const BLOCK: u64 = 8;

#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Obj {
    pub data: Vec<u8>,
    pub attrs: BTreeMap<Bytes, Bytes>,
    pub omap: BTreeMap<Bytes, Bytes>,
    pub header: Bytes,
}

#[derive(Clone, Default)]
pub struct State {
    pub objects: BTreeMap<HObject, Obj>,
    pub meta: BTreeMap<Bytes, Bytes>,
    pub logs: BTreeMap<PgId, BTreeMap<EVersion, Bytes>>,
    /// Of each object's blocks, which it is; zero: a hole. What is shared is the same for both.
    pub blocks: BTreeMap<HObject, Vec<u64>>,
    next_block: u64,
    /// Blocks that recovery wrote into objects that were there in an older version, by their heads:
    /// it brings whole blocks of [`DIRTY_BLOCK`] bytes, of which many share nothing that have not
    /// changed.
    pub brought: BTreeMap<HObject, u64>,
    /// Objects that recovery made anew, until they are written.
    made: BTreeSet<HObject>,
    /// A planted bug: a clone shares nothing with what it is made of.
    pub unshares: bool,
}

impl State {
    /// A member's log, and from where on it tells everything; `None` if it has none.
    pub fn log(&self, pg: SpgId) -> Option<(&BTreeMap<EVersion, Bytes>, EVersion)> {
        let head: PgHead = from_slice(self.meta.get(&head_key(pg))?).unwrap();
        let record = self.meta.get(&info_key(pg))?.clone();
        let record = Stored { record, ..Stored::default() }.info().unwrap();
        // As when it is loaded: a member's own log may begin later than its primary's.
        Some((self.logs.get(&store_pg(pg))?, head.log_tail.max(record.log_tail())))
    }

    fn apply(&mut self, t: &Transaction) {
        let logged = t.meta.iter().any(|m| matches!(m, MetaOp::LogAppend { .. }));
        for u in &t.objects {
            let anew = !self.objects.contains_key(&u.object)
                || matches!(u.ops.first(), Some(ObjectOp::Remove));
            if !logged && anew {
                self.made.insert(u.object.clone());
            } else if logged {
                self.made.remove(&u.object);
            }
            for op in &u.ops {
                if let ObjectOp::Write { data, .. } = op
                    && !logged
                    && !self.made.contains(&u.object)
                {
                    let head = HObject { snap: SNAP_HEAD, ..u.object.clone() };
                    let some =
                        data.chunks(BLOCK as usize).filter(|c| c.iter().any(|b| *b != 0)).count();
                    *self.brought.entry(head).or_default() += some as u64;
                }
                self.apply_op(&u.object, op);
            }
        }
        for m in &t.meta {
            match m {
                MetaOp::Set { key, value } => drop(self.meta.insert(key.clone(), value.clone())),
                MetaOp::Remove { key } => drop(self.meta.remove(key)),
                MetaOp::LogAppend { pg, version, entry } => {
                    let log = self.logs.entry(*pg).or_default();
                    assert!(
                        log.keys().next_back().is_none_or(|v| v < version),
                        "log versions rise"
                    );
                    log.insert(*version, entry.clone());
                }
                MetaOp::LogTrim { pg, to } => {
                    self.logs.entry(*pg).or_default().retain(|v, _| v > to)
                }
                MetaOp::LogRewind { pg, to } => {
                    self.logs.entry(*pg).or_default().retain(|v, _| v <= to)
                }
                MetaOp::LogRemove { pg } => drop(self.logs.remove(pg)),
            }
        }
    }

    /// What an operation does to the blocks of an object.
    fn apply_to_blocks(&mut self, object: &HObject, op: &ObjectOp) {
        let (from, end, made) = match op {
            ObjectOp::Remove => return drop(self.blocks.remove(object)),
            ObjectOp::CloneFrom(from) => {
                let mut same = self.blocks.get(from).cloned().unwrap_or_default();
                if self.unshares {
                    for block in same.iter_mut().filter(|b| **b != 0) {
                        self.next_block += 1;
                        *block = self.next_block;
                    }
                }
                return drop(self.blocks.insert(object.clone(), same));
            }
            ObjectOp::Write { offset, data } => (*offset, offset + data.len() as u64, None),
            ObjectOp::CloneRange { from, offset, length, to } if offset == to => {
                (*to, to + length, self.blocks.get(from).cloned())
            }
            ObjectOp::CloneRange { length, to, .. } => (*to, to + length, None),
            ObjectOp::Zero { offset, length } => (*offset, offset + length, Some(Vec::new())),
            ObjectOp::Truncate { size } => {
                let last = size.div_ceil(BLOCK) as usize;
                return self.blocks.entry(object.clone()).or_default().resize(last, 0);
            }
            _ => return,
        };
        let size = self.objects.get(object).map_or(0, |o| o.data.len() as u64);
        let mine = self.blocks.entry(object.clone()).or_default();
        mine.resize(mine.len().max(end.div_ceil(BLOCK) as usize), 0);
        for n in from / BLOCK..end.div_ceil(BLOCK) {
            let whole = from <= n * BLOCK && (end >= (n + 1) * BLOCK || end >= size);
            mine[n as usize] = match &made {
                Some(made) if whole => made.get(n as usize).copied().unwrap_or(0),
                _ => {
                    self.next_block += 1;
                    self.next_block
                }
            };
        }
    }

    fn apply_op(&mut self, object: &HObject, op: &ObjectOp) {
        self.apply_to_blocks(object, op);
        if let ObjectOp::Remove = op {
            self.objects.remove(object);
            return;
        }
        let from = match op {
            ObjectOp::CloneFrom(from) => self.objects.get(from).cloned(),
            ObjectOp::CloneRange { from, .. } => {
                let source = self.objects.get(from).cloned();
                Some(source.unwrap_or_else(|| {
                    panic!("{object} takes a range of {from}, which is not here")
                }))
            }
            _ => None,
        };
        let o = self.objects.entry(object.clone()).or_default();
        match op {
            ObjectOp::Touch | ObjectOp::Remove => {}
            ObjectOp::Write { offset, data } => {
                let end = *offset as usize + data.len();
                if o.data.len() < end {
                    o.data.resize(end, 0);
                }
                o.data[*offset as usize..end].copy_from_slice(data);
            }
            ObjectOp::Zero { offset, length } => {
                let end = (*offset + *length) as usize;
                if o.data.len() < end {
                    o.data.resize(end, 0);
                }
                o.data[*offset as usize..end].fill(0);
            }
            ObjectOp::Truncate { size } => o.data.resize(*size as usize, 0),
            ObjectOp::SetAttrs(kv) => o.attrs.extend(kv.iter().cloned()),
            ObjectOp::RmAttr(k) => drop(o.attrs.remove(k)),
            ObjectOp::ClearAttrs => o.attrs.clear(),
            ObjectOp::OmapSet(kv) => o.omap.extend(kv.iter().cloned()),
            ObjectOp::OmapRm(ks) => ks.iter().for_each(|k| drop(o.omap.remove(k))),
            ObjectOp::OmapRmRange { first, last } => o.omap.retain(|k, _| k < first || k >= last),
            ObjectOp::OmapClear => {
                o.omap.clear();
                o.header = Bytes::new();
            }
            ObjectOp::OmapSetHeader(h) => o.header = h.clone(),
            ObjectOp::AllocHint(_) => {}
            ObjectOp::CloneFrom(_) => *o = from.unwrap_or_default(),
            ObjectOp::CloneRange { offset, length, to, .. } => {
                let source = from.unwrap_or_default().data;
                let mut part: Vec<u8> =
                    source.into_iter().skip(*offset as usize).take(*length as usize).collect();
                part.resize(*length as usize, 0);
                let end = *to as usize + part.len();
                if o.data.len() < end {
                    o.data.resize(end, 0);
                }
                o.data[*to as usize..end].copy_from_slice(&part);
            }
        }
    }
}

#[derive(Default)]
pub struct Store {
    pub applied: State,
    pub durable: State,
    pub pending: VecDeque<(SpgId, u64, Transaction)>,
    /// Objects whose data is damaged, until they are written anew.
    pub rotten: BTreeSet<HObject>,
    /// A planted bug: damage goes unnoticed.
    pub credulous: bool,
    /// Objects that must be loaded before they can be read.
    pub cold: RefCell<BTreeSet<HObject>>,
    /// So many listings fail: the device does not read.
    pub unlisted: std::cell::Cell<u32>,
    /// It has no room at all.
    pub full: bool,
}

impl Store {
    /// The object whose damage forbids to apply this: a write must be merged with it.
    pub fn refuses(&self, t: &Transaction) -> Option<HObject> {
        let replaces = |ops: &[ObjectOp]| ops.iter().any(|op| matches!(op, ObjectOp::Remove));
        // What covers whole blocks is merged with nothing; behind the object's end there is
        // nothing. Recovery brings whole blocks, which are small here.
        let logged = t.meta.iter().any(|m| matches!(m, MetaOp::LogAppend { .. }));
        let block = if logged { DIRTY_BLOCK } else { BLOCK };
        let parts = |object: &HObject, op: &ObjectOp| match op {
            ObjectOp::Write { offset, data } => {
                let end = offset + data.len() as u64;
                let size = self.applied.objects.get(object).map_or(0, |o| o.data.len() as u64);
                !offset.is_multiple_of(block) || (!end.is_multiple_of(block) && end < size)
            }
            _ => false,
        };
        let merges = |u: &ObjectUpdate| u.ops.iter().any(|op| parts(&u.object, op));
        let bad = |o: &HObject| self.rotten.contains(o) && !self.credulous;
        t.objects
            .iter()
            .find(|u| bad(&u.object) && merges(u) && !replaces(&u.ops))
            .map(|u| u.object.clone())
    }

    pub fn submit(&mut self, pg: SpgId, token: u64, t: Transaction) {
        self.applied.apply(&t);
        for u in &t.objects {
            for op in &u.ops {
                // Copies share what is damaged.
                let bad = match op {
                    ObjectOp::Remove => false,
                    ObjectOp::CloneFrom(from) => self.rotten.contains(from),
                    // What is there already may be as bad as it was.
                    ObjectOp::CloneRange { from, .. } if self.rotten.contains(from) => true,
                    _ => continue,
                };
                if bad {
                    self.rotten.insert(u.object.clone());
                } else {
                    self.rotten.remove(&u.object);
                }
            }
        }
        self.pending.push_back((pg, token, t));
    }

    /// What a scrub finds of a range.
    pub fn scrub_map(&self, from: &HObject, to: &HObject, deep: bool) -> ScrubMap {
        if from >= to {
            return ScrubMap::default();
        }
        let one = |(h, o): (&HObject, &Obj)| {
            let rotten = deep && self.rotten.contains(h) && !self.credulous;
            let omap: Vec<u8> =
                o.omap.iter().flat_map(|(k, v)| [&k[..], &v[..]].concat()).collect();
            let copy = ScrubObject {
                size: o.data.len() as u64,
                attrs: o.attrs.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
                omap_digest: deep.then(|| crc32c(0, &omap)),
                data_digest: (deep && !rotten).then(|| crc32c(0, &o.data)),
                read_error: rotten,
                omap_keys: if deep { o.omap.len() as u64 } else { 0 },
                omap_bytes: if deep { o.omap.values().map(|v| v.len() as u64).sum() } else { 0 },
            };
            (h.clone(), copy)
        };
        ScrubMap(self.applied.objects.range(from.clone()..to.clone()).map(one).collect())
    }

    pub fn commit_one(&mut self) -> Option<(SpgId, u64)> {
        let (pg, token, t) = self.pending.pop_front()?;
        self.durable.apply(&t);
        Some((pg, token))
    }

    /// Changes what is on the disk behind everybody's back.
    pub fn spoil(&mut self, object: &HObject, how: impl Fn(&mut Obj)) {
        [&mut self.applied, &mut self.durable]
            .into_iter()
            .filter_map(|s| s.objects.get_mut(object))
            .for_each(how);
    }

    /// Nobody waits any more for what this PG submitted.
    pub fn forget_tokens(&mut self, pg: SpgId) {
        let nobody = SpgId::whole(PgId::new(-1, 0));
        self.pending.iter_mut().filter(|(p, ..)| *p == pg).for_each(|(p, ..)| *p = nobody);
    }

    pub fn crash(&mut self) {
        self.pending.clear();
        self.applied = self.durable.clone();
        self.cold.borrow_mut().clear();
    }

    fn ready(&self, o: &HObject) -> Result<Option<&Obj>, ReadError> {
        if self.cold.borrow().contains(o) {
            return Err(ReadError::NotReady(Prefetch(vec![Want::Attrs(o.clone())])));
        }
        Ok(self.applied.objects.get(o))
    }

    pub fn load(&self, what: &Prefetch) {
        for w in &what.0 {
            match w {
                Want::Attrs(o) | Want::Data { object: o, .. } | Want::Omap { object: o, .. } => {
                    self.cold.borrow_mut().remove(o);
                }
                Want::Names { .. } => self.cold.borrow_mut().clear(),
            }
        }
    }
}

impl ObjectReader for Store {
    fn attr(&self, o: &HObject, name: &[u8]) -> Result<Option<Bytes>, ReadError> {
        Ok(self.ready(o)?.and_then(|o| o.attrs.get(name).cloned()))
    }
    fn attrs(&self, o: &HObject) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        let list = |o: &Obj| o.attrs.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        Ok(self.ready(o)?.map(list).unwrap_or_default())
    }
    fn read(&self, o: &HObject, offset: u64, length: u64) -> Result<Bytes, ReadError> {
        if self.rotten.contains(o) {
            return if self.credulous {
                Ok(vec![0; length as usize].into())
            } else {
                Err(ReadError::Checksum { offset })
            };
        }
        let have = self.ready(o)?.and_then(|o| o.data.get(offset as usize..)).unwrap_or_default();
        // Short where the object ends, as the real one's.
        Ok(Bytes::copy_from_slice(&have[..have.len().min(length as usize)]))
    }
    fn size(&self, o: &HObject) -> Result<u64, ReadError> {
        Ok(self.ready(o)?.map_or(0, |o| o.data.len() as u64))
    }
    fn extents(&self, _: &HObject, offset: u64, length: u64) -> Result<Vec<(u64, u64)>, ReadError> {
        Ok(if length == 0 { Vec::new() } else { vec![(offset, length)] })
    }
    fn omap_header(&self, o: &HObject) -> Result<Bytes, ReadError> {
        Ok(self.ready(o)?.map(|o| o.header.clone()).unwrap_or_default())
    }
    fn omap_get(&self, o: &HObject, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        Ok(self.ready(o)?.and_then(|o| o.omap.get(key).cloned()))
    }
    fn omap_range(&self, o: &HObject, r: OmapRange<'_>) -> Result<OmapPage, ReadError> {
        let mut page = OmapPage::default();
        let Some(o) = self.ready(o)? else { return Ok(page) };
        let mut bytes = 0;
        for (k, v) in
            o.omap.range::<[u8], _>((std::ops::Bound::Included(r.from), std::ops::Bound::Unbounded))
        {
            if r.until.is_some_and(|u| &k[..] >= u) {
                break;
            }
            if page.entries.len() >= r.max_entries || bytes >= r.max_bytes {
                page.more = true;
                break;
            }
            bytes += k.len() + v.len();
            page.entries.push((k.clone(), v.clone()));
        }
        Ok(page)
    }
    fn has_room_for(&self, _: u64, _: u64) -> bool {
        true
    }
    fn takes_data(&self, _: u64) -> bool {
        true
    }
    fn beside_data(&self, _: &HObject) -> u64 {
        0
    }
    fn bad_offset(&self, _: &HObject) -> Option<u64> {
        None
    }
    fn is_full(&self) -> bool {
        self.full
    }

    fn list(&self, from: &HObject, until: &HObject, max: usize) -> Result<Vec<HObject>, ReadError> {
        if let Some(left) = self.unlisted.get().checked_sub(1) {
            self.unlisted.set(left);
            return Err(ReadError::Io(5));
        }
        if from >= until {
            return Ok(Vec::new());
        }
        Ok(self
            .applied
            .objects
            .range(from.clone()..until.clone())
            .take(max)
            .map(|(o, _)| o.clone())
            .collect())
    }
}
