//! The command line of the lab, and what its commands share.

use crate::prelude::*;
use crate::session::Way;
use clap::builder::TypedValueParser as _;
use clap::{Args, Subcommand, ValueEnum};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Finds the way to a cluster.
pub type Connect = Box<dyn Fn(&Target) -> Result<Way>>;

/// What the program lends to the lab.
pub struct Lab {
    /// How to reach the cluster that was named.
    pub connect: Connect,
    /// Prints a line on standard output.
    pub print: fn(&str),
    /// Somebody wants it to end, tidily.
    pub stop: Arc<AtomicBool>,
}

impl Lab {
    /// Prints a line.
    pub fn say(&self, text: impl AsRef<str>) {
        (self.print)(text.as_ref());
    }

    /// Somebody wants it to end.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Which cluster.
#[derive(Clone, Debug, Args)]
pub struct Target {
    /// Directory of 'spirula up' or of this host's daemons
    #[arg(long, default_value = "./spirula-data")]
    pub dir: PathBuf,
    /// A cluster's ceph.conf, Spirula's or Ceph's [default: $SPIRULA_CONF, DIR/ceph.conf,
    /// $CEPH_CONF, /etc/ceph/ceph.conf]
    #[arg(long, short)]
    pub conf: Option<PathBuf>,
    /// User whose keyring is used
    #[arg(long, short = 'n', default_value = "client.admin")]
    pub name: String,
}

/// Where results go.
#[derive(Clone, Debug, Args)]
pub struct Output {
    /// Directory for the results [default: spirula-results/TIME-WHAT]
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// What the report calls this run
    #[arg(long)]
    pub label: Option<String>,
    /// Print the result as JSON, and no progress
    #[arg(long)]
    pub json: bool,
}

/// `spirula bench …`.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Write and read objects, as 'rados bench' does, and more
    Objects(ObjectsArgs),
    /// Read and write directories or devices, each alone and then all at once; says which is fit
    /// for a journal
    Disk(DiskArgs),
    /// Send and receive between this host and others
    Net(NetArgs),
    /// Write to a block image by fio's rbd engine
    Block(BlockArgs),
    /// Put, read, list and delete objects of an S3 endpoint
    S3(S3Args),
    /// Run a MariaDB of its own in a directory, with more and more users
    Mysql(MysqlArgs),
    /// All of them, one after the other, and a page of what came of it
    All(AllArgs),
    /// 'objects' on two clusters in turn, A B A B, and their ratios
    Compare(CompareArgs),
    /// Remove what runs of this host that were killed left in a pool
    Clean(CleanArgs),
    /// Generate load for a 'spirula bench objects --on' that started this
    #[command(hide = true)]
    Generator(GeneratorArgs),
}

/// Loads as the field reports ran them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// Write, then read at random: 10 s with 16, 30 s with 32, 60 s with 64 in flight
    Thesis,
    /// 300 s written, then read in order, by 1 and by 4 generators
    Centerdevice,
    /// 30 s with 100 in flight, written, then read
    Cern,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// New objects
    Write,
    /// Reads in order
    Seq,
    /// Reads at random
    Rand,
    /// Writes at random into objects that are there
    Randwrite,
    /// Reads and writes at random
    Mixed,
}

/// Arguments of `spirula bench objects`.
#[derive(Clone, Debug, Args)]
pub struct ObjectsArgs {
    /// What to do, one after the other
    #[arg(value_enum, default_values_t = [Kind::Write, Kind::Seq, Kind::Rand])]
    pub kinds: Vec<Kind>,
    #[command(flatten)]
    pub(crate) target: Target,
    /// The pool [default: spirula-bench, made for the run and removed after it]
    #[arg(long, short)]
    pub pool: Option<String>,
    /// Bytes per operation, for example 4K, 4M
    #[arg(long, short = 'b', default_value = "4M", value_parser = bytes_arg)]
    pub size: u64,
    /// Bytes per object, a multiple of --size [default: --size, or 4M for randwrite and mixed]
    #[arg(long, short = 'O', value_parser = bytes_arg)]
    pub object_size: Option<u64>,
    /// Operations in flight, of each generator [default: 16, or as the preset has it]
    #[arg(long, short, value_parser = clap::value_parser!(u64).range(1..=65536))]
    pub threads: Option<u64>,
    /// Seconds of each load [default: 10, or as the preset has it]
    #[arg(long, short, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub seconds: Option<u64>,
    /// Seconds before each load that are not counted
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=3600))]
    pub warm_up: u64,
    /// How often each load is repeated
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub repeats: u64,
    /// Operations begun a second, together; latency counts from when one was due, so that a cluster
    /// that stands still cannot hide it
    #[arg(long)]
    pub rate: Option<f64>,
    /// Of 100 operations of 'mixed' so many read
    #[arg(long, default_value_t = 70, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub read_percent: u8,
    /// Objects for reads and random writes, of each generator [default: what 'write' wrote, or 256
    /// MiB of them]
    #[arg(long)]
    pub objects: Option<u64>,
    /// Generators, each a client of its own with a thread of its own [default: 1, or one for each
    /// host of --on]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub generators: Option<u64>,
    /// Hosts on which the generators run, each as a process of its own, in turn; localhost is this
    /// one. The cluster's ceph.conf and keyring must be there, under the same path
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub on: Vec<String>,
    /// How spirula is started on a host that is not localhost
    #[arg(long, value_name = "COMMAND", default_value = "ssh -oBatchMode=yes {} spirula")]
    pub via: String,
    /// Find how many in flight are enough: doubles --threads from 1 until it gives no more
    #[arg(long, conflicts_with = "rate")]
    pub find_knee: bool,
    /// Loads of a field report; --size, --threads, --seconds and --generators count instead of its
    /// own
    #[arg(long, value_enum)]
    pub preset: Option<Preset>,
    /// A result of 'spirula bench disk', for the figure that could be expected
    #[arg(long)]
    pub baseline: Option<PathBuf>,
    /// Leave the objects; 'spirula bench clean' removes them
    #[arg(long)]
    pub no_cleanup: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Arguments of `spirula bench generator`.
#[derive(Clone, Debug, Args)]
pub struct GeneratorArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Bytes of payloads on their way in that it may hold
    #[arg(long, default_value_t = 64 << 20)]
    pub memory: usize,
}

/// What reads and writes devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// fio, if it is installed
    Auto,
    /// fio
    Fio,
    /// This program
    Own,
}

/// Arguments of `spirula bench disk`.
#[derive(Clone, Debug, Args)]
pub struct DiskArgs {
    /// Directories, which get a file for the time, or block devices, which are only read
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// Seconds of each test
    #[arg(long, short, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// How often all of it is repeated
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub repeats: u64,
    /// Bytes of the file, or of the device's beginning [at most half of what is free]
    #[arg(long, default_value = "1G", value_parser = file_size_arg)]
    pub file_size: u64,
    /// What reads and writes
    #[arg(long, value_enum, default_value_t = Engine::Auto)]
    pub engine: Engine,
    /// Write to block devices, too: WHAT IS ON THEM IS LOST (one that is mounted or in use is
    /// refused)
    #[arg(long)]
    pub destroy: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Arguments of `spirula bench net`.
#[derive(Clone, Debug, Args)]
pub struct NetArgs {
    /// Serve measurements of other hosts, until interrupted; whoever reaches the port may use it
    #[arg(long, value_name = "ADDRESS[:PORT]", num_args = 0..=1, default_missing_value = "0.0.0.0", conflicts_with = "to")]
    pub listen: Option<String>,
    /// Hosts that serve: each alone, then all at once
    #[arg(long, value_name = "HOST[:PORT]", value_delimiter = ',', required_unless_present_any = ["listen", "on"])]
    pub to: Vec<String>,
    /// Measure between all of these hosts, each from each and each from all others at once; the
    /// address is the one under which the others reach it, for example that on the cluster network
    #[arg(long, value_name = "HOST[=ADDRESS]", value_delimiter = ',', conflicts_with_all = ["listen", "to"])]
    pub on: Vec<String>,
    /// How spirula is started on a host of --on that is not localhost
    #[arg(long, value_name = "COMMAND", default_value = "ssh -oBatchMode=yes {} spirula")]
    pub via: String,
    /// Serve until standard input ends, for a 'spirula bench net --on' that started this
    #[arg(long, hide = true, requires = "listen")]
    pub until_eof: bool,
    /// Print the result and keep nothing, for the same
    #[arg(long, hide = true, requires = "to")]
    pub relay: bool,
    /// Seconds of each test
    #[arg(long, short, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// Streams of the tests with several
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=64).map(usize::from))]
    pub streams: usize,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Loads of `spirula bench block`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BlockPreset {
    /// Random writes of 4 KiB
    Randwrite,
    /// 16 KiB, 70 % reads, 30 in flight, as 30 jobs of a virtual machine: 6 times for 100 s
    Railway,
}

/// Arguments of `spirula bench block`.
#[derive(Clone, Debug, Args)]
pub struct BlockArgs {
    /// The load
    #[arg(value_enum, default_value_t = BlockPreset::Randwrite)]
    pub preset: BlockPreset,
    #[command(flatten)]
    pub(crate) target: Target,
    /// The pool [default: spirula-bench, made for the run and removed after it]
    #[arg(long, short)]
    pub pool: Option<String>,
    /// Operations in flight
    #[arg(long, short, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub threads: u64,
    /// Bytes of the image
    #[arg(long, default_value = "1G", value_parser = file_size_arg)]
    pub image_size: u64,
    /// Seconds [default: 30; railway: 100]
    #[arg(long, short, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: Option<u64>,
    /// How often it is repeated [default: 1; railway: 6]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub repeats: Option<u64>,
    /// A result of 'spirula bench disk', for the figure that could be expected
    #[arg(long)]
    pub baseline: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// What `spirula bench s3` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum S3Kind {
    /// New objects
    Put,
    /// Reads at random of what 'put' wrote, compared with it
    Get,
    /// Lists of 1000 objects
    List,
    /// Deletes what 'put' wrote
    Delete,
}

impl S3Kind {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::List => "list",
            Self::Delete => "delete",
        }
    }
}

/// Arguments of `spirula bench s3`.
#[derive(Clone, Debug, Args)]
pub struct S3Args {
    /// What to do, one after the other
    #[arg(value_enum, default_values_t = [S3Kind::Put, S3Kind::Get, S3Kind::List, S3Kind::Delete])]
    pub kinds: Vec<S3Kind>,
    /// Directory of 'spirula up --with rgw', for endpoint and keys
    #[arg(long, default_value = "./spirula-data")]
    pub dir: PathBuf,
    /// The endpoint [default: that of --dir]
    #[arg(long, value_name = "http://HOST:PORT")]
    pub endpoint: Option<String>,
    /// A file with the keys: JSON with access_key and secret_key
    /// [default: DIR/rgw.json, else $AWS_ACCESS_KEY_ID and $AWS_SECRET_ACCESS_KEY]
    #[arg(long, value_name = "FILE")]
    pub keys: Option<PathBuf>,
    /// What the endpoint calls its place
    #[arg(long, default_value = "us-east-1")]
    pub region: String,
    /// A bucket that is there [default: spirula-bench, made for the run and removed after it]
    #[arg(long)]
    pub bucket: Option<String>,
    /// Bytes of an object, for example 4K, 4M
    #[arg(long, short = 'b', default_value = "4M", value_parser = bytes_arg)]
    pub size: u64,
    /// Requests in flight, each on a connection and a thread of its own
    #[arg(long, short, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=512))]
    pub threads: u64,
    /// Seconds of each load; 'delete' takes as long as it takes
    #[arg(long, short, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub seconds: u64,
    /// How often each load is repeated
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub repeats: u64,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Arguments of `spirula bench mysql`.
#[derive(Clone, Debug, Args)]
pub struct MysqlArgs {
    /// Directory for its data
    #[arg(value_name = "DIR", required_unless_present = "image", conflicts_with = "image")]
    pub place: Option<PathBuf>,
    /// An image for its data: mapped by this program and mounted for the time; it gets an ext4 if
    /// it holds nothing. Needs root
    #[arg(long, value_name = "POOL/IMAGE", value_parser = image_arg)]
    pub image: Option<String>,
    #[command(flatten)]
    pub(crate) target: Target,
    /// First number of users
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=150))]
    pub users_from: u64,
    /// Last number of users
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=150))]
    pub users_to: u64,
    /// Iterations of a sample
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub iterations: u64,
    /// Samples for each number of users
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub samples: u64,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Arguments of `spirula bench all`.
#[derive(Clone, Debug, Args)]
pub struct AllArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// A second of each instead of half a minute
    #[arg(long)]
    pub quick: bool,
    /// Directory on the disk to measure, and for MariaDB [default: --dir, or that of the results]
    #[arg(long)]
    pub path: Option<PathBuf>,
    /// The pool [default: spirula-bench, made for the run and removed after it]
    #[arg(long, short)]
    pub pool: Option<String>,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Arguments of `spirula bench compare`.
#[derive(Clone, Debug, Args)]
pub struct CompareArgs {
    /// The other cluster's ceph.conf
    #[arg(long, value_name = "CONF")]
    pub with: PathBuf,
    /// What the report calls the first
    #[arg(long, default_value = "A")]
    pub label_a: String,
    /// What it calls the other
    #[arg(long, default_value = "B")]
    pub label_b: String,
    #[command(flatten)]
    pub(crate) objects: ObjectsArgs,
}

/// Arguments of `spirula report`.
#[derive(Clone, Debug, Args)]
pub struct ReportArgs {
    /// Directories of results, or directories of such directories
    #[arg(required = true)]
    pub results: Vec<PathBuf>,
    /// The page to write; it is replaced
    #[arg(long, short, default_value = "report.html")]
    pub out: PathBuf,
}

impl ReportArgs {
    /// Writes the page.
    ///
    /// # Errors
    /// When a result cannot be read, or the page not be written.
    pub fn run(&self, lab: &Lab) -> Result<()> {
        crate::report::report(lab, self)
    }
}

/// Arguments of `spirula drill`.
#[derive(Clone, Debug, Args)]
pub struct DrillArgs {
    /// What happens
    #[arg(value_enum)]
    pub scene: crate::drill::scenes::Scene,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Do not ask whether the cluster may be hurt
    #[arg(long)]
    pub yes: bool,
    /// The pool of the load [default: spirula-drill, made for the drill and removed after it]
    #[arg(long, short)]
    pub pool: Option<String>,
    /// Operations of the load a second; latency counts from when one was due
    #[arg(long, default_value_t = 200.0)]
    pub rate: f64,
    /// Objects of the load
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub objects: u64,
    /// Seconds of load before anything happens
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub before: u64,
    /// Seconds for which the fault lasts once it was noticed
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub hold: u64,
    /// Seconds of load after all is clean again
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub after: u64,
    /// Seconds within which each single thing must come about
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub limit: u64,
    /// Minutes of 'thrash'
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1440))]
    pub minutes: u64,
    /// The OSD that is hurt [default: one is drawn]
    #[arg(long)]
    pub osd: Option<i32>,
    /// What is drawn follows from it
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub(crate) output: Output,
}

impl DrillArgs {
    /// Plays it.
    ///
    /// # Errors
    /// When the cluster did not keep its promise, or could not be put back.
    pub fn run(&self, lab: &Lab) -> Result<()> {
        crate::drill::drill(lab, self)
    }
}

/// Arguments of `spirula bench clean`.
#[derive(Clone, Debug, Args)]
pub struct CleanArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// The pool
    #[arg(long, short, default_value = crate::objects::POOL)]
    pub pool: String,
    /// Runs of that host, which must not be running any more [default: this one, whose running ones
    /// are left alone]
    #[arg(long)]
    pub host: Option<String>,
}

/// `POOL/IMAGE`.
///
/// # Errors
/// When it is none, or names a snapshot.
pub fn image_arg(text: &str) -> Result<String, String> {
    let whole = text.split('/').count() >= 2 && text.split('/').all(|part| !part.is_empty());
    if !whole || text.contains('@') || text.starts_with('-') {
        return Err(format!("'{text}' is no image; write POOL/IMAGE"));
    }
    Ok(text.to_owned())
}

/// `1G` and its like.
///
/// # Errors
/// When it is no size from 32 MiB to 1 TiB.
pub fn file_size_arg(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no size from 32M to 1024G; write for example 512M, 4G");
    let t = text.trim().to_ascii_lowercase();
    let t = t.trim_end_matches("ib").trim_end_matches('b');
    let (number, shift) = t
        .strip_suffix('g')
        .map(|n| (n, 30))
        .or_else(|| t.strip_suffix('m').map(|n| (n, 20)))
        .ok_or_else(wrong)?;
    let n: u64 = number.parse().map_err(|_| wrong())?;
    Some(n)
        .filter(|n| *n <= 1 << 20)
        .map(|n| n << shift)
        .filter(|n| (32 << 20..=1 << 40).contains(n))
        .ok_or_else(wrong)
}

/// `4M` and its like.
///
/// # Errors
/// When it is no size from 1 byte to 64 MiB.
pub fn bytes_arg(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no size from 1 to 64M; write for example 4096, 4K, 4M");
    let t = text.trim().to_ascii_lowercase();
    let t = t.trim_end_matches("ib").trim_end_matches('b');
    let (number, shift) = match t.chars().last() {
        Some('k') => (t.trim_end_matches('k'), 10),
        Some('m') => (t.trim_end_matches('m'), 20),
        _ => (t, 0),
    };
    let n: u64 = number.parse().map_err(|_| wrong())?;
    Some(n << shift).filter(|n| (1..=64 << 20).contains(n) && number.len() < 9).ok_or_else(wrong)
}

impl Bench {
    /// Does it.
    ///
    /// # Errors
    /// Whatever failed, with the reason.
    pub fn run(&self, lab: &Lab) -> Result<()> {
        match self {
            Self::Objects(a) => crate::objects::objects(lab, a),
            Self::Disk(a) => crate::disk::disk(lab, a),
            Self::Net(a) => crate::net::net(lab, a),
            Self::Block(a) => crate::block::block(lab, a),
            Self::S3(a) => crate::s3::s3(lab, a),
            Self::Mysql(a) => crate::mysql::mysql(lab, a),
            Self::All(a) => crate::all::all(lab, a),
            Self::Compare(a) => crate::compare::compare(lab, a),
            Self::Clean(a) => crate::objects::clean(lab, a),
            Self::Generator(a) => crate::generator::generator(lab, a),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_nonsense_is_refused() {
        assert_eq!(bytes_arg("4K"), Ok(4096));
        assert_eq!(bytes_arg("4MiB"), Ok(4 << 20));
        assert_eq!(bytes_arg("123"), Ok(123));
        for bad in ["", "0", "K", "4G", "65M", "99999999999M", "-1", "1.5M"] {
            assert!(bytes_arg(bad).is_err(), "{bad}");
        }
    }
}
