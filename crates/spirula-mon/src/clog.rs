//! The cluster log: what the cluster tells its operators, newest last.

use spirula_encoding::UTime;
use spirula_messages::ceph::LogEntry;
use spirula_messages::ceph::log::severity;
use spirula_types::{AddrVec, EntityName, EntityType};
use std::collections::BTreeMap;

/// Entries kept; older ones are trimmed.
pub const KEEP: usize = 1000;

/// The log, entries by version (from 1, never reused).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterLog {
    entries: BTreeMap<u64, LogEntry>,
    last: u64,
}

impl ClusterLog {
    /// From stored entries.
    pub fn from_entries(entries: BTreeMap<u64, LogEntry>) -> Self {
        let last = entries.keys().next_back().copied().unwrap_or(0);
        Self { entries, last }
    }

    /// Version of the newest entry, 0 for an empty log.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Appends, trimming the oldest beyond [`KEEP`].
    pub fn push(&mut self, entry: LogEntry) {
        self.last += 1;
        self.entries.insert(self.last, entry);
        while self.entries.len() > KEEP {
            self.entries.pop_first();
        }
    }

    /// Puts an entry in its place.
    pub fn put(&mut self, version: u64, entry: LogEntry) {
        self.last = self.last.max(version);
        self.entries.insert(version, entry);
    }

    /// Removes an entry.
    pub fn remove(&mut self, version: u64) {
        self.entries.remove(&version);
    }

    /// Entries after version `after`, with their versions, oldest first.
    pub fn after(&self, after: u64) -> impl DoubleEndedIterator<Item = (u64, &LogEntry)> {
        self.entries.range(after + 1..).map(|(v, e)| (*v, e))
    }

    /// All entries by version.
    pub fn entries(&self) -> &BTreeMap<u64, LogEntry> {
        &self.entries
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
    let kind = u8::try_from(e.name_kind).ok().and_then(EntityType::from_wire).map_or("unknown", EntityType::as_str);
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
