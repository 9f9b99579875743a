//! What each profile grants, as tables, against what our grammars decide.
//!
//! Each line of a table is a grant of a profile, read from `OSDCap.cc`, `MonCap.cc` and `MgrCap.cc`
//! of Ceph 16.2. Every combination of places and operations is put to the parsed profile: it is
//! allowed where a line says so, and nowhere else.

use super::{
    AppMetadata, Args, ClassCall, MgrAccess, MgrCaps, MonAccess, MonCaps, OsdAccess, OsdCaps,
};

/// An operation at an OSD: reads, writes, and `class.method` with what the method is registered
/// for; `!` before one whose class no plain `x` covers.
struct Op {
    name: &'static str,
    read: bool,
    write: bool,
    call: Option<(&'static str, &'static str, &'static str)>,
}

const fn plain(name: &'static str, read: bool, write: bool) -> Op {
    Op { name, read, write, call: None }
}

const fn call(
    name: &'static str,
    class: &'static str,
    method: &'static str,
    kind: &'static str,
) -> Op {
    Op { name, read: false, write: false, call: Some((class, method, kind)) }
}

const OPS: [Op; 11] = [
    plain("r", true, false),
    plain("w", false, true),
    plain("rw", true, true),
    call("metadata_list", "rbd", "metadata_list", "r"),
    call("get_size", "rbd", "get_size", "r"),
    call("set_size", "rbd", "set_size", "rw"),
    call("child_attach", "rbd", "child_attach", "rw"),
    call("child_detach", "rbd", "child_detach", "rw"),
    call("other.metadata_list", "other", "metadata_list", "r"),
    call("lock", "lock", "lock", "rw"),
    call("unlisted", "sdk", "test", "!r"),
];

const READS: &str = "r";
const WRITES: &str = "w rw";
/// What `class-read` covers.
const CLASS_READS: &str = "metadata_list get_size other.metadata_list";
/// What `x` covers beyond.
const CLASS_WRITES: &str = "set_size child_attach child_detach lock";

/// A profile and its grants: a place (`pool/namespace/beginning of names`, `*` for any) and
/// operations.
type OsdRow = (&'static str, &'static [(&'static str, &'static [&'static str])]);

const OSD: [OsdRow; 11] = [
    ("profile read-only", &[("*/*/", &[READS])]),
    ("profile read-only pool=p namespace=n", &[("p/n/", &[READS])]),
    ("profile read-write pool=p", &[("p/*/", &[READS, WRITES])]),
    ("profile rbd", &[("*/*/", &[READS, WRITES, CLASS_READS, CLASS_WRITES])]),
    (
        "profile rbd pool=p",
        &[
            ("*/*/rbd_info", &[READS]),
            ("*/*/rbd_children", &[CLASS_READS]),
            ("*/*/rbd_mirroring", &[CLASS_READS]),
            ("p/*/", &[READS, WRITES, CLASS_READS, CLASS_WRITES]),
        ],
    ),
    (
        "profile rbd pool=p namespace=n",
        &[
            ("*/*/rbd_info", &[READS]),
            ("*/*/rbd_children", &[CLASS_READS]),
            ("*/*/rbd_mirroring", &[CLASS_READS]),
            ("p//rbd_info", &["metadata_list"]),
            ("p/n/", &[READS, WRITES, CLASS_READS, CLASS_WRITES]),
        ],
    ),
    (
        "profile rbd-read-only",
        &[("*/*/", &[READS, CLASS_READS]), ("*/*/rbd_header.", &["child_attach child_detach"])],
    ),
    (
        "profile rbd-read-only pool=p",
        &[("p/*/", &[READS, CLASS_READS]), ("p/*/rbd_header.", &["child_attach child_detach"])],
    ),
    (
        "profile rbd-read-only pool=p namespace=n",
        &[
            ("p//rbd_info", &["metadata_list"]),
            ("p/n/", &[READS, CLASS_READS]),
            ("p/n/rbd_header.", &["child_attach child_detach"]),
        ],
    ),
    // Of other services, and of none.
    ("profile osd, profile crash, profile bootstrap-osd, profile rbd-mirror", &[]),
    ("profile nosuch", &[]),
];

fn lies_in(place: &str, (pool, namespace, object): (&str, &str, &str)) -> bool {
    let mut parts = place.splitn(3, '/');
    let mut next = || parts.next().unwrap_or_default();
    let is = |part: &str, value: &str| part == "*" || part == value;
    is(next(), pool) && is(next(), namespace) && object.starts_with(next())
}

#[test]
fn profiles_at_osds_grant_what_cephs_grant_and_nothing_else() {
    let apps = AppMetadata::from([("rbd".to_owned(), Default::default())]);
    let mut asked = 0;
    for (text, grants) in OSD {
        let caps: OsdCaps = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        for pool in ["p", "q"] {
            for namespace in ["", "n", "nn"] {
                for object in [
                    "rbd_info",
                    "rbd_children",
                    "rbd_mirroring",
                    "rbd_header.1",
                    "rbd_id.a",
                    "rbd_data.1.0",
                ] {
                    for op in &OPS {
                        let class = op.call.map(|(class, method, kind)| ClassCall {
                            class,
                            method,
                            read: kind.contains('r'),
                            write: kind.contains('w'),
                            allowed: !kind.starts_with('!'),
                        });
                        let access = OsdAccess {
                            pool,
                            apps: &apps,
                            namespace,
                            object,
                            read: op.read,
                            write: op.write,
                            classes: class.as_slice(),
                            addr: None,
                        };
                        let here = |place: &str| lies_in(place, (pool, namespace, object));
                        let right = grants.iter().any(|(place, ops)| {
                            here(place)
                                && ops.iter().flat_map(|o| o.split(' ')).any(|o| o == op.name)
                        });
                        assert_eq!(
                            caps.allows(&access),
                            right,
                            "{text:?}: {} of {pool}/{namespace}/{object}",
                            op.name
                        );
                        asked += 1;
                    }
                }
            }
        }
    }
    assert_eq!(asked, OSD.len() * 2 * 3 * 6 * OPS.len());
}

/// A profile at a monitor: rights by service, commands with arguments that it grants beyond, and
/// such that it does not.
type MonRow = (
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static [&'static str],
    &'static [&'static str],
);

const MAPS: &[(&str, &str)] = &[("mon", "r"), ("osd", "r"), ("pg", "r")];
const FENCE: &str = "osd blocklist;blocklistop=add;addr=1.2.3.4:0/77";
const OLD_FENCE: &str = "osd blacklist;blacklistop=add;addr=1.2.3.4:0/77";
const UNFENCE: &str = "osd blocklist;blocklistop=rm;addr=1.2.3.4:0/77";
const FENCE_HOST: &str = "osd blocklist;blocklistop=add;addr=1.2.3.4";
const SITE: &str = "config-key get;key=rbd/mirror/site_name";
const PEER: &str = "config-key get;key=rbd/mirror/peer/1/x";
const LEAVE: &str = "config-key set;key=rbd/mirror/peer/1/x";
const OWN_KEY: &str = "config-key get;key=daemon-private/osd.3/x";
const OTHERS_KEY: &str = "config-key get;key=daemon-private/osd.4/x";

const MON: [MonRow; 21] = [
    ("mon", &[("mon", "rwx"), ("log", "rwx")], &[OWN_KEY], &[OTHERS_KEY, FENCE]),
    ("osd", &[("osd", "rwx"), ("mon", "r"), ("pg", "rw"), ("log", "w")], &[OWN_KEY], &[OTHERS_KEY]),
    (
        "mds",
        &[("mds", "rwx"), ("mon", "r"), ("osd", "r"), ("log", "w")],
        &["osd pool rmsnap;", FENCE, OLD_FENCE, UNFENCE, OWN_KEY],
        &[OTHERS_KEY, "osd pool rm;"],
    ),
    (
        "mgr",
        &[
            ("mgr", "rwx"),
            ("log", "rw"),
            ("mon", "rw"),
            ("mds", "rw"),
            ("fs", "rw"),
            ("osd", "rw"),
            ("auth", "rx"),
            ("config-key", "rw"),
            ("config", "rw"),
        ],
        &["auth get-or-create;", "auth caps;", "auth rm;", "smart;", OWN_KEY],
        &["auth import;"],
    ),
    (
        "bootstrap-osd",
        &[("mon", "r"), ("osd", "r")],
        &["mon getmap;", "osd new;", "osd purge-new;"],
        &["osd purge;", "auth get-or-create;entity=osd.1", "auth get;entity=client.admin"],
    ),
    (
        "bootstrap-mds",
        &[("mon", "r"), ("osd", "r")],
        &[
            "mon getmap;",
            "auth get-or-create;entity=mds.a;caps_mon=allow profile mds;caps_osd=allow \
                rwx;caps_mds=allow",
        ],
        &["auth get-or-create;entity=mds.a;caps_mon=allow profile mds;caps_osd=allow \
                *;caps_mds=allow"],
    ),
    (
        "bootstrap-mgr",
        &[("mon", "r"), ("osd", "r")],
        &["mon getmap;", "auth get-or-create;entity=mgr.a;caps_mon=allow profile mgr"],
        &["auth get-or-create;entity=client.a;caps_mon=allow profile mgr"],
    ),
    (
        "bootstrap-rgw",
        &[("mon", "r"), ("osd", "r")],
        &[
            "mon getmap;",
            "auth get-or-create;entity=client.rgw.a;caps_mon=allow rw;caps_osd=allow rwx",
        ],
        &["auth get-or-create;entity=client.a;caps_mon=allow rw;caps_osd=allow rwx"],
    ),
    (
        "bootstrap-rbd",
        &[("mon", "r")],
        &["auth get-or-create;entity=client.a;caps_mon=profile rbd;caps_osd=profile rbd pool=p"],
        &[
            "mon getmap;",
            "auth get-or-create;entity=client.a;caps_mon=profile rbd-mirror;caps_osd=profile rbd \
                pool=p",
        ],
    ),
    (
        "bootstrap-rbd-mirror",
        &[("mon", "r")],
        &["auth get-or-create;entity=client.a;caps_mon=profile rbd-mirror;caps_osd=profile rbd \
                pool=p"],
        &["auth get-or-create;entity=client.a;caps_mon=profile rbd;caps_osd=profile rbd pool=p"],
    ),
    ("fs-client", &[("mon", "r"), ("mds", "r"), ("osd", "r"), ("pg", "r")], &[], &[FENCE]),
    ("simple-rados-client", MAPS, &[], &[FENCE, OLD_FENCE]),
    ("rbd", MAPS, &[FENCE, OLD_FENCE], &[UNFENCE, FENCE_HOST, SITE, PEER, LEAVE]),
    ("rbd-mirror", MAPS, &[FENCE, OLD_FENCE, SITE, PEER], &[UNFENCE, FENCE_HOST, LEAVE]),
    ("rbd-mirror-peer", MAPS, &[FENCE, OLD_FENCE, SITE, LEAVE], &[UNFENCE, FENCE_HOST, PEER]),
    ("rbd-read-only", MAPS, &[FENCE, OLD_FENCE], &[UNFENCE, FENCE_HOST, SITE, PEER, LEAVE]),
    // Ceph looks at how the name begins alone.
    ("rbd-anything", MAPS, &[FENCE], &[UNFENCE, SITE]),
    ("crash", &[("mon", "r")], &["crash post;"], &["crash rm;id=1"]),
    ("role-definer", &[("mon", "r"), ("auth", "rwx")], &[], &[FENCE]),
    (
        "cephfs-mirror",
        &[("mon", "r"), ("mds", "r"), ("osd", "r"), ("pg", "r")],
        &["config-key get;key=cephfs/mirror/peer/1"],
        &["config-key set;key=cephfs/mirror/peer/1", SITE],
    ),
    ("nosuch", &[], &[], &[FENCE]),
];

const SERVICES: [&str; 11] =
    ["mon", "osd", "pg", "mds", "fs", "mgr", "log", "auth", "config", "config-key", "crash"];

fn args_of(words: &str) -> Args {
    words
        .split(';')
        .filter_map(|p| p.split_once('='))
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect()
}

#[test]
fn profiles_at_monitors_grant_what_cephs_grant_and_nothing_else() {
    let none = Args::new();
    for (name, services, commands, refused) in MON {
        let caps: MonCaps =
            format!("profile {name}").parse().unwrap_or_else(|e| panic!("{name}: {e}"));
        let may = |service: &str, command: &str, args: &Args, rights: &str| {
            caps.allows(&MonAccess {
                entity: "osd.3",
                service,
                command,
                args,
                read: rights.contains('r'),
                write: rights.contains('w'),
                exec: rights.contains('x'),
                addr: None,
            })
        };
        for service in SERVICES {
            let granted =
                services.iter().find(|(s, _)| *s == service).map_or("", |(_, rights)| rights);
            for right in ["r", "w", "x"] {
                let is = may(service, "a command", &none, right);
                assert_eq!(is, granted.contains(right), "profile {name}: {right} of {service}");
            }
        }
        for (lines, allowed) in [(commands, true), (refused, false)] {
            for line in lines {
                let (command, words) = line.split_once(';').unwrap_or((line, ""));
                let service = command.split_once(' ').map_or(command, |(s, _)| s);
                let is = may(service, command, &args_of(words), "rwx");
                assert_eq!(is, allowed, "profile {name}: {line}");
            }
        }
    }
}

#[test]
fn profiles_at_managers_grant_what_cephs_grant_and_nothing_else() {
    // Profile, module, command, arguments, what of it is granted.
    for (text, module, command, arguments, granted) in [
        ("profile read-only", "", "pg dump", "", "r"),
        ("profile read-only", "rbd_support", "", "pool=q", "r"),
        ("profile read-write", "", "pg dump", "", "rw"),
        ("profile crash", "crash", "crash post", "", "rwx"),
        ("profile crash", "crash", "crash ls", "", ""),
        ("profile osd", "", "pg dump", "", ""),
        ("profile mds", "", "pg dump", "", ""),
        ("profile rgw", "", "pg dump", "", ""),
        ("profile rbd", "rbd_support", "", "", "rw"),
        ("profile rbd", "rbd_support", "rbd task list", "", "rw"),
        ("profile rbd", "status", "", "", ""),
        ("profile rbd", "", "pg dump", "", ""),
        ("profile rbd pool=p", "rbd_support", "", "pool=p", "rw"),
        ("profile rbd pool=p", "rbd_support", "", "pool=p;namespace=n", "rw"),
        ("profile rbd pool=p", "rbd_support", "", "pool=q", ""),
        ("profile rbd pool=p", "rbd_support", "", "", ""),
        ("profile rbd pool=p namespace=n", "rbd_support", "", "pool=p;namespace=n", "rw"),
        ("profile rbd pool=p namespace=n", "rbd_support", "", "pool=p;namespace=m", ""),
        ("profile rbd pool=p namespace=n", "rbd_support", "", "pool=p", ""),
        // The command is let in; the module looks at each image.
        ("profile rbd pool=p namespace=n", "rbd_support", "rbd task list", "", "rw"),
        ("profile rbd-read-only", "rbd_support", "", "", "r"),
        ("profile rbd-read-only pool=p", "rbd_support", "", "pool=p", "r"),
        ("profile rbd-read-only pool=p", "rbd_support", "", "pool=q", ""),
    ] {
        let caps: MgrCaps = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        for right in ["r", "w", "x"] {
            let is = caps.allows(&MgrAccess {
                service: "mgr",
                module,
                command,
                args: &args_of(arguments),
                read: right == "r",
                write: right == "w",
                exec: right == "x",
                addr: None,
            });
            assert_eq!(
                is,
                granted.contains(right),
                "{text:?}: {right} of {module} {command:?} {arguments:?}"
            );
        }
    }
    for text in [
        "profile rbd-mirror",
        "profile mgr",
        "profile rbd image=a",
        "profile rbd-read-only pool=p image=a",
    ] {
        assert!(text.parse::<MgrCaps>().is_err(), "{text}");
    }
}
