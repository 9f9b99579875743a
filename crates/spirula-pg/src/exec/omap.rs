//! Ops on an object's key-value map.
//!
//! Reading the omap of an object that has none, or does not exist, finds nothing and is not
//! an error; erasure-coded pools refuse only what would change one.

use super::attrs::compare;
use super::reader::{OmapPage, OmapRange};
use super::staged::after;
use super::state::ObjectInfo;
use super::vector::{Ran, Stop, Vector, slice};
use bytes::Bytes;
use spirula_encoding::{DecodeError, Decoder, Encoder};
use spirula_messages::ceph::op::OsdOp;
use spirula_types::errno;
use spirula_types::limits::pair_size;
use std::collections::{BTreeMap, BTreeSet};

/// The smallest key that does not start with `prefix`, but sorts after those that do;
/// `None` if no key does.
fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|b| *b != u8::MAX)?;
    let mut end = prefix.get(..=last)?.to_vec();
    *end.last_mut()? += 1;
    Some(end)
}

/// Sorts pairs by key, the last of equal keys winning.
fn normalize(mut pairs: Vec<(Bytes, Bytes)>) -> Vec<(Bytes, Bytes)> {
    if !pairs.is_sorted_by(|a, b| a.0 < b.0) {
        let map: BTreeMap<_, _> = pairs.drain(..).collect();
        pairs.extend(map);
    }
    pairs
}

fn keys(input: &Bytes) -> Result<BTreeSet<Bytes>, DecodeError> {
    let mut d = Decoder::new(input);
    Ok(d.list(4, |d| slice(d, input))?.into_iter().collect())
}

impl Vector<'_> {
    /// Refuses a list of more entries than a change may have, before it takes memory: an empty
    /// entry has 4 bytes in a request, and many times as much when it is decoded.
    fn few(&self, list: &Bytes) -> Result<(), Stop> {
        let entries = Decoder::new(list).u32()? as usize;
        if entries > self.ctx.limits.max_change / pair_size(&[], &[]) {
            return Err(Stop::Errno(errno::E2BIG));
        }
        Ok(())
    }

    pub(super) fn has_omap(&self) -> bool {
        self.object.exists && self.object.info.has(ObjectInfo::OMAP)
    }

    /// Entries after `start`, with `prefix`, within the limits of a request.
    pub(super) fn omap_page(
        &mut self,
        start: &[u8],
        prefix: &[u8],
        max: u64,
    ) -> Result<OmapPage, Stop> {
        if !self.has_omap() {
            return Ok(OmapPage::default());
        }
        let limits = self.ctx.limits;
        let from = if prefix > start { Bytes::copy_from_slice(prefix) } else { after(start) };
        let until = prefix_end(prefix);
        let until = until.as_deref();
        if until.is_some_and(|u| *u <= *from) {
            return Ok(OmapPage::default());
        }
        let max_entries = max.min(limits.max_omap_entries) as usize;
        let range = OmapRange {
            from: &from,
            until,
            max_entries: max_entries.max(1),
            max_bytes: limits.max_omap_bytes,
        };
        let page = self.object.omap_range(range)?;
        // Asked for none, say only whether there is one.
        Ok(if max_entries == 0 {
            OmapPage { more: !page.entries.is_empty(), entries: Vec::new() }
        } else {
            page
        })
    }

    fn answer(&mut self, out: &mut OsdOp, o: Encoder) -> Ran {
        self.reserve(o.len() as u64)?;
        out.indata = o.into_bytes();
        self.object.stats.count_read(out.indata.len() as u64);
        Ok(self.result)
    }

    pub(super) fn omap_get_keys(&mut self, input: &Bytes, out: &mut OsdOp) -> Ran {
        let mut d = Decoder::new(input);
        let (start, max) = (d.blob()?, d.u64()?);
        let page = self.omap_page(start, b"", max)?;
        let mut o = Encoder::new();
        o.list(&page.entries, |o, (k, _)| o.put(k));
        o.bool(page.more);
        self.answer(out, o)
    }

    pub(super) fn omap_get_vals(&mut self, input: &Bytes, out: &mut OsdOp) -> Ran {
        let mut d = Decoder::new(input);
        let (start, max, prefix) = (d.blob()?, d.u64()?, d.blob()?);
        let page = self.omap_page(start, prefix, max)?;
        let mut o = Encoder::new();
        o.put(&page.entries);
        o.bool(page.more);
        self.answer(out, o)
    }

    pub(super) fn omap_get_header(&mut self, out: &mut OsdOp) -> Ran {
        if self.has_omap() {
            let header = self.object.omap_header()?;
            self.reserve(header.len() as u64)?;
            self.object.stats.count_read(header.len() as u64);
            out.indata = header;
        }
        Ok(self.result)
    }

    pub(super) fn omap_get_vals_by_keys(&mut self, input: &Bytes, out: &mut OsdOp) -> Ran {
        self.few(input)?;
        let keys = keys(input)?;
        let mut found = Vec::new();
        if self.has_omap() {
            for key in keys {
                if let Some(value) = self.object.omap_get(&key)? {
                    self.reserve(key.len() as u64 + value.len() as u64 + 8)?;
                    found.push((key, value));
                }
            }
        }
        let mut o = Encoder::new();
        o.put(&found);
        out.indata = o.into_bytes();
        self.object.stats.count_read(out.indata.len() as u64);
        Ok(self.result)
    }

    /// Compares stored values (left; empty if absent) with given ones (right).
    pub(super) fn omap_cmp(&mut self, input: &Bytes) -> Ran {
        self.must_exist()?;
        self.few(input)?;
        let mut d = Decoder::new(input);
        let wanted: BTreeMap<Bytes, (Bytes, i32)> = d
            .list(12, |d| Ok((slice(d, input)?, (slice(d, input)?, d.i32()?))))?
            .into_iter()
            .collect();
        self.object.stats.count_read(0);
        for (key, (value, op)) in wanted {
            let stored = if self.has_omap() { self.object.omap_get(&key)? } else { None }
                .unwrap_or_default();
            // Of the operators only eq, gt and lt are defined here.
            let op = u8::try_from(op).ok().filter(|op| matches!(op, 1 | 3 | 5));
            match op.and_then(|op| compare(op, stored.cmp(&value))) {
                Some(true) => {}
                Some(false) => return Err(Stop::Errno(errno::ECANCELED)),
                None => return Err(Stop::Errno(errno::EINVAL)),
            }
        }
        Ok(self.result)
    }

    pub(super) fn omap_set_vals(&mut self, input: &Bytes) -> Ran {
        self.replicated_only()?;
        self.few(input)?;
        let mut d = Decoder::new(input);
        let pairs = d.list(8, |d| Ok((slice(d, input)?, slice(d, input)?)))?;
        self.set_pairs(pairs)
    }

    pub(super) fn set_pairs(&mut self, pairs: Vec<(Bytes, Bytes)>) -> Ran {
        self.replicated_only()?;
        if pairs.iter().any(|(k, _)| k.len() > self.ctx.limits.max_omap_key) {
            return Err(Stop::Errno(errno::ENAMETOOLONG));
        }
        self.object.create();
        let bytes = pairs.iter().map(|(k, v)| k.len() + v.len() + 8).sum::<usize>() + 4;
        self.object.omap_set(normalize(pairs));
        self.object.stats.count_write(bytes as u64);
        Ok(0)
    }

    pub(super) fn omap_set_header(&mut self, input: &Bytes) -> Ran {
        self.replicated_only()?;
        self.object.create();
        self.object.omap_set_header(input.clone());
        self.object.stats.count_write(0);
        Ok(0)
    }

    pub(super) fn omap_clear(&mut self) -> Ran {
        self.replicated_only()?;
        self.must_exist()?;
        if self.has_omap() {
            self.object.omap_clear();
            self.object.stats.count_write(0);
        }
        Ok(0)
    }

    pub(super) fn omap_rm_keys(&mut self, input: &Bytes) -> Ran {
        self.replicated_only()?;
        self.must_exist()?;
        self.few(input)?;
        self.rm_keys(keys(input)?.into_iter().collect())
    }

    pub(super) fn rm_keys(&mut self, keys: Vec<Bytes>) -> Ran {
        self.replicated_only()?;
        self.must_exist()?;
        self.object.omap_rm(keys);
        self.object.stats.count_write(0);
        Ok(0)
    }

    pub(super) fn omap_rm_key_range(&mut self, input: &Bytes) -> Ran {
        self.replicated_only()?;
        self.must_exist()?;
        let mut d = Decoder::new(input);
        let (first, last) = (slice(&mut d, input)?, slice(&mut d, input)?);
        self.rm_range(first, last)
    }

    pub(super) fn rm_range(&mut self, first: Bytes, last: Bytes) -> Ran {
        self.replicated_only()?;
        self.must_exist()?;
        self.object.omap_rm_range(first, last);
        self.object.stats.count_write(0);
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_a_prefix_is_the_next_key_without_it() {
        assert_eq!(prefix_end(b""), None);
        assert_eq!(prefix_end(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(prefix_end(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(prefix_end(b"\xff"), None);
    }
}
