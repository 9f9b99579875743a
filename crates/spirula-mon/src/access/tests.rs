//! The permission matrix: whatever a monitor takes, a user who lacks one of the rights that it
//! needs is refused, and one who has them is not. The rows are the tables that decide, so that
//! nothing new is without one; what the rows say is held against a list.

use super::*;
use crate::commands;
use serde_json::json;
use spirula_encoding::UTime;
use spirula_maps::{Crush, MonMap, OsdMap, PgPool};
use spirula_messages::cluster::control::{MgrBeacon, MgrRun};
use spirula_types::{AddrVec, Uuid};
use std::collections::BTreeSet;

/// Every part of a monitor that anything here is for, and one more.
fn services() -> BTreeSet<&'static str> {
    let kinds = NEEDS.iter().filter_map(|(_, need)| match need {
        Need::Cap(service, ..) | Need::Command(service, _) | Need::Daemon(_, service) => {
            Some(*service)
        }
        Need::Session | Need::Contents => None,
    });
    kinds
        .chain(commands::specs().map(|s| s.module))
        .chain(["mds", "auth", "config-key", "log", "mon", "pg"])
        .collect()
}

/// All rights but `lacking` at `service`.
fn all_but(service: &str, lacking: char) -> String {
    let text = |s: &str| {
        let rights: String = "rwx".chars().filter(|r| s != service || *r != lacking).collect();
        format!("allow service {s} {rights}")
    };
    services().into_iter().map(text).collect::<Vec<_>>().join(", ")
}

/// Exactly these rights.
fn only(service: &str, rights: &str) -> String {
    format!("allow service {service} {rights}")
}

fn state() -> State {
    let now = UTime { sec: 1_795_000_000, nsec: 0 };
    let mut map =
        OsdMap::fresh(Uuid([1; 16]), 3, now, Crush::new(spirula_crush::CrushMap::default()));
    let mut pool = PgPool::replicated(1, 8, 0, now);
    pool.application_metadata =
        [("cephfs".to_owned(), [("data".to_owned(), "fs".to_owned())].into())].into();
    map.pools.insert(1, pool);
    map.pool_names.insert(1, "a".to_owned());
    State::new(MonMap::initial(Uuid([1; 16]), now, []), map, 0)
}

fn peer(kind: EntityType) -> Peer {
    Peer { kind, id: "u".into(), global_id: 5, addrs: AddrVec::default(), features: 0 }
}

/// Capabilities; none if there is no text.
fn parsed(text: &str) -> MonCaps {
    if text.is_empty() { MonCaps::default() } else { text.parse().unwrap() }
}

fn asker(caps: &MonCaps) -> Asker<'_> {
    Asker { entity: "client.u".into(), caps, addr: None }
}

/// Does a message of that user go on? A command's text or the like in `m`.
fn goes(caps: &str, kind: EntityType, m: &Message) -> bool {
    let caps = parsed(caps);
    let caps = &caps;
    let (asker, state) = (Asker { entity: peer(kind).auth_name(), ..asker(caps) }, state());
    let need = NEEDS.iter().find(|(k, _)| *k == m.kind).map(|(_, need)| *need);
    matches!(decide(&asker, &peer(kind), need, &state, m.clone()), Ok(Ruling::Go(_)))
}

fn message(kind: u16) -> Message {
    Message { kind, ..Message::default() }
}

fn letters((r, w, x): (bool, bool, bool)) -> String {
    [(r, 'r'), (w, 'w'), (x, 'x')].into_iter().filter(|(is, _)| *is).map(|(_, c)| c).collect()
}

#[test]
fn every_kind_of_message_needs_all_of_its_rights() {
    for (kind, need) in NEEDS {
        let m = message(*kind);
        match *need {
            Need::Session => assert!(goes("", EntityType::Client, &m), "{kind}"),
            Need::Cap(service, r, w, x) => {
                let rights = letters((r, w, x));
                assert!(!rights.is_empty(), "{kind} needs nothing");
                assert!(
                    goes(&only(service, &rights), EntityType::Client, &m),
                    "{kind}: {service} {rights}"
                );
                for lacking in rights.chars() {
                    assert!(
                        !goes(&all_but(service, lacking), EntityType::Client, &m),
                        "{kind} without {lacking}"
                    );
                }
            }
            Need::Command(service, command) => {
                assert!(goes(&only(service, "rw"), EntityType::Client, &m), "{kind}");
                assert!(
                    goes(&format!("allow command \"{command}\""), EntityType::Client, &m),
                    "{kind}"
                );
                for lacking in ['r', 'w'] {
                    assert!(
                        !goes(&all_but(service, lacking), EntityType::Client, &m),
                        "{kind} without {lacking}"
                    );
                }
            }
            Need::Daemon(who, service) => {
                assert!(goes(&only(service, "wx"), who, &m), "{kind}");
                for lacking in ['w', 'x'] {
                    assert!(!goes(&all_but(service, lacking), who, &m), "{kind} without {lacking}");
                }
                for other in [EntityType::Client, EntityType::Osd, EntityType::Mgr, EntityType::Mds]
                {
                    assert!(other == who || !goes("allow *", other, &m), "{kind} of {other:?}");
                }
            }
            Need::Contents => assert!(
                [kind::MON_SUBSCRIBE, kind::MON_COMMAND, kind::COMMAND, kind::POOL_OP]
                    .contains(kind),
                "{kind} is looked at by its contents: it needs a test of its own"
            ),
        }
    }
}

#[test]
fn what_has_no_row_is_refused_even_to_who_may_do_everything() {
    for kind in (0..=u16::MAX).filter(|k| NEEDS.iter().all(|(row, _)| row != k)) {
        assert!(!goes("allow *", EntityType::Client, &message(kind)), "{kind}");
        assert!(!goes("allow *", EntityType::Osd, &message(kind)), "{kind}");
    }
}

#[test]
fn nobody_may_do_anything_before_it_is_said_who_he_is() {
    for (kind, _) in NEEDS {
        let body = match *kind {
            kind::MON_COMMAND => command("status").into_message(1),
            kind::COMMAND => told("status").into_message(1),
            kind::POOL_OP => pool_op(1).into_message(1),
            kind => message(kind),
        };
        let ruling = rule(&Access::Nothing, &peer(EntityType::Client), &state(), body);
        assert!(matches!(ruling, Ok(Ruling::Refused(_))), "{kind}");
    }
}

fn command(prefix: &str) -> MMonCommand {
    let cmd = vec![json!({ "prefix": prefix }).to_string()];
    MMonCommand { version: 0, fsid: Uuid([1; 16]), cmd, input: bytes::Bytes::new() }
}

fn told(prefix: &str) -> MCommand {
    MCommand { fsid: Uuid([1; 16]), cmd: command(prefix).cmd, input: bytes::Bytes::new() }
}

fn pool_op(op: u32) -> MPoolOp {
    MPoolOp {
        version: 0,
        fsid: Uuid([1; 16]),
        pool: 1,
        op,
        snap: 0,
        name: String::new(),
        crush_rule: 0,
    }
}

#[test]
fn every_command_needs_all_of_its_rights() {
    let mut seen = BTreeSet::new();
    for spec in commands::specs() {
        let prefix = spec.prefix();
        // Of several with one prefix the arguments decide: each is tried as the one that is meant.
        let Some((module, perm)) = Command::of(&command(&prefix).cmd).unwrap().needs() else {
            panic!("{prefix}")
        };
        seen.insert((module, perm));
        let m = command(&prefix).into_message(1);
        assert!(!perm.is_empty() && perm.chars().all(|c| "rwx".contains(c)), "{prefix}: '{perm}'");
        assert!(goes(&only(module, perm), EntityType::Client, &m), "{prefix}: {module} {perm}");
        for lacking in perm.chars() {
            assert!(
                !goes(&all_but(module, lacking), EntityType::Client, &m),
                "{prefix} without {lacking} at {module}"
            );
        }
        // Those that share a prefix need the same, else who may the one could do the other.
        assert_eq!((spec.module, spec.perm), (module, perm), "{}", spec.sig);
    }
    assert!(seen.len() > 10);
}

/// What changes anything, or shows a secret, says so in its row.
#[test]
fn no_command_that_changes_something_is_for_readers() {
    let reads = [
        "ls", "list", "dump", "get", "status", "stat", "df", "tree", "show", "find", "metadata",
        "versions",
    ];
    for spec in commands::specs().filter(|s| !s.perm.contains('w')) {
        let prefix = spec.prefix();
        let changes = [
            "create", "rm", "set", "add", "delete", "purge", "destroy", "import", "rotate", "mute",
            "clear",
        ];
        let word = prefix.split_whitespace().find(|w| changes.contains(w));
        let shown = prefix.split_whitespace().any(|w| reads.contains(&w));
        assert!(word.is_none() || shown, "{prefix} needs only '{}'", spec.perm);
    }
    for secret in [
        "auth get",
        "auth get-key",
        "auth print-key",
        "auth export",
        "auth ls",
        "config-key get",
        "config-key dump",
    ] {
        let (_, perm) = Command::of(&command(secret).cmd).unwrap().needs().unwrap();
        assert!(
            perm.contains('x') || secret.starts_with("config-key"),
            "{secret} shows secrets to who may '{perm}'"
        );
        let m = command(secret).into_message(1);
        assert!(!goes("allow r", EntityType::Client, &m), "{secret} is for who may read");
    }
}

#[test]
fn telling_a_monitor_needs_everything_at_monitors() {
    let cluster = || commands::specs().filter(|s| commands::is_told(s));
    assert!(
        cluster().all(|s| (s.module, s.perm) == ("mon", "r")),
        "it would need its own rights, too"
    );
    for prefix in cluster().map(|s| s.prefix()).chain(commands::own_commands()) {
        if prefix == "get_command_descriptions" {
            continue;
        }
        let m = told(&prefix).into_message(1);
        assert!(goes(&only("mon", "rwx"), EntityType::Client, &m), "{prefix}");
        for lacking in ['r', 'w', 'x'] {
            assert!(
                !goes(&all_but("mon", lacking), EntityType::Client, &m),
                "{prefix} without {lacking}"
            );
        }
    }
}

#[test]
fn every_subscription_needs_the_right_to_read_what_it_brings() {
    let kept = |caps: &str, what: &str| {
        let caps = parsed(caps);
        may_subscribe(&asker(&caps), &Subscription { what: what.into(), start: 0, once: false })
    };
    for what in ["monmap", "config", "mgrmap", "servicemap"] {
        assert!(kept("", what), "{what} is everyone's");
    }
    let rows = [
        ("osdmap", "osd", 'r'),
        ("mdsmap", "mds", 'r'),
        ("mdsmap.1", "mds", 'r'),
        ("fsmap", "mds", 'r'),
        ("fsmap.user", "mds", 'r'),
        ("osd_pg_creates", "osd", 'w'),
        ("kv:x", "config-key", 'r'),
        ("log-info", "log", 'r'),
        ("log-debug", "log", 'r'),
        ("mgrdigest", "mon", 'r'),
        ("whatever there may be", "mon", 'r'),
    ];
    for (what, service, right) in rows {
        assert!(kept(&only(service, &right.to_string()), what), "{what}");
        assert!(!kept(&all_but(service, right), what), "{what} without {right} at {service}");
    }
}

#[test]
fn every_operation_on_pools_needs_to_read_and_write_osds() {
    for op in 0..0x40 {
        let m = pool_op(op).into_message(1);
        assert!(goes(&only("osd", "rw"), EntityType::Client, &m), "{op:#x}");
        for lacking in ['r', 'w'] {
            assert!(
                !goes(&all_but("osd", lacking), EntityType::Client, &m),
                "{op:#x} without {lacking}"
            );
        }
    }
}

/// Whoever may write to a pool may make snapshots of its own there, whatever it may do at monitors.
#[test]
fn snapshots_of_ones_own_need_the_right_to_write_to_that_pool() {
    /// `CEPH_POOL_OP_*_UNMANAGED_SNAP`, and a pool's own.
    const OWN: [u32; 2] = [0x21, 0x22];
    const NAMED: [u32; 2] = [0x11, 0x12];
    let goes = |osd: &str, op: u32, pool: u32| {
        let mut state = state();
        let user = format!(
            "[client.u]\n\tkey = AQAAAAAAAAAAABAAAQIDBAUGBwgJCgsMDQ4PEA==\n\tcaps osd = \"{osd}\"\n"
        );
        Arc::make_mut(&mut state.auth).import(user.as_bytes()).unwrap();
        let caps = parsed("profile rbd");
        let m = MPoolOp { pool, ..pool_op(op) }.into_message(1);
        matches!(
            decide(&asker(&caps), &peer(EntityType::Client), Some(Need::Contents), &state, m),
            Ok(Ruling::Go(_))
        )
    };
    for (osd, may) in [
        ("profile rbd", true),
        ("profile rbd pool=a", true),
        ("profile rbd pool=b", false),
        ("profile rbd pool=a namespace=n", true),
        ("profile rbd-read-only pool=a", false),
        ("allow r", false),
        ("allow rx pool=a", false),
        ("allow w pool=a", true),
        ("allow *", true),
        ("allow rw pool=a namespace=n", true),
        ("allow rw pool=a object_prefix rbd_", true),
        ("allow rw namespace=n", false),
        ("allow rw object_prefix rbd_", false),
        // Who writes to a file system's files must not remove the snapshots that its metadata
        // servers made.
        ("allow rw tag cephfs data=fs", false),
        ("allow class rbd", false),
    ] {
        for op in OWN {
            assert_eq!(goes(osd, op, 1), may, "{osd}: {op:#x}");
            assert!(!goes(osd, op, 77), "{osd}: {op:#x} in no pool");
        }
        for op in NAMED {
            assert!(!goes(osd, op, 1), "{osd}: {op:#x} needs the right to change the pool");
        }
    }
}

#[test]
fn a_metadata_server_may_say_which_snapshots_are_removed() {
    for (caps, who, may) in [
        ("allow profile mds", EntityType::Mds, true),
        ("allow rw", EntityType::Client, true),
        ("allow r", EntityType::Client, false),
        ("profile rbd", EntityType::Client, false),
    ] {
        assert_eq!(goes(caps, who, &message(kind::REMOVE_SNAPS)), may, "{caps}");
    }
}

/// What a capability looks at is what the command does, whatever else stands in the request.
#[test]
fn arguments_that_a_command_does_not_take_open_no_door() {
    let may = |caps: &str, cmd: serde_json::Value| {
        let m = MMonCommand { cmd: vec![cmd.to_string()], ..command("") };
        goes(caps, EntityType::Client, &m.into_message(1))
    };
    let create = |entity: &str, caps: &[&str], more: &[(&str, &str)]| {
        let mut cmd = json!({"prefix": "auth get-or-create", "entity": entity, "caps": caps});
        more.iter().for_each(|(k, v)| cmd[*k] = json!(v));
        cmd
    };
    let rbd = ["mon", "profile rbd", "osd", "profile rbd"];
    let raw = [("caps_mon", "profile rbd"), ("caps_osd", "profile rbd")];
    let bootstrap = "allow profile bootstrap-rbd";
    assert!(may(bootstrap, create("client.x", &rbd, &[])));
    assert!(!may(bootstrap, create("client.admin", &[], &raw)), "an administrator's key");
    assert!(
        !may(bootstrap, create("client.x", &["mon", "allow *", "osd", "profile rbd"], &raw)),
        "an administrator"
    );
    let mds = ["mon", "allow profile mds", "osd", "allow rwx", "mds", "allow"];
    assert!(may("allow profile bootstrap-mds", create("mds.x", &mds, &[])));
    let raw = [("caps_mon", "allow profile mds"), ("caps_osd", "allow rwx"), ("caps_mds", "allow")];
    assert!(!may("allow profile bootstrap-mds", create("mds.x", &["mon", "allow *"], &raw)));
    let narrow = "allow command \"auth get-or-create\" with entity=client.x caps_mon=\"allow r\"";
    assert!(may(narrow, create("client.x", &["mon", "allow r"], &[])));
    assert!(!may(narrow, create("client.x", &["mon", "allow *"], &[("caps_mon", "allow r")])));

    let fence =
        |prefix: &str, op: &str, addr: &str| json!({"prefix": prefix, op: "add", "addr": addr});
    let profile = "profile rbd";
    assert!(may(profile, fence("osd blocklist", "blocklistop", "10.0.0.1:0/123")));
    assert!(may(profile, fence("osd blacklist", "blacklistop", "10.0.0.1:0/123")));
    let with = |mut cmd: serde_json::Value, key: &str, value: &str| {
        cmd[key] = json!(value);
        cmd
    };
    let whole = fence("osd blocklist", "blocklistop", "0.0.0.0:0/1");
    assert!(!may(profile, with(whole, "range", "range")), "a network");
    // The other word's operation means nothing here: what is asked for is done.
    let two = with(fence("osd blacklist", "blacklistop", "10.0.0.1:0/123"), "blocklistop", "rm");
    let args = Command::of(&[two.to_string()]).unwrap().args();
    assert!(!args.has("blocklistop") && args.str("blacklistop") == "add");
}

/// Nor are there arguments that a command sees and a capability does not.
#[test]
fn every_word_of_a_list_is_seen_by_capabilities() {
    let may = |caps: &str, cmd: serde_json::Value| {
        let m = MMonCommand { cmd: vec![cmd.to_string()], ..command("") };
        goes(caps, EntityType::Client, &m.into_message(1))
    };
    let one = "allow command \"osd down\" with ids=3";
    for (ids, allowed) in [
        (json!(["3"]), true),
        (json!([3]), true),
        (json!("3"), true),
        (json!(["3", "4"]), false),
        (json!(["3", 4, 5]), false),
        (json!([4, "3"]), false),
        (json!(["3", null]), false),
        (json!(["3", ["4"]]), false),
        (json!(["3", {"a": 4}]), false),
        (json!(["3", true]), false),
        (json!(null), false),
    ] {
        let cmd = json!({"prefix": "osd down", "ids": ids});
        assert_eq!(may(one, cmd.clone()), allowed, "{ids}");
        let args = Command::of(&[cmd.to_string()]).unwrap().args();
        assert_eq!(allowed, args.list("ids") == ["3"], "what the command does with {ids}");
    }
    let narrow = "allow command \"auth caps\" with entity=client.x caps_mon=\"allow r\"";
    let set = |caps: serde_json::Value| json!({"prefix": "auth caps", "entity": "client.x", "caps": caps});
    assert!(may(narrow, set(json!(["mon", "allow r"]))));
    // What stands where a text should is a word as well: it moves none to another place.
    assert!(!may(narrow, set(json!([1, "mon", "allow r", "x"]))));
}

/// A state with the file systems `a` and `b`, each with a server, and a standby.
fn with_file_systems() -> State {
    use spirula_maps::{Filesystem, MdsInfo, MdsMap};
    let mut state = state();
    let map = Arc::make_mut(&mut state.fsmap);
    for (fscid, name) in [(1, "a"), (2, "b")] {
        let gid = 100 + fscid as u64;
        let info =
            MdsInfo { gid, name: format!("of-{name}"), rank: 0, state: 13, ..MdsInfo::default() };
        let mut m = MdsMap { fs_name: name.into(), epoch: 1, ..MdsMap::default() };
        m.mds_info.insert(gid, info);
        (m.up, m.in_ranks) = ([(0, gid)].into(), [0].into());
        map.mds_roles.insert(gid, fscid);
        map.filesystems.push(Filesystem::new(fscid, m));
    }
    map.mds_roles.insert(9, -1);
    map.standby_daemons.insert(9, MdsInfo { gid: 9, name: "spare".into(), ..MdsInfo::default() });
    map.standby_epochs.insert(9, 1);
    map.legacy_client_fscid = 1;
    state
}

/// What a user with these capabilities is answered to a command: 0 if it goes on.
fn ruling(state: &State, caps: &str, cmd: &serde_json::Value) -> (i32, String) {
    let caps = parsed(caps);
    let c = MMonCommand {
        version: 0,
        fsid: Uuid([1; 16]),
        cmd: vec![cmd.to_string()],
        input: bytes::Bytes::new(),
    };
    match decide(
        &asker(&caps),
        &peer(EntityType::Client),
        Some(Need::Contents),
        state,
        c.into_message(3),
    ) {
        Ok(Ruling::Go(_)) => (0, String::new()),
        Ok(Ruling::Refused(Some(m))) => {
            let ack = MMonCommandAck::from_message(&m).unwrap();
            (ack.result, ack.status)
        }
        other => panic!("{:?}", other.is_ok()),
    }
}

/// A command that changes a file system needs capabilities that name it, or none.
#[test]
fn file_systems_are_changed_by_whom_they_are_named_to() {
    let state = with_file_systems();
    let ruling = |caps: &str, cmd| ruling(&state, caps, &cmd);
    let go = (0, String::new());
    let set = |fs: &str| json!({"prefix": "fs set", "fs_name": fs, "var": "max_mds", "val": "2"});
    let only_a = "allow rw fsname=a";
    assert_eq!(ruling(only_a, set("a")), go);
    assert_eq!(
        ruling(only_a, set("b")),
        (-2, "Filesystem not found: 'b'".into()),
        "who may not see it"
    );
    assert_eq!(ruling("allow rw fsname=all", set("b")).0, -2, "a name like others");
    for sees in ["allow r, allow rw fsname=a", "profile read-write"] {
        assert_eq!(ruling(sees, set("b")), (-1, "Permission denied: 'b'".into()), "{sees}");
    }
    assert_eq!(ruling(only_a, set("c")), go, "what is not there is said by the command");
    assert_eq!(ruling("allow rw", set("b")), go);
    assert_eq!(ruling("allow rw fsname=a, allow rw fsname=b", set("b")), go);
    assert_eq!(ruling("profile mgr", set("b")), go);
    assert_eq!(ruling(only_a, json!({"prefix": "mds repaired", "role": "a:0"})), go);
    assert_eq!(
        ruling(only_a, json!({"prefix": "mds repaired", "role": "b:0"})),
        (-1, "Permission denied.".into())
    );
    for who in ["b:0", "of-b", "102", "spare"] {
        let (ret, said) = ruling(only_a, json!({"prefix": "mds fail", "role_or_gid": who}));
        assert!(ret == -22 && said.contains("lack the permission to see"), "{who}: {ret} {said}");
    }
    for who in ["a:0", "0", "of-a", "101", "nobody"] {
        assert_eq!(ruling(only_a, json!({"prefix": "mds fail", "role_or_gid": who})), go, "{who}");
    }
    assert_eq!(ruling(only_a, json!({"prefix": "mds rm", "gid": 102})).0, -1);
    let new = json!({"prefix": "fs new", "fs_name": "b", "metadata": "m", "data": "d"});
    assert_eq!(ruling(only_a, new), go, "as with Ceph");
}

/// `fs volume rm` takes a file system away, and its pools: it needs capabilities that name it, as
/// `fs rm` and `fs fail` do.
#[test]
fn volumes_are_removed_by_whom_their_file_system_is_named_to() {
    let state = with_file_systems();
    let goes = |caps: &str, cmd| ruling(&state, caps, &cmd).0 == 0;
    let rm = |vol: &str| json!({"prefix": "fs volume rm", "vol_name": vol, "yes-i-really-mean-it": "--yes-i-really-mean-it"});
    let only_a = "allow rw fsname=a";
    assert!(!goes(
        only_a,
        json!({"prefix": "fs rm", "fs_name": "b", "yes_i_really_mean_it": true})
    ));
    assert!(goes(only_a, rm("a")));
    assert!(!goes(only_a, rm("b")), "who may change a only removes b and its pools");
    // The manager's part, with Ceph: whoever has the monitors' of file systems alone makes and
    // removes no pools by it.
    for caps in ["allow service fs rw", "allow service fs rw, allow service mds rw"] {
        assert!(!goes(caps, rm("a")) && !goes(caps, json!({"prefix": "fs volume ls"})), "{caps}");
    }
    assert!(goes("allow service mgr rw", json!({"prefix": "fs volume ls"})));
    // Who has it from the manager's capabilities, as ceph-csi's users do, removes what he made, but
    // for what is not his to see.
    let mut state = state;
    let user =
        "[client.u]\n\tkey = AQAAAAAAAAAAABAAAQIDBAUGBwgJCgsMDQ4PEA==\n\tcaps mgr = \"allow rw\"\n";
    Arc::make_mut(&mut state.auth).import(user.as_bytes()).unwrap();
    for (mon, vol, may) in
        [("allow r", "b", true), ("allow r fsname=a", "a", true), ("allow r fsname=a", "b", false)]
    {
        assert_eq!(ruling(&state, mon, &rm(vol)).0 == 0, may, "{mon}: {vol}");
    }
}

/// Whoever is let in by another monitor is shown what the table of users lets him see.
#[test]
fn commands_show_no_file_systems_that_the_asker_may_not_see() {
    let now = UTime { sec: 1_795_000_000, nsec: 0 };
    let new = crate::NewMon { name: "a".into(), addrs: AddrVec::default(), uuid: Uuid([5; 16]) };
    let params = crate::MkfsParams {
        fsid: Uuid([1; 16]),
        mons: vec![new],
        osds: Vec::new(),
        failure_domain: "host".into(),
        defaults: Default::default(),
        pools: Vec::new(),
        users: Default::default(),
        service_keys: Default::default(),
    };
    let identity = crate::image::Identity { fsid: Uuid([1; 16]), uuid: Uuid([5; 16]), member: 1 };
    let hard = spirula_quorum::HardState { term: 1, vote: 0, commit: 1 };
    let snapshot = crate::mkfs(&params, now).unwrap();
    let stored = crate::image::Stored {
        identity,
        hard,
        snapshot,
        entries: vec![],
        seq: 0,
        log_stale: false,
        log_end: 0,
        marked: false,
    };
    let (addrs, entropy): (_, crate::Entropy) =
        (AddrVec::default(), Box::new(|out: &mut [u8]| out.fill(1)));
    let opening =
        crate::Opening { stored, name: "a".into(), addrs, seeds: vec![], now, boot: 1, entropy };
    let mut mon = Mon::open(opening).unwrap();
    mon.auth_safe = true;
    mon.state.fsmap = with_file_systems().fsmap;
    for (id, caps) in [
        ("u", "allow r fsname=a"),
        ("all", "allow r"),
        ("none", "allow r fsname=c"),
        ("one-command", "allow command \"fs ls\""),
    ] {
        let caps = spirula_auth::db::caps_of_words(&["mon".to_owned(), caps.to_owned()]).unwrap();
        let key =
            spirula_auth::CryptoKey::new(spirula_auth::KeyType::Aes256k, now, &[7; 32]).unwrap();
        let entity = format!("client.{id}").parse().unwrap();
        Arc::make_mut(&mut mon.state.auth).get_or_create(&entity, caps, key).unwrap();
    }
    let mut conn = crate::quorum::REMOTE;
    let mut shown = |kind: EntityType, id: &str, prefix: &str| {
        conn += 1;
        mon.open_session(conn, Peer { id: id.into(), ..peer(kind) });
        let cmd = vec![json!({"prefix": prefix}).to_string()];
        let mut out = Vec::new();
        let m = MMonCommand { version: 0, fsid: Uuid([1; 16]), cmd, input: bytes::Bytes::new() }
            .into_message(1);
        mon.on_read(conn, &m, &mut out).unwrap();
        let Some(MonEffect::Send(_, m)) = out.pop() else { panic!("no answer") };
        String::from_utf8(MMonCommandAck::from_message(&m).unwrap().output.to_vec()).unwrap()
    };
    let both = shown(EntityType::Client, "all", "fs ls");
    assert!(both.contains("name: a") && both.contains("name: b"), "{both}");
    let one = shown(EntityType::Client, "u", "fs ls");
    assert!(one.contains("name: a") && !one.contains("name: b"), "{one}");
    assert_eq!(shown(EntityType::Client, "none", "fs ls"), "No filesystems enabled\n");
    assert_eq!(shown(EntityType::Client, "gone", "fs ls"), "No filesystems enabled\n");
    assert_eq!(shown(EntityType::Client, "one-command", "fs ls"), both, "it names no file system");
    assert_eq!(shown(EntityType::Mgr, "x", "fs ls"), both, "daemons see everything");
    for prefix in ["fs dump", "mds stat", "status", "health", "mds metadata", "node ls"] {
        let text = shown(EntityType::Client, "u", prefix);
        assert!(!text.contains("of-b") && !text.contains("'b'"), "{prefix}: {text}");
    }
    assert!(shown(EntityType::Client, "u", "fs dump").contains("of-a"));
    // The manager is told for whom it answers what is passed on to it.
    let manager = conn + 1;
    let x = Peer { id: "x".into(), ..peer(EntityType::Mgr) };
    mon.open_session(manager, x.clone());
    let beacon = MgrBeacon {
        fsid: Uuid([1; 16]),
        gid: 4200,
        name: "x".into(),
        addr: AddrVec::default(),
        available: true,
        metadata: Default::default(),
        commands: vec![],
        modules: vec![],
        services: Default::default(),
    };
    let mut work = crate::work::Work::new(mon.state.clone(), now, mon.speaker());
    mon.mgr_beacon(manager, &x, beacon, &mut work);
    mon.state.mgrmap = work.state.mgrmap;
    let mut told = |kind: EntityType, id: &str| {
        conn += 2;
        mon.open_session(conn, Peer { id: id.into(), ..peer(kind) });
        let cmd = vec![json!({"prefix": "fs status"}).to_string()];
        let m = MMonCommand { version: 0, fsid: Uuid([1; 16]), cmd, input: bytes::Bytes::new() }
            .into_message(1);
        let mut out = Vec::new();
        mon.ask_manager(crate::quorum::Ask { conn, message: m, via: None }, &mut out);
        mon.proxy = crate::proxy::Proxy::default();
        let runs = out.iter().filter_map(|e| match e {
            MonEffect::Send(to, m) if *to == manager => MgrRun::from_message(m).ok(),
            _ => None,
        });
        runs.last().unwrap().only_fs.0
    };
    assert_eq!(told(EntityType::Client, "u"), (true, vec!["a".to_owned()]));
    assert_eq!(told(EntityType::Client, "none"), (true, vec![]));
    assert_eq!(told(EntityType::Client, "gone"), (true, vec![]));
    assert_eq!(told(EntityType::Client, "all"), (false, vec![]));
    assert_eq!(told(EntityType::Mgr, "y"), (false, vec![]));
    assert_eq!(mon.only_fs(4711), (true, vec![]), "nobody");
}

/// What the manager serves, and what is refused by name, needs of a monitor the rights that it has
/// in its own table.
#[test]
fn commands_of_managers_need_their_rights_at_monitors() {
    let mut state = state();
    let one = |sig: &[&str], module: &str, perm: &str| {
        json!({"sig": sig, "help": "", "module": module, "perm": perm, "flags": 8}).to_string()
    };
    state.mgr_commands =
        Arc::new(vec![one(&["pg", "stat"], "pg", "r"), one(&["osd", "scrub"], "osd", "rw")]);
    let answer = |caps: &str, prefix: &str| {
        let caps = parsed(caps);
        let m = command(prefix).into_message(1);
        match decide(&asker(&caps), &peer(EntityType::Client), Some(Need::Contents), &state, m) {
            Ok(Ruling::Go(_)) => 0,
            Ok(Ruling::Refused(Some(m))) => -MMonCommandAck::from_message(&m).unwrap().result,
            other => panic!("{prefix}: {}", other.is_ok()),
        }
    };
    for (prefix, module, perm) in
        [("pg stat", "pg", "r"), ("osd scrub", "osd", "rw"), ("balancer on", "mgr", "rw")]
    {
        assert_eq!(answer(&only(module, perm), prefix), 0, "{prefix}");
        assert_eq!(answer(&format!("allow command \"{prefix}\""), prefix), 0, "{prefix}");
        for lacking in perm.chars() {
            assert_eq!(
                answer(&all_but(module, lacking), prefix),
                errno::EACCES,
                "{prefix} without {lacking}"
            );
        }
    }
    // It goes no further: the leader may know it meanwhile.
    assert_eq!(answer("allow *", "no such command"), errno::EINVAL);
}

/// What Ceph's manager serves may be had by capabilities for managers, as there, and by those for
/// monitors.
#[test]
fn what_monitors_serve_in_the_managers_place_goes_by_either_capabilities() {
    let goes = |mon: &str, mgr: &str, prefix: &str| {
        let mut state = state();
        let user = format!(
            "[client.u]\n\tkey = AQAAAAAAAAAAABAAAQIDBAUGBwgJCgsMDQ4PEA==\n\tcaps mgr = \"{mgr}\"\n"
        );
        Arc::make_mut(&mut state.auth).import(user.as_bytes()).unwrap();
        let caps = parsed(mon);
        let m = command(prefix).into_message(1);
        matches!(
            decide(&asker(&caps), &peer(EntityType::Client), Some(Need::Contents), &state, m),
            Ok(Ruling::Go(_))
        )
    };
    for (mon, mgr, prefix, may) in [
        ("allow r", "profile crash", "crash post", true),
        ("allow r", "profile crash", "crash rm", false),
        ("allow r", "allow rw", "fs volume create", true),
        ("allow r", "allow r", "fs volume create", false),
        ("allow r", "allow module volumes rw", "fs volume create", true),
        // A module is no part of `mgr`, but of `py`.
        ("allow r", "allow service mgr rw", "fs volume create", false),
        ("allow r", "allow service py rw", "fs volume create", true),
        ("allow service fs rw", "allow r", "fs volume create", false),
        ("allow r", "allow module volumes rw", "crash rm", false),
        ("profile rbd", "allow r", "osd test-reweight-by-pg", true),
        ("profile rbd", "profile rbd", "device ls", false),
        ("allow rw", "profile rbd", "fs volume create", true),
        // No other command is the manager's.
        ("allow r", "allow *", "osd out", false),
        ("allow r", "allow *", "osd purge", true),
    ] {
        assert_eq!(goes(mon, mgr, prefix), may, "mon '{mon}' mgr '{mgr}': {prefix}");
    }
}

/// A manager may have monitors do for its clients what is its own with Ceph, and for nobody what is
/// not; who is limited to some file systems does not come past that by the manager.
#[test]
fn a_manager_passes_on_nothing_but_its_own_commands() {
    let mut state = state();
    let user = |name: &str, caps: &str| {
        format!(
            "[client.{name}]\n\tkey = AQAAAAAAAAAAABAAAQIDBAUGBwgJCgsMDQ4PEA==\n\tcaps mon = \
                \"{caps}\"\n"
        )
    };
    let users = user("one", "allow rw fsname=a") + &user("all", "allow rw");
    Arc::make_mut(&mut state.auth).import(users.as_bytes()).unwrap();
    let fsmap = Arc::make_mut(&mut state.fsmap);
    for (id, name) in [(1, "a"), (2, "b")] {
        let map = spirula_maps::MdsMap { fs_name: name.to_owned(), ..Default::default() };
        fsmap.filesystems.push(spirula_maps::Filesystem::new(id, map));
    }
    let answer = |who: &str, cmd: serde_json::Value| {
        let asker = crate::event::Peer { id: who.to_owned(), ..peer(EntityType::Client) };
        let asker = crate::quorum::carried_peer(&asker);
        let run = MonRun {
            id: 9,
            asker,
            limited: true,
            cmd: vec![cmd.to_string()],
            input: bytes::Bytes::new(),
        };
        match rule(&Access::Everything, &peer(EntityType::Mgr), &state, run.into_message(1)) {
            Ok(Ruling::Go(_)) => 0,
            Ok(Ruling::Refused(Some(m))) => -MonRan::from_message(&m).unwrap().result,
            other => panic!("{}", other.is_ok()),
        }
    };
    let remove = |name: &str| json!({"prefix": "fs volume rm", "vol_name": name});
    let asker = crate::quorum::carried_peer(&peer(EntityType::Client));
    let run = MonRun {
        id: 9,
        asker,
        limited: false,
        cmd: vec![remove("a").to_string()],
        input: bytes::Bytes::new(),
    };
    let by_client =
        rule(&Access::Everything, &peer(EntityType::Client), &state, run.into_message(1));
    assert!(matches!(by_client, Ok(Ruling::Refused(None))), "it is no manager");
    assert_eq!(answer("one", remove("a")), 0);
    assert_eq!(answer("one", remove("b")), errno::EPERM);
    assert_eq!(answer("all", remove("b")), 0);
    assert_eq!(
        answer("all", json!({"prefix": "auth get", "entity": "client.admin"})),
        errno::EACCES
    );
    assert_eq!(answer("all", json!({"prefix": "osd out", "ids": ["1"]})), errno::EACCES);
    assert_eq!(answer("all", json!("osd purge")), errno::EINVAL);
}

/// What both read the same of is there, with the rights that Ceph has.
#[test]
fn every_command_of_managers_that_monitors_serve_is_in_their_table() {
    for c in managers::commands() {
        let words = spirula_settings::common::words(c.sig);
        let spec =
            commands::specs().find(|s| s.prefix() == words).unwrap_or_else(|| panic!("{words}"));
        assert_eq!(spec.perm.contains('w'), c.perm.contains('w'), "{words}");
        let names = |sig: &str| -> BTreeSet<String> {
            let of =
                |w: &str| w.split(',').find_map(|p| p.strip_prefix("name=")).map(str::to_owned);
            sig.split_whitespace().filter_map(of).collect()
        };
        assert_eq!(names(spec.sig), names(c.sig), "{words}");
    }
}
