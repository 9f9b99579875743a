//! Who may do what at an OSD: the one place that decides, for every message and operation.
//!
//! Clients are held to the capabilities in their tickets: pool, namespace, object, application,
//! reading, writing, classes. What only OSDs tell each other comes from OSDs, whose capabilities
//! allow everything; so must those of whoever gives orders to the daemon (`ceph tell`).
//!
//! The one operation that touches another object than the request's own is `copy_from`: this OSD
//! reads its source with its own rights, so the asker must have the right to read it himself.

use crate::classes::ClassLists;
use spirula_auth::caps::{ClassCall, OsdAccess, OsdCaps};
use spirula_classes::Flags;
use spirula_encoding::{DecodeError, Decoder};
use spirula_maps::OsdMap;
use spirula_messages::Body;
use spirula_messages::ceph::op::{self, OsdOp};
use spirula_messages::ceph::{MOsdOp, kind};
use spirula_messages::cluster::pg::{OsdPing, OsdPong, OsdRenewed, PgAcks, PgCtls, PgTxn};
use spirula_messages::cluster::write::PgWrite;
use spirula_messenger::auth::METHOD_CEPHX;
use spirula_pg::exec;
use spirula_runtime::Peer;
use spirula_runtime::auth::Grants;
use spirula_types::{EntityType, ObjectLocator, PoolId};

/// What a session may do.
#[derive(Debug)]
pub(crate) enum Rights {
    /// Everything: this process's own daemons, and clusters without authentication.
    All,
    /// What its capabilities allow.
    Caps(OsdCaps),
}

/// What a call needs the right to. One that names nothing that there is ends before that: execution
/// says what is wrong with it.
fn called(o: &OsdOp, lists: &ClassLists) -> Option<ClassCall<'static>> {
    let (class, method) = exec::called(o)?;
    let Flags { read, write, .. } = method.flags;
    Some(ClassCall {
        class: class.name,
        method: method.name,
        read,
        write,
        allowed: lists.by_default(class.name),
    })
}

/// The source of a `copy_from`: its name and where it is.
fn source(o: &OsdOp) -> Result<(bytes::Bytes, ObjectLocator), DecodeError> {
    let mut d = Decoder::new(&o.indata);
    Ok((d.bytes()?, d.get()?))
}

fn is_copy(o: &OsdOp) -> bool {
    matches!(o.op, op::COPY_FROM | op::COPY_FROM2)
}

/// Reads a ticket's capabilities, for whoever lets its holder in.
///
/// # Errors
/// When they are none for OSDs, with the reason.
pub fn grants(text: &str) -> Result<Grants, String> {
    if text.is_empty() {
        // A user without capabilities for OSDs may connect, and do nothing.
        return Ok(Grants::new(OsdCaps::default()));
    }
    text.parse::<OsdCaps>().map(Grants::new).map_err(|e| e.to_string())
}

/// Is this a message that OSDs send to each other, and nobody else does?
pub(crate) fn between_osds(message: u16) -> bool {
    matches!(
        message,
        PgWrite::KIND
            | PgTxn::KIND
            | PgAcks::KIND
            | PgCtls::KIND
            | OsdPing::KIND
            | OsdPong::KIND
            | OsdRenewed::KIND
    )
}

impl Rights {
    /// Those of whoever opened a link to us.
    pub fn of(peer: &Peer) -> Self {
        match peer.method {
            // Nobody else gets in by another method than those the door allows.
            METHOD_CEPHX => Self::Caps(peer.grants.get::<OsdCaps>().cloned().unwrap_or_default()),
            _ => Self::All,
        }
    }

    /// May this peer send a message of this kind? Operations are looked at one by one, by
    /// [`Rights::may_operate`].
    pub fn may_send(&self, peer: &Peer, message: u16) -> bool {
        let Self::Caps(caps) = self else { return true };
        let addr = peer.place();
        match message {
            kind::OSD_OP | kind::PING | kind::OSD_BACKOFF => true,
            kind::COMMAND => caps.allows_all(addr),
            own if between_osds(own) => peer.kind == EntityType::Osd && caps.allows_all(addr),
            _ => false,
        }
    }

    /// May these capabilities read that object? `None` if they cannot tell: its pool is not in the
    /// map, or its name is no text.
    fn may_read(
        caps: &OsdCaps,
        peer: &Peer,
        map: Option<&OsdMap>,
        name: &[u8],
        at: &ObjectLocator,
    ) -> Option<bool> {
        let map = map?;
        let pool: PoolId = at.pool;
        let apps = &map.pool(pool)?.application_metadata;
        let key = std::str::from_utf8(&at.key).ok()?;
        let name = std::str::from_utf8(name).ok()?;
        Some(caps.allows(&OsdAccess {
            pool: map.pool_names.get(&pool).map_or("", String::as_str),
            apps,
            namespace: std::str::from_utf8(&at.namespace).ok()?,
            object: if key.is_empty() { name } else { key },
            read: true,
            write: false,
            classes: &[],
            addr: peer.place(),
        }))
    }

    /// May this peer do all of a request's operations, and read what they read elsewhere?
    pub fn may_operate(
        &self,
        peer: &Peer,
        map: Option<&OsdMap>,
        m: &MOsdOp,
        lists: &ClassLists,
    ) -> bool {
        if !lists.may_load(&m.ops) {
            return false;
        }
        let Self::Caps(caps) = self else { return true };
        // Capabilities are text: what is none is for those alone who may do everything.
        let everything = || caps.allows_all(peer.place());
        for o in m.ops.iter().filter(|o| is_copy(o)) {
            // One that cannot be read fails in its turn, with what is wrong with it.
            let Ok((name, locator)) = source(o) else { continue };
            if !Self::may_read(caps, peer, map, &name, &locator).unwrap_or_else(everything) {
                return false;
            }
        }
        let pool_id = m.spg.pg.pool;
        // Without the pool nothing can be said of it, and nothing is done in it.
        let Some((map, pool)) = map.and_then(|map| Some((map, map.pool(pool_id)?))) else {
            return false;
        };
        let (Ok(namespace), Ok(name), Ok(key)) = (
            std::str::from_utf8(&m.locator.namespace),
            std::str::from_utf8(&m.oid),
            std::str::from_utf8(&m.locator.key),
        ) else {
            return everything();
        };
        let classes: Vec<ClassCall<'_>> =
            m.ops.iter().filter(|o| o.op == op::CALL).filter_map(|o| called(o, lists)).collect();
        // What a call does is decided by what its class declares, not by the operation's number.
        let plain = m.ops.iter().filter(|o| o.op != op::CALL);
        // Those of cache tiers neither read nor write by their numbers; they tell whether there is
        // the object.
        let reads =
            plain.clone().any(|o| o.op & op::MODE_READ != 0 || !o.is_write() || o.op == op::WATCH);
        caps.allows(&OsdAccess {
            pool: map.pool_names.get(&pool_id).map_or("", String::as_str),
            apps: &pool.application_metadata,
            namespace,
            object: if key.is_empty() { name } else { key },
            read: reads,
            write: exec::is_write(&m.ops) && plain.clone().any(|o| o.is_write()),
            classes: &classes,
            addr: peer.place(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use spirula_encoding::UTime;
    use spirula_maps::{Crush, PgPool};
    use spirula_messages::ceph::op::CopyFromArgs;
    use spirula_types::{PgId, SNAP_HEAD, SpgId, Uuid};

    fn map() -> OsdMap {
        let crush = Crush::new(spirula_crush::CrushMap::default());
        let mut map = OsdMap::fresh(Uuid([1; 16]), 1, UTime::ZERO, crush);
        for (id, name) in [(1, "a"), (2, "b")] {
            map.pools.insert(id, PgPool::replicated(1, 8, 0, UTime::ZERO));
            map.pool_names.insert(id, name.to_owned());
        }
        map
    }

    fn lists() -> ClassLists {
        ClassLists::of(&spirula_settings::Settings::default())
    }

    fn at(pool: PoolId, namespace: &'static str, key: &'static str) -> ObjectLocator {
        ObjectLocator { pool, key: Bytes::from(key), namespace: Bytes::from(namespace), hash: -1 }
    }

    fn copy(name: &'static [u8], from: &ObjectLocator) -> OsdOp {
        let args = CopyFromArgs { src_snap: SNAP_HEAD, src_version: 0, flags: 0, src_fadvise: 0 };
        OsdOp::copy_from(args, name, from)
    }

    fn request(ops: Vec<OsdOp>) -> MOsdOp {
        MOsdOp::new(SpgId::new(PgId::new(1, 0), -1), 0, at(1, "", ""), "into".into(), ops)
    }

    #[test]
    fn a_copy_needs_the_right_to_read_its_source() {
        let (map, peer) = (map(), Peer::new(EntityType::Client, "u"));
        let verdict = |caps: &str, ops: Vec<OsdOp>| {
            Rights::Caps(caps.parse().unwrap()).may_operate(
                &peer,
                Some(&map),
                &request(ops),
                &lists(),
            )
        };
        let cases: &[(&str, &'static [u8], ObjectLocator, bool)] = &[
            ("allow rw pool=a", b"o", at(1, "", ""), true),
            ("allow rw pool=a", b"o", at(2, "", ""), false),
            ("allow rw pool=a, allow w pool=b", b"o", at(2, "", ""), false),
            ("allow rw pool=a, allow r pool=b", b"o", at(2, "", ""), true),
            ("allow rw pool=a namespace=\"\"", b"o", at(1, "secret", ""), false),
            (
                "allow rw pool=a namespace=\"\", allow r pool=a namespace=n",
                b"o",
                at(1, "n", ""),
                true,
            ),
            ("allow rw pool=a object_prefix in", b"outside", at(1, "", ""), false),
            ("allow rw pool=a object_prefix in", b"inside", at(1, "", ""), true),
            ("allow rw pool=a object_prefix in", b"inside", at(1, "", "other key"), false),
            ("allow w pool=a", b"o", at(1, "", ""), false),
            // A pool that is not in the map, and a name that is no text, are for those who may do
            // everything.
            ("allow rwx", b"o", at(9, "", ""), false),
            ("allow *", b"o", at(9, "", ""), true),
            ("allow rw pool=a, allow r pool=b", b"\xff", at(2, "", ""), false),
            ("allow *", b"\xff", at(2, "", ""), true),
        ];
        for (caps, name, from, allowed) in cases {
            assert_eq!(
                verdict(caps, vec![copy(name, from)]),
                *allowed,
                "{caps}: {name:?} of {from:?}"
            );
            // Hidden behind another, it is found, too.
            let both = vec![OsdOp::create(false), copy(name, from)];
            assert_eq!(verdict(caps, both), *allowed, "{caps}: {name:?} of {from:?}");
        }
    }

    /// For a `network` it counts where a connection comes from, not what its peer says in the maps,
    /// be that a client or a daemon.
    #[test]
    fn a_network_is_where_the_connection_comes_from() {
        let map = map();
        for kind in [EntityType::Client, EntityType::Mds, EntityType::Mgr, EntityType::Osd] {
            let place = |from: &str, says: &str| {
                let addr = spirula_types::EntityAddr::v2(
                    std::net::SocketAddr::new(says.parse().unwrap(), 6800),
                    1,
                );
                let addrs = spirula_types::AddrVec::one(addr);
                Peer { addrs, from: Some(from.parse().unwrap()), ..Peer::new(kind, "5") }
            };
            let may = |caps: &str, from, says| {
                let peer = place(from, says);
                let rights = Rights::Caps(caps.parse().unwrap());
                let copies = rights.may_operate(
                    &peer,
                    Some(&map),
                    &request(vec![copy(b"o", &at(2, "", ""))]),
                    &lists(),
                );
                [rights.may_send(&peer, kind::COMMAND), copies]
            };
            let near = "allow * network 10.0.0.0/8";
            assert_eq!(may(near, "10.1.1.1", "11.0.0.1"), [true, true], "{kind:?}");
            assert_eq!(may(near, "11.0.0.1", "10.1.1.1"), [false, false], "{kind:?}");
            assert_eq!(may("allow *", "11.0.0.1", "10.1.1.1"), [true, true], "{kind:?}");
        }
    }

    /// What each operation needs: `r` to read, `w` to write, `x` for classes. One that is new has
    /// to be put here.
    const ROWS: &[(u16, &str)] = &[
        (op::READ, "r"),
        (op::STAT, "r"),
        (op::MAPEXT, "r"),
        (op::SPARSE_READ, "r"),
        (op::NOTIFY, "r"),
        (op::NOTIFY_ACK, "r"),
        (op::ASSERT_VER, "r"),
        (op::LIST_WATCHERS, "r"),
        (op::LIST_SNAPS, "r"),
        (op::SYNC_READ, "r"),
        (op::TMAPGET, "r"),
        (op::OMAP_GET_KEYS, "r"),
        (op::OMAP_GET_VALS, "r"),
        (op::OMAP_GET_HEADER, "r"),
        (op::OMAP_GET_VALS_BY_KEYS, "r"),
        (op::OMAP_CMP, "r"),
        (op::IS_DIRTY, "r"),
        (op::COPY_GET, "r"),
        (op::CHECKSUM, "r"),
        (op::CMPEXT, "r"),
        (op::GETXATTR, "r"),
        (op::GETXATTRS, "r"),
        (op::CMPXATTR, "r"),
        (op::CALL, "x"),
        (op::PGLS, "r"),
        (op::PGLS_FILTER, "r"),
        (op::PG_HITSET_LS, "r"),
        (op::PG_HITSET_GET, "r"),
        (op::PGNLS, "r"),
        (op::PGNLS_FILTER, "r"),
        (op::SCRUBLS, "r"),
        (op::WRITE, "w"),
        (op::WRITEFULL, "w"),
        (op::TRUNCATE, "w"),
        (op::ZERO, "w"),
        (op::DELETE, "w"),
        (op::APPEND, "w"),
        (op::TRIMTRUNC, "w"),
        (op::TMAPUP, "w"),
        (op::TMAPPUT, "w"),
        (op::CREATE, "w"),
        (op::ROLLBACK, "w"),
        (op::WATCH, "rw"),
        (op::OMAP_SET_VALS, "w"),
        (op::OMAP_SET_HEADER, "w"),
        (op::OMAP_CLEAR, "w"),
        (op::OMAP_RM_KEYS, "w"),
        (op::COPY_FROM, "w"),
        (op::UNDIRTY, "w"),
        (op::SET_ALLOC_HINT, "w"),
        (op::WRITESAME, "w"),
        (op::OMAP_RM_KEY_RANGE, "w"),
        (op::COPY_FROM2, "w"),
        (op::SETXATTR, "w"),
        (op::RMXATTR, "w"),
        (op::CACHE_FLUSH, "r"),
        (op::CACHE_TRY_FLUSH, "r"),
        (op::CACHE_EVICT, "r"),
        (op::CACHE_PIN, "w"),
        (op::CACHE_UNPIN, "w"),
        (op::TIER_PROMOTE, "w"),
    ];

    /// The permission matrix: for each operation there is, a user who lacks one of the rights that
    /// it needs, or has them in another pool, namespace or for other objects, is refused; alone,
    /// and hidden among others.
    #[test]
    fn every_operation_needs_all_of_its_rights_where_it_is() {
        let (map, peer) = (map(), Peer::new(EntityType::Client, "u"));
        let may = |caps: &str, ops: Vec<OsdOp>| {
            Rights::Caps(caps.parse().unwrap()).may_operate(
                &peer,
                Some(&map),
                &request(ops),
                &lists(),
            )
        };
        for number in (0..=u16::MAX).filter(|n| op::name(*n) != "???") {
            let name = op::name(number);
            let Some((_, needs)) = ROWS.iter().find(|(n, _)| *n == number) else {
                panic!("{name} has no row")
            };
            let mut one = OsdOp { op: number, ..OsdOp::default() };
            if number == op::CALL {
                one = OsdOp::call("lock", "get_info", b"");
            }
            if number == op::WATCH {
                one.union[16] = op::watch::WATCH;
            }
            assert!(may(&format!("allow {needs} pool=a"), vec![one.clone()]), "{name}: {needs}");
            for lacking in needs.chars() {
                let rest: String = "rwx".chars().filter(|r| *r != lacking).collect();
                let short = format!(
                    "allow {rest} pool=a, allow rwx pool=b, allow rwx namespace=n, allow rwx \
                        object_prefix other"
                );
                assert!(!may(&short, vec![one.clone()]), "{name} without {lacking}");
                let harmless =
                    if lacking == 'r' { OsdOp::create(false) } else { OsdOp::read(0, 1) };
                assert!(
                    !may(&short, vec![harmless.clone(), one.clone()]),
                    "{name} behind another without {lacking}"
                );
                assert!(
                    !may(&short, vec![one.clone(), harmless]),
                    "{name} before another without {lacking}"
                );
            }
            for elsewhere in
                ["pool=b", "pool=a namespace=n", "pool=a object_prefix other", "tag rbd *=*"]
            {
                assert!(
                    !may(&format!("allow rwx {elsewhere}"), vec![one.clone()]),
                    "{name} with rights at {elsewhere}"
                );
            }
        }
        assert!(ROWS.iter().all(|(n, _)| op::name(*n) != "???"));
    }

    /// A call needs the right to do what its method is registered for, and no right to read or
    /// write.
    #[test]
    fn a_call_needs_the_right_to_what_its_method_is_registered_for() {
        let (map, peer) = (map(), Peer::new(EntityType::Client, "u"));
        let may = |caps: &str, class: &str, method: &str| {
            let request = request(vec![OsdOp::call(class, method, b"")]);
            Rights::Caps(caps.parse().unwrap()).may_operate(&peer, Some(&map), &request, &lists())
        };
        for (caps, reading, writing, other) in [
            ("allow rw", false, false, false),
            ("allow x", true, true, true),
            ("allow r class-read", true, false, false),
            ("allow rw class-read", true, false, false),
            ("allow class-read", true, false, false),
            ("allow class-write", false, false, true),
            ("allow class-read class-write", true, true, true),
            ("allow class lock", true, true, false),
            ("allow class lock get_info", true, false, false),
            ("allow class lock lock", false, true, false),
            ("profile rbd", true, true, true),
            ("profile rbd-read-only", true, false, false),
            ("allow rwx pool=b", false, false, false),
            ("allow *", true, true, true),
        ] {
            assert_eq!(may(caps, "lock", "get_info"), reading, "{caps}: one that reads");
            assert_eq!(may(caps, "lock", "lock"), writing, "{caps}: one that reads and writes");
            assert_eq!(may(caps, "hello", "record_hello"), other, "{caps}: one that writes");
        }
    }

    /// What only OSDs tell each other comes from OSDs; orders from those who may do everything;
    /// nothing else from anybody.
    #[test]
    fn every_kind_of_message_needs_to_come_from_whom_it_is_for() {
        let of_osds = [
            PgWrite::KIND,
            PgTxn::KIND,
            PgAcks::KIND,
            PgCtls::KIND,
            OsdPing::KIND,
            OsdPong::KIND,
            OsdRenewed::KIND,
        ];
        let of_clients = [kind::OSD_OP, kind::PING, kind::OSD_BACKOFF];
        let may = |who: EntityType, caps: &str, kind: u16| {
            Rights::Caps(caps.parse().unwrap()).may_send(&Peer::new(who, "1"), kind)
        };
        for kind in 0..=u16::MAX {
            let all = |who| may(who, "allow *", kind);
            let short = |who| may(who, "allow rwx", kind);
            let (client, osd) = (EntityType::Client, EntityType::Osd);
            let is = (all(osd), short(osd), all(client), short(client));
            let wanted = if of_clients.contains(&kind) {
                (true, true, true, true)
            } else if of_osds.contains(&kind) {
                (true, false, false, false)
            } else if kind == kind::COMMAND {
                (true, false, true, false)
            } else {
                (false, false, false, false)
            };
            assert_eq!(is, wanted, "{kind:#x}");
        }
    }
}
