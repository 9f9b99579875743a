//! The state of a placement group.

use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};
use std::fmt;
use std::ops::{BitAnd, BitOr, BitOrAssign, Not};

/// A set of state bits, numbered as Ceph numbers them. No bit at all is "unknown".
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PgState(pub u64);

macro_rules! states {
    ($($(#[$m:meta])* $name:ident = $bit:literal $text:literal;)*) => {
        impl PgState {
            $($(#[$m])* pub const $name: Self = Self(1 << $bit);)*
            /// Bits and names, in the order Ceph prints them.
            pub const NAMES: &'static [(PgState, &'static str)] = &[$((Self::$name, $text),)*];
        }
    };
}

states! {
    /// Its OSDs are silent; the state is an old one.
    STALE = 17 "stale";
    /// Being made.
    CREATING = 0 "creating";
    /// Serving.
    ACTIVE = 1 "active";
    /// Peered, about to serve.
    ACTIVATING = 24 "activating";
    /// All copies where they should be.
    CLEAN = 2 "clean";
    /// Waits to recover.
    RECOVERY_WAIT = 22 "recovery_wait";
    /// Cannot recover: an OSD is full.
    RECOVERY_TOOFULL = 28 "recovery_toofull";
    /// Recovering.
    RECOVERING = 14 "recovering";
    /// Recovers first, by order.
    FORCED_RECOVERY = 30 "forced_recovery";
    /// Cannot serve: OSDs that may hold newer data are down.
    DOWN = 4 "down";
    /// Recovery stopped: objects have no copy.
    RECOVERY_UNFOUND = 5 "recovery_unfound";
    /// Backfill stopped: objects have no copy.
    BACKFILL_UNFOUND = 6 "backfill_unfound";
    /// Fewer OSDs than the pool's size.
    UNDERSIZED = 23 "undersized";
    /// Fewer copies than the pool's size.
    DEGRADED = 10 "degraded";
    /// Served by other OSDs than CRUSH wants.
    REMAPPED = 18 "remapped";
    /// Paused before a merge.
    PREMERGE = 7 "premerge";
    /// Being scrubbed.
    SCRUBBING = 8 "scrubbing";
    /// The scrub is deep.
    DEEP_SCRUB = 19 "deep";
    /// Scrub found errors.
    INCONSISTENT = 11 "inconsistent";
    /// Peering.
    PEERING = 12 "peering";
    /// The scrub repairs.
    REPAIR = 13 "repair";
    /// Waits to backfill.
    BACKFILL_WAIT = 15 "backfill_wait";
    /// Backfilling.
    BACKFILLING = 20 "backfilling";
    /// Backfills first, by order.
    FORCED_BACKFILL = 31 "forced_backfill";
    /// Cannot backfill: an OSD is full.
    BACKFILL_TOOFULL = 21 "backfill_toofull";
    /// No OSD has a complete history.
    INCOMPLETE = 16 "incomplete";
    /// Peered, too few OSDs to serve.
    PEERED = 25 "peered";
    /// Trimming snapshots.
    SNAPTRIM = 26 "snaptrim";
    /// Waits to trim snapshots.
    SNAPTRIM_WAIT = 27 "snaptrim_wait";
    /// Trimming failed.
    SNAPTRIM_ERROR = 29 "snaptrim_error";
    /// A repair failed.
    FAILED_REPAIR = 32 "failed_repair";
    /// Reads wait for a late lease.
    LAGGY = 33 "laggy";
    /// Waits for an old lease to end.
    WAIT = 34 "wait";
}

impl PgState {
    /// Nothing known.
    pub const UNKNOWN: Self = Self(0);

    /// Are all bits of `o` set?
    pub fn has(self, o: Self) -> bool {
        self.0 & o.0 == o.0
    }
    /// Is any bit of `o` set?
    pub fn any(self, o: Self) -> bool {
        self.0 & o.0 != 0
    }
    /// Sets the bits of `o`.
    pub fn set(&mut self, o: Self) {
        self.0 |= o.0;
    }
    /// Clears the bits of `o`.
    pub fn clear(&mut self, o: Self) {
        self.0 &= !o.0;
    }
    /// Sets or clears the bits of `o`.
    pub fn put(&mut self, o: Self, on: bool) {
        if on { self.set(o) } else { self.clear(o) }
    }
    /// Reads `active+clean`, in any order.
    pub fn parse(s: &str) -> Option<Self> {
        if s == "unknown" {
            return Some(Self::UNKNOWN);
        }
        s.split('+').try_fold(Self::UNKNOWN, |acc, word| {
            Self::NAMES.iter().find(|(_, n)| *n == word).map(|(b, _)| acc | *b)
        })
    }
}

impl BitOr for PgState {
    type Output = Self;
    fn bitor(self, o: Self) -> Self {
        Self(self.0 | o.0)
    }
}
impl BitOrAssign for PgState {
    fn bitor_assign(&mut self, o: Self) {
        self.0 |= o.0;
    }
}
impl BitAnd for PgState {
    type Output = Self;
    fn bitand(self, o: Self) -> Self {
        Self(self.0 & o.0)
    }
}
impl Not for PgState {
    type Output = Self;
    fn not(self) -> Self {
        Self(!self.0)
    }
}

impl fmt::Display for PgState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (_, name) in Self::NAMES.iter().filter(|(b, _)| self.any(*b)) {
            write!(f, "{}{name}", if first { "" } else { "+" })?;
            first = false;
        }
        if first { f.write_str("unknown") } else { Ok(()) }
    }
}
impl fmt::Debug for PgState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Encode for PgState {
    fn encode(&self, o: &mut Encoder) {
        o.u64(self.0);
    }
}
impl Decode for PgState {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self(d.u64()?))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn states_print_in_the_order_of_ceph_and_parse_in_any() {
        let s = PgState::CLEAN | PgState::ACTIVE;
        assert_eq!(s.to_string(), "active+clean");
        assert_eq!(PgState::UNKNOWN.to_string(), "unknown");
        let s = PgState::parse("peered+undersized+degraded").unwrap();
        assert_eq!(s.to_string(), "undersized+degraded+peered");
        assert_eq!(PgState::parse("active+nonsense"), None);
        assert_eq!(PgState::ACTIVE.0, 2);
        assert_eq!(PgState::PEERING.0, 1 << 12);
    }
}
