//! On real files, with the real KV.

use super::IDENTITY;
use super::model::{Model, object, pattern, random_txn};
use super::sim::Rng;
use crate::{Io, Prepare, Result, Store, StoreError, StoreOptions};
use spirula_buffer::PayloadPool;
use spirula_types::transaction::{MetaOp, ObjectOp, Transaction};
use spirula_types::{EVersion, PgId};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir =
            std::env::temp_dir().join(format!("spirula-store-{}-{n}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Self(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn small() -> StoreOptions {
    let pool = PayloadPool::new(8 << 20);
    StoreOptions {
        size: 64 << 20,
        journal_size: 4 << 20,
        cache_bytes: 1 << 20,
        kept_bytes: 1 << 20,
        pool,
        io: Io::Threads,
    }
}

fn create(dir: &Path, opts: &StoreOptions) {
    Store::create(dir, IDENTITY.fsid, IDENTITY.osd_uuid, IDENTITY.osd_id, opts).unwrap();
}

fn open(dir: &Path, opts: &StoreOptions) -> Result<Store> {
    Store::open(dir, Some(IDENTITY), opts, Box::new(|_| ()), Box::new(|e| panic!("{e}")))
}

#[test]
fn real_store_matches_the_model_across_clean_and_unclean_reopens() {
    crate::io::all().into_iter().for_each(matches_the_model);
}

fn matches_the_model(io: Io) {
    let dir = Dir::new("model");
    let opts = StoreOptions { io, ..small() };
    create(&dir.0, &opts);
    let mut rng = Rng(11);
    let mut model = Model::default();
    for round in 0..6 {
        let mut store = open(&dir.0, &opts).unwrap();
        model.check(&mut store, &format!("opened, round {round}"));
        for step in 0..300 {
            let txn = random_txn(&mut rng, &model, round * 300 + step + 1, true);
            store.submit(txn.clone()).unwrap();
            model.apply(&txn);
        }
        model.check(&mut store, &format!("worked, round {round}"));
        if round % 2 == 0 {
            store.close().unwrap();
        } else {
            // Dropped: what was submitted is in the journal only.
            store.flush().unwrap();
        }
    }
}

#[test]
fn churn_of_hundreds_of_megabytes_with_checkpoints_under_way_keeps_every_byte() {
    crate::io::all().into_iter().for_each(churn);
}

fn churn(io: Io) {
    let dir = Dir::new("churn");
    let opts = StoreOptions { io, ..small() };
    create(&dir.0, &opts);
    let mut store = open(&dir.0, &opts).unwrap();
    let mut rng = Rng(3);
    let mut latest = vec![(0u64, 0usize); 40];
    let mut written = 0;
    let mut n = 0;
    while written < 200 << 20 {
        n += 1;
        let i = rng.below(40);
        let len = [4096, 4096, 30_000, 200_000, 1 << 20][rng.below(5) as usize];
        let mut t = Transaction::default();
        t.object(&object(i), ObjectOp::Truncate { size: 0 });
        t.object(&object(i), ObjectOp::Write { offset: 0, data: pattern(n, len) });
        let pg = PgId::new(1, i as u32);
        t.meta.push(MetaOp::LogAppend { pg, version: EVersion::new(1, n), entry: pattern(n, 100) });
        t.meta.push(MetaOp::LogTrim { pg, to: EVersion::new(1, n.saturating_sub(500)) });
        store.submit(t).unwrap();
        latest[i as usize] = (n, len);
        written += len;
        if n % 64 == 0 {
            let i = rng.below(40);
            let (seed, len) = latest[i as usize];
            if seed > 0 {
                assert_eq!(
                    store.read_blocking(&object(i), 0, u64::MAX).unwrap().unwrap(),
                    pattern(seed, len)
                );
            }
        }
    }
    store.close().unwrap();
    let store = open(&dir.0, &opts).unwrap();
    for (i, (seed, len)) in latest.iter().enumerate() {
        if *seed > 0 {
            assert_eq!(
                store.read_blocking(&object(i as u64), 0, u64::MAX).unwrap().unwrap(),
                pattern(*seed, *len)
            );
        }
    }
    // The KV does not keep what was trimmed.
    let kv: u64 = store.statfs().metadata;
    assert!(kv < 16 << 20, "{kv} bytes of metadata");
}

#[test]
fn store_is_not_opened_twice_and_not_created_over_something() {
    let dir = Dir::new("lock");
    let opts = small();
    create(&dir.0, &opts);
    let store = open(&dir.0, &opts).unwrap();
    let e = open(&dir.0, &opts).err().unwrap().to_string();
    assert!(e.contains("in use by another process"), "{e}");
    drop(store);
    let again = Store::create(&dir.0, IDENTITY.fsid, IDENTITY.osd_uuid, IDENTITY.osd_id, &opts);
    assert!(matches!(again, Err(StoreError::Refused { .. })), "{again:?}");
    open(&dir.0, &opts).unwrap().close().unwrap();
}

#[test]
fn prepare_overwrites_nothing_but_what_it_is_told_to() {
    let dir = Dir::new("prepare");
    std::fs::create_dir_all(&dir.0).unwrap();
    let disk = dir.0.join("disk");
    let journal = dir.0.join("ssd");
    let make = |path: &Path, at: u64, what: &[u8]| {
        let f = std::fs::File::create(path).unwrap();
        f.set_len(16 << 20).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&f, what, at).unwrap();
    };
    let prepare = |force: &[&Path]| {
        let p = Prepare {
            path: disk.clone(),
            journal: Some(journal.clone()),
            meta: None,
            size: None,
            journal_size: None,
            meta_size: None,
            identity: IDENTITY,
            force: force.iter().map(|p| p.to_path_buf()).collect(),
        };
        p.run()
    };
    make(&journal, 0, b"");
    for (at, bytes, word) in [
        (1080u64, &b"\x53\xef"[..], "ext2/3/4"),
        (0, b"XFSB", "xfs"),
        (0x1_0040, b"_BHRfS_M", "btrfs"),
        (536, b"LVM2 001", "LVM"),
        (512, b"EFI PART", "GPT"),
        (510, b"\x55\xaa", "MBR"),
        (0, b"bluestore block device", "BlueStore"),
        (700_000, b"x", "its first MiB is not empty"),
        ((16 << 20) - 5, b"x", "its last MiB is not empty"),
    ] {
        make(&disk, at, bytes);
        let before = std::fs::read(&disk).unwrap();
        let e = prepare(&[&journal]).unwrap_err().to_string();
        assert!(e.contains(word) && e.contains("--force"), "{e}");
        assert!(std::fs::read(&disk).unwrap() == before, "written");
        assert!(
            std::fs::read(&journal).unwrap().iter().all(|b| *b == 0),
            "the journal was written"
        );
    }
    let made = prepare(&[&disk]).unwrap();
    assert_eq!(
        (made.data_size, made.journal_size),
        ((16 << 20) - (128 << 10), (16 << 20) - (128 << 10))
    );
    let e = prepare(&[]).unwrap_err().to_string();
    assert!(e.contains("holds the main device of osd.3"), "{e}");
    let e = prepare(&[&disk]).unwrap_err().to_string();
    assert!(e.contains("holds the journal device of osd.3"), "{e}");
    // Not even by force while somebody has it.
    let held = std::fs::File::open(&disk).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let e = prepare(&[&disk, &journal]).unwrap_err().to_string();
    assert!(e.contains("in use"), "{e}");
    drop(held);
    prepare(&[&disk, &journal]).unwrap();
}

#[test]
fn missing_files_and_interrupted_creation_are_told_apart() {
    let opts = small();
    for name in ["journal", "block"] {
        let dir = Dir::new("missing");
        create(&dir.0, &opts);
        std::fs::remove_file(dir.0.join(name)).unwrap();
        let e = open(&dir.0, &opts).err().unwrap().to_string();
        assert!(e.contains(name) && e.contains("is missing"), "{e}");
        assert!(!dir.0.join(name).exists());
    }
    let dir = Dir::new("interrupted");
    std::fs::create_dir_all(&dir.0).unwrap();
    std::fs::write(dir.0.join("creating"), "").unwrap();
    std::fs::write(dir.0.join("journal"), "half").unwrap();
    let e = open(&dir.0, &opts).err().unwrap().to_string();
    assert!(e.contains("creation was interrupted"), "{e}");
    create(&dir.0, &opts);
    open(&dir.0, &opts).unwrap();
}

/// What was deleted does not keep its space in the file.
#[test]
fn deleted_data_goes_back_to_the_file_system() {
    use std::os::unix::fs::MetadataExt;
    let dir = Dir::new("holes");
    let opts = small();
    create(&dir.0, &opts);
    let taken = || std::fs::metadata(dir.0.join("block")).unwrap().blocks() * 512;
    let mut store = open(&dir.0, &opts).unwrap();
    let mut t = Transaction::default();
    for n in 0..8 {
        t.object(&object(n), ObjectOp::Write { offset: 0, data: pattern(n, 4 << 20) });
    }
    store.submit(&t).unwrap();
    store.flush().unwrap();
    assert!(taken() >= 32 << 20, "{} bytes", taken());
    t.objects.iter_mut().for_each(|u| u.ops = vec![ObjectOp::Remove]);
    store.submit(&t).unwrap();
    store.flush().unwrap();
    for _ in 0..2400 {
        if taken() < 8 << 20 {
            return;
        }
        store.congested();
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("{} bytes are still taken", taken());
}
