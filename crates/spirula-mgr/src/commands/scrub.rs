//! `pg scrub`, `osd scrub`, `osd pool scrub` and their like: orders to OSDs.

use super::spec::{Ctx, Order, Reply, parse_osd};
use spirula_messages::cluster::control::OsdScrub;
use spirula_types::{OsdId, PgId, errno};
use std::collections::BTreeMap;

/// The last word of the command, which says what kind of scrub it is.
fn kind<'a>(c: &Ctx<'a>) -> &'a str {
    let prefix = c.args.get("prefix").and_then(serde_json::Value::as_str).unwrap_or_default();
    prefix.rsplit(' ').next().unwrap_or_default()
}

fn order(c: &Ctx<'_>, pgs: Vec<PgId>) -> Order {
    let (deep, repair) = (kind(c) != "scrub", kind(c) == "repair");
    Order::Scrub(OsdScrub { pgs, deep, repair })
}

/// `pg scrub|deep-scrub|repair PGID`.
pub(super) fn pg(c: &Ctx<'_>) -> Reply {
    let text = c.str("pgid").unwrap_or_default();
    let Some(pg) = PgId::parse(&text) else {
        return Reply::invalid(format!("invalid pgid '{text}'"));
    };
    let Some(stat) = c.mgr.pgmap.pgs().get(&pg) else {
        return Reply::err(errno::ENOENT, format!("pg {pg} does not exist"));
    };
    let primary = stat.acting_primary;
    if primary < 0 {
        return Reply::err(errno::EAGAIN, format!("pg {pg} has no primary osd"));
    }
    if !c.mgr.hears(primary) {
        return Reply::err(
            errno::EAGAIN,
            format!("pg {pg} primary osd.{primary} is not currently connected"),
        );
    }
    let mut r = Reply::ok(format!("instructing pg {pg} on osd.{primary} to {}", kind(c)));
    r.orders.push((primary, order(c, vec![pg])));
    r
}

/// `osd scrub|deep-scrub|repair WHO`: every PG that the OSD leads.
pub(super) fn osd(c: &Ctx<'_>) -> Reply {
    let who = c.str("who").unwrap_or_default();
    let map = &c.mgr.map;
    let osds: Vec<OsdId> = if matches!(who.as_str(), "*" | "all" | "any") {
        (0..map.max_osd()).filter(|o| map.is_up(*o)).collect()
    } else {
        let Some(osd) = parse_osd(&who) else {
            return Reply::invalid(format!("invalid osd '{who}'"));
        };
        if !map.is_up(osd) {
            return Reply::err(errno::EAGAIN, format!("osd.{osd} is not up"));
        }
        vec![osd]
    };
    let text: Vec<String> = osds.iter().map(ToString::to_string).collect();
    if let Some(deaf) = osds.iter().find(|o| !c.mgr.hears(**o)) {
        return Reply::err(errno::EAGAIN, format!("osd.{deaf} is not currently connected"));
    }
    let mut r = Reply::ok(format!("osd(s) {} instructed to {}", text.join(","), kind(c)));
    r.orders = osds.into_iter().map(|o| (o, order(c, Vec::new()))).collect();
    r
}

/// `osd pool scrub|deep-scrub|repair POOL…`.
pub(super) fn pool(c: &Ctx<'_>) -> Reply {
    let mut of: BTreeMap<OsdId, Vec<PgId>> = BTreeMap::new();
    for name in c.list("who") {
        let Some(pool) = c.mgr.map.pools.keys().find(|p| c.mgr.map.pool_name(**p) == name) else {
            return Reply::err(errno::ENOENT, format!("unrecognized pool '{name}'"));
        };
        for (pg, stat) in c.mgr.pgmap.pgs().iter().filter(|(pg, _)| pg.pool == *pool) {
            of.entry(stat.acting_primary).or_default().push(*pg);
        }
    }
    let mut r = Reply::default();
    for (osd, pgs) in of {
        if osd >= 0 && c.mgr.hears(osd) {
            r.orders.push((osd, order(c, pgs)));
            continue;
        }
        // Whoever can be reached scrubs all the same.
        let names: Vec<String> = pgs.iter().map(ToString::to_string).collect();
        let why = if osd < 0 {
            "no primary osd".to_owned()
        } else {
            format!("primary osd.{osd} is not currently connected")
        };
        r.rs += &format!("pg(s) [{}]: {why}; ", names.join(","));
        r.ret = -errno::EAGAIN;
    }
    r
}
