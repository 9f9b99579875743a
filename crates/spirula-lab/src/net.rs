//! `spirula bench net`: what the network between hosts gives, to one host and to many, from one and
//! from many.
//!
//! A host serves (`--listen`), another measures (`--to`). Each host is measured alone with one and
//! with several streams, then all at once, in both directions. A bond of links sends one stream
//! over one link (802.3ad): one stream is slower than several then, and that is said. What the path
//! loses and how large the frames are that it carries is asked with datagrams ([`crate::path`]).
//!
//! Between several hosts (`--on`) the program is started on each of them, as for generators
//! ([`crate::generator`]): each serves, and each in turn measures all others.
//!
//! A server takes no more than [`CONNECTIONS`] at a time, sends to nobody but who connected, and
//! for [`MOST`] at most.

use crate::args::{Lab, NetArgs, Output};
use crate::bail;
use crate::generator::Via;
use crate::path::{self, Echo, Probed};
use crate::prelude::*;
use crate::progress::{bytes_rate, ms};
use crate::record::Record;
use crate::shown::Shown;
use crate::used::Watch;
use std::fs::DirBuilder;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::fs::DirBuilderExt;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

/// Port where none is given.
const PORT: u16 = 5203;
/// What a connection begins with.
const HELLO: &[u8; 8] = b"SPInet01";
/// Connections that a server has at a time.
const CONNECTIONS: usize = 256;
/// The longest that one may last.
const MOST: Duration = Duration::from_secs(3700);
/// Bytes that are written together.
const BLOCK: usize = 256 << 10;
/// Silence after which a peer is given up.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// The server reads.
    Take,
    /// The server writes.
    Give,
    /// The server sends each byte back.
    Echo,
    /// The server gives a token, and echoes datagrams that begin with it.
    Path,
}

impl What {
    fn byte(self) -> u8 {
        match self {
            Self::Take => b't',
            Self::Give => b'g',
            Self::Echo => b'e',
            Self::Path => b'p',
        }
    }

    fn of(b: u8) -> Option<Self> {
        [Self::Take, Self::Give, Self::Echo, Self::Path].into_iter().find(|w| w.byte() == b)
    }
}

fn serve_one(mut s: TcpStream, echo: Option<&Echo>) -> std::io::Result<()> {
    let begun = Instant::now();
    s.set_read_timeout(Some(PATIENCE))?;
    s.set_write_timeout(Some(PATIENCE))?;
    s.set_nodelay(true)?;
    let mut head = [0; 9];
    s.read_exact(&mut head)?;
    let Some(what) = What::of(head[8]).filter(|_| head.starts_with(HELLO)) else { return Ok(()) };
    // It is understood. Without this word a listener of another kind would be measured.
    s.write_all(HELLO)?;
    if what == What::Path {
        // Without a port for datagrams there is no token: the end of the stream says so.
        let Some(given) = echo.and_then(Echo::give) else { return Ok(()) };
        s.write_all(&given.token)?;
        s.set_read_timeout(Some(MOST))?;
        // It is good until the other side has had enough.
        return s.read(&mut head).map(|_| ());
    }
    let mut buf = vec![0; BLOCK];
    while begun.elapsed() < MOST {
        match what {
            What::Give => s.write_all(&buf)?,
            What::Take => {
                if s.read(&mut buf)? == 0 {
                    // Whoever sent all waits for this.
                    return s.write_all(HELLO);
                }
            }
            What::Echo => {
                let mut one = [0; 1];
                if s.read(&mut one)? == 0 {
                    return Ok(());
                }
                s.write_all(&one)?;
            }
            What::Path => return Ok(()),
        }
    }
    Ok(())
}

/// Serves in threads of its own; gives the port.
fn serve(on: &str) -> Result<u16> {
    let listener = TcpListener::bind(on).with_context(|| format!("listen on {on}"))?;
    let at = listener.local_addr().context("ask for the port")?;
    let port = at.port();
    let echo = Echo::start(at);
    let open = Arc::new(AtomicUsize::new(0));
    std::thread::Builder::new()
        .name("net".into())
        .spawn(move || {
            for s in listener.incoming().flatten() {
                if open.load(Ordering::Relaxed) >= CONNECTIONS {
                    continue;
                }
                open.fetch_add(1, Ordering::Relaxed);
                let (ended, echo) = (open.clone(), echo.clone());
                let work = move || {
                    // Whoever breaks off ends a measurement, not this server.
                    let _ = serve_one(s, echo.as_ref());
                    ended.fetch_sub(1, Ordering::Relaxed);
                };
                if std::thread::Builder::new().name("net-stream".into()).spawn(work).is_err() {
                    open.fetch_sub(1, Ordering::Relaxed);
                }
            }
        })
        .context("start a thread")?;
    Ok(port)
}

fn connect(host: &str, what: What) -> Result<TcpStream> {
    let say = || format!("connect to {host} ('spirula bench net --listen' must run there)");
    let with_port = if host.rsplit_once(':').is_some_and(|(_, p)| p.parse::<u16>().is_ok()) {
        host.to_owned()
    } else {
        format!("{host}:{PORT}")
    };
    let mut last = None;
    for addr in with_port.to_socket_addrs().with_context(say)? {
        match TcpStream::connect_timeout(&addr, PATIENCE) {
            Ok(mut s) => {
                s.set_nodelay(true).with_context(say)?;
                s.set_read_timeout(Some(PATIENCE)).with_context(say)?;
                s.set_write_timeout(Some(PATIENCE)).with_context(say)?;
                let mut head = HELLO.to_vec();
                head.push(what.byte());
                s.write_all(&head).with_context(say)?;
                let mut answer = [0; 8];
                s.read_exact(&mut answer).with_context(say)?;
                if answer != *HELLO {
                    bail!("{host}: whoever listens there is no 'spirula bench net --listen'");
                }
                return Ok(s);
            }
            Err(e) => last = Some(e),
        }
    }
    Err(last
        .map_or_else(|| anyhow::anyhow!("{host} has no address"), anyhow::Error::from)
        .context(say()))
}

/// One stream for so long.
fn stream(host: &str, what: What, time: Duration) -> Result<Record> {
    let mut s = connect(host, what)?;
    let mut record = Record::default();
    let mut buf = vec![0; if what == What::Echo { 1 } else { BLOCK }];
    let broken = || format!("the stream with {host} broke");
    let begun = Instant::now();
    while begun.elapsed() < time {
        let from = Instant::now();
        let n = match what {
            What::Take => s.write_all(&buf).map(|()| buf.len()),
            What::Give => s.read(&mut buf),
            What::Echo | What::Path => {
                s.write_all(&buf).and_then(|()| s.read_exact(&mut buf)).map(|()| 1)
            }
        };
        let n = n.with_context(broken)?;
        if n == 0 {
            bail!("{host} ended the stream");
        }
        record.add(begun.elapsed(), from.elapsed(), n as u64, what == What::Give);
    }
    if what == What::Take {
        // What is in buffers has not arrived: its time counts as well.
        s.shutdown(std::net::Shutdown::Write).with_context(broken)?;
        let mut answer = [0; 8];
        s.read_exact(&mut answer).with_context(broken)?;
        record.took = begun.elapsed();
    }
    Ok(record)
}

/// Streams with these hosts at once.
fn at_once(hosts: &[String], what: What, streams: usize, time: Duration) -> Result<Record> {
    let all: Vec<Result<Record>> = std::thread::scope(|s| {
        let each = hosts.iter().flat_map(|h| std::iter::repeat_n(h, streams));
        let threads: Vec<_> = each.map(|h| s.spawn(move || stream(h, what, time))).collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread ended"))))
            .collect()
    });
    let mut whole = Record::default();
    for r in all {
        whole.merge(&r?);
    }
    Ok(whole)
}

fn measure_one(
    hosts: &[String],
    what: What,
    streams: usize,
    name: &str,
    a: &NetArgs,
    shown: &mut Shown<'_>,
) -> Result<f64> {
    shown.progress.now(name);
    let mut watch = Watch::begin();
    let r = watch.during(|| at_once(hosts, what, streams, Duration::from_secs(a.seconds)))?;
    let used = watch.end(r.ops);
    let rate = r.rate();
    let text = match what {
        What::Echo => format!(
            "{name:<44} there and back: mean {:>8}  p99 {:>8}  max {:>8}",
            ms(r.latency.mean() / 1e6),
            ms(r.latency.value_at_quantile(0.99) as f64 / 1e6),
            ms(r.latency.max() as f64 / 1e6)
        ),
        _ => format!("{name:<44} {:>11}", bytes_rate(rate)),
    };
    let run = json!({
        "name": name, "repeat": 0, "mode": format!("{what:?}").to_lowercase(), "threads": streams, "seconds": a.seconds, "hosts": hosts,
        "found": r.json(), "used": used.json,
    });
    shown.add(&text, run)?;
    Ok(rate)
}

/// What the path to a server loses and carries.
fn path_to(host: &str, time: Duration) -> Result<Probed> {
    let mut s = connect(host, What::Path)?;
    let mut token = [0; path::TOKEN];
    s.read_exact(&mut token).with_context(|| {
        format!(
            "{host} echoes no datagrams: UDP at its port was taken when it began, try another port"
        )
    })?;
    let server: SocketAddr =
        s.peer_addr().with_context(|| format!("ask for the address of {host}"))?;
    // The token is good while `s` is open.
    path::probe(server, token, time)
}

fn measure_path(host: &str, a: &NetArgs, shown: &mut Shown<'_>) -> Result<()> {
    let name = format!("path to {host}");
    shown.progress.now(&name);
    let path = match path_to(host, Duration::from_secs(a.seconds)) {
        Ok(path) => path,
        // A firewall that lets no datagrams through is no reason not to measure streams.
        Err(e) => {
            shown.say(&format!("{name:<44} not measured: {e:#}"));
            return Ok(());
        }
    };
    let run = json!({
        "name": name, "repeat": 0, "mode": "path", "threads": 1, "seconds": a.seconds, "hosts": [host], "found": path.json(),
    });
    shown.add(&format!("{name:<44} {}", path.words()), run)?;
    path.advice().iter().for_each(|words| shown.say(&format!("  {words}")));
    Ok(())
}

/// Measures the hosts; the runs go where `shown` leads.
///
/// # Errors
/// When one does not answer.
pub fn measure(hosts: &[String], a: &NetArgs, shown: &mut Shown<'_>) -> Result<()> {
    let several = a.streams;
    for h in hosts {
        let one = std::slice::from_ref(h);
        measure_one(one, What::Echo, 1, &format!("latency with {h}"), a, shown)?;
        measure_path(h, a, shown)?;
        for (what, words) in [(What::Take, "to"), (What::Give, "from")] {
            let single = measure_one(one, what, 1, &format!("1 stream {words} {h}"), a, shown)?;
            let many = measure_one(
                one,
                what,
                several,
                &format!("{several} streams {words} {h}"),
                a,
                shown,
            )?;
            if many > single * 1.4 {
                shown.say(&format!(
                    "  {several} streams carry {:.1} times what one does: one stream goes over one \
                        link of a bond, or one CPU is its limit",
                    many / single
                ));
            }
        }
    }
    if hosts.len() > 1 {
        measure_one(
            hosts,
            What::Take,
            1,
            &format!("one to {} hosts at once", hosts.len()),
            a,
            shown,
        )?;
        measure_one(
            hosts,
            What::Give,
            1,
            &format!("{} hosts to one at once", hosts.len()),
            a,
            shown,
        )?;
    }
    Ok(())
}

/// Measures for another program: what was found goes to standard output only.
fn relay(lab: &Lab, a: &NetArgs) -> Result<()> {
    let name = format!(
        "spirula-bench-net-{}-{:08x}",
        std::process::id(),
        spirula_runtime::entropy::cookie().context("draw a number")?
    );
    let dir = std::env::temp_dir().join(name);
    // Made, not found: everybody may write there.
    DirBuilder::new()
        .mode(0o700)
        .create(&dir)
        .with_context(|| format!("make {}", dir.display()))?;
    let output = Output { out: Some(dir.clone()), label: None, json: true };
    let outcome = Shown::new(lab, "net", &output).and_then(|mut shown| {
        measure(&a.to, a, &mut shown)?;
        shown.finish()
    });
    // What stays is a small file in the place for such.
    let _ = std::fs::remove_dir_all(&dir);
    outcome
}

/// A host that serves while others measure.
struct Served {
    via: Via,
    /// Where others reach it.
    at: String,
    child: Child,
}

impl Drop for Served {
    fn drop(&mut self) {
        // The end of its input is its end.
        drop(self.child.stdin.take());
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begun.elapsed() > Duration::from_secs(3) {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn words(all: &[&str]) -> Vec<String> {
    all.iter().map(|w| (*w).to_owned()).collect()
}

impl Served {
    fn start(host: &str, template: &str) -> Result<Self> {
        let (host, address) = host.split_once('=').unwrap_or((host, host));
        let via = Via::new(host, template)?;
        let mut command =
            via.command(&words(&["bench", "net", "--listen", "0.0.0.0:0", "--until-eof"]));
        let spawned =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
        let mut child = spawned.with_context(|| format!("start spirula on {host}"))?;
        let output = child.stdout.take().context("it has no output")?;
        let mut served = Self { via, at: String::new(), child };
        let mut line = String::new();
        // If it never says a word, ssh does: its own time limit ends this.
        let _ = BufReader::new(output).take(4096).read_line(&mut line);
        let port = line
            .strip_prefix("listening on port ")
            .and_then(|rest| rest.split(';').next()?.parse::<u16>().ok());
        let port =
            port.with_context(|| format!("{host} does not serve; it said: {}", line.trim()))?;
        served.at = format!("{address}:{port}");
        Ok(served)
    }
}

/// Each host measures all others.
fn between(lab: &Lab, a: &NetArgs, shown: &mut Shown<'_>) -> Result<()> {
    if a.on.len() < 2 {
        bail!("--on names two hosts at least");
    }
    let all: Vec<Served> =
        a.on.iter().map(|host| Served::start(host, &a.via)).collect::<Result<_>>()?;
    for (i, from) in all.iter().enumerate() {
        if lab.stopped() {
            bail!("interrupted");
        }
        let host = &from.via.host;
        shown.progress.now(&format!("{host} measures {} others", all.len() - 1));
        let others = || all.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, s)| s);
        let to = others().map(|s| s.at.clone()).collect::<Vec<_>>().join(",");
        let (seconds, streams) = (a.seconds.to_string(), a.streams.to_string());
        let asked =
            ["bench", "net", "--to", &to, "--seconds", &seconds, "--streams", &streams, "--relay"];
        let out = from.via.command(&words(&asked)).stdin(Stdio::null()).output();
        let out = out.with_context(|| format!("start spirula on {host}"))?;
        if !out.status.success() {
            bail!("{host}: {}", String::from_utf8_lossy(&out.stderr).trim());
        }
        let v: Value = serde_json::from_slice(&out.stdout)
            .with_context(|| format!("{host}: what it says is no result"))?;
        for run in v["runs"].as_array().into_iter().flatten() {
            let mut run = run.clone();
            // A port is another one each time: names are those of hosts.
            let name = run["name"].as_str().unwrap_or_default().to_owned();
            let name = others().fold(name, |name, s| name.replace(&s.at, &s.via.host));
            run["name"] = json!(format!("{host}: {name}"));
            let found = &run["found"];
            let path = Probed::from_json(found);
            let text = match found["latency_ms"]["mean"].as_f64().filter(|_| run["mode"] == "echo")
            {
                Some(mean) => format!("there and back: mean {:>8}", ms(mean)),
                None if path.is_some() => path.as_ref().map(Probed::words).unwrap_or_default(),
                None => format!("{:>11}", bytes_rate(found["bytes_per_s"].as_f64().unwrap_or(0.0))),
            };
            shown.add(&format!("{:<54} {text}", run["name"].as_str().unwrap_or_default()), run)?;
            path.iter().flat_map(Probed::advice).for_each(|words| shown.say(&format!("  {words}")));
        }
    }
    Ok(())
}

/// `spirula bench net`.
///
/// # Errors
/// When nothing can be listened on, or a host does not answer.
pub fn net(lab: &Lab, a: &NetArgs) -> Result<()> {
    if let Some(on) = &a.listen {
        let on = if on.rsplit_once(':').is_some_and(|(_, p)| p.parse::<u16>().is_ok()) {
            on.clone()
        } else {
            format!("{on}:{PORT}")
        };
        let port = serve(&on)?;
        lab.say(format!(
            "listening on port {port}; measure from another host: spirula bench net --to \
                THIS_HOST:{port}"
        ));
        let over = Arc::new(AtomicBool::new(false));
        if a.until_eof {
            let over = over.clone();
            let wait = move || {
                // Whoever started this has ended, or is done.
                let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
                over.store(true, Ordering::Relaxed);
            };
            std::thread::Builder::new()
                .name("wait".into())
                .spawn(wait)
                .context("start a thread")?;
        }
        while !lab.stopped() && !over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(100));
        }
        return Ok(());
    }
    if a.relay {
        return relay(lab, a);
    }
    if !a.on.is_empty() {
        let mut shown = Shown::new(lab, "net", &a.output)?;
        between(lab, a, &mut shown)?;
        return shown.finish();
    }
    let mut shown = Shown::new(lab, "net", &a.output)?;
    measure(&a.to, a, &mut shown)?;
    shown.finish()
}

/// The same with this very host, through its loopback: what its CPUs and kernel give.
///
/// # Errors
/// When that cannot be.
pub fn loopback(a: &NetArgs, shown: &mut Shown<'_>) -> Result<()> {
    let port = serve("127.0.0.1:0")?;
    measure(&[format!("127.0.0.1:{port}")], a, shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_both_ways_and_strangers_are_told_apart() {
        let host = format!("127.0.0.1:{}", serve("127.0.0.1:0").unwrap());
        for what in [What::Take, What::Give, What::Echo] {
            // Longer where others have the CPU.
            let run = |millis| {
                at_once(std::slice::from_ref(&host), what, 2, Duration::from_millis(millis))
                    .unwrap()
            };
            let r = [200, 2000, 20_000]
                .into_iter()
                .map(run)
                .find(|r| r.ops > 2)
                .expect("more than two in 20 s");
            assert!(r.bytes >= r.ops, "{what:?}: {} {}", r.ops, r.bytes);
        }
        let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = stranger.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let (mut s, _) = stranger.accept().unwrap();
            s.write_all(b"220 mail server ready").unwrap();
            let mut rest = Vec::new();
            let _ = s.read_to_end(&mut rest);
        });
        assert!(
            connect(&at, What::Take).unwrap_err().to_string().contains("is no 'spirula bench net")
        );
        assert!(
            connect("127.0.0.1:1", What::Take).unwrap_err().to_string().contains("must run there")
        );
    }
}
