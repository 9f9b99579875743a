//! A batch of changes in the making: an edited copy of the state, and what is to be said
//! once it is durable.

use crate::clog::own_entry;
use crate::commands::CommandResult;
use crate::done::Done;
use crate::event::{ConnId, Peer};
use crate::quorum::{After, Ask};
use crate::state::State;
use crate::state::osdmaps::AdvanceError;
use bytes::Bytes;
use spirula_encoding::UTime;
use spirula_maps::{Crush, FsMap, OsdMap};
use spirula_messages::Message;
use spirula_messages::ceph::log::severity;
use spirula_messages::ceph::{LogEntry, MRemoveSnaps};
use spirula_types::{AddrVec, Epoch, OsdId};
use std::sync::Arc;

/// How a command came to a monitor, and so how it is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// As a command for the monitors (MMonCommand).
    Asked,
    /// By `tell` (MCommand), for this daemon.
    Told,
    /// By the manager, whom a client of its own asked for it.
    ByManager {
        /// Number of the manager's request.
        id: u64,
        /// The client.
        asker: Peer,
        /// Its capabilities may limit it.
        limited: bool,
    },
}

/// An answer that is sent when the batch is durable; some say in which epoch.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// Answer to a command.
    Command {
        /// Of the request.
        tid: u64,
        /// The command's text, echoed.
        cmd: Vec<String>,
        /// What it came to.
        result: CommandResult,
        /// How it came.
        form: Form,
    },
    /// Answer to a pool operation.
    PoolOp {
        /// Of the request.
        tid: u64,
        /// 0 or −errno.
        result: i32,
        /// New snapshot id, if one was asked for.
        data: Option<Bytes>,
    },
    /// Answer to a metadata server that wants snapshots removed.
    RemovedSnaps {
        /// Of the request.
        tid: u64,
        /// Those that are.
        removed: MRemoveSnaps,
    },
    /// An OSD's stop is recorded.
    MarkedDown(OsdId),
    /// Anything that says the same whatever the epoch.
    Ready(Message),
}

/// Who speaks in log entries.
#[derive(Clone, Debug)]
pub struct Speaker {
    /// Name without kind.
    pub name: String,
    /// Rank.
    pub rank: i64,
    /// Addresses.
    pub addrs: AddrVec,
}

/// An edited copy of the state.
#[derive(Clone, Debug)]
pub struct Work {
    /// Time of the batch.
    pub now: UTime,
    /// Everything but the OSD map, edited in place.
    pub state: State,
    /// Edited OSD map, once something touched it.
    osdmap: Option<OsdMap>,
    /// Answers, by connection.
    pub replies: Vec<(ConnId, Reply)>,
    /// OSDs to be told to stop.
    pub stops: Vec<OsdId>,
    /// What else is to be done.
    pub(crate) after: Vec<After>,
    /// Log entries and answers, put into the state's tables once for the whole batch: those
    /// tables are large, and shared until then.
    new_log: Vec<LogEntry>,
    new_done: Vec<Done>,
    speaker: Speaker,
    /// Epoch of the file-system map that this batch makes, if it changes it.
    fs_epoch: Epoch,
    /// OSD maps before this epoch are needed by nobody; 0 if that is not known.
    oldest_needed: Epoch,
    /// What was refused is of the OSD map's size, no defect.
    map_too_large: bool,
}

/// A batch on its way to the quorum.
#[derive(Debug)]
pub struct InFlight {
    /// Its number in this run of the monitor.
    pub id: u64,
    /// The requests in it, to be made again if it is lost.
    pub(crate) asks: Vec<Ask>,
    /// What else is to be done then.
    pub(crate) after: Vec<After>,
    /// The state once it is durable.
    pub state: State,
    /// What is to be said then.
    pub replies: Vec<(ConnId, Reply)>,
    /// OSDs to be told to stop then.
    pub stops: Vec<OsdId>,
    /// When it was proposed, in ticks.
    pub since: u64,
}

impl Work {
    /// Nothing edited yet.
    pub fn new(state: State, now: UTime, speaker: Speaker) -> Self {
        let fs_epoch = state.fsmap.epoch + 1;
        Self {
            now,
            state,
            fs_epoch,
            osdmap: None,
            replies: Vec::new(),
            stops: Vec::new(),
            after: Vec::new(),
            new_log: Vec::new(),
            new_done: Vec::new(),
            speaker,
            oldest_needed: 0,
            map_too_large: false,
        }
    }

    /// From which epoch on somebody needs the OSD maps; older ones may be forgotten with this
    /// batch.
    #[must_use]
    pub fn needing_maps_from(mut self, epoch: Epoch) -> Self {
        self.oldest_needed = epoch;
        self
    }

    /// The OSD map with the edits so far.
    pub fn osd(&self) -> &OsdMap {
        self.osdmap.as_ref().unwrap_or(&self.state.osdmap)
    }

    /// The OSD map, to be edited.
    pub fn osd_mut(&mut self) -> &mut OsdMap {
        self.osdmap.get_or_insert_with(|| {
            let mut map = OsdMap::clone(&self.state.osdmap);
            // Lists of one epoch only.
            map.new_removed_snaps.clear();
            map.new_purged_snaps.clear();
            map
        })
    }

    /// The file-system map, to be changed: its epoch becomes that of this batch.
    pub fn fsmap_mut(&mut self) -> &mut FsMap {
        let map = Arc::make_mut(&mut self.state.fsmap);
        map.epoch = self.fs_epoch;
        map
    }

    /// Epoch the OSD map will have if it changes.
    pub fn next_epoch(&self) -> Epoch {
        self.state.osdmap.epoch + 1
    }

    /// Edits the CRUSH map; nothing changes if `edit` fails.
    ///
    /// # Errors
    /// Those of `edit`.
    pub fn edit_crush<T, E>(
        &mut self,
        edit: impl FnOnce(&mut spirula_crush::CrushMap) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut map = spirula_crush::CrushMap::clone(self.osd().crush.map());
        let result = edit(&mut map)?;
        if map != **self.osd().crush.map() {
            self.osd_mut().crush = Crush::new(map);
        }
        Ok(result)
    }

    /// Puts the OSD map's edits, log entries and answers into the state.
    ///
    /// # Errors
    /// See [`State::advance_osdmap`].
    pub fn fold(&mut self) -> Result<(), String> {
        if !self.new_log.is_empty() {
            let log = Arc::make_mut(&mut self.state.log);
            self.new_log.drain(..).for_each(|e| log.push(e));
        }
        if !self.new_done.is_empty() {
            let done = Arc::make_mut(&mut self.state.done);
            self.new_done.drain(..).for_each(|d| done.push(d));
        }
        if self.state.fsmap.epoch == self.fs_epoch {
            let (epoch, now) = (self.fs_epoch, self.now);
            let changed =
                self.fsmap_mut().filesystems.iter_mut().filter(|f| f.mds_map.epoch == epoch);
            changed.for_each(|f| f.mds_map.modified = now);
            crate::mds::ranks::check(&self.state.fsmap)?;
        }
        match self.osdmap.take() {
            Some(mut map) => {
                map.clean_temps();
                map.clean_upmaps();
                self.state.advance_osdmap(&map, self.now, self.oldest_needed).map(|_| ()).map_err(
                    |e| {
                        self.map_too_large = matches!(e, AdvanceError::TooLarge(_));
                        e.to_string()
                    },
                )
            }
            None => Ok(()),
        }
    }

    /// None of it is done: what waits for an answer hears why.
    pub fn refuse(&mut self, why: &str) {
        self.after.clear();
        self.stops.clear();
        let (errno, text) = if self.map_too_large {
            (spirula_types::errno::EFBIG, why.to_owned())
        } else {
            (spirula_types::errno::EIO, format!("internal error: {why}"))
        };
        for (_, reply) in &mut self.replies {
            match reply {
                Reply::Command { result, .. } => {
                    *result = CommandResult::err(errno, text.clone());
                }
                Reply::PoolOp { result, .. } => *result = -errno,
                Reply::RemovedSnaps { removed, .. } => removed.snaps.clear(),
                Reply::MarkedDown(_) | Reply::Ready(_) => {}
            }
        }
    }

    /// Appends a line to the cluster log, spoken by this monitor.
    pub fn log(&mut self, severity: u16, message: impl Into<String>) {
        self.log_to("cluster", severity, message);
    }

    /// Appends a line of severity INFO.
    pub fn info(&mut self, message: impl Into<String>) {
        self.log(severity::INFO, message);
    }

    /// Appends a line to a channel.
    pub fn log_to(&mut self, channel: &str, severity: u16, message: impl Into<String>) {
        let s = &self.speaker;
        let seq = self.state.log.last() + self.new_log.len() as u64 + 1;
        let entry = own_entry(
            &s.name,
            s.rank,
            &s.addrs,
            self.now,
            seq,
            (severity, channel, message.into()),
        );
        self.log_entry(entry);
    }

    /// Appends a line spoken by someone.
    pub fn log_entry(&mut self, entry: LogEntry) {
        self.new_log.push(entry);
    }

    /// The answer that this request got before, in this batch or an earlier one.
    pub fn done_before(&self, global_id: u64, kind: u16, tid: u64) -> Option<&Done> {
        let same = |d: &&Done| (d.global_id, d.kind, d.tid) == (global_id, kind, tid);
        self.new_done.iter().find(same).or_else(|| self.state.done.find(global_id, kind, tid))
    }

    /// Keeps an answer for whoever asks again.
    pub fn keep_done(&mut self, done: Done) {
        self.new_done.push(done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_maps::MonMap;
    use spirula_messages::Body;
    use spirula_types::Uuid;

    #[test]
    fn a_batch_that_is_refused_names_no_snapshot_as_removed() {
        let osdmap = OsdMap::fresh(Uuid([3; 16]), 1, UTime::ZERO, Crush::default());
        let state = State::new(MonMap::initial(Uuid([3; 16]), UTime::ZERO, []), osdmap, 0);
        let speaker = Speaker { name: "a".into(), rank: 0, addrs: AddrVec::default() };
        let mut work = Work::new(state, UTime::ZERO, speaker);
        let removed = MRemoveSnaps { version: 0, snaps: [(1, vec![5])].into() };
        work.replies.push((7, Reply::RemovedSnaps { tid: 3, removed: removed.clone() }));
        work.replies.push((7, Reply::Ready(removed.into_message(3))));
        work.refuse("of no consequence");
        let nothing = MRemoveSnaps { version: 0, snaps: [].into() };
        assert_eq!(work.replies[0], (7, Reply::RemovedSnaps { tid: 3, removed: nothing }));
        assert!(
            matches!(&work.replies[1].1, Reply::Ready(_)),
            "what is the same whatever became of the batch"
        );
    }

    /// Who adds to a map that is too large hears so, and what to remove; it is no defect.
    #[test]
    fn who_makes_a_large_map_larger_hears_what_is_wrong() {
        let mut state = crate::state::osdmaps::tests::new().0;
        let large = crate::state::osdmaps::tests::with_crush(&state.osdmap, 8 << 20, 0);
        state.osdmap = Arc::new(spirula_maps::EncodedOsdMap::new(large));
        let speaker = Speaker { name: "a".into(), rank: 0, addrs: AddrVec::default() };
        let mut work = Work::new(state, UTime::ZERO, speaker);
        work.osd_mut().ec_profiles.insert("p".into(), Default::default());
        let why = work.fold().unwrap_err();
        work.replies.push((7, Reply::PoolOp { tid: 1, result: 0, data: None }));
        work.refuse(&why);
        assert!(
            why.starts_with("the OSD map would have 8") && why.contains("remove CRUSH buckets"),
            "{why}"
        );
        let [(_, Reply::PoolOp { result, .. })] = &work.replies[..] else {
            panic!("{:?}", work.replies.len())
        };
        assert_eq!(*result, -spirula_types::errno::EFBIG);
    }
}
