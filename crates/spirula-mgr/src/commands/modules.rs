//! Commands that Ceph's manager serves from its Python modules: balancer, progress, I/O rates,
//! file systems, telemetry. Where Spirula has no such service yet, the answer says that there is
//! nothing, if that is the truth, and otherwise that the service is missing.

use super::spec::{CommandSpec, Ctx, FLAG_POLL, Reply};
use serde_json::{Value, json};
use spirula_format::to_python_pretty;
use spirula_types::errno;

macro_rules! commands {
    ($($module:literal $perm:literal $flags:expr, $sig:literal, $help:literal => $run:expr;)*) => {
        &[$(CommandSpec { sig: $sig, help: $help, module: $module, perm: $perm, flags: $flags, run: $run }),*]
    };
}

pub(super) const COMMANDS: &[CommandSpec] = commands! {
    "service" "r" 0, "service dump", "dump service map" => |c| c.json(&c.mgr.services.map().dump());
    "service" "r" 0, "service status", "dump service state" => |c| c.json(&c.mgr.services.map().status());
    "mgr" "r" 0, "balancer status", "Show balancer status" => balancer_status;
    "mgr" "r" 0, "balancer ls", "List all plans" => |_| Reply::data("[]\n");
    "mgr" "r" 0, "balancer pool ls", "List automatic balancing pools" => |_| Reply::data("[]\n");
    "mgr" "r" 0, "progress", "Show progress of recovery operations" => no_progress;
    "mgr" "r" 0, "progress json", "Show machine readable progress information" => no_progress;
    "mgr" "r" FLAG_POLL, "iostat name=width,type=CephInt,req=false \
        name=print_header,type=CephBool,req=false", "Get IO rates" => iostat;
    "mgr" "r" 0, "orch status name=detail,type=CephBool,req=false \
        name=format,type=CephChoices,strings=plain|json|json-pretty|yaml|xml-pretty|xml,req=false", "Report configured backend and its status" => no_orchestrator;
    "mgr" "r" 0, "orch ls name=service_type,type=CephString,req=false \
        name=service_name,type=CephString,req=false", "List services known to orchestrator" => no_orchestrator;
    "mgr" "r" 0, "orch ps name=hostname,type=CephString,req=false \
        name=service_name,type=CephString,req=false", "List daemons known to orchestrator" => no_orchestrator;
    "mgr" "r" 0, "telemetry status", "Show current configuration" => telemetry_status;
    "mgr" "r" 0, "telemetry show-device", "Show device report" => |_| Reply::data("{}\n");
    "mgr" "r" 0, "restful list-keys", "List all API keys" => |_| Reply::data("{}\n");
    "mgr" "rw" 0, "orch set backend name=module_name,type=CephString,req=false", "Select \
        orchestrator module backend" => no_backend;
    "mgr" "r" 0, "osd pool autoscale-status name=format,type=CephString,req=false", "report on \
        pool pg_num sizing recommendation and intent" => autoscale_status;
};

fn balancer_status(_: &Ctx<'_>) -> Reply {
    Reply::data(
        to_python_pretty(&json!({
            "active": false,
            "last_optimize_duration": "",
            "last_optimize_started": "",
            "mode": "none",
            "no_optimization_needed": false,
            "optimize_result": "",
            "plans": [],
        })) + "\n",
    )
}

/// Nothing here watches what is being recovered; to say that nothing is would be a lie.
fn no_progress(_: &Ctx<'_>) -> Reply {
    Reply::err(
        errno::EOPNOTSUPP,
        "this version has no progress module yet: `ceph -s` and `ceph pg stat` tell what is \
            recovered",
    )
}

fn no_orchestrator(_: &Ctx<'_>) -> Reply {
    Reply::err(errno::ENOENT, "No orchestrator configured (try `ceph orch set backend`)")
}

/// Nothing is ever sent to anybody, which is what is asked for here; to send something is refused.
fn telemetry_status(_: &Ctx<'_>) -> Reply {
    Reply::data(
        to_python_pretty(&json!({
            "channel_basic": false,
            "channel_crash": false,
            "channel_device": false,
            "channel_ident": false,
            "contact": null,
            "description": null,
            "device_url": "",
            "enabled": false,
            "interval": 0,
            "last_opt_revision": 0,
            "last_upload": null,
            "leaderboard": false,
            "log_level": "",
            "log_to_cluster": false,
            "log_to_cluster_level": "",
            "log_to_file": false,
            "organization": null,
            "proxy": null,
            "url": "",
        })) + "\n",
    )
}

/// There is no backend that could be chosen; that none is, is so already.
fn no_backend(c: &Ctx<'_>) -> Reply {
    match c.str("module_name").unwrap_or_default().as_str() {
        "" => Reply::default(),
        name => Reply::invalid(format!("Module '{name}' not found")),
    }
}

/// A table that the tool polls: fixed width, one line per second.
fn iostat(c: &Ctx<'_>) -> Reply {
    if !c.mgr.mgrmap.modules.contains("iostat") {
        let why = "Module 'iostat' is not enabled/loaded (required by command 'iostat'): use `ceph \
            mgr module enable iostat` to enable it";
        return Reply::err(errno::EOPNOTSUPP, why);
    }
    let io = c.mgr.io_rates();
    let (rd_bytes, wr_bytes, rd, wr) = (io.read_bytes, io.write_bytes, io.reads, io.writes);
    let width = usize::try_from(c.int("width").unwrap_or(80)).unwrap_or(80).clamp(60, 1000);
    let mut out = String::new();
    if c.bool("print_header") {
        let titles = ["Read", "Write", "Total", "Read IOPS", "Write IOPS", "Total IOPS"];
        let rule = boxed_rule(titles.len(), width);
        out = format!("{rule}{}{rule}", boxed_row(&titles.map(String::from), width));
    }
    let rate = |v: u64| format!("{}B/s", iec(v));
    let cells = [
        rate(rd_bytes),
        rate(wr_bytes),
        rate(rd_bytes + wr_bytes),
        rd.to_string(),
        wr.to_string(),
        (rd + wr).to_string(),
    ];
    Reply::data(out + &boxed_row(&cells, width))
}

/// Characters between two bars.
fn boxed_cell(columns: usize, width: usize) -> usize {
    (width / columns.max(1)).saturating_sub(1)
}

fn boxed_rule(columns: usize, width: usize) -> String {
    let cell = "-".repeat(boxed_cell(columns, width));
    format!("+{}\n", format!("{cell}+").repeat(columns))
}

fn boxed_row(cells: &[String], width: usize) -> String {
    let cell = boxed_cell(cells.len(), width).saturating_sub(1);
    let mut out = "|".to_owned();
    for text in cells {
        out += &format!("{text:>cell$} |");
    }
    out + "\n"
}

/// A rate with a binary prefix, changing to the next one only above ten of it
/// (`0 `, `9000 `, `12 Ki`).
fn iec(v: u64) -> String {
    for (bits, prefix) in [(60, "Ei"), (50, "Pi"), (40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")] {
        if v >> bits > 10 || (v >> bits == 10 && v & ((1 << bits) - 1) != 0) {
            return format!("{} {prefix}", v >> bits);
        }
    }
    format!("{v} ")
}

fn autoscale_status(c: &Ctx<'_>) -> Reply {
    let rows = c.mgr.autoscale_rows();
    if c.format.is_json() {
        let list: Vec<Value> = rows.iter().map(super::autoscale::Row::json).collect();
        return Reply::data(to_python_pretty(&list.into()) + "\n");
    }
    Reply::data(super::autoscale::table(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_io_table_is_eighty_wide_as_the_tool_expects() {
        let rule = boxed_rule(6, 80);
        assert_eq!(
            rule,
            "+------------+------------+------------+------------+------------+------------+\n"
        );
        let row =
            boxed_row(&["0 B/s", "22 MiB/s", "22 MiB/s", "0", "353", "353"].map(String::from), 80);
        assert_eq!(
            row,
            "|      0 B/s |   22 MiB/s |   22 MiB/s |          0 |        353 |        353 |\n"
        );
    }

    #[test]
    fn rates_change_prefix_above_ten() {
        assert_eq!(iec(0), "0 ");
        assert_eq!(iec(10 << 10), "10240 ");
        assert_eq!(iec((10 << 10) + 1), "10 Ki");
        assert_eq!(iec(22 << 20), "22 Mi");
        assert_eq!(iec(u64::MAX), "15 Ei");
    }
}
