//! `ceph auth …`: the table of users. What each command means is [`spirula_auth::db`]'s; here are
//! arguments and output.

use super::{
    Args, CommandResult, CommandSpec, FLAG_DEPRECATED, Outcome, settle, stream, text_or_json,
};
use crate::mon::CommandCtx;
use serde_json::json;
use spirula_auth::db::{self, AuthDb, DbError, User, user_json};
use spirula_auth::monitor::Policy;
use spirula_auth::{CryptoKey, EntityId, KeyType, Service, keyring};
use spirula_types::errno::{EINVAL, ENOENT};
use spirula_types::names::is_daemon_name;
use spirula_types::{EntityType, OsdId};
use std::sync::Arc;

pub(super) const SPECS: &[CommandSpec] = &[
    CommandSpec {
        sig: "auth ls",
        help: "list authentication state",
        module: "auth",
        perm: "rx",
        flags: 0,
        run: ls,
    },
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
        sig: "auth add name=entity,type=CephString name=caps,type=CephString,n=N,req=false \
            name=key_type,type=CephChoices,strings=aes|aes256k,req=false",
        help: "add auth info for <entity> from input file, or random key if no input is given, \
            and/or any caps specified in the command",
        module: "auth",
        perm: "rwx",
        flags: 0,
        run: add,
    },
    CommandSpec {
        sig: "auth get-or-create name=entity,type=CephString \
            name=caps,type=CephString,n=N,req=false \
            name=key_type,type=CephChoices,strings=aes|aes256k,req=false",
        help: "add auth info for <entity> from input file, or random key if no input given, and/or \
            any caps specified in the command",
        module: "auth",
        perm: "rwx",
        flags: 0,
        run: get_or_create,
    },
    CommandSpec {
        sig: "auth get-or-create-key name=entity,type=CephString \
            name=caps,type=CephString,n=N,req=false \
            name=key_type,type=CephChoices,strings=aes|aes256k,req=false",
        help: "get, or add, key for <name> from system/caps pairs specified in the command.  If \
            key already exists, any given caps must match the existing caps for that key.",
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
    CommandSpec {
        sig: "auth rotate name=entity,type=CephString \
            name=key_type,type=CephChoices,strings=aes|aes256k,req=false",
        help: "rotate entity key",
        module: "auth",
        perm: "rwx",
        flags: 0,
        run: rotate,
    },
    CommandSpec {
        sig: "auth get-or-create-pending name=entity,type=CephString \
            name=key_type,type=CephChoices,strings=aes|aes256k,req=false",
        help: "generate and/or retrieve existing pending key (rotated into place on first use)",
        module: "auth",
        perm: "rwx",
        flags: 0,
        run: pending,
    },
    CommandSpec {
        sig: "auth clear-pending name=entity,type=CephString",
        help: "clear pending key",
        module: "auth",
        perm: "rwx",
        flags: 0,
        run: clear_pending,
    },
    CommandSpec {
        sig: "auth commit-pending name=entity,type=CephString",
        help: "rotate pending key into active position",
        module: "auth",
        perm: "rwx",
        flags: 0,
        run: commit_pending,
    },
    CommandSpec {
        sig: "auth wipe-rotating-service-keys",
        help: "make every ticket worthless and draw new keys for all services; clients come in \
            again with their own keys",
        module: "auth",
        perm: "rwx",
        flags: 0,
        run: wipe,
    },
];

pub(super) fn said(e: DbError) -> (i32, String) {
    (e.errno(), e.to_string())
}

fn entity(args: &Args) -> Result<EntityId, (i32, String)> {
    db::entity_of_word(&args.str("entity")).map_err(said)
}

/// The same for a user that is to be made: a daemon is called by a name that daemons may have.
pub(super) fn new_entity(args: &Args) -> Result<EntityId, (i32, String)> {
    let name = entity(args)?;
    may_be_made(&name).map(|()| name)
}

fn may_be_made(name: &EntityId) -> Result<(), (i32, String)> {
    let fits = match name.kind() {
        EntityType::Client => true,
        EntityType::Osd => {
            name.id().parse::<OsdId>().is_ok_and(|o| o >= 0 && o.to_string() == name.id())
        }
        // The monitors' common key has no name.
        EntityType::Mon => name.id().is_empty() || is_daemon_name(name.id()),
        _ => is_daemon_name(name.id()),
    };
    if fits { Ok(()) } else { Err((EINVAL, format!("'{name}' cannot be a daemon's name"))) }
}

/// The table, to be changed.
pub(super) fn table<'a>(ctx: &'a mut CommandCtx<'_>) -> &'a mut AuthDb {
    Arc::make_mut(&mut ctx.work.state.auth)
}

/// A new key of the type asked for. Unasked, our daemons get `aes256k`, clients and metadata
/// servers `aes`, which those of 16.2 and 18.2 know.
pub(super) fn new_key(
    ctx: &CommandCtx<'_>,
    args: &Args,
    entity: &EntityId,
) -> Result<CryptoKey, (i32, String)> {
    let key_type = match args.opt_str("key_type") {
        Some(text) => text.parse().map_err(|e| (EINVAL, e))?,
        None if entity.is_own_daemon() => KeyType::Aes256k,
        None => KeyType::Aes,
    };
    Ok(CryptoKey::generate(key_type, ctx.work.now, &mut stream(ctx)?))
}

pub(super) fn keyring_out(
    ctx: &CommandCtx<'_>,
    entity: &EntityId,
    user: &User,
    with_caps: bool,
) -> CommandResult {
    text_or_json(
        ctx,
        || keyring::section(entity, user, with_caps),
        || json!([user_json(entity, user)]),
    )
}

fn key_out(ctx: &CommandCtx<'_>, key: &CryptoKey, end: &str) -> CommandResult {
    let text = key.to_base64();
    text_or_json(ctx, || format!("{}{end}", text.as_str()), || json!({"key": text.as_str()}))
}

fn ls(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let db = &ctx.work.state.auth;
    let rs =
        if db.is_empty() { "no installed auth entries!\n" } else { "installed auth entries:\n" };
    // In JSON the answer says it itself.
    let rs = if ctx.format.is_json() { String::new() } else { format!("{rs}\n") };
    text_or_json(ctx, || db.list_text(), || db.list_json()).with_rs(rs)
}

fn get(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let run = || -> Outcome {
        let name = entity(args)?;
        let user = ctx.work.state.auth.require(&name).map_err(said)?;
        Ok(keyring_out(ctx, &name, user, true).with_rs(format!("exported keyring for {name}")))
    };
    settle(run())
}

fn export(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let db = &ctx.work.state.auth;
    if !args.has("entity") {
        return text_or_json(ctx, || db.export_text(), || db.export_json())
            .with_rs("exported master keyring");
    }
    let run = || -> Outcome {
        let name = entity(args)?;
        let user = db.get(&name).ok_or_else(|| (ENOENT, format!("no key for {name}")))?;
        Ok(keyring_out(ctx, &name, user, true).with_rs(format!("exported keyring for {name}")))
    };
    settle(run())
}

fn get_key(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let run = || -> Outcome {
        let name = entity(args)?;
        Ok(key_out(ctx, ctx.work.state.auth.key(&name).map_err(said)?, ""))
    };
    settle(run())
}

fn add(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let name = new_entity(args)?;
        let caps = db::caps_of_words(&args.list("caps")).map_err(said)?;
        let key = new_key(ctx, args, &name)?;
        let input = ctx.input;
        let added = table(ctx).add(&name, caps, input, key).map_err(said)?;
        Ok(CommandResult::ok(if added { format!("added key for {name}") } else { String::new() }))
    };
    settle(run())
}

fn get_or_create(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let name = new_entity(args)?;
        let wanted = db::caps_of_words(&args.list("caps")).map_err(said)?;
        let key = new_key(ctx, args, &name)?;
        let user = table(ctx).get_or_create(&name, wanted, key).map_err(said)?.clone();
        Ok(match args.str("prefix").as_str() {
            "auth get-or-create-key" => key_out(ctx, &user.key, "\n"),
            _ => keyring_out(ctx, &name, &user, false),
        })
    };
    settle(run())
}

fn caps(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let name = entity(args)?;
        // Who is asked for is looked up before what, as Ceph does.
        if ctx.work.state.auth.get(&name).is_none() {
            return Err(said(DbError::NoEntry(name)));
        }
        let caps = db::caps_of_words(&args.list("caps")).map_err(said)?;
        table(ctx).set_caps(&name, caps).map_err(said)?;
        Ok(CommandResult::ok(format!("updated caps for {name}")))
    };
    settle(run())
}

fn rm(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let name = entity(args)?;
        let text = if table(ctx).remove(&name) {
            "updated".to_owned()
        } else {
            format!("entity {name} does not exist")
        };
        Ok(CommandResult::ok(text))
    };
    settle(run())
}

fn import(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let input = ctx.input;
    settle(table(ctx).import(input).map_err(said).map(|()| CommandResult::ok("imported keyring")))
}

fn rotate(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let name = entity(args)?;
        let key = new_key(ctx, args, &name)?;
        let user = table(ctx).rotate(&name, key).map_err(said)?.clone();
        Ok(keyring_out(ctx, &name, &user, true).with_rs(format!("rotated key for {name}")))
    };
    settle(run())
}

fn pending(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let name = entity(args)?;
        let key = new_key(ctx, args, &name)?;
        let user = table(ctx).get_or_create_pending(&name, key).map_err(said)?.clone();
        Ok(keyring_out(ctx, &name, &user, false))
    };
    settle(run())
}

fn clear_pending(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let name = entity(args)?;
        table(ctx).clear_pending(&name).map_err(said)?;
        Ok(CommandResult::ok(format!("cleared pending key for {name}")))
    };
    settle(run())
}

fn commit_pending(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let name = entity(args)?;
        table(ctx).commit_pending(&name).map_err(said)?;
        Ok(CommandResult::ok(format!("committed pending key for {name}")))
    };
    settle(run())
}

fn wipe(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let mut draw = stream(ctx)?;
        let lifetimes = Policy::default().lifetimes;
        let old = ctx.work.state.service_keys.clone();
        let all = Arc::make_mut(&mut ctx.work.state.service_keys);
        for service in Service::ALL {
            if let Some(keys) = old.get(service) {
                all.set(service, keys.wiped(ctx.work.now, lifetimes.of(service), &mut draw));
            }
        }
        Ok(CommandResult::ok("wiped rotating service keys!"))
    };
    settle(run())
}
