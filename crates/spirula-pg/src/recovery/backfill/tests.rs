//! Two maps of objects become equal, whatever is written meanwhile and in whatever order the
//! answers come.

use super::*;
use proptest::prelude::*;

/// Objects are numbers here; 0 is before all.
fn object(n: u32) -> HObject {
    if n == 0 { HObject::default() } else { crate::exec::tests::object(&format!("o{n:04}")) }
}

fn version(n: u64) -> EVersion {
    EVersion { epoch: 1, version: n }
}

/// What may happen, in any order.
#[derive(Clone, Debug)]
enum Event {
    /// The backfill is asked what it needs; `busy`: others are at work on the next object.
    Step { busy: bool },
    /// The member answers a listing, or cannot; with so many objects at a time.
    Answer { max: usize, fails: bool },
    /// A piece of what is under way arrives: that of the objects which has this place.
    Land(usize),
    /// An object that we lack comes here.
    Come(usize),
    /// A client writes, or removes, an object.
    Write { object: u32, removes: bool },
    /// The member hears how far it is.
    Progress { every: usize },
    /// The member restarts: what is under way is lost, and it begins where it last recorded.
    Restart,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => prop::bool::weighted(0.1).prop_map(|busy| Event::Step { busy }),
        4 => (1usize..6, prop::bool::weighted(0.1))
            .prop_map(|(max, fails)| Event::Answer { max, fails }),
        4 => (0usize..4).prop_map(Event::Land),
        1 => (0usize..4).prop_map(Event::Come),
        4 => (1u32..40, prop::bool::weighted(0.3))
            .prop_map(|(object, removes)| Event::Write { object, removes }),
        2 => (1usize..4).prop_map(|every| Event::Progress { every }),
        1 => Just(Event::Restart),
    ]
}

type Objects = BTreeMap<HObject, EVersion>;

/// A primary and the member that it fills.
struct World {
    /// What the log says that there is.
    ours: Objects,
    /// What of that is not here.
    lacked: BTreeMap<HObject, EVersion>,
    theirs: Objects,
    /// Up to here the member has recorded that it is filled.
    recorded: HObject,
    backfill: Backfill,
    /// A listing that the member was asked for, from here on.
    asked: Option<HObject>,
    /// Sent, or to be removed, and not there yet.
    flying: Vec<HObject>,
    newest: u64,
    /// Objects that one listing names.
    piece: usize,
}

fn list(of: &Objects, from: &HObject, max: usize) -> (Vec<(HObject, EVersion)>, HObject) {
    let mut found: Vec<_> =
        of.range(from.clone()..).take(max + 1).map(|(o, v)| (o.clone(), *v)).collect();
    let next = if found.len() > max { found.pop().map(|(o, _)| o) } else { None };
    (found, next.unwrap_or_else(HObject::max))
}

impl World {
    fn new(ours: Objects, theirs: Objects, lacked: &[u32], from: u32, piece: usize) -> Self {
        // Up to where the member is filled it is equal.
        let from = object(from);
        let mut theirs = theirs;
        theirs.retain(|o, _| *o > from);
        theirs.extend(ours.iter().filter(|(o, _)| **o <= from).map(|(o, v)| (o.clone(), *v)));
        let lacks = |n: &u32| ours.get_key_value(&object(*n)).map(|(o, v)| (o.clone(), *v));
        Self {
            lacked: lacked.iter().filter_map(lacks).collect(),
            ours,
            theirs,
            backfill: Backfill::new(&from),
            recorded: from,
            asked: None,
            flying: Vec::new(),
            newest: 1000,
            piece,
        }
    }

    fn step(&mut self, busy: bool) {
        let lacked = &self.lacked;
        match self.backfill.next(|_| busy, |o| lacked.contains_key(o)) {
            Next::ListHere(from) => {
                // What is here, and what is lacked up to where that ends.
                let here = self
                    .ours
                    .iter()
                    .filter(|(o, _)| !self.lacked.contains_key(*o))
                    .map(|(o, v)| (o.clone(), *v));
                let (mut found, next) = list(&here.collect(), &from, self.piece);
                let lacked = self.lacked.range(from..).filter(|(o, _)| next.max || **o < next);
                found.extend(lacked.map(|(o, v)| (o.clone(), *v)));
                self.backfill.listed_here(found, next);
            }
            Next::ListThere(from) => {
                assert_eq!(self.asked.replace(from), None, "one listing at a time");
            }
            Next::Object { object, ours, act } => {
                assert_eq!(ours, self.ours.contains_key(&object), "{object}");
                match act {
                    Act::Keep => assert_eq!(self.ours.get(&object), self.theirs.get(&object)),
                    Act::Send(v) => {
                        assert_eq!(self.ours.get(&object), Some(&v), "sent as it is");
                        self.flying.push(object);
                    }
                    Act::Remove => self.flying.push(object),
                    // It is sent when it has come.
                    Act::Fetch => assert!(self.lacked.contains_key(&object)),
                }
            }
            Next::Compared => assert!(self.backfill.started().max),
            Next::Wait => {}
        }
    }

    fn handle(&mut self, event: &Event) {
        match event {
            Event::Step { busy } => self.step(*busy),
            Event::Answer { max, fails } => {
                let Some(from) = self.asked.take() else { return };
                if *fails {
                    assert!(self.backfill.not_listed(&from));
                    assert!(!self.backfill.not_listed(&from), "nobody waits for it now");
                } else {
                    let (found, next) = list(&self.theirs, &from, *max);
                    assert!(self.backfill.listed_there(&from, found.clone(), next.clone()));
                    assert!(!self.backfill.listed_there(&from, found, next), "a second answer");
                }
            }
            Event::Land(at) => {
                if self.flying.is_empty() {
                    return;
                }
                let object = self.flying.remove(at % self.flying.len());
                match self.ours.get(&object) {
                    Some(v) => drop(self.theirs.insert(object.clone(), *v)),
                    None => drop(self.theirs.remove(&object)),
                }
                self.backfill.landed(&object);
            }
            Event::Come(at) => {
                if self.lacked.is_empty() {
                    return;
                }
                let object = self.lacked.keys().nth(at % self.lacked.len()).unwrap().clone();
                self.lacked.remove(&object);
                if self.backfill.is_under_way(&object) {
                    self.flying.push(object);
                }
            }
            Event::Write { object: n, removes } => {
                let object = object(*n);
                // Such a write waits.
                if self.lacked.contains_key(&object) || self.backfill.is_under_way(&object) {
                    return;
                }
                self.newest += 1;
                let v = (!removes).then(|| version(self.newest));
                // The member gets it in full up to where the backfill has come.
                let both = object <= *self.backfill.started();
                for (objects, _) in
                    [(&mut self.ours, true), (&mut self.theirs, both)].into_iter().filter(|x| x.1)
                {
                    match v {
                        Some(v) => drop(objects.insert(object.clone(), v)),
                        None => drop(objects.remove(&object)),
                    }
                }
                self.backfill.note_written(&object, v);
            }
            Event::Progress { every } => {
                if let Some(done) = self.backfill.progress(*every) {
                    assert!(done > self.recorded, "it only ever rises");
                    self.recorded = done;
                    self.is_equal_up_to_recorded();
                }
            }
            Event::Restart => {
                self.flying.clear();
                self.asked = None;
                self.backfill = Backfill::new(&self.recorded);
            }
        }
    }

    /// Up to where the member has recorded, it is as the log says.
    fn is_equal_up_to_recorded(&self) {
        let up_to = |objects: &Objects| -> Objects {
            objects.range(..=self.recorded.clone()).map(|(o, v)| (o.clone(), *v)).collect()
        };
        assert_eq!(up_to(&self.ours), up_to(&self.theirs), "up to {}", self.recorded);
    }

    /// With nothing in the way it ends, after a number of steps that goes with that of objects.
    fn ends(&mut self) {
        let most = 20 * (self.ours.len() + self.theirs.len() + 2);
        for _ in 0..most {
            for e in [
                Event::Come(0),
                Event::Step { busy: false },
                Event::Answer { max: 3, fails: false },
                Event::Land(0),
                Event::Progress { every: 2 },
            ] {
                self.handle(&e);
            }
            if self.recorded.max {
                return;
            }
        }
        panic!("not filled: {:?}", self.backfill);
    }
}

fn objects() -> impl Strategy<Value = Objects> {
    prop::collection::btree_map((1u32..40).prop_map(object), (1u64..4).prop_map(version), 0..24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn a_member_becomes_equal(
        ours in objects(),
        theirs in objects(),
        lacked in prop::collection::vec(1u32..40, 0..4),
        from in 0u32..40,
        piece in 1usize..6,
        events in prop::collection::vec(event(), 0..200),
    ) {
        let mut w = World::new(ours, theirs, &lacked, from, piece);
        for e in &events {
            w.handle(e);
            w.is_equal_up_to_recorded();
        }
        w.ends();
        assert_eq!(w.ours, w.theirs);
    }
}

#[test]
fn an_object_whose_record_is_damaged_at_both_is_sent() {
    let mut b = Backfill::new(&HObject::default());
    let damaged = || vec![(object(1), EVersion::default())];
    let no = |_: &HObject| false;
    assert_eq!(b.next(no, no), Next::ListHere(HObject::default()));
    b.listed_here(damaged(), HObject::max());
    assert_eq!(b.next(no, no), Next::ListThere(HObject::default()));
    assert!(b.listed_there(&HObject::default(), damaged(), HObject::max()));
    let act = Act::Send(EVersion::default());
    assert_eq!(b.next(no, no), Next::Object { object: object(1), ours: true, act });
    assert_eq!(b.next(no, no), Next::Compared);
    assert!(b.is_filled_but(|o| *o == object(1)) && !b.is_filled_but(no));
    assert_eq!(b.progress(1), None, "its object is not there yet");
    b.landed(&object(1));
    assert_eq!(b.progress(1), Some(HObject::max()));
    assert_eq!(b.next(no, no), Next::Wait, "it is over");
}

#[test]
fn what_is_not_answered_is_said_again() {
    let (mut b, member) = (Backfill::new(&HObject::default()), Peer::whole(1));
    let no = |_: &HObject| false;
    let at = |now_ms| Again::new(None, now_ms, 10);
    assert_eq!(b.ask_again(at(0), member), None, "nothing was asked");
    b.listed_here(Vec::new(), HObject::max());
    assert_eq!(b.next(no, no), Next::ListThere(HObject::default()));
    assert_eq!(b.ask_again(at(0), member), None);
    assert_eq!(b.ask_again(at(10), member), Some(HObject::default()));
    b.listed_there(&HObject::default(), Vec::new(), HObject::max());
    assert_eq!(b.ask_again(at(100), member), None, "it was answered");
    assert_eq!(b.next(no, no), Next::Compared);
    let end = b.progress(1).unwrap();
    let reached = HObject::default();
    assert_eq!(b.tell_again(at(100), member, Some(&reached)), None);
    assert_eq!(b.tell_again(at(110), member, Some(&reached)), Some(end.clone()));
    assert_eq!(b.tell_again(at(1000), member, Some(&end)), None, "it is recorded");
}
