//! Who may ask the manager for what: the one place that decides, for every message and command.

use crate::commands;
use crate::event::Peer;
use spirula_auth::caps::{self, Args, MgrAccess};
use spirula_messages::ceph::{MCommand, MCommandReply, MMgrCommand, MMgrCommandReply, kind};
use spirula_messages::cluster::control::OsdReport;
use spirula_messages::{Body, Message};
use spirula_types::{EntityType, errno};

/// `None`: go on. Otherwise the message is not handled, and this is the answer, if one is waited
/// for.
pub(crate) fn refused(peer: &Peer, m: &Message) -> Option<Option<Message>> {
    let held = peer.caps.as_ref()?;
    let addr = peer.place;
    let may =
        |service: &str, command: &str, args: &Args, (read, write, exec): (bool, bool, bool)| {
            let module = commands::module_of(command);
            let service = if module.is_empty() { service } else { caps::MODULES };
            let whole = MgrAccess { service, module, command, args, read, write, exec, addr };
            // A module's command that names a pool is for those alone who may do so there, and who
            // have a right to the module: as Ceph's module asks once more without the command, to
            // be given the very command does not suffice.
            let there = || match commands::scope_of(command, args) {
                Some(args) => held.allows(&MgrAccess { command: "", args: &args, ..whole }),
                None => true,
            };
            held.allows(&whole) && there()
        };
    let command = |cmd: &[String], tell: bool| {
        // What cannot be understood, or is not known, does nothing and is answered with what is
        // wrong.
        let Some((prefix, args)) = commands::words_of(cmd) else { return true };
        if prefix == "get_command_descriptions" {
            return true;
        }
        // What is asked of the daemon itself, Ceph's manager takes from its admin socket: for those
        // alone who may do everything.
        if tell {
            return held.allows_all(addr);
        }
        commands::needs_of(&prefix).is_none_or(|(module, perm)| {
            may(
                module,
                &prefix,
                &args,
                (perm.contains('r'), perm.contains('w'), perm.contains('x')),
            )
        })
    };
    let (result, status) =
        (-errno::EACCES, "access denied: the user has no capabilities for this at managers");
    match m.kind {
        OsdReport::KIND if peer.name.kind == EntityType::Osd as u8 => None,
        // Gateways and the like introduce themselves and say how they are, whatever they may.
        kind::MGR_OPEN | kind::MGR_CLOSE | kind::MGR_REPORT | kind::PING => None,
        kind::MGR_COMMAND => match MMgrCommand::from_message(m) {
            Ok(c) if !command(&c.cmd, false) => {
                let reply = MMgrCommandReply {
                    result,
                    status: status.to_owned(),
                    output: bytes::Bytes::new(),
                };
                Some(Some(reply.into_message(m.tid)))
            }
            _ => None,
        },
        kind::COMMAND => match MCommand::from_message(m) {
            // Without a cluster id it is a command for the cluster, of an old client.
            Ok(c) if !command(&c.cmd, !c.fsid.is_zero()) => {
                let reply = MCommandReply {
                    result,
                    status: status.to_owned(),
                    output: bytes::Bytes::new(),
                };
                Some(Some(reply.into_message(m.tid)))
            }
            _ => None,
        },
        _ => Some(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use spirula_types::{AddrVec, EntityName, Uuid};
    use std::collections::BTreeSet;

    fn peer(kind: EntityType, caps: &str) -> Peer {
        let caps =
            if caps.is_empty() { Default::default() } else { caps.parse().expect("capabilities") };
        let name = EntityName::new(kind, 5);
        Peer {
            name,
            global_id: 4711,
            auth_id: "u".into(),
            addrs: AddrVec::default(),
            place: None,
            caps: Some(caps),
        }
    }

    /// All rights at every part that there is, but `lacking` at `service`.
    fn all_but(service: &str, lacking: char) -> String {
        let services: BTreeSet<&str> =
            commands::modules().chain(["mgr", "pg", "osd", "config", caps::MODULES]).collect();
        let text = |s: &&str| {
            let rights: String = "rwx".chars().filter(|r| *s != service || *r != lacking).collect();
            format!("allow service {s} {rights}")
        };
        services.iter().map(text).collect::<Vec<_>>().join(", ")
    }

    fn asked(prefix: &str, fsid: Uuid) -> [Message; 2] {
        let cmd = vec![json!({ "prefix": prefix }).to_string()];
        let new = MMgrCommand { fsid, cmd: cmd.clone(), input: bytes::Bytes::new() };
        [new.into_message(1), MCommand { fsid, cmd, input: bytes::Bytes::new() }.into_message(1)]
    }

    /// The permission matrix: for each command there is, who lacks one of the rights that it needs
    /// is refused, in both forms.
    #[test]
    fn every_command_needs_all_of_its_rights() {
        let mut rows = 0;
        for (prefix, module, perm) in commands::rows() {
            // Those that share a prefix need the same, else who may the one could do the other.
            assert_eq!(commands::needs_of(&prefix), Some((module, perm)), "{prefix}");
            assert!(
                !perm.is_empty() && perm.chars().all(|c| "rwx".contains(c)),
                "{prefix}: '{perm}'"
            );
            // All modules are one part, whatever their descriptions say.
            let part = if commands::module_of(&prefix).is_empty() { module } else { caps::MODULES };
            for m in asked(&prefix, Uuid::default()) {
                let may = |caps: &str| refused(&peer(EntityType::Client, caps), &m).is_none();
                assert!(may(&format!("allow service {part} {perm}")), "{prefix}: {part} {perm}");
                for lacking in perm.chars() {
                    assert!(!may(&all_but(part, lacking)), "{prefix} without {lacking} at {part}");
                }
                assert!(!may(""), "{prefix} for who has no capabilities");
            }
            rows += 1;
        }
        assert!(rows > 40, "{rows}");
    }

    /// As in Ceph, `profile rbd` is for the module, and what it is asked for is compared then.
    #[test]
    fn what_images_do_is_told_of_the_pools_that_a_user_may_see() {
        let may = |caps: &str, spec: Option<&str>| {
            let mut cmd = json!({"prefix": "rbd perf image stats"});
            if let Some(spec) = spec {
                cmd["pool_spec"] = spec.into();
            }
            let m = MMgrCommand {
                fsid: Uuid::default(),
                cmd: vec![cmd.to_string()],
                input: bytes::Bytes::new(),
            };
            refused(&peer(EntityType::Client, caps), &m.into_message(1)).is_none()
        };
        for (caps, all, a, a_ns, b) in [
            ("profile rbd", true, true, true, true),
            ("profile rbd-read-only", true, true, true, true),
            ("allow r", true, true, true, true),
            ("profile rbd pool=a", false, true, true, false),
            ("profile rbd pool=a namespace=n", false, false, true, false),
            ("profile crash", false, false, false, false),
            ("allow module status r", false, false, false, false),
        ] {
            let got = [None, Some("a"), Some("a/n"), Some("b")].map(|spec| may(caps, spec));
            assert_eq!(got, [all, a, a_ns, b], "{caps}");
            assert_eq!(may(caps, Some("")), all, "{caps}");
        }
    }

    /// Block storage's users have the rights of its module by their profile, in their pools and
    /// nowhere else.
    #[test]
    fn a_module_and_the_profiles_of_block_images_are_rights_at_its_commands() {
        let may = |caps: &str, cmd: serde_json::Value| {
            let m = MMgrCommand {
                fsid: Uuid::default(),
                cmd: vec![cmd.to_string()],
                input: bytes::Bytes::new(),
            };
            refused(&peer(EntityType::Client, caps), &m.into_message(1)).is_none()
        };
        let list = || json!({"prefix": "rbd task list"});
        let flatten = |spec: &str| json!({"prefix": "rbd task add flatten", "image_spec": spec});
        let perf = |spec: &str| json!({"prefix": "rbd perf image stats", "pool_spec": spec});
        let all_perf = || json!({"prefix": "rbd perf image stats"});
        for caps in
            ["profile rbd", "allow module rbd_support rw", "allow service py rw", "allow rw"]
        {
            assert!(
                may(caps, list())
                    && may(caps, flatten("a/i"))
                    && may(caps, perf("a"))
                    && may(caps, all_perf()),
                "{caps}"
            );
        }
        let caps = "profile rbd pool=a, profile rbd pool=b namespace=n";
        assert!(
            may(caps, list())
                && may(caps, flatten("a/i"))
                && may(caps, flatten("a/n/i"))
                && may(caps, perf("a"))
        );
        assert!(may(caps, flatten("b/n/i")) && may(caps, perf("b/n")));
        for cmd in [
            flatten("b/i"),
            flatten("b/m/i"),
            flatten("c/i"),
            flatten(""),
            perf("b"),
            perf("c"),
            all_perf(),
        ] {
            assert!(!may(caps, cmd.clone()), "{cmd}");
        }
        assert!(
            may("profile rbd-read-only", list()) && !may("profile rbd-read-only", flatten("a/i"))
        );
        assert!(
            !may("allow service mgr rw", list()) && !may("allow service mgr rw", flatten("a/i"))
        );
        // The command is theirs, the module's pools are not.
        assert!(!may("allow command \"rbd task add flatten\"", flatten("c/i")));
        assert!(may(
            "allow command \"rbd task add flatten\", allow module rbd_support with pool=c rw",
            flatten("c/i")
        ));
        assert!(may("allow command \"rbd task list\"", list()), "it names none");
        for other in [
            json!({"prefix": "balancer status"}),
            json!({"prefix": "pg stat"}),
            json!({"prefix": "osd df"}),
        ] {
            assert!(!may("profile rbd", other.clone()), "{other}");
        }
        assert!(may("allow module balancer r", json!({"prefix": "balancer status"})));
        assert!(!may("allow module balancer r", list()));
    }

    /// What a condition names is compared with all words of a list.
    #[test]
    fn every_word_of_a_list_is_seen_by_capabilities() {
        let may = |pgid: serde_json::Value| {
            let cmd = vec![json!({"prefix": "pg force-recovery", "pgid": pgid}).to_string()];
            let m = MMgrCommand { fsid: Uuid::default(), cmd, input: bytes::Bytes::new() }
                .into_message(1);
            refused(
                &peer(EntityType::Client, "allow command \"pg force-recovery\" with pgid=1.1"),
                &m,
            )
            .is_none()
        };
        assert!(may(json!(["1.1"])) && may(json!("1.1")));
        for more in
            [json!("1.2"), json!(1.2), json!(null), json!(true), json!(["1.2"]), json!({"a": 1})]
        {
            assert!(!may(json!(["1.1", more])) && !may(json!([more, "1.1"])), "{more}");
        }
    }

    /// For a `network` it counts where a connection comes from, not what its peer says, be that a
    /// client or a daemon.
    #[test]
    fn a_network_is_where_the_connection_comes_from() {
        let [m, _] = asked("pg stat", Uuid::default());
        for (place, allowed) in [(Some("10.1.1.1"), true), (Some("11.0.0.1"), false), (None, false)]
        {
            for kind in [EntityType::Client, EntityType::Osd, EntityType::Mds] {
                let says =
                    spirula_types::EntityAddr::v2("10.1.1.1:6800".parse().expect("an address"), 1);
                let place = place.map(|a| a.parse().expect("an address"));
                let there = Peer {
                    addrs: AddrVec::one(says),
                    place,
                    ..peer(kind, "allow * network 10.0.0.0/8")
                };
                assert_eq!(refused(&there, &m).is_none(), allowed, "{place:?} {kind:?}");
                let anywhere = Peer { place, ..peer(kind, "allow *") };
                assert!(refused(&anywhere, &m).is_none(), "{place:?} {kind:?}");
            }
        }
    }

    #[test]
    fn telling_a_manager_needs_everything_at_managers() {
        for prefix in commands::rows().map(|(prefix, ..)| prefix).chain(commands::own()) {
            if prefix == "get_command_descriptions" {
                continue;
            }
            let [_, m] = asked(&prefix, Uuid([1; 16]));
            assert!(refused(&peer(EntityType::Client, "allow *"), &m).is_none(), "{prefix}");
            for caps in
                ["allow rwx", "allow service mgr rwx", "allow service mgr *", "profile read-write"]
            {
                assert!(
                    refused(&peer(EntityType::Client, caps), &m).is_some(),
                    "{prefix} by {caps}"
                );
            }
        }
    }

    #[test]
    fn other_messages_come_from_whom_they_are_for_and_what_has_no_row_from_nobody() {
        let anybody = [kind::MGR_OPEN, kind::MGR_CLOSE, kind::MGR_REPORT, kind::PING];
        // What cannot be understood does nothing, and is answered so.
        let commands = [kind::MGR_COMMAND, kind::COMMAND];
        for kind in (0..=u16::MAX).filter(|k| !commands.contains(k)) {
            let may = |who: EntityType| {
                refused(&peer(who, "allow *"), &Message { kind, ..Message::default() }).is_none()
            };
            assert_eq!(may(EntityType::Client), anybody.contains(&kind), "{kind}");
            assert_eq!(
                may(EntityType::Osd),
                anybody.contains(&kind) || kind == OsdReport::KIND,
                "{kind}"
            );
        }
    }
}
