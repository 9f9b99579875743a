//! `ceph mds …`: metadata servers.

use super::fs::{compat_out, edit, map_of, repaired, role, role_in};
use super::{
    Args, CommandResult, CommandSpec, FLAG_DEPRECATED, FLAG_HIDDEN, Outcome, json_out, misc, settle,
};
use crate::mds;
use crate::mon::CommandCtx;
use crate::pools::Refusal;
use crate::report::fs::stat_text;
use crate::state::Metadata;
use serde_json::{Map, Value, json};
use spirula_maps::{FsMap, MDS_FROZEN, MdsInfo, mds_state};
use spirula_types::errno::{EBUSY, EINVAL, EPERM};
use std::collections::BTreeMap;

macro_rules! commands {
    ($($perm:literal $flags:expr, $sig:literal, $help:literal => $run:expr;)*) => {
        &[$(CommandSpec { sig: $sig, help: $help, module: "mds", perm: $perm, flags: $flags, run: $run }),*]
    };
}

pub(super) const SPECS: &[CommandSpec] = commands! {
    "r" FLAG_HIDDEN, "mds stat", "show MDS status" => stat;
    "r" 0, "mds metadata name=who,type=CephString,req=false", "fetch metadata for mds <role>" => metadata;
    "r" 0, "mds count-metadata name=property,type=CephString", "count MDSs by metadata field \
        property" => count;
    "r" 0, "mds versions", "check running versions of MDSs" => versions;
    "r" 0, "mds ok-to-stop name=ids,type=CephString,n=N", "check whether stopping the specified \
        MDS would reduce immediate availability" => ok_to_stop;
    "r" FLAG_DEPRECATED, "mds compat show", "show mds compatibility settings" => compat_show;
    "rw" 0, "mds fail name=role_or_gid,type=CephString", "Mark MDS failed: trigger a failover if a \
        standby is available" => fail;
    "rw" 0, "mds repaired name=role,type=CephString", "mark a damaged MDS rank as no longer \
        damaged" => repaired;
    "rw" 0, "mds rm name=gid,type=CephInt,range=0", "remove nonactive mds" => rm;
    "rw" FLAG_HIDDEN, "mds rmfailed name=role,type=CephString \
        name=yes_i_really_mean_it,type=CephBool,req=false", "remove failed rank" => rmfailed;
    "rw" FLAG_HIDDEN, "mds freeze name=role_or_gid,type=CephString name=val,type=CephString", "freeze MDS yes/no" => freeze;
};

fn stat(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let map = &ctx.work.state.fsmap;
    if !ctx.format.is_json() {
        let text = stat_text(map);
        return CommandResult::data(if text.is_empty() { text } else { text + "\n" });
    }
    let value = json!({"fsmap": map.dump(), "mdsmap_first_committed": 1, "mdsmap_last_committed": map.epoch});
    json_out(ctx, &value)
}

/// Servers by name, each with what it said of itself.
fn told<'a>(ctx: &'a CommandCtx<'_>) -> BTreeMap<&'a str, &'a Metadata> {
    let state = &ctx.work.state;
    state
        .fsmap
        .servers()
        .filter_map(|i| Some((i.name.as_str(), state.mds_metadata.get(&i.gid)?)))
        .collect()
}

/// Servers by host.
pub(super) fn by_host(ctx: &CommandCtx<'_>) -> BTreeMap<String, Vec<Value>> {
    let mut out: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for (name, facts) in told(ctx) {
        out.entry(facts.get("hostname").cloned().unwrap_or_default())
            .or_default()
            .push(name.into());
    }
    out
}

/// How many servers say what of a property.
pub(super) fn counted(ctx: &CommandCtx<'_>, property: &str) -> BTreeMap<String, u64> {
    misc::count_versions(
        told(ctx).values().map(|m| m.get(property).map_or("unknown", String::as_str)),
    )
}

fn metadata(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let facts = |m: &Metadata| -> Map<String, Value> {
        m.iter().map(|(k, v)| (k.clone(), v.as_str().into())).collect()
    };
    let Some(who) = args.opt_str("who") else {
        let one = |(name, m): (&str, &Metadata)| {
            let mut out = Map::new();
            out.insert("name".into(), name.into());
            out.extend(facts(m));
            Value::Object(out)
        };
        return json_out(ctx, &Value::Array(told(ctx).into_iter().map(one).collect()));
    };
    match find(ctx, &who) {
        Ok(info) => {
            let known = ctx.work.state.mds_metadata.get(&info.gid);
            json_out(ctx, &Value::Object(known.map(facts).unwrap_or_default()))
        }
        Err(e) => settle(Err(e)),
    }
}

fn count(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    json_out(ctx, &json!(counted(ctx, &args.str("property"))))
}

fn versions(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    json_out(ctx, &json!(counted(ctx, "ceph_version")))
}

/// A server by rank, number or name.
fn find(ctx: &CommandCtx<'_>, word: &str) -> Result<MdsInfo, Refusal> {
    let found = find_in(&ctx.work.state.fsmap, word);
    found
        .cloned()
        .ok_or_else(|| (EINVAL, format!("MDS named '{word}' does not exist, or is not up")))
}

/// The same, of a map.
pub(crate) fn find_in<'a>(map: &'a FsMap, word: &str) -> Option<&'a MdsInfo> {
    let by_role = || {
        let (fscid, rank) = role_in(map, word).ok()?;
        map.by_id(fscid)?.mds_map.of_rank(rank)
    };
    let by_gid = || map.info(word.parse().ok()?);
    by_role().or_else(by_gid).or_else(|| map.server_named(word))
}

/// Whether there is a standby, or a follower, for each rank that would lose its server. Whoever is
/// not there is missed by nobody.
fn ok_to_stop(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let ids = args.list("ids");
    let map = &ctx.work.state.fsmap;
    if map.filesystems.iter().any(|f| f.mds_map.is_degraded()) {
        return CommandResult::err(EBUSY, "one or more filesystems is currently degraded");
    }
    let named = |id: &String| find_in(map, id.strip_prefix("mds.").unwrap_or(id));
    let stopping: BTreeMap<u64, &MdsInfo> =
        ids.iter().filter_map(named).map(|i| (i.gid, i)).collect();
    let followed = |i: &MdsInfo| {
        let followers = map
            .fs_of(i.gid)
            .into_iter()
            .flat_map(|f| f.mds_map.in_state(mds_state::STANDBY_REPLAY));
        followers.filter(|f| f.rank == i.rank).any(|f| !stopping.contains_key(&f.gid))
    };
    let active = stopping.values().filter(|i| i.holds_rank() && !followed(i));
    let active: Vec<String> = active.map(|i| i.gid.to_string()).collect();
    let spare: Vec<String> =
        stopping.values().filter(|i| i.rank < 0).map(|i| i.gid.to_string()).collect();
    if map.standby_daemons.len() < active.len() + spare.len() {
        let (active, spare) = (active.join(","), spare.join(","));
        let why = format!(
            "insufficient standby MDS daemons to stop active gids {active} and/or standby gids \
                {spare}: each rank needs one"
        );
        return CommandResult::err(EBUSY, why);
    }
    CommandResult::ok(format!("should be safe to stop [{}]", ids.join(",")))
}

fn compat_show(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let set = ctx.work.state.fsmap.default_compat.clone();
    compat_out(ctx, &set)
}

fn fail(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let word = args.str("role_or_gid");
    // Whoever is not there has failed.
    let Ok(info) = find(ctx, &word) else {
        return CommandResult::ok(format!(
            "MDS named '{word}' does not exist, is not up or you lack the permission to see."
        ));
    };
    let who = ctx.peer.auth_name();
    ctx.work.info(format!("{} marked failed by {who}", mds::ranks::human(&info)));
    mds::fail(ctx.work, info.gid);
    mds::assign(ctx.work);
    CommandResult::ok(format!("failed mds gid {}", info.gid))
}

fn rm(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let gid = args.int("gid").and_then(|g| u64::try_from(g).ok()).unwrap_or(0);
        let Some(info) = ctx.work.state.fsmap.info(gid).cloned() else {
            return Ok(CommandResult::ok(format!("mds gid {gid} does not exist")));
        };
        if info.holds_rank() {
            return Err((
                EBUSY,
                format!("cannot remove active mds.{} rank {}", info.name, info.rank),
            ));
        }
        mds::fail(ctx.work, gid);
        Ok(CommandResult::ok(format!("removed mds gid {gid}")))
    };
    settle(run())
}

/// A failed rank is given up as if it had been stopped: what it holds stays where it is.
fn rmfailed(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        if !args.bool("yes_i_really_mean_it") {
            let why = "WARNING: this can make your filesystem inaccessible! Add \
                --yes-i-really-mean-it if you are sure you wish to \
                       continue.";
            return Err((EPERM, why.into()));
        }
        let (fscid, rank) = role(ctx, &args.str("role"))?;
        // Ceph says yes here, and does nothing.
        if !map_of(ctx, fscid)?.failed.contains(&rank) {
            return Err((EINVAL, format!("rank {fscid}:{rank} is not failed: nothing is removed")));
        }
        let m = edit(ctx, fscid)?;
        m.failed.remove(&rank);
        m.in_ranks.remove(&rank);
        m.stopped.insert(rank);
        Ok(CommandResult::ok(format!("removed failed mds.{fscid}:{rank}")))
    };
    settle(run())
}

fn freeze(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let info = find(ctx, &args.str("role_or_gid"))?;
        let on = super::fs::yes_or_no(&args.str("val"))?;
        if let Some(i) = ctx.work.fsmap_mut().info_mut(info.gid) {
            i.flags = if on { i.flags | MDS_FROZEN } else { i.flags & !MDS_FROZEN };
        }
        mds::assign(ctx.work);
        Ok(CommandResult::ok(format!(
            "{} mds.{}",
            if on { "freezing" } else { "unfreezing" },
            info.gid
        )))
    };
    settle(run())
}
