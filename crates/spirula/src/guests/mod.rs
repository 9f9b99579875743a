//! Guests: daemons of Ceph's that `spirula up --with …` runs beside the cluster.
//!
//! A [`Suite`] is what one word of `--with` means: which programs it needs, what there must be in
//! the cluster before they start (pools, users, file systems), which daemons run, and what to say
//! to people. [`Guests`] runs them: it starts each in the foreground as a child of this process,
//! writes down what it says in `DIR/NAME.log` (the last [`LOG_MAX`] bytes, and as many before
//! them), starts it again when it ended, with a pause that doubles up to [`PAUSE_MOST`], and stops
//! all before the cluster is stopped, so that they can still write. They end with this process,
//! however it ends ([`ends_with_us`]), and so do programs that are run to prepare something
//! ([`finished`]), which have a time limit besides: they may wait for PGs that nobody serves.
//!
//! A guest is never needed: what goes wrong with one is said, and the cluster and the other guests
//! run on.

mod mds;
mod rgw;

use crate::dir::{ClusterDir, Manifest, write_durably};
use crate::options::{Names, Sources};
use crate::process::find_mons;
use crate::remote::Remote;
use crate::{Unmet, cluster, keys, logs};
use anyhow::{Context, anyhow, bail};
use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use spirula_runtime::Peer;
use spirula_types::EntityType;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// First pause before a guest that ended is started again.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
/// Longest pause.
const PAUSE_MOST: Duration = Duration::from_secs(30);
/// A guest that ran for so long ended for another reason than the last time.
const SETTLED: Duration = Duration::from_secs(60);
/// How long all of them may take to stop before they are killed.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// How long they may take until they serve, before that is said to whoever waits.
const READY_PATIENCE: Duration = Duration::from_secs(20);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// Bytes of a guest's log; when it is full it becomes `NAME.log.old`, and another is begun.
const LOG_MAX: u64 = 16 << 20;

/// What to run beside the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum With {
    /// Two metadata servers (ceph-mds) and a file system, for ceph-fuse and the kernel's cephfs
    Mds,
    /// A gateway (radosgw) for S3 and Swift, and a first user
    Rgw,
}

impl With {
    fn suite(self) -> Box<dyn Suite> {
        match self {
            Self::Mds => Box::new(mds::Mds),
            Self::Rgw => Box::new(rgw::Rgw),
        }
    }

    /// As it is given on the command line.
    pub fn word(self) -> String {
        self.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned())
    }

    /// What people know it by.
    pub fn what(self) -> &'static str {
        match self {
            Self::Mds => "the file system's metadata servers",
            Self::Rgw => "the gateway for S3 and Swift",
        }
    }

    /// Has it run beside this cluster? Then its first daemon has a log in the directory.
    pub fn ran_in(self, dir: &ClusterDir) -> bool {
        dir.join(format!("{}.a.log", self.word())).exists()
    }
}

/// A program that a suite needs.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its name in `PATH`.
    pub name: &'static str,
    /// Debian's package that has it.
    pub package: &'static str,
}

/// A daemon to be run.
#[derive(Clone, Debug)]
pub struct Guest {
    /// Its name, as its user's: `mds.a`.
    pub name: String,
    /// Its program.
    pub program: &'static str,
    /// Its arguments. It must stay in the foreground.
    pub args: Vec<OsString>,
}

/// One word of `--with`.
pub trait Suite {
    /// What must be installed.
    fn programs(&self) -> &'static [Program];

    /// Makes what the daemons need and is not there. Called each time, before they start.
    ///
    /// # Errors
    /// When the cluster refuses; the daemons are not started then.
    fn prepare(&self, site: &mut Site) -> anyhow::Result<()>;

    /// The daemons.
    fn guests(&self, site: &Site) -> Vec<Guest>;

    /// Makes what needs programs of Ceph's, and so PGs that serve. Called when the daemons run, and
    /// have been waited for.
    ///
    /// # Errors
    /// When it cannot be made, or not in time. The daemons run on.
    fn finish(&self, _: &mut Site) -> anyhow::Result<()> {
        Ok(())
    }

    /// Do they serve? Asked for a while after they started.
    ///
    /// # Errors
    /// As [`Site::command`].
    fn serves(&self, _: &mut Site) -> anyhow::Result<bool> {
        Ok(true)
    }

    /// Lines that say how to use them.
    fn hints(&self, site: &Site) -> Vec<String>;
}

/// The cluster as a suite sees it.
pub struct Site {
    /// Its directory.
    pub dir: ClusterDir,
    /// What it was made with.
    pub manifest: Manifest,
    remote: Remote,
}

impl Site {
    fn new(dir: &ClusterDir, manifest: &Manifest) -> anyhow::Result<Self> {
        let sources = Sources::read(dir.path(), Some(&dir.conf()), &[])?;
        let here = cluster::host::hostname();
        let names = Names { cluster: cluster::CLUSTER, kind: "client", id: "admin", host: &here };
        let settings = sources.settings(names, &dir.path_options())?;
        let auth = keys::daemon("client.admin", &settings, None)?;
        let me = Peer::new(EntityType::Client, "admin");
        let remote =
            Remote::new(find_mons(&settings, dir)?, me.clone(), auth.login(&me), &settings)?;
        Ok(Self { dir: dir.clone(), manifest: manifest.clone(), remote })
    }

    /// Runs a command of the monitors; its output.
    ///
    /// # Errors
    /// When no monitor answers, or with the monitors' refusal.
    pub fn command(&mut self, command: &Value) -> anyhow::Result<String> {
        self.remote.command(command)
    }

    /// The same for one whose output is JSON.
    ///
    /// # Errors
    /// As [`Self::command`], or if it is none.
    pub fn json(&mut self, mut command: Value) -> anyhow::Result<Value> {
        if let Some(c) = command.as_object_mut() {
            c.insert("format".to_owned(), json!("json"));
        }
        let text = self.command(&command)?;
        serde_json::from_str(text.trim()).context("understand the monitors' answer")
    }

    /// Makes a pool if there is none of that name.
    ///
    /// # Errors
    /// As [`Self::command`].
    pub fn pool(&mut self, name: &str, pgs: u32) -> anyhow::Result<()> {
        let there = self.json(json!({"prefix": "osd pool ls"}))?;
        if there.as_array().is_some_and(|all| all.iter().any(|p| p == name)) {
            return Ok(());
        }
        self.command(&json!({"prefix": "osd pool create", "pool": name, "pg_num": pgs})).map(drop)
    }

    /// Makes a user with such capabilities if there is none of that name, and writes its keyring
    /// into the directory, for its owner alone. Without authentication there are no keys.
    ///
    /// # Errors
    /// As [`Self::command`], or when the file cannot be written.
    pub fn user(&mut self, name: &str, caps: &[&str]) -> anyhow::Result<()> {
        if !self.manifest.auth {
            return Ok(());
        }
        let made =
            self.command(&json!({"prefix": "auth get-or-create", "entity": name, "caps": caps}));
        // One whose capabilities somebody changed keeps them.
        let text =
            made.or_else(|_| self.command(&json!({"prefix": "auth get", "entity": name})))?;
        write_durably(&keys::path(&self.dir, name), text.as_bytes(), 0o600)
    }

    /// Where a guest's admin socket is.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.dir.join(format!("run/ceph-{name}.asok"))
    }

    /// Arguments that every daemon of Ceph's needs: to stay in the foreground, as whom, and where
    /// its files are.
    pub fn common_args(&self, id: &str, name: &str) -> Vec<OsString> {
        let option = |key: &str, value: OsString| {
            let mut out = OsString::from(key);
            out.push(value);
            out
        };
        let mut args: Vec<OsString> = ["-f", "-i", id, "-c"].map(OsString::from).into();
        args.push(self.dir.conf().into());
        args.push(option("--keyring=", keys::path(&self.dir, name).into()));
        args.push(option("--admin-socket=", self.socket(name).into()));
        args.push(option("--pid-file=", OsString::new()));
        args.push("--ms-bind-msgr1=false".into());
        if !self.manifest.bind.is_unspecified() {
            args.push(format!("--public-addr={}", self.manifest.bind).into());
        }
        args
    }
}

/// Is a program in `PATH`, or where administrators' programs are?
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(usual).any(|d| d.join(program).is_file())
}

/// Refuses before anything is made if a program is missing, with the package that has it.
///
/// # Errors
/// [`Unmet`].
pub fn check(with: &[With]) -> anyhow::Result<()> {
    for w in with {
        for p in w.suite().programs() {
            if !is_installed(p.name) {
                let Program { name, package } = p;
                return Err(Unmet(format!(
                    "--with needs {name}, which is not installed (Debian: apt-get install \
                        {package})"
                ))
                .into());
            }
        }
    }
    Ok(())
}

/// How one guest is.
enum State {
    Runs { child: Child, since: Instant },
    Ended { again: Instant },
}

struct Running {
    guest: Guest,
    state: State,
    pause: Duration,
}

/// The guests of a running cluster.
#[derive(Default)]
pub struct Guests {
    all: Vec<Running>,
    hints: Vec<String>,
    wrong: Vec<String>,
    dir: Option<ClusterDir>,
}

impl Guests {
    /// Prepares the cluster for them and starts them. Call from the thread that lives as long as
    /// the process: they end with it. What goes wrong with some of them is in [`Self::wrong`].
    ///
    /// # Errors
    /// When the monitors cannot be asked at all.
    pub fn start(dir: &ClusterDir, manifest: &Manifest, with: &[With]) -> anyhow::Result<Self> {
        if with.is_empty() {
            return Ok(Self::default());
        }
        let mut out = Self { dir: Some(dir.clone()), ..Self::default() };
        let mut site = Site::new(dir, manifest)?;
        let mut with = with.to_vec();
        with.sort();
        with.dedup();
        for w in with {
            if let Err(e) = out.start_suite(w, &mut site) {
                out.wrong.push(format!("--with {}: {e:#}", format!("{w:?}").to_lowercase()));
            }
        }
        site.remote.close();
        Ok(out)
    }

    fn start_suite(&mut self, w: With, site: &mut Site) -> anyhow::Result<()> {
        let suite = w.suite();
        suite.prepare(site).context("prepare the cluster")?;
        for guest in suite.guests(site) {
            let state = self.spawn(&guest, PAUSE_FIRST);
            self.all.push(Running { guest, state, pause: PAUSE_FIRST });
        }
        // Whoever is told how to use them tries it at once.
        let begun = Instant::now();
        while !suite.serves(site)? && begun.elapsed() < READY_PATIENCE {
            self.look_after();
            std::thread::sleep(LOOK);
        }
        let finished = suite.finish(site);
        self.hints.extend(suite.hints(site));
        finished
    }

    /// What went wrong with some of them, a sentence each.
    pub fn wrong(&self) -> &[String] {
        &self.wrong
    }

    /// How to use them, a line each.
    pub fn hints(&self) -> &[String] {
        &self.hints
    }

    /// Names and process ids of those that run.
    pub fn pids(&self) -> Value {
        let one = |r: &Running| match &r.state {
            State::Runs { child, .. } => Some((r.guest.name.clone(), json!(child.id()))),
            State::Ended { .. } => None,
        };
        Value::Object(self.all.iter().filter_map(one).collect())
    }

    fn spawn(&self, guest: &Guest, pause: Duration) -> State {
        match self.try_spawn(guest) {
            Ok(child) => State::Runs { child, since: Instant::now() },
            Err(e) => {
                logs::say(&format!("{} does not start: {e:#}", guest.name));
                State::Ended { again: Instant::now() + pause }
            }
        }
    }

    fn try_spawn(&self, guest: &Guest) -> anyhow::Result<Child> {
        let dir = self.dir.as_ref().ok_or_else(|| anyhow!("there is no directory"))?;
        end_former(dir, guest);
        let path = log_file(dir, guest);
        let log = OpenOptions::new().create(true).append(true).open(&path);
        let log = log.with_context(|| format!("open {}", path.display()))?;
        let mut command = Command::new(guest.program);
        command
            .args(&guest.args)
            .env_remove("CEPH_ARGS")
            .env_remove("CEPH_CONF")
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("share its log file")?)
            .stderr(log)
            // Ctrl-C is for us; they are stopped in their turn.
            .process_group(0);
        ends_with_us(&mut command);
        let child = command.spawn().with_context(|| format!("run {}", guest.program))?;
        // Only whoever looks for one left over needs it.
        let _ = std::fs::write(pid_file(dir, guest), child.id().to_string());
        Ok(child)
    }

    /// Starts those again that ended, and sees that their logs do not grow without end.
    pub fn look_after(&mut self) {
        if let Some(dir) = &self.dir {
            self.all.iter().for_each(|r| turn_log(&log_file(dir, &r.guest)));
        }
        for i in 0..self.all.len() {
            let Some(r) = self.all.get_mut(i) else { continue };
            let now = Instant::now();
            let again = match &mut r.state {
                State::Runs { child, since } => match child.try_wait() {
                    Ok(Some(status)) => {
                        // One that ends in good order, as a metadata server does that lost its
                        // rank, is to begin anew.
                        if status.success() || now.duration_since(*since) >= SETTLED {
                            r.pause = PAUSE_FIRST;
                        }
                        let (name, wait) = (&r.guest.name, r.pause);
                        let seconds = wait.as_secs();
                        logs::say(&format!(
                            "{name} ended ({status}), see {name}.log; starting it again in \
                                {seconds} s"
                        ));
                        r.state = State::Ended { again: now + wait };
                        r.pause = (wait * 2).min(PAUSE_MOST);
                        false
                    }
                    Ok(None) | Err(_) => false,
                },
                State::Ended { again } => *again <= now,
            };
            if again {
                let (guest, pause) = (r.guest.clone(), r.pause);
                let state = self.spawn(&guest, pause);
                if let Some(r) = self.all.get_mut(i) {
                    r.state = state;
                }
            }
        }
    }

    /// Stops all of them: asked first, killed after [`STOP_PATIENCE`].
    pub fn stop(&mut self) {
        let mut left: Vec<(String, Child)> = Vec::new();
        for r in self.all.drain(..) {
            if let State::Runs { child, .. } = r.state {
                signal(&child, Signal::TERM);
                left.push((r.guest.name, child));
            }
        }
        let begun = Instant::now();
        while !left.is_empty() {
            left.retain_mut(|(_, child)| matches!(child.try_wait(), Ok(None)));
            if begun.elapsed() > STOP_PATIENCE {
                for (name, child) in &mut left {
                    logs::say(&format!("{name} does not stop, killing it"));
                    signal(child, Signal::KILL);
                    // It is gone then.
                    let _ = child.wait();
                }
                left.clear();
            }
            std::thread::sleep(LOOK);
        }
    }
}

fn signal(child: &Child, signal: Signal) {
    send(child.id(), signal);
}

fn send(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // It may have ended by itself.
    let _ = pid.map(|pid| kill_process(pid, signal));
}

/// Has the kernel end a child with the thread that starts it. That holds for the child's own
/// program: what it starts itself, and what it becomes by `execve` from another thread than its
/// first, is not ended.
#[allow(unsafe_code, reason = "has the kernel end the child with this thread")]
fn ends_with_us(command: &mut Command) {
    let us = rustix::process::getpid();
    // SAFETY: between fork and exec the closure makes two system calls, allocates nothing and takes
    // no lock.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // We may have ended before that.
            if rustix::process::getppid() == Some(us) {
                Ok(())
            } else {
                Err(rustix::io::Errno::SRCH.into())
            }
        });
    }
}

/// Runs a program to its end: how it ended, and what it put out.
///
/// # Errors
/// When it cannot be run, or has not ended within `patience`: it is killed then.
fn finished(mut command: Command, patience: Duration) -> anyhow::Result<(ExitStatus, Vec<u8>)> {
    let program = command.get_program().to_string_lossy().into_owned();
    ends_with_us(&mut command);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let child = child.as_mut().map_err(|e| anyhow!("run {program}: {e}"))?;
    let mut from = child.stdout.take().with_context(|| format!("hear {program}"))?;
    let heard = std::thread::spawn(move || {
        let mut text = Vec::new();
        from.read_to_end(&mut text).map(|_| text)
    });
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().with_context(|| format!("wait for {program}"))? {
            Some(status) => break Some(status),
            None if begun.elapsed() > patience => break None,
            None => std::thread::sleep(LOOK),
        }
    };
    let Some(status) = status else {
        signal(child, Signal::KILL);
        // It is gone then; whoever hears it ends by himself, also if it had children.
        let _ = child.wait();
        bail!(
            "{program} has not ended within {} s; does 'ceph -s' say that all PGs are active?",
            patience.as_secs()
        );
    };
    let text = heard
        .join()
        .map_err(|_| anyhow!("hear {program}"))?
        .with_context(|| format!("hear {program}"))?;
    Ok((status, text))
}

fn log_file(dir: &ClusterDir, guest: &Guest) -> PathBuf {
    dir.join(format!("{}.log", guest.name))
}

/// Begins a log anew that is full. Its guest has the file open, to write at its end, wherever that
/// is: so the file stays, and a copy is what is kept of it. What is written between copying and
/// cutting is lost, and so is all of it where there is no room for a copy.
fn turn_log(path: &Path) {
    if !std::fs::metadata(path).is_ok_and(|m| m.len() > LOG_MAX) {
        return;
    }
    let old = path.with_extension("log.old");
    if let Err(e) = std::fs::copy(path, &old) {
        // Half a copy would be mistaken for the whole.
        let _ = std::fs::remove_file(&old);
        logs::say(&format!("{} is full and is begun anew without a copy: {e}", path.display()));
    }
    let cut = OpenOptions::new().write(true).open(path).and_then(|f| f.set_len(0));
    if let Err(e) = cut {
        logs::say(&format!("{} is full and cannot be begun anew: {e}", path.display()));
    }
}

fn pid_file(dir: &ClusterDir, guest: &Guest) -> PathBuf {
    dir.join(format!("run/{}.guest", guest.name))
}

/// Kills a guest of that name that an earlier process left behind. A daemon that starts itself
/// anew, as a metadata server does that lost its rank, is nobody's child to the kernel any more,
/// and outlives a process that is killed. Two of one name would take turns.
fn end_former(dir: &ClusterDir, guest: &Guest) {
    let kept = std::fs::read_to_string(pid_file(dir, guest))
        .ok()
        .and_then(|t| t.trim().parse::<u32>().ok());
    let Some(pid) = kept.filter(|pid| runs(*pid, guest)) else { return };
    logs::say(&format!(
        "{} runs still, left behind by an earlier process ({pid}); killing it",
        guest.name
    ));
    send(pid, Signal::KILL);
    let begun = Instant::now();
    while runs(pid, guest) && begun.elapsed() < STOP_PATIENCE {
        std::thread::sleep(LOOK);
    }
}

/// Is this process that guest? It has the same arguments, and a number alone may be another's by
/// now.
fn runs(pid: u32, guest: &Guest) -> bool {
    let argv = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let wanted: Vec<&[u8]> = guest.args.iter().map(|a| a.as_encoded_bytes()).collect();
    let given: Vec<&[u8]> =
        argv.strip_suffix(b"\0").unwrap_or(&argv).split(|b| *b == 0).skip(1).collect();
    !argv.is_empty() && given == wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(dir: &std::path::Path, program: &'static str, args: &[&str]) -> Guests {
        let mut g = Guests { dir: Some(ClusterDir::new(dir).unwrap()), ..Guests::default() };
        let guest =
            Guest { name: "x.a".into(), program, args: args.iter().map(OsString::from).collect() };
        let state = g.spawn(&guest, PAUSE_FIRST);
        g.all.push(Running { guest, state, pause: PAUSE_FIRST });
        g
    }

    /// One that ends at once is started again, later each time, and one that ignores SIGTERM
    /// nonetheless goes.
    #[test]
    fn a_guest_that_ends_is_started_again_with_longer_pauses() {
        let dir = std::env::temp_dir().join(format!("spirula-guests-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut g = running(&dir, "sh", &["-c", "echo started; exit 3"]);
        for pause in [2, 4, 8, 16, 30, 30] {
            while matches!(g.all[0].state, State::Runs { .. }) {
                g.look_after();
                std::thread::sleep(LOOK);
            }
            assert_eq!(g.all[0].pause, Duration::from_secs(pause));
            // Its time has come.
            g.all[0].state = State::Ended { again: Instant::now() };
            g.look_after();
        }
        g.stop();
        let log = std::fs::read_to_string(dir.join("x.a.log")).unwrap();
        assert!(log.matches("started").count() >= 6, "{log}");
        let mut g = running(&dir, "sleep", &["1000"]);
        let State::Runs { child, .. } = &g.all[0].state else { panic!("it does not run") };
        let pid = child.id();
        g.stop();
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
        // One that an earlier process left behind goes before another starts.
        std::fs::create_dir_all(dir.join("run")).unwrap();
        let former = running(&dir, "sleep", &["1001"]);
        let State::Runs { child, .. } = &former.all[0].state else { panic!("it does not run") };
        let (pid, guest) = (child.id(), former.all[0].guest.clone());
        // A new program's arguments are there a moment after it has begun.
        let end = Instant::now() + Duration::from_secs(60);
        while !runs(pid, &guest) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(runs(pid, &guest) && !runs(std::process::id(), &guest));
        let mut g = running(&dir, "sleep", &["1001"]);
        assert!(!runs(pid, &guest), "it is dead, though nobody has looked after it yet");
        g.stop();
        std::fs::remove_dir_all(&dir).unwrap();
    }

    fn lives(pid: u32) -> bool {
        // One that nobody has looked after yet is dead, too.
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z "))
    }

    /// A program that does not end is given up in time, and is gone then; one that ends has all
    /// that it put out heard.
    #[test]
    fn a_program_that_does_not_end_is_given_up() {
        let pid = std::env::temp_dir().join(format!("spirula-finished-{}", std::process::id()));
        // A busy machine may not come as far as its number in the first second.
        let text = [1, 5, 30, 120].into_iter().find_map(|seconds| {
            let mut command = Command::new("sh");
            command.args(["-c", "echo $$ > $0; exec sleep 1000"]).arg(&pid);
            let e = finished(command, Duration::from_secs(seconds)).unwrap_err();
            assert!(e.to_string().contains(&format!("sh has not ended within {seconds} s")), "{e}");
            std::fs::read_to_string(&pid).ok().filter(|text| text.ends_with('\n'))
        });
        assert!(!lives(text.unwrap().trim().parse().unwrap()));
        std::fs::remove_file(&pid).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "head -c 300000 /dev/zero; exit 3"]);
        let (status, text) = finished(command, Duration::from_secs(60)).unwrap();
        assert_eq!((status.code(), text.len()), (Some(3), 300_000));
    }

    /// Whoever starts guests and is killed takes them along.
    #[test]
    fn guests_end_with_the_thread_that_started_them() {
        let child = std::thread::spawn(|| {
            let mut command = Command::new("sleep");
            command.arg("1000");
            ends_with_us(&mut command);
            command.spawn().unwrap()
        });
        let mut child = child.join().unwrap();
        // Ended by the kernel, not by us.
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }

    /// A log that is full is begun anew, and whoever has it open goes on at its beginning.
    #[test]
    fn a_log_that_is_full_is_begun_anew() {
        use std::io::Write;
        let dir = std::env::temp_dir().join(format!("spirula-logs-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("mds.a.log");
        let mut log = OpenOptions::new().create(true).append(true).open(&path).unwrap();
        let size = |name: &str| std::fs::metadata(dir.join(name)).map_or(0, |m| m.len());
        log.write_all(&vec![b'x'; LOG_MAX as usize]).unwrap();
        turn_log(&path);
        assert_eq!(
            (size("mds.a.log"), size("mds.a.log.old")),
            (LOG_MAX, 0),
            "it is not too long yet"
        );
        log.write_all(b"y").unwrap();
        turn_log(&path);
        log.write_all(b"further").unwrap();
        assert_eq!((size("mds.a.log"), size("mds.a.log.old")), (7, LOG_MAX + 1));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn what_is_not_installed_is_named() {
        assert!(is_installed("sh") && !is_installed("no-such-program"));
    }
}
