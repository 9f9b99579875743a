//! Type numbers of Ceph's messages. Source: `docs/protocol/README.md` §4.

/// Keep-alive of sessions with lingering ops; `ceph ping` at a monitor.
pub const PING: u16 = 2;
/// The monitor map.
pub const MON_MAP: u16 = 4;
/// Asks for the monitor map.
pub const MON_GET_MAP: u16 = 5;
/// Asks for the space used and free.
pub const STATFS: u16 = 13;
/// Answers [`STATFS`].
pub const STATFS_REPLY: u16 = 14;
/// Subscribes to maps.
pub const MON_SUBSCRIBE: u16 = 15;
/// Ticket request outside the handshake.
pub const AUTH: u16 = 17;
/// Answers [`AUTH`].
pub const AUTH_REPLY: u16 = 18;
/// Asks for the newest version of a map.
pub const MON_GET_VERSION: u16 = 19;
/// Answers [`MON_GET_VERSION`].
pub const MON_GET_VERSION_REPLY: u16 = 20;
/// One file system's map.
pub const MDS_MAP: u16 = 21;
/// OSD maps.
pub const OSD_MAP: u16 = 41;
/// Operations on an object.
pub const OSD_OP: u16 = 42;
/// Answers [`OSD_OP`].
pub const OSD_OP_REPLY: u16 = 43;
/// A notification, or its completion.
pub const WATCH_NOTIFY: u16 = 44;
/// All file systems' maps.
pub const FS_MAP: u16 = 45;
/// Answers [`POOL_OP`].
pub const POOL_OP_REPLY: u16 = 48;
/// Creates or deletes a pool or a pool's snapshot.
pub const POOL_OP: u16 = 49;
/// A command for the monitors.
pub const MON_COMMAND: u16 = 50;
/// Answers [`MON_COMMAND`].
pub const MON_COMMAND_ACK: u16 = 51;
/// Cluster log entries.
pub const LOG: u16 = 52;
/// Answers [`LOG`].
pub const LOG_ACK: u16 = 53;
/// Asks for pool statistics.
pub const GET_POOL_STATS: u16 = 58;
/// Answers [`GET_POOL_STATS`].
pub const GET_POOL_STATS_REPLY: u16 = 59;
/// Asks a client to hold back ops on a range of objects.
pub const OSD_BACKOFF: u16 = 61;
/// Configuration options for the receiver.
pub const CONFIG: u16 = 62;
/// Snapshots to remove from pools (from an MDS).
pub const REMOVE_SNAPS: u16 = 90;
/// A command for one daemon (`ceph tell`).
pub const COMMAND: u16 = 97;
/// Answers [`COMMAND`].
pub const COMMAND_REPLY: u16 = 98;
/// A metadata server says that it is there.
pub const MDS_BEACON: u16 = 100;
/// Names of the file systems.
pub const FS_MAP_USER: u16 = 103;
/// Ranks to which a metadata server moves parts of its tree.
pub const MDS_OFFLOAD_TARGETS: u16 = 0x20a;
/// Introduces a daemon to the manager.
pub const MGR_OPEN: u16 = 0x700;
/// The manager tells how often to report.
pub const MGR_CONFIGURE: u16 = 0x701;
/// A daemon's counters.
pub const MGR_REPORT: u16 = 0x702;
/// The manager map.
pub const MGR_MAP: u16 = 0x704;
/// Ends a daemon's session with the manager.
pub const MGR_CLOSE: u16 = 0x708;
/// A command for the manager.
pub const MGR_COMMAND: u16 = 0x709;
/// Answers [`MGR_COMMAND`].
pub const MGR_COMMAND_REPLY: u16 = 0x70a;

/// Priority of client operations.
pub const PRIORITY_CLIENT_OP: u16 = 63;
/// Priority of nearly everything else.
pub const PRIORITY_DEFAULT: u16 = 127;
/// Priority of everything a monitor sends.
pub const PRIORITY_MON: u16 = 196;
