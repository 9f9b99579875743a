//! The monitor's side of cephx.
//!
//! Over msgr2: the first AUTH_REQUEST names an entity, [`Exchange::start`] gives the challenge for
//! AUTH_REPLY_MORE; AUTH_REQUEST_MORE proves the key, [`Exchange::finish`] gives AUTH_DONE's
//! payload, the session key and the connection secret. Later the client renews tickets with MAuth
//! messages on the open session: [`Session::handle`].
//!
//! A challenge is answered once. A global id is handed out anew, or reclaimed with exactly the
//! ticket that came with it (same entity, same id, not expired: CVE-2021-20288; there is no option
//! to allow less). Daemons must have `aes256k` keys; clients whatever the policy allows. What fails
//! says why in [`AuthError`]; the peer gets one errno.

use crate::db::AuthDb;
use crate::entity::{EntityId, Service, Services};
use crate::entropy::{self, Entropy};
use crate::error::AuthError;
use crate::foreign;
use crate::key::{CryptoKey, KeyType, KeyTypes, Usage};
use crate::rotating::{Lifetimes, ServiceKeys};
use crate::ticket::Ticket;
use crate::wire::{
    self, Authenticate, Authorize, AuthorizerParts, GET_AUTH_SESSION_KEY,
    GET_PRINCIPAL_SESSION_KEY, GET_ROTATING_KEY, MAX_PAYLOAD, MonHello, SECURE_SECRET_LEN,
    ServiceTicket, TicketBlob,
};
use spirula_encoding::{Decoder, Encoder, UTime};
use std::collections::BTreeSet;
use zeroize::Zeroizing;

/// Renewals of the AUTH ticket on one session (years of them); then the client has to connect anew.
const MAX_RENEWALS: usize = 256;

/// What a cluster allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Validity of tickets.
    pub lifetimes: Lifetimes,
    /// Key types that clients may have, and daemons of Ceph's. Our own need `aes256k` in any case.
    pub client_keys: KeyTypes,
}

impl Default for Policy {
    /// Ceph's lifetimes, both key types.
    fn default() -> Self {
        Self { lifetimes: Lifetimes::default(), client_keys: KeyTypes::ALL }
    }
}

impl Policy {
    fn check(self, entity: &EntityId, key: &CryptoKey) -> Result<(), AuthError> {
        let key_type = key.key_type();
        let allowed = match entity.service() {
            Some(service) if !foreign::is_foreign(service) => key_type == KeyType::Aes256k,
            _ => self.client_keys.has(key_type),
        };
        if allowed {
            Ok(())
        } else {
            Err(AuthError::KeyTypeRefused { entity: entity.clone(), key_type })
        }
    }
}

/// What the monitor knows at this moment.
#[derive(Clone, Copy)]
pub struct Authority<'a> {
    /// Users.
    pub db: &'a AuthDb,
    /// Keys to seal tickets with.
    pub keys: &'a ServiceKeys,
    /// Rules.
    pub policy: Policy,
    /// Now.
    pub now: UTime,
}

/// An exchange between the first payload and the proof.
#[derive(Debug)]
pub struct Exchange {
    hello: MonHello,
    challenge: u64,
}

/// Somebody who proved who they are.
#[derive(Debug)]
pub struct Admitted {
    /// Their session, for later requests.
    pub session: Session,
    /// Payload of AUTH_DONE.
    pub payload: Vec<u8>,
    /// Key of AUTH_SIGNATURE.
    pub session_key: CryptoKey,
    /// Key material of secure mode (64 bytes), empty in crc mode.
    pub connection_secret: Zeroizing<Vec<u8>>,
    /// The proof was made with the pending key: the monitor should now commit it
    /// ([`AuthDb::commit_pending`]).
    pub used_pending_key: bool,
}

impl Exchange {
    /// Reads the first payload and draws a challenge. Gives the exchange and the payload of
    /// AUTH_REPLY_MORE. Whether there is such an entity stays secret until the proof.
    ///
    /// # Errors
    /// [`AuthError::Malformed`], [`AuthError::Mode`], [`AuthError::Oversize`].
    pub fn start(payload: &[u8], entropy: &mut dyn Entropy) -> Result<(Self, Vec<u8>), AuthError> {
        let hello = MonHello::read(payload)?;
        let challenge = entropy::number(entropy).max(1);
        let mut out = Encoder::new();
        wire::write_challenge(&mut out, challenge);
        Ok((Self { hello, challenge }, out.into_vec()))
    }

    /// Who it claims to be.
    pub fn entity(&self) -> &EntityId {
        &self.hello.entity
    }

    /// True if a new global id will be given out in case of success.
    pub fn wants_global_id(&self) -> bool {
        self.hello.global_id == 0
    }

    /// Checks the proof. `fresh_global_id` gives a number never given out before; it is asked, if
    /// [`Exchange::wants_global_id`], only when the proof holds, so that nobody uses numbers up who
    /// has no key. `secure` is the connection's mode.
    ///
    /// # Errors
    /// Every way of not being who one says; see [`AuthError`]. The exchange is over in any case.
    pub fn finish(
        self,
        payload: &[u8],
        secure: bool,
        fresh_global_id: &mut dyn FnMut() -> Option<u64>,
        authority: &Authority<'_>,
        entropy: &mut dyn Entropy,
    ) -> Result<Admitted, AuthError> {
        let mut d = wire::bounded("authentication payload", payload, MAX_PAYLOAD)?;
        let request = d.u16().map_err(AuthError::malformed("request head"))?;
        if request != GET_AUTH_SESSION_KEY {
            return Err(AuthError::Request(request));
        }
        let auth = Authenticate::read(&mut d)?;
        let wants_new = self.wants_global_id();
        let MonHello { entity, global_id: claimed } = self.hello;
        let (user_key, used_pending_key) = authority.proven(&entity, self.challenge, &auth)?;
        let caps = authority.mon_caps(&entity)?;
        let old = if wants_new {
            if !auth.old_ticket.blob.is_empty() {
                return Err(AuthError::SuperfluousTicket);
            }
            None
        } else {
            Some(authority.reclaimed(&entity, claimed, &auth.old_ticket)?)
        };
        let global_id =
            if wants_new { fresh_global_id().ok_or(AuthError::NoGlobalId)? } else { claimed };
        let mut session = Session {
            entity,
            global_id,
            caps,
            challenge: self.challenge,
            answered: BTreeSet::from([auth.client_challenge]),
        };
        let secret_len = if secure { SECURE_SECRET_LEN } else { 0 };
        let mut connection_secret = Zeroizing::new(vec![0; secret_len]);
        entropy.fill(&mut connection_secret);
        let (payload, session_key) = session.auth_reply(
            authority,
            &user_key,
            old.as_ref(),
            auth.other_keys,
            Some(&connection_secret),
            entropy,
        )?;
        Ok(Admitted { session, payload, session_key, connection_secret, used_pending_key })
    }
}

/// One ticket to be handed out.
struct Grant<'a> {
    service: Service,
    ticket: &'a Ticket,
    validity: u32,
}

/// Tickets as the client gets them: {u8 1, u32 n, n × {service, u8 1, enc{key, validity}, u8,
/// ticket}}.
fn write_tickets(
    out: &mut Encoder,
    authority: &Authority<'_>,
    holder: &CryptoKey,
    old_session_key: Option<&CryptoKey>,
    grants: &[Grant<'_>],
    entropy: &mut dyn Entropy,
) -> Result<(), AuthError> {
    out.u8(1);
    out.u32(grants.len() as u32);
    for grant in grants {
        let keys = authority.keys.get(grant.service).ok_or(AuthError::NoTicket(grant.service))?;
        out.u32(grant.service.wire());
        out.u8(1);
        let mine = ServiceTicket {
            session_key: grant.ticket.session_key.clone(),
            validity: UTime { sec: grant.validity, nsec: 0 },
        };
        out.blob(&wire::seal(holder, Usage::TicketSessionKey, entropy, |o| mine.write(o)));
        let (id, key) = (keys.current.id, &keys.current.key);
        let blob = match foreign::is_foreign(grant.service) {
            true => foreign::seal(grant.ticket, id, key, entropy)?,
            false => grant.ticket.seal(grant.service, id, key, entropy)?,
        };
        let blob = spirula_encoding::to_vec(&blob);
        match old_session_key {
            None => {
                out.u8(0);
                out.blob(&blob);
            }
            // For the holder of the old ticket only: who merely heard its global id cannot use it.
            Some(key) => {
                out.u8(1);
                out.blob(&wire::seal(key, Usage::TicketBlob, entropy, |o| o.blob(&blob)));
            }
        }
    }
    Ok(())
}

impl Authority<'_> {
    /// The key with which the challenge was answered, and whether it is the pending one.
    fn proven(
        &self,
        entity: &EntityId,
        challenge: u64,
        auth: &Authenticate,
    ) -> Result<(CryptoKey, bool), AuthError> {
        let user = self.db.get(entity).ok_or_else(|| AuthError::UnknownEntity(entity.clone()))?;
        let keys = [Some((&user.key, false)), user.pending_key.as_ref().map(|k| (k, true))];
        for (key, pending) in keys.into_iter().flatten() {
            if wire::proof(key, challenge, auth.client_challenge) == auth.key {
                self.policy.check(entity, key)?;
                return Ok((key.clone(), pending));
            }
        }
        Err(AuthError::WrongProof(entity.clone()))
    }

    fn mon_caps(&self, entity: &EntityId) -> Result<String, AuthError> {
        let caps = self.caps(entity, Service::Mon)?;
        if caps.is_empty() { Err(AuthError::NoMonCaps(entity.clone())) } else { Ok(caps) }
    }

    fn caps(&self, entity: &EntityId, service: Service) -> Result<String, AuthError> {
        let user = self.db.get(entity).ok_or_else(|| AuthError::UnknownEntity(entity.clone()))?;
        Ok(user.caps.get(service.as_str()).cloned().unwrap_or_default())
    }

    /// The old ticket, if it entitles `entity` to `claimed`.
    fn reclaimed(
        &self,
        entity: &EntityId,
        claimed: u64,
        old: &TicketBlob,
    ) -> Result<Ticket, AuthError> {
        if old.blob.is_empty() {
            return Err(AuthError::ReclaimWithoutTicket(claimed));
        }
        let ticket = self.open_auth(old)?;
        if ticket.global_id != claimed {
            return Err(AuthError::ReclaimOther { claimed, ticket: ticket.global_id });
        }
        if ticket.entity != *entity {
            return Err(AuthError::ReclaimStranger {
                claimer: entity.clone(),
                owner: ticket.entity,
            });
        }
        Ok(ticket)
    }

    fn open_auth(&self, blob: &TicketBlob) -> Result<Ticket, AuthError> {
        let keys = self.keys.get(Service::Auth).ok_or(AuthError::UnknownSecret(blob.secret_id))?;
        Ticket::open(Service::Auth, blob, keys, self.now)
    }

    fn ticket(
        &self,
        service: Service,
        entity: &EntityId,
        global_id: u64,
        key_type: KeyType,
        entropy: &mut dyn Entropy,
    ) -> Result<Ticket, AuthError> {
        let validity = self.policy.lifetimes.of(service);
        Ok(Ticket {
            entity: entity.clone(),
            global_id,
            created: self.now,
            expires: UTime { sec: self.now.sec.saturating_add(validity), nsec: self.now.nsec },
            session_key: CryptoKey::generate(key_type, self.now, entropy),
            caps: if service == Service::Auth {
                String::new()
            } else {
                self.caps(entity, service)?
            },
        })
    }

    /// Writes tickets for all `wanted` services that exist, encrypted to `holder`.
    fn service_tickets(
        &self,
        out: &mut Encoder,
        wanted: Services,
        entity: &EntityId,
        global_id: u64,
        holder: &CryptoKey,
        entropy: &mut dyn Entropy,
    ) -> Result<(), AuthError> {
        let mut tickets = Vec::new();
        for service in wanted.iter().filter(|s| *s != Service::Auth) {
            tickets.push((
                service,
                self.ticket(service, entity, global_id, holder.key_type(), entropy)?,
            ));
        }
        let validity = self.policy.lifetimes.service;
        let grants: Vec<_> = tickets
            .iter()
            .map(|(service, ticket)| Grant { service: *service, ticket, validity })
            .collect();
        write_tickets(out, self, holder, None, &grants, entropy)
    }
}

/// An authenticated session with a monitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Who.
    pub entity: EntityId,
    /// Its number in the cluster.
    pub global_id: u64,
    /// Its capabilities for monitors, as text; parse with [`crate::caps::MonCaps`].
    pub caps: String,
    challenge: u64,
    /// Client challenges of proofs already accepted.
    answered: BTreeSet<u64>,
}

impl Session {
    /// Answers an MAuth message's payload (what follows the protocol number): tickets to be
    /// renewed, or a daemon's service keys. Gives the payload of MAuthReply.
    ///
    /// # Errors
    /// [`AuthError`]; the session's global id and entity bind: tickets of other sessions are
    /// refused.
    pub fn handle(
        &mut self,
        payload: &[u8],
        authority: &Authority<'_>,
        entropy: &mut dyn Entropy,
    ) -> Result<Vec<u8>, AuthError> {
        let mut d = wire::bounded("authentication payload", payload, MAX_PAYLOAD)?;
        match d.u16().map_err(AuthError::malformed("request head"))? {
            GET_AUTH_SESSION_KEY => self.renew_auth(&mut d, authority, entropy),
            GET_PRINCIPAL_SESSION_KEY => self.renew_services(&mut d, authority, entropy),
            GET_ROTATING_KEY => {
                d.finish().map_err(AuthError::malformed("request for service keys"))?;
                self.service_keys(authority, entropy)
            }
            other => Err(AuthError::Request(other)),
        }
    }

    fn renew_auth(
        &mut self,
        d: &mut Decoder<'_>,
        authority: &Authority<'_>,
        entropy: &mut dyn Entropy,
    ) -> Result<Vec<u8>, AuthError> {
        let auth = Authenticate::read(d)?;
        // Clients keep using the session's first challenge; a proof counts once.
        if self.answered.contains(&auth.client_challenge) || self.answered.len() >= MAX_RENEWALS {
            return Err(AuthError::NoChallenge);
        }
        let (user_key, _) = authority.proven(&self.entity, self.challenge, &auth)?;
        let old = authority.reclaimed(&self.entity, self.global_id, &auth.old_ticket)?;
        let caps = authority.mon_caps(&self.entity)?;
        let (payload, _) =
            self.auth_reply(authority, &user_key, Some(&old), auth.other_keys, None, entropy)?;
        self.answered.insert(auth.client_challenge);
        self.caps = caps;
        Ok(payload)
    }

    /// {head, AUTH ticket, [blob{connection secret}, blob{service tickets}]} and the session key.
    fn auth_reply(
        &mut self,
        authority: &Authority<'_>,
        user_key: &CryptoKey,
        old: Option<&Ticket>,
        other_keys: u32,
        connection_secret: Option<&[u8]>,
        entropy: &mut dyn Entropy,
    ) -> Result<(Vec<u8>, CryptoKey), AuthError> {
        let ticket = authority.ticket(
            Service::Auth,
            &self.entity,
            self.global_id,
            user_key.key_type(),
            entropy,
        )?;
        let session_key = ticket.session_key.clone();
        let mut out = Encoder::new();
        wire::write_response(&mut out, GET_AUTH_SESSION_KEY, 0);
        let grant = Grant {
            service: Service::Auth,
            ticket: &ticket,
            validity: authority.policy.lifetimes.auth,
        };
        write_tickets(
            &mut out,
            authority,
            user_key,
            old.map(|t| &t.session_key),
            &[grant],
            entropy,
        )?;
        // Before Nautilus clients did not ask for more here, and read no further.
        if other_keys != 0 {
            match connection_secret {
                Some(secret) => {
                    let sealed = wire::seal(&session_key, Usage::ConnectionSecret, entropy, |o| {
                        o.blob(secret)
                    });
                    out.sized(|o| o.blob(&sealed));
                }
                None => out.blob(&[]),
            }
            let wanted = Services(other_keys);
            let mut extra = Encoder::new();
            if wanted.iter().any(|s| s != Service::Auth) {
                authority.service_tickets(
                    &mut extra,
                    wanted,
                    &self.entity,
                    self.global_id,
                    &session_key,
                    entropy,
                )?;
            }
            out.blob(extra.as_slice());
        }
        Ok((out.into_vec(), session_key))
    }

    fn renew_services(
        &self,
        d: &mut Decoder<'_>,
        authority: &Authority<'_>,
        entropy: &mut dyn Entropy,
    ) -> Result<Vec<u8>, AuthError> {
        const WHAT: &str = "ticket request";
        let parts = AuthorizerParts::read(d)?;
        wire::version(d, WHAT, 1..=1)?;
        let wanted =
            d.u32().and_then(|w| d.finish().map(|()| w)).map_err(AuthError::malformed(WHAT))?;
        if parts.service != Service::Auth.wire() {
            return Err(AuthError::WrongService { found: parts.service, here: Service::Auth });
        }
        let ticket = authority.reclaimed(&self.entity, self.global_id, &parts.ticket)?;
        if parts.global_id != ticket.global_id {
            return Err(AuthError::GlobalIdMismatch {
                claimed: parts.global_id,
                ticket: ticket.global_id,
            });
        }
        let sealed =
            wire::open(&ticket.session_key, Usage::Authorize, "authorizer", &parts.sealed)?;
        Authorize::read(&sealed)?;
        // A user removed, or a key type forbidden, since the ticket was made gets nothing more.
        let user = authority
            .db
            .get(&self.entity)
            .ok_or_else(|| AuthError::UnknownEntity(self.entity.clone()))?;
        authority.policy.check(&self.entity, &user.key)?;
        let mut out = Encoder::new();
        wire::write_response(&mut out, GET_PRINCIPAL_SESSION_KEY, 0);
        authority.service_tickets(
            &mut out,
            Services(wanted),
            &self.entity,
            self.global_id,
            &ticket.session_key,
            entropy,
        )?;
        Ok(out.into_vec())
    }

    fn service_keys(
        &self,
        authority: &Authority<'_>,
        entropy: &mut dyn Entropy,
    ) -> Result<Vec<u8>, AuthError> {
        let refused = || AuthError::NoRotatingKeys(self.entity.clone());
        let service = self.entity.service().ok_or_else(refused)?;
        let user = authority
            .db
            .get(&self.entity)
            .ok_or_else(|| AuthError::UnknownEntity(self.entity.clone()))?;
        authority.policy.check(&self.entity, &user.key)?;
        let keys = authority.keys.get(service).ok_or_else(refused)?;
        let mut out = Encoder::new();
        wire::write_response(&mut out, GET_ROTATING_KEY, 0);
        let mut body = Encoder::new();
        match foreign::is_foreign(service) {
            true => foreign::write_keys(keys, &mut body)?,
            false => body.put(keys),
        }
        let body = Zeroizing::new(body.into_vec());
        out.blob(&wire::seal(&user.key, Usage::RotatingSecret, entropy, |o| o.raw(&body)));
        Ok(out.into_vec())
    }
}
