//! The client's side, for our own daemons and tools: the exchange with a monitor, tickets,
//! authorizers, renewal, and service keys. Speaks with Ceph's monitors and OSDs as well as with
//! ours.

use crate::entity::{EntityId, Service, Services};
use crate::entropy::{self, Entropy};
use crate::error::AuthError;
use crate::key::{CryptoKey, KeyType, Usage};
use crate::rotating::RotatingKeys;
use crate::ticket::{MONITORS_SECRET_ID, Ticket, TicketKey};
use crate::wire::{
    self, Authenticate, Authorize, AuthorizeReply, AuthorizerParts, GET_AUTH_SESSION_KEY,
    GET_PRINCIPAL_SESSION_KEY, GET_ROTATING_KEY, MAX_PAYLOAD, MonHello, SECURE_SECRET_LEN,
    ServiceTicket, TicketBlob,
};
use spirula_encoding::{Decoder, Encoder, UTime};
use std::collections::BTreeMap;
use zeroize::Zeroizing;

/// A ticket we hold.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    session_key: CryptoKey,
    blob: TicketBlob,
    /// From here on a new one should be asked for: a quarter before the end.
    renew_after: UTime,
    expires: UTime,
}

/// One entity's authentication towards a cluster. Lives as long as the client does, across
/// connections.
#[derive(Debug)]
pub struct Client {
    entity: EntityId,
    key: CryptoKey,
    want: Services,
    global_id: u64,
    tickets: BTreeMap<Service, Held>,
    challenge: Option<u64>,
}

/// What the handshake with a monitor leads to.
#[derive(Debug)]
pub struct Connected {
    /// Key of AUTH_SIGNATURE.
    pub session_key: CryptoKey,
    /// Key material of secure mode (64 bytes), empty in crc mode.
    pub connection_secret: Zeroizing<Vec<u8>>,
}

impl Client {
    /// For `entity` with its key, wanting tickets for `want`.
    pub fn new(entity: EntityId, key: CryptoKey, want: Services) -> Self {
        Self { entity, key, want, global_id: 0, tickets: BTreeMap::new(), challenge: None }
    }

    /// Who we are.
    pub fn entity(&self) -> &EntityId {
        &self.entity
    }

    /// Our number in the cluster; 0 before the first handshake.
    pub fn global_id(&self) -> u64 {
        self.global_id
    }

    /// Payload of the first AUTH_REQUEST to a monitor. Claims the global id we have, if any.
    pub fn hello(&mut self) -> Vec<u8> {
        self.challenge = None;
        spirula_encoding::to_vec(&MonHello {
            entity: self.entity.clone(),
            global_id: self.global_id,
        })
    }

    /// Answers the monitor's challenge (AUTH_REPLY_MORE): payload of AUTH_REQUEST_MORE.
    ///
    /// # Errors
    /// [`AuthError::Malformed`], [`AuthError::ZeroChallenge`].
    pub fn answer(
        &mut self,
        payload: &[u8],
        entropy: &mut dyn Entropy,
    ) -> Result<Vec<u8>, AuthError> {
        self.challenge = Some(wire::read_challenge(payload)?);
        self.authenticate(entropy)
    }

    fn authenticate(&self, entropy: &mut dyn Entropy) -> Result<Vec<u8>, AuthError> {
        let challenge = self.challenge.ok_or(AuthError::NoChallenge)?;
        let client_challenge = entropy::number(entropy);
        let reclaim = self.global_id != 0;
        let old = self.tickets.get(&Service::Auth).filter(|_| reclaim).map(|t| t.blob.clone());
        let request = Authenticate {
            client_challenge,
            key: wire::proof(&self.key, challenge, client_challenge),
            old_ticket: old.unwrap_or_default(),
            other_keys: self.want.0 | Service::Auth.wire(),
            version: 3,
        };
        let mut out = Encoder::new();
        out.u16(GET_AUTH_SESSION_KEY);
        out.put(&request);
        Ok(out.into_vec())
    }

    /// Takes AUTH_DONE's global id and payload; `secure` is the mode that the monitor chose.
    ///
    /// # Errors
    /// [`AuthError::Decrypt`] if the monitor does not know our key, [`AuthError::ConnectionSecret`]
    /// if secure mode has none; nothing is kept then.
    pub fn finish(
        &mut self,
        global_id: u64,
        payload: &[u8],
        secure: bool,
        now: UTime,
    ) -> Result<Connected, AuthError> {
        if self.challenge.is_none() {
            return Err(AuthError::NoChallenge);
        }
        let mut d = wire::bounded("monitor's answer", payload, MAX_PAYLOAD * 8)?;
        let mut tickets = self.tickets.clone();
        let secret = self.read_auth_reply(&mut d, &mut tickets, now)?;
        let expected = if secure { SECURE_SECRET_LEN } else { 0 };
        if secret.len() != expected {
            return Err(AuthError::ConnectionSecret { len: secret.len(), expected });
        }
        let session_key = tickets
            .get(&Service::Auth)
            .ok_or(AuthError::NoTicket(Service::Auth))?
            .session_key
            .clone();
        self.tickets = tickets;
        self.global_id = global_id;
        Ok(Connected { session_key, connection_secret: secret })
    }

    /// {head, AUTH ticket, blob{connection secret}, blob{tickets}}; gives the connection secret.
    fn read_auth_reply(
        &self,
        d: &mut Decoder<'_>,
        tickets: &mut BTreeMap<Service, Held>,
        now: UTime,
    ) -> Result<Zeroizing<Vec<u8>>, AuthError> {
        const WHAT: &str = "monitor's answer";
        wire::read_response(d, GET_AUTH_SESSION_KEY)?;
        read_tickets(d, &self.key, tickets, now)?;
        let session_key = tickets
            .get(&Service::Auth)
            .ok_or(AuthError::NoTicket(Service::Auth))?
            .session_key
            .clone();
        let (secret, extra) =
            (|| Ok((d.blob()?, d.blob()?)))().map_err(AuthError::malformed(WHAT))?;
        d.finish().map_err(AuthError::malformed(WHAT))?;
        let secret = if secret.is_empty() {
            Zeroizing::default()
        } else {
            let sealed = whole_blob(secret, WHAT)?;
            let plain =
                wire::open(&session_key, Usage::ConnectionSecret, "connection secret", sealed)?;
            Zeroizing::new(whole_blob(&plain, "connection secret")?.to_vec())
        };
        if !extra.is_empty() {
            let mut d = Decoder::new(extra);
            read_tickets(&mut d, &session_key, tickets, now)?;
            d.finish().map_err(AuthError::malformed("tickets"))?;
        }
        Ok(secret)
    }

    /// Payload of an MAuth message that renews what is about to end, if anything is. Needs an open
    /// session.
    ///
    /// # Errors
    /// [`AuthError::NoChallenge`] before the first handshake.
    pub fn renewal(
        &self,
        now: UTime,
        entropy: &mut dyn Entropy,
    ) -> Result<Option<Vec<u8>>, AuthError> {
        let due = |s: Service| self.tickets.get(&s).is_none_or(|t| now >= t.renew_after);
        if due(Service::Auth) {
            return self.authenticate(entropy).map(Some);
        }
        let wanted = self
            .want
            .iter()
            .filter(|s| *s != Service::Auth && due(*s))
            .fold(0, |m, s| m | s.wire());
        if wanted == 0 {
            return Ok(None);
        }
        let (authorizer, _) = self.authorizer_parts(Service::Auth, entropy)?;
        let mut out = Encoder::new();
        out.u16(GET_PRINCIPAL_SESSION_KEY);
        out.put(&authorizer);
        out.u8(1);
        out.u32(wanted);
        Ok(Some(out.into_vec()))
    }

    /// Takes the answer (MAuthReply's payload) to [`Client::renewal`].
    ///
    /// # Errors
    /// [`AuthError`]; the old tickets stay then.
    pub fn renewed(&mut self, payload: &[u8], now: UTime) -> Result<(), AuthError> {
        const WHAT: &str = "monitor's answer";
        let mut d = wire::bounded(WHAT, payload, MAX_PAYLOAD * 8)?;
        let mut tickets = self.tickets.clone();
        match d.clone().u16().map_err(AuthError::malformed(WHAT))? {
            GET_AUTH_SESSION_KEY => {
                self.read_auth_reply(&mut d, &mut tickets, now)?;
            }
            _ => {
                wire::read_response(&mut d, GET_PRINCIPAL_SESSION_KEY)?;
                let holder =
                    tickets.get(&Service::Auth).ok_or(AuthError::NoTicket(Service::Auth))?;
                let key = holder.session_key.clone();
                read_tickets(&mut d, &key, &mut tickets, now)?;
                d.finish().map_err(AuthError::malformed(WHAT))?;
            }
        }
        self.tickets = tickets;
        Ok(())
    }

    /// When [`Client::renewal`] will have something to say: the epoch if at once.
    pub fn renew_at(&self) -> UTime {
        let of = |s: Service| self.tickets.get(&s).map_or(UTime::ZERO, |t| t.renew_after);
        self.want.iter().chain([Service::Auth]).map(of).min().unwrap_or(UTime::ZERO)
    }

    /// Payload of an MAuth message that asks for our service's keys (daemons only).
    pub fn service_keys_request() -> Vec<u8> {
        GET_ROTATING_KEY.to_le_bytes().to_vec()
    }

    /// Takes the answer to it.
    ///
    /// # Errors
    /// [`AuthError::Decrypt`], [`AuthError::Malformed`], [`AuthError::Refused`].
    pub fn service_keys(&self, payload: &[u8]) -> Result<RotatingKeys, AuthError> {
        const WHAT: &str = "service keys";
        let mut d = wire::bounded(WHAT, payload, MAX_PAYLOAD)?;
        wire::read_response(&mut d, GET_ROTATING_KEY)?;
        let sealed = whole_blob(d.rest(), WHAT)?;
        let plain = wire::open(&self.key, Usage::RotatingSecret, WHAT, sealed)?;
        spirula_encoding::from_slice(&plain).map_err(AuthError::malformed(WHAT))
    }

    /// Begins the exchange with a daemon of `service`.
    ///
    /// # Errors
    /// [`AuthError::NoTicket`], [`AuthError::Expired`].
    pub fn authorizer(
        &self,
        service: Service,
        now: UTime,
        entropy: &mut dyn Entropy,
    ) -> Result<Authorizer, AuthError> {
        let held = self.tickets.get(&service).ok_or(AuthError::NoTicket(service))?;
        if now >= held.expires {
            return Err(AuthError::Expired { expired: held.expires.sec, now: now.sec });
        }
        let (parts, nonce) = self.authorizer_parts(service, entropy)?;
        Ok(Authorizer { parts, nonce, session_key: held.session_key.clone() })
    }

    fn authorizer_parts(
        &self,
        service: Service,
        entropy: &mut dyn Entropy,
    ) -> Result<(AuthorizerParts, u64), AuthError> {
        let held = self.tickets.get(&service).ok_or(AuthError::NoTicket(service))?;
        Ok(first_parts(self.global_id, service, held.blob.clone(), &held.session_key, entropy))
    }

    /// True if there is a ticket for `service` that is good at `now`.
    pub fn has_ticket(&self, service: Service, now: UTime) -> bool {
        self.tickets.get(&service).is_some_and(|t| now < t.expires)
    }

    /// Forgets the ticket for `service`, so that it is asked for again: the service refused it.
    pub fn drop_ticket(&mut self, service: Service) {
        self.tickets.remove(&service);
    }

    /// Becomes a new session: no global id, no tickets. For when a monitor refuses to give the old
    /// one back.
    pub fn reset(&mut self) {
        self.global_id = 0;
        self.tickets.clear();
        self.challenge = None;
    }
}

fn first_parts(
    global_id: u64,
    service: Service,
    ticket: TicketBlob,
    session_key: &CryptoKey,
    entropy: &mut dyn Entropy,
) -> (AuthorizerParts, u64) {
    let nonce = entropy::number(entropy);
    let authorize = Authorize { nonce, answer: None };
    let sealed = wire::seal(session_key, Usage::Authorize, entropy, |o| authorize.write(o));
    (AuthorizerParts { global_id, service: service.wire(), ticket, sealed }, nonce)
}

/// A blob that fills `bytes`.
fn whole_blob<'a>(bytes: &'a [u8], what: &'static str) -> Result<&'a [u8], AuthError> {
    let mut d = Decoder::new(bytes);
    d.blob().and_then(|b| d.finish().map(|()| b)).map_err(AuthError::malformed(what))
}

/// Reads tickets encrypted to `holder` into `tickets`; unknown services are skipped.
fn read_tickets(
    d: &mut Decoder<'_>,
    holder: &CryptoKey,
    tickets: &mut BTreeMap<Service, Held>,
    now: UTime,
) -> Result<(), AuthError> {
    const WHAT: &str = "ticket";
    wire::version(d, "tickets", 1..=1)?;
    for _ in 0..d.count(15).map_err(AuthError::malformed("tickets"))? {
        let service = d.u32().map_err(AuthError::malformed(WHAT))?;
        wire::version(d, WHAT, 1..=1)?;
        let (mine, encrypted, theirs) =
            (|| Ok((d.blob()?, d.bool()?, d.blob()?)))().map_err(AuthError::malformed(WHAT))?;
        let mine = ServiceTicket::read(&wire::open(holder, Usage::TicketSessionKey, WHAT, mine)?)?;
        let service = Service::from_wire(service);
        let opened;
        let theirs = if encrypted {
            let old =
                service.and_then(|s| tickets.get(&s)).ok_or(AuthError::Decrypt("new ticket"))?;
            opened = wire::open(&old.session_key, Usage::TicketBlob, "new ticket", theirs)?;
            whole_blob(&opened, WHAT)?
        } else {
            theirs
        };
        let mut inner = Decoder::new(theirs);
        let blob = TicketBlob::read(&mut inner)?;
        inner.finish().map_err(AuthError::malformed(WHAT))?;
        let Some(service) = service else { continue };
        let validity = mine.validity.sec;
        let end = now.sec.saturating_add(validity);
        let held = Held {
            session_key: mine.session_key,
            blob,
            renew_after: UTime { sec: end.saturating_sub(validity / 4), nsec: now.nsec },
            expires: UTime { sec: end, nsec: now.nsec },
        };
        tickets.insert(service, held);
    }
    Ok(())
}

/// The client's half of an exchange with a service.
#[derive(Debug)]
pub struct Authorizer {
    parts: AuthorizerParts,
    nonce: u64,
    session_key: CryptoKey,
}

impl Authorizer {
    /// For a monitor that connects to another one: a ticket it writes itself, with the key that all
    /// monitors share. The other end is a [`ServiceExchange`](crate::service::ServiceExchange) for
    /// [`Service::Mon`] with [`TicketKey::of_monitors`].
    ///
    /// # Errors
    /// [`AuthError::Oversize`] for an absurd name.
    pub fn among_monitors(
        name: &EntityId,
        global_id: u64,
        shared: &CryptoKey,
        now: UTime,
        entropy: &mut dyn Entropy,
    ) -> Result<Self, AuthError> {
        const VALIDITY: u32 = 3600;
        let session_key = CryptoKey::generate(KeyType::Aes256k, now, entropy);
        let ticket = Ticket {
            entity: name.clone(),
            global_id,
            created: now,
            expires: UTime { sec: now.sec.saturating_add(VALIDITY), nsec: now.nsec },
            session_key: session_key.clone(),
            caps: "allow *".into(),
        };
        let blob = ticket.seal(
            Service::Mon,
            MONITORS_SECRET_ID,
            &TicketKey::of_monitors(shared),
            entropy,
        )?;
        let (parts, nonce) = first_parts(global_id, Service::Mon, blob, &session_key, entropy);
        Ok(Self { parts, nonce, session_key })
    }

    /// Payload of AUTH_REQUEST.
    pub fn hello(&self) -> Vec<u8> {
        spirula_encoding::to_vec(&self.parts)
    }

    /// Answers the service's challenge (AUTH_REPLY_MORE): payload of AUTH_REQUEST_MORE.
    ///
    /// # Errors
    /// [`AuthError::Decrypt`]: whoever answers does not have the session key.
    pub fn answer(
        &mut self,
        payload: &[u8],
        entropy: &mut dyn Entropy,
    ) -> Result<Vec<u8>, AuthError> {
        let plain = wire::open(&self.session_key, Usage::AuthorizeChallenge, "challenge", payload)?;
        let challenge = wire::read_challenge(&plain)?;
        let authorize = Authorize { nonce: self.nonce, answer: Some(challenge.wrapping_add(1)) };
        self.parts.sealed =
            wire::seal(&self.session_key, Usage::Authorize, entropy, |o| authorize.write(o));
        Ok(self.hello())
    }

    /// Takes AUTH_DONE's payload; `secure` is the mode that the service chose. Proves that it
    /// opened the ticket.
    ///
    /// # Errors
    /// [`AuthError::Decrypt`], [`AuthError::WrongNonce`], [`AuthError::ConnectionSecret`].
    pub fn finish(self, payload: &[u8], secure: bool) -> Result<Connected, AuthError> {
        let sealed = whole_blob(payload, "authorizer reply")?;
        let plain =
            wire::open(&self.session_key, Usage::AuthorizeReply, "authorizer reply", sealed)?;
        let reply = AuthorizeReply::read(&plain)?;
        if reply.nonce_plus_one != self.nonce.wrapping_add(1) {
            return Err(AuthError::WrongNonce);
        }
        let (len, expected) =
            (reply.connection_secret.len(), if secure { SECURE_SECRET_LEN } else { 0 });
        if len != expected {
            return Err(AuthError::ConnectionSecret { len, expected });
        }
        Ok(Connected { session_key: self.session_key, connection_secret: reply.connection_secret })
    }
}
