//! `utime`: Ceph's wall-clock stamp.

use crate::{Decode, DecodeError, Decoder, Encode, Encoder};

/// Seconds and nanoseconds since the Unix epoch, as `utime_t` on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UTime {
    /// Whole seconds.
    pub sec: u32,
    /// Nanoseconds within the second, below 1e9 when well formed.
    pub nsec: u32,
}

impl UTime {
    /// The epoch itself; Ceph's "never".
    pub const ZERO: Self = Self { sec: 0, nsec: 0 };

    /// From nanoseconds since the Unix epoch (at most the last one that can be written, in 2106).
    pub fn from_nanos(nanos: u64) -> Self {
        match u32::try_from(nanos / 1_000_000_000) {
            Ok(sec) => Self { sec, nsec: (nanos % 1_000_000_000) as u32 },
            // A time too late to be written is the latest that can be: never one long gone.
            Err(_) => Self { sec: u32::MAX, nsec: 999_999_999 },
        }
    }

    /// Nanoseconds since the Unix epoch.
    pub fn as_nanos(self) -> u64 {
        u64::from(self.sec) * 1_000_000_000 + u64::from(self.nsec)
    }

    /// Seconds as a float, for rates and ages.
    pub fn as_secs_f64(self) -> f64 {
        f64::from(self.sec) + f64::from(self.nsec) / 1e9
    }

    /// True for the zero stamp.
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }

    /// UTC as Ceph prints it: `2026-11-20T19:41:16.229025+0000`; seconds below ten
    /// years print as `sec.usec`, as Ceph does for durations and the zero stamp.
    pub fn to_iso(self) -> String {
        if self.sec < 60 * 60 * 24 * 365 * 10 {
            return format!("{}.{:06}", self.sec, self.nsec / 1000);
        }
        let days = i64::from(self.sec / 86_400);
        let rest = self.sec % 86_400;
        // Civil-from-days (H. Hinnant, "chrono-Compatible Low-Level Date Algorithms").
        let z = days + 719_468;
        let era = z.div_euclid(146_097);
        let doe = z.rem_euclid(146_097);
        let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
        let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
        let mp = (5 * doy + 2) / 153;
        let day = doy - (153 * mp + 2) / 5 + 1;
        let month = if mp < 10 { mp + 3 } else { mp - 9 };
        let year = yoe + era * 400 + i64::from(month <= 2);
        format!(
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:06}+0000",
            rest / 3600,
            rest / 60 % 60,
            rest % 60,
            self.nsec / 1000
        )
    }

    /// The reverse, for UTC stamps of today's kind, as people and reporters write them:
    /// `2026-11-21T15:24:12.130085Z`, with `T`, `_` or a space, with or without fraction and zone.
    pub fn from_iso(text: &str) -> Option<Self> {
        let number = |from: usize, to: usize| -> Option<i64> {
            let digits = text.get(from..to)?;
            digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
        };
        let separators: Vec<char> =
            [4, 7, 10, 13, 16].iter().filter_map(|&i| text.get(i..i + 1)?.chars().next()).collect();
        if !matches!(separators.as_slice(), ['-', '-', 'T' | ' ' | '_', ':', ':']) {
            return None;
        }
        let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
        let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
        if !(1..=12).contains(&month)
            || !(1..=31).contains(&day)
            || hour > 23
            || minute > 59
            || second > 60
        {
            return None;
        }
        // Days-from-civil, from the same source as above.
        let y = year - i64::from(month <= 2);
        let era = y.div_euclid(400);
        let yoe = y.rem_euclid(400);
        let doy = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
        let days = era * 146_097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719_468;
        let sec = days * 86_400 + hour * 3600 + minute * 60 + second;
        let fraction = text.get(19..).and_then(|r| r.strip_prefix('.')).unwrap_or_default();
        let digits: String = fraction
            .chars()
            .take_while(char::is_ascii_digit)
            .chain("000000000".chars())
            .take(9)
            .collect();
        Some(Self { sec: u32::try_from(sec).ok()?, nsec: digits.parse().unwrap_or(0) })
    }
}

impl Encode for UTime {
    fn encode(&self, out: &mut Encoder) {
        out.u32(self.sec);
        out.u32(self.nsec);
    }
}

impl Decode for UTime {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { sec: d.u32()?, nsec: d.u32()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iso_form_of_known_stamps() {
        let t = UTime { sec: 1_795_203_676, nsec: 229_025_000 };
        assert_eq!(t.to_iso(), "2026-11-20T19:41:16.229025+0000");
        assert_eq!(UTime::ZERO.to_iso(), "0.000000");
        assert_eq!(UTime { sec: 951_782_400, nsec: 0 }.to_iso(), "2000-02-29T00:00:00.000000+0000");
    }

    #[test]
    fn stamps_are_read_in_the_forms_that_reporters_write() {
        let stamp = UTime { sec: 1_795_274_652, nsec: 130_085_000 };
        assert_eq!(stamp.to_iso(), "2026-11-21T15:24:12.130085+0000");
        for text in [
            "2026-11-21T15:24:12.130085Z",
            "2026-11-21 15:24:12.130085",
            "2026-11-21T15:24:12.130085+0000",
        ] {
            assert_eq!(UTime::from_iso(text), Some(stamp), "{text}");
        }
        let leap = UTime::from_iso("2024-02-29T00:00:00Z").map(UTime::to_iso);
        assert_eq!(leap.as_deref(), Some("2024-02-29T00:00:00.000000+0000"));
        for text in [
            "",
            "now",
            "2026-13-21T15:24:12Z",
            "2026-11-21T15:24",
            "2026-11-21T1é:24:12Z",
            "+026-11-21T15:24:12Z",
        ] {
            assert_eq!(UTime::from_iso(text), None, "{text}");
        }
    }
}
