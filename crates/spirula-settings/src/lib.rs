//! Options: which there are, what one daemon's are set to and by whom.
//!
//! * [`options`] — the table: name, type, default, meaning
//! * [`known`] — every other option of Ceph's, taken and shown without effect
//! * [`Settings`] — the values of one daemon, by [`Source`]
//! * [`absent`] — the commands of Ceph's manager modules, which are refused by name
//! * [`managers`] — the commands of Ceph's manager that the monitors serve here
//! * [`log`] — what may be ordered of the process's log
//! * [`common`] — commands that every daemon answers alike (`config show`, `version`, `log flush`
//!   …)
//!
//! It reads no file and no environment: the process that starts a daemon does, and hands the
//! values over.

#![cfg_attr(
    test,
    allow(clippy::unwrap_used, reason = "a test that cannot go on should stop where it is")
)]

pub mod absent;
pub mod common;
pub mod known;
pub mod log;
pub mod managers;
pub mod options;
mod settings;

pub use settings::{Settings, Source};
