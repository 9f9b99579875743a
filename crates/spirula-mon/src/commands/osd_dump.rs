//! Whole maps: `osd dump`, `getmap`, `getcrushmap`, `setcrushmap`.

use super::osd_show::map_at;
use super::{Args, CommandResult, CommandSpec, Outcome, json_out, settle, text_or_json};
use crate::mon::CommandCtx;
use spirula_crush::CrushMap;
use spirula_maps::EncodedOsdMap;
use spirula_types::errno::{EINVAL, EPERM};

pub(super) const SPECS: &[CommandSpec] = &[
    CommandSpec {
        sig: "osd dump name=epoch,type=CephInt,range=0,req=false",
        help: "print summary of OSD map",
        module: "osd",
        perm: "r",
        flags: 0,
        run: dump,
    },
    CommandSpec {
        sig: "osd getmap name=epoch,type=CephInt,range=0,req=false",
        help: "get OSD map",
        module: "osd",
        perm: "r",
        flags: 0,
        run: getmap,
    },
    CommandSpec {
        sig: "osd getcrushmap name=epoch,type=CephInt,range=0,req=false",
        help: "get CRUSH map",
        module: "osd",
        perm: "r",
        flags: 0,
        run: getcrushmap,
    },
    CommandSpec {
        sig: "osd setcrushmap name=prior_version,type=CephInt,req=false",
        help: "set crush map from input file",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: setcrushmap,
    },
    CommandSpec {
        sig: "osd crush dump",
        help: "dump crush map",
        module: "osd",
        perm: "r",
        flags: 0,
        run: crush_dump,
    },
];

fn dump(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    settle(map_at(ctx, args).map(|map| text_or_json(ctx, || map.dump_text(), || map.dump())))
}

fn getmap(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    settle(map_at(ctx, args).map(|map| {
        let rs = format!("got osdmap epoch {}", map.epoch);
        CommandResult::data(EncodedOsdMap::new(map).bytes().clone()).with_rs(rs)
    }))
}

fn getcrushmap(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    settle(map_at(ctx, args).map(|map| {
        CommandResult::data(map.crush.bytes().clone()).with_rs(map.crush_version.to_string())
    }))
}

/// Replaces the CRUSH map by the input file, after a look at whether pools still work with it.
pub(super) fn setcrushmap(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let version = i64::from(ctx.work.osd().crush_version);
        if let Some(prior) = args.int("prior_version").filter(|p| *p != version) {
            return Err((EPERM, format!("prior_version {prior} != crush version {version}")));
        }
        let map: CrushMap = spirula_encoding::from_slice(ctx.input)
            .map_err(|e| (EINVAL, format!("Failed to parse crushmap: {e}")))?;
        map.check().map_err(|e| (EINVAL, format!("Failed crushmap test: {e}")))?;
        for (id, pool) in &ctx.work.osd().pools {
            if map.rule(u32::from(pool.crush_rule)).is_none() {
                return Err((
                    EINVAL,
                    format!("the crush rule no {} for pool id {id} is in use", pool.crush_rule),
                ));
            }
        }
        let changed: Result<(), std::convert::Infallible> = ctx.work.edit_crush(|c| {
            *c = map;
            Ok(())
        });
        debug_assert!(changed.is_ok());
        Ok(CommandResult::ok((version + 1).to_string()))
    };
    settle(run())
}

fn crush_dump(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    json_out(ctx, &ctx.work.osd().crush.dump())
}
