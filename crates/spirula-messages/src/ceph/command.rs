//! Commands for one daemon: `ceph tell osd.0 version`. Source: `docs/protocol/osd.md` §10.

use super::kind;
use crate::Body;
use bytes::Bytes;
use spirula_encoding::{DecodeError, Decoder, Encoder};
use spirula_types::Uuid;

/// A command (type 97): JSON texts, usually one; an input file in the data segment.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MCommand {
    /// Cluster the sender believes in; zero towards a manager.
    pub fsid: Uuid,
    /// JSON.
    pub cmd: Vec<String>,
    /// Input.
    pub input: Bytes,
}

/// Answers an [`MCommand`] (type 98).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MCommandReply {
    /// 0 or −errno.
    pub result: i32,
    /// What the tool prints on stderr.
    pub status: String,
    /// What it prints on stdout; the data segment.
    pub output: Bytes,
}

pub(super) fn put_command(fsid: Uuid, cmd: &[String]) -> Vec<u8> {
    let mut o = Encoder::new();
    o.put(&fsid);
    o.put(cmd);
    o.into_vec()
}

pub(super) fn get_command(front: &[u8]) -> Result<(Uuid, Vec<String>), DecodeError> {
    let d = &mut Decoder::new(front);
    Ok((d.get()?, d.list(4, |d| d.get())?))
}

pub(super) fn put_reply(result: i32, status: &str) -> Vec<u8> {
    let mut o = Encoder::new();
    o.i32(result);
    o.str(status);
    o.into_vec()
}

pub(super) fn get_reply(front: &[u8]) -> Result<(i32, String), DecodeError> {
    let d = &mut Decoder::new(front);
    Ok((d.i32()?, d.get()?))
}

impl Body for MCommand {
    const KIND: u16 = kind::COMMAND;
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

impl Body for MCommandReply {
    const KIND: u16 = kind::COMMAND_REPLY;
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
