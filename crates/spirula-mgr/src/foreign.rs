//! What Ceph's own daemons report: counters of metadata servers, and how services (gateways, mirror
//! daemons) are.
//!
//! A daemon says once what counters it has, and then their values, in the order of their names.
//! They are kept by connection and go with it, so a daemon that starts anew begins anew.

use spirula_encoding::{DecodeError, Decoder};
use spirula_maps::Facts;
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

/// Counters as a report declares them: name, and type.
fn declared(d: &mut Decoder<'_>) -> Result<Vec<(String, u8)>, DecodeError> {
    d.list(LEAST, |d| {
        d.versioned("PerfCounterType", 3, |d, _| {
            let path: String = d.get()?;
            d.blob()?;
            d.blob()?;
            Ok((path, d.u8()?))
        })
    })
}

/// What a daemon of a service says of itself, beside its counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServiceReport {
    /// Kind of service.
    pub service: String,
    /// How it is, if that changed.
    pub status: Option<Facts>,
    /// What it works at, if that changed.
    pub tasks: Option<Facts>,
}

impl ServiceReport {
    /// Reads what follows the daemon's name in a report.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn of(rest: &[u8]) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(rest);
        declared(d)?;
        d.blob()?;
        let _gone: Vec<String> = d.get()?;
        let facts = |d: &mut Decoder<'_>| -> Result<Option<Facts>, DecodeError> {
            if d.bool()? { Ok(Some(d.get()?)) } else { Ok(None) }
        };
        let (service, status) = (d.get()?, facts(d)?);
        // Older ones end here; an OSD's health and measurements, which stand between, no service
        // has.
        if d.rest().is_empty() || d.u32()? != 0 {
            return Ok(Self { service, status, tasks: None });
        }
        d.blob()?;
        let tasks = if d.u32()? == 0 { facts(d)? } else { None };
        Ok(Self { service, status, tasks })
    }
}

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
        let declared = declared(d)?;
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
    fn a_service_says_how_it_is() {
        let facts = |o: &mut Encoder, value: &str| {
            o.bool(true);
            o.put(&Facts::from([("json".to_owned(), value.to_owned())]));
        };
        let said = |metrics: u32, measured: u32| {
            let mut o = Encoder::new();
            o.list([("a", 2u8)], |o, (path, kind)| {
                o.versioned(3, 1, |o| {
                    o.str(path);
                    o.str("what it is");
                    o.str("nick");
                    o.u8(kind);
                    o.u8(5);
                    o.u8(0);
                });
            });
            o.sized(|o| o.versioned(1, 1, |o| o.u64(1)));
            o.u32(0);
            o.str("rbd-mirror");
            facts(&mut o, "fine");
            o.u32(metrics);
            o.u32(0);
            o.u32(measured);
            facts(&mut o, "busy");
            o.bool(false);
            o.into_vec()
        };
        let of = |value: &str| Some(Facts::from([("json".to_owned(), value.to_owned())]));
        let all =
            ServiceReport { service: "rbd-mirror".into(), status: of("fine"), tasks: of("busy") };
        assert_eq!(ServiceReport::of(&said(0, 0)), Ok(all.clone()));
        assert_eq!(
            ServiceReport::of(&said(0, 1)),
            Ok(ServiceReport { tasks: None, ..all.clone() })
        );
        assert_eq!(ServiceReport::of(&said(1, 0)), Ok(ServiceReport { tasks: None, ..all }));
        let whole = said(0, 0);
        for n in 0..whole.len() {
            let _ = ServiceReport::of(&whole[..n]);
        }
        assert!(ServiceReport::of(&whole[..whole.len() - 4]).is_err());
    }

    #[test]
    fn counters_are_read_in_the_order_of_their_names() {
        let mut c = Counters::default();
        let at = Duration::from_secs;
        c.report(at(10), &report(&[("z", 10), ("a", AVERAGE), ("m", 2)], &[], &[1, 2, 3, 40, 500]))
            .unwrap();
        assert_eq!((c.latest("a"), c.latest("m"), c.latest("z"), c.latest("x")), (1, 40, 500, 0));
        c.report(at(15), &report(&[], &[], &[1, 2, 3, 40, 1000])).unwrap();
        assert_eq!((c.rate("z"), c.rate("m"), c.latest("z")), (100, 0, 1000));
        c.report(at(20), &report(&[], &["a"], &[50, 1000])).unwrap();
        assert_eq!((c.latest("a"), c.latest("m")), (0, 50));
        assert!(c.report(at(25), &report(&[], &[], &[50])).is_err(), "one is missing");
        assert!(c.report(at(25), b"x").is_err());
    }
}
