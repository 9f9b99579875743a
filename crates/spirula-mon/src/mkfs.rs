//! A new cluster's first state.

use crate::mon::FIRST_GID;
use crate::osd::crush_weight_of_size;
use crate::pools::{self, NewPool};
use crate::state::{Member, State};
use crate::work::{Speaker, Work};
use spirula_auth::db::AuthDb;
use spirula_auth::rotating::ServiceKeys;
use spirula_crush::{CrushError, CrushMap};
use spirula_encoding::UTime;
use spirula_maps::osdmap::state as osd_state;
use spirula_maps::{Crush, MonMap, OsdMap};
use spirula_messages::ceph::log::severity;
use spirula_quorum::{Members, Snapshot};
use spirula_types::{AddrVec, OsdId, Uuid};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// An OSD of the new cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewOsd {
    /// Its number.
    pub id: OsdId,
    /// Its identity, also kept in its store.
    pub uuid: Uuid,
    /// Bytes it can hold; gives its CRUSH weight.
    pub size_bytes: u64,
    /// Host it is on, by CRUSH's name.
    pub host: String,
    /// `hdd`, `ssd`, `nvme`, or empty for none.
    pub device_class: String,
}

/// A founding monitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMon {
    /// Name without kind.
    pub name: String,
    /// Where it listens.
    pub addrs: AddrVec,
    /// Its store's identity.
    pub uuid: Uuid,
}

/// A pool of the new cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InitialPool {
    /// Name.
    pub name: String,
    /// PGs; 0 takes the default.
    pub pg_num: u32,
    /// Copies; 0 takes the default.
    pub size: u8,
    /// Application, or empty.
    pub application: String,
}

/// What the new cluster is made of.
#[derive(Clone, Debug)]
pub struct MkfsParams {
    /// Its identity.
    pub fsid: Uuid,
    /// The founding monitors, at least one.
    pub mons: Vec<NewMon>,
    /// The OSDs.
    pub osds: Vec<NewOsd>,
    /// CRUSH type the copies spread over (`host`, `osd`).
    pub failure_domain: String,
    /// Options that differ in this cluster (`osd_pool_default_size`, …), weaker than any set
    /// by a command.
    pub defaults: BTreeMap<String, String>,
    /// Pools to start with.
    pub pools: Vec<InitialPool>,
    /// The first users: the administrator, the daemons.
    pub users: AuthDb,
    /// First keys of the services.
    pub service_keys: ServiceKeys,
}

/// Why a cluster of that kind cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum MkfsError {
    /// No monitor was given.
    #[error("a cluster needs a monitor")]
    NoMon,
    /// The CRUSH map cannot be built.
    #[error("CRUSH map: {0}")]
    Crush(#[from] CrushError),
    /// A pool cannot be made.
    #[error("pool '{0}': {1}")]
    Pool(String, String),
    /// Two OSDs with one number, or a negative one.
    #[error("osd.{0} is given twice or is no OSD number")]
    Osd(OsdId),
    /// The maps contradict each other; a defect.
    #[error("first maps: {0}")]
    Maps(String),
}

/// What every founding monitor's store starts with. The monitors' member numbers are 1 and up
/// in the order given.
///
/// # Errors
/// [`MkfsError`].
pub fn mkfs(p: &MkfsParams, now: UTime) -> Result<Snapshot, MkfsError> {
    let state = initial_state(p, now)?;
    let members = Members { voters: state.members.keys().copied().collect(), ..Members::default() };
    Ok(Snapshot { index: 1, term: 1, members, data: state.to_bytes() })
}

pub(crate) fn initial_state(p: &MkfsParams, now: UTime) -> Result<State, MkfsError> {
    let first = p.mons.first().ok_or(MkfsError::NoMon)?;
    let mut monmap =
        MonMap::initial(p.fsid, now, p.mons.iter().map(|m| (m.name.clone(), m.addrs.clone())));
    monmap.epoch = 1;
    let crush = first_crush(p)?;
    let mut osdmap = OsdMap::fresh(p.fsid, 1, now, Crush::new(crush));
    osdmap.set_max_osd(p.osds.iter().map(|o| o.id + 1).max().unwrap_or(0));
    for o in &p.osds {
        let i = usize::try_from(o.id).map_err(|_| MkfsError::Osd(o.id))?;
        if let (Some(s), Some(u)) = (osdmap.osd_state.get_mut(i), osdmap.osd_uuid.get_mut(i)) {
            *s = osd_state::EXISTS | osd_state::NEW;
            *u = o.uuid;
        }
    }
    osdmap.ec_profiles.insert("default".into(), first_profile(p));
    let mut state = State::new(monmap, osdmap, FIRST_GID);
    let member = |m: &NewMon| Member { name: m.name.clone(), uuid: m.uuid };
    state.members = Arc::new((1..).zip(p.mons.iter().map(member)).collect());
    state.next_member = p.mons.len() as u64 + 1;
    state.defaults = Arc::new(p.defaults.clone());
    state.auth = Arc::new(p.users.clone());
    state.service_keys = Arc::new(p.service_keys.clone());
    let speaker = Speaker { name: first.name.clone(), rank: 0, addrs: first.addrs.clone() };
    let mut work = Work::new(state, now, speaker);
    work.log(severity::INFO, format!("mkfs {}", p.fsid));
    for pool in &p.pools {
        let new = NewPool {
            name: pool.name.clone(),
            pg_num: (pool.pg_num > 0).then_some(pool.pg_num),
            size: (pool.size > 0).then_some(pool.size),
            ..NewPool::default()
        };
        let id = pools::create(&mut work, &new)
            .map_err(|(_, why)| MkfsError::Pool(pool.name.clone(), why))?;
        if !pool.application.is_empty()
            && let Some(made) = work.osd_mut().pools.get_mut(&id)
        {
            made.application_metadata.insert(pool.application.clone(), BTreeMap::new());
        }
    }
    work.fold().map_err(MkfsError::Maps)?;
    // The first stored map is the newest: nobody has seen an older one.
    let mut state = work.state;
    state.incrementals = Arc::default();
    state.fulls = Arc::default();
    Ok(state)
}

/// The erasure-code profile of pools that name none: Ceph's, except where its pools could never get
/// clean. On one machine shards spread over its OSDs, and with fewer than four of these there are
/// fewer shards.
fn first_profile(p: &MkfsParams) -> BTreeMap<String, String> {
    let m = if p.failure_domain == "osd" && p.osds.len() < 4 { "1" } else { "2" };
    let mut profile =
        vec![("k", "2"), ("m", m), ("plugin", "jerasure"), ("technique", "reed_sol_van")];
    if p.failure_domain != "host" {
        profile.push(("crush-failure-domain", p.failure_domain.as_str()));
    }
    profile.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

fn first_crush(p: &MkfsParams) -> Result<CrushMap, MkfsError> {
    let mut crush = CrushMap::new_default(&p.failure_domain)?;
    let mut seen = BTreeSet::new();
    for o in &p.osds {
        if o.id < 0 || !seen.insert(o.id) {
            return Err(MkfsError::Osd(o.id));
        }
        let place = [("root", "default"), ("host", o.host.as_str())];
        let place = place.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        crush.insert(o.id, crush_weight_of_size(o.size_bytes), &format!("osd.{}", o.id), &place)?;
        if !o.device_class.is_empty() {
            crush.set_device_class(o.id, &o.device_class)?;
        }
    }
    Ok(crush)
}
