//! Asking the monitors of a running cluster from a process that is no daemon of it.

use crate::cluster::admin::{Admin, Answer};
use crate::cluster::host;
use crate::keys;
use anyhow::{Context, bail};
use serde_json::Value;
use spirula_buffer::PayloadPool;
use spirula_runtime::cephx::DaemonAuth;
use spirula_runtime::{Hub, LinkMode, Mons, Reactors};
use spirula_settings::Settings;
use spirula_types::AddrVec;

/// Memory for what is on its way, bytes.
const PAYLOADS: usize = 16 << 20;
/// Attempts, each as long as [`Admin`]'s patience: an election may come between.
const ATTEMPTS: usize = 6;

/// A client of the monitors.
pub struct Remote {
    admin: Admin,
    reactors: Reactors,
    mons: Vec<AddrVec>,
}

impl Remote {
    /// One that will go to the monitors given; nothing is sent yet.
    ///
    /// # Errors
    /// When an option makes no sense, or no thread or random number can be had.
    pub fn new(mons: Vec<AddrVec>, auth: DaemonAuth, settings: &Settings) -> anyhow::Result<Self> {
        let hub = Hub::new(LinkMode::Tcp, PayloadPool::new(PAYLOADS));
        hub.set_modes(keys::modes(settings, true)?);
        let reactors = Reactors::start(1).context("start an event loop")?;
        let draw = u64::from(host::nonce().context("draw a number")?);
        let admin = Admin::start(&hub, Mons::new(mons.clone(), draw), auth, &reactors.next());
        Ok(Self { admin, reactors, mons })
    }

    /// Runs a command that may safely be run twice, and gives its output.
    ///
    /// # Errors
    /// When no monitor answers, or with the monitors' refusal.
    pub fn command(&self, command: &Value) -> anyhow::Result<String> {
        let text = command.to_string();
        let answer: Option<Answer> = (0..ATTEMPTS).find_map(|_| self.admin.command(&text));
        let Some((result, status, output)) = answer else {
            let all: Vec<String> = self.mons.iter().map(ToString::to_string).collect();
            bail!("no monitor answers; asked were {}", all.join(", "));
        };
        if result != 0 {
            let why = if status.is_empty() { format!("error {result}") } else { status };
            bail!("the monitors refuse: {why}");
        }
        String::from_utf8(output.to_vec()).context("the monitors' answer is no text")
    }

    /// Ends it.
    pub fn close(self) {
        self.reactors.stop();
    }
}
