//! Changes of a bucket's index: begun, completed, put right.

use super::types::{DataVersion, Entry, Header, Key, LogEntry, Meta, PENDING_MAX, Pending, Stats};
use crate::{Call, Stop, fail, stored};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, UTime};
use spirula_types::errno;
use std::collections::BTreeMap;

/// Operations.
pub(super) const ADD: u8 = 0;
pub(super) const DELETE: u8 = 1;
const CANCEL: u8 = 2;
/// State of an operation that is done.
pub(super) const COMPLETE: u8 = 1;
/// Seconds after which what is pending is taken for lost.
const TAG_TIMEOUT: u64 = 120;
/// What is suggested: to remove an entry, to replace it; and whether to log that.
const SUGGEST_REMOVE: u8 = b'r';
const SUGGEST_UPDATE: u8 = b'u';
const SUGGEST_LOG: u8 = 0x80;

pub(super) fn init(call: &mut Call<'_>) -> Result<i32, Stop> {
    if !call.object.omap_header()?.is_empty() {
        return fail(errno::EINVAL);
    }
    call.put_header(Header::default())
}

pub(super) fn set_tag_timeout(call: &mut Call<'_>) -> Result<i32, Stop> {
    let tag_timeout = call.args(|d| d.versioned("tag timeout", 1, |d, _| d.u64()))?;
    let header = Header { tag_timeout, ..call.header()? };
    call.put_header(header)
}

pub(super) fn update_stats(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (absolute, stats): (bool, BTreeMap<u8, Stats>) =
        call.few_args(|d| d.versioned("update of totals", 1, |d, _| Ok((d.get()?, d.get()?))))?;
    let mut header: Header = call.header()?;
    for (category, given) in stats {
        let totals = header.of(category);
        if absolute {
            *totals = given;
        } else {
            totals.add(given);
        }
    }
    call.put_header(header)
}

/// What is to be done to an object.
struct Prepare {
    op: u8,
    key: Key,
    tag: Bytes,
    locator: Bytes,
}

impl Decode for Prepare {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("prepared operation", 7, |d, v| {
            let op = d.u8()?;
            let mut key = if v < 5 { Key::named(d.get()?) } else { Key::default() };
            let (tag, locator) = (d.get()?, if v >= 2 { d.get()? } else { Bytes::new() });
            if v >= 4 {
                d.bool()?;
            }
            if v >= 5 {
                key = d.get()?;
            }
            Ok(Self { op, key, tag, locator })
        })
    }
}

pub(super) fn prepare(call: &mut Call<'_>) -> Result<i32, Stop> {
    let p: Prepare = call.args(|d| d.get())?;
    if p.tag.is_empty() {
        return fail(errno::EINVAL);
    }
    let (at, found) = call.entry(&p.key, false)?;
    let mut entry =
        found.unwrap_or_else(|| Entry { key: p.key, locator: p.locator, ..Entry::default() });
    if entry.pending.len() >= PENDING_MAX {
        return fail(errno::E2BIG);
    }
    entry.begin(p.tag, Pending { state: 0, begun: call.object.now(), op: p.op });
    call.set(&at, &entry)?;
    Ok(0)
}

/// What was done to an object.
#[derive(Default)]
struct Complete {
    op: u8,
    key: Key,
    locator: Bytes,
    version: DataVersion,
    meta: Meta,
    tag: Bytes,
    log: bool,
    log_flags: u16,
    remove: Vec<Key>,
    zones: Vec<Bytes>,
}

impl Decode for Complete {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("completed operation", 9, |d, v| {
            let mut c = Self { op: d.u8()?, ..Self::default() };
            if v < 7 {
                c.key.name = d.get()?;
            }
            c.version.epoch = d.u64()?;
            c.meta = d.get()?;
            c.tag = d.get()?;
            if v >= 2 {
                c.locator = d.get()?;
            }
            c.remove = match v {
                4..7 => d.get::<Vec<Bytes>>()?.into_iter().map(Key::named).collect(),
                _ => d.list(14, Key::decode)?,
            };
            if v >= 5 {
                c.version = d.get()?;
            }
            if v >= 6 {
                c.log = d.bool()?;
            }
            if v >= 7 {
                c.key = d.get()?;
            }
            if v >= 8 {
                c.log_flags = d.u16()?;
            }
            if v >= 9 {
                c.zones = d.get()?;
            }
            Ok(c)
        })
    }
}

impl Complete {
    fn log_entry(&mut self, op: u8, key: Key, entry: &Entry, index_version: u64) -> LogEntry {
        LogEntry {
            key,
            time: entry.meta.mtime,
            version: entry.version.clone(),
            op,
            state: COMPLETE,
            index_version,
            tag: self.tag.clone(),
            flags: self.log_flags,
            // As Ceph, which hands them on with the first.
            zones: std::mem::take(&mut self.zones),
            ..LogEntry::default()
        }
    }
}

pub(super) fn complete(call: &mut Call<'_>) -> Result<i32, Stop> {
    let mut c: Complete = call.few_args(|d| d.get())?;
    let mut header: Header = match call.header() {
        Err(Stop::Errno(_)) => return fail(errno::EINVAL),
        other => other?,
    };
    let (at, found) = call.entry(&c.key, false)?;
    let stored = found.is_some();
    let mut entry = found.unwrap_or_else(|| Entry {
        key: c.key.clone(),
        version: c.version.clone(),
        meta: c.meta.clone(),
        locator: c.locator.clone(),
        ..Entry::default()
    });
    entry.index_version = header.version;
    // It may have been a delete marker.
    entry.flags &= Entry::VERSION;
    if !c.tag.is_empty() {
        let Some(pending) = entry.pending.iter().position(|(tag, _)| *tag == c.tag) else {
            return fail(errno::EINVAL);
        };
        entry.pending.remove(pending);
    }
    let old = c.version.pool == entry.version.pool
        && c.version.epoch != 0
        && c.version.epoch <= entry.version.epoch;
    if old && (c.tag.is_empty() || c.op != CANCEL) {
        c.op = CANCEL;
    }
    entry.version = c.version.clone();
    let logs = c.log && !header.sync_stopped;
    let mut logs_this = logs;
    match c.op {
        CANCEL => {
            logs_this = false;
            // One that was deleted meanwhile goes with the last that was pending.
            let last = !entry.exists && entry.pending.is_empty();
            match (c.tag.is_empty(), last) {
                (true, _) => {}
                (false, true) => call.unset(&at)?,
                (false, false) => call.set(&at, &entry)?,
            }
        }
        DELETE => {
            header.subtract(&entry);
            entry.meta = c.meta.clone();
            if !stored {
                logs_this = false;
            } else if entry.pending.is_empty() {
                call.unset(&at)?;
            } else {
                entry.exists = false;
                call.set(&at, &entry)?;
            }
        }
        ADD => {
            header.subtract(&entry);
            entry.meta = c.meta.clone();
            entry.key = c.key.clone();
            entry.exists = true;
            entry.tag = c.tag.clone();
            header.of(entry.meta.category).add(Stats::of(&entry.meta));
            call.set(&at, &entry)?;
        }
        _ => {}
    }
    if logs_this {
        let number = header.version;
        let logged = c.log_entry(c.op, c.key.clone(), &entry, number);
        call.log(&mut header, logged, number)?;
    }
    for key in std::mem::take(&mut c.remove) {
        let (at, found) = match call.entry(&key, false) {
            Err(Stop::Errno(_)) => continue,
            other => other?,
        };
        let Some(removed) = found else { continue };
        header.subtract(&removed);
        if logs {
            // Else its key would be that of the entry before.
            header.version = header.version.wrapping_add(1);
            let number = header.version;
            let logged = c.log_entry(DELETE, key, &removed, number);
            call.log(&mut header, logged, number)?;
        }
        call.unset(&at)?;
    }
    call.put_header(header)
}

/// Has it been pending for longer than this?
fn is_lost(pending: &Pending, now: UTime, timeout: u64) -> bool {
    let until = u128::from(pending.begun.as_nanos()) + u128::from(timeout) * 1_000_000_000;
    u128::from(now.as_nanos()) > until
}

pub(super) fn suggest(call: &mut Call<'_>) -> Result<i32, Stop> {
    // What is made of a suggestion takes several times its room: gateways send a listing's at a
    // time.
    call.is_few()?;
    let mut header: Header = call.header()?;
    let timeout = if header.tag_timeout == 0 { TAG_TIMEOUT } else { header.tag_timeout };
    let mut changed = false;
    let input = call.input.clone();
    let mut d = Decoder::new(&input);
    while !d.is_empty() {
        let (op, mut suggested): (u8, Entry) = (d.u8()?, d.get()?);
        let at = super::index::entry_key(&suggested.key);
        let Some(value) = call.object.omap_get(&at)? else { continue };
        let mut entry = match value.is_empty() {
            true => Entry::default(),
            false => match stored::<Entry>(&value) {
                Err(Stop::Errno(_)) => return fail(errno::EINVAL),
                other => other?,
            },
        };
        let now = call.object.now();
        entry.pending.retain(|(_, pending)| !is_lost(pending, now, timeout));
        if !entry.pending.is_empty() {
            continue;
        }
        header.subtract(&entry);
        changed |= entry.exists;
        let logs = op & SUGGEST_LOG != 0 && !header.sync_stopped;
        let logged = |e: &Entry, op, index_version| LogEntry {
            key: e.key.clone(),
            time: e.meta.mtime,
            version: e.version.clone(),
            op,
            state: COMPLETE,
            index_version,
            tag: e.tag.clone(),
            ..LogEntry::default()
        };
        let number = header.version;
        match op & !SUGGEST_LOG {
            SUGGEST_REMOVE => {
                // A category without entries is part of the header from now on, as in Ceph.
                header.of(suggested.meta.category);
                call.unset(&at)?;
                if logs && entry.exists {
                    call.log(&mut header, logged(&entry, DELETE, number), number)?;
                }
            }
            SUGGEST_UPDATE => {
                header.of(suggested.meta.category).add(Stats::of(&suggested.meta));
                changed = true;
                suggested.index_version = number;
                call.set(&at, &suggested)?;
                if logs {
                    call.log(&mut header, logged(&suggested, ADD, number), number)?;
                }
            }
            _ => {
                header.of(suggested.meta.category);
            }
        }
    }
    if changed { call.put_header(header) } else { Ok(0) }
}
