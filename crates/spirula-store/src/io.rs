//! How the store's threads speak to the kernel: plain system calls, or io_uring for what
//! comes in batches (payloads to be put in place, reads in several pieces).
//!
//! [`IoChoice`] is what was asked for, [`Io`] what is used; [`IoChoice::settle`] tries the
//! kernel once. The rings, one per thread, are here, too: [`run`] gives a batch of reads and
//! writes to the kernel with one system call and waits for all of them, so that nothing the
//! kernel may touch is ever let go of while it may.
//!
//! `auto` means system calls. Measured (`bench/results/`), a ring costs more for a single
//! request, most of all for one that is synced (the kernel has a worker wait for it), and
//! writes to the page cache go to workers, too, where a page is not there yet.

use crate::error::{Result, StoreError};
use io_uring::{IoUring, opcode, types};
use std::cell::RefCell;
use std::fmt;
use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::str::FromStr;

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoChoice {
    /// What is faster here.
    #[default]
    Auto,
    /// System calls.
    Threads,
    /// io_uring, or an error.
    Uring,
}

impl FromStr for IoChoice {
    type Err = &'static str;

    fn from_str(s: &str) -> std::result::Result<Self, Self::Err> {
        match s {
            "auto" => Ok(Self::Auto),
            "threads" => Ok(Self::Threads),
            "uring" => Ok(Self::Uring),
            _ => Err("give auto, threads or uring"),
        }
    }
}

/// What is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Io {
    /// System calls of threads that wait.
    #[default]
    Threads,
    /// io_uring.
    Uring,
}

impl fmt::Display for Io {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Threads => "threads",
            Self::Uring => "uring",
        })
    }
}

impl IoChoice {
    /// Decides, after trying a ring where one is asked for. Once per process.
    ///
    /// # Errors
    /// [`StoreError::Refused`] when io_uring is asked for and the kernel refuses it.
    pub fn settle(self) -> Result<Io> {
        match self {
            Self::Auto | Self::Threads => Ok(Io::Threads),
            Self::Uring => match probe() {
                Ok(()) => Ok(Io::Uring),
                Err(e) => Err(StoreError::Refused {
                    file: "io_uring".into(),
                    why: format!("the kernel refuses it: {e}"),
                    advice: "allow it (a container's seccomp profile, the sysctl \
                        kernel.io_uring_disabled), \
                             or use --io threads"
                        .into(),
                }),
            },
        }
    }
}

/// Does real requests with a ring.
fn probe() -> io::Result<()> {
    let zeros = File::open("/dev/zero")?;
    let null = File::options().write(true).open("/dev/null")?;
    let (mut buf, data) = ([1; 16], [2; 16]);
    read_many(&mut [(0, &mut buf)], |_, _| &zeros)?;
    write_many(&[&data], &[(0, 0..1)], |_, _| &null)?;
    if buf != [0; 16] { Err(io::Error::other("it does not read what is there")) } else { Ok(()) }
}

/// A read or write of a file.
struct Request<'a> {
    fd: BorrowedFd<'a>,
    at: u64,
    what: What<'a>,
}

enum What<'a> {
    Read(&'a mut [u8]),
    Write(&'a mut [IoSlice<'a>]),
}

impl Request<'_> {
    /// True when nothing is left to be done.
    fn is_done(&self) -> bool {
        match &self.what {
            What::Read(buf) => buf.is_empty(),
            What::Write(slices) => slices.iter().all(|s| s.is_empty()),
        }
    }

    fn entry(&mut self, user_data: u64) -> io_uring::squeue::Entry {
        let fd = types::Fd(self.fd.as_raw_fd());
        let entry = match &mut self.what {
            What::Read(buf) => {
                // The rest of a long one is asked for when the first part is there.
                let len = u32::try_from(buf.len()).unwrap_or(1 << 30);
                opcode::Read::new(fd, buf.as_mut_ptr(), len).offset(self.at).build()
            }
            What::Write(slices) => {
                // `IoSlice` is an `iovec` by its documentation.
                opcode::Writev::new(fd, slices.as_ptr().cast(), slices.len() as u32)
                    .offset(self.at)
                    .build()
            }
        };
        entry.user_data(user_data)
    }

    /// Takes note of what the kernel has done.
    fn took(&mut self, result: i32) -> io::Result<()> {
        let n = match u32::try_from(result) {
            Ok(0) if matches!(self.what, What::Read(_)) => {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => n as usize,
            Err(_) => {
                let e = io::Error::from_raw_os_error(-result);
                return if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
                {
                    Ok(())
                } else {
                    Err(e)
                };
            }
        };
        self.at += n as u64;
        match &mut self.what {
            What::Read(buf) => *buf = std::mem::take(buf).get_mut(n..).unwrap_or_default(),
            What::Write(slices) => IoSlice::advance_slices(slices, n),
        }
        Ok(())
    }
}

/// Buffers per request; Linux takes 1024.
const SLICES: usize = 512;
/// Requests under way at a time, per thread.
const ENTRIES: u32 = 64;

thread_local! {
    static RING: RefCell<Option<IoUring>> = const { RefCell::new(None) };
}

fn new_ring() -> io::Result<IoUring> {
    // Newer kernels save interrupts where one thread uses a ring; older ones know no such flag.
    IoUring::builder()
        .setup_single_issuer()
        .setup_coop_taskrun()
        .build(ENTRIES)
        .or_else(|_| IoUring::new(ENTRIES))
}

/// Does all requests. On an error some may have been done.
fn run(requests: &mut [Request<'_>]) -> io::Result<()> {
    RING.with_borrow_mut(|slot| {
        let ring = match slot {
            Some(ring) => ring,
            None => slot.insert(new_ring()?),
        };
        drive(ring, requests)
    })
}

fn drive(ring: &mut IoUring, requests: &mut [Request<'_>]) -> io::Result<()> {
    let mut waiting: Vec<usize> = (0..requests.len()).rev().collect();
    let mut under_way = 0;
    let mut failure = None;
    loop {
        while failure.is_none()
            && under_way < ENTRIES
            && let Some(i) = waiting.pop()
        {
            let Some(request) = requests.get_mut(i).filter(|r| !r.is_done()) else { continue };
            let entry = request.entry(i as u64);
            // SAFETY: the memory that the entry names is borrowed by `requests`, and this
            // function does not return before the kernel has reported the entry as done.
            #[allow(unsafe_code, reason = "hands memory to the kernel")]
            let pushed = unsafe { ring.submission().push(&entry) };
            if pushed.is_err() {
                waiting.push(i);
                break;
            }
            under_way += 1;
        }
        if under_way == 0 {
            break;
        }
        match ring.submit_and_wait(under_way as usize) {
            Ok(_) => {}
            // Some of them are not done yet, or must be collected first.
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.raw_os_error() == Some(rustix::io::Errno::AGAIN.raw_os_error()) => {
                std::thread::yield_now()
            }
            Err(e) if e.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => {}
            Err(e) => {
                // Nothing says any more when the kernel is done with memory that is lent to it.
                tracing::error!(error = %e, "io_uring failed with requests under way");
                std::process::abort();
            }
        }
        for done in ring.completion() {
            under_way -= 1;
            let i = done.user_data() as usize;
            let Some(request) = requests.get_mut(i) else { continue };
            match request.took(done.result()) {
                Ok(()) => waiting.push(i),
                Err(e) => failure = Some(e),
            }
        }
    }
    failure.map_or(Ok(()), Err)
}

/// Fills each buffer from its offset in the file that `file` names for it.
pub(crate) fn read_many<'f>(
    parts: &mut [(u64, &mut [u8])],
    file: impl Fn(u64, &[u8]) -> &'f File,
) -> io::Result<()> {
    let mut requests = Vec::with_capacity(parts.len());
    for (at, buf) in parts {
        requests.push(Request { fd: file(*at, buf).as_fd(), at: *at, what: What::Read(buf) });
    }
    run(&mut requests)
}

/// Writes runs of `bufs`, each to its offset in the file that `file` names for it.
pub(crate) fn write_many<'f>(
    bufs: &[&[u8]],
    runs: &[(u64, Range<usize>)],
    file: impl Fn(u64, &[&[u8]]) -> &'f File,
) -> io::Result<()> {
    let mut slices: Vec<(u64, &File, Vec<IoSlice<'_>>)> = Vec::with_capacity(runs.len());
    for (at, run) in runs {
        let own = bufs.get(run.clone()).unwrap_or_default();
        let (mut at, file) = (*at, file(*at, own));
        for part in own.chunks(SLICES) {
            slices.push((at, file, part.iter().map(|b| IoSlice::new(b)).collect()));
            at += part.iter().map(|b| b.len() as u64).sum::<u64>();
        }
    }
    let mut requests = Vec::with_capacity(slices.len());
    for (at, file, slices) in &mut slices {
        let file: &File = file;
        requests.push(Request { fd: file.as_fd(), at: *at, what: What::Write(slices) });
    }
    run(&mut requests)
}

/// The ways there are here, for tests of each.
#[cfg(test)]
pub(crate) fn all() -> Vec<Io> {
    match IoChoice::Uring.settle() {
        Ok(uring) => vec![Io::Threads, uring],
        Err(e) => {
            println!("SKIPPED io_uring: {e}");
            vec![Io::Threads]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_does_more_requests_than_it_has_room_for_and_reports_the_one_that_fails() {
        if all().len() < 2 {
            return;
        }
        let path = std::env::temp_dir().join(format!("spirula-ring-{}", std::process::id()));
        let file =
            File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        let blocks: Vec<Vec<u8>> = (0..300u32).map(|i| vec![i as u8; 100 + i as usize]).collect();
        let bufs: Vec<&[u8]> = blocks.iter().map(|b| b.as_slice()).collect();
        let runs: Vec<(u64, Range<usize>)> =
            (0..150).map(|i| (i * 1000, i as usize * 2..i as usize * 2 + 2)).collect();
        write_many(&bufs, &runs, |_, _| &file).unwrap();
        let mut read: Vec<Vec<u8>> =
            (0..150).map(|i| vec![9; blocks[2 * i].len() + blocks[2 * i + 1].len()]).collect();
        let mut parts: Vec<(u64, &mut [u8])> =
            read.iter_mut().enumerate().map(|(i, b)| (i as u64 * 1000, b.as_mut_slice())).collect();
        read_many(&mut parts, |_, _| &file).unwrap();
        for (i, b) in read.iter().enumerate() {
            assert_eq!(*b, [blocks[2 * i].as_slice(), &blocks[2 * i + 1]].concat());
        }
        let (mut good, mut bad) = ([1; 10], [2; 10]);
        let e = read_many(&mut [(0, &mut good), (1 << 30, &mut bad)], |_, _| &file).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::UnexpectedEof);
        let many: Vec<&[u8]> = vec![b"x"; 3000];
        write_many(&many, &[(500_000, 0..3000)], |_, _| &file).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 503_000);
        std::fs::remove_file(&path).unwrap();
    }
}
