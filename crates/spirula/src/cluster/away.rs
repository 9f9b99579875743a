//! OSDs that are stopped for a while: for a backup, or to be made anew.
//!
//! Whoever stops one so remembers it here first, and has it brought back when its work is done or
//! has failed. One that does not stop in time may stop later, when nobody waits any more: it is
//! remembered until then, and started by [`Cluster::look_after`]. An order to stop it makes it
//! forgotten: then it is to stay away.

use super::{Cluster, OsdSlot, Stopped, locked};
use anyhow::bail;
use spirula_types::OsdId;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// So long after a start that failed it is tried again.
const AGAIN: Duration = Duration::from_secs(30);

/// How an OSD is whose return is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Now {
    /// It runs, or has not ended yet.
    Running,
    /// It was stopped.
    Stopped,
    /// It failed.
    Failed,
}

impl Now {
    fn of(slot: Option<&OsdSlot>) -> Self {
        match slot {
            Some(OsdSlot::Running(_)) => Self::Running,
            Some(OsdSlot::Stopped(Stopped::Asked)) => Self::Stopped,
            Some(OsdSlot::Stopped(_)) | None => Self::Failed,
        }
    }
}

/// The OSDs that come back, and from when on.
#[derive(Debug, Default)]
pub(super) struct Away(Mutex<BTreeMap<OsdId, Instant>>);

impl Away {
    pub(super) fn remember(&self, id: OsdId) {
        locked(&self.0).insert(id, Instant::now());
    }

    /// It does not come back by itself.
    pub(super) fn forget(&self, id: OsdId) {
        locked(&self.0).remove(&id);
    }

    fn all(&self) -> Vec<OsdId> {
        locked(&self.0).keys().copied().collect()
    }

    /// Is it to be started now?
    fn is_due(&self, id: OsdId, slot: Now, now: Instant) -> bool {
        slot != Now::Running && locked(&self.0).get(&id).is_some_and(|from| *from <= now)
    }

    /// A start of it failed: one that was stopped is whole for all that is known, and is tried
    /// again; one that had failed says itself why it does not run.
    fn failed(&self, id: OsdId, slot: Now, now: Instant) {
        match slot {
            Now::Running => {}
            Now::Stopped => drop(locked(&self.0).insert(id, now + AGAIN)),
            Now::Failed => self.forget(id),
        }
    }
}

/// Stops each of `ids`, does the work, and brings back each that was asked to stop, whether or not
/// it did and the work was done. The first error counts; the others are told.
fn meanwhile<T>(
    ids: &[OsdId],
    mut stop: impl FnMut(OsdId) -> anyhow::Result<()>,
    work: impl FnOnce() -> anyhow::Result<T>,
    mut back: impl FnMut(OsdId) -> anyhow::Result<()>,
) -> anyhow::Result<T> {
    let mut asked = Vec::new();
    let stopped = ids.iter().try_for_each(|id| {
        asked.push(*id);
        stop(*id)
    });
    let mut result = stopped.and_then(|()| work());
    for id in asked {
        if let Err(e) = back(id) {
            tracing::warn!("osd.{id} does not come back: {e:#}");
            result = result.and(Err(e));
        }
    }
    result
}

impl Cluster {
    /// Does some work while no OSD runs. They run again afterwards, whatever happens. The turn for
    /// all must be held.
    ///
    /// # Errors
    /// When an OSD does not stop or start, or that of the work.
    pub fn without_osds<T>(&self, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        meanwhile(
            &self.running_osds(),
            |id| self.stop_for_a_while(id),
            work,
            |id| self.bring_back(id).map(drop),
        )
    }

    /// [`Cluster::stop_osd_in_turn`] of one that is to come back.
    ///
    /// # Errors
    /// As there, and if it failed instead: then its store is not as one that was closed. It comes
    /// back also then, when it has stopped.
    pub(super) fn stop_for_a_while(&self, id: OsdId) -> anyhow::Result<()> {
        self.0.away.remember(id);
        self.stop_osd_in_turn(id)?;
        match Now::of(locked(&self.0.osds).get(&id)) {
            Now::Stopped => Ok(()),
            Now::Running | Now::Failed => {
                bail!("osd.{id} failed while it stopped; 'ceph health detail' says why")
            }
        }
    }

    /// Starts an OSD that was stopped for a while; one that has not stopped yet comes back when it
    /// has. True if it was started.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn bring_back(&self, id: OsdId) -> anyhow::Result<bool> {
        let slot = Now::of(locked(&self.0.osds).get(&id));
        if !self.0.away.is_due(id, slot, Instant::now()) {
            return Ok(false);
        }
        match self.start_osd_in_turn(id) {
            Ok(_) => self.0.away.forget(id),
            Err(e) => {
                self.0.away.failed(id, slot, Instant::now());
                return Err(e);
            }
        }
        Ok(true)
    }

    /// Brings back those that stopped too late for whoever waited for that.
    pub(super) fn bring_back_late(&self) {
        for id in self.0.away.all() {
            // A turn is taken only to start it: an order for one that runs is not refused for the
            // sake of a look.
            let slot = Now::of(locked(&self.0.osds).get(&id));
            if !self.0.away.is_due(id, slot, Instant::now()) {
                continue;
            }
            // Whoever has the turn brings it back, or it is looked at again then.
            let Ok(_turn) = self.0.turns.of(id, &format!("the return of osd.{id}")) else {
                continue;
            };
            match self.bring_back(id) {
                Ok(true) => tracing::warn!(
                    "osd.{id} runs again: it had stopped too late for what it was stopped for"
                ),
                Ok(false) => {}
                Err(e) => tracing::warn!("osd.{id} does not come back: {e:#}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn whoever_was_asked_to_stop_comes_back_however_it_ends() {
        let run = |bad_stop: Option<OsdId>, bad_work: bool, bad_back: Option<OsdId>| {
            let log = RefCell::new(Vec::new());
            let note = |what: &str, id: OsdId, bad: Option<OsdId>| {
                log.borrow_mut().push(format!("{what} {id}"));
                if bad == Some(id) { bail!("{what} {id} failed") } else { Ok(()) }
            };
            let work = || {
                log.borrow_mut().push("work".to_owned());
                if bad_work { bail!("work failed") } else { Ok(7) }
            };
            let ended = meanwhile(
                &[1, 2, 3],
                |id| note("stop", id, bad_stop),
                work,
                |id| note("back", id, bad_back),
            );
            (log.into_inner().join(", "), ended.map_err(|e| e.to_string()))
        };
        let whole = "stop 1, stop 2, stop 3, work, back 1, back 2, back 3".to_owned();
        assert_eq!(run(None, false, None), (whole.clone(), Ok(7)));
        assert_eq!(run(None, true, Some(1)), (whole.clone(), Err("work failed".to_owned())));
        assert_eq!(run(None, false, Some(1)), (whole, Err("back 1 failed".to_owned())));
        let cut = "stop 1, stop 2, back 1, back 2".to_owned();
        assert_eq!(
            run(Some(2), false, None),
            (cut, Err("stop 2 failed".to_owned())),
            "it may stop yet"
        );
    }

    #[test]
    fn one_that_stops_late_is_due_until_it_runs_again_and_one_that_failed_once() {
        let (away, begun) = (Away::default(), Instant::now());
        let later = |seconds: u64| begun + Duration::from_secs(60 + seconds);
        away.remember(1);
        assert!(!away.is_due(1, Now::Running, later(0)), "it has not ended");
        assert!(away.is_due(1, Now::Stopped, later(0)));
        away.failed(1, Now::Stopped, later(0));
        assert!(
            !away.is_due(1, Now::Stopped, later(29)) && away.is_due(1, Now::Stopped, later(30))
        );
        away.forget(1);
        assert!(!away.is_due(1, Now::Stopped, later(60)), "it runs, or somebody wants it so");
        away.remember(2);
        assert!(away.is_due(2, Now::Failed, later(0)));
        away.failed(2, Now::Failed, later(0));
        assert!(!away.is_due(2, Now::Failed, later(60)) && away.all().is_empty());
        assert_eq!(Now::of(Some(&OsdSlot::Stopped(Stopped::Asked))), Now::Stopped);
        assert_eq!(Now::of(Some(&OsdSlot::Stopped(Stopped::Store("x".into())))), Now::Failed);
        assert_eq!(Now::of(None), Now::Failed);
    }
}
