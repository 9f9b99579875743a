//! Class `otp`: one-time passwords by time (TOTP, RFC 6238), for radosgw's users who must name one
//! to delete for good.
//!
//! A check and the question for its result are two calls: a call that fails changes nothing, and
//! failures must be counted.

use crate::{Call, Class, R, RW, Stop, fail, method};
use bytes::Bytes;
use ring::hmac;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use spirula_types::errno;
use std::collections::BTreeSet;

pub(crate) const CLASS: Class = Class {
    name: "otp",
    methods: &[
        method("otp_set", RW, set),
        method("otp_get", R, get),
        method("otp_check", RW, check),
        method("otp_get_result", R, result),
        method("otp_remove", RW, remove),
        method("get_current_time", R, time),
    ],
};

/// Key of the names of all devices; start of a device's key.
const ALL: &[u8] = b"header";
const DEVICE: &[u8] = b"otp/";
/// Most checks of a device in one step of its time.
const ATTEMPTS: usize = 5;
/// Form of a seed: this, or hexadecimal digits.
const BASE32: u8 = 2;
/// Results of a check.
const UNKNOWN: u8 = 0;
const RIGHT: u8 = 1;
const WRONG: u8 = 2;
/// Steps before and after now that may be tried for one check, whatever the device's window: each
/// takes a microsecond, and a request has thousands of calls. At the usual step of 30 s these are
/// fifty minutes; radosgw-admin's default is two steps.
const WINDOW_MAX: u32 = 100;

/// A device that shows passwords.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Device {
    kind: u8,
    id: Bytes,
    seed: Bytes,
    seed_form: u8,
    /// The seed's bytes.
    secret: Bytes,
    /// When its time began, seconds since 1970.
    offset: i32,
    /// Seconds for which a password is shown.
    step: u32,
    /// Steps that its clock may be wrong by.
    window: u32,
}

impl Encode for Device {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u8(self.kind);
            o.put(&self.id);
            o.put(&self.seed);
            o.u8(self.seed_form);
            o.put(&self.secret);
            o.i32(self.offset);
            o.u32(self.step);
            o.u32(self.window);
        });
    }
}

impl Decode for Device {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("device", 1, |d, _| {
            Ok(Self {
                kind: d.u8()?,
                id: d.get()?,
                seed: d.get()?,
                seed_form: d.u8()?,
                secret: d.get()?,
                offset: d.i32()?,
                step: d.u32()?,
                window: d.u32()?,
            })
        })
    }
}

/// A check that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Check {
    token: Bytes,
    time: UTime,
    result: u8,
}

impl Encode for Check {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.token);
            o.put(&self.time);
            o.u8(self.result);
        });
    }
}

impl Decode for Check {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("check", 1, |d, _| {
            Ok(Self { token: d.get()?, time: d.get()?, result: d.u8()? })
        })
    }
}

/// A device, and what was checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    device: Device,
    checks: Vec<Check>,
    /// The step of the last password that was right. Earlier ones, and this one, are not taken
    /// again.
    last: u64,
}

impl Encode for State {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.device);
            o.put(&self.checks);
            o.u64(self.last);
        });
    }
}

impl Decode for State {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("device and checks", 1, |d, _| {
            Ok(Self { device: d.get()?, checks: d.list(19, Check::decode)?, last: d.u64()? })
        })
    }
}

impl State {
    /// Forgets checks that were made more than a step ago.
    fn forget(&mut self, now: UTime) {
        let since = now.as_nanos().saturating_sub(u64::from(self.device.step) * 1_000_000_000);
        let old = self.checks.iter().take_while(|c| c.time.as_nanos() < since).count();
        self.checks.drain(..old);
    }

    /// Is it a password of about this time that was not used yet?
    fn is_right(&mut self, now: UTime, password: &[u8]) -> bool {
        let device = &self.device;
        let Some(step) = i64::from(now.sec)
            .checked_sub(device.offset.into())
            .filter(|s| *s >= 0 && device.step > 0)
        else {
            return false;
        };
        let step = step.cast_unsigned() / u64::from(device.step);
        let digits = match password.len() {
            n @ 6..=8 => n as u32,
            _ => return false,
        };
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &device.secret);
        let Some(wanted) =
            std::str::from_utf8(password).ok().filter(|p| p.bytes().all(|b| b.is_ascii_digit()))
        else {
            return false;
        };
        let Ok(wanted) = wanted.parse::<u32>() else { return false };
        let shown = |step: u64| {
            truncated(hmac::sign(&key, &step.to_be_bytes()).as_ref()) % 10_u32.pow(digits) == wanted
        };
        let window = u64::from(device.window.min(WINDOW_MAX));
        // Whether the clock is early or late, Ceph counts the step as a later one.
        let away = (0..=window).find(|n| {
            [step.checked_add(*n), step.checked_sub(*n)].into_iter().flatten().any(shown)
        });
        match away.map(|n| step.saturating_add(n)).filter(|step| *step > self.last) {
            Some(step) => {
                self.last = step;
                true
            }
            None => false,
        }
    }
}

/// 31 bits of a digest (RFC 4226, 5.3).
fn truncated(digest: &[u8]) -> u32 {
    let at = usize::from(digest.last().copied().unwrap_or(0) & 0xf);
    let bytes =
        digest.get(at..).and_then(|rest| rest.first_chunk::<4>()).copied().unwrap_or_default();
    u32::from_be_bytes(bytes) & 0x7fff_ffff
}

/// The bytes of a seed; `None` if it is not of the form that it shall be of.
fn secret(seed: &[u8], form: u8) -> Option<Bytes> {
    let digit = |c: &u8, radix| char::from(*c).to_digit(radix);
    if form != BASE32 {
        let digits: Option<Vec<u32>> = seed.iter().map(|c| digit(c, 16)).collect();
        let digits = digits.filter(|d| d.len().is_multiple_of(2))?;
        return Some(
            digits.chunks(2).map(|pair| pair.iter().fold(0, |n, d| n << 4 | d) as u8).collect(),
        );
    }
    let (mut out, mut bits, mut held) = (Vec::new(), 0_u32, 0);
    for c in seed.iter().filter(|c| !matches!(c, b' ' | b'=')) {
        let five = match c.to_ascii_uppercase() {
            c @ b'A'..=b'Z' => c - b'A',
            c @ b'2'..=b'7' => c - b'2' + 26,
            _ => return None,
        };
        bits = bits << 5 | u32::from(five);
        held += 5;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    Some(out.into())
}

fn key(id: &[u8]) -> Bytes {
    [DEVICE, id].concat().into()
}

/// The names of all devices.
struct Names(BTreeSet<Bytes>);

impl Encode for Names {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| o.put(&self.0));
    }
}

impl Decode for Names {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("names", 1, |d, _| d.get().map(Self))
    }
}

fn names(call: &mut Call<'_>) -> Result<Names, Stop> {
    match call.object.omap_get(ALL)? {
        Some(value) if !value.is_empty() => crate::stored(&value),
        _ => Ok(Names(BTreeSet::new())),
    }
}

fn set(call: &mut Call<'_>) -> Result<i32, Stop> {
    let devices: Vec<Device> =
        call.few_args(|d| d.versioned("devices", 1, |d, _| d.list(32, Device::decode)))?;
    let mut names = names(call)?;
    for device in devices {
        let mut state: State = call.key(key(&device.id))?.unwrap_or_default();
        let Some(secret) = secret(&device.seed, device.seed_form) else {
            return fail(errno::EINVAL);
        };
        state.device = Device { secret, ..device };
        call.set(key(&state.device.id), &state)?;
        names.0.insert(state.device.id);
    }
    call.set(ALL, &names)?;
    Ok(0)
}

fn remove(call: &mut Call<'_>) -> Result<i32, Stop> {
    let ids: Vec<Bytes> = call.few_args(|d| d.versioned("names", 1, |d, _| d.get()))?;
    let mut names = names(call)?;
    let known: Vec<Bytes> = ids.into_iter().filter(|id| names.0.remove(id)).collect();
    if !known.is_empty() {
        call.object.omap_remove(known.iter().map(|id| key(id)).collect())?;
        call.set(ALL, &names)?;
    }
    Ok(0)
}

fn get(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (all, ids): (bool, Vec<Bytes>) =
        call.few_args(|d| d.versioned("names", 1, |d, _| Ok((d.get()?, d.get()?))))?;
    let names = names(call)?;
    let ids = if all { names.0.iter().cloned().collect() } else { ids };
    let mut devices = Vec::new();
    for id in ids.iter().filter(|id| names.0.contains(*id)) {
        devices.push(call.need::<State>(key(id))?.device);
    }
    call.output.versioned(1, 1, |o| o.put(&devices));
    Ok(0)
}

/// A check: of what device, what password, and the name of the check.
fn check_args(call: &Call<'_>) -> Result<(Bytes, Bytes, Bytes), Stop> {
    call.args(|d| d.versioned("check", 1, |d, _| Ok((d.get()?, d.get()?, d.get()?))))
}

fn check(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (id, password, token) = check_args(call)?;
    let mut state: State = call.need(key(&id))?;
    let time = call.object.now();
    state.forget(time);
    if state.checks.len() >= ATTEMPTS {
        return Ok(0);
    }
    let result = if state.is_right(time, &password) { RIGHT } else { WRONG };
    state.checks.push(Check { token, time, result });
    call.set(key(&id), &state)?;
    Ok(0)
}

fn result(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (id, _, token) = check_args(call)?;
    let mut state: State = call.need(key(&id))?;
    let time = call.object.now();
    state.forget(time);
    let made = state.checks.into_iter().rev().find(|c| c.token == token);
    let made = made.unwrap_or(Check { token, time, result: UNKNOWN });
    call.output.versioned(1, 1, |o| o.put(&made));
    Ok(0)
}

fn time(call: &mut Call<'_>) -> Result<i32, Stop> {
    call.args(|d| d.versioned("question", 1, |_, _| Ok(())))?;
    let now = call.object.now();
    call.output.versioned(1, 1, |o| o.put(&now));
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of RFC 6238 and 4226, with eight digits.
    #[test]
    fn passwords_are_those_of_the_standard() {
        for (sec, password) in
            [(59, "94287082"), (1_111_111_109, "07081804"), (2_000_000_000, "69279037")]
        {
            let device = Device {
                secret: Bytes::from_static(b"12345678901234567890"),
                step: 30,
                ..Device::default()
            };
            let mut state = State { device, ..State::default() };
            assert!(!state.is_right(UTime { sec, nsec: 0 }, b"00000000"));
            assert!(state.is_right(UTime { sec, nsec: 0 }, password.as_bytes()), "{sec}");
            assert!(!state.is_right(UTime { sec, nsec: 0 }, password.as_bytes()), "used twice");
        }
    }

    #[test]
    fn a_clock_may_be_wrong_by_some_steps() {
        let device = Device {
            secret: Bytes::from_static(b"12345678901234567890"),
            step: 30,
            window: 2,
            ..Device::default()
        };
        let state = State { device, ..State::default() };
        for (sec, right) in [(30, true), (0, true), (119, true), (120, false)] {
            assert_eq!(state.clone().is_right(UTime { sec, nsec: 0 }, b"94287082"), right, "{sec}");
        }
    }

    /// However far a device's clock may be wrong by its own account, a check tries a bounded number
    /// of passwords.
    #[test]
    fn a_window_is_bounded() {
        let secret = Bytes::from_static(b"12345678901234567890");
        let device = Device { secret, step: 1, window: u32::MAX, ..Device::default() };
        let state = State { device, ..State::default() };
        // With steps of a second this is the password of second 1.
        for (sec, right) in [(1 + WINDOW_MAX, true), (2 + WINDOW_MAX, false), (900, false)] {
            assert_eq!(state.clone().is_right(UTime { sec, nsec: 0 }, b"94287082"), right, "{sec}");
        }
    }

    #[test]
    fn seeds_are_read() {
        assert_eq!(secret(b"0aFF", 1), Some(Bytes::from_static(&[10, 255])));
        assert_eq!(secret(b"0af", 1), None);
        assert_eq!(secret(b"0x", 0), None);
        assert_eq!(secret(b"MZXW 6YTB", BASE32), Some(Bytes::from_static(b"fooba")));
        assert_eq!(secret(b"mzxw6===", BASE32), Some(Bytes::from_static(b"foo")));
        assert_eq!(secret(b"M1", BASE32), None);
    }
}
