//! Keys of a bucket's index, and reading and writing its entries and its log.

use super::types::{Entry, Header, Key, LogEntry};
use crate::{Call, Stop};
use bytes::Bytes;

/// First byte of the keys that are no object's name.
pub(super) const SPECIAL: u8 = 0x80;
/// Behind all of them.
pub(super) const SPECIAL_END: &[u8] = b"\x809999_";
/// Start of the keys of versions by their name.
pub(super) const VERSIONS: &[u8] = b"\x801000_";
/// Start of the keys of logical heads.
pub(super) const HEADS: &[u8] = b"\x801001_";
/// Start of the log's keys.
pub(super) const LOG: &[u8] = b"\x800_";

/// Key of an object's version. `marker`: of the delete marker that is the version "null", which
/// exists beside its data.
pub(super) fn version_key(key: &Key, marker: bool) -> Bytes {
    let end: &[u8] = if marker { b"\0d" } else { b"" };
    [VERSIONS, &key.name, b"\0i", &key.instance, end].concat().into()
}

/// Key of an object's logical head.
pub(super) fn head_key(name: &[u8]) -> Bytes {
    [HEADS, name].concat().into()
}

/// Key of what is asked for by a name, and a version or none.
pub(super) fn entry_key(key: &Key) -> Bytes {
    if key.instance.is_empty() { key.name.clone() } else { version_key(key, false) }
}

/// A text that sorts the earlier, the higher the number is.
fn falling(n: u64) -> String {
    match n {
        0..0x10 => format!("9{:02}", 0xf - n),
        0x10..0x100 => format!("8{:03}", 0xff - n),
        0x100..0x1000 => format!("7{:04}", 0xfff - n),
        0x1000..0x1_0000 => format!("6{:05}", 0xffff - n),
        0x1_0000..0x1_0000_0000 => format!("5{:010}", 0xffff_ffff - n),
        _ => format!("4{:020}", n.cast_signed().wrapping_neg()),
    }
}

/// Key under which listings find a version.
pub(super) fn list_key(entry: &Entry) -> Bytes {
    let number = falling(entry.versioned_epoch);
    [&entry.key.name[..], b"\0v", number.as_bytes(), b"\0i", &entry.key.instance].concat().into()
}

/// The name in a key that listings look at; `None` if it can be none.
pub(super) fn name_of(key: &Bytes) -> Option<Bytes> {
    match key.iter().position(|b| *b == 0) {
        None => Some(key.clone()),
        Some(end) if end + 1 < key.len() => Some(key.slice(..end)),
        Some(_) => None,
    }
}

/// Is it the key of an object's name?
pub(super) fn is_plain(key: &[u8]) -> bool {
    key.first() != Some(&SPECIAL)
}

impl Call<'_> {
    /// Reads the entry of an object, or of a version. Its key is that of the entry, also if there
    /// is none. `marker`: of the version "null", the delete marker rather than the data.
    pub(super) fn entry(
        &mut self,
        key: &Key,
        marker: bool,
    ) -> Result<(Bytes, Option<Entry>), Stop> {
        let at = entry_key(key);
        let found: Option<Entry> = self.key(&at)?;
        if !key.instance.is_empty() || !found.as_ref().is_some_and(|e| e.has(Entry::PLACEHOLDER)) {
            return Ok((at, found));
        }
        if marker {
            let at = version_key(key, true);
            if let Some(entry) = self.key(&at)? {
                return Ok((at, Some(entry)));
            }
        }
        let at = version_key(key, false);
        let found = self.key(&at)?;
        Ok((at, found))
    }

    /// Writes the header of an index.
    pub(super) fn put_header(&mut self, mut header: Header) -> Result<i32, Stop> {
        header.version = header.version.wrapping_add(1);
        self.set_header(&header)?;
        Ok(0)
    }

    /// Writes an entry of the log. Its identity is made here.
    pub(super) fn log(
        &mut self,
        header: &mut Header,
        mut entry: LogEntry,
        number: u64,
    ) -> Result<(), Stop> {
        let id: Bytes =
            format!("{number:011}.{}.{}", self.object.version(), self.object.steps()).into();
        entry.id = id.clone();
        if id > header.max_marker {
            header.max_marker = id.clone();
        }
        self.set([LOG, &id].concat(), &entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_higher_number_sorts_earlier() {
        let numbers = [0, 1, 15, 16, 255, 256, 4095, 4096, 65535, 65536, 0xffff_ffff];
        for pair in numbers.windows(2) {
            assert!(falling(pair[0]) > falling(pair[1]), "{pair:?}");
        }
        assert_eq!(falling(3), "912");
        assert_eq!(falling(1 << 32), "4-0000000004294967296");
    }
}
