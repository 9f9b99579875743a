//! What a PG reports of itself: statistics for the manager, `pg query` for people.

use crate::pg::{Pg, Role};
use spirula_encoding::UTime;
use spirula_maps::{ObjectStatSum, PgStat, PgState};
use spirula_messages::cluster::pg::PgInfo;
use spirula_types::OsdId;
use std::fmt::Write;

/// What reports remember from one to the next.
#[derive(Debug, Default)]
pub(crate) struct StatState {
    last: PgStat,
}

impl Pg {
    /// State bits, and the OSDs that are in the way of more.
    pub fn state(&self) -> (PgState, Vec<OsdId>) {
        let (mut state, by) = match &self.role {
            Role::Active(_) => (PgState::ACTIVE, Vec::new()),
            Role::Peering(p) => p.state(),
            _ => return (PgState::UNKNOWN, Vec::new()),
        };
        let Some(view) = &self.view else { return (state, by) };
        let size = view.pool.as_ref().map_or(0, |p| p.size);
        if view.acting.len() < size {
            state |= PgState::UNDERSIZED | PgState::DEGRADED;
        } else if matches!(self.role, Role::Active(_)) {
            state |= PgState::CLEAN;
        }
        if view.up != view.acting {
            state |= PgState::REMAPPED;
        }
        if matches!(self.role, Role::Active(_)) && self.waits_for_lease() {
            state |= PgState::LAGGY;
        }
        (state, by)
    }

    /// The report of a primary, stamped `now`. Each call counts as a report.
    pub fn stat(&mut self, now: UTime) -> PgStat {
        let (state, blocked_by) = self.state();
        let mut s = std::mem::take(&mut self.stat.last);
        s.touch(now, state);
        s.blocked_by = blocked_by;
        s.reported_seq += 1;
        if let Some(view) = &self.view {
            s.reported_epoch = view.epoch;
            s.up.clone_from(&view.up);
            s.acting.clone_from(&view.acting);
            s.up_primary = view.up_primary;
            s.acting_primary = view.primary;
            if state.has(PgState::CLEAN) {
                s.last_epoch_clean = view.epoch;
            }
        }
        s.mapping_epoch = self.interval;
        s.log_start = self.log.tail();
        s.log_size = self.log.len() as i64;
        if let Some(info) = &self.info {
            s.version = info.last_update;
            s.created = info.created;
            s.parent = if info.origin == info.pg { Default::default() } else { info.origin };
            s.stats = self.sum(info);
        }
        self.stat.last = s.clone();
        s
    }

    fn sum(&self, info: &PgInfo) -> ObjectStatSum {
        let c = &info.counts;
        let (size, have) = match &self.view {
            Some(v) => (v.pool.as_ref().map_or(0, |p| p.size) as i64, v.acting.len() as i64),
            None => (0, 0),
        };
        ObjectStatSum {
            num_bytes: c.bytes,
            num_objects: c.objects,
            num_object_copies: c.objects * size,
            num_objects_degraded: c.objects * (size - have).max(0),
            num_rd: c.reads,
            num_rd_kb: c.read_kb,
            num_wr: c.writes,
            num_wr_kb: c.written_kb,
            num_objects_dirty: c.objects,
            num_objects_omap: c.omap_objects,
            num_omap_bytes: c.omap_bytes,
            num_omap_keys: c.omap_keys,
            ..ObjectStatSum::default()
        }
    }

    /// Everything `pg query` shows, as JSON text.
    pub fn query(&self) -> String {
        let (state, by) = self.state();
        let mut o = String::from("{");
        let _ = write!(o, "\"pgid\":\"{}\",\"state\":\"{state}\",\"blocked_by\":{by:?},", self.id);
        if let Some(v) = &self.view {
            let _ = write!(o, "\"epoch\":{},\"up\":{:?},\"acting\":{:?},", v.epoch, v.up, v.acting);
            let _ = write!(o, "\"primary\":{},", v.primary);
        }
        let role = match &self.role {
            Role::Idle => "stray",
            Role::Replica { .. } => "replica",
            Role::Peering(_) => "peering",
            Role::Active(_) => "active",
            Role::Removing => "removing",
        };
        let _ = write!(o, "\"role\":\"{role}\",\"interval_start\":{},\"promised\":{},", self.interval, self.promised);
        let _ = write!(o, "\"log_size\":{},\"requests_held\":{},", self.log.len(), self.ops.len());
        if let Role::Active(a) = &self.role {
            let _ = write!(o, "\"writes_in_flight\":{},\"last_committed\":\"{}\",", a.inflight(), a.committed);
        }
        let _ = write!(o, "\"info\":{},\"peer_info\":[", self.info.as_ref().map_or("null".into(), info_json));
        if let Role::Peering(p) = &self.role {
            let list: Vec<String> = p
                .infos()
                .map(|(osd, i)| format!("{{\"osd\":{osd},\"info\":{}}}", i.map_or("null".into(), info_json)))
                .collect();
            o.push_str(&list.join(","));
        }
        o.push_str("]}");
        o
    }
}

fn info_json(i: &PgInfo) -> String {
    let seal = match &i.seal {
        Some(s) => format!("{{\"epoch\":{},\"home\":{:?}}}", s.epoch, s.home),
        None => "null".into(),
    };
    format!(
        "{{\"last_update\":\"{}\",\"log_tail\":\"{}\",\"last_user_version\":{},\"last_epoch_started\":{},\
         \"last_primary\":{},\"home\":{:?},\"seal\":{seal},\"complete\":{},\"confirmed\":{},\"epoch_created\":{},\
         \"pg_num\":{},\"num_objects\":{},\"num_bytes\":{}}}",
        i.last_update,
        i.log_tail,
        i.last_user_version,
        i.les,
        i.primary,
        i.home,
        i.complete,
        i.confirmed,
        i.created,
        i.pg_num,
        i.counts.objects,
        i.counts.bytes
    )
}
