//! The part of a PG that follows a primary: infos, logs, pushed objects,
//! activation, deletion; and what any holder answers.
//!
//! Every answer that claims something about the store is sent when that is durable.

use crate::api::{PeerMsg, PgEffect};
use crate::commits::After;
use crate::copy::removals;
use crate::copy::{Change, Spoilt};
use crate::core::{Cx, has_range};
use crate::erasure::undo;
use crate::exec::{INFO_ATTR, ObjectReader, ReadError, pg_end, pg_start};
use crate::log::LogEntry;
use crate::pg::Pg;
use crate::recovery::copy::{Chunk, chunk};
use crate::recovery::share::{Family, Relative, Way};
use crate::removing::Removing;
use crate::replica::Replica;
use crate::role::Role;
use spirula_encoding::{DecodeError, from_slice};
use spirula_messages::cluster::pg::{
    CtlBody, Ends, LogUpdate, PastInterval, PgCtl, PgInfo, PgTxn, TxnKind,
};
use spirula_types::transaction::{ObjectOp, ObjectUpdate};
use spirula_types::{Dirty, EVersion, Epoch, HObject, OsdId, Peer, PgId};

impl Pg {
    pub(crate) fn on_ctl(&mut self, from: Peer, ctl: PgCtl, cx: &mut Cx<'_>) {
        let primary = self.core.view.as_ref().map_or(Peer::NONE, |v| v.primary);
        // Answers are to us as the primary; what waited for a read may be our own.
        if !matches!(ctl.body, CtlBody::Notify { .. }) && primary == self.core.me {
            return match &self.role {
                Role::Primary(_) => {
                    if let Some(mut lead) = self.lead() {
                        lead.on_answer(from, ctl, cx);
                    }
                }
                Role::Peering(_) => self.on_peering_answer(from, ctl.body, cx),
                Role::Idle(_) | Role::Replica(_) | Role::Removing(_) => {}
            };
        }
        match ctl.body {
            CtlBody::Notify { info, past } => self.on_notify(from, info, past, cx),
            // Orders, of the primary.
            _ if from != primary => {
                tracing::debug!(pg = %self.core.id, %from, %primary, "order of an OSD that is not \
                    primary ignored");
            }
            CtlBody::Query { holders } => self.on_query(from, &holders, cx),
            CtlBody::GetLog { after } => self.on_get_log(from, after, cx),
            CtlBody::Activate { run, info, past, log, fresh } => {
                self.on_activate(from, run, info, past, (log, fresh), cx);
            }
            CtlBody::Scan { from: start, max } => self.on_scan(from, ctl.epoch, start, max, cx),
            CtlBody::Pull { .. } => self.on_pull(from, ctl, cx),
            CtlBody::ReadShard { .. } => self.on_read_shard(from, ctl, cx),
            CtlBody::Release { seq } => {
                if let Role::Replica(r) = &mut self.role {
                    r.target.on_release(seq, cx);
                }
                self.core.send(from, CtlBody::Released { seq }, cx);
            }
            CtlBody::Delete => self.on_delete(from, cx),
            order => {
                if let Role::Replica(r) = &mut self.role {
                    r.on_order(from, order, &mut self.core, &mut self.repairs, cx);
                }
            }
        }
    }

    /// A question by an earlier name than ours, of an interval that is over, or of ours by a name
    /// that we do not know (see `intervals`).
    pub(crate) fn on_early_query(
        &mut self,
        from: Peer,
        since: Epoch,
        holders: &[OsdId],
        cx: &mut Cx<'_>,
    ) {
        if self.core.info().is_none() && !self.core.is_member() {
            // Who has nothing, and no part in it, says so whichever it is.
            let left = holders
                .iter()
                .map(|h| cx.leases.granted_left(*h, cx.now.mono_ms))
                .max()
                .unwrap_or(0);
            let body = CtlBody::Info { info: None, past: Vec::new(), lease_left_ms: left as u32 };
            let answer = Box::new(PgCtl {
                pg: self.core.id,
                ends: self.core.ends(from),
                epoch: since,
                body,
            });
            cx.out.push(PgEffect::Send(from, PeerMsg::Ctl(answer)));
            self.check_removed(cx);
        } else if self.core.is_guessed()
            && self.core.view.as_ref().is_some_and(|v| v.primary == from)
        {
            // It may ask, when it hears this by our name, for other primaries: whoever reads by our
            // leave.
            let left = cx.leases.granted_longest(cx.now.mono_ms);
            self.tell_info(from, left, cx);
        }
    }

    /// Tells the primary that a copy is here.
    pub(crate) fn call_primary(&mut self, cx: &mut Cx<'_>) {
        let Some(view) = &self.core.view else { return };
        let primary = view.primary;
        if let Role::Idle(i) = &mut self.role {
            i.notified_ms = cx.now.mono_ms;
        }
        if !primary.is_some() || primary == self.core.me {
            return;
        }
        if let Some(info) = self.core.told_info(cx) {
            // Like an answer, it tells only what is durable.
            let msg =
                self.core.ctl(primary, CtlBody::Notify { info, past: self.core.past().to_vec() });
            self.core.send_when_durable(primary, msg, cx);
        }
    }

    /// Says that nothing is left here: no copy, no duty, nobody waiting for a newer map.
    pub(crate) fn check_removed(&mut self, cx: &mut Cx<'_>) {
        if self.is_gone() {
            cx.out.push(PgEffect::Removed);
        }
    }

    /// True if nothing is left here: no copy, no duty, no message that waits for a newer map. What
    /// was so when [`PgEffect::Removed`] was said need not be so any more.
    pub fn is_gone(&self) -> bool {
        let idle = matches!(self.role, Role::Idle(_))
            && self.core.info().is_none()
            && !self.core.is_member();
        // Nor an answer that waits for something to be durable.
        idle && self.core.commits.is_empty() && self.mail.is_empty() && self.requests.is_empty()
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
        self.core.send_when_durable(to, msg, cx);
    }

    fn on_get_log(&mut self, from: Peer, after: EVersion, cx: &mut Cx<'_>) {
        let Some(info) = self.core.told_info(cx) else { return };
        let entries = self.core.log().after(after).map(LogEntry::to_bytes).collect();
        let missing = self.core.missing().iter().map(|(o, i)| (o.clone(), i.clone())).collect();
        let msg = self.core.ctl(from, CtlBody::Log { info, entries, missing });
        self.core.send_when_durable(from, msg, cx);
    }

    // ---- recovery ----

    pub(crate) fn on_txn(&mut self, from: Peer, t: PgTxn, cx: &mut Cx<'_>) {
        match &mut self.role {
            Role::Replica(r) if t.kind == TxnKind::Push && r.primary() == from => {
                r.on_push(from, t, &mut self.core, &mut self.mail, &mut self.repairs, cx);
            }
            Role::Primary(_) => {
                if let Some(mut lead) = self.lead() {
                    lead.on_txn(from, t, cx);
                }
            }
            _ => tracing::debug!(pg = %self.core.id, %from, kind = ?t.kind, "data without \
                activation ignored"),
        }
    }

    fn on_scan(&mut self, from: Peer, epoch: Epoch, start: HObject, max: u32, cx: &mut Cx<'_>) {
        match self.core.list_versions(&start, max as usize, cx.reader) {
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

    fn on_pull(&mut self, from: Peer, ctl: PgCtl, cx: &mut Cx<'_>) {
        let CtlBody::Pull { seq, object, need, cursor, dirty, piece, beside } = &ctl.body else {
            return;
        };
        let failed = |has| CtlBody::PullFailed { seq: *seq, object: object.clone(), has };
        let nothing = EVersion::default();
        // What is to be copied must be the version wanted, whole.
        let version = match self.core.stored_version(object, cx.reader) {
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
                self.repairs.mark_unreadable(&mut self.core, object.clone(), version, cx);
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
            let same = !self.core.missing().contains(o)
                && self.core.stored_version(o, cx.reader)? == *version;
            Ok(same.then_some(*version))
        })?;
        Ok(family.way(object, &relatives, self.core.cfg.share_block))
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
            let last = r.run();
            // Repeated: it may have taken writes since.
            let msg = self.core.ctl(from, CtlBody::Activated { run });
            if run == last {
                self.core.send_again(from, msg, cx);
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
        let remains = match self.what_goes(&told, &log, fresh, cx.reader) {
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
        // The primary has heard what is known of it, also from us.
        let until = |left: u32| cx.now.mono_ms + u64::from(left);
        let readers = told.readers.iter().map(|r| (r.osd, r.last, until(r.left_ms))).collect();
        self.core.copy.read_by(readers).saved_whole();
        match self.take_update(&told, past, log, remains, cx) {
            Ok((change, spoilt)) => {
                let before = match std::mem::replace(&mut self.role, Role::idle()) {
                    Role::Replica(mut r) => {
                        r.target.clear(cx);
                        Some(r)
                    }
                    _ => None,
                };
                let replica = Replica::new(from, run, before, spoilt);
                let msg = self.core.ctl(from, CtlBody::Activated { run });
                self.core.submit(change, After::Send(from, msg), cx);
                replica.tell_all_rotten(&self.core, cx);
                self.role = Role::Replica(replica);
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
    fn what_goes(
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

    /// Takes over log and history of a primary; the change that records it, and what is lacked here
    /// for it that the primary does not know of.
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
        let (change, spoilt) =
            self.core.copy.follow((told, own), past, (log, parsed), remains, cx.reader);
        self.requests.forget_objects();
        Ok((change, spoilt))
    }

    fn on_delete(&mut self, from: Peer, cx: &mut Cx<'_>) {
        if self.core.info().is_none()
            || self.core.is_member()
            || !matches!(self.role, Role::Idle(_) | Role::Replica(_))
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

    /// Goes on with a deletion.
    pub(crate) fn remove_more(&mut self, cx: &mut Cx<'_>) {
        if let Role::Removing(r) = &mut self.role
            && r.go_on(&mut self.core, cx)
        {
            self.role = Role::idle();
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
