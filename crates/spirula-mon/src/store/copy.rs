//! Copies of monitors' stores that are in use, all of one moment.
//!
//! A monitor appends to its log and replaces its snapshot, and then its log, whenever it likes, and it is not asked to wait. So what is
//! copied is looked at before and after: both files of every store are open while they are copied, and if each is still the one that has
//! its name, and no longer than it was, then at the moment between the last byte that was copied and the first look afterwards all
//! stores were as the copies are. That is what a power cut at that moment would have left, of one monitor or of several: they agree
//! again as they do after one. If anything changed, the copies are made anew. Copies are opened and verified before they count.

use super::{LOCK, LOG, MonStore, SNAPSHOT, StoreError, io, sync_dir};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// How often copies are begun before they are given up: monitors that change faster than they are copied each time.
const TRIES: u32 = 200;

/// The files of a store, in the order in which they are copied.
pub const STORE_FILES: [&str; 2] = [LOG, SNAPSHOT];

/// Copies the stores in directories that may be in use to directories that are there and hold none. Returns the bytes copied.
///
/// # Errors
/// [`StoreError::Busy`] if the stores changed whenever they were copied; what makes a store unfit ([`MonStore::verify`]), of the copies;
/// I/O errors. What was copied until then is left.
pub fn copy_stores(stores: &[(PathBuf, PathBuf)]) -> Result<u64, StoreError> {
    copy_with(stores, TRIES, &mut |_| ())
}

/// A file that is being copied, held open: its inode is not given to another meanwhile.
struct Source {
    path: PathBuf,
    file: File,
    is: (u64, u64),
}

impl Source {
    /// Opens a file; none if it is just not there.
    fn open(path: PathBuf) -> Result<Option<Self>, StoreError> {
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(io("open", &path)(e)),
        };
        let m = file.metadata().map_err(io("look at", &path))?;
        Ok(Some(Self { path, file, is: (m.ino(), m.len()) }))
    }

    fn is_unchanged(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|m| (m.ino(), m.len()) == self.is)
    }
}

/// As [`copy_stores`]; `before` is called before each file is copied, with its path.
fn copy_with(stores: &[(PathBuf, PathBuf)], tries: u32, before: &mut dyn FnMut(&Path)) -> Result<u64, StoreError> {
    for _ in 0..tries {
        let mut sources = Vec::new();
        for (from, to) in stores {
            for name in STORE_FILES {
                // A log may be missing of a store that was never opened. A snapshot that is missing is seen when the copy is verified.
                sources.extend(Source::open(from.join(name))?.map(|source| (source, to.join(name))));
            }
        }
        let (mut bytes, mut copies) = (0, Vec::new());
        for (source, to) in &sources {
            before(&source.path);
            let mut options = OpenOptions::new();
            let mut copy =
                options.write(true).create(true).truncate(true).mode(0o600).open(to).map_err(io("make", to))?;
            bytes += std::io::copy(&mut &source.file, &mut copy).map_err(io("copy to", to))?;
            copies.push((copy, to));
        }
        if !sources.iter().all(|(source, _)| source.is_unchanged()) {
            continue;
        }
        for (copy, to) in copies {
            copy.sync_all().map_err(io("sync", to))?;
        }
        for (_, to) in stores {
            MonStore::verify(to)?;
            // Made by the look at it.
            let lock = to.join(LOCK);
            std::fs::remove_file(&lock).map_err(io("remove", &lock))?;
            sync_dir(to)?;
        }
        return Ok(bytes);
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
        let entry = Entry { index: n + 1, term: 2, kind: EntryKind::Normal, data: vec![n as u8; 100].into() };
        Persist { number: n, hard: HardState { term: 2, vote: 1, commit: n }, snapshot: None, entries: vec![entry] }
    }

    fn fold(n: u64) -> Persist {
        let hard = HardState { term: 2, vote: 1, commit: n };
        Persist { number: n, hard, snapshot: Some(Snapshot { term: 2, ..snapshot(n) }), entries: Vec::new() }
    }

    /// Two stores in use, with where they are to be copied to.
    fn two(name: &str) -> (Dir, Vec<(PathBuf, PathBuf)>, Vec<MonStore>) {
        let at = std::env::temp_dir().join(format!("spirula-mon-copy-{}-{name}", std::process::id()));
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

    #[test]
    fn a_store_that_is_folded_while_it_is_copied_makes_a_copy_that_opens() {
        let (_d, pairs, mut open) = two("fold");
        let mut folded = false;
        copy_with(&pairs, TRIES, &mut |next| {
            // Its log was copied, its snapshot was not.
            if next.ends_with("a/mon.snapshot") && !std::mem::replace(&mut folded, true) {
                open[0].persist(&[write(2)]).unwrap();
                open[0].persist(&[fold(3)]).unwrap();
            }
        })
        .unwrap();
        assert!(folded);
        assert_eq!(held(&pairs[0].1), (3, 3));
        MonStore::open(&pairs[0].1).unwrap();
    }

    /// What the first monitor writes after it was copied may be known to the second: then both copies have it.
    #[test]
    fn copies_of_several_stores_are_of_one_moment() {
        let (_d, pairs, mut open) = two("moment");
        let mut wrote = false;
        copy_with(&pairs, TRIES, &mut |next| {
            if next.ends_with("b/mon.log") && !std::mem::replace(&mut wrote, true) {
                for store in &mut open {
                    store.persist(&[write(2)]).unwrap();
                }
            }
        })
        .unwrap();
        assert!(wrote);
        assert_eq!((held(&pairs[0].1), held(&pairs[1].1)), ((3, 1), (3, 1)));
    }

    #[test]
    fn stores_that_never_stand_still_are_not_said_to_be_copied() {
        let (_d, pairs, mut open) = two("busy");
        let mut n = 1;
        let refused = copy_with(&pairs, 5, &mut |next| {
            if next.ends_with("b/mon.snapshot") {
                n += 1;
                open[0].persist(&[write(n)]).unwrap();
            }
        });
        assert!(matches!(refused, Err(StoreError::Busy { tries: 5, .. })), "{refused:?}");
        assert_eq!(n, 6);
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
