//! `ceph log` and `ceph log last`.

use super::{Args, CommandResult, CommandSpec, text_or_json};
use crate::clog::{line, severity_by_name, severity_tag};
use crate::mon::CommandCtx;
use serde_json::json;
use spirula_messages::ceph::LogEntry;
use spirula_messages::ceph::log::severity;
use spirula_types::EntityType;

pub(super) const SPECS: &[CommandSpec] = &[
    CommandSpec {
        sig: "log name=logtext,type=CephString,n=N",
        help: "log supplied text to the monitor log",
        module: "mon",
        perm: "rw",
        flags: 0,
        run: log,
    },
    CommandSpec {
        sig: "log last name=num,type=CephInt,range=1,req=false \
            name=level,type=CephChoices,strings=debug|info|sec|warn|error,req=false \
            name=channel,type=CephChoices,strings=*|cluster|audit|cephadm,req=false",
        help: "print last few lines of the cluster log",
        module: "mon",
        perm: "r",
        flags: 0,
        run: last,
    },
];

fn log(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let entry = LogEntry {
        name_kind: ctx.peer.kind as u32,
        name_id: ctx.peer.id.clone(),
        rank: ctx.peer.entity(),
        addrs: ctx.peer.addrs.clone(),
        stamp: ctx.work.now,
        seq: 0,
        severity: severity::INFO,
        message: args.list("logtext").join(" "),
        channel: "cluster".to_owned(),
    };
    ctx.work.log_entry(entry);
    CommandResult::default()
}

fn last(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let num = args.int("num").filter(|n| *n > 0).unwrap_or(20) as usize;
    let level = args.opt_str("level").and_then(|l| severity_by_name(&l)).unwrap_or(severity::INFO);
    let channel = args.opt_str("channel").unwrap_or_else(|| "cluster".to_owned());
    let fits = |e: &&LogEntry| e.severity >= level && (channel == "*" || e.channel == channel);
    let mut entries: Vec<&LogEntry> =
        ctx.work.state.log.after(0).rev().map(|(_, e)| e).filter(fits).take(num).collect();
    entries.reverse();
    let text = || entries.iter().map(|e| line(e) + "\n").collect();
    let value = || {
        let one = |e: &&LogEntry| {
            let kind = u8::try_from(e.name_kind)
                .ok()
                .and_then(EntityType::from_wire)
                .map_or("unknown", EntityType::as_str);
            json!({
                "name": format!("{kind}.{}", e.name_id),
                "rank": e.rank.to_string(),
                "addrs": super::addrs_json(&e.addrs),
                "stamp": e.stamp.to_iso(),
                "seq": e.seq,
                "channel": e.channel,
                "priority": severity_tag(e.severity),
                "message": e.message,
            })
        };
        entries.iter().map(one).collect()
    };
    text_or_json(ctx, text, value)
}
