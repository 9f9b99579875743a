//! Commands: the table of what there is, and the way from a request to its handler.
//!
//! A command is data ([`CommandSpec`]) and a function. Signatures are Ceph 16.2's
//! (`tests/data/vectors/mon-command-signatures.json.gz`), because the CLI parses what
//! the user types with them. The active manager's commands are listed behind ours, as it
//! described them in its beacon; clients send those to it, or to a monitor, which has it run them
//! ([`crate::proxy`]).

pub mod args;
mod auth;
mod config;
pub(crate) mod crash;
mod crush;
mod crush_rules;
mod devices;
mod ec_profiles;
pub(crate) mod fs;
mod fs_set;
mod health;
pub(crate) mod join;
mod log;
pub(crate) mod mds;
mod mgr;
mod misc;
mod missing;
mod mon_cmds;
mod osd;
mod osd_dump;
mod osd_flags;
mod osd_maps;
mod osd_show;
mod osd_tree;
mod pool;
mod pool_set;
mod reweight;
mod spec;
mod tell;
mod volume;

pub use args::Args;
pub use spec::{
    CommandResult, CommandSpec, FLAG_DEPRECATED, FLAG_HIDDEN, FLAG_MGR, FLAG_TELL, Handler, Perm,
};

use crate::event::Peer;
use crate::mon::{CommandCtx, Mon};
use crate::state::State;
use crate::work::Work;
use bytes::Bytes;
use serde_json::Value;
use spirula_auth::{CryptoKey, KeyType};
use spirula_format::{Format, to_json, xml};
use spirula_messages::ceph::log::severity;
use spirula_messages::ceph::{MCommand, MMonCommand, kind};
use spirula_messages::cluster::control::MonRun;
use spirula_messages::{Body, Message};
use spirula_types::errno::EINVAL;

/// All tables.
const TABLES: &[&[CommandSpec]] = &[
    misc::SPECS,
    missing::SPECS,
    fs::SPECS,
    fs_set::SPECS,
    volume::SPECS,
    mds::SPECS,
    devices::SPECS,
    health::SPECS,
    mon_cmds::SPECS,
    osd_show::SPECS,
    osd_dump::SPECS,
    osd_tree::SPECS,
    osd::SPECS,
    osd_flags::SPECS,
    osd_maps::SPECS,
    reweight::SPECS,
    pool::SPECS,
    pool_set::SPECS,
    crush::SPECS,
    crush_rules::SPECS,
    mgr::SPECS,
    config::SPECS,
    crash::SPECS,
    log::SPECS,
    auth::SPECS,
    join::SPECS,
];

/// Every command of the monitor.
pub fn specs() -> impl Iterator<Item = &'static CommandSpec> {
    TABLES.iter().flat_map(|t| t.iter())
}

/// Result of handlers that use `?` on refusals.
type Outcome = Result<CommandResult, (i32, String)>;

/// As many random bytes as a command wants: they follow by HMAC, block by block, from those drawn
/// for it, so that no two requests for bytes get the same ones.
///
/// # Errors
/// Never in practice: the seed has a key's length.
fn stream(ctx: &CommandCtx<'_>) -> Result<impl FnMut(&mut [u8]) + use<>, (i32, String)> {
    let seed = CryptoKey::new(KeyType::Aes256k, ctx.work.now, &ctx.random)
        .map_err(|e| (EINVAL, e.to_string()))?;
    let mut count = 0u64;
    Ok(move |out: &mut [u8]| {
        for chunk in out.chunks_mut(32) {
            count += 1;
            let block = seed.hmac_sha256(&count.to_le_bytes());
            chunk.iter_mut().zip(block).for_each(|(o, b)| *o = b);
        }
    })
}

fn settle(outcome: Outcome) -> CommandResult {
    outcome.unwrap_or_else(|(errno, text)| CommandResult::err(errno, text))
}

/// A command's JSON output: compact, pretty, or (no text form) pretty.
fn json_out(ctx: &CommandCtx<'_>, value: &Value) -> CommandResult {
    CommandResult::data(to_json(value, ctx.format))
}

/// Addresses as `{"addrvec": […]}`.
fn addrs_json(addrs: &spirula_types::AddrVec) -> Value {
    serde_json::json!({ "addrvec": addrs.0.iter().map(addr_json).collect::<Vec<_>>() })
}

/// One address, with the kind of its protocol.
fn addr_json(a: &spirula_types::EntityAddr) -> Value {
    let kind = match a.kind {
        spirula_types::EntityAddr::KIND_LEGACY => "v1",
        spirula_types::EntityAddr::KIND_MSGR2 => "v2",
        spirula_types::EntityAddr::KIND_ANY => "any",
        _ => "none",
    };
    let addr =
        a.addr.map_or_else(|| "(unrecognized address family 0)".to_owned(), |s| s.to_string());
    serde_json::json!({"type": kind, "addr": addr, "nonce": a.nonce})
}

/// Text for people, or the JSON of the same.
fn text_or_json(
    ctx: &CommandCtx<'_>,
    text: impl FnOnce() -> String,
    value: impl FnOnce() -> Value,
) -> CommandResult {
    if ctx.format.is_json() { json_out(ctx, &value()) } else { CommandResult::data(text()) }
}

fn parse(cmd: &[String]) -> Result<Args, String> {
    if cmd.is_empty() {
        return Err("no command supplied".into());
    }
    match spirula_settings::common::first_json(&cmd.concat()) {
        Ok(Value::Object(map)) => Ok(Args(map)),
        Ok(_) => Err("command is not a JSON object".into()),
        Err(e) => Err(format!("unparseable JSON: {e}")),
    }
}

/// The command of that prefix whose required arguments are all given; several share a
/// prefix (`osd crush set`), and the one with most of what was given is meant.
fn find(prefix: &str, args: &Args) -> Option<&'static CommandSpec> {
    let candidates: Vec<_> =
        specs().filter(|s| s.sig.starts_with(prefix) && s.prefix() == prefix).collect();
    let given = |s: &&&CommandSpec| {
        let names = s.sig.split_whitespace().filter_map(|p| p.strip_prefix("name="));
        names.filter(|p| args.has(p.split(',').next().unwrap_or_default())).count()
    };
    let fits =
        candidates.iter().rev().filter(|s| args::check(s.sig, args).is_ok()).max_by_key(given);
    fits.or(candidates.first()).copied()
}

/// A command as everybody understands it who decides about it: capabilities, the turns of what
/// makes epochs, its handler. This is the one place that reads its text, so that none of them takes
/// it for another command than the others do.
#[derive(Clone)]
pub struct Command {
    /// Its words.
    pub prefix: String,
    /// All that was said.
    given: Args,
    spec: Option<&'static CommandSpec>,
}

impl Command {
    /// Reads a command.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn of(cmd: &[String]) -> Result<Self, String> {
        let given = parse(cmd)?;
        let prefix = given.str("prefix");
        let spec = find(&prefix, &given);
        Ok(Self { prefix, given, spec })
    }

    /// The command that a message carries, if there is one that can be read.
    pub fn in_message(m: &Message) -> Option<Self> {
        let cmd = match m.kind {
            kind::MON_COMMAND => MMonCommand::from_message(m).ok()?.cmd,
            kind::COMMAND => MCommand::from_message(m).ok()?.cmd,
            MonRun::KIND => MonRun::from_message(m).ok()?.cmd,
            _ => return None,
        };
        Self::of(&cmd).ok()
    }

    /// The arguments that it takes, if it is known; else all that was said.
    pub fn args(&self) -> Args {
        self.spec.map_or_else(|| self.given.clone(), |spec| args::taken(spec.sig, &self.given))
    }

    /// Module and permission, if it is known.
    pub fn needs(&self) -> Option<(&'static str, Perm)> {
        self.spec.map(|s| (s.module, s.perm))
    }

    /// True if it changes state.
    pub fn is_write(&self) -> bool {
        self.spec.is_some_and(|s| s.perm.contains('w'))
    }

    /// Does this fence somebody off, or let somebody in again?
    pub fn is_about_fences(&self) -> bool {
        self.is_write()
            && ["blocklist", "blacklist"].iter().any(|w| self.prefix.split(' ').nth(1) == Some(w))
    }

    /// Is it, by `tell`, about this daemon itself, so that it needs no quorum?
    pub fn is_own(&self) -> bool {
        matches!(self.prefix.as_str(), "mon_status" | "quorum_status" | "get_command_descriptions")
            || tell::is_own(&self.prefix)
    }

    /// Is this the order, for this daemon alone, to write its store anew?
    pub fn asks_to_compact(&self) -> bool {
        tell::asks_to_compact(&self.prefix)
    }
}

/// A command as it came.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Who asks.
    pub peer: &'a Peer,
    /// JSON, one text.
    pub cmd: &'a [String],
    /// Input file.
    pub input: &'a Bytes,
    /// Random bytes for commands that make keys or ids.
    pub random: [u8; 32],
    /// It came as `ceph tell mon.N`, which lists and serves the daemon's own commands.
    pub tell: bool,
}

/// The commands of the daemon itself, by `tell`.
#[cfg(test)]
pub(crate) fn own_commands() -> impl Iterator<Item = String> {
    tell::own()
}

/// Runs a command.
pub fn run(mon: &Mon, work: &mut Work, request: &Request<'_>) -> CommandResult {
    let command = match Command::of(request.cmd) {
        Ok(c) => c,
        Err(text) => return CommandResult::err(EINVAL, text),
    };
    let (format, to_xml) = xml::asked(&command.given.str("format"));
    let mut result = run_in(mon, work, request, &command, format);
    // An option's value stands as it is in every form, though a number would be JSON.
    let to_xml = to_xml.filter(|_| command.prefix != "config get" || !command.given.has("key"));
    if let Some(text) = to_xml.and_then(|form| xml::convert(&command.prefix, &result.data, form)) {
        result.data = text.into();
    }
    result
}

/// Runs a command, and has it answer in `format`.
fn run_in(
    mon: &Mon,
    work: &mut Work,
    request: &Request<'_>,
    command: &Command,
    format: Format,
) -> CommandResult {
    let Request { peer, input, random, tell, .. } = *request;
    let (prefix, args) = (command.prefix.as_str(), &command.given);
    if tell && let Some(result) = tell::run(mon, prefix, args, format) {
        return result;
    }
    if prefix == "get_command_descriptions" {
        return CommandResult::data(descriptions(mon));
    }
    let Some(spec) = command.spec else {
        // What no manager serves either is refused by name, as by the manager.
        return match spirula_settings::absent::find(prefix).filter(|_| !tell) {
            Some(_) if spirula_settings::absent::is_so_already(prefix) => CommandResult::default(),
            Some(c) => settle(Err(c.refusal())),
            None => CommandResult::err(EINVAL, unknown(prefix)),
        };
    };
    // Who may tell a monitor something was not asked for the rights that a command about the
    // cluster needs ([`crate::access`]).
    if tell && !is_told(spec) {
        let text = format!(
            "'{prefix}' is no command of a monitor itself: it is for the cluster, without 'tell'"
        );
        return CommandResult::err(EINVAL, text);
    }
    if let Err((errno, text)) = args::check(spec.sig, args) {
        return CommandResult::err(errno, text);
    }
    let mut ctx = CommandCtx { mon, work, peer, input, format, random };
    let result = (spec.run)(&mut ctx, &command.args());
    let ends_line =
        format == Format::Json && result.ret == 0 && ENDS_LINE.contains(&spec.prefix().as_str());
    if !ends_line || result.data.is_empty() || result.data.ends_with(b"\n") {
        return result;
    }
    CommandResult { data: [&result.data[..], b"\n"].concat().into(), ..result }
}

/// Commands whose JSON in one line ends in a newline, as 16.2.15 answers
/// (`tests/data/vectors/cli-output`, by which each was looked up, and clients' reports): where it
/// is missing, what a shell prints next lands on the same line. Others have none there either.
const ENDS_LINE: [&str; 21] = [
    "auth get",
    "config-key list",
    "config-key ls",
    "df",
    "fs dump",
    "fs get",
    "fs ls",
    "mds stat",
    "mon dump",
    "mon metadata",
    "mon stat",
    "node ls",
    "osd crush rule dump",
    "osd dump",
    "osd erasure-code-profile get",
    "osd erasure-code-profile ls",
    "osd ls",
    "osd lspools",
    "osd tree",
    "quorum_status",
    "status",
];

/// Is it a command that a monitor is told, of those that are in the cluster's table? As with Ceph
/// since 15, no other is.
pub(crate) fn is_told(spec: &CommandSpec) -> bool {
    spec.flags & FLAG_TELL != 0 || spec.prefix() == "quorum_status"
}

/// What is said of a command that nobody has.
pub(crate) fn unknown(prefix: &str) -> String {
    format!("command not known: '{prefix}'")
}

/// The active manager's command of those words, as it described it.
fn of_manager(state: &State, prefix: &str) -> Option<Value> {
    // The words stand in the text as they are: what does not hold the first of them need not be
    // read.
    let first = format!("\"{}\"", prefix.split(' ').next().unwrap_or_default());
    let all = state.mgr_commands.iter().filter(|c| c.contains(&first));
    all.filter_map(|c| serde_json::from_str(c).ok()).find(|c| descriptor_prefix(c) == prefix)
}

/// Does this ask for a command that the monitors have the manager run?
pub(crate) fn is_for_manager(state: &State, m: &Message) -> bool {
    let served = |c: &Command| c.spec.is_none() && of_manager(state, &c.prefix).is_some();
    m.kind == kind::MON_COMMAND && Command::in_message(m).is_some_and(|c| served(&c))
}

/// Part of capabilities and rights that a command needs at monitors which is not in their own
/// table: one of the manager's, or one that is refused by name.
pub(crate) fn needs_of_others(state: &State, prefix: &str) -> Option<(String, String)> {
    let text =
        |c: &Value, key: &str| c.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let served = of_manager(state, prefix).map(|c| (text(&c, "module"), text(&c, "perm")));
    served.or_else(|| {
        spirula_settings::absent::find(prefix).map(|c| (c.part.to_owned(), c.perm.to_owned()))
    })
}

fn descriptor_prefix(descriptor: &Value) -> String {
    let words = descriptor.get("sig").and_then(Value::as_array);
    let words: Vec<&str> = words.into_iter().flatten().filter_map(Value::as_str).collect();
    words.join(" ")
}

/// The descriptors of the managers' commands.
fn of_managers(mon: &Mon) -> impl Iterator<Item = Value> + use<'_> {
    mon.state.mgr_commands.iter().filter_map(|c| serde_json::from_str(c).ok())
}

/// The answer to `get_command_descriptions`: the manager's commands, then ours.
fn descriptions(mon: &Mon) -> String {
    // What a daemon says of itself is asked for by `tell`; of these Ceph's monitors list `version`
    // alone.
    let of_itself = |s: &CommandSpec| s.flags & FLAG_TELL != 0 && s.prefix() != "version";
    // The manager refuses these by name; while no manager has said what it serves, nothing is sent
    // to one.
    let missing =
        spirula_settings::absent::commands().filter(|_| !mon.state.mgr_commands.is_empty());
    let missing = missing.map(|c| spec::descriptor_of(c.sig, &c.help(), c.part, c.perm, FLAG_MGR));
    // The manager lists these, and answers them, too.
    let of_manager = |s: &CommandSpec| s.flags & FLAG_MGR != 0;
    let own = specs().filter(|s| !of_itself(s) && !of_manager(s)).map(CommandSpec::descriptor);
    let all = of_managers(mon).chain(missing).chain(own);
    let map: serde_json::Map<String, Value> =
        all.enumerate().map(|(i, d)| (format!("cmd{i:03}"), d)).collect();
    Value::Object(map).to_string()
}

/// Longest text of a command, and of why one was refused, that the audit log keeps.
const AUDIT_MAX: usize = 1024;

/// Notes in the audit log who asked for a change, from where, and what became of it.
pub fn audit(work: &mut Work, peer: &Peer, cmd: &[String], result: &CommandResult) {
    let cut = |text: String| text.chars().take(AUDIT_MAX).collect::<String>();
    let outcome = match result.ret {
        0 => "finished".to_owned(),
        ret => format!("refused ({ret}): {}", cut(result.rs.clone())),
    };
    let text = format!(
        "from='{} {}' entity='{}' cmd='{}': {outcome}",
        peer.entity(),
        peer.addrs,
        peer.auth_name(),
        cut(secretless(&cmd.concat())),
    );
    work.log_to("audit", severity::INFO, text);
}

/// Commands that carry keys or values of unknown secrecy are named without them.
fn secretless(cmd: &str) -> String {
    // As it was understood when it was run.
    let prefix = parse(&[cmd.to_owned()]).map(|args| args.str("prefix")).unwrap_or_default();
    if ["config-key", "auth", "join-token"].iter().any(|p| prefix.starts_with(p)) {
        serde_json::json!([{ "prefix": prefix }]).to_string()
    } else {
        format!("[{cmd}]")
    }
}

/// What `ceph ping mon.a` prints.
pub fn ping_text(mon: &Mon) -> String {
    misc::ping_text(mon)
}
