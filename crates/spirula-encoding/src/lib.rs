//! Ceph's wire encoding: little-endian, length-prefixed, versioned.
//!
//! Pure. Decoders never panic and never allocate more than a small multiple of the
//! bytes they were given: every count is checked against what is left before memory
//! is reserved. Encoders append to one growing buffer.
//!
//! Conventions (`docs/protocol/README.md`): integers little-endian; `str` and `blob`
//! are a `u32` length and bytes; `vec`, `map` are a `u32` count and elements; a
//! versioned struct is `u8 version, u8 compat, u32 length, body`, whose unknown tail
//! a decoder skips.
//!
//! Start at [`Decoder`] and [`Encoder`]; checksums are in [`crc`].

pub mod crc;
mod decode;
mod encode;
mod time;

pub use decode::{Decode, DecodeError, Decoder};
pub use encode::{Encode, Encoder};
pub use time::UTime;

/// Encodes `value` into a fresh buffer.
pub fn to_vec<T: Encode + ?Sized>(value: &T) -> Vec<u8> {
    let mut out = Encoder::new();
    value.encode(&mut out);
    out.into_vec()
}

/// Decodes a `T` that must fill `bytes` to the last byte.
///
/// # Errors
/// Whatever `T`'s decoder finds wrong, or [`DecodeError::Trailing`].
pub fn from_slice<T: Decode>(bytes: &[u8]) -> Result<T, DecodeError> {
    let mut d = Decoder::new(bytes);
    let value = T::decode(&mut d)?;
    d.finish()?;
    Ok(value)
}
