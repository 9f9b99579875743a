//! What an OSD's store reads: journal records, the superblock, exports. Input:
//! `[form][content]`, the form modulo 3 says which:
//!
//! * 0: records of one journal frame, each `[redo length u16][blocks of images u8][redo]`;
//! * 1: the superblock behind its magic;
//! * 2: records of an export, each `[kind][length u16][body]`.
//!
//! Lengths, numbers and checksums around them are made right, so that the fuzzer's edits get
//! to what is inside. A store that opens is checked and opens again.
#![no_main]

use spirula_buffer::PayloadPool;
use spirula_encoding::{Decoder, Encoder, crc::crc32c};
use spirula_fuzz::memory::bounded_by;
use spirula_store::device::BlockDevice;
use spirula_store::{Devices, Identity, Store, StoreOptions, tools};
use spirula_types::Uuid;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

const LABELS: usize = 128 << 10;
const COPIES: [usize; 2] = [0, 64 << 10];
const JOURNAL: usize = 256 << 10;
const DEVICE: Uuid = Uuid([5; 16]);
const IDENTITY: Identity = Identity { fsid: Uuid([1; 16]), osd_uuid: Uuid([2; 16]), osd_id: 3 };

/// A device in memory.
struct Memory(Mutex<Vec<u8>>);

impl Memory {
    fn edit(&self, at: usize, bytes: &[u8]) -> Option<()> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get_mut(at..at.checked_add(bytes.len())?)?.copy_from_slice(bytes);
        Some(())
    }
}

impl BlockDevice for Memory {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let end = (offset as usize).checked_add(buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(all.get(offset as usize..end).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        self.read_at(buf, offset).map(|()| true)
    }

    fn write_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.edit(offset as usize, &bufs.concat()).ok_or(io::ErrorKind::UnexpectedEof.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).len() as u64)
    }

    fn name(&self) -> &str {
        "memory"
    }
}

fn open(devices: &Devices) -> Result<Store, spirula_store::StoreError> {
    let opts = StoreOptions { cache_bytes: 256 << 10, pool: PayloadPool::new(1 << 20), ..StoreOptions::default() };
    Store::open_stepped(devices, Some(IDENTITY), &opts, Box::new(|_| ()), Box::new(|_| ()))
}

/// A frame, the first of its journal.
fn frame(d: &mut Decoder<'_>) -> Vec<u8> {
    let mut body = Encoder::new();
    let mut count = 0;
    while let (Ok(len), Ok(blocks)) = (d.u16(), d.u8()) {
        let redo = d.take(usize::from(len).min(d.remaining())).unwrap_or_default();
        let images = usize::from(blocks % 8) * 4096;
        if body.len() + redo.len() + images > JOURNAL / 2 {
            break;
        }
        count += 1;
        body.u64(u64::from(count));
        body.u32(redo.len() as u32);
        body.u32(images as u32);
        body.raw(redo);
        body.zeros(images);
    }
    let mut o = Encoder::new();
    o.raw(b"SPJF");
    o.u32(2);
    o.put(&DEVICE);
    // Number, position, frames durable before it, superblock.
    (0..4).for_each(|_| o.u64(0));
    o.u64(1);
    o.u32(count);
    o.u32(body.len() as u32);
    o.u32(crc32c(u32::MAX, body.as_slice()));
    o.u32(0);
    o.zeros(92 - o.len());
    o.u32(crc32c(u32::MAX, o.as_slice()));
    o.raw(body.as_slice());
    o.into_vec()
}

fn superblock(content: &[u8]) -> Vec<u8> {
    let mut copy = b"SPIRSTOR\x02\0".to_vec();
    copy.extend(content.iter().take(4082));
    copy.resize(4092, 0);
    copy.extend(crc32c(u32::MAX, &copy).to_le_bytes());
    copy
}

fn export(d: &mut Decoder<'_>) -> Vec<u8> {
    let mut o = Encoder::new();
    o.raw(b"SPIREXP1");
    while let (Ok(kind), Ok(len)) = (d.u8(), d.u16()) {
        let body = d.take(usize::from(len).min(d.remaining())).unwrap_or_default();
        let mut head = Encoder::new();
        head.u8(kind);
        head.u32(body.len() as u32);
        o.raw(head.as_slice());
        o.raw(body);
        o.u32(crc32c(crc32c(u32::MAX, head.as_slice()), body));
    }
    o.into_vec()
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| bounded_by(16 << 20, 256, data, |data| {
    let Some((form, content)) = data.split_first() else { return };
    let memory = Arc::new(Memory(Mutex::new(vec![0; LABELS + JOURNAL + (384 << 10)])));
    let devices = Devices { main: memory.clone(), journal: None, meta: None };
    let draw = [Uuid([4; 16]), DEVICE, Uuid([6; 16]), Uuid([7; 16])];
    Store::format(&devices, IDENTITY, draw, JOURNAL as u64).expect("the device is large enough");
    let mut d = Decoder::new(content);
    match form % 3 {
        0 => {
            let _ = memory.edit(LABELS, &frame(&mut d));
        }
        1 => COPIES.iter().for_each(|at| {
            let _ = memory.edit(*at, &superblock(content));
        }),
        _ => {
            let store = open(&devices).expect("a new store opens");
            let _ = tools::examine(&store, &export(&mut d)[..]);
            return;
        }
    }
    let Ok(mut store) = open(&devices) else { return };
    let _ = tools::check(&store, true);
    while store.step() {}
    let seq = store.last_seq();
    drop(store);
    let again = open(&devices).expect("a store that opened opens again");
    assert_eq!(again.last_seq(), seq, "and holds what it held");
}));
