//! Admin sockets: one per daemon, in Ceph's protocol, so that `ceph daemon osd.0 …` works.
//!
//! A client connects, sends one command (JSON, ended by a zero byte or a newline) and reads a
//! length (four bytes, big endian) and that many bytes. The command goes to the daemon over a
//! link through memory, as `ceph tell` would send it: there is one set of handlers. A failure
//! is told in words, since the protocol has no place for a code.
//!
//! The socket is for its owner alone (mode 0600). What is malformed is answered with what is
//! wrong; slow, silent and too many clients are cut off.

use crate::cluster::admin::{Answer, tell_local};
use anyhow::{Context, bail};
use serde_json::json;
use spirula_runtime::Hub;
use spirula_types::AddrVec;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Longest command read, bytes.
const REQUEST_MAX: usize = 64 << 10;
/// Clients served at a time.
const CLIENTS_MAX: usize = 16;
/// How long a client may take to send its command or to take its answer.
const CLIENT_PATIENCE: Duration = Duration::from_secs(10);
/// How long the daemon may take; `bench` takes a while.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longest path of a socket that Linux takes, bytes.
const PATH_MAX: usize = 107;

/// An open admin socket; removed when dropped.
#[derive(Debug)]
pub struct AdminSocket {
    path: PathBuf,
    stop: Arc<AtomicBool>,
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the thread out of its accept, and takes the name away.
        let _ = UnixStream::connect(&self.path);
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Opens the socket at `path` for the daemon that listens at `addrs` in this process.
///
/// # Errors
/// When the path is too long, or cannot be written to.
pub fn open(path: &Path, hub: &Hub, addrs: &AddrVec) -> anyhow::Result<AdminSocket> {
    let (hub, addrs) = (hub.clone(), addrs.clone());
    serve(path, move |command| tell_local(&hub, &addrs, command, PATIENCE))
}

fn serve(
    path: &Path,
    ask: impl Fn(String) -> Option<Answer> + Send + Sync + 'static,
) -> anyhow::Result<AdminSocket> {
    if path.as_os_str().len() > PATH_MAX {
        bail!(
            "{}: the path of a socket has at most {PATH_MAX} bytes; choose another with \
                admin_socket",
            path.display()
        );
    }
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
    }
    // Left by a process that was killed: the daemon's lock says that nobody uses it.
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            return Err(e).with_context(|| format!("replace {}", path.display()));
        }
        _ => {}
    }
    let listener =
        UnixListener::bind(path).with_context(|| format!("listen on {}", path.display()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .with_context(|| format!("protect {}", path.display()))?;
    let stop = Arc::new(AtomicBool::new(false));
    let socket = AdminSocket { path: path.to_owned(), stop: stop.clone() };
    let ask = Arc::new(ask);
    let open = Arc::new(AtomicUsize::new(0));
    std::thread::Builder::new()
        .name("admin-socket".into())
        .spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(stream) = stream else {
                    // Out of descriptors, mostly.
                    std::thread::sleep(Duration::from_millis(50));
                    continue;
                };
                if open.fetch_add(1, Ordering::Relaxed) >= CLIENTS_MAX {
                    open.fetch_sub(1, Ordering::Relaxed);
                    continue;
                }
                let (ask, open_here) = (ask.clone(), open.clone());
                let spawned =
                    std::thread::Builder::new().name("admin-request".into()).spawn(move || {
                        if let Err(e) = answer(stream, &*ask) {
                            tracing::debug!("admin socket: {e:#}");
                        }
                        open_here.fetch_sub(1, Ordering::Relaxed);
                    });
                if let Err(e) = spawned {
                    open.fetch_sub(1, Ordering::Relaxed);
                    tracing::warn!("cannot serve an admin socket request: {e}");
                }
            }
        })
        .context("start the admin socket's thread")?;
    Ok(socket)
}

fn answer(mut stream: UnixStream, ask: &dyn Fn(String) -> Option<Answer>) -> anyhow::Result<()> {
    stream.set_read_timeout(Some(CLIENT_PATIENCE)).context("set a time limit")?;
    stream.set_write_timeout(Some(CLIENT_PATIENCE)).context("set a time limit")?;
    let reply = match request(&mut stream)? {
        Ok(command) => match ask(command) {
            Some((0, _, out)) => out.to_vec(),
            Some((code, why, out)) => {
                let mut text = failure(code, &why);
                text.extend_from_slice(&out);
                text
            }
            None => failure(-spirula_types::errno::ETIMEDOUT, "the daemon does not answer"),
        },
        Err(why) => failure(-spirula_types::errno::EINVAL, &why),
    };
    let length = u32::try_from(reply.len()).context("the answer is too long")?;
    stream
        .write_all(&length.to_be_bytes())
        .and_then(|()| stream.write_all(&reply))
        .context("write the answer")
}

fn failure(code: i32, why: &str) -> Vec<u8> {
    let name = std::io::Error::from_raw_os_error(code.saturating_neg()).to_string();
    let name = name.split(" (os error").next().unwrap_or_default().to_owned();
    format!("ERROR: ({code}) {name}\n{why}\n").into_bytes()
}

/// Reads one command as JSON text; the inner error is for the client.
fn request(stream: &mut UnixStream) -> anyhow::Result<Result<String, String>> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let n = stream.read(&mut chunk).context("read a command")?;
        let new = &chunk[..n];
        let end = new.iter().position(|b| *b == 0 || *b == b'\n');
        bytes.extend_from_slice(&new[..end.unwrap_or(n)]);
        if end.is_some() {
            break;
        }
        if n == 0 {
            return Ok(Err("the command does not end".into()));
        }
        if bytes.len() > REQUEST_MAX {
            return Ok(Err(format!("a command has at most {REQUEST_MAX} bytes")));
        }
    }
    let Ok(text) = String::from_utf8(bytes) else {
        return Ok(Err("the command is not UTF-8 text".into()));
    };
    let text = text.trim();
    Ok(match serde_json::from_str::<serde_json::Value>(text) {
        Ok(v) if v["prefix"].is_string() => Ok(text.to_owned()),
        Ok(v) if v.is_object() => Err("the command has no 'prefix'".into()),
        // As older tools send it: the words alone.
        _ if !text.is_empty() && !text.starts_with(['{', '[']) => {
            Ok(json!({ "prefix": text }).to_string())
        }
        _ => Err(format!(
            "'{}' is not a command in JSON",
            text.chars().take(100).collect::<String>()
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn served(name: &str) -> AdminSocket {
        let dir = std::env::temp_dir().join(format!("spirula-asok-{}", std::process::id()));
        serve(&dir.join(name), |command| {
            let v: serde_json::Value = serde_json::from_str(&command).unwrap();
            Some(match v["prefix"].as_str().unwrap() {
                "silent" => return None,
                "bad" => (-22, "is bad".into(), Bytes::new()),
                prefix => (0, String::new(), Bytes::from(format!("did {prefix}"))),
            })
        })
        .unwrap()
    }

    fn ask(s: &AdminSocket, bytes: &[u8]) -> String {
        let mut c = UnixStream::connect(&s.path).unwrap();
        c.write_all(bytes).unwrap();
        c.shutdown(std::net::Shutdown::Write).unwrap();
        let mut length = [0; 4];
        c.read_exact(&mut length).unwrap();
        let mut out = String::new();
        c.read_to_string(&mut out).unwrap();
        assert_eq!(out.len(), u32::from_be_bytes(length) as usize);
        out
    }

    #[test]
    fn commands_are_answered_with_their_length_in_front() {
        let s = served("a.asok");
        assert_eq!(ask(&s, b"{\"prefix\": \"perf dump\"}\0"), "did perf dump");
        assert_eq!(ask(&s, b"version\n"), "did version");
        assert_eq!(ask(&s, b"{\"prefix\": \"bad\"}\0"), "ERROR: (-22) Invalid argument\nis bad\n");
        assert!(ask(&s, b"silent\0").contains("does not answer"));
        assert_eq!(std::fs::metadata(&s.path).unwrap().permissions().mode() & 0o777, 0o600);
        let path = s.path.clone();
        drop(s);
        assert!(!path.exists());
    }

    #[test]
    fn bad_input_is_answered_with_what_is_wrong() {
        let s = served("b.asok");
        for (bytes, word) in [
            (&b"{\"prefix\": \0"[..], "JSON"),
            (b"{}\0", "prefix"),
            (b"\0", "JSON"),
            (b"\xff\xfe\0", "UTF-8"),
            (b"{\"prefix\"", "end"),
        ] {
            let out = ask(&s, bytes);
            assert!(out.starts_with("ERROR: ") && out.contains(word), "{out}");
        }
        // Too long: refused without reading it all; the client may see the connection end.
        let mut c = UnixStream::connect(&s.path).unwrap();
        let _ = c.write_all(&vec![b'x'; REQUEST_MAX * 4]);
        let mut out = Vec::new();
        let _ = c.read_to_end(&mut out);
        assert_eq!(ask(&s, b"version\0"), "did version");
        assert!(serve(Path::new(&format!("/tmp/{}", "x".repeat(200))), |_| None).is_err());
    }
}
