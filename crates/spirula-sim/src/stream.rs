//! Connections of bytes between two machines, as TCP makes them: in order, delayed, cut off, ended
//! on one side long before the other knows.
//!
//! Bytes that are sent into a cut wait at the sender, which asks ever more rarely whether they get
//! through: after the cut is healed that takes as long as the cut lasted, at most. An end that has
//! had no acknowledgement for its time gives the connection up; the other end finds out when it
//! sends, or asks. A process that dies has its connections ended, in due form or with a reset; a
//! cut in the way keeps that word from the other end. A reset on the way ([`World::reset_stream`])
//! hits both ends within any of the bytes that are under way.

use crate::world::{ActorId, Event, Input, Net, World};
use std::collections::VecDeque;

/// How long a call may take to be answered, and when it is repeated within that, microseconds.
const CALL_US: u64 = 1_500_000;
const CALL_AGAIN_US: u64 = 1_000_000;
/// Longest time between two attempts to get bytes through.
const ASKS_US: u64 = 120_000_000;

/// How a connection of bytes ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Broken {
    /// Nobody listens there.
    Refused,
    /// The other side ended it in due form, after all that it sent.
    Ended,
    /// It was reset.
    Reset,
    /// Nothing was acknowledged, or no call answered, in time.
    Silent,
}

/// What travels.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    Bytes(Vec<u8>),
    /// The last part.
    End(Broken),
}

/// A connection.
pub(crate) struct Stream {
    ends: [ActorId; 2],
    net: Net,
    /// Where it is to: a port of an incarnation.
    called: bool,
    /// Which sides still have it.
    has: [bool; 2],
    /// When the last part in each direction arrives.
    last: [u64; 2],
    /// What cannot leave, per direction, and since when something has not been acknowledged.
    held: [VecDeque<Part>; 2],
    since: [Option<u64>; 2],
    /// How long each side waits for that.
    patience_us: [u64; 2],
    /// It was reset on the way: what arrives next arrives in part.
    torn: bool,
}

impl World {
    /// A call: the answer is [`Input::Called`] on both sides, or [`Input::Broken`].
    pub(crate) fn dial(
        &mut self,
        conn: u64,
        from: ActorId,
        to: ActorId,
        net: Net,
        patience_us: u64,
    ) {
        let delay = self.rng.between(100, self.delay_us);
        let s = Stream {
            ends: [from, to],
            net,
            called: false,
            has: [true, false],
            last: [self.now + delay; 2],
            held: Default::default(),
            since: [None; 2],
            patience_us: [patience_us, patience_us],
            torn: false,
        };
        self.streams.insert(conn, s);
        self.at(delay, Event::Call(conn, self.now + CALL_US));
    }

    /// A call arrives, or does not.
    pub(crate) fn call(&mut self, conn: u64, until: u64) {
        let Some(s) = self.streams.get(&conn).filter(|s| s.has[0] && !s.called) else { return };
        let ([from, to], net) = (s.ends, s.net);
        if self.is_cut(from, to, net) || self.is_cut(to, from, net) || self.is_still(to) {
            if self.rejects.contains(&to) {
                self.break_end(conn, 0, Broken::Refused);
            } else if self.now < until {
                self.at(CALL_AGAIN_US.min(until - self.now), Event::Call(conn, until));
            } else {
                self.break_end(conn, 0, Broken::Silent);
            }
        } else if !self.is_up(to) {
            self.break_end(conn, 0, Broken::Refused);
        } else {
            if let Some(s) = self.streams.get_mut(&conn) {
                (s.called, s.has) = (true, [true, true]);
            }
            self.give(to, Input::Called { conn, from, net });
            self.give(from, Input::Called { conn, from: to, net });
        }
    }

    /// Bytes of `id` on a connection.
    pub(crate) fn write(&mut self, id: ActorId, conn: u64, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.put(id, conn, Part::Bytes(bytes));
        }
    }

    /// `id` ends a connection, in due form or with a reset.
    pub(crate) fn hang_up(&mut self, id: ActorId, conn: u64, how: Broken) {
        self.put(id, conn, Part::End(how));
        let Some(s) = self.streams.get_mut(&conn) else { return };
        if let Some(side) = s.ends.iter().zip(s.has).position(|(end, has)| *end == id && has) {
            s.has[side] = false;
        }
        self.sweep(conn);
    }

    fn put(&mut self, id: ActorId, conn: u64, part: Part) {
        let Some(s) = self.streams.get_mut(&conn) else { return };
        let Some(way) = s.ends.iter().zip(s.has).position(|(end, has)| *end == id && has) else {
            return;
        };
        let ([a, b], net, waits) = (s.ends, s.net, !s.held[way].is_empty());
        let (from, to) = if way == 0 { (a, b) } else { (b, a) };
        let (there, back) = (self.is_cut(from, to, net), self.is_cut(to, from, net));
        if there || back || self.is_still(to) {
            self.unacknowledged(conn, way);
        }
        if there || waits {
            if let Some(s) = self.streams.get_mut(&conn) {
                s.held[way].push_back(part);
            }
        } else {
            self.send_part(conn, way, part);
        }
    }

    fn unacknowledged(&mut self, conn: u64, way: usize) {
        let now = self.now;
        let Some(s) = self.streams.get_mut(&conn).filter(|s| s.since[way].is_none()) else {
            return;
        };
        s.since[way] = Some(now);
        let after = s.patience_us[way];
        self.at(after, Event::Patience(conn, way, now));
    }

    fn send_part(&mut self, conn: u64, way: usize, part: Part) {
        let delay = self.rng.between(50, self.delay_us);
        let now = self.now;
        let Some(s) = self.streams.get_mut(&conn) else { return };
        s.last[way] = s.last[way].max(now + delay) + 1;
        let at = s.last[way];
        self.parts += 1;
        let number = self.parts;
        self.under_way.insert(number, part);
        self.at(at - now, Event::Part(conn, way, number));
    }

    /// A part arrives.
    pub(crate) fn arrive(&mut self, conn: u64, way: usize, number: u64) {
        let Some(part) = self.under_way.remove(&number) else { return };
        let Some(s) = self.streams.get_mut(&conn) else { return };
        let side = 1 - way;
        let (torn, has, to) = (s.torn, s.has[side], s.ends[side]);
        if !has {
            // Whoever has forgotten the connection resets it.
            if matches!(part, Part::Bytes(_)) && s.has[way] && s.called {
                self.put_back(conn, side);
            }
            return;
        }
        match part {
            Part::Bytes(mut bytes) => {
                if torn {
                    bytes.truncate(self.rng.below(bytes.len() as u64) as usize);
                }
                if !bytes.is_empty() {
                    self.mix(conn ^ u64::from(spirula_encoding::crc::crc32c(1, &bytes)));
                    self.give(to, Input::Bytes { conn, bytes });
                }
                if torn {
                    self.break_end(conn, side, Broken::Reset);
                }
            }
            Part::End(how) => self.break_end(conn, side, if torn { Broken::Reset } else { how }),
        }
    }

    /// The side that does not have it any more answers with a reset.
    fn put_back(&mut self, conn: u64, side: usize) {
        let Some(s) = self.streams.get(&conn) else { return };
        let (to, net) = (s.ends[1 - side], s.net);
        let from = s.ends[side];
        if !self.is_cut(from, to, net) {
            self.send_part(conn, side, Part::End(Broken::Reset));
        }
    }

    /// One side's connection is over.
    fn break_end(&mut self, conn: u64, side: usize, how: Broken) {
        let Some(s) = self.streams.get_mut(&conn).filter(|s| s.has[side]) else { return };
        s.has[side] = false;
        let id = s.ends[side];
        if self.tell {
            println!("{:>12} stream {conn:x} of {id}: {how:?}", self.now);
        }
        self.sweep(conn);
        self.give(id, Input::Broken { conn, how });
    }

    /// A side has waited long enough for an acknowledgement.
    pub(crate) fn impatient(&mut self, conn: u64, way: usize, since: u64) {
        let Some(s) = self.streams.get_mut(&conn).filter(|s| s.since[way] == Some(since)) else {
            return;
        };
        s.held[way].clear();
        self.break_end(conn, way, Broken::Silent);
    }

    /// Bytes that waited for a way find one, by and by.
    pub(crate) fn ways_healed(&mut self) {
        let now = self.now;
        let waiting = |s: &Stream| s.since.iter().any(Option::is_some);
        let waiting: Vec<u64> =
            self.streams.iter().filter(|(_, s)| waiting(s)).map(|(n, _)| *n).collect();
        for conn in waiting {
            for way in [0, 1] {
                let Some(since) = self.streams.get(&conn).and_then(|s| s.since[way]) else {
                    continue;
                };
                let after = self.rng.between(0, (now - since).min(ASKS_US));
                self.at(after, Event::Again(conn, way));
            }
        }
    }

    /// It is asked again whether bytes get through.
    pub(crate) fn ask_again(&mut self, conn: u64, way: usize) {
        let Some(s) = self.streams.get(&conn) else { return };
        let ([a, b], net) = (s.ends, s.net);
        let (from, to) = if way == 0 { (a, b) } else { (b, a) };
        if self.is_cut(from, to, net) || self.is_still(to) {
            return;
        }
        let back = self.is_cut(to, from, net);
        let Some(s) = self.streams.get_mut(&conn) else { return };
        if !back {
            s.since[way] = None;
        }
        for part in std::mem::take(&mut s.held[way]) {
            self.send_part(conn, way, part);
        }
        self.sweep(conn);
    }

    /// All connections of a process that ended end.
    pub(crate) fn streams_die(&mut self, id: ActorId) {
        let mine: Vec<u64> =
            self.streams.iter().filter(|(_, s)| s.ends.contains(&id)).map(|(n, _)| *n).collect();
        for conn in mine {
            let how = if self.rng.one_in(4) { Broken::Reset } else { Broken::Ended };
            self.hang_up(id, conn, how);
        }
    }

    /// So many random connections are reset on their way; returns how many.
    pub fn reset_streams(&mut self, most: u64) -> u64 {
        self.reset_some(most, |_| true)
    }

    /// As [`Self::reset_streams`], of those of an actor.
    pub fn reset_streams_of(&mut self, id: ActorId, most: u64) -> u64 {
        self.reset_some(most, |s| s.ends.contains(&id))
    }

    fn reset_some(&mut self, most: u64, which: impl Fn(&Stream) -> bool) -> u64 {
        let whole = |s: &Stream| s.called && s.has == [true, true] && !s.torn && which(s);
        let mut all: Vec<u64> =
            self.streams.iter().filter(|(_, s)| whole(s)).map(|(n, _)| *n).collect();
        let mut done = 0;
        while done < most && !all.is_empty() {
            let conn = all.swap_remove(self.rng.below(all.len() as u64) as usize);
            self.reset_stream(conn);
            done += 1;
        }
        done
    }

    /// A connection is reset on its way.
    pub(crate) fn reset_stream(&mut self, conn: u64) {
        let Some(s) = self.streams.get_mut(&conn).filter(|s| s.called) else { return };
        s.torn = true;
        // Where nothing is under way the end comes by itself.
        for way in [0, 1] {
            let after = self.rng.between(1_000, 400_000);
            self.at(after, Event::Torn(conn, way));
        }
    }

    /// A side of a connection that was reset hears of it.
    pub(crate) fn torn(&mut self, conn: u64, side: usize) {
        self.break_end(conn, side, Broken::Reset);
    }

    /// Forgets what nobody has and nothing is waiting for.
    fn sweep(&mut self, conn: u64) {
        let over = |s: &Stream| s.has == [false, false];
        if self.streams.get(&conn).is_some_and(over) {
            self.streams.remove(&conn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use crate::world::{Actor, Local, Output};
    use spirula_mon::Peer;
    use spirula_types::EntityAddr;
    use std::any::Any;

    /// Notes what comes, and does what it is told at its next tick.
    #[derive(Default)]
    struct Ear {
        todo: Vec<Output>,
        heard: Vec<u8>,
        called: bool,
        broken: Vec<(u64, Broken)>,
    }

    impl Actor for Ear {
        fn handle(&mut self, local: Local, input: Input, out: &mut Vec<Output>) {
            match input {
                Input::Called { .. } => self.called = true,
                Input::Bytes { bytes, .. } => self.heard.extend(bytes),
                Input::Broken { how, .. } => self.broken.push((local.true_us, how)),
                _ => {}
            }
            out.append(&mut self.todo);
        }

        fn crash(&mut self, _: &mut Rng) {}

        fn admits(&mut self, _: &mut Peer, _: &EntityAddr) -> bool {
            false
        }

        fn as_any(&mut self) -> &mut dyn Any {
            self
        }
    }

    const SECOND: u64 = 1_000_000;

    /// Two that have a connection; one calls with a patience of 5 s.
    fn pair(seed: u64) -> World {
        let mut w = World::new(seed);
        for _ in 0..2 {
            w.add(Box::new(Ear::default()), 1000);
        }
        run(&mut w, 1);
        tell(&mut w, Output::Dial { conn: 9, to: 1, net: Net::Public, patience_us: 5 * SECOND });
        run(&mut w, 1);
        w
    }

    fn tell(w: &mut World, o: Output) {
        w.with(0, |e: &mut Ear| e.todo.push(o));
    }

    fn run(w: &mut World, seconds: u64) {
        let until = w.now + seconds * SECOND;
        while w.step(until) {}
    }

    fn ear(w: &mut World, id: ActorId) -> (Vec<u8>, Vec<Broken>) {
        w.with(id, |e: &mut Ear| (e.heard.clone(), e.broken.iter().map(|(_, how)| *how).collect()))
            .unwrap()
    }

    fn say(w: &mut World, n: u8) {
        tell(w, Output::Write(9, vec![n; 100]));
        run(w, 1);
    }

    #[test]
    fn bytes_wait_for_a_short_cut_and_a_long_one_ends_the_connection_on_one_side() {
        let mut w = pair(1);
        say(&mut w, 1);
        w.cut(0, 1);
        say(&mut w, 2);
        assert_eq!(ear(&mut w, 1).0, [1; 100]);
        w.heal(false);
        run(&mut w, 3);
        assert_eq!(ear(&mut w, 1), ([[1; 100], [2; 100]].concat(), vec![]));
        // They arrive, but no acknowledgement does.
        w.cut(1, 0);
        say(&mut w, 3);
        assert_eq!(ear(&mut w, 1).0.len(), 300);
        run(&mut w, 6);
        assert_eq!(ear(&mut w, 0).1, [Broken::Silent]);
        assert_eq!(ear(&mut w, 1).1, [], "the other side does not know");
    }

    #[test]
    fn a_reset_on_the_way_cuts_what_is_under_way_anywhere_and_nothing_comes_after_it() {
        let mut lengths = std::collections::BTreeSet::new();
        for seed in 0..40 {
            let mut w = pair(seed);
            for n in 0..4 {
                tell(&mut w, Output::Write(9, vec![n; 100]));
            }
            let until = w.now + 1500;
            while w.step(until) {}
            w.reset_stream(9);
            run(&mut w, 2);
            let (heard, broken) = ear(&mut w, 1);
            let all: Vec<u8> = (0..4).flat_map(|n| [n; 100]).collect();
            assert!(all.starts_with(&heard) && broken == [Broken::Reset], "seed {seed}");
            assert_eq!(ear(&mut w, 0).1, [Broken::Reset]);
            lengths.insert(heard.len() % 100);
        }
        assert!(lengths.len() > 3, "within frames: {lengths:?}");
    }

    #[test]
    fn a_process_that_dies_ends_its_connections_and_nobody_listens_there() {
        let mut w = pair(3);
        w.crash(1);
        run(&mut w, 1);
        let how = ear(&mut w, 0).1;
        assert!(how == [Broken::Ended] || how == [Broken::Reset], "{how:?}");
        tell(&mut w, Output::Dial { conn: 10, to: 1, net: Net::Public, patience_us: SECOND });
        run(&mut w, 1);
        assert_eq!(ear(&mut w, 0).1.last(), Some(&Broken::Refused));
    }
}
