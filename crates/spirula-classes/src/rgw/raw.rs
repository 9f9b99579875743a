//! Entries of an index as they are stored, for those who repair an index or move it to other
//! shards.

use super::index::{HEADS, SPECIAL, SPECIAL_END, VERSIONS, entry_key, head_key, version_key};
use super::types::{Entry, Head, Key};
use crate::{Call, Stop, fail, stored};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};
use spirula_types::errno;

/// Kinds of entries.
const PLAIN: u8 = 1;
const VERSION: u8 = 2;
const HEAD: u8 = 3;
/// Most entries that are listed at a time.
const MOST: u32 = 1000;

struct Raw {
    kind: u8,
    key: Bytes,
    value: Bytes,
}

impl Encode for Raw {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u8(self.kind);
            o.put(&self.key);
            o.put(&self.value);
        });
    }
}

impl Decode for Raw {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("raw entry", 1, |d, _| {
            Ok(Self { kind: d.u8()?, key: d.get()?, value: d.get()? })
        })
    }
}

pub(super) fn get(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (key, kind): (Key, u8) =
        call.args(|d| d.versioned("raw entry", 1, |d, _| Ok((d.get()?, d.get()?))))?;
    let at = match kind {
        PLAIN => key.name,
        VERSION => entry_key(&key),
        HEAD => head_key(&key.name),
        _ => return fail(errno::EINVAL),
    };
    let Some(value) = call.object.omap_get(&at)? else { return fail(errno::ENOENT) };
    call.output.versioned(1, 1, |o| o.put(&Raw { kind, key: at, value }));
    Ok(0)
}

pub(super) fn put(call: &mut Call<'_>) -> Result<i32, Stop> {
    let raw: Raw = call.args(|d| d.versioned("raw entry", 1, |d, _| d.get()))?;
    call.object.omap_set(vec![(raw.key, raw.value)])?;
    Ok(0)
}

/// What is listed: entries of one name (of all, if it is empty) after a key.
struct List {
    name: Bytes,
    marker: Bytes,
    max: u32,
    entries: Vec<Raw>,
    more: bool,
}

impl List {
    fn room(&self) -> u64 {
        u64::from(self.max).saturating_sub(self.entries.len() as u64)
    }

    /// Objects' names between two keys.
    fn plain(&mut self, call: &mut Call<'_>, after: &[u8], end: Option<&[u8]>) -> Result<(), Stop> {
        let page = call.pairs(after, &self.name, self.room())?;
        self.more = page.more;
        for (key, value) in page.pairs {
            let over = end.is_some_and(|end| key[..] >= *end);
            // What follows has another name.
            if over || !self.name.is_empty() && stored::<Entry>(&value)?.key.name > self.name {
                self.more = false;
                return Ok(());
            }
            stored::<Entry>(&value)?;
            self.entries.push(Raw { kind: PLAIN, key, value });
        }
        Ok(())
    }

    /// Versions, or logical heads: those whose keys start with `prefix`, and whose values have this
    /// name.
    fn special(&mut self, call: &mut Call<'_>, kind: u8, prefix: &[u8]) -> Result<(), Stop> {
        let after = if is_behind(&self.marker, prefix) {
            self.marker.clone()
        } else {
            Bytes::copy_from_slice(prefix)
        };
        let mut room = self.room();
        // An entry under the key itself is listed, too, but for the one that the listing before
        // ended with.
        let mut found = Vec::new();
        if after != self.marker
            && let Some(value) = call.object.omap_get(&after)?
        {
            room = room.saturating_sub(1);
            found.push((after.clone(), value));
        }
        if room > 0 {
            let page = call.pairs(&after, b"", room)?;
            self.more = page.more;
            found.extend(page.pairs);
        }
        for (key, value) in found {
            let name = match kind {
                _ if !key.starts_with(prefix) => None,
                VERSION => Some(stored::<Entry>(&value)?.key.name),
                _ => Some(stored::<Head>(&value)?.key.name),
            };
            if name.is_none_or(|name| !self.name.is_empty() && name != self.name) {
                self.more = false;
                return Ok(());
            }
            self.entries.push(Raw { kind, key, value });
        }
        Ok(())
    }
}

/// Which part of an index a key belongs to.
fn part(key: &[u8]) -> Option<usize> {
    let special: [&[u8]; 4] = [super::index::LOG, VERSIONS, HEADS, SPECIAL_END];
    if key.first() != Some(&SPECIAL) {
        return Some(0);
    }
    special.iter().position(|prefix| key.starts_with(prefix)).map(|at| at + 1)
}

/// Is a key in a later part of an index, or later in its part?
fn is_behind(key: &[u8], than: &[u8]) -> bool {
    (part(key), key) > (part(than), than)
}

pub(super) fn list(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (max, name, marker): (u32, Bytes, Bytes) =
        call.args(|d| d.versioned("raw listing", 1, |d, _| Ok((d.get()?, d.get()?, d.get()?))))?;
    let mut list = List { name, marker, max: max.min(MOST), entries: Vec::new(), more: false };
    if list.marker < [SPECIAL][..] {
        let after = list.marker.clone();
        list.plain(call, &after, Some(&[SPECIAL]))?;
    }
    let key = Key::named(list.name.clone());
    let all = list.name.is_empty();
    if !list.more {
        let from = if all { Bytes::from_static(VERSIONS) } else { version_key(&key, false) };
        list.special(call, VERSION, &from)?;
    }
    if !list.more {
        list.special(call, HEAD, &head_key(&key.name))?;
    }
    if !list.more {
        let after = list.marker.clone().max(Bytes::from_static(SPECIAL_END));
        list.plain(call, &after, None)?;
    }
    let max = list.max as usize;
    let truncated = list.more || list.entries.len() > max;
    list.entries.truncate(max);
    call.output.versioned(1, 1, |o| {
        o.put(&list.entries);
        o.bool(truncated);
    });
    Ok(0)
}

/// An object of Ceph's corpus, read and written.
#[cfg(test)]
pub(super) fn again(kind: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    match kind {
        "rgw_cls_bi_entry" => crate::reencoded::<Raw>(bytes),
        _ => None,
    }
}
