//! CRUSH rules, tunables and weight sets.

use super::crush::refusal;
use super::pool::pool_id;
use super::{
    Args, CommandResult, CommandSpec, FLAG_DEPRECATED, Outcome, json_out, settle, text_or_json,
};
use crate::mon::CommandCtx;
use serde_json::{Value, json};
use spirula_crush::{CrushError, weight_from_f64};
use spirula_crush::{RULE_REPLICATED, SimpleRule};
use spirula_types::errno::{EBUSY, EINVAL, ENOENT};

pub(super) const SPECS: &[CommandSpec] = &[
    CommandSpec {
        sig: "osd crush rule ls",
        help: "list crush rules",
        module: "osd",
        perm: "r",
        flags: 0,
        run: ls,
    },
    CommandSpec {
        sig: "osd crush rule list",
        help: "list crush rules",
        module: "osd",
        perm: "r",
        flags: FLAG_DEPRECATED,
        run: ls,
    },
    CommandSpec {
        sig: "osd crush rule ls-by-class name=class,type=CephString,goodchars=[A-Za-z0-9-_.]",
        help: "list all crush rules that reference the same <class>",
        module: "osd",
        perm: "r",
        flags: 0,
        run: ls_by_class,
    },
    CommandSpec {
        sig: "osd crush rule dump name=name,type=CephString,goodchars=[A-Za-z0-9-_.],req=false",
        help: "dump crush rule <name> (default all)",
        module: "osd",
        perm: "r",
        flags: 0,
        run: dump,
    },
    CommandSpec {
        sig: "osd crush rule create-replicated name=name,type=CephString,goodchars=[A-Za-z0-9-_.] \
            name=root,type=CephString,goodchars=[A-Za-z0-9-_.] \
            name=type,type=CephString,goodchars=[A-Za-z0-9-_.] \
            name=class,type=CephString,goodchars=[A-Za-z0-9-_.],req=false",
        help: "create crush rule <name> for replicated pool to start from <root>, replicate across \
            buckets of type <type>, use devices of type <class> (ssd or hdd)",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: create_replicated,
    },
    CommandSpec {
        sig: "osd crush rule create-simple name=name,type=CephString,goodchars=[A-Za-z0-9-_.] \
            name=root,type=CephString,goodchars=[A-Za-z0-9-_.] \
            name=type,type=CephString,goodchars=[A-Za-z0-9-_.] \
            name=mode,type=CephChoices,strings=firstn|indep,req=false",
        help: "create crush rule <name> to start from <root>, replicate across buckets of type \
            <type>, using a choose mode of <firstn|indep> (default firstn; indep best for erasure \
            pools)",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: create_simple,
    },
    CommandSpec {
        sig: "osd crush rule create-erasure name=name,type=CephString,goodchars=[A-Za-z0-9-_.] \
            name=profile,type=CephString,req=false,goodchars=[A-Za-z0-9-_.=]",
        help: "create crush rule <name> for erasure coded pool created with <profile> (default \
            default)",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: create_erasure,
    },
    CommandSpec {
        sig: "osd crush rule rm name=name,type=CephString,goodchars=[A-Za-z0-9-_.]",
        help: "remove crush rule <name>",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: rm,
    },
    CommandSpec {
        sig: "osd crush rule rename name=srcname,type=CephString,goodchars=[A-Za-z0-9-_.] \
            name=dstname,type=CephString,goodchars=[A-Za-z0-9-_.]",
        help: "rename crush rule <srcname> to <dstname>",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: rename,
    },
    CommandSpec {
        sig: "osd crush tunables \
            name=profile,type=CephChoices,strings=legacy|argonaut|bobtail|firefly|hammer|jewel|optimal|default",
        help: "set crush tunables values to <profile>",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: tunables,
    },
    CommandSpec {
        sig: "osd crush set-tunable name=tunable,type=CephChoices,strings=straw_calc_version \
            name=value,type=CephInt",
        help: "set crush tunable <tunable> to <value>",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: set_tunable,
    },
    CommandSpec {
        sig: "osd crush get-tunable name=tunable,type=CephChoices,strings=straw_calc_version",
        help: "get crush tunable <tunable>",
        module: "osd",
        perm: "r",
        flags: 0,
        run: get_tunable,
    },
    CommandSpec {
        sig: "osd crush show-tunables",
        help: "show current crush tunables",
        module: "osd",
        perm: "r",
        flags: 0,
        run: show_tunables,
    },
    CommandSpec {
        sig: "osd crush weight-set ls",
        help: "list crush weight sets",
        module: "osd",
        perm: "r",
        flags: 0,
        run: ws_ls,
    },
    CommandSpec {
        sig: "osd crush weight-set dump",
        help: "dump crush weight sets",
        module: "osd",
        perm: "r",
        flags: 0,
        run: ws_dump,
    },
    CommandSpec {
        sig: "osd crush weight-set create-compat",
        help: "create a default backward-compatible weight-set",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: ws_create_compat,
    },
    CommandSpec {
        sig: "osd crush weight-set create name=pool,type=CephPoolname \
            name=mode,type=CephChoices,strings=flat|positional",
        help: "create a weight-set for a given pool",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: ws_create,
    },
    CommandSpec {
        sig: "osd crush weight-set rm name=pool,type=CephPoolname",
        help: "remove the weight-set for a given pool",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: ws_rm,
    },
    CommandSpec {
        sig: "osd crush weight-set rm-compat",
        help: "remove the backward-compatible weight-set",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: ws_rm_compat,
    },
    CommandSpec {
        sig: "osd crush weight-set reweight name=pool,type=CephPoolname name=item,type=CephString \
            name=weight,type=CephFloat,range=0.0,n=N",
        help: "set weight for an item (bucket or osd) in a pool's weight-set",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: ws_reweight,
    },
    CommandSpec {
        sig: "osd crush weight-set reweight-compat name=item,type=CephString \
            name=weight,type=CephFloat,range=0.0,n=N",
        help: "set weight for an item (bucket or osd) in the backward-compatible weight-set",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: ws_reweight,
    },
];

/// Key of the weight set that old clients understand.
const COMPAT: i64 = -1;

fn rule_ids(ctx: &CommandCtx<'_>) -> Vec<u32> {
    let crush = &ctx.work.osd().crush;
    (0..crush.rules.len() as u32).filter(|r| crush.rule(*r).is_some()).collect()
}

fn names_out(ctx: &CommandCtx<'_>, names: Vec<String>) -> CommandResult {
    text_or_json(ctx, || names.iter().map(|n| format!("{n}\n")).collect(), || json!(names))
}

fn ls(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let name = |r: &u32| ctx.work.osd().crush.rule_name(*r).map(str::to_owned);
    names_out(ctx, rule_ids(ctx).iter().filter_map(name).collect())
}

fn ls_by_class(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let class = args.str("class");
    let crush = &ctx.work.osd().crush;
    if crush.class_id(&class).is_none() {
        return CommandResult::err(ENOENT, format!("failed to get rules by class '{class}'"));
    }
    let suffix = format!("~{class}");
    let uses = |r: &u32| {
        crush.takes(*r).iter().any(|id| crush.item_name(*id).is_some_and(|n| n.ends_with(&suffix)))
    };
    let name = |r: u32| crush.rule_name(r).map(str::to_owned);
    names_out(ctx, rule_ids(ctx).into_iter().filter(uses).filter_map(name).collect())
}

fn dump(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let crush = &ctx.work.osd().crush;
    let Some(name) = args.opt_str("name") else { return json_out(ctx, &crush.dump_rules()) };
    match crush.rule_of_name(&name).and_then(|id| crush.dump_rule(id)) {
        Some(rule) => json_out(ctx, &rule),
        None => CommandResult::err(ENOENT, format!("unknown crush rule '{name}'")),
    }
}

/// A rule of that name is there already, which is what was asked for.
fn exists(ctx: &CommandCtx<'_>, name: &str) -> Option<CommandResult> {
    let found = ctx.work.osd().crush.rule_of_name(name).is_some();
    found.then(|| CommandResult::ok(format!("rule {name} already exists")))
}

fn rule_refusal(e: CrushError) -> (i32, String) {
    match &e {
        CrushError::NoSuchItem(n) => (ENOENT, format!("root item {n} does not exist")),
        CrushError::NoSuchType(t) => (EINVAL, format!("unknown type {t}")),
        CrushError::NoSuchClass(c) => (EINVAL, format!("device class {c} does not exist")),
        _ => refusal(e),
    }
}

fn create_replicated(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let name = args.str("name");
    if let Some(done) = exists(ctx, &name) {
        return done;
    }
    let class = args.opt_str("class").filter(|c| !c.is_empty());
    let made = ctx.work.edit_crush(|c| {
        c.create_replicated(&name, &args.str("root"), &args.str("type"), class.as_deref())
    });
    settle(made.map_err(rule_refusal).map(|_| CommandResult::default()))
}

fn create_simple(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let name = args.str("name");
    if let Some(done) = exists(ctx, &name) {
        return done;
    }
    let (root, domain) = (args.str("root"), args.str("type"));
    let rule = SimpleRule {
        name: &name,
        root: &root,
        failure_domain: &domain,
        class: None,
        indep: args.str("mode") == "indep",
        kind: RULE_REPLICATED,
    };
    let made = ctx.work.edit_crush(|c| c.create_simple(&rule));
    settle(made.map_err(rule_refusal).map(|_| CommandResult::default()))
}

fn create_erasure(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let name = args.str("name");
        if let Some(done) = exists(ctx, &name) {
            return Ok(done);
        }
        let profile = args
            .opt_str("profile")
            .filter(|p| !p.is_empty())
            .unwrap_or_else(|| "default".to_owned());
        let id = make_erasure(ctx, &name, &profile)?;
        Ok(CommandResult::ok(format!("created rule {name} at {id}")))
    };
    settle(run())
}

/// Makes a rule for pools of a profile. Its id.
pub(super) fn make_erasure(
    ctx: &mut CommandCtx<'_>,
    name: &str,
    profile_name: &str,
) -> Result<u32, (i32, String)> {
    let profiles = &ctx.work.osd().ec_profiles;
    let profile = profiles.get(profile_name).cloned();
    let profile = profile
        .ok_or_else(|| (EINVAL, format!("unknown erasure code profile '{profile_name}'")))?;
    let text = |k: &str, d: &str| {
        profile.get(k).filter(|v| !v.is_empty()).cloned().unwrap_or_else(|| d.to_owned())
    };
    let number = |k: &str| {
        text(k, "2")
            .parse::<u8>()
            .map_err(|_| (EINVAL, format!("profile '{profile_name}': bad {k}")))
    };
    let chunks = number("k")?.saturating_add(number("m")?);
    let class = profile.get("crush-device-class").filter(|c| !c.is_empty()).map(String::as_str);
    let (root, domain) = (text("crush-root", "default"), text("crush-failure-domain", "host"));
    ctx.work
        .edit_crush(|c| c.create_erasure(name, &root, &domain, class, chunks))
        .map_err(rule_refusal)
}

fn rm(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let name = args.str("name");
        let Some(id) = ctx.work.osd().crush.rule_of_name(&name) else {
            return Ok(CommandResult::ok(format!("rule {name} does not exist")));
        };
        if ctx.work.osd().pools.values().any(|p| u32::from(p.crush_rule) == id) {
            return Err((EBUSY, format!("crush ruleset {name} {id} is in use")));
        }
        ctx.work.edit_crush(|c| c.remove_rule(&name)).map_err(refusal)?;
        Ok(CommandResult::default())
    };
    settle(run())
}

fn rename(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let (from, to) = (args.str("srcname"), args.str("dstname"));
    let crush = &ctx.work.osd().crush;
    if crush.rule_of_name(&from).is_none() && crush.rule_of_name(&to).is_some() {
        return CommandResult::ok(format!("already renamed to '{to}'"));
    }
    settle(
        ctx.work
            .edit_crush(|c| c.rename_rule(&from, &to))
            .map_err(refusal)
            .map(|()| CommandResult::default()),
    )
}

fn tunables(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let profile = args.str("profile");
    let edited = ctx.work.edit_crush(|c| {
        let new = c.tunables.with_profile(&profile).ok_or(())?;
        c.tunables = new;
        Ok::<_, ()>(())
    });
    match edited {
        Ok(()) => CommandResult::ok(format!("adjusted tunables profile to {profile}")),
        Err(()) => CommandResult::err(EINVAL, format!("unrecognized profile '{profile}'")),
    }
}

fn set_tunable(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let value = args.int("value").unwrap_or(-1);
    let Ok(version) = u8::try_from(value) else {
        return CommandResult::err(EINVAL, format!("value must be 0 or 1; got {value}"));
    };
    if version > 1 {
        return CommandResult::err(EINVAL, format!("value must be 0 or 1; got {value}"));
    }
    let edited: Result<(), std::convert::Infallible> = ctx.work.edit_crush(|c| {
        c.tunables.straw_calc_version = version;
        Ok(())
    });
    debug_assert!(edited.is_ok());
    CommandResult::ok(format!("adjusted tunable straw_calc_version to {value}"))
}

fn get_tunable(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let v = ctx.work.osd().crush.tunables.straw_calc_version;
    text_or_json(ctx, || format!("{v}\n"), || json!({"straw_calc_version": v}))
}

fn show_tunables(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    json_out(ctx, &ctx.work.osd().crush.dump_tunables())
}

fn ws_ls(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let map = ctx.work.osd();
    let name = |key: &i64| {
        if *key == COMPAT { "(compat)".to_owned() } else { map.pool_name(*key).to_owned() }
    };
    let names: Vec<String> = map.crush.choose_args.keys().map(name).collect();
    names_out(ctx, names)
}

fn ws_dump(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let dump = ctx.work.osd().crush.dump();
    json_out(
        ctx,
        &dump.get("choose_args").cloned().unwrap_or_else(|| Value::Object(Default::default())),
    )
}

fn create_set(ctx: &mut CommandCtx<'_>, key: i64, positions: usize) -> CommandResult {
    let made = ctx
        .work
        .edit_crush(|c| Ok::<_, std::convert::Infallible>(c.create_weight_set(key, positions)));
    match made {
        Ok(true) => CommandResult::default(),
        Ok(false) => CommandResult::ok("weight-set already created"),
        Err(never) => match never {},
    }
}

fn ws_create_compat(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    create_set(ctx, COMPAT, 1)
}

fn ws_create(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let run = pool_id(ctx, args, "pool");
    settle(run.map(|(id, _)| {
        let size = ctx.work.osd().pool(id).map_or(1, |p| usize::from(p.size));
        create_set(ctx, id, if args.str("mode") == "flat" { 1 } else { size })
    }))
}

fn remove_set(ctx: &mut CommandCtx<'_>, key: i64) -> CommandResult {
    let removed =
        ctx.work.edit_crush(|c| Ok::<_, std::convert::Infallible>(c.remove_weight_set(key)));
    debug_assert!(removed.is_ok());
    CommandResult::default()
}

fn ws_rm(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let run = pool_id(ctx, args, "pool");
    settle(run.map(|(id, _)| remove_set(ctx, id)))
}

fn ws_rm_compat(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    remove_set(ctx, COMPAT)
}

fn ws_reweight(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let key = if args.has("pool") { pool_id(ctx, args, "pool")?.0 } else { COMPAT };
        let name = args.str("item");
        let id = ctx
            .work
            .osd()
            .crush
            .item_id(&name)
            .ok_or_else(|| (ENOENT, format!("{name} does not exist")))?;
        let mut weights = Vec::new();
        for w in args.list("weight") {
            let fixed = w.parse::<f64>().ok().and_then(weight_from_f64);
            weights.push(fixed.ok_or_else(|| (EINVAL, format!("bad weight '{w}'")))?);
        }
        ctx.work.edit_crush(|c| c.reweight_in_weight_set(key, id, &weights)).map_err(refusal)?;
        Ok(CommandResult::default())
    };
    settle(run())
}
