//! The log of a bucket's index, which other zones read.

use super::changes::COMPLETE;
use super::index::{LOG, VERSIONS};
use super::types::{Header, LogEntry};
use crate::{Call, Stop, fail, stored};
use bytes::Bytes;
use spirula_types::errno;

/// Operations: the log was stopped, or begun again.
const STOPPED: u8 = 7;
const RESUMED: u8 = 8;

fn key(marker: &[u8]) -> Bytes {
    [LOG, marker].concat().into()
}

pub(super) fn list(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (marker, max): (Bytes, u32) =
        call.args(|d| d.versioned("log listing", 1, |d, _| Ok((d.get()?, d.get()?))))?;
    let page = call.pairs(&key(&marker), b"", max.into())?;
    let mut truncated = page.more;
    let mut entries: Vec<LogEntry> = Vec::new();
    for (key, value) in page.pairs {
        if key > VERSIONS {
            truncated = false;
            break;
        }
        entries.push(stored(&value)?);
    }
    call.output.versioned(1, 1, |o| {
        o.put(&entries);
        o.bool(truncated);
    });
    Ok(0)
}

pub(super) fn trim(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (from, to): (Bytes, Bytes) =
        call.args(|d| d.versioned("log trim", 1, |d, _| Ok((d.get()?, d.get()?))))?;
    let end: Bytes = if to.is_empty() {
        Bytes::from_static(VERSIONS)
    } else {
        [LOG, &to, b"\0"].concat().into()
    };
    let page = call.pairs(&key(&from), b"", 1)?;
    match page.pairs.into_iter().next() {
        Some((first, _)) if first <= end => call.object.omap_remove_range(first, end)?,
        _ => return fail(errno::ENODATA),
    }
    Ok(0)
}

/// Writes that the log was stopped, or begun again.
fn mark(call: &mut Call<'_>, op: u8) -> Result<i32, Stop> {
    let mut header: Header = call.header()?;
    let entry = LogEntry { time: call.object.now(), op, state: COMPLETE, ..LogEntry::default() };
    let number = header.version;
    call.log(&mut header, entry, number)?;
    header.sync_stopped = op == STOPPED;
    call.put_header(header)
}

pub(super) fn resync(call: &mut Call<'_>) -> Result<i32, Stop> {
    mark(call, RESUMED)
}

pub(super) fn stop(call: &mut Call<'_>) -> Result<i32, Stop> {
    mark(call, STOPPED)
}
