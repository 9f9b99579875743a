//! An OSD as monitors see it: boots until the map shows it, reports others, boots anew.

use crate::rng::Rng;
use crate::world::{Actor, ActorId, Input, Local, Output, World};
use spirula_maps::OsdMap;
use spirula_messages::ceph::{MMonSubscribe, MOsdMap, Subscription};
use spirula_messages::cluster::control::{OsdBoot, OsdFailureReport};
use spirula_messages::{Body, Message};
use spirula_mon::Peer;
use spirula_types::{AddrVec, EntityAddr, EntityType, Uuid};
use std::any::Any;
use std::collections::BTreeMap;

/// The synthetic OSD.
pub struct OsdActor {
    osd: i32,
    uuid: Uuid,
    fsid: Uuid,
    mons: Vec<ActorId>,
    rng: Rng,
    conn: Option<u64>,
    ready: bool,
    next_conn: u64,
    incarnation: u32,
    map: Option<OsdMap>,
    waited: u64,
    /// Epoch → hash of the encoded incremental, as received; taken by the checks.
    pub epochs: BTreeMap<u32, u64>,
    /// What it found wrong.
    pub wrong: Option<String>,
    /// Reports no more.
    pub quiet: bool,
}

impl OsdActor {
    /// OSD number `osd`.
    pub fn new(osd: i32, uuid: Uuid, fsid: Uuid, mons: Vec<ActorId>, rng: Rng) -> Self {
        Self {
            osd,
            uuid,
            fsid,
            mons,
            rng,
            conn: None,
            ready: false,
            next_conn: 0,
            incarnation: 1,
            map: None,
            waited: 0,
            epochs: BTreeMap::new(),
            wrong: None,
            quiet: false,
        }
    }

    fn addrs(&self) -> AddrVec {
        AddrVec::one(EntityAddr::v2(([10, 0, 1, self.osd as u8], 6800).into(), self.incarnation))
    }

    /// The newest map shows it at its present address.
    pub fn is_in_map(&self) -> bool {
        let here = |m: &OsdMap| m.is_up(self.osd) && m.addrs(self.osd).is_some_and(|a| a.client == self.addrs());
        self.map.as_ref().is_some_and(here)
    }

    fn send<B: Body>(&self, body: B, out: &mut Vec<Output>) {
        if let Some(conn) = self.conn.filter(|_| self.ready) {
            out.push(Output::Send(conn, body.into_message(0)));
        }
    }

    fn subscribe(&self, out: &mut Vec<Output>) {
        let start = self.map.as_ref().map_or(0, |m| u64::from(m.epoch) + 1);
        let what = vec![Subscription { what: "osdmap".into(), start, once: false }];
        self.send(MMonSubscribe { what, hostname: String::new() }, out);
    }

    fn boot(&self, out: &mut Vec<Output>) {
        let a = self.addrs();
        let boot = OsdBoot {
            fsid: self.fsid,
            osd: self.osd,
            uuid: self.uuid,
            public: a.clone(),
            cluster: a.clone(),
            hb_back: a.clone(),
            hb_front: a,
            features: spirula_types::features::PACIFIC,
            newest_map: self.map.as_ref().map_or(0, |m| m.epoch),
            was_up: 0,
            size_bytes: 10 << 30,
            device_class: String::new(),
            location: BTreeMap::new(),
            metadata: BTreeMap::new(),
        };
        self.send(boot, out);
    }

    fn on_maps(&mut self, m: &Message) -> Result<(), String> {
        let maps = MOsdMap::from_message(m).map_err(|e| e.to_string())?;
        let hash = |b: &[u8]| u64::from(spirula_encoding::crc::crc32c(1, b));
        for (epoch, bytes) in &maps.fulls {
            if self.map.as_ref().is_none_or(|m| m.epoch < *epoch) {
                self.map = Some(spirula_encoding::from_slice(bytes).map_err(|e| format!("full map {epoch}: {e}"))?);
            }
        }
        for (epoch, bytes) in &maps.incrementals {
            let before = *self.epochs.entry(*epoch).or_insert_with(|| hash(bytes));
            if before != hash(bytes) {
                return Err(format!("epoch {epoch} has two contents"));
            }
            if let Some(map) = self.map.as_mut().filter(|m| m.epoch + 1 == *epoch) {
                let inc = spirula_encoding::from_slice(bytes).map_err(|e| format!("incremental {epoch}: {e}"))?;
                map.apply(&inc).map_err(|e| format!("incremental {epoch}: {e}"))?;
            }
        }
        Ok(())
    }
}

impl Actor for OsdActor {
    fn handle(&mut self, local: Local, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Start => self.incarnation += 1,
            Input::Tick => {
                self.waited += 1;
                if self.conn.is_none()
                    && let Some(to) = self.rng.pick(&self.mons).copied()
                {
                    self.next_conn += 1;
                    let conn = World::conn_numbers(local.id) + self.next_conn;
                    let peer = Peer {
                        kind: EntityType::Osd,
                        id: self.osd.to_string(),
                        global_id: 0,
                        addrs: self.addrs(),
                        features: spirula_types::features::PACIFIC,
                    };
                    (self.conn, self.ready, self.waited) = (Some(conn), false, 0);
                    out.push(Output::Connect { conn, to, peer });
                } else if self.waited > 40 && (!self.ready || !self.is_in_map()) {
                    if let Some(conn) = self.conn.take() {
                        out.push(Output::Close(conn));
                    }
                    self.ready = false;
                } else if !self.is_in_map() && self.waited.is_multiple_of(5) {
                    self.boot(out);
                } else if !self.quiet && self.rng.one_in(40) {
                    let map = self.map.as_ref();
                    let others: Vec<i32> =
                        map.map(|m| m.osds().filter(|o| *o != self.osd).collect()).unwrap_or_default();
                    let target = self.rng.pick(&others).copied();
                    if let (Some(target), Some(map)) = (target, map)
                        && let Some(a) = map.addrs(target)
                    {
                        let report = OsdFailureReport {
                            reporter: self.osd,
                            target,
                            target_public: a.client.clone(),
                            epoch: map.epoch,
                            failed_for_ms: 100,
                            refused: true,
                            gone: false,
                            alive: false,
                        };
                        self.send(report, out);
                    }
                }
            }
            Input::Opened { conn, .. } if self.conn == Some(conn) => {
                (self.ready, self.waited) = (true, 0);
                self.subscribe(out);
                self.boot(out);
            }
            Input::Closed { conn } if self.conn == Some(conn) => (self.conn, self.ready) = (None, false),
            Input::Message { conn, message } if self.conn == Some(conn) && message.kind == MOsdMap::KIND => {
                if let Err(why) = self.on_maps(&message) {
                    self.wrong.get_or_insert(format!("osd.{}: {why}", self.osd));
                }
                if self.is_in_map() {
                    self.waited = 0;
                }
            }
            _ => {}
        }
    }

    fn crash(&mut self, _: &mut Rng) {
        (self.conn, self.ready, self.map) = (None, false, None);
    }

    fn admits(&mut self, _: &mut Peer) -> bool {
        false
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
