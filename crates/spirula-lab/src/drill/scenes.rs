//! What happens in a drill. Each scene is a few lines that read as what they do;
//! [`super::watch::Run`] keeps the time.

use super::cluster::{Cluster, spirula};
use super::cut::{self, Cut, space_of};
use super::daemon::Daemon;
use super::load::{MAGIC, STILL};
use super::owed::{RATIOS, Undo};
use super::watch::Run;
use crate::bail;
use crate::load::Draw;
use crate::prelude::*;
use rustix::fs::SeekFrom;
use spirula_types::AddrVec;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::net::IpAddr;
use std::os::unix::fs::FileExt;

/// Scenes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scene {
    /// An OSD is killed, and started again after a while
    OsdKill,
    /// All OSDs of a host in the CRUSH map are killed, with its managers and monitors, and started
    /// again
    HostKill,
    /// An OSD's network is cut, so that what it sends is lost; with it whatever shares its network
    /// namespace
    Partition,
    /// The leader of the monitors is killed, and started again
    MonLeaderKill,
    /// All daemons are killed at once, and started again
    RestartAll,
    /// One OSD after the other is stopped and started, waiting for clean in between
    RollingRestart,
    /// An OSD stands still four fifths of the time (SIGSTOP)
    SlowDisk,
    /// Bits flip in the store of an OSD, which is then scrubbed
    BitFlip,
    /// The disks count as full, so that writes must wait, and then no more
    DiskFull,
    /// An OSD is taken out, its data moves, and back in again
    DiskOut,
    /// Faults drawn at random, one after the other
    Thrash,
}

/// Places in which bits are flipped.
const FLIPS: usize = 32;
/// Bytes of a store that are looked at together.
const PART: usize = 1 << 20;

impl Scene {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::OsdKill => "osd-kill",
            Self::HostKill => "host-kill",
            Self::Partition => "partition",
            Self::MonLeaderKill => "mon-leader-kill",
            Self::RestartAll => "restart-all",
            Self::RollingRestart => "rolling-restart",
            Self::SlowDisk => "slow-disk",
            Self::BitFlip => "bit-flip",
            Self::DiskFull => "disk-full",
            Self::DiskOut => "disk-out",
            Self::Thrash => "thrash",
        }
    }

    /// What it does, for the question whether that is wanted.
    pub fn does(self) -> &'static str {
        match self {
            Self::OsdKill => "an OSD is killed and started again",
            Self::HostKill => "all OSDs of a host are killed and started again",
            Self::Partition => {
                "an OSD, and what shares its network namespace, is cut off from the others for a \
                    while"
            }
            Self::MonLeaderKill => "the leading monitor is killed and started again",
            Self::RestartAll => "all its daemons on this machine are killed and started again",
            Self::RollingRestart => "each OSD on this machine is stopped and started again",
            Self::SlowDisk => "an OSD is made to stand still again and again",
            Self::BitFlip => {
                "an OSD is stopped, bits of this drill's own objects are flipped in its store, and \
                    it is started"
            }
            Self::DiskFull => {
                "its full ratio is lowered, so that all clients' writes wait for a while"
            }
            Self::DiskOut => "an OSD is taken out and in again, so that data moves twice",
            Self::Thrash => {
                "OSDs are killed, made to stand still, and taken out and in, again and again"
            }
        }
    }

    /// Can it be played on this cluster?
    ///
    /// # Errors
    /// Why not.
    pub fn can(self, c: &Cluster) -> Result<()> {
        if self == Self::Partition {
            cut::can().context("partition")?;
        }
        if c.one.is_some() && matches!(self, Self::MonLeaderKill | Self::SlowDisk | Self::Partition)
        {
            bail!(
                "{}: all daemons of 'spirula up' share one process; this drill needs each to be \
                    its own ('spirula host start')",
                self.name()
            );
        }
        Ok(())
    }

    /// Plays it.
    ///
    /// # Errors
    /// When something did not happen within its limit.
    pub fn play(self, r: &mut Run) -> Result<()> {
        let mut draw = Draw::new(r.args.seed ^ u64::from(std::process::id()));
        match self {
            Self::OsdKill => osd_kill(r, &mut draw),
            Self::HostKill => host_kill(r, &mut draw),
            Self::Partition => partition(r, &mut draw),
            Self::MonLeaderKill => mon_leader_kill(r),
            Self::RestartAll => restart_all(r),
            Self::RollingRestart => rolling_restart(r),
            Self::SlowDisk => slow_disk(r, &mut draw),
            Self::BitFlip => bit_flip(r, &mut draw),
            Self::DiskFull => disk_full(r),
            Self::DiskOut => disk_out(r, &mut draw),
            Self::Thrash => thrash(r, &mut draw),
        }
    }
}

/// An OSD that is up and in and can be stopped from here. One that somebody took out is being
/// emptied, and left to that.
fn victim(r: &Run, draw: &mut Draw) -> Result<i32> {
    let can = |o: &&i32| r.cluster.one.is_some() || r.cluster.daemon(&format!("osd.{o}")).is_some();
    let here: Vec<i32> = r.up().iter().filter(can).copied().collect();
    let all: Vec<i32> =
        r.session.look(move |m| here.into_iter().filter(|o| m.is_in(*o)).collect())?;
    if let Some(osd) = r.args.osd {
        if !all.contains(&osd) {
            bail!("osd.{osd} is not up and in, or does not run on this machine");
        }
        return Ok(osd);
    }
    let at = draw.below(all.len() as u64) as usize;
    all.get(at).copied().context("no OSD of this cluster is up on this machine")
}

/// Kills an OSD, or in `spirula up` stops it; it is owed to be started.
fn take_down(r: &mut Run, osd: i32, by_force: bool) -> Result<()> {
    match (r.cluster.one.clone(), r.cluster.daemon(&format!("osd.{osd}")).cloned()) {
        (Some(dir), _) => {
            r.event(&format!(
                "osd.{osd} is stopped ('spirula osd stop': it shares its process with all others)"
            ));
            r.owe(Undo::StartOsd(dir.clone(), osd))?;
            spirula(&["osd", "stop", &osd.to_string()], &dir)
        }
        (None, Some(d)) => {
            let how = if by_force { "killed (kill -9)" } else { "stopped" };
            r.event(&format!("osd.{osd} is {how}"));
            r.owe(Undo::Start(Box::new(d.clone())))?;
            if by_force { d.kill() } else { d.stop() }
        }
        (None, None) => bail!("osd.{osd} does not run on this machine"),
    }
}

/// What is owed is done, and daemons are where they are now.
fn back(r: &mut Run) -> Result<()> {
    r.put_back()?;
    let way = r.way.clone();
    r.cluster.again(&way)
}

fn osd_kill(r: &mut Run, draw: &mut Draw) -> Result<()> {
    let osd = victim(r, draw)?;
    take_down(r, osd, true)?;
    r.noticed(&format!("osd.{osd} is down"), |r| !r.up().contains(&osd))?;
    r.pass(r.args.hold as f64)?;
    back(r)?;
    let limit = Duration::from_secs(r.args.limit);
    r.wait(&format!("osd.{osd} is up again"), limit, |r| r.up().contains(&osd))?;
    r.until_clean()
}

/// Hosts of the CRUSH map, with their OSDs.
fn hosts(r: &Run) -> Result<Vec<(String, Vec<i32>)>> {
    let tree = r.session.ask("osd tree")?;
    let nodes = tree["nodes"].as_array().into_iter().flatten().filter(|n| n["type"] == "host");
    let osds = |n: &Value| {
        n["children"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|c| i32::try_from(c.as_i64()?).ok())
            .collect()
    };
    Ok(nodes.filter_map(|n| Some((n["name"].as_str()?.to_owned(), osds(n)))).collect())
}

/// Do the monitors still have a quorum when so many of those that are in it are killed? It takes
/// more than half of all that are in their map, also of those that are gone already.
fn keeps_quorum(in_map: usize, in_quorum: usize, victims: usize) -> bool {
    in_quorum.saturating_sub(victims) * 2 > in_map
}

/// How many monitors are in their map, and the names of those in quorum.
fn monitors(quorum_status: &Value) -> (usize, BTreeSet<&str>) {
    let names =
        quorum_status["quorum_names"].as_array().into_iter().flatten().filter_map(Value::as_str);
    (quorum_status["monmap"]["mons"].as_array().map_or(0, Vec::len), names.collect())
}

/// Monitors and managers that say they are on this host and are processes here; none of the
/// monitors, if the others would be no majority.
fn others_of(r: &Run, host: &str) -> Result<Vec<Daemon>> {
    let mut out = Vec::new();
    let status = r.session.ask("quorum_status")?;
    let (in_map, quorum) = monitors(&status);
    for kind in ["mgr", "mon"] {
        let all = r.session.ask(&format!("{kind} metadata"))?;
        let all: Vec<&Value> = all.as_array().into_iter().flatten().collect();
        let own: Vec<&&Value> = all.iter().filter(|d| d["hostname"] == host).collect();
        let voters =
            own.iter().filter_map(|d| d["name"].as_str()).filter(|name| quorum.contains(name));
        if kind == "mon" && !keeps_quorum(in_map, quorum.len(), voters.count()) {
            continue;
        }
        let names =
            own.iter().filter_map(|d| d["name"].as_str()).map(|name| format!("{kind}.{name}"));
        out.extend(names.filter_map(|name| r.cluster.daemon(&name).cloned()));
    }
    Ok(out)
}

fn host_kill(r: &mut Run, draw: &mut Draw) -> Result<()> {
    let osd = victim(r, draw)?;
    let host = hosts(r)?.into_iter().find(|(_, osds)| osds.contains(&osd));
    let (host, osds) =
        host.with_context(|| format!("osd.{osd} is below no host in the CRUSH map"))?;
    let osds: Vec<i32> = osds.into_iter().filter(|o| r.up().contains(o)).collect();
    if let Some(far) = osds
        .iter()
        .find(|o| r.cluster.one.is_none() && r.cluster.daemon(&format!("osd.{o}")).is_none())
    {
        bail!("osd.{far} of the host {host} does not run on this machine");
    }
    let others = if r.cluster.one.is_some() { Vec::new() } else { others_of(r, &host)? };
    r.event(&format!(
        "the host {host} fails: {} OSDs, and {} other daemons",
        osds.len(),
        others.len()
    ));
    if osds.len() == r.up().len() {
        r.event("all OSDs are of this host: nobody is served meanwhile");
    }
    for d in others {
        r.event(&format!("{} is killed (kill -9)", d.name));
        r.owe(Undo::Start(Box::new(d.clone())))?;
        d.kill()?;
    }
    for osd in &osds {
        take_down(r, *osd, true)?;
    }
    let gone = osds.clone();
    r.noticed(&format!("all OSDs of {host} are down"), move |r| {
        gone.iter().all(|o| !r.up().contains(o))
    })?;
    r.pass(r.args.hold as f64)?;
    back(r)?;
    let limit = Duration::from_secs(r.args.limit);
    r.wait(&format!("all OSDs of {host} are up again"), limit, move |r| {
        osds.iter().all(|o| r.up().contains(o))
    })?;
    r.until_clean()
}

/// Where OSDs that are up listen for each other, and where they and the monitors do for clients.
struct Networks {
    cluster: Vec<(i32, IpAddr)>,
    public: Vec<IpAddr>,
}

fn networks(r: &Run) -> Result<Networks> {
    let mut public: Vec<IpAddr> =
        r.way.mons.iter().flat_map(|m| m.0.iter().filter_map(|a| Some(a.addr?.ip()))).collect();
    let up: Vec<i32> = r.up().iter().copied().collect();
    let (cluster, clients) = r.session.look(move |m| {
        let at = |o: i32| usize::try_from(o).ok().and_then(|i| m.osd_addrs.get(i));
        let ips = |a: &AddrVec| a.0.iter().filter_map(|a| Some(a.addr?.ip())).collect::<Vec<_>>();
        let cluster: Vec<(i32, IpAddr)> = up
            .iter()
            .filter_map(|o| Some((*o, at(*o)?)))
            .flat_map(|(o, a)| ips(&a.cluster).into_iter().map(move |ip| (o, ip)))
            .collect();
        let clients: Vec<IpAddr> =
            up.iter().filter_map(|o| at(*o)).flat_map(|a| ips(&a.client)).collect();
        (cluster, clients)
    })?;
    public.extend(clients);
    Ok(Networks { cluster, public })
}

fn partition(r: &mut Run, draw: &mut Draw) -> Result<()> {
    let osd = victim(r, draw)?;
    let name = format!("osd.{osd}");
    let d = r.cluster.daemon(&name).with_context(|| format!("{name} is no process of its own"))?;
    let space =
        space_of(d.pid).with_context(|| format!("the network of {name} may not be looked at"))?;
    let with = |o: &&i32| {
        r.cluster.daemon(&format!("osd.{o}")).is_some_and(|d| space_of(d.pid) == Some(space))
    };
    let gone: Vec<i32> = r.up().iter().filter(with).copied().collect();
    if gone.len() == r.up().len() {
        bail!("all OSDs share one network namespace: there is nobody to be cut off from");
    }
    let mut cut = Cut { space, to: Vec::new() };
    if space_of(std::process::id()) == Some(space) {
        // The load goes through the same namespace, and is to go on.
        let Networks { cluster, public } = networks(r)?;
        let far = cluster.iter().filter(|(o, _)| !gone.contains(o)).map(|(_, ip)| *ip);
        let far: BTreeSet<IpAddr> = far.collect();
        if far.iter().any(|ip| public.contains(ip)) {
            bail!(
                "{name} shares its network with this drill, whose load would be cut off, too; run \
                    the drill on another host or in \
                 another network namespace (the OSDs have no cluster network of their own, which \
                 alone could be cut)"
            );
        }
        cut.to =
            far.iter().map(|ip| format!("{ip}/{}", if ip.is_ipv6() { 128 } else { 32 })).collect();
    }
    cut.is_free()?;
    let names = gone.iter().map(|o| format!("osd.{o}")).collect::<Vec<_>>().join(", ");
    let from = if cut.to.is_empty() {
        "everybody".to_owned()
    } else {
        format!("{} in the cluster network", cut.to.join(", "))
    };
    r.event(&format!("{names} cut off from {from}: what is sent there is lost"));
    r.owe(Undo::Connect(cut.clone()))?;
    let told = r.status().checks.clone();
    cut.on()?;
    let down = gone.clone();
    r.noticed("the cluster notices", move |r| {
        down.iter().all(|o| !r.up().contains(o))
            || r.status().checks.iter().any(|c| c.starts_with("OSD") && !told.contains(c))
    })?;
    r.pass(r.args.hold as f64)?;
    r.put_back()?;
    let limit = Duration::from_secs(r.args.limit);
    r.wait(&format!("up again: {names}"), limit, move |r| gone.iter().all(|o| r.up().contains(o)))?;
    r.until_clean()
}

fn mon_leader_kill(r: &mut Run) -> Result<()> {
    let quorum = r.session.ask("quorum_status")?;
    let leader = quorum["quorum_leader_name"].as_str().unwrap_or_default().to_owned();
    let (in_map, in_quorum) = monitors(&quorum);
    if !keeps_quorum(in_map, in_quorum.len(), 1) {
        bail!(
            "{} of {in_map} monitors are in quorum; without the leader the others could not go on",
            in_quorum.len()
        );
    }
    let name = format!("mon.{leader}");
    let Some(d) = r.cluster.daemon(&name).cloned() else {
        bail!("the leader, {name}, does not run on this machine")
    };
    r.event(&format!("{name}, the leader, is killed (kill -9)"));
    r.owe(Undo::Start(Box::new(d.clone())))?;
    d.kill()?;
    let gone = leader.clone();
    r.noticed(&format!("a quorum without {name}"), move |r| {
        let q = &r.status().quorum;
        !q.is_empty() && !q.contains(&gone) && r.status().health.starts_with("HEALTH")
    })?;
    r.pass(r.args.hold as f64)?;
    back(r)?;
    let limit = Duration::from_secs(r.args.limit);
    r.wait(&format!("{name} is in quorum again"), limit, move |r| {
        r.status().quorum.contains(&leader)
    })?;
    r.until_clean()
}

fn restart_all(r: &mut Run) -> Result<()> {
    let all: Vec<_> = r.cluster.all().to_vec();
    let osds = r.up().len();
    r.event(&format!("all {} processes are killed (kill -9)", all.len()));
    // What is owed is worked off from its end: monitors come first, then managers, then OSDs.
    let rank = |name: &str| ["osd", "mds", "mgr", "mon"].iter().position(|k| name.starts_with(k));
    let mut order = all.clone();
    order.sort_by_key(|d| rank(&d.name));
    order.into_iter().try_for_each(|d| r.owe(Undo::Start(Box::new(d))))?;
    all.iter().try_for_each(Daemon::kill)?;
    back(r)?;
    let limit = Duration::from_secs(r.args.limit);
    let took = r.wait("the monitors answer", limit, |r| r.status().health.starts_with("HEALTH"))?;
    r.event(&format!("the monitors answer, {:.1} s after all was started", took.as_secs_f64()));
    r.wait(&format!("{osds} OSDs are up"), limit, move |r| r.up().len() >= osds)?;
    r.until_clean()
}

fn rolling_restart(r: &mut Run) -> Result<()> {
    let all: Vec<i32> = r.up().iter().copied().collect();
    for osd in all {
        if r.cluster.one.is_none() && r.cluster.daemon(&format!("osd.{osd}")).is_none() {
            continue;
        }
        take_down(r, osd, false)?;
        r.noticed(&format!("osd.{osd} is down"), |r| !r.up().contains(&osd))?;
        back(r)?;
        let limit = Duration::from_secs(r.args.limit);
        r.wait(&format!("osd.{osd} is up again"), limit, |r| r.up().contains(&osd))?;
        r.until_clean()?;
    }
    Ok(())
}

fn slow_disk(r: &mut Run, draw: &mut Draw) -> Result<()> {
    let osd = victim(r, draw)?;
    let Some(d) = r.cluster.daemon(&format!("osd.{osd}")).cloned() else {
        bail!("osd.{osd} is no process of its own")
    };
    r.event(&format!("osd.{osd} stands still four fifths of the time"));
    r.owe(Undo::Go(d.name.clone(), d.pid, d.born))?;
    let end = r.args.hold;
    for _ in 0..(end * 2).max(1) {
        d.freeze(true)?;
        r.pass(0.4)?;
        d.freeze(false)?;
        r.pass(0.1)?;
    }
    let told = r.status().checks.iter().cloned().collect::<Vec<_>>().join(", ");
    r.event(&format!(
        "it goes on; the cluster said meanwhile: {}",
        if told.is_empty() { "nothing" } else { &told }
    ));
    back(r)?;
    let limit = Duration::from_secs(r.args.limit);
    r.wait(&format!("osd.{osd} is up"), limit, |r| r.up().contains(&osd))?;
    r.until_clean()
}

/// The file that is an OSD's store.
fn store_of(r: &Run, osd: i32) -> Result<PathBuf> {
    let all = r.session.ask("osd metadata")?;
    let own = all.as_array().into_iter().flatten().find(|o| o["id"] == osd);
    let data = own.and_then(|o| o["osd_data"].as_str()).map(PathBuf::from);
    let data = data.or_else(|| r.cluster.one.as_ref().map(|d| d.join(format!("osd.{osd}"))));
    let block =
        data.with_context(|| format!("where osd.{osd} keeps its data is not known"))?.join("block");
    if !block.is_file() {
        bail!(
            "{} is no file on this machine: bits of a whole device are not flipped",
            block.display()
        );
    }
    Ok(block)
}

/// Places of records in a file that are of objects which are written only once.
fn places(path: &Path) -> Result<Vec<u64>> {
    let file = std::fs::File::open(path).with_context(|| format!("open {}", path.display()))?;
    let size = file.metadata().with_context(|| format!("look at {}", path.display()))?.len();
    let (mut out, mut at, mut part) = (Vec::new(), 0, vec![0; PART]);
    while at < size && out.len() < 100_000 {
        // Beyond the last data there are only holes.
        let Ok(data) = rustix::fs::seek(&file, SeekFrom::Data(at)) else { break };
        // Records stand at multiples of their size from the beginning of a block.
        at = data - data % 4096;
        let n = file.read_at(&mut part, at).with_context(|| format!("read {}", path.display()))?;
        if n == 0 {
            break;
        }
        let still = |c: &[u8]| {
            let object = c.get(8..16).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
            c.starts_with(MAGIC) && object.is_some_and(|o| o.is_multiple_of(STILL))
        };
        out.extend(
            part[..n]
                .chunks(4096)
                .enumerate()
                .filter(|(_, c)| still(c))
                .map(|(i, _)| at + i as u64 * 4096),
        );
        at += n as u64;
    }
    Ok(out)
}

fn bit_flip(r: &mut Run, draw: &mut Draw) -> Result<()> {
    let osd = victim(r, draw)?;
    let path = store_of(r, osd)?;
    take_down(r, osd, false)?;
    r.wait(&format!("osd.{osd} is down"), Duration::from_secs(r.args.limit), |r| {
        !r.up().contains(&osd)
    })?;
    let mut places = places(&path)?;
    if places.is_empty() {
        bail!("no data of this drill is in {} (encrypted or compressed?)", path.display());
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .with_context(|| format!("open {}", path.display()))?;
    r.rots()?;
    let mut flipped = 0;
    while flipped < FLIPS && !places.is_empty() {
        let place = places.swap_remove(draw.below(places.len() as u64) as usize) + 24;
        let mut byte = [0; 1];
        file.read_exact_at(&mut byte, place).with_context(|| format!("read {}", path.display()))?;
        file.write_all_at(&[byte[0] ^ 4], place)
            .with_context(|| format!("write {}", path.display()))?;
        flipped += 1;
    }
    file.sync_all().with_context(|| format!("write {}", path.display()))?;
    r.event(&format!("{flipped} bits are flipped in {}", path.display()));
    back(r)?;
    let limit = Duration::from_secs(r.args.limit);
    r.wait(&format!("osd.{osd} is up again"), limit, |r| r.up().contains(&osd))?;
    r.wait_clean(limit)?;
    // The repair looks at every object, and puts right what differs.
    let pool = r.geometry.pool;
    let pgs: Vec<String> = (0..r.geometry.pg_num).map(|i| format!("{pool}.{i:x}")).collect();
    let before = scrubbed(r)?;
    r.event(&format!(
        "all {} PGs of the pool are repaired: each object is read and compared",
        pgs.len()
    ));
    for pg in &pgs {
        r.session.mgr_command(&json!({"prefix": "pg repair", "pgid": pg}))?;
    }
    let took = r.wait("all PGs were read and compared", limit, move |r| {
        scrubbed(r).is_ok_and(|now| {
            now.len() == before.len() && now.iter().zip(&before).all(|(a, b)| a.1 != b.1)
        })
    })?;
    r.event(&format!("that took {:.1} s", took.as_secs_f64()));
    let (found, fixed) = repaired(r)?;
    r.event(&format!("the repairs found {found} errors and fixed {fixed}"));
    if fixed < found {
        bail!(
            "{} of {found} errors that were found were not fixed; the objects that have them are \
                removed",
            found - fixed
        );
    }
    r.until_clean()
}

/// When each PG of the pool was last scrubbed deeply, as the manager says.
fn scrubbed(r: &Run) -> Result<Vec<(String, String)>> {
    let dump = r
        .session
        .mgr_command(&json!({"prefix": "pg dump", "dumpcontents": ["pgs"], "format": "json"}))?;
    let v: Value = serde_json::from_slice(&dump).context("'pg dump': the answer is not JSON")?;
    let all = v["pg_stats"].as_array().or_else(|| v["pg_map"]["pg_stats"].as_array());
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let own = format!("{}.", r.geometry.pool);
    let pgs =
        all.into_iter().flatten().map(|p| (text(&p["pgid"]), text(&p["last_deep_scrub_stamp"])));
    let mut out: Vec<(String, String)> = pgs.filter(|(pg, _)| pg.starts_with(&own)).collect();
    out.sort();
    Ok(out)
}

/// Errors that repairs of the pool's PGs told of in the cluster's log, and how many of them were
/// fixed.
fn repaired(r: &Run) -> Result<(u64, u64)> {
    let log = r.session.command(&json!({"prefix": "log last", "num": 2000}))?;
    let log = String::from_utf8_lossy(&log);
    let own = format!(" {}.", r.geometry.pool);
    let (mut found, mut fixed) = (0, 0);
    // "… 2.1f repair 1 errors, 1 fixed"
    for line in log.lines().filter(|l| l.contains(&own)) {
        let Some((_, rest)) = line.split_once(" repair ") else { continue };
        let words: Vec<&str> = rest.split_whitespace().collect();
        if let [errors, "errors,", done, "fixed", ..] = words[..] {
            found += errors.parse().unwrap_or(0);
            fixed += done.parse().unwrap_or(0);
        }
    }
    Ok((found, fixed))
}

fn disk_full(r: &mut Run) -> Result<()> {
    let ratios = r.session.look(|m| [m.nearfull_ratio, m.backfillfull_ratio, m.full_ratio])?;
    // So little that whatever is used is more.
    let little = [0.000_001, 0.000_002, 0.000_003];
    r.owe(Undo::Ratios(ratios, little))?;
    r.event("the full ratio is lowered below what is used: no disk has room any more");
    for (prefix, ratio) in RATIOS.iter().zip(little) {
        r.command(&json!({"prefix": prefix, "ratio": f64::from(ratio)}))?;
    }
    r.noticed("the cluster tells that it is full", |r| {
        r.status().checks.iter().any(|c| c == "OSD_FULL" || c == "POOL_FULL")
    })?;
    r.pass(r.args.hold as f64)?;
    r.put_back()?;
    let limit = Duration::from_secs(r.args.limit);
    r.wait("there is room again", limit, |r| {
        !r.status().checks.iter().any(|c| c == "OSD_FULL" || c == "POOL_FULL")
    })?;
    r.until_clean()
}

fn disk_out(r: &mut Run, draw: &mut Draw) -> Result<()> {
    let osd = victim(r, draw)?;
    let weight = r.session.look(move |m| m.weight(osd))?;
    r.owe(Undo::Weight(osd, weight))?;
    r.event(&format!("osd.{osd} is taken out"));
    r.command(&json!({"prefix": "osd out", "ids": [osd.to_string()]}))?;
    if r.up().len() as u64 <= r.geometry.size {
        r.event("there are as many OSDs as copies: its data has nowhere to go");
        r.pass(r.args.hold as f64)?;
    } else {
        // The monitors' word for where data is comes a moment after the map.
        r.pass(2.0)?;
        let took = r.wait_clean(Duration::from_secs(r.args.limit))?;
        r.event(&format!("its data is elsewhere {:.1} s later", took.as_secs_f64()));
    }
    r.put_back()?;
    r.until_clean()
}

fn thrash(r: &mut Run, draw: &mut Draw) -> Result<()> {
    let end = std::time::Instant::now() + Duration::from_secs(r.args.minutes * 60);
    while std::time::Instant::now() < end {
        let own = r.cluster.one.is_none();
        match draw.below(4) {
            0 => disk_out(r, draw)?,
            1 if own => slow_disk(r, draw)?,
            2 => disk_full(r)?,
            _ => osd_kill(r, draw)?,
        }
        r.pass(1.0)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quorum_is_a_majority_of_all_monitors_in_the_map() {
        for (in_map, in_quorum, victims, keeps) in [
            (3, 3, 1, true),
            (3, 2, 1, false),
            (5, 3, 1, false),
            (5, 4, 1, true),
            (5, 5, 2, true),
            (1, 1, 1, false),
            (1, 0, 1, false),
        ] {
            assert_eq!(
                keeps_quorum(in_map, in_quorum, victims),
                keeps,
                "{in_map} {in_quorum} {victims}"
            );
        }
    }

    #[test]
    fn monitors_that_are_in_the_map_count_also_when_they_are_gone() {
        let status = serde_json::json!({"quorum_names": ["a", "c"], "monmap": {"mons": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}});
        assert_eq!(monitors(&status), (3, BTreeSet::from(["a", "c"])));
    }
}
