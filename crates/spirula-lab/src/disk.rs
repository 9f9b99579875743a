//! `spirula bench disk`: what devices give, each alone and then all at once; and which of them is
//! fit for a journal.
//!
//! fio does the work where it is installed: its figures are those that the field compares. Else, or
//! with `--engine own`, threads of this process read and write directly (O_DIRECT), one operation
//! each at a time; the queue depth is their number.
//!
//! A directory gets a file of its own, which is removed in the end; it is found and removed by the
//! next run where that was killed. A block device is only read, unless `--destroy` says that what
//! is on it is not wanted any more; then it is this program's alone (O_EXCL and a lock), so that
//! one that is mounted, part of a volume, or has a store in use is refused.
//!
//! It is often root who measures, and a directory may be everybody's. So what is made is made,
//! never found, and opened again by its descriptor: nobody can put a link in its place. What fio
//! writes down is in a directory that nobody else enters.

use crate::args::{DiskArgs, Engine, Lab};
use crate::bail;
use crate::load::{Draw, noise};
use crate::prelude::*;
use crate::progress::{bytes_rate, ms, size};
use crate::record::Record;
use crate::shown::Shown;
use crate::used::Watch;
use rustix::fs::{Mode as FileMode, OFlags};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Files that runs make begin with this.
const FILE: &str = "spirula-bench-disk.";
/// Operations are aligned to this.
const ALIGN: usize = 4096;
/// Least bytes of a file that mean something.
const LEAST: u64 = 16 << 20;
/// Synced writes of 4 KiB a second from which a device is good as a journal, and from which it will
/// do.
const FIT: (f64, f64) = (5_000.0, 500.0);

/// No turning disk syncs more 4 KiB writes a second, whatever its speed.
const SPINNING: f64 = 400.0;

/// A way to read or write.
#[derive(Clone, Copy, Debug)]
struct Test {
    name: &'static str,
    rw: &'static str,
    block: u64,
    depth: usize,
    sync: bool,
}

const TESTS: [Test; 5] = [
    Test { name: "seqwrite", rw: "write", block: 1 << 20, depth: 8, sync: false },
    Test { name: "seqread", rw: "read", block: 1 << 20, depth: 8, sync: false },
    Test { name: "randwrite", rw: "randwrite", block: 4096, depth: 32, sync: false },
    Test { name: "randread", rw: "randread", block: 4096, depth: 32, sync: false },
    Test { name: "syncwrite", rw: "write", block: 4096, depth: 1, sync: true },
];

impl Test {
    fn writes(&self) -> bool {
        self.rw.contains("write")
    }
}

/// A place to measure.
#[derive(Debug)]
struct Place {
    /// As it was given.
    path: PathBuf,
    /// The file or device, held open: by its descriptor it is opened again.
    held: File,
    bytes: u64,
    /// The file's name, if it is ours, and goes in the end.
    made: Option<PathBuf>,
    writable: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(name) = &self.made {
            // What stays is removed by the next run.
            let _ = fs::remove_file(name);
        }
    }
}

/// Removes what runs of this user left that are gone: files, and directories of files.
fn sweep(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(FILE).and_then(|r| r.split('.').next()?.parse::<u32>().ok());
        let own = entry.metadata().is_ok_and(|m| m.uid() == rustix::process::geteuid().as_raw());
        if own && pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let path = entry.path();
            // Neither follows a link.
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
        }
    }
}

/// A name that no other run has, and that [`sweep`] knows.
fn name() -> Result<String> {
    let draw = spirula_runtime::entropy::cookie().context("draw a number")?;
    Ok(format!("{FILE}{}.{draw:08x}", std::process::id()))
}

/// Makes a file that is not there. A link is there, also one to nothing.
fn make(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    options.open(path).with_context(|| format!("make {}", path.display()))
}

/// Opens a device; takes it for this run alone, if it is to be written to.
fn take(path: &Path, destroy: bool) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(destroy);
    if destroy {
        // The kernel grants it to one holder, of which a mount is one.
        options.custom_flags(i32::try_from(OFlags::EXCL.bits()).unwrap_or(0));
    }
    let at = path.display();
    let file = match options.open(path) {
        Err(e) if e.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => bail!(
            "{at} is mounted, part of a volume, or in use by another process, and --destroy would \
                destroy what is on it: \
             stop what uses it first, give another device, or leave out --destroy"
        ),
        file => file.with_context(|| format!("open {at}"))?,
    };
    // Stores lock theirs, also where they are files.
    if destroy && file.try_lock().is_err() {
        bail!(
            "{at} is in use by another process, and --destroy would destroy what is on it: stop \
                that one first"
        );
    }
    Ok(file)
}

impl Place {
    fn new(path: &Path, a: &DiskArgs) -> Result<Self> {
        let meta = fs::metadata(path).with_context(|| format!("look at {}", path.display()))?;
        if meta.file_type().is_block_device() {
            let mut held = take(path, a.destroy)?;
            if !held
                .metadata()
                .with_context(|| format!("look at {}", path.display()))?
                .file_type()
                .is_block_device()
            {
                bail!("{} is no block device any more", path.display());
            }
            let bytes = std::io::Seek::seek(&mut held, std::io::SeekFrom::End(0))
                .context("ask for its size")?;
            let bytes = bytes.min(a.file_size);
            return Ok(Self { path: path.into(), held, bytes, made: None, writable: a.destroy });
        }
        if !meta.is_dir() {
            bail!("{} is neither a directory nor a block device", path.display());
        }
        sweep(path);
        let room =
            rustix::fs::statvfs(path).with_context(|| format!("look at {}", path.display()))?;
        let free = room.f_bavail * room.f_frsize;
        let bytes = a.file_size.min(free / 2) / (1 << 20) * (1 << 20);
        if bytes < LEAST {
            bail!(
                "{}: {} are free; at least {} are needed",
                path.display(),
                size(free),
                size(LEAST * 2)
            );
        }
        let file = path.join(name()?);
        let place =
            Self { path: path.into(), held: make(&file)?, bytes, made: Some(file), writable: true };
        place.fill()?;
        Ok(place)
    }

    /// Writes all of the file: what was never written is not read from the device.
    fn fill(&self) -> Result<()> {
        let say = || format!("write a file in {}", self.path.display());
        let part = noise(7, 1 << 20);
        let mut at = 0;
        while at < self.bytes {
            self.held.write_all_at(&part, at).with_context(say)?;
            at += part.len() as u64;
        }
        self.held.sync_all().with_context(say)
    }

    /// Where this process and those that it starts open what is held, whatever has its name now.
    fn again(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.held.as_raw_fd()))
    }

    /// The disk below, as the kernel names it.
    fn facts(&self) -> Value {
        let stat = rustix::fs::fstat(&self.held).ok();
        let dev = stat.map(|s| if self.made.is_some() { s.st_dev } else { s.st_rdev });
        let node = dev
            .map(|d| format!("/sys/dev/block/{}:{}", rustix::fs::major(d), rustix::fs::minor(d)));
        let node = node.and_then(|n| fs::canonicalize(n).ok());
        let whole = node.map(|n| {
            if n.join("partition").exists() {
                n.parent().map_or(n.clone(), Path::to_owned)
            } else {
                n
            }
        });
        let read = |name: &str| {
            let text = whole.as_ref().and_then(|w| fs::read_to_string(w.join(name)).ok());
            text.map(|t| t.trim().to_owned())
        };
        json!({
            "device": whole.as_ref().and_then(|w| w.file_name()).map(|n| n.to_string_lossy().into_owned()),
            "model": read("device/model"), "rotational": read("queue/rotational"), "cache": read("queue/write_cache"),
            "bytes": self.bytes, "path": self.path.display().to_string(),
        })
    }
}

/// fio's histogram, nanoseconds and how many, in the steps of our own: upper bound in milliseconds,
/// how many.
fn bins(v: &Value) -> Vec<Value> {
    let mut steps: BTreeMap<i32, u64> = BTreeMap::new();
    for (ns, n) in v.as_object().into_iter().flatten() {
        let (Ok(ns), Some(n)) = (ns.parse::<f64>(), n.as_u64()) else { continue };
        *steps.entry((ns / 1e4).max(1.0).log(1.12).ceil() as i32).or_default() += n;
    }
    steps.iter().map(|(step, n)| json!([round(0.01 * 1.12f64.powi(*step), 4), n])).collect()
}

/// What fio writes down of each second, in a directory that nobody else enters. It goes with this,
/// or with the next run where this one was killed.
pub(crate) struct Log {
    dir: PathBuf,
}

impl Log {
    /// A place for one.
    pub(crate) fn new() -> Result<Self> {
        let all = std::env::temp_dir();
        sweep(&all);
        let dir = all.join(name()?);
        DirBuilder::new()
            .mode(0o700)
            .create(&dir)
            .with_context(|| format!("make {}", dir.display()))?;
        Ok(Self { dir })
    }

    /// fio's options for it.
    pub(crate) fn args(&self) -> [String; 3] {
        let prefix = format!("--write_iops_log={}", self.dir.join("log").display());
        [prefix, "--log_avg_msec=1000".to_owned(), "--per_job_logs=0".to_owned()]
    }

    /// Second by second, all jobs together; nothing where fio wrote nothing down.
    pub(crate) fn series(&self, writes: bool, block: u64) -> Vec<Value> {
        seconds_of(
            &fs::read_to_string(self.dir.join("log_iops.log")).unwrap_or_default(),
            writes,
            block,
        )
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // What stays is removed by the next run.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Lines of "milliseconds, operations a second, 0 for reads or 1 for writes, …", one of each job a
/// second.
fn seconds_of(text: &str, writes: bool, block: u64) -> Vec<Value> {
    let mut all: BTreeMap<u64, u64> = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<u64> = line.split(',').map_while(|w| w.trim().parse().ok()).collect();
        if let [ms, ops, side, ..] = words[..]
            && side == u64::from(writes)
        {
            *all.entry(ms.saturating_add(500) / 1000).or_default() += ops;
        }
    }
    all.iter()
        .map(|(t, ops)| json!({"t": t, "ops": ops, "bytes": ops.saturating_mul(block)}))
        .collect()
}

/// What fio found, as it stands in a result.
pub(crate) fn of_fio(out: &Value, writes: bool) -> Option<Value> {
    let job = &out["jobs"][0][if writes { "write" } else { "read" }];
    let lat = &job["clat_ns"];
    let ns = |v: &Value| v.as_f64().map(|n| round(n / 1e6, 4));
    let q = |name: &str| ns(&lat["percentile"][name]);
    Some(json!({
        "ops": job["total_ios"].as_u64()?, "bytes": job["io_bytes"].as_u64()?, "errors": out["jobs"][0]["error"],
        "iops": round(job["iops"].as_f64()?, 2), "bytes_per_s": job["bw_bytes"].as_f64()?,
        "took_s": round(job["runtime"].as_f64()? / 1000.0, 3), "histogram_ms": bins(&lat["bins"]),
        "latency_ms": {
            "mean": ns(&lat["mean"]), "min": ns(&lat["min"]), "max": ns(&lat["max"]), "p50": q("50.000000"),
            "p90": q("90.000000"), "p95": q("95.000000"), "p99": q("99.000000"), "p99.9": q("99.900000"), "p99.99": q("99.990000"),
        },
    }))
}

fn by_fio(place: &Place, t: &Test, seconds: u64) -> Result<Value> {
    let log = Log::new()?;
    let mut c = Command::new("fio");
    c.args(log.args());
    c.args([
        "--name=spirula",
        "--output-format=json+",
        "--time_based",
        "--direct=1",
        "--thread",
        "--randrepeat=0",
    ])
    .arg(format!("--filename={}", place.again().display()))
    .args([format!("--rw={}", t.rw), format!("--bs={}", t.block), format!("--runtime={seconds}")])
    .args([format!("--size={}", place.bytes), format!("--iodepth={}", t.depth)])
    .arg(if t.sync { "--ioengine=psync" } else { "--ioengine=libaio" });
    if t.sync {
        c.arg("--sync=1");
    }
    let out = c.stdin(Stdio::null()).output().context("start fio")?;
    if !out.status.success() {
        bail!("fio on {}: {}", place.path.display(), String::from_utf8_lossy(&out.stderr).trim());
    }
    // Warnings may stand before the object.
    let from = out.stdout.iter().position(|b| *b == b'{').unwrap_or(0);
    let v: Value =
        serde_json::from_slice(&out.stdout[from..]).context("fio's output is not JSON")?;
    let mut found = of_fio(&v, t.writes()).context("fio's output has no figures")?;
    found["series"] = log.series(t.writes(), t.block).into();
    Ok(found)
}

/// A buffer whose part of `len` bytes begins at a multiple of [`ALIGN`], and where.
fn aligned(len: usize) -> (Vec<u8>, usize) {
    let mut buf = Vec::with_capacity(len + ALIGN);
    buf.extend_from_slice(&noise(11, len + ALIGN));
    let at = buf.as_ptr().align_offset(ALIGN).min(ALIGN);
    (buf, at)
}

fn open(place: &Place, t: &Test) -> Result<File> {
    let sync = if t.sync { OFlags::DSYNC } else { OFlags::empty() };
    let way = if t.writes() { OFlags::RDWR } else { OFlags::RDONLY };
    let open = |direct| {
        rustix::fs::open(place.again(), way | sync | direct | OFlags::CLOEXEC, FileMode::empty())
    };
    // File systems in memory know no direct access.
    let fd = open(OFlags::DIRECT).or_else(|_| open(OFlags::empty()));
    Ok(File::from(fd.with_context(|| format!("open {}", place.path.display()))?))
}

fn by_ourselves(place: &Place, t: &Test, seconds: u64) -> Result<Value> {
    let (begun, end) = (Instant::now(), Duration::from_secs(seconds));
    let places = (place.bytes / t.block).max(1);
    let one = |number: usize| -> Result<Record> {
        let file = open(place, t)?;
        let (mut buf, at) = aligned(t.block as usize);
        let (mut record, mut draw) = (Record::default(), Draw::new(number as u64 + 1));
        let mut next = number as u64;
        while begun.elapsed() < end {
            let n = if t.rw.starts_with("rand") { draw.below(places) } else { next % places };
            next += t.depth as u64;
            let part = &mut buf[at..at + t.block as usize];
            let from = Instant::now();
            let done = if t.writes() {
                file.write_all_at(part, n * t.block)
            } else {
                file.read_exact_at(part, n * t.block)
            };
            done.with_context(|| format!("{} of {}", t.name, place.path.display()))?;
            record.add(begun.elapsed(), from.elapsed(), t.block, !t.writes());
        }
        Ok(record)
    };
    let all: Vec<Result<Record>> = std::thread::scope(|s| {
        let one = &one;
        let threads: Vec<_> = (0..t.depth).map(|n| s.spawn(move || one(n))).collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread ended"))))
            .collect()
    });
    let mut whole = Record::default();
    for r in all {
        whole.merge(&r?);
    }
    Ok(whole.json())
}

/// May a journal be on it?
fn verdict(iops: f64) -> String {
    let each = ms(1000.0 / iops.max(0.001));
    match iops {
        n if n >= FIT.0 => {
            format!("fit for a journal: {n:.0} synced writes of 4 KiB a second, {each} each")
        }
        n if n >= FIT.1 => {
            format!("will do as a journal: {n:.0} synced writes of 4 KiB a second, {each} each")
        }
        n => format!(
            "unfit for a journal: only {n:.0} synced writes of 4 KiB a second, {each} each (no \
                power-loss protection?)"
        ),
    }
}

/// What the device says of itself, against what it gives.
fn claim(iops: f64, facts: &Value) -> String {
    let device = facts["device"].as_str().unwrap_or("what is below");
    let device =
        facts["model"].as_str().map_or(device.to_owned(), |model| format!("{device} ({model})"));
    let turns = match facts["rotational"].as_str() {
        Some("1") if iops > SPINNING => {
            "a turning disk, and syncs more than one can: a cache answers for it"
        }
        Some("1") => "a turning disk, and syncs as one does",
        Some("0") if iops < SPINNING => "no turning disk, and syncs no more than one does",
        Some("0") => "no turning disk, and syncs more than one does",
        _ => "nothing about itself",
    };
    let cache = match facts["cache"].as_str() {
        Some("write back") => "; it has a cache that a sync must empty",
        Some("write through") => "; it has no cache that could lose a write",
        _ => "",
    };
    format!("{device} claims to be {turns}{cache}").replace("claims to be nothing", "says nothing")
}

fn line(r: &Value) -> String {
    let n = |v: &Value| v.as_f64().unwrap_or(0.0);
    let f = &r["found"];
    format!(
        "{:<44} {:>9.0} op/s {:>11}  mean {:>8}  p99 {:>8}",
        r["name"].as_str().unwrap_or_default(),
        n(&f["iops"]),
        bytes_rate(n(&f["bytes_per_s"])),
        ms(n(&f["latency_ms"]["mean"])),
        ms(n(&f["latency_ms"]["p99"]))
    )
}

/// Measures the places; the runs go where `shown` leads.
///
/// # Errors
/// When a place cannot be used, or a device fails.
pub fn measure(lab: &Lab, a: &DiskArgs, shown: &mut Shown<'_>) -> Result<()> {
    let has_fio = Command::new("fio").arg("--version").output().is_ok_and(|o| o.status.success());
    let fio = match a.engine {
        Engine::Auto => has_fio,
        Engine::Fio if !has_fio => bail!("fio is not installed; '--engine own' does without it"),
        Engine::Fio => true,
        Engine::Own => false,
    };
    let engine = if fio { "fio" } else { "own" };
    let places: Vec<Place> = a.paths.iter().map(|p| Place::new(p, a)).collect::<Result<_>>()?;
    let facts: Vec<Value> = places.iter().map(Place::facts).collect();
    shown.results.set("devices", facts.clone().into());
    let go = |p: &Place, t: &Test| {
        if fio { by_fio(p, t, a.seconds) } else { by_ourselves(p, t, a.seconds) }
    };
    let json = |p: &Place, t: &Test, alone: bool, repeat: u64, found: Value| {
        let how = if alone { "alone" } else { "with all others" };
        json!({
            "name": format!("{} {}, {how}: {}", t.name, size(t.block), p.path.display()), "test": t.name, "mode": t.name,
            "path": p.path.display().to_string(), "alone": alone, "repeat": repeat, "size": t.block, "threads": t.depth,
            "seconds": a.seconds, "engine": engine, "found": found,
        })
    };
    for repeat in 0..a.repeats {
        for t in &TESTS {
            for (p, facts) in places.iter().zip(&facts).filter(|(p, _)| p.writable || !t.writes()) {
                if lab.stopped() {
                    bail!("interrupted");
                }
                shown.progress.now(&format!("{} on {}", t.name, p.path.display()));
                let mut watch = Watch::begin();
                let found = watch.during(|| go(p, t))?;
                let used = watch.end(found["ops"].as_u64().unwrap_or(0));
                let mut run = json(p, t, true, repeat, found);
                run["used"] = used.json;
                if t.sync {
                    let iops = run["found"]["iops"].as_f64().unwrap_or(0.0);
                    run["verdict"] = json!(format!("{}; {}", verdict(iops), claim(iops, facts)));
                }
                shown.add(&line(&run), run.clone())?;
                if let Some(word) = run["verdict"].as_str() {
                    shown.say(&format!("  {}: {word}", p.path.display()));
                }
            }
            if places.len() < 2 {
                continue;
            }
            let mut watch = Watch::begin();
            let together = || {
                std::thread::scope(|s| {
                    let go = &go;
                    let usable = places.iter().filter(|p| p.writable || !t.writes());
                    let threads: Vec<_> = usable.map(|p| (p, s.spawn(move || go(p, t)))).collect();
                    let ended = |t: std::thread::ScopedJoinHandle<'_, Result<Value>>| {
                        t.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread ended")))
                    };
                    threads
                        .into_iter()
                        .map(|(p, t)| Ok((p, ended(t)?)))
                        .collect::<Result<Vec<(&Place, Value)>>>()
                })
            };
            let all = watch.during(together)?;
            let used = watch.end(all.iter().filter_map(|(_, found)| found["ops"].as_u64()).sum());
            for (p, found) in all {
                let mut run = json(p, t, false, repeat, found);
                run["used"] = used.json.clone();
                shown.add(&line(&run), run)?;
            }
        }
    }
    Ok(())
}

/// `spirula bench disk`.
///
/// # Errors
/// As [`measure`].
pub fn disk(lab: &Lab, a: &DiskArgs) -> Result<()> {
    let mut shown = Shown::new(lab, "disk", &a.output)?;
    measure(lab, a, &mut shown)?;
    shown.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(path: &Path, destroy: bool) -> DiskArgs {
        DiskArgs {
            paths: vec![path.into()],
            seconds: 1,
            repeats: 1,
            file_size: LEAST,
            engine: Engine::Own,
            destroy,
            output: crate::args::Output { out: None, label: None, json: true },
        }
    }

    #[test]
    fn nothing_is_written_through_a_link_nor_into_what_took_a_files_place() {
        let dir =
            std::env::temp_dir().join(format!("spirula-lab-disk-links-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let victim = dir.join("victim");
        for to in [&victim, &dir.join("nothing")] {
            fs::write(&victim, "precious").unwrap();
            let link = dir.join("link");
            std::os::unix::fs::symlink(to, &link).unwrap();
            assert!(make(&link).is_err() && make(&victim).is_err());
            fs::remove_file(&link).unwrap();
        }
        assert!(!dir.join("nothing").exists());
        // Whoever may write to the directory puts a link in the place of a file that is being
        // measured.
        let place = Place::new(&dir, &args(&dir, false)).unwrap();
        let name = place.made.clone().unwrap();
        assert_eq!(fs::metadata(&name).unwrap().mode() & 0o777, 0o600);
        fs::remove_file(&name).unwrap();
        std::os::unix::fs::symlink(&victim, &name).unwrap();
        by_ourselves(&place, &TESTS[4], 1).unwrap();
        drop(place);
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        // A log's directory is its owner's, and goes.
        let log = Log::new().unwrap();
        let at = log.dir.clone();
        assert_eq!(fs::metadata(&at).unwrap().mode() & 0o777, 0o700);
        fs::write(at.join("log_iops.log"), "1000, 7, 1, 0, 0\n").unwrap();
        assert_eq!(log.series(true, 1).len(), 1);
        drop(log);
        assert!(!at.exists());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn what_another_one_uses_is_not_destroyed() {
        let dir =
            std::env::temp_dir().join(format!("spirula-lab-disk-used-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("store");
        let held = make(&file).unwrap();
        held.set_len(LEAST).unwrap();
        held.lock().unwrap();
        let e = take(&file, true).unwrap_err().to_string();
        assert!(e.contains("in use by another process") && e.contains("--destroy"), "{e}");
        take(&file, false).unwrap();
        drop(held);
        // Only root has block devices, and not everywhere.
        let out = Command::new("losetup").args(["-f", "--show"]).arg(&file).output();
        let device = out.ok().filter(|o| o.status.success());
        if let Some(device) =
            device.map(|o| PathBuf::from(String::from_utf8_lossy(&o.stdout).trim()))
        {
            let tried = std::panic::catch_unwind(|| {
                let flags = i32::try_from(OFlags::EXCL.bits()).unwrap();
                let holder =
                    OpenOptions::new().read(true).custom_flags(flags).open(&device).unwrap();
                let e = Place::new(&device, &args(&device, true)).unwrap_err().to_string();
                assert!(
                    e.contains("is mounted, part of a volume") && e.contains("leave out --destroy"),
                    "{e}"
                );
                let place = Place::new(&device, &args(&device, false)).unwrap();
                assert!(!place.writable && by_ourselves(&place, &TESTS[3], 1).is_ok());
                drop((place, holder));
                // A child that another test has just forked has what was held, too, until it is its
                // program.
                let begun = Instant::now();
                let place = loop {
                    match Place::new(&device, &args(&device, true)) {
                        Ok(place) => break place,
                        Err(e) => assert!(begun.elapsed() < Duration::from_secs(60), "{e}"),
                    }
                    std::thread::sleep(Duration::from_millis(5));
                };
                assert!(place.writable && by_ourselves(&place, &TESTS[4], 1).is_ok());
                assert!(take(&device, true).is_err(), "it is this run's alone");
            });
            Command::new("losetup").arg("-d").arg(&device).status().unwrap();
            tried.unwrap();
        } else {
            eprintln!(
                "no loop device to be had: what the kernel grants to one holder is not tested"
            );
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn the_own_engine_reads_and_writes_and_leaves_nothing() {
        let dir = std::env::temp_dir().join(format!("spirula-lab-disk-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("{FILE}4000000000.0")), "left").unwrap();
        let args = args(&dir, false);
        let place = Place::new(&dir, &args).unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "what a killed run left is gone");
        for t in [TESTS[3], TESTS[4]] {
            // Longer where others have the disk.
            let run = |seconds| by_ourselves(&place, &t, seconds).unwrap();
            let many = |v: &Value| v["ops"].as_u64().unwrap() > 1;
            let found = [1, 5, 20].into_iter().map(run).find(many).expect("more than one in 20 s");
            assert_eq!(found["bytes"].as_u64().unwrap(), found["ops"].as_u64().unwrap() * 4096);
        }
        drop(place);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        assert!(Place::new(&dir.join("none"), &args).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn fios_figures_are_read() {
        let v = json!({"jobs": [{"error": 0, "write": {"total_ios": 10, "io_bytes": 40960, "iops": 5.0, "bw_bytes": 20480,
            "runtime": 2000, "clat_ns": {"mean": 2e6, "min": 1e6, "max": 9e6, "percentile": {"99.000000": 8000000},
            "bins": {"1000": 1, "5000": 2, "1000000": 3, "1010000": 4}}}}]});
        let f = of_fio(&v, true).unwrap();
        assert_eq!(
            (f["ops"].as_u64(), f["iops"].as_f64(), f["latency_ms"]["p99"].as_f64()),
            (Some(10), Some(5.0), Some(8.0))
        );
        let counts: Vec<u64> =
            f["histogram_ms"].as_array().unwrap().iter().map(|p| p[1].as_u64().unwrap()).collect();
        assert_eq!(counts, [3, 7], "{f}");
        let log = "1000, 7, 1, 0, 0\n1001, 5, 1, 0, 0\n1001, 9, 0, 0, 0\n2003, 4, 1, 0, 0\nx\n";
        let seconds =
            json!([{"t": 1, "ops": 12, "bytes": 49152}, {"t": 2, "ops": 4, "bytes": 16384}]);
        assert_eq!(Value::from(seconds_of(log, true, 4096)), seconds);
        assert!(of_fio(&json!({}), true).is_none());
        let facts =
            json!({"device": "sda", "model": "X", "rotational": "1", "cache": "write back"});
        assert!(
            claim(9000.0, &facts)
                .contains("sda (X) claims to be a turning disk, and syncs more than one can")
        );
        assert_eq!(claim(9.0, &json!({})), "what is below says nothing about itself");
        assert!(verdict(9000.0).starts_with("fit") && verdict(100.0).starts_with("unfit"));
    }
}
