//! Which requests clients hold back themselves, as the OSD told them to: the shell's part of
//! [`spirula_pg::Backoffs`].
//!
//! Each connection has its own table, which goes with it. When a request comes in, its connection's
//! table is asked first ([`crate::intake`]); the PG says what is to be blocked and when clients may
//! go on.

use crate::osd::{OsdCore, Session};
use serde_json::{Value, json};
use spirula_messages::Body;
use spirula_messages::ceph::MOsdBackoff;
use spirula_pg::{OpId, Patience};
use spirula_runtime::LinkId;
use spirula_runtime::limits::REQUESTS_PER_LINK;
use spirula_types::{EntityType, HObject, SpgId, features};

/// Open requests of a connection from which on none waits in a PG that does not serve: there is to
/// be room for those of other PGs.
const CROWDED: usize = REQUESTS_PER_LINK / 4;

impl OsdCore {
    /// What may be done with a request of this session that would have to wait.
    pub(crate) fn patience(&self, s: &Session) -> Patience {
        let knows = s.peer.features & features::RADOS_BACKOFF == features::RADOS_BACKOFF;
        let pool = self.outside.pool();
        if !knows || s.peer.kind == EntityType::Osd {
            Patience::Endless
        } else if s.link.open_requests() >= CROWDED
            || s.owed.waits_enough(self.free_memory())
            || pool.outstanding() > pool.budget() / 2
        {
            Patience::Short
        } else {
            Patience::Long
        }
    }

    /// A PG drops a request, and its client is to hold all like it.
    pub(crate) fn back_off(&mut self, pg: SpgId, op: OpId, begin: &HObject, end: &HObject) {
        self.want_no_copy(op);
        let Some(p) = self.requests.end(op) else { return };
        self.owed_no_more(&p);
        let Some(s) = self.sessions.get_mut(&p.link) else { return };
        s.link.request_done();
        if let Some(m) = s.backoffs.block(pg, begin, end, self.maps.epoch()) {
            s.link.send(m.into_message(0));
        }
    }

    /// Clients may ask again for a PG, or one object of it.
    pub(crate) fn unblock(&mut self, pg: SpgId, object: Option<&HObject>) {
        let epoch = self.maps.epoch();
        for s in self.sessions.values_mut() {
            s.backoffs
                .unblock(pg, object, epoch)
                .into_iter()
                .for_each(|m| s.link.send(m.into_message(0)));
        }
    }

    /// A client says that it holds what it was told to.
    pub(crate) fn backoff_acked(&mut self, link: LinkId, m: &MOsdBackoff) {
        if let Some(s) = self.sessions.get_mut(&link) {
            s.backoffs.acked(m);
        }
    }

    /// `dump_backoffs`.
    pub(crate) fn dump_backoffs(&self) -> Value {
        let of = |s: &Session| -> Vec<Value> {
            let one = |(pg, id, begin, end, state): (SpgId, u64, &HObject, &HObject, &str)| {
                json!({"pgid": pg.to_string(), "id": id, "state": state,
                    "begin": begin.to_string(), "end": end.to_string()})
            };
            s.backoffs.iter().map(one).collect()
        };
        let sessions =
            self.sessions.values().map(|s| (s, of(s))).filter(|(_, all)| !all.is_empty());
        let sessions: Vec<Value> = sessions
            .map(|(s, all)| {
                json!({"entity": s.peer.name().to_string(), "addr": s.peer.addr().to_string(), "backoffs": all})
            })
            .collect();
        json!({ "sessions": sessions })
    }
}
