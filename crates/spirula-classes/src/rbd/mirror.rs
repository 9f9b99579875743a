//! Mirroring: what a pool mirrors, and with whom. All of it is in the object `rbd_mirroring`,
//! beside the two methods on a snapshot. What mirror daemons say of images:
//! [`super::mirror_status`].

use super::types::{Mirror, Namespace};
use super::{Call, snapshot};
use crate::{Stop, fail, stored};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime, to_vec};
use spirula_types::errno;
use std::collections::BTreeMap;

const UUID: &str = "mirror_uuid";
const MODE: &str = "mirror_mode";
const PEER: &str = "mirror_peer_";
pub(super) const IMAGE: &str = "image_";
pub(super) const GLOBAL: &str = "global_";
pub(super) const STATUS: &str = "status_global_";
pub(super) const REMOTE_STATUS: &str = "remote_status_global_";
const INSTANCE: &str = "instance_";
const MAP: &str = "image_map_";

/// Mode of a pool: nothing is mirrored.
const DISABLED: u32 = 0;
/// Largest mode: 1 the images that ask for it, 2 all that have a journal.
const LARGEST_MODE: u32 = 2;

/// Direction of a peer: it sends to us.
pub(super) const RX: u8 = 0;
/// Direction of a peer: we send to it.
pub(super) const TX: u8 = 1;
/// Direction of a peer: both.
pub(super) const RX_TX: u8 = 2;

/// State of an image that is mirrored no longer, once all have left it.
const DISABLING: u8 = 0;

pub(super) fn key(prefix: &str, rest: &[u8]) -> Bytes {
    [prefix.as_bytes(), rest].concat().into()
}

/// Another cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    uuid: Bytes,
    site: Bytes,
    client: Bytes,
    pub(super) direction: u8,
    pub(super) mirror: Bytes,
    seen: UTime,
}

impl Encode for Peer {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(2, 1, |o| {
            o.put(&self.uuid);
            o.put(&self.site);
            o.put(&self.client);
            o.i64(-1); // A pool once.
            o.u8(self.direction);
            o.put(&self.mirror);
            o.put(&self.seen);
        });
    }
}

impl Decode for Peer {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("peer", 2, |d, v| {
            let (uuid, site, client) = (d.get()?, d.get()?, d.get()?);
            d.i64()?;
            let (direction, mirror, seen) = if v >= 2 {
                (d.u8()?, d.get()?, d.get()?)
            } else {
                (RX_TX, Bytes::new(), UTime::ZERO)
            };
            Ok(Self { uuid, site, client, direction, mirror, seen })
        })
    }
}

impl Peer {
    fn valid(&self) -> bool {
        let user = match self.direction {
            TX => true,
            RX | RX_TX => !self.client.is_empty(),
            _ => false,
        };
        user && !self.uuid.is_empty() && !self.site.is_empty()
    }
}

/// An image that is mirrored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mirrored {
    pub(super) global: Bytes,
    pub(super) state: u8,
    mode: u8,
}

impl Encode for Mirrored {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(2, 1, |o| {
            o.put(&self.global);
            o.u8(self.state);
            o.u8(self.mode);
        });
    }
}

impl Decode for Mirrored {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("mirrored image", 2, |d, v| {
            Ok(Self { global: d.get()?, state: d.u8()?, mode: if v >= 2 { d.u8()? } else { 0 } })
        })
    }
}

pub(super) fn text(call: &Call<'_>) -> Result<Bytes, Stop> {
    call.args(|d| d.bytes())
}

pub(super) fn mirror_uuid_get(call: &mut Call<'_>) -> Result<i32, Stop> {
    let uuid = call.object.omap_get(UUID.as_bytes())?.ok_or(Stop::Errno(errno::ENOENT))?;
    call.output.put(&uuid);
    Ok(0)
}

pub(super) fn mirror_uuid_set(call: &mut Call<'_>) -> Result<i32, Stop> {
    let uuid = text(call)?;
    if uuid.is_empty() || call.key::<u32>(MODE)?.is_some_and(|m| m != DISABLED) {
        return fail(errno::EINVAL);
    }
    // Without a length before it.
    call.object.omap_set(vec![(UUID.into(), uuid)])?;
    Ok(0)
}

pub(super) fn mirror_mode_get(call: &mut Call<'_>) -> Result<i32, Stop> {
    let mode: u32 = call.need(MODE)?;
    call.output.u32(mode);
    Ok(0)
}

pub(super) fn mirror_mode_set(call: &mut Call<'_>) -> Result<i32, Stop> {
    let mode = call.args(|d| d.u32())?;
    match mode {
        DISABLED => {
            if !call.list(PEER, b"", 1)?.is_empty() {
                return fail(errno::EBUSY);
            }
            call.unset_any(MODE)?;
            call.unset_any(UUID)?;
        }
        _ if mode > LARGEST_MODE || call.object.omap_get(UUID.as_bytes())?.is_none() => {
            return fail(errno::EINVAL);
        }
        _ => call.set(MODE, &mode)?,
    }
    Ok(0)
}

fn enabled(call: &mut Call<'_>) -> Result<(), Stop> {
    match call.key::<u32>(MODE)? {
        None | Some(DISABLED) => fail(errno::EINVAL),
        Some(_) => Ok(()),
    }
}

fn peers(call: &mut Call<'_>) -> Result<Vec<Peer>, Stop> {
    call.list(PEER, b"", u64::MAX)?.iter().map(|(_, peer)| stored(peer)).collect()
}

fn store_peer(call: &mut Call<'_>, peer: &Peer) -> Result<i32, Stop> {
    call.set(key(PEER, &peer.uuid), peer)?;
    Ok(0)
}

/// A peer says that it is there. One that is not known yet is noted as one that we send to.
pub(super) fn mirror_peer_ping(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (site, mirror, direction) = call.args(|d| Ok((d.bytes()?, d.bytes()?, d.u8()?)))?;
    if direction != TX {
        return fail(errno::EINVAL);
    }
    enabled(call)?;
    if site.is_empty() || mirror.is_empty() {
        return fail(errno::EINVAL);
    }
    let all = peers(call)?;
    let by_site = all.iter().find(|p| p.site == site);
    // By its name, if that is not another cluster's now; else by what tells clusters apart.
    let other = by_site.is_none_or(|p| !p.mirror.is_empty() && p.mirror != mirror);
    let by_mirror = if other { all.iter().find(|p| p.mirror == mirror) } else { None };
    let found = match (by_site, by_mirror) {
        (Some(_), Some(p)) => Some(p.clone()),
        (None, Some(p)) => Some(Peer { site: site.clone(), ..p.clone() }),
        (Some(p), None) => Some(Peer { mirror: mirror.clone(), ..p.clone() }),
        (None, None) => None,
    };
    let mut peer = match found {
        Some(peer) => peer,
        None => {
            let uuid = call.new_uuid();
            Peer { uuid, site, client: Bytes::new(), direction: TX, mirror, seen: UTime::ZERO }
        }
    };
    if peer.direction == RX {
        peer.direction = RX_TX;
    }
    peer.seen = call.object.now();
    if !peer.valid() {
        return fail(errno::EINVAL);
    }
    store_peer(call, &peer)
}

pub(super) fn mirror_peer_list(call: &mut Call<'_>) -> Result<i32, Stop> {
    let peers = peers(call)?;
    call.output.put(&peers);
    Ok(0)
}

pub(super) fn mirror_peer_add(call: &mut Call<'_>) -> Result<i32, Stop> {
    let peer: Peer = call.args(|d| d.get())?;
    enabled(call)?;
    if !peer.valid() {
        return fail(errno::EINVAL);
    }
    let own = call.object.omap_get(UUID.as_bytes())?.ok_or(Stop::Errno(errno::ENOENT))?;
    if peer.uuid == own || peer.direction == TX {
        return fail(errno::EINVAL);
    }
    for other in peers(call)? {
        if other.uuid == peer.uuid {
            return fail(errno::ESTALE);
        }
        if other.site == peer.site || !peer.mirror.is_empty() && other.mirror == peer.mirror {
            return fail(errno::EEXIST);
        }
    }
    store_peer(call, &peer)
}

pub(super) fn mirror_peer_remove(call: &mut Call<'_>) -> Result<i32, Stop> {
    let uuid = text(call)?;
    call.unset_any(key(PEER, &uuid))?;
    Ok(0)
}

pub(super) fn mirror_peer_set_client(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (uuid, client) = call.args(|d| Ok((d.bytes()?, d.bytes()?)))?;
    let mut peer: Peer = call.need(key(PEER, &uuid))?;
    peer.client = client;
    store_peer(call, &peer)
}

pub(super) fn mirror_peer_set_cluster(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (uuid, site) = call.args(|d| Ok((d.bytes()?, d.bytes()?)))?;
    let all = peers(call)?;
    if all.iter().any(|p| p.uuid != uuid && p.site == site) {
        return fail(errno::EEXIST);
    }
    let Some(mut peer) = all.into_iter().find(|p| p.uuid == uuid) else {
        return fail(errno::ENOENT);
    };
    peer.site = site;
    store_peer(call, &peer)
}

pub(super) fn mirror_peer_set_direction(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (uuid, direction) = call.args(|d| Ok((d.bytes()?, d.u8()?)))?;
    let mut peer: Peer = call.need(key(PEER, &uuid))?;
    peer.direction = direction;
    store_peer(call, &peer)
}

pub(super) fn mirror_image_list(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (after, max) = call.args(|d| Ok((d.bytes()?, d.u64()?)))?;
    let mut images: BTreeMap<Bytes, Bytes> = BTreeMap::new();
    for (id, image) in call.list(IMAGE, &after, max)? {
        images.insert(id, stored::<Mirrored>(&image)?.global);
    }
    call.output.put(&images);
    Ok(0)
}

pub(super) fn mirror_image_get_image_id(call: &mut Call<'_>) -> Result<i32, Stop> {
    let global = text(call)?;
    let id: Bytes = call.need(key(GLOBAL, &global))?;
    call.output.put(&id);
    Ok(0)
}

pub(super) fn mirror_image_get(call: &mut Call<'_>) -> Result<i32, Stop> {
    let id = text(call)?;
    let image: Mirrored = call.need(key(IMAGE, &id))?;
    call.output.put(&image);
    Ok(0)
}

pub(super) fn mirror_image_set(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (id, image): (Bytes, Mirrored) = call.args(|d| Ok((d.bytes()?, d.get()?)))?;
    match call.key::<Mirrored>(key(IMAGE, &id))? {
        Some(old) if old.global != image.global => return fail(errno::EINVAL),
        Some(_) => {}
        None => {
            if call.key::<Bytes>(key(GLOBAL, &image.global))?.is_some() {
                return fail(errno::EEXIST);
            }
            if image.state == DISABLING {
                return fail(errno::ENOENT);
            }
        }
    }
    let pairs = vec![
        (key(GLOBAL, &image.global), to_vec(&id).into()),
        (key(IMAGE, &id), to_vec(&image).into()),
    ];
    call.object.omap_set(pairs)?;
    Ok(0)
}

pub(super) fn mirror_image_remove(call: &mut Call<'_>) -> Result<i32, Stop> {
    let id = text(call)?;
    let image: Mirrored = call.need(key(IMAGE, &id))?;
    if image.state != DISABLING {
        return fail(errno::EBUSY);
    }
    let mut gone = vec![key(IMAGE, &id), key(GLOBAL, &image.global), key(STATUS, &image.global)];
    let remote = [&image.global[..], b"_"].concat();
    let all = call.list(REMOTE_STATUS, &remote, u64::MAX)?;
    gone.extend(
        all.into_iter()
            .map(|(k, _)| k)
            .take_while(|k| k.starts_with(&remote))
            .map(|k| key(REMOTE_STATUS, &k)),
    );
    call.object.omap_remove(gone)?;
    Ok(0)
}

pub(super) fn mirror_instances_list(call: &mut Call<'_>) -> Result<i32, Stop> {
    let all = call.list(INSTANCE, b"", u64::MAX)?;
    call.output.list(all, |o, (id, _)| o.put(&id));
    Ok(0)
}

pub(super) fn mirror_instances_add(call: &mut Call<'_>) -> Result<i32, Stop> {
    let id = text(call)?;
    call.object.omap_set(vec![(key(INSTANCE, &id), Bytes::new())])?;
    Ok(0)
}

pub(super) fn mirror_instances_remove(call: &mut Call<'_>) -> Result<i32, Stop> {
    let id = text(call)?;
    call.unset(key(INSTANCE, &id))?;
    Ok(0)
}

/// Which daemon mirrors an image: its instance, since when, and what it keeps beside.
struct Mapping {
    instance: Bytes,
    since: UTime,
    data: Bytes,
}

impl Encode for Mapping {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.instance);
            o.put(&self.since);
            o.put(&self.data);
        });
    }
}

impl Decode for Mapping {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("image map", 1, |d, _| {
            Ok(Self { instance: d.get()?, since: d.get()?, data: d.get()? })
        })
    }
}

pub(super) fn mirror_image_map_list(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (after, max) = call.args(|d| Ok((d.bytes()?, d.u64()?)))?;
    let all = call.list(MAP, &after, max)?;
    let bad = |_| Stop::Errno(errno::EINVAL);
    let all: BTreeMap<Bytes, Mapping> = all
        .into_iter()
        .map(|(id, m)| Ok((id, stored(&m).map_err(bad)?)))
        .collect::<Result<_, Stop>>()?;
    call.output.put(&all);
    Ok(0)
}

pub(super) fn mirror_image_map_update(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (global, mapping): (Bytes, Mapping) = call.args(|d| Ok((d.bytes()?, d.get()?)))?;
    call.set(key(MAP, &global), &mapping)?;
    Ok(0)
}

pub(super) fn mirror_image_map_remove(call: &mut Call<'_>) -> Result<i32, Stop> {
    let global = text(call)?;
    call.unset_any(key(MAP, &global))?;
    Ok(0)
}

/// Changes the part of a mirror snapshot that is for mirroring.
fn change(
    call: &mut Call<'_>,
    id: u64,
    f: impl FnOnce(&mut Mirror) -> Result<(), Stop>,
) -> Result<i32, Stop> {
    let mut snap = snapshot::load(call, id)?;
    let Namespace::Mirror(mirror) = &mut snap.namespace else { return fail(errno::EINVAL) };
    f(mirror)?;
    snapshot::store(call, id, snap)?;
    Ok(0)
}

pub(super) fn mirror_image_snapshot_unlink_peer(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (id, peer) = call.args(|d| Ok((d.u64()?, d.bytes()?)))?;
    change(call, id, |m| if m.peers.remove(&peer) { Ok(()) } else { fail(errno::ENOENT) })
}

pub(super) fn mirror_image_snapshot_set_copy_progress(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (id, complete, last) = call.args(|d| Ok((d.u64()?, d.bool()?, d.u64()?)))?;
    change(call, id, |m| {
        m.complete = complete;
        // Copied by us: 2 a mirror, 3 one that was demoted.
        if matches!(m.state, 2 | 3) {
            m.last_copied = last;
        }
        Ok(())
    })
}
