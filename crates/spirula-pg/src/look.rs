//! A PG seen from outside, read-only: what it keeps (info, log, missing set, interval) and whether
//! it would read or write for a client. The simulators compare the members of a PG by it.

use crate::Reservation;
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
        let serves = self.primary().filter(|a| a.serving).map(|a| a.committed);
        Some(Look { info: self.core.info()?, log, missing, since, epoch, acting, serves })
    }

    /// The members that have not made durable what this request wrote; nobody if it is not in
    /// [`crate::Phase::Commit`].
    pub fn not_durable_at(&self, op: OpId) -> Vec<OsdId> {
        let Some(a) = self.primary() else { return Vec::new() };
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
        self.primary().is_some_and(|a| a.activated && a.serving && now_ms >= a.wait_until)
    }

    /// Would it read for a client at this time, under these leases?
    pub fn would_read(&self, leases: &Leases, now_ms: u64) -> bool {
        self.would_write(now_ms)
            && self.primary().is_some_and(|p| p.lease_holds(&self.core, leases, now_ms))
    }

    /// Does the newest map make this OSD its primary?
    pub fn is_primary(&self) -> bool {
        self.core.view.as_ref().is_some_and(|v| v.primary == self.core.me)
    }

    /// Is it stored here, in whatever state?
    pub fn exists(&self) -> bool {
        self.core.info().is_some()
    }

    /// Does the PG, as its primary tells it, hold no data? Then a backfill takes no room here: it
    /// only removes.
    pub fn holds_nothing(&self) -> bool {
        self.core.info().is_some_and(|i| i.head.counts.objects == 0 && i.head.counts.bytes == 0)
    }

    /// Bytes of data that this copy holds once it is whole, at most: what it has beyond them is
    /// old, and goes when it is filled. The shards of an erasure-coded PG end with a whole stripe
    /// each.
    pub fn bytes_due(&self) -> u64 {
        let Some(info) = self.core.info() else { return 0 };
        let of = |n: i64| u64::try_from(n).unwrap_or(0);
        let (bytes, objects) = (of(info.head.counts.bytes), of(info.head.counts.objects));
        match self.core.shape() {
            Some(s) => {
                bytes.div_ceil(s.k.max(1) as u64).saturating_add(objects.saturating_mul(s.unit))
            }
            None => bytes,
        }
    }

    /// Does what is reserved put objects on our own disk?
    pub fn takes_space(&self, what: &Reservation) -> bool {
        match what {
            Reservation::Remote { .. } => !self.holds_nothing(),
            // What others lack takes nothing here.
            Reservation::Local { .. } => !self.core.missing().is_empty(),
        }
    }

    /// PG number of the pool this copy was last split or folded for; 0 when nothing is stored. A
    /// map that splits it further may only be given after [`Pg::split`].
    pub fn pg_num(&self) -> u32 {
        self.core.info().map_or(0, |i| i.pg_num)
    }

    /// Epoch of the map for which it was split or folded last. Maps before it are not for this
    /// copy: the OSD goes on from an older one after a crash.
    pub fn shaped(&self) -> Epoch {
        self.core.shaped()
    }
}
