//! Commands that the manager serves, asked of a monitor.
//!
//! As with Ceph (librados' `mon_command`: `rbd mirror pool status`, exporters, Proxmox), whoever
//! may have a command by his capabilities at monitors ([`crate::access`]) may ask a monitor for one
//! of the manager's: the leader has the active manager run it, over the manager's own session with
//! the monitors, and hands the answer back. Here they wait for that.
//!
//! What waits has a bound in number and bytes, above which the answer is EAGAIN, as with Ceph; a
//! few at a time are with the manager, so that what it answers has one, too. Among clients those go
//! first of whom least is with the manager, then who has waited longest. A manager that goes away,
//! or does not answer for some seconds, is asked again when it is their turn again, or the one that
//! takes its place is; it knows by who asked, and his number for it, what it has done already. What
//! a client asked for that has left still is the manager's work, and counts as such. Who got no
//! answer for [`PATIENCE`] is told so. Ceph's monitors wait for ever, and their clients with them.

use crate::commands;
use crate::event::{ConnId, MonEffect};
use crate::mon::{Mon, bytes_of};
use crate::quorum::Ask;
use spirula_messages::ceph::{MMonCommand, MMonCommandAck};
use spirula_messages::cluster::control::{MgrRan, MgrRun, Since};
use spirula_messages::{Body, Message};
use spirula_types::errno;
use std::collections::BTreeMap;

/// Commands that wait for the manager.
const WAITING: usize = 256;
/// Bytes of them.
const WAITING_BYTES: usize = 4 << 20;
/// Commands that are with the manager at a time; each may be answered with some megabytes.
const AT_ONCE: usize = 4;
/// Ticks after which the manager is asked again.
const AGAIN: u64 = 50;
/// Ticks after which a command is given up.
const PATIENCE: u64 = 300;

struct Waiting {
    /// Who asked, and what; nobody any more where he left while the manager works on it.
    ask: Option<Ask>,
    since: u64,
    /// Its place among those that wait: the least is first.
    place: u64,
    /// By which session of the manager's it was sent, and when.
    sent: Option<(ConnId, u64)>,
}

impl Waiting {
    fn conn(&self) -> Option<ConnId> {
        self.ask.as_ref().map(|a| a.conn)
    }
}

/// What waits for the manager, by number.
#[derive(Default)]
pub(crate) struct Proxy {
    /// The next number, and the next place.
    next: u64,
    waiting: BTreeMap<u64, Waiting>,
    /// Bytes of what was asked.
    bytes: usize,
}

impl Proxy {
    /// The requests, for reports.
    pub fn asks(&self) -> impl Iterator<Item = &Ask> {
        self.waiting.values().filter_map(|w| w.ask.as_ref())
    }

    fn take_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn insert(&mut self, ask: Ask, since: u64) {
        self.bytes += bytes_of(&ask.message);
        let number = self.take_number();
        self.waiting.insert(number, Waiting { ask: Some(ask), since, place: number, sent: None });
    }

    /// Takes one out; what was asked, if somebody waits for an answer.
    fn remove(&mut self, id: u64) -> Option<Ask> {
        let ask = self.waiting.remove(&id)?.ask?;
        self.bytes -= bytes_of(&ask.message);
        Some(ask)
    }

    /// A connection is gone: nobody waits for its answers, and if it was the manager's, what it was
    /// asked is asked again.
    pub fn forget(&mut self, conn: ConnId) {
        let of_it = self.waiting.iter().filter(|(_, w)| w.conn() == Some(conn)).map(|(id, _)| *id);
        for id in of_it.collect::<Vec<_>>() {
            let Some(w) = self.waiting.get_mut(&id) else { continue };
            if w.sent.is_none() {
                self.remove(id);
            } else if let Some(ask) = w.ask.take() {
                self.bytes -= bytes_of(&ask.message);
            }
        }
        for w in self.waiting.values_mut().filter(|w| w.sent.is_some_and(|(by, _)| by == conn)) {
            w.sent = None;
        }
        self.forget_left();
    }

    /// Nobody waits for these, nor does a manager work on them.
    fn forget_left(&mut self) {
        self.waiting.retain(|_, w| w.ask.is_some() || w.sent.is_some());
    }

    /// All of them: another monitor leads.
    pub fn take(&mut self) -> Vec<Ask> {
        self.bytes = 0;
        std::mem::take(&mut self.waiting).into_values().filter_map(|w| w.ask).collect()
    }

    /// The one whose turn it is, if any may be sent.
    fn next_turn(&self) -> Option<u64> {
        let with_manager = self.waiting.values().filter(|w| w.sent.is_some());
        if with_manager.clone().count() >= AT_ONCE {
            return None;
        }
        let of = |conn| with_manager.clone().filter(|w| w.conn() == conn).count();
        let all = self.waiting.iter().filter(|(_, w)| w.sent.is_none());
        all.min_by_key(|(_, w)| (of(w.conn()), w.place)).map(|(id, _)| *id)
    }
}

impl Mon {
    /// Takes a command that the manager serves; at the leader.
    pub(crate) fn ask_manager(&mut self, ask: Ask, out: &mut Vec<MonEffect>) {
        // Whoever forwarded it does so until it hears that it is done.
        if ask.via.is_some() && self.proxy.asks().any(|a| a.via == ask.via) {
            return;
        }
        if self.proxy.waiting.len() >= WAITING
            || self.proxy.bytes + bytes_of(&ask.message) > WAITING_BYTES
        {
            let result = commands::CommandResult::err(
                errno::EAGAIN,
                "too many commands wait for the manager; try again",
            );
            return self.answer_for_manager(&ask, result, out);
        }
        let since = self.ticks();
        self.proxy.insert(ask, since);
        self.ask_what_waits(out);
    }

    /// The active manager's session, be it with this monitor or with another one: the one over
    /// which it says that it runs. Somebody who has its key may have others, and would not answer
    /// (`ceph -n mgr.x -w`).
    fn session_of_manager(&self) -> Option<ConnId> {
        let map = &self.state.mgrmap;
        self.mgr
            .conn_of(map.active_gid)
            .filter(|conn| map.available && self.sessions.contains_key(conn))
    }

    fn ask_what_waits(&mut self, out: &mut Vec<MonEffect>) {
        let Some(conn) = self.session_of_manager() else { return };
        let (now, boot) = (self.ticks(), self.boot());
        while let Some(id) = self.proxy.next_turn() {
            let Some(w) = self.proxy.waiting.get_mut(&id) else { return };
            w.sent = Some((conn, now));
            let Some(ask) = &w.ask else { continue };
            let (asker, tid) = (ask.conn, ask.message.tid);
            let global_id = self.sessions.get(&asker).map_or(0, |s| s.peer.global_id);
            let cmd = MMonCommand::from_message(&ask.message).map(|c| c.cmd).unwrap_or_default();
            // As it is now: he may have been given or lost one while this waited.
            let only_fs = Since(self.only_fs(asker));
            let run = MgrRun { boot, id, cmd, only_fs, request: Since((global_id, tid)) };
            out.push(MonEffect::Send(conn, run.into_message(0)));
        }
    }

    /// The manager's answer.
    pub(crate) fn manager_ran(&mut self, manager: &str, ran: MgrRan, out: &mut Vec<MonEffect>) {
        if ran.boot != self.boot() || manager != self.state.mgrmap.active_name {
            return;
        }
        if let Some(ask) = self.proxy.remove(ran.id) {
            let result =
                commands::CommandResult { ret: ran.result, rs: ran.status, data: ran.output };
            self.answer_for_manager(&ask, result, out);
        }
        self.ask_what_waits(out);
    }

    fn answer_for_manager(
        &self,
        ask: &Ask,
        result: commands::CommandResult,
        out: &mut Vec<MonEffect>,
    ) {
        let cmd = MMonCommand::from_message(&ask.message).map(|c| c.cmd).unwrap_or_default();
        let version = u64::from(self.state.osdmap.epoch);
        let commands::CommandResult { ret: result, rs: status, data: output } = result;
        let answer: Message =
            MMonCommandAck { version, result, status, cmd, output }.into_message(ask.message.tid);
        out.push(MonEffect::Send(ask.conn, answer));
        self.forward_done(ask.via, out);
    }

    /// Asks again what was not answered, and gives up what waited too long.
    pub(crate) fn tick_proxy(&mut self, out: &mut Vec<MonEffect>) {
        let now = self.ticks();
        let late: Vec<u64> = self
            .proxy
            .waiting
            .iter()
            .filter(|(_, w)| now >= w.since + PATIENCE)
            .map(|(id, _)| *id)
            .collect();
        for ask in late.into_iter().filter_map(|id| self.proxy.remove(id)).collect::<Vec<_>>() {
            let seconds = PATIENCE / 10;
            let why = match self.session_of_manager() {
                Some(_) => format!("the active manager did not answer for {seconds} s"),
                None => format!(
                    "no manager was active for {seconds} s, and this is one of its commands"
                ),
            };
            self.answer_for_manager(&ask, commands::CommandResult::err(errno::ETIMEDOUT, why), out);
        }
        // Others go first: it may be these that the manager is slow with.
        let again = self
            .proxy
            .waiting
            .iter()
            .filter(|(_, w)| w.sent.is_some_and(|(_, at)| now >= at + AGAIN));
        for id in again.map(|(id, _)| *id).collect::<Vec<_>>() {
            let place = self.proxy.take_number();
            if let Some(w) = self.proxy.waiting.get_mut(&id) {
                (w.sent, w.place) = (None, place);
            }
        }
        self.proxy.forget_left();
        self.ask_what_waits(out);
    }
}
