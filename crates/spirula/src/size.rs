//! Sizes as people type them: `10G`, `512M`, `1.5TiB`, plain bytes.

use std::fmt;
use std::str::FromStr;

/// A number of bytes; units are powers of 1024.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let wrong = || format!("'{s}' is not a size; write for example 512M, 10G or 1T");
        let t = s.trim();
        let split = t.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(t.len());
        let (number, unit) = t.split_at(split);
        let shift =
            match unit.trim().to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
                "" => 0,
                "k" => 10,
                "m" => 20,
                "g" => 30,
                "t" => 40,
                "p" => 50,
                _ => return Err(wrong()),
            };
        let value: f64 = number.parse().map_err(|_| wrong())?;
        let bytes = value * (1u64 << shift) as f64;
        if !(0.0..=1e18).contains(&bytes) {
            return Err(wrong());
        }
        Ok(Self(bytes as u64))
    }
}

impl fmt::Display for Size {
    /// `10 GiB`, `1.5 GiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let mut v = self.0 as f64;
        let mut u = 0;
        while v >= 1024.0 && u + 1 < units.len() {
            v /= 1024.0;
            u += 1;
        }
        if v.fract() < 0.05 {
            write!(f, "{v:.0} {}", units[u])
        } else {
            write!(f, "{v:.1} {}", units[u])
        }
    }
}

/// A length of time in seconds, as people type it: `90s`, `30m`, `8h`, `7d`, plain seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life(pub u64);

impl FromStr for Life {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let wrong =
            || format!("'{s}' is not a time from 1m to 30d; write for example 30m, 8h or 7d");
        let t = s.trim();
        let (number, unit) = t.split_at(t.find(|c: char| !c.is_ascii_digit()).unwrap_or(t.len()));
        let seconds = match unit.trim() {
            "" | "s" => 1,
            "m" => 60,
            "h" => 3600,
            "d" => 86400,
            _ => return Err(wrong()),
        };
        let all = number.parse::<u64>().ok().and_then(|n| n.checked_mul(seconds));
        all.filter(|n| (60..=30 * 86400).contains(n)).map(Self).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_and_print() {
        assert_eq!("10G".parse(), Ok(Size(10 << 30)));
        assert_eq!("1.5TiB".parse(), Ok(Size(3 << 39)));
        assert_eq!("512m".parse(), Ok(Size(512 << 20)));
        assert_eq!("4096".parse(), Ok(Size(4096)));
        assert!(
            "ten".parse::<Size>().is_err()
                && "1X".parse::<Size>().is_err()
                && "-1G".parse::<Size>().is_err()
        );
        assert_eq!(Size(10 << 30).to_string(), "10 GiB");
        assert_eq!(Size(3 << 29).to_string(), "1.5 GiB");
    }

    #[test]
    fn lives_are_read_in_the_units_people_use() {
        let of = |t: &str| t.parse::<Life>().map(|l| l.0);
        assert_eq!(
            (of("90"), of("30m"), of("8h"), of("7d")),
            (Ok(90), Ok(1800), Ok(28800), Ok(604_800))
        );
        for bad in ["", "5", "31d", "1w", "-1h", "99999999999999999999d"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
