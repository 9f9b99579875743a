//! Who may ask the manager for what: the one place that decides, for every message and command.

use crate::commands;
use crate::event::Peer;
use spirula_auth::caps::{Args, MgrAccess};
use spirula_messages::ceph::{MCommand, MCommandReply, MMgrCommand, MMgrCommandReply, kind};
use spirula_messages::cluster::control::OsdReport;
use spirula_messages::{Body, Message};
use spirula_types::{EntityType, errno};

/// `None`: go on. Otherwise the message is not handled, and this is the answer, if one is waited for.
pub(crate) fn refused(peer: &Peer, m: &Message) -> Option<Option<Message>> {
    let caps = peer.caps.as_ref()?;
    let addr = peer.addrs.msgr2().addr.map(|a| a.ip());
    let may = |service: &str, command: &str, args: &Args, (read, write, exec): (bool, bool, bool)| {
        caps.allows(&MgrAccess { service, module: "", command, args, read, write, exec, addr })
    };
    let command = |cmd: &[String], tell: bool| {
        // What cannot be understood, or is not known, does nothing and is answered with what is wrong.
        let Some((prefix, args)) = commands::words_of(cmd) else { return true };
        if prefix == "get_command_descriptions" {
            return true;
        }
        if tell {
            return may("mgr", &prefix, &args, (true, true, true));
        }
        commands::needs_of(&prefix).is_none_or(|(module, perm)| {
            may(module, &prefix, &args, (perm.contains('r'), perm.contains('w'), perm.contains('x')))
        })
    };
    let (result, status) = (-errno::EACCES, "access denied: the user has no capabilities for this at managers");
    match m.kind {
        OsdReport::KIND if peer.name.kind == EntityType::Osd as u8 => None,
        // Gateways and the like introduce themselves; what they report is not used.
        kind::MGR_OPEN | kind::MGR_CLOSE | kind::MGR_REPORT | kind::PING => None,
        kind::MGR_COMMAND => match MMgrCommand::from_message(m) {
            Ok(c) if !command(&c.cmd, false) => {
                let reply = MMgrCommandReply { result, status: status.to_owned(), output: bytes::Bytes::new() };
                Some(Some(reply.into_message(m.tid)))
            }
            _ => None,
        },
        kind::COMMAND => match MCommand::from_message(m) {
            // Without a cluster id it is a command for the cluster, of an old client.
            Ok(c) if !command(&c.cmd, !c.fsid.is_zero()) => {
                let reply = MCommandReply { result, status: status.to_owned(), output: bytes::Bytes::new() };
                Some(Some(reply.into_message(m.tid)))
            }
            _ => None,
        },
        _ => Some(None),
    }
}
