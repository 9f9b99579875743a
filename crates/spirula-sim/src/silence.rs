//! Stories of OSDs that are silent for a while and live: nobody is marked down again and again for
//! what its peers have seen of it, and nobody for a silence that was its accusers' own.

use crate::monitor::MonActor;
use crate::osd::OsdActor;
use crate::overtaken::Story;
use crate::world::{ActorId, Net};
use spirula_maps::EncodedOsdMap;
use spirula_messages::Body;
use spirula_messages::cluster::pg::{OsdPing, OsdPong};
use spirula_types::{Epoch, OsdId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Microseconds of a millisecond.
const MS: u64 = 1000;

/// The newest map that a monitor has.
fn newest(t: &mut Story) -> Arc<EncodedOsdMap> {
    let of = |m: &mut MonActor| m.mon.as_ref().map(|m| m.state().osdmap.clone());
    let maps: Vec<_> =
        t.s.mons.clone().into_iter().filter_map(|m| t.s.world.with(m, of).flatten()).collect();
    maps.into_iter().max_by_key(|m| m.epoch).expect("a monitor that runs")
}

/// When OSDs were last marked down.
fn down_at(t: &mut Story) -> BTreeMap<OsdId, Epoch> {
    let map = newest(t);
    map.osds().filter_map(|o| Some((o, map.info(o)?.down_at))).collect()
}

/// Lets so many milliseconds pass; who is marked down in them, each time.
fn marked(t: &mut Story, ms: u64) -> Vec<OsdId> {
    let (mut before, mut out) = (down_at(t), Vec::new());
    for _ in 0..ms / 50 {
        t.run(50);
        let now = down_at(t);
        out.extend(now.iter().filter(|(o, at)| before.get(o) != Some(at)).map(|(o, _)| *o));
        before = now;
    }
    out
}

/// Nobody of `some` hears any other of them, in any network, for so long.
fn cut_among(t: &mut Story, some: &[ActorId], ms: u64) {
    let until = t.s.world.now + ms * MS;
    for a in some {
        for b in some.iter().filter(|b| *b != a) {
            for net in [Net::Public, Net::Cluster] {
                t.s.world.cut_in(net, *a, *b, until);
            }
        }
    }
}

/// As long as cuts last lets time pass, as [`marked`] does.
fn marked_until_healed(t: &mut Story, ms: u64) -> Vec<OsdId> {
    let mut out = Vec::new();
    for _ in 0..ms / 50 {
        out.extend(marked(t, 50));
        t.s.world.heal_due();
    }
    out
}

/// Its hanging is shorter than the grace, also by a clock that runs a tenth too fast.
#[test]
fn who_hangs_now_and_then_is_marked_down_wrongly_once() {
    for seed in 0..3 {
        let mut t = Story::new(seed, None);
        let osd = *t.s.osds.first().unwrap();
        let mut marks = Vec::new();
        for _ in 0..8 {
            t.s.world.pause(osd);
            marks.extend(marked(&mut t, 3200));
            t.s.world.resume(osd);
            marks.extend(marked(&mut t, 96_800));
        }
        assert!(marks.len() <= 1, "seed {seed}: {marks:?}");
        assert!(newest(&mut t).is_up(0), "seed {seed}: it is up");
    }
}

#[test]
fn who_stands_still_for_the_whole_grace_earns_no_patience() {
    let mut t = Story::new(1, None);
    let osd = *t.s.osds.first().unwrap();
    for _ in 0..4 {
        marked(&mut t, 30_000);
        t.s.world.pause(osd);
        let soon = marked(&mut t, 2500);
        assert_eq!(soon, [0]);
        marked(&mut t, 5500);
        t.s.world.resume(osd);
    }
}

/// All hosts lose each other for a short time, and are joined again one after the other.
#[test]
fn nobody_is_accused_by_those_who_hear_each_other_again_first() {
    let mut found = BTreeSet::new();
    for (seed, cut) in [(0, 1500), (1, 2000), (2, 2500), (3, 2900), (4, 1200), (5, 2500)] {
        let later = 400;
        let mut t = Story::new(seed, None);
        marked(&mut t, 5000);
        let osds = t.s.osds.clone();
        cut_among(&mut t, &osds, cut);
        // The last one does not hear the others, nor they it, for a little longer; and the monitors
        // do not hear it, either.
        let (last, now) = (*osds.last().unwrap(), t.s.world.now);
        let (mons, others) = (t.s.mons.clone(), &osds[..osds.len() - 1]);
        for other in others.iter().chain(&mons) {
            for net in [Net::Public, Net::Cluster] {
                t.s.world.cut_in(net, last, *other, now + (cut + later) * MS);
                t.s.world.cut_in(net, *other, last, now + (cut + later) * MS);
            }
        }
        for osd in marked_until_healed(&mut t, 15_000) {
            found.insert((seed, osd));
        }
    }
    assert!(found.is_empty(), "marked down: {found:?}");
}

/// Questions and answers, as they go onto the wire.
#[test]
fn heartbeats_are_as_large_as_the_setting_says() {
    let mut t = Story::new(2, None);
    for size in [2000, 9000] {
        if size != 2000 {
            let set = format!(
                r#"{{"prefix": "config set", "who": "osd", "name": "osd_heartbeat_min_size", "value": "{size}"}}"#
            );
            t.s.order(set);
            t.run(10_000);
        }
        let all = t.s.osds.clone();
        let beats = |t: &mut Story, o| t.s.world.with(o, |o: &mut OsdActor| o.beats()).unwrap();
        // Those that went before.
        all.iter().for_each(|o| drop(beats(&mut t, *o)));
        t.run(10_000);
        for o in &all {
            let sent = beats(&mut t, *o);
            for kind in [OsdPing::KIND, OsdPong::KIND] {
                let (n, least) = sent.get(&kind).copied().unwrap_or_default();
                assert!(
                    n > 5 && (size..size + 500).contains(&least),
                    "{size}: {n} of type {kind:#x}, {least} bytes"
                );
            }
        }
    }
}
