//! The monitor's store: transactions, and opening a directory whose files hold anything.
//! Input: `[how][log base][body length u16][snapshot body][log records]`. Headers and the
//! snapshot's checksum are made right, unless bit 0 of `how` is set: then the two parts are
//! the two files. A log record is `[length u8][body]`, framed properly; bits 1 to 7 say
//! after how many records raw bytes follow.
#![no_main]

use bytes::Bytes;
use spirula_encoding::crc::crc32c;
use spirula_encoding::{Decoder, Encoder};
use spirula_fuzz::{bounded, round_trip};
use spirula_mon::{MonStore, MonTxn};
use spirula_quorum::{Entry, EntryKind, Persist};
use spirula_types::Uuid;
use std::path::PathBuf;

const FSID: Uuid = Uuid([7; 16]);

fn header(magic: &[u8; 8], seq: u64) -> Encoder {
    let mut o = Encoder::new();
    o.raw(magic);
    o.u32(2);
    o.put(&FSID);
    o.u64(seq);
    o.u32(crc32c(u32::MAX, o.as_slice()));
    o
}

fn snapshot(body: &[u8]) -> Vec<u8> {
    let mut o = header(b"SPIRMONS", 2);
    o.raw(body);
    o.u32(crc32c(u32::MAX, o.as_slice()));
    o.into_vec()
}

fn log(base: u64, records: usize, d: &mut Decoder<'_>) -> Vec<u8> {
    let mut o = header(b"SPIRMONL", base);
    for n in 1..=records as u64 {
        let Ok(len) = d.u8() else { break };
        let body = d.take(usize::from(len).min(d.remaining())).unwrap_or_default();
        let seq = base + n;
        o.u32(0x4d4f_4e52);
        o.len32(body.len());
        o.u64(seq);
        o.u32(crc32c(crc32c(u32::MAX, &seq.to_le_bytes()), body));
        o.raw(body);
    }
    o.raw(d.rest());
    o.into_vec()
}

/// A directory in memory, one for each process.
fn dir() -> PathBuf {
    let base = if std::path::Path::new("/dev/shm").is_dir() { "/dev/shm".into() } else { std::env::temp_dir() };
    base.join(format!("spirula-fuzz-mon-{}", std::process::id()))
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| bounded(256, data, |data| {
    round_trip::<MonTxn>(data);
    let mut d = Decoder::new(data);
    let (Ok(how), Ok(base), Ok(n)) = (d.u8(), d.u8(), d.u16()) else { return };
    let body = d.take(usize::from(n).min(d.remaining())).unwrap_or_default();
    let (snapshot, log) = if how & 1 == 0 {
        (snapshot(body), log(u64::from(base % 4), usize::from(how >> 1), &mut d))
    } else {
        (body.to_vec(), d.rest().to_vec())
    };
    let dir = dir();
    std::fs::create_dir_all(&dir).expect("the directory can be made");
    std::fs::write(dir.join("mon.snapshot"), snapshot).expect("and written to");
    std::fs::write(dir.join("mon.log"), &log).expect("and written to");
    let Ok((mut store, stored)) = MonStore::open(&dir) else {
        assert!(std::fs::read(dir.join("mon.log")).is_ok_and(|now| now == log), "a refused store \
            is left alone");
        return;
    };
    // What was opened takes an entry and opens again with it.
    let last = stored.entries.last().map_or((stored.snapshot.index, stored.snapshot.term), |e| (e.index, e.term));
    let next = last.0.checked_add(1).map(|index| Entry {
        index,
        term: last.1,
        kind: EntryKind::Normal,
        data: Bytes::from_static(b"new"),
    });
    let entries: Vec<Entry> = next.into_iter().collect();
    let write = Persist { number: 1, hard: stored.hard, snapshot: None, entries: entries.clone() };
    store.persist(&[write]).expect("an open store takes a write");
    drop(store);
    let (_, again) = MonStore::open(&dir).expect("a store that was open opens again");
    assert!(again.hard == stored.hard && again.snapshot == stored.snapshot && again.identity == stored.identity);
    assert_eq!(again.entries, [stored.entries, entries].concat(), "entries survive");
}));
