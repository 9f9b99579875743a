//! Samples recorded from a real cluster (`tests/data/vectors`).

use super::*;
use spirula_encoding::crc::crc32c;
use spirula_encoding::{Decode, Decoder, from_slice};
use spirula_types::EntityName;

fn vectors(file: &str) -> String {
    std::fs::read_to_string(format!(
        "{}/../../tests/data/vectors/{file}",
        env!("CARGO_MANIFEST_DIR")
    ))
    .unwrap()
}

/// A field of a flat JSON line, as text.
fn field<'a>(line: &'a str, key: &str) -> &'a str {
    let from = line.find(&format!("\"{key}\": ")).expect(key) + key.len() + 4;
    let rest = &line[from..];
    match rest.strip_prefix('"') {
        Some(s) => &s[..s.find('"').unwrap()],
        None => &rest[..rest.find([',', '}']).unwrap()],
    }
}

fn hex(s: &str) -> Vec<u8> {
    (0..s.len() / 2).map(|i| u8::from_str_radix(&s[2 * i..2 * i + 2], 16).unwrap()).collect()
}

struct Sample {
    op: OsdOp,
    rval: i32,
    out: Vec<u8>,
    result: i32,
    writing: bool,
}

impl Sample {
    fn read(line: &str) -> Self {
        let number = |k: &str| field(line, k).parse::<i32>().unwrap();
        let code = u16::from_str_radix(field(line, "code").trim_start_matches("0x"), 16).unwrap();
        let op = OsdOp {
            op: code,
            flags: number("opflags") as u32,
            union: hex(field(line, "union")).try_into().unwrap(),
            indata: hex(field(line, "in")).into(),
        };
        let flags = field(line, "msgflags");
        Self {
            op,
            rval: number("rval"),
            out: hex(field(line, "out")),
            result: number("result"),
            writing: flags.contains("write"),
        }
    }

    /// Stores what must have been there for the sample to come out as it did.
    fn prepare(&self, bench: &mut Bench, o: &HObject) {
        if self.rval == -errno::ENOENT || self.result == -errno::ENOENT {
            return;
        }
        let exists = self.op.op != op::CREATE || self.rval == -errno::EEXIST;
        let mut s = Stored::default();
        let mut info = ObjectInfo::default();
        let e = self.op.extent();
        let set_data = |s: &mut Stored, at: u64, data: &[u8]| {
            s.data.resize(at as usize, 0);
            s.data.extend_from_slice(data);
        };
        match self.op.op {
            op::READ => set_data(&mut s, e.offset, &self.out),
            op::CMPEXT if self.rval == 0 => set_data(&mut s, e.offset, &self.op.indata),
            op::CMPEXT => set_data(&mut s, e.offset, b"zz"),
            op::MAPEXT => s.data = vec![1; 5000],
            op::STAT if self.rval == 0 => {
                let mut d = Decoder::new(&self.out);
                s.data = vec![0; d.u64().unwrap() as usize];
                info.mtime = d.get().unwrap();
            }
            op::LIST_SNAPS => {
                info.set(ObjectInfo::SNAPSET, true);
                s.data = vec![0; 9_000_000];
                let clone = ObjectClone { id: 1, snaps: vec![1], overlap: vec![], size: 10_000 };
                let set = SnapSet { seq: 1, clones: vec![clone] };
                s.attrs.insert(SNAPSET_ATTR.into(), to_vec(&set).into());
            }
            op::GETXATTR if self.rval == 0 => {
                s.attrs.insert(user_attr(&self.op.indata), self.out.clone().into());
            }
            op::GETXATTRS => {
                let map: BTreeMap<Bytes, Bytes> = from_slice(&self.out).unwrap();
                s.attrs.extend(map.into_iter().map(|(k, v)| (user_attr(&k), v)));
            }
            op::CMPXATTR => {
                let (name, value) = self.op.xattr_parts().unwrap();
                let stored = if self.rval == 1 { value } else { b("20000") };
                s.attrs.insert(user_attr(&name), stored);
            }
            op::OMAP_GET_KEYS => {
                let keys: Vec<Bytes> = Decoder::new(&self.out).get().unwrap();
                s.omap.extend(keys.into_iter().map(|k| (k, b("value"))));
            }
            op::OMAP_GET_VALS | op::OMAP_GET_VALS_BY_KEYS => {
                s.omap = Decoder::new(&self.out).get().unwrap()
            }
            op::OMAP_GET_HEADER => s.header = self.out.clone().into(),
            op::OMAP_CMP => {
                s.omap.insert(b("a"), b("1"));
            }
            op::OMAP_SET_VALS => bench.pool.erasure = self.rval == -errno::EOPNOTSUPP,
            _ => {}
        }
        info.size = s.data.len() as u64;
        info.user_version = 7;
        info.set(ObjectInfo::OMAP, !s.omap.is_empty() || !s.header.is_empty());
        s.attrs.insert(INFO_ATTR.into(), info.to_attr());
        if exists {
            bench.store.objects.insert(o.clone(), s);
        }
    }
}

#[test]
fn recorded_ops_give_the_recorded_results() {
    let text = vectors("ops.jsonl");
    let later = [op::NOTIFY, op::NOTIFY_ACK, op::ROLLBACK, op::WATCH, op::COPY_FROM, op::PGNLS];
    let mut checked = 0;
    for line in text.lines() {
        let sample = Sample::read(line);
        // What a replica answers (EAGAIN) is decided before execution.
        if later.contains(&sample.op.op) || sample.result == -errno::EAGAIN {
            continue;
        }
        let mut bench = Bench::new();
        let o = object("sample");
        sample.prepare(&mut bench, &o);
        if sample.op.op == op::LIST_SNAPS {
            bench.snapid = SNAP_DIR;
        }
        let mut ops = vec![sample.op.clone()];
        if sample.writing && !classify(&ops).write || sample.op.fail_ok() && sample.rval < 0 {
            ops.push(OsdOp::create(false));
        }
        let got = bench.run(&o, &ops);
        assert_eq!(got.result, sample.result, "result of {line}");
        assert_eq!(got.ops[0].rval, sample.rval, "rval of {line}");
        assert_eq!(got.ops[0].op.indata, sample.out, "output of {line}");
        checked += 1;
    }
    assert!(checked >= 55, "only {checked} samples");
}

#[test]
fn recorded_listing_of_an_empty_pg_ends_at_the_next_pg() {
    let text = vectors("ops.jsonl");
    let line = text.lines().find(|l| field(l, "op") == "pgnls").unwrap();
    let sample = Sample::read(line);
    let bench = Bench::new();
    let any = HObject { pool: 2, ..HObject::min() };
    let ctx = OpContext { pg: PgId::new(2, 0), pg_num: 32, ..bench.context(&any) };
    let got = execute_pg(&ctx, &bench.store, &[sample.op]).unwrap();
    assert_eq!((got.result, got.ops[0].rval), (sample.result, sample.rval));
    assert_eq!(got.ops[0].op.indata, sample.out);
}

#[test]
fn recorded_listing_order_is_ours_page_by_page() {
    let text = vectors("pgnls_order.tsv");
    let rows: Vec<Vec<&str>> = text.lines().skip(1).map(|l| l.split('\t').collect()).collect();
    let mut bench = Bench::new();
    for r in rows.iter().rev() {
        let o = HObject::head(1, b(r[1]), b(r[3]), b(r[2]));
        assert_eq!(format!("{:08x}", o.hash), r[4]);
        bench.store.objects.insert(o, Stored::default());
    }
    let any =
        HObject { pool: 1, namespace: Bytes::from_static(spirula_types::NS_ALL), ..HObject::min() };
    let mut at = HObject::min();
    let mut names = Vec::new();
    loop {
        let mut list = encoded(op::PGNLS, &at);
        list.union[0] = 100;
        let got = execute_pg(&bench.context(&any), &bench.store, &[list]).unwrap();
        let (next, entries) = Decoder::new(&got.ops[0].op.indata)
            .versioned("page", 1, |d, _| {
                Ok((d.get::<HObject>()?, d.list(12, |d| <(Bytes, (Bytes, Bytes))>::decode(d))?))
            })
            .unwrap();
        names.extend(
            entries.into_iter().map(|(_, (name, _))| String::from_utf8(name.to_vec()).unwrap()),
        );
        at = next;
        if got.result == 1 {
            break;
        }
    }
    assert!(at.max, "the end of the last PG is the maximum");
    assert_eq!(names, rows.iter().map(|r| r[2].to_owned()).collect::<Vec<_>>());
}

/// Bytes as the recording shows them: `~LENGTH:CRC` for many, if that is what stands there.
fn shown(data: &[u8], recorded: &str) -> String {
    match recorded.starts_with('~') {
        true => format!("~{}:{:08x}", data.len(), crc32c(0, data)),
        false => data.iter().map(|b| format!("{b:02x}")).collect(),
    }
}

/// A recorded op: code:flags:union:input.
fn recorded_op(text: &str) -> OsdOp {
    let f: Vec<&str> = text.split(':').collect();
    OsdOp {
        op: u16::from_str_radix(f[0], 16).unwrap(),
        flags: u32::from_str_radix(f[1], 16).unwrap(),
        union: hex(f[2]).try_into().unwrap(),
        indata: hex(f[3]).into(),
    }
}

fn recorded_pairs(text: &str) -> BTreeMap<Bytes, Bytes> {
    let pair = |p: &str| p.split_once('=').map(|(k, v)| (hex(k).into(), hex(v).into())).unwrap();
    text.split(',').filter(|p| !p.is_empty()).map(pair).collect()
}

/// `golden/*.tsv`: random vectors, and calls of classes, run on a real Ceph 16.2.15 by
/// `golden/record.py` and `golden/record_classes.py`.
#[test]
fn random_vectors_come_out_as_on_a_real_cluster() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/src/exec/tests/golden");
    let mut checked = 0;
    for file in std::fs::read_dir(dir).unwrap().map(|f| f.unwrap().path()) {
        if file.extension().is_none_or(|e| e != "tsv") {
            continue;
        }
        let mut bench = Bench::new();
        for (number, line) in std::fs::read_to_string(&file).unwrap().lines().enumerate() {
            let at = format!("{}:{}", file.display(), number + 1);
            let f: Vec<&str> = line.split('\t').collect();
            let o = object(f[1]);
            if f[0] == "I" {
                let addr = EntityAddr::v2("127.0.0.1:0".parse().unwrap(), f[2].parse().unwrap());
                let addr = EntityAddr { kind: EntityAddr::KIND_ANY, ..addr };
                let reqid =
                    ReqId { name: EntityName::client(f[1].parse().unwrap()), ..ReqId::default() };
                bench.origin = Origin { reqid, addr, now: UTime { sec: 0x5aa5_c33c, nsec: 0 } };
                continue;
            }
            if f[0] == "S" {
                let stored = bench.store.objects.get(&o);
                assert_eq!(stored.is_some(), f[2] != "-", "existence at {at}");
                if let Some(s) = stored {
                    assert_eq!(shown(&s.data, f[2]), f[2], "data at {at}");
                    let attrs: BTreeMap<_, _> = s
                        .attrs
                        .iter()
                        .filter_map(|(k, v)| user_name(k).map(|k| (k, v.clone())))
                        .collect();
                    assert_eq!(attrs, recorded_pairs(f[3]), "attributes at {at}");
                    // Listed after the empty key, it is not among them.
                    let omap: BTreeMap<_, _> =
                        s.omap.clone().into_iter().filter(|(k, _)| !k.is_empty()).collect();
                    assert_eq!(omap, recorded_pairs(f[4]), "omap at {at}");
                }
                continue;
            }
            let ops: Vec<OsdOp> = f[4].split(';').map(recorded_op).collect();
            let got = bench.run(&o, &ops);
            assert_eq!(got.result.to_string(), f[2], "result of {ops:?} at {at}");
            assert_eq!(got.user_version.to_string(), f[3], "user version after {ops:?} at {at}");
            for (r, want) in got.ops.iter().zip(f.get(5).into_iter().flat_map(|t| t.split(';'))) {
                let Some((rval, out)) = want.split_once(':') else { continue };
                assert_eq!(r.rval.to_string(), rval, "rval of {:?} in {ops:?} at {at}", r.op);
                let n = if r.op.op == op::STAT { 8 } else { r.op.indata.len() };
                if r.rval >= 0 {
                    let got = shown(&r.op.indata[..n.min(r.op.indata.len())], out);
                    assert_eq!(got, out, "{:?} in {ops:?} at {at}", r.op);
                }
            }
            checked += 1;
        }
    }
    assert!(checked > 500, "only {checked} vectors");
}
