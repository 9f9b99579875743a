//! A network namespace is cut off: what its processes send is lost, without a word to them or to
//! anybody.
//!
//! A rule of the kernel's routing does it, `ip rule … blackhole`, after the rule for a host's own
//! addresses: links, addresses and routes stay as they are, so that undoing it is removing a rule,
//! and no firewall is needed or changed. The rule has a number of its own; where somebody uses that
//! already nothing is done.
//!
//! Nobody is cut off who shares the namespace with the drill's load, or the load would be cut off,
//! too: there only the cluster network can be.

use crate::bail;
use crate::prelude::*;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

/// The rule's number: after 0, which is for a host's own addresses.
const PREF: &str = "7";
/// Removals of rules, at most: one for each address.
const RULES: usize = 10_000;

/// What is cut off, and from what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The namespace's number.
    pub space: u64,
    /// Addresses that it does not reach; without any it reaches nothing but itself.
    pub to: Vec<String>,
}

fn number(path: impl AsRef<Path>) -> Option<u64> {
    std::fs::metadata(path).ok().map(|m| m.ino())
}

/// The network namespace of a process; `None` if it may not be looked at.
pub fn space_of(pid: u32) -> Option<u64> {
    number(format!("/proc/{pid}/ns/net"))
}

/// Can a namespace be cut off by this process?
///
/// # Errors
/// Why not.
pub fn can() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("a network can be cut by root alone");
    }
    for (program, package) in [("ip", "iproute2"), ("nsenter", "util-linux")] {
        if Command::new(program)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_err()
        {
            bail!("{program} is not installed (Debian: apt-get install {package})");
        }
    }
    Ok(())
}

/// A file that stands for the namespace: one that is named, or that of a process in it. `None` if
/// it is gone.
fn file_of(space: u64) -> Option<PathBuf> {
    let below =
        |dir: &str| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
    let named = below("/run/netns");
    let processes = below("/proc").map(|p| p.join("ns/net"));
    named.chain(processes).find(|p| number(p) == Some(space))
}

impl Cut {
    /// As it stands in a journal.
    pub fn json(&self) -> Value {
        json!({"space": self.space, "to": self.to})
    }

    /// From a journal.
    pub fn from_json(v: &Value) -> Option<Self> {
        let to = v["to"].as_array()?.iter().map(|t| t.as_str().map(str::to_owned));
        Some(Self { space: v["space"].as_u64()?, to: to.collect::<Option<_>>()? })
    }

    fn ip(at: &Path, six: bool, words: &[&str]) -> Result<String> {
        let mut net = std::ffi::OsString::from("--net=");
        net.push(at);
        let mut command = Command::new("nsenter");
        command.arg(net).args(["--", "ip"]).args(six.then_some("-6")).arg("rule").args(words);
        let out = command.stdin(Stdio::null()).output().context("start nsenter")?;
        if !out.status.success() {
            bail!("ip rule {}: {}", words.join(" "), String::from_utf8_lossy(&out.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }

    fn rules(at: &Path, six: bool) -> Result<Vec<String>> {
        let all = Self::ip(at, six, &["show"])?;
        let own = format!("{PREF}:");
        Ok(all.lines().filter(|l| l.starts_with(&own)).map(str::to_owned).collect())
    }

    /// Is the rule's number free there?
    ///
    /// # Errors
    /// When it is not, or that cannot be said.
    pub fn is_free(&self) -> Result<()> {
        let at = file_of(self.space).context("the network namespace is gone")?;
        for six in [false, true] {
            // A machine without IPv6 has no such rules.
            let rules = if six {
                Self::rules(&at, six).unwrap_or_default()
            } else {
                Self::rules(&at, six)?
            };
            if let Some(rule) = rules.first() {
                bail!(
                    "the routing has a rule with the number that a drill uses: '{}'",
                    rule.trim()
                );
            }
        }
        Ok(())
    }

    /// Cuts.
    ///
    /// # Errors
    /// When a rule cannot be made; some may have been.
    pub fn on(&self) -> Result<()> {
        let at = file_of(self.space).context("the network namespace is gone")?;
        if self.to.is_empty() {
            Self::ip(&at, false, &["add", "pref", PREF, "blackhole"])?;
            // Without IPv6 there is nothing to cut.
            let _ = Self::ip(&at, true, &["add", "pref", PREF, "blackhole"]);
        }
        for to in &self.to {
            Self::ip(&at, to.contains(':'), &["add", "pref", PREF, "to", to, "blackhole"])?;
        }
        Ok(())
    }

    /// Undoes it; gives words about it.
    ///
    /// # Errors
    /// When a rule of the drill's number stays.
    pub fn off(&self) -> Result<String> {
        let Some(at) = file_of(self.space) else {
            return Ok("the network namespace that was cut off is gone".into());
        };
        for six in [false, true] {
            for _ in 0..RULES {
                if Self::ip(&at, six, &["del", "pref", PREF]).is_err() {
                    break;
                }
            }
        }
        // What is there now is what counts, not what the removals said.
        self.is_free()?;
        Ok("the network is whole again".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    /// Only root can. In a namespace of its own, by `unshare`.
    #[test]
    fn a_namespace_is_cut_off_and_whole_again() {
        if can().is_err() {
            return;
        }
        let mut there = Command::new("unshare")
            .args(["-n", "sleep", "1000"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let own = space_of(std::process::id()).unwrap();
        let other = loop {
            match space_of(there.id()) {
                Some(space) if space != own => break space,
                _ if there.try_wait().unwrap().is_some() => return,
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        for cut in [
            Cut { space: other, to: Vec::new() },
            Cut { space: other, to: vec!["10.9.8.7/32".into(), "fd00::7/128".into()] },
        ] {
            assert_eq!(Cut::from_json(&cut.json()).as_ref(), Some(&cut));
            cut.is_free().unwrap();
            cut.on().unwrap();
            let at = file_of(other).unwrap();
            let rules = [Cut::rules(&at, false).unwrap(), Cut::rules(&at, true).unwrap()].concat();
            assert_eq!(rules.len(), 2, "{rules:?}");
            assert!(rules.iter().all(|r| r.contains("blackhole")), "{rules:?}");
            assert!(cut.is_free().is_err(), "no second one on top of it");
            cut.off().unwrap();
            cut.off().unwrap();
        }
        there.kill().unwrap();
        there.wait().unwrap();
        assert!(Cut { space: other, to: Vec::new() }.off().unwrap().contains("gone"));
        // This process's own is as it was.
        let l = TcpListener::bind("127.0.0.1:0").unwrap();
        TcpStream::connect(l.local_addr().unwrap()).unwrap();
    }
}
