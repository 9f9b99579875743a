//! Managers: which is active, what it tells, and what follows for pools and OSDs.

use crate::event::{ConnId, Peer};
use crate::mon::Mon;
use crate::osd::seconds_between;
use crate::view::MgrKnowledge;
use crate::work::Work;
use spirula_encoding::{UTime, from_slice};
use spirula_maps::osdmap::{pool::flag, state};
use spirula_maps::{MgrMap, MgrStandby, ModuleInfo, PgDigest, ServiceMap};
use spirula_messages::ceph::log::severity;
use spirula_messages::cluster::control::{MgrBeacon, MgrDigest};
use spirula_types::names::is_daemon_name;
use spirula_types::{OsdId, PoolId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Seconds without a beacon after which a manager is given up that nobody can replace, or that is
/// not active.
const BEACON_GRACE: f64 = 30.0;
/// The same of an active one that a standby can replace: four beacons. To replace one that lives
/// costs little.
const REPLACED_AFTER: f64 = 4.0;
/// The same once its connection is gone.
const GONE_AFTER: f64 = 2.0;

/// Managers remembered whose connection is gone.
const GONE_MAX: usize = 64;

/// What is known of managers besides the map. Lost at restart, told again by beacons.
#[derive(Debug, Default)]
pub struct MgrTracker {
    /// What the active manager sent last.
    pub knowledge: MgrKnowledge,
    /// Last beacon by global id.
    beacons: BTreeMap<u64, UTime>,
    /// When the connection of a manager went away, by name, until its next beacon.
    gone: BTreeMap<String, UTime>,
    /// Over which connection the last beacon came, by global id.
    conns: BTreeMap<u64, ConnId>,
}

impl MgrTracker {
    /// The connection over which a manager says that it runs. Others may be open with its key
    /// (`ceph -n mgr.x`), which are not its own.
    pub(crate) fn conn_of(&self, gid: u64) -> Option<ConnId> {
        self.conns.get(&gid).copied()
    }

    pub(crate) fn session_closed(&mut self, conn: ConnId, peer: &Peer, now: UTime) {
        // Another one with its key may come and go (`ceph -n mgr.x -w`): that says nothing of the
        // manager.
        let own = self.conns.values().any(|c| *c == conn);
        self.conns.retain(|_, c| *c != conn);
        if own && self.gone.len() < GONE_MAX {
            tracing::debug!(mgr = peer.id, "a manager's connection went away");
            self.gone.insert(peer.id.clone(), now);
        }
    }

    /// Takes a digest in; false if it is not the active manager's or malformed.
    pub(crate) fn take_digest(&mut self, mgrmap: &MgrMap, d: MgrDigest) -> bool {
        if d.gid != mgrmap.active_gid {
            return false;
        }
        let services = match &d.service_map[..] {
            [] => Ok(ServiceMap::default()),
            map => from_slice::<ServiceMap>(map),
        };
        match from_slice::<PgDigest>(&d.digest).and_then(|digest| Ok((digest, services?))) {
            Ok((digest, services)) => {
                let MgrDigest { stamp, health, progress, .. } = d;
                self.knowledge = MgrKnowledge { digest, stamp, health, services, progress };
                true
            }
            Err(e) => {
                tracing::warn!(error = %e, "malformed digest of the manager ignored");
                false
            }
        }
    }
}

impl Mon {
    pub(crate) fn mgr_beacon(&mut self, conn: ConnId, peer: &Peer, b: MgrBeacon, work: &mut Work) {
        if b.fsid != self.fsid {
            tracing::warn!(mgr = b.name, "beacon of another cluster's manager ignored");
            return;
        }
        if b.name != peer.id || !is_daemon_name(&b.name) {
            tracing::warn!(
                peer = peer.id,
                mgr = b.name,
                "beacon in another's name, or in one that is none, ignored"
            );
            return;
        }
        self.mgr.beacons.insert(b.gid, self.steady);
        self.mgr.conns.retain(|gid, c| *c != conn || *gid == b.gid);
        self.mgr.conns.insert(b.gid, conn);
        self.mgr.gone.remove(&b.name);
        if work.state.mgr_metadata.get(&b.name) != Some(&b.metadata) {
            Arc::make_mut(&mut work.state.mgr_metadata).insert(b.name.clone(), b.metadata.clone());
        }
        let mut map = MgrMap::clone(&work.state.mgrmap);
        // A manager that comes back under its name takes the place of its former self.
        let reborn = map.active_gid != b.gid && map.active_name == b.name;
        if map.active_gid == 0 || reborn {
            map.standbys.remove(&b.gid);
            map.active_gid = b.gid;
            map.active_name.clone_from(&b.name);
            map.available = false;
            map.active_change = self.now;
            if !reborn {
                work.info(format!("Activating manager daemon {}", b.name));
            }
        }
        map.standbys.retain(|gid, s| *gid == b.gid || s.name != b.name);
        if map.active_gid == b.gid {
            if !b.commands.is_empty() && *work.state.mgr_commands != b.commands {
                work.state.mgr_commands = Arc::new(b.commands);
            }
            if b.available && !map.available {
                work.info(format!("Manager daemon {} is now available", b.name));
            }
            map.active_addrs = b.addr;
            map.available = b.available;
            map.active_mgr_features = spirula_types::features::PACIFIC;
            map.services = b.services;
            if !b.modules.is_empty() {
                let always = map.always_on_modules.get(&u32::from(spirula_maps::RELEASE_PACIFIC));
                let is_always = |m: &String| always.is_some_and(|a| a.contains(m));
                let there: std::collections::BTreeSet<String> =
                    b.modules.iter().filter(|m| !is_always(m)).cloned().collect();
                // From the first on they are those that administrators left enabled.
                if map.available_modules.is_empty() {
                    map.modules = there;
                } else {
                    map.modules.retain(|m| there.contains(m));
                }
                let info = |name: &String| ModuleInfo {
                    name: name.clone(),
                    can_run: true,
                    ..ModuleInfo::default()
                };
                map.available_modules = b.modules.iter().map(info).collect();
            }
        } else if let std::collections::btree_map::Entry::Vacant(e) = map.standbys.entry(b.gid) {
            let features = spirula_types::features::PACIFIC;
            e.insert(MgrStandby { gid: b.gid, name: b.name, features, ..MgrStandby::default() });
        }
        set_mgrmap(work, map);
    }

    /// Gives up managers that fell silent, and draws the consequences of the newest digest.
    pub(crate) fn tick_mgr(&mut self, work: &mut Work) {
        let (now, started) = (self.steady, self.judging_since);
        // Of those that are in no map nothing need be known.
        let map = &work.state.mgrmap;
        self.mgr.beacons.retain(|gid, last| {
            map.active_gid == *gid
                || map.standbys.contains_key(gid)
                || seconds_between(*last, now) <= BEACON_GRACE
        });
        let beacons = &self.mgr.beacons;
        let silent = |gid: u64, seconds: f64| {
            let last = beacons.get(&gid).copied().unwrap_or(started).max(started);
            seconds_between(last, now) > seconds
        };
        let mut map = MgrMap::clone(&work.state.mgrmap);
        map.standbys.retain(|gid, _| !silent(*gid, BEACON_GRACE));
        let replaceable = map.standbys.keys().any(|gid| !silent(*gid, REPLACED_AFTER));
        let gone = self
            .mgr
            .gone
            .get(&map.active_name)
            .is_some_and(|at| seconds_between(*at, now) > GONE_AFTER);
        let grace = if replaceable { REPLACED_AFTER } else { BEACON_GRACE };
        let failed = map.active_gid != 0 && (silent(map.active_gid, grace) || replaceable && gone);
        if failed {
            let name = map.active_name.clone();
            fail_active(&mut map, self.now);
            work.info(format!("Manager daemon {name} is unresponsive, replacing it"));
        }
        set_mgrmap(work, map);
        if !self.mgr.knowledge.stamp.is_zero() {
            let digest = &self.mgr.knowledge.digest;
            mark_full_osds(work, digest);
            mark_full_pools(work, digest);
        }
    }
}

/// Takes the active manager out of the map and promotes a standby, if there is one.
pub fn fail_active(map: &mut MgrMap, now: UTime) {
    map.active_gid = 0;
    map.active_name.clear();
    map.active_addrs = Default::default();
    map.available = false;
    map.services.clear();
    map.active_change = now;
    if let Some((gid, standby)) = map.standbys.pop_first() {
        map.active_gid = gid;
        map.active_name = standby.name;
    }
}

/// Makes `map` the manager map if it differs from the present one.
pub fn set_mgrmap(work: &mut Work, mut map: MgrMap) {
    if map != *work.state.mgrmap {
        map.epoch = work.state.mgrmap.epoch + 1;
        work.state.mgrmap = Arc::new(map);
    }
}

/// Sets each reporting OSD's full state by its use and the cluster's ratios.
fn mark_full_osds(work: &mut Work, digest: &PgDigest) {
    const ALL: u32 = state::FULL | state::BACKFILLFULL | state::NEARFULL;
    for (osd, report) in &digest.osds {
        let map = work.osd();
        if !map.exists(*osd) || report.statfs.total <= 0 {
            continue;
        }
        let used = report.statfs.used_raw() as f64 / report.statfs.total as f64;
        let bit = if used >= f64::from(map.full_ratio) {
            state::FULL
        } else if used >= f64::from(map.backfillfull_ratio) {
            state::BACKFILLFULL
        } else if used >= f64::from(map.nearfull_ratio) {
            state::NEARFULL
        } else {
            0
        };
        if map.state(*osd) & ALL != bit
            && let Some(s) =
                usize::try_from(*osd).ok().and_then(|i| work.osd_mut().osd_state.get_mut(i))
        {
            *s = (*s & !ALL) | bit;
        }
    }
}

/// Sets each pool's full flags by the OSDs its rule can choose and by its quota.
fn mark_full_pools(work: &mut Work, digest: &PgDigest) {
    let full_of = |bit: u32, work: &Work| -> BTreeSet<OsdId> {
        work.osd().osds().filter(|o| work.osd().state(*o) & bit != 0).collect()
    };
    let full = full_of(state::FULL, work);
    let backfillfull = full_of(state::BACKFILLFULL, work);
    let nearfull = full_of(state::NEARFULL, work);
    let none_full = full.is_empty() && backfillfull.is_empty() && nearfull.is_empty();
    for id in work.osd().pools.keys().copied().collect::<Vec<PoolId>>() {
        let Some(pool) = work.osd().pool(id) else { continue };
        let old = pool.flags;
        let mut new = old & !(flag::FULL | flag::BACKFILLFULL | flag::NEARFULL | flag::FULL_QUOTA);
        if !none_full {
            let osds: BTreeSet<OsdId> =
                work.osd().crush.rule_weights(u32::from(pool.crush_rule)).into_keys().collect();
            if !osds.is_disjoint(&full) {
                new |= flag::FULL;
            } else if !osds.is_disjoint(&backfillfull) {
                new |= flag::BACKFILLFULL;
            } else if !osds.is_disjoint(&nearfull) {
                new |= flag::NEARFULL;
            }
        }
        let sum = digest.pools.get(&id).map(|p| p.stat.stats.sum).unwrap_or_default();
        let over = |limit: u64, value: i64| limit > 0 && value.max(0) as u64 >= limit;
        let bytes_over = over(pool.quota_max_bytes, sum.num_bytes);
        let objects_over = over(pool.quota_max_objects, sum.num_objects);
        if bytes_over || objects_over {
            new |= flag::FULL | flag::FULL_QUOTA;
        }
        if new == old {
            continue;
        }
        let name = work.osd().pool_name(id).to_owned();
        let (max_bytes, max_objects) = (pool.quota_max_bytes, pool.quota_max_objects);
        if let Some(p) = work.osd_mut().pools.get_mut(&id) {
            p.flags = new;
        }
        if new & !old & flag::FULL_QUOTA != 0 {
            let why = match (bytes_over, objects_over) {
                (true, _) => format!("max_bytes: {}", spirula_format::bytes(max_bytes)),
                _ => format!("max_objects: {max_objects}"),
            };
            work.log(severity::WARN, format!("pool '{name}' is full (reached quota's {why})"));
        } else if old & !new & flag::FULL_QUOTA != 0 {
            work.info(format!("pool '{name}' no longer out of quota; removing NO_QUOTA flag"));
        }
    }
}
