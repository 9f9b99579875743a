//! Who may ask a monitor for what: the one place that decides, for every message and command.
//!
//! Every kind of message has a row in [`NEEDS`]; what has none is refused. Commands are decided
//! by their module, words and arguments against the asker's capabilities. What is refused is
//! answered where the asker waits for an answer, and dropped where not.
//!
//! Commands that Ceph's manager serves may be asked there of both, and each goes by the
//! capabilities for itself. So do they here, whoever serves them: what the manager serves needs, of
//! a monitor, capabilities for monitors, as what Ceph's monitors pass on does; for what monitors
//! serve in its place ([`managers`]) those for managers do, too, and where the manager passes it on
//! ([`MonRun`]) it has looked at them. Neither way leads past the file systems that a user is
//! limited to.
//!
//! Facts: `docs/protocol/mon.md`; Ceph asks for the same capabilities, except that it lets
//! everyone subscribe to the cluster log.

mod fs;

use crate::commands::{Command, args::Args, needs_of_others, unknown};
use crate::event::{ConnId, MonEffect, Peer};
use crate::mon::Mon;
use crate::mon::bounds::{COMMAND_MAX, READ_MAX, REQUEST_MAX};
use crate::quorum::Ask;
use crate::state::State;
use spirula_auth::caps::{self, MgrAccess, MgrCaps, MonAccess, MonCaps, OsdCaps};
use spirula_auth::db::AuthDb;
use spirula_auth::monitor::{Authority, Policy, Session as AuthSession};
use spirula_auth::rotating::ServiceKeys;
use spirula_auth::{EntityId, METHOD_CEPHX};
use spirula_messages::ceph::{
    MAuth, MAuthReply, MCommand, MCommandReply, MMonCommand, MMonCommandAck, MMonSubscribe,
    MPoolOp, MPoolOpReply, Subscription, kind,
};
use spirula_messages::cluster::control::{
    MgrBeacon, MgrDigest, MgrRan, MonRan, MonRun, OsdAlive, OsdBeacon, OsdBoot, OsdFailureReport,
    OsdMarkMeDown, OsdPgTemp, PgCreateAsk, PgMerges, PgsCreated,
};
use spirula_messages::{Body, Message, MessageError};
use spirula_settings::managers;
use spirula_types::{EntityType, Uuid, errno};
use std::net::IpAddr;
use std::sync::Arc;

/// What a session may do.
#[derive(Clone, Debug, Default)]
pub enum Access {
    /// Nothing: nobody said who this is.
    #[default]
    Nothing,
    /// Everything: a daemon of this process, its admin socket, another monitor, or a cluster
    /// without authentication.
    Everything,
    /// What its capabilities allow.
    Granted {
        /// Its authenticated session.
        session: Box<AuthSession>,
        /// Its capabilities, parsed.
        caps: MonCaps,
        /// Where its connection comes from, for capabilities by `network`.
        place: Option<IpAddr>,
    },
}

impl Access {
    /// The access of an authenticated session that comes from `place`. Capabilities that cannot be
    /// read grant nothing.
    pub fn of(session: Box<AuthSession>, place: Option<IpAddr>) -> Self {
        let caps = session.caps.parse().unwrap_or_else(|e| {
            tracing::warn!(entity = %session.entity, "capabilities for monitors: {e}");
            MonCaps::default()
        });
        Self::Granted { session, caps, place }
    }

    /// May it know of that file system?
    pub(crate) fn sees_fs(&self, name: &str) -> bool {
        match self {
            Self::Everything => true,
            Self::Nothing => false,
            Self::Granted { caps, .. } => caps.allows_fs(name),
        }
    }
}

/// What a message needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Nothing but a session.
    Session,
    /// Capabilities for a part of the monitor: read, write, execute.
    Cap(&'static str, bool, bool, bool),
    /// Capabilities for a command, read and write, of a part of the monitor: what the message asks
    /// for, as a command.
    Command(&'static str, &'static str),
    /// To be such a daemon, with capabilities for a part.
    Daemon(EntityType, &'static str),
    /// Looked at by its contents.
    Contents,
}

/// Every kind of message that a monitor takes.
const NEEDS: &[(u16, Need)] = &[
    (kind::MON_GET_MAP, Need::Session),
    (kind::AUTH, Need::Session),
    (kind::PING, Need::Session),
    (kind::MON_SUBSCRIBE, Need::Contents),
    (kind::MON_GET_VERSION, Need::Cap("mon", true, false, false)),
    (kind::STATFS, Need::Cap("pg", true, false, false)),
    (kind::GET_POOL_STATS, Need::Cap("pg", true, false, false)),
    (kind::MON_COMMAND, Need::Contents),
    (kind::COMMAND, Need::Contents),
    (kind::POOL_OP, Need::Contents),
    (kind::REMOVE_SNAPS, Need::Command("osd", "osd pool rmsnap")),
    (kind::LOG, Need::Cap("log", false, true, false)),
    (OsdBoot::KIND, Need::Daemon(EntityType::Osd, "osd")),
    (OsdMarkMeDown::KIND, Need::Daemon(EntityType::Osd, "osd")),
    (OsdFailureReport::KIND, Need::Daemon(EntityType::Osd, "osd")),
    (OsdBeacon::KIND, Need::Daemon(EntityType::Osd, "osd")),
    (OsdAlive::KIND, Need::Daemon(EntityType::Osd, "osd")),
    (OsdPgTemp::KIND, Need::Daemon(EntityType::Osd, "osd")),
    (PgCreateAsk::KIND, Need::Daemon(EntityType::Osd, "osd")),
    (PgsCreated::KIND, Need::Daemon(EntityType::Osd, "osd")),
    (PgMerges::KIND, Need::Daemon(EntityType::Osd, "osd")),
    (kind::MDS_BEACON, Need::Daemon(EntityType::Mds, "mds")),
    (kind::MDS_OFFLOAD_TARGETS, Need::Daemon(EntityType::Mds, "mds")),
    (MgrBeacon::KIND, Need::Daemon(EntityType::Mgr, "mgr")),
    (MgrDigest::KIND, Need::Daemon(EntityType::Mgr, "mgr")),
    (MgrRan::KIND, Need::Daemon(EntityType::Mgr, "mgr")),
    (MonRun::KIND, Need::Daemon(EntityType::Mgr, "mgr")),
];

/// A session's answer to "may it?".
struct Asker<'a> {
    entity: String,
    caps: &'a MonCaps,
    addr: Option<IpAddr>,
}

impl Asker<'_> {
    fn may(
        &self,
        service: &str,
        command: &str,
        args: &caps::Args,
        rwx: (bool, bool, bool),
    ) -> bool {
        let (read, write, exec) = rwx;
        let access = MonAccess {
            entity: &self.entity,
            service,
            command,
            args,
            read,
            write,
            exec,
            addr: self.addr,
        };
        self.caps.allows(&access)
    }
}

/// What is to become of a message.
pub(crate) enum Ruling {
    /// It is handled; subscriptions may have become fewer.
    Go(Message),
    /// It is not, and this is the answer, if one is waited for.
    Refused(Option<Message>),
}

/// Decides about a message of a session. The only way in.
///
/// # Errors
/// When the message is malformed.
pub(crate) fn rule(
    access: &Access,
    peer: &Peer,
    state: &State,
    m: Message,
) -> Result<Ruling, MessageError> {
    if m.kind == MonRun::KIND {
        // Whatever this one may do itself.
        if peer.kind != EntityType::Mgr {
            return Ok(Ruling::Refused(None));
        }
        if let Some(refused) = by_manager(state, &m)? {
            return Ok(Ruling::Refused(Some(refused)));
        }
    }
    let (caps, addr) = match access {
        Access::Everything => return Ok(Ruling::Go(m)),
        Access::Nothing => return Ok(Ruling::Refused(refusal(&m, "access denied")?)),
        Access::Granted { caps, place, .. } => (caps, *place),
    };
    let asker = Asker { entity: peer.auth_name(), caps, addr };
    let need = NEEDS.iter().find(|(kind, _)| *kind == m.kind).map(|(_, need)| *need);
    decide(&asker, peer, need, state, m)
}

fn decide(
    asker: &Asker<'_>,
    peer: &Peer,
    need: Option<Need>,
    state: &State,
    m: Message,
) -> Result<Ruling, MessageError> {
    let none = caps::Args::new();
    let allowed = match need {
        None => false,
        Some(Need::Session) => true,
        Some(Need::Cap(service, r, w, x)) => asker.may(service, "", &none, (r, w, x)),
        Some(Need::Command(service, command)) => {
            asker.may(service, command, &none, (true, true, false))
        }
        Some(Need::Daemon(kind, service)) => {
            peer.kind == kind && asker.may(service, "", &none, (false, true, true))
        }
        Some(Need::Contents) => return contents(asker, state, m),
    };
    if allowed {
        return Ok(Ruling::Go(m));
    }
    tracing::debug!(
        peer = asker.entity,
        kind = m.kind,
        "refused: its capabilities do not allow it"
    );
    Ok(Ruling::Refused(refusal(&m, "access denied")?))
}

/// What is answered to a manager that has no right to pass a command on, whatever it may do itself:
/// it is for another's sake. Managers have looked at the capabilities for managers.
fn by_manager(state: &State, m: &Message) -> Result<Option<Message>, MessageError> {
    let run = MonRun::from_message(m)?;
    let no = |errno: i32, status: String| {
        let refused = MonRan { id: run.id, result: -errno, status, output: bytes::Bytes::new() };
        Ok(Some(refused.into_message(m.tid)))
    };
    let command = match Command::of(&run.cmd) {
        Ok(c) => c,
        Err(why) => return no(errno::EINVAL, why),
    };
    if managers::find(&command.prefix).is_none() {
        return no(errno::EACCES, "access denied".to_owned());
    }
    let Some(user) = crate::quorum::peer_of(run.asker).filter(|_| run.limited) else {
        return Ok(None);
    };
    let caps = caps_of(state, &user);
    let asker = Asker { entity: user.auth_name(), caps: &caps, addr: None };
    match fs::refusal(&asker, state, &command) {
        Some((errno, why)) => no(errno, why),
        None => Ok(None),
    }
}

/// A user's capabilities for monitors, as the table has them.
fn caps_of(state: &State, user: &Peer) -> MonCaps {
    let entity = user.auth_name().parse::<EntityId>().ok();
    let user = entity.and_then(|e| state.auth.get(&e));
    user.and_then(|u| u.caps.get("mon")?.parse::<MonCaps>().ok()).unwrap_or_default()
}

/// Takes file systems out of a copy of the state that the user may not see whom a manager asks for.
pub(crate) fn hide_from_user(user: &Peer, work: &mut crate::work::Work) {
    let caps = caps_of(&work.state, user);
    if let Some(seen) = work.state.fsmap.seen_by(|name| caps.allows_fs(name)) {
        work.state.fsmap = Arc::new(seen);
    }
}

fn contents(asker: &Asker<'_>, state: &State, m: Message) -> Result<Ruling, MessageError> {
    match m.kind {
        kind::MON_SUBSCRIBE => {
            let mut s = MMonSubscribe::from_message(&m)?;
            let before = s.what.len();
            s.what.retain(|what| may_subscribe(asker, what));
            if s.what.len() == before {
                return Ok(Ruling::Go(m));
            }
            tracing::debug!(
                peer = asker.entity,
                "some subscriptions refused: its capabilities do not allow them"
            );
            Ok(Ruling::Go(s.into_message(m.tid)))
        }
        kind::POOL_OP => {
            let op = MPoolOp::from_message(&m)?;
            let whole = asker.may("osd", "", &caps::Args::new(), (true, true, false));
            if whole || may_snap(asker, state, &op) {
                return Ok(Ruling::Go(m));
            }
            Ok(Ruling::Refused(refusal(&m, "access denied")?))
        }
        kind::MON_COMMAND => {
            let c = MMonCommand::from_message(&m)?;
            // What cannot be understood is answered with what is wrong with it, and does nothing.
            let Ok(c) = Command::of(&c.cmd) else { return Ok(Ruling::Go(m)) };
            // It is not passed on: the leader may know it meanwhile, and would not ask again who
            // may have it.
            if c.needs().is_none()
                && c.prefix != DESCRIPTIONS
                && needs_of_others(state, &c.prefix).is_none()
            {
                return Ok(Ruling::Refused(refused(&m, errno::EINVAL, &unknown(&c.prefix))?));
            }
            if !may_command(asker, state, &c, false) {
                return Ok(Ruling::Refused(refusal(&m, "access denied")?));
            }
            Ok(match fs::refusal(asker, state, &c) {
                None => Ruling::Go(m),
                Some((errno, why)) => Ruling::Refused(refused(&m, errno, &why)?),
            })
        }
        _ => {
            let c = MCommand::from_message(&m)?;
            if Command::of(&c.cmd).ok().is_none_or(|c| may_command(asker, state, &c, true)) {
                return Ok(Ruling::Go(m));
            }
            Ok(Ruling::Refused(refusal(&m, "insufficient caps")?))
        }
    }
}

fn may_subscribe(asker: &Asker<'_>, s: &Subscription) -> bool {
    let read = |service: &str| asker.may(service, "", &caps::Args::new(), (true, false, false));
    let what = s.what.split(['.', ':']).next().unwrap_or_default();
    match what {
        // How to find the others, and one's own options: everyone's.
        "monmap" | "config" | "mgrmap" | "servicemap" => true,
        "osdmap" => read("osd"),
        "mdsmap" | "fsmap" => read("mds"),
        "osd_pg_creates" => asker.may("osd", "", &caps::Args::new(), (false, true, false)),
        "kv" => read("config-key"),
        _ if what.starts_with("log-") => read("log"),
        _ => read("mon"),
    }
}

/// May it be told of OSD maps?
pub(crate) fn may_have_osdmap(access: &Access, peer: &Peer) -> bool {
    match access {
        Access::Everything => true,
        Access::Nothing => false,
        Access::Granted { caps, place, .. } => {
            let asker = Asker { entity: peer.auth_name(), caps, addr: *place };
            asker.may("osd", "", &caps::Args::new(), (true, false, false))
        }
    }
}

/// Snapshots of one's own (RBD's) need the right to write to the pool, not to the monitors.
fn may_snap(asker: &Asker<'_>, state: &State, op: &MPoolOp) -> bool {
    /// `CEPH_POOL_OP_*_UNMANAGED_SNAP`.
    const OWN_SNAPS: [u32; 2] = [0x21, 0x22];
    if !OWN_SNAPS.contains(&op.op) {
        return false;
    }
    let Ok(entity) = asker.entity.parse::<EntityId>() else { return false };
    let Some(caps) =
        state.auth.get(&entity).and_then(|u| u.caps.get("osd")?.parse::<OsdCaps>().ok())
    else {
        return false;
    };
    state
        .osdmap
        .pool_names
        .get(&i64::from(op.pool))
        .is_some_and(|name| caps.may_snapshot(name, asker.addr))
}

/// The list of commands is no secret, and clients need it to parse what people type.
const DESCRIPTIONS: &str = "get_command_descriptions";

/// May it run this command? `tell`: at this daemon, for which Ceph wants all rights. Then it can
/// only be one about this daemon: no other is run when told ([`commands::run`]).
fn may_command(asker: &Asker<'_>, state: &State, command: &Command, tell: bool) -> bool {
    let prefix = command.prefix.as_str();
    if prefix == DESCRIPTIONS {
        return true;
    }
    let args = flat(&command.args());
    if tell {
        return asker.may("mon", prefix, &args, (true, true, true));
    }
    let rwx = |perm: &str| (perm.contains('r'), perm.contains('w'), perm.contains('x'));
    match command.needs() {
        Some((module, perm)) => {
            asker.may(module, prefix, &args, rwx(perm))
                || may_by_manager(asker, state, prefix, &args)
        }
        None => match needs_of_others(state, prefix) {
            Some((module, perm)) => asker.may(&module, prefix, &args, rwx(&perm)),
            // Not known: the answer says so.
            None => true,
        },
    }
}

/// May it have this of Ceph's manager, which serves it there?
fn may_by_manager(asker: &Asker<'_>, state: &State, prefix: &str, args: &caps::Args) -> bool {
    let Some(c) = managers::find(prefix) else { return false };
    let Ok(entity) = asker.entity.parse::<EntityId>() else { return false };
    let caps = state.auth.get(&entity).and_then(|u| u.caps.get("mgr")?.parse::<MgrCaps>().ok());
    let right = |right| c.perm.contains(right);
    let access = MgrAccess {
        service: if c.module.is_empty() { c.part } else { caps::MODULES },
        module: c.module,
        command: prefix,
        args,
        read: right('r'),
        write: right('w'),
        exec: right('x'),
        addr: asker.addr,
    };
    caps.is_some_and(|caps| caps.allows(&access))
}

/// Arguments as capabilities compare them: the texts that the command itself makes of them; `caps`
/// by service as `caps_mon`, `caps_osd` ….
fn flat(args: &Args) -> caps::Args {
    let mut out = caps::Args::new();
    // No argument of any command is called so: they would stand for what is in `caps`.
    for (key, value) in args.0.iter().filter(|(key, _)| !key.starts_with("caps_")) {
        if key == "caps" && value.is_array() {
            for pair in args.list(key).chunks_exact(2) {
                if let [service, text] = pair {
                    out.insert(format!("caps_{service}"), text.clone());
                }
            }
        } else if let Some(text) = args.opt_str(key) {
            out.insert(key.clone(), text);
        }
    }
    out
}

/// The answer to a request that is too large, without an echo of it; none if none is waited for.
/// Its type and transaction suffice.
pub fn too_large(m: &Message) -> Option<Message> {
    let most = format!(
        "{COMMAND_MAX} bytes, {REQUEST_MAX} with its input; one that only reads at most {READ_MAX}"
    );
    let (result, status) = (-errno::E2BIG, format!("a request has at most {most}"));
    let (cmd, output) = (Vec::new(), bytes::Bytes::new());
    match m.kind {
        kind::MON_COMMAND => {
            Some(MMonCommandAck { version: 0, result, status, cmd, output }.into_message(m.tid))
        }
        kind::COMMAND => Some(MCommandReply { result, status, output }.into_message(m.tid)),
        kind::POOL_OP => {
            let reply =
                MPoolOpReply { version: 0, fsid: Uuid::default(), result, epoch: 0, data: None };
            Some(reply.into_message(m.tid))
        }
        _ => None,
    }
}

/// The answer that says no, where one is waited for.
fn refusal(m: &Message, why: &str) -> Result<Option<Message>, MessageError> {
    refused(m, errno::EACCES, why)
}

fn refused(m: &Message, errno: i32, why: &str) -> Result<Option<Message>, MessageError> {
    let result = -errno;
    Ok(match m.kind {
        kind::MON_COMMAND => {
            let cmd = MMonCommand::from_message(m)?.cmd;
            let ack = MMonCommandAck {
                version: 0,
                result,
                status: why.to_owned(),
                cmd,
                output: bytes::Bytes::new(),
            };
            Some(ack.into_message(m.tid))
        }
        kind::COMMAND => {
            let reply =
                MCommandReply { result, status: why.to_owned(), output: bytes::Bytes::new() };
            Some(reply.into_message(m.tid))
        }
        kind::POOL_OP => {
            let op = MPoolOp::from_message(m)?;
            let reply = MPoolOpReply {
                version: 0,
                fsid: op.fsid,
                result: -errno::EPERM,
                epoch: 0,
                data: None,
            };
            Some(reply.into_message(m.tid))
        }
        _ => None,
    })
}

impl Mon {
    /// Says what a session, just opened, may do. Until then it may do nothing, unless the cluster
    /// has no authentication.
    pub fn set_access(&mut self, conn: ConnId, access: Access) {
        if let Some(session) = self.sessions.get_mut(&conn) {
            session.access = access;
        }
    }

    /// A user came in with its pending key, which thereby becomes its key. Asked of the leader in
    /// the user's name. It has no number: no client waits for the answer, and it is not the same
    /// request as an earlier one.
    pub fn pending_key_used(&mut self, conn: ConnId, entity: &EntityId, out: &mut Vec<MonEffect>) {
        let cmd =
            serde_json::json!({"prefix": "auth commit-pending", "entity": entity.to_string()});
        let (cmd, input) = (vec![cmd.to_string()], bytes::Bytes::new());
        let message = MMonCommand { version: 0, fsid: self.fsid, cmd, input }.into_message(0);
        self.lead(Ask { conn, message, via: None }, out);
    }

    /// Users and service keys, for the door of the monitor.
    pub fn realm(&self) -> (&Arc<AuthDb>, &Arc<ServiceKeys>) {
        (&self.state.auth, &self.state.service_keys)
    }

    /// Answers a request for tickets or service keys.
    pub(crate) fn on_auth(
        &mut self,
        conn: ConnId,
        m: &Message,
        out: &mut Vec<MonEffect>,
    ) -> Result<(), MessageError> {
        let a = MAuth::from_message(m)?;
        let Some(session) = self.sessions.get_mut(&conn) else { return Ok(()) };
        let global_id = session.peer.global_id;
        let mut answer =
            MAuthReply { protocol: a.protocol.max(1), global_id, ..MAuthReply::default() };
        if let (METHOD_CEPHX, Access::Granted { session: who, caps, .. }) =
            (a.protocol, &mut session.access)
        {
            let authority = Authority {
                db: &self.state.auth,
                keys: &self.state.service_keys,
                policy: Policy::default(),
                now: self.now,
            };
            match who.handle(&a.payload, &authority, &mut |out: &mut [u8]| (self.entropy)(out)) {
                Ok(payload) => {
                    answer.payload = payload.into();
                    // Its capabilities may have been changed meanwhile.
                    *caps = who.caps.parse().unwrap_or_default();
                }
                Err(e) => {
                    tracing::info!(entity = %who.entity, "tickets refused: {e}");
                    answer.result = -errno::EACCES;
                }
            }
        }
        // Whoever got in by other means has no tickets and needs none.
        out.push(MonEffect::Send(conn, answer.into_message(m.tid)));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
