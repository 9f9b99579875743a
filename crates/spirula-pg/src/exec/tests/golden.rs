//! Samples recorded from a real cluster (`shared/protocol/vectors`).

use super::*;
use spirula_encoding::{Decode, Decoder, from_slice};

fn vectors(test: &str, file: &str) -> Option<String> {
    let path = format!("{}/../../../shared/protocol/vectors/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).ok();
    if text.is_none() {
        eprintln!("SKIPPED {test}: {path} is not here");
    }
    text
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
            op::OMAP_GET_VALS | op::OMAP_GET_VALS_BY_KEYS => s.omap = Decoder::new(&self.out).get().unwrap(),
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
    let Some(text) = vectors("recorded_ops_give_the_recorded_results", "ops.jsonl") else { return };
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
    let Some(text) = vectors("recorded_listing_of_an_empty_pg_ends_at_the_next_pg", "ops.jsonl") else { return };
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
    let Some(text) = vectors("recorded_listing_order_is_ours_page_by_page", "pgnls_order.tsv") else { return };
    let rows: Vec<Vec<&str>> = text.lines().skip(1).map(|l| l.split('\t').collect()).collect();
    let mut bench = Bench::new();
    for r in rows.iter().rev() {
        let o = HObject::head(1, b(r[1]), b(r[3]), b(r[2]));
        assert_eq!(format!("{:08x}", o.hash), r[4]);
        bench.store.objects.insert(o, Stored::default());
    }
    let any = HObject { pool: 1, namespace: Bytes::from_static(spirula_types::NS_ALL), ..HObject::min() };
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
        names.extend(entries.into_iter().map(|(_, (name, _))| String::from_utf8(name.to_vec()).unwrap()));
        at = next;
        if got.result == 1 {
            break;
        }
    }
    assert!(at.max, "the end of the last PG is the maximum");
    assert_eq!(names, rows.iter().map(|r| r[2].to_owned()).collect::<Vec<_>>());
}
