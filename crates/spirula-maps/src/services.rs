//! Daemons that work beside the cluster and tell the manager that they are there: gateways, mirror
//! daemons.
//!
//! [`ServiceMap`] is a value: the manager keeps it and the monitors are sent it with each digest.
//! Its encoding is Spirula's own, as no client is sent it; what people and `rbd` are shown of it
//! ([`ServiceMap::dump`], [`ServiceMap::status`], [`ServiceMap::summaries`]) has Ceph's form.

use serde_json::{Map, Value, json};
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use spirula_types::EntityAddr;
use std::collections::{BTreeMap, BTreeSet};

/// Kinds of daemons that other maps show: here it is only what they work at.
const SHOWN_ELSEWHERE: [&str; 4] = ["mds", "mgr", "mon", "osd"];

/// Characters of a line that people are shown, at most.
const LINE_MAX: usize = 300;

/// Names to values, as a daemon tells them.
pub type Facts = BTreeMap<String, String>;

/// A daemon of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceEntry {
    /// Its global id as a client.
    pub gid: u64,
    /// Its address; `None` if it told none.
    pub addr: Option<EntityAddr>,
    /// Epoch of the map in which it came.
    pub start_epoch: u64,
    /// When it came.
    pub start_stamp: UTime,
    /// What does not change: host, version, kernel…
    pub metadata: Facts,
    /// How it is.
    pub status: Facts,
    /// When it told its status; zero if it did so only at its start, or never.
    pub status_stamp: UTime,
    /// When it was heard of last.
    pub last_beacon: UTime,
    /// What it works at.
    pub task_status: Facts,
}

impl Encode for ServiceEntry {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u64(self.gid);
            o.bool(self.addr.is_some());
            if let Some(addr) = &self.addr {
                o.put(addr);
            }
            o.u64(self.start_epoch);
            o.put(&self.start_stamp);
            o.put(&self.metadata);
            o.put(&self.status);
            o.put(&self.status_stamp);
            o.put(&self.last_beacon);
            o.put(&self.task_status);
        });
    }
}

impl Decode for ServiceEntry {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("ServiceEntry", 1, |d, _| {
            Ok(Self {
                gid: d.u64()?,
                addr: if d.bool()? { Some(d.get()?) } else { None },
                start_epoch: d.u64()?,
                start_stamp: d.get()?,
                metadata: d.get()?,
                status: d.get()?,
                status_stamp: d.get()?,
                last_beacon: d.get()?,
                task_status: d.get()?,
            })
        })
    }
}

impl ServiceEntry {
    fn dump(&self) -> Value {
        let addr = self.addr.as_ref().and_then(|a| Some(format!("{}/{}", a.addr?, a.nonce)));
        json!({
            "start_epoch": self.start_epoch,
            "start_stamp": self.start_stamp.to_iso(),
            "gid": self.gid,
            "addr": addr.unwrap_or_else(|| "(unrecognized address family 0)/0".to_owned()),
            "metadata": self.metadata,
            "task_status": self.task_status,
        })
    }
}

/// All services and their daemons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceMap {
    /// Grows with each daemon that comes or goes, from 1 at the manager's start.
    pub epoch: u64,
    /// When one came or went last.
    pub modified: UTime,
    /// Kind of service (`rbd-mirror`) → name of a daemon → the daemon. No kind is without daemons.
    pub services: BTreeMap<String, BTreeMap<String, ServiceEntry>>,
}

impl Encode for ServiceMap {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u64(self.epoch);
            o.put(&self.modified);
            o.put(&self.services);
        });
    }
}

impl Decode for ServiceMap {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("ServiceMap", 1, |d, _| {
            Ok(Self { epoch: d.u64()?, modified: d.get()?, services: d.get()? })
        })
    }
}

impl ServiceMap {
    /// The services that no other map shows.
    fn only_here(&self) -> impl Iterator<Item = (&String, &BTreeMap<String, ServiceEntry>)> {
        self.services.iter().filter(|(kind, _)| !SHOWN_ELSEWHERE.contains(&kind.as_str()))
    }

    /// `service dump`, and what `status` has of it.
    pub fn dump(&self) -> Value {
        let mut services = Map::new();
        for (kind, daemons) in &self.services {
            let mut shown = Map::new();
            shown.insert("summary".into(), "".into());
            shown.extend(daemons.iter().map(|(name, d)| (name.clone(), d.dump())));
            services.insert(kind.clone(), json!({ "daemons": shown }));
        }
        json!({"epoch": self.epoch, "modified": self.modified.to_iso(), "services": services})
    }

    /// `service status`: what each daemon says of itself.
    pub fn status(&self) -> Value {
        let of = |d: &ServiceEntry| {
            json!({
                "status_stamp": d.status_stamp.to_iso(),
                "last_beacon": d.last_beacon.to_iso(),
                "status": d.status,
            })
        };
        let kind = |daemons: &BTreeMap<String, ServiceEntry>| -> Value {
            daemons.iter().map(|(name, d)| (name.clone(), of(d))).collect::<Map<_, _>>().into()
        };
        self.only_here()
            .map(|(k, daemons)| (k.clone(), kind(daemons)))
            .collect::<Map<_, _>>()
            .into()
    }

    /// Each kind of service with a line about it: how many daemons there are, of what type, on how
    /// many hosts and in how many zones.
    pub fn summaries(&self) -> impl Iterator<Item = (String, String)> {
        self.only_here().map(|(kind, daemons)| (line(kind), line(&summary(daemons))))
    }

    /// How many daemons of each kind have told each value of a fact; those that did not tell it are
    /// `unknown`.
    pub fn counted(&self, fact: &str) -> BTreeMap<String, BTreeMap<String, u64>> {
        let count = |daemons: &BTreeMap<String, ServiceEntry>| {
            let mut counts = BTreeMap::new();
            for d in daemons.values() {
                let value = d.metadata.get(fact).map_or("unknown", String::as_str);
                *counts.entry(value.to_owned()).or_insert(0) += 1;
            }
            counts
        };
        self.only_here().map(|(kind, daemons)| (kind.clone(), count(daemons))).collect()
    }

    /// What daemons work at, as lines of `status`: each kind of work, and below it who does it.
    /// Empty if nobody says anything.
    pub fn tasks(&self) -> String {
        let mut out = String::new();
        for (kind, daemons) in &self.services {
            let mut tasks: BTreeMap<&str, String> = BTreeMap::new();
            for (name, d) in daemons {
                for (task, state) in &d.task_status {
                    *tasks.entry(task).or_default() +=
                        &format!("        {}\n", line(&format!("{kind}.{name}: {state}")));
                }
            }
            for (task, lines) in tasks {
                out += &format!("    {}:\n{lines}", line(task));
            }
        }
        out
    }
}

/// A daemon's words as one line on somebody's terminal: short, and without what moves its cursor.
fn line(text: &str) -> String {
    text.chars().take(LINE_MAX).map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn summary(daemons: &BTreeMap<String, ServiceEntry>) -> String {
    let told =
        |fact: &str| daemons.values().filter_map(|d| d.metadata.get(fact)).collect::<BTreeSet<_>>();
    let kind = daemons.values().filter_map(|d| d.metadata.get("daemon_type")).next_back();
    let kind = kind.map_or("daemon", String::as_str);
    let several = if daemons.len() > 1 { "s" } else { "" };
    let mut out = format!("{} {kind}{several} active", daemons.len());
    // As with Ceph "1 hosts", too.
    let places = [("hosts", told("hostname").len()), ("zones", told("zone_id").len())];
    let places: Vec<String> =
        places.iter().filter(|(_, n)| *n > 0).map(|(what, n)| format!("{n} {what}")).collect();
    if !places.is_empty() {
        out += &format!(" ({})", places.join(", "));
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use spirula_encoding::{from_slice, to_vec};

    fn facts(of: &[(&str, &str)]) -> Facts {
        of.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn map() -> ServiceMap {
        let addr = EntityAddr::v2("127.0.0.1:0".parse().unwrap(), 4080322726);
        let mirror = ServiceEntry {
            gid: 4124,
            addr: Some(addr),
            start_epoch: 2,
            start_stamp: UTime { sec: 1_795_743_925, nsec: 143_966_000 },
            metadata: facts(&[("hostname", "vm"), ("ceph_version", "16")]),
            status: facts(&[("json", "{}")]),
            ..ServiceEntry::default()
        };
        let gateway = |zone: &str, host: &str| ServiceEntry {
            metadata: facts(&[("zone_id", zone), ("hostname", host), ("daemon_type", "gateway")]),
            ..ServiceEntry::default()
        };
        let gateways = [("1", gateway("z", "a")), ("2", gateway("z", "b"))];
        let gateways = gateways.into_iter().map(|(n, d)| (n.to_owned(), d)).collect();
        let mirrors = BTreeMap::from([("4124".to_owned(), mirror)]);
        let services =
            BTreeMap::from([("rgw".to_owned(), gateways), ("rbd-mirror".to_owned(), mirrors)]);
        ServiceMap { epoch: 2, modified: UTime { sec: 1_795_743_926, nsec: 0 }, services }
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        assert_eq!(from_slice::<ServiceMap>(&to_vec(&map())).unwrap(), map());
    }

    #[test]
    fn of_metadata_servers_it_is_only_shown_what_they_work_at() {
        let mut map = map();
        assert_eq!(map.tasks(), "");
        let scrubs = |state: &str| ServiceEntry {
            task_status: facts(&[("scrub status", state)]),
            ..Default::default()
        };
        map.services.insert(
            "mds".into(),
            [("a".into(), scrubs("paused")), ("b".into(), scrubs("active"))].into(),
        );
        assert_eq!(
            map.tasks(),
            "    scrub status:\n        mds.a: paused\n        mds.b: active\n"
        );
        assert_eq!(
            map.dump()["services"]["mds"]["daemons"]["a"]["task_status"],
            json!({"scrub status": "paused"})
        );
        assert_eq!(map.status().get("mds"), None);
        assert!(
            map.summaries().all(|(kind, _)| kind != "mds") && !map.counted("x").contains_key("mds")
        );
    }

    /// Any client may say that it is a service, in what words it likes.
    #[test]
    fn what_people_are_shown_does_not_move_their_cursor() {
        let odd = "\u{1b}[2J\nhealth: HEALTH_OK\u{9b}";
        let daemon = ServiceEntry {
            metadata: facts(&[("daemon_type", odd)]),
            task_status: facts(&[(odd, odd), ("long", &"x".repeat(60_000))]),
            ..ServiceEntry::default()
        };
        let services =
            BTreeMap::from([(odd.to_owned(), BTreeMap::from([(odd.to_owned(), daemon)]))]);
        let map = ServiceMap { services, ..ServiceMap::default() };
        let shown: Vec<String> = map.summaries().flat_map(|(k, l)| [k, l]).collect();
        assert!(!shown.concat().chars().any(char::is_control), "{shown:?}");
        let tasks = map.tasks();
        assert!(
            !tasks.replace('\n', "").chars().any(char::is_control) && tasks.lines().count() == 4,
            "{tasks}"
        );
        assert!(tasks.len() < 2000);
    }

    #[test]
    fn it_is_shown_as_ceph_shows_its_own() {
        let dump = map().dump();
        let daemon = &dump["services"]["rbd-mirror"]["daemons"]["4124"];
        assert_eq!(daemon["addr"], "127.0.0.1:0/4080322726");
        assert_eq!(daemon["start_stamp"], "2026-11-27T01:45:25.143966+0000");
        assert_eq!(
            dump["services"]["rgw"]["daemons"]["1"]["addr"],
            "(unrecognized address family 0)/0"
        );
        assert_eq!(dump["services"]["rgw"]["daemons"]["summary"], "");
        let status = map().status();
        assert_eq!(status["rbd-mirror"]["4124"]["status"], json!({"json": "{}"}));
        assert_eq!(status["rbd-mirror"]["4124"]["last_beacon"], "0.000000");
        let map = map();
        let lines: Vec<_> = map.summaries().collect();
        let wanted = [
            ("rbd-mirror", "1 daemon active (1 hosts)"),
            ("rgw", "2 gateways active (2 hosts, 1 zones)"),
        ];
        assert_eq!(lines, wanted.map(|(k, l)| (k.to_owned(), l.to_owned())));
        assert_eq!(
            map.counted("ceph_version")["rbd-mirror"],
            BTreeMap::from([("16".to_owned(), 1)])
        );
        assert_eq!(map.counted("ceph_version")["rgw"], BTreeMap::from([("unknown".to_owned(), 2)]));
    }
}
