//! Who does the work behind a store: its threads, or its owner step by step.
//!
//! A store is opened without threads, and gets them unless its owner wants to let the work
//! happen itself ([`Store::step`]): then nothing happens at a time of its own choosing, which
//! is what a simulation needs. The work is the same code either way.

use crate::checkpoint::{Checkpointer, Job};
use crate::commit::{COMMITTERS, Committer, Shared, Writer};
use crate::error::{Result, StoreError};
use crate::layout::{self, Layout, Plan};
use crate::room::HostRoom;
use crate::store::{Store, StoreOptions};
use crate::superblock::Identity;
use spirula_types::Uuid;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;

pub use crate::layout::Devices;

/// Threads that write large payloads.
const WRITERS: usize = 3;

/// Who does the work.
#[derive(Default)]
pub(crate) enum Workers {
    /// Nobody (any more).
    #[default]
    None,
    Threads(Vec<JoinHandle<()>>),
    Stepped(Box<Steps>),
}

impl Workers {
    /// Waits for the threads; what was to be done in steps is not done.
    pub fn join(&mut self) {
        if let Self::Threads(threads) = std::mem::take(self) {
            for t in threads {
                // A thread that panicked has poisoned the store, which callers check.
                let _ = t.join();
            }
        }
    }
}

/// The work of the threads, to be done in steps.
pub(crate) struct Steps {
    pub writer: Writer,
    pub committer: Committer,
    pub checkpointer: Checkpointer,
    pub jobs: Receiver<Job>,
}

impl Steps {
    fn step(&mut self) -> bool {
        if self.writer.step() {
            return true;
        }
        if let Ok(job) = self.jobs.try_recv() {
            return self.checkpointer.step(job);
        }
        self.committer.step()
    }
}

impl Store {
    /// Makes a store on `devices`. `draw` gives its devices their ids.
    ///
    /// # Errors
    /// As [`crate::Prepare::run`].
    pub fn format(
        devices: &Devices,
        identity: Identity,
        draw: [Uuid; 4],
        journal_size: u64,
    ) -> Result<()> {
        let [store_uuid, main, journal, meta] = draw;
        let plan = Plan {
            identity,
            store_uuid,
            device_uuids: [main, journal, meta],
            journal_size,
            journal_hint: String::new(),
            meta_hint: String::new(),
        };
        layout::format(devices, &plan).map(drop)
    }

    /// Opens a store on `devices` that does its work only in [`Store::step`]. Dropped, it
    /// leaves undone what was not done: as a crash.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_stepped(
        devices: &Devices,
        expected: Option<Identity>,
        opts: &StoreOptions,
        on_commit: Box<dyn Fn(u64) + Send>,
        on_error: Box<dyn Fn(StoreError) + Send>,
    ) -> Result<Self> {
        Self::arm(Layout::read(devices, expected)?, Vec::new(), opts, on_commit, on_error)
    }

    /// Does one piece of work: a payload, a checkpoint, a frame. False if there is nothing to
    /// do, or the store has threads for it.
    pub fn step(&mut self) -> bool {
        match &mut self.workers {
            Workers::Stepped(steps) => steps.step(),
            _ => false,
        }
    }

    /// Waits until `done` or the store has failed.
    pub(crate) fn wait(&mut self, done: impl Fn(&Shared) -> bool) {
        if let Workers::Stepped(steps) = &mut self.workers {
            while !self.shared.met(&done) && steps.step() {}
        } else {
            self.shared.wait(done);
        }
    }

    /// Lets threads do the work from now on.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub(crate) fn run(mut self) -> Result<Self> {
        let Workers::Stepped(steps) = std::mem::take(&mut self.workers) else { return Ok(self) };
        self.room = HostRoom::default();
        let Steps { writer, committer, checkpointer, jobs } = *steps;
        let id = self.identity.osd_id;
        let mut threads = Vec::new();
        for _ in 0..WRITERS {
            let writer = writer.clone();
            threads.push(self.spawn(format!("write.{id}"), move || writer.run())?);
        }
        let committer = Arc::new(committer);
        for n in 0..COMMITTERS {
            let committer = committer.clone();
            threads.push(self.spawn(format!("commit.{id}"), move || committer.run(n == 0))?);
        }
        // The checkpoint thread works until the last of them is gone.
        drop(committer);
        threads.push(self.spawn(format!("checkpoint.{id}"), move || checkpointer.run(jobs))?);
        self.workers = Workers::Threads(threads);
        Ok(self)
    }

    fn spawn(&self, name: String, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
        /// Lets a panic in a thread stop the store instead of leaving its owner to wait.
        struct Guard(Arc<Shared>, String);
        impl Drop for Guard {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.poison(StoreError::Poisoned(format!("thread {} panicked", self.1)));
                }
            }
        }
        let guard = Guard(self.shared.clone(), name.clone());
        #[cfg(test)]
        let bug = crate::planted::copy();
        let run = move || {
            #[cfg(test)]
            crate::planted::plant(bug);
            let _guard = guard;
            work();
        };
        std::thread::Builder::new()
            .name(name)
            .spawn(run)
            .map_err(|e| StoreError::io("start", "thread", e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{IDENTITY, create, tiny};
    use spirula_types::HObject;
    use spirula_types::transaction::{ObjectOp, ObjectUpdate, Transaction};
    use std::sync::Mutex;

    fn write(n: u8) -> Transaction {
        let object = HObject::head(1, "".into(), "".into(), "o".into());
        let ops =
            vec![ObjectOp::Touch, ObjectOp::Write { offset: 0, data: vec![n; 100 << 10].into() }];
        Transaction { objects: vec![ObjectUpdate { object, ops }], meta: Vec::new() }
    }

    #[test]
    fn a_stepped_store_does_nothing_by_itself_and_loses_what_it_did_not_do() {
        let (world, durable) = (create(&tiny()), Arc::new(Mutex::new(0)));
        let open = || {
            let seen = durable.clone();
            let done = Box::new(move |seq| *seen.lock().unwrap() = seq);
            Store::open_stepped(
                &world.devices(),
                Some(IDENTITY),
                &tiny(),
                done,
                Box::new(|e| panic!("{e}")),
            )
            .unwrap()
        };
        let mut s = open();
        let first = s.submit(write(1)).unwrap();
        assert_eq!(*durable.lock().unwrap(), 0);
        assert!(s.step() && *durable.lock().unwrap() == 0, "the payload comes before the frame");
        assert!(s.step() && *durable.lock().unwrap() == first);
        while s.step() {}
        s.submit(write(2)).unwrap();
        drop(s);
        let s = open();
        let object = &write(1).objects[0].object;
        assert_eq!(s.read_blocking(object, 0, 2).unwrap().unwrap(), [1u8, 1][..]);
        s.close().unwrap();
        let mut s = open();
        assert_eq!(s.last_seq(), first);
        assert!(!s.step(), "a clean store has nothing to do");
    }
}
