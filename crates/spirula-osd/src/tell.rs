//! `ceph tell osd.N …`: the commands an OSD answers itself.

use serde_json::{Value, json};
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
        let mut output = String::new();
        pretty(v, 0, &mut output);
        output.push('\n');
        Self { output, ..Self::default() }
    }

    /// A failure (positive errno) with its reason.
    pub fn fail(errno: i32, why: impl Into<String>) -> Self {
        Self { result: -errno, status: why.into(), output: String::new() }
    }
}

/// Ceph's JSON with four spaces of indentation.
fn pretty(v: &Value, depth: usize, out: &mut String) {
    let pad = |n: usize| "    ".repeat(n);
    match v {
        Value::Object(m) if !m.is_empty() => {
            out.push_str("{\n");
            for (i, (k, v)) in m.iter().enumerate() {
                out.push_str(&format!("{}{}: ", pad(depth + 1), Value::from(k.as_str())));
                pretty(v, depth + 1, out);
                out.push_str(if i + 1 < m.len() { ",\n" } else { "\n" });
            }
            out.push_str(&pad(depth));
            out.push('}');
        }
        Value::Array(a) if !a.is_empty() => {
            out.push_str("[\n");
            for (i, v) in a.iter().enumerate() {
                out.push_str(&pad(depth + 1));
                pretty(v, depth + 1, out);
                out.push_str(if i + 1 < a.len() { ",\n" } else { "\n" });
            }
            out.push_str(&pad(depth));
            out.push(']');
        }
        other => out.push_str(&other.to_string()),
    }
}

/// What a command asks for.
#[derive(Debug, PartialEq)]
pub enum Tell {
    /// The list of commands.
    Descriptions,
    /// Program version.
    Version,
    /// Write `count` bytes in pieces of `size` to the store and time it.
    Bench {
        /// Bytes in all.
        count: u64,
        /// Bytes of each write.
        size: u64,
        /// Bytes of each object, 0 for one object per write.
        object_size: u64,
    },
    /// Counters.
    PerfDump,
    /// All options.
    ConfigShow,
    /// One option.
    ConfigGet(String),
    /// Sets an option until the OSD restarts.
    ConfigSet(String, String),
    /// State of the daemon.
    Status,
    /// `ceph pg N query`.
    PgQuery(String),
    /// Requests being worked on.
    OpsInFlight,
    /// Write back what the store holds in memory.
    Flush,
}

const COMMANDS: &[(&str, &str, &str)] = &[
    ("version", "", "report version of OSD"),
    ("status", "", "high-level status of OSD"),
    (
        "bench",
        r#" name=count,type=CephInt,req=false name=size,type=CephInt,req=false name=object_size,type=CephInt,req=false name=object_num,type=CephInt,req=false"#,
        "OSD benchmark: write <count> <size>-byte objects(with <obj_size> <obj_num>), (default count=1G default size=4MB). Results in log.",
    ),
    (
        "perf dump",
        " name=logger,type=CephString,req=false name=counter,type=CephString,req=false",
        "dump perfcounters value",
    ),
    ("config show", "", "dump current config settings"),
    ("config get", " name=var,type=CephString", "config get <field>: get the config value"),
    (
        "config set",
        " name=var,type=CephString name=val,type=CephString,n=N",
        "config set <field> <val> [<val> ...]: set a config variable",
    ),
    ("injectargs", " name=injected_args,type=CephString,n=N", "inject configuration arguments into running daemon"),
    ("pg", " name=pgid,type=CephPgid name=cmd,type=CephChoices,strings=query", "show details of a specific pg"),
    ("query", " name=pgid,type=CephPgid,req=false", "show details of a specific pg"),
    ("dump_ops_in_flight", "", "show the ops currently in flight"),
    ("flush_store_cache", "", "write what the store holds in memory to its disk"),
];

/// The list of commands in the form of `get_command_descriptions`.
pub fn descriptions() -> Value {
    let mut all = serde_json::Map::new();
    for (i, (words, args, help)) in COMMANDS.iter().enumerate() {
        let mut sig: Vec<Value> = words.split(' ').map(Value::from).collect();
        for arg in args.split_whitespace() {
            let mut a = serde_json::Map::new();
            for field in arg.split(',') {
                let (k, v) = field.split_once('=').unwrap_or((field, ""));
                let v = if k == "req" { json!(v == "true") } else { json!(v) };
                a.insert(k.to_owned(), v);
            }
            sig.push(Value::Object(a));
        }
        all.insert(format!("cmd{i:03}"), json!({"sig": sig, "help": help, "module": "osd", "perm": "rw", "flags": 0}));
    }
    Value::Object(all)
}

/// Understands a command.
///
/// # Errors
/// The answer to give when it is malformed or unknown.
pub fn parse(cmd: &[String]) -> Result<Tell, Answer> {
    let text = cmd.first().map_or("", String::as_str);
    let v: Value =
        serde_json::from_str(text).map_err(|e| Answer::fail(errno::EINVAL, format!("bad command: not JSON: {e}")))?;
    let Some(prefix) = v["prefix"].as_str() else {
        return Err(Answer::fail(errno::EINVAL, "bad command: no 'prefix'"));
    };
    let text = |key: &str| match &v[key] {
        Value::String(s) => Ok(s.clone()),
        Value::Array(a) => Ok(a.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")),
        _ => Err(Answer::fail(errno::EINVAL, format!("{prefix}: argument '{key}' is missing"))),
    };
    let number = |key: &str, default: u64| match &v[key] {
        Value::Null => Ok(default),
        n => n
            .as_u64()
            .or_else(|| n.as_str()?.parse().ok())
            .ok_or_else(|| Answer::fail(errno::EINVAL, format!("{prefix}: '{key}' must be a number, not {n}"))),
    };
    Ok(match prefix {
        "get_command_descriptions" => Tell::Descriptions,
        "version" => Tell::Version,
        "status" => Tell::Status,
        "bench" => Tell::Bench {
            count: number("count", 1 << 30)?,
            size: number("size", 4 << 20)?,
            object_size: number("object_size", 0)?,
        },
        "perf dump" => Tell::PerfDump,
        "config show" => Tell::ConfigShow,
        "config get" => Tell::ConfigGet(text("var")?),
        "config set" => Tell::ConfigSet(text("var")?, text("val")?),
        "injectargs" => {
            let args = text("injected_args")?;
            let arg = args.trim().trim_start_matches('-').to_owned();
            match arg.split_once(['=', ' ']) {
                Some((k, v)) => Tell::ConfigSet(k.replace('-', "_"), v.to_owned()),
                None => {
                    return Err(Answer::fail(errno::EINVAL, format!("injectargs: '{args}' is not --option=value")));
                }
            }
        }
        "pg" | "query" => match (v["cmd"].as_str(), v["pgid"].as_str()) {
            (None | Some("query"), Some(pgid)) => Tell::PgQuery(pgid.to_owned()),
            (Some(other), _) => return Err(Answer::fail(errno::EINVAL, format!("pg: unknown command '{other}'"))),
            _ => return Err(Answer::fail(errno::EINVAL, "pg: argument 'pgid' is missing")),
        },
        "dump_ops_in_flight" | "ops" => Tell::OpsInFlight,
        "flush_store_cache" => Tell::Flush,
        other => return Err(Answer::fail(errno::EINVAL, format!("command '{other}' is not known to this OSD"))),
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
        assert_eq!(p(r#"{"prefix": "version"}"#), Ok(Tell::Version));
        let bench = Tell::Bench { count: 1 << 20, size: 65536, object_size: 0 };
        assert_eq!(p(r#"{"prefix": "bench", "count": 1048576, "size": 65536}"#), Ok(bench));
        let set = Tell::ConfigSet("osd_max_backfills".into(), "1".into());
        assert_eq!(p(r#"{"prefix": "injectargs", "injected_args": ["--osd-max-backfills=1"]}"#), Ok(set));
        assert_eq!(p(r#"{"prefix": "pg", "pgid": "2.0", "cmd": "query"}"#), Ok(Tell::PgQuery("2.0".into())));
    }

    #[test]
    fn unknown_and_malformed_commands_are_refused_with_their_name() {
        for (s, word) in [
            (r#"{"prefix": "make coffee"}"#, "make coffee"),
            ("nonsense", "JSON"),
            ("{}", "prefix"),
            (r#"{"prefix": "config get"}"#, "var"),
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

    #[test]
    fn pretty_form_is_indented_by_four() {
        let a = Answer::json(&json!({"a": [1, {"b": {}}], "c": "x"}));
        let want =
            "{\n    \"a\": [\n        1,\n        {\n            \"b\": {}\n        }\n    ],\n    \"c\": \"x\"\n}\n";
        assert_eq!(a.output, want);
    }
}
