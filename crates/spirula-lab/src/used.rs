//! What this machine did while something was measured: CPU of every daemon and of ourselves,
//! waiting for disks, disks, networks.
//!
//! All of it is read from `/proc` before and after; in between only the machine's own counters,
//! once a second. Daemons on other hosts are not seen, and the result says on which host it looked.

use crate::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::sync::mpsc;
use std::time::Instant;

/// Counters of the whole machine.
#[derive(Clone, Debug, Default)]
struct Machine {
    /// Ticks of all CPUs: busy, waiting for disks, idle.
    cpu: [u64; 3],
    /// By disk: bytes read, bytes written, reads, writes, milliseconds busy, flushes of its cache,
    /// milliseconds that they took.
    disks: BTreeMap<String, [u64; 7]>,
    /// By interface: bytes in, bytes out, packets dropped or in error.
    nets: BTreeMap<String, [u64; 3]>,
}

/// A daemon's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proc {
    /// Process id.
    pub pid: u32,
    /// `osd.3`, `spirula up`, …
    pub name: String,
    /// The command line.
    pub args: Vec<String>,
}

/// CPU time in ticks of a process and of each of its threads.
#[derive(Clone, Debug, Default)]
struct Cpu {
    own: u64,
    threads: BTreeMap<u32, (String, u64)>,
}

fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace().map(|w| w.parse().unwrap_or(0)).collect()
}

fn at(v: &[u64], i: usize) -> u64 {
    v.get(i).copied().unwrap_or(0)
}

impl Machine {
    fn now() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self::parse(&read("/proc/stat"), &read("/proc/diskstats"), &read("/proc/net/dev"))
    }

    fn parse(stat: &str, diskstats: &str, dev: &str) -> Self {
        let mut m = Self::default();
        if let Some(cpu) = stat.lines().find_map(|l| l.strip_prefix("cpu ")) {
            // user nice system idle iowait irq softirq steal
            let v = numbers(cpu);
            let busy = [0, 1, 2, 5, 6, 7].iter().map(|i| at(&v, *i)).sum();
            m.cpu = [busy, at(&v, 4), at(&v, 3)];
        }
        for line in diskstats.lines() {
            let mut words = line.split_whitespace().skip(2);
            let Some(name) = words.next() else { continue };
            if ["loop", "ram", "zram", "dm-", "sr"].iter().any(|p| name.starts_with(p))
                || is_partition(name)
            {
                continue;
            }
            let v: Vec<u64> = words.map(|w| w.parse().unwrap_or(0)).collect();
            let [read, written] = [at(&v, 2) * 512, at(&v, 6) * 512];
            // The last two are 0 on kernels before 5.5.
            let counters = [read, written, at(&v, 0), at(&v, 4), at(&v, 9), at(&v, 15), at(&v, 16)];
            m.disks.insert(name.to_owned(), counters);
        }
        for line in dev.lines() {
            let Some((name, rest)) = line.split_once(':') else { continue };
            let v = numbers(rest);
            let lost = at(&v, 2) + at(&v, 3) + at(&v, 10) + at(&v, 11);
            m.nets.insert(name.trim().to_owned(), [at(&v, 0), at(&v, 8), lost]);
        }
        m
    }
}

fn is_partition(name: &str) -> bool {
    Path::new("/sys/class/block").join(name).join("partition").exists()
}

fn cpu_of(pid: u32) -> Option<Cpu> {
    let ticks = |stat: &str| -> Option<(String, u64)> {
        // The name is in brackets and may hold anything.
        let (head, rest) = stat.rsplit_once(')')?;
        let v: Vec<&str> = rest.split_whitespace().collect();
        let name = head.split_once('(')?.1.to_owned();
        Some((name, v.get(11)?.parse::<u64>().ok()? + v.get(12)?.parse::<u64>().ok()?))
    };
    let mut cpu = Cpu {
        own: ticks(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?.1,
        ..Cpu::default()
    };
    for entry in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let Some(tid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else { continue };
        if let Some(t) = fs::read_to_string(entry.path().join("stat")).ok().and_then(|s| ticks(&s))
        {
            cpu.threads.insert(tid, t);
        }
    }
    Some(cpu)
}

/// What a process is, by its command line; `None` if it is no daemon of a cluster.
fn daemon_name(args: &[String]) -> Option<String> {
    let program = Path::new(args.first()?).file_name()?.to_str()?;
    let after = |names: &[&str]| {
        let i = args.iter().position(|a| names.contains(&a.as_str()))?;
        args.get(i + 1).cloned()
    };
    match program {
        // Also one that was renamed for a trial.
        p if p.starts_with("spirula") => match args.get(1)?.as_str() {
            "up" => Some(
                format!("spirula up {}", after(&["--dir"]).unwrap_or_default())
                    .trim_end()
                    .to_owned(),
            ),
            kind @ ("mon" | "mgr" | "osd") => {
                if args.get(2).is_some_and(|w| {
                    ["start", "stop", "rejoin", "prepare", "grow"].contains(&w.as_str())
                }) {
                    return None;
                }
                let usual = if kind == "mon" { "a" } else { "x" };
                Some(format!(
                    "{kind}.{}",
                    after(&["--id", "-i"]).unwrap_or_else(|| usual.to_owned())
                ))
            }
            _ => None,
        },
        "ceph-osd" | "ceph-mon" | "ceph-mgr" | "ceph-mds" => {
            let kind = program.trim_start_matches("ceph-");
            Some(format!("{kind}.{}", after(&["-i", "--id"])?))
        }
        _ => None,
    }
}

/// The daemons that run on this machine.
pub fn daemons() -> Vec<Proc> {
    let mut out = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else { continue };
        let raw = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let args: Vec<String> = raw
            .split(|b| *b == 0)
            .filter(|w| !w.is_empty())
            .map(|w| String::from_utf8_lossy(w).into_owned())
            .collect();
        if let Some(name) = daemon_name(&args) {
            out.push(Proc { pid, name, args });
        }
    }
    out.sort_by(|a, b| (&a.name, a.pid).cmp(&(&b.name, b.pid)));
    out
}

/// Those of the cluster in a directory, where their command lines say so; else all.
fn of_cluster(all: Vec<Proc>, dir: Option<&Path>) -> Vec<Proc> {
    let Some(dir) = dir.and_then(|d| fs::canonicalize(d).ok()) else { return all };
    let dir = dir.display().to_string();
    let inside = |word: &str| {
        word == dir || word.strip_prefix(&dir).is_some_and(|rest| rest.starts_with('/'))
    };
    // A path, or an option with one; a relative one is that of the process.
    let named = |p: &Proc| {
        p.args.iter().any(|a| {
            let word = a.split_once('=').map_or(a.as_str(), |(_, v)| v);
            let cwd = fs::read_link(format!("/proc/{}/cwd", p.pid)).unwrap_or_default();
            inside(word)
                || fs::canonicalize(cwd.join(word)).is_ok_and(|w| inside(&w.display().to_string()))
        })
    };
    let own: Vec<Proc> = all.iter().filter(|p| named(p)).cloned().collect();
    if own.is_empty() { all } else { own }
}

/// Watches from [`Watch::begin`] to [`Watch::end`].
pub struct Watch {
    since: Instant,
    machine: Machine,
    last: Machine,
    last_at: Instant,
    procs: Vec<(Proc, Cpu)>,
    own: Cpu,
    /// CPU seconds of this process.
    client: f64,
    series: Vec<Value>,
    /// CPU seconds that watching itself took.
    cost: f64,
}

/// What was used.
#[derive(Clone, Debug, Default)]
pub struct Used {
    /// As it stands in a result.
    pub json: Value,
    /// CPUs of the machine that were busy, of 1; and that waited for a disk.
    pub busy: f64,
    /// See `busy`.
    pub iowait: f64,
    /// CPU seconds of this process.
    pub client: f64,
    /// Cores that were neither the cluster's nor ours.
    pub others: f64,
    /// Name and cores used of each daemon, most first.
    pub daemons: Vec<(String, f64)>,
    /// The busiest thread of a daemon, or of ourselves: whose, its name, its part of a core.
    pub thread: Option<(String, String, f64)>,
    /// The busiest disk: name, part of the time it was busy, writes a second.
    pub disk: Option<(String, f64, f64)>,
    /// The disk that flushed its cache most: name, seconds of a second that flushes took (those
    /// that overlap count each), how many a second.
    pub sync: Option<(String, f64, f64)>,
    /// The interface closest to its speed: name, bytes a second in its busier direction, its speed
    /// in bytes a second.
    pub net: Option<(String, f64, f64)>,
}

/// CPU seconds of this thread.
fn thread_cpu() -> f64 {
    seconds_of(rustix::time::ClockId::ThreadCPUTime)
}

fn seconds_of(clock: rustix::time::ClockId) -> f64 {
    let t = rustix::time::clock_gettime(clock);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

fn ticks_per_second() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

fn cores() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64)
}

impl Watch {
    /// Notes where all counters stand.
    pub fn begin() -> Self {
        Self::begin_of(None)
    }

    /// The same; of several clusters on this machine only the daemons of that one are told of whose
    /// ceph.conf is in this directory.
    pub fn begin_of(dir: Option<&Path>) -> Self {
        let cost = thread_cpu();
        let procs = of_cluster(daemons(), dir)
            .into_iter()
            .filter_map(|p| Some((p.clone(), cpu_of(p.pid)?)))
            .collect();
        let machine = Machine::now();
        let now = Instant::now();
        let own = cpu_of(std::process::id()).unwrap_or_default();
        let cost = thread_cpu() - cost;
        let client = own_cpu();
        Self {
            since: now,
            last: machine.clone(),
            last_at: now,
            machine,
            procs,
            own,
            client,
            series: Vec::new(),
            cost,
        }
    }

    /// Looks once a second while something is done that does not come back before it is over.
    pub fn during<T>(&mut self, work: impl FnOnce() -> T) -> T {
        std::thread::scope(|s| {
            let (over, wait) = mpsc::channel::<()>();
            let pause = Duration::from_secs(1);
            s.spawn(move || {
                while wait.recv_timeout(pause) == Err(mpsc::RecvTimeoutError::Timeout) {
                    self.look();
                }
            });
            let done = work();
            drop(over);
            done
        })
    }

    /// A second has passed, about.
    pub fn look(&mut self) {
        let cost = thread_cpu();
        self.look_now();
        self.cost += thread_cpu() - cost;
    }

    fn look_now(&mut self) {
        let (now, time) = (Machine::now(), Instant::now());
        let seconds = time.duration_since(self.last_at).as_secs_f64();
        if seconds < 0.5 {
            return;
        }
        let parts = parts(&self.last, &now);
        let sum =
            |f: &dyn Fn(&Machine) -> u64| f(&now).saturating_sub(f(&self.last)) as f64 / seconds;
        let disks = |m: &Machine| m.disks.values().map(|d| d[0] + d[1]).sum();
        let nets =
            |m: &Machine| m.nets.iter().filter(|(n, _)| *n != "lo").map(|(_, d)| d[0] + d[1]).sum();
        self.series.push(json!({
            "t": round(time.duration_since(self.since).as_secs_f64(), 1), "busy": round(parts.0, 3),
            "iowait": round(parts.1, 3), "disk_bytes_per_s": round(sum(&disks), 0), "net_bytes_per_s": round(sum(&nets), 0),
        }));
        (self.last, self.last_at) = (now, time);
    }

    /// What was used since the beginning, by `ops` operations.
    pub fn end(mut self, ops: u64) -> Used {
        let seconds = self.since.elapsed().as_secs_f64().max(0.001);
        // The load is over: what is looked at from here on is none of it.
        let client = own_cpu() - self.client;
        if self.series.is_empty() {
            self.look();
        }
        let cost = thread_cpu();
        let now = Machine::now();
        let per_op =
            |cpu: f64| if ops == 0 { Value::Null } else { json!(round(cpu * 1e6 / ops as f64, 2)) };
        let (busy, iowait) = parts(&self.machine, &now);
        let mut used = Used { busy, iowait, ..Used::default() };
        let mut daemons = Vec::new();
        for (p, before) in &self.procs {
            let Some(after) = cpu_of(p.pid) else {
                daemons.push(json!({"name": p.name, "pid": p.pid, "ended": true}));
                continue;
            };
            let cpu = after.own.saturating_sub(before.own) as f64 / ticks_per_second();
            used.busiest(&p.name, before, &after, seconds);
            used.daemons.push((p.name.clone(), cpu / seconds));
            daemons.push(json!({"name": p.name, "pid": p.pid, "cpu_s": round(cpu, 2), "cores": round(cpu / seconds, 3), "cpu_us_per_op": per_op(cpu)}));
        }
        used.daemons.sort_by(|a, b| b.1.total_cmp(&a.1));
        let own = cpu_of(std::process::id()).unwrap_or_default();
        used.client = client;
        used.busiest("the load generator", &self.own, &own, seconds);
        let known = used.client / seconds + used.daemons.iter().map(|d| d.1).sum::<f64>();
        used.others = (busy * cores() - known).max(0.0);
        let mut disks = Vec::new();
        for (name, after) in &now.disks {
            let Some(before) = self.machine.disks.get(name) else { continue };
            let d: Vec<f64> = after
                .iter()
                .zip(before)
                .map(|(a, b)| a.saturating_sub(*b) as f64 / seconds)
                .collect();
            if let [read, written, reads, writes, busy_ms, flushes, flush_ms] = d[..]
                && reads + writes > 0.0
            {
                let busy = (busy_ms / 1000.0).min(1.0);
                if used.disk.as_ref().is_none_or(|u| u.1 < busy) {
                    used.disk = Some((name.clone(), busy, writes));
                }
                let flushing = flush_ms / 1000.0;
                if flushes > 0.0 && used.sync.as_ref().is_none_or(|u| u.1 < flushing) {
                    used.sync = Some((name.clone(), flushing, flushes));
                }
                disks.push(json!({
                    "flushes_per_s": round(flushes, 1), "flushing": round(flushing, 3), "name": name, "read_bytes_per_s": round(read, 0), "written_bytes_per_s": round(written, 0),
                    "reads_per_s": round(reads, 1), "writes_per_s": round(writes, 1), "busy": round(busy, 3),
                }));
            }
        }
        let mut nets = Vec::new();
        for (name, after) in &now.nets {
            let Some(before) = self.machine.nets.get(name) else { continue };
            let [inn, out, lost] = [0, 1, 2].map(|i| after[i].saturating_sub(before[i]) as f64);
            if inn + out == 0.0 {
                continue;
            }
            let speed = speed(name);
            let most = inn.max(out) / seconds;
            if let Some(speed) = speed
                && used.net.as_ref().is_none_or(|u| u.1 / u.2 < most / speed)
            {
                used.net = Some((name.clone(), most, speed));
            }
            nets.push(json!({
                "name": name, "in_bytes_per_s": round(inn / seconds, 0), "out_bytes_per_s": round(out / seconds, 0),
                "lost_packets": lost, "speed_bytes_per_s": speed,
            }));
        }
        let cost = self.cost + thread_cpu() - cost;
        used.json = json!({
            "host": hostname(), "seconds": round(seconds, 2), "watching_cpu_s": round(cost, 4), "cores": cores(), "busy": round(busy, 3),
            "iowait": round(iowait, 3), "others_cores": round(used.others, 2), "client_cpu_s": round(used.client, 4), "client_cpu_us_per_op": per_op(used.client),
            "daemons": daemons, "disks": disks, "nets": nets, "series": self.series,
        });
        used
    }
}

impl Used {
    /// Other processes generated load as well, with so much CPU.
    pub fn add_clients(&mut self, cpu: f64, ops: u64) {
        self.client += cpu;
        let seconds = self.json["seconds"].as_f64().unwrap_or(0.0).max(0.001);
        self.others = (self.others - cpu / seconds).max(0.0);
        self.json["others_cores"] = json!(round(self.others, 2));
        self.json["client_cpu_s"] = json!(round(self.client, 4));
        if ops > 0 {
            self.json["client_cpu_us_per_op"] = json!(round(self.client * 1e6 / ops as f64, 2));
        }
    }

    /// A process that is no cluster's daemon served the load as well, with so much CPU.
    pub fn add_server(&mut self, name: &str, pid: u32, cpu: f64, ops: u64) {
        let seconds = self.json["seconds"].as_f64().unwrap_or(0.0).max(0.001);
        let each = if ops == 0 { Value::Null } else { json!(round(cpu * 1e6 / ops as f64, 2)) };
        self.others = (self.others - cpu / seconds).max(0.0);
        self.json["others_cores"] = json!(round(self.others, 2));
        self.daemons.push((name.to_owned(), cpu / seconds));
        self.daemons.sort_by(|a, b| b.1.total_cmp(&a.1));
        if let Some(all) = self.json["daemons"].as_array_mut() {
            all.push(json!({"name": name, "pid": pid, "cpu_s": round(cpu, 2), "cores": round(cpu / seconds, 3), "cpu_us_per_op": each}));
        }
    }

    fn busiest(&mut self, whose: &str, before: &Cpu, after: &Cpu, seconds: f64) {
        for (tid, (name, ticks)) in &after.threads {
            let had = before.threads.get(tid).map_or(0, |t| t.1);
            let part = ticks.saturating_sub(had) as f64 / ticks_per_second() / seconds;
            if self.thread.as_ref().is_none_or(|t| t.2 < part) {
                self.thread = Some((whose.to_owned(), name.clone(), part));
            }
        }
    }
}

/// Parts of all CPUs that were busy, and that waited for a disk.
fn parts(before: &Machine, after: &Machine) -> (f64, f64) {
    let d = [0, 1, 2].map(|i| after.cpu[i].saturating_sub(before.cpu[i]) as f64);
    let all = (d[0] + d[1] + d[2]).max(1.0);
    (d[0] / all, d[1] / all)
}

/// What an interface can carry in one direction, bytes a second, where the kernel knows.
fn speed(name: &str) -> Option<f64> {
    let text = fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?;
    let megabits: f64 = text.trim().parse().ok()?;
    (megabits > 0.0).then_some(megabits * 1e6 / 8.0)
}

/// CPU seconds that this process has used; finer than the ticks in which those of others are told.
pub fn own_cpu() -> f64 {
    seconds_of(rustix::time::ClockId::ProcessCPUTime)
}

/// CPU seconds of processes that this one has started and that have ended.
pub fn children_cpu() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> =
        stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    // Theirs stand behind our own: user and system.
    let ticks: u64 = fields.iter().skip(13).take(2).filter_map(|f| f.parse::<u64>().ok()).sum();
    ticks as f64 / ticks_per_second()
}

/// CPU seconds that a process has used; 0 where there is none.
pub fn cpu_seconds(pid: u32) -> f64 {
    cpu_of(pid).map_or(0.0, |c| c.own as f64 / ticks_per_second())
}

/// This machine's name.
pub fn hostname() -> String {
    let uname = rustix::system::uname();
    let name = uname.nodename().to_string_lossy().into_owned();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// This machine, for a result.
pub fn environment() -> Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let line = |text: &str, key: &str| {
        let found = text.lines().find_map(|l| l.split_once(':').filter(|(k, _)| k.trim() == key));
        found.map(|(_, v)| v.trim().to_owned()).unwrap_or_default()
    };
    let os = read("/etc/os-release");
    let os = os
        .lines()
        .find_map(|l| l.strip_prefix("PRETTY_NAME="))
        .unwrap_or_default()
        .trim_matches('"')
        .to_owned();
    json!({
        "host": hostname(), "kernel": rustix::system::uname().release().to_string_lossy(), "os": os, "cores": cores(),
        "cpu": line(&read("/proc/cpuinfo"), "model name"), "memory": line(&read("/proc/meminfo"), "MemTotal"),
        "load_before": read("/proc/loadavg").split(' ').next().unwrap_or_default(),
        "spirula": env!("CARGO_PKG_VERSION"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_counters_are_read_where_they_stand() {
        let m = Machine::parse(
            "cpu  10 20 30 400 50 6 7 8 0 0\ncpu0 1 2 3 4 5\n",
            "   8       0 sdz 100 0 2000 10 200 0 4000 20 0 300 400 0 0 0 0 50 60\n   7       0 \
                loop0 1 1 1 1 1 1 1 1 1 1 1\n",
            "Inter-| x\n eth0: 1000 9 1 2 0 0 0 0 3000 9 3 4 0 0 0 0\n",
        );
        assert_eq!(m.cpu, [81, 50, 400]);
        assert_eq!(m.disks.len(), 1, "{m:?}");
        assert_eq!(m.disks["sdz"], [1_024_000, 2_048_000, 100, 200, 300, 50, 60]);
        assert_eq!(m.nets["eth0"], [1000, 3000, 10]);
    }

    #[test]
    fn daemons_of_another_cluster_are_not_this_ones() {
        let dir = std::env::temp_dir().join(format!("spirula-lab-of-{}", std::process::id()));
        fs::create_dir_all(dir.join("a")).unwrap();
        let dir = fs::canonicalize(&dir).unwrap();
        let proc = |n: u32, word: String| Proc {
            pid: n,
            name: n.to_string(),
            args: vec!["ceph-osd".into(), "-c".into(), word],
        };
        let at = |of: &str| dir.join(of).display().to_string();
        let all = vec![
            proc(1, at("a/ceph.conf")),
            proc(2, at("b/ceph.conf")),
            proc(3, at("ab/x")),
            proc(4, format!("--dir={}", at("a"))),
        ];
        let names = |of: Option<&Path>| {
            of_cluster(all.clone(), of).into_iter().map(|p| p.pid).collect::<Vec<_>>()
        };
        assert_eq!(names(Some(&dir.join("a"))), [1, 4]);
        assert_eq!(names(None).len(), 4);
        assert_eq!(names(Some(Path::new("/nowhere"))).len(), 4, "it cannot be told");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn daemons_are_known_by_their_command_lines() {
        let name =
            |line: &str| daemon_name(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(name("/usr/bin/ceph-osd -c /x -i 3").as_deref(), Some("osd.3"));
        assert_eq!(name("target/spirula osd --id 4 --dir d").as_deref(), Some("osd.4"));
        assert_eq!(name("spirula up --dir d --detach").as_deref(), Some("spirula up d"));
        assert_eq!(name("spirula osd stop 0"), None);
        assert_eq!(name("vi ceph-osd"), None);
    }

    #[test]
    fn what_this_process_used_is_seen() {
        let w = Watch::begin();
        let mut x = 1u64;
        // By the CPU's time: of the clock's, others may take the larger part.
        let cpu = || {
            let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
            t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
        };
        let until = cpu() + 0.3;
        while cpu() < until {
            x = x.wrapping_mul(3);
        }
        assert!(x != 0 && w.end(10).client > 0.05);
    }

    #[test]
    fn a_look_at_the_machine_takes_little() {
        let mut w = Watch::begin();
        let begun = thread_cpu();
        for _ in 0..20 {
            // As if a second had passed.
            w.last_at -= Duration::from_secs(1);
            w.look();
        }
        let each = (thread_cpu() - begun) / 20.0;
        println!("{each} s of CPU a second");
        // A fiftieth is meant. It grows with the processes of a machine, and this is ten times as
        // much.
        assert!(each < 0.2, "{each} s of CPU a second");
        assert_eq!(w.during(|| 7), 7);
        let used = w.end(1).json;
        assert_eq!(used["series"].as_array().unwrap().len(), 20);
        assert!(used["watching_cpu_s"].as_f64().unwrap() > 0.0);
    }
}
