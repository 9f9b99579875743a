//! Messages between the manager and everybody else. Layouts: `docs/protocol/README.md`
//! §4 and golden frames; MMgrOpen and MMgrReport from Ceph 16.2's message definitions.

use super::command::{get_command, get_reply, put_command, put_reply};
use super::{kind, rest_slice};
use crate::Body;
use bytes::Bytes;
use spirula_encoding::{DecodeError, Decoder, Encoder};
use spirula_types::Uuid;
use std::collections::BTreeMap;

/// A daemon introduces itself (0x700).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MMgrOpen {
    /// The daemon's id.
    pub daemon_name: String,
    /// Kind of service (`rgw`), empty for Ceph's own daemons.
    pub service_name: String,
    /// Metadata and status of a service daemon (rgw, rbd-mirror); `None` otherwise.
    pub service: Option<ServiceDaemon>,
    /// Configuration and its defaults, about 70 KB, not interpreted.
    pub config: Bytes,
}

/// What a service daemon tells of itself.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ServiceDaemon {
    /// Host, version, kernel…
    pub metadata: BTreeMap<String, String>,
    /// Current state.
    pub status: BTreeMap<String, String>,
}

impl Body for MMgrOpen {
    const KIND: u16 = kind::MGR_OPEN;
    const VERSION: u16 = 3;
    const COMPAT: u16 = 1;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::new();
        o.str(&self.daemon_name);
        o.str(&self.service_name);
        o.bool(self.service.is_some());
        if let Some(s) = &self.service {
            o.put(&s.metadata);
            o.put(&s.status);
        }
        if self.config.is_empty() {
            o.zeros(8); // two empty blobs
        } else {
            o.raw(&self.config);
        }
        (o.into_vec(), Bytes::new())
    }

    fn read(version: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(front);
        let mut open = Self { daemon_name: d.get()?, ..Self::default() };
        if version >= 2 {
            open.service_name = d.get()?;
            if d.bool()? {
                open.service = Some(ServiceDaemon { metadata: d.get()?, status: d.get()? });
            }
        }
        // Two empty blobs, as older clients' absent ones, are no configuration.
        open.config = if d.rest() == [0; 8] { Bytes::new() } else { rest_slice(d, front) };
        Ok(open)
    }
}

/// How often to report, and what (0x701).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MMgrConfigure {
    /// Seconds between reports.
    pub period: u32,
    /// Least priority of counters to report.
    pub threshold: u32,
}

impl Body for MMgrConfigure {
    const KIND: u16 = kind::MGR_CONFIGURE;
    const VERSION: u16 = 4;
    const COMPAT: u16 = 1;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::with_capacity(13);
        o.u32(self.period);
        o.u32(self.threshold);
        o.u32(0); // no OSD queries
        o.u8(0); // no metric configuration
        (o.into_vec(), Bytes::new())
    }

    fn read(_: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(front);
        Ok(Self { period: d.u32()?, threshold: d.u32()? })
    }
}

/// A daemon's counters, and how a service is (0x702). Only the name is read here; the manager reads
/// of the rest what it needs. Reading only, Ceph's daemons are the only senders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MMgrReport {
    /// The daemon's id.
    pub daemon_name: String,
    /// Everything behind it, uninterpreted.
    pub rest: Bytes,
}

impl Body for MMgrReport {
    const KIND: u16 = kind::MGR_REPORT;
    const VERSION: u16 = 9;
    const COMPAT: u16 = 1;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::new();
        o.str(&self.daemon_name);
        o.raw(&self.rest);
        (o.into_vec(), Bytes::new())
    }

    fn read(_: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(front);
        let daemon_name = d.get()?;
        Ok(Self { daemon_name, rest: rest_slice(d, front) })
    }
}

/// Ends a session (0x708); the manager sends it back.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MMgrClose {
    /// The daemon's id.
    pub daemon_name: String,
    /// Kind of service, may be empty.
    pub service_name: String,
}

impl Body for MMgrClose {
    const KIND: u16 = kind::MGR_CLOSE;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::new();
        o.str(&self.daemon_name);
        o.str(&self.service_name);
        (o.into_vec(), Bytes::new())
    }

    fn read(_: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(front);
        Ok(Self { daemon_name: d.get()?, service_name: d.get()? })
    }
}

/// A command for the manager (0x709).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MMgrCommand {
    /// Zero from every client.
    pub fsid: Uuid,
    /// JSON.
    pub cmd: Vec<String>,
    /// Input file; the data segment.
    pub input: Bytes,
}

impl Body for MMgrCommand {
    const KIND: u16 = kind::MGR_COMMAND;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        (put_command(self.fsid, &self.cmd), self.input.clone())
    }

    fn read(_: u16, front: &Bytes, data: &Bytes) -> Result<Self, DecodeError> {
        let (fsid, cmd) = get_command(front)?;
        Ok(Self { fsid, cmd, input: data.clone() })
    }
}

/// Answers an [`MMgrCommand`] (0x70a).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MMgrCommandReply {
    /// 0 or −errno.
    pub result: i32,
    /// What the tool prints on stderr.
    pub status: String,
    /// What it prints on stdout; the data segment.
    pub output: Bytes,
}

impl Body for MMgrCommandReply {
    const KIND: u16 = kind::MGR_COMMAND_REPLY;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        (put_reply(self.result, &self.status), self.output.clone())
    }

    fn read(_: u16, front: &Bytes, data: &Bytes) -> Result<Self, DecodeError> {
        let (result, status) = get_reply(front)?;
        Ok(Self { result, status, output: data.clone() })
    }
}
