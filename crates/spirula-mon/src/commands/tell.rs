//! What a monitor answers about itself: `ceph tell mon.N …` and its admin socket.

use super::{Args, CommandResult, CommandSpec, FLAG_TELL, specs};
use crate::mon::Mon;
use crate::quorum::Ask;
use serde_json::{Value, json};
use spirula_format::{Format, to_json};
use spirula_settings::common;
use spirula_types::errno::EOPNOTSUPP;
use std::collections::BTreeMap;

const COMMANDS: &[(&str, &str)] = &[
    (
        "perf dump name=logger,type=CephString,req=false name=counter,type=CephString,req=false",
        "dump perfcounters value",
    ),
    (
        "perf schema name=logger,type=CephString,req=false name=counter,type=CephString,req=false",
        "dump perfcounters schema",
    ),
    ("dump_ops_in_flight", "show the ops currently in flight"),
    ("ops", "show the ops currently in flight"),
    (
        "add_bootstrap_peer_hint name=addr,type=CephIPAddr",
        "add peer address as potential bootstrap peer for cluster bringup",
    ),
    ("dump_mempools", "get mempool stats"),
    (
        "smart name=devid,type=CephString,req=false",
        "query health metrics for underlying device (refused where there is one to ask: no SMART \
            data is read)",
    ),
    ("compact", "cause compaction of the monitor's storage"),
    (
        "connection scores dump",
        "show the scores used in connectivity-based elections (not in this version)",
    ),
    (
        "connection scores reset",
        "reset the scores used in connectivity-based elections (not in this version)",
    ),
    ("quorum enter", "force monitor back into quorum (not in this version)"),
    ("quorum exit", "force monitor out of the quorum (not in this version)"),
    (
        "sync_force name=yes_i_really_mean_it,type=CephBool,req=false",
        "force sync of and clear monitor store (not in this version)",
    ),
];

/// Counters: name, short name, meaning.
const COUNTERS: &[(&str, &str, &str)] = &[
    ("num_sessions", "sess", "open sessions"),
    ("osdmap_epoch", "map", "epoch of the OSD map"),
    ("election_epoch", "elec", "epoch of the last election"),
    ("commits", "cmt", "changes made durable"),
    ("waiting", "wait", "requests that wait for a commit"),
];

/// Is this answered here, without the cluster's state?
pub(super) fn is_own(prefix: &str) -> bool {
    let own = COMMANDS.iter().chain(common::COMMANDS);
    own.map(|(sig, _)| common::words(sig)).any(|words| words == prefix)
}

/// What [`is_own`] names.
#[cfg(test)]
pub(super) fn own() -> impl Iterator<Item = String> {
    COMMANDS.iter().chain(common::COMMANDS).map(|(sig, _)| common::words(sig))
}

/// Requests that wait, with whose they are: `dump_ops_in_flight`, and `ops` as Ceph calls it at
/// monitors.
fn ops(mon: &Mon) -> Value {
    let one = |(ask, at): (&Ask, &str)| {
        let s = mon.sessions.get(&ask.conn);
        let who = s.map_or_else(
            || "nobody".to_owned(),
            |s| format!("{} ({})", s.peer.auth_name(), s.peer.entity()),
        );
        let what = super::Command::in_message(&ask.message).map(|c| c.prefix);
        let what = what.unwrap_or_else(|| format!("message type {}", ask.message.kind));
        json!({
            "description": format!("mon_request({what} from {who}, tid {})", ask.message.tid),
            "type_data": {"flag_point": at, "tid": ask.message.tid, "source": who},
        })
    };
    let all: Vec<Value> = mon.open_asks().map(one).collect();
    json!({"num_ops": all.len(), "ops": all})
}

/// Is this the order to write the store anew?
pub(super) fn asks_to_compact(prefix: &str) -> bool {
    prefix == "compact"
}

/// Answers what [`is_own`] names; `None` for anything else.
pub(super) fn run(mon: &Mon, prefix: &str, args: &Args, format: Format) -> Option<CommandResult> {
    // No text form: what is not asked for in one line comes indented.
    let format = if format.is_json() { format } else { Format::JsonPretty };
    let data = |v: &Value| CommandResult::data(to_json(v, format));
    Some(match prefix {
        "get_command_descriptions" => {
            let cluster = specs().filter(|s| s.flags & FLAG_TELL != 0 && !is_own(&s.prefix()));
            let own = COMMANDS.iter().chain(common::COMMANDS);
            let own = own.map(|(sig, help)| common::descriptor(sig, help, "mon", "rw"));
            let all = own.chain(cluster.map(CommandSpec::descriptor)).enumerate();
            let map: Value = Value::Object(all.map(|(i, d)| (format!("cmd{i:03}"), d)).collect());
            CommandResult::data(map.to_string())
        }
        "help" => {
            let cluster =
                specs().filter(|s| s.flags & FLAG_TELL != 0).map(|s| (s.prefix(), s.help));
            let own = COMMANDS
                .iter()
                .chain(common::COMMANDS)
                .map(|(sig, help)| (common::words(sig), *help));
            let all: BTreeMap<String, &str> = cluster.chain(own).collect();
            data(&json!(all))
        }
        "perf dump" => {
            let row: serde_json::Map<String, Value> = COUNTERS
                .iter()
                .map(|(name, ..)| ((*name).to_owned(), counter(mon, name).into()))
                .collect();
            data(&common::chosen(json!({"mon": row}), &args.0))
        }
        "perf schema" => {
            let row = |(name, nick, meaning): &(&str, &str, &str)| {
                let v = json!({"type": 2, "metric_type": "gauge", "value_type": "integer", "description": meaning,
                    "nick": nick, "priority": 8, "units": "none"});
                ((*name).to_owned(), v)
            };
            let all = json!({"mon": COUNTERS.iter().map(row).collect::<serde_json::Map<_, _>>()});
            data(&common::chosen(all, &args.0))
        }
        "dump_ops_in_flight" | "ops" => data(&ops(mon)),
        // One that is in the monitors' table knows its peers.
        "add_bootstrap_peer_hint" if mon.member() != 0 => {
            CommandResult::data("mon already active; ignoring bootstrap hint\n")
        }
        "add_bootstrap_peer_hint" => {
            absent("a new monitor finds the others by the token that it joins with")
        }
        "dump_mempools" => {
            let s = &mon.state;
            let kept =
                s.incrementals.values().chain(s.fulls.values()).map(|b| b.len()).sum::<usize>();
            data(&common::mempools(&[("osdmap", kept + s.osdmap.bytes().len())]))
        }
        // As with Ceph, a device without an identity is not asked.
        "smart" if mon.metadata.get("device_ids").is_none_or(String::is_empty) => data(&json!({})),
        "smart" => {
            absent("no SMART data is read here: use smartctl on the disk that mon metadata names")
        }
        // Done before this is said ([`asks_to_compact`]).
        "compact" => CommandResult::data("compacted log in 0 seconds\n"),
        "connection scores dump" | "connection scores reset" => {
            absent("elections go by votes alone: there are no scores")
        }
        "quorum enter" | "quorum exit" => {
            absent("a monitor is in the quorum while it runs: stop and start its process")
        }
        "sync_force" => absent("a monitor is filled again from the others by 'spirula mon rejoin'"),
        _ => match common::run(prefix, &args.0, &mut mon.settings.borrow_mut())? {
            Ok(r) => data(&r.value).with_rs(r.status),
            Err((errno, why)) => CommandResult::err(errno, why),
        },
    })
}

/// The refusal of an order of Ceph's monitors that there is not.
fn absent(why: &str) -> CommandResult {
    CommandResult::err(EOPNOTSUPP, why)
}

fn counter(mon: &Mon, name: &str) -> u64 {
    match name {
        "num_sessions" => mon.sessions.len() as u64,
        "osdmap_epoch" => u64::from(mon.state.osdmap.epoch),
        "election_epoch" => u64::from(mon.quorum.election_epoch),
        "commits" => mon.commits(),
        _ => mon.waiting() as u64,
    }
}
