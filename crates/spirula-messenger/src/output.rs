//! Bytes to write, batched for one vectored write.

use crate::error::ProtocolError;
use crate::frame::{Codec, Segments, Tag, encode_sealed};
use crate::secure::Sealer;
use bytes::{Buf, Bytes, BytesMut};
use std::collections::VecDeque;
use std::io::IoSlice;

/// Bytes to write to the socket, in order. Implements [`Buf`] with vectored chunks, so that
/// `write_all_buf` and friends need one `writev` per batch.
#[derive(Debug, Default)]
pub struct Output {
    chunks: VecDeque<Bytes>,
    len: usize,
}

impl Output {
    /// True if there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes left.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The chunks left.
    pub fn chunks(&self) -> impl Iterator<Item = &Bytes> {
        self.chunks.iter()
    }

    /// Appends what another call gave.
    pub fn append(&mut self, mut more: Self) {
        self.len += more.len;
        self.chunks.append(&mut more.chunks);
    }

    fn push(&mut self, b: Bytes) {
        if !b.is_empty() {
            self.len += b.len();
            self.chunks.push_back(b);
        }
    }
}

impl Buf for Output {
    fn remaining(&self) -> usize {
        self.len
    }

    fn chunk(&self) -> &[u8] {
        self.chunks.front().map_or(&[], |b| b)
    }

    fn chunks_vectored<'a>(&'a self, dst: &mut [IoSlice<'a>]) -> usize {
        let mut n = 0;
        for (slot, b) in dst.iter_mut().zip(&self.chunks) {
            *slot = IoSlice::new(b);
            n += 1;
        }
        n
    }

    fn advance(&mut self, mut n: usize) {
        assert!(n <= self.len, "advance past the end of the output");
        self.len -= n;
        while n > 0 {
            let Some(front) = self.chunks.front_mut() else { return };
            if front.len() > n {
                front.advance(n);
                return;
            }
            n -= front.len();
            self.chunks.pop_front();
        }
    }
}

/// Collects frames. Small parts share one buffer; big payloads go by reference.
#[derive(Debug, Default)]
pub(crate) struct OutBuffer {
    done: Output,
    batch: BytesMut,
    /// In secure mode.
    sealer: Option<Sealer>,
}

/// Room reserved when a batch begins.
const BATCH_CAPACITY: usize = 4096;

impl OutBuffer {
    /// Appends raw bytes (the banner).
    pub fn raw(&mut self, bytes: &[u8]) {
        self.batch.extend_from_slice(bytes);
    }

    /// From now on frames are sealed.
    pub fn secure(&mut self, sealer: Sealer) {
        self.sealer = Some(sealer);
    }

    /// Appends a frame; its payload is copied up to `copy_max` bytes, or encrypted.
    ///
    /// # Errors
    /// [`ProtocolError::NoncesUsedUp`]; nothing was appended then.
    pub fn frame(
        &mut self,
        codec: Codec,
        tag: Tag,
        s: &Segments<'_>,
        copy_max: usize,
    ) -> Result<(), ProtocolError> {
        if let Some(sealer) = &mut self.sealer {
            if sealer.is_used_up() {
                return Err(ProtocolError::NoncesUsedUp);
            }
            if s.data.len() > copy_max {
                // Memory of its own: the batch does not grow, and moves, with it.
                self.done.push(self.batch.split().freeze());
                let mut whole = BytesMut::new();
                encode_sealed(sealer, tag, s, &mut whole)?;
                self.done.push(whole.freeze());
                return Ok(());
            }
            return encode_sealed(sealer, tag, s, &mut self.batch);
        }
        let small = if s.data.len() <= copy_max { s.data.len() } else { 0 };
        let need = 128 + s.head.iter().map(|h| h.len()).sum::<usize>() + small;
        if self.batch.capacity() - self.batch.len() < need {
            self.batch.reserve(need.max(BATCH_CAPACITY));
        }
        let end = codec.encode(tag, s, &mut self.batch);
        if small == s.data.len() {
            self.batch.extend_from_slice(s.data);
        } else {
            self.done.push(self.batch.split().freeze());
            self.done.push(s.data.clone());
        }
        self.batch.extend_from_slice(end.as_slice());
        Ok(())
    }

    #[cfg(test)]
    pub fn use_up_nonces(&mut self, left: u64) {
        if let Some(s) = &mut self.sealer {
            s.use_up_to(left);
        }
    }

    /// The last `n` bytes of the batch.
    pub fn last(&self, n: usize) -> &[u8] {
        self.batch.get(self.batch.len().saturating_sub(n)..).unwrap_or_default()
    }

    /// Bytes waiting.
    pub fn len(&self) -> usize {
        self.done.len + self.batch.len()
    }

    /// Takes everything.
    pub fn take(&mut self) -> Output {
        self.done.push(self.batch.split().freeze());
        std::mem::take(&mut self.done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_frames_share_a_chunk_and_big_payloads_are_not_copied() {
        let mut o = OutBuffer::default();
        let small = Bytes::from(vec![1u8; 4096]);
        let big = Bytes::from(vec![2u8; 100_000]);
        for data in [&small, &small, &big, &small] {
            let s = Segments { head: [&[0; 41], b"f", b""], data, data_crc: None };
            o.frame(Codec::Crc1, Tag::Message, &s, 8192).unwrap();
        }
        let mut out = o.take();
        let chunks: Vec<_> = out.chunks().cloned().collect();
        assert_eq!(chunks.len(), 3);
        assert_eq!(chunks[1].as_ptr(), big.as_ptr());
        let all: Vec<u8> = chunks.concat();
        assert_eq!(out.len(), all.len());
        let mut slices = [IoSlice::new(&[]); 8];
        assert_eq!(out.chunks_vectored(&mut slices), 3);
        out.advance(chunks[0].len() + 10);
        assert_eq!(out.chunk(), &big[10..]);
        out.advance(out.len());
        assert!(out.is_empty() && o.take().is_empty());
    }
}
