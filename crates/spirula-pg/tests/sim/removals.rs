//! Stories about snapshots that chance tells too seldom.

use crate::client::object;
use crate::scenarios::{PG, cluster, run, stop, until_active};
use crate::world::World;
use crate::{settle, stored_past};
use spirula_maps::PgState;
use spirula_pg::PgEvent;
use spirula_types::{HObject, SpgId};

/// One object that is only appended to, by one client at a time, and the snapshot 1 of it.
fn with_snapshot(seed: u64) -> World {
    let mut w = cluster(seed, 3);
    w.scrubs = false;
    (w.pace.under_way, w.pace.appends, w.pace.deletes) = (1, 100, 0);
    w.change_map(|m| (m.snap_seq, m.snaps) = (1, vec![1]));
    w
}

fn quiet(w: &mut World, all: bool) {
    w.clients.iter_mut().for_each(|c| c.quiet = all);
}

/// The newest version of an object, under the snapshots `newer`, is lost: the primary has an older
/// one, which names the clone 1, all other copies are damaged. The administrator gives it up. None
/// if it did not come to that.
fn given_up(seed: u64, newer: &[u64], revert: bool) -> Option<World> {
    let mut w = with_snapshot(seed);
    run(&mut w, 1000);
    quiet(&mut w, true);
    run(&mut w, 1000);
    if !stored_past(&w, &object(0))
        .is_ok_and(|p| p.head.is_some() && p.at(1).is_some() && p.seq == 1)
    {
        return None;
    }
    let first = w.map().acting(PG)[0];
    stop(&mut w, first..first + 1);
    until_active(&mut w);
    if let Some(newest) = newer.first() {
        w.change_map(|m| (m.snap_seq, m.snaps) = (*newest, newer.to_vec()));
        run(&mut w, 300);
    }
    // One more write that it does not have.
    w.clients[0].quiet = false;
    run(&mut w, 60);
    w.clients[0].quiet = true;
    run(&mut w, 1000);
    for n in (0..3).filter(|n| *n != first as usize) {
        w.nodes[n].store.rotten.insert(object(0));
    }
    w.start(first);
    let id = SpgId::whole(PG);
    let gives_up = |w: &World| {
        let p = w.nodes[first as usize].pgs.get(&id)?;
        let leads = w.map().acting(PG).first() == Some(&first);
        let unfound =
            p.state().0.any(PgState::RECOVERY_UNFOUND) && p.may_mark_lost(revert) == Ok(1);
        (leads && unfound && w.nodes[first as usize].store.applied.objects.contains_key(&object(0)))
            .then_some(())
    };
    // With some seeds the newest write, or the primary, is another.
    (0..300).find_map(|_| {
        run(&mut w, 50);
        gives_up(&w)
    })?;
    w.event(first, id, PgEvent::MarkLost { revert });
    Some(w)
}

/// The next write must find the clones that the older version names, and no others may be there.
#[test]
fn an_object_that_goes_back_to_an_older_version_agrees_with_its_clones() {
    for newer in [&[][..], &[3, 1]] {
        let mut reverted = 0;
        for seed in 0..30 {
            let Some(mut w) = given_up(seed, newer, true) else { continue };
            quiet(&mut w, false);
            run(&mut w, 1000);
            settle(&mut w).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let past = stored_past(&w, &object(0)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            assert!(past.at(1).is_some(), "seed {seed}: nothing is left of the snapshot");
            reverted += 1;
        }
        assert!(reverted > 0, "no seed has an older version to go back to");
    }
}

/// Of an object that is deleted so, nothing stays.
#[test]
fn an_object_that_is_given_up_leaves_no_clones() {
    let mut deleted = 0;
    for seed in 0..30 {
        let Some(mut w) = given_up(seed, &[3, 1], false) else { continue };
        settle(&mut w).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let past = stored_past(&w, &object(0)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(past.head.is_none(), "seed {seed}");
        for n in &w.nodes {
            let left: Vec<&HObject> = n.store.applied.objects.keys().collect();
            assert!(left.is_empty(), "seed {seed}: osd.{} keeps {left:?}", n.id);
        }
        deleted += 1;
    }
    assert!(deleted > 0, "no seed comes to that");
}

/// A client that has not heard of it writes under a snapshot that is removed, purged and forgotten.
#[test]
fn a_late_write_makes_no_clone_for_a_purged_snapshot() {
    let mut late = 0;
    for seed in 0..5 {
        let mut w = cluster(seed, 3);
        w.scrubs = false;
        (w.pace.under_way, w.pace.appends, w.pace.deletes, w.pace.removes) = (1, 100, 0, true);
        run(&mut w, 300);
        quiet(&mut w, true);
        run(&mut w, 300);
        w.change_map(|m| (m.snap_seq, m.snaps) = (1, vec![1]));
        run(&mut w, 500);
        w.clients[0].blind_until = u64::MAX;
        w.change_map(|m| {
            m.snaps.clear();
            std::sync::Arc::make_mut(&mut m.removed).insert(1, 1);
        });
        run(&mut w, 1000);
        w.change_map(|m| std::sync::Arc::make_mut(&mut m.removed).remove(1, 1));
        run(&mut w, 1000);
        w.clients[0].quiet = false;
        run(&mut w, 100);
        w.clients[0].quiet = true;
        run(&mut w, 300);
        late += usize::from(
            w.clients[0].history.values().any(|d| d.write.is_some() && d.context == [1]),
        );
        w.clients[0].blind_until = 0;
        settle(&mut w).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let past = stored_past(&w, &object(0)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(past.head.is_some(), "seed {seed}");
    }
    assert!(late > 0, "no write was late");
}

/// Nobody has a clone any more. Who reads it waits, and nobody else.
#[test]
fn requests_on_a_head_do_not_wait_for_a_missing_clone() {
    let mut waited = 0;
    for seed in 0..10 {
        let mut w = with_snapshot(seed);
        run(&mut w, 1000);
        quiet(&mut w, true);
        run(&mut w, 1000);
        if !stored_past(&w, &object(0)).is_ok_and(|p| p.at(1).is_some() && p.seq == 1) {
            continue;
        }
        let clone = HObject { snap: 1, ..object(0) };
        for n in &mut w.nodes {
            n.store.rotten.insert(clone.clone());
        }
        w.pace.snaps = 100;
        (w.clients[0].only, w.clients[0].quiet) = (Some(false), false);
        run(&mut w, 1000);
        if w.clients[0].idle() {
            continue;
        }
        w.clients[0].quiet = true;
        w.pace.snaps = 0;
        let done = |w: &World| w.clients[1].history.values().filter(|d| d.done.is_some()).count();
        let before = done(&w);
        (w.clients[1].only, w.clients[1].quiet) = (Some(true), false);
        run(&mut w, 1000);
        assert!(done(&w) > before + 3, "seed {seed}: writes of the head wait");
        assert!(!w.clients[0].idle(), "seed {seed}: there is nothing to be read");
        // Given up, it is in nobody's way, and no history names it.
        w.clients[1].quiet = true;
        run(&mut w, 1000);
        let primary = w.map().acting(PG)[0];
        w.event(primary, SpgId::whole(PG), PgEvent::MarkLost { revert: false });
        settle(&mut w).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let past = stored_past(&w, &object(0)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(past.head.is_some() && past.at(1).is_none(), "seed {seed}: {past:?}");
        waited += 1;
    }
    assert!(waited > 0, "no read waits");
}
