//! Capabilities: what somebody may do, as Ceph writes it.
//!
//! Four grammars, one for each kind of daemon; each a list of grants separated by `,` or `;`. What
//! no grant allows is refused. Texts that do not parse grant nothing and say where reading stopped,
//! in Ceph's words. Grammars and profiles as of 16.2.15, with which `tests/data/caps-16.2.15.jsonl`
//! (some 400 texts, put to a real monitor) agrees; `simple-rados-client-with-blocklist` and other
//! later profiles as of 18.2.

mod constraint;
mod mds;
mod mgr;
mod mon;
mod network;
mod osd;
#[cfg(test)]
mod profiles;
mod scan;

pub use constraint::Constraint;
pub use mds::{MdsAccess, MdsCaps};
pub use mgr::{MODULES, MgrAccess, MgrCaps};
pub use mon::{MonAccess, MonCaps};
pub use network::Network;
pub use osd::{AppMetadata, ClassCall, OsdAccess, OsdCaps};

use std::collections::BTreeMap;
use std::str::FromStr;

/// Longest text of capabilities for one service, in bytes.
pub const MAX_TEXT: usize = 16 << 10;

/// Why a text is no capability. Displays as Ceph's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CapsError {
    /// Reading stopped before the end.
    #[error("{service} capability parse failed, stopped at '{}' of '{text}'", text.get(*at..).unwrap_or_default())]
    Stopped {
        /// `mon`, `osd`, `mgr`, `mds`.
        service: &'static str,
        /// Byte at which reading stopped.
        at: usize,
        /// The whole text.
        text: String,
    },
    /// There is no text.
    #[error("{service} capability parse failed, stopped at end of ''")]
    Empty {
        /// `mon` or `mgr`.
        service: &'static str,
    },
    /// A profile cannot be used like that.
    #[error("mgr capability parse failed during profile evaluation: {0}")]
    Profile(String),
    /// There is no service of that name.
    #[error("unknown cap type '{0}'")]
    Service(String),
    /// The text is absurdly long.
    #[error("{service} capability has {len} bytes, at most {MAX_TEXT} are allowed")]
    TooLong {
        /// For which service.
        service: &'static str,
        /// Its length.
        len: usize,
    },
}

/// Checks a text for a service, as every command does that takes capabilities.
///
/// # Errors
/// [`CapsError`].
pub fn validate(service: &str, text: &str) -> Result<(), CapsError> {
    match service {
        "mon" => MonCaps::from_str(text).map(|_| ()),
        "osd" => OsdCaps::from_str(text).map(|_| ()),
        "mgr" => MgrCaps::from_str(text).map(|_| ()),
        "mds" => MdsCaps::from_str(text).map(|_| ()),
        _ => Err(CapsError::Service(service.to_owned())),
    }
}

/// Checks the length of a text alone, as where capabilities are kept unread.
///
/// # Errors
/// [`CapsError::TooLong`].
pub fn bound(text: &str) -> Result<(), CapsError> {
    bounded("each", text)
}

/// Read, write, execute, and `*`, which is more than the three together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rwx {
    pub r: bool,
    pub w: bool,
    pub x: bool,
    pub any: bool,
}

impl Rwx {
    pub const R: Self = Self { r: true, w: false, x: false, any: false };
    pub const W: Self = Self { r: false, w: true, x: false, any: false };
    pub const RW: Self = Self { r: true, w: true, x: false, any: false };
    pub const RX: Self = Self { r: true, w: false, x: true, any: false };
    pub const RWX: Self = Self { r: true, w: true, x: true, any: false };
    pub const ANY: Self = Self { r: true, w: true, x: true, any: true };

    pub fn or(self, o: Self) -> Self {
        Self { r: self.r | o.r, w: self.w | o.w, x: self.x | o.x, any: self.any | o.any }
    }

    /// True if it covers the needs.
    pub fn covers(self, read: bool, write: bool, exec: bool) -> bool {
        (!read || self.r) && (!write || self.w) && (!exec || self.x)
    }
}

/// Named arguments of a command.
pub type Args = BTreeMap<String, String>;

fn bounded(service: &'static str, text: &str) -> Result<(), CapsError> {
    if text.len() > MAX_TEXT {
        Err(CapsError::TooLong { service, len: text.len() })
    } else {
        Ok(())
    }
}
