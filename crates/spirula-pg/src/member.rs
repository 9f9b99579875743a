//! The part of a PG that follows a primary: infos, logs, pushed objects,
//! activation, deletion; and what any holder answers.
//!
//! Every answer that claims something about the store is sent when that is durable.

use crate::api::{PeerMsg, PgEffect};
use crate::copy::{Change, History, Spoilt};
use crate::erasure::undo;
use crate::exec::{INFO_ATTR, ObjectInfo, ObjectReader, Prefetch, ReadError, pg_end, pg_start};
use crate::log::LogEntry;
use crate::peering::removals;
use crate::pg::{After, Cx, Pg, Removing, Role, Step, has_range};
use crate::recovery::copy::{Chunk, chunk};
use crate::recovery::share::{Family, Relative, Way};
use crate::replica::Replica;
use spirula_encoding::{DecodeError, from_slice};
use spirula_messages::cluster::pg::{
    CtlBody, Ends, LogUpdate, PastInterval, PgCtl, PgInfo, PgTxn, TxnKind,
};
use spirula_types::transaction::{ObjectOp, ObjectUpdate, Transaction};
use spirula_types::{Dirty, EVersion, Epoch, HObject, OsdId, Peer, PgId};

impl Pg {
    pub(crate) fn on_ctl(&mut self, from: Peer, ctl: PgCtl, cx: &mut Cx<'_>) {
        let primary = self.core.leader();
        match ctl.body {
            CtlBody::Notify { info, past } => self.on_notify(from, info, past, cx),
            answer if primary == self.core.me && from != primary => {
                self.on_answer(from, answer, cx)
            }
            // Its own shard a primary reads as it reads others'.
            _ if from == primary => self.on_order(from, ctl, cx),
            _ => {
                tracing::debug!(pg = %self.core.id, %from, %primary, "order of an OSD that is not \
                primary ignored")
            }
        }
    }

    /// What a member, or another holder, says to its primary.
    fn on_answer(&mut self, from: Peer, answer: CtlBody, cx: &mut Cx<'_>) {
        match answer {
            CtlBody::Info { info, past, lease_left_ms } => {
                self.on_info(from, info, past, lease_left_ms, cx)
            }
            CtlBody::Log { info, entries, missing } => {
                self.on_log(from, info, entries, missing, cx)
            }
            CtlBody::PullFailed { seq, object, has } => {
                if !self.is_pulled(seq) {
                    self.on_pull_failed(from, seq, &object, has, cx);
                }
            }
            CtlBody::ScanFailed { from: start } => self.on_scan_failed(from, &start, cx),
            CtlBody::Activated { run } => self.on_activated(from, run, cx),
            CtlBody::HistoryAck { seq } => self.on_history_ack(from, seq),
            CtlBody::Gap { have } => self.on_gap(from, have, cx),
            CtlBody::Scanned { from: start, objects, next } => {
                self.on_scanned(from, &start, objects, next, cx)
            }
            CtlBody::PushAck { seq } => self.on_push_ack(from, seq, cx),
            CtlBody::PushRefused { seq } => self.on_push_refused(from, seq, cx),
            CtlBody::ProgressAck { last_backfill } => {
                self.on_progress_ack(from, &last_backfill, cx)
            }
            CtlBody::Scrubbed { seq, map } => self.on_scrubbed(from, seq, map, cx),
            CtlBody::Rotten { object, version, offset } => {
                self.on_rotten(from, object, version, offset, cx);
            }
            CtlBody::Reserved { seq } => self.on_remote_reserved(from, seq, true, cx),
            CtlBody::TooFull { seq } => self.on_remote_reserved(from, seq, false, cx),
            CtlBody::Released { seq } => self.on_released(from, seq),
            _ => tracing::debug!(pg = %self.core.id, %from, "order to its primary ignored"),
        }
    }

    /// What the primary of the interval wants.
    fn on_order(&mut self, from: Peer, ctl: PgCtl, cx: &mut Cx<'_>) {
        match ctl.body {
            CtlBody::Query { holders } => self.on_query(from, &holders, cx),
            CtlBody::GetLog { after } => self.on_get_log(from, after, cx),
            CtlBody::Activate { run, info, past, log, fresh } => {
                self.on_activate(from, run, info, past, (log, fresh), cx);
            }
            CtlBody::Scan { from: start, max } => self.on_scan(from, ctl.epoch, start, max, cx),
            CtlBody::Pull { .. } => self.on_pull(from, ctl, cx),
            CtlBody::ReadShard { .. } => self.on_read_shard(from, ctl, cx),
            CtlBody::Delete => self.on_delete(from, cx),
            CtlBody::Release { seq } => {
                if let Role::Replica(r) = &mut self.role {
                    r.target.on_release(seq, cx);
                }
                self.core.send(from, CtlBody::Released { seq }, cx);
            }
            CtlBody::Progress { last_backfill, follows } => {
                if self.has_come(follows, cx) {
                    self.on_progress(from, last_backfill, cx);
                }
            }
            body => match &mut self.role {
                Role::Replica(r) => match body {
                    CtlBody::Reserve { seq, backfill } => {
                        r.target.on_reserve(&self.core, from, seq, backfill, cx)
                    }
                    CtlBody::RottenAck { object, version } => r.rotten_is_heard(&object, version),
                    CtlBody::Rotten { object, version, .. } => {
                        self.mark_unreadable(object, version, cx)
                    }
                    CtlBody::ScrubScan { seq, from: first, to, deep } => {
                        self.on_scrub_scan(seq, first, to, deep, cx)
                    }
                    CtlBody::History { seq, history_les, lec, rolled, scrub, counted, read } => {
                        let h = History { history_les, lec, rolled, scrub, counted, read };
                        self.on_history(from, seq, &h, cx);
                    }
                    _ => tracing::debug!(pg = %self.core.id, %from, "answer of a primary ignored"),
                },
                // One that is no member any more says so by calling, and is activated anew.
                _ => tracing::debug!(pg = %self.core.id, %from, "order without activation ignored"),
            },
        }
    }

    fn on_query(&mut self, from: Peer, holders: &[OsdId], cx: &mut Cx<'_>) {
        let left =
            holders.iter().map(|h| cx.leases.granted_left(*h, cx.now.mono_ms)).max().unwrap_or(0);
        self.tell_info(from, left, cx);
        self.check_removed(cx);
    }

    /// Says what is here, when it is durable; `left`: for how many milliseconds those asked about
    /// may serve reads by our leave.
    pub(crate) fn tell_info(&mut self, to: Peer, left: u64, cx: &mut Cx<'_>) {
        let body = CtlBody::Info {
            info: self.core.told_info(cx),
            past: self.core.past().to_vec(),
            lease_left_ms: left as u32,
        };
        let msg = self.core.ctl(to, body);
        self.when_durable(After::Send(to, msg), cx);
    }

    fn on_get_log(&mut self, from: Peer, after: EVersion, cx: &mut Cx<'_>) {
        let Some(info) = self.core.told_info(cx) else { return };
        let entries = self.core.log().after(after).map(LogEntry::to_bytes).collect();
        let missing = self.core.missing().iter().map(|(o, i)| (o.clone(), i.clone())).collect();
        let msg = self.core.ctl(from, CtlBody::Log { info, entries, missing });
        self.when_durable(After::Send(from, msg), cx);
    }

    // ---- recovery ----

    pub(crate) fn on_txn(&mut self, from: Peer, t: PgTxn, cx: &mut Cx<'_>) {
        match t.kind {
            TxnKind::Pulled => self.on_pulled(from, t, cx),
            TxnKind::Shard => self.on_shard(from, t, cx),
            TxnKind::Push => match &self.role {
                Role::Replica(r) if r.primary() == from => self.on_push(from, t, cx),
                _ => tracing::debug!(pg = %self.core.id, %from, "push without activation ignored"),
            },
        }
    }

    /// Member: a piece of an object's copy.
    fn on_push(&mut self, from: Peer, t: PgTxn, cx: &mut Cx<'_>) {
        if !self.has_come(t.follows, cx) {
            return;
        }
        if !cx.reader.takes_data(t.payload.len() as u64) {
            // It is sent again until there is room. The store would refuse it, and what makes room
            // would wait behind it.
            tracing::debug!(pg = %self.core.id, %from, "no room for a push");
            return;
        }
        let Role::Replica(r) = &self.role else { return };
        if let Some(durable) = r.pushes.get(t.seq) {
            // Repeated while it is on its way to the disk: it has one answer.
            if durable {
                self.core.send(from, CtlBody::PushAck { seq: t.seq }, cx);
            }
            return;
        }
        if self.mail.follow(from, &t) {
            return;
        }
        let txn = match Transaction::join(&t.header, &t.payload) {
            Ok(txn) => txn,
            Err(e) => {
                return tracing::error!(pg = %self.core.id, %from, error = %e, "read push");
            }
        };
        if txn.objects.iter().any(|u| r.pushes.is_overtaken(t.seq, &u.object)) {
            return;
        }
        match self.may_share(&txn, &t.beside, cx) {
            Ok(true) => {}
            Ok(false) => return self.core.send(from, CtlBody::PushRefused { seq: t.seq }, cx),
            Err(what) => {
                return self.mail.park(&mut self.core, from, PeerMsg::Txn(t), what, cx);
            }
        }
        if let Role::Replica(r) = &mut self.role {
            txn.objects.iter().for_each(|u| r.pushes.applied(t.seq, u.object.clone()));
        }
        let after = After::Pushed { since: self.core.interval().since, to: from, seq: t.seq };
        self.apply_piece(txn, t.next.is_none(), after, cx);
    }

    /// Can what a push brings take ranges of these here? Not what replaces a bad copy: the bad
    /// block might be what it would share. (It is known as such by being there and lacked
    /// altogether; the first piece of a copy takes its record away.)
    fn may_share(
        &self,
        txn: &Transaction,
        beside: &[Relative],
        cx: &Cx<'_>,
    ) -> Result<bool, Prefetch> {
        if beside.is_empty() {
            return Ok(true);
        }
        for u in &txn.objects {
            if self.is_replaced(&u.object, cx)? {
                return Ok(false);
            }
        }
        self.has_beside(beside, cx)
    }

    /// Is a copy here that is lacked all the same: a bad one?
    pub(crate) fn is_replaced(&self, object: &HObject, cx: &Cx<'_>) -> Result<bool, Prefetch> {
        if self.core.missing().get(object).is_none_or(|i| i.have != EVersion::default()) {
            return Ok(false);
        }
        match self.stored_version(object, cx.reader) {
            Ok(version) => Ok(version != EVersion::default()),
            Err(ReadError::NotReady(what)) => Err(what),
            Err(_) => Ok(true),
        }
    }

    /// Applies a piece of an object's copy, the last one or not. A missing object stays so until
    /// the last piece; what it had before is gone with the first.
    pub(crate) fn apply_piece(
        &mut self,
        txn: Transaction,
        last: bool,
        after: After,
        cx: &mut Cx<'_>,
    ) {
        for u in txn.objects.iter().filter(|_| last) {
            if let Role::Replica(r) = &mut self.role {
                r.is_replaced(&u.object);
            }
            let leads = matches!(self.role, Role::Active(_));
            self.repairs.own_copy_replaced(&self.core, leads, &u.object, cx);
        }
        let change = self.core.copy.hold(txn.objects, last);
        self.core.submit(change, after, cx);
    }

    fn on_scan(&mut self, from: Peer, epoch: Epoch, start: HObject, max: u32, cx: &mut Cx<'_>) {
        match self.list_versions(&start, max as usize, cx.reader) {
            Ok((objects, next)) => {
                self.core.send(from, CtlBody::Scanned { from: start, objects, next }, cx)
            }
            Err(ReadError::NotReady(what)) => {
                let ends = Ends { from: from.shard, to: self.core.me.shard };
                let ctl = PgCtl {
                    pg: self.core.id,
                    ends,
                    epoch,
                    body: CtlBody::Scan { from: start, max },
                };
                self.mail.park(&mut self.core, from, PeerMsg::Ctl(Box::new(ctl)), what, cx);
            }
            Err(e) => {
                tracing::error!(pg = %self.core.id, error = %e, "list objects for recovery");
                self.core.send(from, CtlBody::ScanFailed { from: start }, cx);
            }
        }
    }

    /// Objects from `start` on with their versions, and where to go on.
    pub(crate) fn list_versions(
        &self,
        start: &HObject,
        max: usize,
        reader: &dyn ObjectReader,
    ) -> Result<(Vec<(HObject, EVersion)>, HObject), ReadError> {
        let (first, end) = self.core.range();
        let start = start.max(&first);
        let mut found = reader.list(start, &end, max.max(1) + 1)?;
        let next = if found.len() > max.max(1) {
            found.pop().unwrap_or_else(HObject::max)
        } else {
            HObject::max()
        };
        let mut objects = Vec::with_capacity(found.len());
        for o in found {
            let version = match reader.attr(&o, INFO_ATTR)? {
                // An object whose record is missing or damaged equals no other.
                Some(attr) => {
                    from_slice::<ObjectInfo>(&attr).map(|i| i.version).unwrap_or_default()
                }
                None => EVersion::default(),
            };
            objects.push((o, version));
        }
        Ok((objects, next))
    }

    fn on_pull(&mut self, from: Peer, ctl: PgCtl, cx: &mut Cx<'_>) {
        let CtlBody::Pull { seq, object, need, cursor, dirty, piece, beside } = &ctl.body else {
            return;
        };
        let failed = |has| CtlBody::PullFailed { seq: *seq, object: object.clone(), has };
        let nothing = EVersion::default();
        // What is to be copied must be the version wanted, whole.
        let version = match self.stored_version(object, cx.reader) {
            Err(ReadError::NotReady(what)) => {
                return self.mail.park(&mut self.core, from, PeerMsg::Ctl(Box::new(ctl)), what, cx);
            }
            Err(e) => {
                tracing::error!(pg = %self.core.id, %object, error = %e, "read object for \
                    recovery");
                return self.core.send(from, failed(nothing), cx);
            }
            Ok(version) => version,
        };
        if self.core.missing().contains(object) || version != *need {
            tracing::warn!(pg = %self.core.id, %object, %need, %version, "asked for a version that \
                is not here");
            let has = if self.core.missing().contains(object) { nothing } else { version };
            return self.core.send(from, failed(has), cx);
        }
        let way = self.way_from(object, dirty, beside, cx);
        let piece = way.and_then(|way| {
            Ok((
                chunk(cx.reader, object, cursor, &way, self.core.cfg.push_bytes.min(*piece))?,
                way.beside(),
                way.lacks,
            ))
        });
        match piece {
            Ok((Chunk { txn, next }, beside, lacks)) => {
                let (header, payload) = txn.split();
                let t = PgTxn {
                    pg: self.core.id,
                    ends: self.core.ends(from),
                    epoch: ctl.epoch,
                    kind: TxnKind::Pulled,
                    seq: *seq,
                    version,
                    follows: EVersion::default(),
                    next,
                    lacks: if beside.is_empty() { Dirty::All } else { lacks },
                    beside,
                    header: header.into(),
                    payload,
                };
                cx.out.push(PgEffect::Send(from, PeerMsg::Txn(t)));
            }
            Err(ReadError::NotReady(what)) => {
                self.mail.park(&mut self.core, from, PeerMsg::Ctl(Box::new(ctl)), what, cx)
            }
            Err(e) => {
                tracing::error!(pg = %self.core.id, %object, error = %e, "read object for \
                    recovery");
                self.mark_unreadable(object.clone(), version, cx);
                let offset = cx.reader.bad_offset(object);
                self.tell_rotten(from, object, version, offset, cx);
                self.core.send(from, failed(nothing), cx);
            }
        }
    }

    /// How an object is made at an OSD that lacks all of it and has these relatives.
    fn way_from(
        &self,
        object: &HObject,
        dirty: &Dirty,
        beside: &[Relative],
        cx: &Cx<'_>,
    ) -> Result<Way, ReadError> {
        let plain = Way::plain(dirty.clone());
        let head = object.to_head();
        if *dirty != Dirty::All || beside.is_empty() || self.core.missing().contains(&head) {
            return Ok(plain);
        }
        let Some(family) = Family::read(cx.reader, &head)? else { return Ok(plain) };
        let relatives = family.relatives(object, |o| {
            let Some((_, version)) = beside.iter().find(|(b, _)| b == o) else { return Ok(None) };
            let same =
                !self.core.missing().contains(o) && self.stored_version(o, cx.reader)? == *version;
            Ok(same.then_some(*version))
        })?;
        Ok(family.way(object, &relatives, self.core.cfg.share_block))
    }

    /// Version of a stored object; zero if it is not there, or not whole.
    pub(crate) fn stored_version(
        &self,
        object: &HObject,
        reader: &dyn ObjectReader,
    ) -> Result<EVersion, ReadError> {
        Ok(match reader.attr(object, INFO_ATTR)? {
            Some(attr) => from_slice::<ObjectInfo>(&attr).map(|i| i.version).unwrap_or_default(),
            None => EVersion::default(),
        })
    }

    fn on_progress(&mut self, from: Peer, last_backfill: HObject, cx: &mut Cx<'_>) {
        let Some(info) = self.core.info() else { return };
        if !matches!(self.role, Role::Replica(_)) {
            return;
        }
        let news = (last_backfill > info.last_backfill).then(|| last_backfill.clone());
        let ack = After::Send(from, self.core.ctl(from, CtlBody::ProgressAck { last_backfill }));
        if let Some(news) = news {
            let change = self.core.copy.filled_to(news);
            self.core.submit(change, ack, cx);
        } else if !self.core.commits.will(&ack) {
            self.when_durable(ack, cx);
        }
    }

    // ---- activation, deletion ----

    fn on_activate(
        &mut self,
        from: Peer,
        run: u64,
        told: PgInfo,
        past: Vec<PastInterval>,
        (log, fresh): (LogUpdate, bool),
        cx: &mut Cx<'_>,
    ) {
        if let Role::Replica(r) = &self.role
            && run <= r.run()
        {
            // Repeated: it may have taken writes since.
            let msg = After::Send(from, self.core.ctl(from, CtlBody::Activated { run }));
            if run == r.run() && !self.core.commits.will(&msg) {
                self.when_durable(msg, cx);
            }
            return;
        }
        let pg_num = self.core.view.as_ref().and_then(|v| v.pool.as_ref()).map_or(0, |p| p.pg_num);
        if told.pg != self.core.id || !has_range(self.core.id, told.pg_num, pg_num) {
            tracing::error!(pg = %self.core.id, %from, ?told, "activation of another pg");
            return;
        }
        let has = self.core.info().is_some_and(|i| i.last_update() != EVersion::default());
        if fresh && (has || self.core.info().is_some_and(|i| i.confirmed)) {
            // A creation that cannot be the PG's: this copy has served.
            tracing::warn!(pg = %self.core.id, %from, "refuse to begin anew");
            return;
        }
        let remains = match self.remains(&told, &log, fresh, cx.reader) {
            Ok(remains) => remains,
            Err(e) => {
                // It is asked again.
                tracing::error!(pg = %self.core.id, %from, error = %e, "list what is to be gone \
                    before an activation");
                return;
            }
        };
        if let Role::Replica(r) = &mut self.role {
            r.forget_rotten();
        }
        let until = |left: u32| cx.now.mono_ms + u64::from(left);
        let readers = told.readers.iter().map(|r| (r.osd, r.last, until(r.left_ms))).collect();
        self.core.copy.read_by(readers).saved_whole();
        match self.take_update(&told, past, log, remains, cx) {
            Ok((change, spoilt)) => {
                let mut r = Box::new(Replica::new(from, run));
                if let Role::Replica(old) = &mut self.role {
                    old.target.clear(cx);
                    r.pushes = std::mem::take(&mut old.pushes);
                }
                let msg = self.core.ctl(from, CtlBody::Activated { run });
                self.core.submit(change, After::Send(from, msg), cx);
                r.tell_spoilt(&self.core, spoilt, cx);
                self.role = Role::Replica(r);
            }
            Err(e) => tracing::error!(pg = %self.core.id, %from, error = %e, "take over log"),
        }
    }

    /// What we lack whatever is stored of it, since that is bad: it loses its record, so that the
    /// backfill that follows sees that it equals no other. What is missing will not say so any
    /// more.
    fn without_record(&self, reader: &dyn ObjectReader) -> Result<Vec<ObjectUpdate>, ReadError> {
        let mut bad = Vec::new();
        for (object, _) in
            self.core.missing().iter().filter(|(_, item)| item.have == EVersion::default())
        {
            let behind = HObject { snap: object.snap + 1, ..object.clone() };
            if !reader.list(object, &behind, 1)?.is_empty() {
                bad.push(ObjectUpdate {
                    object: object.clone(),
                    ops: vec![ObjectOp::RmAttr(INFO_ATTR.into())],
                });
            }
        }
        Ok(bad)
    }

    /// What is here that an activation does away with: what a deletion that was interrupted has
    /// left is of no history (an object that no entry names would come back), and what could be
    /// taken back of a log that is none any more stays for nobody.
    fn remains(
        &self,
        told: &PgInfo,
        log: &LogUpdate,
        fresh: bool,
        reader: &dyn ObjectReader,
    ) -> Result<Vec<ObjectUpdate>, ReadError> {
        let own = self.core.info().is_some_and(|i| is_of(i, told));
        let reset = matches!(log, LogUpdate::Reset { .. });
        let begins = if reset { fresh } else { !own };
        let mut remains =
            if begins { leftovers(self.core.id, told.pg_num, reader)? } else { Vec::new() };
        if reset || !own {
            remains.extend(removals(undo::undo_copies(
                &self.core,
                reader,
                told.pg_num,
                usize::MAX,
            )?));
        }
        if reset && own && !fresh {
            remains.extend(self.without_record(reader)?);
        }
        Ok(remains)
    }

    /// Takes over log and history of a primary: the change that records it, and what is lacked
    /// since then, which the primary does not know.
    fn take_update(
        &mut self,
        told: &PgInfo,
        past: Vec<PastInterval>,
        log: LogUpdate,
        remains: Vec<ObjectUpdate>,
        cx: &mut Cx<'_>,
    ) -> Result<(Change, Spoilt), DecodeError> {
        let parse = |entries: &[bytes::Bytes]| -> Result<Vec<LogEntry>, DecodeError> {
            // Collecting results would not know how many there are.
            let mut all = Vec::with_capacity(entries.len());
            for b in entries {
                all.push(from_slice(b)?);
            }
            Ok(all)
        };
        let parsed = match &log {
            LogUpdate::Reset { entries, .. } | LogUpdate::After { entries, .. } => parse(entries)?,
        };
        let own = self.core.info().is_some_and(|i| is_of(i, told));
        let taken = self.core.copy.follow((told, own), past, (log, parsed), remains, cx.reader);
        self.requests.forget_objects();
        Ok(taken)
    }

    fn on_history(&mut self, from: Peer, seq: u64, h: &History, cx: &mut Cx<'_>) {
        if self.core.info().is_none() {
            return;
        }
        let change = self.core.copy.note_history(h);
        let ack = self.core.ctl(from, CtlBody::HistoryAck { seq });
        self.core.submit(change, After::Send(from, ack), cx);
    }

    fn on_delete(&mut self, from: Peer, cx: &mut Cx<'_>) {
        if self.core.info().is_none()
            || self.core.is_member()
            || !matches!(self.role, Role::Idle | Role::Replica(_))
        {
            return;
        }
        tracing::info!(pg = %self.core.id, %from, "delete stray copy");
        self.start_removal(cx);
    }

    /// The pool is deleted.
    pub(crate) fn remove_pool_gone(&mut self, cx: &mut Cx<'_>) {
        if self.core.info().is_none() {
            self.check_removed(cx);
        } else {
            self.start_removal(cx);
        }
    }

    /// Goes on with a deletion that a restart or a new interval interrupted, and deletes what was
    /// never activated.
    pub(crate) fn resume_removal(&mut self, cx: &mut Cx<'_>) {
        if self.core.info().is_some() && !self.core.has_copy() && !self.core.is_member() {
            self.start_removal(cx);
        }
    }

    fn start_removal(&mut self, cx: &mut Cx<'_>) {
        self.leave_role(cx);
        self.role = Role::Removing(Removing::default());
        let change = self.core.copy.void();
        self.core.submit(change, After::Remove, cx);
    }

    /// Deletes the next objects, and the last trace after the last object.
    pub(crate) fn remove_more(&mut self, cx: &mut Cx<'_>) {
        let next = self.removed_next(cx.reader);
        let Role::Removing(r) = &mut self.role else { return };
        match next {
            Ok(objects) if objects.is_empty() => {
                self.role = Role::Idle;
                let change = self.core.copy.is_gone();
                self.core.submit(change, After::Gone, cx);
            }
            Ok(objects) => {
                let change = Change::of_objects(removals(objects));
                self.core.submit(change, After::Remove, cx);
            }
            Err(ReadError::NotReady(what)) => {
                let n = self.core.seq();
                r.read = Some(n);
                cx.out.push(PgEffect::Prefetch(crate::ReadKey::Recovery(n), what));
            }
            Err(e) => {
                tracing::error!(pg = %self.core.id, error = %e, "list objects for deletion: tried \
                    again later");
                r.again_ms = (cx.now.mono_ms + self.core.cfg.retry_ms).max(1);
            }
        }
    }

    /// What a deletion takes next: objects, then what was kept so that entries could be taken back.
    fn removed_next(&self, reader: &dyn ObjectReader) -> Result<Vec<HObject>, ReadError> {
        let max = self.core.cfg.remove_batch.max(1);
        let (first, end) = self.core.range();
        let objects = reader.list(&first, &end, max)?;
        if !objects.is_empty() {
            return Ok(objects);
        }
        undo::undo_copies(&self.core, reader, self.core.info().map_or(0, |i| i.pg_num), max)
    }

    /// A notice that the primary's own transactions are durable.
    pub(crate) fn on_step(&mut self, step: Step, cx: &mut Cx<'_>) {
        match step {
            Step::Flushed => self.peering_flushed(cx),
            Step::Pulled(seq) => self.on_pull_durable(seq, cx),
            Step::Activated => {
                if let Some(run) = self.active().map(|a| a.run) {
                    self.on_activated(self.core.me, run, cx);
                }
            }
            Step::Rebuilt(seq) => self.on_push_ack(self.core.me, seq, cx),
        }
    }
}

/// Is a copy one of the PG that a primary tells of? One of another creation is void.
fn is_of(own: &PgInfo, told: &PgInfo) -> bool {
    own.les > 0 && (own.creation == told.creation || own.confirmed)
}

/// What an interrupted deletion left; it must not come back as part of a new PG.
pub(crate) fn leftovers(
    pg: PgId,
    pg_num: u32,
    reader: &dyn ObjectReader,
) -> Result<Vec<ObjectUpdate>, ReadError> {
    let left = reader.list(&pg_start(pg), &pg_end(pg, pg_num), usize::MAX)?;
    Ok(left
        .into_iter()
        .map(|object| ObjectUpdate { object, ops: vec![ObjectOp::Remove] })
        .collect())
}
