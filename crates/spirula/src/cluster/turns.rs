//! Who works on the OSDs' stores: orders that would trip over each other do not run at once.
//!
//! An OSD is started, stopped or made anew by orders over the control socket, each in a thread of
//! its own, and by the cluster itself when a disk has room again. A store that is started while it
//! is copied gives a copy of two moments; one that is started while it is made anew, or is made
//! anew twice, ends as something that nobody asked for. So each takes its turn first: for one OSD,
//! or for all of the directory. An order whose turn it is not is refused, and says what is under
//! way; none waits, since a backup may take hours.

use super::locked;
use anyhow::bail;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The turns taken in one cluster directory.
#[derive(Debug, Default)]
pub struct Turns(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    /// What is done with all OSDs.
    all: Option<String>,
    /// What is done with single ones.
    of: BTreeMap<i32, String>,
}

/// A turn; it ends when this is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    turns: &'a Turns,
    /// The OSD that it is for; `None` for all.
    osd: Option<i32>,
}

impl Turns {
    /// Takes the turn for one OSD, to do `what` with it.
    ///
    /// # Errors
    /// When something else is done with it, or with all; says what.
    pub fn of(&self, osd: i32, what: &str) -> anyhow::Result<Turn<'_>> {
        let mut t = locked(&self.0);
        if let Some(under_way) = t.all.as_ref().or_else(|| t.of.get(&osd)) {
            bail!("{under_way} is under way; ask again when it is done");
        }
        t.of.insert(osd, what.to_owned());
        Ok(Turn { turns: self, osd: Some(osd) })
    }

    /// Takes the turn for all OSDs.
    ///
    /// # Errors
    /// When anything is done with any of them; says what.
    pub fn of_all(&self, what: &str) -> anyhow::Result<Turn<'_>> {
        let mut t = locked(&self.0);
        if let Some(under_way) = t.all.as_ref().or_else(|| t.of.values().next()) {
            bail!("{under_way} is under way; ask again when it is done");
        }
        t.all = Some(what.to_owned());
        Ok(Turn { turns: self, osd: None })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut t = locked(&self.turns.0);
        match self.osd {
            Some(osd) => drop(t.of.remove(&osd)),
            None => t.all = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_order_at_a_time_for_an_osd_and_none_beside_one_for_all() {
        let turns = Turns::default();
        let start = turns.of(1, "starting osd.1").unwrap();
        let other = turns.of(2, "stopping osd.2").unwrap();
        let refused = |r: anyhow::Result<Turn<'_>>| r.unwrap_err().to_string();
        assert_eq!(
            refused(turns.of(1, "x")),
            "starting osd.1 is under way; ask again when it is done"
        );
        assert!(refused(turns.of_all("x")).starts_with("starting osd.1 is"));
        drop(start);
        assert!(refused(turns.of_all("x")).starts_with("stopping osd.2 is"));
        drop(other);
        let all = turns.of_all("a backup").unwrap();
        assert!(refused(turns.of(1, "x")).starts_with("a backup is"));
        assert!(refused(turns.of_all("x")).starts_with("a backup is"));
        drop(all);
        turns.of(1, "starting osd.1").unwrap();
    }
}
