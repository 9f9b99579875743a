//! Signals for processes that this program did not start.
//!
//! A number is another process's as soon as its owner has ended and was waited for. So the process
//! is held by a descriptor first, then looked at, then signalled by the descriptor: whoever gets
//! the signal is who was looked at.

use crate::litter::born;
use crate::prelude::*;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs;

/// Signals the process with this number if it is the one that is meant, which is asked while it is
/// held. False if that is gone.
///
/// # Errors
/// When it is somebody else's, or the number is none.
pub fn signal_if(pid: u32, signal: Signal, is_meant: impl FnOnce() -> bool) -> Result<bool> {
    let number = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .with_context(|| format!("{pid} is no process"))?;
    let held = match pidfd_open(number, PidfdFlags::empty()) {
        Ok(held) => held,
        Err(Errno::SRCH) => return Ok(false),
        Err(e) => return Err(e).with_context(|| format!("hold process {pid}")),
    };
    if !is_meant() {
        return Ok(false);
    }
    match pidfd_send_signal(&held, signal) {
        Ok(()) => Ok(true),
        Err(Errno::SRCH) => Ok(false),
        Err(e) => Err(e).with_context(|| format!("signal process {pid}")),
    }
}

/// Is this very process there, and more than a zombie?
pub fn lives(pid: u32, since: u64) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let more =
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']));
    more && born(u64::from(pid)) == Some(since)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    #[test]
    fn only_who_is_meant_is_signalled() {
        let mut child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        let pid = child.id();
        let since = born(u64::from(pid)).unwrap();
        let is = |start: u64| move || born(u64::from(pid)) == Some(start);
        assert!(
            !signal_if(pid, Signal::KILL, is(since + 1)).unwrap(),
            "another one had the number before"
        );
        assert!(child.try_wait().unwrap().is_none());
        assert!(signal_if(pid, Signal::KILL, is(since)).unwrap());
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert!(!signal_if(pid, Signal::KILL, is(since)).unwrap());
        assert!(
            signal_if(0, Signal::KILL, || true).is_err()
                && signal_if(u32::MAX, Signal::KILL, || true).is_err()
        );
    }
}
