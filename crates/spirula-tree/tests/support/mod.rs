//! A space in memory that records what is written, runs out, and fails on demand.

#![allow(dead_code, reason = "each test uses a part")]

use spirula_tree::{Options, PAGE, PageSpace, Root, Snapshot, Tree};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

pub const CHUNK: usize = 64 * PAGE;
/// Pages before the first that a tree may have.
const FIRST: usize = CHUNK / PAGE;
/// Of a space in pieces, how many pages from the first on are whole.
const WHOLE: usize = 8 * CHUNK / PAGE;
pub const OPTIONS: Options =
    Options { uuid: *b"tree under test.", chunk: CHUNK as u32, cache: 256 << 10 };

pub type Model = BTreeMap<Vec<u8>, Vec<u8>>;
pub type Batch = Vec<(Vec<u8>, Option<Vec<u8>>)>;

pub enum Op {
    Write { at: usize, bytes: Vec<u8> },
    Flush,
    Publish(Root),
}

#[derive(Default)]
struct State {
    data: Vec<u8>,
    /// By page.
    taken: Vec<bool>,
    /// Of every three pages one or two are somebody else's, but at the beginning.
    pieces: bool,
    /// Every second page is somebody else's.
    dust: bool,
    log: Option<Vec<Op>>,
    /// I/Os until one fails.
    fuse: Option<u64>,
    ios: u64,
}

pub struct Memory {
    state: Mutex<State>,
}

impl Memory {
    pub fn new(chunks: usize) -> Arc<Self> {
        Self::of(vec![0xa5; (FIRST + chunks * CHUNK / PAGE) * PAGE])
    }

    /// As [`Memory::new`], with little that adjoins.
    pub fn in_pieces(chunks: usize) -> Arc<Self> {
        let space = Self::new(chunks);
        space.state.lock().unwrap().pieces = true;
        space
    }

    /// As [`Memory::new`], without two pages that adjoin.
    pub fn in_dust(chunks: usize) -> Arc<Self> {
        let space = Self::in_pieces(chunks);
        space.state.lock().unwrap().dust = true;
        space
    }

    /// A device with these bytes, of which a tree has some.
    pub fn of(data: Vec<u8>) -> Arc<Self> {
        let taken = vec![false; data.len() / PAGE];
        Arc::new(Self { state: Mutex::new(State { data, taken, ..State::default() }) })
    }

    /// Opens a tree and gives it its pages.
    pub fn open(self: &Arc<Self>, root: &Root, cache: usize) -> spirula_tree::Result<Tree> {
        let tree = Tree::open(self.clone(), root.clone(), &Options { cache, ..OPTIONS })?;
        let mut s = self.state.lock().unwrap();
        s.taken.fill(false);
        for (at, bytes) in tree.extents() {
            s.taken[at as usize / PAGE..(at + bytes) as usize / PAGE].fill(true);
        }
        Ok(tree)
    }

    pub fn image(&self) -> Vec<u8> {
        self.state.lock().unwrap().data.clone()
    }

    pub fn edit(&self, f: impl FnOnce(&mut [u8])) {
        f(&mut self.state.lock().unwrap().data);
    }

    pub fn record(&self) {
        self.state.lock().unwrap().log = Some(Vec::new());
    }

    pub fn recorded(&self) -> Vec<Op> {
        self.state.lock().unwrap().log.take().unwrap()
    }

    pub fn published(&self, root: &Root) -> io::Result<()> {
        self.state.lock().unwrap().io(|s| {
            if let Some(log) = &mut s.log {
                log.push(Op::Publish(root.clone()));
            }
        })
    }

    pub fn fail_in(&self, ios: Option<u64>) {
        self.state.lock().unwrap().fuse = ios;
    }

    pub fn ios(&self) -> u64 {
        self.state.lock().unwrap().ios
    }

    /// As [`Tree::extents`].
    pub fn extents(&self) -> Vec<(u64, u64)> {
        let s = self.state.lock().unwrap();
        let pages: Vec<usize> = (0..s.taken.len()).filter(|p| s.taken[*p]).collect();
        let runs = pages.chunk_by(|a, b| a + 1 == *b);
        runs.map(|r| ((r[0] * PAGE) as u64, (r.len() * PAGE) as u64)).collect()
    }

    /// Pages that nobody has.
    pub fn free_pages(&self) -> usize {
        let s = self.state.lock().unwrap();
        (0..s.taken.len()).filter(|p| s.is_free(*p)).count()
    }

    pub fn add_chunks(&self, n: usize) {
        let mut s = self.state.lock().unwrap();
        let more = s.taken.len() + n * CHUNK / PAGE;
        s.taken.resize(more, false);
        s.data.resize(more * PAGE, 0xa5);
    }
}

impl State {
    fn io<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> io::Result<T> {
        self.ios += 1;
        match &mut self.fuse {
            Some(0) => return Err(io::Error::other("injected")),
            Some(n) => *n -= 1,
            None => {}
        }
        Ok(f(self))
    }

    fn is_free(&self, page: usize) -> bool {
        let others = if self.dust {
            page.is_multiple_of(2)
        } else {
            self.pieces && page >= FIRST + WHOLE && (page * 7 / 5 + page / 64).is_multiple_of(2)
        };
        page >= FIRST && !others && self.taken.get(page) == Some(&false)
    }

    /// The first `n` free pages that adjoin within a window.
    fn run(&self, n: usize) -> Option<usize> {
        if self.dust && n > 1 {
            return None;
        }
        let window = CHUNK / PAGE;
        (FIRST..self.taken.len()).find(|p| {
            p / window == (p + n - 1) / window && (*p..p + n).all(|page| self.is_free(page))
        })
    }
}

impl PageSpace for Memory {
    fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        let at = at as usize;
        self.state.lock().unwrap().io(|s| match s.data.get(at..at + buf.len()) {
            Some(from) => {
                buf.copy_from_slice(from);
                Ok(())
            }
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        })?
    }

    fn write(&self, at: u64, bufs: &[&[u8]]) -> io::Result<()> {
        assert!(
            bufs.iter().all(|b| b.len().is_multiple_of(PAGE)) && at.is_multiple_of(PAGE as u64)
        );
        let (at, bytes) = (at as usize, bufs.concat());
        self.state.lock().unwrap().io(|s| {
            assert!(
                s.taken[at / PAGE..(at + bytes.len()) / PAGE].iter().all(|t| *t),
                "not its own"
            );
            s.data[at..at + bytes.len()].copy_from_slice(&bytes);
            if let Some(log) = &mut s.log {
                log.push(Op::Write { at, bytes });
            }
        })
    }

    fn flush(&self) -> io::Result<()> {
        self.state.lock().unwrap().io(|s| {
            if let Some(log) = &mut s.log {
                log.push(Op::Flush);
            }
        })
    }

    fn grow(&self, adjoining: usize) -> Vec<(u64, u64)> {
        let mut s = self.state.lock().unwrap();
        let chunk = CHUNK / PAGE;
        let runs: Vec<(usize, usize)> = if s.pieces && adjoining == 1 {
            // From the end on: what is whole is for those that want it so.
            (0..s.taken.len()).rev().filter(|p| s.is_free(*p)).take(11).map(|p| (p, 1)).collect()
        } else {
            let most = if s.pieces { adjoining } else { chunk };
            let whole = [most, adjoining].into_iter().find_map(|n| s.run(n).map(|p| (p, n)));
            whole.into_iter().collect()
        };
        runs.iter().for_each(|(p, n)| s.taken[*p..p + n].fill(true));
        runs.into_iter().map(|(p, n)| ((p * PAGE) as u64, (n * PAGE) as u64)).collect()
    }

    fn release(&self, at: u64, bytes: u64) {
        let mut s = self.state.lock().unwrap();
        let pages = &mut s.taken[at as usize / PAGE..(at + bytes) as usize / PAGE];
        assert!(!pages.is_empty() && pages.iter().all(|t| *t), "released twice");
        pages.fill(false);
    }
}

/// xorshift, enough for tests.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }

    /// Keys of few families, so that they meet; seldom huge ones.
    pub fn key(&mut self, space: usize) -> Vec<u8> {
        let n = self.below(space) as u32;
        match self.below(40) {
            0 => vec![0xff; self.below(4)],
            1 => [&vec![b'h'; 50_000 + self.below(4) * 3000][..], &[n as u8 % 4]].concat(),
            2..12 => [b"P".as_slice(), &n.to_be_bytes(), b"omap"].concat(),
            _ => [b"Object in a pool with a long name/", format!("{n:x}").as_bytes(), &[0, 0, 2]]
                .concat(),
        }
    }

    pub fn value(&mut self, huge: usize) -> Vec<u8> {
        let n = match self.below(60) {
            0 => self.below(huge),
            1 => 6140 + self.below(10),
            2 => 4090 + self.below(10),
            3..8 => 2000 + self.below(900),
            8 => 0,
            _ => 100 + self.below(300),
        };
        let seed = self.next() as u8;
        (0..n).map(|i| seed.wrapping_add((i / 7) as u8)).collect()
    }

    pub fn batch(&mut self, model: &Model, keys: usize, huge: usize) -> Batch {
        let mut batch = Model::new()
            .into_iter()
            .map(|(k, v)| (k, Some(v)))
            .collect::<BTreeMap<_, Option<Vec<u8>>>>();
        let n = 1 + self.below(keys);
        for _ in 0..n {
            let value = (!self.one_in(4)).then(|| self.value(huge));
            batch.insert(self.key(keys * 4), value);
        }
        if self.one_in(3) {
            // A whole range goes, as when an omap is purged.
            let from = self.key(keys * 4);
            let n = self.below(keys);
            batch.extend(model.range(from..).take(n).map(|(k, _)| (k.clone(), None)));
        }
        let mut batch: Batch = batch.into_iter().collect();
        if self.one_in(2) {
            batch.reverse();
        }
        batch
    }
}

pub fn apply(model: &mut Model, batch: &Batch) {
    for (k, v) in batch {
        match v {
            Some(v) => model.insert(k.clone(), v.clone()),
            None => model.remove(k),
        };
    }
}

pub fn assert_clean(tree: &Tree) {
    let c = tree.check();
    assert!(c.problems.is_empty(), "{:?}", c.problems);
}

/// The snapshot holds exactly the model.
pub fn assert_same(s: &Snapshot, model: &Model) {
    let mut expected = model.iter();
    for pair in s.range(b"", None) {
        let (k, v) = pair.unwrap();
        let (mk, mv) = expected.next().expect("more pairs than expected");
        assert!(k == *mk && v == *mv, "pair {:?} instead of {:?}", k, mk);
    }
    assert!(expected.next().is_none(), "fewer pairs than expected");
    assert_eq!(s.root().keys, model.len() as u64);
}
