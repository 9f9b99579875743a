//! `ceph fs volume …`: a file system and its pools as one thing.
//!
//! In Ceph the manager's module `volumes` serves these, and has an orchestrator start metadata
//! servers. Here the monitors serve them: each is one change, done as a whole or not at all, and
//! starts no daemons. They need what Ceph's monitors want of who has the manager do it: rights at
//! the part `mgr`, not `fs`, for they make and remove pools. Subvolumes are not served
//! (`absent-commands.tsv`): they are directories, which only a client of the file system can make.

use super::{Args, CommandResult, CommandSpec, Outcome, fs, json_out, pool, settle};
use crate::mon::CommandCtx;
use crate::pools::Refusal;
use crate::report::df;
use serde_json::{Value, json};
use spirula_maps::MdsMap;
use spirula_types::PoolId;
use spirula_types::errno::{ENOENT, EPERM};

macro_rules! commands {
    ($($perm:literal, $sig:literal, $help:literal => $run:expr;)*) => {
        &[$(CommandSpec { sig: $sig, help: $help, module: "mgr", perm: $perm, flags: 0, run: $run }),*]
    };
}

pub(super) const SPECS: &[CommandSpec] = commands! {
    "r", "fs volume ls", "List volumes" => ls;
    "r", "fs volume info name=vol_name,type=CephString \
        name=human_readable,type=CephBool,req=false", "Information of a CephFS volume" => info;
    "rw", "fs volume create name=name,type=CephString,goodchars=[A-Za-z0-9-_.] \
        name=placement,type=CephString,req=false", "Create a CephFS volume: a file system and its \
            pools (starts no metadata servers)" => create;
    "rw", "fs volume rm name=vol_name,type=CephString \
        name=yes-i-really-mean-it,type=CephString,req=false", "Delete a FS volume by passing \
            --yes-i-really-mean-it flag" => rm;
};

/// What a command is told to be meant by.
const MEANT: &str = "--yes-i-really-mean-it";

fn named<'a>(ctx: &'a CommandCtx<'_>, name: &str) -> Result<&'a MdsMap, Refusal> {
    let fs = ctx.work.state.fsmap.by_name(name);
    fs.map(|f| &f.mds_map).ok_or_else(|| (ENOENT, format!("volume {name} doesn't exist")))
}

fn ls(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let all = ctx.work.state.fsmap.filesystems.iter().map(|f| json!({"name": f.mds_map.fs_name}));
    let all = Value::Array(all.collect());
    json_out(ctx, &all)
}

fn info(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let run = || -> Result<Value, Refusal> {
        let m = named(ctx, &args.str("vol_name"))?;
        let view = ctx.view();
        let shown = |n: u64| -> Value {
            if args.bool("human_readable") { spirula_format::bytes(n).into() } else { n.into() }
        };
        let one = |id: PoolId| {
            let (used, avail) = df::used_and_left(&view, id);
            json!({"avail": shown(avail), "name": view.osdmap.pool_name(id), "used": shown(used)})
        };
        let mons = &view.monmap.mons;
        let addrs: Vec<String> =
            mons.values().filter_map(|m| m.addrs.msgr2().addr).map(|a| a.to_string()).collect();
        let data: Vec<Value> = m.data_pools.iter().map(|id| one(*id)).collect();
        Ok(json!({"mon_addrs": addrs, "pools": {"data": data, "metadata": [one(m.metadata_pool)]}}))
    };
    match run() {
        Ok(value) => json_out(ctx, &value),
        Err(e) => settle(Err(e)),
    }
}

fn args(value: Value) -> Args {
    Args(if let Value::Object(map) = value { map } else { serde_json::Map::new() })
}

/// Runs a further command of the same request; what one of them refuses undoes the others.
fn then(
    ctx: &mut CommandCtx<'_>,
    run: fn(&mut CommandCtx<'_>, &Args) -> CommandResult,
    with: Value,
) -> Outcome {
    let result = run(ctx, &args(with));
    if result.ret == 0 { Ok(result) } else { Err((-result.ret, result.rs)) }
}

fn create(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let name = args.str("name");
        let (metadata, data) = (format!("cephfs.{name}.meta"), format!("cephfs.{name}.data"));
        for pool in [&metadata, &data] {
            then(ctx, pool::create, json!({"pool": pool}))?;
        }
        then(ctx, fs::new, json!({"fs_name": name, "metadata": metadata, "data": data}))?;
        let served = named(ctx, &name).is_ok_and(|m| !m.up.is_empty());
        Ok(CommandResult::ok(if served {
            // No more are made than there are.
            "Volume created successfully (no MDS daemons created)".to_owned()
        } else {
            "Volume created successfully (no MDS daemons created: start ceph-mds, nobody serves it \
                yet)"
                .to_owned()
        }))
    };
    settle(run())
}

fn rm(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let name = args.str("vol_name");
        if args.str("yes-i-really-mean-it") != MEANT {
            let why = format!(
                "WARNING: this will *PERMANENTLY DESTROY* all data stored in the filesystem \
                    '{name}'. If you are *ABSOLUTELY CERTAIN* \
                 that is what you want, re-issue the command followed by --yes-i-really-mean-it."
            );
            return Err((EPERM, why));
        }
        if !ctx.work.state.option_bool("mon_allow_pool_delete") {
            let why = "pool deletion is disabled; you must first set the mon_allow_pool_delete \
                config option to true before volumes can \
                       be deleted";
            return Err((EPERM, why.into()));
        }
        let m = named(ctx, &name)?;
        let pool_name = |id: PoolId| ctx.work.osd().pool_name(id).to_owned();
        let metadata = pool_name(m.metadata_pool);
        let data: Vec<String> = m.data_pools.iter().map(|id| pool_name(*id)).collect();
        then(ctx, fs::fail, json!({"fs_name": name}))?;
        then(ctx, fs::rm, json!({"fs_name": name, "yes_i_really_mean_it": true}))?;
        for pool in std::iter::once(&metadata).chain(&data) {
            then(
                ctx,
                pool::remove,
                json!({"pool": pool, "pool2": pool, "yes_i_really_really_mean_it": true}),
            )?;
        }
        Ok(CommandResult::ok(
            format!("metadata pool: {metadata} data pool: {data:?} removed").replace('"', "'"),
        ))
    };
    settle(run())
}
