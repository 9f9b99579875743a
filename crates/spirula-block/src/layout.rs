//! Where the bytes of an image are: which object, and where in it.
//!
//! An image is cut into units of `unit` bytes that go to `count` objects in turn; when these are
//! full the next `count` objects follow. Without striping the unit is an object and the count 1, so
//! that each object holds one piece of the image.
//!
//! However small the units are, what a piece of the image has in one object adjoins there: it is
//! one [`Run`], and asked for at once. How many pieces a run is cut into is bounded by the smallest
//! unit ([`UNIT`]), whatever a header says.

/// Largest and smallest order (binary logarithm of an object's bytes) of an image.
pub const ORDERS: std::ops::RangeInclusive<u8> = 12..=25;

/// Smallest unit of an image that is striped, bytes: a sector.
pub const UNIT: u64 = 512;

/// Bytes of an object, whatever pieces of the image they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Number of the object.
    pub object: u64,
    /// First byte there.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// A piece of an object, and the piece of the image that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Number of the object.
    pub object: u64,
    /// First byte there.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// First byte in the image.
    pub image: u64,
}

/// How an image is cut into objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    object_size: u64,
    unit: u64,
    count: u64,
}

impl Layout {
    /// One of objects of `1 << order` bytes, striped in units of `unit` bytes over `count` objects;
    /// `None` for what no image can have or may: an order out of [`ORDERS`], a unit below [`UNIT`]
    /// or one that does not divide the object, no objects.
    pub fn new(order: u8, unit: u64, count: u64) -> Option<Self> {
        if !ORDERS.contains(&order) {
            return None;
        }
        let object_size = 1 << order;
        // One object at a time is not striped, whatever the unit is.
        let unit = if count == 1 { object_size } else { unit };
        let fits =
            unit >= UNIT && object_size.is_multiple_of(unit) && count > 0 && count <= 1 << 20;
        fits.then_some(Self { object_size, unit, count })
    }

    /// Bytes of an object.
    pub fn object_size(&self) -> u64 {
        self.object_size
    }

    /// Is each object one piece of the image?
    pub fn is_plain(&self) -> bool {
        self.count == 1
    }

    /// Objects of an image of `size` bytes.
    pub fn objects(&self, size: u64) -> u64 {
        let set = self.object_size.saturating_mul(self.count);
        let rest = size % set;
        // Of a set that is not full the last objects may be without a byte.
        let missing =
            if rest > 0 { self.count.saturating_sub(rest.div_ceil(self.unit)) } else { 0 };
        size.div_ceil(set).saturating_mul(self.count).saturating_sub(missing)
    }

    /// What `length` bytes of the image from `offset` on have of each object, in the order of their
    /// first bytes.
    pub fn runs(&self, offset: u64, length: u64) -> impl Iterator<Item = Run> + use<> {
        let layout = *self;
        let Self { object_size, unit, count } = layout;
        let set = object_size * count;
        let end = offset.saturating_add(length);
        let sets = if offset < end { offset / set..end.div_ceil(set) } else { 0..0 };
        sets.flat_map(move |n| {
            let (from, to) = (offset.saturating_sub(n * set), (end - n * set).min(set));
            let first = from / unit;
            // Of a few units only their objects, however many the set has.
            let units = to.div_ceil(unit) - first;
            (0..units.min(count)).map(move |i| {
                let column = (first + i) % count;
                let before = |at: u64| layout.column_before(column, at);
                Run {
                    object: n * count + column,
                    offset: before(from),
                    length: before(to) - before(from),
                }
            })
        })
    }

    /// Bytes of the object in this column of a set that lie before byte `at` of the set.
    fn column_before(&self, column: u64, at: u64) -> u64 {
        let stripe = self.unit * self.count;
        at / stripe * self.unit + (at % stripe).saturating_sub(column * self.unit).min(self.unit)
    }

    /// Bytes of an object that lie before byte `end` of the image. They are its first ones, because
    /// what is further behind in an object is so in the image, too.
    pub fn bytes_before(&self, object: u64, end: u64) -> u64 {
        let set = self.object_size * self.count;
        let begin = (object / self.count).saturating_mul(set);
        self.column_before(object % self.count, end.saturating_sub(begin).min(set))
    }

    /// Pieces of the image that the first `bytes` of an object are.
    pub fn piece_count(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.unit)
    }

    /// The pieces of the image that `length` bytes of an object from `offset` on are, in the
    /// object's order.
    pub fn image_pieces(&self, object: u64, offset: u64, length: u64) -> Vec<Extent> {
        let mut pieces = Vec::new();
        let (mut at, end) = (offset, offset.saturating_add(length).min(self.object_size));
        while at < end {
            let length = (self.unit - at % self.unit).min(end - at);
            let (set, column) = (object / self.count, object % self.count);
            let stripe =
                set.saturating_mul(self.object_size / self.unit).saturating_add(at / self.unit);
            let block = stripe.saturating_mul(self.count).saturating_add(column);
            let image = block.saturating_mul(self.unit).saturating_add(at % self.unit);
            pieces.push(Extent { object, offset: at, length, image });
            at += length;
        }
        pieces
    }

    /// The pieces of an object that lie before byte `end` of the image: `length` bytes from
    /// `offset` on of the object are looked at.
    pub fn pieces_before(&self, object: u64, offset: u64, length: u64, end: u64) -> Vec<Extent> {
        let mut pieces = self.image_pieces(object, offset, length);
        pieces.retain_mut(|p| {
            p.length = p.length.min(end.saturating_sub(p.image));
            p.length > 0
        });
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    /// The pieces of objects that bytes of the image are, one after the other: the definition.
    fn pieces(l: &Layout, offset: u64, length: u64) -> Vec<Extent> {
        let (mut at, end, mut all) = (offset, offset.saturating_add(length), Vec::new());
        while at < end {
            let (block, within) = (at / l.unit, at % l.unit);
            let (stripe, column) = (block / l.count, block % l.count);
            let units = l.object_size / l.unit;
            let length = (l.unit - within).min(end - at);
            let object = stripe / units * l.count + column;
            all.push(Extent {
                object,
                offset: stripe % units * l.unit + within,
                length,
                image: at,
            });
            at += length;
        }
        all
    }

    #[test]
    fn without_stripes_an_object_is_a_piece_of_the_image() {
        let l = Layout::new(22, 1 << 22, 1).unwrap();
        let all: Vec<_> =
            l.runs((1 << 22) - 10, 30).map(|r| (r.object, r.offset, r.length)).collect();
        assert_eq!(all, [(0, (1 << 22) - 10, 10), (1, 0, 20)]);
        assert_eq!(
            l.image_pieces(1, 0, 20),
            [Extent { object: 1, offset: 0, length: 20, image: 1 << 22 }]
        );
        assert_eq!(
            (l.objects(0), l.objects(1), l.objects(1 << 22), l.objects((1 << 22) + 1)),
            (0, 1, 1, 2)
        );
        assert!(
            Layout::new(40, 1, 1).is_none()
                && Layout::new(22, 3000, 2).is_none()
                && Layout::new(22, 0, 2).is_none()
        );
    }

    /// A header says what it likes: units of a byte would make millions of pieces of one object.
    #[test]
    fn units_are_no_smaller_than_a_sector() {
        assert!(Layout::new(25, 1, 2).is_none() && Layout::new(25, 256, 2).is_none());
        assert!(Layout::new(25, 512, 2).is_some() && Layout::new(25, 1, 1).is_some());
    }

    /// `rbd create --stripe-unit 4096 --stripe-count 3 --object-size 8192`: the places follow from
    /// the definition.
    #[test]
    fn stripes_go_round_and_come_back() {
        let l = Layout::new(13, 4096, 3).unwrap();
        let all: Vec<_> =
            pieces(&l, 0, 9 * 4096).iter().map(|e| (e.object, e.offset / 4096)).collect();
        assert_eq!(all, [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (3, 0), (4, 0), (5, 0)]);
        let all: Vec<_> =
            l.runs(0, 9 * 4096).map(|r| (r.object, r.offset / 4096, r.length / 4096)).collect();
        assert_eq!(all, [(0, 0, 2), (1, 0, 2), (2, 0, 2), (3, 0, 1), (4, 0, 1), (5, 0, 1)]);
        for size in 0..120u64 {
            let bytes = size * 1000;
            let most = l.runs(0, bytes).map(|r| r.object + 1).max().unwrap_or(0);
            assert_eq!(l.objects(bytes), most, "{bytes} bytes");
        }
        let before = l.pieces_before(1, 0, 8192, 4096 * 4 + 5);
        assert_eq!(
            before.iter().map(|p| (p.offset, p.length)).collect::<Vec<_>>(),
            [(0, 4096), (4096, 5)]
        );
    }

    fn layouts() -> impl Strategy<Value = Layout> {
        (12u8..=25, 0u32..17, prop_oneof![1u64..20, Just(1 << 20)])
            .prop_filter_map("no such layout", |(order, units, count)| {
                Layout::new(order, (1 << order) >> units, count)
            })
    }

    proptest! {
        #[test]
        fn a_run_is_the_pieces_of_an_object(l in layouts(), near in any::<bool>(), at in 0u64..1 << 40, length in 0u64..200_000) {
            let offset = if near { u64::MAX - at % (1 << 27) } else { at };
            let mut all: Vec<Extent> = l.runs(offset, length).flat_map(|r| l.image_pieces(r.object, r.offset, r.length)).collect();
            all.sort_by_key(|e| e.image);
            prop_assert_eq!(all, pieces(&l, offset, length));
            let mut objects: Vec<u64> = l.runs(offset, length).map(|r| r.object).collect();
            objects.sort_unstable();
            prop_assert!(objects.windows(2).all(|w| w[0] < w[1]), "one of each object");
        }

        #[test]
        fn no_object_is_out_of_reach(l in layouts(), object in any::<u64>(), offset in any::<u64>(), length in any::<u64>(), end in any::<u64>()) {
            let object = if end % 2 == 0 { object } else { u64::MAX - object % 100 };
            let before = l.pieces_before(object, offset % l.object_size(), length, end);
            prop_assert!(before.iter().all(|p| p.image.checked_add(p.length).is_some_and(|e| e <= end)));
            prop_assert!(before.len() as u64 <= l.object_size() / UNIT);
        }

        #[test]
        fn what_is_before_an_end_is_known_without_the_pieces(l in layouts(), object in 0u64..1 << 30, at in any::<u64>()) {
            // Some byte of the object's set, or one before or behind that.
            let set = l.object_size * l.count;
            let end = (object / l.count * set).saturating_add(at % (2 * set)).saturating_sub(set / 2);
            let pieces = l.pieces_before(object, 0, l.object_size(), end);
            let bytes = l.bytes_before(object, end);
            prop_assert_eq!(bytes, pieces.iter().map(|p| p.length).sum::<u64>());
            prop_assert_eq!(bytes, pieces.last().map_or(0, |p| p.offset + p.length));
            prop_assert_eq!(l.piece_count(bytes), pieces.len() as u64);
        }
    }
}
