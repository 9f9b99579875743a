//! `fs status`: file systems, who serves them, and how full their pools are.

use super::python;
use super::spec::{CommandSpec, Ctx, Reply};
use crate::foreign::Counters;
use serde_json::{Value, json};
use spirula_format::{Align, TextTable};
use spirula_maps::{MdsInfo, MdsMap, mds_state};

pub(super) const COMMANDS: &[CommandSpec] = &[CommandSpec {
    sig: "fs status name=fs,type=CephString,req=false",
    help: "Show the status of a CephFS filesystem",
    module: "mgr",
    perm: "r",
    flags: 0,
    run: status,
}];

/// A state without what it is a state of.
fn state_of(info: &MdsInfo) -> String {
    let name = mds_state::name(info.state);
    let name = name.split_once(':').map_or(name, |(_, s)| s);
    if info.is_laggy() { format!("{name}(laggy)") } else { name.to_owned() }
}

/// A row of ranks.
struct Row {
    text: [String; 8],
    json: Value,
}

/// What a server holds in memory: names, inodes, directories, capabilities.
fn holds(counters: &Counters) -> [u64; 4] {
    ["mds_mem.dn", "mds_mem.ino", "mds_mem.dir", "mds_mem.cap"].map(|c| counters.latest(c))
}

fn row(rank: String, key: Value, info: &MdsInfo, counters: &Counters) -> Row {
    let follows = info.state == mds_state::STANDBY_REPLAY;
    let (state, [dns, inos, dirs, caps]) = (state_of(info), holds(counters));
    let rate = counters.rate(if follows {
        "mds_log.replayed"
    } else {
        "mds_server.handle_client_request"
    });
    let activity = match info.state {
        mds_state::STANDBY_REPLAY => format!("Evts: {}/s", python::units(rate, 5, true)),
        mds_state::ACTIVE => format!("Reqs: {}/s", python::units(rate, 5, true)),
        _ => String::new(),
    };
    let n = |v: u64| python::units(v, 5, true);
    let text =
        [rank, state.clone(), info.name.clone(), activity, n(dns), n(inos), n(dirs), n(caps)];
    let mut json = json!({
        "rank": key, "name": info.name, "state": state, "dns": dns, "inos": inos, "dirs": dirs, "caps": caps,
    });
    json[if follows { "events" } else { "rate" }] = json!(rate);
    Row { text, json }
}

fn status(c: &Ctx<'_>) -> Reply {
    let only = c.str("fs");
    let shown = |m: &MdsMap| only.as_ref().is_none_or(|name| *name == m.fs_name);
    let map = &*c.fsmap;
    let (mut out, mut ranks, mut pools, mut clients) =
        (String::new(), Vec::new(), Vec::new(), Vec::new());
    let none = Counters::default();
    let counters = |name: &str| c.mgr.counters_of(name).unwrap_or(&none);
    for m in map.filesystems.iter().map(|f| &f.mds_map).filter(|m| shown(m)) {
        let mut table = TextTable::new();
        for (h, align) in [
            ("RANK", Align::Center),
            ("STATE", Align::Center),
            ("MDS", Align::Center),
            ("ACTIVITY", Align::Center),
            ("DNS", Align::Center),
            ("INOS", Align::Center),
            ("DIRS", Align::Center),
            ("CAPS", Align::Center),
        ] {
            table.column(h, align, align);
        }
        let mut sessions = 0;
        let mut rows = Vec::new();
        for rank in &m.in_ranks {
            match m.of_rank(*rank) {
                Some(info) => {
                    let of = counters(&info.name);
                    if sessions == 0 {
                        sessions = of.latest("mds_sessions.session_count");
                    }
                    rows.push(row(rank.to_string(), json!(rank), info, of));
                }
                None => {
                    let mut text: [String; 8] = Default::default();
                    let [first, second, ..] = &mut text;
                    (*first, *second) = (rank.to_string(), "failed".to_owned());
                    rows.push(Row { text, json: json!({"rank": rank, "state": "failed"}) });
                }
            }
        }
        for info in m.in_state(mds_state::STANDBY_REPLAY) {
            let rank = format!("{}-s", info.rank);
            rows.push(row(rank.clone(), json!(rank), info, counters(&info.name)));
        }
        for r in rows {
            table.row(r.text);
            ranks.push(r.json);
        }
        let used = pool_rows(c, m, &mut pools);
        clients.push(json!({"fs": m.fs_name, "clients": sessions}));
        out += &format!("{} - {sessions} clients\n{}\n", m.fs_name, "=".repeat(m.fs_name.len()));
        out += &python::table(&table);
        out += &python::table(&used);
    }
    if let Some(name) = only.filter(|_| clients.is_empty()) {
        return Reply::invalid(format!("Invalid filesystem: {name}"));
    }
    let mut standbys = TextTable::new();
    standbys.column("STANDBY MDS", Align::Center, Align::Center);
    for info in map.standby_daemons.values() {
        standbys.row([info.name.clone()]);
        ranks.push(json!({"name": info.name, "state": "standby"}));
    }
    if c.format.is_json() {
        // What there is nothing of has no key, as in Ceph's.
        let parts = [("clients", clients), ("mdsmap", ranks), ("pools", pools)];
        let parts = parts.into_iter().filter(|(_, list)| !list.is_empty());
        return c
            .json(&Value::Object(parts.map(|(k, list)| (k.to_owned(), list.into())).collect()));
    }
    if !map.standby_daemons.is_empty() {
        out += &python::table(&standbys);
    }
    Reply::data(out)
}

fn pool_rows(c: &Ctx<'_>, m: &MdsMap, all: &mut Vec<Value>) -> TextTable {
    let digest = c.mgr.digest();
    let free = u64::try_from(digest.osd_sum(|o| c.mgr.map.is_in(o)).statfs.available).unwrap_or(0);
    let mut table = TextTable::new();
    for h in ["POOL", "TYPE", "USED", "AVAIL"] {
        table.column(h, Align::Center, Align::Center);
    }
    for (id, kind) in std::iter::once((m.metadata_pool, "metadata"))
        .chain(m.data_pools.iter().map(|p| (*p, "data")))
    {
        let Some(pool) = c.mgr.map.pool(id) else { continue };
        let used = digest.pools.get(&id).map_or(0, |p| p.stat.store_stats.allocated);
        let used = u64::try_from(used).unwrap_or(0);
        let avail = (free as f64 / super::osd::raw_rate(pool, &c.mgr.map).max(1.0)) as u64;
        let name = c.mgr.map.pool_name(id);
        let bytes = |n: u64| python::units(n, 5, false);
        table.row([name.to_owned(), kind.to_owned(), bytes(used), bytes(avail)]);
        all.push(json!({"id": id, "name": name, "type": kind, "used": used, "avail": avail}));
    }
    table
}
