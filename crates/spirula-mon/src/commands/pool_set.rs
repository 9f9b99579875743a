//! `osd pool set` and `osd pool get`: one row per variable.

use super::pool::{edit, pool_id};
use super::{Args, CommandResult, CommandSpec, Outcome, json_out, settle};
use crate::absent;
use crate::mon::CommandCtx;
use crate::pools::check_pg_count;
use serde_json::{Map, Value, json};
use spirula_format::general;
use spirula_maps::osdmap::opts::{self, PoolOptType, opt};
use spirula_maps::osdmap::pool::{flag, flag_by_name};
use spirula_maps::{PgPool, PoolOptValue};
use spirula_types::PoolId;
use spirula_types::errno::{EEXIST, EINVAL, ENOENT, EOPNOTSUPP, EPERM, ERANGE};

pub(super) const SPECS: &[CommandSpec] = &[
    CommandSpec {
        sig: "osd pool get name=pool,type=CephPoolname \
            name=var,type=CephChoices,strings=size|min_size|pg_num|pgp_num|crush_rule|hashpspool|nodelete|nopgchange|nosizechange|write_fadvise_dontneed|noscrub|nodeep-scrub|hit_set_type|hit_set_period|hit_set_count|hit_set_fpp|use_gmt_hitset|target_max_objects|target_max_bytes|cache_target_dirty_ratio|cache_target_dirty_high_ratio|cache_target_full_ratio|cache_min_flush_age|cache_min_evict_age|erasure_code_profile|min_read_recency_for_promote|all|min_write_recency_for_promote|fast_read|hit_set_grade_decay_rate|hit_set_search_last_n|scrub_min_interval|scrub_max_interval|deep_scrub_interval|recovery_priority|recovery_op_priority|scrub_priority|compression_mode|compression_algorithm|compression_required_ratio|compression_max_blob_size|compression_min_blob_size|csum_type|csum_min_block|csum_max_block|allow_ec_overwrites|fingerprint_algorithm|pg_autoscale_mode|pg_autoscale_bias|pg_num_min|pg_num_max|target_size_bytes|target_size_ratio|dedup_tier|dedup_chunk_algorithm|dedup_cdc_chunk_size|bulk",
        help: "get pool parameter <var>",
        module: "osd",
        perm: "r",
        flags: 0,
        run: get,
    },
    CommandSpec {
        sig: "osd pool set name=pool,type=CephPoolname \
            name=var,type=CephChoices,strings=size|min_size|pg_num|pgp_num|pgp_num_actual|crush_rule|hashpspool|nodelete|nopgchange|nosizechange|write_fadvise_dontneed|noscrub|nodeep-scrub|hit_set_type|hit_set_period|hit_set_count|hit_set_fpp|use_gmt_hitset|target_max_bytes|target_max_objects|cache_target_dirty_ratio|cache_target_dirty_high_ratio|cache_target_full_ratio|cache_min_flush_age|cache_min_evict_age|min_read_recency_for_promote|min_write_recency_for_promote|fast_read|hit_set_grade_decay_rate|hit_set_search_last_n|scrub_min_interval|scrub_max_interval|deep_scrub_interval|recovery_priority|recovery_op_priority|scrub_priority|compression_mode|compression_algorithm|compression_required_ratio|compression_max_blob_size|compression_min_blob_size|csum_type|csum_min_block|csum_max_block|allow_ec_overwrites|fingerprint_algorithm|pg_autoscale_mode|pg_autoscale_bias|pg_num_min|pg_num_max|target_size_bytes|target_size_ratio|dedup_tier|dedup_chunk_algorithm|dedup_cdc_chunk_size|bulk name=val,type=CephString name=yes_i_really_mean_it,type=CephBool,req=false",
        help: "set pool parameter <var> to <val>",
        module: "osd",
        perm: "rw",
        flags: 0,
        run: set,
    },
];

/// Flags that are set and read as `true` and `false`.
const FLAG_VARS: [&str; 7] = [
    "hashpspool",
    "nodelete",
    "nopgchange",
    "nosizechange",
    "write_fadvise_dontneed",
    "noscrub",
    "nodeep-scrub",
];

/// Options that are numbers of bytes: they are taken with units, the other numbers are not.
const SIZE_VARS: [&str; 6] = [
    "target_max_bytes",
    "target_size_bytes",
    "compression_max_blob_size",
    "compression_min_blob_size",
    "csum_max_block",
    "csum_min_block",
];

/// A yes-or-no value as people write it.
fn truth(v: &str) -> Option<bool> {
    match v {
        "true" | "1" => Some(true),
        "false" | "0" => Some(false),
        _ => None,
    }
}

/// Sets one of the pool's own options; an empty value or 0 for some removes it.
///
/// # Errors
/// EINVAL if the value is not of the option's type.
pub(super) fn set_option(pool: &mut PgPool, name: &str, value: &str) -> Result<(), (i32, String)> {
    let Some((key, kind)) = opts::lookup(name) else {
        return Err((EINVAL, format!("unrecognized variable '{name}'")));
    };
    let bad = |what: &str| (EINVAL, format!("error parsing {what} value '{value}'"));
    let parsed = match kind {
        PoolOptType::Str => PoolOptValue::Str(value.to_owned()),
        PoolOptType::Int => match name {
            "csum_type" => PoolOptValue::Int(csum_type(value).ok_or_else(|| bad("checksum type"))?),
            _ => {
                let n = value.parse::<i64>().ok();
                let size = || crate::options::parse_size(value).and_then(|v| i64::try_from(v).ok());
                let n = n.or_else(|| SIZE_VARS.contains(&name).then(size).flatten());
                PoolOptValue::Int(n.ok_or_else(|| bad("integer"))?)
            }
        },
        PoolOptType::Double => {
            let f = value.parse::<f64>().ok().filter(|f| f.is_finite());
            PoolOptValue::Double(f.ok_or_else(|| bad("floating point"))?)
        }
    };
    check_option(name, value, &parsed)?;
    let unset = match &parsed {
        PoolOptValue::Str(s) => s.is_empty() || s == "unset",
        PoolOptValue::Int(i) => *i == 0,
        PoolOptValue::Double(f) => *f == 0.0,
    };
    if unset {
        pool.opts.0.remove(&key);
    } else {
        pool.opts.0.insert(key, parsed);
    }
    Ok(())
}

fn check_option(name: &str, value: &str, parsed: &PoolOptValue) -> Result<(), (i32, String)> {
    let one_of = |what: &str, words: &[&str]| {
        let fits = value.is_empty() || value == "unset" || words.contains(&value);
        if fits { Ok(()) } else { Err((EINVAL, format!("unrecognized {what} '{value}'"))) }
    };
    match (name, parsed) {
        ("compression_mode", _) => {
            one_of("compression mode", &["none", "passive", "aggressive", "force"])
        }
        ("compression_algorithm", _) => {
            one_of("compression_algorithm", &["none", "snappy", "zlib", "zstd", "lz4"])
        }
        ("csum_type", PoolOptValue::Int(n))
            if *n != 0 && !(opt::CSUM_XXHASH64..=opt::CSUM_CRC32C_8).contains(n) =>
        {
            Err((
                EINVAL,
                format!("this version cannot use csum_type '{value}': choose crc32c or xxhash64"),
            ))
        }
        ("compression_max_blob_size" | "compression_min_blob_size", PoolOptValue::Int(n))
            if !(0..=1 << 30).contains(n) =>
        {
            Err((EINVAL, format!("{name} must be between 0 and 1 GiB")))
        }
        ("fingerprint_algorithm", _) => {
            one_of("fingerprint_algorithm", &["sha1", "sha256", "sha512"])
        }
        ("compression_required_ratio", PoolOptValue::Double(f)) if !(0.0..=1.0).contains(f) => {
            Err((EINVAL, "compression_required_ratio is out of range (0-1)".into()))
        }
        ("pg_autoscale_bias", PoolOptValue::Double(f)) if !(0.0..=1000.0).contains(f) => {
            Err((EINVAL, "pg_autoscale_bias must be between 0 and 1000".into()))
        }
        ("recovery_priority", PoolOptValue::Int(n)) if !(-10..=10).contains(n) => {
            Err((EINVAL, "recovery_priority must be between -10 and 10".into()))
        }
        ("pg_num_min" | "pg_num_max" | "target_size_bytes", PoolOptValue::Int(i)) if *i < 0 => {
            Err((EINVAL, format!("{name} must not be negative")))
        }
        _ => Ok(()),
    }
}

/// Checksum types by their numbers, as pools carry them.
const CSUM_TYPES: [&str; 7] =
    ["", "none", "xxhash32", "xxhash64", "crc32c", "crc32c_16", "crc32c_8"];

/// Numbers of checksum types, as pools carry them.
fn csum_type(name: &str) -> Option<i64> {
    CSUM_TYPES.iter().position(|n| *n == name).map(|i| i as i64).or_else(|| name.parse().ok())
}

fn set(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let (id, _) = pool_id(ctx, args, "pool")?;
        let (var, val) = (args.str("var"), args.str("val"));
        let sure = args.bool("yes_i_really_mean_it");
        let number = || {
            val.parse::<u32>().map_err(|_| (EINVAL, format!("error parsing integer value '{val}'")))
        };
        match var.as_str() {
            "fast_read" if !ctx.work.osd().pool(id).is_some_and(PgPool::is_erasure) => {
                return Err((EINVAL, "fast_read is for erasure-coded pools alone".into()));
            }
            "dedup_tier" if ctx.work.osd().pool_by_name(&val).is_none() => {
                return Err((EINVAL, format!("dedup_tier is a pool: there is no pool '{val}'")));
            }
            _ => absent::pool_var(&var, &val)?,
        }
        match var.as_str() {
            "size" => set_size(ctx, id, number()?, sure)?,
            "min_size" => set_min_size(ctx, id, number()?)?,
            "pg_num" => set_pg_num(ctx, id, number()?)?,
            "pgp_num" => set_pgp_num(ctx, id, number()?, false)?,
            "pgp_num_actual" => set_pgp_num(ctx, id, number()?, true)?,
            "crush_rule" => set_rule(ctx, id, &val)?,
            // "off", or it was refused.
            "pg_autoscale_mode" => edit(ctx, id)?.pg_autoscale_mode = 0,
            "allow_ec_overwrites" => {
                if !ctx.work.osd().pool(id).is_some_and(PgPool::is_erasure) {
                    return Err((
                        EINVAL,
                        "ec overwrites can only be enabled for an erasure coded pool".into(),
                    ));
                }
                if truth(&val) != Some(true) {
                    return Err((EINVAL, "ec overwrites cannot be disabled once enabled".into()));
                }
                edit(ctx, id)?.flags |= flag::EC_OVERWRITES;
            }
            "fast_read" => {
                if !ctx.work.osd().pool(id).is_some_and(PgPool::is_erasure) {
                    return Err((EINVAL, "fast read is not supported in replication pool".into()));
                }
                edit(ctx, id)?.fast_read = truth(&val).ok_or_else(|| {
                    (EINVAL, format!("expecting value 'true', 'false', '0', or '1', got '{val}'"))
                })?;
            }
            "use_gmt_hitset" => edit(ctx, id)?.use_gmt_hitset = truth(&val).unwrap_or(true),
            "bulk" => set_flag(ctx, id, flag::BULK, &val)?,
            flag_name if FLAG_VARS.contains(&flag_name) => {
                if flag_name == "hashpspool" && !sure {
                    return Err((
                        EPERM,
                        "are you SURE?  this will remap all placement groups in \
                        this pool, this triggers large data movement, pass --yes-i-really-mean-it \
                        if you really do."
                            .into(),
                    ));
                }
                let bit = flag_by_name(flag_name).unwrap_or(0);
                set_flag(ctx, id, bit, &val)?;
            }
            option => set_option(edit(ctx, id)?, option, &val)?,
        }
        Ok(CommandResult::ok(format!("set pool {id} {var} to {val}")))
    };
    settle(run())
}

fn set_flag(
    ctx: &mut CommandCtx<'_>,
    id: PoolId,
    bit: u64,
    val: &str,
) -> Result<(), (i32, String)> {
    let on = truth(val).ok_or_else(|| {
        (EINVAL, format!("expecting value 'true', 'false', '0', or '1', got '{val}'"))
    })?;
    let pool = edit(ctx, id)?;
    if on {
        pool.flags |= bit;
    } else {
        pool.flags &= !bit;
    }
    Ok(())
}

fn set_size(ctx: &mut CommandCtx<'_>, id: PoolId, n: u32, sure: bool) -> Result<(), (i32, String)> {
    let pool = ctx.work.osd().pool(id).cloned().unwrap_or_default();
    if pool.has_flag(flag::NOSIZECHANGE) {
        return Err((
            EPERM,
            "pool size change is disabled; you must unset nosizechange flag for the pool first"
                .into(),
        ));
    }
    if pool.is_erasure() {
        return Err((EOPNOTSUPP, "can not change the size of an erasure-coded pool".into()));
    }
    if !(1..=10).contains(&n) {
        return Err((EINVAL, "pool size must be between 1 and 10".into()));
    }
    let size = n as u8;
    if size == 1 {
        if !ctx.work.state.option_bool("mon_allow_pool_size_one") {
            return Err((EPERM, "configuring pool size as 1 is disabled by default.".into()));
        }
        if !sure {
            let name = ctx.work.osd().pool_name(id).to_owned();
            return Err((
                EPERM,
                format!(
                    "WARNING: setting pool size 1 could lead to data loss without recovery. If you \
                        are *ABSOLUTELY CERTAIN* that is what you want, pass the flag \
                        --yes-i-really-mean-it. (pool '{name}')"
                ),
            ));
        }
    }
    if size > pool.size {
        check_pg_count(ctx.work, pool.pg_num, size, Some(id))?;
    }
    let min_size = crate::pools::default_min_size(ctx.work, size);
    let p = edit(ctx, id)?;
    p.size = size;
    p.min_size = min_size;
    Ok(())
}

fn set_min_size(ctx: &mut CommandCtx<'_>, id: PoolId, n: u32) -> Result<(), (i32, String)> {
    let pool = ctx.work.osd().pool(id).cloned().unwrap_or_default();
    if pool.has_flag(flag::NOSIZECHANGE) {
        return Err((
            EPERM,
            "pool min size change is disabled; you must unset nosizechange flag for the pool first"
                .into(),
        ));
    }
    let max = u32::from(pool.size);
    if n < 1 || n > max {
        return Err((
            EINVAL,
            format!("pool min_size must be between 1 and size, which is set to {max}"),
        ));
    }
    if pool.is_erasure() {
        let k = crate::pools::erasure(ctx.work, &pool.erasure_code_profile)
            .map_or(max, |e| u32::from(e.k));
        if n < k {
            return Err((
                EINVAL,
                format!("pool min_size must be between {k} and size, which is set to {max}"),
            ));
        }
    }
    edit(ctx, id)?.min_size = n as u8;
    Ok(())
}

fn set_pg_num(ctx: &mut CommandCtx<'_>, id: PoolId, n: u32) -> Result<(), (i32, String)> {
    let pool = ctx.work.osd().pool(id).cloned().unwrap_or_default();
    if pool.has_flag(flag::NOPGCHANGE) {
        return Err((
            EPERM,
            "pool pg_num change is disabled; you must unset nopgchange flag for the pool first"
                .into(),
        ));
    }
    let max = ctx.work.state.option_u64("mon_max_pool_pg_num") as u32;
    if n == 0 || n > max {
        return Err((
            ERANGE,
            format!(
                "'pg_num' must be greater than 0 and less than or equal to {max} (you may adjust \
                    'mon max pool pg num' for higher values)"
            ),
        ));
    }
    if pool.has_flag(flag::CREATING) && n != pool.pg_num {
        return Err((spirula_types::errno::EBUSY, "currently creating pgs, wait".into()));
    }
    if n > pool.pg_num_target {
        check_pg_count(ctx.work, n, pool.size, Some(id))?;
    }
    let epoch = ctx.work.next_epoch();
    let p = edit(ctx, id)?;
    // Placement follows the number of PGs unless it was set apart before.
    let together = p.pgp_num_target == p.pg_num_target;
    if n < p.pg_num {
        // PGs that are to be merged are placed alike first; the rest is done one by one (`merges`).
        p.pg_num_target = n;
        p.pgp_num_target = if together { n } else { p.pgp_num_target.min(n) };
        p.pg_num_pending = p.pg_num;
        return Ok(());
    }
    p.pg_num = n;
    p.pg_num_target = n;
    p.pg_num_pending = n;
    if together {
        // Placement follows step by step (`placement`).
        p.pgp_num_target = n;
    }
    // Clients resend what they sent to a PG that is now split.
    p.last_force_op_resend = epoch;
    p.last_force_op_resend_prenautilus = epoch;
    p.last_force_op_resend_preluminous = epoch;
    Ok(())
}

/// `at_once`: without pacing, and leaving the target as it is (Ceph's `pgp_num_actual`).
fn set_pgp_num(
    ctx: &mut CommandCtx<'_>,
    id: PoolId,
    n: u32,
    at_once: bool,
) -> Result<(), (i32, String)> {
    let pool = ctx.work.osd().pool(id).cloned().unwrap_or_default();
    if pool.has_flag(flag::NOPGCHANGE) {
        return Err((
            EPERM,
            "pool pgp_num change is disabled; you must unset nopgchange flag for the pool first"
                .into(),
        ));
    }
    if n == 0 {
        return Err((EINVAL, "specified pgp_num must > 0, but you set to 0".into()));
    }
    if n > pool.pg_num {
        return Err((EINVAL, format!("specified pgp_num {n} > pg_num {}", pool.pg_num)));
    }
    let p = edit(ctx, id)?;
    if at_once {
        p.pgp_num = n;
    } else {
        p.pgp_num_target = n;
    }
    Ok(())
}

fn set_rule(ctx: &mut CommandCtx<'_>, id: PoolId, name: &str) -> Result<(), (i32, String)> {
    let crush = &ctx.work.osd().crush;
    let rule = crush
        .rule_of_name(name)
        .ok_or_else(|| (ENOENT, format!("crush rule {name} does not exist")))?;
    let kind = ctx.work.osd().pool(id).map_or(0, |p| p.kind);
    if crush.rule(rule).is_none_or(|r| r.kind != kind) {
        return Err((EINVAL, format!("crush rule {name} type does not match pool")));
    }
    let rule = u8::try_from(rule)
        .map_err(|_| (EEXIST, format!("crush rule {name} has too high a number")))?;
    edit(ctx, id)?.crush_rule = rule;
    Ok(())
}

/// Value of a variable for JSON, and as text; `None` where it is not set or has no meaning.
fn value_of(ctx: &CommandCtx<'_>, pool: &PgPool, var: &str) -> Option<(Value, String)> {
    let plain = |v: Value| {
        let text = match &v {
            Value::String(s) => s.clone(),
            other => other.to_string(),
        };
        Some((v, text))
    };
    match var {
        "size" => plain(pool.size.into()),
        "min_size" => plain(pool.min_size.into()),
        "pg_num" => plain(pool.pg_num.into()),
        "pgp_num" => plain(pool.pgp_num.into()),
        "crush_rule" => {
            let rule = u32::from(pool.crush_rule);
            let name = ctx
                .work
                .osd()
                .crush
                .rule_name(rule)
                .map_or_else(|| rule.to_string(), str::to_owned);
            plain(name.into())
        }
        "use_gmt_hitset" => {
            Some((pool.use_gmt_hitset.into(), u8::from(pool.use_gmt_hitset).to_string()))
        }
        "fast_read" => plain(u8::from(pool.fast_read).into()),
        "pg_autoscale_mode" => plain(pool.autoscale_name().into()),
        "bulk" => plain(pool.has_flag(flag::BULK).into()),
        "erasure_code_profile" => {
            pool.is_erasure().then(|| plain(pool.erasure_code_profile.clone().into())).flatten()
        }
        "allow_ec_overwrites" => {
            pool.is_erasure().then(|| plain(pool.has_flag(flag::EC_OVERWRITES).into())).flatten()
        }
        name if FLAG_VARS.contains(&name) => {
            plain(pool.has_flag(flag_by_name(name).unwrap_or(0)).into())
        }
        option => {
            let (_, value) = pool.opts.named().find(|(n, _)| *n == option)?;
            match value {
                PoolOptValue::Str(s) => plain(s.clone().into()),
                PoolOptValue::Int(i) if option == "csum_type" => {
                    let name = usize::try_from(*i)
                        .ok()
                        .and_then(|i| CSUM_TYPES.get(i))
                        .copied()
                        .unwrap_or("unknown");
                    plain(name.into())
                }
                PoolOptValue::Int(i) => plain((*i).into()),
                PoolOptValue::Double(f) => Some((json!(f), general(*f, 6))),
            }
        }
    }
}

/// What `get … all` shows, in its order.
const ALL_VARS: &[&str] = &[
    "size",
    "min_size",
    "pg_num",
    "pgp_num",
    "crush_rule",
    "hashpspool",
    "nodelete",
    "nopgchange",
    "nosizechange",
    "write_fadvise_dontneed",
    "noscrub",
    "nodeep-scrub",
    "use_gmt_hitset",
    "erasure_code_profile",
    "fast_read",
    "scrub_min_interval",
    "scrub_max_interval",
    "deep_scrub_interval",
    "recovery_priority",
    "recovery_op_priority",
    "scrub_priority",
    "compression_mode",
    "compression_algorithm",
    "compression_required_ratio",
    "compression_max_blob_size",
    "compression_min_blob_size",
    "csum_type",
    "csum_min_block",
    "csum_max_block",
    "allow_ec_overwrites",
    "fingerprint_algorithm",
    "pg_autoscale_mode",
    "pg_autoscale_bias",
    "pg_num_min",
    "pg_num_max",
    "target_size_bytes",
    "target_size_ratio",
    "bulk",
];

fn get(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let run = || -> Outcome {
        let (id, name) = pool_id(ctx, args, "pool")?;
        let pool = ctx.work.osd().pool(id).cloned().unwrap_or_default();
        let var = args.str("var");
        let vars: Vec<&str> = if var == "all" { ALL_VARS.to_vec() } else { vec![var.as_str()] };
        let found: Vec<(&str, (Value, String))> =
            vars.iter().filter_map(|v| Some((*v, value_of(ctx, &pool, v)?))).collect();
        if found.is_empty() {
            let tier = absent::is_tier_var(&var);
            let errno = if tier || var == "erasure_code_profile" || var == "allow_ec_overwrites" {
                13
            } else {
                ENOENT
            };
            let text = match (tier, var.as_str()) {
                (true, _) => format!("pool '{name}' is not a tier pool: variable not applicable"),
                (_, "erasure_code_profile" | "allow_ec_overwrites") => {
                    format!("pool '{name}' is not a erasure pool: variable not applicable")
                }
                _ => format!("option '{var}' is not set on pool '{name}'"),
            };
            return Err((errno, text));
        }
        if !ctx.format.is_json() {
            let text: String = found.iter().map(|(v, (_, t))| format!("{v}: {t}\n")).collect();
            return Ok(CommandResult::data(text));
        }
        let mut out = Map::new();
        out.insert("pool".into(), name.into());
        out.insert("pool_id".into(), id.into());
        out.extend(found.into_iter().map(|(v, (value, _))| (v.to_owned(), value)));
        Ok(json_out(ctx, &Value::Object(out)))
    };
    settle(run())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_bytes_are_taken_with_units_and_other_numbers_without() {
        let mut pool = PgPool::default();
        for name in [
            "compression_max_blob_size",
            "compression_min_blob_size",
            "csum_min_block",
            "csum_max_block",
        ] {
            for (text, bytes) in
                [("4096", 4096), ("64K", 65_536), ("64Ki", 65_536), ("1Mi", 1 << 20)]
            {
                assert_eq!(set_option(&mut pool, name, text), Ok(()), "{name} {text}");
                let (key, _) = opts::lookup(name).expect("an option");
                assert_eq!(pool.opts.0.get(&key), Some(&PoolOptValue::Int(bytes)), "{name} {text}");
            }
        }
        assert!(set_option(&mut pool, "recovery_priority", "1").is_ok());
        for (name, text) in
            [("recovery_priority", "0K"), ("pg_num_min", "1K"), ("csum_min_block", "4Kx")]
        {
            assert_eq!(
                set_option(&mut pool, name, text).map_err(|e| e.0),
                Err(EINVAL),
                "{name} {text}"
            );
        }
    }
}
