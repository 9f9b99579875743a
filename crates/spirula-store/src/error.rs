//! What can go wrong in a store, in words an operator can act on.

use spirula_types::HObject;

/// Why a store operation failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The transaction needs more space than may be given out. Nothing was applied.
    #[error("no space: {needed} bytes needed, {available} available")]
    NoSpace {
        /// Bytes the transaction asked for at the point where it failed.
        needed: u64,
        /// Bytes it could have had.
        available: u64,
    },
    /// Stored data does not match its checksum. The bytes are not returned.
    #[error("checksum mismatch in {object} at offset {offset}")]
    Checksum {
        /// The object read.
        object: Box<HObject>,
        /// Object offset of the first bad block.
        offset: u64,
    },
    /// The device does not give back what is stored of an object.
    #[error("read {file} for {object}: {why}")]
    Unreadable {
        /// The object.
        object: Box<HObject>,
        /// The device.
        file: String,
        /// The system's words.
        why: String,
    },
    /// A device or file operation failed.
    #[error("{action} {file}: {why}")]
    Io {
        /// What was attempted ("write", "flush" …).
        action: &'static str,
        /// The file.
        file: String,
        /// The system's words.
        why: String,
    },
    /// A write or flush failed earlier: the store refuses work until it is opened again.
    #[error("store stopped after a failure: {0}")]
    Poisoned(String),
    /// The directory cannot be used as this store; nothing was written.
    #[error("{file}: {why}; {advice}")]
    Refused {
        /// The file or directory at fault.
        file: String,
        /// What is wrong with it.
        why: String,
        /// What to do.
        advice: String,
    },
    /// Metadata read back makes no sense.
    #[error("corrupt metadata: {0}; replace the OSD and let the cluster recover it")]
    Corrupt(String),
    /// A name, value, object or transaction beyond the store's limits. Nothing was applied.
    #[error("{what} too large: {size} bytes, at most {limit}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// The object to clone from does not exist. Nothing was applied.
    #[error("clone source {0} does not exist")]
    NoSource(Box<HObject>),
}

impl StoreError {
    pub(crate) fn io(
        action: &'static str,
        file: impl Into<String>,
        e: impl std::fmt::Display,
    ) -> Self {
        Self::Io { action, file: file.into(), why: e.to_string() }
    }

    pub(crate) fn unreadable(
        object: &HObject,
        file: impl Into<String>,
        e: impl std::fmt::Display,
    ) -> Self {
        Self::Unreadable { object: object.clone().into(), file: file.into(), why: e.to_string() }
    }

    pub(crate) fn corrupt(what: impl std::fmt::Display) -> Self {
        Self::Corrupt(what.to_string())
    }
}

/// Results of store operations.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;
