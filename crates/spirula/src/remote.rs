//! Asking the monitors of a running cluster from a process that is no daemon of it.

use crate::cluster::host;
use crate::keys;
use anyhow::{Context, bail};
use bytes::Bytes;
use serde_json::Value;
use spirula_buffer::PayloadPool;
use spirula_runtime::auth::Login;
use spirula_runtime::cephx::DaemonAuth;
use spirula_runtime::{
    Answer, Hub, LinkMode, MonLink, MonNews, MonWay, Mons, NetEvent, NetSink, Peer, Reactors, clock,
};
use spirula_settings::Settings;
use spirula_types::AddrVec;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Memory for what is on its way, bytes.
const PAYLOADS: usize = 16 << 20;
/// How long all of it may take: an election may come between.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a monitor that refuses us may just not know us yet.
const LAG: Duration = Duration::from_secs(3);
/// Patience is looked at that often.
const LOOK: Duration = Duration::from_millis(100);

/// A client of the monitors.
pub struct Remote {
    reactors: Reactors,
    mon: MonLink,
    events: mpsc::Receiver<NetEvent>,
}

impl Remote {
    /// One that will go to the monitors given; nothing is sent yet.
    ///
    /// # Errors
    /// When an option makes no sense, or no thread or random number can be had.
    pub fn new(
        mons: Vec<AddrVec>,
        me: Peer,
        login: Arc<dyn Login>,
        settings: &Settings,
    ) -> anyhow::Result<Self> {
        let hub = Hub::new(LinkMode::Tcp, PayloadPool::new(PAYLOADS));
        hub.set_modes(keys::modes(settings, true)?);
        let draw = u64::from(host::nonce().context("draw a number")?);
        let reactors = Reactors::start(1).context("start an event loop")?;
        let (tx, events) = mpsc::channel();
        let sink = NetSink::new(
            Arc::new(move |e| {
                // The asker has gone.
                let _ = tx.send(e);
            }),
            Arc::default(),
        );
        // Nothing lives long enough here for its tickets to be renewed.
        let way = MonWay { hub, me, login, auth: DaemonAuth::none(), sink, on: reactors.next() };
        let mut mon = MonLink::new(Mons::new(mons, draw), "", way);
        mon.set_start("monmap", 0);
        Ok(Self { reactors, mon, events })
    }

    /// Runs a command, and gives its output. Where a monitor is lost on the way it is sent again to
    /// another one.
    ///
    /// # Errors
    /// When no monitor answers or lets us in, or with the monitors' refusal.
    pub fn command(&mut self, command: &Value) -> anyhow::Result<String> {
        let call = self.mon.command(command.to_string(), Bytes::new());
        let answer = self.wait_for(call);
        self.mon.give_up(call);
        let (result, status, output) = answer?;
        if result != 0 {
            let why = if status.is_empty() { format!("error {result}") } else { status };
            bail!("the monitors refuse: {why}");
        }
        String::from_utf8(output.to_vec()).context("the monitors' answer is no text")
    }

    fn wait_for(&mut self, call: u64) -> anyhow::Result<(i32, String, Bytes)> {
        let begun = clock::monotonic();
        let mut last = "no word".to_owned();
        loop {
            let wait = self.mon.deadline().saturating_sub(clock::monotonic()).min(LOOK);
            let mut news = match self.events.recv_timeout(wait) {
                Ok(NetEvent::Opened { link, .. }) if self.mon.is(link.id()) => self.mon.opened(),
                Ok(NetEvent::Message(id, m)) if self.mon.is(id) => self.mon.message(m),
                Ok(NetEvent::Closed(id, ended)) if self.mon.is(id) => self.mon.closed(&ended.why),
                Ok(_) | Err(_) => Vec::new(),
            };
            if clock::monotonic() >= self.mon.deadline() {
                news.extend(self.mon.tick());
            }
            for n in news {
                match n {
                    MonNews::Answer(to, Answer::Command { result, status, output })
                        if to == call =>
                    {
                        return Ok((result, status, output));
                    }
                    MonNews::Lost(why) => last = why,
                    MonNews::Opened | MonNews::Answer(..) | MonNews::Message(_) => {}
                }
            }
            let waited = clock::monotonic().saturating_sub(begun);
            if waited > PATIENCE {
                let all: Vec<String> =
                    self.mon.mons().all().iter().map(ToString::to_string).collect();
                bail!("no monitor answers; asked were {} ({last})", all.join(", "));
            }
            if last.contains("refused authentication") && waited > LAG && !self.mon.is_open() {
                bail!("the monitors do not let us in: {last}");
            }
        }
    }

    /// Ends it.
    pub fn close(mut self) {
        self.mon.stop();
        self.reactors.stop();
    }
}
