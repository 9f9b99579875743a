//! A few seeds, a check that a seed repeats, and the planted bugs. `cargo xtask test` runs 300
//! seeds, optimised; `cargo xtask soak` thousands.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may stop at the first surprise")]

use spirula_sim::{Bug, Options, run};

const SEEDS: u64 = 24;

#[test]
fn seeds_hold_what_must_hold() {
    let mut probes = std::collections::BTreeMap::new();
    let mut answered = 0;
    for seed in 0..SEEDS {
        let report = run(&Options::new(seed)).unwrap_or_else(|f| panic!("{f}"));
        answered += report.answered;
        for (name, n) in report.probes {
            *probes.entry(name).or_insert(0) += n;
        }
    }
    // Storms in which nothing is asked, or nothing breaks, prove nothing.
    assert!(answered > SEEDS as usize * 50, "only {answered} answers");
    for name in
        ["monitor killed", "monitor stopped", "monitor cut off", "one way cut", "connection broken", "disk lost"]
    {
        assert!(probes.get(name).is_some_and(|n| *n > 2), "'{name}' is rare: {probes:?}");
    }
}

#[test]
fn a_seed_gives_the_same_run_twice() {
    for seed in [1, 7, 23] {
        let (a, b) = (run(&Options::new(seed)).unwrap(), run(&Options::new(seed)).unwrap());
        assert_eq!(a, b, "seed {seed}");
    }
}

#[test]
fn planted_bugs_are_found() {
    for bug in Bug::ALL {
        let found = (0..100).find_map(|seed| run(&Options { bug: Some(bug), ..Options::new(seed) }).err());
        let found = found.unwrap_or_else(|| panic!("{bug:?} was not found in 100 seeds"));
        println!("{bug:?}: {found}");
    }
}
