//! `spirula`: one binary, every role.
//!
//! This crate is the edge that people touch: arguments, the cluster directory, progress,
//! exit codes. `up` assembles the daemons of the other crates into one process
//! ([`cluster`]); `down` and `status` talk to it over its control socket ([`control`]).
//!
//! Exit codes: 0 done; 1 failed, with the reason on stderr; 2 wrong usage; 3 the cluster is
//! not in the state the command needs (already running, not running).

#![allow(
    clippy::disallowed_methods,
    reason = "the binary owns processes; its tables are looked up"
)]

mod asok;
mod backup;
mod block;
mod cli;
mod cluster;
mod conf;
mod conf_file;
mod control;
mod dir;
mod found;
mod guard;
mod guests;
mod join;
mod keys;
mod lab;
mod local;
mod logs;
mod man;
mod memory;
mod net;
mod options;
mod osd_prepare;
mod process;
mod quiet;
mod remote;
mod signals;
mod size;
mod srv;
mod status;
mod store_cmd;
mod up;

use std::process::ExitCode;

/// `println!` for commands whose reader may leave.
macro_rules! out {
    ($($text:tt)*) => { crate::quiet::line(format_args!($($text)*)) };
}
pub(crate) use out;

/// A tenth of the reactor's time went into glibc's allocator: payload-sized and tiny blocks
/// in turn, freed by other threads than took them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A failure that a script can tell from others by the exit code.
#[derive(Debug)]
struct Unmet(String);

impl std::fmt::Display for Unmet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Unmet {}

fn main() -> ExitCode {
    guard::private_by_default();
    memory::without_huge_pages();
    guard::raise_descriptors();
    let args = match cli::expanded(std::env::args_os().collect()) {
        Ok(words) => cli::Args::of(words),
        Err(why) => {
            eprintln!("spirula: {why}");
            return ExitCode::from(2);
        }
    };
    match args.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            logs::say(&format!("spirula: {e:#}"));
            ExitCode::from(if e.is::<Unmet>() { 3 } else { 1 })
        }
    }
}
