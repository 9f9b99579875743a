//! `config show`: the options in force at a daemon that differ from their defaults, and who set
//! them.

use super::spec::{CommandSpec, Ctx, Reply, parse_osd};
use serde_json::{Value, json};
use spirula_format::{Align, TextTable};
use spirula_types::errno;
use std::collections::BTreeMap;

pub(super) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        sig: "config show name=who,type=CephString name=key,type=CephString,req=False",
        help: "Show running configuration",
        module: "mgr",
        perm: "r",
        flags: 0,
        run: show,
    },
    CommandSpec {
        sig: "config show-with-defaults name=who,type=CephString",
        help: "Show running configuration (including compiled-in defaults)",
        module: "mgr",
        perm: "r",
        flags: 0,
        run: show_with_defaults,
    },
];

/// Who set each option to what, the one that counts first.
type Told = BTreeMap<String, Vec<(String, String)>>;

/// Options of `osd.N` as it reported them, or of this manager.
fn options_of(c: &Ctx<'_>, who: &str) -> Result<Told, Reply> {
    let no_state = || Reply::err(errno::ENOENT, format!("no config state for daemon {who}"));
    match who.split_once('.') {
        Some(("mgr", name)) if name == c.mgr.config.name => Ok(c.mgr.config.settings.told()),
        Some(("osd", _)) => {
            let osd = parse_osd(who)
                .ok_or_else(|| Reply::invalid(format!("invalid daemon name: {who}")))?;
            c.mgr.osds.get(&osd).map(|o| o.config.clone()).ok_or_else(no_state)
        }
        Some(("mon", _)) => {
            let why = format!(
                "no config state for daemon {who}: monitors tell their own, by `ceph tell {who} \
                    config show`"
            );
            Err(Reply::err(errno::ENOENT, why))
        }
        Some(_) => Err(no_state()),
        None => Err(Reply::invalid("invalid daemon name: use <type>.<id>")),
    }
}

fn show(c: &Ctx<'_>) -> Reply {
    let who = c.str("who").unwrap_or_default();
    let told = match options_of(c, &who) {
        Ok(told) => told,
        Err(reply) => return reply,
    };
    if let Some(key) = c.str("key") {
        // What nobody set has its default.
        let set = told
            .get(&spirula_settings::options::normal_name(&key))
            .and_then(|by| by.first())
            .map(|(_, v)| v.clone());
        let default = || spirula_settings::options::find(&key).map(|o| o.default.to_owned());
        return match set.or_else(default) {
            Some(v) => Reply::data(format!("{v}\n")),
            None => Reply::err(errno::ENOENT, spirula_settings::options::unknown(&key)),
        };
    }
    list(c, &told)
}

fn show_with_defaults(c: &Ctx<'_>) -> Reply {
    match options_of(c, &c.str("who").unwrap_or_default()) {
        Ok(mut told) => {
            for o in spirula_settings::known::all() {
                let default = || vec![("default".to_owned(), o.default.to_owned())];
                told.entry(o.name.to_owned()).or_insert_with(default);
            }
            list(c, &told)
        }
        Err(reply) => reply,
    }
}

/// The table, or its rows.
fn list(c: &Ctx<'_>, told: &Told) -> Reply {
    if c.format.is_json() {
        let row = |(name, by): (&String, &Vec<(String, String)>)| {
            let (source, value) = by.first().cloned().unwrap_or_default();
            let mut row = json!({"name": name, "value": value, "source": source});
            if by.len() > 1 {
                let weaker = by
                    .iter()
                    .skip(1)
                    .map(|(source, value)| json!({"source": source, "value": value}));
                row["overrides"] = weaker.collect();
            }
            row
        };
        return c.json(&told.iter().map(row).collect::<Value>());
    }
    let mut t = TextTable::new();
    for heading in ["NAME", "VALUE", "SOURCE", "OVERRIDES", "IGNORES"] {
        t.column(heading, Align::Left, Align::Left);
    }
    for (name, by) in told {
        let (source, value) = by.first().cloned().unwrap_or_default();
        let weaker: Vec<String> = by.iter().skip(1).map(|(s, v)| format!("{s}[{v}]")).collect();
        t.row([name.as_str(), value.as_str(), source.as_str(), weaker.join(",").as_str(), ""]);
    }
    Reply::data(t.to_string())
}
