//! The log: to standard error, and no line of it without a limit.
//!
//! A fault that comes again with every message would write gigabytes, and drown what led to it. So
//! each place in the program that logs has an allowance, here, in one place: what is beyond it is
//! counted, and the count is told once the allowance is renewed.
//!
//! A daemon goes on without its log: what cannot be written (a file system that has become
//! read-only or is full, a terminal that was closed) is lost, and stops nothing. So nothing that
//! runs in a daemon may use `println!` or `eprintln!`, which panic; [`say`] and [`print`] do not.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Lines that one place may write in each [`PERIOD`].
const LINES: u32 = 100;
/// How often allowances are renewed.
const PERIOD: Duration = Duration::from_secs(10);

/// What a place has used of its allowance.
struct Used {
    since: Instant,
    lines: u32,
    left_out: u64,
}

/// What becomes of a line.
#[derive(Debug, PartialEq, Eq)]
struct Verdict {
    /// It is written.
    written: bool,
    /// So many before it were not; to be told.
    left_out: u64,
}

impl Used {
    fn new(now: Instant) -> Self {
        Self { since: now, lines: 0, left_out: 0 }
    }

    fn take(&mut self, now: Instant) -> Verdict {
        let mut left_out = 0;
        if now.saturating_duration_since(self.since) >= PERIOD {
            left_out = self.left_out;
            *self = Self::new(now);
        }
        let written = self.lines < LINES;
        if written {
            self.lines += 1;
        } else {
            self.left_out += 1;
        }
        Verdict { written, left_out }
    }
}

/// The limit on what each place writes. There are as many as there are places in the program.
#[derive(Default)]
struct Limit(Mutex<HashMap<Identifier, Used>>);

impl Limit {
    fn verdict(&self, meta: &Metadata<'_>) -> Verdict {
        let now = Instant::now();
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        used.entry(meta.callsite()).or_insert_with(|| Used::new(now)).take(now)
    }
}

impl<S: Subscriber> Layer<S> for Limit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let meta = event.metadata();
        let Verdict { written, left_out } = self.verdict(meta);
        if left_out > 0 {
            // Not by the log itself, of which this is a part.
            let (file, line) = (meta.file().unwrap_or("?"), meta.line().unwrap_or(0));
            say(&format!("{left_out} more lines of {file}:{line} were left out before this one"));
        }
        written
    }
}

/// A line to standard error, or to nobody if that is gone.
pub fn say(line: &str) {
    let _ = Loss(std::io::stderr()).write_all(format!("{line}\n").as_bytes());
}

/// A line to standard output, or to nobody if that is gone.
pub fn print(line: &str) {
    let _ = Loss(std::io::stdout()).write_all(format!("{line}\n").as_bytes());
}

/// Why a daemon ends, to the system's log: our own may be on the file system that is gone.
pub fn last_words(line: &str) {
    // RFC 3164: facility daemon, severity error.
    let text = format!("<27>spirula[{}]: {line}", std::process::id());
    let _ = std::os::unix::net::UnixDatagram::unbound().and_then(|s| s.send_to(text.as_bytes(), "/dev/log"));
}

/// A place to write to that takes everything, and loses what cannot be written.
struct Loss<W>(W);

impl<W: Write> Write for Loss<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let _ = self.0.write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let _ = self.0.flush();
        Ok(())
    }
}

/// Warnings and errors go to stderr, more with `SPIRULA_LOG=info|debug|trace`; the two last are for
/// looking closely, and have no limit.
pub fn init() {
    let level = std::env::var("SPIRULA_LOG").ok().and_then(|l| l.parse().ok()).unwrap_or(LevelFilter::WARN);
    let lines = tracing_subscriber::fmt::layer().with_writer(|| Loss(std::io::stderr()));
    let limit = (level <= LevelFilter::INFO).then(Limit::default);
    // Fails only if a log is set up already, which then is used.
    let _ = tracing_subscriber::registry().with(level).with(limit).with(lines).try_init();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_place_that_repeats_itself_is_cut_short_and_the_count_is_told() {
        let begun = Instant::now();
        let mut used = Used::new(begun);
        for n in 0..1000 {
            assert_eq!(used.take(begun), Verdict { written: n < LINES, left_out: 0 });
        }
        let later = begun + PERIOD;
        assert_eq!(used.take(later), Verdict { written: true, left_out: 1000 - u64::from(LINES) });
        assert_eq!(used.take(later), Verdict { written: true, left_out: 0 });
    }

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);
    impl Write for Sink {
        fn write(&mut self, b: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(b)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// A file system that has become read-only under an open log.
    struct Gone;
    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::ReadOnlyFilesystem.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Err(std::io::ErrorKind::ReadOnlyFilesystem.into())
        }
    }

    #[test]
    fn a_log_that_cannot_be_written_is_lost_without_a_word() {
        assert_eq!(Loss(Gone).write(b"lost").unwrap(), 4);
        Loss(Gone).flush().unwrap();
        // What stands between a daemon and its log must not hear of it: it would say so, to the same place.
        let lines = tracing_subscriber::fmt::layer().with_writer(|| Loss(Gone));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || tracing::error!("lost"));
    }

    #[test]
    fn each_place_has_its_own_allowance() {
        let sink = Sink::default();
        let own = sink.clone();
        let lines = tracing_subscriber::fmt::layer().with_writer(move || own.clone());
        let subscriber = tracing_subscriber::registry().with(LevelFilter::WARN).with(Limit::default()).with(lines);
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..10_000 {
                tracing::error!("again and again");
            }
            tracing::error!("something else");
        });
        let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.matches("again and again").count(), LINES as usize);
        assert_eq!(text.matches("something else").count(), 1);
    }
}
