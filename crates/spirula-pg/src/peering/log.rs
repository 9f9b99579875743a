//! Taking over the authoritative log, and learning what members lack beside it.

use super::{Member, Peering, Phase};
use crate::commits::After;
use crate::core::Cx;
use crate::log::{LogEntry, PgLog, parse};
use crate::missing::Missing;
use crate::pg::Pg;
use bytes::Bytes;
use spirula_messages::cluster::pg::{CtlBody, MissingItem, PgInfo};
use spirula_types::{EVersion, HObject, Peer};
use std::collections::BTreeSet;

impl Pg {
    pub(super) fn get_log(&mut self, p: &mut Peering, cx: &mut Cx<'_>) {
        let auth = p.choice.auth;
        let same = match (self.core.info(), p.infos.get(&auth)) {
            (Some(own), Some(Some(best))) => {
                self.core.has_copy() && own.last_update() == best.last_update()
            }
            _ => false,
        };
        if auth == self.core.me || same {
            self.get_missing(p, cx);
        } else {
            p.phase = Phase::Log;
            self.core.send(auth, CtlBody::GetLog { after: self.core.log().tail() }, cx);
        }
    }

    pub(super) fn on_log(
        &mut self,
        from: Peer,
        info: PgInfo,
        entries: Vec<Bytes>,
        missing: Vec<(HObject, MissingItem)>,
        cx: &mut Cx<'_>,
    ) {
        let Some(entries) = parse(self.core.id, from, &entries) else { return };
        self.peering(cx, |pg, p, cx| match &mut p.phase {
            Phase::Log if from == p.choice.auth => {
                let ours = pg.take_over(p, &info, entries, cx);
                if ours {
                    pg.get_missing(p, cx);
                }
            }
            Phase::Missing(silent) => {
                if silent.remove(&from) {
                    let tail = pg.core.log().tail().max(info.log_tail());
                    let log = PgLog::new(tail, entries);
                    let member = match pg.core.log().common(&log) {
                        Some(common) => {
                            let missing = Missing::from_items(missing);
                            Member::behind(
                                Some(info),
                                log,
                                missing,
                                common,
                                pg.core.log(),
                                pg.core.is_erasure(),
                            )
                        }
                        None => Member::reset(Some(info)),
                    };
                    p.members.insert(from, member);
                }
                pg.missing_known(p, cx);
            }
            _ => {}
        });
    }

    /// Makes the authoritative log ours.
    fn take_over(
        &mut self,
        p: &mut Peering,
        auth: &PgInfo,
        entries: Vec<LogEntry>,
        cx: &mut Cx<'_>,
    ) -> bool {
        // What is lacked beside that no other needs to be told: it leads.
        let Some((change, _)) = self.core.copy.take_over(auth, entries, &p.past, cx.reader) else {
            tracing::error!(pg = %self.core.id, ?auth, "logs that should meet do not");
            p.phase = Phase::Incomplete { bound: false };
            return false;
        };
        self.requests.forget_objects();
        self.core.submit(change, After::Nothing, cx);
        true
    }

    /// Learns what each member lacks.
    pub(super) fn get_missing(&mut self, p: &mut Peering, cx: &mut Cx<'_>) {
        let Some(view) = self.core.view.clone() else { return };
        let mut silent = BTreeSet::new();
        let targets =
            view.acting.iter().chain(&p.choice.backfill).copied().collect::<BTreeSet<_>>();
        let (tail, zero) = (self.core.log().tail(), EVersion::default());
        let undo = self.core.is_erasure();
        for osd in targets.into_iter().filter(|o| *o != self.core.me) {
            let info = p.infos.get(&osd).cloned().flatten();
            let member = match info {
                None if tail == zero => Member::behind(
                    None,
                    PgLog::default(),
                    Missing::default(),
                    zero,
                    self.core.log(),
                    undo,
                ),
                None => Member::reset(None),
                Some(i) if i.last_update() < tail || i.last_backfill.is_min() => {
                    Member::reset(Some(i))
                }
                Some(i) if i.missing == 0 && self.core.log().contains(i.last_update()) => {
                    let at = i.last_update();
                    Member::behind(
                        Some(i),
                        PgLog::new(at, []),
                        Missing::default(),
                        at,
                        self.core.log(),
                        undo,
                    )
                }
                Some(_) => {
                    self.core.send(osd, CtlBody::GetLog { after: tail }, cx);
                    silent.insert(osd);
                    continue;
                }
            };
            p.members.insert(osd, member);
        }
        p.phase = Phase::Missing(silent);
        self.missing_known(p, cx);
    }

    fn missing_known(&mut self, p: &mut Peering, cx: &mut Cx<'_>) {
        if matches!(&p.phase, Phase::Missing(silent) if silent.is_empty()) {
            let acting = |o: &Peer| self.core.view.as_ref().is_some_and(|v| v.acting.contains(o));
            if self.core.is_erasure()
                && p.members.iter().any(|(o, m)| m.common.is_none() && acting(o))
            {
                // It would serve a shard that it does not have.
                tracing::error!(pg = %self.core.id, "a member that must be filled was to serve");
                p.phase = Phase::Incomplete { bound: false };
                return;
            }
            for m in p.members.values_mut() {
                if planted!(self.core.cfg, MissingStaleOnResume)
                    && m.info.as_ref().is_some_and(|i| !i.is_whole())
                {
                    m.missing.clear();
                }
            }
            self.wait_up_thru(p, cx);
        }
    }
}
