//! `ceph fs set`: what is set of one file system.

use super::fs::{edit, features_named, map_of, named, require_features, yes_or_no};
use super::{Args, CommandResult, CommandSpec, Outcome, settle};
use crate::mds::{self, bounds::RANKS_MAX};
use crate::mon::CommandCtx;
use crate::pools::Refusal;
use spirula_maps::{mds_flag, mds_state};
use spirula_types::errno::{EINVAL, EPERM, ERANGE};

/// Least seconds for sessions.
const SESSION_MIN: i64 = 30;
/// Bytes of a stripe at least, and so of the largest file.
const STRIPE_MIN: i64 = 65_536;
/// Longest name of a balancer.
const BALANCER_MAX: usize = 256;

pub(super) const SPECS: &[CommandSpec] = &[CommandSpec {
    sig: "fs set name=fs_name,type=CephString \
        name=var,type=CephChoices,strings=max_mds|max_file_size|allow_new_snaps|inline_data|cluster_down|allow_dirfrags|balancer|standby_count_wanted|session_timeout|session_autoclose|allow_standby_replay|down|joinable|min_compat_client name=val,type=CephString name=yes_i_really_mean_it,type=CephBool,req=false name=yes_i_really_really_mean_it,type=CephBool,req=false",
    help: "set fs parameter <var> to <val>",
    module: "mds",
    perm: "rw",
    flags: 0,
    run: set,
}];

fn number(val: &str) -> Result<i64, Refusal> {
    val.parse().map_err(|_| (EINVAL, format!("Expected option value to be integer, got '{val}'")))
}

fn at_least(var: &str, val: &str) -> Result<u32, Refusal> {
    let n = number(val)?;
    if n < SESSION_MIN {
        return Err((ERANGE, format!("{var} must be at least {SESSION_MIN}s")));
    }
    u32::try_from(n).map_err(|_| (ERANGE, format!("{var} is too large")))
}

fn joinable_text(name: &str, on: bool) -> String {
    if on {
        format!("{name} marked joinable; MDS may join as newly active.")
    } else {
        format!("{name} marked not joinable; MDS cannot join as newly active.")
    }
}

/// Releases of clients by the feature that marks them.
const RELEASES: &[(&str, &str)] = &[
    ("jewel", "jewel"),
    ("kraken", "kraken"),
    ("luminous", "luminous"),
    ("mimic", "mimic"),
    ("nautilus", "reply_encoding"),
    ("octopus", "reply_encoding"),
    ("pacific", "reply_encoding"),
    ("quincy", "reply_encoding"),
    ("reef", "reply_encoding"),
];

fn set(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let fscid = named(ctx, args)?;
        let (name, var, val) = (args.str("fs_name"), args.str("var"), args.str("val"));
        let text = match var.as_str() {
            "max_mds" => {
                let n = number(&val)?;
                if n <= 0 {
                    return Err((EINVAL, "You must specify at least one MDS".into()));
                }
                if n > i64::from(RANKS_MAX) {
                    return Err((EINVAL, format!("may not have more than {RANKS_MAX} MDS ranks")));
                }
                let m = edit(ctx, fscid)?;
                m.set_flag(mds_flag::NOT_JOINABLE, false);
                m.max_mds = i32::try_from(n).unwrap_or(1);
                String::new()
            }
            "max_file_size" => {
                let n = number(&val)?;
                if n < STRIPE_MIN {
                    return Err((ERANGE, format!("max_file_size must at least {STRIPE_MIN}")));
                }
                edit(ctx, fscid)?.max_file_size = n.unsigned_abs();
                String::new()
            }
            "allow_new_snaps" => {
                let on = yes_or_no(&val)?;
                edit(ctx, fscid)?.set_flag(mds_flag::ALLOW_SNAPS, on);
                format!("{} new snapshots", if on { "enabled" } else { "disabled" })
            }
            "inline_data" => {
                let on = yes_or_no(&val)?;
                if on && !args.bool("yes_i_really_really_mean_it") {
                    let why = "Inline data support is deprecated and will be removed in a future \
                        release. Add \
                               --yes-i-really-really-mean-it if you are certain you want this \
                               enabled.";
                    return Err((EPERM, why.into()));
                }
                edit(ctx, fscid)?.inline_data_enabled = on;
                format!("inline data {}", if on { "enabled" } else { "disabled" })
            }
            "allow_dirfrags" => {
                const ALWAYS: &str = "Directory fragmentation is now permanently enabled. This \
                    command is DEPRECATED and will be REMOVED \
                                      from future releases.";
                // Ceph says yes to both, and goes on to fragment directories.
                if !yes_or_no(&val)? {
                    return Err((EINVAL, ALWAYS.into()));
                }
                ALWAYS.to_owned()
            }
            "balancer" => {
                if val.len() > BALANCER_MAX {
                    return Err((
                        EINVAL,
                        format!("a balancer's name has at most {BALANCER_MAX} bytes"),
                    ));
                }
                edit(ctx, fscid)?.balancer.clone_from(&val);
                match &*val {
                    "" => "unsetting the metadata load balancer".to_owned(),
                    name => format!("setting the metadata load balancer to {name}"),
                }
            }
            "standby_count_wanted" => {
                let n = number(&val)?;
                let n = i32::try_from(n).ok().filter(|n| *n >= 0);
                let n = n.ok_or_else(|| {
                    (ERANGE, "standby_count_wanted must be non-negative".to_owned())
                })?;
                edit(ctx, fscid)?.standby_count_wanted = n;
                String::new()
            }
            "session_timeout" => {
                edit(ctx, fscid)?.session_timeout = at_least(&var, &val)?;
                String::new()
            }
            "session_autoclose" => {
                edit(ctx, fscid)?.session_autoclose = at_least(&var, &val)?;
                String::new()
            }
            "allow_standby_replay" => {
                let on = yes_or_no(&val)?;
                edit(ctx, fscid)?.set_flag(mds_flag::ALLOW_STANDBY_REPLAY, on);
                if !on {
                    let m = map_of(ctx, fscid)?;
                    let gids: Vec<u64> =
                        m.in_state(mds_state::STANDBY_REPLAY).map(|i| i.gid).collect();
                    gids.into_iter().for_each(|gid| mds::fail(ctx.work, gid));
                }
                String::new()
            }
            "joinable" | "cluster_down" => {
                let on = yes_or_no(&val)? == (var == "joinable");
                edit(ctx, fscid)?.set_flag(mds_flag::NOT_JOINABLE, !on);
                let deprecated = " WARNING: cluster_down flag is deprecated and will be removed in \
                    a future version. Please use \"joinable\".";
                joinable_text(&name, on) + if var == "joinable" { "" } else { deprecated }
            }
            "down" => down(ctx, fscid, &name, yes_or_no(&val)?)?,
            // "min_compat_client"
            _ => {
                let known = RELEASES.iter().find(|(r, _)| *r == val);
                let (_, feature) =
                    known.ok_or_else(|| (EINVAL, format!("version {val} is not recognized")))?;
                let upto = features_named(feature)?.first().map_or(0, |(bit, _)| *bit);
                let all: Vec<_> = (5..=upto)
                    .filter_map(|b| features_named(&b.to_string()).ok())
                    .flatten()
                    .collect();
                require_features(edit(ctx, fscid)?, &all, true);
                "WARNING: setting min_compat_client is deprecated and may not do what you \
                    want.\nThe oldest release to set is \
                 octopus.\nPlease migrate to `ceph fs required_client_features ...`."
                    .to_owned()
            }
        };
        mds::assign(ctx.work);
        Ok(CommandResult::ok(text))
    };
    settle(run())
}

/// Has all ranks give up, or as many taken as there were.
fn down(ctx: &mut CommandCtx<'_>, fscid: i32, name: &str, on: bool) -> Result<String, Refusal> {
    let m = edit(ctx, fscid)?;
    if on {
        if m.max_mds > 0 {
            (m.old_max_mds, m.max_mds) = (m.max_mds, 0);
        }
        return Ok(format!("{name} marked down."));
    }
    if m.max_mds == 0 {
        m.max_mds = m.old_max_mds.max(1);
    }
    m.set_flag(mds_flag::NOT_JOINABLE, false);
    Ok(format!("{name} marked up, max_mds = {}", m.max_mds))
}
