//! `spirula up`: create or restart a cluster, show progress, say what to type next.

use crate::cli::UpArgs;
use crate::cluster::host::random;
use crate::cluster::{Cluster, Options};
use crate::control::Answer;
use crate::dir::{ClusterDir, Manifest};
use crate::guests::{self, Guests, With};
use crate::memory::{Budget, SMALLEST};
use crate::options::Sources;
use crate::size::Size;
use crate::{Unmet, backup, conf, control, logs, signals};
use anyhow::{Context, anyhow, bail};
use clap::ValueEnum;
use serde_json::{Value, json};
use spirula_types::Uuid;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

const DEFAULT_OSDS: u32 = 3;
const DEFAULT_OSD_SIZE: u64 = 10 << 30;
/// Smallest OSD that is of any use: journal, metadata and a few objects.
const SMALLEST_OSD: u64 = 1 << 30;
const DEFAULT_PORT: u16 = 3300;
/// Placement groups of the first pool.
const FIRST_POOL_PGS: u32 = 32;
/// Name of the pool that a new cluster starts with.
pub const FIRST_POOL: &str = "data";
/// How long to wait for every PG to become clean before saying what is missing.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs `spirula up`.
///
/// # Errors
/// With the reason, when the cluster cannot be created or started.
pub fn up(args: UpArgs) -> anyhow::Result<()> {
    match (args.detach, args.report_fd) {
        (true, _) => detach(&args),
        (false, fd) => run(&args, &mut Progress::new(args.json, fd)?),
    }
}

/// Where progress goes: the terminal, or the process that waits for a detached child.
struct Progress {
    json: bool,
    report: Option<fs::File>,
}

impl Progress {
    #[allow(unsafe_code, reason = "adopts the descriptor that the parent passed on")]
    fn new(json: bool, fd: Option<RawFd>) -> anyhow::Result<Self> {
        let report = match fd {
            None => None,
            Some(fd) if fd > 2 => {
                // SAFETY: `detach` made this descriptor for us and nothing else here uses it.
                Some(unsafe { fs::File::from_raw_fd(fd) })
            }
            Some(fd) => bail!("--report-fd {fd} is for spirula's own use"),
        };
        Ok(Self { json, report })
    }

    /// A line for people.
    fn say(&mut self, line: &str) {
        if let Some(f) = &mut self.report {
            // The waiting parent may be gone; the cluster runs on.
            let _ = writeln!(f, "say {line}");
        } else if !self.json {
            logs::print(line);
        }
    }

    /// The cluster is ready.
    fn ready(&mut self, summary: &Value, text: &str) {
        if let Some(mut f) = self.report.take() {
            let _ = writeln!(f, "ready {}", json!({"summary": summary, "text": text}));
        } else if self.json {
            logs::print(&summary.to_string());
        } else {
            logs::print(text);
        }
    }
}

/// Starts ourselves again in the background and passes its progress on until it is ready.
fn detach(args: &UpArgs) -> anyhow::Result<()> {
    let dir = ClusterDir::new(&args.dir)?;
    // The plain refusals are better told by this process, before a log file is made.
    dir.manifest()?;
    drop(dir.lock()?);
    let (read, write) = rustix::pipe::pipe().context("make a pipe")?;
    let log = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(dir.log())
        .with_context(|| format!("open {}", dir.log().display()))?;
    let fd = {
        use std::os::fd::AsRawFd;
        write.as_raw_fd()
    };
    let own: Vec<_> = std::env::args_os().skip(1).filter(|a| a != "--detach").collect();
    let mut child = Command::new(std::env::current_exe().context("find this program")?)
        .args(own)
        .arg("--report-fd")
        .arg(fd.to_string())
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("share the log file")?)
        .stderr(log)
        // Out of the terminal's process group, so that Ctrl-C there does not stop it.
        .process_group(0)
        .spawn()
        .context("start the cluster's process")?;
    drop(write);
    for line in BufReader::new(fs::File::from(read)).lines() {
        let line = line.context("read the cluster's progress")?;
        match line.split_once(' ') {
            Some(("say", text)) if !args.json => crate::out!("{text}"),
            Some(("ready", summary)) => {
                let v: Value =
                    serde_json::from_str(summary).context("understand the cluster's report")?;
                if args.json {
                    crate::out!("{}", v["summary"]);
                } else {
                    crate::out!("{}", v["text"].as_str().unwrap_or_default());
                }
                return Ok(());
            }
            Some((kind @ ("fail3" | "fail"), text)) => {
                // Its lock goes with it: who tries again at once must not meet it.
                child.wait().context("wait for the cluster's process")?;
                return Err(if kind == "fail3" {
                    Unmet(text.to_owned()).into()
                } else {
                    anyhow!("{text}")
                });
            }
            _ => {}
        }
    }
    let status = child.wait().context("wait for the cluster's process")?;
    bail!("the cluster ended while starting ({status}); see {}", dir.log().display())
}

fn run(args: &UpArgs, progress: &mut Progress) -> anyhow::Result<()> {
    let result = start_and_wait(args, progress);
    if let (Err(e), true) = (&result, args.report_fd.is_some()) {
        logs::last_words(&format!("{e:#}"));
    }
    if let (Err(e), Some(f)) = (&result, &mut progress.report) {
        let kind = if e.is::<Unmet>() { "fail3" } else { "fail" };
        // One line: the parent reads lines.
        let _ = writeln!(f, "{kind} {}", format!("{e:#}").replace('\n', " "));
    }
    result
}

fn start_and_wait(args: &UpArgs, progress: &mut Progress) -> anyhow::Result<()> {
    let begun = Instant::now();
    crate::logs::init();
    let dir = ClusterDir::new(&args.dir)?;
    let existing = dir.manifest()?;
    guests::check(&args.with)?;
    let memory = args.memory.map_or_else(crate::memory::allowed, |m| m.0);
    if memory < SMALLEST {
        let whose =
            if args.memory.is_some() { "--memory" } else { "what the control group allows," };
        bail!("{whose} {} is too little; give {} or more", Size(memory), Size(SMALLEST));
    }
    // Before anything is made.
    let io = args.io.settle().map_err(|e| anyhow!("--io: {e}"))?;
    // Held until the process has ended: threads close their stores after us.
    std::mem::forget(dir.lock()?);
    let manifest = match existing.filter(|m| m.complete) {
        Some(m) => {
            check_unchanged(args, &m)?;
            progress.say(&format!(
                "spirula {}: starting the cluster in {}",
                env!("CARGO_PKG_VERSION"),
                dir.path().display()
            ));
            m
        }
        None => create(args, &dir, progress)?,
    };
    conf::write(&dir, &manifest)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let sources = Sources::read(dir.path(), Some(&dir.conf()), &[])?;
    for warning in &sources.warnings {
        tracing::warn!("{warning}");
    }
    enough_descriptors(manifest.osd_uuids.len(), manifest.mons)?;
    crate::memory::given_back_soon(memory);
    let options = Options {
        fallback: dir.path_options(),
        sources: Arc::new(sources),
        budget: Budget::new(memory, manifest.osd_uuids.len()),
        reactors: args.reactors.map_or((cores / 2).max(1), |n| n as usize),
        links: args.links,
        io,
    };
    let cluster = Cluster::start(&dir, &manifest, &options)?;
    let stop = serve_control(&dir, cluster.clone())?;
    let mut missing = String::new();
    while !cluster.ready() {
        if begun.elapsed() > READY_TIMEOUT {
            missing = cluster.explain();
            break;
        }
        match stop.recv_timeout(Duration::from_millis(2)) {
            Ok(Stop::Signal) => return finish(&cluster, progress, None),
            // `down` waits for the word also where the cluster never became ready.
            Ok(Stop::Asked(done)) => return finish(&cluster, progress, Some(done)),
            Err(_) => cluster.check_alive()?,
        }
    }
    let stopped: Vec<String> =
        cluster.stopped().into_iter().map(|(id, why)| format!("osd.{id}: {why}")).collect();
    if missing.is_empty() {
        missing = stopped.join("; ");
    }
    let seconds = begun.elapsed().as_secs_f64();
    let (mut summary, mut text) =
        next_steps(&dir, &manifest, &cluster, seconds, &missing, &args.with);
    if let Some(line) = forgotten(&dir, &args.with) {
        text = format!("{text}\n\n{line}");
    }
    // They would wait for PGs that nobody serves, and `down` for them.
    let with: &[_] = if missing.is_empty() { &args.with } else { &[] };
    if with.len() < args.with.len() {
        text = format!(
            "{text}\n\nWhat --with names is not started: start the cluster anew when it is whole."
        );
    }
    let mut guests = Guests::start(&dir, &manifest, with).unwrap_or_else(|e| {
        // The cluster does not need them.
        text = format!("{text}\n\nNot all is well: {e:#}");
        summary["missing"] = json!(format!("{e:#}"));
        Guests::default()
    });
    if !guests.wrong().is_empty() {
        text = format!("{text}\n\nNot all is well: {}", guests.wrong().join("; "));
        summary["missing"] = json!(guests.wrong().join("; "));
    }
    if !guests.hints().is_empty() {
        text = format!("{text}\n\n{}", guests.hints().join("\n"));
    }
    if !args.with.is_empty() {
        summary["guests"] = guests.pids();
    }
    progress.ready(&summary, &text);
    loop {
        let asked = stop.recv_timeout(Duration::from_secs(1));
        if asked.is_ok() {
            // First, while what they have still to write can be written.
            guests.stop();
        }
        match asked {
            Ok(Stop::Signal) => return finish(&cluster, progress, None),
            Ok(Stop::Asked(done)) => return finish(&cluster, progress, Some(done)),
            Err(_) => {
                cluster.look_after();
                guests.look_after();
                cluster.check_alive()?;
            }
        }
    }
}

/// Why the cluster is to stop.
enum Stop {
    /// Ctrl-C or SIGTERM.
    Signal,
    /// `spirula down`, which waits for the word that it is done.
    Asked(Asked),
}

/// Who asked the cluster to stop is told when it has.
struct Asked {
    done: mpsc::Sender<()>,
    /// Ends when that was written to whoever asked.
    written: mpsc::Receiver<()>,
}

/// How long the process waits for whoever asked it to stop to be told: for longer than a busy
/// machine lets a thread wait.
const TOLD: Duration = Duration::from_secs(10);

fn finish(cluster: &Cluster, progress: &mut Progress, asked: Option<Asked>) -> anyhow::Result<()> {
    progress.say("stopping");
    let result = cluster.stop();
    progress.say("stopped; everything acknowledged is on disk");
    if let Some(Asked { done, written }) = asked {
        // `down` may have been interrupted; it does not matter here.
        let _ = done.send(());
        // The process would take the thread with it that writes the answer.
        let _ = written.recv_timeout(TOLD);
    }
    result
}

/// Serves the control socket and catches the signals; both end up in the returned channel.
fn serve_control(dir: &ClusterDir, cluster: Cluster) -> anyhow::Result<mpsc::Receiver<Stop>> {
    let (tx, rx) = mpsc::channel();
    let stop_tx = Mutex::new(tx.clone());
    let own = dir.clone();
    control::serve(dir, move |request| {
        let id = || {
            request["id"]
                .as_i64()
                .and_then(|n| i32::try_from(n).ok())
                .context("'id' is no OSD number")
        };
        let said = |message: anyhow::Result<String>| {
            message.map(|message| json!({ "message": message }).into())
        };
        match request["do"].as_str().unwrap_or_default() {
            "status" => cluster.status().map(Into::into),
            "osd-start" => said(cluster.start_osd(id()?)),
            "osd-stop" => said(cluster.stop_osd(id()?)),
            "osd-recreate" => said(cluster.recreate_osd(id()?)),
            "backup" => {
                let to = request["to"].as_str().context("'to' is no path")?;
                backup::of_running(&cluster, &own, std::path::Path::new(to)).map(Into::into)
            }
            "stop" => {
                let begun = Instant::now();
                let (done_tx, done) = mpsc::channel();
                let (answer, written) = Answer::noticed();
                let asked = Stop::Asked(Asked { done: done_tx, written });
                let sent = stop_tx.lock().map(|tx| tx.send(asked).is_ok()).unwrap_or(false);
                if !sent {
                    bail!("the cluster is stopping already");
                }
                done.recv().context("the cluster ended before it could confirm")?;
                Ok(answer.with(json!({"seconds": begun.elapsed().as_secs_f64()})))
            }
            other => {
                bail!(
                    "unknown request '{other}'; known are status, stop, osd-start, osd-stop, \
                        osd-recreate, backup"
                )
            }
        }
    })?;
    signals::on_stop(move || {
        // The cluster is stopping already.
        let _ = tx.send(Stop::Signal);
    })?;
    Ok(rx)
}

/// Makes a new cluster's directory: manifest and stores.
fn create(args: &UpArgs, dir: &ClusterDir, progress: &mut Progress) -> anyhow::Result<Manifest> {
    let osds = args.osds.unwrap_or(DEFAULT_OSDS);
    let osd_size = choose_osd_size(args, dir, osds)?;
    let pool_size = args.pool_size.unwrap_or(osds.min(3) as u8);
    if u32::from(pool_size) > osds {
        bail!("--pool-size {pool_size} needs {pool_size} OSDs, --osds is {osds}");
    }
    let mut uuids = Vec::new();
    for _ in 0..=osds {
        let mut bytes = [0; 16];
        random(&mut bytes).context("draw an id")?;
        uuids.push(Uuid::from_random(bytes));
    }
    let fsid = uuids.pop().unwrap_or_default();
    let mut m = Manifest {
        fsid,
        osd_uuids: uuids,
        osd_size,
        pool_size,
        // As Ceph chooses it: a majority-like half.
        min_size: pool_size - pool_size / 2,
        bind: args.bind.unwrap_or_else(|| std::net::Ipv4Addr::LOCALHOST.into()),
        port: args.port.unwrap_or(DEFAULT_PORT),
        mons: args.mons.unwrap_or(1),
        auth: !args.no_auth,
        complete: false,
    };
    can_be_reached_at(m.bind)?;
    ports_are_free(&m)?;
    progress.say(&format!(
        "spirula {}: a new cluster in {}: {}, 1 manager, {} of {}",
        env!("CARGO_PKG_VERSION"),
        dir.path().display(),
        if m.mons == 1 { "1 monitor".to_owned() } else { format!("{} monitors", m.mons) },
        number_of(osds as usize),
        Size(osd_size)
    ));
    progress.say(&format!(
        "  pools keep {} of each object on different OSDs of this machine (failure domain osd); \
         writes need {} of them",
        match pool_size {
            1 => "1 copy".to_owned(),
            n => format!("{n} copies"),
        },
        m.min_size
    ));
    dir.write_manifest(&m)?;
    Cluster::create(dir, &m, FIRST_POOL, FIRST_POOL_PGS)?;
    m.complete = true;
    dir.write_manifest(&m)?;
    Ok(m)
}

/// Refuses an address that means all of a machine's: the maps name it, and clients elsewhere would
/// look for the daemons at home.
fn can_be_reached_at(bind: std::net::IpAddr) -> anyhow::Result<()> {
    if !bind.is_unspecified() {
        return Ok(());
    }
    let own = crate::net::own_addresses();
    let outside = own
        .iter()
        .filter(|a| a.is_ipv4() == bind.is_ipv4() && !a.is_loopback() && !a.is_unspecified());
    let own: Vec<String> = outside.map(ToString::to_string).collect();
    bail!(
        "--bind {bind}: clients connect to the address that the cluster's maps name, so it must be \
            one that they reach; {}",
        if own.is_empty() {
            "this machine has none but loopback".to_owned()
        } else {
            format!("this machine has {}", own.join(", "))
        }
    );
}

/// Refuses a new cluster whose monitors' ports somebody else has, before anything is made: a
/// directory remembers its ports.
fn ports_are_free(m: &Manifest) -> anyhow::Result<()> {
    for (name, addr) in crate::cluster::mon_addrs(m) {
        std::net::TcpListener::bind(addr).map_err(|e| {
            let other = match e.kind() {
                ErrorKind::AddrNotAvailable => {
                    "no interface of this machine has the address of --bind"
                }
                ErrorKind::PermissionDenied => {
                    "this user may not have that port: choose another --port, from 1024 on"
                }
                _ => "choose another --port",
            };
            anyhow!("mon.{name} cannot listen on {addr}: {other}; nothing was made: {e}")
        })?;
    }
    Ok(())
}

/// File descriptors of a process with these daemons: files, rings and connections among them, and a
/// few clients.
const DESCRIPTORS: u64 = 128;
/// The same for each daemon.
const DESCRIPTORS_EACH: u64 = 24;

/// Refuses to begin with fewer file descriptors than the daemons need among themselves.
fn enough_descriptors(osds: usize, mons: u8) -> anyhow::Result<()> {
    let needed = DESCRIPTORS + DESCRIPTORS_EACH * (osds as u64 + u64::from(mons));
    let have = crate::guard::descriptors();
    if have < needed {
        bail!(
            "this process may open {have} files, {needed} are needed; raise the limit, for example \
                with 'ulimit -n {needed}'"
        );
    }
    Ok(())
}

fn choose_osd_size(args: &UpArgs, dir: &ClusterDir, osds: u32) -> anyhow::Result<u64> {
    let fs = rustix::fs::statvfs(dir.path())
        .with_context(|| format!("ask for free space of {}", dir.path().display()))?;
    let free = fs.f_bavail * fs.f_frsize;
    // A tenth stays for the monitor, the journals and the file system's own needs.
    let fits = free / 10 * 9 / u64::from(osds);
    if fits < SMALLEST_OSD {
        bail!(
            "{} has {} free; {osds} OSDs need at least {} each and some room beside; free some \
                space, use fewer --osds or another --dir",
            dir.path().display(),
            Size(free),
            Size(SMALLEST_OSD)
        );
    }
    match args.osd_size {
        None => Ok(DEFAULT_OSD_SIZE.min(fits) / (1 << 20) * (1 << 20)),
        Some(Size(s)) if s < SMALLEST_OSD => {
            bail!(
                "--osd-size {} is too small; an OSD needs {} or more",
                Size(s),
                Size(SMALLEST_OSD)
            )
        }
        Some(Size(s)) if s > fits => bail!(
            "{} of {} {} not fit: {} has {} free; use --osd-size {}G or less",
            number_of(osds as usize),
            Size(s),
            if osds == 1 { "does" } else { "do" },
            dir.path().display(),
            Size(free),
            fits >> 30
        ),
        Some(Size(s)) => Ok(s / (1 << 20) * (1 << 20)),
    }
}

/// The options that are fixed for a cluster's life must be left out or repeated as they were.
fn check_unchanged(args: &UpArgs, m: &Manifest) -> anyhow::Result<()> {
    let differs = |option: &str, asked: String, is: String| {
        Err(anyhow::anyhow!(
            "{option} {asked}: this cluster was made with {is}; leave the option out to start it"
        ))
    };
    let osds = m.osd_uuids.len() as u32;
    match args {
        UpArgs { osds: Some(n), .. } if *n != osds => {
            differs("--osds", n.to_string(), osds.to_string())
        }
        UpArgs { osd_size: Some(s), .. } if s.0 >> 20 != m.osd_size >> 20 => {
            differs("--osd-size", s.to_string(), Size(m.osd_size).to_string())
        }
        UpArgs { pool_size: Some(n), .. } if *n != m.pool_size => {
            differs("--pool-size", n.to_string(), m.pool_size.to_string())
        }
        UpArgs { port: Some(p), .. } if *p != m.port => {
            differs("--port", p.to_string(), m.port.to_string())
        }
        UpArgs { mons: Some(n), .. } if *n != m.mons => {
            differs("--mons", n.to_string(), m.mons.to_string())
        }
        UpArgs { no_auth: true, .. } if m.auth => differs(
            "--no-auth",
            "given".to_owned(),
            "authentication; see auth_service_required in its ceph.conf".to_owned(),
        ),
        UpArgs { bind: Some(a), .. } if *a != m.bind => {
            differs("--bind", a.to_string(), m.bind.to_string())
        }
        _ => Ok(()),
    }
}

fn number_of(osds: usize) -> String {
    if osds == 1 { "1 OSD".to_owned() } else { format!("{osds} OSDs") }
}

fn next_steps(
    dir: &ClusterDir,
    m: &Manifest,
    cluster: &Cluster,
    seconds: f64,
    missing: &str,
    with: &[With],
) -> (Value, String) {
    let pgs = cluster.pg_count();
    let summary = json!({
        "ready": missing.is_empty(),
        "seconds": (seconds * 1000.0).round() / 1000.0,
        "pid": std::process::id(),
        "dir": dir.path(),
        "conf": dir.conf(),
        "keyring": crate::keys::path(dir, "client.admin"),
        "auth": if m.auth { "cephx" } else { "none" },
        "fsid": m.fsid.to_string(),
        "mon": format!("v2:{}", std::net::SocketAddr::new(m.bind, m.port)),
        "osds": m.osd_uuids.len(),
        "pgs": pgs,
        "pool_size": m.pool_size,
        "pool": FIRST_POOL,
        "missing": if missing.is_empty() { Value::Null } else { json!(missing) },
    });
    let head = if missing.is_empty() {
        format!(
            "ready in {seconds:.2} s: {} up, {pgs} placement groups active+clean",
            number_of(m.osd_uuids.len())
        )
    } else {
        format!("running after {seconds:.0} s, but not all is well: {missing}")
    };
    let text = format!(
        "{head}\n\n\
         Use it with Ceph's own clients (Debian: apt-get install ceph-common):\n\
         \x20 export CEPH_CONF={}\n\
         \x20 ceph -s\n\
         \x20 rados -p {FIRST_POOL} put hello /etc/hostname\n\
         \x20 rados -p {FIRST_POOL} get hello -\n\
         \x20 ceph osd pool create mypool\n\n\
         Stop it with Ctrl-C or 'spirula down --dir {}'; '{}' starts it again with its data.",
        dir.conf().display(),
        dir.path().display(),
        up_again(dir, with),
    );
    (summary, text)
}

/// The command that starts this cluster again with these guests.
fn up_again(dir: &ClusterDir, with: &[With]) -> String {
    let with: String = with.iter().map(|w| format!(" --with {}", w.word())).collect();
    format!("spirula up --dir {}{with}", dir.path().display())
}

/// Says which guests this cluster has had and is not given now: a file system without servers, an
/// S3 without a gateway.
fn forgotten(dir: &ClusterDir, with: &[With]) -> Option<String> {
    let missed: Vec<With> = With::value_variants()
        .iter()
        .copied()
        .filter(|w| !with.contains(w) && w.ran_in(dir))
        .collect();
    if missed.is_empty() {
        return None;
    }
    let all: Vec<With> = With::value_variants()
        .iter()
        .copied()
        .filter(|w| with.contains(w) || missed.contains(w))
        .collect();
    let what: Vec<&str> = missed.iter().map(|w| w.what()).collect();
    Some(format!(
        "Not started this time: {}; '{}' starts the cluster with all it had.",
        what.join(" and "),
        up_again(dir, &all)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Links;
    use spirula_store::IoChoice;

    fn args() -> UpArgs {
        UpArgs {
            dir: "x".into(),
            osds: None,
            osd_size: None,
            pool_size: None,
            port: None,
            bind: None,
            mons: None,
            no_auth: false,
            detach: false,
            with: Vec::new(),
            memory: Some(Size(512 << 20)),
            reactors: None,
            links: Links::Memory,
            io: IoChoice::Auto,
            json: false,
            report_fd: None,
        }
    }

    #[test]
    fn changed_fixed_options_are_refused_by_name_and_repeated_ones_accepted() {
        let m = Manifest {
            fsid: Uuid::default(),
            osd_uuids: vec![Uuid::default(); 3],
            osd_size: 10 << 30,
            pool_size: 3,
            min_size: 2,
            bind: std::net::Ipv4Addr::LOCALHOST.into(),
            port: 3300,
            mons: 1,
            auth: true,
            complete: true,
        };
        assert!(check_unchanged(&args(), &m).is_ok());
        assert!(
            check_unchanged(
                &UpArgs { osds: Some(3), osd_size: Some(Size(10 << 30)), ..args() },
                &m
            )
            .is_ok()
        );
        let e = check_unchanged(&UpArgs { osds: Some(5), ..args() }, &m).unwrap_err().to_string();
        assert!(e.contains("--osds 5") && e.contains("made with 3"), "{e}");
    }
}
