//! Debian packages that the tests drive the cluster with.

use crate::run::{have, status};
use std::process::Command;

/// (program, line of Debian's Python, header, or library below a folder of /usr/lib, that shows it
/// is there; package; what needs it)
const NEEDED: &[(&str, &str, &str)] = &[
    ("ceph", "ceph-common", "every end-to-end test"),
    ("crushtool", "ceph-base", "CRUSH comparison"),
    ("osdmaptool", "ceph-base", "OSD map comparison"),
    ("monmaptool", "ceph-base", "monitor map comparison"),
    ("import rados", "python3-rados", "librados tests"),
    ("import rbd", "python3-rbd", "block images by librbd"),
    ("qemu-img", "qemu-utils", "block images by qemu"),
    ("qemu/block-rbd.so", "qemu-block-extra", "block images by qemu"),
    ("rbd-mirror", "rbd-mirror", "block images that are mirrored"),
    ("g++", "g++", "programs in C++"),
    ("librados.so", "librados-dev", "programs in C++ and Go"),
    ("rados/librados.hpp", "libradospp-dev", "programs in C++"),
    ("librbd.so", "librbd-dev", "programs in C++ and Go"),
    ("tgtd", "tgt", "block images by iSCSI"),
    ("backing-store/bs_rbd.so", "tgt-rbd", "block images by iSCSI"),
    ("iscsi-ls", "libiscsi-bin", "block images by iSCSI"),
    (
        "qemu-system-x86_64",
        "qemu-system-x86",
        "the kernel's own clients of block images and file systems",
    ),
    ("busybox", "busybox-static", "the kernel's own clients of block images and file systems"),
    ("import pytest", "python3-pytest", "every end-to-end test"),
    ("import xdist", "python3-pytest-xdist", "end-to-end tests three at a time"),
    ("fio", "fio", "fio's rados engine"),
    ("mariadbd", "mariadb-server", "the lab's MariaDB"),
    ("chromium-headless-shell", "chromium-headless-shell", "the lab's report in a browser"),
    ("ceph-mon", "ceph-mon", "the lab on a real Ceph"),
    ("ceph-osd", "ceph-osd", "the lab on a real Ceph"),
    ("ceph-mgr", "ceph-mgr", "the lab on a real Ceph"),
    ("jq", "jq", "shell checks"),
    ("ip", "iproute2", "hosts as network namespaces"),
    ("ceph-mds", "ceph-mds", "file systems"),
    ("ceph-fuse", "ceph-fuse", "file systems"),
    ("setfattr", "attr", "file systems"),
    ("rsync", "rsync", "file systems"),
    ("import cephfs", "python3-cephfs", "file systems by libcephfs"),
    ("ganesha.nfsd", "nfs-ganesha-ceph", "file systems by NFS"),
    ("radosgw", "radosgw", "S3 and Swift"),
    ("import boto3", "python3-boto3", "S3 by boto3"),
    ("s3cmd", "s3cmd", "S3 by s3cmd"),
    ("swift", "python3-swiftclient", "Swift"),
];

fn present(probe: &str) -> bool {
    if probe.starts_with("import ") {
        return Command::new("/usr/bin/python3")
            .args(["-c", probe])
            .output()
            .is_ok_and(|o| o.status.success());
    }
    if probe.ends_with(".hpp") {
        return std::path::Path::new("/usr/include").join(probe).is_file();
    }
    if probe.ends_with(".so") {
        let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
        return folders.into_iter().any(|f| f.path().join(probe).is_file());
    }
    have(probe)
}

/// Packages that are not there, each with what needs it.
pub type Missing = Vec<(&'static str, &'static str)>;

fn missing() -> Missing {
    let mut found: Vec<(&str, &str)> = Vec::new();
    for (probe, package, why) in NEEDED {
        if !present(probe) && !found.iter().any(|(p, _)| p == package) {
            found.push((package, why));
        }
    }
    found
}

/// Installs what is missing, if this is Debian and we are root; returns the packages that
/// are still missing, with what needs them.
///
/// # Errors
/// When apt cannot be started.
pub fn install() -> anyhow::Result<Missing> {
    let wanted = missing();
    if wanted.is_empty() {
        return Ok(wanted);
    }
    let names: Vec<&str> = wanted.iter().map(|(p, _)| *p).collect();
    if !can_install() {
        eprintln!(
            "xtask: missing: {}. {}; tests that need them are skipped, by name.\n       On Debian: \
                sudo apt-get install {}",
            names.join(" "),
            if have("apt-get") {
                "Not root, so not installed"
            } else {
                "This is not Debian, so not installed"
            },
            names.join(" ")
        );
        return Ok(wanted);
    }
    let apt = |args: &[&str]| {
        let mut c = Command::new("apt-get");
        c.env("DEBIAN_FRONTEND", "noninteractive").args(["-y", "-qq"]).args(args);
        status(&mut c)
    };
    apt(&["update"])?;
    let mut args = vec!["install", "--no-install-recommends"];
    args.extend(names);
    if !apt(&args)? {
        // One name that this release does not know must not keep the others away.
        for (package, _) in missing() {
            apt(&["install", "--no-install-recommends", package])?;
        }
    }
    Ok(missing())
}

/// Can packages be installed here? Then whatever the end-to-end tests need has to be there.
pub fn can_install() -> bool {
    have("apt-get") && is_root()
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|o| o.stdout.starts_with(b"0"))
}
