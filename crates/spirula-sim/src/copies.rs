//! What is stored in the end: every store is sound, copies are alike, shards make one object, and
//! it is what clients read.

use crate::content;
use crate::osd::OsdActor;
use crate::scenario::Scene;
use crate::verify::Finals;
use crate::wrong::{Sign, Wrong};
use bytes::Bytes;
use spirula_maps::{OsdMap, PgPool};
use spirula_pg::erasure::Shape;
use spirula_pg::erasure::stripe::{join, rebuild};
use spirula_pg::exec::{INFO_ATTR, ObjectInfo};
use spirula_pg::shard::{object_of_store, store_pool};
use spirula_store::Store;
use spirula_types::{HObject, OSD_NONE, OsdId, SNAP_HEAD, pool_of_store};
use std::collections::BTreeMap;

/// Copies or shards of an object, by where they are: the OSD, and the number of the shard or −1.
type Held = BTreeMap<(OsdId, i8), Copy>;

impl Scene {
    /// Kills all OSDs, opens their stores, and compares what they hold.
    pub fn compare_copies(&mut self, finals: &Finals) -> Result<(), Wrong> {
        let Some(map) = self.map() else { return Ok(()) };
        let mut stores: BTreeMap<OsdId, Store> = BTreeMap::new();
        for o in self.osds.clone() {
            self.world.crash(o);
            let disk = self
                .world
                .with(o, |o: &mut OsdActor| o.disk.clone())
                .ok_or_else(|| Sign::Store.of("an OSD is gone"))?;
            let id = disk.identity.osd_id;
            let unsound =
                |e: spirula_store::StoreError| Sign::Store.of(format!("store of osd.{id}: {e}"));
            let store = disk.open(Box::new(|_| ()), Box::new(|_| ())).map_err(unsound)?;
            let found = spirula_store::tools::check(&store, true).map_err(unsound)?;
            if !found.problems.is_empty() {
                return Err(Sign::Store.of(format!("store of osd.{id}: {:?}", found.problems)));
            }
            stores.insert(id, store);
        }
        let mut objects: BTreeMap<HObject, Held> = BTreeMap::new();
        let end = HObject::pool_start(i64::MAX, 0);
        for (id, store) in &stores {
            let list = store
                .list(&HObject::pool_start(0, 0), &end, usize::MAX)
                .map_err(|e| Sign::Store.of(e.to_string()))?;
            for stored in list {
                let unread = |e| Sign::Store.of(format!("osd.{id}: {stored:?}: {e}"));
                let copy = Copy::read(store, &stored).map_err(unread)?;
                let object = object_of_store(stored.clone());
                if pool_of_store(object.pool) != object.pool {
                    return Err(Sign::Copies
                        .of(format!("osd.{id} keeps {object:?}, which nobody can want back")));
                }
                let shard =
                    (0..i8::MAX).find(|s| store_pool(object.pool, *s) == stored.pool).unwrap_or(-1);
                objects.entry(object).or_default().insert((*id, shard), copy);
            }
        }
        let mut heads = 0;
        for (object, held) in &objects {
            // The pool was deleted a moment ago, and its copies are being removed; that nothing is
            // left of them in the end, the simulator of PGs shows.
            let (Some(pg), Some(pool)) = (map.hobject_to_pg(object), map.pool(object.pool)) else {
                continue;
            };
            let acting = map.pg_to_up_acting(pg).acting;
            let shard = |i: usize| if pool.is_erasure() { i as i8 } else { -1 };
            let members = acting
                .iter()
                .enumerate()
                .map(|(i, o)| (*o, shard(i)))
                .filter(|(o, _)| *o != OSD_NONE);
            let members: Vec<_> = members.collect();
            let number = content::number_of(&object.name);
            let read = number.and_then(|n| finals.get(&(object.pool, n)));
            let clone = object.snap != SNAP_HEAD;
            if (clone || matches!(read, Some(None))) && held.keys().all(|at| !members.contains(at))
            {
                // It was deleted, and here a whole copy of the PG is being removed that is needed
                // no more.
                continue;
            }
            if clone {
                return Err(Sign::Copies.of(format!(
                    "{object:?} is of no snapshot that is there, on {:?}",
                    held.keys()
                )));
            }
            let mut ours = Vec::new();
            for at in members {
                let Some(copy) = held.get(&at) else {
                    return Err(Sign::Copies
                        .of(format!("{object:?} is on {:?} of {acting:?}", held.keys())));
                };
                ours.push((at, copy));
            }
            let data = match shape_of(&map, pool) {
                Some(shape) => coded(&shape, &ours),
                None => alike(&ours),
            };
            let differs = |why| Sign::Copies.of(format!("{object:?}: {why}"));
            let data = data.map_err(differs)?;
            let Some(number) = number else { continue };
            let whiteout = ours.first().is_some_and(|(_, copy)| copy.is_whiteout());
            if whiteout {
                return Err(
                    Sign::Copies.of(format!("{object:?} is deleted, and there for no clone"))
                );
            }
            heads += 1;
            let cells = content::cells_of(&data, number).map_err(differs)?;
            match read {
                Some(Some(read)) if *read != cells => {
                    let (read, stored) = (read.len(), cells.len());
                    let why = format!(
                        "{object:?} was read as other {read} cells than the {stored} that are \
                            stored"
                    );
                    return Err(Sign::Copies.of(why));
                }
                Some(None) => return Err(Sign::Copies.of(format!("{object:?} was read as absent"))),
                _ => {}
            }
        }
        let there = finals.values().filter(|c| c.is_some()).count();
        if there > heads {
            return Err(Sign::Copies.of(format!("{there} objects are read, {heads} stored")));
        }
        Ok(())
    }
}

fn shape_of(map: &OsdMap, pool: &PgPool) -> Option<Shape> {
    let profile = map.ec_profiles.get(&pool.erasure_code_profile).filter(|_| pool.is_erasure())?;
    let number = |key: &str| profile.get(key).and_then(|v| v.parse::<usize>().ok());
    let (k, m) = (number("k")?, number("m")?);
    Some(Shape { k, m, unit: u64::from(pool.stripe_width) / k as u64 })
}

/// Whole copies must be the same; returns the data.
fn alike(held: &[((OsdId, i8), &Copy)]) -> Result<Bytes, String> {
    let Some(((first, _), copy)) = held.first() else { return Ok(Bytes::new()) };
    match held.iter().find(|(_, c)| c != copy) {
        Some(((other, _), differs)) => {
            Err(format!("differs: osd.{first} {copy:?}, osd.{other} {differs:?}"))
        }
        None => Ok(copy.data.clone()),
    }
}

/// All shards must have the same attributes, and fit each other; returns the data they make.
fn coded(shape: &Shape, held: &[((OsdId, i8), &Copy)]) -> Result<Bytes, String> {
    if held.len() != shape.k + shape.m {
        return Err(format!("{} shards", held.len()));
    }
    let shards: Vec<(usize, Bytes)> =
        held.iter().map(|((_, s), c)| (*s as usize, c.data.clone())).collect();
    let some = shards.get(..shape.k).unwrap_or_default();
    let (_, first) = held.first().ok_or("no shards")?;
    for ((osd, s), copy) in held {
        let made = rebuild(shape, some, &[*s as usize]).map_err(|e| e.to_string())?;
        if copy.attrs != first.attrs || made.first() != Some(&copy.data) {
            return Err(format!("shard {s} on osd.{osd} differs: {copy:?}, shard 0 {first:?}"));
        }
    }
    let info = first
        .attrs
        .iter()
        .find(|(name, _)| name == INFO_ATTR)
        .map(|(_, v)| v.clone())
        .unwrap_or_default();
    let info: ObjectInfo =
        spirula_encoding::from_slice(&info).map_err(|e| format!("its information: {e}"))?;
    let data = join(shape, some).map_err(|e| e.to_string())?;
    if (data.len() as u64) < info.size {
        return Err(format!("{} bytes of {}", data.len(), info.size));
    }
    Ok(data.slice(..info.size as usize))
}

/// All of an object in a store.
#[derive(PartialEq, Eq)]
struct Copy {
    data: Bytes,
    attrs: Vec<(Bytes, Bytes)>,
    omap: Vec<(Bytes, Bytes)>,
}

impl std::fmt::Debug for Copy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sum = spirula_encoding::crc::crc32c(0, &self.data);
        write!(
            f,
            "{} bytes (crc {sum:#x}), attributes {:?}, omap {:?}",
            self.data.len(),
            self.attrs,
            self.omap
        )
    }
}

impl Copy {
    /// Is it deleted, and there for its clones?
    fn is_whiteout(&self) -> bool {
        let info = self
            .attrs
            .iter()
            .find(|(name, _)| name == INFO_ATTR)
            .map(|(_, v)| v.clone())
            .unwrap_or_default();
        spirula_encoding::from_slice::<ObjectInfo>(&info).is_ok_and(|i| i.has(ObjectInfo::WHITEOUT))
    }

    fn read(store: &Store, object: &HObject) -> Result<Self, spirula_store::StoreError> {
        let size = store.stat(object)?.map_or(0, |s| s.size);
        let data = store.read_blocking(object, 0, size)?.unwrap_or_default();
        let mut attrs = store.attrs(object)?.unwrap_or_default();
        attrs.sort();
        let omap = store
            .omap_range(object, None, b"", usize::MAX, usize::MAX)?
            .map(|p| p.pairs)
            .unwrap_or_default();
        Ok(Self { data, attrs, omap })
    }
}
