//! Calls of radosgw's classes as a real Ceph 16.2.15 answered them (`golden/*.tsv`, made by
//! `record_classes.py` of `spirula-pg/src/exec/tests/golden`, which says what the lines are).

use super::Memory;
use crate::Caller;
use bytes::Bytes;
use spirula_encoding::UTime;
use spirula_encoding::crc::crc32c;
use spirula_types::{EntityAddr, EntityName};
use std::collections::BTreeMap;

fn hex(s: &str) -> Vec<u8> {
    (0..s.len() / 2).map(|i| u8::from_str_radix(&s[2 * i..2 * i + 2], 16).unwrap()).collect()
}

fn digits(data: &[u8]) -> String {
    data.iter().map(|b| format!("{b:02x}")).collect()
}

/// Bytes as the recording shows them: `~LENGTH:CRC` for many, if that is what stands there.
fn shown(data: &[u8], recorded: &str) -> String {
    if recorded.starts_with('~') {
        format!("~{}:{:08x}", data.len(), crc32c(0, data))
    } else {
        digits(data)
    }
}

/// Pairs as the recording shows them.
fn pairs(all: &BTreeMap<Bytes, Bytes>, recorded: &str) -> String {
    let text: Vec<String> =
        all.iter().map(|(k, v)| format!("{}={}", digits(k), digits(v))).collect();
    let text = text.join(",");
    if recorded.starts_with('~') { shown(text.as_bytes(), recorded) } else { text }
}

/// The number that an OSD of ours draws first for this client.
fn drawn(client: u64, now: UTime) -> u64 {
    let mix = |z: u64| {
        let z =
            (z ^ (z >> 30)).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    [client, 0, 0, now.as_nanos(), 1].iter().fold(0, |h, part| mix(h ^ part))
}

struct Replay {
    objects: BTreeMap<String, Memory>,
    blank: Memory,
    /// Newest version given out.
    version: u64,
    bad: Vec<String>,
}

impl Replay {
    fn differ(&mut self, at: &str, what: &str, ours: &str, want: &str) {
        if ours != want {
            self.bad.push(format!("{at}: {what}\n  ours {ours}\n  want {want}"));
        }
    }

    /// A call, with or without the creation of the object before it.
    fn call(&mut self, at: &str, f: &[&str]) {
        let ops: Vec<Vec<&str>> = f[4].split(';').map(|op| op.split(':').collect()).collect();
        let call = ops.last().unwrap();
        let (union, data) = (hex(call[2]), hex(call[3]));
        let (class, rest) = data.split_at(usize::from(union[0]));
        let (method, input) = rest.split_at(usize::from(union[1]));
        let (class, method) =
            (std::str::from_utf8(class).unwrap(), std::str::from_utf8(method).unwrap());
        let at = format!("{at} {class}.{method}");
        let mut object = self.objects.get(f[1]).unwrap_or(&self.blank).clone();
        let before = object.clone();
        let writes = crate::find(class.as_bytes(), method.as_bytes()).unwrap().1.flags.write;
        let creates = ops.len() > 1;
        object.exists |= creates;
        object.steps = creates.into();
        (object.version, object.drawn) = (self.version, 0);
        let missing = !object.exists && !writes;
        let (result, out) =
            if missing { (-2, Bytes::new()) } else { object.call(class, method, input) };
        // What writes gives no positive result, unless its client asks for that.
        let told = if f[0] == "W" || writes { result.min(0) } else { result };
        self.differ(&at, "result", &told.to_string(), f[2]);
        if let Some((rval, want)) = f.get(5).and_then(|r| r.split_once(':'))
            && f[0] == "R"
            && !missing
        {
            if !writes {
                self.differ(&at, "result of the op", &result.to_string(), rval);
            }
            if result >= 0 && !writes {
                let ours = shown(&out, want);
                self.differ(&at, "output", &ours, want);
            }
        }
        let after = if result < 0 { before } else { object };
        if after.exists {
            self.objects.insert(f[1].to_owned(), after);
        } else {
            self.objects.remove(f[1]);
        }
        if let Some(version) = f[3].parse().ok().filter(|v| *v < 1 << 32) {
            self.version = self.version.max(version);
        }
    }

    /// What is stored then. What differs is taken over, so that it is told once.
    fn state(&mut self, at: &str, f: &[&str]) {
        let at = format!("{at} {}", f[1]);
        let stored = self.objects.contains_key(f[1]);
        self.differ(&at, "exists", &stored.to_string(), &(f[2] != "-").to_string());
        if f[2] == "-" {
            self.objects.remove(f[1]);
            return;
        }
        let object = self
            .objects
            .entry(f[1].to_owned())
            .or_insert(Memory { exists: true, ..self.blank.clone() })
            .clone();
        let (data, attrs, omap) =
            (shown(&object.data, f[2]), pairs(&object.attrs, f[3]), pairs(&object.omap, f[4]));
        let header = f.get(5).map(|h| shown(&object.header, h)).unwrap_or_default();
        self.differ(&at, "data", &data, f[2]);
        self.differ(&at, "attributes", &attrs, f[3]);
        self.differ(&at, "omap", &omap, f[4]);
        if let Some(want) = f.get(5).filter(|h| !h.is_empty()) {
            self.differ(&at, "header", &header, want);
        }
        let object = self.objects.get_mut(f[1]).unwrap();
        let read = |text: &str| -> BTreeMap<Bytes, Bytes> {
            let pair =
                |p: &str| p.split_once('=').map(|(k, v)| (hex(k).into(), hex(v).into())).unwrap();
            text.split(',').filter(|p| !p.is_empty()).map(pair).collect()
        };
        if !f[2].starts_with('~') {
            object.data = hex(f[2]);
        }
        if !f[3].starts_with('~') {
            object.attrs = read(f[3]);
        }
        if !f[4].starts_with('~') {
            object.omap = read(f[4]);
        }
        if let Some(header) = f.get(5).filter(|h| !h.is_empty() && !h.starts_with('~')) {
            object.header = hex(header).into();
        }
    }
}

#[test]
fn calls_come_out_as_on_a_real_cluster() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/golden");
    let (mut bad, mut checked) = (Vec::new(), 0);
    for file in std::fs::read_dir(dir).unwrap().map(|f| f.unwrap().path()) {
        let mut replay =
            Replay { objects: BTreeMap::new(), blank: Memory::new(), version: 0, bad: Vec::new() };
        for (number, line) in std::fs::read_to_string(&file).unwrap().lines().enumerate() {
            let at = format!("{}:{}", file.file_name().unwrap().display(), number + 1);
            let f: Vec<&str> = line.split('\t').collect();
            match f[0] {
                "I" => {
                    let (client, nonce) = (f[1].parse().unwrap(), f[2].parse().unwrap());
                    let now = UTime { sec: 0x5aa5_c33c, nsec: 0 };
                    let addr = EntityAddr::v2("127.0.0.1:0".parse().unwrap(), nonce);
                    let caller = Caller { name: EntityName::client(client), addr };
                    let first = Some(drawn(client, now));
                    replay.blank = Memory { caller, now, first, page: 1024, ..Memory::new() };
                }
                "S" => replay.state(&at, &f),
                _ => {
                    replay.call(&at, &f);
                    checked += 1;
                }
            }
        }
        bad.extend(replay.bad);
    }
    assert!(bad.is_empty(), "{} differ:\n{}", bad.len(), bad.join("\n"));
    assert!(checked > 3000, "only {checked}");
}
