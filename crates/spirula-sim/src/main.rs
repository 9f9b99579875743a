//! `cargo xtask sim`: seeds from the command line, each a cluster of its own in one thread; as
//! many at a time as there are processors. One seed alone is run twice and told in detail.

#![allow(clippy::disallowed_methods, reason = "it says how long it took")]

use spirula_sim::{Bug, Extra, Extras, Failure, Options, Report, Sign, run};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// From so many seeds on every common fault must have come about, and from so many on one asked for
/// by name.
const ORDINARY: u64 = 1000;
const NAMED: u64 = 30;

fn number(args: &[String], name: &str, or: u64) -> u64 {
    let at = args.iter().position(|a| a == name);
    at.and_then(|i| args.get(i + 1)).and_then(|v| v.parse().ok()).unwrap_or(or)
}

/// Processor time of this thread, microseconds; 0 where that cannot be known.
fn cpu_us() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0) / 1000
}

#[derive(Default)]
struct Sum {
    operations: usize,
    commands: usize,
    steps: u64,
    virtual_us: u64,
    cpu_us: u64,
    probes: BTreeMap<&'static str, u64>,
    /// Seeds with each kind of rarer trouble, and those of them in which any of it came about.
    troubled: BTreeMap<&'static str, [u64; 2]>,
    failures: Vec<Failure>,
}

impl Sum {
    fn add(&mut self, r: &Report, cpu: u64) {
        self.operations += r.operations;
        self.commands += r.commands;
        self.steps += r.steps;
        self.virtual_us += r.time_us;
        self.cpu_us += cpu;
        for (name, n) in &r.probes {
            *self.probes.entry(name).or_insert(0) += n;
        }
    }

    /// A seed had these.
    fn had(&mut self, extras: Extras, r: &Report) {
        for (name, e, _) in Extra::ALL.iter().filter(|(_, e, _)| extras.has(*e)) {
            let [seeds, came] = self.troubled.entry(name).or_default();
            *seeds += 1;
            *came += u64::from(e.shows().iter().any(|name| r.probes.contains_key(name)));
        }
    }
}

/// Runs a seed twice; both must go alike.
fn in_detail(o: &Options) -> Result<Report, String> {
    let (first, again) = (run(o), run(o));
    match first {
        f if f != again => Err(format!(
            "seed {} does not repeat: something is drawn from outside the seed\n{f:?}\n{again:?}",
            o.seed
        )),
        Ok(r) => {
            println!("seed {}: {r:?}", o.seed);
            Ok(r)
        }
        Err(f) => Err(f.to_string()),
    }
}

/// Plants every bug; each must be found by one of the seeds that show nothing without it, by a
/// failure that it must cause.
fn bugs(
    only: &str,
    seeds: std::ops::Range<u64>,
    jobs: u64,
    options: impl Fn(u64) -> Options + Sync,
) -> std::process::ExitCode {
    let named = |b: &(Bug, &[Extra], &[Sign])| format!("{:?}", b.0).contains(only);
    let all: Vec<_> = Bug::ALL.into_iter().filter(named).collect();
    std::panic::set_hook(Box::new(|_| {}));
    let next = AtomicU64::new(0);
    let (sound, found) = (Mutex::new(BTreeMap::new()), AtomicU64::new(0));
    // Two threads may try the same at the same time; they come to the same.
    let is_sound = |o: &Options| {
        let key = (o.seed, o.extras);
        let known = sound.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied();
        known.unwrap_or_else(|| {
            let good = run(&Options { bug: None, ..*o }).is_ok();
            sound.lock().unwrap_or_else(PoisonError::into_inner).insert(key, good);
            good
        })
    };
    std::thread::scope(|s| {
        for _ in 0..jobs {
            s.spawn(|| {
                while let Some((bug, faults, signs)) =
                    all.get(next.fetch_add(1, Ordering::Relaxed) as usize).copied()
                {
                    let faults = (!faults.is_empty()).then(|| Extras::these(faults));
                    let mut others: BTreeMap<Sign, Failure> = BTreeMap::new();
                    let mut planted = |seed| {
                        let o = options(seed);
                        let o = Options { bug: Some(bug), extras: o.extras.or(faults), ..o };
                        let failure = run(&o).err()?;
                        if signs.contains(&failure.sign) {
                            return Some(failure).filter(|_| is_sound(&o));
                        }
                        others.entry(failure.sign).or_insert(failure);
                        None
                    };
                    match seeds.clone().find_map(&mut planted) {
                        Some(f) => {
                            found.fetch_add(1, Ordering::Relaxed);
                            println!("{bug:?}: seed {}: {:?}: {:.200}", f.seed, f.sign, f.why);
                        }
                        None => println!("{bug:?} was NOT found"),
                    }
                    for (sign, f) in others {
                        println!(
                            "  {bug:?} at seed {} does not count: {sign:?}: {:.200}",
                            f.seed, f.why
                        );
                    }
                }
            });
        }
    });
    let found = found.into_inner() as usize;
    let all = all.len();
    println!(
        "{found} of {all} planted bugs were found in at most {} seeds",
        seeds.end - seeds.start
    );
    if found == all { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE }
}

fn main() -> std::process::ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let (first, count) = (number(&args, "--seed", 0), number(&args, "--seeds", 1));
    let storm_s = number(&args, "--storm", 25);
    let named = args.iter().position(|a| a == "--faults").and_then(|i| args.get(i + 1));
    let extras = match named.map(|n| Extras::named(n)).transpose() {
        Ok(extras) => extras,
        Err(why) => {
            println!("{why}");
            return std::process::ExitCode::FAILURE;
        }
    };
    let options = |seed| Options { storm_s, extras, ..Options::new(seed) };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let jobs = number(&args, "--jobs", threads).max(1);
    let began = std::time::Instant::now();
    if args.iter().any(|a| a == "--bugs") {
        let only = args.iter().position(|a| a == "--bug").and_then(|i| args.get(i + 1));
        return bugs(only.map_or("", String::as_str), first..first + count.max(2), jobs, options);
    }
    if args.iter().any(|a| a == "--tell") {
        // What the daemons log, too.
        tracing_subscriber::fmt().without_time().with_ansi(false).init();
        println!("{:?}", run(&Options { tell: true, ..options(first) }));
        return std::process::ExitCode::SUCCESS;
    }
    if count == 1 {
        let cpu = cpu_us();
        return match in_detail(&options(first)) {
            Ok(r) => {
                let spent = (cpu_us() - cpu).max(1) / 2;
                println!("{:.0} times as fast as time", r.time_us as f64 / spent as f64);
                std::process::ExitCode::SUCCESS
            }
            Err(why) => {
                println!("{why}");
                std::process::ExitCode::FAILURE
            }
        };
    }
    let (next, failed, sum) =
        (AtomicU64::new(first), AtomicBool::new(false), Mutex::new(Sum::default()));
    let all = args.iter().any(|a| a == "--all");
    std::thread::scope(|s| {
        for _ in 0..jobs.min(count) {
            s.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count || failed.load(Ordering::Relaxed) && !all {
                        return;
                    }
                    let cpu = cpu_us();
                    let result = run(&options(seed));
                    let spent = cpu_us() - cpu;
                    let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
                    match result {
                        Ok(r) => {
                            sum.add(&r, spent);
                            sum.had(extras.unwrap_or_else(|| Extras::of(seed)), &r);
                        }
                        Err(f) => {
                            println!("{f}");
                            failed.store(true, Ordering::Relaxed);
                            sum.failures.push(f);
                        }
                    }
                }
            });
        }
    });
    let sum = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!(
        "{count} seeds from {first}: {} commands and {} operations answered, {} events, {:.0} s of \
            virtual time in \
         {:.1} s, {:.0} times as fast as time on each core",
        sum.commands,
        sum.operations,
        sum.steps,
        sum.virtual_us as f64 / 1e6,
        began.elapsed().as_secs_f64(),
        sum.virtual_us as f64 / sum.cpu_us.max(1) as f64
    );
    println!("{:?}", sum.probes);
    let troubled =
        sum.troubled.iter().map(|(name, [seeds, came])| format!("{name} {seeds} ({came})"));
    println!(
        "seeds with each of --faults (and in which it came about): {}",
        troubled.collect::<Vec<_>>().join(", ")
    );
    // What a fault is about must have come about, or its seeds prove nothing.
    let asked = |e: Extra, weight: u64| {
        extras.map_or(weight > 0 && count >= ORDINARY, |x| x.has(e) && count >= NAMED)
    };
    let awaited = Extra::ALL.iter().filter(|(_, e, weight)| asked(*e, *weight));
    let mut idle: Vec<&str> = awaited.flat_map(|(_, e, _)| e.shows()).copied().collect();
    idle.retain(|name| !sum.probes.contains_key(name));
    if sum.operations == 0 && sum.failures.is_empty() {
        println!("no operation of any client was answered");
        return std::process::ExitCode::FAILURE;
    }
    if !idle.is_empty() && sum.failures.is_empty() {
        println!("these never came about: {idle:?}");
        return std::process::ExitCode::FAILURE;
    }
    if sum.failures.is_empty() {
        std::process::ExitCode::SUCCESS
    } else {
        std::process::ExitCode::FAILURE
    }
}
