//! Capabilities for monitors: `allow rw`, `allow service osd r`, `allow command "x" with k=v`,
//! `profile rbd`, `fsname=a`, `network 10.0.0.0/8`.

use super::constraint::{Constraint, all_admit, with};
use super::network::{Network, admits};
use super::osd::OsdCaps;
use super::scan::{self, Scan};
use super::{Args, CapsError, Rwx};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::str::FromStr;

/// One request at a monitor.
#[derive(Clone, Copy, Debug)]
pub struct MonAccess<'a> {
    /// Who asks (`osd.3`): some profiles hold only for the asker's own things.
    pub entity: &'a str,
    /// The part of the monitor: `osd`, `mon`, `auth`, `config-key`, … (a command's module).
    pub service: &'a str,
    /// The command's prefix, or empty.
    pub command: &'a str,
    /// Its arguments; capabilities among them as `caps_mon`, `caps_osd`….
    pub args: &'a Args,
    /// It reads.
    pub read: bool,
    /// It changes.
    pub write: bool,
    /// It executes (keys and other secrets).
    pub exec: bool,
    /// From where.
    pub addr: Option<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Everything,
    Service(String),
    Command(String, BTreeMap<String, Constraint>),
    Profile(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Grant {
    what: What,
    allow: Rwx,
    fs: Option<String>,
    network: Option<Network>,
}

/// Parsed capabilities for monitors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MonCaps {
    grants: Vec<Grant>,
}

fn grant(s: &mut Scan<'_>) -> Option<Grant> {
    s.maybe_spaces();
    let plain = |s: &mut Scan<'_>| {
        s.lit("allow")?;
        s.spaces()?;
        let allow = s.rwx()?;
        let network = s.network();
        let fs = s.attempt(|s| {
            s.spaces()?;
            s.lit("fsname")?;
            s.is()?;
            s.many(|b| b != b'/' && scan::is_word(b)).map(str::to_owned)
        });
        Some(Grant { what: What::Everything, allow, fs, network })
    };
    let profile = |s: &mut Scan<'_>| {
        let _ = s.attempt(|s| {
            s.lit("allow")?;
            s.spaces()
        });
        s.lit("profile")?;
        s.is()?;
        let what = What::Profile(s.str()?.to_owned());
        Some(Grant { what, allow: Rwx::default(), fs: None, network: s.network() })
    };
    let service = |s: &mut Scan<'_>| {
        s.lit("allow")?;
        s.spaces()?;
        s.lit("service")?;
        s.is()?;
        let what = What::Service(s.str()?.to_owned());
        s.spaces()?;
        let allow = s.rwx()?;
        Some(Grant { what, allow, fs: None, network: s.network() })
    };
    let command = |s: &mut Scan<'_>| {
        s.lit("allow")?;
        s.spaces()?;
        s.lit("command")?;
        s.is()?;
        let name = s.str()?.to_owned();
        let what = What::Command(name, with(s, false));
        Some(Grant { what, allow: Rwx::default(), fs: None, network: s.network() })
    };
    let out = s
        .attempt(plain)
        .or_else(|| s.attempt(profile))
        .or_else(|| s.attempt(service))
        .or_else(|| s.attempt(command))?;
    s.maybe_spaces();
    Some(out)
}

impl FromStr for MonCaps {
    type Err = CapsError;

    fn from_str(text: &str) -> Result<Self, CapsError> {
        if text.is_empty() {
            return Err(CapsError::Empty { service: "mon" });
        }
        Ok(Self { grants: scan::grants("mon", text, grant, scan::spaced_comma)? })
    }
}

impl MonCaps {
    /// Those that allow everything: for our own daemons.
    pub fn all() -> Self {
        let grant = Grant { what: What::Everything, allow: Rwx::ANY, fs: None, network: None };
        Self { grants: vec![grant] }
    }

    /// True if one grant, or several together, allow it.
    pub fn allows(&self, access: &MonAccess<'_>) -> bool {
        let mut so_far = Rwx::default();
        for grant in self.grants.iter().filter(|g| admits(g.network.as_ref(), access.addr)) {
            if grant.is_all() {
                return true;
            }
            so_far = so_far.or(grant.allowed(access));
            if so_far.covers(access.read, access.write, access.exec) {
                return true;
            }
        }
        false
    }

    /// True for `allow *` from there.
    pub fn allows_all(&self, addr: Option<IpAddr>) -> bool {
        self.grants.iter().any(|g| g.is_all() && admits(g.network.as_ref(), addr))
    }

    /// True if the file system may be seen: every one, unless each grant names one. As in 16.2,
    /// `all` is a name like others here, and every file system at metadata servers alone.
    pub fn allows_fs(&self, name: &str) -> bool {
        self.grants.iter().any(|g| {
            let grants_something =
                g.allow.r || matches!(g.what, What::Profile(_) | What::Command(..));
            grants_something && g.fs.as_ref().is_none_or(|fs| fs == name)
        })
    }
}

impl MonCaps {
    /// True if the file system may be changed: by who may change all, or what a grant names. Of
    /// profiles those alone do that name the part of the monitor, not `read-write`, as with a
    /// 16.2.15. `entity`: who asks.
    pub fn changes_fs(&self, entity: &str, name: &str) -> bool {
        let args = Args::new();
        let at = |service| MonAccess {
            entity,
            service,
            command: "",
            args: &args,
            read: false,
            write: true,
            exec: false,
            addr: None,
        };
        self.grants.iter().any(|g| {
            let here = g.fs.as_ref().is_none_or(|fs| fs == name);
            let by_profile = |p: &str| {
                p != "read-write"
                    && ["fs", "mds"].into_iter().any(|service| profile(p, &at(service)).w)
            };
            here && (g.allow.w
                || g.allow.any
                || matches!(&g.what, What::Profile(p) if by_profile(p)))
        })
    }
}

impl Grant {
    fn is_all(&self) -> bool {
        self.what == What::Everything && self.allow.any && self.fs.is_none()
    }

    fn allowed(&self, access: &MonAccess<'_>) -> Rwx {
        match &self.what {
            What::Profile(name) => profile(name, access),
            What::Service(name) if name == access.service => self.allow,
            What::Service(_) => Rwx::default(),
            What::Command(name, constraints)
                if name == access.command && all_admit(constraints, access.args) =>
            {
                Rwx::RWX
            }
            What::Command(..) => Rwx::default(),
            // Other daemons' secrets are among the config keys: only `allow *` reaches them as a
            // whole.
            What::Everything if access.service == "config-key" => Rwx::default(),
            What::Everything => self.allow,
        }
    }
}

/// Every profile whose name begins so is one for block devices, with at least the rights of `rbd`.
const BLOCKS: &str = "rbd";

/// What a profile grants for this access. Unknown profiles grant nothing. Source: what `MonCap.cc`
/// of 16.2 expands each to.
fn profile(name: &str, access: &MonAccess<'_>) -> Rwx {
    let services: &[(&str, Rwx)] = match name {
        "mon" => &[("mon", Rwx::RWX), ("log", Rwx::RWX)],
        "osd" => &[("osd", Rwx::RWX), ("mon", Rwx::R), ("pg", Rwx::RW), ("log", Rwx::W)],
        "mds" => &[("mds", Rwx::RWX), ("mon", Rwx::R), ("osd", Rwx::R), ("log", Rwx::W)],
        "mgr" => &[
            ("mgr", Rwx::RWX),
            ("log", Rwx::RW),
            ("mon", Rwx::RW),
            ("mds", Rwx::RW),
            ("fs", Rwx::RW),
            ("osd", Rwx::RW),
            ("auth", Rwx::RX),
            ("config-key", Rwx::RW),
            ("config", Rwx::RW),
        ],
        "bootstrap-osd" | "bootstrap-mds" | "bootstrap-mgr" | "bootstrap-rgw" => {
            &[("mon", Rwx::R), ("osd", Rwx::R)]
        }
        "bootstrap-rbd" | "bootstrap-rbd-mirror" | "crash" => &[("mon", Rwx::R)],
        "fs-client" | "cephfs-mirror" => {
            &[("mon", Rwx::R), ("mds", Rwx::R), ("osd", Rwx::R), ("pg", Rwx::R)]
        }
        "simple-rados-client" | "simple-rados-client-with-blocklist" => {
            &[("mon", Rwx::R), ("osd", Rwx::R), ("pg", Rwx::R)]
        }
        of_blocks if of_blocks.starts_with(BLOCKS) => {
            &[("mon", Rwx::R), ("osd", Rwx::R), ("pg", Rwx::R)]
        }
        "role-definer" => &[("mon", Rwx::R), ("auth", Rwx::RWX)],
        "read-only" if access.service != "config-key" => return Rwx::R,
        "read-write" if access.service != "config-key" => return Rwx::RW,
        _ => return Rwx::default(),
    };
    let by_service = services
        .iter()
        .filter(|(s, _)| *s == access.service)
        .fold(Rwx::default(), |a, (_, rwx)| a.or(*rwx));
    if profile_command(name, access) { by_service.or(Rwx::RWX) } else { by_service }
}

/// True if the profile grants this command as such.
fn profile_command(name: &str, access: &MonAccess<'_>) -> bool {
    let arg = |key: &str| access.args.get(key).map(String::as_str).unwrap_or_default();
    let created = |prefix: &str, caps: &[(&str, &str)]| {
        access.command == "auth get-or-create"
            && arg("entity").starts_with(prefix)
            && caps
                .iter()
                .all(|(service, text)| access.args.get(*service).is_some_and(|c| c == text))
            && only_caps(access.args, caps.iter().map(|(service, _)| *service))
    };
    match (name, access.command) {
        ("osd" | "mds" | "mon" | "mgr", c) if c.starts_with("config-key ") => {
            matches!(
                c,
                "config-key get"
                    | "config-key put"
                    | "config-key set"
                    | "config-key exists"
                    | "config-key delete"
            ) && arg("key").starts_with(&format!("daemon-private/{}/", access.entity))
        }
        ("mds", c) => matches!(c, "osd pool rmsnap" | "osd blocklist" | "osd blacklist"),
        ("mgr", c) => matches!(c, "auth get-or-create" | "auth caps" | "auth rm" | "smart"),
        ("bootstrap-osd", c) => matches!(c, "mon getmap" | "osd new" | "osd purge-new"),
        ("bootstrap-mds" | "bootstrap-mgr" | "bootstrap-rgw", "mon getmap") => true,
        ("bootstrap-mds", _) => created(
            "mds.",
            &[("caps_mon", "allow profile mds"), ("caps_osd", "allow rwx"), ("caps_mds", "allow")],
        ),
        ("bootstrap-mgr", _) => created("mgr.", &[("caps_mon", "allow profile mgr")]),
        ("bootstrap-rgw", _) => {
            created("client.rgw.", &[("caps_mon", "allow rw"), ("caps_osd", "allow rwx")])
        }
        ("bootstrap-rbd", _) => bootstrap_rbd(access, "profile rbd"),
        ("bootstrap-rbd-mirror", _) => bootstrap_rbd(access, "profile rbd-mirror"),
        (of_clients, "osd blocklist" | "osd blacklist")
            if of_clients.starts_with(BLOCKS)
                || of_clients == "simple-rados-client-with-blocklist" =>
        {
            // Fencing dead clients: one instance of one client (address and nonce), no networks, no
            // removal.
            let op = if access.command == "osd blocklist" { "blocklistop" } else { "blacklistop" };
            arg(op) == "add" && !access.args.contains_key("range") && is_instance(arg("addr"))
        }
        ("rbd-mirror", "config-key get") => arg("key").starts_with("rbd/mirror/"),
        // What stands at the top, as the site's name; not what lies below, which is keys of peers.
        ("rbd-mirror-peer", "config-key get") => arg("key")
            .strip_prefix("rbd/mirror/")
            .is_some_and(|name| !name.is_empty() && !name.contains('/')),
        // By it the other side leaves word of itself: how its monitors are reached, with which key.
        ("rbd-mirror-peer", "config-key set") => arg("key").starts_with("rbd/mirror/peer/"),
        // Monitors keep the reports here; Ceph's manager takes them, by its own profile of that
        // name.
        ("crash", "crash post") => true,
        ("cephfs-mirror", "config-key get") => arg("key").starts_with("cephfs/mirror/peer/"),
        _ => false,
    }
}

/// True if no capabilities are asked for beyond those: Ceph lets a bootstrap key ask for more, and
/// so gives away the cluster.
fn only_caps<'a>(args: &Args, services: impl Iterator<Item = &'a str> + Clone) -> bool {
    args.keys().filter(|k| k.starts_with("caps_")).all(|k| services.clone().any(|s| s == k))
}

/// `auth get-or-create client.… mon <caps_mon> osd 'profile rbd… [pool=…], …'`.
fn bootstrap_rbd(access: &MonAccess<'_>, caps_mon: &str) -> bool {
    const OSD: &str =
        r#"([ ,]*profile(=|[ ]+)['"]?rbd[^ ,'"]*['"]?([ ]+pool(=|[ ]+)['"]?[^,'"]+['"]?)?)+"#;
    let arg = |key: &str| access.args.get(key).map(String::as_str).unwrap_or_default();
    access.command == "auth get-or-create"
        && arg("entity").starts_with("client.")
        && arg("caps_mon") == caps_mon
        && Constraint::Regex(OSD.to_owned()).admits(arg("caps_osd"))
        // The expression is Ceph's, and takes more for the name of a pool than the grammar does.
        && arg("caps_osd").parse::<OsdCaps>().is_ok_and(|caps| caps.only_profiles("rbd"))
        && only_caps(access.args, ["caps_mon", "caps_osd"].into_iter())
}

/// `address/nonce`. No client has the nonce 0: with it, and no port, an address is all clients of a
/// host.
fn is_instance(addr: &str) -> bool {
    let is_nonce =
        |n: &str| n.bytes().all(|b| b.is_ascii_digit()) && n.parse::<u32>().is_ok_and(|n| n != 0);
    addr.split_once('/').is_some_and(|(a, nonce)| !a.is_empty() && is_nonce(nonce))
}
