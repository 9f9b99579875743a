//! How long heartbeats between two OSDs take over one network: what an OSD reports of those that
//! take long.

use serde_json::{Value, json};
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use spirula_types::OsdId;

/// Round trips of heartbeats over one path, of the last minute, 5 minutes and 15 minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathTimes {
    /// The OSD that answers.
    pub to: OsdId,
    /// Over the public network; else over the cluster's.
    pub front: bool,
    /// When the last one ended.
    pub at: UTime,
    /// Means, microseconds.
    pub mean_us: [u64; 3],
    /// The shortest, milliseconds.
    pub min_ms: [u64; 3],
    /// The longest, milliseconds.
    pub max_ms: [u64; 3],
    /// The last one, milliseconds.
    pub last_ms: u64,
}

impl PathTimes {
    /// The longest of the three means, milliseconds: what thresholds are compared with.
    pub fn worst_ms(&self) -> f64 {
        self.mean_us.iter().max().map_or(0.0, |us| *us as f64 / 1000.0)
    }

    /// `back` or `front`.
    pub fn interface(&self) -> &'static str {
        if self.front { "front" } else { "back" }
    }

    /// The numbers, with the keys of Ceph's `dump_osd_network`.
    pub fn numbers(&self) -> Value {
        let of = |v: [Value; 3]| {
            let [one, five, quarter] = v;
            json!({"1min": one, "5min": five, "15min": quarter})
        };
        json!({
            "average": of(self.mean_us.map(|us| (us as f64 / 1000.0).into())),
            "min": of(self.min_ms.map(Value::from)),
            "max": of(self.max_ms.map(Value::from)),
            "last": self.last_ms,
        })
    }

    /// A row of `dump_osd_network`.
    pub fn row(&self, from: OsdId) -> Value {
        let mut row = json!({
            "last update": self.at.to_iso(),
            "stale": false,
            "from osd": from,
            "to osd": self.to,
            "interface": self.interface(),
        });
        if let (Some(row), Value::Object(numbers)) = (row.as_object_mut(), self.numbers()) {
            row.extend(numbers);
        }
        row
    }
}

/// Rows as `network_ping_times` of an OSD's statistics has them: one for each other OSD.
pub(crate) fn by_osd(paths: &[PathTimes]) -> Value {
    let mut rows: Vec<(OsdId, UTime, Vec<Value>)> = Vec::new();
    for p in paths {
        let mut one = json!({ "interface": p.interface() });
        if let (Some(one), Value::Object(numbers)) = (one.as_object_mut(), p.numbers()) {
            one.extend(numbers);
        }
        match rows.iter_mut().find(|(to, ..)| *to == p.to) {
            Some((_, at, list)) => {
                *at = (*at).max(p.at);
                list.push(one);
            }
            None => rows.push((p.to, p.at, vec![one])),
        }
    }
    let row = |(to, at, list): (OsdId, UTime, Vec<Value>)| json!({"osd": to, "last update": at.to_iso(), "interfaces": list});
    rows.into_iter().map(row).collect()
}

impl Encode for PathTimes {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.i32(self.to);
            o.bool(self.front);
            o.put(&self.at);
            for v in [self.mean_us, self.min_ms, self.max_ms] {
                v.iter().for_each(|n| o.u64(*n));
            }
            o.u64(self.last_ms);
        });
    }
}

impl Decode for PathTimes {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let three = |d: &mut Decoder<'_>| Ok::<_, DecodeError>([d.u64()?, d.u64()?, d.u64()?]);
        d.versioned("PathTimes", 1, |d, _| {
            Ok(Self {
                to: d.i32()?,
                front: d.bool()?,
                at: d.get()?,
                mean_us: three(d)?,
                min_ms: three(d)?,
                max_ms: three(d)?,
                last_ms: d.u64()?,
            })
        })
    }
}
