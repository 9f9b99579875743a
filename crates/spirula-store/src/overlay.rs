//! The overlay: every change since the last checkpoint, in decoded form, coalesced.
//!
//! Lookups go active overlay, frozen overlay, KV. A value of `None` says "deleted here".
//! A checkpoint freezes the overlay as a whole; [`Overlay::cost`] bounds it.

use crate::gone::Gone;
use crate::layer::Layer;
use crate::omaps::{Copies, Pairs};
use crate::onode::Onode;
use crate::refs::Refs;
use crate::segment::Segment;
use crate::store::PoolSpace;
use bytes::Bytes;
use spirula_types::{EVersion, PgId};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// What happened to a PG's log since the last checkpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogDelta {
    /// Everything older than this delta is forgotten.
    pub reset: bool,
    /// Of the older entries, those after this are forgotten.
    pub rewind: Option<EVersion>,
    /// Of the older entries, those up to this are forgotten.
    pub trim: Option<EVersion>,
    /// Entries appended since.
    pub entries: VecDeque<(EVersion, Bytes)>,
}

impl LogDelta {
    /// Changes `older` entries into what they are after this delta. They may have this
    /// delta in them already (its checkpoint has just been made): no entry comes twice.
    pub fn apply(&self, older: &mut Vec<(EVersion, Bytes)>) {
        let first = self.entries.front().map(|(v, _)| *v);
        older.retain(|(v, _)| {
            !self.reset
                && self.rewind.is_none_or(|r| *v <= r)
                && self.trim.is_none_or(|t| *v > t)
                && first.is_none_or(|f| *v < f)
        });
        older.extend(self.entries.iter().cloned());
    }
}

/// Counters that change with transactions and are kept in the checkpoint record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Next onode or omap id.
    pub next_id: u64,
    /// Number of objects.
    pub objects: u64,
    /// Bytes of data in objects.
    pub stored: u64,
}

/// See the module. Maps by what the KV keys name; `cost` counts what they hold.
#[derive(Default)]
pub(crate) struct Overlay {
    /// By KV key.
    pub heads: BTreeMap<Bytes, Option<Arc<Onode>>>,
    pub segments: BTreeMap<(u64, u32), Option<Arc<Segment>>>,
    /// By chunk of device blocks.
    pub refs: BTreeMap<u64, Option<Arc<Refs>>>,
    pub layers: BTreeMap<u64, Option<Arc<Layer>>>,
    /// Keys of objects, by the names that layers know them by.
    pub named: BTreeMap<u64, Option<Bytes>>,
    pub pools: BTreeMap<i64, PoolSpace>,
    pub omap: Pairs,
    /// Omaps that are copies of others until a checkpoint has made them: what is here of one lies
    /// over what its source had and has.
    pub copies: Copies,
    pub omap_headers: BTreeMap<u64, Option<Bytes>>,
    /// Owners of omaps beyond the first.
    pub omap_owners: BTreeMap<u64, u64>,
    /// Keys of older layers that count no more; what is in `omap` comes after.
    pub gone: Gone,
    /// Omap ids whose pairs in the KV are to be deleted.
    pub dead: Vec<u64>,
    /// By the caller's key.
    pub meta: BTreeMap<Bytes, Option<Bytes>>,
    pub logs: BTreeMap<PgId, LogDelta>,
    /// Numbers of maps and layers from this one on were given out since it was begun, and are in
    /// nothing older: what goes of them need not be deleted there. `None`: that is not known of
    /// any.
    pub first_new: Option<u64>,
    /// Memory taken, bytes, roughly.
    pub cost: usize,
}

/// Memory of a map entry beside its key and value, bytes.
const ENTRY: usize = 80;

impl Overlay {
    fn charge(&mut self, new: usize, old: Option<usize>) {
        self.cost = (self.cost + new).saturating_sub(old.unwrap_or(0));
    }

    /// How many entries it has.
    pub fn entries(&self) -> u64 {
        let maps = [
            self.heads.len(),
            self.segments.len(),
            self.refs.len(),
            self.omap.len(),
            self.omap_headers.len(),
        ];
        let more = self.layers.len() + self.named.len() + self.meta.len() + self.dead.len();
        (maps.iter().sum::<usize>() + more) as u64
    }

    pub fn put_head(&mut self, key: Bytes, onode: Option<Arc<Onode>>) {
        let base = ENTRY + key.len();
        let cost = |o: &Option<Arc<Onode>>| base + o.as_ref().map_or(0, |o| o.cost());
        let new = cost(&onode);
        let old = self.heads.insert(key, onode);
        self.charge(new, old.as_ref().map(cost));
    }

    /// Is this the number of a map or a layer that nothing older has?
    pub fn is_new(&self, number: u64) -> bool {
        self.first_new.is_some_and(|first| number >= first)
    }

    pub fn put_segment(&mut self, id: u64, seg: u32, value: Option<Arc<Segment>>) {
        let cost = |s: &Option<Arc<Segment>>| ENTRY + s.as_ref().map_or(0, |s| s.cost());
        if value.is_none() && self.is_new(id) {
            let old = self.segments.remove(&(id, seg));
            return self.charge(0, old.as_ref().map(cost));
        }
        let new = cost(&value);
        let old = self.segments.insert((id, seg), value);
        self.charge(new, old.as_ref().map(cost));
    }

    pub fn put_refs(&mut self, chunk: u64, value: Option<Arc<Refs>>) {
        let cost = |s: &Option<Arc<Refs>>| ENTRY + s.as_ref().map_or(0, |s| s.cost());
        let new = cost(&value);
        let old = self.refs.insert(chunk, value);
        self.charge(new, old.as_ref().map(cost));
    }

    pub fn put_layer(&mut self, name: u64, value: Option<Arc<Layer>>) {
        let cost = |v: &Option<Arc<Layer>>| ENTRY + v.as_ref().map_or(0, |l| l.cost());
        if value.is_none() && self.is_new(name) {
            let old = self.layers.remove(&name);
            return self.charge(0, old.as_ref().map(cost));
        }
        let new = cost(&value);
        let old = self.layers.insert(name, value);
        self.charge(new, old.as_ref().map(cost));
    }

    pub fn put_named(&mut self, name: u64, value: Option<Bytes>) {
        let cost = |v: &Option<Bytes>| ENTRY + v.as_ref().map_or(0, Bytes::len);
        if value.is_none() && self.is_new(name) {
            let old = self.named.remove(&name);
            return self.charge(0, old.as_ref().map(cost));
        }
        let new = cost(&value);
        let old = self.named.insert(name, value);
        self.charge(new, old.as_ref().map(cost));
    }

    pub fn put_pool(&mut self, pool: i64, space: PoolSpace) {
        let cost = ENTRY + size_of::<PoolSpace>();
        let old = self.pools.insert(pool, space);
        self.charge(cost, old.map(|_| cost));
    }

    pub fn put_omap(&mut self, id: u64, key: Bytes, value: Option<Bytes>) {
        let base = ENTRY + key.len();
        let cost = |v: &Option<Bytes>| base + v.as_ref().map_or(0, Bytes::len);
        let new = cost(&value);
        let old = self.omap.insert((id, key), value);
        self.charge(new, old.as_ref().map(cost));
    }

    /// Removes keys from `first` up to but not including `last`, here and in older layers.
    pub fn remove_omap_range(&mut self, id: u64, first: &Bytes, last: &Bytes) {
        if first >= last {
            return;
        }
        self.drop_omap((id, first.clone())..(id, last.clone()));
        let before = self.gone.cost;
        self.gone.add(id, first, last);
        self.charge(self.gone.cost, Some(before));
    }

    /// Forgets what is here of a range of keys.
    fn drop_omap(&mut self, range: Range<(u64, Bytes)>) {
        let keys: Vec<_> = self.omap.range(range).map(|(k, _)| k.clone()).collect();
        for k in keys {
            let old = self.omap.remove(&k).flatten();
            self.charge(0, Some(ENTRY + k.1.len() + old.map_or(0, |v| v.len())));
        }
    }

    pub fn put_omap_header(&mut self, id: u64, value: Option<Bytes>) {
        let cost = |v: &Option<Bytes>| ENTRY + v.as_ref().map_or(0, Bytes::len);
        let new = cost(&value);
        let old = self.omap_headers.insert(id, value);
        self.charge(new, old.as_ref().map(cost));
    }

    pub fn put_omap_owners(&mut self, id: u64, more: u64) {
        let old = self.omap_owners.insert(id, more);
        self.charge(ENTRY, old.map(|_| ENTRY));
    }

    /// An omap that nobody knows yet becomes a copy of another one, which does not change until
    /// the copy is made.
    pub fn copy_omap(&mut self, new: u64, from: u64) {
        self.copies.add(new, from);
        self.cost += ENTRY;
    }

    /// Forgets all that is here of an omap id and has the rest deleted later. Of one that is still
    /// to be copied all stays until then, also what it is a copy of itself: after a replay both
    /// copies are here.
    pub fn kill_omap(&mut self, id: u64) {
        self.dead.push(id);
        self.cost += 16;
        if self.copies.wants(id) && !planted!(SourceForgotten) {
            return;
        }
        if self.copies.forget(id) {
            self.cost = self.cost.saturating_sub(ENTRY);
        }
        self.drop_omap((id, Bytes::new())..(id + 1, Bytes::new()));
        let before = self.gone.cost;
        self.gone.forget(id);
        self.charge(self.gone.cost, Some(before));
        if let Some(old) = self.omap_headers.remove(&id) {
            self.charge(0, Some(ENTRY + old.map_or(0, |v| v.len())));
        }
    }

    pub fn put_meta(&mut self, key: Bytes, value: Option<Bytes>) {
        let base = ENTRY + key.len();
        let cost = |v: &Option<Bytes>| base + v.as_ref().map_or(0, Bytes::len);
        let new = cost(&value);
        let old = self.meta.insert(key, value);
        self.charge(new, old.as_ref().map(cost));
    }

    fn log(&mut self, pg: PgId) -> &mut LogDelta {
        if !self.logs.contains_key(&pg) {
            self.cost += ENTRY + size_of::<LogDelta>();
        }
        self.logs.entry(pg).or_default()
    }

    pub fn log_append(&mut self, pg: PgId, version: EVersion, entry: Bytes) {
        self.cost += entry.len() + 56;
        self.log(pg).entries.push_back((version, entry));
    }

    pub fn log_trim(&mut self, pg: PgId, to: EVersion) {
        let log = self.log(pg);
        log.trim = log.trim.max(Some(to));
        let mut gone = 0;
        while let Some((_, e)) = log.entries.pop_front_if(|(v, _)| *v <= to) {
            gone += e.len() + 56;
        }
        self.charge(0, Some(gone));
    }

    pub fn log_rewind(&mut self, pg: PgId, to: EVersion) {
        let log = self.log(pg);
        log.rewind = Some(log.rewind.map_or(to, |r| r.min(to)));
        let mut gone = 0;
        while let Some((_, e)) = log.entries.pop_back_if(|(v, _)| *v > to) {
            gone += e.len() + 56;
        }
        self.charge(0, Some(gone));
    }

    pub fn log_remove(&mut self, pg: PgId) {
        let log = self.log(pg);
        let gone = log.entries.iter().map(|(_, e)| e.len() + 56).sum();
        *log = LogDelta { reset: true, ..LogDelta::default() };
        self.charge(0, Some(gone));
    }
}

/// Merges sorted streams that hold newer values first: of equal keys the value of the
/// first stream counts, and `None` hides the key.
pub(crate) struct Merge<'a, K, V> {
    streams: Vec<std::iter::Peekable<Stream<'a, K, V>>>,
}

/// One input of [`Merge`].
pub(crate) type Stream<'a, K, V> = Box<dyn Iterator<Item = crate::Result<(K, Option<V>)>> + 'a>;

impl<'a, K: Ord + Clone, V> Merge<'a, K, V> {
    pub fn new(streams: Vec<Stream<'a, K, V>>) -> Self {
        Self { streams: streams.into_iter().map(Iterator::peekable).collect() }
    }
}

impl<K: Ord + Clone, V> Iterator for Merge<'_, K, V> {
    type Item = crate::Result<(K, V)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let mut least: Option<K> = None;
            for s in &mut self.streams {
                match s.peek() {
                    Some(Ok((k, _))) if least.as_ref().is_none_or(|l| k < l) => {
                        least = Some(k.clone())
                    }
                    Some(Err(e)) => {
                        let e = e.clone();
                        s.next();
                        return Some(Err(e));
                    }
                    _ => {}
                }
            }
            let key = least?;
            let mut value: Option<Option<V>> = None;
            for s in &mut self.streams {
                if let Some(Ok((_, v))) = s.next_if(|r| r.as_ref().is_ok_and(|(k, _)| *k == key))
                    && value.is_none()
                {
                    value = Some(v);
                }
            }
            if let Some(Some(v)) = value {
                return Some(Ok((key, v)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v(n: u64) -> EVersion {
        EVersion::new(1, n)
    }

    #[test]
    fn merge_prefers_newer_streams_and_hides_deleted_keys() {
        let s =
            |pairs: &'static [(u32, Option<&'static str>)]| -> Stream<'static, u32, &'static str> {
                Box::new(pairs.iter().copied().map(Ok))
            };
        let m = Merge::new(vec![
            s(&[(1, Some("new")), (3, None)]),
            s(&[(1, None), (2, Some("b")), (3, Some("x"))]),
            s(&[(3, Some("y")), (4, Some("d"))]),
        ]);
        let all: Vec<_> = m.map(Result::unwrap).collect();
        assert_eq!(all, [(1, "new"), (2, "b"), (4, "d")]);
    }

    #[test]
    fn costs_return_to_zero_when_everything_is_replaced_or_dropped() {
        let mut o = Overlay::default();
        o.put_omap(1, "k".into(), Some("value".into()));
        o.put_omap(1, "k".into(), None);
        o.put_omap_header(1, Some("h".into()));
        o.put_omap(1, "n".into(), Some("value".into()));
        o.remove_omap_range(1, &"l".into(), &"p".into());
        o.remove_omap_range(1, &"a".into(), &"m".into());
        assert_eq!(o.omap.len(), 0);
        o.kill_omap(1);
        assert_eq!(o.cost, 16);
    }

    #[test]
    fn what_came_and_went_since_it_was_begun_leaves_nothing() {
        let (key, layer) = (
            Bytes::from("key"),
            Layer {
                map: 1,
                base: 0,
                children: 0,
                names: 0,
                depth: 1,
                own: 0,
                shared: false,
                couple: None,
            },
        );
        let mut o = Overlay { first_new: Some(10), ..Overlay::default() };
        for n in [9, 10] {
            o.put_named(n, Some(key.clone()));
            o.put_named(n, None);
            o.put_layer(n, Some(Arc::new(layer.clone())));
            o.put_layer(n, None);
            o.put_segment(n, 3, Some(Arc::default()));
            o.put_segment(n, 3, None);
        }
        // What may be in the metadata is deleted there.
        assert!(
            [o.named.len(), o.layers.len(), o.segments.len()] == [1; 3] && o.named[&9].is_none()
        );
        assert_eq!(o.cost, 3 * ENTRY);
    }

    #[test]
    fn log_delta_trims_rewinds_and_resets_what_is_older() {
        let mut o = Overlay::default();
        let pg = PgId::new(1, 0);
        o.log_append(pg, v(5), "e5".into());
        o.log_append(pg, v(6), "e6".into());
        o.log_rewind(pg, v(5));
        o.log_trim(pg, v(2));
        o.log_append(pg, v(7), "e7".into());
        let mut base = vec![
            (v(1), Bytes::new()),
            (v(2), Bytes::new()),
            (v(3), Bytes::new()),
            (v(9), Bytes::new()),
        ];
        o.logs[&pg].apply(&mut base);
        assert_eq!(base.iter().map(|e| e.0.version).collect::<Vec<_>>(), [3, 5, 7]);
        o.logs[&pg].apply(&mut base);
        assert_eq!(base.len(), 3, "applied twice");
        o.log_remove(pg);
        o.logs[&pg].apply(&mut base);
        assert!(base.is_empty());
    }
}
