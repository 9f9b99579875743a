//! The bytes of a monitor's store: what its two files hold, and how they are read back.
//!
//! Both start with a checksummed header: magic, format, the cluster's fsid, a sequence number,
//! crc32c.
//!
//! * snapshot file — sequence S, then identity (store uuid, member id), hard state, the agreed
//!   state after some entry; one crc32c over all. Only ever replaced whole.
//! * log file — base sequence, then one record per batch of writes: magic, length, sequence,
//!   crc32c, body. A body holds the member id, the hard state, and entries; an entry replaces
//!   those stored from its index on. So an index is never stored apart from its entry, nor a
//!   vote apart from its term. Behind the last record stands a mark: magic, sequence, crc32c. It
//!   says that this record, and all before it, were synced.
//!
//! Assumes that a synced write survives and that an unsynced one may be torn at any byte. So a
//! bad record with nothing valid after it is the torn tail of a batch nobody was told of, and
//! is cut off; a bad record with a valid one, or its own mark, after it is damage, and refused with
//! its offset: what it held was acknowledged, a vote perhaps, and must not be forgotten. The mark
//! is written as soon as its record is synced, and synced itself with what is written next or when
//! the store is closed. So rot in the last record passes for a torn write only where the machine
//! lost power in the moment between.

use spirula_encoding::{Decoder, Encoder, crc::crc32c};
use spirula_quorum::{Entry, HardState, MemberId, Persist, Snapshot};
use spirula_types::Uuid;

const SNAPSHOT_MAGIC: &[u8; 8] = b"SPIRMONS";
const LOG_MAGIC: &[u8; 8] = b"SPIRMONL";
/// 4 has batches that keep a full OSD map by its epoch, and OSD maps between which some are gone.
const FORMAT: u32 = 4;
/// The oldest format that is read: it had no marks.
const OLDEST: u32 = 2;
/// Bytes of a file's header.
pub const HEADER: usize = 8 + 4 + 16 + 8 + 4;
const RECORD_MAGIC: u32 = 0x4d4f_4e52;
const RECORD_HEADER: usize = 20;
const MARK_MAGIC: u32 = 0x4d4f_4e4d;
/// Bytes of a mark.
pub const MARK: usize = 16;

/// Which of the two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The snapshot.
    Snapshot,
    /// The log.
    Log,
}

/// What is wrong with a store's bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// Damage, with the offset where the bad part starts.
    #[error("damaged at offset {1}: {2}")]
    Corrupt(Part, u64, String),
    /// Not ours, of another format, or of another cluster.
    #[error("{1}")]
    Foreign(Part, String),
}

/// Whose store it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub fsid: Uuid,
    /// This store: a monitor that lost its disk comes back with another one.
    pub uuid: Uuid,
    /// Member of the quorum; 0 until the cluster has given it a number.
    pub member: MemberId,
}

/// What a store holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Whose it is.
    pub identity: Identity,
    /// Term, vote, commit.
    pub hard: HardState,
    /// Agreed state.
    pub snapshot: Snapshot,
    /// Entries behind it.
    pub entries: Vec<Entry>,
    /// Sequence number of the last record.
    pub seq: u64,
    /// The log file is older than the snapshot and must be replaced ([`fresh_log`]) before
    /// anything is appended: a crash came between the two.
    pub log_stale: bool,
    /// Length of the log file that is good; a torn tail follows it.
    pub log_end: u64,
    /// The last thing in it is its last record's mark.
    pub marked: bool,
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

fn read_header(part: Part, data: &[u8], magic: &[u8; 8]) -> Result<(Uuid, u64), ImageError> {
    let corrupt = |why: &str| ImageError::Corrupt(part, 0, why.into());
    let Some(head) = data.get(..HEADER) else {
        return Err(corrupt("the header is cut off"));
    };
    if !head.starts_with(magic) {
        return Err(ImageError::Foreign(part, "is not a Spirula monitor file".into()));
    }
    let mut d = Decoder::new(head);
    let mut read = || {
        d.skip(8)?;
        Ok::<_, spirula_encoding::DecodeError>((d.u32()?, d.get::<Uuid>()?, d.u64()?, d.u32()?))
    };
    let (format, fsid, seq, crc) = read().map_err(|e| corrupt(&e.to_string()))?;
    if crc != crc32c(u32::MAX, head.get(..HEADER - 4).unwrap_or_default()) {
        return Err(corrupt("the header's checksum does not match"));
    }
    if !(OLDEST..=FORMAT).contains(&format) {
        return Err(ImageError::Foreign(
            part,
            format!("has format {format}, this version reads {FORMAT}"),
        ));
    }
    Ok((fsid, seq))
}

/// The snapshot file. `seq` is the last record's that it makes superfluous.
pub fn snapshot_file(id: &Identity, seq: u64, hard: &HardState, snapshot: &Snapshot) -> Vec<u8> {
    let mut out = header(SNAPSHOT_MAGIC, id.fsid, seq);
    out.put(&id.uuid);
    out.u64(id.member);
    out.put(hard);
    out.put(snapshot);
    out.u32(crc32c(u32::MAX, out.as_slice()));
    out.into_vec()
}

/// An empty log file whose first record will follow sequence number `base`.
pub fn log_file(fsid: Uuid, base: u64) -> Vec<u8> {
    header(LOG_MAGIC, fsid, base).into_vec()
}

/// The log file that belongs to `stored`'s snapshot, in place of a stale one.
pub fn fresh_log(stored: &Stored) -> Vec<u8> {
    let mut out = log_file(stored.identity.fsid, stored.seq);
    let all =
        Persist { number: 0, hard: stored.hard, snapshot: None, entries: stored.entries.clone() };
    out.extend_from_slice(&record(stored.seq + 1, stored.identity.member, &[&all]));
    out
}

/// One record: what of `writes` is not a snapshot, in one piece.
pub fn record(seq: u64, member: MemberId, writes: &[&Persist]) -> Vec<u8> {
    let mut body = Encoder::new();
    body.versioned(1, 1, |o| {
        o.u64(member);
        o.put(&writes.last().map(|p| p.hard).unwrap_or_default());
        o.list(writes.iter().flat_map(|p| &p.entries).collect::<Vec<_>>(), |o, e| o.put(e));
    });
    let body = body.into_vec();
    let mut out = Encoder::with_capacity(body.len() + RECORD_HEADER);
    out.u32(RECORD_MAGIC);
    out.len32(body.len());
    out.u64(seq);
    out.u32(record_crc(seq, &body));
    out.raw(&body);
    out.into_vec()
}

/// The mark of record `seq`: it is synced, and so are all before it.
pub fn mark(seq: u64) -> Vec<u8> {
    let mut out = Encoder::with_capacity(MARK);
    out.u32(MARK_MAGIC);
    out.u64(seq);
    out.u32(crc32c(u32::MAX, out.as_slice()));
    out.into_vec()
}

/// The mark at `at`: of which record.
fn mark_at(data: &[u8], at: usize) -> Option<u64> {
    let bytes = data.get(at..at.checked_add(MARK)?)?;
    let mut d = Decoder::new(bytes);
    let (magic, seq, crc) = (d.u32().ok()?, d.u64().ok()?, d.u32().ok()?);
    (magic == MARK_MAGIC && crc == crc32c(u32::MAX, bytes.get(..MARK - 4)?)).then_some(seq)
}

fn record_crc(seq: u64, body: &[u8]) -> u32 {
    crc32c(crc32c(u32::MAX, &seq.to_le_bytes()), body)
}

/// The record at `at`: sequence number, body and the offset after it.
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

/// Puts `new` behind `log`, replacing what is there from its first index on.
fn splice(log: &mut Vec<Entry>, new: Vec<Entry>) -> Result<(), String> {
    for e in new {
        if let Some(first) = log.first().map(|f| f.index) {
            if e.index < first {
                log.clear();
            } else {
                log.truncate((e.index - first) as usize);
            }
        }
        if let Some(last) = log.last()
            && (e.index != last.index + 1 || e.term < last.term)
        {
            return Err(format!(
                "entry {} of term {} follows {} of {}",
                e.index, e.term, last.index, last.term
            ));
        }
        log.push(e);
    }
    Ok(())
}

/// Reads a store. `log` is `None` if there is no log file: right only for a store that was
/// being made.
///
/// # Errors
/// [`ImageError`].
pub fn read(snapshot: &[u8], log: Option<&[u8]>) -> Result<Stored, ImageError> {
    let (mut stored, snapshot_seq) = read_snapshot(snapshot)?;
    let Some(log) = log else {
        if snapshot_seq != 0 {
            return Err(ImageError::Foreign(Part::Log, "is missing".into()));
        }
        return Ok(stored);
    };
    let (fsid, base) = read_header(Part::Log, log, LOG_MAGIC)?;
    if fsid != stored.identity.fsid {
        return Err(ImageError::Foreign(Part::Log, format!("belongs to cluster {fsid}")));
    }
    if base > snapshot_seq {
        let why =
            format!("it ends at record {snapshot_seq}, but the log starts after record {base}");
        return Err(ImageError::Corrupt(Part::Snapshot, 0, why));
    }
    replay(log, base, snapshot_seq, &mut stored)?;
    // Entries from before a snapshot that came from elsewhere may contradict it; then nothing
    // of them counts.
    let (index, term) = (stored.snapshot.index, stored.snapshot.term);
    let joins = match stored.entries.first() {
        Some(e) if e.index == index + 1 => true,
        Some(_) => stored.entries.iter().any(|e| (e.index, e.term) == (index, term)),
        None => true,
    };
    if joins {
        stored.entries.retain(|e| e.index > index);
    } else if stored.seq > snapshot_seq {
        let why = format!("its entries do not follow the snapshot's entry {index} of term {term}");
        return Err(ImageError::Corrupt(Part::Log, HEADER as u64, why));
    } else {
        stored.entries.clear();
    }
    Ok(stored)
}

fn read_snapshot(data: &[u8]) -> Result<(Stored, u64), ImageError> {
    let (fsid, seq) = read_header(Part::Snapshot, data, SNAPSHOT_MAGIC)?;
    let corrupt = |why: String| ImageError::Corrupt(Part::Snapshot, HEADER as u64, why);
    let (body, crc) = data.split_at(data.len().saturating_sub(4).max(HEADER));
    if Decoder::new(crc).u32() != Ok(crc32c(u32::MAX, body)) {
        return Err(corrupt("the checksum over the state does not match".into()));
    }
    let mut d = Decoder::new(body.get(HEADER..).unwrap_or_default());
    let mut parse = || {
        let identity = Identity { fsid, uuid: d.get()?, member: d.u64()? };
        let (hard, snapshot) = (d.get()?, d.get()?);
        d.finish()?;
        let log_end = HEADER as u64;
        Ok::<_, spirula_encoding::DecodeError>(Stored {
            identity,
            hard,
            snapshot,
            entries: vec![],
            seq,
            log_stale: false,
            log_end,
            marked: false,
        })
    };
    parse().map(|s| (s, seq)).map_err(|e| corrupt(e.to_string()))
}

fn replay(
    data: &[u8],
    base: u64,
    snapshot_seq: u64,
    stored: &mut Stored,
) -> Result<(), ImageError> {
    let corrupt = |offset: usize, why: String| ImageError::Corrupt(Part::Log, offset as u64, why);
    let (mut at, mut seq, mut marked) = (HEADER, base, false);
    while at < data.len() {
        if mark_at(data, at) == Some(seq) {
            (at, marked) = (at + MARK, true);
            continue;
        }
        let Some((found, body, next)) = record_at(data, at) else {
            let proof =
                |p: usize| record_at(data, p).map(|(s, _, _)| s).or_else(|| mark_at(data, p));
            let later = (at + 1..data.len()).find(|&p| proof(p).is_some_and(|s| s > seq));
            match later {
                None => break,
                Some(p) => {
                    let why = format!(
                        "bad record after record {seq}, which was acknowledged: what follows at \
                            offset {p} says so"
                    );
                    return Err(corrupt(at, why));
                }
            }
        };
        if found != seq + 1 {
            return Err(corrupt(at, format!("record {found} follows record {seq}")));
        }
        let mut d = Decoder::new(body);
        let parsed = d.versioned("monitor log record", 1, |d, _| {
            Ok((d.u64()?, d.get::<HardState>()?, d.list(21, Decoder::get::<Entry>)?))
        });
        let (member, hard, entries) = parsed.map_err(|e| corrupt(at, e.to_string()))?;
        splice(&mut stored.entries, entries).map_err(|why| corrupt(at, why))?;
        (seq, at, marked) = (found, next, false);
        if seq > snapshot_seq {
            (stored.hard, stored.identity.member) = (hard, member);
        }
    }
    if seq < snapshot_seq {
        // Synced records are gone. The snapshot holds what they said, but records behind a
        // gap would be refused at the next start.
        return Err(corrupt(
            at,
            format!("it ends at record {seq}, before the snapshot's {snapshot_seq}"),
        ));
    }
    stored.log_stale = base < snapshot_seq;
    if stored.log_stale && seq > snapshot_seq {
        let why = format!(
            "records after {snapshot_seq} follow in a log that the snapshot should have replaced"
        );
        return Err(corrupt(HEADER, why));
    }
    (stored.seq, stored.log_end, stored.marked) = (seq, at as u64, marked);
    Ok(())
}
