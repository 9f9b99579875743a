//! How a new host comes in: a token of one use, and what is said under its key.
//!
//! A [`Token`] is text that an administrator carries to the new host: the cluster's identity, the
//! monitors' addresses, and the key of a user made for it (`client.join-…`, with no other right
//! than to redeem it). With cephx the host authenticates as that user. In any case its
//! [`Request`] and the monitors' [`Answer`] are sealed with the key (authenticated encryption), so
//! that each side knows that the other has it: a stranger's request is refused, a stranger's answer
//! not believed, and keys do not travel in clear.
//!
//! The host makes the secrets of its own daemons; the monitors take them into the table of users.
//! A request that is made again (same nonce) has the same effect and answer, so that neither a lost
//! answer nor a host that died half-way wastes the token; any other is refused from then on.
//!
//! Pure values; the commands are in `commands/join.rs`.

use spirula_auth::key::Usage;
use spirula_auth::{CryptoKey, Entropy, KeyType, base64_decode, base64_encode};
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use spirula_types::{AddrVec, OsdId, Uuid};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use zeroize::Zeroizing;

/// What every token begins with.
const PREFIX: &str = "spirula1-";
/// Longest token read, bytes.
const TOKEN_MAX: usize = 4096;
/// Longest sealed request or answer read, bytes of its text.
const SEALED_MAX: usize = 64 << 10;
/// Where the names are, among the `config-key` values, that tokens gave to monitors that have not
/// come in yet; each with what [`given_by`] says.
pub const MON_NAMES: &str = "spirula/mon-name/";

/// Most OSDs that one request brings.
pub const OSDS_MAX: usize = 64;
/// Name of the user that belongs to a token, before the token's id.
const USER: &str = "client.join-";

/// Why a text is no token or no message under one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// It is no token at all.
    #[error(
        "this is no join token; it begins with {PREFIX} and is printed by 'spirula token create'"
    )]
    NoToken,
    /// A part is missing or changed.
    #[error("the join token is damaged: copy all of it")]
    Damaged,
    /// It does not come from a holder of the key.
    #[error("it was not made with this token's key")]
    NotSealed,
    /// Sealed rightly, but its contents make no sense.
    #[error("malformed: {0}")]
    Malformed(String),
}

/// What an administrator carries to a new host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The cluster.
    pub fsid: Uuid,
    /// Its monitors.
    pub mons: Vec<AddrVec>,
    /// They want cephx.
    pub cephx: bool,
    /// The secret.
    pub key: CryptoKey,
}

impl Token {
    /// The token's public name, by which it is listed and removed.
    pub fn id(&self) -> String {
        id_of(&self.key)
    }

    /// The user it authenticates as.
    pub fn user(&self) -> String {
        user_of(&self.id())
    }
}

/// What is kept of a name that a token gave: until when (as long as the token lasts), and the
/// token's id.
pub fn given_by(until: UTime, token: &str) -> String {
    format!("{} {token}", until.as_nanos())
}

/// A token's name from its secret; the name tells nothing about the secret.
pub(crate) fn id_of(key: &CryptoKey) -> String {
    key.hmac_sha256(b"spirula join token").iter().take(4).map(|b| format!("{b:02x}")).collect()
}

pub(crate) fn user_of(id: &str) -> String {
    format!("{USER}{id}")
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut e = Encoder::new();
        e.versioned(1, 1, |o| {
            o.put(&self.fsid);
            o.list(&self.mons, |o, m| o.put(m));
            o.bool(self.cephx);
            o.put(&self.key);
        });
        let mut bytes = Zeroizing::new(e.into_vec());
        let crc = spirula_encoding::crc::crc32c(0, &bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        // Without characters that mean something to a shell.
        let text = base64_encode(&bytes).replace('+', "-").replace('/', "_");
        write!(f, "{PREFIX}{}", text.trim_end_matches('='))
    }
}

impl FromStr for Token {
    type Err = JoinError;

    fn from_str(text: &str) -> Result<Self, JoinError> {
        let text = text.trim();
        let body = text
            .strip_prefix(PREFIX)
            .filter(|_| text.len() <= TOKEN_MAX)
            .ok_or(JoinError::NoToken)?;
        let pad = "=".repeat((4 - body.len() % 4) % 4);
        let body = Zeroizing::new(body.replace('-', "+").replace('_', "/") + &pad);
        let bytes = Zeroizing::new(base64_decode(&body).ok_or(JoinError::Damaged)?);
        let (bytes, crc) = bytes.split_last_chunk::<4>().ok_or(JoinError::Damaged)?;
        if spirula_encoding::crc::crc32c(0, bytes) != u32::from_le_bytes(*crc) {
            return Err(JoinError::Damaged);
        }
        let mut d = Decoder::new(bytes);
        let token = d
            .versioned("join token", 1, |d, _| {
                let fsid = d.get()?;
                let mons = d.list(1, Decoder::get)?;
                Ok(Self { fsid, mons, cephx: d.bool()?, key: d.get()? })
            })
            .map_err(|_| JoinError::Damaged)?;
        // An older kind of key would not tell a changed message from a good one.
        if token.key.key_type() != KeyType::Aes256k || token.mons.is_empty() {
            return Err(JoinError::Damaged);
        }
        Ok(token)
    }
}

/// An OSD that a host wants to bring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinOsd {
    /// Its store's identity.
    pub uuid: Uuid,
    /// Its key.
    pub key: CryptoKey,
}

/// What a host asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Tells this host's request from another's.
    pub nonce: [u8; 16],
    /// Its name.
    pub host: String,
    /// OSDs.
    pub osds: Vec<JoinOsd>,
    /// A manager: name and key.
    pub mgr: Option<(String, CryptoKey)>,
    /// It wants to run a monitor of that name, and needs the key that they share.
    pub mon: Option<String>,
}

/// What it gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The request's.
    pub nonce: [u8; 16],
    /// The cluster.
    pub fsid: Uuid,
    /// The monitors: name and addresses.
    pub mons: BTreeMap<String, AddrVec>,
    /// Numbers of its OSDs, in the order asked for.
    pub osds: Vec<OsdId>,
    /// The monitors' shared key, if a monitor was asked for.
    pub mon_key: Option<CryptoKey>,
    /// Options that the host's daemons need before they can ask for more.
    pub conf: BTreeMap<String, String>,
}

impl Encode for Request {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(2, 1, |o| {
            o.raw(&self.nonce);
            o.str(&self.host);
            o.list(&self.osds, |o, osd| {
                o.put(&osd.uuid);
                o.put(&osd.key);
            });
            o.list(&self.mgr, |o, (name, key)| {
                o.str(name);
                o.put(key);
            });
            o.bool(self.mon.is_some());
            o.str(self.mon.as_deref().unwrap_or_default());
        });
    }
}

impl Decode for Request {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("join request", 2, |d, version| {
            let mut r = Self {
                nonce: d.array()?,
                host: d.get()?,
                osds: d.list(16, |d| Ok(JoinOsd { uuid: d.get()?, key: d.get()? }))?,
                mgr: d.list(4, |d| Ok((d.get()?, d.get()?)))?.pop(),
                mon: None,
            };
            let mon = d.bool()?;
            // Version 1 does not say what it is called: no name, which is refused.
            let name: String = if version >= 2 { d.get()? } else { String::new() };
            r.mon = mon.then_some(name);
            Ok(r)
        })
    }
}

impl Encode for Answer {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.raw(&self.nonce);
            o.put(&self.fsid);
            o.list(&self.mons, |o, (name, addrs)| {
                o.str(name);
                o.put(addrs);
            });
            o.list(&self.osds, |o, id| o.i32(*id));
            o.list(&self.mon_key, |o, key| o.put(key));
            o.list(&self.conf, |o, (name, value)| {
                o.str(name);
                o.str(value);
            });
        });
    }
}

impl Decode for Answer {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("join answer", 1, |d, _| {
            Ok(Self {
                nonce: d.array()?,
                fsid: d.get()?,
                mons: d.list(5, |d| Ok((d.get()?, d.get()?)))?.into_iter().collect(),
                osds: d.list(4, Decoder::i32)?,
                mon_key: d.list(1, Decoder::get)?.pop(),
                conf: d.list(8, |d| Ok((d.get()?, d.get()?)))?.into_iter().collect(),
            })
        })
    }
}

fn seal<T: Encode>(key: &CryptoKey, usage: Usage, value: &T, entropy: &mut dyn Entropy) -> String {
    let plain = Zeroizing::new(spirula_encoding::to_vec(value));
    base64_encode(&key.encrypt(usage, &plain, entropy))
}

fn open<T: Decode>(key: &CryptoKey, usage: Usage, text: &str) -> Result<T, JoinError> {
    let text = text.trim();
    let cipher = Some(text)
        .filter(|t| t.len() <= SEALED_MAX)
        .and_then(base64_decode)
        .ok_or(JoinError::NotSealed)?;
    let plain = key.decrypt(usage, &cipher).ok_or(JoinError::NotSealed)?;
    spirula_encoding::from_slice(&plain).map_err(|e| JoinError::Malformed(e.to_string()))
}

impl Request {
    /// As text under the token's key.
    pub fn seal(&self, key: &CryptoKey, entropy: &mut dyn Entropy) -> String {
        seal(key, Usage::JoinRequest, self, entropy)
    }

    /// From that text.
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn open(key: &CryptoKey, text: &str) -> Result<Self, JoinError> {
        open(key, Usage::JoinRequest, text)
    }
}

impl Answer {
    /// As text under the token's key.
    pub fn seal(&self, key: &CryptoKey, entropy: &mut dyn Entropy) -> String {
        seal(key, Usage::JoinAnswer, self, entropy)
    }

    /// From that text, as the answer to the request with that nonce.
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn open(key: &CryptoKey, nonce: [u8; 16], text: &str) -> Result<Self, JoinError> {
        let answer: Self = open(key, Usage::JoinAnswer, text)?;
        if answer.nonce == nonce { Ok(answer) } else { Err(JoinError::NotSealed) }
    }
}

/// A token of the table, as kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// When it was made.
    pub made: UTime,
    /// When it ends.
    pub until: UTime,
    /// It brings monitors, too.
    pub mon: bool,
    /// Who used it: nonce, host, when.
    pub used: Option<([u8; 16], String, UTime)>,
}

impl Encode for Record {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.made);
            o.put(&self.until);
            o.bool(self.mon);
            o.list(&self.used, |o, (nonce, host, at)| {
                o.raw(nonce);
                o.str(host);
                o.put(at);
            });
        });
    }
}

impl Decode for Record {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("join token record", 1, |d, _| {
            Ok(Self {
                made: d.get()?,
                until: d.get()?,
                mon: d.bool()?,
                used: d.list(20, |d| Ok((d.array()?, d.get()?, d.get()?)))?.pop(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use spirula_types::EntityAddr;

    fn key(byte: u8) -> CryptoKey {
        CryptoKey::new(KeyType::Aes256k, UTime::default(), &[byte; 32]).unwrap()
    }

    fn token() -> Token {
        let at = |t: &str| AddrVec::one(EntityAddr::v2(t.parse().unwrap(), 0));
        Token {
            fsid: Uuid([7; 16]),
            mons: vec![at("10.0.0.1:3300"), at("[fd00::1]:3300")],
            cephx: true,
            key: key(3),
        }
    }

    fn zeros() -> impl FnMut(&mut [u8]) {
        |out: &mut [u8]| out.fill(9)
    }

    #[test]
    fn token_survives_its_text_and_any_change_of_a_character_is_noticed() {
        let text = token().to_string();
        assert_eq!(text.parse::<Token>().unwrap(), token());
        assert_eq!(format!(" {text}\n").parse::<Token>().unwrap(), token());
        assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)), "{text}");
        for i in PREFIX.len()..text.len() {
            let mut bad = text.clone().into_bytes();
            bad[i] = if bad[i] == b'A' { b'B' } else { b'A' };
            let bad = String::from_utf8(bad).unwrap();
            // The last character may hold bits that do not count.
            let same = bad.parse::<Token>();
            assert!(same == Err(JoinError::Damaged) || i + 1 == text.len(), "{i}: {same:?}");
            assert!(text[..i].parse::<Token>().is_err(), "cut at {i}");
        }
        assert_eq!("hello".parse::<Token>(), Err(JoinError::NoToken));
        assert!(!token().user().contains("0303"), "the name does not show the secret");
    }

    #[test]
    fn what_another_key_or_nonce_made_is_not_believed() {
        let request = Request {
            nonce: [1; 16],
            host: "h".into(),
            osds: vec![JoinOsd { uuid: Uuid([2; 16]), key: key(5) }],
            mgr: Some(("x".into(), key(6))),
            mon: Some("c".into()),
        };
        let sealed = request.seal(&key(3), &mut zeros());
        assert_eq!(Request::open(&key(3), &sealed), Ok(request));
        assert_eq!(Request::open(&key(4), &sealed), Err(JoinError::NotSealed));
        assert_eq!(
            Answer::open(&key(3), [1; 16], &sealed),
            Err(JoinError::NotSealed),
            "a request is no answer"
        );
        let answer = Answer {
            nonce: [1; 16],
            fsid: Uuid([7; 16]),
            mons: [("a".to_owned(), token().mons[0].clone())].into(),
            osds: vec![3, 4],
            mon_key: Some(key(8)),
            conf: [("auth_cluster_required".to_owned(), "none".to_owned())].into(),
        };
        let sealed = answer.seal(&key(3), &mut zeros());
        assert_eq!(Answer::open(&key(3), [1; 16], &sealed), Ok(answer));
        assert_eq!(Answer::open(&key(3), [2; 16], &sealed), Err(JoinError::NotSealed));
        let mut raw = base64_decode(&sealed).unwrap();
        for i in 0..raw.len() {
            raw[i] ^= 1;
            assert_eq!(
                Answer::open(&key(3), [1; 16], &base64_encode(&raw)),
                Err(JoinError::NotSealed),
                "bit in {i}"
            );
            raw[i] ^= 1;
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_reading_panic(text in ".{0,200}", bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = format!("{PREFIX}{text}").parse::<Token>();
            let _ = Request::open(&key(1), &text);
            let _ = spirula_encoding::from_slice::<Request>(&bytes);
            let _ = spirula_encoding::from_slice::<Answer>(&bytes);
            let _ = spirula_encoding::from_slice::<Record>(&bytes);
        }
    }
}
