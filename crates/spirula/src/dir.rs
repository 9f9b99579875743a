//! The cluster directory: what is in it, whose it is, and who may use it now.
//!
//! `cluster.json` says that the directory is ours and how the cluster was made; `lock` is
//! held while a process runs it. A directory that holds something else is never touched.

use crate::Unmet;
use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};
use spirula_types::Uuid;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Version of `cluster.json` that this program writes and reads.
const FORMAT: u64 = 2;

/// How the cluster was made. Fixed for its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The cluster's id.
    pub fsid: Uuid,
    /// Identity of each OSD's store, by OSD number.
    pub osd_uuids: Vec<Uuid>,
    /// Capacity of each OSD, bytes.
    pub osd_size: u64,
    /// Copies that pools keep by default.
    pub pool_size: u8,
    /// Copies that must be there for a pool to take writes.
    pub min_size: u8,
    /// Address that the daemons listen on.
    pub bind: IpAddr,
    /// Port of the first monitor; the others have the next ones.
    pub port: u16,
    /// Number of monitors.
    pub mons: u8,
    /// cephx is asked for.
    pub auth: bool,
    /// False while the stores are being made: a creation that was cut short starts over.
    pub complete: bool,
}

impl Manifest {
    fn to_json(&self) -> Value {
        json!({
            "spirula": "cluster",
            // What came later has its default where an older spirula wrote the file, but an older
            // one must not run a cluster with keys and several monitors.
            "format": if self.auth || self.mons > 1 { FORMAT } else { 1 },
            "fsid": self.fsid.to_string(),
            "osds": self.osd_uuids.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "osd_size": self.osd_size,
            "pool_size": self.pool_size,
            "min_size": self.min_size,
            "bind": self.bind.to_string(),
            "port": self.port,
            "mons": self.mons,
            "auth": self.auth,
            "complete": self.complete,
        })
    }

    fn from_json(v: &Value) -> anyhow::Result<Self> {
        if v["spirula"] != "cluster" {
            bail!("it does not describe a Spirula cluster");
        }
        let format = v["format"].as_u64().context("no number in 'format'")?;
        if format > FORMAT {
            bail!("format {format} was written by a newer spirula; this one reads up to {FORMAT}");
        }
        let text = |key: &str| v[key].as_str().with_context(|| format!("no text in '{key}'"));
        let number = |key: &str| v[key].as_u64().with_context(|| format!("no number in '{key}'"));
        let uuid = |s: &str| Uuid::parse(s).with_context(|| format!("'{s}' is not a uuid"));
        let osds = v["osds"].as_array().context("no list in 'osds'")?;
        Ok(Self {
            fsid: uuid(text("fsid")?)?,
            osd_uuids: osds
                .iter()
                .map(|o| uuid(o.as_str().unwrap_or_default()))
                .collect::<Result<_, _>>()?,
            osd_size: number("osd_size")?,
            pool_size: u8::try_from(number("pool_size")?).context("'pool_size' is too large")?,
            min_size: u8::try_from(number("min_size")?).context("'min_size' is too large")?,
            bind: text("bind")?.parse().context("'bind' is no IP address")?,
            port: u16::try_from(number("port")?).context("'port' is too large")?,
            mons: v["mons"].as_u64().and_then(|n| u8::try_from(n).ok()).unwrap_or(1).max(1),
            auth: v["auth"].as_bool().unwrap_or(false),
            complete: v["complete"].as_bool().context("no true or false in 'complete'")?,
        })
    }
}

/// How long to wait for an earlier process that has been killed to be gone: the kernel first
/// finishes the writes it had under way.
const DYING_PATIENCE: Duration = Duration::from_secs(10);

/// Is this process gone or going?
fn is_dying(pid: &str) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        // "pid (name) state …"; the name may hold anything.
        Ok(stat) => stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X'])),
        Err(_) => true,
    }
}

/// A cluster directory, by absolute path.
#[derive(Debug, Clone)]
pub struct ClusterDir {
    path: PathBuf,
}

/// Holds the directory for this process; released when dropped or when the process ends.
#[derive(Debug)]
pub struct DirLock {
    _file: File,
}

/// Holds one daemon's place in a directory; released when dropped or when the process ends.
#[derive(Debug)]
pub struct PidLock {
    _whole: File,
    _own: File,
}

/// How long an owner may take from its lock to writing its number.
const NEW_PATIENCE: Duration = Duration::from_secs(1);

/// Is `file` still what `path` leads to?
fn is_named(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), fs::metadata(path)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

/// ` (process N)`, or nothing where the number is not known.
fn by(pid: &str) -> String {
    if pid.is_empty() { String::new() } else { format!(" (process {pid})") }
}

impl ClusterDir {
    /// The directory at `path`, which need not exist.
    ///
    /// # Errors
    /// When the current directory is unknown.
    pub fn new(path: &Path) -> anyhow::Result<Self> {
        let path = std::path::absolute(path).with_context(|| format!("find {}", path.display()))?;
        Ok(Self { path: path.components().collect() })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file or folder in it.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// Options whose defaults point into this directory.
    pub fn path_options(&self) -> Vec<(&'static str, String)> {
        let at = |name: &str| self.join(name).display().to_string();
        vec![
            ("run_dir", at("run")),
            ("admin_socket", at("run/$cluster-$name.asok")),
            ("keyring", at("$cluster.$name.keyring")),
            ("mon_data", at("mon.$id")),
            ("osd_data", at("osd.$id")),
        ]
    }

    /// `ceph.conf`.
    pub fn conf(&self) -> PathBuf {
        self.join("ceph.conf")
    }

    /// The control socket of the running process.
    pub fn socket(&self) -> PathBuf {
        self.join("control.sock")
    }

    /// Where a detached cluster writes what it would have printed.
    pub fn log(&self) -> PathBuf {
        self.join("spirula.log")
    }

    /// Reads the manifest; `None` for a missing or empty directory.
    ///
    /// # Errors
    /// When the directory holds something else, or a manifest that cannot be read.
    pub fn manifest(&self) -> anyhow::Result<Option<Manifest>> {
        let file = self.join("cluster.json");
        match fs::read(&file) {
            Ok(bytes) => {
                let v: Value = serde_json::from_slice(&bytes).with_context(|| {
                    format!("{} is not JSON; restore it from a backup", file.display())
                })?;
                let m = Manifest::from_json(&v)
                    .with_context(|| format!("{} cannot be used", file.display()))?;
                Ok(Some(m))
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {
                self.refuse_foreign()?;
                Ok(None)
            }
            Err(e) => Err(e).with_context(|| format!("read {}", file.display())),
        }
    }

    /// Did `spirula create` or `spirula join` make this directory? They write a `ceph.conf`, a
    /// keyring or a store for each daemon, and no manifest. A copy of a cluster of `spirula up`
    /// that was cut short has that cluster's `ceph.conf`.
    fn is_of_several(&self) -> bool {
        let daemon = |name: &str| {
            let name =
                name.strip_prefix("ceph.").and_then(|n| n.strip_suffix(".keyring")).unwrap_or(name);
            ["mon.", "mgr.", "osd."]
                .iter()
                .any(|kind| name.strip_prefix(kind).is_some_and(|id| !id.is_empty()))
        };
        let holds_one = || {
            fs::read_dir(&self.path)
                .is_ok_and(|all| all.flatten().any(|e| e.file_name().to_str().is_some_and(daemon)))
        };
        let of_up = |text: String| text.contains(crate::conf::MADE_BY_UP);
        !self.join("cluster.json").exists()
            && fs::read_to_string(self.conf()).is_ok_and(|text| !of_up(text))
            && holds_one()
    }

    /// Fails if the directory holds anything that a cluster being made would not have put there.
    fn refuse_foreign(&self) -> anyhow::Result<()> {
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e).with_context(|| format!("look into {}", self.path.display())),
        };
        if self.is_of_several() {
            bail!(
                "{dir} holds daemons of a cluster of several hosts, each a process of its own: \
                    'spirula host ls|start|stop --dir {dir}' \
                 is for them, and Ceph's 'ceph -s' tells the cluster's state; 'spirula up' and \
                 what goes with it need another --dir",
                dir = self.path.display(),
            );
        }
        for entry in entries {
            let name =
                entry.with_context(|| format!("look into {}", self.path.display()))?.file_name();
            if !matches!(name.to_str(), Some("lock" | "cluster.json.new" | "spirula.log")) {
                bail!(
                    "{} is not a Spirula cluster: it holds '{}' but no cluster.json; \
                     choose an empty or new directory with --dir",
                    self.path.display(),
                    name.display()
                );
            }
        }
        Ok(())
    }

    /// Writes the manifest so that a crash leaves the old one or the new one.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn write_manifest(&self, m: &Manifest) -> anyhow::Result<()> {
        let mut text = serde_json::to_string_pretty(&m.to_json()).context("print the manifest")?;
        text.push('\n');
        write_durably(&self.join("cluster.json"), text.as_bytes(), 0o644)
    }

    /// Creates the directory if needed and takes its lock.
    ///
    /// # Errors
    /// [`Unmet`] if another process runs the cluster; others if the directory cannot be used.
    pub fn lock(&self) -> anyhow::Result<DirLock> {
        fs::create_dir_all(&self.path)
            .with_context(|| format!("create {}", self.path.display()))?;
        let path = self.join("lock");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .with_context(|| format!("open {}", path.display()))?;
        let begun = Instant::now();
        while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
                // Shared with daemons that are processes of their own.
                let path = self.path.display();
                return Err(Unmet(format!(
                    "daemons of {path} run as processes of their own; stop them first"
                ))
                .into());
            }
            let mut pid = String::new();
            // The pid only makes the message more helpful.
            let _ = file.rewind().and_then(|()| file.read_to_string(&mut pid));
            // The owner has only just begun and has not written its number yet.
            let is_new = pid.trim().is_empty() && begun.elapsed() < NEW_PATIENCE;
            if is_new || begun.elapsed() < DYING_PATIENCE && is_dying(pid.trim()) {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            return Err(Unmet(format!(
                "the cluster in {} is running already{}; see 'spirula status --dir {}', stop it \
                    with 'spirula down'",
                self.path.display(),
                by(pid.trim()),
                self.path.display()
            ))
            .into());
        }
        file.set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .context("write the lock file")?;
        Ok(DirLock { _file: file })
    }

    /// Takes the locks of one daemon (`osd.0`) that is a process of its own: beside other such,
    /// never beside `spirula up`, and only one of that name.
    ///
    /// # Errors
    /// [`Unmet`] if it runs already; others if the directories cannot be used.
    pub fn lock_daemon(&self, run_dir: &Path, name: &str) -> anyhow::Result<PidLock> {
        fs::create_dir_all(&self.path)
            .with_context(|| format!("create {}", self.path.display()))?;
        fs::create_dir_all(run_dir).with_context(|| format!("create {}", run_dir.display()))?;
        let open = |path: &Path| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            options.open(path).with_context(|| format!("open {}", path.display()))
        };
        let whole = open(&self.join("lock"))?;
        let path = run_dir.join(format!("{name}.pid"));
        let mut own = open(&path)?;
        let begun = Instant::now();
        loop {
            // Who found the last owner gone has taken the file's name away: a lock on the nameless
            // file keeps nobody out.
            if !is_named(&own, &path) {
                own = open(&path)?;
            }
            let (file, mode) = if flock(&whole, FlockOperation::NonBlockingLockShared).is_err() {
                (&whole, "'spirula up'")
            } else if flock(&own, FlockOperation::NonBlockingLockExclusive).is_err() {
                (&own, "a process of its own")
            } else if is_named(&own, &path) {
                break;
            } else {
                continue;
            };
            let mut pid = String::new();
            // The pid only makes the message more helpful.
            let _ =
                (&mut { file }).rewind().and_then(|()| (&mut { file }).read_to_string(&mut pid));
            let pid = pid.trim();
            let is_new = pid.is_empty() && begun.elapsed() < NEW_PATIENCE;
            if !is_new && (begun.elapsed() > DYING_PATIENCE || !is_dying(pid)) {
                return Err(Unmet(format!(
                    "{name} of {} runs already, by {mode}{}",
                    self.path.display(),
                    by(pid)
                ))
                .into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        own.set_len(0)
            .and_then(|()| own.rewind())
            .and_then(|()| writeln!(own, "{}", std::process::id()))
            .with_context(|| format!("write {}", path.display()))?;
        Ok(PidLock { _whole: whole, _own: own })
    }

    /// Waits until no process runs the cluster any more; false if that takes too long.
    pub fn wait_unlocked(&self) -> bool {
        let begun = Instant::now();
        loop {
            let free = match File::open(self.join("lock")) {
                Ok(file) => flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok(),
                Err(_) => true,
            };
            if free || begun.elapsed() > DYING_PATIENCE {
                return free;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Fails with a sentence if there is no cluster here at all.
    ///
    /// # Errors
    /// [`Unmet`] for a missing cluster.
    pub fn require(&self) -> anyhow::Result<Manifest> {
        match self.manifest()? {
            Some(m) => Ok(m),
            None => Err(Unmet(format!(
                "there is no cluster in {}; make one with 'spirula up --dir {}'",
                self.path.display(),
                self.path.display()
            ))
            .into()),
        }
    }
}

/// Replaces `path` by `bytes`: a crash leaves the old file or the new one, whole.
///
/// # Errors
/// When it cannot be written.
pub fn write_durably(path: &Path, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&new)
        .with_context(|| format!("create {}", new.display()))?;
    // Whatever the process's umask: what is for everybody is asked for by name.
    file.set_permissions(fs::Permissions::from_mode(mode))
        .with_context(|| format!("set the mode of {}", new.display()))?;
    file.write_all(bytes)
        .and_then(|()| file.sync_all())
        .with_context(|| format!("write {}", new.display()))?;
    fs::rename(&new, path).with_context(|| format!("replace {}", path.display()))?;
    if let Some(parent) = path.parent() {
        File::open(parent)
            .and_then(|d| d.sync_all())
            .with_context(|| format!("sync {}", parent.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> ClusterDir {
        let p = std::env::temp_dir().join(format!("spirula-dir-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&p);
        ClusterDir::new(&p).unwrap()
    }

    fn until(what: &str, is_so: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < end, "waited in vain until {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn sample() -> Manifest {
        Manifest {
            fsid: Uuid::from_random([7; 16]),
            osd_uuids: vec![Uuid::from_random([1; 16])],
            osd_size: 1 << 30,
            pool_size: 1,
            min_size: 1,
            bind: "127.0.0.1".parse().unwrap(),
            port: 3300,
            mons: 3,
            auth: true,
            complete: true,
        }
    }

    #[test]
    fn manifest_survives_writing_and_reading() {
        let d = scratch("manifest");
        let _lock = d.lock().unwrap();
        assert_eq!(d.manifest().unwrap(), None);
        d.write_manifest(&sample()).unwrap();
        assert_eq!(d.manifest().unwrap(), Some(sample()));
        fs::remove_dir_all(d.path()).unwrap();
    }

    #[test]
    fn directory_of_something_else_is_refused_and_untouched() {
        let d = scratch("foreign");
        fs::create_dir_all(d.path()).unwrap();
        fs::write(d.join("thesis.tex"), "x").unwrap();
        let e = d.manifest().unwrap_err().to_string();
        assert!(e.contains("thesis.tex") && e.contains("--dir"), "{e}");
        assert_eq!(fs::read_dir(d.path()).unwrap().count(), 1);
        fs::remove_dir_all(d.path()).unwrap();
    }

    #[test]
    fn second_lock_is_refused_with_the_owners_pid() {
        let d = scratch("lock");
        let _lock = d.lock().unwrap();
        let e = d.lock().unwrap_err();
        assert!(e.is::<Unmet>() && e.to_string().contains(&std::process::id().to_string()), "{e}");
        fs::remove_dir_all(d.path()).unwrap();
    }

    /// An owner between its lock and its number is waited for; one that never writes it is not
    /// named by an empty word.
    #[test]
    fn an_owner_without_a_number_is_not_called_an_empty_word() {
        let d = scratch("nameless");
        let _lock = d.lock().unwrap();
        fs::write(d.join("lock"), "").unwrap();
        let e = d.lock().unwrap_err().to_string();
        assert!(e.contains("running already; see"), "{e}");
        fs::remove_dir_all(d.path()).unwrap();
    }

    /// The number of a daemon that has ended, however, is not left lying about for others to read.
    #[test]
    fn whoever_looks_clears_the_number_of_a_daemon_that_ended() {
        let d = scratch("pid");
        let run = d.path().join("run");
        let lock = d.lock_daemon(&run, "osd.0").unwrap();
        assert!(
            d.lock_daemon(&run, "osd.0")
                .unwrap_err()
                .to_string()
                .contains(&std::process::id().to_string())
        );
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(crate::local::running(&d, "osd.0").unwrap(), Some(own));
        drop(lock);
        assert!(run.join("osd.0.pid").exists());
        // A child that another test has just forked has the lock's file, too, until it is its
        // program.
        until("the number is cleared", || crate::local::running(&d, "osd.0").unwrap().is_none());
        assert!(!run.join("osd.0.pid").exists());
        until("the lock is to be had", || d.lock_daemon(&run, "osd.0").is_ok());
        fs::remove_dir_all(d.path()).unwrap();
    }

    #[test]
    fn damaged_or_newer_manifest_is_refused_by_name() {
        let d = scratch("damaged");
        fs::create_dir_all(d.path()).unwrap();
        fs::write(d.join("cluster.json"), "{").unwrap();
        assert!(format!("{:#}", d.manifest().unwrap_err()).contains("cluster.json"));
        fs::write(d.join("cluster.json"), r#"{"spirula":"cluster","format":99}"#).unwrap();
        assert!(format!("{:#}", d.manifest().unwrap_err()).contains("newer"));
        fs::remove_dir_all(d.path()).unwrap();
    }
}
