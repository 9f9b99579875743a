//! What mirror daemons say of the images that they mirror: in `rbd_mirroring`, beside the images
//! themselves.
//!
//! A word counts as that of somebody who is there (`up`) while the client that said it watches the
//! object.

use super::mirror::{
    GLOBAL, IMAGE, Mirrored, Peer, REMOTE_STATUS, RX, RX_TX, STATUS, TX, key, text,
};
use super::{Call, PAGE};
use crate::{Stop, fail, stored};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime, to_vec};
use spirula_types::{EntityAddr, EntityName, errno};
use std::collections::{BTreeMap, BTreeSet};

/// State of an image that is mirrored.
const ENABLED: u8 = 1;
/// Nothing is known, or nobody is there who knows.
const UNKNOWN: u8 = 0;
/// State of a word: something went wrong.
const ERROR: u8 = 1;

/// What one site says of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Site {
    /// Which other site; empty: our own.
    mirror: Bytes,
    state: u8,
    description: Bytes,
    updated: UTime,
    up: bool,
}

impl Site {
    fn encode_body(&self, out: &mut Encoder) {
        out.u8(self.state);
        out.put(&self.description);
        out.put(&self.updated);
        out.bool(self.up);
    }
}

impl Decode for Site {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("site status", 2, |d, v| {
            let mirror = if v >= 2 { d.get()? } else { Bytes::new() };
            Ok(Self {
                mirror,
                state: d.u8()?,
                description: d.get()?,
                updated: d.get()?,
                up: d.bool()?,
            })
        })
    }
}

/// Who said it. The kind of address tells nobody apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Origin(EntityName, EntityAddr);

impl Origin {
    fn of(name: EntityName, addr: EntityAddr) -> Self {
        Self(name, EntityAddr { kind: EntityAddr::KIND_ANY, ..addr })
    }
}

impl Encode for Origin {
    fn encode(&self, out: &mut Encoder) {
        out.put(&self.0);
        out.put(&self.1);
    }
}

impl Decode for Origin {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self::of(d.get()?, d.get()?))
    }
}

/// As it is stored: which site it is of stands in the key.
struct Word {
    origin: Origin,
    site: Site,
}

impl Encode for Word {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| o.put(&self.origin));
        out.versioned(1, 1, |o| self.site.encode_body(o));
    }
}

impl Decode for Word {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let origin = d.versioned("status of an image", 1, |d, _| d.get())?;
        Ok(Self { origin, site: d.get()? })
    }
}

/// What all sites say of an image, our own first.
#[derive(Clone, Debug, Default)]
struct Status(Vec<Site>);

impl Status {
    fn local(&self) -> Option<&Site> {
        self.0.iter().find(|s| s.mirror.is_empty())
    }

    fn remote(&self) -> impl Iterator<Item = &Site> {
        self.0.iter().filter(|s| !s.mirror.is_empty())
    }
}

impl Encode for Status {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(2, 1, |o| {
            self.local().cloned().unwrap_or_default().encode_body(o);
            o.bool(self.local().is_some());
            let remote: Vec<&Site> = self.remote().collect();
            o.list(remote, |o, site| {
                o.put(&site.mirror);
                site.encode_body(o);
            });
        });
    }
}

type Watching = BTreeSet<Origin>;

/// Who watches the object, which must be there.
fn watching(call: &mut Call<'_>) -> Result<Watching, Stop> {
    Ok(call.object.watchers()?.into_iter().map(|c| Origin::of(c.name, c.addr)).collect())
}

fn local_key(global: &[u8]) -> Bytes {
    key(STATUS, global)
}

/// What keys of other sites' words of an image begin with, behind [`REMOTE_STATUS`].
fn of_others(global: &[u8]) -> Bytes {
    [global, b"_"].concat().into()
}

/// Other sites' words of an image: which site, what is stored.
fn others(call: &mut Call<'_>, global: &[u8]) -> Result<Vec<(Bytes, Bytes)>, Stop> {
    let start = of_others(global);
    let all = call.list(REMOTE_STATUS, &start, u64::MAX)?;
    let own = all.into_iter().take_while(|(k, _)| k.starts_with(&start));
    Ok(own.map(|(k, v)| (k.slice(start.len().min(k.len())..), v)).collect())
}

fn status_of(call: &mut Call<'_>, global: &[u8], watching: &Watching) -> Result<Status, Stop> {
    let mut sites = Vec::new();
    let mut take = |mirror: Bytes, value: &[u8]| -> Result<(), Stop> {
        let Word { origin, site } = stored(value)?;
        sites.push(Site { mirror, up: watching.contains(&origin), ..site });
        Ok(())
    };
    if let Some(own) = call.object.omap_get(&local_key(global))? {
        take(Bytes::new(), &own)?;
    }
    for (mirror, value) in others(call, global)? {
        take(mirror, &value)?;
    }
    if sites.is_empty() { fail(errno::ENOENT) } else { Ok(Status(sites)) }
}

/// Notes what a daemon says of an image that is mirrored; of any other it is forgotten.
pub(super) fn mirror_image_status_set(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (global, said): (Bytes, Site) = call.args(|d| Ok((d.bytes()?, d.get()?)))?;
    let known = |r: Result<Option<Bytes>, Stop>| match r {
        Err(Stop::Errno(_)) => Ok(None),
        other => other,
    };
    let Some(id) = known(call.key::<Bytes>(key(GLOBAL, &global)))? else { return Ok(0) };
    let image = match call.key::<Mirrored>(key(IMAGE, &id)) {
        Ok(image) => image,
        Err(Stop::Errno(_)) => None,
        Err(later) => return Err(later),
    };
    if image.is_none_or(|i| i.state != ENABLED) {
        return Ok(0);
    }
    let caller = call.object.caller();
    let at = match &said.mirror[..] {
        [] => local_key(&global),
        mirror => key(REMOTE_STATUS, &[&of_others(&global)[..], mirror].concat()),
    };
    let site = Site { mirror: Bytes::new(), up: false, updated: call.object.now(), ..said };
    let word = Word { origin: Origin::of(caller.name, caller.addr), site };
    call.object.omap_set(vec![(at, to_vec(&word).into())])?;
    Ok(0)
}

pub(super) fn mirror_image_status_remove(call: &mut Call<'_>) -> Result<i32, Stop> {
    let global = text(call)?;
    let start = of_others(&global);
    let mut gone = vec![local_key(&global)];
    gone.extend(
        others(call, &global)?
            .into_iter()
            .map(|(m, _)| key(REMOTE_STATUS, &[&start[..], &m[..]].concat())),
    );
    match call.object.omap_remove(gone) {
        Err(Stop::Errno(errno::ENOENT)) => {}
        other => other?,
    }
    Ok(0)
}

pub(super) fn mirror_image_status_get(call: &mut Call<'_>) -> Result<i32, Stop> {
    let global = text(call)?;
    let watching = watching(call)?;
    let status = status_of(call, &global, &watching)?;
    call.output.put(&status);
    Ok(0)
}

/// Images after an id, at most so many, each with what it is mirrored as.
fn images(call: &mut Call<'_>, after: &[u8], max: u64) -> Result<BTreeMap<Bytes, Mirrored>, Stop> {
    call.list(IMAGE, after, max)?.into_iter().map(|(id, image)| Ok((id, stored(&image)?))).collect()
}

pub(super) fn mirror_image_status_list(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (after, max) = call.args(|d| Ok((d.bytes()?, d.u64()?)))?;
    let watching = watching(call)?;
    let images = images(call, &after, max)?;
    let mut said: BTreeMap<Bytes, Status> = BTreeMap::new();
    for (id, image) in &images {
        match status_of(call, &image.global, &watching) {
            Ok(status) => {
                said.insert(id.clone(), status);
            }
            // As with Ceph: an image whose words cannot be read has none.
            Err(Stop::Errno(_)) => {}
            Err(later) => return Err(later),
        }
    }
    call.output.put(&images);
    call.output.put(&said);
    Ok(0)
}

/// In one word: our own site's of what we get, the others' of what they get from us, the worst of
/// all of what goes both ways. An image of which a site that should get it says nothing is not
/// known.
fn summary(direction: u8, receivers: &BTreeSet<Bytes>, status: &Status) -> u8 {
    let mut state = match direction {
        RX | RX_TX => status.local().filter(|s| s.up).map(|s| s.state),
        _ => None,
    };
    let mut silent = 0;
    if matches!(direction, TX | RX_TX) {
        silent = receivers.len();
        for site in status.remote() {
            silent = silent.saturating_sub(usize::from(receivers.contains(&site.mirror)));
            let now = if site.up { site.state } else { UNKNOWN };
            state = match state {
                _ if site.state == ERROR => Some(ERROR),
                None => Some(now),
                Some(ERROR) => Some(ERROR),
                Some(before) => Some(before.min(now)),
            };
        }
    }
    state.filter(|_| silent == 0).unwrap_or(UNKNOWN)
}

pub(super) fn mirror_image_status_get_summary(call: &mut Call<'_>) -> Result<i32, Stop> {
    let peers: Vec<Peer> =
        if call.input.is_empty() { Vec::new() } else { call.few_args(|d| d.get())? };
    let mut directions = peers.iter().map(|p| p.direction);
    let direction = match directions.next() {
        None => RX,
        Some(first) if directions.all(|d| d == first) => first,
        Some(_) => RX_TX,
    };
    let receivers = peers.into_iter().filter(|p| p.direction != RX).map(|p| p.mirror).collect();
    let watching = watching(call)?;
    let mut counts: BTreeMap<u8, i32> = BTreeMap::new();
    let mut after = Bytes::new();
    loop {
        let some = images(call, &after, PAGE)?;
        let Some((last, _)) = some.last_key_value() else { break };
        after = last.clone();
        for image in some.values() {
            let status = match status_of(call, &image.global, &watching) {
                Err(Stop::Errno(errno::ENOENT)) => Status::default(),
                other => other?,
            };
            *counts.entry(summary(direction, &receivers, &status)).or_default() += 1;
        }
    }
    call.output.list(counts, |o, (state, n)| {
        o.u8(state);
        o.i32(n);
    });
    Ok(0)
}

/// Forgets what those said who are there no more.
pub(super) fn mirror_image_status_remove_down(call: &mut Call<'_>) -> Result<i32, Stop> {
    let watching = watching(call)?;
    let mut gone = Vec::new();
    for prefix in [STATUS, REMOTE_STATUS] {
        for (rest, value) in call.list(prefix, b"", u64::MAX)? {
            let origin =
                Decoder::new(&value).versioned("status of an image", 1, |d, _| d.get::<Origin>());
            if !watching.contains(&origin.map_err(|_| Stop::Errno(errno::EIO))?) {
                gone.push(key(prefix, &rest));
            }
        }
    }
    if !gone.is_empty() {
        call.object.omap_remove(gone)?;
    }
    Ok(0)
}

/// Who mirrors an image here. ESTALE if he is there no more.
fn instance(call: &mut Call<'_>, global: &[u8], watching: &Watching) -> Result<Origin, Stop> {
    let Word { origin, .. } = call.need(local_key(global))?;
    if watching.contains(&origin) { Ok(origin) } else { fail(errno::ESTALE) }
}

pub(super) fn mirror_image_instance_get(call: &mut Call<'_>) -> Result<i32, Stop> {
    let global = text(call)?;
    let watching = watching(call)?;
    let origin = instance(call, &global, &watching)?;
    call.output.put(&origin);
    Ok(0)
}

pub(super) fn mirror_image_instance_list(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (after, max) = call.args(|d| Ok((d.bytes()?, d.u64()?)))?;
    let watching = watching(call)?;
    let (mut found, mut after) = (BTreeMap::new(), after);
    while (found.len() as u64) < max {
        let some = images(call, &after, PAGE)?;
        let Some((last, _)) = some.last_key_value() else { break };
        after = last.clone();
        for (id, image) in some {
            match instance(call, &image.global, &watching) {
                _ if found.len() as u64 >= max => break,
                Ok(origin) => {
                    found.insert(id, origin);
                }
                Err(Stop::Errno(_)) => {}
                Err(later) => return Err(later),
            }
        }
    }
    call.output.put(&found);
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(mirror: &'static str, state: u8, up: bool) -> Site {
        Site { mirror: mirror.into(), state, up, ..Site::default() }
    }

    /// As a 16.2.15 sums up the same words (it was asked with a watch on the object, which the
    /// recordings lack).
    #[test]
    fn words_are_summed_up_by_who_gets_what() {
        let of =
            |peers: &[&'static str]| peers.iter().map(|p| Bytes::from(*p)).collect::<BTreeSet<_>>();
        let own = Status(vec![site("", 4, true), site("m1", 3, true), site("m9", 6, true)]);
        assert_eq!(summary(RX, &of(&[]), &own), 4);
        assert_eq!(summary(TX, &of(&["m1"]), &own), 3);
        assert_eq!(summary(TX, &of(&["m7"]), &own), UNKNOWN);
        assert_eq!(summary(RX_TX, &of(&["m1"]), &own), 3);
        assert_eq!(summary(RX_TX, &of(&["m2"]), &own), UNKNOWN);
        assert_eq!(summary(TX, &of(&[""]), &own), UNKNOWN, "a peer that never came says nothing");
        let gone = Status(vec![site("", 4, false), site("m1", 3, false)]);
        assert_eq!(
            (summary(RX, &of(&[]), &gone), summary(TX, &of(&["m1"]), &gone)),
            (UNKNOWN, UNKNOWN)
        );
        let failed = Status(vec![site("", 4, true), site("m1", ERROR, false), site("m2", 5, true)]);
        assert_eq!(
            summary(RX_TX, &of(&["m1"]), &failed),
            ERROR,
            "an error counts, whoever is there"
        );
    }
}
