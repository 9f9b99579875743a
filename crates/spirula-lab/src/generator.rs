//! Generators that are processes of their own, on this host or on others: a load is spread over
//! them, and what they find is added up.
//!
//! Whoever measures starts each by a command ([`Via`]: itself for `localhost`, else `ssh HOST
//! spirula`), and talks with it by lines of JSON through its standard input and output: no port is
//! opened, and who may start a program there may generate load there. The generator connects to the
//! cluster by itself, with the `ceph.conf` that stands on its host under the same path.
//!
//! | from | line | |
//! |---|---|---|
//! | generator | `{"generator": 1, "host": "b"}` | it is connected; the number is [`VERSION`] |
//! | measurer | `{"plan": {…}}` | a load; begins at once |
//! | measurer | `{"stop": true}` | the load is to end early |
//! | generator | `{"ops": 1234}` | so many ended by now |
//! | generator | `{"ended": {…}}` | the load is over: what it found |
//! | generator | `{"failed": "…"}` | it cannot go on; it ends |
//!
//! When its input ends a generator ends its load, and itself: it does not outlive who started it.
//! Objects are not its business: the note in the pool is the measurer's ([`crate::litter`]), and
//! names the objects of all generators.

use crate::args::{GeneratorArgs, Lab};
use crate::bail;
use crate::load::{Live, Load, Mode, Plan};
use crate::prelude::*;
use crate::record::Record;
use crate::session::{Driven, Session};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Instant;

/// Version of the lines.
const VERSION: u64 = 1;
/// The longest line: what a day's load found is shorter.
const LINE: u64 = 256 << 20;
/// How long a generator may take to connect: an ssh and an election may come between.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two words about how far it is.
const WORD: Duration = Duration::from_millis(200);

/// What a load of one generator came to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Operations and latencies.
    pub record: Record,
    /// Operations that were begun.
    pub operations: u64,
    /// Objects that were begun.
    pub objects: u64,
    /// Why it ended early.
    pub failed: Option<String>,
    /// CPU seconds of a generator that is a process of its own.
    pub cpu: f64,
}

impl Outcome {
    fn of(load: &Load) -> Self {
        let mut record = load.record.clone();
        record.missed += load.missed();
        Self {
            record,
            operations: load.operations(),
            objects: load.objects_begun(),
            failed: load.failed.clone(),
            cpu: 0.0,
        }
    }

    fn json(&self) -> Value {
        json!({
            "record": self.record.exact(), "operations": self.operations, "objects": self.objects, "failed": self.failed,
            "cpu_s": self.cpu,
        })
    }

    fn from_json(v: &Value) -> Option<Self> {
        Some(Self {
            record: Record::from_exact(&v["record"])?,
            operations: v["operations"].as_u64()?,
            objects: v["objects"].as_u64()?,
            failed: v["failed"].as_str().map(str::to_owned),
            cpu: v["cpu_s"].as_f64()?,
        })
    }
}

/// How a program is started on a host.
#[derive(Clone, Debug)]
pub struct Via {
    /// The host.
    pub host: String,
    /// Program and arguments before those of `spirula`.
    pub words: Vec<String>,
}

impl Via {
    /// For `localhost` this very program; else what `template` says, `{}` being the host.
    ///
    /// # Errors
    /// When the template is empty, or this program cannot be found.
    pub fn new(host: &str, template: &str) -> Result<Self> {
        if host.is_empty() || host.starts_with('-') {
            bail!("--on: '{host}' is no host");
        }
        let words = if host == "localhost" {
            vec![std::env::current_exe().context("find this program")?.display().to_string()]
        } else {
            template.split_whitespace().map(|w| w.replace("{}", host)).collect()
        };
        if words.is_empty() {
            bail!(
                "--via is empty; it says how spirula is started on a host, for example 'ssh {{}} \
                    spirula'"
            );
        }
        Ok(Self { host: host.to_owned(), words })
    }

    /// The command with these arguments.
    pub fn command(&self, args: &[String]) -> Command {
        let mut words = self.words.iter();
        let mut c = Command::new(words.next().map_or("", String::as_str));
        c.args(words).args(args);
        c
    }
}

/// A generator that is a process of its own.
pub struct Remote {
    host: String,
    child: Child,
    input: Option<ChildStdin>,
    said: mpsc::Receiver<Result<Value, String>>,
}

impl Drop for Remote {
    fn drop(&mut self) {
        // The end of its input is its end.
        self.input = None;
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begun.elapsed() > Duration::from_secs(3) {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Remote {
    /// Starts one and waits until it is connected to the cluster.
    ///
    /// # Errors
    /// When it cannot be started or does not reach the cluster.
    pub fn start(via: &Via, conf: &Path, user: &str, memory: usize) -> Result<Self> {
        let conf =
            std::fs::canonicalize(conf).with_context(|| format!("find {}", conf.display()))?;
        let args: Vec<String> =
            ["bench", "generator", "--conf", &conf.display().to_string(), "--name", user]
                .iter()
                .map(|w| (*w).to_owned())
                .chain(["--memory".to_owned(), memory.to_string()])
                .collect();
        let mut command = via.command(&args);
        // Its errors are for whoever watches.
        let spawned =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
        let mut child =
            spawned.with_context(|| format!("start a generator by '{}'", via.words.join(" ")))?;
        let output = child.stdout.take().context("a generator has no output")?;
        let input = child.stdin.take();
        let (tx, said) = mpsc::sync_channel(64);
        let reader = std::thread::Builder::new().name("generator".into()).spawn(move || {
            let mut output = BufReader::new(output);
            loop {
                let line = read_line(&mut output);
                let end = line.is_err();
                if tx.send(line).is_err() || end {
                    return;
                }
            }
        });
        let mut remote = Self { host: via.host.clone(), child, input, said };
        reader.context("start a thread")?;
        let hello = remote
            .hear(PATIENCE)?
            .with_context(|| format!("the generator on {} is not up", via.host))?;
        if hello["generator"] != VERSION {
            bail!(
                "{}: spirula there is of another version, its generators cannot be used with this \
                    one",
                via.host
            );
        }
        Ok(remote)
    }

    /// What it says within the time.
    fn hear(&mut self, within: Duration) -> Result<Option<Value>> {
        match self.said.recv_timeout(within) {
            Ok(Ok(v)) => match v["failed"].as_str() {
                Some(why) => bail!("the generator on {}: {why}", self.host),
                None => Ok(Some(v)),
            },
            Err(mpsc::RecvTimeoutError::Timeout) => Ok(None),
            Ok(Err(why)) => bail!("the generator on {} ended ({why})", self.host),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                bail!("the generator on {} ended", self.host)
            }
        }
    }

    fn tell(&mut self, v: &Value) -> Result<()> {
        let input = self.input.as_mut().context("the generator has ended")?;
        writeln!(input, "{v}")
            .and_then(|()| input.flush())
            .with_context(|| format!("tell the generator on {}", self.host))
    }
}

/// Reads a line of JSON.
fn read_line(from: &mut impl BufRead) -> Result<Value, String> {
    let mut line = String::new();
    match from.take(LINE).read_line(&mut line) {
        Ok(0) => Err("no more words".to_owned()),
        Ok(_) => serde_json::from_str(&line)
            .map_err(|_| format!("it said: {}", line.chars().take(200).collect::<String>().trim())),
        Err(e) => Err(e.to_string()),
    }
}

/// A generator.
pub enum Generator {
    /// A client of this process, with an event loop of its own.
    Here(Session),
    /// A process of its own.
    There(Remote),
}

/// A load that runs on a generator.
pub enum Running {
    /// On one of this process.
    Here(Driven<Load>),
    /// On a process of its own; it was told to end early.
    There(bool),
}

impl Generator {
    /// Begins a load; one at a time.
    ///
    /// # Errors
    /// When the generator has ended.
    pub fn drive(&mut self, load: Load) -> Result<Running> {
        Ok(match self {
            Self::Here(session) => Running::Here(session.drive(load)),
            Self::There(remote) => {
                remote.tell(&json!({"plan": plan_json(load.plan())}))?;
                Running::There(false)
            }
        })
    }

    /// What a load came to, if it ends within the time. `live` is what others see of it.
    ///
    /// # Errors
    /// When the generator has ended before its load.
    pub fn ended(
        &mut self,
        running: &mut Running,
        live: &Live,
        within: Duration,
    ) -> Result<Option<Outcome>> {
        match (self, running) {
            (Self::Here(_), Running::Here(driven)) => {
                Ok(driven.ended(within).map(|load| Outcome::of(&load)))
            }
            (Self::There(remote), Running::There(told)) => {
                if !*told && live.stop.load(Ordering::Relaxed) {
                    *told = true;
                    remote.tell(&json!({"stop": true}))?;
                }
                let Some(v) = remote.hear(within)? else { return Ok(None) };
                if let Some(ops) = v["ops"].as_u64() {
                    live.ops.store(ops, Ordering::Relaxed);
                    return Ok(None);
                }
                let ended = Outcome::from_json(&v["ended"]);
                ended.map(Some).with_context(|| {
                    format!("the generator on {} says what it should not", remote.host)
                })
            }
            _ => bail!("a load of another generator"),
        }
    }
}

fn plan_json(p: &Plan) -> Value {
    let percent = if let Mode::Mixed(percent) = p.mode { Some(percent) } else { None };
    json!({
        "mode": p.mode.name(), "read_percent": percent, "size": p.size, "object_size": p.object_size, "in_flight": p.in_flight,
        "seconds": p.time.as_secs_f64(), "warm_up": p.warm_up.as_secs_f64(), "rate": p.rate, "most": p.most, "objects": p.objects,
        "pool": p.pool, "prefix": p.prefix, "seed": p.seed,
    })
}

/// A plan as it was told; `None` where it is none, or one that would take more than a generator
/// has.
fn plan_of(v: &Value) -> Option<Plan> {
    let seconds = |key: &str| {
        let s = v[key].as_f64().filter(|s| (0.0..=1e6).contains(s))?;
        Some(Duration::from_secs_f64(s))
    };
    let mode = match v["mode"].as_str()? {
        "write" => Mode::Write,
        "seq" => Mode::Seq,
        "rand" => Mode::Rand,
        "randwrite" => Mode::RandWrite,
        "mixed" => Mode::Mixed(
            v["read_percent"].as_u64().and_then(|p| u8::try_from(p).ok()).filter(|p| *p <= 100)?,
        ),
        _ => return None,
    };
    let size = v["size"].as_u64().filter(|n| (1..=64 << 20).contains(n))?;
    let rate = v["rate"].as_f64();
    if rate.is_some_and(|r| !(1e-3..=1e6).contains(&r)) {
        return None;
    }
    Some(Plan {
        mode,
        size,
        object_size: v["object_size"].as_u64().filter(|n| *n >= size && n.is_multiple_of(size))?,
        in_flight: v["in_flight"].as_u64().filter(|n| (1..=65_536).contains(n))? as usize,
        time: seconds("seconds")?,
        warm_up: seconds("warm_up")?,
        rate,
        most: v["most"].as_u64(),
        objects: v["objects"].as_u64()?,
        pool: v["pool"].as_i64()?,
        prefix: v["prefix"].as_str().filter(|p| p.starts_with("spirula-bench."))?.to_owned(),
        seed: v["seed"].as_u64()?,
    })
}

/// What a generator is told.
enum Told {
    Plan(Box<Plan>),
    Stop,
    End,
    Nonsense(String),
}

fn told(line: Result<Value, String>) -> Told {
    match line {
        Ok(v) if v["stop"] == true => Told::Stop,
        Ok(v) => plan_of(&v["plan"]).map_or_else(
            || Told::Nonsense("no plan of this version".into()),
            |p| Told::Plan(Box::new(p)),
        ),
        Err(_) => Told::End,
    }
}

/// `spirula bench generator`: what another `spirula bench objects` starts.
///
/// # Errors
/// When the cluster cannot be reached; what measures is told, too.
pub fn generator(lab: &Lab, a: &GeneratorArgs) -> Result<()> {
    let outcome = serve(lab, a);
    if let Err(e) = &outcome {
        lab.say(json!({"failed": format!("{e:#}")}).to_string());
    }
    outcome
}

fn serve(lab: &Lab, a: &GeneratorArgs) -> Result<()> {
    let way = (lab.connect)(&a.target)?;
    let session = Session::open(&way, a.memory)?;
    lab.say(json!({"generator": VERSION, "host": crate::used::hostname()}).to_string());
    let (tx, rx) = mpsc::sync_channel(4);
    std::thread::Builder::new()
        .name("told".into())
        .spawn(move || {
            let mut input = BufReader::new(std::io::stdin());
            loop {
                let word = told(read_line(&mut input));
                let end = matches!(word, Told::End);
                if tx.send(word).is_err() || end {
                    return;
                }
            }
        })
        .context("start a thread")?;
    loop {
        match rx.recv() {
            Ok(Told::Plan(plan)) => {
                if !one(lab, &session, *plan, &rx)? {
                    return Ok(());
                }
            }
            Ok(Told::Stop) => {}
            Ok(Told::Nonsense(why)) => bail!("{why}"),
            Ok(Told::End) | Err(_) => return Ok(()),
        }
    }
}

/// One load; false if the generator is to end.
fn one(lab: &Lab, session: &Session, plan: Plan, rx: &mpsc::Receiver<Told>) -> Result<bool> {
    let rate = plan.rate;
    let load = Load::new(plan);
    let live = load.live.clone();
    let (cpu, over) = (crate::used::own_cpu(), Arc::new(AtomicBool::new(false)));
    let driven = session.drive(load);
    if let Some(rate) = rate {
        crate::objects::pace(session, rate, over.clone())?;
    }
    let mut go_on = true;
    let outcome = loop {
        if let Some(load) = driven.ended(WORD) {
            break Outcome::of(&load);
        }
        match rx.try_recv() {
            Ok(Told::Stop) => live.stop.store(true, Ordering::Relaxed),
            Ok(Told::End) | Err(mpsc::TryRecvError::Disconnected) => {
                go_on = false;
                live.stop.store(true, Ordering::Relaxed);
            }
            Ok(Told::Plan(_)) => bail!("a load is under way"),
            Ok(Told::Nonsense(why)) => bail!("{why}"),
            Err(mpsc::TryRecvError::Empty) => {}
        }
        if lab.stopped() {
            live.stop.store(true, Ordering::Relaxed);
        }
        if go_on {
            lab.say(json!({"ops": live.ops.load(Ordering::Relaxed)}).to_string());
        }
    };
    over.store(true, Ordering::Relaxed);
    if go_on {
        let outcome = Outcome { cpu: crate::used::own_cpu() - cpu, ..outcome };
        lab.say(json!({"ended": outcome.json()}).to_string());
    }
    Ok(go_on)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            mode: Mode::Mixed(30),
            size: 4096,
            object_size: 16384,
            in_flight: 2,
            time: Duration::from_millis(1500),
            warm_up: Duration::ZERO,
            rate: Some(12.5),
            most: None,
            objects: 7,
            pool: 3,
            prefix: "spirula-bench.a.".into(),
            seed: 9,
        }
    }

    #[test]
    fn a_plan_is_understood_and_nonsense_is_not() {
        let v = plan_json(&plan());
        assert_eq!(format!("{:?}", plan_of(&v).unwrap()), format!("{:?}", plan()));
        let cases = [
            ("size", json!(0)),
            ("size", json!(1u64 << 40)),
            ("in_flight", json!(1u64 << 40)),
            ("object_size", json!(4097)),
            ("seconds", json!(-1.0)),
            ("seconds", json!("NaN")),
            ("rate", json!(0.0)),
            ("read_percent", json!(101)),
            ("prefix", json!("rbd_data.1.")),
            ("mode", json!("remove")),
        ];
        for (key, bad) in cases {
            let mut v = v.clone();
            v[key] = bad.clone();
            assert!(plan_of(&v).is_none(), "{key} {bad}");
        }
        assert!(matches!(told(Ok(json!({"stop": true}))), Told::Stop));
        assert!(matches!(told(Ok(json!(1))), Told::Nonsense(_)));
        assert!(read_line(&mut &b"x\n"[..]).is_err() && read_line(&mut &b""[..]).is_err());
    }

    #[test]
    fn what_a_generator_found_comes_over_whole() {
        let mut record = Record::default();
        for i in 1..2000u64 {
            record.add(
                Duration::from_millis(i * 3),
                Duration::from_micros(i * i),
                4096,
                i % 3 == 0,
            );
        }
        (record.errors, record.missed) = (2, 3);
        let there = Outcome {
            record,
            operations: 2001,
            objects: 501,
            failed: Some("full".into()),
            cpu: 1.5,
        };
        let text = there.json().to_string();
        let here = Outcome::from_json(&serde_json::from_str(&text).unwrap()).unwrap();
        assert_eq!(here.record.json(), there.record.json());
        assert_eq!(
            (here.operations, here.objects, here.failed, here.cpu),
            (2001, 501, Some("full".into()), 1.5)
        );
        assert!(Outcome::from_json(&json!({})).is_none());
    }

    #[test]
    fn a_host_is_reached_by_its_command() {
        let words = |host: &str, via: &str| Via::new(host, via).map(|v| v.words);
        assert_eq!(
            words("b", "ssh -p 22 {} spirula").unwrap(),
            ["ssh", "-p", "22", "b", "spirula"]
        );
        assert_eq!(words("localhost", "ssh {} spirula").unwrap().len(), 1);
        assert!(words("-oProxyCommand=x", "ssh {} spirula").is_err(), "an option of ssh");
        assert!(words("b", " ").is_err());
    }
}
