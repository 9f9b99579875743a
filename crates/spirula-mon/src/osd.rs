//! An OSD's life as the monitor sees it: boot, alive, silent, down, out.
//!
//! An OSD comes up by [`OsdBoot`]. It goes down by saying so, by its peers' reports (enough
//! of them, for long enough; at once if its port refuses connections), or, where no peer is
//! left to report, by the loss of its connection to the monitor. An OSD that stays down is
//! marked out, so that its data is copied elsewhere. Rules and option names are Ceph's.

use crate::event::{ConnId, Peer};
use crate::mon::Mon;
use crate::state::State;
use crate::work::{Reply, Work};
use spirula_encoding::UTime;
use spirula_maps::OsdMap;
use spirula_maps::osdmap::{OsdAddrs, WEIGHT_IN, flags, state};
use spirula_messages::ceph::log::severity;
use spirula_messages::cluster::control::{OsdAlive, OsdBoot, OsdFailureReport, OsdMarkMeDown, OsdPgTemp};
use spirula_types::OsdId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One reporter's complaint.
#[derive(Clone, Copy, Debug)]
struct Report {
    /// When the target last answered it.
    silent_since: UTime,
}

/// What is known of OSDs besides the map. Lost at restart, and built up again by reports.
#[derive(Debug, Default)]
pub struct OsdTracker {
    /// Target → reporter → complaint.
    failures: BTreeMap<OsdId, BTreeMap<OsdId, Report>>,
    /// OSDs whose last connection to us went away, and when.
    lost: BTreeMap<OsdId, UTime>,
    /// Open connections by OSD.
    open: BTreeMap<OsdId, u32>,
}

impl OsdTracker {
    pub(crate) fn session_opened(&mut self, peer: &Peer) {
        if let Ok(osd) = peer.id.parse::<OsdId>() {
            *self.open.entry(osd).or_insert(0) += 1;
            self.lost.remove(&osd);
        }
    }

    pub(crate) fn session_closed(&mut self, peer: &Peer, now: UTime) {
        let Ok(osd) = peer.id.parse::<OsdId>() else { return };
        if let Some(n) = self.open.get_mut(&osd) {
            *n -= 1;
            if *n == 0 {
                self.open.remove(&osd);
                self.lost.insert(osd, now);
            }
        }
    }

    /// This monitor leads from now on: OSDs that are up and connected to no monitor are watched.
    pub(crate) fn new_leader(&mut self, map: &OsdMap, now: UTime) {
        self.failures.clear();
        self.lost = map.osds().filter(|o| map.is_up(*o) && !self.open.contains_key(o)).map(|o| (o, now)).collect();
    }

    fn forget(&mut self, osd: OsdId) {
        self.failures.remove(&osd);
        for reports in self.failures.values_mut() {
            reports.remove(&osd);
        }
    }
}

/// Seconds from `since` to `now`, 0 if the clock went back.
pub(crate) fn seconds_between(since: UTime, now: UTime) -> f64 {
    (now.as_secs_f64() - since.as_secs_f64()).max(0.0)
}

fn slot<T>(list: &mut [T], osd: OsdId) -> Option<&mut T> {
    list.get_mut(usize::try_from(osd).ok()?)
}

/// Marks an OSD down in the batch. The epochs it was up are remembered by applying the map.
pub fn mark_down(work: &mut Work, osd: OsdId) {
    if work.osd().is_up(osd)
        && let Some(s) = slot(&mut work.osd_mut().osd_state, osd)
    {
        *s &= !state::UP;
    }
}

/// Marks an OSD out in the batch. With `auto`, its weight is kept for the day it returns.
pub fn mark_out(work: &mut Work, osd: OsdId, auto: bool) {
    let map = work.osd_mut();
    let old = map.weight(osd);
    if let Some(w) = slot(&mut map.osd_weight, osd) {
        *w = 0;
    }
    if auto {
        if let Some(s) = slot(&mut map.osd_state, osd) {
            *s |= state::AUTOOUT;
        }
        if let Some(x) = slot(&mut map.osd_xinfo, osd) {
            x.old_weight = old;
        }
    }
}

/// Marks an OSD in, with the weight it had before it was marked out by itself.
pub fn mark_in(work: &mut Work, osd: OsdId) {
    let map = work.osd_mut();
    let old = map.xinfo(osd).map_or(0, |x| x.old_weight);
    set_weight(map, osd, if old > 0 { old } else { WEIGHT_IN });
}

/// Sets an OSD's weight and what follows from it.
pub fn set_weight(map: &mut OsdMap, osd: OsdId, weight: u32) {
    if let Some(w) = slot(&mut map.osd_weight, osd) {
        *w = weight;
    }
    if weight != 0 {
        if let Some(s) = slot(&mut map.osd_state, osd) {
            *s &= !(state::AUTOOUT | state::NEW);
        }
        if let Some(x) = slot(&mut map.osd_xinfo, osd) {
            x.old_weight = 0;
        }
    }
}

/// Makes OSD `osd` exist, down and out and new, with identity `uuid`.
pub fn create(work: &mut Work, osd: OsdId, uuid: spirula_types::Uuid) {
    let map = work.osd_mut();
    if map.max_osd() <= osd {
        map.set_max_osd(osd + 1);
    }
    if let Some(s) = slot(&mut map.osd_state, osd) {
        *s = state::EXISTS | state::NEW;
    }
    if let Some(w) = slot(&mut map.osd_weight, osd) {
        *w = 0;
    }
    if let Some(u) = slot(&mut map.osd_uuid, osd) {
        *u = uuid;
    }
}

/// Removes OSD `osd` from the map, not from CRUSH.
pub fn remove(work: &mut Work, osd: OsdId) {
    let map = work.osd_mut();
    if let Some(s) = slot(&mut map.osd_state, osd) {
        *s = 0;
    }
    if let Some(w) = slot(&mut map.osd_weight, osd) {
        *w = 0;
    }
    if work.state.osd_metadata.contains_key(&osd) {
        Arc::make_mut(&mut work.state.osd_metadata).remove(&osd);
    }
}

/// Why an OSD may not be marked down now, if so.
pub fn down_refusal(state: &State, map: &OsdMap, osd: OsdId) -> Option<&'static str> {
    if map.has_flag(flags::NODOWN) {
        return Some("NODOWN flag set");
    }
    if map.state(osd) & state::NODOWN != 0 {
        return Some("it is marked nodown");
    }
    let (all, up, _) = map.osd_counts();
    if all == 0 || f64::from(up) / f64::from(all) < state.option_f64("mon_osd_min_up_ratio") {
        return Some("too few OSDs are up");
    }
    None
}

impl Mon {
    pub(crate) fn osd_boot(&mut self, conn: ConnId, b: OsdBoot, work: &mut Work) {
        let osd = b.osd;
        if b.fsid != self.fsid {
            tracing::warn!(osd, fsid = %b.fsid, "boot of another cluster's OSD ignored");
            return;
        }
        let map = work.osd();
        if !map.exists(osd) {
            tracing::warn!(osd, "boot of an OSD that is not in the map ignored");
            return;
        }
        let known = map.uuid(osd).unwrap_or_default();
        if !known.is_zero() && known != b.uuid {
            let text = format!("osd.{osd} boots with identity {}, the map has {known}; ignored", b.uuid);
            work.log(severity::WARN, text);
            return;
        }
        let addrs = OsdAddrs {
            client: b.public.clone(),
            cluster: b.cluster.clone(),
            hb_back: b.hb_back.clone(),
            hb_front: b.hb_front.clone(),
        };
        if map.is_up(osd) {
            if map.addrs(osd) == Some(&addrs) {
                // A repeated boot: it has only not seen the map yet.
                Self::note_metadata(work, &b);
                return;
            }
            // Another incarnation. The old one must be seen down for an epoch, so that every
            // PG it served starts a new interval.
            work.info(format!("osd.{osd} marked down: it boots anew at {}", b.public));
            mark_down(work, osd);
            self.requeue(conn, b);
            return;
        }
        if work.state.osdmap.is_up(osd) {
            // Marked down in this very batch: see above.
            self.requeue(conn, b);
            return;
        }
        if map.has_flag(flags::NOUP) || map.state(osd) & state::NOUP != 0 {
            tracing::info!(osd, "boot ignored: noup is set");
            return;
        }
        self.osds.forget(osd);
        Self::bring_up(work, &b, addrs);
        Self::place_in_crush(work, &b);
        Self::note_metadata(work, &b);
        work.info(format!("osd.{osd} {} boot", b.public));
    }

    fn bring_up(work: &mut Work, b: &OsdBoot, addrs: OsdAddrs) {
        let osd = b.osd;
        let now_state = work.osd().state(osd);
        let option = |name| work.state.option_bool(name);
        let may_in = option("mon_osd_auto_mark_in")
            || (now_state & state::AUTOOUT != 0 && option("mon_osd_auto_mark_auto_out_in"))
            || (now_state & state::NEW != 0 && option("mon_osd_auto_mark_new_in"));
        let noin = work.osd().has_flag(flags::NOIN) || now_state & state::NOIN != 0;
        let map = work.osd_mut();
        if let Some(s) = slot(&mut map.osd_state, osd) {
            *s |= state::UP | state::EXISTS;
            *s &= !(state::STOP | state::DESTROYED);
        }
        if let Some(a) = slot(&mut map.osd_addrs, osd) {
            *a = addrs;
        }
        if let Some(u) = slot(&mut map.osd_uuid, osd) {
            *u = b.uuid;
        }
        if let Some(x) = slot(&mut map.osd_xinfo, osd) {
            x.features = b.features;
        }
        if may_in && !noin && map.is_out(osd) {
            mark_in(work, osd);
        }
    }

    /// Puts an OSD that is nowhere in the tree where it asks to be.
    fn place_in_crush(work: &mut Work, b: &OsdBoot) {
        let osd = b.osd;
        let crush = &work.osd().crush;
        let wants_place = !crush.is_linked(osd) && !b.location.is_empty();
        let wants_class = !b.device_class.is_empty() && crush.class_of(osd).is_none();
        if !(wants_place || wants_class) || !work.state.option_bool("osd_crush_update_on_start") {
            return;
        }
        let weight = crush_weight_of_size(b.size_bytes);
        let edited = work.edit_crush(|c| {
            if wants_place {
                c.create_or_move(osd, weight, &format!("osd.{osd}"), &b.location)?;
            }
            if wants_class {
                c.set_device_class(osd, &b.device_class)?;
            }
            Ok::<_, spirula_crush::CrushError>(())
        });
        if let Err(e) = edited {
            tracing::warn!(osd, error = %e, "the OSD's wanted CRUSH place is not possible");
        }
    }

    fn note_metadata(work: &mut Work, b: &OsdBoot) {
        if work.state.osd_metadata.get(&b.osd) != Some(&b.metadata) {
            Arc::make_mut(&mut work.state.osd_metadata).insert(b.osd, b.metadata.clone());
        }
    }

    pub(crate) fn osd_mark_me_down(&mut self, conn: ConnId, d: &OsdMarkMeDown, work: &mut Work) {
        let osd = d.osd;
        let map = work.osd();
        if map.is_up(osd) && map.uuid(osd) == Some(d.uuid) {
            let up_from = map.info(osd).map_or(0, |i| i.up_from);
            let last = work.state.osdmap.epoch;
            mark_down(work, osd);
            if let Some(i) = slot(&mut work.osd_mut().osd_info, osd) {
                (i.last_clean_begin, i.last_clean_end) = (up_from, last);
            }
            work.info(format!("osd.{osd} marked itself down"));
        }
        self.osds.forget(osd);
        work.replies.push((conn, Reply::MarkedDown(osd)));
    }

    pub(crate) fn osd_failure(&mut self, r: &OsdFailureReport, work: &mut Work) {
        let map = work.osd();
        let stale = map.addrs(r.target).is_none_or(|a| a.client != r.target_public);
        if r.alive {
            if let Some(reports) = self.osds.failures.get_mut(&r.target) {
                reports.remove(&r.reporter);
            }
            return;
        }
        if stale || !map.is_up(r.target) || !map.is_up(r.reporter) || r.reporter == r.target {
            return;
        }
        if r.refused && work.state.option_bool("osd_fast_fail_on_connection_refused") {
            if down_refusal(&work.state, map, r.target).is_none() {
                work.info(format!("osd.{} reported immediately failed by osd.{}", r.target, r.reporter));
                mark_down(work, r.target);
                self.osds.forget(r.target);
            }
            return;
        }
        let silent_since =
            UTime::from_nanos(self.now.as_nanos().saturating_sub(r.failed_for_ms.saturating_mul(1_000_000)));
        self.osds.failures.entry(r.target).or_default().insert(r.reporter, Report { silent_since });
        self.judge(r.target, work);
    }

    /// Marks `target` down if enough of its peers have missed it for long enough.
    fn judge(&mut self, target: OsdId, work: &mut Work) {
        let map = work.osd();
        let Some(reports) = self.osds.failures.get_mut(&target) else { return };
        if !map.is_up(target) {
            self.osds.failures.remove(&target);
            return;
        }
        // A reporter that is down itself may be the one that is cut off.
        reports.retain(|osd, _| map.is_up(*osd));
        let grace = work.state.option_f64("osd_heartbeat_grace");
        let Some(since) = reports.values().map(|r| r.silent_since).max() else {
            self.osds.failures.remove(&target);
            return;
        };
        let reporters: BTreeSet<OsdId> = reports.keys().copied().collect();
        let wanted = work.state.option_u64("mon_osd_min_down_reporters").max(1) as usize;
        let level = work.state.option("mon", "mon_osd_reporter_subtree_level");
        let (have, possible) = witnesses(map, target, &reporters, &level, wanted);
        let needed = wanted.min(possible).max(1);
        let silent = seconds_between(since, self.now);
        if have < needed || silent < grace || down_refusal(&work.state, map, target).is_some() {
            return;
        }
        work.info(format!("osd.{target} failed ({have} reporters after {silent:.6} >= grace {grace:.6})"));
        mark_down(work, target);
        self.osds.forget(target);
    }

    pub(crate) fn osd_alive(a: &OsdAlive, work: &mut Work) {
        let want = a.want.min(work.state.osdmap.epoch);
        if !work.osd().is_up(a.osd) || work.osd().info(a.osd).is_none_or(|i| i.up_thru >= want) {
            return;
        }
        if let Some(i) = slot(&mut work.osd_mut().osd_info, a.osd) {
            i.up_thru = want;
        }
    }

    pub(crate) fn osd_pg_temp(t: &OsdPgTemp, work: &mut Work) {
        for (pg, acting) in &t.pgs {
            let map = work.osd();
            let exists = map.pool(pg.pool).is_some_and(|p| pg.seed < p.pg_num);
            if !exists || !map.is_up(t.osd) || acting.iter().any(|o| *o != spirula_types::OSD_NONE && !map.is_up(*o)) {
                continue;
            }
            if acting.is_empty() {
                if map.pg_temp.contains_key(pg) {
                    work.osd_mut().pg_temp.remove(pg);
                }
            } else if map.pg_temp.get(pg) != Some(acting) {
                work.osd_mut().pg_temp.insert(*pg, acting.clone());
            }
        }
    }

    /// What only time brings: reports that ripen, lost connections, OSDs to be marked out,
    /// shut-out clients to be let in again.
    pub(crate) fn tick_osds(&mut self, work: &mut Work) {
        for target in self.osds.failures.keys().copied().collect::<Vec<_>>() {
            self.judge(target, work);
        }
        self.judge_lost(work);
        self.mark_out_long_down(work);
        let now = self.now;
        if work.osd().blocklist.values().any(|until| *until <= now) {
            work.osd_mut().blocklist.retain(|_, until| *until > now);
        }
    }

    /// OSDs that nobody else can report: their connection to us is the only sign of life.
    fn judge_lost(&mut self, work: &mut Work) {
        let grace = work.state.option_f64("osd_heartbeat_grace");
        for (osd, since) in self.osds.lost.clone() {
            if !work.osd().is_up(osd) {
                self.osds.lost.remove(&osd);
                continue;
            }
            let peers = work.osd().osds().filter(|o| *o != osd && work.osd().is_up(*o));
            let watched = peers.filter(|o| self.osds.open.contains_key(o)).count() > 0;
            let silent = seconds_between(since, self.now);
            if !watched && silent >= grace && down_refusal(&work.state, work.osd(), osd).is_none() {
                work.info(format!("osd.{osd} marked down: no connection for {silent:.0} s and no peer to ask"));
                mark_down(work, osd);
                self.osds.forget(osd);
            }
        }
    }

    fn mark_out_long_down(&mut self, work: &mut Work) {
        let interval = work.state.option_f64("mon_osd_down_out_interval");
        let map = work.osd();
        if interval <= 0.0 || map.has_flag(flags::NOOUT) {
            return;
        }
        let due: Vec<OsdId> = map
            .osds()
            .filter(|o| map.is_down(*o) && map.is_in(*o) && map.state(*o) & state::NOOUT == 0)
            .filter(|o| {
                // Time during which this monitor was not running does not count: perhaps
                // nothing was.
                let down = map.xinfo(*o).map_or(UTime::ZERO, |x| x.down_stamp).max(self.judging_since);
                seconds_between(down, self.now) >= interval
            })
            .collect();
        if due.is_empty() {
            return;
        }
        let limit = work.state.option("mon", "mon_osd_down_out_subtree_limit");
        for osd in due {
            let map = work.osd();
            let (all, _, r#in) = map.osd_counts();
            if f64::from(r#in) / f64::from(all.max(1)) < work.state.option_f64("mon_osd_min_in_ratio") {
                return;
            }
            if subtree_is_down(map, osd, &limit) {
                continue;
            }
            let down = map.xinfo(osd).map_or(UTime::ZERO, |x| x.down_stamp).max(self.judging_since);
            let seconds = seconds_between(down, self.now);
            work.info(format!("Marking osd.{osd} out (has been down for {seconds:.0} seconds)"));
            mark_out(work, osd, true);
        }
    }
}

/// How many independent witnesses `reporters` are, and how many there could be. Reporters in
/// one subtree of type `level` count once; where the cluster has too few such subtrees for
/// `wanted`, every OSD counts.
fn witnesses(map: &OsdMap, target: OsdId, reporters: &BTreeSet<OsdId>, level: &str, wanted: usize) -> (usize, usize) {
    let others: Vec<OsdId> = map.osds().filter(|o| *o != target && map.is_up(*o)).collect();
    let kind = map.crush.type_id(level);
    let place = |osd: OsdId| kind.and_then(|k| map.crush.ancestor_of_type(osd, k)).unwrap_or(osd);
    let places: BTreeSet<i32> = others.iter().map(|o| place(*o)).collect();
    if places.len() >= wanted {
        let have: BTreeSet<i32> = reporters.iter().map(|o| place(*o)).collect();
        (have.len(), places.len())
    } else {
        (reporters.len(), others.len())
    }
}

/// True if the whole subtree of type `limit` around `osd` is down: then its host or rack is,
/// not the disk, and copying everything elsewhere is not what is wanted.
fn subtree_is_down(map: &OsdMap, osd: OsdId, limit: &str) -> bool {
    let Some(kind) = map.crush.type_id(limit).filter(|k| *k > 0) else { return false };
    let Some(top) = map.crush.ancestor_of_type(osd, kind) else { return false };
    map.crush.osds_under(top).iter().all(|o| map.is_down(*o))
}

/// The CRUSH weight (16.16, TiB) of a store of `bytes`; never 0 for a store that holds anything.
pub fn crush_weight_of_size(bytes: u64) -> u32 {
    let tib = bytes as f64 / (1u64 << 40) as f64;
    // Ceph rounds to four decimals, so that 10 GiB shows as 0.0098.
    let rounded = (tib * 10_000.0).round() / 10_000.0;
    let weight = (rounded.min(65_000.0) * 65_536.0) as u32;
    if bytes == 0 { 0 } else { weight.max(7) }
}
