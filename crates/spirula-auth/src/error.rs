//! Why somebody was refused.

use crate::entity::{EntityId, Service};
use crate::key::KeyType;
use spirula_encoding::DecodeError;
use spirula_types::errno::{EACCES, EINVAL, EOPNOTSUPP};

/// Authentication method "none" on the wire.
pub const METHOD_NONE: u32 = 1;
/// Authentication method "cephx" on the wire.
pub const METHOD_CEPHX: u32 = 2;

/// A refusal. Every kind of bad attempt has its own variant, for logs and tests; the peer only
/// gets [`AuthError::errno`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// The bytes are not such a payload.
    #[error("malformed {what}: {source}")]
    Malformed {
        /// The structure.
        what: &'static str,
        /// What is wrong with it.
        source: DecodeError,
    },
    /// A version of a structure that this program does not know.
    #[error("{what} has version {version}, which this program does not know")]
    Version {
        /// The structure.
        what: &'static str,
        /// The version found.
        version: u8,
    },
    /// More bytes than any honest peer sends.
    #[error("{what} of {len} bytes exceeds the limit of {max}")]
    Oversize {
        /// The thing.
        what: &'static str,
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The payload's first byte names another kind of exchange.
    #[error("auth mode {found} where {expected} is expected")]
    Mode {
        /// Found.
        found: u8,
        /// Expected: 10 towards a monitor, 1 towards a service.
        expected: u8,
    },
    /// Authentication method other than those allowed.
    #[error("auth method {method} is not allowed here; allowed: {allowed:?}")]
    Method {
        /// What the peer wants.
        method: u32,
        /// What it may have.
        allowed: Vec<u32>,
    },
    /// The entity name is none.
    #[error("'{0}' is not an entity name (type.id)")]
    BadName(String),
    /// Nobody of that name.
    #[error("there is no {0}")]
    UnknownEntity(EntityId),
    /// The entity's key is of a type that this cluster refuses.
    #[error("{entity} has a key of type {key_type}, which this cluster does not allow")]
    KeyTypeRefused {
        /// Who.
        entity: EntityId,
        /// Type of the key.
        key_type: KeyType,
    },
    /// The proof of the key is wrong.
    #[error("{0} did not prove knowledge of the key")]
    WrongProof(EntityId),
    /// The exchange was used up or not begun: there is no challenge to answer.
    #[error("no challenge is outstanding")]
    NoChallenge,
    /// A challenge of zero: never sent by an honest server.
    #[error("the server's challenge is zero")]
    ZeroChallenge,
    /// A request that this exchange has no answer for.
    #[error("request {0:#06x} is unknown or not allowed here")]
    Request(u16),
    /// The server answered with an error.
    #[error("the server refused with error {0}")]
    Refused(i32),
    /// The entity has no capability for the monitors.
    #[error("{0} has no mon caps")]
    NoMonCaps(EntityId),
    /// A global id is claimed without the ticket that came with it (CVE-2021-20288).
    #[error("global id {0} is claimed without its ticket")]
    ReclaimWithoutTicket(u64),
    /// A global id is claimed with the ticket of another.
    #[error("global id {claimed} is claimed with the ticket of global id {ticket}")]
    ReclaimOther {
        /// Wanted.
        claimed: u64,
        /// The ticket's.
        ticket: u64,
    },
    /// A global id is claimed by another entity than it was given to.
    #[error("{claimer} claims a global id of {owner}")]
    ReclaimStranger {
        /// Who claims.
        claimer: EntityId,
        /// Whose ticket it is.
        owner: EntityId,
    },
    /// A ticket where none belongs: a new session shows an old ticket.
    #[error("a ticket is presented without a global id to reclaim")]
    SuperfluousTicket,
    /// The proof holds, but there is no number to give for now.
    #[error("no global id to give yet")]
    NoGlobalId,
    /// No ticket where one is needed.
    #[error("the ticket is empty")]
    EmptyTicket,
    /// The ticket's service key is not (or no longer) known.
    #[error("the ticket is sealed with service key {0}, which is unknown or has been rotated away")]
    UnknownSecret(u64),
    /// The ticket does not open: forged, damaged, or sealed for another service or purpose.
    #[error("the ticket is forged or damaged, or for another service")]
    ForgedTicket,
    /// The ticket is not valid any more.
    #[error("the ticket expired at {expired}, it is {now} (seconds since 1970)")]
    Expired {
        /// End of its validity.
        expired: u32,
        /// Now.
        now: u32,
    },
    /// The ticket becomes valid later: the issuer's clock is far ahead, or it is forged.
    #[error("the ticket is from the future: created {created}, now {now} (seconds since 1970)")]
    NotYetValid {
        /// When it was made.
        created: u32,
        /// Now.
        now: u32,
    },
    /// The authorizer names another service than the one it reached.
    #[error("an authorizer for {found} reached {here}")]
    WrongService {
        /// Service number in the authorizer.
        found: u32,
        /// This service.
        here: Service,
    },
    /// The global id outside the ticket is not the one inside.
    #[error("the authorizer claims global id {claimed}, its ticket is for {ticket}")]
    GlobalIdMismatch {
        /// Claimed.
        claimed: u64,
        /// In the ticket.
        ticket: u64,
    },
    /// Something encrypted does not decrypt, or not to what it should be.
    #[error("{0} does not decrypt with the key that belongs to it")]
    Decrypt(&'static str),
    /// The answer to the authorizer's challenge is wrong: a replay.
    #[error("the authorizer does not answer this session's challenge: a replay")]
    WrongChallenge,
    /// The second authorizer is of another ticket or nonce than the first.
    #[error("the second authorizer differs from the first in more than the challenge")]
    AuthorizerChanged,
    /// The service's reply does not prove knowledge of the session key.
    #[error("the reply does not answer our nonce")]
    WrongNonce,
    /// Secure mode without a connection secret, or one of the wrong length.
    #[error("the connection secret has {len} bytes, {expected} are needed")]
    ConnectionSecret {
        /// Found.
        len: usize,
        /// Needed.
        expected: usize,
    },
    /// We hold no ticket for the service.
    #[error("there is no ticket for {0}")]
    NoTicket(Service),
    /// Rotating service keys are only for that service's daemons.
    #[error("{0} may not have service keys")]
    NoRotatingKeys(EntityId),
    /// The key is unfit.
    #[error("bad key: {0}")]
    BadKey(&'static str),
    /// A key of a type that this program does not know.
    #[error("key type {0} is unknown")]
    UnknownKeyType(u16),
}

impl AuthError {
    /// What the peer is told, positive. Malformed bytes are EINVAL, a method that is not offered
    /// EOPNOTSUPP, and all else EACCES: whether the name, the key or the ticket was wrong is not
    /// the peer's business.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Malformed { .. }
            | Self::Version { .. }
            | Self::Oversize { .. }
            | Self::Mode { .. }
            | Self::BadName(_)
            | Self::Request(_) => EINVAL,
            Self::Method { .. } => EOPNOTSUPP,
            _ => EACCES,
        }
    }

    /// For `map_err` on a decoder of `what`.
    pub(crate) fn malformed(what: &'static str) -> impl FnOnce(DecodeError) -> Self {
        move |source| Self::Malformed { what, source }
    }
}

/// Checks an AUTH_REQUEST's method: cephx always, none only where `allow_none` says so.
///
/// # Errors
/// [`AuthError::Method`], with the methods to name in AUTH_BAD_METHOD.
pub fn check_method(method: u32, allow_none: bool) -> Result<(), AuthError> {
    match method {
        METHOD_CEPHX if !allow_none => Ok(()),
        METHOD_NONE if allow_none => Ok(()),
        _ => Err(AuthError::Method {
            method,
            allowed: vec![if allow_none { METHOD_NONE } else { METHOD_CEPHX }],
        }),
    }
}
