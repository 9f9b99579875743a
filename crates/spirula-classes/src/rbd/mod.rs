//! Class `rbd`: block images. Everything that is known of an image, beside its data, is kept by
//! these methods.
//!
//! | module | objects |
//! |---|---|
//! | `header` | `rbd_header.ID`: size, features, flags, striping, times, metadata; all in the omap |
//! | `snapshot` | the same: snapshots of the image |
//! | `parent` | the same: the image that this one was cloned from; clones of a snapshot. `rbd_children`: clones of the first kind |
//! | `migration` | the same: an image that moves |
//! | `directory` | `rbd_directory`: names and ids; `rbd_id.NAME`; `rbd_trash`; `rbd_namespace` |
//! | `object_map` | `rbd_object_map.ID`: which data objects exist; all in the data |
//! | `data` | data objects |
//! | `group` | `rbd_group_directory`, `rbd_group_header.ID`: groups of images |
//! | `mirror`, `mirror_status` | `rbd_mirroring`: what is mirrored, and where; what mirror daemons say of it |
//!
//! Absent are the methods of images of format 1 (`snap_list`, `snap_add`, `snap_remove`,
//! `snap_rename`): they answer EOPNOTSUPP.

mod data;
mod directory;
mod group;
mod header;
mod migration;
mod mirror;
mod mirror_status;
mod object_map;
mod parent;
mod snapshot;
mod types;

use crate::{Call, Class, R, RW, Stop, W, fail, method};
use bytes::Bytes;
use spirula_types::errno;
use types::feature;

/// Methods that bring data, or make objects ([`Class::brings`]).
pub(crate) const BRING: [&str; 8] = [
    "create",
    "copyup",
    "sparse_copyup",
    "object_map_save",
    "object_map_resize",
    "metadata_set",
    "snapshot_add",
    "dir_add_image",
];

pub(crate) const CLASS: Class = Class {
    name: "rbd",
    methods: &[
        method("create", RW, header::create),
        method("get_features", R, header::get_features),
        method("set_features", RW, header::set_features),
        method("get_all_features", R, header::get_all_features),
        method("get_size", R, header::get_size),
        method("set_size", RW, header::set_size),
        method("get_object_prefix", R, header::get_object_prefix),
        method("get_data_pool", R, header::get_data_pool),
        method("get_stripe_unit_count", R, header::get_stripe_unit_count),
        method("set_stripe_unit_count", RW, header::set_stripe_unit_count),
        method("get_create_timestamp", R, header::get_create_timestamp),
        method("get_access_timestamp", R, header::get_access_timestamp),
        method("get_modify_timestamp", R, header::get_modify_timestamp),
        method("set_access_timestamp", RW, header::set_access_timestamp),
        method("set_modify_timestamp", RW, header::set_modify_timestamp),
        method("get_flags", R, header::get_flags),
        method("set_flags", RW, header::set_flags),
        method("op_features_get", R, header::op_features_get),
        method("op_features_set", RW, header::op_features_set),
        method("metadata_list", R, header::metadata_list),
        method("metadata_set", RW, header::metadata_set),
        method("metadata_remove", RW, header::metadata_remove),
        method("metadata_get", R, header::metadata_get),
        method("get_snapcontext", R, snapshot::get_snapcontext),
        method("get_snapshot_name", R, snapshot::get_snapshot_name),
        method("get_snapshot_timestamp", R, snapshot::get_snapshot_timestamp),
        method("snapshot_get", R, snapshot::snapshot_get),
        method("snapshot_add", RW, snapshot::snapshot_add),
        method("snapshot_remove", RW, snapshot::snapshot_remove),
        method("snapshot_rename", RW, snapshot::snapshot_rename),
        method("snapshot_trash_add", RW, snapshot::snapshot_trash_add),
        method("snapshot_get_limit", R, snapshot::snapshot_get_limit),
        method("snapshot_set_limit", RW, snapshot::snapshot_set_limit),
        method("get_protection_status", R, snapshot::get_protection_status),
        method("set_protection_status", RW, snapshot::set_protection_status),
        method("get_parent", R, parent::get_parent),
        method("set_parent", RW, parent::set_parent),
        method("remove_parent", RW, parent::remove_parent),
        method("parent_get", R, parent::parent_get),
        method("parent_overlap_get", R, parent::parent_overlap_get),
        method("parent_attach", RW, parent::parent_attach),
        method("parent_detach", RW, parent::parent_detach),
        method("add_child", RW, parent::add_child),
        method("remove_child", RW, parent::remove_child),
        method("get_children", R, parent::get_children),
        method("child_attach", RW, parent::child_attach),
        method("child_detach", RW, parent::child_detach),
        method("children_list", R, parent::children_list),
        method("migration_set", RW, migration::migration_set),
        method("migration_set_state", RW, migration::migration_set_state),
        method("migration_get", R, migration::migration_get),
        method("migration_remove", RW, migration::migration_remove),
        method("get_id", R, directory::get_id),
        method("set_id", RW, directory::set_id),
        method("dir_get_id", R, directory::dir_get_id),
        method("dir_get_name", R, directory::dir_get_name),
        method("dir_list", R, directory::dir_list),
        method("dir_add_image", RW, directory::dir_add_image),
        method("dir_remove_image", RW, directory::dir_remove_image),
        method("dir_rename_image", RW, directory::dir_rename_image),
        method("dir_state_assert", R, directory::dir_state_assert),
        method("dir_state_set", RW, directory::dir_state_set),
        method("trash_add", RW, directory::trash_add),
        method("trash_remove", RW, directory::trash_remove),
        method("trash_list", R, directory::trash_list),
        method("trash_get", R, directory::trash_get),
        method("trash_state_set", RW, directory::trash_state_set),
        method("namespace_add", RW, directory::namespace_add),
        method("namespace_remove", RW, directory::namespace_remove),
        method("namespace_list", R, directory::namespace_list),
        method("object_map_load", R, object_map::object_map_load),
        method("object_map_save", RW, object_map::object_map_save),
        method("object_map_resize", RW, object_map::object_map_resize),
        method("object_map_update", RW, object_map::object_map_update),
        method("object_map_snap_add", RW, object_map::object_map_snap_add),
        method("object_map_snap_remove", RW, object_map::object_map_snap_remove),
        method("copyup", RW, data::copyup),
        method("sparse_copyup", RW, data::sparse_copyup),
        method("assert_snapc_seq", RW, data::assert_snapc_seq),
        method("sparsify", RW, data::sparsify),
        method("group_dir_list", R, directory::dir_list),
        method("group_dir_add", RW, directory::dir_add_image),
        method("group_dir_remove", RW, directory::dir_remove_image),
        method("group_dir_rename", RW, directory::dir_rename_image),
        method("group_image_set", RW, group::group_image_set),
        method("group_image_remove", RW, group::group_image_remove),
        method("group_image_list", R, group::group_image_list),
        method("image_group_add", RW, group::image_group_add),
        method("image_group_remove", RW, group::image_group_remove),
        method("image_group_get", R, group::image_group_get),
        method("group_snap_set", RW, group::group_snap_set),
        method("group_snap_remove", RW, group::group_snap_remove),
        method("group_snap_get_by_id", R, group::group_snap_get_by_id),
        method("group_snap_list", R, group::group_snap_list),
        method("mirror_uuid_get", R, mirror::mirror_uuid_get),
        method("mirror_uuid_set", RW, mirror::mirror_uuid_set),
        method("mirror_mode_get", R, mirror::mirror_mode_get),
        method("mirror_mode_set", RW, mirror::mirror_mode_set),
        method("mirror_peer_ping", RW, mirror::mirror_peer_ping),
        method("mirror_peer_list", R, mirror::mirror_peer_list),
        method("mirror_peer_add", RW, mirror::mirror_peer_add),
        method("mirror_peer_remove", RW, mirror::mirror_peer_remove),
        method("mirror_peer_set_client", RW, mirror::mirror_peer_set_client),
        method("mirror_peer_set_cluster", RW, mirror::mirror_peer_set_cluster),
        method("mirror_peer_set_direction", RW, mirror::mirror_peer_set_direction),
        method("mirror_image_list", R, mirror::mirror_image_list),
        method("mirror_image_get_image_id", R, mirror::mirror_image_get_image_id),
        method("mirror_image_get", R, mirror::mirror_image_get),
        method("mirror_image_set", RW, mirror::mirror_image_set),
        method("mirror_image_remove", RW, mirror::mirror_image_remove),
        method("mirror_image_status_set", RW, mirror_status::mirror_image_status_set),
        method("mirror_image_status_remove", RW, mirror_status::mirror_image_status_remove),
        method("mirror_image_status_get", R, mirror_status::mirror_image_status_get),
        method("mirror_image_status_list", R, mirror_status::mirror_image_status_list),
        method(
            "mirror_image_status_get_summary",
            R,
            mirror_status::mirror_image_status_get_summary,
        ),
        method(
            "mirror_image_status_remove_down",
            RW,
            mirror_status::mirror_image_status_remove_down,
        ),
        method("mirror_image_instance_get", R, mirror_status::mirror_image_instance_get),
        method("mirror_image_instance_list", R, mirror_status::mirror_image_instance_list),
        method("mirror_instances_list", R, mirror::mirror_instances_list),
        method("mirror_instances_add", RW, mirror::mirror_instances_add),
        method("mirror_instances_remove", RW, mirror::mirror_instances_remove),
        method("mirror_image_map_list", R, mirror::mirror_image_map_list),
        method("mirror_image_map_update", W, mirror::mirror_image_map_update),
        method("mirror_image_map_remove", W, mirror::mirror_image_map_remove),
        method("mirror_image_snapshot_unlink_peer", RW, mirror::mirror_image_snapshot_unlink_peer),
        method(
            "mirror_image_snapshot_set_copy_progress",
            RW,
            mirror::mirror_image_snapshot_set_copy_progress,
        ),
    ],
};

/// Keys that are read at a time.
const PAGE: u64 = 64;

impl Call<'_> {
    /// Removes a key, be it there or not; and so the object.
    fn unset_any(&mut self, key: impl AsRef<[u8]>) -> Result<(), Stop> {
        match self.unset(key) {
            Err(Stop::Errno(errno::ENOENT)) => Ok(()),
            other => other,
        }
    }

    /// At most `max` pairs whose keys start with `prefix`, after the key `prefix` + `after`; the
    /// keys without the prefix.
    fn list(&mut self, prefix: &str, after: &[u8], max: u64) -> Result<Vec<(Bytes, Bytes)>, Stop> {
        let mut all = Vec::new();
        let mut last: Bytes = [prefix.as_bytes(), after].concat().into();
        while (all.len() as u64) < max {
            let page = self.object.omap_page(
                &last,
                prefix.as_bytes(),
                PAGE.min(max - all.len() as u64),
            )?;
            if let Some((key, _)) = page.pairs.last() {
                last = key.clone();
            }
            let more = page.more && !page.pairs.is_empty();
            all.extend(
                page.pairs.into_iter().map(|(k, v)| (k.slice(prefix.len().min(k.len())..), v)),
            );
            if !more {
                break;
            }
        }
        Ok(all)
    }

    /// Fails with ENOEXEC unless the image has a feature.
    fn need_feature(&mut self, feature: u64) -> Result<(), Stop> {
        match self.key::<u64>("features")? {
            Some(features) if features & feature == feature => Ok(()),
            _ => fail(errno::ENOEXEC),
        }
    }

    /// Does the image have a feature?
    fn has_feature(&mut self, feature: u64) -> Result<bool, Stop> {
        match self.need_feature(feature) {
            Ok(()) => Ok(true),
            Err(Stop::Errno(errno::ENOEXEC)) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Changes operation features under a mask. The feature bit "some operation feature is set"
    /// follows.
    fn set_op_features(&mut self, value: u64, mask: u64) -> Result<(), Stop> {
        let features: u64 = self.need("features")?;
        let old: u64 = self.key("op_features")?.unwrap_or_default();
        let new = old & !mask | value & mask;
        if new == old {
            return Ok(());
        }
        let with = match new {
            0 => {
                self.unset("op_features")?;
                features & !feature::OPERATIONS
            }
            _ => {
                self.set("op_features", &new)?;
                features | feature::OPERATIONS
            }
        };
        if with != features { self.set("features", &with) } else { Ok(()) }
    }

    /// Text of a UUID that nobody gets twice.
    fn new_uuid(&mut self) -> Bytes {
        let (a, b) = (self.object.unique(), self.object.unique());
        let (version, variant) = ((a & 0xfff) | 0x4000, (b >> 48 & 0x3fff) | 0x8000);
        format!(
            "{:08x}-{:04x}-{version:04x}-{variant:04x}-{:012x}",
            a >> 32,
            a >> 16 & 0xffff,
            b & 0xffff_ffff_ffff
        )
        .into()
    }
}

/// Is this an id that this class may use in a key?
fn valid_id(id: &[u8]) -> bool {
    !id.is_empty() && id.iter().all(u8::is_ascii_alphanumeric)
}
