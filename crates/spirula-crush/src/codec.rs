//! Wire form of the CRUSH map: a sequence of fields under a magic number, without a version.
//!
//! Maps of older releases end earlier; missing fields mean the legacy defaults. Refused:
//! unknown bucket algorithms, buckets in the wrong slot, weight sets for buckets that
//! cannot exist. Every count is checked against the bytes left before memory is taken.

use crate::map::{Bucket, BucketData, ChooseArg, ChooseArgs, CrushMap, Rule, Step, Tunables, alg};
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};
use std::collections::BTreeMap;

const MAGIC: u32 = 0x0001_0000;

impl Encode for CrushMap {
    fn encode(&self, out: &mut Encoder) {
        out.u32(MAGIC);
        out.len32(self.buckets.len());
        out.len32(self.rules.len());
        out.i32(self.max_devices);
        for slot in &self.buckets {
            match slot {
                Some(b) => b.encode(out),
                None => out.u32(0),
            }
        }
        for slot in &self.rules {
            match slot {
                Some(r) => r.encode(out),
                None => out.u32(0),
            }
        }
        out.put(&self.type_names);
        out.put(&self.names);
        out.put(&self.rule_names);
        let t = &self.tunables;
        out.u32(t.choose_local_tries);
        out.u32(t.choose_local_fallback_tries);
        out.u32(t.choose_total_tries);
        out.u32(t.chooseleaf_descend_once);
        out.u8(t.chooseleaf_vary_r);
        out.u8(t.straw_calc_version);
        out.u32(t.allowed_bucket_algs);
        out.u8(t.chooseleaf_stable);
        out.put(&self.device_classes);
        out.put(&self.class_names);
        out.put(&self.class_buckets);
        out.list(&self.choose_args, |o, (key, args)| {
            o.i64(*key);
            let set =
                || args.iter().filter(|(_, a)| !(a.weight_sets.is_empty() && a.ids.is_empty()));
            o.len32(set().count());
            for (slot, a) in set() {
                o.u32(*slot);
                o.put(&a.weight_sets);
                o.put(&a.ids);
            }
        });
    }
}

impl Decode for CrushMap {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let magic = d.u32()?;
        if magic != MAGIC {
            return Err(DecodeError::Value { what: "crush magic", value: i64::from(magic) });
        }
        let (max_buckets, max_rules, max_devices) =
            (d.u32()? as usize, d.u32()? as usize, d.i32()?);
        let have = d.remaining();
        for count in [max_buckets, max_rules] {
            if count.saturating_mul(4) > have {
                return Err(DecodeError::Count { count, have });
            }
        }
        let mut map = Self { max_devices, ..Self::default() };
        for slot in 0..max_buckets {
            map.buckets.push(decode_bucket(d, slot)?);
        }
        for _ in 0..max_rules {
            map.rules.push(if d.u32()? == 0 { None } else { Some(d.get()?) });
        }
        map.type_names = decode_names(d)?;
        map.names = decode_names(d)?;
        map.rule_names = decode_names(d)?;
        map.tunables = decode_tunables(d)?;
        if !d.is_empty() {
            map.device_classes = d.get()?;
            map.class_names = d.get()?;
            map.class_buckets = d.get()?;
        }
        if !d.is_empty() {
            let n = d.count(12)?;
            for _ in 0..n {
                let key = d.i64()?;
                let args = decode_choose_args(d, &map.buckets)?;
                map.choose_args.insert(key, args);
            }
        }
        map.compute_max_devices();
        Ok(map)
    }
}

fn decode_tunables(d: &mut Decoder<'_>) -> Result<Tunables, DecodeError> {
    let mut t = Tunables::default();
    if !d.is_empty() {
        t.choose_local_tries = d.u32()?;
        t.choose_local_fallback_tries = d.u32()?;
        t.choose_total_tries = d.u32()?;
    }
    if !d.is_empty() {
        t.chooseleaf_descend_once = d.u32()?;
    }
    if !d.is_empty() {
        t.chooseleaf_vary_r = d.u8()?;
    }
    if !d.is_empty() {
        t.straw_calc_version = d.u8()?;
    }
    if !d.is_empty() {
        t.allowed_bucket_algs = d.u32()?;
    }
    if !d.is_empty() {
        t.chooseleaf_stable = d.u8()?;
    }
    Ok(t)
}

/// Names by id. Very old maps wrote 64-bit keys: the upper half then reads as an empty
/// name's length and is skipped.
fn decode_names(d: &mut Decoder<'_>) -> Result<BTreeMap<i32, String>, DecodeError> {
    let n = d.count(8)?;
    let mut names = BTreeMap::new();
    for _ in 0..n {
        let key = d.i32()?;
        let mut len = d.u32()?;
        if len == 0 {
            len = d.u32()?;
        }
        let text = std::str::from_utf8(d.take(len as usize)?).map_err(|_| DecodeError::Utf8)?;
        // An empty name cannot be written: its length would read as such an upper half.
        if !text.is_empty() {
            names.insert(key, text.to_owned());
        }
    }
    Ok(names)
}

fn decode_choose_args(
    d: &mut Decoder<'_>,
    buckets: &[Option<Bucket>],
) -> Result<ChooseArgs, DecodeError> {
    let n = d.count(12)?;
    let mut args = ChooseArgs::new();
    for _ in 0..n {
        let slot = d.u32()?;
        let arg = ChooseArg { weight_sets: d.list(4, Vec::decode)?, ids: d.get()? };
        let bad = DecodeError::Value { what: "choose_args bucket", value: i64::from(slot) };
        let size = match buckets.get(slot as usize) {
            None => return Err(bad),
            // Ceph strips arguments of buckets that went away or are not straw2.
            Some(Some(b)) if b.alg() == alg::STRAW2 => b.items.len(),
            Some(_) => continue,
        };
        if !arg.ids.is_empty() && arg.ids.len() != size {
            return Err(bad);
        }
        // Those that say nothing are not written either.
        if arg != ChooseArg::default() {
            args.insert(slot, arg);
        }
    }
    Ok(args)
}

impl Encode for Bucket {
    fn encode(&self, out: &mut Encoder) {
        out.u32(u32::from(self.alg()));
        out.i32(self.id);
        out.u16(self.kind);
        out.u8(self.alg());
        out.u8(self.hash);
        out.u32(self.weight);
        out.put(&self.items);
        let pairs = |out: &mut Encoder, a: &[u32], b: &[u32]| {
            for (x, y) in a.iter().zip(b) {
                out.u32(*x);
                out.u32(*y);
            }
        };
        match &self.data {
            BucketData::Uniform { item_weight } => out.u32(*item_weight),
            BucketData::List { weights, sums } => pairs(out, weights, sums),
            BucketData::Tree { nodes } => {
                out.u8(nodes.len() as u8);
                nodes.iter().for_each(|n| out.u32(*n));
            }
            BucketData::Straw { weights, straws } => pairs(out, weights, straws),
            BucketData::Straw2 { weights } => weights.iter().for_each(|w| out.u32(*w)),
        }
    }
}

fn decode_bucket(d: &mut Decoder<'_>, slot: usize) -> Result<Option<Bucket>, DecodeError> {
    let outer = d.u32()?;
    if outer == 0 {
        return Ok(None);
    }
    let (id, kind, inner, hash, weight) = (d.i32()?, d.u16()?, d.u8()?, d.u8()?, d.u32()?);
    if outer != u32::from(inner) {
        return Err(DecodeError::Value { what: "crush bucket algorithm", value: i64::from(outer) });
    }
    if CrushMap::slot(id) != Some(slot) {
        return Err(DecodeError::Value { what: "crush bucket id", value: i64::from(id) });
    }
    let items: Vec<i32> = d.list(4, Decoder::i32)?;
    let n = items.len();
    let pairs = |d: &mut Decoder<'_>| -> Result<(Vec<u32>, Vec<u32>), DecodeError> {
        let (mut a, mut b) = (Vec::with_capacity(n), Vec::with_capacity(n));
        for _ in 0..n {
            a.push(d.u32()?);
            b.push(d.u32()?);
        }
        Ok((a, b))
    };
    let data = match inner {
        alg::UNIFORM => BucketData::Uniform { item_weight: d.u32()? },
        alg::LIST => {
            let (weights, sums) = pairs(d)?;
            BucketData::List { weights, sums }
        }
        alg::TREE => {
            let count = d.u8()?;
            BucketData::Tree { nodes: (0..count).map(|_| d.u32()).collect::<Result<_, _>>()? }
        }
        alg::STRAW => {
            let (weights, straws) = pairs(d)?;
            BucketData::Straw { weights, straws }
        }
        alg::STRAW2 => {
            BucketData::Straw2 { weights: (0..n).map(|_| d.u32()).collect::<Result<_, _>>()? }
        }
        _ => {
            return Err(DecodeError::Value {
                what: "crush bucket algorithm",
                value: i64::from(inner),
            });
        }
    };
    Ok(Some(Bucket { id, kind, hash, weight, items, data }))
}

impl Encode for Rule {
    fn encode(&self, out: &mut Encoder) {
        out.u32(1);
        out.len32(self.steps.len());
        out.u8(self.ruleset);
        out.u8(self.kind);
        out.u8(self.min_size);
        out.u8(self.max_size);
        for s in &self.steps {
            out.u32(s.op);
            out.i32(s.arg1);
            out.i32(s.arg2);
        }
    }
}

/// Reads a rule after its presence flag.
impl Decode for Rule {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let n = d.count(12)?;
        let mut r = Self {
            ruleset: d.u8()?,
            kind: d.u8()?,
            min_size: d.u8()?,
            max_size: d.u8()?,
            steps: Vec::with_capacity(n),
        };
        for _ in 0..n {
            r.steps.push(Step { op: d.u32()?, arg1: d.i32()?, arg2: d.i32()? });
        }
        Ok(r)
    }
}
