//! What the map remembers of each OSD besides state, weight and addresses.

use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use spirula_types::Epoch;

/// When an OSD was up (osd_info_t v1). All epochs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OsdInfo {
    /// First epoch of the last interval that ended with a clean shutdown of its PGs.
    pub last_clean_begin: Epoch,
    /// Its last epoch.
    pub last_clean_end: Epoch,
    /// Up since.
    pub up_from: Epoch,
    /// Known alive (for some PG's peering) in this epoch.
    pub up_thru: Epoch,
    /// Last marked down.
    pub down_at: Epoch,
    /// Last declared lost.
    pub lost_at: Epoch,
}

impl Encode for OsdInfo {
    fn encode(&self, o: &mut Encoder) {
        o.u8(1);
        for v in [
            self.last_clean_begin,
            self.last_clean_end,
            self.up_from,
            self.up_thru,
            self.down_at,
            self.lost_at,
        ] {
            o.u32(v);
        }
    }
}

impl Decode for OsdInfo {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let v = d.u8()?;
        if v != 1 {
            return Err(DecodeError::Value { what: "osd_info_t version", value: i64::from(v) });
        }
        Ok(Self {
            last_clean_begin: d.u32()?,
            last_clean_end: d.u32()?,
            up_from: d.u32()?,
            up_thru: d.u32()?,
            down_at: d.u32()?,
            lost_at: d.u32()?,
        })
    }
}

/// More about an OSD (osd_xinfo_t v4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OsdXInfo {
    /// When it was marked down last.
    pub down_stamp: UTime,
    /// Probability that a report of its death is wrong, 0xffffffff = 1.
    pub laggy_probability: u32,
    /// Seconds it was usually wrongly down.
    pub laggy_interval: u32,
    /// Its connection features.
    pub features: u64,
    /// Weight before it was marked out by itself, 0x10000 = 1.
    pub old_weight: u32,
    /// Last scrub of purged snapshots.
    pub last_purged_snaps_scrub: UTime,
    /// It is certainly dead in this epoch.
    pub dead_epoch: Epoch,
}

impl Encode for OsdXInfo {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(4, 1, |o| {
            o.put(&self.down_stamp);
            o.u32(self.laggy_probability);
            o.u32(self.laggy_interval);
            o.u64(self.features);
            o.u32(self.old_weight);
            o.put(&self.last_purged_snaps_scrub);
            o.u32(self.dead_epoch);
        });
    }
}

impl Decode for OsdXInfo {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("osd_xinfo_t", 4, |d, v| {
            let mut x = Self {
                down_stamp: d.get()?,
                laggy_probability: d.u32()?,
                laggy_interval: d.u32()?,
                ..Self::default()
            };
            if v >= 2 {
                x.features = d.u64()?;
            }
            if v >= 3 {
                x.old_weight = d.u32()?;
            }
            if v >= 4 {
                x.last_purged_snaps_scrub = d.get()?;
                x.dead_epoch = d.u32()?;
            }
            Ok(x)
        })
    }
}
