//! Erasure-code profiles: what a pool is to be cut into, and where its shards go.
//!
//! All plug-ins and techniques mean Reed-Solomon here, so their names are taken as Ceph takes them,
//! and what makes no sense for one of them is refused with Ceph's numbers and words. What Ceph's
//! other plug-ins compute (lrc, shec, clay) does not exist.

use super::{Args, CommandResult, Outcome, json_out, settle, text_or_json};
use crate::mon::CommandCtx;
use serde_json::json;
use spirula_types::errno::{EBUSY, EINVAL, EIO, ENOENT, EOPNOTSUPP, EPERM};
use spirula_types::names::NAME_MAX;
use std::collections::BTreeMap;

/// Bytes of what a profile may say: it is in every OSD map.
const PROFILE_MAX: usize = 4096;

type Profile = BTreeMap<String, String>;

/// Plug-ins with the techniques they know, the default first, and how Ceph lists them.
const PLUGINS: [(&str, &[&str], &str); 2] = [
    (
        "jerasure",
        &[
            "reed_sol_van",
            "reed_sol_r6_op",
            "cauchy_orig",
            "cauchy_good",
            "liberation",
            "blaum_roth",
            "liber8tion",
        ],
        ", ",
    ),
    ("isa", &["reed_sol_van", "cauchy"], ","),
];

/// As Ceph prints a map of strings.
fn show(p: &Profile) -> String {
    let all: Vec<String> = p.iter().map(|(k, v)| format!("{k}={v}")).collect();
    format!("{{{}}}", all.join(","))
}

/// Names of the pools that are made by this profile.
fn users(ctx: &CommandCtx<'_>, name: &str) -> Vec<String> {
    let map = ctx.work.osd();
    let of = map.pools.iter().filter(|(_, p)| p.is_erasure() && p.erasure_code_profile == name);
    of.map(|(id, _)| map.pool_name(*id).to_owned()).collect()
}

fn in_use(pools: &[String], name: &str) -> (i32, String) {
    (EBUSY, format!("{} pool(s) are using the erasure code profile '{name}'", pools.join(" ")))
}

pub(super) fn set(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let name = args.str("name");
        let mut profile = Profile::new();
        let mut force = args.bool("force");
        for word in args.list("profile").iter().flat_map(|w| w.split_whitespace()) {
            if word == "--force" {
                force = true;
                continue;
            }
            let (k, v) = word.split_once('=').unwrap_or((word, ""));
            profile.insert(k.to_owned(), v.to_owned());
        }
        let bytes: usize = profile.iter().map(|(k, v)| k.len() + v.len()).sum();
        if name.is_empty() || name.len() > NAME_MAX || bytes > PROFILE_MAX {
            return Err((
                EINVAL,
                format!(
                    "a profile's name has at most {NAME_MAX} bytes, all that it says {PROFILE_MAX}"
                ),
            ));
        }
        if let Some(old) = profile.keys().find(|k| k.starts_with("ruleset-")) {
            let new = old.replacen("ruleset-", "crush-", 1);
            return Err((
                EINVAL,
                format!("property '{old}' is no longer supported; try '{new}' instead"),
            ));
        }
        profile.entry("plugin".to_owned()).or_insert_with(|| "jerasure".to_owned());
        profile.entry("technique".to_owned()).or_insert_with(|| "reed_sol_van".to_owned());
        if let Some(domain) = profile.get("crush-failure-domain")
            && !ctx.work.osd().crush.type_names.values().any(|t| t == domain)
        {
            let text = format!(
                "erasure-code-profile {} contains an invalid failure-domain \"{domain}\"",
                show(&profile)
            );
            return Err((EINVAL, text));
        }
        complete(&mut profile)?;
        match ctx.work.osd().ec_profiles.get(&name) {
            Some(old) if *old == profile => return Ok(CommandResult::default()),
            Some(old) if !force => {
                let text = format!(
                    "will not override erasure code profile {name} because the existing profile {} \
                        is different from the proposed profile {}",
                    show(old),
                    show(&profile)
                );
                return Err((EPERM, text));
            }
            Some(old) => {
                // What is stored was cut by it; another cut of it is lost data, whoever insists.
                let pools = users(ctx, &name);
                let cuts =
                    ["k", "m", "stripe_unit"].iter().any(|key| old.get(*key) != profile.get(*key));
                if cuts && !pools.is_empty() {
                    return Err(in_use(&pools, &name));
                }
            }
            None => {}
        }
        ctx.work.osd_mut().ec_profiles.insert(name, profile);
        Ok(CommandResult::default())
    };
    settle(run())
}

/// A number of a profile.
fn number(p: &Profile, key: &str) -> Result<i64, (i32, String)> {
    let text = p.get(key).map(String::as_str).unwrap_or_default();
    text.parse::<i32>().map(i64::from).map_err(|_| {
        let why = format!("Expected option value to be integer, got '{text}'");
        (EINVAL, format!("could not convert {key}={text} to int because {why}"))
    })
}

/// Fills in what the plug-in would, and checks the numbers.
fn complete(p: &mut Profile) -> Result<(), (i32, String)> {
    let mut default = |k: &str, v: &str| {
        p.entry(k.to_owned()).or_insert_with(|| v.to_owned());
    };
    for (k, v) in
        [("crush-device-class", ""), ("crush-failure-domain", "host"), ("crush-root", "default")]
    {
        default(k, v);
    }
    default("k", "2");
    default("m", "2");
    let word = |key: &str| p.get(key).cloned().unwrap_or_default();
    let (plugin, technique) = (word("plugin"), word("technique"));
    let Some((_, techniques, comma)) = PLUGINS.iter().find(|(name, ..)| *name == plugin) else {
        let errno =
            if ["lrc", "shec", "clay"].contains(&plugin.as_str()) { EOPNOTSUPP } else { EIO };
        let text = format!(
            "erasure code plugin '{plugin}' is not available: there are Reed-Solomon codes, by \
                plugin=jerasure or plugin=isa"
        );
        return Err((errno, text));
    };
    if !techniques.contains(&technique.as_str()) {
        let text = format!(
            "technique={technique} is not a valid coding technique.  Choose one of the following: \
                {}",
            techniques.join(comma)
        );
        return Err((ENOENT, text));
    }
    if let Some(unit) = p.get("stripe_unit")
        && crate::pools::stripe_unit(unit).is_none()
    {
        return Err((
            EINVAL,
            format!(
                "could not use stripe_unit '{unit}': it must be a multiple of 4096, at most 16M"
            ),
        ));
    }
    let (k, m) = (number(p, "k")?, number(p, "m")?);
    for (key, n, least) in [("k", k, 2), ("m", m, 1)] {
        if n < least {
            return Err((EINVAL, format!("{key}={n} must be >= {least}")));
        }
    }
    if plugin == "jerasure" {
        let reed_solomon = technique.starts_with("reed_sol");
        let bits =
            if ["liberation", "blaum_roth"].contains(&technique.as_str()) { "7" } else { "8" };
        p.entry("w".to_owned()).or_insert_with(|| bits.to_owned());
        if reed_solomon || technique.starts_with("cauchy") {
            p.entry("jerasure-per-chunk-alignment".to_owned())
                .or_insert_with(|| "false".to_owned());
        }
        if !reed_solomon {
            p.entry("packetsize".to_owned()).or_insert_with(|| "2048".to_owned());
        }
        let w = number(p, "w")?;
        let name =
            if technique == "reed_sol_van" { "ReedSolomonVandermonde" } else { "ReedSolomonRAID6" };
        if reed_solomon && technique != "reed_sol_van" && m != 2 {
            return Err((EINVAL, format!("{name}: m={m} must be 2 for RAID6: revert to 2")));
        }
        if reed_solomon && ![8, 16, 32].contains(&w) {
            return Err((
                EINVAL,
                format!("{name}: w={w} must be one of {{8, 16, 32}} : revert to 8"),
            ));
        }
    }
    Ok(())
}

pub(super) fn get(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let name = args.str("name");
    match ctx.work.osd().ec_profiles.get(&name) {
        Some(p) => {
            text_or_json(ctx, || p.iter().map(|(k, v)| format!("{k}={v}\n")).collect(), || json!(p))
        }
        None => CommandResult::err(ENOENT, format!("unknown erasure code profile '{name}'")),
    }
}

pub(super) fn rm(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let name = args.str("name");
    let pools = users(ctx, &name);
    if !pools.is_empty() {
        return settle(Err(in_use(&pools, &name)));
    }
    if ctx.work.osd_mut().ec_profiles.remove(&name).is_none() {
        return CommandResult::ok(format!("erasure-code-profile {name} does not exist"));
    }
    CommandResult::default()
}

pub(super) fn ls(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let names: Vec<&String> = ctx.work.osd().ec_profiles.keys().collect();
    if ctx.format.is_json() {
        return json_out(ctx, &json!(names));
    }
    CommandResult::data(names.iter().map(|n| format!("{n}\n")).collect::<String>())
}
