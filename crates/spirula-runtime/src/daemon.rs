//! A daemon's loop: a mailbox in front of a state machine.

use crate::link::{NetEvent, NetSink};
use crate::{clock, limits};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// A state machine with I/O at its edges, owned by one task.
pub trait Daemon: Send + 'static {
    /// What arrives in its mailbox: network events and its own (disk completions, …).
    type Event: From<NetEvent> + Send + 'static;

    /// Handles one event. Must not block.
    fn handle(&mut self, event: Self::Event);

    /// Called after each batch of events: the place to send what was gathered.
    fn end_of_batch(&mut self) {}

    /// Called at [`Daemon::deadline`].
    fn tick(&mut self);

    /// When [`Daemon::tick`] wants to be called, on [`clock::monotonic`].
    fn deadline(&self) -> Duration;

    /// True when the daemon is finished and its loop should end.
    fn finished(&self) -> bool;
}

/// The sending side of a daemon's mailbox.
pub struct Mailbox<E> {
    tx: mpsc::UnboundedSender<E>,
    depth: Arc<AtomicUsize>,
}

impl<E> Clone for Mailbox<E> {
    fn clone(&self) -> Self {
        Self { tx: self.tx.clone(), depth: self.depth.clone() }
    }
}

impl<E: From<NetEvent> + Send + 'static> Mailbox<E> {
    /// Puts one event in. The channel itself has no bound; its writers are bounded:
    /// connections stop reading at [`limits::MAILBOX_EVENTS`], and local peers and disks
    /// only answer what was asked of them.
    pub fn push(&self, event: E) {
        self.depth.fetch_add(1, Ordering::Relaxed);
        // The receiver is gone only when the daemon has ended; its events go nowhere.
        let _ = self.tx.send(event);
    }

    /// A sink for network events.
    pub fn sink(&self) -> NetSink {
        self.sink_of(E::from)
    }

    /// One for the events of certain links, which `name` makes the daemon's own of another kind.
    pub fn sink_of(&self, name: fn(NetEvent) -> E) -> NetSink {
        let tx = self.tx.clone();
        NetSink::new(
            Arc::new(move |e| {
                let _ = tx.send(name(e));
            }),
            self.depth.clone(),
        )
    }
}

/// A new mailbox and its receiving side, for [`run`].
pub fn mailbox<E: From<NetEvent> + Send + 'static>() -> (Mailbox<E>, mpsc::UnboundedReceiver<E>) {
    let (tx, rx) = mpsc::unbounded_channel();
    (Mailbox { tx, depth: Arc::default() }, rx)
}

/// Runs `daemon` until it is finished; returns it.
pub async fn run<D: Daemon>(
    mut daemon: D,
    mailbox: Mailbox<D::Event>,
    mut rx: mpsc::UnboundedReceiver<D::Event>,
) -> D {
    let mut batch = Vec::with_capacity(limits::BATCH);
    while !daemon.finished() {
        let now = clock::monotonic();
        let deadline = daemon.deadline();
        if deadline <= now {
            daemon.tick();
            daemon.end_of_batch();
            // A daemon that leaves its deadline in the past must not starve its mailbox.
            if daemon.deadline() <= now {
                tokio::task::yield_now().await;
            }
            if rx.is_empty() {
                continue;
            }
        }
        let wait = deadline.saturating_sub(now);
        let n = if rx.is_empty() {
            match tokio::time::timeout(wait, rx.recv_many(&mut batch, limits::BATCH)).await {
                Ok(n) => n,
                Err(_) => continue,
            }
        } else {
            rx.recv_many(&mut batch, limits::BATCH).await
        };
        if n == 0 {
            break;
        }
        for event in batch.drain(..) {
            daemon.handle(event);
        }
        mailbox.depth.fetch_sub(n, Ordering::Relaxed);
        daemon.end_of_batch();
    }
    daemon
}
