//! Cluster-wide and group flags, ratios, releases, shut-out clients; the table of erasure-code
//! profiles' commands.

use super::ec_profiles;
use super::osd::osd_list;
use super::{Args, CommandResult, CommandSpec, FLAG_DEPRECATED, Outcome, settle, text_or_json};
use crate::mon::CommandCtx;
use serde_json::json;
use spirula_encoding::UTime;
use spirula_maps::OsdMap;
use spirula_maps::osdmap::{CIDR, flag_by_name, state};
use spirula_types::EntityAddr;
use spirula_types::errno::{EINVAL, ENOENT, ENOSPC, EPERM};
use std::collections::BTreeMap;

const GROUP_HELP: &str = "set <flags> for <who>; who is a bucket, a device class or osd ids";

pub(super) const SPECS: &[CommandSpec] = &[
    CommandSpec {
        sig: "osd set name=key,type=CephChoices,strings=full|pause|noup|nodown|noout|noin|nobackfill|norebalance|norecover|noscrub|nodeep-scrub|notieragent|nosnaptrim|pglog_hardlimit name=yes_i_really_mean_it,type=CephBool,req=false",
        help: "set <key>",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: set,
    },
    CommandSpec {
        sig: "osd unset name=key,type=CephChoices,strings=full|pause|noup|nodown|noout|noin|nobackfill|norebalance|norecover|noscrub|nodeep-scrub|notieragent|nosnaptrim",
        help: "unset <key>",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: unset,
    },
    CommandSpec {
        sig: "osd pause",
        help: "pause osd",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: pause,
    },
    CommandSpec {
        sig: "osd unpause",
        help: "unpause osd",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: unpause,
    },
    CommandSpec {
        sig: "osd set-group name=flags,type=CephString name=who,type=CephString,n=N",
        help: GROUP_HELP,
        module: "osd",
        perm: "rw",
        flags: 0,
        run: set_group,
    },
    CommandSpec {
        sig: "osd unset-group name=flags,type=CephString name=who,type=CephString,n=N",
        help: GROUP_HELP,
        module: "osd",
        perm: "rw",
        flags: 0,
        run: unset_group,
    },
    CommandSpec {
        sig: "osd add-noup name=ids,type=CephString,n=N",
        help: "set noup for these OSDs",
        module: "osd",
        perm: "rw",
        flags: FLAG_DEPRECATED,
        run: add_noup,
    },
    CommandSpec {
        sig: "osd add-nodown name=ids,type=CephString,n=N",
        help: "set nodown for these OSDs",
        module: "osd",
        perm: "rw",
        flags: FLAG_DEPRECATED,
        run: add_nodown,
    },
    CommandSpec {
        sig: "osd add-noin name=ids,type=CephString,n=N",
        help: "set noin for these OSDs",
        module: "osd",
        perm: "rw",
        flags: FLAG_DEPRECATED,
        run: add_noin,
    },
    CommandSpec {
        sig: "osd add-noout name=ids,type=CephString,n=N",
        help: "set noout for these OSDs",
        module: "osd",
        perm: "rw",
        flags: FLAG_DEPRECATED,
        run: add_noout,
    },
    CommandSpec {
        sig: "osd rm-noup name=ids,type=CephString,n=N",
        help: "unset noup for these OSDs",
        module: "osd",
        perm: "rw",
        flags: FLAG_DEPRECATED,
        run: rm_noup,
    },
    CommandSpec {
        sig: "osd rm-nodown name=ids,type=CephString,n=N",
        help: "unset nodown for these OSDs",
        module: "osd",
        perm: "rw",
        flags: FLAG_DEPRECATED,
        run: rm_nodown,
    },
    CommandSpec {
        sig: "osd rm-noin name=ids,type=CephString,n=N",
        help: "unset noin for these OSDs",
        module: "osd",
        perm: "rw",
        flags: FLAG_DEPRECATED,
        run: rm_noin,
    },
    CommandSpec {
        sig: "osd rm-noout name=ids,type=CephString,n=N",
        help: "unset noout for these OSDs",
        module: "osd",
        perm: "rw",
        flags: FLAG_DEPRECATED,
        run: rm_noout,
    },
    CommandSpec {
        sig: "osd set-full-ratio name=ratio,type=CephFloat,range=0.0|1.0",
        help: "set usage ratio at which OSDs are marked full",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: ratio,
    },
    CommandSpec {
        sig: "osd set-backfillfull-ratio name=ratio,type=CephFloat,range=0.0|1.0",
        help: "set usage ratio at which OSDs are marked too full to backfill",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: ratio,
    },
    CommandSpec {
        sig: "osd set-nearfull-ratio name=ratio,type=CephFloat,range=0.0|1.0",
        help: "set usage ratio at which OSDs are marked near-full",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: ratio,
    },
    CommandSpec {
        sig: "osd set-require-min-compat-client name=version,type=CephString \
            name=yes_i_really_mean_it,type=CephBool,req=false",
        help: "set the minimum client version we will maintain compatibility with",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: min_compat,
    },
    CommandSpec {
        sig: "osd require-osd-release \
            name=release,type=CephChoices,strings=luminous|mimic|nautilus|octopus|pacific \
            name=yes_i_really_mean_it,type=CephBool,req=false",
        help: "set the minimum allowed OSD release to participate in the cluster",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: require_release,
    },
    CommandSpec {
        sig: "osd blocklist name=range,type=CephString,goodchars=[range],req=false \
            name=blocklistop,type=CephChoices,strings=add|rm name=addr,type=CephEntityAddr \
            name=expire,type=CephFloat,range=0.0,req=false",
        help: "add (optionally until <expire> seconds from now) or remove <addr> from blocklist",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: blocklist,
    },
    CommandSpec {
        sig: "osd blocklist ls",
        help: "show blocklisted clients",
        module: "osd",
        perm: "r",
        flags: 0,
        run: blocklist_ls,
    },
    CommandSpec {
        sig: "osd blocklist clear",
        help: "clear all blocklisted clients",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: blocklist_clear,
    },
    CommandSpec {
        sig: "osd blacklist name=blacklistop,type=CephChoices,strings=add|rm \
            name=addr,type=CephEntityAddr name=expire,type=CephFloat,range=0.0,req=false",
        help: "add (optionally until <expire> seconds from now) or remove <addr> from blacklist",
        module: "osd",
        perm: "rw",
        flags: FLAG_DEPRECATED,
        run: blocklist,
    },
    CommandSpec {
        sig: "osd blacklist ls",
        help: "show blacklisted clients",
        module: "osd",
        perm: "r",
        flags: FLAG_DEPRECATED,
        run: blocklist_ls,
    },
    CommandSpec {
        sig: "osd blacklist clear",
        help: "clear all blacklisted clients",
        module: "osd",
        perm: "rw",
        flags: FLAG_DEPRECATED,
        run: blocklist_clear,
    },
    CommandSpec {
        sig: "osd erasure-code-profile set name=name,type=CephString,goodchars=[A-Za-z0-9-_.] \
            name=profile,type=CephString,n=N,req=false name=force,type=CephBool,req=false",
        help: "create erasure code profile <name> with [<key[=value]> ...] pairs. Add a --force at \
            the end to override an existing profile (VERY DANGEROUS)",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: ec_profiles::set,
    },
    CommandSpec {
        sig: "osd erasure-code-profile get name=name,type=CephString,goodchars=[A-Za-z0-9-_.]",
        help: "get erasure code profile <name>",
        module: "osd",
        perm: "r",
        flags: 0,
        run: ec_profiles::get,
    },
    CommandSpec {
        sig: "osd erasure-code-profile rm name=name,type=CephString,goodchars=[A-Za-z0-9-_.]",
        help: "remove erasure code profile <name>",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: ec_profiles::rm,
    },
    CommandSpec {
        sig: "osd erasure-code-profile ls",
        help: "list all erasure code profiles",
        module: "osd",
        perm: "r",
        flags: 0,
        run: ec_profiles::ls,
    },
];

fn change_flag(ctx: &mut CommandCtx<'_>, key: &str, on: bool) -> CommandResult {
    // `full` follows from how full OSDs are, which is not for anyone to say: Ceph, too, lists it
    // and refuses it.
    let Some(bits) = flag_by_name(key).filter(|_| key != "full") else {
        return CommandResult::err(EINVAL, format!("unrecognized flag '{key}'"));
    };
    let map = ctx.work.osd_mut();
    map.flags = if on { map.flags | bits } else { map.flags & !bits };
    let name = if key == "pause" { "pauserd,pausewr" } else { key };
    CommandResult::ok(format!("{name} is {}", if on { "set" } else { "unset" }))
}

fn set(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    change_flag(ctx, &args.str("key"), true)
}

fn unset(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    change_flag(ctx, &args.str("key"), false)
}

fn pause(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    change_flag(ctx, "pause", true)
}

fn unpause(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    change_flag(ctx, "pause", false)
}

fn add_noup(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    of_osds(ctx, args, state::NOUP, true)
}

fn add_nodown(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    of_osds(ctx, args, state::NODOWN, true)
}

fn add_noin(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    of_osds(ctx, args, state::NOIN, true)
}

fn add_noout(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    of_osds(ctx, args, state::NOOUT, true)
}

fn rm_noup(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    of_osds(ctx, args, state::NOUP, false)
}

fn rm_nodown(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    of_osds(ctx, args, state::NODOWN, false)
}

fn rm_noin(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    of_osds(ctx, args, state::NOIN, false)
}

fn rm_noout(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    of_osds(ctx, args, state::NOOUT, false)
}

/// The older form of [`group`]: one flag, of OSDs alone (`all`, `any` and `*` are all there are).
fn of_osds(ctx: &mut CommandCtx<'_>, args: &Args, bit: u32, on: bool) -> CommandResult {
    let mut run = || -> Outcome {
        for osd in osd_list(ctx, &args.list("ids"))? {
            let map = ctx.work.osd_mut();
            if !map.exists(osd) {
                return Err((ENOENT, format!("osd.{osd} does not exist")));
            }
            if let Some(s) = usize::try_from(osd).ok().and_then(|i| map.osd_state.get_mut(i)) {
                *s = if on { *s | bit } else { *s & !bit };
            }
        }
        Ok(CommandResult::default())
    };
    settle(run())
}

fn set_group(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    group(ctx, args, true)
}

fn unset_group(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    group(ctx, args, false)
}

fn group(ctx: &mut CommandCtx<'_>, args: &Args, on: bool) -> CommandResult {
    let mut run = || -> Outcome {
        let mut bits = 0;
        for name in args.str("flags").split(',') {
            bits |= match name {
                "noup" => state::NOUP,
                "nodown" => state::NODOWN,
                "noin" => state::NOIN,
                "noout" => state::NOOUT,
                other => {
                    return Err((
                        EINVAL,
                        format!(
                            "unrecognized flag '{other}', must be one of {{noup,nodown,noin,noout}}"
                        ),
                    ));
                }
            };
        }
        let change = |old: u32| if on { old | bits } else { old & !bits };
        for who in args.list("who") {
            let (bucket, class) = {
                let crush = &ctx.work.osd().crush;
                (crush.item_id(&who).filter(|id| *id < 0), crush.class_id(&who))
            };
            let osds = osd_list(ctx, std::slice::from_ref(&who));
            let map = ctx.work.osd_mut();
            if let Some(id) = bucket {
                set_or_drop(&mut map.crush_node_flags, id, change);
            } else if let Some(id) = class {
                set_or_drop(&mut map.device_class_flags, id, change);
            } else {
                for osd in osds.map_err(|_| {
                    (EINVAL, format!("unable to parse osd/crush bucket/class '{who}'"))
                })? {
                    if !map.exists(osd) {
                        return Err((ENOENT, format!("osd.{osd} does not exist")));
                    }
                    if let Some(s) =
                        usize::try_from(osd).ok().and_then(|i| map.osd_state.get_mut(i))
                    {
                        *s = change(*s);
                    }
                }
            }
        }
        Ok(CommandResult::default())
    };
    settle(run())
}

fn set_or_drop(map: &mut BTreeMap<i32, u32>, id: i32, change: impl Fn(u32) -> u32) {
    let new = change(map.get(&id).copied().unwrap_or(0));
    if new == 0 {
        map.remove(&id);
    } else {
        map.insert(id, new);
    }
}

fn ratio(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let value = args.float("ratio").unwrap_or(0.0) as f32;
    let map = ctx.work.osd_mut();
    let (which, name) = match args.str("prefix").as_str() {
        "osd set-full-ratio" => (&mut map.full_ratio, "osd set-full-ratio"),
        "osd set-backfillfull-ratio" => (&mut map.backfillfull_ratio, "osd set-backfillfull-ratio"),
        _ => (&mut map.nearfull_ratio, "osd set-nearfull-ratio"),
    };
    *which = value;
    CommandResult::ok(format!("{name} {value}"))
}

fn min_compat(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let name = args.str("version");
    let Some(release) = spirula_maps::release_number(&name) else {
        return CommandResult::err(EINVAL, format!("version {name} is not recognized"));
    };
    let needed = ctx.work.osd().min_compat_client();
    if release < needed && !args.bool("yes_i_really_mean_it") {
        let needs = spirula_maps::release_name(needed);
        return CommandResult::err(
            EPERM,
            format!(
                "osdmap current utilizes features that require {needs}; cannot set \
                    require_min_compat_client below that to {name}"
            ),
        );
    }
    ctx.work.osd_mut().require_min_compat_client = release;
    CommandResult::ok(format!("set require_min_compat_client to {name}"))
}

fn require_release(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let name = args.str("release");
    let Some(release) = spirula_maps::release_number(&name) else {
        return CommandResult::err(EINVAL, format!("unrecognized release {name}"));
    };
    if release < ctx.work.osd().require_osd_release {
        return CommandResult::err(
            EPERM,
            "require_osd_release cannot be lowered once it has been set",
        );
    }
    ctx.work.osd_mut().require_osd_release = release;
    CommandResult::default()
}

/// `[kind:]IP:PORT[/NONCE]` or a bare IP; without a kind the entry is for any protocol.
pub(super) fn parse_addr(text: &str) -> Option<EntityAddr> {
    let (kind, rest) = match text.split_once(':') {
        Some(("v1", rest)) => (EntityAddr::KIND_LEGACY, rest),
        Some(("v2", rest)) => (EntityAddr::KIND_MSGR2, rest),
        Some(("any", rest)) => (EntityAddr::KIND_ANY, rest),
        _ => (EntityAddr::KIND_ANY, text),
    };
    let (sock, nonce) = rest.split_once('/').unwrap_or((rest, "0"));
    let nonce = nonce.parse().ok()?;
    let addr =
        sock.parse().ok().or_else(|| Some(std::net::SocketAddr::new(sock.parse().ok()?, 0)))?;
    Some(EntityAddr { kind, nonce, addr: Some(addr) })
}

/// The range of addresses that `IP/BITS` means: [`parse_addr`] takes the bits for a nonce.
fn range_of(addr: EntityAddr) -> Result<EntityAddr, (i32, String)> {
    let most = match addr.addr {
        Some(sock) if sock.port() == 0 && addr.nonce > 0 => {
            if sock.is_ipv4() {
                32
            } else {
                128
            }
        }
        _ => {
            let shown = EntityAddr { kind: EntityAddr::KIND_MSGR2, ..addr };
            return Err((
                EINVAL,
                format!(
                    "You specified a range command, but {shown} does not parse as a CIDR range"
                ),
            ));
        }
    };
    if addr.nonce > most {
        return Err((EINVAL, "Too many bits in range for that protocol!".into()));
    }
    Ok(EntityAddr { kind: CIDR, ..addr })
}

/// Fences that stand at a time, at most, as far as commands make them: each is some 50 bytes of the
/// map that every client has. What the monitors fence themselves counts, and is not bounded.
const FENCES_MAX: usize = 32_768;

/// Is there room for one more fence, of this address?
fn has_room(
    list: &BTreeMap<EntityAddr, UTime>,
    addr: &EntityAddr,
) -> Result<(), super::args::Refusal> {
    if list.len() < FENCES_MAX || list.contains_key(addr) {
        return Ok(());
    }
    let way = "remove some with 'osd blocklist rm' or all with 'osd blocklist clear'";
    Err((ENOSPC, format!("{FENCES_MAX} clients are fenced off already: {way}")))
}

fn blocklist(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let text = args.str("addr");
        let addr =
            parse_addr(&text).ok_or_else(|| (EINVAL, format!("unable to parse address {text}")))?;
        let addr = if args.opt_str("range").is_some() { range_of(addr)? } else { addr };
        let shown = OsdMap::blocklist_text(&addr);
        let op = args.opt_str("blocklistop").unwrap_or_else(|| args.str("blacklistop"));
        if op == "add" {
            has_room(&ctx.work.osd().blocklist, &addr)?;
            let default = ctx.work.state.option_f64("mon_osd_blocklist_default_expire");
            let seconds = args.float("expire").filter(|e| *e > 0.0).unwrap_or(default);
            let until = crate::time::fence_until(ctx.work, seconds);
            crate::time::fence(ctx.work, addr, seconds);
            return Ok(CommandResult::ok(format!(
                "blocklisting {shown} until {} ({} sec)",
                until.to_iso(),
                spirula_format::general(seconds, 6)
            )));
        }
        // Whatever protocol the entry was made for.
        let is_range = |a: &EntityAddr| a.kind == CIDR;
        let same = |a: &&EntityAddr| {
            a.addr == addr.addr && a.nonce == addr.nonce && is_range(a) == is_range(&addr)
        };
        match ctx.work.osd().blocklist.keys().find(same).copied() {
            Some(entry) => {
                ctx.work.osd_mut().blocklist.remove(&entry);
                Ok(CommandResult::ok(format!("un-blocklisting {shown}")))
            }
            None => Ok(CommandResult::ok(format!("{shown} isn't blocklisted"))),
        }
    };
    settle(run())
}

fn blocklist_ls(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let list = &ctx.work.osd().blocklist;
    let until = |a: &EntityAddr, t: &UTime| crate::time::fence_end(&ctx.work.state, a, *t).to_iso();
    let rows: Vec<(String, String)> =
        list.iter().map(|(a, t)| (OsdMap::blocklist_text(a), until(a, t))).collect();
    let text = || rows.iter().map(|(a, t)| format!("{a} {t}\n")).collect();
    // Ceph 16 gives ranges as a list of their own behind the other, which no reader of JSON takes.
    let value = || {
        let one = |(a, t): &(String, String)| match a.strip_prefix("cidr:") {
            Some(range) => json!({"range": range, "until": t}),
            None => json!({"addr": a, "until": t}),
        };
        rows.iter().map(one).collect()
    };
    text_or_json(ctx, text, value).with_rs(format!("listed {} entries", rows.len()))
}

fn blocklist_clear(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    ctx.work.osd_mut().blocklist.clear();
    CommandResult::ok(" removed all blocklist entries")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_have_a_bound_that_those_that_stand_do_not_meet() {
        let addr = |n: u32| EntityAddr { nonce: n, ..EntityAddr::v2(([10, 0, 0, 1], 0).into(), 0) };
        let mut list: BTreeMap<EntityAddr, UTime> =
            (0..FENCES_MAX as u32).map(|n| (addr(n), UTime::ZERO)).collect();
        assert!(has_room(&list, &addr(7)).is_ok());
        assert_eq!(has_room(&list, &addr(u32::MAX)).unwrap_err().0, ENOSPC);
        list.remove(&addr(7));
        assert!(has_room(&list, &addr(u32::MAX)).is_ok());
    }
}
