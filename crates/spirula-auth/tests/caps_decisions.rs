//! Capabilities decide: tables of texts, requests and answers; and properties over random texts.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use proptest::prelude::*;
use spirula_auth::caps::{
    self, AppMetadata, Args, ClassCall, MdsAccess, MdsCaps, MgrAccess, MgrCaps, MonAccess, MonCaps,
    OsdAccess, OsdCaps,
};

fn apps(text: &str) -> AppMetadata {
    let mut out = AppMetadata::new();
    for word in text.split_whitespace() {
        let (app, pair) = word.split_once(':').unwrap_or((word, ""));
        let pairs = out.entry(app.to_owned()).or_default();
        if let Some((k, v)) = pair.split_once('=') {
            pairs.insert(k.to_owned(), v.to_owned());
        }
    }
    out
}

fn args(text: &str) -> Args {
    text.split(';')
        .filter_map(|p| p.split_once('='))
        .map(|(k, v)| (k.trim().to_owned(), v.to_owned()))
        .collect()
}

/// `ops`: r, w, and class calls `class.method:rw`, `!` before one that is not on the list of
/// classes.
fn osd(text: &str, place: &str, ops: &str) -> bool {
    let mut place = place.split('/');
    let (pool, namespace, object) =
        (place.next().unwrap(), place.next().unwrap_or(""), place.next().unwrap_or("obj"));
    let metadata = apps("cephfs:data=a rbd");
    let mut classes = Vec::new();
    for op in ops.split_whitespace().filter(|o| o.contains('.')) {
        let (name, flags) = op.trim_start_matches('!').split_once(':').unwrap();
        let (class, method) = name.split_once('.').unwrap();
        classes.push(ClassCall {
            class,
            method,
            read: flags.contains('r'),
            write: flags.contains('w'),
            allowed: !op.starts_with('!'),
        });
    }
    let has = |o: &str| ops.split_whitespace().any(|w| w == o);
    text.parse::<OsdCaps>().unwrap().allows(&OsdAccess {
        pool,
        apps: &metadata,
        namespace,
        object,
        read: has("r"),
        write: has("w"),
        classes: &classes,
        addr: Some("10.1.2.3".parse().unwrap()),
    })
}

#[test]
fn osd_caps_decide() {
    for (text, place, ops, allowed) in [
        ("allow r", "p", "r", true),
        ("allow r", "p", "w", false),
        ("allow w", "p", "r w", false),
        ("allow rw", "p", "r w", true),
        // Grants are not added up, but for class calls.
        ("allow r, allow w", "p", "r w", false),
        ("allow *", "p", "r w !any.thing:w", true),
        ("allow rwx", "p", "!any.thing:w", false),
        ("allow rwx", "p", "lock.lock:rw", true),
        ("allow x", "p", "lock.lock:rw", true),
        ("allow x", "p", "r lock.lock:rw", false),
        ("allow r class-read", "p", "r lock.info:r", true),
        ("allow r class-read", "p", "lock.lock:w", false),
        ("allow class-read, allow class-write", "p", "a.b:r c.d:w", true),
        ("allow class lock", "p", "lock.lock:w", true),
        ("allow class lock", "p", "!lock.lock:w", true),
        ("allow class lock unlock", "p", "lock.lock:w", false),
        ("allow class lock, allow class refcount get", "p", "lock.lock:w refcount.get:w", true),
        ("allow class lock", "p", "r lock.lock:w", false),
        ("allow rw pool=p", "p", "w", true),
        ("allow rw pool=p", "pp", "w", false),
        ("allow rw pool=p namespace=n", "p/n", "w", true),
        ("allow rw pool=p namespace=n", "p", "w", false),
        ("allow rw pool=p namespace=n", "p/nn", "w", false),
        ("allow rw pool=p namespace=n*", "p/nn", "w", true),
        ("allow rw pool=p namespace=n*", "p/m", "w", false),
        ("allow rw pool=p namespace=\"\"", "p", "w", true),
        ("allow rw pool=p namespace=\"\"", "p/n", "w", false),
        ("allow rw namespace=n", "any/n", "w", true),
        ("allow rw pool=p", "p/anything", "w", true),
        ("allow rw object_prefix ob", "p//obj", "w", true),
        ("allow rw object_prefix ob", "p//o", "w", false),
        ("allow rw tag cephfs data=a", "p", "w", true),
        ("allow rw tag cephfs data=b", "p", "w", false),
        ("allow rw tag cephfs data=*", "p", "w", true),
        ("allow rw tag cephfs metadata=*", "p", "w", false),
        ("allow rw tag cephfs *=a", "p", "w", true),
        ("allow rw tag cephfs *=b", "p", "w", false),
        ("allow rw tag rbd *=*", "p", "w", true),
        ("allow rw tag rgw *=*", "p", "w", false),
        ("allow rw network 10.0.0.0/8", "p", "w", true),
        ("allow rw network 11.0.0.0/8", "p", "w", false),
        ("allow rw network 10.1.2.3", "p", "w", false),
        ("profile rbd pool=p", "p", "r w", true),
        ("profile rbd pool=p", "q", "r", false),
        ("profile rbd pool=p", "q//rbd_children", "rbd.get_children:r", true),
        ("profile rbd pool=p", "q//rbd_children", "rbd.add_child:w", false),
        ("profile rbd pool=p namespace=n", "p", "rbd.metadata_list:r", false),
        ("profile rbd pool=p namespace=n", "p//rbd_info", "rbd.metadata_list:r", true),
        ("profile rbd pool=p namespace=n", "p", "w", false),
        ("profile rbd-read-only pool=p", "p", "r rbd.get_size:r", true),
        ("profile rbd-read-only pool=p", "p", "w", false),
        ("profile rbd-read-only pool=p", "p//rbd_header.1", "rbd.child_attach:w", true),
        ("profile rbd-read-only pool=p", "p//rbd_data.1", "rbd.child_attach:w", false),
        ("profile rbd-read-only pool=p", "p//rbd_header.1", "rbd.set_size:w", false),
        ("profile read-only", "p", "r", true),
        ("profile read-write pool=p", "p", "w", true),
        ("profile nosuch", "p", "r", false),
        ("profile crash", "p", "r", false),
        // Nothing at all still takes some capability for the place.
        ("allow r pool=q", "p", "", false),
        ("allow r pool=p", "p", "", true),
    ] {
        assert_eq!(osd(text, place, ops), allowed, "{text:?} {place} [{ops}]");
    }
    assert!(OsdCaps::all().allows_all(None));
    assert!(!"allow rwx".parse::<OsdCaps>().unwrap().allows_all(None));
    assert!(!"allow * pool=x".parse::<OsdCaps>().unwrap().allows_all(None));
}

fn mon(text: &str, service: &str, command: &str, arguments: &str, perm: &str) -> bool {
    text.parse::<MonCaps>().unwrap().allows(&MonAccess {
        entity: "osd.3",
        service,
        command,
        args: &args(arguments),
        read: perm.contains('r'),
        write: perm.contains('w'),
        exec: perm.contains('x'),
        addr: Some("10.1.2.3".parse().unwrap()),
    })
}

/// Grants for OSDs are separated by semicolons, too: behind one stands no more than before.
#[test]
fn a_bootstrap_key_makes_users_of_block_devices_alone() {
    for (profile, caps_mon) in
        [("bootstrap-rbd", "profile rbd"), ("bootstrap-rbd-mirror", "profile rbd-mirror")]
    {
        let caps: MonCaps = format!("profile {profile}").parse().unwrap();
        for (caps_osd, allowed) in [
            ("profile rbd", true),
            ("profile rbd pool=vms", true),
            ("profile rbd pool=vms; profile rbd-read-only pool=images", true),
            ("profile rbd pool=vms, profile rbd-read-only pool=images", true),
            ("profile rbd pool=vms;allow *", false),
            ("profile rbd pool=vms; allow rwx", false),
            ("profile rbd pool=vms;profile read-write", false),
            ("profile rbd pool=vms ; allow *", false),
            ("profile rbd pool=vms,allow *", false),
            ("", false),
        ] {
            let pairs = [("entity", "client.v"), ("caps_mon", caps_mon), ("caps_osd", caps_osd)];
            let args = pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
            let access = MonAccess {
                entity: "client.bootstrap-rbd",
                service: "auth",
                command: "auth get-or-create",
                args: &args,
                read: true,
                write: true,
                exec: true,
                addr: None,
            };
            assert_eq!(caps.allows(&access), allowed, "{profile}: {caps_osd}");
        }
    }
}

#[test]
fn mon_caps_decide() {
    let rgw = "entity=client.rgw.a;caps_mon=allow rw;caps_osd=allow rwx";
    for (text, service, command, arguments, perm, allowed) in [
        ("allow r", "osd", "osd dump", "", "r", true),
        ("allow r", "osd", "osd pool create", "", "rw", false),
        ("allow rw", "osd", "osd pool create", "", "rw", true),
        ("allow rw", "auth", "auth ls", "", "rx", false),
        ("allow rwx", "auth", "auth ls", "", "rx", true),
        // Grants add up.
        ("allow r, allow service auth x", "auth", "auth ls", "", "rx", true),
        ("allow rwx", "config-key", "config-key get", "key=a", "r", false),
        ("allow *", "config-key", "config-key get", "key=a", "r", true),
        ("allow service config-key rw", "config-key", "config-key get", "key=a", "r", true),
        (
            "allow command \"osd blocklist\" with blocklistop=add",
            "osd",
            "osd blocklist",
            "blocklistop=add",
            "rw",
            true,
        ),
        (
            "allow command \"osd blocklist\" with blocklistop=add",
            "osd",
            "osd blocklist",
            "blocklistop=rm",
            "rw",
            false,
        ),
        (
            "allow command \"osd blocklist\" with blocklistop=add",
            "osd",
            "osd blocklist",
            "",
            "rw",
            false,
        ),
        ("allow command foo with k prefix ab", "x", "foo", "k=abc", "rwx", true),
        ("allow command foo with k prefix ab", "x", "foo", "k=ba", "rwx", false),
        ("allow command foo with k regex \"a+\"", "x", "foo", "k=aaa", "rwx", true),
        ("allow command foo with k regex \"a+\"", "x", "foo", "k=aab", "rwx", false),
        ("allow command foo", "x", "foo bar", "", "r", false),
        ("profile osd", "osd", "osd boot", "", "rwx", true),
        ("profile osd", "mon", "mon dump", "", "r", true),
        ("profile osd", "auth", "auth ls", "", "rx", false),
        ("profile osd", "config-key", "config-key get", "key=daemon-private/osd.3/x", "r", true),
        ("profile osd", "config-key", "config-key get", "key=daemon-private/osd.33/x", "r", false),
        ("profile mgr", "auth", "auth get-or-create", "entity=client.x", "rwx", true),
        ("profile mgr", "auth", "auth export", "", "rx", true),
        ("profile mgr", "auth", "auth import", "", "rwx", false),
        ("profile rbd", "osd", "osd dump", "", "r", true),
        ("profile rbd", "osd", "osd pool rm", "", "rw", false),
        ("profile rbd", "osd", "osd blocklist", "blocklistop=add;addr=1.2.3.4:0/77", "rw", true),
        ("profile rbd", "osd", "osd blocklist", "blocklistop=add;addr=1.2.3.4:0", "rw", false),
        ("profile rbd", "osd", "osd blocklist", "blocklistop=add;addr=1.2.3.4:0/0", "rw", false),
        ("profile rbd", "osd", "osd blocklist", "blocklistop=add;addr=1.2.3.4/0", "rw", false),
        ("profile rbd", "osd", "osd blocklist", "blocklistop=add;addr=1.2.3.4:0/00", "rw", false),
        (
            "profile rbd",
            "osd",
            "osd blocklist",
            "blocklistop=add;addr=1.2.3.4:0/4294967296",
            "rw",
            false,
        ),
        (
            "profile rbd",
            "osd",
            "osd blocklist",
            "blocklistop=add;addr=1.2.3.4:0/4294967295",
            "rw",
            true,
        ),
        ("profile rbd", "osd", "osd blocklist", "blocklistop=rm;addr=1.2.3.4:0/77", "rw", false),
        ("profile rbd", "osd", "osd blocklist", "blocklistop=add;addr=1.2.3.4/8/77", "rw", false),
        (
            "profile simple-rados-client",
            "osd",
            "osd blocklist",
            "blocklistop=add;addr=1.2.3.4:0/77",
            "rw",
            false,
        ),
        (
            "profile simple-rados-client-with-blocklist",
            "osd",
            "osd blocklist",
            "blocklistop=add;addr=1.2.3.4:0/77",
            "rw",
            true,
        ),
        ("profile crash", "mon", "mon dump", "", "r", true),
        ("profile crash", "osd", "osd dump", "", "r", false),
        ("profile crash", "mgr", "crash post", "", "rw", true),
        ("profile crash", "mgr", "crash rm", "id=a", "rw", false),
        ("profile role-definer", "auth", "auth import", "", "rwx", true),
        ("profile role-definer", "osd", "osd dump", "", "r", false),
        ("profile bootstrap-osd", "osd", "osd new", "", "rw", true),
        ("profile bootstrap-osd", "osd", "osd purge", "", "rw", false),
        ("profile bootstrap-osd", "auth", "auth get", "entity=client.admin", "rx", false),
        ("profile bootstrap-rgw", "auth", "auth get-or-create", rgw, "rwx", true),
        (
            "profile bootstrap-rgw",
            "auth",
            "auth get-or-create",
            "entity=client.admin;caps_mon=allow rw;caps_osd=allow rwx",
            "rwx",
            false,
        ),
        (
            "profile bootstrap-rgw",
            "auth",
            "auth get-or-create",
            "entity=client.rgw.a;caps_mon=allow *;caps_osd=allow rwx",
            "rwx",
            false,
        ),
        (
            "profile bootstrap-rgw",
            "auth",
            "auth get-or-create",
            "entity=client.rgw.a;caps_mon=allow rw;caps_osd=allow rwx;caps_mgr=allow *",
            "rwx",
            false,
        ),
        ("profile bootstrap-rgw", "auth", "auth caps", rgw, "rwx", false),
        (
            "profile bootstrap-rbd",
            "auth",
            "auth get-or-create",
            "entity=client.v;caps_mon=profile rbd;caps_osd=profile rbd pool=vms, profile \
                rbd-read-only pool=images",
            "rwx",
            true,
        ),
        (
            "profile bootstrap-rbd",
            "auth",
            "auth get-or-create",
            "entity=client.v;caps_mon=profile rbd;caps_osd=profile rbd pool=vms, allow *",
            "rwx",
            false,
        ),
        (
            "profile bootstrap-mgr",
            "auth",
            "auth get-or-create",
            "entity=mgr.x;caps_mon=allow profile mgr",
            "rwx",
            true,
        ),
        (
            "profile bootstrap-mds",
            "auth",
            "auth get-or-create",
            "entity=mds.x;caps_mon=allow profile mds;caps_osd=allow rwx;caps_mds=allow",
            "rwx",
            true,
        ),
        (
            "profile rbd-mirror-peer",
            "config-key",
            "config-key set",
            "key=rbd/mirror/peer/3/uuid",
            "rw",
            true,
        ),
        (
            "profile rbd-mirror-peer",
            "config-key",
            "config-key get",
            "key=rbd/mirror/peer/3/uuid",
            "r",
            false,
        ),
        ("profile rbd-mirror-peer", "config-key", "config-key set", "key=mgr/peer", "rw", false),
        (
            "profile cephfs-mirror",
            "config-key",
            "config-key get",
            "key=cephfs/mirror/peer/1",
            "r",
            true,
        ),
        (
            "profile cephfs-mirror",
            "config-key",
            "config-key get",
            "key=rbd/mirror/peer/1",
            "r",
            false,
        ),
        ("profile read-only", "config-key", "config-key get", "key=a", "r", false),
        ("profile nosuch", "mon", "mon dump", "", "r", false),
        ("allow r network 10.0.0.0/8", "osd", "osd dump", "", "r", true),
        ("allow r network 192.168.0.0/16", "osd", "osd dump", "", "r", false),
        ("allow * network 192.168.0.0/16, allow r", "osd", "osd pool rm", "", "rw", false),
        ("allow * fsname=a", "config-key", "config-key get", "key=a", "r", false),
    ] {
        let got = mon(text, service, command, arguments, perm);
        assert_eq!(got, allowed, "{text:?} {service} {command:?} {arguments:?} {perm}");
    }
    let caps: MonCaps = "allow r fsname=a".parse().unwrap();
    assert!(caps.allows_fs("a") && !caps.allows_fs("b"));
    assert!(!MonCaps::default().allows_fs("a"));
    let caps: MonCaps = "allow rw fsname=all".parse().unwrap();
    assert!(caps.allows_fs("all") && !caps.allows_fs("a"), "a name like others at monitors");
    for (text, may) in [
        ("profile read-write", false),
        ("profile mgr", true),
        ("profile mds", true),
        ("allow rw", true),
        ("allow rw fsname=a", true),
        ("allow rw fsname=all", false),
    ] {
        assert_eq!(text.parse::<MonCaps>().unwrap().changes_fs("client.a", "a"), may, "{text}");
    }
}

#[test]
fn mgr_caps_decide() {
    let mgr = |text: &str, module: &str, command: &str, arguments: &str, perm: &str| {
        text.parse::<MgrCaps>().unwrap().allows(&MgrAccess {
            service: "mgr",
            module,
            command,
            args: &args(arguments),
            read: perm.contains('r'),
            write: perm.contains('w'),
            exec: perm.contains('x'),
            addr: None,
        })
    };
    for (text, module, command, arguments, perm, allowed) in [
        ("allow r", "", "pg dump", "", "r", true),
        ("allow r", "", "pg repair", "", "rw", false),
        ("allow *", "x", "y", "", "rwx", true),
        ("profile rbd pool=a", "rbd_support", "", "pool=a", "rw", true),
        ("profile rbd pool=a", "rbd_support", "", "pool=b", "rw", false),
        ("profile rbd pool=a", "rbd_support", "", "", "rw", false),
        ("profile rbd-read-only", "rbd_support", "", "", "rw", false),
        ("profile rbd", "dashboard", "", "", "r", false),
        ("profile crash", "crash", "crash post", "", "rw", true),
        ("profile crash", "crash", "crash rm", "", "rw", false),
        ("profile osd", "", "pg dump", "", "r", false),
        ("allow module telemetry r", "telemetry", "", "", "r", true),
        ("allow module telemetry r", "telemetry", "", "", "rw", false),
        ("allow module m with a=b rw", "m", "", "a=b", "rw", true),
        ("allow module m with a=b rw", "m", "", "a=c", "rw", false),
        ("allow command foo with a=b", "", "foo", "a=b", "rwx", true),
        ("allow command foo with a=b", "", "foo", "", "r", false),
        ("allow service mgr r", "", "", "", "r", true),
        ("allow service osd r", "", "", "", "r", false),
        ("allow r network 1.0.0.0/8", "", "", "", "r", false),
    ] {
        assert_eq!(
            mgr(text, module, command, arguments, perm),
            allowed,
            "{text:?} {module} {command:?} {perm}"
        );
    }
}

#[test]
fn everything_at_managers_is_the_star_alone() {
    let all = |text: &str, addr: Option<&str>| {
        text.parse::<MgrCaps>().unwrap().allows_all(addr.map(|a| a.parse().unwrap()))
    };
    assert!(all("allow *", None) && all("allow r, allow all", None));
    for text in
        ["allow rwx", "allow service mgr *", "profile read-write", "allow command \"pg dump\""]
    {
        assert!(!all(text, None), "{text}");
    }
    let near = "allow * network 10.0.0.0/8";
    assert!(all(near, Some("10.1.1.1")) && !all(near, Some("11.1.1.1")) && !all(near, None));
}

#[test]
fn mds_caps_decide() {
    let mds = |text: &str, fs: &str, path: &str, uid: u32, ops: &str| {
        text.parse::<MdsCaps>().unwrap().allows(&MdsAccess {
            fs,
            path,
            uid,
            gids: &[uid],
            read: ops.contains('r'),
            write: ops.contains('w'),
            set_vxattr: ops.contains('p'),
            snapshot: ops.contains('s'),
            full: ops.contains('f'),
            addr: None,
        })
    };
    for (text, fs, path, uid, ops, allowed) in [
        ("allow", "a", "x", 1, "rwps", true),
        ("allow", "a", "x", 1, "f", false),
        ("allow r", "a", "x", 1, "r", true),
        ("allow r", "a", "x", 1, "w", false),
        ("allow rw", "a", "x", 1, "p", false),
        ("allow rwp", "a", "x", 1, "p", true),
        ("allow rws", "a", "x", 1, "s", true),
        ("allow *", "a", "x", 0, "rwpsf", true),
        ("allow rw path=/foo", "a", "foo", 1, "w", true),
        ("allow rw path=/foo", "a", "foo/bar", 1, "w", true),
        ("allow rw path=/foo", "a", "food", 1, "w", false),
        ("allow rw path=/foo", "a", "", 1, "w", false),
        ("allow rw path=/foo/", "a", "foo/x", 1, "w", true),
        ("allow rw fsname=a", "a", "x", 1, "w", true),
        ("allow rw fsname=a", "b", "x", 1, "w", false),
        ("allow rw fsname=all", "b", "x", 1, "w", true),
        ("allow rw uid=5", "a", "x", 5, "w", true),
        ("allow rw uid=5", "a", "x", 6, "w", false),
        ("allow rw uid=5 gids=5,6", "a", "x", 5, "w", true),
        ("allow rw uid=5 gids=7", "a", "x", 5, "w", false),
        ("allow rw root_squash", "a", "x", 0, "w", false),
        ("allow rw root_squash", "a", "x", 0, "r", true),
        ("allow rw root_squash", "a", "x", 1, "w", true),
        ("allow r, allow rw path=/home", "a", "etc", 1, "w", false),
        ("allow r, allow rw path=/home", "a", "home/x", 1, "w", true),
        ("allow rw network 10.0.0.0/8", "a", "x", 1, "w", false),
    ] {
        assert_eq!(mds(text, fs, path, uid, ops), allowed, "{text:?} {fs}:{path} uid {uid} {ops}");
    }
}

fn words() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just("allow"),
        Just("profile"),
        Just("rbd"),
        Just("r"),
        Just("rw"),
        Just("rwx"),
        Just("*"),
        Just("all"),
        Just("pool="),
        Just("pool"),
        Just("namespace="),
        Just("x"),
        Just("\"a b\""),
        Just("'"),
        Just("\""),
        Just("class"),
        Just("class-read"),
        Just("class-write"),
        Just("object_prefix"),
        Just("tag"),
        Just("k=v"),
        Just("="),
        Just(","),
        Just(";"),
        Just("service"),
        Just("command"),
        Just("with"),
        Just("prefix"),
        Just("regex"),
        Just("module"),
        Just("network"),
        Just("10.0.0.0/8"),
        Just("::/0"),
        Just("path=/a"),
        Just("uid=1"),
        Just("gids=1,2"),
        Just("fsname=f"),
        Just("root_squash"),
        Just("rwps"),
        Just("ü"),
        Just("\n"),
        Just("\t"),
        Just(" "),
    ];
    let gap = prop_oneof![3 => Just(" "), 1 => Just("")];
    proptest::collection::vec((word, gap), 0..14)
        .prop_map(|v| v.into_iter().flat_map(|(a, b)| [a, b]).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    /// Any text is accepted or refused with a place within it; what surrounds it does not matter.
    #[test]
    fn no_text_confuses_the_parsers(text in prop_oneof![words(), any::<String>()]) {
        for service in ["mon", "osd", "mgr", "mds", "nfs"] {
            match caps::validate(service, &text) {
                Err(caps::CapsError::Stopped { at, text: t, .. }) => {
                    prop_assert!(t.is_char_boundary(at));
                    prop_assert_eq!(&t, &text);
                }
                Err(e) => { let _ = e.to_string(); }
                Ok(()) => {
                    // White space before and after, and another grant, change nothing.
                    if !(service == "mds" && text == "allow") {
                        for wrapped in [format!("{text} "), format!("  {text}"), format!("{}, \
                            allow r", text.trim_end())] {
                            prop_assert!(caps::validate(service, &wrapped).is_ok(), "{} {:?}", service, wrapped);
                        }
                    }
                    prop_assert_ne!(service, "nfs");
                }
            }
        }
    }

    /// A grant more never allows less, and the order of grants does not matter.
    #[test]
    fn grants_only_add(a in words(), b in words(), write: bool, read: bool) {
        if a.parse::<OsdCaps>().is_err() || b.parse::<OsdCaps>().is_err() {
            return Ok(());
        }
        let ops = format!("{} {}", if read { "r" } else { "" }, if write { "w" } else { "" });
        let (one, other) = (osd(&a, "x/n", &ops), osd(&b, "x/n", &ops));
        prop_assert_eq!(osd(&format!("{a}, {b}"), "x/n", &ops), one || other);
        prop_assert_eq!(osd(&format!("{b}; {a}"), "x/n", &ops), one || other);
    }
}

#[test]
fn absurdly_long_texts_are_refused_quickly() {
    let long = "allow r, ".repeat(5000);
    for service in ["mon", "osd", "mgr", "mds"] {
        assert!(matches!(caps::validate(service, &long), Err(caps::CapsError::TooLong { .. })));
        let nested = format!("allow command a with {}", "a=b ".repeat(4000));
        let _ = caps::validate(service, nested.get(..caps::MAX_TEXT).unwrap_or(&nested));
    }
}
