//! How full the store is, and which requests a full one refuses.

use crate::daemon::Osd;
use spirula_messages::ceph::{OsdOp, op};
use spirula_store::Statfs;

/// Most space of a store that is not offered, bytes.
const KEPT_BACK: u64 = 256 << 20;

impl Osd {
    /// Space of the store as it is reported: some is kept back for what is on its way when
    /// the cluster learns that it is full, and for deleting.
    pub(crate) fn space(&self) -> Option<Statfs> {
        let mut s = self.store.as_ref()?.statfs();
        let kept = (s.total / 8).min(KEPT_BACK);
        s.total -= kept;
        s.available = s.available.saturating_sub(kept);
        Some(s)
    }

    /// Above the map's full ratio?
    pub(crate) fn is_full(&self) -> bool {
        let ratio = self.maps.map().map_or(0.95, |m| f64::from(m.full_ratio));
        self.space().is_some_and(|s| s.total.saturating_sub(s.available) as f64 >= ratio * s.total as f64)
    }
}

/// Does a request take space (or may it)?
pub(crate) fn grows(ops: &[OsdOp]) -> bool {
    ops.iter().any(|o| {
        matches!(
            o.op,
            op::WRITE
                | op::WRITEFULL
                | op::APPEND
                | op::WRITESAME
                | op::CREATE
                | op::SETXATTR
                | op::OMAP_SET_VALS
                | op::OMAP_SET_HEADER
                | op::COPY_FROM
        )
    })
}
