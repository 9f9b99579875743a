//! Objects with versions: which of them is the newest, and what the gateway must do when that
//! changes.
//!
//! The gateway writes a version's data, and tells the index that it is the newest (`link`). The
//! index notes that in the object's logical head, with a log of what the gateway has to do to the
//! object of that name (`read_log`), and drops what it has done (`trim_log`). So any gateway can go
//! on where one has stopped.

use super::changes::COMPLETE;
use super::index::{head_key, list_key, version_key};
use super::types::{DataVersion, Entry, Head, HeadLog, Header, Key, LogEntry, Meta};
use crate::{Call, Stop, fail, stored};
use bytes::Bytes;
use spirula_encoding::UTime;
use spirula_types::errno;
use std::collections::BTreeMap;

/// Operations, in the log.
const LINKED: u8 = 4;
const LINKED_MARKER: u8 = 5;
const UNLINKED: u8 = 6;
/// Flag in the log: an operation on a version.
const VERSIONED: u16 = 1;
/// Most epochs of a head's log that are told at a time.
const MOST: usize = 1000;

/// A version, and where its entry is.
struct Version {
    key: Key,
    at: Bytes,
    entry: Entry,
    /// The entry is what is stored, or is made to be.
    known: bool,
}

impl Version {
    fn new(key: Key) -> Self {
        Self { key, at: Bytes::new(), entry: Entry::default(), known: false }
    }

    /// Reads the entry: was there one? `marker`: of the version "null" its delete marker, if it has
    /// one.
    fn read(&mut self, call: &mut Call<'_>, marker: bool) -> Result<bool, Stop> {
        let (at, found) = call.entry(&self.key, marker && self.key.instance.is_empty())?;
        self.at = at;
        self.known = found.is_some();
        self.entry = found.unwrap_or_default();
        Ok(self.known)
    }

    fn is_marker(&self) -> bool {
        self.entry.has(Entry::DELETE_MARKER)
    }

    fn make_marker(&mut self, meta: Meta) {
        self.entry.key = self.key.clone();
        self.entry.flags = Entry::DELETE_MARKER;
        self.entry.meta = meta;
        self.entry.tag = Bytes::from_static(b"delete-marker");
        self.known = true;
    }

    /// Takes it from listings.
    fn unlist(&self, call: &mut Call<'_>) -> Result<(), Stop> {
        call.unset(list_key(&self.entry))
    }

    fn remove(&self, call: &mut Call<'_>) -> Result<(), Stop> {
        call.unset(&self.at)
    }

    fn set_flags(&mut self, call: &mut Call<'_>, set: u16, reset: u16) -> Result<(), Stop> {
        if !self.known && !self.read(call, true)? {
            return fail(errno::ENOENT);
        }
        self.entry.flags = self.entry.flags & !reset | set;
        self.at = version_key(&self.key, self.is_marker() && self.entry.key.instance.is_empty());
        call.set(&self.at, &self.entry)?;
        call.set(list_key(&self.entry), &self.entry)
    }

    /// Writes it as a version with this epoch. One that was not read keeps the epoch that it has.
    fn write(&mut self, call: &mut Call<'_>, epoch: u64, current: bool) -> Result<(), Stop> {
        if self.entry.versioned_epoch > 0 {
            self.unlist(call)?;
        }
        self.entry.versioned_epoch = epoch;
        let current = if current { Entry::CURRENT } else { 0 };
        self.set_flags(call, Entry::VERSION | current, 0)
    }

    /// The next older version.
    fn next(&self, call: &mut Call<'_>) -> Result<Option<Key>, Stop> {
        let page = call.pairs(&list_key(&self.entry), &self.key.name, 1)?;
        let Some((_, value)) = page.pairs.first() else { return Ok(None) };
        let next: Entry = stored(value)?;
        Ok(Some(next.key).filter(|key| key.name == self.key.name))
    }
}

/// A logical head, and where it is.
struct Logical {
    at: Bytes,
    found: bool,
    head: Head,
}

impl Logical {
    fn read(call: &mut Call<'_>, name: &[u8]) -> Result<Self, Stop> {
        let at = head_key(name);
        let head: Option<Head> = call.key(&at)?;
        Ok(Self { at, found: head.is_some(), head: head.unwrap_or_default() })
    }

    /// Takes a new epoch, the given one or the next; false if the given one is an old one.
    fn advance(&mut self, given: u64) -> bool {
        self.head.epoch = match given {
            // 1 is that of objects from the time before there were versions.
            0 => (self.head.epoch + u64::from(self.head.epoch < u64::MAX)).max(2),
            given if given < self.head.epoch => return false,
            given => given,
        };
        true
    }

    fn log(&mut self, op: u8, tag: &Bytes, key: &Key, delete_marker: bool, epoch: u64) {
        let epoch = if epoch == 0 { self.head.epoch } else { epoch };
        let entry = HeadLog { epoch, op, tag: tag.clone(), key: key.clone(), delete_marker };
        self.head.log.entry(self.head.epoch).or_default().push(entry);
    }

    fn write(&self, call: &mut Call<'_>) -> Result<(), Stop> {
        call.set(&self.at, &self.head)
    }
}

/// Makes the object without versions a version of its own, and a placeholder of its entry.
fn convert(call: &mut Call<'_>, name: &Bytes, demote: bool, unlisted: bool) -> Result<(), Stop> {
    let key = Key::named(name.clone());
    if let (_, Some(mut entry)) = call.entry(&key, false)? {
        entry.versioned_epoch = 1;
        entry.flags |= Entry::VERSION;
        if demote {
            entry.flags &= !Entry::CURRENT;
        }
        call.set(version_key(&key, false), &entry)?;
        if !unlisted {
            call.set(list_key(&entry), &entry)?;
        }
    }
    call.set(name, &Entry { key, flags: Entry::PLACEHOLDER, ..Entry::default() })
}

/// Notes a change of a version in the index's log, if that is wanted.
#[derive(Default)]
struct Note {
    wanted: bool,
    entry: LogEntry,
}

impl Note {
    fn write(self, call: &mut Call<'_>) -> Result<i32, Stop> {
        if !self.wanted {
            return Ok(0);
        }
        let mut header: Header = call.header()?;
        if header.sync_stopped {
            return Ok(0);
        }
        let number = header.version;
        let flags = self.entry.flags | VERSIONED;
        call.log(
            &mut header,
            LogEntry { flags, state: COMPLETE, index_version: number, ..self.entry },
            number,
        )?;
        call.put_header(header)
    }
}

#[derive(Default)]
struct Link {
    key: Key,
    head_tag: Bytes,
    delete_marker: bool,
    tag: Bytes,
    meta: Meta,
    epoch: u64,
    log: bool,
    log_flags: u16,
    /// Only if the version is older than this.
    unmodified_since: UTime,
    precise: bool,
    zones: Vec<Bytes>,
}

impl Link {
    fn read(call: &Call<'_>) -> Result<Self, Stop> {
        call.few_args(|d| {
            d.versioned("link of a version", 5, |d, v| {
                let mut l = Self {
                    key: d.get()?,
                    head_tag: d.get()?,
                    delete_marker: d.bool()?,
                    ..Self::default()
                };
                l.tag = d.get()?;
                l.meta = d.get()?;
                l.epoch = d.u64()?;
                l.log = d.bool()?;
                l.log_flags = d.u16()?;
                if v >= 2 {
                    // Seconds alone, for older releases.
                    let seconds = d.u64()?;
                    l.unmodified_since =
                        UTime { sec: u32::try_from(seconds).unwrap_or(u32::MAX), nsec: 0 };
                }
                if v >= 3 {
                    l.unmodified_since = d.get()?;
                }
                if v >= 4 {
                    l.precise = d.bool()?;
                }
                if v >= 5 {
                    l.zones = d.get()?;
                }
                Ok(l)
            })
        })
    }
}

pub(super) fn link(call: &mut Call<'_>) -> Result<i32, Stop> {
    let op = Link::read(call)?;
    let mut version = Version::new(op.key.clone());
    let mut existed = version.read(call, op.delete_marker)?;
    if !existed && !op.delete_marker {
        return fail(errno::ENOENT);
    }
    let mut logical = Logical::read(call, &op.key.name)?;
    if !existed && op.delete_marker && logical.found && logical.head.delete_marker {
        // It is deleted already.
        return fail(errno::ENOENT);
    }
    if existed && !op.unmodified_since.is_zero() {
        let rounded = |t: UTime| if op.precise { t } else { UTime { nsec: 0, ..t } };
        if rounded(version.entry.meta.mtime) >= rounded(op.unmodified_since) {
            return Ok(0);
        }
    }
    let removing;
    if op.key.instance.is_empty() {
        // Of the version "null" there may be data and a delete marker: what this one replaces is
        // not listed any more.
        let mut other = Version::new(op.key.clone());
        let found = match other.read(call, !op.delete_marker) {
            Err(Stop::Errno(_)) => false,
            other => other?,
        };
        existed = found && !other.is_marker();
        if found && other.is_marker() != op.delete_marker {
            other.unlist(call)?;
        }
        removing = existed && op.delete_marker;
        if !removing {
            other.remove(call)?;
        }
    } else {
        removing = existed && !version.is_marker() && op.delete_marker;
    }
    if op.delete_marker {
        version.make_marker(op.meta);
    }
    let before = logical.head.epoch;
    if !logical.advance(op.epoch) {
        version.write(call, op.epoch, false)?;
        if removing {
            logical.log(HeadLog::REMOVE, &op.tag, &op.key, false, op.epoch);
        }
        return Ok(0);
    }
    let head = &mut logical.head;
    // Of two with the same epoch the one with the lower name is the newer.
    let promote =
        head.epoch > before || head.epoch == before && head.key.instance >= op.key.instance;
    if logical.found {
        if op.head_tag != head.tag {
            if !head.pending_removal {
                return fail(errno::ECANCELED);
            }
            head.tag = op.head_tag;
        }
        if promote && head.exists && head.key != op.key {
            Version::new(head.key.clone()).set_flags(call, 0, Entry::CURRENT)?;
        }
        head.pending_removal = false;
    } else {
        convert(call, &op.key.name, promote, op.key.instance.is_empty() && op.delete_marker)?;
        head.tag = op.head_tag;
    }
    logical.log(HeadLog::LINK, &op.tag, &op.key, op.delete_marker, 0);
    if removing {
        logical.log(HeadLog::REMOVE, &op.tag, &op.key, false, 0);
    }
    if promote {
        logical.head.delete_marker = op.delete_marker;
        logical.head.key = op.key.clone();
    }
    logical.head.exists = true;
    logical.write(call)?;
    let epoch = logical.head.epoch;
    version.write(call, epoch, promote)?;
    let meta = version.entry.meta;
    let (owner, owner_name) =
        if op.delete_marker { (meta.owner, meta.owner_name) } else { (Bytes::new(), Bytes::new()) };
    let entry = LogEntry {
        key: op.key,
        time: meta.mtime,
        version: DataVersion {
            epoch: if op.epoch == 0 { epoch } else { op.epoch },
            ..DataVersion::default()
        },
        op: if op.delete_marker { LINKED_MARKER } else { LINKED },
        tag: op.tag,
        flags: op.log_flags,
        owner,
        owner_name,
        zones: op.zones,
        ..LogEntry::default()
    };
    Note { wanted: op.log, entry }.write(call)
}

#[derive(Default)]
struct Unlink {
    key: Key,
    tag: Bytes,
    epoch: u64,
    log: bool,
    log_flags: u16,
    head_tag: Bytes,
    zones: Vec<Bytes>,
}

pub(super) fn unlink(call: &mut Call<'_>) -> Result<i32, Stop> {
    let op = call.few_args(|d| {
        d.versioned("unlink of a version", 3, |d, v| {
            let mut u =
                Unlink { key: d.get()?, tag: d.get()?, epoch: d.u64()?, ..Unlink::default() };
            u.log = d.bool()?;
            u.log_flags = d.u16()?;
            if v >= 2 {
                u.head_tag = d.get()?;
            }
            if v >= 3 {
                u.zones = d.get()?;
            }
            Ok(u)
        })
    })?;
    let mut key = op.key.clone();
    if key.instance == "null" {
        key.instance = Bytes::new();
    }
    let mut version = Version::new(key.clone());
    if !version.read(call, true)? {
        // It is gone already.
        return Ok(0);
    }
    let mut logical = Logical::read(call, &key.name)?;
    if !logical.found {
        convert(call, &key.name, true, false)?;
        logical.head.delete_marker = false;
        logical.head.key = key.clone();
        logical.head.tag = op.head_tag;
        version.entry.versioned_epoch = 1;
    }
    if !logical.advance(op.epoch) {
        version.unlist(call)?;
        if !version.is_marker() {
            logical.log(HeadLog::REMOVE, &op.tag, &op.key, false, op.epoch);
            logical.write(call)?;
        }
        return Ok(0);
    }
    if logical.head.key == key {
        match version.next(call)? {
            Some(older) => {
                let mut next = Version::new(older.clone());
                next.write(call, logical.head.epoch, true)?;
                logical.head.delete_marker = next.is_marker();
                logical.head.key = older.clone();
                logical.log(HeadLog::LINK, &op.tag, &older, next.is_marker(), 0);
            }
            None => {
                // The name stays: it says which shard the head belongs to.
                let none = Key::named(key.name.clone());
                logical.log(HeadLog::UNLINK, &op.tag, &none, false, 0);
                logical.head.delete_marker = false;
                logical.head.key = none;
                logical.head.exists = false;
                logical.head.pending_removal = true;
            }
        }
    }
    if version.is_marker() {
        version.remove(call)?;
    } else {
        logical.log(HeadLog::REMOVE, &op.tag, &op.key, false, 0);
    }
    version.unlist(call)?;
    logical.write(call)?;
    let entry = LogEntry {
        key: op.key,
        time: version.entry.meta.mtime,
        version: DataVersion {
            epoch: if op.epoch == 0 { logical.head.epoch } else { op.epoch },
            ..DataVersion::default()
        },
        op: UNLINKED,
        tag: op.tag,
        flags: op.log_flags,
        zones: op.zones,
        ..LogEntry::default()
    };
    Note { wanted: op.log, entry }.write(call)
}

/// A question on a head's log: of what object, from or up to which epoch, and the tag that the head
/// must have.
fn log_args(call: &Call<'_>) -> Result<(Key, u64, Bytes), Stop> {
    let (key, epoch, tag): (Key, u64, Bytes) =
        call.args(|d| d.versioned("head's log", 1, |d, _| Ok((d.get()?, d.get()?, d.get()?))))?;
    if key.instance.is_empty() { Ok((key, epoch, tag)) } else { fail(errno::EINVAL) }
}

/// The head of an object, which must have this tag.
fn tagged(call: &mut Call<'_>, key: &Key, tag: &[u8]) -> Result<Logical, Stop> {
    let logical = Logical::read(call, &key.name)?;
    if logical.head.tag == tag { Ok(logical) } else { fail(errno::ECANCELED) }
}

pub(super) fn read_log(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (key, after, tag) = log_args(call)?;
    let mut log = tagged(call, &key, &tag)?.head.log;
    let later = match after.checked_add(1) {
        Some(next) => log.split_off(&next),
        None => BTreeMap::new(),
    };
    let truncated = later.len() > MOST;
    call.output.versioned(1, 1, |o| {
        o.list(later.iter().take(MOST).collect::<Vec<_>>(), |o, (epoch, entries)| {
            o.u64(*epoch);
            o.put(entries);
        });
        o.bool(truncated);
    });
    Ok(0)
}

pub(super) fn trim_log(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (key, up_to, tag) = log_args(call)?;
    let mut logical = tagged(call, &key, &tag)?;
    logical.head.log.retain(|epoch, _| *epoch > up_to);
    logical.write(call)?;
    Ok(0)
}

pub(super) fn clear(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (key, tag): (Key, Bytes) =
        call.args(|d| d.versioned("head", 1, |d, _| Ok((d.get()?, d.get()?))))?;
    if !key.instance.is_empty() {
        return fail(errno::EINVAL);
    }
    let logical = tagged(call, &key, &tag)?;
    call.unset(&logical.at)?;
    if call.key::<Entry>(&key.name)?.is_some_and(|entry| entry.has(Entry::PLACEHOLDER)) {
        call.unset(&key.name)?;
    }
    Ok(0)
}
