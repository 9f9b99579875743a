//! The threads that daemons and connections run on.

use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A fixed set of single-threaded event loops. A daemon and all its connections live on one
/// of them, so that nothing between them crosses a thread.
#[derive(Debug)]
pub struct Reactors {
    handles: Vec<Handle>,
    next: AtomicUsize,
    stops: Vec<oneshot::Sender<()>>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Reactors {
    /// Starts `n` threads (at least one).
    ///
    /// # Errors
    /// When a thread or its event loop cannot be made.
    pub fn start(n: usize) -> std::io::Result<Self> {
        let mut r = Self {
            handles: Vec::new(),
            next: AtomicUsize::new(0),
            stops: Vec::new(),
            threads: Vec::new(),
        };
        for i in 0..n.max(1) {
            let runtime =
                Builder::new_current_thread().enable_all().max_blocking_threads(16).build()?;
            r.handles.push(runtime.handle().clone());
            let (stop, stopped) = oneshot::channel();
            r.stops.push(stop);
            let thread =
                std::thread::Builder::new().name(format!("reactor-{i}")).spawn(move || {
                    // Err: the sender was dropped, which also means stop.
                    let _ = runtime.block_on(stopped);
                    runtime.shutdown_background();
                })?;
            r.threads.push(thread);
        }
        Ok(r)
    }

    /// The loop for the next daemon, in turn.
    pub fn next(&self) -> Handle {
        let i = self.next.fetch_add(1, Ordering::Relaxed) % self.handles.len();
        self.handles[i].clone()
    }

    /// Stops all loops and waits for their threads. Tasks still running are dropped.
    pub fn stop(self) {
        for s in self.stops {
            let _ = s.send(());
        }
        for t in self.threads {
            let _ = t.join();
        }
    }
}
