//! `ceph pg N query`: everything a PG knows of itself, in the shape of Ceph's answer.

use crate::pg::{Pg, Role};
use serde_json::{Value, json};
use spirula_messages::cluster::pg::{PastInterval, PgInfo};
use spirula_types::Peer;

impl Pg {
    /// As JSON text.
    pub fn query(&self) -> String {
        let (state, by) = self.state();
        let (mut up, mut acting, mut epoch) = (Vec::new(), Vec::new(), 0);
        if let Some(v) = &self.view {
            (up, acting, epoch) = (v.places(&v.up), v.places(&v.acting), v.epoch);
        }
        let targets: Vec<String> = self
            .active()
            .map_or_else(Vec::new, |a| a.peers.iter().filter(|(_, p)| !p.acting).map(|(o, _)| o.to_string()).collect());
        let members: Vec<String> = match self.active() {
            Some(a) => std::iter::once(&self.me).chain(a.peers.keys()).map(ToString::to_string).collect(),
            None => self.view.iter().flat_map(|v| &v.acting).map(ToString::to_string).collect(),
        };
        json!({
            "snap_trimq": "[]",
            "snap_trimq_len": 0,
            "state": state.to_string(),
            "epoch": epoch,
            "up": up,
            "acting": acting,
            "backfill_targets": targets,
            "acting_recovery_backfill": members,
            "info": self.info.as_ref().map_or(Value::Null, |i| self.info_json(i, &state.to_string())),
            "peer_info": self.peer_info(),
            "recovery_state": self.recovery_state(&by),
            "agent_state": {},
        })
        .to_string()
    }

    fn info_json(&self, i: &PgInfo, state: &str) -> Value {
        let c = &i.head.counts;
        let mut stats = self.stat.last.dump(self.id);
        if let Some(stats) = stats.as_object_mut() {
            stats.insert("state".into(), state.into());
            stats.insert("version".into(), i.last_update().to_string().into());
        }
        let complete = match self.missing.iter().map(|(_, m)| m.need).min() {
            Some(first) => crate::log::before(&self.log, first),
            None => i.last_update(),
        };
        json!({
            "pgid": i.pg.to_string(),
            "last_update": i.last_update().to_string(),
            "last_complete": complete.to_string(),
            "log_tail": i.log_tail().to_string(),
            "last_user_version": i.head.last_user_version,
            "last_backfill": if i.is_whole() { "MAX".to_owned() } else { format!("{:?}", i.last_backfill) },
            "purged_snaps": [],
            "history": {
                "epoch_created": i.created,
                "epoch_pool_created": i.created,
                "last_epoch_started": i.history_les,
                "last_interval_started": i.history_les,
                "last_epoch_clean": i.lec,
                "last_interval_clean": i.lec,
                "same_interval_since": self.interval.since,
                "same_up_since": self.interval.since,
                "same_primary_since": self.primary_since,
            },
            "stats": stats,
            "num_objects": c.objects,
            "num_bytes": c.bytes,
            "empty": i32::from(i.last_update().version == 0),
            "dne": 0,
            "incomplete": i32::from(!i.is_whole()),
            "last_epoch_started": i.les,
            "missing": self.missing.len(),
        })
    }

    fn peer_info(&self) -> Vec<Value> {
        match &self.role {
            Role::Peering(p) => p
                .infos()
                .filter(|(o, _)| *o != self.me)
                .map(|(o, i)| {
                    json!({
                        "peer": o.to_string(),
                        "last_update": i.map(|i| i.last_update().to_string()),
                        "log_tail": i.map(|i| i.log_tail().to_string()),
                        "last_epoch_started": i.map(|i| i.les),
                        "incomplete": i.map(|i| i32::from(!i.is_whole())),
                        "dne": i32::from(i.is_none()),
                    })
                })
                .collect(),
            Role::Active(a) => a
                .peers
                .iter()
                .map(|(o, p)| {
                    json!({
                        "peer": o.to_string(),
                        "incomplete": i32::from(!p.last_backfill.max),
                        "last_backfill":
                            if p.last_backfill.max { "MAX".to_owned() } else { format!("{:?}", p.last_backfill) },
                        "missing": p.missing.len(),
                        "dne": 0,
                    })
                })
                .collect(),
            _ => Vec::new(),
        }
    }

    fn recovery_state(&self, by: &[Peer]) -> Value {
        let past: Vec<Value> = self.past.iter().map(interval_json).collect();
        match &self.role {
            Role::Active(a) => json!([{
                "name": if a.clean {
                    "Started/Primary/Active/Clean"
                } else if a.activated {
                    "Started/Primary/Active"
                } else {
                    "Started/Primary/Active/Activating"
                },
                "might_have_unfound": self.strays.keys().map(|o| json!({"osd": o.to_string()})).collect::<Vec<_>>(),
                "recovery_progress": {
                    "objects_under_way": a.recovery.under_way(),
                    "unfound": a.recovery.unfound.len(),
                },
                "writes_in_flight": a.inflight(),
                "requests_held": self.ops.len(),
                "past_intervals": past,
            }]),
            Role::Peering(p) => json!([{
                "name": p.step(),
                "past_intervals": past,
                "probing_osds": p.prior().probe.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "down_osds_we_would_probe": p.prior().down.iter().map(|o| o.osd).collect::<Vec<_>>(),
                "peering_blocked_by": by.iter().map(|o| json!({"osd": o.osd})).collect::<Vec<_>>(),
                "requests_held": self.ops.len(),
            }]),
            Role::Replica { .. } => json!([{"name": "Started/ReplicaActive"}]),
            Role::Idle => json!([{"name": "Started/Stray"}]),
            Role::Removing => json!([{"name": "Started/ToDelete/Deleting"}]),
        }
    }
}

fn interval_json(i: &PastInterval) -> Value {
    json!({
        "first": i.first.to_string(),
        "last": i.last.to_string(),
        "up": i.up.iter().map(|o| o.osd).collect::<Vec<_>>(),
        "acting": i.acting.iter().map(|o| o.osd).collect::<Vec<_>>(),
        "primary": i.primary.osd,
        "maybe_went_rw": i32::from(i.rw),
    })
}
