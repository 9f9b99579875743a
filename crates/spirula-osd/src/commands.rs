//! The OSD's side of `ceph tell`: performs what [`crate::tell`] understood.

use crate::history;
use crate::osd::{OsdCore, OsdEvent};
use crate::perf::Space;
use crate::tell::{self, Answer, Tell};
use bytes::Bytes;
use serde_json::json;
use spirula_messages::ceph::{MCommand, MCommandReply};
use spirula_messages::{Body, Message, MessageError};
use spirula_pg::Pg;
use spirula_runtime::LinkId;
use spirula_settings::common;
use spirula_store::Store;
use spirula_types::transaction::{ObjectOp, Transaction};
use spirula_types::{EntityAddr, EntityType, HObject, PgId, errno};
use std::collections::VecDeque;
use std::time::Duration;

/// How Ceph calls a kind of address.
fn addr_kind(a: &EntityAddr) -> &'static str {
    match a.kind {
        EntityAddr::KIND_NONE => "none",
        EntityAddr::KIND_LEGACY => "v1",
        EntityAddr::KIND_MSGR2 => "v2",
        _ => "any",
    }
}

/// A benchmark asked for by `tell bench`.
pub(crate) struct Bench {
    link: LinkId,
    tid: u64,
    begun: Duration,
    count: u64,
    size: u64,
    object_size: u64,
    left: u64,
    under_way: VecDeque<u64>,
    number: u64,
}

impl OsdCore {
    pub(crate) fn command(&mut self, id: LinkId, m: &Message) -> Result<(), MessageError> {
        let c = MCommand::from_message(m)?;
        let answer = match tell::parse(&c.cmd) {
            Err(answer) => answer,
            Ok(t) => match self.tell(id, m.tid, t) {
                Some(answer) => answer,
                None => return Ok(()),
            },
        };
        self.answer_command(id, m.tid, answer);
        Ok(())
    }

    /// What the store held in memory is written.
    pub(crate) fn compacted(&self, link: LinkId, tid: u64, begun: Duration) {
        let took = self.now.mono.saturating_sub(begun).as_secs_f64();
        self.answer_command(link, tid, Answer::json(&json!({"elapsed_time": took})));
    }

    pub(crate) fn answer_command(&self, id: LinkId, tid: u64, a: Answer) {
        if let Some(s) = self.sessions.get(&id) {
            let reply =
                MCommandReply { result: a.result, status: a.status, output: a.output.into() };
            s.link.send_within(self.most_untold(), reply.into_message(tid));
        }
    }

    pub(crate) fn tell(&mut self, link: LinkId, tid: u64, t: Tell) -> Option<Answer> {
        Some(match t {
            Tell::Descriptions => Answer::json(&tell::descriptions()),
            Tell::Help => Answer::json(&tell::help()),
            Tell::Common(prefix, args) => {
                match spirula_settings::common::run(&prefix, &args, &mut self.cfg.settings) {
                    Some(Ok(r)) => Answer { status: r.status, ..Answer::json(&r.value) },
                    Some(Err((errno, why))) => Answer::fail(errno, why),
                    None => Answer::fail(
                        errno::EINVAL,
                        format!("command '{prefix}' is not known to this OSD"),
                    ),
                }
            }
            Tell::Status => Answer::json(&json!({
                "cluster_fsid": self.cfg.fsid.to_string(),
                "osd_fsid": self.cfg.uuid.to_string(),
                "whoami": self.cfg.id,
                "state": self.life.word(),
                "oldest_map": self.maps.oldest(),
                "cluster_osdmap_trim_lower_bound": self.maps.oldest(),
                "newest_map": self.maps.epoch(),
                "num_pgs": self.pgs.len(),
            })),
            Tell::PerfDump(args) => {
                let primaries = self.pgs.values().filter(|p| p.is_primary()).count();
                let pools = self.store.iter().flat_map(Store::pool_space).map(|(_, s)| s);
                let space =
                    Space { store: self.space().unwrap_or_default(), pools: pools.collect() };
                let all = self.perf.dump(self.pgs.len(), primaries, &space);
                Answer::json(&common::chosen(all, &args))
            }
            Tell::PerfSchema(args) => Answer::json(&common::chosen(crate::perf::schema(), &args)),
            Tell::PerfReset(name) => match name.as_str() {
                "all" | "osd" | "store" => {
                    self.perf.reset(&name);
                    Answer::json(&json!({"success": format!("perf reset {name}")}))
                }
                _ => Answer::json(&json!({"error": format!("Not find: {name}")})),
            },
            Tell::PgQuery(pgid) => match self.pg_named(&pgid) {
                Some(pg) => Answer::json(&serde_json::from_str(&pg.query()).unwrap_or_default()),
                None => Answer::fail(errno::ENOENT, format!("i don't have pgid {pgid}")),
            },
            Tell::ListUnfound(pgid, offset) => match self.pg_named(&pgid) {
                Some(pg) => {
                    let after = offset.map(|o| {
                        let text =
                            |key: &str| Bytes::from(o[key].as_str().unwrap_or_default().to_owned());
                        HObject::head(pg.id().pg.pool, text("namespace"), text("key"), text("oid"))
                    });
                    Answer::json(&pg.list_unfound(after.as_ref()))
                }
                None => Answer::fail(errno::ENOENT, format!("i don't have pgid {pgid}")),
            },
            Tell::MarkLost(pgid, revert) => self.mark_lost(&pgid, revert),
            Tell::OpsInFlight => Answer::json(&history::under_way(
                self.now.mono,
                self.now.wall,
                &self.open_ops(self.now.mono),
            )),
            Tell::BlockedOps => Answer::json(&history::blocked(
                self.now.mono,
                self.now.wall,
                &self.open_ops(self.now.mono),
            )),
            Tell::HistoricOps(by_duration) => {
                Answer::json(&self.history.dump(self.now.mono, self.now.wall, by_duration))
            }
            Tell::HistoricSlowOps => {
                Answer::json(&self.history.dump_slow(self.now.mono, self.now.wall))
            }
            Tell::Mempools => {
                let store = self.store.as_ref().map_or(0, Store::memory);
                let payload = self.outside.pool().outstanding();
                Answer::json(&common::mempools(&[
                    ("buffer_anon", payload),
                    ("bluestore_cache_other", store),
                ]))
            }
            Tell::Blocklist => {
                let map = self.maps.map();
                let rows = map.iter().flat_map(|m| &m.blocklist).map(
                    |(a, until)| json!({"entity": a.to_string(), "expire_time": until.to_iso()}),
                );
                Answer::json(&rows.collect())
            }
            Tell::MappedPools => {
                let pools: std::collections::BTreeSet<_> =
                    self.pgs.keys().map(|id| id.pg.pool).collect();
                Answer::json(&json!(pools))
            }
            Tell::ScrubReservations => Answer::json(&self.dump_scrub_reservations()),
            Tell::Devices => {
                let named = self.cfg.metadata.get("devices").map_or("", String::as_str);
                let rows = named.split(',').filter(|n| !n.is_empty());
                Answer::json(
                    &rows
                        .map(|n| json!({"device": format!("/dev/{n}"), "device_id": ""}))
                        .collect(),
                )
            }
            // As with Ceph, a device without an identity is not asked.
            Tell::Smart if self.cfg.metadata.get("device_ids").is_none_or(String::is_empty) => {
                Answer::json(&json!({}))
            }
            Tell::Smart => {
                let why = "this version reads no SMART data: use smartctl on the disks that osd \
                    metadata names";
                Answer::fail(errno::EOPNOTSUPP, why)
            }
            Tell::FlushStats => {
                let seq = self.reporter.order();
                self.report(self.now.mono);
                Answer { output: format!("{seq}\n"), ..Answer::default() }
            }
            Tell::Watchers => {
                let rows = self.pgs.values().flat_map(Pg::watchers).map(|w| {
                    let (text, who) =
                        (|b: &[u8]| String::from_utf8_lossy(b).into_owned(), w.watcher);
                    let kind = who.name.entity_type().map_or("unknown", EntityType::as_str);
                    json!({
                        "namespace": text(&w.object.namespace),
                        "object": text(&w.object.name),
                        "entity_name": {"type": kind, "num": who.name.num},
                        "cookie": who.cookie,
                        "timeout": who.timeout,
                        "entity_addr_t": json!({
                            "type": addr_kind(&who.addr),
                            "addr": who.addr.addr.map_or_else(|| "-".to_owned(), |a| a.to_string()),
                            "nonce": who.addr.nonce,
                        }),
                    })
                });
                Answer::json(&rows.collect())
            }
            Tell::Network(threshold) => Answer::json(&self.dump_network(threshold)),
            // An OSD here is nobody's client: it copies objects from others by the messages of
            // OSDs.
            Tell::OwnRequests => Answer::json(&json!({
                "ops": [], "linger_ops": [], "pool_ops": [], "pool_stat_ops": [], "statfs_ops": [], "command_ops": [],
            })),
            Tell::NoDelay => {
                let output = "set_recovery_delay: set osd_recovery_delay_start to 0".to_owned();
                Answer { output, ..Answer::default() }
            }
            Tell::CpuProfiler => Answer {
                output: "cpu_profiler support not linked in".to_owned(),
                ..Answer::default()
            },
            Tell::Absent(why) => Answer::fail(errno::EOPNOTSUPP, why),
            Tell::Compact => {
                if let Some(Err(e)) = self.store.as_mut().map(Store::flush) {
                    return Some(Answer::fail(errno::EIO, e.to_string()));
                }
                // How long that took is known when the next event is handled.
                self.outside.later(OsdEvent::Compacted { link, tid, begun: self.now.mono });
                return None;
            }
            Tell::Scheduler => Answer::json(&self.sched.dump()),
            Tell::Reservations => Answer::json(&self.sched.dump_reservations()),
            Tell::Scrubs => Answer::json(&self.dump_scrubs()),
            Tell::Backoffs => Answer::json(&self.dump_backoffs()),
            Tell::PassedStates => {
                let stand = |p: &spirula_pg::Pg| p.is_primary().then(|| p.state().0);
                Answer::json(&self.passed.dump(self.pgs.iter().map(|(id, p)| (*id, stand(p)))))
            }
            Tell::SpentStates => Answer::json(&self.passed.dump_spent()),
            Tell::ResetSpentStates => {
                self.passed.reset();
                Answer::default()
            }
            Tell::Sessions => {
                let list = self.sessions.iter().map(|(id, s)| {
                    json!({"id": id, "name": format!("{}.{}", s.peer.kind.as_str(), s.peer.id),
                        "entity": s.peer.name().to_string(), "addr": s.peer.addr().to_string()})
                });
                Answer::json(&list.collect())
            }
            Tell::Flush => {
                if let Some(store) = &mut self.store
                    && let Err(e) = store.flush()
                {
                    return Some(Answer::fail(errno::EIO, e.to_string()));
                }
                Answer::default()
            }
            Tell::CacheStatus => self.cache_status(),
            Tell::CacheDrop => self.drop_caches(),
            Tell::Queues => self.dump_queues(),
            Tell::Omap(pool, name) => self.omap_of(&pool, &name),
            Tell::Beacon if self.beacon() => Answer::default(),
            Tell::Beacon => {
                Answer::fail(errno::EAGAIN, "no monitor is connected that could be told")
            }
            Tell::Fragmentation(by_lengths) => self.fragmentation(by_lengths),
            Tell::Bench { count, size, object_size } => {
                return self.start_bench(link, tid, count, size, object_size);
            }
        })
    }

    /// The PG of this name, if we lead it.
    fn pg_named(&self, pgid: &str) -> Option<&spirula_pg::Pg> {
        PgId::parse(pgid).and_then(|id| self.led(id)).and_then(|id| self.pgs.get(&id))
    }

    /// `pg N mark_unfound_lost revert|delete`.
    fn mark_lost(&mut self, pgid: &str, revert: bool) -> Answer {
        let Some(id) = PgId::parse(pgid).and_then(|id| self.led(id)) else {
            return Answer::fail(errno::ENOENT, format!("i don't have pgid {pgid}"));
        };
        match self.pgs.get(&id).map(|p| p.may_mark_lost(revert)) {
            Some(Ok(0)) | None => {
                Answer { status: "pg has no unfound objects".to_owned(), ..Answer::default() }
            }
            Some(Ok(n)) => {
                self.feed_pg(id, spirula_pg::PgEvent::MarkLost { revert });
                let status = format!("pg has {n} objects unfound and apparently lost marking");
                Answer { status, ..Answer::default() }
            }
            Some(Err((errno, why))) => Answer::fail(errno, why),
        }
    }

    pub(crate) fn start_bench(
        &mut self,
        link: LinkId,
        tid: u64,
        count: u64,
        size: u64,
        object_size: u64,
    ) -> Option<Answer> {
        let fail = |why: String| Some(Answer::fail(errno::EINVAL, why));
        if size == 0 || count == 0 || size > 64 << 20 {
            return fail(format!(
                "bench: size {size} must be from 1 to {} and count {count} above 0",
                64 << 20
            ));
        }
        if count > 4 << 30 {
            return fail(format!("bench: count {count} is more than {} bytes", 4u64 << 30));
        }
        if self.bench.is_some() {
            return Some(Answer::fail(errno::EBUSY, "bench: one is running already"));
        }
        let bench = Bench {
            link,
            tid,
            begun: self.now.mono,
            count,
            size,
            object_size: if object_size == 0 { size } else { object_size },
            left: count,
            under_way: VecDeque::new(),
            number: 0,
        };
        self.bench = Some(bench);
        self.bench_more();
        None
    }

    pub(crate) fn bench_object(n: u64) -> HObject {
        // A pool that cannot exist: no PG lists it.
        HObject::head(-2, Bytes::new(), Bytes::new(), format!("bench-{n}").into())
    }

    pub(crate) fn bench_more(&mut self) {
        let (Some(b), Some(store)) = (&mut self.bench, &mut self.store) else { return };
        let mut failed = None;
        while b.left > 0 && b.under_way.len() < 16 {
            let n = b.size.min(b.left);
            let mut data = self.outside.pool().take(n as usize);
            data.set_len(n as usize);
            let at = b.number * b.size;
            let mut txn = Transaction::default();
            let op = ObjectOp::Write { offset: at % b.object_size, data: data.freeze() };
            txn.object(&Self::bench_object(at / b.object_size), op);
            match store.submit(txn) {
                Ok(seq) => b.under_way.push_back(seq),
                Err(e) => {
                    failed = Some(e.to_string());
                    break;
                }
            }
            b.left -= n;
            b.number += 1;
        }
        if let Some(why) = failed {
            self.bench_end(Err(why));
        }
    }

    pub(crate) fn bench_durable(&mut self, seq: u64) {
        let Some(b) = &mut self.bench else { return };
        while b.under_way.pop_front_if(|s| *s <= seq).is_some() {}
        if b.left > 0 {
            self.bench_more();
        } else if b.under_way.is_empty() {
            self.bench_end(Ok(()));
        }
    }

    pub(crate) fn bench_end(&mut self, result: Result<(), String>) {
        let Some(b) = self.bench.take() else { return };
        let seconds = self.now.mono.saturating_sub(b.begun).as_secs_f64().max(1e-9);
        if let Some(store) = &mut self.store {
            for n in 0..=(b.number * b.size) / b.object_size {
                let mut txn = Transaction::default();
                txn.object(&Self::bench_object(n), ObjectOp::Remove);
                // Left-over objects take space, no more.
                let _ = store.submit(txn);
            }
        }
        let answer = match result {
            Err(why) => Answer::fail(errno::EIO, why),
            Ok(()) => Answer::json(&json!({
                "bytes_written": b.count,
                "blocksize": b.size,
                "elapsed_sec": seconds,
                "bytes_per_sec": b.count as f64 / seconds,
                "iops": b.number as f64 / seconds,
            })),
        };
        self.answer_command(b.link, b.tid, answer);
    }
}
