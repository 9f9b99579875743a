//! Who and where: entity names and network addresses.

use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Kinds of entity, with their numbers on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum EntityType {
    /// A monitor.
    Mon = 1,
    /// A metadata server.
    Mds = 2,
    /// An OSD.
    Osd = 4,
    /// Any client.
    Client = 8,
    /// A manager.
    Mgr = 16,
}

impl EntityType {
    /// The kind with this wire number.
    pub fn from_wire(v: u8) -> Option<Self> {
        Some(match v {
            1 => Self::Mon,
            2 => Self::Mds,
            4 => Self::Osd,
            8 => Self::Client,
            16 => Self::Mgr,
            _ => return None,
        })
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Mon, Self::Mds, Self::Osd, Self::Client, Self::Mgr]
            .into_iter()
            .find(|k| k.as_str() == name)
    }

    /// `mon`, `mds`, `osd`, `client`, `mgr`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mon => "mon",
            Self::Mds => "mds",
            Self::Osd => "osd",
            Self::Client => "client",
            Self::Mgr => "mgr",
        }
    }
}

/// An entity by kind and number (`osd.3`, `client.4470`). The kind is kept as its wire
/// byte because peers may name kinds we do not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntityName {
    /// Kind, as [`EntityType`] on the wire.
    pub kind: u8,
    /// Number: OSD id, monitor rank, global id of a client.
    pub num: i64,
}

impl EntityName {
    /// A name of a known kind.
    pub fn new(kind: EntityType, num: i64) -> Self {
        Self { kind: kind as u8, num }
    }
    /// `osd.N`.
    pub fn osd(num: i32) -> Self {
        Self::new(EntityType::Osd, i64::from(num))
    }
    /// `client.N`.
    pub fn client(num: u64) -> Self {
        Self::new(EntityType::Client, num as i64)
    }
    /// `mon.N` by rank.
    pub fn mon(rank: i64) -> Self {
        Self::new(EntityType::Mon, rank)
    }
    /// `mgr.N` by global id.
    pub fn mgr(gid: i64) -> Self {
        Self::new(EntityType::Mgr, gid)
    }
    /// The kind, if known.
    pub fn entity_type(&self) -> Option<EntityType> {
        EntityType::from_wire(self.kind)
    }
}

impl fmt::Display for EntityName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.entity_type().map_or("unknown", EntityType::as_str);
        if self.num < 0 { write!(f, "{kind}.?") } else { write!(f, "{kind}.{}", self.num) }
    }
}

impl Encode for EntityName {
    fn encode(&self, out: &mut Encoder) {
        out.u8(self.kind);
        out.i64(self.num);
    }
}

impl Decode for EntityName {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { kind: d.u8()?, num: d.i64()? })
    }
}

/// A network address with the nonce that tells incarnations apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntityAddr {
    /// 0 none, 1 legacy (v1), 2 msgr2, 3 any.
    pub kind: u32,
    /// Tells two instances on one address apart; random for clients.
    pub nonce: u32,
    /// Address and port, if there is one.
    pub addr: Option<SocketAddr>,
}

impl Default for EntityAddr {
    fn default() -> Self {
        Self::NONE
    }
}

impl EntityAddr {
    /// Kind "none".
    pub const KIND_NONE: u32 = 0;
    /// Kind "legacy", msgr v1.
    pub const KIND_LEGACY: u32 = 1;
    /// Kind "msgr2".
    pub const KIND_MSGR2: u32 = 2;
    /// Kind "any".
    pub const KIND_ANY: u32 = 3;
    /// No address.
    pub const NONE: Self = Self { kind: 0, nonce: 0, addr: None };

    /// A msgr2 address.
    pub fn v2(addr: SocketAddr, nonce: u32) -> Self {
        Self { kind: Self::KIND_MSGR2, nonce, addr: Some(addr) }
    }

    /// True if there is no address.
    pub fn is_blank(&self) -> bool {
        self.addr.is_none()
    }

    /// `IP:PORT/NONCE` without the kind, as the blocklist and `osd dump` print it.
    pub fn plain(&self) -> String {
        match self.addr {
            Some(a) => format!("{a}/{}", self.nonce),
            None => "-".into(),
        }
    }
}

impl fmt::Display for EntityAddr {
    /// `v2:127.0.0.1:6800/123`, as Ceph prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Self::KIND_NONE => return f.write_str("-"),
            Self::KIND_LEGACY => "v1:",
            Self::KIND_MSGR2 => "v2:",
            _ => "any:",
        };
        match self.addr {
            Some(a) => write!(f, "{kind}{a}/{}", self.nonce),
            None => write!(f, "{kind}-/{}", self.nonce),
        }
    }
}

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

impl Encode for EntityAddr {
    fn encode(&self, out: &mut Encoder) {
        out.u8(1);
        out.versioned(1, 1, |o| {
            o.u32(self.kind);
            o.u32(self.nonce);
            match self.addr {
                None => o.u32(0),
                Some(SocketAddr::V4(a)) => {
                    o.u32(16);
                    o.u16(AF_INET);
                    o.raw(&a.port().to_be_bytes());
                    o.raw(&a.ip().octets());
                    o.zeros(8);
                }
                Some(SocketAddr::V6(a)) => {
                    o.u32(28);
                    o.u16(AF_INET6);
                    o.raw(&a.port().to_be_bytes());
                    o.raw(&a.flowinfo().to_be_bytes());
                    o.raw(&a.ip().octets());
                    o.u32(a.scope_id());
                }
            }
        });
    }
}

impl EntityAddr {
    fn decode_body(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("entity_addr_t", 1, |d, _| {
            let kind = d.u32()?;
            let nonce = d.u32()?;
            let sa = d.blob()?;
            let mut s = Decoder::new(sa);
            let addr = if sa.is_empty() {
                None
            } else {
                match s.u16()? {
                    AF_INET => {
                        let port = u16::from_be_bytes(s.array()?);
                        let ip: [u8; 4] = s.array()?;
                        Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(ip)), port))
                    }
                    AF_INET6 => {
                        let port = u16::from_be_bytes(s.array()?);
                        let flow = u32::from_be_bytes(s.array()?);
                        let ip: [u8; 16] = s.array()?;
                        let scope = if s.remaining() >= 4 { s.u32()? } else { 0 };
                        Some(SocketAddr::V6(std::net::SocketAddrV6::new(
                            Ipv6Addr::from(ip),
                            port,
                            flow,
                            scope,
                        )))
                    }
                    // A blank address of a peer that does not know its own.
                    0 => None,
                    other => {
                        return Err(DecodeError::Value {
                            what: "address family",
                            value: i64::from(other),
                        });
                    }
                }
            };
            Ok(Self { kind, nonce, addr })
        })
    }

    /// The legacy form that starts with a zero byte (already read): 3 bytes of padding,
    /// nonce, 128 bytes of sockaddr with a big-endian family.
    fn decode_legacy(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.skip(3)?;
        let nonce = d.u32()?;
        let sa: [u8; 128] = d.array()?;
        let family = u16::from_be_bytes([sa[0], sa[1]]);
        let port = u16::from_be_bytes([sa[2], sa[3]]);
        let addr = match family {
            AF_INET => {
                Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(sa[4], sa[5], sa[6], sa[7])), port))
            }
            AF_INET6 => {
                let mut ip = [0; 16];
                ip.copy_from_slice(&sa[8..24]);
                Some(SocketAddr::new(IpAddr::V6(Ipv6Addr::from(ip)), port))
            }
            _ => None,
        };
        Ok(Self {
            kind: if addr.is_some() { Self::KIND_LEGACY } else { Self::KIND_NONE },
            nonce,
            addr,
        })
    }
}

impl Decode for EntityAddr {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        match d.u8()? {
            0 => Self::decode_legacy(d),
            1 => Self::decode_body(d),
            v => Err(DecodeError::Value { what: "entity_addr_t marker", value: i64::from(v) }),
        }
    }
}

/// The addresses of one entity. Written as `entity_addrvec` (marker 2).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddrVec(pub Vec<EntityAddr>);

impl AddrVec {
    /// A single address.
    pub fn one(a: EntityAddr) -> Self {
        Self(vec![a])
    }
    /// The first msgr2 address, else the first of any kind, else none.
    pub fn msgr2(&self) -> EntityAddr {
        let v2 = self.0.iter().find(|a| a.kind == EntityAddr::KIND_MSGR2);
        v2.or_else(|| self.0.first()).copied().unwrap_or_default()
    }
    /// True if there is no usable address.
    pub fn is_blank(&self) -> bool {
        self.0.iter().all(EntityAddr::is_blank)
    }
}

impl fmt::Display for AddrVec {
    /// One address plain, several as `[v2:…,v1:…]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [] => f.write_str("-"),
            [a] => write!(f, "{a}"),
            many => {
                f.write_str("[")?;
                for (i, a) in many.iter().enumerate() {
                    write!(f, "{}{a}", if i == 0 { "" } else { "," })?;
                }
                f.write_str("]")
            }
        }
    }
}

impl Encode for AddrVec {
    fn encode(&self, out: &mut Encoder) {
        out.u8(2);
        self.0.encode(out);
    }
}

impl Decode for AddrVec {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        match d.u8()? {
            0 => EntityAddr::decode_legacy(d).map(Self::one),
            1 => EntityAddr::decode_body(d).map(Self::one),
            2 => Ok(Self(d.get()?)),
            v => Err(DecodeError::Value { what: "entity_addrvec_t marker", value: i64::from(v) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_encoding::{from_slice, to_vec};

    #[test]
    fn addresses_of_both_families_round_trip() {
        for s in ["127.0.0.1:6800", "[::1]:3300", "10.1.2.3:0"] {
            let a = EntityAddr::v2(s.parse().unwrap(), 77);
            assert_eq!(from_slice::<EntityAddr>(&to_vec(&a)).unwrap(), a);
            let v = AddrVec(vec![a, EntityAddr::NONE]);
            assert_eq!(from_slice::<AddrVec>(&to_vec(&v)).unwrap(), v);
        }
    }

    #[test]
    fn single_address_is_accepted_where_a_vector_is_expected() {
        let a = EntityAddr::v2("127.0.0.1:6800".parse().unwrap(), 1);
        assert_eq!(from_slice::<AddrVec>(&to_vec(&a)).unwrap(), AddrVec::one(a));
    }
}
