//! What an OSD says of its store in its metadata, under the names that Ceph's tools read.
//!
//! The names are BlueStore's; the values are this store's, found out and never assumed: a key whose
//! value is not known is left out.

use super::host;
use spirula_store::{BLOCK, Io, StorePaths};
use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// When a store was made, and by which version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// The time (ISO 8601).
    pub at: String,
    /// The version.
    pub by: String,
}

fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device())
}

/// Does the kernel say that the disk `path` takes back what is not needed? A file always can give
/// back space to its file system.
fn gives_back(path: &Path) -> bool {
    !is_device(path)
        || host::queue_fact(path, "discard_max_bytes").is_some_and(|bytes| bytes != "0")
}

/// The facts of the store in `data`, whose data space has `size` bytes.
pub fn facts(data: &Path, size: u64, io: Io, made: Option<&Made>) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    let mut put = |key: &str, value: String| {
        out.insert(key.to_owned(), value);
    };
    let flag = |on: bool| u8::from(on).to_string();
    put("bluestore_min_alloc_size", BLOCK.to_string());
    put("bluestore_bdev_size", size.to_string());
    put("bluestore_bdev_driver", io.to_string());
    if let Some(made) = made {
        put("created_at", made.at.clone());
        put("ceph_version_when_created", made.by.clone());
    }
    let Ok(paths) = StorePaths::find(data) else { return out };
    let main = &paths.main;
    put("bluestore_bdev_path", main.display().to_string());
    put("bluestore_bdev_access_mode", if is_device(main) { "blk" } else { "file" }.to_owned());
    put("bluestore_bdev_devices", host::disk_facts(main).remove("devices").unwrap_or_default());
    put("bluestore_bdev_block_size", BLOCK.to_string());
    put("bluestore_bdev_support_discard", flag(gives_back(main)));
    let class = host::device_class(main);
    if !class.is_empty() {
        put("bluestore_bdev_rotational", flag(class == "hdd"));
        put("bluestore_bdev_type", class);
    }
    // There is no BlueFS; what holds the metadata and the journal here is told all the same.
    let (db, wal) = (paths.meta.is_some(), paths.journal.as_deref().is_some_and(is_device));
    put("bluefs", flag(false));
    put("bluefs_dedicated_db", flag(db));
    put("bluefs_dedicated_wal", flag(wal));
    put("bluefs_single_shared_device", flag(!db && !wal));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_left_out() {
        let dir = std::env::temp_dir().join(format!("spirula-facts-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let none = facts(&dir.join("nowhere"), 1 << 30, Io::Threads, None);
        assert_eq!(none.get("bluestore_bdev_size").map(String::as_str), Some("1073741824"));
        assert!(
            !none.contains_key("bluestore_bdev_path") && !none.contains_key("created_at"),
            "{none:?}"
        );
        let file = dir.join("block");
        std::fs::write(&file, "x").unwrap();
        let made = Made { at: "2026-11-23T00:00:00.000000Z".into(), by: "v".into() };
        let all = facts(&file, 1 << 30, Io::Threads, Some(&made));
        let of = |key: &str| all.get(key).map_or("", String::as_str);
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(
            (of("bluestore_bdev_access_mode"), of("bluestore_bdev_support_discard")),
            ("file", "1")
        );
        assert_eq!(
            (of("bluefs"), of("bluefs_single_shared_device"), of("created_at")),
            ("0", "1", made.at.as_str())
        );
    }
}
