//! An open image: what is known of it, its watch, and how it is kept up to date.
//!
//! Whatever depends on the header takes a look ([`Info`]) at its begin. A notification that the
//! header has changed makes the look *stale*, and whoever begins then reads the header anew first.
//! So a write that begins after somebody was told that his snapshot is there goes into that
//! snapshot's context. Images with the feature exclusive-lock need less: there whoever makes a
//! snapshot holds the lock, and the header is always read anew when the lock comes back
//! ([`crate::owner`]).

use crate::header::{self, Fixed, Parent, ask, feature};
use crate::io::COPYING;
use crate::layout::Layout;
use crate::notices::{self, ClientId, Notice};
use crate::object_map::ObjectMap;
use crate::presence::Presence;
use crate::rados::{News, Rados};
use bytes::Bytes;
use spirula_client::{Reply, Request};
use spirula_encoding::DecodeError;
use spirula_messages::ceph::OsdOp;
use spirula_messages::ceph::osd::flag;
use spirula_types::{ObjectLocator, PoolId, SNAP_HEAD, errno};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;
use tokio::sync::{Mutex, Notify, RwLock, Semaphore, mpsc};

/// Before something that failed is tried again.
pub(crate) const RETRY: Duration = Duration::from_secs(1);
/// Images between one and the first that it was cloned from.
const GENERATIONS: u32 = 64;

/// What an image is called: `POOL/[NAMESPACE/]IMAGE[@SNAPSHOT]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The pool.
    pub pool: String,
    /// The namespace; empty for none.
    pub namespace: String,
    /// The image.
    pub image: String,
    /// The snapshot, if one is meant.
    pub snap: Option<String>,
}

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "'{text}' is no image; write POOL/IMAGE, POOL/NAMESPACE/IMAGE or \
                    POOL/IMAGE@SNAPSHOT"
            )
        };
        let (path, snap) = match text.split_once('@') {
            Some((path, snap)) => (path, Some(snap.to_owned())),
            None => (text, None),
        };
        let parts: Vec<&str> = path.split('/').collect();
        let (pool, namespace, image) = match parts[..] {
            [pool, image] => (pool, "", image),
            [pool, namespace, image] if !namespace.is_empty() => (pool, namespace, image),
            _ => return Err(bad()),
        };
        if pool.is_empty() || image.is_empty() || snap.as_deref() == Some("") {
            return Err(bad());
        }
        Ok(Self { pool: pool.into(), namespace: namespace.into(), image: image.into(), snap })
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.pool)?;
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.image)?;
        if let Some(snap) = &self.snap {
            write!(f, "@{snap}")?;
        }
        Ok(())
    }
}

/// Why an image cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no such pool.
    #[error("{0}: there is no such pool")]
    NoPool(Spec),
    /// There is no such image.
    #[error("{0}: there is no such image")]
    NoImage(Spec),
    /// It has no such snapshot.
    #[error("{0}: the image has no such snapshot")]
    NoSnap(Spec),
    /// It is of a form that is not known here.
    #[error("{0}: cannot be used: {1}")]
    Refused(String, &'static str),
    /// The cluster refused.
    #[error("{0}: {1}: {what}", what = errno::name(-*.2))]
    Failed(String, &'static str, i32),
    /// It answered what cannot be read.
    #[error("{0}: {1}")]
    Decode(String, DecodeError),
}

impl OpenError {
    /// As −errno.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoPool(_) | Self::NoImage(_) | Self::NoSnap(_) => -errno::ENOENT,
            Self::Refused(..) => -errno::EOPNOTSUPP,
            Self::Failed(.., result) => *result,
            Self::Decode(..) => -errno::EIO,
        }
    }
}

/// What a clone has from its parent.
pub(crate) struct Backing<R: Rados> {
    spec: Parent,
    pub(crate) image: Rc<Image<R>>,
    /// Of so many bytes from the begin what has no object is the parent's.
    pub(crate) overlap: u64,
}

/// A look at the header.
pub(crate) struct Info<R: Rados> {
    pub(crate) size: u64,
    pub(crate) features: u64,
    pub(crate) flags: u64,
    pub(crate) snap_seq: u64,
    /// Newest first.
    pub(crate) snaps: Vec<u64>,
    pub(crate) parent: Option<Backing<R>>,
}

impl<R: Rados> Info<R> {
    /// Does whoever writes hold a lock?
    pub(crate) fn has(&self, feature: u64) -> bool {
        self.features & feature != 0
    }
}

/// Changes that are under way, for whoever wants them durable. Those of overlapping ranges are done
/// one after the other, in the order in which they came: how long one waits for its note in the
/// object map, or for memory, says nothing of which was wanted last. A client that repeats one over
/// another connection, and then changes the same bytes, must not see the first come last.
#[derive(Default)]
pub(crate) struct Changes {
    next: Cell<u64>,
    open: RefCell<BTreeMap<u64, Open>>,
    ended: Notify,
}

struct Open {
    /// Bytes of the image.
    range: Range<u64>,
    /// Told to those that wait for this one.
    ended: Rc<Notify>,
}

/// A change that is under way until this is dropped.
pub(crate) struct Change<'a>(&'a Changes, u64);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if let Some(open) = self.0.open.borrow_mut().remove(&self.1) {
            open.ended.notify_waiters();
        }
        self.0.ended.notify_waiters();
    }
}

impl Change<'_> {
    /// Waits for all that came before and changes some of the same bytes. Nobody has anything yet
    /// that those may wait for.
    pub(crate) async fn turn(&self) {
        loop {
            let ended = {
                let open = self.0.open.borrow();
                let Some(mine) = open.get(&self.1).map(|o| &o.range) else { return };
                let overlap = |o: &Open| o.range.start < mine.end && mine.start < o.range.end;
                // The last of them waits for many of the others.
                let last = open.range(..self.1).rev().find(|(_, o)| overlap(o));
                let Some((_, before)) = last else { return };
                before.ended.clone()
            };
            // It has not ended since: nothing else ran.
            ended.notified().await;
        }
    }
}

impl Changes {
    pub(crate) fn begin(&self, offset: u64, length: u64) -> Change<'_> {
        let number = self.next.get();
        self.next.set(number + 1);
        let open = Open { range: offset..offset.saturating_add(length), ended: Rc::default() };
        self.open.borrow_mut().insert(number, open);
        Change(self, number)
    }

    /// Waits until all that was begun before has ended.
    pub(crate) async fn settle(&self) {
        let next = self.next.get();
        loop {
            let ended = self.ended.notified();
            let mut ended = std::pin::pin!(ended);
            ended.as_mut().enable();
            if self.open.borrow().first_key_value().is_none_or(|(first, _)| *first >= next) {
                return;
            }
            ended.await;
        }
    }
}

/// An open image, or one of its snapshots.
pub struct Image<R: Rados> {
    pub(crate) rados: Rc<R>,
    /// For people.
    pub(crate) name: String,
    pub(crate) id: String,
    /// Where header and object map are; the name of the header there.
    pub(crate) meta: ObjectLocator,
    pub(crate) header: Bytes,
    /// Where its data is.
    pub(crate) data: ObjectLocator,
    pub(crate) fixed: Fixed,
    writes: bool,
    pub(crate) snap: Option<u64>,
    pub(crate) presence: Presence,
    generation: u32,
    info: RefCell<Rc<Info<R>>>,
    /// Looks that were wanted, and the newest of them that was taken: the header may have changed
    /// while they differ.
    wanted: Cell<u64>,
    known: Cell<u64>,
    reading: Mutex<()>,
    /// Shared by changes that are under way; whoever takes or gives the lock of the image has it
    /// alone.
    pub(crate) gate: RwLock<()>,
    /// The watch under whose cookie we hold the lock.
    pub(crate) owner: Cell<Option<u64>>,
    /// The watches under whose cookies the cluster may have noted our hold, also where we could not
    /// take it back.
    pub(crate) claimed: RefCell<BTreeSet<u64>>,
    /// Had by whoever takes, renames or gives the lock: each of them asks and then notes what came
    /// of it.
    pub(crate) hold: Mutex<()>,
    /// The map, while we hold the lock and the map is right.
    pub(crate) map: RefCell<Option<ObjectMap>>,
    /// Of objects that are being changed.
    pub(crate) gates: RefCell<BTreeMap<u64, Rc<RwLock<()>>>>,
    /// The cookie of our watch on the header.
    pub(crate) watch: Cell<Option<u64>>,
    /// Something was said about the lock, or our watch is another one.
    pub(crate) news: Notify,
    /// The cluster refuses us for good: somebody took the lock for abandoned.
    pub(crate) fenced: Cell<bool>,
    pub(crate) changes: Changes,
    /// KiB for what is copied up from the parent.
    pub(crate) copying: Semaphore,
}

/// What the ops of a vector put out.
///
/// # Errors
/// The vector's −errno.
pub(crate) fn outputs(reply: Reply) -> Result<Vec<Bytes>, i32> {
    if reply.result < 0 {
        return Err(reply.result);
    }
    Ok(reply.ops.into_iter().map(|o| o.op.indata).collect())
}

/// The outputs of so many ops; EIO if there are not as many.
pub(crate) fn outputs_of<const N: usize>(reply: Reply) -> Result<[Bytes; N], i32> {
    outputs(reply)?.try_into().map_err(|_| -errno::EIO)
}

fn place(pool: PoolId, namespace: &[u8]) -> ObjectLocator {
    ObjectLocator { pool, namespace: Bytes::copy_from_slice(namespace), ..ObjectLocator::default() }
}

impl<R: Rados> Image<R> {
    /// Opens an image; to write to it, too, if `writes` and it is no snapshot. It is watched until
    /// [`Image::close`].
    ///
    /// # Errors
    /// [`OpenError`].
    pub async fn open(rados: &Rc<R>, spec: &Spec, writes: bool) -> Result<Rc<Self>, OpenError> {
        let pool = rados.pool(&spec.pool).await.ok_or_else(|| OpenError::NoPool(spec.clone()))?;
        let at = place(pool, spec.namespace.as_bytes());
        let name = spec.to_string();
        let ask_id = Request::new(
            at.clone(),
            format!("rbd_id.{}", spec.image).into(),
            vec![ask::plain("get_id")],
            rados.now(),
        );
        let id = match outputs_of::<1>(rados.execute(ask_id).await) {
            Ok([id]) => header::text(&id).map_err(|e| OpenError::Decode(name.clone(), e))?,
            Err(r) if r == -errno::ENOENT => {
                let old = format!("{}.rbd", spec.image).into();
                let stat = Request::new(at, old, vec![OsdOp::stat()], rados.now());
                return Err(match rados.execute(stat).await.result {
                    0 => OpenError::Refused(
                        name,
                        "it is of format 1; convert it with 'rbd migration' or 'rbd export'",
                    ),
                    _ => OpenError::NoImage(spec.clone()),
                });
            }
            Err(r) => return Err(OpenError::Failed(name, "read its id", r)),
        };
        let image =
            Self::open_id(rados, name, at, &id, writes && spec.snap.is_none(), None, 0).await;
        let image = match (image, &spec.snap) {
            (Err(OpenError::Failed(_, _, r)), _) if r == -errno::ENOENT => {
                return Err(OpenError::NoImage(spec.clone()));
            }
            (image, None) => image?,
            (image, Some(snap)) => {
                let image = image?;
                let found = image
                    .find_snap(snap.as_bytes())
                    .await?
                    .ok_or_else(|| OpenError::NoSnap(spec.clone()))?;
                Self::open_id(
                    rados,
                    spec.to_string(),
                    image.meta.clone(),
                    &id,
                    false,
                    Some(found),
                    0,
                )
                .await?
            }
        };
        // A snapshot does not change; where it matters whether it is still there, that is asked.
        if image.snap.is_none() {
            image.begin_watch().await?;
        }
        Ok(image)
    }

    fn open_boxed<'a>(
        rados: &'a Rc<R>,
        name: String,
        meta: ObjectLocator,
        parent: &'a Parent,
        generation: u32,
    ) -> Pin<Box<dyn Future<Output = Result<Rc<Self>, OpenError>> + 'a>> {
        Box::pin(Self::open_id(
            rados,
            name,
            meta,
            &parent.image,
            false,
            Some(parent.snap),
            generation,
        ))
    }

    async fn open_id(
        rados: &Rc<R>,
        name: String,
        meta: ObjectLocator,
        id: &[u8],
        writes: bool,
        snap: Option<u64>,
        generation: u32,
    ) -> Result<Rc<Self>, OpenError> {
        let id = String::from_utf8_lossy(id).into_owned();
        let header: Bytes = format!("rbd_header.{id}").into();
        let failed = |r| OpenError::Failed(name.clone(), "read its header", r);
        let decode = |e| OpenError::Decode(name.clone(), e);
        let read = async |ops: Vec<OsdOp>| {
            rados.execute(Request::new(meta.clone(), header.clone(), ops, rados.now())).await
        };
        let ops = vec![
            ask::features(writes),
            ask::plain("get_object_prefix"),
            ask::at("get_size", SNAP_HEAD),
        ];
        let [features, prefix, size] = outputs_of(read(ops).await).map_err(failed)?;
        let (features, incompatible) = header::numbers(&features).map_err(decode)?;
        if let Some(why) = header::refused(features, incompatible, writes) {
            return Err(OpenError::Refused(name, why));
        }
        let (order, _) = header::size(&size).map_err(decode)?;
        let (mut unit, mut count, mut data_pool) = (0, 1, meta.pool);
        if features & feature::STRIPING != 0 {
            let [stripes] = outputs_of(read(vec![ask::plain("get_stripe_unit_count")]).await)
                .map_err(failed)?;
            (unit, count) = header::numbers(&stripes).map_err(decode)?;
        }
        if features & feature::DATA_POOL != 0 {
            let [pool] =
                outputs_of(read(vec![ask::plain("get_data_pool")]).await).map_err(failed)?;
            data_pool = header::number(&pool).map_err(decode)? as PoolId;
        }
        let layout = Layout::new(order, unit, count).ok_or_else(|| {
            OpenError::Refused(name.clone(), "its objects are of a size that is not known here")
        })?;
        let fixed = Fixed { layout, prefix: header::text(&prefix).map_err(decode)?, data_pool };
        let image = Rc::new(Self {
            rados: rados.clone(),
            data: place(fixed.data_pool, &meta.namespace),
            name,
            id,
            meta,
            header,
            fixed,
            writes,
            snap,
            presence: Presence::default(),
            generation,
            info: RefCell::new(Rc::new(Info {
                size: 0,
                features,
                flags: 0,
                snap_seq: 0,
                snaps: Vec::new(),
                parent: None,
            })),
            wanted: Cell::new(1),
            known: Cell::new(0),
            reading: Mutex::default(),
            gate: RwLock::default(),
            owner: Cell::new(None),
            claimed: RefCell::default(),
            hold: Mutex::default(),
            map: RefCell::new(None),
            gates: RefCell::default(),
            watch: Cell::new(None),
            news: Notify::new(),
            fenced: Cell::new(false),
            changes: Changes::default(),
            copying: Semaphore::new(COPYING >> 10),
        });
        image.look_anew().await?;
        Ok(image)
    }

    /// The number of a snapshot that a user made.
    async fn find_snap(&self, name: &[u8]) -> Result<Option<u64>, OpenError> {
        for id in self.info().snaps.clone() {
            match outputs_of::<1>(self.on_header(vec![ask::at("snapshot_get", id)], false).await) {
                Ok([answer]) => {
                    let found = header::snapshot(&answer)
                        .map_err(|e| OpenError::Decode(self.name.clone(), e))?;
                    if found.is_some_and(|n| n == name) {
                        return Ok(Some(id));
                    }
                }
                // It was removed meanwhile.
                Err(r) if r == -errno::ENOENT => {}
                Err(r) => {
                    return Err(OpenError::Failed(self.name.clone(), "read its snapshots", r));
                }
            }
        }
        Ok(None)
    }

    /// Operations on the header.
    pub(crate) async fn on_header(&self, ops: Vec<OsdOp>, writes: bool) -> Reply {
        self.on_meta(self.header.clone(), ops, writes).await
    }

    /// Operations on the header or an object map. They need next to no room.
    pub(crate) async fn on_meta(&self, oid: Bytes, ops: Vec<OsdOp>, writes: bool) -> Reply {
        let mut request = Request::new(self.meta.clone(), oid, ops, self.rados.now());
        if !writes {
            return self.seen(self.rados.execute(request).await);
        }
        request.flags = flag::WRITE;
        self.squeeze(request).await
    }

    /// Does what needs next to no room, or makes some, on a full cluster, too: a lock that nobody
    /// could give or rename there would be taken for that of a dead client, and what nobody could
    /// delete would never make room. Where the cluster refuses it even so, it waits for room like
    /// any write.
    pub(crate) async fn squeeze(&self, request: Request) -> Reply {
        let tries = Request { flags: request.flags | flag::FULL_TRY, ..request.clone() };
        let reply = self.rados.execute(tries).await;
        match reply.result {
            r if r == -errno::ENOSPC || r == -errno::EDQUOT => {
                self.seen(self.rados.execute(request).await)
            }
            _ => self.seen(reply),
        }
    }

    /// Takes note if the cluster refuses us. That there is no such pool (any more), which no OSD
    /// says, is EIO: where the pool is gone all data is, and none of it is a hole.
    pub(crate) fn seen(&self, mut reply: Reply) -> Reply {
        if reply.result == -errno::ENOENT && reply.ops.is_empty() {
            tracing::error!("{}: its pool is gone", self.name);
            reply.result = -errno::EIO;
        }
        if reply.result == -errno::ESHUTDOWN && !self.fenced.get() {
            self.fence_self();
            tracing::error!(
                "{}: the cluster refuses this client; another one has broken its lock",
                self.name
            );
        }
        reply
    }

    /// Nobody believes us any more: what we know of its objects is as it was.
    pub(crate) fn fence_self(&self) {
        self.fenced.set(true);
        self.map.take();
        self.news.notify_waiters();
    }

    /// May the header have changed?
    pub(crate) fn is_stale(&self) -> bool {
        self.known.get() != self.wanted.get()
    }

    /// The header may have changed: whoever begins from now on reads it first.
    pub(crate) fn make_stale(&self) {
        self.wanted.set(self.wanted.get() + 1);
    }

    /// What is known of it.
    pub(crate) fn info(&self) -> Rc<Info<R>> {
        self.info.borrow().clone()
    }

    /// The same, read anew if it may have changed.
    ///
    /// # Errors
    /// −errno.
    pub(crate) async fn look(&self) -> Result<Rc<Info<R>>, i32> {
        if self.is_stale() {
            self.look_anew().await.map_err(|e| {
                tracing::warn!("{e}");
                e.errno()
            })?;
        }
        Ok(self.info())
    }

    /// Reads the header, unless somebody else has just done so.
    async fn look_anew(&self) -> Result<(), OpenError> {
        let _one = self.reading.lock().await;
        // A notification that comes while it is read may be of something that was not there yet.
        // Until it is read nobody takes what is known for new.
        let wanted = self.wanted.get();
        if self.known.get() == wanted {
            return Ok(());
        }
        *self.info.borrow_mut() = Rc::new(self.read_header().await?);
        self.known.set(wanted);
        Ok(())
    }

    async fn read_header(&self) -> Result<Info<R>, OpenError> {
        let failed = |r| OpenError::Failed(self.name.clone(), "read its header", r);
        let decode = |e| OpenError::Decode(self.name.clone(), e);
        let snap = self.snap.unwrap_or(SNAP_HEAD);
        let ops = vec![
            ask::features(self.writes),
            ask::at("get_size", snap),
            ask::at("get_flags", snap),
            ask::plain("get_snapcontext"),
        ];
        let [features, size, flags, context] =
            outputs_of(self.on_header(ops, false).await).map_err(failed)?;
        let (features, incompatible) = header::numbers(&features).map_err(decode)?;
        if let Some(why) = header::refused(features, incompatible, self.writes) {
            return Err(OpenError::Refused(self.name.clone(), why));
        }
        let (snap_seq, snaps) = header::context(&context).map_err(decode)?;
        let mut parent = None;
        if features & feature::LAYERING != 0 {
            let ops = vec![ask::plain("parent_get"), ask::at("parent_overlap_get", snap)];
            let [spec, overlap] = outputs_of(self.on_header(ops, false).await).map_err(failed)?;
            let overlap = header::overlap(&overlap).map_err(decode)?.filter(|o| *o > 0);
            if let (Some(spec), Some(overlap)) = (header::parent(&spec).map_err(decode)?, overlap) {
                parent = Some(Backing { image: self.parent(&spec).await?, spec, overlap });
            }
        }
        Ok(Info {
            size: header::size(&size).map_err(decode)?.1,
            features,
            flags: header::number(&flags).map_err(decode)?,
            snap_seq,
            snaps,
            parent,
        })
    }

    /// The image that this one was cloned from; the one that is open already, if it is.
    async fn parent(&self, spec: &Parent) -> Result<Rc<Self>, OpenError> {
        if let Some(b) = self.info().parent.as_ref().filter(|b| b.spec == *spec) {
            return Ok(b.image.clone());
        }
        if self.generation >= GENERATIONS {
            return Err(OpenError::Refused(
                self.name.clone(),
                "it is a clone of a clone too many times",
            ));
        }
        let name = format!("parent {} of {}", String::from_utf8_lossy(&spec.image), self.name);
        Self::open_boxed(
            &self.rados,
            name,
            place(spec.pool, &spec.namespace),
            spec,
            self.generation + 1,
        )
        .await
    }

    /// Its size in bytes, as far as is known.
    ///
    /// # Errors
    /// −errno, if the header cannot be read.
    pub async fn size(&self) -> Result<u64, i32> {
        Ok(self.look().await?.size)
    }

    /// Bytes of an object: pieces of this size are written and given back best.
    pub fn object_size(&self) -> u64 {
        self.fixed.layout.object_size()
    }

    /// May it be written to?
    pub fn is_writable(&self) -> bool {
        self.writes
    }

    /// Is it open only because a clone of it is?
    pub(crate) fn is_parent(&self) -> bool {
        self.generation > 0
    }

    /// Who we are among its clients; without a watch nobody.
    pub(crate) fn me(&self) -> ClientId {
        ClientId { gid: self.rados.global_id(), handle: self.watch.get().unwrap_or_default() }
    }

    async fn begin_watch(self: &Rc<Self>) -> Result<(), OpenError> {
        match self.rados.watch(&self.meta, &self.header).await {
            Ok(watch) => {
                self.watch.set(Some(watch.cookie));
                self.make_stale();
                self.rados.spawn(Box::pin(self.clone().keep_watch(watch.news)));
                Ok(())
            }
            // Whoever may only read cannot watch, and sees what the image was when it was opened.
            Err(r)
                if !self.writes && [-errno::EPERM, -errno::EACCES, -errno::EROFS].contains(&r) =>
            {
                Ok(())
            }
            Err(r) => Err(OpenError::Failed(self.name.clone(), "watch it", r)),
        }
    }

    async fn keep_watch(self: Rc<Self>, mut news: mpsc::UnboundedReceiver<News>) {
        while let Some(n) = news.recv().await {
            match n {
                News::Notified { id, payload } => self.notified(id, &payload),
                News::Lost(result) => match self.watch_again(result).await {
                    Some(again) => {
                        news = again;
                        if self.owner.get().is_none() && !self.claimed.borrow().is_empty() {
                            let image = self.clone();
                            self.rados.spawn(Box::pin(async move { image.leave_old_hold().await }));
                        }
                    }
                    None => return,
                },
            }
        }
    }

    fn notified(self: &Rc<Self>, id: u64, payload: &[u8]) {
        let Some(watch) = self.watch.get() else { return };
        let notice = Notice::read(payload).unwrap_or_else(|e| {
            tracing::warn!("{}: a notification that cannot be read: {e}", self.name);
            Notice::Other
        });
        let owns = self.owner.get().is_some();
        let answer = match notice {
            Notice::HeaderUpdate => {
                self.make_stale();
                Bytes::new()
            }
            Notice::Acquired(who) | Notice::Released(who) => {
                // What we say ourselves comes back to us, and is no news.
                if who != self.me() {
                    self.news.notify_waiters();
                }
                Bytes::new()
            }
            Notice::Requested(who) if owns && who != self.me() => {
                let image = self.clone();
                self.rados.spawn(Box::pin(async move { image.give_to_others().await }));
                notices::response(0)
            }
            Notice::Work if owns => notices::not_here(),
            Notice::Quiesce => notices::response(0),
            Notice::Requested(_) | Notice::Work | Notice::Other => Bytes::new(),
        };
        self.rados.acknowledge(watch, id, &answer);
    }

    /// The watch is gone: another one, unless the image is.
    async fn watch_again(&self, result: i32) -> Option<mpsc::UnboundedReceiver<News>> {
        tracing::warn!("{}: its watch is lost ({})", self.name, errno::name(-result));
        self.watch.set(None);
        loop {
            match self.rados.watch(&self.meta, &self.header).await {
                Ok(watch) => {
                    self.watch.set(Some(watch.cookie));
                    // Notifications may have been missed.
                    self.make_stale();
                    self.rename_hold(watch.cookie).await;
                    self.news.notify_waiters();
                    return Some(watch.news);
                }
                Err(r) if r == -errno::ESHUTDOWN || r == -errno::ENOENT => {
                    self.fence_self();
                    tracing::error!(
                        "{}: it cannot be watched any more ({})",
                        self.name,
                        errno::name(-r)
                    );
                    return None;
                }
                Err(_) => self.rados.sleep(RETRY).await,
            }
        }
    }

    /// Gives the lock back, when all that is under way is done, and watches no more.
    pub async fn close(&self) {
        self.give_back(false).await;
        if let Some(watch) = self.watch.take() {
            self.rados.unwatch(watch).await;
        }
    }
}
