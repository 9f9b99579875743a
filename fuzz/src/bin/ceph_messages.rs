//! Bodies of Ceph's messages. Input: see `spirula_fuzz::message`.
#![no_main]

use spirula_encoding::{Decoder, Encode, Encoder};
use spirula_fuzz::{body, bounded, message};
use spirula_messages::ceph::op::OsdOp;
use spirula_messages::ceph::*;
use spirula_messages::{Body, Message};

macro_rules! bodies {
    ($($body:ty),* $(,)?) => {
        const KINDS: &[u16] = &[$(<$body as Body>::KIND),*];

        fn read(m: &Message) {
            match m.kind {
                $(<$body as Body>::KIND => {
                    body::<$body>(m.version, &m.front, &m.data);
                })*
                other => unreachable!("type {other}"),
            }
        }
    };
}

bodies! {
    MPing, MMonMap, MMonGetMap, MStatfs, MStatfsReply, MMonSubscribe, MAuth, MAuthReply, MMonGetVersion,
    MMonGetVersionReply, MMdsMap, MOsdMap, MOsdOp, MOsdOpReply, MWatchNotify, MFsMap, MPoolOpReply, MPoolOp,
    MMonCommand, MMonCommandAck, MLog, MLogAck, MGetPoolStats, MGetPoolStatsReply, MOsdBackoff, MConfig,
    MRemoveSnaps, MCommand, MCommandReply, MFsMapUser, MMgrOpen, MMgrConfigure, MMgrReport, MMgrMap, MMgrClose,
    MMgrCommand, MMgrCommandReply, MMdsBeacon, MMdsLoadTargets,
}

/// Every way to look at an op's arguments.
fn look(o: &OsdOp) {
    let _ = (o.extent(), o.xattr(), o.xattr_parts(), o.call_args(), o.watch_args(), o.cookie(), o.snap());
    let _ = (o.assert_version(), o.copy_from_args(), o.alloc_hint(), o.writesame_args(), o.checksum_args());
    let _ = (o.pgls_args(), o.is_write(), o.is_pg_op(), o.fail_ok(), o.name());
    let _ = (o.to_string(), format!("{o:?}"));
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| bounded(256, data, |data| {
    let Some(m) = message(data, KINDS) else { return };
    read(&m);
    if let (kind::OSD_OP, Ok(op)) = (m.kind, MOsdOp::from_message(&m)) {
        op.ops.iter().for_each(look);
        let _ = (op.hobject(), MOsdOpReply::to(&op, 3, -2));
    }
    if let Ok((replies, missed)) = MWatchNotify::read_completion(&m.data) {
        let again = MWatchNotify::completion_data(&replies, &missed);
        assert_eq!(MWatchNotify::read_completion(&again), Ok((replies, missed)));
    }
    if let Ok(e) = Decoder::new(&m.data).get::<LogEntry>() {
        e.encode(&mut Encoder::new());
    }
}));
