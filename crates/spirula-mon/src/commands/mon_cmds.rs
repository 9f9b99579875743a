//! `ceph mon …`.

use super::{Args, CommandResult, CommandSpec, FLAG_DEPRECATED, json_out, misc, text_or_json};
use crate::mon::{CommandCtx, SHARES_PROCESS};
use serde_json::{Value, json};
use spirula_types::errno::{EBUSY, EEXIST, EINVAL, ENOENT, EOPNOTSUPP};
use spirula_types::{AddrVec, EntityAddr};
use std::sync::Arc;

/// Where monitors listen if nothing else is said.
const MON_PORT: u16 = 3300;

pub(super) const SPECS: &[CommandSpec] = &[
    CommandSpec {
        sig: "mon dump name=epoch,type=CephInt,range=0,req=false",
        help: "dump formatted monmap (optionally from epoch)",
        module: "mon",
        perm: "r",
        flags: 0,
        run: dump,
    },
    CommandSpec {
        sig: "mon stat",
        help: "summarize monitor status",
        module: "mon",
        perm: "r",
        flags: 0,
        run: stat,
    },
    CommandSpec {
        sig: "mon getmap name=epoch,type=CephInt,range=0,req=false",
        help: "get monmap",
        module: "mon",
        perm: "r",
        flags: 0,
        run: getmap,
    },
    CommandSpec {
        sig: "mon metadata name=id,type=CephString,req=false",
        help: "fetch metadata for mon <id>",
        module: "mon",
        perm: "r",
        flags: 0,
        run: metadata,
    },
    CommandSpec {
        sig: "mon count-metadata name=property,type=CephString",
        help: "count mons by metadata field property",
        module: "mon",
        perm: "r",
        flags: 0,
        run: count_metadata,
    },
    CommandSpec {
        sig: "mon versions",
        help: "check running versions of monitors",
        module: "mon",
        perm: "r",
        flags: 0,
        run: versions,
    },
    CommandSpec {
        sig: "mon ok-to-stop name=ids,type=CephString,n=N",
        help: "check whether mon(s) can be safely stopped without reducing immediate availability",
        module: "mon",
        perm: "r",
        flags: 0,
        run: ok_to_stop,
    },
    CommandSpec {
        sig: "mon ok-to-rm name=id,type=CephString",
        help: "check whether removing the specified mon would break quorum",
        module: "mon",
        perm: "r",
        flags: 0,
        run: ok_to_rm,
    },
    CommandSpec {
        sig: "mon ok-to-add-offline",
        help: "check whether adding a mon and not starting it would break quorum",
        module: "mon",
        perm: "r",
        flags: 0,
        run: ok_to_add,
    },
    CommandSpec {
        sig: "mon feature ls name=with_value,type=CephChoices,strings=--with-value,req=false",
        help: "list available mon map features to be set/unset",
        module: "mon",
        perm: "r",
        flags: 0,
        run: feature_ls,
    },
    CommandSpec {
        sig: "mon add name=name,type=CephString name=addr,type=CephIPAddr",
        help: "add new monitor named <name> at <addr>",
        module: "mon",
        perm: "rw",
        flags: 0,
        run: add,
    },
    CommandSpec {
        sig: "mon rm name=name,type=CephString",
        help: "remove monitor named <name>",
        module: "mon",
        perm: "rw",
        flags: 0,
        run: rm,
    },
    CommandSpec {
        sig: "mon remove name=name,type=CephString",
        help: "remove monitor named <name>",
        module: "mon",
        perm: "rw",
        flags: FLAG_DEPRECATED,
        run: rm,
    },
];

fn dump(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let map = &ctx.work.state.monmap;
    if let Some(e) = args.int("epoch").filter(|e| *e != 0 && *e != i64::from(map.epoch)) {
        return CommandResult::err(ENOENT, format!("there is no map for epoch {e}"));
    }
    let rs = format!("dumped monmap epoch {}", map.epoch);
    let quorum = &ctx.mon.quorum.quorum;
    text_or_json(ctx, || map.dump_text(), || with_quorum(map.dump(), quorum)).with_rs(rs)
}

fn with_quorum(mut dump: Value, quorum: &[u32]) -> Value {
    if let Some(m) = dump.as_object_mut() {
        m.insert("quorum".into(), json!(quorum));
    }
    dump
}

fn stat(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let (map, q) = (&ctx.work.state.monmap, &ctx.mon.quorum);
    let leader = map.rank_of(&q.leader).unwrap_or(0);
    let text = || {
        let mons: Vec<String> =
            map.iter().map(|(_, m)| format!("{}={}", m.name, m.addrs)).collect();
        let ranks: Vec<String> = q.quorum.iter().map(u32::to_string).collect();
        format!(
            "e{}: {} mons at {{{}}} removed_ranks: {{}}, election epoch {}, leader {leader} {}, \
                quorum {} {}\n",
            map.epoch,
            map.len(),
            mons.join(","),
            q.election_epoch,
            q.leader,
            ranks.join(","),
            q.names.join(",")
        )
    };
    let value = || {
        let quorum: Vec<Value> =
            q.quorum.iter().zip(&q.names).map(|(r, n)| json!({"rank": r, "name": n})).collect();
        json!({
            "epoch": map.epoch,
            "min_mon_release_name": spirula_maps::release_name(map.min_mon_release),
            "num_mons": map.len(),
            "leader": q.leader,
            "quorum": quorum,
        })
    };
    text_or_json(ctx, text, value)
}

fn getmap(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let map = &ctx.work.state.monmap;
    if let Some(e) = args.int("epoch").filter(|e| *e != 0 && *e != i64::from(map.epoch)) {
        return CommandResult::err(ENOENT, format!("there is no map for epoch {e}"));
    }
    CommandResult::data(spirula_encoding::to_vec(&**map))
        .with_rs(format!("got monmap epoch {}", map.epoch))
}

fn metadata_of(ctx: &CommandCtx<'_>, name: &str) -> Value {
    let mut out = serde_json::Map::new();
    let addrs =
        ctx.work.state.monmap.mons.get(name).map(|m| m.addrs.to_string()).unwrap_or_default();
    out.insert("addrs".into(), addrs.into());
    if name == ctx.mon.name {
        out.insert("ceph_release".into(), "pacific".into());
        out.insert("ceph_version".into(), misc::VERSION_TEXT.into());
    }
    for (k, v) in ctx.mon.quorum.facts.get(name).into_iter().flatten() {
        out.insert(k.clone(), v.clone().into());
    }
    out.into()
}

fn metadata(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let names = ctx.work.state.monmap.ranks.clone();
    match args.opt_str("id") {
        Some(id) => {
            let name = id.strip_prefix("mon.").unwrap_or(&id).to_owned();
            let by_rank = name.parse::<usize>().ok().and_then(|r| names.get(r)).cloned();
            let name = if names.contains(&name) { Some(name) } else { by_rank };
            match name {
                Some(name) => json_out(ctx, &metadata_of(ctx, &name)),
                None => CommandResult::err(ENOENT, format!("there is no monitor '{id}'")),
            }
        }
        None => {
            let one = |name: &String| {
                let mut m = serde_json::Map::new();
                m.insert("name".into(), name.clone().into());
                if let Value::Object(facts) = metadata_of(ctx, name) {
                    m.extend(facts);
                }
                Value::Object(m)
            };
            json_out(ctx, &Value::Array(names.iter().map(one).collect()))
        }
    }
}

fn count_metadata(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let property = args.str("property");
    let value = metadata_of(ctx, &ctx.mon.name);
    let value = value.get(&property).and_then(Value::as_str).unwrap_or("unknown").to_owned();
    json_out(ctx, &json!(misc::count_versions([value.as_str()].into_iter())))
}

fn versions(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    json_out(ctx, &json!(misc::mon_versions(ctx)))
}

fn ok_to_stop(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let total = ctx.work.state.monmap.len();
    let ids = args.list("ids");
    if let Some(bad) = ids.iter().find(|i| !ctx.work.state.monmap.mons.contains_key(*i)) {
        return CommandResult::err(ENOENT, format!("mon.{bad} does not exist"));
    }
    let left = ctx.mon.quorum.names.iter().filter(|n| !ids.contains(n)).count();
    if left * 2 > total {
        let word = if ids.is_empty() { "none".to_owned() } else { ids.join(",") };
        return CommandResult::ok(format!(
            "quorum should be preserved (~{left} of {total}) after stopping [{word}]"
        ));
    }
    CommandResult::err(
        EBUSY,
        format!(
            "not enough monitors would be available ({left} of {total}) after stopping mons [{}]",
            ids.join(",")
        ),
    )
}

fn ok_to_rm(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let (id, map) = (args.str("id"), &ctx.work.state.monmap);
    if !map.mons.contains_key(&id) {
        return CommandResult::ok(format!("mon.{id} does not exist"));
    }
    let total = map.len() - 1;
    let left = ctx.mon.quorum.names.iter().filter(|n| **n != id).count();
    if total > 0 && left * 2 > total {
        return CommandResult::ok(format!("safe to remove mon.{id}"));
    }
    CommandResult::err(EBUSY, format!("removing mon.{id} would break quorum"))
}

fn ok_to_add(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let total = ctx.work.state.monmap.len() + 1;
    let left = ctx.mon.quorum.names.len();
    if left * 2 > total {
        return CommandResult::ok(
            "adding another mon that is not yet started will not affect quorum",
        );
    }
    CommandResult::err(EBUSY, "adding a monitor would break quorum (until that monitor starts)")
}

fn feature_ls(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let names = spirula_maps::mon_feature_names(ctx.work.state.monmap.persistent_features);
    let with_value = args.has("with_value");
    let names: Vec<String> = names
        .into_iter()
        .map(|n| match spirula_maps::mon_feature_bit(n) {
            Some(bit) if with_value => format!("{n}({bit})"),
            _ => n.to_owned(),
        })
        .collect();
    let text = || {
        format!(
            "all features\n\tsupported: [{0}]\n\tpersistent: [{0}]\non current monmap (epoch \
                {1})\n\tpersistent: [{0}]\n\trequired: [{0}]\n",
            names.join(","),
            ctx.work.state.monmap.epoch
        )
    };
    let value = || json!({"all": {"supported": names, "persistent": names}, "monmap": {"persistent": names, "optional": [], "required": names}});
    text_or_json(ctx, text, value)
}

/// The address in `mon add`: `10.0.0.1`, `10.0.0.1:3300`, `v2:10.0.0.1:3300/0`, or several of
/// the latter in brackets, of which the v2 ones count.
fn parse_addrs(text: &str) -> Option<AddrVec> {
    let v2 = |t: &str| -> Option<EntityAddr> {
        let t = t.strip_prefix("v2:").unwrap_or(t);
        let (t, nonce) = t.split_once('/').map_or((t, Some(0)), |(t, n)| (t, n.parse().ok()));
        let plain = t.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(t);
        let port = |ip: std::net::IpAddr| std::net::SocketAddr::new(ip, MON_PORT);
        let socket = t.parse().ok().or_else(|| plain.parse().ok().map(port))?;
        Some(EntityAddr::v2(socket, nonce?))
    };
    let list =
        text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).filter(|t| t.contains("v2:"));
    let parts = list.unwrap_or(text).split(',').filter(|t| !t.starts_with("v1:"));
    let addrs: Option<Vec<EntityAddr>> = parts.map(v2).collect();
    addrs.filter(|a| !a.is_empty()).map(AddrVec)
}

fn add(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let (name, text) = (args.str("name"), args.str("addr"));
    let Some(addrs) = parse_addrs(&text) else {
        return CommandResult::err(
            EINVAL,
            format!("'{text}' is no address; give one like 10.0.0.1:{MON_PORT}"),
        );
    };
    if !spirula_types::names::is_daemon_name(&name) {
        return CommandResult::err(EINVAL, format!("'{name}' cannot be a monitor's name"));
    }
    let map = &ctx.work.state.monmap;
    if let Some(there) = map.mons.get(&name) {
        if there.addrs == addrs {
            return CommandResult::ok(format!("mon.{name} at {addrs} already exists"));
        }
        return CommandResult::err(
            EEXIST,
            format!("mon.{name} already exists at address {}", there.addrs),
        );
    }
    if let Some((_, other)) =
        map.iter().find(|(_, m)| m.addrs.0.iter().any(|a| addrs.0.contains(a)))
    {
        return CommandResult::err(EEXIST, format!("mon.{} is at {addrs}", other.name));
    }
    let now = ctx.work.now;
    let map = Arc::make_mut(&mut ctx.work.state.monmap);
    map.add(name.clone(), addrs.clone());
    map.epoch += 1;
    map.last_changed = now;
    CommandResult::ok(format!("adding mon.{name} at {addrs}"))
}

fn rm(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let name = args.str("name");
    let now = ctx.work.now;
    let state = &mut ctx.work.state;
    let Some(there) = state.monmap.mons.get(&name) else {
        return CommandResult::ok(format!("mon.{name} does not exist or has already been removed"));
    };
    if state.monmap.len() == 1 {
        return CommandResult::err(
            EINVAL,
            format!("error: refusing removal of last monitor {name}"),
        );
    }
    // Whoever leads may be of another process: a monitor's facts say so, too. After a restart they
    // come a moment later than its vote.
    let other = name != ctx.mon.name && ctx.mon.quorum.names.contains(&name);
    if other && !ctx.mon.quorum.facts.contains_key(&name) {
        return CommandResult::err(
            EBUSY,
            format!("mon.{name} has not said yet what it is; try again in a few seconds"),
        );
    }
    let shares = ctx.mon.quorum.facts.get(&name).is_some_and(|f| f.contains_key(SHARES_PROCESS));
    if shares || ctx.mon.company.contains(&name) {
        // A monitor that is removed ends, and all that shares its process would end with it.
        let text = format!(
            "mon.{name} is part of 'spirula up', which keeps as many monitors as it was made with"
        );
        return CommandResult::err(EOPNOTSUPP, text);
    }
    let member = state.members.iter().find(|(_, m)| m.name == name).map(|(id, _)| *id);
    if let Some(member) = member {
        // Those who are left must be able to go on without waiting for anyone.
        let voters = ctx.mon.node().map(|n| n.members().voters.clone()).unwrap_or_default();
        let left = voters.iter().filter(|v| **v != member).count();
        let heard = ctx.mon.quorum.names.iter().filter(|n| **n != name).count();
        if voters.contains(&member) && heard * 2 <= left {
            let text = format!(
                "removing mon.{name} would leave {heard} of {left} monitors in quorum, too few to \
                    go on"
            );
            return CommandResult::err(EBUSY, text);
        }
    }
    let addrs = there.addrs.clone();
    let map = Arc::make_mut(&mut state.monmap);
    map.remove(&name);
    map.epoch += 1;
    map.last_changed = now;
    let left = map.len();
    if let Some(member) = member {
        Arc::make_mut(&mut state.members).remove(&member);
    }
    CommandResult::ok(format!("removing mon.{name} at {addrs}, there will be {left} monitors"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_in_the_forms_that_ceph_takes() {
        let at = |t: &str| parse_addrs(t).map(|a| a.to_string());
        let want = Some("v2:10.0.0.1:3300/0".to_owned());
        for text in [
            "10.0.0.1",
            "10.0.0.1:3300",
            "v2:10.0.0.1:3300/0",
            "[v2:10.0.0.1:3300/0,v1:10.0.0.1:6789/0]",
        ] {
            assert_eq!(
                at(text),
                want.clone().map(|w| if at(text) == Some(format!("[{w}]")) {
                    format!("[{w}]")
                } else {
                    w
                }),
                "{text}"
            );
        }
        assert!(
            at("[fd00::1]:3300").is_some()
                && at("fd00::1").is_some()
                && at("[v2:[fd00::1]:3300/0]").is_some()
        );
        for text in ["", "host", "10.0.0.1:x", "v1:10.0.0.1:6789", "10.0.0.1:3300/x", ","] {
            assert_eq!(at(text), None, "{text}");
        }
    }
}
