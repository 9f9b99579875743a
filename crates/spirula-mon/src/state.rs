//! Everything durable the monitor knows, and how it maps to keys of the store.
//!
//! A [`State`] is a value of shared parts: cloning is cheap, and a changed part is found by
//! comparing. [`State::diff`] turns two states into the batch that leads from one to the
//! other; [`State::apply`] takes such a batch in on another monitor, [`State::load`] reads a
//! whole state back. Nothing else knows the keys:
//!
//! | key | value |
//! |---|---|
//! | `monmap`, `mgrmap`, `fsmap` | the encoded map |
//! | `osdmap/full/N`, `osdmap/inc/N` | encoded OSD maps, N ten digits; a full map every [`FULL_EVERY`] epochs, and every [`FULL_BYTES`] of incrementals; the newest follows from the last one |
//! | `osdmap/keep/N` | only in batches, empty: the map that is the newest before them, of epoch N, becomes a full one that is kept |
//! | `creating/P` | seed → epoch of pool P's PGs that may still be created empty |
//! | `created/P` | seed → epoch of the one creation of pool P's PGs that was accepted (or granted last) |
//! | `config`, `auth`, `service-keys`, `mutes`, `defaults` | encoded tables |
//! | `kv/K` | value of config-key K |
//! | `osd-metadata/N`, `mgr-metadata/X`, `mds-metadata/N` | encoded text maps |
//! | `mds-health/N` | what a metadata server finds wrong, by global id |
//! | `mgr-commands` | descriptors of the commands that managers serve |
//! | `log/V` | cluster log entry of version V, sixteen hex digits |
//! | `gid-limit` | global ids below this may have been given out |
//! | `members`, `next-member` | members of the quorum by number; the next number |
//! | `done/S` | answer to a request, for whoever asks again; sixteen hex digits |

use crate::clog::ClusterLog;
use crate::config::ConfigDb;
use crate::diff;
use crate::done::{Done, DoneTable};
use crate::kept::KeptMaps;
use crate::kv::Kv;
use crate::txn::MonTxn;
use bytes::Bytes;
use spirula_auth::db::AuthDb;
use spirula_auth::rotating::ServiceKeys;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime, from_slice};
use spirula_maps::{EncodedOsdMap, FsMap, Incremental, MgrMap, MonMap, OsdMap};
use spirula_messages::ceph::MdsHealth;
use spirula_quorum::MemberId;
use spirula_types::{Epoch, OsdId, PgId, PoolId, Uuid};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A full OSD map is kept every so many epochs, besides the newest.
pub const FULL_EVERY: Epoch = 50;
/// Bytes of incrementals after which a full map is kept, whatever the epoch.
const FULL_BYTES: u64 = 16 << 20;
/// Bytes of a full map that travels in the entry of the change that makes it an old one. Whoever applies that entry has a larger one,
/// and is told to keep it: it would leave no room for the change.
const FULL_TRAVELS: usize = spirula_quorum::FRAME_MAX / 16;
/// Bytes of kept maps behind the oldest full one above which older epochs go that nobody needs, be they as many as were to be kept.
const KEEP_BYTES: u64 = 32 << 20;
/// The same for epochs that somebody needs. An OSD that comes with an older one learns of what was in between from those that saw it.
const NEEDED_BYTES: u64 = 192 << 20;
/// Bytes of a map above which nothing is added to it by command. What happens by itself (OSDs come and go) is never refused: each
/// change is an incremental of its own, and full maps need no room in the log.
pub const OSDMAP_MAX: usize = 6 << 20;

/// Facts a daemon tells about itself.
pub type Metadata = BTreeMap<String, String>;

/// A silenced health check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthMute {
    /// When it ends; zero for never.
    pub until: UTime,
    /// Stays when the check clears.
    pub sticky: bool,
    /// Summary when it was muted.
    pub summary: String,
    /// Count when it was muted: a growing count ends a mute that is not sticky.
    pub count: u64,
}

impl Encode for HealthMute {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.until);
            o.bool(self.sticky);
            o.str(&self.summary);
            o.u64(self.count);
        });
    }
}

impl Decode for HealthMute {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("HealthMute", 1, |d, _| {
            Ok(Self { until: d.get()?, sticky: d.bool()?, summary: d.get()?, count: d.u64()? })
        })
    }
}

/// Why a stored state cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A key that must be there is not.
    #[error("the monitor's store lacks key {0}")]
    Missing(String),
    /// A value is malformed.
    #[error("the monitor's store has a bad value at key {key}: {why}")]
    Bad {
        /// The key.
        key: String,
        /// What is wrong.
        why: String,
    },
}

/// Why the OSD map cannot be changed so.
#[derive(Debug, thiserror::Error)]
pub enum AdvanceError {
    /// Something was added to a map that is large already.
    #[error(
        "the OSD map would have {0} bytes, and nothing is added to one of more than {OSDMAP_MAX}: remove CRUSH buckets, rules and weight \
         sets, pools, profiles or upmaps that nobody uses (ceph osd getmap and ceph osd crush dump show what is in it)"
    )]
    TooLarge(usize),
    /// A defect: see [`diff::advance`].
    #[error("{0}")]
    Unfit(String),
}

/// The durable state.
#[derive(Clone, Debug)]
pub struct State {
    /// Monitors.
    pub monmap: Arc<MonMap>,
    /// OSDs, pools, placement: the newest map.
    pub osdmap: Arc<EncodedOsdMap>,
    /// Kept incrementals by the epoch they lead to, from the oldest epoch that can be served on all of them.
    pub incrementals: Arc<KeptMaps>,
    /// Kept full maps by epoch, the newest not among them. The oldest may be from before a gap: see [`Self::settled_osdmap`].
    pub fulls: Arc<KeptMaps>,
    /// Managers.
    pub mgrmap: Arc<MgrMap>,
    /// File systems.
    pub fsmap: Arc<FsMap>,
    /// PGs that may still be created empty, with the epoch their history starts in.
    pub creating: Arc<BTreeMap<PgId, Epoch>>,
    /// The creation of each PG that was accepted, while the PG is in `creating` the one that was
    /// granted last: epoch of its primary. PGs that came of a split are not in here.
    pub created: Arc<BTreeMap<PgId, Epoch>>,
    /// Options set by commands.
    pub config: Arc<ConfigDb>,
    /// Options set when the cluster was made, weaker than any other.
    pub defaults: Arc<BTreeMap<String, String>>,
    /// config-key.
    pub kv: Arc<Kv>,
    /// Keys and capabilities.
    pub auth: Arc<AuthDb>,
    /// Keys with which services open tickets; they rotate.
    pub service_keys: Arc<ServiceKeys>,
    /// Muted health checks.
    pub mutes: Arc<BTreeMap<String, HealthMute>>,
    /// What OSDs said about themselves.
    pub osd_metadata: Arc<BTreeMap<OsdId, Metadata>>,
    /// What managers said about themselves.
    pub mgr_metadata: Arc<BTreeMap<String, Metadata>>,
    /// What metadata servers said about themselves, by global id.
    pub mds_metadata: Arc<BTreeMap<u64, Metadata>>,
    /// What metadata servers find wrong, by global id; those that find something.
    pub mds_health: Arc<BTreeMap<u64, MdsHealth>>,
    /// Descriptors of the commands that the active manager serves, as the last one told them: clients are told of
    /// them while there is none, and wait for it.
    pub mgr_commands: Arc<Vec<String>>,
    /// Cluster log.
    pub log: Arc<ClusterLog>,
    /// Global ids below this may have been given out.
    pub gid_limit: u64,
    /// Members of the quorum.
    pub members: Arc<BTreeMap<MemberId, Member>>,
    /// Number of the next member; none is given twice.
    pub next_member: MemberId,
    /// Answers kept for whoever asks again.
    pub done: Arc<DoneTable>,
}

/// A member of the quorum: one monitor for as long as it keeps its store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// The monitor's name.
    pub name: String,
    /// Its store's identity.
    pub uuid: Uuid,
}

impl Encode for Member {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.str(&self.name);
            o.put(&self.uuid);
        });
    }
}

impl Decode for Member {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("Member", 1, |d, _| Ok(Self { name: d.get()?, uuid: d.get()? }))
    }
}

impl State {
    /// A new cluster's state.
    pub fn new(monmap: MonMap, osdmap: OsdMap, gid_limit: u64) -> Self {
        Self {
            monmap: Arc::new(monmap),
            osdmap: Arc::new(EncodedOsdMap::new(osdmap)),
            incrementals: Arc::default(),
            fulls: Arc::default(),
            mgrmap: Arc::new(MgrMap::initial(1)),
            fsmap: Arc::new(FsMap::initial(1)),
            creating: Arc::default(),
            created: Arc::default(),
            config: Arc::default(),
            defaults: Arc::default(),
            kv: Arc::default(),
            auth: Arc::default(),
            service_keys: Arc::default(),
            mutes: Arc::default(),
            osd_metadata: Arc::default(),
            mgr_metadata: Arc::default(),
            mds_metadata: Arc::default(),
            mds_health: Arc::default(),
            mgr_commands: Arc::default(),
            log: Arc::default(),
            gid_limit,
            members: Arc::default(),
            next_member: 1,
            done: Arc::default(),
        }
    }

    /// Oldest OSD map epoch that can still be served, with all that follow.
    pub fn oldest_osdmap(&self) -> Epoch {
        self.incrementals.first().map_or(self.osdmap.epoch, |e| e - 1)
    }

    /// The epoch before which every map is needed by nobody: all PGs were clean then, or later. It is the oldest that can be served, or
    /// older, where maps that are needed were too large to be kept; then the full map of it is kept beyond the gap.
    pub fn settled_osdmap(&self) -> Epoch {
        self.fulls.first().unwrap_or(self.osdmap.epoch)
    }

    /// The full OSD map of `epoch`, rebuilt from the nearest kept one before it.
    pub fn osdmap_at(&self, epoch: Epoch) -> Option<EncodedOsdMap> {
        if epoch == self.osdmap.epoch {
            return Some((*self.osdmap).clone());
        }
        if epoch < self.oldest_osdmap() {
            return None;
        }
        let (_, bytes) = self.fulls.range(..=epoch).next_back()?;
        let mut map: OsdMap = from_slice(bytes).ok()?;
        while map.epoch < epoch {
            let inc: Incremental = from_slice(self.incrementals.get(&(map.epoch + 1))?).ok()?;
            map.apply(&inc).ok()?;
        }
        (map.epoch == epoch).then(|| EncodedOsdMap::new(map))
    }

    /// Makes `edited`, a copy of the newest OSD map with changes, the newest. False if there
    /// were none. Epochs before `oldest` that are beyond the number to keep, or the bytes, go.
    ///
    /// # Errors
    /// [`AdvanceError`].
    pub fn advance_osdmap(&mut self, edited: &OsdMap, now: UTime, oldest: Epoch) -> Result<bool, AdvanceError> {
        let Some(mut inc) = diff::diff(&self.osdmap, edited, now) else { return Ok(false) };
        let next = diff::advance(&self.osdmap, &mut inc).map_err(AdvanceError::Unfit)?;
        let (before, after) = (self.osdmap.bytes().len(), next.bytes().len());
        if after > OSDMAP_MAX && after > before && diff::adds(&inc, &self.osdmap) {
            return Err(AdvanceError::TooLarge(after));
        }
        let kept = Epoch::try_from(self.option_u64("mon_min_osdmap_epochs")).unwrap_or(Epoch::MAX).max(1);
        let floor = inc.epoch.saturating_sub(kept).min(oldest);
        let unfolded = self.incrementals.bytes_from(self.fulls.last().map_or(0, |e| e + 1)..);
        if self.fulls.is_empty() || self.osdmap.epoch.is_multiple_of(FULL_EVERY) || unfolded > FULL_BYTES {
            Arc::make_mut(&mut self.fulls).insert(self.osdmap.epoch, self.osdmap.bytes().clone());
        }
        Arc::make_mut(&mut self.incrementals).insert(inc.epoch, spirula_encoding::to_vec(&inc).into());
        self.osdmap = Arc::new(next);
        self.trim_osdmaps(floor, oldest);
        Ok(true)
    }

    /// Lets go of epochs before the newest full map that leaves those from `floor` on; of more, if what is kept has many bytes: up to
    /// `oldest` first, since epochs from there on are needed.
    fn trim_osdmaps(&mut self, floor: Epoch, oldest: Epoch) {
        let until = |e: Epoch| self.fulls.range(..=e).next_back().map(|(e, _)| *e);
        // The newest full map behind which there is that much. Full maps are few, and the newest of them are looked at.
        let heavy = |bytes: u64| {
            let weight = |e: Epoch| self.fulls.bytes_from(e + 1..) + self.incrementals.bytes_from(e + 1..);
            self.fulls.keys().copied().rev().find(|e| weight(*e) >= bytes)
        };
        let settled = until(oldest).or(self.fulls.first());
        let begins = self.oldest_osdmap();
        // What was let go of once stays away, if it was needed or not.
        let not_needed = until(floor).max(heavy(KEEP_BYTES).min(settled)).max(Some(begins));
        let Some(keep) = not_needed.max(heavy(NEEDED_BYTES)) else { return };
        let Some(settled) = settled.map(|e| e.min(keep)) else { return };
        let (fulls, incs) = (Arc::make_mut(&mut self.fulls), Arc::make_mut(&mut self.incrementals));
        fulls.forget(..settled);
        if settled < keep {
            fulls.forget(settled + 1..keep);
        }
        incs.forget(..=keep);
    }

    /// The batch that leads from `old` to `self`.
    pub fn diff(&self, old: &Self) -> MonTxn {
        let mut txn = MonTxn::default();
        self.write(Some(old), &mut txn);
        txn
    }

    /// The batch that stores `self` in an empty store.
    pub fn to_txn(&self) -> MonTxn {
        let mut txn = MonTxn::default();
        self.write(None, &mut txn);
        txn
    }

    fn write(&self, old: Option<&Self>, txn: &mut MonTxn) {
        /// Stores one value under one key if it changed.
        fn whole<T: Encode + PartialEq>(txn: &mut MonTxn, key: &str, old: Option<&Arc<T>>, new: &Arc<T>) {
            if old.is_none_or(|o| !Arc::ptr_eq(o, new) && o != new) {
                txn.put_encoded(key, &**new);
            }
        }
        /// Stores what changed in a table with one key per row.
        fn rows<K: Ord, V: PartialEq>(
            txn: &mut MonTxn,
            old: Option<&BTreeMap<K, V>>,
            new: &BTreeMap<K, V>,
            key: impl Fn(&K) -> String,
            value: impl Fn(&V) -> Bytes,
        ) {
            for (k, v) in new {
                if old.and_then(|o| o.get(k)) != Some(v) {
                    txn.put(key(k), value(v));
                }
            }
            for k in old.into_iter().flatten().map(|(k, _)| k).filter(|k| !new.contains_key(*k)) {
                txn.remove(key(k));
            }
        }
        whole(txn, "monmap", old.map(|o| &o.monmap), &self.monmap);
        whole(txn, "mgrmap", old.map(|o| &o.mgrmap), &self.mgrmap);
        whole(txn, "fsmap", old.map(|o| &o.fsmap), &self.fsmap);
        whole(txn, "config", old.map(|o| &o.config), &self.config);
        whole(txn, "defaults", old.map(|o| &o.defaults), &self.defaults);
        whole(txn, "auth", old.map(|o| &o.auth), &self.auth);
        whole(txn, "service-keys", old.map(|o| &o.service_keys), &self.service_keys);
        whole(txn, "mutes", old.map(|o| &o.mutes), &self.mutes);
        whole(txn, "mgr-commands", old.map(|o| &o.mgr_commands), &self.mgr_commands);
        self.write_osdmaps(old, txn);
        let encoded = |m: &Metadata| spirula_encoding::to_vec(m).into();
        let fresh = |o: Option<&Self>, same: fn(&Self, &Self) -> bool| o.is_none_or(|o| !same(o, self));
        if fresh(old, |a, b| Arc::ptr_eq(&a.kv, &b.kv)) {
            rows(txn, old.map(|o| &**o.kv), &self.kv, |k| format!("kv/{k}"), Bytes::clone);
        }
        if fresh(old, |a, b| Arc::ptr_eq(&a.osd_metadata, &b.osd_metadata)) {
            rows(txn, old.map(|o| &*o.osd_metadata), &self.osd_metadata, |k| format!("osd-metadata/{k}"), encoded);
        }
        if fresh(old, |a, b| Arc::ptr_eq(&a.mgr_metadata, &b.mgr_metadata)) {
            rows(txn, old.map(|o| &*o.mgr_metadata), &self.mgr_metadata, |k| format!("mgr-metadata/{k}"), encoded);
        }
        if fresh(old, |a, b| Arc::ptr_eq(&a.mds_metadata, &b.mds_metadata)) {
            rows(txn, old.map(|o| &*o.mds_metadata), &self.mds_metadata, |k| format!("mds-metadata/{k}"), encoded);
        }
        if fresh(old, |a, b| Arc::ptr_eq(&a.mds_health, &b.mds_health)) {
            let value = |h: &MdsHealth| spirula_encoding::to_vec(h).into();
            rows(txn, old.map(|o| &*o.mds_health), &self.mds_health, |k| format!("mds-health/{k}"), value);
        }
        if fresh(old, |a, b| Arc::ptr_eq(&a.log, &b.log)) {
            let (was, key) = (old.map(|o| &*o.log), |v: u64| format!("log/{v:016x}"));
            self.log.stored_since(was).for_each(|(v, bytes)| txn.put(key(v), bytes.clone()));
            self.log.gone_since(was).for_each(|v| txn.remove(key(v)));
        }
        if fresh(old, |a, b| Arc::ptr_eq(&a.creating, &b.creating)) {
            let (was, is) = (old.map(|o| by_pool(&o.creating)), by_pool(&self.creating));
            let value = |m: &BTreeMap<u32, Epoch>| spirula_encoding::to_vec(m).into();
            rows(txn, was.as_ref(), &is, |p| format!("creating/{p}"), value);
        }
        if fresh(old, |a, b| Arc::ptr_eq(&a.created, &b.created)) {
            let (was, is) = (old.map(|o| by_pool(&o.created)), by_pool(&self.created));
            let value = |m: &BTreeMap<u32, Epoch>| spirula_encoding::to_vec(m).into();
            rows(txn, was.as_ref(), &is, |p| format!("created/{p}"), value);
        }
        if old.is_none_or(|o| o.gid_limit != self.gid_limit) {
            txn.put_encoded("gid-limit", &self.gid_limit);
        }
        whole(txn, "members", old.map(|o| &o.members), &self.members);
        if old.is_none_or(|o| o.next_member != self.next_member) {
            txn.put_encoded("next-member", &self.next_member);
        }
        if fresh(old, |a, b| Arc::ptr_eq(&a.done, &b.done)) {
            let value = |d: &Done| spirula_encoding::to_vec(d).into();
            rows(txn, old.map(|o| o.done.rows()), self.done.rows(), |s| format!("done/{s:016x}"), value);
        }
    }

    fn write_osdmaps(&self, old: Option<&Self>, txn: &mut MonTxn) {
        let Some(old) = old else {
            for (e, full) in self.fulls.iter() {
                txn.put(full_key(*e), full.clone());
            }
            for (e, inc) in self.incrementals.iter() {
                txn.put(inc_key(*e), inc.clone());
            }
            if self.fulls.is_empty() {
                txn.put(full_key(self.osdmap.epoch), self.osdmap.bytes().clone());
            }
            return;
        };
        if old.osdmap.epoch == self.osdmap.epoch {
            return;
        }
        for (e, full) in self.fulls.iter().filter(|(e, _)| !old.fulls.contains_key(e)) {
            if *e == old.osdmap.epoch && full.len() > FULL_TRAVELS {
                txn.put(keep_key(*e), Bytes::new());
            } else {
                txn.put(full_key(*e), full.clone());
            }
        }
        for (e, inc) in self.incrementals.range(old.osdmap.epoch + 1..) {
            txn.put(inc_key(*e), inc.clone());
        }
        for e in old.fulls.keys().filter(|e| !self.fulls.contains_key(e)) {
            txn.remove(full_key(*e));
        }
        // They go from the oldest on.
        for (e, _) in old.incrementals.range(..self.oldest_osdmap() + 1) {
            txn.remove(inc_key(*e));
        }
    }

    /// Every key and value, as one value: what a snapshot holds.
    pub fn to_bytes(&self) -> Bytes {
        let keys: BTreeMap<String, Bytes> = self.to_txn().ops.into_iter().filter_map(|(k, v)| Some((k, v?))).collect();
        spirula_encoding::to_vec(&keys).into()
    }

    /// The three tables that have the most bytes, the largest first.
    pub fn largest_tables(&self) -> Vec<(String, u64)> {
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for (key, value) in self.to_txn().ops {
            let (table, name) = split_key(&key);
            *sums.entry(table.to_owned()).or_default() += (name.len() + value.map_or(0, |v| v.len())) as u64;
        }
        let mut all: Vec<(String, u64)> = sums.into_iter().collect();
        all.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        all.truncate(3);
        all
    }

    /// A state from [`Self::to_bytes`].
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn from_bytes(bytes: &Bytes) -> Result<Self, LoadError> {
        let bad = |e: DecodeError| LoadError::Bad { key: "(all)".into(), why: e.to_string() };
        Self::load(&from_slice(bytes).map_err(bad)?)
    }

    /// Makes the changes of a batch that [`Self::diff`] made of the same state elsewhere.
    ///
    /// # Errors
    /// [`LoadError`] naming the key; the state is then of no use.
    pub fn apply(&mut self, txn: &MonTxn) -> Result<(), LoadError> {
        txn.ops.iter().try_for_each(|(key, value)| self.apply_one(key, value.as_ref()))
    }

    fn apply_one(&mut self, key: &str, value: Option<&Bytes>) -> Result<(), LoadError> {
        let bad = |why: String| LoadError::Bad { key: key.to_owned(), why };
        fn whole<T: Decode>(slot: &mut T, value: Option<&Bytes>) -> Result<(), String> {
            let value = value.ok_or("is removed")?;
            *slot = from_slice(value).map_err(|e| e.to_string())?;
            Ok(())
        }
        fn shared<T: Decode>(slot: &mut Arc<T>, value: Option<&Bytes>) -> Result<(), String> {
            let value = value.ok_or("is removed")?;
            *slot = Arc::new(from_slice(value).map_err(|e| e.to_string())?);
            Ok(())
        }
        fn row<K: Ord + Clone, V: Clone>(
            slot: &mut Arc<BTreeMap<K, V>>,
            key: Option<K>,
            value: Option<Result<V, String>>,
        ) -> Result<(), String> {
            let key = key.ok_or("odd key")?;
            let map = Arc::make_mut(slot);
            match value {
                Some(v) => map.insert(key, v?),
                None => map.remove(&key),
            };
            Ok(())
        }
        fn decoded<T: Decode>(value: Option<&Bytes>) -> Option<Result<T, String>> {
            value.map(|b| from_slice(b).map_err(|e| e.to_string()))
        }
        let (table, name) = split_key(key);
        let hex = || u64::from_str_radix(name, 16).ok();
        match table {
            "kv" => {
                let kv = Arc::make_mut(&mut self.kv);
                match value {
                    Some(value) => kv.insert(name.to_owned(), value.clone()),
                    None => kv.remove(name),
                };
                Ok(())
            }
            "monmap" => shared(&mut self.monmap, value),
            "mgrmap" => shared(&mut self.mgrmap, value),
            "fsmap" => shared(&mut self.fsmap, value),
            "config" => shared(&mut self.config, value),
            "defaults" => shared(&mut self.defaults, value),
            "auth" => shared(&mut self.auth, value),
            "service-keys" => shared(&mut self.service_keys, value),
            "mutes" => shared(&mut self.mutes, value),
            "mgr-commands" => shared(&mut self.mgr_commands, value),
            "members" => shared(&mut self.members, value),
            "gid-limit" => whole(&mut self.gid_limit, value),
            "next-member" => whole(&mut self.next_member, value),
            "osdmap/full" => self.apply_full(name.parse().ok(), value),
            "osdmap/keep" => self.apply_keep(name.parse().ok()),
            "osdmap/inc" => self.apply_incremental(name.parse().ok(), value),
            "osd-metadata" => row(&mut self.osd_metadata, name.parse().ok(), decoded(value)),
            "mgr-metadata" => row(&mut self.mgr_metadata, Some(name.to_owned()), decoded(value)),
            "mds-metadata" => row(&mut self.mds_metadata, name.parse().ok(), decoded(value)),
            "mds-health" => row(&mut self.mds_health, name.parse().ok(), decoded(value)),
            "creating" => apply_pool(&mut self.creating, name, value),
            "created" => apply_pool(&mut self.created, name, value),
            "log" => match (hex(), decoded(value)) {
                (None, _) => Err("odd key".into()),
                (Some(v), Some(entry)) => entry.map(|e| Arc::make_mut(&mut self.log).put(v, e)),
                (Some(v), None) => {
                    Arc::make_mut(&mut self.log).remove(v);
                    Ok(())
                }
            },
            "done" => match (hex(), decoded(value)) {
                (None, _) => Err("odd key".into()),
                (Some(v), Some(entry)) => entry.map(|e| Arc::make_mut(&mut self.done).put(v, e)),
                (Some(v), None) => {
                    Arc::make_mut(&mut self.done).remove(v);
                    Ok(())
                }
            },
            _ => Err("unknown key".into()),
        }
        .map_err(bad)
    }

    fn apply_full(&mut self, epoch: Option<Epoch>, value: Option<&Bytes>) -> Result<(), String> {
        let epoch = epoch.ok_or("odd key")?;
        let fulls = Arc::make_mut(&mut self.fulls);
        match value {
            Some(bytes) => fulls.insert(epoch, bytes.clone()),
            None => fulls.remove(epoch),
        }
        Ok(())
    }

    fn apply_keep(&mut self, epoch: Option<Epoch>) -> Result<(), String> {
        if epoch != Some(self.osdmap.epoch) {
            return Err(format!("the newest map has epoch {}", self.osdmap.epoch));
        }
        Arc::make_mut(&mut self.fulls).insert(self.osdmap.epoch, self.osdmap.bytes().clone());
        Ok(())
    }

    fn apply_incremental(&mut self, epoch: Option<Epoch>, value: Option<&Bytes>) -> Result<(), String> {
        let epoch = epoch.ok_or("odd key")?;
        let incs = Arc::make_mut(&mut self.incrementals);
        let Some(bytes) = value else {
            incs.remove(epoch);
            return Ok(());
        };
        incs.insert(epoch, bytes.clone());
        self.osdmap = Arc::new(next_map(&self.osdmap, epoch, bytes)?);
        Ok(())
    }

    /// Reads a state back from a store's keys.
    ///
    /// # Errors
    /// [`LoadError`] naming the key.
    pub fn load(keys: &BTreeMap<String, Bytes>) -> Result<Self, LoadError> {
        fn decode<T: Decode>(key: &str, bytes: &Bytes) -> Result<T, LoadError> {
            from_slice(bytes).map_err(|e| LoadError::Bad { key: key.to_owned(), why: e.to_string() })
        }
        fn need<T: Decode>(keys: &BTreeMap<String, Bytes>, key: &str) -> Result<T, LoadError> {
            decode(key, keys.get(key).ok_or_else(|| LoadError::Missing(key.to_owned()))?)
        }
        fn table<K: Ord, V>(
            keys: &BTreeMap<String, Bytes>,
            prefix: &str,
            parse: impl Fn(&str) -> Option<K>,
            value: impl Fn(&str, &Bytes) -> Result<V, LoadError>,
        ) -> Result<BTreeMap<K, V>, LoadError> {
            let mut out = BTreeMap::new();
            for (key, bytes) in keys.range(prefix.to_owned()..).take_while(|(k, _)| k.starts_with(prefix)) {
                let name = key.get(prefix.len()..).unwrap_or_default();
                let k = parse(name).ok_or_else(|| LoadError::Bad { key: key.clone(), why: "odd key".into() })?;
                out.insert(k, value(key, bytes)?);
            }
            Ok(out)
        }
        let raw = |_: &str, b: &Bytes| Ok(b.clone());
        let mut fulls: BTreeMap<Epoch, Bytes> = table(keys, "osdmap/full/", |n| n.parse().ok(), raw)?;
        let incrementals = table(keys, "osdmap/inc/", |n| n.parse().ok(), raw)?;
        let (last, bytes) = fulls.last_key_value().ok_or_else(|| LoadError::Missing("osdmap/full/".into()))?;
        let (last, key) = (*last, full_key(*last));
        let mut osdmap =
            EncodedOsdMap::from_bytes(bytes.clone()).map_err(|e| LoadError::Bad { key, why: e.to_string() })?;
        let incrementals: BTreeMap<Epoch, Bytes> = incrementals;
        for (epoch, inc) in incrementals.range(last + 1..) {
            let bad = |why| LoadError::Bad { key: inc_key(*epoch), why };
            osdmap = next_map(&osdmap, *epoch, inc).map_err(bad)?;
        }
        if osdmap.epoch == last && incrementals.is_empty() {
            // A new cluster's only map.
            fulls.clear();
        }
        let by_pg = |prefix: &str| -> Result<BTreeMap<PgId, Epoch>, LoadError> {
            let pools = table(keys, prefix, |n| n.parse::<PoolId>().ok(), decode::<BTreeMap<u32, Epoch>>)?;
            Ok(pools.into_iter().flat_map(|(p, m)| m.into_iter().map(move |(s, e)| (PgId::new(p, s), e))).collect())
        };
        let (creating, created) = (by_pg("creating/")?, by_pg("created/")?);
        let log = table(keys, "log/", |n| u64::from_str_radix(n, 16).ok(), decode)?;
        Ok(Self {
            monmap: Arc::new(need(keys, "monmap")?),
            osdmap: Arc::new(osdmap),
            incrementals: Arc::new(incrementals.into()),
            fulls: Arc::new(fulls.into()),
            mgrmap: Arc::new(need(keys, "mgrmap")?),
            fsmap: Arc::new(need(keys, "fsmap")?),
            creating: Arc::new(creating),
            created: Arc::new(created),
            config: Arc::new(need(keys, "config")?),
            defaults: Arc::new(need(keys, "defaults")?),
            kv: Arc::new(table(keys, "kv/", |n| Some(n.to_owned()), raw)?.into()),
            auth: Arc::new(need(keys, "auth")?),
            // Clusters made before there was authentication have none.
            service_keys: Arc::new(match keys.get("service-keys") {
                Some(bytes) => decode("service-keys", bytes)?,
                None => ServiceKeys::default(),
            }),
            mutes: Arc::new(need(keys, "mutes")?),
            osd_metadata: Arc::new(table(keys, "osd-metadata/", |n| n.parse().ok(), decode)?),
            mgr_metadata: Arc::new(table(keys, "mgr-metadata/", |n| Some(n.to_owned()), decode)?),
            mds_metadata: Arc::new(table(keys, "mds-metadata/", |n| n.parse().ok(), decode)?),
            mds_health: Arc::new(table(keys, "mds-health/", |n| n.parse().ok(), decode)?),
            // Earlier versions kept none.
            mgr_commands: Arc::new(match keys.get("mgr-commands") {
                Some(bytes) => decode("mgr-commands", bytes)?,
                None => Vec::new(),
            }),
            log: Arc::new(ClusterLog::from_entries(log)),
            gid_limit: need(keys, "gid-limit")?,
            members: Arc::new(need(keys, "members")?),
            next_member: need(keys, "next-member")?,
            done: Arc::new(DoneTable::from_rows(table(keys, "done/", |n| u64::from_str_radix(n, 16).ok(), decode)?)),
        })
    }

    /// An option's value for the cluster as a whole: set in section `section` or `global`,
    /// else the cluster's default, else the option's own. Empty for an unknown option.
    pub fn option(&self, section: &str, name: &str) -> String {
        self.config
            .get_for(section, name)
            .or_else(|| self.defaults.get(name).cloned())
            .or_else(|| crate::options::find(name).map(|o| o.default.to_owned()))
            .unwrap_or_default()
    }

    /// A monitor option as a number; 0 if it is none.
    pub fn option_f64(&self, name: &str) -> f64 {
        self.option("mon", name).parse().unwrap_or(0.0)
    }

    /// A manager's option as a number; 0 if it is none.
    pub fn option_of_mgr(&self, name: &str) -> f64 {
        self.option("mgr", name).parse().unwrap_or(0.0)
    }

    /// A monitor option as a whole number; 0 if it is none.
    pub fn option_u64(&self, name: &str) -> u64 {
        let text = self.option("mon", name);
        text.parse().unwrap_or_else(|_| text.parse::<f64>().map_or(0, |f| f.max(0.0) as u64))
    }

    /// A monitor option as yes or no.
    pub fn option_bool(&self, name: &str) -> bool {
        matches!(self.option("mon", name).as_str(), "true" | "1" | "yes" | "on")
    }
}

/// Tables with one key per row.
const ROWS: &[&str] = &[
    "kv",
    "osdmap/full",
    "osdmap/keep",
    "osdmap/inc",
    "osd-metadata",
    "mgr-metadata",
    "mds-metadata",
    "mds-health",
    "creating",
    "created",
    "log",
    "done",
];

/// A key's table, and the row's name in it: all that follows the table's name, whatever is in it.
fn split_key(key: &str) -> (&str, &str) {
    let row = |table: &&'static str| Some((*table, key.strip_prefix(*table)?.strip_prefix('/')?));
    ROWS.iter().find_map(row).unwrap_or((key, ""))
}

fn full_key(epoch: Epoch) -> String {
    format!("osdmap/full/{epoch:010}")
}

fn keep_key(epoch: Epoch) -> String {
    format!("osdmap/keep/{epoch:010}")
}

fn inc_key(epoch: Epoch) -> String {
    format!("osdmap/inc/{epoch:010}")
}

/// The map of `epoch`, made of the one before.
fn next_map(map: &EncodedOsdMap, epoch: Epoch, inc: &Bytes) -> Result<EncodedOsdMap, String> {
    let inc: Incremental = from_slice(inc).map_err(|e| e.to_string())?;
    if inc.epoch != epoch || epoch != map.epoch + 1 {
        return Err(format!("leads to epoch {}, the newest map has {}", inc.epoch, map.epoch));
    }
    let mut next = OsdMap::clone(map);
    next.apply(&inc).map_err(|e| e.to_string())?;
    Ok(EncodedOsdMap::new(next))
}

/// Replaces one pool's rows.
fn apply_pool(slot: &mut Arc<BTreeMap<PgId, Epoch>>, pool: &str, value: Option<&Bytes>) -> Result<(), String> {
    let pool: PoolId = pool.parse().map_err(|_| "odd key")?;
    let rows: BTreeMap<u32, Epoch> = match value {
        Some(b) => from_slice(b).map_err(|e| e.to_string())?,
        None => BTreeMap::new(),
    };
    let map = Arc::make_mut(slot);
    let old: Vec<PgId> = map.range(PgId::new(pool, 0)..=PgId::new(pool, u32::MAX)).map(|(pg, _)| *pg).collect();
    for pg in old {
        map.remove(&pg);
    }
    map.extend(rows.into_iter().map(|(seed, e)| (PgId::new(pool, seed), e)));
    Ok(())
}

fn by_pool(creating: &BTreeMap<PgId, Epoch>) -> BTreeMap<PoolId, BTreeMap<u32, Epoch>> {
    let mut out = BTreeMap::<_, BTreeMap<_, _>>::new();
    for (pg, e) in creating {
        out.entry(pg.pool).or_default().insert(pg.seed, *e);
    }
    out
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use spirula_maps::Crush;

    /// Goes on by `n` epochs; the maps before `needed` may go.
    fn go_on(s: &mut State, kept: &mut BTreeMap<String, Bytes>, n: u32, needed: impl Fn(Epoch) -> Epoch) {
        for _ in 0..n {
            let old = s.clone();
            let mut map = OsdMap::clone(&s.osdmap);
            map.flags ^= spirula_maps::osdmap::flags::NOOUT;
            assert!(s.advance_osdmap(&map, UTime::ZERO, needed(s.osdmap.epoch)).unwrap());
            for (key, value) in s.diff(&old).ops {
                match value {
                    Some(v) => drop(kept.insert(key, v)),
                    None => drop(kept.remove(&key)),
                }
            }
        }
    }

    pub(crate) fn new() -> (State, BTreeMap<String, Bytes>) {
        let fsid = Uuid([3; 16]);
        let monmap = MonMap::initial(fsid, UTime::ZERO, []);
        let s = State::new(monmap, OsdMap::fresh(fsid, 1, UTime::ZERO, Crush::default()), 0);
        let kept = s.to_txn().ops.into_iter().filter_map(|(k, v)| Some((k, v?))).collect();
        (s, kept)
    }

    #[test]
    fn maps_stay_bounded_over_ten_thousand_epochs_while_nobody_needs_old_ones() {
        let (mut s, mut kept) = new();
        let (mut most, mut bytes) = (0, 0);
        for _ in 0..20 {
            go_on(&mut s, &mut kept, 500, |now| now.saturating_sub(7));
            most = most.max(kept.keys().filter(|k| k.starts_with("osdmap/")).count());
            bytes = bytes.max(kept.values().map(Bytes::len).sum::<usize>());
        }
        assert_eq!(s.osdmap.epoch, 10_001);
        // 500 epochs, and up to the full map before them.
        assert!(most <= 500 + FULL_EVERY as usize + 14, "{most} maps kept");
        assert!(bytes < 600_000, "{bytes} bytes kept");
        assert_eq!(s.incrementals.len() + s.fulls.len(), kept.keys().filter(|k| k.starts_with("osdmap/")).count());
        assert!(s.osdmap_at(9_501).is_some() && s.osdmap_at(9_300).is_none());
        let again = State::load(&kept).unwrap();
        assert_eq!((again.osdmap.epoch, again.oldest_osdmap()), (10_001, s.oldest_osdmap()));
    }

    #[test]
    fn maps_that_somebody_needs_stay_and_go_when_nobody_does() {
        let (mut s, mut kept) = new();
        go_on(&mut s, &mut kept, 1200, |_| 300);
        assert!((250..=300).contains(&s.oldest_osdmap()), "{}", s.oldest_osdmap());
        // It is not known who needs what.
        go_on(&mut s, &mut kept, 10, |_| 0);
        assert!((250..=300).contains(&s.oldest_osdmap()));
        go_on(&mut s, &mut kept, 1, |now| now);
        assert!((650..=711).contains(&s.oldest_osdmap()), "{}", s.oldest_osdmap());
        for e in [s.oldest_osdmap(), 900, 1212] {
            assert_eq!(s.osdmap_at(e).unwrap().epoch, e);
        }
    }

    /// A map whose CRUSH map has so many bytes, about; each number makes another.
    pub(crate) fn with_crush(base: &OsdMap, bytes: usize, number: usize) -> OsdMap {
        let mut crush = spirula_crush::CrushMap::clone(base.crush.map());
        let name = |i: i32| format!("{number:08}{}", "n".repeat(bytes / 16 - 8 + i as usize));
        crush.type_names.extend((100..116).map(|i| (i, name(i - 100))));
        OsdMap { crush: Crush::new(crush), ..base.clone() }
    }

    fn total(maps: &KeptMaps) -> u64 {
        maps.values().map(|b| b.len() as u64).sum()
    }

    /// Changes the CRUSH map, of that many bytes; what others do with the batch comes to the same, and so does what is stored.
    fn change_crush(s: &mut State, bytes: usize, number: usize, needed: Epoch) {
        let (old, edited) = (s.clone(), with_crush(&s.osdmap, bytes, number));
        assert!(s.advance_osdmap(&edited, UTime::ZERO, needed).unwrap());
        let txn = s.diff(&old);
        let size: usize = txn.ops.iter().filter_map(|(_, v)| Some(v.as_ref()?.len())).sum();
        assert!(size < spirula_quorum::FRAME_MAX / 2, "an entry of {size} bytes");
        let mut other = old;
        other.apply(&txn).unwrap();
        assert_eq!(other.osdmap.bytes(), s.osdmap.bytes());
        let all =
            |s: &State| s.fulls.iter().chain(s.incrementals.iter()).map(|(e, b)| (*e, b.clone())).collect::<Vec<_>>();
        assert!(all(&other) == all(s), "another monitor keeps other maps");
        assert_eq!(total(&s.incrementals), s.incrementals.bytes_from(0..));
    }

    /// Maps of megabytes are kept by their bytes: what was to be kept by number goes if nobody needs it.
    #[test]
    fn large_maps_that_nobody_needs_have_a_bound_in_bytes() {
        let (mut s, _) = new();
        let mut most = 0;
        for n in 0..500 {
            let needed = s.osdmap.epoch - 1;
            change_crush(&mut s, 2 << 20, n, needed);
            most = most.max(total(&s.incrementals) + total(&s.fulls));
        }
        // The newest 32 MiB, up to the full map before them, and the full maps.
        assert!(most < (32 + 16 + 3 + 9) << 20, "{most} bytes");
        assert!(s.incrementals.len() >= 15, "{}", s.incrementals.len());
        assert_eq!((s.oldest_osdmap(), s.fulls.first()), (s.settled_osdmap(), s.incrementals.first().map(|e| e - 1)));
        let again = State::from_bytes(&s.to_bytes()).unwrap();
        assert_eq!((again.osdmap.epoch, again.oldest_osdmap()), (501, s.oldest_osdmap()));
        for e in s.oldest_osdmap()..=501 {
            assert_eq!(again.osdmap_at(e).unwrap().epoch, e);
        }
        assert!(s.osdmap_at(s.oldest_osdmap() - 1).is_none());
    }

    /// Epochs that PGs need, since they are not clean, are kept much longer, but not without end. That they were needed is known as
    /// long as they are: an OSD that is told that nobody needs them forgets with whom it was.
    #[test]
    fn large_maps_that_somebody_needs_are_kept_longer_and_are_never_said_to_be_settled() {
        let (mut s, mut kept) = new();
        go_on(&mut s, &mut kept, 60, |_| 0);
        let (mut most, mut longest) = (0, 0);
        for n in 0..80 {
            change_crush(&mut s, 5 << 20, n, 55);
            most = most.max(total(&s.incrementals) + total(&s.fulls));
            if s.oldest_osdmap() <= 55 {
                longest = n;
            }
        }
        assert!(most < (192 + 16 + 6 + 24) << 20, "{most} bytes");
        assert!(longest > 26, "only {longest} changes were kept for who needs them");
        assert_eq!(s.settled_osdmap(), 50);
        let begins = s.oldest_osdmap();
        assert!(begins > 80 && s.osdmap_at(begins).is_some() && s.osdmap_at(begins - 1).is_none());
        assert!(s.osdmap_at(50).is_none(), "it leads nowhere");
        let mut again = State::from_bytes(&s.to_bytes()).unwrap();
        assert_eq!((again.settled_osdmap(), again.oldest_osdmap()), (50, begins));
        // All are clean now.
        change_crush(&mut again, 1 << 20, 999, begins);
        assert_eq!((again.settled_osdmap(), again.oldest_osdmap()), (begins, begins));
    }

    /// A store of an earlier version, that had no full map for long, since they were too large, and all incrementals.
    #[test]
    fn a_store_with_many_large_incrementals_is_read_and_gets_smaller() {
        let (mut s, _) = new();
        let (mut incs, first) = (BTreeMap::new(), s.osdmap.bytes().clone());
        for n in 0..60 {
            change_crush(&mut s, 4 << 20, n, 0);
            incs.insert(s.osdmap.epoch, s.incrementals[&s.osdmap.epoch].clone());
        }
        (s.fulls, s.incrementals) = (Arc::new(BTreeMap::from([(1, first)]).into()), Arc::new(incs.into()));
        let mut s = State::from_bytes(&s.to_bytes()).unwrap();
        assert_eq!((s.osdmap.epoch, s.oldest_osdmap(), s.osdmap_at(20).unwrap().epoch), (61, 1, 20));
        // Not at once: OSDs that were stopped with it come back to what they had.
        change_crush(&mut s, 4 << 20, 100, 55);
        assert_eq!(s.oldest_osdmap(), 1);
        for n in 0..30 {
            let needed = s.osdmap.epoch - 1;
            change_crush(&mut s, 4 << 20, 101 + n, needed);
        }
        assert!(s.oldest_osdmap() > 61 && total(&s.incrementals) < 54 << 20);
    }

    /// A map that is too large can be made smaller, and what happens by itself goes on; nothing is added to it.
    #[test]
    fn a_large_map_takes_what_makes_it_smaller_and_refuses_what_is_added() {
        let (mut s, _) = new();
        s.osdmap = Arc::new(EncodedOsdMap::new(with_crush(&s.osdmap, 8 << 20, 0)));
        let refused = |s: &mut State, map: &OsdMap| {
            let (before, why) = (s.osdmap.epoch, s.advance_osdmap(map, UTime::ZERO, 0).unwrap_err());
            assert!(
                matches!(why, AdvanceError::TooLarge(n) if n > OSDMAP_MAX) && why.to_string().contains("remove"),
                "{why}"
            );
            assert_eq!(s.osdmap.epoch, before);
        };
        let larger = with_crush(&s.osdmap, (8 << 20) + 64, 1);
        refused(&mut s, &larger);
        let mut named = OsdMap::clone(&s.osdmap);
        named.ec_profiles.insert("p".into(), BTreeMap::new());
        refused(&mut s, &named);
        let mut fenced = OsdMap::clone(&s.osdmap);
        fenced.blocklist.insert(spirula_types::EntityAddr::v2(([127, 0, 0, 1], 1).into(), 1), UTime::ZERO);
        assert!(s.advance_osdmap(&fenced, UTime::ZERO, 0).unwrap());
        assert!(s.osdmap.bytes().len() > 8 << 20);
        for bytes in [7 << 20, 6 << 20, 5 << 20] {
            let smaller = with_crush(&s.osdmap, bytes, 2);
            assert!(s.advance_osdmap(&smaller, UTime::ZERO, 0).unwrap());
        }
        let larger = with_crush(&s.osdmap, OSDMAP_MAX, 3);
        refused(&mut s, &larger);
        let fits = with_crush(&s.osdmap, OSDMAP_MAX - (64 << 10), 4);
        assert!(s.advance_osdmap(&fits, UTime::ZERO, 0).unwrap());
    }
}
