//! cephx at the doors: `spirula-auth`'s state machines behind [`Authenticator`] and [`Login`].
//!
//! * [`Identity`]: one daemon or client of ours: its key, its tickets, the keys of its service.
//!   With it a daemon goes out ([`Identity::login`]) and lets others in ([`Identity::door`]).
//! * [`MonDoor`]: a monitor's: it takes proofs of keys and gives tickets, from what [`Realm`]
//!   holds.
//!
//! An identity learns and renews by messages on its monitor link, which its daemon carries:
//! [`Identity::requests`] out, [`Identity::reply`] in.

use crate::auth::{
    AssignId, Authenticator, Caller, Exchange, Grants, Login, Step, Trusting, Verdict,
};
use crate::{clock, entropy};
use bytes::Bytes;
use spirula_auth::client::{Authorizer, Client};
use spirula_auth::db::AuthDb;
use spirula_auth::monitor::{self, Authority, Policy, Session};
use spirula_auth::rotating::{RotatingKeys, ServiceKeys};
use spirula_auth::service::{ServiceExchange, ServiceStep};
use spirula_auth::ticket::TicketKey;
use spirula_auth::{AuthError, CryptoKey, EntityId, Service, Services};
use spirula_encoding::UTime;
use spirula_messages::ceph::{MAuth, MAuthReply, kind};
use spirula_messages::{Body, Message};
use spirula_messenger::auth::{
    AuthStart, BadMethod, Credentials, Granted, METHOD_CEPHX, METHOD_NONE, Mode, Secret, Secrets,
};
use spirula_types::{EntityType, errno};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// Which methods are allowed, by who comes in (`auth_cluster_required`, `auth_service_required`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Required {
    /// Of daemons.
    pub cluster: Vec<u32>,
    /// Of clients.
    pub service: Vec<u32>,
}

impl Required {
    /// cephx of everyone.
    pub fn cephx() -> Self {
        Self { cluster: vec![METHOD_CEPHX], service: vec![METHOD_CEPHX] }
    }

    /// Nothing of anyone.
    pub fn none() -> Self {
        Self { cluster: vec![METHOD_NONE], service: vec![METHOD_NONE] }
    }

    /// Reads an option's value: `cephx`, `none`, or both, best first.
    ///
    /// # Errors
    /// With the word that is no method.
    pub fn methods(text: &str) -> Result<Vec<u32>, String> {
        let method = |word: &str| match word {
            "cephx" => Ok(METHOD_CEPHX),
            "none" => Ok(METHOD_NONE),
            other => {
                Err(format!("'{other}' is no authentication method; known are cephx and none"))
            }
        };
        let all: Vec<u32> = text
            .split([' ', ',', ';'])
            .filter(|w| !w.is_empty())
            .map(method)
            .collect::<Result<_, _>>()?;
        if all.is_empty() {
            Err("no authentication method; known are cephx and none".into())
        } else {
            Ok(all)
        }
    }

    /// True if nobody comes in without a key.
    pub fn is_safe(&self) -> bool {
        !self.cluster.contains(&METHOD_NONE) && !self.service.contains(&METHOD_NONE)
    }

    fn all(&self) -> Vec<u32> {
        let mut all = self.service.clone();
        all.extend(self.cluster.iter().filter(|m| !self.service.contains(m)));
        all
    }

    fn allows(&self, caller: &Caller) -> bool {
        let list = if caller.hello == EntityType::Client { &self.service } else { &self.cluster };
        list.contains(&caller.method)
    }
}

fn draw(out: &mut [u8]) {
    if let Err(e) = entropy::fill(out) {
        // Without random numbers there is no security, and going on would only look like it.
        tracing::error!("the kernel gives no random numbers: {e}");
        std::process::abort();
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

fn secrets(session_key: &CryptoKey, connection_secret: &[u8]) -> Secrets {
    Secrets {
        session_key: Secret::new(session_key.secret().to_vec()),
        connection_secret: Secret::new(connection_secret.to_vec()),
    }
}

fn service_of(kind: EntityType) -> Option<Service> {
    match kind {
        EntityType::Mon => Some(Service::Mon),
        EntityType::Mds => Some(Service::Mds),
        EntityType::Osd => Some(Service::Osd),
        EntityType::Mgr => Some(Service::Mgr),
        EntityType::Client => None,
    }
}

fn refused(why: impl fmt::Display) -> Step {
    Verdict::Refused(-errno::EACCES, why.to_string()).into()
}

struct Inner {
    client: Mutex<Client>,
    service: Option<Service>,
    keys: RwLock<Option<RotatingKeys>>,
    realm: Option<Arc<RwLock<Realm>>>,
    /// A ticket named a key we do not have: there are newer ones.
    stale: AtomicBool,
}

/// Who we are, with what proves it. Clones are the same one.
#[derive(Clone)]
pub struct Identity(Arc<Inner>);

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", lock(&self.0.client).entity())
    }
}

impl Identity {
    /// `entity` with its key.
    pub fn new(entity: EntityId, key: CryptoKey) -> Self {
        Self::make(entity, key, None)
    }

    /// The same beside a monitor of this process: its keys are read from what that monitor holds,
    /// and need not be asked for.
    pub fn beside(entity: EntityId, key: CryptoKey, realm: Arc<RwLock<Realm>>) -> Self {
        Self::make(entity, key, Some(realm))
    }

    fn make(entity: EntityId, key: CryptoKey, realm: Option<Arc<RwLock<Realm>>>) -> Self {
        let service = entity.service();
        let client = Mutex::new(Client::new(entity, key, Services::USUAL));
        Self(Arc::new(Inner {
            client,
            service,
            keys: RwLock::default(),
            realm,
            stale: AtomicBool::new(false),
        }))
    }

    /// Runs `f` with our service's keys, if we have them.
    fn with_keys<T>(&self, f: impl FnOnce(&RotatingKeys) -> T) -> Option<T> {
        if let Some(realm) = &self.0.realm {
            let realm = realm.read().unwrap_or_else(PoisonError::into_inner);
            return realm.keys.get(self.0.service?).map(f);
        }
        self.0.keys.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(f)
    }

    /// With this it goes out.
    pub fn login(&self) -> Arc<dyn Login> {
        Arc::new(self.clone())
    }

    /// What is to be sent to the monitor now, over the link that is open: requests for new
    /// tickets and for our service's keys. To be called when the link opens, and now and then.
    pub fn requests(&self) -> Vec<Message> {
        let now = clock::wall();
        let auth = |payload: Vec<u8>| {
            let body = MAuth {
                version: 0,
                protocol: METHOD_CEPHX,
                payload: payload.into(),
                monmap_epoch: 0,
            };
            body.into_message(0)
        };
        let mut out = Vec::new();
        let client = lock(&self.0.client);
        // Through memory nobody asked who we are, and nobody will.
        if client.global_id() == 0 {
            return out;
        }
        match client.renewal(now, &mut draw) {
            Ok(Some(payload)) => out.push(auth(payload)),
            Ok(None) => {}
            Err(e) => tracing::warn!("new tickets: {e}"),
        }
        drop(client);
        if self.0.service.is_some_and(|s| s != Service::Mon)
            && self.0.realm.is_none()
            && self.wants_keys(now)
        {
            out.push(auth(Client::service_keys_request()));
        }
        out
    }

    /// Are the keys missing, or soon to be replaced?
    fn wants_keys(&self, now: UTime) -> bool {
        let stale = self.0.stale.swap(false, Ordering::Relaxed);
        let keys = self.0.keys.read().unwrap_or_else(PoisonError::into_inner);
        stale
            || keys.as_ref().is_none_or(|k| {
                let lifetime = k.next.expires.sec.saturating_sub(k.current.expires.sec);
                now.sec.saturating_add(lifetime / 4) >= k.current.expires.sec
            })
    }

    /// The monitor's answer to one of [`Identity::requests`].
    pub fn reply(&self, m: &Message) {
        if m.kind != kind::AUTH_REPLY {
            return;
        }
        let payload = match MAuthReply::from_message(m) {
            Ok(r) if r.result == 0 => r.payload,
            Ok(r) => {
                tracing::warn!(
                    "the monitor refuses to renew tickets: {} ({})",
                    r.message,
                    r.result
                );
                return;
            }
            Err(e) => {
                tracing::warn!("answer about tickets: {e}");
                return;
            }
        };
        let mut client = lock(&self.0.client);
        // Tickets and keys answer with the number of their request in front; each takes its own.
        match client.service_keys(&payload) {
            Ok(keys) => *self.0.keys.write().unwrap_or_else(PoisonError::into_inner) = Some(keys),
            Err(AuthError::Request(_)) => {
                if let Err(e) = client.renewed(&payload, clock::wall()) {
                    tracing::warn!("new tickets: {e}");
                }
            }
            Err(e) => tracing::warn!("service keys: {e}"),
        }
    }

    /// The number that the monitors gave us; 0 before they did.
    pub fn global_id(&self) -> u64 {
        lock(&self.0.client).global_id()
    }

    /// True once others can be let in and we can go to others.
    pub fn is_ready(&self) -> bool {
        self.with_keys(|_| ()).is_some()
    }

    /// Lets in who has a ticket for our service. `grants` reads what it may do.
    pub fn door(
        &self,
        required: Required,
        grants: fn(&str) -> Result<Grants, String>,
    ) -> Arc<dyn Authenticator> {
        Arc::new(ServiceDoor { identity: self.clone(), required, grants })
    }
}

/// How one daemon goes out and lets others in.
#[derive(Clone, Debug)]
pub struct DaemonAuth {
    /// Who it is; `None` without authentication.
    pub identity: Option<Identity>,
    /// What it asks of others.
    pub required: Required,
}

impl DaemonAuth {
    /// Without authentication.
    pub fn none() -> Self {
        Self { identity: None, required: Required::none() }
    }

    /// With what `me` goes out.
    pub fn login(&self, me: &crate::Peer) -> Arc<dyn Login> {
        match &self.identity {
            Some(identity) => identity.login(),
            None => crate::auth::NoneLogin::of(me),
        }
    }

    /// Who is let in; `grants` reads what a ticket allows.
    pub fn door(&self, grants: fn(&str) -> Result<Grants, String>) -> Arc<dyn Authenticator> {
        match &self.identity {
            Some(identity) => identity.door(self.required.clone(), grants),
            None => Arc::new(Trusting::default()),
        }
    }

    /// See [`Identity::requests`].
    pub fn requests(&self) -> Vec<Message> {
        self.identity.as_ref().map(Identity::requests).unwrap_or_default()
    }

    /// See [`Identity::reply`].
    pub fn reply(&self, m: &Message) {
        if let Some(identity) = &self.identity {
            identity.reply(m);
        }
    }
}

impl Login for Identity {
    fn credentials(&self, to: EntityType) -> Result<Box<dyn Credentials>, String> {
        match service_of(to) {
            Some(Service::Mon) => Ok(Box::new(ToMonitor { identity: self.clone(), again: true })),
            Some(service) => {
                let client = lock(&self.0.client);
                let authorizer = client
                    .authorizer(service, clock::wall(), &mut draw)
                    .map_err(|e| e.to_string())?;
                Ok(Box::new(ToService {
                    identity: self.clone(),
                    service,
                    authorizer: Some(authorizer),
                }))
            }
            None => Err("clients do not listen".into()),
        }
    }
}

#[derive(Debug)]
struct ToMonitor {
    identity: Identity,
    /// One more attempt as a new session, should the monitor not give the old one back.
    again: bool,
}

impl Credentials for ToMonitor {
    fn request(&mut self) -> Result<AuthStart, String> {
        Ok(AuthStart {
            method: METHOD_CEPHX,
            payload: lock(&self.identity.0.client).hello().into(),
        })
    }

    fn bad_method(&mut self, bad: &BadMethod) -> Option<AuthStart> {
        let mut client = lock(&self.identity.0.client);
        if bad.methods.contains(&METHOD_CEPHX)
            && client.global_id() != 0
            && std::mem::take(&mut self.again)
        {
            client.reset();
            return Some(AuthStart { method: METHOD_CEPHX, payload: client.hello().into() });
        }
        None
    }

    fn more(&mut self, payload: &[u8]) -> Result<Bytes, String> {
        lock(&self.identity.0.client)
            .answer(payload, &mut draw)
            .map(Bytes::from)
            .map_err(|e| e.to_string())
    }

    fn done(&mut self, global_id: u64, mode: Mode, payload: &[u8]) -> Result<Secrets, String> {
        let mut client = lock(&self.identity.0.client);
        let connected = client.finish(global_id, payload, mode == Mode::Secure, clock::wall());
        let connected = connected.map_err(|e| e.to_string())?;
        Ok(secrets(&connected.session_key, &connected.connection_secret))
    }
}

#[derive(Debug)]
struct ToService {
    identity: Identity,
    service: Service,
    authorizer: Option<Authorizer>,
}

impl Credentials for ToService {
    fn request(&mut self) -> Result<AuthStart, String> {
        let authorizer = self.authorizer.as_ref().ok_or("the authorizer is used up")?;
        Ok(AuthStart { method: METHOD_CEPHX, payload: authorizer.hello().into() })
    }

    fn bad_method(&mut self, bad: &BadMethod) -> Option<AuthStart> {
        // The ticket is not good there (any more): the monitor is asked for another.
        tracing::debug!("{} refuses our ticket: {}", self.service, bad.result);
        lock(&self.identity.0.client).drop_ticket(self.service);
        None
    }

    fn more(&mut self, payload: &[u8]) -> Result<Bytes, String> {
        let authorizer = self.authorizer.as_mut().ok_or("the authorizer is used up")?;
        authorizer.answer(payload, &mut draw).map(Bytes::from).map_err(|e| e.to_string())
    }

    fn done(&mut self, _: u64, mode: Mode, payload: &[u8]) -> Result<Secrets, String> {
        let authorizer = self.authorizer.take().ok_or("the authorizer is used up")?;
        let connected =
            authorizer.finish(payload, mode == Mode::Secure).map_err(|e| e.to_string())?;
        Ok(secrets(&connected.session_key, &connected.connection_secret))
    }
}

/// The door of an OSD, manager or metadata server.
struct ServiceDoor {
    identity: Identity,
    required: Required,
    grants: fn(&str) -> Result<Grants, String>,
}

impl Authenticator for ServiceDoor {
    fn methods(&self) -> Vec<u32> {
        self.required.all()
    }

    fn begin(&self, caller: &Caller) -> Box<dyn Exchange> {
        if !self.required.allows(caller) {
            return Box::new(NotAllowed(caller.clone()));
        }
        if caller.method == METHOD_NONE {
            return Box::new(Trusting::default());
        }
        let Some(service) = self.identity.0.service else {
            return Box::new(NotAllowed(caller.clone()));
        };
        Box::new(ByTicket {
            identity: self.identity.clone(),
            exchange: ServiceExchange::new(service),
            secure: caller.mode == Mode::Secure,
            grants: self.grants,
        })
    }
}

/// Answers that the method is not allowed for such a caller.
struct NotAllowed(Caller);

impl Exchange for NotAllowed {
    fn step(&mut self, _: Bytes) -> Step {
        let Caller { from, hello, method, .. } = &self.0;
        refused(format!("{from}: method {method} is not allowed for a {}", hello.as_str()))
    }
}

struct ByTicket {
    identity: Identity,
    exchange: ServiceExchange,
    secure: bool,
    grants: fn(&str) -> Result<Grants, String>,
}

impl Exchange for ByTicket {
    fn step(&mut self, payload: Bytes) -> Step {
        let (exchange, secure) = (&mut self.exchange, self.secure);
        let step = self
            .identity
            .with_keys(|keys| exchange.step(&payload, secure, keys, clock::wall(), &mut draw));
        let Some(step) = step else {
            return Verdict::NotNow("the monitors have not given us keys yet".into()).into();
        };
        match step {
            Ok(ServiceStep::More(payload)) => Verdict::More(payload.into()).into(),
            Ok(ServiceStep::Done(who)) => match (self.grants)(&who.caps) {
                Ok(grants) => {
                    let granted = Granted {
                        kind: who.entity.kind(),
                        id: who.entity.id().to_owned(),
                        global_id: who.global_id,
                        payload: who.payload.into(),
                        secrets: secrets(&who.session_key, &who.connection_secret),
                    };
                    Verdict::In(granted, grants).into()
                }
                Err(why) => refused(format!("{}: {why}", who.entity)),
            },
            Err(e) => {
                if matches!(e, AuthError::UnknownSecret(_) | AuthError::ForgedTicket) {
                    self.identity.0.stale.store(true, Ordering::Relaxed);
                }
                refused(e)
            }
        }
    }
}

/// What a monitor knows of users and keys at this moment; its shell keeps it new.
#[derive(Clone, Debug, Default)]
pub struct Realm {
    /// Users.
    pub db: Arc<AuthDb>,
    /// Keys of the services.
    pub keys: Arc<ServiceKeys>,
    /// Rules.
    pub policy: Policy,
    /// False while the monitor cannot know what holds (no quorum): nobody is let in.
    pub open: bool,
}

/// What a monitor's door found out about a peer; carried in [`Grants`].
#[derive(Clone, Debug)]
pub enum MonPeer {
    /// Somebody with a key.
    User {
        /// Its session, which also holds its capabilities for monitors.
        session: Box<Session>,
        /// The key was the pending one, which is now to become the key.
        used_pending_key: bool,
    },
    /// Another monitor.
    Monitor,
}

/// A monitor's door.
pub struct MonDoor {
    realm: Arc<RwLock<Realm>>,
    assign_id: AssignId,
    required: Required,
    shared: Option<CryptoKey>,
}

impl MonDoor {
    /// Decides by `realm`. `shared` is the monitors' own key (`mon.`).
    pub fn open(
        realm: Arc<RwLock<Realm>>,
        assign_id: AssignId,
        required: Required,
        shared: Option<CryptoKey>,
    ) -> Arc<dyn Authenticator> {
        Arc::new(Self { realm, assign_id, required, shared })
    }
}

impl Authenticator for MonDoor {
    fn methods(&self) -> Vec<u32> {
        self.required.all()
    }

    fn begin(&self, caller: &Caller) -> Box<dyn Exchange> {
        if !self.required.allows(caller) {
            return Box::new(NotAllowed(caller.clone()));
        }
        if caller.method == METHOD_NONE {
            return Box::new(Trusting { assign_id: Some(self.assign_id.clone()) });
        }
        let secure = caller.mode == Mode::Secure;
        if caller.hello == EntityType::Mon {
            return match &self.shared {
                Some(key) => Box::new(ByMonKey {
                    key: TicketKey::of_monitors(key),
                    exchange: ServiceExchange::new(Service::Mon),
                    secure,
                }),
                None => Box::new(NotAllowed(caller.clone())),
            };
        }
        Box::new(ByKey {
            realm: self.realm.clone(),
            assign_id: self.assign_id.clone(),
            hello: caller.hello,
            begun: None,
            secure,
        })
    }
}

struct ByMonKey {
    key: TicketKey,
    exchange: ServiceExchange,
    secure: bool,
}

impl Exchange for ByMonKey {
    fn step(&mut self, payload: Bytes) -> Step {
        match self.exchange.step(&payload, self.secure, &self.key, clock::wall(), &mut draw) {
            Ok(ServiceStep::More(payload)) => Verdict::More(payload.into()).into(),
            Ok(ServiceStep::Done(who)) if who.entity.kind() == EntityType::Mon => {
                let granted = Granted {
                    kind: EntityType::Mon,
                    id: who.entity.id().to_owned(),
                    global_id: who.global_id,
                    payload: who.payload.into(),
                    secrets: secrets(&who.session_key, &who.connection_secret),
                };
                Verdict::In(granted, Grants::new(MonPeer::Monitor)).into()
            }
            Ok(ServiceStep::Done(who)) => refused(format!("{} is no monitor", who.entity)),
            Err(e) => refused(e),
        }
    }
}

/// May who said hello as `hello` be of that kind? A metadata server of Ceph's fetches its options
/// as a client before it says hello as what it is.
fn said_so(hello: EntityType, kind: EntityType) -> bool {
    kind == hello || hello == EntityType::Client && kind == EntityType::Mds
}

struct ByKey {
    realm: Arc<RwLock<Realm>>,
    assign_id: AssignId,
    hello: EntityType,
    begun: Option<monitor::Exchange>,
    secure: bool,
}

impl Exchange for ByKey {
    fn step(&mut self, payload: Bytes) -> Step {
        let realm = self.realm.read().unwrap_or_else(PoisonError::into_inner);
        if !realm.open {
            return Verdict::NotNow("this monitor cannot know who is who at the moment".into())
                .into();
        }
        let Some(exchange) = self.begun.take() else {
            return match monitor::Exchange::start(&payload, &mut draw) {
                // What a peer says first decides which methods it is asked for.
                Ok((exchange, _)) if !said_so(self.hello, exchange.entity().kind()) => {
                    refused(format!("{} said to be a {}", exchange.entity(), self.hello.as_str()))
                }
                Ok((exchange, challenge)) => {
                    self.begun = Some(exchange);
                    Verdict::More(challenge.into()).into()
                }
                Err(e) => refused(e),
            };
        };
        let authority = Authority {
            db: &realm.db,
            keys: &realm.keys,
            policy: realm.policy,
            now: clock::wall(),
        };
        match exchange.finish(
            &payload,
            self.secure,
            &mut || (self.assign_id)(),
            &authority,
            &mut draw,
        ) {
            Ok(who) => {
                let granted = Granted {
                    kind: who.session.entity.kind(),
                    id: who.session.entity.id().to_owned(),
                    global_id: who.session.global_id,
                    payload: who.payload.into(),
                    secrets: secrets(&who.session_key, &who.connection_secret),
                };
                let (session, used_pending_key) = (Box::new(who.session), who.used_pending_key);
                Verdict::In(granted, Grants::new(MonPeer::User { session, used_pending_key }))
                    .into()
            }
            Err(e @ AuthError::NoGlobalId) => Verdict::NotNow(e.to_string()).into(),
            Err(e) => refused(e),
        }
    }
}

/// With what a monitor goes to other monitors: the key that all of them share.
#[derive(Clone)]
pub struct MonLogin {
    name: EntityId,
    key: CryptoKey,
}

impl MonLogin {
    /// For monitor `name` (`mon.a`).
    pub fn of(name: EntityId, key: CryptoKey) -> Arc<dyn Login> {
        Arc::new(Self { name, key })
    }
}

impl Login for MonLogin {
    fn credentials(&self, to: EntityType) -> Result<Box<dyn Credentials>, String> {
        if to != EntityType::Mon {
            return Err("a monitor goes to monitors only".into());
        }
        let authorizer =
            Authorizer::among_monitors(&self.name, 0, &self.key, clock::wall(), &mut draw);
        Ok(Box::new(ToMonAsMon(Some(authorizer.map_err(|e| e.to_string())?))))
    }
}

#[derive(Debug)]
struct ToMonAsMon(Option<Authorizer>);

impl Credentials for ToMonAsMon {
    fn request(&mut self) -> Result<AuthStart, String> {
        let authorizer = self.0.as_ref().ok_or("the authorizer is used up")?;
        Ok(AuthStart { method: METHOD_CEPHX, payload: authorizer.hello().into() })
    }

    fn bad_method(&mut self, _: &BadMethod) -> Option<AuthStart> {
        None
    }

    fn more(&mut self, payload: &[u8]) -> Result<Bytes, String> {
        let authorizer = self.0.as_mut().ok_or("the authorizer is used up")?;
        authorizer.answer(payload, &mut draw).map(Bytes::from).map_err(|e| e.to_string())
    }

    fn done(&mut self, _: u64, mode: Mode, payload: &[u8]) -> Result<Secrets, String> {
        let authorizer = self.0.take().ok_or("the authorizer is used up")?;
        let connected =
            authorizer.finish(payload, mode == Mode::Secure).map_err(|e| e.to_string())?;
        Ok(secrets(&connected.session_key, &connected.connection_secret))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_auth::db::User;
    use spirula_auth::rotating::Lifetimes;
    use spirula_auth::{KeyType, Services};

    fn realm() -> (Arc<RwLock<Realm>>, CryptoKey, CryptoKey) {
        let now = clock::wall();
        let make = |t| CryptoKey::generate(t, now, &mut draw);
        let (osd, client) = (make(KeyType::Aes256k), make(KeyType::Aes));
        let caps = |list: &[(&str, &str)]| {
            list.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
        };
        let mut db = AuthDb::default();
        let user = |key: &CryptoKey, list: &[(&str, &str)]| User {
            key: key.clone(),
            pending_key: None,
            caps: caps(list),
        };
        db.put(
            "osd.1".parse().unwrap(),
            user(&osd, &[("mon", "allow profile osd"), ("osd", "allow *")]),
        );
        db.put(
            "client.a".parse().unwrap(),
            user(&client, &[("mon", "allow r"), ("osd", "allow r pool=x")]),
        );
        let mut keys = ServiceKeys::default();
        for (service, new) in keys.due(now, Lifetimes::default(), &mut draw) {
            keys.set(service, new);
        }
        let realm =
            Realm { db: Arc::new(db), keys: Arc::new(keys), policy: Policy::default(), open: true };
        (Arc::new(RwLock::new(realm)), osd, client)
    }

    fn caller(hello: EntityType, method: u32) -> Caller {
        Caller { from: ([127, 0, 0, 1], 1).into(), hello, method, mode: Mode::Secure }
    }

    /// Carries payloads between the two sides until one of them ends it.
    fn meet(
        c: &mut dyn Credentials,
        door: &dyn Authenticator,
        hello: EntityType,
    ) -> Result<(Granted, Grants), String> {
        let start = c.request()?;
        let mut exchange = door.begin(&caller(hello, start.method));
        let mut payload = start.payload;
        loop {
            let Step::Now(verdict) = exchange.step(payload) else { return Err("later".into()) };
            match verdict {
                Verdict::More(p) => payload = c.more(&p)?,
                Verdict::In(granted, grants) => {
                    let ours = c.done(granted.global_id, Mode::Secure, &granted.payload)?;
                    assert_eq!(ours, granted.secrets, "both sides know the same");
                    return Ok((granted, grants));
                }
                Verdict::Refused(_, why) | Verdict::NotNow(why) => return Err(why),
            }
        }
    }

    fn mon_door(realm: &Arc<RwLock<Realm>>) -> Arc<dyn Authenticator> {
        MonDoor::open(realm.clone(), Arc::new(|| Some(4242)), Required::cephx(), None)
    }

    #[test]
    fn a_user_gets_in_at_the_monitor_and_from_there_at_a_daemon_that_fetched_its_keys() {
        let (realm, osd_key, client_key) = realm();
        let osd = Identity::new("osd.1".parse().unwrap(), osd_key);
        let user = Identity::new("client.a".parse().unwrap(), client_key);
        let door = mon_door(&realm);
        let open = |who: &Identity, kind| {
            meet(&mut *who.credentials(EntityType::Mon).unwrap(), &*door, kind).unwrap()
        };
        let (_, grants) = open(&osd, EntityType::Osd);
        let Some(MonPeer::User { session, .. }) = grants.get::<MonPeer>() else {
            panic!("no session")
        };
        let mut session = session.clone();
        let osd_door = osd.door(Required::cephx(), |caps| Ok(Grants::new(caps.to_owned())));
        open(&user, EntityType::Client);
        // No keys yet: come again.
        let why =
            meet(&mut *user.credentials(EntityType::Osd).unwrap(), &*osd_door, EntityType::Client)
                .unwrap_err();
        assert!(why.contains("keys"), "{why}");
        let ask = osd.requests();
        assert_eq!(ask.len(), 1);
        let held = realm.read().unwrap();
        let authority =
            Authority { db: &held.db, keys: &held.keys, policy: held.policy, now: clock::wall() };
        let payload = MAuth::from_message(&ask[0]).unwrap().payload;
        let payload = session.handle(&payload, &authority, &mut draw).unwrap();
        let reply =
            MAuthReply { protocol: METHOD_CEPHX, payload: payload.into(), ..MAuthReply::default() };
        osd.reply(&reply.into_message(0));
        assert!(osd.is_ready() && osd.requests().is_empty());
        let (granted, grants) =
            meet(&mut *user.credentials(EntityType::Osd).unwrap(), &*osd_door, EntityType::Client)
                .unwrap();
        assert_eq!((granted.id.as_str(), granted.global_id), ("a", 4242));
        assert_eq!(grants.get::<String>().unwrap(), "allow r pool=x");
    }

    #[test]
    fn wrong_keys_wrong_kinds_and_method_none_are_refused() {
        let (realm, ..) = realm();
        let door = mon_door(&realm);
        let wrong = Identity::new(
            "client.a".parse().unwrap(),
            CryptoKey::generate(KeyType::Aes, clock::wall(), &mut draw),
        );
        let mut go = wrong.credentials(EntityType::Mon).unwrap();
        assert!(meet(&mut *go, &*door, EntityType::Client).is_err());
        let mut go = wrong.credentials(EntityType::Mon).unwrap();
        assert!(meet(&mut *go, &*door, EntityType::Osd).unwrap_err().contains("said to be"));
        let mut none = door.begin(&caller(EntityType::Client, METHOD_NONE));
        assert!(matches!(none.step(Bytes::new()), Step::Now(Verdict::Refused(..))));
        realm.write().unwrap().open = false;
        let mut go = wrong.credentials(EntityType::Mon).unwrap();
        assert!(meet(&mut *go, &*door, EntityType::Client).unwrap_err().contains("cannot know"));
    }

    #[test]
    fn monitors_know_each_other_by_their_shared_key() {
        let (realm, shared, other) = realm();
        let strong = CryptoKey::generate(KeyType::Aes256k, clock::wall(), &mut draw);
        let door =
            MonDoor::open(realm, Arc::new(|| Some(1)), Required::cephx(), Some(shared.clone()));
        let name: EntityId = "mon.b".parse().unwrap();
        let go = |key: CryptoKey| {
            let login = MonLogin::of(name.clone(), key);
            meet(&mut *login.credentials(EntityType::Mon).unwrap(), &*door, EntityType::Mon)
        };
        assert!(matches!(go(shared).unwrap().1.get::<MonPeer>(), Some(MonPeer::Monitor)));
        assert!(go(strong).is_err() && go(other).is_err());
        assert_eq!(Services::USUAL.0 & 1, 1);
    }
}
