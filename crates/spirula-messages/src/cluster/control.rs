//! OSD ↔ monitor, OSD ↔ manager and manager ↔ monitor messages (types 0x5300–0x533f).
//!
//! Every front is one versioned struct whose unknown tail is skipped, so that a field can be added
//! without a break (what is promised between versions: `docs/upgrade.md`). Statistics travel as
//! blobs whose layout belongs to `spirula-maps`; this crate does not look inside.
//!
//! | sender → receiver | messages |
//! |---|---|
//! | OSD → monitor | [`OsdBoot`], [`OsdMarkMeDown`], [`OsdFailureReport`], [`OsdAlive`], [`OsdPgTemp`], [`PgCreateAsk`], [`PgsCreated`], [`PgMerges`], [`OsdBeacon`] |
//! | monitor → OSD | [`OsdMarkMeDownAck`], [`PgCreateGrant`], [`PgsCreatedAck`], [`OsdStop`], and Ceph's MOSDMap |
//! | OSD → manager | [`OsdReport`] |
//! | manager → OSD | [`OsdReportAck`], [`OsdScrub`], [`OsdForce`] |
//! | manager → monitor | [`MgrBeacon`], [`MgrDigest`], [`MgrRan`], [`MonRun`] |
//! | monitor → manager | [`MgrRun`], [`MonRan`] |
//!
//! Between monitors: [`super::quorum`].

use super::images::ImageLoads;
use super::quorum::CarriedPeer;
use crate::Body;
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use spirula_types::{AddrVec, EVersion, Epoch, OsdId, PgId, Uuid};
use std::collections::BTreeMap;

/// What an OSD subscribes to when the change that leads to its next map does not fit the map it
/// has: that next map (the subscription's `start`; the oldest that is kept, if that is newer) as a
/// whole, once.
pub const WHOLE_OSDMAP: &str = "osdmap.whole";

/// A last field, which an earlier release does not send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Since<T>(pub T);

impl<T: Encode> Encode for Since<T> {
    fn encode(&self, out: &mut Encoder) {
        self.0.encode(out);
    }
}

impl<T: Decode + Default> Decode for Since<T> {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        if d.is_empty() { Ok(Self::default()) } else { d.get().map(Self) }
    }
}

/// PGs that cannot begin to serve before they hear an OSD that is no member of theirs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outside {
    /// All of them.
    pub all: u32,
    /// Those among them that could do without it, were it down.
    pub spare: u32,
}

impl Encode for Outside {
    fn encode(&self, out: &mut Encoder) {
        out.u32(self.all);
        out.u32(self.spare);
    }
}

impl Decode for Outside {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        // An earlier release does not say.
        if d.is_empty() { Ok(Self::default()) } else { Ok(Self { all: d.u32()?, spare: d.u32()? }) }
    }
}

/// One control body: its type number, its fields in wire order, all of them in the front.
macro_rules! control {
    ($(#[$doc:meta])* $name:ident = $kind:literal { $($(#[$fdoc:meta])* $field:ident : $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty),* }

        impl Encode for $name {
            fn encode(&self, out: &mut Encoder) {
                out.versioned(1, 1, |_o| { $(self.$field.encode(_o);)* });
            }
        }
        impl Decode for $name {
            fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                d.versioned(stringify!($name), 1, |_d, _| Ok(Self { $($field: Decode::decode(_d)?),* }))
            }
        }
        impl Body for $name {
            const KIND: u16 = $kind;
            const VERSION: u16 = 1;
            const COMPAT: u16 = 1;
            const PRIORITY: u16 = 196;
            fn segments(&self) -> (Vec<u8>, Bytes) {
                (spirula_encoding::to_vec(self), Bytes::new())
            }
            fn read(_version: u16, front: &Bytes, _data: &Bytes) -> Result<Self, DecodeError> {
                Decoder::new(front).get()
            }
        }
    };
}
pub(super) use control;

/// What a primary says of a PG that is to be merged ([`PgMerges`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergeWord {
    /// OSD map with which this was true.
    pub epoch: Epoch,
    /// The PG is clean, the merge may begin. `false` takes back what was said before; then no
    /// other field counts.
    pub clean: bool,
    /// In that map the PG takes no writes because its merge is pending, and nothing was under way:
    /// every OSD of `acting` has all of it, durably.
    pub ready: bool,
    /// Its newest log entry.
    pub version: EVersion,
    /// First epoch of its last activation.
    pub les: Epoch,
    /// Last epoch in which it was clean.
    pub lec: Epoch,
    /// Its acting set, primary first (by shard, in erasure-coded pools).
    pub acting: Vec<OsdId>,
}

impl Encode for MergeWord {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u32(self.epoch);
            o.bool(self.clean);
            o.bool(self.ready);
            o.put(&self.version);
            o.u32(self.les);
            o.u32(self.lec);
            o.put(&self.acting);
        });
    }
}

impl Decode for MergeWord {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("MergeWord", 1, |d, _| {
            Ok(Self {
                epoch: d.u32()?,
                clean: d.bool()?,
                ready: d.bool()?,
                version: d.get()?,
                les: d.u32()?,
                lec: d.u32()?,
                acting: d.get()?,
            })
        })
    }
}

control! {
    /// PGs that may be merged, or are ready to be, or no longer are. Repeated until the map shows
    /// it, since the monitor believes a word for some seconds only. No answer.
    PgMerges = 0x530b {
        /// Sender, their primary.
        osd: OsdId,
        /// What it says of each.
        pgs: BTreeMap<PgId, MergeWord>,
    }
}

control! {
    /// "I am here": an OSD asks to be marked up with these addresses. Answered by the next
    /// OSD map that shows it up; the OSD repeats it until it sees one.
    OsdBoot = 0x5300 {
        /// Cluster the OSD belongs to; another cluster's OSD is ignored.
        fsid: Uuid,
        /// Its number.
        osd: OsdId,
        /// Its own identity, made when its store was made.
        uuid: Uuid,
        /// Where clients reach it.
        public: AddrVec,
        /// Where other OSDs reach it.
        cluster: AddrVec,
        /// Heartbeats over the cluster network.
        hb_back: AddrVec,
        /// Heartbeats over the public network.
        hb_front: AddrVec,
        /// Feature bits it offers.
        features: u64,
        /// Newest OSD map it has; the monitor sends everything after it.
        newest_map: Epoch,
        /// Epoch in which this process was up last, 0 if never: then it was marked down though it
        /// lived.
        was_up: Epoch,
        /// OSDs that its map shows up and that have not answered it lately on each network, or not
        /// yet.
        unheard: Vec<OsdId>,
        /// Enough of the others answer (`osd_heartbeat_min_healthy_ratio`).
        healthy: bool,
        /// Newest epoch in which it is not up that all its PGs have seen; 0 for none. What it
        /// served before, it serves no more.
        quiet: Epoch,
        /// Bytes its store can hold; gives the CRUSH weight (TiB) when the OSD has none.
        size_bytes: u64,
        /// `hdd`, `ssd`, `nvme`, or empty for "do not change".
        device_class: String,
        /// Where it wants to sit in the CRUSH tree (`host` → name …) if it is in no bucket yet.
        location: BTreeMap<String, String>,
        /// Facts for `osd metadata` (hostname, cpu, versions, device…).
        metadata: BTreeMap<String, String>,
        /// Milliseconds: the longest that its event loop stood still since it was up last. What is
        /// as long as the whole grace is no wrong down mark.
        stood_ms: Since<u32>,
    }
}

control! {
    /// "I run": sent to the monitor that the OSD is connected to, a few times a second. No answer.
    /// It says that what its peers miss is not its process.
    OsdBeacon = 0x530c {
        /// Milliseconds between two of them.
        every_ms: u32,
    }
}

control! {
    /// A clean stop: mark me down, and for dead, at once, without waiting for reports. Whoever
    /// sends it has given up its read leases and serves nothing any more.
    OsdMarkMeDown = 0x5301 {
        /// The OSD that stops.
        osd: OsdId,
        /// Its identity.
        uuid: Uuid,
        /// Epoch of its newest map.
        epoch: Epoch,
    }
}

control! {
    /// The down mark is durable; the OSD may go.
    OsdMarkMeDownAck = 0x5302 {
        /// The OSD that stops.
        osd: OsdId,
        /// Epoch in which it is down.
        epoch: Epoch,
    }
}

control! {
    /// An OSD says that another does not answer, or does again.
    OsdFailureReport = 0x5303 {
        /// Who reports.
        reporter: OsdId,
        /// Who is silent.
        target: OsdId,
        /// The incarnation meant: a report about an older one is dropped.
        target_public: AddrVec,
        /// Epoch of the reporter's map.
        epoch: Epoch,
        /// Milliseconds since the target last answered.
        failed_for_ms: u64,
        /// The connection was refused: nobody listens there, no grace is needed.
        refused: bool,
        /// Its process is certainly gone, so that its read leases need not be waited for.
        gone: bool,
        /// The target answers again; cancels this reporter's earlier report.
        alive: bool,
        /// Requests of clients that have waited at the reporter for over a second, and PGs led by
        /// it that cannot begin to serve, where the target is a member or is asked all the same.
        waiting: u32,
        /// Of these PGs, those that ask a target that is no member.
        outside: Outside,
        /// The target is silent on every path to it for longer than these milliseconds, which is as
        /// much as the reporter would expect by what it saw of it lately; 0 if that is not so.
        patience_ms: Since<u32>,
        /// For so many milliseconds it is silent on every path to it, in which the reporter ran.
        /// One network may be silent for longer.
        unheard_ms: Since<u32>,
    }
}

control! {
    /// Asks for `up_thru` ≥ `want`: a primary may serve an interval only when the map says
    /// that it was alive in it.
    OsdAlive = 0x5304 {
        /// The OSD.
        osd: OsdId,
        /// Epoch it must be recorded as alive through.
        want: Epoch,
    }
}

control! {
    /// May I make these PGs empty? Sent by a primary that has no trace of a PG of its own.
    PgCreateAsk = 0x5305 {
        /// The primary.
        osd: OsdId,
        /// The PGs, with the epoch the primary peers in: the name of its creation. Once a newer one
        /// is granted, no older one counts any more. 0 for the origin of the primary's own PG.
        pgids: BTreeMap<PgId, Epoch>,
    }
}

control! {
    /// Which of the PGs asked for have never existed. A PG that is neither granted nor refused
    /// is unknown to the newest map (pool gone), or another primary has been granted it since.
    PgCreateGrant = 0x5306 {
        /// May be created empty, with the epoch their history starts in.
        granted: BTreeMap<PgId, Epoch>,
        /// Of those granted, the creation it is for, as in [`PgCreateAsk`].
        creations: BTreeMap<PgId, Epoch>,
        /// Were created before: their data is somewhere; never start them empty. With the epoch
        /// of the creation that was accepted, 0 if the monitor does not know.
        refused: BTreeMap<PgId, Epoch>,
    }
}

control! {
    /// These PGs are durable on their acting sets; forget that they may be created empty.
    PgsCreated = 0x5307 {
        /// The primary.
        osd: OsdId,
        /// The PGs, with the epoch the primary created them in. Only the creation that was granted
        /// last can be accepted; it is then the PG's one and only.
        pgids: BTreeMap<PgId, Epoch>,
    }
}

control! {
    /// The removal from the creating set is durable. Only now may the primary acknowledge
    /// client writes to these PGs.
    PgsCreatedAck = 0x5308 {
        /// The PGs, with the epoch of the creation that was accepted; another than the
        /// primary's own means that its copy is not the PG.
        pgids: BTreeMap<PgId, Epoch>,
    }
}

control! {
    /// A primary asks for a temporary acting set while it backfills. An empty list ends it.
    OsdPgTemp = 0x5309 {
        /// The primary.
        osd: OsdId,
        /// Epoch it was decided in.
        epoch: Epoch,
        /// Wanted acting sets.
        pgs: BTreeMap<PgId, Vec<OsdId>>,
    }
}

control! {
    /// `osd stop N`: finish what is committing and stop.
    OsdStop = 0x530a {
        /// The OSD meant; any other ignores it.
        osd: OsdId,
        /// Epoch in which the monitor marked it down.
        epoch: Epoch,
    }
}

/// In [`OsdReport::small_paths`]: the cluster network.
pub const SMALL_BACK: u8 = 1;
/// In [`OsdReport::small_paths`]: the public network.
pub const SMALL_FRONT: u8 = 2;

control! {
    /// An OSD's periodic report to the manager.
    OsdReport = 0x5310 {
        /// The OSD.
        osd: OsdId,
        /// Its identity.
        uuid: Uuid,
        /// Counts reports of this incarnation.
        seq: u64,
        /// Epoch of its map.
        epoch: Epoch,
        /// When it was made.
        stamp: UTime,
        /// Encoded `spirula_maps` OSD statistics (space, heartbeat peers, latencies).
        stat: Bytes,
        /// Encoded `spirula_maps` statistics of the PGs it is primary of and that changed since
        /// the last acknowledged report (all of them when `full`).
        pgs: BTreeMap<PgId, Bytes>,
        /// The list is complete: what is missing is no longer ours.
        full: bool,
        /// Operations older than the complaint time.
        slow_ops: u32,
        /// Age of the oldest of them, milliseconds.
        slow_oldest_ms: u64,
        /// Peers to which a path carries small frames only: [`SMALL_BACK`], [`SMALL_FRONT`], or
        /// both.
        small_paths: BTreeMap<OsdId, u8>,
        /// Named counters (`op_r`, `op_w`, `op_in_bytes`, …), monotonic within an incarnation.
        perf: BTreeMap<String, u64>,
        /// Name of the machine that it runs on.
        hostname: String,
        /// Options that differ from their defaults, for `config show`: who set each to what, the
        /// one that counts first.
        config: BTreeMap<String, Vec<(String, String)>>,
        /// What was asked of block images, where the manager wants it counted
        /// ([`OsdReportAck::count_images_ms`]).
        images: Since<ImageLoads>,
    }
}

control! {
    /// The manager has the report.
    OsdReportAck = 0x5311 {
        /// Which one.
        seq: u64,
        /// How long to wait before the next, milliseconds.
        period_ms: u32,
        /// Send everything next time (the manager is new and knows nothing).
        want_full: bool,
        /// Count what is asked of block images for so long, milliseconds, and report it; 0: do not.
        count_images_ms: Since<u32>,
    }
}

control! {
    /// The manager passes on `pg scrub`, `pg deep-scrub`, `pg repair`, `osd scrub`…
    OsdScrub = 0x5312 {
        /// The PGs; empty means all the OSD leads.
        pgs: Vec<PgId>,
        /// Read the data, too.
        deep: bool,
        /// Repair what is found.
        repair: bool,
    }
}

control! {
    /// The manager passes on `pg force-recovery`, `pg cancel-force-backfill`…
    OsdForce = 0x5313 {
        /// The PGs.
        pgs: Vec<PgId>,
        /// Their backfill; else their recovery by the log.
        backfill: bool,
        /// They go before others; else no longer.
        on: bool,
    }
}

control! {
    /// A manager's life sign, every two seconds and on every change.
    MgrBeacon = 0x5320 {
        /// Cluster it belongs to.
        fsid: Uuid,
        /// Its global id, the identity of this incarnation.
        gid: u64,
        /// Its name (`mgr.x` is `x`).
        name: String,
        /// Where it listens.
        addr: AddrVec,
        /// It is ready to serve commands.
        available: bool,
        /// Modules it runs.
        modules: Vec<String>,
        /// Services it offers: name → URI.
        services: BTreeMap<String, String>,
        /// Commands it serves, each a JSON object in the form of `get_command_descriptions`
        /// (`{"sig": […], "help": …, "module": …, "perm": …, "flags": 8}`). May be empty when
        /// unchanged since the last beacon of this incarnation.
        commands: Vec<String>,
        /// Facts for `mgr metadata`.
        metadata: BTreeMap<String, String>,
    }
}

/// One health check as the manager found it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthInput {
    /// Ceph's name for it (`PG_DEGRADED`).
    pub code: String,
    /// 1 warning, 2 error.
    pub severity: u8,
    /// One line.
    pub summary: String,
    /// How many things the summary counts.
    pub count: u64,
    /// One line per thing.
    pub detail: Vec<String>,
}

impl Encode for HealthInput {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.str(&self.code);
            o.u8(self.severity);
            o.str(&self.summary);
            o.u64(self.count);
            o.put(&self.detail);
        });
    }
}

impl Decode for HealthInput {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("HealthInput", 1, |d, _| {
            Ok(Self {
                code: d.get()?,
                severity: d.u8()?,
                summary: d.get()?,
                count: d.u64()?,
                detail: d.get()?,
            })
        })
    }
}

control! {
    /// What the manager knows, for `status`, `df`, `health`, the full flags and quotas.
    MgrDigest = 0x5321 {
        /// The sender.
        gid: u64,
        /// When it was made.
        stamp: UTime,
        /// Encoded `spirula_maps::PgDigest`.
        digest: Bytes,
        /// Health checks the manager found.
        health: Vec<HealthInput>,
        /// Encoded service map, or empty.
        service_map: Bytes,
        /// Progress events: id → {message, fraction × 10⁶}.
        progress: BTreeMap<String, (String, u32)>,
    }
}

control! {
    /// A client asked a monitor for a command that the manager serves. Who asked may have it, as
    /// the monitor found. Answered by [`MgrRan`]; the leader sends it again until it has that.
    MgrRun = 0x5322 {
        /// The sender's run, which the answer repeats.
        boot: u64,
        /// Number of the request in that run.
        id: u64,
        /// JSON.
        cmd: Vec<String>,
        /// Whether who asked may not know of every file system, and then those that he may know of.
        /// Others are not there for him.
        only_fs: Since<(bool, Vec<String>)>,
        /// The asker's global id, and the transaction of his request: by these it is the same one,
        /// though he asks another monitor, or another leads. 0 where there is none.
        request: Since<(u64, u64)>,
    }
}

control! {
    /// What came of a [`MgrRun`].
    MgrRan = 0x5323 {
        /// As asked.
        boot: u64,
        /// As asked.
        id: u64,
        /// 0 or −errno.
        result: i32,
        /// For people.
        status: String,
        /// Output.
        output: Bytes,
    }
}

control! {
    /// A client asked the manager for a command that the monitors serve. Who asked may have it, as
    /// the manager found. Answered by [`MonRan`]; the manager sends it again in each new session
    /// with a monitor until it has that. The message's transaction is that of the client, so that
    /// the same request is done once.
    MonRun = 0x5324 {
        /// Number of the request in this run of the manager.
        id: u64,
        /// Who asked.
        asker: CarriedPeer,
        /// He has capabilities, which may limit him to some file systems; else he may do
        /// everything.
        limited: bool,
        /// JSON.
        cmd: Vec<String>,
        /// Its input.
        input: Bytes,
    }
}

control! {
    /// What came of a [`MonRun`].
    MonRan = 0x5325 {
        /// As asked.
        id: u64,
        /// 0 or −errno.
        result: i32,
        /// For people.
        status: String,
        /// Output.
        output: Bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn boot() -> OsdBoot {
        OsdBoot {
            fsid: Uuid([1; 16]),
            osd: 3,
            uuid: Uuid([2; 16]),
            public: AddrVec::default(),
            cluster: AddrVec::default(),
            hb_back: AddrVec::default(),
            hb_front: AddrVec::default(),
            features: u64::MAX,
            newest_map: 9,
            was_up: 0,
            unheard: vec![3],
            healthy: true,
            quiet: 0,
            size_bytes: 1 << 40,
            device_class: "ssd".into(),
            location: [("host".to_owned(), "a".to_owned())].into(),
            metadata: BTreeMap::new(),
            stood_ms: Since(7),
        }
    }

    #[test]
    fn a_last_field_that_an_earlier_release_does_not_send_is_nothing() {
        let mut front = boot().segments().0;
        front.truncate(front.len() - 4);
        let len = u32::from_le_bytes(front[2..6].try_into().unwrap()) - 4;
        front[2..6].copy_from_slice(&len.to_le_bytes());
        let got = OsdBoot::read(1, &front.into(), &Bytes::new()).unwrap();
        assert_eq!(got, OsdBoot { stood_ms: Since(0), ..boot() });
    }

    #[test]
    fn an_earlier_manager_counts_no_images() {
        let ack = OsdReportAck { seq: 1, period_ms: 2, want_full: true, count_images_ms: Since(9) };
        let mut front = ack.segments().0;
        assert_eq!(OsdReportAck::read(1, &front.clone().into(), &Bytes::new()).unwrap(), ack);
        front.truncate(front.len() - 4);
        let len = u32::from_le_bytes(front[2..6].try_into().unwrap()) - 4;
        front[2..6].copy_from_slice(&len.to_le_bytes());
        let got = OsdReportAck::read(1, &front.into(), &Bytes::new()).unwrap();
        assert_eq!(got, OsdReportAck { count_images_ms: Since(0), ..ack });
    }

    #[test]
    fn boot_round_trips_through_a_message() {
        let m = boot().into_message(7);
        assert_eq!((m.kind, m.tid, m.priority), (0x5300, 7, 196));
        assert_eq!(OsdBoot::from_message(&m).unwrap(), boot());
    }

    #[test]
    fn digest_with_health_round_trips() {
        let d = MgrDigest {
            gid: 4,
            stamp: UTime { sec: 5, nsec: 6 },
            digest: Bytes::from_static(b"xyz"),
            health: vec![HealthInput {
                code: "PG_DEGRADED".into(),
                severity: 1,
                summary: "degraded".into(),
                count: 2,
                detail: vec!["pg 1.0".into()],
            }],
            service_map: Bytes::new(),
            progress: [("a".to_owned(), ("b".to_owned(), 500_000))].into(),
        };
        assert_eq!(MgrDigest::from_message(&d.clone().into_message(0)).unwrap(), d);
    }

    #[test]
    fn a_newer_sender_with_more_fields_is_understood() {
        let mut out = Encoder::new();
        out.versioned(2, 1, |o| {
            o.i32(4);
            o.u32(99);
            o.str("a later field");
        });
        let alive = OsdAlive::read(1, &out.into_bytes(), &Bytes::new()).unwrap();
        assert_eq!(alive, OsdAlive { osd: 4, want: 99 });
    }

    proptest! {
        #[test]
        fn prop_garbage_is_refused_without_panic(bytes: Vec<u8>) {
            let b = Bytes::from(bytes);
            let _ = OsdBoot::read(1, &b, &b);
            let _ = OsdReport::read(1, &b, &b);
            let _ = MgrDigest::read(1, &b, &b);
            let _ = PgCreateGrant::read(1, &b, &b);
        }
    }
}
