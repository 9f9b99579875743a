//! An image as a directory, for as long as something is measured in it: mapped by this program
//! (`spirula image map`, which any Ceph lets in), given an ext4 where it holds nothing, mounted.
//!
//! It is mounted in a place below [`PLACES`] that follows from cluster and image. So what a run
//! left that was killed is found there by the next one, and undone first: two mounts of one image
//! would destroy what is on it. A run that goes on is known by its lock beside that place. Whoever
//! else uses the image, here or on another machine, watches its header, as librbd, the kernel and
//! `spirula image map` do: an image that is watched is refused. Only who may not watch is not seen,
//! a reader without the right to; and nobody is stopped from opening it later. Only what holds
//! nothing but zeros, to its end, is given a file system: nothing says of other data that it begins
//! early.

use crate::bail;
use crate::prelude::*;
use crate::session::{Session, Way};
use spirula_block::header;
use spirula_block::lock::Watcher;
use spirula_client::Request;
use spirula_messages::ceph::{OsdOp, op};
use spirula_runtime::clock;
use spirula_types::{ObjectLocator, errno};
use std::fs::{self, File};
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Where images are mounted.
const PLACES: &str = "/run/spirula/bench";
/// How often an unmount is tried: whoever used the files may be ending.
const TRIES: u32 = 50;

/// How long the cluster may take to say who uses an image.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a watch may stay whose client is gone: Ceph's clients say 30 s.
const FORGOTTEN: Duration = Duration::from_secs(40);

/// Bytes that are read at a time where an image is looked through.
const PIECE: usize = 4 << 20;

/// A mounted image; unmounted and unmapped when it is dropped.
pub struct Mounted {
    at: PathBuf,
    device: String,
    /// Held as long as it is in use.
    _lock: File,
}

/// Its output, if it succeeds.
fn tool(program: &str, words: &[&str]) -> Result<String> {
    let out = Command::new(program).args(words).stdin(Stdio::null()).output();
    let out = out.with_context(|| format!("start {program}"))?;
    if !out.status.success() {
        bail!("{program} {}: {}", words.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// This program.
fn own() -> Result<String> {
    Ok(std::env::current_exe().context("find this program")?.display().to_string())
}

/// The device that is mounted at a place, by the kernel's table.
fn device_at(mounts: &str, at: &Path) -> Option<String> {
    let at = at
        .display()
        .to_string()
        .replace('\\', "\\134")
        .replace(' ', "\\040")
        .replace('\t', "\\011")
        .replace('\n', "\\012");
    let found = mounts
        .lines()
        .filter_map(|l| l.split_once(' '))
        .filter(|(_, rest)| rest.split(' ').next() == Some(&*at));
    found.map(|(device, _)| device.to_owned()).next_back()
}

/// Does a device hold nothing at all?
fn is_blank(device: &str) -> Result<bool> {
    let out = Command::new("blkid")
        .args(["-p", device])
        .stdin(Stdio::null())
        .output()
        .context("start blkid")?;
    match out.status.code() {
        Some(0) => return Ok(false),
        // It knows nothing of what is there, if anything is.
        Some(2) => {}
        _ => bail!("blkid -p {device}: {}", String::from_utf8_lossy(&out.stderr).trim()),
    }
    let mut file = File::open(device).with_context(|| format!("open {device}"))?;
    let mut piece = Vec::with_capacity(PIECE);
    loop {
        piece.clear();
        let read = (&mut file).take(PIECE as u64).read_to_end(&mut piece);
        if read.with_context(|| format!("read {device}"))? == 0 {
            return Ok(true);
        }
        if piece.iter().any(|b| *b != 0) {
            return Ok(false);
        }
    }
}

fn undo(at: &Path, device: &str) -> Result<()> {
    let path = at.display().to_string();
    let mut outcome = tool("umount", &[&path]);
    for _ in 0..TRIES {
        if outcome.is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
        outcome = tool("umount", &[&path]);
    }
    outcome?;
    tool(&own()?, &["image", "unmap", device])?;
    // A place that is not empty is somebody's.
    let _ = fs::remove_dir(at);
    Ok(())
}

/// Who uses an image (POOL/IMAGE or POOL/NAMESPACE/IMAGE): those who watch its header.
///
/// # Errors
/// When there is no such image, or the cluster does not say.
fn watchers(session: &Session, image: &str) -> Result<Vec<Watcher>> {
    let (place, name) = image.rsplit_once('/').context("an image is POOL/IMAGE")?;
    let (pool, namespace) = place.split_once('/').unwrap_or((place, ""));
    let wanted = pool.to_owned();
    let pool = session
        .look(move |map| map.pool_by_name(&wanted))?
        .with_context(|| format!("there is no pool '{pool}'"))?;
    let at = ObjectLocator {
        pool,
        namespace: Bytes::copy_from_slice(namespace.as_bytes()),
        ..ObjectLocator::default()
    };
    // The output of one operation on one object, if that is there.
    let ask = |object: String, what: OsdOp| -> Result<Option<Bytes>> {
        let request = Request::new(at.clone(), object.into(), vec![what], clock::wall());
        let reply = session.op(request, PATIENCE)?;
        match -reply.result {
            0 => Ok(reply.ops.into_iter().next().map(|o| o.op.indata)),
            errno::ENOENT => Ok(None),
            e => bail!("{image}: the OSDs do not say who uses it: {}", errno::name(e)),
        }
    };
    let Some(id) = ask(format!("rbd_id.{name}"), header::ask::plain("get_id"))? else {
        bail!("there is no image '{image}' (or it is of format 1)");
    };
    let id = header::text(&id).with_context(|| format!("{image}: read its id"))?;
    let object = format!("rbd_header.{}", String::from_utf8_lossy(&id));
    let Some(said) = ask(object, OsdOp::new(op::LIST_WATCHERS))? else {
        bail!("{image}: its header is gone")
    };
    Watcher::read(&said).with_context(|| format!("{image}: read who uses it"))
}

/// Refuses an image that is in use; for `grace` it waits for watches to go.
fn refuse_used(session: &Session, image: &str, grace: Duration) -> Result<()> {
    let begun = Instant::now();
    loop {
        let by = watchers(session, image)?;
        if by.is_empty() {
            return Ok(());
        }
        if begun.elapsed() >= grace {
            let by: Vec<String> = by.iter().map(Watcher::who).collect();
            bail!(
                "{image} is in use by {}: two that write to one file system destroy it; give an \
                    image that nothing else uses \
                 ('spirula image ls' says what is mapped; a client that was killed is forgotten \
                 after 30 s)",
                by.join(", ")
            );
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

impl Mounted {
    /// Mounts the image (POOL/IMAGE) of the cluster with this fsid. `before` is called with the
    /// place first, where a run that was killed left it mounted.
    ///
    /// # Errors
    /// When this machine lacks what it takes (root, FUSE, loop devices), or the image is not there,
    /// is in use, or holds what cannot be mounted.
    pub fn new(
        way: &Way,
        session: &Session,
        fsid: &str,
        image: &str,
        before: impl Fn(&Path) -> Result<()>,
    ) -> Result<Self> {
        let at = Path::new(PLACES).join(format!("{fsid}-{}", image.replace('/', "@")));
        fs::create_dir_all(PLACES)
            .with_context(|| format!("make {PLACES}; a mapped image needs root"))?;
        let lock = PathBuf::from(format!("{}.lock", at.display()));
        let lock = File::create(&lock).with_context(|| format!("make {}", lock.display()))?;
        if lock.try_lock().is_err() {
            bail!("another run measures in {image} now");
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let mut grace = Duration::ZERO;
        if let Some(device) = device_at(&mounts, &at) {
            before(&at)?;
            undo(&at, &device)
                .with_context(|| format!("undo what an earlier run left at {}", at.display()))?;
            grace = FORGOTTEN;
        }
        refuse_used(session, image, grace)?;
        let conf = way.conf.as_ref().context("an image is mapped by a ceph.conf; give --conf")?;
        let conf = fs::canonicalize(conf).with_context(|| format!("look at {}", conf.display()))?;
        let dir = conf.parent().unwrap_or(Path::new("/"));
        let (conf, dir) = (conf.display().to_string(), dir.display().to_string());
        let device = tool(
            &own()?,
            &["image", "map", image, "--conf", &conf, "--dir", &dir, "--id", &way.user],
        )?;
        // From here on it is unmapped whatever happens.
        let mounted = Self { at, device, _lock: lock };
        fs::create_dir_all(&mounted.at)
            .with_context(|| format!("make {}", mounted.at.display()))?;
        let place = mounted.at.display().to_string();
        // What is not blank and no file system fails to be mounted, unharmed.
        if is_blank(&mounted.device)? {
            tool("mkfs.ext4", &["-q", &mounted.device])?;
        }
        tool("mount", &["-o", "nosuid,nodev", &mounted.device, &place])?;
        Ok(mounted)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.at
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // What stays is undone by the next run. Where it was never mounted only the device goes.
        if undo(&self.at, &self.device).is_err()
            && let Ok(own) = own()
        {
            let _ = tool(&own, &["image", "unmap", &self.device]);
            let _ = fs::remove_dir(&self.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_found_by_its_whole_place() {
        let mounts = "/dev/vda / ext4 rw 0 0\n/dev/loop1 /run/x/a-b ext4 rw 0 0\n/dev/loop2 \
            /run/x/a ext4 rw 0 0\n";
        assert_eq!(device_at(mounts, Path::new("/run/x/a")).as_deref(), Some("/dev/loop2"));
        assert_eq!(device_at(mounts, Path::new("/run/x")), None);
        let spaced = "/dev/loop3 /run/x/a\\040b ext4 rw 0 0\n";
        assert_eq!(device_at(spaced, Path::new("/run/x/a b")).as_deref(), Some("/dev/loop3"));
    }

    #[test]
    fn what_holds_anything_is_not_blank() {
        let dir = std::env::temp_dir().join(format!("spirula-blank-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        let file = dir.join("image");
        let path = file.display().to_string();
        if Command::new("blkid").arg("-V").output().is_err() {
            return;
        }
        fs::write(&file, vec![0; 1 << 20]).expect("a file");
        assert!(is_blank(&path).expect("zeros"));
        // Data without a signature may begin late.
        let mut late = vec![0; 3 * PIECE];
        late.push(1);
        fs::write(&file, late).expect("a file");
        assert!(!is_blank(&path).expect("a byte at the end"));
        fs::write(
            &file,
            (0..1u32 << 18)
                .flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes())
                .collect::<Vec<_>>(),
        )
        .expect("a file");
        assert!(!is_blank(&path).expect("no zeros"));
        assert!(is_blank(&dir.join("none").display().to_string()).is_err());
        fs::remove_dir_all(&dir).expect("removed");
    }
}
