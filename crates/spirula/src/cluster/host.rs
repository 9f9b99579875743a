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
    let kib = |units: u64| ((u64::from(memory.mem_unit) * units) >> 10).to_string();
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let of_release = |key: &str| line_value(&release, key, '=').trim_matches('"').to_owned();
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut facts: BTreeMap<String, String> = [
        ("hostname", host.to_owned()),
        ("ceph_version", spirula_types::version::TEXT.to_owned()),
        ("ceph_version_short", spirula_types::version::CEPH.to_owned()),
        ("ceph_release", spirula_types::version::RELEASE.to_owned()),
        ("arch", std::env::consts::ARCH.to_owned()),
        ("cpu", line_value(&cpus, "model name", ':').to_owned()),
        ("distro", of_release("ID")),
        ("distro_description", of_release("PRETTY_NAME")),
        ("distro_version", of_release("VERSION_ID")),
        ("kernel_description", rustix::system::uname().version().to_string_lossy().into_owned()),
        ("kernel_version", rustix::system::uname().release().to_string_lossy().into_owned()),
        ("mem_swap_kb", kib(memory.totalswap)),
        ("mem_total_kb", kib(memory.totalram)),
        ("os", "Linux".to_owned()),
    ]
    .map(|(k, v)| (k.to_owned(), v))
    .into();
    // How orchestrators name where a daemon runs; Ceph's daemons take the same variables.
    for (key, variable) in [
        ("pod_name", "POD_NAME"),
        ("pod_namespace", "POD_NAMESPACE"),
        ("container_name", "CONTAINER_NAME"),
    ] {
        facts.extend(std::env::var(variable).ok().map(|v| (key.to_owned(), v)));
    }
    facts
}

/// What follows `key` and `sign` in the first line that begins with them; empty without one.
fn line_value<'a>(text: &'a str, key: &str, sign: char) -> &'a str {
    let of = |line: &'a str| {
        line.split_once(sign).filter(|(k, _)| k.trim() == key).map(|(_, v)| v.trim())
    };
    text.lines().find_map(of).unwrap_or_default()
}

/// What a daemon tells of the disk that holds `path`: names as Ceph has them. Empty names where the
/// kernel knows no disk.
pub fn disk_facts(path: &Path) -> BTreeMap<String, String> {
    let name = disk_node(path).map(|node| disk_name(&node)).unwrap_or_default();
    [("device_ids", String::new()), ("device_paths", String::new()), ("devices", name)]
        .map(|(k, v)| (k.to_owned(), v))
        .into()
}

/// The kernel's directory of the block device that is `path`, or that holds it.
fn disk_node(path: &Path) -> Option<std::path::PathBuf> {
    let stat = rustix::fs::stat(path).ok()?;
    let is_device =
        rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::BlockDevice;
    let dev = if is_device { stat.st_rdev } else { stat.st_dev };
    let node = format!("/sys/dev/block/{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
    std::fs::canonicalize(node).ok()
}

/// A disk's name from its directory, a partition's from the one above.
fn disk_name(node: &Path) -> String {
    let whole = if node.join("partition").exists() { node.parent() } else { Some(node) };
    whole.and_then(Path::file_name).map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// How much of the disk that holds `path` is free to daemons, in per cent; `None` where the kernel
/// does not say.
pub fn room(path: &Path) -> Option<u32> {
    let s = rustix::fs::statvfs(path).ok()?;
    percent(s.f_bavail, s.f_blocks)
}

/// `part` of `whole` in per cent, rounded up: a bound of 1 means one per cent, and one of 0 no room
/// at all, also on a disk of which half a per cent is much.
fn percent(part: u64, whole: u64) -> Option<u32> {
    let parts = u128::from(part) * 100;
    if whole == 0 { None } else { u32::try_from(parts.div_ceil(u128::from(whole))).ok() }
}

/// `hdd` or `ssd` for the disk that holds `path`; empty where the kernel does not say (file
/// systems over several disks, memory, network).
pub fn device_class(path: &Path) -> String {
    match queue_fact(path, "rotational").as_deref() {
        Some("1") => "hdd".to_owned(),
        Some("0") => "ssd".to_owned(),
        _ => String::new(),
    }
}

/// What the kernel says in `name` of the queue of the disk that is `path`, or that holds it.
pub fn queue_fact(path: &Path, name: &str) -> Option<String> {
    let node = disk_node(path)?;
    // A partition's queue is its disk's.
    let texts =
        ["queue", "../queue"].map(|place| std::fs::read_to_string(node.join(place).join(name)));
    texts.into_iter().flatten().next().map(|text| text.trim().to_owned())
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
            _ => {
                return Err(format!(
                    "crush_location: '{word}' is not type=name, as in 'root=default rack=r1'"
                ));
            }
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
    fn the_room_of_a_disk_is_rounded_up() {
        for (free, whole, is) in [
            (0, 1000, Some(0)),
            (1, 1000, Some(1)),
            (10, 1000, Some(1)),
            (11, 1000, Some(2)),
            (1, 0, None),
        ] {
            assert_eq!(percent(free, whole), is, "{free} of {whole}");
        }
        assert_eq!(percent(u64::MAX, u64::MAX), Some(100));
    }

    #[test]
    fn the_machine_is_described_with_cephs_keys() {
        let facts = machine_facts("h1");
        for key in
            "arch ceph_release ceph_version ceph_version_short cpu distro distro_description \
                distro_version hostname \
            kernel_description kernel_version mem_swap_kb mem_total_kb os"
                .split_whitespace()
        {
            assert!(facts.contains_key(key), "{key}");
        }
        assert_eq!(facts["hostname"], "h1");
        assert_eq!(line_value("ID=debian\nVERSION_ID=\"12\"\n", "VERSION_ID", '='), "\"12\"");
        assert_eq!(line_value("model name\t: EPYC 1\n", "model name", ':'), "EPYC 1");
        assert_eq!(line_value("", "ID", '='), "");
        let keys: Vec<_> = disk_facts(Path::new("/nowhere")).into_iter().collect();
        assert_eq!(
            keys.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect::<Vec<_>>(),
            [("device_ids", ""), ("device_paths", ""), ("devices", "")]
        );
    }

    #[test]
    fn location_has_host_and_root_unless_told_otherwise() {
        let of = |t: &str| crush_location(t, "h1").unwrap();
        assert_eq!(
            of(""),
            [("host", "h1"), ("root", "default")].map(|(k, v)| (k.to_owned(), v.to_owned())).into()
        );
        assert_eq!(of("root=fast rack=r1 host=x")["host"], "x");
        assert!(crush_location("rack", "h1").unwrap_err().contains("'rack'"));
    }
}
