//! Which object classes clients may call: the options `osd_class_load_list` and
//! `osd_class_default_list`.
//!
//! A class that an OSD is not to load is forbidden to everybody (EPERM), be there such a one or
//! not. One that it loads and that is not on the second list is for those alone whose capabilities
//! name it (`allow class NAME`): a plain `x` is not enough. As with Ceph the lists count from an
//! OSD's start on.

use spirula_messages::ceph::op::{self, OsdOp};
use spirula_settings::Settings;
use std::collections::BTreeSet;

/// Names, or all.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Names {
    All,
    Some(BTreeSet<Vec<u8>>),
}

impl Names {
    fn of(text: &str) -> Self {
        let words = || text.split_whitespace();
        if words().any(|w| w == "*") {
            Self::All
        } else {
            Self::Some(words().map(|w| w.as_bytes().to_vec()).collect())
        }
    }

    fn has(&self, class: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Some(names) => names.contains(class),
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct ClassLists {
    load: Names,
    default: Names,
}

impl ClassLists {
    /// As the options say.
    pub fn of(settings: &Settings) -> Self {
        let list = |name: &str| Names::of(settings.get(name).unwrap_or_default());
        Self { load: list("osd_class_load_list"), default: list("osd_class_default_list") }
    }

    /// Are all classes that these ops call loaded? What cannot be read fails in its turn.
    pub fn may_load(&self, ops: &[OsdOp]) -> bool {
        let calls = ops.iter().filter(|o| o.op == op::CALL);
        calls.filter_map(|o| o.call_args().ok()).all(|a| self.load.has(&a.class))
    }

    /// Is a plain right to execute enough for this class?
    pub fn by_default(&self, class: &str) -> bool {
        self.default.has(class.as_bytes())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;
    use spirula_settings::Source;

    #[test]
    fn a_class_must_be_on_the_list_or_the_list_say_all() {
        let mut settings = Settings::default();
        let calls = |class: &str| [OsdOp::stat(), OsdOp::call(class, "any", b"")];
        let usual = ClassLists::of(&settings);
        assert!(
            usual.may_load(&calls("rbd"))
                && usual.may_load(&calls("rgw"))
                && !usual.may_load(&calls("mine"))
        );
        assert!(usual.by_default("rbd") && !usual.by_default("mine"));
        settings.set(Source::File, "osd_class_load_list", "rbd lock").unwrap();
        settings.set(Source::File, "osd_class_default_list", "lock").unwrap();
        let few = ClassLists::of(&settings);
        assert!(few.may_load(&calls("lock")) && !few.may_load(&calls("hello")));
        assert!(few.by_default("lock") && !few.by_default("rbd"));
        settings.set(Source::File, "osd_class_load_list", "*").unwrap();
        assert!(ClassLists::of(&settings).may_load(&calls("mine")));
    }
}
