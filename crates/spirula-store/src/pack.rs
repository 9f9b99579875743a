//! Compression ahead of a submission.
//!
//! To compress what a transaction brings takes milliseconds, in which the owner of a store could
//! do nothing else. So the owner asks what there is to compress ([`Store::packing`]), has another
//! thread do it ([`Packing::run`]), and submits the transaction with what came of it
//! ([`Store::submit_packed`]). Until then the store knows nothing of the transaction: its order
//! among others, and its durability, begin with the submission.
//!
//! Nothing but time hangs on it. What was packed is found by the place of its bytes in memory,
//! which it holds, so that nothing else can be at that place. What is not found (data that is
//! merged with what was there before, a pool whose options have changed since) is compressed when
//! the transaction is submitted.

use crate::alloc::BLOCK;
use crate::compress::{Compressed, PoolOptions};
use crate::onode::SEGMENT_BLOCKS;
use crate::stage::pool_of;
use crate::store::Store;
use bytes::Bytes;
use spirula_types::HObject;
use spirula_types::transaction::{ObjectOp, Transaction};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Less than this (bytes) is compressed sooner than it is handed to somebody else.
const WORTH: usize = 64 << 10;

/// Cuts the blocks `[first, end)` of an object into what is compressed as one piece: first block
/// and number of each.
pub(crate) fn blobs(first: u64, end: u64, step: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut at = first;
    std::iter::from_fn(move || {
        let (from, place) = (at, at % SEGMENT_BLOCKS);
        let n = (step - place % step).min(SEGMENT_BLOCKS - place).min(end - at);
        at += n;
        (n > 0).then_some((from, n))
    })
}

/// What is to be compressed for a transaction: work for any thread.
#[derive(Debug)]
pub struct Packing(Vec<(Bytes, PoolOptions)>);

impl Packing {
    /// Compresses it, as far as that pays.
    pub fn run(self) -> Packed {
        let done = self.0.into_iter().map(|(data, options)| {
            let compressed = options.try_compress(&data);
            (place(&data), Tried { data, options, compressed })
        });
        Packed(Arc::new(done.collect()))
    }
}

/// What became of one piece.
#[derive(Debug)]
struct Tried {
    /// Held, so that its place stays its own.
    data: Bytes,
    options: PoolOptions,
    /// `None`: it does not pay.
    compressed: Option<Compressed>,
}

fn place(data: &Bytes) -> (usize, usize) {
    (data.as_ptr() as usize, data.len())
}

/// What was compressed for a transaction.
#[derive(Clone, Debug, Default)]
pub struct Packed(Arc<BTreeMap<(usize, usize), Tried>>);

impl Packed {
    /// Where what was compressed lies.
    #[cfg(test)]
    pub(crate) fn places(&self) -> Vec<*const u8> {
        self.0.values().filter_map(|t| Some(t.compressed.as_ref()?.data.as_ptr())).collect()
    }

    /// What came of just this data with just these options: `None` if it was not tried.
    pub(crate) fn find(&self, data: &Bytes, options: &PoolOptions) -> Option<Option<Compressed>> {
        let tried = self.0.get(&place(data)).filter(|t| t.options == *options)?;
        debug_assert_eq!(tried.data, data);
        Some(tried.compressed.clone())
    }
}

impl Store {
    /// What of a transaction would be compressed, if that is so much that another thread should
    /// do it before the transaction is submitted.
    pub fn packing(&self, txn: &Transaction) -> Option<Packing> {
        if txn.payload_len() < WORTH {
            return None;
        }
        let mut pieces = Vec::new();
        for update in &txn.objects {
            let options =
                self.pool_options.get(&pool_of(&update.object)).copied().unwrap_or_default();
            if !options.may_want() {
                continue;
            }
            let mut hints = self.hints(&update.object);
            for op in &update.ops {
                match op {
                    ObjectOp::AllocHint(flags) => hints = *flags,
                    ObjectOp::Remove => hints = 0,
                    ObjectOp::CloneFrom(from) => hints = self.hints(from),
                    ObjectOp::Write { offset, data } if options.wants(hints) => {
                        cut(*offset, data, options, &mut pieces)
                    }
                    _ => {}
                }
            }
        }
        let bytes: usize = pieces.iter().map(|(data, _)| data.len()).sum();
        (bytes >= WORTH).then_some(Packing(pieces))
    }

    /// What is known of how an object's data compresses. Of one that cannot be read nothing is: it
    /// is for the submission to say so.
    fn hints(&self, object: &HObject) -> u32 {
        self.onode(object).ok().flatten().map_or(0, |o| o.hints)
    }
}

/// Adds those pieces of a write that need nothing of what is there already.
fn cut(offset: u64, data: &Bytes, options: PoolOptions, pieces: &mut Vec<(Bytes, PoolOptions)>) {
    let (Some(whole), Some(end)) =
        (offset.checked_next_multiple_of(BLOCK), offset.checked_add(data.len() as u64))
    else {
        // No object is as large.
        return;
    };
    let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK));
    for (at, n) in blobs(first, last, options.blob_blocks()) {
        let (from, until) = (at * BLOCK, (at + n) * BLOCK);
        if from >= whole && until <= end {
            let piece = data.slice((from - offset) as usize..(until - offset) as usize);
            pieces.push((piece, options));
        }
    }
}
