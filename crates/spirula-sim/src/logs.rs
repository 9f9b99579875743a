//! What members of a PG keep must agree, while everything happens and in the end.
//!
//! Looked at on every [`EVERY`]th event of an OSD, for its own copies:
//!
//! * a log's entries of one epoch follow each other without a gap (the newest [`NEWEST`] of them
//!   are looked at; in peace all of them);
//! * a primary that takes writes has every version in its log that was acknowledged up to the epoch
//!   that it knows. (A primary that was replaced and has not heard of it takes writes, and
//!   acknowledges none.) So has every member that acts with it in the same interval and was
//!   activated in it, whose log is a beginning of the primary's;
//! * while a primary takes writes, no other OSD would read for a client as the primary of an
//!   earlier interval.

use crate::osd::OsdActor;
use crate::scenario::Scene;
use crate::world::ActorId;
use crate::wrong::{Sign, Wrong};
use spirula_osd::Osd;
use spirula_pg::{Look, Pg};
use spirula_types::{EVersion, Epoch, OsdId, Peer, PgId, ReqId, SpgId};
use std::collections::{BTreeMap, BTreeSet};

/// One in so many events of OSDs is followed by a look.
pub const EVERY: u64 = 8;
/// Entries of a log that are looked at then.
const NEWEST: usize = 16;

/// What clients know to have happened.
#[derive(Debug, Default)]
pub struct Acked {
    /// The newest version acknowledged in each PG.
    pub newest: BTreeMap<PgId, EVersion>,
    /// PGs of each pool when the first was noted; 0 once there were more or fewer.
    pub pg_num: BTreeMap<i64, u32>,
    /// PGs of each pool as their copies last said, and the epoch in which one first did: entries from before may be in other logs.
    shaped: BTreeMap<i64, (u32, Epoch)>,
}

/// What is looked at of a primary.
struct Leader {
    osd: OsdId,
    id: SpgId,
    since: Epoch,
    epoch: Epoch,
    les: Epoch,
    head: EVersion,
    acting: Vec<(OsdId, SpgId)>,
}

impl Acked {
    /// A client was told that a write of this PG has this version.
    pub fn note(&mut self, pg: PgId, pg_num: u32, version: EVersion) {
        // A pool whose PGs were ever split or merged is left out: what was acknowledged in one may be in another's log.
        if *self.pg_num.entry(pg.pool).or_insert(pg_num) != pg_num {
            self.pg_num.insert(pg.pool, 0);
            self.newest.retain(|other, _| other.pool != pg.pool);
            return;
        }
        let newest = self.newest.entry(pg).or_default();
        *newest = (*newest).max(version);
    }

    /// A copy of a PG, in this epoch, is one of so many of its pool; since when they are so many.
    fn shaped(&mut self, pool: i64, pg_num: u32, epoch: Epoch) -> Epoch {
        let (num, since) = self.shaped.entry(pool).or_insert((pg_num, 0));
        if *num != pg_num && epoch > *since {
            (*num, *since) = (pg_num, epoch);
        }
        *since
    }

    /// That of a PG, if its members count as many as the clients.
    fn of(&self, pg: PgId, pg_num: u32) -> Option<EVersion> {
        self.newest.get(&pg).copied().filter(|_| self.pg_num.get(&pg.pool) == Some(&pg_num))
    }
}

/// Entries of a log that do not follow each other. A new epoch's may leave numbers out that were taken back; those from before
/// its pool's PGs were split or folded last may be in another log, also of a copy that came after that, from one that was split.
fn gap(look: &Look<'_>, shaped: Epoch, newest: usize) -> Option<String> {
    let mut after: Option<EVersion> = None;
    for e in look.log.iter().rev().take(newest).take_while(|e| e.version.epoch >= shaped) {
        if let Some(next) = after
            && (e.version.epoch > next.epoch || e.version.epoch == next.epoch && e.version.version + 1 != next.version)
        {
            return Some(format!("entry {next} follows {}", e.version));
        }
        after = Some(e.version);
    }
    None
}

impl Scene {
    /// Looks at the copies of an OSD that did something.
    pub fn look_at_logs(&mut self, actor: ActorId) -> Result<(), Wrong> {
        let now_ms = Osd::pg_time(self.world.local(actor).mono);
        let mut leaders = Vec::new();
        let acked = &mut self.acked;
        let see = |o: &mut OsdActor| {
            let osd = o.id;
            for pg in o.osd().into_iter().flat_map(|o| o.pgs()) {
                let Some(look) = pg.look() else { continue };
                let shaped = acked.shaped(pg.id().pg.pool, pg.pg_num(), look.epoch).max(pg.shaped());
                if let Some(why) = gap(&look, shaped, NEWEST) {
                    return Err(Sign::Log.of(format!("osd.{osd}, pg {}: {why}", pg.id())));
                }
                if look.serves.is_some() && pg.would_write(now_ms) {
                    let acting = look.acting.iter().map(|m| (m.osd, SpgId::new(pg.id().pg, m.shard))).collect();
                    let (since, epoch, les, head) = (look.since, look.epoch, look.info.les, look.log.head());
                    leaders.push((Leader { osd, id: pg.id(), since, epoch, les, head, acting }, pg.pg_num()));
                }
            }
            Ok(())
        };
        self.world.with(actor, see).unwrap_or(Ok(()))?;
        for (leader, pg_num) in leaders {
            self.look_at_members(&leader, pg_num)?;
            self.nobody_else_reads(&leader)?;
        }
        Ok(())
    }

    fn look_at_members(&mut self, leader: &Leader, pg_num: u32) -> Result<(), Wrong> {
        let Leader { osd, id, since, les, head, .. } = leader;
        // A version has the epoch of the map that its primary had. Who has not seen that map may have been replaced before
        // it, and not know; who has seen it, and leads since before it, made that version itself.
        let acked = self.acked.of(id.pg, pg_num).filter(|v| v.epoch <= leader.epoch).unwrap_or_default();
        if *head < acked {
            let why = format!("osd.{osd} leads pg {id} up to {head}, and {acked} was acknowledged");
            return Err(Sign::Log.of(why));
        }
        for (member, shard) in leader.acting.iter().filter(|(m, _)| m != osd) {
            let Some(actor) = self.actor_of(*member) else { continue };
            if self.lies(actor) {
                // Its disk loses at a power failure what it said was flushed: its log ends earlier until its primary has asked it.
                continue;
            }
            let there = |o: &mut OsdActor| {
                let pg = o.osd()?.pgs().find(|p| p.id() == *shard)?;
                let look = pg.look().filter(|l| l.since == *since && l.info.les == *les)?;
                let newest = look.log.iter().next_back().map(|e| (e.version, e.reqid));
                Some((look.log.head(), newest))
            };
            let Some((its, newest)) = self.world.with(actor, there).flatten() else { continue };
            if its > *head || its < acked {
                let why = format!(
                    "osd.{member} acts in pg {id} with osd.{osd} (since {since}): its log ends at {its}, the primary's at {head}, \
                     and {acked} was acknowledged"
                );
                return Err(Sign::Log.of(why));
            }
            let Some((version, reqid)) = newest else { continue };
            let Some(first) = self.actor_of(*osd) else { continue };
            let same = |o: &mut OsdActor| {
                let log = o.osd()?.pgs().find(|p| p.id() == *id)?.look()?.log;
                Some(version <= log.tail() || log.at(version).is_some_and(|e| e.reqid == reqid))
            };
            if self.world.with(first, same).flatten() == Some(false) {
                let why = format!("osd.{member}, pg {id}: entry {version} of {reqid:?} is not in the log of osd.{osd}");
                return Err(Sign::Log.of(why));
            }
        }
        Ok(())
    }

    /// Whoever led before the one who takes writes now reads for nobody.
    fn nobody_else_reads(&mut self, leader: &Leader) -> Result<(), Wrong> {
        for other in self.osds.clone() {
            if self.world.is_paused(other) || !self.world.is_up(other) {
                continue;
            }
            let now_ms = Osd::pg_time(self.world.local(other).mono);
            let reads = |o: &mut OsdActor| {
                let (id, osd) = (o.id, o.osd()?);
                let reads = |p: &&Pg| {
                    p.id().pg == leader.id.pg
                        && (id, p.id()) != (leader.osd, leader.id)
                        && p.look().is_some_and(|l| l.since < leader.since)
                        && p.would_read(osd.leases(), now_ms)
                };
                osd.pgs().find(reads).and_then(|p| {
                    let look = p.look()?;
                    let held = |m: &Peer| osd.leases().held_until(m.osd) as i64 - now_ms as i64;
                    let acting: Vec<_> = look.acting.iter().map(|m| (m.osd, held(m))).collect();
                    Some(format!(
                        "osd.{id} reads for {} (since {}, acting and lease left {acting:?})",
                        p.id(),
                        look.since
                    ))
                })
            };
            if let Some(reader) = self.world.with(other, reads).flatten() {
                let acting: Vec<OsdId> = leader.acting.iter().map(|(m, _)| *m).collect();
                let why = format!(
                    "osd.{} takes writes for pg {} (since {}, {acting:?}) while {reader}",
                    leader.osd, leader.id, leader.since
                );
                return Err(Sign::Serves.of(why));
            }
        }
        Ok(())
    }

    /// In the end, with every PG clean: nobody lacks anything, members remember the same requests and count alike.
    pub fn books_agree(&mut self) -> Result<(), Wrong> {
        type Book = (OsdId, [i64; 4], BTreeSet<(EVersion, ReqId)>, EVersion);
        let Some(map) = self.map() else { return Ok(()) };
        let mut books: BTreeMap<PgId, Vec<Book>> = BTreeMap::new();
        let acked = &mut self.acked;
        for actor in self.osds.clone() {
            let see = |o: &mut OsdActor| {
                let osd = o.id;
                for pg in o.osd().into_iter().flat_map(|o| o.pgs()) {
                    let place = map.pg_to_up_acting(pg.id().pg);
                    let member = if pg.id().shard < 0 {
                        place.acting.contains(&osd)
                    } else {
                        place.acting.get(pg.id().shard as usize) == Some(&osd)
                    };
                    let Some(look) = pg.look().filter(|_| member) else { continue };
                    let shaped = acked.shaped(pg.id().pg.pool, pg.pg_num(), look.epoch).max(pg.shaped());
                    if let Some(why) = gap(&look, shaped, usize::MAX) {
                        return Err(Sign::Log.of(format!("osd.{osd}, pg {}: {why}", pg.id())));
                    }
                    if !look.missing.is_empty() {
                        let lacks = look.missing.len();
                        return Err(Sign::Books.of(format!("osd.{osd}, clean pg {}: lacks {lacks} objects", pg.id())));
                    }
                    let c = &look.info.head.counts;
                    let counts = [c.objects, c.bytes, c.omap_objects, c.omap_keys];
                    let log = look.log.iter().map(|e| (e.version, e.reqid));
                    let known = log.chain(look.log.dups().map(|d| (d.version, d.reqid))).collect();
                    books.entry(pg.id().pg).or_default().push((osd, counts, known, look.log.head()));
                }
                Ok(())
            };
            self.world.with(actor, see).unwrap_or(Ok(()))?;
        }
        for (pg, all) in books {
            let Some((first, counts, known, head)) = all.first() else { continue };
            for (other, its_counts, its_known, its_head) in &all {
                if head != its_head {
                    let why = format!("clean pg {pg} ends at {head} on osd.{first}, at {its_head} on osd.{other}");
                    return Err(Sign::Log.of(why));
                }
                if counts != its_counts {
                    let why = format!("pg {pg} counts {counts:?} on osd.{first}, {its_counts:?} on osd.{other}");
                    return Err(Sign::Books.of(why));
                }
                if known != its_known {
                    let differ: Vec<_> = known.symmetric_difference(its_known).take(4).collect();
                    let (a, b) = (known.len(), its_known.len());
                    let why = format!(
                        "pg {pg}: osd.{first} remembers {a} requests, osd.{other} {b}; they differ in {differ:?} and others"
                    );
                    return Err(Sign::Books.of(why));
                }
            }
        }
        Ok(())
    }
}
