//! Fuzzing on the stable toolchain: libFuzzer with coverage flags passed by hand.

use crate::run::{command, must, root, status, target};
use anyhow::Context;
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What to fuzz and how long.
#[derive(Args)]
pub struct Options {
    /// Seconds for each target
    #[arg(long, default_value_t = 30)]
    pub seconds: u32,
    /// Only this target
    pub target: Option<String>,
    /// Run the seeds and what earlier runs found, and try nothing new
    #[arg(long)]
    pub replay: bool,
}

/// Coverage instrumentation as cargo-fuzz sets it, without its nightly-only parts.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Cdebug-assertions";

/// Builds and runs the targets; false if one found something. Inputs that matter are in the
/// target directory: `fuzz/corpus` (kept from run to run) and `fuzz/artifacts` (failures).
///
/// # Errors
/// When the build fails.
pub fn fuzz(o: &Options) -> anyhow::Result<bool> {
    let dir = target().join("fuzz");
    let host = "x86_64-unknown-linux-gnu";
    must(
        command("cargo")
            .args([
                "build",
                "--release",
                "--locked",
                "--manifest-path",
                "fuzz/Cargo.toml",
                "--bins",
                "--target",
                host,
            ])
            .env("CARGO_TARGET_DIR", &dir)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", FLAGS),
    )?;
    let artifacts = dir.join("artifacts");
    std::fs::create_dir_all(&artifacts)?;
    let seeds = Seeds::new(dir.join("corpus"));
    seeds.plant()?;
    let mut good = true;
    let mut names: Vec<String> = std::fs::read_dir(root().join("fuzz/src/bin"))?
        .flatten()
        .filter_map(|e| Some(e.path().file_stem()?.to_string_lossy().into_owned()))
        .collect();
    names.sort();
    for name in names.iter().filter(|n| o.target.as_ref().is_none_or(|t| t == *n)) {
        let corpus = seeds.folder(name)?;
        let long =
            if o.replay { "-runs=0".to_owned() } else { format!("-max_total_time={}", o.seconds) };
        let found = !status(
            command(dir.join(host).join("release").join(name))
                .arg(long)
                .arg(format!("-artifact_prefix={}/{name}-", artifacts.display()))
                .args(["-rss_limit_mb=2048", "-timeout=60", "-print_final_stats=1"])
                .arg(&corpus),
        )?;
        println!("fuzz {name}: {}", if found { "FOUND something" } else { "ok" });
        good &= !found;
    }
    Ok(good)
}

/// Makes seeds of the golden vectors and objects in `tests/data`.
struct Seeds {
    corpus: PathBuf,
}

/// Folders of Ceph's object corpora and the targets that read such objects.
const OBJECTS: &[(&str, &str)] = &[
    ("entity_addr_t", "names"),
    ("entity_addrvec_t", "names"),
    ("entity_name_t", "names"),
    ("hobject_t", "names"),
    ("object_locator_t", "names"),
    ("osd_reqid_t", "names"),
    ("pg_t", "names"),
    ("spg_t", "names"),
    ("eversion_t", "names"),
    ("utime_t", "encoding"),
    ("MonMap", "monmap"),
    ("mon_info_t", "monmap"),
    ("OSDMap", "osdmap"),
    ("OSDMap::Incremental", "osdmap_incremental"),
    ("pg_pool_t", "pool"),
    ("pool_opts_t", "pool"),
    ("pool_snap_info_t", "pool"),
    ("pg_merge_meta_t", "pool"),
    ("osd_info_t", "pool"),
    ("osd_xinfo_t", "pool"),
    ("MgrMap::ModuleInfo", "mgrmap"),
    ("MgrMap::ModuleOption", "mgrmap"),
    ("MgrMap::StandbyInfo", "mgrmap"),
    ("FSMap", "fsmap"),
    ("MDSMap", "fsmap"),
    ("MDSMap::mds_info_t", "fsmap"),
    ("Filesystem", "fsmap"),
    ("CompatSet", "fsmap"),
    ("pg_stat_t", "statistics"),
    ("osd_stat_t", "statistics"),
    ("pool_stat_t", "statistics"),
    ("object_stat_sum_t", "statistics"),
    ("store_statfs_t", "statistics"),
    ("CrushWrapper", "crush"),
];

impl Seeds {
    fn new(corpus: PathBuf) -> Self {
        Self { corpus }
    }

    fn folder(&self, target: &str) -> anyhow::Result<PathBuf> {
        let dir = self.corpus.join(target);
        std::fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    fn put(&self, target: &str, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
        let path = self.folder(target)?.join(format!("seed-{}", name.replace('/', "-")));
        std::fs::write(&path, bytes).with_context(|| format!("write {}", path.display()))
    }

    fn plant(&self) -> anyhow::Result<()> {
        self.commands()?;
        self.tree_pages()?;
        self.auth()?;
        self.mon_store()?;
        self.store_records()?;
        self.secure_frames()?;
        let vectors = root().join("tests/data/vectors");
        for (folder, part, target) in [
            ("monmap", "monmap", "monmap"),
            ("maps", "mgrmap", "mgrmap"),
            ("osdmap", "golden-", "osdmap"),
            ("osdmap", "real-e", "osdmap"),
            ("osdmap", "real-inc", "osdmap_incremental"),
            ("crush", "", "crush"),
        ] {
            for (name, bytes) in files(&vectors.join(folder), ".bin")? {
                if name.starts_with(part) {
                    self.put(target, &name, &bytes)?;
                }
            }
        }
        self.streams(&vectors)?;
        self.messages(&vectors)?;
        self.ops(&vectors)?;
        self.calls(&vectors)?;
        self.objects()
    }

    /// Recorded connections, as raw bytes for the machines and the frame reader.
    fn streams(&self, vectors: &Path) -> anyhow::Result<()> {
        // After "ceph v2\n", the length and the two feature words.
        const BANNER: usize = 26;
        for (name, bytes) in files(&vectors.join("auth-none"), ".bin")? {
            let target =
                if name.contains(".c2s.") { "server_connection" } else { "client_connection" };
            self.put(target, &name, &[&[0, 0, 255], &bytes[..]].concat())?;
            self.put(
                "frames",
                &name,
                &[&[1, 255], bytes.get(BANNER..).unwrap_or_default()].concat(),
            )?;
        }
        // Every frame type, in every state, with and without sessions that survive.
        for side in ["server_connection", "client_connection"] {
            for flags in [1, 1 + 4, 1 + 4 + 32, 1 + 2, 1 + 8, 1 + 16] {
                for honest in 0..9 {
                    let mut script = vec![flags, honest, 255];
                    (1..=22).for_each(|tag| script.extend([tag, 60, 0].into_iter().chain([0; 60])));
                    self.put(side, &format!("script-{flags}-{honest}"), &script)?;
                    for tag in 1..=22 {
                        let one = [&[flags, honest, 255, tag, 60, 0][..], &[1; 60]].concat();
                        self.put(side, &format!("frame-{flags}-{honest}-{tag}"), &one)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// One message of each kind.
    fn messages(&self, vectors: &Path) -> anyhow::Result<()> {
        let packed = vectors.join("messages.jsonl.gz");
        let out = Command::new("gzip").arg("-dc").arg(&packed).output().context("run gzip")?;
        for (i, line) in String::from_utf8_lossy(&out.stdout).lines().enumerate() {
            let j: serde_json::Value = serde_json::from_str(line)?;
            let number = |k: &str| j[k].as_u64().unwrap_or_default();
            let (front, data) = (unhex(&j["front"]), unhex(&j["data"]));
            let mut seed = (number("type") as u16).to_le_bytes().to_vec();
            seed.push(number("version") as u8);
            seed.extend((front.len().min(0xffff) as u16).to_le_bytes());
            seed.extend(front);
            seed.extend(data);
            self.put(
                "ceph_messages",
                &format!("{i}-{}", j["name"].as_str().unwrap_or_default()),
                &seed,
            )?;
        }
        // Every kind, even those that were not recorded.
        for kind in 0..64u16 {
            for target in ["ceph_messages", "cluster_messages"] {
                let empty =
                    [&kind.to_le_bytes()[..], &[1, 64, 0, 1, 1, 58, 0, 0, 0], &[0; 80]].concat();
                self.put(target, &format!("empty-{kind}"), &empty)?;
            }
        }
        Ok(())
    }

    /// Ops, one by one.
    fn ops(&self, vectors: &Path) -> anyhow::Result<()> {
        let text = std::fs::read_to_string(vectors.join("ops.jsonl"))?;
        for (i, line) in text.lines().enumerate() {
            let j: serde_json::Value = serde_json::from_str(line)?;
            let code = j["code"].as_str().unwrap_or_default().trim_start_matches("0x");
            let code = u16::from_str_radix(code, 16)?;
            let input = unhex(&j["in"]);
            let how = if code & 0x0f00 == 0x0500 { 16 } else { 0 };
            let mut seed = vec![how, 0, 0, 0, 0];
            seed.extend(code.to_le_bytes());
            seed.push(j["opflags"].as_u64().unwrap_or_default() as u8);
            seed.extend(unhex(&j["union"]));
            seed.extend((input.len().min(0xffff) as u16).to_le_bytes());
            seed.extend(input);
            self.put("exec", &i.to_string(), &seed)?;
        }
        Ok(())
    }

    /// Calls of object classes, each for all methods' numbers near it: on an object that has
    /// nothing.
    fn calls(&self, vectors: &Path) -> anyhow::Result<()> {
        let text = std::fs::read_to_string(vectors.join("cls.jsonl"))?;
        for (i, line) in text.lines().enumerate() {
            let j: serde_json::Value = serde_json::from_str(line)?;
            let mut seed = vec![0];
            seed.extend((i as u16).to_le_bytes());
            seed.push(255);
            seed.extend(unhex(&j["in"]));
            self.put("classes", &i.to_string(), &seed)?;
        }
        Ok(())
    }

    /// Objects as four releases of Ceph encode them.
    fn objects(&self) -> anyhow::Result<()> {
        let unpacked = self.corpus.with_file_name("ceph-objects");
        if !unpacked.exists() {
            std::fs::create_dir_all(&unpacked)?;
            let path = root().join("tests/data/objects.tar.gz");
            must(Command::new("tar").arg("xzf").arg(&path).arg("-C").arg(&unpacked))?;
        }
        for release in std::fs::read_dir(unpacked)?.flatten() {
            let number = release.file_name().to_string_lossy().into_owned();
            for (kind, target) in OBJECTS {
                for (name, bytes) in files(&release.path().join(kind), "")? {
                    self.put(target, &format!("{number}-{kind}-{name}"), &bytes)?;
                }
            }
        }
        Ok(())
    }

    /// Capability texts that a real monitor judged, and recorded payloads of cephx.
    fn auth(&self) -> anyhow::Result<()> {
        let table = std::fs::read_to_string(
            root().join("crates/spirula-auth/tests/data/caps-16.2.15.jsonl"),
        )?;
        for (i, line) in table.lines().enumerate() {
            let [service, text, _]: [String; 3] = serde_json::from_str(line)?;
            let number =
                ["mon", "osd", "mgr", "mds"].iter().position(|s| *s == service).unwrap_or_default();
            self.put("caps", &i.to_string(), &[&[number as u8][..], text.as_bytes()].concat())?;
        }
        // Each form of input with nothing, zeros, and one edit.
        for how in 0..24 {
            for (name, rest) in [("empty", &[][..]), ("zeros", &[0; 64]), ("edit", &[30, 0, 1])] {
                self.put("cephx", &format!("{how}-{name}"), &[&[how][..], rest].concat())?;
            }
        }
        Ok(())
    }

    /// A leaf of two pairs, an inner node of two children, and pages of the other kinds.
    fn tree_pages(&self) -> anyhow::Result<()> {
        let page = |kind: u8, level: u8, count: u8, prefix: u8, content: &[u8]| {
            let head =
                [&[0; 16][..], &[kind, level, 1, 0, count, 0, 0, 0, prefix, 0, 0, 0]].concat();
            [&head[..], &(56 + content.len() as u32).to_le_bytes(), content].concat()
        };
        // Prefix "k"; slots; key "a" with value "v", key "b" with one overflow run.
        let leaf = [&b"k\x3d\0\x45\0\x01\0\x01\0\0\0av\x01\0\x0f\0\0\x80b\x09\0\0\0"[..], &[1; 11]]
            .concat();
        let inner = [&b"\x3c\0\x49\0\0\0"[..], &[1; 11], b"\x01\0m", &[2; 11]].concat();
        self.put("tree_page", "leaf", &page(1, 0, 2, 1, &leaf))?;
        self.put("tree_page", "inner", &page(2, 1, 2, 0, &inner))?;
        (3..6).try_for_each(|kind| {
            self.put("tree_page", &format!("kind-{kind}"), &page(kind, 0, 1, 0, &[1; 40]))
        })
    }

    /// Commands as the `ceph` tool sends them.
    fn commands(&self) -> anyhow::Result<()> {
        for (i, command) in [
            r#"{"prefix": "get_command_descriptions"}"#,
            r#"{"prefix": "pg dump", "target": ["mon-mgr", ""], "dumpcontents": ["all"], "format": "json"}"#,
            r#"{"prefix": "osd df", "output_method": "tree", "format": "json"}"#,
            r#"{"prefix": "pg ls", "pool": 1, "states": ["active"]}"#,
            r#"{"prefix": "osd pool stats", "pool_name": "a"}"#,
            r#"{"prefix": "osd pool create", "pool": "p", "pg_num": 8, "pool_type": "replicated"}"#,
            r#"{"prefix": "osd pool set", "pool": "a", "var": "size", "val": "2"}"#,
            r#"{"prefix": "osd out", "ids": ["0", "osd.1"]}"#,
            r#"{"prefix": "config set", "who": "osd", "name": "osd_max_backfills", "value": "3"}"#,
            r#"{"prefix": "osd tree", "epoch": 1, "states": ["up"]}"#,
        ]
        .into_iter()
        .enumerate()
        {
            for how in [0, 4, 1] {
                self.put("manager", &format!("command-{i}-{how}"), &[&[how], command.as_bytes()].concat())?;
            }
            let step = [0, 0xf9, command.len() as u8];
            self.put("monitor", &format!("text-{i}"), &[&step, command.as_bytes()].concat())?;
        }
        for number in 0..=255 {
            for pick in [14, 18, 27] {
                let steps = [0, 0, number, pick, 1, 28, 2, pick, 0, number, pick, pick, pick, pick];
                self.put("monitor", &format!("command-{number}-{pick}"), &steps)?;
            }
        }
        Ok(())
    }

    /// A monitor's store of one member with nothing agreed on, and a log of one entry.
    fn mon_store(&self) -> anyhow::Result<()> {
        let n = u64::to_le_bytes;
        // Store, member; term, vote, commit; index, term, voters, learners, state.
        let one = [&[1, 0, 0, 0][..], &n(1)].concat();
        let snapshot =
            [&[9; 16][..], &n(1), &n(1), &n(1), &n(1), &n(1), &n(1), &one, &[0; 4], &[0; 4]]
                .concat();
        // Member, hard state, entries.
        let entry = [&n(2)[..], &n(1), &[0], &[2, 0, 0, 0], b"kv"].concat();
        let body = [&n(1)[..], &n(1), &n(1), &n(2), &[1, 0, 0, 0], &entry].concat();
        let record = [&[1, 1][..], &(body.len() as u32).to_le_bytes(), &body].concat();
        let length = (snapshot.len() as u16).to_le_bytes();
        let store = [&[2, 2][..], &length, &snapshot, &[record.len() as u8], &record].concat();
        self.put("mon_store", "one-entry", &store)?;
        self.put("mon_store", "no-entry", &[&[0, 2][..], &length, &snapshot].concat())
    }

    /// A change of each kind in a journal record, a superblock of nothing, and an export's
    /// records of each kind.
    fn store_records(&self) -> anyhow::Result<()> {
        for kind in 1..=24u8 {
            for (how, fill) in [0, 1, 4].into_iter().enumerate() {
                let change = [&[kind][..], &[fill; 60]].concat();
                let seed = [&[0, change.len() as u8, 0, 0][..], &change].concat();
                self.put("store_records", &format!("change-{kind}-{how}"), &seed)?;
            }
        }
        self.put("store_records", "superblock", &[&[1, 1, 0][..], &[0; 300]].concat())?;
        let mut export = vec![2, 1, 33, 0];
        export.extend([7; 33]);
        for kind in 2..=9u8 {
            export.extend([kind, 40, 0].into_iter().chain([0; 40]));
            self.put("store_records", &format!("export-{kind}"), &export)?;
        }
        Ok(())
    }

    /// Frames of secure mode: plain text that the target seals, and raw bytes.
    fn secure_frames(&self) -> anyhow::Result<()> {
        for tag in 1..=22u8 {
            for (codec, how) in [(0, "crc0"), (1, "crc1")] {
                // A preamble of one segment of 16 bytes, whose checksum the target makes
                // right, and the segment with its epilogue.
                let mut preamble = vec![tag, 1, 16, 0, 0, 0, 8, 0];
                preamble.resize(32, 0);
                let rest = [&[1; 16][..], &[0; 16]].concat();
                let record =
                    |plain: &[u8]| [&(plain.len() as u16).to_le_bytes()[..], plain].concat();
                let head = [&preamble[..], &[1; 48]].concat();
                for (name, stream) in [
                    ("inline", [record(&head), record(&rest)].concat()),
                    ("bare", [record(&preamble), record(&rest)].concat()),
                ] {
                    let seed = [&[codec + 2 + 4, 255][..], &stream].concat();
                    self.put("frames", &format!("secure-{how}-{tag}-{name}"), &seed)?;
                }
            }
        }
        let message = [&[0x80 + 2, 255, 0, 5, 4, 3][..], &[9; 300]].concat();
        self.put("frames", "secure-message", &message)
    }
}

/// The files of a folder whose names end so; none if it is absent.
fn files(dir: &Path, end: &str) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut all = Vec::new();
    let Ok(entries) = std::fs::read_dir(dir) else { return Ok(all) };
    for e in entries {
        let e = e?;
        let name = e.file_name().to_string_lossy().into_owned();
        if name.ends_with(end) && e.path().is_file() {
            all.push((name, std::fs::read(e.path())?));
        }
    }
    Ok(all)
}

fn unhex(v: &serde_json::Value) -> Vec<u8> {
    let digits = v.as_str().unwrap_or_default().as_bytes();
    let pair = |p: &[u8]| {
        u8::from_str_radix(std::str::from_utf8(p).unwrap_or_default(), 16).unwrap_or_default()
    };
    digits.chunks(2).map(pair).collect()
}
