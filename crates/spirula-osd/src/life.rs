//! An OSD's own life: marked down though it lives, stopped, failed.
//!
//! A clean stop first gives up the read leases and takes no more requests, then tells the monitor.
//! From then on nothing is served here, so that the map may call us dead and the next primaries
//! need not wait. What was under way ends or is sent again by its client to whoever is next.

use crate::osd::OsdCore;
use crate::osd::RETRY;
use spirula_messages::cluster::control::OsdMarkMeDown;
use spirula_pg::LogLevel;
use spirula_types::Epoch;
use std::collections::VecDeque;
use std::time::Duration;

/// How long a clean stop waits for the monitor's word.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// It asks to be marked up.
    #[default]
    Booting,
    /// The map shows it up.
    Active,
    /// It told the monitor that it stops, and waits for its word until then.
    Stopping(Duration),
    /// It does nothing any more.
    Stopped,
}

/// Where an OSD stands between its start and its end, and what maps said of that.
#[derive(Debug, Default)]
pub(crate) struct Life {
    stage: Stage,
    /// Why it stopped by itself.
    failure: Option<String>,
    /// The newest map shows this incarnation up.
    live: bool,
    /// Newest epoch that showed it up; 0 for none.
    was_up: Epoch,
    /// Newest epoch that showed it not up and that all PGs have seen; 0 for none.
    quiet: Epoch,
    /// When it last asked to be marked up.
    boot_sent: Duration,
    markdowns: Markdowns,
}

/// What a new map changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing, or nothing that counts in this stage.
    None,
    /// It is up now.
    Up,
    /// It is not up any more, though it lives.
    Lost,
}

impl Life {
    /// It asks to be marked up.
    pub fn is_booting(&self) -> bool {
        self.stage == Stage::Booting
    }

    /// The map shows it up, and it is not about to stop.
    pub fn is_active(&self) -> bool {
        self.stage == Stage::Active
    }

    /// It waits for the monitor's word that it may stop.
    pub fn is_stopping(&self) -> bool {
        matches!(self.stage, Stage::Stopping(_))
    }

    /// It does nothing any more.
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Stopped
    }

    /// It has waited for the monitor's word for as long as it waits.
    pub fn has_waited_enough(&self, now: Duration) -> bool {
        matches!(self.stage, Stage::Stopping(patience) if now >= patience)
    }

    /// The newest map shows this incarnation up.
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// Newest epoch that showed it up; 0 for none.
    pub fn was_up(&self) -> Epoch {
        self.was_up
    }

    /// Newest epoch that showed it not up and that all PGs have seen; 0 for none.
    pub fn quiet(&self) -> Epoch {
        self.quiet
    }

    /// Why it stopped by itself.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// In one word, as Ceph's `status` has it.
    pub fn word(&self) -> &'static str {
        match self.stage {
            Stage::Active => "active",
            Stage::Booting => "booting",
            Stage::Stopping(_) | Stage::Stopped => "stopping",
        }
    }

    /// A new map shows this incarnation up, or not. One that is lost is told to
    /// [`OsdCore::wrongly_down`].
    pub fn shown(&mut self, up: bool) -> Turn {
        match (self.stage, up) {
            (Stage::Booting, true) => {
                self.stage = Stage::Active;
                Turn::Up
            }
            (Stage::Active, false) => Turn::Lost,
            _ => Turn::None,
        }
    }

    /// What the map of this epoch says is to count from now on; true if it is the first that shows
    /// it up.
    pub fn is_now(&mut self, up: bool, epoch: Epoch) -> bool {
        let first = up && self.was_up == 0;
        self.live = up;
        if up {
            self.was_up = epoch;
        }
        first
    }

    /// All PGs have seen the map of this epoch, which showed it not up.
    pub fn all_quiet(&mut self, epoch: Epoch) {
        self.quiet = epoch;
    }

    /// It asks to be marked up, at `now`.
    pub fn boots(&mut self, now: Duration) {
        self.boot_sent = now;
    }

    /// It asked for that long enough ago to ask again.
    pub fn may_boot_again(&self, now: Duration) -> bool {
        self.is_booting() && now.saturating_sub(self.boot_sent) >= RETRY
    }
}

/// When this OSD was marked down though it lived.
#[derive(Debug, Default)]
struct Markdowns(VecDeque<Duration>);

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

impl OsdCore {
    /// The map shows us down, and we live. Asks to be marked up again; one that is marked down
    /// again and again does more harm than good, and stops. A mark while we run and do not hear
    /// some of those that are up is no mistake and does not count: the monitors keep us out until
    /// we hear them, for longer each time, so a bad cable makes no OSD stop for good. Who itself
    /// stood still for as long hears nobody either: that counts.
    pub(crate) fn wrongly_down(&mut self) {
        let (id, epoch) = (self.cfg.id, self.maps.epoch());
        let (now, grace) = (self.now.mono, self.grace());
        if self.ran.stood(now) < grace
            && let Some(one) = self.peers.unheard(now, grace).first()
        {
            let text = format!("map e{epoch} marked me down, and I do not hear osd.{one}");
            tracing::warn!("osd.{id}: {text}; asking to be marked up when that is over");
            self.say(LogLevel::Error, text);
            self.life.stage = Stage::Booting;
            return;
        }
        let number = |name, default| self.cfg.settings.number(name).unwrap_or(default);
        let most = number("osd_max_markdown_count", 5);
        let seconds = number("osd_max_markdown_period", 600);
        if self.life.markdowns.one_more(self.now.mono, most, Duration::from_secs(seconds)) {
            let text = format!(
                "osd.{id} was marked down more than {most} times within {seconds} s \
                    (osd_max_markdown_count, osd_max_markdown_period), and stops"
            );
            self.say(LogLevel::Error, text.clone());
            self.flush_log();
            self.fail(&text);
            return;
        }
        tracing::warn!("osd.{id}: map {epoch} marks us down, but we live; asking to be marked up");
        self.say(LogLevel::Error, format!("map e{epoch} wrongly marked me down"));
        self.life.stage = Stage::Booting;
    }

    /// Stops cleanly.
    pub(crate) fn stop(&mut self) {
        match self.life.stage {
            Stage::Active if self.mon.is_open() => {
                if !self.pg_cfg.skips_surrender() {
                    self.leases.surrender();
                }
                let epoch = self.maps.epoch();
                self.mon.send(OsdMarkMeDown { osd: self.cfg.id, uuid: self.cfg.uuid, epoch });
                self.life.stage = Stage::Stopping(self.now.mono + STOP_PATIENCE);
            }
            Stage::Stopping(_) => {}
            _ => self.end(),
        }
    }

    /// The monitor has recorded it.
    pub(crate) fn marked_down(&mut self) {
        if self.life.is_stopping() {
            self.end();
        }
    }

    /// The store, or this OSD, cannot be trusted any more: stop at once, acknowledge nothing.
    pub(crate) fn fail(&mut self, why: &str) {
        tracing::error!("osd.{} stops: {why}", self.cfg.id);
        self.life.failure.get_or_insert_with(|| why.to_owned());
        if self.life.is_active() {
            // The monitor is told, but its word is not waited for: from here on nothing is served.
            // Where it does not arrive, the others' reports or the closed connection say the same,
            // unless all fail at once.
            self.leases.surrender();
            self.say(LogLevel::Error, format!("stops: {why}"));
            self.flush_log();
            let epoch = self.maps.epoch();
            self.mon.send(OsdMarkMeDown { osd: self.cfg.id, uuid: self.cfg.uuid, epoch });
        }
        self.end();
    }

    pub(crate) fn end(&mut self) {
        self.life.stage = Stage::Stopped;
        for s in std::mem::take(&mut self.sessions).into_values() {
            s.link.close();
        }
        self.outside.stop_listening();
        if let Some(store) = self.store.take()
            && let Err(e) = store.close()
        {
            tracing::warn!("osd.{}: closing the store: {e}", self.cfg.id);
        }
        self.peers.close();
        self.mon.stop();
        self.mgr.close();
        self.agenda.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_makes_one_up_that_boots_and_loses_one_that_is_active() {
        let mut life = Life::default();
        assert_eq!((life.shown(false), life.word()), (Turn::None, "booting"));
        assert_eq!((life.shown(true), life.word()), (Turn::Up, "active"));
        assert!(life.is_now(true, 5) && !life.is_now(true, 6), "the first map only");
        assert_eq!((life.shown(true), life.shown(false)), (Turn::None, Turn::Lost));
        life.stage = Stage::Stopping(Duration::from_secs(3));
        assert_eq!((life.shown(true), life.shown(false)), (Turn::None, Turn::None));
        let at = Duration::from_secs;
        assert!(!life.has_waited_enough(at(2)) && life.has_waited_enough(at(3)) && !life.is_over());
    }

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
