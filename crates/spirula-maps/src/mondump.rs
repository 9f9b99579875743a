//! Monitor and manager maps for people: `mon dump`, `mgr dump`.

use crate::json::object;
use crate::mgrmap::{MgrMap, ModuleInfo, ModuleOption};
use crate::monmap::MonMap;
use crate::release_name;
use crate::show::{addrs_json, addrs_text, commas, legacy_text, named_addrs_json};
use serde_json::{Map, Value};
use spirula_encoding::UTime;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

const MON_FEATURES: &[&str] = &[
    "kraken",
    "luminous",
    "mimic",
    "osdmap-prune",
    "nautilus",
    "octopus",
    "pacific",
    "elector-pinging",
    "quincy",
    "reef",
];

/// Names of monitor feature bits, lowest first.
pub fn mon_feature_names(bits: u64) -> Vec<&'static str> {
    let set = (0..64).filter(|b| bits >> b & 1 == 1);
    set.map(|b: usize| MON_FEATURES.get(b).copied().unwrap_or("unknown")).collect()
}

/// The bit of a monitor feature.
pub fn mon_feature_bit(name: &str) -> Option<u64> {
    MON_FEATURES.iter().position(|n| *n == name).map(|bit| 1 << bit)
}

/// UTC with a `Z`, as some dumps print it.
fn zulu(t: UTime) -> String {
    let iso = t.to_iso();
    iso.strip_suffix("+0000").map_or_else(|| iso.clone(), |s| format!("{s}Z"))
}

fn braces(m: &BTreeMap<String, String>) -> String {
    format!("{{{}}}", commas(m.iter().map(|(k, v)| format!("{k}={v}"))))
}

fn list(s: &BTreeSet<String>) -> Value {
    Value::Array(s.iter().map(|x| Value::from(x.as_str())).collect())
}

impl MonMap {
    /// `mon dump -f json`, less `quorum`, which the caller appends.
    pub fn dump(&self) -> Value {
        let mon = |(rank, m): (usize, &crate::MonInfo)| {
            object! {
                "rank" => rank,
                "name" => m.name.as_str(),
                "public_addrs" => addrs_json(&m.addrs),
                "addr" => legacy_text(&m.addrs),
                "public_addr" => legacy_text(&m.addrs),
                "priority" => m.priority,
                "weight" => m.weight,
                "crush_location" => braces(&m.crush_location),
            }
        };
        object! {
            "epoch" => self.epoch,
            "fsid" => self.fsid.to_string(),
            "modified" => zulu(self.last_changed),
            "created" => zulu(self.created),
            "min_mon_release" => self.min_mon_release,
            "min_mon_release_name" => release_name(self.min_mon_release),
            "election_strategy" => self.strategy,
            // The colons are Ceph's.
            "disallowed_leaders: " => commas(&self.disallowed_leaders),
            "stretch_mode" => self.stretch_mode,
            "tiebreaker_mon" => self.tiebreaker_mon.as_str(),
            "removed_ranks: " => commas(&self.removed_ranks),
            "features" => object! {
                "persistent" => mon_feature_names(self.persistent_features),
                "optional" => mon_feature_names(self.optional_features),
            },
            "mons" => Value::Array(self.iter().map(mon).collect()),
        }
    }

    /// `mon dump`, with a newline at the end.
    pub fn dump_text(&self) -> String {
        let mut o = format!("epoch {}\nfsid {}\n", self.epoch, self.fsid);
        let _ = writeln!(
            o,
            "last_changed {}\ncreated {}",
            self.last_changed.to_iso(),
            self.created.to_iso()
        );
        let _ = writeln!(
            o,
            "min_mon_release {} ({})",
            self.min_mon_release,
            release_name(self.min_mon_release)
        );
        let _ = writeln!(o, "election_strategy: {}", self.strategy);
        if self.stretch_mode {
            let _ = writeln!(o, "stretch_mode_enabled 1\ntiebreaker_mon {}", self.tiebreaker_mon);
        }
        if self.stretch_mode || !self.disallowed_leaders.is_empty() {
            let _ = writeln!(o, "disallowed_leaders {}", commas(&self.disallowed_leaders));
        }
        for (rank, m) in self.iter() {
            let _ = write!(o, "{rank}: {} mon.{}", addrs_text(&m.addrs), m.name);
            if !m.crush_location.is_empty() {
                let _ = write!(o, "; crush_location {}", braces(&m.crush_location));
            }
            o.push('\n');
        }
        o
    }
}

impl ModuleOption {
    fn dump(&self) -> Value {
        const TYPES: &[&str] = &[
            "uint",
            "int",
            "str",
            "float",
            "bool",
            "addr",
            "addrvec",
            "uuid",
            "size",
            "secs",
            "millisecs",
        ];
        const LEVELS: &[&str] = &["basic", "advanced", "dev"];
        object! {
            "name" => self.name.as_str(),
            "type" => TYPES.get(usize::from(self.kind)).copied().unwrap_or("unknown"),
            "level" => LEVELS.get(usize::from(self.level)).copied().unwrap_or("unknown"),
            "flags" => self.flags,
            "default_value" => self.default_value.as_str(),
            "min" => self.min.as_str(),
            "max" => self.max.as_str(),
            "enum_allowed" => list(&self.enum_allowed),
            "desc" => self.desc.as_str(),
            "long_desc" => self.long_desc.as_str(),
            "tags" => list(&self.tags),
            "see_also" => list(&self.see_also),
        }
    }
}

impl ModuleInfo {
    /// As `mgr dump` prints it.
    pub fn dump(&self) -> Value {
        let options = self.module_options.iter().map(|(k, v)| (k.clone(), v.dump())).collect();
        object! {
            "name" => self.name.as_str(),
            "can_run" => self.can_run,
            "error_string" => self.error_string.as_str(),
            "module_options" => Value::Object(options),
        }
    }
}

impl MgrMap {
    /// `mgr dump`.
    pub fn dump(&self) -> Value {
        let modules = |v: &[ModuleInfo]| Value::Array(v.iter().map(ModuleInfo::dump).collect());
        let standby = |s: &crate::MgrStandby| {
            object! {
                "gid" => s.gid,
                "name" => s.name.as_str(),
                "mgr_features" => s.features,
                "available_modules" => modules(&s.available_modules),
            }
        };
        let services: Map<String, Value> =
            self.services.iter().map(|(k, v)| (k.clone(), v.as_str().into())).collect();
        let always = self
            .always_on_modules
            .iter()
            .map(|(r, v)| (release_name(u8::try_from(*r).unwrap_or(0)).into(), list(v)));
        object! {
            "epoch" => self.epoch,
            "active_gid" => self.active_gid,
            "active_name" => self.active_name.as_str(),
            "active_addrs" => addrs_json(&self.active_addrs),
            "active_addr" => legacy_text(&self.active_addrs),
            "active_change" => self.active_change.to_iso(),
            "active_mgr_features" => self.active_mgr_features,
            "available" => self.available,
            "standbys" => Value::Array(self.standbys.values().map(standby).collect()),
            "modules" => list(&self.modules),
            "available_modules" => modules(&self.available_modules),
            "services" => Value::Object(services),
            "always_on_modules" => Value::Object(always.collect()),
            "last_failure_osd_epoch" => self.last_failure_osd_epoch,
            "active_clients" => Value::Array(self.clients.iter().map(|(n, a)| named_addrs_json(n, a)).collect()),
        }
    }
}
