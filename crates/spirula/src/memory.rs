//! One memory budget for the process, divided.
//!
//! `--memory` is the whole. Out of it: payloads in flight, the stores' caches, and a fixed
//! rest for code, maps, connections and allocator slack. Each part's owner keeps to its own.
//! Beyond what a process usually has, half is for data of large reads, which stores keep.

use std::ffi::{c_int, c_long};
use std::fs;

/// Smallest budget that leaves every part enough to work, bytes.
pub const SMALLEST: u64 = 160 << 20;

/// How the budget is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// The whole, bytes.
    pub total: u64,
    /// Payloads in flight, all connections together.
    pub payloads: u64,
    /// Caches and unwritten metadata of each OSD's store.
    pub per_store: u64,
    /// Data of large reads that each OSD's store keeps.
    pub kept_per_store: u64,
}

impl Budget {
    /// Divides `total` bytes among `osds` stores and the payloads.
    pub fn new(total: u64, osds: usize) -> Self {
        let rest = 80 << 20;
        let osds = osds.max(1) as u64;
        // What payloads in flight and metadata need does not grow with the memory without end; data
        // to keep does.
        let (usual, more) = (total.min(USUAL).saturating_sub(rest), total.saturating_sub(USUAL));
        let (each, kept) = (usual * 2 / 5 + more / 5, more / 2);
        Self { total, payloads: each, per_store: each / osds, kept_per_store: kept / osds }
    }
}

/// The budget of a process to which nobody gave one, where nothing bounds it, bytes.
const USUAL: u64 = 512 << 20;

/// The budget of a process to which nobody gave one: [`USUAL`], or nine tenths of what its control
/// group allows, if less: the rest is for what the kernel holds on the group's account.
pub fn allowed() -> u64 {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let read = |path: &std::path::Path| fs::read_to_string(path).ok();
    group_limit(&groups, &read).map_or(USUAL, |limit| USUAL.min(limit / 10 * 9))
}

/// The least limit of the control groups in `groups` (`/proc/self/cgroup`) and of those above them,
/// bytes; `None` without one.
fn group_limit(groups: &str, read: &dyn Fn(&std::path::Path) -> Option<String>) -> Option<u64> {
    let places = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        match (fields.next()?, fields.next()?) {
            ("", path) => Some(("/sys/fs/cgroup", path, "memory.max")),
            (kinds, path) if kinds.split(',').any(|k| k == "memory") => {
                Some(("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes"))
            }
            _ => None,
        }
    });
    let limits = places.flat_map(|(mount, path, file)| {
        // Inside a container the group is its own root: the path may lead nowhere, and the mount
        // holds the limit.
        let above = std::path::Path::new(path)
            .ancestors()
            .map(|p| p.to_string_lossy().trim_start_matches('/').to_owned());
        above.map(move |p| std::path::Path::new(mount).join(p).join(file)).collect::<Vec<_>>()
    });
    limits.filter_map(|path| read(&path)?.trim().parse::<u64>().ok()).min()
}

/// Resident memory of this process, bytes; 0 where `/proc` is not there.
pub fn resident() -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Keeps the kernel from giving this process huge pages where small ones would do.
///
/// The allocator asks for them where the system leaves it to the process. Clearing one took up to 5
/// ms on the machine of `bench/results/2026-11-22-return.md`, on the reactor, and a third of its
/// time while PGs peered. Ceph's daemons go without them, too (its option `thp`).
pub fn without_huge_pages() {
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        // It works with them; a kernel without the call has none.
        tracing::debug!(%error, "transparent huge pages stay on");
    }
}

/// Of mimalloc's options, the milliseconds after which freed memory goes back to the kernel
/// (`mi_option_purge_delay`), by its number in mimalloc 3.
const PURGE_DELAY: c_int = 15;
/// What that is set to. Left alone it is a second, in which a cluster under load frees, and takes
/// elsewhere, as much again as it holds: 32 writers drove a process of 160 MiB to 259. As the
/// budget counts what is held, so long must not what is free be held, too. With 10 ms they took 137
/// to 184 MiB, with none 117, and some per cent more time: so where little is allowed, none.
const GIVEN_BACK_MS: c_long = 10;

#[allow(unsafe_code, reason = "the allocator's options have no other door")]
// SAFETY: mimalloc, which `main.rs` links into the program, has these functions with these
// arguments. They read and write one number of a table of theirs, at any time, and leave alone what
// is not in the table.
unsafe extern "C" {
    safe fn mi_option_set_default(option: c_int, value: c_long);
    #[cfg(test)]
    safe fn mi_option_get(option: c_int) -> c_long;
}

/// Lets the allocator of a process of `total` bytes give what was freed back to the kernel soon.
/// What the environment says (`MIMALLOC_PURGE_DELAY`) counts more.
pub fn given_back_soon(total: u64) {
    mi_option_set_default(PURGE_DELAY, if total < USUAL { 0 } else { GIVEN_BACK_MS });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another version of the allocator might number its options otherwise, or have another
    /// default.
    #[test]
    fn memory_is_given_back_soon() {
        assert_eq!(mi_option_get(PURGE_DELAY), 1000);
        given_back_soon(USUAL);
        assert_eq!(mi_option_get(PURGE_DELAY), GIVEN_BACK_MS);
        given_back_soon(SMALLEST);
        assert_eq!(mi_option_get(PURGE_DELAY), 0);
    }

    #[test]
    fn huge_pages_can_be_switched_off() {
        without_huge_pages();
        assert!(rustix::thread::transparent_huge_pages_are_disabled().unwrap());
    }

    /// Version 2 and 1 of control groups, a limit above the own group, a path that leads nowhere,
    /// `max`, and none at all.
    #[test]
    fn the_least_limit_of_the_control_groups_counts() {
        let files = |list: &'static [(&str, &str)]| {
            move |path: &std::path::Path| {
                list.iter()
                    .find(|(p, _)| std::path::Path::new(p) == path)
                    .map(|(_, v)| format!("{v}\n"))
            }
        };
        let v2 = files(&[
            ("/sys/fs/cgroup/a/memory.max", "209715200"),
            ("/sys/fs/cgroup/a/b/memory.max", "max"),
        ]);
        assert_eq!(group_limit("0::/a/b\n", &v2), Some(209_715_200));
        let container = files(&[("/sys/fs/cgroup/memory.max", "209715200")]);
        assert_eq!(group_limit("0::/host/path\n", &container), Some(209_715_200));
        let v1 = files(&[("/sys/fs/cgroup/memory/c/memory.limit_in_bytes", "300")]);
        assert_eq!(group_limit("5:cpu:/c\n4:memory:/c\n", &v1), Some(300));
        assert_eq!(group_limit("0::/a\n", &files(&[("/sys/fs/cgroup/a/memory.max", "max")])), None);
        assert_eq!(group_limit("", &files(&[])), None);
    }

    #[test]
    fn parts_leave_room_for_the_rest() {
        for total in [SMALLEST, 512 << 20, 8 << 30] {
            for osds in [1, 3, 12] {
                let b = Budget::new(total, osds);
                assert!(
                    b.payloads + (b.per_store + b.kept_per_store) * osds as u64 <= total * 9 / 10
                );
                assert!(b.payloads >= 16 << 20);
                assert_eq!(b.kept_per_store > 0, total > USUAL);
            }
        }
    }
}
