//! Payloads of control frames, and the message header. Source: `docs/protocol/README.md`
//! §2, §3; SESSION_* from Ceph 16.2's frames_v2.

use crate::error::ProtocolError;
use crate::frame::{MESSAGE_HEADER_LEN, Tag};
use bytes::Bytes;
use spirula_encoding::{DecodeError, Decoder, Encoder};
use spirula_types::{AddrVec, EntityAddr};

/// Flag in idents: no session, nothing is replayed.
pub(crate) const FLAG_LOSSY: u64 = 1;
/// Runs a payload decoder and names the frame in its error.
pub(crate) fn parse<T>(
    tag: Tag,
    payload: &[u8],
    read: impl FnOnce(&mut Decoder<'_>) -> Result<T, DecodeError>,
) -> Result<T, ProtocolError> {
    read(&mut Decoder::new(payload))
        .map_err(|source| ProtocolError::Decode { tag: tag.name(), source })
}

/// A payload that is nothing but a blob.
pub(crate) fn blob(payload: &Bytes) -> Vec<u8> {
    let mut o = Encoder::with_capacity(4 + payload.len());
    o.put(payload);
    o.into_vec()
}

/// HELLO.
#[derive(Debug)]
pub(crate) struct Hello {
    pub entity: u8,
    /// Where the sender sees the receiver.
    pub peer_addr: EntityAddr,
}

impl Hello {
    pub fn write(&self) -> Vec<u8> {
        let mut o = Encoder::with_capacity(36);
        o.u8(self.entity);
        o.put(&self.peer_addr);
        o.into_vec()
    }

    pub fn read(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { entity: d.u8()?, peer_addr: d.get()? })
    }
}

/// AUTH_REQUEST.
#[derive(Debug)]
pub(crate) struct AuthRequestFrame {
    pub method: u32,
    pub modes: Vec<u32>,
    pub payload: Bytes,
}

impl AuthRequestFrame {
    pub fn write(&self) -> Vec<u8> {
        let mut o = Encoder::with_capacity(48);
        o.u32(self.method);
        o.put(&self.modes);
        o.put(&self.payload);
        o.into_vec()
    }

    pub fn read(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { method: d.u32()?, modes: d.list(4, Decoder::u32)?, payload: d.get()? })
    }
}

/// AUTH_BAD_METHOD.
#[derive(Debug)]
pub(crate) struct AuthBadMethod {
    pub method: u32,
    pub result: i32,
    pub methods: Vec<u32>,
    pub modes: Vec<u32>,
}

impl AuthBadMethod {
    pub fn write(&self) -> Vec<u8> {
        let mut o = Encoder::with_capacity(24);
        o.u32(self.method);
        o.i32(self.result);
        o.put(&self.methods);
        o.put(&self.modes);
        o.into_vec()
    }

    pub fn read(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            method: d.u32()?,
            result: d.i32()?,
            methods: d.list(4, Decoder::u32)?,
            modes: d.list(4, Decoder::u32)?,
        })
    }
}

/// AUTH_DONE.
#[derive(Debug)]
pub(crate) struct AuthDone {
    pub global_id: u64,
    pub mode: u32,
    pub payload: Bytes,
}

impl AuthDone {
    pub fn write(&self) -> Vec<u8> {
        let mut o = Encoder::with_capacity(16);
        o.u64(self.global_id);
        o.u32(self.mode);
        o.put(&self.payload);
        o.into_vec()
    }

    pub fn read(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { global_id: d.u64()?, mode: d.u32()?, payload: d.get()? })
    }
}

/// CLIENT_IDENT and SERVER_IDENT; only the former has a target.
#[derive(Debug)]
pub(crate) struct Ident {
    pub addrs: AddrVec,
    pub target: Option<EntityAddr>,
    pub gid: i64,
    pub global_seq: u64,
    pub supported: u64,
    pub required: u64,
    pub flags: u64,
    pub cookie: u64,
}

impl Ident {
    pub fn write(&self) -> Vec<u8> {
        let mut o = Encoder::with_capacity(128);
        o.put(&self.addrs);
        if let Some(t) = &self.target {
            o.put(t);
        }
        o.i64(self.gid);
        for v in [self.global_seq, self.supported, self.required, self.flags, self.cookie] {
            o.u64(v);
        }
        o.into_vec()
    }

    fn read(d: &mut Decoder<'_>, client: bool) -> Result<Self, DecodeError> {
        Ok(Self {
            addrs: d.get()?,
            target: if client { Some(d.get()?) } else { None },
            gid: d.i64()?,
            global_seq: d.u64()?,
            supported: d.u64()?,
            required: d.u64()?,
            flags: d.u64()?,
            cookie: d.u64()?,
        })
    }

    pub fn read_client(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Self::read(d, true)
    }

    pub fn read_server(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Self::read(d, false)
    }
}

/// SESSION_RECONNECT.
#[derive(Debug)]
pub(crate) struct Reconnect {
    pub addrs: AddrVec,
    pub client_cookie: u64,
    pub server_cookie: u64,
    pub global_seq: u64,
    pub connect_seq: u64,
    /// Last message received.
    pub msg_seq: u64,
}

impl Reconnect {
    pub fn write(&self) -> Vec<u8> {
        let mut o = Encoder::with_capacity(96);
        o.put(&self.addrs);
        for v in [
            self.client_cookie,
            self.server_cookie,
            self.global_seq,
            self.connect_seq,
            self.msg_seq,
        ] {
            o.u64(v);
        }
        o.into_vec()
    }

    pub fn read(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            addrs: d.get()?,
            client_cookie: d.u64()?,
            server_cookie: d.u64()?,
            global_seq: d.u64()?,
            connect_seq: d.u64()?,
            msg_seq: d.u64()?,
        })
    }
}

/// Header segment of a MESSAGE frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageHeader {
    pub seq: u64,
    pub tid: u64,
    pub kind: u16,
    pub priority: u16,
    pub version: u16,
    /// Last message received by the sender.
    pub ack_seq: u64,
    pub compat: u16,
}

/// Flags byte of every message header seen.
const HEADER_FLAGS: u8 = 3;

impl MessageHeader {
    pub fn write(&self) -> [u8; MESSAGE_HEADER_LEN] {
        let mut b = [0; MESSAGE_HEADER_LEN];
        b[0..8].copy_from_slice(&self.seq.to_le_bytes());
        b[8..16].copy_from_slice(&self.tid.to_le_bytes());
        b[16..18].copy_from_slice(&self.kind.to_le_bytes());
        b[18..20].copy_from_slice(&self.priority.to_le_bytes());
        b[20..22].copy_from_slice(&self.version.to_le_bytes());
        // 22..28: data padding and offset, hints for aligned receiving that we do not give.
        b[28..36].copy_from_slice(&self.ack_seq.to_le_bytes());
        b[36] = HEADER_FLAGS;
        b[37..39].copy_from_slice(&self.compat.to_le_bytes());
        b
    }

    pub fn read(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let (seq, tid) = (d.u64()?, d.u64()?);
        let (kind, priority, version) = (d.u16()?, d.u16()?, d.u16()?);
        d.skip(6)?;
        let ack_seq = d.u64()?;
        d.skip(1)?;
        Ok(Self { seq, tid, kind, priority, version, ack_seq, compat: d.u16()? })
    }
}
