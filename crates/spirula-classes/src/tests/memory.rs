//! An object in memory, on which the classes are tested and fuzzed (`fuzz/src/bin/classes.rs` takes
//! this file, too).

use bytes::Bytes;
use spirula_classes::{Caller, Object, Page, Stat, Stop};
use spirula_encoding::UTime;
use spirula_types::errno;
use std::collections::BTreeMap;

/// An object in memory, and who calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    pub caller: Caller,
    pub now: UTime,
    pub exists: bool,
    pub data: Vec<u8>,
    pub attrs: BTreeMap<Bytes, Bytes>,
    pub omap: BTreeMap<Bytes, Bytes>,
    pub header: Bytes,
    pub steps: u32,
    pub version: u64,
    /// Most pairs of a page; 0 for three, so that every listing takes several.
    pub page: u64,
    /// The first number that is drawn, if that matters.
    pub first: Option<u64>,
    pub drawn: u64,
    pub watchers: Vec<Caller>,
    /// Bytes that it may have.
    pub largest: u64,
}

impl Memory {
    /// Does another object hold something else?
    pub fn unlike(&self, other: &Self) -> bool {
        let held = |o: &Self| (o.exists, o.header.clone());
        held(self) != held(other)
            || self.data != other.data
            || self.attrs != other.attrs
            || self.omap != other.omap
    }
}

impl Object for Memory {
    fn caller(&self) -> Caller {
        self.caller
    }
    fn now(&self) -> UTime {
        self.now
    }
    fn unique(&mut self) -> u64 {
        self.drawn += 1;
        if let Some(first) = self.first.filter(|_| self.drawn == 1) {
            return first;
        }
        self.drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
    fn stat(&mut self) -> Result<Stat, Stop> {
        if !self.exists {
            return Err(Stop::Errno(errno::ENOENT));
        }
        Ok(Stat { size: self.data.len() as u64, mtime: UTime { sec: 1_700_000_000, nsec: 0 } })
    }
    fn read(&mut self, offset: u64, length: u64) -> Result<Bytes, Stop> {
        self.steps += 1;
        let size = self.data.len() as u64;
        let from = offset.min(size);
        let to = from.saturating_add(length).min(size);
        Ok(Bytes::copy_from_slice(&self.data[from as usize..to as usize]))
    }
    fn attr(&mut self, name: &[u8]) -> Result<Bytes, Stop> {
        self.steps += 1;
        self.stat()?;
        self.attrs.get(name).cloned().ok_or(Stop::Errno(errno::ENODATA))
    }
    fn attrs(&mut self) -> Result<Vec<(Bytes, Bytes)>, Stop> {
        self.steps += 1;
        self.stat()?;
        Ok(self.attrs.clone().into_iter().collect())
    }
    fn omap_get(&mut self, key: &[u8]) -> Result<Option<Bytes>, Stop> {
        self.steps += 1;
        Ok(self.omap.get(key).cloned())
    }
    fn omap_page(&mut self, after: &[u8], prefix: &[u8], max: u64) -> Result<Page, Stop> {
        self.steps += 1;
        let mut matching = self.omap.iter().filter(|(k, _)| k.starts_with(prefix) && **k > *after);
        let page = if self.page == 0 { 3 } else { self.page };
        let pairs = matching
            .by_ref()
            .take(max.min(page) as usize)
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        Ok(Page { pairs, more: matching.next().is_some() })
    }
    fn omap_header(&mut self) -> Result<Bytes, Stop> {
        self.steps += 1;
        Ok(self.header.clone())
    }
    fn version(&self) -> u64 {
        self.version
    }
    fn steps(&self) -> u32 {
        self.steps
    }
    fn snap_seq(&mut self) -> Result<u64, Stop> {
        self.stat().map(|_| 0)
    }
    fn watchers(&mut self) -> Result<Vec<Caller>, Stop> {
        self.stat()?;
        Ok(self.watchers.clone())
    }
    fn create(&mut self, exclusive: bool) -> Result<(), Stop> {
        self.steps += 1;
        if exclusive && self.exists {
            return Err(Stop::Errno(errno::EEXIST));
        }
        self.exists = true;
        Ok(())
    }
    fn write(&mut self, offset: u64, data: Bytes) -> Result<(), Stop> {
        self.steps += 1;
        let Some(end) = offset.checked_add(data.len() as u64).filter(|end| *end <= self.largest)
        else {
            return Err(Stop::Errno(errno::EFBIG));
        };
        self.exists = true;
        if !data.is_empty() {
            self.data.resize(self.data.len().max(end as usize), 0);
            self.data[offset as usize..end as usize].copy_from_slice(&data);
        }
        Ok(())
    }
    fn zero(&mut self, offset: u64, length: u64) -> Result<(), Stop> {
        self.steps += 1;
        let size = self.data.len() as u64;
        if offset < size && length > 0 {
            match offset.checked_add(length).filter(|end| *end < size) {
                Some(end) => self.data[offset as usize..end as usize].fill(0),
                None => self.data.truncate(offset as usize),
            }
        }
        Ok(())
    }
    fn truncate(&mut self, size: u64) -> Result<(), Stop> {
        self.steps += 1;
        if size > self.largest {
            return Err(Stop::Errno(errno::EFBIG));
        }
        self.data.resize(size as usize, 0);
        Ok(())
    }
    fn omap_remove(&mut self, keys: Vec<Bytes>) -> Result<(), Stop> {
        self.steps += 1;
        self.stat()?;
        keys.iter().for_each(|k| drop(self.omap.remove(k)));
        Ok(())
    }
    fn write_full(&mut self, data: Bytes) -> Result<(), Stop> {
        self.steps += 1;
        self.exists = true;
        self.data = data.to_vec();
        Ok(())
    }
    fn remove(&mut self) -> Result<(), Stop> {
        self.steps += 1;
        self.stat()?;
        *self = Self {
            caller: self.caller,
            now: self.now,
            drawn: self.drawn,
            largest: self.largest,
            page: self.page,
            steps: self.steps,
            version: self.version,
            first: self.first,
            ..Self::default()
        };
        Ok(())
    }
    fn set_attr(&mut self, name: &[u8], value: Bytes) -> Result<(), Stop> {
        self.steps += 1;
        self.exists = true;
        self.attrs.insert(Bytes::copy_from_slice(name), value);
        Ok(())
    }
    fn omap_set(&mut self, pairs: Vec<(Bytes, Bytes)>) -> Result<(), Stop> {
        self.steps += 1;
        self.exists = true;
        self.omap.extend(pairs);
        Ok(())
    }
    fn omap_remove_range(&mut self, first: Bytes, end: Bytes) -> Result<(), Stop> {
        self.steps += 1;
        self.stat()?;
        self.omap.retain(|k, _| *k < first || *k >= end);
        Ok(())
    }
    fn omap_clear(&mut self) -> Result<(), Stop> {
        self.steps += 1;
        self.stat()?;
        self.omap.clear();
        self.header = Bytes::new();
        Ok(())
    }
    fn omap_set_header(&mut self, header: Bytes) -> Result<(), Stop> {
        self.steps += 1;
        self.exists = true;
        self.header = header;
        Ok(())
    }
}
