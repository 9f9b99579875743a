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

#[cfg(test)]
mod tests {
    use super::*;

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
