//! DNS SRV records: the monitors of a cluster without any `mon_host` (RFC 2782, RFC 1035).
//!
//! One query by UDP to each name server of `/etc/resolv.conf` until one answers, and by TCP if
//! the answer was cut. Names are tried with the search domains. Nothing is cached.

use anyhow::{Context, bail};
use spirula_runtime::entropy;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(3);
const TYPE_SRV: u16 = 33;
const CLASS_IN: u16 = 1;
/// Most records taken from one answer.
const RECORDS_MAX: u16 = 64;

/// One record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Srv {
    priority: u16,
    /// Greater first among those of one priority.
    weight: std::cmp::Reverse<u16>,
    port: u16,
    target: String,
}

/// The addresses behind `_{service}._tcp`, best first.
///
/// # Errors
/// When no server answers, or there is no such record.
pub fn monitors(service: &str) -> anyhow::Result<Vec<SocketAddr>> {
    let conf = std::fs::read_to_string("/etc/resolv.conf").context("read /etc/resolv.conf")?;
    let (servers, domains) = resolver(&conf);
    if servers.is_empty() {
        bail!("/etc/resolv.conf names no server");
    }
    // "service_domain" names the domain, as in Ceph's mon_dns_srv_name.
    let (service, domains) = match service.split_once('_') {
        Some((service, domain)) => (service, vec![domain.to_owned()]),
        None => (service, domains),
    };
    let mut why = format!("_{service}._tcp has no SRV record");
    for domain in domains {
        let name = format!("_{service}._tcp.{domain}");
        let name = name.trim_end_matches('.');
        for server in &servers {
            match ask(*server, name) {
                Ok(list) if list.is_empty() => {
                    why = format!("{name} has no SRV record");
                    break;
                }
                Ok(list) => {
                    let mut out = Vec::new();
                    for srv in list {
                        let found = (srv.target.as_str(), srv.port).to_socket_addrs();
                        out.extend(
                            found.with_context(|| format!("find '{}' of {name}", srv.target))?,
                        );
                    }
                    return Ok(out);
                }
                Err(e) => why = format!("ask {server} for {name}: {e:#}"),
            }
        }
    }
    bail!("{why}")
}

/// Name servers and search domains of a `resolv.conf`; the root comes last.
fn resolver(conf: &str) -> (Vec<SocketAddr>, Vec<String>) {
    let (mut servers, mut domains) = (Vec::new(), Vec::new());
    for line in conf.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => {
                let ip = words
                    .next()
                    .and_then(|w| w.split('%').next())
                    .and_then(|w| w.parse::<IpAddr>().ok());
                servers.extend(ip.map(|ip| SocketAddr::new(ip, 53)));
            }
            Some("search" | "domain") => domains = words.map(str::to_owned).collect(),
            _ => {}
        }
    }
    domains.push(String::new());
    (servers, domains)
}

fn ask(server: SocketAddr, name: &str) -> anyhow::Result<Vec<Srv>> {
    let mut id = [0; 2];
    entropy::fill(&mut id).context("draw a number")?;
    let id = u16::from_be_bytes(id);
    let query = query(id, name)?;
    let any: SocketAddr = if server.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).context("make a socket")?;
    socket.set_read_timeout(Some(PATIENCE)).context("set a time limit")?;
    socket.connect(server).context("connect")?;
    socket.send(&query).context("send")?;
    let mut answer = vec![0; 4096];
    let n = socket.recv(&mut answer).context("no answer")?;
    answer.truncate(n);
    // Bit 9 of the flags: the answer was cut.
    if answer.get(2).is_some_and(|f| f & 2 != 0) {
        let mut stream = TcpStream::connect_timeout(&server, PATIENCE).context("connect by TCP")?;
        stream.set_read_timeout(Some(PATIENCE)).context("set a time limit")?;
        let length = u16::try_from(query.len()).context("the name is too long")?;
        stream
            .write_all(&length.to_be_bytes())
            .and_then(|()| stream.write_all(&query))
            .context("send by TCP")?;
        let mut length = [0; 2];
        stream.read_exact(&mut length).context("read by TCP")?;
        answer = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut answer).context("read by TCP")?;
    }
    records(id, &answer)
}

fn query(id: u16, name: &str) -> anyhow::Result<Vec<u8>> {
    let mut q = Vec::new();
    for n in [id, 0x0100, 1, 0, 0, 0] {
        q.extend_from_slice(&n.to_be_bytes());
    }
    for label in name.split('.') {
        let length = u8::try_from(label.len()).ok().filter(|n| (1..=63).contains(n));
        q.push(length.with_context(|| format!("'{name}' is no domain name"))?);
        q.extend_from_slice(label.as_bytes());
    }
    q.push(0);
    for n in [TYPE_SRV, CLASS_IN] {
        q.extend_from_slice(&n.to_be_bytes());
    }
    Ok(q)
}

/// Reads an answer, byte by byte with every bound checked.
struct Reader<'a> {
    all: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn u8(&mut self) -> anyhow::Result<u8> {
        let b = *self.all.get(self.at).context("the answer is cut short")?;
        self.at += 1;
        Ok(b)
    }

    fn u16(&mut self) -> anyhow::Result<u16> {
        Ok(u16::from_be_bytes([self.u8()?, self.u8()?]))
    }

    fn skip(&mut self, bytes: usize) -> anyhow::Result<()> {
        (0..bytes).try_for_each(|_| self.u8().map(drop))
    }

    /// A name, following pointers, which may only point back.
    fn name(&mut self) -> anyhow::Result<String> {
        let mut out = String::new();
        let mut resume = None;
        let mut bound = self.at;
        loop {
            let n = self.u8()?;
            match n {
                0 => break,
                n if n & 0xc0 == 0xc0 => {
                    let to = usize::from(n & 0x3f) << 8 | usize::from(self.u8()?);
                    if to >= bound {
                        bail!("a name in the answer points forward");
                    }
                    resume.get_or_insert(self.at);
                    (self.at, bound) = (to, to);
                }
                n if n & 0xc0 == 0 => {
                    if !out.is_empty() {
                        out.push('.');
                    }
                    for _ in 0..n {
                        out.push(char::from(self.u8()?));
                    }
                    if out.len() > 255 {
                        bail!("a name in the answer is too long");
                    }
                }
                _ => bail!("the answer has a label of unknown kind"),
            }
        }
        self.at = resume.unwrap_or(self.at);
        Ok(out)
    }
}

fn records(id: u16, answer: &[u8]) -> anyhow::Result<Vec<Srv>> {
    let mut r = Reader { all: answer, at: 0 };
    if r.u16()? != id {
        bail!("the answer is to another question");
    }
    let flags = r.u16()?;
    match flags & 0xf {
        0 => {}
        // No such name.
        3 => return Ok(Vec::new()),
        code => bail!("the server says error {code}"),
    }
    let (questions, answers) = (r.u16()?, r.u16()?);
    r.skip(4)?;
    for _ in 0..questions {
        r.name()?;
        r.skip(4)?;
    }
    let mut out = Vec::new();
    for _ in 0..answers.min(RECORDS_MAX) {
        r.name()?;
        let kind = r.u16()?;
        r.skip(6)?;
        let length = usize::from(r.u16()?);
        let end = r.at + length;
        if kind == TYPE_SRV {
            let (priority, weight, port) = (r.u16()?, r.u16()?, r.u16()?);
            out.push(Srv { priority, weight: std::cmp::Reverse(weight), port, target: r.name()? });
        }
        r.at = end;
    }
    out.sort();
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer to `query` with one record per (priority, weight, port, label), the target below
    /// the asked name by pointer.
    fn answer(id: u16, rows: &[(u16, u16, u16, &str)]) -> Vec<u8> {
        let mut a = query(id, "_ceph-mon._tcp.example.org").unwrap();
        a[2] = 0x81;
        a[3] = 0x80;
        a[7] = rows.len() as u8;
        for (priority, weight, port, label) in rows {
            a.extend_from_slice(&[0xc0, 12]);
            for n in
                [TYPE_SRV, CLASS_IN, 0, 60, 6 + label.len() as u16 + 3, *priority, *weight, *port]
            {
                a.extend_from_slice(&n.to_be_bytes());
            }
            a.push(label.len() as u8);
            a.extend_from_slice(label.as_bytes());
            // "example.org" stands behind "_ceph-mon" and "_tcp".
            a.extend_from_slice(&[0xc0, 12 + 10 + 5]);
        }
        a
    }

    #[test]
    fn records_come_in_the_order_of_priority_and_weight() {
        let a = answer(7, &[(20, 60, 3300, "c"), (10, 20, 3301, "b"), (10, 60, 3300, "a")]);
        let names: Vec<String> = records(7, &a)
            .unwrap()
            .into_iter()
            .map(|s| format!("{}:{}", s.target, s.port))
            .collect();
        assert_eq!(names, ["a.example.org:3300", "b.example.org:3301", "c.example.org:3300"]);
    }

    #[test]
    fn malformed_answers_are_errors_never_panics() {
        let good = answer(7, &[(10, 20, 3301, "b"), (10, 60, 3300, "a")]);
        for cut in 0..good.len() {
            assert!(records(7, &good[..cut]).is_err(), "cut at {cut}");
        }
        for i in 0..good.len() {
            for v in [0, 0x3f, 0xc0, 0xff] {
                let mut bad = good.clone();
                bad[i] = v;
                let _ = records(7, &bad);
            }
        }
        assert!(records(8, &good).is_err());
        assert!(query(1, "a..b").is_err());
    }

    #[test]
    fn resolv_conf_gives_servers_and_domains() {
        let (servers, domains) =
            resolver("# x\nnameserver 10.0.0.1\nnameserver fe80::1%eth0\nsearch a.org b.org\n");
        assert_eq!(servers.len(), 2);
        assert_eq!(domains, ["a.org", "b.org", ""]);
    }
}
