//! `ceph fs …`: file systems as a whole. What is set of one is in [`super::fs_set`], servers are in
//! [`super::mds`].

use super::{
    Args, CommandResult, CommandSpec, FLAG_DEPRECATED, Outcome, auth, settle, text_or_json,
};
use crate::mds::bounds::{FEATURE_MAX, FS_NAME_MAX};
use crate::mds::{self, ranks};
use crate::mon::CommandCtx;
use crate::pools::Refusal;
use serde_json::{Value, json};
use spirula_auth::db;
use spirula_maps::osdmap::PoolOptValue;
use spirula_maps::osdmap::opts::opt;
use spirula_maps::osdmap::pool::flag;
use spirula_maps::{CLIENT_FEATURES, CompatSet, Filesystem, FsMap, MdsMap, mds_flag};
use spirula_types::PoolId;
use spirula_types::errno::{EBUSY, EEXIST, EINVAL, ENOENT, EPERM};

/// File systems at most: each is in the map that everybody has.
const FILESYSTEMS_MAX: usize = 64;
/// Data pools of a file system at most.
const DATA_POOLS_MAX: usize = 256;
/// The application of a file system's pools.
const APP: &str = "cephfs";
/// How soon a metadata pool is recovered: as with Ceph.
const METADATA_RECOVERY_PRIORITY: i64 = 5;

macro_rules! commands {
    ($($module:literal $perm:literal $flags:expr, $sig:literal, $help:literal => $run:expr;)*) => {
        &[$(CommandSpec { sig: $sig, help: $help, module: $module, perm: $perm, flags: $flags, run: $run }),*]
    };
}

pub(super) const SPECS: &[CommandSpec] = commands! {
    "mds" "r" 0, "fs dump name=epoch,type=CephInt,req=false,range=0", "dump all CephFS status, \
        optionally from epoch" => dump;
    "fs" "r" 0, "fs ls", "list filesystems" => ls;
    "fs" "r" 0, "fs get name=fs_name,type=CephString", "get info about one filesystem" => get;
    "fs" "rw" 0, "fs new name=fs_name,type=CephString,goodchars=[A-Za-z0-9-_.] \
        name=metadata,type=CephString name=data,type=CephString name=force,type=CephBool,req=false \
        name=allow_dangerous_metadata_overlay,type=CephBool,req=false \
        name=fscid,type=CephInt,range=0,req=false name=recover,type=CephBool,req=false", "make new filesystem using named pools <metadata> and <data>" => new;
    "fs" "rw" 0, "fs fail name=fs_name,type=CephString", "bring the file system down and all of \
        its ranks" => fail;
    "fs" "rw" 0, "fs rm name=fs_name,type=CephString \
        name=yes_i_really_mean_it,type=CephBool,req=false", "disable the named filesystem" => rm;
    "fs" "rw" 0, "fs reset name=fs_name,type=CephString \
        name=yes_i_really_mean_it,type=CephBool,req=false", "disaster recovery only: reset to a \
            single-MDS map" => reset;
    "fs" "rw" 0, "fs flag set name=flag_name,type=CephChoices,strings=enable_multiple \
        name=val,type=CephString name=yes_i_really_mean_it,type=CephBool,req=false", "Set a global \
            CephFS flag" => flag_set;
    "fs" "rw" 0, "fs set-default name=fs_name,type=CephString", "set the default to the named \
        filesystem" => set_default;
    "fs" "rw" FLAG_DEPRECATED, "fs set_default name=fs_name,type=CephString", "set the default to \
        the named filesystem" => set_default;
    "mds" "r" 0, "fs feature ls", "list available cephfs features to be set/unset" => feature_ls;
    "mds" "r" 0, "fs compat show name=fs_name,type=CephString", "show fs compatibility settings" => compat_show;
    "fs" "rw" 0, "fs compat name=fs_name,type=CephString \
        name=subop,type=CephChoices,strings=rm_compat|rm_incompat|add_compat|add_incompat \
        name=feature,type=CephInt name=feature_str,type=CephString,req=false", "manipulate compat \
            settings" => compat;
    "mds" "rw" 0, "fs required_client_features name=fs_name,type=CephString \
        name=subop,type=CephChoices,strings=add|rm name=val,type=CephString", "add/remove required \
            features of clients" => required_features;
    "mds" "rw" 0, "fs add_data_pool name=fs_name,type=CephString name=pool,type=CephString", "add \
        data pool <pool>" => add_data_pool;
    "mds" "rw" 0, "fs rm_data_pool name=fs_name,type=CephString name=pool,type=CephString", "remove data pool <pool>" => rm_data_pool;
    "auth" "rwx" 0, "fs authorize name=filesystem,type=CephString name=entity,type=CephString \
        name=caps,type=CephString,n=N", "add auth for <entity> to access file system <filesystem> \
            based on following directory and permissions pairs" => authorize;
    "mds" "rw" 0, "fs mirror enable name=fs_name,type=CephString", "enable mirroring for a ceph \
        filesystem (not in this version)" => mirror;
    "mds" "rw" 0, "fs mirror disable name=fs_name,type=CephString", "disable mirroring for a ceph \
        filesystem (not in this version)" => mirror;
    "mds" "rw" 0, "fs mirror peer_add name=fs_name,type=CephString name=uuid,type=CephString \
        name=remote_cluster_spec,type=CephString name=remote_fs_name,type=CephString", "add a \
            mirror peer for a ceph filesystem (not in this version)" => mirror;
    "mds" "rw" 0, "fs mirror peer_remove name=fs_name,type=CephString name=uuid,type=CephString", "remove a mirror peer for a ceph filesystem (not in this version)" => mirror;
};

/// The id of the file system that a command names.
pub(super) fn named(ctx: &CommandCtx<'_>, args: &Args) -> Result<i32, Refusal> {
    let name = args.str("fs_name");
    let fs = ctx.work.state.fsmap.by_name(&name);
    fs.map(|f| f.fscid).ok_or_else(|| (ENOENT, format!("Filesystem not found: '{name}'")))
}

/// A file system's map, as it is.
pub(super) fn map_of<'a>(ctx: &'a CommandCtx<'_>, fscid: i32) -> Result<&'a MdsMap, Refusal> {
    let fs = ctx.work.state.fsmap.by_id(fscid);
    fs.map(|f| &f.mds_map).ok_or_else(|| (ENOENT, format!("Filesystem not found: '{fscid}'")))
}

/// A file system's map, to be changed.
pub(super) fn edit<'a>(ctx: &'a mut CommandCtx<'_>, fscid: i32) -> Result<&'a mut MdsMap, Refusal> {
    let map = ctx.work.fsmap_mut();
    let epoch = map.epoch;
    let fs =
        map.by_id_mut(fscid).ok_or_else(|| (ENOENT, format!("Filesystem not found: '{fscid}'")))?;
    fs.mds_map.epoch = epoch;
    Ok(&mut fs.mds_map)
}

fn said(text: impl Into<String>) -> Outcome {
    Ok(CommandResult::ok(text))
}

fn dump(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let map = &ctx.work.state.fsmap;
    // Earlier ones are not kept: whoever asks for the present one by number gets it.
    if args.int("epoch").is_some_and(|e| e != 0 && e != i64::from(map.epoch)) {
        return CommandResult::err(ENOENT, String::new());
    }
    let rs = format!("dumped fsmap epoch {}", map.epoch);
    text_or_json(ctx, || map.dump_text(), || map.dump()).with_rs(rs)
}

fn ls(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let (map, osd) = (&ctx.work.state.fsmap, ctx.work.osd());
    let names =
        |m: &MdsMap| m.data_pools.iter().map(|p| osd.pool_name(*p).to_owned()).collect::<Vec<_>>();
    let text = || {
        if map.filesystems.is_empty() {
            return "No filesystems enabled\n".to_owned();
        }
        let line = |m: &MdsMap| {
            let data: String = names(m).into_iter().map(|n| n + " ").collect();
            format!(
                "name: {}, metadata pool: {}, data pools: [{data}]\n",
                m.fs_name,
                osd.pool_name(m.metadata_pool)
            )
        };
        map.filesystems.iter().map(|f| line(&f.mds_map)).collect()
    };
    let value = || {
        let one = |m: &MdsMap| {
            json!({
                "name": m.fs_name,
                "metadata_pool": osd.pool_name(m.metadata_pool),
                "metadata_pool_id": m.metadata_pool,
                "data_pool_ids": m.data_pools,
                "data_pools": names(m),
            })
        };
        Value::Array(map.filesystems.iter().map(|f| one(&f.mds_map)).collect())
    };
    text_or_json(ctx, text, value)
}

fn get(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let name = args.str("fs_name");
    match ctx.work.state.fsmap.by_name(&name) {
        Some(fs) => text_or_json(ctx, || fs.text(), || fs.dump()),
        None => CommandResult::err(ENOENT, format!("filesystem '{name}' not found")),
    }
}

/// What a pool is to be for a file system.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Metadata,
    FirstData,
    MoreData,
}

fn pool_named(ctx: &CommandCtx<'_>, name: &str) -> Result<PoolId, Refusal> {
    ctx.work
        .osd()
        .pool_by_name(name)
        .ok_or_else(|| (ENOENT, format!("pool '{name}' does not exist")))
}

/// May a file system use that pool?
fn check_pool(ctx: &CommandCtx<'_>, id: PoolId, what: Use, force: bool) -> Result<(), Refusal> {
    let map = ctx.work.osd();
    let (name, Some(pool)) = (map.pool_name(id), map.pool(id)) else {
        return Err((ENOENT, format!("pool {id} does not exist")));
    };
    let refuse = |why: &str| Err((EINVAL, format!("pool '{name}' (id '{id}') {why}")));
    if pool.is_erasure() {
        if what == Use::Metadata {
            return refuse(
                "is an erasure-coded pool.  Use of erasure-coded pools for CephFS metadata is not \
                    permitted",
            );
        }
        if what == Use::FirstData && !force {
            return refuse(
                "is an erasure-coded pool. Use of an EC pool for the default data pool is \
                    discouraged; see the online CephFS \
                 documentation for more information. Use --force to override.",
            );
        }
        if pool.flags & flag::EC_OVERWRITES == 0 {
            return refuse("is an erasure-coded pool, with no overwrite support");
        }
    }
    if pool.is_pool_snaps_mode() {
        return refuse("already has snapshots of its own, and takes none of a file system");
    }
    if !force
        && !pool.application_metadata.is_empty()
        && !pool.application_metadata.contains_key(APP)
    {
        return refuse("has a non-CephFS application enabled.");
    }
    Ok(())
}

/// Says on the pool itself whose it is.
fn claim(ctx: &mut CommandCtx<'_>, id: PoolId, key: &str, fs: &str) {
    let Some(pool) = ctx.work.osd_mut().pools.get_mut(&id) else { return };
    pool.application_metadata
        .entry(APP.to_owned())
        .or_default()
        .insert(key.to_owned(), fs.to_owned());
}

pub(super) fn new(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let (name, meta_name, data_name) =
            (args.str("fs_name"), args.str("metadata"), args.str("data"));
        let metadata = pool_named(ctx, &meta_name)?;
        let data = pool_named(ctx, &data_name)?;
        let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > FS_NAME_MAX || !name.chars().all(good) {
            return Err((EINVAL, format!("'{name}' cannot be a filesystem's name")));
        }
        let (force, overlay) = (args.bool("force"), args.bool("allow_dangerous_metadata_overlay"));
        let map = &ctx.work.state.fsmap;
        if let Some(fs) = map.by_name(&name) {
            if fs.mds_map.metadata_pool == metadata && fs.mds_map.data_pools.first() == Some(&data)
            {
                return said(format!("filesystem '{name}' already exists"));
            }
            return Err((EINVAL, format!("filesystem already exists with name '{name}'")));
        }
        if !map.filesystems.is_empty() && !map.enable_multiple {
            let why = "Creation of multiple filesystems is disabled.  To enable this experimental \
                feature, use 'ceph fs flag set \
                       enable_multiple true'";
            return Err((EINVAL, why.into()));
        }
        if map.filesystems.len() >= FILESYSTEMS_MAX {
            return Err((
                EINVAL,
                format!("there are {FILESYSTEMS_MAX} filesystems, as many as there may be"),
            ));
        }
        let objects = ctx
            .mon
            .mgr
            .knowledge
            .digest
            .pools
            .get(&metadata)
            .map_or(0, |p| p.stat.stats.sum.num_objects);
        if !force && !args.bool("recover") && objects > 0 {
            let why = format!(
                "pool '{meta_name}' already contains some objects. Use an empty pool instead."
            );
            return Err((EINVAL, why));
        }
        let fscid = args.int("fscid");
        if fscid.is_some() && !force {
            return Err((EINVAL, "Pass --force to create a file system with a specific ID".into()));
        }
        let fscid = fscid
            .map(i32::try_from)
            .transpose()
            .map_err(|_| (EINVAL, "fscid is out of range".to_owned()))?;
        if fscid.is_some_and(|id| map.by_id(id).is_some()) {
            return Err((EEXIST, "filesystem already exists with that ID".into()));
        }
        let used = |m: &MdsMap| m.metadata_pool == metadata || m.data_pools.contains(&data);
        if !overlay && map.filesystems.iter().any(|f| used(&f.mds_map)) {
            let why = format!(
                "Filesystem '{name}' is already using one of the specified RADOS pools. This \
                    should ONLY be done in emergencies and \
                 after careful reading of the documentation. Pass \
                 --allow-dangerous-metadata-overlay to permit this."
            );
            return Err((EEXIST, why));
        }
        check_pool(ctx, data, Use::FirstData, force)?;
        check_pool(ctx, metadata, Use::Metadata, force)?;
        // Numbers are not given twice: what is kept of a former filesystem, here and with clients,
        // goes by them.
        let id = fscid.or_else(|| i32::try_from(map.next_filesystem_id).ok()).ok_or_else(|| {
            let why =
                "there is no number left for another filesystem; pass --fscid and --force to say \
                    which it is to have";
            (EINVAL, why.to_owned())
        })?;
        claim(ctx, data, "data", &name);
        claim(ctx, metadata, "metadata", &name);
        if let Some(pool) = ctx.work.osd_mut().pools.get_mut(&metadata) {
            pool.opts
                .0
                .insert(opt::RECOVERY_PRIORITY, PoolOptValue::Int(METADATA_RECOVERY_PRIORITY));
        }
        let now = ctx.work.now;
        let next = ctx.work.fsmap_mut();
        next.next_filesystem_id = next.next_filesystem_id.max(u64::try_from(id).unwrap_or(0) + 1);
        let mut m = MdsMap {
            epoch: next.epoch,
            fs_name: name,
            data_pools: vec![data],
            metadata_pool: metadata,
            compat: next.default_compat.clone(),
            created: now,
            modified: now,
            enabled: true,
            ..MdsMap::default()
        };
        if args.bool("recover") {
            m.in_ranks.insert(0);
            m.failed.insert(0);
            m.set_flag(mds_flag::NOT_JOINABLE, true);
        }
        next.filesystems.push(Filesystem::new(id, m));
        next.filesystems.sort_by_key(|f| f.fscid);
        if next.filesystems.len() == 1 {
            next.legacy_client_fscid = id;
        }
        // A standby begins at once, so that nothing is seen of a file system without a server.
        mds::assign(ctx.work);
        said(format!("new fs with metadata pool {metadata} and data pool {data}"))
    };
    settle(run())
}

/// Takes all of a file system's servers out.
fn fail_all(ctx: &mut CommandCtx<'_>, fscid: i32) -> Result<(), Refusal> {
    let gids: Vec<u64> = map_of(ctx, fscid)?.mds_info.keys().copied().collect();
    gids.into_iter().for_each(|gid| mds::fail(ctx.work, gid));
    Ok(())
}

pub(super) fn fail(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let fscid = named(ctx, args)?;
        let name = args.str("fs_name");
        edit(ctx, fscid)?.set_flag(mds_flag::NOT_JOINABLE, true);
        fail_all(ctx, fscid)?;
        said(format!(
            "{name} marked not joinable; MDS cannot join the cluster. All MDS ranks marked failed."
        ))
    };
    settle(run())
}

pub(super) fn rm(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let name = args.str("fs_name");
        let Ok(fscid) = named(ctx, args) else {
            // What is not there is removed.
            return said(format!("filesystem '{name}' does not exist"));
        };
        if !map_of(ctx, fscid)?.up.is_empty() {
            let why = "all MDS daemons must be inactive/failed before removing filesystem. See \
                `ceph fs fail`.";
            return Err((EINVAL, why.into()));
        }
        if !args.bool("yes_i_really_mean_it") {
            let why = "this is a DESTRUCTIVE operation and will make data in your filesystem \
                permanently inaccessible.  Add \
                       --yes-i-really-mean-it if you are sure you wish to continue.";
            return Err((EPERM, why.into()));
        }
        fail_all(ctx, fscid)?;
        let next = ctx.work.fsmap_mut();
        next.filesystems.retain(|f| f.fscid != fscid);
        if next.legacy_client_fscid == fscid {
            next.legacy_client_fscid = -1;
        }
        said("")
    };
    settle(run())
}

fn reset(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let fscid = named(ctx, args)?;
        let old = map_of(ctx, fscid)?.clone();
        if !old.up.is_empty() {
            let why = "all MDS daemons must be inactive before resetting filesystem: set the \
                cluster_down flag and use `ceph mds \
                       fail` to make this so";
            return Err((EINVAL, why.into()));
        }
        if !args.bool("yes_i_really_mean_it") {
            let why = "this is a potentially destructive operation, only for use by experts in \
                disaster recovery.  Add \
                       --yes-i-really-mean-it if you are sure you wish to continue.";
            return Err((EPERM, why.into()));
        }
        fail_all(ctx, fscid)?;
        let now = ctx.work.now;
        let m = edit(ctx, fscid)?;
        let mut stopped = old.stopped;
        stopped.extend(old.in_ranks);
        stopped.remove(&0);
        *m = MdsMap {
            epoch: m.epoch,
            fs_name: old.fs_name,
            data_pools: old.data_pools,
            metadata_pool: old.metadata_pool,
            compat: old.compat,
            inline_data_enabled: old.inline_data_enabled,
            last_failure_osd_epoch: old.last_failure_osd_epoch,
            inc: old.inc,
            created: now,
            modified: now,
            enabled: true,
            // Rank 0 reads what there is, and makes nothing anew.
            in_ranks: [0].into(),
            failed: [0].into(),
            stopped,
            standby_count_wanted: old.standby_count_wanted,
            ..MdsMap::default()
        };
        mds::assign(ctx.work);
        said("")
    };
    settle(run())
}

/// `true`, `yes`, `1` and their opposites.
pub(super) fn yes_or_no(text: &str) -> Result<bool, Refusal> {
    match text {
        "true" | "yes" | "1" => Ok(true),
        "false" | "no" | "0" => Ok(false),
        _ => Err((EINVAL, "value must be false|no|0 or true|yes|1".into())),
    }
}

fn flag_set(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let on = yes_or_no(&args.str("val"))?;
        let next = ctx.work.fsmap_mut();
        next.enable_multiple = on;
        next.ever_enabled_multiple |= on;
        said("")
    };
    settle(run())
}

fn set_default(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let fscid = named(ctx, args)?;
        if ctx.work.state.fsmap.legacy_client_fscid != fscid {
            // Whoever asked for the default one is told of another.
            edit(ctx, fscid)?;
            ctx.work.fsmap_mut().legacy_client_fscid = fscid;
        }
        said("")
    };
    settle(run())
}

fn feature_ls(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let all = || CLIENT_FEATURES.iter().enumerate();
    let text = || all().map(|(i, n)| format!("{i} {n}\n")).collect();
    let value = || Value::Array(all().map(|(i, n)| json!({"index": i, "name": n})).collect());
    text_or_json(ctx, text, value)
}

/// Compatibility for people.
pub(super) fn compat_out(ctx: &CommandCtx<'_>, set: &CompatSet) -> CommandResult {
    text_or_json(ctx, || set.text(), || set.dump())
}

fn compat_show(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    match named(ctx, args).and_then(|id| Ok(map_of(ctx, id)?.compat.clone())) {
        Ok(set) => compat_out(ctx, &set),
        Err(e) => settle(Err(e)),
    }
}

fn compat(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let fscid = named(ctx, args)?;
        if !map_of(ctx, fscid)?.up.is_empty() {
            return Err((
                EBUSY,
                "file system must be failed or down; use `ceph fs fail` to bring down".into(),
            ));
        }
        let bit =
            args.int("feature").and_then(|f| u64::try_from(f).ok()).filter(|f| (1..64).contains(f));
        let bit = bit.ok_or_else(|| (EINVAL, "a feature is a number from 1 to 63".to_owned()))?;
        let subop = args.str("subop");
        let (verb, incompat) =
            subop.split_once('_').map_or(("", false), |(v, w)| (v, w == "incompat"));
        let (name, word) =
            (args.opt_str("feature_str"), if incompat { "incompat" } else { "compat" });
        if name.as_ref().is_some_and(|n| n.len() > FEATURE_MAX) {
            return Err((EINVAL, format!("a feature's name has at most {FEATURE_MAX} bytes")));
        }
        let m = edit(ctx, fscid)?;
        let set = if incompat { &mut m.compat.incompat } else { &mut m.compat.compat };
        let there = set.names.contains_key(&bit);
        let text = match (verb, there, name) {
            ("rm", true, _) => {
                set.names.remove(&bit);
                set.mask &= !(1 << bit);
                format!("removed {word} feature {bit}")
            }
            ("rm", false, _) => format!("already removed {word} feature {bit}"),
            (_, true, _) => "feature already exists".to_owned(),
            (_, false, Some(name)) => {
                set.names.insert(bit, name.clone());
                set.mask |= 1 << bit;
                format!("added {word} feature F({bit}, \"{name}\")")
            }
            (_, false, None) => {
                return Err((EINVAL, "adding a feature requires a feature string".into()));
            }
        };
        said(text)
    };
    settle(run())
}

/// Sets or clears a bit among 64-bit words.
fn with_bit(words: &[u8], bit: usize, on: bool) -> Vec<u8> {
    let mut out = words.to_vec();
    if out.len() <= bit / 8 {
        out.resize((bit / 64 + 1) * 8, 0);
    }
    if let Some(byte) = out.get_mut(bit / 8) {
        *byte = if on { *byte | 1 << (bit % 8) } else { *byte & !(1 << (bit % 8)) };
    }
    while out.len() >= 8 && out.rchunks(8).next().is_some_and(|w| w.iter().all(|b| *b == 0)) {
        out.truncate(out.len() - 8);
    }
    out
}

/// Numbers of the features of clients that a word or a list of them names.
pub(super) fn features_named(text: &str) -> Result<Vec<(usize, &'static str)>, Refusal> {
    let one = |word: &str| {
        let bad = || (EINVAL, format!("Invalid feature name: {word}"));
        let by_number = word.parse::<usize>().ok().filter(|n| *n < CLIENT_FEATURES.len());
        let by_name = || CLIENT_FEATURES.iter().position(|n| *n == word);
        let bit = by_number.or_else(by_name).ok_or_else(bad)?;
        let name =
            CLIENT_FEATURES.get(bit).copied().filter(|n| *n != "reserved").ok_or_else(bad)?;
        Ok((bit, name))
    };
    text.split([',', ' ']).filter(|w| !w.is_empty()).map(one).collect()
}

pub(super) fn require_features(m: &mut MdsMap, features: &[(usize, &'static str)], on: bool) {
    for (bit, _) in features {
        m.required_client_features = with_bit(&m.required_client_features, *bit, on).into();
    }
}

fn required_features(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let fscid = named(ctx, args)?;
        let features = features_named(&args.str("val"))?;
        let on = args.str("subop") == "add";
        let words = &map_of(ctx, fscid)?.required_client_features;
        let is_set = |bit: usize| words.get(bit / 8).is_some_and(|byte| byte & 1 << (bit % 8) != 0);
        let one = |(bit, name): &(usize, &str)| match (on, is_set(*bit)) {
            (true, false) => format!("added feature '{name}' to required_client_features"),
            (true, true) => format!("feature '{name}' is already set"),
            (false, true) => format!("removed feature '{name}' from required_client_features"),
            (false, false) => format!("feature '{name}' is already unset"),
        };
        let text = features.iter().map(one).collect::<Vec<_>>().join("\n");
        require_features(edit(ctx, fscid)?, &features, on);
        said(text)
    };
    settle(run())
}

fn add_data_pool(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let fscid = named(ctx, args)?;
        let (fs, id) = (args.str("fs_name"), pool_named(ctx, &args.str("pool"))?);
        check_pool(ctx, id, Use::MoreData, false)?;
        let m = map_of(ctx, fscid)?;
        if m.data_pools.contains(&id) {
            return said(format!("data pool {id} is already on fs {fs}"));
        }
        if m.data_pools.len() >= DATA_POOLS_MAX {
            return Err((EINVAL, format!("a filesystem has at most {DATA_POOLS_MAX} data pools")));
        }
        claim(ctx, id, "data", &fs);
        edit(ctx, fscid)?.data_pools.push(id);
        said(format!("added data pool {id} to fsmap"))
    };
    settle(run())
}

fn rm_data_pool(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let fscid = named(ctx, args)?;
        let id = pool_named(ctx, &args.str("pool"))?;
        let m = map_of(ctx, fscid)?;
        if m.data_pools.first() == Some(&id) {
            return Err((EINVAL, "cannot remove default data pool".into()));
        }
        if !m.data_pools.contains(&id) {
            return said(format!("data pool {id} is not on fs {}", args.str("fs_name")));
        }
        edit(ctx, fscid)?.data_pools.retain(|p| *p != id);
        said(format!("removed data pool {id} from fsmap"))
    };
    settle(run())
}

/// The capabilities of a client for directories of a file system, as words.
fn caps_for(fs: &str, pairs: &[String]) -> Result<Vec<String>, Refusal> {
    let all = fs == "*";
    let mut writes = false;
    let mut grants = Vec::new();
    for pair in pairs.chunks(2) {
        let (path, flags) =
            (pair.first().map_or("", String::as_str), pair.get(1).map_or("", String::as_str));
        if flags.is_empty() {
            return Err((EINVAL, "mds capability parse failed, stopped at '' of ''".into()));
        }
        let Some(rest) = flags.strip_prefix('r') else {
            return Err((EINVAL, "Permission flags must start with 'r' or 'rw'.".into()));
        };
        if let Some(odd) = rest.chars().find(|c| !"wps".contains(*c)) {
            return Err((EINVAL, format!("Unknown permission flag '{odd}'.")));
        }
        writes |= rest.starts_with('w');
        let within = if all { String::new() } else { format!(" fsname={fs}") };
        let path = if path == "/" { String::new() } else { format!(" path={path}") };
        grants.push(format!("allow {flags}{within}{path}"));
    }
    let mon = if all { "allow r".to_owned() } else { format!("allow r fsname={fs}") };
    let osd = format!("allow {} tag cephfs data={fs}", if writes { "rw" } else { "r" });
    Ok(vec!["mon".into(), mon, "osd".into(), osd, "mds".into(), grants.join(", ")])
}

fn authorize(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let fs = args.str("filesystem");
        if fs != "*" && ctx.work.state.fsmap.by_name(&fs).is_none() {
            return Err((EINVAL, format!("filesystem {fs} does not exist.")));
        }
        let name = auth::new_entity(args)?;
        let words = caps_for(&fs, &args.list("caps"))?;
        let wanted = db::caps_of_words(&words).map_err(auth::said)?;
        if ctx.work.state.auth.get(&name).is_some_and(|u| u.caps != wanted) {
            let why = format!(
                "{name} already has fs capabilities that differ from those supplied. To generate a \
                    new auth key for {name}, first \
                 remove {name} from configuration files, execute 'ceph auth rm {name}', then \
                 execute this command again."
            );
            return Err((EINVAL, why));
        }
        let key = auth::new_key(ctx, args, &name)?;
        let user = auth::table(ctx).get_or_create(&name, wanted, key).map_err(auth::said)?.clone();
        Ok(auth::keyring_out(ctx, &name, &user, false))
    };
    settle(run())
}

fn mirror(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let refused = crate::absent::refusal("this version has no mirroring of filesystems");
    settle(named(ctx, args).and(Err(refused)))
}

/// A file system that uses a pool, which must not be deleted then.
pub(crate) fn user_of_pool(map: &FsMap, id: PoolId) -> bool {
    map.filesystems
        .iter()
        .any(|f| f.mds_map.metadata_pool == id || f.mds_map.data_pools.contains(&id))
}

/// The rank that a word names: `FS:RANK`, or `RANK` of the default file system.
pub(super) fn role(ctx: &CommandCtx<'_>, word: &str) -> Result<(i32, i32), Refusal> {
    role_in(&ctx.work.state.fsmap, word)
}

/// The same, of a map.
pub(crate) fn role_in(map: &FsMap, word: &str) -> Result<(i32, i32), Refusal> {
    let (fs, rank) = match word.split_once(':') {
        Some((name, rank)) => {
            let by_id = || map.filesystems.iter().find(|f| f.fscid.to_string() == name);
            let fs = map
                .by_name(name)
                .or_else(by_id)
                .ok_or_else(|| (ENOENT, "Invalid filesystem".to_owned()))?;
            (fs, rank)
        }
        None => {
            let fs = map.by_id(map.legacy_client_fscid);
            (fs.ok_or_else(|| (ENOENT, "No filesystem selected".to_owned()))?, word)
        }
    };
    let rank: i32 = rank.parse().map_err(|_| (EINVAL, format!("Invalid rank '{rank}'")))?;
    if !fs.mds_map.in_ranks.contains(&rank) {
        return Err((ENOENT, format!("Rank '{rank}' not found")));
    }
    Ok((fs.fscid, rank))
}

/// A damaged rank may be served again.
pub(super) fn repaired(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let (fscid, rank) = role(ctx, &args.str("role"))?;
        if !map_of(ctx, fscid)?.damaged.contains(&rank) {
            return said("nothing to do: rank is not damaged");
        }
        ranks::repaired(ctx.work.fsmap_mut(), fscid, rank);
        mds::assign(ctx.work);
        said(format!("repaired: restoring rank {fscid}:{rank}"))
    };
    settle(run())
}
