//! `spirula host …`: the daemons of one directory, each a process of its own.
//!
//! For hosts without systemd units. A directory `DIR/osd.3`, `DIR/mon.a` or `DIR/mgr.x` means a
//! daemon of that name; its output goes to `DIR/osd.3.log`. Whether one runs is told by the lock it
//! holds, and that it is up by the word it would send to systemd.

use crate::Unmet;
use crate::dir::ClusterDir;
use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a daemon may take to be up: its store may replay a journal.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// How long one may take to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(45);
/// Order in which daemons start.
const KINDS: [&str; 3] = ["mon", "mgr", "osd"];

/// The daemons of the directory, in the order they start in.
///
/// # Errors
/// When it cannot be read.
pub fn daemons(dir: &ClusterDir) -> anyhow::Result<Vec<String>> {
    let look = || format!("look into {}", dir.path().display());
    let mut out = Vec::new();
    for entry in fs::read_dir(dir.path()).with_context(look)? {
        let entry = entry.with_context(look)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some((kind, id)) = name.split_once('.') else { continue };
        let rank = KINDS.iter().position(|k| *k == kind);
        if let Some(rank) = rank.filter(|_| !id.is_empty() && entry.path().is_dir()) {
            let number: u64 = id.parse().unwrap_or_default();
            out.push((rank, number, name));
        }
    }
    out.sort();
    Ok(out.into_iter().map(|(_, _, name)| name).collect())
}

/// The process that runs a daemon, if one does. The file that names one that has ended, or was
/// killed, is cleared away.
///
/// # Errors
/// When the file cannot be read.
pub fn running(dir: &ClusterDir, name: &str) -> anyhow::Result<Option<i32>> {
    let path = dir.join(format!("run/{name}.pid"));
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e).with_context(|| format!("open {}", path.display())),
    };
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
        // While we hold its lock nobody else can be its owner; who waits for it looks again
        // (`ClusterDir::lock_daemon`). A file that cannot be removed names a process that is gone,
        // which the lock shows.
        let _ = fs::remove_file(&path);
        return Ok(None);
    }
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let pid = text.trim().parse().with_context(|| format!("{}: no process id", path.display()))?;
    Ok(Some(pid))
}

fn chosen(dir: &ClusterDir, names: &[String]) -> anyhow::Result<Vec<String>> {
    let all = daemons(dir)?;
    if let Some(bad) = names.iter().find(|n| !all.contains(n)) {
        bail!("{} has no {bad}; there are {}", dir.path().display(), all.join(", "));
    }
    if all.is_empty() {
        return Err(Unmet(format!("{} holds no daemons", dir.path().display())).into());
    }
    Ok(if names.is_empty() { all } else { names.to_vec() })
}

/// Starts the daemons named, or all; those that run are left.
///
/// # Errors
/// When one does not come up, with the end of its log.
pub fn start(dir: &ClusterDir, names: &[String], quiet: bool) -> anyhow::Result<()> {
    for name in chosen(dir, names)? {
        if running(dir, &name)?.is_some() {
            if !quiet {
                crate::out!("{name} runs already");
            }
            continue;
        }
        let pid = spawn(dir, &name)?;
        crate::out!(
            "{name} runs (process {pid}, log {})",
            dir.join(format!("{name}.log")).display()
        );
    }
    Ok(())
}

fn spawn(dir: &ClusterDir, name: &str) -> anyhow::Result<u32> {
    let (kind, id) = name.split_once('.').context("a daemon is named kind.id")?;
    let path = dir.join(format!("{name}.log"));
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    let log = options.open(&path).with_context(|| format!("open {}", path.display()))?;
    let begun = log.metadata().map_or(0, |m| m.len());
    let word = format!("spirula-{}-{name}", std::process::id());
    let at = SocketAddr::from_abstract_name(&word).context("name a socket")?;
    let socket = UnixDatagram::bind_addr(&at).context("make a socket")?;
    socket.set_read_timeout(Some(Duration::from_millis(50))).context("set a time limit")?;
    let mut child = Command::new(std::env::current_exe().context("find this program")?)
        .args([kind, "--id", id, "--dir"])
        .arg(dir.path())
        .env("NOTIFY_SOCKET", format!("@{word}"))
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("share the log file")?)
        .stderr(log)
        // Out of the terminal's process group, so that Ctrl-C there does not stop it.
        .process_group(0)
        .spawn()
        .with_context(|| format!("start {name}"))?;
    let since = Instant::now();
    loop {
        let mut said = [0; 64];
        if socket
            .recv(&mut said)
            .is_ok_and(|n| said.get(..n).is_some_and(|s| s.starts_with(b"READY=1")))
        {
            return Ok(child.id());
        }
        if let Some(status) = child.try_wait().with_context(|| format!("watch {name}"))? {
            let text = fs::read(&path).unwrap_or_default();
            let text = text.get(usize::try_from(begun).unwrap_or(0)..).unwrap_or_default();
            let text = String::from_utf8_lossy(text);
            bail!("{name} did not start ({status}): {}", text.lines().last().unwrap_or_default());
        }
        if since.elapsed() > START_PATIENCE {
            bail!(
                "{name} (process {}) is not up after {START_PATIENCE:?}; see {}",
                child.id(),
                path.display()
            );
        }
    }
}

/// Stops the daemons named, or all, the last started first.
///
/// # Errors
/// When one does not stop.
pub fn stop(dir: &ClusterDir, names: &[String]) -> anyhow::Result<()> {
    for name in chosen(dir, names)?.into_iter().rev() {
        let Some(pid) = running(dir, &name)? else { continue };
        let pid = Pid::from_raw(pid).with_context(|| format!("{name}: {pid} is no process"))?;
        kill_process(pid, Signal::TERM).with_context(|| format!("stop {name}"))?;
        let begun = Instant::now();
        while running(dir, &name)?.is_some() {
            if begun.elapsed() > STOP_PATIENCE {
                bail!("{name} does not stop; see {}", dir.join(format!("{name}.log")).display());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        crate::out!("{name} stopped");
    }
    Ok(())
}

/// Prints the daemons and whether they run.
///
/// # Errors
/// When the directory cannot be read.
pub fn list(dir: &ClusterDir) -> anyhow::Result<()> {
    for name in chosen(dir, &[])? {
        match running(dir, &name)? {
            Some(pid) => crate::out!("{name} runs (process {pid})"),
            None => crate::out!("{name} is stopped"),
        }
    }
    Ok(())
}
