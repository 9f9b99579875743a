//! Two images of one server, and a cluster that answers for one of them only.

use super::*;
use spirula_block::{News, Watch};
use spirula_client::{Reply, Request as Operation};
use spirula_encoding::{Encoder, UTime, to_vec};
use spirula_messages::ceph::OsdOp;
use spirula_messages::ceph::op;
use spirula_messages::ceph::osd::{NotifyReply, OpResult};
use spirula_types::{EntityAddr, ObjectLocator, PoolId};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use tokio::io::DuplexStream;

const SIZE: u64 = 1 << 30;

/// A cluster with the images `p/x` and `p/y`, without features and objects.
#[derive(Default)]
struct Fake {
    /// Nothing that is asked about `x` is answered.
    stuck: Cell<bool>,
    watches: RefCell<Vec<(Bytes, mpsc::UnboundedSender<News>)>>,
}

impl Fake {
    fn says(&self, oid: &[u8], o: &OsdOp) -> Result<Vec<u8>, i32> {
        let Ok(call) = o.call_args() else { return Err(-errno::EINVAL) };
        let mut e = Encoder::new();
        match &call.method[..] {
            b"get_id" => e.str(if oid.ends_with(b"x") { "x" } else { "y" }),
            b"get_features" => e.put(&(0u64, 0u64)),
            b"get_object_prefix" => e.str(if oid.ends_with(b"x") { "data.x" } else { "data.y" }),
            b"get_size" => e.put(&(22u8, SIZE)),
            b"get_flags" => return Ok(to_vec(&0u64)),
            b"get_snapcontext" => e.put(&(0u64, 0u32)),
            _ => return Err(-errno::EOPNOTSUPP),
        }
        Ok(e.into_vec())
    }
}

impl Rados for Fake {
    async fn execute(&self, r: Operation) -> Reply {
        let of_x = r.oid.starts_with(b"data.x") || r.oid.ends_with(b".x");
        if self.stuck.get() && of_x {
            std::future::pending::<()>().await;
        }
        let mut ops = Vec::new();
        let mut result = 0;
        for o in r.ops {
            let (rval, out) = match o.op {
                op::CALL => self.says(&r.oid, &o).map_or_else(|e| (e, Vec::new()), |out| (0, out)),
                _ => (-errno::ENOENT, Vec::new()),
            };
            result = if result < 0 { result } else { rval };
            ops.push(OpResult { op: OsdOp { indata: out.into(), ..o }, rval, output_crc: None });
        }
        Reply { result, ops, version: Default::default(), user_version: 0 }
    }

    async fn pool(&self, _: &str) -> Option<PoolId> {
        Some(1)
    }

    async fn watch(&self, _: &ObjectLocator, oid: &Bytes) -> Result<Watch, i32> {
        let (tx, news) = mpsc::unbounded_channel();
        self.watches.borrow_mut().push((oid.clone(), tx));
        Ok(Watch { cookie: 1, news })
    }

    async fn unwatch(&self, _: u64) {}

    fn acknowledge(&self, _: u64, _: u64, _: &[u8]) {}

    async fn notify(
        &self,
        _: &ObjectLocator,
        _: &Bytes,
        _: Bytes,
        _: u32,
    ) -> Result<Vec<NotifyReply>, i32> {
        Ok(Vec::new())
    }

    async fn fence(&self, _: EntityAddr) -> Result<(), String> {
        Ok(())
    }

    async fn sleep(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    fn spawn(&self, work: Pin<Box<dyn Future<Output = ()>>>) {
        tokio::task::spawn_local(work);
    }

    fn now(&self) -> UTime {
        UTime::ZERO
    }

    fn global_id(&self) -> u64 {
        1
    }

    fn nonce(&self) -> u32 {
        1
    }
}

impl Stream for DuplexStream {
    fn line(&self) -> std::io::Result<Option<Line>> {
        Ok(None)
    }
}

/// A client's end of a connection; `None` if the server has no place for it.
fn connect(server: &Rc<Server<Fake>>) -> Option<DuplexStream> {
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    take(server, Box::new(ours)).map(|()| theirs)
}

/// The server takes a connection, if it has a place for it.
fn take(server: &Rc<Server<Fake>>, ours: Box<dyn Stream>) -> Option<()> {
    let held = server.choosing.clone().try_acquire_owned().ok()?;
    let server = server.clone();
    tokio::task::spawn_local(async move {
        // Some are hung up on.
        let _ = server.connection(ours, Place { image: None, _held: held }).await;
    });
    Some(())
}

/// Says that it wants this export, and hears no answer.
async fn choose(client: &mut (impl AsyncWrite + Unpin), name: &[u8; 3]) -> std::io::Result<()> {
    client.write_u32(3).await?;
    client.write_all(b"IHAVEOPT\0\0\0\x07\0\0\0\x09\0\0\0\x03").await?;
    client.write_all(name).await?;
    client.write_u16(0).await
}

/// A connection to an export.
async fn open_export(server: &Rc<Server<Fake>>, name: &[u8; 3]) -> anyhow::Result<DuplexStream> {
    let mut client = connect(server).context("there is no place")?;
    has_chosen(&mut client, name).await?;
    Ok(client)
}

async fn has_chosen(
    client: &mut (impl AsyncRead + AsyncWrite + Unpin),
    name: &[u8; 3],
) -> std::io::Result<()> {
    choose(client, name).await?;
    // The greeting, what it is, and that this is all.
    let mut said = [0; 18 + 20 + 12 + 20];
    client.read_exact(&mut said).await.map(drop)
}

async fn ask_to_read(client: &mut (impl AsyncWrite + Unpin), length: u32) -> std::io::Result<()> {
    client.write_all(&[0x25, 0x60, 0x95, 0x13, 0, 0, 0, 0]).await?;
    client.write_u64(7).await?;
    client.write_u64(0).await?;
    client.write_u32(length).await
}

async fn ask_to_write(client: &mut DuplexStream, length: u32) -> std::io::Result<()> {
    client.write_all(&[0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1]).await?;
    client.write_u64(7).await?;
    client.write_u64(0).await?;
    client.write_u32(length).await
}

/// A server of both images.
async fn serve_both(fake: &Rc<Fake>) -> anyhow::Result<Rc<Server<Fake>>> {
    let mut images = Vec::new();
    for name in ["p/x", "p/y"] {
        let spec: Spec = name.parse().map_err(anyhow::Error::msg)?;
        images.push((spec.clone(), Image::open(fake, &spec, true).await?));
    }
    Ok(Rc::new(Server::new(images, false)))
}

/// Whoever waits for memory and hangs up, with more on the way that he sent before, waits no
/// longer: another one who needs little, for which there is room, has stood behind him.
#[test]
fn who_hangs_up_leaves_the_queue_for_memory() {
    let done = super::super::run(async {
        let fake = Rc::new(Fake::default());
        let server = serve_both(&fake).await?;
        let mut all = Vec::new();
        for _ in 0..3 {
            all.push(open_export(&server, b"p/x").await?);
        }
        let (ours, mut waits) = UnixStream::pair()?;
        take(&server, Box::new(ours)).context("there is no place")?;
        has_chosen(&mut waits, b"p/x").await?;
        let mut little = open_export(&server, b"p/x").await?;
        fake.stuck.set(true);
        // Of the image's 128 MiB less than 32 MiB are left then.
        for client in &mut all {
            ask_to_read(client, 32 << 20).await?;
        }
        let [x, _] = &server.images[..] else { bail!("two images") };
        while x.memory.available_permits() >= 32 << 10 {
            tokio::task::yield_now().await;
        }
        fake.stuck.set(false);
        for _ in 0..10 {
            ask_to_read(&mut waits, 32 << 20).await?;
        }
        // Until it stands in the queue: whatever is ready has its turns first, however late they
        // come.
        tokio::time::sleep(Duration::from_millis(50)).await;
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        ask_to_read(&mut little, 5).await?;
        let mut answer = [9; 16 + 5];
        let early =
            tokio::time::timeout(Duration::from_millis(200), little.read_exact(&mut answer)).await;
        assert!(early.is_err(), "it does not wait behind the other one");
        drop(waits);
        tokio::time::timeout(Duration::from_secs(120), little.read_exact(&mut answer)).await??;
        assert_eq!((&answer[4..8], &answer[16..]), (&[0; 4][..], &[0; 5][..]));
        Ok(())
    });
    done.unwrap();
}

#[test]
fn an_image_that_is_stuck_stops_no_other() {
    let done = super::super::run(async {
        let fake = Rc::new(Fake::default());
        let server = serve_both(&fake).await?;
        let mut all = Vec::new();
        for _ in 0..6 {
            all.push(open_export(&server, b"p/x").await?);
        }
        fake.stuck.set(true);
        // Its header has changed, so that its size has to be asked for.
        for (oid, news) in &*fake.watches.borrow() {
            if oid.ends_with(b".x") {
                let _ = news.send(News::Notified { id: 1, payload: Bytes::new() });
            }
        }
        // More than the memory of all images together.
        for client in &mut all {
            for _ in 0..3 {
                ask_to_read(client, 32 << 20).await?;
            }
        }
        let mut hung_up = 0;
        for n in 0..2 * CLIENTS {
            let mut client =
                connect(&server).with_context(|| format!("there is no place for number {n}"))?;
            choose(&mut client, b"p/x").await?;
            // The greeting; then an end, or nothing.
            client.read_exact(&mut [0; 18]).await?;
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            match tokio::time::timeout(Duration::ZERO, client.read_u8()).await {
                Ok(_) => hung_up += 1,
                Err(_) => all.push(client),
            }
        }
        assert_eq!(all.len(), CLIENTS, "as many as it may have");
        assert_eq!(hung_up, CLIENTS + 6);
        let mut other = open_export(&server, b"p/y").await?;
        ask_to_read(&mut other, 5).await?;
        let mut answer = [9; 16 + 5];
        other.read_exact(&mut answer).await?;
        assert_eq!((&answer[4..8], &answer[16..]), (&[0; 4][..], &[0; 5][..]));
        Ok(())
    });
    done.unwrap();
}

/// Writes whose data does not come keep others waiting no longer than an answer may take.
#[test]
fn writes_that_do_not_come_stop_no_others() {
    let took = super::super::run(async {
        let fake = Rc::new(Fake::default());
        let spec: Spec = "p/y".parse().map_err(anyhow::Error::msg)?;
        let image = Image::open(&fake, &spec, true).await?;
        let server = Rc::new(Server::new(vec![(spec, image)], false));
        let mut idle = Vec::new();
        for _ in 0..COMING / spirula_block::nbd::LARGEST as usize {
            let mut client = open_export(&server, b"p/y").await?;
            ask_to_write(&mut client, spirula_block::nbd::LARGEST).await?;
            idle.push(client);
        }
        while server.images[0].coming.available_permits() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let begun = Instant::now();
        let mut other = open_export(&server, b"p/y").await?;
        ask_to_write(&mut other, 128 << 10).await?;
        other.write_all(&vec![1; 128 << 10]).await?;
        // Seen: 10 s, which is STALLED. To wait for the others would take longer by far.
        let answered = tokio::time::timeout(10 * STALLED, other.read_exact(&mut [0; 16])).await;
        answered.context("it waits for the others")??;
        Ok(begun.elapsed())
    });
    let took = took.unwrap();
    assert!(took >= STALLED / 2 && took < time_for(32 << 20) / 2, "{took:?}");
}

#[test]
fn who_keeps_the_pace_may_send_to_the_end() {
    let begun = Instant::now();
    let part = Arc::new(Semaphore::new(1)).try_acquire_owned().ok();
    let coming = |part| Coming { part, begun, bytes: 32 << 20 };
    let large = coming(part);
    assert_eq!(large.until(0), begun + STALLED);
    assert_eq!(large.until(16 << 20), begun + STALLED + Duration::from_secs(256));
    assert_eq!(coming(None).until(0), begun + time_for(32 << 20));
}
