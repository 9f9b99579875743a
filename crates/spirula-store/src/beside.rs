//! Records beside the journal.
//!
//! What a transaction changes beside data (omap pairs, attributes, log entries, the map of a
//! fragmented object) may be more than a journal's frame should hold, or than the ring has
//! room for. Such changes go to blocks of the data space instead, durable before the frame,
//! as large data does; the record in the journal only says where they are, how long, and
//! their checksum. So what a store takes does not depend on its journal.
//!
//! These blocks are nobody's data. They are free in every bitmap that a checkpoint writes:
//! the metadata holds then what they say. Until the checkpoint is durable they are not given
//! to anybody else ([`Store::beside`]), since a replay reads them; a replay holds them back
//! again.

use crate::alloc::{BLOCK, PhysRun};
use crate::error::{Result, StoreError};
use crate::journal::{self, RECORD_HEADER};
use crate::redo::{self, Beside};
use crate::stage::Stage;
use crate::store::Store;
use bytes::Bytes;
use spirula_encoding::crc::crc32c;
use std::borrow::Cow;

/// More bytes of changes than this are not put into the journal, however large it is: it
/// would pass the device twice as often as the little it brings is worth.
const JOURNALED: usize = 1 << 20;
/// Most bytes of changes of one transaction, copies of whole omaps included.
pub(crate) const CHANGES_MAX: usize = 1 << 30;
/// A list of blocks is itself put beside the journal if it is too long, and the list of its
/// blocks is no longer.
const LEVELS: usize = 3;

impl Store {
    /// More bytes of changes than this go beside the journal. With data of half a record a
    /// frame still holds as much.
    pub(crate) fn journaled_changes(&self) -> usize {
        (self.record_max() as usize / 2).saturating_sub(BLOCK as usize).min(JOURNALED)
    }

    /// The changes of a record, wherever they are. Holds back the blocks they are in.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if they are not what was written there.
    pub(crate) fn changes<'r>(&mut self, seq: u64, record: &'r [u8]) -> Result<Cow<'r, [u8]>> {
        let corrupt = |what: &str| StoreError::corrupt(format!("journal record {seq}: {what}"));
        let mut changes = Cow::Borrowed(record);
        for _ in 0..LEVELS {
            let Some(beside) = redo::beside(&changes).map_err(|e| corrupt(&e.to_string()))? else {
                break;
            };
            let Beside { len, crc, runs } = beside;
            let blocks = runs.iter().fold(0u64, |n, r| n.saturating_add(r.len));
            if len > CHANGES_MAX || blocks != (len as u64).div_ceil(BLOCK) {
                return Err(corrupt("changes of a wrong length"));
            }
            for run in &runs {
                if !self.alloc().mark_used(*run) {
                    return Err(corrupt("changes in blocks that are in use"));
                }
                self.beside.push_back((seq, *run));
            }
            let mut buf = vec![0; blocks as usize * BLOCK as usize];
            // One misread is none: what does not match is read again, from the device itself.
            let sound =
                self.read_beside(&runs, &mut buf, false).is_ok_and(|()| sums(&buf, len, crc));
            if !sound {
                self.read_beside(&runs, &mut buf, true)?;
                if !sums(&buf, len, crc) {
                    return Err(corrupt(
                        "its changes, beside the journal, are not what was made durable there",
                    ));
                }
            }
            buf.truncate(len);
            changes = Cow::Owned(buf);
        }
        Ok(changes)
    }

    fn read_beside(&self, runs: &[PhysRun], buf: &mut [u8], uncached: bool) -> Result<()> {
        let mut rest = buf;
        for run in runs {
            let (part, more) = rest.split_at_mut((run.len * BLOCK) as usize);
            let at = run.start * BLOCK;
            let read = if uncached {
                self.block.read_uncached(part, at)
            } else {
                self.block.read_at(part, at)
            };
            read.map_err(|e| StoreError::io("read", self.block.name(), e))?;
            rest = more;
        }
        Ok(())
    }
}

/// Are these the changes?
fn sums(buf: &[u8], len: usize, crc: u32) -> bool {
    crc32c(u32::MAX, buf.get(..len).unwrap_or_default()) == crc
}

impl Stage<'_> {
    /// Puts changes into blocks; what the journal's record holds instead. `adds`: some blocks
    /// are left to those that only remove.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`], [`StoreError::TooLarge`].
    pub(super) fn put_beside(&mut self, changes: Vec<u8>, adds: bool) -> Result<Vec<u8>> {
        if changes.len() > CHANGES_MAX {
            let (size, limit) = (changes.len() as u64, CHANGES_MAX as u64);
            return Err(StoreError::TooLarge { what: "changes of a transaction", size, limit });
        }
        let (most, fits) = (self.s.journaled_changes(), self.s.record_max());
        let mut record = changes;
        for _ in 0..LEVELS {
            if record.len() <= most {
                return Ok(record);
            }
            let Some(runs) = self.take_beside((record.len() as u64).div_ceil(BLOCK), adds) else {
                // What deletes must not need space: a large journal holds it, too.
                if journal::frame_size(RECORD_HEADER + record.len()) <= fits {
                    return Ok(record);
                }
                let (needed, available) = (record.len() as u64, self.s.alloc().free() * BLOCK);
                return Err(StoreError::NoSpace { needed, available });
            };
            let (len, crc) = (record.len(), crc32c(u32::MAX, &record));
            record.resize(len.next_multiple_of(BLOCK as usize), 0);
            let mut rest = Bytes::from(record);
            for run in &runs {
                self.pieces.push((run.start, rest.split_to((run.len * BLOCK) as usize)));
            }
            record = redo::encode_beside(&Beside { len, crc, runs });
        }
        Ok(record)
    }

    fn take_beside(&mut self, blocks: u64, adds: bool) -> Option<Vec<PhysRun>> {
        let reserve = if adds { self.s.reserve() + self.s.booked_blocks() } else { 0 };
        let available = self.s.alloc().free().saturating_sub(reserve);
        if blocks > available || self.s.room.take(&*self.s.block, blocks * BLOCK).is_err() {
            return None;
        }
        let mut runs = Vec::new();
        if !self.s.alloc().allocate(blocks, &mut runs) {
            return None;
        }
        self.beside.extend(&runs);
        Some(runs)
    }
}
