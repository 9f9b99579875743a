//! Crash reports: what daemons leave behind when they die, listed until somebody has looked.
//!
//! Reports are JSON documents under the config-key prefix that Ceph's crash module uses, so
//! `ceph-crash` and `ceph crash post -i FILE` work unchanged; Ceph's manager serves these
//! commands, here the monitor does, since it keeps the reports. Facts: Ceph 16.2
//! `src/pybind/mgr/crash/module.py` (commands, texts), `src/ceph-crash.in` (who posts).

use super::{Args, CommandResult, CommandSpec, Outcome, settle};
use crate::kv::Kv;
use crate::mon::CommandCtx;
use bytes::Bytes;
use serde_json::{Map, Value, json};
use spirula_encoding::UTime;
use spirula_format::{Align, TextTable, to_python_pretty};
use spirula_types::errno::{E2BIG, EINVAL};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Prefix of the reports' config-keys.
const PREFIX: &str = "mgr/crash/crash/";
/// Longest report taken, bytes.
const REPORT_MAX: usize = 256 << 10;
/// Most values in a report, and how deep they are in one another: in memory each takes far more
/// than the two bytes that it may have as text, and all reports are read whenever somebody lists
/// them. What daemons write has some hundred.
const VALUES_MAX: usize = 4096;
const DEPTH_MAX: usize = 16;
/// Most reports kept, and their bytes; the oldest go first, and before them those of a time that is
/// to come. All of them can be archived in one entry of the monitors' log.
const REPORTS_MAX: usize = 1000;
const REPORTS_BYTES: usize = 6 << 20;
/// A clock of another host may be ahead by so much, seconds.
const AHEAD: u32 = 3600;
/// What a value takes beside its text, bytes, about.
const VALUE_COST: usize = 32;
/// A crash is worth a health warning for so long, seconds (`mgr/crash/warn_recent_interval`).
const RECENT: u32 = 14 * 86_400;

pub(super) const SPECS: &[CommandSpec] = &[
    CommandSpec {
        sig: "crash ls",
        help: "Show new and archived crash dumps",
        module: "mgr",
        perm: "r",
        flags: 0,
        run: ls,
    },
    CommandSpec {
        sig: "crash ls-new",
        help: "Show new crash dumps",
        module: "mgr",
        perm: "r",
        flags: 0,
        run: ls_new,
    },
    CommandSpec {
        sig: "crash info name=id,type=CephString",
        help: "show crash dump metadata",
        module: "mgr",
        perm: "r",
        flags: 0,
        run: info,
    },
    CommandSpec {
        sig: "crash post",
        help: "Add a crash dump (use -i <jsonfile>)",
        module: "mgr",
        perm: "rw",
        flags: 0,
        run: post,
    },
    CommandSpec {
        sig: "crash rm name=id,type=CephString",
        help: "Remove a saved crash <id>",
        module: "mgr",
        perm: "rw",
        flags: 0,
        run: rm,
    },
    CommandSpec {
        sig: "crash prune name=keep,type=CephString",
        help: "Remove crashes older than <keep> days",
        module: "mgr",
        perm: "rw",
        flags: 0,
        run: prune,
    },
    CommandSpec {
        sig: "crash archive name=id,type=CephString",
        help: "Acknowledge a crash and silence health warning(s)",
        module: "mgr",
        perm: "w",
        flags: 0,
        run: archive,
    },
    CommandSpec {
        sig: "crash archive-all",
        help: "Acknowledge all new crashes and silence health warning(s)",
        module: "mgr",
        perm: "w",
        flags: 0,
        run: archive_all,
    },
    CommandSpec {
        sig: "crash stat",
        help: "Summarize recorded crashes",
        module: "mgr",
        perm: "r",
        flags: 0,
        run: stat,
    },
    CommandSpec {
        sig: "crash json_report name=hours,type=CephString",
        help: "Crashes in the last <hours> hours",
        module: "mgr",
        perm: "r",
        flags: 0,
        run: json_report,
    },
];

/// Longest name of a daemon, a host and a time in a line of health, bytes.
const WORD_MAX: usize = 80;

/// The id of the report that this key is of.
pub(crate) fn id_of(key: &str) -> Option<&str> {
    key.strip_prefix(PREFIX)
}

/// What is known of a report without reading it again ([`crate::kv`]).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Noted {
    pub stamp: UTime,
    /// Nobody has archived it.
    pub is_new: bool,
    /// What it counts against [`REPORTS_BYTES`].
    cost: usize,
    /// What health says of it.
    pub line: String,
}

impl Noted {
    /// Reads a report; `None` for what is none: somebody set the key by hand.
    pub fn of(report: &Bytes) -> Option<Self> {
        let crash = Crash::of("", report)?;
        let word = |field: &str, otherwise: &str| match crash.text(field) {
            "" => otherwise.to_owned(),
            text => text.chars().take(WORD_MAX).collect(),
        };
        let (who, host) =
            (word("entity_name", "unidentified daemon"), word("utsname_hostname", "(unknown)"));
        let line = format!("{who} crashed on host {host} at {}", word("timestamp", ""));
        Some(Self { stamp: crash.stamp, is_new: crash.is_new(), cost: cost(report), line })
    }
}

/// A report as kept.
struct Crash {
    id: String,
    stamp: UTime,
    fields: Map<String, Value>,
}

impl Crash {
    fn of(id: &str, report: &Bytes) -> Option<Self> {
        // When it was archived is added to it.
        if !is_plain(report, 1) {
            return None;
        }
        let fields: Map<String, Value> = serde_json::from_slice(report).ok()?;
        let stamp = fields.get("timestamp").and_then(Value::as_str).and_then(UTime::from_iso)?;
        Some(Self { id: id.to_owned(), stamp, fields })
    }

    fn text(&self, field: &str) -> &str {
        self.fields.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    fn is_new(&self) -> bool {
        !self.fields.contains_key("archived")
    }
}

/// How many values a JSON text has, about, and how deep they are in one another.
fn values(json: &[u8]) -> (usize, usize) {
    let (mut count, mut depth, mut deepest) = (0, 0_usize, 0);
    let (mut quoted, mut escaped) = (false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b',' => count += 1,
            b'[' | b'{' => (count, depth) = (count + 1, depth + 1),
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    (count, deepest)
}

/// Is it no more than a report may be, with so many values that were added here?
fn is_plain(json: &[u8], added: usize) -> bool {
    let (count, depth) = values(json);
    json.len() <= REPORT_MAX * 2 && count <= VALUES_MAX + added && depth <= DEPTH_MAX
}

/// What a report counts against [`REPORTS_BYTES`].
fn cost(report: &[u8]) -> usize {
    report.len() + values(report).0 * VALUE_COST
}

/// The reports' ids, oldest first.
fn by_age(kv: &Kv) -> Vec<(&String, &Noted)> {
    let mut all: Vec<_> = kv.crashes().iter().collect();
    all.sort_by_key(|(id, noted)| (noted.stamp, *id));
    all
}

fn report(kv: &Kv, id: &str) -> Option<Crash> {
    Crash::of(id, kv.get(&format!("{PREFIX}{id}"))?)
}

/// Those reports that are wanted, oldest first, read whole. What cannot be read as one (somebody
/// set the key by hand) is left out.
fn crashes(kv: &Kv, wanted: impl Fn(&Noted) -> bool) -> Vec<Crash> {
    by_age(kv)
        .into_iter()
        .filter(|(_, noted)| wanted(noted))
        .filter_map(|(id, _)| report(kv, id))
        .collect()
}

/// Reports that nobody has archived, of the last two weeks: one line each, for `health`.
pub(crate) fn recent(known: &BTreeMap<String, Noted>, now: UTime) -> Vec<String> {
    let fresh = |c: &&Noted| c.is_new && now.sec.saturating_sub(c.stamp.sec) < RECENT;
    let mut recent: Vec<(UTime, &String, &Noted)> =
        known.iter().filter(|(_, c)| fresh(c)).map(|(id, c)| (c.stamp, id, c)).collect();
    recent.sort_by_key(|(stamp, id, _)| (*stamp, *id));
    recent.into_iter().map(|(_, _, c)| c.line.clone()).collect()
}

fn table(ctx: &CommandCtx<'_>, keep: impl Fn(&Noted) -> bool) -> CommandResult {
    let all = crashes(&ctx.work.state.kv, keep);
    if ctx.format.is_json() {
        let list = Value::Array(all.into_iter().map(|c| Value::Object(c.fields)).collect());
        return CommandResult::data(to_python_pretty(&list) + "\n");
    }
    if all.is_empty() {
        return CommandResult::default();
    }
    let mut t = TextTable::new();
    for heading in ["ID", "ENTITY", "NEW"] {
        t.column(heading, Align::Left, Align::Left);
    }
    for c in &all {
        let who = Some(c.text("entity_name")).filter(|who| !who.is_empty()).unwrap_or("unknown");
        t.row([c.id.as_str(), who, if c.is_new() { "*" } else { "" }]);
    }
    CommandResult::data(t.to_string())
}

fn ls(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    table(ctx, |_| true)
}

fn ls_new(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    table(ctx, |c| c.is_new)
}

fn found(ctx: &CommandCtx<'_>, args: &Args) -> Result<Crash, (i32, String)> {
    let id = args.str("id");
    report(&ctx.work.state.kv, &id).ok_or_else(|| (EINVAL, format!("crash info: {id} not found")))
}

fn info(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    settle(
        found(ctx, args)
            .map(|c| CommandResult::data(to_python_pretty(&Value::Object(c.fields)) + "\n")),
    )
}

fn post(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let bad = |why: &str| (EINVAL, format!("malformed crash metadata: {why}"));
        if ctx.input.is_empty() {
            return Err(bad("no report given; pass one with -i <file> or -i - for stdin"));
        }
        if ctx.input.len() > REPORT_MAX {
            return Err((
                E2BIG,
                format!(
                    "a crash report may have {REPORT_MAX} bytes, this one has {}",
                    ctx.input.len()
                ),
            ));
        }
        if !is_plain(ctx.input, 0) {
            return Err((
                E2BIG,
                format!(
                    "a crash report may have {VALUES_MAX} values, {DEPTH_MAX} deep in one another; \
                        this one has more"
                ),
            ));
        }
        let value: Value = serde_json::from_slice(ctx.input).map_err(|e| bad(&e.to_string()))?;
        let Value::Object(fields) = value else { return Err(bad("not a JSON object")) };
        let text = |name: &str| fields.get(name).and_then(Value::as_str).filter(|t| !t.is_empty());
        // Who crashed need not be said, as with Ceph.
        for needed in ["crash_id", "timestamp"] {
            text(needed).ok_or_else(|| bad(&format!("\"{needed}\" is missing or no text")))?;
        }
        let id = text("crash_id").unwrap_or_default();
        if id.len() > 200 || !id.bytes().all(|b| b.is_ascii_graphic() && b != b'/') {
            return Err(bad("\"crash_id\" must be at most 200 printable characters without '/'"));
        }
        let stamp = text("timestamp").unwrap_or_default();
        if UTime::from_iso(stamp).is_none() {
            return Err(bad(&format!(
                "\"timestamp\" is '{stamp}', should be like 2026-11-21T15:24:12.130085Z"
            )));
        }
        let key = format!("{PREFIX}{id}");
        let kv = Arc::make_mut(&mut ctx.work.state.kv);
        if !kv.contains_key(&key) {
            let report = Bytes::from(Value::Object(fields).to_string());
            let mut all: Vec<(String, Noted)> =
                by_age(kv).into_iter().map(|(id, noted)| (id.clone(), noted.clone())).collect();
            // Whoever posts says of when it is: a report of tomorrow would outlive all others.
            let soonest = ctx.work.now.sec.saturating_add(AHEAD);
            let ahead = |c: &Noted| c.stamp.sec.checked_sub(soonest).filter(|by| *by > 0);
            all.sort_by_key(|(_, c)| ahead(c).map_or((true, 0), |by| (false, u32::MAX - by)));
            // What is no report, and so is never pushed out, does not push out others.
            let (mut left, mut bytes) = (all.len(), cost(&report));
            bytes += all.iter().map(|(_, c)| c.cost).sum::<usize>();
            for (id, oldest) in &all {
                if left < REPORTS_MAX && bytes <= REPORTS_BYTES {
                    break;
                }
                (left, bytes) = (left - 1, bytes - oldest.cost);
                kv.remove(&format!("{PREFIX}{id}"));
            }
            kv.insert(key, report);
        }
        Ok(CommandResult::default())
    };
    settle(run())
}

fn rm(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    Arc::make_mut(&mut ctx.work.state.kv).remove(&format!("{PREFIX}{}", args.str("id")));
    CommandResult::default()
}

fn prune(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let keep = args.str("keep");
    let Some(seconds) = keep.parse::<u32>().ok().and_then(|d| d.checked_mul(86_400)) else {
        return CommandResult::err(
            EINVAL,
            format!("keep must be a number of days from 0 to 49710, not '{keep}'"),
        );
    };
    let oldest = ctx.work.now.sec.saturating_sub(seconds);
    let kv = Arc::make_mut(&mut ctx.work.state.kv);
    let old: Vec<String> = kv
        .crashes()
        .iter()
        .filter(|(_, c)| c.stamp.sec < oldest)
        .map(|(id, _)| id.clone())
        .collect();
    for id in old {
        kv.remove(&format!("{PREFIX}{id}"));
    }
    CommandResult::default()
}

fn keep_archived(ctx: &mut CommandCtx<'_>, mut crash: Crash) {
    if crash.is_new() {
        let now = ctx.work.now.to_iso().replace('T', " ").replace("+0000", "");
        crash.fields.insert("archived".to_owned(), json!(now));
        let value = Bytes::from(Value::Object(crash.fields).to_string());
        Arc::make_mut(&mut ctx.work.state.kv).insert(format!("{PREFIX}{}", crash.id), value);
    }
}

fn archive(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    settle(found(ctx, args).map(|c| {
        keep_archived(ctx, c);
        CommandResult::default()
    }))
}

fn archive_all(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    for c in crashes(&ctx.work.state.kv, |c| c.is_new) {
        keep_archived(ctx, c);
    }
    CommandResult::default()
}

fn stat(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let all = by_age(&ctx.work.state.kv);
    let mut out = format!("{} crashes recorded\n", all.len());
    for days in [1, 3, 7] {
        let old: Vec<&String> = all
            .iter()
            .filter(|(_, c)| ctx.work.now.sec.saturating_sub(c.stamp.sec) > days * 86_400)
            .map(|(id, _)| *id)
            .collect();
        if !old.is_empty() {
            out.push_str(&format!("{} older than {days} days old:\n", old.len()));
            old.iter().for_each(|id| out.push_str(&format!("{id}\n")));
        }
    }
    CommandResult::data(out)
}

fn json_report(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let hours = args.str("hours");
    let Some(seconds) = hours.parse::<u32>().ok().and_then(|h| h.checked_mul(3600)) else {
        return CommandResult::err(
            EINVAL,
            format!("hours must be from 0 to 1193046, not '{hours}'"),
        );
    };
    let since = ctx.work.now.sec.saturating_sub(seconds);
    let mut by_program: BTreeMap<String, u64> = BTreeMap::new();
    for crash in crashes(&ctx.work.state.kv, |c| c.stamp.sec >= since) {
        let name = Some(crash.text("process_name")).filter(|n| !n.is_empty()).unwrap_or("unknown");
        *by_program.entry(name.to_owned()).or_insert(0) += 1;
    }
    // Where Ceph's manager tells it.
    CommandResult::ok(serde_json::json!(by_program).to_string())
}
