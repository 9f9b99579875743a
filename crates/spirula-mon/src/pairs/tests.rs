use super::*;
use spirula_maps::Crush;
use spirula_types::Uuid;

const GRACE: f64 = 4.0;

fn at(seconds: f64) -> UTime {
    UTime::from_nanos(1_000_000_000_000 + (seconds * 1e9) as u64)
}

/// Complaints of a cluster in which, from second 0 on, links are cut: (by, of), each repeated until
/// now.
fn words(cut: &[Two], now: f64, waiting: u32) -> Words {
    let mut out = Words::new();
    for (by, of) in cut {
        let (said, outside) = (at(now), Outside::default());
        let word = Word {
            silent_since: at(0.0),
            said,
            waiting,
            outside,
            refused: None,
            silent: 0.0,
            mute: None,
        };
        out.entry(*of).or_default().insert(*by, word);
    }
    out
}

/// As said by both.
fn mutual(cut: &[Two]) -> Vec<Two> {
    cut.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]).collect()
}

/// A PG that these serve, the first leading.
fn add(out: &mut Placed, members: &[OsdId], needed: usize) {
    out.add(Place { members: members.to_vec(), filled: Vec::new(), needed });
}

/// All PGs of one OSD of each host, `size` of them, in every order.
fn placed(hosts: &[&[OsdId]], size: usize, needed: usize) -> Placed {
    fn choose(
        hosts: &[&[OsdId]],
        size: usize,
        have: &mut Vec<OsdId>,
        out: &mut Placed,
        needed: usize,
    ) {
        if have.len() == size {
            add(out, have, needed);
            return;
        }
        for (i, host) in hosts.iter().enumerate() {
            let rest: Vec<&[OsdId]> =
                hosts.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, h)| *h).collect();
            for osd in *host {
                have.push(*osd);
                choose(&rest, size, have, out, needed);
                have.pop();
            }
        }
    }
    let mut out = Placed::default();
    choose(hosts, size, &mut Vec::new(), &mut out, needed);
    out
}

fn decide(pairs: &BTreeMap<Two, Pair>, placed: &Placed) -> Vec<OsdId> {
    let q = Question { pairs, placed, accused: &|_| 0, may: &|_, _| true };
    take(&q).into_iter().map(|(osd, _)| osd).collect()
}

/// Who is marked down of a cluster whose links `cut` are dead.
fn cut(cut: &[Two], placed: &Placed) -> Vec<OsdId> {
    decide(&pairs(&words(&mutual(cut), 5.0, 1), at(5.0), GRACE, |_| false), placed)
}

#[test]
fn a_pair_both_ways_loses_one_after_the_grace_and_time_for_others_to_speak() {
    let three = placed(&[&[0], &[1], &[2]], 3, 2);
    let words = |now, waiting| words(&mutual(&[(0, 1)]), now, waiting);
    assert!(pairs(&words(4.5, 1), at(4.5), GRACE, |_| false).is_empty());
    let ripe = pairs(&words(4.8, 3), at(4.8), GRACE, |_| false);
    assert_eq!(
        ripe[&(0, 1)],
        Pair { since: at(0.0), waiting: 6, outside: Default::default(), alone: None }
    );
    assert_eq!(decide(&ripe, &three), [1]);
    // Others miss one of them, too: that is for the other rule.
    assert!(pairs(&words(9.0, 1), at(9.0), GRACE, |osd| osd == 1).is_empty());
    // What was said long ago counts no more.
    assert!(pairs(&words(5.0, 1), at(12.0), GRACE, |_| false).is_empty());
    // Nobody waits.
    let idle = pairs(&words(9.0, 0), at(9.0), GRACE, |_| false);
    assert!(idle.len() == 1 && decide(&idle, &three).is_empty());
}

#[test]
fn who_complains_alone_goes_itself_and_later() {
    let three = placed(&[&[0], &[1], &[2]], 3, 2);
    let words = |now| words(&[(0, 1)], now, 1);
    assert!(pairs(&words(8.5), at(8.5), GRACE, |_| false).is_empty());
    let ripe = pairs(&words(9.0), at(9.0), GRACE, |_| false);
    assert_eq!(ripe[&(0, 1)].alone, Some(0));
    assert_eq!(decide(&ripe, &three), [0]);
}

#[test]
fn a_triangle_of_pairs_loses_two_of_three_where_that_wins_anything() {
    let triangle = [(0, 1), (1, 2), (0, 2)];
    let hosts: [&[OsdId]; 4] = [&[0], &[1], &[2], &[3]];
    assert_eq!(cut(&triangle, &placed(&hosts, 3, 1)), [2, 1]);
    // As many PGs have the first and the second as have the second and the third.
    assert_eq!(cut(&triangle, &placed(&hosts, 3, 2)), [2]);
}

#[test]
fn a_host_against_a_host_loses_the_osds_of_one() {
    let hosts = placed(&[&[0, 2], &[1, 3], &[4, 5]], 3, 2);
    let gone = cut(&[(0, 1), (0, 3), (2, 1), (2, 3)], &hosts);
    assert_eq!(gone.iter().collect::<BTreeSet<_>>(), [1, 3].iter().collect());
}

#[test]
fn who_misses_two_goes_and_not_they() {
    let hosts = placed(&[&[0], &[1], &[2], &[3]], 3, 2);
    assert_eq!(cut(&[(0, 1), (0, 3)], &hosts), [0]);
}

#[test]
fn a_liar_takes_nobody_but_itself() {
    let hosts = placed(&[&[0], &[1], &[2], &[3]], 3, 2);
    let lies: Vec<Two> = vec![(0, 1), (0, 2), (0, 3)];
    assert_eq!(decide(&pairs(&words(&lies, 20.0, 9), at(20.0), GRACE, |_| false), &hosts), [0]);
    // One that is deaf to those that it slanders, one after the other, takes one of them at most.
    let p = pairs(&words(&mutual(&[(0, 3)]), 20.0, 9), at(20.0), GRACE, |_| false);
    assert_eq!(decide(&p, &hosts), [3]);
    let p = pairs(&words(&mutual(&[(0, 2)]), 20.0, 9), at(20.0), GRACE, |_| false);
    let accused = |osd| usize::from(osd == 0);
    let q = Question { pairs: &p, placed: &hosts, accused: &accused, may: &|_, _| true };
    assert_eq!(take(&q), [(0, (0, 2))]);
}

#[test]
fn who_is_needed_stays_and_nobody_goes_where_that_wins_nothing() {
    // Two copies, both needed: without either the PG stands still as it does now, and others stop.
    let both = placed(&[&[0], &[1], &[2]], 2, 2);
    assert!(cut(&[(0, 1)], &both).is_empty());
    // Two copies, one needed.
    assert_eq!(cut(&[(0, 1)], &placed(&[&[0], &[1], &[2]], 2, 1)), [1]);
    // osd.1 is the last copy of something.
    let mut last = placed(&[&[0], &[1], &[2]], 3, 2);
    add(&mut last, &[1], 1);
    assert_eq!(cut(&[(0, 1)], &last), [0]);
    // They share nothing.
    let mut apart = Placed::default();
    (0..4).for_each(|_| add(&mut apart, &[0, 2], 1));
    (0..4).for_each(|_| add(&mut apart, &[1, 2], 1));
    assert!(cut(&[(0, 1)], &apart).is_empty());
    // Members that do not lead need not hear each other.
    let mut led = Placed::default();
    add(&mut led, &[2, 0, 1], 2);
    assert!(cut(&[(0, 1)], &led).is_empty());
}

/// Each write waits for who is being filled; the PG stands still if its leader does not hear it.
#[test]
fn who_is_being_filled_and_not_heard_by_its_leader_goes() {
    let mut filling = Placed::default();
    let (up, acting) = (vec![2, OSD_NONE, 1], vec![1, 0]);
    filling.add_pg(&UpActing { up, up_primary: 2, acting, acting_primary: 0 }, 2);
    assert_eq!(cut(&[(0, 2)], &filling), [2]);
    assert!(cut(&[(1, 2)], &filling).is_empty(), "osd.0 leads");
    // Of those that can serve none is too many.
    assert!(cut(&[(0, 1), (0, 2)], &filling).is_empty());
}

#[test]
fn who_may_not_be_marked_down_stays() {
    let three = placed(&[&[0], &[1], &[2]], 3, 2);
    let p = pairs(&words(&mutual(&[(0, 1)]), 5.0, 1), at(5.0), GRACE, |_| false);
    let q = |may| Question { pairs: &p, placed: &three, accused: &|_| 0, may };
    assert_eq!(take(&q(&|osd, _| osd != 1)), [(0, (0, 1))]);
    assert_eq!(take(&q(&|_, before| before > 0)), []);
}

fn map() -> OsdMap {
    let mut map = OsdMap::fresh(Uuid([1; 16]), 3, at(0.0), Crush::default());
    for s in &mut map.osd_state {
        *s = spirula_maps::osdmap::state::EXISTS | spirula_maps::osdmap::state::UP;
    }
    map
}

fn wish<'a>(map: &'a OsdMap, unheard: &[OsdId]) -> Wish<'a> {
    let unheard = unheard.iter().copied().collect();
    Wish { osd: 1, was_up: true, unheard, healthy: true, starved: false, wanting: false, map }
}

#[test]
fn one_that_was_deaf_stays_out_until_it_hears_all() {
    let (map, mut t) = (map(), PairTracker::default());
    assert!(t.may_boot(wish(&map, &[]), at(0.0)), "nothing is known against it");
    t.taken(1, (0, 1), at(0.0));
    assert!(t.accused(0) == 1 && t.was_deaf(1));
    for s in 1..100 {
        assert!(!t.may_boot(wish(&map, &[0]), at(f64::from(s))));
    }
    // A restart changes nothing.
    assert!(!t.may_boot(Wish { was_up: false, ..wish(&map, &[0]) }, at(101.0)));
    assert!(!t.may_boot(wish(&map, &[]), at(102.0)), "just this moment");
    assert!(t.may_boot(wish(&map, &[]), at(103.0)));
    t.booted(1, at(103.0));
    assert!(!t.was_deaf(1) && t.accused(0) == 0);
    // Somebody else's fault, later: it was up before and hears not all.
    assert!(!t.may_boot(wish(&map, &[2]), at(200.0)));
    assert!(t.may_boot(wish(&map, &[]), at(201.0)) || t.may_boot(wish(&map, &[]), at(202.0)));
    // A new process that nobody took comes up whatever it hears.
    assert!(
        PairTracker::default().may_boot(Wish { was_up: false, ..wish(&map, &[0, 2]) }, at(0.0))
    );
}

#[test]
fn a_link_that_comes_and_goes_costs_less_often_each_time() {
    let (map, mut t) = (map(), PairTracker::default());
    // It works for 3 s, is dead for 6 s, and so on.
    let (mut up, mut now, mut taken) = (true, 0.0, Vec::new());
    while now < 600.0 {
        let dead_for = now % 9.0 - 3.0;
        if up && dead_for >= 5.0 {
            t.taken(1, (0, 1), at(now));
            taken.push(now);
            up = false;
        } else if !up && t.may_boot(wish(&map, if dead_for >= 0.0 { &[0] } else { &[] }), at(now)) {
            t.booted(1, at(now));
            up = true;
        }
        now += 0.5;
    }
    assert!((2..=4).contains(&taken.len()), "{taken:?}");
    // Long after, it is as at first.
    assert!(t.may_boot(wish(&map, &[]), at(2000.0)) || t.may_boot(wish(&map, &[]), at(2061.0)));
    t.booted(1, at(2061.0));
    t.taken(1, (0, 1), at(3000.0));
    assert!(!t.may_boot(wish(&map, &[]), at(3010.0)));
    assert!(t.may_boot(wish(&map, &[]), at(3011.0)));
}

/// Others fail while it waits for the link to last, and PGs stop without it: it is let in as soon
/// as it hears all.
#[test]
fn who_is_needed_is_not_kept_out_for_a_link_that_broke_before() {
    let map = map();
    let kept = || {
        let mut t = PairTracker::default();
        for n in 0..7 {
            t.taken(1, (0, 1), at(10.0 * f64::from(n)));
            t.booted(1, at(10.0 * f64::from(n) + 5.0));
        }
        t.taken(1, (0, 1), at(70.0));
        assert!(!t.may_boot(wish(&map, &[]), at(80.0)));
        assert!(!t.may_boot(wish(&map, &[]), at(139.0)), "nobody needs it");
        t
    };
    assert!(kept().may_boot(wish(&map, &[]), at(140.0)));
    assert!(
        kept().may_boot(Wish { starved: true, ..wish(&map, &[]) }, at(100.0)),
        "PGs cannot begin without it"
    );
    let mut t = kept();
    t.kept.get_mut(&1).unwrap().found = Some((map.epoch, BTreeSet::new(), true));
    assert!(t.may_boot(wish(&map, &[]), at(100.0)), "PGs have too few members without it");
    // Not at the very moment at which it hears all again.
    let mut t = kept();
    assert!(
        !t.may_boot(wish(&map, &[0]), at(100.0))
            && !t.may_boot(Wish { starved: true, ..wish(&map, &[]) }, at(101.0))
    );
    assert!(t.may_boot(Wish { starved: true, ..wish(&map, &[]) }, at(102.0)));
}

/// Objects may be lost for good. Whoever does not hear all comes in for them ever less often, for
/// it is taken again each time.
#[test]
fn who_does_not_hear_all_is_not_let_in_for_ever_for_objects_that_are_lost() {
    let map = map();
    let (mut t, mut now, mut came) = (PairTracker::default(), 0.0, Vec::new());
    while now < 7200.0 {
        t.taken(1, (0, 1), at(now));
        let from = now;
        while now < 7200.0 && !t.may_boot(Wish { wanting: true, ..wish(&map, &[0]) }, at(now)) {
            now += 1.0;
        }
        came.push(now - from);
        t.booted(1, at(now));
        now += 21.0;
    }
    assert!(came.len() <= 20, "{came:?}");
    assert!(came.starts_with(&[1.0, 2.0, 4.0]), "at first it may be what brings them: {came:?}");
    t.taken(1, (0, 1), at(now));
    assert!(
        t.may_boot(Wish { starved: true, ..wish(&map, &[0]) }, at(now + 60.0)),
        "PGs cannot begin without it"
    );
    assert!(!t.may_boot(Wish { wanting: true, ..wish(&map, &[0]) }, at(now + 60.0)));
    assert!(!t.may_boot(Wish { wanting: true, ..wish(&map, &[]) }, at(now + 61.0)));
    assert!(t.may_boot(Wish { wanting: true, ..wish(&map, &[]) }, at(now + 62.0)), "it hears all");
}

/// Two that share no PG: the one leads some that ask the other for what it had before.
#[test]
fn a_primary_that_waits_for_somebody_outside_of_its_members_is_not_left_alone() {
    // Of four OSDs, each PG is on two neighbours; 0 and 2 share none.
    let mut placed = Placed::default();
    for (a, b) in [(0, 1), (1, 2), (2, 3), (3, 0)] {
        add(&mut placed, &[a, b], 1);
        add(&mut placed, &[b, a], 1);
    }
    let words = |all, spare| {
        let mut words = words(&mutual(&[(0, 2)]), 5.0, 0);
        let said = words.get_mut(&2).unwrap().get_mut(&0).unwrap();
        (said.waiting, said.outside) = (all, Outside { all, spare });
        decide(&pairs(&words, at(5.0), GRACE, |_| false), &placed)
    };
    assert!(words(0, 0).is_empty());
    // Nothing is lost with either: as many go on; the higher number goes.
    assert_eq!(words(1, 1), [2]);
    // What only it has is needed: the one that leads goes.
    assert_eq!(words(1, 0), [0]);
    // More than it leads is not believed: losing the other would stop more.
    let mut narrow = Placed::default();
    (0..9).for_each(|_| add(&mut narrow, &[2, 3], 2));
    add(&mut narrow, &[0, 1], 2);
    let mut liar = self::words(&mutual(&[(0, 2)]), 5.0, 1);
    liar.get_mut(&2).unwrap().get_mut(&0).unwrap().outside = Outside { all: 1000, spare: 1000 };
    assert!(decide(&pairs(&liar, at(5.0), GRACE, |_| false), &narrow).is_empty());
}
