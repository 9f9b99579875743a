//! The requests that are on their way, by their numbers.
//!
//! Numbers are given in the order in which requests come and are never used again. What the OSD
//! asks of its own PGs (sources of copies) has numbers of the same kind.

use crate::osd::Pending;
use spirula_pg::OpId;
use spirula_runtime::LinkId;
use std::collections::BTreeMap;
use std::time::Duration;

/// See the module.
#[derive(Default)]
pub(crate) struct Requests {
    open: BTreeMap<OpId, Pending>,
    /// The number that was given last.
    last: OpId,
}

impl Requests {
    /// A number for something that is asked.
    pub fn number(&mut self) -> OpId {
        self.last += 1;
        self.last
    }

    /// A client's request is on its way; its number.
    pub fn begin(&mut self, p: Pending) -> OpId {
        let op = self.number();
        self.open.insert(op, p);
        op
    }

    /// It is on its way no more; `None` if it was not.
    pub fn end(&mut self, op: OpId) -> Option<Pending> {
        self.open.remove(&op)
    }

    /// One of them.
    pub fn get_mut(&mut self, op: OpId) -> Option<&mut Pending> {
        self.open.get_mut(&op)
    }

    /// All of them with their numbers, in the order in which they came.
    pub fn all(&self) -> impl Iterator<Item = (OpId, &Pending)> {
        self.open.iter().map(|(op, p)| (*op, p))
    }

    /// Has this connection any?
    pub fn any_of(&self, link: LinkId) -> bool {
        self.all().any(|(_, p)| p.link == link)
    }

    /// Those with this number or a later one, and when they came.
    pub fn since(&self, first: OpId) -> impl Iterator<Item = (OpId, Duration)> {
        self.open.range(first..).map(|(op, p)| (*op, p.begun))
    }

    /// The ages of those that are older than this, at `now`.
    pub fn older(&self, now: Duration, than: Duration) -> impl Iterator<Item = Duration> {
        self.all().map(move |(_, p)| now.saturating_sub(p.begun)).filter(move |age| *age >= than)
    }
}
