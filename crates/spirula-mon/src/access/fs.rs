//! Capabilities that name file systems: `allow rw fsname=a`.
//!
//! Whoever has only such sees no other file system: not in maps ([`crate::session`]), nor in what
//! commands answer, since a command that only reads works on a map without the others
//! ([`Mon::hide_from`]). What a command is to change is looked at before it goes to the leader
//! ([`refusal`]). As with Ceph, `fs new` makes whatever it is told to. `fs volume rm` is looked at,
//! though Ceph's manager serves it: it takes a file system away as `fs rm` does, and its pools.
//!
//! The manager is told with each command that a monitor passes on which file systems its asker may
//! know of ([`Mon::only_fs`]), and knows of no others for it. Ceph's manager tells of all (`fs
//! status`): who may not see a name in `fs ls` must not read it there.

use super::{Access, Asker};
use crate::commands::{Command, args::Args, fs, mds};
use crate::event::ConnId;
use crate::mon::Mon;
use crate::state::State;
use crate::work::Work;
use spirula_auth::caps::MonCaps;
use spirula_maps::FsMap;
use spirula_types::EntityType;
use spirula_types::errno::{EINVAL, ENOENT, EPERM};
use std::sync::Arc;

/// Whether the asker may not change the file system that a command is about: errno and sentence.
pub(super) fn refusal(
    asker: &Asker<'_>,
    state: &State,
    command: &Command,
) -> Option<(i32, String)> {
    let (module, perm) = command.needs()?;
    let (prefix, args) = (command.prefix.as_str(), command.args());
    if !perm.contains('w') || !(matches!(module, "fs" | "mds") || prefix.starts_with("fs volume "))
    {
        return None;
    }
    let name = target(&state.fsmap, prefix, &args)?;
    // A volume's commands need the manager's part, whose module does what it does with rights of
    // its own: for them that counts alone which file systems are theirs whose grants name some.
    let volume = prefix.starts_with("fs volume ") && asker.caps.allows_fs(&name);
    if volume || asker.caps.changes_fs(&asker.entity, &name) {
        return None;
    }
    tracing::debug!(peer = asker.entity, fs = name, "refused: its capabilities do not allow it");
    Some(match prefix {
        "mds fail" => {
            let who = args.str("role_or_gid");
            (
                EINVAL,
                format!(
                    "MDS named '{who}' does not exist, is not up or you lack the permission to see."
                ),
            )
        }
        // That it is there is not for who may not see it.
        _ if args.has("fs_name") && !asker.caps.allows_fs(&name) => {
            (ENOENT, format!("Filesystem not found: '{name}'"))
        }
        _ if args.has("fs_name") => (EPERM, format!("Permission denied: '{name}'")),
        _ => (EPERM, "Permission denied.".to_owned()),
    })
}

/// The file system that a command would change; the empty name for what belongs to none, as a
/// standby does.
fn target(map: &FsMap, prefix: &str, args: &Args) -> Option<String> {
    if prefix == "fs new" {
        return None;
    }
    let name = |fscid: i32| map.by_id(fscid).map(|f| f.mds_map.fs_name.clone()).unwrap_or_default();
    if args.has("fs_name") {
        // What is not there is said to be so.
        return map.by_name(&args.str("fs_name")).map(|f| f.mds_map.fs_name.clone());
    }
    if args.has("vol_name") {
        return map.by_name(&args.str("vol_name")).map(|f| f.mds_map.fs_name.clone());
    }
    let of_server = |gid: u64| map.mds_roles.get(&gid).map(|fscid| name(*fscid));
    if args.has("role") {
        return fs::role_in(map, &args.str("role")).ok().map(|(fscid, _)| name(fscid));
    }
    if args.has("role_or_gid") {
        return mds::find_in(map, &args.str("role_or_gid")).and_then(|i| of_server(i.gid));
    }
    of_server(args.int("gid").and_then(|g| u64::try_from(g).ok())?)
}

/// What is seen where these capabilities are limited to some file systems; `None` for all.
fn part_of(map: &FsMap, caps: &MonCaps) -> Option<FsMap> {
    map.seen_by(|name| caps.allows_fs(name))
}

impl Mon {
    /// The part of the file-system map that who asks over a connection may see; `None` for all of
    /// it.
    fn fsmap_seen(&self, conn: ConnId, state: &State) -> Option<FsMap> {
        // Nobody's, who has left meanwhile: he sees none.
        let Some(session) = self.sessions.get(&conn) else { return state.fsmap.seen_by(|_| false) };
        match &session.access {
            Access::Everything => None,
            Access::Granted { caps, .. } => part_of(&state.fsmap, caps),
            // The session of another monitor, which let it in and asks for it. Daemons see
            // everything.
            Access::Nothing if session.peer.kind != EntityType::Client => None,
            Access::Nothing => part_of(&state.fsmap, &super::caps_of(state, &session.peer)),
        }
    }

    /// Whether who asks over a connection may not know of every file system, and then those that he
    /// may know of.
    pub(crate) fn only_fs(&self, conn: ConnId) -> (bool, Vec<String>) {
        match self.fsmap_seen(conn, &self.state) {
            None if !self.sessions.contains_key(&conn) => (true, Vec::new()),
            None => (false, Vec::new()),
            Some(seen) => (true, seen.filesystems.into_iter().map(|f| f.mds_map.fs_name).collect()),
        }
    }

    /// Takes file systems out of a copy of the state that the asker may not see. Only for commands
    /// that change nothing.
    pub(crate) fn hide_from(&self, conn: ConnId, work: &mut Work) {
        if let Some(seen) = self.fsmap_seen(conn, &work.state) {
            work.state.fsmap = Arc::new(seen);
        }
    }
}
