//! The files that a run leaves: `result.json` with everything, `summary.csv` and `series.csv` for
//! spreadsheets.
//!
//! A result is one JSON object. `format` and [`VERSION`] say what it is; a reader refuses what it
//! does not know. Each element of `runs` is one measurement, or one repeat of it; those that belong
//! together have the same `name`.

use crate::bail;
use crate::prelude::*;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};

/// What `format` says.
pub const FORMAT: &str = "spirula-lab";
/// Version of what is in a result.
pub const VERSION: u64 = 1;

/// A result in the making.
pub struct Results {
    /// Where it is written.
    pub dir: PathBuf,
    value: Value,
}

/// Seconds since 1970, and the same as a person writes it (UTC).
pub fn now() -> (u64, String) {
    let sec = u64::from(spirula_runtime::clock::wall().sec);
    (sec, stamp(sec))
}

/// A time as `2026-11-23T11:37:00Z`.
pub fn stamp(sec: u64) -> String {
    let (days, rest) = (sec / 86_400, sec % 86_400);
    // Days of the civil calendar: eras of 400 years that begin on the first of March.
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (d, m) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    let y = yoe + era * 400 + u64::from(m <= 2);
    format!("{y:04}-{m:02}-{d:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,%+@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// The command line of this process, as a shell takes it.
pub fn command_line() -> String {
    std::env::args().map(|w| quoted(&w)).collect::<Vec<_>>().join(" ")
}

impl Results {
    /// One of `kind` (`bench`, `drill`) about `what`. Where no directory is given it gets one of
    /// its own below `spirula-results`.
    ///
    /// # Errors
    /// When the directory cannot be made or holds a result already.
    pub fn new(kind: &str, what: &str, out: Option<&Path>, label: Option<&str>) -> Result<Self> {
        let (sec, stamp) = now();
        let dir = match out {
            Some(dir) => dir.to_owned(),
            None => PathBuf::from("spirula-results")
                .join(format!("{}-{what}", stamp.replace([':', 'Z'], ""))),
        };
        if dir.join("result.json").exists() {
            bail!("{} holds a result already; give another directory with --out", dir.display());
        }
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        let value = json!({
            "format": FORMAT, "version": VERSION, "kind": kind, "what": what, "label": label.unwrap_or(what),
            "started": stamp, "started_s": sec, "command": command_line(), "environment": crate::used::environment(),
            "runs": [],
        });
        Ok(Self { dir, value })
    }

    /// Sets a part of it.
    pub fn set(&mut self, key: &str, value: Value) {
        self.value[key] = value;
    }

    /// Adds a measurement, and writes all there is: a run that is killed keeps what it has.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn push(&mut self, run: Value) -> Result<()> {
        if let Some(runs) = self.value["runs"].as_array_mut() {
            runs.push(run);
        }
        self.write()
    }

    /// What there is.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Writes the files.
    ///
    /// # Errors
    /// When one cannot be written.
    pub fn write(&self) -> Result<()> {
        let put = |name: &str, text: String| {
            let (path, new) = (self.dir.join(name), self.dir.join(format!("{name}.new")));
            // Made, not found: others may write there, and what they put there may lead elsewhere.
            let made = match fs::remove_file(&new) {
                Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
                _ => File::create_new(&new),
            };
            made.and_then(|mut file| file.write_all(text.as_bytes()))
                .and_then(|()| fs::rename(&new, &path))
                .with_context(|| format!("write {}", path.display()))
        };
        put("summary.csv", summary(&self.value))?;
        put("series.csv", series(&self.value))?;
        put("result.json", format!("{:#}\n", self.value))
    }

    /// Ends it, and says where it is.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(mut self) -> Result<Value> {
        self.set("ended", json!(now().1));
        self.write()?;
        Ok(self.value)
    }
}

fn cell(v: &Value) -> String {
    match v {
        Value::Null => String::new(),
        Value::String(s) if s.contains([',', '"', '\n']) => {
            format!("\"{}\"", s.replace('"', "\"\""))
        }
        Value::String(s) => s.clone(),
        other => other.to_string(),
    }
}

fn runs(v: &Value) -> impl Iterator<Item = &Value> {
    v["runs"].as_array().into_iter().flatten()
}

/// The sum of a figure over daemons, disks or networks; nothing where none has it. The loopback
/// carries what others carry, too.
fn sum(all: &Value, keys: &[&str]) -> Value {
    let of = |v: &Value| keys.iter().filter_map(|k| v[*k].as_f64()).reduce(|a, b| a + b);
    let all = all.as_array().into_iter().flatten().filter(|v| v["name"] != "lo");
    all.filter_map(of).reduce(|a, b| a + b).map_or(Value::Null, |s| json!(round(s, 2)))
}

/// A column, and what stands in it.
type Column = (&'static str, fn(&Value) -> Value);

/// What a measurement used, what could be expected of it, and what held it up.
const USED: [Column; 11] = [
    ("client_cpu_us_per_op", |r| r["used"]["client_cpu_us_per_op"].clone()),
    ("daemons_cpu_us_per_op", |r| sum(&r["used"]["daemons"], &["cpu_us_per_op"])),
    ("cpu_busy", |r| r["used"]["busy"].clone()),
    ("iowait", |r| r["used"]["iowait"].clone()),
    ("disk_read_bytes_per_s", |r| sum(&r["used"]["disks"], &["read_bytes_per_s"])),
    ("disk_written_bytes_per_s", |r| sum(&r["used"]["disks"], &["written_bytes_per_s"])),
    ("net_bytes_per_s", |r| sum(&r["used"]["nets"], &["in_bytes_per_s", "out_bytes_per_s"])),
    ("expected_iops", |r| r["expected"]["iops"].clone()),
    ("expected_how", |r| r["expected"]["how"].clone()),
    ("bottleneck", |r| r["bottleneck"]["what"].clone()),
    ("evidence", |r| r["bottleneck"]["evidence"].clone()),
];

/// One line a measurement.
fn summary(v: &Value) -> String {
    let columns = ["name", "repeat", "mode", "size", "threads", "seconds"];
    let found = ["ops", "errors", "iops", "bytes_per_s", "took_s"];
    let latencies = ["mean", "min", "p50", "p90", "p95", "p99", "p99.9", "p99.99", "max"];
    let mut out = format!(
        "{},{},{},{}\n",
        columns.join(","),
        found.join(","),
        latencies.map(|l| format!("{l}_ms")).join(","),
        USED.map(|(name, _)| name).join(",")
    );
    for r in runs(v) {
        let mut cells: Vec<String> = columns.iter().map(|c| cell(&r[*c])).collect();
        cells.extend(found.iter().map(|c| cell(&r["found"][*c])));
        cells.extend(latencies.iter().map(|c| cell(&r["found"]["latency_ms"][*c])));
        cells.extend(USED.iter().map(|(_, of)| cell(&of(r))));
        out += &(cells.join(",") + "\n");
    }
    out
}

/// One line a second of a measurement.
fn series(v: &Value) -> String {
    let columns = ["t", "ops", "bytes", "p50", "p99", "max"];
    let mut out = format!("name,repeat,{}\n", columns.join(","));
    for r in runs(v) {
        for s in r["found"]["series"].as_array().into_iter().flatten() {
            let cells: Vec<String> = columns.iter().map(|c| cell(&s[*c])).collect();
            // Writing to a string does not fail.
            let _ =
                writeln!(out, "{},{},{}", cell(&r["name"]), cell(&r["repeat"]), cells.join(","));
        }
    }
    out
}

/// Reads a result: a directory, or the file itself.
///
/// # Errors
/// When it cannot be read, or is not what this version knows.
pub fn read(path: &Path) -> Result<Value> {
    let file = if path.is_dir() { path.join("result.json") } else { path.to_owned() };
    let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let v: Value =
        serde_json::from_str(&text).with_context(|| format!("{}: no JSON", file.display()))?;
    if v["format"] != FORMAT {
        bail!("{}: no result of 'spirula bench' or 'spirula drill'", file.display());
    }
    match v["version"].as_u64() {
        Some(VERSION) => Ok(v),
        other => bail!(
            "{}: a result of version {}; this program knows version {VERSION}: take the spirula \
                that made it",
            file.display(),
            other.map_or("unknown".to_owned(), |n| n.to_string())
        ),
    }
}

/// How deep results are looked for.
const DEEP: usize = 3;

/// All results of a directory: its own, and those of the directories in it (as `spirula bench all`
/// and `compare` leave them), in the order of their paths.
///
/// # Errors
/// When one cannot be read, or there is none.
pub fn below(path: &Path) -> Result<Vec<Value>> {
    if !path.is_dir() {
        return Ok(vec![read(path)?]);
    }
    let mut dirs = Vec::new();
    find(path, DEEP, &mut dirs)?;
    dirs.sort();
    if dirs.is_empty() {
        bail!("{}: no result of 'spirula bench' or 'spirula drill' is there", path.display());
    }
    dirs.iter().map(|d| read(d)).collect()
}

fn find(path: &Path, deep: usize, into: &mut Vec<PathBuf>) -> Result<()> {
    if path.join("result.json").exists() {
        into.push(path.to_owned());
    }
    if deep == 0 {
        return Ok(());
    }
    let look = || format!("look into {}", path.display());
    for entry in fs::read_dir(path).with_context(look)? {
        let entry = entry.with_context(look)?;
        // A link may lead anywhere, also back here.
        if entry.file_type().with_context(look)?.is_dir() {
            find(&entry.path(), deep - 1, into)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_found_again_and_one_of_another_version_is_refused() {
        let dir = std::env::temp_dir().join(format!("spirula-lab-results-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let mut r = Results::new("bench", "objects", Some(&dir), None).unwrap();
        let used = json!({"iowait": 0.25, "daemons": [{"cpu_us_per_op": 2.0}, {"cpu_us_per_op": 3.5}, {"ended": true}],
            "nets": [{"name": "lo", "in_bytes_per_s": 9.0}, {"name": "eth0", "in_bytes_per_s": 1.0, "out_bytes_per_s": 2.0}]});
        r.push(json!({"name": "a, \"b\"", "found": {"ops": 5, "series": [{"t": 1, "ops": 5}]}, "used": used})).unwrap();
        // Somebody puts a link in the way.
        let victim = dir.join("victim");
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, dir.join("result.json.new")).unwrap();
        r.finish().unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert!(
            Results::new("bench", "objects", Some(&dir), None).is_err(),
            "it would be overwritten"
        );
        let v = read(&dir).unwrap();
        assert_eq!(v["runs"][0]["found"]["ops"], 5);
        assert!(fs::read_to_string(dir.join("summary.csv")).unwrap().contains("\"a, \"\"b\"\"\","));
        let summary = fs::read_to_string(dir.join("summary.csv")).unwrap();
        let lines: Vec<&str> = summary.lines().collect();
        assert!(lines[1].ends_with(",,5.5,,0.25,,,3.0,,,,"), "{summary}");
        // The name has a comma of its own.
        assert_eq!(lines[0].split(',').count() + 1, lines[1].split(',').count(), "{summary}");
        assert_eq!(fs::read_to_string(dir.join("series.csv")).unwrap().lines().count(), 2);
        fs::write(dir.join("result.json"), json!({"format": FORMAT, "version": 99}).to_string())
            .unwrap();
        assert!(read(&dir).unwrap_err().to_string().contains("version 99"));
        fs::write(dir.join("result.json"), "{}").unwrap();
        assert!(read(&dir).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(stamp(0), "1970-01-01T00:00:00Z");
        assert_eq!(stamp(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(stamp(1_795_433_827), "2026-11-23T11:37:07Z");
        assert_eq!(quoted("it's"), "'it'\\''s'");
    }
}
