//! What comes into a PG and what goes out of it, in words.

use spirula_messages::cluster::pg::{CtlBody, LogUpdate, PgInfo, TxnKind};
use spirula_messages::cluster::write::Share;
use spirula_pg::{
    CreateAnswer, LogEntry, MapView, PeerMsg, PgEffect, PgEvent, Reservation, head_key, info_key,
    missing_prefix,
};
use spirula_types::transaction::{MetaOp, ObjectOp, ObjectUpdate, Transaction};
use spirula_types::{Dirty, EVersion, HObject, Peer, SNAP_HEAD, SpgId, errno};

/// An object by its name; a clone with its snapshot.
pub fn object(o: &HObject) -> String {
    if o.max {
        return "the end".into();
    }
    if o.name.is_empty() {
        return "the beginning".into();
    }
    let name = String::from_utf8_lossy(&o.name);
    if o.snap == SNAP_HEAD { name.into_owned() } else { format!("{name}@{}", o.snap) }
}

fn peer(p: Peer) -> String {
    if p == Peer::NONE { "nobody".into() } else { format!("osd.{p}") }
}

fn peers(all: &[Peer]) -> String {
    let all: Vec<String> =
        all.iter().map(|p| if p.is_some() { p.to_string() } else { "-".into() }).collect();
    format!("[{}]", all.join(" "))
}

fn objects<'a>(all: impl Iterator<Item = (&'a HObject, EVersion)>) -> String {
    let all: Vec<String> = all.map(|(o, v)| format!("{} {v}", object(o))).collect();
    if all.is_empty() { "nothing".into() } else { all.join(", ") }
}

fn range(offset: u64, length: usize) -> String {
    format!("{offset}+{length}")
}

fn update(u: &ObjectUpdate) -> String {
    let op = |o: &ObjectOp| match o {
        ObjectOp::Touch => "touch".into(),
        ObjectOp::Write { offset, data } => format!("write {}", range(*offset, data.len())),
        ObjectOp::Zero { offset, length } => format!("zero {offset}+{length}"),
        ObjectOp::Truncate { size } => format!("truncate to {size}"),
        ObjectOp::Remove => "remove".into(),
        ObjectOp::SetAttrs(a) => {
            let names = a.iter().map(|(k, _)| String::from_utf8_lossy(k).into_owned());
            format!("set {}", names.collect::<Vec<_>>().join(" "))
        }
        ObjectOp::RmAttr(k) => format!("remove {}", String::from_utf8_lossy(k)),
        ObjectOp::ClearAttrs => "clear attributes".into(),
        ObjectOp::OmapSet(_) => "set omap".into(),
        ObjectOp::OmapRm(_) | ObjectOp::OmapRmRange { .. } => "remove omap keys".into(),
        ObjectOp::OmapClear => "clear omap".into(),
        ObjectOp::OmapSetHeader(_) => "set omap header".into(),
        ObjectOp::CloneFrom(o) => format!("clone from {}", object(o)),
        ObjectOp::CloneRange { from, offset, length, to } => {
            format!("clone {offset}+{length} of {} to {to}", object(from))
        }
        ObjectOp::AllocHint(_) => "hint".into(),
    };
    let ops: Vec<String> = u.ops.iter().map(op).collect();
    format!("{}: {}", object(&u.object), ops.join(", "))
}

/// A transaction: what it does to objects, and to what is stored of the PG.
fn transaction(t: &Transaction, pg: SpgId) -> Vec<String> {
    let mut out: Vec<String> = t.objects.iter().map(update).collect();
    let of_pg = |key: &[u8], what: &str| {
        let missing = missing_prefix(pg);
        if key == info_key(pg) {
            format!("{what} info")
        } else if key == head_key(pg) {
            format!("{what} head")
        } else if key.starts_with(&missing) {
            format!("{what} a missing object")
        } else if spirula_pg::parse_info_key(key).is_some() {
            format!("{what} info of another PG")
        } else {
            format!("{what} a record of another PG")
        }
    };
    let mut meta: Vec<String> = Vec::new();
    let mut appended: Vec<String> = Vec::new();
    for m in &t.meta {
        if let MetaOp::LogAppend { version, .. } = m {
            appended.push(version.to_string());
            continue;
        }
        meta.extend(appends(&mut appended));
        meta.push(match m {
            MetaOp::Set { key, .. } => of_pg(key, "set"),
            MetaOp::Remove { key } => of_pg(key, "remove"),
            MetaOp::LogAppend { .. } => unreachable!("told above"),
            MetaOp::LogTrim { to, .. } => format!("trim the log to {to}"),
            MetaOp::LogRewind { to, .. } => format!("rewind the log to {to}"),
            MetaOp::LogRemove { .. } => "remove the log".into(),
        });
    }
    meta.extend(appends(&mut appended));
    meta.dedup();
    if !meta.is_empty() {
        out.push(meta.join(", "));
    }
    out
}

/// Entries that follow each other, as one thing.
fn appends(versions: &mut Vec<String>) -> Option<String> {
    let all = std::mem::take(versions);
    (!all.is_empty()).then(|| format!("append {} to the log", all.join(" ")))
}

fn info(i: &PgInfo) -> String {
    let mut out = format!("log ({}, {}], activated in {}", i.log_tail(), i.last_update(), i.les);
    if !i.is_whole() {
        out += &format!(", filled up to {}", object(&i.last_backfill));
    }
    if i.missing > 0 {
        out += &format!(", {} missing", i.missing);
    }
    out
}

fn entries(all: &[bytes::Bytes]) -> String {
    let all = all.iter().map(|e| spirula_encoding::from_slice::<LogEntry>(e).unwrap());
    // One below the tail only remembers its request.
    let of = |e: &LogEntry| if e.object.name.is_empty() { "".into() } else { object(&e.object) };
    let all: Vec<String> =
        all.map(|e| format!("{} {}", e.version, of(&e)).trim_end().to_owned()).collect();
    match &all[..] {
        [] => "no entries".into(),
        [one] => format!("entry {one}"),
        [first, .., last] if all.len() > 3 => {
            format!("{} entries, {first} to {last}", all.len())
        }
        _ => format!("entries {}", all.join(", ")),
    }
}

fn lacks(d: &Dirty) -> &'static str {
    if *d == Dirty::All { "all of it" } else { "what differs" }
}

/// A message between two OSDs.
fn message(m: &PeerMsg) -> String {
    match m {
        PeerMsg::Write(w) => {
            let each = w.record.entries.iter().zip(&w.given).map(|(e, g)| {
                let only = if g.share == Share::Entry { " (its entry only)" } else { "" };
                format!("{} {}{only}", e.entry.version, object(&e.entry.object))
            });
            format!("Write {}, follows {}", each.collect::<Vec<_>>().join(", "), w.follows)
        }
        PeerMsg::Ack(a) => format!("Ack up to {}", a.version),
        PeerMsg::Txn(t) if t.kind == TxnKind::Shard => {
            format!("Shard #{}, {} bytes", t.seq, t.payload.len())
        }
        PeerMsg::Txn(t) => {
            let of = Transaction::join(&t.header, &t.payload).unwrap();
            let of: Vec<String> = of.objects.iter().map(update).collect();
            let kind = if t.kind == TxnKind::Push { "Push" } else { "Pulled" };
            let more = if t.next.is_some() { ", more to come" } else { "" };
            format!("{kind} #{}, {}{more}", t.seq, of.join("; "))
        }
        PeerMsg::Ctl(c) => control(&c.body),
    }
}

fn control(body: &CtlBody) -> String {
    match body {
        CtlBody::Query { .. } => "Query: what have you, and who reads by your leave?".into(),
        CtlBody::Info { info: i, lease_left_ms, .. } => {
            let left = match lease_left_ms {
                0 => String::new(),
                ms => format!(", a lease that it gave has {ms} ms left"),
            };
            format!("Info: {}{left}", i.as_ref().map_or("nothing".into(), info))
        }
        CtlBody::Notify { info: i, .. } => format!("Notify: {}", info(i)),
        CtlBody::GetLog { after } => format!("GetLog after {after}"),
        CtlBody::Log { entries: e, missing, .. } => {
            let lacked = match missing.len() {
                0 => String::new(),
                n => format!(", {n} missing"),
            };
            format!("Log: {}{lacked}", entries(e))
        }
        CtlBody::Activate { run, log, fresh, .. } => {
            let log = match log {
                LogUpdate::Reset { entries: e, .. } => format!("forget your log: {}", entries(e)),
                LogUpdate::After { after, entries: e } => {
                    format!("your log up to {after}, then {}", entries(e))
                }
            };
            format!("Activate #{run}: {log}{}", if *fresh { ", the PG is new" } else { "" })
        }
        CtlBody::Activated { run } => format!("Activated #{run}"),
        CtlBody::History { seq, history_les, lec, rolled, .. } => {
            let rolled = match *rolled {
                v if v == EVersion::default() => String::new(),
                v => format!(", nothing up to {v} is taken back"),
            };
            format!("History #{seq}: all activated in {history_les}, clean in {lec}{rolled}")
        }
        CtlBody::HistoryAck { seq } => format!("HistoryAck #{seq}"),
        CtlBody::Gap { have } => format!("Gap: I have up to {have}"),
        CtlBody::Scan { from, max } => format!("Scan from {}, at most {max}", object(from)),
        CtlBody::Scanned { objects: o, next, .. } => {
            let found = objects(o.iter().map(|(o, v)| (o, *v)));
            format!("Scanned: {found}, up to {}", object(next))
        }
        CtlBody::ScanFailed { from } => format!("ScanFailed from {}", object(from)),
        CtlBody::Pull { seq, object: o, need, dirty, .. } => {
            format!("Pull #{seq} of {} in {need}, {}", object(o), lacks(dirty))
        }
        CtlBody::PullFailed { seq, object: o, .. } => format!("PullFailed #{seq} of {}", object(o)),
        CtlBody::PushRefused { seq } => format!("PushRefused #{seq}"),
        CtlBody::PushAck { seq } => format!("PushAck #{seq}"),
        CtlBody::Progress { last_backfill, .. } => {
            format!("Progress: you are filled up to {}", object(last_backfill))
        }
        CtlBody::ProgressAck { last_backfill } => {
            format!("ProgressAck up to {}", object(last_backfill))
        }
        CtlBody::Reserve { seq, backfill } => format!("Reserve #{seq} for {}", kind(*backfill)),
        CtlBody::Reserved { seq } => format!("Reserved #{seq}"),
        CtlBody::TooFull { seq } => format!("TooFull #{seq}"),
        CtlBody::Release { seq } => format!("Release #{seq}"),
        CtlBody::Released { seq } => format!("Released #{seq}"),
        CtlBody::Delete => "Delete: your copy is not needed any more".into(),
        CtlBody::Rotten { object: o, version, .. } => {
            format!("Rotten: {} {version}", object(o))
        }
        CtlBody::RottenAck { object: o, version } => {
            format!("RottenAck: {} {version}", object(o))
        }
        CtlBody::ScrubScan { seq, from, to, deep } => {
            let deep = if *deep { ", deep" } else { "" };
            format!("ScrubScan #{seq} from {} to {}{deep}", object(from), object(to))
        }
        CtlBody::Scrubbed { seq, map } => {
            let n = map.as_ref().map_or(0, |m| m.0.len());
            format!("Scrubbed #{seq}: {n} objects")
        }
        CtlBody::ReadShard { seq, object: o, offset, length, .. } => {
            format!("ReadShard #{seq} of {}, {offset}+{length}", object(o))
        }
    }
}

fn kind(backfill: bool) -> &'static str {
    if backfill { "a backfill" } else { "recovery by the log" }
}

fn reservation(r: &Reservation) -> String {
    match r {
        Reservation::Local { backfill } => format!("{} as its primary", kind(*backfill)),
        Reservation::Remote { primary, backfill } => {
            format!("{} by {}", kind(*backfill), peer(*primary))
        }
    }
}

fn map(v: &MapView) -> String {
    if v.pool.is_none() {
        return format!("map {}: the pool is gone", v.epoch);
    }
    let acting =
        if v.acting == v.up { String::new() } else { format!(", acting {}", peers(&v.acting)) };
    format!("map {}: up {}{acting}, the primary is {}", v.epoch, peers(&v.up), peer(v.primary))
}

/// An event, and whether it is worth a line if nothing comes of it.
pub fn event(e: &PgEvent) -> (String, bool) {
    let quiet = |text: &str| (text.to_owned(), false);
    let told = |text: String| (text, true);
    match e {
        PgEvent::Map(v) => told(map(v)),
        PgEvent::Client(op) => {
            let ops: Vec<String> = op.msg.ops.iter().map(ToString::to_string).collect();
            let what = format!("{} of {}", ops.join(", "), object(&op.msg.hobject()));
            told(format!("{} asks (request {}): {what}", op.reqid.name, request(op.id)))
        }
        PgEvent::ConnClosed(c) => told(format!("connection {c} is gone")),
        PgEvent::Peer(from, m) => told(format!("from {}: {}", peer(*from), message(m))),
        PgEvent::Renewed(o) => {
            told(format!("the session with osd.{o} was lost, a new one is open"))
        }
        PgEvent::Committed(t) => (format!("transaction {t} is durable"), false),
        PgEvent::Unstored(t, _) => told(format!("the store refuses transaction {t}")),
        PgEvent::Ready(_) => quiet("what was to be read is in memory"),
        PgEvent::Fetched(..) => quiet("another object is here"),
        PgEvent::CreateAnswer(CreateAnswer::Granted { .. }) => {
            told("the monitor says: the PG may be created".into())
        }
        PgEvent::CreateAnswer(CreateAnswer::Exists { .. }) => {
            told("the monitor says: the PG was created before".into())
        }
        PgEvent::CreatedAck { .. } => told("the monitor says: its creation is noted".into()),
        PgEvent::Reserved(r) => told(format!("the OSD lets it begin {}", reservation(r))),
        PgEvent::Refused(r) => told(format!("the OSD has no room for {}", reservation(r))),
        PgEvent::Force { .. } => quiet("its recovery is to go first"),
        PgEvent::Turn { work, .. } => (format!("the OSD gives it a turn of {work}"), false),
        PgEvent::MarkLost { .. } => told("what is unfound is to be given up".into()),
        PgEvent::Scrub { deep, repair, .. } => told(format!(
            "a {}scrub is wanted{}",
            if *deep { "deep " } else { "" },
            if *repair { ", with repair" } else { "" }
        )),
        PgEvent::ScrubMapped { .. } => quiet("the map of its objects is made"),
        PgEvent::Continue => quiet("it goes on"),
        PgEvent::Tick => quiet("time passes"),
    }
}

/// Requests by hand have numbers from 900,001 on.
fn request(op: u64) -> u64 {
    op.saturating_sub(900_000)
}

/// An effect; `None`: only the OSD's bookkeeping.
pub fn effect(e: &PgEffect, pg: SpgId) -> Option<Vec<String>> {
    let one = |text: String| Some(vec![text]);
    match e {
        PgEffect::Submit(token, t) => {
            let mut lines = transaction(t, pg);
            if lines.is_empty() {
                lines.push("nothing".into());
            }
            lines[0] = format!("stores {token}: {}", lines[0]);
            for l in &mut lines[1..] {
                *l = format!("    and {l}");
            }
            Some(lines)
        }
        PgEffect::Send(to, m) => one(format!("to {}: {}", peer(*to), message(m))),
        PgEffect::Reply(op, r) => {
            let result = match r.result {
                0 => "done".to_owned(),
                n if n > 0 => format!("done, {n}"),
                n => errno::name(-n).to_owned(),
            };
            let version = match r.user_version {
                0 => String::new(),
                v => format!(", version {v}"),
            };
            one(format!("answers request {}: {result}{version}", request(*op)))
        }
        PgEffect::Drop(op) => one(format!("drops request {}", request(*op))),
        PgEffect::Backoff { op, begin, end } => one(format!(
            "has the client of request {} hold all from {} to {}",
            request(*op),
            object(begin),
            object(end)
        )),
        PgEffect::Unblock(Some(o)) => one(format!("lets clients ask for {} again", object(o))),
        PgEffect::Unblock(None) => one("lets clients ask again".into()),
        PgEffect::Prefetch(..) => one("has something read into memory".into()),
        PgEffect::Fetch(..) => one("asks for an object of another PG".into()),
        PgEffect::NeedMap(e) => one(format!("needs map {e}")),
        PgEffect::AskCreate { .. } => one("asks the monitor whether the PG may be created".into()),
        PgEffect::Created { .. } => one("tells the monitor that the PG is created".into()),
        PgEffect::Reserve(r) => one(format!("asks its OSD for {}", reservation(r))),
        PgEffect::Unreserve(r) => one(format!("is done with {}", reservation(r))),
        PgEffect::WantTurn => one("wants a turn".into()),
        PgEffect::Alive(e) => one(format!("asks the monitor to note that it lives in {e}")),
        PgEffect::WantActing(want) if want.is_empty() => {
            one("asks the monitor for the acting set of CRUSH".into())
        }
        PgEffect::WantActing(want) => one(format!("asks the monitor for the acting set {want:?}")),
        PgEffect::Mergeable(_) => None,
        PgEffect::Repaired => one("a bad copy is replaced".into()),
        PgEffect::ScrubScan { from, to, .. } => {
            one(format!("has its objects from {} to {} mapped", object(from), object(to)))
        }
        PgEffect::ScrubEnded { done, .. } => {
            one(if *done { "the scrub is done" } else { "the scrub is given up" }.into())
        }
        PgEffect::Tell(conn, n) => one(format!(
            "tells connection {conn}: notification {} for its watch {}",
            n.notify_id, n.cookie
        )),
        PgEffect::Log { text, .. } => one(format!("logs: {text}")),
        PgEffect::Removed => one("is gone".into()),
        PgEffect::Phase(..)
        | PgEffect::ShareMap(..)
        | PgEffect::Recovered { .. }
        | PgEffect::StateChanged
        | PgEffect::Continue
        | PgEffect::WakeAt(_) => None,
    }
}
