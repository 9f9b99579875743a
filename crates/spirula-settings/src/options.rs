//! The options that `ceph config` knows here: name, type, level, default, meaning.
//!
//! Names, types and defaults are Ceph's (16.2), save where an option says so, so that scripts and
//! habits carry over; the list holds those that are in common use or that a Ceph client asks its
//! monitor for. Options we accept but do not act on say so with `(ignored)`. The rest of Ceph's
//! options stands in [`known`].

use crate::known;
use std::borrow::Cow;

/// Type of an option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Text.
    Str,
    /// Whole number ≥ 0.
    Uint,
    /// Whole number.
    Int,
    /// Number of bytes, with an optional suffix (`64K`, `4M`, `1Gi`).
    Size,
    /// Number.
    Float,
    /// `true` or `false`.
    Bool,
    /// Seconds, with an optional unit.
    Secs,
    /// Milliseconds.
    Millisecs,
    /// Addresses.
    Addr,
    /// Identifier of a cluster.
    Uuid,
}

impl Kind {
    /// As `config help` prints it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Str => "str",
            Self::Uint => "uint",
            Self::Int => "int",
            Self::Size => "size",
            Self::Float => "float",
            Self::Bool => "bool",
            Self::Secs => "secs",
            Self::Millisecs => "millisecs",
            Self::Addr => "addrvec",
            Self::Uuid => "uuid",
        }
    }
}

/// Who an option is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Everyone.
    Basic,
    /// Those who know why.
    Advanced,
    /// Developers.
    Dev,
}

impl Level {
    /// `basic`, `advanced`, `dev`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Basic => "basic",
            Self::Advanced => "advanced",
            Self::Dev => "dev",
        }
    }
}

/// One option.
#[derive(Clone, Copy, Debug)]
pub struct OptionDef {
    /// Name.
    pub name: &'static str,
    /// Type.
    pub kind: Kind,
    /// Level.
    pub level: Level,
    /// Default, as text.
    pub default: &'static str,
    /// Changes take effect without a restart.
    pub runtime: bool,
    /// One line.
    pub desc: &'static str,
}

/// The option called `name`; dashes and spaces may stand for underscores.
pub fn find(name: &str) -> Option<&'static OptionDef> {
    // Daemons ask for values all the time, and by the normal name.
    let normal = name.bytes().all(|b| b == b'_' || b == b'/' || b.is_ascii_alphanumeric());
    let (name, all) =
        (if normal { Cow::Borrowed(name) } else { Cow::Owned(normal_name(name)) }, known::all());
    all.binary_search_by(|o| o.name.cmp(&name)).ok().and_then(|i| all.get(i))
}

/// No option's name is longer.
const NAME_MAX: usize = 80;

/// The known option whose name is nearest to `name`, if one is near enough to be meant.
pub fn nearest(name: &str) -> Option<&'static str> {
    let name = normal_name(name);
    if name.len() > NAME_MAX {
        return None;
    }
    let limit = (name.len() / 4).max(2);
    // Names whose lengths differ by more are farther than that, too.
    let may_be = |o: &&OptionDef| o.name.len().abs_diff(name.len()) <= limit;
    let near = |o: &OptionDef| (distance(&name, o.name), o.name);
    let (d, best) = known::all().iter().filter(may_be).map(near).min()?;
    (d <= limit).then_some(best)
}

/// Levenshtein's distance, by bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let best = (corner + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
            corner = std::mem::replace(&mut row[j + 1], best);
        }
    }
    row[b.len()]
}

/// The refusal of an unknown option, with the one that may have been meant.
pub fn unknown(name: &str) -> String {
    match nearest(name) {
        Some(near) => format!("unrecognized config option '{name}'; did you mean '{near}'?"),
        None => format!("unrecognized config option '{name}'"),
    }
}

/// `name` with underscores for dashes and spaces.
pub fn normal_name(name: &str) -> String {
    name.trim().replace(['-', ' '], "_")
}

impl OptionDef {
    /// Known, taken and shown, but nothing here acts on it.
    pub fn is_ignored(&self) -> bool {
        self.desc.contains("(ignored")
    }

    /// Its type, as Ceph names it.
    pub fn kind_name(&self) -> &'static str {
        match known::facts(self.name) {
            Some(f) if self.kind == Kind::Addr => f.kind,
            _ => self.kind.name(),
        }
    }

    /// Checks `value` and brings it into the form in which it is stored.
    ///
    /// # Errors
    /// What is wrong with it: the type, a bound, none of the values to choose from.
    pub fn normalise(&self, value: &str) -> Result<String, String> {
        let bad = || format!("error parsing value: '{value}' is not a valid {}", self.kind.name());
        let v = value.trim();
        let value = match self.kind {
            Kind::Str => self.normal_text(value).ok_or_else(bad)?,
            Kind::Addr => value.to_owned(),
            Kind::Uuid => normal_uuid(v).ok_or_else(bad)?,
            Kind::Uint => {
                parse_count(v).and_then(|n| u64::try_from(n).ok()).ok_or_else(bad)?.to_string()
            }
            Kind::Millisecs => v.parse::<u64>().map_err(|_| bad())?.to_string(),
            Kind::Int => {
                parse_count(v).and_then(|n| i64::try_from(n).ok()).ok_or_else(bad)?.to_string()
            }
            Kind::Size => parse_size(v).ok_or_else(bad)?.to_string(),
            Kind::Float => {
                let f: f64 = v.parse().map_err(|_| bad())?;
                if !f.is_finite() {
                    return Err(bad());
                }
                format!("{f:.6}")
            }
            Kind::Secs => parse_secs(v).ok_or_else(bad)?.to_string(),
            Kind::Bool => match v.to_ascii_lowercase().as_str() {
                "true" | "1" | "yes" | "on" => "true".into(),
                "false" | "0" | "no" | "off" => "false".into(),
                // As with Ceph, any number but zero stands for true.
                number => (number.parse::<i64>().map_err(|_| bad())? != 0).to_string(),
            },
        };
        self.check_bounds(&value)?;
        Ok(value)
    }

    /// The normal form of a value that was stored, perhaps by an older version, which had other
    /// types of some options: seconds were fractions, of which a part of a second counts as a whole
    /// one. What has none (`config set --force`) stays as it is.
    pub fn of_stored<'a>(&self, value: &'a str) -> Cow<'a, str> {
        let whole_seconds = || {
            let (whole, part) = value.split_once('.').filter(|_| self.kind == Kind::Secs)?;
            let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
            let seconds = whole.parse::<u64>().ok().filter(|_| digits(whole) && digits(part))?;
            let more = u64::from(part.bytes().any(|b| b != b'0'));
            self.normalise(&seconds.checked_add(more)?.to_string()).ok()
        };
        match self.normalise(value).ok().or_else(whole_seconds) {
            Some(normal) if normal != value => Cow::Owned(normal),
            _ => Cow::Borrowed(value),
        }
    }

    /// What its value may be, in words that follow "give".
    pub fn wanted(&self) -> String {
        let facts = known::facts(self.name).copied().unwrap_or_default();
        if !facts.choices.is_empty() {
            return format!("one of {}", facts.choices.replace(',', ", "));
        }
        let kind = match self.kind {
            Kind::Str if self.name == "rbd_default_features" => {
                "features' names with commas between, or their number"
            }
            Kind::Str | Kind::Addr => "a text",
            Kind::Uint => "a whole number, such as 4 or 4K, of 0 or more",
            Kind::Int => "a whole number, such as 4, -1 or 4K",
            Kind::Size => "bytes, such as 4096, 64K or 4M",
            Kind::Float => "a number, such as 0.5",
            Kind::Bool => "true or false",
            Kind::Secs => "seconds, such as 90, 5m or 1h 30m",
            Kind::Millisecs => "milliseconds, such as 500",
            Kind::Uuid => {
                "32 hexadecimal digits in groups of 8, 4, 4, 4 and 12 with dashes between"
            }
        };
        let range = match (facts.min, facts.max) {
            _ if self.kind == Kind::Str => String::new(),
            ("", "") => String::new(),
            (min, "") => format!(", at least {min}"),
            ("", max) => format!(", at most {max}"),
            (min, max) => format!(", from {min} to {max}"),
        };
        format!("{kind}{range}")
    }

    /// The form in which Ceph stores a text that means something: images' features are a number,
    /// and a name that no pool of images can have stands for the usual one.
    fn normal_text(&self, value: &str) -> Option<String> {
        match self.name {
            "rbd_default_features" => image_features(value).map(|bits| bits.to_string()),
            "rbd_default_pool" | "rbd_default_data_pool" if value.contains(['/', '@']) => {
                Some(self.default.to_owned())
            }
            "rbd_default_pool" if value.is_empty() => Some(self.default.to_owned()),
            _ => Some(value.to_owned()),
        }
    }

    /// Holds `value` against the bounds and choices that Ceph names. None is a choice only where it
    /// is the usual one.
    fn check_bounds(&self, value: &str) -> Result<(), String> {
        let Some(f) = known::facts(self.name) else { return Ok(()) };
        let none = value.is_empty() && self.default.is_empty();
        if !f.choices.is_empty() && !none && !f.choices.split(',').any(|c| c == value) {
            return Err(format!(
                "error parsing value: '{value}' is not one of {}",
                f.choices.replace(',', ", ")
            ));
        }
        let (Ok(n), is_text) = (value.parse::<f64>(), self.kind == Kind::Str) else {
            return Ok(());
        };
        let (min, max) = (f.min.parse::<f64>().ok(), f.max.parse::<f64>().ok());
        if is_text || (min.is_none_or(|m| n >= m) && max.is_none_or(|m| n <= m)) {
            return Ok(());
        }
        let range = match (f.min, f.max) {
            (min, "") => format!("{min} or more"),
            ("", max) => format!("{max} or less"),
            (min, max) => format!("{min} to {max}"),
        };
        Err(format!("error parsing value: '{value}' is out of range: {range}"))
    }
}

/// A number with Ceph's decimal suffixes: `4`, `-1`, `4K` for 4000.
fn parse_count(v: &str) -> Option<i128> {
    let digits = v.find(|c: char| !c.is_ascii_digit() && c != '-' && c != '+').unwrap_or(v.len());
    let (number, unit) = v.split_at(digits);
    let factor = match unit.trim() {
        "" => 1,
        "K" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "P" => 1_000_000_000_000_000,
        "E" => 1_000_000_000_000_000_000,
        _ => return None,
    };
    number.parse::<i128>().ok()?.checked_mul(factor)
}

/// `64K`, `4M`, `4Mi`, `4MiB`, `1G`… as bytes: every unit is a power of 1024, with an `i` or
/// without, as Ceph takes sizes.
pub fn parse_size(v: &str) -> Option<u64> {
    let digits = v.find(|c: char| !c.is_ascii_digit()).unwrap_or(v.len());
    let (number, unit) = v.split_at(digits);
    let unit = unit.trim().to_ascii_uppercase();
    let mut rest = unit.chars();
    let shift = match rest.next() {
        None => 0,
        Some('B') if unit == "B" => 0,
        Some('K') => 10,
        Some('M') => 20,
        Some('G') => 30,
        Some('T') => 40,
        Some('P') => 50,
        Some('E') => 60,
        Some(_) => return None,
    };
    let known = shift == 0 || matches!(rest.as_str(), "" | "B" | "I" | "IB");
    if known { number.parse::<u64>().ok()?.checked_mul(1 << shift) } else { None }
}

/// Features of block images that somebody may choose, each with its bit. Those below are librbd's
/// own, which nobody chooses: they are known, and stand for nothing.
const IMAGE_FEATURES: [(&str, u64); 8] = [
    ("layering", 1),
    ("striping", 2),
    ("exclusive-lock", 4),
    ("object-map", 8),
    ("fast-diff", 16),
    ("deep-flatten", 32),
    ("journaling", 64),
    ("data-pool", 128),
];
const IMAGE_FEATURES_INTERNAL: [&str; 4] =
    ["operations", "migrating", "non-primary", "dirty-cache"];
/// Those of new images where none is named.
const IMAGE_FEATURES_USUAL: u64 = 61;

/// Features by number or by names (`layering,exclusive-lock`).
fn image_features(text: &str) -> Option<u64> {
    let text = text.trim();
    if text.is_empty() {
        return Some(IMAGE_FEATURES_USUAL);
    }
    if let Ok(bits) = text.parse::<u64>() {
        return (bits < 2 * IMAGE_FEATURES[7].1).then_some(bits);
    }
    let bit = |name: &str| {
        let chosen = IMAGE_FEATURES.iter().find(|(n, _)| *n == name).map(|(_, bit)| *bit);
        chosen.or_else(|| IMAGE_FEATURES_INTERNAL.contains(&name).then_some(0))
    };
    text.split(',').map(|name| bit(name.trim())).try_fold(0, |bits, bit| Some(bits | bit?))
}

/// A UUID in small letters.
fn normal_uuid(text: &str) -> Option<String> {
    let well = |(i, c): (usize, u8)| {
        if matches!(i, 8 | 13 | 18 | 23) { c == b'-' } else { c.is_ascii_hexdigit() }
    };
    (text.len() == 36 && text.bytes().enumerate().all(well)).then(|| text.to_ascii_lowercase())
}

/// `90`, `5m`, `2h`, `1d`, `1w`, `1h 30m` as seconds; nothing is none.
pub fn parse_secs(v: &str) -> Option<u64> {
    let (mut rest, mut sum) = (v.trim(), 0_u64);
    // As a number with a fraction was stored before the option was one of seconds.
    if let Some((whole, zeros)) = rest.split_once('.')
        && !zeros.is_empty()
        && zeros.bytes().all(|b| b == b'0')
    {
        rest = whole;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, behind) = rest.split_at(end);
        let behind = behind.trim_start();
        let end = behind.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(behind.len());
        let (unit, next) = behind.split_at(end);
        let factor = match unit.to_ascii_lowercase().as_str() {
            "" | "s" | "sec" | "secs" | "second" | "seconds" => 1,
            "m" | "min" | "mins" | "minute" | "minutes" => 60,
            "h" | "hr" | "hrs" | "hour" | "hours" => 3600,
            "d" | "day" | "days" => 86_400,
            "w" | "wk" | "week" | "weeks" => 604_800,
            "mo" | "month" | "months" => 2_592_000,
            "y" | "yr" | "year" | "years" => 31_536_000,
            _ => return None,
        };
        sum = number.parse::<u64>().ok()?.checked_mul(factor)?.checked_add(sum)?;
        rest = next.trim_start();
    }
    Some(sum)
}

const fn o(
    name: &'static str,
    kind: Kind,
    level: Level,
    default: &'static str,
    desc: &'static str,
) -> OptionDef {
    OptionDef { name, kind, level, default, runtime: true, desc }
}

/// As [`o`], for options that need a restart.
const fn r(
    name: &'static str,
    kind: Kind,
    level: Level,
    default: &'static str,
    desc: &'static str,
) -> OptionDef {
    OptionDef { name, kind, level, default, runtime: false, desc }
}

use Kind::{Addr, Bool, Float, Int, Millisecs, Secs, Size, Str, Uint, Uuid};
use Level::{Advanced, Basic, Dev};

/// The options that mean something here, or that an older version knew, by name; [`known::all`] has
/// every one.
pub const OPTIONS: &[OptionDef] = &[
    r(
        "auth_allow_insecure_global_id_reclaim",
        Bool,
        Advanced,
        "true",
        "let clients reclaim a global id without proof (ignored)",
    ),
    r(
        "admin_socket",
        Str,
        Advanced,
        "$run_dir/$cluster-$name.asok",
        "path of the daemon's admin socket; empty for none",
    ),
    r("auth_client_required", Str, Advanced, "cephx", "methods a client accepts from servers"),
    r("auth_cluster_required", Str, Advanced, "cephx", "methods daemons require of each other"),
    r("auth_service_required", Str, Advanced, "cephx", "methods servers require of clients"),
    o(
        "bluestore_compression_algorithm",
        Str,
        Advanced,
        "snappy",
        "compression used where a pool does not say (ignored)",
    ),
    o(
        "bluestore_compression_mode",
        Str,
        Advanced,
        "none",
        "when to compress where a pool does not say (ignored)",
    ),
    o("client_cache_size", Size, Basic, "16384", "inodes a file system client keeps"),
    o("client_mount_timeout", Secs, Advanced, "300", "seconds to wait for a mount"),
    r("cluster_addr", Addr, Basic, "-", "address for traffic between OSDs"),
    r("cluster_network", Str, Advanced, "", "networks for traffic between OSDs"),
    o(
        "clog_to_monitors",
        Str,
        Advanced,
        "default=true",
        "send the cluster log to the monitors (ignored)",
    ),
    r(
        "crush_location",
        Str,
        Advanced,
        "",
        "where an OSD is in the CRUSH tree, as 'root=default rack=r1 host=h1'",
    ),
    o("debug_client", Str, Dev, "0/5", "debug level of file system clients"),
    o("debug_mds", Str, Dev, "1/5", "debug level of metadata servers"),
    o("debug_mgr", Str, Dev, "2/5", "debug level of managers (ignored)"),
    o("debug_mon", Str, Dev, "1/5", "debug level of monitors (ignored)"),
    o("debug_ms", Str, Dev, "0/0", "debug level of the messenger"),
    o("debug_objecter", Str, Dev, "0/1", "debug level of the RADOS client"),
    o("debug_osd", Str, Dev, "1/5", "debug level of OSDs (ignored)"),
    o("debug_rados", Str, Dev, "0/5", "debug level of librados"),
    o("debug_rbd", Str, Dev, "0/5", "debug level of librbd"),
    o("debug_rgw", Str, Dev, "1/5", "debug level of the object gateway"),
    r("fsid", Uuid, Basic, "00000000-0000-0000-0000-000000000000", "identity of the cluster"),
    r("host", Str, Basic, "", "name of this host"),
    o("journal_write_batch_max", Uint, Advanced, "1024", "operations per journal batch (ignored)"),
    r("keyring", Str, Advanced, "/etc/ceph/$cluster.$name.keyring", "file with the key"),
    o("log_file", Str, Basic, "", "file for log messages (ignored)"),
    o("log_to_stderr", Bool, Basic, "true", "log messages go to stderr (ignored)"),
    o("mds_cache_memory_limit", Size, Basic, "4294967296", "memory a metadata server aims at"),
    o(
        "mds_beacon_grace",
        Float,
        Advanced,
        "15.000000",
        "seconds after which a silent metadata server is replaced",
    ),
    o(
        "mds_beacon_interval",
        Float,
        Advanced,
        "4.000000",
        "seconds between beacons of a metadata server",
    ),
    o(
        "mgr_stats_period",
        Int,
        Basic,
        "5",
        "seconds between a daemon's reports to the manager (ignored)",
    ),
    o(
        "target_max_misplaced_ratio",
        Float,
        Basic,
        "0.050000",
        "share of all copies that changes of pgp_num may misplace at a time",
    ),
    o("mgr_tick_period", Secs, Advanced, "2", "seconds between a manager's beacons (ignored)"),
    o("mon_allow_pool_delete", Bool, Advanced, "false", "pools may be deleted"),
    o("mon_allow_pool_size_one", Bool, Advanced, "true", "pools with a single copy may be made"),
    o(
        "mon_client_hunt_interval",
        Float,
        Advanced,
        "1.000000",
        "seconds after which a client tries other monitors (Ceph's clients: 3)",
    ),
    o(
        "mon_client_ping_interval",
        Float,
        Advanced,
        "0.500000",
        "seconds between a client's pings to its monitor (Ceph's clients: 10)",
    ),
    o(
        "mon_client_ping_timeout",
        Float,
        Advanced,
        "2.000000",
        "seconds without an answer after which it goes to another (Ceph's clients: 30)",
    ),
    r("mon_cluster_log_file", Str, Advanced, "", "file for the cluster log (ignored)"),
    o(
        "mon_clock_drift_allowed",
        Float,
        Advanced,
        "0.050000",
        "seconds by which monitors' clocks may differ",
    ),
    r("mon_data", Str, Advanced, "", "directory of the monitor's store"),
    o(
        "mon_data_avail_crit",
        Int,
        Advanced,
        "5",
        "per cent of a monitor's disk: with no more free, health is an error",
    ),
    o(
        "mon_data_avail_warn",
        Int,
        Advanced,
        "30",
        "per cent of a monitor's disk: with no more free, health warns",
    ),
    r("mon_host", Str, Basic, "", "addresses of the monitors"),
    r(
        "mon_dns_srv_name",
        Str,
        Advanced,
        "ceph-mon",
        "name of the DNS SRV records that list the monitors",
    ),
    r("mon_initial_members", Str, Advanced, "", "names of the first monitors (ignored)"),
    o("mon_max_osd", Int, Advanced, "10000", "most OSDs that there is room for in the map"),
    o(
        "mon_mds_blocklist_interval",
        Float,
        Dev,
        "86400.000000",
        "seconds that a failed metadata server is blocklisted",
    ),
    o("mon_max_pg_per_osd", Uint, Advanced, "250", "most PGs per OSD a pool may lead to"),
    o("mon_max_pool_pg_num", Uint, Advanced, "65536", "most PGs of one pool"),
    o(
        "mon_reweight_max_change",
        Float,
        Advanced,
        "0.050000",
        "largest change of a weight by reweight-by-…",
    ),
    o("mon_reweight_max_osds", Uint, Advanced, "4", "most OSDs that reweight-by-… changes"),
    o(
        "mon_reweight_min_bytes_per_osd",
        Size,
        Advanced,
        "104857600",
        "space an OSD must have for reweight-by-utilization",
    ),
    o(
        "mon_reweight_min_pgs_per_osd",
        Uint,
        Advanced,
        "10",
        "PGs an OSD must have for reweight-by-pg",
    ),
    o(
        "mon_min_osdmap_epochs",
        Uint,
        Advanced,
        "500",
        "OSD map epochs kept though nobody needs them",
    ),
    o(
        "mon_osd_adjust_down_out_interval",
        Bool,
        Advanced,
        "true",
        "wait longer before an OSD that was often wrongly down is marked out",
    ),
    o(
        "mon_osd_adjust_heartbeat_grace",
        Bool,
        Advanced,
        "true",
        "be patient with OSDs, and reporters, that were often wrongly down",
    ),
    o(
        "mon_osd_auto_mark_auto_out_in",
        Bool,
        Advanced,
        "true",
        "an OSD marked out by itself is in again when it comes up",
    ),
    o("mon_osd_auto_mark_in", Bool, Advanced, "false", "every OSD that comes up is marked in"),
    o(
        "mon_osd_auto_mark_new_in",
        Bool,
        Advanced,
        "true",
        "a new OSD is marked in when it first comes up",
    ),
    o(
        "mon_osd_blacklist_default_expire",
        Float,
        Advanced,
        "3600.000000",
        "older name of mon_osd_blocklist_default_expire (ignored)",
    ),
    o(
        "mon_osd_blocklist_default_expire",
        Float,
        Advanced,
        "3600.000000",
        "seconds a client is shut out if the command does not say",
    ),
    o(
        "mon_osd_down_out_interval",
        Int,
        Advanced,
        "600",
        "seconds an OSD may be down before it is marked out",
    ),
    o(
        "mon_osd_down_out_subtree_limit",
        Str,
        Basic,
        "rack",
        "a whole subtree of this type that is down is not marked out",
    ),
    o(
        "mon_osd_laggy_halflife",
        Int,
        Advanced,
        "3600",
        "seconds after which an OSD's past counts half",
    ),
    o(
        "mon_osd_laggy_max_interval",
        Int,
        Advanced,
        "300",
        "most seconds that a wrong down mark counts",
    ),
    o("mon_osd_laggy_weight", Float, Advanced, "0.300000", "weight of the newest wrong down mark"),
    o(
        "mon_osd_full_ratio",
        Float,
        Advanced,
        "0.950000",
        "use above which a new cluster's OSDs refuse writes (ignored)",
    ),
    o(
        "mon_osd_backfillfull_ratio",
        Float,
        Advanced,
        "0.900000",
        "use above which a new cluster's OSDs take no backfill (ignored)",
    ),
    o(
        "mon_osd_nearfull_ratio",
        Float,
        Advanced,
        "0.850000",
        "use above which health warns in a new cluster (ignored)",
    ),
    o("mon_osd_min_down_reporters", Uint, Advanced, "2", "reporters needed to mark an OSD down"),
    o(
        "mon_osd_min_in_ratio",
        Float,
        Advanced,
        "0.750000",
        "no OSD is marked out by itself below this share of in OSDs",
    ),
    o(
        "mon_osd_min_up_ratio",
        Float,
        Advanced,
        "0.300000",
        "no OSD is marked down below this share of up OSDs",
    ),
    o(
        "mon_osd_report_timeout",
        Int,
        Advanced,
        "900",
        "seconds without a sign of life before an OSD is marked down",
    ),
    o(
        "mon_osd_reporter_subtree_level",
        Str,
        Advanced,
        "host",
        "reporters within one subtree of this type count once",
    ),
    o("mon_pg_warn_min_per_osd", Uint, Advanced, "0", "fewer PGs per OSD than this warn (ignored)"),
    o(
        "mon_target_pg_per_osd",
        Uint,
        Advanced,
        "100",
        "PGs per OSD the autoscaler aims at (ignored)",
    ),
    o(
        "mon_warn_on_insecure_global_id_reclaim",
        Bool,
        Advanced,
        "true",
        "warn about clients that reclaim ids without proof (ignored)",
    ),
    o(
        "mon_warn_on_insecure_global_id_reclaim_allowed",
        Bool,
        Advanced,
        "true",
        "warn that such clients are allowed (ignored)",
    ),
    o(
        "mon_warn_on_insecure_client_keys",
        Bool,
        Advanced,
        "false",
        "warn about clients with keys of type aes, which clients before Tentacle need",
    ),
    o(
        "mon_warn_pg_not_deep_scrubbed_ratio",
        Float,
        Advanced,
        "0.750000",
        "share of the deep scrub interval by which a PG may be late; 0 for no warning",
    ),
    o(
        "mon_warn_pg_not_scrubbed_ratio",
        Float,
        Advanced,
        "0.500000",
        "share of the scrub max interval by which a PG may be late; 0 for no warning",
    ),
    o(
        "mon_warn_on_osd_down_out_interval_zero",
        Bool,
        Advanced,
        "true",
        "warn when down OSDs are never marked out",
    ),
    o(
        "mon_crush_min_required_version",
        Str,
        Advanced,
        "hammer",
        "oldest release for whose tunables of CRUSH there is no warning",
    ),
    o(
        "mon_warn_on_legacy_crush_tunables",
        Bool,
        Advanced,
        "true",
        "warn of tunables older than mon_crush_min_required_version",
    ),
    o(
        "mon_warn_on_crush_straw_calc_version_zero",
        Bool,
        Advanced,
        "true",
        "warn of a CRUSH map with straw_calc_version 0",
    ),
    o(
        "mon_warn_on_pool_no_app",
        Bool,
        Dev,
        "true",
        "warn about pools without an application (ignored)",
    ),
    o(
        "mon_warn_on_pool_no_redundancy",
        Bool,
        Advanced,
        "true",
        "warn about pools with a single copy (ignored)",
    ),
    o(
        "mon_warn_on_slow_ping_ratio",
        Float,
        Advanced,
        "0.050000",
        "heartbeats that take this share of osd_heartbeat_grace, and a second or more, count as \
            slow",
    ),
    o(
        "mon_warn_on_slow_ping_time",
        Float,
        Advanced,
        "0.000000",
        "milliseconds from which on heartbeats count as slow; 0: by mon_warn_on_slow_ping_ratio",
    ),
    r("ms_bind_ipv4", Bool, Advanced, "true", "listen on IPv4"),
    r("ms_bind_ipv6", Bool, Advanced, "false", "listen on IPv6"),
    r("ms_bind_port_max", Int, Advanced, "7300", "last port a daemon listens on"),
    r("ms_bind_port_min", Int, Advanced, "6800", "first port a daemon listens on"),
    r("ms_client_mode", Str, Basic, "crc secure", "connection modes clients use"),
    r("ms_cluster_mode", Str, Basic, "crc secure", "connection modes between daemons"),
    r("ms_mon_client_mode", Str, Basic, "secure crc", "connection modes clients use with monitors"),
    r("ms_mon_cluster_mode", Str, Basic, "secure crc", "connection modes between monitors"),
    r("ms_mon_service_mode", Str, Basic, "secure crc", "connection modes monitors offer"),
    r("ms_service_mode", Str, Basic, "crc secure", "connection modes servers offer"),
    o(
        "objecter_inflight_op_bytes",
        Size,
        Advanced,
        "104857600",
        "most bytes in flight from one client",
    ),
    o("objecter_inflight_ops", Uint, Advanced, "1024", "most operations in flight from one client"),
    o("osd_backfill_scan_max", Int, Advanced, "512", "most objects per backfill scan (ignored)"),
    o("osd_backfill_scan_min", Int, Advanced, "64", "least objects per backfill scan (ignored)"),
    o("osd_client_message_cap", Uint, Advanced, "256", "client messages held at once (ignored)"),
    o(
        "osd_client_message_size_cap",
        Size,
        Advanced,
        "524288000",
        "bytes of client messages held at once (ignored)",
    ),
    o("osd_client_op_priority", Uint, Advanced, "63", "priority of client operations (ignored)"),
    o(
        "osd_client_watch_timeout",
        Int,
        Dev,
        "30",
        "seconds after which the watch of a silent client ends, if it names no time",
    ),
    r(
        "osd_class_default_list",
        Str,
        Advanced,
        "cephfs hello journal lock log numops otp rbd refcount rgw rgw_gc timeindex user version \
            cas cmpomap queue 2pc_queue fifo",
        "object classes that a plain x in a capability covers; * for all",
    ),
    r(
        "osd_class_load_list",
        Str,
        Advanced,
        "cephfs hello journal lock log numops otp rbd refcount rgw rgw_gc timeindex user version \
            cas cmpomap queue 2pc_queue fifo",
        "object classes that may be called; * for all that there are",
    ),
    r("osd_class", Str, Advanced, "", "device class of an OSD; empty to find it out"),
    r(
        "osd_crush_chooseleaf_type",
        Int,
        Dev,
        "1",
        "failure domain of the first CRUSH rule, by type number (ignored)",
    ),
    r(
        "osd_crush_update_on_start",
        Bool,
        Advanced,
        "true",
        "OSDs put themselves at their CRUSH place when they start",
    ),
    r("osd_data", Str, Advanced, "", "directory of an OSD's store"),
    o(
        "osd_deep_scrub_interval",
        Float,
        Advanced,
        "604800.000000",
        "seconds between deep scrubs of a PG",
    ),
    o(
        "osd_deep_scrub_large_omap_object_key_threshold",
        Uint,
        Advanced,
        "200000",
        "keys of an object's omap above which a deep scrub reports it",
    ),
    o(
        "osd_deep_scrub_large_omap_object_value_sum_threshold",
        Size,
        Advanced,
        "1073741824",
        "bytes of the values of an object's omap above which a deep scrub reports it",
    ),
    o(
        "osd_default_notify_timeout",
        Uint,
        Advanced,
        "30",
        "seconds for which watchers' answers are waited for, if the notifier names no time",
    ),
    r("osd_erasure_code_plugins", Str, Advanced, "jerasure", "plug-ins loaded at start (ignored)"),
    o(
        "osd_fast_fail_on_connection_refused",
        Bool,
        Advanced,
        "true",
        "report an OSD whose port refuses connections at once",
    ),
    // Ceph: 20. OSDs ping each other four times a second here, on connections that carry nothing
    // else.
    o(
        "osd_heartbeat_grace",
        Int,
        Advanced,
        "4",
        "most seconds of silence before an OSD is reported",
    ),
    o(
        "osd_heartbeat_min_grace",
        Float,
        Advanced,
        "1.000000",
        "least seconds of silence before an OSD is reported, however regular its answers were; \
            osd_heartbeat_grace or more: only that counts",
    ),
    o(
        "osd_heartbeat_min_healthy_ratio",
        Float,
        Advanced,
        "0.330000",
        "share of the others that must answer before an OSD that was wrongly down asks to be up",
    ),
    o(
        "osd_heartbeat_min_size",
        Size,
        Advanced,
        "2000",
        "bytes that heartbeats are filled up to, as large as the network's larger frames",
    ),
    o(
        "osd_heartbeat_interval",
        Int,
        Dev,
        "6",
        "seconds between heartbeats (ignored: two to four times a second)",
    ),
    o(
        "osd_max_backfills",
        Uint,
        Advanced,
        "4",
        "PGs that recover at once, as primary and as target each",
    ),
    o(
        "osd_max_markdown_count",
        Int,
        Advanced,
        "5",
        "times an OSD lets itself be marked down before it stops",
    ),
    o("osd_max_markdown_period", Int, Advanced, "600", "within so many seconds"),
    o("osd_max_object_size", Size, Advanced, "134217728", "greatest size of one object (ignored)"),
    o("osd_max_pg_log_entries", Uint, Dev, "10000", "most log entries of a PG (ignored)"),
    o("osd_max_scrubs", Int, Advanced, "1", "scrubs per OSD at once"),
    o("osd_max_write_size", Size, Advanced, "90", "greatest size of one write, MiB (ignored)"),
    o("osd_memory_target", Size, Basic, "4294967296", "memory an OSD aims at (ignored)"),
    o("osd_min_pg_log_entries", Uint, Dev, "250", "log entries a PG keeps (ignored)"),
    o(
        "osd_op_complaint_time",
        Float,
        Advanced,
        "30.000000",
        "seconds after which an operation is called slow (ignored)",
    ),
    o("osd_op_num_shards", Int, Advanced, "0", "shards of an OSD (ignored)"),
    o("osd_op_num_threads_per_shard", Int, Advanced, "0", "threads per shard (ignored)"),
    o("osd_op_queue", Str, Advanced, "wpq", "queue discipline (ignored)"),
    o(
        "osd_pool_default_crush_rule",
        Int,
        Advanced,
        "-1",
        "CRUSH rule of new pools; −1 takes the first",
    ),
    o(
        "osd_pool_default_erasure_code_profile",
        Str,
        Advanced,
        "plugin=jerasure technique=reed_sol_van k=2 m=2",
        "profile called default in a new cluster (ignored)",
    ),
    o(
        "osd_pool_default_min_size",
        Uint,
        Advanced,
        "0",
        "min_size of new pools; 0 takes size − size/2",
    ),
    o(
        "osd_pool_default_pg_autoscale_mode",
        Str,
        Advanced,
        "off",
        "autoscaling of new pools (ignored)",
    ),
    o("osd_pool_default_pg_num", Uint, Advanced, "32", "PGs of new pools"),
    o(
        "osd_pool_default_pgp_num",
        Uint,
        Advanced,
        "0",
        "PGs for placement of new pools; 0 takes pg_num",
    ),
    o("osd_pool_default_size", Uint, Advanced, "3", "copies of new pools"),
    o(
        "osd_pool_erasure_code_stripe_unit",
        Size,
        Advanced,
        "4096",
        "bytes per chunk of new erasure-coded pools",
    ),
    o(
        "osd_recovery_delay_start",
        Float,
        Advanced,
        "0.000000",
        "seconds to wait before recovery (ignored)",
    ),
    o(
        "osd_recovery_max_active",
        Uint,
        Advanced,
        "0",
        "objects recovered per OSD at once; 0 takes the device's default",
    ),
    o("osd_recovery_max_active_hdd", Uint, Advanced, "3", "recoveries per rotating OSD at once"),
    o(
        "osd_recovery_max_active_ssd",
        Uint,
        Advanced,
        "10",
        "recoveries per solid-state OSD at once",
    ),
    o(
        "osd_recovery_op_priority",
        Uint,
        Advanced,
        "3",
        "priority of recovery (ignored: clients' latency decides)",
    ),
    o(
        "osd_recovery_sleep",
        Float,
        Advanced,
        "0.000000",
        "least seconds between recovery operations; clients' latency decides where it is 0",
    ),
    o("osd_recovery_sleep_hdd", Float, Advanced, "0.000000", "the same on rotating OSDs"),
    o("osd_recovery_sleep_ssd", Float, Advanced, "0.000000", "the same on solid-state OSDs"),
    o("osd_scrub_auto_repair", Bool, Advanced, "false", "scrub repairs what it finds"),
    o("osd_scrub_begin_hour", Int, Advanced, "0", "first hour of the day (UTC) for scrubs"),
    o("osd_scrub_end_hour", Int, Advanced, "0", "first hour of the day (UTC) without scrubs"),
    o(
        "osd_scrub_begin_week_day",
        Int,
        Advanced,
        "0",
        "first day of the week for scrubs; 0 and 7 are Sunday",
    ),
    o("osd_scrub_during_recovery", Bool, Advanced, "false", "scrubs begin while the OSD recovers"),
    o("osd_scrub_end_week_day", Int, Advanced, "0", "first day of the week without scrubs"),
    o(
        "osd_scrub_load_threshold",
        Float,
        Advanced,
        "0.500000",
        "load above which no scrub starts (ignored: clients' latency decides)",
    ),
    o(
        "osd_scrub_max_interval",
        Float,
        Advanced,
        "604800.000000",
        "most seconds between scrubs of a PG",
    ),
    o(
        "osd_scrub_min_interval",
        Float,
        Advanced,
        "86400.000000",
        "least seconds between scrubs of a PG",
    ),
    o(
        "osd_scrub_sleep",
        Float,
        Advanced,
        "0.000000",
        "least seconds between scrub chunks; clients' latency decides where it is 0",
    ),
    o(
        "osd_snap_trim_sleep",
        Float,
        Advanced,
        "0.000000",
        "least seconds between objects that are trimmed",
    ),
    r("public_addr", Addr, Basic, "-", "address for clients"),
    r(
        "public_bind_addr",
        Addr,
        Advanced,
        "-",
        "address a monitor listens on, where it differs from the one it is known by",
    ),
    r("public_network", Str, Advanced, "", "networks for clients"),
    o(
        "rados_mon_op_timeout",
        Secs,
        Advanced,
        "0",
        "seconds librados waits for a monitor; 0 for ever",
    ),
    o("rados_osd_op_timeout", Secs, Advanced, "0", "seconds librados waits for an OSD; 0 for ever"),
    o("rbd_cache", Bool, Advanced, "true", "librbd caches writes"),
    o("rbd_cache_max_dirty", Size, Advanced, "25165824", "dirty bytes at which librbd writes wait"),
    o("rbd_cache_policy", Str, Advanced, "writearound", "how librbd caches"),
    o("rbd_cache_size", Size, Advanced, "33554432", "bytes of librbd's cache"),
    o(
        "rbd_cache_writethrough_until_flush",
        Bool,
        Advanced,
        "true",
        "librbd writes through until the first flush",
    ),
    o("rbd_compression_hint", Str, Basic, "none", "compression hint librbd gives"),
    r(
        "rbd_config_pool_override_update_timestamp",
        Uint,
        Dev,
        "0",
        "when a pool's or image's options changed last",
    ),
    o("rbd_default_data_pool", Str, Advanced, "", "pool for the data of new images"),
    o(
        "rbd_default_features",
        Str,
        Advanced,
        "layering,exclusive-lock,object-map,fast-diff,deep-flatten",
        "features of new images",
    ),
    o("rbd_default_order", Uint, Advanced, "22", "object size of new images, as a power of two"),
    o("rbd_default_pool", Str, Advanced, "rbd", "pool used when none is named"),
    o("rbd_default_stripe_count", Uint, Advanced, "0", "stripe count of new images"),
    o("rbd_default_stripe_unit", Size, Advanced, "0", "stripe unit of new images"),
    o("rbd_read_from_replica_policy", Str, Basic, "default", "which replica librbd reads from"),
    o("rgw_frontends", Str, Basic, "beast port=7480", "what the object gateway listens on"),
    o("rgw_max_chunk_size", Size, Advanced, "4194304", "bytes the object gateway writes at once"),
    o("rgw_thread_pool_size", Int, Basic, "512", "threads of the object gateway"),
    r("run_dir", Str, Advanced, "/var/run/ceph", "directory of sockets and lock files"),
    r(
        "spirula_memory",
        Size,
        Basic,
        "536870912",
        "memory of a process: caches and payloads in flight are kept below it",
    ),
    r(
        "spirula_reactors",
        Uint,
        Advanced,
        "0",
        "event-loop threads of a process; 0 for one per two cores",
    ),
    o(
        "timeout_probe_ms",
        Millisecs,
        Dev,
        "2000",
        "milliseconds between probes of a silent peer (ignored)",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_a_value_of_its_option() {
        for o in OPTIONS {
            // Ceph, too, shows the usual features by name, and stores them as a number.
            let default = if o.name == "rbd_default_features" { "61" } else { o.default };
            assert_eq!(o.normalise(o.default).as_deref(), Ok(default), "{}", o.name);
        }
        let mut names: Vec<_> = OPTIONS.iter().map(|o| o.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), OPTIONS.len(), "a name occurs twice");
    }

    #[test]
    fn values_are_brought_into_one_form() {
        assert_eq!(find("osd-max-backfills").unwrap().normalise("2").unwrap(), "2");
        assert_eq!(find("osd_memory_target").unwrap().normalise("4G").unwrap(), "4294967296");
        assert_eq!(find("mon_allow_pool_delete").unwrap().normalise("yes").unwrap(), "true");
        assert!(find("osd_max_backfills").unwrap().normalise("many").is_err());
        assert!(find("no_such_option").is_none());
    }

    /// Every option whose type is a size takes what Ceph takes, and is stored as bytes.
    #[test]
    fn sizes_are_taken_as_people_write_them() {
        let units =
            [("", 1), ("B", 1), ("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30), ("T", 1 << 40)];
        for (unit, factor) in units {
            for end in ["", "i", "iB"].into_iter().filter(|end| end.is_empty() || factor > 1) {
                assert_eq!(
                    parse_size(&format!("10{unit}{end}")),
                    Some(10 * factor),
                    "10{unit}{end}"
                );
            }
        }
        assert_eq!(parse_size("1Pi"), Some(1 << 50));
        assert_eq!(parse_size("1Ei"), Some(1 << 60));
        for bad in ["", "K", "Ki", "10i", "10Bi", "10Kx", "10KiBi", "10X", "-1", "1.5G", "16Ei"] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
        let mut sizes = 0;
        for option in known::all().iter().filter(|o| o.kind == Kind::Size) {
            let bounds = known::facts(option.name).map(|f| (f.min, f.max)).unwrap_or_default();
            if bounds == ("", "") {
                assert_eq!(option.normalise("3Gi").as_deref(), Ok("3221225472"), "{}", option.name);
                sizes += 1;
            }
        }
        assert!(sizes > 50, "{sizes} options");
    }

    /// What Ceph 16.2 stores when it is given these, each found by `config set` and `config dump`;
    /// `None` for what it refuses.
    #[test]
    fn values_are_stored_in_the_form_in_which_ceph_stores_them() {
        for (name, given, stored) in [
            ("rbd_default_features", "layering,exclusive-lock", Some("5")),
            ("rbd_default_features", "layering, striping", Some("3")),
            (
                "rbd_default_features",
                "layering,exclusive-lock,object-map,fast-diff,deep-flatten",
                Some("61"),
            ),
            ("rbd_default_features", " 61 ", Some("61")),
            ("rbd_default_features", "", Some("61")),
            ("rbd_default_features", "0", Some("0")),
            ("rbd_default_features", "data-pool", Some("128")),
            ("rbd_default_features", "operations", Some("0")),
            ("rbd_default_features", "dirty-cache", Some("0")),
            ("rbd_default_features", "256", None),
            ("rbd_default_features", "layering,", None),
            ("rbd_default_features", "Layering", None),
            ("rbd_default_features", "-1", None),
            ("rbd_default_pool", "a/b", Some("rbd")),
            ("rbd_default_pool", "", Some("rbd")),
            ("rbd_default_pool", " ok", Some(" ok")),
            ("rbd_default_data_pool", "a@b", Some("")),
            ("mon_op_complaint_time", "1h 30m", Some("5400")),
            ("mon_op_complaint_time", "1h30m", Some("5400")),
            ("mon_op_complaint_time", "1h30", Some("3630")),
            ("mon_op_complaint_time", "1 hour 5", Some("3605")),
            ("mon_op_complaint_time", "1d 2h 3m 4s", Some("93784")),
            ("mon_op_complaint_time", "", Some("0")),
            ("mon_op_complaint_time", "1.5h", None),
            ("mon_op_complaint_time", "h", None),
            ("mon_op_complaint_time", "1hh", None),
            ("mon_op_complaint_time", "-5", None),
            ("client_mount_timeout", "5m", Some("300")),
            ("client_mount_timeout", "90", Some("90")),
            ("client_mount_timeout", "90.000000", Some("90")),
            ("client_mount_timeout", "90.5", None),
            ("mon_reweight_min_bytes_per_osd", "1M", Some("1048576")),
            ("mon_reweight_min_bytes_per_osd", "4Ki", Some("4096")),
            ("log_to_file", "2", Some("true")),
            ("log_to_file", "-1", Some("true")),
            ("log_to_file", "00", Some("false")),
            ("log_to_file", "t", None),
            ("log_to_file", "1.0", None),
            (
                "osd_uuid",
                "00000000-0000-0000-0000-0000000000AB",
                Some("00000000-0000-0000-0000-0000000000ab"),
            ),
            ("osd_uuid", "x", None),
            ("bluestore_compression_mode", "", None),
            ("osd_pool_default_type", "", None),
            ("osd_op_queue", "", None),
        ] {
            assert_eq!(
                find(name).unwrap().normalise(given).ok().as_deref(),
                stored,
                "{name} {given:?}"
            );
        }
    }

    #[test]
    fn what_was_stored_with_another_type_gets_the_form_of_today() {
        for (name, stored, now) in [
            ("client_mount_timeout", "90.000000", "90"),
            ("client_mount_timeout", "0.500000", "1"),
            ("client_mount_timeout", "90", "90"),
            ("client_mount_timeout", "5m", "300"),
            ("client_mount_timeout", "-1.000000", "-1.000000"),
            ("client_mount_timeout", "18446744073709551615.5", "18446744073709551615.5"),
            ("client_mount_timeout", "x", "x"),
            ("mon_reweight_min_bytes_per_osd", "1048576", "1048576"),
            ("rbd_default_features", "layering,exclusive-lock", "5"),
            ("rbd_default_features", "forced", "forced"),
            ("mon_osd_full_ratio", "0.950000", "0.950000"),
        ] {
            let option = find(name).unwrap();
            assert_eq!(option.of_stored(stored), now, "{name} {stored}");
            assert_eq!(option.of_stored(now), now, "{name}: once is enough");
        }
    }

    #[test]
    fn nearest_name_is_found_for_slips_and_none_for_strangers() {
        assert_eq!(nearest("osd_max_backfils"), Some("osd_max_backfills"));
        assert_eq!(nearest("public netwrok"), Some("public_network"));
        assert_eq!(nearest("xyzzy"), None);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
