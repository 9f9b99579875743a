//! Units and numbers as Ceph prints them: `1.2 MiB`, `2.19k`, `83m`, `%g`.

use spirula_encoding::UTime;

const BYTE_UNITS: [&str; 7] = [" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"];
const SI_UNITS: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];

/// A number of bytes: `0 B`, `722 B`, `3.2 KiB`, `4 GiB`. Exact multiples have no
/// fraction; others at most two digits of it and seven characters in all.
pub fn bytes(v: u64) -> String {
    scaled(v, 1024, &BYTE_UNITS)
}

/// A count: `687`, `1.15k`, `2.19k`.
pub fn si(v: u64) -> String {
    scaled(v, 1000, &SI_UNITS)
}

fn scaled(v: u64, base: u64, units: &[&str]) -> String {
    let mut whole = v;
    let mut multiple = 1u64;
    let mut unit = units.iter();
    let mut name = unit.next().copied().unwrap_or_default();
    while whole >= base {
        let Some(next) = unit.next() else { break };
        name = next;
        whole /= base;
        multiple *= base;
    }
    if v.is_multiple_of(multiple) {
        return format!("{whole}{name}");
    }
    let f = v as f64 / multiple as f64;
    let mut text = String::new();
    for digits in [2, 1, 0] {
        text = format!("{f:.digits$}{name}");
        if text.len() <= 7 {
            break;
        }
    }
    text
}

/// A length of time in seconds as Ceph abbreviates ages: `1.5s`, `119s`, `83m`, `2h`, `3d`…
pub fn age(seconds: f64) -> String {
    if seconds.is_nan() || seconds < 2.0 {
        return format!("{}s", general(f64::from(seconds.max(0.0) as f32), 6));
    }
    let s = seconds as u64;
    let (min, hour, day) = (s / 60, s / 3600, s / 86_400);
    if s < 120 {
        format!("{s}s")
    } else if min < 120 {
        format!("{min}m")
    } else if hour < 48 {
        format!("{hour}h")
    } else if day < 14 {
        format!("{day}d")
    } else if day / 7 < 12 {
        format!("{}w", day / 7)
    } else if day / 30 < 24 {
        format!("{}M", day / 30)
    } else {
        format!("{}y", day / 365)
    }
}

/// C's `%.{precision}g` (and C++ streams, with 6): as few digits as needed up to
/// `precision` significant ones, exponent form outside `1e-4 ..< 10^precision`.
pub fn general(v: f64, precision: usize) -> String {
    if v.is_nan() {
        return "nan".to_owned();
    }
    if v.is_infinite() {
        return if v > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if v == 0.0 {
        return if v.is_sign_negative() { "-0" } else { "0" }.to_owned();
    }
    let precision = precision.max(1);
    let exponent_form = format!("{v:.*e}", precision - 1);
    let Some((mantissa, exponent)) = exponent_form.split_once('e') else { return exponent_form };
    let Ok(exponent) = exponent.parse::<i32>() else { return exponent_form };
    if exponent < -4 || exponent >= precision as i32 {
        let mantissa = trim_zeros(mantissa);
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    let digits = (precision as i32 - 1 - exponent).max(0) as usize;
    trim_zeros(&format!("{v:.digits$}")).to_owned()
}

fn trim_zeros(s: &str) -> &str {
    if s.contains('.') { s.trim_end_matches('0').trim_end_matches('.') } else { s }
}

/// Percent as `df` prints them: `0` below 0.01, else two decimals.
pub fn percent(p: f32) -> String {
    if p.is_nan() || p < 0.01 { "0".to_owned() } else { format!("{p:.2}") }
}

/// Like C's `asctime` in UTC: `Fri Nov 20 20:55:04 2026`.
pub fn ctime(t: UTime) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    let iso = UTime { sec: t.sec.max(60 * 60 * 24 * 365 * 10), nsec: 0 }.to_iso();
    let part = |range: std::ops::Range<usize>| iso.get(range).unwrap_or("");
    let month = part(5..7).parse::<usize>().unwrap_or(1);
    let day = part(8..10).trim_start_matches('0');
    let weekday = DAYS[(t.sec / 86_400 % 7) as usize];
    let month = MONTHS.get(month.saturating_sub(1)).copied().unwrap_or("Jan");
    format!("{weekday} {month} {day:>2} {} {}", part(11..19), part(0..4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_as_in_the_samples() {
        for (v, s) in [
            (0, "0 B"),
            (722, "722 B"),
            (1023, "1023 B"),
            (1067, "1.0 KiB"),
            (3325, "3.2 KiB"),
            (10_000, "9.8 KiB"),
            (163_840, "160 KiB"),
            (2_220_959, "2.1 MiB"),
            (11_124_006, "11 MiB"),
            (105_957_869, "101 MiB"),
            (1_231_794_176, "1.1 GiB"),
            (3_665_679_104, "3.4 GiB"),
            (4 << 30, "4 GiB"),
            (12_884_901_888, "12 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(bytes(v), s, "{v}");
        }
    }

    #[test]
    fn counts_as_in_the_samples() {
        for (v, s) in [
            (0, "0"),
            (687, "687"),
            (1000, "1k"),
            (1145, "1.15k"),
            (2195, "2.19k"),
            (100_000, "100k"),
            (123_456, "123.46k"),
            (1_234_567, "1.23M"),
        ] {
            assert_eq!(si(v), s, "{v}");
        }
    }

    #[test]
    fn ages() {
        for (v, s) in [
            (0.0, "0s"),
            (1.5, "1.5s"),
            (2.0, "2s"),
            (119.9, "119s"),
            (120.0, "2m"),
            (5003.0, "83m"),
            (7200.0, "2h"),
            (200_000.0, "2d"),
            (20.0 * 86_400.0, "2w"),
            (100.0 * 86_400.0, "3M"),
            (800.0 * 86_400.0, "2y"),
        ] {
            assert_eq!(age(v), s, "{v}");
        }
    }

    #[test]
    fn general_numbers_as_c_prints_them() {
        for (v, p, s) in [
            (1.0, 17, "1"),
            (0.443, 17, "0.443"),
            (0.838, 17, "0.83799999999999997"),
            (2.23473380174255e-05, 17, "2.23473380174255e-05"),
            (0.942_809, 6, "0.942809"),
            (103.333_33, 6, "103.333"),
            (1e6, 6, "1e+06"),
            (123_456.0, 6, "123456"),
            (0.0, 6, "0"),
        ] {
            assert_eq!(general(v, p), s);
        }
    }

    #[test]
    fn wall_clock_in_words() {
        assert_eq!(ctime(UTime { sec: 1_795_208_104, nsec: 0 }), "Fri Nov 20 20:55:04 2026");
    }

    proptest! {
        #[test]
        fn any_number_prints_short(v: u64, f: f64) {
            prop_assert!(bytes(v).len() <= 9);
            prop_assert!(si(v).len() <= 8);
            age(f);
            percent(f as f32);
            let text = general(f, 17);
            if f.is_finite() {
                prop_assert_eq!(text.parse::<f64>().unwrap(), f);
            }
        }
    }
}
