//! `spirula nbd serve`: images served by the protocol NBD.
//!
//! A task reads each connection and gives every request a task of its own; another one writes the
//! answers, in the order in which they come. A request that was begun is carried out, also when its
//! connection ends meanwhile.
//!
//! Each image has bounds of its own, so that one for which the cluster does not answer stops no
//! other: [`CLIENTS`] connections, and as many that have chosen none yet; its part of [`MEMORY`]
//! for requests, until their answers are written; and [`COMING`] bytes of writes that have not all
//! come. Of each connection [`REQUESTS`] requests and [`SHARE`] bytes of them are under way. When
//! one is reached, nothing more is read, and whoever hangs up before its part is there waits no
//! longer: that request is not begun. The data of a write of more than [`SMALL`] bytes has a part
//! of [`COMING`] as soon as its head is there, and none of it is read before. Whoever sends or
//! takes more slowly than [`time_for`] allows, or is [`STALLED`] while he sends so much, is hung up
//! on: others want what he has. What a change of a clone takes beside, the image bounds
//! (`spirula_block`).

use super::{ClientArgs, close, open, run};
use anyhow::{Context, bail};
use bytes::{Bytes, BytesMut};
use clap::Args as ClapArgs;
use spirula_block::nbd::{
    Command, Event, Export, REQUEST_HEAD, Request, SMALL, Session, answer, error,
};
use spirula_block::{Image, Rados, Spec};
use spirula_types::errno;
use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, ReadHalf, Ready, WriteHalf,
};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

/// Connections at a time, of each image and of those that have chosen none.
const CLIENTS: usize = 64;
/// Requests of one connection at a time.
const REQUESTS: usize = 128;
/// Bytes of requests at a time, from when one is read until its answer is written, of all images
/// together; of more than four each has [`SHARE`].
const MEMORY: usize = 256 << 20;
/// Of them one connection's.
const SHARE: usize = 64 << 20;
/// Bytes of writes that have not all come, of all connections of an image together; writes of
/// [`SMALL`] bytes may come at any time, one of each connection.
const COMING: usize = 64 << 20;
/// How long a client may take for an answer, or for a write that it has begun to send, before its
/// bytes count.
const LATE: Duration = Duration::from_secs(30);
/// How long a client that has a part of [`COMING`] may be behind the pace of [`time_for`] with what
/// it sends: others wait for that part.
const STALLED: Duration = Duration::from_secs(10);
/// How long a client may take to choose what it wants.
const CHOICE: Duration = Duration::from_secs(30);
/// Before a connection is accepted after one that could not be.
const PAUSE: Duration = Duration::from_millis(100);

/// Arguments of `spirula nbd serve`.
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = "Connect to it for example with: qemu-system-x86_64 -drive \
        file=nbd://127.0.0.1:10809/POOL/IMAGE,format=raw \
                        or: nbd-client 127.0.0.1 -N POOL/IMAGE /dev/nbd0. NBD has no passwords: \
                        whoever reaches the address may \
                        read and write. Serve other hosts through a tunnel, or on a network of \
                        your own.")]
pub struct ServeArgs {
    /// Images, as POOL/IMAGE, POOL/NAMESPACE/IMAGE or, read-only, POOL/IMAGE@SNAPSHOT; that is
    /// their export's name, too
    #[arg(required = true, value_name = "POOL/IMAGE", value_parser = clap::value_parser!(Spec))]
    images: Vec<Spec>,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1:10809", conflicts_with = "socket")]
    bind: SocketAddr,
    /// A socket in the file system to listen on, instead
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Nobody may write
    #[arg(long)]
    read_only: bool,
    #[command(flatten)]
    client: ClientArgs,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    async fn open(args: &ServeArgs) -> anyhow::Result<Self> {
        let Some(path) = &args.socket else {
            let listener = TcpListener::bind(args.bind)
                .await
                .with_context(|| format!("listen on {}", args.bind))?;
            return Ok(Self::Tcp(listener));
        };
        remove_stale(path).await?;
        Ok(Self::Unix(
            UnixListener::bind(path).with_context(|| format!("listen on {}", path.display()))?,
        ))
    }

    async fn accept(&self) -> std::io::Result<Box<dyn Stream>> {
        match self {
            Self::Tcp(l) => {
                let (stream, _) = l.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
            Self::Unix(l) => Ok(Box::new(l.accept().await?.0)),
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin {
    /// What tells that the client has hung up, if the kernel can.
    fn line(&self) -> std::io::Result<Option<Line>>;
}

impl Stream for TcpStream {
    fn line(&self) -> std::io::Result<Option<Line>> {
        let same = self.as_fd().try_clone_to_owned()?;
        Self::from_std(same.into()).map(|s| Some(Line::Tcp(s)))
    }
}

impl Stream for UnixStream {
    fn line(&self) -> std::io::Result<Option<Line>> {
        let same = self.as_fd().try_clone_to_owned()?;
        Self::from_std(same.into()).map(|s| Some(Line::Unix(s)))
    }
}

/// Sees that a client hangs up, also while nothing of what it sent before is read: a connection
/// once more, of which nobody reads.
enum Line {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Line {
    async fn ready(&self) -> std::io::Result<Ready> {
        match self {
            Self::Tcp(s) => s.ready(Interest::READABLE).await,
            Self::Unix(s) => s.ready(Interest::READABLE).await,
        }
    }

    /// What is known to have come is not told again.
    fn note(&self) {
        let nothing_read = || Err::<(), _>(std::io::ErrorKind::WouldBlock.into());
        // The error is the one that was made.
        let _ = match self {
            Self::Tcp(s) => s.try_io(Interest::READABLE, nothing_read),
            Self::Unix(s) => s.try_io(Interest::READABLE, nothing_read),
        };
    }

    /// Ends when the client has hung up.
    async fn is_cut(line: Option<&Self>) {
        while let Some(line) = line {
            match line.ready().await {
                Ok(ready) if ready.is_read_closed() => return,
                // More that it sent.
                Ok(_) => line.note(),
                Err(_) => break,
            }
        }
        // It is seen by whoever reads.
        std::future::pending().await
    }
}

/// Waits for a part of what is bounded, but not for longer than the client waits for it; `None`: it
/// has hung up.
async fn unless_cut<T>(
    line: Option<&Line>,
    part: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<Option<T>> {
    tokio::select! {
        biased;
        part = part => part.map(Some),
        () = Line::is_cut(line) => Ok(None),
    }
}

/// Removes the socket of a process that is gone.
async fn remove_stale(path: &Path) -> anyhow::Result<()> {
    let Ok(there) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !there.file_type().is_socket() {
        bail!("{} is there, and is no socket", path.display());
    }
    if tokio::net::UnixStream::connect(path).await.is_ok() {
        bail!("somebody listens on {} already", path.display());
    }
    std::fs::remove_file(path).with_context(|| format!("remove {}", path.display()))
}

/// An image that is served, and what its clients and their requests may take.
struct Served<R: Rados> {
    spec: Spec,
    image: Rc<Image<R>>,
    memory: Arc<Semaphore>,
    coming: Arc<Semaphore>,
    clients: Arc<Semaphore>,
}

struct Server<R: Rados> {
    images: Vec<Rc<Served<R>>>,
    read_only: bool,
    /// For those who have chosen nothing.
    choosing: Arc<Semaphore>,
}

/// A connection's place among those of an image, or of those that have chosen none.
struct Place {
    image: Option<usize>,
    _held: OwnedSemaphorePermit,
}

/// `spirula nbd serve`.
///
/// # Errors
/// When the cluster cannot be reached, an image cannot be opened, or the address cannot be had.
pub fn serve(args: &ServeArgs) -> anyhow::Result<()> {
    crate::logs::init();
    let (stop, mut stopped) = mpsc::unbounded_channel();
    crate::signals::on_stop(move || {
        // It is ending already.
        let _ = stop.send(());
    })?;
    run(async {
        let listener = Listener::open(args).await?;
        let mut images = Vec::new();
        for spec in &args.images {
            images.push((spec.clone(), open(&args.client, spec, !args.read_only).await?));
        }
        let server = Rc::new(Server::new(images, args.read_only));
        for spec in server.images.iter().map(|s| &s.spec) {
            match (&listener, &args.socket) {
                (Listener::Tcp(l), _) => {
                    crate::out!("serving {spec}: nbd://{}/{spec}", l.local_addr()?)
                }
                (Listener::Unix(_), path) => {
                    let path = path.clone().unwrap_or_default();
                    crate::out!("serving {spec}: nbd+unix:///{spec}?socket={}", path.display());
                }
            }
        }
        crate::signals::ready();
        tokio::select! {
            () = server.accept(&listener) => {}
            _ = stopped.recv() => {}
        }
        close(server.images.iter().map(|s| s.image.clone())).await;
        if let Some(path) = &args.socket {
            // Somebody else may have removed it.
            let _ = std::fs::remove_file(path);
        }
        Ok(())
    })
}

impl<R: Rados> Server<R> {
    fn new(images: Vec<(Spec, Rc<Image<R>>)>, read_only: bool) -> Self {
        let memory = (MEMORY / images.len().max(1)).max(SHARE);
        let served = |(spec, image)| Served {
            spec,
            image,
            memory: Arc::new(Semaphore::new(memory >> 10)),
            coming: Arc::new(Semaphore::new(COMING >> 10)),
            clients: Arc::new(Semaphore::new(CLIENTS)),
        };
        let images = images.into_iter().map(|i| Rc::new(served(i))).collect();
        Self { images, read_only, choosing: Arc::new(Semaphore::new(CLIENTS)) }
    }

    async fn accept(self: &Rc<Self>, listener: &Listener) {
        loop {
            let Ok(held) = self.choosing.clone().acquire_owned().await else { return };
            match listener.accept().await {
                Ok(stream) => {
                    let server = self.clone();
                    tokio::task::spawn_local(async move {
                        if let Err(why) =
                            server.connection(stream, Place { image: None, _held: held }).await
                        {
                            tracing::info!("a client is hung up on: {why:#}");
                        }
                    });
                }
                Err(e) => {
                    tracing::warn!("a connection cannot be accepted: {e}");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn connection(
        self: Rc<Self>,
        stream: Box<dyn Stream>,
        mut place: Place,
    ) -> anyhow::Result<()> {
        let line = stream.line().context("watch the connection")?;
        let (mut reader, writer) = tokio::io::split(stream);
        let (answers, to_write) = mpsc::unbounded_channel();
        let writing = tokio::task::spawn_local(write(writer, to_write, time_for));
        let mut writing = std::pin::pin!(writing);
        let result = tokio::select! {
            result = self.read(&mut reader, line.as_ref(), &answers, &mut place) => result,
            // Whoever takes no answers is asked for nothing more.
            ended = &mut writing => return Ok(ended??),
        };
        // Answers of what is under way are still written, if they come soon and the client takes
        // them. An error there says that it has gone.
        drop(answers);
        if tokio::time::timeout(LATE, &mut writing).await.is_err() {
            writing.abort();
        }
        result
    }

    async fn read(
        &self,
        reader: &mut ReadHalf<Box<dyn Stream>>,
        line: Option<&Line>,
        answers: &mpsc::UnboundedSender<Answer>,
        place: &mut Place,
    ) -> anyhow::Result<()> {
        let (slots, share) =
            (Arc::new(Semaphore::new(REQUESTS)), Arc::new(Semaphore::new(SHARE >> 10)));
        let (mut input, mut out) = (BytesMut::new(), BytesMut::new());
        let mut session =
            Session::new(self.images.iter().map(|s| s.spec.to_string()).collect(), &mut out);
        let mut chosen: Option<Rc<Served<R>>> = None;
        let choice = Instant::now() + CHOICE;
        let mut coming: Option<Coming> = None;
        loop {
            let event = session.next(&mut input, &mut out);
            if !out.is_empty() {
                // What was to come may have been refused.
                has_come(&mut coming, &mut input);
                // Refusals count like any answer. The writer ends with the connection.
                let slot = async { Ok(vec![slots.clone().acquire_owned().await?]) };
                let Some(held) = unless_cut(line, slot).await? else { return Ok(()) };
                let _ = answers.send(Answer { head: out.split(), data: Bytes::new(), held });
            }
            match event? {
                Some(Event::Wanted(at)) => {
                    let Some(served) = self.images.get(at) else {
                        bail!("it wants what is not there")
                    };
                    // From here on it is that image's, which may be stuck.
                    if place.image != Some(at) {
                        *place = Place { image: Some(at), _held: served.place()? };
                    }
                    let export = tokio::time::timeout_at(choice, served.export(self.read_only));
                    let export =
                        export.await.with_context(|| format!("{} does not answer", served.spec))?;
                    if session.tell(export, &mut out)? {
                        chosen = Some(served.clone());
                    }
                }
                Some(Event::Disconnect) => return Ok(()),
                Some(Event::Request(request)) => {
                    let Some(served) = chosen.clone() else { bail!("a request for nothing") };
                    let pages = (request.bytes() >> 10) as u32 + 1;
                    let parts = async {
                        Ok(vec![
                            slots.clone().acquire_owned().await?,
                            share.clone().acquire_many_owned(pages).await?,
                            served.memory.clone().acquire_many_owned(pages).await?,
                        ])
                    };
                    // Its place in the queue goes with it, so that those behind it need not wait
                    // for what nobody wants.
                    let Some(held) = unless_cut(line, parts).await? else { return Ok(()) };
                    has_come(&mut coming, &mut input);
                    let answers = answers.clone();
                    tokio::task::spawn_local(async move {
                        let (head, data) = perform(&served.image, request).await;
                        // The writer ends with the connection.
                        let _ = answers.send(Answer { head, data, held });
                    });
                }
                None => {
                    let brings = session.coming(&input);
                    if let Some(served) = chosen.as_ref().filter(|_| brings > 0 && coming.is_none())
                    {
                        coming = unless_cut(line, served.expect(brings)).await?;
                        if coming.is_none() {
                            return Ok(());
                        }
                        input.reserve((REQUEST_HEAD + brings).saturating_sub(input.len()));
                    }
                    let until = coming.as_ref().map(|c| c.until(input.len()));
                    let more = reader.read_buf(&mut input);
                    let n = match (&chosen, until) {
                        (None, _) => tokio::time::timeout_at(choice, more)
                            .await
                            .context("it chooses nothing")??,
                        (_, Some(until)) => tokio::time::timeout_at(until, more)
                            .await
                            .context("its write does not come")??,
                        _ => more.await?,
                    };
                    if n == 0 {
                        return Ok(());
                    }
                }
            }
        }
    }
}

impl<R: Rados> Served<R> {
    /// A place for one more connection.
    fn place(&self) -> anyhow::Result<OwnedSemaphorePermit> {
        let all = || format!("{} has {CLIENTS} clients already", self.spec);
        self.clients.clone().try_acquire_owned().with_context(all)
    }

    /// What it is now; `None` if its size cannot be had.
    async fn export(&self, read_only: bool) -> Option<Export> {
        let size = match self.image.size().await {
            Ok(size) => size,
            Err(r) => {
                tracing::warn!("{} is not served for now: {}", self.spec, errno::name(-r));
                return None;
            }
        };
        let preferred = self.image.object_size().min(4096) as u32;
        Some(Export {
            name: self.spec.to_string(),
            size,
            preferred,
            read_only: read_only || !self.image.is_writable(),
        })
    }

    /// A write of so many bytes is coming in; this waits until there is room for it.
    async fn expect(&self, bytes: usize) -> anyhow::Result<Coming> {
        let pages = bytes.div_ceil(1 << 10) as u32;
        let part = match bytes > SMALL {
            true => Some(self.coming.clone().acquire_many_owned(pages).await?),
            false => None,
        };
        Ok(Coming { part, begun: Instant::now(), bytes })
    }
}

/// A write whose data comes.
struct Coming {
    /// Its part of [`COMING`], if it needs one.
    part: Option<OwnedSemaphorePermit>,
    /// When it might come.
    begun: Instant,
    /// How many of it there are.
    bytes: usize,
}

impl Coming {
    /// When the next of it must have come, `come` bytes being there. Whoever keeps others waiting
    /// has to keep the pace all along, and not only at the end: two who send nothing would stop all
    /// others.
    fn until(&self, come: usize) -> Instant {
        self.begun + if self.part.is_some() { STALLED + pace(come) } else { time_for(self.bytes) }
    }
}

/// What was coming was taken out of the buffer: what is left there is little, and would keep all
/// that memory.
fn has_come(coming: &mut Option<Coming>, input: &mut BytesMut) {
    if coming.take().is_some_and(|c| c.part.is_some()) {
        *input = BytesMut::from(&input[..]);
    }
}

/// How long a client may take to send or to take so many bytes: 64 KiB a second, and [`LATE`].
fn time_for(bytes: usize) -> Duration {
    LATE + pace(bytes)
}

fn pace(bytes: usize) -> Duration {
    Duration::from_secs(bytes as u64 >> 16)
}

/// An answer that waits to be written.
struct Answer {
    head: BytesMut,
    /// What stands behind it.
    data: Bytes,
    /// What the request holds until then of what is bounded.
    held: Vec<OwnedSemaphorePermit>,
}

/// Writes answers until there are no more, or one is not taken within the time for its length.
async fn write(
    mut to: WriteHalf<Box<dyn Stream>>,
    mut answers: mpsc::UnboundedReceiver<Answer>,
    time_for: impl Fn(usize) -> Duration,
) -> std::io::Result<()> {
    while let Some(Answer { head, data, held }) = answers.recv().await {
        let until = Instant::now() + time_for(data.len());
        for part in [&head[..], &data[..]] {
            tokio::time::timeout_at(until, to.write_all(part)).await??;
        }
        drop(held);
    }
    to.shutdown().await
}

/// Does what a client wants. Data that was written is durable when this ends, so that FUA means
/// nothing more, and a flush waits only for what is under way.
async fn perform<R: Rados>(image: &Image<R>, request: Request) -> (BytesMut, Bytes) {
    let (cookie, offset) = (request.cookie, request.offset);
    let result = match request.command {
        Command::Read(length) => image.read(offset, u64::from(length)).await,
        Command::Write(data) => image.write(offset, data).await.map(|()| Bytes::new()),
        Command::Flush => {
            image.flush().await;
            Ok(Bytes::new())
        }
        Command::Trim(length) | Command::Zero(length) => {
            image.zero(offset, u64::from(length)).await.map(|()| Bytes::new())
        }
    };
    let mut head = BytesMut::with_capacity(16);
    let (number, data) = match result {
        Ok(data) => (0, data),
        Err(r) => (error_of(-r), Bytes::new()),
    };
    answer(cookie, number, &mut head);
    (head, data)
}

/// As the protocol says it.
fn error_of(number: i32) -> u32 {
    match number {
        errno::EPERM | errno::EACCES | errno::EROFS => error::EPERM,
        errno::EINVAL => error::EINVAL,
        errno::ENOSPC | errno::EDQUOT => error::ENOSPC,
        errno::ENOMEM => error::ENOMEM,
        _ => error::EIO,
    }
}

#[cfg(test)]
mod apart;
#[cfg(test)]
mod tests {
    use super::*;

    /// A client that takes a byte now and then has not taken its answer: what that holds is given
    /// to others.
    #[test]
    fn a_client_that_takes_its_answers_drop_by_drop_is_hung_up_on() {
        let all = super::super::run(async {
            let (ours, mut theirs) = tokio::io::duplex(16);
            let (_reader, writer) = tokio::io::split(Box::new(ours) as Box<dyn Stream>);
            let (answers, to_write) = mpsc::unbounded_channel();
            let memory = Arc::new(Semaphore::new(1));
            for _ in 0..2 {
                let held = memory.clone().try_acquire_owned().into_iter().collect();
                let (head, data) = (BytesMut::zeroed(16), Bytes::from(vec![0; 1 << 20]));
                // The writer is there.
                let _ = answers.send(Answer { head, data, held });
            }
            let writing =
                tokio::task::spawn_local(write(writer, to_write, |_| Duration::from_millis(200)));
            for taken in 0..5000 {
                if writing.is_finished() {
                    let ended = writing.await?;
                    return Ok((taken, ended.map_err(|e| e.kind()), memory.available_permits()));
                }
                theirs.read_u8().await?;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            bail!("it is still written to")
        });
        let (taken, ended, free) = all.unwrap();
        assert_eq!((ended, free), (Err(std::io::ErrorKind::TimedOut), 1), "after {taken} bytes");
    }

    #[test]
    fn what_is_large_may_take_longer() {
        assert_eq!(time_for(0), LATE);
        assert_eq!(time_for(spirula_block::nbd::LARGEST as usize), LATE + Duration::from_secs(512));
    }
}
