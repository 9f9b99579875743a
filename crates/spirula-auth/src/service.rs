//! The side of osd, mgr, mds — and of a monitor towards other monitors: authorizers.
//!
//! A client shows a ticket and proves that it has the ticket's session key, by answering a
//! challenge that is new for each connection; a recorded authorizer is therefore worthless. The
//! service proves that it could open the ticket by answering the client's nonce.

use crate::entity::{EntityId, Service};
use crate::entropy::{self, Entropy};
use crate::error::AuthError;
use crate::key::{CryptoKey, KeyType, Usage};
use crate::ticket::{Ticket, TicketKeys};
use crate::wire::{
    self, Authorize, AuthorizeReply, AuthorizerParts, MAX_PAYLOAD, SECURE_SECRET_LEN,
};
use spirula_encoding::{Encoder, UTime};
use zeroize::Zeroizing;

/// One connection's exchange at a service.
#[derive(Debug)]
pub struct ServiceExchange {
    service: Service,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Fresh,
    Challenged { challenge: u64, first: Box<AuthorizerParts>, nonce: u64 },
    Over,
}

/// What to send next.
#[derive(Debug)]
pub enum ServiceStep {
    /// AUTH_REPLY_MORE with this payload.
    More(Vec<u8>),
    /// AUTH_DONE.
    Done(Box<Authorized>),
}

/// Somebody with a valid ticket.
#[derive(Debug)]
pub struct Authorized {
    /// Who.
    pub entity: EntityId,
    /// Its number in the cluster, for AUTH_DONE.
    pub global_id: u64,
    /// Its capabilities for this service, as text; empty: none.
    pub caps: String,
    /// End of the ticket's validity.
    pub expires: UTime,
    /// Key of AUTH_SIGNATURE.
    pub session_key: CryptoKey,
    /// Key material of secure mode (64 bytes), empty in crc mode.
    pub connection_secret: Zeroizing<Vec<u8>>,
    /// Payload of AUTH_DONE.
    pub payload: Vec<u8>,
}

impl ServiceExchange {
    /// For a new connection to a daemon of `service`.
    pub fn new(service: Service) -> Self {
        Self { service, stage: Stage::Fresh }
    }

    /// Takes an AUTH_REQUEST's or AUTH_REQUEST_MORE's payload. `secure` is the connection's mode.
    ///
    /// # Errors
    /// [`AuthError`]; the exchange is over then.
    pub fn step(
        &mut self,
        payload: &[u8],
        secure: bool,
        keys: &dyn TicketKeys,
        now: UTime,
        entropy: &mut dyn Entropy,
    ) -> Result<ServiceStep, AuthError> {
        let stage = std::mem::replace(&mut self.stage, Stage::Over);
        let mut d = wire::bounded("authorizer", payload, MAX_PAYLOAD)?;
        let parts = AuthorizerParts::read(&mut d)?;
        d.finish().map_err(AuthError::malformed("authorizer"))?;
        if parts.service != self.service.wire() {
            return Err(AuthError::WrongService { found: parts.service, here: self.service });
        }
        let ticket = Ticket::open(self.service, &parts.ticket, keys, now)?;
        if ticket.global_id != parts.global_id {
            return Err(AuthError::GlobalIdMismatch {
                claimed: parts.global_id,
                ticket: ticket.global_id,
            });
        }
        let key_type = ticket.session_key.key_type();
        if ticket.entity.is_own_daemon() && key_type != KeyType::Aes256k {
            return Err(AuthError::KeyTypeRefused { entity: ticket.entity, key_type });
        }
        let sealed =
            wire::open(&ticket.session_key, Usage::Authorize, "authorizer", &parts.sealed)?;
        let authorize = Authorize::read(&sealed)?;
        match stage {
            Stage::Fresh => {
                let challenge = entropy::number(entropy).max(1);
                let reply =
                    wire::seal(&ticket.session_key, Usage::AuthorizeChallenge, entropy, |o| {
                        wire::write_challenge(o, challenge);
                    });
                self.stage =
                    Stage::Challenged { challenge, first: Box::new(parts), nonce: authorize.nonce };
                Ok(ServiceStep::More(reply))
            }
            Stage::Challenged { challenge, first, nonce } => {
                if authorize.answer != Some(challenge.wrapping_add(1)) {
                    return Err(AuthError::WrongChallenge);
                }
                if authorize.nonce != nonce || first.ticket != parts.ticket {
                    return Err(AuthError::AuthorizerChanged);
                }
                Ok(ServiceStep::Done(Box::new(done(ticket, nonce, secure, entropy))))
            }
            Stage::Over => Err(AuthError::NoChallenge),
        }
    }
}

fn done(ticket: Ticket, nonce: u64, secure: bool, entropy: &mut dyn Entropy) -> Authorized {
    let mut connection_secret = Zeroizing::new(vec![0; if secure { SECURE_SECRET_LEN } else { 0 }]);
    entropy.fill(&mut connection_secret);
    let reply = AuthorizeReply {
        nonce_plus_one: nonce.wrapping_add(1),
        connection_secret: connection_secret.clone(),
    };
    let mut out = Encoder::new();
    out.blob(&wire::seal(&ticket.session_key, Usage::AuthorizeReply, entropy, |o| reply.write(o)));
    Authorized {
        entity: ticket.entity,
        global_id: ticket.global_id,
        caps: ticket.caps,
        expires: ticket.expires,
        session_key: ticket.session_key,
        connection_secret,
        payload: out.into_vec(),
    }
}
