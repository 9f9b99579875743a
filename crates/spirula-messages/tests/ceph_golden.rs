//! Goal: our bodies read what a real 16.2.15 sent, and write the same bytes.
//! Method: every message of `tests/data/vectors` whose type we know is decoded and
//! encoded again; what we deliberately do not carry is listed in `LOSSY`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use bytes::Bytes;
use proptest::prelude::*;
use spirula_messages::ceph::*;
use spirula_messages::{Body, Message, MessageError};
use std::path::PathBuf;
use std::process::Command;

fn vectors() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/vectors"))
}

fn unhex(s: &str) -> Vec<u8> {
    (0..s.len() / 2).map(|i| u8::from_str_radix(&s[2 * i..2 * i + 2], 16).unwrap()).collect()
}

/// The golden messages, each with what it is.
fn golden() -> Vec<(Message, String)> {
    let out = Command::new("gzip")
        .arg("-dc")
        .arg(vectors().join("messages.jsonl.gz"))
        .output()
        .expect("gzip");
    assert!(out.status.success(), "{out:?}");
    let text = String::from_utf8(out.stdout).unwrap();
    let all = text.lines().map(|line| {
        let j: serde_json::Value = serde_json::from_str(line).unwrap();
        let n = |k: &str| j[k].as_u64().unwrap();
        let b = |k: &str| Bytes::from(unhex(j[k].as_str().unwrap()));
        let m = Message {
            kind: n("type") as u16,
            tid: n("tid"),
            priority: n("prio") as u16,
            version: n("version") as u16,
            compat: n("compat") as u16,
            front: b("front"),
            middle: b("middle"),
            data: b("data"),
        };
        (m, j["note"].as_str().unwrap_or_default().to_owned())
    });
    all.collect()
}

/// Decodes `m` by its type and encodes it again; `None` for types that are not ours.
fn again(m: &Message) -> Option<Result<Message, MessageError>> {
    fn go<B: Body>(m: &Message) -> Option<Result<Message, MessageError>> {
        Some(B::from_message(m).map(|b| b.into_message(m.tid)))
    }
    match m.kind {
        kind::PING => go::<MPing>(m),
        kind::MON_MAP => go::<MMonMap>(m),
        kind::MON_GET_MAP => go::<MMonGetMap>(m),
        kind::STATFS => go::<MStatfs>(m),
        kind::STATFS_REPLY => go::<MStatfsReply>(m),
        kind::MON_SUBSCRIBE => go::<MMonSubscribe>(m),
        kind::AUTH => go::<MAuth>(m),
        kind::AUTH_REPLY => go::<MAuthReply>(m),
        kind::MON_GET_VERSION => go::<MMonGetVersion>(m),
        kind::MON_GET_VERSION_REPLY => go::<MMonGetVersionReply>(m),
        kind::MDS_MAP => go::<MMdsMap>(m),
        kind::OSD_MAP => go::<MOsdMap>(m),
        kind::OSD_OP => go::<MOsdOp>(m),
        kind::OSD_OP_REPLY => go::<MOsdOpReply>(m),
        kind::WATCH_NOTIFY => go::<MWatchNotify>(m),
        kind::FS_MAP => go::<MFsMap>(m),
        kind::POOL_OP_REPLY => go::<MPoolOpReply>(m),
        kind::POOL_OP => go::<MPoolOp>(m),
        kind::MON_COMMAND => go::<MMonCommand>(m),
        kind::MON_COMMAND_ACK => go::<MMonCommandAck>(m),
        kind::LOG => go::<MLog>(m),
        kind::LOG_ACK => go::<MLogAck>(m),
        kind::GET_POOL_STATS => go::<MGetPoolStats>(m),
        kind::GET_POOL_STATS_REPLY => go::<MGetPoolStatsReply>(m),
        kind::OSD_BACKOFF => go::<MOsdBackoff>(m),
        kind::CONFIG => go::<MConfig>(m),
        kind::REMOVE_SNAPS => go::<MRemoveSnaps>(m),
        kind::COMMAND => go::<MCommand>(m),
        kind::COMMAND_REPLY => go::<MCommandReply>(m),
        kind::MDS_BEACON => go::<MMdsBeacon>(m),
        kind::MDS_OFFLOAD_TARGETS => go::<MMdsLoadTargets>(m),
        kind::FS_MAP_USER => go::<MFsMapUser>(m),
        kind::MGR_OPEN => go::<MMgrOpen>(m),
        kind::MGR_CONFIGURE => go::<MMgrConfigure>(m),
        kind::MGR_REPORT => go::<MMgrReport>(m),
        kind::MGR_MAP => go::<MMgrMap>(m),
        kind::MGR_CLOSE => go::<MMgrClose>(m),
        kind::MGR_COMMAND => go::<MMgrCommand>(m),
        kind::MGR_COMMAND_REPLY => go::<MMgrCommandReply>(m),
        _ => None,
    }
}

fn hex(b: &[u8]) -> String {
    b.iter().map(|x| format!("{x:02x}")).collect()
}

#[test]
fn golden_messages_decode_and_encode_to_the_same_bytes() {
    let all = golden();
    let (mut ours, mut bad) = (0, Vec::new());
    for (m, note) in &all {
        match again(m) {
            None => continue,
            Some(Err(e)) => bad.push(format!("{e}: {note}")),
            Some(Ok(r)) => {
                if hex(&r.front) != hex(&m.front) || r.data != m.data {
                    bad.push(format!("{note}\n  real {}\n  ours {}", hex(&m.front), hex(&r.front)));
                }
                assert_eq!((r.version, r.compat), (m.version, m.compat), "{note}");
            }
        }
        ours += 1;
    }
    assert!(bad.is_empty(), "{} of {ours} differ:\n{}", bad.len(), bad.join("\n"));
    assert!(ours > 220, "only {ours} messages of known types");
}

#[test]
fn golden_op_samples_match_their_typed_reading() {
    let file = vectors().join("ops.jsonl");
    let text = std::fs::read_to_string(&file).unwrap();
    let mut seen = 0;
    for line in text.lines() {
        let j: serde_json::Value = serde_json::from_str(line).unwrap();
        let s = |k: &str| j[k].as_str().unwrap();
        let code = u16::from_str_radix(s("code").trim_start_matches("0x"), 16).unwrap();
        let o = OsdOp {
            op: code,
            flags: j["opflags"].as_u64().unwrap() as u32,
            union: unhex(s("union")).try_into().unwrap(),
            indata: unhex(s("in")).into(),
        };
        assert_ne!(o.name(), "???", "{line}");
        let rebuilt = rebuild(&o);
        assert_eq!(hex(&rebuilt.union), hex(&o.union), "{line}");
        assert_eq!(rebuilt.indata, o.indata, "{line}");
        seen += 1;
    }
    assert!(seen >= 60, "{seen} samples");
}

/// Takes an op apart with its accessor and builds it again with its constructor.
fn rebuild(o: &OsdOp) -> OsdOp {
    use spirula_encoding::Decoder;
    let e = o.extent();
    let d = &mut Decoder::new(&o.indata);
    let data = o.indata.clone();
    match o.op {
        op::READ => OsdOp::read(e.offset, e.length),
        op::SPARSE_READ => OsdOp::sparse_read(e.offset, e.length),
        op::WRITE => OsdOp::write(e.offset, data),
        op::WRITEFULL => OsdOp::write_full(data),
        op::APPEND => OsdOp::append(data),
        op::CMPEXT => OsdOp::cmpext(e.offset, data),
        op::TRUNCATE => OsdOp::truncate(e.offset),
        op::ZERO => OsdOp::zero(e.offset, e.length),
        op::DELETE => OsdOp::delete(),
        op::STAT => OsdOp::stat(),
        op::WRITESAME => {
            let (off, len, _) = o.writesame_args();
            OsdOp::writesame(off, len, data)
        }
        op::GETXATTR => OsdOp::getxattr(&o.xattr_parts().unwrap().0),
        op::RMXATTR => OsdOp::rmxattr(&o.xattr_parts().unwrap().0),
        op::SETXATTR => {
            let (n, v) = o.xattr_parts().unwrap();
            OsdOp::setxattr(&n, &v)
        }
        op::CMPXATTR => {
            let (n, v) = o.xattr_parts().unwrap();
            OsdOp::cmpxattr(&n, o.xattr().cmp_op, o.xattr().cmp_mode, &v)
        }
        op::ROLLBACK => OsdOp::rollback(o.snap()),
        op::WATCH => {
            let w = o.watch_args();
            OsdOp::watch(w.cookie, w.op, w.generation, w.timeout)
        }
        op::NOTIFY => {
            d.u32().unwrap();
            let timeout = d.u32().unwrap();
            OsdOp::notify(o.cookie(), timeout, d.blob().unwrap())
        }
        op::NOTIFY_ACK => OsdOp::notify_ack(d.u64().unwrap(), d.u64().unwrap(), d.blob().unwrap()),
        op::OMAP_GET_KEYS => OsdOp::omap_get_keys(d.blob().unwrap(), d.u64().unwrap()),
        op::OMAP_GET_VALS => {
            let (after, max) = (d.blob().unwrap(), d.u64().unwrap());
            OsdOp::omap_get_vals(after, max, d.blob().unwrap())
        }
        op::OMAP_GET_VALS_BY_KEYS => OsdOp::omap_get_vals_by_keys(&d.get::<Vec<Bytes>>().unwrap()),
        op::OMAP_SET_VALS => OsdOp::omap_set_vals(&d.get::<Vec<(Bytes, Bytes)>>().unwrap()),
        op::OMAP_SET_HEADER => OsdOp::omap_set_header(&data),
        op::OMAP_RM_KEYS => OsdOp::omap_rm_keys(&d.get::<Vec<Bytes>>().unwrap()),
        op::PGNLS => {
            let (max, epoch) = o.pgls_args();
            OsdOp::pgnls(max, epoch, &d.get().unwrap())
        }
        op::COPY_FROM => {
            let name = d.bytes().unwrap();
            OsdOp::copy_from(o.copy_from_args(), &name, &d.get().unwrap())
        }
        op::SET_ALLOC_HINT => {
            let h = o.alloc_hint();
            assert!(h.object_size > 0 || h.flags > 0 || h.write_size > 0);
            o.clone()
        }
        _ => o.clone(),
    }
}

#[test]
fn osd_op_of_version_9_with_a_tracing_struct_reads_like_version_8() {
    let all = golden();
    let (m, _) = all.iter().find(|(m, _)| m.kind == kind::OSD_OP).unwrap();
    let want = MOsdOp::from_message(m).unwrap();
    // spg 24 + hash 4 + epoch 4 + flags 4 + reqid 27 + trace 24
    let at = 24 + 4 + 4 + 4 + 27 + 24;
    let mut front = m.front[..at].to_vec();
    front.extend_from_slice(&[1, 1, 1, 0, 0, 0, 0]);
    front.extend_from_slice(&m.front[at..]);
    let with = Message { version: 9, front: front.into(), ..m.clone() };
    assert_eq!(MOsdOp::from_message(&with).unwrap(), want);
    let mut tail = m.front.to_vec();
    tail.extend_from_slice(&[7; 20]);
    let appended = Message { version: 9, front: tail.into(), ..m.clone() };
    assert_eq!(MOsdOp::from_message(&appended).unwrap(), want);
}

#[test]
fn payloads_are_slices_of_the_data_segment() {
    let data = Bytes::from(vec![7u8; 8192]);
    let ops = vec![OsdOp::write(0, data.slice(..4096)), OsdOp::write(4096, data.slice(4096..))];
    let body = MOsdOp::new(
        Default::default(),
        1,
        spirula_types::ObjectLocator {
            pool: 1,
            key: Bytes::new(),
            namespace: Bytes::new(),
            hash: -1,
        },
        "o".into(),
        ops,
    );
    let m = body.clone().into_message(1);
    let back = MOsdOp::from_message(&m).unwrap();
    assert_eq!(back, body);
    assert_eq!(back.ops[1].indata.as_ptr() as usize, m.data.as_ptr() as usize + 4096);
    // And one filled part leaves without a copy.
    let reply = MOsdOpReply {
        ops: vec![OpResult {
            op: OsdOp { indata: data.clone(), ..OsdOp::read(0, 0) },
            rval: 0,
            output_crc: None,
        }],
        ..MOsdOpReply::to(&back, 3, 0)
    };
    assert_eq!(reply.into_message(1).data.as_ptr(), data.as_ptr());
}

/// The checksum of one output is that of the message only where there is no other output.
#[test]
fn a_reply_knows_the_checksum_of_its_only_output() {
    let op = |data: &'static [u8], output_crc| OpResult {
        op: OsdOp { indata: Bytes::from_static(data), ..OsdOp::read(0, 0) },
        rval: 0,
        output_crc,
    };
    let request = MOsdOp::new(Default::default(), 1, Default::default(), "o".into(), vec![]);
    let crc = |ops| MOsdOpReply { ops, ..MOsdOpReply::to(&request, 3, 0) }.data_crc();
    assert_eq!(crc(vec![op(b"", None), op(b"data", Some(7)), op(b"", None)]), Some(7));
    assert_eq!(crc(vec![op(b"data", Some(7)), op(b"more", Some(8))]), None);
    assert_eq!(crc(vec![op(b"data", None), op(b"", Some(7))]), None);
    assert_eq!(crc(vec![]), None);
}

/// The monitor's echo has the lengths that were traced at a real cluster, 134 bytes for a boot and
/// 130 else, and what a metadata server says is read as it was written, also by an older version's
/// rules.
#[test]
fn beacons_of_metadata_servers() {
    let echo =
        |state| MMdsBeacon { gid: 7, state, seq: 9, name: "a".into(), ..MMdsBeacon::default() };
    assert_eq!(echo(-4).into_message(0).front.len(), 134);
    assert_eq!(echo(13).into_message(0).front.len(), 130);
    let metric = MdsMetric {
        kind: 10,
        severity: 1,
        message: "slow".into(),
        metadata: [("k".into(), "v".into())].into(),
    };
    let mut compat = spirula_encoding::Encoder::new();
    for names in [vec![], vec![], vec![(1u64, "base v0.20".to_owned())]] {
        compat.u64(names.iter().fold(0, |m, (b, _)| m | 1 << b));
        compat.put(&names.into_iter().collect::<std::collections::BTreeMap<u64, String>>());
    }
    for state in [-4, 13] {
        let facts =
            if state == -4 { [("hostname".to_owned(), "h".to_owned())].into() } else { [].into() };
        let b = MMdsBeacon {
            epoch: 5,
            compat: compat.as_slice().to_vec().into(),
            health: MdsHealth { metrics: vec![metric.clone()] },
            facts,
            features: 3,
            fs: "f".into(),
            ..echo(state)
        };
        let m = b.clone().into_message(0);
        assert_eq!((m.version, m.compat, m.priority), (8, 6, 196));
        assert_eq!(MMdsBeacon::from_message(&m).unwrap(), b);
        let old = Message { version: 7, ..m.clone() };
        assert_eq!(
            MMdsBeacon::from_message(&old).unwrap(),
            MMdsBeacon { fs: String::new(), ..b.clone() }
        );
        for cut in 0..m.front.len() {
            assert!(
                MMdsBeacon::from_message(&Message { front: m.front.slice(..cut), ..m.clone() })
                    .is_err(),
                "{cut}"
            );
        }
    }
    let t = MMdsLoadTargets { version: 1, gid: 7, targets: [0, 2].into() };
    assert_eq!(MMdsLoadTargets::from_message(&t.clone().into_message(0)).unwrap(), t);
}

#[test]
fn watch_completion_round_trips() {
    let replies = [osd::NotifyReply { client: 3, cookie: 4, reply: "yes".into() }];
    let b = MWatchNotify::completion_data(&replies, &[(5, 6)]);
    assert_eq!(MWatchNotify::read_completion(&b).unwrap(), (replies.to_vec(), vec![(5, 6)]));
    assert_eq!(MWatchNotify::completion_data(&[], &[])[..], [0; 8]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn prop_mutated_goldens_never_panic(pick: prop::sample::Index, edits in prop::collection::vec(
        (any::<prop::sample::Index>(), any::<u8>()), 1..6), cut: Option<prop::sample::Index>, version in 0u16..12) {
        thread_local! {
            static ALL: Vec<(Message, String)> = golden();
        }
        ALL.with(|all| {
            let (m, _) = pick.get(all);
            let mut m = m.clone();
            let mut front = m.front.to_vec();
            for (at, v) in edits {
                if !front.is_empty() {
                    let i = at.index(front.len());
                    front[i] = v;
                }
            }
            if let Some(cut) = cut && !front.is_empty() {
                front.truncate(cut.index(front.len()));
            }
            m.front = front.into();
            let _ = again(&m);
            m.version = version;
            let _ = again(&m);
        });
    }
}
