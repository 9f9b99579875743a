//! The runner of a drill: the load, the clock, what the cluster says meanwhile, and waiting for
//! something with a limit.

use super::cluster::Cluster;
use super::load::{Seen, Verify, VerifyPlan};
use super::owed::{self, Journal, Undo};
use super::scenes::Scene;
use crate::args::DrillArgs;
use crate::bail;
use crate::expect::Geometry;
use crate::litter::{Note, prefix_of};
use crate::objects;
use crate::prelude::*;
use crate::progress::Progress;
use crate::record::{Record, histogram};
use crate::session::{Driven, Session, Way};
use spirula_runtime::clock;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The pool that is made where none was named.
const POOL: &str = "spirula-drill";
/// Between two looks at the map, and between two at the cluster's status.
const LOOK: Duration = Duration::from_millis(50);
const ASK: Duration = Duration::from_millis(500);
/// How long the monitors may take to say how the cluster is: during a drill they may be gone.
const PATIENCE: Duration = Duration::from_millis(1500);
/// All PGs must be said to be clean for so long: what the monitors know of them is a moment old.
const CALM: Duration = Duration::from_secs(3);
/// How long everything may take to be read a last time.
const LAST: Duration = Duration::from_secs(300);
/// Samples of the timeline that are kept.
const SAMPLES: usize = 20_000;

/// What the cluster says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// PGs in each state.
    pub states: Vec<(String, u64)>,
    /// Copies of objects that are missing.
    pub degraded: u64,
    /// Bytes a second that are recovered.
    pub recovering: f64,
    /// `HEALTH_OK` and its like.
    pub health: String,
    /// Names of its checks.
    pub checks: BTreeSet<String>,
    /// The monitors that are in quorum.
    pub quorum: Vec<String>,
}

impl Status {
    fn of(v: &Value) -> Self {
        let states = v["pgmap"]["pgs_by_state"].as_array().into_iter().flatten();
        let state = |s: &Value| Some((s["state_name"].as_str()?.to_owned(), s["count"].as_u64()?));
        let names = v["quorum_names"].as_array().into_iter().flatten();
        Self {
            states: states.filter_map(state).collect(),
            degraded: v["pgmap"]["degraded_objects"].as_u64().unwrap_or(0),
            recovering: v["pgmap"]["recovering_bytes_per_sec"].as_f64().unwrap_or(0.0),
            health: v["health"]["status"].as_str().unwrap_or_default().to_owned(),
            checks: v["health"]["checks"]
                .as_object()
                .into_iter()
                .flat_map(|o| o.keys().cloned())
                .collect(),
            quorum: names.filter_map(|n| n.as_str().map(str::to_owned)).collect(),
        }
    }

    /// Every PG is active and clean. One that is being scrubbed is, too.
    pub fn is_clean(&self) -> bool {
        let clean = |s: &str| {
            s.split('+').all(|w| {
                ["active", "clean", "scrubbing", "deep", "snaptrim", "snaptrim_wait"].contains(&w)
            })
        };
        !self.states.is_empty()
            && self.states.iter().all(|(s, _)| clean(s) && s.contains("active+clean"))
    }
}

/// A drill that runs.
pub struct Run {
    /// The client that watches.
    pub session: Session,
    /// The cluster's daemons.
    pub cluster: Cluster,
    /// The pool.
    pub geometry: Geometry,
    /// How the cluster is reached.
    pub way: Way,
    /// What was asked for.
    pub args: DrillArgs,
    progress: Progress,
    stop: Arc<AtomicBool>,
    loader: Session,
    load: Option<Driven<Verify>>,
    seen: Arc<Mutex<Seen>>,
    end_load: Arc<AtomicBool>,
    checked: Arc<AtomicU64>,
    note: Option<Note>,
    begun: Duration,
    /// Names and beginnings of the phases.
    phases: Vec<(&'static str, Duration)>,
    events: Vec<Value>,
    timeline: Vec<Value>,
    status: Status,
    asked: Duration,
    up: BTreeSet<i32>,
    detect: Option<Duration>,
    clean: Option<Duration>,
    moved: f64,
    degraded: u64,
    journal: Journal,
    /// When the cluster was hurt last, and when that was put back.
    hurt: Duration,
    back: Option<Duration>,
}

impl Run {
    /// Connects, makes the pool, waits until all is clean, and begins the load.
    ///
    /// # Errors
    /// When the cluster cannot be reached, or is not whole.
    pub fn begin(
        way: Way,
        cluster: Cluster,
        mut journal: Journal,
        a: &DrillArgs,
        progress: Progress,
        stop: Arc<AtomicBool>,
    ) -> Result<Self> {
        let session = Session::open(&way, 16 << 20)?;
        let loader = Session::open(&way, 64 << 20)?;
        let name = a.pool.clone().unwrap_or_else(|| POOL.to_owned());
        let wanted = name.clone();
        let there = session.look(move |m| Geometry::of(m, &wanted).is_some())?;
        let left =
            Undo::Objects { pool: name.clone(), made: !there && a.pool.is_none(), rotten: false };
        journal.owe_as(owed::LAST, left.clone())?;
        let geometry = objects::find_pool(&session, &name, a.pool.is_none());
        let placed =
            geometry.and_then(|g| Ok((Note::take(&session, g.pool, 1, a.objects.min(1024))?, g)));
        let (note, geometry) = match placed {
            Ok(placed) => placed,
            Err(e) => {
                left.there(&session)
                    .and_then(|_| journal.done(owed::LAST))
                    .context("and the pool could not be left as it was")?;
                return Err(e);
            }
        };
        let plan = VerifyPlan {
            pool: geometry.pool,
            prefix: prefix_of(&note.prefix, 0),
            objects: a.objects,
            rate: a.rate,
            seed: a.seed,
        };
        let load = Verify::new(plan);
        let (seen, end_load, checked) =
            (load.seen.clone(), load.stop.clone(), load.checked.clone());
        let mut run = Self {
            session,
            cluster,
            geometry,
            way,
            args: a.clone(),
            progress,
            stop,
            loader,
            load: None,
            seen,
            end_load,
            checked,
            note: Some(note),
            begun: clock::monotonic(),
            phases: Vec::new(),
            events: Vec::new(),
            timeline: Vec::new(),
            status: Status::default(),
            asked: Duration::ZERO,
            up: BTreeSet::new(),
            detect: None,
            clean: None,
            moved: 0.0,
            degraded: 0,
            journal,
            hurt: Duration::ZERO,
            back: None,
        };
        run.look();
        let limit = Duration::from_secs(a.limit);
        if let Err(e) = run.wait_clean(limit) {
            // Nothing was written yet but the note.
            run.clean_up();
            return Err(e.context("the cluster must be whole before it is hurt"));
        }
        run.begun = clock::monotonic();
        (run.timeline, run.events, run.degraded, run.moved) = (Vec::new(), Vec::new(), 0, 0.0);
        run.load = Some(run.loader.drive(load));
        Ok(run)
    }

    fn now(&self) -> Duration {
        clock::monotonic().saturating_sub(self.begun)
    }

    /// Something happened.
    pub fn event(&mut self, text: &str) {
        let t = round(self.now().as_secs_f64(), 2);
        self.events.push(json!({"t": t, "text": text}));
        self.progress.say(&format!("{t:8.2} s  {text}"));
    }

    /// Another phase begins.
    pub fn phase(&mut self, name: &'static str) {
        self.phases.push((name, clock::monotonic()));
    }

    /// OSDs that are up, by the newest map.
    pub fn up(&self) -> &BTreeSet<i32> {
        &self.up
    }

    /// What the cluster said last.
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// This is to be undone in the end, and by whoever comes after us if we do not come to that;
    /// now it may be done.
    ///
    /// # Errors
    /// When that cannot be written down; then it must not be done.
    pub fn owe(&mut self, undo: Undo) -> Result<()> {
        self.hurt = clock::monotonic();
        self.journal.owe(undo).map(drop)
    }

    /// Bits are flipped now: when the load's objects are gone, the pool is scrubbed once more.
    ///
    /// # Errors
    /// As [`Run::owe`].
    pub fn rots(&mut self) -> Result<()> {
        let made = self.geometry.made;
        self.journal.owe_as(
            owed::LAST,
            Undo::Objects { pool: self.geometry.name.clone(), made, rotten: true },
        )
    }

    /// Looks at the map, and now and then at the status.
    fn look(&mut self) {
        if let Ok(up) =
            self.session.look(|m| (0..m.osd_state.len() as i32).filter(|o| m.is_up(*o)).collect())
        {
            self.up = up;
        }
        let now = clock::monotonic();
        if now.saturating_sub(self.asked) < ASK {
            return;
        }
        let since = now.saturating_sub(self.asked).as_secs_f64();
        self.asked = now;
        let told = self.session.tell(&json!({"prefix": "status", "format": "json"}), PATIENCE);
        let value = told
            .ok()
            .filter(|t| t.result == 0)
            .and_then(|t| serde_json::from_slice::<Value>(&t.output).ok());
        let status = match &value {
            Some(v) => Status::of(v),
            None => Status { health: "the monitors do not answer".into(), ..self.status.clone() },
        };
        if value.is_some() && since < 60.0 {
            self.moved += status.recovering * since;
            self.degraded = self.degraded.max(status.degraded);
        }
        if self.timeline.len() < SAMPLES {
            let states: serde_json::Map<String, Value> =
                status.states.iter().map(|(s, n)| (s.clone(), json!(n))).collect();
            self.timeline.push(json!({
                "t": round(self.now().as_secs_f64(), 2), "states": states, "up": self.up.len(), "degraded": status.degraded,
                "health": status.health,
            }));
        }
        self.status = status;
        let states: Vec<String> =
            self.status.states.iter().map(|(s, n)| format!("{n} {s}")).collect();
        let seen = crate::locked(&self.seen);
        let text = format!(
            "{} OSDs up, {}; {} acknowledged, {} lost, {} wrong",
            self.up.len(),
            states.join(", "),
            seen.writes,
            seen.lost,
            seen.wrong
        );
        drop(seen);
        self.progress.now(&format!("{:.0} s: {text}", self.now().as_secs_f64()));
    }

    fn interrupted(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(())
    }

    /// Time passes.
    ///
    /// # Errors
    /// When somebody interrupts.
    pub fn pass(&mut self, seconds: f64) -> Result<()> {
        let end = clock::monotonic() + Duration::from_secs_f64(seconds);
        while clock::monotonic() < end {
            self.interrupted()?;
            self.look();
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Waits until something is so.
    ///
    /// # Errors
    /// When it is not within the limit, or somebody interrupts.
    pub fn wait(
        &mut self,
        what: &str,
        limit: Duration,
        is: impl Fn(&Self) -> bool,
    ) -> Result<Duration> {
        let begun = clock::monotonic();
        loop {
            self.look();
            let waited = clock::monotonic().saturating_sub(begun);
            if is(self) {
                return Ok(waited);
            }
            if waited > limit {
                bail!(
                    "waited {} s for this: {what}; PGs are {:?}",
                    limit.as_secs(),
                    self.status.states
                );
            }
            self.interrupted()?;
            std::thread::sleep(LOOK);
        }
    }

    /// The fault is noticed; counted from when it was owed to be undone.
    ///
    /// # Errors
    /// As [`Run::wait`].
    pub fn noticed(&mut self, what: &str, is: impl Fn(&Self) -> bool) -> Result<()> {
        self.wait(what, Duration::from_secs(self.args.limit), is)?;
        let took = clock::monotonic().saturating_sub(self.hurt);
        self.detect.get_or_insert(took);
        self.event(&format!("{what}: noticed after {:.2} s", took.as_secs_f64()));
        Ok(())
    }

    /// All PGs are active and clean, and stay so for a moment. Gives the time until they were.
    ///
    /// # Errors
    /// As [`Run::wait`].
    pub fn wait_clean(&mut self, limit: Duration) -> Result<Duration> {
        let begun = clock::monotonic();
        loop {
            let took = self.wait("all PGs are active+clean", limit, |r| r.status.is_clean())?;
            let until = clock::monotonic();
            let mut calm = true;
            while calm && clock::monotonic().saturating_sub(until) < CALM {
                self.pass(0.25)?;
                calm = self.status.is_clean();
            }
            let whole = until.saturating_sub(begun);
            if calm {
                return Ok(whole.max(took));
            }
            if whole > limit {
                bail!(
                    "PGs do not stay active+clean within {} s: {:?}",
                    limit.as_secs(),
                    self.status.states
                );
            }
        }
    }

    /// The same at the end of a fault: it is the time to clean.
    ///
    /// # Errors
    /// As [`Run::wait`].
    pub fn until_clean(&mut self) -> Result<()> {
        let begun = clock::monotonic();
        let waited = self.wait_clean(Duration::from_secs(self.args.limit))?;
        let before = self.back.take().map_or(Duration::ZERO, |back| begun.saturating_sub(back));
        let took = before + waited;
        let most = self.clean.unwrap_or_default().max(took);
        self.clean = Some(most);
        self.event(&format!(
            "all PGs are active+clean, {:.1} s after it was put back",
            took.as_secs_f64()
        ));
        Ok(())
    }

    /// A command that must succeed.
    ///
    /// # Errors
    /// With the monitors' refusal.
    pub fn command(&mut self, command: &Value) -> Result<()> {
        self.session.command(command).map(drop)
    }

    /// Undoes what is owed but for the load's objects. All of it is tried; the first error is
    /// given, and what could not be undone is owed still.
    ///
    /// # Errors
    /// When something could not be put back.
    pub fn put_back(&mut self) -> Result<()> {
        let owed = self.journal.owed(owed::LAST + 1);
        if !owed.is_empty() {
            self.back = Some(clock::monotonic());
        }
        let mut failed = Ok(());
        for (id, undo) in owed {
            match undo.there(&self.session).and_then(|words| self.journal.done(id).map(|()| words))
            {
                Ok(words) => self.event(&words),
                Err(e) => {
                    self.event(&format!("could not be put back: {e:#}"));
                    failed = failed.and(Err(e));
                }
            }
        }
        let at = self.journal.path().display();
        failed.with_context(|| {
            format!(
                "what is owed still stands in {at}: the next drill, or 'spirula bench clean', \
                tries again"
            )
        })
    }

    /// Plays a scene: before, during, after.
    ///
    /// # Errors
    /// When something did not happen within its limit; everything is put back all the same.
    pub fn play(&mut self, scene: Scene) -> Result<()> {
        self.phase("before");
        let before = self.args.before as f64;
        let outcome = self.pass(before).and_then(|()| {
            self.phase("during");
            scene.play(self)
        });
        if self.stop.load(Ordering::Relaxed) {
            self.progress.say(
                "interrupted: what was done is put back (a second time: at once, and the next \
                    drill puts it back)",
            );
        }
        let put_back = self.put_back();
        if self.stop.load(Ordering::Relaxed) {
            return outcome.and(put_back);
        }
        outcome.and(put_back)?;
        if self.clean.is_none() {
            self.until_clean()?;
        }
        self.phase("after");
        self.pass(self.args.after as f64)
    }

    /// Ends it: everything is read once more, and removed. Gives what was found, and whether that
    /// could be done.
    pub fn end(mut self, sound: bool) -> (Value, Result<()>) {
        let ended = clock::monotonic();
        self.end_load.store(true, Ordering::Relaxed);
        let mut told = Ok(());
        if let Some(load) = self.load.take() {
            let wait = if sound { LAST } else { Duration::from_secs(20) };
            // Nudged: a load that waits for nothing looks at its end only then.
            self.loader.nudger()();
            if load.ended(wait).is_none() {
                let n = self.checked.load(Ordering::Relaxed);
                told = Err(anyhow::anyhow!(
                    "only {n} of {} objects could be read in the end",
                    self.args.objects
                ));
            }
        }
        let found = self.found(ended);
        self.progress.end();
        self.clean_up();
        (found, told)
    }

    /// What the load left goes; what does not is owed still.
    fn clean_up(&mut self) {
        let objects = self.args.objects;
        let rotten = self
            .journal
            .owed(owed::LAST)
            .iter()
            .any(|(_, u)| matches!(u, Undo::Objects { rotten: true, .. }));
        let gone = self.note.take().map_or(Ok(()), |note| note.clean(&self.session, &[objects]));
        let left = gone.and_then(|()| {
            super::leave_no_objects(
                &self.session,
                &self.geometry.name,
                self.geometry.made,
                rotten,
            )?;
            self.journal.done(owed::LAST)
        });
        if let Err(e) = left {
            let at = self.journal.path().display().to_string();
            self.progress.say(&format!("the load's objects are owed still ({at}): {e:#}"));
        }
    }

    fn found(&self, ended: Duration) -> Value {
        let seen = crate::locked(&self.seen);
        let (mut record, mut longest) = (Record::default(), Duration::ZERO);
        let (mut last, mut silence) = (self.begun, Duration::ZERO);
        for (at, took, reads) in &seen.done {
            record.add(at.saturating_sub(self.begun), *took, 0, *reads);
            longest = longest.max(*took);
            silence = silence.max(at.saturating_sub(last));
            last = *at;
        }
        // What never ended counts as well.
        if let Some(from) = seen.oldest {
            longest = longest.max(ended.saturating_sub(from));
        }
        let mut phases = Vec::new();
        for (i, (name, from)) in self.phases.iter().enumerate() {
            let to = self.phases.get(i + 1).map_or(ended, |p| p.1);
            let mut h = histogram();
            // Of each operation counts when it was due: what waits belongs to the time in which it
            // began to wait.
            let begun_in = |(at, took, _): &&(Duration, Duration, bool)| {
                (*from..to).contains(&at.saturating_sub(*took))
            };
            for (_, took, _) in seen.done.iter().filter(begun_in) {
                h.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
            }
            let seconds = to.saturating_sub(*from).as_secs_f64();
            let q = |q: f64| round(h.value_at_quantile(q) as f64 / 1e6, 3);
            phases.push(json!({
                "name": name, "from": round(from.saturating_sub(self.begun).as_secs_f64(), 2), "seconds": round(seconds, 2),
                "ops": h.len(), "iops": round(h.len() as f64 / seconds.max(0.001), 1), "p50": q(0.5), "p99": q(0.99),
                "max": round(h.max() as f64 / 1e6, 3),
            }));
        }
        let seconds = |d: Option<Duration>| d.map(|d| round(d.as_secs_f64(), 2));
        json!({
            "verdict": {
                "lost": seen.lost, "wrong": seen.wrong, "errors": seen.errors, "told": seen.told, "writes": seen.writes,
                "reads": seen.reads, "read_in_the_end": self.checked.load(Ordering::Relaxed),
                "longest_ms": round(longest.as_secs_f64() * 1000.0, 1), "silence_ms": round(silence.as_secs_f64() * 1000.0, 1),
                "detect_s": seconds(self.detect), "clean_s": seconds(self.clean), "moved_bytes": round(self.moved, 0),
                "degraded_most": self.degraded,
            },
            "phases": phases, "events": self.events, "timeline": self.timeline, "found": record.json(),
        })
    }
}
