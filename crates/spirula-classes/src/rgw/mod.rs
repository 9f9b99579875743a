//! Class `rgw`: the index of a bucket, and what else the gateway for S3 and Swift keeps in omaps.
//!
//! An object of a bucket's index (a *shard*) has a header with totals, and these keys:
//!
//! * `NAME`: an object without versions; or a placeholder that says that there are versions;
//! * `NAME\0vNUMBER\0iVERSION`: a version, in the order in which listings show them, the newest
//!   first;
//! * `0x80 1000_NAME\0iVERSION`: the same, by its name (with `\0d` behind it: the delete marker of
//!   the version "null");
//! * `0x80 1001_NAME`: which version is the newest ([`types::Head`]);
//! * `0x80 0_NUMBER…`: the log.
//!
//! Names that UTF-8 allows do not start with 0x80, and sort before and behind these keys.
//!
//! A change of an object is *prepared* here, done to its data, and *completed* here. What was never
//! completed is found by listings (an entry with something pending) and put right by what they
//! suggest.

mod changes;
mod gc;
mod index;
mod lifecycle;
mod list;
mod log;
mod objects;
mod raw;
mod reshard;
#[cfg(test)]
mod tests;
mod types;
mod usage;
mod versions;

pub(crate) use gc::{Listing, Waste, answer};

use crate::{Class, R, RW, W, method};

pub(crate) const CLASS: Class = Class {
    name: "rgw",
    methods: &[
        method("bucket_init_index", RW, changes::init),
        method("bucket_set_tag_timeout", RW, changes::set_tag_timeout),
        method("bucket_list", R, list::list),
        method("bucket_check_index", R, list::check),
        method("bucket_rebuild_index", RW, list::rebuild),
        method("bucket_update_stats", RW, changes::update_stats),
        method("bucket_prepare_op", RW, changes::prepare),
        method("bucket_complete_op", RW, changes::complete),
        method("bucket_link_olh", RW, versions::link),
        method("bucket_unlink_instance", RW, versions::unlink),
        method("bucket_read_olh_log", R, versions::read_log),
        method("bucket_trim_olh_log", RW, versions::trim_log),
        method("bucket_clear_olh", RW, versions::clear),
        method("obj_remove", RW, objects::remove),
        method("obj_store_pg_ver", W, objects::store_version),
        method("obj_check_attrs_prefix", R, objects::check_attrs),
        method("obj_check_mtime", R, objects::check_mtime),
        method("bi_get", R, raw::get),
        method("bi_put", RW, raw::put),
        method("bi_list", R, raw::list),
        method("bi_log_list", R, log::list),
        method("bi_log_trim", RW, log::trim),
        method("dir_suggest_changes", RW, changes::suggest),
        method("bi_log_resync", RW, log::resync),
        method("bi_log_stop", RW, log::stop),
        method("user_usage_log_add", RW, usage::add),
        method("user_usage_log_read", R, usage::read),
        method("user_usage_log_trim", RW, usage::trim),
        method("usage_log_clear", W, usage::clear),
        method("gc_set_entry", RW, gc::set),
        method("gc_defer_entry", RW, gc::defer),
        method("gc_list", R, gc::list),
        method("gc_remove", RW, gc::remove),
        method("lc_get_entry", R, lifecycle::get),
        method("lc_set_entry", RW, lifecycle::set),
        method("lc_rm_entry", RW, lifecycle::remove),
        method("lc_get_next_entry", R, lifecycle::next),
        method("lc_put_head", RW, lifecycle::put_head),
        method("lc_get_head", R, lifecycle::get_head),
        method("lc_list_entries", R, lifecycle::list),
        method("reshard_add", RW, reshard::add),
        method("reshard_list", R, reshard::list),
        method("reshard_get", R, reshard::get),
        method("reshard_remove", RW, reshard::remove),
        method("set_bucket_resharding", RW, reshard::begin),
        method("clear_bucket_resharding", RW, reshard::end),
        method("guard_bucket_resharding", R, reshard::guard),
        method("get_bucket_resharding", R, reshard::state),
    ],
};

/// An object of Ceph's corpus, read and written.
#[cfg(test)]
pub(crate) fn again(kind: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    types::again(kind, bytes)
        .or_else(|| gc::again(kind, bytes))
        .or_else(|| usage::again(kind, bytes))
        .or_else(|| reshard::again(kind, bytes))
        .or_else(|| lifecycle::again(kind, bytes))
        .or_else(|| raw::again(kind, bytes))
}
