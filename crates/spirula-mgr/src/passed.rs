//! Commands of the manager's that the monitors serve here (`spirula_settings::managers`): passed
//! on, and their answers handed back.
//!
//! Who asks has the right to by his capabilities for managers, as with Ceph; the monitors are told
//! who it is. What waits has a bound in number and bytes, above which the answer is EAGAIN. A
//! request is sent again in each new session with a monitor; the monitors do it once. Who got no
//! answer for [`PATIENCE`] is told so.
//!
//! The other way round a monitor asks for the manager's own: what had something done is remembered
//! for a while ([`Ran`]).

use crate::commands;
use crate::event::{ConnId, MgrEffect, Now, Peer};
use spirula_messages::ceph::{MCommandReply, MMgrCommandReply, kind};
use spirula_messages::cluster::control::{MgrRan, MgrRun, MonRan, MonRun};
use spirula_messages::cluster::quorum::CarriedPeer;
use spirula_messages::{Body, Message};
use spirula_types::errno;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Commands that wait for the monitors.
const WAITING: usize = 256;
/// Bytes of them.
const WAITING_BYTES: usize = 16 << 20;
/// Bytes of a command, and with its input; those of monitors. One that only reads has none of note.
const COMMAND_MAX: usize = 1 << 20;
const REQUEST_MAX: usize = 4 << 20;
const READ_MAX: usize = 64 << 10;
/// So long the monitors have for an answer. They agree on a change within a second, or elect a
/// leader before.
const PATIENCE: Duration = Duration::from_secs(60);

/// Answers remembered of commands that monitors had run, and their bytes.
const RAN_KEPT: usize = 1024;
const RAN_BYTES: usize = 1 << 20;

/// What makes two requests of monitors the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// A client's: its global id and transaction. It asks again over its next connection, which may
    /// be another monitor's.
    Clients(u64, u64),
    /// Where these are not told: the run of the leader's, and its number there.
    Leaders(u64, u64),
}

impl Request {
    pub fn of(ask: &MgrRun) -> Self {
        match ask.request.0 {
            (0, _) | (_, 0) => Self::Leaders(ask.boot, ask.id),
            (global_id, tid) => Self::Clients(global_id, tid),
        }
    }
}

/// Answers to commands of monitors' clients that had something done: it is not done again when a
/// monitor asks again. Those that only tell are made anew.
#[derive(Debug, Default)]
pub(crate) struct Ran {
    answers: VecDeque<(Request, MgrRan)>,
    bytes: usize,
}

impl Ran {
    /// The answer to a request, if it was remembered.
    pub fn find(&self, ask: &MgrRun) -> Option<MgrRan> {
        let request = Request::of(ask);
        let (_, ran) = self.answers.iter().rev().find(|(r, _)| *r == request)?;
        Some(MgrRan { boot: ask.boot, id: ask.id, ..ran.clone() })
    }

    /// Remembers an answer; the oldest go.
    pub fn keep(&mut self, request: Request, ran: &MgrRan) {
        let size = |r: &MgrRan| r.status.len() + r.output.len();
        self.bytes += size(ran);
        self.answers.push_back((request, ran.clone()));
        while self.answers.len() > RAN_KEPT || self.bytes > RAN_BYTES {
            let Some((_, oldest)) = self.answers.pop_front() else { return };
            self.bytes -= size(&oldest);
        }
    }
}

/// Who waits for an answer, and in which form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asker {
    pub conn: ConnId,
    pub tid: u64,
    /// Kind of the message that asked.
    pub kind: u16,
}

impl Asker {
    /// An answer to it.
    pub fn answer(&self, result: i32, status: String, output: bytes::Bytes) -> MgrEffect {
        let message = match self.kind {
            kind::COMMAND => MCommandReply { result, status, output }.into_message(self.tid),
            _ => MMgrCommandReply { result, status, output }.into_message(self.tid),
        };
        MgrEffect::Send(self.conn, message)
    }
}

#[derive(Debug)]
struct Waiting {
    asker: Asker,
    since: Duration,
    message: Message,
}

/// What waits for the monitors, by number.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    next: u64,
    waiting: BTreeMap<u64, Waiting>,
}

impl Passed {
    /// Takes a command; what is to be sent to the monitors, or the answer that says why not.
    ///
    /// # Errors
    /// Errno and why.
    pub fn take(
        &mut self,
        now: Now,
        asker: Asker,
        peer: &Peer,
        cmd: Vec<String>,
        input: bytes::Bytes,
    ) -> Result<Message, (i32, String)> {
        let words: usize = cmd.iter().map(String::len).sum();
        let reads = !commands::changes(&cmd);
        if words > COMMAND_MAX || words + input.len() > if reads { READ_MAX } else { REQUEST_MAX } {
            let most = format!(
                "{COMMAND_MAX} bytes, {REQUEST_MAX} with its input; one that only reads at most \
                    {READ_MAX}"
            );
            return Err((errno::E2BIG, format!("a request has at most {most}")));
        }
        let bytes: usize = self.waiting.values().map(|w| w.message.front.len()).sum();
        if self.waiting.len() >= WAITING || bytes + words + input.len() > WAITING_BYTES {
            return Err((
                errno::EAGAIN,
                "too many commands wait for the monitors; try again".to_owned(),
            ));
        }
        let id = self.next;
        self.next += 1;
        let asked_by = CarriedPeer {
            kind: peer.name.kind,
            id: peer.auth_id.clone(),
            global_id: peer.global_id,
            addrs: peer.addrs.clone(),
            features: 0,
        };
        let run = MonRun { id, asker: asked_by, limited: peer.caps.is_some(), cmd, input };
        let message = run.into_message(asker.tid);
        self.waiting.insert(id, Waiting { asker, since: now.mono, message: message.clone() });
        Ok(message)
    }

    /// The monitors' answer.
    pub fn ran(&mut self, ran: MonRan) -> Option<MgrEffect> {
        let w = self.waiting.remove(&ran.id)?;
        Some(w.asker.answer(ran.result, ran.status, ran.output))
    }

    /// A new session with a monitor: what it is asked.
    pub fn again(&self) -> impl Iterator<Item = Message> {
        self.waiting.values().map(|w| w.message.clone())
    }

    /// Nobody waits there any more.
    pub fn closed(&mut self, conn: ConnId) {
        self.waiting.retain(|_, w| w.asker.conn != conn);
    }

    /// Gives up what waited too long.
    pub fn expire(&mut self, now: Now, out: &mut Vec<MgrEffect>) {
        self.waiting.retain(|_, w| {
            let waits = now.mono.saturating_sub(w.since) < PATIENCE;
            if !waits {
                let why = format!(
                    "the monitors did not answer for {} s, and this is one of their commands",
                    PATIENCE.as_secs()
                );
                out.push(w.asker.answer(-errno::ETIMEDOUT, why, bytes::Bytes::new()));
            }
            waits
        });
    }
}
