//! The process's log, for the orders about it that every daemon understands. The log itself is the
//! process's matter.

use std::sync::OnceLock;

/// What may be ordered of a log.
pub trait Log: Send + Sync {
    /// Goes on in the file of the log's name, which is made if it is not there: somebody has given
    /// the old one another name.
    ///
    /// # Errors
    /// Why not; it goes on as before then.
    fn reopen(&self) -> Result<(), String>;

    /// Writes into the log what happened lately, also what was not written when it happened.
    ///
    /// # Errors
    /// Why not.
    fn dump(&self) -> Result<(), String>;
}

static LOG: OnceLock<Box<dyn Log>> = OnceLock::new();

/// Says which log this process has. Only the first word counts.
pub fn set(log: Box<dyn Log>) {
    // A process has one log, set up at its start.
    let _ = LOG.set(log);
}

/// The process's log, if it said which.
pub fn get() -> Option<&'static dyn Log> {
    LOG.get().map(AsRef::as_ref)
}
