//! What members of a PG keep must agree, while everything happens and in the end.
//!
//! Looked at after each event of an OSD, for those of its own copies whose log or interval it
//! changed, or which began to read or to take writes by it (and for all of them after every
//! [`EVERY`]th); and when a client is told that its write is done:
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
use spirula_osd::OsdCore;
use spirula_pg::{LogEntry, Look, Pg};
use spirula_types::{EVersion, Epoch, OsdId, Peer, PgId, ReqId, SpgId};
use std::collections::{BTreeMap, BTreeSet};

/// One in so many events of OSDs is followed by a look at all its copies.
const EVERY: u64 = 8;
/// Entries of a log that are looked at then.
const NEWEST: usize = 16;

/// What clients know to have happened.
#[derive(Debug, Default)]
pub struct Acked {
    /// The newest version acknowledged in each PG since its pool's PGs were split or folded last.
    newest: BTreeMap<PgId, EVersion>,
    /// PGs of each pool by what was noted last, and the epoch of the first version noted since they
    /// are so many.
    pg_num: BTreeMap<i64, (u32, Epoch)>,
    /// PGs of each pool as their copies last said, and the epoch in which one first did: entries
    /// from before may be in other logs.
    shaped: BTreeMap<i64, (u32, Epoch)>,
}

/// What changes when a copy must be looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    since: Epoch,
    epoch: Epoch,
    les: Epoch,
    head: EVersion,
    writes: bool,
    reads: bool,
}

/// What is looked at of a primary.
struct Leader {
    osd: OsdId,
    id: SpgId,
    since: Epoch,
    epoch: Epoch,
    les: Epoch,
    head: EVersion,
    /// How many PGs its pool has there, and when that changed last, as far as it knows.
    pg_num: u32,
    shaped: Epoch,
    acting: Vec<(OsdId, SpgId)>,
}

impl Leader {
    fn of(osd: OsdId, pg: &Pg, look: &Look<'_>) -> Self {
        let (id, pg_num, shaped) = (pg.id(), pg.pg_num(), pg.shaped());
        let acting = look.acting.iter().map(|m| (m.osd, SpgId::new(id.pg, m.shard))).collect();
        let (since, epoch, les, head) = (look.since, look.epoch, look.info.les, look.log.head());
        Self { osd, id, since, epoch, les, head, pg_num, shaped, acting }
    }
}

impl Acked {
    /// A client was told that a write of this PG has this version.
    pub fn note(&mut self, pg: PgId, pg_num: u32, version: EVersion) {
        let noted = self.newest.iter().filter(|(other, _)| other.pool == pg.pool);
        let newest = noted.map(|(_, v)| v.epoch).max().unwrap_or(0);
        let (num, since) = self.pg_num.entry(pg.pool).or_insert((pg_num, 0));
        // Where PGs were split or merged, what was acknowledged in one before may be in another's
        // log: it all begins anew with the first change of a later epoch, and what is heard late of
        // an earlier one is left out.
        if *num != pg_num && version.epoch > newest {
            (*num, *since) = (pg_num, version.epoch);
            self.newest.retain(|other, _| other.pool != pg.pool);
        } else if *num != pg_num || version.epoch < *since {
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

    /// That of a PG, if its members count as many as the clients, and it was noted since `shaped`,
    /// when they became so many.
    fn of(&self, pg: PgId, pg_num: u32, shaped: Epoch) -> Option<EVersion> {
        let same = self.pg_num.get(&pg.pool).is_some_and(|(num, _)| *num == pg_num);
        self.newest.get(&pg).copied().filter(|v| same && v.epoch >= shaped)
    }
}

/// Entries of a log that do not follow each other. A new epoch's may leave numbers out that were
/// taken back; those from before its pool's PGs were split or folded last may be in another log,
/// also of a copy that came after that, from one that was split.
fn gap(look: &Look<'_>, shaped: Epoch, newest: usize) -> Option<String> {
    let mut after: Option<EVersion> = None;
    for e in look.log.iter().rev().take(newest).take_while(|e| e.version.epoch >= shaped) {
        if let Some(next) = after
            && (e.version.epoch > next.epoch
                || e.version.epoch == next.epoch && e.version.version + 1 != next.version)
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
        let now_ms = OsdCore::pg_time(self.world.local(actor).mono);
        let all = self.world.steps.is_multiple_of(EVERY);
        let (mut leaders, mut members, mut readers) = (Vec::new(), Vec::new(), Vec::new());
        let (acked, looked) = (&mut self.acked, &mut self.looked);
        let see = |o: &mut OsdActor| {
            let osd = o.id;
            let Some(daemon) = o.osd() else { return Ok(()) };
            for pg in daemon.pgs() {
                let Some(look) = pg.look() else { continue };
                let writes = look.serves.is_some() && pg.would_write(now_ms);
                let reads = writes && pg.would_read(daemon.leases(), now_ms);
                let (since, epoch, les, head) =
                    (look.since, look.epoch, look.info.les, look.log.head());
                let seen = Seen { since, epoch, les, head, writes, reads };
                let before = looked.insert((osd, pg.id()), seen);
                if !all && before == Some(seen) {
                    continue;
                }
                let shaped =
                    acked.shaped(pg.id().pg.pool, pg.pg_num(), look.epoch).max(pg.shaped());
                if let Some(why) = gap(&look, shaped, NEWEST) {
                    return Err(Sign::Log.of(format!("osd.{osd}, pg {}: {why}", pg.id())));
                }
                if writes {
                    leaders.push(Leader::of(osd, pg, &look));
                } else if before != Some(seen) {
                    members.push(pg.id().pg);
                }
                if reads && before.is_none_or(|b| !b.reads) {
                    readers.push(pg.id().pg);
                }
            }
            Ok(())
        };
        self.world.with(actor, see).unwrap_or(Ok(()))?;
        for leader in leaders {
            self.look_at_members(&leader)?;
            self.nobody_else_reads(&leader)?;
        }
        self.look_at_leaders(members)?;
        for pg in readers {
            for leader in self.leaders_of(pg) {
                self.nobody_else_reads(&leader)?;
            }
        }
        Ok(())
    }

    /// Looks at those who lead these PGs: a member has changed its log, or a client was told that a
    /// write is done.
    pub fn look_at_leaders(&mut self, pgs: impl IntoIterator<Item = PgId>) -> Result<(), Wrong> {
        for pg in pgs {
            for leader in self.leaders_of(pg) {
                self.look_at_members(&leader)?;
            }
        }
        Ok(())
    }

    /// The copies of a PG that take writes.
    fn leaders_of(&mut self, pg: PgId) -> Vec<Leader> {
        let mut leaders = Vec::new();
        for actor in self.osds.clone() {
            let now_ms = OsdCore::pg_time(self.world.local(actor).mono);
            let see = |o: &mut OsdActor| {
                let p = o.osd()?.pgs().find(|p| p.id().pg == pg && p.would_write(now_ms))?;
                Some(Leader::of(o.id, p, &p.look()?))
            };
            leaders.extend(self.world.with(actor, see).flatten());
        }
        leaders
    }

    fn look_at_members(&mut self, leader: &Leader) -> Result<(), Wrong> {
        let Leader { osd, id, since, les, head, pg_num, .. } = leader;
        let shaped = self.acked.shaped(id.pg.pool, *pg_num, leader.epoch).max(leader.shaped);
        // A version has the epoch of the map that its primary had. Who has not seen that map may
        // have been replaced before it, and not know; who has seen it, and leads since before it,
        // made that version itself.
        let acked = self
            .acked
            .of(id.pg, *pg_num, shaped)
            .filter(|v| v.epoch <= leader.epoch)
            .unwrap_or_default();
        if *head < acked {
            let why = format!("osd.{osd} leads pg {id} up to {head}, and {acked} was acknowledged");
            return Err(Sign::Log.of(why));
        }
        for (member, shard) in leader.acting.iter().filter(|(m, _)| m != osd) {
            let Some(actor) = self.actor_of(*member) else { continue };
            if self.lies(actor) {
                // Its disk loses at a power failure what it said was flushed: its log ends earlier
                // until its primary has asked it.
                continue;
            }
            let there = |o: &mut OsdActor| {
                let pg = o.osd()?.pgs().find(|p| p.id() == *shard)?;
                let look = pg.look().filter(|l| l.since == *since && l.info.les == *les)?;
                let newest =
                    look.log.iter().next_back().map(|e| (e.version, e.reqid, e.object.clone()));
                Some((look.log.head(), newest))
            };
            let Some((its, newest)) = self.world.with(actor, there).flatten() else { continue };
            if its > *head || its < acked {
                let why = format!(
                    "osd.{member} acts in pg {id} with osd.{osd} (since {since}): its log ends at \
                        {its}, the primary's at {head}, \
                     and {acked} was acknowledged"
                );
                return Err(Sign::Log.of(why));
            }
            let Some((version, reqid, object)) = newest else { continue };
            let Some(first) = self.actor_of(*osd) else { continue };
            let same = |o: &mut OsdActor| {
                let log = o.osd()?.pgs().find(|p| p.id() == *id)?.look()?.log;
                // What a PG asks of itself has no number of a client's: by that alone all trims
                // would be alike.
                let same = |e: &LogEntry| e.reqid == reqid && e.object == object;
                Some(version <= log.tail() || log.at(version).is_some_and(same))
            };
            if self.world.with(first, same).flatten() == Some(false) {
                let why = format!(
                    "osd.{member}, pg {id}: entry {version} of {reqid:?} on {object} is not in the \
                        log of osd.{osd}"
                );
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
            let now_ms = OsdCore::pg_time(self.world.local(other).mono);
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

    /// In the end, with every PG clean: nobody lacks anything, members remember the same requests
    /// and count alike.
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
                    let shaped =
                        acked.shaped(pg.id().pg.pool, pg.pg_num(), look.epoch).max(pg.shaped());
                    if let Some(why) = gap(&look, shaped, usize::MAX) {
                        return Err(Sign::Log.of(format!("osd.{osd}, pg {}: {why}", pg.id())));
                    }
                    if !look.missing.is_empty() {
                        let lacks = look.missing.len();
                        return Err(Sign::Books.of(format!(
                            "osd.{osd}, clean pg {}: lacks {lacks} objects",
                            pg.id()
                        )));
                    }
                    let c = &look.info.head.counts;
                    let counts = [c.objects, c.bytes, c.omap_objects, c.omap_keys];
                    let log = look.log.iter().map(|e| (e.version, e.reqid));
                    let known = log.chain(look.log.dups().map(|d| (d.version, d.reqid))).collect();
                    books.entry(pg.id().pg).or_default().push((
                        osd,
                        counts,
                        known,
                        look.log.head(),
                    ));
                }
                Ok(())
            };
            self.world.with(actor, see).unwrap_or(Ok(()))?;
        }
        for (pg, all) in books {
            let Some((first, counts, known, head)) = all.first() else { continue };
            for (other, its_counts, its_known, its_head) in &all {
                if head != its_head {
                    let why = format!(
                        "clean pg {pg} ends at {head} on osd.{first}, at {its_head} on osd.{other}"
                    );
                    return Err(Sign::Log.of(why));
                }
                if counts != its_counts {
                    let why = format!(
                        "pg {pg} counts {counts:?} on osd.{first}, {its_counts:?} on osd.{other}"
                    );
                    return Err(Sign::Books.of(why));
                }
                if known != its_known {
                    let differ: Vec<_> = known.symmetric_difference(its_known).take(4).collect();
                    let (a, b) = (known.len(), its_known.len());
                    let why = format!(
                        "pg {pg}: osd.{first} remembers {a} requests, osd.{other} {b}; they differ \
                            in {differ:?} and others"
                    );
                    return Err(Sign::Books.of(why));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pg(seed: u32) -> PgId {
        PgId::new(1, seed)
    }

    fn v(epoch: Epoch, version: u64) -> EVersion {
        EVersion::new(epoch, version)
    }

    #[test]
    fn what_is_acknowledged_after_a_split_counts_again_and_what_was_before_does_not() {
        let mut a = Acked::default();
        a.note(pg(1), 4, v(10, 7));
        a.note(pg(1), 4, v(9, 6));
        assert_eq!((a.of(pg(1), 4, 0), a.of(pg(1), 8, 0)), (Some(v(10, 7)), None));
        a.note(pg(5), 8, v(12, 3));
        assert_eq!(
            (a.of(pg(5), 8, 11), a.of(pg(1), 8, 11)),
            (Some(v(12, 3)), None),
            "by the new number of PGs"
        );
        a.note(pg(1), 4, v(11, 9));
        assert_eq!((a.of(pg(1), 4, 0), a.of(pg(1), 8, 0)), (None, None), "heard of late");
        // Merged again, in part before anything was noted.
        a.note(pg(1), 4, v(20, 9));
        a.note(pg(1), 4, v(11, 8));
        assert_eq!((a.of(pg(1), 4, 15), a.of(pg(5), 8, 0)), (Some(v(20, 9)), None));
        assert_eq!(
            a.of(pg(1), 4, 21),
            None,
            "it was shaped anew since, twice, and nobody was told of a change in between"
        );
    }
}
