//! An OSD's life as the monitor sees it: made, boot, alive, down by its own word, in and out.
//!
//! An OSD comes up by [`OsdBoot`]. Without its word it goes down by what others say of it:
//! see [`crate::failure`].

use crate::event::ConnId;
use crate::failure;
use crate::mon::Mon;
use crate::pairs::Wish;
use crate::state::Metadata;
use crate::state::osdmaps::OSDMAP_MAX;
use crate::work::{Reply, Work};
use spirula_encoding::UTime;
use spirula_maps::osdmap::{MAX_OSDS, OsdAddrs, WEIGHT_IN, flags, state};
use spirula_maps::{OsdMap, PgState};
use spirula_messages::ceph::log::severity;
use spirula_messages::cluster::BETWEEN_OSDS;
use spirula_messages::cluster::control::{OsdAlive, OsdBoot, OsdMarkMeDown, OsdPgTemp};
use spirula_types::errno::ERANGE;
use spirula_types::{Epoch, OSD_NONE, OsdId};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Seconds from `since` to `now`, 0 if the clock went back.
pub(crate) fn seconds_between(since: UTime, now: UTime) -> f64 {
    (now.as_secs_f64() - since.as_secs_f64()).max(0.0)
}

pub(crate) fn slot<T>(list: &mut [T], osd: OsdId) -> Option<&mut T> {
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

/// Marks an OSD down whose process is known to be gone, or to serve nothing any more. Others need
/// not wait for the read leases that it held.
pub fn mark_dead(work: &mut Work, osd: OsdId) {
    mark_down(work, osd);
    let (epoch, now) = (work.next_epoch(), work.now);
    if let Some(x) = slot(&mut work.osd_mut().osd_xinfo, osd) {
        // The record replaces the map's, so it brings the stamp that applying would have set.
        (x.dead_epoch, x.down_stamp) = (epoch, now);
    }
}

/// An OSD that is down and lives says so itself, and that it serves nothing any more: others need
/// not wait for the read leases that it held.
fn note_quiet(work: &mut Work, b: &OsdBoot) {
    let (map, epoch) = (work.osd(), work.next_epoch());
    let (Some(info), Some(x)) = (map.info(b.osd), map.xinfo(b.osd)) else { return };
    let same = map.addrs(b.osd).is_some_and(|a| a.client == b.public);
    if !same || b.quiet == 0 || b.quiet < info.down_at || x.dead_epoch > info.up_from {
        return;
    }
    if let Some(x) = slot(&mut work.osd_mut().osd_xinfo, b.osd) {
        x.dead_epoch = epoch;
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

/// Refuses a map with room for more OSDs than `mon_max_osd`: each takes its bytes in every map,
/// whether it is there or not.
///
/// # Errors
/// ERANGE.
pub fn check_room(work: &Work, max_osd: i64) -> Result<(), (i32, String)> {
    let most = work.state.option_u64("mon_max_osd").min(MAX_OSDS as u64);
    if u64::try_from(max_osd).is_ok_and(|n| n <= most) {
        return Ok(());
    }
    Err((ERANGE, format!("cannot set max_osd to {max_osd} which is > conf.mon_max_osd ({most})")))
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

/// Why an OSD may not come up: it and one that is up do not understand what OSDs say to each other,
/// so that no PG that both are to serve would be active again. `None` if it may.
fn foreign_to(work: &Work, b: &OsdBoot) -> Option<String> {
    let (map, known) = (work.osd(), &work.state.osd_metadata);
    let said = |m: &Metadata, key: &str| m.get(key).cloned().unwrap_or_default();
    let words = said(&b.metadata, BETWEEN_OSDS);
    let is_other = |o: &OsdId| *o != b.osd && map.is_up(*o);
    let (other, theirs) =
        known.iter().find(|(o, m)| is_other(o) && said(m, BETWEEN_OSDS) != words)?;
    let version = |m| said(m, "ceph_version");
    Some(format!(
        "osd.{} ({}) may not come up: it and osd.{other} ({}) do not read each other's messages; \
            all OSDs must be of one version",
        b.osd,
        version(&b.metadata),
        version(theirs)
    ))
}

/// Why an OSD may not come up whose data is given up for lost: others may have gone on without it
/// since. Its key is gone, too; but not every OSD needs one (`--no-auth`, OSDs of the monitor's own
/// process), and an administrator may make it anew.
fn is_destroyed(map: &OsdMap, osd: OsdId) -> Option<String> {
    let why = || {
        format!(
            "osd.{osd} may not come up: it was destroyed ('ceph osd destroy'); its number is for a \
                new OSD ('spirula osd recreate {osd}', \
             or 'ceph osd new UUID {osd}' for a store that is made for it)"
        )
    };
    (map.state(osd) & state::DESTROYED != 0).then(why)
}

/// Did an OSD say this, by a map of that epoch, before it was up last? Then it comes late, by way
/// of a monitor that kept it for whoever leads: it is of a life that is over. Where an OSD itself
/// knows no newer map, it says it again when it does.
fn is_of_an_older_life(map: &OsdMap, osd: OsdId, epoch: Epoch) -> bool {
    map.info(osd).is_some_and(|i| epoch < i.up_from)
}

/// Bytes by which a place and a class of an OSD may make a map larger.
const PLACE_ROOM: usize = 64 << 10;

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
            let text =
                format!("osd.{osd} boots with identity {}, the map has {known}; ignored", b.uuid);
            work.log(severity::WARN, text);
            return;
        }
        let addrs = OsdAddrs {
            client: b.public.clone(),
            cluster: b.cluster.clone(),
            hb_back: b.hb_back.clone(),
            hb_front: b.hb_front.clone(),
        };
        if map.is_up(osd) && map.addrs(osd) == Some(&addrs) {
            // A repeated boot: it has only not seen the map yet.
            Self::note_metadata(work, &b);
            return;
        }
        if is_of_an_older_life(map, osd, b.newest_map) {
            tracing::info!(
                osd,
                epoch = b.newest_map,
                "boot from before the OSD was up last, ignored"
            );
            return;
        }
        if map.is_up(osd) {
            if !work.state.osdmap.is_up(osd) {
                // Its boot came in this very batch. Which of the two is the later one shows when it
                // is known since when it is up.
                self.requeue(conn, b);
                return;
            }
            // Another incarnation. The old one must be seen down for an epoch, so that every
            // PG it served starts a new interval.
            // Two processes of one host cannot have one store open: the old one is gone.
            let ip = |a: &spirula_types::AddrVec| a.msgr2().addr.map(|a| a.ip());
            let same_host = map.addrs(osd).is_some_and(|a| ip(&a.client) == ip(&b.public));
            work.info(format!("osd.{osd} marked down: it boots anew at {}", b.public));
            if same_host && b.was_up == 0 {
                mark_dead(work, osd);
            } else {
                mark_down(work, osd);
            }
            self.requeue(conn, b);
            return;
        }
        if work.state.osdmap.is_up(osd) {
            // Marked down in this very batch: see above.
            self.requeue(conn, b);
            return;
        }
        if let Some(why) = is_destroyed(map, osd).or_else(|| foreign_to(work, &b)) {
            // It asks again, every few seconds.
            if self.osds.refused.get(&osd) != Some(&why) {
                work.log(severity::WARN, why.clone());
                self.osds.refused.insert(osd, why);
            }
            return;
        }
        self.osds.refused.remove(&osd);
        let map = work.osd();
        if map.has_flag(flags::NOUP) || map.held(osd) & state::NOUP != 0 {
            tracing::info!(osd, "boot ignored: noup is set");
            return;
        }
        let says = |state| self.mgr.knowledge.digest.pg_states.keys().any(|s| s.has(state));
        let wish = Wish {
            osd,
            was_up: b.was_up > 0,
            unheard: b.unheard.iter().copied().filter(|o| *o != osd && map.is_up(*o)).collect(),
            healthy: b.healthy,
            starved: says(PgState::DOWN) || says(PgState::INCOMPLETE),
            wanting: says(PgState::RECOVERY_UNFOUND) || says(PgState::BACKFILL_UNFOUND),
            map,
        };
        if !self.osds.pairs.may_boot(wish, self.steady) {
            note_quiet(work, &b);
            return;
        }
        self.osds.forget(osd);
        // One that others did not hear was not marked down for nothing: more patience with it would
        // only let requests wait for longer the next time.
        if !self.osds.pairs.was_deaf(osd) {
            let grace = work.state.option_f64("osd_heartbeat_grace");
            let lived = b.was_up > 0 && f64::from(b.stood_ms.0) < grace * 1000.0;
            failure::note_return(work, osd, lived);
        }
        self.osds.pairs.booted(osd, self.steady);
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
        let noin = work.osd().has_flag(flags::NOIN) || work.osd().held(osd) & state::NOIN != 0;
        let map = work.osd_mut();
        if let Some(s) = slot(&mut map.osd_state, osd) {
            *s |= state::UP | state::EXISTS;
            *s &= !state::STOP;
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

    /// Puts an OSD that is nowhere in the tree where it asks to be, and gives one without a device
    /// class that of its disk.
    fn place_in_crush(work: &mut Work, b: &OsdBoot) {
        let osd = b.osd;
        let crush = &work.osd().crush;
        let may_place = work.state.option_bool("osd_crush_update_on_start");
        let may_class = work.state.option("osd", "osd_class_update_on_start") != "false";
        let wants_place = may_place && !crush.is_linked(osd) && !b.location.is_empty();
        let wants_class = may_class && !b.device_class.is_empty() && crush.class_of(osd).is_none();
        if !(wants_place || wants_class) {
            return;
        }
        if work.state.osdmap.bytes().len() > OSDMAP_MAX - PLACE_ROOM {
            tracing::warn!(
                osd,
                "the OSD map is too large for the OSD's place and class to be added: it comes up \
                    without"
            );
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
        let late = is_of_an_older_life(map, osd, d.epoch);
        let ours = map.is_up(osd) && map.uuid(osd) == Some(d.uuid) && !late;
        if let Some(why) = failure::held_up(map, osd).filter(|_| ours) {
            // As in Ceph: it may go, and the map says that it is up.
            work.info(format!("osd.{osd} stops and stays up in the map: {why}"));
        } else if ours {
            let up_from = map.info(osd).map_or(0, |i| i.up_from);
            let last = work.state.osdmap.epoch;
            mark_dead(work, osd);
            if let Some(i) = slot(&mut work.osd_mut().osd_info, osd) {
                (i.last_clean_begin, i.last_clean_end) = (up_from, last);
            }
            work.info(format!("osd.{osd} marked itself down"));
        }
        self.osds.forget(osd);
        work.replies.push((conn, Reply::MarkedDown(osd)));
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

    /// A primary wants another acting set. Only the word of who leads the PG by the newest map
    /// counts, as with Ceph: of two wishes of different intervals it cannot be told which is the
    /// newer one, and no OSD decides about PGs that it does not lead.
    pub(crate) fn osd_pg_temp(t: &OsdPgTemp, work: &mut Work) {
        for (pg, acting) in &t.pgs {
            let map = work.osd();
            let Some(pool) = map.pool(pg.pool).filter(|p| pg.seed < p.pg_num) else { continue };
            let osds: Vec<OsdId> = acting.iter().copied().filter(|o| *o != OSD_NONE).collect();
            // Of an erasure-coded PG one OSD may hold two shards, after its places moved.
            let twice =
                !pool.is_erasure() && osds.iter().collect::<BTreeSet<_>>().len() < osds.len();
            let absurd = acting.len() > usize::from(pool.size)
                || twice
                || (osds.is_empty() && !acting.is_empty());
            if absurd || !map.is_up(t.osd) || osds.iter().any(|o| !map.is_up(*o)) {
                continue;
            }
            if map.pg_to_up_acting(*pg).acting_primary != t.osd {
                tracing::debug!(%pg, osd = t.osd, "wish of an OSD that does not lead the PG \
                    ignored");
                continue;
            }
            let have = map.pg_temp.get(pg);
            if have.map_or(&[][..], Vec::as_slice) == acting {
                continue;
            }
            let epoch = work.next_epoch();
            let map = work.osd_mut();
            if acting.is_empty() {
                map.pg_temp.remove(pg);
            } else {
                map.pg_temp.insert(*pg, acting.clone());
            }
            // The new primary would have to ask for this before it serves. That it is on record
            // from the first is no less safe (nobody will take the interval for one without
            // writes), and clients wait for one epoch less.
            let primary = map.pg_to_up_acting(*pg).acting_primary;
            if let Some(i) = slot(&mut map.osd_info, primary) {
                i.up_thru = epoch;
            }
        }
    }
}

/// The CRUSH weight (16.16, TiB) of a store of `bytes`; never 0 for a store that holds anything.
pub fn crush_weight_of_size(bytes: u64) -> u32 {
    let tib = bytes as f64 / (1u64 << 40) as f64;
    // Ceph rounds to four decimals, so that 10 GiB shows as 0.0098.
    let rounded = (tib * 10_000.0).round() / 10_000.0;
    let weight = (rounded.min(65_000.0) * 65_536.0) as u32;
    if bytes == 0 { 0 } else { weight.max(7) }
}
