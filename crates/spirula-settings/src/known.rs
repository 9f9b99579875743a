//! The options that Ceph has and that nothing here acts on: known all the same.
//!
//! A tool that sets a harmless option of Ceph's must not fail because this version has no use for
//! it. So every option of Ceph 16.2 (daemons' and manager modules') and those that 18.2 added are
//! taken, checked by their type and bounds, handed to daemons and clients and shown; `config set`
//! and `config help` say that they have no effect.
//!
//! The list (`ceph-options.tsv`, by name) holds facts only, as a running 16.2.15 answers `config
//! help`, 18.2.7's `ceph-conf` shows them, and the modules of both releases' managers declare them
//! (those that no bare installation has, cephadm, dashboard and rook, too): name, type, level,
//! default, whether it changes at run time, least and greatest value, values to choose from, flags,
//! services, see also, tags, the daemons' own default, release. Of 18.2's additions only name, type
//! and default are known. Where [`OPTIONS`](crate::options::OPTIONS) has an option of the same
//! name, type, default and meaning are those of that table; the other facts are these.

use crate::options::{Kind, Level, OPTIONS, OptionDef};
use std::collections::BTreeMap;
use std::sync::OnceLock;

const LIST: &str = include_str!("ceph-options.tsv");

/// What Ceph says of an option beyond what [`OptionDef`] holds. Lists are separated by commas;
/// empty where there is nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts {
    /// Type, as Ceph names it.
    pub kind: &'static str,
    /// Least value.
    pub min: &'static str,
    /// Greatest value.
    pub max: &'static str,
    /// Values to choose from.
    pub choices: &'static str,
    /// `no_mon_update`, `startup`, `runtime`, …
    pub flags: &'static str,
    /// Daemons that it is for.
    pub services: &'static str,
    /// Options to look at, too.
    pub see_also: &'static str,
    /// Words to find it by.
    pub tags: &'static str,
    /// What daemons take in place of the default.
    pub daemon_default: &'static str,
}

impl Facts {
    /// May the monitors' database not hold this option? It is one that finds the monitors, or that
    /// they must not change.
    pub fn is_kept_out_of_monitors(&self) -> bool {
        self.flags.split(',').any(|f| f == "no_mon_update")
    }
}

/// The words of an option that nothing here reads.
const IGNORED: &str = "an option of Ceph's that nothing in this version reads (ignored)";
/// The same for the options of manager modules.
const IGNORED_MODULE: &str =
    "an option of one of Ceph's manager modules, which this version does not have (ignored)";

struct Table {
    options: Vec<OptionDef>,
    facts: BTreeMap<&'static str, Facts>,
}

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut by_name: BTreeMap<&'static str, OptionDef> = BTreeMap::new();
        let mut facts = BTreeMap::new();
        for line in LIST.lines() {
            let mut fields = line.split('\t');
            let mut next = || fields.next().unwrap_or_default();
            let (name, kind, level, default, runtime) =
                (next(), next(), next(), next(), next() == "r");
            let desc = if name.starts_with("mgr/") { IGNORED_MODULE } else { IGNORED };
            let option = OptionDef {
                name,
                kind: kind_of(kind),
                level: level_of(level),
                default,
                runtime,
                desc,
            };
            by_name.insert(name, option);
            let fact = Facts {
                kind,
                min: next(),
                max: next(),
                choices: next(),
                flags: next(),
                services: next(),
                see_also: next(),
                tags: next(),
                daemon_default: next(),
            };
            facts.insert(name, fact);
        }
        by_name.extend(OPTIONS.iter().map(|o| (o.name, *o)));
        Table { options: by_name.into_values().collect(), facts }
    })
}

fn kind_of(name: &str) -> Kind {
    match name {
        "uint" => Kind::Uint,
        "int" => Kind::Int,
        "size" => Kind::Size,
        "float" => Kind::Float,
        "bool" => Kind::Bool,
        "secs" => Kind::Secs,
        "millisecs" => Kind::Millisecs,
        "addr" | "addrvec" => Kind::Addr,
        "uuid" => Kind::Uuid,
        _ => Kind::Str,
    }
}

fn level_of(name: &str) -> Level {
    match name {
        "basic" => Level::Basic,
        "dev" => Level::Dev,
        _ => Level::Advanced,
    }
}

/// Every option, ours and Ceph's, by name.
pub fn all() -> &'static [OptionDef] {
    &table().options
}

/// What Ceph says of the option called `name` (in its normal form); nothing of our own options.
pub fn facts(name: &str) -> Option<&'static Facts> {
    table().facts.get(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{find, nearest, unknown};

    #[test]
    fn every_line_is_whole_and_every_default_is_a_value_of_its_option() {
        for line in LIST.lines() {
            assert_eq!(line.split('\t').count(), 14, "{line}");
        }
        assert!(
            all().len() > 2_350 && all().is_sorted_by(|a, b| a.name < b.name),
            "{}",
            all().len()
        );
        for o in all().iter().filter(|o| !o.default.is_empty()) {
            o.normalise(o.default).unwrap_or_else(|why| panic!("{}: {why}", o.name));
        }
    }

    /// Names of both releases and of manager modules are known and say that they do nothing; our
    /// own keep their meaning.
    #[test]
    fn options_of_both_releases_are_known_and_marked() {
        for name in [
            "bluestore_cache_size",
            "log_to_file",
            "mds_cache_memory_limit",
            "mgr/balancer/active",
            "mgr/cephadm/warn_on_stray_hosts",
            "mgr/dashboard/GRAFANA_API_URL",
            "mgr/dashboard/ssl",
            "mgr/telemetry/channel_perf",
            "rgw_max_objs_per_shard",
        ] {
            assert!(
                find(name).is_some_and(|o| o.is_ignored() || o.name.starts_with("mds")),
                "{name}"
            );
        }
        assert!(find("osd_scrub_slow_reservation_response").is_some(), "of 18.2");
        assert!(find("bluestore fail-eio").is_some(), "dashes and spaces");
        assert!(!find("osd_max_backfills").unwrap().is_ignored());
        assert_eq!(find("osd_max_backfills").unwrap().default, "4");
        assert!(facts("mon_host").unwrap().is_kept_out_of_monitors());
        assert!(!facts("osd_max_backfills").unwrap().is_kept_out_of_monitors());
        assert!(facts("spirula_memory").is_none());
    }

    #[test]
    fn a_slip_is_answered_with_the_nearest_of_all_names() {
        assert_eq!(nearest("bluestore_cache_siz"), Some("bluestore_cache_size"));
        assert_eq!(nearest("mgr/balancer/actve"), Some("mgr/balancer/active"));
        assert!(unknown("log_to_flie").contains("'log_to_file'"));
        assert_eq!(find("no_such_option_at_all").map(|o| o.name), None);
    }

    #[test]
    fn bounds_and_choices_are_those_of_ceph() {
        let bad = |name: &str, value: &str| find(name).unwrap().normalise(value).unwrap_err();
        assert!(
            bad("osd_scrub_begin_hour", "24").contains("0 to 23"),
            "{}",
            bad("osd_scrub_begin_hour", "24")
        );
        assert!(bad("osd_op_queue", "lifo").contains("wpq"), "{}", bad("osd_op_queue", "lifo"));
        assert_eq!(find("bluestore_throttle_bytes").unwrap().normalise("4K").unwrap(), "4096");
        assert_eq!(find("osd_max_write_size").unwrap().normalise("1K").unwrap(), "1024");
        assert_eq!(find("mon_max_pg_per_osd").unwrap().normalise("1K").unwrap(), "1000");
    }
}
