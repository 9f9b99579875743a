//! Class `lock`: advisory locks on an object, each a user attribute `lock.NAME`.
//!
//! A lock is held by one or, if it is shared, by many; a holder is a client with a cookie of its
//! choice. Holders whose time is over are gone for whoever looks, and from the attribute with the
//! next change of the lock.

use crate::{Call, Class, R, RP, RW, RWP, Stop, fail, method};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use spirula_types::{EntityAddr, EntityName, errno};
use std::collections::BTreeMap;

pub(crate) const CLASS: Class = Class {
    name: "lock",
    methods: &[
        method("lock", RWP, lock),
        method("unlock", RWP, unlock),
        method("break_lock", RW, break_lock),
        method("get_info", R, get_info),
        method("list_locks", R, list_locks),
        method("assert_locked", RP, assert_locked),
        method("set_cookie", RWP, set_cookie),
    ],
};

/// Start of the attributes' names.
const PREFIX: &[u8] = b"lock.";

/// Held by one.
const EXCLUSIVE: u8 = 1;
/// Held by all who want it so.
const SHARED: u8 = 2;
/// Held by one; the object goes with the lock.
const EPHEMERAL: u8 = 3;

/// Flag: who holds the lock already takes it anew.
const MAY_RENEW: u8 = 1;
/// Flag: only who holds the lock already takes it.
const MUST_RENEW: u8 = 2;

/// Who holds a lock: a client, and what it calls its hold.
type Holder = (EntityName, Bytes);

/// How a lock is held.
#[derive(Clone, Debug)]
struct Hold {
    /// When it ends; zero for never.
    until: UTime,
    /// The holder's address, by which it can be fenced.
    addr: EntityAddr,
    description: Bytes,
}

/// A lock. Its stored form is the answer to `get_info`, too.
#[derive(Clone, Debug, Default)]
struct Lock {
    holders: BTreeMap<Holder, Hold>,
    /// 0 for a lock that was never held.
    kind: u8,
    /// Whoever joins must name the same.
    tag: Bytes,
}

impl Encode for Lock {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.list(&self.holders, |o, ((name, cookie), hold)| {
                o.versioned(1, 1, |o| {
                    o.put(name);
                    o.put(cookie);
                });
                o.versioned(1, 1, |o| {
                    o.put(&hold.until);
                    o.put(&hold.addr);
                    o.put(&hold.description);
                });
            });
            o.u8(self.kind);
            o.put(&self.tag);
        });
    }
}

impl Decode for Lock {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("lock", 1, |d, _| {
            let holders = d.list(12, |d| {
                let holder = d.versioned("holder", 1, |d, _| Ok((d.get()?, d.get()?)))?;
                let hold = d.versioned("hold", 1, |d, _| {
                    Ok(Hold { until: d.get()?, addr: d.get()?, description: d.get()? })
                })?;
                Ok((holder, hold))
            })?;
            Ok(Self { holders: holders.into_iter().collect(), kind: d.u8()?, tag: d.get()? })
        })
    }
}

fn known(kind: u8) -> bool {
    matches!(kind, EXCLUSIVE | SHARED | EPHEMERAL)
}

fn attr(name: &[u8]) -> Vec<u8> {
    [PREFIX, name].concat()
}

/// The lock as it is now; ENOENT without the object.
fn load(call: &mut Call<'_>, name: &[u8]) -> Result<Lock, Stop> {
    let mut lock: Lock = call.stored_attr(&attr(name))?.unwrap_or_default();
    let now = call.object.now();
    lock.holders.retain(|_, hold| hold.until.is_zero() || hold.until >= now);
    Ok(lock)
}

fn store(call: &mut Call<'_>, name: &[u8], lock: &Lock) -> Result<(), Stop> {
    call.store_attr(&attr(name), lock)
}

/// `a + b`; what is later than a stamp can say is never.
fn later(a: UTime, b: UTime) -> UTime {
    let nsec = u64::from(a.nsec) + u64::from(b.nsec);
    let sec = u64::from(a.sec) + u64::from(b.sec) + nsec / 1_000_000_000;
    match u32::try_from(sec) {
        Ok(sec) => UTime { sec, nsec: (nsec % 1_000_000_000) as u32 },
        Err(_) => UTime::ZERO,
    }
}

fn lock(call: &mut Call<'_>) -> Result<i32, Stop> {
    struct Args {
        name: Bytes,
        kind: u8,
        cookie: Bytes,
        tag: Bytes,
        description: Bytes,
        duration: UTime,
        flags: u8,
    }
    let a = call.args(|d| {
        d.versioned("lock", 1, |d, _| {
            Ok(Args {
                name: d.get()?,
                kind: d.u8()?,
                cookie: d.get()?,
                tag: d.get()?,
                description: d.get()?,
                duration: d.get()?,
                flags: d.u8()?,
            })
        })
    })?;
    let (may_renew, must_renew) = (a.flags & MAY_RENEW != 0, a.flags & MUST_RENEW != 0);
    if !known(a.kind) || a.name.is_empty() || may_renew && must_renew {
        return fail(errno::EINVAL);
    }
    let mut lock = match load(call, &a.name) {
        Err(Stop::Errno(errno::ENOENT)) => Lock::default(),
        other => other?,
    };
    if !lock.holders.is_empty() && a.tag != lock.tag {
        return fail(errno::EBUSY);
    }
    let caller = call.object.caller();
    let holder = (caller.name, a.cookie);
    match lock.holders.remove(&holder) {
        Some(_) if !may_renew && !must_renew => return fail(errno::EEXIST),
        None if must_renew => return fail(errno::ENOENT),
        _ => {}
    }
    if !lock.holders.is_empty() && (a.kind != SHARED || lock.kind != SHARED) {
        return fail(errno::EBUSY);
    }
    let until =
        if a.duration.is_zero() { UTime::ZERO } else { later(call.object.now(), a.duration) };
    // A client speaks both protocols, and the nonce alone tells it apart; all releases can read
    // this kind.
    let addr = EntityAddr { kind: EntityAddr::KIND_LEGACY, ..caller.addr };
    lock.holders.insert(holder, Hold { until, addr, description: a.description });
    (lock.kind, lock.tag) = (a.kind, a.tag);
    store(call, &a.name, &lock)?;
    Ok(0)
}

/// Takes a lock from a holder.
fn drop_hold(call: &mut Call<'_>, name: &[u8], holder: &Holder) -> Result<i32, Stop> {
    let mut lock = load(call, name)?;
    if lock.holders.remove(holder).is_none() {
        return fail(errno::ENOENT);
    }
    match lock.kind {
        EPHEMERAL => call.object.remove()?,
        _ => store(call, name, &lock)?,
    }
    Ok(0)
}

fn unlock(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (name, cookie): (Bytes, Bytes) =
        call.args(|d| d.versioned("unlock", 1, |d, _| Ok((d.get()?, d.get()?))))?;
    let holder = (call.object.caller().name, cookie);
    drop_hold(call, &name, &holder)
}

fn break_lock(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (name, holder): (Bytes, Holder) =
        call.args(|d| d.versioned("break lock", 1, |d, _| Ok((d.get()?, (d.get()?, d.get()?)))))?;
    drop_hold(call, &name, &holder)
}

fn get_info(call: &mut Call<'_>) -> Result<i32, Stop> {
    let name: Bytes = call.args(|d| d.versioned("get info", 1, |d, _| d.get()))?;
    let lock = load(call, &name)?;
    call.output.put(&lock);
    Ok(0)
}

fn list_locks(call: &mut Call<'_>) -> Result<i32, Stop> {
    let attrs = call.object.attrs()?;
    let names = attrs.iter().filter_map(|(name, _)| name.strip_prefix(PREFIX));
    call.output.versioned(1, 1, |o| o.list(names, |o, name| o.blob(name)));
    Ok(0)
}

/// What a client says of a lock that it holds.
struct Claim {
    name: Bytes,
    kind: u8,
    cookie: Bytes,
    tag: Bytes,
}

impl Claim {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { name: d.get()?, kind: d.u8()?, cookie: d.get()?, tag: d.get()? })
    }

    /// The lock, if the caller holds it so.
    fn check(&self, call: &mut Call<'_>) -> Result<(Lock, Holder), Stop> {
        if !known(self.kind) || self.name.is_empty() {
            return fail(errno::EINVAL);
        }
        let lock = load(call, &self.name)?;
        let holder = (call.object.caller().name, self.cookie.clone());
        let held =
            lock.kind == self.kind && lock.tag == self.tag && lock.holders.contains_key(&holder);
        if held { Ok((lock, holder)) } else { fail(errno::EBUSY) }
    }
}

fn assert_locked(call: &mut Call<'_>) -> Result<i32, Stop> {
    let claim = call.args(|d| d.versioned("assert locked", 1, |d, _| Claim::decode(d)))?;
    claim.check(call)?;
    Ok(0)
}

fn set_cookie(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (claim, new): (Claim, Bytes) =
        call.args(|d| d.versioned("set cookie", 1, |d, _| Ok((Claim::decode(d)?, d.get()?))))?;
    let (mut lock, holder) = claim.check(call)?;
    let renamed = (holder.0, new);
    if lock.holders.contains_key(&renamed) {
        return fail(errno::EBUSY);
    }
    if let Some(hold) = lock.holders.remove(&holder) {
        lock.holders.insert(renamed, hold);
    }
    store(call, &claim.name, &lock)?;
    Ok(0)
}
