//! Requests on a PG: listings of its objects.
//!
//! The bound of a listing counts objects looked at, not returned, so that filtering a
//! namespace out of a large PG stays cheap. Deleted heads that stay for their clones are listed.
//! Source: `docs/protocol/osd.md` §8.

use super::plan::StatDelta;
use super::reader::{ObjectReader, ReadError};
use super::state::load_object;
use super::{Effect, OpContext, Outcome, Pause, without_data};
use crate::snap::{self, At};
use spirula_encoding::{Decoder, Encoder};
use spirula_messages::ceph::op::{self, OsdOp};
use spirula_messages::ceph::osd::OpResult;
use spirula_types::{HObject, NS_ALL, PgId, SNAP_DIR, SNAP_HEAD, errno, hash};

/// The first position of a PG in the listing order.
pub fn pg_start(pg: PgId) -> HObject {
    HObject::pool_start(pg.pool, pg.seed)
}

/// The position after the last of a PG, which is the first of the next PG; the maximum for
/// the last PG of the pool.
pub fn pg_end(pg: PgId, pg_num: u32) -> HObject {
    let bits = hash::range_bits(pg.seed, pg_num);
    let start = u64::from(pg.seed.reverse_bits());
    let end = (start | (u64::from(u32::MAX) >> bits)) + 1;
    match u32::try_from(end) {
        Ok(end) => HObject { snap: SNAP_HEAD, ..HObject::pool_start(pg.pool, end.reverse_bits()) },
        Err(_) => HObject::max(),
    }
}

/// What one op found.
struct Listing {
    heads: Vec<HObject>,
    /// First object not looked at, or `None` at the end of the PG.
    next: Option<HObject>,
}

/// Executes a request on a PG. `ctx.object` gives the namespace to list.
///
/// # Errors
/// [`Pause`] when it must be executed again later.
pub fn execute_pg(
    ctx: &OpContext<'_>,
    reader: &dyn ObjectReader,
    ops: &[OsdOp],
) -> Result<Outcome, Pause> {
    let mut result = 0;
    let mut outputs: Vec<OpResult> =
        ops.iter().map(|o| OpResult { op: without_data(o), rval: 0, output_crc: None }).collect();
    if ops.is_empty() || ops.len() > ctx.limits.max_ops {
        result = -errno::EINVAL;
    }
    for (o, out) in ops.iter().zip(&mut outputs) {
        if result < 0 {
            break;
        }
        result = match o.op {
            op::PGNLS | op::PGLS => match list(ctx, reader, o) {
                Ok((result, listing)) => {
                    out.op.indata = listing.into_bytes();
                    result
                }
                Err(Failed::Errno(e)) => -e,
                Err(Failed::Pause(p)) => return Err(p),
            },
            op::PGNLS_FILTER | op::PGLS_FILTER => -errno::EOPNOTSUPP,
            _ => -errno::EINVAL,
        };
    }
    let user_version = ctx.last_user_version;
    let (effect, stats) = (Effect::None, StatDelta::default());
    Ok(Outcome {
        result,
        ops: outputs,
        user_version,
        effect,
        stats,
        unreadable: false,
        watch: Vec::new(),
    })
}

enum Failed {
    Errno(i32),
    Pause(Pause),
}

impl From<ReadError> for Failed {
    fn from(e: ReadError) -> Self {
        match e {
            ReadError::NotReady(p) => Self::Pause(Pause::Prefetch(p)),
            ReadError::Io(e) => Self::Errno(e),
            ReadError::Checksum { .. } => Self::Errno(errno::EIO),
        }
    }
}

/// Runs one pgls or pgnls: result and output.
fn list(
    ctx: &OpContext<'_>,
    reader: &dyn ObjectReader,
    o: &OsdOp,
) -> Result<(i32, Encoder), Failed> {
    let from: HObject = Decoder::new(&o.indata).get().map_err(|_| Failed::Errno(errno::EINVAL))?;
    if ctx.snapid == SNAP_DIR {
        return Err(Failed::Errno(errno::EINVAL));
    }
    let end = pg_end(ctx.pg, ctx.pg_num);
    let outside = (!from.max && from >= end) || (!from.is_min() && from < pg_start(ctx.pg));
    if outside {
        return Err(Failed::Errno(errno::EINVAL));
    }
    let max = o.pgls_args().0.min(ctx.limits.max_list) as usize;
    let Listing { mut heads, next } = scan(ctx, reader, from, &end, max)?;
    if ctx.snapid != SNAP_HEAD {
        heads = shown_at(ctx, reader, heads)?;
    }
    let done = next.is_none();
    let mut out = Encoder::with_capacity(64 + heads.len() * 48);
    if o.op == op::PGNLS {
        let next = next.unwrap_or(end);
        let all = ctx.object.namespace == NS_ALL;
        out.versioned(1, 1, |out| {
            out.put(&next);
            out.list(
                heads.iter().filter(|h| all || h.namespace == ctx.object.namespace),
                |out, h| {
                    out.put(&h.namespace);
                    out.put(&h.name);
                    out.put(&h.key);
                },
            );
        });
    } else {
        // The oldest form has no namespaces, and ends with the maximum in every PG.
        out.u8(1);
        out.put(&next.unwrap_or_else(HObject::max));
        out.list(heads.iter().filter(|h| h.namespace == ctx.object.namespace), |out, h| {
            out.put(&h.name);
            out.put(&h.key);
        });
    }
    Ok((i32::from(done), out))
}

/// Those that the snapshot shows. (One whose head is missing here may be among them: reading it
/// tells.)
fn shown_at(
    ctx: &OpContext<'_>,
    reader: &dyn ObjectReader,
    heads: Vec<HObject>,
) -> Result<Vec<HObject>, ReadError> {
    let mut shown = Vec::with_capacity(heads.len());
    for head in heads {
        let state = load_object(reader, &head)?;
        let there = match snap::shown(&state, ctx.snapid, ctx.removed) {
            At::Head => state.live() || !state.exists,
            At::Clone(_) => true,
            At::Nothing => false,
        };
        if there {
            shown.push(head);
        }
    }
    Ok(shown)
}

/// Looks at up to `max` objects from `from` on and keeps the heads.
fn scan(
    ctx: &OpContext<'_>,
    reader: &dyn ObjectReader,
    from: HObject,
    end: &HObject,
    max: usize,
) -> Result<Listing, ReadError> {
    let from = if from.is_min() { pg_start(ctx.pg) } else { from };
    if from.max {
        return Ok(Listing { heads: Vec::new(), next: None });
    }
    // One more than wanted, to know whether and where it goes on.
    let mut heads = reader.list(&from, end, max + 1)?;
    let next = if heads.len() > max { heads.drain(max..).next() } else { None };
    heads.retain(|h| h.snap == SNAP_HEAD);
    Ok(Listing { heads, next })
}
