//! One session with one monitor at a time.
//!
//! The machine owns: which monitor is tried, what is subscribed to, which commands wait for an
//! answer. It owns no connection: there is at most one, the shell's, and every output is about
//! that one.
//!
//! A monitor that is cut off, stopped, or without a majority sends no maps, while its host may
//! still acknowledge every byte. So the monitor is asked each [`ASK`] for something that only a
//! monitor in the quorum answers; after [`SILENCE`] without any word
//! ([`SILENCE_BUSY`] while an answer is awaited) the next one is tried. A
//! process that was itself not running for longer than [`GAP`] does not count that time as the
//! monitor's silence.
//!
//! A command names the cluster, which is known from the first monitor map on; Ceph's monitors
//! refuse one that names another, or none. So the map is asked for where nobody subscribed to it,
//! and commands wait for it, for [`UNNAMED`] at most in each session: a monitor that answers and
//! has no map to give is asked all the same.

use crate::Mons;
use bytes::Bytes;
use spirula_maps::MonMap;
use spirula_messages::ceph::{
    MMonCommand, MMonCommandAck, MMonGetVersion, MMonGetVersionReply, MMonMap, MMonSubscribe,
    MPoolOp, MPoolOpReply, Subscription, kind,
};
use spirula_messages::{Body, Message};
use spirula_types::{AddrVec, Epoch, Uuid};
use std::collections::BTreeMap;
use std::time::Duration;

/// Between two questions to the monitor whether it is in the quorum.
pub const ASK: Duration = Duration::from_millis(1000);
/// Silence of the monitor after which another one is tried.
pub const SILENCE: Duration = Duration::from_millis(2500);
/// The same while a command or a question waits for its answer, which an election may hold up.
pub const SILENCE_BUSY: Duration = Duration::from_secs(5);
/// The machine looks at its session that often.
const LOOK: Duration = Duration::from_millis(500);
/// How long commands of a session wait for the cluster's name, which comes with the monitor map.
pub const UNNAMED: Duration = Duration::from_secs(5);
/// Ticks further apart than this say that this process did not run.
pub const GAP: Duration = Duration::from_millis(1000);
/// Before the next monitor is tried after one was lost.
pub const RETRY: Duration = Duration::from_millis(100);
/// The same once every monitor was tried in vain since the last session.
pub const RETRY_ALL: Duration = Duration::from_millis(500);

/// The subscription that brings the monitor map.
const MONMAP: &str = "monmap";

/// What the shell is to do.
#[derive(Debug)]
pub enum MonitorOut {
    /// Open the connection; there is none.
    Connect(AddrVec),
    /// Close the connection, whose end need not be told any more.
    Close,
    /// Send over the open connection.
    Send(Message),
    /// A session is open. Subscriptions and commands follow this output.
    Opened,
    /// There is no session any more, or none could be had, and why. The same reason is said once.
    Lost(String),
    /// A command or a question has its answer.
    Answer(u64, Answer),
}

/// The monitors' answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To [`Monitors::command`].
    Command {
        /// 0 or −errno.
        result: i32,
        /// For the reader.
        status: String,
        /// Output.
        output: Bytes,
    },
    /// To [`Monitors::pool_op`].
    PoolOp {
        /// 0 or −errno.
        result: i32,
        /// The OSD map that shows what was done.
        epoch: Epoch,
        /// The number of the new snapshot, if one was asked for.
        snap: Option<u64>,
    },
    /// To [`Monitors::newest`].
    Version {
        /// Newest version of the map.
        newest: u64,
        /// Oldest version that the monitors have.
        oldest: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No connection; the next attempt is made at this time.
    Away(Duration),
    /// The connection is asked for.
    Opening,
    /// There is a session.
    Open,
    /// For good.
    Stopped,
}

#[derive(Debug)]
enum Call {
    Command(Vec<String>, Bytes),
    Newest(String),
    PoolOp(MPoolOp),
}

/// A client's session with the monitors.
#[derive(Debug)]
pub struct Monitors {
    mons: Mons,
    /// The cluster, as its monitor map says; zero before one came. Ceph's monitors refuse a command
    /// that names another one.
    fsid: Uuid,
    /// Until when commands of this session wait for that map; `None` if they do not.
    unnamed: Option<Duration>,
    hostname: String,
    state: State,
    /// Attempts since the last session.
    tried: usize,
    /// When there was a word last, and when the monitor was asked for one.
    heard: Duration,
    asked: Duration,
    ticked: Option<Duration>,
    /// The reason that was told last.
    lost: String,
    /// What is subscribed to, and the version from which on it is wanted.
    wanted: BTreeMap<String, u64>,
    calls: BTreeMap<u64, Call>,
    next_call: u64,
}

impl Monitors {
    /// A client without a session. `hostname` is told with subscriptions, and may be empty.
    pub fn new(mons: Mons, hostname: &str) -> Self {
        Self {
            mons,
            fsid: Uuid::default(),
            unnamed: None,
            hostname: hostname.to_owned(),
            state: State::Away(Duration::ZERO),
            tried: 0,
            heard: Duration::ZERO,
            asked: Duration::ZERO,
            ticked: None,
            lost: String::new(),
            wanted: BTreeMap::new(),
            calls: BTreeMap::new(),
            next_call: 1,
        }
    }

    /// The monitors that are known.
    pub fn mons(&self) -> &Mons {
        &self.mons
    }

    /// True while there is a session.
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// When [`Monitors::tick`] wants to be called, on the clock whose times are given.
    pub fn deadline(&self) -> Duration {
        match self.state {
            State::Away(retry) => retry,
            State::Opening | State::Open => {
                let look = self.ticked.unwrap_or_default() + LOOK;
                self.unnamed.map_or(look, |until| until.min(look))
            }
            State::Stopped => Duration::MAX,
        }
    }

    /// Time has come to `now`.
    pub fn tick(&mut self, now: Duration, out: &mut Vec<MonitorOut>) {
        if self.ticked.is_some_and(|before| now.saturating_sub(before) >= GAP) {
            self.heard = now;
        }
        self.ticked = Some(now);
        if self.unnamed.is_some_and(|until| now >= until) {
            self.end_wait_for_name(out);
        }
        match self.state {
            State::Away(retry) if now >= retry && self.mons.current().is_blank() => {
                self.lose(now, "the monitor's address is not known", out);
            }
            State::Away(retry) if now >= retry => {
                self.state = State::Opening;
                self.heard = now;
                out.push(MonitorOut::Connect(self.mons.current()));
            }
            State::Away(_) | State::Stopped => {}
            State::Opening | State::Open if now.saturating_sub(self.heard) >= self.patience() => {
                out.push(MonitorOut::Close);
                self.lose(now, &format!("no word for {:?}", self.patience()), out);
            }
            State::Open if now.saturating_sub(self.asked) >= ASK => {
                self.asked = now;
                out.push(send(MMonGetVersion { handle: 0, what: "osdmap".into() }, 0));
            }
            State::Opening | State::Open => {}
        }
    }

    /// The connection is open and both sides know each other.
    pub fn opened(&mut self, now: Duration, out: &mut Vec<MonitorOut>) {
        if self.state != State::Opening {
            return;
        }
        self.state = State::Open;
        (self.heard, self.asked, self.tried) = (now, now, 0);
        self.lost.clear();
        out.push(MonitorOut::Opened);
        let what: Vec<Subscription> =
            self.wanted.iter().map(|(what, w)| subscription(what, *w)).collect();
        self.send_subscriptions(what, out);
        if self.fsid.is_zero() {
            self.unnamed = Some(now + UNNAMED);
            if !self.wanted.contains_key(MONMAP) {
                self.ask_once(MONMAP, 0, out);
            }
        }
        for tid in
            self.calls.keys().copied().filter(|tid| !self.waits_for_name(*tid)).collect::<Vec<_>>()
        {
            self.send_call(tid, out);
        }
    }

    /// Is it a command that waits until the cluster is known?
    fn waits_for_name(&self, tid: u64) -> bool {
        self.unnamed.is_some() && matches!(self.calls.get(&tid), Some(Call::Command(..)))
    }

    /// Sends what has waited to know the cluster.
    fn end_wait_for_name(&mut self, out: &mut Vec<MonitorOut>) {
        let waited: Vec<u64> =
            self.calls.keys().copied().filter(|tid| self.waits_for_name(*tid)).collect();
        self.unnamed = None;
        for tid in waited {
            self.send_call(tid, out);
        }
    }

    /// The connection ended, or could not be opened.
    pub fn closed(&mut self, now: Duration, why: &str, out: &mut Vec<MonitorOut>) {
        if matches!(self.state, State::Opening | State::Open) {
            self.lose(now, why, out);
        }
    }

    /// Silence that is borne. Whoever has the right to one command only (a host that joins) is
    /// answered nothing else, not even the question whether the monitor is there.
    fn patience(&self) -> Duration {
        if self.calls.is_empty() { SILENCE } else { SILENCE_BUSY }
    }

    fn lose(&mut self, now: Duration, why: &str, out: &mut Vec<MonitorOut>) {
        self.unnamed = None;
        self.tried += 1;
        let all = self.tried.is_multiple_of(self.mons.all().len().max(1));
        self.state = State::Away(now + if all { RETRY_ALL } else { RETRY });
        self.mons.next();
        if self.lost != why {
            self.lost = why.to_owned();
            out.push(MonitorOut::Lost(why.to_owned()));
        }
    }

    /// The monitor said something. True if nobody else needs to look at it.
    pub fn message(&mut self, now: Duration, m: &Message, out: &mut Vec<MonitorOut>) -> bool {
        if self.state != State::Open {
            return true;
        }
        self.heard = now;
        match m.kind {
            kind::MON_MAP => {
                match mons_of(m) {
                    Ok((fsid, mons)) => {
                        self.fsid = fsid;
                        self.mons.replace(mons);
                        self.end_wait_for_name(out);
                    }
                    Err(e) => tracing::warn!("a monitor map that cannot be read: {e}"),
                }
                true
            }
            kind::MON_COMMAND_ACK => {
                match MMonCommandAck::from_message(m) {
                    Ok(a) if matches!(self.calls.get(&m.tid), Some(Call::Command(..))) => {
                        self.calls.remove(&m.tid);
                        let answer = Answer::Command {
                            result: a.result,
                            status: a.status,
                            output: a.output,
                        };
                        out.push(MonitorOut::Answer(m.tid, answer));
                    }
                    Ok(_) => {}
                    Err(e) => tracing::warn!("an answer that cannot be read: {e}"),
                }
                true
            }
            MPoolOpReply::KIND => {
                match MPoolOpReply::from_message(m) {
                    Ok(a) if matches!(self.calls.get(&m.tid), Some(Call::PoolOp(_))) => {
                        self.calls.remove(&m.tid);
                        let snap = a.data.and_then(|d| spirula_encoding::from_slice(&d).ok());
                        let answer = Answer::PoolOp { result: a.result, epoch: a.epoch, snap };
                        out.push(MonitorOut::Answer(m.tid, answer));
                    }
                    Ok(_) => {}
                    Err(e) => tracing::warn!("an answer that cannot be read: {e}"),
                }
                true
            }
            kind::MON_GET_VERSION_REPLY => {
                match MMonGetVersionReply::from_message(m) {
                    Ok(a) if matches!(self.calls.get(&a.handle), Some(Call::Newest(_))) => {
                        self.calls.remove(&a.handle);
                        let answer = Answer::Version { newest: a.newest, oldest: a.oldest };
                        out.push(MonitorOut::Answer(a.handle, answer));
                    }
                    Ok(_) => {}
                    Err(e) => tracing::warn!("an answer that cannot be read: {e}"),
                }
                true
            }
            _ => false,
        }
    }

    /// Subscribes to `what` from version `start` on (0 for the newest), or goes on from there.
    pub fn subscribe(&mut self, what: &str, start: u64, out: &mut Vec<MonitorOut>) {
        self.set_start(what, start);
        if self.is_open() {
            let one = subscription(what, start);
            self.send_subscriptions(vec![one], out);
        }
    }

    /// Asks for one answer about `what` from version `start` on, in this session only.
    pub fn ask_once(&self, what: &str, start: u64, out: &mut Vec<MonitorOut>) {
        if self.is_open() {
            let one = Subscription { once: true, ..subscription(what, start) };
            self.send_subscriptions(vec![one], out);
        }
    }

    /// The same without telling the monitor now: what a new session will ask for.
    pub fn set_start(&mut self, what: &str, start: u64) {
        self.wanted.insert(what.to_owned(), start);
    }

    /// Runs a command (JSON), with `input`. It is sent again in each new session until it is
    /// answered or given up, as Ceph's clients do; gives the number that the answer carries.
    pub fn command(&mut self, json: String, input: Bytes, out: &mut Vec<MonitorOut>) -> u64 {
        self.call(Call::Command(vec![json], input), out)
    }

    /// Asks for the newest version of a map (`osdmap`, `monmap`, …).
    pub fn newest(&mut self, what: &str, out: &mut Vec<MonitorOut>) -> u64 {
        self.call(Call::Newest(what.to_owned()), out)
    }

    /// Makes or removes a pool or a snapshot; sent again in each new session as commands are.
    pub fn pool_op(&mut self, op: MPoolOp, out: &mut Vec<MonitorOut>) -> u64 {
        self.call(Call::PoolOp(op), out)
    }

    /// The answer to this command or question is not waited for any more.
    pub fn give_up(&mut self, call: u64) {
        self.calls.remove(&call);
    }

    fn call(&mut self, call: Call, out: &mut Vec<MonitorOut>) -> u64 {
        let tid = self.next_call;
        self.next_call += 1;
        self.calls.insert(tid, call);
        if self.is_open() && !self.waits_for_name(tid) {
            self.send_call(tid, out);
        }
        tid
    }

    fn send_call(&self, tid: u64, out: &mut Vec<MonitorOut>) {
        match self.calls.get(&tid) {
            Some(Call::Command(cmd, input)) => {
                let (cmd, input) = (cmd.clone(), input.clone());
                out.push(send(MMonCommand { version: 0, fsid: self.fsid, cmd, input }, tid));
            }
            Some(Call::Newest(what)) => {
                out.push(send(MMonGetVersion { handle: tid, what: what.clone() }, 0))
            }
            Some(Call::PoolOp(op)) => out.push(send(op.clone(), tid)),
            None => {}
        }
    }

    fn send_subscriptions(&self, what: Vec<Subscription>, out: &mut Vec<MonitorOut>) {
        if !what.is_empty() {
            out.push(send(MMonSubscribe { what, hostname: self.hostname.clone() }, 0));
        }
    }

    /// No session is wanted any more.
    pub fn stop(&mut self, out: &mut Vec<MonitorOut>) {
        if matches!(self.state, State::Opening | State::Open) {
            out.push(MonitorOut::Close);
        }
        self.state = State::Stopped;
        self.unnamed = None;
    }
}

/// The cluster of a map, and where its monitors listen.
fn mons_of(m: &Message) -> Result<(Uuid, Vec<AddrVec>), String> {
    let m = MMonMap::from_message(m).map_err(|e| e.to_string())?;
    let map: MonMap = spirula_encoding::from_slice(&m.monmap).map_err(|e| e.to_string())?;
    Ok((map.fsid, map.mons.into_values().map(|m| m.addrs).collect()))
}

fn subscription(what: &str, start: u64) -> Subscription {
    Subscription { what: what.to_owned(), start, once: false }
}

fn send(body: impl Body, tid: u64) -> MonitorOut {
    MonitorOut::Send(body.into_message(tid))
}

#[cfg(test)]
mod tests;
