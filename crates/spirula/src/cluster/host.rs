//! This machine: its name, facts, disks.

use spirula_runtime::entropy;
use std::collections::BTreeMap;
use std::path::Path;

/// Fills `bytes` with random ones.
///
/// # Errors
/// When the kernel has none.
pub fn random(bytes: &mut [u8]) -> std::io::Result<()> {
    entropy::fill(bytes)
}

/// A number that tells this incarnation of a daemon from others. Below 2^31: printed as signed
/// by some tools.
///
/// # Errors
/// As [`random`].
pub fn nonce() -> std::io::Result<u32> {
    let mut bytes = [0; 4];
    random(&mut bytes)?;
    Ok((u32::from_le_bytes(bytes) >> 1).max(1))
}

/// This machine's name, as the CRUSH map and reports show it.
pub fn hostname() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let short = name.split('.').next().unwrap_or_default();
    if short.is_empty() { "localhost".to_owned() } else { short.to_owned() }
}

/// What daemons tell of the machine they run on (`osd metadata`, `mon metadata` …).
pub fn machine_facts(host: &str) -> BTreeMap<String, String> {
    let memory = rustix::system::sysinfo();
    [
        ("hostname", host.to_owned()),
        ("ceph_version", spirula_types::version::TEXT.to_owned()),
        ("ceph_version_short", spirula_types::version::CEPH.to_owned()),
        ("ceph_release", spirula_types::version::RELEASE.to_owned()),
        ("spirula_version", env!("CARGO_PKG_VERSION").to_owned()),
        ("arch", std::env::consts::ARCH.to_owned()),
        ("cpus", std::thread::available_parallelism().map_or(1, usize::from).to_string()),
        ("kernel_version", rustix::system::uname().release().to_string_lossy().into_owned()),
        ("mem_total_kb", ((u64::from(memory.mem_unit) * memory.totalram) >> 10).to_string()),
        ("os", "Linux".to_owned()),
    ]
    .map(|(k, v)| (k.to_owned(), v))
    .into()
}

/// `hdd` or `ssd` for the disk that holds `path`; empty where the kernel does not say (file
/// systems over several disks, memory, network).
pub fn device_class(path: &Path) -> String {
    let Ok(stat) = rustix::fs::stat(path) else { return String::new() };
    // A block device itself, or the one below the file system.
    let is_device = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::BlockDevice;
    let dev = if is_device { stat.st_rdev } else { stat.st_dev };
    let node = format!("/sys/dev/block/{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
    // A partition's queue is its disk's.
    for place in ["queue/rotational", "../queue/rotational"] {
        match std::fs::read_to_string(format!("{node}/{place}")).as_deref().map(str::trim) {
            Ok("1") => return "hdd".to_owned(),
            Ok("0") => return "ssd".to_owned(),
            _ => {}
        }
    }
    String::new()
}

/// A place in the CRUSH tree from `root=default rack=r1`, with this host where it is not said.
///
/// # Errors
/// What is wrong with the text.
pub fn crush_location(text: &str, host: &str) -> Result<BTreeMap<String, String>, String> {
    let mut out = BTreeMap::new();
    for word in text.split([' ', ',', ';', '\t']).filter(|w| !w.is_empty()) {
        match word.split_once('=') {
            Some((kind, name)) if !kind.is_empty() && !name.is_empty() => {
                out.insert(kind.to_owned(), name.to_owned());
            }
            _ => return Err(format!("crush_location: '{word}' is not type=name, as in 'root=default rack=r1'")),
        }
    }
    out.entry("host".to_owned()).or_insert_with(|| host.to_owned());
    out.entry("root".to_owned()).or_insert_with(|| "default".to_owned());
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn location_has_host_and_root_unless_told_otherwise() {
        let of = |t: &str| crush_location(t, "h1").unwrap();
        assert_eq!(of(""), [("host", "h1"), ("root", "default")].map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        assert_eq!(of("root=fast rack=r1 host=x")["host"], "x");
        assert!(crush_location("rack", "h1").unwrap_err().contains("'rack'"));
    }
}
