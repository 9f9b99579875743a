//! `spirula store`: looking at, checking and carrying a store that is not in use.
//!
//! Exit codes: 0 done (and sound), 1 not, with the reason.

use crate::size::Size;
use anyhow::{Context, anyhow, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use spirula_buffer::PayloadPool;
use spirula_mon::MonStore;
use spirula_pg::shard::store_pg;
use spirula_pg::{Stored, head_key, info_key, missing_prefix, parse_info_key};
use spirula_store::tools::{self, Bad, Filter};
use spirula_store::{Store, StoreOptions, StorePaths};
use spirula_types::SpgId;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Memory for caches.
const CACHE: usize = 64 << 20;

/// What to do with a store.
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Verify every structure, owner, count and checksum; changes nothing
    Check {
        #[command(flatten)]
        at: At,
        /// Do not read the data itself
        #[arg(long)]
        quick: bool,
    },
    /// Space, objects, fragmentation
    Stats {
        #[command(flatten)]
        at: At,
    },
    /// Write all objects, records and logs, or those of one PG, to a file
    Export {
        #[command(flatten)]
        at: At,
        /// File to make; '-' is standard output
        file: PathBuf,
        /// Only this PG, for example 2.1f
        #[arg(long)]
        pg: Option<String>,
        /// Leave out objects that cannot be read, and name them
        #[arg(long)]
        skip_bad: bool,
    },
    /// Put what an export holds into a store that has none of it
    Import {
        #[command(flatten)]
        at: At,
        /// The export
        file: PathBuf,
    },
    /// Show objects, records or logs in readable form
    Dump {
        #[command(flatten)]
        at: At,
        /// What to show
        #[arg(value_enum)]
        what: What,
        /// Only this PG ('log') or names with this in them ('objects', 'onodes')
        only: Option<String>,
    },
}

/// Which store, and how to answer.
#[derive(Debug, Args)]
pub struct At {
    /// An OSD's directory or its main device (check: or a monitor's directory)
    path: PathBuf,
    /// Journal device, if it is not where the store last saw it
    #[arg(long)]
    journal_device: Option<PathBuf>,
    /// Metadata device, likewise
    #[arg(long)]
    meta_device: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What `dump` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum What {
    /// Labels of the devices
    Devices,
    /// Names and sizes
    Objects,
    /// Objects with attributes and where their data is
    Onodes,
    /// The OSD's and PGs' records
    Meta,
    /// Entries of PG logs
    Log,
}

impl At {
    fn paths(&self) -> anyhow::Result<StorePaths> {
        let mut p = StorePaths::find(&self.path).map_err(|e| anyhow!("{e}"))?;
        p.journal = self.journal_device.clone().or(p.journal);
        p.meta = self.meta_device.clone().or(p.meta);
        Ok(p)
    }

    /// Opens the store so that nothing can be written.
    fn look(&self) -> anyhow::Result<Store> {
        Store::open_shielded(&self.paths()?, None, &options()).map_err(|e| anyhow!("{e}"))
    }

    fn show(&self, v: &Value, text: &str) {
        if self.json {
            crate::out!("{v:#}");
        } else {
            print!("{text}");
        }
    }
}

fn options() -> StoreOptions {
    StoreOptions {
        size: 0,
        journal_size: 0,
        cache_bytes: CACHE,
        pool: PayloadPool::new(16 << 20),
        ..StoreOptions::default()
    }
}

/// `spirula store …`.
///
/// # Errors
/// Whatever failed, or is wrong with the store.
pub fn run(command: &StoreCommand) -> anyhow::Result<()> {
    match command {
        StoreCommand::Check { at, .. } if MonStore::exists(&at.path) => check_mon(at),
        StoreCommand::Check { at, quick } => check(at, *quick),
        StoreCommand::Stats { at } => stats(at),
        StoreCommand::Export { at, file, pg, skip_bad } => {
            export(at, file, pg.as_deref(), *skip_bad)
        }
        StoreCommand::Import { at, file } => import(at, file),
        StoreCommand::Dump { at, what, only } => dump(at, *what, only.as_deref()),
    }
}

fn check_mon(at: &At) -> anyhow::Result<()> {
    let stored = MonStore::verify(&at.path).map_err(|e| anyhow!("{e}"))?;
    let fsid = stored.identity.fsid.to_string();
    at.show(
        &json!({"path": at.path, "kind": "monitor", "fsid": fsid, "problems": []}),
        &format!("{}: the store of a monitor of cluster {fsid}, sound\n", at.path.display()),
    );
    Ok(())
}

fn check(at: &At, quick: bool) -> anyhow::Result<()> {
    let store = at.look()?;
    let c = tools::check(&store, !quick).map_err(|e| anyhow!("{e}"))?;
    let id = store.identity();
    let notes = c.notes.iter().map(|n| format!("note: {n}\n"));
    let mut text: String = notes.chain(c.problems.iter().map(|p| format!("{p}\n"))).collect();
    if c.count > c.problems.len() as u64 {
        text += &format!("… and {} more\n", c.count - c.problems.len() as u64);
    }
    let head = format!(
        "{}: osd.{} of cluster {}: {} objects, {} of data{}, {} pages of metadata, {} logs",
        at.path.display(),
        id.osd_id,
        id.fsid,
        c.objects,
        Size(if quick { store.statfs().stored } else { c.data }),
        if quick { " (not read)" } else { " verified" },
        c.metadata_pages,
        c.logs
    );
    text += &if c.count == 0 { format!("{head}: sound\n") } else { format!("{head}\n") };
    at.show(
        &json!({
            "path": at.path,
            "kind": "osd",
            "osd": id.osd_id,
            "fsid": id.fsid.to_string(),
            "objects": c.objects,
            "data_bytes_verified": c.data,
            "metadata_pages": c.metadata_pages,
            "logs": c.logs,
            "problem_count": c.count,
            "problems": c.problems,
            "notes": c.notes,
        }),
        &text,
    );
    match c.count {
        0 => Ok(()),
        n => bail!(
            "{n} problems; let the cluster recover this OSD from its copies, or rescue what is \
                readable with 'spirula store export --skip-bad'"
        ),
    }
}

fn stats(at: &At) -> anyhow::Result<()> {
    let store = at.look()?;
    let s = tools::stats(&store).map_err(|e| anyhow!("{e}"))?;
    let id = store.identity();
    let pieces = s.fragments as f64 / s.with_data.max(1) as f64;
    let pools: serde_json::Map<String, Value> = s
        .pools
        .iter()
        .map(|(p, u)| {
            let v = json!({
                "stored": u.stored, "allocated": u.allocated, "compressed": u.compressed,
                "compressed_allocated": u.compressed_allocated, "compressed_original": u.compressed_original,
            });
            (p.to_string(), v)
        })
        .collect();
    let v = json!({
        "osd": id.osd_id,
        "fsid": id.fsid.to_string(),
        "total": s.space.total,
        "available": s.space.available,
        "used": s.space.used,
        "stored": s.space.stored,
        "objects": s.space.objects,
        "metadata": {"space": s.space.metadata, "live": s.metadata_live, "keys": s.metadata_keys, "commits": s.metadata_commits},
        "journal": {"size": s.space.journal, "written": s.journaled},
        "last_transaction": s.last_seq,
        "pools": pools,
        "object_sizes": s.sizes.iter().map(|(from, n)| json!({"from": from, "objects": n})).collect::<Vec<_>>(),
        "pieces_per_object": (pieces * 1000.0).round() / 1000.0,
        "free_runs": s.free.iter().map(|f| json!({"from": f.from, "runs": f.runs, "bytes": f.bytes})).collect::<Vec<_>>(),
    });
    let mut text = format!(
        "osd.{} of cluster {}\n  data       {} of {} used, {} available; {} stored in {} \
            objects\n  \
         metadata   {} ({} live), {} keys, {} commits\n  journal    {}; {} written since it was \
         made\n  \
         layout     {pieces:.2} pieces per object with data\n",
        id.osd_id,
        id.fsid,
        Size(s.space.used),
        Size(s.space.total),
        Size(s.space.available),
        Size(s.space.stored),
        s.space.objects,
        Size(s.space.metadata),
        Size(s.metadata_live),
        s.metadata_keys,
        s.metadata_commits,
        Size(s.space.journal),
        Size(s.journaled),
    );
    for (pool, u) in &s.pools {
        text += &format!("  pool {pool:<5} {} stored in {}\n", Size(u.stored), Size(u.allocated));
    }
    for (from, n) in &s.sizes {
        text += &format!("  objects of {} and more: {n}\n", Size(*from));
    }
    for f in &s.free {
        text +=
            &format!("  free runs of {} and more: {}, {}\n", Size(f.from), f.runs, Size(f.bytes));
    }
    at.show(&v, &text);
    Ok(())
}

fn pg_of(s: &str) -> anyhow::Result<SpgId> {
    SpgId::parse(s).with_context(|| {
        format!("'{s}' is not a PG; write for example 2.1f, or 2.1fs0 for a shard")
    })
}

fn export(at: &At, file: &Path, pg: Option<&str>, skip_bad: bool) -> anyhow::Result<()> {
    let store = at.look()?;
    let filter = match pg {
        None => None,
        Some(pg) => {
            let pg = pg_of(pg)?;
            let key = info_key(pg);
            let Some(record) = store.meta(&key).map_err(|e| anyhow!("{e}"))? else {
                bail!(
                    "PG {pg} is not in this store; 'spirula store dump {} meta' names those that \
                        are",
                    at.path.display()
                );
            };
            let stored = Stored { record, ..Stored::default() };
            let info = stored.info().with_context(|| format!("read the record of PG {pg}"))?;
            let meta = vec![key, head_key(pg), missing_prefix(pg).into()];
            Some(Filter { pg: store_pg(pg), pg_num: info.pg_num, meta })
        }
    };
    let to_stdout = file == Path::new("-");
    let mut out: Box<dyn Write> = if to_stdout {
        Box::new(BufWriter::new(std::io::stdout().lock()))
    } else {
        Box::new(BufWriter::new(File::create_new(file).with_context(|| {
            format!("make {} (an existing file is not overwritten)", file.display())
        })?))
    };
    let bad = if skip_bad { Bad::Skip } else { Bad::Refuse };
    let done = match tools::export(&store, filter.as_ref(), bad, &mut *out) {
        Ok(done) => done,
        Err(e) => {
            drop(out);
            if !to_stdout {
                // Half an export would be refused; better none.
                let _ = std::fs::remove_file(file);
            }
            bail!("{e}; --skip-bad leaves out what cannot be read");
        }
    };
    drop(out);
    if !to_stdout {
        File::open(file)
            .and_then(|f| f.sync_all())
            .with_context(|| format!("sync {}", file.display()))?;
    }
    for (name, why) in &done.left_out {
        eprintln!("left out {name}: {why}");
    }
    if !to_stdout {
        at.show(
            &json!({"objects": done.objects, "data_bytes": done.data, "records": done.records, "left_out": done.left_out.len()}),
            &format!("exported {} objects, {}, to {}\n", done.objects, Size(done.data), file.display()),
        );
    }
    Ok(())
}

fn import(at: &At, file: &Path) -> anyhow::Result<()> {
    let open = || {
        let f = File::open(file).map_err(|e| spirula_store::StoreError::Io {
            action: "open",
            file: file.display().to_string(),
            why: e.to_string(),
        })?;
        Ok(BufReader::with_capacity(1 << 20, f))
    };
    let failed_import = |e| anyhow!("import {}: {e}", file.display());
    // Before the store is opened for writing, which leaves a trace on it.
    tools::examine(&at.look()?, open().map_err(failed_import)?).map_err(failed_import)?;
    let failed = Box::new(|e: spirula_store::StoreError| tracing::error!("{e}"));
    let mut store = Store::open_at(&at.paths()?, None, &options(), Box::new(|_| ()), failed)
        .map_err(|e| anyhow!("{e}"))?;
    let done = tools::import(&mut store, open).map_err(failed_import)?;
    store.close().map_err(|e| anyhow!("{e}"))?;
    at.show(
        &json!({"objects": done.objects, "data_bytes": done.data, "from_osd": done.osd_id, "fsid": done.fsid.to_string()}),
        &format!(
            "imported {} objects, {}, {} of osd.{}\n",
            done.objects,
            Size(done.data),
            done.pg.map_or("all".to_owned(), |pg| format!("PG {pg}")),
            done.osd_id
        ),
    );
    Ok(())
}

fn text_of(b: &[u8]) -> String {
    b.escape_ascii().to_string()
}

fn dump(at: &At, what: What, only: Option<&str>) -> anyhow::Result<()> {
    // Many lines: one at a time, and quietly done when nobody reads on.
    let out = std::io::stdout();
    let mut out = BufWriter::new(out.lock());
    let mut line = |v: Value, text: String| -> bool {
        let r = if at.json { writeln!(out, "{v}") } else { writeln!(out, "{text}") };
        r.is_ok()
    };
    if what == What::Devices {
        for d in tools::devices(&at.paths()?).map_err(|e| anyhow!("{e}"))? {
            let id = d.identity;
            let v = json!({
                "path": d.path, "role": d.role.name(), "format": d.format, "osd": id.osd_id, "fsid": id.fsid.to_string(),
                "osd_uuid": id.osd_uuid.to_string(), "store": d.store_uuid.to_string(), "device": d.device_uuid.to_string(),
                "size": d.size, "mounts": d.mounts, "clean": d.clean, "checkpoint": d.checkpoint,
            });
            let text = format!(
                "{}: {} of osd.{} of cluster {}, {}, opened {} times{}",
                d.path.display(),
                d.role.name(),
                id.osd_id,
                id.fsid,
                Size(d.size),
                d.mounts,
                match d.clean {
                    Some(true) => ", closed properly",
                    Some(false) => ", not closed",
                    None => "",
                }
            );
            line(v, text);
        }
        return Ok(());
    }
    let store = at.look()?;
    match what {
        What::Devices => {}
        What::Objects | What::Onodes => {
            tools::for_each_object(&store, |o| {
                let name = text_of(&o.name);
                if only.is_some_and(|part| !name.contains(part)) {
                    return Ok(());
                }
                let snap = match o.snap {
                    spirula_types::SNAP_HEAD => "head".to_owned(),
                    n => n.to_string(),
                };
                if what == What::Objects {
                    let size = store.stat(o)?.map_or(0, |s| s.size);
                    let v = json!({"pool": o.pool, "hash": o.hash, "namespace": text_of(&o.namespace), "key": text_of(&o.key),
                        "name": name, "snap": snap, "size": size});
                    line(v, format!("{} {:08x} {} {snap} {size}", o.pool, o.hash, name));
                    return Ok(());
                }
                let Some(d) = tools::dump_object(&store, o)? else { return Ok(()) };
                let attrs: Vec<Value> =
                    d.attrs.iter().map(|(k, v)| json!({"name": text_of(k), "bytes": v.len()})).collect();
                let pieces: Vec<Value> = d
                    .pieces
                    .iter()
                    .map(|p| json!({"offset": p.offset, "length": p.length, "block": p.block, "compressed": p.compressed}))
                    .collect();
                let v = json!({"pool": o.pool, "hash": o.hash, "namespace": text_of(&o.namespace), "name": name, "snap": snap,
                    "id": d.id, "size": d.size, "allocated": d.allocated, "shared": d.shared,
                    "omap": d.omap, "omap_pairs": d.omap_pairs, "attrs": attrs, "pieces": pieces});
                let mut text = format!(
                    "{} {:08x} {name} {snap}: onode {}, {} bytes in {}, {} attributes, {} omap \
                        pairs",
                    o.pool,
                    o.hash,
                    d.id,
                    d.size,
                    d.allocated,
                    d.attrs.len(),
                    d.omap_pairs
                );
                for p in &d.pieces {
                    text += &format!("\n    {}+{} at block {}", p.offset, p.length, p.block);
                    if p.compressed > 0 {
                        text += &format!(", in {} compressed bytes", p.compressed);
                    }
                }
                line(v, text);
                Ok(())
            })
            .map_err(|e| anyhow!("{e}"))?;
        }
        What::Meta => {
            for (key, value) in
                store.meta_range(only.unwrap_or_default().as_bytes()).map_err(|e| anyhow!("{e}"))?
            {
                let info = match parse_info_key(&key) {
                    None => None,
                    Some(pg) => {
                        let head = store
                            .meta(&head_key(pg))
                            .map_err(|e| anyhow!("{e}"))?
                            .unwrap_or_default();
                        Stored { record: value.clone(), head, ..Stored::default() }.info().ok()
                    }
                };
                let (more, text) = match &info {
                    Some(i) => (
                        json!({"pg": i.pg.to_string(), "pg_num": i.pg_num, "last_update": i.last_update().to_string(),
                            "log_tail": i.log_tail().to_string()}),
                        format!(
                            "; PG {} of {}, last update {}, log tail {}",
                            i.pg,
                            i.pg_num,
                            i.last_update(),
                            i.log_tail()
                        ),
                    ),
                    None => (Value::Null, String::new()),
                };
                let v = json!({"key": text_of(&key), "bytes": value.len(), "pg": more});
                if !line(v, format!("{}: {} bytes{text}", text_of(&key), value.len())) {
                    break;
                }
            }
        }
        What::Log => {
            let pgs = match only {
                Some(pg) => vec![store_pg(pg_of(pg)?)],
                None => store.logged_pgs().map_err(|e| anyhow!("{e}"))?,
            };
            for pg in pgs {
                for (version, entry) in store.log_entries(pg).map_err(|e| anyhow!("{e}"))? {
                    let known: Option<spirula_pg::LogEntry> =
                        spirula_encoding::from_slice(&entry).ok();
                    let (kind, object, reqid) = known.map_or_else(
                        || ("unreadable".to_owned(), String::new(), String::new()),
                        |e| {
                            (
                                format!("{:?}", e.kind).to_lowercase(),
                                text_of(&e.object.name),
                                e.reqid.to_string(),
                            )
                        },
                    );
                    let v = json!({"pg": pg.to_string(), "version": version.to_string(), "kind": kind, "object": object,
                        "reqid": reqid, "bytes": entry.len()});
                    line(v, format!("{pg} {version} {kind} {object} {reqid}"));
                }
            }
        }
    }
    Ok(())
}
