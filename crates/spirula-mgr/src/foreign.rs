//! Counters of Ceph's own daemons (metadata servers), as they report them.
//!
//! A daemon says once what counters it has, and then their values, in the order of their names. They are kept by connection and go with
//! it, so a daemon that starts anew begins anew.

use spirula_encoding::{DecodeError, Decoder};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Counters of one daemon at most.
const COUNTERS_MAX: usize = 4096;
/// Values kept of each, to make rates of.
const KEPT: usize = 3;
/// Bit of a counter's type: it is a sum and a count, twice.
const AVERAGE: u8 = 4;
/// Bytes of a counter's description at least.
const LEAST: usize = 6 + 3 * 4 + 3;

/// A daemon's counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    /// Name to type.
    declared: BTreeMap<String, u8>,
    values: BTreeMap<String, VecDeque<(Duration, u64)>>,
}

impl Counters {
    /// Takes in what follows the daemon's name in a report.
    ///
    /// # Errors
    /// If it is malformed; what was declared before counts still.
    pub fn report(&mut self, now: Duration, rest: &[u8]) -> Result<(), DecodeError> {
        let d = &mut Decoder::new(rest);
        let declared = d.list(LEAST, |d| {
            d.versioned("PerfCounterType", 3, |d, _| {
                let path: String = d.get()?;
                d.blob()?;
                d.blob()?;
                Ok((path, d.u8()?))
            })
        })?;
        let packed = d.blob()?;
        let gone: Vec<String> = d.get()?;
        for (path, kind) in declared {
            if self.declared.len() < COUNTERS_MAX {
                self.declared.insert(path, kind);
            }
        }
        for path in gone {
            self.declared.remove(&path);
            self.values.remove(&path);
        }
        let p = &mut Decoder::new(packed);
        p.versioned("packed counters", 1, |p, _| {
            for (path, kind) in &self.declared {
                let value = p.u64()?;
                if kind & AVERAGE != 0 {
                    p.u64()?;
                    p.u64()?;
                }
                let kept = self.values.entry(path.clone()).or_default();
                kept.push_back((now, value));
                if kept.len() > KEPT {
                    kept.pop_front();
                }
            }
            Ok(())
        })
    }

    /// A counter's last value; 0 if it is not known.
    pub fn latest(&self, name: &str) -> u64 {
        self.values.get(name).and_then(|v| v.back()).map_or(0, |(_, v)| *v)
    }

    /// How much a counter grows in a second.
    pub fn rate(&self, name: &str) -> u64 {
        let Some(kept) = self.values.get(name) else { return 0 };
        let (Some((t0, a)), Some((t1, b))) = (kept.front(), kept.back()) else { return 0 };
        let seconds = t1.saturating_sub(*t0).as_secs_f64();
        if seconds > 0.0 { (b.saturating_sub(*a) as f64 / seconds) as u64 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_encoding::Encoder;

    fn report(declared: &[(&str, u8)], gone: &[&str], values: &[u64]) -> Vec<u8> {
        let mut o = Encoder::new();
        o.list(declared, |o, (path, kind)| {
            o.versioned(3, 1, |o| {
                o.str(path);
                o.str("what it is");
                o.str("nick");
                o.u8(*kind);
                o.u8(5);
                o.u8(0);
            });
        });
        o.sized(|o| o.versioned(1, 1, |o| values.iter().for_each(|v| o.u64(*v))));
        o.list(gone, |o, path| o.str(path));
        o.str("and more");
        o.into_vec()
    }

    #[test]
    fn counters_are_read_in_the_order_of_their_names() {
        let mut c = Counters::default();
        let at = Duration::from_secs;
        c.report(at(10), &report(&[("z", 10), ("a", AVERAGE), ("m", 2)], &[], &[1, 2, 3, 40, 500])).unwrap();
        assert_eq!((c.latest("a"), c.latest("m"), c.latest("z"), c.latest("x")), (1, 40, 500, 0));
        c.report(at(15), &report(&[], &[], &[1, 2, 3, 40, 1000])).unwrap();
        assert_eq!((c.rate("z"), c.rate("m"), c.latest("z")), (100, 0, 1000));
        c.report(at(20), &report(&[], &["a"], &[50, 1000])).unwrap();
        assert_eq!((c.latest("a"), c.latest("m")), (0, 50));
        assert!(c.report(at(25), &report(&[], &[], &[50])).is_err(), "one is missing");
        assert!(c.report(at(25), b"x").is_err());
    }
}
