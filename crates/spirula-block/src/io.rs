//! Reading, writing and zeroing an image.
//!
//! * A change is answered when the cluster has answered for every object of it: it is durable then,
//!   so a flush has to wait for what is still under way, and for nothing else.
//! * Of a clone an object that does not exist is the parent's. A change of part of it makes it
//!   first, with what the parent has (*copy-up*). Where there are snapshots these get it, too, by
//!   an operation without a snapshot context before the change: a snapshot must not see its
//!   parent's bytes go when the image is cut from it. All that is safe to repeat and to race with
//!   others: an object that exists is not copied up again.
//! * A copy-up needs memory for a whole object, however little is changed, which nobody who counts
//!   the bytes of requests sees. All of an image together have [`COPYING`] bytes; others wait, with
//!   nothing but their change: into which pieces of the parent the object is cut, which may be
//!   many, is computed behind that.
//! * Changes of the same bytes are done in the order in which they came
//!   ([`crate::image::Changes`]). Others of one object may be under way beside each other, but for
//!   one that deletes it: it is alone, for it notes in the object map that the object is gone when
//!   it is done.

use crate::header;
use crate::image::{Image, Info, outputs, outputs_of};
use crate::join;
use crate::layout::{Extent, Layout, Run};
use crate::object_map::State;
use crate::rados::Rados;
use bytes::{Bytes, BytesMut};
use spirula_client::Request;
use spirula_messages::ceph::osd::flag;
use spirula_messages::ceph::{OsdOp, op};
use spirula_types::errno;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use tokio::sync::RwLock;

/// Largest read or write, bytes.
pub const LARGEST: u64 = 64 << 20;
/// Memory for what is copied up from the parent at a time, bytes; of one object that needs more,
/// all of it.
pub(crate) const COPYING: usize = 64 << 20;
/// Copies of an object's bytes that there may be while it is copied up: as they are read, and put
/// together.
const COPIES: u64 = 2;
/// What is noted of each piece of the image that such an object is cut into while it is copied up,
/// bytes.
const NOTED: u64 = 256;

impl<R: Rados> Image<R> {
    fn request(&self, info: &Info<R>, object: u64, ops: Vec<OsdOp>, writes: bool) -> Request {
        let mut r =
            Request::new(self.data.clone(), self.fixed.object(object), ops, self.rados.now());
        if writes {
            (r.flags, r.snap_seq, r.snaps) = (flag::WRITE, info.snap_seq, info.snaps.clone());
        } else if let Some(snap) = self.snap {
            r.snapid = snap;
        }
        r
    }

    fn check(&self, info: &Info<R>, offset: u64, length: u64) -> Result<(), i32> {
        match offset.checked_add(length) {
            Some(end) if end <= info.size => Ok(()),
            _ => Err(-errno::EINVAL),
        }
    }

    /// Reads `length` bytes, at most [`LARGEST`], from `offset` on.
    ///
    /// # Errors
    /// −errno: EINVAL beyond the image's end, ENOENT of a snapshot that has been removed.
    pub async fn read(&self, offset: u64, length: u64) -> Result<Bytes, i32> {
        if self.presence.is_gone() {
            return Err(-errno::ENOENT);
        }
        let info = self.look().await?;
        self.check(&info, offset, length)?;
        if length > LARGEST {
            return Err(-errno::EINVAL);
        }
        let data = self.read_ranges(&info, &[(offset, length)]).await?;
        // Whoever is fenced does not know any more what others have written.
        if self.fenced.get() { Err(-errno::ESHUTDOWN) } else { Ok(data) }
    }

    /// Ranges of the image (first byte, bytes), one behind the other.
    async fn read_ranges(&self, info: &Info<R>, ranges: &[(u64, u64)]) -> Result<Bytes, i32> {
        let layout = self.fixed.layout;
        // What adjoins in an object is read at once, also where it is of several ranges: so is what
        // a clone that is cut as its parent wants of that.
        let mut runs: Vec<Run> = Vec::new();
        for run in ranges.iter().flat_map(|(at, length)| layout.runs(*at, *length)) {
            match runs.last_mut() {
                Some(l) if l.object == run.object && l.offset + l.length == run.offset => {
                    l.length += run.length
                }
                _ => runs.push(run),
            }
        }
        let parts = join::all(runs.iter().map(|run| self.read_run(info, *run))).await?;
        match &parts[..] {
            // One behind the other they are in an object, too.
            [only] => Ok(only.clone()),
            _ => gathered(&layout, ranges, parts),
        }
    }

    async fn read_run(&self, info: &Info<R>, run: Run) -> Result<Bytes, i32> {
        let length = run.length as usize;
        if self.state(run.object) != Some(State::Missing) {
            let op = OsdOp::read(run.offset, run.length);
            let reply = self
                .seen(self.rados.execute(self.request(info, run.object, vec![op], false)).await);
            match outputs(reply) {
                Ok(data) => {
                    let data = data.into_iter().next().unwrap_or_default();
                    return match data.len() {
                        n if n == length => Ok(data),
                        n if n < length => Ok(padded(&data, length)),
                        _ => Err(-errno::EIO),
                    };
                }
                Err(r) if r == -errno::ENOENT => self.is_hole().await?,
                Err(r) => return Err(r),
            }
        }
        match &info.parent {
            Some(parent) => {
                let pieces = self.fixed.layout.pieces_before(
                    run.object,
                    run.offset,
                    run.length,
                    parent.overlap,
                );
                Ok(padded(&parent.image.read_parent(pieces).await?, length))
            }
            None => Ok(Bytes::from(vec![0; length])),
        }
    }

    /// Pieces of this image, for a clone of it; zeros beyond its end.
    fn read_parent(
        &self,
        pieces: Vec<Extent>,
    ) -> Pin<Box<dyn Future<Output = Result<Bytes, i32>> + '_>> {
        Box::pin(async move {
            let info = self.look().await?;
            let length: u64 = pieces.iter().map(|p| p.length).sum();
            // They are in the image's order: what is beyond its end is behind all the rest.
            let there = |p: Extent| (p.image, p.length.min(info.size.saturating_sub(p.image)));
            let ranges: Vec<_> =
                pieces.into_iter().map(there).filter(|(_, length)| *length > 0).collect();
            let data = self.read_ranges(&info, &ranges).await?;
            Ok(padded(&data, length as usize))
        })
    }

    /// Writes; done when it is durable.
    ///
    /// # Errors
    /// −errno: ENOSPC beyond the image's end, and those of a change that cannot begin: EROFS,
    /// EBUSY, ESHUTDOWN.
    pub async fn write(&self, offset: u64, data: Bytes) -> Result<(), i32> {
        let change = self.changes.begin(offset, data.len() as u64);
        change.turn().await;
        loop {
            let right = self.right().await?;
            let info = &right.info;
            self.check(info, offset, data.len() as u64).map_err(|_| -errno::ENOSPC)?;
            if data.len() as u64 > LARGEST {
                return Err(-errno::EINVAL);
            }
            let layout = self.fixed.layout;
            let work = layout.runs(offset, data.len() as u64).map(|run| {
                let op = OsdOp::write(run.offset, taken(&layout, run, offset, &data));
                self.write_object(info, run.object, op)
            });
            let result = join::each(work, |_, ()| {}).await;
            if !self.is_again(&result) {
                return result;
            }
        }
    }

    /// Makes a range zeros, and gives its space back; done when that is durable.
    ///
    /// # Errors
    /// As [`Image::write`].
    pub async fn zero(&self, offset: u64, length: u64) -> Result<(), i32> {
        let change = self.changes.begin(offset, length);
        change.turn().await;
        loop {
            let right = self.right().await?;
            let info = &right.info;
            self.check(info, offset, length).map_err(|_| -errno::ENOSPC)?;
            let runs = self.fixed.layout.runs(offset, length);
            let result = join::each(runs.map(|run| self.zero_object(info, run)), |_, ()| {}).await;
            if !self.is_again(&result) {
                return result;
            }
        }
    }

    /// A change failed: was that because the lock was lost, and not for good? Then it is done again
    /// with the lock.
    fn is_again(&self, result: &Result<(), i32>) -> bool {
        result.is_err() && !self.fenced.get() && self.kept().is_err()
    }

    /// Done when all that was begun before is durable, or has failed.
    pub async fn flush(&self) {
        self.changes.settle().await;
    }

    /// So many bytes of an object, its first ones, are its parent's while it does not exist.
    fn backed(&self, info: &Info<R>, object: u64) -> u64 {
        info.parent
            .as_ref()
            .map_or(0, |parent| self.fixed.layout.bytes_before(object, parent.overlap))
    }

    fn object_gate(&self, object: u64) -> Rc<RwLock<()>> {
        self.gates.borrow_mut().entry(object).or_default().clone()
    }

    /// The last one out closes it.
    fn leave(&self, object: u64, gate: Rc<RwLock<()>>) {
        if Rc::strong_count(&gate) == 2 {
            self.gates.borrow_mut().remove(&object);
        }
    }

    /// Changes one object, which exists afterwards.
    async fn write_object(&self, info: &Info<R>, object: u64, op: OsdOp) -> Result<(), i32> {
        let gate = self.object_gate(object);
        let shared = gate.read().await;
        let result = self.change_object(info, object, op).await;
        drop(shared);
        self.leave(object, gate);
        result
    }

    async fn change_object(&self, info: &Info<R>, object: u64, op: OsdOp) -> Result<(), i32> {
        let before = self.state(object);
        self.note(object, State::Exists, None).await?;
        if self.backed(info, object) > 0 {
            if before == Some(State::Missing) {
                return self.copy_up(info, object, op).await;
            }
            // Fails without the object.
            let ops = vec![OsdOp::stat(), op.clone()];
            return match self.change(info, object, ops).await {
                Err(r) if r == -errno::ENOENT => self.copy_up(info, object, op).await,
                other => other,
            };
        }
        self.change(info, object, vec![op]).await
    }

    async fn change(&self, info: &Info<R>, object: u64, ops: Vec<OsdOp>) -> Result<(), i32> {
        self.kept()?;
        let frees =
            ops.iter().all(|o| matches!(o.op, op::STAT | op::DELETE | op::TRUNCATE | op::ZERO));
        let request = self.request(info, object, ops, true);
        let reply = match frees {
            true => self.squeeze(request).await,
            false => self.seen(self.rados.execute(request).await),
        };
        if reply.result < 0 { Err(reply.result) } else { Ok(()) }
    }

    /// Makes an object with what the parent has, and changes it.
    async fn copy_up(&self, info: &Info<R>, object: u64, op: OsdOp) -> Result<(), i32> {
        let Some(parent) = &info.parent else { return Err(-errno::EIO) };
        let (layout, end) = (self.fixed.layout, self.backed(info, object));
        // Nobody who has a part of it waits for anything but the cluster.
        let part = part_of_copying(end, layout.piece_count(end));
        let _part = self.copying.acquire_many(part).await.map_err(|_| -errno::ESHUTDOWN)?;
        // One behind the other they are in the object, too: of an object only the end can lie
        // behind the overlap's.
        let data =
            parent.image.read_parent(layout.pieces_before(object, 0, end, parent.overlap)).await?;
        let zeros = data.iter().all(|b| *b == 0);
        if info.snaps.is_empty() || zeros {
            let data = if zeros { Bytes::new() } else { data };
            // Nothing is copied of zeros, and not every change makes an object; the map says that
            // there is one.
            return self
                .change(info, object, vec![header::copy_up(&data), OsdOp::create(false), op])
                .await;
        }
        self.note_in_snaps(info, object).await?;
        self.kept()?;
        let mut first = self.request(info, object, vec![header::copy_up(&data)], true);
        (first.snap_seq, first.snaps) = (0, Vec::new());
        let reply = self.seen(self.rados.execute(first).await);
        if reply.result < 0 {
            return Err(reply.result);
        }
        self.change(info, object, vec![op]).await
    }

    async fn zero_object(&self, info: &Info<R>, e: Run) -> Result<(), i32> {
        let layout = self.fixed.layout;
        // Where the image ends within a plain object, the object does.
        let end = match layout.is_plain() {
            true => {
                layout.object_size().min(info.size.saturating_sub(e.object * layout.object_size()))
            }
            false => layout.object_size(),
        };
        let to_end = e.offset + e.length >= end;
        let backed = self.backed(info, e.object);
        if e.offset == 0 && to_end {
            return self.remove_object(info, e.object, backed > 0).await;
        }
        let parents_here = e.offset < backed;
        let gate = self.object_gate(e.object);
        let shared = gate.read().await;
        let op = if to_end { OsdOp::truncate(e.offset) } else { OsdOp::zero(e.offset, e.length) };
        let result = self.zero_part(info, e, op, parents_here).await;
        drop(shared);
        self.leave(e.object, gate);
        result
    }

    async fn zero_part(
        &self,
        info: &Info<R>,
        e: Run,
        op: OsdOp,
        parents_here: bool,
    ) -> Result<(), i32> {
        let state = self.state(e.object);
        if state == Some(State::Missing) && !parents_here {
            return Ok(());
        }
        // A range behind the object's end is zeros already. Noting a change that is none would make
        // the map wrong: the object is what it was at the newest snapshot.
        if state == Some(State::Clean)
            && self.object_bytes(info, e.object).await?.is_some_and(|n| n <= e.offset)
        {
            return Ok(());
        }
        if parents_here {
            // What is the parent's is zeros from now on, so that the object must be.
            return self.change_object(info, e.object, op).await;
        }
        self.note(e.object, State::Exists, None).await?;
        self.zero_existing(info, e.object, op).await
    }

    /// The size of an object; `None` if it does not exist.
    async fn object_bytes(&self, info: &Info<R>, object: u64) -> Result<Option<u64>, i32> {
        let request = self.request(info, object, vec![OsdOp::stat()], false);
        match outputs_of::<1>(self.seen(self.rados.execute(request).await)) {
            Ok([answer]) => header::number(&answer).map(Some).map_err(|_| -errno::EIO),
            Err(r) if r == -errno::ENOENT => Ok(None),
            Err(r) => Err(r),
        }
    }

    /// Zeroes part of an object, if it exists.
    async fn zero_existing(&self, info: &Info<R>, object: u64, op: OsdOp) -> Result<(), i32> {
        match self.change(info, object, vec![OsdOp::stat(), op]).await {
            Err(r) if r == -errno::ENOENT => Ok(()),
            other => other,
        }
    }

    /// Deletes an object; of one that hides its parent's bytes an empty one stays.
    async fn remove_object(&self, info: &Info<R>, object: u64, hides: bool) -> Result<(), i32> {
        let gate = self.object_gate(object);
        let alone = gate.write().await;
        let result = self.remove_alone(info, object, hides).await;
        drop(alone);
        self.leave(object, gate);
        result
    }

    async fn remove_alone(&self, info: &Info<R>, object: u64, hides: bool) -> Result<(), i32> {
        if hides && !info.snaps.is_empty() {
            // Snapshots get first what is the parent's in them.
            return self.change_object(info, object, OsdOp::truncate(0)).await;
        }
        if hides {
            self.note(object, State::Exists, None).await?;
            return self.change(info, object, vec![OsdOp::create(false), OsdOp::truncate(0)]).await;
        }
        if self.state(object) == Some(State::Missing) {
            return Ok(());
        }
        self.note(object, State::Pending, None).await?;
        match self.change(info, object, vec![OsdOp::delete()]).await {
            Err(r) if r != -errno::ENOENT => return Err(r),
            _ => {}
        }
        self.note(object, State::Missing, Some(State::Pending)).await
    }
}

/// What so many bytes of an object, in so many pieces of the image, take of [`COPYING`], KiB.
fn part_of_copying(bytes: u64, pieces: u64) -> u32 {
    let all = bytes.saturating_mul(COPIES).saturating_add(pieces.saturating_mul(NOTED));
    (all >> 10).clamp(1, (COPYING >> 10) as u64) as u32
}

/// Bytes with zeros behind them.
fn padded(data: &Bytes, length: usize) -> Bytes {
    if data.len() >= length {
        return data.slice(..length);
    }
    let mut all = BytesMut::with_capacity(length);
    all.extend_from_slice(data);
    all.resize(length, 0);
    all.freeze()
}

/// Ranges of the image, one behind the other, from the runs of all of them, which may be several of
/// a part's.
fn gathered(layout: &Layout, ranges: &[(u64, u64)], parts: Vec<Bytes>) -> Result<Bytes, i32> {
    let mut all = BytesMut::zeroed(ranges.iter().map(|(_, length)| *length as usize).sum());
    let (mut parts, mut part, mut begin) = (parts.into_iter(), Bytes::new(), 0);
    for (at, length) in ranges {
        for run in layout.runs(*at, *length) {
            if part.is_empty() {
                part = parts.next().unwrap_or_default();
            }
            for p in layout.image_pieces(run.object, run.offset, run.length) {
                let (to, n) = (begin + (p.image - at) as usize, p.length as usize);
                let (Some(to), true) = (all.get_mut(to..to + n), n <= part.len()) else {
                    return Err(-errno::EIO);
                };
                to.copy_from_slice(&part.split_to(n));
            }
        }
        begin += *length as usize;
    }
    Ok(all.freeze())
}

/// What of data that begins at byte `offset` of the image goes to a run of an object.
fn taken(layout: &Layout, run: Run, offset: u64, data: &Bytes) -> Bytes {
    let pieces = layout.image_pieces(run.object, run.offset, run.length);
    let place = |p: &Extent| (p.image - offset) as usize..(p.image - offset + p.length) as usize;
    if let [only] = &pieces[..] {
        return data.slice(place(only));
    }
    let mut all = BytesMut::with_capacity(run.length as usize);
    pieces.iter().for_each(|p| all.extend_from_slice(&data[place(p)]));
    all.freeze()
}
