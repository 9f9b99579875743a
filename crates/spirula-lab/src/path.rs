//! What a path between two hosts loses, and how large the frames are that it carries.
//!
//! TCP hides both: what is lost is sent again, and a path that carries no large frames is a stream
//! that stands still. So datagrams are sent, and come back. A server of `spirula bench net` echoes
//! them at the UDP port of its TCP port's number. It echoes only what begins with a token that it
//! gave over TCP, while that connection lasts: nobody can make it answer a forged sender, and two
//! servers never talk to each other.
//!
//! [`probe`] measures, [`Echo`] is the server's side; [`crate::net`] calls both.

use crate::bail;
use crate::prelude::*;
use rustix::net::sockopt;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Bytes of a token.
pub const TOKEN: usize = 8;
/// What a datagram begins with: the token, and its number.
const HEAD: usize = TOKEN + 4;
/// Bytes of a datagram that counts what is lost: one frame on every network.
const SMALL: usize = 1200;
/// Datagrams a second: few enough for any link, many enough to see one lost in a thousand within
/// five seconds.
const RATE: u32 = 400;
/// After so long a datagram is lost.
const LATE: Duration = Duration::from_millis(1000);
/// Datagrams of a size that must all be lost before the path is said not to carry it.
const TRIES: u32 = 4;
/// How long the answer to one of them is waited for.
const ANSWER: Duration = Duration::from_millis(300);
/// The smallest frame that every path of IPv4 and IPv6 carries in practice (RFC 791 asks 576 of
/// hosts).
const LEAST: usize = 576;
/// The largest datagram, with its headers.
const MOST: usize = 65_535;

/// The server's side: who may be answered.
#[derive(Clone, Debug)]
pub struct Echo {
    tokens: Arc<Mutex<BTreeSet<[u8; TOKEN]>>>,
}

/// A token's life.
#[derive(Debug)]
pub struct Given {
    echo: Echo,
    /// What the datagrams begin with.
    pub token: [u8; TOKEN],
}

impl Drop for Given {
    fn drop(&mut self) {
        self.echo.tokens().remove(&self.token);
    }
}

impl Echo {
    /// Answers at this address, in a thread of its own. None where it is taken: then nothing is
    /// measured here.
    #[must_use]
    pub fn start(at: SocketAddr) -> Option<Self> {
        let socket = UdpSocket::bind(at).ok()?;
        // What comes back must be as whole as what went there.
        unfragmented(&socket, at.is_ipv6())?;
        let echo = Self { tokens: Arc::default() };
        let answering = echo.clone();
        let work = move || {
            let mut buf = vec![0; MOST];
            // An error is about one datagram (a port that is closed meanwhile, a frame that is too
            // large), never about the socket.
            loop {
                let Ok((n, from)) = socket.recv_from(&mut buf) else {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                };
                let known = buf
                    .first_chunk::<TOKEN>()
                    .is_some_and(|t| n >= HEAD && answering.tokens().contains(t));
                if known {
                    let _ = socket.send_to(&buf[..n], from);
                }
            }
        };
        std::thread::Builder::new().name("net-echo".into()).spawn(work).ok()?;
        Some(echo)
    }

    fn tokens(&self) -> std::sync::MutexGuard<'_, BTreeSet<[u8; TOKEN]>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A token that is good until this ends. None without entropy.
    #[must_use]
    pub fn give(&self) -> Option<Given> {
        let token = spirula_runtime::entropy::cookie().ok()?.to_le_bytes();
        self.tokens().insert(token);
        Some(Given { echo: self.clone(), token })
    }
}

/// Forbids that frames are cut into fragments on the way. None where the system cannot.
fn unfragmented(socket: &UdpSocket, v6: bool) -> Option<()> {
    if v6 {
        sockopt::set_ipv6_mtu_discover(socket, sockopt::Ipv6PathMtuDiscovery::PROBE).ok()
    } else {
        sockopt::set_ip_mtu_discover(socket, sockopt::Ipv4PathMtuDiscovery::PROBE).ok()
    }
}

/// What was found of a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Probed {
    /// The largest frame that this host's interface sends on it, in bytes with the headers of IP.
    pub mtu: usize,
    /// The largest that came there and back.
    pub carries: usize,
    /// Datagrams sent.
    pub sent: u32,
    /// That did not come back within a second.
    pub lost: u32,
    /// That came back after a later one.
    pub late: u32,
}

impl Probed {
    /// For the results.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({"mtu": self.mtu, "carries": self.carries, "sent": self.sent, "lost": self.lost, "reordered": self.late})
    }

    /// The same from there.
    #[must_use]
    pub fn from_json(v: &Value) -> Option<Self> {
        let number = |key: &str| v[key].as_u64();
        let small = |key: &str| number(key).and_then(|n| u32::try_from(n).ok());
        let size = |key: &str| number(key).and_then(|n| usize::try_from(n).ok());
        Some(Self {
            mtu: size("mtu")?,
            carries: size("carries")?,
            sent: small("sent")?,
            lost: small("lost")?,
            late: small("reordered")?,
        })
    }

    /// In a person's words.
    #[must_use]
    pub fn words(&self) -> String {
        let percent = 100.0 * f64::from(self.lost) / f64::from(self.sent.max(1));
        let mut words = format!("lost {} of {} ({percent:.2} %)", self.lost, self.sent);
        if self.late > 0 {
            words += &format!(", {} out of order", self.late);
        }
        words + &format!("; frames of {} bytes", self.carries)
    }

    /// What is wrong with it, and what would be right.
    #[must_use]
    pub fn advice(&self) -> Vec<String> {
        let mut all = Vec::new();
        if self.carries < self.mtu {
            all.push(format!(
                "this host sends frames of up to {} bytes, and none of more than {} came back: set \
                    the MTU of {} everywhere on the way \
                 (switches too), or that of {} here; until then streams stand still",
                self.mtu, self.carries, self.mtu, self.carries
            ));
        } else if (1280..=1500).contains(&self.mtu) {
            all.push(format!(
                "no jumbo frames (MTU {}): 9,000 on all hosts and switches costs less CPU for each \
                    byte",
                self.mtu
            ));
        }
        if u64::from(self.lost) * 1000 > u64::from(self.sent) {
            all.push(
                "more than one in a thousand is lost: a cable, a duplex mismatch or a full queue; \
                    each loss stalls a stream for \
                 200 ms or more"
                    .into(),
            );
        }
        all
    }
}

/// Sends datagrams to this server, which gave the token, for so long.
///
/// # Errors
/// When none can be sent.
pub fn probe(server: SocketAddr, token: [u8; TOKEN], time: Duration) -> Result<Probed> {
    let own: SocketAddr =
        if server.is_ipv6() { ([0u16; 8], 0).into() } else { ([0u8; 4], 0).into() };
    let socket = UdpSocket::bind(own).context("open a socket for datagrams")?;
    socket.connect(server).with_context(|| format!("send datagrams to {server}"))?;
    if unfragmented(&socket, server.is_ipv6()).is_none() {
        bail!("this system cannot forbid that datagrams are fragmented");
    }
    let mtu = if server.is_ipv6() { sockopt::ipv6_mtu(&socket) } else { sockopt::ip_mtu(&socket) };
    let mtu = mtu.map_or(1500, |n| n as usize).min(MOST);
    let headers = if server.is_ipv6() { 48 } else { 28 };
    let mut path = losses(&socket, token, time)?;
    path.mtu = mtu;
    let mut number = path.sent;
    let mut passes = |frame: usize| comes_back(&socket, token, frame - headers, &mut number);
    path.carries = if passes(mtu) {
        mtu
    } else if path.lost == path.sent || !passes(LEAST) {
        0
    } else {
        // The largest that passes lies in [low, high).
        let (mut low, mut high) = (LEAST, mtu);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if passes(middle) { low = middle } else { high = middle }
        }
        low
    };
    Ok(path)
}

fn datagram(token: [u8; TOKEN], number: u32, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size.max(HEAD)];
    bytes[..TOKEN].copy_from_slice(&token);
    bytes[TOKEN..HEAD].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// The number of the next answer that comes before this moment.
fn answer(socket: &UdpSocket, token: [u8; TOKEN], buf: &mut [u8], until: Instant) -> Option<u32> {
    loop {
        // A time limit of nothing would be none at all.
        let left = until
            .checked_duration_since(Instant::now())
            .filter(|d| *d > Duration::from_micros(10))?;
        socket.set_read_timeout(Some(left)).ok()?;
        match socket.recv(buf) {
            Ok(n) if n >= HEAD && buf[..TOKEN] == token => {
                return buf[TOKEN..HEAD].try_into().ok().map(u32::from_le_bytes);
            }
            Ok(_) => {}
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return None;
            }
            // The other side's port is closed, or what was sent before is too large: the answer to
            // another may still come.
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn losses(socket: &UdpSocket, token: [u8; TOKEN], time: Duration) -> Result<Probed> {
    let mut path = Probed::default();
    let mut back = BTreeSet::new();
    let (mut last, mut buf) = (None, vec![0; MOST]);
    let mut note = |number: u32, path: &mut Probed| {
        if back.insert(number) {
            path.late += u32::from(last.is_some_and(|l| number < l));
            last = last.max(Some(number));
        }
    };
    let begun = Instant::now();
    while begun.elapsed() < time {
        if let Err(e) = socket.send(&datagram(token, path.sent, SMALL)) {
            // A full queue of this host loses it as well as any other. A host that cannot be
            // reached does not come back.
            if path.sent == 0 && e.kind() != ErrorKind::WouldBlock {
                return Err(e).context("send a datagram");
            }
        }
        path.sent += 1;
        let next = begun + Duration::from_secs(1) / RATE * path.sent;
        while let Some(number) = answer(socket, token, &mut buf, next) {
            note(number, &mut path);
        }
    }
    let end = Instant::now() + LATE;
    let mut came = 0;
    while came < path.sent {
        let Some(number) = answer(socket, token, &mut buf, end) else { break };
        note(number, &mut path);
        came += 1;
    }
    path.lost = path.sent - u32::try_from(back.len()).unwrap_or(path.sent).min(path.sent);
    Ok(path)
}

/// Does one of a few datagrams of this size come back?
fn comes_back(socket: &UdpSocket, token: [u8; TOKEN], size: usize, number: &mut u32) -> bool {
    let mut buf = vec![0; MOST];
    (0..TRIES).any(|_| {
        *number += 1;
        // Too large for this host's own interface: it would say the same each time.
        if socket.send(&datagram(token, *number, size)).is_err() {
            return false;
        }
        let until = Instant::now() + ANSWER;
        while let Some(got) = answer(socket, token, &mut buf, until) {
            if got == *number {
                return true;
            }
        }
        false
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_back_is_counted_and_strangers_are_not_answered() {
        let (port, echo) = (0..20)
            .find_map(|_| {
                let port = UdpSocket::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port();
                Some((port, Echo::start(([127, 0, 0, 1], port).into())?))
            })
            .expect("one of twenty ports stays free");
        let server = SocketAddr::from(([127, 0, 0, 1], port));
        let given = echo.give().unwrap();
        // On a busy machine answers may come too late to be counted.
        let once = || probe(server, given.token, Duration::from_millis(200)).unwrap();
        let whole = |p: &Probed| p.lost < p.sent && p.carries == p.mtu;
        let path = (0..20).map(|_| once()).find(whole).expect("loopback carries what it says");
        assert_eq!(Probed::from_json(&path.json()), Some(path));
        // A token that has ended, or never was.
        let token = given.token;
        drop(given);
        let path = probe(server, token, Duration::from_millis(50)).unwrap();
        assert_eq!((path.lost, path.carries), (path.sent, 0), "{path:?}");
    }

    #[test]
    fn a_small_mtu_on_the_way_and_losses_are_told() {
        let good = Probed { mtu: 9000, carries: 9000, sent: 2000, lost: 1, late: 0 };
        assert_eq!(good.advice(), Vec::<String>::new());
        assert!(good.words().contains("lost 1 of 2000 (0.05 %)"), "{}", good.words());
        let hole = Probed { carries: 1500, ..good.clone() };
        assert!(
            hole.advice().iter().any(|a| a.contains("9000") && a.contains("1500")),
            "{:?}",
            hole.advice()
        );
        let plain = Probed { mtu: 1500, carries: 1500, ..good.clone() };
        assert!(plain.advice().iter().any(|a| a.contains("jumbo")));
        let lossy = Probed { lost: 40, ..good };
        assert!(lossy.advice().iter().any(|a| a.contains("thousand")));
    }
}
