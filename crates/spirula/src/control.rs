//! The control socket: how `down`, `status` and `osd` reach the running process.
//!
//! One JSON object a line, one answer a line, on `DIR/control.sock`. Requests:
//! `{"do":"status"}`, `{"do":"stop"}`, `{"do":"osd-start","id":N}`, `{"do":"osd-stop","id":N}`,
//! `{"do":"osd-recreate","id":N}`, `{"do":"backup","to":"PATH"}`.
//! Answers: `{"ok":true,…}` or `{"ok":false,"error":"…","unmet":false}` (true: it is so already).
//! `stop` is answered when the cluster has stopped.

use crate::Unmet;
use crate::dir::ClusterDir;
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

/// Longest request or answer read, bytes.
const LINE_MAX: u64 = 1 << 20;
/// How long a request may take; stopping waits for the disks.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// Sends one request to the cluster in `dir`. `Ok(None)` if nothing listens there.
///
/// # Errors
/// When the socket breaks or the answer is an error.
pub fn ask(dir: &ClusterDir, request: &Value) -> anyhow::Result<Option<Value>> {
    ask_within(dir, request, ANSWER_TIMEOUT)
}

/// As [`ask`], for what takes longer.
///
/// # Errors
/// As [`ask`].
pub fn ask_within(
    dir: &ClusterDir,
    request: &Value,
    patience: Duration,
) -> anyhow::Result<Option<Value>> {
    let Ok(mut stream) = UnixStream::connect(dir.socket()) else { return Ok(None) };
    stream.set_read_timeout(Some(patience)).context("set a time limit")?;
    writeln!(stream, "{request}").context("write to the control socket")?;
    let mut line = String::new();
    BufReader::new(stream.take(LINE_MAX))
        .read_line(&mut line)
        .context("read from the control socket")?;
    if line.is_empty() {
        bail!(
            "the cluster closed the control socket without an answer; see {}",
            dir.log().display()
        );
    }
    let v: Value = serde_json::from_str(&line).context("understand the cluster's answer")?;
    if v["ok"] == true {
        return Ok(Some(v));
    }
    let why = v["error"].as_str().unwrap_or("no reason given").to_owned();
    if v["unmet"] == true { Err(Unmet(why).into()) } else { bail!(why) }
}

fn not_running(dir: &ClusterDir) -> anyhow::Error {
    Unmet(format!(
        "the cluster in {} is not running; start it with 'spirula up --dir {}'",
        dir.path().display(),
        dir.path().display()
    ))
    .into()
}

/// `spirula down`.
///
/// # Errors
/// [`Unmet`] if it does not run; others if it does not stop.
pub fn down(dir: &Path, as_json: bool) -> anyhow::Result<()> {
    let dir = ClusterDir::new(dir)?;
    dir.require()?;
    let Some(answer) = ask(&dir, &json!({"do": "stop"}))? else { return Err(not_running(&dir)) };
    if !dir.wait_unlocked() {
        bail!("the cluster has stopped, but its process does not end; see {}", dir.log().display());
    }
    if as_json {
        crate::out!("{}", json!({"stopped": true, "seconds": answer["seconds"]}));
    } else {
        crate::out!(
            "stopped the cluster in {}; its data stays, 'spirula up' starts it again",
            dir.path().display()
        );
    }
    Ok(())
}

/// `spirula osd start|stop|recreate`.
///
/// # Errors
/// [`Unmet`] if the cluster does not run; others if the OSD does not do it.
pub fn osd(dir: &Path, action: &str, id: i32, as_json: bool) -> anyhow::Result<()> {
    let dir = ClusterDir::new(dir)?;
    dir.require()?;
    let Some(answer) = ask(&dir, &json!({"do": action, "id": id}))? else {
        return Err(not_running(&dir));
    };
    if as_json {
        crate::out!("{}", json!({"osd": id, "running": action != "osd-stop"}));
    } else {
        crate::out!("{}", answer["message"].as_str().unwrap_or("done"));
    }
    Ok(())
}

/// What a request is answered.
pub struct Answer {
    value: Value,
    /// Dropped when the answer was written, or cannot be.
    _written: Option<mpsc::Sender<()>>,
}

impl Answer {
    /// An empty answer, and what ends when it was written: whoever has that may let the process end
    /// then, and no earlier.
    pub fn noticed() -> (Self, mpsc::Receiver<()>) {
        let (tx, rx) = mpsc::channel();
        (Self { value: Value::Null, _written: Some(tx) }, rx)
    }

    /// The same with something in it.
    pub fn with(self, value: Value) -> Self {
        Self { value, ..self }
    }
}

impl From<Value> for Answer {
    fn from(value: Value) -> Self {
        Self { value, _written: None }
    }
}

/// Serves the control socket on a thread of its own. `handle` answers a request.
///
/// # Errors
/// When the socket cannot be made.
pub fn serve(
    dir: &ClusterDir,
    handle: impl Fn(&Value) -> anyhow::Result<Answer> + Send + Sync + 'static,
) -> anyhow::Result<()> {
    let path = dir.socket();
    // A socket file of an earlier process: the directory's lock says that nobody uses it.
    let _ = std::fs::remove_file(&path);
    let listener =
        UnixListener::bind(&path).with_context(|| format!("listen on {}", path.display()))?;
    let handle = std::sync::Arc::new(handle);
    std::thread::Builder::new()
        .name("control".into())
        .spawn(move || {
            for stream in listener.incoming().flatten() {
                let handle = handle.clone();
                // One short-lived thread a request: a slow one must not hold up `down`.
                let spawned =
                    std::thread::Builder::new().name("control-request".into()).spawn(move || {
                        if let Err(e) = answer(stream, &*handle) {
                            tracing::debug!("control request failed: {e:#}");
                        }
                    });
                if let Err(e) = spawned {
                    tracing::warn!("cannot serve a control request: {e}");
                }
            }
        })
        .context("start the control thread")?;
    Ok(())
}

fn answer(
    stream: UnixStream,
    handle: &dyn Fn(&Value) -> anyhow::Result<Answer>,
) -> anyhow::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(5))).context("set a time limit")?;
    let mut line = String::new();
    BufReader::new((&stream).take(LINE_MAX)).read_line(&mut line).context("read the request")?;
    let result = serde_json::from_str(&line)
        .context("the request is not JSON")
        .and_then(|v: Value| handle(&v));
    let no = |e: anyhow::Error| {
        json!({"ok": false, "error": format!("{e:#}"), "unmet": e.is::<Unmet>()}).into()
    };
    let mut reply = result.unwrap_or_else(no);
    if reply.value.get("ok").is_none() {
        reply.value["ok"] = json!(true);
    }
    // In one piece: the process may end when its last byte has left.
    (&stream).write_all(format!("{}\n", reply.value).as_bytes()).context("write the answer")
}
