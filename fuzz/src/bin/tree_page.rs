//! Pages and roots of the metadata tree. Input: a page without its first 24 bytes (checksum,
//! magic, tree) and its padding. Those, its length and its place are made right, so that
//! the fuzzer's edits reach the entries; then the bytes as they are, as a page and as a root.
#![no_main]

use spirula_encoding::crc::crc32c;
use spirula_fuzz::bounded;
use spirula_tree::{PAGE, PageRef, ROOT_BYTES, Root, examine_page};

const TREE: [u8; 16] = [7; 16];

libfuzzer_sys::fuzz_target!(|data: &[u8]| bounded(64, data, |data| {
    let units = (24 + data.len() + 4).div_ceil(PAGE).clamp(1, 40);
    let mut page = vec![0; units * PAGE];
    let n = data.len().min(page.len() - 28);
    page[24..24 + n].copy_from_slice(&data[..n]);
    page[4..8].copy_from_slice(b"SPT1");
    page[8..24].copy_from_slice(&TREE);
    page[24..32].copy_from_slice(&(5 * PAGE as u64).to_le_bytes());
    page[42..44].copy_from_slice(&(units as u16).to_le_bytes());
    let crc = crc32c(u32::MAX, &page[4..]);
    page[..4].copy_from_slice(&crc.to_le_bytes());
    let named = PageRef { page: 5, units: units as u8, apart: false, crc };
    let _ = examine_page(&page, &TREE, named);
    assert!(examine_page(&page, &[8; 16], named).is_err(), "a page of another tree");
    assert!(examine_page(&page, &TREE, PageRef { crc: !crc, ..named }).is_err(), "another version");
    assert!(examine_page(data, &TREE, named).is_err(), "a page without a header");
    let mut root = data.to_vec();
    root.resize(ROOT_BYTES, 0);
    root[4..9].copy_from_slice(b"SPTR\x01");
    let crc = crc32c(u32::MAX, &root[4..]);
    root[..4].copy_from_slice(&crc.to_le_bytes());
    if let Ok(r) = Root::decode(&root) {
        assert_eq!(Root::decode(&r.encode()).expect("its own encoding"), r);
    }
}));
