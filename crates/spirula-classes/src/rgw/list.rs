//! Listings of a bucket, and the count of what is in its index.

use super::index::{SPECIAL, VERSIONS, is_plain, list_key, name_of, version_key};
use super::types::{Entry, Header, Key, Stats};
use crate::{Call, Page, Stop, fail, stored};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, to_vec};
use spirula_types::errno;
use std::collections::BTreeMap;

/// How often a listing reads on, when what it reads is not to be shown.
const ATTEMPTS: u32 = 8;
/// Entries that are counted at a time.
const PAGE: u64 = 1000;
/// Bytes of entries after which a listing ends and says that there are more, as where the OSD's own
/// bound on pairs ends one.
const SHOWN_BYTES: usize = 16 << 20;

struct List {
    start: Key,
    max: u32,
    prefix: Bytes,
    versions: bool,
    delimiter: Bytes,
}

impl Decode for List {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("listing", 6, |d, v| {
            let old = if v < 4 { Key::named(d.get()?) } else { Key::default() };
            Ok(Self {
                max: d.u32()?,
                prefix: if v >= 3 { d.get()? } else { Bytes::new() },
                start: if v >= 4 { d.get()? } else { old },
                versions: v >= 5 && d.bool()?,
                delimiter: if v >= 6 { d.get()? } else { Bytes::new() },
            })
        })
    }
}

/// Pairs of objects' names after a key: what is neither log nor versions by name nor heads.
fn plain(call: &mut Call<'_>, after: &[u8], prefix: &[u8], max: u64) -> Result<Page, Stop> {
    let mut page = call.pairs(after, prefix, max)?;
    let first_byte = |pair: Option<&(Bytes, Bytes)>| pair.and_then(|(k, _)| k.first().copied());
    if first_byte(page.pairs.last()).is_none_or(|b| b < SPECIAL)
        || first_byte(page.pairs.first()) > Some(SPECIAL)
    {
        return Ok(page);
    }
    page.pairs.retain(|(k, _)| is_plain(k));
    if page.pairs.len() as u64 == max || !page.more {
        return Ok(page);
    }
    let behind = Bytes::from_static(&[SPECIAL + 1]);
    let from = page.pairs.last().map(|(k, _)| k.clone()).filter(|k| *k > behind).unwrap_or(behind);
    let rest = call.pairs(&from, prefix, max - page.pairs.len() as u64)?;
    page.pairs.extend(rest.pairs);
    page.more = rest.more;
    Ok(page)
}

/// The key after which a listing starts that starts after an object, or after a version of it.
fn start_key(call: &mut Call<'_>, start: &Key) -> Result<Bytes, Stop> {
    if start.instance.is_empty() {
        return Ok(start.name.clone());
    }
    let null = start.instance == "null";
    let key = if null { Key::named(start.name.clone()) } else { start.clone() };
    match call.key::<Entry>(version_key(&key, false)) {
        Ok(Some(entry)) => Ok(list_key(&entry)),
        Ok(None) => Ok([&start.name[..], b"\x01"].concat().into()),
        // As Ceph, which starts at the beginning then.
        Err(Stop::Errno(_)) => Ok(Bytes::new()),
        Err(e) => Err(e),
    }
}

/// Where a delimiter ends in a name, behind the prefix.
fn delimited(name: &[u8], prefix: usize, delimiter: &[u8]) -> Option<usize> {
    let rest = name.get(prefix..)?;
    rest.windows(delimiter.len())
        .position(|w| w == delimiter)
        .map(|at| prefix + at + delimiter.len())
}

pub(super) fn list(call: &mut Call<'_>) -> Result<i32, Stop> {
    let op: List = call.args(|d| d.get())?;
    let header: Header = call.header()?;
    let mut shown = Shown::default();
    let (mut truncated, mut marker) = (false, Key::default());
    if op.max > 0 {
        (truncated, marker) = gather(call, &op, &mut shown)?;
    }
    let nothing = shown.entries.is_empty();
    let marker = if truncated { marker } else { Key::default() };
    call.output.versioned(4, 2, |o| {
        o.versioned(2, 2, |o| {
            o.put(&header);
            o.u32(shown.entries.len() as u32);
            for (key, entry) in &shown.entries {
                o.put(key);
                o.raw(entry);
            }
        });
        o.bool(truncated);
        o.put(&marker);
    });
    // The gateway reads the marker of such an answer, and asks on.
    if truncated && nothing { fail(errno::EFBIG) } else { Ok(0) }
}

/// What a listing shows: entries as they are sent, which takes much less memory than what they are
/// decoded to.
#[derive(Default)]
struct Shown {
    entries: BTreeMap<Bytes, Vec<u8>>,
    bytes: usize,
}

impl Shown {
    fn insert(&mut self, key: Bytes, entry: &Entry) {
        let encoded = to_vec(entry);
        self.bytes += key.len() + encoded.len();
        self.entries.insert(key, encoded);
    }

    /// May it take another one?
    fn has_room(&self, max: usize) -> bool {
        self.entries.len() < max && self.bytes < SHOWN_BYTES
    }
}

/// Takes up what is to be shown: whether there is more, and where to go on.
fn gather(call: &mut Call<'_>, op: &List, shown: &mut Shown) -> Result<(bool, Key), Stop> {
    let max = op.max as usize;
    let mut after = start_key(call, &op.start)?;
    let divides = !op.delimiter.is_empty();
    if divides && after > op.prefix && after.ends_with(&op.delimiter) {
        after = behind(&after);
    }
    let (mut marker, mut last_prefix) = (Key::default(), None);
    let (mut more, mut done) = (true, false);
    for _ in 0..ATTEMPTS {
        if !more || done || !shown.has_room(max) {
            break;
        }
        let page = plain(call, &after, &op.prefix, (max - shown.entries.len()) as u64)?;
        more = page.more;
        done = page.pairs.is_empty();
        let mut skip = Bytes::new();
        for (key, value) in page.pairs {
            if key < skip {
                continue;
            }
            if shown.bytes >= SHOWN_BYTES {
                // The rest of the page is for the next listing.
                more = true;
                break;
            }
            let Ok(entry) = stored::<Entry>(&value) else { return fail(errno::EINVAL) };
            after = key.clone();
            marker = entry.key.clone();
            let Some(name) = name_of(&key) else { continue };
            if entry.has(Entry::PLACEHOLDER)
                || !op.versions && (!entry.is_visible() || op.start.name == name)
            {
                continue;
            }
            let end = if divides { delimited(&name, op.prefix.len(), &op.delimiter) } else { None };
            if let Some(end) = end {
                let prefix = name.slice(..end);
                if last_prefix.as_ref() == Some(&prefix) {
                    continue;
                }
                last_prefix = Some(prefix.clone());
                // Nothing else with this prefix is looked at.
                skip = behind(&prefix);
                after = skip.clone();
                marker = Key::named(skip.clone());
                if shown.entries.len() < max {
                    let flags = Entry::COMMON_PREFIX;
                    shown.insert(
                        prefix.clone(),
                        &Entry { key: Key::named(prefix), flags, ..Entry::default() },
                    );
                }
            } else if shown.entries.len() < max {
                shown.insert(key, &entry);
            }
        }
    }
    Ok((more && !done, marker))
}

/// A key behind all names with a prefix: 0xff is in no UTF-8.
fn behind(prefix: &[u8]) -> Bytes {
    [prefix, b"\xff"].concat().into()
}

/// The header, and what it should be.
fn count(call: &mut Call<'_>) -> Result<(Header, Header), Stop> {
    let header: Header = call.header()?;
    let mut counted = Header {
        tag_timeout: header.tag_timeout,
        version: header.version,
        sync_stopped: header.sync_stopped,
        ..Header::default()
    };
    // An object's version counts where its own entry is, not where it is listed under its object's
    // name.
    for versions in [false, true] {
        let mut after = Bytes::new();
        loop {
            let page = if versions {
                call.pairs(&after, VERSIONS, PAGE)?
            } else {
                plain(call, &after, b"", PAGE)?
            };
            for (key, value) in &page.pairs {
                let entry: Entry = stored(value)?;
                if entry.exists && (versions || entry.flags == 0) {
                    counted.of(entry.meta.category).add(Stats::of(&entry.meta));
                }
                after = key.clone();
            }
            if page.pairs.is_empty() || !page.more {
                break;
            }
        }
    }
    Ok((header, counted))
}

pub(super) fn check(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (header, counted) = count(call)?;
    call.output.versioned(1, 1, |o| {
        o.put(&header);
        o.put(&counted);
    });
    Ok(0)
}

pub(super) fn rebuild(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (_, counted) = count(call)?;
    call.put_header(counted)
}
