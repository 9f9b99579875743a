//! The watches of one object, as its primary knows them.

use crate::api::ConnId;
use crate::exec::{WatchKey, Watcher};
use spirula_types::EntityAddr;
use std::collections::{BTreeMap, BTreeSet};

/// A watch as its primary knows it.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    /// Seconds after which it ends if its client is not heard.
    pub timeout: u32,
    /// From where its client asked for it.
    pub addr: EntityAddr,
    /// The connection by which its client is reached.
    pub conn: Option<ConnId>,
    /// Does its client ping it?
    pub pings: bool,
    /// When it ends, monotonic milliseconds.
    pub ends_ms: u64,
    /// Notifications that wait for its answer.
    pub owes: BTreeSet<u64>,
    /// Is it being removed?
    pub leaving: bool,
    /// When to try again to remove it, monotonic milliseconds; 0: that has not failed.
    pub again_ms: u64,
}

impl Watch {
    /// A watch as it is stored, of which nothing was heard since now.
    pub fn new(w: &Watcher, now_ms: u64) -> Self {
        let ends_ms = now_ms + u64::from(w.timeout) * 1000;
        Self {
            timeout: w.timeout,
            addr: w.addr,
            conn: None,
            pings: false,
            ends_ms,
            owes: BTreeSet::new(),
            leaving: false,
            again_ms: 0,
        }
    }

    /// Its client was heard.
    pub fn renew(&mut self, now_ms: u64) {
        self.ends_ms = now_ms + u64::from(self.timeout) * 1000;
    }
}

/// The watches of an object.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    pub(super) watches: BTreeMap<WatchKey, Watch>,
    /// What is stored is to be looked at again.
    pub(super) unsure: bool,
}

impl Watched {
    /// Is this watch reached by this connection?
    pub fn is_connected(&self, key: WatchKey, conn: ConnId) -> bool {
        self.watches.get(&key).is_some_and(|w| w.conn == Some(conn))
    }
}
