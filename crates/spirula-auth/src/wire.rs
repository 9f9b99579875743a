//! cephx structures as bytes. Numbers and layouts: `docs/protocol/README.md` §3.

use crate::entity::EntityId;
use crate::entropy::Entropy;
use crate::error::AuthError;
use crate::key::{CryptoKey, KeyType, Usage};
use spirula_encoding::{DecodeError, Decoder, Encode, Encoder, UTime};
use zeroize::Zeroizing;

/// Most bytes of any payload an honest peer sends here.
pub const MAX_PAYLOAD: usize = 64 << 10;
/// Most bytes of a sealed ticket. Caps are in it.
pub const MAX_TICKET: usize = 32 << 10;
/// First byte of a payload towards a monitor.
pub(crate) const MODE_MON: u8 = 10;
/// First byte of a payload towards any other service: an authorizer follows.
pub(crate) const MODE_AUTHORIZER: u8 = 1;
pub(crate) const GET_AUTH_SESSION_KEY: u16 = 0x0100;
pub(crate) const GET_PRINCIPAL_SESSION_KEY: u16 = 0x0200;
pub(crate) const GET_ROTATING_KEY: u16 = 0x0400;
/// Bytes of the connection secret of secure mode.
pub const SECURE_SECRET_LEN: usize = 64;

const MAGIC: u64 = 0xff00_9cad_8826_aa55;

/// Checks a payload's length.
pub(crate) fn bounded<'a>(
    what: &'static str,
    bytes: &'a [u8],
    max: usize,
) -> Result<Decoder<'a>, AuthError> {
    match bytes.len() {
        len if len > max => Err(AuthError::Oversize { what, len, max }),
        _ => Ok(Decoder::new(bytes)),
    }
}

/// Reads a `u8` version that must be one of `known`.
pub(crate) fn version(
    d: &mut Decoder<'_>,
    what: &'static str,
    known: std::ops::RangeInclusive<u8>,
) -> Result<u8, AuthError> {
    let version = d.u8().map_err(AuthError::malformed(what))?;
    if known.contains(&version) { Ok(version) } else { Err(AuthError::Version { what, version }) }
}

/// The envelope of everything encrypted: {u8 1, u64 magic, body}.
fn envelope(body: impl FnOnce(&mut Encoder)) -> Zeroizing<Vec<u8>> {
    let mut out = Encoder::new();
    out.u8(1);
    out.u64(MAGIC);
    body(&mut out);
    Zeroizing::new(out.into_vec())
}

/// Encrypts a body in its envelope, without a length.
pub(crate) fn seal(
    key: &CryptoKey,
    usage: Usage,
    entropy: &mut dyn Entropy,
    body: impl FnOnce(&mut Encoder),
) -> Vec<u8> {
    key.encrypt(usage, &envelope(body), entropy)
}

/// Decrypts what [`seal`] made and gives the body.
pub(crate) fn open(
    key: &CryptoKey,
    usage: Usage,
    what: &'static str,
    cipher: &[u8],
) -> Result<Zeroizing<Vec<u8>>, AuthError> {
    let plain = key.decrypt(usage, cipher).ok_or(AuthError::Decrypt(what))?;
    let mut d = Decoder::new(&plain);
    let head = (|| Ok::<_, DecodeError>((d.u8()?, d.u64()?)))();
    match head {
        Ok((1, MAGIC)) => Ok(Zeroizing::new(d.rest().to_vec())),
        _ => Err(AuthError::Decrypt(what)),
    }
}

/// What a client proves its key with: folds {server challenge, client challenge}, encrypted (`aes`)
/// or under HMAC-SHA256 (`aes256k`, whose cipher text is random), into 64 bits.
pub(crate) fn proof(key: &CryptoKey, server_challenge: u64, client_challenge: u64) -> u64 {
    let body = |o: &mut Encoder| {
        o.u64(server_challenge);
        o.u64(client_challenge);
    };
    let hashed = match key.key_type() {
        KeyType::Aes => {
            let cipher =
                key.encrypt(Usage::TicketSessionKey, &envelope(body), &mut |_: &mut [u8]| ());
            let mut out = Encoder::new();
            out.blob(&cipher);
            out.into_vec()
        }
        KeyType::Aes256k => {
            let mut out = Encoder::new();
            body(&mut out);
            key.hmac_sha256(out.as_slice()).to_vec()
        }
    };
    hashed
        .chunks_exact(8)
        .filter_map(|c| c.try_into().ok())
        .fold(0, |k, c| k ^ u64::from_le_bytes(c))
}

/// A ticket as its holder has it: the service key's number and bytes that only the service opens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TicketBlob {
    pub secret_id: u64,
    pub blob: Vec<u8>,
}

impl TicketBlob {
    pub(crate) fn read(d: &mut Decoder<'_>) -> Result<Self, AuthError> {
        const WHAT: &str = "ticket blob";
        version(d, WHAT, 1..=1)?;
        let (secret_id, blob) =
            (|| Ok((d.u64()?, d.blob()?)))().map_err(AuthError::malformed(WHAT))?;
        if blob.len() > MAX_TICKET {
            return Err(AuthError::Oversize { what: "ticket", len: blob.len(), max: MAX_TICKET });
        }
        Ok(Self { secret_id, blob: blob.to_vec() })
    }
}

impl Encode for TicketBlob {
    fn encode(&self, out: &mut Encoder) {
        out.u8(1);
        out.u64(self.secret_id);
        out.blob(&self.blob);
    }
}

/// First payload towards a monitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MonHello {
    pub entity: EntityId,
    /// 0 for a new one.
    pub global_id: u64,
}

impl MonHello {
    pub(crate) fn read(payload: &[u8]) -> Result<Self, AuthError> {
        const WHAT: &str = "first authentication payload";
        let mut d = bounded(WHAT, payload, MAX_PAYLOAD)?;
        let found = d.u8().map_err(AuthError::malformed(WHAT))?;
        if found != MODE_MON {
            return Err(AuthError::Mode { found, expected: MODE_MON });
        }
        let read = (|| {
            let out = Self { entity: d.get()?, global_id: d.u64()? };
            d.finish()?;
            Ok(out)
        })();
        read.map_err(AuthError::malformed(WHAT))
    }
}

impl Encode for MonHello {
    fn encode(&self, out: &mut Encoder) {
        out.u8(MODE_MON);
        out.put(&self.entity);
        out.u64(self.global_id);
    }
}

/// {u8 1, u64}: the server's challenge, in the clear towards clients of the monitors.
pub(crate) fn write_challenge(out: &mut Encoder, challenge: u64) {
    out.u8(1);
    out.u64(challenge);
}

pub(crate) fn read_challenge(bytes: &[u8]) -> Result<u64, AuthError> {
    const WHAT: &str = "server challenge";
    let mut d = Decoder::new(bytes);
    version(&mut d, WHAT, 1..=1)?;
    let challenge =
        d.u64().and_then(|c| d.finish().map(|()| c)).map_err(AuthError::malformed(WHAT))?;
    if challenge == 0 { Err(AuthError::ZeroChallenge) } else { Ok(challenge) }
}

/// The client's answer to the challenge (after the request's number).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Authenticate {
    pub client_challenge: u64,
    pub key: u64,
    pub old_ticket: TicketBlob,
    /// Services whose tickets it wants at once; absent (0) before version 2.
    pub other_keys: u32,
    /// 3 since the fix of CVE-2021-20288.
    pub version: u8,
}

impl Authenticate {
    pub(crate) fn read(d: &mut Decoder<'_>) -> Result<Self, AuthError> {
        const WHAT: &str = "authentication request";
        let version = version(d, WHAT, 1..=3)?;
        let (client_challenge, key) =
            (|| Ok((d.u64()?, d.u64()?)))().map_err(AuthError::malformed(WHAT))?;
        let old_ticket = TicketBlob::read(d)?;
        let other_keys =
            if version >= 2 { d.u32().map_err(AuthError::malformed(WHAT))? } else { 0 };
        d.finish().map_err(AuthError::malformed(WHAT))?;
        Ok(Self { client_challenge, key, old_ticket, other_keys, version })
    }
}

impl Encode for Authenticate {
    fn encode(&self, out: &mut Encoder) {
        out.u8(self.version);
        out.u64(self.client_challenge);
        out.u64(self.key);
        out.put(&self.old_ticket);
        if self.version >= 2 {
            out.u32(self.other_keys);
        }
    }
}

/// The client's part of a ticket, encrypted to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceTicket {
    pub session_key: CryptoKey,
    /// Seconds from now.
    pub validity: UTime,
}

impl ServiceTicket {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, AuthError> {
        const WHAT: &str = "service ticket";
        let mut d = Decoder::new(bytes);
        version(&mut d, WHAT, 1..=1)?;
        (|| {
            let out = Self { session_key: d.get()?, validity: d.get()? };
            d.finish()?;
            Ok(out)
        })()
        .map_err(AuthError::malformed(WHAT))
    }

    pub(crate) fn write(&self, out: &mut Encoder) {
        out.u8(1);
        out.put(&self.session_key);
        out.put(&self.validity);
    }
}

/// An authorizer's encrypted half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Authorize {
    pub nonce: u64,
    /// The server's challenge plus one, once there was one.
    pub answer: Option<u64>,
}

impl Authorize {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, AuthError> {
        const WHAT: &str = "authorizer";
        let mut d = Decoder::new(bytes);
        let v = version(&mut d, WHAT, 1..=2)?;
        (|| {
            let nonce = d.u64()?;
            let answer = if v >= 2 { (d.bool()?, d.u64()?) } else { (false, 0) };
            d.finish()?;
            Ok(Self { nonce, answer: answer.0.then_some(answer.1) })
        })()
        .map_err(AuthError::malformed(WHAT))
    }

    pub(crate) fn write(&self, out: &mut Encoder) {
        out.u8(2);
        out.u64(self.nonce);
        out.bool(self.answer.is_some());
        out.u64(self.answer.unwrap_or(0));
    }
}

/// The clear half of an authorizer and the encrypted rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuthorizerParts {
    pub global_id: u64,
    pub service: u32,
    pub ticket: TicketBlob,
    pub sealed: Vec<u8>,
}

impl AuthorizerParts {
    /// Reads one; leaves the decoder behind it.
    pub(crate) fn read(d: &mut Decoder<'_>) -> Result<Self, AuthError> {
        const WHAT: &str = "authorizer";
        let found = d.u8().map_err(AuthError::malformed(WHAT))?;
        if found != MODE_AUTHORIZER {
            return Err(AuthError::Mode { found, expected: MODE_AUTHORIZER });
        }
        let (global_id, service) =
            (|| Ok((d.u64()?, d.u32()?)))().map_err(AuthError::malformed(WHAT))?;
        let ticket = TicketBlob::read(d)?;
        let sealed = d.blob().map_err(AuthError::malformed(WHAT))?.to_vec();
        Ok(Self { global_id, service, ticket, sealed })
    }
}

impl Encode for AuthorizerParts {
    fn encode(&self, out: &mut Encoder) {
        out.u8(MODE_AUTHORIZER);
        out.u64(self.global_id);
        out.u32(self.service);
        out.put(&self.ticket);
        out.blob(&self.sealed);
    }
}

/// A service's proof that it opened the ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuthorizeReply {
    pub nonce_plus_one: u64,
    /// Empty outside secure mode.
    pub connection_secret: Zeroizing<Vec<u8>>,
}

impl AuthorizeReply {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, AuthError> {
        const WHAT: &str = "authorizer reply";
        let mut d = Decoder::new(bytes);
        let v = version(&mut d, WHAT, 1..=2)?;
        (|| {
            let nonce_plus_one = d.u64()?;
            let secret = if v >= 2 { d.blob()?.to_vec() } else { Vec::new() };
            d.finish()?;
            Ok(Self { nonce_plus_one, connection_secret: Zeroizing::new(secret) })
        })()
        .map_err(AuthError::malformed(WHAT))
    }

    pub(crate) fn write(&self, out: &mut Encoder) {
        if self.connection_secret.is_empty() {
            out.u8(1);
            out.u64(self.nonce_plus_one);
        } else {
            out.u8(2);
            out.u64(self.nonce_plus_one);
            out.blob(&self.connection_secret);
        }
    }
}

/// Head of the monitor's answers: the request's number and a result.
pub(crate) fn write_response(out: &mut Encoder, request: u16, status: i32) {
    out.u16(request);
    out.i32(status);
}

pub(crate) fn read_response(d: &mut Decoder<'_>, request: u16) -> Result<(), AuthError> {
    let (found, status) =
        (|| Ok((d.u16()?, d.i32()?)))().map_err(AuthError::malformed("response head"))?;
    if found != request {
        return Err(AuthError::Request(found));
    }
    if status != 0 { Err(AuthError::Refused(status.saturating_neg())) } else { Ok(()) }
}
