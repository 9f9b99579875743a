//! `ceph mgr …`.

use super::{Args, CommandResult, CommandSpec, FLAG_MGR, json_out, misc};
use crate::mgr::{fail_active, set_mgrmap};
use crate::mon::CommandCtx;
use serde_json::{Map, Value, json};
use spirula_maps::{MgrMap, RELEASE_PACIFIC};
use spirula_types::errno::{EINVAL, ENOENT};

pub(super) const SPECS: &[CommandSpec] = &[
    CommandSpec {
        sig: "mgr stat",
        help: "dump basic info about the mgr cluster state",
        module: "mgr",
        perm: "r",
        flags: 0,
        run: stat,
    },
    CommandSpec {
        sig: "mgr dump name=epoch,type=CephInt,range=0,req=false",
        help: "dump the latest MgrMap",
        module: "mgr",
        perm: "r",
        flags: 0,
        run: dump,
    },
    CommandSpec {
        sig: "mgr fail name=who,type=CephString,req=false",
        help: "treat the named manager daemon as failed",
        module: "mgr",
        perm: "rw",
        flags: 0,
        run: fail,
    },
    CommandSpec {
        sig: "mgr module ls",
        help: "list active mgr modules",
        module: "mgr",
        perm: "r",
        flags: 0,
        run: module_ls,
    },
    CommandSpec {
        sig: "mgr module enable name=module,type=CephString \
            name=force,type=CephChoices,strings=--force,req=false",
        help: "enable mgr module",
        module: "mgr",
        perm: "rw",
        flags: 0,
        run: module_enable,
    },
    CommandSpec {
        sig: "mgr module disable name=module,type=CephString",
        help: "disable mgr module",
        module: "mgr",
        perm: "rw",
        flags: 0,
        run: module_disable,
    },
    CommandSpec {
        sig: "mgr services",
        help: "list service endpoints provided by mgr modules",
        module: "mgr",
        perm: "r",
        flags: 0,
        run: services,
    },
    CommandSpec {
        sig: "mgr metadata name=who,type=CephString,req=false",
        help: "dump metadata for all daemons or a specific daemon",
        module: "mgr",
        perm: "r",
        flags: 0,
        run: metadata,
    },
    CommandSpec {
        sig: "mgr count-metadata name=property,type=CephString",
        help: "count ceph-mgr daemons by metadata field property",
        module: "mgr",
        perm: "r",
        flags: 0,
        run: count_metadata,
    },
    CommandSpec {
        sig: "mgr versions",
        help: "check running versions of ceph-mgr daemons",
        module: "mgr",
        perm: "r",
        flags: 0,
        run: versions,
    },
    // A manager's, which `rbd` asks monitors for.
    CommandSpec {
        sig: "service dump",
        help: "dump service map",
        module: "service",
        perm: "r",
        flags: FLAG_MGR,
        run: |ctx, _| json_out(ctx, &ctx.mon.mgr.knowledge.services.dump()),
    },
    CommandSpec {
        sig: "service status",
        help: "dump service state",
        module: "service",
        perm: "r",
        flags: FLAG_MGR,
        run: |ctx, _| json_out(ctx, &ctx.mon.mgr.knowledge.services.status()),
    },
];

fn stat(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let m = &ctx.work.state.mgrmap;
    json_out(
        ctx,
        &json!({
            "epoch": m.epoch, "available": m.available, "active_name": m.active_name, "num_standby": m.standbys.len(),
        }),
    )
}

fn dump(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let m = &ctx.work.state.mgrmap;
    match args.int("epoch").filter(|e| *e != 0 && *e != i64::from(m.epoch)) {
        Some(e) => CommandResult::err(ENOENT, format!("there is no map for epoch {e}")),
        None => json_out(ctx, &m.dump()),
    }
}

fn fail(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut map = MgrMap::clone(&ctx.work.state.mgrmap);
    let who = args.opt_str("who").unwrap_or_else(|| map.active_name.clone());
    if map.active_gid == 0 {
        return CommandResult::err(ENOENT, "Currently no active mgr");
    }
    if map.active_name == who || map.active_gid.to_string() == who {
        fail_active(&mut map, ctx.work.now);
    } else {
        let gid = map
            .standbys
            .iter()
            .find(|(g, s)| s.name == who || g.to_string() == who)
            .map(|(g, _)| *g);
        match gid {
            Some(gid) => {
                map.standbys.remove(&gid);
            }
            None => return CommandResult::ok(format!("Daemon not found '{who}', already failed?")),
        }
    }
    set_mgrmap(ctx.work, map);
    CommandResult::default()
}

fn always_on(map: &MgrMap) -> Vec<String> {
    map.always_on_modules.get(&u32::from(RELEASE_PACIFIC)).into_iter().flatten().cloned().collect()
}

fn module_ls(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let map = &ctx.work.state.mgrmap;
    let always = always_on(map);
    let dump = map.dump();
    let available =
        dump.get("available_modules").and_then(Value::as_array).cloned().unwrap_or_default();
    let off = |m: &Value| {
        let name = m.get("name").and_then(Value::as_str).unwrap_or_default();
        !map.modules.contains(name) && !always.iter().any(|a| a == name)
    };
    let disabled: Vec<Value> = available.into_iter().filter(off).collect();
    json_out(
        ctx,
        &json!({
            "always_on_modules": always, "enabled_modules": map.modules, "disabled_modules": disabled,
        }),
    )
}

fn module_enable(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let name = args.str("module");
    let mut map = MgrMap::clone(&ctx.work.state.mgrmap);
    let available = map.available_modules.iter().any(|m| m.name == name);
    // Ceph's list of those that are always on is in the map; a manager here has few of them.
    if available && always_on(&map).contains(&name) {
        return CommandResult::ok(format!("module '{name}' is already enabled (always-on)"));
    }
    if map.modules.contains(&name) {
        return CommandResult::ok(format!("module '{name}' is already enabled"));
    }
    if !available {
        return CommandResult::err(
            ENOENT,
            format!("all mgr daemons do not support module '{name}': this version has it not"),
        );
    }
    map.modules.insert(name);
    set_mgrmap(ctx.work, map);
    CommandResult::default()
}

fn module_disable(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let name = args.str("module");
    let mut map = MgrMap::clone(&ctx.work.state.mgrmap);
    if always_on(&map).contains(&name) {
        return CommandResult::err(
            EINVAL,
            format!("module '{name}' cannot be disabled (always-on)"),
        );
    }
    if !map.modules.remove(&name) {
        return CommandResult::ok(format!("module '{name}' is already disabled"));
    }
    set_mgrmap(ctx.work, map);
    CommandResult::default()
}

fn services(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    json_out(ctx, &json!(ctx.work.state.mgrmap.services))
}

/// Managers in the map.
fn names(ctx: &CommandCtx<'_>) -> Vec<String> {
    let map = &ctx.work.state.mgrmap;
    let active = (map.active_gid != 0).then(|| map.active_name.clone());
    active.into_iter().chain(map.standbys.values().map(|s| s.name.clone())).collect()
}

fn metadata(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let one = |name: &String| {
        let mut m = Map::new();
        m.insert("name".into(), name.clone().into());
        for (k, v) in ctx.work.state.mgr_metadata.get(name).into_iter().flatten() {
            m.insert(k.clone(), v.clone().into());
        }
        Value::Object(m)
    };
    match args.opt_str("who") {
        None => json_out(ctx, &Value::Array(names(ctx).iter().map(one).collect())),
        Some(who) => {
            let name = who.strip_prefix("mgr.").unwrap_or(&who).to_owned();
            if !names(ctx).contains(&name) {
                return CommandResult::err(ENOENT, format!("mgr.{name} does not exist"));
            }
            json_out(ctx, &one(&name))
        }
    }
}

fn count_metadata(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let property = args.str("property");
    let names = names(ctx);
    let of = |n: &String| {
        ctx.work
            .state
            .mgr_metadata
            .get(n)
            .and_then(|m| m.get(&property))
            .map_or("unknown", String::as_str)
    };
    json_out(ctx, &json!(misc::count_versions(names.iter().map(of))))
}

fn versions(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    json_out(ctx, &json!(misc::mgr_versions(ctx)))
}
