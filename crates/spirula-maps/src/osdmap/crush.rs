//! The CRUSH map inside an OSD map, with the exact bytes it came as.

use bytes::Bytes;
use spirula_crush::CrushMap;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, to_vec};
use std::ops::Deref;
use std::sync::Arc;

/// A CRUSH map with its wire form. Cheap to clone; never changed in place: clone the
/// [`CrushMap`], change that, and make a new one.
#[derive(Clone, Debug)]
pub struct Crush {
    bytes: Bytes,
    map: Arc<CrushMap>,
}

impl Crush {
    /// Encodes a map.
    pub fn new(map: CrushMap) -> Self {
        Self { bytes: to_vec(&map).into(), map: Arc::new(map) }
    }

    /// From the wire form.
    ///
    /// # Errors
    /// [`DecodeError`] if it is no CRUSH map.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, DecodeError> {
        // Newer releases append knobs; the bytes are kept as they came.
        let map = Decoder::new(&bytes).get()?;
        Ok(Self { bytes, map: Arc::new(map) })
    }

    /// The wire form.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The map.
    pub fn map(&self) -> &Arc<CrushMap> {
        &self.map
    }
}

impl Default for Crush {
    /// A map with nothing in it.
    fn default() -> Self {
        Self::new(CrushMap::default())
    }
}

impl Deref for Crush {
    type Target = CrushMap;
    fn deref(&self) -> &CrushMap {
        &self.map
    }
}

impl PartialEq for Crush {
    fn eq(&self, o: &Self) -> bool {
        self.bytes == o.bytes
    }
}

impl Encode for Crush {
    fn encode(&self, out: &mut Encoder) {
        out.put(&self.bytes);
    }
}

impl Decode for Crush {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Self::from_bytes(d.get()?)
    }
}
