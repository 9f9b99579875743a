//! What Ceph's monitors can be asked for and this version does not do: refused in one way.
//!
//! Whoever is told "yes" relies on it. So a request for something that nothing here would act on
//! is refused with EOPNOTSUPP and a sentence that names what is missing, and nothing about it is
//! written into a map. What asks for the state that holds anyway (`fast_read false`) is granted.

use crate::pools::Refusal;
use spirula_types::errno::{EACCES, EOPNOTSUPP};

/// The refusal of something that is missing, with a sentence that says what.
pub fn refusal(why: impl Into<String>) -> Refusal {
    (EOPNOTSUPP, why.into())
}

/// Variables of pools that nothing here acts on, and why, by what is missing.
const POOL_VARS: &[(&str, &[&str])] = &[
    (
        "has no cache tiers",
        &[
            "hit_set_type",
            "hit_set_period",
            "hit_set_count",
            "hit_set_fpp",
            "hit_set_grade_decay_rate",
            "hit_set_search_last_n",
            "use_gmt_hitset",
            "target_max_objects",
            "target_max_bytes",
            "cache_target_dirty_ratio",
            "cache_target_dirty_high_ratio",
            "cache_target_full_ratio",
            "cache_min_flush_age",
            "cache_min_evict_age",
            "min_read_recency_for_promote",
            "min_write_recency_for_promote",
        ],
    ),
    (
        "has no deduplication",
        &["dedup_tier", "dedup_chunk_algorithm", "dedup_cdc_chunk_size", "fingerprint_algorithm"],
    ),
    (
        "has no PG autoscaler yet",
        &[
            "pg_autoscale_mode",
            "pg_autoscale_bias",
            "pg_num_min",
            "pg_num_max",
            "target_size_bytes",
            "target_size_ratio",
            "bulk",
        ],
    ),
    ("has one block size for checksums", &["csum_min_block", "csum_max_block"]),
    ("waits for all shards that a read asks for", &["fast_read"]),
    ("keeps no page cache that the hint could spare", &["write_fadvise_dontneed"]),
];

/// True for variables that only pools of a cache tier have.
pub fn is_tier_var(var: &str) -> bool {
    POOL_VARS.first().is_some_and(|(_, vars)| vars.contains(&var)) || var == "dedup_tier"
}

/// Refuses to give a pool's variable a value that nothing would act on.
///
/// # Errors
/// EACCES for a variable that only cache tiers have: no pool here is one. EOPNOTSUPP with what is
/// missing otherwise.
pub fn pool_var(var: &str, value: &str) -> Result<(), Refusal> {
    if is_tier_var(var) && var != "dedup_tier" {
        return Err((EACCES, format!("the pool has no '{var}': this version has no cache tiers")));
    }
    // What holds anyway; a pool that is no tier has no such variable, whatever its value.
    let known = !is_tier_var(var) && !var.starts_with("dedup_");
    let off = matches!(value, "" | "0" | "0.0" | "false" | "off" | "unset");
    if known && off || (var, value) == ("pg_autoscale_bias", "1") {
        return Ok(());
    }
    match POOL_VARS.iter().find(|(_, vars)| vars.contains(&var)) {
        Some((why, _)) => {
            Err(refusal(format!("this version {why}: '{var}' cannot be set to '{value}'")))
        }
        None => Ok(()),
    }
}
