//! Object bytes from any `k` shards, for requests and for rebuilding.
//!
//! The primary asks the members that hold a shard in the version it knows, data shards first (then
//! it only has to put units side by side); its own shard it reads by the same way. A member that
//! cannot give its shard is replaced by another. A shard that is bad counts as missing from then
//! on.
//!
//! # Why no bytes of another version are ever used
//! What is read belongs to the one request that asked, or to the one rebuilding: it is kept with
//! the request ([`Gathered`]) and goes with it, whatever makes it go, and a read under way ends
//! with the request for which it is ([`Lead::op_gone`]). A shard is given only in the version asked
//! for, and what was put together says of which version it is; a request takes it only for an
//! object that has that version, else the object is read again. While a request waits for shards no
//! write of the object begins: it is the object's first, and none was under way.
//!
//! # Why no bytes are made up
//! A shard is as long as its object's size says ([`Shape::shard_len`]), and a holder whose shard is
//! not has a bad one, like one that fails its checksum. The primary takes only what has the length
//! that it must have; nothing is padded. All shards of an object have the same attributes; if those
//! read for a rebuild differ, most of them decide, and a scrub replaces the others.
//!
//! # What a holder says that has no such shard
//! A holder that has another version says which ([`CtlBody::PullFailed`]). If that is an older
//! version, or none, the holder lacks the newer one of the log. If it is a newer version, the
//! holder lacks nothing, and is only not asked again for this read.

use super::Shape;
use super::stripe::{Piece, Stripes, from_pieces, join};
use crate::again::{Again, Repeat};
use crate::api::{OpId, PeerMsg, PgEffect};
use crate::core::{Cx, PgCore};
use crate::exec::{
    INFO_ATTR, ObjectInfo, ObjectReader, OmapPage, OmapRange, Prefetch, ReadError, Want,
};
use crate::lead::Lead;
use crate::pg::Pg;
use crate::primary::Primary;
use crate::role::Role;
use crate::shard::undo_object;
use bytes::Bytes;
use spirula_encoding::{Encoder, from_slice};
use spirula_messages::cluster::pg::{CtlBody, PgCtl, PgTxn, TxnKind};
use spirula_types::{Dirty, EVersion, Epoch, HObject, Peer, errno};
use std::collections::{BTreeMap, BTreeSet};

/// For what shards are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// A client's request.
    Op(OpId),
    /// The object is being rebuilt.
    Rebuild,
}

/// Shards being read.
#[derive(Debug)]
pub(crate) struct Gather {
    object: HObject,
    version: EVersion,
    stripes: Stripes,
    purpose: For,
    got: BTreeMap<i8, Bytes>,
    /// The attributes of each, for a rebuild.
    attrs: BTreeMap<i8, Attrs>,
    waiting: BTreeSet<Peer>,
    failed: BTreeSet<Peer>,
    repeat: Repeat,
}

impl Gather {
    /// What a holder is asked.
    fn question(&self, seq: u64, shape: &Shape) -> CtlBody {
        CtlBody::ReadShard {
            seq,
            object: self.object.clone(),
            version: self.version,
            offset: self.stripes.0 * shape.unit,
            length: (self.stripes.1 - self.stripes.0) * shape.unit,
            attrs: self.purpose == For::Rebuild,
        }
    }
}

/// Stripes of an object that were read for a request, and of which version of it they are.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    version: EVersion,
    pieces: Vec<Piece>,
}

impl Gathered {
    /// Adds what was read of this version; what was read of another is of no more use.
    pub fn add(&mut self, version: EVersion, piece: Piece) {
        if self.version != version {
            *self = Self { version, pieces: Vec::new() };
        }
        self.pieces.push(piece);
    }

    /// What is known of an object that has this version.
    pub fn of(&self, version: EVersion) -> &[Piece] {
        if self.version == version { &self.pieces } else { &[] }
    }

    /// What was read, whatever the object's version is now: a bug to be planted.
    #[cfg(feature = "plant-bugs")]
    pub fn of_any(&self) -> &[Piece] {
        &self.pieces
    }
}

type Attrs = Vec<(Bytes, Bytes)>;

/// The attributes that most of these shards have; of as many the lowest shard's.
fn most(attrs: BTreeMap<i8, Attrs>) -> Attrs {
    let alike = |a: &Attrs| attrs.values().filter(|b| *b == a).count();
    let best = attrs
        .iter()
        .max_by_key(|(shard, a)| (alike(a), std::cmp::Reverse(**shard)))
        .map(|(_, a)| a.clone());
    best.unwrap_or_default()
}

/// What a holder has of an object.
enum Held {
    /// The version asked for: attributes as they travel, and data.
    Shard(Bytes, Bytes),
    /// Another one; zero for none.
    Other(EVersion),
}

/// The object as execution sees it: attributes of our shard, data from what was gathered.
pub(crate) struct EcReader<'a> {
    pub inner: &'a dyn ObjectReader,
    pub pieces: &'a [Piece],
}

impl ObjectReader for EcReader<'_> {
    fn attr(&self, object: &HObject, name: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.inner.attr(object, name)
    }

    fn attrs(&self, object: &HObject) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        self.inner.attrs(object)
    }

    fn read(&self, object: &HObject, offset: u64, length: u64) -> Result<Bytes, ReadError> {
        if length == 0 {
            return Ok(Bytes::new());
        }
        from_pieces(self.pieces, offset, length).ok_or_else(|| {
            ReadError::NotReady(Prefetch(vec![Want::Data {
                object: object.clone(),
                offset,
                length,
            }]))
        })
    }

    fn size(&self, object: &HObject) -> Result<u64, ReadError> {
        self.inner.size(object)
    }

    fn extents(&self, _: &HObject, offset: u64, length: u64) -> Result<Vec<(u64, u64)>, ReadError> {
        Ok(if length == 0 { Vec::new() } else { vec![(offset, length)] })
    }

    fn omap_header(&self, object: &HObject) -> Result<Bytes, ReadError> {
        self.inner.omap_header(object)
    }

    fn omap_get(&self, object: &HObject, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.inner.omap_get(object, key)
    }

    fn omap_range(&self, object: &HObject, range: OmapRange<'_>) -> Result<OmapPage, ReadError> {
        self.inner.omap_range(object, range)
    }

    fn list(&self, from: &HObject, until: &HObject, max: usize) -> Result<Vec<HObject>, ReadError> {
        self.inner.list(from, until, max)
    }

    fn has_room_for(&self, bytes: u64, pairs: u64) -> bool {
        self.inner.has_room_for(bytes, pairs)
    }

    fn takes_data(&self, bytes: u64) -> bool {
        self.inner.takes_data(bytes)
    }

    fn is_full(&self) -> bool {
        self.inner.is_full()
    }

    fn beside_data(&self, object: &HObject) -> u64 {
        self.inner.beside_data(object)
    }

    fn bad_offset(&self, object: &HObject) -> Option<u64> {
        self.inner.bad_offset(object)
    }
}

impl Primary {
    /// Who was asked for shards twice and again, and has not answered.
    pub fn silent_holders(&self, base_ms: u64) -> impl Iterator<Item = Peer> {
        self.gathers
            .values()
            .filter(move |g| g.repeat.is_late(base_ms))
            .flat_map(|g| g.waiting.iter().copied())
    }
}

impl PgCore {
    /// Reads what is asked for of the shard that is here. `undone`: we are a holder outside the
    /// members, which has not taken back what it will have to.
    fn read_shard(
        &self,
        question: &CtlBody,
        undone: bool,
        reader: &dyn ObjectReader,
    ) -> Result<Held, ReadError> {
        let none = Held::Other(EVersion::default());
        let CtlBody::ReadShard { object, version, offset, length, attrs, .. } = question else {
            return Ok(none);
        };
        let before = self.log().iter().find(|e| e.prior == *version && e.object == *object);
        let before = before.map(|e| undo_object(object, e.version)).filter(|_| undone);
        let object = before.as_ref().unwrap_or(object);
        let Some(attr) = reader.attr(object, INFO_ATTR)? else { return Ok(none) };
        let Ok(info) = from_slice::<ObjectInfo>(&attr) else { return Ok(none) };
        let Some(shape) = self.shape().filter(|_| info.version == *version) else {
            return Ok(Held::Other(info.version));
        };
        let end = shape.shard_len(info.size).min(offset + length);
        let data = match end.saturating_sub(*offset) {
            0 => Bytes::new(),
            n => reader.read(object, *offset, n)?,
        };
        let cut = (data.len() as u64) < end.saturating_sub(*offset);
        if cut && !planted!(self.cfg, ShortShardPadded) {
            return Err(ReadError::Io(errno::EIO));
        }
        let mut header = Encoder::new();
        let all = if *attrs { reader.attrs(object)? } else { Vec::new() };
        header.list(&all, |o, (k, v)| {
            o.put(k);
            o.put(v);
        });
        Ok(Held::Shard(header.into_bytes(), data))
    }

    /// The answer with what was read.
    fn shard_read(
        &self,
        to: Peer,
        epoch: Epoch,
        (seq, version): (u64, EVersion),
        (header, payload): (Bytes, Bytes),
    ) -> PgTxn {
        PgTxn {
            pg: self.id,
            ends: self.ends(to),
            epoch,
            kind: TxnKind::Shard,
            seq,
            version,
            follows: EVersion::default(),
            next: None,
            beside: Vec::new(),
            lacks: Dirty::All,
            header,
            payload,
        }
    }

    /// There is no such shard here: which version is here instead, and whether what is here is bad.
    fn shard_withheld(
        &self,
        object: &HObject,
        version: EVersion,
        why: Result<Held, ReadError>,
    ) -> (EVersion, bool) {
        let has = match &why {
            Ok(Held::Other(has)) if !self.missing().contains(object) => *has,
            _ => EVersion::default(),
        };
        match &why {
            Err(e) => tracing::error!(pg = %self.id, %object, error = %e, "read shard"),
            Ok(_) => {
                tracing::warn!(pg = %self.id, %object, %version, %has, "asked for a shard that \
                is not here")
            }
        }
        (has, why.is_err())
    }
}

impl Pg {
    /// A holder of a shard is asked for a part of it.
    pub(crate) fn on_read_shard(&mut self, from: Peer, ctl: PgCtl, cx: &mut Cx<'_>) {
        let CtlBody::ReadShard { seq, object, version, .. } = &ctl.body else { return };
        let (seq, version) = (*seq, *version);
        let undone = !matches!(self.role, Role::Replica(_));
        match self.core.read_shard(&ctl.body, undone, cx.reader) {
            Ok(Held::Shard(header, payload)) if !self.core.missing().contains(object) => {
                let t = self.core.shard_read(from, ctl.epoch, (seq, version), (header, payload));
                cx.out.push(PgEffect::Send(from, PeerMsg::Txn(t)));
            }
            Err(ReadError::NotReady(what)) => {
                self.mail.park(&mut self.core, from, PeerMsg::Ctl(Box::new(ctl)), what, cx)
            }
            other => {
                let object = object.clone();
                let (has, bad) = self.core.shard_withheld(&object, version, other);
                if bad {
                    let offset = cx.reader.bad_offset(&object);
                    self.repairs.mark_unreadable(&mut self.core, object.clone(), version, cx);
                    self.tell_rotten(from, &object, version, offset, cx);
                }
                self.core.send(from, CtlBody::PullFailed { seq, object, has }, cx);
            }
        }
    }
}

impl Lead<'_> {
    /// Members with a shard of this object in this version, one for each shard, data shards
    /// first.
    fn holders(&self, object: &HObject, version: EVersion, failed: &BTreeSet<Peer>) -> Vec<Peer> {
        let a = &*self.primary;
        let own = (!self.core.missing().contains(object)).then_some(self.core.me);
        let has = |(_, p): &(&Peer, &crate::primary::PeerState)| {
            *object <= p.last_backfill && !p.missing.contains(object)
        };
        let members = a.peers.iter().filter(has).map(|(o, _)| *o);
        let strays = a.recovery.holders(object, version);
        let mut by_shard: BTreeMap<i8, Peer> = BTreeMap::new();
        for p in own.into_iter().chain(members).chain(strays).filter(|p| !failed.contains(p)) {
            by_shard.entry(p.shard).or_insert(p);
        }
        by_shard.into_values().collect()
    }

    /// Begins to read stripes of an object; false if fewer than `k` shards can be had.
    pub(crate) fn gather(
        &mut self,
        object: &HObject,
        version: EVersion,
        stripes: Stripes,
        purpose: For,
        cx: &mut Cx<'_>,
    ) -> bool {
        let seq = self.core.seq();
        let a = &mut *self.primary;
        let g = Gather {
            object: object.clone(),
            version,
            stripes,
            purpose,
            got: BTreeMap::new(),
            attrs: BTreeMap::new(),
            waiting: BTreeSet::new(),
            failed: BTreeSet::new(),
            repeat: Repeat::default(),
        };
        a.gathers.insert(seq, g);
        self.ask_shards(seq, cx)
    }

    /// Asks for as many shards as are lacking.
    fn ask_shards(&mut self, seq: u64, cx: &mut Cx<'_>) -> bool {
        let Some(shape) = self.core.shape() else { return false };
        let a = &*self.primary;
        let Some(g) = a.gathers.get(&seq) else { return false };
        let have: BTreeSet<i8> =
            g.got.keys().copied().chain(g.waiting.iter().map(|p| p.shard)).collect();
        let (object, version) = (g.object.clone(), g.version);
        let lacking = shape.k.saturating_sub(have.len());
        let next = self
            .holders(&object, version, &g.failed)
            .into_iter()
            .filter(|p| !have.contains(&p.shard));
        let next: Vec<Peer> = next.take(lacking).collect();
        let enough = next.len() == lacking;
        let a = &mut *self.primary;
        if !enough {
            a.gathers.remove(&seq);
            return false;
        }
        let Some(g) = a.gathers.get_mut(&seq) else { return false };
        g.waiting.extend(&next);
        g.repeat = Repeat::default();
        let body = g.question(seq, &shape);
        for to in next {
            let body = body.clone();
            if to == self.core.me {
                let ctl = PgCtl {
                    pg: self.core.id,
                    ends: self.core.ends(to),
                    epoch: self.core.interval().since,
                    body,
                };
                self.read_own_shard(ctl, cx);
            } else {
                self.core.send(to, body, cx);
            }
        }
        true
    }

    /// Asks again who has not answered.
    pub(crate) fn repeat_gathers(&mut self, again: Again, cx: &mut Cx<'_>) {
        let (Some(shape), me) = (self.core.shape(), self.core.me) else { return };
        let a = &mut *self.primary;
        let mut late = Vec::new();
        for (seq, g) in &mut a.gathers {
            let open = g.waiting.iter().copied().filter(|p| *p != me);
            let to = again.whom(&mut g.repeat, *seq, open);
            if !to.is_empty() {
                late.push((to, g.question(*seq, &shape)));
            }
        }
        for (to, body) in late {
            to.into_iter().for_each(|p| self.core.send(p, body.clone(), cx));
        }
    }

    /// Reads a part of our own shard, like that of another holder.
    pub(crate) fn read_own_shard(&mut self, ctl: PgCtl, cx: &mut Cx<'_>) {
        let CtlBody::ReadShard { seq, object, version, .. } = &ctl.body else { return };
        let (seq, version, me) = (*seq, *version, self.core.me);
        match self.core.read_shard(&ctl.body, false, cx.reader) {
            Ok(Held::Shard(header, payload)) if !self.core.missing().contains(object) => {
                let t = self.core.shard_read(me, ctl.epoch, (seq, version), (header, payload));
                self.on_shard(me, t, cx);
            }
            Err(ReadError::NotReady(what)) => {
                self.mail.park(self.core, me, PeerMsg::Ctl(Box::new(ctl)), what, cx)
            }
            other => {
                let object = object.clone();
                let (has, bad) = self.core.shard_withheld(&object, version, other);
                if bad {
                    self.repairs.mark_unreadable(self.core, object.clone(), version, cx);
                    self.requests.forget_object(&object);
                    self.reopen(cx);
                    self.begin_recovery(cx);
                }
                self.on_shard_failed(me, seq, has, cx);
            }
        }
    }

    /// A shard has come.
    pub(crate) fn on_shard(&mut self, from: Peer, t: PgTxn, cx: &mut Cx<'_>) {
        let Some(shape) = self.core.shape() else { return };
        let a = &mut *self.primary;
        let Some(g) = a.gathers.get_mut(&t.seq) else { return };
        if !g.waiting.remove(&from) {
            return;
        }
        let (from_byte, to_byte) = (g.stripes.0 * shape.unit, g.stripes.1 * shape.unit);
        let mut d = spirula_encoding::Decoder::new(&t.header);
        let attrs = d.list(8, |d| Ok((d.get::<Bytes>()?, d.get::<Bytes>()?)));
        // A request reads within the object; what is rebuilt ends where the object does.
        let length = |attrs: &Attrs| {
            let info = attrs
                .iter()
                .find(|(k, _)| k == INFO_ATTR)
                .and_then(|(_, v)| from_slice::<ObjectInfo>(v).ok());
            match g.purpose {
                For::Op(_) => Some(to_byte - from_byte),
                For::Rebuild => {
                    info.map(|i| shape.shard_len(i.size).clamp(from_byte, to_byte) - from_byte)
                }
            }
        };
        let whole = |a: &Attrs| t.version == g.version && length(a) == Some(t.payload.len() as u64);
        let pads = planted!(self.core.cfg, ShortShardPadded);
        let Some(attrs) = attrs.ok().filter(|a| pads || whole(a)) else {
            tracing::error!(pg = %self.core.id, %from, object = %g.object, "bad answer to a read \
                of a shard");
            g.waiting.insert(from);
            self.on_shard_failed(from, t.seq, EVersion::default(), cx);
            return;
        };
        let mut data = t.payload;
        if pads && data.len() as u64 != to_byte - from_byte && g.purpose != For::Rebuild {
            let mut padded = data.to_vec();
            padded.resize((to_byte - from_byte) as usize, 0);
            data = padded.into();
        }
        g.got.insert(from.shard, data);
        g.attrs.insert(from.shard, attrs);
        if g.got.len() < shape.k {
            return;
        }
        let Some(g) = a.gathers.remove(&t.seq) else { return };
        let have: Vec<(usize, Bytes)> = g.got.into_iter().map(|(s, b)| (s as usize, b)).collect();
        match g.purpose {
            For::Rebuild => self.on_rebuild_read(&g.object, have, most(g.attrs), cx),
            For::Op(op) => match join(&shape, &have) {
                Ok(bytes) => {
                    let any = planted!(self.core.cfg, PiecesKept);
                    self.requests.gathered(
                        &g.object,
                        op,
                        any,
                        g.version,
                        (g.stripes.0 * shape.width(), bytes),
                    );
                    self.on_op_ready(op, None, cx);
                }
                Err(e) => {
                    tracing::error!(pg = %self.core.id, object = %g.object, error = %e, "put \
                        shards together");
                    self.op_failed(&g.object, op, cx);
                }
            },
        }
    }

    /// A request is gone: what is read for it is of use to nobody.
    pub(crate) fn op_gone(&mut self, op: OpId) {
        self.requests.unpark(op);
        if planted!(self.core.cfg, PiecesKept) {
            return;
        }
        self.primary.gathers.retain(|_, g| g.purpose != For::Op(op));
    }

    /// A copy outside the members is gone: what is read of it will not come.
    pub(crate) fn shards_lost(&mut self, from: Peer, cx: &mut Cx<'_>) {
        let a = &*self.primary;
        let waits =
            a.gathers.iter().filter(|(_, g)| g.waiting.contains(&from)).map(|(seq, _)| *seq);
        for seq in waits.collect::<Vec<u64>>() {
            self.on_shard_failed(from, seq, EVersion::default(), cx);
        }
    }

    /// A shard cannot be had: ask for another. `has` is the version that the holder has instead,
    /// zero for none. False if `seq` is no read of shards.
    pub(crate) fn on_shard_failed(
        &mut self,
        from: Peer,
        seq: u64,
        has: EVersion,
        cx: &mut Cx<'_>,
    ) -> bool {
        let a = &mut *self.primary;
        let Some(g) = a.gathers.get_mut(&seq) else { return false };
        if !g.waiting.remove(&from) {
            return true;
        }
        g.failed.insert(from);
        let (object, purpose, version) = (g.object.clone(), g.purpose, g.version);
        if has > version {
            tracing::error!(pg = %self.core.id, %from, %object, %version, %has, "a shard is newer \
                than is known here");
        } else if let Some(p) = a.peers.get_mut(&from)
            && !p.missing.contains(&object)
        {
            // It said so, or it lacks what we took it to have.
            p.missing.set(object.clone(), version, EVersion::default());
            self.reopen(cx);
            self.begin_recovery(cx);
        }
        if !self.ask_shards(seq, cx) {
            match purpose {
                For::Rebuild => self.rebuild_failed(&object, cx),
                For::Op(op) => self.op_unreadable(&object, op, cx),
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::tests::Bench;
    use crate::exec::{self, load_object};
    use spirula_messages::ceph::op;
    use spirula_types::errno;

    /// Much beside data is refused with ENOSPC where there is no room for it, whether the pool is
    /// erasure-coded or not: a store that refuses it when it is in the log makes its PG wait.
    #[test]
    fn a_request_for_more_than_there_is_room_for_is_refused_in_an_erasure_coded_pool() {
        let mut x = Bench::new();
        let (o, value) = (crate::exec::tests::object("o"), vec![7; 2 << 20]);
        x.limits.max_attrs = 8 << 20;
        let set = [crate::exec::tests::xattr_op(op::SETXATTR, b"a", &value)];
        let result = |x: &Bench| {
            let reader = EcReader { inner: &x.store, pieces: &[] };
            exec::execute(&x.context(&o), &load_object(&reader, &o).unwrap(), &reader, &set)
                .unwrap()
                .result
        };
        assert_eq!(result(&x), 0);
        x.store.room = Some(1 << 20);
        assert_eq!(result(&x), -errno::ENOSPC);
    }
}
