//! The monitor's durable store: an ordered map of keys, kept as a snapshot and a log.
//!
//! Two files in one directory, both starting with a checksummed header that carries the
//! cluster's fsid:
//!
//! * `mon.snapshot` — every key and value as of sequence number S, one crc32c over all.
//!   Only ever replaced whole: temporary file, fsync, rename, fsync of the directory.
//! * `mon.log` — one record per commit after S: magic, length, sequence, crc32c, an encoded
//!   [`MonTxn`]. Appended with one write and one fdatasync.
//!
//! Assumes that a synced write survives and that an unsynced one may be torn at any byte.
//! So a bad record with nothing valid after it is the torn tail of a commit nobody was told
//! of, and is cut off; a bad record with a valid one after it is damage, and opening is
//! refused with file and offset, before anything is written. (A flipped bit in the very last
//! record cannot be told from a torn write.) After a failed write or sync the store refuses
//! all work: what is on disk is then unknown.

use crate::txn::MonTxn;
use bytes::Bytes;
use rustix::fs::{FlockOperation, flock};
use spirula_encoding::{Decoder, Encoder, crc::crc32c};
use spirula_types::Uuid;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

const SNAPSHOT: &str = "mon.snapshot";
const LOG: &str = "mon.log";
const LOCK: &str = "mon.lock";
const SNAPSHOT_MAGIC: &[u8; 8] = b"SPIRMONS";
const LOG_MAGIC: &[u8; 8] = b"SPIRMONL";
const FORMAT: u32 = 1;
const HEADER: usize = 8 + 4 + 16 + 8 + 4;
const RECORD_MAGIC: u32 = 0x4d4f_4e52;
const RECORD_HEADER: usize = 20;
/// The log is folded into a new snapshot when it is larger than this and than four times
/// the live keys and values.
const LOG_COMPACT_BYTES: u64 = 4 << 20;

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
    /// An earlier write or sync failed.
    #[error("the monitor's store failed earlier and takes no more writes")]
    Poisoned,
}

/// An open store. All keys and values are also in memory.
#[derive(Debug)]
pub struct MonStore {
    dir: PathBuf,
    fsid: Uuid,
    keys: BTreeMap<String, Bytes>,
    live_bytes: u64,
    seq: u64,
    log: File,
    log_bytes: u64,
    poisoned: bool,
    /// Held for as long as the store is open.
    _lock: File,
}

impl MonStore {
    /// True if `dir` holds a monitor store (of whatever state).
    pub fn exists(dir: &Path) -> bool {
        dir.join(SNAPSHOT).exists() || dir.join(LOG).exists()
    }

    /// Makes an empty store in `dir`, which is created if need be.
    ///
    /// # Errors
    /// [`StoreError::Foreign`] if there is a store already, else I/O errors.
    pub fn create(dir: &Path, fsid: Uuid) -> Result<Self, StoreError> {
        std::fs::create_dir_all(dir).map_err(io("create directory", dir))?;
        let lock = take_lock(dir)?;
        if Self::exists(dir) {
            return Err(StoreError::Foreign { path: dir.into(), why: "already holds a monitor store".into() });
        }
        let keys = BTreeMap::new();
        write_snapshot(dir, fsid, 0, &keys)?;
        let log = write_empty_log(dir, fsid, 0)?;
        Ok(Self {
            dir: dir.into(),
            fsid,
            keys,
            live_bytes: 0,
            seq: 0,
            log,
            log_bytes: HEADER as u64,
            poisoned: false,
            _lock: lock,
        })
    }

    /// Opens the store in `dir`. A torn tail of the log is cut off.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] and [`StoreError::Foreign`] without having written anything;
    /// I/O errors.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        if !Self::exists(dir) {
            return Err(StoreError::Foreign { path: dir.into(), why: "holds no monitor store".into() });
        }
        let lock = take_lock(dir)?;
        let snap_path = dir.join(SNAPSHOT);
        let log_path = dir.join(LOG);
        let snap = std::fs::read(&snap_path).map_err(io("read", &snap_path))?;
        let log_data = match std::fs::read(&log_path) {
            Ok(data) => Some(data),
            // A crash in `create` between the two files: nothing was ever committed.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(e) => return Err(io("read", &log_path)(e)),
        };
        let (fsid, snap_seq, mut keys) = read_snapshot(&snap_path, &snap)?;
        let Some(log_data) = log_data else {
            if snap_seq != 0 {
                return Err(StoreError::Foreign { path: log_path, why: "is missing".into() });
            }
            let log = write_empty_log(dir, fsid, 0)?;
            return Ok(Self::assemble(dir, fsid, keys, 0, log, HEADER as u64, lock));
        };
        let (log_fsid, base) = read_header(&log_path, &log_data, LOG_MAGIC)?;
        if log_fsid != fsid {
            return Err(StoreError::Foreign { path: log_path, why: format!("belongs to cluster {log_fsid}") });
        }
        if base > snap_seq {
            return Err(StoreError::Corrupt {
                path: snap_path,
                offset: 0,
                why: format!("it ends at commit {snap_seq}, but the log starts after commit {base}"),
            });
        }
        let (seq, end) = replay(&log_path, &log_data, base, snap_seq, &mut keys)?;
        let log = OpenOptions::new().append(true).open(&log_path).map_err(io("open", &log_path))?;
        if end < log_data.len() {
            log.set_len(end as u64).map_err(io("truncate", &log_path))?;
            log.sync_all().map_err(io("sync", &log_path))?;
        }
        Ok(Self::assemble(dir, fsid, keys, seq.max(snap_seq), log, end as u64, lock))
    }

    fn assemble(
        dir: &Path,
        fsid: Uuid,
        keys: BTreeMap<String, Bytes>,
        seq: u64,
        log: File,
        log_bytes: u64,
        lock: File,
    ) -> Self {
        let live_bytes = keys.iter().map(|(k, v)| (k.len() + v.len()) as u64).sum();
        Self { dir: dir.into(), fsid, keys, live_bytes, seq, log, log_bytes, poisoned: false, _lock: lock }
    }

    /// The cluster this store belongs to.
    pub fn fsid(&self) -> Uuid {
        self.fsid
    }

    /// All keys and values as of the last commit.
    pub fn keys(&self) -> &BTreeMap<String, Bytes> {
        &self.keys
    }

    /// Number of the last commit.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Makes `txn` durable: one write, one fdatasync. When it returns `Ok`, the change
    /// survives a power cut.
    ///
    /// # Errors
    /// I/O errors, after which the store is poisoned.
    pub fn commit(&mut self, txn: &MonTxn) -> Result<(), StoreError> {
        if self.poisoned {
            return Err(StoreError::Poisoned);
        }
        self.poisoned = true;
        let path = self.dir.join(LOG);
        let record = encode_record(self.seq + 1, txn);
        self.log.write_all(&record).map_err(io("write", &path))?;
        self.log.sync_data().map_err(io("sync", &path))?;
        self.seq += 1;
        self.log_bytes += record.len() as u64;
        self.apply(txn);
        if self.log_bytes > LOG_COMPACT_BYTES && self.log_bytes > 4 * self.live_bytes {
            self.compact_files()?;
        }
        self.poisoned = false;
        Ok(())
    }

    /// Folds the log into a new snapshot now.
    ///
    /// # Errors
    /// I/O errors, after which the store is poisoned.
    pub fn compact(&mut self) -> Result<(), StoreError> {
        if self.poisoned {
            return Err(StoreError::Poisoned);
        }
        self.poisoned = true;
        self.compact_files()?;
        self.poisoned = false;
        Ok(())
    }

    fn compact_files(&mut self) -> Result<(), StoreError> {
        write_snapshot(&self.dir, self.fsid, self.seq, &self.keys)?;
        // A crash here leaves the old log: its records up to `seq` are skipped at open.
        self.log = write_empty_log(&self.dir, self.fsid, self.seq)?;
        self.log_bytes = HEADER as u64;
        Ok(())
    }

    fn apply(&mut self, txn: &MonTxn) {
        for (key, value) in &txn.ops {
            let old = match value {
                Some(v) => {
                    self.live_bytes += (key.len() + v.len()) as u64;
                    self.keys.insert(key.clone(), v.clone())
                }
                None => self.keys.remove(key),
            };
            if let Some(old) = old {
                self.live_bytes -= (key.len() + old.len()) as u64;
            }
        }
    }
}

fn io<'a>(op: &'static str, path: &'a Path) -> impl FnOnce(std::io::Error) -> StoreError + 'a {
    move |source| StoreError::Io { op, path: path.into(), source }
}

fn take_lock(dir: &Path) -> Result<File, StoreError> {
    let path = dir.join(LOCK);
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(io("open", &path))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(StoreError::Locked { path }),
        Err(e) => Err(io("lock", &path)(e.into())),
    }
}

fn header(magic: &[u8; 8], fsid: Uuid, seq: u64) -> Encoder {
    let mut out = Encoder::new();
    out.raw(magic);
    out.u32(FORMAT);
    out.put(&fsid);
    out.u64(seq);
    out.u32(crc32c(u32::MAX, out.as_slice()));
    out
}

fn read_header(path: &Path, data: &[u8], magic: &[u8; 8]) -> Result<(Uuid, u64), StoreError> {
    let corrupt = |why: &str| StoreError::Corrupt { path: path.into(), offset: 0, why: why.into() };
    let Some(head) = data.get(..HEADER) else {
        return Err(corrupt("the header is cut off"));
    };
    if !head.starts_with(magic) {
        return Err(StoreError::Foreign { path: path.into(), why: "is not a Spirula monitor file".into() });
    }
    let mut d = Decoder::new(head);
    let mut read = || {
        d.skip(8)?;
        Ok::<_, spirula_encoding::DecodeError>((d.u32()?, d.get::<Uuid>()?, d.u64()?, d.u32()?))
    };
    let (format, fsid, seq, crc) = read().map_err(|e| corrupt(&e.to_string()))?;
    if crc != crc32c(u32::MAX, &head[..HEADER - 4]) {
        return Err(corrupt("the header's checksum does not match"));
    }
    if format != FORMAT {
        return Err(StoreError::Foreign {
            path: path.into(),
            why: format!("has format {format}, this version reads {FORMAT}"),
        });
    }
    Ok((fsid, seq))
}

fn write_snapshot(dir: &Path, fsid: Uuid, seq: u64, keys: &BTreeMap<String, Bytes>) -> Result<(), StoreError> {
    let mut out = header(SNAPSHOT_MAGIC, fsid, seq);
    out.put(keys);
    out.u32(crc32c(u32::MAX, out.as_slice()));
    replace_file(dir, SNAPSHOT, out.as_slice()).map(|_| ())
}

fn read_snapshot(path: &Path, data: &[u8]) -> Result<(Uuid, u64, BTreeMap<String, Bytes>), StoreError> {
    let (fsid, seq) = read_header(path, data, SNAPSHOT_MAGIC)?;
    let corrupt = |why: String| StoreError::Corrupt { path: path.into(), offset: HEADER as u64, why };
    let body_end = data.len().saturating_sub(4).max(HEADER);
    let (body, crc) = data.split_at(body_end);
    if Decoder::new(crc).u32() != Ok(crc32c(u32::MAX, body)) {
        return Err(corrupt("the checksum over the keys does not match".into()));
    }
    let keys = body.get(HEADER..).unwrap_or_default();
    let keys = spirula_encoding::from_slice(keys).map_err(|e| corrupt(e.to_string()))?;
    Ok((fsid, seq, keys))
}

fn write_empty_log(dir: &Path, fsid: Uuid, base: u64) -> Result<File, StoreError> {
    replace_file(dir, LOG, header(LOG_MAGIC, fsid, base).as_slice())
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
    let mut file = OpenOptions::new().append(true).create(true).open(&tmp).map_err(io("create", &tmp))?;
    file.write_all(data).map_err(io("write", &tmp))?;
    file.sync_all().map_err(io("sync", &tmp))?;
    std::fs::rename(&tmp, &path).map_err(io("rename", &tmp))?;
    let d = File::open(dir).map_err(io("open", dir))?;
    d.sync_all().map_err(io("sync", dir))?;
    Ok(file)
}

fn record_crc(seq: u64, body: &[u8]) -> u32 {
    crc32c(crc32c(u32::MAX, &seq.to_le_bytes()), body)
}

fn encode_record(seq: u64, txn: &MonTxn) -> Vec<u8> {
    let body = spirula_encoding::to_vec(txn);
    let mut out = Encoder::with_capacity(body.len() + RECORD_HEADER);
    out.u32(RECORD_MAGIC);
    out.len32(body.len());
    out.u64(seq);
    out.u32(record_crc(seq, &body));
    out.raw(&body);
    out.into_vec()
}

/// Reads the record at `at`: sequence number, body and the offset after it.
fn record_at(data: &[u8], at: usize) -> Option<(u64, &[u8], usize)> {
    let mut d = Decoder::new(data.get(at..)?);
    if d.u32().ok()? != RECORD_MAGIC {
        return None;
    }
    let len = d.u32().ok()? as usize;
    let seq = d.u64().ok()?;
    let crc = d.u32().ok()?;
    let body = d.take(len).ok()?;
    (record_crc(seq, body) == crc).then_some((seq, body, at + RECORD_HEADER + len))
}

/// Applies the log's records after `snap_seq`; returns the last sequence number and the
/// offset behind the last good record.
fn replay(
    path: &Path,
    data: &[u8],
    base: u64,
    snap_seq: u64,
    keys: &mut BTreeMap<String, Bytes>,
) -> Result<(u64, usize), StoreError> {
    let mut at = HEADER;
    let mut seq = base;
    let corrupt = |offset: usize, why: String| StoreError::Corrupt { path: path.into(), offset: offset as u64, why };
    while at < data.len() {
        let Some((found, body, next)) = record_at(data, at) else {
            let later = (at + 1..data.len()).find(|&p| record_at(data, p).is_some_and(|(s, _, _)| s > seq));
            match later {
                None => break,
                Some(p) => {
                    let why = format!("bad record after commit {seq}, while a good one follows at offset {p}");
                    return Err(corrupt(at, why));
                }
            }
        };
        if found != seq + 1 {
            return Err(corrupt(at, format!("commit {found} follows commit {seq}")));
        }
        seq = found;
        at = next;
        if seq <= snap_seq {
            continue;
        }
        let txn: MonTxn = spirula_encoding::from_slice(body).map_err(|e| corrupt(at, e.to_string()))?;
        for (key, value) in txn.ops {
            match value {
                Some(v) => keys.insert(key, v),
                None => keys.remove(&key),
            };
        }
    }
    if seq < snap_seq {
        // Synced records are gone. The snapshot holds what they said, but commits behind a
        // gap would be refused at the next start.
        return Err(corrupt(at, format!("it ends at commit {seq}, before the snapshot's {snap_seq}")));
    }
    Ok((seq, at))
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn txn(n: u64) -> MonTxn {
        let mut t = MonTxn::default();
        t.put(format!("k/{n}"), vec![n as u8; 5 + n as usize]);
        t.put("last", n.to_string().into_bytes());
        if n > 2 {
            t.remove(format!("k/{}", n - 2));
        }
        t
    }

    fn filled(dir: &Path, commits: u64) -> Vec<BTreeMap<String, Bytes>> {
        let mut s = MonStore::create(dir, Uuid([7; 16])).unwrap();
        let mut states = vec![s.keys().clone()];
        for n in 1..=commits {
            s.commit(&txn(n)).unwrap();
            states.push(s.keys().clone());
        }
        states
    }

    #[test]
    fn reopening_gives_what_was_committed_with_and_without_compaction() {
        let d = Dir::new("reopen");
        let states = filled(&d.0, 9);
        let mut s = MonStore::open(&d.0).unwrap();
        assert_eq!((s.keys(), s.seq(), s.fsid()), (&states[9], 9, Uuid([7; 16])));
        s.compact().unwrap();
        s.commit(&txn(10)).unwrap();
        let want = s.keys().clone();
        drop(s);
        let s = MonStore::open(&d.0).unwrap();
        assert_eq!((s.keys(), s.seq()), (&want, 10));
    }

    #[test]
    fn log_cut_at_every_byte_opens_as_some_prefix_of_the_commits() {
        let d = Dir::new("cut");
        let states = filled(&d.0, 6);
        let log = std::fs::read(d.0.join(LOG)).unwrap();
        for cut in HEADER..=log.len() {
            std::fs::write(d.0.join(LOG), &log[..cut]).unwrap();
            let mut s = MonStore::open(&d.0).unwrap();
            let n = s.seq() as usize;
            assert_eq!(s.keys(), &states[n], "cut at {cut}");
            // And it goes on from there.
            s.commit(&txn(n as u64 + 1)).unwrap();
            drop(s);
            assert_eq!(MonStore::open(&d.0).unwrap().seq(), n as u64 + 1);
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
        assert_eq!(MonStore::open(&d.0).unwrap().keys(), &states[3]);
    }

    #[test]
    fn flipped_bit_anywhere_but_in_the_last_record_is_refused_without_writing() {
        let d = Dir::new("flip");
        let states = filled(&d.0, 5);
        let log = std::fs::read(d.0.join(LOG)).unwrap();
        let mut last = HEADER;
        while let Some((seq, _, next)) = record_at(&log, last) {
            if seq == 5 {
                break;
            }
            last = next;
        }
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
                Ok(s) => {
                    assert!(at >= last, "byte {at} was accepted");
                    assert_eq!(s.keys(), &states[4]);
                }
                Err(e) => panic!("{e}"),
            }
        }
    }

    #[test]
    fn damaged_snapshot_is_refused() {
        let d = Dir::new("snap");
        filled(&d.0, 3);
        MonStore::open(&d.0).unwrap().compact().unwrap();
        let snap = std::fs::read(d.0.join(SNAPSHOT)).unwrap();
        for at in 0..snap.len() {
            let mut bad = snap.clone();
            bad[at] ^= 1;
            std::fs::write(d.0.join(SNAPSHOT), &bad).unwrap();
            assert!(MonStore::open(&d.0).is_err(), "byte {at}");
        }
    }

    #[test]
    fn crash_between_snapshot_and_new_log_loses_nothing() {
        let d = Dir::new("between");
        let states = filled(&d.0, 4);
        let log = std::fs::read(d.0.join(LOG)).unwrap();
        MonStore::open(&d.0).unwrap().compact().unwrap();
        std::fs::write(d.0.join(LOG), &log).unwrap();
        let mut s = MonStore::open(&d.0).unwrap();
        assert_eq!((s.keys(), s.seq()), (&states[4], 4));
        s.commit(&txn(5)).unwrap();
        let want = s.keys().clone();
        drop(s);
        assert_eq!(MonStore::open(&d.0).unwrap().keys(), &want);
    }

    #[test]
    fn second_opener_is_told_that_the_store_is_in_use() {
        let d = Dir::new("lock");
        let _s = MonStore::create(&d.0, Uuid([1; 16])).unwrap();
        assert!(matches!(MonStore::open(&d.0), Err(StoreError::Locked { .. })));
    }

    #[test]
    fn log_that_ends_before_its_snapshot_is_refused() {
        let d = Dir::new("short");
        filled(&d.0, 3);
        let old = std::fs::read(d.0.join(LOG)).unwrap();
        MonStore::open(&d.0).unwrap().compact().unwrap();
        // As after a crash before the new log, but with a log that lost its end.
        for len in [HEADER, HEADER + 1, old.len() - 1] {
            std::fs::write(d.0.join(LOG), &old[..len]).unwrap();
            let opened = MonStore::open(&d.0);
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
