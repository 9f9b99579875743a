//! The one place that reads clocks. A thread that simulates is given its time instead.

use spirula_encoding::UTime;
use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

static START: OnceLock<Instant> = OnceLock::new();

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

/// Monotonic time since the process first asked; never steps.
pub fn monotonic() -> Duration {
    GIVEN.get().map_or_else(|| START.get_or_init(Instant::now).elapsed(), |(monotonic, _)| monotonic)
}

#[cfg(test)]
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
}
