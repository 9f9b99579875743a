//! A run leaves nothing behind, also one that is killed.
//!
//! Before a run writes its first object it writes a note into the pool, `spirula-bench.run.HOST.N`:
//! who it is and what its objects are called. It takes the first `N` whose note is not there or
//! names a process that is gone, after removing what that one left. A note goes when the objects of
//! its run are gone. So whatever was killed is found by the next run on that host, or by `spirula
//! bench clean`; a run of which nothing is known cannot be there.
//!
//! A name is not a machine: two may be called alike, and processes of a container are not those of
//! its host. So a note says on which machine and among which processes its run is; of a run that is
//! elsewhere nobody here can say whether it lives, and it is left alone.
//!
//! A note does not say how many objects there are: a generator writes them in order
//! ([`crate::load`]) and removes them from the end, so they are a range from 0 with holes only
//! among its last. Its end is found by doubling and halving.

use crate::bail;
use crate::load::{Load, Mode, Plan, name};
use crate::prelude::*;
use crate::session::Session;
use crate::used::hostname;
use spirula_client::{Reply, Request};
use spirula_encoding::{DecodeError, Decoder};
use spirula_messages::ceph::op::OsdOp;
use spirula_messages::ceph::osd::flag;
use spirula_runtime::clock;
use spirula_types::{HObject, NS_ALL, ObjectLocator, PoolId, errno};

/// Runs of one host that can be under way in one pool.
const NOTES: u32 = 32;
/// How long an operation may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Removals in flight.
const REMOVALS: usize = 32;

/// Whose run a note is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// Its process lives.
    Living,
    /// It is gone.
    Dead,
    /// It is not on this machine, or not among its processes.
    Elsewhere,
}

/// Where runs of this process's kind can be looked for: the machine, and which processes are seen.
pub fn here() -> String {
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let seen = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {}", machine.trim(), seen.display())
}

/// Whose run is a note of that says this, seen from `here`?
fn whose(v: &Value, here: &str) -> Whose {
    let number = |key: &str| v[key].as_u64().unwrap_or(0);
    // A note of an older version does not say where.
    if v["where"].as_str().is_some_and(|w| w != here) {
        return Whose::Elsewhere;
    }
    if born(number("pid")).is_some_and(|start| start == number("start")) {
        Whose::Living
    } else {
        Whose::Dead
    }
}

/// The note of a run that is under way.
#[derive(Debug)]
pub struct Note {
    pool: PoolId,
    object: String,
    /// What its objects are called, but for generator and number.
    pub prefix: String,
    generators: u64,
    in_flight: u64,
}

fn request(pool: PoolId, object: &str, ops: Vec<OsdOp>, flags: u32) -> Request {
    let locator = ObjectLocator { pool, ..ObjectLocator::default() };
    let mut r =
        Request::new(locator, Bytes::copy_from_slice(object.as_bytes()), ops, clock::wall());
    r.flags = flags;
    r
}

fn one(
    session: &Session,
    pool: PoolId,
    object: &str,
    ops: Vec<OsdOp>,
    flags: u32,
) -> Result<Reply> {
    session
        .op(request(pool, object, ops, flags), PATIENCE)
        .context("the pool does not serve requests (are its PGs active? 'ceph -s' says)")
}

/// When a process began, in ticks since the machine did: with its number that names it for good.
pub fn born(pid: u64) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// What objects of a generator are called, but for their numbers.
pub fn prefix_of(prefix: &str, generator: u64) -> String {
    format!("{prefix}{generator}.")
}

impl Note {
    /// Takes a place, clearing away what dead runs of this host left.
    ///
    /// # Errors
    /// When the pool does not answer or has no room, or too many runs are under way.
    pub fn take(session: &Session, pool: PoolId, generators: u64, in_flight: u64) -> Result<Self> {
        let (host, pid) = (hostname(), u64::from(std::process::id()));
        let start = born(pid).unwrap_or(0);
        for n in 0..NOTES {
            let object = format!("spirula-bench.run.{host}.{n}");
            match Self::read(session, pool, &object)? {
                Some((_, Whose::Living | Whose::Elsewhere)) => continue,
                Some((dead, Whose::Dead)) => {
                    dead.clear(session)?;
                }
                None => {}
            }
            let draw = spirula_runtime::entropy::cookie().context("draw a number")?;
            let prefix = format!("spirula-bench.{host}.{pid}.{draw:016x}.");
            let text = json!({
                "prefix": prefix, "pid": pid, "start": start, "where": here(), "generators": generators, "in_flight": in_flight,
            });
            let ops = vec![OsdOp::create(true), OsdOp::write_full(text.to_string().into())];
            match -one(session, pool, &object, ops, flag::FULL_TRY)?.result {
                0 => return Ok(Self { pool, object, prefix, generators, in_flight }),
                errno::EEXIST => {}
                errno::ENOSPC | errno::EDQUOT => bail!("the pool has no space left"),
                errno::ENOENT => bail!("the pool is gone"),
                errno::EPERM | errno::EACCES => bail!("this user may not write to the pool"),
                e => bail!("write {object}: error {e}"),
            }
        }
        bail!("{NOTES} runs of this host are under way in the pool")
    }

    /// The note of that name, and whose it is.
    fn read(session: &Session, pool: PoolId, object: &str) -> Result<Option<(Self, Whose)>> {
        let reply = one(session, pool, object, vec![OsdOp::read(0, 0)], 0)?;
        match -reply.result {
            0 => {}
            errno::ENOENT => return Ok(None),
            errno::EPERM | errno::EACCES => bail!("this user may not read the pool"),
            e => bail!("read {object}: error {e}"),
        }
        let text = reply.ops.first().map(|o| o.op.indata.clone()).unwrap_or_default();
        let v: Value = serde_json::from_slice(&text).unwrap_or_default();
        let number = |key: &str| v[key].as_u64().unwrap_or(0);
        let note = Self {
            pool,
            object: object.to_owned(),
            prefix: v["prefix"].as_str().unwrap_or_default().to_owned(),
            generators: number("generators").min(1024),
            in_flight: number("in_flight").min(65_536),
        };
        Ok(Some((note, whose(&v, &here()))))
    }

    fn is_there(&self, session: &Session, prefix: &str, from: u64) -> Result<bool> {
        // Holes are among as many of the last as were in flight, when they were written or removed.
        for number in from..from + self.in_flight.max(REMOVALS as u64) {
            let object = String::from_utf8_lossy(&name(prefix, number)).into_owned();
            let reply = one(session, self.pool, &object, vec![OsdOp::stat()], 0)?;
            if reply.result == 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes the objects of a run of which the number of objects is not known; gives how many
    /// were asked for.
    ///
    /// # Errors
    /// When the cluster does not do it.
    pub fn clear(self, session: &Session) -> Result<u64> {
        let mut all = 0;
        for generator in 0..self.generators {
            let prefix = prefix_of(&self.prefix, generator);
            if prefix.starts_with("spirula-bench.") {
                let (mut low, mut high) = (0, 1);
                while self.is_there(session, &prefix, high)? {
                    (low, high) = (high, high * 2);
                }
                while low + 1 < high {
                    let middle = low + (high - low) / 2;
                    if self.is_there(session, &prefix, middle)? {
                        low = middle
                    } else {
                        high = middle
                    }
                }
                all += remove(
                    session,
                    self.pool,
                    &prefix,
                    high + self.in_flight.max(REMOVALS as u64),
                )?;
            }
        }
        self.forget(session)?;
        Ok(all)
    }

    /// Removes the objects of this run, so many of each generator.
    ///
    /// # Errors
    /// When the cluster does not do it; the next run tries again.
    pub fn empty(&self, session: &Session, objects: &[u64]) -> Result<()> {
        for (generator, n) in objects.iter().enumerate() {
            remove(session, self.pool, &prefix_of(&self.prefix, generator as u64), *n)?;
        }
        Ok(())
    }

    /// The same, and the note.
    ///
    /// # Errors
    /// When the cluster does not do it; the next run tries again.
    pub fn clean(self, session: &Session, objects: &[u64]) -> Result<()> {
        self.empty(session, objects)?;
        self.forget(session)
    }

    fn forget(self, session: &Session) -> Result<()> {
        delete(session, self.pool, &self.object)
    }
}

/// Is an object there?
///
/// # Errors
/// When the pool does not answer.
pub fn is_there(session: &Session, pool: PoolId, object: &str) -> Result<bool> {
    Ok(one(session, pool, object, vec![OsdOp::stat()], 0)?.result == 0)
}

/// Removes one object, if it is there.
///
/// # Errors
/// When the cluster does not do it.
pub fn delete(session: &Session, pool: PoolId, object: &str) -> Result<()> {
    let reply = one(session, pool, object, vec![OsdOp::delete()], flag::FULL_FORCE)?;
    match -reply.result {
        0 | errno::ENOENT => Ok(()),
        e => bail!("remove {object}: error {e}"),
    }
}

fn remove(session: &Session, pool: PoolId, prefix: &str, objects: u64) -> Result<u64> {
    if objects == 0 {
        return Ok(0);
    }
    let load = Load::new(Plan {
        mode: Mode::Remove,
        size: 1,
        object_size: 1,
        in_flight: REMOVALS,
        time: Duration::from_secs(86_400),
        warm_up: Duration::ZERO,
        rate: None,
        most: Some(objects),
        objects,
        pool,
        prefix: prefix.to_owned(),
        seed: 0,
    });
    let live = load.live.clone();
    let driven = session.drive(load);
    let mut seen = 0;
    loop {
        if let Some(load) = driven.ended(PATIENCE) {
            return match load.failed {
                Some(why) => bail!("remove objects: {why}"),
                None => Ok(objects),
            };
        }
        let now = live.ops.load(std::sync::atomic::Ordering::Relaxed);
        if now == seen {
            bail!(
                "objects cannot be removed: the OSDs do not answer; 'spirula bench clean' removes \
                    them later"
            );
        }
        seen = now;
    }
}

/// The pool holds no object at all, neither a run's nor anybody's.
///
/// # Errors
/// When the pool does not answer.
pub fn is_empty(session: &Session, pool: PoolId, pg_num: u32) -> Result<bool> {
    for pg in 0..pg_num {
        let mut cursor = HObject::min();
        loop {
            let locator = ObjectLocator {
                pool,
                hash: i64::from(pg),
                namespace: Bytes::from_static(NS_ALL),
                ..ObjectLocator::default()
            };
            let ask = OsdOp::pgnls(64, 0, &cursor);
            let reply = session
                .op(Request::new(locator, Bytes::new(), vec![ask], clock::wall()), PATIENCE)?;
            if reply.result < 0 {
                bail!("list the objects of PG {pool}.{pg:x}: error {}", -reply.result);
            }
            let out = reply.ops.first().map(|o| o.op.indata.clone()).unwrap_or_default();
            let (next, objects) = listed(&out).context("a list of objects cannot be read")?;
            if objects > 0 {
                return Ok(false);
            }
            // 1 says that this was the end. Some parts of a list may be empty before it.
            if reply.result == 1 || next == cursor {
                break;
            }
            cursor = next;
        }
    }
    Ok(true)
}

/// Where a list of objects goes on, and how many this part of it has.
fn listed(out: &[u8]) -> Result<(HObject, u32), DecodeError> {
    let mut d = Decoder::new(out);
    d.versioned("a list of objects", 1, |d, _| Ok((d.get()?, d.u32()?)))
}

/// What dead runs left in the pool is removed, those that this host's name stands on. Gives how
/// many runs that were, and how many were left alone: of this host those that live, and those of
/// another machine that is called like it. With `gone` nobody of that name runs any more, wherever
/// it is, but for what lives here.
///
/// # Errors
/// When the pool does not answer, or what a run left cannot be removed; then the others' is removed
/// nevertheless.
pub fn clean(session: &Session, pool: PoolId, host: &str, gone: bool) -> Result<(u32, u32)> {
    let (mut dead, mut left, mut failed) = (0, 0, Ok(()));
    for n in 0..NOTES {
        match Note::read(session, pool, &format!("spirula-bench.run.{host}.{n}"))? {
            Some((_, Whose::Living)) => left += 1,
            Some((_, Whose::Elsewhere)) if !gone => left += 1,
            // What one run left and cannot be removed keeps nobody from removing what the others
            // did.
            Some((note, _)) => match note.clear(session) {
                Ok(_) => dead += 1,
                Err(e) => failed = failed.and(Err(e)),
            },
            None => {}
        }
    }
    failed.map(|()| (dead, left))
}

/// What runs of this host's name are called that are to be left alone: those that live, and those
/// of which nobody here can say. With `gone` nobody of that name runs elsewhere.
///
/// # Errors
/// When the pool does not answer.
pub fn left_alone(session: &Session, pool: PoolId, host: &str, gone: bool) -> Result<Vec<String>> {
    let mut alone = Vec::new();
    for n in 0..NOTES {
        match Note::read(session, pool, &format!("spirula-bench.run.{host}.{n}"))? {
            Some((_, Whose::Elsewhere)) if gone => {}
            Some((note, Whose::Living | Whose::Elsewhere)) => alone.push(note.prefix),
            Some((_, Whose::Dead)) | None => {}
        }
    }
    Ok(alone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_encoding::Encoder;

    #[test]
    fn only_what_ran_here_and_is_gone_is_dead() {
        let pid = u64::from(std::process::id());
        let start = born(pid).unwrap();
        let of = |pid: u64, start: u64, at: &str| {
            whose(&json!({"pid": pid, "start": start, "where": at}), "here")
        };
        assert_eq!(of(pid, start, "here"), Whose::Living);
        assert_eq!(of(pid, start + 1, "here"), Whose::Dead, "another process has the number now");
        assert_eq!(of(pid, start + 1, "there"), Whose::Elsewhere);
        assert_eq!(of(u64::MAX, start, "there"), Whose::Elsewhere);
        assert_eq!(
            whose(&json!({"pid": pid, "start": start + 1}), "here"),
            Whose::Dead,
            "an older version's"
        );
        assert_eq!(here(), here());
    }

    #[test]
    fn lists_of_objects_are_counted() {
        let mut e = Encoder::new();
        e.versioned(1, 1, |e| {
            e.put(&HObject::max());
            e.list([b"a", b"b"].iter(), |e, name| {
                for text in [&b""[..], &name[..], b""] {
                    e.put(&Bytes::copy_from_slice(text));
                }
            });
        });
        assert_eq!(listed(&e.into_bytes()).unwrap(), (HObject::max(), 2));
        assert!(listed(b"\x01").is_err());
    }
}
