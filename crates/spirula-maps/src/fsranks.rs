//! Questions about file-system maps: which ranks are served, which servers can serve them.

use crate::fsmap::{CompatSet, Filesystem, FsMap, MdsGid, MdsInfo, MdsMap, mds_state as state};

/// Bits of [`MdsMap::flags`].
pub mod mds_flag {
    /// No server may take a rank.
    pub const NOT_JOINABLE: u32 = 1;
    /// Snapshots may be taken.
    pub const ALLOW_SNAPS: u32 = 2;
    /// Snapshots may be taken with several ranks.
    pub const ALLOW_MULTIMDS_SNAPS: u32 = 16;
    /// Standbys follow active servers.
    pub const ALLOW_STANDBY_REPLAY: u32 = 32;
}

/// Bit of [`MdsInfo::flags`]: it is given no rank.
pub const MDS_FROZEN: u64 = 1;

impl CompatSet {
    /// A server with these features may write what needs `other`.
    pub fn understands(&self, other: &Self) -> bool {
        other.incompat.names.keys().all(|f| self.incompat.names.contains_key(f))
            && other.ro_compat.names.keys().all(|f| self.ro_compat.names.contains_key(f))
    }

    /// Needs what `other` needs, too.
    pub fn merge(&mut self, other: &Self) {
        for (own, more) in [
            (&mut self.compat, &other.compat),
            (&mut self.ro_compat, &other.ro_compat),
            (&mut self.incompat, &other.incompat),
        ] {
            for (bit, name) in &more.names {
                own.names.entry(*bit).or_insert_with(|| name.clone());
            }
            own.mask |= more.mask;
        }
    }
}

impl MdsInfo {
    /// It stayed out.
    pub fn is_laggy(&self) -> bool {
        !self.laggy_since.is_zero()
    }

    /// It is given no rank.
    pub fn is_frozen(&self) -> bool {
        self.flags & MDS_FROZEN != 0
    }

    /// It holds its rank: it does not only follow whoever does.
    pub fn holds_rank(&self) -> bool {
        self.rank >= 0 && self.state != state::STANDBY_REPLAY
    }
}

impl MdsMap {
    /// Is that bit of [`mds_flag`] set?
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Sets or clears a bit of [`mds_flag`].
    pub fn set_flag(&mut self, flag: u32, on: bool) {
        self.flags = if on { self.flags | flag } else { self.flags & !flag };
    }

    /// Whoever holds a rank.
    pub fn of_rank(&self, rank: i32) -> Option<&MdsInfo> {
        self.mds_info.get(self.up.get(&rank)?)
    }

    /// The state of whoever holds a rank.
    pub fn state_of(&self, rank: i32) -> Option<i32> {
        self.of_rank(rank).map(|i| i.state)
    }

    /// Is a rank served?
    pub fn is_active(&self, rank: i32) -> bool {
        self.state_of(rank) == Some(state::ACTIVE)
    }

    /// Servers in a state.
    pub fn in_state(&self, wanted: i32) -> impl Iterator<Item = &MdsInfo> {
        self.mds_info.values().filter(move |i| i.state == wanted)
    }

    /// A rank that was served is not served now.
    pub fn is_degraded(&self) -> bool {
        let coming = |i: &MdsInfo| (state::REPLAY..=state::CLIENTREPLAY).contains(&i.state);
        !self.failed.is_empty() || !self.damaged.is_empty() || self.mds_info.values().any(coming)
    }

    /// Ranks may be added or taken away.
    pub fn is_resizeable(&self) -> bool {
        let moving = [state::CREATING, state::STARTING, state::STOPPING];
        !self.is_degraded() && !self.mds_info.values().any(|i| moving.contains(&i.state))
    }

    /// Ranks that are served or on the way there, none of them following another.
    pub fn followable(&self, rank: i32) -> bool {
        let served = |s: i32| matches!(s, state::CLIENTREPLAY | state::ACTIVE | state::STOPPING);
        self.state_of(rank).is_some_and(served)
            && !self.in_state(state::STANDBY_REPLAY).any(|i| i.rank == rank)
    }

    /// Servers of one release may be followed by those of the next: there is but one of them.
    pub fn is_upgradeable(&self) -> bool {
        let most = usize::from(!self.has(mds_flag::ALLOW_STANDBY_REPLAY));
        self.in_ranks.len() <= most.max(1) && self.in_state(state::STANDBY_REPLAY).next().is_none()
    }

    /// Standbys that should be there; what was never said is none.
    pub fn standbys_wanted(&self) -> usize {
        usize::try_from(self.standby_count_wanted).unwrap_or(0)
    }
}

impl FsMap {
    /// A file system by id.
    pub fn by_id(&self, fscid: i32) -> Option<&Filesystem> {
        self.filesystems.iter().find(|f| f.fscid == fscid)
    }

    /// A file system by id, to be changed.
    pub fn by_id_mut(&mut self, fscid: i32) -> Option<&mut Filesystem> {
        self.filesystems.iter_mut().find(|f| f.fscid == fscid)
    }

    /// The file system that a server belongs to.
    pub fn fs_of(&self, gid: MdsGid) -> Option<&Filesystem> {
        self.by_id(*self.mds_roles.get(&gid)?)
    }

    /// What is known of a server, a standby or not.
    pub fn info(&self, gid: MdsGid) -> Option<&MdsInfo> {
        self.standby_daemons.get(&gid).or_else(|| self.fs_of(gid)?.mds_map.mds_info.get(&gid))
    }

    /// The same, to be changed. The epoch of its map becomes this map's.
    pub fn info_mut(&mut self, gid: MdsGid) -> Option<&mut MdsInfo> {
        let fscid = *self.mds_roles.get(&gid)?;
        let epoch = self.epoch;
        if let Some(info) = self.standby_daemons.get_mut(&gid) {
            self.standby_epochs.insert(gid, epoch);
            return Some(info);
        }
        let map = &mut self.filesystems.iter_mut().find(|f| f.fscid == fscid)?.mds_map;
        map.epoch = epoch;
        map.mds_info.get_mut(&gid)
    }

    /// All servers.
    pub fn servers(&self) -> impl Iterator<Item = &MdsInfo> {
        self.filesystems
            .iter()
            .flat_map(|f| f.mds_map.mds_info.values())
            .chain(self.standby_daemons.values())
    }

    /// What of this map those see who see only some file systems, `sees` of their names; `None` if
    /// that is all of it. Standbys are everybody's.
    pub fn seen_by(&self, sees: impl Fn(&str) -> bool) -> Option<Self> {
        if self.filesystems.iter().all(|f| sees(&f.mds_map.fs_name)) {
            return None;
        }
        let mut seen = self.clone();
        seen.filesystems.retain(|f| sees(&f.mds_map.fs_name));
        let left: Vec<i32> = seen.filesystems.iter().map(|f| f.fscid).chain([-1]).collect();
        seen.mds_roles.retain(|_, fscid| left.contains(fscid));
        Some(seen)
    }

    /// A server by name.
    pub fn server_named(&self, name: &str) -> Option<&MdsInfo> {
        self.servers().find(|i| i.name == name)
    }
}
