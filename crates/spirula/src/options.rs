//! Where a daemon's options come from: file, environment, command line.
//!
//! A later source wins over an earlier one, as with Ceph's daemons:
//!
//! 1. the default
//! 2. the monitors' database (`ceph config set`), which a daemon learns once it is connected
//! 3. the file: `-c`, else `$SPIRULA_CONF`, else `DIR/ceph.conf`, else `$CEPH_CONF`, else
//!    `/etc/ceph/ceph.conf`; within it `[global]`, then `[osd]`, then `[osd.0]`
//! 4. the environment: `SPIRULA_PUBLIC_NETWORK=…` for `public_network`, then
//!    `CEPH_ARGS="--public-network …"`
//! 5. the command line: `--public-network …`
//! 6. `config set` at the running daemon
//!
//! Spaces, dashes and underscores in names are the same. Names that nobody knows are warned
//! of with the nearest known one. A value that cannot be is an error, but for one in a file, which
//! is warned of and counts as not set, as with Ceph: a line that Ceph's daemons pass over keeps no
//! daemon from starting. The cluster's id and what is Spirula's own must be right there, too.

use crate::conf_file::ConfFile;
use anyhow::{Context, bail};
use spirula_settings::{Settings, Source, options};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Variables of ours that are no options.
const OTHER_VARIABLES: &[&str] = &["log", "conf", "token", "binary"];
/// Prefix of the variables that are for our tests and tools.
const FOREIGN: &[&str] = &["e2e_", "fuzz_", "bench_", "test_"];

/// The sources of this process, read once.
#[derive(Debug, Default)]
pub struct Sources {
    file: ConfFile,
    /// The file read, if any.
    pub path: Option<PathBuf>,
    env: Vec<(String, String)>,
    args: Vec<(String, String)>,
    /// What is odd but no error.
    pub warnings: Vec<String>,
    /// Values of the file that were warned of: all daemons of a process read the same lines.
    told: Mutex<BTreeSet<String>>,
}

/// What `$name` and its like stand for.
#[derive(Debug, Clone, Copy)]
pub struct Names<'a> {
    /// `ceph`.
    pub cluster: &'a str,
    /// `mon`, `mgr`, `osd`.
    pub kind: &'a str,
    /// `a`, `0`.
    pub id: &'a str,
    /// This machine's.
    pub host: &'a str,
}

impl Names<'_> {
    /// `osd.0`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.kind, self.id)
    }

    fn expand(&self, value: &str) -> String {
        let pid = std::process::id().to_string();
        let name = self.name();
        // Longer names first: `$host` is no `$h` with a tail.
        let table = [
            ("cluster", self.cluster),
            ("name", &name),
            ("type", self.kind),
            ("host", self.host),
            ("pid", &pid),
            ("id", self.id),
        ];
        let mut out = value.to_owned();
        for (variable, text) in table {
            out = out
                .replace(&format!("${{{variable}}}"), text)
                .replace(&format!("${variable}"), text);
        }
        out
    }
}

impl Sources {
    /// Reads file and environment. `conf` is the file asked for on the command line, which then
    /// must be there; `args` are the options given there, `name=value`.
    ///
    /// # Errors
    /// When the file cannot be read or understood, or an argument is no option.
    pub fn read(dir: &Path, conf: Option<&Path>, args: &[String]) -> anyhow::Result<Self> {
        let mut s = Self::default();
        let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let asked = conf.map(Path::to_path_buf).or_else(|| var("SPIRULA_CONF"));
        // CEPH_CONF is there for clients, and may lead to another directory's cluster.
        let own = Some(dir.join("ceph.conf")).filter(|p| p.exists());
        let etc = Some(PathBuf::from("/etc/ceph/ceph.conf")).filter(|p| p.exists());
        s.path = asked.or(own).or_else(|| var("CEPH_CONF")).or(etc);
        if let Some(path) = &s.path {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("read {}", path.display()))?;
            s.file =
                ConfFile::parse(&text).map_err(|e| anyhow::anyhow!("{}: {e}", path.display()))?;
            for (name, line) in s.file.unknown() {
                let what = options::unknown(&name);
                s.warnings.push(format!("{} line {line}: {what}; ignored", path.display()));
            }
        }
        s.take_env(std::env::vars());
        for arg in args {
            let Some((name, value)) = arg.split_once('=') else {
                bail!("--set {arg}: write name=value")
            };
            if options::find(name).is_none() {
                bail!("{}", options::unknown(name));
            }
            s.args.push((name.to_owned(), value.to_owned()));
        }
        Ok(s)
    }

    fn take_env(&mut self, vars: impl Iterator<Item = (String, String)>) {
        let mut ceph_args = None;
        let mut own: Vec<(String, String)> = Vec::new();
        for (key, value) in vars {
            if key == "CEPH_ARGS" {
                ceph_args = Some(value);
            } else if let Some(name) = key.strip_prefix("SPIRULA_") {
                own.push((name.to_ascii_lowercase(), value));
            }
        }
        own.sort();
        for (name, value) in own {
            let prefixed = format!("spirula_{name}");
            if options::find(&name).is_some() {
                self.env.push((name, value));
            } else if options::find(&prefixed).is_some() {
                self.env.push((prefixed, value));
            } else if !OTHER_VARIABLES.contains(&name.as_str())
                && !FOREIGN.iter().any(|f| name.starts_with(f))
            {
                let what = options::unknown(&name);
                self.warnings.push(format!(
                    "environment variable SPIRULA_{}: {what}; ignored",
                    name.to_uppercase()
                ));
            }
        }
        let mut words = ceph_args.as_deref().unwrap_or_default().split_whitespace().peekable();
        while let Some(word) = words.next() {
            // CEPH_ARGS is for all of Ceph's programs: what is not ours is theirs.
            let Some(option) = word.strip_prefix("--") else { continue };
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, value.to_owned()),
                None => {
                    (option, words.next_if(|w| !w.starts_with('-')).unwrap_or("true").to_owned())
                }
            };
            if options::find(name).is_some() {
                self.env.push((name.to_owned(), value));
            }
        }
    }

    /// Sets what the file says for one daemon; returns warnings of values that cannot be, which
    /// count as not set. Of several lines for an option the strongest alone is looked at, so that a
    /// bad one gives the default, as with Ceph, and not what a weaker one says.
    ///
    /// # Errors
    /// When the cluster's id, or an option that no daemon of Ceph's reads, has a value that cannot
    /// be.
    fn take_file(&self, names: Names<'_>, out: &mut Settings) -> anyhow::Result<Vec<String>> {
        let lines = self.file.of(names.kind, names.id).into_iter();
        let strongest: BTreeMap<String, (String, usize)> =
            lines.map(|(n, value, line)| (n, (value, line))).collect();
        let path = self.path.as_deref().unwrap_or(Path::new("")).display();
        let mut warnings = Vec::new();
        for (name, (value, line)) in strongest {
            let Err(e) = out.set(Source::File, &name, &names.expand(&value)) else { continue };
            if name == "fsid" || name.starts_with("spirula_") {
                bail!("{path} line {line}: {e}");
            }
            if let Some(option) = options::find(&name) {
                let (wanted, usual) = (option.wanted(), option.default);
                warnings.push(format!(
                    "{path} line {line}: {name} cannot be '{value}' and counts as not set (its \
                        default is '{usual}'); \
                     give {wanted}, or remove the line"
                ));
            }
        }
        Ok(warnings)
    }

    /// The options of one daemon. `fallback` are this directory's defaults for paths.
    ///
    /// # Errors
    /// When a value of environment or command line cannot be, with its option and where it stands.
    pub fn settings(
        &self,
        names: Names<'_>,
        fallback: &[(&str, String)],
    ) -> anyhow::Result<Settings> {
        let mut out = Settings::default();
        let set = |out: &mut Settings, source, name: &str, value: &str, place: &str| {
            out.set(source, name, &names.expand(value)).map_err(|e| anyhow::anyhow!("{place}: {e}"))
        };
        for (name, value) in fallback {
            set(&mut out, Source::File, name, value, "default")?;
        }
        for warning in self.take_file(names, &mut out)? {
            if self.told.lock().unwrap_or_else(PoisonError::into_inner).insert(warning.clone()) {
                tracing::warn!("{warning}");
            }
        }
        for (name, value) in &self.env {
            set(&mut out, Source::Env, name, value, "environment")?;
        }
        for (name, value) in &self.args {
            set(&mut out, Source::Args, name, value, "command line")?;
        }
        Ok(out)
    }
}

/// Turns `--public-network X` and `--public-network=X` of a daemon's command line into
/// `--set public_network=X`: every known option can be given that way.
///
/// # Errors
/// With the nearest known name for a word that is neither an option nor one of `own`.
pub fn expand_args(args: Vec<OsString>, own: &[String]) -> Result<Vec<OsString>, String> {
    let mut out = Vec::new();
    let mut args = args.into_iter().peekable();
    while let Some(arg) = args.next() {
        let word = arg.to_str().and_then(|a| a.strip_prefix("--")).filter(|w| !w.is_empty());
        let Some(word) = word else {
            out.push(arg);
            continue;
        };
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (word, None),
        };
        if own.iter().any(|o| o == name) {
            out.push(arg);
            continue;
        }
        let Some(option) = options::find(name) else {
            return Err(options::unknown(name));
        };
        let next = |args: &mut std::iter::Peekable<std::vec::IntoIter<OsString>>| {
            let given = args.next_if(|a| !a.to_string_lossy().starts_with("--"));
            given.map(|a| a.to_string_lossy().into_owned())
        };
        let value = match (value, option.kind) {
            (Some(v), _) => v,
            (None, options::Kind::Bool) => next(&mut args).unwrap_or_else(|| "true".into()),
            (None, _) => next(&mut args).ok_or_else(|| format!("--{name} needs a value"))?,
        };
        out.push("--set".into());
        out.push(format!("{}={value}", option.name).into());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: Names<'_> = Names { cluster: "ceph", kind: "osd", id: "3", host: "h1" };

    fn sources(text: &str, env: &[(&str, &str)], args: &[&str]) -> Sources {
        let mut s = Sources { file: ConfFile::parse(text).unwrap(), ..Sources::default() };
        s.take_env(env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
        s.args = args
            .iter()
            .map(|a| a.split_once('=').map(|(k, v)| (k.into(), v.into())).unwrap())
            .collect();
        s
    }

    #[test]
    fn sections_environment_and_arguments_win_in_that_order() {
        let text = "[global]\npublic network = 10.0.0.0/8\nosd max backfills = \
            2\n[osd]\nosd-max-backfills=3\n\
                    [osd.3]\nosd_max_backfills = 4 # mine\n[osd.4]\nosd_max_backfills = 5\n";
        let get = |env: &[(&str, &str)], args: &[&str]| {
            let s = sources(text, env, args).settings(NAMES, &[]).unwrap();
            s.get("osd_max_backfills").unwrap().to_owned()
        };
        assert_eq!(get(&[], &[]), "4");
        assert_eq!(get(&[("SPIRULA_OSD_MAX_BACKFILLS", "6")], &[]), "6");
        let ceph = ("CEPH_ARGS", "--osd-max-backfills 7 --id admin");
        assert_eq!(get(&[("SPIRULA_OSD_MAX_BACKFILLS", "6"), ceph], &[]), "7");
        assert_eq!(get(&[ceph], &["osd_max_backfills=8"]), "8");
    }

    #[test]
    fn variables_in_values_are_filled_in() {
        let s = sources("[osd]\nosd data = /d/$cluster-$type.$id/${name}@$host\n", &[], &[]);
        assert_eq!(s.settings(NAMES, &[]).unwrap().get("osd_data"), Some("/d/ceph-osd.3/osd.3@h1"));
    }

    #[test]
    fn unknown_names_are_warned_of_and_impossible_values_of_the_environment_refused() {
        let s = sources(
            "",
            &[("SPIRULA_PUBLIC_NETWROK", "x"), ("SPIRULA_LOG", "info"), ("SPIRULA_E2E_DIR", "x")],
            &[],
        );
        assert_eq!(s.warnings.len(), 1);
        assert!(s.warnings[0].contains("'public_network'"), "{:?}", s.warnings);
        for (env, args, place) in [
            (vec![("SPIRULA_OSD_MAX_BACKFILLS", "lots")], vec![], "environment"),
            (vec![], vec!["osd_max_backfills=lots"], "command line"),
        ] {
            let e = format!("{:#}", sources("", &env, &args).settings(NAMES, &[]).unwrap_err());
            assert!(
                e.contains(place) && e.contains("osd_max_backfills") && e.contains("lots"),
                "{e}"
            );
        }
    }

    #[test]
    fn impossible_values_in_a_file_are_warned_of_and_count_as_not_set() {
        let text = "[global]\nosd_op_queue =\nbluestore compression mode =\nosd_uuid = 1-2\nosd \
            max backfills = 2\n\
                    osd_scrub_begin_hour = 24\n[osd]\n\nosd max backfills = \
                    lots\n[mon]\nosd_recovery_sleep = x\n";
        let s = Sources { path: Some("/c/ceph.conf".into()), ..sources(text, &[], &[]) };
        let mut out = Settings::default();
        let warnings = s.take_file(NAMES, &mut out).unwrap();
        for (start, wanted) in [
            (
                "2: osd_op_queue cannot be ''",
                "(its default is 'wpq'); give one of wpq, mclock_scheduler, debug_random, or",
            ),
            (
                "3: bluestore_compression_mode cannot be ''",
                "give one of none, passive, aggressive, force, or",
            ),
            ("4: osd_uuid cannot be '1-2'", "give 32 hexadecimal digits"),
            ("9: osd_max_backfills cannot be 'lots'", "give a whole number"),
            ("6: osd_scrub_begin_hour cannot be '24'", "from 0 to 23"),
        ] {
            let start = format!("/c/ceph.conf line {start}");
            assert!(
                warnings.iter().any(|w| w.starts_with(&start) && w.contains(wanted)),
                "{start}: {warnings:#?}"
            );
        }
        assert_eq!(warnings.len(), 5, "what is another daemon's is not looked at: {warnings:#?}");
        assert_eq!(out, Settings::default());
        let settings = s.settings(NAMES, &[]).unwrap();
        assert_eq!(
            settings.get("osd_max_backfills"),
            Some("4"),
            "the default, not what a weaker line says"
        );
        assert_eq!(s.told.lock().unwrap().len(), 5);
        for (line, value) in [("fsid = 1-2", "1-2"), ("spirula memory = 2.5G", "2.5G")] {
            let e = sources(&format!("[global]\n{line}\n"), &[], &[])
                .settings(NAMES, &[])
                .unwrap_err()
                .to_string();
            assert!(e.contains("line 2") && e.contains(value), "{e}");
        }
        // A bad line that a stronger one overrules is none.
        let s =
            sources("[global]\nosd max backfills = lots\n[osd]\nosd_max_backfills = 3\n", &[], &[]);
        assert_eq!(s.settings(NAMES, &[]).unwrap().get("osd_max_backfills"), Some("3"));
        assert!(s.told.lock().unwrap().is_empty());
    }

    #[test]
    fn every_option_can_be_an_argument() {
        let own = vec!["dir".to_owned(), "id".to_owned()];
        let words = |v: &[&str]| v.iter().map(OsString::from).collect::<Vec<_>>();
        let got = expand_args(
            words(&[
                "osd",
                "--id",
                "0",
                "--public-network=10.0.0.0/8",
                "--ms-bind-ipv6",
                "--dir",
                "d",
            ]),
            &own,
        );
        let want = words(&[
            "osd",
            "--id",
            "0",
            "--set",
            "public_network=10.0.0.0/8",
            "--set",
            "ms_bind_ipv6=true",
            "--dir",
            "d",
        ]);
        assert_eq!(got.unwrap(), want);
        assert!(
            expand_args(words(&["--publik-network", "x"]), &own)
                .unwrap_err()
                .contains("'public_network'")
        );
        assert!(expand_args(words(&["--public-network"]), &own).unwrap_err().contains("value"));
    }
}
