//! What clients write, and what an object should hold after it.
//!
//! Data identifies itself: it consists of cells of 16 bytes that say which operation wrote
//! them, to which object, and which of its cells this is. Constant or misplaced data shows.

use bytes::Bytes;
use spirula_encoding::Decoder;
use spirula_messages::ceph::op::{CopyFromArgs, OsdOp};
use spirula_messages::ceph::osd::OpResult;
use spirula_types::{ObjectLocator, SNAP_HEAD};
use std::collections::BTreeMap;

/// Bytes of a cell.
pub const CELL: u64 = 16;
/// Name of the attribute that every write sets to its token.
const ATTR: &[u8] = b"last";
/// Keys in omap.
const KEYS: u64 = 3;

/// Who wrote a cell (0: nobody, a hole), and which of its cells it is.
pub type Cell = (u64, u32);

/// An object's content; `None`: there is no object.
pub type Content = Option<Object>;

/// An object that is there.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Object {
    cells: Vec<Cell>,
    last: u64,
    omap: BTreeMap<u64, u64>,
}

impl Object {
    /// Its data.
    pub fn cells(&self) -> &Vec<Cell> {
        &self.cells
    }
}

impl std::fmt::Debug for Object {
    /// Runs of cells by one writer, not each cell.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut runs: Vec<(u64, u32, usize)> = Vec::new();
        for (token, n) in &self.cells {
            match runs.last_mut() {
                Some((t, first, len)) if t == token && (*token == 0 || *first as usize + *len == *n as usize) => {
                    *len += 1;
                }
                _ => runs.push((*token, *n, 1)),
            }
        }
        write!(f, "{} cells", self.cells.len())?;
        runs.iter().try_for_each(|(t, first, len)| write!(f, " {t:#x}[{first}..+{len}]"))?;
        write!(f, ", last {:#x}, omap {:x?}", self.last, self.omap)
    }
}

/// A change.
#[derive(Clone, Debug)]
pub struct Change {
    /// Names the operation, and is not 0.
    pub token: u64,
    /// What it does.
    pub kind: Kind,
    /// It sets an omap key, too.
    pub omap: bool,
    /// With what it was answered.
    pub result: i32,
}

/// Kinds of change. Numbers are cells.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Adds so many.
    Append(u32),
    /// Replaces everything by so many.
    Full(u32),
    /// Writes so many at this place.
    Write(u32, u32),
    /// Cuts or extends to so many.
    Truncate(u32),
    /// Removes the object.
    Delete,
    /// Makes it a copy of this object of its pool.
    Copy(u32),
}

fn cells(token: u64, object: u32, n: u32) -> Bytes {
    let mut out = Vec::with_capacity(n as usize * CELL as usize);
    for i in 0..n {
        out.extend_from_slice(&token.to_le_bytes());
        out.extend_from_slice(&object.to_le_bytes());
        out.extend_from_slice(&i.to_le_bytes());
    }
    out.into()
}

impl Change {
    /// As operations on object number `object` of this pool.
    pub fn ops(&self, pool: i64, object: u32) -> Vec<OsdOp> {
        let data = |n| cells(self.token, object, n);
        let mut ops = Vec::new();
        match self.kind {
            Kind::Append(n) => ops.push(OsdOp::append(data(n))),
            Kind::Full(n) => ops.push(OsdOp::write_full(data(n))),
            Kind::Write(at, n) => ops.push(OsdOp::write(u64::from(at) * CELL, data(n))),
            Kind::Truncate(n) => {
                ops.push(OsdOp::create(false));
                ops.push(OsdOp::truncate(u64::from(n) * CELL));
            }
            Kind::Delete => return vec![OsdOp::delete()],
            Kind::Copy(from) => return vec![copy_of(pool, from)],
        }
        let value = Bytes::copy_from_slice(&self.token.to_le_bytes());
        ops.push(OsdOp::setxattr(ATTR, &value));
        if self.omap {
            let key = Bytes::copy_from_slice(&(self.token % KEYS).to_le_bytes());
            ops.push(OsdOp::omap_set_vals(&[(key, value)]));
        }
        ops
    }

    /// What is there after it.
    ///
    /// # Errors
    /// When it cannot have been answered as it was.
    pub fn apply(&self, before: &Content) -> Result<Content, String> {
        if let Kind::Delete = self.kind {
            return match (before, self.result) {
                (Some(_), 0) | (None, -2) => Ok(None),
                (o, r) => Err(format!("answered {r} on {o:?}")),
            };
        }
        if self.result != 0 {
            return Err(format!("answered {}", self.result));
        }
        let mut o = before.clone().unwrap_or_default();
        match self.kind {
            Kind::Append(n) => o.cells.extend((0..n).map(|i| (self.token, i))),
            Kind::Full(n) => o.cells = (0..n).map(|i| (self.token, i)).collect(),
            Kind::Write(at, n) => {
                let end = (at + n) as usize;
                if o.cells.len() < end {
                    o.cells.resize(end, (0, 0));
                }
                for (c, i) in o.cells.iter_mut().skip(at as usize).zip(0..n) {
                    *c = (self.token, i);
                }
            }
            Kind::Truncate(n) => o.cells.resize(n as usize, (0, 0)),
            Kind::Delete | Kind::Copy(_) => {}
        }
        o.last = self.token;
        if self.omap {
            o.omap.insert(self.token % KEYS, self.token);
        }
        Ok(Some(o))
    }
}

/// The operations that read an object whole.
pub fn read_ops(omap: bool) -> Vec<OsdOp> {
    let mut ops = vec![OsdOp::read(0, 0), OsdOp::getxattr(ATTR)];
    if omap {
        ops.push(OsdOp::omap_get_vals(b"", 100, b""));
    }
    ops
}

/// The first of the objects that are made copies of each other. What they hold is not followed.
pub const COPIED: u32 = 1 << 20;

/// An object's name.
pub fn name(object: u32) -> Bytes {
    match object.checked_sub(COPIED) {
        Some(n) => format!("copied{n}").into(),
        None => format!("object{object}").into(),
    }
}

/// Where a pool's objects are, by their names.
pub fn locator(pool: i64) -> ObjectLocator {
    ObjectLocator { pool, key: Bytes::new(), namespace: Bytes::new(), hash: -1 }
}

fn copy_of(pool: i64, object: u32) -> OsdOp {
    let args = CopyFromArgs { src_snap: SNAP_HEAD, src_version: 0, flags: 0, src_fadvise: 0 };
    OsdOp::copy_from(args, &name(object), &locator(pool))
}

fn number(b: &[u8]) -> Result<u64, String> {
    let b: [u8; 8] = b.try_into().map_err(|_| format!("{b:?} is no number"))?;
    Ok(u64::from_le_bytes(b))
}

/// The cells of object number `object`.
///
/// # Errors
/// When nobody can have written that.
pub fn cells_of(bytes: &[u8], object: u32) -> Result<Vec<Cell>, String> {
    let mut cells = Vec::with_capacity(bytes.len() / CELL as usize);
    for c in bytes.chunks(CELL as usize) {
        let cell = (c.get(..8).map(number), c.get(8..12), c.get(12..16));
        let (Some(token), Some(of), Some(i)) = cell else { return Err(format!("torn: {} bytes", bytes.len())) };
        let (token, whose) = (token?, of.try_into().map(u32::from_le_bytes).unwrap_or_default());
        if token == 0 && c.iter().any(|b| *b != 0) || token != 0 && whose != object {
            return Err(format!("a cell of object {whose}, token {token:#x}"));
        }
        cells.push((token, i.try_into().map(u32::from_le_bytes).unwrap_or_default()));
    }
    Ok(cells)
}

/// What the answers to [`read_ops`] say of object number `object`.
///
/// # Errors
/// When nobody can have written that.
pub fn seen(answers: &[OpResult], object: u32) -> Result<Object, String> {
    let data = |i: usize| answers.get(i).map(|r| r.op.indata.clone()).ok_or("an answer is missing");
    let mut o = Object { cells: cells_of(&data(0)?, object)?, ..Object::default() };
    o.last = number(&data(1)?)?;
    if answers.len() > 2 {
        let pairs: BTreeMap<Bytes, Bytes> = Decoder::new(&data(2)?).get().map_err(|e| e.to_string())?;
        for (k, v) in pairs {
            o.omap.insert(number(&k)?, number(&v)?);
        }
    }
    Ok(o)
}
