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
//! | `osdmap/full/N`, `osdmap/inc/N` | encoded OSD maps, N ten digits; a full map every so many epochs, and bytes of incrementals ([`osdmaps`]); the newest follows from the last one |
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

pub(crate) mod osdmaps;

use crate::clog::ClusterLog;
use crate::config::ConfigDb;
use crate::done::{Done, DoneTable};
use crate::kept::KeptMaps;
use crate::kv::Kv;
use crate::txn::MonTxn;
use bytes::Bytes;
use osdmaps::{full_key, inc_key, next_map};
use spirula_auth::db::AuthDb;
use spirula_auth::rotating::ServiceKeys;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime, from_slice};
use spirula_maps::{EncodedOsdMap, FsMap, MgrMap, MonMap, OsdMap};
use spirula_messages::ceph::MdsHealth;
use spirula_quorum::MemberId;
use spirula_types::{Epoch, OsdId, PgId, PoolId, Uuid};
use std::collections::BTreeMap;
use std::sync::Arc;

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

/// The durable state.
#[derive(Clone, Debug)]
pub struct State {
    /// Monitors.
    pub monmap: Arc<MonMap>,
    /// OSDs, pools, placement: the newest map.
    pub osdmap: Arc<EncodedOsdMap>,
    /// Kept incrementals by the epoch they lead to, from the oldest epoch that can be served on all
    /// of them.
    pub incrementals: Arc<KeptMaps>,
    /// Kept full maps by epoch, the newest not among them. The oldest may be from before a gap: see
    /// [`Self::settled_osdmap`].
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
    /// Descriptors of the commands that the active manager serves, as the last one told them:
    /// clients are told of them while there is none, and wait for it.
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
        fn whole<T: Encode + PartialEq>(
            txn: &mut MonTxn,
            key: &str,
            old: Option<&Arc<T>>,
            new: &Arc<T>,
        ) {
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
        let fresh =
            |o: Option<&Self>, same: fn(&Self, &Self) -> bool| o.is_none_or(|o| !same(o, self));
        if fresh(old, |a, b| Arc::ptr_eq(&a.kv, &b.kv)) {
            rows(txn, old.map(|o| &**o.kv), &self.kv, |k| format!("kv/{k}"), Bytes::clone);
        }
        if fresh(old, |a, b| Arc::ptr_eq(&a.osd_metadata, &b.osd_metadata)) {
            rows(
                txn,
                old.map(|o| &*o.osd_metadata),
                &self.osd_metadata,
                |k| format!("osd-metadata/{k}"),
                encoded,
            );
        }
        if fresh(old, |a, b| Arc::ptr_eq(&a.mgr_metadata, &b.mgr_metadata)) {
            rows(
                txn,
                old.map(|o| &*o.mgr_metadata),
                &self.mgr_metadata,
                |k| format!("mgr-metadata/{k}"),
                encoded,
            );
        }
        if fresh(old, |a, b| Arc::ptr_eq(&a.mds_metadata, &b.mds_metadata)) {
            rows(
                txn,
                old.map(|o| &*o.mds_metadata),
                &self.mds_metadata,
                |k| format!("mds-metadata/{k}"),
                encoded,
            );
        }
        if fresh(old, |a, b| Arc::ptr_eq(&a.mds_health, &b.mds_health)) {
            let value = |h: &MdsHealth| spirula_encoding::to_vec(h).into();
            rows(
                txn,
                old.map(|o| &*o.mds_health),
                &self.mds_health,
                |k| format!("mds-health/{k}"),
                value,
            );
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
            rows(
                txn,
                old.map(|o| o.done.rows()),
                self.done.rows(),
                |s| format!("done/{s:016x}"),
                value,
            );
        }
    }

    /// Every key and value, as one value: what a snapshot holds.
    pub fn to_bytes(&self) -> Bytes {
        let keys: BTreeMap<String, Bytes> =
            self.to_txn().ops.into_iter().filter_map(|(k, v)| Some((k, v?))).collect();
        spirula_encoding::to_vec(&keys).into()
    }

    /// The three tables that have the most bytes, the largest first.
    pub fn largest_tables(&self) -> Vec<(String, u64)> {
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for (key, value) in self.to_txn().ops {
            let (table, name) = split_key(&key);
            *sums.entry(table.to_owned()).or_default() +=
                (name.len() + value.map_or(0, |v| v.len())) as u64;
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

    /// Reads a state back from a store's keys.
    ///
    /// # Errors
    /// [`LoadError`] naming the key.
    pub fn load(keys: &BTreeMap<String, Bytes>) -> Result<Self, LoadError> {
        fn decode<T: Decode>(key: &str, bytes: &Bytes) -> Result<T, LoadError> {
            from_slice(bytes)
                .map_err(|e| LoadError::Bad { key: key.to_owned(), why: e.to_string() })
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
            for (key, bytes) in
                keys.range(prefix.to_owned()..).take_while(|(k, _)| k.starts_with(prefix))
            {
                let name = key.get(prefix.len()..).unwrap_or_default();
                let k = parse(name)
                    .ok_or_else(|| LoadError::Bad { key: key.clone(), why: "odd key".into() })?;
                out.insert(k, value(key, bytes)?);
            }
            Ok(out)
        }
        let raw = |_: &str, b: &Bytes| Ok(b.clone());
        let mut fulls: BTreeMap<Epoch, Bytes> =
            table(keys, "osdmap/full/", |n| n.parse().ok(), raw)?;
        let incrementals = table(keys, "osdmap/inc/", |n| n.parse().ok(), raw)?;
        let (last, bytes) =
            fulls.last_key_value().ok_or_else(|| LoadError::Missing("osdmap/full/".into()))?;
        let (last, key) = (*last, full_key(*last));
        let mut osdmap = EncodedOsdMap::from_bytes(bytes.clone())
            .map_err(|e| LoadError::Bad { key, why: e.to_string() })?;
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
            let pools =
                table(keys, prefix, |n| n.parse::<PoolId>().ok(), decode::<BTreeMap<u32, Epoch>>)?;
            Ok(pools
                .into_iter()
                .flat_map(|(p, m)| m.into_iter().map(move |(s, e)| (PgId::new(p, s), e)))
                .collect())
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
            done: Arc::new(DoneTable::from_rows(table(
                keys,
                "done/",
                |n| u64::from_str_radix(n, 16).ok(),
                decode,
            )?)),
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

/// Replaces one pool's rows.
fn apply_pool(
    slot: &mut Arc<BTreeMap<PgId, Epoch>>,
    pool: &str,
    value: Option<&Bytes>,
) -> Result<(), String> {
    let pool: PoolId = pool.parse().map_err(|_| "odd key")?;
    let rows: BTreeMap<u32, Epoch> = match value {
        Some(b) => from_slice(b).map_err(|e| e.to_string())?,
        None => BTreeMap::new(),
    };
    let map = Arc::make_mut(slot);
    let old: Vec<PgId> =
        map.range(PgId::new(pool, 0)..=PgId::new(pool, u32::MAX)).map(|(pg, _)| *pg).collect();
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
