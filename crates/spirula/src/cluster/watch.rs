//! What must stay where it is while a cluster runs: its directory, and the files of its OSDs.
//!
//! A store goes on writing to a file that was deleted, and what it acknowledges goes with the last
//! descriptor. So the process looks, once a second: at files that are gone or are others now, and
//! at file systems that have become read-only, which a store that only reads would not notice.

use crate::dir::ClusterDir;
use rustix::fs::StatVfsMountFlags;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Room that must be there before an OSD that had none is started again, bytes: it needs some for
/// what its journal holds, and would else be back in a moment.
const ROOM: u64 = 256 << 20;

/// A file and which one it was.
struct Kept {
    path: PathBuf,
    /// Device and inode.
    was: (u64, u64),
}

impl Kept {
    /// `None` if it is not there.
    fn new(path: PathBuf) -> Option<Self> {
        let m = std::fs::metadata(&path).ok()?;
        Some(Self { path, was: (m.dev(), m.ino()) })
    }

    fn is_gone(&self) -> bool {
        // What cannot be asked (a network file system that does not answer) is not gone.
        match std::fs::metadata(&self.path) {
            Ok(m) => (m.dev(), m.ino()) != self.was,
            Err(e) => e.kind() == std::io::ErrorKind::NotFound,
        }
    }
}

/// What a look found.
#[derive(Default)]
pub struct Found {
    /// Why the cluster cannot go on.
    pub cluster: Option<String>,
    /// The same of single OSDs.
    pub osds: Vec<(usize, String)>,
}

/// See the module.
pub struct Watch {
    dir: PathBuf,
    own: Option<Kept>,
    osds: BTreeMap<usize, Vec<Kept>>,
}

fn is_read_only(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|s| s.f_flag.contains(StatVfsMountFlags::RDONLY))
}

impl Watch {
    /// Watches a cluster's directory, whose lock is held.
    pub fn new(dir: &ClusterDir) -> Self {
        Self { dir: dir.path().to_owned(), own: Kept::new(dir.join("lock")), osds: BTreeMap::new() }
    }

    /// Watches the store of an OSD that has been started, in place of an earlier one.
    pub fn begin(&mut self, id: usize, data: &Path) {
        let files =
            ["block", "journal", "meta"].into_iter().filter_map(|name| Kept::new(data.join(name)));
        self.osds.insert(id, files.collect());
    }

    /// An OSD has ended: what becomes of its files is no matter any more.
    pub fn end(&mut self, id: usize) {
        self.osds.remove(&id);
    }

    /// What is gone. Of an OSD it is told once.
    pub fn look(&mut self) -> Found {
        let mut found = Found::default();
        if let Some(own) = self.own.as_ref().filter(|own| own.is_gone()) {
            let text = format!(
                "{} was removed while the cluster ran: nothing can be kept any more",
                own.path.display()
            );
            found.cluster = Some(text);
            return found;
        }
        if is_read_only(&self.dir) {
            let text = format!(
                "the file system of {} has become read-only: nothing can be kept any more",
                self.dir.display()
            );
            found.cluster = Some(text);
            return found;
        }
        for (id, files) in &self.osds {
            if let Some(gone) = files.iter().find(|f| f.is_gone()) {
                found.osds.push((
                    *id,
                    format!(
                        "{} was removed, or replaced, while it was in use",
                        gone.path.display()
                    ),
                ));
            } else if let Some(f) = files.iter().find(|f| is_read_only(&f.path)) {
                found.osds.push((
                    *id,
                    format!("the file system of {} has become read-only", f.path.display()),
                ));
            }
        }
        for (id, _) in &found.osds {
            self.osds.remove(id);
        }
        found
    }
}

/// Is that the words of a system that has no room (ENOSPC, EDQUOT), or of an OSD without any?
pub fn is_no_room(why: &str) -> bool {
    ["(os error 28)", "(os error 122)", spirula_osd::NO_ROOM].iter().any(|code| why.contains(code))
}

/// Has the file system of a store room again? One that cannot tell has.
pub fn has_room(data: &Path) -> bool {
    rustix::fs::statvfs(data).map_or(true, |s| s.f_bavail.saturating_mul(s.f_frsize) >= ROOM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_deleted_or_replaced_are_missed_once() {
        let at = std::env::temp_dir().join(format!("spirula-watch-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&at);
        let data = at.join("osd.0");
        std::fs::create_dir_all(&data).unwrap();
        for f in ["lock", "osd.0/block", "osd.0/meta", "other"] {
            std::fs::write(at.join(f), b"x").unwrap();
        }
        let mut watch = Watch::new(&ClusterDir::new(&at).unwrap());
        watch.begin(0, &data);
        let found = watch.look();
        assert!(found.cluster.is_none() && found.osds.is_empty());
        std::fs::rename(at.join("other"), data.join("block")).unwrap();
        let found = watch.look();
        assert!(
            found.osds.len() == 1 && found.osds[0].1.contains("block was removed, or replaced")
        );
        assert!(watch.look().osds.is_empty(), "told again");
        watch.begin(0, &data);
        assert!(watch.look().osds.is_empty());
        std::fs::remove_dir_all(&at).unwrap();
        assert!(watch.look().cluster.unwrap().contains("was removed"));
    }

    #[test]
    fn no_room_is_told_from_other_troubles() {
        let words = |code| format!("write x: {}", std::io::Error::from_raw_os_error(code));
        assert!(
            is_no_room(&words(28))
                && is_no_room(&words(122))
                && !is_no_room(&words(5))
                && !is_no_room(&words(30))
        );
    }
}
