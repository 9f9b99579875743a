//! Bodies of our own messages between daemons. Input: see `spirula_fuzz::message`.
#![no_main]

use spirula_fuzz::{body, bounded, message, round_trip};
use spirula_messages::cluster::control::*;
use spirula_messages::cluster::pg::*;
use spirula_messages::cluster::write::*;
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
    OsdBoot, OsdMarkMeDown, OsdMarkMeDownAck, OsdFailureReport, OsdAlive, PgCreateAsk, PgCreateGrant, PgsCreated,
    PgsCreatedAck, OsdPgTemp, OsdStop, OsdReport, OsdReportAck, OsdScrub, MgrBeacon, MgrDigest, PgWrite, PgTxn, PgAcks,
    PgCtls, OsdPing, OsdPong, OsdRenewed, MgrRun, MgrRan, MonRun, MonRan,
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| bounded(256, data, |data| {
    let Some(m) = message(data, KINDS) else { return };
    read(&m);
    round_trip::<PgInfo>(&m.data);
    round_trip::<PgCtl>(&m.data);
    round_trip::<HealthInput>(&m.data);
}));
