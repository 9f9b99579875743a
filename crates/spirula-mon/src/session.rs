//! Connections and what they subscribed to (`docs/protocol/mon.md` §1).

use crate::access::{self, Access};
use crate::clog::severity_by_name;
use crate::config::{self, Traits};
use crate::event::{ConnId, MonEffect, Peer};
use crate::mds::bounds::FS_NAME_MAX;
use crate::state::State;
use spirula_messages::ceph::{
    MConfig, MFsMap, MFsMapUser, MLog, MMdsMap, MMgrMap, MMonMap, MOsdMap, Subscription,
};
use spirula_messages::cluster::control::WHOLE_OSDMAP;
use spirula_messages::{Body, Message};
use spirula_settings::options;
use spirula_types::{EntityType, Epoch, Uuid};
use std::collections::BTreeMap;

/// Options of Ceph's clients and metadata servers whose defaults here are not those that they come
/// with. With theirs, one whose monitor's host is gone without a word notices it after half a
/// minute: a metadata server that no monitor has heard for so long has lost its rank.
const OF_CLIENTS: [&str; 3] =
    ["mon_client_ping_interval", "mon_client_ping_timeout", "mon_client_hunt_interval"];
/// Most incrementals in one message.
const MAPS_PER_MESSAGE: usize = 100;
/// Bytes of OSD maps that one peer is sent at a time, about: one map at least.
const MAPS_BYTES: u64 = 4 << 20;
/// Most incrementals that a client is sent before it asks for the next map.
const MAPS_OF_WARNING: Epoch = 8;
/// Most subscriptions of one session; a client has a handful.
const SUBSCRIPTIONS_MAX: usize = 64;
/// Bytes of a host's name, at most, as of any name in the DNS.
const HOSTNAME_MAX: usize = 255;
/// What is served under one name.
const SERVED: [&str; 8] =
    ["monmap", "config", "osdmap", WHOLE_OSDMAP, "mgrmap", "mdsmap", "fsmap", "fsmap.user"];
/// Most log lines in one message.
const LOG_PER_MESSAGE: usize = 200;

/// One subscription: what is wanted next.
#[derive(Clone, Copy, Debug)]
struct Sub {
    next: u64,
    once: bool,
}

/// Is anything served under this name? Of what is not, as of `osd_pg_creates` and `kv:…`, nothing
/// is ever sent, and nothing need be kept: whoever may log in may ask for a name of a mebibyte.
/// There may be a file system of such a name later.
fn is_served(what: &str) -> bool {
    SERVED.contains(&what)
        || what.strip_prefix("log-").is_some_and(|level| severity_by_name(level).is_some())
        || what.strip_prefix("mdsmap.").is_some_and(|name| name.len() <= FS_NAME_MAX)
}

/// A connection's state.
#[derive(Debug)]
pub struct Session {
    /// Who it is.
    pub peer: Peer,
    /// Its host's name, if it said.
    pub hostname: String,
    /// What it may do.
    pub access: Access,
    subs: BTreeMap<String, Sub>,
    /// The newest OSD map that it was sent over this connection.
    osdmap_sent: Epoch,
    /// It lacks OSD maps that are sent when it has taken those before ([`Session::go_on`]).
    osdmaps_owed: bool,
    /// The options that it was sent, as they were stored.
    config_sent: Option<BTreeMap<String, String>>,
}

impl Session {
    /// A new connection: no subscriptions.
    pub fn new(peer: Peer) -> Self {
        Self {
            peer,
            hostname: String::new(),
            access: Access::default(),
            subs: BTreeMap::new(),
            osdmap_sent: 0,
            osdmaps_owed: false,
            config_sent: None,
        }
    }

    /// Epoch of the newest OSD map that it was sent; 0 if none.
    pub fn osdmap_sent(&self) -> Epoch {
        self.osdmap_sent
    }

    /// Takes subscriptions in; what is due is sent by [`Self::push`].
    pub fn subscribe(&mut self, what: Vec<Subscription>, hostname: String) {
        if !hostname.is_empty() && hostname.len() <= HOSTNAME_MAX {
            self.hostname = hostname;
        }
        for s in what.into_iter().filter(|s| is_served(&s.what)) {
            if self.subs.len() >= SUBSCRIPTIONS_MAX && !self.subs.contains_key(&s.what) {
                tracing::debug!(peer = %self.peer.auth_name(), what = s.what, "too many \
                    subscriptions, ignored");
                continue;
            }
            if s.what == "config" {
                // Asking anew is answered anew, even if nothing changed.
                self.config_sent = None;
            }
            if s.what == "osdmap" {
                self.osdmaps_owed = false;
            }
            self.subs.insert(s.what, Sub { next: s.start, once: s.once });
        }
    }

    /// Sends everything subscribed to that is newer than what was sent.
    pub fn push(&mut self, conn: ConnId, fsid: Uuid, state: &State, out: &mut Vec<MonEffect>) {
        let names: Vec<String> = self.subs.keys().cloned().collect();
        for what in names {
            let Some(sub) = self.subs.get(&what).copied() else { continue };
            let sent = self.push_one(&what, sub, conn, fsid, state, out);
            if let Some(next) = sent {
                if sub.once && !(what == "osdmap" && self.osdmaps_owed) {
                    self.subs.remove(&what);
                } else if let Some(s) = self.subs.get_mut(&what) {
                    s.next = next;
                }
            }
        }
    }

    /// Does it lack OSD maps, of which it was sent as many as are sent at a time?
    pub fn is_owed_osdmaps(&self) -> bool {
        self.osdmaps_owed
    }

    /// Sends the next of the OSD maps that it lacks.
    pub fn go_on(&mut self, conn: ConnId, fsid: Uuid, state: &State, out: &mut Vec<MonEffect>) {
        self.osdmaps_owed = false;
        self.push(conn, fsid, state, out);
    }

    /// Sends one subscription's news; returns what is wanted next, if anything was sent.
    fn push_one(
        &mut self,
        what: &str,
        sub: Sub,
        conn: ConnId,
        fsid: Uuid,
        state: &State,
        out: &mut Vec<MonEffect>,
    ) -> Option<u64> {
        let mut send = |m: Message| out.push(MonEffect::Send(conn, m));
        let due = |epoch: Epoch| (u64::from(epoch) >= sub.next).then_some(u64::from(epoch) + 1);
        if let Some(level) = what.strip_prefix("log-") {
            return push_log(severity_by_name(level)?, sub, fsid, state, &mut send);
        }
        match what {
            "monmap" => {
                let next = due(state.monmap.epoch)?;
                send(
                    MMonMap { monmap: spirula_encoding::to_vec(&*state.monmap).into() }
                        .into_message(0),
                );
                Some(next)
            }
            "config" => {
                // Every change of the state comes here, for every session: its values are brought
                // to their form when they are sent.
                let stored = self.stored_config(state);
                let same = |sent: &BTreeMap<String, String>| {
                    sent.iter().map(|(k, v)| (&**k, &**v)).eq(stored.clone())
                };
                if self.config_sent.as_ref().is_some_and(same) {
                    return None;
                }
                let config = stored
                    .iter()
                    .map(|(k, v)| ((*k).to_owned(), config::normal(k, v).into_owned()));
                send(MConfig { config: self.with_defaults(config.collect()) }.into_message(0));
                self.config_sent =
                    Some(stored.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect());
                Some(sub.next)
            }
            "osdmap" => {
                due(state.osdmap.epoch).filter(|_| !self.osdmaps_owed)?;
                let history = matches!(self.peer.kind, EntityType::Osd | EntityType::Mgr);
                let (messages, last) = osdmap_messages(fsid, state, sub.next as Epoch, history);
                messages.into_iter().for_each(send);
                self.osdmap_sent = last;
                self.osdmaps_owed = last < state.osdmap.epoch;
                Some(u64::from(last) + 1)
            }
            // One map as a whole: the next of an OSD to which the change that leads there does not
            // fit.
            WHOLE_OSDMAP if self.peer.kind == EntityType::Osd => {
                let next = due(state.osdmap.epoch)?;
                let epoch = (sub.next as Epoch).max(state.oldest_osdmap());
                let full = state.osdmap_at(epoch)?;
                let fulls = vec![(epoch, full.bytes().clone())];
                let (oldest, newest) = (state.settled_osdmap(), state.osdmap.epoch);
                send(
                    MOsdMap { fsid, incrementals: Vec::new(), fulls, oldest, newest }
                        .into_message(0),
                );
                Some(next)
            }
            "mgrmap" => {
                let next = due(state.mgrmap.epoch)?;
                send(
                    MMgrMap { mgrmap: spirula_encoding::to_vec(&*state.mgrmap).into() }
                        .into_message(0),
                );
                Some(next)
            }
            w if w == "mdsmap" || w.starts_with("mdsmap.") => {
                let name = what.strip_prefix("mdsmap.").unwrap_or_default();
                let map = crate::mds::serve::map_for(state, &self.peer, &self.access, name);
                let next = due(map.epoch)?;
                let (epoch, fs_name) = (map.epoch, map.fs_name.clone());
                let mdsmap = spirula_encoding::to_vec(&map).into();
                send(MMdsMap { fsid, epoch, mdsmap, fs_name }.into_message(0));
                Some(next)
            }
            "fsmap" | "fsmap.user" => {
                let next = due(state.fsmap.epoch)?;
                let epoch = state.fsmap.epoch;
                let part = state.fsmap.seen_by(|name| self.access.sees_fs(name));
                let seen = part.as_ref().unwrap_or(&state.fsmap);
                if what == "fsmap.user" {
                    let map = spirula_encoding::to_vec(&seen.user()).into();
                    send(MFsMapUser { epoch, map }.into_message(0));
                } else {
                    let map = spirula_encoding::to_vec(seen).into();
                    send(MFsMap { epoch, map }.into_message(0));
                }
                Some(next)
            }
            // mgrdigest, servicemap, kv:…, osd_pg_creates: our own daemons have messages for these.
            _ => None,
        }
    }

    /// Tells a client of an OSD map in which OSDs went down: its requests may be with them, and it
    /// would ask for the next map only when a connection breaks, or some ten seconds later. If it
    /// lacks more than the newest few epochs it asks for the rest.
    ///
    /// Whoever never asked over this connection for OSD maps is told nothing, as by Ceph's
    /// monitors: he may have no use for them (a client looks for the monitors and its options
    /// first, over a connection of its own), and Ceph's programs then print, of each, that nobody
    /// took it. So a client that lost its monitor together with an OSD learns of that as late as it
    /// does with Ceph.
    pub fn warn(&mut self, conn: ConnId, fsid: Uuid, state: &State, out: &mut Vec<MonEffect>) {
        let newest = state.osdmap.epoch;
        if self.peer.kind != EntityType::Client
            || self.osdmap_sent == 0
            || self.osdmap_sent >= newest
            || !access::may_have_osdmap(&self.access, &self.peer)
        {
            return;
        }
        let from = newest.saturating_sub(MAPS_OF_WARNING - 1).max(self.osdmap_sent + 1);
        let incrementals: Vec<_> = match are_dear(state, from) {
            true => Vec::new(),
            false => state.incrementals.range(from..).map(|(e, b)| (*e, b.clone())).collect(),
        };
        self.osdmap_sent = newest;
        let m = match incrementals.is_empty() {
            true => newest_osdmap(fsid, state, newest),
            false => MOsdMap {
                fsid,
                incrementals,
                fulls: Vec::new(),
                oldest: state.oldest_osdmap(),
                newest,
            },
        };
        out.push(MonEffect::Send(conn, m.into_message(0)));
    }

    /// Options that are set for this peer, as they were stored.
    fn stored_config<'a>(&self, state: &'a State) -> BTreeMap<&'a str, &'a str> {
        let (name, mut place) = (self.peer.auth_name(), None);
        let traits = Traits::of(&state.osdmap.crush, &name, &self.hostname, &mut place);
        state.config.stored_for(&name, traits).into_iter().map(|(k, (v, _))| (k, v)).collect()
    }

    /// Options for this peer, with those that it must be told though nobody set them.
    fn with_defaults(&self, mut all: BTreeMap<String, String>) -> BTreeMap<String, String> {
        if self.peer.kind == EntityType::Client || self.peer.kind == EntityType::Mds {
            for option in OF_CLIENTS.iter().filter_map(|name| options::find(name)) {
                all.entry(option.name.to_owned()).or_insert_with(|| option.default.to_owned());
            }
        }
        all
    }
}

fn push_log(
    level: u16,
    sub: Sub,
    fsid: Uuid,
    state: &State,
    send: &mut impl FnMut(Message),
) -> Option<u64> {
    let last = state.log.last();
    let wanted = |e: &spirula_messages::ceph::LogEntry| e.severity >= level;
    let entries: Vec<_> = if sub.next == 0 {
        // The newest line alone, so that a watcher sees that it is connected.
        state.log.after(0).rev().map(|(_, e)| e).find(|e| wanted(e)).cloned().into_iter().collect()
    } else if sub.next <= last {
        state.log.after(sub.next - 1).map(|(_, e)| e).filter(|e| wanted(e)).cloned().collect()
    } else {
        return None;
    };
    for chunk in entries.chunks(LOG_PER_MESSAGE) {
        send(MLog { version: last, fsid, entries: chunk.to_vec() }.into_message(0));
    }
    Some(last + 1)
}

/// Have the changes from `start` on more bytes than the newest map as a whole?
fn are_dear(state: &State, start: Epoch) -> bool {
    state.incrementals.bytes_from(start..) > (state.osdmap.bytes().len() as u64).max(MAPS_BYTES)
}

/// The newest OSD map, whole.
fn newest_osdmap(fsid: Uuid, state: &State, oldest: Epoch) -> MOsdMap {
    let newest = state.osdmap.epoch;
    MOsdMap {
        fsid,
        incrementals: Vec::new(),
        fulls: vec![(newest, state.osdmap.bytes().clone())],
        oldest,
        newest,
    }
}

/// OSD maps from `start` (0: newest full map), and the epoch of the last one. Who needs every epoch
/// (`history`) gets the oldest kept full map and all that follows when `start` is older than that,
/// and is told from when on maps are needed; everybody else gets the newest full map then, and
/// where the changes have more bytes. Of what has more than [`MAPS_BYTES`] the rest is for later:
/// it would all wait for the peer, which counts as one that does not read when it has not taken a
/// few times as much.
fn osdmap_messages(
    fsid: Uuid,
    state: &State,
    start: Epoch,
    history: bool,
) -> (Vec<Message>, Epoch) {
    let newest = state.osdmap.epoch;
    let begins = state.oldest_osdmap();
    let oldest = if history { state.settled_osdmap() } else { begins };
    let message =
        |incrementals, fulls| MOsdMap { fsid, incrementals, fulls, oldest, newest }.into_message(0);
    let full_newest = || {
        // A client that is told of older ones may ask for what is between.
        let oldest = if history { oldest } else { newest };
        (vec![newest_osdmap(fsid, state, oldest).into_message(0)], newest)
    };
    if !history && (start == 0 || are_dear(state, start)) {
        return full_newest();
    }
    let mut fulls = Vec::new();
    let mut from = start;
    if start <= begins || !state.incrementals.contains_key(&start) {
        if !history || start == 0 {
            return full_newest();
        }
        match state.fulls.get(&begins) {
            Some(bytes) => {
                fulls.push((begins, bytes.clone()));
                from = begins + 1;
            }
            None => return full_newest(),
        }
    }
    let mut bytes = fulls.iter().map(|(_, b): &(Epoch, bytes::Bytes)| b.len() as u64).sum::<u64>();
    let fits = state.incrementals.range(from..).enumerate().take_while(|(n, (_, b))| {
        bytes += b.len() as u64;
        *n == 0 || bytes <= MAPS_BYTES
    });
    let incs: Vec<_> = fits.map(|(_, (e, b))| (*e, b.clone())).collect();
    let last = incs.last().or(fulls.last()).map_or(newest, |(e, _)| *e);
    let chunks = incs.chunks(MAPS_PER_MESSAGE);
    (chunks.map(|chunk| message(chunk.to_vec(), std::mem::take(&mut fulls))).collect(), last)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What nobody serves, and what no file system can be called, is not kept for as long as the
    /// connection lasts, nor is the name of a host that is none; what is served is, whatever else
    /// was asked for.
    #[test]
    fn what_a_session_subscribed_to_takes_little_memory() {
        let addrs = Default::default();
        let peer =
            Peer { kind: EntityType::Client, id: "u".into(), global_id: 5, addrs, features: 0 };
        let mut session = Session::new(peer);
        let mut subscribe = |what: String, host: String| {
            session.subscribe(vec![Subscription { what, start: 0, once: false }], host);
            session.subs.keys().map(String::len).sum::<usize>() + session.hostname.len()
        };
        let long = "x".repeat((1 << 20) - 100);
        for n in 0..SUBSCRIPTIONS_MAX {
            // A message of a client may have 1 MiB; for what begins so nobody needs a capability.
            for what in
                ["monmap", "config", "mdsmap", "log-", "kv:", "fsmap.user", "osd_pg_creates"]
            {
                assert_eq!(subscribe(format!("{what}.{n}.{long}"), long.clone()), 0, "{what}");
            }
        }
        for what in ["mgrdigest", "osd_pg_creates", "log-nothing", "monmap.x", ""] {
            assert_eq!(subscribe(what.to_owned(), String::new()), 0, "{what}");
        }
        let served = SERVED.iter().map(|s| (*s).to_owned());
        let logs = ["debug", "info", "sec", "warn", "error"].map(|level| format!("log-{level}"));
        let all: Vec<String> = served.chain(logs).chain(["mdsmap.later".to_owned()]).collect();
        for what in &all {
            subscribe(what.clone(), "host".into());
        }
        assert_eq!(
            subscribe(String::new(), String::new()),
            4 + all.iter().map(String::len).sum::<usize>()
        );
        let full = (0..2 * SUBSCRIPTIONS_MAX).map(|n| {
            subscribe(format!("mdsmap.{n}.{}", "x".repeat(FS_NAME_MAX - 5)), String::new())
        });
        assert!(full.max().unwrap() <= 32 << 10);
    }

    /// Large maps were let go of though they are needed: an OSD that lacks them gets the oldest
    /// that leads to the newest, and is not told that what was before is settled; a client gets the
    /// newest, and nothing that makes it ask for those between.
    #[test]
    fn who_is_behind_what_is_kept_gets_a_full_map() {
        let mut state = crate::state::osdmaps::tests::new().0;
        for n in 0..50 {
            let edited = crate::state::osdmaps::tests::with_crush(&state.osdmap, 5 << 20, n);
            assert!(state.advance_osdmap(&edited, Default::default(), 0).unwrap());
        }
        let (begins, newest) = (state.oldest_osdmap(), state.osdmap.epoch);
        assert!(begins > 10 && state.settled_osdmap() == 1);
        let sent = |mut start: Epoch, history| {
            let mut all = Vec::new();
            while start <= newest {
                let (messages, last) = osdmap_messages(Uuid::default(), &state, start, history);
                let bytes: usize =
                    messages.iter().map(|m| m.front.len() + m.middle.len() + m.data.len()).sum();
                assert!(bytes <= 12 << 20, "{bytes} bytes at a time");
                all.extend(messages.iter().map(|m| MOsdMap::from_message(m).unwrap()));
                start = last + 1;
            }
            all
        };
        for start in [2, 7, begins] {
            let osd = sent(start, true);
            let fulls: Vec<Epoch> = osd.iter().flat_map(|m| &m.fulls).map(|(e, _)| *e).collect();
            let incs: Vec<Epoch> =
                osd.iter().flat_map(|m| &m.incrementals).map(|(e, _)| *e).collect();
            assert_eq!((fulls, incs), (vec![begins], (begins + 1..=newest).collect()));
            assert!(osd.iter().all(|m| m.oldest == 1 && m.newest == newest));
        }
        for start in [0, 2, begins, newest - 5] {
            let client = sent(start, false);
            let fulls: Vec<Epoch> = client.iter().flat_map(|m| &m.fulls).map(|(e, _)| *e).collect();
            assert_eq!(
                (client.len(), fulls, client[0].incrementals.len()),
                (1, vec![newest], 0),
                "{start}"
            );
            assert_eq!(client[0].oldest, newest);
        }
        let (next, client) = (sent(newest, true), sent(newest, false));
        assert!(next[0].fulls.is_empty() && next[0].incrementals.len() == 1);
        assert!(client[0].incrementals.len() + client[0].fulls.len() == 1);
    }

    /// Who lacks many large maps is sent some at a time, the next ones when it has taken those,
    /// whatever changes meanwhile; a subscription that is to be served once is served to its end.
    #[test]
    fn who_lacks_many_large_maps_gets_some_at_a_time() {
        let mut state = crate::state::osdmaps::tests::new().0;
        let change = |state: &mut State, n| {
            let edited = crate::state::osdmaps::tests::with_crush(&state.osdmap, 3 << 20, n);
            assert!(state.advance_osdmap(&edited, Default::default(), 0).unwrap());
        };
        (0..8).for_each(|n| change(&mut state, n));
        let (addrs, features) = (Default::default(), spirula_types::features::PACIFIC);
        let mut osd = Session::new(Peer {
            kind: EntityType::Osd,
            id: "0".into(),
            global_id: 0,
            addrs,
            features,
        });
        let got = |out: &mut Vec<MonEffect>| {
            let maps = std::mem::take(out).into_iter().map(|e| match e {
                MonEffect::Send(7, m) => MOsdMap::from_message(&m).unwrap(),
                e => panic!("{e:?}"),
            });
            maps.flat_map(|m| m.incrementals).map(|(e, _)| e).collect::<Vec<_>>()
        };
        for once in [false, true] {
            osd.subscribe(
                vec![Subscription { what: "osdmap".into(), start: 2, once }],
                String::new(),
            );
            let mut out = Vec::new();
            osd.push(7, Uuid::default(), &state, &mut out);
            assert_eq!(
                (got(&mut out), osd.osdmap_sent(), osd.is_owed_osdmaps()),
                (vec![2], 2, true)
            );
            change(&mut state, 100 + usize::from(once));
            osd.push(7, Uuid::default(), &state, &mut out);
            assert!(out.is_empty(), "it has not taken those before");
            let mut all = Vec::new();
            while osd.is_owed_osdmaps() {
                osd.go_on(7, Uuid::default(), &state, &mut out);
                all.extend(got(&mut out));
            }
            assert_eq!(all, (3..=state.osdmap.epoch).collect::<Vec<_>>());
            assert_eq!(osd.subs.contains_key("osdmap"), !once);
        }
    }
}
