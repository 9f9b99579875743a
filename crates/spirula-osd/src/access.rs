//! Who may do what at an OSD: the one place that decides, for every message and operation.
//!
//! Clients are held to the capabilities in their tickets: pool, namespace, object, application,
//! reading, writing, classes. What only OSDs tell each other comes from OSDs, whose capabilities
//! allow everything; so must those of whoever gives orders to the daemon (`ceph tell`).

use spirula_auth::caps::{ClassCall, OsdAccess, OsdCaps};
use spirula_maps::OsdMap;
use spirula_messages::Body;
use spirula_messages::ceph::op::{self, OsdOp};
use spirula_messages::ceph::{MOsdOp, kind};
use spirula_messages::cluster::pg::{OsdPing, OsdPong, OsdRenewed, PgAcks, PgCtls, PgTxn};
use spirula_messenger::auth::METHOD_CEPHX;
use spirula_pg::exec;
use spirula_runtime::Peer;
use spirula_runtime::auth::Grants;
use spirula_types::EntityType;

/// What a session may do.
#[derive(Debug)]
pub(crate) enum Rights {
    /// Everything: this process's own daemons, and clusters without authentication.
    All,
    /// What its capabilities allow.
    Caps(OsdCaps),
}

/// Class and method of a call.
fn called(o: &OsdOp) -> (String, String) {
    // Malformed arguments name no class, which nobody has been given.
    let args = o.call_args().ok();
    let text = |b: &bytes::Bytes| String::from_utf8_lossy(b).into_owned();
    args.map(|a| (text(&a.class), text(&a.method))).unwrap_or_default()
}

/// Reads a ticket's capabilities; for the door.
pub(crate) fn grants(text: &str) -> Result<Grants, String> {
    if text.is_empty() {
        // A user without capabilities for OSDs may connect, and do nothing.
        return Ok(Grants::new(OsdCaps::default()));
    }
    text.parse::<OsdCaps>().map(Grants::new).map_err(|e| e.to_string())
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
        let addr = peer.addr().addr.map(|a| a.ip());
        match message {
            kind::OSD_OP | kind::PING | kind::OSD_BACKOFF => true,
            kind::COMMAND => caps.allows_all(addr),
            PgTxn::KIND | PgAcks::KIND | PgCtls::KIND | OsdPing::KIND | OsdPong::KIND | OsdRenewed::KIND => {
                peer.kind == EntityType::Osd && caps.allows_all(addr)
            }
            _ => false,
        }
    }

    /// May this peer do all of a request's operations?
    pub fn may_operate(&self, peer: &Peer, map: Option<&OsdMap>, m: &MOsdOp) -> bool {
        let Self::Caps(caps) = self else { return true };
        let pool_id = m.spg.pg.pool;
        // Without the pool nothing can be said of it, and nothing is done in it.
        let Some((map, pool)) = map.and_then(|map| Some((map, map.pool(pool_id)?))) else { return false };
        let (Ok(namespace), Ok(name), Ok(key)) = (
            std::str::from_utf8(&m.locator.namespace),
            std::str::from_utf8(&m.oid),
            std::str::from_utf8(&m.locator.key),
        ) else {
            // Capabilities are text: what is none is for those alone who may do everything.
            return caps.allows_all(peer.addr().addr.map(|a| a.ip()));
        };
        let class = exec::classify(&m.ops);
        let called: Vec<(String, String)> = m.ops.iter().filter(|o| o.op == op::CALL).map(called).collect();
        let classes: Vec<ClassCall<'_>> = called
            .iter()
            .map(|(class, method)| ClassCall { class, method, read: true, write: true, allowed: true })
            .collect();
        // What a call does is decided by what its class declares, not by the operation's number.
        let plain = m.ops.iter().filter(|o| o.op != op::CALL);
        let reads = plain.clone().any(|o| o.op & op::MODE_READ != 0 || o.op == op::WATCH);
        caps.allows(&OsdAccess {
            pool: map.pool_names.get(&pool_id).map_or("", String::as_str),
            apps: &pool.application_metadata,
            namespace,
            object: if key.is_empty() { name } else { key },
            read: reads,
            write: class.write && plain.clone().any(|o| o.is_write()),
            classes: &classes,
            addr: peer.addr().addr.map(|a| a.ip()),
        })
    }
}
