//! What the OSD says in the cluster log: sent to the monitor, again until it is acknowledged.

use crate::osd::OsdCore;
use spirula_encoding::UTime;
use spirula_messages::ceph::log::severity;
use spirula_messages::ceph::{LogEntry, MLog};
use spirula_pg::LogLevel;
use spirula_types::{EntityName, EntityType};
use std::collections::VecDeque;

/// Lines kept while no monitor takes them; the oldest go first.
const KEPT: usize = 256;

/// Lines on their way.
#[derive(Debug, Default)]
pub(crate) struct ClusterLog {
    seq: u64,
    /// Number, severity and text of what is not acknowledged.
    lines: VecDeque<(u64, u16, UTime, String)>,
    /// Newest one sent over the present connection.
    sent: u64,
}

impl ClusterLog {
    /// Adds a line, said at `wall`.
    fn say(&mut self, level: LogLevel, text: String, wall: UTime) {
        let level = match level {
            LogLevel::Error => {
                tracing::error!("{text}");
                severity::ERROR
            }
            LogLevel::Warning => {
                tracing::warn!("{text}");
                severity::WARN
            }
            LogLevel::Info => {
                tracing::info!("{text}");
                severity::INFO
            }
        };
        self.seq += 1;
        self.lines.push_back((self.seq, level, wall, text));
        if self.lines.len() > KEPT {
            self.lines.pop_front();
        }
    }

    /// The monitor has all up to this one.
    pub(crate) fn acked(&mut self, last: u64) {
        self.lines.retain(|(seq, ..)| *seq > last);
    }

    /// A new connection to a monitor: it may not have what the last one was sent.
    pub(crate) fn reconnected(&mut self) {
        self.sent = 0;
    }
}

impl OsdCore {
    /// Says something in the cluster log, now.
    pub(crate) fn say(&mut self, level: LogLevel, text: String) {
        self.clog.say(level, text, self.now.wall);
    }

    /// Sends what is new.
    pub(crate) fn flush_log(&mut self) {
        if !self.mon.is_open()
            || self.clog.lines.back().is_none_or(|(seq, ..)| *seq <= self.clog.sent)
        {
            return;
        }
        let entry = |(seq, level, stamp, text): &(u64, u16, UTime, String)| LogEntry {
            name_kind: EntityType::Osd as u32,
            name_id: self.cfg.id.to_string(),
            rank: EntityName::osd(self.cfg.id),
            addrs: self.me.addrs.clone(),
            stamp: *stamp,
            seq: *seq,
            severity: *level,
            message: text.clone(),
            channel: "cluster".to_owned(),
        };
        let entries: Vec<LogEntry> =
            self.clog.lines.iter().filter(|(seq, ..)| *seq > self.clog.sent).map(entry).collect();
        self.clog.sent = self.clog.seq;
        self.mon.send(MLog { version: 0, fsid: self.cfg.fsid, entries });
    }
}
