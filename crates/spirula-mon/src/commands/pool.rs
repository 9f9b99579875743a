//! Pools: making, naming, removing, snapshots, quotas, applications.

use super::{
    Args, CommandResult, CommandSpec, FLAG_DEPRECATED, Outcome, json_out, settle, text_or_json,
};
use crate::absent;
use crate::mon::CommandCtx;
use crate::options::parse_size;
use crate::pools::{self, NewPool};
use crate::snaps;
use serde_json::{Value, json};
use spirula_format::{bytes, si};
use spirula_maps::PgPool;
use spirula_types::PoolId;
use spirula_types::errno::{EEXIST, EINVAL, ENOENT, EPERM};
use std::collections::BTreeMap;

pub(super) const SPECS: &[CommandSpec] = &[
    CommandSpec {
        sig: "osd pool create name=pool,type=CephPoolname \
            name=pg_num,type=CephInt,range=0,req=false name=pgp_num,type=CephInt,range=0,req=false \
            name=pool_type,type=CephChoices,strings=replicated|erasure,req=false \
            name=erasure_code_profile,type=CephString,req=false,goodchars=[A-Za-z0-9-_.] name=rule,type=CephString,req=false name=expected_num_objects,type=CephInt,range=0,req=false name=size,type=CephInt,range=0,req=false name=pg_num_min,type=CephInt,range=0,req=false name=pg_num_max,type=CephInt,range=0,req=false name=autoscale_mode,type=CephChoices,strings=on|off|warn,req=false name=bulk,type=CephBool,req=false name=target_size_bytes,type=CephInt,range=0,req=false name=target_size_ratio,type=CephFloat,range=0.0,req=false",
        help: "create pool",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: create,
    },
    CommandSpec {
        sig: "osd pool delete name=pool,type=CephPoolname name=pool2,type=CephPoolname,req=false \
            name=yes_i_really_really_mean_it,type=CephBool,req=false \
            name=yes_i_really_really_mean_it_not_faking,type=CephBool,req=false",
        help: "delete pool",
        module: "osd",
        perm: "rw",
        flags: FLAG_DEPRECATED,
        run: remove,
    },
    CommandSpec {
        sig: "osd pool rm name=pool,type=CephPoolname name=pool2,type=CephPoolname,req=false \
            name=yes_i_really_really_mean_it,type=CephBool,req=false \
            name=yes_i_really_really_mean_it_not_faking,type=CephBool,req=false",
        help: "remove pool",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: remove,
    },
    CommandSpec {
        sig: "osd pool rename name=srcpool,type=CephPoolname name=destpool,type=CephPoolname",
        help: "rename <srcpool> to <destpool>",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: rename,
    },
    CommandSpec {
        sig: "osd pool ls name=detail,type=CephChoices,strings=detail,req=false",
        help: "list pools",
        module: "osd",
        perm: "r",
        flags: 0,
        run: ls,
    },
    CommandSpec {
        sig: "osd pool set-quota name=pool,type=CephPoolname \
            name=field,type=CephChoices,strings=max_objects|max_bytes name=val,type=CephString",
        help: "set object or byte limit on pool",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: set_quota,
    },
    CommandSpec {
        sig: "osd pool get-quota name=pool,type=CephPoolname",
        help: "obtain object or byte limits for pool",
        module: "osd",
        perm: "r",
        flags: 0,
        run: get_quota,
    },
    CommandSpec {
        sig: "osd pool mksnap name=pool,type=CephPoolname name=snap,type=CephString",
        help: "make snapshot <snap> in <pool>",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: mksnap,
    },
    CommandSpec {
        sig: "osd pool rmsnap name=pool,type=CephPoolname name=snap,type=CephString",
        help: "remove snapshot <snap> from <pool>",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: rmsnap,
    },
    CommandSpec {
        sig: "osd pool application enable name=pool,type=CephPoolname \
            name=app,type=CephString,goodchars=[A-Za-z0-9-_.] \
            name=yes_i_really_mean_it,type=CephBool,req=false",
        help: "enable use of an application <app> [cephfs,rbd,rgw] on pool <poolname>",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: app_enable,
    },
    CommandSpec {
        sig: "osd pool application disable name=pool,type=CephPoolname name=app,type=CephString \
            name=yes_i_really_mean_it,type=CephBool,req=false",
        help: "disables use of an application <app> on pool <poolname>",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: app_disable,
    },
    CommandSpec {
        sig: "osd pool application set name=pool,type=CephPoolname name=app,type=CephString \
            name=key,type=CephString,goodchars=[A-Za-z0-9-_.] \
            name=value,type=CephString,goodchars=[A-Za-z0-9-_.=]",
        help: "sets application <app> metadata key <key> to <value> on pool <poolname>",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: app_set,
    },
    CommandSpec {
        sig: "osd pool application rm name=pool,type=CephPoolname name=app,type=CephString \
            name=key,type=CephString",
        help: "removes application <app> metadata key <key> on pool <poolname>",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: app_rm,
    },
    CommandSpec {
        sig: "osd pool application get name=pool,type=CephPoolname,req=false \
            name=app,type=CephString,req=false name=key,type=CephString,req=false",
        help: "get value of key <key> of application <app> on pool <poolname>",
        module: "osd",
        perm: "r",
        flags: 0,
        run: app_get,
    },
];

/// Most applications of a pool, and keys of an application; longest name, key or value.
const APPS_MAX: usize = 4;
const APP_KEYS_MAX: usize = 64;
const APP_TEXT_MAX: usize = 128;

/// Arguments of `osd pool create` that are variables of the pool.
const CREATE_VARS: [&str; 5] =
    ["autoscale_mode", "pg_num_min", "pg_num_max", "target_size_bytes", "target_size_ratio"];

/// The pool an argument names.
pub(super) fn pool_id(
    ctx: &CommandCtx<'_>,
    args: &Args,
    arg: &str,
) -> Result<(PoolId, String), (i32, String)> {
    let name = args.str(arg);
    match ctx.work.osd().pool_by_name(&name) {
        Some(id) => Ok((id, name)),
        None => Err((ENOENT, format!("unrecognized pool '{name}'"))),
    }
}

/// The pool, to be edited. It exists: its id came from the same map.
pub(super) fn edit<'a>(
    ctx: &'a mut CommandCtx<'_>,
    id: PoolId,
) -> Result<&'a mut PgPool, (i32, String)> {
    ctx.work
        .osd_mut()
        .pools
        .get_mut(&id)
        .ok_or_else(|| (ENOENT, format!("pool {id} does not exist")))
}

/// The profile and the rule's name of an erasure-coded pool to be made. The rule is made if there
/// is none of its name.
fn erasure_of(
    ctx: &mut CommandCtx<'_>,
    args: &Args,
) -> Result<(pools::Erasure, String), (i32, String)> {
    let named = args.opt_str("erasure_code_profile").filter(|p| !p.is_empty());
    let profile = named.unwrap_or_else(|| "default".to_owned());
    let erasure = pools::erasure(ctx.work, &profile)?;
    let default =
        || if profile == "default" { "erasure-code".to_owned() } else { args.str("pool") };
    let rule = args.opt_str("rule").filter(|r| !r.is_empty()).unwrap_or_else(default);
    match ctx
        .work
        .osd()
        .crush
        .rule_of_name(&rule)
        .and_then(|id| ctx.work.osd().crush.rule(id).cloned())
    {
        None => {
            super::crush_rules::make_erasure(ctx, &rule, &profile)?;
        }
        Some(r) if r.kind != spirula_maps::osdmap::pool::TYPE_ERASURE => {
            return Err((EINVAL, format!("crush rule {rule} type does not match pool")));
        }
        Some(r) if r.max_size < erasure.k + erasure.m => {
            let (most, need) = (r.max_size, erasure.k + erasure.m);
            return Err((
                EINVAL,
                format!("crush rule {rule} places at most {most} shards, the profile needs {need}"),
            ));
        }
        Some(_) => {}
    }
    Ok((erasure, rule))
}

pub(super) fn create(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let name = args.str("pool");
        for var in CREATE_VARS {
            absent::pool_var(
                if var == "autoscale_mode" { "pg_autoscale_mode" } else { var },
                &args.str(var),
            )?;
        }
        if args.bool("bulk") {
            absent::pool_var("bulk", "true")?;
        }
        let existing = ctx.work.osd().pool_by_name(&name).and_then(|id| ctx.work.osd().pool(id));
        if let Some(pool) = existing {
            let asked = args.str("pool_type");
            if !asked.is_empty() && (asked == "erasure") != pool.is_erasure() {
                return Err((
                    EINVAL,
                    format!("pool '{name}' is there, and its type cannot change to {asked}"),
                ));
            }
            return Ok(CommandResult::ok(format!("pool '{name}' already exists")));
        }
        let erasure =
            if args.str("pool_type") == "erasure" { Some(erasure_of(ctx, args)?) } else { None };
        // `osd pool create NAME PG PGP RULE` without a type: the word lands in the profile.
        let rule_name = match &erasure {
            Some((_, rule)) => Some(rule.clone()),
            None => args.opt_str("rule").or_else(|| args.opt_str("erasure_code_profile")),
        };
        let crush_rule = match rule_name.filter(|r| !r.is_empty()) {
            Some(r) => match ctx.work.osd().crush.rule_of_name(&r) {
                Some(id) => Some(id),
                None => return Err((ENOENT, format!("specified rule {r} doesn't exist"))),
            },
            None => None,
        };
        let number =
            |arg: &str| args.int(arg).and_then(|v| u32::try_from(v).ok()).filter(|v| *v > 0);
        let size = number("size").map(|s| u8::try_from(s).unwrap_or(u8::MAX));
        if size.is_some_and(|s| s > 10) {
            return Err((EINVAL, "pool size must be between 1 and 10".into()));
        }
        let new = NewPool {
            name: name.clone(),
            pg_num: number("pg_num"),
            pgp_num: number("pgp_num"),
            size,
            crush_rule,
            expected_num_objects: args.int("expected_num_objects").unwrap_or(0).max(0) as u64,
            erasure: erasure.map(|(e, _)| e),
        };
        pools::create(ctx.work, &new)?;
        Ok(CommandResult::ok(format!("pool '{name}' created")))
    };
    settle(run())
}

pub(super) fn remove(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let name = args.str("pool");
        let Some(id) = ctx.work.osd().pool_by_name(&name) else {
            return Ok(CommandResult::ok(format!("pool '{name}' does not exist")));
        };
        let sure = args.bool("yes_i_really_really_mean_it") && args.str("pool2") == name;
        if !sure && !args.bool("yes_i_really_really_mean_it_not_faking") {
            return Err((
                EPERM,
                format!(
                    "WARNING: this will *PERMANENTLY DESTROY* all data stored in pool {name}.  If \
                        you are *ABSOLUTELY CERTAIN* that is what you want, pass the pool name \
                        *twice*, followed by --yes-i-really-really-mean-it."
                ),
            ));
        }
        pools::delete(ctx.work, id)?;
        Ok(CommandResult::ok(format!("pool '{name}' removed")))
    };
    settle(run())
}

fn rename(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let (from, to) = (args.str("srcpool"), args.str("destpool"));
        let taken = ctx.work.osd().pool_by_name(&to).is_some();
        let Some(id) = ctx.work.osd().pool_by_name(&from) else {
            let text = if taken {
                format!(
                    "pool '{from}' does not exist; pool '{to}' does -- assuming successful rename"
                )
            } else {
                format!("unrecognized pool '{from}'")
            };
            return if taken { Ok(CommandResult::ok(text)) } else { Err((ENOENT, text)) };
        };
        if taken {
            return Err((EEXIST, format!("pool '{to}' already exists")));
        }
        pools::check_name(&to)?;
        ctx.work.osd_mut().pool_names.insert(id, to.clone());
        Ok(CommandResult::ok(format!("pool '{from}' renamed to '{to}'")))
    };
    settle(run())
}

fn ls(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let map = ctx.work.osd();
    if args.has("detail") {
        let text = || {
            // The pools' part of `osd dump`, with the newline it ends with there.
            let dump = map.dump_text();
            let lines = dump
                .lines()
                .skip_while(|l| !l.starts_with("pool "))
                .take_while(|l| !l.starts_with("max_osd "));
            lines.map(|l| format!("{l}\n")).collect::<String>() + "\n"
        };
        return text_or_json(ctx, text, || map.dump_pools());
    }
    let text = || map.pool_names.values().map(|n| format!("{n}\n")).collect();
    text_or_json(ctx, text, || json!(map.pool_names.values().collect::<Vec<_>>()))
}

fn set_quota(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let (id, name) = pool_id(ctx, args, "pool")?;
        let (field, text) = (args.str("field"), args.str("val"));
        let bad = || (EINVAL, format!("error parsing value '{text}': not a number"));
        let value = if field == "max_bytes" { parse_size(&text) } else { parse_count(&text) }
            .ok_or_else(bad)?;
        let pool = edit(ctx, id)?;
        if field == "max_bytes" {
            pool.quota_max_bytes = value;
        } else {
            pool.quota_max_objects = value;
        }
        Ok(CommandResult::ok(format!("set-quota {field} = {value} for pool {name}")))
    };
    settle(run())
}

/// `100000`, `100k`, `2M`: decimal multiples.
fn parse_count(text: &str) -> Option<u64> {
    let t = text.trim();
    let digits = t.find(|c: char| !c.is_ascii_digit()).unwrap_or(t.len());
    let (number, unit) = t.split_at(digits);
    let power =
        ["", "K", "M", "G", "T", "P", "E"].iter().position(|u| u.eq_ignore_ascii_case(unit))?;
    number.parse::<u64>().ok()?.checked_mul(1000u64.checked_pow(power as u32)?)
}

fn get_quota(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let run = || -> Outcome {
        let (id, name) = pool_id(ctx, args, "pool")?;
        let pool = ctx.work.osd().pool(id).cloned().unwrap_or_default();
        let sum = ctx
            .mon
            .mgr
            .knowledge
            .digest
            .pools
            .get(&id)
            .map(|p| p.stat.stats.sum)
            .unwrap_or_default();
        let text = || {
            let objects = match pool.quota_max_objects {
                0 => "N/A".into(),
                n => {
                    format!("{} objects  (current num objects: {} objects)", si(n), sum.num_objects)
                }
            };
            let size = match pool.quota_max_bytes {
                0 => "N/A".into(),
                n => format!("{}  (current num bytes: {} bytes)", bytes(n), sum.num_bytes),
            };
            format!("quotas for pool '{name}':\n  max objects: {objects}\n  max bytes  : {size}\n")
        };
        let value = || {
            json!({
                "pool_name": name,
                "pool_id": id,
                "quota_max_objects": pool.quota_max_objects,
                "current_num_objects": sum.num_objects,
                "quota_max_bytes": pool.quota_max_bytes,
                "current_num_bytes": sum.num_bytes,
            })
        };
        Ok(text_or_json(ctx, text, value))
    };
    settle(run())
}

fn mksnap(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let (id, name) = pool_id(ctx, args, "pool")?;
        let snap = args.str("snap");
        match snaps::create_snap(ctx.work, id, &snap) {
            Ok(()) => Ok(CommandResult::ok(format!("created pool {name} snap {snap}"))),
            Err((EEXIST, text)) => Ok(CommandResult::ok(text)),
            Err(e) => Err(e),
        }
    };
    settle(run())
}

fn rmsnap(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let (id, name) = pool_id(ctx, args, "pool")?;
        let snap = args.str("snap");
        match snaps::remove_snap(ctx.work, id, &snap) {
            Ok(()) => Ok(CommandResult::ok(format!("removed pool {name} snap {snap}"))),
            Err((ENOENT, text)) => Ok(CommandResult::ok(text)),
            Err(e) => Err(e),
        }
    };
    settle(run())
}

fn app_enable(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let (id, name) = pool_id(ctx, args, "pool")?;
        let app = args.str("app");
        if app.is_empty() || app.len() > APP_TEXT_MAX {
            return Err((
                EINVAL,
                format!("application name '{app}' too long; max length {APP_TEXT_MAX}"),
            ));
        }
        let done = format!("enabled application '{app}' on pool '{name}'");
        let apps = &edit(ctx, id)?.application_metadata;
        if apps.contains_key(&app) {
            return Ok(CommandResult::ok(done));
        }
        if !apps.is_empty() && !args.bool("yes_i_really_mean_it") {
            return Err((
                EPERM,
                format!(
                    "Are you SURE? Pool '{name}' already has an enabled application; pass \
                        --yes-i-really-mean-it to proceed anyway"
                ),
            ));
        }
        if apps.len() >= APPS_MAX {
            return Err((
                EINVAL,
                format!("too many enabled applications on pool '{name}'; max {APPS_MAX}"),
            ));
        }
        edit(ctx, id)?.application_metadata.insert(app, BTreeMap::new());
        Ok(CommandResult::ok(done))
    };
    settle(run())
}

fn app_disable(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let (id, name) = pool_id(ctx, args, "pool")?;
        let app = args.str("app");
        if !args.bool("yes_i_really_mean_it") {
            return Err((
                EPERM,
                "Are you SURE? Disabling an application within a pool might result \
                in loss of application functionality; pass --yes-i-really-mean-it to proceed anyway"
                    .into(),
            ));
        }
        if edit(ctx, id)?.application_metadata.remove(&app).is_none() {
            return Ok(CommandResult::ok(format!(
                "application '{app}' is not enabled on pool '{name}'"
            )));
        }
        Ok(CommandResult::ok(format!("disable application '{app}' on pool '{name}'")))
    };
    settle(run())
}

/// An application's keys, to be edited.
fn app_keys<'a>(
    ctx: &'a mut CommandCtx<'_>,
    id: PoolId,
    (app, pool): (&str, &str),
) -> Result<&'a mut BTreeMap<String, String>, (i32, String)> {
    edit(ctx, id)?
        .application_metadata
        .get_mut(app)
        .ok_or_else(|| (ENOENT, format!("application '{app}' is not enabled on pool '{pool}'")))
}

fn app_set(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let (id, name) = pool_id(ctx, args, "pool")?;
        let (app, key, value) = (args.str("app"), args.str("key"), args.str("value"));
        if key == "all" {
            return Err((EINVAL, "key cannot be 'all'".into()));
        }
        if key.len() > APP_TEXT_MAX || value.len() > APP_TEXT_MAX {
            return Err((
                EINVAL,
                format!("key '{key}' or its value too long; max length {APP_TEXT_MAX}"),
            ));
        }
        let keys = app_keys(ctx, id, (&app, &name))?;
        if keys.len() >= APP_KEYS_MAX && !keys.contains_key(&key) {
            return Err((
                EINVAL,
                format!(
                    "too many keys set for application '{app}' on pool '{name}'; max {APP_KEYS_MAX}"
                ),
            ));
        }
        keys.insert(key.clone(), value.clone());
        Ok(CommandResult::ok(format!(
            "set application '{app}' key '{key}' to '{value}' on pool '{name}'"
        )))
    };
    settle(run())
}

fn app_rm(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let (id, name) = pool_id(ctx, args, "pool")?;
        let (app, key) = (args.str("app"), args.str("key"));
        if app_keys(ctx, id, (&app, &name))?.remove(&key).is_none() {
            return Ok(CommandResult::ok(format!(
                "application '{app}' on pool '{name}' does not have key '{key}'"
            )));
        }
        Ok(CommandResult::ok(format!("removed application '{app}' key '{key}' on pool '{name}'")))
    };
    settle(run())
}

fn app_get(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let run = || -> Outcome {
        let map = ctx.work.osd();
        if !args.has("pool") {
            let all: serde_json::Map<String, Value> = map
                .pools
                .iter()
                .map(|(id, p)| (map.pool_name(*id).to_owned(), json!(p.application_metadata)))
                .collect();
            return Ok(json_out(ctx, &Value::Object(all)));
        }
        let (id, name) = pool_id(ctx, args, "pool")?;
        let apps = map.pool(id).map(|p| p.application_metadata.clone()).unwrap_or_default();
        let Some(app) = args.opt_str("app") else { return Ok(json_out(ctx, &json!(apps))) };
        let keys = apps
            .get(&app)
            .ok_or_else(|| (ENOENT, format!("pool '{name}' has no application '{app}'")))?;
        let Some(key) = args.opt_str("key") else { return Ok(json_out(ctx, &json!(keys))) };
        let value = keys.get(&key).ok_or_else(|| {
            (ENOENT, format!("application '{app}' on pool '{name}' does not have key '{key}'"))
        })?;
        Ok(text_or_json(ctx, || format!("{value}\n"), || json!(value)))
    };
    settle(run())
}
