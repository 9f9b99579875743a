//! Carrying a store's content, or one PG's, in a stream: to another store, another
//! machine, another format. Format in `docs/formats/export.md`.
//!
//! The end of a stream says how much there was, so that a cut one is told; every record has
//! a checksum. An import writes what makes a PG exist last: an interrupted one leaves no
//! half a PG that an OSD would serve.

use super::for_each_object;
use crate::error::{Result, StoreError};
use crate::store::Store;
use bytes::Bytes;
use spirula_encoding::{Decoder, Encoder, crc::crc32c};
use spirula_types::transaction::{MetaOp, ObjectOp, Transaction};
use spirula_types::{EVersion, HObject, PgId, Uuid};
use std::io::{Read, Write};

const MAGIC: &[u8; 8] = b"SPIREXP1";
const SOURCE: u8 = 1;
const OBJECT: u8 = 2;
const DATA: u8 = 3;
const ATTRS: u8 = 4;
const OMAP_HEADER: u8 = 5;
const OMAP: u8 = 6;
const META: u8 = 7;
const LOG: u8 = 8;
const END: u8 = 9;
/// Bytes of data per record, and about the most of other things.
const STEP: u64 = 1 << 20;
/// Longest record that is read.
const RECORD_MAX: u32 = 128 << 20;
/// Bytes of payload per transaction of an import.
const TXN: usize = 1 << 20;
/// A byte of metadata counts for so many of data: it is kept in memory until a checkpoint.
const METADATA: usize = 8;
/// What a pair or log entry takes beside its bytes, about.
const PAIR: usize = 128;

/// One PG instead of everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The PG.
    pub pg: PgId,
    /// PGs of its pool, which say which objects are its.
    pub pg_num: u32,
    /// What the keys of its meta records begin with.
    pub meta: Vec<Bytes>,
}

/// What an export wrote.
#[derive(Clone, Debug, Default)]
pub struct Exported {
    /// Objects.
    pub objects: u64,
    /// Bytes of their data.
    pub data: u64,
    /// Records.
    pub records: u64,
    /// Objects left out because they cannot be read, and why.
    pub left_out: Vec<(HObject, StoreError)>,
}

/// What an import found, or wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Cluster of the store it came from.
    pub fsid: Uuid,
    /// OSD it came from.
    pub osd_id: i32,
    /// The PG, unless it is a whole store.
    pub pg: Option<PgId>,
    /// Objects.
    pub objects: u64,
    /// Bytes of their data.
    pub data: u64,
}

/// What to do with an object that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// Give up.
    Refuse,
    /// Leave it out.
    Skip,
}

fn io(action: &'static str) -> impl FnOnce(std::io::Error) -> StoreError {
    move |e| StoreError::io(action, "the export", e)
}

struct Out<'w> {
    w: &'w mut dyn Write,
    records: u64,
}

impl Out<'_> {
    fn record(&mut self, kind: u8, body: &[u8]) -> Result<()> {
        let mut head = Encoder::with_capacity(5);
        head.u8(kind);
        head.u32(body.len() as u32);
        let crc = crc32c(crc32c(u32::MAX, head.as_slice()), body);
        self.records += 1;
        for part in [head.as_slice(), body, &crc.to_le_bytes()] {
            self.w.write_all(part).map_err(io("write"))?;
        }
        Ok(())
    }

    fn encoded(&mut self, kind: u8, fill: impl FnOnce(&mut Encoder)) -> Result<()> {
        let mut o = Encoder::new();
        fill(&mut o);
        self.record(kind, o.as_slice())
    }

    fn pairs(&mut self, kind: u8, pairs: &[(Bytes, Bytes)]) -> Result<()> {
        self.encoded(kind, |o| {
            o.list(pairs, |o, (k, v)| {
                o.put(k);
                o.put(v);
            });
        })
    }
}

/// Writes the store's content, or that of one PG, to `w`.
///
/// # Errors
/// [`StoreError::Io`] of writing; with [`Bad::Refuse`] also [`StoreError::Checksum`] and
/// others of reading.
pub fn export(
    store: &Store,
    filter: Option<&Filter>,
    bad: Bad,
    w: &mut dyn Write,
) -> Result<Exported> {
    w.write_all(MAGIC).map_err(io("write"))?;
    let mut out = Out { w, records: 0 };
    let i = store.identity();
    out.encoded(SOURCE, |o| {
        o.put(&i.fsid);
        o.put(&i.osd_uuid);
        o.i32(i.osd_id);
        o.u64(store.last_seq());
        o.bool(filter.is_some());
        o.put(&filter.map_or(PgId::new(0, 0), |f| f.pg));
    })?;
    let mut done = Exported::default();
    for_each_object(store, |o| {
        if filter.is_some_and(|f| o.pool != f.pg.pool || o.pg(f.pg_num) != f.pg) {
            return Ok(());
        }
        if bad == Bad::Skip
            && let Err(e) = probe(store, o)
        {
            done.left_out.push((o.clone(), e));
            return Ok(());
        }
        done.objects += 1;
        done.data += object(store, o, &mut out)?;
        Ok(())
    })?;
    for (key, value) in store.meta_range(b"")? {
        if filter.is_none_or(|f| f.meta.iter().any(|m| key.starts_with(m))) {
            out.pairs(META, &[(key, value)])?;
        }
    }
    let pgs = match filter {
        Some(f) => vec![f.pg],
        None => store.logged_pgs()?,
    };
    for pg in pgs {
        for entries in store.log_entries(pg)?.chunks(1000) {
            out.encoded(LOG, |o| {
                o.put(&pg);
                o.list(entries, |o, (v, e)| {
                    o.put(v);
                    o.put(e);
                });
            })?;
        }
    }
    let records = out.records + 1;
    out.encoded(END, |o| {
        o.u64(done.objects);
        o.u64(done.data);
        o.u64(records);
    })?;
    out.w.flush().map_err(io("write"))?;
    done.records = records;
    Ok(done)
}

/// Reads an object as an export would.
fn probe(store: &Store, name: &HObject) -> Result<()> {
    let mut nothing = std::io::sink();
    object(store, name, &mut Out { w: &mut nothing, records: 0 }).map(|_| ())
}

fn object(store: &Store, name: &HObject, out: &mut Out<'_>) -> Result<u64> {
    let size = store.stat(name)?.map_or(0, |s| s.size);
    out.encoded(OBJECT, |o| {
        o.put(name);
        o.u64(size);
    })?;
    let mut bytes = 0;
    for (start, len) in store.extents(name, 0, u64::MAX)?.unwrap_or_default() {
        let mut at = start;
        while at < start + len {
            let n = (start + len - at).min(STEP);
            let data = store.read_blocking(name, at, n)?.unwrap_or_default();
            out.encoded(DATA, |o| {
                o.u64(at);
                o.raw(&data);
            })?;
            bytes += data.len() as u64;
            at += n;
        }
    }
    let attrs = store.attrs(name)?.unwrap_or_default();
    if !attrs.is_empty() {
        out.pairs(ATTRS, &attrs)?;
    }
    let header = store.omap_header(name)?.unwrap_or_default();
    if !header.is_empty() {
        out.record(OMAP_HEADER, &header)?;
    }
    let mut after: Option<Bytes> = None;
    loop {
        let page = store
            .omap_range(name, after.as_deref(), b"", 10_000, STEP as usize)?
            .unwrap_or_default();
        if !page.pairs.is_empty() {
            out.pairs(OMAP, &page.pairs)?;
        }
        match page.pairs.into_iter().next_back() {
            Some((last, _)) if page.more => after = Some(last),
            _ => return Ok(bytes),
        }
    }
}

/// One record of a stream.
enum Item {
    Source(Imported),
    Object(HObject, u64),
    Data(u64, Bytes),
    Attrs(Vec<(Bytes, Bytes)>),
    OmapHeader(Bytes),
    Omap(Vec<(Bytes, Bytes)>),
    Meta(Vec<(Bytes, Bytes)>),
    Log(PgId, Vec<(EVersion, Bytes)>),
    End { objects: u64, data: u64, records: u64 },
}

fn damaged(what: impl std::fmt::Display) -> StoreError {
    StoreError::Refused {
        file: "the export".into(),
        why: what.to_string(),
        advice: "make the export again, or take another copy of it".into(),
    }
}

fn decode(kind: u8, body: Bytes) -> Result<Item> {
    let mut d = Decoder::new(&body);
    let mut parse = || -> Result<Item, spirula_encoding::DecodeError> {
        Ok(match kind {
            SOURCE => {
                let fsid = d.get()?;
                let _osd_uuid: Uuid = d.get()?;
                let osd_id = d.i32()?;
                d.u64()?;
                let one = d.bool()?;
                let pg = d.get()?;
                Item::Source(Imported { fsid, osd_id, pg: one.then_some(pg), objects: 0, data: 0 })
            }
            OBJECT => Item::Object(d.get()?, d.u64()?),
            DATA => Item::Data(d.u64()?, body.slice(8..)),
            ATTRS => Item::Attrs(d.get()?),
            OMAP_HEADER => Item::OmapHeader(body.clone()),
            OMAP => Item::Omap(d.get()?),
            META => Item::Meta(d.get()?),
            LOG => Item::Log(d.get()?, d.list(16, |d| Ok((d.get()?, d.get()?)))?),
            END => Item::End { objects: d.u64()?, data: d.u64()?, records: d.u64()? },
            k => {
                return Err(spirula_encoding::DecodeError::Value {
                    what: "kind of record",
                    value: i64::from(k),
                });
            }
        })
    };
    parse().map_err(|e| damaged(format!("holds a record that makes no sense: {e}")))
}

/// Gives every record to `each` and makes sure that the stream is whole.
fn records(r: &mut dyn Read, mut each: impl FnMut(Item) -> Result<()>) -> Result<Imported> {
    let fail = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::UnexpectedEof => damaged("ends before its end record: it was cut"),
        _ => StoreError::io("read", "the export", e),
    };
    let mut magic = [0; 8];
    r.read_exact(&mut magic).map_err(fail)?;
    if &magic != MAGIC {
        return Err(damaged("is no export of a spirula store"));
    }
    let mut found: Option<Imported> = None;
    let mut count = 0;
    loop {
        let mut head = [0; 5];
        r.read_exact(&mut head).map_err(fail)?;
        let [kind, len @ ..] = head;
        let len = u32::from_le_bytes(len);
        if len > RECORD_MAX {
            return Err(damaged(format!("has a record of {len} bytes")));
        }
        let mut body = Vec::new();
        r.take(u64::from(len)).read_to_end(&mut body).map_err(fail)?;
        if body.len() < len as usize {
            return Err(damaged("ends before its end record: it was cut"));
        }
        let mut crc = [0; 4];
        r.read_exact(&mut crc).map_err(fail)?;
        if crc32c(crc32c(u32::MAX, &head), &body) != u32::from_le_bytes(crc) {
            return Err(damaged(format!("record {count} does not match its checksum")));
        }
        count += 1;
        let item = decode(kind, body.into())?;
        match (&item, &mut found) {
            (Item::Source(s), None) => found = Some(s.clone()),
            (Item::Source(_), Some(_)) | (_, None) => return Err(damaged("does not begin as one")),
            (Item::End { objects, data, records }, Some(f)) => {
                if (*objects, *data, *records) != (f.objects, f.data, count) {
                    return Err(damaged(format!(
                        "holds {} objects, {} bytes and {count} records; its end says {objects}, \
                            {data} and {records}",
                        f.objects, f.data
                    )));
                }
                if r.take(1).read_to_end(&mut Vec::new()).map_err(fail)? > 0 {
                    return Err(damaged("goes on behind its end"));
                }
                return Ok(f.clone());
            }
            (Item::Object(..), Some(f)) => f.objects += 1,
            (Item::Data(_, b), Some(f)) => f.data += b.len() as u64,
            _ => {}
        }
        each(item)?;
    }
}

/// Reads a stream through: it is whole, and the store has nothing of what it brings.
///
/// # Errors
/// [`StoreError::Refused`] if that is not so.
pub fn examine(store: &Store, mut stream: impl Read) -> Result<Imported> {
    records(&mut stream, |item| {
        let clash = match &item {
            Item::Object(name, _) => store.stat(name)?.map(|_| name.to_string()),
            Item::Meta(pairs) => {
                let mut there = None;
                for (key, _) in pairs {
                    if store.meta(key)?.is_some() {
                        there = Some(format!("record '{}'", String::from_utf8_lossy(key)));
                    }
                }
                there
            }
            Item::Log(pg, _) => {
                (!store.log_entries(*pg)?.is_empty()).then(|| format!("the log of PG {pg}"))
            }
            _ => None,
        };
        match clash {
            None => Ok(()),
            Some(what) => Err(StoreError::Refused {
                file: "the store".into(),
                why: format!("holds {what} already, which the export brings"),
                advice: "import into a new store ('spirula osd prepare'), or remove the PG first"
                    .into(),
            }),
        }
    })
}

/// Puts what is in a stream into a store, if it is whole, and the store has none of it.
/// `open` is called twice: the stream is read through before anything is written.
///
/// # Errors
/// [`StoreError::Refused`] if the stream is damaged or the store holds something of what it
/// brings: nothing was written. Those of [`Store::submit`]: part of the objects was
/// written, but nothing that makes a PG of them.
pub fn import<R: Read>(store: &mut Store, mut open: impl FnMut() -> Result<R>) -> Result<Imported> {
    let found = examine(store, open()?)?;
    let mut txn = Transaction::default();
    let (mut bytes, mut waiting) = (0, 0);
    let mut name = HObject::min();
    let mut last: Vec<MetaOp> = Vec::new();
    let mut size = 0;
    records(&mut open()?, |item| {
        // Whatever comes behind an object's data ends it; setting its size again is harmless.
        match item {
            Item::Object(next, of) => {
                (name, size) = (next, of);
                txn.object(&name, ObjectOp::Touch);
                txn.object(&name, ObjectOp::Truncate { size });
            }
            Item::Data(offset, data) => {
                bytes += data.len();
                txn.object(&name, ObjectOp::Write { offset, data });
            }
            Item::Attrs(pairs) => {
                bytes += pairs.iter().map(|(k, v)| METADATA * (k.len() + v.len())).sum::<usize>();
                txn.object(&name, ObjectOp::SetAttrs(pairs));
            }
            Item::OmapHeader(h) => {
                bytes += METADATA * h.len();
                txn.object(&name, ObjectOp::OmapSetHeader(h));
            }
            Item::Omap(pairs) => {
                bytes +=
                    pairs.iter().map(|(k, v)| METADATA * (k.len() + v.len() + PAIR)).sum::<usize>();
                txn.object(&name, ObjectOp::OmapSet(pairs));
            }
            Item::Meta(pairs) => {
                last.extend(pairs.into_iter().map(|(key, value)| MetaOp::Set { key, value }));
            }
            Item::Log(pg, entries) => {
                for (version, entry) in entries {
                    bytes += METADATA * (entry.len() + PAIR);
                    txn.meta.push(MetaOp::LogAppend { pg, version, entry });
                }
            }
            Item::Source(_) | Item::End { .. } => {}
        }
        if bytes >= TXN || txn.objects.len() >= 200 || txn.meta.len() >= 500 {
            waiting += std::mem::take(&mut bytes);
            store.submit(std::mem::take(&mut txn))?;
            // No payload budget holds us back here: a store's queue is longer than its caches.
            if waiting >= 4 * TXN {
                waiting = 0;
                store.flush()?;
            }
        }
        Ok(())
    })?;
    store.submit(txn)?;
    // What makes PGs of all that comes when it is durable.
    store.flush()?;
    for ops in last.chunks(100) {
        let mut txn = Transaction::default();
        txn.meta.extend(ops.iter().cloned());
        store.submit(txn)?;
    }
    store.flush()?;
    Ok(found)
}
