//! Class `numops`: arithmetic on numbers that are kept as decimal text in the omap.

use crate::{Call, Class, RW, Stop, fail, method};
use bytes::Bytes;
use spirula_types::errno;

pub(crate) const CLASS: Class =
    Class { name: "numops", methods: &[method("add", RW, add), method("mul", RW, mul)] };

/// Digits that are kept.
const DIGITS: usize = 10;

/// The number that all of a text stands for, by the rules of C's `strtod`; none is 0. Text ends at
/// a zero byte.
fn number(text: &[u8]) -> Option<f64> {
    let end = text.iter().position(|b| *b == 0).unwrap_or(text.len());
    let text = text.get(..end)?;
    if text.is_empty() {
        return Some(0.0);
    }
    let blank = |b: &u8| b.is_ascii_whitespace() || *b == 0x0b;
    let start = text.iter().position(|b| !blank(b))?;
    let text = std::str::from_utf8(text.get(start..)?).ok()?;
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let value = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => hexadecimal(hex)?,
        None => digits.parse::<f64>().ok()?,
    };
    Some(if negative { -value } else { value })
}

/// `1f.8p-3` and the like.
fn hexadecimal(text: &str) -> Option<f64> {
    let (mantissa, exponent) = match text.split_once(['p', 'P']) {
        Some((m, e)) => (m, e.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut value = 0.0;
    for c in whole.chars().chain(fraction.chars()) {
        value = value * 16.0 + f64::from(c.to_digit(16)?);
    }
    let places = i32::try_from(fraction.len()).ok()?.checked_mul(4)?;
    Some(value * 2f64.powi(exponent.saturating_sub(places)))
}

/// The text of a number, as C's `%.10g` writes it.
fn text(value: f64) -> String {
    if value.is_nan() {
        return if value.is_sign_negative() { "-nan" } else { "nan" }.to_owned();
    }
    if value.is_infinite() {
        return if value < 0.0 { "-inf" } else { "inf" }.to_owned();
    }
    let trim = |s: &str| match s.contains('.') {
        true => s.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => s.to_owned(),
    };
    // Rounding to the digits that are kept decides the exponent.
    let scientific = format!("{:.*e}", DIGITS - 1, value);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..DIGITS as i32).contains(&exponent) {
        let places = (DIGITS as i32 - 1 - exponent).unsigned_abs() as usize;
        return trim(&format!("{value:.places$}"));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trim(mantissa), exponent.unsigned_abs())
}

/// Replaces the number under a key by what `f` makes of it and the given one. Without a number
/// there it is 0.
fn change(call: &mut Call<'_>, f: impl FnOnce(f64, f64) -> f64) -> Result<i32, Stop> {
    let (key, given): (Bytes, Bytes) = call.args(|d| Ok((d.get()?, d.get()?)))?;
    let given = number(&given).ok_or(Stop::Errno(errno::EINVAL))?;
    let old = match call.object.omap_get(&key)? {
        Some(old) if !old.is_empty() => number(&old),
        _ => Some(0.0),
    };
    let Some(old) = old else { return fail(errno::EBADMSG) };
    call.object.omap_set(vec![(key, text(settled(old, given, f(old, given))).into())])?;
    Ok(0)
}

/// A result that is no number has the sign that amd64 gives it, wherever this runs: that of the
/// first operand that is none, and a minus where both were numbers.
fn settled(old: f64, given: f64, result: f64) -> f64 {
    let sign = match (result.is_nan(), old.is_nan(), given.is_nan()) {
        (false, ..) => return result,
        (true, true, _) => old,
        (true, false, true) => given,
        (true, false, false) => -1.0,
    };
    f64::NAN.copysign(sign)
}

fn add(call: &mut Call<'_>) -> Result<i32, Stop> {
    change(call, |old, given| old + given)
}

fn mul(call: &mut Call<'_>) -> Result<i32, Stop> {
    change(call, |old, given| old * given)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_and_written_as_c_does() {
        for (input, value) in [
            ("", Some(0.0)),
            ("12", Some(12.0)),
            (" \t-1.5e3", Some(-1500.0)),
            ("0x1f.8p-3", Some(3.9375)),
            ("inf", Some(f64::INFINITY)),
            ("12\0rest", Some(12.0)),
            (" ", None),
            ("12 ", None),
            ("+-1", None),
            ("1_0", None),
            ("0x", None),
        ] {
            assert_eq!(number(input.as_bytes()), value, "{input:?}");
        }
        for (value, output) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (-2.5, "-2.5"),
            (0.1 + 0.2, "0.3"),
            (1234567890.0, "1234567890"),
            (12345678901.0, "1.23456789e+10"),
            (9999999999.9, "1e+10"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1e300, "1e+300"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(text(value), output);
        }
    }
}
