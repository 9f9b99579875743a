//! The cluster in memory, and its scheduler: one thread, virtual time, everything else drawn from a
//! seed.

use super::memory::Memory;
use crate::rados::{News, Rados, Watch};
use bytes::Bytes;
use spirula_classes::{Caller, Stop};
use spirula_client::{Reply, Request};
use spirula_encoding::{Encoder, UTime, to_vec};
use spirula_messages::ceph::osd::{NotifyReply, OpResult};
use spirula_messages::ceph::{OsdOp, op};
use spirula_types::{EVersion, EntityAddr, EntityName, ObjectLocator, PoolId, SNAP_HEAD, errno};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::sync::mpsc;

type Task = Pin<Box<dyn Future<Output = ()>>>;

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Running {
    client: u64,
    flag: Arc<Flag>,
    task: Task,
}

struct Watching {
    client: u64,
    /// What its client was called when it came.
    name: EntityName,
    cookie: u64,
    oid: Bytes,
    news: mpsc::UnboundedSender<News>,
    /// Its client is dead: it ends then.
    until: Option<Duration>,
}

#[derive(Default)]
struct Notification {
    waits: BTreeSet<(u64, u64)>,
    replies: Vec<NotifyReply>,
}

struct State {
    random: u64,
    now: Duration,
    objects: BTreeMap<Bytes, Memory>,
    watches: Vec<Watching>,
    open: BTreeMap<u64, Notification>,
    last: u64,
    fenced: BTreeSet<u32>,
    dead: BTreeSet<u64>,
    /// Snapshots whose objects are gone.
    trimmed: BTreeSet<u64>,
    /// Whose attempts to take a lock arrive so late, and how many of them found it held.
    late: Option<(u64, Duration)>,
    held: u64,
    /// Operations on objects of data.
    asked: u64,
    /// Until when who sleeps.
    sleepers: Vec<(Duration, Waker)>,
    new: Vec<(u64, Task)>,
    /// Reads of the parent's objects that are under way, and the most that ever were.
    of_parent: (usize, usize),
    /// What becomes of operations.
    rule: Option<Rule>,
    /// How often what waits was let go, and who waits for that.
    released: u64,
    waits: Vec<Waker>,
    /// Numbers that clients were given anew.
    renamed: BTreeMap<u64, u64>,
    /// What whoever wants to watch is told.
    no_watches: Option<i32>,
}

/// What becomes of an operation on its way.
#[derive(Clone, Copy, PartialEq)]
pub enum Fate {
    /// It arrives.
    Arrives,
    /// It arrives when [`World::release`] is called the next time.
    Waits,
    /// It does not, and this is answered.
    Answered(i32),
}

type Rule = Box<dyn FnMut(&Request) -> Fate>;

/// The cluster, its clients and time.
pub struct World {
    state: Rc<RefCell<State>>,
    running: RefCell<Vec<Running>>,
}

/// One client.
pub struct Sim {
    id: u64,
    state: Rc<RefCell<State>>,
}

fn addr(id: u64) -> EntityAddr {
    EntityAddr { nonce: 100 + id as u32, ..EntityAddr::v2(([10, 0, 0, 1], 0).into(), 0) }
}

impl State {
    fn name(&self, client: u64) -> EntityName {
        EntityName::client(self.renamed.get(&client).copied().unwrap_or(client))
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % n
    }

    fn call(
        &mut self,
        client: u64,
        oid: &Bytes,
        class: &str,
        method: &str,
        input: Bytes,
    ) -> (i32, Bytes) {
        let name = self.name(client);
        let object = self.objects.entry(oid.clone()).or_default();
        (object.caller, object.largest) = (Caller { name, addr: addr(client) }, 1 << 30);
        let (_, method) = spirula_classes::find(class.as_bytes(), method.as_bytes()).unwrap();
        let (result, output) = method.run(object, input);
        match result {
            Ok(r) => (r, output),
            Err(Stop::Errno(e)) => (-e, output),
            Err(Stop::Later) => panic!("later"),
        }
    }

    /// Does a vector; nothing of it if one of its ops fails.
    fn perform(&mut self, client: u64, r: &Request) -> Reply {
        let reply =
            |result, ops| Reply { result, ops, version: EVersion::default(), user_version: 0 };
        if self.fenced.contains(&addr(client).nonce) {
            return reply(-errno::ESHUTDOWN, Vec::new());
        }
        self.asked += u64::from(r.oid.starts_with(b"rbd_data."));
        if self.trimmed.contains(&r.snapid) {
            let none = |o: &OsdOp| OpResult {
                op: OsdOp { indata: Bytes::new(), ..o.clone() },
                rval: -errno::ENOENT,
                output_crc: None,
            };
            return reply(-errno::ENOENT, r.ops.iter().map(none).collect());
        }
        let before = self.objects.get(&r.oid).cloned();
        let mut done = Vec::new();
        for o in &r.ops {
            let (result, output) = self.one(client, &r.oid, o);
            done.push(OpResult {
                op: OsdOp { indata: output, ..o.clone() },
                rval: result,
                output_crc: None,
            });
            if result < 0 {
                match before {
                    Some(b) => drop(self.objects.insert(r.oid.clone(), b)),
                    None => drop(self.objects.remove(&r.oid)),
                }
                return reply(result, done);
            }
        }
        reply(0, done)
    }

    fn one(&mut self, client: u64, oid: &Bytes, o: &OsdOp) -> (i32, Bytes) {
        let none = (0, Bytes::new());
        if o.op == op::CALL {
            let c = o.call_args().unwrap();
            let text = |b: &Bytes| String::from_utf8(b.to_vec()).unwrap();
            return self.call(client, oid, &text(&c.class), &text(&c.method), c.input);
        }
        if o.op == op::LIST_WATCHERS {
            let mut e = Encoder::new();
            e.versioned(1, 1, |e| {
                e.list(self.watches.iter().filter(|w| w.oid == *oid), |e, w| {
                    e.versioned(2, 1, |e| {
                        e.put(&w.name);
                        e.u64(w.cookie);
                        e.u32(30);
                        e.put(&addr(w.client));
                    });
                });
            });
            return (0, e.into_bytes());
        }
        let object = self.objects.entry(oid.clone()).or_default();
        object.largest = 1 << 30;
        let e = o.extent();
        let (from, length) = (e.offset as usize, e.length as usize);
        match o.op {
            op::STAT | op::READ | op::DELETE if !object.exists => (-errno::ENOENT, Bytes::new()),
            op::STAT => {
                let mut out = Encoder::new();
                out.u64(object.data.len() as u64);
                (0, out.into_bytes())
            }
            op::READ => {
                let end = (from + length).min(object.data.len());
                (0, Bytes::copy_from_slice(object.data.get(from..end).unwrap_or_default()))
            }
            op::WRITE => {
                object.exists = true;
                let end = from + o.indata.len();
                object.data.resize(object.data.len().max(end), 0);
                object.data[from..end].copy_from_slice(&o.indata);
                none
            }
            op::CREATE => {
                object.exists = true;
                none
            }
            op::ZERO => {
                let end = (from + length).min(object.data.len());
                object.data.get_mut(from..end).unwrap_or_default().fill(0);
                none
            }
            op::TRUNCATE => {
                if object.exists {
                    object.data.resize(from, 0);
                }
                none
            }
            op::DELETE => {
                *object = Memory::default();
                none
            }
            _ => panic!("{o}"),
        }
    }
}

impl World {
    /// A cluster with the image `p/i` of so many objects, with the features that images have by
    /// default.
    pub fn new(seed: u64, object: u64, objects: u64) -> Self {
        Self::striped(seed, object, objects, None)
    }

    /// The same, striped in units of so many bytes over so many objects.
    pub fn striped(seed: u64, object: u64, objects: u64, stripes: Option<(u64, u64)>) -> Self {
        let state = State {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            now: Duration::ZERO,
            objects: BTreeMap::new(),
            watches: Vec::new(),
            open: BTreeMap::new(),
            last: 0,
            fenced: BTreeSet::new(),
            dead: BTreeSet::new(),
            trimmed: BTreeSet::new(),
            late: None,
            held: 0,
            asked: 0,
            sleepers: Vec::new(),
            new: Vec::new(),
            of_parent: (0, 0),
            rule: None,
            released: 0,
            waits: Vec::new(),
            renamed: BTreeMap::new(),
            no_watches: None,
        };
        let world = Self { state: Rc::new(RefCell::new(state)), running: RefCell::default() };
        let call = |oid: &'static str, method, input: Vec<u8>| {
            let mut s = world.state.borrow_mut();
            s.objects.entry(Bytes::from_static(oid.as_bytes())).or_default().exists = true;
            let (r, _) =
                s.call(1000, &Bytes::from_static(oid.as_bytes()), "rbd", method, input.into());
            assert_eq!(r, 0, "{method}");
        };
        let mut e = Encoder::new();
        e.u64(object * objects);
        e.u8(object.trailing_zeros() as u8);
        e.u64(if stripes.is_some() { 0b11_1111 } else { 0b11_1101 });
        e.str("rbd_data.ab");
        e.i64(-1);
        call("rbd_id.i", "set_id", to_vec("ab"));
        call("rbd_header.ab", "create", e.into_vec());
        if let Some(stripes) = stripes {
            call("rbd_header.ab", "set_stripe_unit_count", to_vec(&stripes));
        }
        let mut e = Encoder::new();
        e.u64(objects);
        e.u8(0);
        call("rbd_object_map.ab", "object_map_resize", e.into_vec());
        world
    }

    /// Makes the image a clone of a snapshot of another one of the same size, which has no objects.
    pub fn clone_of_empty(&self, object: u64, objects: u64) {
        let call = |oid: &'static str, method, input: Vec<u8>| {
            let oid = Bytes::from_static(oid.as_bytes());
            let mut s = self.state.borrow_mut();
            s.objects.entry(oid.clone()).or_default().exists = true;
            let (r, _) = s.call(1000, &oid, "rbd", method, input.into());
            assert_eq!(r, 0, "{method}");
        };
        let mut e = Encoder::new();
        e.u64(object * objects);
        e.u8(object.trailing_zeros() as u8);
        e.u64(1);
        e.str("rbd_data.cd");
        e.i64(-1);
        call("rbd_header.cd", "create", e.into_vec());
        let mut e = Encoder::new();
        e.str("s");
        e.u64(7);
        call("rbd_header.cd", "snapshot_add", e.into_vec());
        let mut e = Encoder::new();
        e.i64(1);
        e.str("cd");
        e.u64(7);
        e.u64(object * objects);
        call("rbd_header.ab", "set_parent", e.into_vec());
    }

    /// The most reads of the parent's objects that were ever under way at a time.
    pub fn most_of_parent(&self) -> usize {
        self.state.borrow().of_parent.1
    }

    pub fn client(&self, id: u64) -> Rc<Sim> {
        Rc::new(Sim { id: 4000 + id, state: self.state.clone() })
    }

    pub fn start(&self, id: u64, task: Task) {
        self.state.borrow_mut().new.push((4000 + id, task));
    }

    /// Runs until nobody does anything any more; one in so many hundred turns somebody dies,
    /// `deaths` at most.
    pub fn run(&self, mut deaths: u64) {
        let mut turns = 0u64;
        loop {
            turns += 1;
            assert!(turns < 2_000_000, "it goes on for ever");
            let mut running = self.running.borrow_mut();
            for (client, task) in std::mem::take(&mut self.state.borrow_mut().new) {
                running.push(Running { client, flag: Arc::new(Flag(AtomicBool::new(true))), task });
            }
            let ready: Vec<usize> =
                (0..running.len()).filter(|i| running[*i].flag.0.load(Ordering::Relaxed)).collect();
            if ready.is_empty() {
                drop(running);
                if !self.pass_time() {
                    return;
                }
                continue;
            }
            let pick = ready[self.state.borrow_mut().below(ready.len() as u64) as usize];
            // The network (0) does not die.
            if deaths > 0 && running[pick].client != 0 && self.state.borrow_mut().below(120) == 0 {
                deaths -= 1;
                let dies = running[pick].client;
                // What it has sent may still arrive: operations that it began are tasks of
                // nobody's.
                let gone: Vec<Running> = running.extract_if(.., |r| r.client == dies).collect();
                drop(running);
                drop(gone);
                self.kill(dies);
                continue;
            }
            let mut one = running.swap_remove(pick);
            drop(running);
            one.flag.0.store(false, Ordering::Relaxed);
            let waker = Waker::from(one.flag.clone());
            if one.task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
                self.running.borrow_mut().push(one);
            }
        }
    }

    fn kill(&self, client: u64) {
        let mut s = self.state.borrow_mut();
        s.dead.insert(client);
        let until = s.now + Duration::from_secs(30);
        s.watches.iter_mut().filter(|w| w.client == client).for_each(|w| w.until = Some(until));
        // Nobody of it answers.
        s.open.values_mut().for_each(|n| n.waits.retain(|(c, _)| *c != client));
        s.new.retain(|(c, _)| *c != client);
    }

    /// Nobody can go on: time passes until somebody can. False if nobody ever will.
    fn pass_time(&self) -> bool {
        let mut s = self.state.borrow_mut();
        let Some(next) = s.sleepers.iter().map(|(at, _)| *at).min() else { return false };
        let now = next.max(s.now);
        s.now = now;
        s.watches.retain(|w| w.until.is_none_or(|u| u > now));
        s.sleepers.extract_if(.., |(at, _)| *at <= now).for_each(|(_, w)| w.wake());
        true
    }

    pub fn flags(&self) -> u64 {
        let (r, out) = self.ask("rbd_header.ab", "get_flags", to_vec(&SNAP_HEAD));
        assert_eq!(r, 0);
        crate::header::number(&out).unwrap()
    }

    pub fn object_map(&self) -> Bytes {
        self.ask("rbd_object_map.ab", "object_map_load", Vec::new()).1
    }

    fn ask(&self, oid: &'static str, method: &str, input: Vec<u8>) -> (i32, Bytes) {
        self.state.borrow_mut().call(
            1000,
            &Bytes::from_static(oid.as_bytes()),
            "rbd",
            method,
            input.into(),
        )
    }

    /// Makes a snapshot; nobody is told.
    pub fn snapshot(&self, id: u64, name: &str) {
        let mut e = Encoder::new();
        e.str(name);
        e.u64(id);
        assert_eq!(self.ask("rbd_header.ab", "snapshot_add", e.into_vec()).0, 0);
    }

    /// Removes it as librbd does, whose last step is to forget it; what it had is gone before.
    pub fn remove_snapshot(&self, id: u64, forget: bool) {
        assert_eq!(self.ask("rbd_header.ab", "snapshot_trash_add", to_vec(&id)).0, 0);
        self.state.borrow_mut().trimmed.insert(id);
        if forget {
            assert_eq!(self.ask("rbd_header.ab", "snapshot_remove", to_vec(&id)).0, 0);
        }
    }

    /// The image is cut so; it has no objects yet.
    pub fn stripe(&self, unit: u64, count: u64) {
        let mut s = self.state.borrow_mut();
        let Some(header) = s.objects.get_mut(&b"rbd_header.ab"[..]) else { panic!("no header") };
        for (key, value) in
            [("features", 0b11_1111), ("stripe_unit", unit), ("stripe_count", count)]
        {
            header.omap.insert(Bytes::from_static(key.as_bytes()), to_vec(&value).into());
        }
    }

    /// A client's attempts to take the lock arrive late from now on.
    pub fn delay_locks(&self, id: u64, by: Duration) {
        self.state.borrow_mut().late = Some((4000 + id, by));
    }

    /// How many attempts that came late found the lock held.
    pub fn found_held(&self) -> u64 {
        self.state.borrow().held
    }

    /// Operations on objects of data so far.
    pub fn asked(&self) -> u64 {
        self.state.borrow().asked
    }

    /// What an object has of these bytes.
    pub fn data(&self, object: u64, offset: u64, length: u64) -> Vec<u8> {
        let name: Bytes = format!("rbd_data.ab.{object:016x}").into();
        let s = self.state.borrow();
        let data = s.objects.get(&name).map_or(&[][..], |o| &o.data);
        let (from, to) = (offset as usize, (offset + length) as usize);
        data.get(from.min(data.len())..to.min(data.len())).unwrap_or_default().to_vec()
    }

    pub fn exists(&self, object: u64) -> bool {
        let name: Bytes = format!("rbd_data.ab.{object:016x}").into();
        self.state.borrow().objects.get(&name).is_some_and(|o| o.exists)
    }

    /// Says what becomes of operations that are sent from now on.
    pub fn rule(&self, rule: impl FnMut(&Request) -> Fate + 'static) {
        self.state.borrow_mut().rule = Some(Box::new(rule));
    }

    /// Lets all arrive that waits.
    pub fn release(&self) {
        let mut s = self.state.borrow_mut();
        s.released += 1;
        s.waits.drain(..).for_each(Waker::wake);
    }

    /// A client is called otherwise from now on; its address is what it was.
    pub fn rename(&self, id: u64) {
        self.state.borrow_mut().renamed.insert(4000 + id, 8000 + id);
    }

    /// A client hears that its watch is lost. Others see that watch for its whole time.
    pub fn lose_watch(&self, id: u64) {
        let mut s = self.state.borrow_mut();
        let until = s.now + Duration::from_secs(30);
        for w in s.watches.iter_mut().filter(|w| w.client == 4000 + id && w.until.is_none()) {
            w.until = Some(until);
            // Its image may be closed.
            let _ = w.news.send(News::Lost(-errno::ENOTCONN));
        }
    }

    /// Whoever wants to watch is told this from now on.
    pub fn refuse_watches(&self, result: i32) {
        self.state.borrow_mut().no_watches = Some(result);
    }

    pub fn fenced(&self) -> u64 {
        self.state.borrow().fenced.len() as u64
    }
}

impl Sim {
    pub fn below(&self, n: u64) -> u64 {
        self.state.borrow_mut().below(n)
    }

    /// How late an operation arrives, if it is one that does.
    fn late(&self, r: &Request) -> Option<Duration> {
        let (_, by) = self.state.borrow().late.filter(|(client, _)| *client == self.id)?;
        let takes = |o: &OsdOp| {
            o.op == op::CALL && o.call_args().is_ok_and(|c| c.class == "lock" && c.method == "lock")
        };
        (r.oid.starts_with(b"rbd_header.") && r.ops.iter().any(takes)).then_some(by)
    }

    fn fate(&self, r: &Request) -> Fate {
        let Some(mut rule) = self.state.borrow_mut().rule.take() else { return Fate::Arrives };
        let fate = rule(r);
        self.state.borrow_mut().rule = Some(rule);
        fate
    }

    /// Waits until [`World::release`] is called.
    async fn released(&self) {
        let before = self.state.borrow().released;
        poll_fn(|cx| {
            let mut s = self.state.borrow_mut();
            if s.released > before {
                return Poll::Ready(());
            }
            s.waits.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Others go first, a few times.
    async fn linger(&self) {
        for _ in 0..self.below(6) {
            let mut over = false;
            poll_fn(|cx| {
                if std::mem::replace(&mut over, true) {
                    return Poll::Ready(());
                }
                cx.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
        }
    }
}

impl Rados for Sim {
    async fn execute(&self, request: Request) -> Reply {
        // It goes its way whether or not whoever sent it lives: a task of the network's.
        let (tx, rx) = tokio::sync::oneshot::channel();
        let network = Sim { id: self.id, state: self.state.clone() };
        let of_parent = request.oid.starts_with(b"rbd_data.cd");
        let fate = self.fate(&request);
        if of_parent {
            let mut s = self.state.borrow_mut();
            s.of_parent.0 += 1;
            s.of_parent.1 = s.of_parent.1.max(s.of_parent.0);
        }
        self.state.borrow_mut().new.push((
            0,
            Box::pin(async move {
                network.linger().await;
                let late = network.late(&request);
                if let Some(by) = late {
                    network.sleep(by).await;
                }
                if fate == Fate::Waits {
                    network.released().await;
                }
                let reply = match fate {
                    Fate::Answered(result) => Reply {
                        result,
                        ops: Vec::new(),
                        version: EVersion::default(),
                        user_version: 0,
                    },
                    _ => network.state.borrow_mut().perform(network.id, &request),
                };
                network.state.borrow_mut().held +=
                    u64::from(late.is_some() && reply.result == -errno::EBUSY);
                network.linger().await;
                network.state.borrow_mut().of_parent.0 -= usize::from(of_parent);
                // The client is dead.
                let _ = tx.send(reply);
            }),
        ));
        rx.await.unwrap()
    }

    async fn pool(&self, name: &str) -> Option<PoolId> {
        (name == "p").then_some(1)
    }

    async fn watch(&self, _: &ObjectLocator, oid: &Bytes) -> Result<Watch, i32> {
        self.linger().await;
        let (tx, news) = mpsc::unbounded_channel();
        let mut s = self.state.borrow_mut();
        if let Some(result) = s.no_watches {
            return Err(result);
        }
        s.last += 1;
        let cookie = s.last;
        let name = s.name(self.id);
        s.watches.push(Watching {
            client: self.id,
            name,
            cookie,
            oid: oid.clone(),
            news: tx,
            until: None,
        });
        Ok(Watch { cookie, news })
    }

    async fn unwatch(&self, cookie: u64) {
        self.linger().await;
        self.state.borrow_mut().watches.retain(|w| w.cookie != cookie);
    }

    fn acknowledge(&self, cookie: u64, id: u64, reply: &[u8]) {
        let mut s = self.state.borrow_mut();
        if let Some(n) = s.open.get_mut(&id)
            && n.waits.remove(&(self.id, cookie))
        {
            n.replies.push(NotifyReply {
                client: self.id,
                cookie,
                reply: Bytes::copy_from_slice(reply),
            });
        }
    }

    async fn notify(
        &self,
        _: &ObjectLocator,
        oid: &Bytes,
        payload: Bytes,
        seconds: u32,
    ) -> Result<Vec<NotifyReply>, i32> {
        self.linger().await;
        let (id, until) = {
            let mut s = self.state.borrow_mut();
            s.last += 1;
            let id = s.last;
            let mut n = Notification::default();
            for w in s.watches.iter().filter(|w| w.oid == *oid) {
                n.waits.insert((w.client, w.cookie));
                let _ = w.news.send(News::Notified { id, payload: payload.clone() });
            }
            s.open.insert(id, n);
            (id, s.now + Duration::from_secs(u64::from(seconds)))
        };
        loop {
            {
                let mut s = self.state.borrow_mut();
                let over = s.now >= until;
                if let Some(n) = s.open.remove(&id) {
                    if n.waits.is_empty() || over {
                        return Ok(n.replies);
                    }
                    s.open.insert(id, n);
                }
            }
            self.sleep(Duration::from_millis(100)).await;
        }
    }

    async fn fence(&self, addr: EntityAddr) -> Result<(), String> {
        self.linger().await;
        let mut s = self.state.borrow_mut();
        s.fenced.insert(addr.nonce);
        let dead = s.dead.contains(&(u64::from(addr.nonce) - 100));
        assert!(dead, "only the dead are fenced");
        Ok(())
    }

    async fn sleep(&self, time: Duration) {
        let until = self.state.borrow().now + time;
        let mut first = true;
        poll_fn(|cx| {
            if !std::mem::take(&mut first) && self.state.borrow().now >= until {
                return Poll::Ready(());
            }
            self.state.borrow_mut().sleepers.push((until, cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    fn spawn(&self, work: Pin<Box<dyn Future<Output = ()>>>) {
        self.state.borrow_mut().new.push((self.id, work));
    }

    fn now(&self) -> UTime {
        UTime { sec: 1, nsec: 0 }
    }

    fn global_id(&self) -> u64 {
        self.state.borrow().name(self.id).num as u64
    }

    fn nonce(&self) -> u32 {
        addr(self.id).nonce
    }
}
