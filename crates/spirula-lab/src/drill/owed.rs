//! What a drill owes: how each harm is undone, and a journal of it.
//!
//! Before a drill does any harm it writes into a file beside the cluster's `ceph.conf` how that is
//! undone, and syncs it; when it is undone, that is written, too. A drill that is killed (kill -9,
//! a power failure) leaves its file, and the next `spirula drill` or `spirula bench clean` on the
//! machine undoes what stands in it, the last first. Each undoing looks first whether there is
//! anything to undo: the harm may never have been done, or somebody else may have put it right.
//!
//! The file is locked while a drill is under way, so that no other takes a living drill's harm for
//! a dead one's. It says which programs are started, so that only its owner and root are believed.

use super::cut::Cut;
use super::daemon::{Daemon, go_on};
use crate::bail;
use crate::prelude::*;
use crate::session::{Session, Way};
use rustix::fs::{FlockOperation, OFlags, flock};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

/// A journal has not more bytes than this; each step has a few thousand.
const MOST: u64 = 64 << 20;
/// The step that is undone last of all: what the load left.
pub const LAST: u64 = 0;

/// A string of the system in JSON: as text, or its bytes where it is none.
pub fn from_os(s: &OsStr) -> Value {
    s.to_str().map_or_else(|| json!(s.as_bytes()), |t| json!(t))
}

/// The same back.
pub fn to_os(v: &Value) -> Option<OsString> {
    if let Some(text) = v.as_str() {
        return Some(text.into());
    }
    let bytes = v.as_array()?.iter().map(|b| b.as_u64().and_then(|b| u8::try_from(b).ok()));
    Some(OsString::from_vec(bytes.collect::<Option<_>>()?))
}

/// What a drill does in the end, or when it is interrupted, or what the next one does.
#[derive(Clone, Debug, PartialEq)]
pub enum Undo {
    /// A process that stands still goes on: its name, its number, and when it began.
    Go(String, u32, u64),
    /// A process is started again.
    Start(Box<Daemon>),
    /// An OSD of a `spirula up` is started again.
    StartOsd(PathBuf, i32),
    /// A network namespace is connected again.
    Connect(Cut),
    /// An OSD that the drill took out is in again, with the weight that it had (0x10000 = 1).
    Weight(i32, u32),
    /// The ratios of full disks, nearfull, backfillfull, full: as they were, and as the drill set
    /// them.
    Ratios([f32; 3], [f32; 3]),
    /// The load's objects in a pool go, and the pool, if the drill made it; where bits were flipped
    /// its PGs are scrubbed once more.
    Objects {
        /// Its name.
        pool: String,
        /// The drill made it.
        made: bool,
        /// Bits were flipped.
        rotten: bool,
    },
}

/// The commands that set the ratios, in the order of [`Undo::Ratios`].
pub const RATIOS: [&str; 3] =
    ["osd set-nearfull-ratio", "osd set-backfillfull-ratio", "osd set-full-ratio"];

impl Undo {
    fn json(&self) -> Value {
        match self {
            Self::Go(name, pid, born) => json!({"go": name, "pid": pid, "born": born}),
            Self::Start(d) => json!({"start": d.json()}),
            Self::StartOsd(dir, osd) => json!({"start_osd": osd, "dir": from_os(dir.as_os_str())}),
            Self::Connect(cut) => json!({"connect": cut.json()}),
            Self::Weight(osd, weight) => json!({"weight_of": osd, "weight": weight}),
            Self::Ratios(was, set) => json!({"ratios": was, "set": set}),
            Self::Objects { pool, made, rotten } => {
                json!({"objects": pool, "made": made, "rotten": rotten})
            }
        }
    }

    fn from_json(v: &Value) -> Option<Self> {
        let osd = |v: &Value| v.as_i64().and_then(|n| i32::try_from(n).ok());
        let number = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
        let three = |v: &Value| -> Option<[f32; 3]> {
            let all: Vec<f32> =
                v.as_array()?.iter().filter_map(|r| r.as_f64().map(|r| r as f32)).collect();
            all.try_into().ok()
        };
        let kind = v.as_object()?;
        let has = |key: &str| kind.contains_key(key);
        Some(match () {
            () if has("go") => {
                Self::Go(v["go"].as_str()?.to_owned(), number(&v["pid"])?, v["born"].as_u64()?)
            }
            () if has("start") => Self::Start(Box::new(Daemon::from_json(&v["start"])?)),
            () if has("start_osd") => {
                Self::StartOsd(to_os(&v["dir"])?.into(), osd(&v["start_osd"])?)
            }
            () if has("connect") => Self::Connect(Cut::from_json(&v["connect"])?),
            () if has("weight_of") => Self::Weight(osd(&v["weight_of"])?, number(&v["weight"])?),
            () if has("ratios") => Self::Ratios(three(&v["ratios"])?, three(&v["set"])?),
            () if has("objects") => Self::Objects {
                pool: v["objects"].as_str()?.to_owned(),
                made: v["made"].as_bool()?,
                rotten: v["rotten"].as_bool()?,
            },
            () => return None,
        })
    }

    /// Is it done on this machine, without asking the cluster anything? That comes first: the
    /// cluster may need it to answer.
    pub fn is_here(&self) -> bool {
        matches!(self, Self::Go(..) | Self::Start(_) | Self::StartOsd(..) | Self::Connect(_))
    }

    /// Undoes what is done on this machine; gives words about it.
    ///
    /// # Errors
    /// When it cannot be undone; it may be tried again.
    pub fn here(&self) -> Result<String> {
        Ok(match self {
            Self::Go(name, pid, born) => {
                let there = go_on(*pid, *born)?;
                format!("{name} {}", if there { "goes on" } else { "is another process now" })
            }
            Self::Start(d) => d.start()?,
            Self::StartOsd(dir, osd) => {
                super::cluster::spirula(&["osd", "start", &osd.to_string()], dir)?;
                format!("osd.{osd} runs again")
            }
            Self::Connect(cut) => cut.off()?,
            Self::Weight(..) | Self::Ratios(..) | Self::Objects { .. } => {
                bail!("the cluster is to be asked for that")
            }
        })
    }

    /// Undoes what the cluster is asked for; gives words about it.
    ///
    /// # Errors
    /// When it cannot be undone; it may be tried again.
    pub fn there(&self, session: &Session) -> Result<String> {
        match self {
            Self::Weight(osd, weight) => {
                let id = *osd;
                if session.look(move |m| m.weight(id))? != 0 {
                    return Ok(format!("osd.{osd} is in: somebody took it in"));
                }
                let weight = f64::from(*weight) / f64::from(0x1_0000);
                session.command(&json!({"prefix": "osd reweight", "id": osd, "weight": weight}))?;
                Ok(format!("osd.{osd} is in again, its weight is {weight:.2}"))
            }
            Self::Ratios(was, set) => {
                let now =
                    session.look(|m| [m.nearfull_ratio, m.backfillfull_ratio, m.full_ratio])?;
                let mut failed = Ok(());
                // The greatest first: so none is ever above the next. Each is tried, whatever
                // became of the others.
                for i in [2, 1, 0] {
                    if (now[i] - set[i]).abs() < 1e-7 {
                        let asked = session
                            .command(&json!({"prefix": RATIOS[i], "ratio": f64::from(was[i])}));
                        failed = failed.and(asked.map(drop));
                    }
                }
                failed.map(|()| "the ratios of full disks are as before".to_owned())
            }
            Self::Objects { pool, made, rotten } => {
                super::leave_no_objects(session, pool, *made, *rotten)
            }
            Self::Go(..) | Self::Start(_) | Self::StartOsd(..) | Self::Connect(_) => self.here(),
        }
    }
}

/// The journal of a drill.
pub struct Journal {
    path: PathBuf,
    file: File,
    steps: BTreeMap<u64, Undo>,
    next: u64,
}

/// Why a journal cannot be had.
pub enum Taken {
    /// There is none.
    No,
    /// A living drill has it.
    Yes(PathBuf),
}

/// Where the journal is: beside ceph.conf, under the name of the cluster that this is of. `None` if
/// it does not say: another cluster may have had the file before.
fn place(conf: &Path) -> Result<Option<PathBuf>> {
    let real = fs::canonicalize(conf).with_context(|| format!("find {}", conf.display()))?;
    let Some(fsid) = super::cluster::fsid_of(&real) else { return Ok(None) };
    let fsid = fsid.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    Ok(Some(real.with_file_name(format!("spirula-drill.{fsid}.owed"))))
}

impl Journal {
    /// That of the cluster with this ceph.conf; made where there is none.
    ///
    /// # Errors
    /// When it cannot be written, or another drill is under way.
    pub fn open(conf: &Path) -> Result<Self> {
        let path = place(conf)?.with_context(|| format!("{} names no fsid", conf.display()))?;
        match Self::take(&path, true)? {
            Ok(journal) => Ok(journal),
            Err(Taken::No) => bail!("the journal of the drill goes as it comes"),
            Err(Taken::Yes(path)) => {
                bail!("another drill is under way: it holds {}", path.display())
            }
        }
    }

    /// That of the cluster with this ceph.conf, if there is one.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn find(conf: &Path) -> Result<Result<Self, Taken>> {
        place(conf)?.map_or(Ok(Err(Taken::No)), |path| Self::take(&path, false))
    }

    fn take(path: &Path, make: bool) -> Result<Result<Self, Taken>> {
        // Whoever had it may remove it between our opening and our locking it.
        for _ in 0..16 {
            let mut options = OpenOptions::new();
            options.read(true).append(true).create(make).mode(0o600);
            options.custom_flags(i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0));
            let mut file = match options.open(path) {
                Ok(file) => file,
                Err(e) if e.kind() == ErrorKind::NotFound && !make => return Ok(Err(Taken::No)),
                Err(e) => {
                    let at = path.display();
                    let why = "a drill writes there how its harm is undone; where you may not \
                        write, copy ceph.conf and the keyring";
                    return Err(e).with_context(|| format!("open {at} ({why})"));
                }
            };
            let meta = file.metadata().with_context(|| format!("look at {}", path.display()))?;
            let own = rustix::process::geteuid().as_raw();
            if !meta.is_file() || meta.uid() != own && meta.uid() != 0 {
                bail!("{} is somebody else's: what it says is not done", path.display());
            }
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                return Ok(Err(Taken::Yes(path.to_owned())));
            }
            if fs::symlink_metadata(path).map(|m| m.ino()).ok() != Some(meta.ino()) {
                continue;
            }
            let mut text = String::new();
            (&mut file)
                .take(MOST)
                .read_to_string(&mut text)
                .with_context(|| format!("read {}", path.display()))?;
            let steps = read(&text)
                .with_context(|| format!("{} is no journal of this version", path.display()))?;
            let whole = text.rfind('\n').map_or(0, |at| at + 1);
            if whole < text.len() {
                // A torn line: what is written next begins one of its own.
                file.set_len(whole as u64).with_context(|| format!("write {}", path.display()))?;
            }
            let next = steps.keys().next_back().map_or(LAST, |last| *last) + 1;
            return Ok(Ok(Self { path: path.to_owned(), file, steps, next }));
        }
        bail!("{} comes and goes", path.display())
    }

    fn write(&mut self, line: &Value) -> Result<()> {
        let what = || format!("write {}", self.path.display());
        let before = self.file.metadata().with_context(what)?.len();
        let written =
            self.file.write_all(format!("{line}\n").as_bytes()).and_then(|()| self.file.sync_all());
        if let Err(e) = written {
            // Half a line would spoil the next one, and with it all that is owed.
            self.file.set_len(before).with_context(what)?;
            return Err(e).with_context(what);
        }
        // The file's name, too, is on the disk before any harm is done.
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        File::open(dir).and_then(|d| d.sync_all()).with_context(what)
    }

    /// This is to be undone. From here on it may be done. Gives the step's number.
    ///
    /// # Errors
    /// When it cannot be written; then it must not be done.
    pub fn owe(&mut self, undo: Undo) -> Result<u64> {
        let id = self.next;
        self.owe_as(id, undo)?;
        Ok(id)
    }

    /// The same under a number of one's own; in place of what was owed under it.
    ///
    /// # Errors
    /// As [`Journal::owe`].
    pub fn owe_as(&mut self, id: u64, undo: Undo) -> Result<()> {
        self.write(&json!({"owed": id, "undo": undo.json()}))?;
        self.next = self.next.max(id + 1);
        self.steps.insert(id, undo);
        Ok(())
    }

    /// It was undone.
    ///
    /// # Errors
    /// When that cannot be written: it may be undone once more, which does no harm.
    pub fn done(&mut self, id: u64) -> Result<()> {
        self.steps.remove(&id);
        self.write(&json!({"undone": id}))
    }

    /// What is owed from this number on, the last first; what is done on this machine before what
    /// the cluster is asked for.
    pub fn owed(&self, from: u64) -> Vec<(u64, Undo)> {
        let mut all: Vec<(u64, Undo)> =
            self.steps.range(from..).rev().map(|(id, u)| (*id, u.clone())).collect();
        all.sort_by_key(|(_, u)| !u.is_here());
        all
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // Nothing is owed: nothing is left. It is locked still, so it is nobody else's.
        if self.steps.is_empty() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// What a journal says is owed. The last line may be torn: what it was to announce was not done.
fn read(text: &str) -> Result<BTreeMap<u64, Undo>> {
    let mut steps = BTreeMap::new();
    let mut lines = text.split_inclusive('\n').peekable();
    while let Some(line) = lines.next() {
        let v: Value = match serde_json::from_str(line) {
            Ok(v) if line.ends_with('\n') => v,
            _ if lines.peek().is_none() => break,
            _ => bail!("a line of it cannot be read"),
        };
        match (v["owed"].as_u64(), v["undone"].as_u64()) {
            (Some(id), _) => {
                let undo = Undo::from_json(&v["undo"])
                    .with_context(|| format!("step {id} is not known"))?;
                steps.insert(id, undo);
            }
            (None, Some(id)) => drop(steps.remove(&id)),
            (None, None) => bail!("a line of it says nothing"),
        }
    }
    Ok(steps)
}

/// Undoes what a drill that was killed owes. All of it is tried, and each failure is told; the
/// error names all of them.
///
/// # Errors
/// When something could not be undone: it stands in the journal still.
pub fn settle(journal: &mut Journal, way: &Way, say: &mut dyn FnMut(&str)) -> Result<()> {
    let mut session = None;
    settle_by(journal, say, |undo| {
        if undo.is_here() {
            return undo.here();
        }
        if session.is_none() {
            session = Some(Session::open(way, 16 << 20)?);
        }
        session.as_ref().context("no client").and_then(|s| undo.there(s))
    })
}

fn settle_by(
    journal: &mut Journal,
    say: &mut dyn FnMut(&str),
    mut undo: impl FnMut(&Undo) -> Result<String>,
) -> Result<()> {
    let owed = journal.owed(LAST);
    if owed.is_empty() {
        return Ok(());
    }
    say("a drill was killed here; what it owes is put back");
    let mut failed: Vec<String> = Vec::new();
    for (id, step) in owed {
        // What is undone and cannot be noted is undone once more by the next: it must not keep the
        // others from being undone.
        let outcome = undo(&step).and_then(|words| journal.done(id).map(|()| words));
        match outcome {
            Ok(words) => say(&words),
            Err(e) => {
                say(&format!("could not be put back: {e:#}"));
                failed.push(format!("{e:#}"));
            }
        }
    }
    if !failed.is_empty() {
        let at = journal.path().display();
        bail!(
            "{} could not be put back, and what is owed still stands in {at}: {}",
            failed.len(),
            failed.join("; ")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Undo> {
        vec![
            Undo::Objects { pool: "p".into(), made: true, rotten: false },
            Undo::Go("osd.1".into(), 7, 1 << 40),
            Undo::StartOsd(OsString::from_vec(b"/a/\xff".to_vec()).into(), 3),
            Undo::Weight(4, 0xb333),
            Undo::Ratios([0.85, 0.9, 0.95], [1e-6, 2e-6, 3e-6]),
            Undo::Connect(Cut { space: 4_026_532_000, to: vec!["10.0.0.1/32".into()] }),
        ]
    }

    #[test]
    fn what_is_owed_outlives_who_owes_it() {
        let dir = std::env::temp_dir().join(format!("spirula-lab-owed-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let conf = dir.join("ceph.conf");
        fs::write(&conf, "[global]\nfsid = a-1\n").unwrap();
        assert!(matches!(Journal::find(&conf).unwrap(), Err(Taken::No)));
        let mut j = Journal::open(&conf).unwrap();
        assert!(
            matches!(Journal::find(&conf).unwrap(), Err(Taken::Yes(_))),
            "a living drill's is left alone"
        );
        let mut all = all().into_iter();
        j.owe_as(LAST, all.next().unwrap()).unwrap();
        let ids: Vec<u64> = all.by_ref().map(|u| j.owe(u).unwrap()).collect();
        assert_eq!(ids, [1, 2, 3, 4, 5]);
        j.done(3).unwrap();
        j.owe_as(LAST, Undo::Objects { pool: "p".into(), made: true, rotten: true }).unwrap();
        let owed = j.owed(LAST);
        let order: Vec<u64> = owed.iter().map(|o| o.0).collect();
        assert_eq!(
            order,
            [5, 2, 1, 4, 0],
            "this machine first, then the cluster; of each the last first"
        );
        assert_eq!(owed[4].1, Undo::Objects { pool: "p".into(), made: true, rotten: true });
        drop(j);
        // A line that was being written.
        let path = fs::canonicalize(&dir).unwrap().join("spirula-drill.a-1.owed");
        let whole = fs::read(&path).unwrap();
        fs::write(
            &path,
            [whole.as_slice(), b"{\"owed\": 9, \"undo\": {\"weight_of\": 1, \"weight\": 1}}"]
                .concat(),
        )
        .unwrap();
        // A child that another test has just forked has the lock's file, too, until it is its
        // program.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let mut j = loop {
            match Journal::find(&conf).unwrap() {
                Ok(j) => break j,
                Err(_) if std::time::Instant::now() < end => {
                    std::thread::sleep(std::time::Duration::from_millis(5))
                }
                Err(_) => panic!("the journal of a drill that ended is locked"),
            }
        };
        assert_eq!(j.owed(LAST), owed);
        fs::write(&conf, "[global]\nfsid = b-2\n").unwrap();
        assert!(
            matches!(Journal::find(&conf).unwrap(), Err(Taken::No)),
            "another cluster owes nothing"
        );
        assert_eq!(j.owe(Undo::Weight(1, 1)).unwrap(), 6, "numbers are not used twice");
        for (id, _) in j.owed(LAST) {
            j.done(id).unwrap();
        }
        drop(j);
        assert!(!path.exists(), "nothing is owed, nothing is left");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn what_cannot_be_put_back_keeps_nothing_else_from_it() {
        let dir = std::env::temp_dir().join(format!("spirula-lab-settle-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let conf = dir.join("ceph.conf");
        fs::write(&conf, "[global]\nfsid = a-1\n").unwrap();
        let mut j = Journal::open(&conf).unwrap();
        let all: Vec<Undo> = all().into_iter().map(|u| (j.owe(u.clone()).unwrap(), u).1).collect();
        // Two of them fail, and the journal takes no note for a while: the file is only read.
        let only_read = File::open(j.path()).unwrap();
        let whole = std::mem::replace(&mut j.file, only_read);
        let (mut tried, mut said) = (Vec::new(), Vec::new());
        let mut undo = |u: &Undo| {
            tried.push(u.clone());
            if matches!(u, Undo::Weight(..) | Undo::Connect(_)) {
                bail!("cannot {}", tried.len())
            } else {
                Ok("done".to_owned())
            }
        };
        let e =
            settle_by(&mut j, &mut |t| said.push(t.to_owned()), &mut undo).unwrap_err().to_string();
        assert_eq!(tried.len(), all.len(), "each was tried");
        assert!(
            e.contains("cannot 1") && e.contains("6 could not be put back") && e.contains(".owed"),
            "{e}"
        );
        assert_eq!(said.iter().filter(|s| s.starts_with("could not")).count(), 6, "{said:?}");
        // Now notes are taken: what was not undone is still owed, and only that.
        j.file = whole;
        j.steps = read(&fs::read_to_string(j.path()).unwrap()).unwrap();
        assert_eq!(j.steps.len(), all.len());
        tried.clear();
        let mut undo = |u: &Undo| {
            if matches!(u, Undo::Weight(..)) { bail!("no") } else { Ok("done".to_owned()) }
        };
        assert!(
            settle_by(&mut j, &mut |_| (), &mut undo)
                .unwrap_err()
                .to_string()
                .contains("1 could not")
        );
        assert_eq!(
            j.owed(LAST).into_iter().map(|o| o.1).collect::<Vec<_>>(),
            [Undo::Weight(4, 0xb333)]
        );
        settle_by(&mut j, &mut |_| (), |_| Ok(String::new())).unwrap();
        drop(j);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn nonsense_is_not_done() {
        for bad in [
            "{}\n",
            "x\n{}\n",
            "{\"owed\":1,\"undo\":{\"burn\":1}}\n",
            "{\"owed\":1,\"undo\":{\"weight_of\":1}}\n",
            "[]\n1\n",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert!(read("").unwrap().is_empty());
        assert!(read("{\"owed\"").unwrap().is_empty(), "torn");
    }
}
