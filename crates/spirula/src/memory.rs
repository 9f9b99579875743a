//! One memory budget for the process, divided.
//!
//! `--memory` is the whole. Out of it: payloads in flight, the stores' caches, and a fixed
//! rest for code, maps, connections and allocator slack. Each part's owner keeps to its own.

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
}

impl Budget {
    /// Divides `total` bytes among `osds` stores and the payloads.
    pub fn new(total: u64, osds: usize) -> Self {
        let rest = 80 << 20;
        let free = total.saturating_sub(rest);
        Self { total, payloads: free * 2 / 5, per_store: free * 2 / 5 / osds.max(1) as u64 }
    }
}

/// Resident memory of this process, bytes; 0 where `/proc` is not there.
pub fn resident() -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Keeps the kernel from giving this process huge pages where small ones would do.
///
/// The allocator asks for them where the system leaves it to the process. Clearing one took up to 5 ms on
/// the machine of `bench/results/2026-11-22-return.md`, on the reactor, and a third of its time while PGs
/// peered. Ceph's daemons go without them, too (its option `thp`).
pub fn without_huge_pages() {
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        // It works with them; a kernel without the call has none.
        tracing::debug!(%error, "transparent huge pages stay on");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_can_be_switched_off() {
        without_huge_pages();
        assert!(rustix::thread::transparent_huge_pages_are_disabled().unwrap());
    }

    #[test]
    fn parts_leave_room_for_the_rest() {
        for total in [SMALLEST, 512 << 20, 8 << 30] {
            for osds in [1, 3, 12] {
                let b = Budget::new(total, osds);
                assert!(b.payloads + b.per_store * osds as u64 <= total * 4 / 5);
                assert!(b.payloads >= 16 << 20);
            }
        }
    }
}
