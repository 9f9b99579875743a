//! Daemons that work beside the cluster (gateways, mirror daemons): who has introduced itself, and
//! how it said it is.
//!
//! A daemon is here from its introduction until it says goodbye or has said nothing for a while
//! (`mgr_service_beacon_grace`, a minute): a connection that is lost is made anew well before that.
//! One connection introduces one daemon, and its words count as long as nobody introduces that
//! daemon by another. Whoever was given up and speaks again by the same connection (its machine was
//! suspended) is told to come anew by losing that. Nothing is kept on disk: to a new manager
//! daemons introduce themselves again. What all of them may tell together is bounded.

use crate::event::{ConnId, Now, Peer};
use crate::foreign::ServiceReport;
use spirula_maps::{Facts, ServiceEntry, ServiceMap};
use spirula_messages::ceph::MMgrOpen;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Daemons at most.
const DAEMONS_MAX: usize = 1000;
/// Bytes of a kind's name, and of a daemon's, at most: they are lines that people read.
const NAME_MAX: usize = 256;
/// Bytes of one daemon's facts, and of its name, at most.
const BYTES_MAX: usize = 64 << 10;
/// Bytes of all daemons' facts and names at most: they go to the monitors every second.
const ALL_BYTES_MAX: usize = 2 << 20;

/// Kind of service and name of a daemon.
type Name = (String, String);

#[derive(Clone, Debug)]
struct Heard {
    /// `None`: it is closed.
    conn: Option<ConnId>,
    at: Duration,
}

/// The daemons and their connections.
#[derive(Debug)]
pub(crate) struct Services {
    map: ServiceMap,
    /// Of all that are in the map.
    heard: BTreeMap<Name, Heard>,
    /// Open connections whose daemon was given up.
    forgotten: BTreeSet<ConnId>,
    changed: bool,
}

fn bytes(facts: &Facts) -> usize {
    facts.iter().map(|(k, v)| k.len() + v.len() + 8).sum()
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= NAME_MAX && !text.chars().any(char::is_control)
}

fn size(d: &ServiceEntry) -> usize {
    bytes(&d.metadata) + bytes(&d.status) + bytes(&d.task_status)
}

impl Services {
    /// None yet.
    pub fn new(now: Now) -> Self {
        let map = ServiceMap { epoch: 1, modified: now.wall, services: BTreeMap::new() };
        Self { map, heard: BTreeMap::new(), forgotten: BTreeSet::new(), changed: false }
    }

    /// The map.
    pub fn map(&self) -> &ServiceMap {
        &self.map
    }

    /// Has one come or gone, or told another status, since this was asked?
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// See [`Self::take_changed`].
    pub fn changed(&self) -> bool {
        self.changed
    }

    fn next_epoch(&mut self, now: Now) {
        self.map.epoch += 1;
        self.map.modified = now.wall;
        self.changed = true;
    }

    /// Is there room for facts of this size instead of what this daemon has told?
    fn fits(&self, name: &Name, new: usize) -> bool {
        let all = self
            .map
            .services
            .iter()
            .flat_map(|(kind, ds)| ds.iter().map(move |(n, d)| (kind, n, d)));
        let others = all.filter(|(kind, n, _)| (*kind, *n) != (&name.0, &name.1));
        let others: usize = others.map(|(kind, n, d)| kind.len() + n.len() + size(d)).sum();
        let whole = new + name.0.len() + name.1.len();
        whole <= BYTES_MAX && others + whole <= ALL_BYTES_MAX
    }

    /// Somebody introduces itself. Who is no daemon of a service, or tells too much, is not noted.
    pub fn open(&mut self, now: Now, conn: ConnId, peer: &Peer, open: &MMgrOpen) {
        let Some(service) = &open.service else { return };
        if !is_name(&open.service_name) || !is_name(&open.daemon_name) {
            tracing::debug!(conn, "a service without a name that can be shown is not noted");
            return;
        }
        let name = (open.service_name.clone(), open.daemon_name.clone());
        let known = self.heard.contains_key(&name);
        let room = known || self.heard.len() < DAEMONS_MAX;
        if !room || !self.fits(&name, bytes(&service.metadata) + bytes(&service.status)) {
            tracing::warn!(
                "service {}.{} is not noted: it, or all of them, tell too much",
                name.0,
                name.1
            );
            return;
        }
        self.leave_all(now, conn, &name);
        let gid = u64::try_from(peer.name.num).unwrap_or_default();
        let entry =
            self.map.services.entry(name.0.clone()).or_default().entry(name.1.clone()).or_default();
        let new = !known || entry.gid != gid;
        if new {
            *entry = ServiceEntry {
                gid,
                start_epoch: self.map.epoch + 1,
                start_stamp: now.wall,
                ..Default::default()
            };
        }
        entry.addr = peer.addrs.0.first().copied();
        entry.metadata.clone_from(&service.metadata);
        entry.status.clone_from(&service.status);
        entry.last_beacon = now.wall;
        self.heard.insert(name, Heard { conn: Some(conn), at: now.mono });
        self.forgotten.remove(&conn);
        if new {
            self.next_epoch(now);
        }
        self.changed = true;
    }

    /// A daemon tells how it is; `true` if it is one of those that introduced themselves by this
    /// connection.
    pub fn report(&mut self, now: Now, conn: ConnId, daemon: &str, report: ServiceReport) -> bool {
        let name = (report.service, daemon.to_owned());
        let Some(heard) = self.heard.get_mut(&name).filter(|h| h.conn == Some(conn)) else {
            return false;
        };
        heard.at = now.mono;
        let Some(entry) = self.map.services.get(&name.0).and_then(|ds| ds.get(&name.1)) else {
            return false;
        };
        let mut next = ServiceEntry { last_beacon: now.wall, ..entry.clone() };
        let mut changed = false;
        if let Some(status) = report.status {
            changed |= status != next.status;
            next.status = status;
            next.status_stamp = now.wall;
        }
        if let Some(tasks) = report.tasks {
            changed |= tasks != next.task_status;
            next.task_status = tasks;
        }
        if !self.fits(&name, size(&next)) {
            tracing::warn!(
                "the status of service {}.{} is not noted: it is too long",
                name.0,
                name.1
            );
        } else if let Some(entry) =
            self.map.services.get_mut(&name.0).and_then(|ds| ds.get_mut(&name.1))
        {
            *entry = next;
            self.changed |= changed;
        }
        true
    }

    /// A daemon says goodbye.
    pub fn close(&mut self, now: Now, conn: ConnId, service: &str, daemon: &str) {
        let name = (service.to_owned(), daemon.to_owned());
        if self.heard.get(&name).is_some_and(|h| h.conn == Some(conn)) {
            self.leave(now, &name);
        }
    }

    /// A metadata server says what it works at. It does not introduce itself: the file-system map
    /// tells of it.
    pub fn works(&mut self, now: Now, conn: ConnId, server: &str, tasks: Facts) {
        let name = ("mds".to_owned(), server.to_owned());
        let room = self.heard.contains_key(&name) || self.heard.len() < DAEMONS_MAX;
        if !is_name(server) || !room || !self.fits(&name, bytes(&tasks)) {
            tracing::warn!(
                "what mds.{server} works at is not noted: it, or all services, tell too much"
            );
            return;
        }
        let new =
            self.heard.insert(name.clone(), Heard { conn: Some(conn), at: now.mono }).is_none();
        let entry = self.map.services.entry(name.0).or_default().entry(name.1).or_default();
        if new || entry.task_status != tasks {
            entry.task_status = tasks;
            self.next_epoch(now);
        }
    }

    /// Those that have been silent for longer than `grace` go.
    pub fn expire(&mut self, now: Now, grace: Duration) {
        let silent = |h: &Heard| now.mono.saturating_sub(h.at) > grace;
        let gone: Vec<Name> =
            self.heard.iter().filter(|(_, h)| silent(h)).map(|(n, _)| n.clone()).collect();
        for name in gone {
            self.forgotten.extend(self.heard.get(&name).and_then(|h| h.conn));
            self.leave(now, &name);
        }
    }

    /// A connection is closed. Its daemon may come by another.
    pub fn closed(&mut self, conn: ConnId) {
        self.forgotten.remove(&conn);
        self.heard.values_mut().filter(|h| h.conn == Some(conn)).for_each(|h| h.conn = None);
    }

    /// Was the daemon given up that introduced itself by this connection? It does so again only by
    /// a new one.
    pub fn is_forgotten(&self, conn: ConnId) -> bool {
        self.forgotten.contains(&conn)
    }

    fn leave_all(&mut self, now: Now, conn: ConnId, but: &Name) {
        let others = self.heard.iter().filter(|(n, h)| h.conn == Some(conn) && *n != but);
        let others: Vec<Name> = others.map(|(n, _)| n.clone()).collect();
        others.iter().for_each(|n| self.leave(now, n));
    }

    fn leave(&mut self, now: Now, name: &Name) {
        self.heard.remove(name);
        if let Some(daemons) = self.map.services.get_mut(&name.0) {
            daemons.remove(&name.1);
            if daemons.is_empty() {
                self.map.services.remove(&name.0);
            }
        }
        self.next_epoch(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_encoding::UTime;
    use spirula_messages::ceph::ServiceDaemon;
    use spirula_types::{AddrVec, EntityName, EntityType};

    const GRACE: Duration = Duration::from_secs(60);

    fn at(s: u64) -> Now {
        Now { mono: Duration::from_secs(s), wall: UTime::from_nanos(s * 1_000_000_000) }
    }

    fn peer(num: i64) -> Peer {
        let name = EntityName::new(EntityType::Client, num);
        Peer {
            name,
            global_id: 4711,
            auth_id: "u".into(),
            addrs: AddrVec::default(),
            place: None,
            caps: None,
        }
    }

    fn of(name: &str, value: &str) -> MMgrOpen {
        let metadata = Facts::from([("hostname".into(), value.into())]);
        let service = Some(ServiceDaemon { metadata, status: Facts::new() });
        MMgrOpen {
            daemon_name: name.into(),
            service_name: "rbd-mirror".into(),
            service,
            ..MMgrOpen::default()
        }
    }

    fn names(s: &Services) -> Vec<&str> {
        s.map.services.values().flat_map(|d| d.keys().map(String::as_str)).collect()
    }

    fn says(text: &str) -> ServiceReport {
        let status = Some(Facts::from([("json".into(), text.into())]));
        ServiceReport { service: "rbd-mirror".into(), status, tasks: None }
    }

    #[test]
    fn a_daemon_is_there_until_it_leaves_or_is_silent() {
        let mut s = Services::new(at(0));
        s.open(at(1), 7, &peer(4100), &of("1", "h"));
        s.open(at(1), 8, &peer(4101), &of("2", "h"));
        assert!(s.take_changed() && !s.take_changed());
        assert_eq!((names(&s), s.map.epoch), (vec!["1", "2"], 3));
        assert!(s.report(at(50), 7, "1", says("fine")) && s.changed());
        assert!(!s.report(at(50), 7, "2", says("of another")));
        assert_eq!(s.map.services["rbd-mirror"]["1"].status["json"], "fine");
        assert!(s.map.services["rbd-mirror"]["2"].status.is_empty());
        s.expire(at(62), GRACE);
        assert_eq!((names(&s), s.map.epoch), (vec!["1"], 4));
        // Its connection was lost, and it comes by another; the first one's words count no more.
        s.open(at(100), 9, &peer(4100), &of("1", "h"));
        assert_eq!((s.map.epoch, s.map.services["rbd-mirror"]["1"].start_epoch), (4, 2));
        s.close(at(100), 7, "rbd-mirror", "1");
        assert!(!s.report(at(100), 7, "1", says("of the past")));
        assert_eq!(names(&s), ["1"]);
        s.close(at(101), 9, "rbd-mirror", "1");
        assert!(s.map.services.is_empty());
        assert_eq!(s.map.epoch, 5);
    }

    /// A machine was suspended, and the connection survived.
    #[test]
    fn who_was_given_up_and_speaks_again_has_to_come_anew() {
        let mut s = Services::new(at(0));
        s.open(at(1), 7, &peer(4100), &of("1", "h"));
        s.open(at(1), 8, &peer(4101), &of("2", "h"));
        s.closed(8);
        s.expire(at(62), GRACE);
        assert!(names(&s).is_empty() && !s.report(at(70), 7, "1", says("fine")));
        assert!(s.is_forgotten(7) && !s.is_forgotten(8) && !s.is_forgotten(9));
        s.closed(7);
        s.open(at(71), 9, &peer(4100), &of("1", "h"));
        assert!(s.forgotten.is_empty() && s.report(at(72), 9, "1", says("fine")));
    }

    #[test]
    fn what_a_metadata_server_works_at_is_known_while_it_reports() {
        let mut s = Services::new(at(0));
        let scrub = |state: &str| Facts::from([("scrub status".into(), state.into())]);
        s.works(at(1), 7, "a", Facts::new());
        s.works(at(2), 7, "a", scrub("paused"));
        s.works(at(50), 7, "a", scrub("paused"));
        assert_eq!((s.map.epoch, &s.map.services["mds"]["a"].task_status), (3, &scrub("paused")));
        s.expire(at(110), GRACE);
        assert_eq!(names(&s), ["a"]);
        s.expire(at(111), GRACE);
        assert!(s.map.services.is_empty());
    }

    #[test]
    fn one_connection_is_one_daemon_and_all_tell_so_much_at_most() {
        let mut s = Services::new(at(0));
        s.open(at(1), 7, &peer(4100), &of("1", "h"));
        s.open(at(1), 7, &peer(4100), &of("2", "h"));
        assert_eq!(names(&s), ["2"]);
        s.open(at(1), 8, &peer(4100), &of("3", &"x".repeat(BYTES_MAX)));
        assert_eq!(names(&s), ["2"], "too much");
        let long = "x".repeat(BYTES_MAX - 100);
        for n in 0..100 {
            s.open(at(1), 100 + n, &peer(5000), &of(&format!("n{n}"), &long));
        }
        assert_eq!(names(&s).len(), 1 + ALL_BYTES_MAX / BYTES_MAX);
        assert!(s.report(at(9), 7, "2", says(&long)));
        assert!(s.map.services["rbd-mirror"]["2"].status.is_empty(), "no room for it");
        s.take_changed();
        assert!(
            s.report(at(9), 7, "2", says(&"y".repeat(BYTES_MAX))) && !s.changed(),
            "nothing to tell"
        );
        let mut s = Services::new(at(0));
        for n in 0..2000 {
            s.open(at(1), n, &peer(5000), &of(&format!("n{n}"), "h"));
        }
        assert_eq!(names(&s).len(), DAEMONS_MAX);
        // Names count, too, and are such as can be shown.
        let mut s = Services::new(at(0));
        for n in 0..1000 {
            let name = format!("{n:0250}");
            let (metadata, status) = (Facts::from([("k".into(), "x".repeat(2000))]), Facts::new());
            let service = Some(ServiceDaemon { metadata, status });
            let open = MMgrOpen {
                daemon_name: name.clone(),
                service_name: name,
                service,
                ..MMgrOpen::default()
            };
            s.open(at(1), n, &peer(5000), &open);
        }
        assert!(
            spirula_encoding::to_vec(&s.map).len() < ALL_BYTES_MAX * 11 / 10,
            "{}",
            names(&s).len()
        );
        for name in ["x".repeat(NAME_MAX + 1), "a\x1b[2J".into(), "a\nb".into()] {
            let mut s = Services::new(at(0));
            s.open(at(1), 1, &peer(5000), &of(&name, "h"));
            s.open(at(1), 2, &peer(5000), &MMgrOpen { service_name: name.clone(), ..of("a", "h") });
            s.works(at(1), 3, &name, Facts::new());
            assert!(s.map.services.is_empty(), "{name}");
        }
        // Who is no daemon of a service is not noted.
        let mut s = Services::new(at(0));
        s.open(at(1), 1, &peer(5000), &MMgrOpen { daemon_name: "x".into(), ..MMgrOpen::default() });
        assert!(s.map.services.is_empty());
    }
}
