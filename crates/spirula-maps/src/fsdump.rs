//! File-system maps for people: `fs dump`, `fs get`, `mds stat`, plain and JSON.

use crate::fsmap::{CompatSet, FeatureSet, Filesystem, FsMap, MdsInfo, MdsMap, mds_state};
use crate::json::object;
use crate::show::{addrs_json, addrs_text, commas, legacy_text};
use serde_json::{Map, Value};
use std::fmt::Write as _;

impl FeatureSet {
    fn dump(&self) -> Value {
        Value::Object(
            self.names.iter().map(|(b, n)| (format!("feature_{b}"), n.as_str().into())).collect(),
        )
    }
    /// `{1=base v0.20,…}`.
    pub fn text(&self) -> String {
        format!("{{{}}}", commas(self.names.iter().map(|(b, n)| format!("{b}={n}"))))
    }
    /// The bits with bit 0, which is always set in memory.
    fn hex(&self) -> String {
        format!("[{:x}]", self.mask | 1)
    }
}

impl CompatSet {
    /// As Ceph dumps it.
    pub fn dump(&self) -> Value {
        object! {
            "compat" => self.compat.dump(),
            "ro_compat" => self.ro_compat.dump(),
            "incompat" => self.incompat.dump(),
        }
    }

    /// `compat={},rocompat={},incompat={1=base v0.20,…}`.
    pub fn text(&self) -> String {
        let (c, r, i) = (self.compat.text(), self.ro_compat.text(), self.incompat.text());
        format!("compat={c},rocompat={r},incompat={i}")
    }

    /// `{c=[1],r=[1],i=[7ff]}`.
    pub fn masks(&self) -> String {
        format!("{{c={},r={},i={}}}", self.compat.hex(), self.ro_compat.hex(), self.incompat.hex())
    }
}

impl MdsInfo {
    /// As Ceph dumps it.
    pub fn dump(&self) -> Value {
        let mut m = Map::new();
        let mut put = |k: &str, v: Value| m.insert(k.to_string(), v);
        put("gid", self.gid.into());
        put("name", self.name.as_str().into());
        put("rank", self.rank.into());
        put("incarnation", self.inc.into());
        put("state", mds_state::name(self.state).into());
        put("state_seq", self.state_seq.into());
        put("addr", legacy_text(&self.addrs).into());
        put("addrs", addrs_json(&self.addrs));
        put("join_fscid", self.join_fscid.into());
        if !self.laggy_since.is_zero() {
            put("laggy_since", self.laggy_since.to_iso().into());
        }
        put("export_targets", self.export_targets.iter().copied().collect::<Vec<i32>>().into());
        put("features", self.features.into());
        put("flags", self.flags.into());
        put("compat", self.compat.dump());
        Value::Object(m)
    }

    /// `[mds.a{0:5373} state up:active seq 4 addr … compat …]`.
    pub fn text(&self) -> String {
        let mut o = format!("[mds.{}{{{}:{}}}", self.name, self.rank, self.gid);
        let _ = write!(o, " state {} seq {}", mds_state::name(self.state), self.state_seq);
        if !self.laggy_since.is_zero() {
            let _ = write!(o, " laggy since {}", self.laggy_since.to_iso());
        }
        if !self.export_targets.is_empty() {
            let _ = write!(o, " export targets {}", commas(&self.export_targets));
        }
        if self.flags & 1 != 0 {
            o.push_str(" frozen");
        }
        if self.join_fscid != -1 {
            let _ = write!(o, " join_fscid={}", self.join_fscid);
        }
        let _ = write!(o, " addr {} compat {}]", addrs_text(&self.addrs), self.compat.masks());
        o
    }
}

/// Names of client features, by number.
pub const CLIENT_FEATURES: &[&str] = &[
    "reserved",
    "reserved",
    "reserved",
    "reserved",
    "reserved",
    "jewel",
    "kraken",
    "luminous",
    "mimic",
    "reply_encoding",
    "reclaim_client",
    "lazy_caps_wanted",
    "multi_reconnect",
    "deleg_ino",
    "metric_collect",
    "alternate_name",
    "notify_session_state",
    "op_getvxattr",
    "32bits_retry_fwd",
];

impl MdsMap {
    fn client_features(&self) -> Vec<(usize, &'static str)> {
        let bit = |b: usize| {
            self.required_client_features.get(b / 8).is_some_and(|x| x >> (b % 8) & 1 == 1)
        };
        let set = (0..self.required_client_features.len() * 8).filter(|b| bit(*b));
        set.map(|b| (b, CLIENT_FEATURES.get(b).copied().unwrap_or("unknown"))).collect()
    }

    /// As `fs get -f json` prints it under `mdsmap`.
    pub fn dump(&self) -> Value {
        let ranks = |s: &std::collections::BTreeSet<i32>| s.iter().copied().collect::<Vec<i32>>();
        let up = self.up.iter().map(|(r, g)| (format!("mds_{r}"), (*g).into())).collect();
        let info = self.mds_info.iter().map(|(g, i)| (format!("gid_{g}"), i.dump())).collect();
        let features = self
            .client_features()
            .into_iter()
            .map(|(b, n)| (format!("feature_{b}"), n.into()))
            .collect();
        object! {
            "epoch" => self.epoch,
            "flags" => self.flags,
            "ever_allowed_features" => self.ever_allowed_features,
            "explicitly_allowed_features" => self.explicitly_allowed_features,
            "created" => self.created.to_iso(),
            "modified" => self.modified.to_iso(),
            "tableserver" => self.tableserver,
            "root" => self.root,
            "session_timeout" => self.session_timeout,
            "session_autoclose" => self.session_autoclose,
            "required_client_features" => Value::Object(features),
            "max_file_size" => self.max_file_size,
            "last_failure" => self.last_failure,
            "last_failure_osd_epoch" => self.last_failure_osd_epoch,
            "compat" => self.compat.dump(),
            "max_mds" => self.max_mds,
            "in" => ranks(&self.in_ranks),
            "up" => Value::Object(up),
            "failed" => ranks(&self.failed),
            "damaged" => ranks(&self.damaged),
            "stopped" => ranks(&self.stopped),
            "info" => Value::Object(info),
            "data_pools" => self.data_pools.clone(),
            "metadata_pool" => self.metadata_pool,
            "enabled" => self.enabled,
            "fs_name" => self.fs_name.as_str(),
            "balancer" => self.balancer.as_str(),
            "standby_count_wanted" => self.standby_count_wanted.max(0),
        }
    }

    fn text(&self) -> String {
        let mut o = String::new();
        let mut line = |k: &str, v: &dyn std::fmt::Display| {
            let _ = writeln!(o, "{k}\t{v}");
        };
        line("fs_name", &self.fs_name);
        line("epoch", &self.epoch);
        line("flags", &format!("{:x}", self.flags));
        line("created", &self.created.to_iso());
        line("modified", &self.modified.to_iso());
        line("tableserver", &self.tableserver);
        line("root", &self.root);
        line("session_timeout", &self.session_timeout);
        line("session_autoclose", &self.session_autoclose);
        line("max_file_size", &self.max_file_size);
        let features = commas(self.client_features().into_iter().map(|(b, n)| format!("{b}={n}")));
        line("required_client_features", &format!("{{{features}}}"));
        line("last_failure", &self.last_failure);
        line("last_failure_osd_epoch", &self.last_failure_osd_epoch);
        line("compat", &self.compat.text());
        line("max_mds", &self.max_mds);
        line("in", &commas(&self.in_ranks));
        line("up", &format!("{{{}}}", commas(self.up.iter().map(|(r, g)| format!("{r}={g}")))));
        line("failed", &commas(&self.failed));
        line("damaged", &commas(&self.damaged));
        line("stopped", &commas(&self.stopped));
        line("data_pools", &format!("[{}]", commas(&self.data_pools)));
        line("metadata_pool", &self.metadata_pool);
        line("inline_data", if self.inline_data_enabled { &"enabled" } else { &"disabled" });
        line("balancer", &self.balancer);
        line("standby_count_wanted", &self.standby_count_wanted.max(0));
        let mut by_rank: Vec<&MdsInfo> = self.mds_info.values().collect();
        by_rank.sort_by_key(|i| (i.rank, i.inc.wrapping_sub(1) as u32, i.gid));
        for i in by_rank {
            let _ = writeln!(o, "{}", i.text());
        }
        o
    }
}

impl Filesystem {
    /// `fs get -f json`.
    pub fn dump(&self) -> Value {
        object! { "mdsmap" => self.mds_map.dump(), "id" => self.fscid }
    }

    /// `fs get`.
    pub fn text(&self) -> String {
        format!("Filesystem '{}' ({})\n{}", self.mds_map.fs_name, self.fscid, self.mds_map.text())
    }
}

impl FsMap {
    /// `fs dump -f json`.
    pub fn dump(&self) -> Value {
        let standby = |(gid, i): (&u64, &MdsInfo)| {
            let mut v = i.dump();
            if let Value::Object(m) = &mut v {
                m.insert("epoch".into(), self.standby_epochs.get(gid).copied().unwrap_or(0).into());
            }
            v
        };
        object! {
            "epoch" => self.epoch,
            "default_fscid" => self.legacy_client_fscid,
            "compat" => self.default_compat.dump(),
            "feature_flags" => object! {
                "enable_multiple" => self.enable_multiple,
                "ever_enabled_multiple" => self.ever_enabled_multiple,
            },
            "standbys" => Value::Array(self.standby_daemons.iter().map(standby).collect()),
            "filesystems" => Value::Array(self.filesystems.iter().map(Filesystem::dump).collect()),
        }
    }

    /// `fs dump`, with a newline at the end.
    pub fn dump_text(&self) -> String {
        let mut o = format!("e{}\n", self.epoch);
        let (now, ever) = (u8::from(self.enable_multiple), u8::from(self.ever_enabled_multiple));
        let _ = writeln!(o, "enable_multiple, ever_enabled_multiple: {now},{ever}");
        let _ = writeln!(o, "default compat: {}", self.default_compat.text());
        let _ = writeln!(o, "legacy client fscid: {}\n ", self.legacy_client_fscid);
        if self.filesystems.is_empty() {
            o.push_str("No filesystems configured\n");
        }
        for f in &self.filesystems {
            let _ = writeln!(o, "{} \n ", f.text());
        }
        if !self.standby_daemons.is_empty() {
            o.push_str("Standby daemons:\n \n");
        }
        for i in self.standby_daemons.values() {
            let _ = writeln!(o, "{}", i.text());
        }
        o
    }
}
