//! Frames by themselves. Input: `[mode][bytes per read][stream]`, or with bit 7 of the mode
//! `[mode][..][..][three bytes][segments]`: a message to write and read. With bit 1 of the mode
//! in secure mode, where the stream is raw bytes or, with bit 2, `[length u16][plain text]…`
//! that are sealed properly, so that the fuzzer gets at what is inside.
#![no_main]

use bytes::BytesMut;
use spirula_fuzz::wire::frame;
use spirula_messenger::frame::{Codec, FrameReader, Segments, Tag, encode_sealed};
use spirula_messenger::secure::{self, Opener, Sealer};
use spirula_messenger::{Limits, Wanted};

/// Secure mode.
const SECURE: u8 = 2;
/// Its stream is sealed here.
const SEALED: u8 = 4;

fn keys() -> (Opener, Sealer) {
    let secret = [7; secure::CONNECTION_SECRET_LEN];
    // Both nonces are the same, so what one end seals it can open itself.
    secure::keys(&secret, true).expect("long enough")
}

fn reader(codec: Codec, mode: u8) -> FrameReader {
    let mut r = FrameReader::new(codec, Limits { direct_payload: 64, ..Limits::default() });
    r.allow_messages();
    if mode & SECURE != 0 {
        r.secure(keys().0);
    }
    r
}

/// Seals the records of `script`.
fn sealed(script: &[u8]) -> Vec<u8> {
    let (mut sealer, mut rest, mut out) = (keys().1, script, BytesMut::new());
    while let [a, b, more @ ..] = rest {
        let (plain, later) = more.split_at(more.len().min(usize::from(u16::from_le_bytes([*a, *b]))));
        let from = out.len();
        out.extend_from_slice(plain);
        // A preamble's crc is made right, to get past it.
        if let Some(block) = out.get_mut(from..from + 32) {
            let crc = spirula_encoding::crc::crc32c(0, &block[..28]);
            block[28..].copy_from_slice(&crc.to_le_bytes());
        }
        sealer.seal(&mut out, from).expect("nonces are left");
        rest = later;
    }
    out.to_vec()
}

fn codec(mode: u8) -> Codec {
    if mode & 1 == 0 { Codec::Crc0 } else { Codec::Crc1 }
}

fn read(mode: u8, chunk: u8, stream: &[u8]) {
    let sealed = if mode & (SECURE | SEALED) == SECURE | SEALED { sealed(stream) } else { stream.to_vec() };
    let mut stream = &sealed[..];
    let mut r = reader(codec(mode), mode);
    let mut buf = BytesMut::new();
    while !stream.is_empty() {
        let (now, later) = stream.split_at(stream.len().min(usize::from(chunk) + 1));
        stream = later;
        buf.extend_from_slice(now);
        loop {
            match r.next(&mut buf) {
                Ok(Some(f)) => write_and_read(mode, f.tag, f.segments.each_ref().map(|s| &s[..])),
                Ok(None) => break,
                Err(_) => return,
            }
        }
        // Big payloads go the direct way.
        if let Wanted::Payload { len, .. } = r.wanted()
            && buf.len() < len
            && buf.len() + stream.len() >= len
        {
            let (now, later) = stream.split_at(len - buf.len());
            stream = later;
            buf.extend_from_slice(now);
            let mut payload = buf.split();
            if r.open_payload(&mut payload).is_err() {
                return;
            }
            assert_eq!(r.payload(payload.freeze()), None, "a payload that was wanted is taken");
        }
    }
}

fn write_and_read(mode: u8, tag: Tag, s: [&[u8]; 4]) {
    let mut buf = BytesMut::new();
    if mode & SECURE != 0 {
        let data = bytes::Bytes::copy_from_slice(s[3]);
        let s = Segments { head: [s[0], s[1], s[2]], data: &data, data_crc: None };
        encode_sealed(&mut keys().1, tag, &s, &mut buf).expect("nonces are left");
    } else {
        frame(codec(mode), tag, [s[0], s[1], s[2]], s[3], &mut buf);
    }
    let f = reader(codec(mode), mode).next(&mut buf).expect("own frame is readable").expect("and \
        complete");
    assert!(buf.is_empty() && f.tag == tag, "{tag:?} became {:?}, {} bytes left", f.tag, buf.len());
    assert_eq!(f.segments.each_ref().map(|s| &s[..]), s);
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| spirula_fuzz::bounded(64, data, |data| {
    match data {
        [mode, _, _, a, b, c, rest @ ..] if mode & 0x80 != 0 => {
            let mut rest = rest;
            let mut cut = |n: u8| {
                let (now, later) = rest.split_at(rest.len().min(usize::from(n)));
                rest = later;
                now
            };
            let mut header = [0; 41];
            header[0] = *a;
            let (front, middle) = (cut(*b), cut(*c));
            write_and_read(*mode, Tag::Message, [&header, front, middle, rest]);
        }
        [mode, chunk, stream @ ..] => read(*mode, *chunk, stream),
        _ => {}
    }
}));
