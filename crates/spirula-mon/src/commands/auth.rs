//! `ceph auth …`: the table of entities, keys and capabilities.

use super::{Args, CommandResult, CommandSpec, FLAG_DEPRECATED, Outcome, settle, text_or_json};
use crate::auth::{AuthDb, AuthEntry, encode_key};
use crate::mon::CommandCtx;
use serde_json::{Value, json};
use spirula_types::errno::{EINVAL, ENOENT};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) const SPECS: &[CommandSpec] = &[
    CommandSpec { sig: "auth ls", help: "list authentication state", module: "auth", perm: "rx", flags: 0, run: ls },
    CommandSpec {
        sig: "auth list",
        help: "list authentication state",
        module: "auth",
        perm: "rx",
        flags: FLAG_DEPRECATED,
        run: ls,
    },
    CommandSpec {
        sig: "auth get name=entity,type=CephString",
        help: "write keyring file with requested key",
        module: "auth",
        perm: "rx",
        flags: 0,
        run: get,
    },
    CommandSpec {
        sig: "auth export name=entity,type=CephString,req=false",
        help: "write keyring for requested entity, or master keyring if none given",
        module: "auth",
        perm: "rx",
        flags: 0,
        run: export,
    },
    CommandSpec {
        sig: "auth get-key name=entity,type=CephString",
        help: "display requested key",
        module: "auth",
        perm: "rx",
        flags: 0,
        run: get_key,
    },
    CommandSpec {
        sig: "auth print-key name=entity,type=CephString",
        help: "display requested key",
        module: "auth",
        perm: "rx",
        flags: 0,
        run: get_key,
    },
    CommandSpec {
        sig: "auth print_key name=entity,type=CephString",
        help: "display requested key",
        module: "auth",
        perm: "rx",
        flags: 0,
        run: get_key,
    },
    CommandSpec {
        sig: "auth add name=entity,type=CephString name=caps,type=CephString,n=N,req=false",
        help: "add auth info for <entity> from input file, or random key if no input is given, and/or any caps specified in the command",
        module: "auth",
        perm: "rwx",
        flags: 0,
        run: add,
    },
    CommandSpec {
        sig: "auth get-or-create name=entity,type=CephString name=caps,type=CephString,n=N,req=false",
        help: "add auth info for <entity> from input file, or random key if no input given, and/or any caps specified in the command",
        module: "auth",
        perm: "rwx",
        flags: 0,
        run: get_or_create,
    },
    CommandSpec {
        sig: "auth get-or-create-key name=entity,type=CephString name=caps,type=CephString,n=N,req=false",
        help: "get, or add, key for <name> from system/caps pairs specified in the command.  If key already exists, any given caps must match the existing caps for that key.",
        module: "auth",
        perm: "rwx",
        flags: 0,
        run: get_or_create,
    },
    CommandSpec {
        sig: "auth caps name=entity,type=CephString name=caps,type=CephString,n=N",
        help: "update caps for <name> from caps specified in the command",
        module: "auth",
        perm: "rwx",
        flags: 0,
        run: caps,
    },
    CommandSpec {
        sig: "auth rm name=entity,type=CephString",
        help: "remove all caps for <name>",
        module: "auth",
        perm: "rwx",
        flags: 0,
        run: rm,
    },
    CommandSpec {
        sig: "auth del name=entity,type=CephString",
        help: "delete all caps for <name>",
        module: "auth",
        perm: "rwx",
        flags: FLAG_DEPRECATED,
        run: rm,
    },
    CommandSpec {
        sig: "auth import",
        help: "auth import: read keyring file from -i <file>",
        module: "auth",
        perm: "rwx",
        flags: 0,
        run: import,
    },
];

fn entity(args: &Args) -> Result<String, (i32, String)> {
    let name = args.str("entity");
    let kind = name.split_once('.').map(|(k, id)| (k, !id.is_empty()));
    match kind {
        Some(("mon" | "mgr" | "osd" | "mds" | "client", true)) => Ok(name),
        _ => Err((EINVAL, format!("bad entity name '{name}'"))),
    }
}

fn found<'a>(db: &'a AuthDb, name: &str) -> Result<&'a AuthEntry, (i32, String)> {
    db.entries.get(name).ok_or_else(|| (ENOENT, format!("failed to find {name} in keyring")))
}

/// `service, caps, service, caps…` as a table.
fn parse_caps(words: &[String]) -> Result<BTreeMap<String, String>, (i32, String)> {
    if !words.len().is_multiple_of(2) {
        return Err((EINVAL, format!("bad capabilities request; odd number of arguments: {}", words.join(" "))));
    }
    Ok(words.chunks_exact(2).filter_map(|p| Some((p.first()?.clone(), p.get(1)?.clone()))).collect())
}

fn entry_json(name: &str, e: &AuthEntry) -> Value {
    json!({"entity": name, "key": e.key, "caps": e.caps})
}

fn ls(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let db = &ctx.work.state.auth;
    let text = || {
        let mut o = String::new();
        for (name, e) in &db.entries {
            o += &format!("{name}\n\tkey: {}\n", e.key);
            for (service, caps) in &e.caps {
                o += &format!("\tcaps: [{service}] {caps}\n");
            }
        }
        o
    };
    let value = || json!({"auth_dump": db.entries.iter().map(|(n, e)| entry_json(n, e)).collect::<Vec<_>>()});
    let rs = if db.entries.is_empty() { "no installed auth entries!\n" } else { "installed auth entries:\n" };
    text_or_json(ctx, text, value).with_rs(format!("{rs}\n"))
}

fn keyring(ctx: &CommandCtx<'_>, name: &str, e: &AuthEntry, with_caps: bool) -> CommandResult {
    text_or_json(ctx, || AuthDb::keyring_of(name, e, with_caps), || json!([entry_json(name, e)]))
}

fn get(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let run = || -> Outcome {
        let name = entity(args)?;
        let e = found(&ctx.work.state.auth, &name)?;
        Ok(keyring(ctx, &name, e, true).with_rs(format!("exported keyring for {name}")))
    };
    settle(run())
}

fn export(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    if args.has("entity") {
        return get(ctx, args);
    }
    let db = &ctx.work.state.auth;
    let text = || db.entries.iter().map(|(n, e)| AuthDb::keyring_of(n, e, true)).collect();
    let value = || db.entries.iter().map(|(n, e)| entry_json(n, e)).collect();
    text_or_json(ctx, text, value).with_rs("exported master keyring")
}

fn get_key(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let run = || -> Outcome {
        let name = entity(args)?;
        let e = found(&ctx.work.state.auth, &name).map_err(|_| (ENOENT, format!("don't have {name}")))?;
        Ok(text_or_json(ctx, || e.key.clone(), || json!({"key": e.key})))
    };
    settle(run())
}

/// Entries of a keyring file.
fn parse_keyring(text: &str) -> Result<BTreeMap<String, AuthEntry>, (i32, String)> {
    let mut out: BTreeMap<String, AuthEntry> = BTreeMap::new();
    let mut at: Option<String> = None;
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with(['#', ';'])) {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            out.entry(name.to_owned()).or_default();
            at = Some(name.to_owned());
            continue;
        }
        let (Some((k, v)), Some(e)) = (line.split_once('='), at.as_ref().and_then(|n| out.get_mut(n))) else {
            return Err((EINVAL, "error decoding keyring".into()));
        };
        let (k, v) = (k.trim(), v.trim().trim_matches('"'));
        match k.strip_prefix("caps ") {
            Some(service) => {
                e.caps.insert(service.trim().to_owned(), v.to_owned());
            }
            None if k == "key" => e.key = v.to_owned(),
            None => {}
        }
    }
    Ok(out)
}

fn insert(ctx: &mut CommandCtx<'_>, name: &str, entry: AuthEntry) {
    let db = Arc::make_mut(&mut ctx.work.state.auth);
    db.entries.insert(name.to_owned(), entry);
    db.version += 1;
}

/// A new entry: from the input file if there is one, else with a random key.
fn new_entry(ctx: &CommandCtx<'_>, args: &Args, name: &str) -> Result<AuthEntry, (i32, String)> {
    let text = std::str::from_utf8(ctx.input).map_err(|_| (EINVAL, "the keyring is not text".to_owned()))?;
    let mut entry = if text.trim().is_empty() {
        AuthEntry { key: encode_key(ctx.random, ctx.work.now), caps: BTreeMap::new() }
    } else {
        parse_keyring(text)?.remove(name).ok_or_else(|| (EINVAL, format!("{name} is not in the keyring given")))?
    };
    if args.has("caps") {
        entry.caps = parse_caps(&args.list("caps"))?;
    }
    Ok(entry)
}

fn add(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let name = entity(args)?;
        let entry = new_entry(ctx, args, &name)?;
        if let Some(old) = ctx.work.state.auth.entries.get(&name) {
            if old.caps != entry.caps || !ctx.input.is_empty() && old.key != entry.key {
                return Err((EINVAL, format!("entity {name} exists but caps do not match")));
            }
            return Ok(CommandResult::ok(format!("added key for {name}")));
        }
        insert(ctx, &name, entry);
        Ok(CommandResult::ok(format!("added key for {name}")))
    };
    settle(run())
}

fn get_or_create(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let name = entity(args)?;
        let key_only = args.str("prefix") == "auth get-or-create-key";
        let wanted = parse_caps(&args.list("caps"))?;
        let entry = match ctx.work.state.auth.entries.get(&name).cloned() {
            Some(old) if !wanted.is_empty() && old.caps != wanted => {
                return Err((
                    EINVAL,
                    format!(
                        "key for {name} exists but cap {} does not match",
                        wanted.keys().next().cloned().unwrap_or_default()
                    ),
                ));
            }
            Some(old) => old,
            None => {
                let entry = new_entry(ctx, args, &name)?;
                insert(ctx, &name, entry.clone());
                entry
            }
        };
        Ok(if key_only {
            text_or_json(ctx, || format!("{}\n", entry.key), || json!({"key": entry.key}))
        } else {
            keyring(ctx, &name, &entry, false)
        })
    };
    settle(run())
}

fn caps(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let name = entity(args)?;
        let mut entry =
            found(&ctx.work.state.auth, &name).map_err(|_| (ENOENT, format!("couldn't find entry {name}")))?.clone();
        entry.caps = parse_caps(&args.list("caps"))?;
        insert(ctx, &name, entry);
        Ok(CommandResult::ok(format!("updated caps for {name}")))
    };
    settle(run())
}

fn rm(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let name = entity(args)?;
        let db = Arc::make_mut(&mut ctx.work.state.auth);
        if db.entries.remove(&name).is_none() {
            return Ok(CommandResult::ok(format!("entity {name} does not exist")));
        }
        db.version += 1;
        Ok(CommandResult::ok("updated"))
    };
    settle(run())
}

fn import(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let text = std::str::from_utf8(ctx.input).map_err(|_| (EINVAL, "the keyring is not text".to_owned()))?;
        let entries = parse_keyring(text)?;
        if entries.is_empty() {
            return Err((EINVAL, "auth import: no data supplied".into()));
        }
        for (name, entry) in entries {
            insert(ctx, &name, entry);
        }
        Ok(CommandResult::ok("imported keyring"))
    };
    settle(run())
}
