//! `spirula bench objects`: what `rados bench` does, and what it leaves out.

use crate::args::{CleanArgs, Kind, Lab, ObjectsArgs, Preset};
use crate::bail;
use crate::expect::{Baseline, Geometry, bottleneck};
use crate::generator::{Generator, Outcome, Remote, Running, Via};
use crate::litter::{Note, prefix_of};
use crate::load::{Live, Load, Mode, Plan};
use crate::prelude::*;
use crate::progress::{Progress, bytes_rate, ms, size};
use crate::record::Record;
use crate::session::{Session, Way};
use crate::shown::Shown;
use crate::used::{Used, Watch};
use spirula_maps::osdmap::PgPool;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The pool that is made where none was named.
pub const POOL: &str = "spirula-bench";
/// Its application, by which a pool that a run made is known.
const APPLICATION: &str = "bench";
/// Objects that reads need are made of so many bytes, where nobody says how many.
const PREFILL: u64 = 256 << 20;
/// Payloads on their way in that a generator may hold, bytes.
const MEMORY: (usize, usize) = (64 << 20, 1 << 30);
/// Time without a single answer after the end of a load, after which the cluster is given up.
const STUCK: Duration = Duration::from_secs(120);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);

/// One load of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What is done.
    pub mode: Mode,
    /// In flight, of each generator.
    pub in_flight: u64,
    /// Seconds.
    pub seconds: u64,
    /// Clients.
    pub generators: u64,
}

/// What does not differ between the loads of a run.
#[derive(Clone, Debug)]
pub struct Common {
    /// Bytes per operation, and per object.
    pub size: u64,
    /// See `size`.
    pub object_size: u64,
    /// Seconds that are not counted.
    pub warm_up: u64,
    /// Operations a second, of all generators.
    pub rate: Option<f64>,
    /// Objects that reads want, of each generator.
    pub objects: Option<u64>,
}

/// A pool that is measured, with the clients that do it.
pub struct Bench {
    main: Session,
    generators: Vec<Generator>,
    way: Way,
    /// The pool.
    pub geometry: Geometry,
    note: Option<Note>,
    common: Common,
    /// Of each generator: objects that are whole, and those that may be there.
    there: Vec<(u64, u64)>,
    stop: Arc<AtomicBool>,
}

/// A load on one generator.
struct Run {
    generator: usize,
    running: Running,
    live: Arc<Live>,
    /// Of writes: the number of its first object.
    from: u64,
    outcome: Option<Outcome>,
}

/// What a load found, and what it used.
pub struct Found {
    /// Operations and latencies.
    pub record: Record,
    /// CPU, disks, networks.
    pub used: Used,
}

fn mode_of(kind: Kind, read_percent: u8) -> Mode {
    match kind {
        Kind::Write => Mode::Write,
        Kind::Seq => Mode::Seq,
        Kind::Rand => Mode::Rand,
        Kind::Randwrite => Mode::RandWrite,
        Kind::Mixed => Mode::Mixed(read_percent),
    }
}

/// The loads that were asked for, in their order.
pub fn steps(a: &ObjectsArgs) -> Vec<Step> {
    // What was said counts, else what the report had, else the default.
    let step = |mode, in_flight, seconds, generators| Step {
        mode,
        in_flight: a.threads.unwrap_or(in_flight),
        seconds: a.seconds.unwrap_or(seconds),
        generators: a.generators.unwrap_or(generators),
    };
    // So many generators where nothing says how many.
    let all = (a.on.len() as u64).max(1);
    match a.preset {
        Some(Preset::Thesis) => [(10, 16), (30, 32), (60, 64)]
            .iter()
            .flat_map(|(s, t)| [step(Mode::Write, *t, *s, all), step(Mode::Rand, *t, *s, all)])
            .collect(),
        Some(Preset::Centerdevice) => [1, 4]
            .iter()
            .flat_map(|g| [step(Mode::Write, 16, 300, *g), step(Mode::Seq, 16, 300, *g)])
            .collect(),
        Some(Preset::Cern) => vec![step(Mode::Write, 100, 30, all), step(Mode::Seq, 100, 30, all)],
        None => a.kinds.iter().map(|k| step(mode_of(*k, a.read_percent), 16, 10, all)).collect(),
    }
}

impl Bench {
    /// Connects, finds or makes the pool, and clears away what dead runs left in it.
    ///
    /// # Errors
    /// When the cluster cannot be reached, the pool is not there, or has no room.
    pub fn begin(
        way: Way,
        a: &ObjectsArgs,
        common: Common,
        steps: &[Step],
        stop: Arc<AtomicBool>,
    ) -> Result<Self> {
        let generators = steps.iter().map(|s| s.generators).max().unwrap_or(1);
        let in_flight = steps.iter().map(|s| s.in_flight).max().unwrap_or(1);
        let vias: Vec<Via> =
            a.on.iter().map(|host| Via::new(host, &a.via)).collect::<Result<_>>()?;
        let pool = a.pool.as_deref();
        let memory = usize::try_from(in_flight.saturating_mul(common.size).saturating_mul(2))
            .unwrap_or(usize::MAX);
        let memory = memory.clamp(MEMORY.0, MEMORY.1);
        let main = Session::open(&way, MEMORY.0)?;
        let mut all = Vec::new();
        // Before anything is written: a host that cannot be reached leaves nothing to clear away.
        for g in 0..generators as usize {
            all.push(match vias.get(g % vias.len().max(1)) {
                Some(via) => {
                    let conf = way
                        .conf
                        .as_deref()
                        .context("generators of --on need a ceph.conf; give --conf")?;
                    Generator::There(Remote::start(
                        via,
                        conf,
                        &format!("client.{}", way.user),
                        memory,
                    )?)
                }
                None => Generator::Here(Session::open(&way, memory)?),
            });
        }
        let geometry = find_pool(&main, pool.unwrap_or(POOL), pool.is_none())?;
        let note = Note::take(&main, geometry.pool, generators, in_flight)?;
        let there = vec![(0, 0); generators as usize];
        Ok(Self { main, generators: all, way, geometry, note: Some(note), common, there, stop })
    }

    /// The way to the cluster.
    pub fn way(&self) -> &Way {
        &self.way
    }

    /// The client that asks for things; it generates no load.
    pub fn session(&self) -> &Session {
        &self.main
    }

    fn prefix(&self, generator: usize) -> String {
        prefix_of(self.note.as_ref().map_or("", |n| &n.prefix), generator as u64)
    }

    fn plan(&self, step: &Step, generator: usize) -> Plan {
        let there = self.there.get(generator).copied().unwrap_or_default();
        Plan {
            mode: step.mode,
            size: self.common.size,
            object_size: self.common.object_size,
            in_flight: step.in_flight as usize,
            time: Duration::from_secs(step.seconds),
            warm_up: Duration::from_secs(self.common.warm_up),
            rate: self.common.rate.map(|r| r / step.generators as f64),
            most: None,
            objects: if step.mode == Mode::Write { there.1 } else { there.0 },
            pool: self.geometry.pool,
            prefix: self.prefix(generator),
            seed: 0x5eed + generator as u64,
        }
    }

    /// Makes the objects that reads and random writes need.
    fn prefill(&mut self, step: &Step, progress: &mut Progress) -> Result<()> {
        let (object, wanted) = (self.common.object_size, self.common.objects);
        let least = wanted.unwrap_or((PREFILL / object).max(16));
        let plans: Vec<(usize, Plan)> = (0..step.generators as usize)
            .filter(|g| wanted.map_or(self.there[*g].0 == 0, |w| self.there[*g].0 < w))
            .map(|g| {
                let missing = least - self.there[g].0;
                let fill =
                    Step { mode: Mode::Write, in_flight: 16, seconds: 86_400, generators: 1 };
                let mut plan = self.plan(&fill, g);
                plan.objects = self.there[g].0;
                (plan.size, plan.most, plan.rate, plan.warm_up) =
                    (object, Some(missing), None, Duration::ZERO);
                (g, plan)
            })
            .collect();
        if plans.is_empty() {
            return Ok(());
        }
        let total: u64 = plans.iter().filter_map(|p| p.1.most).sum();
        let text = format!("writing {total} objects of {} to read", size(object));
        self.run_plans(plans, progress, Some((total, &text))).map(drop)
    }

    /// Runs one load, repeated nowhere.
    ///
    /// # Errors
    /// When the cluster refuses or does not answer.
    pub fn measure(&mut self, step: &Step, progress: &mut Progress) -> Result<Found> {
        if step.mode == Mode::Write {
            self.clear()?;
        } else {
            self.prefill(step, progress)?;
        }
        let plans = (0..step.generators as usize).map(|g| (g, self.plan(step, g))).collect();
        self.run_plans(plans, progress, None)
    }

    fn run_plans(
        &mut self,
        plans: Vec<(usize, Plan)>,
        progress: &mut Progress,
        total: Option<(u64, &str)>,
    ) -> Result<Found> {
        let Some((_, first)) = plans.first() else { bail!("no generator") };
        let (time, warm_up, op_size) = (first.time, first.warm_up, first.size);
        let (rate, mode, per) = (first.rate, first.mode, (first.object_size / first.size).max(1));
        let mut runs: Vec<Run> = Vec::new();
        let begun = Instant::now();
        let over = Arc::new(AtomicBool::new(false));
        for (g, plan) in plans {
            let load = Load::new(plan);
            let (live, from) = (load.live.clone(), load.plan().objects);
            let generator = self.generators.get_mut(g).context("no such generator")?;
            let running = generator.drive(load)?;
            if let (Some(rate), Generator::Here(session)) = (rate, &*generator) {
                pace(session, rate, over.clone())?;
            }
            runs.push(Run { generator: g, running, live, from, outcome: None });
        }
        let conf_dir = self.way.conf.as_deref().and_then(Path::parent).map(Path::to_owned);
        let look = || Watch::begin_of(conf_dir.as_deref());
        let mut watch = (warm_up.is_zero()).then(look);
        let (mut last, mut heard) = ((Instant::now(), 0), Instant::now());
        let mut looked = Instant::now();
        let pause = LOOK / runs.len() as u32;
        while runs.iter().any(|r| r.outcome.is_none()) {
            for r in runs.iter_mut().filter(|r| r.outcome.is_none()) {
                let generator =
                    self.generators.get_mut(r.generator).context("no such generator")?;
                r.outcome = generator.ended(&mut r.running, &r.live, pause)?;
                // One whose load failed ends those of the others.
                if r.outcome.as_ref().is_some_and(|o| o.failed.is_some()) {
                    break;
                }
            }
            if runs.iter().any(|r| r.outcome.as_ref().is_some_and(|o| o.failed.is_some())) {
                runs.iter().for_each(|r| r.live.stop.store(true, Ordering::Relaxed));
            }
            if watch.is_none() && begun.elapsed() >= warm_up {
                watch = Some(look());
            }
            if looked.elapsed() >= Duration::from_secs(1)
                && let Some(w) = &mut watch
            {
                looked = Instant::now();
                w.look();
            }
            if self.stop.load(Ordering::Relaxed) {
                runs.iter().for_each(|r| r.live.stop.store(true, Ordering::Relaxed));
            }
            let ops: u64 = runs.iter().map(|r| r.live.ops.load(Ordering::Relaxed)).sum();
            if ops != last.1 {
                heard = Instant::now();
            }
            if heard.elapsed() > STUCK
                && (begun.elapsed() > warm_up + time || self.stop.load(Ordering::Relaxed))
            {
                over.store(true, Ordering::Relaxed);
                // What was asked may still be written: the note stays, and the next run clears it
                // away.
                bail!(
                    "the cluster has not answered for {} s ('ceph -s' says how it is)",
                    heard.elapsed().as_secs()
                );
            }
            let since = last.0.elapsed().as_secs_f64();
            if since >= LOOK.as_secs_f64() {
                let iops = (ops - last.1) as f64 / since;
                let text = format!("{iops:.0} op/s, {}", bytes_rate(iops * op_size as f64));
                match total {
                    Some((total, what)) => {
                        progress.at(ops as f64 / total.max(1) as f64, &format!("{what}: {text}"))
                    }
                    None => {
                        let whole = (warm_up + time).as_secs_f64();
                        let warm = if begun.elapsed() < warm_up { " (warming up)" } else { "" };
                        let part = begun.elapsed().as_secs_f64() / whole;
                        progress.at(
                            part,
                            &format!(
                                "{:.0} of {whole:.0} s: {text}{warm}",
                                begun.elapsed().as_secs_f64()
                            ),
                        );
                    }
                }
                last = (Instant::now(), ops);
            }
        }
        over.store(true, Ordering::Relaxed);
        progress.end();
        let (mut record, mut failed, mut cpu) = (Record::default(), None, 0.0);
        for (g, from, outcome) in
            runs.into_iter().filter_map(|r| Some((r.generator, r.from, r.outcome?)))
        {
            if let (Mode::Write, Some(there)) = (mode, self.there.get_mut(g)) {
                let whole = outcome.operations / per;
                // A prefill goes on where whole objects end.
                *there = (from + whole, (from + outcome.objects).max(there.1));
            }
            failed = failed.or(outcome.failed);
            record.merge(&outcome.record);
            cpu += outcome.cpu;
        }
        if let Some(why) = failed {
            bail!("{why}");
        }
        if self.stop.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        let mut used = watch.unwrap_or_else(look).end(record.ops);
        used.add_clients(cpu, record.ops);
        Ok(Found { record, used })
    }

    /// Removes all objects.
    fn clear(&mut self) -> Result<()> {
        let objects: Vec<u64> = self.there.iter().map(|t| t.1).collect();
        if let Some(note) = &self.note {
            note.empty(&self.main, &objects)?;
        }
        self.there.fill((0, 0));
        Ok(())
    }

    /// Ends it: objects and note go, and the pool, if we made it.
    ///
    /// # Errors
    /// When the cluster does not do it.
    pub fn finish(mut self, keep: bool) -> Result<Option<String>> {
        let Some(note) = self.note.take() else { return Ok(None) };
        if keep {
            return Ok(Some(format!(
                "the objects stay; 'spirula bench clean --pool {}' removes them",
                self.geometry.name
            )));
        }
        let objects: Vec<u64> = self.there.iter().map(|t| t.1).collect();
        note.clean(&self.main, &objects)?;
        remove_pool(&self.main, &self.geometry)
    }
}

/// The pool, made where it is one of ours.
///
/// # Errors
/// When it is not there, is full, or no OSD serves it.
pub fn find_pool(main: &Session, name: &str, make: bool) -> Result<Geometry> {
    let find = || {
        let wanted = name.to_owned();
        main.look(move |map| Geometry::of(map, &wanted))
    };
    let mut found = find()?;
    let made = found.is_none() && make;
    if made {
        main.command(&json!({"prefix": "osd pool create", "pool": name, "pg_num": 32}))
            .context("make a pool to measure with")?;
        // Not a must: a health warning tells of pools without it.
        let _ = main.command(
            &json!({"prefix": "osd pool application enable", "pool": name, "app": APPLICATION}),
        );
        for _ in 0..100 {
            found = find()?;
            if found.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    let Some(mut geometry) = found else {
        let names: Vec<String> = main.look(|map| map.pool_names.values().cloned().collect())?;
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        bail!("there is no pool '{name}'; the cluster has {names}");
    };
    let id = geometry.pool;
    let full = main.look(move |map| {
        use spirula_maps::osdmap::{flag, flags};
        map.has_flag(flags::FULL) || map.pool(id).is_some_and(|p| p.has_flag(flag::FULL))
    })?;
    if full {
        bail!("the pool {name} is full: nothing can be written");
    }
    if geometry.osds == 0 {
        bail!("no OSD is up and in: nothing can be done");
    }
    geometry.made = made;
    geometry.count_disks(main);
    Ok(geometry)
}

/// Removes the pool if this run made it, unless anybody has an object in it. Gives a word to say if
/// one that was to go stays.
///
/// # Errors
/// When the pool does not answer.
pub fn remove_pool(session: &Session, g: &Geometry) -> Result<Option<String>> {
    let name = &g.name;
    // One that was there may be somebody's, whatever it is called.
    if !g.made || !crate::litter::is_empty(session, g.pool, g.pg_num)? {
        return Ok(None);
    }
    let rm = json!({"prefix": "osd pool rm", "pool": name, "pool2": name, "yes_i_really_really_mean_it": true});
    Ok(session.command(&rm).err().map(|e| format!("the pool {name} stays, empty: {e:#}")))
}

/// Wakes a session's load at the rate: the event loop's own timers are coarser than what is
/// measured.
///
/// # Errors
/// When there can be no thread for it.
pub fn pace(session: &Session, rate: f64, over: Arc<AtomicBool>) -> Result<()> {
    let nudge = session.nudger();
    let pause = Duration::from_secs_f64((1.0 / rate).clamp(0.000_2, 0.1));
    std::thread::Builder::new()
        .name("pace".into())
        .spawn(move || {
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(pause);
                nudge();
            }
        })
        .context("start a thread")?;
    Ok(())
}

/// How a load is called in results: those of the same name are compared with each other.
pub fn name_of(step: &Step, common: &Common) -> String {
    let of = if common.object_size == common.size {
        String::new()
    } else {
        format!(" in {}", size(common.object_size))
    };
    let mode = match step.mode {
        Mode::Mixed(p) => format!("mixed {p}/{}", 100 - p),
        m => m.name().to_owned(),
    };
    let many = if step.generators > 1 { format!("{} × ", step.generators) } else { String::new() };
    let rate = common.rate.map(|r| format!(" at {r}/s")).unwrap_or_default();
    format!("{mode} {}{of}, {many}{} in flight{rate}", size(common.size), step.in_flight)
}

/// A measurement as it stands in a result.
pub fn run_json(
    step: &Step,
    common: &Common,
    repeat: u64,
    f: &Found,
    g: &Geometry,
    baseline: Option<&Baseline>,
) -> Value {
    let mean = f.record.latency.mean() / 1e6;
    json!({
        "name": name_of(step, common), "repeat": repeat, "mode": step.mode.name(), "size": common.size,
        "object_size": common.object_size, "threads": step.in_flight, "generators": step.generators,
        "seconds": step.seconds, "warm_up": common.warm_up, "rate": common.rate, "found": f.record.json(),
        "used": f.used.json, "expected": baseline.and_then(|b| b.expected(g, step.mode, common.size)),
        "bottleneck": bottleneck(&f.used, step.in_flight * step.generators, f.record.iops(), mean),
    })
}

/// One line about a measurement.
pub fn line(run: &Value) -> String {
    let f = &run["found"];
    let number = |v: &Value| v.as_f64().unwrap_or(0.0);
    let mut text = format!(
        "{:<34} {:>9.1} op/s {:>11}  mean {:>8}  p99 {:>8}  max {:>8}",
        run["name"].as_str().unwrap_or_default(),
        number(&f["iops"]),
        bytes_rate(number(&f["bytes_per_s"])),
        ms(number(&f["latency_ms"]["mean"])),
        ms(number(&f["latency_ms"]["p99"])),
        ms(number(&f["latency_ms"]["max"])),
    );
    if let Some(missed) = f["missed"].as_u64().filter(|n| *n > 0) {
        text += &format!(
            "  ({missed} were due and could never be begun: the rate is more than it gives)"
        );
    }
    if let Some(expected) = run["expected"]["iops"].as_f64() {
        text += &format!(
            "  ({:.0} % of the expected {expected:.0})",
            100.0 * number(&f["iops"]) / expected.max(0.001)
        );
    }
    text
}

/// What does not differ between the loads that were asked for.
///
/// # Errors
/// When what was asked for makes no sense.
pub fn common_of(a: &ObjectsArgs, steps: &[Step]) -> Result<Common> {
    let partial = steps.iter().any(|s| matches!(s.mode, Mode::RandWrite | Mode::Mixed(_)));
    let object_size = a.object_size.unwrap_or(if partial { a.size.max(4 << 20) } else { a.size });
    if !object_size.is_multiple_of(a.size) {
        bail!("--object-size {object_size} is no multiple of --size {}", a.size);
    }
    if a.rate.is_some_and(|r| !(0.01..=1e6).contains(&r)) {
        bail!("--rate must be from 0.01 to 1000000 operations a second");
    }
    if a.objects == Some(0) {
        bail!("--objects 0: there would be nothing to read");
    }
    Ok(Common { size: a.size, object_size, warm_up: a.warm_up, rate: a.rate, objects: a.objects })
}

/// `spirula bench objects`.
///
/// # Errors
/// When the cluster cannot be reached or refuses, with the reason; what was written is removed
/// then, too.
pub fn objects(lab: &Lab, a: &ObjectsArgs) -> Result<()> {
    let mut steps = steps(a);
    if a.find_knee {
        // What is found for the first of them is the answer.
        steps.truncate(1);
    }
    let common = common_of(a, &steps)?;
    let baseline =
        a.baseline.as_deref().map(crate::results::read).transpose()?.map(|v| Baseline::of(&v));
    let way = (lab.connect)(&a.target)?;
    let mut shown = Shown::new(lab, "objects", &a.output)?;
    let mut bench = Bench::begin(way, a, common.clone(), &steps, lab.stop.clone())?;
    shown.results.set("cluster", cluster_of(bench.session()));
    shown.results.set("pool", bench.geometry.json());
    let outcome = if a.find_knee {
        knee(&mut bench, &steps[0], &common, baseline.as_ref(), &mut shown)
    } else {
        all(&mut bench, &steps, a.repeats, &common, baseline.as_ref(), &mut shown)
    };
    // Also what failed is cleaned up; what failed first is what is said.
    let left = bench.finish(a.no_cleanup);
    outcome?;
    if let Some(word) = left? {
        shown.progress.say(&word);
    }
    let last = shown.results.value()["runs"]
        .as_array()
        .and_then(|r| r.last())
        .cloned()
        .unwrap_or_default();
    if let (Some(what), Some(evidence)) =
        (last["bottleneck"]["what"].as_str(), last["bottleneck"]["evidence"].as_str())
    {
        shown.progress.say(&format!("bottleneck of the last: {what} ({evidence})"));
    }
    shown.finish()
}

fn all(
    bench: &mut Bench,
    steps: &[Step],
    repeats: u64,
    common: &Common,
    baseline: Option<&Baseline>,
    shown: &mut Shown<'_>,
) -> Result<()> {
    for repeat in 0..repeats {
        for step in steps {
            let found = bench.measure(step, &mut shown.progress)?;
            let run = run_json(step, common, repeat, &found, &bench.geometry, baseline);
            shown.add(&line(&run), run)?;
        }
    }
    Ok(())
}

/// Doubles what is in flight until that gives less than a twentieth more, twice in a row.
fn knee(
    bench: &mut Bench,
    step: &Step,
    common: &Common,
    baseline: Option<&Baseline>,
    shown: &mut Shown<'_>,
) -> Result<()> {
    let (mut best, mut in_vain, mut tried) = (0.0, 0, Vec::new());
    let mut in_flight = 1;
    while in_flight <= 1024 && in_vain < 2 {
        let step = Step { in_flight, ..step.clone() };
        let found = bench.measure(&step, &mut shown.progress)?;
        let iops = found.record.iops();
        tried.push((in_flight, iops));
        let run = run_json(&step, common, 0, &found, &bench.geometry, baseline);
        shown.add(&line(&run), run)?;
        if iops < best * 1.05 {
            in_vain += 1
        } else {
            in_vain = 0
        }
        best = iops.max(best);
        in_flight *= 2;
    }
    let enough = tried.iter().find(|t| t.1 >= best * 0.95).map_or(0, |t| t.0);
    shown.results.set("knee", json!({"in_flight": enough, "iops": round(best, 1)}));
    shown.progress.say(&format!(
        "{enough} in flight are enough: 95 % of the most that was seen, {best:.0} op/s"
    ));
    Ok(())
}

/// What the cluster says of itself, for a result.
pub fn cluster_of(session: &Session) -> Value {
    let versions = session.ask("versions").unwrap_or_default();
    let overall = versions["overall"]
        .as_object()
        .map(|o| o.keys().cloned().collect::<Vec<_>>())
        .unwrap_or_default();
    let fsid = session.look(|m| m.fsid.to_string()).unwrap_or_default();
    json!({"fsid": fsid, "versions": overall})
}

/// `spirula bench clean`.
///
/// # Errors
/// When the cluster cannot be reached or refuses.
pub fn clean(lab: &Lab, a: &CleanArgs) -> Result<()> {
    let way = (lab.connect)(&a.target)?;
    // First what a drill owes: without it the pool may not serve anybody.
    crate::drill::settle(lab, &way)?;
    let session = Session::open(&way, MEMORY.0)?;
    let name = a.pool.clone();
    let Some(mut g) = session.look(move |map| Geometry::of(map, &name))? else {
        if a.pool == POOL {
            lab.say("nothing to clean: there is no pool of a run");
            return Ok(());
        }
        bail!("there is no pool '{}'", a.pool);
    };
    let host = a.host.clone().unwrap_or_else(crate::used::hostname);
    let (dead, left) = crate::litter::clean(&session, g.pool, &host, a.host.is_some())?;
    lab.say(format!("cleared what {dead} runs of {host} left in {}; {left} are under way", a.pool));
    // A run that was killed could not remove the pool that it had made.
    let id = g.pool;
    let of_a_run = |p: &PgPool| p.application_metadata.keys().eq([APPLICATION]);
    g.made = g.name == POOL && session.look(move |map| map.pool(id).is_some_and(of_a_run))?;
    if let Err(e) = crate::block::clear(&session, &way, &g, &host, a.host.is_some()) {
        lab.say(crate::block::left_over(&a.pool, &e));
    }
    if let Some(word) = remove_pool(&session, &g)? {
        lab.say(word);
    }
    Ok(())
}
