//! What a member knows as a member: of whom it takes writes, and what it owes that primary.
//!
//! All of it is of one activation, and goes with it; only what was pushed is remembered through a
//! later activation of the same interval, whose primary may repeat it.

use crate::copy::{Pending, Spoilt};
use crate::core::PgCore;
use crate::log::LogEntry;
use crate::pg::{After, Cx};
use crate::recovery::{Pushes, Target};
use crate::repair::Repairs;
use crate::repeat::{Again, Repeat};
use spirula_messages::cluster::pg::CtlBody;
use spirula_types::{EVersion, HObject, Peer};
use std::collections::BTreeMap;

/// See the module.
#[derive(Debug)]
pub(crate) struct Replica {
    primary: Peer,
    run: u64,
    /// The newest entry that was here when the primary was told that a later one came.
    gap: Option<EVersion>,
    /// What the primary has reserved here.
    pub target: Target,
    /// Pushes that were applied here.
    pub pushes: Pushes,
    /// Copies found bad that the primary has not noted yet: the version, and the first bad byte if
    /// it is known.
    rotten: BTreeMap<HObject, (EVersion, Option<u64>)>,
    rotten_repeat: Repeat,
}

impl Replica {
    /// A member that `primary` has activated, by the activation of this number.
    pub fn new(primary: Peer, run: u64) -> Self {
        Self {
            primary,
            run,
            gap: None,
            target: Target::default(),
            pushes: Pushes::default(),
            rotten: BTreeMap::new(),
            rotten_repeat: Repeat::default(),
        }
    }

    /// The primary of the interval.
    pub fn primary(&self) -> Peer {
        self.primary
    }

    /// The number of its activation.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// Is something to be said again?
    pub fn wants_tick(&self) -> bool {
        !self.rotten.is_empty() || self.target.wants_tick()
    }

    /// Says again what the primary has not heard.
    pub fn repeat(&mut self, core: &PgCore, again: Again, cx: &mut Cx<'_>) {
        let open = (!self.rotten.is_empty()).then_some(self.primary);
        let to = again.whom(&mut self.rotten_repeat, 0, open);
        if !to.is_empty() {
            for (object, (version, offset)) in &self.rotten {
                let (object, version, offset) = (object.clone(), *version, *offset);
                core.send(self.primary, CtlBody::Rotten { object, version, offset }, cx);
            }
        }
        self.target.repeat_refused(core, again, cx);
    }

    /// Tells of a gap in the writes: once for each, as all that is on its way behind the lost one
    /// meets it.
    pub fn tell_gap(&mut self, core: &PgCore, have: EVersion, cx: &mut Cx<'_>) {
        if self.gap.replace(have) != Some(have) {
            core.send(self.primary, CtlBody::Gap { have }, cx);
        }
    }

    /// Tells that the copy here is bad, until that was heard.
    pub fn tell_rotten(
        &mut self,
        core: &PgCore,
        object: &HObject,
        version: EVersion,
        offset: Option<u64>,
        cx: &mut Cx<'_>,
    ) {
        self.rotten.insert(object.clone(), (version, offset));
        core.send(self.primary, CtlBody::Rotten { object: object.clone(), version, offset }, cx);
    }

    /// These are lacked here since the log was taken over, which the primary does not know.
    pub fn tell_spoilt(&mut self, core: &PgCore, spoilt: Spoilt, cx: &mut Cx<'_>) {
        let spoilt: BTreeMap<HObject, EVersion> = spoilt.into_iter().collect();
        for (object, version) in spoilt {
            self.tell_rotten(core, &object, version, None, cx);
        }
    }

    /// The change of a write is left out because the copy here is bad. What the primary is to hear
    /// before the acknowledgement.
    pub fn lack_change(
        &mut self,
        core: &mut PgCore,
        repairs: &mut Repairs,
        entry: &LogEntry,
        offset: Option<u64>,
    ) -> (After, Pending) {
        let pending = repairs.note_lacking(core, entry, offset);
        self.rotten.insert(entry.object.clone(), (entry.version, offset));
        let body = CtlBody::Rotten { object: entry.object.clone(), version: entry.version, offset };
        (After::Send(self.primary, core.ctl(self.primary, body)), pending)
    }

    /// The primary has noted it.
    pub fn rotten_is_heard(&mut self, object: &HObject, version: EVersion) {
        if self.rotten.get(object).is_some_and(|(told, _)| *told <= version) {
            self.rotten.remove(object);
        }
    }

    /// A copy here was replaced.
    pub fn is_replaced(&mut self, object: &HObject) {
        self.rotten.remove(object);
    }

    /// A log is to be taken over: its primary has heard what is known of bad copies, also from us.
    pub fn forget_rotten(&mut self) {
        self.rotten.clear();
    }
}
