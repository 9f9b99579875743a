//! Commands that every daemon answers alike, by `ceph tell` and by its admin socket.

use crate::{Settings, Source, options};
use serde_json::{Map, Value, json};
use spirula_types::{errno, version};

/// Signature and help of each, in Ceph's notation.
pub const COMMANDS: &[(&str, &str)] = &[
    ("config diff", "dump diff of current config and default config"),
    (
        "config diff get name=var,type=CephString",
        "dump diff get <field>: dump diff of current and default config setting <field>",
    ),
    ("config get name=var,type=CephString", "config get <field>: get the config value"),
    ("config help name=var,type=CephString,req=false", "get config setting schema and descriptions"),
    (
        "config set name=var,type=CephString name=val,type=CephString,n=N",
        "config set <field> <val> [<val> ...]: set a config variable",
    ),
    ("config show", "dump current config settings"),
    ("config unset name=var,type=CephString", "config unset <field>: unset a config variable"),
    ("get_command_descriptions", "list available commands"),
    ("git_version", "get git sha1"),
    ("help", "list available commands"),
    ("injectargs name=injected_args,type=CephString,n=N", "inject configuration arguments into running daemon"),
    ("log dump", "dump recent log entries to log file"),
    ("log flush", "flush log entries to log file"),
    ("log reopen", "reopen log file"),
    (
        "perf histogram dump name=logger,type=CephString,req=false name=counter,type=CephString,req=false",
        "dump perf histogram values",
    ),
    ("version", "get ceph version"),
];

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

/// Result of a command: its JSON, or (positive errno, why).
pub type Outcome = Result<Value, (i32, String)>;

/// Does this command change something? Then it needs more than the right to look.
pub fn changes(prefix: &str) -> bool {
    matches!(prefix, "config set" | "config unset" | "injectargs")
}

/// Runs one of [`COMMANDS`]; `None` for any other, and for the lists of commands
/// (`help`, `get_command_descriptions`), which only the daemon knows.
pub fn run(prefix: &str, args: &Map<String, Value>, settings: &mut Settings) -> Option<Outcome> {
    let text = |key: &str| match args.get(key) {
        Some(Value::String(s)) => Ok(s.clone()),
        Some(Value::Array(a)) => Ok(a.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")),
        Some(Value::Number(n)) => Ok(n.to_string()),
        Some(Value::Bool(b)) => Ok(b.to_string()),
        _ => Err((errno::EINVAL, format!("{prefix}: argument '{key}' is missing"))),
    };
    let set = |settings: &mut Settings, name: &str, value: &str| {
        settings.set(Source::Override, name, value).map_err(|why| (errno::EINVAL, why))?;
        let live = options::find(name).is_none_or(|o| o.runtime);
        let note = match options::find(name) {
            Some(o) if o.is_ignored() => format!("{name} = '{value}' (has no effect in this version)"),
            _ if live => String::new(),
            _ => format!("{name} = '{value}' (not observed, change may require restart)"),
        };
        Ok(json!({ "success": note }))
    };
    let no_such = |name: &str| (errno::ENOENT, format!("error getting '{name}': {}", options::unknown(name)));
    Some(match prefix {
        "version" => Ok(json!({
            "version": version::CEPH, "release": version::RELEASE, "release_type": "stable",
            "spirula_version": env!("CARGO_PKG_VERSION"),
        })),
        "git_version" => Ok(json!({"git_version": concat!("spirula-", env!("CARGO_PKG_VERSION"))})),
        "config show" => Ok(json!(settings.all())),
        "config diff" => Ok(json!({"diff": settings.diff()})),
        "config diff get" => text("var").map(|name| {
            let name = options::normal_name(&name);
            let row = settings.diff().remove(&name);
            json!({"diff": row.map(|r| Map::from_iter([(name, json!(r))])).unwrap_or_default()})
        }),
        "config get" => text("var").and_then(|name| match settings.get(&name) {
            Some(v) => Ok(Value::Object(Map::from_iter([(options::normal_name(&name), v.into())]))),
            None => Err(no_such(&name)),
        }),
        "config help" => match text("var") {
            Err(_) => Ok(options::OPTIONS.iter().map(help).collect()),
            Ok(name) => options::find(&name).map(help).ok_or_else(|| no_such(&name)),
        },
        "config set" => text("var").and_then(|name| text("val").and_then(|value| set(settings, &name, &value))),
        "config unset" => text("var").and_then(|name| match options::find(&name) {
            None => Err(no_such(&name)),
            Some(o) => {
                settings.unset(Source::Override, o.name);
                Ok(json!({"success": ""}))
            }
        }),
        "injectargs" => text("injected_args").and_then(|all| inject(&all, |name, value| set(settings, name, value))),
        // Everything goes to stderr unbuffered: it is flushed.
        "log flush" => Ok(json!({})),
        "log reopen" => Err((
            errno::EOPNOTSUPP,
            "this version logs to standard error: whoever started the daemon holds the file, and reopens it".to_owned(),
        )),
        "log dump" => Err((
            errno::EOPNOTSUPP,
            "this version keeps no log entries that it has not written: there is nothing more to dump".to_owned(),
        )),
        "perf histogram dump" => Ok(json!({})),
        _ => return None,
    })
}

/// `--a=1 --b 2` → one `set` after the other.
fn inject(all: &str, mut set: impl FnMut(&str, &str) -> Outcome) -> Outcome {
    let mut done = json!({"success": ""});
    let mut words = all.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let Some(option) = word.strip_prefix("--") else {
            return Err((errno::EINVAL, format!("injectargs: '{word}' is not --option=value")));
        };
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, value),
            None => match words.next_if(|w| !w.starts_with("--")) {
                Some(value) => (option, value),
                None => return Err((errno::EINVAL, format!("injectargs: '--{option}' has no value"))),
            },
        };
        done = set(name, value)?;
    }
    Ok(done)
}

fn help(o: &options::OptionDef) -> Value {
    json!({
        "name": o.name, "type": o.kind.name(), "level": o.level.name(), "desc": o.desc, "default": o.default,
        "can_update_at_runtime": o.runtime,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_on(s: &mut Settings, prefix: &str, args: &Value) -> Outcome {
        run(prefix, args.as_object().unwrap(), s).unwrap()
    }

    #[test]
    fn options_are_set_shown_and_unset() {
        let mut s = Settings::default();
        run_on(&mut s, "config set", &json!({"var": "osd_max_backfills", "val": ["3"]})).unwrap();
        let got = run_on(&mut s, "config get", &json!({"var": "osd-max-backfills"})).unwrap();
        assert_eq!(got, json!({"osd_max_backfills": "3"}));
        assert_eq!(run_on(&mut s, "config diff", &json!({})).unwrap()["diff"]["osd_max_backfills"]["override"], "3");
        run_on(&mut s, "injectargs", &json!({"injected_args": ["--osd-max-backfills 2", "--debug_osd=9/9"]})).unwrap();
        assert_eq!(run_on(&mut s, "config show", &json!({})).unwrap()["debug_osd"], "9/9");
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

    /// What nothing here acts on is taken, and the answer says so; what there is none of is refused.
    #[test]
    fn what_does_nothing_says_so() {
        let mut s = Settings::default();
        let note = run_on(&mut s, "config set", &json!({"var": "osd_memory_target", "val": "6442450944"})).unwrap();
        assert!(note["success"].as_str().unwrap().contains("no effect"), "{note}");
        let note = run_on(&mut s, "config set", &json!({"var": "osd_max_backfills", "val": "3"})).unwrap();
        assert_eq!(note["success"], "");
        assert!(run_on(&mut s, "config help", &json!({"var": "debug_osd"})).unwrap().to_string().contains("(ignored)"));
        for prefix in ["log dump", "log reopen"] {
            let (code, why) = run_on(&mut s, prefix, &json!({})).unwrap_err();
            assert!(code == errno::EOPNOTSUPP && why.starts_with("this version "), "{prefix}: {why}");
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
