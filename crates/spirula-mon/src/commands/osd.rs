//! What is done to single OSDs: in, out, down, stop, weight, making and removing.

use super::osd_show::existing;
use super::{
    Args, CommandResult, CommandSpec, FLAG_DEPRECATED, FLAG_HIDDEN, Outcome, json_out, settle,
};
use crate::mon::CommandCtx;
use crate::osd;
use serde_json::json;
use spirula_auth::EntityId;
use spirula_format::general;
use spirula_maps::PgState;
use spirula_maps::osdmap::{WEIGHT_IN, state};
use spirula_types::errno::{EBUSY, EEXIST, EINVAL, ENOENT, EPERM};
use spirula_types::{EntityType, OsdId, Uuid};

pub(super) const SPECS: &[CommandSpec] = &[
    CommandSpec {
        sig: "osd out name=ids,type=CephString,n=N",
        help: "set osd(s) <id> [<id>...] out, or use <any|all> to set all osds out",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: out,
    },
    CommandSpec {
        sig: "osd in name=ids,type=CephString,n=N",
        help: "set osd(s) <id> [<id>...] in, can use <any|all> to automatically set all previously \
            out osds in",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: r#in,
    },
    CommandSpec {
        sig: "osd down name=ids,type=CephString,n=N name=definitely_dead,type=CephBool,req=false",
        help: "set osd(s) <id> [<id>...] down, or use <any|all> to set all osds down",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: down,
    },
    CommandSpec {
        sig: "osd stop name=ids,type=CephString,n=N",
        help: "stop the corresponding osd daemons and mark them as down",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: stop,
    },
    CommandSpec {
        sig: "osd rm name=ids,type=CephString,n=N",
        help: "remove osd(s) <id> [<id>...], or use <any|all> to remove all osds",
        module: "osd",
        perm: "rw",
        flags: FLAG_DEPRECATED,
        run: rm,
    },
    CommandSpec {
        sig: "osd reweight name=id,type=CephOsdName name=weight,type=CephFloat,range=0.0|1.0",
        help: "reweight osd to 0.0 < <weight> < 1.0",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: reweight,
    },
    CommandSpec {
        sig: "osd reweightn name=weights,type=CephString",
        help: "reweight osds with {<id>: <weight>,...}",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: reweightn,
    },
    CommandSpec {
        sig: "osd primary-affinity name=id,type=CephOsdName \
            name=weight,type=CephFloat,range=0.0|1.0",
        help: "adjust osd primary-affinity from 0.0 <= <weight> <= 1.0",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: affinity,
    },
    CommandSpec {
        sig: "osd lost name=id,type=CephOsdName name=yes_i_really_mean_it,type=CephBool,req=false",
        help: "mark osd as permanently lost. THIS DESTROYS DATA IF NO MORE REPLICAS EXIST, BE \
            CAREFUL",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: lost,
    },
    CommandSpec {
        sig: "osd destroy name=id,type=CephOsdName name=force,type=CephBool,req=false \
            name=yes_i_really_mean_it,type=CephBool,req=false",
        help: "mark osd as being destroyed. Keeps the ID intact (allowing reuse), but removes \
            cephx keys, config-key data and lockbox keys, rendering data permanently unreadable.",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: destroy_checked,
    },
    CommandSpec {
        sig: "osd purge name=id,type=CephOsdName name=force,type=CephBool,req=false \
            name=yes_i_really_mean_it,type=CephBool,req=false",
        help: "purge all osd data from the monitors including the OSD id and CRUSH position",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: purge_checked,
    },
    CommandSpec {
        sig: "osd destroy-actual name=id,type=CephOsdName \
            name=yes_i_really_mean_it,type=CephBool,req=false",
        help: "mark osd as being destroyed. Keeps the ID intact (allowing reuse), but removes \
            cephx keys, config-key data and lockbox keys, rendering data permanently unreadable.",
        module: "osd",
        perm: "rw",
        flags: FLAG_HIDDEN,
        run: destroy,
    },
    CommandSpec {
        sig: "osd purge-actual name=id,type=CephOsdName \
            name=yes_i_really_mean_it,type=CephBool,req=false",
        help: "purge all osd data from the monitors. Combines `osd destroy`, `osd rm`, and `osd \
            crush rm`.",
        module: "osd",
        perm: "rw",
        flags: FLAG_HIDDEN,
        run: purge,
    },
    CommandSpec {
        sig: "osd purge-new name=id,type=CephOsdName \
            name=yes_i_really_mean_it,type=CephBool,req=false",
        help: "purge all traces of an OSD that was partially created but never started",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: purge_new,
    },
    CommandSpec {
        sig: "osd new name=uuid,type=CephUUID,req=true name=id,type=CephOsdName,req=false",
        help: "Create a new OSD. If supplied, the `id` to be replaced needs to exist and have been \
            previously destroyed.",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: new,
    },
    CommandSpec {
        sig: "osd create name=uuid,type=CephUUID,req=false name=id,type=CephOsdName,req=false",
        help: "create new osd (with optional UUID and ID)",
        module: "osd",
        perm: "rw",
        flags: FLAG_DEPRECATED,
        run: new,
    },
    CommandSpec {
        sig: "osd setmaxosd name=newmax,type=CephInt,range=0",
        help: "set new maximum osd value",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: setmaxosd,
    },
];

/// OSDs given as ids, names, or `any`, `all`, `*`.
pub(super) fn osd_list(ctx: &CommandCtx<'_>, ids: &[String]) -> Result<Vec<OsdId>, (i32, String)> {
    let mut out = Vec::new();
    for id in ids.iter().flat_map(|i| i.split_whitespace()) {
        if matches!(id, "any" | "all" | "*") {
            return Ok(ctx.work.osd().osds().collect());
        }
        let osd = super::args::parse_osd(id)
            .ok_or_else(|| (EINVAL, format!("unable to parse osd id or name \"{id}\"")))?;
        out.push(osd);
    }
    Ok(out)
}

/// Runs `one` on each OSD of the `ids` argument; its texts are strung together.
fn for_each(
    ctx: &mut CommandCtx<'_>,
    args: &Args,
    mut one: impl FnMut(&mut CommandCtx<'_>, OsdId) -> Result<String, (i32, String)>,
) -> CommandResult {
    let mut run = || -> Outcome {
        let mut text = String::new();
        for osd in osd_list(ctx, &args.list("ids"))? {
            if ctx.work.osd().exists(osd) {
                text += &one(ctx, osd)?;
            } else {
                text += &format!("osd.{osd} does not exist. ");
            }
        }
        Ok(CommandResult::ok(text))
    };
    settle(run())
}

/// An operator's word on an OSD, in the cluster log.
fn say_who(ctx: &mut CommandCtx<'_>, osd: OsdId, what: &str) {
    let who = ctx.peer.auth_name();
    ctx.work.info(format!("Client {who} marked osd.{osd} {what}"));
}

fn out(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    for_each(ctx, args, |ctx, osd| {
        if ctx.work.osd().is_out(osd) {
            return Ok(format!("osd.{osd} is already out. "));
        }
        osd::mark_out(ctx.work, osd, false);
        say_who(ctx, osd, "out");
        Ok(format!("marked out osd.{osd}. "))
    })
}

fn r#in(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let all = args.list("ids").iter().any(|i| matches!(i.as_str(), "all" | "any" | "*"));
    for_each(ctx, args, |ctx, osd| {
        if ctx.work.osd().is_in(osd) {
            // Who says `all` asks for those that are not.
            return Ok(if all { String::new() } else { format!("osd.{osd} is already in. ") });
        }
        osd::mark_in(ctx.work, osd);
        say_who(ctx, osd, "in");
        Ok(format!("marked in osd.{osd}. "))
    })
}

fn down(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let dead = args.bool("definitely_dead");
    for_each(ctx, args, |ctx, osd| {
        if ctx.work.osd().is_down(osd) {
            return Ok(format!("osd.{osd} is already down. "));
        }
        let mark = if dead { osd::mark_dead } else { osd::mark_down };
        mark(ctx.work, osd);
        say_who(ctx, osd, "down");
        Ok(format!("marked down osd.{osd}. "))
    })
}

fn stop(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    for_each(ctx, args, |ctx, osd| {
        if ctx.work.osd().state(osd) & state::STOP != 0 {
            return Ok(format!("osd.{osd} is already stopped. "));
        }
        // One that hears us stops by itself and then says so: without a wait for what it may still
        // be serving.
        if !ctx.mon.osds.is_connected(osd) {
            osd::mark_down(ctx.work, osd);
        }
        if let Some(s) =
            usize::try_from(osd).ok().and_then(|i| ctx.work.osd_mut().osd_state.get_mut(i))
        {
            *s |= state::STOP;
        }
        ctx.work.stops.push(osd);
        Ok(format!("stop down osd.{osd}. "))
    })
}

fn rm(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    for_each(ctx, args, |ctx, osd| {
        if ctx.work.osd().is_up(osd) {
            return Err((EBUSY, format!("osd.{osd} is still up; must be down before removal. ")));
        }
        osd::remove(ctx.work, osd);
        Ok(format!("removed osd.{osd}, "))
    })
}

fn to_fixed(weight: f64) -> u32 {
    (weight * f64::from(WEIGHT_IN)) as u32
}

fn reweight(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let id = existing(ctx.work.osd(), args.osd("id")?)?;
        let weight = args.float("weight").unwrap_or(1.0);
        let fixed = to_fixed(weight);
        osd::set_weight(ctx.work.osd_mut(), id, fixed);
        Ok(CommandResult::ok(format!("reweighted osd.{id} to {} ({fixed:x})", general(weight, 6))))
    };
    settle(run())
}

fn reweightn(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let text = args.str("weights").replace('\'', "\"");
        let bad = || (EINVAL, "unable to parse 'weights' value '".to_owned() + &text + "'");
        let map: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(&text).map_err(|_| bad())?;
        let mut weights = Vec::new();
        for (id, w) in &map {
            let id = super::args::parse_osd(id).ok_or_else(bad)?;
            existing(ctx.work.osd(), id)?;
            // In 16.16 already, as the balancer gives them: whole numbers, in text or not; a
            // fraction is a mistake.
            let w = w
                .as_u64()
                .or_else(|| w.as_str()?.parse().ok())
                .filter(|w| *w <= u64::from(WEIGHT_IN))
                .ok_or_else(bad)?;
            weights.push((id, w as u32));
        }
        for (id, w) in weights {
            osd::set_weight(ctx.work.osd_mut(), id, w);
        }
        Ok(CommandResult::ok("reweighted osds"))
    };
    settle(run())
}

fn affinity(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let id = existing(ctx.work.osd(), args.osd("id")?)?;
        let weight = args.float("weight").unwrap_or(1.0);
        let fixed = to_fixed(weight);
        let map = ctx.work.osd_mut();
        let n = map.osd_state.len();
        map.primary_affinity.resize(n, WEIGHT_IN);
        if let Some(a) = usize::try_from(id).ok().and_then(|i| map.primary_affinity.get_mut(i)) {
            *a = fixed;
        }
        Ok(CommandResult::ok(format!(
            "set osd.{id} primary-affinity to {} ({fixed:#x})",
            general(weight, 6)
        )))
    };
    settle(run())
}

fn lost(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let id = args.osd("id")?;
        if !args.bool("yes_i_really_mean_it") {
            return Err((
                EPERM,
                "are you SURE?  this might mean real, permanent data loss.  pass \
                --yes-i-really-mean-it if you really do."
                    .into(),
            ));
        }
        let map = ctx.work.osd();
        if !map.exists(id) || map.is_up(id) {
            return Err((EBUSY, format!("osd.{id} is not down or doesn't exist")));
        }
        let down_at = map.info(id).map_or(0, |i| i.down_at);
        if let Some(i) =
            usize::try_from(id).ok().and_then(|i| ctx.work.osd_mut().osd_info.get_mut(i))
        {
            i.lost_at = down_at;
        }
        Ok(CommandResult::ok(format!("marked osd lost in epoch {down_at}")))
    };
    settle(run())
}

fn forget(ctx: &mut CommandCtx<'_>, id: OsdId) {
    if let Ok(entity) = EntityId::new(EntityType::Osd, &id.to_string()) {
        std::sync::Arc::make_mut(&mut ctx.work.state.auth).remove(&entity);
    }
}

fn sure_and_down(
    ctx: &CommandCtx<'_>,
    args: &Args,
    verb: &str,
) -> Result<Option<OsdId>, (i32, String)> {
    let id = args.osd("id")?;
    if !args.bool("yes_i_really_mean_it") {
        return Err((
            EPERM,
            format!(
                "Are you SURE?  Did you verify with 'ceph osd safe-to-destroy'?  This will mean \
                    real, permanent data loss, as well as deletion of cephx and lockbox keys. Pass \
                    --yes-i-really-mean-it if you really do ({verb} osd.{id})."
            ),
        ));
    }
    if !ctx.work.osd().exists(id) {
        return Ok(None);
    }
    if ctx.work.osd().is_up(id) {
        return Err((EBUSY, format!("osd.{id} is not `down`.")));
    }
    Ok(Some(id))
}

/// Refuses if PGs still need the OSD, as far as map and statistics tell: some map to it, or not
/// all are active and clean (then one may want what it holds). `--force` overrules, and as in Ceph
/// so does `--yes-i-really-mean-it`: who is asked whether he is sure has been told what may be
/// lost.
fn nothing_needs(ctx: &CommandCtx<'_>, args: &Args) -> Result<(), (i32, String)> {
    let id = args.osd("id")?;
    if args.bool("force") || args.bool("yes_i_really_mean_it") || !ctx.work.osd().exists(id) {
        return Ok(());
    }
    let mapped = ctx.work.osd().map_all();
    let mapped = mapped.iter().filter(|(_, m)| m.is_up(id) || m.is_acting(id)).count();
    let digest = &ctx.mon.mgr.knowledge.digest;
    let unclean = digest.num_pgs()
        - digest.num_pgs_with(PgState::ACTIVE | PgState::CLEAN).min(digest.num_pgs());
    let why = if mapped > 0 {
        format!(
            "OSD(s) {id} have {mapped} pgs currently mapped to them; take it out and wait until \
                all PGs are clean."
        )
    } else if unclean > 0 {
        format!("{unclean} pgs are not active+clean, and may want what osd.{id} holds.")
    } else {
        return Ok(());
    };
    let force = "You can proceed by passing --force, but be warned that this will likely mean \
        real, permanent data loss.";
    Err((EBUSY, format!("{why} {force}")))
}

fn destroy_checked(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    settle(nothing_needs(ctx, args).map(|()| destroy(ctx, args)))
}

fn purge_checked(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    settle(nothing_needs(ctx, args).map(|()| purge(ctx, args)))
}

fn destroy(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let Some(id) = sure_and_down(ctx, args, "destroy")? else {
            return Err((ENOENT, format!("osd.{} does not exist", args.str("id"))));
        };
        let i = usize::try_from(id).unwrap_or(usize::MAX);
        let map = ctx.work.osd_mut();
        if let Some(s) = map.osd_state.get_mut(i) {
            *s |= state::DESTROYED;
        }
        if let Some(u) = map.osd_uuid.get_mut(i) {
            *u = Uuid::default();
        }
        forget(ctx, id);
        Ok(CommandResult::ok(format!("destroyed osd.{id}")))
    };
    settle(run())
}

fn purge(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let found = sure_and_down(ctx, args, "purge")?;
        let id = args.osd("id")?;
        // One of which the CRUSH map or a key is left is cleared away, too.
        let known = found.is_some() || ctx.work.osd().crush.item_id(&format!("osd.{id}")).is_some();
        if !known {
            forget(ctx, id);
            return Ok(CommandResult::ok(format!("osd.{id} does not exist")));
        }
        let name = format!("osd.{id}");
        if ctx.work.osd().crush.item_id(&name).is_some() {
            ctx.work
                .edit_crush(|c| c.remove_item(&name, None, false))
                .map_err(super::crush::refusal)?;
        }
        if found.is_some() {
            osd::remove(ctx.work, id);
        }
        forget(ctx, id);
        Ok(CommandResult::ok(format!("purged osd.{id}")))
    };
    settle(run())
}

fn purge_new(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let id = match args.osd("id") {
        Ok(id) => id,
        Err((e, t)) => return CommandResult::err(e, t),
    };
    if ctx.work.osd().exists(id) && ctx.work.osd().state(id) & state::NEW == 0 {
        return CommandResult::err(EPERM, format!("osd.{id} is not new"));
    }
    purge(ctx, args)
}

fn new(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let uuid = match args.opt_str("uuid") {
            Some(t) => Uuid::parse(&t)
                .filter(|u| !u.is_zero())
                .ok_or_else(|| (EINVAL, format!("invalid uuid value '{t}'.")))?,
            None => Uuid::from_random(ctx.random.first_chunk().copied().unwrap_or_default()),
        };
        if !ctx.input.is_empty() {
            return Err(crate::absent::refusal(
                "this version takes no secrets of an OSD here: it makes them when the OSD joins \
                    (ceph osd new without -i)",
            ));
        }
        let map = ctx.work.osd();
        let wanted = if args.has("id") { Some(args.osd("id")?) } else { None };
        if let Some(same) = map.osds().find(|o| map.uuid(*o) == Some(uuid)) {
            return match wanted {
                Some(w) if w != same => {
                    Err((EEXIST, format!("uuid {uuid} already in use for different id {same}")))
                }
                _ => Ok(id_output(ctx, same)),
            };
        }
        let id = match wanted {
            Some(w) if map.exists(w) && map.state(w) & state::DESTROYED == 0 => {
                return Err((EEXIST, format!("osd.{w} is not destroyed")));
            }
            Some(w) => w,
            None => (0..).find(|o| !map.exists(*o)).unwrap_or(0),
        };
        osd::check_room(ctx.work, i64::from(id) + 1)?;
        osd::create(ctx.work, id, uuid);
        Ok(id_output(ctx, id))
    };
    settle(run())
}

fn id_output(ctx: &CommandCtx<'_>, id: OsdId) -> CommandResult {
    if ctx.format.is_json() {
        json_out(ctx, &json!({ "osdid": id }))
    } else {
        CommandResult::data(format!("{id}\n"))
    }
}

fn setmaxosd(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let newmax = args.int("newmax").unwrap_or(-1);
    let Some(newmax) = i32::try_from(newmax).ok().filter(|n| *n >= 0) else {
        return CommandResult::err(EINVAL, format!("invalid max_osd {newmax}"));
    };
    if let Err((errno, text)) = osd::check_room(ctx.work, newmax.into()) {
        return CommandResult::err(errno, text);
    }
    if let Some(used) = ctx.work.osd().osds().find(|o| *o >= newmax) {
        return CommandResult::err(
            EBUSY,
            format!(
                "cannot shrink max_osd to {newmax} because osd.{used} (and possibly others) still \
                    in use"
            ),
        );
    }
    ctx.work.osd_mut().set_max_osd(newmax);
    CommandResult::ok(format!("set new max_osd = {newmax}"))
}
