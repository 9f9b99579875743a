//! `spirula report`: one page of any number of results, that needs nothing but itself.
//!
//! Measurements of the same name are put side by side. Of repeats the least, the median and the
//! greatest are shown; two results differ only where these ranges do not touch ("within noise"
//! else).

mod summary;
pub mod svg;

use crate::args::{Lab, ReportArgs};
use crate::bail;
use crate::path::Probed;
use crate::prelude::*;
use crate::progress::{bytes_rate, ms};
use std::fmt::Write as _;
use svg::{Chart, escape};

const STYLE: &str = "
:root{--bg:#fff;--fg:#1b1f24;--dim:#5b6570;--grid:#e3e7eb;--box:#f5f7f9;--good:#0a7d33;--bad:#c62828;
--c0:#1f6feb;--c1:#d9480f;--c2:#2b8a3e;--c3:#9c36b5;--c4:#b08800;--c5:#0b7285;--c6:#c2255c;--c7:#5c677d}
@media (prefers-color-scheme:dark){:root{--bg:#14181d;--fg:#dfe5ea;--dim:#93a0ac;--grid:#2c343c;--box:#1d232a;--good:#51cf66;--bad:#ff6b6b;
--c0:#6cb0ff;--c1:#ff9a5c;--c2:#69db7c;--c3:#da77f2;--c4:#e6c34a;--c5:#4dd0e1;--c6:#ff7ba9;--c7:#aab4c0}}
*{box-sizing:border-box}body{margin:0 \
auto;max-width:1400px;padding:1.5rem;background:var(--bg);color:var(--fg);font:15px/1.5 \
system-ui,sans-serif}
h1{font-size:1.6rem;margin:0 0 .3rem}h2{font-size:1.25rem;margin:2rem 0 .6rem;border-bottom:1px \
solid var(--grid)}h3{font-size:1rem;margin:1.2rem 0 .3rem}
p{margin:.4rem 0}.dim{color:var(--dim)}.good{color:var(--good);font-weight:600}.bad{color:var(--bad);font-weight:600}
table{border-collapse:collapse;margin:.6rem \
0;font-variant-numeric:tabular-nums}th,td{padding:.2rem .7rem;text-align:right;border-bottom:1px \
solid var(--grid)}
th:first-child,td:first-child,.left{text-align:left}th{color:var(--dim);font-weight:600}.wide{overflow-x:auto}
pre{background:var(--box);padding:.6rem;overflow-x:auto;white-space:pre-wrap;word-break:break-all;border-radius:4px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:1rem}svg{width:100%;height:auto;background:var(--box);border-radius:4px}
svg text{font:11px system-ui,sans-serif;fill:var(--dim)}svg \
.t{font-size:13px;fill:var(--fg);font-weight:600}svg .g{stroke:var(--grid)}
svg .l{fill:none;stroke-width:1.6}svg .h{stroke-dasharray:4 \
3;stroke-width:1.1}.say{max-width:60rem}.say p{margin:.6rem 0}td,th{white-space:nowrap}
td .left,th .left{display:block;text-align:left}th small,td \
small{display:block;color:var(--dim);font-size:.78em}svg \
.b{opacity:.85;shape-rendering:crispEdges}.charts svg{max-width:720px}.ratios{max-width:1000px}svg \
text.n{paint-order:stroke;stroke:var(--box);stroke-width:3px}
svg .good{fill:var(--good)}svg .bad{fill:var(--bad)}svg .even{fill:var(--dim)}svg \
text.r{fill:var(--fg)}svg .one{stroke:var(--dim)}
.s0{--c:var(--c0)}.s1{--c:var(--c1)}.s2{--c:var(--c2)}.s3{--c:var(--c3)}.s4{--c:var(--c4)}.s5{--c:var(--c5)}.s6{--c:var(--c6)}.s7{--c:var(--c7)}
svg .l{stroke:var(--c)}svg .d,svg .b,svg text.n{fill:var(--c)}
@media print{@page{margin:14mm}:root{--bg:#fff;--fg:#000;--dim:#444;--grid:#ccc;--box:#fff;--good:#0a7d33;--bad:#c62828;
--c0:#1f6feb;--c1:#d9480f;--c2:#2b8a3e;--c3:#9c36b5;--c4:#b08800;--c5:#0b7285;--c6:#c2255c;--c7:#5c677d}
body{max-width:none;padding:0;font-size:10pt}.wide{overflow:visible}table{font-size:7.5pt}th,td{padding:.1rem .3rem}td,th{white-space:normal}
.charts{grid-template-columns:1fr \
1fr}svg,tr{break-inside:avoid}h2,h3{break-after:avoid}svg{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
";

/// Head of a column of ratios: as in the page's beginning, what the first did by what the one of
/// this line did.
const BY_THIS: &str = "op/s of the first, by these";

/// Least, median and greatest of something.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// Least.
    pub min: f64,
    /// Median.
    pub median: f64,
    /// Greatest.
    pub max: f64,
    /// How many there were.
    pub n: usize,
}

impl Range {
    /// Of these; `None` of none.
    pub fn of(mut all: Vec<f64>) -> Option<Self> {
        all.retain(|v| v.is_finite());
        all.sort_by(f64::total_cmp);
        let n = all.len();
        let middle = [all.get(n.checked_sub(1)? / 2)?, all.get(n / 2)?];
        Some(Self {
            min: *all.first()?,
            median: (middle[0] + middle[1]) / 2.0,
            max: *all.last()?,
            n,
        })
    }

    fn touches(&self, other: &Self) -> bool {
        self.min <= other.max && other.min <= self.max
    }

    /// How this compares with `other`, in words.
    pub fn against(&self, other: &Self) -> String {
        if other.median == 0.0 {
            return "—".into();
        }
        let ratio = format!("{:.2}×", self.median / other.median);
        match (self.n.min(other.n), self.touches(other)) {
            // Of one value nobody knows the noise.
            (0 | 1, _) => format!("{ratio} (one run each: noise unknown)"),
            (_, true) => format!("{ratio} (within noise)"),
            (_, false) => ratio,
        }
    }

    fn show(&self, unit: impl Fn(f64) -> String) -> String {
        if self.n == 1 {
            unit(self.median)
        } else {
            format!("{}\n{} – {}", unit(self.median), unit(self.min), unit(self.max))
        }
    }
}

fn text(v: &Value) -> String {
    match v {
        Value::String(s) => s.clone(),
        Value::Null => "—".into(),
        other => other.to_string(),
    }
}

fn number(v: &Value) -> f64 {
    v.as_f64().unwrap_or(f64::NAN)
}

fn list(v: &Value) -> impl Iterator<Item = &Value> {
    v.as_array().into_iter().flatten()
}

/// Measurements of one name in one result.
fn named<'a>(result: &'a Value, name: &str) -> Vec<&'a Value> {
    list(&result["runs"]).filter(|r| r["name"] == name).collect()
}

/// What each result is called: by its label, and a number where others of that label measured the
/// same.
fn labels(results: &[Value]) -> Vec<String> {
    let same = |a: &Value, b: &Value| {
        let shared = list(&a["runs"]).any(|r| list(&b["runs"]).any(|o| o["name"] == r["name"]));
        a["label"] == b["label"] && (shared || a["runs"] == b["runs"])
    };
    let twice = |r: &Value| results.iter().filter(|o| same(r, o)).count() > 1;
    let named = |(i, r): (usize, &Value)| {
        let label = text(&r["label"]);
        if twice(r) { format!("{label} #{}", i + 1) } else { label }
    };
    results.iter().enumerate().map(named).collect()
}

/// A cell: what stands after the first line of a text is small.
fn cell(text: &str) -> String {
    match text.split_once('\n') {
        Some((first, rest)) => format!("{}<small>{}</small>", escape(first), escape(rest)),
        None => escape(text),
    }
}

/// A table; the first row is its head. Cells are HTML.
fn table(rows: &[Vec<String>]) -> String {
    let mut out = String::from("<div class=\"wide\"><table>");
    for (i, row) in rows.iter().enumerate() {
        let cell = if i == 0 { "th" } else { "td" };
        out += "<tr>";
        for c in row {
            // Writing to a string does not fail.
            let _ = write!(out, "<{cell}>{c}</{cell}>");
        }
        out += "</tr>";
    }
    out + "</table></div>"
}

/// Memory as the kernel tells it (`16384 kB`), in GiB.
fn memory(v: &Value) -> String {
    let text = text(v);
    match text.strip_suffix(" kB").and_then(|kib| kib.trim().parse::<f64>().ok()) {
        Some(kib) => format!("{:.1} GiB", kib / f64::from(1 << 20)),
        None => text,
    }
}

/// Which machines and which clusters it is about: on others the figures are others.
fn measured_on(results: &[Value]) -> String {
    let (mut hosts, mut clusters) = (Vec::new(), Vec::new());
    for r in results {
        let e = &r["environment"];
        if e["host"].is_string() {
            let host = format!(
                "{} ({:.0} cores of {}, {})",
                text(&e["host"]),
                number(&e["cores"]),
                text(&e["cpu"]),
                memory(&e["memory"])
            );
            if !hosts.contains(&host) {
                hosts.push(host);
            }
        }
        for version in list(&r["cluster"]["versions"]).map(text) {
            if !clusters.contains(&version) {
                clusters.push(version);
            }
        }
    }
    if hosts.is_empty() {
        return String::new();
    }
    let of = if clusters.is_empty() {
        String::new()
    } else {
        format!(", of {}", clusters.join(", and of "))
    };
    format!(
        "<p class=\"dim\">{}</p>",
        escape(&format!("Measured on {}{of}.", hosts.join(", and on ")))
    )
}

fn environment(results: &[Value], labels: &[String]) -> String {
    let mut rows = vec![
        ["", "host", "CPU", "cores", "memory", "kernel", "system", "cluster", "pool", "begun"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for (r, label) in results.iter().zip(labels) {
        let e = &r["environment"];
        let versions: Vec<String> = list(&r["cluster"]["versions"]).map(text).collect();
        let p = &r["pool"];
        let pool = if p.is_object() {
            format!(
                "{}: size {}, {} PGs, {} OSDs, {} disks",
                text(&p["name"]),
                p["size"],
                p["pg_num"],
                p["osds"],
                p["disks"]
            )
        } else {
            "—".into()
        };
        let mut cells =
            [&e["host"], &e["cpu"], &e["cores"], &e["memory"], &e["kernel"], &e["os"]].map(text);
        cells[3] = memory(&e["memory"]);
        let mut row = vec![label.clone()];
        row.extend(cells);
        row.extend([
            if versions.is_empty() { "—".into() } else { versions.join(", ") },
            pool,
            text(&r["started"]),
        ]);
        rows.push(row.iter().map(|c| escape(c)).collect());
    }
    // One line for all that was made in one place.
    let (head, mut seen) = (rows.remove(0), Vec::<Vec<String>>::new());
    for row in rows {
        let place = |r: &Vec<String>| r.iter().skip(1).take(8).cloned().collect::<Vec<_>>();
        if !seen.iter().any(|s| place(s) == place(&row)) {
            seen.push(row);
        }
    }
    seen.insert(0, head);
    let mut out = table(&seen);
    for (r, label) in results.iter().zip(labels) {
        let _ = write!(
            out,
            "<p class=\"dim\">{} was made by</p><pre>{}</pre>",
            escape(label),
            escape(&text(&r["command"]))
        );
    }
    out
}

fn measurement(name: &str, results: &[Value], labels: &[String]) -> String {
    let mut rows = vec![
        [
            "",
            "runs",
            "op/s",
            BY_THIS,
            "throughput",
            "mean",
            "p50",
            "p99",
            "p99.9",
            "max",
            "client CPU each",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    let mut first: Option<Range> = None;
    let mut notes = String::new();
    let (mut latency, mut series, mut spread) = (Vec::new(), Vec::new(), Vec::new());
    for (result, label) in results.iter().zip(labels) {
        let runs = named(result, name);
        let of = |f: &dyn Fn(&Value) -> f64| Range::of(runs.iter().map(|r| f(r)).collect());
        let Some(iops) = of(&|r| number(&r["found"]["iops"])) else { continue };
        let rate = of(&|r| number(&r["found"]["bytes_per_s"]));
        let lat = |q: &'static str| {
            of(&move |r| number(&r["found"]["latency_ms"][q])).map_or("—".into(), |v| v.show(ms))
        };
        let cpu = of(&|r| number(&r["used"]["client_cpu_us_per_op"]))
            .map_or("—".into(), |v| v.show(|v| format!("{v:.1} µs")));
        let against = first.as_ref().map_or(String::new(), |f| f.against(&iops));
        first.get_or_insert(iops);
        let rate = rate.filter(|r| r.max > 0.0).map_or("—".into(), |v| v.show(bytes_rate));
        let row = [
            label.clone(),
            iops.n.to_string(),
            iops.show(|v| format!("{v:.0}")),
            against.replacen(" (", "\n(", 1),
            rate,
            lat("mean"),
            lat("p50"),
            lat("p99"),
            lat("p99.9"),
            lat("max"),
            cpu,
        ];
        rows.push(row.iter().map(|c| cell(c)).collect());
        let Some(last) = runs.last() else { continue };
        let mut said = Vec::new();
        if let Some(expected) = last["expected"]["iops"].as_f64() {
            let part = 100.0 * iops.median / expected.max(1e-9);
            // The arithmetic is that of one request after the other.
            let more = if part > 105.0 {
                "; more than it, for what is in flight together shares syncs"
            } else {
                ""
            };
            said.push(format!(
                "expected {expected:.0} op/s ({}): {part:.0} % of it were reached{more}",
                text(&last["expected"]["how"])
            ));
        }
        if let Some(what) = last["bottleneck"]["what"].as_str() {
            said.push(format!("bottleneck: {what}, for {}", text(&last["bottleneck"]["evidence"])));
        }
        if let Some(word) = last["verdict"].as_str() {
            said.push(word.to_owned());
        }
        let told = text(&last["bottleneck"]["evidence"]).contains("busy");
        said.extend(cpu_words(&last["used"], told));
        if !said.is_empty() {
            let _ = write!(notes, "<p><b>{}</b>: {}</p>", escape(label), escape(&said.join(". ")));
        }
        latency.push((
            label.clone(),
            list(&last["found"]["histogram_ms"])
                .map(|p| (number(&p[0]), number(&p[1])))
                .collect::<Vec<_>>(),
        ));
        series.push((
            label.clone(),
            whole_seconds(last)
                .into_iter()
                .map(|p| (number(&p["t"]), number(&p["ops"])))
                .collect::<Vec<_>>(),
        ));
        spread.push((label.clone(), distribution(&runs)));
    }
    if rows.len() < 2 {
        return String::new();
    }
    let charts = [
        Chart {
            title: "operations a second, over time".into(),
            x: "seconds".into(),
            y: "op/s".into(),
            lines: series,
            ..Chart::default()
        },
        Chart {
            title: "latency: how many took how long".into(),
            x: "milliseconds".into(),
            y: "operations".into(),
            log_x: true,
            lines: latency,
            ..Chart::default()
        },
        Chart {
            title: "op/s: in how many seconds so many (%), with the normal curve".into(),
            x: "op/s".into(),
            y: "% of seconds".into(),
            lines: spread
                .into_iter()
                .flat_map(|(l, (bars, normal))| {
                    [(l.clone(), bars), (format!("{l}, normal"), normal)]
                })
                .collect(),
            together: 2,
            ..Chart::default()
        },
    ];
    let charts: String = charts.iter().map(Chart::svg).collect();
    format!(
        "<section><h3>{}</h3>{}{notes}<div class=\"charts\">{charts}</div></section>",
        escape(name),
        table(&rows)
    )
}

/// What used the CPU while it was measured; how busy it was only if that was not told.
fn cpu_words(used: &Value, told: bool) -> Option<String> {
    let mut all: Vec<(f64, String)> = list(&used["daemons"])
        .filter_map(|d| Some((d["cpu_us_per_op"].as_f64().filter(|c| *c > 0.0)?, text(&d["name"]))))
        .collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    let sum: f64 = all.iter().map(|d| d.0).sum();
    let shown: Vec<String> =
        all.iter().take(6).map(|(us, name)| format!("{name} {us:.0} µs")).collect();
    let more = if all.len() > 6 { format!(" and {} more", all.len() - 6) } else { String::new() };
    // What is neither the daemons' nor the load generator's, where a result does not say so itself.
    let known: f64 = list(&used["daemons"]).filter_map(|d| d["cores"].as_f64()).sum::<f64>()
        + used["client_cpu_s"].as_f64().unwrap_or(0.0)
            / used["seconds"].as_f64().unwrap_or(1.0).max(0.001);
    let rest = used["busy"]
        .as_f64()
        .zip(used["cores"].as_f64())
        .map_or(0.0, |(busy, cores)| busy * cores - known);
    let others = match used["others_cores"].as_f64().unwrap_or(rest) {
        n if n >= 0.05 => {
            format!(
                ", {n:.2} cores of them by what is neither the cluster's nor the lab's (kernel \
                    threads, other programs)"
            )
        }
        _ => String::new(),
    };
    let busy = format!(
        ". CPUs were {:.0} % busy{others}, and waited for disks {:.0} %",
        100.0 * number(&used["busy"]),
        100.0 * number(&used["iowait"])
    );
    let busy = if told { String::new() } else { busy };
    (!all.is_empty()).then(|| {
        format!(
            "CPU of the daemons for one operation: {sum:.0} µs ({}{more}){busy}",
            shown.join(", ")
        )
    })
}

/// The seconds of a run but for its last one, which is rarely a whole one.
fn whole_seconds(run: &Value) -> Vec<&Value> {
    let all: Vec<&Value> = list(&run["found"]["series"]).collect();
    if all.len() > 2 { all[..all.len() - 1].to_vec() } else { all }
}

type Points = Vec<(f64, f64)>;

/// How the seconds of some runs are distributed over their rates, in per cent, and the normal curve
/// of the same mean and deviation.
fn distribution(runs: &[&Value]) -> (Points, Points) {
    let all: Vec<f64> =
        runs.iter().flat_map(|r| whole_seconds(r)).map(|p| number(&p["ops"])).collect();
    let n = all.len() as f64;
    let (low, high) = all.iter().fold((f64::MAX, f64::MIN), |a, v| (a.0.min(*v), a.1.max(*v)));
    if n < 8.0 || high <= low {
        return (Vec::new(), Vec::new());
    }
    let bins = (n.sqrt().ceil()).clamp(4.0, 24.0);
    let width = (high - low) / bins;
    let bars: Points = (0..bins as usize)
        .map(|i| {
            let (from, to) = (low + i as f64 * width, low + (i + 1) as f64 * width);
            let in_it =
                all.iter().filter(|v| **v >= from && (**v < to || i + 1 == bins as usize)).count()
                    as f64;
            ((from + to) / 2.0, 100.0 * in_it / n)
        })
        .collect();
    let mean = all.iter().sum::<f64>() / n;
    let deviation = (all.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt().max(1e-9);
    let normal = (0..=60)
        .map(|i| {
            let x = mean + (f64::from(i) / 10.0 - 3.0) * deviation;
            let y = (-(x - mean).powi(2) / (2.0 * deviation * deviation)).exp()
                / (deviation * std::f64::consts::TAU.sqrt());
            (x, 100.0 * y * width)
        })
        .collect();
    (bars, normal)
}

/// Tests of disks and directories: a row for each test, columns for each of them alone and with all
/// others.
fn disk(r: &Value, label: &str) -> String {
    let (mut tests, mut places) = (Vec::new(), Vec::new());
    for run in list(&r["runs"]) {
        let test = (text(&run["test"]), number(&run["size"]));
        let place = (text(&run["path"]), run["alone"] != false);
        if !tests.contains(&test) {
            tests.push(test);
        }
        if !places.contains(&place) {
            places.push(place);
        }
    }
    // Alone first.
    places.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
    let mut rows = vec![vec![escape(label)]];
    rows[0].extend(places.iter().map(|(path, alone)| {
        let how = if *alone { "alone" } else { "with all others" };
        format!("{}<small>{how}</small>", escape(path))
    }));
    for (test, size) in &tests {
        let words = match test.as_str() {
            "seqwrite" => "written in order",
            "seqread" => "read in order",
            "randwrite" => "written at random",
            "randread" => "read at random",
            "syncwrite" => "written and synced, one after the other",
            other => other,
        };
        let mut row =
            vec![cell(&format!("{words}\n{test}, {} each", crate::progress::size(*size as u64)))];
        for (path, alone) in &places {
            let runs: Vec<&Value> = list(&r["runs"])
                .filter(|r| {
                    r["test"] == test.as_str()
                        && r["path"] == path.as_str()
                        && (r["alone"] != false) == *alone
                })
                .collect();
            let of = |f: &dyn Fn(&Value) -> f64| Range::of(runs.iter().map(|r| f(r)).collect());
            let rate = of(&|r| number(&r["found"]["bytes_per_s"]));
            let iops = of(&|r| number(&r["found"]["iops"]));
            let p99 = of(&|r| number(&r["found"]["latency_ms"]["p99"]))
                .map_or("—".into(), |v| ms(v.median));
            row.push(match rate.zip(iops) {
                Some((rate, iops)) => cell(&format!(
                    "{}\n{:.0} op/s, p99 {p99}",
                    bytes_rate(rate.median),
                    iops.median
                )),
                None => "—".into(),
            });
        }
        rows.push(row);
    }
    let mut said: Vec<String> = Vec::new();
    for run in list(&r["runs"]) {
        if let Some(word) = run["verdict"].as_str() {
            let line = format!("<p>{}: {}</p>", escape(&text(&run["path"])), escape(word));
            // Of repeats the last is told.
            said.retain(|l| !l.starts_with(&format!("<p>{}: ", escape(&text(&run["path"])))));
            said.push(line);
        }
    }
    format!("<section>{}{}</section>", table(&rows), said.concat())
}

/// Measurements of the network, in one table: each has a row, each result a column.
fn plain(names: &[String], results: &[Value], labels: &[String]) -> String {
    let mut rows = vec![
        std::iter::once(String::new()).chain(labels.iter().map(|l| escape(l))).collect::<Vec<_>>(),
    ];
    let mut verdicts = String::new();
    for name in names {
        let one = |r: &Value| {
            let runs = named(r, name);
            let of = |f: &dyn Fn(&Value) -> f64| Range::of(runs.iter().map(|r| f(r)).collect());
            let last = runs.last()?;
            if let Some(path) = Probed::from_json(&last["found"]).filter(|_| last["mode"] == "path")
            {
                return Some(cell(&path.words()));
            }
            let ping = last["mode"] == "echo";
            let rate = of(&|r| number(&r["found"]["bytes_per_s"]))?;
            let iops = of(&|r| number(&r["found"]["iops"]))?;
            let p99 = of(&|r| number(&r["found"]["latency_ms"]["p99"]))
                .map_or(String::new(), |v| ms(v.median));
            let mean = of(&|r| number(&r["found"]["latency_ms"]["mean"]))
                .map_or(String::new(), |v| ms(v.median));
            Some(if ping {
                cell(&format!("{mean}\np99 {p99}"))
            } else if last["test"].is_string() {
                cell(&format!("{}\n{:.0} op/s, p99 {p99}", bytes_rate(rate.median), iops.median))
            } else {
                cell(&bytes_rate(rate.median))
            })
        };
        rows.push(
            std::iter::once(escape(name))
                .chain(results.iter().map(|r| one(r).unwrap_or("—".into())))
                .collect(),
        );
        for last in results.iter().filter_map(|r| named(r, name).last().copied()) {
            let path = Probed::from_json(&last["found"]).filter(|_| last["mode"] == "path");
            let words = last["verdict"].as_str().map(str::to_owned).into_iter();
            for word in words.chain(path.iter().flat_map(Probed::advice)) {
                let _ = write!(verdicts, "<p>{}: {}</p>", escape(name), escape(&word));
            }
        }
    }
    format!("<section>{}{verdicts}</section>", table(&rows))
}

/// Users against seconds, as in the thesis's figure 12.
fn users(results: &[Value], labels: &[String]) -> String {
    let mut lines = Vec::new();
    for (r, label) in results.iter().zip(labels) {
        for (name, which) in [("", "mean"), (", least", "min"), (", most", "max")] {
            let points: Points = list(&r["runs"])
                .filter(|r| r["users"].is_number())
                .map(|r| (number(&r["users"]), number(&r["found"]["seconds"][which])))
                .collect();
            lines.push((format!("{label}{name}"), points));
        }
    }
    let svg = Chart {
        title: "seconds by users (dashed: least and most of the repeats)".into(),
        x: "users".into(),
        y: "seconds".into(),
        lines,
        together: 3,
        ..Chart::default()
    }
    .svg();
    if svg.is_empty() {
        return svg;
    }
    let mut counts: Vec<u64> =
        results.iter().flat_map(|r| list(&r["runs"])).filter_map(|r| r["users"].as_u64()).collect();
    counts.sort_unstable();
    counts.dedup();
    let mut rows = vec![
        std::iter::once("users".to_owned())
            .chain(labels.iter().map(|l| escape(l)))
            .collect::<Vec<_>>(),
    ];
    for n in counts {
        let of = |r: &Value| {
            let run = list(&r["runs"]).find(|run| run["users"] == n)?;
            let s = |which: &str| number(&run["found"]["seconds"][which]);
            Some(match s("max") > s("min") {
                true => cell(&format!("{:.3} s\n{:.3} – {:.3}", s("mean"), s("min"), s("max"))),
                false => cell(&format!("{:.3} s", s("mean"))),
            })
        };
        rows.push(
            std::iter::once(n.to_string())
                .chain(results.iter().map(|r| of(r).unwrap_or("—".into())))
                .collect(),
        );
    }
    format!(
        "<section><h3>mysql: seconds by users</h3><div class=\"charts\">{svg}</div>{}</section>",
        table(&rows)
    )
}

fn drill(r: &Value, label: &str) -> String {
    let v = &r["verdict"];
    let word = |key: &str, what: &str| {
        let n = v[key].as_u64();
        let class = if n == Some(0) { "good" } else { "bad" };
        format!(
            "<span class=\"{class}\">{} {what}</span>",
            n.map_or("?".to_owned(), |n| n.to_string())
        )
    };
    let seconds = |key: &str, words: &str, none: &str| {
        v[key].as_f64().map_or_else(|| none.to_owned(), |s| format!("{words} {s:.1} s"))
    };
    let mut out = format!("<section><h3>{}: {}</h3>", escape(label), escape(&text(&r["what"])));
    if let Some(why) = r["failed"].as_str() {
        let _ = write!(out, "<p class=\"bad\">{}</p>", escape(why));
    }
    let _ = write!(
        out,
        "<p>{}, {}, {}; {} writes were acknowledged, {} reads compared.</p>\
         <p>Longest wait of a request {}, longest time without any answer {}, {}, {}, about {} MB \
         recovered, at most {} copies of \
         objects missing.</p>",
        word("lost", "acknowledged writes lost"),
        word("wrong", "reads with wrong bytes"),
        word("errors", "errors"),
        v["writes"],
        v["reads"],
        ms(number(&v["longest_ms"])),
        ms(number(&v["silence_ms"])),
        seconds(
            "detect_s",
            "the cluster noticed after",
            "there was nothing that the cluster had to notice"
        ),
        seconds(
            "clean_s",
            "after it was put back it was clean in",
            "it was not clean again while it was watched"
        ),
        (number(&v["moved_bytes"]) / 1e6).round(),
        v["degraded_most"]
    );
    for t in list(&v["told"]) {
        let _ = write!(out, "<p class=\"bad\">{}</p>", escape(&text(t)));
    }
    let mut rows =
        vec![["phase", "seconds", "op/s", "p50", "p99", "max"].map(str::to_owned).to_vec()];
    for p in list(&r["phases"]) {
        rows.push(vec![
            escape(&text(&p["name"])),
            format!("{:.1}", number(&p["seconds"])),
            format!("{:.1}", number(&p["iops"])),
            ms(number(&p["p50"])),
            ms(number(&p["p99"])),
            ms(number(&p["max"])),
        ]);
    }
    out += &table(&rows);
    let mut rows =
        vec![["at", "<span class=\"left\">what happened</span>"].map(str::to_owned).to_vec()];
    let of = |e: &Value| {
        vec![
            format!("{:.2} s", number(&e["t"])),
            format!("<span class=\"left\">{}</span>", escape(&text(&e["text"]))),
        ]
    };
    rows.extend(list(&r["events"]).map(of));
    out += &table(&rows);
    let samples: Vec<(f64, Vec<(String, f64)>)> = list(&r["timeline"])
        .map(|s| {
            let states = s["states"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(n, c)| (n.clone(), number(c)))
                .collect();
            (number(&s["t"]), states)
        })
        .collect();
    let end = samples.last().map_or(0.0, |s| s.0 + 0.5);
    let seconds = whole_seconds(&r["runs"][0]);
    let line =
        |key: &str| seconds.iter().map(|p| (number(&p["t"]), number(&p[key]))).collect::<Points>();
    let latency = Chart {
        title: "latency, by the second of the answer".into(),
        x: "seconds".into(),
        y: "milliseconds".into(),
        lines: vec![
            ("max".into(), line("max")),
            ("p99".into(), line("p99")),
            ("p50".into(), line("p50")),
        ],
        ..Chart::default()
    };
    let rate = Chart {
        title: "answers a second".into(),
        x: "seconds".into(),
        y: "op/s".into(),
        lines: vec![("op/s".into(), line("ops"))],
        ..Chart::default()
    };
    let _ = write!(
        out,
        "<div class=\"charts\">{}{}{}</div></section>",
        svg::states("states of PGs", &samples, end),
        latency.svg(),
        rate.svg()
    );
    out
}

/// Results that are shown together, with what somebody says of them.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// Its heading.
    pub title: String,
    /// Words about it, by paragraphs.
    pub about: Vec<String>,
    /// Its results.
    pub results: Vec<Value>,
}

/// Results of one label about one cluster are repeats of each other, where somebody gave the label.
fn together(results: &[Value]) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::new();
    for r in results.iter().filter(|r| list(&r["runs"]).next().is_some() || r["kind"] == "drill") {
        let key = |r: &Value| {
            [&r["kind"], &r["what"], &r["label"], &r["cluster"]["fsid"]].map(Clone::clone)
        };
        let mine = key(r);
        let named = r["kind"] == "bench" && r["label"] != r["what"] && mine[3].is_string();
        match out.iter_mut().find(|o| named && key(o) == mine) {
            Some(o) => {
                let more = r["runs"].as_array().cloned().unwrap_or_default();
                if let Some(runs) = o["runs"].as_array_mut() {
                    runs.extend(more);
                }
            }
            None => out.push(r.clone()),
        }
    }
    out
}

/// What came of it, a line each: of whom the rates and the ratio were.
fn overview(names: &[String], results: &[Value], labels: &[String]) -> String {
    let mut rows = vec![["load", "whose", "op/s", "p99", BY_THIS].map(str::to_owned).to_vec()];
    for name in names {
        let mut first: Option<Range> = None;
        for (r, label) in results.iter().zip(labels) {
            let runs = named(r, name);
            let of = |f: &dyn Fn(&Value) -> f64| Range::of(runs.iter().map(|r| f(r)).collect());
            let Some(iops) = of(&|r| number(&r["found"]["iops"])) else { continue };
            let p99 = of(&|r| number(&r["found"]["latency_ms"]["p99"]))
                .map_or("—".into(), |v| ms(v.median));
            let against = first.as_ref().map_or(String::new(), |f| f.against(&iops));
            let again = first.is_some();
            first.get_or_insert(iops);
            let name = if again { "" } else { name.as_str() };
            rows.push(
                [name, label, &format!("{:.0}", iops.median), &p99, &against].map(escape).to_vec(),
            );
        }
    }
    if rows.len() < 2 { String::new() } else { table(&rows) }
}

/// Names of measurements, in their order, of results that `of` takes.
fn names(results: &[Value], of: impl Fn(&Value) -> bool) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for run in
        results.iter().filter(|r| r["kind"] == "bench" && of(r)).flat_map(|r| list(&r["runs"]))
    {
        let name = text(&run["name"]);
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

fn of_kind(results: &[Value], f: impl Fn(&Value) -> bool) -> Vec<Value> {
    results.iter().filter(|r| f(r)).cloned().collect()
}

fn drills_of(results: &[Value]) -> Vec<Value> {
    of_kind(results, |r| r["kind"] == "drill")
}

fn mysql_of(results: &[Value]) -> Vec<Value> {
    of_kind(results, |r| r["kind"] == "bench" && r["what"] == "mysql")
}

/// What measured a cluster, and is put side by side.
fn loads_of(results: &[Value]) -> Vec<Value> {
    of_kind(results, |r| {
        r["kind"] == "bench" && !["disk", "net", "mysql"].iter().any(|w| r["what"] == *w)
    })
}

fn part(p: &Part, many: bool, out: &mut String) {
    let all_results = together(&p.results);
    let drills = drills_of(&all_results);
    let machine = of_kind(&all_results, |r| {
        r["kind"] == "bench" && (r["what"] == "disk" || r["what"] == "net")
    });
    let (mysql, loads) = (mysql_of(&all_results), loads_of(&all_results));
    let title = if p.title.is_empty() { "Measurements" } else { &p.title };
    if many || p.title.len() + machine.len() + mysql.len() + loads.len() > 0 {
        let _ = write!(out, "<h2>{}</h2>", escape(title));
    }
    if !p.about.is_empty() {
        let said: String = p.about.iter().map(|t| format!("<p>{}</p>", escape(t))).collect();
        let _ = write!(out, "<div class=\"say\">{said}</div>");
    }
    let asked = names(&loads, |_| true);
    *out += &overview(&asked, &loads, &labels(&loads));
    let (disks, nets) =
        (of_kind(&machine, |r| r["what"] == "disk"), of_kind(&machine, |r| r["what"] == "net"));
    disks.iter().zip(labels(&disks)).for_each(|(r, label)| *out += &disk(r, &label));
    let some = names(&nets, |_| true);
    if !some.is_empty() {
        *out += &plain(&some, &nets, &labels(&nets));
    }
    *out += &users(&mysql, &labels(&mysql));
    asked.iter().for_each(|name| *out += &measurement(name, &loads, &labels(&loads)));
    if !drills.is_empty() {
        if p.title.is_empty() {
            *out += "<h2>Drills</h2>";
        }
        drills.iter().for_each(|r| *out += &drill(r, &text(&r["label"])));
    }
}

/// The page.
pub fn page(parts: &[Part]) -> String {
    let has = |r: &&Value| list(&r["runs"]).next().is_some();
    let results: Vec<Value> =
        parts.iter().flat_map(|p| p.results.iter()).filter(has).cloned().collect();
    let labels = labels(&results);
    let mut said: Vec<&str> = Vec::new();
    for r in &results {
        let label = r["label"].as_str().unwrap_or("?");
        if !said.contains(&label) {
            said.push(label);
        }
    }
    let mut out = format!(
        "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\"><head><meta \
            charset=\"utf-8\"/>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/><title>Report of \
         the lab</title><style>{}</style></head><body>\
         <h1>Report of the lab</h1><p class=\"dim\">{} results: {}. Of repeats the median is \
         shown, and small the least and the greatest; \
         “within noise”: these ranges touch. Times are by 'spirula bench', latencies those of \
         single operations.</p>{}",
        escape(STYLE).replace("&gt;", ">").replace("&quot;", "\""),
        results.len(),
        escape(&said.join(", ")),
        measured_on(&results)
    );
    out += &summary::summary(parts);
    parts.iter().for_each(|p| part(p, parts.len() > 1, &mut out));
    out += "<h2>Environment, and how to make it again</h2>";
    out + &environment(&results, &labels) + "</body></html>\n"
}

/// What one argument of `spirula report` holds. A directory may have an `about.txt`: its first line
/// is a heading, its paragraphs stand above the figures.
fn part_of(path: &Path) -> Result<Part> {
    let results = crate::results::below(path)?;
    let at = path.join("about.txt");
    if !path.is_dir() || !at.exists() {
        return Ok(Part { results, ..Part::default() });
    }
    let said = std::fs::read_to_string(&at).with_context(|| format!("read {}", at.display()))?;
    let (title, rest) = said.split_once('\n').unwrap_or((&said, ""));
    let paragraphs = rest
        .split("\n\n")
        .map(|p| p.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|p| !p.is_empty());
    Ok(Part { title: title.trim().to_owned(), about: paragraphs.collect(), results })
}

/// `spirula report`.
///
/// # Errors
/// When a result cannot be read, or the page not be written.
pub fn report(lab: &Lab, a: &ReportArgs) -> Result<()> {
    let mut parts: Vec<Part> = Vec::new();
    for path in &a.results {
        let mut new = part_of(path)?;
        // Whatever has no heading of its own is put side by side.
        match parts.iter_mut().find(|p| p.title.is_empty() && new.title.is_empty()) {
            Some(old) => old.results.append(&mut new.results),
            None => parts.push(new),
        }
    }
    let results: usize = parts.iter().map(|p| p.results.len()).sum();
    if results == 0 {
        bail!("no result of 'spirula bench' or 'spirula drill' is there");
    }
    let page = page(&parts);
    std::fs::write(&a.out, &page).with_context(|| format!("write {}", a.out.display()))?;
    lab.say(format!("{results} results in {}", a.out.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_numbered_only_where_they_clash() {
        let result = |label: &str, loads: &[&str]| {
            let runs: Vec<Value> = loads.iter().map(|l| json!({"name": l})).collect();
            json!({"label": label, "runs": runs})
        };
        let of = |all: &[Value]| labels(all).join(", ");
        // Writes and reads of one cluster are two results of one label, and of no load there are
        // two.
        let apart = [
            result("ours", &["w"]),
            result("theirs", &["w"]),
            result("ours", &["r"]),
            result("theirs", &["r"]),
        ];
        assert_eq!(of(&apart), "ours, theirs, ours, theirs");
        assert_eq!(of(&[result("ours", &["w", "r"]), result("ours", &["r"])]), "ours #1, ours #2");
        // Drills have no runs: by them two of one label differ in nothing.
        assert_eq!(
            of(&[result("ours", &[]), result("ours", &[]), result("theirs", &[])]),
            "ours #1, ours #2, theirs"
        );
    }

    #[test]
    fn repeats_that_touch_differ_by_noise_only() {
        let r = |v: &[f64]| Range::of(v.to_vec()).unwrap();
        assert_eq!(r(&[3.0, 1.0, 2.0, 10.0]), Range { min: 1.0, median: 2.5, max: 10.0, n: 4 });
        assert_eq!(r(&[10.0, 11.0, 12.0]).against(&r(&[9.0, 10.0, 10.5])), "1.10× (within noise)");
        assert_eq!(r(&[20.0, 21.0]).against(&r(&[10.0, 10.0])), "2.05×");
        assert!(r(&[20.0]).against(&r(&[10.0])).contains("noise unknown"));
        assert!(Range::of(vec![f64::NAN]).is_none());
    }

    #[test]
    fn one_label_of_one_cluster_is_one_column() {
        let r = |label: &str, fsid: &str, iops: f64| json!({"kind": "bench", "what": "block", "label": label, "cluster": {"fsid": fsid}, "runs": [{"name": "x", "found": {"iops": iops}}]});
        let all = [
            r("a", "1", 1.0),
            r("b", "2", 2.0),
            r("a", "1", 3.0),
            r("a", "3", 4.0),
            r("block", "1", 5.0),
            r("block", "1", 6.0),
        ];
        let runs: Vec<usize> =
            together(&all).iter().map(|r| r["runs"].as_array().unwrap().len()).collect();
        assert_eq!(runs, [2, 1, 1, 1, 1], "who gave no label meant no repeats");
    }

    #[test]
    fn a_page_holds_what_the_results_say_and_needs_nothing_else() {
        let run = |iops: f64| {
            json!({"name": "write <4K>", "found": {"iops": iops, "latency_ms": {"p50": 1.0}, "histogram_ms": [[1.0, 5], [2.0, 3]],
                "series": (1..20).map(|t| json!({"t": t, "ops": 100 + t % 4})).collect::<Vec<_>>()},
                "expected": {"iops": 100.0, "how": "1 disk"}, "bottleneck": {"what": "disk", "evidence": "vda busy"}})
        };
        let bench = |label: &str, a: f64| {
            json!({"kind": "bench", "what": "objects", "label": label, "cluster": {"versions": ["C \
                1"]},
            "environment": {"host": "h", "cores": 2.0, "cpu": "P", "memory": "3145728 kB"}, "runs": [run(a), run(a + 1.0)]})
        };
        let drill = json!({"kind": "drill", "what": "osd-kill", "label": "d", "verdict": {"lost": 0, "wrong": 2, "errors": 0},
            "phases": [{"name": "before", "p99": 1.0}], "events": [{"t": 1.0, "text": "a & b"}],
            "timeline": [{"t": 0.0, "states": {"active+clean": 8}}, {"t": 1.0, "states": {"peering": 8}}], "runs": [{"name": "osd-kill"}]});
        let results = vec![bench("a", 50.0), bench("b", 70.0), drill];
        let page =
            page(&[Part { title: "T <1>".into(), about: vec!["said & done".into()], results }]);
        for want in [
            "write &lt;4K&gt;",
            "<h2>T &lt;1&gt;</h2>",
            "said &amp; done",
            "0.72×",
            "50 % of it",
            "vda busy",
            "class=\"bad\">2 reads",
            "a &amp; b",
            "Measured on h (2 cores of P, 3.0 GiB), of C 1.",
            "there was nothing that the cluster had to notice",
            "<polyline",
            "<rect",
        ] {
            assert!(page.contains(want), "{want}: {page}");
        }
        for bad in ["src=", "href=", "url(", "<script", "@import"] {
            assert!(!page.contains(bad), "{bad}");
        }
        assert_eq!(page.matches("<section>").count(), page.matches("</section>").count());
    }
}
