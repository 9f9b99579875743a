//! What OSDs tell each other about scrubs: a PG's scrub history, and maps of what a member holds.
//!
//! Carried by [`super::pg::PgCtl`]. What they mean is written in `spirula-pg`'s `scrub`.

use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use spirula_types::{EVersion, HObject};

/// What is durably known of a PG's scrubs; the same on every member after a scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubHistory {
    /// Newest log entry at the last scrub of either kind.
    pub last: EVersion,
    /// When that was; zero before the first.
    pub last_stamp: UTime,
    /// Newest log entry at the last deep scrub.
    pub last_deep: EVersion,
    /// When that was; zero before the first.
    pub last_deep_stamp: UTime,
    /// Time of the last scrub that found nothing.
    pub last_clean_stamp: UTime,
    /// Errors that comparing metadata shows and that are not repaired.
    pub shallow_errors: u32,
    /// Errors that reading shows and that are not repaired.
    pub deep_errors: u32,
    /// Copies of objects repaired since the PG was created.
    pub repaired: u64,
    /// Objects whose omap the last deep scrub found too large; an earlier version did not look.
    pub large_omaps: u32,
}

impl ScrubHistory {
    /// What part `i` of `n` knows of it when its PG is split. Nobody knows in which part a thing
    /// that was counted lies: counts are divided, so that they add up as before, but no part says
    /// that it has no errors as long as the whole had some.
    #[must_use]
    pub fn part(&self, i: u32, n: u32) -> Self {
        let n = n.max(1);
        let share = |all: u32| all / n + u32::from(i < all % n);
        let errors = |all: u32| share(all).max(u32::from(all > 0));
        let repaired =
            self.repaired / u64::from(n) + u64::from(u64::from(i) < self.repaired % u64::from(n));
        Self {
            shallow_errors: errors(self.shallow_errors),
            deep_errors: errors(self.deep_errors),
            repaired,
            large_omaps: share(self.large_omaps),
            ..*self
        }
    }

    /// What a PG knows of its scrubs that takes in another, whose log is not its own any more: what
    /// was found in either, and it was looked at as long ago as the part that was looked at first.
    #[must_use]
    pub fn joined(&self, other: &Self) -> Self {
        Self {
            last_stamp: self.last_stamp.min(other.last_stamp),
            last_deep_stamp: self.last_deep_stamp.min(other.last_deep_stamp),
            last_clean_stamp: self.last_clean_stamp.min(other.last_clean_stamp),
            shallow_errors: self.shallow_errors.saturating_add(other.shallow_errors),
            deep_errors: self.deep_errors.saturating_add(other.deep_errors),
            repaired: self.repaired.saturating_add(other.repaired),
            large_omaps: self.large_omaps.saturating_add(other.large_omaps),
            ..*self
        }
    }
}

impl Encode for ScrubHistory {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(2, 1, |o| {
            o.put(&self.last);
            o.put(&self.last_stamp);
            o.put(&self.last_deep);
            o.put(&self.last_deep_stamp);
            o.put(&self.last_clean_stamp);
            o.u32(self.shallow_errors);
            o.u32(self.deep_errors);
            o.u64(self.repaired);
            o.u32(self.large_omaps);
        });
    }
}

impl Decode for ScrubHistory {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("ScrubHistory", 2, |d, v| {
            Ok(Self {
                last: d.get()?,
                last_stamp: d.get()?,
                last_deep: d.get()?,
                last_deep_stamp: d.get()?,
                last_clean_stamp: d.get()?,
                shallow_errors: d.get()?,
                deep_errors: d.get()?,
                repaired: d.get()?,
                large_omaps: if v >= 2 { d.get()? } else { 0 },
            })
        })
    }
}

/// One member's copy of an object, as a scrub found it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubObject {
    /// Bytes of data stored.
    pub size: u64,
    /// Attributes by their raw names, ascending.
    pub attrs: Vec<(Bytes, Bytes)>,
    /// crc32c of the omap (header, then keys and values in order); `None` if it was not read.
    pub omap_digest: Option<u32>,
    /// crc32c of the data, holes as zeros; `None` if it was not read.
    pub data_digest: Option<u32>,
    /// Something of it could not be read, or fails its checksum.
    pub read_error: bool,
    /// Keys of the omap, and bytes of its values; 0 if it was not read.
    pub omap_keys: u64,
    /// See [`Self::omap_keys`].
    pub omap_bytes: u64,
}

impl Encode for ScrubObject {
    fn encode(&self, out: &mut Encoder) {
        let digest = |o: &mut Encoder, d: Option<u32>| {
            o.bool(d.is_some());
            o.u32(d.unwrap_or(0));
        };
        out.u64(self.size);
        out.put(&self.attrs);
        digest(out, self.omap_digest);
        digest(out, self.data_digest);
        out.bool(self.read_error);
        out.u64(self.omap_keys);
        out.u64(self.omap_bytes);
    }
}

impl Decode for ScrubObject {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let digest = |d: &mut Decoder<'_>| -> Result<Option<u32>, DecodeError> {
            let (there, v) = (d.bool()?, d.u32()?);
            Ok(there.then_some(v))
        };
        Ok(Self {
            size: d.get()?,
            attrs: d.get()?,
            omap_digest: digest(d)?,
            data_digest: digest(d)?,
            read_error: d.bool()?,
            omap_keys: d.u64()?,
            omap_bytes: d.u64()?,
        })
    }
}

/// What a member holds of a range of objects, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubMap(pub Vec<(HObject, ScrubObject)>);

impl Encode for ScrubMap {
    fn encode(&self, out: &mut Encoder) {
        out.put(&self.0);
    }
}

impl Decode for ScrubMap {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self(d.get()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(sec: u32) -> UTime {
        UTime { sec, nsec: 0 }
    }

    #[test]
    fn what_was_found_is_not_counted_more_than_once_by_the_parts_of_a_split_and_not_lost_by_a_merge()
     {
        let whole = ScrubHistory {
            last_deep_stamp: at(7),
            shallow_errors: 1,
            deep_errors: 6,
            repaired: 5,
            large_omaps: 6,
            ..ScrubHistory::default()
        };
        let parts: Vec<ScrubHistory> = (0..4).map(|i| whole.part(i, 4)).collect();
        assert_eq!(parts.iter().map(|p| p.large_omaps).collect::<Vec<_>>(), [2, 2, 1, 1]);
        assert_eq!(parts.iter().map(|p| p.repaired).collect::<Vec<_>>(), [2, 1, 1, 1]);
        assert_eq!(parts.iter().map(|p| p.deep_errors).collect::<Vec<_>>(), [2, 2, 1, 1]);
        // Any part may be the one with the error: none is clean.
        assert!(parts.iter().all(|p| p.shallow_errors == 1 && p.last_deep_stamp == at(7)));
        let other = ScrubHistory { last_deep_stamp: at(3), large_omaps: 4, ..whole };
        let one = parts[1..].iter().fold(parts[0], |all, p| all.joined(p));
        assert_eq!((one.large_omaps, one.repaired, one.deep_errors), (6, 5, 6));
        assert_eq!(
            (one.joined(&other).large_omaps, one.joined(&other).last_deep_stamp),
            (10, at(3))
        );
    }
}
