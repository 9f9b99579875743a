//! What clients write, and what an object should hold after it.
//!
//! Data identifies itself: it consists of cells of 16 bytes that say which operation wrote
//! them, to which object, and which of its cells this is. Constant or misplaced data shows.

use bytes::Bytes;
use spirula_encoding::Decoder;
use spirula_messages::ceph::op::{CopyFromArgs, OsdOp};
use spirula_messages::ceph::osd::OpResult;
use spirula_types::{ObjectLocator, SNAP_HEAD, errno};
use std::collections::BTreeMap;

/// Bytes of a cell.
pub const CELL: u64 = 16;
/// Name of the attribute that every write sets to its token.
const ATTR: &[u8] = b"last";
/// Keys in omap.
pub const KEYS: u64 = 3;
/// Operator and mode of cmpxattr.
const EQUAL: u8 = 1;
const AS_STRING: u8 = 1;

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
    /// Its user version.
    version: u64,
}

impl Object {
    /// The last who wrote it, and its user version.
    pub fn known(&self) -> (u64, u64) {
        (self.last, self.version)
    }

    /// Its user version.
    pub fn version(&self) -> u64 {
        self.version
    }
}

impl std::fmt::Debug for Object {
    /// Runs of cells by one writer, not each cell.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        runs(&self.cells, f)?;
        write!(f, ", last {:#x}, omap {:x?}, version {}", self.last, self.omap, self.version)
    }
}

fn runs(cells: &[Cell], f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
    let mut runs: Vec<(u64, u32, usize)> = Vec::new();
    for (token, n) in cells {
        match runs.last_mut() {
            Some((t, first, len))
                if t == token && (*token == 0 || *first as usize + *len == *n as usize) =>
            {
                *len += 1;
            }
            _ => runs.push((*token, *n, 1)),
        }
    }
    write!(f, "{} cells", cells.len())?;
    runs.iter().try_for_each(|(t, first, len)| write!(f, " {t:#x}[{first}..+{len}]"))
}

/// What a read saw; `None`: no object.
pub type Seen = Option<View>;

/// What a read saw of an object that was there.
#[derive(Clone, PartialEq, Eq)]
pub struct View {
    /// Cells from here on, and how many were asked for (0: all).
    from: u32,
    asked: u32,
    /// Cells, in those; all, the last writer, keys (where there are any), user version.
    size: Option<u64>,
    omap: Option<BTreeMap<u64, u64>>,
    cells: Vec<Cell>,
    last: u64,
    version: u64,
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "from {} of {} asked, size {:?}: ", self.from, self.asked, self.size)?;
        runs(&self.cells, f)?;
        write!(f, ", last {:#x}, omap {:x?}, version {}", self.last, self.omap, self.version)
    }
}

impl View {
    /// The last who wrote it, and its user version.
    pub fn known(&self) -> (u64, u64) {
        (self.last, self.version)
    }

    /// All of its data; `None` if the read asked for a part.
    pub fn whole(&self) -> Option<&Vec<Cell>> {
        (self.asked == 0).then_some(&self.cells)
    }

    fn is_of(&self, o: &Object) -> bool {
        let rest = o.cells.get(self.from as usize..).unwrap_or_default();
        let asked = if self.asked == 0 { rest.len() } else { rest.len().min(self.asked as usize) };
        rest.get(..asked) == Some(&self.cells[..])
            && self.size.is_none_or(|s| s == o.cells.len() as u64)
            && self.omap.as_ref().is_none_or(|m| *m == o.omap)
            && (self.last, self.version) == o.known()
    }
}

/// Can a read have seen this of that?
pub fn fits(is: &Content, seen: &Seen) -> bool {
    match (is, seen) {
        (None, None) => true,
        (Some(o), Some(view)) => view.is_of(o),
        _ => false,
    }
}

/// What must be so, or a change does nothing.
#[derive(Clone, Copy, Debug)]
pub enum Guard {
    /// Nothing.
    None,
    /// It was written last by this operation (cmpxattr).
    Same(u64),
    /// It has this user version (assert_version).
    Version(u64),
    /// It is not there (exclusive create).
    Fresh,
}

impl Guard {
    /// What a change is answered because of it; 0: it holds.
    fn verdict(self, before: &Content) -> i32 {
        let version = before.as_ref().map_or(0, |o| o.version);
        match (self, before) {
            (Self::Same(_), None) => -errno::ENOENT,
            (Self::Same(t), Some(o)) if o.last != t => -errno::ECANCELED,
            (Self::Version(v), _) if v < version => -errno::ERANGE,
            (Self::Version(v), _) if v > version => -errno::EOVERFLOW,
            (Self::Fresh, Some(_)) => -errno::EEXIST,
            _ => 0,
        }
    }

    fn op(self) -> Option<OsdOp> {
        match self {
            Self::None => None,
            Self::Same(token) => {
                Some(OsdOp::cmpxattr(ATTR, EQUAL, AS_STRING, &token.to_le_bytes()))
            }
            Self::Version(v) => Some(OsdOp::assert_ver(v)),
            Self::Fresh => Some(OsdOp::create(true)),
        }
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
    /// If this holds.
    pub guard: Guard,
    /// With what it was answered, and with which user version.
    pub result: i32,
    pub version: u64,
    /// The newest snapshot that who made it knew of; 0: none.
    pub context: u64,
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
    /// Makes holes of so many at this place; those at the end are cut off.
    Zero(u32, u32),
    /// Cuts or extends to so many.
    Truncate(u32),
    /// Removes the omap key of this number.
    Unset(u64),
    /// Removes all omap keys.
    Clear,
    /// Removes the object.
    Delete,
    /// Makes it a copy of this object of its pool.
    Copy(u32),
    /// Rolls it back to this snapshot.
    Back(u64),
}

impl Kind {
    /// Does it need an object that is there?
    pub fn needs_one(self) -> bool {
        matches!(self, Self::Delete | Self::Unset(_) | Self::Clear)
    }

    /// Does it need room?
    pub fn grows(self) -> bool {
        !matches!(self, Self::Delete)
    }
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
        let mut ops: Vec<OsdOp> = self.guard.op().into_iter().collect();
        match self.kind {
            Kind::Append(n) => ops.push(OsdOp::append(data(n))),
            Kind::Full(n) => ops.push(OsdOp::write_full(data(n))),
            Kind::Write(at, n) => ops.push(OsdOp::write(u64::from(at) * CELL, data(n))),
            Kind::Zero(at, n) => ops.push(OsdOp::zero(u64::from(at) * CELL, u64::from(n) * CELL)),
            Kind::Truncate(n) => {
                ops.push(OsdOp::create(false));
                ops.push(OsdOp::truncate(u64::from(n) * CELL));
            }
            Kind::Unset(key) => {
                ops.push(OsdOp::omap_rm_keys(&[Bytes::copy_from_slice(&key.to_le_bytes())]))
            }
            Kind::Clear => ops.push(OsdOp::omap_clear()),
            Kind::Delete => {
                ops.push(OsdOp::delete());
                return ops;
            }
            Kind::Copy(from) => return vec![copy_of(pool, from)],
            Kind::Back(snap) => return vec![OsdOp::rollback(snap)],
        }
        let value = Bytes::copy_from_slice(&self.token.to_le_bytes());
        ops.push(OsdOp::setxattr(ATTR, &value));
        if self.omap {
            let key = Bytes::copy_from_slice(&(self.token % KEYS).to_le_bytes());
            ops.push(OsdOp::omap_set_vals(&[(key, value)]));
        }
        ops
    }

    /// What is there after a rollback to what a snapshot shows.
    ///
    /// # Errors
    /// When it cannot have been answered as it was.
    pub fn back(&self, before: &Content, shown: Content) -> Result<Content, String> {
        if self.result != 0 {
            return Err(format!("a rollback is answered {}", self.result));
        }
        if let Some(o) = before.as_ref().filter(|o| self.version <= o.version) {
            return Err(format!("its user version {} follows {}", self.version, o.version));
        }
        Ok(shown.map(|o| Object { version: self.version, ..o }))
    }

    /// What is there after it, unless it is a rollback; `source` is what a copy with this user
    /// version copied.
    ///
    /// # Errors
    /// When it cannot have been answered as it was.
    pub fn apply(
        &self,
        before: &Content,
        source: impl FnOnce() -> Result<Content, String>,
    ) -> Result<Content, String> {
        if let Kind::Copy(_) = self.kind {
            return match (self.result, source()?) {
                (0, Some(o)) => Ok(Some(o)),
                (r, None) if r == -errno::ENOENT => Ok(before.clone()),
                (r, from) => Err(format!("a copy is answered {r}, of {from:?}")),
            };
        }
        let verdict = match self.guard.verdict(before) {
            0 if before.is_none() && self.kind.needs_one() => -errno::ENOENT,
            verdict => verdict,
        };
        if self.result != verdict {
            return Err(format!("answered {} instead of {verdict} on {before:?}", self.result));
        }
        if verdict != 0 {
            return Ok(before.clone());
        }
        let mut o = before.clone().unwrap_or_default();
        if self.version <= o.version {
            return Err(format!("its user version {} follows {}", self.version, o.version));
        }
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
            Kind::Zero(at, n) if (at + n) as usize >= o.cells.len() => {
                o.cells.truncate(at as usize)
            }
            Kind::Zero(at, n) => {
                o.cells.iter_mut().skip(at as usize).take(n as usize).for_each(|c| *c = (0, 0))
            }
            Kind::Truncate(n) => o.cells.resize(n as usize, (0, 0)),
            Kind::Unset(key) => drop(o.omap.remove(&key)),
            Kind::Clear => o.omap.clear(),
            Kind::Delete => return Ok(None),
            Kind::Copy(_) | Kind::Back(_) => {}
        }
        (o.last, o.version) = (self.token, self.version);
        if self.omap {
            o.omap.insert(self.token % KEYS, self.token);
        }
        Ok(Some(o))
    }
}

/// The operations that read an object: whole, or so many cells from a place on.
pub fn read_ops(part: Option<(u32, u32)>, omap: bool) -> Vec<OsdOp> {
    let (at, n) = part.unwrap_or_default();
    let mut ops =
        vec![OsdOp::read(u64::from(at) * CELL, u64::from(n) * CELL), OsdOp::getxattr(ATTR)];
    if part.is_some() {
        ops.push(OsdOp::stat());
    }
    if omap {
        ops.push(OsdOp::omap_get_vals(b"", 100, b""));
    }
    ops
}

/// The first of the objects that are made copies of each other. What they hold is not followed.
pub const COPIED: u32 = 1 << 20;

/// The first of the objects that are only ever made copies of the objects of their places, read and
/// deleted.
pub const CLONED: u32 = 1 << 19;

/// An object's name.
pub fn name(object: u32) -> Bytes {
    match (object.checked_sub(COPIED), object.checked_sub(CLONED)) {
        (Some(n), _) => format!("copied{n}").into(),
        (_, Some(n)) => format!("clone{n}").into(),
        _ => format!("object{object}").into(),
    }
}

/// The number of the object of this name, if what it holds is followed.
pub fn number_of(name: &[u8]) -> Option<u32> {
    let name = std::str::from_utf8(name).ok()?;
    let clone = || name.strip_prefix("clone")?.parse::<u32>().ok().map(|n| n + CLONED);
    name.strip_prefix("object").and_then(|n| n.parse().ok()).or_else(clone)
}

/// Whose cells an object holds.
pub fn origin(object: u32) -> u32 {
    if object < COPIED { object % CLONED } else { object }
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
        let (Some(token), Some(of), Some(i)) = cell else {
            return Err(format!("torn: {} bytes", bytes.len()));
        };
        let (token, whose) = (token?, of.try_into().map(u32::from_le_bytes).unwrap_or_default());
        if token == 0 && c.iter().any(|b| *b != 0) || token != 0 && whose != origin(object) {
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
pub fn seen(
    answers: &[OpResult],
    object: u32,
    part: Option<(u32, u32)>,
    version: u64,
) -> Result<View, String> {
    let data = |i: usize| answers.get(i).map(|r| r.op.indata.clone()).ok_or("an answer is missing");
    let (from, asked) = part.unwrap_or_default();
    let (cells, last) = (cells_of(&data(0)?, object)?, number(&data(1)?)?);
    let mut next = 2;
    let mut view = View { from, asked, size: None, omap: None, cells, last, version };
    if part.is_some() {
        let size = Decoder::new(&data(next)?).u64().map_err(|e| e.to_string())?;
        view.size = Some(size / CELL);
        next += 1;
    }
    if answers.len() > next {
        let pairs: BTreeMap<Bytes, Bytes> =
            Decoder::new(&data(next)?).get().map_err(|e| e.to_string())?;
        view.omap = Some(
            pairs
                .iter()
                .map(|(k, v)| Ok((number(k)?, number(v)?)))
                .collect::<Result<_, String>>()?,
        );
    }
    Ok(view)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(kind: Kind, guard: Guard, version: u64, result: i32) -> Change {
        Change { token: 100 + version, kind, omap: false, guard, result, version, context: 0 }
    }

    fn after(before: &Content, kind: Kind, guard: Guard, version: u64) -> Content {
        change(kind, guard, version, 0).apply(before, || Ok(None)).unwrap()
    }

    #[test]
    fn guards_decide_what_a_change_is_answered() {
        let there = after(&None, Kind::Append(3), Guard::Fresh, 5);
        let held = [Guard::None, Guard::Same(105), Guard::Version(5)];
        for guard in held {
            assert!(after(&there, Kind::Append(1), guard, 6).is_some());
        }
        for (guard, result) in [
            (Guard::Same(106), -errno::ECANCELED),
            (Guard::Version(4), -errno::ERANGE),
            (Guard::Version(6), -errno::EOVERFLOW),
            (Guard::Fresh, -errno::EEXIST),
        ] {
            let c = change(Kind::Append(1), guard, 0, result);
            assert_eq!(c.apply(&there, || Ok(None)), Ok(there.clone()), "{guard:?}");
            assert!(
                Change { result: 0, version: 6, ..c }.apply(&there, || Ok(None)).is_err(),
                "{guard:?}"
            );
        }
        for guard in held {
            assert!(
                change(Kind::Append(1), guard, 6, -errno::ECANCELED)
                    .apply(&there, || Ok(None))
                    .is_err()
            );
        }
        assert!(
            change(Kind::Append(1), Guard::None, 5, 0).apply(&there, || Ok(None)).is_err(),
            "versions grow"
        );
    }

    #[test]
    fn zero_and_removals_do_what_ceph_does() {
        let there = after(&None, Kind::Append(6), Guard::None, 5);
        let cells = |c: Content| c.map(|o| o.cells).unwrap_or_default();
        let hole = cells(after(&there, Kind::Zero(1, 2), Guard::None, 6));
        assert_eq!((hole.len(), hole[1], hole[2], hole[3]), (6, (0, 0), (0, 0), (105, 3)));
        assert_eq!(
            cells(after(&there, Kind::Zero(4, 2), Guard::None, 6)).len(),
            4,
            "the end is cut off"
        );
        assert_eq!(cells(after(&there, Kind::Zero(9, 2), Guard::None, 6)).len(), 6);
        assert_eq!(cells(after(&None, Kind::Zero(0, 2), Guard::None, 6)).len(), 0);
        for kind in [Kind::Unset(1), Kind::Clear, Kind::Delete] {
            let c = change(kind, Guard::None, 0, -errno::ENOENT);
            assert_eq!(c.apply(&None, || Ok(None)), Ok(None));
            assert!(Change { result: 0, version: 6, ..c }.apply(&None, || Ok(None)).is_err());
        }
    }

    #[test]
    fn a_read_sees_one_state_and_no_mixture() {
        let one = after(&None, Kind::Append(6), Guard::None, 5);
        let two = after(&one, Kind::Write(2, 2), Guard::None, 6);
        let part = |o: &Content, from: u32, n: u32| {
            let o = o.clone().unwrap();
            let cells = o.cells[from as usize..(from + n) as usize].to_vec();
            let (last, version) = o.known();
            Some(View { from, asked: n, size: Some(6), omap: None, cells, last, version })
        };
        assert!(fits(&one, &part(&one, 1, 3)) && fits(&two, &part(&two, 1, 3)));
        assert!(!fits(&two, &part(&one, 4, 2)), "its version is another");
        let mixed = part(&one, 1, 3).map(|v| View { last: 106, version: 6, ..v });
        assert!(!fits(&one, &mixed) && !fits(&two, &mixed) && !fits(&None, &mixed));
        assert!(fits(&None, &None) && !fits(&one, &None));
    }
}
