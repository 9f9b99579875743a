//! `ceph device …`: the disks that daemons named in their metadata, and who is on which.
//!
//! In Ceph the manager answers these from what its devicehealth module keeps; here they follow from
//! the metadata alone. A disk is known by its id (maker, model, serial number): one without a
//! serial number has none, and is not listed, as with Ceph.

use super::{Args, CommandResult, CommandSpec, json_out, text_or_json};
use crate::absent;
use crate::mon::CommandCtx;
use crate::state::Metadata;
use serde_json::{Value, json};
use spirula_format::{Align, TextTable};
use spirula_types::errno::ENOENT;
use std::collections::{BTreeMap, BTreeSet};

macro_rules! commands {
    ($($sig:literal, $perm:literal, $help:literal => $run:expr;)*) => {
        &[$(CommandSpec { sig: $sig, help: $help, module: "mgr", perm: $perm, flags: 0, run: $run }),*]
    };
}

pub(super) const SPECS: &[CommandSpec] = commands! {
    "device ls", "r", "Show devices" => ls;
    "device info name=devid,type=CephString", "r", "Show information about a device" => info;
    "device ls-by-daemon name=who,type=CephString", "r", "Show devices associated with a daemon" => ls_by_daemon;
    "device ls-by-host name=host,type=CephString", "r", "Show devices on a host" => ls_by_host;
    "device get-health-metrics name=devid,type=CephString name=sample,type=CephString,req=false", "r", "Show stored device metrics for the device (none are read in this version)" => one_unread;
    "device scrape-health-metrics name=devid,type=CephString,req=false", "r", "Scrape and store \
        device health metrics (not in this version)" => unread;
    "device check-health", "rw", "Check life expectancy of devices (not in this version)" => unread;
};

const UNREAD: &str =
    "this version reads no SMART data: use smartctl on the disks that `ceph device ls` names";

/// A disk: where it is (host, name, path) and which daemons are on it.
#[derive(Default)]
struct Device {
    places: BTreeSet<(String, String, String)>,
    daemons: BTreeSet<String>,
}

/// `a=x,b=y` as pairs.
fn pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split(',')
        .filter_map(|p| p.split_once('='))
        .filter(|(name, value)| !name.is_empty() && !value.is_empty())
}

/// The disks by id.
fn devices(ctx: &CommandCtx<'_>) -> BTreeMap<String, Device> {
    let state = &ctx.work.state;
    let osds = state.osd_metadata.iter().map(|(id, m)| (format!("osd.{id}"), m));
    let known =
        ctx.mon.quorum.facts.iter().filter(|(name, _)| state.monmap.mons.contains_key(*name));
    let mons = known.map(|(name, m)| (format!("mon.{name}"), m));
    let mgrs = state.mgr_metadata.iter().map(|(name, m)| (format!("mgr.{name}"), m));
    let mut out: BTreeMap<String, Device> = BTreeMap::new();
    for (daemon, m) in osds.chain(mons).chain(mgrs) {
        let field = |m: &Metadata, key: &str| m.get(key).cloned().unwrap_or_default();
        let (host, paths) = (field(m, "hostname"), field(m, "device_paths"));
        for (disk, id) in pairs(&field(m, "device_ids")) {
            let device = out.entry(id.to_owned()).or_default();
            let path = pairs(&paths)
                .find(|(d, _)| *d == disk)
                .map(|(_, p)| p.to_owned())
                .unwrap_or_default();
            device.places.insert((host.clone(), disk.to_owned(), path));
            device.daemons.insert(daemon.clone());
        }
    }
    out
}

fn row(id: &str, d: &Device) -> Value {
    let place = |(host, dev, path): &(String, String, String)| json!({"host": host, "dev": dev, "path": path});
    json!({"devid": id, "location": d.places.iter().map(place).collect::<Vec<_>>(), "daemons": d.daemons})
}

fn joined<'a>(words: impl Iterator<Item = &'a String>) -> String {
    words.map(String::as_str).collect::<Vec<_>>().join(" ")
}

/// A table with these headings; each device gives its cells but the first.
fn table(
    headings: &[&str],
    chosen: &BTreeMap<String, Device>,
    cells: impl Fn(&Device) -> Vec<String>,
) -> String {
    let mut t = TextTable::new();
    for heading in headings {
        t.column(heading, Align::Left, Align::Left);
    }
    for (id, d) in chosen {
        let mut row = vec![id.clone()];
        row.extend(cells(d));
        t.row(row);
    }
    t.to_string()
}

fn rows(chosen: &BTreeMap<String, Device>) -> Value {
    chosen.iter().map(|(id, d)| row(id, d)).collect()
}

/// What needs SMART data of a device. One that there is not is said first, as everywhere.
fn one_unread(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let id = args.str("devid");
    if !devices(ctx).contains_key(&id) {
        return CommandResult::err(ENOENT, format!("device {id} not found"));
    }
    super::settle(Err(absent::refusal(UNREAD)))
}

/// The same of all devices, or of one: where there is none, there is nothing to be done.
fn unread(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    match (args.has("devid"), devices(ctx).is_empty()) {
        (true, _) => one_unread(ctx, args),
        (_, true) => CommandResult::default(),
        _ => super::settle(Err(absent::refusal(UNREAD))),
    }
}

fn ls(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let all = devices(ctx);
    let places = |d: &Device| {
        d.places.iter().map(|(h, n, _)| format!("{h}:{n}")).collect::<Vec<_>>().join(" ")
    };
    // Wear and life expectancy come from SMART data, which nothing here reads.
    let cells =
        |d: &Device| vec![places(d), joined(d.daemons.iter()), String::new(), String::new()];
    let headings = ["DEVICE", "HOST:DEV", "DAEMONS", "WEAR", "LIFE EXPECTANCY"];
    text_or_json(ctx, || table(&headings, &all, cells), || rows(&all))
}

fn info(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let id = args.str("devid");
    let Some(d) = devices(ctx).remove(&id) else {
        return CommandResult::err(ENOENT, format!("device {id} not found"));
    };
    if ctx.format.is_json() {
        return json_out(ctx, &row(&id, &d));
    }
    let mut text = format!("device {id}\n");
    for (host, dev, path) in &d.places {
        text += &format!("attachment {host} {dev} {path}\n");
    }
    for daemon in &d.daemons {
        text += &format!("daemon {daemon}\n");
    }
    CommandResult::data(text)
}

fn ls_by_daemon(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let who = args.str("who");
    let mut all = devices(ctx);
    all.retain(|_, d| d.daemons.contains(&who));
    let places = |d: &Device| {
        d.places.iter().map(|(h, n, _)| format!("{h}:{n}")).collect::<Vec<_>>().join(" ")
    };
    let headings = ["DEVICE", "HOST:DEV", "EXPECTED FAILURE"];
    text_or_json(ctx, || table(&headings, &all, |d| vec![places(d), String::new()]), || rows(&all))
}

fn ls_by_host(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let host = args.str("host");
    let mut all = devices(ctx);
    all.retain(|_, d| d.places.iter().any(|(h, ..)| *h == host));
    let here =
        |d: &Device| joined(d.places.iter().filter(|(h, ..)| *h == host).map(|(_, dev, _)| dev));
    let headings = ["DEVICE", "DEV", "DAEMONS", "EXPECTED FAILURE"];
    let cells = |d: &Device| vec![here(d), joined(d.daemons.iter()), String::new()];
    text_or_json(ctx, || table(&headings, &all, cells), || rows(&all))
}
