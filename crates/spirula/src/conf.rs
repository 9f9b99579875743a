//! What Ceph's clients and our daemons read: `ceph.conf`.

use crate::conf_file::ConfFile;
use crate::dir::{ClusterDir, Manifest, write_durably};
use anyhow::Context;

/// What `rbd map` is to tell the kernel: that it speaks msgr2. An option of clients.
pub const KERNEL_OPTION: &str = "rbd_default_map_options";
/// Its value.
pub const KERNEL_VALUE: &str = "ms_mode=prefer-crc";

/// How the first line of a file of `spirula up` begins.
pub const MADE_BY_UP: &str = "Made by 'spirula up'";

/// Writes `ceph.conf` where it is missing. One that names this cluster is left as it is: whoever
/// edited it wants it so.
///
/// # Errors
/// When the file cannot be read or written.
pub fn write(dir: &ClusterDir, m: &Manifest) -> anyhow::Result<()> {
    if is_current(dir, m)? {
        return Ok(());
    }
    if let Some(other) = other_cluster(dir, m) {
        anyhow::bail!(
            "{} names another cluster, fsid {other}; the cluster in this directory is {}: mend or \
                remove the file",
            dir.conf().display(),
            m.fsid
        );
    }
    write_durably(&dir.conf(), text(dir, m).as_bytes(), 0o644)
}

fn mon_host(m: &Manifest) -> String {
    let all: Vec<String> =
        crate::cluster::mon_addrs(m).iter().map(|(_, a)| format!("v2:{a}")).collect();
    all.join(",")
}

/// Is there a file that leads to this cluster from this directory?
fn is_current(dir: &ClusterDir, m: &Manifest) -> anyhow::Result<bool> {
    let path = dir.conf();
    let old = match std::fs::read_to_string(&path) {
        Ok(old) => old,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e).with_context(|| format!("read {}", path.display())),
    };
    let old = ConfFile::parse(&old)
        .map_err(|e| anyhow::anyhow!("{}: {e}; mend or remove it", path.display()))?;
    let is = |name: &str, value: &str| old.global(name) == Some(value);
    // A directory that was moved, or an older spirula's file without the sockets' place.
    let socket = socket(dir);
    let here = old
        .of("osd", "0")
        .iter()
        .any(|(name, value, _)| name == "admin_socket" && *value == socket);
    Ok(is("fsid", &m.fsid.to_string()) && is("mon_host", &mon_host(m)) && here)
}

/// The fsid in the file, if it is not this cluster's. What somebody wrote there is not for us to
/// overrule.
fn other_cluster(dir: &ClusterDir, m: &Manifest) -> Option<String> {
    let text = std::fs::read_to_string(dir.conf()).ok()?;
    let conf = ConfFile::parse(&text).ok()?;
    conf.global("fsid").filter(|f| !f.is_empty() && *f != m.fsid.to_string()).map(str::to_owned)
}

fn socket(dir: &ClusterDir) -> String {
    format!("{}/run/ceph-$name.asok", dir.path().display())
}

/// What is asked of whom, and where the keys are.
fn auth(dir: &ClusterDir, m: &Manifest) -> String {
    let path = dir.path().display();
    let (method, note) = if m.auth {
        ("cephx", "")
    } else {
        ("none", "# Authentication is off: everyone who reaches a port may do everything.\n")
    };
    // Clusters of the first version have one keyring that means nothing.
    let old = dir.join("keyring").exists();
    let keyring =
        if old { format!("{path}/keyring") } else { format!("{path}/ceph.$name.keyring") };
    format!(
        "{note}auth_cluster_required = {method}\nauth_service_required = {method}\n\
         auth_client_required = {method}\nkeyring = {keyring}\n"
    )
}

fn text(dir: &ClusterDir, m: &Manifest) -> String {
    format!(
        "# {MADE_BY_UP}, for Ceph's clients and for the daemons here; yours to edit.\n\
         [global]\n\
         fsid = {fsid}\n\
         mon_host = {mon_host}\n\
         {auth}\
         {ipv6}\
         # Clients write no log of their own to /var/log/ceph and open no socket.\n\
         log_file =\n\
         admin_socket =\n\
         \n\
         [client]\n\
         # Without this a kernel's 'rbd map' wants the older protocol, which nobody here speaks.\n\
         {KERNEL_OPTION} = {KERNEL_VALUE}\n\
         \n\
         [mon]\n\
         admin_socket = {socket}\n\
         [mgr]\n\
         admin_socket = {socket}\n\
         [osd]\n\
         admin_socket = {socket}\n",
        fsid = m.fsid,
        mon_host = mon_host(m),
        auth = auth(dir, m),
        ipv6 = if m.bind.is_ipv6() { "ms_bind_ipv6 = true\nms_bind_ipv4 = false\n" } else { "" },
        socket = socket(dir),
    )
}
