//! Drives one store directly and prints rates, CPU per operation and write amplification.
//!
//! `cargo run --release -p spirula-store --example bench -- DIR [SECONDS] [NAME-FILTER]`
//!
//! A small write is a PG's transaction: 4 KiB of data, 200 bytes of attribute, a PG info
//! record of 200 bytes, a log entry of 150 bytes, a log trim. CPU is that of the whole
//! process (all threads, user and system); device bytes are what the process caused to be
//! written (`/proc/self/io`).

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use bytes::Bytes;
use spirula_buffer::PayloadPool;
use spirula_store::{Read, Store, StoreOptions};
use spirula_types::transaction::{MetaOp, ObjectOp, Transaction};
use spirula_types::{EVersion, HObject, PgId, Uuid};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// PGs the transactions are spread over.
const PGS: u64 = 64;
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

fn rss() -> u64 {
    let s = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    s.lines().find_map(|l| l.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0)
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
}

fn name(kind: &str, n: u64) -> HObject {
    HObject::head(1, Bytes::new(), Bytes::new(), Bytes::from(format!("bench_{kind}_{n:016}")))
}

impl Bench {
    fn random(&mut self, below: u64) -> u64 {
        self.rng = self.rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
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
        t.meta.push(MetaOp::Set { key: Bytes::from(format!("info.{}", pg.seed)), value: self.data.slice(..200) });
        t.meta.push(MetaOp::LogAppend { pg, version: EVersion::new(1, v), entry: self.data.slice(..150) });
        if v.is_multiple_of(PGS * 10) || v > LOG * PGS && (v / PGS).is_multiple_of(50) {
            t.meta.push(MetaOp::LogTrim { pg, to: EVersion::new(1, v.saturating_sub(LOG * PGS)) });
        }
        t
    }

    fn run(&mut self, title: &str, unit: u64, depth: u64, mut each: impl FnMut(&mut Self, u64) -> bool) {
        if !title.contains(&self.filter) {
            return;
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
        let per = |name: &str| (after.get(name).unwrap_or(&0) - cpu.get(name).unwrap_or(&0)) as f64 / 1e3 / n as f64;
        let total: f64 = after.keys().map(|k| per(k)).sum();
        let threads: Vec<String> = after.keys().map(|k| format!("{k} {:.1}", per(k))).collect();
        println!(
            "{title:32} {:8.0}/s {:8.1} MB/s  {:7.1} us CPU/op ({})  {:4.2} device/user  longest call {:.1} ms  RSS {} MB",
            n as f64 / secs,
            (n * unit) as f64 / secs / 1e6,
            total,
            threads.join(", "),
            (written() - bytes) as f64 / (n * unit) as f64,
            worst.as_secs_f64() * 1e3,
            rss() / 1024,
        );
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().expect("usage: bench DIR [SECONDS] [NAME-FILTER]"));
    let seconds: f64 = args.next().map_or(5.0, |s| s.parse().expect("seconds"));
    let filter = args.next().unwrap_or_default();
    let opts = StoreOptions { size: 20 << 30, pool: PayloadPool::new(64 << 20), ..StoreOptions::default() };
    let start = Instant::now();
    Store::create(&dir, Uuid([1; 16]), Uuid([2; 16]), 0, &opts).expect("create");
    println!("create {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    let (send, commits) = channel();
    let start = Instant::now();
    let store = Store::open(&dir, None, &opts, Box::new(move |s| _ = send.send(s)), Box::new(|e| panic!("{e}")));
    println!("open {:.1} ms, RSS {} MB", start.elapsed().as_secs_f64() * 1e3, rss() / 1024);
    let mut payload = opts.pool.take(8 << 20);
    let mut x = 1u64;
    while payload.len() < 8 << 20 {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        payload.extend(&x.to_le_bytes());
    }
    let time = Duration::from_secs_f64(seconds);
    let (store, data) = (store.expect("open"), payload.freeze());
    let mut b = Bench { store, commits, durable: 0, version: 0, rng: 1, data, time, filter };

    let mut objects = 0;
    b.run("4 KiB new objects, depth 16", 4096, 16, |b, n| {
        objects = n + 1;
        let t = b.txn(&name("small", n), 0, 4096);
        b.store.submit(t).is_ok()
    });
    let objects = objects.clamp(1, 10_000);
    b.run("4 KiB cached reads", 4096, 1, |b, _| {
        let o = name("small", b.random(objects));
        matches!(b.store.read(&o, 0, 4096), Ok(Read::Ready(d)) if d.len() == 4096)
    });
    b.run("4 KiB overwrites, depth 16", 4096, 16, |b, _| {
        let o = name("small", b.random(objects));
        let t = b.txn(&o, 0, 4096);
        b.store.submit(t).is_ok()
    });
    b.run("4 KiB overwrites, depth 1", 4096, 1, |b, _| {
        let o = name("small", b.random(objects));
        let t = b.txn(&o, 0, 4096);
        b.store.submit(t).is_ok()
    });
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
    b.run("4 MiB writes, depth 4", 4 << 20, 4, |b, n| {
        let t = b.txn(&name("stream", n % 256), 0, 4 << 20);
        b.store.submit(t).is_ok()
    });
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
    let store = Store::open(&dir, None, &opts, Box::new(|_| ()), Box::new(|e| panic!("{e}"))).expect("open");
    println!(
        "open {:.1} ms, {} objects, RSS {} MB",
        start.elapsed().as_secs_f64() * 1e3,
        store.statfs().objects,
        rss() / 1024
    );
}
