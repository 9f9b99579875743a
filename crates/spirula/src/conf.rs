//! What Ceph's clients read: `ceph.conf` and the keyring.

use crate::conf_file::ConfFile;
use crate::dir::{ClusterDir, Manifest, write_durably};
use anyhow::Context;

/// Writes `ceph.conf` and the keyring where they are missing. A `ceph.conf` that names this
/// cluster is left as it is: whoever edited it wants it so.
///
/// # Errors
/// When a file cannot be read or written.
pub fn write(dir: &ClusterDir, m: &Manifest) -> anyhow::Result<()> {
    if !is_current(dir, m)? {
        write_durably(&dir.conf(), text(dir, m).as_bytes(), 0o644)?;
    }
    let keyring = dir.join("keyring");
    if !keyring.exists() {
        write_durably(&keyring, admin_keyring()?.as_bytes(), 0o600)?;
    }
    Ok(())
}

fn mon_host(m: &Manifest) -> String {
    format!("v2:{}", std::net::SocketAddr::new(m.bind, m.port))
}

/// Is there a file that leads to this cluster from this directory?
fn is_current(dir: &ClusterDir, m: &Manifest) -> anyhow::Result<bool> {
    let path = dir.conf();
    let old = match std::fs::read_to_string(&path) {
        Ok(old) => old,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e).with_context(|| format!("read {}", path.display())),
    };
    let old = ConfFile::parse(&old).map_err(|e| anyhow::anyhow!("{}: {e}; mend or remove it", path.display()))?;
    let is = |name: &str, value: &str| old.global(name) == Some(value);
    // A directory that was moved, or an older spirula's file without the sockets' place.
    let socket = socket(dir);
    let here = old.of("osd", "0").iter().any(|(name, value, _)| name == "admin_socket" && *value == socket);
    Ok(is("fsid", &m.fsid.to_string()) && is("mon_host", &mon_host(m)) && here)
}

fn socket(dir: &ClusterDir) -> String {
    format!("{}/run/$cluster-$name.asok", dir.path().display())
}

fn text(dir: &ClusterDir, m: &Manifest) -> String {
    format!(
        "# Made by 'spirula up', for Ceph's clients and for the daemons here; yours to edit.\n\
         [global]\n\
         fsid = {fsid}\n\
         mon_host = {mon_host}\n\
         # Authentication is off: everyone who reaches the port may do everything.\n\
         auth_cluster_required = none\n\
         auth_service_required = none\n\
         auth_client_required = none\n\
         keyring = {path}/keyring\n\
         {ipv6}\
         # Clients write no log of their own to /var/log/ceph and open no socket.\n\
         log_file =\n\
         admin_socket =\n\
         \n\
         [mon]\n\
         admin_socket = {socket}\n\
         [mgr]\n\
         admin_socket = {socket}\n\
         [osd]\n\
         admin_socket = {socket}\n",
        fsid = m.fsid,
        mon_host = mon_host(m),
        path = dir.path().display(),
        ipv6 = if m.bind.is_ipv6() { "ms_bind_ipv6 = true\nms_bind_ipv4 = false\n" } else { "" },
        socket = socket(dir),
    )
}

/// A keyring with one fresh key for `client.admin`.
fn admin_keyring() -> anyhow::Result<String> {
    let mut key = [0u8; 16];
    crate::cluster::host::random(&mut key).context("draw a key")?;
    // CryptoKey on disk: u16 type 1 (AES), utime created, u16 length, key
    // (`shared/protocol/README.md` §3).
    let mut raw = Vec::with_capacity(28);
    raw.extend_from_slice(&1u16.to_le_bytes());
    let now = spirula_runtime::clock::wall();
    raw.extend_from_slice(&now.sec.to_le_bytes());
    raw.extend_from_slice(&now.nsec.to_le_bytes());
    raw.extend_from_slice(&16u16.to_le_bytes());
    raw.extend_from_slice(&key);
    Ok(format!(
        "[client.admin]\n\tkey = {}\n\tcaps mds = \"allow *\"\n\tcaps mgr = \"allow *\"\n\tcaps mon = \"allow *\"\n\tcaps osd = \"allow *\"\n",
        base64(&raw)
    ))
}

/// Standard base64 with padding (RFC 4648 §4); one small key is not worth a dependency.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let n = chunk.iter().fold(0u32, |n, b| (n << 8) | u32::from(*b)) << (8 * (3 - chunk.len()));
        for i in 0..4 {
            let digit = DIGITS[(n >> (18 - 6 * i)) as usize & 63];
            out.push(if i <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_the_rfc_examples() {
        for (i, o) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(i.as_bytes()), o);
        }
    }
}
