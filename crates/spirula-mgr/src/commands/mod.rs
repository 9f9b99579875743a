//! The manager's commands: what the `ceph` tool may ask, and the answers.

mod autoscale;
mod force;
mod fs;
mod modules;
mod options;
mod osd;
mod osd_df;
mod pg;
mod python;
mod rbd;
mod scrub;
mod spec;
mod tell;

use crate::event::Now;
use crate::mgr::Mgr;
use serde_json::{Map, Value};
use spec::{CommandSpec, Ctx, FLAG_MGR};
use spirula_format::{Format, xml};
use spirula_settings::{absent, common, managers};
use std::borrow::Cow;

pub(crate) use spec::{Order, Reply};

/// Every command, in the order of the descriptors.
fn all() -> impl Iterator<Item = &'static CommandSpec> {
    [pg::COMMANDS, osd::COMMANDS, options::COMMANDS, modules::COMMANDS, rbd::COMMANDS, fs::COMMANDS]
        .into_iter()
        .flatten()
}

/// Descriptors for the monitor, which lists them to clients: JSON objects with flag 8.
pub(crate) fn descriptors() -> Vec<String> {
    all().map(|c| c.descriptor(FLAG_MGR | c.flags).to_string()).collect()
}

fn parse(cmd: &[String]) -> Result<Map<String, Value>, Reply> {
    match common::first_json(&cmd.concat()) {
        Ok(Value::Object(map)) => Ok(map),
        _ => Err(Reply::invalid("command is not a JSON object")),
    }
}

fn format_of(args: &Map<String, Value>) -> (Format, Option<xml::Xml>) {
    xml::asked(args.get("format").and_then(Value::as_str).unwrap_or_default())
}

fn ctx<'a>(mgr: &'a Mgr, now: Now, args: &'a Map<String, Value>) -> Ctx<'a> {
    Ctx { mgr, now, args, format: format_of(args).0, fsmap: Cow::Borrowed(&mgr.fsmap) }
}

/// An answer in XML, if that was asked for and it is one in JSON.
fn in_form(mut reply: Reply, prefix: &str, args: &Map<String, Value>) -> Reply {
    if let Some(text) =
        format_of(args).1.and_then(|form| xml::convert(prefix, reply.data.as_bytes(), form))
    {
        reply.data = text;
    }
    reply
}

/// Runs a command meant for the cluster's active manager. `only_fs`: the file systems that its
/// asker may know of, where that are not all.
pub(crate) fn run(mgr: &Mgr, now: Now, cmd: &[String], only_fs: Option<&[String]>) -> Reply {
    let args = match parse(cmd) {
        Ok(args) => args,
        Err(reply) => return reply,
    };
    let prefix = args.get("prefix").and_then(Value::as_str).unwrap_or_default();
    if prefix == "get_command_descriptions" {
        return Reply::data(describe(all()));
    }
    match all().find(|c| c.prefix() == prefix) {
        Some(c) => match c.no_word(&args) {
            Some((name, what)) => {
                let what: String = what.to_string().chars().take(100).collect();
                Reply::invalid(format!("{prefix}: '{what}' in argument '{name}' is no text"))
            }
            None => {
                let mut ctx = ctx(mgr, now, &args);
                if let Some(seen) = only_fs
                    .and_then(|only| mgr.fsmap.seen_by(|name| only.iter().any(|n| n == name)))
                {
                    ctx.fsmap = Cow::Owned(seen);
                }
                in_form((c.run)(&ctx), prefix, &args)
            }
        },
        None => match absent::find(prefix) {
            Some(_) if absent::is_so_already(prefix) => Reply::default(),
            Some(c) => {
                let (errno, why) = c.refusal();
                Reply::err(errno, why)
            }
            None => Reply::invalid(format!("No handler found for '{prefix}'")),
        },
    }
}

/// Runs a command meant for this daemon (`ceph tell mgr.x`, its admin socket).
pub(crate) fn tell(mgr: &mut Mgr, now: Now, cmd: &[String]) -> Reply {
    let args = match parse(cmd) {
        Ok(args) => args,
        Err(reply) => return reply,
    };
    let prefix = args.get("prefix").and_then(Value::as_str).unwrap_or_default();
    let own = tell::COMMANDS.iter().map(|c| (c.sig, c.help, c.perm));
    let all = common::COMMANDS.iter().map(|(sig, help)| (*sig, *help, "rw")).chain(own);
    match prefix {
        "get_command_descriptions" => {
            let row = |(i, (sig, help, perm))| {
                (format!("cmd{i:03}"), common::descriptor(sig, help, "mgr", perm))
            };
            return Reply::data(spirula_format::to_json(
                &all.enumerate().map(row).collect(),
                Format::Json,
            ));
        }
        "help" => {
            let all: std::collections::BTreeMap<String, &str> =
                all.map(|(sig, help, _)| (common::words(sig), help)).collect();
            return ctx(mgr, now, &args).json(&serde_json::json!(all));
        }
        _ => {}
    }
    if let Some(outcome) = common::run(prefix, &args, &mut mgr.config.settings) {
        return match outcome {
            Ok(r) => Reply { rs: r.status, ..ctx(mgr, now, &args).json(&r.value) },
            Err((errno, why)) => Reply::err(errno, why),
        };
    }
    match tell::COMMANDS.iter().find(|c| c.prefix() == prefix) {
        Some(c) => (c.run)(&ctx(mgr, now, &args)),
        None => Reply::invalid(format!("command '{prefix}' not known to mgr.{}", mgr.config.name)),
    }
}

/// Prefix and arguments as capabilities compare them, if the command can be understood.
pub(crate) fn words_of(cmd: &[String]) -> Option<(String, spirula_auth::caps::Args)> {
    let map = parse(cmd).ok()?;
    let prefix = map.get("prefix").and_then(Value::as_str).unwrap_or_default().to_owned();
    Some((prefix, map.iter().map(|(k, v)| (k.clone(), common::text_of(v))).collect()))
}

/// Module and permission of a command that is known.
pub(crate) fn needs_of(prefix: &str) -> Option<(&'static str, &'static str)> {
    let own = all().find(|c| c.prefix() == prefix).map(|c| (c.module, c.perm));
    let others = || managers::find(prefix).or_else(|| absent::find(prefix));
    own.or_else(|| others().map(|c| (c.part, c.perm)))
}

/// The command of the manager's, served by the monitors, that these words are.
fn monitors(cmd: &[String]) -> Option<managers::ManagersCommand> {
    let args = parse(cmd).ok()?;
    managers::find(args.get("prefix").and_then(Value::as_str).unwrap_or_default())
}

/// Is it one that the monitors serve?
pub(crate) fn are_monitors(cmd: &[String]) -> bool {
    monitors(cmd).is_some()
}

/// Does this one of the manager's own have anything done?
pub(crate) fn is_order(cmd: &[String]) -> bool {
    words_of(cmd)
        .and_then(|(prefix, _)| needs_of(&prefix))
        .is_some_and(|(_, perm)| perm.contains('w'))
}

/// Does this one of the monitors' change anything?
pub(crate) fn changes(cmd: &[String]) -> bool {
    monitors(cmd).is_some_and(|c| c.perm.contains('w'))
}

/// The pool and namespace that a command is about, as capabilities that are limited to some compare
/// them; `None` if it is about none.
pub(crate) fn scope_of(
    prefix: &str,
    args: &spirula_auth::caps::Args,
) -> Option<spirula_auth::caps::Args> {
    rbd::scope(prefix, args)
}

/// The module of Ceph's manager that serves a command there, which `allow module` and some profiles
/// name; empty for those that the manager serves itself.
pub(crate) fn module_of(prefix: &str) -> &'static str {
    if let Some(c) = managers::find(prefix).or_else(|| absent::find(prefix)) {
        return c.module;
    }
    match prefix.split(' ').next().unwrap_or_default() {
        "rbd" => "rbd_support",
        "balancer" => "balancer",
        "progress" => "progress",
        "iostat" => "iostat",
        "orch" => "orchestrator",
        "telemetry" => "telemetry",
        "restful" => "restful",
        "osd" if prefix == "osd pool autoscale-status" => "pg_autoscaler",
        "osd" | "fs" if matches!(prefix, "osd status" | "fs status") => "status",
        _ => "",
    }
}

/// Prefix, module and permission of each command, for tests of who may what.
#[cfg(test)]
pub(crate) fn rows() -> impl Iterator<Item = (String, &'static str, &'static str)> {
    let missing = absent::commands().map(|c| (common::words(c.sig), c.part, c.perm));
    let passed = managers::commands().map(|c| (common::words(c.sig), c.part, c.perm));
    all().map(|c| (c.prefix(), c.module, c.perm)).chain(passed).chain(missing)
}

/// The modules of all commands.
#[cfg(test)]
pub(crate) fn modules() -> impl Iterator<Item = &'static str> {
    all().map(|c| c.module).chain(absent::commands().map(|c| c.part))
}

/// The commands of the daemon itself, by `tell`.
#[cfg(test)]
pub(crate) fn own() -> impl Iterator<Item = String> {
    tell::COMMANDS.iter().map(CommandSpec::prefix)
}

fn describe<'a>(list: impl Iterator<Item = &'a CommandSpec>) -> String {
    let passed = managers::commands()
        .map(|c| spec::descriptor_of(c.sig, "(served by the monitors)", c.part, c.perm, 0));
    let all = list.map(|c| c.descriptor(c.flags)).chain(passed);
    let map: Map<String, Value> = all.enumerate().map(|(i, d)| (format!("cmd{i:03}"), d)).collect();
    spirula_format::to_json(&map.into(), Format::Json)
}
