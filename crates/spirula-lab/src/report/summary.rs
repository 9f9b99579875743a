//! What a page says in short, for whoever has to decide: who was faster by how much, what drills
//! lost, and what held it up.
//!
//! Nothing is judged here that the page does not show further down; "within noise" is what the
//! ranges of repeats say.

use super::svg::{self, escape};
use super::{
    Part, Range, drills_of, labels, list, loads_of, mysql_of, named, names, number, table, text,
    together,
};
use crate::prelude::*;
use crate::progress::ms;
use std::fmt::Write as _;

/// One load that two measured.
struct Pair {
    part: String,
    load: String,
    ratio: f64,
    /// The ranges of the repeats are known and do not touch.
    certain: bool,
    /// The ratio of the 99th percentiles of latency.
    p99: f64,
}

/// Loads that more than one measured, by who the first and who the other was.
fn pairs(parts: &[Part]) -> Vec<((String, String), Vec<Pair>)> {
    let mut out: Vec<((String, String), Vec<Pair>)> = Vec::new();
    for p in parts {
        let loads = loads_of(&together(&p.results));
        let labels = labels(&loads);
        for name in names(&loads, |_| true) {
            let of = |r: &Value, key: &dyn Fn(&Value) -> f64| {
                Range::of(
                    named(r, &name).iter().map(|r| key(r)).filter(|v| v.is_finite()).collect(),
                )
            };
            let iops = |r: &Value| number(&r["found"]["iops"]);
            let p99 = |r: &Value| number(&r["found"]["latency_ms"]["p99"]);
            let mut measured = loads
                .iter()
                .zip(&labels)
                .filter_map(|(r, l)| Some((l, of(r, &iops)?, of(r, &p99))));
            let Some((first, a, slow_a)) = measured.next() else { continue };
            for (other, b, slow_b) in measured.filter(|m| m.1.median > 0.0) {
                let pair = Pair {
                    part: p.title.clone(),
                    load: name.clone(),
                    ratio: a.median / b.median,
                    certain: a.n.min(b.n) > 1 && !a.touches(&b),
                    p99: slow_a.zip(slow_b).map_or(f64::NAN, |(a, b)| a.median / b.median),
                };
                let key = (first.clone(), other.clone());
                match out.iter_mut().find(|o| o.0 == key) {
                    Some(o) => o.1.push(pair),
                    None => out.push((key, vec![pair])),
                }
            }
        }
    }
    out
}

fn median(mut all: Vec<f64>) -> Option<f64> {
    all.retain(|v| v.is_finite());
    Range::of(all).map(|r| r.median)
}

fn compared((first, other): &(String, String), pairs: &[Pair], out: &mut String) {
    let count = |f: &dyn Fn(&Pair) -> bool| pairs.iter().filter(|p| f(p)).count();
    let (more, less) =
        (count(&|p| p.certain && p.ratio > 1.0), count(&|p| p.certain && p.ratio < 1.0));
    let _ = write!(
        out,
        "<p>Of {} loads {first} did more than {other} in {more}, less in {less}; in {} the repeats \
            differ as much as the two do \
         (or there was one of each), and nothing can be said.",
        pairs.len(),
        pairs.len() - more - less,
        first = escape(first),
        other = escape(other),
    );
    if let Some(ratio) = median(pairs.iter().map(|p| p.ratio).collect()) {
        let _ = write!(out, " The median ratio of operations is {ratio:.2}");
    }
    if let Some(p99) = median(pairs.iter().map(|p| p.p99).collect()) {
        let _ = write!(out, ", that of the 99th percentile of latency {p99:.2} (less is better)");
    }
    let rows: Vec<(String, f64, bool)> = pairs
        .iter()
        .map(|p| {
            let part = p.part.split([' ', ':']).next().unwrap_or_default();
            (
                if part.is_empty() { p.load.clone() } else { format!("{part}: {}", p.load) },
                p.ratio,
                p.certain,
            )
        })
        .collect();
    let title = format!("operations of {first}, by those of {other}");
    let _ = write!(
        out,
        ".</p><div class=\"ratios\">{}</div>",
        svg::ratios(&title, first, other, &rows)
    );
}

/// Rates of MariaDB over all numbers of users.
fn mysql(parts: &[Part], out: &mut String) {
    let mut rows = vec![["MariaDB on", "users", "queries a second"].map(str::to_owned).to_vec()];
    for p in parts {
        let all = mysql_of(&together(&p.results));
        for (r, label) in all.iter().zip(labels(&all)) {
            let users = Range::of(list(&r["runs"]).map(|r| number(&r["users"])).collect());
            let rate = Range::of(list(&r["runs"]).map(|r| number(&r["found"]["iops"])).collect());
            if let Some((users, rate)) = users.zip(rate) {
                rows.push(vec![
                    escape(&label),
                    format!("{:.0} – {:.0}", users.min, users.max),
                    format!("{:.0} – {:.0}", rate.min, rate.max),
                ]);
            }
        }
    }
    if rows.len() > 1 {
        *out += &table(&rows);
    }
    for p in parts {
        let all = mysql_of(&together(&p.results));
        mysql_ratios(&all, &labels(&all), out);
    }
}

/// What the first MariaDB did by what each other one did, with as many users.
fn mysql_ratios(all: &[Value], labels: &[String], out: &mut String) {
    let rate = |r: &Value, users: &Value| {
        let run = list(&r["runs"]).find(|run| run["users"] == *users)?;
        run["found"]["iops"].as_f64().filter(|v| *v > 0.0)
    };
    let Some((first, label)) = all.first().zip(labels.first()) else { return };
    for (other, whose) in all.iter().zip(labels).skip(1) {
        let both = list(&first["runs"])
            .filter_map(|r| Some(rate(first, &r["users"])? / rate(other, &r["users"])?));
        let Some(r) = Range::of(both.collect()) else { continue };
        let _ = write!(
            out,
            "<p>With as many users, MariaDB on {} answered {:.2} times the queries a second that \
                it did on {} ({:.2} to {:.2} times, by the \
             number of users).</p>",
            escape(label),
            r.median,
            escape(whose),
            r.min,
            r.max
        );
    }
}

fn drills(parts: &[Part], out: &mut String) {
    let head = [
        "drill",
        "whose",
        "acknowledged writes lost",
        "wrong bytes",
        "longest wait",
        "noticed",
        "clean after",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for r in parts.iter().flat_map(|p| drills_of(&p.results)) {
        let v = &r["verdict"];
        let none = |key: &str| {
            let class = if v[key].as_u64() == Some(0) { "good" } else { "bad" };
            format!("<span class=\"{class}\">{}</span>", escape(&text(&v[key])))
        };
        let seconds = |key: &str| v[key].as_f64().map_or("—".to_owned(), |s| format!("{s:.1} s"));
        rows.push(vec![
            escape(&text(&r["what"])),
            escape(&text(&r["label"])),
            none("lost"),
            none("wrong"),
            ms(number(&v["longest_ms"])),
            seconds("detect_s"),
            seconds("clean_s"),
        ]);
    }
    if rows.len() > 1 {
        *out += &table(&rows);
    }
}

/// What was short how often, and what looking cost.
fn limits(parts: &[Part], out: &mut String) {
    let mut short: Vec<(String, usize)> = Vec::new();
    let (mut all, mut watching, mut others, mut there) = (0, 0.0, 0.0, 0.0);
    let runs = parts.iter().flat_map(|p| p.results.iter()).flat_map(|r| list(&r["runs"]));
    for run in runs.filter(|r| r["bottleneck"]["what"].is_string()) {
        all += 1;
        let used = |key: &str| run["used"][key].as_f64();
        if let (Some(took), Some(seconds), Some(cores)) =
            (used("watching_cpu_s"), used("seconds"), used("cores"))
        {
            watching += took;
            others += used("others_cores").unwrap_or(0.0) * seconds;
            there += seconds * cores;
        }
        let what = text(&run["bottleneck"]["what"]);
        match short.iter_mut().find(|s| s.0 == what) {
            Some(s) => s.1 += 1,
            None => short.push((what, 1)),
        }
    }
    if all == 0 {
        return;
    }
    short.sort_by_key(|s| std::cmp::Reverse(s.1));
    let words: Vec<String> = short.iter().map(|(what, n)| format!("{what} ({n})")).collect();
    let _ = write!(out, "<p>What held the {all} runs up: {}.", escape(&words.join(", ")));
    if there > 0.0 {
        let _ = write!(
            out,
            " Of the CPUs of this machine {:.0} % went to what is neither a cluster's nor the \
                lab's (kernel threads, other programs), and \
             {:.2} % to watching the machine.",
            100.0 * others / there,
            100.0 * watching / there
        );
    }
    *out += "</p>";
}

/// The beginning of a page; empty where there is nothing to sum up.
pub(super) fn summary(parts: &[Part]) -> String {
    let mut said = String::new();
    pairs(parts)
        .iter()
        .filter(|(_, p)| p.len() > 1)
        .for_each(|(who, pairs)| compared(who, pairs, &mut said));
    mysql(parts, &mut said);
    drills(parts, &mut said);
    if said.is_empty() {
        return said;
    }
    limits(parts, &mut said);
    format!("<section><h2>In short</h2>{said}</section>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mariadbs_are_compared_by_the_number_of_their_users() {
        let r = |label: &str, rates: &[f64]| {
            let run = |(i, v): (usize, &f64)| json!({"name": format!("mysql {i}"), "users": 4 + i, "found": {"iops": v}});
            json!({"kind": "bench", "what": "mysql", "label": label, "runs": rates.iter().enumerate().map(run).collect::<Vec<_>>()})
        };
        let results = vec![
            r("ours", &[100.0, 300.0, 300.0]),
            r("theirs", &[50.0, 100.0]),
            r("local <disk>", &[200.0, 400.0, 0.0]),
        ];
        let said = summary(&[Part { results, ..Part::default() }]);
        for want in [
            "MariaDB on ours answered 2.50 times the queries a second that it did on theirs (2.00 \
                to 3.00 times",
            "0.62 times the queries a second that it did on local &lt;disk&gt; (0.50 to 0.75 times",
        ] {
            assert!(said.contains(want), "{want}: {said}");
        }
    }

    #[test]
    fn a_page_begins_with_who_did_more_and_what_was_lost() {
        let run = |name: &str, iops: f64| {
            json!({"name": name, "found": {"iops": iops, "latency_ms": {"p99": 100.0 / iops}},
                "used": {"watching_cpu_s": 0.01, "seconds": 5.0, "cores": 2.0, "others_cores": 0.5},
                "bottleneck": {"what": "disk", "evidence": "vda"}})
        };
        let bench = |what: &str, label: &str, runs: Vec<Value>| json!({"kind": "bench", "what": what, "label": label, "runs": runs});
        let both = |load: &str, a: [f64; 2], b: [f64; 2]| {
            let of = |label: &str, v: [f64; 2]| {
                bench("objects", label, v.iter().map(|v| run(load, *v)).collect())
            };
            [of("ours", a), of("theirs", b)]
        };
        // Results of one label that measured other things are still of one label.
        let loads =
            [both("w", [20.0, 22.0], [10.0, 11.0]), both("r", [9.0, 12.0], [10.0, 11.0])].concat();
        let drill = json!({"kind": "drill", "what": "osd-kill", "label": "ours", "verdict": {"lost": 0, "wrong": 3}});
        let parts = [
            Part { title: "Loads (2): x".into(), results: loads, ..Part::default() },
            Part { results: vec![drill], ..Part::default() },
        ];
        let said = summary(&parts);
        for want in [
            "Of 2 loads ours did more than theirs in 1, less in 0; in 1 the repeats differ",
            "Loads: w</text>",
            ">2.00×</text>",
            ">1.00× ?</text>",
            "class=\"good\">0</span>",
            "class=\"bad\">3</span>",
            "disk (8)",
            "25 % went to what is neither",
            "0.10 % to watching",
        ] {
            assert!(said.contains(want), "{want}: {said}");
        }
        assert_eq!(
            summary(&[Part {
                results: vec![bench("objects", "a", vec![run("w", 1.0)])],
                ..Part::default()
            }]),
            ""
        );
    }
}
