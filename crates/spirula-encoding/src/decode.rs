//! The decoder and the types that know how to read themselves.

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// Why bytes could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Fewer bytes than the format needs at this place.
    #[error("truncated: {need} bytes needed, {have} left")]
    Truncated {
        /// Bytes the next field needs.
        need: usize,
        /// Bytes left.
        have: usize,
    },
    /// A count that the remaining bytes cannot hold.
    #[error("count {count} cannot fit the {have} bytes left")]
    Count {
        /// The count read.
        count: usize,
        /// Bytes left.
        have: usize,
    },
    /// The sender says that decoders of our version cannot read this.
    #[error("{what} needs decoder version {compat}, this is {ours}")]
    TooNew {
        /// The structure.
        what: &'static str,
        /// Version the sender requires.
        compat: u8,
        /// Version we know.
        ours: u8,
    },
    /// The sender's version is older than anything we can read.
    #[error("{what} version {version} is too old, {oldest} is the oldest readable")]
    TooOld {
        /// The structure.
        what: &'static str,
        /// Version found.
        version: u8,
        /// Oldest readable version.
        oldest: u8,
    },
    /// A string that must be text is not UTF-8.
    #[error("text is not UTF-8")]
    Utf8,
    /// A checksum does not match.
    #[error("{what}: checksum is {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// What was checked.
        what: &'static str,
        /// Computed from the bytes.
        found: u32,
        /// Stored beside them.
        expected: u32,
    },
    /// A field holds a value that has no meaning.
    #[error("{what}: bad value {value}")]
    Value {
        /// The field.
        what: &'static str,
        /// What it held.
        value: i64,
    },
    /// Bytes after the end of the value.
    #[error("{0} bytes after the end")]
    Trailing(usize),
}

/// A type with one wire form.
pub trait Decode: Sized {
    /// Reads one value, leaving the decoder behind it.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes are not such a value. Never panics.
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError>;
}

/// A cursor over received bytes.
#[derive(Debug, Clone)]
pub struct Decoder<'a> {
    data: &'a [u8],
    pos: usize,
}

impl<'a> Decoder<'a> {
    /// Starts at the first byte.
    pub fn new(data: &'a [u8]) -> Self {
        Self { data, pos: 0 }
    }

    /// Bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.data.len() - self.pos
    }

    /// True at the end.
    pub fn is_empty(&self) -> bool {
        self.remaining() == 0
    }

    /// Offset of the next byte from the start.
    pub fn position(&self) -> usize {
        self.pos
    }

    /// The bytes not read yet, without moving.
    pub fn rest(&self) -> &'a [u8] {
        self.data.get(self.pos..).unwrap_or_default()
    }

    /// Checks that nothing is left.
    ///
    /// # Errors
    /// [`DecodeError::Trailing`] otherwise.
    pub fn finish(&self) -> Result<(), DecodeError> {
        if self.is_empty() { Ok(()) } else { Err(DecodeError::Trailing(self.remaining())) }
    }

    /// Takes the next `n` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], DecodeError> {
        let have = self.remaining();
        let s = self
            .pos
            .checked_add(n)
            .and_then(|end| self.data.get(self.pos..end))
            .ok_or(DecodeError::Truncated { need: n, have })?;
        self.pos += n;
        Ok(s)
    }

    /// Skips `n` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn skip(&mut self, n: usize) -> Result<(), DecodeError> {
        self.take(n).map(|_| ())
    }

    /// Takes a fixed-size array.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let s = self.take(N)?;
        let mut a = [0; N];
        a.copy_from_slice(s);
        Ok(a)
    }

    /// Reads a byte.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`], as for every fixed-size read below.
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }
    /// Reads a bool: any non-zero byte is true.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn bool(&mut self) -> Result<bool, DecodeError> {
        Ok(self.u8()? != 0)
    }

    /// Reads a count of elements of at least `min_size` encoded bytes each, and checks
    /// that so many can be left.
    ///
    /// # Errors
    /// [`DecodeError::Count`] or [`DecodeError::Truncated`].
    pub fn count(&mut self, min_size: usize) -> Result<usize, DecodeError> {
        let count = self.u32()? as usize;
        let have = self.remaining();
        if count.saturating_mul(min_size.max(1)) > have {
            return Err(DecodeError::Count { count, have });
        }
        Ok(count)
    }

    /// Reads `u32` length and that many bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn blob(&mut self) -> Result<&'a [u8], DecodeError> {
        let n = self.u32()? as usize;
        self.take(n)
    }

    /// Reads a blob into a buffer of its own.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn bytes(&mut self) -> Result<Bytes, DecodeError> {
        self.blob().map(Bytes::copy_from_slice)
    }

    /// Reads a string that must be UTF-8.
    ///
    /// # Errors
    /// [`DecodeError::Utf8`] or [`DecodeError::Truncated`].
    pub fn str(&mut self) -> Result<&'a str, DecodeError> {
        std::str::from_utf8(self.blob()?).map_err(|_| DecodeError::Utf8)
    }

    /// Reads a value.
    ///
    /// # Errors
    /// Those of the type.
    pub fn get<T: Decode>(&mut self) -> Result<T, DecodeError> {
        T::decode(self)
    }

    /// Reads a `u32` length and decodes `body` within exactly those bytes, skipping what
    /// it leaves.
    ///
    /// # Errors
    /// Those of `body`, or [`DecodeError::Truncated`].
    pub fn sized<T>(
        &mut self,
        body: impl FnOnce(&mut Decoder<'a>) -> Result<T, DecodeError>,
    ) -> Result<T, DecodeError> {
        let inner = self.blob()?;
        body(&mut Decoder::new(inner))
    }

    /// Reads a versioned struct. `ours` is the newest version we know; `body` gets the
    /// sender's version and the body's bytes; what it leaves is skipped.
    ///
    /// # Errors
    /// [`DecodeError::TooNew`] if the sender's compat is above `ours`; those of `body`.
    pub fn versioned<T>(
        &mut self,
        what: &'static str,
        ours: u8,
        body: impl FnOnce(&mut Decoder<'a>, u8) -> Result<T, DecodeError>,
    ) -> Result<T, DecodeError> {
        let version = self.u8()?;
        let compat = self.u8()?;
        if compat > ours {
            return Err(DecodeError::TooNew { what, compat, ours });
        }
        self.sized(|d| body(d, version))
    }

    /// Reads a `u32` count and that many elements with `each`. `min_size` is the least
    /// number of bytes an element takes.
    ///
    /// # Errors
    /// Those of `each`, or [`DecodeError::Count`].
    pub fn list<T>(
        &mut self,
        min_size: usize,
        mut each: impl FnMut(&mut Decoder<'a>) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let n = self.count(min_size)?;
        let mut v = Vec::with_capacity(n.min(self.remaining() / size_of::<T>().max(1) + 1));
        for _ in 0..n {
            v.push(each(self)?);
        }
        Ok(v)
    }
}

macro_rules! decode_int {
    ($($t:ident),*) => {
        impl Decoder<'_> {$(
            /// Reads a little-endian number.
            ///
            /// # Errors
            /// [`DecodeError::Truncated`].
            pub fn $t(&mut self) -> Result<$t, DecodeError> {
                Ok($t::from_le_bytes(self.array()?))
            }
        )*}
        $(impl Decode for $t {
            fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> { d.$t() }
        })*
    };
}
decode_int!(u16, u32, u64, i16, i32, i64, f32, f64);

impl Decode for u8 {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.u8()
    }
}
impl Decode for bool {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.bool()
    }
}
impl Decode for String {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.str().map(str::to_owned)
    }
}
impl Decode for Bytes {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.bytes()
    }
}
impl<T: Decode> Decode for Vec<T> {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.list(1, T::decode)
    }
}
impl<K: Decode + Ord, V: Decode> Decode for BTreeMap<K, V> {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let n = d.count(1)?;
        let mut m = Self::new();
        for _ in 0..n {
            let k = K::decode(d)?;
            m.insert(k, V::decode(d)?);
        }
        Ok(m)
    }
}
impl<T: Decode + Ord> Decode for BTreeSet<T> {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let n = d.count(1)?;
        let mut s = Self::new();
        for _ in 0..n {
            s.insert(T::decode(d)?);
        }
        Ok(s)
    }
}
impl<A: Decode, B: Decode> Decode for (A, B) {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok((A::decode(d)?, B::decode(d)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Encoder, from_slice, to_vec};
    use proptest::prelude::*;

    #[test]
    fn unknown_tail_of_a_newer_struct_is_skipped() {
        let mut out = Encoder::new();
        out.versioned(9, 1, |o| {
            o.u32(7);
            o.str("from the future");
        });
        out.u8(42);
        let bytes = out.into_vec();
        let mut d = Decoder::new(&bytes);
        assert_eq!(d.versioned("t", 1, |d, _| d.u32()), Ok(7));
        assert_eq!(d.u8(), Ok(42));
    }

    #[test]
    fn struct_that_requires_a_newer_decoder_is_refused() {
        let mut out = Encoder::new();
        out.versioned(9, 5, |o| o.u32(7));
        let r = Decoder::new(out.as_slice()).versioned("t", 4, |d, _| d.u32());
        assert_eq!(r, Err(DecodeError::TooNew { what: "t", compat: 5, ours: 4 }));
    }

    #[test]
    fn absurd_count_is_refused_before_allocating() {
        assert_eq!(
            from_slice::<Vec<u64>>(&[0xff; 6]),
            Err(DecodeError::Count { count: 0xffff_ffff, have: 2 })
        );
    }

    proptest! {
        #[test]
        fn prop_maps_and_strings_round_trip(m: BTreeMap<String, Vec<u32>>) {
            prop_assert_eq!(from_slice::<BTreeMap<String, Vec<u32>>>(&to_vec(&m)).unwrap(), m);
        }

        #[test]
        fn prop_decoding_garbage_never_panics(bytes: Vec<u8>) {
            let _ = from_slice::<BTreeMap<String, Vec<String>>>(&bytes);
            let _ = Decoder::new(&bytes).versioned("x", 3, |d, _| d.get::<Vec<u64>>());
        }
    }
}
