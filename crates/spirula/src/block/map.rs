//! `spirula image map`, `unmap`, `ls`: an image as a block device, where the kernel has neither rbd
//! nor nbd.
//!
//! A process in the background serves the image as a file ([`super::fuse`]), and a loop device
//! makes a block device of that. Each has a directory below [`PLACES`]: `disk` is the file,
//! `map.json` says what it is, `log` is what the process has to say. The directory goes with the
//! process.
//!
//! mount(8), umount(8) and losetup(8) of util-linux do what needs a system call that nothing else
//! here needs. They are run beside the thread that serves the file, for they look at it.

use super::fuse::{self, Device};
use super::{ClientArgs, close, open, run};
use anyhow::{Context, bail};
use clap::Args as ClapArgs;
use serde_json::{Value, json};
use spirula_block::Spec;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Where what is mapped is.
const PLACES: &str = "/run/spirula/map";
/// How long a device may take to come or go.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// Arguments of `spirula image map`.
#[derive(Debug, Clone, ClapArgs)]
#[command(
    after_help = "Needs root, /dev/fuse and a loop device. Where the kernel has rbd or nbd, 'rbd \
        map' (with Ceph's client) or \
                        'spirula nbd serve' with nbd-client are faster."
)]
pub struct MapArgs {
    /// The image, as POOL/IMAGE, POOL/NAMESPACE/IMAGE or, read-only, POOL/IMAGE@SNAPSHOT
    #[arg(value_name = "POOL/IMAGE", value_parser = clap::value_parser!(Spec))]
    image: Spec,
    /// Nobody may write
    #[arg(long)]
    read_only: bool,
    #[command(flatten)]
    client: ClientArgs,
    /// Set in the process in the background: its directory.
    #[arg(long, hide = true)]
    serve_in: Option<PathBuf>,
}

/// Arguments of `spirula image unmap`.
#[derive(Debug, Clone, ClapArgs)]
pub struct UnmapArgs {
    /// The device, or the image
    what: String,
}

/// Runs a program to its end.
fn tool(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = command.stdin(Stdio::null()).output().with_context(|| format!("run {name}"))?;
    if !out.status.success() {
        bail!("{name}: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// Waits for something; `None` when it does not come.
fn wait<T>(mut until: impl FnMut() -> Option<T>) -> Option<T> {
    let begun = Instant::now();
    loop {
        if let Some(found) = until() {
            return Some(found);
        }
        if begun.elapsed() > PATIENCE {
            return None;
        }
        std::thread::sleep(LOOK);
    }
}

/// A new directory.
fn new_place() -> anyhow::Result<PathBuf> {
    fs::create_dir_all(PLACES)
        .with_context(|| format!("create {PLACES}; 'spirula image map' needs root"))?;
    for n in 0..u32::MAX {
        let path = Path::new(PLACES).join(n.to_string());
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e).with_context(|| format!("create {}", path.display())),
        }
    }
    bail!("{PLACES} is full")
}

/// `spirula image map`: prints the device.
///
/// # Errors
/// When the image cannot be opened, or the kernel lacks something.
pub fn map(args: &MapArgs) -> anyhow::Result<()> {
    if let Some(place) = &args.serve_in {
        return serve(args, place);
    }
    let place = new_place()?;
    let log = fs::File::create(place.join("log")).context("create the log")?;
    let program = std::env::current_exe().context("find this program")?;
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .arg("--serve-in")
        .arg(&place)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .process_group(0)
        .spawn()
        .context("start the process that serves the image")?;
    let device = wait(|| match child.try_wait() {
        Ok(None) => device_of(&place).map(Ok),
        _ => Some(Err(())),
    });
    match device {
        Some(Ok(device)) => {
            crate::out!("{device}");
            Ok(())
        }
        Some(Err(())) => {
            let why = fs::read_to_string(place.join("log")).unwrap_or_default();
            let why = why
                .trim()
                .lines()
                .last()
                .unwrap_or("it ended")
                .trim_start_matches("spirula: ")
                .to_owned();
            remove(&place);
            bail!("{why}")
        }
        None => {
            // It may hang in a call of the kernel's.
            let _ = child.kill();
            bail!(
                "the device did not come within {} s; see {}",
                PATIENCE.as_secs(),
                place.join("log").display()
            )
        }
    }
}

fn remove(place: &Path) {
    for name in ["map.json", "disk", "log"] {
        // What is not there need not go.
        let _ = fs::remove_file(place.join(name));
    }
    if let Err(e) = fs::remove_dir(place) {
        tracing::warn!("{} stays: {e}", place.display());
    }
}

/// The process in the background.
fn serve(args: &MapArgs, place: &Path) -> anyhow::Result<()> {
    crate::logs::init();
    let result = run(async {
        let image = open(&args.client, &args.image, !args.read_only).await?;
        let writes = image.is_writable();
        let disk = place.join("disk");
        fs::File::create(&disk).with_context(|| format!("create {}", disk.display()))?;
        let fd = fuse::open()?;
        mount(&fd, &disk, writes)?;
        let (device, requests) = Device::mounted(fd)?;
        let serving = tokio::task::spawn_local(fuse::serve(device, requests, image.clone()));
        let (spec, at) = (args.image.to_string(), place.to_owned());
        let attached = tokio::task::spawn_blocking(move || attach(&spec, &at, writes)).await?;
        if attached.is_err() {
            let disk = disk.clone();
            // The reason is the other error.
            let _ =
                tokio::task::spawn_blocking(move || tool(Command::new("umount").arg(disk))).await;
        }
        serving.await?;
        close([image]).await;
        attached
    });
    if result.is_ok() {
        remove(place);
    }
    result
}

/// Mounts the file system of one file on a file. The descriptor is left open for mount(8) and no
/// other program.
fn mount(fd: &OwnedFd, disk: &Path, writes: bool) -> anyhow::Result<()> {
    let options = format!(
        "fd={},rootmode=100000,user_id=0,group_id=0,max_read={},{}",
        fd.as_raw_fd(),
        fuse::PIECE,
        if writes { "rw" } else { "ro" },
    );
    let inherit = rustix::io::FdFlags::empty();
    rustix::io::fcntl_setfd(fd, inherit).context("hand /dev/fuse on")?;
    let mounted = tool(
        Command::new("mount").args(["-i", "-n", "-t", "fuse", "-o", &options, "spirula"]).arg(disk),
    );
    rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC).context("keep /dev/fuse")?;
    mounted.map(drop)
}

fn attach(spec: &str, place: &Path, writes: bool) -> anyhow::Result<()> {
    let mut losetup = Command::new("losetup");
    losetup.args(["--find", "--show"]);
    if !writes {
        losetup.arg("--read-only");
    }
    let device = tool(losetup.arg(place.join("disk")))?;
    let text = json!({"image": spec, "device": device, "pid": std::process::id()}).to_string();
    let new = place.join("map.new");
    fs::write(&new, text)
        .and_then(|()| fs::rename(&new, place.join("map.json")))
        .context("write map.json")
}

/// What is mapped in a directory.
fn read_place(place: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(place.join("map.json")).ok()?).ok()
}

fn device_of(place: &Path) -> Option<String> {
    read_place(place)?["device"].as_str().map(str::to_owned)
}

fn places() -> Vec<(PathBuf, Value)> {
    let all = fs::read_dir(PLACES).into_iter().flatten().flatten().map(|e| e.path());
    let mut found: Vec<_> = all.filter_map(|p| Some((p.clone(), read_place(&p)?))).collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// `spirula image ls`: each image with its device.
pub fn mapped() {
    for (_, v) in places() {
        let text = |name: &str| v[name].as_str().unwrap_or("?").to_owned();
        crate::out!("{}\t{}", text("image"), text("device"));
    }
}

/// Is the file behind a loop device, as the kernel says it (`/sys/block/loopN/loop/backing_file`),
/// ours? A number that was freed may be somebody else's by now.
fn is_ours(backing: &[u8], disk: &Path) -> bool {
    backing.strip_suffix(b"\n").unwrap_or(backing) == disk.as_os_str().as_bytes()
}

/// Does this loop device show what is mapped in a directory?
fn shows(device: &str, place: &Path) -> bool {
    let name = device.trim_start_matches("/dev/");
    let Ok(backing) = fs::read(format!("/sys/block/{name}/loop/backing_file")) else {
        return false;
    };
    // The kernel says it without symbolic links.
    let place = fs::canonicalize(place).unwrap_or_else(|_| place.to_owned());
    is_ours(&backing, &place.join("disk"))
}

/// Does somebody use this device?
fn is_used(device: &str) -> bool {
    let name = device.trim_start_matches("/dev/");
    let holders = fs::read_dir(format!("/sys/block/{name}/holders")).map_or(0, Iterator::count);
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let first = |line: &str| line.split_whitespace().next() == Some(device);
    holders > 0 || mounts.lines().any(first) || swaps.lines().any(first)
}

/// `spirula image unmap`: when it returns, all that was written is durable and the image's lock is
/// free.
///
/// # Errors
/// When nothing such is mapped, or somebody uses it.
pub fn unmap(args: &UnmapArgs) -> anyhow::Result<()> {
    let mut found: Vec<_> = places()
        .into_iter()
        .filter(|(_, v)| v["device"] == *args.what || v["image"] == *args.what)
        .collect();
    // A place that a killed process left names a device, too, which may be another one's by now:
    // what is really mapped comes first.
    found.sort_by_key(|(place, v)| !shows(v["device"].as_str().unwrap_or_default(), place));
    let Some((place, v)) = found.into_iter().next() else {
        return Err(crate::Unmet(format!(
            "{} is not mapped; 'spirula image ls' says what is",
            args.what
        ))
        .into());
    };
    let device = v["device"].as_str().unwrap_or_default();
    if shows(device, &place) {
        if is_used(device) {
            bail!("{device} is in use; unmount what is on it first");
        }
        tool(Command::new("losetup").arg("--detach").arg(device))?;
    }
    // Whoever has it open keeps it, and the kernel frees it later.
    if wait(|| (!shows(device, &place)).then_some(())).is_none() {
        bail!("{device} is still open somewhere");
    }
    tool(Command::new("umount").arg(place.join("disk")))?;
    let process = format!("/proc/{}", v["pid"]);
    let over = || {
        if place.exists() && !Path::new(&process).exists() {
            // It was killed.
            remove(&place);
        }
        (!place.exists()).then_some(())
    };
    match wait(over) {
        Some(()) => Ok(()),
        None => {
            bail!("the process that served it does not end; see {}", place.join("log").display())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_device_of_another_file_is_not_ours() {
        let disk = Path::new("/run/spirula/map/0/disk");
        assert!(is_ours(b"/run/spirula/map/0/disk\n", disk));
        for other in [
            "/run/spirula/map/1/disk\n",
            "/srv/disk.img\n",
            "/run/spirula/map/0/disk (deleted)\n",
            "/\n",
            "",
        ] {
            assert!(!is_ours(other.as_bytes(), disk), "{other}");
        }
    }
}
