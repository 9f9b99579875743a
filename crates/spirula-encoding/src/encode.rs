//! The encoder and the types that know how to write themselves.

use bytes::Bytes;
use std::collections::BTreeMap;

/// A value with one wire form.
pub trait Encode {
    /// Appends the wire form of `self`.
    fn encode(&self, out: &mut Encoder);
}

/// An append-only buffer of wire bytes.
#[derive(Debug, Default, Clone)]
pub struct Encoder {
    buf: Vec<u8>,
}

impl Encoder {
    /// An empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty buffer with room for `bytes`.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { buf: Vec::with_capacity(bytes) }
    }

    /// The bytes written so far.
    pub fn as_slice(&self) -> &[u8] {
        &self.buf
    }

    /// Number of bytes written so far.
    pub fn len(&self) -> usize {
        self.buf.len()
    }

    /// True if nothing was written.
    pub fn is_empty(&self) -> bool {
        self.buf.is_empty()
    }

    /// Gives the bytes up.
    pub fn into_vec(self) -> Vec<u8> {
        self.buf
    }

    /// Gives the bytes up as a shared buffer.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from(self.buf)
    }

    /// Appends bytes without a length.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.buf.extend_from_slice(bytes);
    }

    /// Appends `n` zero bytes.
    pub fn zeros(&mut self, n: usize) {
        self.buf.resize(self.buf.len() + n, 0);
    }

    /// Appends one byte.
    pub fn u8(&mut self, v: u8) {
        self.buf.push(v);
    }
    /// Appends a `u16`.
    pub fn u16(&mut self, v: u16) {
        self.raw(&v.to_le_bytes());
    }
    /// Appends a `u32`.
    pub fn u32(&mut self, v: u32) {
        self.raw(&v.to_le_bytes());
    }
    /// Appends a `u64`.
    pub fn u64(&mut self, v: u64) {
        self.raw(&v.to_le_bytes());
    }
    /// Appends an `i16`.
    pub fn i16(&mut self, v: i16) {
        self.raw(&v.to_le_bytes());
    }
    /// Appends an `i32`.
    pub fn i32(&mut self, v: i32) {
        self.raw(&v.to_le_bytes());
    }
    /// Appends an `i64`.
    pub fn i64(&mut self, v: i64) {
        self.raw(&v.to_le_bytes());
    }
    /// Appends an `f32`.
    pub fn f32(&mut self, v: f32) {
        self.raw(&v.to_le_bytes());
    }
    /// Appends an `f64`.
    pub fn f64(&mut self, v: f64) {
        self.raw(&v.to_le_bytes());
    }
    /// Appends a bool as one byte.
    pub fn bool(&mut self, v: bool) {
        self.u8(u8::from(v));
    }
    /// Appends a count or length. Values above `u32::MAX` do not occur: buffers are smaller.
    pub fn len32(&mut self, n: usize) {
        debug_assert!(n <= u32::MAX as usize);
        self.u32(n as u32);
    }
    /// Appends `u32` length and bytes (`blob`, `str`).
    pub fn blob(&mut self, bytes: &[u8]) {
        self.len32(bytes.len());
        self.raw(bytes);
    }
    /// Appends a string: `u32` length and bytes.
    pub fn str(&mut self, s: &str) {
        self.blob(s.as_bytes());
    }
    /// Appends a value.
    pub fn put<T: Encode + ?Sized>(&mut self, v: &T) {
        v.encode(self);
    }

    /// Appends a `u32` length and whatever `body` writes.
    pub fn sized<R>(&mut self, body: impl FnOnce(&mut Self) -> R) -> R {
        let at = self.buf.len();
        self.u32(0);
        let r = body(self);
        self.patch_len(at);
        r
    }

    /// Appends a versioned struct: version, compat, length, and whatever `body` writes.
    pub fn versioned<R>(
        &mut self,
        version: u8,
        compat: u8,
        body: impl FnOnce(&mut Self) -> R,
    ) -> R {
        self.u8(version);
        self.u8(compat);
        self.sized(body)
    }

    /// Appends a `u32` count and each item written by `each`.
    pub fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut each: impl FnMut(&mut Self, T),
    ) {
        let at = self.buf.len();
        self.u32(0);
        let mut n = 0u32;
        for item in items {
            each(self, item);
            n += 1;
        }
        self.buf[at..at + 4].copy_from_slice(&n.to_le_bytes());
    }

    /// Overwrites four bytes at `at` (already written) with `v`.
    pub fn patch_u32(&mut self, at: usize, v: u32) {
        self.buf[at..at + 4].copy_from_slice(&v.to_le_bytes());
    }

    fn patch_len(&mut self, at: usize) {
        let n = (self.buf.len() - at - 4) as u32;
        self.patch_u32(at, n);
    }
}

macro_rules! encode_int {
    ($($t:ident),*) => {$(
        impl Encode for $t {
            fn encode(&self, out: &mut Encoder) { out.$t(*self); }
        }
    )*};
}
encode_int!(u8, u16, u32, u64, i16, i32, i64, f32, f64, bool);

impl Encode for str {
    fn encode(&self, out: &mut Encoder) {
        out.str(self);
    }
}
impl Encode for String {
    fn encode(&self, out: &mut Encoder) {
        out.str(self);
    }
}
impl Encode for Bytes {
    fn encode(&self, out: &mut Encoder) {
        out.blob(self);
    }
}
impl<T: Encode> Encode for Vec<T> {
    fn encode(&self, out: &mut Encoder) {
        self.as_slice().encode(out);
    }
}
impl<T: Encode> Encode for [T] {
    fn encode(&self, out: &mut Encoder) {
        out.len32(self.len());
        for v in self {
            v.encode(out);
        }
    }
}
impl<K: Encode, V: Encode> Encode for BTreeMap<K, V> {
    fn encode(&self, out: &mut Encoder) {
        out.len32(self.len());
        for (k, v) in self {
            k.encode(out);
            v.encode(out);
        }
    }
}
impl<T: Encode> Encode for std::collections::BTreeSet<T> {
    fn encode(&self, out: &mut Encoder) {
        out.len32(self.len());
        for v in self {
            v.encode(out);
        }
    }
}
impl<A: Encode, B: Encode> Encode for (A, B) {
    fn encode(&self, out: &mut Encoder) {
        self.0.encode(out);
        self.1.encode(out);
    }
}
impl<T: Encode + ?Sized> Encode for &T {
    fn encode(&self, out: &mut Encoder) {
        (**self).encode(out);
    }
}
