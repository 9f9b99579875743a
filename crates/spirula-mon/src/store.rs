//! The monitor's durable store: its part of the agreed log, in files.
//!
//! Two files in one directory, `mon.snapshot` and `mon.log`, whose bytes are [`crate::image`]'s
//! business. The log is appended to with one write and one fdatasync for all that waits; the
//! snapshot is replaced whole: temporary file, fsync, rename, fsync of the directory. A damaged
//! store is refused with file and offset before anything is written; its monitor is rebuilt
//! from its peers. After a failed write or sync the store refuses all work: what is on disk is
//! then unknown.
//!
//! A file system that others fill must not end a monitor, which has to say so. So room for the next
//! records is kept in the log's file ahead of them, and what would need more than there is is
//! refused before anything is written ([`StoreError::NoRoom`]); it can be tried again.

pub mod copy;

use crate::image::{self, Identity, ImageError, Part, Stored};
use rustix::fs::{FlockOperation, flock};
use spirula_quorum::{HardState, MemberId, Persist, Snapshot};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

const SNAPSHOT: &str = "mon.snapshot";
const LOG: &str = "mon.log";
const LOCK: &str = "mon.lock";
/// Room kept in the log's file for records to come, bytes.
const AHEAD: u64 = 16 << 20;
/// Room that must be left on the file system where more than that is needed, bytes.
const MARGIN: u64 = 4 << 20;

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The operating system refused.
    #[error("{op} {path}: {source}")]
    Io {
        /// What was tried.
        op: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// Bytes on disk are damaged.
    #[error("{path} is damaged at offset {offset}: {why}")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where the bad part starts.
        offset: u64,
        /// What is wrong.
        why: String,
    },
    /// Not a monitor store, or one of another format or cluster.
    #[error("{path} {why}")]
    Foreign {
        /// The file or directory.
        path: PathBuf,
        /// What it is instead.
        why: String,
    },
    /// Another process has it open.
    #[error("{path} is in use by another process")]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// The file system is full. Nothing was written; it may be tried again.
    #[error("{path} has no room: {needed} bytes needed, {available} available")]
    NoRoom {
        /// The directory.
        path: PathBuf,
        /// Bytes that must be there.
        needed: u64,
        /// Bytes that are.
        available: u64,
    },
    /// A store that is in use changed whenever it was copied.
    #[error(
        "{path} changed during each of {tries} attempts to copy it; try again when less is changed"
    )]
    Busy {
        /// The directory, of the first where there are several.
        path: PathBuf,
        /// How often it was tried.
        tries: u32,
    },
    /// An earlier write or sync failed.
    #[error("the monitor's store failed earlier and takes no more writes")]
    Poisoned,
}

/// An open store.
#[derive(Debug)]
pub struct MonStore {
    dir: PathBuf,
    identity: Identity,
    seq: u64,
    log: File,
    /// Up to where the log's file has its room, bytes.
    roomy: u64,
    poisoned: bool,
    /// Held for as long as the store is open.
    _lock: File,
}

impl MonStore {
    /// True if `dir` holds a monitor store (of whatever state).
    pub fn exists(dir: &Path) -> bool {
        dir.join(SNAPSHOT).exists() || dir.join(LOG).exists()
    }

    /// Makes a store in `dir`, which is created if need be: of a founding member with the
    /// cluster's first state, or, with member 0 and an empty snapshot, of one that will join.
    ///
    /// # Errors
    /// [`StoreError::Foreign`] if there is a store already, else I/O errors.
    pub fn create(dir: &Path, identity: Identity, snapshot: &Snapshot) -> Result<(), StoreError> {
        std::fs::create_dir_all(dir).map_err(io("create directory", dir))?;
        let _lock = take_lock(dir)?;
        if Self::exists(dir) {
            return Err(StoreError::Foreign {
                path: dir.into(),
                why: "already holds a monitor store".into(),
            });
        }
        let hard = HardState { term: snapshot.term, vote: 0, commit: snapshot.index };
        replace_file(dir, SNAPSHOT, &image::snapshot_file(&identity, 0, &hard, snapshot))?;
        replace_file(dir, LOG, &image::log_file(identity.fsid, 0))?;
        Ok(())
    }

    /// Opens the store in `dir`. A torn tail of the log is cut off.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] and [`StoreError::Foreign`] without having written anything;
    /// I/O errors.
    pub fn open(dir: &Path) -> Result<(Self, Stored), StoreError> {
        let (lock, mut stored, log_len) = Self::load(dir)?;
        let path = dir.join(LOG);
        let mut marked = stored.marked;
        let log = match log_len {
            None => replace_file(dir, LOG, &image::log_file(stored.identity.fsid, 0))?,
            Some(_) if stored.log_stale => {
                let log = replace_file(dir, LOG, &image::fresh_log(&stored))?;
                (stored.seq, marked) = (stored.seq + 1, false);
                log
            }
            Some(len) => {
                let log = OpenOptions::new().append(true).open(&path).map_err(io("open", &path))?;
                if stored.log_end < len {
                    log.set_len(stored.log_end).map_err(io("truncate", &path))?;
                    log.sync_all().map_err(io("sync", &path))?;
                }
                log
            }
        };
        let (identity, seq) = (stored.identity, stored.seq);
        let mut store =
            Self { dir: dir.into(), identity, seq, log, roomy: 0, poisoned: false, _lock: lock };
        store.keep_room();
        if !marked {
            // What has just been read is there. It has no mark if it is new, or if the machine lost
            // power.
            store.mark()?;
            store.log.sync_data().map_err(io("sync", &path))?;
        }
        Ok((store, stored))
    }

    /// Reads the store in `dir` and changes nothing: what an offline check shows.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub fn verify(dir: &Path) -> Result<Stored, StoreError> {
        Self::load(dir).map(|(_, stored, _)| stored)
    }

    /// Removes the store in `dir`, so that the monitor can join anew.
    ///
    /// # Errors
    /// [`StoreError::Locked`] while a monitor runs on it; I/O errors.
    pub fn wipe(dir: &Path) -> Result<(), StoreError> {
        let _lock = take_lock(dir)?;
        for name in [LOG, SNAPSHOT] {
            let path = dir.join(name);
            match std::fs::remove_file(&path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(io("remove", &path)(e));
                }
                _ => {}
            }
        }
        sync_dir(dir)
    }

    fn load(dir: &Path) -> Result<(File, Stored, Option<u64>), StoreError> {
        if !Self::exists(dir) {
            return Err(StoreError::Foreign {
                path: dir.into(),
                why: "holds no monitor store".into(),
            });
        }
        let lock = take_lock(dir)?;
        let (snapshot_path, log_path) = (dir.join(SNAPSHOT), dir.join(LOG));
        let snapshot = std::fs::read(&snapshot_path).map_err(io("read", &snapshot_path))?;
        let log = match std::fs::read(&log_path) {
            Ok(data) => Some(data),
            // A crash in `create` between the two files: nothing was ever written.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(e) => return Err(io("read", &log_path)(e)),
        };
        let stored = image::read(&snapshot, log.as_deref()).map_err(|e| {
            let path = |part| {
                if part == Part::Snapshot { snapshot_path.clone() } else { log_path.clone() }
            };
            match e {
                ImageError::Corrupt(part, offset, why) => {
                    StoreError::Corrupt { path: path(part), offset, why }
                }
                ImageError::Foreign(part, why) => StoreError::Foreign { path: path(part), why },
            }
        })?;
        Ok((lock, stored, log.map(|l| l.len() as u64)))
    }

    /// Whose store it is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The number the cluster gave this member; written with whatever is written next.
    pub fn set_member(&mut self, member: MemberId) {
        self.identity.member = member;
    }

    /// Makes `writes` durable, in order: one write and one fdatasync for all that carry no
    /// snapshot. When it returns `Ok`, they survive a power cut.
    ///
    /// # Errors
    /// [`StoreError::NoRoom`], with nothing done; I/O errors, after which the store is poisoned.
    pub fn persist(&mut self, writes: &[Persist]) -> Result<(), StoreError> {
        if self.poisoned {
            return Err(StoreError::Poisoned);
        }
        self.find_room(writes)?;
        self.poisoned = true;
        let mut plain: Vec<&Persist> = Vec::new();
        for p in writes {
            match &p.snapshot {
                None => plain.push(p),
                Some(snapshot) => {
                    self.append(&plain)?;
                    plain.clear();
                    self.replace(p, snapshot)?;
                }
            }
        }
        self.append(&plain)?;
        self.poisoned = false;
        Ok(())
    }

    fn find_room(&mut self, writes: &[Persist]) -> Result<(), StoreError> {
        // More than the encoding adds to each.
        let size = |p: &Persist| {
            let entries: usize = p.entries.iter().map(|e| 64 + e.data.len()).sum();
            512 + entries as u64
                + p.snapshot.as_ref().map_or(0, |s| s.data.len() as u64 + (64 << 10))
        };
        let needed: u64 = writes.iter().map(size).sum();
        let len = self.log.metadata().map_or(u64::MAX, |m| m.len());
        if writes.iter().all(|p| p.snapshot.is_none()) {
            if len.saturating_add(needed + AHEAD / 2) > self.roomy {
                self.keep_room();
            }
            if len.saturating_add(needed) <= self.roomy {
                return Ok(());
            }
        }
        // A file system that cannot tell is taken to have room.
        let Ok(host) = rustix::fs::statvfs(&self.dir) else { return Ok(()) };
        let available = host.f_bavail.saturating_mul(host.f_frsize);
        if available < needed + MARGIN {
            return Err(StoreError::NoRoom {
                path: self.dir.clone(),
                needed: needed + MARGIN,
                available,
            });
        }
        Ok(())
    }

    /// Takes room for records to come, where there is any and the file system can do that.
    fn keep_room(&mut self) {
        let Ok(m) = self.log.metadata() else { return };
        let flags = rustix::fs::FallocateFlags::KEEP_SIZE;
        if rustix::fs::fallocate(&self.log, flags, 0, m.len() + AHEAD).is_ok() {
            self.roomy = m.len() + AHEAD;
        }
    }

    fn append(&mut self, writes: &[&Persist]) -> Result<(), StoreError> {
        if writes.is_empty() {
            return Ok(());
        }
        let path = self.dir.join(LOG);
        self.log
            .write_all(&image::record(self.seq + 1, self.identity.member, writes))
            .map_err(io("write", &path))?;
        self.log.sync_data().map_err(io("sync", &path))?;
        self.seq += 1;
        self.mark()
    }

    /// Says in the log that its last record is synced. Not synced itself: the next write does that,
    /// or the end.
    fn mark(&mut self) -> Result<(), StoreError> {
        self.log.write_all(&image::mark(self.seq)).map_err(io("write", &self.dir.join(LOG)))
    }

    fn replace(&mut self, p: &Persist, snapshot: &Snapshot) -> Result<(), StoreError> {
        replace_file(
            &self.dir,
            SNAPSHOT,
            &image::snapshot_file(&self.identity, self.seq, &p.hard, snapshot),
        )?;
        // A crash here leaves the old log: what of it follows the snapshot still counts.
        let mut log = image::log_file(self.identity.fsid, self.seq);
        self.seq += 1;
        log.extend_from_slice(&image::record(self.seq, self.identity.member, &[p]));
        self.log = replace_file(&self.dir, LOG, &log)?;
        self.roomy = 0;
        self.keep_room();
        self.mark()
    }
}

impl Drop for MonStore {
    fn drop(&mut self) {
        // The last mark: whatever goes wrong with the last record from here on is known for damage.
        if !self.poisoned
            && let Err(e) = self.log.sync_data()
        {
            tracing::warn!("{}: sync at the end: {e}", self.dir.join(LOG).display());
        }
    }
}

fn io<'a>(op: &'static str, path: &'a Path) -> impl FnOnce(std::io::Error) -> StoreError + 'a {
    move |source| StoreError::Io { op, path: path.into(), source }
}

fn take_lock(dir: &Path) -> Result<File, StoreError> {
    let path = dir.join(LOCK);
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(io("open", &path))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(StoreError::Locked { path }),
        Err(e) => Err(io("lock", &path)(e.into())),
    }
}

fn sync_dir(dir: &Path) -> Result<(), StoreError> {
    let d = File::open(dir).map_err(io("open", dir))?;
    d.sync_all().map_err(io("sync", dir))
}

/// Writes a whole file so that a crash leaves either the old or the new one.
fn replace_file(dir: &Path, name: &str, data: &[u8]) -> Result<File, StoreError> {
    let path = dir.join(name);
    let tmp = dir.join(format!("{name}.tmp"));
    // A left-over of an earlier crash holds nothing of value.
    match std::fs::remove_file(&tmp) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(io("remove", &tmp)(e)),
        _ => {}
    }
    let mut file =
        OpenOptions::new().append(true).create(true).open(&tmp).map_err(io("create", &tmp))?;
    file.write_all(data).map_err(io("write", &tmp))?;
    file.sync_all().map_err(io("sync", &tmp))?;
    std::fs::rename(&tmp, &path).map_err(io("rename", &tmp))?;
    sync_dir(dir)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::HEADER;
    use spirula_quorum::{Entry, EntryKind, Members};
    use spirula_types::Uuid;

    struct Dir(PathBuf);
    impl Dir {
        fn new(name: &str) -> Self {
            let p = std::env::temp_dir().join(format!("spirula-mon-{}-{name}", std::process::id()));
            let _ = std::fs::remove_dir_all(&p);
            Self(p)
        }
    }
    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const ME: Identity = Identity { fsid: Uuid([7; 16]), uuid: Uuid([8; 16]), member: 1 };

    fn first() -> Snapshot {
        let members = Members { voters: [1].into(), learners: [].into() };
        Snapshot { index: 1, term: 1, members, data: b"first"[..].into() }
    }

    fn write(n: u64) -> Persist {
        let entry = |index: u64| Entry {
            index,
            term: 2,
            kind: EntryKind::Normal,
            data: vec![n as u8; 5 + n as usize].into(),
        };
        let hard = HardState { term: 2, vote: 1, commit: n };
        Persist { number: n, hard, snapshot: None, entries: vec![entry(n + 1)] }
    }

    /// Without what only the files' length tells.
    fn held(s: &Stored) -> Stored {
        Stored { log_end: 0, marked: false, ..s.clone() }
    }

    fn what(s: &Stored) -> (HardState, Vec<u64>, u64) {
        (s.hard, s.entries.iter().map(|e| e.index).collect(), s.snapshot.index)
    }

    /// A store with `n` batches; what it held after each.
    fn filled(dir: &Path, n: u64) -> Vec<Stored> {
        MonStore::create(dir, ME, &first()).unwrap();
        let mut states = vec![MonStore::verify(dir).unwrap()];
        for i in 1..=n {
            let (mut s, _) = MonStore::open(dir).unwrap();
            s.persist(&[write(i)]).unwrap();
            drop(s);
            states.push(MonStore::verify(dir).unwrap());
        }
        states
    }

    fn compaction(index: u64, last: u64) -> Persist {
        let entries = (index + 1..=last).flat_map(|i| write(i - 1).entries).collect();
        let snapshot =
            Snapshot { index, term: 2, members: first().members, data: b"later"[..].into() };
        Persist {
            number: 99,
            hard: HardState { term: 2, vote: 1, commit: index },
            snapshot: Some(snapshot),
            entries,
        }
    }

    #[test]
    fn reopening_gives_what_was_written_with_and_without_compaction() {
        let d = Dir::new("reopen");
        let states = filled(&d.0, 9);
        assert_eq!(
            what(&states[9]),
            (HardState { term: 2, vote: 1, commit: 9 }, (2..=10).collect(), 1)
        );
        let (mut s, _) = MonStore::open(&d.0).unwrap();
        s.persist(&[write(10), compaction(7, 11), write(11)]).unwrap();
        drop(s);
        let s = MonStore::verify(&d.0).unwrap();
        assert_eq!(what(&s), (HardState { term: 2, vote: 1, commit: 11 }, (8..=12).collect(), 7));
        assert_eq!(s.identity, ME);
    }

    #[test]
    fn entries_of_a_later_leader_replace_those_stored() {
        let d = Dir::new("replace");
        filled(&d.0, 5);
        let (mut s, _) = MonStore::open(&d.0).unwrap();
        let mut other = write(3);
        other.entries[0].term = 7;
        other.hard.term = 7;
        s.persist(&[other]).unwrap();
        drop(s);
        let s = MonStore::verify(&d.0).unwrap();
        assert_eq!(
            s.entries.iter().map(|e| (e.index, e.term)).collect::<Vec<_>>(),
            [(2, 2), (3, 2), (4, 7)]
        );
    }

    #[test]
    fn log_cut_at_every_byte_opens_as_some_prefix_of_the_batches() {
        let d = Dir::new("cut");
        let states = filled(&d.0, 6);
        let log = std::fs::read(d.0.join(LOG)).unwrap();
        for cut in HEADER..=log.len() {
            std::fs::write(d.0.join(LOG), &log[..cut]).unwrap();
            let (mut s, stored) = MonStore::open(&d.0).unwrap();
            let n = stored.seq as usize;
            assert_eq!(held(&stored), held(&states[n]), "cut at {cut}");
            // And it goes on from there.
            s.persist(&[write(n as u64 + 1)]).unwrap();
            drop(s);
            assert_eq!(MonStore::verify(&d.0).unwrap().seq, n as u64 + 1);
        }
    }

    #[test]
    fn garbage_tail_is_cut_off() {
        let d = Dir::new("tail");
        let states = filled(&d.0, 3);
        let mut log = std::fs::read(d.0.join(LOG)).unwrap();
        log.extend_from_slice(&[0; 700]);
        log.extend_from_slice(b"RNOM garbage");
        std::fs::write(d.0.join(LOG), &log).unwrap();
        assert_eq!(held(&MonStore::open(&d.0).unwrap().1), held(&states[3]));
    }

    #[test]
    fn flipped_bit_anywhere_is_refused_without_writing() {
        let d = Dir::new("flip");
        let states = filled(&d.0, 5);
        let log = std::fs::read(d.0.join(LOG)).unwrap();
        // Only the last mark holds nothing that was acknowledged.
        let last = log.len() - image::MARK;
        for at in 0..log.len() {
            let mut bad = log.clone();
            bad[at] ^= 0x10;
            std::fs::write(d.0.join(LOG), &bad).unwrap();
            match MonStore::open(&d.0) {
                Err(e @ (StoreError::Corrupt { .. } | StoreError::Foreign { .. })) => {
                    assert!(at < last, "byte {at}: {e}");
                    assert!(e.to_string().contains("mon.log"), "{e}");
                    assert_eq!(std::fs::read(d.0.join(LOG)).unwrap(), bad);
                }
                Ok((_, s)) => {
                    assert!(at >= last, "byte {at} was accepted");
                    assert_eq!(held(&s), held(&states[5]));
                }
                Err(e) => panic!("{e}"),
            }
        }
    }

    /// A monitor that is killed has its mark, too: rot in what it acknowledged last (a vote, an
    /// entry) is damage and not a torn write. Only a record that was never synced is cut off.
    #[test]
    fn rot_in_the_last_record_of_a_killed_monitor_is_damage_and_a_torn_record_is_not() {
        let (d, copy) = (Dir::new("killed"), Dir::new("killed-copy"));
        filled(&d.0, 2);
        let (mut s, _) = MonStore::open(&d.0).unwrap();
        let before = std::fs::read(d.0.join(LOG)).unwrap().len();
        s.persist(&[write(3)]).unwrap();
        // As it is at this moment, with the store still open.
        let log = std::fs::read(d.0.join(LOG)).unwrap();
        std::fs::create_dir_all(&copy.0).unwrap();
        std::fs::copy(d.0.join(SNAPSHOT), copy.0.join(SNAPSHOT)).unwrap();
        for at in before..log.len() - image::MARK {
            let mut bad = log.clone();
            bad[at] ^= 1;
            std::fs::write(copy.0.join(LOG), &bad).unwrap();
            let opened = MonStore::open(&copy.0);
            assert!(matches!(opened, Err(StoreError::Corrupt { .. })), "byte {at}: {opened:?}");
        }
        let next = image::record(4, 1, &[&write(4)]);
        for cut in 0..next.len() {
            let torn = [&log[..], &next[..cut]].concat();
            std::fs::write(copy.0.join(LOG), &torn).unwrap();
            assert_eq!(MonStore::open(&copy.0).unwrap().1.seq, 3, "cut at {cut}");
        }
    }

    /// A log without marks, as an earlier version wrote it, is read, and has one from then on.
    #[test]
    fn a_log_without_marks_is_read() {
        let d = Dir::new("unmarked");
        MonStore::create(&d.0, ME, &first()).unwrap();
        let mut log = image::log_file(ME.fsid, 0);
        for n in 1..=3 {
            log.extend_from_slice(&image::record(n, 1, &[&write(n)]));
        }
        std::fs::write(d.0.join(LOG), &log).unwrap();
        assert!(!MonStore::verify(&d.0).unwrap().marked);
        drop(MonStore::open(&d.0).unwrap());
        let again = MonStore::verify(&d.0).unwrap();
        assert!(again.marked && again.seq == 3);
        drop(MonStore::open(&d.0).unwrap());
        assert_eq!(MonStore::verify(&d.0).unwrap(), again, "one mark is enough");
    }

    #[test]
    fn damaged_snapshot_is_refused() {
        let d = Dir::new("snap");
        filled(&d.0, 3);
        let snap = std::fs::read(d.0.join(SNAPSHOT)).unwrap();
        for at in 0..snap.len() {
            let mut bad = snap.clone();
            bad[at] ^= 1;
            std::fs::write(d.0.join(SNAPSHOT), &bad).unwrap();
            assert!(MonStore::verify(&d.0).is_err(), "byte {at}");
        }
    }

    #[test]
    fn crash_between_snapshot_and_new_log_loses_nothing() {
        let d = Dir::new("between");
        filled(&d.0, 6);
        let log = std::fs::read(d.0.join(LOG)).unwrap();
        MonStore::open(&d.0).unwrap().0.persist(&[compaction(4, 7)]).unwrap();
        let whole = MonStore::verify(&d.0).unwrap();
        std::fs::write(d.0.join(LOG), &log).unwrap();
        let (mut s, stored) = MonStore::open(&d.0).unwrap();
        assert_eq!((&stored.entries, &stored.snapshot), (&whole.entries, &whole.snapshot));
        s.persist(&[write(7)]).unwrap();
        drop(s);
        assert_eq!(MonStore::verify(&d.0).unwrap().entries.last().unwrap().index, 8);
    }

    #[test]
    fn crash_between_a_leaders_snapshot_and_the_new_log_forgets_what_contradicts_it() {
        let d = Dir::new("foreign-snap");
        filled(&d.0, 6);
        let log = std::fs::read(d.0.join(LOG)).unwrap();
        let mut p = compaction(4, 4);
        p.snapshot.as_mut().unwrap().term = 9;
        p.hard = HardState { term: 9, vote: 0, commit: 4 };
        MonStore::open(&d.0).unwrap().0.persist(&[p]).unwrap();
        std::fs::write(d.0.join(LOG), &log).unwrap();
        let s = MonStore::verify(&d.0).unwrap();
        assert_eq!((s.entries.len(), s.hard.term, s.snapshot.term), (0, 9, 9));
        // And it goes on in the new history.
        let (mut s, _) = MonStore::open(&d.0).unwrap();
        let mut next = write(4);
        (next.entries[0].term, next.hard.term) = (9, 9);
        s.persist(&[next]).unwrap();
        drop(s);
        let s = MonStore::verify(&d.0).unwrap();
        assert_eq!(s.entries.iter().map(|e| (e.index, e.term)).collect::<Vec<_>>(), [(5, 9)]);
    }

    #[test]
    fn second_opener_is_told_that_the_store_is_in_use() {
        let d = Dir::new("lock");
        filled(&d.0, 1);
        let _s = MonStore::open(&d.0).unwrap();
        assert!(matches!(MonStore::open(&d.0), Err(StoreError::Locked { .. })));
        assert!(matches!(MonStore::wipe(&d.0), Err(StoreError::Locked { .. })));
    }

    #[test]
    fn log_that_ends_before_its_snapshot_is_refused() {
        let d = Dir::new("short");
        filled(&d.0, 3);
        let old = std::fs::read(d.0.join(LOG)).unwrap();
        MonStore::open(&d.0).unwrap().0.persist(&[compaction(3, 4)]).unwrap();
        // As after a crash before the new log, but with a log that lost its end.
        for len in [HEADER, HEADER + 1, old.len() - image::MARK - 1] {
            std::fs::write(d.0.join(LOG), &old[..len]).unwrap();
            let opened = MonStore::verify(&d.0);
            assert!(matches!(opened, Err(StoreError::Corrupt { .. })), "{len}: {opened:?}");
            assert_eq!(std::fs::read(d.0.join(LOG)).unwrap(), old[..len]);
        }
    }

    #[test]
    fn opening_something_else_says_so() {
        let d = Dir::new("foreign");
        assert!(matches!(MonStore::open(&d.0), Err(StoreError::Foreign { .. })));
        std::fs::create_dir_all(&d.0).unwrap();
        std::fs::write(d.0.join(SNAPSHOT), vec![b'x'; 100]).unwrap();
        let e = MonStore::open(&d.0).unwrap_err().to_string();
        assert!(e.contains("is not a Spirula monitor file"), "{e}");
    }
}
