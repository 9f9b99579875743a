//! `--with mds`: two metadata servers, one of them standing by, and a file system.

use super::{Guest, Program, Site, Suite};
use serde_json::json;
use std::ffi::OsString;

/// Names of the servers.
const NAMES: [&str; 2] = ["a", "b"];
/// The file system that is made where there is none, and its pools with their PGs.
const FS: &str = "cephfs";
const METADATA: (&str, u32) = ("cephfs_metadata", 16);
const DATA: (&str, u32) = ("cephfs_data", 32);
/// What a metadata server may do.
const CAPS: [&str; 8] =
    ["mon", "profile mds", "osd", "allow rwx", "mds", "allow *", "mgr", "profile mds"];

pub(super) struct Mds;

impl Suite for Mds {
    fn programs(&self) -> &'static [Program] {
        &[Program { name: "ceph-mds", package: "ceph-mds" }]
    }

    fn prepare(&self, site: &mut Site) -> anyhow::Result<()> {
        for name in NAMES {
            site.user(&format!("mds.{name}"), &CAPS)?;
        }
        let there = site.json(json!({"prefix": "fs ls"}))?;
        if there.as_array().is_some_and(Vec::is_empty) {
            site.pool(METADATA.0, METADATA.1)?;
            site.pool(DATA.0, DATA.1)?;
            site.command(
                &json!({"prefix": "fs new", "fs_name": FS, "metadata": METADATA.0, "data": DATA.0}),
            )?;
        }
        Ok(())
    }

    fn guests(&self, site: &Site) -> Vec<Guest> {
        let one = |id: &str| {
            let name = format!("mds.{id}");
            let mut args = site.common_args(id, &name);
            // What it says stands in its log by way of its standard error.
            args.extend(["--log-to-stderr=true", "--err-to-stderr=true"].map(OsString::from));
            // One that lost its rank would replace itself (execve, from whatever thread), and so
            // lose what ends it with us. It is to end; whoever started it starts it again.
            args.push("--mds-valgrind-exit=true".into());
            Guest { name, program: "ceph-mds", args }
        };
        NAMES.into_iter().map(one).collect()
    }

    fn serves(&self, site: &mut Site) -> anyhow::Result<bool> {
        let map = site.json(json!({"prefix": "fs dump"}))?;
        let all = map["filesystems"].as_array().into_iter().flatten();
        let served = |fs: &serde_json::Value| {
            let servers = fs["mdsmap"]["info"].as_object().into_iter().flatten();
            servers.into_iter().any(|(_, i)| i["state"] == "up:active")
        };
        Ok(all.into_iter().all(served))
    }

    fn hints(&self, site: &Site) -> Vec<String> {
        let conf = site.dir.conf();
        vec![
            format!(
                "File system {FS} (Debian: apt-get install ceph-fuse), with two metadata servers:"
            ),
            format!("  ceph-fuse -c {} -n client.admin /mnt", conf.display()),
            format!("  ceph -c {} fs status", conf.display()),
        ]
    }
}
