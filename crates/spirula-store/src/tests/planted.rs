//! The tests are tested: every bug of [`crate::planted`] is caught by the suite, within the
//! budget that CI gives it.

use super::crash::Tally;
use super::random::{Setting, run, steps};
use super::sim::Fault;
use super::{compressed, crash, faults, flips, layers, limits, opening, order, space};
use crate::planted::{Bug, plant};
use std::panic::catch_unwind;
use std::time::Instant;

/// States of short and number of long workloads that a bug may take to be found.
const SHORT_STATES: u64 = 2000;
const LONG_SEEDS: u64 = 2;

#[test]
fn random() {
    for (seed, cache) in [0, 48 << 10, 0, 1 << 20, 16 << 10, 0].into_iter().enumerate() {
        let seed = seed as u64;
        let size = [1 << 20, 256 << 10][seed as usize % 2];
        let setting = Setting {
            size,
            journal: 256 << 10,
            cache,
            single: seed > 3,
            big: false,
            cold: seed.is_multiple_of(3),
        };
        run(&setting, &steps(seed, 120));
    }
}

/// Parts of the suite, the quickest first. Without a bug each passes: they are tests of
/// their own, or what such a test does.
const SUITE: &[(&str, fn())] = &[
    (
        "requests finished one by one",
        crate::device::tests::requests_are_finished_however_little_each_takes,
    ),
    ("rot below the cache", faults::scrub_reads_the_device_and_not_the_cache),
    ("data read as zeros", faults::data_that_reads_as_zeros_is_never_believed),
    ("lost writes", faults::devices_that_lost_acknowledged_writes_are_found_out),
    ("old main device", opening::main_device_of_before_the_last_opening_is_refused),
    ("unreadable labels", opening::unreadable_copies_of_labels_cost_nothing_and_are_written_anew),
    ("unreadable frame", opening::an_unreadable_frame_that_was_under_way_costs_nothing_else),
    (
        "unreadable ring",
        opening::unreadable_sectors_in_dead_parts_of_the_ring_cost_nothing_and_are_written_anew,
    ),
    ("torn frame", opening::a_torn_frame_at_the_journals_end_never_comes_back),
    ("zeros while opening", || opening::read_wrong_once(Fault::Zeros, 0..4)),
    (
        "frames after a lost one",
        faults::frames_that_arrived_before_a_lost_one_are_erased_and_never_follow_another,
    ),
    ("full device", faults::full_store_refuses_writes_but_reads_cuts_and_deletes),
    ("fragmented device", faults::fragmented_space_is_used_to_the_last_block),
    ("metadata's device full", space::metadata_that_fills_its_device_is_refused_and_can_be_deleted),
    ("data kept of large reads", faults::what_is_kept_of_large_reads_goes_with_its_blocks),
    (
        "reads under way",
        faults::read_plan_stays_valid_while_its_blocks_are_freed_and_wanted_by_others,
    ),
    ("freeing not durable", faults::freed_space_is_not_taken_again_before_the_freeing_is_durable),
    ("frame held up", order::frames_are_acknowledged_only_when_those_before_them_are_durable),
    (
        "checkpoint held up",
        order::journal_is_not_overwritten_before_the_checkpoint_that_frees_it_is_durable,
    ),
    (
        "compressed data in pieces",
        compressed::data_overwritten_in_part_takes_one_and_a_half_times_its_size_at_most,
    ),
    ("changes beside", limits::changes_beside_the_journal_stay_until_a_checkpoint_has_them),
    ("ranges of keys", limits::a_range_of_keys_is_one_small_entry_and_gone_for_good),
    (
        "erasure-coded deletions",
        space::erasure_coded_deletions_and_their_undoing_need_no_room_for_metadata,
    ),
    ("clone just moved", layers::a_clone_that_has_just_been_moved_is_the_last_one_over_its_layer),
    ("removed omaps", limits::a_removed_omap_goes_in_steps_and_nothing_of_it_stays),
    ("room promised once", space::room_for_large_records_is_promised_once),
    ("beside awaited", space::what_is_beside_the_journal_is_waited_for),
    ("holes", space::space_that_was_taken_again_is_not_given_back),
    ("recovers by deletion", || (0..6).for_each(space::recovers_by_deletion)),
    ("past the limits", limits::one_past_each_limit_is_refused_and_stops_nothing),
    ("copies of copies", layers::a_copy_of_an_omap_that_a_checkpoint_is_just_copying_is_right),
    (
        "two kinds of checksums",
        layers::parts_of_a_cloned_object_may_have_checksums_of_different_kinds,
    ),
    ("n-th flush fails", || faults::every_nth(Fault::Flush, 40)),
    ("n-th read gives zeros", || faults::every_nth(Fault::Zeros, 60)),
    ("families of clones", layers::families),
    ("random transactions", random),
    ("crashes of short workloads", || {
        crash::short_workloads(0, 1, SHORT_STATES, &Tally::default());
    }),
    ("crashes of long workloads", || {
        for seed in 0..LONG_SEEDS {
            crash::long_workload(2000 + seed * 4, 150, &Tally::default());
        }
    }),
    ("n-th allocation fails", space::every_nth_allocation_may_fail_once),
    ("bit flips", flips::sampled_bit_flips_anywhere_are_told_or_do_no_harm),
];

/// The first part of the suite that catches what is planted, and what it says.
fn hunt() -> Option<(&'static str, String)> {
    SUITE.iter().find_map(|(name, part)| {
        let panic = catch_unwind(part).err()?;
        let says = panic.downcast_ref::<String>().cloned();
        let says = says
            .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
            .unwrap_or_default();
        Some((*name, says.lines().next().unwrap_or_default().chars().take(160).collect()))
    })
}

fn hunt_all(part: usize, parts: usize) {
    let mut missed = Vec::new();
    // One of them, while its test is written.
    let only = std::env::var("SPIRULA_BUG").ok();
    let wanted = |bug: &Bug| only.as_ref().is_none_or(|name| *name == format!("{bug:?}"));
    for (bug, what) in Bug::ALL.iter().skip(part).step_by(parts).filter(|(bug, _)| wanted(bug)) {
        let begun = Instant::now();
        plant(Some(*bug));
        let caught = hunt();
        plant(None);
        let took = begun.elapsed().as_secs_f64();
        match caught {
            Some((by, says)) => {
                println!("{bug:?} ({}): caught by {by} in {took:.1} s: {says}", what.trim())
            }
            None => {
                println!("{bug:?} ({}): NOT CAUGHT in {took:.1} s", what.trim());
                missed.push(*bug);
            }
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

#[test]
fn every_planted_bug_is_caught_0() {
    hunt_all(0, 2);
}

#[test]
fn every_planted_bug_is_caught_1() {
    hunt_all(1, 2);
}
