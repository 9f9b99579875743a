//! What a metadata server may say, and how much of it: whatever it says is in a map that everybody
//! has, or in the monitors' store.
//!
//! A beacon in another's name or with another's number is no word of this server ([`is_own`]). One
//! that says more of what its map is to hold than any server does is refused as a whole
//! ([`refusal`]); of what only people read the rest is left out ([`cut`]). With these bounds a map
//! with all servers, file systems and pools that there may be fits into one entry of the quorum's
//! log.

use crate::event::Peer;
use spirula_maps::{CompatSet, FeatureSet};
use spirula_messages::ceph::{MMdsBeacon, MdsMetric};
use spirula_types::Uuid;
use spirula_types::names::is_daemon_name;
use std::collections::{BTreeMap, BTreeSet};

/// Ranks of a file system at most.
pub(crate) const RANKS_MAX: i32 = 256;
/// Longest name of a file system, bytes.
pub(crate) const FS_NAME_MAX: usize = 256;
/// Longest name of a feature, bytes.
pub(crate) const FEATURE_MAX: usize = 128;
/// Features have numbers below this: there is a bit for each.
const FEATURES: u64 = 64;
/// Bytes of all features of a server.
const COMPAT_BYTES: usize = 4096;
/// Addresses of a server: it listens in two families and speaks two protocols.
const ADDRS_MAX: usize = 8;
/// What a server may find wrong at once, and bytes of all of it.
const METRICS_MAX: usize = 256;
const METRICS_BYTES: usize = 32 << 10;
/// Facts of a server, and bytes of all of them.
const FACTS_MAX: usize = 128;
const FACTS_BYTES: usize = 16 << 10;

/// Is this a word of that peer's about itself, in this cluster? The number of a session is one that
/// a monitor gave to its peer, and that only its ticket gives it again; a metadata server goes by
/// that number.
pub(super) fn is_own(b: &MMdsBeacon, fsid: Uuid, peer: &Peer) -> bool {
    b.fsid == fsid && b.name == peer.id && is_daemon_name(&b.name) && b.gid == peer.global_id
}

/// Why a beacon cannot be taken, if so.
pub(super) fn refusal(b: &MMdsBeacon, peer: &Peer) -> Option<String> {
    if b.compat.len() > COMPAT_BYTES {
        return Some(format!(
            "its features take {} bytes, and may take {COMPAT_BYTES}",
            b.compat.len()
        ));
    }
    if b.fs.len() > FS_NAME_MAX {
        return Some(format!(
            "the filesystem that it would join has a name of {} bytes",
            b.fs.len()
        ));
    }
    if peer.addrs.0.len() > ADDRS_MAX {
        return Some(format!("it has {} addresses, and may have {ADDRS_MAX}", peer.addrs.0.len()));
    }
    let Ok(compat) = spirula_encoding::from_slice::<CompatSet>(&b.compat) else {
        return Some("its features cannot be read".into());
    };
    let fits = |f: &FeatureSet| {
        f.names.iter().all(|(bit, name)| *bit < FEATURES && name.len() <= FEATURE_MAX)
    };
    let all = [&compat.compat, &compat.ro_compat, &compat.incompat];
    (!all.into_iter().all(fits)).then(|| {
        format!(
            "a feature's number is less than {FEATURES}, and its name has at most \
            {FEATURE_MAX} bytes"
        )
    })
}

/// Leaves out what is too much of facts and of troubles.
pub(super) fn cut(b: &mut MMdsBeacon) {
    let texts =
        |m: &BTreeMap<String, String>| m.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>();
    let mut left = METRICS_BYTES;
    b.health.metrics.truncate(METRICS_MAX);
    b.health.metrics.retain(|m: &MdsMetric| takes(&mut left, m.message.len() + texts(&m.metadata)));
    let (mut facts, mut left) = (FACTS_MAX, FACTS_BYTES);
    b.facts.retain(|k, v| facts > 0 && takes(&mut left, k.len() + v.len()) && takes(&mut facts, 1));
}

/// Takes as much, if there is as much.
fn takes(left: &mut usize, bytes: usize) -> bool {
    let fits = bytes <= *left;
    if fits {
        *left -= bytes;
    }
    fits
}

/// Can all of these be ranks?
pub(super) fn are_ranks(targets: &BTreeSet<i32>) -> bool {
    targets.iter().all(|r| (0..RANKS_MAX).contains(r))
}
