//! What can go wrong.

use std::io;

/// Results of this crate.
pub type Result<T> = std::result::Result<T, TreeError>;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// The device failed.
    #[error("{op} tree page at {at}: {source}")]
    Io {
        /// What was tried: `read`, `write`, `flush`, `publish`.
        op: &'static str,
        /// Address, bytes.
        at: u64,
        /// The device's answer.
        source: io::Error,
    },
    /// A page is not what its parent says. Only reads that need it fail.
    #[error("tree page at {at}: {what}")]
    Corrupt {
        /// Address, bytes.
        at: u64,
        /// In which way.
        what: Damage,
    },
    /// There is no space for the commit. Nothing has changed.
    #[error("no space for the metadata")]
    NoSpace,
    /// A key or value above [`KEY_MAX`](crate::KEY_MAX) or [`VALUE_MAX`](crate::VALUE_MAX).
    #[error("{what} of {bytes} bytes, at most {max} are possible")]
    TooLarge {
        /// `key` or `value`.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The same key twice in one commit.
    #[error("a commit names one key twice")]
    Duplicate,
    /// A write or flush failed before; what is durable is unknown.
    #[error("the tree takes no commits since a write failed")]
    Poisoned,
    /// The bytes are no root, or not one that this program understands.
    #[error("tree root: {0}")]
    Root(&'static str),
    /// The options do not fit.
    #[error("tree options: {0}")]
    Options(&'static str),
}

/// What is wrong with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// Zeros: the write never arrived.
    #[error("blank, its write was lost")]
    Blank,
    /// Not a page of a tree at all.
    #[error("not a page of a tree")]
    Foreign,
    /// A sound page of another tree.
    #[error("belongs to another tree")]
    OtherTree,
    /// A sound page that belongs elsewhere.
    #[error("written for address {0}")]
    Misdirected(u64),
    /// A sound page, but not the one that its parent names: a write was lost.
    #[error("not the expected version, but that of commit {0}: a write was lost")]
    Stale(u64),
    /// Begins and ends in different commits.
    #[error("torn: only a part of it was written")]
    Torn,
    /// The checksum does not fit.
    #[error("rotten: the checksum does not fit")]
    Rotten,
    /// The checksum fits, but the content breaks a rule.
    #[error("malformed: {0}")]
    Malformed(&'static str),
}
