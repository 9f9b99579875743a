//! Asking the monitors of a running cluster from a process that is no daemon of it.

use crate::cluster::host;
use crate::keys;
use anyhow::{Context, bail};
use bytes::Bytes;
use serde_json::Value;
use spirula_buffer::PayloadPool;
use spirula_messages::ceph::{MMonCommand, MMonCommandAck, kind};
use spirula_messages::{Body, Message};
use spirula_runtime::auth::Login;
use spirula_runtime::{Hub, LinkMode, Mons, NetEvent, NetSink, Peer, Reactors, clock};
use spirula_settings::Settings;
use spirula_types::{AddrVec, EntityType, Uuid};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Memory for what is on its way, bytes.
const PAYLOADS: usize = 16 << 20;
/// How long all of it may take: an election may come between.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long one monitor may take: it may be cut off.
const ONE_PATIENCE: Duration = Duration::from_secs(5);
/// How long a monitor that refuses us may just not know us yet.
const LAG: Duration = Duration::from_secs(3);
/// Between two attempts.
const RETRY: Duration = Duration::from_millis(200);

/// A client of the monitors.
pub struct Remote {
    hub: Hub,
    reactors: Reactors,
    mons: Mons,
    me: Peer,
    login: Arc<dyn Login>,
}

impl Remote {
    /// One that will go to the monitors given; nothing is sent yet.
    ///
    /// # Errors
    /// When an option makes no sense, or no thread or random number can be had.
    pub fn new(mons: Vec<AddrVec>, me: Peer, login: Arc<dyn Login>, settings: &Settings) -> anyhow::Result<Self> {
        let hub = Hub::new(LinkMode::Tcp, PayloadPool::new(PAYLOADS));
        hub.set_modes(keys::modes(settings, true)?);
        let draw = u64::from(host::nonce().context("draw a number")?);
        let reactors = Reactors::start(1).context("start an event loop")?;
        Ok(Self { hub, reactors, mons: Mons::new(mons, draw), me, login })
    }

    /// Runs a command that may safely be run twice, and gives its output.
    ///
    /// # Errors
    /// When no monitor answers or lets us in, or with the monitors' refusal.
    pub fn command(&mut self, command: &Value) -> anyhow::Result<String> {
        let begun = clock::monotonic();
        let (result, status, output) = loop {
            let last = match self.once(command) {
                Ok(answer) => break answer,
                Err(why) => why,
            };
            let waited = clock::monotonic().saturating_sub(begun);
            if waited > PATIENCE {
                let all: Vec<String> = self.mons.all().iter().map(ToString::to_string).collect();
                bail!("no monitor answers; asked were {} ({last})", all.join(", "));
            }
            if last.contains("refused authentication") && waited > LAG {
                bail!("the monitors do not let us in: {last}");
            }
            self.mons.next();
            std::thread::sleep(RETRY);
        };
        if result != 0 {
            let why = if status.is_empty() { format!("error {result}") } else { status };
            bail!("the monitors refuse: {why}");
        }
        String::from_utf8(output.to_vec()).context("the monitors' answer is no text")
    }

    /// Asks the current monitor; the reason if it does not answer.
    fn once(&self, command: &Value) -> Result<(i32, String, Bytes), String> {
        let (tx, rx) = mpsc::channel();
        let sink = NetSink::new(
            Arc::new(move |e| {
                // The asker has lost patience.
                let _ = tx.send(e);
            }),
            Arc::default(),
        );
        let to = self.mons.current();
        let on = self.reactors.next();
        let link = self.hub.connect(&self.me, &self.login, &sink, &to, EntityType::Mon, &on);
        let cmd = vec![command.to_string()];
        let request = MMonCommand { version: 0, fsid: Uuid::default(), cmd, input: Bytes::new() };
        let request: Message = request.into_message(1);
        let deadline = clock::monotonic() + ONE_PATIENCE;
        let answer = loop {
            match rx.recv_timeout(deadline.saturating_sub(clock::monotonic())) {
                Ok(NetEvent::Opened { .. }) => link.send(request.clone()),
                Ok(NetEvent::Message(_, m)) if m.kind == kind::MON_COMMAND_ACK => {
                    let ack = MMonCommandAck::from_message(&m);
                    break ack.map(|a| (a.result, a.status, a.output)).map_err(|e| format!("{to}: {e}"));
                }
                Ok(
                    NetEvent::Message(..)
                    | NetEvent::TooLarge(..)
                    | NetEvent::Resumed(_)
                    | NetEvent::Renewed(_)
                    | NetEvent::Taken(_)
                    | NetEvent::Refused(..),
                ) => {}
                Ok(NetEvent::Closed(_, why)) => break Err(format!("{to}: {why}")),
                Err(_) => break Err(format!("{to}: no answer in {} s", ONE_PATIENCE.as_secs())),
            }
        };
        link.close();
        answer
    }

    /// Ends it.
    pub fn close(self) {
        self.reactors.stop();
    }
}
