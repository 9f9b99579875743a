//! Class `cmpomap`: compares values of an omap with given ones, and changes those that compare so.

use crate::{Call, Class, R, RW, Stop, fail, method};
use bytes::Bytes;
use spirula_encoding::{DecodeError, Decoder};
use spirula_types::errno;
use std::collections::BTreeMap;

pub(crate) const CLASS: Class = Class {
    name: "cmpomap",
    methods: &[
        method("cmp_vals", R, compare),
        method("cmp_set_vals", RW, compare_and_set),
        method("cmp_rm_keys", RW, compare_and_remove),
    ],
};

/// Values are compared as bytes, or as numbers of 64 bits.
const BYTES: u8 = 1;
const NUMBERS: u8 = 2;

struct Comparison {
    mode: u8,
    /// How a given value (on the left) compares with a stored one.
    how: u8,
    values: BTreeMap<Bytes, Bytes>,
    /// Stands for values that are not stored.
    default: Option<Bytes>,
}

fn args(call: &Call<'_>, with_default: bool) -> Result<Comparison, Stop> {
    let default = |d: &mut Decoder<'_>| -> Result<Option<Bytes>, DecodeError> {
        if with_default && d.bool()? { d.get().map(Some) } else { Ok(None) }
    };
    call.few_args(|d| {
        d.versioned("comparison", 1, |d, _| {
            Ok(Comparison { mode: d.u8()?, how: d.u8()?, values: d.get()?, default: default(d)? })
        })
    })
}

impl Comparison {
    fn order<T: Ord>(&self, given: &T, stored: &T) -> Result<bool, Stop> {
        Ok(match self.how {
            1 => given == stored,
            2 => given != stored,
            3 => given > stored,
            4 => given >= stored,
            5 => given < stored,
            6 => given <= stored,
            _ => return fail(errno::EINVAL),
        })
    }

    /// Does a given value compare with a stored one as wanted? EIO if the stored one is no number.
    fn holds(&self, given: &Bytes, stored: &Bytes) -> Result<bool, Stop> {
        match self.mode {
            BYTES => self.order(given, stored),
            NUMBERS => {
                let given = Decoder::new(given).u64()?;
                let stored = if stored.is_empty() { Ok(0) } else { Decoder::new(stored).u64() };
                self.order(&given, &stored.map_err(|_| Stop::Errno(errno::EIO))?)
            }
            _ => fail(errno::EINVAL),
        }
    }

    /// The pairs whose comparison holds. What is no number does not compare.
    fn holding(&self, call: &mut Call<'_>) -> Result<Vec<(Bytes, Bytes)>, Stop> {
        let mut holding = Vec::new();
        for (key, given) in &self.values {
            let Some(stored) = call.object.omap_get(key)?.or_else(|| self.default.clone()) else {
                continue;
            };
            match self.holds(given, &stored) {
                Ok(false) | Err(Stop::Errno(errno::EIO)) => {}
                Ok(true) => holding.push((key.clone(), given.clone())),
                Err(e) => return Err(e),
            }
        }
        Ok(holding)
    }
}

fn compare(call: &mut Call<'_>) -> Result<i32, Stop> {
    let comparison = args(call, true)?;
    for (key, given) in &comparison.values {
        let stored = call.object.omap_get(key)?.or_else(|| comparison.default.clone());
        let Some(stored) = stored else { return fail(errno::ECANCELED) };
        if !comparison.holds(given, &stored)? {
            return fail(errno::ECANCELED);
        }
    }
    Ok(0)
}

fn compare_and_set(call: &mut Call<'_>) -> Result<i32, Stop> {
    let pairs = args(call, true)?.holding(call)?;
    if !pairs.is_empty() {
        call.object.omap_set(pairs)?;
    }
    Ok(0)
}

fn compare_and_remove(call: &mut Call<'_>) -> Result<i32, Stop> {
    let keys: Vec<Bytes> =
        args(call, false)?.holding(call)?.into_iter().map(|(key, _)| key).collect();
    if !keys.is_empty() {
        call.object.omap_remove(keys)?;
    }
    Ok(0)
}
