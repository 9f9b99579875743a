//! Transactions. Input: `[header length u16][header][payload]`.
#![no_main]

use bytes::Bytes;
use spirula_encoding::Decoder;
use spirula_types::transaction::Transaction;

libfuzzer_sys::fuzz_target!(|data: &[u8]| spirula_fuzz::bounded(256, data, |data| {
    let mut d = Decoder::new(data);
    let Ok(n) = d.u16() else { return };
    let n = usize::from(n).min(d.remaining());
    let header = d.take(n).unwrap_or_default();
    let payload = Bytes::copy_from_slice(d.rest());
    let Ok(txn) = Transaction::join(header, &payload) else { return };
    assert_eq!(txn.payload_len(), payload.len());
    let (header, payload) = txn.split();
    assert_eq!(Transaction::join(&header, &payload).as_ref(), Ok(&txn));
}));
