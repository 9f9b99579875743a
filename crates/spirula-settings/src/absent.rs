//! The commands of Ceph's manager modules that nothing here serves: known all the same.
//!
//! A tool that asks for one must be told what is missing, not that it made a mistake: without the
//! signature Ceph's own tool refuses the words before it sends them. So the monitors list these
//! commands to clients, the manager refuses them, and both read this table. Its list
//! (`absent-commands.tsv`: the Python module that serves it in Ceph, the part of the capabilities
//! it belongs to, the right it needs, its signature) holds facts only, as a 16.2.15 describes its
//! commands.

use spirula_types::errno::{EINVAL, ENOENT, EOPNOTSUPP};

const LIST: &str = include_str!("absent-commands.tsv");

/// A command of Ceph's manager that no manager serves here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbsentCommand {
    /// The module of Ceph's manager that serves it.
    pub module: &'static str,
    /// The part of capabilities that it belongs to.
    pub part: &'static str,
    /// The right that it needs there.
    pub perm: &'static str,
    /// Words and arguments, in Ceph's compact notation.
    pub sig: &'static str,
}

impl AbsentCommand {
    /// One line of help.
    pub fn help(&self) -> String {
        format!("(not in this version, which has no {} module)", self.module)
    }

    /// The refusal: a positive errno and why.
    pub fn refusal(&self) -> (i32, String) {
        let words = crate::common::words(self.sig);
        match self.module {
            // True as it stands, and what Ceph's orchestrator module says without a backend.
            "orchestrator" => {
                (ENOENT, "No orchestrator configured (try `ceph orch set backend`)".to_owned())
            }
            // Whoever asks for a task does the work himself where a manager takes none. That it
            // takes none, drivers (ceph-csi) tell from these words alone: `No handler found` in the
            // manager's answer, or, of old, `invalid command` and `no valid command found` in what
            // Ceph's tool prints.
            "rbd_support" if words.starts_with("rbd task add") => (
                EINVAL,
                format!(
                    "invalid command: No handler found for '{words}': this version has no \
                        rbd_support module, whose task it \
                     would be; remove or flatten the image with the rbd tool (no valid command \
                     found)"
                ),
            ),
            "volumes" => (
                EOPNOTSUPP,
                format!(
                    "Module 'volumes' is not enabled/loaded (required by command '{words}'): this \
                        version does not have it. A subvolume \
                     is a directory: mount the filesystem, make /volumes/GROUP/NAME (GROUP is \
                     _nogroup without one), give it its size \
                     with 'setfattr -n ceph.quota.max_bytes', and its users with 'ceph fs \
                     authorize'"
                ),
            ),
            module => (
                EOPNOTSUPP,
                format!(
                    "Module '{module}' is not enabled/loaded (required by command '{words}'): this \
                        version does not have it"
                ),
            ),
        }
    }
}

/// Orders to stop what does not run here: what they ask for is so already.
pub fn is_so_already(prefix: &str) -> bool {
    matches!(prefix, "telemetry off" | "device monitoring off" | "balancer off" | "progress off")
}

/// All of them.
pub fn commands() -> impl Iterator<Item = AbsentCommand> {
    lines(LIST)
}

/// The rows of such a list.
pub(crate) fn lines(list: &'static str) -> impl Iterator<Item = AbsentCommand> {
    list.lines().filter_map(|line| {
        let mut fields = line.split('\t');
        let (module, part, perm, sig) =
            (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        Some(AbsentCommand { module, part, perm, sig })
    })
}

/// The one whose words are `prefix`.
pub fn find(prefix: &str) -> Option<AbsentCommand> {
    commands().find(|c| crate::common::words(c.sig) == prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_whole_and_refused_with_the_modules_name() {
        for line in LIST.lines() {
            assert_eq!(line.split('\t').count(), 4, "{line}");
        }
        assert!(commands().count() > 190);
        for c in commands() {
            let (errno, why) = c.refusal();
            let named = matches!(errno, EOPNOTSUPP | EINVAL) && why.contains(c.module);
            assert!(named || errno == ENOENT, "{c:?}: {why}");
            assert!(
                c.perm.chars().all(|p| "rwx".contains(p))
                    && find(&crate::common::words(c.sig)).is_some(),
                "{c:?}"
            );
        }
        assert_eq!(find("telemetry on").unwrap().refusal().0, EOPNOTSUPP);
        assert_eq!(find("orch host ls").unwrap().refusal().0, ENOENT);
        assert!(find("status").is_none());
    }

    /// ceph-csi deletes and flattens images itself where the manager has no tasks, which it tells
    /// by these words.
    #[test]
    fn drivers_find_that_there_are_no_tasks() {
        for task in ["add remove", "add trash remove", "add flatten"] {
            let (errno, why) = find(&format!("rbd task {task}")).unwrap().refusal();
            assert_eq!(errno, EINVAL);
            assert!(why.contains("No handler found"), "{why}");
            let printed = format!("Error EINVAL: {why}");
            assert!(
                printed.contains("Error EINVAL: invalid command")
                    && printed.contains("no valid command found"),
                "{printed}"
            );
        }
    }
}
