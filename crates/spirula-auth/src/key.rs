//! Secrets: type, time of birth, bytes.
//!
//! A key's text is base64 of {u16 type, utime created, u16 length, bytes}. Type 1 (`aes`) is
//! AES-128-CBC as releases up to 19.2.5 and 20.2.3 speak it; type 2 (`aes256k`) is
//! AES256-CTS-HMAC-SHA384-192. Secrets are wiped when dropped and never shown by `Debug`.

use crate::base64;
use crate::entropy::{self, Entropy};
use crate::error::AuthError;
use crate::{cbc, krb5};
use ring::hmac;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use std::fmt;
use std::str::FromStr;
use zeroize::Zeroizing;

/// What a piece of cipher text is for. With `aes256k` each usage has its own keys; `aes` knows
/// no usages. Numbers of Ceph 20.2.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Usage {
    /// The connection secret in the monitor's AUTH_DONE.
    ConnectionSecret = 0x03,
    /// The client's part of a ticket: session key and validity.
    TicketSessionKey = 0x04,
    /// A new ticket, for the holder of the old one.
    TicketBlob = 0x05,
    /// An authorizer.
    Authorize = 0x10,
    /// A service's challenge to it.
    AuthorizeChallenge = 0x11,
    /// A service's reply to it.
    AuthorizeReply = 0x12,
    /// Service keys on their way to a daemon.
    RotatingSecret = 0x20,
    /// Our own: what a new host asks the monitors, under its token's key.
    JoinRequest = 0x5301,
    /// Our own: what they answer.
    JoinAnswer = 0x5302,
}

/// The kinds of key, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum KeyType {
    /// `aes`: AES-128-CBC without authentication.
    Aes = 1,
    /// `aes256k`: AES256-CTS-HMAC-SHA384-192.
    Aes256k = 2,
}

impl KeyType {
    /// Both, weakest first.
    pub const ALL: [Self; 2] = [Self::Aes, Self::Aes256k];

    /// The type with that number.
    pub fn from_wire(v: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|t| *t as u16 == v)
    }

    /// `aes` or `aes256k`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Aes => "aes",
            Self::Aes256k => "aes256k",
        }
    }

    /// Bytes of its secret.
    pub fn secret_len(self) -> usize {
        match self {
            Self::Aes => 16,
            Self::Aes256k => krb5::KEY_LEN,
        }
    }
}

impl fmt::Display for KeyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for KeyType {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|t| t.as_str() == s)
            .ok_or_else(|| format!("unknown key type '{s}', it is one of aes, aes256k"))
    }
}

/// A set of key types: those a cluster allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyTypes {
    /// `aes` is in it.
    pub aes: bool,
    /// `aes256k` is in it.
    pub aes256k: bool,
}

impl KeyTypes {
    /// Both.
    pub const ALL: Self = Self { aes: true, aes256k: true };
    /// Only `aes256k`.
    pub const STRONG: Self = Self { aes: false, aes256k: true };

    /// True if the type is in it.
    pub fn has(self, t: KeyType) -> bool {
        match t {
            KeyType::Aes => self.aes,
            KeyType::Aes256k => self.aes256k,
        }
    }
}

#[derive(Clone, PartialEq, Eq)]
enum Secret {
    Aes(Zeroizing<[u8; 16]>),
    Aes256k(Zeroizing<[u8; krb5::KEY_LEN]>),
}

/// A key.
#[derive(Clone, PartialEq, Eq)]
pub struct CryptoKey {
    created: UTime,
    secret: Secret,
}

impl fmt::Debug for CryptoKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CryptoKey({}, created {}, secret hidden)", self.key_type(), self.created.sec)
    }
}

impl CryptoKey {
    /// A key of given bytes.
    ///
    /// # Errors
    /// [`AuthError::BadKey`] if the length is not the type's.
    pub fn new(key_type: KeyType, created: UTime, secret: &[u8]) -> Result<Self, AuthError> {
        const LENGTH: AuthError =
            AuthError::BadKey("its secret is not as long as its type demands");
        let secret = match key_type {
            KeyType::Aes => Secret::Aes(Zeroizing::new(secret.try_into().map_err(|_| LENGTH)?)),
            KeyType::Aes256k => {
                Secret::Aes256k(Zeroizing::new(secret.try_into().map_err(|_| LENGTH)?))
            }
        };
        Ok(Self { created, secret })
    }

    /// A new random key.
    pub fn generate(key_type: KeyType, created: UTime, entropy: &mut dyn Entropy) -> Self {
        let secret = match key_type {
            KeyType::Aes => Secret::Aes(Zeroizing::new(entropy::array(entropy))),
            KeyType::Aes256k => Secret::Aes256k(Zeroizing::new(entropy::array(entropy))),
        };
        Self { created, secret }
    }

    /// A key from its text in a keyring.
    ///
    /// # Errors
    /// [`AuthError::BadKey`], [`AuthError::UnknownKeyType`].
    pub fn from_base64(text: &str) -> Result<Self, AuthError> {
        let bytes =
            Zeroizing::new(base64::decode(text).ok_or(AuthError::BadKey("it is not base64"))?);
        let mut d = Decoder::new(&bytes);
        let parts = (|| Ok::<_, DecodeError>((d.u16()?, d.get::<UTime>()?, d.u16()?)))();
        let (number, created, len) = parts.map_err(|_| AuthError::BadKey("it is too short"))?;
        let key_type = KeyType::from_wire(number).ok_or(AuthError::UnknownKeyType(number))?;
        let secret = d.take(usize::from(len)).map_err(|_| AuthError::BadKey("it is cut off"))?;
        if !d.is_empty() {
            return Err(AuthError::BadKey("bytes follow its end"));
        }
        Self::new(key_type, created, secret)
    }

    /// Its text in a keyring. This is the secret itself: for keyrings and the `ceph auth` commands.
    pub fn to_base64(&self) -> Zeroizing<String> {
        Zeroizing::new(base64::encode(&Zeroizing::new(spirula_encoding::to_vec(self))))
    }

    /// Its type.
    pub fn key_type(&self) -> KeyType {
        match self.secret {
            Secret::Aes(_) => KeyType::Aes,
            Secret::Aes256k(_) => KeyType::Aes256k,
        }
    }

    /// When it was made.
    pub fn created(&self) -> UTime {
        self.created
    }

    /// The secret bytes: the key of msgr2's AUTH_SIGNATURE when this is a session key.
    pub fn secret(&self) -> &[u8] {
        match &self.secret {
            Secret::Aes(s) => s.as_slice(),
            Secret::Aes256k(s) => s.as_slice(),
        }
    }

    /// Encrypts. Only `aes256k` takes `usage` and randomness into account.
    pub fn encrypt(&self, usage: Usage, plain: &[u8], entropy: &mut dyn Entropy) -> Vec<u8> {
        match &self.secret {
            Secret::Aes(s) => cbc::encrypt(s, plain),
            Secret::Aes256k(s) => krb5::encrypt(s, usage as u32, entropy::array(entropy), plain),
        }
    }

    /// Decrypts; `None` if it does not come from this key (and usage). With `aes` some damage
    /// passes.
    pub fn decrypt(&self, usage: Usage, cipher: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        match &self.secret {
            Secret::Aes(s) => cbc::decrypt(s, cipher),
            Secret::Aes256k(s) => krb5::decrypt(s, usage as u32, cipher),
        }
        .map(Zeroizing::new)
    }

    /// HMAC-SHA256 under the secret.
    pub fn hmac_sha256(&self, data: &[u8]) -> [u8; 32] {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, self.secret()), data);
        let mut out = [0; 32];
        for (to, from) in out.iter_mut().zip(tag.as_ref()) {
            *to = *from;
        }
        out
    }
}

impl Encode for CryptoKey {
    fn encode(&self, out: &mut Encoder) {
        out.u16(self.key_type() as u16);
        out.put(&self.created);
        out.u16(self.secret().len() as u16);
        out.raw(self.secret());
    }
}

impl Decode for CryptoKey {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let number = d.u16()?;
        let created = d.get()?;
        let len = usize::from(d.u16()?);
        let secret = d.take(len)?;
        let bad = DecodeError::Value { what: "key type", value: i64::from(number) };
        let key_type = KeyType::from_wire(number).ok_or(bad)?;
        Self::new(key_type, created, secret)
            .map_err(|_| DecodeError::Value { what: "key length", value: i64::from(len as u32) })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::entropy::seeded;

    /// `client.admin` of `tests/data/vectors/cephx/keyring.txt`.
    const ADMIN: &str = "AQDSqgBrQrX1IRAArw68htNs2j6F4VXG7iDfWQ==";

    #[test]
    fn a_real_key_reads_and_prints() {
        let key = CryptoKey::from_base64(ADMIN).unwrap();
        assert_eq!(key.key_type(), KeyType::Aes);
        assert_eq!(key.secret()[..4], [0xaf, 0x0e, 0xbc, 0x86]);
        assert_eq!(*key.to_base64(), ADMIN);
        assert!(!format!("{key:?}").contains("rw68"));
    }

    #[test]
    fn strong_keys_read_and_print() {
        let key = CryptoKey::generate(KeyType::Aes256k, UTime { sec: 1, nsec: 2 }, &mut seeded(1));
        let text = key.to_base64();
        assert_eq!(&text[..2], "Ag");
        assert_eq!(CryptoKey::from_base64(&text).unwrap(), key);
        assert_eq!(
            spirula_encoding::from_slice::<CryptoKey>(&spirula_encoding::to_vec(&key)).unwrap(),
            key
        );
    }

    #[test]
    fn bad_keys_say_what_is_wrong() {
        let key = CryptoKey::from_base64(ADMIN).unwrap();
        let bytes = spirula_encoding::to_vec(&key);
        let of = |b: &[u8]| CryptoKey::from_base64(&base64::encode(b)).unwrap_err().to_string();
        assert_eq!(
            CryptoKey::from_base64("??").unwrap_err().to_string(),
            "bad key: it is not base64"
        );
        assert_eq!(of(&bytes[..9]), "bad key: it is too short");
        assert_eq!(of(&bytes[..20]), "bad key: it is cut off");
        assert_eq!(of(&[&bytes[..], &[0]].concat()), "bad key: bytes follow its end");
        let mut odd = bytes.clone();
        odd[0] = 9;
        assert_eq!(of(&odd), "key type 9 is unknown");
        odd[0] = 2;
        assert_eq!(of(&odd), "bad key: its secret is not as long as its type demands");
        odd[0] = 0;
        assert_eq!(of(&odd), "key type 0 is unknown");
    }
}
