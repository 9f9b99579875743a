//! What OSDs count of block images for the manager, while somebody asks it (`rbd perf image
//! iotop`).

use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};
use spirula_types::PoolId;
use std::ops::AddAssign;

/// A block image, as the names of its objects tell of it (`rbd_data.ID.…`, `rbd_data.POOL.ID.…`).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImageKey {
    /// The pool that its header is in; its data may be in another one.
    pub pool: PoolId,
    /// Its namespace, empty for the usual one.
    pub namespace: String,
    /// Its id, which a rename does not change.
    pub id: String,
}

/// What was asked of an image, and how long it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageLoad {
    /// Requests that may write.
    pub writes: u64,
    /// All others.
    pub reads: u64,
    /// Payload bytes received with writes.
    pub write_bytes: u64,
    /// Payload bytes sent with reads.
    pub read_bytes: u64,
    /// Of all writes together, from a request's arrival to its answer, nanoseconds.
    pub write_ns: u64,
    /// The same of reads.
    pub read_ns: u64,
}

impl AddAssign for ImageLoad {
    fn add_assign(&mut self, o: Self) {
        let add = |a: &mut u64, b: u64| *a = a.saturating_add(b);
        add(&mut self.writes, o.writes);
        add(&mut self.reads, o.reads);
        add(&mut self.write_bytes, o.write_bytes);
        add(&mut self.read_bytes, o.read_bytes);
        add(&mut self.write_ns, o.write_ns);
        add(&mut self.read_ns, o.read_ns);
    }
}

/// What one OSD counted since it reported last; nothing while nobody asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageLoads {
    /// For how long it counted, milliseconds; 0 if it did not.
    pub over_ms: u64,
    /// The images that were used meanwhile.
    pub loads: Vec<(ImageKey, ImageLoad)>,
}

impl Encode for ImageLoads {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u64(self.over_ms);
            o.u32(self.loads.len() as u32);
            for (k, l) in &self.loads {
                o.i64(k.pool);
                o.str(&k.namespace);
                o.str(&k.id);
                for n in [l.writes, l.reads, l.write_bytes, l.read_bytes, l.write_ns, l.read_ns] {
                    o.u64(n);
                }
            }
        });
    }
}

fn load(d: &mut Decoder<'_>) -> Result<(ImageKey, ImageLoad), DecodeError> {
    let key = ImageKey { pool: d.i64()?, namespace: d.get()?, id: d.get()? };
    let (writes, reads) = (d.u64()?, d.u64()?);
    let (write_bytes, read_bytes) = (d.u64()?, d.u64()?);
    let (write_ns, read_ns) = (d.u64()?, d.u64()?);
    Ok((key, ImageLoad { writes, reads, write_bytes, read_bytes, write_ns, read_ns }))
}

impl Decode for ImageLoads {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("ImageLoads", 1, |d, _| {
            let (over_ms, n) = (d.u64()?, d.u32()?);
            // The count may lie; what is there is read until it ends.
            let mut loads = Vec::new();
            for _ in 0..n {
                loads.push(load(d)?);
            }
            Ok(Self { over_ms, loads })
        })
    }
}
