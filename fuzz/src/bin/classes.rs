//! Methods of object classes. Input: `[how u8][method u16]`, then for each of some values that are stored `[where u8][length
//! u8][value]`, an end (255), and the input of the call. Flag 1: the object does not exist. Where: below 128 a key of the omap,
//! from there on an attribute, of a list of names under which classes keep their state; 254 the data.
#![no_main]

use bytes::Bytes;
use spirula_classes::{CLASSES, Caller, Object, Page, Stat, Stop};
use spirula_encoding::{Decoder, UTime};
use spirula_types::errno;
use std::collections::BTreeMap;

const NAMES: &[&str] = &[
    "features",
    "size",
    "order",
    "snap_seq",
    "parent",
    "op_features",
    "flags",
    "snapshot_0000000000000001",
    "snap_limit",
    "snapshot_0000000000000000",
    "snap_children_0000000000000001",
    "migration",
    "metadata_a",
    "name_a",
    "id_a",
    "rbd_group_ref",
    "image_0000000000000007_a",
    "image_a",
    "mirror_mode",
    "mirror_uuid",
    "mirror_peer_a",
    "global_a",
    "instance_a",
    "image_map_a",
    "splay_width",
    "next_tag_tid",
    "next_tag_class",
    "client_a",
    "tag_0000000000000000",
    "1_0000000005.000000_a",
    "lock.",
    "lock.a",
    "refcount",
    "ceph.objclass.version",
    "a",
    "",
];
/// Bytes that an object may have.
const LARGEST: u64 = 1 << 20;

/// An object in memory.
#[derive(Default)]
struct Memory {
    exists: bool,
    data: Vec<u8>,
    attrs: BTreeMap<Bytes, Bytes>,
    omap: BTreeMap<Bytes, Bytes>,
    drawn: u64,
}

impl Object for Memory {
    fn caller(&self) -> Caller {
        Caller::default()
    }
    fn now(&self) -> UTime {
        UTime { sec: 9, nsec: 9 }
    }
    fn unique(&mut self) -> u64 {
        self.drawn += 1;
        self.drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
    fn stat(&mut self) -> Result<Stat, Stop> {
        let stat = Stat { size: self.data.len() as u64, mtime: UTime::ZERO };
        if self.exists { Ok(stat) } else { Err(Stop::Errno(errno::ENOENT)) }
    }
    fn read(&mut self, offset: u64, length: u64) -> Result<Bytes, Stop> {
        let size = self.data.len() as u64;
        let from = offset.min(size);
        let to = from.saturating_add(length).min(size);
        Ok(Bytes::copy_from_slice(&self.data[from as usize..to as usize]))
    }
    fn attr(&mut self, name: &[u8]) -> Result<Bytes, Stop> {
        self.stat()?;
        self.attrs.get(name).cloned().ok_or(Stop::Errno(errno::ENODATA))
    }
    fn attrs(&mut self) -> Result<Vec<(Bytes, Bytes)>, Stop> {
        self.stat()?;
        Ok(self.attrs.clone().into_iter().collect())
    }
    fn omap_get(&mut self, key: &[u8]) -> Result<Option<Bytes>, Stop> {
        Ok(self.omap.get(key).cloned())
    }
    fn omap_page(&mut self, after: &[u8], prefix: &[u8], max: u64) -> Result<Page, Stop> {
        let mut all = self.omap.iter().filter(|(k, _)| k.starts_with(prefix) && **k > *after);
        let pairs = all.by_ref().take(max.min(2) as usize).map(|(k, v)| (k.clone(), v.clone())).collect();
        Ok(Page { pairs, more: all.next().is_some() })
    }
    fn snap_seq(&mut self) -> Result<u64, Stop> {
        self.stat().map(|_| 0)
    }
    fn create(&mut self, exclusive: bool) -> Result<(), Stop> {
        let there = std::mem::replace(&mut self.exists, true);
        if there && exclusive { Err(Stop::Errno(errno::EEXIST)) } else { Ok(()) }
    }
    fn write(&mut self, offset: u64, data: Bytes) -> Result<(), Stop> {
        let end = offset.checked_add(data.len() as u64).filter(|e| *e <= LARGEST).ok_or(Stop::Errno(errno::EFBIG))?;
        self.exists = true;
        if !data.is_empty() {
            self.data.resize(self.data.len().max(end as usize), 0);
            self.data[offset as usize..end as usize].copy_from_slice(&data);
        }
        Ok(())
    }
    fn truncate(&mut self, size: u64) -> Result<(), Stop> {
        if size > LARGEST {
            return Err(Stop::Errno(errno::EFBIG));
        }
        self.data.resize(size as usize, 0);
        Ok(())
    }
    fn write_full(&mut self, data: Bytes) -> Result<(), Stop> {
        self.exists = true;
        self.data = data.to_vec();
        Ok(())
    }
    fn remove(&mut self) -> Result<(), Stop> {
        self.stat()?;
        *self = Self { drawn: self.drawn, ..Self::default() };
        Ok(())
    }
    fn set_attr(&mut self, name: &[u8], value: Bytes) -> Result<(), Stop> {
        self.exists = true;
        self.attrs.insert(Bytes::copy_from_slice(name), value);
        Ok(())
    }
    fn omap_set(&mut self, pairs: Vec<(Bytes, Bytes)>) -> Result<(), Stop> {
        self.exists = true;
        self.omap.extend(pairs);
        Ok(())
    }
    fn omap_remove(&mut self, keys: Vec<Bytes>) -> Result<(), Stop> {
        self.stat()?;
        keys.iter().for_each(|k| drop(self.omap.remove(k)));
        Ok(())
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut d = Decoder::new(data);
    let (Ok(how), Ok(number)) = (d.u8(), d.u16()) else { return };
    let mut object = Memory { exists: how & 1 == 0, ..Memory::default() };
    while let Ok(place) = d.u8() {
        let name = |i: u8| Bytes::from_static(NAMES[usize::from(i) % NAMES.len()].as_bytes());
        let Some(value) = (place != 255).then(|| d.u8().and_then(|n| d.take(usize::from(n))).ok()).flatten() else {
            break;
        };
        let value = Bytes::copy_from_slice(value);
        match place {
            _ if !object.exists => {}
            254 => object.data = value.to_vec(),
            0..128 => drop(object.omap.insert(name(place), value)),
            _ => drop(object.attrs.insert(name(place - 128), value)),
        }
    }
    let methods: Vec<_> = CLASSES.iter().flat_map(|c| c.methods).collect();
    let method = methods[usize::from(number) % methods.len()];
    let input = Bytes::copy_from_slice(d.rest());
    // A map of many objects is larger than what asks for it: an image of a terabyte.
    let resizes = method.name == "object_map_resize";
    if !resizes || input.first_chunk().is_some_and(|n| u64::from_le_bytes(*n) < 1 << 20) {
        drop(method.run(&mut object, input));
    }
});
