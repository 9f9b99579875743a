//! The manager under clients and OSDs that say anything. Input: `[peer]`, then a command's JSON
//! text, or a message as in `spirula_fuzz::message` of anybody.
#![no_main]

use bytes::Bytes;
use spirula_encoding::UTime;
use spirula_fuzz::message;
use spirula_messages::Body;
use spirula_messages::ceph::{MCommand, MMgrCommand, MMonCommandAck, MOsdMap, kind};
use spirula_messages::cluster::control::{MgrRun, MonRan, OsdReport};
use spirula_mgr::{Mgr, MgrConfig, MgrEvent, Now, Peer};
use spirula_types::{AddrVec, EntityName, Uuid};
use std::collections::BTreeMap;
use std::time::Duration;

const KINDS: &[u16] = &[
    kind::MGR_COMMAND,
    kind::COMMAND,
    kind::MGR_OPEN,
    kind::MGR_REPORT,
    kind::MGR_CLOSE,
    OsdReport::KIND,
    MOsdMap::KIND,
    MMonCommandAck::KIND,
    kind::MGR_MAP,
    kind::CONFIG,
    MgrRun::KIND,
    MonRan::KIND,
];

libfuzzer_sys::fuzz_target!(|data: &[u8]| spirula_fuzz::memory::bounded_by(16 << 20, 1024, data, |data| {
    let Some((how, rest)) = data.split_first() else { return };
    let now = Now { mono: Duration::from_secs(9), wall: UTime { sec: 1_700_000_000, nsec: 0 } };
    let config = MgrConfig {
        fsid: Uuid([7; 16]),
        gid: 5,
        name: "x".into(),
        addrs: AddrVec::default(),
        hostname: "host".into(),
        metadata: BTreeMap::new(),
        settings: Default::default(),
    };
    let mut mgr = Mgr::new(config, now);
    let mut out = Vec::new();
    mgr.handle(now, MgrEvent::MonOpened, &mut out);
    let name = if how & 1 == 0 { EntityName::client(4) } else { EntityName::osd(1) };
    let peer = Peer { name, global_id: 4711, auth_id: "admin".into(), addrs: AddrVec::default(), caps: None, place: None };
    mgr.handle(now, MgrEvent::SessionOpened { conn: 1, peer }, &mut out);
    let message = if how & 2 == 0 {
        let cmd = vec![String::from_utf8_lossy(rest).into_owned()];
        if how & 4 == 0 {
            MMgrCommand { fsid: Uuid([7; 16]), cmd, input: Bytes::new() }.into_message(1)
        } else {
            MCommand { fsid: Uuid([7; 16]), cmd, input: Bytes::new() }.into_message(1)
        }
    } else {
        match message(rest, KINDS) {
            Some(m) => m,
            None => return,
        }
    };
    let event = if how & 8 == 0 { MgrEvent::Message { conn: 1, message } } else { MgrEvent::Mon(message) };
    mgr.handle(now, event, &mut out);
    let later = Now { mono: Duration::from_secs(60), ..now };
    mgr.handle(later, MgrEvent::Tick, &mut out);
    mgr.handle(later, MgrEvent::SessionClosed { conn: 1 }, &mut out);
}));
