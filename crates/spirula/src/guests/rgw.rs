//! `--with rgw`: a gateway for S3 and Swift over HTTP, and a first user.
//!
//! The gateway listens on the port nine above the monitors' first, which nobody else of a cluster
//! has. Its address and the first user's keys are in `DIR/rgw.json`, for the directory's owner
//! alone, and in what `up` prints.

use super::{Guest, Program, Site, Suite, finished};
use crate::dir::write_durably;
use crate::keys;
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

/// Its user in the cluster, and what that may do, as Ceph's documentation gives it.
const ENTITY: &str = "client.rgw.a";
const CAPS: [&str; 6] = ["mon", "allow rw", "osd", "allow rwx", "mgr", "allow rw"];
/// Its pools, and their PGs. Those that are not there it would make itself, with so many PGs each
/// that three OSDs may not have them all.
const POOLS: [(&str, u32); 7] = [
    (".rgw.root", 8),
    ("default.rgw.log", 8),
    ("default.rgw.control", 8),
    ("default.rgw.meta", 8),
    ("default.rgw.buckets.index", 16),
    ("default.rgw.buckets.data", 32),
    ("default.rgw.buckets.non-ec", 8),
];
/// The first user of S3, and its name for Swift.
const USER: &str = "spirula";
const SUBUSER: &str = "spirula:swift";
/// Ports from the monitors' first to the gateway's.
const PORTS: u16 = 9;
/// How long `radosgw-admin` may take. It waits for its PGs.
const ADMIN_PATIENCE: Duration = Duration::from_secs(30);
/// How long a connection to it may take.
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);
/// Where address and keys are kept.
const FILE: &str = "rgw.json";
/// What `s3cmd -c` reads, and what a shell reads for `swift`.
const S3_FILE: &str = "s3cfg";
const SWIFT_FILE: &str = "swift.env";

pub(super) struct Rgw;

fn addr(site: &Site) -> anyhow::Result<SocketAddr> {
    let port =
        site.manifest.port.checked_add(PORTS).context("the gateway's port would be above 65535")?;
    Ok(SocketAddr::new(site.manifest.bind, port))
}

/// Who it is, and where its files are.
fn common(site: &Site) -> Vec<OsString> {
    let mut args: Vec<OsString> = ["-n", ENTITY, "-c"].map(OsString::from).into();
    args.push(site.dir.conf().into());
    let mut keyring = OsString::from("--keyring=");
    keyring.push(keys::path(&site.dir, ENTITY));
    args.push(keyring);
    args.extend(["--log-file=", "--pid-file="].map(OsString::from));
    if !site.manifest.auth {
        // Without authentication monitors do not encrypt, which gateways insist on otherwise.
        args.push("--ms-mon-client-mode=crc".into());
    }
    args
}

/// `radosgw-admin` with these arguments: does it succeed, and what does it print?
fn admin(site: &Site, args: &[&str]) -> anyhow::Result<(bool, Vec<u8>)> {
    let mut command = Command::new("radosgw-admin");
    command.args(common(site)).args(args).env_remove("CEPH_ARGS").env_remove("CEPH_CONF");
    let (status, text) = finished(command, ADMIN_PATIENCE)?;
    Ok((status.success(), text))
}

/// The first user, if there is one.
fn user(site: &Site) -> anyhow::Result<Option<Value>> {
    let (found, text) = admin(site, &["user", "info", "--uid", USER])?;
    if found {
        serde_json::from_slice(&text).context("understand radosgw-admin").map(Some)
    } else {
        Ok(None)
    }
}

impl Suite for Rgw {
    fn programs(&self) -> &'static [Program] {
        &[
            Program { name: "radosgw", package: "radosgw" },
            Program { name: "radosgw-admin", package: "radosgw" },
        ]
    }

    fn prepare(&self, site: &mut Site) -> anyhow::Result<()> {
        addr(site)?;
        site.user(ENTITY, &CAPS)?;
        for (pool, pgs) in POOLS {
            site.pool(pool, pgs)?;
            site.command(
                &json!({"prefix": "osd pool application enable", "pool": pool, "app": "rgw"}),
            )?;
        }
        Ok(())
    }

    fn finish(&self, site: &mut Site) -> anyhow::Result<()> {
        let addr = addr(site)?;
        let user = match user(site)? {
            Some(user) => user,
            None => {
                let made = ["user", "create", "--uid", USER, "--display-name", "First user"];
                let subuser =
                    ["subuser", "create", "--uid", USER, "--subuser", SUBUSER, "--access", "full"];
                let key =
                    ["key", "create", "--subuser", SUBUSER, "--key-type", "swift", "--gen-secret"];
                for args in [&made[..], &subuser, &key] {
                    if !admin(site, args)?.0 {
                        bail!(
                            "'radosgw-admin -c {} {}' fails",
                            site.dir.conf().display(),
                            args.join(" ")
                        );
                    }
                }
                user(site)?.context("the user that was just made is not there")?
            }
        };
        let facts = json!({
            "url": format!("http://{addr}"),
            "access_key": user["keys"][0]["access_key"],
            "secret_key": user["keys"][0]["secret_key"],
            "swift_user": SUBUSER,
            "swift_key": user["swift_keys"][0]["secret_key"],
        });
        // Clients find the keys in files that nobody else reads: neither what `up` prints nor a
        // list of processes shows them.
        let fact = |name: &str| facts[name].as_str().unwrap_or_default();
        let s3 = format!(
            "[default]\naccess_key = {}\nsecret_key = {}\nhost_base = {addr}\nhost_bucket = \
                {addr}\nuse_https = False\n",
            fact("access_key"),
            fact("secret_key")
        );
        let swift = format!(
            "export ST_AUTH='http://{addr}/auth/v1.0' ST_USER='{SUBUSER}' ST_KEY='{}'\n",
            fact("swift_key").replace('\'', "'\\''")
        );
        write_durably(&site.dir.join(S3_FILE), s3.as_bytes(), 0o600)?;
        write_durably(&site.dir.join(SWIFT_FILE), swift.as_bytes(), 0o600)?;
        write_durably(&site.dir.join(FILE), facts.to_string().as_bytes(), 0o600)
    }

    fn guests(&self, site: &Site) -> Vec<Guest> {
        let Ok(addr) = addr(site) else { return Vec::new() };
        let mut socket = OsString::from("--admin-socket=");
        socket.push(site.socket(ENTITY));
        let mut data = OsString::from("--rgw-data=");
        data.push(site.dir.path());
        let mut args = common(site);
        args.extend([socket, data]);
        args.extend(["-f", "--err-to-stderr=true"].map(OsString::from));
        args.push(format!("--rgw-frontends=beast endpoint={addr} tcp_nodelay=1").into());
        vec![Guest { name: "rgw.a".into(), program: "radosgw", args }]
    }

    fn serves(&self, site: &mut Site) -> anyhow::Result<bool> {
        Ok(TcpStream::connect_timeout(&addr(site)?, CONNECT_PATIENCE).is_ok())
    }

    fn hints(&self, site: &Site) -> Vec<String> {
        let facts = std::fs::read(site.dir.join(FILE)).ok();
        let facts: Value =
            facts.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        let fact = |name: &str| facts[name].as_str().unwrap_or_default().to_owned();
        let url = fact("url");
        if url.is_empty() {
            let conf = site.dir.conf();
            return vec![format!(
                "S3 without a user: 'radosgw-admin -c {} user create …', or start the cluster \
                    anew.",
                conf.display()
            )];
        }
        let file = |name: &str| site.dir.join(name).display().to_string();
        vec![
            format!("S3 and Swift at {url} (keys: {}):", file(FILE)),
            format!("  s3cmd -c {} mb s3://mybucket", file(S3_FILE)),
            format!("  . {} && swift post mycontainer", file(SWIFT_FILE)),
        ]
    }
}
