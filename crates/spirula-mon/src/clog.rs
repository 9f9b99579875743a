//! The cluster log: what the cluster tells its operators, newest last.

use bytes::Bytes;
use spirula_encoding::UTime;
use spirula_messages::ceph::LogEntry;
use spirula_messages::ceph::log::severity;
use spirula_types::{AddrVec, EntityName, EntityType};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Entries kept of the monitors' and managers' audit, and as many of all others; older ones are
/// trimmed. What anybody else writes to the audit's channel counts among the others: who may write
/// the log does not get rid of what was noted about him.
pub const KEEP: usize = 1000;
/// Longest text of an entry, bytes; of a longer one the beginning is kept. Every monitor has all of
/// them in memory, twice.
pub const TEXT_MAX: usize = 4096;
/// Longest name of a speaker, and of a channel, bytes; likewise.
const NAME_MAX: usize = 256;
/// Most addresses of a speaker; likewise.
const ADDRS_MAX: usize = 8;

/// An entry, and its stored form.
#[derive(Debug, PartialEq, Eq)]
struct Kept {
    entry: LogEntry,
    bytes: Bytes,
}

impl Kept {
    fn new(entry: LogEntry) -> Arc<Self> {
        let bytes = spirula_encoding::to_vec(&entry).into();
        Arc::new(Self { entry, bytes })
    }

    /// Which of [`ClusterLog::turns`] it belongs to.
    fn turn(&self) -> usize {
        let by_us =
            [EntityType::Mon as u32, EntityType::Mgr as u32].contains(&self.entry.name_kind);
        usize::from(by_us && self.entry.channel == "audit")
    }
}

/// Keeps the beginning of a text that is longer than `most` bytes.
fn cut(text: &mut String, most: usize) {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most - 4));
        text.push_str(" ...");
        text.shrink_to_fit();
    }
}

/// The log, entries by version (from 1, never reused). Each change of the cluster's state is made
/// in a copy of it: copies share the entries, and each is encoded once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterLog {
    entries: BTreeMap<u64, Arc<Kept>>,
    /// Versions of the entries: of all but the audit, and of the audit. Each is trimmed by itself.
    turns: [BTreeSet<u64>; 2],
    last: u64,
}

impl ClusterLog {
    /// From stored entries.
    pub fn from_entries(entries: BTreeMap<u64, LogEntry>) -> Self {
        let mut log = Self::default();
        entries.into_iter().for_each(|(v, e)| log.put(v, e));
        log
    }

    /// Version of the newest entry, 0 for an empty log.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Appends, trimming the oldest beyond [`KEEP`], and what of the entry is longer than any needs
    /// to be.
    pub fn push(&mut self, mut entry: LogEntry) {
        cut(&mut entry.message, TEXT_MAX);
        cut(&mut entry.name_id, NAME_MAX);
        cut(&mut entry.channel, NAME_MAX);
        entry.addrs.0.truncate(ADDRS_MAX);
        entry.addrs.0.shrink_to_fit();
        self.put(self.last + 1, entry);
        for turn in 0..self.turns.len() {
            while let Some(oldest) =
                self.turns.get_mut(turn).filter(|t| t.len() > KEEP).and_then(BTreeSet::pop_first)
            {
                self.entries.remove(&oldest);
            }
        }
    }

    /// Puts an entry in its place.
    pub fn put(&mut self, version: u64, entry: LogEntry) {
        self.remove(version);
        self.last = self.last.max(version);
        let kept = Kept::new(entry);
        if let Some(turn) = self.turns.get_mut(kept.turn()) {
            turn.insert(version);
        }
        self.entries.insert(version, kept);
    }

    /// Removes an entry.
    pub fn remove(&mut self, version: u64) {
        self.entries.remove(&version);
        for turn in &mut self.turns {
            turn.remove(&version);
        }
    }

    /// Entries after version `after`, with their versions, oldest first.
    pub fn after(&self, after: u64) -> impl DoubleEndedIterator<Item = (u64, &LogEntry)> {
        self.entries.range(after + 1..).map(|(v, e)| (*v, &e.entry))
    }

    /// The stored form of each entry that is not in `old` as it is here, by version.
    pub fn stored_since<'a>(
        &'a self,
        old: Option<&'a Self>,
    ) -> impl Iterator<Item = (u64, &'a Bytes)> {
        let changed =
            move |(v, e): &(&u64, &Arc<Kept>)| old.and_then(|o| o.entries.get(*v)) != Some(*e);
        self.entries.iter().filter(changed).map(|(v, e)| (*v, &e.bytes))
    }

    /// Versions of entries of `old` that are not here.
    pub fn gone_since<'a>(&'a self, old: Option<&'a Self>) -> impl Iterator<Item = u64> {
        old.into_iter()
            .flat_map(|o| o.entries.keys())
            .copied()
            .filter(|v| !self.entries.contains_key(v))
    }
}

/// `[DBG]`, `[INF]`, `[SEC]`, `[WRN]`, `[ERR]`.
pub fn severity_tag(s: u16) -> &'static str {
    match s {
        severity::DEBUG => "[DBG]",
        severity::INFO => "[INF]",
        severity::SECURITY => "[SEC]",
        severity::WARN => "[WRN]",
        severity::ERROR => "[ERR]",
        _ => "[???]",
    }
}

/// Severity of a subscription (`log-info`) or a level word (`info`); `None` if unknown.
pub fn severity_by_name(name: &str) -> Option<u16> {
    Some(match name {
        "debug" => severity::DEBUG,
        "info" => severity::INFO,
        "sec" => severity::SECURITY,
        "warn" => severity::WARN,
        "error" => severity::ERROR,
        _ => return None,
    })
}

/// The line as `ceph log last` and `ceph -w` print it.
pub fn line(e: &LogEntry) -> String {
    let kind = u8::try_from(e.name_kind)
        .ok()
        .and_then(EntityType::from_wire)
        .map_or("unknown", EntityType::as_str);
    format!(
        "{} {kind}.{} ({}) {} : {} {} {}",
        e.stamp.to_iso(),
        e.name_id,
        e.rank,
        e.seq,
        e.channel,
        severity_tag(e.severity),
        e.message
    )
}

/// An entry spoken by the monitor itself.
pub fn own_entry(
    name: &str,
    rank: i64,
    addrs: &AddrVec,
    stamp: UTime,
    seq: u64,
    (severity, channel, message): (u16, &str, String),
) -> LogEntry {
    LogEntry {
        name_kind: EntityType::Mon as u32,
        name_id: name.to_owned(),
        rank: EntityName::mon(rank),
        addrs: addrs.clone(),
        stamp,
        seq,
        severity,
        message,
        channel: channel.to_owned(),
    }
}
