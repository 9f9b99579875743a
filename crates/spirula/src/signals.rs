//! Stop signals, and the word to systemd.

use anyhow::Context;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::mpsc;

/// Is SIGHUP ignored, as `nohup` lets it be? Whoever asked for that gets it.
fn hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    mask.and_then(|m| u64::from_str_radix(m.trim(), 16).ok()).is_some_and(|m| m & 1 == 1)
}

/// Calls `stop` for SIGINT and SIGTERM, and for SIGHUP unless that is ignored, from now on. A
/// second one ends the process at once: whoever asks twice does not want to wait, and nothing
/// acknowledged is lost by it.
///
/// # Errors
/// When the thread that waits for them cannot be made.
pub fn on_stop(stop: impl Fn() + Send + 'static) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("wait for signals")?;
    let (mut int, mut term, mut hangup) = {
        use tokio::signal::unix::{SignalKind, signal};
        let _in_runtime = runtime.enter();
        (
            signal(SignalKind::interrupt()).context("catch SIGINT")?,
            signal(SignalKind::terminate()).context("catch SIGTERM")?,
            if hangup_ignored() {
                None
            } else {
                Some(signal(SignalKind::hangup()).context("catch SIGHUP")?)
            },
        )
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            runtime.block_on(async {
                let mut asked = false;
                loop {
                    let hung_up = async {
                        match &mut hangup {
                            Some(hangup) => drop(hangup.recv().await),
                            None => std::future::pending().await,
                        }
                    };
                    // Kernel and shell may both tell that the terminal is gone: that is nobody who
                    // asks twice.
                    let by_hand =
                        tokio::select! { _ = int.recv() => true, _ = term.recv() => true, () = hung_up => false };
                    if by_hand && asked {
                        std::process::exit(130);
                    }
                    asked |= by_hand;
                    stop();
                }
            });
        })
        .context("start the signal thread")?;
    Ok(())
}

/// The same, out of a channel.
///
/// # Errors
/// As [`on_stop`].
pub fn channel() -> anyhow::Result<mpsc::Receiver<()>> {
    let (tx, rx) = mpsc::channel();
    on_stop(move || {
        // The process is ending already.
        let _ = tx.send(());
    })?;
    Ok(rx)
}

/// Tells systemd (`Type=notify`) that the daemon is up; nothing without `NOTIFY_SOCKET`.
pub fn ready() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let Some(text) = path.to_str() else { return };
    let send = || {
        let socket = UnixDatagram::unbound()?;
        let to = match text.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(text)?,
        };
        socket.send_to_addr(b"READY=1", &to)
    };
    if let Err(e) = send() {
        tracing::warn!("tell systemd: {e}");
    }
}
