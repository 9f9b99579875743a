//! Objects as four releases of Ceph encode them.

use super::support::{data, files, read, run, scratch};
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, to_vec};
use spirula_maps::osdmap::{PgMergeMeta, PoolOpts};
use spirula_maps::*;
use std::path::Path;
use std::process::Command;

type Check = fn(&[u8]) -> Result<bool, DecodeError>;

/// Decodes; true if encoding gives the same bytes.
fn check<T: Decode + Encode>(b: &[u8]) -> Result<bool, DecodeError> {
    // One ModuleOption of 16.2.0 has rubbish after its end, so the end is not insisted on.
    let mut d = Decoder::new(b);
    Ok(to_vec(&d.get::<T>()?) == b[..d.position()])
}

/// Type, check, and whether 16.2 writes the very version we write.
const TYPES: &[(&str, Check, bool)] = &[
    ("MonMap", check::<MonMap>, true),
    ("mon_info_t", check::<MonInfo>, true),
    ("OSDMap", check::<OsdMap>, true),
    ("OSDMap::Incremental", check::<Incremental>, true),
    ("pg_pool_t", check::<PgPool>, true),
    ("pool_snap_info_t", check::<PoolSnap>, true),
    ("pool_opts_t", check::<PoolOpts>, true),
    ("pg_merge_meta_t", check::<PgMergeMeta>, true),
    ("osd_info_t", check::<OsdInfo>, true),
    ("osd_xinfo_t", check::<OsdXInfo>, true),
    // 16.2.0 wrote MgrMap v11 and FSMap's mds_info_t v9; 16.2.15, which we follow, one more.
    ("MgrMap", check::<MgrMap>, false),
    ("MgrMap::StandbyInfo", check::<MgrStandby>, true),
    ("MgrMap::ModuleInfo", check::<ModuleInfo>, true),
    ("MgrMap::ModuleOption", check::<ModuleOption>, true),
    ("FSMap", check::<FsMap>, false),
    ("Filesystem", check::<Filesystem>, false),
    ("MDSMap", check::<MdsMap>, true),
    ("MDSMap::mds_info_t", check::<MdsInfo>, false),
    ("object_stat_sum_t", check::<ObjectStatSum>, true),
    ("object_stat_collection_t", check::<ObjectStatCollection>, true),
    ("store_statfs_t", check::<StoreStatfs>, true),
    ("pool_stat_t", check::<PoolStat>, true),
];

fn release(name: &str, exact: bool) {
    let test = format!("objects_of_release_{name}_decode");
    let dir = scratch(&format!("corpus-{name}"));
    run(Command::new("tar").arg("xzf").arg(data("objects.tar.gz")).arg("-C").arg(&dir).arg(name));
    let mut bad = Vec::new();
    for (ty, check, same) in TYPES {
        let at = dir.join(name).join(ty);
        if !at.exists() {
            eprintln!("{test}: no {ty}");
            continue;
        }
        let (mut n, mut identical) = (0, 0);
        for f in files(&at, |_| true) {
            n += 1;
            match check(&read(&f)) {
                Ok(true) => identical += 1,
                // Its mon_info_t have blank addresses of 28 zero bytes; ours are empty.
                Ok(false) if f.ends_with("f122b95288ce97b8c4a277e112a79d00") => {}
                Ok(false) if exact && *same => {
                    bad.push(format!("{}: encodes differently", show(&f)))
                }
                Ok(false) => {}
                Err(e) => bad.push(format!("{}: {e}", show(&f))),
            }
        }
        eprintln!("{test}: {ty}: {n} objects, {identical} encode identically");
    }
    std::fs::remove_dir_all(dir).unwrap();
    assert!(bad.is_empty(), "{test}:\n{}", bad.join("\n"));
}

fn show(p: &Path) -> String {
    p.components()
        .rev()
        .take(2)
        .map(|c| c.as_os_str().to_string_lossy())
        .collect::<Vec<_>>()
        .join(" of ")
}

#[test]
fn objects_of_release_16_2_decode_and_reencode_identically() {
    release("16.2.0", true);
}

#[test]
fn objects_of_release_18_2_decode() {
    release("18.2.0", false);
}

#[test]
fn objects_of_release_19_2_decode() {
    release("19.2.0", false);
}

#[test]
fn objects_of_release_20_3_decode() {
    release("20.3.0", false);
}
