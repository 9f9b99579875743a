//! The permission matrix: whatever a monitor takes, a user who lacks one of the rights that it needs is refused, and one who has
//! them is not. The rows are the tables that decide, so that nothing new is without one; what the rows say is held against a list.

use super::*;
use serde_json::json;
use spirula_encoding::UTime;
use spirula_maps::{Crush, MonMap, OsdMap, PgPool};
use spirula_types::{AddrVec, Uuid};
use std::collections::BTreeSet;

/// Every part of a monitor that anything here is for, and one more.
fn services() -> BTreeSet<&'static str> {
    let kinds = NEEDS.iter().filter_map(|(_, need)| match need {
        Need::Cap(service, ..) | Need::Command(service, _) | Need::Daemon(_, service) => Some(*service),
        Need::Session | Need::Contents => None,
    });
    kinds.chain(commands::specs().map(|s| s.module)).chain(["mds", "auth", "config-key", "log", "mon", "pg"]).collect()
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
    let mut map = OsdMap::fresh(Uuid([1; 16]), 3, now, Crush::new(spirula_crush::CrushMap::default()));
    let mut pool = PgPool::replicated(1, 8, 0, now);
    pool.application_metadata = [("cephfs".to_owned(), [("data".to_owned(), "fs".to_owned())].into())].into();
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
                assert!(goes(&only(service, &rights), EntityType::Client, &m), "{kind}: {service} {rights}");
                for lacking in rights.chars() {
                    assert!(!goes(&all_but(service, lacking), EntityType::Client, &m), "{kind} without {lacking}");
                }
            }
            Need::Command(service, command) => {
                assert!(goes(&only(service, "rw"), EntityType::Client, &m), "{kind}");
                assert!(goes(&format!("allow command \"{command}\""), EntityType::Client, &m), "{kind}");
                for lacking in ['r', 'w'] {
                    assert!(!goes(&all_but(service, lacking), EntityType::Client, &m), "{kind} without {lacking}");
                }
            }
            Need::Daemon(who, service) => {
                assert!(goes(&only(service, "wx"), who, &m), "{kind}");
                for lacking in ['w', 'x'] {
                    assert!(!goes(&all_but(service, lacking), who, &m), "{kind} without {lacking}");
                }
                for other in [EntityType::Client, EntityType::Osd, EntityType::Mgr, EntityType::Mds] {
                    assert!(other == who || !goes("allow *", other, &m), "{kind} of {other:?}");
                }
            }
            Need::Contents => assert!(
                [kind::MON_SUBSCRIBE, kind::MON_COMMAND, kind::COMMAND, kind::POOL_OP].contains(kind),
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
    MPoolOp { version: 0, fsid: Uuid([1; 16]), pool: 1, op, snap: 0, name: String::new(), crush_rule: 0 }
}

#[test]
fn every_command_needs_all_of_its_rights() {
    let mut seen = BTreeSet::new();
    for spec in commands::specs() {
        let prefix = spec.prefix();
        // Of several with one prefix the arguments decide: each is tried as the one that is meant.
        let Some((module, perm)) = commands::needs_of(&command(&prefix).cmd) else { panic!("{prefix}") };
        seen.insert((module, perm));
        let m = command(&prefix).into_message(1);
        assert!(!perm.is_empty() && perm.chars().all(|c| "rwx".contains(c)), "{prefix}: '{perm}'");
        assert!(goes(&only(module, perm), EntityType::Client, &m), "{prefix}: {module} {perm}");
        for lacking in perm.chars() {
            assert!(!goes(&all_but(module, lacking), EntityType::Client, &m), "{prefix} without {lacking} at {module}");
        }
        // Those that share a prefix need the same, else who may the one could do the other.
        assert_eq!((spec.module, spec.perm), (module, perm), "{}", spec.sig);
    }
    assert!(seen.len() > 10);
}

/// What changes anything, or shows a secret, says so in its row.
#[test]
fn no_command_that_changes_something_is_for_readers() {
    let reads = ["ls", "list", "dump", "get", "status", "stat", "df", "tree", "show", "find", "metadata", "versions"];
    for spec in commands::specs().filter(|s| !s.perm.contains('w')) {
        let prefix = spec.prefix();
        let changes = ["create", "rm", "set", "add", "delete", "purge", "destroy", "import", "rotate", "mute", "clear"];
        let word = prefix.split_whitespace().find(|w| changes.contains(w));
        let shown = prefix.split_whitespace().any(|w| reads.contains(&w));
        assert!(word.is_none() || shown, "{prefix} needs only '{}'", spec.perm);
    }
    for secret in
        ["auth get", "auth get-key", "auth print-key", "auth export", "auth ls", "config-key get", "config-key dump"]
    {
        let (_, perm) = commands::needs_of(&command(secret).cmd).unwrap();
        assert!(perm.contains('x') || secret.starts_with("config-key"), "{secret} shows secrets to who may '{perm}'");
        let m = command(secret).into_message(1);
        assert!(!goes("allow r", EntityType::Client, &m), "{secret} is for who may read");
    }
}

#[test]
fn telling_a_monitor_needs_everything_at_monitors() {
    for prefix in commands::specs().map(|s| s.prefix()).chain(commands::own_commands()) {
        if prefix == "get_command_descriptions" {
            continue;
        }
        let m = told(&prefix).into_message(1);
        assert!(goes(&only("mon", "rwx"), EntityType::Client, &m), "{prefix}");
        for lacking in ['r', 'w', 'x'] {
            assert!(!goes(&all_but("mon", lacking), EntityType::Client, &m), "{prefix} without {lacking}");
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
            assert!(!goes(&all_but("osd", lacking), EntityType::Client, &m), "{op:#x} without {lacking}");
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
        let user = format!("[client.u]\n\tkey = AQAAAAAAAAAAABAAAQIDBAUGBwgJCgsMDQ4PEA==\n\tcaps osd = \"{osd}\"\n");
        Arc::make_mut(&mut state.auth).import(user.as_bytes()).unwrap();
        let caps = parsed("profile rbd");
        let m = MPoolOp { pool, ..pool_op(op) }.into_message(1);
        matches!(decide(&asker(&caps), &peer(EntityType::Client), Some(Need::Contents), &state, m), Ok(Ruling::Go(_)))
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
        // Who writes to a file system's files must not remove the snapshots that its metadata servers made.
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
