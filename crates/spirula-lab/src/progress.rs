//! What a person sees while it runs: one line that changes in a terminal, plain lines in a pipe.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Between two plain lines.
const PLAIN: Duration = Duration::from_secs(5);
/// Cells of the bar.
const BAR: usize = 24;

/// Lines on standard error: standard output is for results.
pub struct Progress {
    terminal: bool,
    quiet: bool,
    last: Option<Instant>,
    open: bool,
}

impl Progress {
    /// Prints nothing at all if `quiet`.
    pub fn new(quiet: bool) -> Self {
        Self { terminal: std::io::stderr().is_terminal(), quiet, last: None, open: false }
    }

    fn write(&self, text: &str) {
        // Who does not read is not to stop a measurement.
        let _ = std::io::stderr().lock().write_all(text.as_bytes());
    }

    /// A line that stays.
    pub fn say(&mut self, text: &str) {
        if self.quiet {
            return;
        }
        let begin = if std::mem::take(&mut self.open) { "\r\x1b[K" } else { "" };
        self.write(&format!("{begin}{text}\n"));
    }

    /// How far it is, from 0 to 1, and what is to be said of it.
    pub fn at(&mut self, part: f64, text: &str) {
        let full = (part.clamp(0.0, 1.0) * BAR as f64).round() as usize;
        let bar = format!("[{}{}] ", "█".repeat(full), "·".repeat(BAR - full));
        let head = if self.terminal { bar } else { format!("{:3.0} %  ", part * 100.0) };
        self.show(&head, text);
    }

    /// What is done now, where nobody knows how far it is.
    pub fn now(&mut self, text: &str) {
        self.show("", text);
    }

    fn show(&mut self, head: &str, text: &str) {
        let due = self.last.is_none_or(|at| at.elapsed() >= PLAIN);
        if self.quiet || !self.terminal && !due {
            return;
        }
        self.last = Some(Instant::now());
        if self.terminal {
            self.write(&format!("\r\x1b[K{head}{text}"));
            self.open = true;
        } else {
            self.write(&format!("{head}{text}\n"));
        }
    }

    /// The line that changes is over.
    pub fn end(&mut self) {
        if std::mem::take(&mut self.open) {
            self.write("\r\x1b[K");
        }
        self.last = None;
    }
}

/// `12.3 MB/s` and its like; bytes in units of 1000, as disks and networks are sold.
pub fn bytes_rate(v: f64) -> String {
    let units = ["B/s", "kB/s", "MB/s", "GB/s"];
    let mut v = v;
    let mut u = 0;
    while v >= 1000.0 && u + 1 < units.len() {
        v /= 1000.0;
        u += 1;
    }
    let digits = if v < 10.0 { 2 } else { 1 };
    format!("{v:.digits$} {}", units[u])
}

/// `4 KiB` and its like.
pub fn size(v: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut v, mut u) = (v, 0);
    while v >= 1024 && v.is_multiple_of(1024) && u + 1 < units.len() {
        v /= 1024;
        u += 1;
    }
    format!("{v} {}", units[u])
}

/// Milliseconds with three digits that mean something.
pub fn ms(v: f64) -> String {
    match v {
        v if v >= 100.0 => format!("{v:.0} ms"),
        v if v >= 1.0 => format!("{v:.2} ms"),
        v => format!("{:.0} µs", v * 1000.0),
    }
}
