//! `spirula bench mysql`: the thesis's loop. A MariaDB of its own in a directory, and mariadb-slap
//! with more and more users.
//!
//! The server listens on a socket in that directory only, and ends with the run. What a killed run
//! left, server and files, is ended and removed by the next one in the same directory. That
//! directory is locked meanwhile: a run that goes on is left alone.

use crate::args::{Lab, MysqlArgs};
use crate::bail;
use crate::expect::bottleneck;
use crate::litter::born;
use crate::mounted::Mounted;
use crate::objects::cluster_of;
use crate::prelude::*;
use crate::session::Session;
use crate::shown::Shown;
use crate::signal::{lives, signal_if};
use crate::used::{Watch, children_cpu, cpu_seconds};
use rustix::process::Signal;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// The directory of the server below the one that was given.
const FOLDER: &str = "spirula-bench-mysql";
/// How long it may take to come up, and to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server.
struct Server {
    dir: PathBuf,
    child: Child,
    /// Held as long as it runs.
    _lock: File,
}

/// Takes a directory for this run alone, until what is returned is dropped.
fn lock(at: &Path) -> Result<File> {
    let dir = File::open(at).with_context(|| format!("open {}", at.display()))?;
    match dir.try_lock() {
        Ok(()) => Ok(dir),
        Err(TryLockError::WouldBlock) => bail!(
            "another 'spirula bench mysql' measures in {}: wait until it has ended, or give \
                another directory",
            at.display()
        ),
        Err(TryLockError::Error(e)) => Err(e)
            .with_context(|| format!("lock {} (give a directory of a local disk)", at.display())),
    }
}

fn which(names: &[&str]) -> Result<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    // Servers stand where users do not look.
    let dirs = path.split(':').chain(["/usr/sbin", "/usr/local/sbin", "/usr/libexec"]);
    for dir in dirs {
        for name in names {
            let at = Path::new(dir).join(name);
            if at.is_file() {
                return Ok(at);
            }
        }
    }
    bail!("{} is not installed (Debian: apt-get install mariadb-server)", names.join(" or "))
}

fn tail(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(3)..].join("; ")
}

/// Ends a server that a killed run left. Whoever calls this knows that no run goes on there.
fn end_old(dir: &Path) -> Result<()> {
    let text = fs::read_to_string(dir.join("pid")).unwrap_or_default();
    let pid = text.trim().parse::<i32>().ok().and_then(|n| u32::try_from(n).ok());
    let Some(pid) = pid.filter(|n| *n > 0) else { return Ok(()) };
    let Some(since) = born(u64::from(pid)) else { return Ok(()) };
    // The number may be another's by now.
    let is_ours = || {
        let args = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&args).contains(&*dir.to_string_lossy()) && lives(pid, since)
    };
    if !signal_if(pid, Signal::KILL, is_ours).context("end the server of an earlier run")? {
        return Ok(());
    }
    let begun = Instant::now();
    // It has no command line any more before its files are closed.
    while lives(pid, since) {
        if begun.elapsed() > PATIENCE {
            bail!(
                "the server of an earlier run (process {pid}) does not end; what it has in {} \
                    stays",
                dir.display()
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

impl Server {
    fn start(at: &Path) -> Result<Self> {
        let at = fs::canonicalize(at).with_context(|| format!("look at {}", at.display()))?;
        let lock = lock(&at)?;
        let dir = at.join(FOLDER);
        if dir.exists() {
            end_old(&dir)?;
            fs::remove_dir_all(&dir)
                .with_context(|| format!("remove what an earlier run left in {}", dir.display()))?;
        }
        let data = dir.join("data");
        let socket = dir.join("s");
        if socket.as_os_str().len() > 100 {
            bail!("{}: the path is too long for a socket", dir.display());
        }
        // Made, not found: somebody else may write to the directory around it.
        let make = |path: &Path| DirBuilder::new().mode(0o700).create(path);
        make(&dir)
            .and_then(|()| make(&data))
            .with_context(|| format!("make {}", data.display()))?;
        // Its files belong to whoever owns the directory: a server does not run as root unless
        // told.
        let owner = fs::metadata(&data).context("look at the directory")?.uid();
        let user = if owner == 0 { "--user=root" } else { "--skip-symbolic-links" };
        let install = which(&["mariadb-install-db", "mysql_install_db"])?;
        let out = Command::new(install)
            .arg("--no-defaults")
            .arg(format!("--datadir={}", data.display()))
            .args(["--auth-root-authentication-method=normal", "--skip-test-db"])
            .args(if owner == 0 { vec!["--user=root"] } else { Vec::new() })
            .stdin(Stdio::null())
            .output()
            .context("start mariadb-install-db")?;
        if !out.status.success() {
            let why = String::from_utf8_lossy(&out.stderr).into_owned()
                + &String::from_utf8_lossy(&out.stdout);
            bail!(
                "mariadb-install-db in {}: {}",
                data.display(),
                why.lines().last().unwrap_or_default()
            );
        }
        let log = dir.join("log");
        let file = File::create(&log).with_context(|| format!("write {}", log.display()))?;
        let child = Command::new(which(&["mariadbd", "mysqld"])?)
            .arg("--no-defaults")
            .arg(user)
            .arg(format!("--datadir={}", data.display()))
            .arg(format!("--socket={}", socket.display()))
            .arg(format!("--pid-file={}", dir.join("pid").display()))
            .args(["--skip-networking", "--max-connections=200"])
            .stdin(Stdio::null())
            .stdout(file.try_clone().context("share the log file")?)
            .stderr(file)
            .spawn()
            .context("start mariadbd")?;
        let mut server = Self { dir, child, _lock: lock };
        let begun = Instant::now();
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            if let Some(status) = server.child.try_wait().context("watch mariadbd")? {
                bail!("mariadbd did not start ({status}): {}", tail(&log));
            }
            if begun.elapsed() > PATIENCE {
                bail!("mariadbd is not up after {PATIENCE:?}: {}", tail(&log));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    /// Seconds of one sample: mean, least, most of its iterations.
    fn slap(&self, users: u64, a: &MysqlArgs) -> Result<[f64; 3]> {
        let queries = 1024 + 1024 % users;
        let out = Command::new(which(&["mariadb-slap", "mysqlslap"])?)
            .arg("--no-defaults")
            .arg(format!("--socket={}", self.dir.join("s").display()))
            .args([
                "--user=root",
                "--auto-generate-sql",
                "--number-int-cols=5",
                "--number-char-cols=20",
            ])
            .args([format!("--concurrency={users}"), format!("--iterations={}", a.iterations)])
            .arg(format!("--number-of-queries={queries}"))
            .stdin(Stdio::null())
            .output()
            .context("start mariadb-slap")?;
        let text = String::from_utf8_lossy(&out.stdout);
        if !out.status.success() {
            bail!("mariadb-slap: {}", String::from_utf8_lossy(&out.stderr).trim());
        }
        parse(&text).with_context(|| format!("mariadb-slap said nothing of seconds: {text}"))
    }
}

/// What mariadb-slap says: mean, least, most.
fn parse(text: &str) -> Option<[f64; 3]> {
    let of = |word: &str| {
        let line = text.lines().find(|l| l.contains(word))?;
        line.split_once(": ")?.1.split_whitespace().next()?.parse().ok()
    };
    Some([
        of("Average number of seconds")?,
        of("Minimum number of seconds")?,
        of("Maximum number of seconds")?,
    ])
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(Some(pid)) = i32::try_from(self.child.id()).map(rustix::process::Pid::from_raw) {
            // It may have ended by itself.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begun.elapsed() > PATIENCE {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // What stays is removed by the next run.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Measures in the directory `at`; the runs go where `shown` leads. Of several clusters on this
/// machine the daemons of that one are told of whose ceph.conf is in the directory `conf`.
///
/// # Errors
/// When MariaDB is not installed or does not run there.
pub fn measure(
    lab: &Lab,
    a: &MysqlArgs,
    at: &Path,
    conf: Option<&Path>,
    shown: &mut Shown<'_>,
) -> Result<()> {
    if a.users_from > a.users_to {
        bail!("--users-from {} is more than --users-to {}", a.users_from, a.users_to);
    }
    shown.progress.now("starting a MariaDB of its own");
    let server = Server::start(at)?;
    for users in a.users_from..=a.users_to {
        let (mut means, mut least, mut most) = (Vec::new(), f64::MAX, 0f64);
        let mut watch = Watch::begin_of(conf);
        let cpu = || (children_cpu(), cpu_seconds(server.child.id()));
        let before = cpu();
        for sample in 0..a.samples {
            if lab.stopped() {
                bail!("interrupted");
            }
            let part = (users - a.users_from) as f64 / (a.users_to - a.users_from + 1) as f64;
            shown
                .progress
                .at(part, &format!("{users} users, sample {} of {}", sample + 1, a.samples));
            let [mean, min, max] = watch.during(|| server.slap(users, a))?;
            means.push(mean);
            (least, most) = (least.min(min), most.max(max));
        }
        let queries = 1024 + 1024 % users;
        let mean = means.iter().sum::<f64>() / means.len().max(1) as f64;
        let ops = queries * a.iterations * a.samples;
        let (mut used, after) = (watch.end(ops), cpu());
        used.add_clients(after.0 - before.0, ops);
        used.add_server("mariadbd", server.child.id(), after.1 - before.1, ops);
        let (rate, each) =
            (queries as f64 / mean.max(1e-9), 1000.0 * users as f64 * mean / queries as f64);
        let run = json!({
            "name": format!("mysql, {users} users"), "repeat": 0, "mode": "mysql", "users": users, "threads": users,
            "found": {
                "iops": round(queries as f64 / mean.max(1e-9), 1), "ops": queries * a.iterations * a.samples, "errors": 0,
                "seconds": {"mean": round(mean, 4), "min": round(least, 4), "max": round(most, 4), "samples": means},
            },
            "used": used.json, "bottleneck": bottleneck(&used, users, rate, each),
        });
        shown.add(
            &format!(
                "mysql, {users:>2} users: {queries} queries in {mean:.3} s (least {least:.3}, \
                most {most:.3})"
            ),
            run,
        )?;
    }
    Ok(())
}

/// `spirula bench mysql`.
///
/// # Errors
/// As [`measure`].
pub fn mysql(lab: &Lab, a: &MysqlArgs) -> Result<()> {
    let mut shown = Shown::new(lab, "mysql", &a.output)?;
    match (&a.image, &a.place) {
        (Some(image), _) => {
            let way = (lab.connect)(&a.target)?;
            let session = Session::open(&way, 1 << 20)?;
            let cluster = cluster_of(&session);
            let fsid = cluster["fsid"].as_str().unwrap_or_default().to_owned();
            shown.results.set("cluster", cluster);
            shown.progress.now("mapping the image");
            let mounted =
                Mounted::new(&way, &session, &fsid, image, |at| end_old(&at.join(FOLDER)))?;
            measure(
                lab,
                a,
                mounted.path(),
                way.conf.as_deref().and_then(Path::parent),
                &mut shown,
            )?;
        }
        (None, Some(place)) => measure(lab, a, place, None, &mut shown)?,
        (None, None) => bail!("give a directory or --image"),
    }
    shown.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process with the server's mark stands for the server of a run that goes on, then of one
    /// that was killed.
    #[test]
    fn a_run_that_goes_on_keeps_its_directory_and_its_server() {
        let at = std::env::temp_dir().join(format!("spirula-lab-mysql-{}", std::process::id()));
        let dir = at.join(FOLDER);
        fs::create_dir_all(&dir).unwrap();
        let mark = format!("--datadir={}", dir.display());
        let mut child = Command::new("sh")
            .args(["-c", "sleep 1000; :", &mark])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        fs::write(dir.join("pid"), format!("{}\n", child.id())).unwrap();
        let held = lock(&at).unwrap();
        let e = Server::start(&at).err().unwrap().to_string();
        assert!(e.contains("another 'spirula bench mysql' measures in"), "{e}");
        assert!(e.contains("give another directory"), "{e}");
        assert!(
            child.try_wait().unwrap().is_none() && dir.join("pid").exists(),
            "it is left alone"
        );
        drop(held);
        // A child that another test has just forked has the lock, too, until it is its program.
        let begun = Instant::now();
        while lock(&at).is_err() {
            assert!(begun.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(5));
        }
        let ended = std::thread::spawn(move || child.wait().unwrap());
        end_old(&dir).unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended.join().unwrap()), Some(9));
        fs::remove_dir_all(&at).unwrap();
    }

    #[test]
    fn what_mariadb_slap_says_is_read() {
        let text = "Benchmark\n\tAverage number of seconds to run all queries: 0.221 \
            seconds\n\tMinimum number of seconds to run all queries: 0.200 seconds\n\tMaximum \
            number of seconds to run all queries: 0.300 seconds\n";
        assert_eq!(parse(text), Some([0.221, 0.2, 0.3]));
        assert_eq!(parse("nothing"), None);
    }
}
