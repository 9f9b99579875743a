//! Pools: creation, deletion, and the set of PGs that may still be
//! created empty.
//!
//! A new pool's PGs are put into the creating set in the batch that creates the pool. A
//! primary without any trace of a PG asks; only a PG in the set is granted. The primary
//! reports the PG created before it acknowledges the first write, and the PG leaves the set
//! for good: from then on, an OSD without a trace of it has lost it.
//!
//! A creation is named by the interval of its primary. A grant is on record before it is given,
//! and from then on no older creation is accepted: the new one begins empty where an older one
//! has its copies, and would leave none of it.

use crate::view::ClusterView;
use crate::work::Work;
use bytes::Bytes;
use spirula_maps::PgPool;
use spirula_maps::osdmap::pool::flag;
use spirula_messages::ceph::MPoolOp;
use spirula_messages::ceph::mon::pool_op as op;
use spirula_messages::cluster::control::{PgCreateAsk, PgCreateGrant};
use spirula_types::errno::{EBUSY, EEXIST, EINVAL, ENOENT, EPERM, ERANGE};
use spirula_types::{Epoch, PgId, PoolId, Uuid};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A refusal: errno and text.
pub type Refusal = (i32, String);

/// What a new pool should be. `None` takes the cluster's default.
#[derive(Clone, Debug, Default)]
pub struct NewPool {
    /// Name.
    pub name: String,
    /// PGs.
    pub pg_num: Option<u32>,
    /// PGs for placement.
    pub pgp_num: Option<u32>,
    /// Copies.
    pub size: Option<u8>,
    /// CRUSH rule by number.
    pub crush_rule: Option<u32>,
    /// Hint.
    pub expected_num_objects: u64,
    /// Of an erasure-coded pool: its profile. The rule must be named then.
    pub erasure: Option<Erasure>,
}

/// An erasure-code profile, as far as a pool is made by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Erasure {
    /// Name.
    pub profile: String,
    /// Data shards.
    pub k: u8,
    /// Parity shards.
    pub m: u8,
    /// Bytes of a shard in a stripe.
    pub unit: u32,
}

/// Reads the numbers of a profile.
///
/// # Errors
/// EINVAL if there is none of that name, as with Ceph, or if its numbers make no pool.
pub fn erasure(work: &Work, name: &str) -> Result<Erasure, Refusal> {
    let profile = work.osd().ec_profiles.get(name);
    let profile =
        profile.ok_or_else(|| (EINVAL, format!("unknown erasure code profile '{name}'")))?;
    let number = |key: &str| profile.get(key).and_then(|v| v.parse::<u8>().ok());
    let (k, m) = (number("k").unwrap_or(0), number("m").unwrap_or(0));
    if k < 1 || m < 1 || u16::from(k) + u16::from(m) > SHARDS_MAX {
        return Err((
            EINVAL,
            format!("profile '{name}': k={k} m={m} make no pool; k+m is at most {SHARDS_MAX}"),
        ));
    }
    let default = || work.state.option_u64("osd_pool_erasure_code_stripe_unit");
    let unit = match profile.get("stripe_unit") {
        Some(text) => stripe_unit(text).ok_or_else(|| {
            (
                EINVAL,
                format!(
                    "profile '{name}': stripe_unit={text} must be a multiple of \
                {UNIT_STEP}, at most 16M"
                ),
            )
        })?,
        None => u32::try_from(default())
            .ok()
            .filter(|u| *u > 0 && u % UNIT_STEP == 0)
            .unwrap_or(UNIT_STEP),
    };
    Ok(Erasure { profile: name.to_owned(), k, m, unit })
}

/// Most shards of an object.
const SHARDS_MAX: u16 = 120;
/// Stripe units are multiples of it: what a store keeps a checksum of.
const UNIT_STEP: u32 = 4096;

/// A stripe unit as a profile says it: bytes, or with K or M behind.
pub fn stripe_unit(text: &str) -> Option<u32> {
    let (digits, factor) = match text.strip_suffix(['K', 'k']) {
        Some(t) => (t, 1 << 10),
        None => text.strip_suffix(['M', 'm']).map_or((text, 1), |t| (t, 1 << 20)),
    };
    let unit = digits.parse::<u32>().ok()?.checked_mul(factor)?;
    (unit > 0 && unit.is_multiple_of(UNIT_STEP) && unit <= 16 << 20).then_some(unit)
}

/// The `min_size` that goes with a size when nothing else is said: a majority-like half.
pub fn default_min_size(work: &Work, size: u8) -> u8 {
    let set = work.state.option_u64("osd_pool_default_min_size");
    if set > 0 { (set as u8).min(size) } else { size - size / 2 }
}

/// The rule a replicated pool gets when none is named.
pub fn default_rule(work: &Work) -> Option<u32> {
    let crush = &work.osd().crush;
    let wanted = work.state.option("mon", "osd_pool_default_crush_rule").parse::<u32>().ok();
    let replicated = |id: &u32| crush.rule(*id).is_some_and(|r| r.kind == 1);
    wanted.filter(replicated).or_else(|| (0..crush.rules.len() as u32).find(replicated))
}

/// Refuses what cannot be a pool's name.
///
/// # Errors
/// EINVAL.
pub fn check_name(name: &str) -> Result<(), Refusal> {
    if name.is_empty() {
        return Err((EINVAL, "pool name must not be empty".into()));
    }
    if spirula_types::names::is_pool_name(name) {
        return Ok(());
    }
    let most = spirula_types::names::POOL_NAME_MAX;
    Err((EINVAL, format!("a pool's name has at most {most} bytes and no control characters")))
}

/// Creates a pool with its PGs in the creating set.
///
/// # Errors
/// [`Refusal`] with Ceph's numbers; EEXIST if the name is taken.
pub fn create(work: &mut Work, new: &NewPool) -> Result<PoolId, Refusal> {
    check_name(&new.name)?;
    if work.osd().pool_by_name(&new.name).is_some() {
        return Err((EEXIST, format!("pool '{}' already exists", new.name)));
    }
    let shards = new.erasure.as_ref().map(|e| e.k + e.m);
    let size = shards
        .or(new.size)
        .filter(|s| *s > 0)
        .unwrap_or_else(|| work.state.option_u64("osd_pool_default_size") as u8);
    let pg_num = match new.pg_num.filter(|n| *n > 0) {
        Some(n) => n,
        None => work.state.option_u64("osd_pool_default_pg_num") as u32,
    };
    let pgp_default = work.state.option_u64("osd_pool_default_pgp_num") as u32;
    let pgp_num = new.pgp_num.filter(|n| *n > 0).unwrap_or(if pgp_default > 0 {
        pgp_default
    } else {
        pg_num
    });
    let max = work.state.option_u64("mon_max_pool_pg_num") as u32;
    if pg_num > max {
        return Err((
            ERANGE,
            format!(
                "'pg_num' must be greater than 0 and less than or equal to {max} (you may adjust \
                    'mon max pool pg num' for higher values)"
            ),
        ));
    }
    if pgp_num > pg_num {
        return Err((
            ERANGE,
            format!(
                "'pgp_num' must be greater than 0 and lower or equal than 'pg_num', which in this \
                    case is {pg_num}"
            ),
        ));
    }
    let rule = match new.crush_rule {
        Some(r) if work.osd().crush.rule(r).is_some() => r,
        Some(r) => return Err((ENOENT, format!("crush rule {r} does not exist"))),
        None => default_rule(work).ok_or_else(|| {
            (
                ENOENT,
                "no suitable CRUSH rule exists, check 'osd pool default crush *' config options"
                    .to_owned(),
            )
        })?,
    };
    check_pg_count(work, pg_num, size, None)?;
    let mut pool = match &new.erasure {
        Some(e) => {
            let mut pool =
                PgPool::erasure(e.k, e.m, e.unit, &e.profile, pg_num, rule as u8, work.now);
            // Ceph's: one more than needed, where the code allows to lose more than one.
            pool.min_size = e.k + u8::from(e.m > 1);
            pool
        }
        None => {
            let mut pool = PgPool::replicated(size, pg_num, rule as u8, work.now);
            pool.min_size = default_min_size(work, size);
            pool
        }
    };
    pool.pgp_num = pgp_num;
    pool.pgp_num_target = pgp_num;
    pool.flags |= flag::HASHPSPOOL | flag::CREATING;
    pool.expected_num_objects = new.expected_num_objects;
    // Without an autoscaler (`absent`) "off" is what every mode would come to.
    pool.pg_autoscale_mode = 0;
    pool.last_change = work.next_epoch();
    let epoch = work.next_epoch();
    let map = work.osd_mut();
    map.pool_max += 1;
    let id = PoolId::from(map.pool_max);
    map.pools.insert(id, pool);
    map.pool_names.insert(id, new.name.clone());
    Arc::make_mut(&mut work.state.creating).extend((0..pg_num).map(|s| (PgId::new(id, s), epoch)));
    Ok(id)
}

/// Refuses a number of PGs with which all pools together would burden the OSDs that are in beyond
/// the limit.
///
/// # Errors
/// ERANGE with the text of Ceph 16.
pub fn check_pg_count(
    work: &Work,
    pg_num: u32,
    size: u8,
    replaces: Option<PoolId>,
) -> Result<(), Refusal> {
    let map = work.osd();
    let limit = work.state.option_u64("mon_max_pg_per_osd");
    let (.., osds_in) = map.osd_counts();
    // Before the first OSD is in there is nothing to count by.
    let most = limit.saturating_mul(u64::from(osds_in));
    if most == 0 {
        return Ok(());
    }
    let others = map.pools.iter().filter(|(id, _)| Some(**id) != replaces);
    let others: u64 = others.map(|(_, p)| u64::from(p.pg_num_target) * u64::from(p.size)).sum();
    let total = others + u64::from(pg_num) * u64::from(size);
    if total > most {
        // A pool that is being made leaves the space before its missing number, as in Ceph.
        let which = replaces.map_or(String::new(), |id| format!("pool id {id}"));
        return Err((
            ERANGE,
            format!(
                "{which} pg_num {pg_num} size {size} would mean {total} total pgs, which exceeds \
                    max {most} (mon_max_pg_per_osd {limit} * num_in_osds {osds_in})"
            ),
        ));
    }
    Ok(())
}

/// Deletes a pool and everything the maps say of it.
///
/// # Errors
/// EBUSY for a pool of a file system, EPERM when deletion is not allowed.
pub fn delete(work: &mut Work, id: PoolId) -> Result<(), Refusal> {
    if crate::commands::fs::user_of_pool(&work.state.fsmap, id) {
        return Err((EBUSY, format!("pool '{}' is in use by CephFS", work.osd().pool_name(id))));
    }
    if !work.state.option_bool("mon_allow_pool_delete") {
        return Err((
            EPERM,
            "pool deletion is disabled; you must first set the \
            mon_allow_pool_delete config option to true before you can destroy a pool"
                .into(),
        ));
    }
    if work.osd().pool(id).is_some_and(|p| p.has_flag(flag::NODELETE)) {
        return Err((
            EPERM,
            "pool deletion is disabled; you must unset nodelete flag for the pool first".into(),
        ));
    }
    let map = work.osd_mut();
    map.pools.remove(&id);
    map.pool_names.remove(&id);
    map.pg_temp.retain(|pg, _| pg.pool != id);
    map.primary_temp.retain(|pg, _| pg.pool != id);
    map.pg_upmap.retain(|pg, _| pg.pool != id);
    map.pg_upmap_items.retain(|pg, _| pg.pool != id);
    map.new_removed_snaps.remove(&id);
    // Nobody will say of its snapshots that they are purged.
    if let Some(queue) = map.removed_snaps_queue.get(&id).cloned() {
        map.new_purged_snaps.insert(id, queue);
    }
    if map.crush.choose_args.contains_key(&id) {
        let dropped = work.edit_crush(|c| {
            c.remove_weight_set(id);
            Ok::<_, std::convert::Infallible>(())
        });
        debug_assert!(dropped.is_ok());
    }
    if work.state.creating.keys().any(|pg| pg.pool == id) {
        Arc::make_mut(&mut work.state.creating).retain(|pg, _| pg.pool != id);
    }
    if work.state.created.keys().any(|pg| pg.pool == id) {
        Arc::make_mut(&mut work.state.created).retain(|pg, _| pg.pool != id);
    }
    Ok(())
}

/// Which of the PGs asked for may begin empty. The creation it is granted to is written down.
pub fn grant(work: &mut Work, ask: &PgCreateAsk) -> PgCreateGrant {
    let mut answer = PgCreateGrant {
        granted: BTreeMap::new(),
        creations: BTreeMap::new(),
        refused: BTreeMap::new(),
    };
    for (pg, creation) in &ask.pgids {
        if work.osd().pool(pg.pool).is_none_or(|p| pg.seed >= p.pg_num) {
            continue;
        }
        let last = work.state.created.get(pg).copied().unwrap_or(0);
        let Some(since) = work.state.creating.get(pg).copied() else {
            answer.refused.insert(*pg, last);
            continue;
        };
        // Without a name it is asked about a PG of which the asker's own was a part.
        if *creation > last {
            Arc::make_mut(&mut work.state.created).insert(*pg, *creation);
        }
        if *creation == 0 || *creation >= last {
            answer.granted.insert(*pg, since);
            answer.creations.insert(*pg, *creation);
        }
    }
    answer
}

/// Takes PGs out of the creating set; a pool without any left is no longer being created. Of
/// the creations of one PG only the one granted last counts, and the one accepted counts for
/// ever. Returns that one for each PG; nothing is said about one that cannot count any more.
pub fn pgs_created(work: &mut Work, pgids: &BTreeMap<PgId, Epoch>) -> BTreeMap<PgId, Epoch> {
    let mut pools: Vec<PoolId> = Vec::new();
    for (pg, epoch) in pgids {
        let granted = work.state.created.get(pg).copied().unwrap_or(0);
        if work.state.creating.contains_key(pg) && *epoch >= granted {
            Arc::make_mut(&mut work.state.creating).remove(pg);
            Arc::make_mut(&mut work.state.created).insert(*pg, *epoch);
            if !pools.contains(&pg.pool) {
                pools.push(pg.pool);
            }
        }
    }
    for id in pools {
        let done = work
            .state
            .creating
            .range(PgId::new(id, 0)..)
            .next()
            .is_none_or(|(pg, _)| pg.pool != id);
        let flagged = work.osd().pool(id).is_some_and(|p| p.has_flag(flag::CREATING));
        if done
            && flagged
            && let Some(p) = work.osd_mut().pools.get_mut(&id)
        {
            p.flags &= !flag::CREATING;
        }
    }
    let settled = pgids.keys().filter(|pg| !work.state.creating.contains_key(pg));
    settled.map(|pg| (*pg, work.state.created.get(pg).copied().unwrap_or(0))).collect()
}

/// A client's pool operation: result (0 or −errno) and, for a new snapshot, its id.
pub fn pool_op(work: &mut Work, fsid: Uuid, m: &MPoolOp) -> (i32, Option<Bytes>) {
    if m.fsid != fsid {
        return (-EINVAL, None);
    }
    let id = PoolId::from(m.pool);
    let plain = |r: Result<(), Refusal>| (r.map_or_else(|(e, _)| -e, |()| 0), None);
    match m.op {
        op::CREATE => {
            let crush_rule = u32::try_from(m.crush_rule).ok();
            let new = NewPool { name: m.name.clone(), crush_rule, ..NewPool::default() };
            plain(create(work, &new).map(|_| ()))
        }
        op::DELETE if work.osd().pool(id).is_none() => (-ENOENT, None),
        op::DELETE => plain(delete(work, id)),
        op::CREATE_SNAP
        | op::DELETE_SNAP
        | op::CREATE_UNMANAGED_SNAP
        | op::DELETE_UNMANAGED_SNAP => crate::snaps::pool_op(work, m),
        _ => (-EINVAL, None),
    }
}

/// Bytes that clients can still store in a pool.
pub fn max_avail(view: &ClusterView<'_>, id: PoolId) -> u64 {
    let Some(pool) = view.osdmap.pool(id) else { return 0 };
    let avail = crate::report::df::rule_avail(view, u32::from(pool.crush_rule)) as f64;
    (avail / f64::from(crate::report::df::raw_rate(view, pool)).max(1.0)) as u64
}
