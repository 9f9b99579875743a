//! Standard output whose reader may leave: `spirula … | head`.
//!
//! Rust ignores SIGPIPE, and `println!` panics when nobody reads any more. A command that only
//! prints ends quietly instead, as other programs do; a process that runs daemons goes on
//! (`logs::print`).

use std::io::{ErrorKind, Write};

/// Prints a line. Ends the process, quietly, when nobody reads it; a reader that cannot be written
/// to for another reason is told on standard error.
pub fn line(text: std::fmt::Arguments<'_>) {
    bytes(format!("{text}\n").as_bytes());
}

/// The same with bytes as they are.
pub fn bytes(text: &[u8]) {
    let mut out = std::io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(e) => {
            eprintln!("spirula: write to standard output: {e}");
            std::process::exit(1);
        }
    }
}
