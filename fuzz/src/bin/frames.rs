//! Frames by themselves. Input: `[mode][bytes per read][stream]`, or with bit 7 of the mode
//! `[mode][..][..][three bytes][segments]`: a message to write and read.
#![no_main]

use bytes::BytesMut;
use spirula_fuzz::wire::frame;
use spirula_messenger::Limits;
use spirula_messenger::frame::{Codec, FrameReader, Tag};

fn reader(codec: Codec) -> FrameReader {
    let mut r = FrameReader::new(codec, Limits { direct_payload: 64, ..Limits::default() });
    r.allow_messages();
    r
}

fn codec(mode: u8) -> Codec {
    if mode & 1 == 0 { Codec::Crc0 } else { Codec::Crc1 }
}

fn read(mode: u8, chunk: u8, mut stream: &[u8]) {
    let mut r = reader(codec(mode));
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
    }
}

fn write_and_read(mode: u8, tag: Tag, s: [&[u8]; 4]) {
    let mut buf = BytesMut::new();
    frame(codec(mode), tag, [s[0], s[1], s[2]], s[3], &mut buf);
    let f = reader(codec(mode)).next(&mut buf).expect("own frame is readable").expect("and complete");
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
