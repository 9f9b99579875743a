//! Pages: identity, checksums, and the entries of leaves and inner nodes.
//!
//! Nothing is decoded ahead: a node is its bytes, checked once when it is read, and
//! searched in place. Layout: `docs/formats/tree.md`.
//!
//! A node of several pages lies in adjoining ones where there are such; else apart: in
//! single pages anywhere, which a list page names. Its bytes are the same, and its address
//! is that of the list page. So any free pages hold any node.

use crate::error::Damage;
use crate::space::PAGE;
use spirula_encoding::crc::crc32c;
use std::cmp::Ordering;

/// Names a tree, so that another one's pages are not taken for its own.
pub type Uuid = [u8; 16];

const MAGIC: &[u8; 4] = b"SPT1";
/// Bytes before the content.
pub(crate) const HEADER: usize = 56;
/// Bytes at the end: the low half of the generation again.
pub(crate) const TRAILER: usize = 4;
/// Bytes of a page that are free for content.
pub(crate) const ROOM: usize = PAGE - HEADER - TRAILER;
/// Bytes of an encoded [`PageRef`].
pub(crate) const REF_BYTES: usize = 11;
/// Bytes before the key of a leaf's entry: key length, value length.
const LEAF_FIXED: usize = 6;
/// Bytes of an inner node's entry beside its key: key length, child.
const INNER_FIXED: usize = 2;
/// Set in a value's length: the value is a list of overflow runs.
const OVERFLOW: u32 = 1 << 31;
/// Nodes of up to this many pages have slots of two bytes.
const NARROW_PAGES: usize = 16;

pub(crate) const LEAF: u8 = 1;
pub(crate) const INNER: u8 = 2;
pub(crate) const VALUE: u8 = 3;
pub(crate) const INDEX: u8 = 4;
pub(crate) const MAP: u8 = 5;
pub(crate) const LIST: u8 = 6;

/// Pages of a node that lies apart, at most: a list page has room for so many.
pub(crate) const APART_MAX: usize = (ROOM - 4) / PIECE_BYTES;
/// Pages of a node that does not, at most: seven bits say how many.
pub(crate) const WHOLE_MAX: usize = 0x7f;
/// Bytes of a page number in a list page.
const PIECE_BYTES: usize = 6;
/// Set in a reference's length: the node lies apart.
const APART: u8 = 0x80;

pub(crate) fn u16_at(b: &[u8], at: usize) -> usize {
    b.get(at..at + 2)
        .and_then(|s| s.try_into().ok())
        .map_or(0, |s| usize::from(u16::from_le_bytes(s)))
}

pub(crate) fn u32_at(b: &[u8], at: usize) -> u32 {
    b.get(at..at + 4).and_then(|s| s.try_into().ok()).map_or(0, u32::from_le_bytes)
}

pub(crate) fn u64_at(b: &[u8], at: usize) -> u64 {
    b.get(at..at + 8).and_then(|s| s.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// A page as its parent knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRef {
    /// Address in pages of 4 KiB; below 2^48.
    pub page: u64,
    /// Length in pages of 4 KiB, at most 127; 0: there is none.
    pub units: u8,
    /// It is the list page of a node that lies apart.
    pub apart: bool,
    /// Its checksum.
    pub crc: u32,
}

impl PageRef {
    pub(crate) const NONE: Self = Self { page: 0, units: 0, apart: false, crc: 0 };

    pub(crate) fn is_none(self) -> bool {
        self.units == 0
    }

    /// Address, bytes.
    pub(crate) fn at(self) -> u64 {
        self.page * PAGE as u64
    }

    pub(crate) fn encode(self) -> [u8; REF_BYTES] {
        let [a, b, c, d, e, f, ..] = self.page.to_le_bytes();
        let [g, h, i, j] = self.crc.to_le_bytes();
        let units = self.units | if self.apart { APART } else { 0 };
        [a, b, c, d, e, f, units, g, h, i, j]
    }

    pub(crate) fn decode(b: &[u8]) -> Self {
        let Ok([a, b, c, d, e, f, units, g, h, i, j]) = <[u8; REF_BYTES]>::try_from(b) else {
            return Self::NONE;
        };
        let (page, crc) =
            (u64::from_le_bytes([a, b, c, d, e, f, 0, 0]), u32::from_le_bytes([g, h, i, j]));
        Self { page, units: units & !APART, apart: units & APART != 0, crc }
    }
}

/// A value as a leaf holds it: its bytes, or the list of runs that hold them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Val<'a> {
    pub bytes: &'a [u8],
    pub overflow: bool,
}

/// Length of an overflowing value and its runs.
pub(crate) fn overflow_runs(b: &[u8]) -> (usize, impl Iterator<Item = PageRef> + '_) {
    let runs = b.get(4..).unwrap_or_default();
    (u32_at(b, 0) as usize, runs.as_chunks::<REF_BYTES>().0.iter().map(|r| PageRef::decode(r)))
}

/// An entry to put into a node. Its key is `a` followed by `b`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item<'a> {
    pub a: &'a [u8],
    pub b: &'a [u8],
    pub val: Val<'a>,
}

impl Item<'_> {
    pub fn key_len(&self) -> usize {
        self.a.len() + self.b.len()
    }

    pub fn key(&self) -> Vec<u8> {
        [self.a, self.b].concat()
    }

    /// Bytes in a node without compression, its slot included.
    pub fn size(&self, leaf: bool) -> usize {
        2 + self.key_len() + self.val.bytes.len() + if leaf { LEAF_FIXED } else { INNER_FIXED }
    }

    /// Length of the common prefix of two keys.
    pub fn common(&self, other: &Self) -> usize {
        let n = self.a.len().min(other.a.len());
        let (ours, theirs) =
            (self.a.get(..n).unwrap_or_default(), other.a.get(..n).unwrap_or_default());
        if ours != theirs {
            return common(ours, theirs);
        }
        let mut ours = self.a.get(n..).unwrap_or_default().iter().chain(self.b);
        let mut theirs = other.a.get(n..).unwrap_or_default().iter().chain(other.b);
        let mut len = n;
        while let (Some(x), Some(y)) = (ours.next(), theirs.next()) {
            if x != y {
                break;
            }
            len += 1;
        }
        len
    }

    /// The key without its first `skip` bytes, in two parts.
    fn tail(&self, skip: usize) -> (&[u8], &[u8]) {
        match self.a.get(skip..) {
            Some(a) => (a, self.b),
            None => (&[], self.b.get(skip - self.a.len()..).unwrap_or_default()),
        }
    }
}

fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// Compares `key` with the key `a` followed by `b`.
pub(crate) fn compare(key: &[u8], a: &[u8], b: &[u8]) -> Ordering {
    match key.get(..a.len()) {
        Some(head) => match head.cmp(a) {
            Ordering::Equal => key.get(a.len()..).unwrap_or_default().cmp(b),
            order => order,
        },
        None => match key.cmp(a.get(..key.len()).unwrap_or_default()) {
            Ordering::Equal => Ordering::Less,
            order => order,
        },
    }
}

/// What a page says of itself.
#[derive(Clone, Copy)]
pub(crate) struct Identity {
    pub uuid: Uuid,
    pub page: u64,
    pub generation: u64,
}

/// A page in memory, checked.
#[derive(Debug)]
pub(crate) struct Node {
    buf: Vec<u8>,
    kind: u8,
    level: u8,
    count: usize,
    prefix: usize,
    wide: bool,
    crc: u32,
    /// Where it lies apart.
    apart: Option<Box<Apart>>,
}

/// Where a node that lies apart is.
#[derive(Debug)]
struct Apart {
    /// Its pages, in order.
    pieces: Vec<u64>,
    /// The list page.
    list: Vec<u8>,
}

/// Length of a node with these entries: prefix, bytes in all, whether its slots are wide.
fn measure(items: &[Item<'_>], leaf: bool) -> (usize, usize, bool) {
    let (Some(first), Some(last)) = (items.first(), items.last()) else {
        return (0, HEADER + TRAILER, false);
    };
    let prefix = first.common(last);
    let sum: usize = items.iter().map(|i| i.size(leaf)).sum();
    let narrow = HEADER + TRAILER + prefix + sum - prefix * items.len();
    if narrow <= NARROW_PAGES * PAGE {
        (prefix, narrow, false)
    } else {
        (prefix, narrow + 2 * items.len(), true)
    }
}

/// Pages of a node with these entries.
pub(crate) fn units(items: &[Item<'_>], leaf: bool) -> usize {
    measure(items, leaf).1.div_ceil(PAGE)
}

impl Node {
    fn new(kind: u8, level: u8, units: usize, count: usize, prefix: usize) -> Self {
        let wide = units > NARROW_PAGES;
        Self { buf: vec![0; units * PAGE], kind, level, count, prefix, wide, crc: 0, apart: None }
    }

    /// A leaf (level 0) or inner node of these entries, of [`units`] pages.
    pub fn build(level: u8, items: &[Item<'_>], id: Identity) -> Self {
        let leaf = level == 0;
        let (prefix, bytes, _) = measure(items, leaf);
        let mut n = Self::new(
            if leaf { LEAF } else { INNER },
            level,
            bytes.div_ceil(PAGE),
            items.len(),
            prefix,
        );
        let mut at = HEADER;
        if let Some(first) = items.first() {
            let key = first.key();
            at = n.put(at, key.get(..prefix).unwrap_or_default());
        }
        let slots = at;
        at += items.len() * n.slot_bytes();
        for (i, item) in items.iter().enumerate() {
            let offset = (at as u32).to_le_bytes();
            let width = n.slot_bytes();
            n.put(slots + i * width, offset.get(..width).unwrap_or_default());
            at = n.put(at, &((item.key_len() - prefix) as u16).to_le_bytes());
            if leaf {
                let flag = if item.val.overflow { OVERFLOW } else { 0 };
                at = n.put(at, &(item.val.bytes.len() as u32 | flag).to_le_bytes());
            }
            let (a, b) = item.tail(prefix);
            at = n.put(at, a);
            at = n.put(at, b);
            at = n.put(at, item.val.bytes);
        }
        n.seal(at, id);
        n
    }

    /// A page of another kind with `content`; `count` says how many things are in it.
    pub fn plain(kind: u8, content: &[u8], count: usize, id: Identity) -> Self {
        let mut n = Self::new(kind, 0, plain_units(content.len()), count, 0);
        let end = n.put(HEADER, content);
        n.seal(end, id);
        n
    }

    /// Lays the node, made for the address of its list page, apart into `pieces`, one page each.
    pub fn lay_apart(&mut self, pieces: Vec<u64>, id: Identity) {
        let mut content = self.crc.to_le_bytes().to_vec();
        pieces.iter().for_each(|p| content.extend_from_slice(&p.to_le_bytes()[..PIECE_BYTES]));
        let list = Self::plain(LIST, &content, pieces.len(), id);
        self.crc = list.crc;
        self.apart = Some(Box::new(Apart { pieces, list: list.buf }));
    }

    /// Of a list page: the checksum of the node it names, and where its pages are.
    ///
    /// # Errors
    /// [`Damage::Malformed`].
    pub fn list(&self) -> Result<(u32, Vec<u64>), Damage> {
        let content = self.content();
        let pieces: Vec<u64> = content
            .get(4..)
            .unwrap_or_default()
            .as_chunks::<PIECE_BYTES>()
            .0
            .iter()
            .map(|[a, b, c, d, e, f]| u64::from_le_bytes([*a, *b, *c, *d, *e, *f, 0, 0]))
            .collect();
        if self.kind != LIST || pieces.is_empty() || content.len() != 4 + pieces.len() * PIECE_BYTES
        {
            return Err(Damage::Malformed("list of pages"));
        }
        Ok((u32_at(content, 0), pieces))
    }

    /// Takes the bytes in the pages that the list page `list` names for the node they should be.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn assemble(buf: Vec<u8>, uuid: &Uuid, list: Self) -> Result<Self, Damage> {
        let (crc, pieces) = list.list()?;
        let whole = PageRef { page: list.page(), units: 0, apart: false, crc };
        let mut n = Self::open(buf, uuid, whole)?;
        if n.kind == LIST || n.buf.len() != pieces.len() * PAGE {
            return Err(Damage::Malformed("list of pages"));
        }
        n.crc = list.crc;
        n.apart = Some(Box::new(Apart { pieces, list: list.buf }));
        Ok(n)
    }

    /// The pages in which it lies apart; none if it does not.
    pub fn pieces(&self) -> &[u64] {
        self.apart.as_ref().map_or(&[], |a| &a.pieces)
    }

    /// Pages that it takes, its list page among them.
    pub fn pages(&self) -> usize {
        self.buf.len() / PAGE + usize::from(self.apart.is_some())
    }

    /// What is to be written for it: first pages and bytes.
    pub fn parts(&self) -> Vec<(u64, &[u8])> {
        match &self.apart {
            None => vec![(self.page(), &self.buf)],
            Some(a) => {
                let pieces = a.pieces.iter().copied().zip(self.buf.chunks(PAGE));
                pieces.chain([(self.page(), a.list.as_slice())]).collect()
            }
        }
    }

    fn put(&mut self, at: usize, bytes: &[u8]) -> usize {
        let end = at + bytes.len();
        // The length was measured before: running over it would write a wrong node.
        self.buf[at..end].copy_from_slice(bytes);
        end
    }

    fn seal(&mut self, used: usize, id: Identity) {
        let end = self.buf.len() - TRAILER;
        assert!(used <= end, "a node longer than measured");
        let units = (self.buf.len() / PAGE) as u16;
        self.put(4, MAGIC);
        self.put(8, &id.uuid);
        self.put(24, &(id.page * PAGE as u64).to_le_bytes());
        self.put(32, &id.generation.to_le_bytes());
        self.put(40, &[self.kind, self.level]);
        self.put(42, &units.to_le_bytes());
        self.put(44, &(self.count as u32).to_le_bytes());
        self.put(48, &(self.prefix as u32).to_le_bytes());
        self.put(52, &(used as u32).to_le_bytes());
        self.put(end, &(id.generation as u32).to_le_bytes());
        self.crc = crc32c(u32::MAX, &self.buf[4..]);
        self.put(0, &self.crc.to_le_bytes());
    }

    /// Takes a page as read, if it is the one that `expected` names.
    pub fn open(buf: Vec<u8>, uuid: &Uuid, expected: PageRef) -> Result<Self, Damage> {
        let crc = identify(&buf, uuid, expected)?;
        let mut n = Self::parse(buf)?;
        n.crc = crc;
        Ok(n)
    }

    /// Checks everything that later accesses rely on, but not identity and checksum.
    fn parse(buf: Vec<u8>) -> Result<Self, Damage> {
        let bad = |what| Err(Damage::Malformed(what));
        let units = u16_at(&buf, 42);
        if buf.is_empty() || units * PAGE != buf.len() {
            return bad("wrong length");
        }
        let (Some(&kind), Some(&level)) = (buf.get(40), buf.get(41)) else {
            return bad("too short");
        };
        let (count, prefix, used) =
            (u32_at(&buf, 44) as usize, u32_at(&buf, 48) as usize, u32_at(&buf, 52) as usize);
        if !(HEADER..=buf.len() - TRAILER).contains(&used)
            || count > buf.len()
            || prefix > used - HEADER
        {
            return bad("content does not fit");
        }
        let n = Self {
            wide: units > NARROW_PAGES,
            buf,
            kind,
            level,
            count,
            prefix,
            crc: 0,
            apart: None,
        };
        match kind {
            LEAF | INNER => n.check_entries(used)?,
            VALUE | INDEX | MAP | LIST if prefix == 0 && level == 0 => {}
            _ => return bad("unknown kind"),
        }
        Ok(n)
    }

    fn check_entries(&self, used: usize) -> Result<(), Damage> {
        let bad = |what| Err(Damage::Malformed(what));
        if (self.kind == LEAF) != (self.level == 0) || self.count == 0 {
            return bad("level or number of entries");
        }
        let mut at = HEADER + self.prefix + self.count * self.slot_bytes();
        let mut before: Option<&[u8]> = None;
        for i in 0..self.count {
            if self.offset(i) != at || at + 2 > used {
                return bad("slot");
            }
            let key = u16_at(&self.buf, at);
            let (fixed, value) = if self.kind == LEAF {
                (LEAF_FIXED, (u32_at(&self.buf, at + 2) & !OVERFLOW) as usize)
            } else {
                (INNER_FIXED, REF_BYTES)
            };
            let start = at + fixed;
            at = start + key + value;
            let Some(key) = self.buf.get(start..start + key).filter(|_| at <= used) else {
                return bad("entry");
            };
            if before.is_some_and(|b| b >= key) {
                return bad("keys out of order");
            }
            before = Some(key);
            let overflow = self.kind == LEAF && u32_at(&self.buf, start - 4) & OVERFLOW != 0;
            if overflow && (value <= 4 || !(value - 4).is_multiple_of(REF_BYTES)) {
                return bad("overflow runs");
            }
        }
        if at == used { Ok(()) } else { bad("unused bytes") }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.buf
    }

    pub fn kind(&self) -> u8 {
        self.kind
    }

    /// Height above the leaves.
    pub fn level(&self) -> u8 {
        self.level
    }

    pub fn count(&self) -> usize {
        self.count
    }

    pub fn crc(&self) -> u32 {
        self.crc
    }

    pub fn page(&self) -> u64 {
        u64_at(&self.buf, 24) / PAGE as u64
    }

    /// How a parent names this page.
    pub fn page_ref(&self) -> PageRef {
        let apart = self.apart.is_some();
        let units = if apart { 1 } else { self.buf.len() / PAGE };
        PageRef { page: self.page(), units: units as u8, apart, crc: self.crc }
    }

    /// Bytes between header and trailer that are used.
    pub fn content(&self) -> &[u8] {
        self.buf.get(HEADER..u32_at(&self.buf, 52) as usize).unwrap_or_default()
    }

    fn slot_bytes(&self) -> usize {
        if self.wide { 4 } else { 2 }
    }

    fn offset(&self, i: usize) -> usize {
        let slots = HEADER + self.prefix;
        if self.wide {
            u32_at(&self.buf, slots + 4 * i) as usize
        } else {
            u16_at(&self.buf, slots + 2 * i)
        }
    }

    /// What all keys begin with.
    pub fn prefix(&self) -> &[u8] {
        self.buf.get(HEADER..HEADER + self.prefix).unwrap_or_default()
    }

    /// Key `i` without the prefix.
    pub fn suffix(&self, i: usize) -> &[u8] {
        let at = self.offset(i);
        let start = at + if self.kind == LEAF { LEAF_FIXED } else { INNER_FIXED };
        self.buf.get(start..start + u16_at(&self.buf, at)).unwrap_or_default()
    }

    /// Key `i`.
    pub fn key(&self, i: usize) -> Vec<u8> {
        [self.prefix(), self.suffix(i)].concat()
    }

    /// Entry `i` of a leaf: key without prefix, and value.
    pub fn entry(&self, i: usize) -> (&[u8], Val<'_>) {
        let at = self.offset(i);
        let (key, value) = (u16_at(&self.buf, at), u32_at(&self.buf, at + 2));
        let start = at + LEAF_FIXED;
        let end = start + key;
        let bytes = self.buf.get(end..end + (value & !OVERFLOW) as usize).unwrap_or_default();
        (
            self.buf.get(start..end).unwrap_or_default(),
            Val { bytes, overflow: value & OVERFLOW != 0 },
        )
    }

    /// Child `i` of an inner node.
    pub fn child(&self, i: usize) -> PageRef {
        let at = self.offset(i);
        let start = at + INNER_FIXED + u16_at(&self.buf, at);
        PageRef::decode(self.buf.get(start..start + REF_BYTES).unwrap_or_default())
    }

    /// Where `key` is, or would be.
    pub fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let prefix = self.prefix();
        let Some(rest) = key.strip_prefix(prefix) else {
            return Err(if compare(key, prefix, &[]) == Ordering::Less { 0 } else { self.count });
        };
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.midpoint(high);
            match self.suffix(middle).cmp(rest) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// The child of an inner node whose range has `key`. The first one's has no lower end.
    pub fn child_for(&self, key: &[u8]) -> usize {
        match self.search(key) {
            Ok(i) => i,
            Err(i) => i.saturating_sub(1),
        }
    }
}

/// Pages of a page with `bytes` of plain content.
pub(crate) fn plain_units(bytes: usize) -> usize {
    (HEADER + bytes + TRAILER).div_ceil(PAGE)
}

/// Checks that `buf` is the page that `expected` names; gives its checksum.
fn identify(buf: &[u8], uuid: &Uuid, expected: PageRef) -> Result<u32, Damage> {
    let Some(body) = buf.get(4..) else { return Err(Damage::Malformed("too short")) };
    let crc = crc32c(u32::MAX, body);
    let units = u16_at(buf, 42);
    let marked = buf.get(4..8) == Some(MAGIC);
    let generation = u64_at(buf, 32);
    if crc != u32_at(buf, 0) {
        if !marked {
            return Err(if buf.iter().all(|b| *b == 0) { Damage::Blank } else { Damage::Foreign });
        }
        // A sound page of another length is an older one in this place.
        let other = buf.get(4..units * PAGE).filter(|_| units * PAGE < buf.len());
        if other.is_some_and(|b| crc32c(u32::MAX, b) == u32_at(buf, 0)) {
            return Err(Damage::Stale(generation));
        }
        let torn = u32_at(buf, buf.len().saturating_sub(TRAILER)) != generation as u32;
        return Err(if torn { Damage::Torn } else { Damage::Rotten });
    }
    if !marked {
        return Err(Damage::Foreign);
    }
    if buf.get(8..24) != Some(uuid) {
        return Err(Damage::OtherTree);
    }
    if u64_at(buf, 24) != expected.at() {
        return Err(Damage::Misdirected(u64_at(buf, 24)));
    }
    if crc != expected.crc {
        return Err(Damage::Stale(generation));
    }
    Ok(crc)
}

/// Checks `page` as a page of the tree `uuid` at `expected`, as every read does, and looks
/// at all its entries.
///
/// # Errors
/// What is wrong with it.
pub fn examine_page(page: &[u8], uuid: &Uuid, expected: PageRef) -> Result<(), Damage> {
    let identified = identify(page, uuid, expected);
    let n = Node::parse(page.to_vec())?;
    if matches!(n.kind, LEAF | INNER) {
        for i in 0..n.count {
            if n.search(&n.key(i)) != Ok(i) {
                return Err(Damage::Malformed("a key that is not found"));
            }
            if n.kind == LEAF {
                n.entry(i);
            } else {
                n.child(i);
            }
        }
    }
    n.content();
    identified.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: Uuid = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

    fn id(page: u64) -> Identity {
        Identity { uuid: UUID, page, generation: 0x1_0000_0002 }
    }

    fn item<'a>(key: &'a [u8], bytes: &'a [u8], overflow: bool) -> Item<'a> {
        Item { a: key, b: &[], val: Val { bytes, overflow } }
    }

    /// A page with these first bytes, zeros, and the generation at the end.
    fn golden(hex: &str) -> Vec<u8> {
        let hex: Vec<u8> = hex.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
        let byte = |h: &[u8]| u8::from_str_radix(std::str::from_utf8(h).unwrap(), 16).unwrap();
        let mut page: Vec<u8> = hex.chunks(2).map(byte).collect();
        page.resize(PAGE - 4, 0);
        page.extend_from_slice(&[2, 0, 0, 0]);
        page
    }

    // Made from docs/formats/tree.md by a program of its own.
    const LEAF_PAGE: &str =
        "aa37f7cc 53505431 000102030405060708090a0b0c0d0e0f 0070000000000000 0200000001000000
        01 00 0100 02000000 01000000 5c000000  6b 3d00 4500
        0100 01000000 61 76  0200 0f000080 6263 28230000 060504030201 03 ddccbbaa";
    const INNER_PAGE: &str =
        "8d9993f3 53505431 000102030405060708090a0b0c0d0e0f 0080000000000000 0200000001000000
        02 01 0100 02000000 00000000 57000000  3c00 4900
        0000 070000000000 01 01000000  0100 6d 080000000000 02 02000000";

    #[test]
    fn pages_are_as_documented_byte_for_byte() {
        let run = PageRef { page: 0x0102_0304_0506, units: 3, apart: false, crc: 0xaabb_ccdd };
        let list = [&9000u32.to_le_bytes()[..], &run.encode()].concat();
        let leaf = Node::build(0, &[item(b"ka", b"v", false), item(b"kbc", &list, true)], id(7));
        assert_eq!(leaf.bytes(), golden(LEAF_PAGE));
        let children = [(7, 1, 1), (8, 2, 2)].map(|(page, units, crc)| PageRef {
            page,
            units,
            apart: false,
            crc,
        });
        let [a, b] = children.map(PageRef::encode);
        let inner = Node::build(1, &[item(b"", &a, false), item(b"m", &b, false)], id(8));
        assert_eq!(inner.bytes(), golden(INNER_PAGE));

        let leaf = Node::open(golden(LEAF_PAGE), &UUID, leaf.page_ref()).unwrap();
        assert_eq!((leaf.key(0), leaf.key(1)), (b"ka".to_vec(), b"kbc".to_vec()));
        assert_eq!(leaf.entry(0), (&b"a"[..], Val { bytes: b"v", overflow: false }));
        let (len, runs) = overflow_runs(leaf.entry(1).1.bytes);
        assert_eq!((len, runs.collect::<Vec<_>>()), (9000, vec![run]));
        let inner = Node::open(golden(INNER_PAGE), &UUID, inner.page_ref()).unwrap();
        assert_eq!([inner.child(0), inner.child(1)], children);
        assert_eq!([&b""[..], b"lz", b"m", b"n"].map(|k| inner.child_for(k)), [0, 0, 1, 1]);
    }

    #[test]
    fn keys_are_found_where_they_are_and_where_they_would_be() {
        let keys: Vec<Vec<u8>> =
            (0..150u8).map(|i| [b"prefix".as_slice(), &[i / 3, i % 3 * 100]].concat()).collect();
        let items: Vec<_> = keys.iter().map(|k| item(k, b"value", false)).collect();
        let n = Node::build(0, &items, id(3));
        for (i, k) in keys.iter().enumerate() {
            assert_eq!(n.search(k), Ok(i));
            assert_eq!(n.search(&[k.as_slice(), &[0]].concat()), Err(i + 1));
        }
        for k in [&b""[..], b"pref", b"prefiw", b"z", b"prefix", b"prefixzz"] {
            assert_eq!(n.search(k), Err(keys.partition_point(|x| x.as_slice() < k)), "{k:?}");
        }
    }

    #[test]
    fn bytes_that_break_a_rule_are_malformed_and_never_a_panic() {
        let page = golden(LEAF_PAGE);
        let mut refused = 0;
        for at in 40..100 {
            for value in [0, 1, 0x7f, 0xff, page[at] ^ 1] {
                let mut bad = page.clone();
                bad[at] = value;
                let crc = crc32c(u32::MAX, &bad[4..]);
                bad[..4].copy_from_slice(&crc.to_le_bytes());
                refused += usize::from(
                    examine_page(&bad, &UUID, PageRef { page: 7, units: 1, apart: false, crc })
                        .is_err(),
                );
            }
        }
        assert!(refused > 100, "{refused}");
        for len in [0, 3, 4, 55, 60, PAGE - 1, PAGE + 1] {
            let mut cut = page.clone();
            cut.resize(len, 0);
            assert!(
                examine_page(&cut, &UUID, PageRef { page: 7, units: 1, apart: false, crc: 0 })
                    .is_err()
            );
        }
    }
}
