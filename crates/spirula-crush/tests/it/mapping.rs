//! Random maps: our mapper against `crushtool --test`.

use crate::random::{self, Rng};
use crate::tool;
use spirula_crush::{CrushMap, Scratch};
use spirula_encoding::{from_slice, to_vec};

const X_MAX: u32 = 40;

/// Compares every mapping of one map for one result size; returns how many.
fn compare(map: &CrushMap, seed: u64, num_rep: usize, weights: &[(usize, f64)]) -> usize {
    let mut args: Vec<String> =
        ["--test", "--show-mappings", "--min-x", "0", "--max-x"].map(String::from).to_vec();
    args.extend([X_MAX.to_string(), "--num-rep".into(), num_rep.to_string()]);
    for (id, w) in weights {
        args.extend(["--weight".into(), id.to_string(), w.to_string()]);
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let out = tool::run(map, &args);
    let said =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "seed {seed}: crushtool failed: {said}");

    let linked: std::collections::BTreeSet<i32> =
        map.buckets.iter().flatten().flat_map(|b| b.items.clone()).collect();
    let mut reweight: Vec<u32> =
        (0..map.max_devices).map(|id| if linked.contains(&id) { 0x10000 } else { 0 }).collect();
    for (id, w) in weights {
        if let Some(r) = reweight.get_mut(*id) {
            *r = (*w as f32 * 65536.0) as u32;
        }
    }
    let (mut scratch, mut result, mut compared) = (Scratch::new(), Vec::new(), 0);
    let sets = map.choose_args_for(0);
    for line in said.lines() {
        // CRUSH rule 0 x 5 [1,2,3]
        let f: Vec<&str> = line.split(' ').collect();
        let &["CRUSH", "rule", rule, "x", x, want] = f.as_slice() else { continue };
        let (rule, x): (u32, u32) = (rule.parse().unwrap(), x.parse().unwrap());
        map.do_rule_into(&mut scratch, rule, x, num_rep, &reweight, sets, &mut result);
        let got = format!("{result:?}").replace(' ', "");
        assert_eq!(
            got, want,
            "seed {seed} rule {rule} x {x} num-rep {num_rep} weights {weights:?}"
        );
        compared += 1;
    }
    // The tool prints nothing if no device has weight.
    if reweight.iter().all(|w| *w == 0) {
        return compared;
    }
    assert_eq!(
        compared,
        map.rules.iter().flatten().count() * (X_MAX as usize + 1),
        "seed {seed}: {said}"
    );
    compared
}

#[test]
fn random_maps_map_as_crushtool_does() {
    if !tool::available("random_maps_map_as_crushtool_does") {
        return;
    }
    let number = |name: &str, default: u64| {
        std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
    };
    let (count, first) = (number("SPIRULA_CRUSH_MAPS", 200), number("SPIRULA_CRUSH_SEED", 1));
    eprintln!("seeds {first}..{} (SPIRULA_CRUSH_SEED, SPIRULA_CRUSH_MAPS)", first + count);
    let mut compared = 0;
    for seed in first..first + count {
        let map = random::map(seed);
        let bytes = to_vec(&map);
        assert_eq!(from_slice::<CrushMap>(&bytes).unwrap(), map, "seed {seed}");
        let mut rng = Rng(seed ^ 0xabcd);
        for round in 0..2 {
            let num_rep = 1 + rng.below(8) as usize;
            let n = if round == 0 { 0 } else { rng.below(6) };
            let weights: Vec<(usize, f64)> = (0..n)
                .map(|_| {
                    (rng.below(map.max_devices.max(1) as u64) as usize, rng.below(5) as f64 / 4.0)
                })
                .collect();
            compared += compare(&map, seed, num_rep, &weights);
        }
    }
    eprintln!("{compared} mappings of {count} maps equal");
}
