//! The OSD on an event loop: the shell around [`OsdCore`].
//!
//! The shell listens for others, hands what arrives in its mailbox to the core with the time at
//! which it takes it out, and stands for the core's surroundings ([`Outside`]): the process's
//! network, helper threads, memory.

use spirula_buffer::PayloadPool;
use spirula_osd::{Now, OsdConfig, OsdCore, OsdEvent, Outside, Watch};
use spirula_runtime::auth::Login;
use spirula_runtime::{Daemon, Hub, Link, Listener, Mailbox, NetEvent, Peer, Service, clock};
use spirula_store::Store;
use spirula_types::{AddrVec, EntityType};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// What arrives in an OSD's mailbox.
#[derive(Debug)]
pub enum OsdMail {
    /// Something for the core.
    Event(OsdEvent),
    /// It is to stop cleanly, and to answer when it has.
    Stop(oneshot::Sender<()>),
}

impl From<NetEvent> for OsdMail {
    fn from(e: NetEvent) -> Self {
        Self::Event(OsdEvent::Net(e))
    }
}

/// Where an OSD listens.
pub struct Place {
    /// Address for clients.
    pub public: IpAddr,
    /// Address for other OSDs; may be the same.
    pub cluster: IpAddr,
    /// First and last port; 0 and 0 for any free one.
    pub ports: (u16, u16),
    /// Tells this incarnation from earlier ones.
    pub nonce: u32,
}

/// The process as one OSD's surroundings.
struct Process {
    hub: Hub,
    login: Arc<dyn Login>,
    on: Handle,
    mailbox: Mailbox<OsdMail>,
    listeners: Mutex<Vec<Listener>>,
}

impl Outside for Process {
    fn connect(&self, me: &Peer, to: &AddrVec, kind: EntityType, watch: Watch) -> Link {
        let sink = self.mailbox.sink();
        match watch {
            Watch::Usual => self.hub.connect(me, &self.login, &sink, to, kind, &self.on),
            Watch::Closely => self.hub.connect_watched(me, &self.login, &sink, to, kind, &self.on),
        }
    }

    fn work(&self, work: Box<dyn FnOnce() -> OsdEvent + Send>) {
        let mailbox = self.mailbox.clone();
        self.on.spawn_blocking(move || mailbox.push(OsdMail::Event(work())));
    }

    fn later(&self, event: OsdEvent) {
        self.mailbox.push(OsdMail::Event(event));
    }

    fn stop_listening(&self) {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn pool(&self) -> &PayloadPool {
        self.hub.pool()
    }
}

fn now() -> Now {
    Now { mono: clock::monotonic(), wall: clock::wall() }
}

/// The OSD's core, and who waits for its end.
pub struct OsdDaemon {
    core: OsdCore,
    stopped: Vec<oneshot::Sender<()>>,
}

impl OsdDaemon {
    /// Listens at `place`, and puts the OSD together on an open store; its addresses in `cfg` are
    /// filled in. `mailbox` is its own.
    ///
    /// # Errors
    /// When the port cannot be opened, or a PG's record in the store is damaged.
    pub fn start(
        mut cfg: OsdConfig,
        place: &Place,
        hub: &Hub,
        on: &Handle,
        mailbox: Mailbox<OsdMail>,
        store: Store,
    ) -> Result<Self, String> {
        let mut me = Peer::new(EntityType::Osd, &cfg.id.to_string());
        let service = Service {
            me: me.clone(),
            sink: mailbox.sink(),
            auth: cfg.auth.door(spirula_osd::grants),
        };
        let listen = |ip| {
            hub.listen_within(ip, place.ports, place.nonce, service.clone(), on)
                .map_err(|e| e.to_string())
        };
        let mut listeners = vec![listen(place.public)?];
        cfg.public = listeners[0].addrs.clone();
        cfg.cluster = cfg.public.clone();
        if place.cluster != place.public {
            let second = listen(place.cluster)?;
            cfg.cluster = second.addrs.clone();
            listeners.push(second);
        }
        me.addrs = cfg.public.clone();
        let login = cfg.auth.login(&me);
        let listeners = Mutex::new(listeners);
        let process = Process { hub: hub.clone(), login, on: on.clone(), mailbox, listeners };
        let core = OsdCore::new(cfg, store, Arc::new(process), now())?;
        Ok(Self { core, stopped: Vec::new() })
    }

    /// Where clients reach it.
    pub fn addrs(&self) -> &AddrVec {
        self.core.addrs()
    }

    /// Why it stopped by itself, if it did.
    pub fn failure(&self) -> Option<&str> {
        self.core.failure()
    }

    /// Answers those who wait for its end, if that has come.
    fn tell_end(&mut self) {
        if self.core.finished() {
            for done in self.stopped.drain(..) {
                // Whoever asked may have gone.
                let _ = done.send(());
            }
        }
    }
}

impl Daemon for OsdDaemon {
    type Event = OsdMail;

    fn handle(&mut self, mail: OsdMail) {
        let event = match mail {
            OsdMail::Event(event) => event,
            OsdMail::Stop(done) => {
                self.stopped.push(done);
                OsdEvent::Stop
            }
        };
        self.core.handle(now(), event);
        self.tell_end();
    }

    fn end_of_batch(&mut self) {
        self.core.end_of_batch(now());
        self.tell_end();
    }

    fn tick(&mut self) {
        self.core.tick(now());
        self.tell_end();
    }

    fn deadline(&self) -> Duration {
        self.core.deadline(clock::monotonic())
    }

    fn finished(&self) -> bool {
        self.core.finished()
    }
}
