//! Capabilities for metadata servers: `allow rw path=/a uid=1 gids=2,3`, `fsname=f`, `root_squash`.

use super::network::{Network, admits};
use super::scan::{self, Scan};
use super::{CapsError, Rwx};
use std::net::IpAddr;
use std::str::FromStr;

/// One request at a metadata server. POSIX permission bits are checked elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct MdsAccess<'a> {
    /// File system's name.
    pub fs: &'a str,
    /// Path within it, without a leading `/`.
    pub path: &'a str,
    /// The caller's user id.
    pub uid: u32,
    /// The caller's group ids.
    pub gids: &'a [u32],
    /// It reads.
    pub read: bool,
    /// It changes.
    pub write: bool,
    /// It sets a layout or quota.
    pub set_vxattr: bool,
    /// It makes or removes snapshots.
    pub snapshot: bool,
    /// It is for all of the file system, not for one path (`full`).
    pub full: bool,
    /// From where.
    pub addr: Option<IpAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spec {
    allow: Rwx,
    full: bool,
    set_vxattr: bool,
    snapshot: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Where {
    fs: Option<String>,
    /// Without leading `/`; empty: everywhere.
    path: String,
    uid: Option<u32>,
    gids: Vec<u32>,
    root_squash: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Grant {
    spec: Spec,
    place: Where,
    network: Option<Network>,
}

/// Parsed capabilities for metadata servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MdsCaps {
    grants: Vec<Grant>,
}

const SPECS: [(&str, &str); 11] = [
    ("*", "*"),
    ("all", "*"),
    ("rwfps", "rwfps"),
    ("rwfp", "rwfp"),
    ("rwfs", "rwfs"),
    ("rwf", "rwf"),
    ("rwps", "rwps"),
    ("rwp", "rwp"),
    ("rws", "rws"),
    ("rw", "rw"),
    ("r", "r"),
];

fn spec(flags: &str) -> Spec {
    let any = flags == "*";
    let has = |c| any || flags.contains(c);
    let allow = Rwx { r: has('r'), w: has('w'), x: any, any };
    Spec { allow, full: has('f'), set_vxattr: has('p'), snapshot: has('s') }
}

fn keyword<'a>(s: &mut Scan<'a>, word: &str) -> Option<()> {
    s.spaces()?;
    s.lit(word)?;
    s.lit("=")
}

fn path(s: &mut Scan<'_>) -> Option<String> {
    s.attempt(|s| {
        keyword(s, "path")?;
        s.maybe_empty_str().map(|p| p.trim_start_matches('/').to_owned())
    })
}

fn number(s: &mut Scan<'_>) -> Option<u32> {
    s.attempt(|s| s.many(|b| b.is_ascii_digit())?.parse().ok())
}

fn uid_gids(s: &mut Scan<'_>) -> Option<(u32, Vec<u32>)> {
    let uid = s.attempt(|s| {
        keyword(s, "uid")?;
        number(s)
    })?;
    let gids = s.attempt(|s| {
        keyword(s, "gids")?;
        let mut out = vec![number(s)?];
        while let Some(gid) = s.attempt(|s| {
            s.lit(",")?;
            number(s)
        }) {
            out.push(gid);
        }
        Some(out)
    });
    Some((uid, gids.unwrap_or_default()))
}

fn place(s: &mut Scan<'_>) -> Where {
    if let Some((uid, gids)) = uid_gids(s) {
        return Where { uid: Some(uid), gids, ..Where::default() };
    }
    let owned = s.attempt(|s| {
        let path = path(s)?;
        let (uid, gids) = uid_gids(s)?;
        Some(Where { path, uid: Some(uid), gids, ..Where::default() })
    });
    if let Some(owned) = owned {
        return owned;
    }
    let fs = s.attempt(|s| {
        keyword(s, "fsname")?;
        s.many(|b| b != b'/' && scan::is_word(b)).map(str::to_owned)
    });
    let path = path(s).unwrap_or_default();
    let root_squash = s.attempt(|s| {
        s.spaces()?;
        s.lit("root_squash")
    });
    Where { fs, path, uid: None, gids: Vec::new(), root_squash: root_squash.is_some() }
}

fn grant(s: &mut Scan<'_>) -> Option<Grant> {
    s.maybe_spaces();
    s.lit("allow")?;
    s.spaces()?;
    let flags = SPECS.iter().find_map(|(text, flags)| s.lit(text).map(|()| *flags))?;
    let place = place(s);
    let network = s.network();
    Some(Grant { spec: spec(flags), place, network })
}

impl FromStr for MdsCaps {
    type Err = CapsError;

    fn from_str(text: &str) -> Result<Self, CapsError> {
        // From before there were flags.
        if text == "allow" {
            return Ok(Self {
                grants: vec![Grant { spec: spec("rwps"), place: Where::default(), network: None }],
            });
        }
        Ok(Self { grants: scan::grants("mds", text, grant, scan::spaced_comma)? })
    }
}

impl MdsCaps {
    /// True if a grant allows it.
    pub fn allows(&self, access: &MdsAccess<'_>) -> bool {
        self.grants.iter().any(|g| {
            admits(g.network.as_ref(), access.addr)
                && g.place.matches(access)
                && g.spec.allow.covers(access.read, access.write, false)
                && (!access.set_vxattr || g.spec.set_vxattr)
                && (!access.snapshot || g.spec.snapshot)
                && (!access.full || g.spec.full)
                // Root may look, not touch.
                && !(g.place.root_squash && access.uid == 0 && (access.write || access.set_vxattr || access.snapshot))
        })
    }
}

impl Where {
    fn matches(&self, access: &MdsAccess<'_>) -> bool {
        let group = self.gids.is_empty() || self.gids.iter().any(|g| access.gids.contains(g));
        let here = access.path.strip_prefix(self.path.as_str());
        // `path=/foo` is not for `/food`.
        let within = here.is_some_and(|rest| {
            self.path.is_empty()
                || self.path.ends_with('/')
                || rest.is_empty()
                || rest.starts_with('/')
        });
        self.fs.as_ref().is_none_or(|fs| fs == access.fs || fs == "all")
            && self.uid.is_none_or(|uid| uid == access.uid && group)
            && within
    }
}
