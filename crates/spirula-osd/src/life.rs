//! An OSD's own life: marked down though it lives, stopped, failed.
//!
//! A clean stop first gives up the read leases and takes no more requests, then tells the monitor.
//! From then on nothing is served here, so that the map may call us dead and the next primaries
//! need not wait. What was under way ends or is sent again by its client to whoever is next.

use crate::daemon::{Life, Osd};
use spirula_messages::cluster::control::OsdMarkMeDown;
use spirula_runtime::clock;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long a clean stop waits for the monitor's word.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// When this OSD was marked down though it lived.
#[derive(Debug, Default)]
pub(crate) struct Markdowns(VecDeque<Duration>);

impl Markdowns {
    /// One more, at `now`; true if that makes more than `most` within `period`.
    fn one_more(&mut self, now: Duration, most: u64, period: Duration) -> bool {
        self.0.push_back(now);
        while self.0.front().is_some_and(|at| now.saturating_sub(*at) > period) {
            self.0.pop_front();
        }
        self.0.len() as u64 > most
    }
}

impl Osd {
    /// The map shows us down, and we live. Asks to be marked up again; one that is marked down
    /// again and again does more harm than good, and stops. A mark while we run and do not hear some of those that are up is no
    /// mistake and does not count: the monitors keep us out until we hear them, for longer each time, so a bad cable
    /// makes no OSD stop for good. Who itself stood still for as long hears nobody either: that counts.
    pub(crate) fn wrongly_down(&mut self) {
        let (id, epoch) = (self.cfg.id, self.maps.epoch());
        let (now, grace) = (clock::monotonic(), self.grace());
        if self.ran.stood(now) < grace
            && let Some(one) = self.peers.unheard(now, grace).first()
        {
            let text = format!("map e{epoch} marked me down, and I do not hear osd.{one}");
            tracing::warn!("osd.{id}: {text}; asking to be marked up when that is over");
            self.clog.say(true, text);
            self.life = Life::Booting;
            return;
        }
        let number = |name, default| self.cfg.settings.number(name).unwrap_or(default);
        let most = number("osd_max_markdown_count", 5);
        let seconds = number("osd_max_markdown_period", 600);
        if self.markdowns.one_more(clock::monotonic(), most, Duration::from_secs(seconds)) {
            let text = format!(
                "osd.{id} was marked down more than {most} times within {seconds} s (osd_max_markdown_count, osd_max_markdown_period), and stops"
            );
            self.clog.say(true, text.clone());
            self.flush_log();
            self.fail(&text);
            return;
        }
        tracing::warn!("osd.{id}: map {epoch} marks us down, but we live; asking to be marked up");
        self.clog.say(true, format!("map e{epoch} wrongly marked me down"));
        self.life = Life::Booting;
    }

    /// Stops cleanly.
    pub(crate) fn stop(&mut self, done: Option<oneshot::Sender<()>>) {
        self.stop_waiters.extend(done);
        match self.life {
            Life::Active if self.mon.is_open() => {
                if !self.pg_cfg.skips_surrender() {
                    self.leases.surrender();
                }
                let epoch = self.maps.epoch();
                self.mon.send(OsdMarkMeDown { osd: self.cfg.id, uuid: self.cfg.uuid, epoch });
                self.life = Life::Stopping(clock::monotonic() + STOP_PATIENCE);
            }
            Life::Stopping(_) => {}
            _ => self.end(),
        }
    }

    /// The monitor has recorded it.
    pub(crate) fn marked_down(&mut self) {
        if let Life::Stopping(_) = self.life {
            self.end();
        }
    }

    /// The store, or this OSD, cannot be trusted any more: stop at once, acknowledge nothing.
    pub(crate) fn fail(&mut self, why: &str) {
        tracing::error!("osd.{} stops: {why}", self.cfg.id);
        self.failure.get_or_insert_with(|| why.to_owned());
        if self.life == Life::Active {
            // The monitor is told, but its word is not waited for: from here on nothing is served. Where
            // it does not arrive, the others' reports or the closed connection say the same, unless all fail at once.
            self.leases.surrender();
            self.clog.say(true, format!("stops: {why}"));
            self.flush_log();
            let epoch = self.maps.epoch();
            self.mon.send(OsdMarkMeDown { osd: self.cfg.id, uuid: self.cfg.uuid, epoch });
        }
        self.end();
    }

    pub(crate) fn end(&mut self) {
        self.life = Life::Stopped;
        for s in std::mem::take(&mut self.sessions).into_values() {
            s.link.close();
        }
        self.listeners.clear();
        if let Some(store) = self.store.take()
            && let Err(e) = store.close()
        {
            tracing::warn!("osd.{}: closing the store: {e}", self.cfg.id);
        }
        self.peers.close();
        self.mon.stop();
        if let Some(link) = self.mgr.take() {
            link.close();
        }
        self.effects.clear();
        self.answers.clear();
        for done in self.stop_waiters.drain(..) {
            // Whoever asked may have gone.
            let _ = done.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markdowns_count_within_their_period_only() {
        let mut m = Markdowns::default();
        let at = |s| Duration::from_secs(s);
        assert!(!m.one_more(at(0), 2, at(600)));
        assert!(!m.one_more(at(10), 2, at(600)));
        assert!(!m.one_more(at(605), 2, at(600)));
        assert!(m.one_more(at(607), 2, at(600)));
    }
}
