//! Ops on extended attributes.

use super::state::{user_attr, user_name};
use super::vector::{Ran, Stop, Vector};
use bytes::Bytes;
use spirula_encoding::{Decoder, Encoder};
use spirula_messages::ceph::op::OsdOp;
use spirula_types::errno;
use std::cmp::Ordering;

/// Comparison modes of cmpxattr.
const MODE_STRING: u8 = 1;
const MODE_U64: u8 = 2;

/// Applies comparison operator `op` (1 eq, 2 ne, 3 gt, 4 gte, 5 lt, 6 lte); `None` for another.
pub(super) fn compare(op: u8, order: Ordering) -> Option<bool> {
    Some(match op {
        1 => order.is_eq(),
        2 => order.is_ne(),
        3 => order.is_gt(),
        4 => order.is_ge(),
        5 => order.is_lt(),
        6 => order.is_le(),
        _ => return None,
    })
}

/// The number a stored value stands for, by `strtoull`'s rules: blanks, a sign, decimal
/// digits, the rest ignored; too large a number is the largest.
fn parse_u64(value: &[u8]) -> u64 {
    let blank = |b: &u8| b.is_ascii_whitespace() || *b == 0x0b;
    let start = value.iter().position(|b| !blank(b)).unwrap_or(value.len());
    let rest = value.get(start..).unwrap_or_default();
    let (negative, digits) = match rest {
        [b'-', d @ ..] => (true, d),
        [b'+', d @ ..] => (false, d),
        d => (false, d),
    };
    let mut n = 0u64;
    for d in digits.iter().take_while(|d| d.is_ascii_digit()) {
        match n.checked_mul(10).and_then(|n| n.checked_add(u64::from(d - b'0'))) {
            Some(more) => n = more,
            None => return u64::MAX,
        }
    }
    if negative { n.wrapping_neg() } else { n }
}

/// The name at the start of an attribute op's input, and what follows it.
fn split_name(o: &OsdOp) -> Result<(Bytes, Bytes), Stop> {
    let n = o.xattr().name_len as usize;
    if n > o.indata.len() {
        return Err(Stop::Errno(errno::EINVAL));
    }
    Ok((o.indata.slice(..n), o.indata.slice(n..)))
}

impl Vector<'_> {
    /// A user attribute; ENOENT without an object. The empty name names none: under it the
    /// object's metadata are stored.
    pub(super) fn user_attr(&self, name: &[u8]) -> Result<Option<Bytes>, Stop> {
        self.must_exist()?;
        if name.is_empty() {
            return Ok(None);
        }
        Ok(self.object.attr(&user_attr(name))?)
    }

    pub(super) fn getxattr(&mut self, o: &OsdOp, out: &mut OsdOp) -> Ran {
        let (name, _) = split_name(o)?;
        let value = self.user_attr(&name)?.ok_or(Stop::Errno(errno::ENODATA))?;
        let n = value.len();
        self.reserve(n as u64)?;
        self.object.stats.count_read(n as u64);
        if let Some(len) = out.union.get_mut(4..8) {
            len.copy_from_slice(&(n as u32).to_le_bytes());
        }
        out.indata = value;
        Ok(0)
    }

    pub(super) fn getxattrs(&mut self, out: &mut OsdOp) -> Ran {
        self.must_exist()?;
        let attrs = self.object.attrs()?;
        let bytes: usize = attrs.iter().map(|(k, v)| k.len() + v.len() + 8).sum();
        self.reserve(bytes as u64 + 4)?;
        let mut o = Encoder::with_capacity(bytes + 4);
        o.list(attrs.iter().filter_map(|(k, v)| user_name(k).map(|k| (k, v))), |o, (k, v)| {
            o.put(&k);
            o.put(v);
        });
        out.indata = o.into_bytes();
        self.object.stats.count_read(out.indata.len() as u64);
        Ok(0)
    }

    /// Compares the given value (left) with the stored one (right; empty if absent).
    pub(super) fn cmpxattr(&mut self, o: &OsdOp) -> Ran {
        let args = o.xattr();
        let (name, rest) = split_name(o)?;
        let stored = self.user_attr(&name)?.unwrap_or_default();
        self.object.stats.count_read(stored.len() as u64);
        let order = match args.cmp_mode {
            MODE_STRING => {
                let given =
                    rest.get(..args.value_len as usize).ok_or(Stop::Errno(errno::EINVAL))?;
                given.cmp(&stored[..])
            }
            MODE_U64 => Decoder::new(&rest).u64()?.cmp(&parse_u64(&stored)),
            _ => return Err(Stop::Errno(errno::EINVAL)),
        };
        match compare(args.cmp_op, order) {
            // "True" is 1, not 0, and clients see it.
            Some(true) => Ok(1),
            Some(false) => Err(Stop::Errno(errno::ECANCELED)),
            None => Err(Stop::Errno(errno::EINVAL)),
        }
    }

    pub(super) fn setxattr(&mut self, o: &OsdOp) -> Ran {
        let args = o.xattr();
        let limits = self.ctx.limits;
        if limits.max_attr_size > 0 && args.value_len as usize > limits.max_attr_size {
            return Err(Stop::Errno(errno::EFBIG));
        }
        if args.name_len as usize > limits.max_attr_name_len {
            return Err(Stop::Errno(errno::ENAMETOOLONG));
        }
        let (name, value) = o.xattr_parts()?;
        if name.is_empty() {
            return Err(Stop::Errno(errno::EINVAL));
        }
        self.object.create();
        self.object.set_attr(user_attr(&name), value);
        self.object.stats.count_write(0);
        Ok(0)
    }

    pub(super) fn rmxattr(&mut self, o: &OsdOp) -> Ran {
        let (name, _) = split_name(o)?;
        self.must_exist()?;
        if name.is_empty() {
            return Err(Stop::Errno(errno::EINVAL));
        }
        self.object.rm_attr(user_attr(&name));
        self.object.stats.count_write(0);
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_strtoull_reads_them() {
        for (text, n) in [
            ("", 0),
            ("12", 12),
            (" \t+7x", 7),
            ("x", 0),
            ("-1", u64::MAX),
            ("18446744073709551615", u64::MAX),
            ("99999999999999999999999", u64::MAX),
        ] {
            assert_eq!(parse_u64(text.as_bytes()), n, "{text:?}");
        }
    }
}
