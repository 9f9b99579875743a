//! Frames: a 32-byte preamble, one to four segments, checksums.
//!
//! Two layouts, chosen by the banners' feature bit 0:
//!
//! * 2.1 ([`Codec::Crc1`]): preamble, segment 0, its crc (if not empty); if there are more
//!   segments: those, then 13 bytes: late status and three crcs.
//! * 2.0 ([`Codec::Crc0`]): preamble, all segments, then 17 bytes: late flags and four crcs.
//!
//! Secure mode has 2.1 frames only, as AES-GCM messages without crcs: one block of preamble, the
//! first 48 bytes of segment 0 and padding; then, for a message that has more than its header,
//! segments 1 to 3, each padded to 16, and 16 bytes with the late status; for a longer control
//! frame the rest of segment 0, padded.
//!
//! Preamble crcs start from 0, segment crcs from `0xffff_ffff`; none is inverted at the end.
//! Trailing empty segments are not sent. The reader never asks for memory beyond what the
//! limits allow and never touches a segment before its length was checked.
//! Source: `docs/protocol/README.md` §1; the 2.0 layout from Ceph 16.2's frames_v2.

use crate::config::Limits;
use crate::error::ProtocolError;
use crate::secure::{Opener, Sealer, TAG_LEN, padded};
use bytes::{Buf, Bytes, BytesMut};
use spirula_encoding::crc::crc32c;

/// Bytes of a preamble.
pub const PREAMBLE_LEN: usize = 32;
/// Bytes of a message's header segment.
pub const MESSAGE_HEADER_LEN: usize = 41;
/// Initial value of segment crcs.
pub const SEGMENT_CRC_SEED: u32 = 0xffff_ffff;

const LATE_MASK: u8 = 0x0f;
const LATE_COMPLETE: u8 = 0x0e;
const LATE_ABORTED: u8 = 0x01;

macro_rules! tags {
    ($($(#[$doc:meta])* $name:ident = $num:literal, $text:literal;)*) => {
        /// Frame types.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Tag { $($(#[$doc])* $name = $num,)* }

        impl Tag {
            /// The type with this number.
            pub fn from_wire(v: u8) -> Option<Self> {
                match v { $($num => Some(Self::$name),)* _ => None }
            }

            /// Its name in logs and errors.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

tags! {
    /// Who I am, and where I see you.
    Hello = 1, "HELLO";
    /// The connecting side authenticates.
    AuthRequest = 2, "AUTH_REQUEST";
    /// Not with that method, or not you.
    AuthBadMethod = 3, "AUTH_BAD_METHOD";
    /// More rounds: the accepting side's challenge.
    AuthReplyMore = 4, "AUTH_REPLY_MORE";
    /// More rounds: the connecting side's answer.
    AuthRequestMore = 5, "AUTH_REQUEST_MORE";
    /// Authentication succeeded.
    AuthDone = 6, "AUTH_DONE";
    /// Signature over the handshake.
    AuthSignature = 7, "AUTH_SIGNATURE";
    /// The connecting side begins a session.
    ClientIdent = 8, "CLIENT_IDENT";
    /// The accepting side begins a session.
    ServerIdent = 9, "SERVER_IDENT";
    /// The connecting side lacks features.
    IdentMissingFeatures = 10, "IDENT_MISSING_FEATURES";
    /// The connecting side continues a session.
    SessionReconnect = 11, "SESSION_RECONNECT";
    /// No such session.
    SessionReset = 12, "SESSION_RESET";
    /// The attempt's number within the session is stale.
    SessionRetry = 13, "SESSION_RETRY";
    /// The attempt's number within the process is stale.
    SessionRetryGlobal = 14, "SESSION_RETRY_GLOBAL";
    /// The session continues.
    SessionReconnectOk = 15, "SESSION_RECONNECT_OK";
    /// Both sides connect at once; wait for the other attempt.
    Wait = 16, "WAIT";
    /// A message.
    Message = 17, "MESSAGE";
    /// Are you there?
    Keepalive2 = 18, "KEEPALIVE2";
    /// I am here.
    Keepalive2Ack = 19, "KEEPALIVE2_ACK";
    /// Messages up to here have come.
    Ack = 20, "ACK";
    /// Offer of compression (Reef).
    CompressionRequest = 21, "COMPRESSION_REQUEST";
    /// Answer to it.
    CompressionDone = 22, "COMPRESSION_DONE";
}

/// Bytes of segment 0 that go with the preamble in secure mode.
const INLINE_LEN: usize = 48;
/// The sealed preamble with its tag.
const SEALED_PREAMBLE_LEN: usize = PREAMBLE_LEN + INLINE_LEN + TAG_LEN;
/// The late status in secure mode.
const SEALED_EPILOGUE_LEN: usize = 16;

/// How frames are laid out; in secure mode, until its keys are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// 2.0 frames with crcs.
    Crc0,
    /// 2.1 frames with crcs.
    Crc1,
}

impl Codec {
    fn epilogue_len(self, segments: usize) -> usize {
        match self {
            Self::Crc0 => 17,
            Self::Crc1 if segments > 1 => 13,
            Self::Crc1 => 0,
        }
    }
}

/// A received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Type.
    pub tag: Tag,
    /// Segments; absent ones are empty.
    pub segments: [Bytes; 4],
    /// crc32c of segment 3 (a message's data); none in secure mode.
    pub data_crc: Option<u32>,
    /// Bytes of segments 1 to 3 that were passed over, because they are more than the peer may send
    /// ([`FrameReader::limit_messages`]); these segments are empty then.
    pub passed_over: usize,
}

/// What the reader needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// At least so many more bytes at the end of the receive buffer.
    Bytes(usize),
    /// The next bytes of the stream, starting with those already in the receive buffer, are a
    /// payload that may be received into a buffer of the caller's.
    Payload {
        /// How many.
        len: usize,
        /// Where in them the message's data begins: what should be aligned. 0 in crc mode; in
        /// secure mode other segments come before, and more behind.
        data_at: usize,
    },
}

#[derive(Clone, Copy, Debug)]
struct Preamble {
    tag: Tag,
    count: usize,
    len: [usize; 4],
}

impl Preamble {
    fn parse(b: &[u8; PREAMBLE_LEN]) -> Result<(u8, Self), ProtocolError> {
        let u32_at = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let (found, expected) = (crc32c(0, &b[..28]), u32_at(28));
        if found != expected {
            return Err(ProtocolError::PreambleCrc { found, expected });
        }
        let tag = Tag::from_wire(b[0]).ok_or(ProtocolError::UnknownTag(b[0]))?;
        let count = usize::from(b[1]);
        if !(1..=4).contains(&count) {
            return Err(ProtocolError::Preamble("number of segments is not 1 to 4"));
        }
        let mut len = [0; 4];
        for (i, l) in len.iter_mut().enumerate().take(count) {
            *l = u32_at(2 + 6 * i) as usize;
        }
        if count > 1 && len[count - 1] == 0 {
            return Err(ProtocolError::Preamble("last segment is empty"));
        }
        Ok((b[26], Self { tag, count, len }))
    }

    /// Checks lengths against the limits.
    fn check(&self, limits: &Limits) -> Result<(), ProtocolError> {
        if self.tag != Tag::Message {
            if self.count != 1 {
                return Err(ProtocolError::Preamble("control frame with several segments"));
            }
        } else if self.len[0] != MESSAGE_HEADER_LEN {
            return Err(ProtocolError::Preamble("message header is not 41 bytes"));
        }
        let max = match self.tag {
            Tag::Message => [MESSAGE_HEADER_LEN, limits.front, limits.middle, limits.data],
            _ => [limits.control, 0, 0, 0],
        };
        for (index, (&len, &max)) in self.len.iter().zip(&max).enumerate() {
            if len > max {
                return Err(ProtocolError::TooLong { tag: self.tag.name(), index, len, max });
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
enum Step {
    /// Waiting for a preamble.
    Preamble,
    /// Waiting for the rest of this frame.
    Body(Preamble),
    /// Everything before segment 3 is here; waiting for that segment.
    Payload(Preamble, Bytes),
    /// Segment 3 is here too; waiting for the epilogue.
    Epilogue(Preamble, Bytes, Bytes),
    /// Secure mode: the preamble and segment 0's first bytes are here; waiting for the rest.
    Sealed(Preamble, Bytes),
    /// Secure mode: the same, and the rest is big.
    SealedPayload(Preamble, Bytes),
    /// Secure mode: the rest was decrypted in the caller's buffer, which comes next.
    OpenedPayload(Preamble, Bytes),
    /// Secure mode: all is here.
    Whole(Result<Option<Frame>, ProtocolError>),
    /// A message that is too large: its header, and how many bytes behind it are still to be passed
    /// over.
    PassOver(Preamble, Bytes, usize),
}

/// Cuts a byte stream into frames.
#[derive(Debug)]
pub struct FrameReader {
    codec: Codec,
    limits: Limits,
    step: Step,
    wanted: Wanted,
    /// False until the peer is established: then only control frames may come.
    messages: bool,
    /// Bytes of a message's segments 1 to 3 above which nothing of them is kept.
    most: usize,
    /// All that was taken until authentication is over, for our signature.
    record: Option<Vec<u8>>,
    /// In secure mode.
    opener: Option<Opener>,
}

impl FrameReader {
    /// A reader at the start of a frame.
    pub fn new(codec: Codec, limits: Limits) -> Self {
        let (step, wanted) = (Step::Preamble, Wanted::Bytes(PREAMBLE_LEN));
        Self {
            codec,
            limits,
            step,
            wanted,
            messages: false,
            most: usize::MAX,
            record: None,
            opener: None,
        }
    }

    /// From now on messages may come.
    pub fn allow_messages(&mut self) {
        self.messages = true;
    }

    /// From now on, of a message whose segments 1 to 3 have more than `most` bytes together only
    /// the header is kept: it takes no memory, and whoever sent it can be told so. What is passed
    /// over is not verified, and nothing of it is used.
    pub fn limit_messages(&mut self, most: usize) {
        self.most = most;
    }

    /// Keeps all bytes taken from now on, behind `before`, up to [`Limits::handshake`].
    pub(crate) fn record(&mut self, before: Vec<u8>) {
        self.record = Some(before);
    }

    /// Ends the record and gives it.
    pub(crate) fn recorded(&mut self) -> Vec<u8> {
        self.record.take().unwrap_or_default()
    }

    /// From now on frames are sealed.
    pub fn secure(&mut self, opener: Opener) {
        self.opener = Some(opener);
    }

    /// What is needed for the next frame, as of the last call of [`FrameReader::next`].
    pub fn wanted(&self) -> Wanted {
        self.wanted
    }

    /// Takes the next whole frame out of `buf`; `None` if more bytes are needed. Frames
    /// that their sender aborted are skipped.
    ///
    /// # Errors
    /// [`ProtocolError`] when the bytes are not a frame; the stream is unusable then.
    pub fn next(&mut self, buf: &mut BytesMut) -> Result<Option<Frame>, ProtocolError> {
        loop {
            match std::mem::replace(&mut self.step, Step::Preamble) {
                Step::Preamble if self.opener.is_some() => {
                    if buf.len() < SEALED_PREAMBLE_LEN {
                        self.want(SEALED_PREAMBLE_LEN, buf.len());
                        return Ok(None);
                    }
                    let mut block = buf.split_to(SEALED_PREAMBLE_LEN);
                    self.open(&mut block)?;
                    let b = block.first_chunk::<PREAMBLE_LEN>().ok_or(ProtocolError::Sealed)?;
                    let preamble = self.preamble(b)?;
                    self.step = Step::Sealed(preamble, block.freeze().slice(PREAMBLE_LEN..));
                }
                Step::Sealed(p, first) if self.is_too_large(&p) => {
                    // Its nonce is used up by the sender.
                    self.opener.as_mut().ok_or(ProtocolError::Sealed)?.pass_over()?;
                    self.step = Step::PassOver(
                        p,
                        first.slice(..p.len[0].min(INLINE_LEN)),
                        sealed_body_len(&p),
                    );
                }
                Step::Sealed(p, first) => {
                    let n = sealed_body_len(&p);
                    if buf.len() >= n {
                        let mut body = buf.split_to(n);
                        if n > 0 {
                            self.open(&mut body)?;
                        }
                        if let Some(f) = finish_sealed(&p, &first, body.freeze())? {
                            return Ok(Some(f));
                        }
                    } else if p.len[3] >= self.limits.direct_payload.max(1) {
                        self.step = Step::SealedPayload(p, first);
                    } else {
                        self.want(n, buf.len());
                        self.step = Step::Sealed(p, first);
                        return Ok(None);
                    }
                }
                Step::SealedPayload(p, first) => {
                    let len = sealed_body_len(&p);
                    if buf.len() < len {
                        let data_at = padded(p.len[1]) + padded(p.len[2]);
                        self.wanted = Wanted::Payload { len, data_at };
                        self.step = Step::SealedPayload(p, first);
                        return Ok(None);
                    }
                    self.step = Step::Sealed(p, first);
                }
                step @ Step::OpenedPayload(..) => {
                    self.step = step;
                    return Ok(None);
                }
                Step::Whole(frame) => {
                    if let Some(f) = frame? {
                        return Ok(Some(f));
                    }
                }
                Step::Preamble => {
                    let Some(b) = buf.first_chunk::<PREAMBLE_LEN>() else {
                        self.want(PREAMBLE_LEN, buf.len());
                        return Ok(None);
                    };
                    let preamble = self.preamble(b)?;
                    self.step = Step::Body(preamble);
                }
                Step::Body(p) if self.is_too_large(&p) => {
                    // Only frames of 2.1 have a crc behind the header.
                    let n = PREAMBLE_LEN + p.len[0] + 4;
                    if buf.len() < n {
                        self.want(n, buf.len());
                        self.step = Step::Body(p);
                        return Ok(None);
                    }
                    let head = buf.split_to(n).freeze();
                    let header = head.slice(PREAMBLE_LEN..PREAMBLE_LEN + p.len[0]);
                    let found = crc32c(SEGMENT_CRC_SEED, &header);
                    if let Some(expected) =
                        le32(&head, PREAMBLE_LEN + p.len[0]).filter(|e| *e != found)
                    {
                        return Err(ProtocolError::SegmentCrc { index: 0, found, expected });
                    }
                    let rest = p.len[1..].iter().sum::<usize>() + self.codec.epilogue_len(p.count);
                    self.step = Step::PassOver(p, header, rest);
                }
                Step::PassOver(p, header, left) => {
                    let n = buf.len().min(left);
                    buf.advance(n);
                    if n < left {
                        self.want(left - n, 0);
                        self.step = Step::PassOver(p, header, left - n);
                        return Ok(None);
                    }
                    let segments = [header, Bytes::new(), Bytes::new(), Bytes::new()];
                    let passed_over = p.len[1..].iter().sum();
                    return Ok(Some(Frame { tag: p.tag, segments, data_crc: None, passed_over }));
                }
                Step::Body(p) => {
                    let head = self.head_len(&p);
                    let tail = p.len[3] + self.codec.epilogue_len(p.count);
                    if buf.len() >= head + tail {
                        let mut whole = buf.split_to(head + tail).freeze();
                        if let Some(record) = &mut self.record {
                            record.extend_from_slice(&whole);
                            if record.len() > self.limits.handshake {
                                return Err(ProtocolError::LongHandshake(self.limits.handshake));
                            }
                        }
                        let head = whole.split_to(head);
                        let data = whole.split_to(p.len[3]);
                        if let Some(f) = self.finish(&p, &head, data, &whole)? {
                            return Ok(Some(f));
                        }
                    } else if p.len[3] >= self.limits.direct_payload.max(1) && buf.len() >= head {
                        self.step = Step::Payload(p, buf.split_to(head).freeze());
                    } else {
                        self.want(head + tail, buf.len());
                        self.step = Step::Body(p);
                        return Ok(None);
                    }
                }
                Step::Payload(p, head) => {
                    if buf.len() < p.len[3] {
                        self.wanted = Wanted::Payload { len: p.len[3], data_at: 0 };
                        self.step = Step::Payload(p, head);
                        return Ok(None);
                    }
                    let data = buf.split_to(p.len[3]).freeze();
                    self.step = Step::Epilogue(p, head, data);
                }
                Step::Epilogue(p, head, data) => {
                    let n = self.codec.epilogue_len(p.count);
                    if buf.len() < n {
                        self.want(n, buf.len());
                        self.step = Step::Epilogue(p, head, data);
                        return Ok(None);
                    }
                    let end = buf.split_to(n).freeze();
                    if let Some(f) = self.finish(&p, &head, data, &end)? {
                        return Ok(Some(f));
                    }
                }
            }
        }
    }

    /// Is this a message of which only the header is kept?
    fn is_too_large(&self, p: &Preamble) -> bool {
        p.tag == Tag::Message && p.len[1..].iter().sum::<usize>() > self.most
    }

    /// Checks a preamble.
    fn preamble(&self, b: &[u8; PREAMBLE_LEN]) -> Result<Preamble, ProtocolError> {
        let (flags, preamble) = Preamble::parse(b)?;
        if flags != 0 && self.codec == Codec::Crc1 {
            return Err(ProtocolError::Preamble("compressed, but that was not agreed"));
        }
        if preamble.tag == Tag::Message && !self.messages {
            return Err(ProtocolError::Unexpected {
                tag: Tag::Message.name(),
                state: "the session is not established",
            });
        }
        preamble.check(&self.limits)?;
        if self.is_too_large(&preamble) && self.codec == Codec::Crc0 {
            // Its header cannot be told from a damaged one before all of it has come.
            let len = preamble.len[1..].iter().sum();
            return Err(ProtocolError::TooLong {
                tag: preamble.tag.name(),
                index: 1,
                len,
                max: self.most,
            });
        }
        Ok(preamble)
    }

    /// Decrypts one GCM message and cuts its tag off.
    fn open(&mut self, message: &mut BytesMut) -> Result<(), ProtocolError> {
        let opener = self.opener.as_mut().ok_or(ProtocolError::Sealed)?;
        let n = opener.open(message)?;
        message.truncate(n);
        Ok(())
    }

    /// In secure mode, decrypts in place the payload that [`Wanted::Payload`] asked for.
    ///
    /// # Errors
    /// [`ProtocolError::Sealed`].
    pub fn open_payload(&mut self, payload: &mut [u8]) -> Result<(), ProtocolError> {
        match std::mem::replace(&mut self.step, Step::Preamble) {
            Step::SealedPayload(p, first) if sealed_body_len(&p) == payload.len() => {
                self.opener.as_mut().ok_or(ProtocolError::Sealed)?.open(payload)?;
                self.step = Step::OpenedPayload(p, first);
            }
            other => self.step = other,
        }
        Ok(())
    }

    /// Hands over the payload that [`Wanted::Payload`] asked for, in secure mode after
    /// [`FrameReader::open_payload`]. Returns it unused if no payload of that length is
    /// wanted.
    pub fn payload(&mut self, data: Bytes) -> Option<Bytes> {
        match std::mem::replace(&mut self.step, Step::Preamble) {
            Step::Payload(p, head) if p.len[3] == data.len() => {
                self.wanted = Wanted::Bytes(self.codec.epilogue_len(p.count));
                self.step = Step::Epilogue(p, head, data);
                None
            }
            Step::OpenedPayload(p, first) if sealed_body_len(&p) == data.len() => {
                self.step = Step::Whole(finish_sealed(&p, &first, data));
                self.wanted = Wanted::Bytes(0);
                None
            }
            other => {
                self.step = other;
                Some(data)
            }
        }
    }

    /// Bytes before segment 3.
    fn head_len(&self, p: &Preamble) -> usize {
        let crc0 = if self.codec == Codec::Crc1 && p.len[0] > 0 { 4 } else { 0 };
        PREAMBLE_LEN + p.len[0] + crc0 + p.len[1] + p.len[2]
    }

    /// Notes that `total` bytes are needed and `have` are here. At most doubles what the
    /// peer really sent, so that a declared length alone reserves nothing.
    fn want(&mut self, total: usize, have: usize) {
        self.wanted = Wanted::Bytes((total - have).min(have.max(64 << 10)));
    }

    /// Checks the crcs of a whole frame. `None` if its sender aborted it.
    fn finish(
        &self,
        p: &Preamble,
        head: &Bytes,
        data: Bytes,
        end: &[u8],
    ) -> Result<Option<Frame>, ProtocolError> {
        let mut at = PREAMBLE_LEN;
        let mut take = |n: usize, skip: usize| {
            let s = head.slice(at..at + n);
            at += n + skip;
            s
        };
        let has_crc0 = self.codec == Codec::Crc1 && p.len[0] > 0;
        let crc0 = if has_crc0 { le32(head, PREAMBLE_LEN + p.len[0]) } else { None };
        let first = take(p.len[0], if has_crc0 { 4 } else { 0 });
        let segments = [first, take(p.len[1], 0), take(p.len[2], 0), data];
        // The epilogue is absent from a 2.1 frame of one segment: complete by definition.
        let late = end.first().copied().unwrap_or(LATE_COMPLETE);
        let aborted = match (self.codec, late & LATE_MASK) {
            (Codec::Crc0, bits) => bits & LATE_ABORTED != 0,
            (Codec::Crc1, LATE_COMPLETE) => false,
            (Codec::Crc1, LATE_ABORTED) => true,
            (Codec::Crc1, _) => return Err(ProtocolError::LateStatus(late)),
        };
        let mut data_crc = None;
        for (index, s) in segments.iter().enumerate().take(p.count) {
            let expected = match (self.codec, index) {
                (Codec::Crc0, i) => le32(end, 1 + 4 * i),
                (Codec::Crc1, 0) => crc0,
                (Codec::Crc1, i) => le32(end, 1 + 4 * (i - 1)),
            };
            let found = crc32c(SEGMENT_CRC_SEED, s);
            if let Some(expected) = expected
                && found != expected
            {
                return Err(ProtocolError::SegmentCrc { index, found, expected });
            }
            if index == 3 {
                data_crc = Some(found);
            }
        }
        Ok((!aborted).then_some(Frame { tag: p.tag, segments, data_crc, passed_over: 0 }))
    }
}

/// Bytes behind a sealed preamble.
fn sealed_body_len(p: &Preamble) -> usize {
    if p.count == 1 {
        match p.len[0] {
            0..=INLINE_LEN => 0,
            n => padded(n - INLINE_LEN) + TAG_LEN,
        }
    } else {
        p.len[1..].iter().map(|n| padded(*n)).sum::<usize>() + SEALED_EPILOGUE_LEN + TAG_LEN
    }
}

/// Puts a decrypted frame together: `first` is segment 0's inline part, `body` the rest.
/// `None` if its sender aborted it.
fn finish_sealed(p: &Preamble, first: &Bytes, body: Bytes) -> Result<Option<Frame>, ProtocolError> {
    let inline = first.slice(..p.len[0].min(INLINE_LEN));
    let mut segments = [inline, Bytes::new(), Bytes::new(), Bytes::new()];
    if p.count == 1 {
        if p.len[0] > INLINE_LEN {
            let mut all = BytesMut::with_capacity(p.len[0]);
            all.extend_from_slice(&segments[0]);
            all.extend_from_slice(&body[..p.len[0] - INLINE_LEN]);
            segments[0] = all.freeze();
        }
        return Ok(Some(Frame { tag: p.tag, segments, data_crc: None, passed_over: 0 }));
    }
    let mut at = 0;
    for (segment, len) in segments.iter_mut().zip(p.len).skip(1) {
        *segment = body.slice(at..at + len);
        at += padded(len);
    }
    match body.get(at).copied().unwrap_or_default() {
        late if late & LATE_MASK == LATE_COMPLETE => {
            Ok(Some(Frame { tag: p.tag, segments, data_crc: None, passed_over: 0 }))
        }
        late if late & LATE_MASK == LATE_ABORTED => Ok(None),
        late => Err(ProtocolError::LateStatus(late)),
    }
}

fn le32(b: &[u8], at: usize) -> Option<u32> {
    b.get(at..at + 4).and_then(|s| s.try_into().ok()).map(u32::from_le_bytes)
}

/// Segments to send; trailing empty ones are left out.
#[derive(Clone, Copy, Debug)]
pub struct Segments<'a> {
    /// Segments 0 to 2: control payload, or header, front, middle.
    pub head: [&'a [u8]; 3],
    /// Segment 3.
    pub data: &'a Bytes,
    /// crc32c of `data` from [`SEGMENT_CRC_SEED`], if it is known already.
    pub data_crc: Option<u32>,
}

impl Segments<'_> {
    /// The number of segments sent, and the preamble.
    fn preamble(&self, tag: Tag) -> (usize, [u8; PREAMBLE_LEN]) {
        let lens = [self.head[0].len(), self.head[1].len(), self.head[2].len(), self.data.len()];
        let count = (1..4).rev().find(|&i| lens[i] > 0).map_or(1, |i| i + 1);
        let mut p = [0u8; PREAMBLE_LEN];
        p[0] = tag as u8;
        p[1] = count as u8;
        for (i, &len) in lens.iter().enumerate().take(count) {
            let at = 2 + 6 * i;
            p[at..at + 4].copy_from_slice(&(len as u32).to_le_bytes());
            let align: u16 = if i == 3 { 4096 } else { 8 };
            p[at + 4..at + 6].copy_from_slice(&align.to_le_bytes());
        }
        let crc = crc32c(0, &p[..28]);
        p[28..].copy_from_slice(&crc.to_le_bytes());
        (count, p)
    }
}

/// Appends a frame of secure mode, payload and all, to `out`.
///
/// # Errors
/// [`ProtocolError::NoncesUsedUp`]; `out` is not to be sent then.
pub fn encode_sealed(
    sealer: &mut Sealer,
    tag: Tag,
    s: &Segments<'_>,
    out: &mut BytesMut,
) -> Result<(), ProtocolError> {
    let (count, preamble) = s.preamble(tag);
    let [first, front, middle] = s.head;
    let rest: usize = [front.len(), middle.len(), s.data.len()].into_iter().map(padded).sum();
    out.reserve(
        SEALED_PREAMBLE_LEN + padded(first.len()) + rest + SEALED_EPILOGUE_LEN + 2 * TAG_LEN,
    );
    let start = out.len();
    let (inline, more) = first.split_at(first.len().min(INLINE_LEN));
    out.extend_from_slice(&preamble);
    out.extend_from_slice(inline);
    out.resize(start + PREAMBLE_LEN + INLINE_LEN, 0);
    sealer.seal(out, start)?;
    let mut pad = |part: &[u8]| {
        out.extend_from_slice(part);
        out.resize(out.len() + padded(part.len()) - part.len(), 0);
    };
    let body = start + SEALED_PREAMBLE_LEN;
    if !more.is_empty() {
        pad(more);
    }
    if count > 1 {
        pad(front);
        pad(middle);
        pad(s.data);
        pad(&[LATE_COMPLETE]);
    }
    if out.len() > body {
        sealer.seal(out, body)?;
    }
    Ok(())
}

impl Codec {
    /// Appends the frame's bytes before segment 3 to `out`; returns the bytes to come
    /// behind it.
    pub fn encode(self, tag: Tag, s: &Segments<'_>, out: &mut BytesMut) -> Epilogue {
        let (count, p) = s.preamble(tag);
        out.extend_from_slice(&p);

        let mut crcs = [0u32; 4];
        for (i, seg) in s.head.iter().enumerate().take(count) {
            crcs[i] = crc32c(SEGMENT_CRC_SEED, seg);
        }
        if count == 4 {
            crcs[3] = s.data_crc.unwrap_or_else(|| crc32c(SEGMENT_CRC_SEED, s.data));
        }
        out.extend_from_slice(s.head[0]);
        if self == Self::Crc1 && !s.head[0].is_empty() {
            out.extend_from_slice(&crcs[0].to_le_bytes());
        }
        out.extend_from_slice(s.head[1]);
        out.extend_from_slice(s.head[2]);

        let mut end = Epilogue { bytes: [0; 17], len: self.epilogue_len(count) };
        let (late, crcs) = match self {
            Self::Crc0 => (0, &crcs[..]),
            Self::Crc1 => (LATE_COMPLETE, &crcs[1..]),
        };
        end.bytes[0] = late;
        for (slot, crc) in end.bytes[1..].chunks_exact_mut(4).zip(crcs) {
            slot.copy_from_slice(&crc.to_le_bytes());
        }
        end
    }
}

/// The bytes behind segment 3.
#[derive(Clone, Copy, Debug)]
pub struct Epilogue {
    bytes: [u8; 17],
    len: usize,
}

impl Epilogue {
    /// The bytes; may be empty.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
