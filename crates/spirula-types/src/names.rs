//! What names may be: the one place that says so.

/// Longest name of a daemon or a host, bytes.
pub const NAME_MAX: usize = 250;
/// Longest name of a pool, bytes. Ceph knows no bound; the name is in every OSD map.
pub const POOL_NAME_MAX: usize = 1024;

/// May a monitor, a manager, a metadata server or a host be called that? As Ceph's: letters, digits
/// and `-_.`, beginning with a letter or digit. Such a name is a directory's, a file's, a
/// configuration section's and part of a key of the monitors' store.
pub fn is_daemon_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    name.len() <= NAME_MAX
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(plain)
}

/// May a pool be called that? Anything that can be printed in one line, as in Ceph.
pub fn is_pool_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= POOL_NAME_MAX && !name.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_be_something_else_are_none() {
        for good in ["a", "x", "host-1.example.org", "0", "mon_b"] {
            assert!(is_daemon_name(good), "{good}");
        }
        for bad in ["", "a/b", "..", ".", "-i", "a b", "a\n", "a\0", "ä", "a[", &"a".repeat(251)] {
            assert!(!is_daemon_name(bad), "{bad}");
        }
        for good in ["rbd", ".rgw.root", "a b", "daten-ä", "a/b", &"a".repeat(512)] {
            assert!(is_pool_name(good), "{good}");
        }
        for bad in ["", "a\0b", "a\n", "a\u{85}b", "\u{1b}[2J", &"a".repeat(100_000)] {
            assert!(!is_pool_name(bad), "{bad:?}");
        }
    }
}
