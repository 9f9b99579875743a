//! Which objects of an image exist: two bits each, kept in an object beside the header by whoever
//! holds the lock.
//!
//! What the map says of an object must be true *before* the object changes: a writer notes that an
//! object exists and then writes, so that after a crash at any moment the map says at worst that
//! something exists which does not. An object that is deleted is noted as *pending* first and as
//! missing afterwards.

use bytes::Bytes;
use spirula_encoding::{DecodeError, Decoder, Encoder};
use spirula_messages::ceph::OsdOp;

/// What is known of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// It does not exist.
    Missing = 0,
    /// It may exist.
    Exists = 1,
    /// It is being deleted.
    Pending = 2,
    /// It may exist, and has not changed since the newest snapshot.
    Clean = 3,
}

/// The map of an image, or of one of its snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectMap {
    objects: u64,
    bits: Vec<u8>,
}

impl ObjectMap {
    /// The object that holds the map of the image with this id, or of its snapshot.
    pub fn name(id: &str, snap: Option<u64>) -> Bytes {
        match snap {
            None => format!("rbd_object_map.{id}").into(),
            Some(snap) => format!("rbd_object_map.{id}.{snap:016x}").into(),
        }
    }

    /// Reads what `object_map_load` answers.
    ///
    /// # Errors
    /// [`DecodeError`] for anything else.
    pub fn read(answer: &[u8]) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(answer);
        let objects = Decoder::new(d.blob()?).versioned("object map", 1, |d, _| d.u64())?;
        let need = usize::try_from(objects.div_ceil(4)).unwrap_or(usize::MAX);
        let bits = d.take(need)?.to_vec();
        // Checksums, which the call leaves out.
        d.blob()?;
        Ok(Self { objects, bits })
    }

    /// For how many objects it is.
    pub fn objects(&self) -> u64 {
        self.objects
    }

    /// What is known of an object; of one beyond the map nothing.
    pub fn get(&self, object: u64) -> State {
        let byte = usize::try_from(object / 4).ok().and_then(|at| self.bits.get(at));
        match byte.map(|b| b >> shift(object) & 3) {
            Some(0) => State::Missing,
            Some(2) => State::Pending,
            Some(3) => State::Clean,
            _ => State::Exists,
        }
    }

    /// Notes it here.
    pub fn set(&mut self, object: u64, state: State) {
        if let Some(byte) = usize::try_from(object / 4).ok().and_then(|at| self.bits.get_mut(at)) {
            *byte = *byte & !(3 << shift(object)) | (state as u8) << shift(object);
        }
    }

    /// The call that reads it.
    pub fn load() -> OsdOp {
        OsdOp::call("rbd", "object_map_load", &[])
    }

    /// The call that notes it there, if `from` was there (or nothing was asked for).
    pub fn update(object: u64, state: State, from: Option<State>) -> OsdOp {
        let mut e = Encoder::new();
        e.u64(object);
        e.u64(object + 1);
        e.u8(state as u8);
        e.bool(from.is_some());
        if let Some(from) = from {
            e.u8(from as u8);
        }
        OsdOp::call("rbd", "object_map_update", e.as_slice())
    }
}

fn shift(object: u64) -> u64 {
    (3 - object % 4) * 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(objects: u64, bits: &[u8]) -> Result<ObjectMap, DecodeError> {
        let mut e = Encoder::new();
        e.sized(|e| e.versioned(1, 1, |e| e.u64(objects)));
        e.raw(bits);
        e.u32(0);
        ObjectMap::read(e.as_slice())
    }

    #[test]
    fn the_first_object_has_the_highest_bits() {
        let mut m = map(6, &[0b0001_1011, 0b0100_0000]).unwrap();
        let states: Vec<_> = (0..6).map(|o| m.get(o)).collect();
        use State::*;
        assert_eq!(states, [Missing, Exists, Pending, Clean, Exists, Missing]);
        assert_eq!(m.get(100), Exists, "nothing is known");
        m.set(0, Exists);
        m.set(2, Missing);
        assert_eq!((m.get(0), m.get(1), m.get(2), m.get(3)), (Exists, Exists, Missing, Clean));
        assert!(map(1 << 60, &[0]).is_err() && map(5, &[0]).is_err());
        assert_eq!(ObjectMap::name("ab", Some(10)), "rbd_object_map.ab.000000000000000a");
    }
}
