//! `status`, `health`, `df`, `report` and muting; laid out by [`crate::report`].

use super::{Args, CommandResult, CommandSpec};
use crate::mon::CommandCtx;
use crate::report;
use spirula_encoding::UTime;
use spirula_types::errno::{EINVAL, ENOENT};
use std::sync::Arc;

pub(super) const SPECS: &[CommandSpec] = &[
    CommandSpec {
        sig: "status",
        help: "show cluster status",
        module: "mon",
        perm: "r",
        flags: 0,
        run: status,
    },
    CommandSpec {
        sig: "health name=detail,type=CephChoices,strings=detail,req=false",
        help: "show cluster health",
        module: "mon",
        perm: "r",
        flags: 0,
        run: health,
    },
    CommandSpec {
        sig: "health mute name=code,type=CephString name=ttl,type=CephString,req=false \
            name=sticky,type=CephBool,req=false",
        help: "mute health alert",
        module: "mon",
        perm: "w",
        flags: 0,
        run: mute,
    },
    CommandSpec {
        sig: "health unmute name=code,type=CephString,req=false",
        help: "unmute existing health alert mute(s)",
        module: "mon",
        perm: "w",
        flags: 0,
        run: unmute,
    },
    CommandSpec {
        sig: "df name=detail,type=CephChoices,strings=detail,req=false",
        help: "show cluster free space stats",
        module: "mon",
        perm: "r",
        flags: 0,
        run: df,
    },
    CommandSpec {
        sig: "report name=tags,type=CephString,n=N,req=false",
        help: "report full status of cluster, optional title tag strings",
        module: "mon",
        perm: "r",
        flags: 0,
        run: full,
    },
];

fn status(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    CommandResult::data(report::status(&ctx.view(), ctx.format))
}

fn health(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    CommandResult::data(report::health(&ctx.view(), args.has("detail"), ctx.format))
}

fn df(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    CommandResult::data(report::df(&ctx.view(), args.has("detail"), ctx.format))
}

fn full(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    // Tags only ever became part of a title nobody reads.
    let (text, rs) =
        report::report(&ctx.view(), ctx.mon.agreed(), super::misc::VERSION_TEXT, ctx.format);
    CommandResult::data(text).with_rs(rs)
}

fn mute(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let code = args.str("code");
    let until = match args.opt_str("ttl").as_deref().map(report::health::parse_ttl) {
        None => UTime::ZERO,
        Some(Some(seconds)) => {
            UTime { sec: ctx.work.now.sec.saturating_add(seconds), nsec: ctx.work.now.nsec }
        }
        Some(None) => {
            return CommandResult::err(EINVAL, format!("cannot parse ttl '{}'", args.str("ttl")));
        }
    };
    let found = report::health::Health::of(&ctx.view()).mute(&code, until, args.bool("sticky"));
    match found {
        Ok(m) => {
            Arc::make_mut(&mut ctx.work.state.mutes).insert(code, m);
            CommandResult::default()
        }
        Err(text) => CommandResult::err(ENOENT, text),
    }
}

fn unmute(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mutes = Arc::make_mut(&mut ctx.work.state.mutes);
    match args.opt_str("code") {
        Some(code) => {
            mutes.remove(&code);
        }
        None => mutes.clear(),
    }
    CommandResult::default()
}
