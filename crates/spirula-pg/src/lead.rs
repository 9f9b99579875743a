//! A primary after peering, with all that its verbs work on.
//!
//! Only [`Pg::lead`] makes one, and only while the PG has such a role: what is a method here needs
//! not ask. A method cannot end the role: what finds that it has to end says so to
//! [`Pg`], which is asked once for each event and each message.

use crate::again::Again;
use crate::api::{ConnId, PgEffect, PgEvent, ReadKey, TurnKind};
use crate::backoff::Held;
use crate::commits::Step;
use crate::core::{Cx, PgCore};
use crate::log;
use crate::mail::Mail;
use crate::pg::Pg;
use crate::primary::Primary;
use crate::recovery::ReadFor;
use crate::repair::Repairs;
use crate::requests::Requests;
use crate::role::{Role, Strays};
use crate::stat::StatState;
use crate::watch::Watches;
use spirula_messages::cluster::pg::{CtlBody, PgCtl, PgTxn, TxnKind};
use spirula_types::Peer;

/// See the module.
pub(crate) struct Lead<'p> {
    // What each of these is stands where it is owned: at `Pg`, and `primary` at `Role`.
    pub core: &'p mut PgCore,
    pub primary: &'p mut Primary,
    pub requests: &'p mut Requests,
    pub held: &'p mut Held,
    pub mail: &'p mut Mail,
    pub strays: &'p mut Strays,
    pub stat: &'p mut StatState,
    pub repairs: &'p mut Repairs,
    pub watches: &'p mut Watches,
}

impl Pg {
    /// The PG as an active primary, if it is one.
    pub(crate) fn lead(&mut self) -> Option<Lead<'_>> {
        let Role::Primary(primary) = &mut self.role else { return None };
        Some(Lead {
            core: &mut self.core,
            primary,
            requests: &mut self.requests,
            held: &mut self.held,
            mail: &mut self.mail,
            strays: &mut self.strays,
            stat: &mut self.stat,
            repairs: &mut self.repairs,
            watches: &mut self.watches,
        })
    }

    /// The primary that it is, to be looked at.
    pub(crate) fn primary(&self) -> Option<&Primary> {
        match &self.role {
            Role::Primary(p) => Some(p),
            _ => None,
        }
    }
}

impl Lead<'_> {
    /// An event that only an active primary has to do something about.
    pub fn on_event(&mut self, event: PgEvent, cx: &mut Cx<'_>) {
        match event {
            PgEvent::Ready(ReadKey::Op(op)) => self.on_op_ready(op, None, cx),
            PgEvent::Fetched(op, fetched) => self.on_op_ready(op, Some(fetched), cx),
            PgEvent::Force { backfill, on } => self.on_force(backfill, on, cx),
            PgEvent::MarkLost { revert } => self.on_mark_lost(revert, cx),
            PgEvent::Scrub { deep, repair, large } => self.on_scrub(deep, repair, large, cx),
            _ => {}
        }
    }

    /// The answer of a member, or of a copy outside them.
    pub fn on_answer(&mut self, from: Peer, ctl: PgCtl, cx: &mut Cx<'_>) {
        match ctl.body {
            CtlBody::Info { info, past, .. } => self.on_unheard(from, info, past, cx),
            CtlBody::Log { info, entries, missing } => {
                if let Some(entries) = log::parse(self.core.id, from, &entries) {
                    self.on_source(from, info, entries, missing, cx);
                }
            }
            CtlBody::PullFailed { seq, .. } if self.is_pulled(seq) => {}
            CtlBody::PullFailed { seq, object, has } => {
                self.on_pull_failed(from, seq, &object, has, cx)
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
            // Our own question, which waited for a read.
            CtlBody::ReadShard { .. } if from == self.core.me => self.read_own_shard(ctl, cx),
            _ => {}
        }
    }

    /// Data that was asked for.
    pub fn on_txn(&mut self, from: Peer, t: PgTxn, cx: &mut Cx<'_>) {
        match t.kind {
            TxnKind::Pulled => self.on_pulled(from, t, cx),
            TxnKind::Shard => self.on_shard(from, t, cx),
            TxnKind::Push => {
                tracing::debug!(pg = %self.core.id, %from, "push without activation ignored");
            }
        }
    }

    /// A notice that one of our own transactions is durable.
    pub fn on_step(&mut self, step: Step, cx: &mut Cx<'_>) {
        let me = self.core.me;
        match step {
            // Of the peering before.
            Step::Flushed => {}
            Step::Pulled(seq) => self.on_pull_durable(seq, cx),
            Step::Activated => self.on_activated(me, self.primary.run, cx),
            Step::Rebuilt(seq) => self.on_push_ack(me, seq, cx),
        }
    }

    /// The shell gives a turn.
    pub fn on_turn(&mut self, kind: TurnKind, (work, piece): (usize, u64), cx: &mut Cx<'_>) {
        match kind {
            TurnKind::Removal => {}
            TurnKind::Recovery => {
                self.recover_more(work, piece, cx);
                // What wants one, too, was counted in: nobody else asks for it again.
                if self.primary.scrub.wants_turn() || self.primary.trim.wants_turn() {
                    cx.out.push(PgEffect::WantTurn);
                }
            }
            TurnKind::Trim => {
                self.trim_more(work, cx);
                if self.primary.scrub.wants_turn() {
                    cx.out.push(PgEffect::WantTurn);
                }
            }
            TurnKind::Scrub => self.begin_chunk(cx),
        }
    }

    /// What was read for recovery is there.
    pub fn on_recovery_read(&mut self, n: u64, cx: &mut Cx<'_>) {
        match self.primary.recovery.has_read(n) {
            Some(ReadFor::Revert) => self.on_mark_lost(true, cx),
            Some(ReadFor::Recovery) => self.pump(cx),
            None => {}
        }
    }

    /// A connection is gone.
    pub fn on_conn_closed(&mut self, conn: ConnId, cx: &mut Cx<'_>) {
        self.primary.inflight.iter_mut().for_each(|f| f.closed(conn));
        for op in self.requests.drop_connection(conn) {
            self.op_gone(op);
            cx.out.push(PgEffect::Drop(op));
        }
        self.run_pending(cx);
        // One that was read for may have been the first of those on the PG itself.
        self.run_pg_queue(cx);
    }

    /// Repeats what is open.
    pub fn repeat(&mut self, again: Again, cx: &mut Cx<'_>) {
        self.repeat_stream(again, cx);
        self.repeat_told(again, cx);
        self.repeat_recovery(again, cx);
        self.repeat_gathers(again, cx);
    }

    /// Time passed.
    pub fn tick(&mut self, cx: &mut Cx<'_>) {
        self.scrub_tick(cx);
        self.tick_members(cx);
    }
}
