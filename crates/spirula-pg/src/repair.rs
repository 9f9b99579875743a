//! Copies that turn out to be bad: a checksum that fails, a device that does not read.
//!
//! A bad copy counts as missing, durably, from the moment it is found, and recovery replaces
//! it from another. Found by
//! * a request at the primary: the object is fetched first, then the request is executed;
//! * a write on a replica that would have to merge with bad data, or with a spoilt shard
//!   (`erasure::sound`): the log entry is stored, the object's change is left out, and the primary
//!   is told before the acknowledgement. The write stays what it is on all others, so nothing
//!   acknowledged depends on the bad copy;
//! * a source of recovery, and scrub.
//!
//! Bad data is never copied: a source verifies what it sends.

use crate::active::Active;
use crate::api::{LogLevel, PgEffect};
use crate::copy::Pending;
use crate::core::PgCore;
use crate::log::{EntryKind, LogEntry};
use crate::pg::{After, Cx};
use spirula_types::{EVersion, HObject, Peer};
use std::collections::BTreeMap;

/// Bad copies noted at a time; the rest are repaired without being named.
const NOTED_MAX: usize = 4096;

/// Copies found bad and not repaired yet, with the first bad byte if it is known.
#[derive(Debug, Default)]
pub(crate) struct Repairs {
    bad: BTreeMap<(HObject, Peer), Option<u64>>,
}

impl Repairs {
    pub fn note(&mut self, object: &HObject, osd: Peer, offset: Option<u64>) {
        if self.bad.len() < NOTED_MAX {
            let known = self.bad.entry((object.clone(), osd)).or_default();
            *known = known.or(offset);
        }
    }

    pub fn take(&mut self, object: &HObject, osd: Peer) -> Option<Option<u64>> {
        if self.bad.is_empty() { None } else { self.bad.remove(&(object.clone(), osd)) }
    }

    /// Was this copy found bad, and is not repaired yet?
    pub fn is_bad(&self, object: &HObject, osd: Peer) -> bool {
        !self.bad.is_empty() && self.bad.contains_key(&(object.clone(), osd))
    }

    pub fn clear(&mut self) {
        self.bad.clear();
    }
}

/// The object as the cluster log names it.
pub(crate) fn place(object: &HObject, offset: Option<u64>) -> String {
    match offset {
        Some(offset) => format!("bad block in {object} at {offset:#x}"),
        None => format!("bad copy of {object}"),
    }
}

impl Repairs {
    /// An object that is here cannot be read: it counts as missing, durably, until another
    /// copy's content replaces it.
    pub fn mark_unreadable(
        &mut self,
        core: &mut PgCore,
        object: HObject,
        version: EVersion,
        cx: &mut Cx<'_>,
    ) {
        self.note(&object, core.me, cx.reader.bad_offset(&object));
        let change = core.copy.lack(object, version);
        core.submit(change, After::Nothing, cx);
    }

    /// An entry comes into our log, and we never had what it did: the copy it would have changed is
    /// bad.
    pub fn note_lacking(
        &mut self,
        core: &mut PgCore,
        entry: &LogEntry,
        offset: Option<u64>,
    ) -> Pending {
        let LogEntry { object, version, .. } = entry;
        tracing::error!(pg = %core.id, %object, %version, "bad data under a write: this copy is \
            fetched anew");
        self.note(object, core.me, offset);
        core.copy.lack_change(entry)
    }

    /// Notes that a member's copy is bad; false if it is no member, or the object was removed
    /// since.
    pub fn peer_is_rotten(
        &mut self,
        core: &PgCore,
        active: &mut Active,
        osd: Peer,
        (object, version, offset): (HObject, EVersion, Option<u64>),
    ) -> bool {
        let Some(p) = active.peers.get_mut(&osd) else { return false };
        // Later writes may have been sent before this came; the member did not take their changes,
        // either.
        let newest = core.log().last_change(&object).filter(|e| e.version > version);
        if newest.is_some_and(|e| e.kind == EntryKind::Delete) {
            // It was told to remove it meanwhile, and nobody has it any more.
            return false;
        }
        self.note(&object, osd, offset);
        let need = newest.map_or(version, |e| e.version);
        p.missing.set(object, need, EVersion::default());
        true
    }

    /// A copy here has been replaced.
    pub fn own_copy_replaced(
        &mut self,
        core: &PgCore,
        leads: bool,
        object: &HObject,
        cx: &mut Cx<'_>,
    ) {
        let bad = self.take(object, core.me);
        let Some(offset) = bad else { return };
        cx.out.push(PgEffect::Repaired);
        // The primary needs to know from whom it came, see `copy_repaired`.
        if leads {
            self.note(object, core.me, offset);
        }
    }

    /// Primary: an object whose copy here is bad has no other that is known.
    pub fn report_lost(&mut self, core: &PgCore, object: &HObject, cx: &mut Cx<'_>) {
        let Some(offset) = self.take(object, core.me) else { return };
        let text = format!(
            "osd.{} pg {}: {}, no good copy found",
            core.me,
            core.id,
            place(object, offset)
        );
        cx.out.push(PgEffect::Log { level: LogLevel::Error, text });
        self.note(object, core.me, offset);
    }
}
