//! The frame codec by itself.

use super::*;
use proptest::prelude::*;

fn limits() -> Limits {
    Limits { direct_payload: 100, ..Limits::default() }
}

fn whole(codec: Codec, tag: Tag, head: [&[u8]; 3], data: &Bytes) -> BytesMut {
    let mut b = BytesMut::new();
    let end = codec.encode(tag, &Segments { head, data, data_crc: None }, &mut b);
    b.extend_from_slice(data);
    b.extend_from_slice(end.as_slice());
    b
}

fn reader(codec: Codec) -> FrameReader {
    let mut r = FrameReader::new(codec, limits());
    r.allow_messages();
    r
}

const HEADER: [u8; MESSAGE_HEADER_LEN] = [7; MESSAGE_HEADER_LEN];

#[test]
fn big_payload_is_offered_for_direct_reading_and_taken_back() {
    for codec in [Codec::Crc0, Codec::Crc1] {
        let data = Bytes::from(vec![9u8; 5000]);
        let stream = whole(codec, Tag::Message, [&HEADER, b"front", b""], &data);
        let mut r = reader(codec);
        let mut buf = BytesMut::from(&stream[..200]);
        assert_eq!(r.next(&mut buf), Ok(None));
        assert_eq!(r.wanted(), Wanted::Payload { len: 5000, data_at: 0 });
        let at = 200 - buf.len();
        assert!(r.payload(Bytes::from_static(b"wrong length")).is_some());
        assert_eq!(r.payload(Bytes::copy_from_slice(&stream[at..at + 5000])), None);
        let mut rest = BytesMut::from(&stream[at + 5000..]);
        let f = r.next(&mut rest).unwrap().unwrap();
        assert_eq!((&f.segments[1][..], &f.segments[3]), (&b"front"[..], &data));
        assert_eq!(f.data_crc, Some(crc32c(SEGMENT_CRC_SEED, &data)));
    }
}

#[test]
fn declared_length_alone_reserves_little() {
    let mut b = BytesMut::new();
    let data = Bytes::from(vec![0u8; 16 << 20]);
    Codec::Crc1.encode(
        Tag::Message,
        &Segments { head: [&HEADER, b"", b""], data: &data, data_crc: Some(0) },
        &mut b,
    );
    let mut r =
        FrameReader::new(Codec::Crc1, Limits { direct_payload: usize::MAX, ..Limits::default() });
    r.allow_messages();
    assert_eq!(r.next(&mut b), Ok(None));
    assert_eq!(r.wanted(), Wanted::Bytes(64 << 10));
}

#[test]
fn limits_tags_and_counts_are_enforced_before_the_body_comes() {
    let msg = |front: &[u8]| whole(Codec::Crc1, Tag::Message, [&HEADER, front, b""], &Bytes::new());
    let mut r = FrameReader::new(Codec::Crc1, Limits { front: 10, ..limits() });
    assert!(matches!(r.next(&mut msg(b"x")), Err(ProtocolError::Unexpected { .. })));
    r.allow_messages();
    let cut = |mut b: BytesMut| b.split_to(PREAMBLE_LEN);
    assert!(matches!(
        r.next(&mut cut(msg(&[0; 11]))),
        Err(ProtocolError::TooLong { index: 1, len: 11, .. })
    ));
    let short = whole(Codec::Crc1, Tag::Message, [b"short", b"", b""], &Bytes::new());
    assert!(matches!(reader(Codec::Crc1).next(&mut cut(short)), Err(ProtocolError::Preamble(_))));
    for (at, v) in [(0usize, 99u8), (1, 0), (1, 5), (1, 2), (26, 1)] {
        let mut b = whole(Codec::Crc1, Tag::Ack, [b"12345678", b"", b""], &Bytes::new());
        b[at] = v;
        let crc = crc32c(0, &b[..28]);
        b[28..32].copy_from_slice(&crc.to_le_bytes());
        assert!(reader(Codec::Crc1).next(&mut b).is_err(), "byte {at} = {v}");
    }
}

#[test]
fn aborted_frames_are_skipped_and_unknown_late_status_is_refused() {
    for codec in [Codec::Crc0, Codec::Crc1] {
        let one = whole(codec, Tag::Message, [&HEADER, b"one", b""], &Bytes::new());
        let two = whole(codec, Tag::Message, [&HEADER, b"two", b""], &Bytes::new());
        let late = one.len() - codec.epilogue_len(2);
        let mut b = one.clone();
        b[late] = LATE_ABORTED;
        b.extend_from_slice(&two);
        let f = reader(codec).next(&mut b).unwrap().unwrap();
        assert_eq!(&f.segments[1][..], b"two");
    }
    let mut bad = whole(Codec::Crc1, Tag::Message, [&HEADER, b"one", b""], &Bytes::new());
    let late = bad.len() - 13;
    bad[late] = 0x05;
    assert_eq!(reader(Codec::Crc1).next(&mut bad), Err(ProtocolError::LateStatus(5)));
}

proptest! {
    #[test]
    fn prop_frames_survive_any_chunking(
        rev1: bool,
        frames in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..60), prop::collection::vec(any::<u8>(), 0..60), prop::collection::vec(any::<u8>(), 0..400)), 1..6),
        cuts in prop::collection::vec(1usize..200, 1..60),
    ) {
        let codec = if rev1 { Codec::Crc1 } else { Codec::Crc0 };
        let mut stream = BytesMut::new();
        for (front, middle, data) in &frames {
            stream.extend_from_slice(&whole(codec, Tag::Message, [&HEADER, front, middle], &Bytes::copy_from_slice(data)));
        }
        let (mut r, mut buf, mut got) = (reader(codec), BytesMut::new(), Vec::new());
        let mut cuts = cuts.iter().cycle();
        while !stream.is_empty() {
            let n = (*cuts.next().unwrap()).min(stream.len());
            buf.extend_from_slice(&stream.split_to(n));
            while let Some(f) = r.next(&mut buf).unwrap() { got.push(f); }
        }
        prop_assert_eq!(got.len(), frames.len());
        for (f, (front, middle, data)) in got.iter().zip(&frames) {
            prop_assert_eq!((&f.segments[1][..], &f.segments[2][..], &f.segments[3][..]), (&front[..], &middle[..], &data[..]));
        }
    }

    #[test]
    fn prop_one_flipped_bit_is_noticed(rev1: bool, at: prop::sample::Index, bit in 0u8..8) {
        let codec = if rev1 { Codec::Crc1 } else { Codec::Crc0 };
        let mut b = whole(codec, Tag::Message, [&HEADER, b"front", b""], &Bytes::from_static(b"data"));
        let at = at.index(b.len());
        b[at] ^= 1 << bit;
        let late = b.len() - codec.epilogue_len(4);
        let r = reader(codec).next(&mut b);
        // The late status has no checksum of its own; unused bits of it carry nothing.
        if at != late {
            prop_assert!(!matches!(r, Ok(Some(_))));
        }
    }

    #[test]
    fn prop_anything_sealed_properly_never_panics(
        preamble in prop::collection::vec(any::<u8>(), PREAMBLE_LEN + INLINE_LEN), tag in 1u8..23, count in 0u8..6,
        lens in prop::array::uniform4(prop_oneof![Just(41u32), 0u32..300, any::<u32>()]),
        body in prop::collection::vec(any::<u8>(), 0..700), cut in 1usize..900, direct: bool,
    ) {
        let (rx, mut tx) = (crate::secure::keys(&[7; 64], true).unwrap().0, crate::secure::keys(&[7; 64], true).unwrap().1);
        let mut stream = BytesMut::from(&preamble[..]);
        (stream[0], stream[1], stream[26]) = (tag, count, 0);
        for (i, len) in lens.iter().enumerate() { stream[2 + 6 * i..6 + 6 * i].copy_from_slice(&len.to_le_bytes()); }
        let crc = crc32c(0, &stream[..28]);
        stream[28..32].copy_from_slice(&crc.to_le_bytes());
        tx.seal(&mut stream, 0).unwrap();
        let at = stream.len();
        stream.extend_from_slice(&body);
        tx.seal(&mut stream, at).unwrap();
        let mut r = reader(Codec::Crc1);
        r.secure(rx);
        let mut buf = stream.split_to(cut.min(stream.len()));
        let _ = r.next(&mut buf);
        if direct && let Wanted::Payload { len, .. } = r.wanted() && len <= buf.len() + stream.len() && len >= buf.len() {
            let n = len - buf.len();
            buf.extend_from_slice(&stream.split_to(n));
            if r.open_payload(&mut buf).is_ok() {
                prop_assert!(r.payload(buf.split().freeze()).is_none());
            }
        }
        buf.extend_from_slice(&stream);
        let _ = r.next(&mut buf);
    }

    #[test]
    fn prop_garbage_never_panics(bytes: Vec<u8>, rev1: bool) {
        let codec = if rev1 { Codec::Crc1 } else { Codec::Crc0 };
        let _ = reader(codec).next(&mut BytesMut::from(&bytes[..]));
    }
}

/// Reads a stream as it comes, in small parts; fails if much of it is kept, or a buffer is asked
/// for.
fn read_in_parts(r: &mut FrameReader, stream: &[u8]) -> Vec<Frame> {
    let (mut buf, mut frames, mut held) = (BytesMut::new(), Vec::new(), 0);
    for part in stream.chunks(1000) {
        buf.extend_from_slice(part);
        while let Some(f) = r.next(&mut buf).unwrap() {
            frames.push(f);
        }
        assert!(!matches!(r.wanted(), Wanted::Payload { .. }), "no buffer is asked for");
        held = held.max(buf.len());
    }
    assert!(held < 2000, "{held} bytes of it were kept");
    frames
}

/// However large a message says it is, one that is more than its sender may send takes no memory,
/// and what follows it is read.
#[test]
fn of_a_message_that_is_too_large_only_the_header_is_kept() {
    let data = Bytes::from(vec![9u8; 100_000]);
    let mut stream = whole(Codec::Crc1, Tag::Message, [&HEADER, b"front", b"middle"], &data);
    stream.extend_from_slice(&whole(
        Codec::Crc1,
        Tag::Message,
        [&HEADER, b"next", b""],
        &Bytes::new(),
    ));
    let mut r = reader(Codec::Crc1);
    r.limit_messages(50_000);
    let frames = read_in_parts(&mut r, &stream);
    let seen: Vec<_> =
        frames.iter().map(|f| (&f.segments[0][..], &f.segments[1][..], f.passed_over)).collect();
    assert_eq!(seen, [(&HEADER[..], &b""[..], 100_011), (&HEADER[..], &b"next"[..], 0)]);
    // The header counts for what it is.
    let mut bad = stream.clone();
    bad[PREAMBLE_LEN] ^= 1;
    let mut r = reader(Codec::Crc1);
    r.limit_messages(50_000);
    assert!(matches!(r.next(&mut bad), Err(ProtocolError::SegmentCrc { index: 0, .. })));
    // Frames of 2.0 cannot be looked into.
    let mut r = reader(Codec::Crc0);
    r.limit_messages(50_000);
    let mut old = whole(Codec::Crc0, Tag::Message, [&HEADER, b"front", b""], &data);
    assert!(matches!(r.next(&mut old), Err(ProtocolError::TooLong { .. })));
}

/// The same in secure mode: what is passed over is not opened, and what follows it is.
#[test]
fn of_a_sealed_message_that_is_too_large_only_the_header_is_kept() {
    let mut secret = [7; 64];
    secret[28] = 9;
    let (_, mut tx) = crate::secure::keys(&secret, true).unwrap();
    let (rx, _) = crate::secure::keys(&secret, false).unwrap();
    let (data, mut stream) = (Bytes::from(vec![9u8; 100_000]), BytesMut::new());
    let mut seal = |tag, head: [&[u8]; 3], data: &Bytes| {
        encode_sealed(&mut tx, tag, &Segments { head, data, data_crc: None }, &mut stream).unwrap();
    };
    seal(Tag::Message, [&HEADER, b"front", b""], &data);
    seal(Tag::Message, [&HEADER, b"next", b""], &Bytes::new());
    seal(Tag::Ack, [b"12345678", &[], &[]], &Bytes::new());
    let mut r = reader(Codec::Crc1);
    r.secure(rx);
    r.limit_messages(50_000);
    let frames = read_in_parts(&mut r, &stream);
    let seen: Vec<_> = frames.iter().map(|f| (f.tag, &f.segments[1][..], f.passed_over)).collect();
    assert_eq!(
        seen,
        [
            (Tag::Message, &b""[..], 100_005),
            (Tag::Message, &b"next"[..], 0),
            (Tag::Ack, &b""[..], 0)
        ]
    );
    assert_eq!(frames[0].segments[0], HEADER[..]);
}
