//! `config show`: the options in force at a daemon that differ from their defaults.

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
        run: show,
    },
];

/// Options of `osd.N` as it reported them, or of this manager as the monitors set them.
fn options_of(c: &Ctx<'_>, who: &str) -> Result<BTreeMap<String, String>, Reply> {
    let no_state = || Reply::err(errno::ENOENT, format!("no config state for daemon {who}"));
    match who.split_once('.') {
        Some(("mgr", name)) if name == c.mgr.config.name => Ok(c.mgr.config.settings.changed()),
        Some(("osd", _)) => {
            let osd = parse_osd(who).ok_or_else(|| Reply::invalid(format!("invalid daemon name: {who}")))?;
            c.mgr.osds.get(&osd).map(|o| o.config.clone()).ok_or_else(no_state)
        }
        Some(_) => Err(no_state()),
        None => Err(Reply::invalid("invalid daemon name: use <type>.<id>")),
    }
}

fn show(c: &Ctx<'_>) -> Reply {
    let who = c.str("who").unwrap_or_default();
    let options = match options_of(c, &who) {
        Ok(options) => options,
        Err(reply) => return reply,
    };
    if let Some(key) = c.str("key") {
        // What nobody set has its default.
        let default = || spirula_settings::options::find(&key).map(|o| o.default.to_owned());
        return match options.get(&key).cloned().or_else(default) {
            Some(v) => Reply::data(format!("{v}\n")),
            None => Reply::err(errno::ENOENT, spirula_settings::options::unknown(&key)),
        };
    }
    // Who set them: this manager knows it of itself; OSDs report values only.
    let own = c.mgr.config.settings.sources();
    let source = |key: &str| match own.get(key).and_then(|by| by.first()) {
        Some((source, _)) if who.starts_with("mgr.") => source.name(),
        _ => "mon",
    };
    if c.format.is_json() {
        let list: Vec<Value> =
            options.iter().map(|(k, v)| json!({"name": k, "value": v, "source": source(k)})).collect();
        return c.json(&list.into());
    }
    let mut t = TextTable::new();
    for heading in ["NAME", "VALUE", "SOURCE", "OVERRIDES", "IGNORES"] {
        t.column(heading, Align::Left, Align::Left);
    }
    for (k, v) in &options {
        t.row([k.as_str(), v.as_str(), source(k), "", ""]);
    }
    Reply::data(t.to_string())
}
