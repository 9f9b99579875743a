//! Names of those who authenticate, and of what they authenticate to.

use crate::error::AuthError;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};
use spirula_types::EntityType;
use std::fmt;
use std::str::FromStr;

/// Longest entity id in bytes.
const MAX_ID: usize = 250;

/// Who: `client.admin`, `osd.3`, `mon.` (the monitors share one key and have no id).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntityId {
    kind: EntityType,
    id: String,
}

impl EntityId {
    /// A name of its two parts.
    ///
    /// # Errors
    /// [`AuthError::BadName`]: an id of more than 250 bytes, or with control characters or
    /// brackets, which no keyring file could hold.
    pub fn new(kind: EntityType, id: &str) -> Result<Self, AuthError> {
        if id.len() > MAX_ID || id.chars().any(|c| c.is_control() || matches!(c, '[' | ']')) {
            let shown: String = id.chars().filter(|c| !c.is_control()).take(60).collect();
            return Err(AuthError::BadName(format!("{}.{shown}", kind.as_str())));
        }
        Ok(Self { kind, id: id.to_owned() })
    }

    /// The kind.
    pub fn kind(&self) -> EntityType {
        self.kind
    }

    /// The part after the dot.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// A daemon of ours, not one of Ceph's, nor a client.
    pub fn is_own_daemon(&self) -> bool {
        self.service().is_some_and(|s| !crate::foreign::is_foreign(s))
    }

    /// The service of which this is a daemon; none for clients.
    pub fn service(&self) -> Option<Service> {
        match self.kind {
            EntityType::Mon => Some(Service::Mon),
            EntityType::Mds => Some(Service::Mds),
            EntityType::Osd => Some(Service::Osd),
            EntityType::Mgr => Some(Service::Mgr),
            EntityType::Client => None,
        }
    }
}

impl fmt::Display for EntityId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.kind.as_str(), self.id)
    }
}

impl FromStr for EntityId {
    type Err = AuthError;

    fn from_str(s: &str) -> Result<Self, AuthError> {
        let bad = || AuthError::BadName(s.chars().filter(|c| !c.is_control()).take(60).collect());
        let (kind, id) = s.split_once('.').ok_or_else(bad)?;
        Self::new(EntityType::from_name(kind).ok_or_else(bad)?, id)
    }
}

impl Encode for EntityId {
    fn encode(&self, out: &mut Encoder) {
        out.u32(self.kind as u32);
        out.str(&self.id);
    }
}

impl Decode for EntityId {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let number = d.u32()?;
        let bad = |value: i64| DecodeError::Value { what: "entity type", value };
        let kind = u8::try_from(number)
            .ok()
            .and_then(EntityType::from_wire)
            .ok_or_else(|| bad(i64::from(number)))?;
        Self::new(kind, d.str()?).map_err(|_| DecodeError::Value { what: "entity id", value: 0 })
    }
}

/// What a ticket is for. The numbers are those of entity types, and 32 for the monitors'
/// authentication service itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Service {
    /// Monitors.
    Mon = 1,
    /// Metadata servers.
    Mds = 2,
    /// OSDs.
    Osd = 4,
    /// Managers.
    Mgr = 16,
    /// The ticket that says "this is so-and-so", good for getting further tickets.
    Auth = 32,
}

impl Service {
    /// All of them, by number.
    pub const ALL: [Self; 5] = [Self::Mon, Self::Mds, Self::Osd, Self::Mgr, Self::Auth];

    /// The number on the wire.
    pub fn wire(self) -> u32 {
        self as u32
    }

    /// The service with that number.
    pub fn from_wire(v: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.wire() == v)
    }

    /// `mon`, `mds`, `osd`, `mgr`, `auth`: also the name of its caps.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mon => "mon",
            Self::Mds => "mds",
            Self::Osd => "osd",
            Self::Mgr => "mgr",
            Self::Auth => "auth",
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A set of services, as the bit mask on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Services(pub u32);

impl Services {
    /// What daemons and clients of a whole cluster want: mon, osd, mgr (and auth itself).
    pub const USUAL: Self = Self(1 | 4 | 16 | 32);

    /// True if the service is among them.
    pub fn has(self, service: Service) -> bool {
        self.0 & service.wire() != 0
    }

    /// Its members that exist; unknown bits are left out.
    pub fn iter(self) -> impl Iterator<Item = Service> {
        Service::ALL.into_iter().filter(move |s| self.has(*s))
    }
}
