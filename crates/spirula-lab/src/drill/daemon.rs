//! A daemon's process: how it is hurt, and how it is started again as it was.
//!
//! As it was: by the same command line, environment and directory, as the same user with the same
//! groups, and through its unit where systemd runs it. A drill is often root's; a daemon that came
//! back as root would leave files that its own user cannot open.

use super::owed::{from_os, to_os};
use crate::bail;
use crate::litter::born;
use crate::prelude::*;
use crate::signal::{lives, signal_if};
use crate::used::{Proc, daemons};
use rustix::process::Signal;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Instant;

/// How long a process may take to end once it was killed.
const DEATH: Duration = Duration::from_secs(20);

/// A user: who a process is to the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// User and group, effective.
    pub uid: u32,
    /// See `uid`.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
}

impl User {
    /// Of a process.
    ///
    /// # Errors
    /// When it is not there.
    pub fn of(pid: u32) -> Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))
            .with_context(|| format!("no process {pid}"))?;
        Self::parse(&status).with_context(|| format!("whose process {pid} is cannot be read"))
    }

    fn parse(status: &str) -> Option<Self> {
        let numbers = |key: &str| -> Option<Vec<u32>> {
            let line = status.lines().find_map(|l| l.strip_prefix(key))?;
            line.split_whitespace().map(|n| n.parse().ok()).collect()
        };
        // Each line has the real, the effective, the saved and the file system's number.
        Some(Self {
            uid: *numbers("Uid:")?.get(1)?,
            gid: *numbers("Gid:")?.get(1)?,
            groups: numbers("Groups:")?,
        })
    }
}

/// The unit of systemd that a process is the main one of, by its control group.
fn unit_of(cgroup: &str) -> Option<&str> {
    let path = cgroup.lines().find_map(|l| {
        l.strip_prefix("0::").or_else(|| l.split_once("name=systemd:").map(|x| x.1))
    })?;
    // A person's own systemd is another one, and asked otherwise.
    let unit = path
        .rsplit('/')
        .next()
        .filter(|u| u.ends_with(".service") && !path.contains("/user.slice/"))?;
    Some(unit)
}

/// Asks systemd for something.
fn systemctl(words: &[&str]) -> Result<String> {
    let out = Command::new("systemctl")
        .args(words)
        .stdin(Stdio::null())
        .output()
        .context("start systemctl")?;
    if !out.status.success() {
        bail!("systemctl {}: {}", words.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// A process that stands still goes on, if it is still there.
///
/// # Errors
/// When it is somebody else's.
pub fn go_on(pid: u32, since: u64) -> Result<bool> {
    signal_if(pid, Signal::CONT, || lives(pid, since))
}

/// A process that can be started again as it was.
#[derive(Clone, Debug, PartialEq)]
pub struct Daemon {
    /// `osd.3`, `mon.a`.
    pub name: String,
    /// Its number, and when it began, in ticks since the machine did: together they name it for
    /// good.
    pub pid: u32,
    /// See `pid`.
    pub born: u64,
    program: PathBuf,
    args: Vec<String>,
    env: Vec<(OsString, OsString)>,
    cwd: PathBuf,
    /// Where its words go, if that is a file.
    log: Option<PathBuf>,
    user: User,
    unit: Option<String>,
}

impl Daemon {
    /// That of a process.
    ///
    /// # Errors
    /// When it may not be looked at, or could not be started again.
    pub fn of(p: &Proc, cwd: PathBuf) -> Result<Self> {
        let at = PathBuf::from(format!("/proc/{}", p.pid));
        let program = fs::read_link(at.join("exe"))
            .with_context(|| format!("look at the process of {}", p.name))?;
        if !program.is_file() || !cwd.is_dir() {
            let at = program.display();
            bail!(
                "{} could not be started again: {at}, or the directory it was started in, is there \
                    no more",
                p.name
            );
        }
        let env = fs::read(at.join("environ")).unwrap_or_default();
        let env = env.split(|b| *b == 0).filter_map(|line| {
            let at = line.iter().position(|b| *b == b'=')?;
            Some((
                OsString::from_vec(line[..at].to_vec()),
                OsString::from_vec(line[at + 1..].to_vec()),
            ))
        });
        let cgroup = fs::read_to_string(at.join("cgroup")).unwrap_or_default();
        let unit = unit_of(&cgroup).filter(|_| Path::new("/run/systemd/system").is_dir());
        // Of a unit with several processes one cannot be started alone.
        let main = |u: &&str| {
            systemctl(&["show", "-p", "MainPID", "--value", u])
                .is_ok_and(|n| n == p.pid.to_string())
        };
        let log = fs::read_link(at.join("fd/2")).ok().filter(|l| l.is_file());
        Ok(Self {
            name: p.name.clone(),
            pid: p.pid,
            born: born(u64::from(p.pid)).with_context(|| format!("{} ended", p.name))?,
            program,
            args: p.args.iter().skip(1).cloned().collect(),
            env: env.filter(|(n, _)| n != "NOTIFY_SOCKET").collect(),
            cwd,
            log,
            user: User::of(p.pid)?,
            unit: unit.filter(main).map(str::to_owned),
        })
    }

    /// As it stands in a journal.
    pub fn json(&self) -> Value {
        let env: Vec<Value> =
            self.env.iter().map(|(n, v)| json!([from_os(n), from_os(v)])).collect();
        json!({
            "name": self.name, "pid": self.pid, "born": self.born, "program": from_os(self.program.as_os_str()), "args": self.args,
            "env": env, "cwd": from_os(self.cwd.as_os_str()), "log": self.log.as_ref().map(|l| from_os(l.as_os_str())),
            "uid": self.user.uid, "gid": self.user.gid, "groups": self.user.groups, "unit": self.unit,
        })
    }

    /// From a journal; `None` of something else.
    pub fn from_json(v: &Value) -> Option<Self> {
        let number = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
        let path = |v: &Value| to_os(v).map(PathBuf::from);
        Some(Self {
            name: v["name"].as_str()?.to_owned(),
            pid: number(&v["pid"])?,
            born: v["born"].as_u64()?,
            program: path(&v["program"])?,
            args: v["args"]
                .as_array()?
                .iter()
                .map(|a| a.as_str().map(str::to_owned))
                .collect::<Option<_>>()?,
            env: v["env"]
                .as_array()?
                .iter()
                .map(|p| Some((to_os(&p[0])?, to_os(&p[1])?)))
                .collect::<Option<_>>()?,
            cwd: path(&v["cwd"])?,
            log: path(&v["log"]),
            user: User {
                uid: number(&v["uid"])?,
                gid: number(&v["gid"])?,
                groups: v["groups"].as_array()?.iter().map(number).collect::<Option<_>>()?,
            },
            unit: v["unit"].as_str().map(str::to_owned),
        })
    }

    /// Kills it, without a word to it.
    ///
    /// # Errors
    /// When it may not be killed, or does not end.
    pub fn kill(&self) -> Result<()> {
        self.end(Signal::KILL)
    }

    /// Stops it in due form.
    ///
    /// # Errors
    /// When it does not end.
    pub fn stop(&self) -> Result<()> {
        self.end(Signal::TERM)
    }

    /// Signals this very process.
    fn signal(&self, signal: Signal) -> Result<()> {
        let there = signal_if(self.pid, signal, || lives(self.pid, self.born));
        if !there.with_context(|| format!("{} is of the user {}", self.name, self.user.uid))? {
            bail!("{} (process {}) ended, or is another process now", self.name, self.pid);
        }
        Ok(())
    }

    fn end(&self, by: Signal) -> Result<()> {
        self.signal(by)?;
        if let Some(unit) = &self.unit {
            // Or systemd starts it again before the drill does.
            systemctl(&["stop", unit])?;
        }
        let begun = Instant::now();
        while lives(self.pid, self.born) {
            if begun.elapsed() > DEATH {
                bail!("{} (process {}) does not end", self.name, self.pid);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// It stands still, or goes on.
    ///
    /// # Errors
    /// When it is not there.
    pub fn freeze(&self, still: bool) -> Result<()> {
        self.signal(if still { Signal::STOP } else { Signal::CONT })
    }

    /// Does it run, as the process that it was or as another one with the same command line?
    pub fn runs(&self) -> bool {
        let same =
            |p: &Proc| p.name == self.name && p.args.get(1..).unwrap_or_default() == self.args;
        lives(self.pid, self.born) || daemons().iter().any(same)
    }

    /// Whether it is a `spirula up`, which has all daemons in one process.
    pub fn is_up(&self) -> bool {
        self.name.starts_with("spirula up")
    }

    fn command(&self) -> Result<Command> {
        let own = User::of(std::process::id())?;
        let mut command = if self.user == own || own.uid != 0 {
            Command::new(&self.program)
        } else {
            let groups = match self.user.groups.as_slice() {
                [] => "--clear-groups".to_owned(),
                some => format!(
                    "--groups={}",
                    some.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
                ),
            };
            let known = ["/usr/bin/setpriv", "/bin/setpriv"].iter().find(|p| Path::new(p).exists());
            let mut c = Command::new(
                known.context("setpriv is not installed (Debian: apt-get install util-linux)")?,
            );
            c.args([
                format!("--reuid={}", self.user.uid),
                format!("--regid={}", self.user.gid),
                groups,
            ]);
            c.arg("--").arg(&self.program);
            c
        };
        command
            .env_clear()
            .envs(self.env.iter().map(|(k, v)| (k, v)))
            .current_dir(&self.cwd)
            .stdin(Stdio::null());
        // Out of the terminal's process group: Ctrl-C there is for the drill.
        command.process_group(0);
        Ok(command)
    }

    /// Starts it as it was, unless it runs; gives words about it.
    ///
    /// # Errors
    /// When its program cannot be started.
    pub fn start(&self) -> Result<String> {
        if self.runs() {
            return Ok(format!("{} runs", self.name));
        }
        if let Some(unit) = &self.unit {
            // A limit of starts may have been reached by what was done to it.
            let _ = systemctl(&["reset-failed", unit]);
            systemctl(&["start", unit])?;
            return Ok(format!("{} is started again ({unit})", self.name));
        }
        if self.is_up() {
            return self.start_up();
        }
        let log = self.log.as_ref().and_then(|l| OpenOptions::new().append(true).open(l).ok());
        let out =
            || log.as_ref().and_then(|f| f.try_clone().ok()).map_or_else(Stdio::null, Stdio::from);
        let mut command = self.command()?;
        let child = command.args(&self.args).stdout(out()).stderr(out()).spawn();
        let mut child = child.with_context(|| format!("start {} again", self.name))?;
        let pid = child.id();
        // Ceph's daemons go into the background: the process that was started ends at once, and is
        // to be waited for.
        std::thread::Builder::new()
            .name("reaper".into())
            .spawn(move || drop(child.wait()))
            .context("start a thread")?;
        Ok(format!("{} is started again (process {pid})", self.name))
    }

    /// A `spirula up` goes into the background by itself, and says when it is ready.
    fn start_up(&self) -> Result<String> {
        let mut words = self.args.iter();
        let mut args = Vec::new();
        while let Some(word) = words.next() {
            match word.as_str() {
                // What it told its parent through is gone.
                "--report-fd" => drop(words.next()),
                "--detach" => {}
                w => args.push(w.to_owned()),
            }
        }
        let out = self
            .command()?
            .args(args)
            .arg("--detach")
            .output()
            .context("start 'spirula up' again")?;
        if !out.status.success() {
            bail!(
                "'spirula up' does not start again: {}",
                String::from_utf8_lossy(&out.stderr).trim()
            );
        }
        Ok("'spirula up' runs again".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_units_are_read_where_they_stand() {
        let status = "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t4 24 \n";
        assert_eq!(User::parse(status), Some(User { uid: 2, gid: 6, groups: vec![4, 24] }));
        assert_eq!(User::parse("Uid:\t1\n"), None);
        for (cgroup, unit) in [
            (
                "0::/system.slice/system-ceph\\x2dosd.slice/ceph-osd@3.service\n",
                Some("ceph-osd@3.service"),
            ),
            ("1:name=systemd:/system.slice/x.service\n", Some("x.service")),
            ("0::/user.slice/user-1.slice/user@1.service/app.slice/x.service\n", None),
            ("0::/system.slice/docker-1.scope\n", None),
            ("0::/\n", None),
            ("", None),
        ] {
            assert_eq!(unit_of(cgroup), unit, "{cgroup}");
        }
    }

    /// Only root can: elsewhere a daemon of another user can neither be killed nor started.
    #[test]
    fn a_daemon_comes_back_as_the_user_that_it_was() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let mut child = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65533", "--groups=4,5", "--", "sleep", "1000"])
            .env("MARK", "kept")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id();
        let wanted = User { uid: 65534, gid: 65533, groups: vec![4, 5] };
        // A child is its user before it is its program, and until then it has this test's
        // environment.
        let is_so = |pid: u32| {
            let read = |of: &str| fs::read(format!("/proc/{pid}/{of}")).unwrap_or_default();
            // By its name, or by its path when it was started again.
            let sleeps = read("cmdline")
                .split(|b| *b == 0)
                .next()
                .is_some_and(|name| name.ends_with(b"sleep"));
            sleeps && !read("environ").is_empty() && User::of(pid).is_ok_and(|u| u == wanted)
        };
        while !is_so(pid) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let p = Proc { pid, name: "osd.7".into(), args: vec!["sleep".into(), "1000".into()] };
        let d = Daemon::of(&p, "/".into()).unwrap();
        assert_eq!(Daemon::from_json(&d.json()).as_ref(), Some(&d));
        assert_eq!(d.start().unwrap(), "osd.7 runs", "no second one is started");
        // Reaped here, so that its number is free.
        assert!(
            Daemon { born: d.born + 1, ..d.clone() }.kill().is_err(),
            "another process had the number"
        );
        assert!(d.runs());
        d.signal(Signal::KILL).unwrap();
        child.wait().unwrap();
        assert!(!d.runs() && d.freeze(true).is_err());
        let said = d.start().unwrap();
        let new: u32 = said.rsplit(' ').next().unwrap().trim_end_matches(')').parse().unwrap();
        while !is_so(new) {
            assert!(born(u64::from(new)).is_some(), "{said}");
            std::thread::sleep(Duration::from_millis(5));
        }
        let env = fs::read(format!("/proc/{new}/environ")).unwrap();
        assert!(env.split(|b| *b == 0).any(|l| l == b"MARK=kept"));
        let again = Daemon { pid: new, born: born(u64::from(new)).unwrap(), ..d };
        again.kill().unwrap();
        assert!(!again.runs());
    }
}
