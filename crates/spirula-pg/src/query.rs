//! `ceph pg N query`: everything that a PG knows of itself, in the shape of Ceph's answer, key by
//! key as 16.2 prints it. What Ceph has no word for stands beside it (`requests_held`,
//! `writes_in_flight`).

use crate::peering::Peering;
use crate::pg::Pg;
use crate::primary::Primary;
use crate::role::Role;
use serde_json::{Map, Value, json};
use spirula_messages::cluster::pg::{PastInterval, PgInfo};
use spirula_types::{EVersion, HObject, Peer, SpgId};
use std::collections::BTreeMap;

/// One copy's information, as far as its primary knows it.
struct Copy<'a> {
    shard: i8,
    last_update: EVersion,
    last_complete: EVersion,
    log_tail: EVersion,
    last_user_version: u64,
    last_backfill: &'a HObject,
    /// Its last activation.
    les: spirula_types::Epoch,
    /// It has no such PG.
    absent: bool,
}

impl Pg {
    /// As JSON text.
    pub fn query(&self) -> String {
        let (state, by) = self.state();
        let (mut up, mut acting, mut epoch) = (Vec::new(), Vec::new(), 0);
        if let Some(v) = &self.core.view {
            (up, acting, epoch) = (v.places(&v.up), v.places(&v.acting), v.epoch);
        }
        let mut out = Map::new();
        out.insert("snap_trimq".into(), "[]".into());
        out.insert("snap_trimq_len".into(), 0.into());
        out.insert("state".into(), state.to_string().into());
        out.insert("epoch".into(), epoch.into());
        out.insert("up".into(), up.into());
        out.insert("acting".into(), acting.into());
        let targets = self.primary().map(backfill_targets).unwrap_or_default();
        if !targets.is_empty() {
            out.insert("backfill_targets".into(), targets.into());
        }
        let mut members: Vec<Peer> = match self.primary() {
            Some(a) => std::iter::once(&self.core.me).chain(a.peers.keys()).copied().collect(),
            None => self.core.view.iter().flat_map(|v| &v.acting).copied().collect(),
        };
        members.sort_unstable();
        members.dedup();
        let members: Vec<String> = members.iter().map(ToString::to_string).collect();
        out.insert("acting_recovery_backfill".into(), members.into());
        out.insert(
            "info".into(),
            self.core.info().map_or(Value::Null, |i| self.own_info(i, &state.to_string())),
        );
        out.insert("peer_info".into(), self.peer_info().into());
        out.insert("recovery_state".into(), self.recovery_state(&by));
        out.insert("scrubber".into(), self.scrubber());
        out.insert("agent_state".into(), json!({}));
        Value::from(out).to_string()
    }

    /// Name of the step the PG is at, as `pg N list_unfound` prints it: the innermost, alone.
    pub(crate) fn step_name(&self) -> &'static str {
        let name = match &self.role {
            Role::Primary(a) => return a.recovery.rest_name().unwrap_or("Active"),
            Role::Peering(p) => p.step(),
            _ => return "Inactive",
        };
        name.rsplit('/').next().unwrap_or(name)
    }

    fn scrubber(&self) -> Value {
        let active = self.primary().is_some_and(|p| p.scrub.is_running());
        json!({"epoch_start": if active { self.core.interval().since } else { 0 }.to_string(), "active": active})
    }

    /// What all copies have in common, as the primary knows it.
    fn history(&self) -> Value {
        let Some(i) = self.core.info() else { return json!({}) };
        json!({
            "epoch_created": i.created,
            "epoch_pool_created": i.created,
            "last_epoch_started": i.history_les,
            "last_interval_started": i.history_les,
            "last_epoch_clean": i.lec,
            "last_interval_clean": if i.lec >= self.core.interval().since { self.core.interval().since } else { i.lec },
            "last_epoch_split": if i.origin == i.pg { 0 } else { i.created },
            "last_epoch_marked_full": 0,
            "same_up_since": self.core.interval().since,
            "same_interval_since": self.core.interval().since,
            "same_primary_since": self.core.primary_since,
            "last_scrub": i.scrub.last.to_string(),
            "last_scrub_stamp": i.scrub.last_stamp.to_iso(),
            "last_deep_scrub": i.scrub.last_deep.to_string(),
            "last_deep_scrub_stamp": i.scrub.last_deep_stamp.to_iso(),
            "last_clean_scrub_stamp": i.scrub.last_clean_stamp.to_iso(),
            "prior_readable_until_ub": 0,
        })
    }

    /// A copy's information, after `first`.
    fn info_json(&self, mut first: Map<String, Value>, c: &Copy<'_>, stats: Value) -> Value {
        let empty = c.last_update.version == 0;
        for (key, value) in [
            ("pgid", SpgId::new(self.core.id, c.shard).to_string().into()),
            ("last_update", c.last_update.to_string().into()),
            ("last_complete", c.last_complete.to_string().into()),
            ("log_tail", c.log_tail.to_string().into()),
            ("last_user_version", c.last_user_version.into()),
            ("last_backfill", c.last_backfill.to_string().into()),
            ("purged_snaps", json!([])),
            ("history", self.history()),
            ("stats", stats),
            ("empty", i32::from(empty).into()),
            ("dne", i32::from(c.absent).into()),
            ("incomplete", i32::from(!c.last_backfill.max).into()),
            ("last_epoch_started", c.les.into()),
            ("hit_set_history", json!({"current_last_update": "0'0", "history": []})),
        ] {
            first.insert(key.into(), value);
        }
        first.into()
    }

    fn own_info(&self, i: &PgInfo, state: &str) -> Value {
        let mut stats = self.stats_json();
        if let Some(stats) = stats.as_object_mut() {
            stats.insert("state".into(), state.into());
            stats.insert("version".into(), i.last_update().to_string().into());
            if let Some(a) = self.primary() {
                let (whole, places) = self.whereabouts(a);
                stats.insert("avail_no_missing".into(), whole.into());
                stats.insert("object_location_counts".into(), places.into());
            }
        }
        let complete =
            self.complete(i.last_update(), self.core.missing().iter().map(|(_, m)| m.need).min());
        self.info_json(
            Map::new(),
            &Copy { last_complete: complete, ..copy_of(self.core.me.shard, i) },
            stats,
        )
    }

    fn stats_json(&self) -> Value {
        let mut stats = self.stat.last.dump(self.core.id);
        if let Some(stats) = stats.as_object_mut() {
            stats.remove("pgid");
        }
        stats
    }

    /// Up to where a copy has everything that its log names.
    fn complete(&self, last_update: EVersion, first_missing: Option<EVersion>) -> EVersion {
        first_missing.map_or(last_update, |first| crate::log::before(self.core.log(), first))
    }

    /// Acting members that lack nothing, and how many objects are at which members, those of the
    /// log's missing objects among them.
    fn whereabouts(&self, a: &Primary) -> (Vec<String>, Vec<Value>) {
        let none = crate::missing::Missing::default();
        let acting: Vec<Peer> = self.core.view.iter().flat_map(|v| &v.acting).copied().collect();
        let missing = |p: Peer| match a.peers.get(&p) {
            Some(peer) if peer.acting => Some(&peer.missing),
            None if p == self.core.me => Some(self.core.missing()),
            _ => None,
        };
        let whole = acting.iter().filter(|p| missing(**p).is_some_and(|m| m.is_empty()));
        let whole: Vec<String> = whole.map(ToString::to_string).collect();
        let mut sorted = acting;
        sorted.sort_unstable();
        let mut lacking: std::collections::BTreeSet<&HObject> = std::collections::BTreeSet::new();
        sorted
            .iter()
            .for_each(|p| lacking.extend(missing(*p).unwrap_or(&none).iter().map(|(o, _)| o)));
        let names = |at: &mut dyn Iterator<Item = Peer>| {
            at.map(|p| p.to_string()).collect::<Vec<_>>().join(",")
        };
        let mut places: BTreeMap<String, i64> = BTreeMap::new();
        for o in &lacking {
            let mut at =
                sorted.iter().copied().filter(|p| missing(*p).is_some_and(|m| !m.contains(o)));
            *places.entry(names(&mut at)).or_insert(0) += 1;
        }
        let objects = self.core.info().map_or(0, |i| i.head.counts.objects);
        let everywhere = objects - lacking.len() as i64;
        if everywhere > 0 {
            *places.entry(names(&mut sorted.into_iter())).or_insert(0) += everywhere;
        }
        (whole, places.into_iter().map(|(at, n)| json!({"shards": at, "objects": n})).collect())
    }

    fn peer_info(&self) -> Vec<Value> {
        let head = |p: Peer| Map::from_iter([("peer".to_owned(), Value::from(p.to_string()))]);
        let nothing = HObject::default();
        let absent = |p: Peer| Copy {
            shard: p.shard,
            last_update: EVersion::default(),
            last_complete: EVersion::default(),
            log_tail: EVersion::default(),
            last_user_version: 0,
            last_backfill: &nothing,
            les: 0,
            absent: true,
        };
        let stats = self.stats_json();
        match &self.role {
            Role::Peering(p) => p
                .infos()
                .filter(|(o, _)| *o != self.core.me)
                .map(|(o, i)| {
                    let c = i.map_or_else(|| absent(o), |i| copy_of(o.shard, i));
                    self.info_json(head(o), &c, stats.clone())
                })
                .collect(),
            Role::Primary(a) => {
                let Some(own) = self.core.info() else { return Vec::new() };
                let member = |(o, p): (&Peer, &crate::primary::PeerState)| {
                    let durable = a
                        .replicas
                        .iter()
                        .find(|(r, _)| r == o)
                        .map_or(own.last_update(), |(_, at)| *at);
                    let c = Copy {
                        shard: o.shard,
                        last_update: durable,
                        last_complete: self
                            .complete(durable, p.missing.iter().map(|(_, m)| m.need).min()),
                        last_backfill: &p.last_backfill,
                        les: self.core.interval().since,
                        ..copy_of(o.shard, own)
                    };
                    self.info_json(head(*o), &c, stats.clone())
                };
                let strays = self.strays.iter().filter(|(o, _)| !a.peers.contains_key(o));
                let strays = strays.map(|(o, (i, _))| {
                    self.info_json(head(*o), &copy_of(o.shard, i), stats.clone())
                });
                a.peers.iter().map(member).chain(strays).collect()
            }
            _ => Vec::new(),
        }
    }

    fn recovery_state(&self, by: &[Peer]) -> Value {
        let started = json!({"name": "Started", "enter_time": self.core.interval_stamp.to_iso()});
        match &self.role {
            Role::Primary(a) => json!([self.active_state(a), started]),
            Role::Peering(p) => {
                let mut states = vec![self.peering_step(p)];
                if p.step().starts_with(PEERING) {
                    states.push(self.peering_state(p, by));
                }
                states.push(started);
                states.into()
            }
            Role::Replica(_) => json!([{"name": "Started/ReplicaActive"}, started]),
            Role::Idle(_) => json!([{"name": "Started/Stray"}, started]),
            Role::Removing(_) => json!([{"name": "Started/ToDelete/Deleting"}, started]),
        }
    }

    fn active_state(&self, a: &Primary) -> Value {
        let might: Vec<Value> = a.might_have_unfound(&self.core, &self.strays);
        json!({
            "name": ACTIVE,
            "enter_time": a.entered.to_iso(),
            "might_have_unfound": might,
            "recovery_progress": {
                "backfill_targets": backfill_targets(a),
                "waiting_on_backfill": [],
                "last_backfill_started": a.recovery.first_backfill().to_string(),
                "backfill_info": {"begin": "MIN", "end": "MIN", "objects": []},
                "peer_backfill_info": [],
                "backfills_in_flight": a.recovery.backfills_under_way(),
                "recovering": a.recovery.under_way(),
                "pg_backend": {"pull_from_peer": [], "pushing": []},
            },
            "writes_in_flight": a.inflight(),
            "requests_held": self.requests.len(),
        })
    }

    fn peering_step(&self, p: &Peering) -> Value {
        let mut out = Map::new();
        out.insert("name".into(), p.step().into());
        out.insert("enter_time".into(), p.entered.to_iso().into());
        if let Some(comment) = p.comment() {
            out.insert("comment".into(), comment.into());
        }
        if p.is_asking() {
            let asked = p.prior().probe.iter().filter(|o| **o != self.core.me);
            let asked: Vec<Value> = asked.map(|o| json!({"osd": o.to_string()})).collect();
            out.insert("requested_info_from".into(), asked.into());
        }
        out.insert("requests_held".into(), self.requests.len().into());
        out.into()
    }

    fn peering_state(&self, p: &Peering, by: &[Peer]) -> Value {
        let mut out = Map::new();
        out.insert("name".into(), PEERING.into());
        out.insert("enter_time".into(), p.entered.to_iso().into());
        out.insert("past_intervals".into(), past_json(self.core.past()).into());
        let probing: Vec<String> = p.prior().probe.iter().map(ToString::to_string).collect();
        out.insert("probing_osds".into(), probing.into());
        let blocked = p.prior().blocked_by.is_some();
        if blocked {
            out.insert("blocked".into(), "peering is blocked due to down osds".into());
        }
        let mut down: Vec<i32> = p.prior().down.keys().map(|o| o.osd).collect();
        down.sort_unstable();
        down.dedup();
        out.insert("down_osds_we_would_probe".into(), down.into());
        let lost_at = |o: &Peer| {
            self.core.view.as_ref().and_then(|v| v.osds.get(&o.osd)).map_or(0, |o| o.lost_at)
        };
        let by = by.iter().filter(|_| blocked).map(|o| {
            json!({
                "osd": o.osd,
                "current_lost_at": lost_at(o),
                "comment": "starting or marking this osd lost may let us proceed",
            })
        });
        out.insert("peering_blocked_by".into(), by.collect::<Vec<_>>().into());
        if p.is_bound() {
            let detail = json!([{"detail": "peering_blocked_by_history_les_bound"}]);
            out.insert("peering_blocked_by_detail".into(), detail);
        }
        out.into()
    }
}

const ACTIVE: &str = "Started/Primary/Active";
const PEERING: &str = "Started/Primary/Peering";

fn backfill_targets(a: &Primary) -> Vec<String> {
    a.peers
        .iter()
        .filter(|(_, p)| !p.acting || !p.last_backfill.max)
        .map(|(o, _)| o.to_string())
        .collect()
}

fn copy_of(shard: i8, i: &PgInfo) -> Copy<'_> {
    Copy {
        shard,
        last_update: i.last_update(),
        last_complete: if i.missing > 0 { EVersion::default() } else { i.last_update() },
        log_tail: i.log_tail(),
        last_user_version: i.head.last_user_version,
        last_backfill: &i.last_backfill,
        les: i.les,
        absent: false,
    }
}

/// The past intervals in one, as Ceph keeps them: who took part in any, and those that may have
/// taken writes.
fn past_json(past: &[PastInterval]) -> Vec<Value> {
    let (Some(first), Some(last)) = (past.first(), past.last()) else { return Vec::new() };
    let mut all: Vec<Peer> = past.iter().flat_map(|i| &i.acting).copied().collect();
    all.sort_unstable();
    all.dedup();
    let member = |p: &Peer| match p.shard {
        shard if shard >= 0 => json!({"osd": p.osd, "shard": shard}),
        _ => json!({"osd": p.osd}),
    };
    let intervals = past.iter().filter(|i| i.rw).map(|i| {
        let mut acting = i.acting.clone();
        acting.sort_unstable();
        let acting: Vec<String> = acting.iter().map(ToString::to_string).collect();
        json!({"first": i.first.to_string(), "last": i.last.to_string(), "acting": acting.join(",")})
    });
    vec![json!({
        "first": first.first.to_string(),
        "last": last.last.to_string(),
        "all_participants": all.iter().map(member).collect::<Vec<_>>(),
        "intervals": intervals.collect::<Vec<_>>(),
    })]
}
