//! Random maps from a seed.

use spirula_crush::{
    Bucket, BucketData, ChooseArg, CrushMap, RULE_ERASURE, RULE_REPLICATED, Rule, Step, Tunables,
    alg, step_op,
};

/// SplitMix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}

fn weight(rng: &mut Rng) -> u32 {
    match rng.below(10) {
        0 => 0,
        1 => 0x10000 * rng.below(0x3fff) as u32,
        2 => rng.below(0x2000) as u32 + 1,
        3..=5 => 0x10000,
        _ => rng.below(0x80000) as u32,
    }
}

fn bucket(rng: &mut Rng, id: i32, kind: u16, algorithm: u8, items: Vec<(i32, u32)>) -> Bucket {
    let weights: Vec<u32> = items.iter().map(|i| i.1).collect();
    let items: Vec<i32> = items.iter().map(|i| i.0).collect();
    let total = weights.iter().fold(0u32, |a, w| a.wrapping_add(*w));
    let data = match algorithm {
        alg::UNIFORM => BucketData::Uniform { item_weight: weights.first().copied().unwrap_or(0) },
        alg::LIST => {
            let mut sum = 0u32;
            let sums = weights
                .iter()
                .map(|w| {
                    sum = sum.wrapping_add(*w);
                    sum
                })
                .collect();
            BucketData::List { weights, sums }
        }
        alg::TREE if items.is_empty() => BucketData::Tree { nodes: Vec::new() },
        alg::TREE => {
            let mut nodes = vec![0u32; 2 * items.len().next_power_of_two()];
            for (i, w) in weights.iter().enumerate() {
                nodes[2 * i + 1] = *w;
            }
            let mut half = 1;
            while 2 * half < nodes.len() {
                for n in (2 * half..nodes.len()).step_by(4 * half) {
                    nodes[n] = nodes[n - half].wrapping_add(nodes[n + half]);
                }
                half *= 2;
            }
            BucketData::Tree { nodes }
        }
        // The mapper only reads straw lengths; any will do to compare it.
        alg::STRAW => {
            let straws = weights
                .iter()
                .map(|w| if *w == 0 { 0 } else { 0x10000 + rng.below(0x30000) as u32 })
                .collect();
            BucketData::Straw { weights, straws }
        }
        _ => BucketData::Straw2 { weights },
    };
    Bucket { id, kind, hash: 0, weight: total, items, data }
}

/// A hierarchy of one to four levels above the devices, with rules, tunables, classes and
/// weight sets.
pub fn map(seed: u64) -> CrushMap {
    let mut rng = Rng(seed);
    let rng = &mut rng;
    let mut m = CrushMap::default();
    for (i, t) in ["osd", "host", "rack", "row", "root"].iter().enumerate() {
        m.type_names.insert(i as i32, (*t).to_owned());
    }
    let only = rng.chance(60).then(|| *rng.pick(&[1u8, 2, 3, 4, 5, 5, 5]));
    let algorithm = |rng: &mut Rng| only.unwrap_or_else(|| *rng.pick(&[1u8, 2, 3, 4, 5, 5, 5]));
    let most = *rng.pick(&[4u64, 20, 60]);
    let devices = 1 + rng.below(most) as i32;
    let mut level: Vec<(i32, u32)> = Vec::new();
    for id in 0..devices {
        if rng.chance(95) {
            level.push((id, weight(rng)));
        }
    }
    let depth = 1 + rng.below(4) as usize;
    let mut kinds: Vec<u16> = (1..4).collect();
    while kinds.len() > depth - 1 {
        kinds.remove(rng.below(kinds.len() as u64) as usize);
    }
    kinds.push(4);
    let mut next_id = -1;
    for (i, kind) in kinds.iter().enumerate() {
        let last = i + 1 == kinds.len();
        let mut above = Vec::new();
        while !level.is_empty() || (last && above.is_empty()) {
            let n =
                if last { level.len() } else { 1 + rng.below(8) as usize }.min(level.len()).min(60);
            let items: Vec<_> = level.drain(..n).collect();
            let algorithm = algorithm(rng);
            if rng.chance(10) {
                next_id -= 1;
            }
            let b = bucket(rng, next_id, *kind, algorithm, items);
            above
                .push((next_id, if rng.chance(90) { b.weight & 0x7fff_ffff } else { weight(rng) }));
            put(&mut m, b);
            next_id -= 1;
        }
        if !last && rng.chance(10) {
            let b = bucket(rng, next_id, *kind, alg::STRAW2, Vec::new());
            put(&mut m, b);
            above.push((next_id, 0x10000));
            next_id -= 1;
        }
        level = above;
    }
    for id in 0..devices {
        m.names.insert(id, format!("osd.{id}"));
    }
    tunables(rng, &mut m);
    rules(rng, &mut m);
    choose_args(rng, &mut m);
    // What the decoder computes.
    let items = m.buckets.iter().flatten().flat_map(|b| b.items.iter().copied());
    m.max_devices = items.chain(m.names.keys().copied()).max().unwrap_or(-1) + 1;
    m
}

fn put(m: &mut CrushMap, b: Bucket) {
    let slot = !b.id as usize;
    if m.buckets.len() <= slot {
        m.buckets.resize(slot + 1, None);
    }
    m.names.insert(b.id, format!("b{slot}"));
    m.buckets[slot] = Some(b);
}

fn tunables(rng: &mut Rng, m: &mut CrushMap) {
    let profile = *rng.pick(&["argonaut", "bobtail", "firefly", "hammer", "jewel", "jewel"]);
    m.tunables = Tunables::default().with_profile(profile).unwrap();
    if rng.chance(40) {
        let t = &mut m.tunables;
        t.choose_local_tries = rng.below(4) as u32;
        t.choose_local_fallback_tries = rng.below(4) as u32;
        t.choose_total_tries = rng.below(60) as u32;
        t.chooseleaf_descend_once = rng.below(2) as u32;
        t.chooseleaf_vary_r = rng.below(6) as u8;
        t.chooseleaf_stable = rng.below(2) as u8;
    }
}

fn rules(rng: &mut Rng, m: &mut CrushMap) {
    let ids: Vec<i32> = m.buckets.iter().flatten().map(|b| b.id).collect();
    let root = *ids.last().unwrap();
    let step = |op, arg1, arg2| Step { op, arg1, arg2 };
    for id in 0..4u8 {
        if rng.chance(10) {
            m.rules.push(None);
            continue;
        }
        let mut steps = Vec::new();
        for op in [
            step_op::SET_CHOOSE_TRIES,
            step_op::SET_CHOOSELEAF_TRIES,
            step_op::SET_CHOOSE_LOCAL_TRIES,
            step_op::SET_CHOOSE_LOCAL_FALLBACK_TRIES,
            step_op::SET_CHOOSELEAF_VARY_R,
            step_op::SET_CHOOSELEAF_STABLE,
        ] {
            if rng.chance(15) {
                let most = if op <= step_op::SET_CHOOSELEAF_TRIES { 120 } else { 4 };
                steps.push(step(op, rng.below(most) as i32, 0));
            }
        }
        for _ in 0..1 + rng.below(2) {
            let from = match rng.below(10) {
                0 => *rng.pick(&ids),
                1 => rng.below(4) as i32,
                _ => root,
            };
            steps.push(step(step_op::TAKE, from, 0));
            let indep = rng.chance(45);
            let n = |rng: &mut Rng| *rng.pick(&[0, 0, 0, 1, 2, 3, -1, 5]);
            if rng.chance(30) {
                let op = if indep { step_op::CHOOSE_INDEP } else { step_op::CHOOSE_FIRSTN };
                steps.push(step(op, n(rng), 1 + rng.below(4) as i32));
            }
            // A rule that emits buckets would make crushtool write outside its counters.
            let leaf = rng.chance(70);
            let kind = if leaf { rng.below(4) as i32 } else { 0 };
            let op = match (indep, leaf) {
                (false, true) => step_op::CHOOSELEAF_FIRSTN,
                (false, false) => step_op::CHOOSE_FIRSTN,
                (true, true) => step_op::CHOOSELEAF_INDEP,
                (true, false) => step_op::CHOOSE_INDEP,
            };
            steps.push(step(op, n(rng), kind));
            steps.push(step(step_op::EMIT, 0, 0));
        }
        let kind = if rng.chance(50) { RULE_REPLICATED } else { RULE_ERASURE };
        m.rules.push(Some(Rule { ruleset: id, kind, min_size: 1, max_size: 20, steps }));
        m.rule_names.insert(i32::from(id), format!("rule{id}"));
    }
}

/// Under key 0, which is what `crushtool --test` uses, or −1, its fallback.
fn choose_args(rng: &mut Rng, m: &mut CrushMap) {
    if !rng.chance(40) {
        return;
    }
    let key = *rng.pick(&[0i64, -1]);
    let positions = 1 + rng.below(4);
    let mut args = std::collections::BTreeMap::new();
    for b in m.buckets.iter().flatten().filter(|b| b.alg() == alg::STRAW2) {
        if rng.chance(25) {
            continue;
        }
        let mut arg = ChooseArg::default();
        if rng.chance(80) {
            let set = |rng: &mut Rng| b.items.iter().map(|_| weight(rng)).collect();
            arg.weight_sets = (0..positions).map(|_| set(rng)).collect();
        }
        if rng.chance(30) {
            arg.ids = b.items.iter().map(|i| i.wrapping_mul(7) - 3).collect();
        }
        if !(arg.weight_sets.is_empty() && arg.ids.is_empty()) {
            args.insert(!b.id as u32, arg);
        }
    }
    m.choose_args.insert(key, args);
}
