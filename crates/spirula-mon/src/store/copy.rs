//! Copies of monitors' stores that are in use, all of one moment.
//!
//! A monitor appends to its log and replaces its snapshot, and then its log, whenever it likes, and
//! it is not asked to wait. So all files are opened, and the names, inodes and lengths of all are
//! looked at twice, one store after the other. If the second look finds what the first did, then at
//! the moment between the two all stores were just that long: each file only grows, or another
//! takes its name. These lengths are copied, whatever the monitors do meanwhile: a log that grows
//! keeps its beginning, and one that was replaced is still there for who has it open. Two looks
//! take some microseconds, so that they succeed between two writes of monitors that are under load;
//! as long as they do not, they are repeated.
//!
//! What is copied is what a power cut at that moment could have left. What a monitor had said by
//! then, a vote or that it has an entry, was synced before, and is in its copy; what is in a copy
//! was written before, though perhaps not synced, and then nobody was told of it; a record that was
//! just being written is a torn tail. So the copies of several monitors agree as those do after a
//! power cut: none of them knows of a commit for which the others lack the entries. With lengths of
//! several moments, however near, one might.
//!
//! A log is shortened by a monitor alone that starts and finds a torn tail: if it is shorter than
//! was noted, all begins anew. Copies are opened and verified before they count.

use super::{LOCK, LOG, MonStore, SNAPSHOT, StoreError, io, sync_dir};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// How often the stores are looked at before it is given up, about a second.
const TRIES: u32 = 100_000;

/// The files of a store, in the order in which they are copied.
pub const STORE_FILES: [&str; 2] = [LOG, SNAPSHOT];

/// Copies the stores in directories that may be in use to directories that are there and hold none.
/// Returns the bytes copied.
///
/// # Errors
/// [`StoreError::Busy`] if the stores changed whenever they were looked at; what makes a store
/// unfit ([`MonStore::verify`]), of the copies; I/O errors. What was copied until then is left.
pub fn copy_stores(stores: &[(PathBuf, PathBuf)]) -> Result<u64, StoreError> {
    copy_with(stores, TRIES, &mut |_| ())
}

/// Inode and length of the file of a name.
type Look = Option<(u64, u64)>;

fn look(path: &Path) -> Result<Look, StoreError> {
    match std::fs::metadata(path) {
        Ok(m) => Ok(Some((m.ino(), m.len()))),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(io("look at", path)(e)),
    }
}

/// A file to be copied, held open: its inode is not given to another meanwhile.
struct Source {
    path: PathBuf,
    to: PathBuf,
    /// With its inode; none if it was not there.
    file: Option<(File, u64)>,
}

impl Source {
    fn new(path: PathBuf, to: PathBuf) -> Result<Self, StoreError> {
        let mut source = Self { path, to, file: None };
        source.open()?;
        Ok(source)
    }

    fn open(&mut self) -> Result<(), StoreError> {
        self.file = match File::open(&self.path) {
            Ok(file) => {
                let inode = file.metadata().map_err(io("look at", &self.path))?.ino();
                Some((file, inode))
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(e) => return Err(io("open", &self.path)(e)),
        };
        Ok(())
    }

    /// Copies so many bytes; `None` if the file has fewer by now.
    fn copy(&self, len: u64) -> Result<Option<()>, StoreError> {
        let Some((file, _)) = &self.file else { return Ok(Some(())) };
        let to = &self.to;
        let mut options = OpenOptions::new();
        let mut copy = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(to)
            .map_err(io("make", to))?;
        let mut from = file;
        // A further try reads from the beginning.
        from.rewind().map_err(io("read", &self.path))?;
        let copied = std::io::copy(&mut from.take(len), &mut copy).map_err(io("copy to", to))?;
        if copied < len {
            return Ok(None);
        }
        copy.sync_all().map_err(io("sync", to))?;
        Ok(Some(()))
    }
}

/// What a test does meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment<'a> {
    /// All were looked at once.
    BetweenLooks,
    /// This one is copied next.
    Before(&'a Path),
}

/// As [`copy_stores`]; `at` is told where it is.
fn copy_with(
    stores: &[(PathBuf, PathBuf)],
    tries: u32,
    at: &mut dyn FnMut(Moment<'_>),
) -> Result<u64, StoreError> {
    let mut sources = Vec::new();
    for (from, to) in stores {
        for name in STORE_FILES {
            // A log may be missing of a store that was never opened. A snapshot that is missing is
            // seen when the copy is verified.
            sources.push(Source::new(from.join(name), to.join(name))?);
        }
    }
    'tries: for _ in 0..tries {
        let look_at_all =
            || sources.iter().map(|s| look(&s.path)).collect::<Result<Vec<Look>, _>>();
        let first = look_at_all()?;
        at(Moment::BetweenLooks);
        let second = look_at_all()?;
        let mut replaced = false;
        for (source, now) in sources.iter_mut().zip(&second) {
            if source.file.as_ref().map(|(_, inode)| *inode) != now.map(|(inode, _)| inode) {
                source.open()?;
                replaced = true;
            }
        }
        if replaced || first != second {
            std::thread::yield_now();
            continue;
        }
        for (source, noted) in sources.iter().zip(&second) {
            at(Moment::Before(&source.path));
            if source.copy(noted.map_or(0, |(_, len)| len))?.is_none() {
                continue 'tries;
            }
        }
        for (_, to) in stores {
            MonStore::verify(to)?;
            // Made by the look at it.
            let lock = to.join(LOCK);
            std::fs::remove_file(&lock).map_err(io("remove", &lock))?;
            sync_dir(to)?;
        }
        return Ok(second.iter().flatten().map(|(_, len)| len).sum());
    }
    let path = stores.first().map(|(from, _)| from.clone()).unwrap_or_default();
    Err(StoreError::Busy { path, tries })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Identity;
    use spirula_quorum::{Entry, EntryKind, HardState, Members, Persist, Snapshot};
    use spirula_types::Uuid;
    use std::sync::Arc;

    struct Dir(PathBuf);
    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn snapshot(index: u64) -> Snapshot {
        let members = Members { voters: [1].into(), learners: [].into() };
        Snapshot { index, term: 1, members, data: b"state"[..].into() }
    }

    fn write(n: u64) -> Persist {
        let entry = Entry {
            index: n + 1,
            term: 2,
            kind: EntryKind::Normal,
            data: vec![n as u8; 100].into(),
        };
        Persist {
            number: n,
            hard: HardState { term: 2, vote: 1, commit: n },
            snapshot: None,
            entries: vec![entry],
        }
    }

    fn fold(n: u64) -> Persist {
        let hard = HardState { term: 2, vote: 1, commit: n };
        Persist {
            number: n,
            hard,
            snapshot: Some(Snapshot { term: 2, ..snapshot(n) }),
            entries: Vec::new(),
        }
    }

    /// Two stores in use, with where they are to be copied to.
    fn two(name: &str) -> (Dir, Vec<(PathBuf, PathBuf)>, Vec<MonStore>) {
        let at =
            std::env::temp_dir().join(format!("spirula-mon-copy-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&at);
        let (mut pairs, mut open) = (Vec::new(), Vec::new());
        for id in ["a", "b"] {
            let (from, to) = (at.join(id), at.join(format!("copy-{id}")));
            let me = Identity { fsid: Uuid([7; 16]), uuid: Uuid([8; 16]), member: 1 };
            MonStore::create(&from, me, &snapshot(1)).unwrap();
            std::fs::create_dir(&to).unwrap();
            let (mut store, _) = MonStore::open(&from).unwrap();
            store.persist(&[write(1)]).unwrap();
            open.push(store);
            pairs.push((from, to));
        }
        (Dir(at), pairs, open)
    }

    /// The last entry, and the one up to which all is in the snapshot.
    fn held(dir: &Path) -> (u64, u64) {
        let s = MonStore::verify(dir).unwrap();
        (s.entries.last().map_or(s.snapshot.index, |e| e.index), s.snapshot.index)
    }

    /// The file that was open is copied, though another has its name.
    #[test]
    fn a_store_that_is_folded_while_it_is_copied_makes_a_copy_of_before() {
        let (_d, pairs, mut open) = two("fold");
        let mut folded = false;
        copy_with(&pairs, TRIES, &mut |now| {
            // Its log was copied, its snapshot was not.
            let here = matches!(now, Moment::Before(next) if next.ends_with("a/mon.snapshot"));
            if here && !std::mem::replace(&mut folded, true) {
                open[0].persist(&[write(2)]).unwrap();
                open[0].persist(&[fold(3)]).unwrap();
            }
        })
        .unwrap();
        assert!(folded);
        assert_eq!(held(&pairs[0].1), (2, 1));
        MonStore::open(&pairs[0].1).unwrap();
    }

    /// A fold between two looks, and in the middle of it: the snapshot is there, the new log is
    /// not.
    #[test]
    fn a_store_that_is_folded_while_it_is_looked_at_is_looked_at_again() {
        let (_d, pairs, mut open) = two("fold-looks");
        let old = std::fs::read(pairs[0].0.join(LOG)).unwrap();
        let mut folded = false;
        copy_with(&pairs, TRIES, &mut |now| {
            if now == Moment::BetweenLooks && !std::mem::replace(&mut folded, true) {
                open[0].persist(&[fold(2)]).unwrap();
                std::fs::write(pairs[0].0.join("mon.log.tmp"), &old).unwrap();
                std::fs::rename(pairs[0].0.join("mon.log.tmp"), pairs[0].0.join(LOG)).unwrap();
            }
        })
        .unwrap();
        assert_eq!(held(&pairs[0].1), (2, 2));
        MonStore::open(&pairs[0].1).unwrap();
    }

    /// What the first monitor writes after it was looked at may be known to the second: then both
    /// copies have it.
    #[test]
    fn copies_of_several_stores_are_of_one_moment() {
        let (_d, pairs, mut open) = two("moment");
        let (mut looks, mut wrote) = (0, false);
        copy_with(&pairs, TRIES, &mut |now| match now {
            Moment::BetweenLooks if looks == 0 => {
                looks = 1;
                open.iter_mut().for_each(|store| store.persist(&[write(2)]).unwrap());
            }
            // What comes after the looks is in neither.
            Moment::Before(next)
                if next.ends_with("b/mon.log") && !std::mem::replace(&mut wrote, true) =>
            {
                open.iter_mut().for_each(|store| store.persist(&[write(3)]).unwrap());
            }
            _ => {}
        })
        .unwrap();
        assert!(wrote);
        assert_eq!((held(&pairs[0].1), held(&pairs[1].1)), ((3, 1), (3, 1)));
    }

    /// The record that is just being written is torn in the copy, and cut off when that is opened.
    #[test]
    fn a_record_that_was_being_written_is_a_torn_tail() {
        let (_d, pairs, _open) = two("torn");
        let log = pairs[0].0.join(LOG);
        let record = crate::image::record(2, 1, &[&write(2)]);
        let mut file = OpenOptions::new().append(true).open(&log).unwrap();
        std::io::Write::write_all(&mut file, &record[..record.len() / 2]).unwrap();
        copy_with(&pairs, TRIES, &mut |now| {
            if matches!(now, Moment::Before(next) if next == log) {
                std::io::Write::write_all(&mut file, &record[record.len() / 2..]).unwrap();
            }
        })
        .unwrap();
        assert_eq!(held(&pairs[0].1), (2, 1));
        MonStore::open(&pairs[0].1).unwrap();
    }

    /// A monitor that starts cuts a torn tail off.
    #[test]
    fn a_log_that_is_shorter_than_it_was_is_copied_anew() {
        let (_d, pairs, _open) = two("shorter");
        let log = pairs[0].0.join(LOG);
        let good = std::fs::metadata(&log).unwrap().len();
        let mut file = OpenOptions::new().append(true).open(&log).unwrap();
        std::io::Write::write_all(&mut file, b"RNOM of a record").unwrap();
        let mut cut = 0;
        let bytes = copy_with(&pairs, TRIES, &mut |now| {
            if matches!(now, Moment::Before(next) if next == log) {
                cut += 1;
                file.set_len(good).unwrap();
            }
        });
        assert_eq!(cut, 2);
        assert_eq!(std::fs::metadata(pairs[0].1.join(LOG)).unwrap().len(), good);
        assert!(bytes.unwrap() > good);
    }

    #[test]
    fn stores_that_never_stand_still_are_not_said_to_be_copied() {
        let (_d, pairs, mut open) = two("busy");
        let mut n = 1;
        let refused = copy_with(&pairs, 5, &mut |now| {
            assert_eq!(now, Moment::BetweenLooks);
            n += 1;
            open[0].persist(&[write(n)]).unwrap();
        });
        assert!(matches!(refused, Err(StoreError::Busy { tries: 5, .. })), "{refused:?}");
        assert_eq!(n, 6);
    }

    /// Two monitors that write without a pause, the second each time after the first, with folds:
    /// no copy of the second is ahead of that of the first, nor more than one behind.
    #[test]
    fn copies_of_stores_under_load_are_all_made_and_fit() {
        let (_d, pairs, open) = two("load");
        std::thread::scope(|scope| {
            // The writer ends with this, also where the test fails.
            let going = Arc::new(());
            let gone = Arc::downgrade(&going);
            scope.spawn(move || {
                let (mut stores, mut n) = (open, 1);
                while gone.upgrade().is_some() {
                    n += 1;
                    for store in &mut stores {
                        store.persist(&[write(n)]).unwrap();
                        if n % 64 == 0 {
                            store.persist(&[fold(n + 1)]).unwrap();
                        }
                    }
                }
            });
            for _ in 0..30 {
                copy_stores(&pairs).unwrap();
                let (a, b) = (held(&pairs[0].1).0, held(&pairs[1].1).0);
                assert!(b <= a && a <= b + 1, "{a} and {b}");
            }
        });
    }

    #[test]
    fn a_damaged_store_is_not_said_to_be_copied() {
        let (_d, pairs, _open) = two("damaged");
        let path = pairs[1].0.join(SNAPSHOT);
        let mut bytes = std::fs::read(&path).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert!(matches!(copy_stores(&pairs), Err(StoreError::Corrupt { .. })));
    }
}
