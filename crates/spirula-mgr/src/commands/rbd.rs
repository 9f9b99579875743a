//! What of Ceph's rbd_support module there is: what images do ([`crate::images`]), and its lists,
//! which are empty.
//!
//! The module also does long work on images for others. This manager does not: tasks and schedules
//! are refused when somebody gives them ([`spirula_settings::absent`], in words that make drivers
//! do the work themselves), so that none is ever there to be listed, shown or ended.

use super::spec::{CommandSpec, Ctx, Reply};
use crate::images::{COUNTERS, Shown};
use serde_json::{Map, Value, json};
use spirula_auth::caps::Args;
use spirula_messages::cluster::images::ImageKey;
use spirula_types::{PoolId, errno};

/// Images that are shown at most; as in Ceph.
const SHOWN_MAX: usize = 64;

macro_rules! commands {
    ($($sig:literal, $help:literal => $run:expr;)*) => {
        &[$(CommandSpec { sig: $sig, help: $help, module: "mgr", perm: "r", flags: 0, run: $run }),*]
    };
}

pub(super) const COMMANDS: &[CommandSpec] = commands! {
    "rbd perf image stats name=pool_spec,type=CephString,req=false \
        name=sort_by,type=CephChoices,strings=write_ops|write_bytes|write_latency|read_ops|read_bytes|read_latency,req=false", "Retrieve current RBD IO performance stats" => |c| perf(c, "stat", |s| s.rates.map(Value::from).to_vec());
    "rbd perf image counters name=pool_spec,type=CephString,req=false \
        name=sort_by,type=CephChoices,strings=write_ops|write_bytes|write_latency|read_ops|read_bytes|read_latency,req=false", "Retrieve current RBD IO performance counters" => |c| perf(c, "counter", |s| s.totals.map(Value::from).to_vec());
    "rbd task list name=task_id,type=CephString,req=false", "List pending or running asynchronous \
        tasks" => tasks;
    "rbd task cancel name=task_id,type=CephString", "Cancel a pending or running asynchronous \
        task" => no_task;
    "rbd mirror snapshot schedule list name=level_spec,type=CephString,req=false", "List rbd \
        mirror snapshot schedule" => |c| of_level(c, "{}\n");
    "rbd mirror snapshot schedule status name=level_spec,type=CephString,req=false", "Show rbd \
        mirror snapshot schedule status" => |c| of_level(c, "{\"scheduled_images\": []}\n");
    "rbd trash purge schedule list name=level_spec,type=CephString,req=false", "List rbd trash \
        purge schedule" => |c| of_level(c, "{}\n");
    "rbd trash purge schedule status name=level_spec,type=CephString,req=false", "Show rbd trash \
        purge schedule status" => |c| of_level(c, "{\"scheduled\": []}\n");
};

fn tasks(c: &Ctx<'_>) -> Reply {
    if c.str("task_id").is_some() { no_task(c) } else { Reply::data("[]\n") }
}

fn no_task(c: &Ctx<'_>) -> Reply {
    Reply::err(errno::ENOENT, format!("No such task {}", c.str("task_id").unwrap_or_default()))
}

/// An empty list for a pool, a namespace or an image (`POOL[/NAMESPACE][/IMAGE]`), if the pool is
/// one.
fn of_level(c: &Ctx<'_>, empty: &str) -> Reply {
    let spec = c.str("level_spec").unwrap_or_default();
    let pool = spec.split('/').next().unwrap_or_default();
    if !pool.is_empty() && c.mgr.map.pool_by_name(pool).is_none() {
        return Reply::err(errno::ENOENT, format!("Pool {pool} does not exist"));
    }
    Reply::data(empty)
}

/// A pool and, behind a slash, a namespace of it, the usual one where none is named. `None` for all
/// pools.
fn place(spec: &str) -> Result<Option<(&str, &str)>, String> {
    match spec.split_once('/') {
        _ if spec.is_empty() => Ok(None),
        None => Ok(Some((spec, ""))),
        Some((pool, namespace))
            if !pool.is_empty() && !namespace.is_empty() && !namespace.contains('/') =>
        {
            Ok(Some((pool, namespace)))
        }
        Some(_) => Err(format!("Invalid pool spec: {spec}")),
    }
}

/// Pool and namespace of a command about block images, as `profile rbd pool=P namespace=N` compares
/// them: those it names, and none at all for figures of all pools. `None` where there is nothing of
/// any pool to be seen or done.
pub(super) fn scope(command: &str, args: &Args) -> Option<Args> {
    if !command.starts_with("rbd ") {
        return None;
    }
    let spec = ["pool_spec", "level_spec", "image_spec", "image_id_spec"]
        .iter()
        .find_map(|k| Some((*k, args.get(*k)?)));
    let (kind, text) = match spec {
        Some(spec) => spec,
        None if command.starts_with("rbd perf ") => return Some(named("", "")),
        None => return None,
    };
    let words: Vec<&str> = text.split('/').collect();
    Some(match (kind, words.as_slice()) {
        ("pool_spec", [pool, namespace, ..]) | (_, [pool, namespace, _, ..]) => {
            named(pool, namespace)
        }
        (_, [pool, ..]) => named(pool, ""),
        (_, []) => named("", ""),
    })
}

fn named(pool: &str, namespace: &str) -> Args {
    [("pool", pool), ("namespace", namespace)].map(|(k, v)| (k.to_owned(), v.to_owned())).into()
}

/// What images do, by `figures`; in the form that the rbd tool reads.
fn perf(c: &Ctx<'_>, what: &str, figures: fn(&Shown) -> Vec<Value>) -> Reply {
    let spec = c.str("pool_spec").unwrap_or_default();
    let place = match place(&spec) {
        Ok(place) => place,
        Err(why) => return Reply::invalid(why),
    };
    let sort_by = c.str("sort_by").unwrap_or_else(|| COUNTERS[0].to_owned());
    let Some(by) = COUNTERS.iter().position(|name| *name == sort_by) else {
        return Reply::invalid(format!("'{sort_by}' is not one of {}", COUNTERS.join(", ")));
    };
    let map = &c.mgr.map;
    let wanted: Box<dyn Fn(&ImageKey) -> bool> = match place {
        Some((name, namespace)) => {
            let Some(pool) = map.pool_by_name(name) else {
                let why = format!(
                    "[errno {}] RADOS object not found (Pool '{name}' not found)",
                    errno::ENOENT
                );
                return Reply::err(errno::ENOENT, why);
            };
            Box::new(move |k| k.pool == pool && k.namespace == namespace)
        }
        // Pools that are said to be for images.
        None => Box::new(|k| {
            map.pool(k.pool).is_some_and(|p| p.application_metadata.contains_key("rbd"))
        }),
    };
    let mut shown = c.mgr.images.show(c.now.mono, wanted);
    // Counters, too, are in the order of what is done now.
    shown.sort_by(|a, b| b.rates[by].total_cmp(&a.rates[by]));
    shown.truncate(SHOWN_MAX);
    let mut places: Vec<(PoolId, String)> = Vec::new();
    let mut rows = Vec::new();
    for s in &shown {
        let figures = figures(s);
        if figures.iter().all(|f| f.as_f64() == Some(0.0)) {
            continue;
        }
        let of = (s.key.pool, s.key.namespace.clone());
        let number = places.iter().position(|p| *p == of).unwrap_or(places.len());
        if number == places.len() {
            places.push(of);
        }
        rows.push(json!({ format!("{number}/{}", s.name): figures }));
    }
    let described = |(pool, namespace): &(PoolId, String)| {
        let name = map.pool_names.get(pool).map_or("", String::as_str);
        if namespace.is_empty() { name.to_owned() } else { format!("{name}/{namespace}") }
    };
    let places: Map<String, Value> =
        places.iter().enumerate().map(|(i, p)| (i.to_string(), described(p).into())).collect();
    let answer = json!({
        "timestamp": f64::from(c.now.wall.sec),
        format!("{what}_descriptors"): COUNTERS,
        "pool_descriptors": places,
        format!("{what}s"): rows,
    });
    Reply { counts_images: true, ..Reply::data(answer.to_string()) }
}
