//! `ceph config …` and `ceph config-key …`.

use super::{
    Args, CommandResult, CommandSpec, FLAG_DEPRECATED, Outcome, json_out, settle, text_or_json,
};
use crate::config::{ChangeSet, ConfigDb, Traits, valid_section};
use crate::mon::CommandCtx;
use crate::options;
use bytes::Bytes;
use serde_json::{Map, Value, json};
use spirula_auth::EntityId;
use spirula_auth::caps::{self, MonAccess, MonCaps};
use spirula_format::{Align, TextTable};
use spirula_settings::{common, known};
use spirula_types::EntityType;
use spirula_types::errno::{EINVAL, ENOENT, ENOSPC, EPERM};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) const SPECS: &[CommandSpec] = &[
    CommandSpec {
        sig: "config set name=who,type=CephString name=name,type=CephString \
            name=value,type=CephString name=force,type=CephBool,req=false",
        help: "Set a configuration option for one or more entities",
        module: "config",
        perm: "rw",
        flags: 0,
        run: set,
    },
    CommandSpec {
        sig: "config rm name=who,type=CephString name=name,type=CephString",
        help: "Clear a configuration option for one or more entities",
        module: "config",
        perm: "rw",
        flags: 0,
        run: rm,
    },
    CommandSpec {
        sig: "config get name=who,type=CephString name=key,type=CephString,req=False",
        help: "Show configuration option(s) for an entity",
        module: "config",
        perm: "r",
        flags: 0,
        run: get,
    },
    CommandSpec {
        sig: "config dump",
        help: "Show all configuration option(s)",
        module: "mon",
        perm: "r",
        flags: 0,
        run: dump,
    },
    CommandSpec {
        sig: "config help name=key,type=CephString",
        help: "Describe a configuration option",
        module: "config",
        perm: "r",
        flags: 0,
        run: help,
    },
    CommandSpec {
        sig: "config ls",
        help: "List available configuration options",
        module: "config",
        perm: "r",
        flags: 0,
        run: ls,
    },
    CommandSpec {
        sig: "config assimilate-conf",
        help: "Assimilate options from a conf, and return a new, minimal conf file",
        module: "config",
        perm: "rw",
        flags: 0,
        run: assimilate,
    },
    CommandSpec {
        sig: "config log name=num,type=CephInt,req=False",
        help: "Show recent history of config changes",
        module: "config",
        perm: "r",
        flags: 0,
        run: log,
    },
    CommandSpec {
        sig: "config reset name=num,type=CephInt,range=0",
        help: "Revert configuration to a historical version specified by <num>",
        module: "config",
        perm: "rw",
        flags: 0,
        run: reset,
    },
    CommandSpec {
        sig: "config generate-minimal-conf",
        help: "Generate a minimal ceph.conf file",
        module: "config",
        perm: "r",
        flags: 0,
        run: minimal_conf,
    },
    CommandSpec {
        sig: "config-key get name=key,type=CephString",
        help: "get <key>",
        module: "config-key",
        perm: "r",
        flags: 0,
        run: key_get,
    },
    CommandSpec {
        sig: "config-key set name=key,type=CephString name=val,type=CephString,req=false",
        help: "set <key> to value <val>",
        module: "config-key",
        perm: "rw",
        flags: 0,
        run: key_set,
    },
    CommandSpec {
        sig: "config-key put name=key,type=CephString name=val,type=CephString,req=false",
        help: "put <key>, value <val>",
        module: "config-key",
        perm: "rw",
        flags: FLAG_DEPRECATED,
        run: key_set,
    },
    CommandSpec {
        sig: "config-key rm name=key,type=CephString",
        help: "rm <key>",
        module: "config-key",
        perm: "rw",
        flags: 0,
        run: key_rm,
    },
    CommandSpec {
        sig: "config-key del name=key,type=CephString",
        help: "delete <key>",
        module: "config-key",
        perm: "rw",
        flags: FLAG_DEPRECATED,
        run: key_rm,
    },
    CommandSpec {
        sig: "config-key exists name=key,type=CephString",
        help: "check for <key>'s existence",
        module: "config-key",
        perm: "r",
        flags: 0,
        run: key_exists,
    },
    CommandSpec {
        sig: "config-key ls",
        help: "list keys",
        module: "config-key",
        perm: "r",
        flags: 0,
        run: key_ls,
    },
    CommandSpec {
        sig: "config-key list",
        help: "list keys",
        module: "config-key",
        perm: "r",
        flags: FLAG_DEPRECATED,
        run: key_ls,
    },
    CommandSpec {
        sig: "config-key dump name=key,type=CephString,req=false",
        help: "dump keys and values (with optional prefix)",
        module: "config-key",
        perm: "r",
        flags: 0,
        run: key_dump,
    },
];

/// Longest name of a `config-key`, bytes.
const KEY_NAME_MAX: usize = 4096;
/// Longest value of a config-key.
const KEY_VALUE_MAX: usize = 65_536;
/// Bytes of all config-keys, about, from which on only administrators add to them: monitors have
/// them in memory, and some profiles may set keys without end.
const KEYS_MADE_MAX: usize = 16 << 20;
/// Of these, those whose names begin alike, up to the first `/`: what a user may set is below such
/// a name, so that it leaves to others what they need.
const KEYS_ALIKE_MAX: usize = 4 << 20;
/// The same for administrators.
const KEYS_MAX: usize = 64 << 20;
/// What a key takes beside its name and value, bytes, about. All keys are gone through for each
/// that is set: with this much there are some ten thousand at most below one name.
const KEY_COST: usize = 400;

/// What keys count against what they may have altogether.
fn cost<'a>(keys: impl Iterator<Item = (&'a String, &'a Bytes)>) -> usize {
    keys.map(|(k, v)| KEY_COST + k.len() + v.len()).sum()
}

fn section(args: &Args) -> Result<String, (i32, String)> {
    let who = args.str("who");
    if valid_section(&who) {
        Ok(who)
    } else {
        Err((EINVAL, format!("unrecognized config target '{who}'")))
    }
}

/// Checks a value against the option of that name. What says where the cluster is, or must be known
/// before a monitor can be asked, is not for the monitors to store.
fn normal_value(name: &str, value: &str, force: bool) -> Result<(String, String), (i32, String)> {
    if stays_in_files(&options::normal_name(name)) {
        return Err((
            EINVAL,
            format!(
                "{name} cannot be stored by the monitors: it belongs into the file or on the \
                    command line"
            ),
        ));
    }
    match options::find(name) {
        Some(o) => match o.normalise(value) {
            Ok(v) => Ok((o.name.to_owned(), v)),
            Err(_) if force => Ok((o.name.to_owned(), value.to_owned())),
            Err(text) => Err((EINVAL, text)),
        },
        None if force => Ok((options::normal_name(name), value.to_owned())),
        None => Err((EINVAL, options::unknown(name))),
    }
}

fn stays_in_files(name: &str) -> bool {
    known::facts(name).is_some_and(known::Facts::is_kept_out_of_monitors)
}

fn set(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let who = section(args)?;
        let (name, value) =
            normal_value(&args.str("name"), &args.str("value"), args.bool("force"))?;
        let now = ctx.work.now;
        let ignored = options::find(&name).is_some_and(options::OptionDef::is_ignored);
        let note =
            if ignored { format!("{name} has no effect in this version") } else { String::new() };
        Arc::make_mut(&mut ctx.work.state.config).change(now, "", vec![(who, name, Some(value))]);
        Ok(CommandResult::ok(note))
    };
    settle(run())
}

fn rm(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let (who, name) = (section(args)?, options::normal_name(&args.str("name")));
        let now = ctx.work.now;
        Arc::make_mut(&mut ctx.work.state.config).change(now, "", vec![(who, name, None)]);
        Ok(CommandResult::default())
    };
    settle(run())
}

/// Section without and with its mask.
fn split_mask(section: &str) -> (&str, &str) {
    section.split_once('/').unwrap_or((section, ""))
}

fn runtime(name: &str) -> bool {
    options::find(name).is_some_and(|o| o.runtime)
}

fn level(name: &str) -> &'static str {
    options::find(name).map_or("advanced", |o| o.level.name())
}

/// The table of `config dump` and `config get`: rows of section, option and value.
fn table<'a>(rows: impl Iterator<Item = (&'a str, &'a str, Cow<'a, str>)>, indent: bool) -> String {
    let mut t = TextTable::new();
    for heading in ["WHO", "MASK", "LEVEL", "OPTION", "VALUE", "RO"] {
        t.column(heading, Align::Left, Align::Left);
    }
    for (section, name, value) in rows {
        let (who, mask) = split_mask(section);
        let depth = match who {
            "global" => 0,
            w if w.contains('.') => 2,
            _ => 1,
        };
        let who = format!("{}{who}", " ".repeat(if indent { 2 * depth } else { 0 }));
        let ro = if runtime(name) { "" } else { "*" };
        t.row([who.as_str(), mask, level(name), name, &*value, ro]);
    }
    t.to_string()
}

fn get(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let run = || -> Outcome {
        let who = args.str("who");
        if !valid_section(&who) {
            return Err((EINVAL, format!("unrecognized entity '{who}'")));
        }
        let state = &ctx.work.state;
        let mut place = None;
        let set =
            state.config.effective(&who, Traits::of(&state.osdmap.crush, &who, "", &mut place));
        let Some(key) = args.opt_str("key") else {
            let text = || table(set.iter().map(|(n, (v, s))| (*s, *n, Cow::Borrowed(&**v))), false);
            let value = || {
                let one = |(n, (v, s)): (&&str, &(Cow<'_, str>, &str))| {
                    let (section, mask) = split_mask(s);
                    let mask =
                        mask.split_once(':').map_or_else(|| json!({}), |(k, m)| json!({ k: m }));
                    (
                        (*n).to_owned(),
                        json!({"value": v, "section": section, "mask": mask, "can_update_at_runtime": runtime(n)}),
                    )
                };
                Value::Object(set.iter().map(one).collect())
            };
            return Ok(text_or_json(ctx, text, value));
        };
        let name = options::normal_name(&key);
        let value = match (set.get(name.as_str()), name.as_str()) {
            (Some((v, _)), _) => v.clone().into_owned(),
            (None, "fsid") => ctx.mon.fsid().to_string(),
            (None, _) => match (state.defaults.get(&name), options::find(&name)) {
                (Some(v), _) => v.clone(),
                (None, Some(o)) => o.default.to_owned(),
                (None, None) if key.starts_with("mgr/") => String::new(),
                (None, None) => return Err((ENOENT, format!("unrecognized key '{key}'"))),
            },
        };
        // As Ceph, whatever form is asked for: a number is read as one, and a text as it stands.
        Ok(CommandResult::data(format!("{value}\n")))
    };
    settle(run())
}

/// What is set, by section in the order in which they apply: global, types, single daemons.
fn ordered(config: &ConfigDb) -> Vec<(&str, &str, Cow<'_, str>)> {
    let mut rows: Vec<_> = config.rows().collect();
    // The options of a section stay in the order of their names.
    rows.sort_by_key(|(s, ..)| (s.split('/').next() != Some("global"), *s));
    rows
}

fn dump(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let rows = ordered(&ctx.work.state.config);
    let value = || {
        let one = |(s, k, v): &(&str, &str, Cow<'_, str>)| {
            let (section, mask) = split_mask(s);
            let mut row = json!({
                "section": section, "name": k, "value": v, "level": level(k),
                "can_update_at_runtime": runtime(k), "mask": mask,
            });
            match mask.split_once(':') {
                Some(("class", class)) => row["device_class"] = class.into(),
                Some((kind, name)) => {
                    row["location_type"] = kind.into();
                    row["location_value"] = name.into();
                }
                None => {}
            }
            row
        };
        rows.iter().map(one).collect()
    };
    text_or_json(ctx, || table(rows.iter().cloned(), true), value)
}

fn help(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let key = args.str("key");
    let Some(o) = options::find(&key) else {
        return CommandResult::err(ENOENT, format!("configuration option '{key}' not recognized"));
    };
    let text = || {
        format!(
            "{} - {}\n  ({}, {})\n  Default: {}\n  Can update at runtime: {}\n\n",
            o.name,
            o.desc,
            o.kind_name(),
            o.level.name(),
            o.default,
            o.runtime
        )
    };
    text_or_json(ctx, text, || common::help(o))
}

fn ls(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let names: Vec<&str> = known::all().iter().map(|o| o.name).collect();
    text_or_json(ctx, || names.iter().map(|n| format!("{n}\n")).collect(), || json!(names))
}

/// Takes the options it knows out of a conf file; returns the rest.
fn assimilate(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let Ok(text) = std::str::from_utf8(ctx.input) else {
        return CommandResult::err(EINVAL, "the conf file is not text");
    };
    let mut who = "global".to_owned();
    let mut edits = Vec::new();
    let mut rest: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (n, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(section) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            who = section.trim().to_owned();
            continue;
        }
        let Some((name, value)) = line.split_once('=') else {
            return CommandResult::err(
                EINVAL,
                format!("line {}: neither section nor option: '{line}'", n + 1),
            );
        };
        let (name, value) = (options::normal_name(name), value.trim());
        match normal_value(&name, value, false) {
            Ok((name, value)) if valid_section(&who) && name != "keyring" => {
                edits.push((who.clone(), name, Some(value)));
            }
            _ => rest.entry(who.clone()).or_default().push(format!("\t{name} = {value}")),
        }
    }
    let now = ctx.work.now;
    Arc::make_mut(&mut ctx.work.state.config).change(now, "assimilate-conf", edits);
    let mut out = String::new();
    for (section, lines) in rest {
        out += &format!("[{section}]\n{}\n", lines.join("\n"));
    }
    CommandResult::data(out)
}

fn log(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let num = args.int("num").filter(|n| *n > 0).unwrap_or(10) as usize;
    let sets: Vec<&ChangeSet> = ctx.work.state.config.history.iter().rev().take(num).collect();
    let text = || {
        let mut o = String::new();
        for s in &sets {
            o += &format!(
                "--- {} --- {} ---{}\n",
                s.version,
                s.stamp.to_iso(),
                if s.name.is_empty() { String::new() } else { format!(" {} ---", s.name) }
            );
            for c in &s.changes {
                if let Some(old) = &c.old {
                    o += &format!("- {} = {old}\n", c.name);
                }
                if let Some(new) = &c.new {
                    o += &format!("+ {} = {new}\n", c.name);
                }
            }
        }
        o
    };
    let value = || {
        let change = |c: &crate::config::Change| {
            let mut m = Map::new();
            m.insert("name".into(), c.name.clone().into());
            m.extend(c.old.clone().map(|v| ("previous_value".to_owned(), v.into())));
            m.extend(c.new.clone().map(|v| ("new_value".to_owned(), v.into())));
            Value::Object(m)
        };
        let one = |s: &&ChangeSet| {
            let changes: Vec<Value> = s.changes.iter().map(change).collect();
            json!({"version": s.version, "timestamp": s.stamp.to_iso(), "name": s.name, "changes": changes})
        };
        sets.iter().map(one).collect()
    };
    text_or_json(ctx, text, value)
}

fn reset(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let num = args.int("num").unwrap_or(0).max(0) as u64;
    let config = &ctx.work.state.config;
    if num > config.version {
        return CommandResult::err(
            EINVAL,
            format!("cannot revert to future version {num}, current is {}", config.version),
        );
    }
    if config.history.front().is_none_or(|h| h.version > num) {
        return CommandResult::err(EINVAL, format!("version {num} is no longer in the history"));
    }
    // Undone last to first; only the oldest value of each option counts.
    let mut edits: BTreeMap<(String, String), Option<String>> = BTreeMap::new();
    for change in
        config.history.iter().rev().take_while(|h| h.version > num).flat_map(|h| &h.changes)
    {
        if let Some((who, name)) = change.section_and_option() {
            edits.insert((who.to_owned(), name.to_owned()), change.old.clone());
        }
    }
    let edits = edits.into_iter().map(|((w, n), v)| (w, n, v)).collect();
    let now = ctx.work.now;
    Arc::make_mut(&mut ctx.work.state.config).change(now, &format!("reset to {num}"), edits);
    CommandResult::default()
}

fn minimal_conf(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let fsid = ctx.mon.fsid();
    let hosts: Vec<String> =
        ctx.work.state.monmap.iter().map(|(_, m)| m.addrs.to_string()).collect();
    CommandResult::data(format!(
        "# minimal ceph.conf for {fsid}\n[global]\n\tfsid = {fsid}\n\tmon_host = {}\n",
        hosts.join(" ")
    ))
}

fn missing(key: &str) -> CommandResult {
    CommandResult::err(ENOENT, format!("key '{key}' doesn't exist"))
}

/// Keys of the monitors' own begin so: whoever may write others could grant a token what it was not
/// made for, or end fences.
const OWN_KEYS: &str = "spirula/";

/// The refusal of a key that is the monitors' own.
fn own_key(key: &str) -> Option<CommandResult> {
    let why =
        || format!("keys that begin with '{OWN_KEYS}' are the monitors' own; choose another name");
    key.starts_with(OWN_KEYS).then(|| CommandResult::err(EPERM, why()))
}

/// The options that are set, as keys: where Ceph's monitors keep them, so that tools look for them
/// there.
fn option_keys(ctx: &CommandCtx<'_>) -> impl Iterator<Item = (String, Bytes)> {
    let rows = ctx.work.state.config.rows();
    rows.map(|(who, name, value)| (format!("config/{who}/{name}"), Bytes::from(value.into_owned())))
}

/// The value of a key: one that was set, or an option's.
fn value_of(ctx: &CommandCtx<'_>, key: &str) -> Option<Bytes> {
    let set = ctx.work.state.kv.get(key).cloned();
    set.or_else(|| option_keys(ctx).find(|(k, _)| k == key).map(|(_, v)| v))
}

fn key_get(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let key = args.str("key");
    if let Some(refused) = own_key(&key) {
        return refused;
    }
    value_of(ctx, &key).map_or_else(|| missing(&key), CommandResult::data)
}

fn key_set(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let key = args.str("key");
    if let Some(refused) = own_key(&key) {
        return refused;
    }
    let value = match args.opt_str("val") {
        Some(v) => Bytes::from(v),
        None => ctx.input.clone(),
    };
    if key.len() > KEY_NAME_MAX {
        return CommandResult::err(
            spirula_types::errno::ENAMETOOLONG,
            format!("a key has at most {KEY_NAME_MAX} bytes"),
        );
    }
    if value.len() > KEY_VALUE_MAX {
        return CommandResult::err(
            27,
            format!(
                "error: entry size limited to {KEY_VALUE_MAX} bytes. Use 'mon config key max entry \
                    size' to manually adjust"
            ),
        );
    }
    let any = sets_any_key(ctx);
    let kv = &ctx.work.state.kv;
    let before = cost(kv.get_key_value(&key).into_iter());
    let after = cost([(&key, &value)].into_iter());
    // What does not grow them is taken however many there are.
    let grows = after > before;
    let too_many = |keys: usize, most: usize| keys - before + after > most;
    let most = if any { KEYS_MAX } else { KEYS_MADE_MAX };
    if grows && too_many(cost(kv.iter()), most) {
        let text = format!(
            "there are {} keys already, which may have {} MiB altogether",
            kv.len(),
            most >> 20
        );
        return CommandResult::err(ENOSPC, text);
    }
    let begins = key.split_inclusive('/').next().unwrap_or_default();
    let alike = kv.range(begins.to_owned()..).take_while(|(k, _)| k.starts_with(begins));
    if grows && !any && too_many(cost(alike), KEYS_ALIKE_MAX) {
        let text = format!(
            "there are many keys '{begins}…' already, which may have {} MiB",
            KEYS_ALIKE_MAX >> 20
        );
        return CommandResult::err(ENOSPC, text);
    }
    Arc::make_mut(&mut ctx.work.state.kv).insert(key.clone(), value);
    CommandResult::ok(format!("set {key}"))
}

/// May who asks set whatever key it likes? Who is no user and no client may: it is of this
/// cluster's own; and everybody where there is no authentication. A client whose user is gone may
/// not. Nor may, for this, who may from some network only: where a request comes from is not told
/// here, and the smaller share is enough for whoever needs such a bound.
fn sets_any_key(ctx: &CommandCtx<'_>) -> bool {
    let name = ctx.peer.auth_name();
    let user = name.parse::<EntityId>().ok().and_then(|entity| ctx.work.state.auth.get(&entity));
    let Some(user) = user else { return !ctx.mon.auth_safe || ctx.peer.kind != EntityType::Client };
    let caps =
        user.caps.get("mon").and_then(|text| text.parse::<MonCaps>().ok()).unwrap_or_default();
    caps.allows(&MonAccess {
        entity: &name,
        service: "config-key",
        command: "",
        args: &caps::Args::new(),
        read: false,
        write: true,
        exec: false,
        addr: None,
    })
}

fn key_rm(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let key = args.str("key");
    if let Some(refused) = own_key(&key) {
        return refused;
    }
    if Arc::make_mut(&mut ctx.work.state.kv).remove(&key).is_none() {
        return CommandResult::ok(format!("no such key '{key}'"));
    }
    CommandResult::ok("key deleted")
}

fn key_exists(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let key = args.str("key");
    if let Some(refused) = own_key(&key) {
        return refused;
    }
    if value_of(ctx, &key).is_some() {
        CommandResult::ok(format!("key '{key}' exists"))
    } else {
        missing(&key)
    }
}

fn key_ls(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let options: Vec<String> = option_keys(ctx).map(|(k, _)| k).collect();
    let set = ctx.work.state.kv.keys().filter(|k| !k.starts_with(OWN_KEYS));
    let all: std::collections::BTreeSet<&String> = set.chain(&options).collect();
    json_out(ctx, &json!(all))
}

fn key_dump(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let prefix = args.str("key");
    let show = |v: &Bytes| match std::str::from_utf8(v) {
        Ok(t) if !t.chars().any(|c| c.is_control() && c != '\n') => t.to_owned(),
        _ => format!("<<< binary blob of length {} >>>", v.len()),
    };
    let mut all: BTreeMap<String, Bytes> = option_keys(ctx).collect();
    all.extend(ctx.work.state.kv.iter().map(|(k, v)| (k.clone(), v.clone())));
    let shown = all.iter().filter(|(k, _)| k.starts_with(&prefix) && !k.starts_with(OWN_KEYS));
    json_out(ctx, &Value::Object(shown.map(|(k, v)| (k.clone(), show(v).into())).collect()))
}
