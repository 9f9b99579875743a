//! Random maps, from a printed seed.

use spirula_crush::{CrushMap, Tunables};
use spirula_encoding::UTime;
use spirula_maps::osdmap::{WEIGHT_IN, flags, pool, state};
use spirula_maps::{
    Crush, Incremental, OsdAddrs, OsdMap, OsdXInfo, PgPool, PoolOptValue, PoolSnap,
};
use spirula_types::{AddrVec, EntityAddr, PgId, Uuid};
use std::collections::BTreeMap;

/// xorshift64*: small and the same everywhere.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    /// Below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 33) % n.max(1)
    }
    /// One time in `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
    fn u32(&mut self) -> u32 {
        (self.next() >> 32) as u32
    }
    fn pick<'a, T>(&mut self, v: &'a [T]) -> &'a T {
        &v[self.below(v.len() as u64) as usize]
    }
    fn time(&mut self) -> UTime {
        UTime { sec: 1_600_000_000 + self.u32() % 200_000_000, nsec: self.u32() % 1_000_000_000 }
    }
    fn uuid(&mut self) -> Uuid {
        let mut b = [0; 16];
        b.iter_mut().for_each(|x| *x = self.u32() as u8);
        Uuid::from_random(b)
    }
    fn addr(&mut self) -> EntityAddr {
        let port = self.u32() as u16;
        let text = if self.one_in(4) {
            format!("[fd00::{:x}]:{port}", 1 + self.below(0xffff))
        } else {
            format!("10.{}.{}.{}:{port}", self.below(256), self.below(256), self.below(256))
        };
        EntityAddr::v2(text.parse().unwrap(), self.u32())
    }
    fn addrs(&mut self) -> AddrVec {
        let mut v = vec![self.addr()];
        if self.one_in(3) {
            v.push(EntityAddr { kind: EntityAddr::KIND_LEGACY, ..self.addr() });
        }
        AddrVec(v)
    }
}

/// Devices on hosts in racks, classes, weight sets, rules of both kinds. Returns replicated
/// and erasure rules.
fn crush(r: &mut Rng, osds: i32) -> (CrushMap, Vec<u32>, Vec<u32>) {
    let mut c = CrushMap::new_default("host").unwrap();
    let hosts = 1 + r.below(osds as u64);
    let racks = 1 + r.below(hosts);
    for o in 0..osds {
        let host = r.below(hosts);
        let location = BTreeMap::from([
            ("host".to_string(), format!("h{host}")),
            ("rack".to_string(), format!("r{}", host % racks)),
            ("root".to_string(), "default".to_string()),
        ]);
        let weight = if r.one_in(8) { 0 } else { r.u32() % 0x40000 };
        c.insert(o, weight, &format!("osd.{o}"), &location).unwrap();
        if r.one_in(2) {
            let class: &str = r.pick::<&str>(&["hdd", "ssd"]);
            c.set_device_class(o, class).unwrap();
        }
    }
    let (mut replicated, mut erasure) = (vec![0], Vec::new());
    for (i, domain) in ["osd", "host", "rack"].iter().enumerate() {
        let class = c.classes().first().map(|s| (*s).to_string()).filter(|_| r.one_in(2));
        let class = class.as_deref();
        if let Ok(id) = c.create_replicated(&format!("rep{i}"), "default", domain, class) {
            replicated.push(id);
        }
        if let Ok(id) = c.create_erasure(&format!("ec{i}"), "default", domain, class, 20) {
            erasure.push(id);
        }
    }
    if r.one_in(3) {
        let key = if r.one_in(2) { -1 } else { 1 + r.below(3) as i64 };
        let positions = if key == -1 { 1 } else { 1 + r.below(3) as usize };
        c.create_weight_set(key, positions);
        for o in (0..osds).filter(|o| o % 3 == 0) {
            let w: Vec<u32> = (0..positions).map(|_| r.u32() % 0x40000).collect();
            c.reweight_in_weight_set(key, o, &w).unwrap();
        }
    }
    if r.one_in(3) {
        let profile = *r.pick(&["argonaut", "bobtail", "firefly", "hammer", "jewel"]);
        c.tunables = Tunables::with_profile(c.tunables, profile).unwrap();
    }
    (c, replicated, erasure)
}

fn new_pool(r: &mut Rng, name: &str, replicated: &[u32], erasure: &[u32]) -> PgPool {
    let pg_num = 1 + r.below(40) as u32;
    let mut p = if r.one_in(3) && !erasure.is_empty() {
        let (k, m) = (2 + r.below(4) as u8, 1 + r.below(3) as u8);
        PgPool::erasure(k, m, 4096, "default", pg_num, *r.pick(erasure) as u8, r.time())
    } else {
        PgPool::replicated(1 + r.below(6) as u8, pg_num, *r.pick(replicated) as u8, r.time())
    };
    if r.one_in(3) {
        p.pgp_num = 1 + r.below(u64::from(pg_num)) as u32;
    }
    if r.one_in(12) {
        p.flags &= !pool::flag::HASHPSPOOL;
    }
    if r.one_in(3) {
        p.flags = p.flags & 1 | r.next() & 0xffff & !pool::flag::POOL_SNAPS & !1;
    }
    if r.one_in(3) {
        p.flags |= pool::flag::POOL_SNAPS;
        p.snap_seq = 3;
        p.snaps.insert(2, PoolSnap { id: 2, stamp: r.time(), name: format!("s-{name}") });
    }
    if r.one_in(4) {
        p.removed_snaps.insert(1 + r.below(40), 1 + r.below(30));
    }
    if r.one_in(3) {
        (p.quota_max_bytes, p.quota_max_objects) = (r.next() >> 20, r.below(1000));
        p.last_force_op_resend = r.below(5) as u32;
        p.expected_num_objects = r.below(3);
    }
    for (_, key, kind) in spirula_maps::osdmap::opts::POOL_OPTS {
        use spirula_maps::osdmap::PoolOptType::{Double, Int, Str};
        if r.one_in(12) {
            let v = match kind {
                Str => PoolOptValue::Str("word".into()),
                Int => PoolOptValue::Int(r.next() as i64 >> 30),
                Double => PoolOptValue::Double(r.below(100_000) as f64 / 256.0),
            };
            p.opts.0.insert(*key, v);
        }
    }
    if r.one_in(2) {
        let kv =
            if r.one_in(2) { BTreeMap::from([("k".into(), "v".into())]) } else { BTreeMap::new() };
        p.application_metadata.insert((*r.pick(&["rbd", "rgw", "cephfs"])).into(), kv);
    }
    p
}

/// An OSD map made by three incrementals, as a monitor would make it.
pub fn osdmap(seed: u64) -> OsdMap {
    let r = &mut Rng::new(seed);
    let osds = 1 + r.below(24) as i32;
    let (c, replicated, erasure) = crush(r, osds);
    let now = r.time();
    let mut map = OsdMap::fresh(r.uuid(), 1, now, Crush::new(c));
    map.ec_profiles.insert(
        "default".into(),
        BTreeMap::from([("k".into(), "2".into()), ("m".into(), "2".into())]),
    );

    let mut inc = Incremental::next(&map, r.time());
    for o in 0..osds {
        // Some ids stay unused; not the last, as osdmaptool's own statistics crash on upmaps
        // that name an OSD beyond max_osd.
        if !r.one_in(10) || o == osds - 1 {
            let u = r.uuid();
            inc.create_osd(&map, o, u);
        }
    }
    for i in 0..1 + r.below(5) {
        let name = format!("pool{i}");
        let p = new_pool(r, &name, &replicated, &erasure);
        inc.add_pool(&map, &name, p);
    }
    inc.seal(&map).unwrap();
    map.apply_checked(&inc).unwrap();

    let mut inc = Incremental::next(&map, r.time());
    for o in map.osds() {
        if !r.one_in(8) {
            let addrs = OsdAddrs {
                client: r.addrs(),
                cluster: r.addrs(),
                hb_back: r.addrs(),
                hb_front: r.addrs(),
            };
            inc.mark_up(o, &addrs);
        }
        let weight = if r.one_in(8) {
            0
        } else if r.one_in(3) {
            r.u32() % WEIGHT_IN
        } else {
            WEIGHT_IN
        };
        inc.set_weight(&map, o, weight);
        if r.one_in(5) {
            inc.new_primary_affinity
                .insert(o, if r.one_in(3) { 0 } else { r.u32() % (WEIGHT_IN + 1) });
        }
        if r.one_in(6) {
            let x = OsdXInfo {
                laggy_probability: r.u32(),
                features: r.next(),
                dead_epoch: 3,
                ..OsdXInfo::default()
            };
            inc.new_xinfo.insert(o, x);
        }
    }
    inc.seal(&map).unwrap();
    map.apply_checked(&inc).unwrap();

    let mut inc = Incremental::next(&map, r.time());
    let all: Vec<PgId> = map.pgs().collect();
    let any_osd = |r: &mut Rng| r.below(osds as u64) as i32;
    for _ in 0..r.below(8) {
        let pg = *r.pick(&all);
        let table_entry = map.pg_to_up_acting(pg).up;
        let from = table_entry.first().copied().unwrap_or(0);
        match r.below(4) {
            0 => _ = inc.new_pg_upmap.insert(pg, (0..3).map(|_| any_osd(r)).collect()),
            1 => {
                _ = inc
                    .new_pg_upmap_items
                    .insert(pg, vec![(from, any_osd(r)), (any_osd(r), any_osd(r))])
            }
            2 => _ = inc.new_pg_temp.insert(pg, (0..1 + r.below(4)).map(|_| any_osd(r)).collect()),
            _ => _ = inc.new_primary_temp.insert(pg, any_osd(r)),
        }
    }
    for o in map.osds().filter(|o| o % 7 == 3) {
        inc.mark_down(&map, o);
    }
    for _ in 0..r.below(4) {
        inc.new_blocklist.insert(EntityAddr { kind: EntityAddr::KIND_ANY, ..r.addr() }, r.time());
    }
    for pool in map.pools.keys().filter(|p| *p % 2 == 0) {
        let s = inc.new_removed_snaps.entry(*pool).or_default();
        s.insert(1 + r.below(100), 1 + r.below(5));
        s.insert(200 + r.below(100), 1);
    }
    if r.one_in(2) {
        inc.change_flags(&map, flags::NOOUT | (r.u32() & 0x7ff0 & !(1 << 15)), 0);
        inc.new_full_ratio = r.below(100) as f32 / 128.0;
        inc.new_crush_node_flags.insert(-1, state::NOOUT);
    }
    inc.seal(&map).unwrap();
    map.apply_checked(&inc).unwrap();
    map
}
