//! Metadata servers and file systems: who serves which rank.
//!
//! The agreed state has the map of all file systems ([`FsMap`]), what servers said of themselves
//! and what they find wrong. A server says every few seconds that it is there ([`MMdsBeacon`]) and
//! in which state it is or would like to be. Its word comes back to it with the same number: at
//! once where nothing changes, else when the quorum has agreed on what follows. So a server that
//! acts by a map, or by the echo of its own wish, acts by what no change of leaders can take back.
//!
//! A server that is silent for `mds_beacon_grace` is replaced if there is a replacement; else it is
//! marked laggy, and keeps its rank until one comes. What it may still write is fenced off in the
//! same commit: the change of the OSD map that blocklists its address and the change of the
//! file-system map that takes its rank away are one entry of the quorum's log, and the map says
//! from which epoch of the OSD map on its successor may read (`last_failure_osd_epoch`).
//!
//! Silence is judged by the leader alone, by its steady clock, from when it began to lead
//! ([`MdsTracker`]); it is not in the agreed state. A word counts from when it reaches the leader,
//! not from when its turn comes: that may be long after, behind a commit that takes its time, and
//! then the beacon of one server has its turn before that of another. Time in which the leader
//! itself stood still is nobody's silence. And while it hears no server at all it replaces none:
//! then it is more likely that nothing reaches it than that all of them died.
//!
//! A server speaks for itself alone: name and number in a beacon are those that its session was let
//! in with ([`bounds::is_own`]), and what is kept of its words is bounded ([`bounds`]).
//!
//! [`ranks`] has the changes of the map, [`serve`] says who is sent which.

pub(crate) mod bounds;
pub(crate) mod ranks;
pub(crate) mod serve;

use crate::event::{ConnId, Peer};
use crate::mon::Mon;
use crate::osd::seconds_between;
use crate::quorum::Ask;
use crate::work::{Reply, Work};
use ranks::{Step, human};
use spirula_encoding::UTime;
use spirula_maps::{CompatSet, FsMap, MdsInfo, mds_flag, mds_state as state};
use spirula_messages::Body;
use spirula_messages::ceph::log::severity;
use spirula_messages::ceph::{MMdsBeacon, MMdsLoadTargets, MMdsMap, MdsHealth};
use spirula_types::{EntityAddr, EntityType, Epoch};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Servers in the map at most; a boot beyond it is ignored.
const SERVERS_MAX: usize = 1024;
/// Servers whose words are kept in mind at most: those in the map, and as many that are about to
/// come in.
const HEARD_MAX: usize = 2 * SERVERS_MAX;
/// The state in a beacon of a server that goes down on purpose.
const GONE: i32 = 0;
/// What is less, seconds, is no standing still: a beacon is due every few seconds.
const STANDS: f64 = 1.0;
/// Steps of one file system in one batch: more than it has ranks and standbys it never needs.
const STEPS_MAX: usize = 2 * SERVERS_MAX;

/// When a server was heard last.
#[derive(Clone, Copy, Debug)]
struct Heard {
    at: UTime,
    /// The number of that word. Another monitor sends the same one again until it is dealt with:
    /// that is no news.
    seq: u64,
}

/// When servers were heard last. Lost at restart and with the lead: then all count from the
/// beginning.
#[derive(Debug, Default)]
pub(crate) struct MdsTracker {
    heard: BTreeMap<u64, Heard>,
    /// Servers whose words were refused, and that this was said of.
    refused: BTreeSet<u64>,
}

impl MdsTracker {
    /// Another leader judges from now on.
    pub fn forget(&mut self) {
        self.heard.clear();
        self.refused.clear();
    }

    /// A server's word of that number came.
    fn note(&mut self, gid: u64, seq: u64, now: UTime) {
        let full = self.heard.len() >= HEARD_MAX;
        match self.heard.get_mut(&gid) {
            Some(heard) if seq > heard.seq => *heard = Heard { at: now, seq },
            Some(_) => {}
            None if full => {}
            None => {
                self.heard.insert(gid, Heard { at: now, seq });
            }
        }
    }

    /// Servers in the map of which nothing was heard count from then on, so that time in which this
    /// monitor stands still is not theirs either; those that are not in it any more are forgotten.
    fn follow(&mut self, map: &FsMap, since: UTime) {
        self.heard.retain(|gid, _| map.mds_roles.contains_key(gid));
        for gid in map.mds_roles.keys() {
            self.heard.entry(*gid).or_insert(Heard { at: since, seq: 0 });
        }
    }

    /// This monitor did not run for so many seconds.
    pub fn stood_still(&mut self, seconds: f64, now: UTime) {
        if seconds < STANDS {
            return;
        }
        let late = (seconds * 1e9) as u64;
        for Heard { at: heard, .. } in self.heard.values_mut() {
            *heard = UTime::from_nanos(heard.as_nanos().saturating_add(late).min(now.as_nanos()));
        }
    }

    /// For how many seconds a server has been silent, for a leader that judges since then.
    fn silent_for(&self, gid: u64, since: UTime, now: UTime) -> f64 {
        let heard = self.heard.get(&gid).map_or(since, |h| h.at).max(since);
        seconds_between(heard, now)
    }
}

/// Takes a server out of the map, and fences it off first if it holds a rank.
pub(crate) fn fail(work: &mut Work, gid: u64) {
    let fenced = fence(work, gid);
    ranks::erase(work.fsmap_mut(), gid, fenced);
    forget(work, gid);
}

/// Blocklists a server that holds a rank: the OSD map's epoch in which that is so; 0 if it holds
/// none.
fn fence(work: &mut Work, gid: u64) -> Epoch {
    let Some(info) = work.state.fsmap.info(gid).filter(|i| i.holds_rank()) else { return 0 };
    // Of no kind in particular, as Ceph's own code looks it up.
    let any = info
        .addrs
        .0
        .iter()
        .filter(|a| a.addr.is_some())
        .map(|a| EntityAddr { kind: EntityAddr::KIND_ANY, ..*a });
    let addrs: Vec<EntityAddr> = any.collect();
    let seconds = work.state.option_f64("mon_mds_blocklist_interval").max(60.0);
    let mut epoch = work.state.osdmap.epoch;
    for addr in addrs {
        if crate::time::fence(work, addr, seconds) {
            epoch = work.next_epoch();
        }
    }
    epoch
}

/// Forgets what a server said of itself.
fn forget(work: &mut Work, gid: u64) {
    if work.state.mds_metadata.contains_key(&gid) {
        Arc::make_mut(&mut work.state.mds_metadata).remove(&gid);
    }
    if work.state.mds_health.contains_key(&gid) {
        Arc::make_mut(&mut work.state.mds_health).remove(&gid);
    }
}

/// Gives ranks out, takes them away and has standbys follow, until nothing is to be done any more.
/// At each look a file system changes its size by one rank at most: the next change waits until the
/// servers have made this one.
pub(crate) fn assign(work: &mut Work) {
    let ids: Vec<i32> = work.state.fsmap.filesystems.iter().map(|f| f.fscid).collect();
    for fscid in ids {
        for _ in 0..STEPS_MAX {
            let map = &work.state.fsmap;
            let Some(fs) = map.by_id(fscid) else { break };
            let Some(step) = ranks::next_step(map, fs) else { break };
            let name = fs.mds_map.fs_name.clone();
            let (gid, is_in) = match &step {
                Step::Promote { gid, .. } | Step::Stop { gid } | Step::Follow { gid, .. } => {
                    (*gid, fs.mds_map.in_ranks.len())
                }
            };
            let who = map.info(gid).map(human).unwrap_or_default();
            match step {
                Step::Promote { gid, rank, grows } => {
                    let now = if grows && is_in > 0 {
                        format!(" (now has {} ranks)", is_in + 1)
                    } else {
                        String::new()
                    };
                    let standby = if grows { "" } else { "Standby " };
                    work.info(format!(
                        "{standby}{who} assigned to filesystem {name} as rank {rank}{now}"
                    ));
                    ranks::promote(work.fsmap_mut(), gid, fscid, rank);
                }
                Step::Stop { gid } => {
                    work.info(format!("stopping {who}"));
                    if let Some(info) = work.fsmap_mut().info_mut(gid) {
                        info.state = state::STOPPING;
                    }
                }
                Step::Follow { gid, rank } => ranks::follow(work.fsmap_mut(), gid, fscid, rank),
            }
        }
    }
}

/// The echo of a beacon.
fn echo(b: &MMdsBeacon, epoch: Epoch) -> Reply {
    let answer = MMdsBeacon {
        epoch: epoch.into(),
        fsid: b.fsid,
        gid: b.gid,
        state: b.state,
        seq: b.seq,
        name: b.name.clone(),
        features: spirula_types::features::PACIFIC,
        ..MMdsBeacon::default()
    };
    Reply::Ready(answer.into_message(0))
}

/// The file system that a server would rather serve, −1 for any.
fn preferred(map: &FsMap, name: &str) -> i32 {
    if name.is_empty() { -1 } else { map.by_name(name).map_or(-1, |f| f.fscid) }
}

impl Mon {
    /// A server's word has reached the leader; its turn may come much later.
    pub(crate) fn mds_heard(&mut self, ask: &Ask) {
        let Some(session) = self.sessions.get(&ask.conn).filter(|s| s.peer.kind == EntityType::Mds)
        else {
            return;
        };
        // What cannot be read is dealt with in its turn.
        let Ok(b) = MMdsBeacon::from_message(&ask.message) else { return };
        if bounds::is_own(&b, self.fsid, &session.peer)
            && bounds::refusal(&b, &session.peer).is_none()
        {
            self.mds.note(b.gid, b.seq, self.steady);
        }
    }

    /// A server says that it is there.
    pub(crate) fn mds_beacon(
        &mut self,
        conn: ConnId,
        peer: &Peer,
        mut b: MMdsBeacon,
        work: &mut Work,
    ) {
        if !bounds::is_own(&b, self.fsid, peer) {
            let (peer, number) = (&peer.id, peer.global_id);
            tracing::warn!(
                peer,
                number,
                mds = b.name,
                gid = b.gid,
                "beacon of another cluster's, or for another server, ignored"
            );
            return;
        }
        if let Some(why) = bounds::refusal(&b, peer) {
            self.mds_refuse(&b, &why, work);
            return;
        }
        bounds::cut(&mut b);
        let known = work.state.fsmap.info(b.gid).cloned();
        match known {
            Some(info) if info.name != b.name => {
                tracing::warn!(
                    mds = b.name,
                    gid = b.gid,
                    "beacon with another server's number ignored"
                );
            }
            Some(info) => self.mds_word(conn, &info, &b, work),
            None if b.state == state::BOOT => self.mds_boot(conn, peer, b, work),
            None => {
                // It was taken out of the map: an empty one tells it to start anew.
                let map = serve::empty(&work.state.fsmap);
                let (epoch, fs_name) = (map.epoch, String::new());
                let m = MMdsMap {
                    fsid: self.fsid,
                    epoch,
                    mdsmap: spirula_encoding::to_vec(&map).into(),
                    fs_name,
                };
                work.replies.push((conn, Reply::Ready(m.into_message(0))));
            }
        }
    }

    /// A server's word cannot be taken. There is no answer that it would understand: it is said
    /// where people look, once.
    fn mds_refuse(&mut self, b: &MMdsBeacon, why: &str, work: &mut Work) {
        tracing::warn!(mds = b.name, why, "beacon refused");
        if self.mds.refused.len() < SERVERS_MAX && self.mds.refused.insert(b.gid) {
            work.log(severity::WARN, format!("beacons of mds.{} are refused: {why}", b.name));
        }
    }

    /// A server started.
    fn mds_boot(&mut self, conn: ConnId, peer: &Peer, b: MMdsBeacon, work: &mut Work) {
        let former: Vec<MdsInfo> =
            work.state.fsmap.servers().filter(|i| i.name == b.name).cloned().collect();
        if work.state.fsmap.mds_roles.len() >= SERVERS_MAX + former.len() {
            tracing::warn!(mds = b.name, "too many metadata servers, one ignored");
            return;
        }
        let Ok(compat) = spirula_encoding::from_slice::<CompatSet>(&b.compat) else {
            tracing::warn!(mds = b.name, "boot with features that cannot be read ignored");
            return;
        };
        for info in former {
            work.info(format!("{} restarted", human(&info)));
            fail(work, info.gid);
        }
        self.mds.note(b.gid, b.seq, self.steady);
        let join_fscid = preferred(&work.state.fsmap, &b.fs);
        let info = MdsInfo {
            gid: b.gid,
            name: b.name.clone(),
            state: state::STANDBY,
            state_seq: b.seq,
            addrs: peer.addrs.clone(),
            features: b.features,
            join_fscid,
            compat,
            ..MdsInfo::default()
        };
        ranks::insert(work.fsmap_mut(), info);
        Arc::make_mut(&mut work.state.mds_metadata).insert(b.gid, b.facts.clone());
        self.note_health(&b, work);
        assign(work);
        work.replies.push((conn, echo(&b, work.state.fsmap.epoch)));
    }

    fn note_health(&self, b: &MMdsBeacon, work: &mut Work) {
        let known = work.state.mds_health.get(&b.gid);
        if known.unwrap_or(&MdsHealth::default()) == &b.health {
            return;
        }
        let all = Arc::make_mut(&mut work.state.mds_health);
        if b.health.metrics.is_empty() {
            all.remove(&b.gid);
        } else {
            all.insert(b.gid, b.health.clone());
        }
    }

    /// A server that is in the map says what it does, or would like to do.
    fn mds_word(&mut self, conn: ConnId, info: &MdsInfo, b: &MMdsBeacon, work: &mut Work) {
        // What is older than what it said last is no news; a boot that comes again is in the map
        // already.
        if b.seq < info.state_seq {
            return;
        }
        let gid = b.gid;
        self.note_health(b, work);
        let join_fscid = preferred(&work.state.fsmap, &b.fs);
        let map = &work.state.fsmap;
        // A wish counts from whoever has seen the newest map that concerns it: else it may be about
        // a rank that it had before.
        let newest = match map.fs_of(gid) {
            Some(fs) => fs.mds_map.epoch,
            None => map.standby_epochs.get(&gid).copied().unwrap_or_default(),
        };
        let current = u64::from(newest) == b.epoch;
        if (info.is_laggy() || info.join_fscid != join_fscid)
            && let Some(i) = work.fsmap_mut().info_mut(gid)
        {
            (i.laggy_since, i.join_fscid) = (UTime::ZERO, join_fscid);
        }
        // That it goes down, or that its rank is damaged, is true whatever it has seen.
        let is_fact = b.state == GONE || b.state == state::DAMAGED && info.holds_rank();
        if b.state != info.state && b.state != state::BOOT && (current || is_fact) {
            self.mds_wish(info, b, work);
        }
        work.replies.push((conn, echo(b, work.state.fsmap.epoch)));
    }

    /// A server would like to be in another state.
    fn mds_wish(&mut self, info: &MdsInfo, b: &MMdsBeacon, work: &mut Work) {
        let gid = b.gid;
        let fs = work
            .state
            .fsmap
            .fs_of(gid)
            .map(|f| (f.mds_map.fs_name.clone(), f.mds_map.in_ranks.len()));
        let (name, is_in) = fs.unwrap_or_default();
        match b.state {
            GONE => {
                work.info(format!("{} has gone down", human(info)));
                fail(work, gid);
                assign(work);
            }
            state::DAMAGED if info.holds_rank() => {
                work.log(
                    severity::ERROR,
                    format!("{}: rank {} of {name} is damaged", human(info), info.rank),
                );
                let fenced = fence(work, gid);
                ranks::damaged(work.fsmap_mut(), gid, fenced);
                forget(work, gid);
                assign(work);
            }
            // Whoever only follows a rank starts anew.
            state::DAMAGED => {
                fail(work, gid);
                assign(work);
            }
            _ if !ranks::may_go(info.state, b.state) => {
                let (from, to) = (state::name(info.state), state::name(b.state));
                tracing::warn!(
                    mds = b.name,
                    from,
                    to,
                    "a metadata server wants to go where it may not"
                );
            }
            state::STOPPED => {
                let left = is_in.saturating_sub(1);
                let (who, rank) = (human(info), info.rank);
                work.info(format!(
                    "{who} finished stopping rank {rank} in filesystem {name} (now \
                    has {left} ranks)"
                ));
                for gone in ranks::stop(work.fsmap_mut(), gid) {
                    forget(work, gone);
                }
                assign(work);
            }
            to => {
                if to == state::ACTIVE {
                    work.info(format!(
                        "{} is now active in filesystem {name} as rank {}",
                        human(info),
                        info.rank
                    ));
                }
                if let Some(i) = work.fsmap_mut().info_mut(gid) {
                    (i.state, i.state_seq) = (to, b.seq);
                }
                assign(work);
            }
        }
    }

    /// A server says to which ranks it moves parts of its tree.
    pub(crate) fn mds_targets(&mut self, peer: &Peer, m: &MMdsLoadTargets, work: &mut Work) {
        let own = work.state.fsmap.info(m.gid).is_some_and(|i| i.name == peer.id && i.holds_rank());
        if own
            && m.gid == peer.global_id
            && bounds::are_ranks(&m.targets)
            && work.state.fsmap.info(m.gid).is_some_and(|i| i.export_targets != m.targets)
            && let Some(i) = work.fsmap_mut().info_mut(m.gid)
        {
            i.export_targets.clone_from(&m.targets);
        }
    }

    /// Replaces servers that fell silent, and gives out what ranks there are to give.
    pub(crate) fn tick_mds(&mut self, work: &mut Work) {
        let map = work.state.fsmap.clone();
        self.mds.follow(&map, self.judging_since);
        let grace = work.state.option_f64("mds_beacon_grace").max(1.0);
        let every = work.state.option_f64("mds_beacon_interval").max(1.0);
        let (now, since) = (self.steady, self.judging_since);
        let silent: Vec<(u64, f64)> =
            map.servers().map(|i| (i.gid, self.mds.silent_for(i.gid, since, now))).collect();
        // Somebody is heard, so it is not we who hear nothing.
        let hears = silent.iter().any(|(_, s)| *s < every.max(grace / 2.0));
        for (gid, _) in silent.iter().filter(|(_, s)| *s >= grace) {
            self.mds_silent(*gid, hears, work);
        }
        for fs in &map.filesystems {
            let followers = fs.mds_map.in_state(state::STANDBY_REPLAY).count();
            let standbys = followers + map.standby_daemons.len();
            let served = fs.mds_map.in_state(state::ACTIVE).next().is_some();
            if fs.mds_map.standby_count_wanted == -1 && served && standbys > 0 {
                let next = work.fsmap_mut();
                let epoch = next.epoch;
                if let Some(f) = next.by_id_mut(fs.fscid) {
                    (f.mds_map.standby_count_wanted, f.mds_map.epoch) = (1, epoch);
                }
            }
        }
        assign(work);
    }

    fn mds_silent(&self, gid: u64, hears: bool, work: &mut Work) {
        let map = &work.state.fsmap;
        let Some(info) = map.info(gid).cloned() else { return };
        let fs = map.fs_of(gid);
        let other = fs.and_then(|f| {
            let joinable = !f.mds_map.has(mds_flag::NOT_JOINABLE);
            // Whoever follows the rank and is silent itself was judged before, or is next.
            ranks::replacement(map, f, info.rank)
                .filter(|o| joinable && o.gid != gid && !self.mds_is_silent(o.gid, work))
        });
        if info.holds_rank() {
            if hears && let Some(other) = other {
                let (who, with) = (human(&info), human(other));
                let text = format!(
                    "{who} is not responding, replacing it as rank {} with standby {with}",
                    info.rank
                );
                work.log(severity::WARN, text);
                fail(work, gid);
                work.info(format!(
                    "MDS {who} is removed because it is dead or otherwise unavailable."
                ));
                // A standby takes one rank: the next that is silent is not replaced by the same.
                assign(work);
                return;
            }
        } else if hears && !info.is_frozen() {
            fail(work, gid);
            let who = human(&info);
            work.info(format!("MDS {who} is removed because it is dead or otherwise unavailable."));
            return;
        }
        if !info.is_laggy() {
            let now = work.now;
            if let Some(i) = work.fsmap_mut().info_mut(gid) {
                i.laggy_since = now;
            }
        }
    }

    fn mds_is_silent(&self, gid: u64, work: &Work) -> bool {
        let grace = work.state.option_f64("mds_beacon_grace").max(1.0);
        self.mds.silent_for(gid, self.judging_since, self.steady) >= grace
    }
}
