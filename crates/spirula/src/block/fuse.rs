//! An image as a file: the kernel's FUSE protocol for a file system that is one file and nothing
//! else.
//!
//! The root of the file system *is* the file, mounted on a file. So there are no names and no
//! directories, and of the protocol little is needed: attributes, open, read, write, fsync and
//! holes. The file is opened for direct I/O: what the kernel caches is cached once, in the loop
//! device above it.
//!
//! A thread reads what the kernel wants; all else is done in the one thread of images. Bounds: the
//! kernel has at most [`BACKGROUND`] requests under way beside those that threads wait for, each of
//! at most [`PIECE`] bytes.
//!
//! Source: `include/uapi/linux/fuse.h`, version 7.31.

use super::rados::Client;
use anyhow::Context;
use bytes::{Buf, Bytes, BytesMut};
use rustix::io::Errno;
use spirula_block::Image;
use spirula_types::errno;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use tokio::sync::mpsc;

/// Largest read or write, bytes.
pub const PIECE: u32 = 1 << 20;
/// Requests that nobody waits for, at a time.
const BACKGROUND: u16 = 64;
/// The one file.
const ROOT: u64 = 1;
/// Bytes before a request's own.
const HEAD: usize = 40;
/// How long the kernel may believe what it was told of the file, seconds: its size changes only
/// with the image's.
const VALID: u64 = 1;

mod op {
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const ACCESS: u32 = 34;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
}

mod init {
    pub const ASYNC_READ: u32 = 1;
    pub const BIG_WRITES: u32 = 1 << 5;
    pub const ASYNC_DIO: u32 = 1 << 15;
    pub const MAX_PAGES: u32 = 1 << 22;
}

/// Open flag: past the page cache.
const DIRECT_IO: u32 = 1;
/// Modes of fallocate: the size stays; the range becomes a hole, or zeros.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;

/// The kernel's device of a mounted file system.
pub struct Device(OwnedFd);

/// What a request is answered with: data, or an error number.
type Answer = Result<Bytes, i32>;

/// Opens the kernel's device, to mount a file system with it.
///
/// # Errors
/// When there is none, or we may not.
pub fn open() -> anyhow::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .context("open /dev/fuse")
}

impl Device {
    /// Takes it when the file system is mounted, with a thread that reads requests until it is not
    /// any more.
    ///
    /// # Errors
    /// When the thread cannot be made.
    pub fn mounted(fd: OwnedFd) -> anyhow::Result<(Self, mpsc::UnboundedReceiver<Bytes>)> {
        let reader = fd.try_clone().context("share /dev/fuse")?;
        let (tx, requests) = mpsc::unbounded_channel();
        let read = move || {
            let mut buffer = vec![0; PIECE as usize + 4096];
            loop {
                match rustix::io::read(&reader, &mut buffer[..]) {
                    Ok(n) => {
                        if tx
                            .send(Bytes::copy_from_slice(buffer.get(..n).unwrap_or_default()))
                            .is_err()
                        {
                            return;
                        }
                    }
                    // A request was taken back.
                    Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => {}
                    Err(Errno::NODEV) => return,
                    Err(e) => return tracing::error!("read /dev/fuse: {e}"),
                }
            }
        };
        std::thread::Builder::new()
            .name("fuse".into())
            .spawn(read)
            .context("start the thread that reads /dev/fuse")?;
        Ok((Self(fd), requests))
    }

    fn answer(&self, unique: u64, answer: &Answer) {
        let (error, data) = match answer {
            Ok(data) => (0, &data[..]),
            Err(e) => (-*e, &[][..]),
        };
        let mut head = [0; 16];
        head[..4].copy_from_slice(&(16 + data.len() as u32).to_le_bytes());
        head[4..8].copy_from_slice(&error.to_le_bytes());
        head[8..].copy_from_slice(&unique.to_le_bytes());
        // ENOENT: whoever asked was killed. ENODEV: it is unmounted.
        if let Err(e) = rustix::io::writev(&self.0, &[IoSlice::new(&head), IoSlice::new(data)])
            && ![Errno::NOENT, Errno::NODEV].contains(&e)
        {
            tracing::warn!("the kernel does not take an answer: {e}");
        }
    }
}

/// Serves an image as the mounted file until it is unmounted; then all that was begun has ended.
pub async fn serve(
    device: Device,
    mut requests: mpsc::UnboundedReceiver<Bytes>,
    image: Rc<Image<Client>>,
) {
    let device = Rc::new(device);
    while let Some(mut request) = requests.recv().await {
        if request.len() < HEAD {
            continue;
        }
        let (_, op, unique, node) = (
            request.get_u32_ne(),
            request.get_u32_ne(),
            request.get_u64_ne(),
            request.get_u64_ne(),
        );
        request.advance(HEAD - 24);
        if matches!(op, op::FORGET | op::BATCH_FORGET | op::INTERRUPT) {
            continue;
        }
        if node != ROOT && !matches!(op, op::INIT | op::DESTROY) {
            device.answer(unique, &Err(errno::ENOENT));
            continue;
        }
        if let Some(answer) = at_once(op, &request) {
            device.answer(unique, &answer);
            continue;
        }
        let (device, image) = (device.clone(), image.clone());
        tokio::task::spawn_local(async move {
            let answer = perform(&image, op, request).await;
            device.answer(unique, &answer);
        });
    }
    image.flush().await;
}

/// What needs no image; `None` for the rest.
fn at_once(op: u32, mut request: &[u8]) -> Option<Answer> {
    let mut out = BytesMut::new();
    match op {
        op::INIT => {
            if request.len() < 16 {
                return Some(Err(errno::EINVAL));
            }
            let (_, _, ahead, offered) = (
                request.get_u32_ne(),
                request.get_u32_ne(),
                request.get_u32_ne(),
                request.get_u32_ne(),
            );
            let wanted = init::ASYNC_READ | init::BIG_WRITES | init::ASYNC_DIO | init::MAX_PAGES;
            put32(&mut out, &[7, 31, ahead, offered & wanted]);
            // The kernel's own threshold is three quarters of its bound.
            put16(&mut out, &[BACKGROUND, BACKGROUND / 4 * 3]);
            put32(&mut out, &[PIECE, 1]);
            put16(&mut out, &[(PIECE / 4096) as u16, 0]);
            out.resize(64, 0);
        }
        op::OPEN => {
            out.extend_from_slice(&[0; 8]);
            put32(&mut out, &[DIRECT_IO, 0]);
        }
        op::STATFS => {
            out.resize(80, 0);
            out[40..44].copy_from_slice(&4096u32.to_ne_bytes());
            out[44..48].copy_from_slice(&255u32.to_ne_bytes());
            out[48..52].copy_from_slice(&4096u32.to_ne_bytes());
        }
        op::RELEASE | op::ACCESS | op::DESTROY => {}
        op::GETATTR
        | op::SETATTR
        | op::READ
        | op::WRITE
        | op::FSYNC
        | op::FLUSH
        | op::FALLOCATE => return None,
        _ => return Some(Err(errno::ENOSYS)),
    }
    Some(Ok(out.freeze()))
}

fn put32(out: &mut BytesMut, values: &[u32]) {
    values.iter().for_each(|v| out.extend_from_slice(&v.to_ne_bytes()));
}

fn put16(out: &mut BytesMut, values: &[u16]) {
    values.iter().for_each(|v| out.extend_from_slice(&v.to_ne_bytes()));
}

/// The file's attributes: mode 0600, or 0400 if nobody may write.
async fn attributes(image: &Image<Client>) -> Answer {
    let size = image.size().await.map_err(|r| -r)?;
    let mut out = BytesMut::with_capacity(104);
    for v in [VALID, 0, ROOT, size, size / 512, 0, 0, 0] {
        out.extend_from_slice(&v.to_ne_bytes());
    }
    let mode = 0o100_000 | if image.is_writable() { 0o600 } else { 0o400 };
    put32(&mut out, &[0, 0, 0, mode, 1, 0, 0, 0, 4096, 0]);
    Ok(out.freeze())
}

async fn perform(image: &Image<Client>, op: u32, mut request: Bytes) -> Answer {
    match op {
        // Nothing of it can be set; loop devices and mkfs do not care.
        op::GETATTR | op::SETATTR => attributes(image).await,
        op::FSYNC | op::FLUSH => {
            image.flush().await;
            Ok(Bytes::new())
        }
        op::READ | op::WRITE if request.len() >= HEAD => {
            request.advance(8);
            let (offset, size) = (request.get_u64_ne(), request.get_u32_ne());
            request.advance(20);
            if op == op::WRITE {
                if request.len() != size as usize {
                    return Err(errno::EINVAL);
                }
                image.write(offset, request).await.map_err(|r| -r)?;
                let mut out = BytesMut::new();
                put32(&mut out, &[size, 0]);
                return Ok(out.freeze());
            }
            let end = image.size().await.map_err(|r| -r)?;
            let length = u64::from(size.min(PIECE)).min(end.saturating_sub(offset));
            if length == 0 {
                return Ok(Bytes::new());
            }
            image.read(offset, length).await.map_err(|r| -r)
        }
        op::FALLOCATE if request.len() >= 28 => {
            request.advance(8);
            let (offset, length, mode) =
                (request.get_u64_ne(), request.get_u64_ne(), request.get_u32_ne());
            if mode != KEEP_SIZE | PUNCH_HOLE
                && mode != KEEP_SIZE | ZERO_RANGE
                && mode != ZERO_RANGE
            {
                return Err(errno::EOPNOTSUPP);
            }
            image.zero(offset, length).await.map_err(|r| -r)?;
            Ok(Bytes::new())
        }
        _ => Err(errno::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_the_sizes_that_the_kernel_wants() {
        let mut hello = Vec::new();
        [7u32, 40, 1 << 17, u32::MAX]
            .iter()
            .for_each(|v| hello.extend_from_slice(&v.to_ne_bytes()));
        let answer = at_once(op::INIT, &hello).unwrap().unwrap();
        assert_eq!((answer.len(), &answer[..4]), (64, &7u32.to_ne_bytes()[..]));
        assert_eq!(at_once(op::INIT, &hello[..15]), Some(Err(errno::EINVAL)));
        assert_eq!(at_once(op::OPEN, &[]).unwrap().unwrap().len(), 16);
        assert_eq!(at_once(op::STATFS, &[]).unwrap().unwrap().len(), 80);
        assert_eq!(at_once(1, &[]), Some(Err(errno::ENOSYS)));
        assert_eq!(at_once(op::WRITE, &[]), None);
    }
}
