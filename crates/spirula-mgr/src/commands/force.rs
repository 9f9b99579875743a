//! `pg force-recovery`, `osd pool cancel-force-backfill` and their like: whose recovery goes first.

use super::spec::{Ctx, Order, Reply};
use spirula_maps::{PgStat, PgState};
use spirula_messages::cluster::control::OsdForce;
use spirula_types::{OsdId, PgId, errno};
use std::collections::BTreeMap;

/// What a command asks for.
struct Ask<'a> {
    /// Its last word: `force-recovery`, `cancel-force-backfill`…
    word: &'a str,
    backfill: bool,
    on: bool,
}

fn ask<'a>(c: &Ctx<'a>) -> Ask<'a> {
    let prefix = c.args.get("prefix").and_then(serde_json::Value::as_str).unwrap_or_default();
    let word = prefix.rsplit(' ').next().unwrap_or_default();
    Ask { word, backfill: word.ends_with("backfill"), on: !word.starts_with("cancel") }
}

impl Ask<'_> {
    /// Why the command means nothing to a PG, in Ceph's words; `None` if it does.
    fn refuses(&self, pg: PgId, stat: &PgStat) -> Option<String> {
        let s = stat.state;
        let what = if self.backfill { "backfill" } else { "recovery" };
        let (forced, moving) = match self.backfill {
            true => {
                let moving = PgState::DEGRADED
                    | PgState::BACKFILL_WAIT
                    | PgState::BACKFILLING
                    | PgState::REMAPPED;
                (PgState::FORCED_BACKFILL, moving)
            }
            false => (
                PgState::FORCED_RECOVERY,
                PgState::DEGRADED | PgState::RECOVERY_WAIT | PgState::RECOVERING,
            ),
        };
        match (self.on, s.has(forced)) {
            (true, true) => Some(format!("pg {pg} {what} already forced; ")),
            (true, false) if !s.any(moving) => Some(format!("pg {pg} doesn't require {what}; ")),
            (false, false) => Some(format!("pg {pg} {what} not forced; ")),
            _ => None,
        }
    }
}

/// The orders for these PGs, with what is said of each.
fn instruct(
    c: &Ctx<'_>,
    ask: &Ask<'_>,
    wanted: Vec<PgId>,
    mut said: String,
    failed: bool,
) -> Reply {
    let mut of: BTreeMap<OsdId, Vec<PgId>> = BTreeMap::new();
    let mut bad = failed;
    for pg in wanted {
        let Some(stat) = c.mgr.pgmap.pgs().get(&pg) else {
            said += &format!("pg {pg} does not exist; ");
            bad = true;
            continue;
        };
        match ask.refuses(pg, stat) {
            // Not an error: what is wanted is so already.
            Some(why) => said += &why,
            None => of.entry(stat.acting_primary).or_default().push(pg),
        }
    }
    let mut r =
        Reply { ret: if bad && of.is_empty() { -errno::ENOENT } else { 0 }, ..Reply::default() };
    for (osd, pgs) in of {
        if !c.mgr.hears(osd) {
            said += &format!("osd.{osd} is not currently connected");
            r.ret = -errno::EAGAIN;
            continue;
        }
        let names: Vec<String> = pgs.iter().map(ToString::to_string).collect();
        said += &format!("instructing pg(s) [{}] on osd.{osd} to {}; ", names.join(","), ask.word);
        r.orders.push((osd, Order::Force(OsdForce { pgs, backfill: ask.backfill, on: ask.on })));
    }
    r.rs = said;
    r
}

/// `pg force-recovery|force-backfill|cancel-force-recovery|cancel-force-backfill PGID…`.
pub(super) fn pg(c: &Ctx<'_>) -> Reply {
    let (mut pgs, mut said, mut failed) = (Vec::new(), String::new(), false);
    for text in c.list("pgid") {
        match PgId::parse(&text) {
            Some(pg) if pgs.contains(&pg) => {}
            Some(pg) => pgs.push(pg),
            None => {
                said += &format!("invalid pgid '{text}'; ");
                failed = true;
            }
        }
    }
    instruct(c, &ask(c), pgs, said, failed)
}

/// `osd pool force-recovery|… POOL…`.
pub(super) fn pool(c: &Ctx<'_>) -> Reply {
    let (ask, mut pgs) = (ask(c), Vec::new());
    for name in c.list("who") {
        let Some(pool) = c.mgr.map.pools.keys().find(|p| c.mgr.map.pool_name(**p) == name) else {
            return Reply::err(errno::ENOENT, format!("unrecognized pool '{name}'"));
        };
        pgs.extend(c.mgr.pgmap.pgs().keys().filter(|pg| pg.pool == *pool).copied());
    }
    instruct(c, &ask, pgs, String::new(), false)
}
