//! `spirula create`: a new cluster of several hosts, begun on this one; `spirula mon rejoin`: a
//! monitor that lost its store.
//!
//! The new cluster is one monitor and one manager, with no OSDs and no pools: hosts come in by
//! `spirula join` ([`crate::join`]), daemons start by `spirula host start` ([`crate::local`]) or
//! systemd.

use crate::cli::{CreateArgs, RejoinArgs};
use crate::cluster::mon::create_joining;
use crate::cluster::{CLUSTER, host};
use crate::dir::{ClusterDir, write_durably};
use crate::options::{Names, Sources};
use crate::process::find_mons;
use crate::remote::Remote;
use crate::{keys, local, net};
use anyhow::{Context, anyhow, bail};
use serde_json::json;
use spirula_mon::image::Identity;
use spirula_mon::{MkfsParams, MonStore, NewMon, mkfs};
use spirula_runtime::{Peer, clock};
use spirula_types::{AddrVec, EntityAddr, EntityType, Uuid};
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

fn draw<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    host::random(&mut bytes).context("draw random bytes")?;
    Ok(bytes)
}

/// A configuration file in the making: sections of options.
#[derive(Debug, Default)]
pub struct Conf(Vec<(String, Vec<(String, String)>)>);

impl Conf {
    /// Sets an option, or sets it anew.
    pub fn set(&mut self, section: &str, name: &str, value: impl Into<String>) {
        let at = self.0.iter().position(|(s, _)| s == section).unwrap_or_else(|| {
            self.0.push((section.to_owned(), Vec::new()));
            self.0.len() - 1
        });
        if let Some((_, options)) = self.0.get_mut(at) {
            options.retain(|(n, _)| n != name);
            options.push((name.to_owned(), value.into()));
        }
    }

    /// What every host's file has: where keys and sockets are, and that clients write no logs.
    pub fn for_dir(dir: &ClusterDir, fsid: Uuid, mons: &[AddrVec]) -> Self {
        let mut c = Self::default();
        let list: Vec<String> = mons.iter().map(ToString::to_string).collect();
        c.set("global", "fsid", fsid.to_string());
        c.set("global", "mon_host", list.join(","));
        c.set("global", "keyring", dir.join("$cluster.$name.keyring").display().to_string());
        if mons.iter().any(|m| m.msgr2().addr.is_some_and(|a| a.is_ipv6())) {
            c.set("global", "ms_bind_ipv6", "true");
            c.set("global", "ms_bind_ipv4", "false");
        }
        c.set("global", "log_file", "");
        c.set("client", crate::conf::KERNEL_OPTION, crate::conf::KERNEL_VALUE);
        c.set("global", "admin_socket", "");
        let socket = dir.join("run/$cluster-$name.asok").display().to_string();
        for kind in ["mon", "mgr", "osd"] {
            c.set(kind, "admin_socket", socket.clone());
        }
        c
    }

    /// Its text.
    pub fn text(&self, head: &str) -> String {
        format!("# {head}; yours to edit.\n") + &self.sections()
    }

    /// The sections alone.
    pub fn sections(&self) -> String {
        let mut out = String::new();
        for (section, options) in &self.0 {
            // Writing to a string does not fail.
            let _ = writeln!(out, "[{section}]");
            for (name, value) in options {
                let _ = writeln!(out, "{name} = {value}");
            }
        }
        out
    }
}

/// Refuses a directory that holds anything but what an interrupted attempt left.
fn must_be_new(dir: &ClusterDir) -> anyhow::Result<()> {
    for name in ["cluster.json", "ceph.conf"] {
        if dir.join(name).exists() {
            bail!(
                "{} holds a cluster already ({name}); choose a new directory with --dir",
                dir.path().display()
            );
        }
    }
    Ok(())
}

/// `spirula create`.
///
/// # Errors
/// When the address is none of this machine's, or the directory cannot be used.
pub fn create(args: &CreateArgs) -> anyhow::Result<()> {
    crate::logs::init();
    let dir = ClusterDir::new(&args.dir)?;
    must_be_new(&dir)?;
    let addr: SocketAddr =
        net::parse_addr(&args.addr, net::MON_PORT).map_err(|e| anyhow!("--addr: {e}"))?;
    let own = net::own_addresses();
    if addr.ip().is_unspecified() || !own.contains(&addr.ip()) {
        let list: Vec<String> = own.iter().map(ToString::to_string).collect();
        bail!(
            "--addr {addr}: other hosts must find this one there; its addresses are {}",
            list.join(", ")
        );
    }
    let lock = dir.lock()?;
    let fsid = match &args.fsid {
        Some(text) => Uuid::parse(text)
            .filter(|u| !u.is_zero())
            .with_context(|| format!("--fsid {text}: no uuid"))?,
        None => Uuid::from_random(draw()?),
    };
    let addrs = AddrVec::one(EntityAddr::v2(addr, 0));
    let mut conf = Conf::for_dir(&dir, fsid, std::slice::from_ref(&addrs));
    for kind in ["auth_cluster_required", "auth_service_required", "auth_client_required"] {
        conf.set("global", kind, if args.no_auth { "none" } else { "cephx" });
    }
    for (name, value) in
        [("public_network", &args.public_network), ("cluster_network", &args.cluster_network)]
    {
        if let Some(value) = value {
            value
                .split(',')
                .try_for_each(|n| net::Network::parse(n).map(drop))
                .map_err(|e| anyhow!("{e}"))?;
            conf.set("global", name, value.clone());
        }
    }
    let users = keys::first_users(&dir, &[format!("mon.{}", args.id), "mgr.x".to_owned()])?;
    let new = NewMon { name: args.id.clone(), addrs, uuid: Uuid(draw()?) };
    let identity = Identity { fsid, uuid: new.uuid, member: 1 };
    let params = MkfsParams {
        fsid,
        mons: vec![new],
        osds: Vec::new(),
        failure_domain: args.failure_domain.clone(),
        defaults: [
            ("osd_pool_default_size", args.pool_size.to_string()),
            ("osd_pool_default_pg_autoscale_mode", "off".to_owned()),
        ]
        .map(|(k, v)| (k.to_owned(), v))
        .into(),
        pools: Vec::new(),
        users,
        service_keys: keys::first_service_keys()?,
    };
    let first = mkfs(&params, clock::wall()).map_err(|e| anyhow!("make the first maps: {e}"))?;
    let data = dir.join(format!("mon.{}", args.id));
    if MonStore::exists(&data) {
        MonStore::wipe(&data).map_err(|e| anyhow!("remove what an earlier attempt left: {e}"))?;
    }
    MonStore::create(&data, identity, &first)
        .map_err(|e| anyhow!("create mon.{}: {e}", args.id))?;
    fs::create_dir_all(dir.join("mgr.x")).context("create the manager's directory")?;
    // Last: with it the cluster is there.
    let text = conf.text("Made by 'spirula create', for Ceph's clients and for the daemons here");
    write_durably(&dir.conf(), text.as_bytes(), 0o644)?;
    drop(lock);
    let at = dir.path().display();
    crate::out!("a new cluster {fsid} in {at}: mon.{} at {addr}, mgr.x, no OSDs yet", args.id);
    if args.start {
        local::start(&dir, &[], false)?;
    } else {
        crate::out!("start it: spirula host start --dir {at}");
    }
    crate::out!("then, for each host: spirula token create --dir {at}");
    Ok(())
}

/// `spirula mon rejoin`.
///
/// # Errors
/// When no other monitor answers, the monitor runs, or its directory cannot be written.
pub fn rejoin(args: &RejoinArgs) -> anyhow::Result<()> {
    crate::logs::init();
    let dir = ClusterDir::new(&args.dir)?;
    let sources = Sources::read(dir.path(), args.conf.as_deref(), &[])?;
    let here = host::hostname();
    let names = Names { cluster: CLUSTER, kind: "mon", id: &args.id, host: &here };
    let settings = sources.settings(names, &dir.path_options())?;
    let set = settings.given("fsid").filter(|f| !f.is_empty());
    let fsid =
        set.and_then(Uuid::parse).context("fsid is not set; take the cluster's ceph.conf")?;
    let run_dir = PathBuf::from(settings.get("run_dir").unwrap_or_default());
    let _lock = dir.lock_daemon(&run_dir, &names.name())?;
    // What is here is given up only while the others can give it back.
    // As a monitor: its key is the one that is here.
    let me = Peer::new(EntityType::Mon, &args.id);
    let login = keys::monitor_login(&me, &keys::monitor(&args.id, &settings)?)?;
    let mut remote = Remote::new(find_mons(&settings, &dir)?, me, login, &settings)?;
    let answer = remote
        .command(&json!({"prefix": "fsid"}))
        .context("the cluster must be there to join it again")?;
    remote.close();
    if Uuid::parse(answer.trim()) != Some(fsid) {
        bail!("the monitors are of cluster {}, the configuration says {fsid}", answer.trim());
    }
    let set = settings.given("mon_data").filter(|d| !d.is_empty()).map(PathBuf::from);
    let data = set.unwrap_or_else(|| dir.join(names.name()));
    create_joining(&data, fsid)?;
    crate::out!(
        "mon.{} has an empty store in {}; it takes the others' when it starts",
        args.id,
        data.display()
    );
    Ok(())
}
