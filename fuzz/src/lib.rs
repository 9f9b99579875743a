//! What the fuzz targets share: the properties that they check.
//!
//! A target hands the fuzzer's bytes to a decoder family and asserts, besides "no panic, no
//! overflow":
//!
//! * [`bounded`] — decoding takes at most a small multiple of the input's memory, at no
//!   moment more (counted by this crate's global allocator);
//! * [`check`], [`round_trip`], [`body`] — what was decoded, encoded again, reads as the
//!   same value.
//!
//! Each file in `src/bin` is one target; its header says what its input looks like, and
//! `xtask/src/fuzz.rs` makes the seeds accordingly. [`wire`] is the two connection targets.

pub mod memory;
pub mod wire;

use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, from_slice, to_vec};
use spirula_messages::{Body, Message};
use std::fmt::Debug;

pub use memory::bounded;

/// Asserts that `value` survives encoding.
pub fn check<T: Decode + Encode + PartialEq + Debug>(value: &T) {
    let bytes = to_vec(value);
    let again: T = from_slice(&bytes).unwrap_or_else(|e| panic!("own encoding is unreadable: \
        {e}\n{value:?}"));
    assert!(to_vec(&again) == bytes, "the encoding changes\n{value:?}\n{again:?}");
    same(value, &again);
}

/// Equal, unless the value is not even equal to itself: it holds a NaN.
#[allow(clippy::eq_op)]
fn same<T: PartialEq + Debug>(a: &T, b: &T) {
    assert!(a == b || a != a, "the value changes\n{a:?}\n{b:?}");
}

/// Decodes a `T` from the beginning of `data` and checks it.
pub fn round_trip<T: Decode + Encode + PartialEq + Debug>(data: &[u8]) -> Option<T> {
    let value = Decoder::new(data).get::<T>().ok()?;
    check(&value);
    Some(value)
}

/// As [`round_trip`] for types with checksums: a wrong one is put right first, so that the
/// fuzzer's edits get past it.
pub fn round_trip_crc<T: Decode + Encode + PartialEq + Debug>(data: &[u8]) -> Option<T> {
    let mut data = data.to_vec();
    // A map may hold a map.
    for _ in 0..3 {
        match Decoder::new(&data).get::<T>() {
            Ok(value) => {
                check(&value);
                return Some(value);
            }
            Err(DecodeError::Checksum { found, expected, .. }) => {
                let at = data.windows(4).rposition(|w| w == expected.to_le_bytes())?;
                data[at..at + 4].copy_from_slice(&found.to_le_bytes());
            }
            Err(_) => return None,
        }
    }
    None
}

/// Reads a message body of encoding `version` and checks that it survives being sent.
pub fn body<B: Body + Clone + PartialEq + Debug>(version: u16, front: &Bytes, data: &Bytes) -> Option<B> {
    let value = B::read(version, front, data).ok()?;
    let message = value.clone().into_message(7);
    let again = B::from_message(&message).unwrap_or_else(|e| panic!("own message is unreadable: \
        {e}\n{value:?}"));
    same(&value, &again);
    let message_again = again.into_message(7);
    assert!(message_again == message, "the message changes\n{value:?}");
    Some(value)
}

/// Takes a message apart: `[kind u16][version u8][front length u16][front][data]`. Kinds
/// that are not in `known` stand for one that is.
pub fn message(input: &[u8], known: &[u16]) -> Option<Message> {
    let mut d = Decoder::new(input);
    let kind = d.u16().ok()?;
    let kind = if known.contains(&kind) { kind } else { *known.get(usize::from(kind) % known.len())? };
    let version = u16::from(d.u8().ok()?);
    let n = usize::from(d.u16().ok()?).min(d.remaining());
    let front = Bytes::copy_from_slice(d.take(n).ok()?);
    Some(Message { kind, version, front, data: Bytes::copy_from_slice(d.rest()), ..Message::default() })
}
