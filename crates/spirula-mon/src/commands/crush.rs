//! The CRUSH hierarchy: buckets, items, weights, classes.

use super::osd::osd_list;
use super::{
    Args, CommandResult, CommandSpec, FLAG_DEPRECATED, Outcome, json_out, settle, text_or_json,
};
use crate::mon::CommandCtx;
use serde_json::{Value, json};
use spirula_crush::{CrushError, Location, parse_location, weight_from_f64};
use spirula_format::general;
use spirula_types::errno::{
    E2BIG, EBUSY, EEXIST, EINVAL, ENOENT, ENOTEMPTY, EOVERFLOW, EPERM, ERANGE,
};

pub(super) const SPECS: &[CommandSpec] = &[
    CommandSpec {
        sig: "osd crush set name=prior_version,type=CephInt,req=false",
        help: "set crush map from input file",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: set_map,
    },
    CommandSpec {
        sig: "osd crush set name=id,type=CephOsdName name=weight,type=CephFloat,range=0.0 \
            name=args,type=CephString,n=N,goodchars=[A-Za-z0-9-_.=]",
        help: "update crushmap position and weight for <name> to <weight> with location <args>",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: set,
    },
    CommandSpec {
        sig: "osd crush add name=id,type=CephOsdName name=weight,type=CephFloat,range=0.0 \
            name=args,type=CephString,n=N,goodchars=[A-Za-z0-9-_.=]",
        help: "add or update crushmap position and weight for <name> with <weight> and location \
            <args>",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: add,
    },
    CommandSpec {
        sig: "osd crush create-or-move name=id,type=CephOsdName \
            name=weight,type=CephFloat,range=0.0 \
            name=args,type=CephString,n=N,goodchars=[A-Za-z0-9-_.=]",
        help: "create entry or move existing entry for <name> <weight> at/to location <args>",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: create_or_move,
    },
    CommandSpec {
        sig: "osd crush add-bucket name=name,type=CephString,goodchars=[A-Za-z0-9-_.] \
            name=type,type=CephString \
            name=args,type=CephString,n=N,goodchars=[A-Za-z0-9-_.=],req=false",
        help: "add no-parent (probably root) crush bucket <name> of type <type> to location <args>",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: add_bucket,
    },
    CommandSpec {
        sig: "osd crush rename-bucket name=srcname,type=CephString,goodchars=[A-Za-z0-9-_.] \
            name=dstname,type=CephString,goodchars=[A-Za-z0-9-_.]",
        help: "rename bucket <srcname> to <dstname>",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: rename_bucket,
    },
    CommandSpec {
        sig: "osd crush move name=name,type=CephString,goodchars=[A-Za-z0-9-_.] \
            name=args,type=CephString,n=N,goodchars=[A-Za-z0-9-_.=]",
        help: "move existing entry for <name> to location <args>",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: r#move,
    },
    CommandSpec {
        sig: "osd crush swap-bucket name=source,type=CephString,goodchars=[A-Za-z0-9-_.] \
            name=dest,type=CephString,goodchars=[A-Za-z0-9-_.] \
            name=yes_i_really_mean_it,type=CephBool,req=false",
        help: "swap existing bucket contents from (orphan) bucket <source> and <target>",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: swap,
    },
    CommandSpec {
        sig: "osd crush link name=name,type=CephString \
            name=args,type=CephString,n=N,goodchars=[A-Za-z0-9-_.=]",
        help: "link existing entry for <name> under location <args>",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: link,
    },
    CommandSpec {
        sig: "osd crush rm name=name,type=CephString,goodchars=[A-Za-z0-9-_.] \
            name=ancestor,type=CephString,req=false,goodchars=[A-Za-z0-9-_.]",
        help: "remove <name> from crush map (everywhere, or just at <ancestor>)",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: rm,
    },
    CommandSpec {
        sig: "osd crush remove name=name,type=CephString,goodchars=[A-Za-z0-9-_.] \
            name=ancestor,type=CephString,req=false,goodchars=[A-Za-z0-9-_.]",
        help: "remove <name> from crush map (everywhere, or just at <ancestor>)",
        module: "osd",
        perm: "rw",
        flags: FLAG_DEPRECATED,
        run: rm,
    },
    CommandSpec {
        sig: "osd crush unlink name=name,type=CephString,goodchars=[A-Za-z0-9-_.] \
            name=ancestor,type=CephString,req=false,goodchars=[A-Za-z0-9-_.]",
        help: "unlink <name> from crush map (everywhere, or just at <ancestor>)",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: unlink,
    },
    CommandSpec {
        sig: "osd crush reweight-all",
        help: "recalculate the weights for the tree to ensure they sum correctly",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: reweight_all,
    },
    CommandSpec {
        sig: "osd crush reweight name=name,type=CephString,goodchars=[A-Za-z0-9-_.] \
            name=weight,type=CephFloat,range=0.0",
        help: "change <name>'s weight to <weight> in crush map",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: reweight,
    },
    CommandSpec {
        sig: "osd crush reweight-subtree name=name,type=CephString,goodchars=[A-Za-z0-9-_.] \
            name=weight,type=CephFloat,range=0.0",
        help: "change all leaf items beneath <name> to <weight> in crush map",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: reweight_subtree,
    },
    CommandSpec {
        sig: "osd crush ls name=node,type=CephString,goodchars=[A-Za-z0-9-_.]",
        help: "list items beneath a node in the CRUSH tree",
        module: "osd",
        perm: "r",
        flags: 0,
        run: ls,
    },
    CommandSpec {
        sig: "osd crush class ls",
        help: "list all crush device classes",
        module: "osd",
        perm: "r",
        flags: 0,
        run: class_ls,
    },
    CommandSpec {
        sig: "osd crush class ls-osd name=class,type=CephString,goodchars=[A-Za-z0-9-_]",
        help: "list all osds belonging to the specific <class>",
        module: "osd",
        perm: "r",
        flags: 0,
        run: class_ls_osd,
    },
    CommandSpec {
        sig: "osd crush class create name=class,type=CephString,goodchars=[A-Za-z0-9-_]",
        help: "create crush device class <class>",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: class_create,
    },
    CommandSpec {
        sig: "osd crush class rm name=class,type=CephString,goodchars=[A-Za-z0-9-_]",
        help: "remove crush device class <class>",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: class_rm,
    },
    CommandSpec {
        sig: "osd crush class rename name=srcname,type=CephString,goodchars=[A-Za-z0-9-_] \
            name=dstname,type=CephString,goodchars=[A-Za-z0-9-_]",
        help: "rename crush device class <srcname> to <dstname>",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: class_rename,
    },
    CommandSpec {
        sig: "osd crush get-device-class name=ids,type=CephString,n=N",
        help: "get classes of specified osd(s) <id> [<id>...]",
        module: "osd",
        perm: "r",
        flags: 0,
        run: get_class,
    },
    CommandSpec {
        sig: "osd crush set-device-class name=class,type=CephString name=ids,type=CephString,n=N",
        help: "set the <class> of the osd(s) <id> [<id>...],or use <all|any> to set all.",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: set_class,
    },
    CommandSpec {
        sig: "osd crush rm-device-class name=ids,type=CephString,n=N",
        help: "remove class of the osd(s) <id> [<id>...],or use <all|any> to remove all.",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: rm_class,
    },
];

/// Ceph's error number for a refusal of the editing functions.
pub(super) fn refusal(e: CrushError) -> (i32, String) {
    const ENOTDIR: i32 = 20;
    const ELOOP: i32 = 40;
    let errno = match &e {
        CrushError::NoSuchItem(_)
        | CrushError::NoSuchId(_)
        | CrushError::NoSuchRule(_)
        | CrushError::NoSuchClass(_)
        | CrushError::NoWeightSet(_) => ENOENT,
        CrushError::NotABucket(_) => ENOTDIR,
        CrushError::ClassBound { .. } | CrushError::ClassInUse(_) | CrushError::InUse(_) => EBUSY,
        CrushError::Exists(_) => EEXIST,
        CrushError::Loop(_) => ELOOP,
        CrushError::NotEmpty(_) => ENOTEMPTY,
        CrushError::Weight => EOVERFLOW,
        CrushError::Full(_) => ERANGE,
        _ => EINVAL,
    };
    (errno, e.to_string())
}

/// The location that `args` spells (`root=default host=a`).
fn location(args: &Args) -> Result<Location, (i32, String)> {
    let words = args.list("args");
    let words: Vec<&str> = words.iter().flat_map(|w| w.split_whitespace()).collect();
    parse_location(words.iter().copied())
        .filter(|l| !l.is_empty())
        .ok_or_else(|| (EINVAL, format!("unable to parse location '{}'", words.join(" "))))
}

fn place_text(place: &Location) -> String {
    let words: Vec<String> = place.iter().map(|(k, v)| format!("{k}={v}")).collect();
    format!("{{{}}}", words.join(","))
}

fn weight(args: &Args) -> Result<(f64, u32), (i32, String)> {
    let w = args.float("weight").unwrap_or(0.0);
    weight_from_f64(w)
        .map(|fixed| (w, fixed))
        .ok_or_else(|| (E2BIG, format!("weight {w} is out of range")))
}

fn item(ctx: &CommandCtx<'_>, name: &str) -> Result<i32, (i32, String)> {
    let found = ctx.work.osd().crush.item_id(name);
    found.ok_or_else(|| (ENOENT, format!("device '{name}' does not appear in the crush map")))
}

fn set_map(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    super::osd_dump::setcrushmap(ctx, args)
}

fn place_osd(ctx: &mut CommandCtx<'_>, args: &Args, must_exist: bool) -> Outcome {
    let osd = super::osd_show::existing(ctx.work.osd(), args.osd("id")?)?;
    let (shown, fixed) = weight(args)?;
    let place = location(args)?;
    let name = format!("osd.{osd}");
    if must_exist {
        item(ctx, &name).map_err(|_| {
            (
                ENOENT,
                format!(
                    "unable to set item id {osd} name '{name}' weight {} at location {}: does not \
                        exist",
                    general(shown, 6),
                    place_text(&place)
                ),
            )
        })?;
    }
    ctx.work.edit_crush(|c| c.update_item(osd, fixed, &name, &place)).map_err(refusal)?;
    let verb = if must_exist { "set" } else { "add" };
    let sep = if must_exist { ":" } else { "" };
    Ok(CommandResult::ok(format!(
        "{verb} item id {osd} name '{name}' weight {} at location {}{sep} to crush map",
        general(shown, 6),
        place_text(&place)
    )))
}

fn set(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    settle(place_osd(ctx, args, true))
}

fn add(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    settle(place_osd(ctx, args, false))
}

fn create_or_move(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let osd = super::osd_show::existing(ctx.work.osd(), args.osd("id")?)?;
        let (shown, fixed) = weight(args)?;
        let place = location(args)?;
        let name = format!("osd.{osd}");
        let changed = ctx
            .work
            .edit_crush(|c| c.create_or_move(osd, fixed, &name, &place))
            .map_err(refusal)?;
        let verb = if changed { "updating" } else { "updated" };
        Ok(CommandResult::ok(format!(
            "create-or-move {verb} item name '{name}' weight {} at location {} to crush map",
            general(shown, 6),
            place_text(&place)
        )))
    };
    settle(run())
}

fn add_bucket(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let (name, kind) = (args.str("name"), args.str("type"));
        if ctx.work.osd().crush.item_id(&name).is_some() {
            return Ok(CommandResult::ok(format!("bucket '{name}' already exists")));
        }
        let place = if args.has("args") { Some(location(args)?) } else { None };
        ctx.work
            .edit_crush(|c| {
                c.add_bucket(&name, &kind)?;
                if let Some(place) = &place {
                    c.move_item(&name, place)?;
                }
                Ok(())
            })
            .map_err(refusal)?;
        Ok(CommandResult::ok(match &place {
            Some(p) => format!("added bucket {name} type {kind} to location {}", place_text(p)),
            None => format!("added bucket {name} type {kind} to crush map"),
        }))
    };
    settle(run())
}

fn rename_bucket(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let (from, to) = (args.str("srcname"), args.str("dstname"));
        let (has_from, has_to) =
            (ctx.work.osd().crush.item_id(&from), ctx.work.osd().crush.item_id(&to));
        if has_from.is_none() && has_to.is_some() {
            return Ok(CommandResult::ok(format!(
                "bucket '{to}' already exists and '{from}' does not: nothing to rename"
            )));
        }
        ctx.work.edit_crush(|c| c.rename_bucket(&from, &to)).map_err(refusal)?;
        Ok(CommandResult::ok(format!("renamed bucket {from} into {to}")))
    };
    settle(run())
}

fn r#move(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let name = args.str("name");
        let id = ctx
            .work
            .osd()
            .crush
            .item_id(&name)
            .ok_or_else(|| (ENOENT, format!("item {name} does not exist")))?;
        let place = location(args)?;
        let moved = ctx.work.edit_crush(|c| c.move_item(&name, &place)).map_err(refusal)?;
        let verb = if moved { "moved" } else { "no need to move" };
        Ok(CommandResult::ok(format!(
            "{verb} item id {id} name '{name}' to location {} in crush map",
            place_text(&place)
        )))
    };
    settle(run())
}

fn swap(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let (a, b) = (args.str("source"), args.str("dest"));
        let id = item(ctx, &a)?;
        if ctx.work.osd().crush.is_linked(id) && !args.bool("yes_i_really_mean_it") {
            return Err((
                EPERM,
                format!(
                    "'{a}' is not an orphan bucket; pass --yes-i-really-mean-it to proceed anyway"
                ),
            ));
        }
        ctx.work.edit_crush(|c| c.swap_buckets(&a, &b)).map_err(refusal)?;
        Ok(CommandResult::ok(format!("swapped bucket of {a} to {b}")))
    };
    settle(run())
}

fn link(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let name = args.str("name");
        let id = ctx
            .work
            .osd()
            .crush
            .item_id(&name)
            .ok_or_else(|| (ENOENT, format!("item {name} does not exist")))?;
        let place = location(args)?;
        let already = ctx.work.osd().crush.weight_at(id, &place).is_some();
        if !already {
            ctx.work.edit_crush(|c| c.link_bucket(&name, &place)).map_err(refusal)?;
        }
        let verb = if already { "no need to link" } else { "linked" };
        Ok(CommandResult::ok(format!(
            "{verb} item id {id} name '{name}' to location {} in crush map",
            place_text(&place)
        )))
    };
    settle(run())
}

fn remove(ctx: &mut CommandCtx<'_>, args: &Args, unlink_only: bool) -> CommandResult {
    let mut run = || -> Outcome {
        let name = args.str("name");
        let Some(id) = ctx.work.osd().crush.item_id(&name) else {
            return Ok(CommandResult::ok(format!(
                "device '{name}' does not appear in the crush map"
            )));
        };
        let ancestor = args.opt_str("ancestor");
        ctx.work
            .edit_crush(|c| c.remove_item(&name, ancestor.as_deref(), unlink_only))
            .map_err(refusal)?;
        Ok(CommandResult::ok(format!("removed item id {id} name '{name}' from crush map")))
    };
    settle(run())
}

fn rm(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    remove(ctx, args, false)
}

fn unlink(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    remove(ctx, args, true)
}

fn reweight_all(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    settle(
        ctx.work
            .edit_crush(|c| c.reweight_all())
            .map_err(refusal)
            .map(|()| CommandResult::ok("reweighted crush hierarchy")),
    )
}

fn reweight(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let name = args.str("name");
        let id = item(ctx, &name)?;
        if id < 0 {
            return Err((EINVAL, format!("device '{name}' is not a leaf in the crush map")));
        }
        let (shown, fixed) = weight(args)?;
        ctx.work.edit_crush(|c| c.set_item_weight(id, fixed)).map_err(refusal)?;
        Ok(CommandResult::ok(format!(
            "reweighted item id {id} name '{name}' to {} in crush map",
            general(shown, 6)
        )))
    };
    settle(run())
}

fn reweight_subtree(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let name = args.str("name");
        let id = item(ctx, &name)?;
        if id >= 0 {
            return Err((EINVAL, format!("device '{name}' is not a subtree in the crush map")));
        }
        let (shown, fixed) = weight(args)?;
        ctx.work.edit_crush(|c| c.set_subtree_weight(id, fixed)).map_err(refusal)?;
        Ok(CommandResult::ok(format!(
            "reweighted subtree id {id} name '{name}' to {} in crush map",
            general(shown, 6)
        )))
    };
    settle(run())
}

fn ls(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let run = || -> Outcome {
        let name = args.str("node");
        let crush = &ctx.work.osd().crush;
        let id = crush
            .item_id(&name)
            .ok_or_else(|| (ENOENT, format!("node '{name}' does not exist")))?;
        let children = if id >= 0 { vec![id] } else { crush.children(id).to_vec() };
        let names: Vec<&str> = children.iter().filter_map(|c| crush.item_name(*c)).collect();
        Ok(text_or_json(ctx, || names.iter().map(|n| format!("{n}\n")).collect(), || json!(names)))
    };
    settle(run())
}

fn class_ls(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    json_out(ctx, &json!(ctx.work.osd().crush.classes()))
}

fn class_ls_osd(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let osds = ctx.work.osd().crush.devices_of_class(&args.str("class"));
    text_or_json(ctx, || osds.iter().map(|o| format!("{o}\n")).collect(), || json!(osds))
}

fn class_create(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let class = args.str("class");
        if ctx.work.osd().crush.class_id(&class).is_some() {
            return Ok(CommandResult::ok(format!("class '{class}' already exists")));
        }
        let id = ctx.work.edit_crush(|c| c.create_class(&class)).map_err(refusal)?;
        Ok(CommandResult::ok(format!("created class {class} with id {id} to crush map")))
    };
    settle(run())
}

fn class_rm(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let class = args.str("class");
        let Some(id) = ctx.work.osd().crush.class_id(&class) else {
            return Ok(CommandResult::ok(format!("class '{class}' does not exist")));
        };
        ctx.work.edit_crush(|c| c.remove_class(&class)).map_err(refusal)?;
        Ok(CommandResult::ok(format!("removed class {class} with id {id} from crush map")))
    };
    settle(run())
}

fn class_rename(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let (from, to) = (args.str("srcname"), args.str("dstname"));
        let (has_from, has_to) =
            (ctx.work.osd().crush.class_id(&from), ctx.work.osd().crush.class_id(&to));
        if has_from.is_none() && has_to.is_some() {
            return Ok(CommandResult::ok(format!("already renamed to '{to}'")));
        }
        ctx.work.edit_crush(|c| c.rename_class(&from, &to)).map_err(refusal)?;
        Ok(CommandResult::ok(format!("rename class '{from}' to '{to}'")))
    };
    settle(run())
}

fn get_class(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let run = || -> Outcome {
        let osds = osd_list(ctx, &args.list("ids"))?;
        let class = |o: i32| ctx.work.osd().crush.class_of(o).unwrap_or_default();
        let value = Value::Array(
            osds.iter().map(|o| json!({"osd": o, "device_class": class(*o)})).collect(),
        );
        let text = || match osds.as_slice() {
            [one] => format!("{}\n", class(*one)),
            all => all.iter().map(|o| format!("osd.{o} {}\n", class(*o))).collect(),
        };
        Ok(text_or_json(ctx, text, || value))
    };
    settle(run())
}

fn ids_joined(osds: &[i32]) -> String {
    osds.iter().map(i32::to_string).collect::<Vec<_>>().join(",")
}

fn set_class(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let class = args.str("class");
        let osds = osd_list(ctx, &args.list("ids"))?;
        let mut done = Vec::new();
        for osd in osds {
            super::osd_show::existing(ctx.work.osd(), osd)?;
            if ctx.work.edit_crush(|c| c.set_device_class(osd, &class)).map_err(refusal)? {
                done.push(osd);
            }
        }
        Ok(CommandResult::ok(format!("set osd(s) {} to class '{class}'", ids_joined(&done))))
    };
    settle(run())
}

fn rm_class(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let mut done = Vec::new();
        for osd in osd_list(ctx, &args.list("ids"))? {
            super::osd_show::existing(ctx.work.osd(), osd)?;
            if ctx.work.edit_crush(|c| c.remove_device_class(osd)).map_err(refusal)? {
                done.push(osd);
            }
        }
        Ok(CommandResult::ok(format!("done removing class of osd(s): {}", ids_joined(&done))))
    };
    settle(run())
}
