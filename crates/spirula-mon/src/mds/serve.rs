//! Which map whoever subscribed is sent.
//!
//! A metadata server is sent the map of its file system, a standby one that names it alone, whoever
//! is in no map an empty one: from that it learns that it must start anew. A client is sent the map
//! of the file system that it named, or of the default one; one that its capabilities do not let it
//! see is for it as if it were not there. The epoch of each is that in which it changed last, so
//! that a change of one file system is no news to clients of another.

use crate::access::Access;
use crate::event::Peer;
use crate::state::State;
use spirula_maps::{FsMap, MdsInfo, MdsMap};
use spirula_types::EntityType;

/// The server at the other end of a connection, if it is in the map.
fn server_of<'a>(map: &'a FsMap, peer: &Peer) -> Option<&'a MdsInfo> {
    let own =
        |i: &&MdsInfo| i.name == peer.id && (i.gid == peer.global_id || i.addrs == peer.addrs);
    map.servers().find(own)
}

/// A map with no file system in it.
pub fn empty(map: &FsMap) -> MdsMap {
    MdsMap { epoch: map.epoch, compat: map.default_compat.clone(), ..MdsMap::default() }
}

/// The map for a subscription to `mdsmap` (`wanted` empty) or `mdsmap.N`.
pub fn map_for(state: &State, peer: &Peer, access: &Access, wanted: &str) -> MdsMap {
    let map = &state.fsmap;
    if peer.kind == EntityType::Mds {
        let Some(info) = server_of(map, peer) else { return empty(map) };
        if let Some(fs) = map.fs_of(info.gid) {
            return fs.mds_map.clone();
        }
        let epoch = map.standby_epochs.get(&info.gid).copied().unwrap_or(map.epoch);
        return MdsMap { epoch, mds_info: [(info.gid, info.clone())].into(), ..empty(map) };
    }
    let fs = match wanted {
        "" => map.by_id(map.legacy_client_fscid),
        // By id; whoever has the name may say that.
        _ => map
            .filesystems
            .iter()
            .find(|f| f.fscid.to_string() == wanted || f.mds_map.fs_name == wanted),
    };
    let fs = fs.filter(|f| access.sees_fs(&f.mds_map.fs_name));
    fs.map_or_else(|| empty(map), |f| f.mds_map.clone())
}
