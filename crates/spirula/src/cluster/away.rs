//! OSDs that are stopped for a while: for a backup, or to be made anew.
//!
//! Whoever stops one so remembers it here first, and has it brought back when its work is done or has failed. One that does not stop in
//! time may stop later, when nobody waits any more: it is remembered until then, and started by [`Cluster::look_after`]. An order to stop
//! it makes it forgotten: then it is to stay away.

use super::{Cluster, OsdSlot, Stopped, locked};
use spirula_types::OsdId;
use std::collections::BTreeSet;
use std::sync::Mutex;

/// How an OSD is whose return is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Now {
    /// It runs, or has not ended yet.
    Running,
    /// It was stopped.
    Stopped,
    /// It failed, and says itself why it does not run.
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

/// The OSDs that come back.
#[derive(Debug, Default)]
pub(super) struct Away(Mutex<BTreeSet<OsdId>>);

impl Away {
    fn remember(&self, id: OsdId) {
        locked(&self.0).insert(id);
    }

    /// It does not come back by itself.
    pub(super) fn forget(&self, id: OsdId) {
        locked(&self.0).remove(&id);
    }

    fn all(&self) -> Vec<OsdId> {
        locked(&self.0).iter().copied().collect()
    }

    /// Is it to be started now? Then, and if it is never to be, it is forgotten.
    fn is_due(&self, id: OsdId, now: Now) -> bool {
        let mut away = locked(&self.0);
        match now {
            Now::Running => false,
            Now::Stopped => away.remove(&id),
            Now::Failed => {
                away.remove(&id);
                false
            }
        }
    }
}

/// Stops each of `ids`, does the work, and brings back each that was asked to stop, whether or not it did and the work was done.
/// The first error counts; the others are told.
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
    /// Does some work while no OSD runs. They run again afterwards, whatever happens. The turn for all must be held.
    ///
    /// # Errors
    /// When an OSD does not stop or start, or that of the work.
    pub fn without_osds<T>(&self, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        meanwhile(&self.running_osds(), |id| self.stop_for_a_while(id), work, |id| self.bring_back(id).map(drop))
    }

    /// [`Cluster::stop_osd_in_turn`] of one that is to come back.
    ///
    /// # Errors
    /// As there. It comes back also then, when it has stopped.
    pub(super) fn stop_for_a_while(&self, id: OsdId) -> anyhow::Result<()> {
        self.0.away.remember(id);
        self.stop_osd_in_turn(id).map(drop)
    }

    /// Starts an OSD that was stopped for a while; one that has not stopped yet comes back when it has. True if it was started.
    ///
    /// # Errors
    /// When it cannot be started: that is why it does not run.
    pub(super) fn bring_back(&self, id: OsdId) -> anyhow::Result<bool> {
        let now = Now::of(locked(&self.0.osds).get(&id));
        let due = self.0.away.is_due(id, now);
        if due {
            self.start_again(id)?;
        }
        Ok(due)
    }

    /// Brings back those that stopped too late for whoever waited for that.
    pub(super) fn bring_back_late(&self) {
        for id in self.0.away.all() {
            // Whoever has the turn brings it back, or it is looked at again then.
            let Ok(_turn) = self.0.turns.of(id, &format!("the return of osd.{id}")) else { continue };
            match self.bring_back(id) {
                Ok(true) => tracing::warn!("osd.{id} runs again: it had stopped too late for what it was stopped for"),
                Ok(false) => {}
                Err(e) => tracing::warn!("osd.{id} does not come back: {e:#}"),
            }
        }
    }

    /// Starts an OSD of whose stop nobody is to be told; if it cannot be started, everybody is.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn start_again(&self, id: OsdId) -> anyhow::Result<()> {
        let started = self.start_osd_in_turn(id).map(drop);
        if let Err(e) = &started {
            let slot = OsdSlot::Stopped(Stopped::of(Some(format!("{e:#}"))));
            locked(&self.0.osds).insert(id, slot);
            self.0.tell_stopped();
        }
        started
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;
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
            let ended = meanwhile(&[1, 2, 3], |id| note("stop", id, bad_stop), work, |id| note("back", id, bad_back));
            (log.into_inner().join(", "), ended.map_err(|e| e.to_string()))
        };
        let whole = "stop 1, stop 2, stop 3, work, back 1, back 2, back 3".to_owned();
        assert_eq!(run(None, false, None), (whole.clone(), Ok(7)));
        assert_eq!(run(None, true, Some(1)), (whole.clone(), Err("work failed".to_owned())));
        assert_eq!(run(None, false, Some(1)), (whole, Err("back 1 failed".to_owned())));
        let cut = "stop 1, stop 2, back 1, back 2".to_owned();
        assert_eq!(run(Some(2), false, None), (cut, Err("stop 2 failed".to_owned())), "it may stop yet");
    }

    #[test]
    fn one_that_stops_late_is_due_once_and_one_that_failed_or_is_to_stay_away_never() {
        let away = Away::default();
        away.remember(1);
        assert!(!away.is_due(1, Now::Running) && !away.is_due(1, Now::Running), "it has not ended");
        assert_eq!(away.all(), [1]);
        assert!(away.is_due(1, Now::Stopped) && !away.is_due(1, Now::Stopped));
        away.remember(2);
        assert!(!away.is_due(2, Now::Failed) && away.all().is_empty());
        away.remember(3);
        away.forget(3);
        assert!(!away.is_due(3, Now::Stopped), "somebody wants it so");
        assert_eq!(Now::of(Some(&OsdSlot::Stopped(Stopped::Asked))), Now::Stopped);
        assert_eq!(Now::of(Some(&OsdSlot::Stopped(Stopped::Store("x".into())))), Now::Failed);
        assert_eq!(Now::of(None), Now::Failed);
    }
}
