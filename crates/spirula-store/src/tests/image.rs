//! Images of stores of released format versions: they open, are sound, and hold what they
//! held. `SPIRULA_WRITE_IMAGE=1` writes the image of the present version, once per version.

use super::layers::{one, snap};
use super::model::{Model, pattern, random_txn};
use super::sim::{Disk, Image, Rng, World};
use super::{create_single, open, sound, tiny};
use crate::tools::{check, for_each_object};
use crate::{BLOCK, Store, StoreOptions};
use spirula_encoding::crc::crc32c;
use spirula_types::transaction::{ObjectOp, Transaction};
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
        let sum = |pairs: &[(bytes::Bytes, bytes::Bytes)]| {
            pairs.iter().fold(u32::MAX, |c, (k, v)| crc32c(crc32c(c, k), v))
        };
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

/// Clones of clones of an object whose map is in segments. What is written compresses.
fn layered_txn(rng: &mut Rng, model: &Model) -> Transaction {
    let (o, from) = (snap(1, rng.below(6)), snap(1, rng.below(6)));
    if !model.objects.contains_key(&from) || rng.below(9) > 5 {
        let len = (1 + rng.below(40)) * BLOCK;
        return one(
            &o,
            ObjectOp::Write {
                offset: rng.below(150) * BLOCK,
                data: pattern(3 * rng.below(999), len as usize),
            },
        );
    }
    match rng.below(9) {
        0 => one(&o, ObjectOp::Remove),
        1 => one(
            &o,
            ObjectOp::CloneRange { from, offset: 9 * BLOCK, length: 20 * BLOCK, to: 30 * BLOCK },
        ),
        2 => one(&o, ObjectOp::Zero { offset: rng.below(100) * BLOCK, length: 9 * BLOCK }),
        n => {
            let mut t = one(&o, ObjectOp::CloneFrom(from.clone()));
            if n == 3 && o != from {
                t.object(&from, ObjectOp::Remove);
            }
            t
        }
    }
}

/// A store written before layers said themselves whose names they know, with a journal to replay:
/// it opens, what was in it is as it was, and it goes on among layers and objects of the newer
/// form.
#[test]
fn a_store_with_layers_of_the_older_form_goes_on() {
    let opts = StoreOptions { size: 6 << 20, ..tiny() };
    let image = path("layers-1.zst");
    let (mut rng, mut model) = (Rng(5), Model::default());
    let world = create_single(&opts);
    let mut store = open(&world, &opts).unwrap();
    for step in 0..120 {
        if step == 80 {
            store.close().unwrap();
            store = open(&world, &opts).unwrap();
        }
        let t = layered_txn(&mut rng, &model);
        store.submit(&t).unwrap();
        model.apply(&t);
    }
    store.flush().unwrap();
    if std::env::var_os("SPIRULA_WRITE_IMAGE").is_some() {
        let device = world.image().devices.remove(0);
        std::fs::write(&image, zstd::encode_all(device.bytes().as_slice(), 19).unwrap()).unwrap();
    }
    drop(store);
    let device = zstd::decode_all(std::fs::File::open(&image).unwrap()).unwrap();
    assert_eq!(
        u64::from_le_bytes(device[12..20].try_into().unwrap()),
        31,
        "feature bits of the older program"
    );
    let world = World::from_image(Image { devices: vec![Disk::of(&device)] });
    let mut store = open(&world, &opts).unwrap();
    let told = |store: &Store| {
        (0..6).filter_map(|n| store.onode(&snap(1, n)).unwrap()).filter(|o| o.told).count()
    };
    assert!(told(&store) > 2, "few objects of the image lie over layers");
    model.check(&mut store, "opened");
    sound(&store, "opened");
    for step in 0..150 {
        if step % 40 == 39 {
            store.close().unwrap();
            store = open(&world, &opts).unwrap();
        }
        let t = layered_txn(&mut rng, &model);
        store.submit(&t).unwrap();
        model.apply(&t);
        model.check(&mut store, &format!("step {step}"));
    }
    sound(&store, "went on");
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
