//! The one place that reads clocks. The thread of a test may be given its time instead.
//!
//! The monotonic clock is CLOCK_BOOTTIME, which goes on while the machine is suspended; `std`'s
//! `Instant` (CLOCK_MONOTONIC) stands still. Read leases are counted on it (`spirula_pg::Leases`).
//! On a clock that stands still an OSD that slept would wake up with leases that ended long ago for
//! those who gave them, and serve data that others have overwritten. So after a suspend every lease
//! has ended, every deadline is due, and an OSD sees that the silence of others meanwhile was its
//! own. The same holds for a process that was stopped (SIGSTOP), and for a virtual machine whose
//! clock goes on while it does not run. A virtual machine that its hypervisor pauses **with its
//! clocks** cannot notice by itself, since nothing in it shows that time has passed. Until it hears
//! of a new map, at most the rest of a lease after it goes on, its OSDs may serve reads of PGs that
//! others lead by then. Such pauses must be shorter than 600 ms (`spirula_pg::PAUSE_MS`: a holder
//! uses so much less of each lease), as those of live migrations are.

use rustix::time::{ClockId, clock_gettime};
use spirula_encoding::UTime;
use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

static START: OnceLock<Duration> = OnceLock::new();

thread_local! {
    static GIVEN: Cell<Option<(Duration, UTime)>> = const { Cell::new(None) };
}

/// From now on it is this time in this thread, monotonic and on the wall, until it is given
/// another; `None`: the machine's time.
pub fn give(time: Option<(Duration, UTime)>) {
    GIVEN.set(time);
}

/// Wall-clock time, for stamps that people and clients read; it may step.
pub fn wall() -> UTime {
    if let Some((_, wall)) = GIVEN.get() {
        return wall;
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    UTime { sec: since.as_secs() as u32, nsec: since.subsec_nanos() }
}

/// Time since the process first asked, suspends of the machine included; never steps back.
pub fn monotonic() -> Duration {
    GIVEN.get().map_or_else(
        || since_boot().saturating_sub(*START.get_or_init(since_boot)),
        |(monotonic, _)| monotonic,
    )
}

fn since_boot() -> Duration {
    let t = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(t.tv_sec).unwrap_or(0), u32::try_from(t.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_given_its_time_has_it_alone() {
        let wall_then = UTime { sec: 7, nsec: 8 };
        give(Some((Duration::from_secs(5), wall_then)));
        assert_eq!((monotonic(), wall()), (Duration::from_secs(5), wall_then));
        std::thread::spawn(move || assert_ne!(wall(), wall_then)).join().unwrap();
        give(None);
        assert_ne!(wall(), wall_then);
    }

    #[test]
    fn the_monotonic_clock_is_the_one_that_counts_suspends() {
        let first = monotonic();
        let start = *START.get().unwrap();
        let before = since_boot();
        let now = monotonic();
        assert!(first <= now && before <= start + now && start + now <= since_boot());
        // As the kernel tells it to everybody, in hundredths of a second.
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let uptime: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        assert!(
            uptime + 0.011 >= before.as_secs_f64() && uptime <= since_boot().as_secs_f64() + 0.011
        );
    }
}
