//! The manager map: which manager is active, who stands by, what modules there are.

use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use spirula_types::{AddrVec, Epoch};
use std::collections::{BTreeMap, BTreeSet};

/// An option a manager module declares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleOption {
    /// Name.
    pub name: String,
    /// Ceph's option type number.
    pub kind: u8,
    /// 0 basic, 1 advanced, 2 dev.
    pub level: u8,
    /// Flag bits (1 runtime).
    pub flags: u32,
    /// Default, as text.
    pub default_value: String,
    /// Lower bound, as text; may be empty.
    pub min: String,
    /// Upper bound, as text; may be empty.
    pub max: String,
    /// Allowed words; empty for any.
    pub enum_allowed: BTreeSet<String>,
    /// One line.
    pub desc: String,
    /// More lines.
    pub long_desc: String,
    /// Tags.
    pub tags: BTreeSet<String>,
    /// Related options.
    pub see_also: BTreeSet<String>,
}

impl Encode for ModuleOption {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.name);
            o.u8(self.kind);
            o.u8(self.level);
            o.u32(self.flags);
            for s in [&self.default_value, &self.min, &self.max] {
                o.put(s);
            }
            o.put(&self.enum_allowed);
            o.put(&self.desc);
            o.put(&self.long_desc);
            o.put(&self.tags);
            o.put(&self.see_also);
        });
    }
}

impl Decode for ModuleOption {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("ModuleOption", 1, |d, _| {
            Ok(Self {
                name: d.get()?,
                kind: d.u8()?,
                level: d.u8()?,
                flags: d.u32()?,
                default_value: d.get()?,
                min: d.get()?,
                max: d.get()?,
                enum_allowed: d.get()?,
                desc: d.get()?,
                long_desc: d.get()?,
                tags: d.get()?,
                see_also: d.get()?,
            })
        })
    }
}

/// A manager module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleInfo {
    /// Name.
    pub name: String,
    /// False if its dependencies are missing.
    pub can_run: bool,
    /// Why it cannot run.
    pub error_string: String,
    /// Its options.
    pub module_options: BTreeMap<String, ModuleOption>,
}

impl Encode for ModuleInfo {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(2, 1, |o| {
            o.put(&self.name);
            o.bool(self.can_run);
            o.put(&self.error_string);
            o.put(&self.module_options);
        });
    }
}

impl Decode for ModuleInfo {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("ModuleInfo", 2, |d, v| {
            Ok(Self {
                name: d.get()?,
                can_run: d.bool()?,
                error_string: d.get()?,
                module_options: if v >= 2 { d.get()? } else { BTreeMap::new() },
            })
        })
    }
}

/// A manager that waits for its turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MgrStandby {
    /// Global id.
    pub gid: u64,
    /// Name.
    pub name: String,
    /// Modules by the old, name-only list (what an old decoder reads).
    pub old_modules: BTreeSet<String>,
    /// Modules it has.
    pub available_modules: Vec<ModuleInfo>,
    /// Its feature bits.
    pub features: u64,
}

impl Encode for MgrStandby {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(4, 1, |o| {
            o.u64(self.gid);
            o.put(&self.name);
            o.put(&self.old_modules);
            o.put(&self.available_modules);
            o.u64(self.features);
        });
    }
}

impl Decode for MgrStandby {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("StandbyInfo", 4, |d, v| {
            Ok(Self {
                gid: d.u64()?,
                name: d.get()?,
                old_modules: if v >= 2 { d.get()? } else { BTreeSet::new() },
                available_modules: if v >= 3 { d.get()? } else { Vec::new() },
                features: if v >= 4 { d.u64()? } else { 0 },
            })
        })
    }
}

/// The manager map (v12, as Pacific 16.2.15 writes it).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MgrMap {
    /// Version of this map.
    pub epoch: Epoch,
    /// Where the active manager listens.
    pub active_addrs: AddrVec,
    /// Global id of the active manager, 0 for none.
    pub active_gid: u64,
    /// The active manager answers commands.
    pub available: bool,
    /// Name of the active manager.
    pub active_name: String,
    /// Standbys by global id.
    pub standbys: BTreeMap<u64, MgrStandby>,
    /// Enabled modules.
    pub modules: BTreeSet<String>,
    /// Service name to URI.
    pub services: BTreeMap<String, String>,
    /// Modules the active manager has.
    pub available_modules: Vec<ModuleInfo>,
    /// When the active manager changed last.
    pub active_change: UTime,
    /// Modules that cannot be switched off, by release number.
    pub always_on_modules: BTreeMap<u32, BTreeSet<String>>,
    /// Features of the active manager.
    pub active_mgr_features: u64,
    /// OSD map epoch of the last manager's blocklisting.
    pub last_failure_osd_epoch: Epoch,
    /// RADOS clients inside the active manager: name and addresses, in parallel order.
    pub clients: Vec<(String, AddrVec)>,
}

impl MgrMap {
    /// The map of a cluster without a manager, with Pacific's modules.
    pub fn initial(epoch: Epoch) -> Self {
        let set = |names: &[&str]| names.iter().map(|s| (*s).to_string()).collect::<BTreeSet<_>>();
        let nautilus = set(&[
            "balancer",
            "crash",
            "devicehealth",
            "orchestrator_cli",
            "progress",
            "rbd_support",
            "status",
            "volumes",
        ]);
        let octopus = set(&[
            "balancer",
            "crash",
            "devicehealth",
            "orchestrator",
            "pg_autoscaler",
            "progress",
            "rbd_support",
            "status",
            "telemetry",
            "volumes",
        ]);
        Self {
            epoch,
            modules: set(&["iostat", "nfs", "restful"]),
            always_on_modules: BTreeMap::from([
                (14, nautilus),
                (15, octopus.clone()),
                (16, octopus),
            ]),
            ..Self::default()
        }
    }
}

impl Encode for MgrMap {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(12, 6, |o| {
            o.u32(self.epoch);
            o.put(&self.active_addrs);
            o.u64(self.active_gid);
            o.bool(self.available);
            o.put(&self.active_name);
            o.put(&self.standbys);
            o.put(&self.modules);
            o.put(&self.services);
            o.put(&self.available_modules);
            o.put(&self.active_change);
            o.put(&self.always_on_modules);
            o.u64(self.active_mgr_features);
            o.u32(self.last_failure_osd_epoch);
            o.list(&self.clients, |o, c| o.put(&c.1));
            o.list(&self.clients, |o, c| o.put(&c.0));
        });
    }
}

impl Decode for MgrMap {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("MgrMap", 12, |d, v| {
            if v < 6 {
                return Err(DecodeError::TooOld { what: "MgrMap", version: v, oldest: 6 });
            }
            let mut m = Self {
                epoch: d.u32()?,
                active_addrs: d.get()?,
                active_gid: d.u64()?,
                available: d.bool()?,
                active_name: d.get()?,
                standbys: d.get()?,
                modules: d.get()?,
                services: d.get()?,
                available_modules: d.get()?,
                ..Self::default()
            };
            if v >= 7 {
                m.active_change = d.get()?;
                m.always_on_modules = d.get()?;
            }
            if v >= 8 {
                m.active_mgr_features = d.u64()?;
            }
            if v >= 9 {
                m.last_failure_osd_epoch = d.u32()?;
            }
            if v >= 10 {
                let addrs: Vec<AddrVec> = d.get()?;
                // Names came with v12; before that the addresses are anonymous.
                let names: Vec<String> =
                    if v >= 12 { d.get()? } else { vec![String::new(); addrs.len()] };
                if names.len() != addrs.len() {
                    return Err(DecodeError::Value {
                        what: "MgrMap client names",
                        value: names.len() as i64,
                    });
                }
                m.clients = names.into_iter().zip(addrs).collect();
            }
            Ok(m)
        })
    }
}
