//! Drives one store directly, beside raw device figures of the same run, and prints rates,
//! CPU per operation, write amplification and the ratios to the raw device.
//!
//! `cargo bench -p spirula-store -- DIR [SECONDS] [NAME-FILTER] [OBJECTS]`
//!
//! A small write is a PG's transaction: 4 KiB of data, 200 bytes of attribute, a PG info
//! record of 200 bytes, a log entry of 150 bytes, a log trim. CPU is that of the whole
//! process (all threads, user and system); device bytes are what the process caused to be
//! written (`/proc/self/io`). Raw figures: 4 KiB O_DIRECT|O_DSYNC writes over a file that
//! was written before (as the store's devices were), by 1 and by 16 threads; 4 KiB O_DIRECT reads
//! at random places of a file; 4 MiB O_DIRECT writes by 4 threads. With OBJECTS, that many empty
//! objects are made and the cost of lookups and of opening is shown as their number grows; with the
//! filter `omaps` it is the number of pairs in 1,000 objects, and the store is killed before it is
//! opened and listed. It is filled for SECONDS at most (0: until all is there); with `--resume` at
//! the end, filling goes on where it was stopped, whatever stopped it. Else DIR is emptied.
//! `SPIRULA_BENCH_GIB` in the environment is the size of its store (6). `SPIRULA_BENCH_OBJECTS`:
//! how many objects are cloned (64). `SPIRULA_BENCH_IO=uring` in the environment has the store use
//! io_uring.

#![allow(clippy::disallowed_methods, reason = "it measures")]
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use bytes::Bytes;
use spirula_buffer::PayloadPool;
use spirula_store::{
    Algorithm, CompressionMode, IoChoice, Packing, PoolOptions, Read, Store, StoreOptions,
};
use spirula_types::transaction::{MetaOp, ObjectOp, Transaction};
use spirula_types::{EVersion, HObject, PgId, Uuid};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// As the program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// PGs the transactions are spread over.
const PGS: u64 = 64;
/// Data space of the store, GiB.
const STORE: u64 = 6;
/// Log entries a PG keeps.
const LOG: u64 = 250;

fn cpu_by_thread() -> BTreeMap<String, u64> {
    let mut out = BTreeMap::new();
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let comm = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let stat = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        let ns: u64 = stat.split(' ').next().and_then(|s| s.parse().ok()).unwrap_or(0);
        *out.entry(comm.trim().to_owned()).or_default() += ns;
    }
    out
}

fn written() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    io.lines().find_map(|l| l.strip_prefix("write_bytes: ")?.parse().ok()).unwrap_or(0)
}

fn read_bytes() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    io.lines().find_map(|l| l.strip_prefix("read_bytes: ")?.parse().ok()).unwrap_or(0)
}

fn rss() -> u64 {
    let s = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    s.lines()
        .find_map(|l| l.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse().ok())
        .unwrap_or(0)
}

struct Bench {
    store: Store,
    commits: Receiver<u64>,
    durable: u64,
    version: u64,
    rng: u64,
    data: Bytes,
    time: Duration,
    filter: String,
    /// CPU of the last run, microseconds per operation.
    cpu: f64,
}

fn name(kind: &str, n: u64) -> HObject {
    HObject::head(1, Bytes::new(), Bytes::new(), Bytes::from(format!("bench_{kind}_{n:016}")))
}

impl Bench {
    fn random(&mut self, below: u64) -> u64 {
        self.rng = self
            .rng
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.rng >> 33) % below
    }

    fn txn(&mut self, o: &HObject, offset: u64, len: usize) -> Transaction {
        self.version += 1;
        let v = self.version;
        let pg = PgId::new(1, (v % PGS) as u32);
        let at = (v as usize * 64) % (self.data.len() - len + 1) / 4096 * 4096;
        let mut t = Transaction::default();
        t.object(o, ObjectOp::Write { offset, data: self.data.slice(at..at + len) });
        t.object(o, ObjectOp::SetAttrs(vec![(Bytes::from_static(b"_"), self.data.slice(..200))]));
        t.meta.push(MetaOp::Set {
            key: Bytes::from(format!("info.{}", pg.seed)),
            value: self.data.slice(..200),
        });
        t.meta.push(MetaOp::LogAppend {
            pg,
            version: EVersion::new(1, v),
            entry: self.data.slice(..150),
        });
        if v.is_multiple_of(PGS * 10) || v > LOG * PGS && (v / PGS).is_multiple_of(50) {
            t.meta.push(MetaOp::LogTrim { pg, to: EVersion::new(1, v.saturating_sub(LOG * PGS)) });
        }
        t
    }

    /// Returns operations per second.
    fn run(
        &mut self,
        title: &str,
        unit: u64,
        depth: u64,
        mut each: impl FnMut(&mut Self, u64) -> bool,
    ) -> f64 {
        if !title.contains(&self.filter) {
            return 0.0;
        }
        let (cpu, bytes, start) = (cpu_by_thread(), written(), Instant::now());
        let mut n = 0;
        let mut worst = Duration::ZERO;
        while start.elapsed() < self.time {
            let t = Instant::now();
            if !each(self, n) {
                break;
            }
            worst = worst.max(t.elapsed());
            n += 1;
            while self.store.last_seq() - self.durable >= depth {
                self.durable = self.commits.recv().expect("store stopped");
            }
        }
        self.store.flush().expect("flush");
        let secs = start.elapsed().as_secs_f64();
        let after = cpu_by_thread();
        let per = |name: &str| {
            (after.get(name).unwrap_or(&0) - cpu.get(name).unwrap_or(&0)) as f64 / 1e3 / n as f64
        };
        let total: f64 = after.keys().map(|k| per(k)).sum();
        self.cpu = total;
        let threads: Vec<String> = after.keys().map(|k| format!("{k} {:.1}", per(k))).collect();
        println!(
            "{title:32} {:8.0}/s {:8.1} MB/s  {:7.1} us CPU/op ({})  {:4.2} device/user  longest \
                call {:.1} ms  RSS {} MB",
            n as f64 / secs,
            (n * unit) as f64 / secs / 1e6,
            total,
            threads.join(", "),
            (written() - bytes) as f64 / (n * unit) as f64,
            worst.as_secs_f64() * 1e3,
            rss() / 1024,
        );
        n as f64 / secs
    }
}

/// A page-aligned part of a buffer.
fn aligned(buf: &mut Vec<u8>, len: usize) -> &mut [u8] {
    buf.resize(len + 4096, 7);
    let skip = buf.as_ptr().align_offset(4096);
    &mut buf[skip..skip + len]
}

/// Writes what a new store has not written of a file, as a used device has it: on a sparse
/// file the first write to a place costs the file system's metadata, too.
fn write_once(path: &Path) {
    let file = direct(path, false);
    let mut buf = Vec::new();
    let buf = aligned(&mut buf, 1 << 20);
    let end = file.metadata().unwrap().len();
    let mut at = 1 << 20;
    buf.fill(0);
    while at < end {
        let n = (end - at).min(buf.len() as u64) as usize;
        file.write_all_at(&buf[..n], at).unwrap();
        at += n as u64;
    }
    file.sync_all().unwrap();
}

fn direct(path: &Path, sync: bool) -> File {
    let flags = 0o40000 | if sync { 0o10000 } else { 0 };
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(flags)
        .open(path)
        .unwrap()
}

/// Operations per second of `threads`, each of which does `op` (thread, count) until the time is
/// up.
fn raw(
    time: Duration,
    threads: u64,
    op: impl Fn(u64, u64, &File, &mut [u8]) + Sync,
    file: &File,
    len: usize,
) -> f64 {
    let start = Instant::now();
    let total: u64 = std::thread::scope(|s| {
        let all: Vec<_> = (0..threads)
            .map(|t| {
                let op = &op;
                s.spawn(move || {
                    let mut buf = Vec::new();
                    let buf = aligned(&mut buf, len);
                    let mut n = 0;
                    while start.elapsed() < time {
                        op(t, n, file, buf);
                        n += 1;
                    }
                    n
                })
            })
            .collect();
        all.into_iter().map(|t| t.join().unwrap()).sum()
    });
    total as f64 / start.elapsed().as_secs_f64()
}

/// What the device itself gives, per second.
struct Raw {
    sync: [f64; 2],
    read: f64,
    large: f64,
}

fn raw_device(dir: &Path, time: Duration) -> Raw {
    const SIZE: u64 = 1 << 30;
    let path = dir.join("raw");
    let file = direct(&path, false);
    let mut buf = Vec::new();
    let buf = aligned(&mut buf, 4 << 20);
    for i in 0..SIZE >> 22 {
        file.write_all_at(buf, i << 22).unwrap();
    }
    file.sync_all().unwrap();
    let place = |t: u64, n: u64| {
        let x = (t << 40 | n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20 & (SIZE - 4096)
    };
    let read =
        raw(time, 1, |t, n, f, b| f.read_exact_at(b, place(t, n) & !4095).unwrap(), &file, 4096);
    let large = raw(
        time,
        4,
        |t, n, f, b| f.write_all_at(b, (t << 28) + ((n % 64) << 22)).unwrap(),
        &file,
        4 << 20,
    );
    let synced = direct(&path, true);
    let log = |t: u64, n: u64, f: &File, b: &mut [u8]| {
        f.write_all_at(b, (t << 26) + ((n % 16384) << 12)).unwrap()
    };
    let sync = [1, 16].map(|threads| raw(time, threads, log, &synced, 4096));
    std::fs::remove_file(&path).unwrap();
    println!(
        "raw device: 4 KiB sync writes {:.0}/s by one, {:.0}/s by 16; 4 KiB reads {:.0}/s ({:.1} \
            us); 4 MiB writes {:.0} MB/s",
        sync[0],
        sync[1],
        read,
        1e6 / read,
        large * 4.194304
    );
    Raw { sync, read, large }
}

fn ratio(what: &str, ours: f64, raw: Option<f64>) {
    if let Some(raw) = raw {
        println!("    = {:.2} of {what}", ours / raw);
    }
}

/// Clones of objects of 4 MiB whose maps are in pieces: each with the write that makes it, and
/// with the oldest of eight removed as well. Beside a write without.
fn clones(b: &mut Bench) {
    if !b.filter.is_empty() && !b.filter.starts_with("clones") {
        return;
    }
    let objects: u64 = std::env::var("SPIRULA_BENCH_OBJECTS")
        .map_or(64, |s| s.parse().expect("SPIRULA_BENCH_OBJECTS"));
    for n in 0..objects * 1024 {
        let t = b.txn(&name("rewritten", n % objects), (n / objects * 389 % 1024) * 4096, 4096);
        b.store.submit(t).expect("submit");
    }
    b.store.flush().expect("flush");
    while let Ok(seq) = b.commits.try_recv() {
        b.durable = seq;
    }
    let snap = |object: u64, snap: u64| HObject { snap, ..name("rewritten", object) };
    let mut made = vec![0u64; objects as usize];
    let mut plain = 0.0;
    for (title, clone, keep) in [
        ("clones: 4 KiB write without", false, u64::MAX),
        ("clones: clone and 4 KiB write", true, u64::MAX),
        ("clones: 8 kept of each", true, 8),
    ] {
        let mut oldest: Vec<u64> = made.iter().map(|n| n + 1).collect();
        b.run(title, 4096, 16, |b, _| {
            let n = b.random(objects);
            let at = b.random(1024) * 4096;
            let write = b.txn(&name("rewritten", n), at, 4096);
            let mut t = Transaction::default();
            if clone {
                made[n as usize] += 1;
                t.object(&snap(n, made[n as usize]), ObjectOp::CloneFrom(name("rewritten", n)));
            }
            t.objects.extend(write.objects);
            t.meta = write.meta;
            if made[n as usize] >= oldest[n as usize].saturating_add(keep) {
                t.object(&snap(n, oldest[n as usize]), ObjectOp::Remove);
                oldest[n as usize] += 1;
            }
            b.store.submit(t).is_ok()
        });
        match clone {
            true if plain > 0.0 && b.cpu > 0.0 => {
                println!("    = {:.2} of a write's CPU without", b.cpu / plain)
            }
            true => {}
            false => plain = std::mem::take(&mut b.cpu),
        }
    }
}

/// Writes of 4 MiB that compress to about half, compressed by the store's owner, and by another
/// thread beforehand, as an OSD does it: what is left for the owner is the time of the thread that
/// has this program's name.
fn packed(b: &mut Bench) {
    if !"packed".contains(&b.filter) {
        return;
    }
    let (filter, data) = (std::mem::take(&mut b.filter), b.data.clone());
    // Half of each 64 bytes repeats what was there before.
    b.data = data
        .chunks(64)
        .flat_map(|c| [&c[..32.min(c.len())], &data[..32]].concat())
        .take(8 << 20)
        .collect::<Vec<u8>>()
        .into();
    for algorithm in [Algorithm::Snappy, Algorithm::Lz4, Algorithm::Zstd] {
        b.store.set_pool_options(
            1,
            PoolOptions { mode: CompressionMode::Force, algorithm, ..PoolOptions::default() },
        );
        b.run(&format!("packed: {algorithm:?} by the owner"), 4 << 20, 4, |b, n| {
            let t = b.txn(&name("packed", n % 64), 0, 4 << 20);
            b.store.submit(t).is_ok()
        });
        let (jobs, work) = channel::<(Transaction, Packing)>();
        let (send, done) = channel();
        let pack =
            move || work.into_iter().for_each(|(t, packing)| _ = send.send((t, packing.run())));
        let helper =
            std::thread::Builder::new().name("pack".to_owned()).spawn(pack).expect("thread");
        b.run(&format!("packed: {algorithm:?} beforehand"), 4 << 20, 4, |b, n| {
            let t = b.txn(&name("packed", n % 64), 0, 4 << 20);
            let packing = b.store.packing(&t).expect("it is to be compressed");
            jobs.send((t, packing)).expect("send");
            // One is on its way while the next is made.
            n == 0
                || done.recv().is_ok_and(|(t, packed)| b.store.submit_packed(&t, &packed).is_ok())
        });
        drop(jobs);
        helper.join().expect("helper");
    }
    b.store.set_pool_options(1, PoolOptions::default());
    (b.filter, b.data) = (filter, data);
}

/// Objects of 4 KiB to 4 MiB come and go at 85 per cent: what becomes of the space.
fn ageing(dir: &Path, seconds: f64) {
    let opts =
        StoreOptions { size: 2 << 30, pool: PayloadPool::new(64 << 20), ..StoreOptions::default() };
    Store::create(dir, Uuid([1; 16]), Uuid([2; 16]), 0, &opts).expect("create");
    let mut store =
        Store::open(dir, None, &opts, Box::new(|_| ()), Box::new(|e| panic!("{e}"))).expect("open");
    let mut payload = opts.pool.take(4 << 20);
    payload.set_len(4 << 20);
    let data = payload.freeze();
    let mut x = 3u64;
    let mut random = |n: u64| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (x >> 33) % n
    };
    let (mut objects, mut next, mut written) = (Vec::<(u64, u64)>::new(), 0, 0u64);
    let start = Instant::now();
    let mut shown = 0.0;
    while start.elapsed().as_secs_f64() < seconds {
        let s = store.statfs();
        if s.available < s.total * 15 / 100 && !objects.is_empty() {
            let (n, _) = objects.swap_remove(random(objects.len() as u64) as usize);
            let mut t = Transaction::default();
            t.object(&name("age", n), ObjectOp::Remove);
            store.submit(t).expect("remove");
            continue;
        }
        let len = if random(2) == 0 { 4096 << random(5) } else { 4096 << random(11) };
        let mut t = Transaction::default();
        let object = match random(3) {
            // Part of an old object anew.
            0 if !objects.is_empty() => {
                let (n, size) = objects[random(objects.len() as u64) as usize];
                let len = len.min(size);
                let at = random((size - len) / 4096 + 1) * 4096;
                t.object(
                    &name("age", n),
                    ObjectOp::Write { offset: at, data: data.slice(..len as usize) },
                );
                None
            }
            _ => {
                next += 1;
                t.object(
                    &name("age", next),
                    ObjectOp::Write { offset: 0, data: data.slice(..len as usize) },
                );
                Some((next, len))
            }
        };
        if store.submit(t).is_ok() {
            written += len;
            objects.extend(object);
        }
        let elapsed = start.elapsed().as_secs_f64();
        if elapsed - shown >= seconds / 5.0 {
            shown = elapsed;
            let (mut large, mut pieces) = (0, 0);
            for (n, _) in objects.iter().filter(|(_, size)| *size >= 1 << 20) {
                large += 1;
                pieces += store.fragments(&name("age", *n)).expect("fragments").unwrap_or(0);
            }
            println!(
                "ageing: {:5.1} x the space written, {} objects, {:.2} extents per object of 1 to \
                    4 MiB",
                written as f64 / opts.size as f64,
                objects.len(),
                pieces as f64 / f64::from(large.max(1)),
            );
        }
    }
    store.close().expect("close");
}

/// Lookup and opening as objects grow in number.
fn many(dir: &Path, objects: u64) {
    let opts = StoreOptions { size: 8 << 30, cache_bytes: 128 << 20, ..StoreOptions::default() };
    Store::create(dir, Uuid([1; 16]), Uuid([2; 16]), 0, &opts).expect("create");
    let open = || {
        Store::open(dir, None, &opts, Box::new(|_| ()), Box::new(|e| panic!("{e}"))).expect("open")
    };
    let block = File::open(dir.join("block")).expect("block");
    let drop_pages = || {
        block.sync_all().expect("sync");
        rustix::fs::fadvise(&block, 0, None, rustix::fs::Advice::DontNeed).expect("fadvise");
    };
    let mut store = open();
    let (mut made, mut step, mut first) = (0, 10_000.min(objects), None);
    while made < objects {
        let start = Instant::now();
        while made < step {
            let mut t = Transaction::default();
            for _ in 0..100 {
                t.object(
                    &name("many", made.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
                    ObjectOp::SetAttrs(vec![]),
                );
                made += 1;
            }
            store.submit(t).expect("submit");
        }
        let wrote = start.elapsed().as_secs_f64();
        store.close().expect("close");
        drop_pages();
        let start = Instant::now();
        store = open();
        let opened = start.elapsed().as_secs_f64();
        let mut x = 1u64;
        let mut lookup = |store: &Store, count: u64| {
            let start = Instant::now();
            for _ in 0..count {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let o = name("many", ((x >> 33) % made).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                assert!(store.stat(&o).expect("stat").is_some());
            }
            start.elapsed().as_secs_f64() * 1e6 / count as f64
        };
        // The whole path in memory: the same few objects again and again.
        let warm = {
            let names: Vec<HObject> = (0..1000)
                .map(|n| name("many", (n * 7 % made).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
                .collect();
            let all = |rounds| {
                let start = Instant::now();
                (0..rounds).for_each(|_| {
                    names.iter().for_each(|o| assert!(store.stat(o).expect("stat").is_some()))
                });
                start.elapsed().as_secs_f64() * 1e6 / (rounds * 1000) as f64
            };
            all(5);
            all(50)
        };
        // What is not in memory costs a read; the tree's inner pages are in memory.
        let mut cold: Vec<f64> = Vec::new();
        for _ in 0..9 {
            if made <= 100_000 {
                store.close().expect("close");
                store = open();
                lookup(&store, 3);
            } else {
                lookup(&store, 3000);
            }
            drop_pages();
            cold.push(lookup(&store, 100));
        }
        cold.sort_by(f64::total_cmp);
        let cold = cold[4];
        // Any of them, with the memory there is (and the kernel's cache).
        lookup(&store, 20_000);
        let any = lookup(&store, 50_000);
        let (w, c) = *first.get_or_insert((warm, cold));
        println!(
            "{made} objects ({wrote:.1} s): opened in {opened:.3} s; lookup in memory {warm:.2} us \
                ({:.2} of the first), \
             with a read {cold:.1} us ({:.2} of the first), any {any:.1} us; RSS {} MB, {} MB on \
             the device",
            warm / w,
            cold / c,
            rss() / 1024,
            store.statfs().metadata >> 20,
        );
        step = (step * 10).min(objects);
    }
    store.close().expect("close");
}

/// Objects with wide omaps.
const WIDE: u64 = 1000;

fn wide_options() -> StoreOptions {
    StoreOptions { size: 64 << 30, pool: PayloadPool::new(64 << 20), ..StoreOptions::default() }
}

fn wide_key(n: u64) -> Bytes {
    // In no order.
    Bytes::from(format!("{:016x}.{n:08}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// Where in a store of wide omaps it is written how many pairs there are: with each transaction, so
/// that whoever is stopped may go on.
const FILLED: &[u8] = b"filled";

/// Makes a store with so many pairs in [`WIDE`] objects, or goes on with one, for at most so long;
/// says how far it came when all that is durable, and waits to be killed.
fn fill_omaps(dir: &Path, time: Duration, pairs: u64) {
    let opts = wide_options();
    if !dir.join("block").exists() {
        Store::create(dir, Uuid([1; 16]), Uuid([2; 16]), 0, &opts).expect("create");
    }
    let mut store =
        Store::open(dir, None, &opts, Box::new(|_| ()), Box::new(|e| panic!("{e}"))).expect("open");
    let (start, value) = (Instant::now(), Bytes::from(vec![7; 100]));
    let known = store
        .meta(FILLED)
        .expect("read")
        .map(|b| u64::from_le_bytes(b[..].try_into().expect("a number")));
    let mut n = known.unwrap_or(0);
    let (mut shown, mut since) = (n, Instant::now());
    while n < pairs && (time.is_zero() || start.elapsed() < time) {
        let mut t = Transaction::default();
        let end = pairs.min(n + 200);
        let some = (n..end).map(|n| (wide_key(n), value.clone()));
        t.object(&name("wide", n / 200 % WIDE), ObjectOp::OmapSet(some.collect()));
        t.meta.push(MetaOp::Set {
            key: FILLED.into(),
            value: Bytes::copy_from_slice(&end.to_le_bytes()),
        });
        store.submit(t).expect("submit");
        n = end;
        if n - shown >= 1_000_000 {
            let took = since.elapsed().as_secs_f64();
            println!(
                "{n} pairs: {took:.1} s for the last {}, {} MB of metadata, RSS {} MB",
                n - shown,
                store.statfs().metadata >> 20,
                rss() / 1024
            );
            (shown, since) = (n, Instant::now());
        }
    }
    store.flush().expect("flush");
    println!(
        "{FILLED_SAYS}{n} pairs in {WIDE} objects: written in {:.1} s, {} MB of metadata, RSS {} \
            MB",
        start.elapsed().as_secs_f64(),
        store.statfs().metadata >> 20,
        rss() / 1024
    );
    loop {
        std::thread::park();
    }
}

/// How the line begins that says that all is there, or the time is up.
const FILLED_SAYS: &str = "filled: ";

/// Kills who has made such a store, and says how long it takes to open it, and to list 1,000 keys
/// anywhere in it.
fn omaps(dir: &Path, time: Duration, pairs: u64) {
    let mut fill = Command::new(std::env::current_exe().expect("this program"));
    fill.arg(dir)
        .args([&time.as_secs_f64().to_string(), "fill-omaps", &pairs.to_string()])
        .stdout(Stdio::piped());
    let mut fill = fill.spawn().expect("start");
    let filled = BufReader::new(fill.stdout.take().expect("its output"))
        .lines()
        .map(|l| l.expect("a line"))
        .any(|said| {
            println!("{said}");
            said.starts_with(FILLED_SAYS)
        });
    fill.kill().expect("kill");
    fill.wait().expect("its end");
    assert!(filled, "who fills the store has stopped");
    let block = File::open(dir.join("block")).expect("block");
    block.sync_all().expect("sync");
    rustix::fs::fadvise(&block, 0, None, rustix::fs::Advice::DontNeed).expect("fadvise");
    let start = Instant::now();
    let store =
        Store::open(dir, None, &wide_options(), Box::new(|_| ()), Box::new(|e| panic!("{e}")))
            .expect("open");
    println!("opened after kill -9 in {:.3} s", start.elapsed().as_secs_f64());
    let there = store
        .meta(FILLED)
        .expect("read")
        .map_or(0, |b| u64::from_le_bytes(b[..].try_into().expect("a number")));
    if there < pairs {
        println!("{there} of {pairs} pairs are there; the same with --resume goes on");
    }
    let mut x = 1u64;
    let mut took: Vec<f64> = Vec::new();
    let mut found = 0;
    let (read, cpu) = (read_bytes(), cpu_by_thread().values().sum::<u64>());
    for _ in 0..2000 {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (o, after) = (name("wide", (x >> 33) % WIDE), format!("{x:016x}"));
        let start = Instant::now();
        let page = store
            .omap_range(&o, Some(after.as_bytes()), b"", 1000, 1 << 20)
            .expect("listing")
            .expect("object");
        took.push(start.elapsed().as_secs_f64() * 1e3);
        found += page.pairs.len();
    }
    let (read, cpu) = (read_bytes() - read, cpu_by_thread().values().sum::<u64>() - cpu);
    println!(
        "each listing: {:.2} ms of CPU, {} KB read from the device",
        cpu as f64 / 1e6 / took.len() as f64,
        read / 1000 / took.len() as u64
    );
    took.sort_by(f64::total_cmp);
    println!(
        "1,000 keys listed anywhere (on average {} there): half in {:.2} ms, 99 % in {:.2} ms, \
            slowest {:.2} ms; RSS {} MB",
        found / took.len(),
        took[took.len() / 2],
        took[took.len() * 99 / 100],
        took[took.len() - 1],
        rss() / 1024
    );
    let start = Instant::now();
    store.close().expect("close");
    println!("closed in {:.3} s", start.elapsed().as_secs_f64());
}

fn main() {
    // Cargo adds `--bench`.
    let resume = std::env::args().any(|a| a == "--resume");
    let mut args = std::env::args().skip(1).filter(|a| a != "--bench" && a != "--resume");
    let Some(dir) = args.next().map(PathBuf::from) else {
        eprintln!("usage: cargo bench -p spirula-store -- DIR [SECONDS] [NAME-FILTER] [OBJECTS]");
        return;
    };
    let seconds: f64 = args.next().map_or(5.0, |s| s.parse().expect("seconds"));
    let filter = args.next().unwrap_or_default();
    let objects: u64 = args.next().map_or(0, |s| s.parse().expect("objects"));
    let fresh = |name: &str| {
        let dir = dir.join(name);
        if dir.exists() && !resume {
            std::fs::remove_dir_all(&dir).expect("empty the directory");
        }
        std::fs::create_dir_all(&dir).expect("make the directory");
        dir
    };
    match filter.as_str() {
        "omaps" => return omaps(&fresh("omaps"), Duration::from_secs_f64(seconds), objects.max(1)),
        "fill-omaps" => return fill_omaps(&dir, Duration::from_secs_f64(seconds), objects),
        _ => {}
    }
    if objects > 0 {
        many(&fresh("many"), objects);
        return;
    }
    if filter == "ageing" {
        ageing(&fresh("ageing"), seconds);
        return;
    }
    // Part of the bench alone is for profiling: without the raw figures.
    let raw = filter
        .is_empty()
        .then(|| raw_device(&fresh("raw"), Duration::from_secs_f64(seconds.min(2.0))));
    let dir = fresh("store");
    let io: IoChoice = std::env::var("SPIRULA_BENCH_IO")
        .map_or(Ok(IoChoice::Auto), |s| s.parse())
        .expect("SPIRULA_BENCH_IO");
    let io = io.settle().expect("io");
    let gib: u64 =
        std::env::var("SPIRULA_BENCH_GIB").map_or(STORE, |s| s.parse().expect("SPIRULA_BENCH_GIB"));
    let opts = StoreOptions {
        size: gib << 30,
        pool: PayloadPool::new(64 << 20),
        io,
        ..StoreOptions::default()
    };
    println!("io: {io}");
    let start = Instant::now();
    Store::create(&dir, Uuid([1; 16]), Uuid([2; 16]), 0, &opts).expect("create");
    println!("create {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    write_once(&dir.join("block"));
    write_once(&dir.join("journal"));
    let (send, commits) = channel();
    let start = Instant::now();
    let store = Store::open(
        &dir,
        None,
        &opts,
        Box::new(move |s| _ = send.send(s)),
        Box::new(|e| panic!("{e}")),
    );
    println!("open {:.1} ms, RSS {} MB", start.elapsed().as_secs_f64() * 1e3, rss() / 1024);
    let mut payload = opts.pool.take(8 << 20);
    let mut x = 1u64;
    while payload.len() < 8 << 20 {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        payload.extend(&x.to_le_bytes());
    }
    let time = Duration::from_secs_f64(seconds);
    let (store, data) = (store.expect("open"), payload.freeze());
    let mut b =
        Bench { store, commits, durable: 0, version: 0, rng: 1, data, time, filter, cpu: 0.0 };

    let mut objects = 0;
    let rate = b.run("4 KiB new objects, depth 16", 4096, 16, |b, n| {
        objects = n + 1;
        let t = b.txn(&name("small", n), 0, 4096);
        b.store.submit(t).is_ok()
    });
    ratio("raw 4 KiB sync writes by 16", rate, raw.as_ref().map(|r| r.sync[1]));
    let all = objects.max(1);
    let objects = objects.clamp(1, 10_000);
    b.run("4 KiB cached reads", 4096, 1, |b, _| {
        let o = name("small", b.random(objects));
        matches!(b.store.read(&o, 0, 4096), Ok(Read::Ready(d)) if d.len() == 4096)
    });
    // Written out, and the page cache dropped.
    let block = File::open(dir.join("block")).expect("block");
    block.sync_all().expect("sync");
    rustix::fs::fadvise(&block, 0, None, rustix::fs::Advice::DontNeed).expect("fadvise");
    let rate = b.run("4 KiB uncached reads", 4096, 1, |b, _| {
        let o = name("small", b.random(all));
        match b.store.read_uncached(&o, 0, 4096) {
            Ok(Read::NotReady(plan)) => plan.run().is_ok_and(|d| d.len() == 4096),
            _ => false,
        }
    });
    ratio("raw 4 KiB reads", rate, raw.as_ref().map(|r| r.read));
    let rate = b.run("4 KiB overwrites, depth 16", 4096, 16, |b, _| {
        let o = name("small", b.random(objects));
        let t = b.txn(&o, 0, 4096);
        b.store.submit(t).is_ok()
    });
    ratio("raw 4 KiB sync writes by 16", rate, raw.as_ref().map(|r| r.sync[1]));
    let rate = b.run("4 KiB overwrites, depth 1", 4096, 1, |b, _| {
        let o = name("small", b.random(objects));
        let t = b.txn(&o, 0, 4096);
        b.store.submit(t).is_ok()
    });
    ratio("raw 4 KiB sync writes by one", rate, raw.as_ref().map(|r| r.sync[0]));
    for i in 0..64 {
        let t = b.txn(&name("large", i), 0, 4 << 20);
        b.store.submit(t).expect("submit");
    }
    b.store.flush().expect("flush");
    b.run("4 KiB in 4 MiB objects, depth 16", 4096, 16, |b, _| {
        let o = name("large", b.random(64));
        let at = b.random(1024) * 4096;
        let t = b.txn(&o, at, 4096);
        b.store.submit(t).is_ok()
    });
    clones(&mut b);
    packed(&mut b);
    for depth in [4, 16] {
        let rate = b.run(&format!("4 MiB writes, depth {depth}"), 4 << 20, depth, |b, n| {
            let t = b.txn(&name("stream", n % 256), 0, 4 << 20);
            b.store.submit(t).is_ok()
        });
        ratio("raw 4 MiB writes", rate, raw.as_ref().map(|r| r.large));
    }
    b.run(
        "4 MiB reads, waiting",
        4 << 20,
        1,
        |b, n| matches!(b.store.read_blocking(&name("stream", n % 16), 0, 4 << 20), Ok(Some(d)) if d.len() == 4 << 20),
    );
    let start = Instant::now();
    b.store.close().expect("close");
    println!("close {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    let start = Instant::now();
    let store = Store::open(&dir, None, &opts, Box::new(|_| ()), Box::new(|e| panic!("{e}")))
        .expect("open");
    println!(
        "open {:.1} ms, {} objects, RSS {} MB",
        start.elapsed().as_secs_f64() * 1e3,
        store.statfs().objects,
        rss() / 1024
    );
}
