//! The command line.

use crate::dir::ClusterDir;
use crate::guests::With;
use crate::size::Life;
use crate::size::Size;
use crate::{
    backup, block, control, found, join, local, options, osd_prepare, process, status, store_cmd,
    up,
};
use clap::{Args as ClapArgs, CommandFactory, FromArgMatches, Parser, Subcommand};
use spirula_store::IoChoice;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

/// A small, fast storage cluster that speaks Ceph: one binary, every role.
#[derive(Debug, Parser)]
#[command(name = "spirula", version, propagate_version = true, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 already running / not running."
)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

/// Columns of what is printed.
const COLUMNS: usize = 100;

/// The groups in which 'spirula --help' shows the commands: each stands in one.
const GROUPS: &[(&str, &[&str])] = &[
    ("One machine", &["up", "down", "status", "backup"]),
    ("Hosts", &["create", "join", "token", "host"]),
    ("Daemons", &["mon", "mgr", "osd", "store"]),
    ("Images", &["image", "nbd"]),
    ("Lab", &["bench", "drill", "report"]),
    ("Tools", &["completions", "man", "help"]),
];

#[derive(Debug, Subcommand)]
enum Command {
    /// Create or restart a whole cluster on this machine, in one process, and say how to use it
    Up(UpArgs),
    /// Stop the cluster of a directory cleanly
    Down(DownArgs),
    /// Show whether the cluster runs, and its health
    Status(StatusArgs),
    /// Measure a cluster, Spirula's or Ceph's, and what is below it
    #[command(subcommand)]
    Bench(Box<spirula_lab::args::Bench>),
    /// Break something under a load that knows what it must read, put it back, and tell what came
    /// of it
    Drill(Box<spirula_lab::args::DrillArgs>),
    /// Make one page (HTML) of results of 'spirula bench' and 'spirula drill', side by side
    Report(spirula_lab::args::ReportArgs),
    /// Copy a cluster's directory, also while it runs: the copy is whole, of one moment, and can be
    /// run
    Backup(BackupArgs),
    /// Make a new cluster of several hosts: its first monitor and manager, on this host
    Create(CreateArgs),
    /// Bring this host into a cluster, with its OSDs
    Join(JoinArgs),
    /// Make, list or remove the tokens that bring new hosts in
    #[command(subcommand)]
    Token(TokenCommand),
    /// Start, stop or list the daemons of this host's directory, each a process of its own
    #[command(subcommand)]
    Host(HostCommand),
    /// Run one monitor in the foreground; or let one that lost its store join again
    #[command(args_conflicts_with_subcommands = true)]
    Mon {
        #[command(subcommand)]
        command: Option<MonCommand>,
        #[command(flatten)]
        daemon: DaemonArgs,
    },
    /// Run one manager in the foreground
    Mgr(DaemonArgs),
    /// Run one OSD in the foreground; or start or stop OSDs of a running 'spirula up'
    #[command(args_conflicts_with_subcommands = true)]
    Osd {
        #[command(subcommand)]
        command: Option<OsdCommand>,
        #[command(flatten)]
        daemon: DaemonArgs,
    },
    /// Check, show, export or import the store of a stopped daemon
    Store {
        #[command(subcommand)]
        command: store_cmd::StoreCommand,
    },
    /// Serve block images by the protocol NBD, to qemu, nbd-client and others that do not speak
    /// Ceph
    #[command(subcommand)]
    Nbd(NbdCommand),
    /// Make block devices of images, through FUSE and a loop device, or take them away
    #[command(subcommand)]
    Image(ImageCommand),
    /// Print shell completions, for example: spirula completions bash >
    /// /etc/bash_completion.d/spirula
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages (spirula.1, spirula-up.1, …) into a directory, for example
    /// /usr/local/share/man/man1
    Man {
        /// The directory; created if missing
        dir: PathBuf,
    },
    /// As 'spirula image map'
    #[command(hide = true)]
    Map(block::map::MapArgs),
    /// As 'spirula image unmap'
    #[command(hide = true)]
    Unmap(block::map::UnmapArgs),
    /// As 'spirula image ls'
    #[command(hide = true)]
    Mapped,
}

/// `spirula image …`.
#[derive(Debug, Subcommand)]
enum ImageCommand {
    /// Make a block device of an image, and print its name
    Map(block::map::MapArgs),
    /// Take such a device away
    Unmap(block::map::UnmapArgs),
    /// List such devices, each with its image
    Ls,
}

/// Arguments of `spirula up`.
#[derive(Debug, Clone, ClapArgs)]
pub struct UpArgs {
    /// Directory that holds the whole cluster; created if missing
    #[arg(long, default_value = "./spirula-data")]
    pub dir: PathBuf,
    /// Number of OSDs [default for a new cluster: 3]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub osds: Option<u32>,
    /// Capacity of each OSD, for example 10G; space is taken as it is used
    /// [default for a new cluster: 10G, or what fits]
    #[arg(long)]
    pub osd_size: Option<Size>,
    /// Copies that pools keep [default for a new cluster: one per OSD, at most 3]
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=10))]
    pub pool_size: Option<u8>,
    /// TCP port of the monitor [default for a new cluster: 3300]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// Number of monitors: 1, 3 or 5 [default for a new cluster: 1]
    #[arg(long, value_parser = mons)]
    pub mons: Option<u8>,
    /// Make the new cluster without authentication: whoever reaches it may do everything
    #[arg(long)]
    pub no_auth: bool,
    /// Address to listen on, by which clients reach this machine [default for a new cluster:
    /// 127.0.0.1]
    #[arg(long)]
    pub bind: Option<IpAddr>,
    /// Return when the cluster is ready, leaving it running in the background
    #[arg(long)]
    pub detach: bool,
    /// Daemons of Ceph's to run beside the cluster, where they are installed; may be given several
    /// times
    #[arg(long, value_enum)]
    pub with: Vec<With>,
    /// Memory for the whole process: caches and payloads in flight are kept below it
    /// [default: 512M, or nine tenths of what the control group allows, if that is less]
    #[arg(long)]
    pub memory: Option<Size>,
    /// Event-loop threads [default: one per two cores]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub reactors: Option<u32>,
    /// How the daemons of this process talk to each other
    #[arg(long, value_enum, default_value_t = Links::Memory)]
    pub links: Links,
    /// How stores read and write their devices: threads, uring (io_uring, or an error where
    /// the kernel refuses it), or auto, which takes what is faster
    #[arg(long, default_value = "auto", value_parser = clap::value_parser!(IoChoice), value_name = "HOW")]
    pub io: IoChoice,
    /// Print one JSON object when ready, nothing else on stdout
    #[arg(long)]
    pub json: bool,
    /// Set in the child that --detach starts: a file descriptor to report on.
    #[arg(long, hide = true)]
    pub report_fd: Option<i32>,
}

/// An odd number of monitors: an even one bears no more failures than one less.
fn mons(s: &str) -> Result<u8, String> {
    match s.parse() {
        Ok(n @ (1 | 3 | 5)) => Ok(n),
        _ => Err("give 1, 3 or 5".into()),
    }
}

/// How daemons of one process reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Links {
    /// Through memory
    Memory,
    /// Over TCP, as separate hosts would
    Tcp,
}

/// Arguments of `spirula mon|mgr|osd`. Every option of Ceph's daemons that we know can be given,
/// too: `--public-network 10.0.0.0/8`.
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = "Any option of ceph.conf can be given as well, for example --mon-host, \
        --public-network, \
                        --cluster-network, --crush-location. Order of precedence: command line, \
                        CEPH_ARGS, \
                        SPIRULA_<OPTION>, the file, 'ceph config set', defaults.")]
pub struct DaemonArgs {
    /// Directory of this host: stores, keyrings, sockets, ceph.conf
    #[arg(long, default_value = "./spirula-data")]
    pub dir: PathBuf,
    /// Directory of this daemon's data [default: DIR/<kind>.<id>]
    #[arg(long)]
    pub data: Option<PathBuf>,
    /// Configuration file [default: $SPIRULA_CONF, $CEPH_CONF, DIR/ceph.conf, /etc/ceph/ceph.conf]
    #[arg(long, short)]
    pub conf: Option<PathBuf>,
    /// Name of the monitor or manager, number of the OSD [default: a, x, none]
    #[arg(long, short)]
    pub id: Option<String>,
    /// The same with its kind, as osd.0
    #[arg(long, short, conflicts_with = "id")]
    pub name: Option<String>,
    /// An option as name=value
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// How an OSD reads and writes its devices: threads, uring (io_uring, or an error where
    /// the kernel refuses it), or auto, which takes what is faster
    #[arg(long, default_value = "auto", value_parser = clap::value_parser!(IoChoice), value_name = "HOW")]
    pub io: IoChoice,
}

impl DaemonArgs {
    /// The id given, without its kind.
    ///
    /// # Errors
    /// When `--name` is of another kind than `kind`.
    pub fn id_of(&self, kind: &str) -> anyhow::Result<Option<String>> {
        match (&self.name, &self.id) {
            (Some(name), _) => match name.split_once('.') {
                Some((k, id)) if k == kind && !id.is_empty() => Ok(Some(id.to_owned())),
                Some(_) => anyhow::bail!("--name {name}: this is not a {kind}"),
                None => Ok(Some(name.clone())),
            },
            (None, id) => Ok(id.clone()),
        }
    }
}

/// Arguments of `spirula create`.
#[derive(Debug, Clone, ClapArgs)]
pub struct CreateArgs {
    /// Directory of this host: stores, keyrings, sockets, ceph.conf; must be new
    #[arg(long, default_value = "./spirula-data")]
    pub dir: PathBuf,
    /// Address of this host where the others find its monitor, as 10.0.0.1, 10.0.0.1:3300 or
    /// [fd00::1]:3300
    #[arg(long)]
    pub addr: String,
    /// Name of the monitor
    #[arg(long, default_value = "a", value_parser = daemon_name)]
    pub id: String,
    /// The cluster's id [default: a new one]
    #[arg(long)]
    pub fsid: Option<String>,
    /// Networks that clients and daemons meet in, as 10.0.0.0/24
    #[arg(long)]
    pub public_network: Option<String>,
    /// Networks for the traffic among OSDs [default: the public one]
    #[arg(long)]
    pub cluster_network: Option<String>,
    /// Copies that pools keep
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=10))]
    pub pool_size: u8,
    /// What the copies of an object must not share
    #[arg(long, default_value = "host", value_parser = ["osd", "host", "rack", "room", "datacenter"])]
    pub failure_domain: String,
    /// Make it without authentication: whoever reaches it may do everything
    #[arg(long)]
    pub no_auth: bool,
    /// Start the daemons at once, in the background
    #[arg(long)]
    pub start: bool,
}

/// Arguments of `spirula mon rejoin`.
#[derive(Debug, Clone, ClapArgs)]
pub struct RejoinArgs {
    /// Name of the monitor
    #[arg(long, short, value_parser = daemon_name)]
    pub id: String,
    /// Directory of this host
    #[arg(long, default_value = "./spirula-data")]
    pub dir: PathBuf,
    /// Configuration file [default: as for 'spirula mon']
    #[arg(long, short)]
    pub conf: Option<PathBuf>,
}

/// Arguments of `spirula join`.
#[derive(Debug, Clone, ClapArgs)]
pub struct JoinArgs {
    /// What 'spirula token create' printed; @FILE reads it from a file, - from standard input,
    /// where no other user of this machine sees it as he sees a command line
    pub token: String,
    /// Directory of this host: stores, keyrings, sockets, ceph.conf; created if missing
    #[arg(long, default_value = "./spirula-data")]
    pub dir: PathBuf,
    /// Number of OSDs with their data in files of DIR [default: 1, or 0 with --device]
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=64))]
    pub osds: Option<u32>,
    /// Capacity of each of those, for example 100G; space is taken as it is used [default: 10G]
    #[arg(long)]
    pub osd_size: Option<Size>,
    /// A block device to make an OSD of; may be given several times. One that holds anything is
    /// refused
    #[arg(long)]
    pub device: Vec<PathBuf>,
    /// One of these devices that may be overwritten though it holds something; may be given several
    /// times
    #[arg(long, value_name = "PATH")]
    pub force: Vec<PathBuf>,
    /// Class of the OSDs' devices [default: what the kernel says, hdd or ssd]
    #[arg(long)]
    pub device_class: Option<String>,
    /// Place of the OSDs in the CRUSH tree, as 'root=default rack=r1' [default: host=<this host>]
    #[arg(long)]
    pub crush_location: Option<String>,
    /// Run a monitor here, too, of this name [default name: this host's]; the token must be for it
    #[arg(long, value_name = "NAME", num_args = 0..=1)]
    pub mon: Option<Option<String>>,
    /// Address of that monitor [default: in public_network, else on the way to the others; port
    /// 3300]
    #[arg(long)]
    pub mon_addr: Option<String>,
    /// Run a manager here, too, of this name [default name: this host's]
    #[arg(long, value_name = "NAME", num_args = 0..=1)]
    pub mgr: Option<Option<String>>,
    /// Name of this host [default: the kernel's]
    #[arg(long)]
    pub host: Option<String>,
    /// Do not start the daemons
    #[arg(long)]
    pub no_start: bool,
}

/// How `spirula token` finds the cluster.
#[derive(Debug, Clone, ClapArgs)]
pub struct AtArgs {
    /// Directory of a host that holds ceph.conf and the administrator's keyring
    #[arg(long, default_value = "./spirula-data")]
    pub dir: PathBuf,
    /// Configuration file [default: $SPIRULA_CONF, $CEPH_CONF, DIR/ceph.conf, /etc/ceph/ceph.conf]
    #[arg(long, short)]
    pub conf: Option<PathBuf>,
}

/// `spirula token …`.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token that brings one host in, once, and print it
    Create {
        #[command(flatten)]
        at: AtArgs,
        /// How long it is good, for example 30m, 8h, 7d
        #[arg(long, default_value = "1h")]
        life: Life,
        /// It may bring a monitor, too: its host gets the key that all monitors share
        #[arg(long)]
        mon: bool,
    },
    /// List them, with who used them
    Ls {
        #[command(flatten)]
        at: AtArgs,
    },
    /// Make one worthless
    Rm {
        /// Its name, as 'ls' shows it
        id: String,
        #[command(flatten)]
        at: AtArgs,
    },
}

/// `spirula host …`.
#[derive(Debug, Subcommand)]
enum HostCommand {
    /// Start daemons in the background; all that are there if none is named
    Start(HostArgs),
    /// Stop them cleanly
    Stop(HostArgs),
    /// List them
    Ls {
        /// Directory of this host
        #[arg(long, default_value = "./spirula-data")]
        dir: PathBuf,
    },
}

#[derive(Debug, ClapArgs)]
struct HostArgs {
    /// Daemons, as osd.3 or mon.a
    names: Vec<String>,
    /// Directory of this host
    #[arg(long, default_value = "./spirula-data")]
    dir: PathBuf,
}

#[derive(Debug, Subcommand)]
enum MonCommand {
    /// Give a monitor that lost its store an empty one, which it fills from the others
    Rejoin(RejoinArgs),
}

/// A name that a daemon can have.
fn daemon_name(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if text.is_empty() || text.len() > 64 || !text.chars().all(fits) {
        return Err("a name is made of letters, digits, '-', '_' and '.'".to_owned());
    }
    Ok(text.to_owned())
}

#[derive(Debug, ClapArgs)]
struct DownArgs {
    /// Directory of the cluster
    #[arg(long, default_value = "./spirula-data")]
    dir: PathBuf,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, ClapArgs)]
struct BackupArgs {
    /// Where the copy goes; it must not be there
    to: PathBuf,
    /// Directory of the cluster
    #[arg(long, default_value = "./spirula-data")]
    dir: PathBuf,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, ClapArgs)]
struct StatusArgs {
    /// Directory of the cluster
    #[arg(long, default_value = "./spirula-data")]
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum NbdCommand {
    /// Serve images until stopped
    Serve(block::nbd::ServeArgs),
}

#[derive(Debug, Subcommand)]
enum OsdCommand {
    /// Start a stopped OSD
    Start(OsdArgs),
    /// Stop an OSD cleanly; its PGs become degraded
    Stop(OsdArgs),
    /// Make the store of an OSD that cannot run anew, empty and with its number; the others fill it
    Recreate(OsdArgs),
    /// Make an OSD's store on a directory, file or block device
    Prepare(Box<osd_prepare::PrepareArgs>),
    /// Use what the device of a stopped OSD has grown by
    Grow(osd_prepare::GrowArgs),
}

#[derive(Debug, ClapArgs)]
struct OsdArgs {
    /// Number of the OSD
    id: i32,
    /// Directory of the cluster
    #[arg(long, default_value = "./spirula-data")]
    dir: PathBuf,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

/// The words of the command line, with Ceph's options of a daemon turned into `--set`.
///
/// # Errors
/// What is wrong with an option, and the nearest one there is.
pub fn expanded(words: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let is_daemon = |w: &OsString| ["mon", "mgr", "osd"].iter().any(|d| w == d);
    let sub = |w: &OsString| w.to_str().is_some_and(|w| w.chars().all(|c| c.is_ascii_alphabetic()));
    // 'spirula osd stop 0 …' is another command.
    if !words.get(1).is_some_and(is_daemon) || words.get(2).is_some_and(sub) {
        return Ok(words);
    }
    let own = Args::command();
    let own = own.find_subcommand("mon").into_iter().flat_map(clap::Command::get_arguments);
    let mut own: Vec<String> = own.filter_map(|a| a.get_long().map(str::to_owned)).collect();
    own.extend(["help", "version"].map(str::to_owned));
    options::expand_args(words, &own)
}

/// The commands in their groups, each with its first sentence.
fn grouped(program: &clap::Command) -> String {
    let mut out = String::new();
    let width = GROUPS.iter().flat_map(|(_, names)| *names).map(|n| n.len()).max().unwrap_or(0);
    for (group, names) in GROUPS {
        out.push_str(&format!("{group}:\n"));
        for name in *names {
            let about = program.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map_or_else(
                || "Print this, or what a command takes".to_owned(),
                ToString::to_string,
            );
            let (mut line, below) = (format!("  {name:width$} "), " ".repeat(width + 3));
            for word in about.split_whitespace() {
                if line.chars().count() + 1 + word.chars().count() > COLUMNS {
                    out.push_str(&line);
                    out.push('\n');
                    line = below.clone();
                }
                line.push(' ');
                line.push_str(word);
            }
            out.push_str(&line);
            out.push('\n');
        }
        out.push('\n');
    }
    out
}

impl Args {
    /// The definition of the command line.
    pub fn program() -> clap::Command {
        let program = Self::command();
        let commands = grouped(&program);
        program.help_template(format!(
            "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{commands}Options:\n{{options}}\
             {{after-help}}"
        ))
    }

    /// What these words ask for. What is wrong with them, or asks for help, ends the process.
    pub fn of(words: Vec<OsString>) -> Self {
        let matches = Self::program().get_matches_from(words);
        Self::from_arg_matches(&matches).unwrap_or_else(|e| e.exit())
    }

    /// Does what was asked.
    ///
    /// # Errors
    /// Whatever failed, with the reason; [`crate::Unmet`] for exit code 3.
    pub fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Up(a) => up::up(a),
            Command::Down(a) => control::down(&a.dir, a.json),
            Command::Status(a) => status::status(&a.dir, a.json),
            Command::Drill(a) => a.run(&crate::lab::lab()?),
            Command::Report(a) => a.run(&crate::lab::lab()?),
            Command::Bench(c) => c.run(&crate::lab::lab()?),
            Command::Backup(a) => backup::backup(&a.dir, &a.to, a.json),
            Command::Create(a) => found::create(&a),
            Command::Join(a) => join::join(&a),
            Command::Token(c) => join::token(&c),
            Command::Host(HostCommand::Start(a)) => {
                local::start(&ClusterDir::new(&a.dir)?, &a.names, false)
            }
            Command::Host(HostCommand::Stop(a)) => local::stop(&ClusterDir::new(&a.dir)?, &a.names),
            Command::Host(HostCommand::Ls { dir }) => local::list(&ClusterDir::new(&dir)?),
            Command::Mon { command: Some(MonCommand::Rejoin(a)), .. } => found::rejoin(&a),
            Command::Mon { command: None, daemon } => process::run(process::Kind::Mon, &daemon),
            Command::Mgr(a) => process::run(process::Kind::Mgr, &a),
            Command::Osd { command: Some(OsdCommand::Start(a)), .. } => {
                control::osd(&a.dir, "osd-start", a.id, a.json)
            }
            Command::Osd { command: Some(OsdCommand::Stop(a)), .. } => {
                control::osd(&a.dir, "osd-stop", a.id, a.json)
            }
            Command::Osd { command: Some(OsdCommand::Recreate(a)), .. } => {
                control::osd(&a.dir, "osd-recreate", a.id, a.json)
            }
            Command::Osd { command: Some(OsdCommand::Prepare(a)), .. } => osd_prepare::prepare(&a),
            Command::Osd { command: Some(OsdCommand::Grow(a)), .. } => osd_prepare::grow(&a),
            Command::Store { command } => store_cmd::run(&command),
            Command::Osd { command: None, daemon } => process::run(process::Kind::Osd, &daemon),
            Command::Nbd(NbdCommand::Serve(a)) => block::nbd::serve(&a),
            Command::Map(a) | Command::Image(ImageCommand::Map(a)) => block::map::map(&a),
            Command::Unmap(a) | Command::Image(ImageCommand::Unmap(a)) => block::map::unmap(&a),
            Command::Mapped | Command::Image(ImageCommand::Ls) => {
                block::map::mapped();
                Ok(())
            }
            Command::Completions { shell } => {
                // Into memory first: the generator panics when nobody reads what it writes.
                let mut text = Vec::new();
                clap_complete::generate(shell, &mut Self::program(), "spirula", &mut text);
                crate::quiet::bytes(&text);
                Ok(())
            }
            Command::Man { dir } => crate::man::write(Self::program(), &dir),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_consistent() {
        Args::program().debug_assert();
    }

    #[test]
    fn each_command_that_is_shown_stands_in_one_group() {
        let program = Args::program();
        let mut shown: Vec<&str> = program
            .get_subcommands()
            .filter(|c| !c.is_hide_set())
            .map(clap::Command::get_name)
            .collect();
        shown.push("help");
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, n)| *n).copied().collect();
        shown.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(shown, grouped);
        let help = program.clone().render_help().to_string();
        for c in program.get_subcommands().filter(|c| !c.is_hide_set()) {
            let about = c.get_about().expect("each says what it does").to_string();
            let first: Vec<&str> = about.split_whitespace().take(4).collect();
            assert!(help.contains(&first.join(" ")), "{help}");
        }
        assert!(help.contains("--version") && help.contains("Exit codes"), "{help}");
        assert!(help.lines().all(|l| l.chars().count() <= COLUMNS), "{help}");
    }

    #[test]
    fn old_names_of_commands_do_the_same() {
        for (old, new) in [
            (vec!["unmap", "/dev/loop3"], vec!["image", "unmap", "/dev/loop3"]),
            (vec!["map", "rbd/a", "--conf", "c"], vec!["image", "map", "rbd/a", "--conf", "c"]),
            (vec!["mapped"], vec!["image", "ls"]),
        ] {
            let parse = |words: &[&str]| {
                let words = std::iter::once(&"spirula").chain(words);
                format!("{:?}", Args::try_parse_from(words).unwrap().command)
            };
            let inner = |s: String| s[s.find("Args").unwrap_or(s.len())..].replace("))", ")");
            assert_eq!(inner(parse(&old)), inner(parse(&new)));
        }
    }

    #[test]
    fn bad_values_are_refused_with_the_name_of_the_option() {
        for (args, name) in [
            (vec!["spirula", "up", "--osds", "0"], "--osds"),
            (vec!["spirula", "up", "--osd-size", "big"], "--osd-size"),
            (vec!["spirula", "up", "--port", "70000"], "--port"),
            (vec!["spirula", "up", "--pool-size", "11"], "--pool-size"),
        ] {
            let e = Args::try_parse_from(args).unwrap_err().to_string();
            assert!(e.contains(name), "{e}");
        }
    }
}
