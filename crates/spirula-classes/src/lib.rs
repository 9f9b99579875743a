//! Object classes: methods that clients call by class and name on one object (`exec` of librados),
//! and that librbd, the kernel's rbd and others cannot do without.
//!
//! One module per class. [`find`] gives a [`Class`] and its [`Method`] with what it is registered
//! as: reading, writing, both. A method is a function of a [`Call`]: its input, its output, and the
//! object, which it sees through the trait [`Object`] alone. So it can do nothing that an op of the
//! same request could not do: its changes join the request's other changes, and nothing happens if
//! it, or the request, fails.
//!
//! Names, inputs, outputs, results, and where each class keeps its state are those of Ceph 16.2:
//! clients read and copy some of that state as plain data. Sources: `docs/protocol/osd.md`,
//! recorded calls (`tests/data/vectors/cls.jsonl`), and calls recorded on a real cluster
//! (`spirula-pg/src/exec/tests/golden`).
//!
//! Pure: time, random numbers and who calls are asked of the [`Object`]. Never panics, whatever
//! input and stored state are: input that cannot be read is EINVAL, state that cannot be read EIO.
//! What a call may read and change is bounded by whoever implements [`Object`]; what a method makes
//! of its input is of its size.

mod cas;
mod cephfs;
mod cmpomap;
mod fifo;
mod hello;
mod journal;
mod lock;
mod log;
mod numops;
mod object;
mod otp;
mod queue;
mod rbd;
mod refcount;
mod reserve;
mod rgw;
mod rgw_gc;
// What the fuzzer shares with the tests names this crate from outside.
#[cfg(test)]
extern crate self as spirula_classes;
#[cfg(test)]
mod tests;
mod timeindex;
mod user;
mod version;

pub use object::{Caller, Object, Page, Stat, Stop};

use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, to_vec};
use spirula_types::errno;

/// What a method is registered as. It decides which right a caller needs, and whether its request
/// is one that writes; a method that does what it is not registered for fails with EIO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags {
    /// It may read the object.
    pub read: bool,
    /// It may change the object.
    pub write: bool,
    /// Ceph's cache tiers promote the object first. Means nothing here.
    pub promote: bool,
}

/// Most pairs that a method is given for one question, as of an OSD of Ceph's.
const PAIRS_MAX: u64 = 1024;

/// Longest input of a method that takes lists of small things, bytes.
const LISTS_MAX: usize = 4 << 20;

const R: Flags = Flags { read: true, write: false, promote: false };
const W: Flags = Flags { read: false, write: true, promote: false };
const RW: Flags = Flags { read: true, write: true, promote: false };
const RP: Flags = Flags { promote: true, ..R };
const WP: Flags = Flags { promote: true, ..W };
const RWP: Flags = Flags { promote: true, ..RW };

/// What a method does. A result that is not negative is the op's; a failure cancels what the
/// request has changed.
pub type Run = fn(&mut Call<'_>) -> Result<i32, Stop>;

/// A method of a class.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// Its name.
    pub name: &'static str,
    /// What it is registered as.
    pub flags: Flags,
    run: Run,
}

const fn method(name: &'static str, flags: Flags, run: Run) -> Method {
    Method { name, flags, run }
}

/// A class.
#[derive(Clone, Copy, Debug)]
pub struct Class {
    /// Its name.
    pub name: &'static str,
    /// Its methods.
    pub methods: &'static [Method],
}

impl Class {
    /// May a call of this method, one that writes, bring data or make an object? Those by which
    /// images are removed bring neither: on a full OSD they run for whoever asks for that
    /// (FULL_TRY).
    pub fn brings(&self, method: &Method) -> bool {
        match self.name {
            "lock" => false,
            "rbd" => rbd::BRING.contains(&method.name),
            _ => true,
        }
    }
}

/// All classes, by name.
pub const CLASSES: &[Class] = &[
    reserve::CLASS,
    cas::CLASS,
    cephfs::CLASS,
    cmpomap::CLASS,
    fifo::CLASS,
    hello::CLASS,
    journal::CLASS,
    lock::CLASS,
    log::CLASS,
    numops::CLASS,
    otp::CLASS,
    queue::CLASS,
    rbd::CLASS,
    refcount::CLASS,
    rgw::CLASS,
    rgw_gc::CLASS,
    timeindex::CLASS,
    user::CLASS,
    version::CLASS,
];

/// Why a class and method name nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// There is no such class.
    Class,
    /// The class has no such method.
    Method,
}

/// The method of a class by their names.
///
/// # Errors
/// [`Unknown`].
pub fn find(class: &[u8], method: &[u8]) -> Result<(&'static Class, &'static Method), Unknown> {
    let class = CLASSES.iter().find(|c| c.name.as_bytes() == class).ok_or(Unknown::Class)?;
    let method =
        class.methods.iter().find(|m| m.name.as_bytes() == method).ok_or(Unknown::Method)?;
    Ok((class, method))
}

/// One call of a method.
pub struct Call<'a> {
    /// The object.
    pub object: &'a mut dyn Object,
    /// What the caller sent.
    pub input: Bytes,
    /// What the caller gets.
    pub output: Encoder,
}

impl Method {
    /// Runs the method on an object. What it put out counts even if it fails.
    pub fn run(&self, object: &mut dyn Object, input: Bytes) -> (Result<i32, Stop>, Bytes) {
        let mut call = Call { object, input, output: Encoder::new() };
        let result = (self.run)(&mut call);
        (result, call.output.into_bytes())
    }
}

impl Call<'_> {
    /// Reads the input with `read`; what follows is left alone, as Ceph does.
    fn args<T>(
        &self,
        read: impl FnOnce(&mut Decoder<'_>) -> Result<T, DecodeError>,
    ) -> Result<T, Stop> {
        Ok(read(&mut Decoder::new(&self.input))?)
    }

    /// The same of a method that takes lists of small things, each of which takes more memory than
    /// room in the input.
    fn few_args<T>(
        &self,
        read: impl FnOnce(&mut Decoder<'_>) -> Result<T, DecodeError>,
    ) -> Result<T, Stop> {
        self.is_few()?;
        self.args(read)
    }

    /// Fails with E2BIG if the input is longer than lists of small things may be.
    fn is_few(&self) -> Result<(), Stop> {
        if self.input.len() > LISTS_MAX { fail(errno::E2BIG) } else { Ok(()) }
    }

    /// The value of an attribute that holds a `T`; `None` without the attribute.
    fn stored_attr<T: Decode>(&mut self, name: &[u8]) -> Result<Option<T>, Stop> {
        match self.object.attr(name) {
            Ok(value) => stored(&value).map(Some),
            Err(Stop::Errno(errno::ENODATA)) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The value under a key; `None` without it.
    fn key<T: Decode>(&mut self, key: impl AsRef<[u8]>) -> Result<Option<T>, Stop> {
        self.object.omap_get(key.as_ref())?.map(|value| stored(&value)).transpose()
    }

    /// The value under a key that must be there.
    fn need<T: Decode>(&mut self, key: impl AsRef<[u8]>) -> Result<T, Stop> {
        self.key(key)?.ok_or(Stop::Errno(errno::ENOENT))
    }

    fn set<T: Encode + ?Sized>(&mut self, key: impl AsRef<[u8]>, value: &T) -> Result<(), Stop> {
        let key = Bytes::copy_from_slice(key.as_ref());
        self.object.omap_set(vec![(key, to_vec(value).into())])
    }

    /// Removes a key, be it there or not. The object must be.
    fn unset(&mut self, key: impl AsRef<[u8]>) -> Result<(), Stop> {
        self.object.omap_remove(vec![Bytes::copy_from_slice(key.as_ref())])
    }

    /// The value that the omap's header holds, or that of an object without one.
    fn header<T: Decode + Default>(&mut self) -> Result<T, Stop> {
        let header = self.object.omap_header()?;
        if header.is_empty() { Ok(T::default()) } else { stored(&header) }
    }

    fn set_header<T: Encode>(&mut self, value: &T) -> Result<(), Stop> {
        self.object.omap_set_header(to_vec(value).into())
    }

    /// At most `max` pairs (and no more than Ceph gives for one question) whose keys start with
    /// `prefix`, after the key `after`.
    fn pairs(&mut self, after: &[u8], prefix: &[u8], max: u64) -> Result<Page, Stop> {
        let max = max.min(PAIRS_MAX);
        let mut all = self.object.omap_page(after, prefix, max)?;
        while all.more && (all.pairs.len() as u64) < max {
            let Some((last, _)) = all.pairs.last() else { break };
            let next =
                self.object.omap_page(&last.clone(), prefix, max - all.pairs.len() as u64)?;
            if next.pairs.is_empty() {
                break;
            }
            all.pairs.extend(next.pairs);
            all.more = next.more;
        }
        Ok(all)
    }

    /// Sets an attribute to the encoding of a value.
    fn store_attr<T: Encode>(&mut self, name: &[u8], value: &T) -> Result<(), Stop> {
        self.object.set_attr(name, to_vec(value).into())
    }
}

/// Reads a stored value. Whoever stored something else here has spoilt the object.
fn stored<T: Decode>(value: &[u8]) -> Result<T, Stop> {
    Decoder::new(value).get().map_err(|_| Stop::Errno(errno::EIO))
}

/// Fails with this errno.
const fn fail<T>(errno: i32) -> Result<T, Stop> {
    Err(Stop::Errno(errno))
}

/// Reads a value, and writes it again; `None` if it cannot be read.
#[cfg(test)]
fn reencoded<T: Decode + Encode>(bytes: &[u8]) -> Option<Vec<u8>> {
    Some(to_vec(&spirula_encoding::from_slice::<T>(bytes).ok()?))
}
