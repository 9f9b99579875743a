//! Who may write: the exclusive lock of an image, taken when it is needed and given to whoever asks
//! for it.
//!
//! Safety: changes are begun only by whoever holds the lock, and hold [`Image::gate`] shared until
//! they have ended. The lock is given away with the gate held alone: nothing is under way then. A
//! holder that died is fenced before its lock is broken: the cluster refuses whatever it sent and
//! is still on its way. The same happens to us if we seem dead, so a lock that was lost without our
//! knowing does no harm: the cluster refuses our changes.
//!
//! The monitors may give us another number while we hold the lock: under it we seem to be somebody
//! else to whoever keeps locks. The nonce of our address stays, and nobody else has the cookie: a
//! hold with both is ours ([`Image::is_ours`]), and is taken over, not fenced.
//!
//! With the lock comes the object map, under a lock of its own, which is broken without more ado:
//! only who holds the header's lock may have it.

use crate::header::{self, feature, image_flag};
use crate::image::{Image, Info, RETRY, outputs_of};
use crate::lock::{self, Claim, Held, Holder, Watcher};
use crate::notices::{Notice, owner_says};
use crate::object_map::{ObjectMap, State};
use crate::rados::Rados;
use spirula_messages::ceph::OsdOp;
use spirula_messages::ceph::op;
use spirula_types::{EntityName, SNAP_HEAD, errno};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::RwLockReadGuard;

/// How long others may take to answer a notification, seconds.
const ANSWER: u32 = 5;
/// How long whoever asked for the lock has to take it before we want it again.
const TURN: Duration = Duration::from_secs(1);
/// How long a holder that said it would give the lock away may take for that.
const GIVING: Duration = Duration::from_secs(5);

/// A change that has begun: while this is there the lock stays ours.
pub(crate) struct Right<'a, R: Rados> {
    _gate: RwLockReadGuard<'a, ()>,
    /// The header as it is.
    pub(crate) info: Rc<Info<R>>,
}

impl<R: Rados> Image<R> {
    /// Begins a change: with the header as it is, and with the lock if the image has one.
    ///
    /// # Errors
    /// −errno: EROFS if it is not writable or the holder keeps the lock, EBUSY if it is locked by
    /// hand, ESHUTDOWN if we are fenced.
    pub(crate) async fn right(&self) -> Result<Right<'_, R>, i32> {
        if !self.is_writable() {
            return Err(-errno::EROFS);
        }
        let mut gate = self.gate.read().await;
        loop {
            if self.fenced.get() {
                return Err(-errno::ESHUTDOWN);
            }
            if !self.is_stale() {
                let info = self.info();
                if !info.has(feature::EXCLUSIVE_LOCK) || self.owner.get().is_some() {
                    return Ok(Right { _gate: gate, info });
                }
            }
            drop(gate);
            let alone = self.gate.write().await;
            let info = self.look().await?;
            if info.has(feature::EXCLUSIVE_LOCK) && self.owner.get().is_none() {
                self.take_lock().await?;
            }
            // Somebody may have asked for the lock already, and waits for the gate. What it was
            // taken for comes first: two clients would pass it to and fro for ever otherwise, and
            // neither would do anything.
            gate = alone.downgrade();
        }
    }

    /// Is what a change began with still so? Whoever loses the lock, or is fenced, loses the object
    /// map with it while changes are under way: that there is no map any more does not mean that
    /// nothing need be noted there. Nobody takes the lock anew before they have ended.
    ///
    /// # Errors
    /// ESHUTDOWN if it is not.
    pub(crate) fn kept(&self) -> Result<(), i32> {
        let lost = self.info().has(feature::EXCLUSIVE_LOCK) && self.owner.get().is_none();
        if lost || self.fenced.get() { Err(-errno::ESHUTDOWN) } else { Ok(()) }
    }

    /// Takes the lock, however long its holder keeps it.
    async fn take_lock(&self) -> Result<(), i32> {
        loop {
            if self.fenced.get() {
                return Err(-errno::ESHUTDOWN);
            }
            let heard = self.news.notified();
            let mut heard = std::pin::pin!(heard);
            heard.as_mut().enable();
            let Some(watch) = self.watch.get() else {
                tokio::select! { () = heard => {} () = self.rados.sleep(RETRY) => {} }
                continue;
            };
            let claim = Claim::header(watch);
            let one = self.hold.lock().await;
            self.claimed.borrow_mut().insert(watch);
            match self.on_header(vec![claim.take()], true).await.result {
                0 => {}
                r if r == -errno::EEXIST => {}
                r if r == -errno::EBUSY => {
                    drop(one);
                    self.meet_holder(&mut heard).await?;
                    continue;
                }
                r => return Err(r),
            }
            if self.watch.get() != Some(watch) {
                // Under the cookie of a watch that is gone it would seem abandoned.
                self.on_header(vec![claim.give()], true).await;
                continue;
            }
            self.owner.set(Some(watch));
            self.claimed.borrow_mut().retain(|w| *w == watch);
            drop(one);
            // Whoever had it may have changed the header.
            self.make_stale();
            if let Err(r) = self.take_map().await {
                self.give_up_lock().await;
                return Err(r);
            }
            // Nobody need hear it.
            self.tell(Notice::Acquired(self.me())).await;
            return Ok(());
        }
    }

    async fn take_map(&self) -> Result<(), i32> {
        let info = self.look().await?;
        if !info.has(feature::EXCLUSIVE_LOCK) {
            return Ok(());
        }
        self.load_map(&info).await
    }

    /// Tells all clients of the image; those who do not listen are left out.
    async fn tell(&self, notice: Notice) {
        if let Err(r) = self.rados.notify(&self.meta, &self.header, notice.encode(), ANSWER).await {
            tracing::debug!("{}: {notice:?} was not heard: {}", self.name, errno::name(-r));
        }
    }

    async fn held(&self) -> Result<Held, i32> {
        let [answer] = outputs_of(self.on_header(vec![lock::ask()], false).await)?;
        Held::read(&answer).map_err(|_| -errno::EIO)
    }

    /// Somebody has the lock: asks for it, or takes it from the dead.
    async fn meet_holder(
        &self,
        heard: &mut std::pin::Pin<&mut tokio::sync::futures::Notified<'_>>,
    ) -> Result<(), i32> {
        let held = self.held().await?;
        if held.holders.is_empty() {
            return Ok(());
        }
        let Some((holder, watch)) = held.owner() else {
            tracing::warn!(
                "{}: it is locked by hand ('rbd lock ls'), so nobody can write to it",
                self.name
            );
            return Err(-errno::EBUSY);
        };
        if holder.name == EntityName::client(self.rados.global_id()) || self.is_ours(holder, watch)
        {
            // We have it under the cookie of a watch that is gone, or under a number that we had.
            return match self.on_header(vec![lock::break_hold(holder)], true).await.result {
                r if r < 0 && r != -errno::ENOENT => Err(r),
                _ => Ok(()),
            };
        }
        let [watchers] =
            outputs_of(self.on_header(vec![OsdOp::new(op::LIST_WATCHERS)], false).await)?;
        let watchers = Watcher::read(&watchers).map_err(|_| -errno::EIO)?;
        if !watchers.iter().any(|w| w.is(holder, watch)) {
            return self.bury(holder).await;
        }
        let payload = Notice::Requested(self.me()).encode();
        let says = match self.rados.notify(&self.meta, &self.header, payload, ANSWER).await {
            Ok(replies) => owner_says(replies.iter().map(|r| &r.reply)),
            Err(_) => None,
        };
        let patience = match says {
            Some(r) if r == -errno::EROFS => {
                tracing::warn!("{}: the client that holds its lock keeps it", self.name);
                return Err(r);
            }
            Some(0) => GIVING,
            // It does not answer, or could not.
            _ => RETRY,
        };
        tokio::select! { () = heard.as_mut() => {} () = self.rados.sleep(patience) => {} }
        Ok(())
    }

    /// Is it our own hold of the image's lock, under whatever number?
    fn is_ours(&self, holder: &Holder, watch: u64) -> bool {
        holder.addr.nonce == self.rados.nonce() && self.claimed.borrow().contains(&watch)
    }

    /// Our own hold of the image's lock, as the cluster has it.
    async fn old_hold(&self) -> Option<Holder> {
        let held = self.held().await.ok()?;
        held.owner()
            .filter(|(holder, watch)| self.is_ours(holder, *watch))
            .map(|(holder, _)| holder.clone())
    }

    /// The holder of the lock does not watch the image any more: the cluster is to refuse what it
    /// may have sent, and the lock is free.
    async fn bury(&self, holder: &Holder) -> Result<(), i32> {
        if !self.held().await?.holders.contains(holder) {
            return Ok(());
        }
        tracing::warn!(
            "{}: its lock is held by {} at {}, which is gone; it is fenced",
            self.name,
            holder.name,
            holder.addr
        );
        self.rados.fence(holder.addr).await.map_err(|e| {
            tracing::error!("{}: {} cannot be fenced: {e}", self.name, holder.name);
            -errno::EACCES
        })?;
        match self.on_header(vec![lock::break_hold(holder)], true).await.result {
            r if r < 0 && r != -errno::ENOENT => Err(r),
            _ => Ok(()),
        }
    }

    /// Our watch has another cookie: so has the lock, if we hold it.
    pub(crate) async fn rename_hold(&self, watch: u64) {
        let _one = self.hold.lock().await;
        let Some(old) = self.owner.get() else { return };
        self.claimed.borrow_mut().insert(watch);
        let rename = Claim::header(old).rename(&lock::cookie(watch));
        let mut result = self.on_header(vec![rename], true).await.result;
        if result < 0
            && let Some(old) = self.old_hold().await
        {
            // It is under a number that we had. At no moment is the lock free: changes are under
            // way. A Ceph's classes do not see what earlier ones of the same request changed, so
            // that it refuses this ([`Image::leave_old_hold`]).
            let again = vec![lock::break_hold(&old), Claim::header(watch).take()];
            result = self.on_header(again, true).await.result;
        }
        match result {
            0 => {
                self.owner.set(Some(watch));
                self.claimed.borrow_mut().retain(|w| *w == watch);
            }
            r => {
                tracing::warn!("{}: its lock is lost ({})", self.name, errno::name(-r));
                self.owner.set(None);
                self.map.take();
            }
        }
    }

    /// Gives back a hold that could not be renamed, when nothing is under way: others would take it
    /// for that of a dead client, and fence us.
    pub(crate) async fn leave_old_hold(&self) {
        let _alone = self.gate.write().await;
        let _one = self.hold.lock().await;
        if self.owner.get().is_none()
            && let Some(old) = self.old_hold().await
        {
            self.on_header(vec![lock::break_hold(&old)], true).await;
        }
    }

    /// Somebody asked for the lock.
    pub(crate) async fn give_to_others(&self) {
        self.give_back(true).await;
    }

    /// Gives the lock back when all that is under way is done. `asked`: somebody waits for it, and
    /// gets a chance to take it.
    pub(crate) async fn give_back(&self, asked: bool) {
        let _alone = self.gate.write().await;
        if self.owner.get().is_none() {
            return;
        }
        self.give_up_lock().await;
        // What is said about the lock from here on is said by others: our own words we do not hear
        // ([`Image::notified`]).
        let heard = self.news.notified();
        let mut heard = std::pin::pin!(heard);
        heard.as_mut().enable();
        self.tell(Notice::Released(self.me())).await;
        if asked {
            tokio::select! { () = heard => {} () = self.rados.sleep(TURN) => {} }
        }
    }

    /// The gate is held alone.
    async fn give_up_lock(&self) {
        if self.map.take().is_some() {
            self.on_meta(ObjectMap::name(&self.id, None), vec![Claim::map().give()], true).await;
        }
        let _one = self.hold.lock().await;
        if let Some(watch) = self.owner.take() {
            let mut r = self.on_header(vec![Claim::header(watch).give()], true).await.result;
            if r < 0
                && let Some(old) = self.old_hold().await
            {
                r = self.on_header(vec![lock::break_hold(&old)], true).await.result;
            }
            if r < 0 {
                tracing::warn!(
                    "{}: its lock could not be given back ({})",
                    self.name,
                    errno::name(-r)
                );
            }
        }
    }

    // ---- the object map ----

    async fn load_map(&self, info: &Info<R>) -> Result<(), i32> {
        self.map.take();
        if !info.has(feature::OBJECT_MAP) || info.flags & image_flag::MAP_INVALID != 0 {
            return Ok(());
        }
        let oid = ObjectMap::name(&self.id, None);
        loop {
            match self.on_meta(oid.clone(), vec![Claim::map().take()], true).await.result {
                0 => break,
                r if r == -errno::EEXIST => break,
                r if r == -errno::EBUSY => {
                    let [answer] =
                        outputs_of(self.on_meta(oid.clone(), vec![lock::ask()], false).await)?;
                    for holder in Held::read(&answer).map_err(|_| -errno::EIO)?.holders {
                        self.on_meta(oid.clone(), vec![lock::break_hold(&holder)], true).await;
                    }
                }
                r => return Err(r),
            }
        }
        let objects = self.fixed.layout.objects(info.size);
        let map = match outputs_of::<1>(self.on_meta(oid, vec![ObjectMap::load()], false).await) {
            Ok([answer]) => ObjectMap::read(&answer).ok().filter(|m| m.objects() >= objects),
            Err(r) if r == -errno::ESHUTDOWN => return Err(r),
            Err(_) => None,
        };
        *self.map.borrow_mut() = map;
        if self.map.borrow().is_none() {
            tracing::warn!(
                "{}: its object map is missing or wrong; 'rbd object-map rebuild' mends it",
                self.name
            );
            return self.invalidate(SNAP_HEAD).await;
        }
        Ok(())
    }

    /// Takes the object map's lock from ourselves, if we have it under a number that we had; true
    /// if it was ours.
    async fn take_own_map(&self) -> bool {
        let oid = ObjectMap::name(&self.id, None);
        let Ok([answer]) = outputs_of(self.on_meta(oid.clone(), vec![lock::ask()], false).await)
        else {
            return false;
        };
        let Ok(held) = Held::read(&answer) else { return false };
        match &held.holders[..] {
            // Another change is about to take it.
            [] => {}
            [holder] if holder.addr.nonce != self.rados.nonce() => return false,
            [holder] if holder.name == EntityName::client(self.rados.global_id()) => return true,
            // In two requests: a Ceph's classes do not see what earlier ones of the same request
            // changed. Another change may have done so meanwhile.
            [holder] => drop(self.on_meta(oid.clone(), vec![lock::break_hold(holder)], true).await),
            _ => return false,
        }
        self.on_meta(oid, vec![Claim::map().take()], true).await;
        true
    }

    /// Says in the header that an object map cannot be trusted.
    pub(crate) async fn invalidate(&self, snap: u64) -> Result<(), i32> {
        let info = self.info();
        let diff = if info.has(feature::FAST_DIFF) { image_flag::DIFF_INVALID } else { 0 };
        let mut ops = Vec::new();
        ops.extend(self.owner.get().map(|watch| Claim::header(watch).check()));
        ops.push(header::set_flags(image_flag::MAP_INVALID | diff, snap));
        let r = self.on_header(ops, true).await.result;
        if r < 0 {
            return Err(r);
        }
        if snap == SNAP_HEAD {
            self.map.take();
        }
        self.make_stale();
        Ok(())
    }

    /// What the map says of an object; `None` without a map.
    pub(crate) fn state(&self, object: u64) -> Option<State> {
        self.map.borrow().as_ref().map(|m| m.get(object))
    }

    /// Notes what is to become of an object, before it does. Where that fails the map is made
    /// invalid.
    pub(crate) async fn note(
        &self,
        object: u64,
        state: State,
        from: Option<State>,
    ) -> Result<(), i32> {
        self.kept()?;
        match self.state(object) {
            None => return Ok(()),
            Some(now) if now == state || from.is_some_and(|f| f != now) => return Ok(()),
            Some(_) => {}
        }
        let (oid, update) =
            (ObjectMap::name(&self.id, None), ObjectMap::update(object, state, from));
        let mut result = self
            .on_meta(oid.clone(), vec![Claim::map().check(), update.clone()], true)
            .await
            .result;
        if result == -errno::EBUSY && self.take_own_map().await {
            result = self.on_meta(oid, vec![Claim::map().check(), update], true).await.result;
        }
        match result {
            r if r >= 0 => {
                if let Some(map) = self.map.borrow_mut().as_mut() {
                    map.set(object, state);
                }
                Ok(())
            }
            r if r == -errno::ESHUTDOWN => Err(r),
            r => {
                self.kept()?;
                tracing::warn!(
                    "{}: its object map cannot be changed ({}); it is invalid now",
                    self.name,
                    errno::name(-r)
                );
                self.invalidate(SNAP_HEAD).await
            }
        }
    }

    /// Notes in the maps of snapshots that they get an object, of the parent's. Snapshots from
    /// before the image was so large have no such object.
    pub(crate) async fn note_in_snaps(&self, info: &Info<R>, object: u64) -> Result<(), i32> {
        if !info.has(feature::OBJECT_MAP) {
            return Ok(());
        }
        for (i, snap) in info.snaps.iter().rev().enumerate() {
            // It came with the first; in later ones it is the same.
            let state =
                if i > 0 && info.has(feature::FAST_DIFF) { State::Clean } else { State::Exists };
            let ops = vec![ObjectMap::update(object, state, None)];
            match self.on_meta(ObjectMap::name(&self.id, Some(*snap)), ops, true).await.result {
                r if r >= 0 || r == -errno::ERANGE => {}
                r if r == -errno::ESHUTDOWN => return Err(r),
                _ => self.invalidate(*snap).await?,
            }
        }
        Ok(())
    }
}
