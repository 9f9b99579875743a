//! `ceph tell osd.N …`: the commands an OSD answers itself.

use serde_json::{Map, Value};
use spirula_settings::common;
use spirula_types::errno;

/// The answer to a command.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// 0 or −errno.
    pub result: i32,
    /// Text for stderr.
    pub status: String,
    /// Text for stdout.
    pub output: String,
}

impl Answer {
    /// Success with JSON, indented as daemons print it.
    pub fn json(v: &Value) -> Self {
        Self { output: spirula_format::pretty(v), ..Self::default() }
    }

    /// A failure (positive errno) with its reason.
    pub fn fail(errno: i32, why: impl Into<String>) -> Self {
        Self { result: -errno, status: why.into(), output: String::new() }
    }
}

/// What a command asks for.
#[derive(Debug, PartialEq)]
pub enum Tell {
    /// The list of commands.
    Descriptions,
    /// The same, as a list for people.
    Help,
    /// What every daemon answers alike.
    Common(String, Map<String, Value>),
    /// Write `count` bytes in pieces of `size` to the store and time it.
    Bench {
        /// Bytes in all.
        count: u64,
        /// Bytes of each write.
        size: u64,
        /// Bytes of each object, 0 for one object per write.
        object_size: u64,
    },
    /// Counters: all, those of one logger, one counter.
    PerfDump(Map<String, Value>),
    /// What the counters are.
    PerfSchema(Map<String, Value>),
    /// Counters begin again at nothing.
    PerfReset(String),
    /// State of the daemon.
    Status,
    /// `ceph pg N query`.
    PgQuery(String),
    /// `ceph pg N list_unfound`, after an object (as JSON).
    ListUnfound(String, Option<Value>),
    /// `ceph pg N mark_unfound_lost`: the PG, and whether to go back to an older version.
    MarkLost(String, bool),
    /// Requests being worked on.
    OpsInFlight,
    /// The slowest of the latest requests, oldest or slowest first.
    HistoricOps(bool),
    /// Those of them that were very slow.
    HistoricSlowOps,
    /// Requests that have been worked on for suspiciously long.
    BlockedOps,
    /// Memory by what it is used for.
    Mempools,
    /// Clients and networks that may not come.
    Blocklist,
    /// Pools with PGs here.
    MappedPools,
    /// Scrubs under way.
    ScrubReservations,
    /// Devices below the store.
    Devices,
    /// What the devices below the store say of their health.
    Smart,
    /// Report to the manager now; the answer is the report's number.
    FlushStats,
    /// Who watches objects.
    Watchers,
    /// What background work may do, and does.
    Scheduler,
    /// Who recovers, who waits to.
    Reservations,
    /// When each PG is to be scrubbed.
    Scrubs,
    /// What clients were told to hold back.
    Backoffs,
    /// Which states PGs went through.
    PassedStates,
    /// How long PGs stood in which states.
    SpentStates,
    /// Count that anew.
    ResetSpentStates,
    /// Who is connected.
    Sessions,
    /// Write back what the store holds in memory.
    Flush,
    /// The same, and the time that it took.
    Compact,
    /// What the store's caches hold.
    CacheStatus,
    /// Let go of it.
    CacheDrop,
    /// Who waits for the store or for a turn, by class.
    Queues,
    /// An object's omap: the pool's name, the object's, with its namespace before a slash.
    Omap(String, String),
    /// Tell the monitor now that we run.
    Beacon,
    /// In how many pieces the free space lies: by their lengths, or by their number.
    Fragmentation(bool),
    /// How long heartbeats take, where it is so many milliseconds or more.
    Network(Option<u64>),
    /// No delay before recovery begins.
    NoDelay,
    /// Requests of the OSD's own as a client.
    OwnRequests,
    /// What the profiler of Ceph's allocator does: there is none.
    CpuProfiler,
    /// What Ceph's OSD does and ours does not, and why.
    Absent(&'static str),
}

/// Commands of Ceph's OSDs that nothing here stands behind.
const ABSENT: &[(&str, &str, &str)] = &[
    ("bluefs stats", "", "this version's OSDs are no BlueStore: see perf dump"),
    ("bluefs files list", "", "this version's OSDs are no BlueStore: see perf dump"),
    ("bluestore allocator dump block", "", "this version's OSDs are no BlueStore: see perf dump"),
    (
        "debug dump_missing",
        " name=filename,type=CephFilepath",
        "this version writes no files by order: `pg query` and `pg list_unfound` tell what is \
            missing",
    ),
    (
        "set_recovery_delay",
        " name=utime,type=CephInt,req=false",
        "this version delays no recovery by order: it goes by clients' latency",
    ),
];

const COMMANDS: &[(&str, &str, &str)] = &[
    ("status", "", "high-level status of OSD"),
    (
        "bench",
        r#" name=count,type=CephInt,req=false name=size,type=CephInt,req=false name=object_size,type=CephInt,req=false"#,
        "OSD benchmark: write <count> <size>-byte objects(in objects of <object_size> bytes), \
            (default count=1G default size=4MB). Results in log.",
    ),
    (
        "perf dump",
        " name=logger,type=CephString,req=false name=counter,type=CephString,req=false",
        "dump perfcounters value",
    ),
    (
        "perf schema",
        " name=logger,type=CephString,req=false name=counter,type=CephString,req=false",
        "dump perfcounters schema",
    ),
    (
        "pg",
        " name=pgid,type=CephPgid name=cmd,type=CephChoices,strings=query",
        "show details of a specific pg",
    ),
    (
        "pg",
        " name=pgid,type=CephPgid name=cmd,type=CephChoices,strings=mark_unfound_lost \
            name=mulcmd,type=CephChoices,strings=revert|delete",
        "mark all unfound objects in this pg as lost, either removing or reverting to a prior \
            version if one is available",
    ),
    (
        "pg",
        " name=pgid,type=CephPgid name=cmd,type=CephChoices,strings=list_unfound \
            name=offset,type=CephString,req=false",
        "list unfound objects on this pg, perhaps starting at an offset given in JSON",
    ),
    (
        "mark_unfound_lost",
        " name=pgid,type=CephPgid,req=false name=mulcmd,type=CephChoices,strings=revert|delete",
        "mark all unfound objects in this pg as lost, either removing or reverting to a prior \
            version if one is available",
    ),
    (
        "list_unfound",
        " name=pgid,type=CephPgid,req=false name=offset,type=CephString,req=false",
        "list unfound objects on this pg, perhaps starting at an offset given in JSON",
    ),
    ("query", " name=pgid,type=CephPgid,req=false", "show details of a specific pg"),
    ("dump_ops_in_flight", "", "show the ops currently in flight"),
    ("ops", "", "show the ops currently in flight"),
    ("dump_historic_ops", "", "show recent ops"),
    ("dump_historic_ops_by_duration", "", "show slowest recent ops, sorted by duration"),
    ("dump_historic_slow_ops", "", "show slowest recent ops"),
    ("dump_blocked_ops", "", "show the blocked ops currently in flight"),
    ("dump_mempools", "", "get mempool stats"),
    ("dump_blocklist", "", "dump blocklisted clients and times"),
    ("get_mapped_pools", "", "dump pools whose PG(s) are mapped to this OSD."),
    ("dump_scrub_reservations", "", "show recovery reservations"),
    ("list_devices", "", "list OSD devices."),
    ("flush_pg_stats", "", "flush pg stats"),
    ("dump_watchers", "", "show clients which have active watches, and on which objects"),
    (
        "dump_osd_network",
        " name=value,type=CephInt,req=false",
        "Dump osd heartbeat network ping times",
    ),
    ("objecter_requests", "", "show in-progress osd requests"),
    (
        "cpu_profiler",
        " name=arg,type=CephChoices,strings=status|flush",
        "run cpu profiling on daemon",
    ),
    (
        "smart",
        " name=devid,type=CephString,req=false",
        "query health metrics for underlying device (refused where there is one to ask: no SMART \
            data is read)",
    ),
    ("compact", "", "write what the store holds in memory to its disk"),
    (
        "perf reset",
        " name=var,type=CephString",
        "perf reset <name>: perf reset all or one perfcounter name",
    ),
    ("dump_scheduler", "", "show clients' latency, the limit on background work, and what it does"),
    ("dump_recovery_reservations", "", "show recovery reservations"),
    ("dump_scrubs", "", "print scheduled scrubs"),
    ("dump_backoffs", "", "show what clients were told to hold back"),
    ("dump_pgstate_history", "", "show recent state history"),
    ("dump_pg_recovery_stats", "", "dump pg recovery statistics"),
    ("reset_pg_recovery_stats", "", "reset pg recovery statistics"),
    ("sessions", "", "list existing sessions"),
    (
        "cache drop",
        "",
        "let go of all that the store's caches hold, the system's before its device too",
    ),
    ("cache status", "", "show what the store's caches hold"),
    ("dump_op_pq_state", "", "dump op queue state"),
    (
        "getomap",
        " name=pool,type=CephPoolname name=objname,type=CephObjectname",
        "output entire object map",
    ),
    ("send_beacon", "", "send OSD beacon to mon immediately"),
    (
        "bluestore allocator score block",
        "",
        "give score on allocator fragmentation (0-no fragmentation, 1-absolute fragmentation)",
    ),
    (
        "bluestore allocator fragmentation block",
        "",
        "give allocator fragmentation (0-no fragmentation, 1-absolute fragmentation)",
    ),
    ("flush_store_cache", "", "write what the store holds in memory to its disk"),
];

/// The list of commands in the form of `get_command_descriptions`.
pub fn descriptions() -> Value {
    let own =
        COMMANDS.iter().chain(ABSENT).map(|(words, args, help)| (format!("{words}{args}"), *help));
    let all = common::COMMANDS.iter().map(|(sig, help)| ((*sig).to_owned(), *help)).chain(own);
    let row = |(i, (sig, help)): (usize, (String, &str))| {
        (format!("cmd{i:03}"), common::descriptor(&sig, help, "osd", "rw"))
    };
    Value::Object(all.enumerate().map(row).collect())
}

/// The commands and what they do.
pub fn help() -> Value {
    let own = COMMANDS.iter().chain(ABSENT).map(|(words, _, help)| ((*words).to_owned(), *help));
    let all = common::COMMANDS.iter().map(|(sig, help)| (common::words(sig), *help)).chain(own);
    let all: std::collections::BTreeMap<String, &str> = all.collect();
    Value::Object(all.into_iter().map(|(k, v)| (k, v.into())).collect())
}

/// Understands a command.
///
/// # Errors
/// The answer to give when it is malformed or unknown.
pub fn parse(cmd: &[String]) -> Result<Tell, Answer> {
    let text = cmd.first().map_or("", String::as_str);
    let v = common::first_json(text)
        .map_err(|e| Answer::fail(errno::EINVAL, format!("bad command: not JSON: {e}")))?;
    let Some(prefix) = v["prefix"].as_str() else {
        return Err(Answer::fail(errno::EINVAL, "bad command: no 'prefix'"));
    };
    let number = |key: &str, default: u64| match &v[key] {
        Value::Null => Ok(default),
        n => n.as_u64().or_else(|| n.as_str()?.parse().ok()).ok_or_else(|| {
            Answer::fail(errno::EINVAL, format!("{prefix}: '{key}' must be a number, not {n}"))
        }),
    };
    Ok(match prefix {
        "get_command_descriptions" => Tell::Descriptions,
        "help" => Tell::Help,
        "status" => Tell::Status,
        "bench" if !v["object_num"].is_null() => {
            let why = "bench: this version makes as many objects as it needs: 'object_num' cannot \
                be given";
            return Err(Answer::fail(errno::EOPNOTSUPP, why));
        }
        "bench" => Tell::Bench {
            count: number("count", 1 << 30)?,
            size: number("size", 4 << 20)?,
            object_size: number("object_size", 0)?,
        },
        "perf dump" => Tell::PerfDump(v.as_object().cloned().unwrap_or_default()),
        "perf schema" => Tell::PerfSchema(v.as_object().cloned().unwrap_or_default()),
        "perf reset" => match v["var"].as_str() {
            Some(name) => Tell::PerfReset(name.to_owned()),
            None => {
                return Err(Answer::fail(errno::EINVAL, "perf reset: argument 'var' is missing"));
            }
        },
        "pg" | "query" | "list_unfound" | "mark_unfound_lost" => {
            match (
                v["cmd"].as_str().unwrap_or(if prefix == "pg" { "query" } else { prefix }),
                v["pgid"].as_str(),
            ) {
                ("query", Some(pgid)) => Tell::PgQuery(pgid.to_owned()),
                ("list_unfound", Some(pgid)) => {
                    let offset = match v["offset"].as_str() {
                        None => None,
                        Some(text) => Some(serde_json::from_str(text).map_err(|e| {
                            Answer::fail(
                                errno::EINVAL,
                                format!("error parsing offset: not an object in JSON: {e}"),
                            )
                        })?),
                    };
                    Tell::ListUnfound(pgid.to_owned(), offset)
                }
                ("mark_unfound_lost", Some(pgid)) => match v["mulcmd"].as_str() {
                    Some("revert") => Tell::MarkLost(pgid.to_owned(), true),
                    Some("delete") => Tell::MarkLost(pgid.to_owned(), false),
                    _ => {
                        let why = "mode must be 'revert' or 'delete'; mark not yet implemented";
                        return Err(Answer::fail(errno::EINVAL, why));
                    }
                },
                (other, Some(_)) => {
                    return Err(Answer::fail(
                        errno::EINVAL,
                        format!("pg: unknown command '{other}'"),
                    ));
                }
                _ => return Err(Answer::fail(errno::EINVAL, "pg: argument 'pgid' is missing")),
            }
        }
        "dump_ops_in_flight" | "ops" => Tell::OpsInFlight,
        "dump_historic_ops" => Tell::HistoricOps(false),
        "dump_historic_ops_by_duration" => Tell::HistoricOps(true),
        "dump_historic_slow_ops" => Tell::HistoricSlowOps,
        "dump_blocked_ops" => Tell::BlockedOps,
        "dump_mempools" => Tell::Mempools,
        "dump_blocklist" => Tell::Blocklist,
        "get_mapped_pools" => Tell::MappedPools,
        "dump_scrub_reservations" => Tell::ScrubReservations,
        "list_devices" => Tell::Devices,
        "smart" => Tell::Smart,
        "flush_pg_stats" => Tell::FlushStats,
        "dump_watchers" => Tell::Watchers,
        "dump_osd_network" => {
            Tell::Network(if v["value"].is_null() { None } else { Some(number("value", 0)?) })
        }
        "objecter_requests" => Tell::OwnRequests,
        // None is so already.
        "set_recovery_delay" if number("utime", 0)? == 0 => Tell::NoDelay,
        "cpu_profiler" => Tell::CpuProfiler,
        "compact" => Tell::Compact,
        "dump_scheduler" => Tell::Scheduler,
        "dump_recovery_reservations" => Tell::Reservations,
        "dump_scrubs" => Tell::Scrubs,
        "dump_backoffs" => Tell::Backoffs,
        "dump_pgstate_history" => Tell::PassedStates,
        "dump_pg_recovery_stats" => Tell::SpentStates,
        "reset_pg_recovery_stats" => Tell::ResetSpentStates,
        "sessions" => Tell::Sessions,
        "flush_store_cache" => Tell::Flush,
        "cache status" => Tell::CacheStatus,
        "cache drop" => Tell::CacheDrop,
        "dump_op_pq_state" => Tell::Queues,
        "getomap" => match (v["pool"].as_str(), v["objname"].as_str()) {
            (Some(pool), Some(name)) => Tell::Omap(pool.to_owned(), name.to_owned()),
            _ => {
                return Err(Answer::fail(
                    errno::EINVAL,
                    "getomap: arguments 'pool' and 'objname' are needed",
                ));
            }
        },
        "send_beacon" => Tell::Beacon,
        "bluestore allocator score block" => Tell::Fragmentation(true),
        "bluestore allocator fragmentation block" => Tell::Fragmentation(false),
        other if common::COMMANDS.iter().any(|(sig, _)| common::words(sig) == other) => {
            Tell::Common(other.to_owned(), v.as_object().cloned().unwrap_or_default())
        }
        other => match ABSENT.iter().find(|(words, ..)| *words == other) {
            Some((.., why)) => Tell::Absent(why),
            None => {
                return Err(Answer::fail(
                    errno::EINVAL,
                    format!("command '{other}' is not known to this OSD"),
                ));
            }
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn p(s: &str) -> Result<Tell, Answer> {
        parse(&[s.to_owned()])
    }

    #[test]
    fn commands_are_understood_with_defaults() {
        assert!(
            matches!(p(r#"{"prefix": "version"}"#), Ok(Tell::Common(prefix, _)) if prefix == "version")
        );
        let bench = Tell::Bench { count: 1 << 20, size: 65536, object_size: 0 };
        assert_eq!(p(r#"{"prefix": "bench", "count": 1048576, "size": 65536}"#), Ok(bench));
        assert_eq!(
            p(r#"{"prefix": "pg", "pgid": "2.0", "cmd": "query"}"#),
            Ok(Tell::PgQuery("2.0".into()))
        );
    }

    #[test]
    fn unknown_and_malformed_commands_are_refused_with_their_name() {
        for (s, word) in [
            (r#"{"prefix": "make coffee"}"#, "make coffee"),
            ("nonsense", "JSON"),
            ("{}", "prefix"),
            (r#"{"prefix": "bench", "count": "many"}"#, "count"),
        ] {
            let a = p(s).unwrap_err();
            assert!(a.result == -errno::EINVAL && a.status.contains(word), "{a:?}");
        }
        assert!(parse(&[]).is_err());
    }

    #[test]
    fn every_listed_command_has_words_and_typed_arguments() {
        for (_, c) in descriptions().as_object().unwrap() {
            assert!(c["sig"][0].is_string());
            for a in c["sig"].as_array().unwrap().iter().filter(|a| a.is_object()) {
                assert!(a["name"].is_string() && a["type"].is_string(), "{a}");
            }
        }
    }

    /// What a command does. `Acts`: who acts on it. `Nothing`: it says yes and changes nothing; why
    /// that is right.
    #[derive(Clone, Copy, Debug)]
    enum Does {
        Tells,
        Acts(&'static str),
        Refused,
        Nothing(&'static str),
    }

    /// Every command that an OSD is told, by `ceph tell` or at its admin socket.
    #[rustfmt::skip]
    const ROWS: &[(&str, Does)] = {
        use Does::{Acts, Nothing, Refused, Tells};
        &[
            ("0", Tells), ("version", Tells), ("git_version", Tells), ("help", Tells), ("get_command_descriptions", Tells),
            ("config diff", Tells), ("config diff get", Tells), ("config get", Tells), ("config \
                help", Tells),
            ("config show", Tells), ("config set", Acts("the OSD's settings")), ("config unset", Acts("the OSD's settings")),
            ("injectargs", Acts("the OSD's settings")), ("heap", Refused), ("log dump", Refused), ("log reopen", Refused),
            ("log flush", Nothing("daemons write their log unbuffered")),
            ("perf dump", Tells), ("perf schema", Tells), ("perf histogram dump", Tells), ("perf \
                histogram schema", Tells),
            ("perf reset", Acts("the counters")), ("status", Tells), ("bench", Acts("the store, \
                and takes it back")),
            ("pg", Acts("PGs, by mark_unfound_lost")), ("mark_unfound_lost", Acts("the PG")), ("query", Tells),
            ("list_unfound", Tells), ("dump_ops_in_flight", Tells), ("ops", Tells), ("dump_historic_ops", Tells),
            ("dump_historic_ops_by_duration", Tells), ("dump_historic_slow_ops", Tells), ("dump_blocked_ops", Tells),
            ("dump_mempools", Tells), ("dump_blocklist", Tells), ("get_mapped_pools", Tells),
            ("dump_scrub_reservations", Tells), ("list_devices", Tells), ("flush_pg_stats", Acts("the manager is told")),
            ("dump_watchers", Tells), ("dump_osd_network", Tells), ("objecter_requests", Tells),
            ("cpu_profiler", Nothing("it says that there is none, in Ceph's words")),
            ("compact", Acts("the store")), ("flush_store_cache", Acts("the store")), ("dump_scheduler", Tells),
            ("dump_recovery_reservations", Tells), ("dump_scrubs", Tells), ("dump_backoffs", Tells), ("sessions", Tells),
            ("smart", Nothing("a device without an identity is not asked; one with an identity is \
                refused")),
            ("set_recovery_delay", Refused), ("cache drop", Acts("the store's caches")), ("cache \
                status", Tells),
            ("dump_pgstate_history", Tells), ("dump_op_pq_state", Tells), ("getomap", Tells),
            ("send_beacon", Acts("the monitor is told")),
            ("bluefs stats", Refused), ("bluefs files list", Refused), ("bluestore allocator dump \
                block", Refused),
            ("bluestore allocator score block", Tells), ("bluestore allocator fragmentation \
                block", Tells),
            ("debug dump_missing", Refused), ("dump_pg_recovery_stats", Tells),
            ("reset_pg_recovery_stats", Acts("the times that PGs stood how")),
        ]
    };

    /// Nothing says yes and does nothing: a new command needs a row, and what the row says.
    #[test]
    fn every_command_does_what_its_row_says() {
        let args = r#""pgid": "1.0", "mulcmd": "revert", "var": "debug_osd", "val": ["1/1"], "injected_args": ["--debug_osd=1/1"],
            "heapcmd": "stats", "utime": 5, "pool": "p", "objname": "o""#;
        for (prefix, does) in ROWS {
            let asked = p(&format!(r#"{{"prefix": "{prefix}", {args}}}"#));
            let refused = match &asked {
                Ok(Tell::Absent(why)) => why.starts_with("this version"),
                Ok(Tell::Common(prefix, args)) => {
                    let mut settings = spirula_settings::Settings::default();
                    let done = common::run(prefix, args, &mut settings);
                    let changed = settings != spirula_settings::Settings::default();
                    assert_eq!(
                        changed,
                        matches!(does, Does::Acts(_)) && prefix != "config unset",
                        "{prefix}"
                    );
                    done.is_some_and(|d| d.is_err_and(|(e, _)| e == errno::EOPNOTSUPP))
                }
                Ok(_) => false,
                Err(e) => panic!("{prefix}: {e:?}"),
            };
            assert_eq!(refused, matches!(does, Does::Refused), "{prefix}: {asked:?}");
            if let Does::Acts(why) | Does::Nothing(why) = does {
                assert!(!why.is_empty(), "{prefix}");
            }
        }
        let words = |c: &Value| {
            c["sig"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(Value::as_str)
                .collect::<Vec<_>>()
                .join(" ")
        };
        let listed: std::collections::BTreeSet<String> =
            descriptions().as_object().unwrap().values().map(words).collect();
        assert_eq!(listed, ROWS.iter().map(|(prefix, _)| (*prefix).to_owned()).collect());
    }

    #[test]
    fn pretty_form_is_indented_by_four() {
        let a = Answer::json(&serde_json::json!({"a": [1, {"b": {}}], "c": "x"}));
        let want = "{\n    \"a\": [\n        1,\n        {\n            \"b\": {}\n        }\n    \
            ],\n    \"c\": \"x\"\n}\n";
        assert_eq!(a.output, want);
    }
}
