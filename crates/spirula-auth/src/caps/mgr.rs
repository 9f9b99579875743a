//! Capabilities for managers: `allow rw`, `allow module x with k=v rw`, `allow service`, `allow
//! command`, `profile rbd pool=p`.

use super::constraint::{Constraint, all_admit, pairs, with};
use super::network::{Network, admits};
use super::scan::{self, Scan};
use super::{Args, CapsError, Rwx};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::str::FromStr;

/// What capabilities call the part of the manager that all of its modules are: Ceph's are in Python
/// (`allow service py r`). Source: a 16.2.15 refuses a module's commands to `allow service mgr`,
/// whatever part it says in their descriptions.
pub const MODULES: &str = "py";

/// One request at a manager.
#[derive(Clone, Copy, Debug)]
pub struct MgrAccess<'a> {
    /// The part of the manager, or empty. Of a module's command, [`MODULES`].
    pub service: &'a str,
    /// The module addressed, or empty.
    pub module: &'a str,
    /// The command's prefix, or empty.
    pub command: &'a str,
    /// Its arguments.
    pub args: &'a Args,
    /// It reads.
    pub read: bool,
    /// It changes.
    pub write: bool,
    /// It executes.
    pub exec: bool,
    /// From where.
    pub addr: Option<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Everything,
    Service(String),
    Module(String, BTreeMap<String, Constraint>),
    Command(String, BTreeMap<String, Constraint>),
    Profile(String, BTreeMap<String, Constraint>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Grant {
    what: What,
    allow: Rwx,
    network: Option<Network>,
}

/// Parsed capabilities for managers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MgrCaps {
    grants: Vec<Grant>,
}

fn allow(s: &mut Scan<'_>, keyword: &str) -> Option<()> {
    s.lit("allow")?;
    s.spaces()?;
    s.lit(keyword)?;
    s.is()
}

fn grant(s: &mut Scan<'_>) -> Option<Grant> {
    s.maybe_spaces();
    let plain = |s: &mut Scan<'_>| {
        s.lit("allow")?;
        s.spaces()?;
        let allow = s.rwx()?;
        Some(Grant { what: What::Everything, allow, network: s.network() })
    };
    let profile = |s: &mut Scan<'_>| {
        let _ = s.attempt(|s| {
            s.lit("allow")?;
            s.spaces()
        });
        s.lit("profile")?;
        s.is()?;
        let name = s.str()?.to_owned();
        let constraints = s.attempt(|s| {
            s.spaces()?;
            pairs(s, true)
        });
        let what = What::Profile(name, constraints.unwrap_or_default());
        Some(Grant { what, allow: Rwx::default(), network: s.network() })
    };
    let service = |s: &mut Scan<'_>| {
        allow(s, "service")?;
        let what = What::Service(s.str()?.to_owned());
        s.spaces()?;
        let allow = s.rwx()?;
        Some(Grant { what, allow, network: s.network() })
    };
    let module = |s: &mut Scan<'_>| {
        allow(s, "module")?;
        let name = s.str()?.to_owned();
        let what = What::Module(name, with(s, true));
        s.spaces()?;
        let allow = s.rwx()?;
        Some(Grant { what, allow, network: s.network() })
    };
    let command = |s: &mut Scan<'_>| {
        allow(s, "command")?;
        let name = s.str()?.to_owned();
        let what = What::Command(name, with(s, true));
        Some(Grant { what, allow: Rwx::default(), network: s.network() })
    };
    let out = s
        .attempt(plain)
        .or_else(|| s.attempt(profile))
        .or_else(|| s.attempt(service))
        .or_else(|| s.attempt(module))
        .or_else(|| s.attempt(command))?;
    s.maybe_spaces();
    Some(out)
}

/// Refuses profiles that do not exist, and keys that they do not know.
fn check_profile(name: &str, constraints: &BTreeMap<String, Constraint>) -> Result<(), CapsError> {
    match name {
        "read-only" | "read-write" | "crash" | "osd" | "mds" | "rgw" => Ok(()),
        "rbd" | "rbd-read-only" => {
            match constraints.keys().find(|k| !matches!(k.as_str(), "pool" | "namespace")) {
                Some(key) => Err(CapsError::Profile(format!(
                    "profile '{name}' does not recognize key '{key}'"
                ))),
                None => Ok(()),
            }
        }
        _ => Err(CapsError::Profile(format!("unrecognized profile '{name}'"))),
    }
}

impl FromStr for MgrCaps {
    type Err = CapsError;

    fn from_str(text: &str) -> Result<Self, CapsError> {
        if text.is_empty() {
            return Err(CapsError::Empty { service: "mgr" });
        }
        let grants = scan::grants("mgr", text, grant, scan::spaced_comma)?;
        for grant in &grants {
            if let What::Profile(name, constraints) = &grant.what {
                check_profile(name, constraints)?;
            }
        }
        Ok(Self { grants })
    }
}

impl MgrCaps {
    /// Those that allow everything: for our own daemons.
    pub fn all() -> Self {
        Self { grants: vec![Grant { what: What::Everything, allow: Rwx::ANY, network: None }] }
    }

    /// True if one grant, or several together, allow it.
    pub fn allows(&self, access: &MgrAccess<'_>) -> bool {
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
}

fn module_allows(
    name: &str,
    constraints: &BTreeMap<String, Constraint>,
    access: &MgrAccess<'_>,
    allow: Rwx,
) -> Rwx {
    // A command names its module without arguments; those are checked when it runs in the module.
    let admitted = !access.command.is_empty() || all_admit(constraints, access.args);
    if name == access.module && admitted { allow } else { Rwx::default() }
}

impl Grant {
    fn is_all(&self) -> bool {
        self.what == What::Everything && self.allow.any
    }

    fn allowed(&self, access: &MgrAccess<'_>) -> Rwx {
        match &self.what {
            What::Everything => self.allow,
            What::Service(name) if name == access.service => self.allow,
            What::Service(_) => Rwx::default(),
            What::Module(name, constraints) => module_allows(name, constraints, access, self.allow),
            What::Command(name, constraints)
                if name == access.command && all_admit(constraints, access.args) =>
            {
                Rwx::ANY
            }
            What::Command(..) => Rwx::default(),
            What::Profile(name, constraints) => match name.as_str() {
                "read-only" => Rwx::R,
                "read-write" => Rwx::RW,
                "crash" if access.command == "crash post" => Rwx::RWX,
                "rbd" => module_allows("rbd_support", constraints, access, Rwx::RW),
                "rbd-read-only" => module_allows("rbd_support", constraints, access, Rwx::R),
                _ => Rwx::default(),
            },
        }
    }
}
