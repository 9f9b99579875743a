//! The monitor's shell: its mailbox, its links, and the thread that makes its log durable.

use super::host;
use crate::dir::{Manifest, write_durably};
use crate::keys::MonAuth;
use anyhow::{Context, anyhow, bail};
use spirula_auth::db::AuthDb;
use spirula_messages::Message;
use spirula_messenger::auth::METHOD_CEPHX;
use spirula_mon::image::Identity;
use spirula_mon::{
    Access, InitialPool, MkfsParams, Mon, MonEffect, MonEvent, MonStore, NewMon, NewOsd, Opening,
    Sort, StoreError, mkfs,
};
use spirula_quorum::{MemberId, Persist, Snapshot};
use spirula_runtime::auth::Login;
use spirula_runtime::cephx::{MonDoor, MonPeer, Realm};
use spirula_runtime::{
    Answers, Daemon, Hub, Link, Listener, Mailbox, NetEvent, Peer, Room, Service, clock, entropy,
    mailbox,
};
use spirula_settings::Settings;
use spirula_types::{AddrVec, EntityType, Uuid};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, mpsc};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Between two ticks.
const TICK: Duration = Duration::from_millis(100);
/// Between two looks at how full the disk is.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Between two attempts to reach another monitor.
const RECONNECT: Duration = Duration::from_millis(200);
/// Before a full file system is tried again.
const FULL_RETRY: Duration = Duration::from_millis(200);

/// What arrives in the monitor's mailbox.
pub enum MonMail {
    /// Network.
    Net(NetEvent),
    /// Writes up to that number are durable.
    Persisted(u64),
    /// Stop; answers when done.
    Stop(oneshot::Sender<()>),
}

impl From<NetEvent> for MonMail {
    fn from(e: NetEvent) -> Self {
        Self::Net(e)
    }
}

fn draw<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    entropy::fill(&mut bytes).context("draw random bytes")?;
    Ok(bytes)
}

fn now() -> spirula_mon::Now {
    spirula_mon::Now { mono: clock::monotonic(), wall: clock::wall() }
}

/// Makes the founding monitors' stores of a new cluster: name, addresses and directory of each.
///
/// # Errors
/// When they cannot be written.
pub fn create(
    mons: &[(String, AddrVec, PathBuf)],
    m: &Manifest,
    pool: &str,
    pgs: u32,
    host: &str,
    users: AuthDb,
) -> anyhow::Result<()> {
    let osds = m.osd_uuids.iter().enumerate().map(|(id, uuid)| NewOsd {
        id: id as i32,
        uuid: *uuid,
        size_bytes: m.osd_size,
        host: host.to_owned(),
        device_class: String::new(),
    });
    let founders = mons.iter().map(|(name, addrs, _)| {
        Ok(NewMon { name: name.clone(), addrs: addrs.clone(), uuid: Uuid(draw()?) })
    });
    let params = MkfsParams {
        fsid: m.fsid,
        mons: founders.collect::<anyhow::Result<_>>()?,
        osds: osds.collect(),
        // One machine: copies spread over its OSDs.
        failure_domain: "osd".to_owned(),
        defaults: [
            ("osd_pool_default_size", m.pool_size.to_string()),
            ("osd_pool_default_pg_autoscale_mode", "off".to_owned()),
            ("mon_allow_pool_delete", "true".to_owned()),
            ("mon_allow_pool_size_one", "true".to_owned()),
        ]
        .map(|(k, v)| (k.to_owned(), v))
        .into(),
        pools: vec![InitialPool {
            name: pool.to_owned(),
            pg_num: pgs,
            size: 0,
            application: "rados".to_owned(),
        }],
        users,
        service_keys: crate::keys::first_service_keys()?,
    };
    let first = mkfs(&params, clock::wall()).map_err(|e| anyhow!("make the first maps: {e}"))?;
    for (member, (new, (name, _, dir))) in (1..).zip(params.mons.iter().zip(mons)) {
        let identity = Identity { fsid: m.fsid, uuid: new.uuid, member };
        MonStore::create(dir, identity, &first).map_err(|e| anyhow!("create mon.{name}: {e}"))?;
    }
    Ok(())
}

/// Makes the store of a monitor that will join a running cluster, or join again: what was in
/// `dir` is gone.
///
/// # Errors
/// When it cannot be written, or a monitor runs on it.
pub fn create_joining(dir: &Path, fsid: Uuid) -> anyhow::Result<()> {
    if MonStore::exists(dir) {
        MonStore::wipe(dir).map_err(|e| anyhow!("remove the old monitor store: {e}"))?;
    }
    let identity = Identity { fsid, uuid: Uuid(draw()?), member: 0 };
    MonStore::create(dir, identity, &Snapshot::default())
        .map_err(|e| anyhow!("create the monitor: {e}"))
}

/// What a monitor is started with.
pub struct MonSetup {
    /// Directory of its store.
    pub data: PathBuf,
    /// Its name.
    pub name: String,
    /// Its cluster, if known.
    pub fsid: Option<Uuid>,
    /// Where to listen, if not at its address in the monitor map.
    pub bind: Option<SocketAddr>,
    /// Where a new monitor will be found, if `bind` does not say it.
    pub place: Option<SocketAddr>,
    /// A file that is to name the cluster's monitors, for the daemons of this host.
    pub hint: Option<PathBuf>,
    /// Monitors of the cluster: a new one asks them to be let in.
    pub seeds: Vec<AddrVec>,
    /// Name of this machine.
    pub host: String,
    /// Its options.
    pub settings: Settings,
    /// Whom it lets in.
    pub auth: MonAuth,
    /// The monitors of this process, where they are several.
    pub company: Vec<String>,
}

/// A running monitor.
pub struct MonHandle {
    /// Where its orders go.
    pub mailbox: Mailbox<MonMail>,
    /// Where it listens.
    pub addrs: AddrVec,
}

/// The way to another monitor.
struct PeerLink {
    link: Link,
    addrs: AddrVec,
    since: Duration,
}

/// The monitor on an event loop.
pub struct MonDaemon {
    mon: Mon,
    /// Those who opened a link to us.
    answers: Answers<Sort>,
    /// Links we opened to other monitors, by name; what they say comes over links they opened.
    peers: HashMap<String, PeerLink>,
    me: Peer,
    login: Arc<dyn Login>,
    /// What the door decides by.
    realm: Arc<RwLock<Realm>>,
    hub: Hub,
    on: Handle,
    mailbox: Mailbox<MonMail>,
    disk: mpsc::Sender<DiskJob>,
    failed: Arc<Mutex<Option<String>>>,
    out: Vec<MonEffect>,
    hint: Option<PathBuf>,
    hint_epoch: u32,
    next_tick: Duration,
    /// The store's folder, and when its disk is looked at next.
    data: PathBuf,
    next_look: Duration,
    stopped: Option<Option<oneshot::Sender<()>>>,
    _listener: Listener,
}

impl MonDaemon {
    /// Opens the store and starts the monitor on `on`.
    ///
    /// # Errors
    /// When the store cannot be opened or the port is taken.
    pub fn start(
        setup: MonSetup,
        hub: &Hub,
        on: &Handle,
        failed: Arc<Mutex<Option<String>>>,
    ) -> anyhow::Result<MonHandle> {
        let MonSetup { data, name, fsid, bind, place, hint, seeds, host, settings, auth, company } =
            setup;
        crate::guard::tighten(&data)
            .with_context(|| format!("close {} to other users", data.display()))?;
        let (store, stored) =
            MonStore::open(&data).map_err(|e| anyhow!("mon.{name} cannot start: {e}"))?;
        let own = store.identity().fsid;
        if let Some(fsid) = fsid.filter(|f| *f != own) {
            bail!(
                "mon.{name} cannot start: {} belongs to cluster {own}, not {fsid}",
                data.display()
            );
        }
        // One that the cluster knows is where the monitor map says.
        let bind = bind.or(place.filter(|_| stored.snapshot.index == 0));
        let fill = Box::new(|bytes: &mut [u8]| {
            if let Err(e) = entropy::fill(bytes) {
                tracing::error!("draw random bytes: {e}");
            }
        });
        let addrs =
            bind.map(|b| AddrVec::one(spirula_types::EntityAddr::v2(b, 0))).unwrap_or_default();
        let opening = Opening {
            stored,
            name: name.clone(),
            addrs,
            seeds,
            now: clock::wall(),
            boot: u64::from_le_bytes(draw()?),
            entropy: fill,
        };
        let mut mon = Mon::open(opening)
            .map_err(|e| anyhow!("mon.{name} cannot start: {}: {e}", data.display()))?;
        let mut facts = host::machine_facts(&host);
        facts.insert(
            "compression_algorithms".to_owned(),
            "none, snappy, zlib, zstd, lz4".to_owned(),
        );
        facts.extend(host::disk_facts(&data));
        if !company.is_empty() {
            facts.insert(spirula_mon::SHARES_PROCESS.to_owned(), "true".to_owned());
        }
        mon.set_metadata(facts);
        mon.set_settings(settings.of(format!("mon.{name}")));
        mon.set_auth_safe(auth.required.is_safe());
        mon.set_company(company);
        let known = mon.state().monmap.mons.get(&name).and_then(|m| m.addrs.msgr2().addr);
        let addr = bind
            .or(known)
            .with_context(|| format!("mon.{name} has no v2 address in the monitor map"))?;
        let (mailbox, rx) = mailbox::<MonMail>();
        let ids = mon.global_ids();
        let me = Peer::new(EntityType::Mon, &name);
        let login = crate::keys::monitor_login(&me, &auth)?;
        let MonAuth { required, shared, realm } = auth;
        let door = MonDoor::open(realm.clone(), Arc::new(move || ids.next()), required, shared);
        let service = Service { me: me.clone(), sink: mailbox.sink(), auth: door };
        let listener = hub.listen(&[addr], 0, service, on).with_context(|| {
            format!(
                "mon.{name} cannot listen on {addr}; if another program has the port, a new \
                cluster can take one with --port"
            )
        })?;
        let disk = disk_thread(store, mailbox.clone(), failed.clone())?;
        let mut out = Vec::new();
        mon.start(now(), &mut out);
        let addrs = listener.addrs.clone();
        let mut daemon = Self {
            mon,
            answers: Answers::new(hub),
            peers: HashMap::new(),
            login,
            realm,
            me: Peer { addrs: listener.addrs.clone(), ..me },
            hub: hub.clone(),
            on: on.clone(),
            mailbox: mailbox.clone(),
            disk,
            failed,
            out,
            hint,
            hint_epoch: 0,
            next_tick: Duration::ZERO,
            data,
            next_look: Duration::ZERO,
            stopped: None,
            _listener: listener,
        };
        daemon.perform();
        let own = mailbox.clone();
        on.spawn(async move {
            let daemon = spirula_runtime::run(daemon, own, rx).await;
            for peer in daemon.peers.values() {
                peer.link.close();
            }
            if let Some(Some(done)) = daemon.stopped {
                let _ = done.send(());
            }
        });
        Ok(MonHandle { mailbox, addrs })
    }

    /// Sends to another monitor, opening the way if there is none. What cannot be sent now is
    /// lost: the quorum repeats itself.
    fn send_peer(&mut self, name: String, addrs: AddrVec, message: spirula_messages::Message) {
        let now = clock::monotonic();
        let usable =
            |p: &PeerLink| p.addrs == addrs && (!p.link.is_closed() || now < p.since + RECONNECT);
        if !self.peers.get(&name).is_some_and(usable) {
            let sink = self.mailbox.sink();
            let link = self.hub.connect_watched(
                &self.me,
                &self.login,
                &sink,
                &addrs,
                EntityType::Mon,
                &self.on,
            );
            if let Some(old) = self.peers.insert(name.clone(), PeerLink { link, addrs, since: now })
            {
                old.link.close();
            }
        }
        if let Some(p) = self.peers.get(&name) {
            p.link.send(message);
        }
    }

    fn feed(&mut self, event: MonEvent) {
        self.mon.handle(now(), event, &mut self.out);
        self.perform();
    }

    /// Tells the door what holds now.
    fn keep_realm(&self) {
        let open = !self.mon.view().quorum.quorum.is_empty();
        let (db, keys) = self.mon.realm();
        {
            let realm = self.realm.read().unwrap_or_else(PoisonError::into_inner);
            if realm.open == open && Arc::ptr_eq(&realm.db, db) && Arc::ptr_eq(&realm.keys, keys) {
                return;
            }
        }
        let mut realm = self.realm.write().unwrap_or_else(PoisonError::into_inner);
        (realm.db, realm.keys, realm.open) = (db.clone(), keys.clone(), open);
    }

    /// Tells the other daemons of this host where the monitors are: the configuration file may
    /// be older than some of them.
    fn keep_hint(&mut self) {
        let map = &self.mon.state().monmap;
        if self.hint_epoch == map.epoch || self.mon.member() == 0 {
            return;
        }
        self.hint_epoch = map.epoch;
        let Some(path) = &self.hint else { return };
        let all: Vec<String> = map.iter().map(|(_, m)| m.addrs.to_string()).collect();
        if let Err(e) = write_durably(path, (all.join(",") + "\n").as_bytes(), 0o644) {
            tracing::warn!("the monitors' addresses are not written down: {e:#}");
        }
    }

    fn perform(&mut self) {
        self.keep_realm();
        self.keep_hint();
        let mut closed = Vec::new();
        for effect in std::mem::take(&mut self.out) {
            match effect {
                MonEffect::Send(conn, message) => {
                    self.answers.send(conn, message);
                }
                MonEffect::Close(conn) => {
                    self.answers.close(conn);
                    closed.push(conn);
                }
                MonEffect::SendPeer(name, addrs, message) => self.send_peer(name, addrs, message),
                // The thread ends only after a failure, which stops the process.
                MonEffect::Persist(p) => drop(self.disk.send(DiskJob::Write(p))),
                MonEffect::Member(id) => drop(self.disk.send(DiskJob::Member(id))),
                MonEffect::Stop(why) => {
                    tracing::error!("{why}");
                    self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
                    self.stopped.get_or_insert(None);
                }
            }
        }
        // Nobody says so of a connection that is forgotten here.
        for conn in closed {
            self.feed(MonEvent::SessionClosed { conn });
        }
    }
}

enum DiskJob {
    Write(Persist),
    Member(MemberId),
}

/// The thread that makes writes durable, in order, all that wait at once, and says so.
fn disk_thread(
    mut store: MonStore,
    mailbox: Mailbox<MonMail>,
    failed: Arc<Mutex<Option<String>>>,
) -> anyhow::Result<mpsc::Sender<DiskJob>> {
    let (tx, rx) = mpsc::channel::<DiskJob>();
    std::thread::Builder::new()
        .name("mon-disk".into())
        .spawn(move || {
            while let Ok(first) = rx.recv() {
                let mut writes = Vec::new();
                for job in std::iter::once(first).chain(rx.try_iter()) {
                    match job {
                        DiskJob::Write(p) => writes.push(p),
                        DiskJob::Member(id) => store.set_member(id),
                    }
                }
                let mut waited = false;
                let done = loop {
                    match store.persist(&writes) {
                        // Others filled the file system. What is not written is not acknowledged,
                        // and goes on when there is room.
                        Err(e @ StoreError::NoRoom { .. }) => {
                            if !std::mem::replace(&mut waited, true) {
                                tracing::error!("the monitor waits: {e}");
                            }
                            std::thread::sleep(FULL_RETRY);
                        }
                        done => break done,
                    }
                };
                if waited && done.is_ok() {
                    tracing::warn!("the monitor goes on: there is room");
                }
                if let Err(e) = done {
                    // Nothing is acknowledged any more; the process ends with the reason.
                    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                    failed.get_or_insert(format!("the monitor's store failed: {e}"));
                    return;
                }
                if let Some(last) = writes.last() {
                    mailbox.push(MonMail::Persisted(last.number));
                }
            }
        })
        .context("start the monitor's disk thread")?;
    Ok(tx)
}

/// Whether the monitor has room for what a client says.
fn room(mon: &Mon, sort: Sort, m: &Message) -> Room {
    match mon.room_for(sort, m) {
        None => Room::Always,
        Some((bound, true)) => Room::In(bound as u8),
        Some((bound, false)) => Room::Full(bound as u8),
    }
}

impl Daemon for MonDaemon {
    type Event = MonMail;

    fn handle(&mut self, event: MonMail) {
        match event {
            MonMail::Net(NetEvent::Message(conn, message)) => {
                let sort = |m: &Message| self.mon.sort_of(conn, m);
                if let Some(message) =
                    self.answers.take(conn, message, sort, |sort, m| room(&self.mon, sort, m))
                {
                    self.feed(MonEvent::Message { conn, message });
                }
            }
            MonMail::Net(NetEvent::TooLarge(conn, m)) => {
                if let Some(answer) = spirula_mon::too_large(&m) {
                    self.answers.send(conn, answer);
                }
            }
            MonMail::Net(NetEvent::Taken(conn)) => self.answers.taken(conn),
            // The way to another monitor; it speaks over one of its own.
            MonMail::Net(
                NetEvent::Opened { outgoing: true, .. }
                | NetEvent::Resumed(_)
                | NetEvent::Renewed(_)
                | NetEvent::Refused(..),
            ) => {}
            MonMail::Net(NetEvent::Opened { link, peer, .. }) => {
                let conn = link.id();
                self.answers.insert(link, &peer);
                let found = peer.grants.get::<MonPeer>().cloned();
                // Nobody gets in by another method than those the door allows.
                let trusted = peer.method != METHOD_CEPHX;
                let place = peer.place();
                let Peer { kind, id, global_id, addrs, features, .. } = peer;
                let peer = spirula_mon::Peer { kind, id, global_id, addrs, features };
                self.feed(MonEvent::SessionOpened { conn, peer });
                match found {
                    _ if trusted => self.mon.set_access(conn, Access::Everything),
                    Some(MonPeer::Monitor) => self.mon.set_access(conn, Access::Everything),
                    Some(MonPeer::User { session, used_pending_key }) => {
                        let entity = session.entity.clone();
                        self.mon.set_access(conn, Access::of(session, place));
                        if used_pending_key {
                            self.mon.pending_key_used(conn, &entity, &mut self.out);
                            self.perform();
                        }
                    }
                    None => {}
                }
            }
            MonMail::Net(NetEvent::Closed(conn, _)) => {
                if self.answers.remove(conn) {
                    self.feed(MonEvent::SessionClosed { conn });
                } else if let Some(p) = self.peers.values().find(|p| p.link.id() == conn) {
                    // Marks it closed: the next message opens another.
                    p.link.close();
                }
            }
            MonMail::Persisted(number) => self.feed(MonEvent::Persisted(number)),
            MonMail::Stop(done) => self.stopped = Some(Some(done)),
        }
    }

    fn end_of_batch(&mut self) {
        self.answers.look_for_room();
        loop {
            if self.mon.has_more() {
                self.feed(MonEvent::More);
            } else if let Some((conn, message)) =
                self.answers.due(|sort, m| room(&self.mon, sort, m))
            {
                self.feed(MonEvent::Message { conn, message });
            } else {
                break;
            }
        }
    }

    fn tick(&mut self) {
        self.next_tick = clock::monotonic() + TICK;
        self.answers.look();
        if clock::monotonic() >= self.next_look {
            self.next_look = clock::monotonic() + LOOK_EVERY;
            self.mon.set_room(host::room(&self.data));
        }
        self.feed(MonEvent::Tick);
        for conn in self.mon.owed_osdmaps() {
            if self.answers.has_taken_all(conn) {
                self.mon.send_next_osdmaps(conn, &mut self.out);
                self.perform();
            }
        }
    }

    fn deadline(&self) -> Duration {
        self.next_tick
    }

    fn finished(&self) -> bool {
        self.stopped.is_some()
    }
}
