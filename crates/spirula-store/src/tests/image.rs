//! Images of stores of released format versions: they open, are sound, and hold what they
//! held. `SPIRULA_WRITE_IMAGE=1` writes the image of the present version, once per version.

use super::model::{Model, random_txn};
use super::sim::{Disk, Image, Rng, World};
use super::{create_single, open, tiny};
use crate::tools::{check, for_each_object};
use crate::{Store, StoreOptions};
use spirula_encoding::crc::crc32c;
use std::path::PathBuf;

fn path(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/images")).join(name)
}

/// All content, a line each.
pub(crate) fn content(store: &Store) -> String {
    let mut text = String::new();
    for_each_object(store, |o| {
        let data = store.read_blocking(o, 0, u64::MAX)?.unwrap();
        let attrs = store.attrs(o)?.unwrap();
        let omap = store.omap_range(o, None, b"", usize::MAX, usize::MAX)?.unwrap().pairs;
        let sum =
            |pairs: &[(bytes::Bytes, bytes::Bytes)]| pairs.iter().fold(u32::MAX, |c, (k, v)| crc32c(crc32c(c, k), v));
        text += &format!(
            "{o} {} bytes {:08x}, {} attributes {:08x}, {} pairs {:08x}, header {:08x}\n",
            data.len(),
            crc32c(u32::MAX, &data),
            attrs.len(),
            sum(&attrs),
            omap.len(),
            sum(&omap),
            crc32c(u32::MAX, &store.omap_header(o)?.unwrap())
        );
        Ok(())
    })
    .unwrap();
    for (key, value) in store.meta_range(b"").unwrap() {
        text += &format!("record {} {:08x}\n", key.escape_ascii(), crc32c(u32::MAX, &value));
    }
    for pg in store.logged_pgs().unwrap() {
        for (version, entry) in store.log_entries(pg).unwrap() {
            text += &format!("log {pg} {version} {:08x}\n", crc32c(u32::MAX, &entry));
        }
    }
    text
}

fn options() -> StoreOptions {
    StoreOptions { size: 2 << 20, ..tiny() }
}

#[test]
fn image_of_format_2_opens_is_sound_and_holds_what_it_held() {
    let opts = options();
    let (image, expected) = (path("format-2.zst"), path("format-2.txt"));
    if std::env::var_os("SPIRULA_WRITE_IMAGE").is_some() {
        let world = create_single(&opts);
        let mut store = open(&world, &opts).unwrap();
        let (mut rng, mut model) = (Rng(2), Model::default());
        for step in 0..90 {
            let txn = random_txn(&mut rng, &model, step + 1, false);
            if store.submit(txn.clone()).is_ok() {
                model.apply(&txn);
            }
        }
        store.flush().unwrap();
        // As after a kill: with a journal to replay.
        let device = world.image().devices.remove(0);
        std::fs::create_dir_all(image.parent().unwrap()).unwrap();
        std::fs::write(&image, zstd::encode_all(device.bytes().as_slice(), 19).unwrap()).unwrap();
        std::fs::write(&expected, content(&store)).unwrap();
    }
    let device = zstd::decode_all(std::fs::File::open(&image).unwrap()).unwrap();
    let world = World::from_image(Image { devices: vec![Disk::of(&device)] });
    let store = open(&world, &opts).unwrap();
    // An older program, which does not know of layers, refuses it from now on.
    let bits = |bytes: &[u8]| u64::from_le_bytes(bytes[12..20].try_into().unwrap());
    assert_eq!((bits(&device) & 8, bits(&world.image().devices[0].bytes()) & 8), (0, 8));
    assert_eq!(check(&store, true).unwrap().problems, Vec::<String>::new());
    assert_eq!(content(&store), std::fs::read_to_string(&expected).unwrap());
    store.close().unwrap();
    let store = open(&world, &opts).unwrap();
    assert_eq!(content(&store), std::fs::read_to_string(&expected).unwrap(), "after a checkpoint");
}
