//! What of Ceph's rbd_support module can be answered where there is none: its lists, which are empty.
//!
//! The module is a client that does long work on images for others. This manager is nobody's client: tasks and schedules are
//! refused when somebody gives them ([`spirula_settings::absent`], in words that make drivers do the work themselves), so that
//! none is ever there to be listed, shown or ended.

use super::spec::{CommandSpec, Ctx, Reply};
use spirula_auth::caps::Args;
use spirula_types::errno;

macro_rules! commands {
    ($($sig:literal, $help:literal => $run:expr;)*) => {
        &[$(CommandSpec { sig: $sig, help: $help, module: "mgr", perm: "r", flags: 0, run: $run }),*]
    };
}

pub(super) const COMMANDS: &[CommandSpec] = commands! {
    "rbd task list name=task_id,type=CephString,req=false", "List pending or running asynchronous tasks" => tasks;
    "rbd task cancel name=task_id,type=CephString", "Cancel a pending or running asynchronous task" => no_task;
    "rbd mirror snapshot schedule list name=level_spec,type=CephString,req=false", "List rbd mirror snapshot schedule" => |c| of_level(c, "{}\n");
    "rbd mirror snapshot schedule status name=level_spec,type=CephString,req=false", "Show rbd mirror snapshot schedule status" => |c| of_level(c, "{\"scheduled_images\": []}\n");
    "rbd trash purge schedule list name=level_spec,type=CephString,req=false", "List rbd trash purge schedule" => |c| of_level(c, "{}\n");
    "rbd trash purge schedule status name=level_spec,type=CephString,req=false", "Show rbd trash purge schedule status" => |c| of_level(c, "{\"scheduled\": []}\n");
};

fn tasks(c: &Ctx<'_>) -> Reply {
    if c.str("task_id").is_some() { no_task(c) } else { Reply::data("[]\n") }
}

fn no_task(c: &Ctx<'_>) -> Reply {
    Reply::err(errno::ENOENT, format!("No such task {}", c.str("task_id").unwrap_or_default()))
}

/// An empty list for a pool, a namespace or an image (`POOL[/NAMESPACE][/IMAGE]`), if the pool is one.
fn of_level(c: &Ctx<'_>, empty: &str) -> Reply {
    let spec = c.str("level_spec").unwrap_or_default();
    let pool = spec.split('/').next().unwrap_or_default();
    if !pool.is_empty() && c.mgr.map.pool_by_name(pool).is_none() {
        return Reply::err(errno::ENOENT, format!("Pool {pool} does not exist"));
    }
    Reply::data(empty)
}

/// Pool and namespace of a command about block images, as `profile rbd pool=P namespace=N` compares them: those it names, and
/// none at all for figures of all pools. `None` where there is nothing of any pool to be seen or done.
pub(super) fn scope(command: &str, args: &Args) -> Option<Args> {
    if !command.starts_with("rbd ") {
        return None;
    }
    let spec =
        ["pool_spec", "level_spec", "image_spec", "image_id_spec"].iter().find_map(|k| Some((*k, args.get(*k)?)));
    let (kind, text) = match spec {
        Some(spec) => spec,
        None if command.starts_with("rbd perf ") => return Some(named("", "")),
        None => return None,
    };
    let words: Vec<&str> = text.split('/').collect();
    Some(match (kind, words.as_slice()) {
        ("pool_spec", [pool, namespace, ..]) | (_, [pool, namespace, _, ..]) => named(pool, namespace),
        (_, [pool, ..]) => named(pool, ""),
        (_, []) => named("", ""),
    })
}

fn named(pool: &str, namespace: &str) -> Args {
    [("pool", pool), ("namespace", namespace)].map(|(k, v)| (k.to_owned(), v.to_owned())).into()
}
