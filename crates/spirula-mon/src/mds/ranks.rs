//! Changes of a file-system map: who gets which rank, and what becomes of one whose server is gone.
//!
//! All of it works on the map that is proposed next, whose epoch is already that of the proposal
//! ([`Work::fsmap_mut`](crate::work::Work::fsmap_mut)). A rank is always in exactly one place: with
//! a server (`up`), waiting for one (`failed`), refused to everybody (`damaged`), or not in use.
//! [`check`] says so.

use spirula_maps::{Filesystem, FsMap, MdsInfo, MdsMap, mds_flag, mds_state as state};
use spirula_types::Epoch;
use std::collections::BTreeSet;

/// What `ceph` calls a server in sentences.
pub fn human(info: &MdsInfo) -> String {
    format!("daemon mds.{}", info.name)
}

/// May a server that says it is in `from` go on to `to` by itself?
pub fn may_go(from: i32, to: i32) -> bool {
    if from == to || to == state::DAMAGED {
        return true;
    }
    match from {
        state::CREATING | state::STARTING => to == state::ACTIVE,
        state::REPLAY => matches!(to, state::RESOLVE | state::RECONNECT),
        state::RESOLVE => to == state::RECONNECT,
        state::RECONNECT => to == state::REJOIN,
        state::REJOIN => matches!(to, state::CLIENTREPLAY | state::ACTIVE),
        state::CLIENTREPLAY => to == state::ACTIVE,
        state::STOPPING => to == state::STOPPED,
        _ => false,
    }
}

/// A server that booted becomes a standby.
pub fn insert(map: &mut FsMap, info: MdsInfo) {
    let gid = info.gid;
    map.mds_roles.insert(gid, -1);
    map.standby_epochs.insert(gid, map.epoch);
    map.standby_daemons.insert(gid, info);
}

/// A standby that may serve a file system: one that would rather serve it first, then any.
fn standby_for<'a>(map: &'a FsMap, fs: &Filesystem) -> Option<&'a MdsInfo> {
    let usable = |i: &&MdsInfo| {
        let newer = fs.mds_map.is_upgradeable() || fs.mds_map.compat.understands(&i.compat);
        !i.is_laggy() && !i.is_frozen() && newer && i.compat.understands(&fs.mds_map.compat)
    };
    // Lower is better: its own, nobody's, another's.
    let rank = |i: &&MdsInfo| match i.join_fscid {
        own if own == fs.fscid => 0,
        -1 => 1,
        _ => 2,
    };
    map.standby_daemons.values().filter(usable).min_by_key(rank)
}

/// Who could take a rank over: whoever follows it, else a standby.
pub fn replacement<'a>(map: &'a FsMap, fs: &'a Filesystem, rank: i32) -> Option<&'a MdsInfo> {
    let follows = |i: &&MdsInfo| i.rank == rank && !i.is_laggy() && !i.is_frozen();
    fs.mds_map.in_state(state::STANDBY_REPLAY).find(follows).or_else(|| standby_for(map, fs))
}

/// Gives a rank to a server that [`replacement`] named.
pub fn promote(map: &mut FsMap, gid: u64, fscid: i32, rank: i32) {
    let epoch = map.epoch;
    let standby = map.standby_daemons.remove(&gid);
    map.standby_epochs.remove(&gid);
    map.mds_roles.insert(gid, fscid);
    let Some(fs) = map.by_id_mut(fscid) else { return };
    let m = &mut fs.mds_map;
    if let Some(info) = standby {
        if m.is_upgradeable() {
            m.compat.merge(&info.compat);
        }
        m.mds_info.insert(gid, info);
    }
    m.failed.remove(&rank);
    let state = if m.stopped.remove(&rank) {
        state::STARTING
    } else if m.in_ranks.contains(&rank) {
        state::REPLAY
    } else {
        state::CREATING
    };
    if let Some(info) = m.mds_info.get_mut(&gid) {
        (info.state, info.rank, info.inc) = (state, rank, i32::try_from(epoch).unwrap_or(i32::MAX));
    }
    m.inc.insert(rank, i32::try_from(epoch).unwrap_or(i32::MAX));
    m.in_ranks.insert(rank);
    m.up.insert(rank, gid);
    m.epoch = epoch;
}

/// A standby follows the server of a rank.
pub fn follow(map: &mut FsMap, gid: u64, fscid: i32, rank: i32) {
    let epoch = map.epoch;
    let Some(mut info) = map.standby_daemons.remove(&gid) else { return };
    map.standby_epochs.remove(&gid);
    map.mds_roles.insert(gid, fscid);
    let Some(fs) = map.by_id_mut(fscid) else { return };
    (info.state, info.rank) = (state::STANDBY_REPLAY, rank);
    fs.mds_map.mds_info.insert(gid, info);
    fs.mds_map.epoch = epoch;
}

/// A server is gone. `fenced`: the OSD map's epoch in which its address is blocklisted, 0 if it
/// held no rank. Its rank waits for another, which starts anew where the first had not finished to
/// make it.
pub fn erase(map: &mut FsMap, gid: u64, fenced: Epoch) {
    let epoch = map.epoch;
    map.standby_daemons.remove(&gid);
    map.standby_epochs.remove(&gid);
    let Some(fscid) = map.mds_roles.remove(&gid) else { return };
    let Some(fs) = map.by_id_mut(fscid) else { return };
    let m = &mut fs.mds_map;
    if let Some(info) = m.mds_info.remove(&gid)
        && info.holds_rank()
        && m.up.get(&info.rank) == Some(&gid)
    {
        m.up.remove(&info.rank);
        if info.state == state::CREATING {
            m.in_ranks.remove(&info.rank);
        } else {
            m.failed.insert(info.rank);
        }
        m.last_failure = epoch;
    }
    m.last_failure_osd_epoch = m.last_failure_osd_epoch.max(fenced);
    m.epoch = epoch;
}

/// A server says that what it holds is damaged: nobody gets its rank before somebody says that it
/// is repaired.
pub fn damaged(map: &mut FsMap, gid: u64, fenced: Epoch) {
    let Some((fscid, rank)) =
        map.info(gid).map(|i| i.rank).zip(map.mds_roles.get(&gid).copied()).map(|(r, f)| (f, r))
    else {
        return;
    };
    erase(map, gid, fenced);
    if let Some(fs) = map.by_id_mut(fscid)
        && fs.mds_map.failed.remove(&rank)
    {
        fs.mds_map.damaged.insert(rank);
    }
}

/// A server gave its rank up in good order. Whoever followed it is gone with it: the servers named
/// are out of the map.
pub fn stop(map: &mut FsMap, gid: u64) -> Vec<u64> {
    let epoch = map.epoch;
    let Some(fscid) = map.mds_roles.get(&gid).copied() else { return Vec::new() };
    let Some(fs) = map.by_id_mut(fscid) else { return Vec::new() };
    let m = &mut fs.mds_map;
    let Some(info) = m.mds_info.remove(&gid) else { return Vec::new() };
    m.up.remove(&info.rank);
    m.in_ranks.remove(&info.rank);
    m.stopped.insert(info.rank);
    m.epoch = epoch;
    let followers: Vec<u64> =
        m.in_state(state::STANDBY_REPLAY).filter(|i| i.rank == info.rank).map(|i| i.gid).collect();
    map.mds_roles.remove(&gid);
    for other in &followers {
        erase(map, *other, 0);
    }
    std::iter::once(gid).chain(followers).collect()
}

/// A damaged rank waits for a server again; false if it is not damaged.
pub fn repaired(map: &mut FsMap, fscid: i32, rank: i32) -> bool {
    let epoch = map.epoch;
    let Some(fs) = map.by_id_mut(fscid) else { return false };
    if !fs.mds_map.damaged.remove(&rank) {
        return false;
    }
    fs.mds_map.failed.insert(rank);
    fs.mds_map.epoch = epoch;
    true
}

/// What is to be done next about a file system's ranks, if anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A server gets a rank that waits, or a new one.
    Promote {
        /// Which server.
        gid: u64,
        /// Which rank.
        rank: i32,
        /// The rank is one more than there were.
        grows: bool,
    },
    /// The last rank's server gives it up.
    Stop {
        /// Which server.
        gid: u64,
    },
    /// A standby follows a rank's server.
    Follow {
        /// Which standby.
        gid: u64,
        /// Which rank.
        rank: i32,
    },
}

/// The next step of a file system: failed ranks first, then as many ranks as are wanted, then
/// followers.
pub fn next_step(map: &FsMap, fs: &Filesystem) -> Option<Step> {
    let m: &MdsMap = &fs.mds_map;
    let joinable = !m.has(mds_flag::NOT_JOINABLE);
    if joinable {
        for rank in &m.failed {
            if let Some(info) = replacement(map, fs, *rank) {
                return Some(Step::Promote { gid: info.gid, rank: *rank, grows: false });
            }
        }
    }
    let (is_in, wanted) = (m.in_ranks.len(), usize::try_from(m.max_mds).unwrap_or(0));
    if m.is_resizeable() {
        if is_in < wanted && joinable {
            let rank = (0..).find(|r| !m.in_ranks.contains(r))?;
            if let Some(info) = replacement(map, fs, rank) {
                return Some(Step::Promote { gid: info.gid, rank, grows: true });
            }
        } else if is_in > wanted {
            let last = *m.in_ranks.last()?;
            return m
                .of_rank(last)
                .filter(|i| i.state == state::ACTIVE)
                .map(|i| Step::Stop { gid: i.gid });
        }
    }
    if joinable && m.has(mds_flag::ALLOW_STANDBY_REPLAY) && !m.is_degraded() {
        let rank = *m.in_ranks.iter().find(|r| m.followable(**r))?;
        return standby_for(map, fs).map(|i| Step::Follow { gid: i.gid, rank });
    }
    None
}

/// What is wrong with a map, if anything: for tests and for the leader before it proposes.
///
/// # Errors
/// A sentence that says which rank or server is in no place, or in two.
pub fn check(map: &FsMap) -> Result<(), String> {
    for (gid, fscid) in &map.mds_roles {
        let standby = map.standby_daemons.contains_key(gid) && map.standby_epochs.contains_key(gid);
        let serves = map.by_id(*fscid).is_some_and(|f| f.mds_map.mds_info.contains_key(gid));
        if (*fscid == -1) != standby || (*fscid != -1) != serves {
            return Err(format!("server {gid} is not where its role {fscid} says"));
        }
    }
    let known = |gid: &u64, fscid: i32| map.mds_roles.get(gid) == Some(&fscid);
    if !map.standby_daemons.keys().all(|g| known(g, -1)) {
        return Err("a standby has no role".into());
    }
    for fs in &map.filesystems {
        let m = &fs.mds_map;
        if !m.mds_info.keys().all(|g| known(g, fs.fscid)) {
            return Err(format!("a server of {} has no role", m.fs_name));
        }
        let up: BTreeSet<i32> = m.up.keys().copied().collect();
        for rank in &m.in_ranks {
            let places = [up.contains(rank), m.failed.contains(rank), m.damaged.contains(rank)];
            if places.into_iter().filter(|p| *p).count() != 1 || m.stopped.contains(rank) {
                return Err(format!("rank {rank} of {} is in no place, or in two", m.fs_name));
            }
        }
        if !up.iter().chain(&m.failed).chain(&m.damaged).all(|r| m.in_ranks.contains(r)) {
            return Err(format!("a rank of {} is used that is not in", m.fs_name));
        }
        for (rank, gid) in &m.up {
            if !m.mds_info.get(gid).is_some_and(|i| i.rank == *rank && i.holds_rank()) {
                return Err(format!(
                    "rank {rank} of {} is with a server that does not hold it",
                    m.fs_name
                ));
            }
        }
    }
    Ok(())
}
