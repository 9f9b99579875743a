//! A PG seen from outside, read-only: what it keeps (info, log, missing set, interval) and whether
//! it would read or write for a client. The simulators compare the members of a PG by it.

use crate::active::Active;
use crate::write::Inflight;
use crate::{Leases, Missing, OpId, Pg, PgLog};
use spirula_messages::cluster::pg::PgInfo;
use spirula_types::{EVersion, Epoch, OsdId, Peer};

/// What one member keeps of a PG.
#[derive(Debug)]
pub struct Look<'a> {
    /// Its record.
    pub info: &'a PgInfo,
    /// Its log.
    pub log: &'a PgLog,
    /// Objects that it lacks.
    pub missing: &'a Missing,
    /// First epoch of the interval it is in.
    pub since: Epoch,
    /// The newest map that it has seen.
    pub epoch: Epoch,
    /// Who acts in that.
    pub acting: &'a [Peer],
    /// It leads, takes writes, and this is durable everywhere.
    pub serves: Option<EVersion>,
}

impl Pg {
    /// What it keeps; nothing if it has no copy.
    pub fn look(&self) -> Option<Look<'_>> {
        let (log, missing) = (self.core.log(), self.core.missing());
        let (since, epoch, acting) =
            (self.core.interval().since, self.core.epoch(), &self.core.interval().acting[..]);
        let serves = self.active().filter(|a| a.serving).map(|a: &Active| a.committed);
        Some(Look { info: self.core.info()?, log, missing, since, epoch, acting, serves })
    }

    /// The members that have not made durable what this request wrote; nobody if it is not in
    /// [`crate::Phase::Commit`].
    pub fn not_durable_at(&self, op: OpId) -> Vec<OsdId> {
        let Some(a) = self.active() else { return Vec::new() };
        let Some(version) = a.inflight.iter().find(|f| f.has(op)).map(Inflight::version) else {
            return Vec::new();
        };
        a.replicas
            .iter()
            .filter(|(_, durable)| *durable < version)
            .map(|(member, _)| member.osd)
            .collect()
    }

    /// Would it write for a client at this time?
    pub fn would_write(&self, now_ms: u64) -> bool {
        self.active().is_some_and(|a| a.activated && a.serving && now_ms >= a.wait_until)
    }

    /// Would it read for a client at this time, under these leases?
    pub fn would_read(&self, leases: &Leases, now_ms: u64) -> bool {
        self.would_write(now_ms) && self.lease_holds(leases, now_ms)
    }
}
