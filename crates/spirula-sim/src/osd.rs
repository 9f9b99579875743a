//! An OSD in the world: the daemon's core itself, on a store that works in steps, with the world in
//! place of sockets, helper threads and clocks.

use crate::device::{Device, Lie, Order};
use crate::monitor::{addr_of, id_of};
use crate::rng::Rng;
use crate::wire::{self, Wire, Wish};
use crate::world::{Actor, ActorId, CLUSTER, End, Input, Local, Output, World};
use spirula_buffer::PayloadPool;
use spirula_messages::Message;
use spirula_osd::{Now, OsdConfig, OsdCore, OsdEvent, Outside, Watch};
use spirula_pg::PgConfig;
use spirula_runtime::cephx::DaemonAuth;
use spirula_runtime::{
    Ended, Link, LinkId, Mons, NetEvent, NetSink, Network, Peer, Service, limits,
};
use spirula_settings::Settings;
use spirula_store::{Devices, Identity, Store, StoreOptions};
use spirula_types::{AddrVec, EntityAddr, EntityType, OsdId, Uuid};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Timers.
const TICK: u64 = 0;
const DISK: u64 = 1;
const WORK: u64 = 2;
const LINKS: u64 = 3;
/// Why an OSD ended that was told to.
pub const TOLD: &str = "told to stop";
/// Bytes of a label at the beginning of every device.
pub const LABEL: u64 = 128 << 10;
/// Events handled between two ends of a batch.
const BATCH: usize = 16;

/// The third byte of an OSD's address in the public network.
pub const PUBLIC: u8 = 1;

/// Where OSD `osd` is in a network.
fn ip(net: u8, osd: OsdId) -> IpAddr {
    IpAddr::from([10, 0, net, osd as u8])
}

fn now(local: Local) -> Now {
    Now { mono: local.mono, wall: local.wall }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

type Work = Box<dyn FnOnce() -> OsdEvent + Send>;

/// What the daemon is to be told, in order.
type Mailbox = Arc<Mutex<VecDeque<OsdEvent>>>;

#[derive(Default)]
struct Wires {
    out: Vec<Output>,
    /// What is wanted of links to OSDs, before what is sent over them.
    wishes: Vec<Wish>,
    work: Vec<Work>,
    /// Nothing that helper threads were given is done.
    held: bool,
    next: u64,
}

/// The world as the daemon's network.
struct Net {
    this: Weak<Self>,
    actor: ActorId,
    /// Actors of the OSDs, by number.
    osds: Arc<Mutex<BTreeMap<OsdId, ActorId>>>,
    wires: Mutex<Wires>,
    mailbox: Mailbox,
    pool: PayloadPool,
}

impl Net {
    fn to_actor(&self, to: &EntityAddr) -> Option<ActorId> {
        match to.addr?.ip() {
            IpAddr::V4(ip)
                if ip.octets().get(2).is_some_and(|net| [PUBLIC, CLUSTER].contains(net)) =>
            {
                lock(&self.osds).get(&OsdId::from(*ip.octets().get(3)?)).copied()
            }
            _ => id_of(&AddrVec::one(*to)),
        }
    }
}

impl Net {
    /// Where the network's events go.
    fn sink(&self) -> NetSink {
        let mailbox = self.mailbox.clone();
        NetSink::new(Arc::new(move |e| lock(&mailbox).push_back(OsdEvent::Net(e))), Arc::default())
    }

    /// The daemon is to be reached at `ip`; what is to be published in the maps.
    fn listen(&self, ip: IpAddr, nonce: u32, service: &Service) -> AddrVec {
        let addrs = AddrVec::one(EntityAddr::v2((ip, 6800).into(), nonce));
        lock(&self.wires).wishes.push(Wish::Listen(addrs.clone(), Box::new(service.clone())));
        addrs
    }
}

impl Outside for Net {
    fn connect(&self, me: &Peer, to: &AddrVec, kind: EntityType, watch: Watch) -> Link {
        let unacknowledged = match watch {
            Watch::Usual => limits::TCP_UNACKNOWLEDGED,
            Watch::Closely => limits::TCP_UNACKNOWLEDGED_WATCHED,
        };
        let mut w = lock(&self.wires);
        w.next += 1;
        let conn = World::conn_numbers(self.actor) + w.next;
        let addr = to.msgr2();
        let there = self.to_actor(&addr);
        if let Some(actor) = there.filter(|_| kind == EntityType::Osd) {
            let (me, sink) = (Box::new(me.clone()), self.sink());
            w.wishes.push(Wish::Connect { link: conn, me, sink, to: addr, actor, unacknowledged });
        } else if let Some(to) = there {
            let peer = spirula_mon::Peer {
                kind: me.kind,
                id: me.id.clone(),
                global_id: me.global_id,
                addrs: me.addrs.clone(),
                features: me.features,
            };
            w.out.push(Output::Connect { conn, to, addr, peer });
        }
        let Some(this) = self.this.upgrade() else { unreachable!("a network that is used exists") };
        Link::carried(conn, this)
    }

    fn work(&self, work: Work) {
        lock(&self.wires).work.push(work);
    }

    fn later(&self, event: OsdEvent) {
        lock(&self.mailbox).push_back(event);
    }

    fn stop_listening(&self) {}

    fn pool(&self) -> &PayloadPool {
        &self.pool
    }
}

impl Network for Net {
    fn carry(&self, link: LinkId, message: Message) {
        lock(&self.wires).out.push(Output::Send(link, message));
    }

    fn close(&self, link: LinkId) {
        lock(&self.wires).out.push(Output::Close(link));
    }

    fn renew(&self, link: LinkId) {
        lock(&self.wires).wishes.push(Wish::Renew(link));
    }

    fn keep(&self, link: LinkId, keep: bool) {
        lock(&self.wires).wishes.push(Wish::Keep(link, keep));
    }
}

/// The devices of an OSD, and whose they are.
#[derive(Clone)]
pub struct Disk {
    /// Its owner.
    pub identity: Identity,
    /// Data, journal, metadata.
    pub devices: [Arc<Device>; 3],
    order: Order,
    /// Operations before this place are done.
    settled: u64,
    /// What came after this place may be lost, whatever was said.
    lied: Option<u64>,
    options: StoreOptions,
}

impl Disk {
    /// A new store of `size` bytes on new devices. Caches, journal and tables are tiny, so that
    /// what is rare elsewhere is common.
    pub fn new(identity: Identity, size: u64, rng: &mut Rng) -> Self {
        let cache_bytes = *rng.pick(&[48 << 10, 256 << 10, 1 << 20]).unwrap_or(&(256 << 10));
        // What a PG's log and its requests come to must fit into a quarter of it.
        let journal_size = *rng.pick(&[1 << 20, 2 << 20]).unwrap_or(&(1 << 20));
        let pool = PayloadPool::new(8 << 20);
        let options = StoreOptions {
            size,
            journal_size,
            cache_bytes,
            kept_bytes: cache_bytes,
            pool,
            ..StoreOptions::default()
        };
        let cold = *rng.pick(&[0, 2, 10]).unwrap_or(&0);
        let order = Order::default();
        let mut device =
            |name, size| Device::new(name, LABEL + size, order.clone(), cold, rng.fork());
        let devices =
            [device("main", size), device("journal", journal_size), device("meta", 16 << 20)];
        let mut disk = Self { identity, devices, order, settled: 0, lied: None, options };
        let mut draw =
            || Uuid(((u128::from(rng.bits()) << 64) | u128::from(rng.bits())).to_le_bytes());
        let ids = [draw(), draw(), draw(), draw()];
        // A store that is not there is found out when it is opened.
        let _ = Store::format(&disk.all(), identity, ids, journal_size);
        disk.settle();
        disk
    }

    /// What was asked for until now is done.
    fn settle(&mut self) {
        self.settled = self.order.next();
        self.devices.iter().for_each(|d| d.settle());
    }

    /// The power goes, now or anywhere between what is surely done and what was asked for.
    fn crash(&mut self, rng: &mut Rng) {
        let cut = rng.between(self.lied.unwrap_or(self.settled), self.order.next());
        self.lied = self.lied.map(|_| self.order.next());
        self.devices.iter().for_each(|d| d.crash(cut, rng));
        self.settled = self.order.next();
    }

    /// From now on it lies about flushes, or no more.
    pub fn lie(&mut self, lies: Option<Lie>) {
        self.lied = lies.map(|_| self.order.next());
        self.devices.iter().for_each(|d| d.lie(lies));
    }

    /// Has it failed, as it was told to, since the last start?
    pub fn has_died(&self) -> bool {
        self.devices.iter().any(|d| d.has_died())
    }

    fn all(&self) -> Devices {
        let [main, journal, meta] = self.devices.clone();
        Devices { main, journal: Some(journal), meta: Some(meta) }
    }

    /// Opens its store.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open(
        &self,
        durable: Box<dyn Fn(u64) + Send>,
        failed: Box<dyn Fn(spirula_store::StoreError) + Send>,
    ) -> Result<Store, spirula_store::StoreError> {
        Store::open_stepped(&self.all(), Some(self.identity), &self.options, durable, failed)
    }
}

struct Running {
    osd: OsdCore,
    /// Links to other OSDs.
    wire: Wire,
    net: Arc<Net>,
    mailbox: Mailbox,
    /// What the store says is durable; told when the disk's time is over.
    durable: Arc<Mutex<Vec<u64>>>,
}

/// Where an OSD is, whom it knows, and its bounds.
pub struct Place {
    /// Name of its host.
    pub host: String,
    /// The monitors.
    pub mons: Vec<ActorId>,
    /// Where the OSDs are in the world.
    pub osds: Arc<Mutex<BTreeMap<OsdId, ActorId>>>,
    /// Bounds of its PGs.
    pub pg: PgConfig,
    /// OSDs have a network of their own.
    pub apart: bool,
}

/// The OSD.
pub struct OsdActor {
    /// Its number.
    pub id: OsdId,
    /// What survives.
    pub disk: Disk,
    place: Place,
    rng: Rng,
    incarnation: u32,
    running: Option<Running>,
    /// Connections that are there.
    open: BTreeSet<u64>,
    /// The disk works.
    busy: bool,
    /// When the next tick is due, and something of the links, true time.
    armed: [u64; 2],
    /// Slowest write of the disk, and slowest read that waits, microseconds.
    pub disk_us: u64,
    pub read_us: Option<u64>,
    /// The store stopped by itself.
    disk_failed: Option<String>,
    /// It did not start, or ended by itself: why, and whether its disk died before, as it was told
    /// to.
    pub ended: Option<(String, bool)>,
    /// Until when it keeps no session whose connection ends, true microseconds.
    pub forgets_until: u64,
    /// Bytes that may wait in a session meanwhile, on connections that are made then.
    pub session_bytes: usize,
    /// Sessions lost, resumed, and lost because more waited than may, so far.
    pub sessions: [u64; 3],
    /// How often a PG fell back to what the store holds, so far.
    pub fallen_back: u64,
    /// Of these, in this incarnation.
    falls: u64,
    /// It was told to stop.
    told: bool,
    /// It cannot start: its disk is not in place yet.
    pub no_disk: bool,
}

impl OsdActor {
    /// An OSD on a disk.
    pub fn new(disk: Disk, place: Place, rng: Rng) -> Self {
        Self {
            id: disk.identity.osd_id,
            disk,
            place,
            rng,
            incarnation: 0,
            running: None,
            open: BTreeSet::new(),
            busy: false,
            armed: [0; 2],
            disk_us: 2000,
            read_us: None,
            disk_failed: None,
            ended: None,
            forgets_until: 0,
            session_bytes: limits::SESSION_BYTES,
            sessions: [0; 3],
            fallen_back: 0,
            falls: 0,
            told: false,
            no_disk: false,
        }
    }

    /// The daemon, while it runs.
    pub fn osd(&self) -> Option<&OsdCore> {
        self.running.as_ref().map(|r| &r.osd)
    }

    /// Heartbeats that it sent since this was asked last, by their type: how many, and the bytes of
    /// the smallest.
    #[cfg(test)]
    pub fn beats(&mut self) -> BTreeMap<u16, (u64, usize)> {
        self.running.as_mut().map(|r| std::mem::take(&mut r.wire.beats)).unwrap_or_default()
    }

    /// It is to stop in due form.
    pub fn stop(&mut self) {
        if let Some(r) = &self.running {
            self.told = true;
            lock(&r.mailbox).push_back(OsdEvent::Stop);
        }
    }

    fn start(&mut self, local: Local) -> Result<(), String> {
        self.incarnation += 1;
        (self.disk_failed, self.told, self.falls) = (None, false, 0);
        let mailbox = Mailbox::default();
        let durable = Arc::new(Mutex::new(Vec::new()));
        let (done, failed) = (durable.clone(), mailbox.clone());
        let store = self.disk.open(
            Box::new(move |seq| lock(&done).push(seq)),
            Box::new(move |e| lock(&failed).push_back(OsdEvent::StoreFailed(e.to_string()))),
        );
        let store = store.map_err(|e| format!("its store: {e}"))?;
        let net = Arc::new_cyclic(|this: &Weak<Net>| Net {
            this: this.clone(),
            actor: local.id,
            osds: self.place.osds.clone(),
            // Connection numbers are not used again.
            wires: Mutex::new(Wires {
                next: u64::from(self.incarnation) << 20,
                ..Wires::default()
            }),
            mailbox: mailbox.clone(),
            pool: PayloadPool::new(16 << 20),
        });
        let auth = DaemonAuth::none();
        let me = Peer::new(EntityType::Osd, &self.id.to_string());
        let service = Service { me, sink: net.sink(), auth: auth.door(spirula_osd::grants) };
        let public = net.listen(ip(PUBLIC, self.id), self.incarnation, &service);
        let cluster = match self.place.apart {
            true => net.listen(ip(CLUSTER, self.id), self.incarnation, &service),
            false => public.clone(),
        };
        let cfg = OsdConfig {
            id: self.id,
            fsid: self.disk.identity.fsid,
            uuid: self.disk.identity.osd_uuid,
            mons: Mons::new(self.place.mons.iter().map(|m| addr_of(*m)).collect(), self.rng.bits()),
            public,
            cluster,
            host: self.place.host.clone(),
            location: BTreeMap::new(),
            device_class: String::new(),
            started_together: BTreeSet::new(),
            metadata: BTreeMap::new(),
            settings: Settings::default(),
            pg: self.place.pg.clone(),
            auth,
        };
        let osd = OsdCore::new(cfg, store, net.clone(), now(local))?;
        let wire =
            Wire::new(net.clone(), wire::numbers(local.id, self.incarnation), self.rng.fork());
        self.running = Some(Running { osd, wire, net, mailbox, durable });
        Ok(())
    }

    /// The daemon runs no more.
    fn gone(&mut self) {
        if let Some(r) = self.running.take() {
            // What it was not told holds links, and these hold whatever carries them.
            lock(&r.mailbox).clear();
        }
    }

    /// Lets the daemon handle what is in its mailbox, and the world take what it wants done.
    fn pump(&mut self, local: Local, out: &mut Vec<Output>) {
        let Some(r) = &mut self.running else { return };
        let (parked, bytes) = match local.true_us < self.forgets_until {
            true => (0, self.session_bytes),
            false => (limits::PARKED, limits::SESSION_BYTES),
        };
        (r.wire.most_parked, r.wire.session_bytes) = (parked, bytes);
        loop {
            let mut handled = 0;
            while handled < BATCH {
                let event = lock(&r.mailbox).pop_front();
                let Some(event) = event else { break };
                if let OsdEvent::StoreFailed(why) = &event {
                    self.disk_failed.get_or_insert_with(|| why.clone());
                }
                r.osd.handle(now(local), event);
                handled += 1;
            }
            if handled > 0 {
                r.osd.end_of_batch(now(local));
            }
            let mut w = lock(&r.net.wires);
            let (wishes, sent) = (std::mem::take(&mut w.wishes), std::mem::take(&mut w.out));
            drop(w);
            if handled == 0 && wishes.is_empty() && sent.is_empty() {
                break;
            }
            for wish in wishes {
                r.wire.perform(local.mono, wish, out);
            }
            for o in sent {
                match o {
                    Output::Send(link, m) if r.wire.has(link) => {
                        r.wire.perform(local.mono, Wish::Carry(link, m), out)
                    }
                    Output::Close(link) if r.wire.has(link) => {
                        r.wire.perform(local.mono, Wish::Close(link), out)
                    }
                    o => out.push(o),
                }
            }
            r.wire.settle(local.mono, out);
        }
        for (all, new) in self.sessions.iter_mut().zip(std::mem::take(&mut r.wire.sessions)) {
            *all += new;
        }
        self.fallen_back +=
            r.osd.fallen_back() - std::mem::replace(&mut self.falls, r.osd.fallen_back());
        if !self.busy && r.osd.step_store() {
            self.busy = true;
            out.push(Output::Timer(DISK, self.rng.between(50, self.disk_us)));
        }
        let w = lock(&r.net.wires);
        if !w.work.is_empty() {
            out.push(Output::Timer(
                WORK,
                self.rng.between(50, self.read_us.unwrap_or(self.disk_us)),
            ));
        }
        drop(w);
        if r.osd.finished() {
            if self.disk_failed.is_none() {
                // It wrote what it had, and the power stays.
                self.disk.settle();
            }
            let told = self.told.then(|| TOLD.to_owned());
            let why = self.disk_failed.as_deref().map(|why| format!("its store stops: {why}"));
            let why = why.or_else(|| r.osd.failure().map(str::to_owned));
            self.ended = Some((why.or(told).unwrap_or_default(), self.disk.has_died()));
            self.gone();
            out.push(Output::Stop);
            return;
        }
        let deadlines = [(TICK, r.osd.deadline(local.mono)), (LINKS, r.wire.deadline())];
        for ((timer, deadline), armed) in deadlines.into_iter().zip(&mut self.armed) {
            // Its clock may run faster or slower than time does.
            let wait = deadline.saturating_sub(local.mono).as_micros() as i64;
            let wait = (wait - wait * local.drift / (1_000_000 + local.drift)).max(0) as u64 + 1;
            let due = local.true_us + wait;
            if *armed <= local.true_us || due < *armed {
                *armed = due;
                out.push(Output::Timer(timer, wait));
            }
        }
    }

    /// Holds up what helper threads do, until it is let go.
    #[cfg(test)]
    pub fn hold_work(&mut self, on: bool) {
        self.running.iter().for_each(|r| lock(&r.net.wires).held = on);
    }

    /// What helper threads were given and have not begun.
    #[cfg(test)]
    pub fn held_work(&self) -> usize {
        self.running.as_ref().map_or(0, |r| lock(&r.net.wires).work.len())
    }

    fn timer(&mut self, n: u64, local: Local, out: &mut Vec<Output>) {
        let Some(r) = &mut self.running else { return };
        match n {
            DISK => {
                self.busy = false;
                self.disk.settle();
                for seq in std::mem::take(&mut *lock(&r.durable)) {
                    lock(&r.mailbox).push_back(OsdEvent::Durable(seq));
                }
            }
            LINKS => r.wire.due(local.mono, out),
            WORK => {
                let mut wires = lock(&r.net.wires);
                let work = if wires.held { Vec::new() } else { std::mem::take(&mut wires.work) };
                drop(wires);
                work.into_iter().for_each(|w| r.net.later(w()));
            }
            _ => {
                if r.osd.deadline(local.mono) <= local.mono {
                    r.osd.tick(now(local));
                    r.osd.end_of_batch(now(local));
                }
            }
        }
    }
}

impl Actor for OsdActor {
    fn handle(&mut self, local: Local, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Start if self.no_disk => out.push(Output::Stop),
            Input::Start => {
                self.ended = None;
                if let Err(why) = self.start(local) {
                    self.ended = Some((format!("it does not start: {why}"), self.disk.has_died()));
                    out.push(Output::Stop);
                }
            }
            Input::Timer(n) => self.timer(n, local, out),
            Input::Tick => {}
            Input::Opened { conn, peer, .. } => {
                self.open.insert(conn);
                if let Some(r) = &self.running {
                    let outgoing = conn >> 32 == World::conn_numbers(local.id) >> 32;
                    let link = Link::carried(conn, r.net.clone());
                    let mut who = Peer::new(peer.kind, &peer.id);
                    (who.global_id, who.addrs, who.features) =
                        (peer.global_id, peer.addrs, peer.features);
                    lock(&r.mailbox).push_back(OsdEvent::Net(NetEvent::Opened {
                        link,
                        peer: who,
                        outgoing,
                    }));
                }
            }
            Input::Message { conn, message } => {
                if let Some(r) = self.running.as_ref().filter(|_| self.open.contains(&conn)) {
                    lock(&r.mailbox).push_back(OsdEvent::Net(NetEvent::Message(conn, message)));
                }
            }
            Input::Called { conn, net, .. } => {
                if let Some(r) = &mut self.running {
                    r.wire.called(local.mono, conn, net, out);
                }
            }
            Input::Bytes { conn, bytes } => {
                if let Some(r) = &mut self.running {
                    r.wire.bytes(local.mono, conn, &bytes, out);
                }
            }
            Input::Broken { conn, how } => {
                if let Some(r) = &mut self.running {
                    r.wire.broken(local.mono, conn, how, out);
                }
            }
            Input::Closed { conn, end } => {
                self.open.remove(&conn);
                let (why, refused, hung_up) = match end {
                    End::Refused => ("connection refused", true, false),
                    End::Gone => ("connection refused", true, true),
                    End::Closed => ("closed by the peer", false, true),
                    End::Silent => ("no answer", false, false),
                };
                let ended = Ended { why: why.to_owned(), refused, hung_up };
                if let Some(r) = &self.running {
                    lock(&r.mailbox).push_back(OsdEvent::Net(NetEvent::Closed(conn, ended)));
                }
            }
        }
        self.pump(local, out);
    }

    fn crash(&mut self, rng: &mut Rng) {
        self.gone();
        self.open.clear();
        (self.busy, self.armed) = (false, [0; 2]);
        self.disk.crash(rng);
    }

    fn admits(&mut self, _: &mut spirula_mon::Peer, to: &EntityAddr) -> bool {
        self.running.is_some() && to.nonce == self.incarnation
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
