//! Commands that Ceph's manager serves and that the monitors serve here: known to both.
//!
//! With Ceph they can be asked of the manager, by whose capabilities it then goes, and of a
//! monitor, by whose it goes then. Here the monitors do them either way: a monitor that is asked,
//! or the manager on behalf of who asked it. So both read this table: the manager to know what it
//! passes on, the monitor to know what it takes from a manager, and by which capabilities else it
//! may be asked. The list (`managers-commands.tsv`: the module of Ceph's manager that serves it,
//! `-` for none; the part of the capabilities it belongs to; the right it needs there; its
//! signature) holds facts only, as a 16.2.15 describes its commands.

use crate::absent::AbsentCommand;

const LIST: &str = include_str!("managers-commands.tsv");

/// A command of the manager's that the monitors do. Its module is empty for those that the manager
/// serves itself.
pub type ManagersCommand = AbsentCommand;

/// All of them.
pub fn commands() -> impl Iterator<Item = ManagersCommand> {
    crate::absent::lines(LIST)
        .map(|c| ManagersCommand { module: c.module.trim_start_matches('-'), ..c })
}

/// The one whose words are `prefix`.
pub fn find(prefix: &str) -> Option<ManagersCommand> {
    commands().find(|c| crate::common::words(c.sig) == prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_whole_and_none_is_among_those_that_nobody_serves() {
        for line in LIST.lines() {
            assert_eq!(line.split('\t').count(), 4, "{line}");
        }
        assert!(commands().count() > 25);
        for c in commands() {
            let words = crate::common::words(c.sig);
            assert!(crate::absent::find(&words).is_none(), "{words}");
            assert!(!c.perm.is_empty() && c.perm.chars().all(|p| "rw".contains(p)), "{c:?}");
        }
        let c = find("fs volume ls").unwrap();
        assert_eq!((c.module, c.part, c.perm), ("volumes", "mgr", "r"));
        assert_eq!(find("osd purge").unwrap().module, "");
        assert!(find("osd dump").is_none());
    }
}
