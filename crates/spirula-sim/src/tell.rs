//! Messages in words, for whoever looks into a seed.

use crate::world::ActorId;
use spirula_messages::ceph::{MMonCommand, MMonCommandAck, MOsdMap, MOsdOp, MOsdOpReply};
use spirula_messages::cluster::control::{OsdBoot, OsdFailureReport};
use spirula_messages::cluster::pg::{OsdPing, OsdPong, PgAcks, PgCtls, PgTxn};
use spirula_messages::cluster::quorum::Carried;
use spirula_messages::cluster::write::PgWrite;
use spirula_messages::{Body, Message};

/// Most characters told of one message.
const LONGEST: usize = 600;

fn words<B: Body + std::fmt::Debug>(m: &Message) -> String {
    B::from_message(m).map_or_else(|e| e.to_string(), |b| format!("{b:?}"))
}

/// Prints one; pings not.
pub fn message(now: u64, ends: &Option<[ActorId; 2]>, to: ActorId, bytes: &[u8]) {
    let Ok(Carried(m)) = spirula_encoding::from_slice(bytes) else { return };
    let text = match m.kind {
        OsdPing::KIND | OsdPong::KIND => return,
        PgCtls::KIND => words::<PgCtls>(&m),
        PgAcks::KIND => words::<PgAcks>(&m),
        PgWrite::KIND => words::<PgWrite>(&m),
        PgTxn::KIND => words::<PgTxn>(&m),
        MOsdOp::KIND => words::<MOsdOp>(&m),
        MOsdOpReply::KIND => words::<MOsdOpReply>(&m),
        OsdBoot::KIND => words::<OsdBoot>(&m),
        OsdFailureReport::KIND => words::<OsdFailureReport>(&m),
        MOsdMap::KIND => MOsdMap::from_message(&m)
            .map_or_else(|e| e.to_string(), |m| format!("to epoch {}", m.newest)),
        MMonCommand::KIND => {
            MMonCommand::from_message(&m).map_or_else(|e| e.to_string(), |c| c.cmd.concat())
        }
        MMonCommandAck::KIND => words::<MMonCommandAck>(&m),
        _ => String::new(),
    };
    let from = ends.and_then(|e| e.into_iter().find(|a| *a != to));
    let shown: String = text.chars().take(LONGEST).collect();
    println!(
        "{now:>12} {from:?} -> {to}: type {} tid {} bytes {} {shown}",
        m.kind,
        m.tid,
        bytes.len()
    );
}
