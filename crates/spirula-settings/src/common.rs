//! Commands that every daemon answers alike, by `ceph tell` and by its admin socket.

use crate::{Settings, Source, known, log, options};
use serde_json::{Map, Value, json};
use spirula_types::{errno, version};

/// Signature and help of each, in Ceph's notation.
pub const COMMANDS: &[(&str, &str)] = &[
    ("0", "version of the admin socket's protocol"),
    ("config diff", "dump diff of current config and default config"),
    (
        "config diff get name=var,type=CephString",
        "dump diff get <field>: dump diff of current and default config setting <field>",
    ),
    ("config get name=var,type=CephString", "config get <field>: get the config value"),
    (
        "config help name=var,type=CephString,req=false",
        "get config setting schema and descriptions",
    ),
    (
        "config set name=var,type=CephString name=val,type=CephString,n=N",
        "config set <field> <val> [<val> ...]: set a config variable",
    ),
    ("config show", "dump current config settings"),
    ("config unset name=var,type=CephString", "config unset <field>: unset a config variable"),
    ("get_command_descriptions", "list available commands"),
    ("git_version", "get git sha1"),
    ("help", "list available commands"),
    (
        "injectargs name=injected_args,type=CephString,n=N",
        "inject configuration arguments into running daemon",
    ),
    ("log dump", "dump recent log entries to log file"),
    ("log flush", "flush log entries to log file"),
    ("log reopen", "reopen log file"),
    (
        "heap name=heapcmd,type=CephChoices,strings=dump|start_profiler|stop_profiler|release|get_release_rate|set_release_rate|stats name=value,type=CephString,req=false",
        "show heap usage info (available only if compiled with tcmalloc)",
    ),
    (
        "perf histogram dump name=logger,type=CephString,req=false \
            name=counter,type=CephString,req=false",
        "dump perf histogram values",
    ),
    (
        "perf histogram schema name=logger,type=CephString,req=false \
            name=counter,type=CephString,req=false",
        "dump perf histogram schema",
    ),
    ("version", "get ceph version"),
];

/// A command's JSON: the first value in the text. What follows is left alone, as Ceph does: the rbd
/// tool ends what it asks managers with a quotation mark too many.
///
/// # Errors
/// What is wrong with the text, in words.
pub fn first_json(text: &str) -> Result<Value, String> {
    match serde_json::Deserializer::from_str(text).into_iter::<Value>().next() {
        Some(value) => value.map_err(|e| e.to_string()),
        None => Err("EOF while parsing a value".to_owned()),
    }
}

/// An argument as one word.
pub fn word_of(v: &Value) -> String {
    match v {
        Value::String(s) => s.clone(),
        other => other.to_string(),
    }
}

/// An argument as one text, a list's words with spaces between them: what a capability that names
/// an argument compares. Commands take theirs by this or by [`word_of`], so that nothing of a list
/// is seen by the one and not by the other.
pub fn text_of(v: &Value) -> String {
    match v {
        Value::Array(list) => list.iter().map(word_of).collect::<Vec<_>>().join(" "),
        other => word_of(other),
    }
}

/// The words of a signature.
pub fn words(sig: &str) -> String {
    sig.split(' ').filter(|w| !w.contains('=')).collect::<Vec<_>>().join(" ")
}

/// A signature as `get_command_descriptions` lists it.
pub fn descriptor(sig: &str, help: &str, module: &str, perm: &str) -> Value {
    let word = |w: &str| -> Value {
        if !w.contains('=') {
            return w.into();
        }
        let field = |part: &str| {
            let (k, v) = part.split_once('=').unwrap_or((part, ""));
            (k.to_owned(), Value::from(v))
        };
        Value::Object(w.split(',').map(field).collect())
    };
    let sig: Vec<Value> = sig.split_whitespace().map(word).collect();
    json!({"sig": sig, "help": help, "module": module, "perm": perm, "flags": 0})
}

/// What a command gives back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// For standard output.
    pub value: Value,
    /// For standard error: what an order changed.
    pub status: String,
}

impl From<Value> for Reply {
    fn from(value: Value) -> Self {
        Self { value, status: String::new() }
    }
}

/// Result of a command, or (positive errno, why).
pub type Outcome = Result<Reply, (i32, String)>;

/// What `perf dump` and `perf schema` show of `all`: the logger and counter asked for, or all. A
/// logger or counter that there is not leaves nothing, as at Ceph's daemons.
pub fn chosen(all: Value, args: &Map<String, Value>) -> Value {
    let word = |key: &str| args.get(key).and_then(Value::as_str).filter(|w| !w.is_empty());
    let (Value::Object(mut loggers), Some(logger)) = (all.clone(), word("logger")) else {
        return all;
    };
    loggers.retain(|name, _| name == logger);
    if let (Some(counter), Some(Value::Object(rows))) = (word("counter"), loggers.get_mut(logger)) {
        rows.retain(|name, _| name == counter);
    }
    loggers.into()
}

/// The pools that `dump_mempools` tells of, in Ceph's order.
const MEMPOOLS: [&str; 29] = [
    "bloom_filter",
    "bluestore_alloc",
    "bluestore_cache_data",
    "bluestore_cache_onode",
    "bluestore_cache_meta",
    "bluestore_cache_other",
    "bluestore_Buffer",
    "bluestore_Extent",
    "bluestore_Blob",
    "bluestore_SharedBlob",
    "bluestore_inline_bl",
    "bluestore_fsck",
    "bluestore_txc",
    "bluestore_writing_deferred",
    "bluestore_writing",
    "bluefs",
    "bluefs_file_reader",
    "bluefs_file_writer",
    "buffer_anon",
    "buffer_meta",
    "osd",
    "osd_mapbl",
    "osd_pglog",
    "osdmap",
    "osdmap_mapping",
    "pgmap",
    "mds_co",
    "unittest_1",
    "unittest_2",
];

/// The answer to `dump_mempools`: Ceph's pools, of which a daemon fills those that it counts.
pub fn mempools(counted: &[(&str, usize)]) -> Value {
    let pool = |bytes: usize| json!({"items": u8::from(bytes > 0), "bytes": bytes});
    let of = |name: &str| {
        counted.iter().filter(|(n, _)| *n == name).map(|(_, bytes)| *bytes).sum::<usize>()
    };
    let rows: Map<String, Value> =
        MEMPOOLS.iter().map(|name| ((*name).to_owned(), pool(of(name)))).collect();
    json!({"mempool": {"by_pool": rows, "total": pool(counted.iter().map(|(_, bytes)| *bytes).sum::<usize>())}})
}

/// Does this command change something? Then it needs more than the right to look.
pub fn changes(prefix: &str) -> bool {
    matches!(prefix, "config set" | "config unset" | "injectargs")
}

/// Runs one of [`COMMANDS`]; `None` for any other, and for the lists of commands
/// (`help`, `get_command_descriptions`), which only the daemon knows.
pub fn run(prefix: &str, args: &Map<String, Value>, settings: &mut Settings) -> Option<Outcome> {
    let text = |key: &str| match args.get(key) {
        Some(Value::String(s)) => Ok(s.clone()),
        Some(v @ (Value::Array(_) | Value::Number(_) | Value::Bool(_))) => Ok(text_of(v)),
        _ => Err((errno::EINVAL, format!("{prefix}: argument '{key}' is missing"))),
    };
    let set = |settings: &mut Settings, name: &str, value: &str| {
        let Some(o) = options::find(name) else {
            return Err((errno::ENOENT, options::unknown(name)));
        };
        settings.set(Source::Override, name, value).map_err(|why| (errno::EINVAL, why))?;
        let note = match () {
            () if o.is_ignored() => "(has no effect in this version) ",
            () if !o.runtime => "(not observed, change may require restart) ",
            () => "",
        };
        Ok(format!("{} = '{}' {note}", o.name, settings.given(o.name).unwrap_or_default()))
    };
    let no_such =
        |name: &str| (errno::ENOENT, format!("error getting '{name}': {}", options::unknown(name)));
    Some(match prefix {
        "0" => Ok(json!(2).into()),
        "version" => Ok(json!({
            "version": version::CEPH, "release": version::RELEASE, "release_type": "stable",
        })
        .into()),
        "git_version" => {
            Ok(json!({"git_version": concat!("spirula-", env!("CARGO_PKG_VERSION"))}).into())
        }
        "config show" => Ok(json!(settings.shown()).into()),
        "config diff" => Ok(json!({"diff": settings.diff()}).into()),
        "config diff get" => text("var").map(|name| {
            let name = options::normal_name(&name);
            let row = settings.diff().remove(&name);
            json!({"diff": row.map(|r| Map::from_iter([(name, json!(r))])).unwrap_or_default()})
                .into()
        }),
        "config get" => text("var").and_then(|name| match settings.get(&name) {
            Some(v) => {
                Ok(Value::Object(Map::from_iter([(options::normal_name(&name), v.into())])).into())
            }
            None => Err(no_such(&name)),
        }),
        "config help" => match text("var") {
            Err(_) => {
                Ok(json!({"options": known::all().iter().map(help).collect::<Value>()}).into())
            }
            Ok(name) => options::find(&name)
                .map(|o| json!({"option": help(o)}).into())
                .ok_or_else(|| no_such(&name)),
        },
        "config set" => text("var").and_then(|name| {
            text("val").and_then(|value| {
                set(settings, &name, &value).map(|note| json!({ "success": note }).into())
            })
        }),
        "config unset" => text("var").and_then(|name| match options::find(&name) {
            None => Err(no_such(&name)),
            Some(o) => {
                settings.unset(Source::Override, o.name);
                Ok(json!({}).into())
            }
        }),
        "injectargs" => text("injected_args")
            .and_then(|all| inject(&all, |name, value| set(settings, name, value))),
        // Ceph's answer where it was built without its allocator; ours has no such orders either.
        "heap" => Err((
            errno::EOPNOTSUPP,
            "this version's allocator is not tcmalloc: there are no heap orders".to_owned(),
        )),
        // Everything goes to stderr unbuffered: it is flushed.
        "log flush" => Ok(json!({}).into()),
        "log reopen" | "log dump" => {
            let order =
                |log: &dyn log::Log| if prefix == "log dump" { log.dump() } else { log.reopen() };
            match log::get().map_or_else(|| Err("this version has no log here".to_owned()), order) {
                Ok(()) => Ok(json!({}).into()),
                Err(why) => Err((errno::EOPNOTSUPP, why)),
            }
        }
        // No daemon here has a histogram among its counters.
        "perf histogram dump" | "perf histogram schema" => Ok(json!({}).into()),
        _ => return None,
    })
}

/// `--a=1 --b 2` → one `set` after the other. What was changed is told in words, as Ceph tells it.
fn inject(all: &str, mut set: impl FnMut(&str, &str) -> Result<String, (i32, String)>) -> Outcome {
    let mut status = String::new();
    let mut words = all.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let Some(option) = word.strip_prefix("--") else {
            return Err((errno::EINVAL, format!("injectargs: '{word}' is not --option=value")));
        };
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, value),
            None => match words.next_if(|w| !w.starts_with("--")) {
                Some(value) => (option, value),
                None => {
                    return Err((errno::EINVAL, format!("injectargs: '--{option}' has no value")));
                }
            },
        };
        // An unknown name is an argument that cannot be parsed.
        status += &set(name, value).map_err(|(_, why)| (errno::EINVAL, why))?;
    }
    Ok(Reply { value: json!({}), status })
}

/// An option as `config help` prints it, with Ceph's keys and types: a number's default is a
/// number, a switch's a boolean.
pub fn help(o: &options::OptionDef) -> Value {
    let facts = known::facts(o.name).copied().unwrap_or_default();
    let list =
        |text: &str| text.split(',').filter(|w| !w.is_empty()).map(Value::from).collect::<Value>();
    let typed = |text: &str| match o.kind {
        options::Kind::Bool => Value::from(text == "true"),
        options::Kind::Uint | options::Kind::Int => {
            text.parse::<i64>().map_or_else(|_| text.into(), Value::from)
        }
        options::Kind::Float => text.parse::<f64>().map_or_else(|_| text.into(), Value::from),
        _ => text.into(),
    };
    let bound = |text: &str| if text.is_empty() { Value::from("") } else { typed(text) };
    let mut row = json!({
        "name": o.name, "type": o.kind_name(), "level": o.level.name(), "desc": o.desc, "long_desc": "",
        "default": typed(o.default), "daemon_default": bound(facts.daemon_default), "tags": list(facts.tags),
        "services": list(facts.services), "see_also": list(facts.see_also),
        "min": bound(facts.min), "max": bound(facts.max), "can_update_at_runtime": o.runtime, "flags": list(facts.flags),
    });
    if o.kind == options::Kind::Str {
        row["enum_values"] = list(facts.choices);
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_on(s: &mut Settings, prefix: &str, args: &Value) -> Result<Value, (i32, String)> {
        run(prefix, args.as_object().unwrap(), s).unwrap().map(|r| r.value)
    }

    /// Orders say what they changed: `config set` in its answer, `injectargs` on standard error; a
    /// wrong name is ENOENT to the one and EINVAL to the other.
    #[test]
    fn orders_say_what_they_changed() {
        let mut s = Settings::default();
        let args = json!({"injected_args": ["--osd_max_backfills 3 --osd_recovery_max_active=5"]});
        let reply = run("injectargs", args.as_object().unwrap(), &mut s).unwrap().unwrap();
        assert_eq!(reply.status, "osd_max_backfills = '3' osd_recovery_max_active = '5' ");
        assert_eq!(reply.value, json!({}));
        let set =
            run_on(&mut s, "config set", &json!({"var": "osd-max-backfills", "val": "2"})).unwrap();
        assert_eq!(set, json!({"success": "osd_max_backfills = '2' "}));
        assert_eq!(
            run_on(&mut s, "config set", &json!({"var": "no_such", "val": "2"})).unwrap_err().0,
            errno::ENOENT
        );
        assert_eq!(
            run_on(&mut s, "injectargs", &json!({"injected_args": "--no_such=3"})).unwrap_err().0,
            errno::EINVAL
        );
        assert_eq!(
            run_on(&mut s, "heap", &json!({"heapcmd": "stats"})).unwrap_err().0,
            errno::EOPNOTSUPP
        );
    }

    /// A word of a list that is a number is a word: capabilities see it as well ([`text_of`]).
    #[test]
    fn no_word_of_a_list_is_skipped() {
        let mut s = Settings::default();
        let args =
            json!({"injected_args": ["--osd_max_backfills", 3, "--osd_recovery_max_active", "5"]});
        let reply = run("injectargs", args.as_object().unwrap(), &mut s).unwrap().unwrap();
        assert_eq!(reply.status, "osd_max_backfills = '3' osd_recovery_max_active = '5' ");
        assert_eq!(text_of(&json!(["a", 1, null, ["b"]])), r#"a 1 null ["b"]"#);
    }

    #[test]
    fn what_follows_a_command_is_left_alone() {
        let asked = first_json("\n  {\n \"prefix\": \"rbd perf image stats\" }\"");
        assert_eq!(asked, Ok(json!({"prefix": "rbd perf image stats"})));
        assert!(
            first_json("").is_err()
                && first_json("  ").is_err()
                && first_json("{").is_err()
                && first_json("nonsense").is_err()
        );
    }

    /// `config help` has the keys and types of a real 16.2.15: numbers and booleans where it has
    /// them.
    #[test]
    fn help_has_cephs_keys_and_types() {
        let mut s = Settings::default();
        let mut of = |name: &str| {
            run_on(&mut s, "config help", &json!({"var": name})).unwrap()["option"].clone()
        };
        let keys = "can_update_at_runtime daemon_default default desc flags level long_desc max \
            min name see_also services tags type";
        let backfills = of("osd_max_backfills");
        let mut have: Vec<_> = backfills.as_object().unwrap().keys().cloned().collect();
        have.sort();
        assert_eq!(have.join(" "), keys);
        assert!(
            backfills["default"].is_number() && backfills["flags"] == json!(["runtime"]),
            "{backfills}"
        );
        assert_eq!(of("mon_allow_pool_delete")["default"], json!(false));
        assert_eq!(
            (of("osd_scrub_begin_hour")["min"].clone(), of("osd_scrub_begin_hour")["max"].clone()),
            (json!(0), json!(23))
        );
        assert_eq!(
            of("osd_op_queue")["enum_values"],
            json!(["wpq", "mclock_scheduler", "debug_random"])
        );
        assert!(
            run_on(&mut s, "config help", &json!({})).unwrap()["options"].as_array().unwrap().len()
                > 2_350
        );
    }

    #[test]
    fn counters_are_chosen_by_logger_and_name() {
        let all = json!({"osd": {"op": 1, "op_w": 2}, "store": {"txns": 3}});
        let ask = |v: Value| chosen(all.clone(), v.as_object().unwrap());
        assert_eq!(ask(json!({})), all);
        assert_eq!(ask(json!({"logger": "store"})), json!({"store": {"txns": 3}}));
        assert_eq!(ask(json!({"logger": "osd", "counter": "op_w"})), json!({"osd": {"op_w": 2}}));
        assert_eq!(ask(json!({"logger": "none"})), json!({}));
    }

    #[test]
    fn options_are_set_shown_and_unset() {
        let mut s = Settings::default();
        run_on(&mut s, "config set", &json!({"var": "osd_max_backfills", "val": ["3"]})).unwrap();
        let got = run_on(&mut s, "config get", &json!({"var": "osd-max-backfills"})).unwrap();
        assert_eq!(got, json!({"osd_max_backfills": "3"}));
        assert_eq!(
            run_on(&mut s, "config diff", &json!({})).unwrap()["diff"]["osd_max_backfills"]["override"],
            "3"
        );
        run_on(
            &mut s,
            "injectargs",
            &json!({"injected_args": ["--osd-max-backfills 2", "--debug_osd=9/9"]}),
        )
        .unwrap();
        let shown = run_on(&mut s, "config show", &json!({})).unwrap();
        assert_eq!(
            (&shown["debug_osd"], &shown["name"], &shown["cluster"]),
            (&json!("9/9"), &json!(""), &json!("ceph"))
        );
        assert_eq!(
            run_on(&mut s.clone().of("osd.7"), "config show", &json!({})).unwrap()["name"],
            "osd.7"
        );
        run_on(&mut s, "config unset", &json!({"var": "osd_max_backfills"})).unwrap();
        assert_eq!(s.get("osd_max_backfills"), Some("4"));
    }

    #[test]
    fn bad_commands_are_refused_with_what_is_wrong() {
        let mut s = Settings::default();
        for (prefix, args, word) in [
            ("config get", json!({}), "var"),
            ("config get", json!({"var": "no_such"}), "no_such"),
            ("config set", json!({"var": "osd_max_backfills"}), "val"),
            ("config set", json!({"var": "osd_max_backfills", "val": "x"}), "x"),
            ("injectargs", json!({"injected_args": "osd_max_backfills=1"}), "--option"),
            ("injectargs", json!({"injected_args": "--osd_max_backfills"}), "value"),
        ] {
            let (code, why) = run_on(&mut s, prefix, &args).unwrap_err();
            assert!(code > 0 && why.contains(word), "{prefix}: {why}");
        }
        assert_eq!(s, Settings::default());
    }

    /// What nothing here acts on is taken, and the answer says so; what there is none of is
    /// refused.
    #[test]
    fn what_does_nothing_says_so() {
        let mut s = Settings::default();
        let note =
            run_on(&mut s, "config set", &json!({"var": "osd_memory_target", "val": "6442450944"}))
                .unwrap();
        assert!(note["success"].as_str().unwrap().contains("no effect"), "{note}");
        let note =
            run_on(&mut s, "config set", &json!({"var": "osd_max_backfills", "val": "3"})).unwrap();
        assert_eq!(note["success"], "osd_max_backfills = '3' ");
        assert!(
            run_on(&mut s, "config help", &json!({"var": "debug_osd"}))
                .unwrap()
                .to_string()
                .contains("(ignored)")
        );
        // Whose process has said nothing of its log.
        for prefix in ["log dump", "log reopen"] {
            let (code, why) = run_on(&mut s, prefix, &json!({})).unwrap_err();
            assert!(
                code == errno::EOPNOTSUPP && why.starts_with("this version "),
                "{prefix}: {why}"
            );
        }
    }

    #[test]
    fn every_listed_command_is_known_here_or_to_the_daemon() {
        let mut s = Settings::default();
        for (sig, _) in COMMANDS {
            let prefix = words(sig);
            let own = matches!(prefix.as_str(), "help" | "get_command_descriptions");
            assert_eq!(run(&prefix, &Map::new(), &mut s).is_none(), own, "{prefix}");
        }
    }
}
