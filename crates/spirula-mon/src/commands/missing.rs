//! Commands of Ceph's monitors that this version refuses by name, or for which there is nothing to
//! do here.
//!
//! They are listed so that Ceph's tool sends them: what is missing is said by the monitor, not
//! guessed from "no valid command found". What the cluster is already like is granted.

use super::{Args, CommandResult, CommandSpec, FLAG_DEPRECATED, settle};
use crate::absent;
use crate::mon::CommandCtx;
use crate::quorum::After;
use spirula_types::errno::{EINVAL, ENOENT};
use std::sync::Arc;

macro_rules! commands {
    ($($module:literal $flags:expr, $sig:literal, $help:literal => $run:expr;)*) => {
        &[$(CommandSpec { sig: $sig, help: $help, module: $module, perm: "rw", flags: $flags, run: $run }),*]
    };
}

pub(super) const SPECS: &[CommandSpec] = commands! {
    "mon" 0, "mon set-weight name=name,type=CephString name=weight,type=CephInt,range=0|65535", "set the weight for the specified mon" => set_weight;
    "mon" 0, "mon enable-msgr2", "enable the msgr2 protocol on all monitors" => enable_msgr2;
    "mon" 0, "mon scrub", "scrub the monitor stores" => scrub;
    "mon" 0, "mon feature set name=feature_name,type=CephString \
        name=yes_i_really_mean_it,type=CephBool,req=false", "set provided feature on mon map (not \
            in this version)" => |_, _| no("has all of its monitors' features on from the first");
    "mon" 0, "mon set-rank name=name,type=CephString name=rank,type=CephInt", "set the rank for \
        the specified mon (not in this version)" => |_, _| no("elects by votes, not by ranks");
    "mon" 0, "mon set-addrs name=name,type=CephString name=addrs,type=CephString", "set the addrs \
        (IPs and ports) a specific monitor binds to (not in this version)" => |_, _| no("moves no \
            monitor to another address: remove it, and join it again");
    "mon" 0, "mon set election_strategy name=strategy,type=CephString", "set the election strategy \
        to use (not in this version)" => |_, _| no("elects by votes of a majority alone: there is \
            no strategy to choose");
    "mon" 0, "mon add disallowed_leader name=name,type=CephString", "prevent the named mon from \
        being a leader (not in this version)" => |_, _| no("lets every monitor lead");
    "mon" 0, "mon rm disallowed_leader name=name,type=CephString", "allow the named mon to be a \
        leader again (not in this version)" => |_, _| no("lets every monitor lead");
    "mon" 0, "mon set_location name=name,type=CephString \
        name=args,type=CephString,goodchars=[A-Za-z0-9-_.=],n=N", "specify location <args> for the \
            monitor <name> (not in this version)" => |_, _| no("has no stretch mode, the only one \
                that asks where monitors are");
    "mon" 0, "mon enable_stretch_mode name=tiebreaker_mon,type=CephString \
        name=new_crush_rule,type=CephString name=dividing_bucket,type=CephString", "enable stretch \
            mode (not in this version)" => |_, _| no("has no stretch mode");
    "mon" 0, "mon set_new_tiebreaker name=name,type=CephString \
        name=yes_i_really_mean_it,type=CephBool,req=false", "switch the stretch tiebreaker (not in \
            this version)" => |_, _| no("has no stretch mode");
    "osd" 0, "osd force_healthy_stretch_mode name=yes_i_really_mean_it,type=CephBool,req=false", "force a healthy stretch mode cluster (not in this version)" => |_, _| no("has no stretch mode");
    "osd" 0, "osd force_recovery_stretch_mode name=yes_i_really_mean_it,type=CephBool,req=false", "try and force a recovery stretch mode (not in this version)" => |_, _| no("has no stretch mode");
    "osd" 0, "osd crush set-all-straw-buckets-to-straw2", "convert all CRUSH current straw buckets \
        to use the straw2 algorithm" => straw_to_straw2;
    "osd" 0, "osd tier add name=pool,type=CephPoolname name=tierpool,type=CephPoolname \
        name=force_nonempty,type=CephChoices,req=false,strings=--force-nonempty", "add a cache \
            tier (not in this version)" => tier;
    "osd" 0, "osd tier rm name=pool,type=CephPoolname name=tierpool,type=CephPoolname", "remove a \
        cache tier (not in this version)" => tier;
    "osd" FLAG_DEPRECATED, "osd tier remove name=pool,type=CephPoolname \
        name=tierpool,type=CephPoolname", "remove a cache tier (not in this version)" => tier;
    "osd" 0, "osd tier cache-mode name=pool,type=CephPoolname \
        name=mode,type=CephChoices,strings=writeback|proxy|readproxy|readonly|none \
        name=yes_i_really_mean_it,type=CephBool,req=false", "specify the caching mode for cache \
            tier <pool> (not in this version)" => tier;
    "osd" 0, "osd tier set-overlay name=pool,type=CephPoolname \
        name=overlaypool,type=CephPoolname", "set the overlay pool for base pool <pool> (not in \
            this version)" => tier;
    "osd" 0, "osd tier rm-overlay name=pool,type=CephPoolname", "remove the overlay pool for base \
        pool <pool> (not in this version)" => tier;
    "osd" FLAG_DEPRECATED, "osd tier remove-overlay name=pool,type=CephPoolname", "remove the \
        overlay pool for base pool <pool> (not in this version)" => tier;
    "osd" 0, "osd tier add-cache name=pool,type=CephPoolname name=tierpool,type=CephPoolname \
        name=size,type=CephInt,range=0", "add a cache of size <size> to existing pool <pool> (not \
            in this version)" => tier;
};

/// The refusal; `what` goes on after "this version".
fn no(what: &str) -> CommandResult {
    settle(Err(absent::refusal(format!("this version {what}"))))
}

/// Pools that there are not are said first, as everywhere.
fn tier(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    for arg in ["pool", "tierpool", "overlaypool"].into_iter().filter(|a| args.has(a)) {
        let name = args.str(arg);
        if ctx.work.osd().pool_by_name(&name).is_none() {
            return CommandResult::err(ENOENT, format!("unrecognized pool '{name}'"));
        }
    }
    no("has no cache tiers")
}

/// What comes of it is in the cluster log.
fn scrub(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    ctx.work.after.push(After::Scrub);
    CommandResult::default()
}

/// Clients prefer monitors of more weight among those of one priority.
fn set_weight(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let name = args.str("name");
    let Some(weight) = args.int("weight").and_then(|w| u16::try_from(w).ok()) else {
        return CommandResult::err(EINVAL, "a weight is a number from 0 to 65535");
    };
    let now = ctx.work.now;
    let map = &mut ctx.work.state.monmap;
    match map.mons.get(&name) {
        None => return CommandResult::err(ENOENT, format!("mon.{name} does not exist")),
        Some(m) if m.weight == weight => return CommandResult::default(),
        Some(_) => {}
    }
    let map = Arc::make_mut(map);
    if let Some(m) = map.mons.get_mut(&name) {
        m.weight = weight;
    }
    map.epoch += 1;
    map.last_changed = now;
    CommandResult::default()
}

/// There is nothing but msgr2 here; a monitor without such an address could not be in the map.
fn enable_msgr2(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let v2 = |m: &spirula_maps::MonInfo| {
        m.addrs.0.iter().any(|a| a.kind == spirula_types::EntityAddr::KIND_MSGR2)
    };
    match ctx.work.state.monmap.iter().find(|(_, m)| !v2(m)) {
        None => CommandResult::default(),
        Some((_, m)) => {
            CommandResult::err(EINVAL, format!("mon.{} has no address for msgr2", m.name))
        }
    }
}

fn straw_to_straw2(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let changed = ctx.work.edit_crush(|c| Ok::<_, (i32, String)>(c.straw_to_straw2()));
    settle(changed.map(|_| CommandResult::default()))
}
