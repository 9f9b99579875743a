//! A monitor's disk: the two files of its store, as bytes, with a line between what is synced
//! and what is not.

use crate::rng::Rng;
use crate::scenario::Bug;
use spirula_mon::image::{self, Identity, ImageError, Stored};
use spirula_quorum::{HardState, Persist, Snapshot};

/// The files.
#[derive(Clone, Debug)]
pub struct Disk {
    /// Whose it is.
    pub identity: Identity,
    snapshot: Vec<u8>,
    log: Vec<u8>,
    /// Bytes of the log that survive.
    synced: usize,
    seq: u64,
    /// A write under way that replaces both files.
    replacing: Option<(Vec<u8>, Vec<u8>)>,
    bug: Option<Bug>,
    held: Vec<Persist>,
}

impl Disk {
    /// A founding member's disk, or a joining one's.
    pub fn new(identity: Identity, first: &Snapshot, bug: Option<Bug>) -> Self {
        let hard = HardState { term: first.term, vote: 0, commit: first.index };
        let log = image::log_file(identity.fsid, 0);
        let snapshot = image::snapshot_file(&identity, 0, &hard, first);
        Self {
            identity,
            snapshot,
            synced: log.len(),
            log,
            seq: 0,
            replacing: None,
            bug,
            held: Vec::new(),
        }
    }

    /// Begins a write; it is there when [`Self::sync`] is called.
    pub fn write(&mut self, writes: &[Persist]) {
        let mut plain: Vec<Persist> = Vec::new();
        for p in writes {
            let mut p = p.clone();
            match p.snapshot.take() {
                None => plain.push(p),
                Some(snapshot) => {
                    self.append(std::mem::take(&mut plain));
                    let file = image::snapshot_file(&self.identity, self.seq, &p.hard, &snapshot);
                    let mut log = image::log_file(self.identity.fsid, self.seq);
                    self.seq += 1;
                    log.extend_from_slice(&image::record(self.seq, self.identity.member, &[&p]));
                    if let Some((s, l)) = self.replacing.replace((file, log)) {
                        (self.snapshot, self.log) = (s, l);
                    }
                }
            }
        }
        self.append(plain);
    }

    fn append(&mut self, mut writes: Vec<Persist>) {
        if self.bug == Some(Bug::IndexApartFromEntry) {
            // The hard state goes now, the entries with the next write.
            let late = writes.clone();
            for p in &mut writes {
                p.entries.clear();
            }
            let mut first = std::mem::replace(&mut self.held, late);
            first.append(&mut writes);
            writes = first;
        }
        if writes.is_empty() {
            return;
        }
        self.seq += 1;
        let refs: Vec<&Persist> = writes.iter().collect();
        let record = image::record(self.seq, self.identity.member, &refs);
        match &mut self.replacing {
            Some((_, log)) => log.extend_from_slice(&record),
            None => self.log.extend_from_slice(&record),
        }
    }

    /// Everything written is durable now.
    pub fn sync(&mut self) {
        if let Some((snapshot, log)) = self.replacing.take() {
            (self.snapshot, self.log) = (snapshot, log);
        }
        self.mark();
    }

    /// What is in the log is synced; the mark that says so is not.
    fn mark(&mut self) {
        let mark = image::mark(self.seq);
        if !self.log.ends_with(&mark) {
            self.log.extend_from_slice(&mark);
        }
        self.synced = self.log.len() - mark.len();
    }

    /// A bit flips in what was acknowledged.
    pub fn rot(&mut self, rng: &mut Rng) {
        let (file, end) = if rng.one_in(2) {
            (&mut self.snapshot, usize::MAX)
        } else {
            (&mut self.log, self.synced)
        };
        let at = rng.below(file.len().min(end) as u64) as usize;
        if let Some(byte) = file.get_mut(at) {
            *byte ^= 1 << rng.below(8);
        }
    }

    /// Power is gone: of what was not synced, some part may be there.
    pub fn crash(&mut self, rng: &mut Rng) {
        self.held.clear();
        if let Some((snapshot, log)) = self.replacing.take() {
            match rng.below(3) {
                // Replaced, wholly or but for the log; or not at all.
                0 => {
                    (self.snapshot, self.synced) = (snapshot, log.len());
                    self.log = log;
                }
                // What was appended before the snapshot was synced before it.
                1 => {
                    self.snapshot = snapshot;
                    self.synced = self.log.len();
                }
                _ => {}
            }
        }
        // The mark of what was synced: it is lost, or there is more behind it.
        let mark = if self.log.len() > self.synced { image::MARK } else { 0 };
        let extra = self.log.len().saturating_sub(self.synced + mark);
        let more = rng.below(extra as u64 + 1) as usize;
        let keep = self.synced + if more > 0 { mark + more } else { 0 };
        self.log.truncate(keep);
        if keep > self.synced && rng.one_in(2) {
            // Torn: the last sector never came.
            let zero_from = self.synced + mark + rng.below(more as u64) as usize;
            self.log.get_mut(zero_from..).unwrap_or_default().fill(0);
        }
    }

    /// What a starting monitor finds.
    ///
    /// # Errors
    /// Damage.
    pub fn open(&mut self) -> Result<Stored, ImageError> {
        let mut stored = image::read(&self.snapshot, Some(&self.log))?;
        if stored.log_stale {
            self.log = image::fresh_log(&stored);
            stored.seq += 1;
        } else {
            self.log.truncate(stored.log_end as usize);
        }
        self.seq = stored.seq;
        self.identity = stored.identity;
        self.mark();
        Ok(stored)
    }
}
