//! Commands for the active manager: a state machine. Its owner makes the link when one is wanted.
//!
//! A link is only made when something is asked. What has no answer is asked again over each new
//! link, so a command may be done twice where a manager falls between the deed and the answer.

use crate::Told;
use bytes::Bytes;
use spirula_messages::ceph::{MMgrCommand, MMgrCommandReply, MMgrMap};
use spirula_messages::{Body, Message};
use spirula_runtime::{Link, LinkId, NetEvent};
use spirula_types::{AddrVec, Uuid};
use std::collections::BTreeMap;
use std::time::Duration;

/// Before a link is tried again.
const RETRY: Duration = Duration::from_millis(500);
/// Numbers of commands begin here; those of the monitors count from 1 and never come so far.
const FIRST: u64 = 1 << 32;

/// What is asked of the active manager.
#[derive(Default)]
pub(crate) struct Manager {
    /// Where it listens, once a map of managers said so.
    addrs: AddrVec,
    heard: bool,
    /// The link, and whether it is open.
    link: Option<(Link, bool)>,
    retry: Duration,
    /// Commands without an answer.
    calls: BTreeMap<u64, String>,
    next: u64,
}

impl Manager {
    /// No map of managers has come.
    pub fn is_unknown(&self) -> bool {
        !self.heard
    }

    /// Where the active one listens.
    pub fn addrs(&self) -> &AddrVec {
        &self.addrs
    }

    /// Is this the link to it?
    pub fn is(&self, id: LinkId) -> bool {
        self.link.as_ref().is_some_and(|(link, _)| link.id() == id)
    }

    /// A command; its number.
    pub fn command(&mut self, json: String) -> u64 {
        let call = FIRST | self.next;
        self.next += 1;
        self.calls.insert(call, json);
        self.send(call);
        call
    }

    fn lacks_link(&self) -> bool {
        self.link.is_none() && !self.calls.is_empty() && !self.addrs.is_blank()
    }

    /// When a link is wanted.
    pub fn deadline(&self) -> Duration {
        if self.lacks_link() { self.retry } else { Duration::MAX }
    }

    /// Is a link wanted now?
    pub fn wants_link(&self, now: Duration) -> bool {
        self.lacks_link() && now >= self.retry
    }

    /// The link that was wanted.
    pub fn connecting(&mut self, link: Link, now: Duration) {
        self.retry = now + RETRY;
        self.link = Some((link, false));
    }

    /// A map of managers: the active one may be another, or elsewhere.
    pub fn map(&mut self, m: &Message) {
        let Ok(body) = MMgrMap::from_message(m) else { return };
        let Ok(map) = spirula_encoding::from_slice::<spirula_maps::MgrMap>(&body.mgrmap) else {
            return;
        };
        self.heard = true;
        if map.active_addrs != self.addrs {
            self.addrs = map.active_addrs;
            self.stop();
        }
    }

    /// Ends the link.
    pub fn stop(&mut self) {
        if let Some((link, _)) = self.link.take() {
            link.close();
        }
    }

    fn send(&self, call: u64) {
        if let (Some((link, true)), Some(json)) = (&self.link, self.calls.get(&call)) {
            let body =
                MMgrCommand { fsid: Uuid::default(), cmd: vec![json.clone()], input: Bytes::new() };
            link.send(body.into_message(call));
        }
    }

    /// What the network says of the link; the outcome of a command, if it is one.
    pub fn net(&mut self, e: NetEvent) -> Option<(u64, Told)> {
        match e {
            NetEvent::Opened { .. } => {
                if let Some((_, open)) = &mut self.link {
                    *open = true;
                }
                self.calls.keys().for_each(|call| self.send(*call));
            }
            NetEvent::Message(_, m) if m.kind == MMgrCommandReply::KIND => {
                let a = MMgrCommandReply::from_message(&m).ok()?;
                self.calls.remove(&m.tid)?;
                return Some((
                    m.tid,
                    Told { result: a.result, status: a.status, output: a.output },
                ));
            }
            NetEvent::Closed(..) => self.link = None,
            _ => {}
        }
        None
    }
}
