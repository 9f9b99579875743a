//! Authentication as the messenger sees it: opaque payloads, and what comes of them.
//!
//! The messenger carries the frames of an exchange, agrees on the connection mode, signs the
//! handshake with the session key and protects frames with the connection secret. What the
//! payloads mean is somebody else's: [`Credentials`] on the connecting side, and on the
//! accepting side whoever answers [`crate::Event::Auth`] and [`crate::Event::AuthMore`] with an
//! [`AuthAnswer`]. Method "none" ([`NoneRequest`]) is one such method, without secrets.
//!
//! Facts: `docs/protocol/README.md` §2 and §3; which list of modes counts between whom, from
//! Ceph's AuthRegistry: the peer's order of preference decides among the modes we allow, and
//! method "none", having no secrets, never has more than crc.

use bytes::Bytes;
use spirula_encoding::{DecodeError, Decoder, Encoder};
use spirula_types::EntityType;
use std::fmt;
use std::str::FromStr;

/// Authentication method "none": whoever one says one is.
pub const METHOD_NONE: u32 = 1;
/// Authentication method "cephx".
pub const METHOD_CEPHX: u32 = 2;

/// Bytes of a connection secret that secure mode uses.
pub const CONNECTION_SECRET_LEN: usize = 40;

/// First byte of an authentication payload to a monitor.
const TO_MONITOR: u8 = 10;
/// First byte of an authentication payload to any other daemon.
const TO_DAEMON: u8 = 1;

/// How frames are protected after authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Mode {
    /// Checksums only.
    Crc = 1,
    /// AES-128-GCM.
    Secure = 2,
}

impl Mode {
    /// The mode with this number.
    pub fn from_wire(v: u32) -> Option<Self> {
        match v {
            1 => Some(Self::Crc),
            2 => Some(Self::Secure),
            _ => None,
        }
    }

    /// Its name in options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Crc => "crc",
            Self::Secure => "secure",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A list of connection modes that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no list of connection modes; it has \"crc\" and \"secure\", best first")]
pub struct BadModes(pub String);

/// Modes allowed, best first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Modes(Vec<Mode>);

impl Modes {
    /// The allowed modes, best first; never empty.
    pub fn as_slice(&self) -> &[Mode] {
        &self.0
    }
}

impl FromStr for Modes {
    type Err = BadModes;

    /// Reads an option's value: names separated by spaces or commas.
    fn from_str(s: &str) -> Result<Self, BadModes> {
        let bad = || BadModes(s.to_owned());
        let mut modes = Vec::new();
        for word in s.split([' ', ',', ';', '\t']).filter(|w| !w.is_empty()) {
            let mode = match word {
                "crc" => Mode::Crc,
                "secure" => Mode::Secure,
                _ => return Err(bad()),
            };
            if !modes.contains(&mode) {
                modes.push(mode);
            }
        }
        if modes.is_empty() { Err(bad()) } else { Ok(Self(modes)) }
    }
}

impl fmt::Display for Modes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.0.iter().map(|m| m.name()).collect();
        f.write_str(&names.join(" "))
    }
}

/// Modes allowed, by who talks to whom: Ceph's six options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModePolicy {
    /// `ms_mon_cluster_mode`: between monitors.
    pub mon_cluster: Modes,
    /// `ms_mon_service_mode`: what monitors allow everyone else.
    pub mon_service: Modes,
    /// `ms_mon_client_mode`: what clients want of monitors.
    pub mon_client: Modes,
    /// `ms_cluster_mode`: what daemons that are no monitors want of, and allow, daemons.
    pub cluster: Modes,
    /// `ms_service_mode`: what they allow clients.
    pub service: Modes,
    /// `ms_client_mode`: what clients want of daemons that are no monitors.
    pub client: Modes,
}

impl Default for ModePolicy {
    /// Ceph's defaults: monitors prefer secure, all others crc.
    fn default() -> Self {
        let secure = Modes(vec![Mode::Secure, Mode::Crc]);
        let crc = Modes(vec![Mode::Crc, Mode::Secure]);
        Self {
            mon_cluster: secure.clone(),
            mon_service: secure.clone(),
            mon_client: secure,
            cluster: crc.clone(),
            service: crc.clone(),
            client: crc,
        }
    }
}

impl ModePolicy {
    /// The same modes between all.
    pub fn all(modes: &Modes) -> Self {
        let m = || modes.clone();
        Self {
            mon_cluster: m(),
            mon_service: m(),
            mon_client: m(),
            cluster: m(),
            service: m(),
            client: m(),
        }
    }

    /// What `own` allows, or wants of, a `peer`, best first.
    pub fn between(&self, own: EntityType, peer: EntityType) -> &[Mode] {
        let list = match (own, peer) {
            (EntityType::Client, EntityType::Mon) => &self.mon_client,
            (EntityType::Client, _) => &self.client,
            (EntityType::Mon, EntityType::Mon) => &self.mon_cluster,
            (EntityType::Mon, _) => &self.mon_service,
            (_, EntityType::Mon | EntityType::Mgr | EntityType::Mds | EntityType::Osd) => {
                &self.cluster
            }
            _ => &self.service,
        };
        list.as_slice()
    }
}

/// Bytes that must not appear in logs.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(Bytes);

impl Secret {
    /// Takes the bytes.
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        Self(bytes.into())
    }

    /// The bytes.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}

/// What both sides know after authentication; both parts are empty with method "none".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Secrets {
    /// Signs the handshake: the bytes of the session key.
    pub session_key: Secret,
    /// Key and nonces of secure mode: at least [`CONNECTION_SECRET_LEN`] bytes there (Ceph
    /// draws 64), of one use; empty in crc mode.
    pub connection_secret: Secret,
}

/// A peer begins to authenticate. Method and mode are ones that we allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthRequest {
    /// The kind of entity that it says it is, in its HELLO; not authenticated.
    pub hello: EntityType,
    /// Method number.
    pub method: u32,
    /// The mode that this connection will have.
    pub mode: Mode,
    /// The method's first payload.
    pub payload: Bytes,
}

/// The application's answer to an [`AuthRequest`], or to a further payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthAnswer {
    /// The peer must answer this first.
    More(Bytes),
    /// The peer is in.
    Done(Granted),
    /// The peer is not in; −errno. It is told what methods and modes we allow and may try
    /// again, a few times.
    Bad(i32),
}

/// Who came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Kind of entity, authenticated.
    pub kind: EntityType,
    /// Its name without the kind, authenticated.
    pub id: String,
    /// Its global id.
    pub global_id: u64,
    /// The method's last payload.
    pub payload: Bytes,
    /// What both sides now know.
    pub secrets: Secrets,
}

/// What the connecting side asks with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthStart {
    /// Method number.
    pub method: u32,
    /// The method's first payload.
    pub payload: Bytes,
}

/// A server's refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadMethod {
    /// Method that was asked for.
    pub method: u32,
    /// −errno.
    pub result: i32,
    /// Methods that it allows.
    pub methods: Vec<u32>,
    /// Modes that it allows, as numbers.
    pub modes: Vec<u32>,
}

/// The connecting side of an exchange: of one connection, made anew for the next. Errors are
/// texts for the log; each ends the connection.
pub trait Credentials: fmt::Debug + Send {
    /// The first request.
    ///
    /// # Errors
    /// When there is nothing to authenticate with (yet).
    fn request(&mut self) -> Result<AuthStart, String>;

    /// The server refused; another request to try, or nothing.
    fn bad_method(&mut self, bad: &BadMethod) -> Option<AuthStart>;

    /// The server asks for more.
    ///
    /// # Errors
    /// When the payload is not what the method expects.
    fn more(&mut self, payload: &[u8]) -> Result<Bytes, String>;

    /// We are in, as `global_id`.
    ///
    /// # Errors
    /// When the server does not prove itself, or the payload is malformed.
    fn done(&mut self, global_id: u64, mode: Mode, payload: &[u8]) -> Result<Secrets, String>;
}

/// Payload of AUTH_REQUEST with method "none"; as [`Credentials`], that method's connecting
/// side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoneRequest {
    /// True if it speaks as to a monitor.
    pub to_monitor: bool,
    /// Kind of entity.
    pub kind: EntityType,
    /// Its name without the kind.
    pub id: String,
    /// Its global id; 0 asks a monitor for one.
    pub global_id: u64,
}

impl NoneRequest {
    /// The payload.
    pub fn write(&self) -> Bytes {
        let mut o = Encoder::with_capacity(32);
        o.u8(if self.to_monitor { TO_MONITOR } else { TO_DAEMON });
        o.u32(self.kind as u32);
        o.str(&self.id);
        o.u64(self.global_id);
        o.into_bytes()
    }

    /// Reads the payload.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn read(payload: &[u8]) -> Result<Self, DecodeError> {
        let mut d = Decoder::new(payload);
        let to_monitor = d.u8()? == TO_MONITOR;
        let kind = d.u32()?;
        let kind = u8::try_from(kind)
            .ok()
            .and_then(EntityType::from_wire)
            .ok_or(DecodeError::Value { what: "entity type", value: i64::from(kind) })?;
        Ok(Self { to_monitor, kind, id: d.get()?, global_id: d.u64()? })
    }

    /// Lets the peer in as whom it says it is, with `global_id`.
    pub fn granted(self, global_id: u64) -> Granted {
        let (payload, secrets) = (Bytes::new(), Secrets::default());
        Granted { kind: self.kind, id: self.id, global_id, payload, secrets }
    }
}

impl Credentials for NoneRequest {
    fn request(&mut self) -> Result<AuthStart, String> {
        Ok(AuthStart { method: METHOD_NONE, payload: self.write() })
    }

    fn bad_method(&mut self, _: &BadMethod) -> Option<AuthStart> {
        None
    }

    fn more(&mut self, _: &[u8]) -> Result<Bytes, String> {
        Err("the server asks for more, though with method \"none\" there is nothing to say".into())
    }

    fn done(&mut self, global_id: u64, _: Mode, _: &[u8]) -> Result<Secrets, String> {
        self.global_id = global_id;
        Ok(Secrets::default())
    }
}

/// The first of `preferred` that is among `allowed`.
pub(crate) fn pick(preferred: &[u32], allowed: &[Mode]) -> Option<Mode> {
    preferred.iter().filter_map(|m| Mode::from_wire(*m)).find(|m| allowed.contains(m))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_lists_read_as_in_ceph_and_refuse_what_is_none() {
        let m: Modes = "secure, crc secure".parse().unwrap();
        assert_eq!(
            (m.as_slice(), m.to_string().as_str()),
            (&[Mode::Secure, Mode::Crc][..], "secure crc")
        );
        for bad in ["", " , ", "tls", "crc Secure"] {
            assert_eq!(bad.parse::<Modes>(), Err(BadModes(bad.to_owned())));
        }
    }

    #[test]
    fn each_pair_of_kinds_has_its_option() {
        let list = |s: &str| s.parse::<Modes>().unwrap();
        let mut p = ModePolicy::all(&list("crc"));
        let secure = |p: &ModePolicy, own, peer| p.between(own, peer) == [Mode::Secure];
        use EntityType::{Client, Mgr, Mon, Osd};
        p.mon_cluster = list("secure");
        assert!(secure(&p, Mon, Mon) && !secure(&p, Mon, Osd) && !secure(&p, Osd, Mon));
        p.mon_service = list("secure");
        assert!(secure(&p, Mon, Osd) && secure(&p, Mon, Client) && !secure(&p, Client, Mon));
        p.mon_client = list("secure");
        assert!(secure(&p, Client, Mon) && !secure(&p, Client, Osd));
        p.cluster = list("secure");
        assert!(
            secure(&p, Osd, Mon)
                && secure(&p, Osd, Osd)
                && secure(&p, Mgr, Osd)
                && !secure(&p, Osd, Client)
        );
        p.service = list("secure");
        assert!(secure(&p, Osd, Client) && !secure(&p, Client, Osd));
        p.client = list("secure");
        assert!(secure(&p, Client, Osd) && secure(&p, Client, Mgr));
    }

    #[test]
    fn the_peers_preference_decides_among_what_is_allowed() {
        assert_eq!(pick(&[2, 1], &[Mode::Crc, Mode::Secure]), Some(Mode::Secure));
        assert_eq!(pick(&[7, 1, 2], &[Mode::Secure, Mode::Crc]), Some(Mode::Crc));
        assert_eq!(pick(&[1], &[Mode::Secure]), None);
    }

    #[test]
    fn secrets_do_not_show_in_debug_output() {
        let s = Secret::new(vec![0x41; 16]);
        assert_eq!(format!("{s:?}"), "Secret(16 bytes)");
    }
}
