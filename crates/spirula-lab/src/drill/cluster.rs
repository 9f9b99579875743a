//! The daemons of the cluster that is drilled, as far as they run on this machine.
//!
//! A `spirula up` runs all daemons in one process: its OSDs are stopped and started through it, and
//! only the whole can be killed. Where daemons are processes, Spirula's or Ceph's, each is hurt by
//! itself ([`super::daemon`]).

use super::daemon::Daemon;
use crate::bail;
use crate::prelude::*;
use crate::session::Way;
use crate::used::{Proc, daemons};
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// How this program says that something runs already, or does not run.
const UNMET: i32 = 3;

/// The daemons.
pub struct Cluster {
    /// The directory of a `spirula up`, whose daemons share a process.
    pub one: Option<PathBuf>,
    daemons: Vec<Daemon>,
}

fn canonical(path: &str, cwd: &Path) -> PathBuf {
    let path = cwd.join(path);
    fs::canonicalize(&path).unwrap_or(path)
}

/// The cluster that a configuration file names.
pub(super) fn fsid_of(conf: &Path) -> Option<String> {
    let text = fs::read_to_string(conf).ok()?;
    let fsid =
        text.lines().filter_map(|l| l.split_once('=')).find(|(name, _)| name.trim() == "fsid");
    fsid.map(|(_, value)| value.trim().to_owned()).filter(|f| !f.is_empty())
}

/// The directory of a process, if it belongs to the cluster: one that it names, or whose
/// configuration file it names, has a file of the same cluster.
fn home_of(p: &Proc, cwd: &Path, fsid: &str) -> Option<PathBuf> {
    let mut words = p.args.iter();
    while let Some(word) = words.next() {
        let (name, value) = match word.split_once('=') {
            Some((n, v)) => (n, Some(v)),
            None => (word.as_str(), None),
        };
        let conf = match name {
            "--dir" => canonical(value.or_else(|| words.next().map(String::as_str))?, cwd)
                .join("ceph.conf"),
            "-c" | "--conf" => canonical(value.or_else(|| words.next().map(String::as_str))?, cwd),
            _ => continue,
        };
        if fsid_of(&conf).as_deref() == Some(fsid) {
            return conf.parent().map(Path::to_owned);
        }
    }
    None
}

impl Cluster {
    /// Finds the daemons on this machine.
    ///
    /// # Errors
    /// When none of them run here, or they may not be looked at.
    pub fn find(way: &Way) -> Result<Self> {
        let conf = way
            .conf
            .as_deref()
            .context("drills need the cluster's ceph.conf; give --conf or --dir")?;
        let fsid = fsid_of(conf).with_context(|| format!("{} names no fsid", conf.display()))?;
        let mut found = Self { one: None, daemons: Vec::new() };
        for p in daemons() {
            let Ok(cwd) = fs::read_link(format!("/proc/{}/cwd", p.pid)) else { continue };
            let Some(home) = home_of(&p, &cwd, &fsid) else { continue };
            if p.name.starts_with("spirula up") {
                found.one = Some(home);
            }
            found.daemons.push(Daemon::of(&p, cwd)?);
        }
        if found.daemons.is_empty() {
            bail!(
                "no daemon of this cluster runs on this machine; drills are run where the daemons \
                    are"
            );
        }
        Ok(found)
    }

    /// The daemon with this name, if it is a process of its own.
    pub fn daemon(&self, name: &str) -> Option<&Daemon> {
        self.daemons.iter().find(|d| d.name == name)
    }

    /// Daemons of a kind (`osd`, `mon`), each a process of its own.
    pub fn of_kind(&self, kind: &str) -> Vec<Daemon> {
        let is = |d: &&Daemon| d.name.split_once('.').is_some_and(|(k, _)| k == kind);
        self.daemons.iter().filter(is).cloned().collect()
    }

    /// All processes.
    pub fn all(&self) -> &[Daemon] {
        &self.daemons
    }

    /// Its processes have other numbers now.
    ///
    /// # Errors
    /// As [`Cluster::find`].
    pub fn again(&mut self, way: &Way) -> Result<()> {
        *self = Self::find(way)?;
        Ok(())
    }
}

/// This very program, on a directory. That something is so already, or that nothing runs there, is
/// no failure.
///
/// # Errors
/// When it fails, with its words.
pub fn spirula(words: &[&str], dir: &Path) -> Result<()> {
    let mut command = Command::new(std::env::current_exe().context("find this program")?);
    // Ctrl-C in the terminal is for the drill, which needs this to put things back.
    command.process_group(0);
    let out = command.args(words).arg("--dir").arg(dir).stdin(Stdio::null()).output();
    let out = out.with_context(|| format!("start spirula {}", words.join(" ")))?;
    if !out.status.success() && out.status.code() != Some(UNMET) {
        bail!("spirula {}: {}", words.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_of_the_cluster_that_its_file_names() {
        let dir = std::env::temp_dir().join(format!("spirula-lab-home-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("ceph.conf"), "[global]\nfsid = aaa\nmon_host = x\n").unwrap();
        let at = fs::canonicalize(&dir).unwrap();
        let home = |line: &str, fsid: &str| {
            let args = line
                .replace("DIR", &at.display().to_string())
                .split(' ')
                .map(str::to_owned)
                .collect();
            home_of(&Proc { pid: 1, name: "osd.1".into(), args }, &at, fsid)
        };
        for line in [
            "spirula osd --id 1 --dir DIR",
            "spirula up --dir=DIR",
            "ceph-osd -c DIR/ceph.conf -i 1",
            "ceph-osd -i 1 --conf ceph.conf",
        ] {
            assert_eq!(home(line, "aaa"), Some(at.clone()), "{line}");
            assert_eq!(home(line, "bbb"), None, "{line}");
        }
        assert_eq!(home("ceph-osd -i 1 -c", "aaa"), None);
        fs::remove_dir_all(&dir).unwrap();
    }
}
