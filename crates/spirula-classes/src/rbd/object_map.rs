//! Object maps: for each data object of an image whether it exists, two bits each.
//!
//! The map is the data of an object: its size, the bits, and checksums of both, all in a form that
//! librbd copies as plain data. `object_map_update`, which comes with the first write to each
//! object, reads and writes only the blocks that it changes.
//!
//! | bytes | content |
//! |---|---|
//! | 18 | a blob of a versioned struct: number of objects, u64 |
//! | a quarter of that | the bits, the first object's in the highest bits of the first byte |
//! | 4 | length of what follows; 0 for no checksums |
//! | 4 | crc32c of the versioned struct |
//! | 4 | number of blocks of 4 KiB, or a part, of the bits |
//! | 4 each | crc32c of a block |

use super::Call;
use crate::{Stop, fail};
use bytes::Bytes;
use spirula_encoding::crc::crc32c;
use spirula_encoding::{DecodeError, Decoder, Encoder};
use spirula_types::errno;

/// The object exists.
const EXISTS: u8 = 1;
/// The object exists, and was not changed since the newest snapshot.
const EXISTS_CLEAN: u8 = 3;

/// Most objects that an image may have.
const MOST_OBJECTS: u64 = 256_000_000;
/// Bytes before the bits.
const HEADER: u64 = 18;
/// Bytes of bits that one checksum covers.
const BLOCK: u64 = 4096;
/// Objects in a byte.
const IN_BYTE: u64 = 4;

/// Bytes of bits for so many objects.
fn bytes_of(objects: u64) -> u64 {
    objects.div_ceil(IN_BYTE)
}

/// A map, or some of its blocks.
#[derive(Clone, Debug, Default)]
struct Map {
    objects: u64,
    bits: Vec<u8>,
}

/// The versioned struct before the bits.
fn header(objects: u64) -> Vec<u8> {
    let mut e = Encoder::new();
    e.versioned(1, 1, |e| e.u64(objects));
    e.into_vec()
}

/// Reads what is before the bits: the number of objects, and the bytes that are checksummed.
fn read_header<'a>(d: &mut Decoder<'a>) -> Result<(u64, &'a [u8]), DecodeError> {
    let bytes = d.blob()?;
    let objects = Decoder::new(bytes).versioned("object map", 1, |d, _| d.u64())?;
    Ok((objects, bytes))
}

/// What is wrong with a map is not told apart.
const BROKEN: DecodeError = DecodeError::Utf8;

impl Map {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let (objects, header) = read_header(d)?;
        let bytes = usize::try_from(bytes_of(objects)).map_err(|_| BROKEN)?;
        let bits = d.take(bytes)?.to_vec();
        let footer = d.blob()?;
        if footer.is_empty() {
            return Ok(Self { objects, bits });
        }
        let mut f = Decoder::new(footer);
        if f.u32()? != crc32c(0, header) {
            return Err(BROKEN);
        }
        f.u32()?;
        for block in bits.chunks(BLOCK as usize) {
            if f.u32()? != crc32c(0, block) {
                return Err(BROKEN);
            }
        }
        Ok(Self { objects, bits })
    }

    fn encode(&self, checksums: bool) -> Bytes {
        let mut e = Encoder::with_capacity(self.bits.len() + 64);
        let header = header(self.objects);
        e.blob(&header);
        e.raw(&self.bits);
        e.sized(|e| {
            if checksums {
                e.u32(crc32c(0, &header));
                e.list(self.bits.chunks(BLOCK as usize), |e, block| e.u32(crc32c(0, block)));
            }
        });
        e.into_bytes()
    }

    fn get(&self, object: u64) -> u8 {
        let byte = self.bits.get((object / IN_BYTE) as usize).copied().unwrap_or_default();
        byte >> shift(object) & 3
    }

    fn set(&mut self, object: u64, state: u8) {
        if let Some(byte) = self.bits.get_mut((object / IN_BYTE) as usize) {
            *byte = *byte & !(3 << shift(object)) | (state & 3) << shift(object);
        }
    }

    /// Changes the number of objects; new ones get a state.
    fn resize(&mut self, objects: u64, state: u8) {
        let old = std::mem::replace(&mut self.objects, objects);
        let pattern = (state & 3) * 0b0101_0101;
        self.bits.resize(bytes_of(objects) as usize, pattern);
        (old..objects.min(old.next_multiple_of(IN_BYTE))).for_each(|i| self.set(i, state));
        // Nothing is behind the last object in a new byte.
        if bytes_of(objects) > bytes_of(old) {
            (objects..objects.next_multiple_of(IN_BYTE)).for_each(|i| self.set(i, 0));
        }
    }
}

fn shift(object: u64) -> u64 {
    (IN_BYTE - 1 - object % IN_BYTE) * 2
}

/// The stored map; ENOENT if there is none, EINVAL if it cannot be read.
fn load(call: &mut Call<'_>) -> Result<Map, Stop> {
    let size = call.object.stat()?.size;
    if size == 0 {
        return fail(errno::ENOENT);
    }
    let data = call.object.read(0, size)?;
    Ok(Map::decode(&mut Decoder::new(&data))?)
}

fn store(call: &mut Call<'_>, map: &Map) -> Result<i32, Stop> {
    call.object.write_full(map.encode(true))?;
    Ok(0)
}

pub(super) fn object_map_load(call: &mut Call<'_>) -> Result<i32, Stop> {
    let map = load(call)?;
    call.output.raw(&map.encode(false));
    Ok(0)
}

pub(super) fn object_map_save(call: &mut Call<'_>) -> Result<i32, Stop> {
    let map = call.args(Map::decode)?;
    store(call, &map)
}

pub(super) fn object_map_resize(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (objects, state) = call.args(|d| Ok((d.u64()?, d.u8()?)))?;
    if objects > MOST_OBJECTS {
        return fail(errno::EINVAL);
    }
    let mut map = match load(call) {
        Err(Stop::Errno(errno::ENOENT)) => Map::default(),
        other => other?,
    };
    // Objects that go must be gone.
    if (objects..map.objects).any(|i| map.get(i) != state) {
        return fail(errno::ESTALE);
    }
    map.resize(objects, state);
    store(call, &map)
}

pub(super) fn object_map_update(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (start, end, new, current) = call.args(|d| {
        Ok((d.u64()?, d.u64()?, d.u8()?, if d.bool()? { Some(d.u8()?) } else { None }))
    })?;
    call.object.stat()?;
    let begin = call.object.read(0, HEADER)?;
    let (objects, _) = read_header(&mut Decoder::new(&begin))?;
    if start >= end || end > objects {
        return fail(errno::ERANGE);
    }
    // The blocks that hold these objects, and their checksums behind all bits.
    let first = start / IN_BYTE / BLOCK;
    let last = (end - 1) / IN_BYTE / BLOCK;
    let at = first * BLOCK;
    let length = bytes_of(objects).min((last + 1) * BLOCK) - at;
    let footer = HEADER + bytes_of(objects) + 12 + 4 * first;
    let crcs = call.object.read(footer, 4 * (last - first + 1))?;
    let bits = call.object.read(HEADER + at, length)?;
    if bits.len() as u64 != length {
        return fail(errno::EINVAL);
    }
    let mut stored = Decoder::new(&crcs);
    for block in bits.chunks(BLOCK as usize) {
        if stored.u32()? != crc32c(0, block) {
            return fail(errno::EINVAL);
        }
    }
    let mut part = Map { objects, bits: bits.to_vec() };
    let base = at * IN_BYTE;
    let mut changed = false;
    for i in start - base..end - base {
        let state = part.get(i);
        let meant = current.is_none_or(|c| c == state || c == EXISTS && state == EXISTS_CLEAN);
        if meant && state != new {
            part.set(i, new);
            changed = true;
        }
    }
    if changed {
        let mut e = Encoder::new();
        part.bits.chunks(BLOCK as usize).for_each(|block| e.u32(crc32c(0, block)));
        call.object.write(HEADER + at, part.bits.into())?;
        call.object.write(footer, e.into_bytes())?;
    }
    Ok(0)
}

pub(super) fn object_map_snap_add(call: &mut Call<'_>) -> Result<i32, Stop> {
    let mut map = load(call)?;
    let mut changed = false;
    for i in 0..map.objects {
        if map.get(i) == EXISTS {
            map.set(i, EXISTS_CLEAN);
            changed = true;
        }
    }
    if changed { store(call, &map) } else { Ok(0) }
}

pub(super) fn object_map_snap_remove(call: &mut Call<'_>) -> Result<i32, Stop> {
    let removed = call.args(Map::decode)?;
    let mut map = load(call)?;
    let mut changed = false;
    for i in 0..map.objects {
        if map.get(i) == EXISTS_CLEAN && (i >= removed.objects || removed.get(i) == EXISTS) {
            map.set(i, EXISTS);
            changed = true;
        }
    }
    if changed { store(call, &map) } else { Ok(0) }
}
