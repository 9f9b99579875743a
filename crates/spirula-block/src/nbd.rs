//! The protocol NBD, as a server speaks it: "fixed newstyle" negotiation, then simple replies.
//!
//! A [`Session`] is a state machine: bytes of a client go in, and out come bytes for it and
//! [`Event`]s for the shell. It reads no more than it was given and holds nothing but a state: what
//! is incomplete stays in the caller's buffer, which needs room for [`BUFFER`] bytes. Data of at
//! most [`SMALL`] bytes is copied out of that, for it would keep all of it. How much of that a
//! client wants to fill is known when the head of its write has come ([`Session::coming`]).
//!
//! Every number of a client's is looked at before it is believed: options are at most [`OPTION`]
//! bytes, requests at most [`LARGEST`] bytes and within the export. What can be answered with an
//! error is; whoever breaks the protocol so that what follows cannot be told apart is hung up on.
//!
//! Source: the protocol's specification (`doc/proto.md` of the NetworkBlockDevice project).

use bytes::{Buf, Bytes, BytesMut};

/// Largest read or write, bytes; told to clients that ask.
pub const LARGEST: u32 = 32 << 20;
/// Longest option that is read, bytes: a name is at most 4 KiB.
pub const OPTION: u32 = 16 << 10;
/// Bytes of a request before its data.
pub const REQUEST_HEAD: usize = 28;
/// Most bytes that a session needs at once.
pub const BUFFER: usize = LARGEST as usize + REQUEST_HEAD;
/// Data of a write of at most so many bytes has memory of its own; what is longer has that of the
/// buffer that it came in.
pub const SMALL: usize = 64 << 10;
/// Options that a client may send before it chooses.
const OPTIONS: u32 = 1000;

const MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_MAGIC: u32 = 0x6744_6698;

/// Flags of the greeting, of both sides.
mod greeting {
    pub const FIXED_NEWSTYLE: u16 = 1;
    pub const NO_ZEROES: u16 = 2;
}

mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
}

mod reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const UNSUPPORTED: u32 = 1 << 31 | 1;
    pub const INVALID: u32 = 1 << 31 | 3;
    pub const UNKNOWN: u32 = 1 << 31 | 6;
    pub const TOO_BIG: u32 = 1 << 31 | 9;
}

mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Flags of an export.
mod export_flag {
    pub const HAS_FLAGS: u16 = 1;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const FLUSH: u16 = 1 << 2;
    pub const FUA: u16 = 1 << 3;
    pub const TRIM: u16 = 1 << 5;
    pub const WRITE_ZEROES: u16 = 1 << 6;
    pub const MULTI_CONN: u16 = 1 << 8;
}

mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISCONNECT: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const WRITE_ZEROES: u16 = 6;
}

/// Flags of a request.
mod request_flag {
    pub const FUA: u16 = 1;
    pub const NO_HOLE: u16 = 2;
}

/// Error numbers of the protocol.
pub mod error {
    /// Operation not permitted: the export is read-only.
    pub const EPERM: u32 = 1;
    /// Input or output error.
    pub const EIO: u32 = 5;
    /// No memory.
    pub const ENOMEM: u32 = 12;
    /// The request cannot be.
    pub const EINVAL: u32 = 22;
    /// No room, or beyond the end.
    pub const ENOSPC: u32 = 28;
    /// Too large.
    pub const EOVERFLOW: u32 = 75;
    /// The server goes down.
    pub const ESHUTDOWN: u32 = 108;
}

/// Something that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// What is best written at a time, bytes: a power of two.
    pub preferred: u32,
    /// Nobody writes to it.
    pub read_only: bool,
}

impl Export {
    /// What is flushed over one connection is flushed for all: whatever was answered over any of
    /// them is durable already.
    fn flags(&self) -> u16 {
        use export_flag::*;
        let always = HAS_FLAGS | FLUSH | FUA | MULTI_CONN;
        always | if self.read_only { READ_ONLY } else { TRIM | WRITE_ZEROES }
    }
}

/// What a client wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read so many bytes.
    Read(u32),
    /// Write.
    Write(Bytes),
    /// Make what was answered durable.
    Flush,
    /// This range is not needed any more; it may read as zeros.
    Trim(u32),
    /// Make this range zeros.
    Zero(u32),
}

/// A request; to be answered by [`answer`], in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client's name for it.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// What is wanted.
    pub command: Command,
}

impl Request {
    /// Bytes that it brings or asks for.
    pub fn bytes(&self) -> usize {
        match &self.command {
            Command::Read(n) => *n as usize,
            Command::Write(data) => data.len(),
            _ => 0,
        }
    }
}

/// What the shell is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The client asks for the export of this number: [`Session::tell`] what it is now. Nothing
    /// more is taken before.
    Wanted(usize),
    /// Do this, and answer.
    Request(Request),
    /// Answer what is under way, and hang up.
    Disconnect,
}

/// A client that breaks the protocol. It is hung up on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NbdError {
    /// It does not know the fixed newstyle negotiation, or wants what was not offered.
    #[error("the client speaks another dialect (flags {0:#x})")]
    Flags(u32),
    /// What should begin an option or a request does not.
    #[error("no magic number where one belongs: {0:#x}")]
    Magic(u64),
    /// It asked by the old way for what is not there, and there is no way to say no.
    #[error("the client wants an export that is not served")]
    NoExport,
    /// More than is read.
    #[error("{0} bytes in one piece, which is more than is taken")]
    TooLong(u32),
    /// It goes on and on.
    #[error("the client chooses no export")]
    Endless,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Its flags come.
    Flags,
    /// Options come; so many came.
    Options(u32),
    /// So many options came, and the newest waits for [`Session::tell`].
    Wanted(u32, Choice),
    /// Requests for the export come.
    Requests,
    /// Nothing more.
    Over,
}

/// An option that names an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Choice {
    option: u32,
    /// What it wants told: the name, and the sizes of blocks.
    name: bool,
    sizes: bool,
}

/// One client's connection.
#[derive(Debug)]
pub struct Session {
    phase: Phase,
    names: Vec<String>,
    /// What it has chosen.
    export: Option<Export>,
    no_zeroes: bool,
}

impl Session {
    /// A new client's, who may choose among exports of these names; the greeting is put out.
    pub fn new(names: Vec<String>, out: &mut BytesMut) -> Self {
        out.extend_from_slice(&MAGIC.to_be_bytes());
        out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        out.extend_from_slice(&(greeting::FIXED_NEWSTYLE | greeting::NO_ZEROES).to_be_bytes());
        Self { phase: Phase::Flags, names, export: None, no_zeroes: false }
    }

    /// Takes what is complete from the begin of `input`; `None` when more has to come first.
    ///
    /// # Errors
    /// [`NbdError`]: the connection is to be closed.
    pub fn next(
        &mut self,
        input: &mut BytesMut,
        out: &mut BytesMut,
    ) -> Result<Option<Event>, NbdError> {
        loop {
            match self.phase {
                Phase::Flags => {
                    let Some(flags) = take_u32(input) else { return Ok(None) };
                    let known = u32::from(greeting::FIXED_NEWSTYLE | greeting::NO_ZEROES);
                    if flags & !known != 0 || flags & u32::from(greeting::FIXED_NEWSTYLE) == 0 {
                        return Err(NbdError::Flags(flags));
                    }
                    self.no_zeroes = flags & u32::from(greeting::NO_ZEROES) != 0;
                    self.phase = Phase::Options(0);
                }
                Phase::Options(n) => {
                    let Some(head) = input.first_chunk::<16>() else { return Ok(None) };
                    let magic = be64(&head[..8]);
                    let (what, length) = (be32(&head[8..12]), be32(&head[12..]));
                    if magic != OPTION_MAGIC {
                        return Err(NbdError::Magic(magic));
                    }
                    if length > OPTION {
                        if n == 0 {
                            put_reply(out, what, reply::TOO_BIG, &[]);
                        }
                        return Err(NbdError::TooLong(length));
                    }
                    if n >= OPTIONS {
                        return Err(NbdError::Endless);
                    }
                    if input.len() < 16 + length as usize {
                        return Ok(None);
                    }
                    input.advance(16);
                    let data = input.split_to(length as usize);
                    self.phase = Phase::Options(n + 1);
                    if let Some(event) = self.option(n + 1, what, &data, out)? {
                        return Ok(Some(event));
                    }
                }
                Phase::Requests => return self.request(input, out),
                Phase::Wanted(..) | Phase::Over => return Ok(None),
            }
        }
    }

    /// The export of this name; the empty name is the only one's there is.
    fn find(&self, name: &[u8]) -> Option<usize> {
        if name.is_empty() && self.names.len() == 1 {
            return Some(0);
        }
        self.names.iter().position(|n| n.as_bytes() == name)
    }

    /// What the export that the client asks for is now; `None` if that cannot be said. True when
    /// requests for it follow.
    ///
    /// # Errors
    /// [`NbdError::NoExport`] where the client cannot be told otherwise.
    pub fn tell(&mut self, export: Option<Export>, out: &mut BytesMut) -> Result<bool, NbdError> {
        let Phase::Wanted(n, Choice { option, name, sizes }) = self.phase else { return Ok(false) };
        let Some(e) = export else {
            if option == option::EXPORT_NAME {
                return Err(NbdError::NoExport);
            }
            put_reply(out, option, reply::UNKNOWN, b"it cannot be served for now");
            self.phase = Phase::Options(n);
            return Ok(false);
        };
        if option == option::EXPORT_NAME {
            out.extend_from_slice(&e.size.to_be_bytes());
            out.extend_from_slice(&e.flags().to_be_bytes());
            if !self.no_zeroes {
                out.extend_from_slice(&[0; 124]);
            }
        } else {
            let mut answer = info::EXPORT.to_be_bytes().to_vec();
            answer.extend_from_slice(&e.size.to_be_bytes());
            answer.extend_from_slice(&e.flags().to_be_bytes());
            put_reply(out, option, reply::INFO, &answer);
            if name {
                let mut answer = info::NAME.to_be_bytes().to_vec();
                answer.extend_from_slice(e.name.as_bytes());
                put_reply(out, option, reply::INFO, &answer);
            }
            if sizes {
                let mut answer = info::BLOCK_SIZE.to_be_bytes().to_vec();
                for size in [1, e.preferred, LARGEST] {
                    answer.extend_from_slice(&size.to_be_bytes());
                }
                put_reply(out, option, reply::INFO, &answer);
            }
            put_reply(out, option, reply::ACK, &[]);
        }
        if option == option::INFO {
            self.phase = Phase::Options(n);
            return Ok(false);
        }
        (self.phase, self.export) = (Phase::Requests, Some(e));
        Ok(true)
    }

    /// The `n`th option.
    fn option(
        &mut self,
        n: u32,
        what: u32,
        data: &[u8],
        out: &mut BytesMut,
    ) -> Result<Option<Event>, NbdError> {
        match what {
            option::EXPORT_NAME => {
                let at = self.find(data).ok_or(NbdError::NoExport)?;
                self.phase = Phase::Wanted(n, Choice { option: what, name: false, sizes: false });
                Ok(Some(Event::Wanted(at)))
            }
            option::ABORT => {
                put_reply(out, what, reply::ACK, &[]);
                self.phase = Phase::Over;
                Ok(Some(Event::Disconnect))
            }
            option::LIST if !data.is_empty() => {
                put_reply(out, what, reply::INVALID, &[]);
                Ok(None)
            }
            option::LIST => {
                for name in &self.names {
                    let mut one = (name.len() as u32).to_be_bytes().to_vec();
                    one.extend_from_slice(name.as_bytes());
                    put_reply(out, what, reply::SERVER, &one);
                }
                put_reply(out, what, reply::ACK, &[]);
                Ok(None)
            }
            option::INFO | option::GO => {
                let Some((name, wants)) = info_request(data) else {
                    put_reply(out, what, reply::INVALID, &[]);
                    return Ok(None);
                };
                let Some(at) = self.find(name) else {
                    put_reply(out, what, reply::UNKNOWN, b"no such export");
                    return Ok(None);
                };
                let (name, sizes) =
                    (wants.contains(&info::NAME), wants.contains(&info::BLOCK_SIZE));
                self.phase = Phase::Wanted(n, Choice { option: what, name, sizes });
                Ok(Some(Event::Wanted(at)))
            }
            _ => {
                put_reply(out, what, reply::UNSUPPORTED, &[]);
                Ok(None)
            }
        }
    }

    /// Bytes of the write whose head stands at the begin of `input`, and whose data has not all
    /// come; 0 if that is something else.
    pub fn coming(&self, input: &[u8]) -> usize {
        let Some(head) =
            input.first_chunk::<REQUEST_HEAD>().filter(|_| self.phase == Phase::Requests)
        else {
            return 0;
        };
        let (kind, length) = (be16(&head[6..8]), be32(&head[24..]));
        // What is longer is hung up on.
        if kind == command::WRITE && be32(&head[..4]) == REQUEST_MAGIC && length <= LARGEST {
            length as usize
        } else {
            0
        }
    }

    fn request(
        &mut self,
        input: &mut BytesMut,
        out: &mut BytesMut,
    ) -> Result<Option<Event>, NbdError> {
        loop {
            let Some(head) = input.first_chunk::<REQUEST_HEAD>() else { return Ok(None) };
            let magic = be32(&head[..4]);
            if magic != REQUEST_MAGIC {
                return Err(NbdError::Magic(u64::from(magic)));
            }
            let (flags, kind) = (be16(&head[4..6]), be16(&head[6..8]));
            let (cookie, offset, length) =
                (be64(&head[8..16]), be64(&head[16..24]), be32(&head[24..]));
            // Its data follows, and must be passed over also where it is refused.
            let brings = if kind == command::WRITE { length } else { 0 };
            if brings > LARGEST {
                return Err(NbdError::TooLong(brings));
            }
            if input.len() < REQUEST_HEAD + brings as usize {
                return Ok(None);
            }
            input.advance(REQUEST_HEAD);
            let data = input.split_to(brings as usize);
            let data =
                if data.len() <= SMALL { Bytes::copy_from_slice(&data) } else { data.freeze() };
            if kind == command::DISCONNECT {
                self.phase = Phase::Over;
                return Ok(Some(Event::Disconnect));
            }
            let Some(export) = &self.export else { return Err(NbdError::NoExport) };
            match understood(export, flags, kind, offset, length, data) {
                Ok(command) => {
                    return Ok(Some(Event::Request(Request { cookie, offset, command })));
                }
                Err(error) => answer(cookie, error, out),
            }
        }
    }
}

fn understood(
    export: &Export,
    flags: u16,
    kind: u16,
    offset: u64,
    length: u32,
    data: Bytes,
) -> Result<Command, u32> {
    let known = match kind {
        command::WRITE_ZEROES => request_flag::FUA | request_flag::NO_HOLE,
        _ => request_flag::FUA,
    };
    if flags & !known != 0 {
        return Err(error::EINVAL);
    }
    let changes = matches!(kind, command::WRITE | command::TRIM | command::WRITE_ZEROES);
    if changes && export.read_only {
        return Err(error::EPERM);
    }
    let beyond = offset.checked_add(u64::from(length)).is_none_or(|end| end > export.size);
    match kind {
        command::READ | command::TRIM if beyond => Err(error::EINVAL),
        command::WRITE | command::WRITE_ZEROES if beyond => Err(error::ENOSPC),
        command::READ if length > LARGEST => Err(error::EOVERFLOW),
        command::READ => Ok(Command::Read(length)),
        command::WRITE => Ok(Command::Write(data)),
        command::FLUSH => Ok(Command::Flush),
        command::TRIM => Ok(Command::Trim(length)),
        command::WRITE_ZEROES => Ok(Command::Zero(length)),
        _ => Err(error::EINVAL),
    }
}

/// The answer to a request: 0 or an error of [`error`]. The data of a read follows it.
pub fn answer(cookie: u64, error: u32, out: &mut BytesMut) {
    out.extend_from_slice(&SIMPLE_MAGIC.to_be_bytes());
    out.extend_from_slice(&error.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
}

fn put_reply(out: &mut BytesMut, option: u32, kind: u32, data: &[u8]) {
    out.extend_from_slice(&REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
}

/// Name, and what is asked of it.
fn info_request(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let length = be32(data.get(..4)?) as usize;
    let (name, rest) = data.get(4..)?.split_at_checked(length)?;
    let count = usize::from(be16(rest.get(..2)?));
    let wants = rest.get(2..)?;
    if wants.len() != 2 * count {
        return None;
    }
    Some((name, wants.chunks_exact(2).map(be16).collect()))
}

fn be16(b: &[u8]) -> u16 {
    b.first_chunk().map_or(0, |b| u16::from_be_bytes(*b))
}

fn be32(b: &[u8]) -> u32 {
    b.first_chunk().map_or(0, |b| u32::from_be_bytes(*b))
}

fn be64(b: &[u8]) -> u64 {
    b.first_chunk().map_or(0, |b| u64::from_be_bytes(*b))
}

fn take_u32(input: &mut BytesMut) -> Option<u32> {
    let value = be32(input.get(..4)?);
    input.advance(4);
    Some(value)
}

#[cfg(test)]
mod tests;
