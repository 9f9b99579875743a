//! The one place that reads clocks.

use spirula_encoding::UTime;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

static START: OnceLock<Instant> = OnceLock::new();

/// Wall-clock time, for stamps that people and clients read; it may step.
pub fn wall() -> UTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    UTime { sec: since.as_secs() as u32, nsec: since.subsec_nanos() }
}

/// Monotonic time since the process first asked; never steps.
pub fn monotonic() -> Duration {
    START.get_or_init(Instant::now).elapsed()
}
