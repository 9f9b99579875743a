//! What the tree costs: `cargo run --release -p spirula-tree --example cost -- [KEYS] [CACHE_MIB]`,
//! over a file in /var/tmp that is removed afterwards. Prints CPU per changed key, write
//! amplification, look-ups, scans.

#![allow(clippy::disallowed_methods, reason = "it measures")]

use spirula_tree::{Options, PageSpace, Root, Tree};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CHUNK: u64 = 1 << 20;
const BATCH: usize = 16_384;

struct Disk {
    file: File,
    chunks: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
}

impl PageSpace for Disk {
    fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.file.read_exact_at(buf, at)
    }

    fn write(&self, at: u64, bufs: &[&[u8]]) -> io::Result<()> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        if let [one] = bufs {
            self.file.write_all_at(one, at)
        } else {
            self.file.write_all_at(&bufs.concat(), at)
        }
    }

    fn flush(&self) -> io::Result<()> {
        // The device's speed is not what is measured here.
        Ok(())
    }

    fn grow(&self, _adjoining: usize) -> Vec<(u64, u64)> {
        let n = self.chunks.fetch_add(1, Ordering::Relaxed);
        let grown = self.file.set_len((n + 1) * CHUNK);
        grown.map_or_else(|_| Vec::new(), |()| vec![(n * CHUNK, CHUNK)])
    }

    fn release(&self, _at: u64, _bytes: u64) {}
}

fn spread(n: u64) -> u64 {
    let n = (n ^ n >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (n ^ n >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// As an onode's: pool, hash, empty namespace, name, snapshot; about 60 bytes.
fn key(n: u64) -> Vec<u8> {
    let hash = (spread(n) >> 32) as u32;
    let name = format!("benchmark_data_host_12345_object{n:08}");
    [
        &b"O\x80\0\0\0\0\0\0\x01"[..],
        &hash.to_be_bytes(),
        &[0, 0],
        name.as_bytes(),
        &[0, 0, 2],
        &[255; 7],
        &[254],
    ]
    .concat()
}

fn value(n: u64) -> Vec<u8> {
    vec![n as u8; 100 + (spread(n) % 300) as usize]
}

/// CPU seconds of this process, and those of them in its own code, by the clock's ticks.
fn cpu() -> (f64, f64) {
    let schedstat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let all =
        schedstat.split(' ').next().and_then(|n| n.parse::<f64>().ok()).unwrap_or_default() / 1e9;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let own = stat
        .rsplit(')')
        .next()
        .and_then(|s| s.split(' ').nth(12))
        .and_then(|n| n.parse::<f64>().ok());
    (all, own.unwrap_or_default() / 100.0)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let keys: u64 = args.next().map_or(Ok(1_000_000), |a| a.parse())?;
    let cache: usize = args.next().map_or(Ok(64), |a| a.parse())? << 20;
    let path = format!("/var/tmp/spirula-tree-bench-{}", std::process::id());
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    let zero = || AtomicU64::new(0);
    let disk = Arc::new(Disk { file, chunks: zero(), reads: zero(), writes: zero() });
    let options = Options { uuid: [1; 16], chunk: CHUNK as u32, cache };
    let tree = Tree::create(disk.clone(), &options)?;
    let mut root: Option<Root> = None;
    let mut seed = 1u64;
    let mut commit = |tree: &Tree, numbers: &mut dyn Iterator<Item = u64>, salt: u64| {
        let mut batch: Vec<_> = numbers.map(|n| (key(n), Some(value(n + salt)))).collect();
        batch.sort();
        batch.dedup_by(|a, b| a.0 == b.0);
        let bytes: usize =
            batch.iter().map(|(k, v)| k.len() + v.as_ref().map_or(0, Vec::len)).sum();
        let (start, cpu0) = (Instant::now(), cpu());
        let done = tree.commit(&batch, |r| {
            root = Some(r.clone());
            Ok(())
        });
        let cpu = cpu();
        done.map(|()| {
            (batch.len(), bytes, start.elapsed().as_secs_f64(), (cpu.0 - cpu0.0, cpu.1 - cpu0.1))
        })
    };
    let start = Instant::now();
    let (mut n, mut load_cpu) = (0, 0.0);
    while n < keys {
        let end = (n + BATCH as u64).min(keys);
        load_cpu += commit(&tree, &mut (n..end), 0)?.3.0;
        n = end;
    }
    println!(
        "loaded {keys} keys in {:.1} s, {:.2} us CPU each",
        start.elapsed().as_secs_f64(),
        load_cpu / keys as f64 * 1e6
    );
    println!("{:?}", tree.stats());

    let (mut count, mut bytes, mut wall, mut used, mut own) = (0, 0, 0.0, 0.0, 0.0);
    let (before, writes, reads) = (
        tree.stats().written_bytes,
        disk.writes.load(Ordering::Relaxed),
        disk.reads.load(Ordering::Relaxed),
    );
    for round in 1..=20 {
        let mut random = (0..BATCH).map(|_| {
            seed = seed.wrapping_add(1);
            spread(seed) % keys
        });
        let (c, b, w, u) = commit(&tree, &mut random, round)?;
        (count, bytes, wall, used, own) = (count + c, bytes + b, wall + w, used + u.0, own + u.1);
    }
    let stats = tree.stats();
    let written = stats.written_bytes - before;
    println!(
        "random changes: {:.2} us CPU, {:.2} of it in user mode, {:.2} us each; {:.1} bytes \
            written per byte changed; {:.0} KiB a write; {:.2} reads each",
        used / count as f64 * 1e6,
        own / count as f64 * 1e6,
        wall / count as f64 * 1e6,
        written as f64 / bytes as f64,
        written as f64 / 1024.0 / (disk.writes.load(Ordering::Relaxed) - writes) as f64,
        (disk.reads.load(Ordering::Relaxed) - reads) as f64 / count as f64,
    );
    println!("{stats:?}");

    let root = root.ok_or("no commit")?;
    let start = Instant::now();
    let tree = Tree::open(disk.clone(), root, &options)?;
    println!("opened in {:.2} ms", start.elapsed().as_secs_f64() * 1e3);
    for (what, range) in [
        ("uncached", keys),
        ("uncached again", keys),
        ("4000 keys", 4000),
        ("4000 keys again", 4000),
    ] {
        let wanted: Vec<_> = (0..200_000u64).map(|i| key(spread(i + 77) % range)).collect();
        let (reads, start) = (disk.reads.load(Ordering::Relaxed), cpu().0);
        for k in &wanted {
            tree.get(k)?.ok_or("a key is missing")?;
        }
        let each = (cpu().0 - start) / wanted.len() as f64;
        let reads = (disk.reads.load(Ordering::Relaxed) - reads) as f64 / wanted.len() as f64;
        println!("get, {what}: {:.2} us CPU, {reads:.2} reads", each * 1e6);
    }
    tree.set_cache_budget(1 << 30);
    for what in ["cold", "cached", "cached again"] {
        let start = cpu().0;
        let n = tree.range(b"", None).take(100_000).filter(Result::is_ok).count();
        println!(
            "scan of 100k, {what}: {:.2} M pairs per second of CPU",
            n as f64 / (cpu().0 - start) / 1e6
        );
    }
    let start = Instant::now();
    let check = tree.check();
    println!(
        "check: {} pages, {} problems, {:.1} s",
        check.pages,
        check.problems.len(),
        start.elapsed().as_secs_f64()
    );
    Ok(())
}
