//! The log: to standard error, and no line of it without a limit.
//!
//! A fault that comes again with every message would write gigabytes, and drown what led to it. So
//! each place in the program that logs has an allowance, here, in one place: what is beyond it is
//! counted, and the count is told once the allowance is renewed.
//!
//! What happened lately is kept, also what was not written: `log dump` writes it. A log that is a
//! file may be given another name and is begun anew by `log reopen`; the descriptor of standard
//! error stays with the old one, for what is no line of the log.
//!
//! A daemon goes on without its log: what cannot be written (a file system that has become
//! read-only or is full, a terminal that was closed) is lost, and stops nothing. So nothing that
//! runs in a daemon may use `println!` or `eprintln!`, which panic; [`say`] and [`print`] do not.

use std::collections::{HashMap, VecDeque};
use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::{Context, Filter, Layer, SubscriberExt};
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

/// Which lines are written: those of a level, and of each place within its limit. There are as many
/// limits as places in the program.
struct Limit {
    level: LevelFilter,
    used: Option<Mutex<HashMap<Identifier, Used>>>,
}

impl Limit {
    /// Of everything at `level`; limited unless that is for looking closely.
    fn new(level: LevelFilter) -> Self {
        Self { level, used: (level <= LevelFilter::INFO).then(Mutex::default) }
    }

    fn verdict(&self, meta: &Metadata<'_>) -> Verdict {
        let Some(used) = &self.used else { return Verdict { written: true, left_out: 0 } };
        let now = Instant::now();
        let mut used = used.lock().unwrap_or_else(PoisonError::into_inner);
        used.entry(meta.callsite()).or_insert_with(|| Used::new(now)).take(now)
    }
}

impl<S: Subscriber> Filter<S> for Limit {
    fn enabled(&self, meta: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        *meta.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
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

/// Lines that are kept for `log dump`, and the longest that each is kept, bytes.
const RECENT: (usize, usize) = (1000, 1 << 10);
/// What is kept, if not more is written: more than is written otherwise.
const GATHERED: LevelFilter = LevelFilter::INFO;

/// What happened lately, written or not.
#[derive(Clone, Default)]
struct Recent(Arc<Mutex<VecDeque<String>>>);

/// Puts an event's fields into a line.
struct Words<'a>(&'a mut String);

impl Visit for Words<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

impl<S: Subscriber> Layer<S> for Recent {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let (meta, mut line) = (event.metadata(), String::new());
        // Into a string nothing fails.
        let _ = SystemTime.format_time(&mut Writer::new(&mut line));
        let _ = write!(line, " {:>5} {}:", meta.level().as_str(), meta.target());
        event.record(&mut Words(&mut line));
        let end = (0..=RECENT.1.min(line.len())).rev().find(|i| line.is_char_boundary(*i));
        line.truncate(end.unwrap_or(0));
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() >= RECENT.0 {
            lines.pop_front();
        }
        lines.push_back(line);
    }
}

/// Where lines go once the log was reopened; before that, and where that is nowhere, to standard
/// error.
static REOPENED: Mutex<Option<File>> = Mutex::new(None);

fn written(bytes: &[u8]) {
    let mut reopened = REOPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = match &mut *reopened {
        Some(file) => file.write_all(bytes),
        None => Loss(std::io::stderr()).write_all(bytes),
    };
}

/// The log as a writer.
struct Lines;

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        written(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What may be ordered of the log.
struct Orders {
    /// The file that standard error was when the process began, if it was one.
    path: Option<PathBuf>,
    recent: Recent,
}

impl spirula_settings::log::Log for Orders {
    fn reopen(&self) -> Result<(), String> {
        let Some(path) = &self.path else {
            return Err(
                "this version logs to standard error, which is no file here: whoever started the \
                    daemon holds it"
                    .into(),
            );
        };
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
        let file = file.map_err(|e| format!("open {}: {e}", path.display()))?;
        *REOPENED.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
        Ok(())
    }

    fn dump(&self) -> Result<(), String> {
        let lines: Vec<String> =
            self.recent.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect();
        let text = lines.iter().map(|l| format!("{l}\n")).collect::<String>();
        written(
            format!(
                "--- begin dump of recent events ---\n{text}--- end dump of recent events ---\n"
            )
            .as_bytes(),
        );
        Ok(())
    }
}

/// The file that standard error is, if it is one that has a name.
fn own_file() -> Option<PathBuf> {
    let path = std::fs::read_link("/proc/self/fd/2").ok()?;
    let is_it = std::fs::metadata(&path).ok()?;
    let own = std::fs::metadata("/proc/self/fd/2").ok()?;
    (own.is_file() && (is_it.dev(), is_it.ino()) == (own.dev(), own.ino())).then_some(path)
}

/// A line to standard error, or to nobody if that is gone.
pub fn say(line: &str) {
    written(format!("{line}\n").as_bytes());
}

/// A line to standard output, or to nobody if that is gone.
pub fn print(line: &str) {
    let _ = Loss(std::io::stdout()).write_all(format!("{line}\n").as_bytes());
}

/// Why a daemon ends, to the system's log: our own may be on the file system that is gone.
pub fn last_words(line: &str) {
    // RFC 3164: facility daemon, severity error.
    let text = format!("<27>spirula[{}]: {line}", std::process::id());
    let _ = std::os::unix::net::UnixDatagram::unbound()
        .and_then(|s| s.send_to(text.as_bytes(), "/dev/log"));
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
    let level =
        std::env::var("SPIRULA_LOG").ok().and_then(|l| l.parse().ok()).unwrap_or(LevelFilter::WARN);
    let recent = Recent::default();
    spirula_settings::log::set(Box::new(Orders { path: own_file(), recent: recent.clone() }));
    // Fails only if a log is set up already, which then is used.
    let _ = tracing_subscriber::registry()
        .with(
            tracing_subscriber::fmt::layer()
                .with_ansi(coloured())
                .with_writer(|| Lines)
                .with_filter(Limit::new(level)),
        )
        .with(recent.with_filter(level.max(GATHERED)))
        .try_init();
}

/// Are lines coloured? On a terminal, unless its user wants none; a file, a pipe and the journal
/// get plain text.
fn coloured() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // What stands between a daemon and its log must not hear of it: it would say so, to the
        // same place.
        let lines = tracing_subscriber::fmt::layer().with_writer(|| Loss(Gone));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
            tracing::error!("lost")
        });
    }

    #[test]
    fn each_place_has_its_own_allowance() {
        let sink = Sink::default();
        let own = sink.clone();
        let lines = tracing_subscriber::fmt::layer().with_writer(move || own.clone());
        let recent = Recent::default();
        let lines = lines.with_filter(Limit::new(LevelFilter::WARN));
        let subscriber =
            tracing_subscriber::registry().with(lines).with(recent.clone().with_filter(GATHERED));
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..10_000 {
                tracing::error!("again and again");
            }
            tracing::error!("something else");
            tracing::info!(what = 7, "{}", "not written");
            tracing::debug!("not kept");
        });
        let kept = recent.0.lock().unwrap();
        assert_eq!(kept.len(), RECENT.0);
        assert!(kept.back().unwrap().contains("not written what=7"), "{kept:?}");
        let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.matches("again and again").count(), LINES as usize);
        assert_eq!(text.matches("something else").count(), 1);
        assert!(!text.contains("not written"));
    }
}
