//! A few seeds, and a check that a seed repeats. `cargo xtask test` runs 300 seeds, optimised;
//! `cargo xtask soak sim` thousands, and the planted bugs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may stop at the first surprise"
)]

use spirula_sim::{Options, run};

const SEEDS: u64 = 12;

#[test]
fn seeds_hold_what_must_hold() {
    let mut probes = std::collections::BTreeMap::new();
    let (mut commands, mut operations) = (0, 0);
    for seed in 0..SEEDS {
        let report = run(&Options::new(seed)).unwrap_or_else(|f| panic!("{f}"));
        commands += report.commands;
        operations += report.operations;
        for (name, n) in report.probes {
            *probes.entry(name).or_insert(0) += n;
        }
    }
    // Storms in which nothing is asked, or nothing breaks, prove nothing.
    assert!(commands > SEEDS as usize * 25, "only {commands} commands were answered");
    assert!(operations > SEEDS as usize * 50, "only {operations} operations were answered");
    for name in
        ["monitor killed", "monitor stopped", "OSD killed", "OSD stopped", "connection broken"]
    {
        assert!(probes.get(name).is_some_and(|n| *n > 0), "'{name}' never happened: {probes:?}");
    }
}

#[test]
fn a_seed_gives_the_same_run_twice() {
    // The last two have extras.
    for seed in [1, 2, 5] {
        let (a, b) = (run(&Options::new(seed)).unwrap(), run(&Options::new(seed)).unwrap());
        assert_eq!(a, b, "seed {seed}");
    }
}

/// What a leader made and nobody could apply is refused before it is proposed, and that is all that
/// is seen of it; a leader that proposes it stops the monitors.
#[test]
fn a_poisoned_entry_harms_nobody_unless_it_is_proposed() {
    use spirula_mon::Poison;
    use spirula_sim::{Bug, Sign};
    for seed in 0..3 {
        let of = |poison| run(&Options { bug: Some(Bug::Poison(poison)), ..Options::new(seed) });
        of(Poison::Rehearsed).unwrap_or_else(|f| panic!("{f}"));
        let failure =
            of(Poison::Proposed).expect_err("an entry that nobody can apply goes unnoticed");
        assert!(failure.sign == Sign::Exit && failure.why.contains("does not apply"), "{failure}");
    }
}

/// Planted bugs that whole clusters alone show, the two that are easiest to do without noticing:
/// each must be found by the failure that it must cause, by a seed that shows nothing without it.
/// (`cargo xtask soak sim` does the same with all of them.)
#[test]
fn planted_bugs_of_whole_clusters_are_found_by_what_they_cause() {
    use spirula_pg::Bug as Of;
    use spirula_sim::{Bug, Extras};
    for of in [Of::DeadWithoutProof, Of::EarlyDropped] {
        let row = Bug::ALL.into_iter().find(|(b, ..)| *b == Bug::Pg(of));
        let (bug, faults, signs) =
            row.unwrap_or_else(|| panic!("{of:?} is none that whole clusters show"));
        let extras = (!faults.is_empty()).then(|| Extras::these(faults));
        let options = |seed, bug| Options { bug, extras, ..Options::new(seed) };
        let found = (0..60).find_map(|seed| {
            let failure =
                run(&options(seed, Some(bug))).err().filter(|f| signs.contains(&f.sign))?;
            run(&options(seed, None)).is_ok().then_some(failure)
        });
        println!("{of:?}: {}", found.unwrap_or_else(|| panic!("{of:?} is not found in 60 seeds")));
    }
}
