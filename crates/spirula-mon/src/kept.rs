//! Encoded maps that are kept, by epoch, with what they weigh: how many bytes the maps of a range
//! have is known without a walk over them.
//!
//! Epochs are put in in their order; any may go.

use bytes::Bytes;
use spirula_types::Epoch;
use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds, RangeFrom};

/// One map.
#[derive(Clone, Debug)]
struct Kept {
    bytes: Bytes,
    /// Bytes of all maps that were put in, from the first one up to this.
    up_to: u64,
}

/// Maps by epoch.
#[derive(Clone, Debug, Default)]
pub struct KeptMaps(BTreeMap<Epoch, Kept>);

impl KeptMaps {
    /// Puts the map of `epoch` in. One that is older than the newest, or there already, is weighed
    /// anew with all that follow it.
    pub fn insert(&mut self, epoch: Epoch, bytes: Bytes) {
        let before = self.0.range(..epoch).next_back().map_or(0, |(_, k)| k.up_to);
        self.0.insert(epoch, Kept { bytes, up_to: before });
        let mut sum = before;
        for kept in self.0.range_mut(epoch..).map(|(_, k)| k) {
            sum += kept.bytes.len() as u64;
            kept.up_to = sum;
        }
    }

    /// Takes a map out.
    pub fn remove(&mut self, epoch: Epoch) {
        self.0.remove(&epoch);
    }

    /// Lets go of those in `range`.
    pub fn forget(&mut self, range: impl RangeBounds<Epoch>) {
        let from = range.start_bound().cloned();
        while let Some(epoch) =
            self.0.range((from, range.end_bound().cloned())).next().map(|(e, _)| *e)
        {
            self.0.remove(&epoch);
        }
    }

    /// Bytes of those from an epoch on.
    pub fn bytes_from(&self, range: RangeFrom<Epoch>) -> u64 {
        let (Some((_, first)), Some((_, last))) =
            (self.0.range(range).next(), self.0.last_key_value())
        else {
            return 0;
        };
        last.up_to - first.up_to + first.bytes.len() as u64
    }

    /// The map of an epoch.
    pub fn get(&self, epoch: &Epoch) -> Option<&Bytes> {
        self.0.get(epoch).map(|k| &k.bytes)
    }

    /// Is that epoch's there?
    pub fn contains_key(&self, epoch: &Epoch) -> bool {
        self.0.contains_key(epoch)
    }

    /// Epochs and maps within bounds, in order.
    pub fn range(
        &self,
        range: impl RangeBounds<Epoch>,
    ) -> impl DoubleEndedIterator<Item = (&Epoch, &Bytes)> {
        let bounds: (Bound<Epoch>, Bound<Epoch>) =
            (range.start_bound().cloned(), range.end_bound().cloned());
        self.0.range(bounds).map(|(e, k)| (e, &k.bytes))
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&Epoch, &Bytes)> {
        self.0.iter().map(|(e, k)| (e, &k.bytes))
    }

    /// All epochs.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &Epoch> {
        self.0.keys()
    }

    /// All maps.
    pub fn values(&self) -> impl Iterator<Item = &Bytes> {
        self.0.values().map(|k| &k.bytes)
    }

    /// The oldest epoch.
    pub fn first(&self) -> Option<Epoch> {
        self.0.first_key_value().map(|(e, _)| *e)
    }

    /// The newest epoch.
    pub fn last(&self) -> Option<Epoch> {
        self.0.last_key_value().map(|(e, _)| *e)
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// None?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<BTreeMap<Epoch, Bytes>> for KeptMaps {
    fn from(maps: BTreeMap<Epoch, Bytes>) -> Self {
        let mut up_to = 0;
        let weighed = maps.into_iter().map(|(epoch, bytes)| {
            up_to += bytes.len() as u64;
            (epoch, Kept { bytes, up_to })
        });
        Self(weighed.collect())
    }
}

impl std::ops::Index<&Epoch> for KeptMaps {
    type Output = Bytes;

    fn index(&self, epoch: &Epoch) -> &Bytes {
        &self.0[epoch].bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_maps_weigh_is_known_whatever_was_put_in_and_taken_out() {
        let of = |n: usize| Bytes::from(vec![0; n]);
        let mut maps = KeptMaps::from(BTreeMap::from([(3, of(10)), (4, of(20))]));
        for (epoch, n) in [(5, 40), (9, 80), (7, 160), (4, 5)] {
            maps.insert(epoch, of(n));
        }
        let check = |maps: &KeptMaps| {
            for from in 0..12 {
                let sum: usize = maps.range(from..).map(|(_, b)| b.len()).sum();
                assert_eq!(maps.bytes_from(from..), sum as u64, "{from}");
            }
        };
        check(&maps);
        assert_eq!((maps.len(), maps.bytes_from(0..)), (5, 295));
        maps.forget(..4);
        maps.remove(9);
        assert_eq!((maps.first(), maps.last(), maps.bytes_from(0..)), (Some(4), Some(7), 205));
        maps.insert(10, of(1));
        check(&maps);
        maps.forget(5..10);
        assert_eq!(maps.keys().copied().collect::<Vec<_>>(), [4, 10]);
    }
}
