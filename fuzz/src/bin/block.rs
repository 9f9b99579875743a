//! Clients of `spirula nbd serve`, and what a cluster says of an image. Input: a byte that chooses,
//! then bytes; for NBD they come in pieces of the length that the next byte says.
#![no_main]

use bytes::BytesMut;
use spirula_block::nbd::{BUFFER, Command, Event, Export, LARGEST, Session};
use spirula_block::{Spec, header, lock, notices, object_map};

const SIZE: u64 = 1 << 20;

fn nbd(read_only: bool, piece: usize, data: &[u8]) {
    let export = || Export { name: "p/i".into(), size: SIZE, preferred: 4096, read_only };
    let (mut input, mut out) = (BytesMut::new(), BytesMut::new());
    let mut session = Session::new(vec!["p/i".into()], &mut out);
    for part in data.chunks(piece.max(1)) {
        input.extend_from_slice(part);
        loop {
            match session.next(&mut input, &mut out) {
                Err(_) => return,
                Ok(None) => break,
                Ok(Some(Event::Wanted(at))) => {
                    assert_eq!(at, 0);
                    // Now and then it cannot be said what it is.
                    let said = (input.len() % 8 != 7).then(export);
                    if session.tell(said, &mut out).is_err() {
                        return;
                    }
                }
                Ok(Some(Event::Disconnect)) => {}
                Ok(Some(Event::Request(r))) => {
                    let (length, changes) = match &r.command {
                        Command::Read(n) => (*n, false),
                        Command::Write(data) => (data.len() as u32, true),
                        Command::Trim(n) | Command::Zero(n) => (*n, true),
                        Command::Flush => continue,
                    };
                    assert!(r.bytes() <= LARGEST as usize && !(changes && read_only));
                    assert!(r.offset.checked_add(u64::from(length)).is_some_and(|end| end <= SIZE));
                }
            }
        }
        // What is incomplete waits, and is no longer than one request; each option has answers of
        // its own length at most.
        assert!(input.len() < BUFFER && out.len() <= 1000 + 64 * data.len());
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some(([which, piece], rest)) = data.split_first_chunk::<2>() else { return };
    match which % 8 {
        0 => nbd(false, usize::from(*piece), rest),
        1 => nbd(true, usize::from(*piece), rest),
        2 => {
            let _ = notices::Notice::read(rest);
            let _ = notices::owner_says(&[bytes::Bytes::copy_from_slice(rest)]);
        }
        3 => {
            if let Ok(held) = lock::Held::read(rest) {
                let _ = held.owner();
            }
            let _ = lock::Watcher::read(rest);
        }
        4 => {
            if let Ok(mut map) = object_map::ObjectMap::read(rest) {
                let last = map.objects().saturating_sub(1);
                map.set(last, object_map::State::Missing);
                let _ = map.get(last);
            }
        }
        5 => {
            let _ = (header::number(rest), header::numbers(rest), header::size(rest), header::text(rest));
            let _ = (header::context(rest), header::snapshot(rest), header::parent(rest), header::overlap(rest));
        }
        6 => {
            if let Some(([order], rest)) = rest.split_first_chunk::<1>()
                && let Some(n) = rest.first_chunk::<8>()
                && let Some(layout) =
                    spirula_block::layout::Layout::new(*order, u64::from_le_bytes(*n), u64::from(*piece))
            {
                let size = u64::from_le_bytes(*n);
                let _ = layout.objects(size);
                for r in layout.runs(size.wrapping_mul(31), 1 << 16) {
                    let all: u64 = layout.image_pieces(r.object, r.offset, r.length).iter().map(|p| p.length).sum();
                    assert_eq!(all, r.length);
                    let _ = layout.pieces_before(r.object, r.offset, r.length, size);
                }
                let _ = layout.pieces_before(size, 0, size, u64::MAX);
            }
        }
        _ => {
            if let Ok(text) = std::str::from_utf8(rest)
                && let Ok(spec) = text.parse::<Spec>()
            {
                assert_eq!(spec.to_string().parse::<Spec>(), Ok(spec));
            }
        }
    }
});
