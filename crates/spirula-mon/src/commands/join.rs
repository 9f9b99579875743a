//! `spirula token …` and `spirula join`: commands of ours, not of Ceph's. See [`crate::join`].

use super::{
    Args, CommandResult, CommandSpec, FLAG_HIDDEN, Outcome, json_out, settle, stream, text_or_json,
};
use crate::join::{Answer, MON_NAMES, OSDS_MAX, Record, Request, Token, given_by, id_of, user_of};
use crate::mon::CommandCtx;
use crate::osd;
use crate::work::Work;
use serde_json::{Value, json};
use spirula_auth::db::User;
use spirula_auth::{CryptoKey, EntityId, KeyType};
use spirula_encoding::UTime;
use spirula_types::errno::{EACCES, EEXIST, EINVAL, ENOENT, EPERM};
use spirula_types::names::is_daemon_name;
use spirula_types::{EntityType, OsdId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where the records are, among the `config-key` values.
const PLACE: &str = "spirula/join-token/";
/// Life of a token if none is asked for, seconds.
const LIFE: i64 = 3600;
/// Options that a host's daemons need to know before they are connected.
const HANDED_ON: &[&str] = &[
    "auth_cluster_required",
    "auth_service_required",
    "auth_client_required",
    "public_network",
    "cluster_network",
    "ms_bind_ipv4",
    "ms_bind_ipv6",
    "ms_cluster_mode",
    "ms_service_mode",
    "ms_client_mode",
    "ms_mon_cluster_mode",
    "ms_mon_service_mode",
    "ms_mon_client_mode",
];

pub(super) const SPECS: &[CommandSpec] = &[
    CommandSpec {
        sig: "join-token create name=seconds,type=CephInt,range=60|2592000,req=false \
            name=mon,type=CephBool,req=false",
        help: "make a token that brings one new host in, once; with --mon also a monitor on it",
        module: "auth",
        perm: "rwx",
        flags: 0,
        run: create,
    },
    CommandSpec {
        sig: "join-token ls",
        help: "list the tokens that bring new hosts in",
        module: "auth",
        perm: "rx",
        flags: 0,
        run: ls,
    },
    CommandSpec {
        sig: "join-token rm name=id,type=CephString",
        help: "make a token worthless",
        module: "auth",
        perm: "rwx",
        flags: 0,
        run: rm,
    },
    CommandSpec {
        sig: "join-token redeem name=id,type=CephString name=request,type=CephString",
        help: "bring a host in; for 'spirula join'",
        module: "auth",
        perm: "rwx",
        flags: FLAG_HIDDEN,
        run: redeem,
    },
];

fn record(work: &Work, id: &str) -> Option<Record> {
    spirula_encoding::from_slice(work.state.kv.get(&format!("{PLACE}{id}"))?).ok()
}

fn keep(work: &mut Work, id: &str, record: &Record) {
    let bytes = spirula_encoding::to_vec(record).into();
    Arc::make_mut(&mut work.state.kv).insert(format!("{PLACE}{id}"), bytes);
}

fn forget(work: &mut Work, id: &str) {
    Arc::make_mut(&mut work.state.kv).remove(&format!("{PLACE}{id}"));
    if let Ok(user) = user_of(id).parse() {
        Arc::make_mut(&mut work.state.auth).remove(&user);
    }
}

fn ids(work: &Work) -> Vec<String> {
    let found = work.state.kv.range(PLACE.to_owned()..).map_while(|(k, _)| k.strip_prefix(PLACE));
    found.map(str::to_owned).collect()
}

/// Moves the ends of tokens, and of what they gave.
pub(crate) fn shift(work: &mut Work, to: impl Fn(UTime) -> UTime) {
    let names =
        work.state.kv.range(MON_NAMES.to_owned()..).take_while(|(k, _)| k.starts_with(MON_NAMES));
    let moved = names.filter_map(|(k, given)| {
        given_until(given).map(|(until, token)| (k, given_by(to(until), token)))
    });
    let moved: Vec<(String, String)> = moved.map(|(k, given)| (k.clone(), given)).collect();
    if !moved.is_empty() {
        let kv = Arc::make_mut(&mut work.state.kv);
        moved.into_iter().for_each(|(k, given)| drop(kv.insert(k, given.into())));
    }
    for id in ids(work) {
        if let Some(mut r) = record(work, &id) {
            r.until = to(r.until);
            keep(work, &id, &r);
        }
    }
}

/// Removes the tokens whose time is over, and what they gave.
pub(crate) fn forget_ended(work: &mut Work) {
    for id in ids(work) {
        if record(work, &id).is_none_or(|r| r.until <= work.now) {
            forget(work, &id);
        }
    }
    forget_names(work, None);
}

/// Takes back the names given to monitors that have not come in, whose time is over or whose token
/// was removed.
fn forget_names(work: &mut Work, removed: Option<&str>) {
    let now = work.now;
    // An earlier version said no more than that it is given: from now on for as long as a token
    // lasts.
    let names =
        work.state.kv.range(MON_NAMES.to_owned()..).take_while(|(k, _)| k.starts_with(MON_NAMES));
    let old: Vec<String> =
        names.filter(|(_, given)| given.is_empty()).map(|(k, _)| k.clone()).collect();
    for key in old {
        let until = UTime { sec: now.sec.saturating_add(LIFE as u32), nsec: 0 };
        Arc::make_mut(&mut work.state.kv).insert(key, given_by(until, "").into());
    }
    let gone = |given: &[u8]| {
        given_until(given).is_none_or(|(until, token)| until <= now || removed == Some(token))
    };
    let names =
        work.state.kv.range(MON_NAMES.to_owned()..).take_while(|(k, _)| k.starts_with(MON_NAMES));
    let gone: Vec<String> =
        names.filter(|(_, given)| gone(given)).map(|(k, _)| k.clone()).collect();
    if !gone.is_empty() {
        let kv = Arc::make_mut(&mut work.state.kv);
        gone.iter().for_each(|key| drop(kv.remove(key)));
    }
}

/// Until when a name is given, and by which token.
fn given_until(given: &[u8]) -> Option<(UTime, &str)> {
    let (until, token) = std::str::from_utf8(given).ok()?.split_once(' ')?;
    Some((UTime::from_nanos(until.parse().ok()?), token))
}

fn create(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let seconds = args.int("seconds").unwrap_or(LIFE).clamp(60, 30 * 86400);
    let now = ctx.work.now;
    let random = ctx.random;
    let Ok(key) = CryptoKey::new(KeyType::Aes256k, now, &random) else {
        return CommandResult::err(EINVAL, "cannot make a key");
    };
    let mons: Vec<_> = ctx.work.state.monmap.iter().map(|(_, m)| m.addrs.clone()).collect();
    let cephx =
        ctx.mon.settings.borrow().get("auth_service_required").is_some_and(|m| m.contains("cephx"));
    let token = Token { fsid: ctx.mon.fsid(), mons, cephx, key: key.clone() };
    let id = token.id();
    let Ok(entity) = token.user().parse::<EntityId>() else {
        return CommandResult::err(EINVAL, "cannot make a user for it");
    };
    let until = UTime { sec: now.sec.saturating_add(seconds as u32), nsec: now.nsec };
    keep(ctx.work, &id, &Record { made: now, until, mon: args.bool("mon"), used: None });
    // No other right than to be used.
    let caps = [("mon".to_owned(), "allow command \"join-token redeem\"".to_owned())].into();
    Arc::make_mut(&mut ctx.work.state.auth).put(entity, User { key, pending_key: None, caps });
    let text = || format!("{token}\n");
    let value = || json!({"token": token.to_string(), "id": id, "until": until.to_iso()});
    text_or_json(ctx, text, value)
        .with_rs(format!("token {id} is good for one host, until {}", until.to_iso()))
}

fn ls(ctx: &mut CommandCtx<'_>, _: &Args) -> CommandResult {
    let one = |id: &String| {
        let r = record(ctx.work, id)?;
        let used = r.used.map(|(_, host, at)| json!({"host": host, "at": at.to_iso()}));
        Some(
            json!({"id": id, "made": r.made.to_iso(), "until": r.until.to_iso(), "mon": r.mon, "used": used}),
        )
    };
    let all: Vec<Value> = ids(ctx.work).iter().filter_map(one).collect();
    json_out(ctx, &Value::Array(all))
}

fn rm(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let id = args.str("id");
    if record(ctx.work, &id).is_none() {
        return CommandResult::err(ENOENT, format!("there is no token {id}"));
    }
    forget(ctx.work, &id);
    forget_names(ctx.work, Some(&id));
    CommandResult::ok(format!("removed token {id}"))
}

type Refused = (i32, String);

fn redeem(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let mut run = || -> Outcome {
        let id = args.str("id");
        let gone = || {
            (
                EACCES,
                "this token is not known: it has ended or was removed; make another".to_owned(),
            )
        };
        let mut record = record(ctx.work, &id).ok_or_else(gone)?;
        let user: EntityId = user_of(&id).parse().map_err(|_| gone())?;
        let key = ctx
            .work
            .state
            .auth
            .get(&user)
            .map(|u| u.key.clone())
            .filter(|k| id_of(k) == id)
            .ok_or_else(gone)?;
        if record.until <= ctx.work.now {
            return Err(gone());
        }
        let request = Request::open(&key, &args.str("request"))
            .map_err(|e| (EACCES, format!("request: {e}")))?;
        // Not the nonce alone, which another host might repeat: all that is asked for.
        let digest = digest(&key, &request);
        if let Some((used, host, at)) = &record.used
            && *used != digest
        {
            return Err((
                EACCES,
                format!("this token was used by {host} at {}; make another", at.to_iso()),
            ));
        }
        check(&request, &record)?;
        if let Some(name) = &request.mon {
            grant_name(ctx.work, name, &given_by(record.until, &id), record.used.is_some())?;
        }
        let osds = admit(ctx.work, &request)?;
        let mon_key = request.mon.as_ref().and_then(|_| mon_key(ctx.work));
        if record.used.is_none() {
            record.used = Some((digest, request.host.clone(), ctx.work.now));
            keep(ctx.work, &id, &record);
            ctx.work.info(format!(
                "host {} joins with {} OSDs by token {id}",
                request.host,
                osds.len()
            ));
        }
        let mons = ctx
            .work
            .state
            .monmap
            .mons
            .iter()
            .map(|(name, m)| (name.clone(), m.addrs.clone()))
            .collect();
        let conf = handed_on(ctx);
        let answer =
            Answer { nonce: request.nonce, fsid: ctx.mon.fsid(), mons, osds, mon_key, conf };
        Ok(CommandResult::data(answer.seal(&key, &mut stream(ctx)?)))
    };
    settle(run())
}

/// Tells one request from every other.
fn digest(key: &CryptoKey, request: &Request) -> [u8; 16] {
    let all = key.hmac_sha256(&spirula_encoding::to_vec(request));
    std::array::from_fn(|i| all.get(i).copied().unwrap_or_default())
}

fn check(request: &Request, record: &Record) -> Result<(), Refused> {
    if !is_daemon_name(&request.host) {
        return Err((EINVAL, format!("'{}' cannot be a host's name", request.host)));
    }
    if request.osds.len() > OSDS_MAX {
        return Err((
            EINVAL,
            format!("{} OSDs at once are too many, {OSDS_MAX} are allowed", request.osds.len()),
        ));
    }
    if request.mgr.as_ref().is_some_and(|(name, _)| !is_daemon_name(name)) {
        return Err((EINVAL, "that cannot be a manager's name".to_owned()));
    }
    if request.mon.as_ref().is_some_and(|name| !is_daemon_name(name)) {
        return Err((EINVAL, "that cannot be a monitor's name".to_owned()));
    }
    if request.mon.is_some() && !record.mon {
        let how = "make one that is with 'spirula token create --mon'";
        return Err((EPERM, format!("this token is not for a monitor; {how}")));
    }
    Ok(())
}

/// Lets a monitor of that name come in, once, for as long as `given` says. `again`: this very
/// request was granted before.
fn grant_name(work: &mut Work, name: &str, given: &str, again: bool) -> Result<(), Refused> {
    if work.state.members.values().any(|m| m.name == name) {
        if again {
            return Ok(());
        }
        return Err((
            EEXIST,
            format!("mon.{name} is a monitor of this cluster already; choose another name"),
        ));
    }
    Arc::make_mut(&mut work.state.kv).insert(format!("{MON_NAMES}{name}"), given.to_owned().into());
    Ok(())
}

/// Takes the grant of a monitor's name; false if there is none.
pub(crate) fn take_name(work: &mut Work, name: &str) -> bool {
    Arc::make_mut(&mut work.state.kv).remove(&format!("{MON_NAMES}{name}")).is_some()
}

/// Makes the OSDs and users exist; what is there already from the same host is left.
fn admit(work: &mut Work, request: &Request) -> Result<Vec<OsdId>, Refused> {
    let mut out = Vec::new();
    for wanted in &request.osds {
        if wanted.uuid.is_zero() {
            return Err((EINVAL, "an OSD needs an identity".to_owned()));
        }
        let map = work.osd();
        let there = map.osds().find(|o| map.uuid(*o) == Some(wanted.uuid));
        let id = there.or_else(|| (0..).find(|o| !map.exists(*o))).unwrap_or(0);
        if there.is_none() {
            osd::check_room(work, i64::from(id) + 1)?;
            osd::create(work, id, wanted.uuid);
            // Left by an OSD of that number that is gone.
            if let Ok(entity) = EntityId::new(EntityType::Osd, &id.to_string()) {
                Arc::make_mut(&mut work.state.auth).remove(&entity);
            }
        }
        let caps = [("mgr", "allow profile osd"), ("mon", "allow profile osd"), ("osd", "allow *")];
        add_user(work, EntityType::Osd, &id.to_string(), &wanted.key, &caps)?;
        out.push(id);
    }
    if let Some((name, key)) = &request.mgr {
        let caps = [("mds", "allow *"), ("mon", "allow profile mgr"), ("osd", "allow *")];
        add_user(work, EntityType::Mgr, name, key, &caps)?;
    }
    Ok(out)
}

fn add_user(
    work: &mut Work,
    kind: EntityType,
    id: &str,
    key: &CryptoKey,
    caps: &[(&str, &str)],
) -> Result<(), Refused> {
    let entity = EntityId::new(kind, id).map_err(|e| (EINVAL, e.to_string()))?;
    match work.state.auth.get(&entity) {
        Some(there) if there.key != *key => Err((
            EEXIST,
            format!(
                "{entity} exists with another key; 'ceph auth rm {entity}' if it is no longer used"
            ),
        )),
        Some(_) => Ok(()),
        None => {
            let caps: BTreeMap<_, _> =
                caps.iter().map(|(s, c)| ((*s).to_owned(), (*c).to_owned())).collect();
            Arc::make_mut(&mut work.state.auth)
                .put(entity, User { key: key.clone(), pending_key: None, caps });
            Ok(())
        }
    }
}

/// The key that monitors share, if there is one.
fn mon_key(work: &Work) -> Option<CryptoKey> {
    let entity: EntityId = "mon.".parse().ok()?;
    work.state.auth.get(&entity).map(|u| u.key.clone())
}

fn handed_on(ctx: &CommandCtx<'_>) -> BTreeMap<String, String> {
    let settings = ctx.mon.settings.borrow();
    let of = |name: &&str| Some(((*name).to_owned(), settings.given(name)?.to_owned()));
    HANDED_ON.iter().filter_map(of).filter(|(_, v)| !v.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::State;
    use crate::work::Speaker;
    use spirula_maps::{Crush, MonMap, OsdMap};
    use spirula_types::{AddrVec, Uuid};

    /// They stood without an end, and were all gone at the first tick of a monitor that knows ends.
    #[test]
    fn names_that_an_earlier_version_gave_last_as_long_as_a_token() {
        let now = UTime { sec: 1_795_000_000, nsec: 0 };
        let map =
            OsdMap::fresh(Uuid([1; 16]), 3, now, Crush::new(spirula_crush::CrushMap::default()));
        let mut state = State::new(MonMap::initial(Uuid([1; 16]), now, []), map, 0);
        let key = format!("{MON_NAMES}b");
        Arc::make_mut(&mut state.kv).insert(key.clone(), bytes::Bytes::new());
        for (after, there) in [(0, true), (LIFE - 1, true), (LIFE, false)] {
            let speaker = Speaker { name: "a".into(), rank: 0, addrs: AddrVec::default() };
            let mut work =
                Work::new(state, UTime { sec: now.sec + after as u32, nsec: 0 }, speaker);
            forget_ended(&mut work);
            assert_eq!(work.state.kv.contains_key(&key), there, "after {after} s");
            state = work.state;
        }
    }
}
