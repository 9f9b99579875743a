//! Exceptions to placement: pg_temp, upmaps, forced creation.

use super::osd_show::{existing, ids_text, parse_pg};
use super::{Args, CommandResult, CommandSpec, Outcome, settle};
use crate::mon::CommandCtx;
use spirula_maps::release_number;
use spirula_types::errno::{EINVAL, ENOENT, EPERM};
use spirula_types::{OSD_NONE, OsdId};
use std::sync::Arc;

pub(super) const SPECS: &[CommandSpec] = &[
    CommandSpec {
        sig: "osd pg-temp name=pgid,type=CephPgid name=id,type=CephOsdName,n=N,req=false",
        help: "set pg_temp mapping pgid:[<id> [<id>...]] (developers only)",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: pg_temp,
    },
    CommandSpec {
        sig: "osd primary-temp name=pgid,type=CephPgid name=id,type=CephOsdName",
        help: "set primary_temp mapping pgid:<id>|-1 (developers only)",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: primary_temp,
    },
    CommandSpec {
        sig: "osd pg-upmap name=pgid,type=CephPgid name=id,type=CephOsdName,n=N",
        help: "set pg_upmap mapping <pgid>:[<id> [<id>...]] (developers only)",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: upmap,
    },
    CommandSpec {
        sig: "osd rm-pg-upmap name=pgid,type=CephPgid",
        help: "clear pg_upmap mapping for <pgid> (developers only)",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: rm_upmap,
    },
    CommandSpec {
        sig: "osd pg-upmap-items name=pgid,type=CephPgid name=id,type=CephOsdName,n=N",
        help: "set pg_upmap_items mapping <pgid>:{<id> to <id>, [...]} (developers only)",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: upmap_items,
    },
    CommandSpec {
        sig: "osd rm-pg-upmap-items name=pgid,type=CephPgid",
        help: "clear pg_upmap_items mapping for <pgid> (developers only)",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: rm_upmap_items,
    },
    CommandSpec {
        sig: "osd force-create-pg name=pgid,type=CephPgid \
            name=yes_i_really_mean_it,type=CephBool,req=false",
        help: "force creation of pg <pgid>",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: force_create,
    },
    CommandSpec {
        sig: "pg repeer name=pgid,type=CephPgid",
        help: "force a PG to repeer",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: repeer,
    },
];

/// OSDs of the `id` argument; all must exist.
fn osds(ctx: &CommandCtx<'_>, args: &Args) -> Result<Vec<OsdId>, (i32, String)> {
    let mut out = Vec::new();
    for text in args.list("id") {
        let id = super::args::parse_osd(&text)
            .ok_or_else(|| (EINVAL, format!("invalid osd '{text}'")))?;
        out.push(existing(ctx.work.osd(), id)?);
    }
    Ok(out)
}

fn pg_temp(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let pg = parse_pg(ctx.work.osd(), &args.str("pgid"))?;
        let set = osds(ctx, args)?;
        let size = ctx.work.osd().pool(pg.pool).map_or(0, |p| usize::from(p.size));
        if set.len() > size {
            return Err((EINVAL, format!("num of osds ({}) > pool size ({size})", set.len())));
        }
        if set.is_empty() {
            ctx.work.osd_mut().pg_temp.remove(&pg);
        } else {
            ctx.work.osd_mut().pg_temp.insert(pg, set.clone());
        }
        Ok(CommandResult::ok(format!("set {pg} pg_temp mapping to {}", ids_text(&set))))
    };
    settle(run())
}

fn primary_temp(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let pg = parse_pg(ctx.work.osd(), &args.str("pgid"))?;
        let text = args.str("id");
        if text == "-1" {
            ctx.work.osd_mut().primary_temp.remove(&pg);
            return Ok(CommandResult::ok(format!("set {pg} primary_temp mapping to -1")));
        }
        let osd = existing(ctx.work.osd(), args.osd("id")?)?;
        ctx.work.osd_mut().primary_temp.insert(pg, osd);
        Ok(CommandResult::ok(format!("set {pg} primary_temp mapping to {osd}")))
    };
    settle(run())
}

/// Upmaps confuse clients older than Luminous; none must be allowed.
fn needs_luminous(ctx: &CommandCtx<'_>) -> Result<(), (i32, String)> {
    let luminous = release_number("luminous").unwrap_or(0);
    if ctx.work.osd().require_min_compat_client >= luminous {
        return Ok(());
    }
    Err((
        EPERM,
        "min_compat_client is below luminous, which is required for pg-upmap. Try 'ceph \
        osd set-require-min-compat-client luminous' before using the new interface"
            .into(),
    ))
}

fn upmap(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        needs_luminous(ctx)?;
        let pg = parse_pg(ctx.work.osd(), &args.str("pgid"))?;
        let set = osds(ctx, args)?;
        let pool = ctx.work.osd().pool(pg.pool).cloned().unwrap_or_default();
        let (min, max) = (usize::from(pool.min_size), usize::from(pool.size));
        if set.len() < min || set.len() > max {
            return Err((
                EINVAL,
                format!(
                    "num of osds ({}) < pool min size ({min}) or > pool size ({max})",
                    set.len()
                ),
            ));
        }
        if set.iter().enumerate().any(|(i, o)| set.iter().skip(i + 1).any(|p| p == o)) {
            return Err((EINVAL, "osds are not unique".into()));
        }
        ctx.work.osd_mut().pg_upmap.insert(pg, set.clone());
        Ok(CommandResult::ok(format!("set {pg} pg_upmap mapping to {}", ids_text(&set))))
    };
    settle(run())
}

fn rm_upmap(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        needs_luminous(ctx)?;
        let pg = parse_pg(ctx.work.osd(), &args.str("pgid"))?;
        ctx.work.osd_mut().pg_upmap.remove(&pg);
        Ok(CommandResult::ok(format!("clear {pg} pg_upmap mapping")))
    };
    settle(run())
}

fn upmap_items(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        needs_luminous(ctx)?;
        let pg = parse_pg(ctx.work.osd(), &args.str("pgid"))?;
        let list = osds(ctx, args)?;
        if list.is_empty() || list.len() % 2 != 0 {
            return Err((EINVAL, "you must specify pairs of OSDs".into()));
        }
        let mut notes = String::new();
        let mut items: Vec<(OsdId, OsdId)> = Vec::new();
        for pair in list.chunks_exact(2) {
            let &[from, to] = pair else { continue };
            if from == to {
                notes += &format!("from osd.{from} == to osd.{to}, ");
            } else if items.iter().any(|(f, t)| *f == from || *t == to) {
                notes += &format!("osd.{from} or osd.{to} is already part of a pair, ");
            } else if to == OSD_NONE || ctx.work.osd().crush.item_type(to).is_none() {
                return Err((ENOENT, format!("osd.{to} does not exist in crush map")));
            } else {
                items.push((from, to));
            }
        }
        if items.is_empty() {
            return Err((EINVAL, notes + "no valid upmap items(pairs) is specified"));
        }
        let words: Vec<String> = items.iter().map(|(f, t)| format!("{f}->{t}")).collect();
        ctx.work.osd_mut().pg_upmap_items.insert(pg, items);
        Ok(CommandResult::ok(format!(
            "{notes}set {pg} pg_upmap_items mapping to [{}]",
            words.join(",")
        )))
    };
    settle(run())
}

fn rm_upmap_items(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        needs_luminous(ctx)?;
        let pg = parse_pg(ctx.work.osd(), &args.str("pgid"))?;
        ctx.work.osd_mut().pg_upmap_items.remove(&pg);
        Ok(CommandResult::ok(format!("clear {pg} pg_upmap_items mapping")))
    };
    settle(run())
}

fn force_create(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let pg = parse_pg(ctx.work.osd(), &args.str("pgid"))?;
        if ctx.work.state.creating.contains_key(&pg) {
            return Ok(CommandResult::ok(format!("pg {pg} already creating")));
        }
        if !args.bool("yes_i_really_mean_it") {
            return Err((EPERM, "This command will recreate a lost (as in data lost) PG with data \
                in it, such that the cluster will give up ever trying to recover the lost data.  \
                Do this only if you are certain that all copies of the PG are in fact lost and you \
                are willing to accept that the data is permanently destroyed.  Pass --yes-i-really-mean-it to proceed.".into()));
        }
        let epoch = ctx.work.next_epoch();
        Arc::make_mut(&mut ctx.work.state.creating).insert(pg, epoch);
        Ok(CommandResult::ok(format!("pg {pg} now creating, ok")))
    };
    settle(run())
}

/// A new interval by way of a temporary acting set in another order, or its removal.
fn repeer(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let pg = parse_pg(ctx.work.osd(), &args.str("pgid"))?;
        let at = ctx.work.osd().pg_to_up_acting(pg);
        let next = at.acting.iter().find(|o| **o != at.acting_primary && **o != OSD_NONE).copied();
        let map = ctx.work.osd_mut();
        if map.pg_temp.remove(&pg).is_none() {
            match next {
                Some(other) => {
                    let mut set = at.acting.clone();
                    set.retain(|o| *o != other);
                    set.insert(0, other);
                    map.pg_temp.insert(pg, set);
                }
                None => {
                    return Err((
                        EINVAL,
                        format!("pg {pg} has no second acting OSD to change the order with"),
                    ));
                }
            }
        }
        Ok(CommandResult::ok(format!("pg {pg} will repeer")))
    };
    settle(run())
}
