//! What Ceph's clients read: `ceph.conf` and the keyring.

use crate::dir::{ClusterDir, Manifest, write_durably};
use anyhow::Context;

/// Writes `ceph.conf` and, if missing, the keyring.
///
/// # Errors
/// When a file cannot be written.
pub fn write(dir: &ClusterDir, m: &Manifest) -> anyhow::Result<()> {
    let host = match m.bind {
        std::net::IpAddr::V6(a) => format!("[{a}]"),
        std::net::IpAddr::V4(a) => a.to_string(),
    };
    let path = dir.path().display();
    let text = format!(
        "# Written by 'spirula up' at every start; for Ceph's own clients.\n\
         [global]\n\
         fsid = {fsid}\n\
         mon_host = v2:{host}:{port}\n\
         # Authentication is off: everyone who reaches the port may do everything.\n\
         auth_cluster_required = none\n\
         auth_service_required = none\n\
         auth_client_required = none\n\
         keyring = {path}/keyring\n\
         {ipv6}\
         # Clients write no log of their own to /var/log/ceph.\n\
         log_file =\n\
         admin_socket =\n",
        fsid = m.fsid,
        port = m.port,
        ipv6 = if m.bind.is_ipv6() { "ms_bind_ipv6 = true\n" } else { "" },
    );
    write_durably(&dir.conf(), text.as_bytes(), 0o644)?;
    let keyring = dir.join("keyring");
    if !keyring.exists() {
        write_durably(&keyring, admin_keyring()?.as_bytes(), 0o600)?;
    }
    Ok(())
}

/// A keyring with one fresh key for `client.admin`.
fn admin_keyring() -> anyhow::Result<String> {
    let mut key = [0u8; 16];
    crate::cluster::random(&mut key).context("draw a key")?;
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
