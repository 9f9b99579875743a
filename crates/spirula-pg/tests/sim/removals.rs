//! Stories about snapshots that chance tells too seldom.

use crate::client::object;
use crate::scenarios::{PG, cluster, run, stop, until_active};
use crate::world::World;
use crate::{settle, stored_past};
use spirula_maps::PgState;
use spirula_pg::PgEvent;
use spirula_types::{OsdId, SpgId};

/// The primary has an older version of an object, everybody else's copy is damaged, and the administrator gives the newest version up.
/// The next write must find the clones that the older version names.
#[test]
fn an_object_that_goes_back_to_an_older_version_keeps_its_clones() {
    let mut reverted = 0;
    for seed in 0..40 {
        let mut w = cluster(seed, 3);
        w.scrubs = false;
        (w.pace.under_way, w.pace.appends, w.pace.deletes) = (1, 100, 0);
        w.change_map(|m| (m.snap_seq, m.snaps) = (1, vec![1]));
        run(&mut w, 1000);
        w.clients.iter_mut().for_each(|c| c.quiet = true);
        run(&mut w, 1000);
        let first = w.map().acting(PG)[0];
        stop(&mut w, first..first + 1);
        until_active(&mut w);
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
            let primary = w.map().acting(PG).first().copied()?;
            let p = w.nodes[primary as usize].pgs.get(&id)?;
            let unfound = p.state().0.any(PgState::RECOVERY_UNFOUND) && p.may_mark_lost(true) == Ok(1);
            unfound.then_some(primary)
        };
        let find = |w: &mut World| -> Option<OsdId> {
            (0..300).find_map(|_| {
                run(w, 50);
                gives_up(w)
            })
        };
        // With some seeds the newest write, or the primary, is another.
        let Some(primary) = find(&mut w).filter(|p| *p == first) else { continue };
        w.event(primary, id, PgEvent::MarkLost { revert: true });
        w.clients.iter_mut().for_each(|c| c.quiet = false);
        run(&mut w, 1000);
        settle(&mut w).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let past = stored_past(&w, &object(0)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        if past.head.is_some() {
            assert!(past.at(1).is_some(), "seed {seed}: nothing is left of the snapshot");
            reverted += 1;
        }
    }
    assert!(reverted > 3, "only {reverted} seeds have an older version to go back to");
}
