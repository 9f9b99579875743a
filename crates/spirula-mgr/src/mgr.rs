//! The manager's state machine.

use crate::access;
use crate::commands::{self, Order};
use crate::event::{ConnId, MgrConfig, MgrEffect, MgrEvent, Now, Peer};
use crate::foreign::{Counters, ServiceReport};
use crate::health::{self, SlowOps};
use crate::images::Images;
use crate::passed::{Asker, Passed, Ran, Request};
use crate::pgmap::PgMap;
use crate::services::Services;
use bytes::Bytes;
use spirula_encoding::{from_slice, to_vec};
use spirula_format::IoRates;
use spirula_maps::{
    FsMap, Incremental, MgrMap, OsdMap, OsdStatReport, PgDigest, PgPool, PgStat, PoolSum,
};
use spirula_messages::ceph::{
    MCommand, MConfig, MFsMap, MMgrClose, MMgrCommand, MMgrConfigure, MMgrMap, MMgrOpen,
    MMgrReport, MOsdMap, kind,
};
use spirula_messages::cluster::control::{
    MgrBeacon, MgrDigest, MgrRan, MgrRun, MonRan, OsdReport, OsdReportAck, Since,
};
use spirula_messages::{Body, Message};
use spirula_types::{EntityName, EntityType, Epoch, OsdId, Uuid, errno};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Between life signs to the monitor.
const BEACON_EVERY: Duration = Duration::from_secs(1);
/// Between digests when nothing happens to PG states.
const DIGEST_EVERY: Duration = Duration::from_secs(1);
/// Least time between digests when it does.
const DIGEST_PROMPT: Duration = Duration::from_millis(20);
/// The same when a pool with a quota is written to.
const DIGEST_QUOTA: Duration = Duration::from_millis(100);
/// How often OSDs report when nothing changes, milliseconds.
const REPORT_PERIOD_MS: u32 = 1000;
/// How often foreign daemons (gateways) report, seconds; Ceph's default.
const FOREIGN_PERIOD: u32 = 5;
/// Bytes of an answer that goes by the monitors: between them it is one frame, half of what that
/// may have.
const PASSED_BACK: usize = 8 << 20;
/// Counters of how many reports are kept per OSD, to make rates of.
const PERF_KEPT: usize = 6;
/// Seconds after which a silent service is given up, if the option cannot be read; Ceph's default.
const SERVICE_GRACE: f64 = 60.0;

#[derive(Clone, Debug)]
struct Session {
    peer: Peer,
    /// Of a metadata server: its name, and what it counts.
    counters: Option<(String, Counters)>,
}

/// What we know of an OSD besides its statistics.
#[derive(Clone, Debug, Default)]
pub(crate) struct OsdEntry {
    uuid: Uuid,
    seq: u64,
    /// Of its OSD map.
    epoch: Epoch,
    conn: Option<ConnId>,
    slow: SlowOps,
    /// See [`OsdReport::small_paths`].
    small_paths: BTreeMap<OsdId, u8>,
    perf: VecDeque<(Duration, BTreeMap<String, u64>)>,
    /// Name of its machine.
    pub hostname: String,
    /// Options that differ from their defaults.
    pub config: BTreeMap<String, Vec<(String, String)>>,
}

impl OsdEntry {
    /// Rate per second of a counter over the reports kept.
    pub fn rate(&self, counter: &str) -> u64 {
        let (Some((t0, first)), Some((t1, last))) = (self.perf.front(), self.perf.back()) else {
            return 0;
        };
        let seconds = t1.saturating_sub(*t0).as_secs_f64();
        let (Some(a), Some(b)) = (first.get(counter), last.get(counter)) else { return 0 };
        if seconds > 0.0 { (b.saturating_sub(*a) as f64 / seconds) as u64 } else { 0 }
    }
}

/// The manager. Feed it events; do what it says.
#[derive(Debug)]
pub struct Mgr {
    pub(crate) config: MgrConfig,
    sessions: BTreeMap<ConnId, Session>,
    mon_up: bool,
    pub(crate) map: OsdMap,
    pub(crate) mgrmap: MgrMap,
    pub(crate) fsmap: FsMap,
    pub(crate) pgmap: PgMap,
    pub(crate) osds: BTreeMap<OsdId, OsdEntry>,
    /// OSDs that its process cannot run, and why.
    stopped: BTreeMap<OsdId, String>,
    pub(crate) services: Services,
    pub(crate) images: Images,
    passed: Passed,
    ran: Ran,
    next_beacon: Duration,
    last_digest: Option<Duration>,
    /// A pool with a quota was written to since.
    towards_quota: bool,
}

impl Mgr {
    /// A manager that knows nothing yet.
    pub fn new(config: MgrConfig, now: Now) -> Self {
        Self {
            config,
            sessions: BTreeMap::new(),
            mon_up: false,
            map: OsdMap::default(),
            mgrmap: MgrMap::default(),
            fsmap: FsMap::default(),
            pgmap: PgMap::default(),
            osds: BTreeMap::new(),
            stopped: BTreeMap::new(),
            services: Services::new(now),
            images: Images::default(),
            passed: Passed::default(),
            ran: Ran::default(),
            next_beacon: now.mono,
            last_digest: None,
            towards_quota: false,
        }
    }

    /// Its configuration.
    pub fn config(&self) -> &MgrConfig {
        &self.config
    }

    /// The PG map.
    pub fn pgmap(&self) -> &PgMap {
        &self.pgmap
    }

    /// Who is connected.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = (ConnId, &Peer)> {
        self.sessions.iter().map(|(conn, s)| (*conn, &s.peer))
    }

    /// Epoch of its OSD map, 0 without one.
    pub fn osdmap_epoch(&self) -> Epoch {
        self.map.epoch
    }

    /// How long the shell may wait until the next [`MgrEvent::Tick`].
    pub fn wake_after(&self, now: Now) -> Duration {
        if !self.mon_up {
            return DIGEST_EVERY;
        }
        self.next_beacon.min(self.digest_due(now.mono)).saturating_sub(now.mono)
    }

    fn digest_due(&self, now: Duration) -> Duration {
        match self.last_digest {
            // Without an OSD map there is nothing to say.
            _ if self.map.epoch == 0 => now + DIGEST_EVERY,
            None => now,
            Some(last) if self.pgmap.states_changed() || self.services.changed() => {
                last + DIGEST_PROMPT
            }
            Some(last) if self.towards_quota => last + DIGEST_QUOTA,
            Some(last) => last + DIGEST_EVERY,
        }
    }

    /// Handles one event. Never blocks; effects are to be done in order.
    pub fn handle(&mut self, now: Now, event: MgrEvent, out: &mut Vec<MgrEffect>) {
        match event {
            MgrEvent::SessionOpened { conn, peer } => {
                self.sessions.insert(conn, Session { peer, counters: None });
            }
            MgrEvent::SessionClosed { conn } => {
                self.sessions.remove(&conn);
                self.services.closed(conn);
                self.passed.closed(conn);
                for osd in self.osds.values_mut().filter(|o| o.conn == Some(conn)) {
                    osd.conn = None;
                    // Its slow operations ended with it, one way or another.
                    osd.slow = SlowOps::default();
                    osd.small_paths.clear();
                }
            }
            MgrEvent::Message { conn, message } => self.on_message(now, conn, &message, out),
            MgrEvent::MonOpened => {
                self.mon_up = true;
                self.last_digest = None;
                self.subscribe(out);
                self.beacon(now, out);
                out.extend(self.passed.again().map(MgrEffect::SendMon));
            }
            MgrEvent::MonClosed => self.mon_up = false,
            MgrEvent::Mon(message) => self.on_mon(now, &message, out),
            MgrEvent::Stopped(osds) => {
                self.stopped = osds;
                // At once: somebody looks for the reason.
                self.last_digest = None;
            }
            MgrEvent::Read { call, result, ops } => {
                self.images.names(now.mono, call, result, &ops);
                self.read_names(now, out);
            }
            MgrEvent::Tick => {}
        }
        self.pgmap.sample(now.mono);
        self.passed.expire(now, out);
        self.talk_to_mon(now, out);
    }

    fn talk_to_mon(&mut self, now: Now, out: &mut Vec<MgrEffect>) {
        if !self.mon_up {
            return;
        }
        if self.next_beacon <= now.mono {
            self.beacon(now, out);
        }
        if self.digest_due(now.mono) <= now.mono {
            self.send_digest(now, out);
        }
    }

    fn subscribe(&self, out: &mut Vec<MgrEffect>) {
        let from = |epoch: Epoch| if epoch == 0 { 0 } else { u64::from(epoch) + 1 };
        out.push(MgrEffect::Subscribe("config", 0));
        out.push(MgrEffect::Subscribe("mgrmap", from(self.mgrmap.epoch)));
        out.push(MgrEffect::Subscribe("osdmap", from(self.map.epoch)));
        out.push(MgrEffect::Subscribe("fsmap", from(self.fsmap.epoch)));
    }

    fn beacon(&mut self, now: Now, out: &mut Vec<MgrEffect>) {
        self.next_beacon = now.mono + BEACON_EVERY;
        // With every one: a monitor that was away, or is new, has them within a beacon's time.
        let commands = commands::descriptors();
        let body = MgrBeacon {
            fsid: self.config.fsid,
            gid: self.config.gid,
            name: self.config.name.clone(),
            addr: self.config.addrs.clone(),
            available: true,
            modules: [
                "balancer",
                "crash",
                "devicehealth",
                "iostat",
                "pg_autoscaler",
                "progress",
                "status",
            ]
            .map(str::to_owned)
            .to_vec(),
            services: BTreeMap::new(),
            commands,
            metadata: self.config.metadata.clone(),
        };
        out.push(MgrEffect::SendMon(body.into_message(0)));
    }

    fn send_digest(&mut self, now: Now, out: &mut Vec<MgrEffect>) {
        self.last_digest = Some(now.mono);
        self.towards_quota = false;
        self.pgmap.take_states_changed();
        let grace = self
            .config
            .settings
            .get("mgr_service_beacon_grace")
            .and_then(|v| v.parse().ok())
            .unwrap_or(SERVICE_GRACE);
        self.services.expire(now, Duration::try_from_secs_f64(grace).unwrap_or(Duration::MAX));
        self.services.take_changed();
        let digest = self.digest();
        let slow = self.osds.iter().map(|(id, o)| (*id, o.slow)).collect();
        let paths = self
            .osds
            .iter()
            .flat_map(|(id, o)| o.small_paths.iter().map(|(to, nets)| ((*id, *to), *nets)));
        let paths = paths.collect();
        let mut health = health::checks(
            &self.pgmap,
            &digest,
            &self.map,
            &slow,
            &paths,
            &self.config.settings,
            now.wall,
        );
        health.extend(health::stopped(&self.stopped));
        let body = MgrDigest {
            gid: self.config.gid,
            stamp: now.wall,
            health,
            digest: to_vec(&digest).into(),
            service_map: to_vec(self.services.map()).into(),
            progress: BTreeMap::new(),
        };
        out.push(MgrEffect::SendMon(body.into_message(0)));
    }

    fn on_mon(&mut self, now: Now, m: &Message, out: &mut Vec<MgrEffect>) {
        match m.kind {
            kind::OSD_MAP => match MOsdMap::from_message(m) {
                Ok(body) => self.on_osdmap(now, &body, out),
                Err(e) => tracing::warn!("osd map from the monitor: {e}"),
            },
            kind::MGR_MAP => {
                let map = MMgrMap::from_message(m)
                    .ok()
                    .and_then(|b| from_slice::<MgrMap>(&b.mgrmap).ok());
                match map {
                    Some(map) => self.mgrmap = map,
                    None => tracing::warn!("unreadable manager map from the monitor"),
                }
            }
            kind::FS_MAP => {
                match MFsMap::from_message(m).ok().and_then(|b| from_slice::<FsMap>(&b.map).ok()) {
                    Some(map) => self.fsmap = map,
                    None => tracing::warn!("unreadable file-system map from the monitor"),
                }
            }
            kind::CONFIG => match MConfig::from_message(m) {
                Ok(body) => self.config.settings.set_central(&body.config.into_iter().collect()),
                Err(e) => tracing::warn!("configuration from the monitor: {e}"),
            },
            MgrRun::KIND => match MgrRun::from_message(m) {
                Ok(ask) => self.on_run(now, ask, out),
                Err(e) => tracing::warn!("command from the monitor: {e}"),
            },
            MonRan::KIND => match MonRan::from_message(m) {
                Ok(ran) => out.extend(self.passed.ran(ran)),
                Err(e) => tracing::warn!("answer of the monitor: {e}"),
            },
            other => tracing::trace!("message type {other} from the monitor ignored"),
        }
    }

    fn on_osdmap(&mut self, now: Now, body: &MOsdMap, out: &mut Vec<MgrEffect>) {
        let before = self.map.epoch;
        for (epoch, bytes) in &body.fulls {
            if *epoch > self.map.epoch {
                match spirula_maps::EncodedOsdMap::from_bytes(bytes.clone()) {
                    Ok(map) => self.map = map.into_map(),
                    Err(e) => tracing::warn!("osd map {epoch}: {e}"),
                }
            }
        }
        let mut gap = false;
        for (epoch, bytes) in &body.incrementals {
            if *epoch <= self.map.epoch {
                continue;
            }
            let applied = *epoch == self.map.epoch + 1
                && from_slice::<Incremental>(bytes).is_ok_and(|inc| {
                    // On a copy: a refused step must leave the map whole.
                    let mut next = self.map.clone();
                    let ok = next.apply(&inc).is_ok();
                    if ok {
                        self.map = next;
                        self.pgmap.follow_removals(&self.map);
                    }
                    ok
                });
            if !applied {
                gap = true;
                break;
            }
        }
        if gap && self.mon_up {
            // Start over from the newest full map.
            out.push(MgrEffect::Subscribe("osdmap", 0));
        }
        if self.map.epoch != before {
            self.pgmap.follow(&self.map, now.wall);
            let map = &self.map;
            self.osds.retain(|id, _| map.exists(*id));
        }
    }

    fn on_message(&mut self, now: Now, conn: ConnId, m: &Message, out: &mut Vec<MgrEffect>) {
        let Some(session) = self.sessions.get(&conn) else { return };
        if let Some(answer) = access::refused(&session.peer, m) {
            tracing::debug!(
                "message type {} from {} refused: it has no right to it",
                m.kind,
                self.peer_name(conn)
            );
            out.extend(answer.map(|m| MgrEffect::Send(conn, m)));
            return;
        }
        match m.kind {
            OsdReport::KIND => match OsdReport::from_message(m) {
                Ok(report) => self.on_report(now, conn, report, out),
                Err(e) => {
                    tracing::warn!("report from {}: {e}", self.peer_name(conn));
                    out.push(MgrEffect::Close(conn));
                }
            },
            kind::MGR_COMMAND => match MMgrCommand::from_message(m) {
                Ok(body) => self.on_command(
                    now,
                    Asker { conn, tid: m.tid, kind: m.kind },
                    body.cmd,
                    body.input,
                    out,
                ),
                Err(e) => {
                    tracing::debug!("command from {}: {e}", self.peer_name(conn));
                    out.push(MgrEffect::Close(conn));
                }
            },
            kind::COMMAND => match MCommand::from_message(m) {
                Ok(body) => {
                    let asker = Asker { conn, tid: m.tid, kind: m.kind };
                    // Clients up to Nautilus send the manager's commands in this form,
                    // without a cluster id; newer ones only `tell`.
                    if body.fsid.is_zero() {
                        self.on_command(now, asker, body.cmd, body.input, out);
                    } else {
                        let r = commands::tell(self, now, &body.cmd);
                        self.follow(now, &r, out);
                        out.push(asker.answer(r.ret, r.rs, r.data.into()));
                    }
                }
                Err(e) => {
                    tracing::debug!("command from {}: {e}", self.peer_name(conn));
                    out.push(MgrEffect::Close(conn));
                }
            },
            kind::MGR_OPEN => {
                match MMgrOpen::from_message(m) {
                    Ok(open) => self.services.open(now, conn, &session.peer, &open),
                    Err(e) => tracing::debug!("introduction of {}: {e}", self.peer_name(conn)),
                }
                let body = MMgrConfigure { period: FOREIGN_PERIOD, threshold: FOREIGN_PERIOD };
                out.push(MgrEffect::Send(conn, body.into_message(0)));
            }
            kind::MGR_CLOSE => match MMgrClose::from_message(m) {
                Ok(body) => {
                    self.services.close(now, conn, &body.service_name, &body.daemon_name);
                    out.push(MgrEffect::Send(conn, body.into_message(m.tid)));
                }
                Err(_) => out.push(MgrEffect::Close(conn)),
            },
            kind::MGR_REPORT => self.on_foreign_report(now, conn, m, out),
            other => tracing::debug!("message type {other} from {} ignored", self.peer_name(conn)),
        }
    }

    /// A command for the cluster's active manager, which its asker may have.
    fn on_command(
        &mut self,
        now: Now,
        asker: Asker,
        cmd: Vec<String>,
        input: Bytes,
        out: &mut Vec<MgrEffect>,
    ) {
        if !commands::are_monitors(&cmd) {
            let r = commands::run(self, now, &cmd, None);
            self.follow(now, &r, out);
            out.push(asker.answer(r.ret, r.rs, r.data.into()));
            return;
        }
        let Some(session) = self.sessions.get(&asker.conn) else { return };
        match self.passed.take(now, asker, &session.peer, cmd, input) {
            // Without a session it goes out with the next one.
            Ok(m) if self.mon_up => out.push(MgrEffect::SendMon(m)),
            Ok(_) => {}
            Err((errno, why)) => out.push(asker.answer(-errno, why, Bytes::new())),
        }
    }

    /// A monitor's client asked for one of the manager's commands, and may have it.
    fn on_run(&mut self, now: Now, ask: MgrRun, out: &mut Vec<MgrEffect>) {
        // The leader asks again where no answer comes for some seconds, be it that this manager is
        // slow, or that the answer was lost; and so does the client, over another connection.
        if let Some(ran) = self.ran.find(&ask) {
            out.push(MgrEffect::SendMon(ran.into_message(0)));
            return;
        }
        // A monitor passes on no command of its own: it would come back.
        let (limited, names) = &ask.only_fs.0;
        let r = commands::run(self, now, &ask.cmd, limited.then_some(names.as_slice()));
        self.follow(now, &r, out);
        let r = if r.data.len() > PASSED_BACK {
            let bytes = r.data.len();
            commands::Reply::err(
                errno::E2BIG,
                format!(
                    "the answer has {bytes} bytes, monitors pass on {PASSED_BACK}: ask the manager \
                        itself"
                ),
            )
        } else {
            r
        };
        let request = Request::of(&ask);
        let MgrRun { boot, id, cmd, .. } = ask;
        let ran = MgrRan { boot, id, result: r.ret, status: r.rs, output: r.data.into() };
        if commands::is_order(&cmd) {
            self.ran.keep(request, &ran);
        }
        out.push(MgrEffect::SendMon(ran.into_message(0)));
    }

    /// What a daemon of Ceph's counts, of metadata servers, and how it is, of services. Nothing
    /// here asks for others' counters.
    fn on_foreign_report(&mut self, now: Now, conn: ConnId, m: &Message, out: &mut Vec<MgrEffect>) {
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        let Ok(report) = MMgrReport::from_message(m) else { return };
        let said = ServiceReport::of(&report.rest);
        if session.peer.name.kind != EntityType::Mds as u8 {
            match said {
                Ok(said) => {
                    if !self.services.report(now, conn, &report.daemon_name, said)
                        && self.services.is_forgotten(conn)
                    {
                        out.push(MgrEffect::Close(conn));
                    }
                }
                Err(e) => tracing::debug!("report of {}: {e}", self.peer_name(conn)),
            }
            return;
        }
        if let Ok(ServiceReport { tasks: Some(tasks), .. }) = said {
            self.services.works(now, conn, &report.daemon_name, tasks);
        }
        let (name, counters) = session.counters.get_or_insert_with(Default::default);
        *name = report.daemon_name;
        if let Err(e) = counters.report(now.mono, &report.rest) {
            tracing::debug!("counters of mds.{name}: {e}");
        }
    }

    /// What a metadata server counts.
    pub(crate) fn counters_of(&self, mds: &str) -> Option<&Counters> {
        self.sessions
            .values()
            .rev()
            .filter_map(|s| s.counters.as_ref())
            .find(|(name, _)| name == mds)
            .map(|(_, c)| c)
    }

    /// Does what follows from a command.
    fn follow(&mut self, now: Now, r: &commands::Reply, out: &mut Vec<MgrEffect>) {
        self.give_orders(&r.orders, out);
        if r.counts_images {
            self.images.ask(now.mono);
        }
    }

    fn read_names(&mut self, now: Now, out: &mut Vec<MgrEffect>) {
        out.extend(self.images.look(now.mono).map(MgrEffect::Read));
    }

    /// Passes orders on. OSDs are known by the connections over which they report.
    fn give_orders(&self, orders: &[(OsdId, Order)], out: &mut Vec<MgrEffect>) {
        for (osd, order) in orders {
            if let Some(conn) = self.osds.get(osd).and_then(|o| o.conn) {
                let message = match order.clone() {
                    Order::Scrub(o) => o.into_message(0),
                    Order::Force(o) => o.into_message(0),
                };
                out.push(MgrEffect::Send(conn, message));
            }
        }
    }

    /// Is this OSD connected?
    pub(crate) fn hears(&self, osd: OsdId) -> bool {
        self.osds.get(&osd).is_some_and(|o| o.conn.is_some())
    }

    fn peer_name(&self, conn: ConnId) -> String {
        self.sessions.get(&conn).map_or_else(|| "nobody".to_owned(), |s| s.peer.name.to_string())
    }

    fn on_report(&mut self, now: Now, conn: ConnId, report: OsdReport, out: &mut Vec<MgrEffect>) {
        let osd = report.osd;
        let named = self.sessions.get(&conn).map(|s| s.peer.name);
        if named != Some(EntityName::osd(osd)) {
            tracing::warn!(
                "statistics of osd.{osd} from {}, who is somebody else",
                self.peer_name(conn)
            );
            out.push(MgrEffect::Close(conn));
            return;
        }
        let stat = match from_slice::<OsdStatReport>(&report.stat) {
            Ok(stat) if osd >= 0 => stat,
            _ => {
                tracing::warn!("unreadable statistics of osd.{osd} from {}", self.peer_name(conn));
                out.push(MgrEffect::Close(conn));
                return;
            }
        };
        let mut pgs = Vec::with_capacity(report.pgs.len());
        for (pg, bytes) in &report.pgs {
            match from_slice::<PgStat>(bytes) {
                Ok(s) => pgs.push((*pg, s)),
                Err(e) => tracing::warn!("statistics of pg {pg} from osd.{osd}: {e}"),
            }
        }
        let quota = |p: &PgPool| p.quota_max_bytes > 0 || p.quota_max_objects > 0;
        self.towards_quota |= pgs.iter().any(|(pg, _)| self.map.pool(pg.pool).is_some_and(quota));
        self.pgmap.report(&self.map, now.wall, osd, stat, pgs);

        let entry = self.osds.entry(osd).or_default();
        // Deltas build on what the same run of the OSD sent us before.
        let known = entry.uuid == report.uuid && entry.seq > 0 && entry.seq < report.seq;
        if !known {
            entry.perf.clear();
        }
        entry.uuid = report.uuid;
        entry.seq = report.seq;
        entry.epoch = report.epoch;
        entry.conn = Some(conn);
        entry.slow = SlowOps { count: report.slow_ops, oldest_ms: report.slow_oldest_ms };
        entry.small_paths = report.small_paths;
        entry.hostname = report.hostname;
        entry.config = report.config;
        entry.perf.push_back((now.mono, report.perf));
        while entry.perf.len() > PERF_KEPT {
            entry.perf.pop_front();
        }
        let ack = OsdReportAck {
            seq: report.seq,
            period_ms: REPORT_PERIOD_MS,
            want_full: !known && !report.full,
            count_images_ms: Since(self.images.wanted_ms(now.mono)),
        };
        out.push(MgrEffect::Send(conn, ack.into_message(0)));
        self.images.report(now.mono, osd, report.images.0);
        self.read_names(now, out);
    }

    /// What clients and recovery do now, over all pools.
    pub(crate) fn io_rates(&self) -> IoRates {
        rates_of(&self.pgmap.digest(&self.map).pool_sum())
    }

    /// The digest of this moment.
    pub(crate) fn digest(&self) -> PgDigest {
        let mut digest = self.pgmap.digest(&self.map);
        // An OSD that lags takes the maps one by one.
        let lagging = self
            .osds
            .iter()
            .filter(|(id, o)| self.map.is_up(**id) && o.epoch > 0)
            .map(|(_, o)| o.epoch);
        digest.oldest_needed = lagging.fold(digest.oldest_needed, Epoch::min);
        digest
    }
}

/// A sum's rates, as they are put into words.
pub(crate) fn rates_of(sum: &PoolSum) -> IoRates {
    IoRates {
        read_bytes: sum.read_bytes_sec,
        write_bytes: sum.write_bytes_sec,
        reads: sum.read_ops_sec,
        writes: sum.write_ops_sec,
        recovered_bytes: sum.recover_bytes_sec,
        recovered_objects: sum.recover_objects_sec,
        recovered_keys: sum.recover_keys_sec,
    }
}
