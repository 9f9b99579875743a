//! The monitor map: who the monitors are, by name and rank.

use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use spirula_types::{AddrVec, Epoch, Uuid};
use std::collections::{BTreeMap, BTreeSet};

/// One monitor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MonInfo {
    /// Name, as the key of [`MonMap::mons`].
    pub name: String,
    /// Where it listens.
    pub addrs: AddrVec,
    /// Lower is preferred by clients.
    pub priority: u16,
    /// Share of clients among equal priorities; 0 counts as equal.
    pub weight: u16,
    /// Bucket type to bucket name (stretch clusters).
    pub crush_location: BTreeMap<String, String>,
}

impl Encode for MonInfo {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(5, 1, |o| {
            o.put(&self.name);
            o.put(&self.addrs);
            o.u16(self.priority);
            o.u16(self.weight);
            o.put(&self.crush_location);
        });
    }
}

impl Decode for MonInfo {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("mon_info_t", 6, |d, v| {
            Ok(Self {
                name: d.get()?,
                addrs: d.get()?,
                priority: if v >= 2 { d.u16()? } else { 0 },
                weight: if v >= 4 { d.u16()? } else { 0 },
                crush_location: if v >= 5 { d.get()? } else { BTreeMap::new() },
            })
        })
    }
}

/// The monitor map (v9, as Pacific writes it).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MonMap {
    /// The cluster.
    pub fsid: Uuid,
    /// Version of this map.
    pub epoch: Epoch,
    /// When this version was made.
    pub last_changed: UTime,
    /// When the cluster was made.
    pub created: UTime,
    /// Monitor features every monitor must have from now on (mon_feature_t).
    pub persistent_features: u64,
    /// Monitor features switched on but removable.
    pub optional_features: u64,
    /// Monitors by name.
    pub mons: BTreeMap<String, MonInfo>,
    /// Names by rank.
    pub ranks: Vec<String>,
    /// Oldest release a monitor may be.
    pub min_mon_release: u8,
    /// Ranks lately removed, for connectivity elections.
    pub removed_ranks: BTreeSet<u32>,
    /// Election strategy; 1 classic.
    pub strategy: u8,
    /// Monitors that may not lead.
    pub disallowed_leaders: BTreeSet<String>,
    /// Stretch mode.
    pub stretch_mode: bool,
    /// Tiebreaker in stretch mode.
    pub tiebreaker_mon: String,
    /// Monitors marked down in stretch mode.
    pub stretch_marked_down: BTreeSet<String>,
}

/// Features bits of a monitor cluster of Pacific: kraken … pacific.
pub const MON_FEATURES_PACIFIC: u64 = 255;

fn feature(o: &mut Encoder, bits: u64) {
    o.versioned(1, 1, |o| o.u64(bits));
}

fn get_feature(d: &mut Decoder<'_>) -> Result<u64, DecodeError> {
    d.versioned("mon_feature_t", 1, |d, _| d.u64())
}

impl MonMap {
    /// The first map of a cluster: epoch 0, monitors ranked in the order given.
    pub fn initial(
        fsid: Uuid,
        created: UTime,
        mons: impl IntoIterator<Item = (String, AddrVec)>,
    ) -> Self {
        let mut m = Self {
            fsid,
            last_changed: created,
            created,
            persistent_features: MON_FEATURES_PACIFIC,
            min_mon_release: crate::RELEASE_PACIFIC,
            strategy: 1,
            ..Self::default()
        };
        for (name, addrs) in mons {
            m.add(name, addrs);
        }
        m
    }

    /// Adds a monitor with the next rank (or changes the addresses of the one with that name).
    pub fn add(&mut self, name: String, addrs: AddrVec) {
        if !self.ranks.contains(&name) {
            self.ranks.push(name.clone());
        }
        let info = self.mons.entry(name.clone()).or_default();
        info.name = name;
        info.addrs = addrs;
    }

    /// Removes a monitor; later ranks move down. False if there is none of that name.
    pub fn remove(&mut self, name: &str) -> bool {
        self.ranks.retain(|n| n != name);
        self.mons.remove(name).is_some()
    }

    /// Number of monitors.
    pub fn len(&self) -> usize {
        self.mons.len()
    }

    /// True if there are no monitors.
    pub fn is_empty(&self) -> bool {
        self.mons.is_empty()
    }

    /// Rank of a name.
    pub fn rank_of(&self, name: &str) -> Option<usize> {
        self.ranks.iter().position(|n| n == name)
    }

    /// The monitor of a rank.
    pub fn by_rank(&self, rank: usize) -> Option<&MonInfo> {
        self.mons.get(self.ranks.get(rank)?)
    }

    /// Monitors in rank order.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &MonInfo)> {
        self.ranks.iter().enumerate().filter_map(|(r, n)| Some((r, self.mons.get(n)?)))
    }
}

impl Encode for MonMap {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(9, 6, |o| {
            o.put(&self.fsid);
            o.u32(self.epoch);
            o.put(&self.last_changed);
            o.put(&self.created);
            feature(o, self.persistent_features);
            feature(o, self.optional_features);
            o.put(&self.mons);
            o.put(&self.ranks);
            o.u8(self.min_mon_release);
            o.put(&self.removed_ranks);
            o.u8(self.strategy);
            o.put(&self.disallowed_leaders);
            o.bool(self.stretch_mode);
            o.put(&self.tiebreaker_mon);
            o.put(&self.stretch_marked_down);
        });
    }
}

impl Decode for MonMap {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("MonMap", 9, |d, v| {
            if v < 6 {
                return Err(DecodeError::TooOld { what: "MonMap", version: v, oldest: 6 });
            }
            let mut m = Self {
                fsid: d.get()?,
                epoch: d.u32()?,
                last_changed: d.get()?,
                created: d.get()?,
                persistent_features: get_feature(d)?,
                optional_features: get_feature(d)?,
                mons: d.get()?,
                ranks: d.get()?,
                ..Self::default()
            };
            if v >= 7 {
                m.min_mon_release = d.u8()?;
            }
            if v >= 8 {
                m.removed_ranks = d.get()?;
                m.strategy = d.u8()?;
                m.disallowed_leaders = d.get()?;
            }
            if v >= 9 {
                m.stretch_mode = d.bool()?;
                m.tiebreaker_mon = d.get()?;
                m.stretch_marked_down = d.get()?;
            }
            Ok(m)
        })
    }
}
