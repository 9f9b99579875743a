//! The exclusive lock of an image's header, as librbd takes it: calls of the class `lock`, and what
//! its lock says.
//!
//! The lock is named `rbd_lock` and tagged `internal`, and its cookie is `auto N`, N being the
//! cookie of the holder's watch on the header. So whoever meets the lock can see whether its holder
//! still watches: one who does is asked for the lock, one who does not is dead. The object map has
//! a lock of the same name without tag and cookie.

use bytes::Bytes;
use spirula_encoding::{DecodeError, Decoder, Encoder, UTime};
use spirula_messages::ceph::OsdOp;
use spirula_types::{EntityAddr, EntityName};

/// Its name.
pub const NAME: &str = "rbd_lock";
/// Its tag on a header.
pub const TAG: &str = "internal";
/// What its cookie begins with on a header.
const AUTO: &str = "auto ";
/// It is held by one.
const EXCLUSIVE: u8 = 1;

/// The cookie of a holder whose watch has this one.
pub fn cookie(watch: u64) -> String {
    format!("{AUTO}{watch}")
}

/// A lock as a client wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Whose hold it is.
    pub cookie: String,
    /// [`TAG`] or nothing.
    pub tag: &'static str,
}

impl Claim {
    /// Of a header, by whoever has this watch.
    pub fn header(watch: u64) -> Self {
        Self { cookie: cookie(watch), tag: TAG }
    }

    /// Of an object map.
    pub fn map() -> Self {
        Self { cookie: String::new(), tag: "" }
    }

    fn put(&self, e: &mut Encoder) {
        e.str(NAME);
        e.u8(EXCLUSIVE);
        e.str(&self.cookie);
        e.str(self.tag);
    }

    /// Takes the lock: EBUSY if somebody else has it, EEXIST if we have.
    pub fn take(&self) -> OsdOp {
        call("lock", |e| {
            self.put(e);
            e.str(""); // description
            e.put(&UTime::ZERO);
            e.u8(0);
        })
    }

    /// Fails unless we hold it.
    pub fn check(&self) -> OsdOp {
        call("assert_locked", |e| self.put(e))
    }

    /// Gives it back.
    pub fn give(&self) -> OsdOp {
        call("unlock", |e| {
            e.str(NAME);
            e.str(&self.cookie);
        })
    }

    /// Holds it under another cookie from now on; EBUSY if we do not hold it.
    pub fn rename(&self, to: &str) -> OsdOp {
        call("set_cookie", |e| {
            self.put(e);
            e.str(to);
        })
    }
}

/// Takes it from somebody.
pub fn break_hold(holder: &Holder) -> OsdOp {
    call("break_lock", |e| {
        e.str(NAME);
        e.put(&holder.name);
        e.blob(&holder.cookie);
    })
}

/// Who holds it?
pub fn ask() -> OsdOp {
    call("get_info", |e| e.str(NAME))
}

fn call(method: &str, input: impl FnOnce(&mut Encoder)) -> OsdOp {
    let mut e = Encoder::new();
    e.versioned(1, 1, input);
    OsdOp::call("lock", method, e.as_slice())
}

/// Who holds the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The client.
    pub name: EntityName,
    /// The name of its hold.
    pub cookie: Bytes,
    /// By which it can be fenced.
    pub addr: EntityAddr,
}

/// The lock as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Who holds it.
    pub holders: Vec<Holder>,
    exclusive: bool,
    tag: Bytes,
}

impl Held {
    /// Reads the answer to [`ask`].
    ///
    /// # Errors
    /// [`DecodeError`] for anything else.
    pub fn read(answer: &[u8]) -> Result<Self, DecodeError> {
        Decoder::new(answer).versioned("lock", 1, |d, _| {
            let holders = d.list(12, |d| {
                let (name, cookie) = d.versioned("holder", 1, |d, _| Ok((d.get()?, d.bytes()?)))?;
                let addr = d.versioned("hold", 1, |d, _| {
                    d.get::<UTime>()?;
                    d.get()
                })?;
                Ok(Holder { name, cookie, addr })
            })?;
            Ok(Self { holders, exclusive: d.u8()? == EXCLUSIVE, tag: d.bytes()? })
        })
    }

    /// The one who holds it by librbd's rules, with its watch; `None` if somebody locked the image
    /// by hand.
    pub fn owner(&self) -> Option<(&Holder, u64)> {
        let [holder] = &self.holders[..] else { return None };
        let cookie = std::str::from_utf8(&holder.cookie).ok()?;
        let watch = cookie.strip_prefix(AUTO)?.parse().ok()?;
        (self.exclusive && self.tag == TAG.as_bytes()).then_some((holder, watch))
    }
}

/// Somebody who watches an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watcher {
    name: EntityName,
    cookie: u64,
    addr: EntityAddr,
}

impl Watcher {
    /// Reads the answer to `list-watchers`.
    ///
    /// # Errors
    /// [`DecodeError`] for anything else.
    pub fn read(answer: &[u8]) -> Result<Vec<Self>, DecodeError> {
        Decoder::new(answer).versioned("watchers", 1, |d, _| {
            d.list(30, |d| {
                d.versioned("watcher", 2, |d, version| {
                    let (name, cookie) = (d.get()?, d.u64()?);
                    d.u32()?;
                    Ok(Self {
                        name,
                        cookie,
                        addr: if version >= 2 { d.get()? } else { EntityAddr::NONE },
                    })
                })
            })
        })
    }

    /// Who it is, and from where: `client.4123 at v2:127.0.0.1:0/77`.
    pub fn who(&self) -> String {
        format!("{} at {}", self.name, self.addr)
    }

    /// Is it the holder with this watch? Its address may be written in two ways.
    pub fn is(&self, holder: &Holder, watch: u64) -> bool {
        let same = (self.addr.addr, self.addr.nonce) == (holder.addr.addr, holder.addr.nonce);
        self.name == holder.name && self.cookie == watch && same
    }
}
