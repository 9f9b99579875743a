//! The manager as a client of its cluster: it reads what commands need of objects, such as names of
//! block images.
//!
//! The client is made when something is to be read first, and ends when nothing was for [`IDLE`]:
//! what nobody asks for costs nothing. It goes out over connections of its own as the manager
//! (`mgr.x`), with a number of its own, and knows nothing of the daemon's other links. The manager
//! waits for no answer and asks again, so what is lost with the client is lost.

use crate::cluster::host;
use crate::keys;
use anyhow::Context;
use spirula_client::Request;
use spirula_mgr::{MgrEvent, ObjectRead};
use spirula_rados::{Client, News, Way};
use spirula_runtime::{NetEvent, NetSink, clock};
use spirula_settings::Settings;
use spirula_types::{AddrVec, EntityType, errno};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::runtime::Handle;

/// After so long without a read the client ends.
const IDLE: Duration = Duration::from_secs(120);
/// Bytes on their way in: names of images.
const MEMORY: usize = 8 << 20;

/// See the module.
pub(super) struct MgrClient {
    mons: Vec<AddrVec>,
    /// The manager's name, without the kind.
    id: String,
    settings: Settings,
    sink: NetSink,
    on: Handle,
    client: Option<Client>,
    /// The client's numbers of what is being read, and the manager's.
    calls: BTreeMap<u64, u64>,
    used: Duration,
}

impl MgrClient {
    /// None yet. Its network events go to `sink`, whose owner hands them in; its links live on the
    /// loop `on`.
    pub fn new(
        mons: Vec<AddrVec>,
        id: &str,
        settings: &Settings,
        sink: NetSink,
        on: &Handle,
    ) -> Self {
        Self {
            mons,
            id: id.to_owned(),
            settings: settings.clone(),
            sink,
            on: on.clone(),
            client: None,
            calls: BTreeMap::new(),
            used: Duration::ZERO,
        }
    }

    fn open(&self) -> anyhow::Result<Client> {
        let nonce = host::nonce().context("draw a number")?;
        let way = Way {
            mons: self.mons.clone(),
            kind: EntityType::Mgr,
            id: self.id.clone(),
            auth: keys::daemon(&format!("mgr.{}", self.id), &self.settings, None)?,
            modes: keys::modes(&self.settings, true)?,
            memory: MEMORY,
            nonce,
        };
        Ok(Client::new(way, u64::from(nonce), self.sink.clone(), self.on.clone()))
    }

    /// Reads an object; what is to be told the manager at once.
    pub fn read(&mut self, ObjectRead { call, at, oid, ops }: ObjectRead) -> Vec<MgrEvent> {
        self.used = clock::monotonic();
        if self.client.is_none() {
            match self.open() {
                Ok(client) => self.client = Some(client),
                Err(e) => {
                    tracing::warn!("mgr.{} cannot read objects: {e:#}", self.id);
                    return vec![MgrEvent::Read { call, result: -errno::EIO, ops: Vec::new() }];
                }
            }
        }
        if let Some(client) = &mut self.client {
            let tid = client.submit(Request::new(at, oid, ops, clock::wall()));
            self.calls.insert(tid, call);
        }
        self.news()
    }

    /// What the network says of the client's links; what is to be told the manager.
    pub fn net(&mut self, e: NetEvent) -> Vec<MgrEvent> {
        if let Some(client) = &mut self.client {
            client.net(e);
        }
        self.news()
    }

    /// Time has come to [`MgrClient::deadline`], or not yet.
    pub fn tick(&mut self) -> Vec<MgrEvent> {
        let now = clock::monotonic();
        if now >= self.used + IDLE
            && let Some(mut client) = self.client.take()
        {
            client.stop();
            self.calls.clear();
        }
        if let Some(client) = &mut self.client
            && now >= client.deadline()
        {
            client.tick();
        }
        self.news()
    }

    /// When [`MgrClient::tick`] wants to be called.
    pub fn deadline(&self) -> Duration {
        self.client.as_ref().map_or(Duration::MAX, |c| c.deadline().min(self.used + IDLE))
    }

    fn news(&mut self) -> Vec<MgrEvent> {
        let mut out = Vec::new();
        while let Some(news) = self.client.as_mut().and_then(Client::news) {
            if let News::Done(tid, reply) = news
                && let Some(call) = self.calls.remove(&tid)
            {
                out.push(MgrEvent::Read { call, result: reply.result, ops: reply.ops });
            }
        }
        out
    }
}
