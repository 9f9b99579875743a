//! Capabilities for OSDs: `allow rwx pool=p namespace=n object_prefix o`, `class-read`, `class X
//! method`, `tag app key=value`, `profile rbd pool=p`, `network …`.

use super::network::{Network, admits};
use super::scan::{self, Scan};
use super::{CapsError, Rwx};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::str::FromStr;

/// A pool's applications with their keys and values.
pub type AppMetadata = BTreeMap<String, BTreeMap<String, String>>;

/// A call of an object class within a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassCall<'a> {
    /// Class.
    pub class: &'a str,
    /// Method.
    pub method: &'a str,
    /// The method is registered as reading.
    pub read: bool,
    /// The method is registered as writing.
    pub write: bool,
    /// The class is one that `x`, `class-read` and `class-write` may reach at all.
    pub allowed: bool,
}

/// One request at an OSD.
#[derive(Clone, Copy, Debug)]
pub struct OsdAccess<'a> {
    /// Pool's name.
    pub pool: &'a str,
    /// Pool's applications.
    pub apps: &'a AppMetadata,
    /// Object's namespace.
    pub namespace: &'a str,
    /// Object's name (or its locator key, if it has one).
    pub object: &'a str,
    /// Some operation reads.
    pub read: bool,
    /// Some operation writes.
    pub write: bool,
    /// Classes called.
    pub classes: &'a [ClassCall<'a>],
    /// From where.
    pub addr: Option<IpAddr>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Where {
    /// Empty: every pool.
    pool: String,
    namespace: Option<String>,
    tag: Option<Tag>,
    object_prefix: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Tag {
    app: String,
    key: String,
    value: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Spec {
    allow: Rwx,
    class_read: bool,
    class_write: bool,
    /// Class and, unless all, method.
    class: Option<(String, Option<String>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Grant {
    /// The profile that it names, if it does.
    profile: Option<String>,
    /// One, or those of a profile.
    parts: Vec<(Where, Spec)>,
    network: Option<Network>,
}

/// Parsed capabilities for OSDs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OsdCaps {
    grants: Vec<Grant>,
}

fn pool(s: &mut Scan<'_>) -> Option<String> {
    s.attempt(|s| {
        s.spaces()?;
        s.lit("pool")?;
        s.is()?;
        s.str().map(str::to_owned)
    })
}

fn namespace(s: &mut Scan<'_>) -> Option<String> {
    s.attempt(|s| {
        s.spaces()?;
        s.lit("namespace")?;
        s.is()?;
        let mut out = s.maybe_empty_str()?.to_owned();
        if s.lit("*").is_some() {
            out.push('*');
        }
        Some(out)
    })
}

fn object_prefix(s: &mut Scan<'_>) -> String {
    s.attempt(|s| {
        s.spaces()?;
        s.lit("object_prefix")?;
        s.spaces()?;
        s.str().map(str::to_owned)
    })
    .unwrap_or_default()
}

fn tag(s: &mut Scan<'_>) -> Option<Tag> {
    s.attempt(|s| {
        let value = |s: &mut Scan<'_>| match s.wildcard() {
            Some(()) => Some("*".to_owned()),
            None => s.str().map(str::to_owned),
        };
        s.spaces()?;
        s.lit("tag")?;
        s.spaces()?;
        let app = s.str()?.to_owned();
        s.spaces()?;
        let key = value(s)?;
        s.maybe_spaces();
        s.lit("=")?;
        s.maybe_spaces();
        Some(Tag { app, key, value: value(s)? })
    })
}

fn place(s: &mut Scan<'_>) -> Where {
    if let Some(tag) = tag(s) {
        return Where { tag: Some(tag), ..Where::default() };
    }
    let tagged = s.attempt(|s| {
        let namespace = namespace(s)?;
        Some(Where { namespace: Some(namespace), tag: Some(tag(s)?), ..Where::default() })
    });
    if let Some(tagged) = tagged {
        return tagged;
    }
    let pool = pool(s).unwrap_or_default();
    let namespace = namespace(s);
    Where { pool, namespace, tag: None, object_prefix: object_prefix(s) }
}

fn spec(s: &mut Scan<'_>) -> Option<Spec> {
    let any = s.attempt(|s| {
        s.spaces()?;
        s.wildcard()
    });
    if any.is_some() {
        return Some(Spec { allow: Rwx::ANY, class_read: true, class_write: true, class: None });
    }
    let letters = s.attempt(|s| {
        s.spaces()?;
        s.letters()
    });
    let word = |s: &mut Scan<'_>, w: &str| {
        s.attempt(|s| {
            s.spaces()?;
            s.lit(w)
        })
        .is_some()
    };
    let class_read = word(s, "class-read");
    let class_write = word(s, "class-write");
    if letters.is_some() || class_read || class_write {
        let allow = letters.unwrap_or_default();
        return Some(Spec {
            allow,
            class_read: class_read || allow.x,
            class_write: class_write || allow.x,
            class: None,
        });
    }
    s.attempt(|s| {
        s.spaces()?;
        s.lit("class")?;
        s.spaces()?;
        let class = s.str()?.to_owned();
        let method = s.attempt(|s| {
            s.spaces()?;
            s.str().map(str::to_owned)
        });
        Some(Spec { class: Some((class, method)), ..Spec::default() })
    })
}

fn grant(s: &mut Scan<'_>) -> Option<Grant> {
    s.blanks();
    let first = |s: &mut Scan<'_>| {
        s.lit("allow")?;
        let spec = spec(s)?;
        let place = place(s);
        Some(Grant { profile: None, parts: vec![(place, spec)], network: s.network() })
    };
    let second = |s: &mut Scan<'_>| {
        s.lit("allow")?;
        let place = place(s);
        let spec = spec(s)?;
        Some(Grant { profile: None, parts: vec![(place, spec)], network: s.network() })
    };
    let by_profile = |s: &mut Scan<'_>| {
        s.lit("profile")?;
        s.is()?;
        let name = s.str()?.to_owned();
        let pool = pool(s).unwrap_or_default();
        let namespace = namespace(s);
        let place = Where { pool, namespace, ..Where::default() };
        Some(Grant { parts: profile(&name, &place), profile: Some(name), network: s.network() })
    };
    let out = s.attempt(first).or_else(|| s.attempt(second)).or_else(|| s.attempt(by_profile))?;
    s.blanks();
    Some(out)
}

/// What a profile grants. Unknown ones grant nothing. Source: what `OSDCap.cc` of 16.2.15 expands
/// each to.
///
/// Those for block devices reach out of their namespace in few places, for librbd looks there
/// before it works in a namespace: pool-wide options are metadata of `rbd_info` in the pool's
/// namespace without a name.
fn profile(name: &str, place: &Where) -> Vec<(Where, Spec)> {
    let allow = |allow: Rwx| Spec { allow, class_read: allow.x, class_write: allow.x, class: None };
    let class_read = Spec { class_read: true, ..Spec::default() };
    let method = |class: &str, method: &str| Spec {
        class: Some((class.to_owned(), Some(method.to_owned()))),
        ..Spec::default()
    };
    let object = |prefix: &str, base: Where| Where { object_prefix: prefix.to_owned(), ..base };
    let nameless =
        || Where { pool: place.pool.clone(), namespace: Some(String::new()), ..Where::default() };
    match name {
        "read-only" => vec![(place.clone(), allow(Rwx::R))],
        "read-write" => vec![(place.clone(), allow(Rwx::RW))],
        "rbd" => vec![
            (object("rbd_info", Where::default()), allow(Rwx::R)),
            (object("rbd_children", Where::default()), class_read.clone()),
            (object("rbd_mirroring", Where::default()), class_read),
            (object("rbd_info", nameless()), method("rbd", "metadata_list")),
            (place.clone(), allow(Rwx::RWX)),
        ],
        "rbd-read-only" => vec![
            (object("rbd_info", nameless()), method("rbd", "metadata_list")),
            (place.clone(), Spec { allow: Rwx::R, class_read: true, ..Spec::default() }),
            (object("rbd_header.", place.clone()), method("rbd", "child_attach")),
            (object("rbd_header.", place.clone()), method("rbd", "child_detach")),
        ],
        _ => Vec::new(),
    }
}

impl FromStr for OsdCaps {
    type Err = CapsError;

    fn from_str(text: &str) -> Result<Self, CapsError> {
        Ok(Self { grants: scan::grants("osd", text, grant, scan::comma)? })
    }
}

impl OsdCaps {
    /// Those that allow everything: for our own daemons.
    pub fn all() -> Self {
        let spec = Spec { allow: Rwx::ANY, class_read: true, class_write: true, class: None };
        Self {
            grants: vec![Grant {
                profile: None,
                parts: vec![(Where::default(), spec)],
                network: None,
            }],
        }
    }

    /// True if a grant allows it. Classes called may be allowed by several grants together.
    pub fn allows(&self, access: &OsdAccess<'_>) -> bool {
        let mut called: Vec<bool> = vec![false; access.classes.len()];
        self.grants
            .iter()
            .filter(|g| admits(g.network.as_ref(), access.addr))
            .flat_map(|g| &g.parts)
            .any(|(place, spec)| place.matches(access) && spec.allows(access, &mut called))
    }

    /// True if whoever has them may make and remove snapshots of its own in this pool: if a grant,
    /// from there, writes to it, be it to one namespace or to some names only. One that it makes is
    /// of no use to anybody else; but it may remove those of others in the pool, as in Ceph, for
    /// their numbers have no owner. A grant that says a tag and no pool does not: whoever writes to
    /// one file system of a pool has nothing to do with its snapshots.
    pub fn may_snapshot(&self, pool: &str, addr: Option<IpAddr>) -> bool {
        let of_it = |place: &Where| {
            let everywhere = *place == Where::default();
            everywhere || (place.tag.is_none() && !place.pool.is_empty() && place.pool == pool)
        };
        self.grants
            .iter()
            .filter(|g| admits(g.network.as_ref(), addr))
            .flat_map(|g| &g.parts)
            .any(|(place, spec)| spec.allow.w && of_it(place))
    }

    /// True if each grant is by a profile whose name begins so.
    pub fn only_profiles(&self, prefix: &str) -> bool {
        self.grants.iter().all(|g| g.profile.as_ref().is_some_and(|name| name.starts_with(prefix)))
    }

    /// True if a grant, from there, is not bound to a pool, namespace or prefix and allows
    /// everything.
    pub fn allows_all(&self, addr: Option<IpAddr>) -> bool {
        self.grants
            .iter()
            .filter(|g| admits(g.network.as_ref(), addr))
            .flat_map(|g| &g.parts)
            .any(|(place, spec)| *place == Where::default() && spec.allow.any)
    }
}

impl Where {
    fn matches(&self, access: &OsdAccess<'_>) -> bool {
        let namespace = self.namespace.as_ref().is_none_or(|n| match n.strip_suffix('*') {
            Some(prefix) => access.namespace.starts_with(prefix),
            None => n == access.namespace,
        });
        (self.pool.is_empty() || self.pool == access.pool)
            && namespace
            && self.tag.as_ref().is_none_or(|t| t.matches(access.apps))
            && access.object.starts_with(&self.object_prefix)
    }
}

impl Tag {
    fn matches(&self, apps: &AppMetadata) -> bool {
        let Some(pairs) = apps.get(&self.app) else { return false };
        match (self.key.as_str(), self.value.as_str()) {
            ("*", "*") => true,
            ("*", value) => pairs.values().any(|v| v == value),
            (key, "*") => pairs.contains_key(key),
            (key, value) => pairs.get(key).is_some_and(|v| v == value),
        }
    }
}

impl Spec {
    /// `called` collects, over all grants, which class calls have been allowed.
    fn allows(&self, access: &OsdAccess<'_>, called: &mut [bool]) -> bool {
        if !self.allow.covers(access.read, access.write, false) {
            return false;
        }
        if self.allow.any {
            return true;
        }
        for (call, done) in access.classes.iter().zip(called.iter_mut()) {
            let named = self.class.as_ref().is_some_and(|(c, m)| {
                c == call.class && m.as_ref().is_none_or(|m| m == call.method)
            });
            let by_kind = call.allowed
                && (call.read || call.write)
                && (!call.read || self.class_read)
                && (!call.write || self.class_write);
            *done |= named || by_kind;
        }
        // A request that neither reads, writes nor calls needs some permission all the same.
        let anything = self.allow != Rwx::default()
            || self.class_read
            || self.class_write
            || self.class.is_some();
        anything && called.iter().all(|c| *c)
    }
}
