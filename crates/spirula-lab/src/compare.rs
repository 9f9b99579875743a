//! `spirula bench compare`: two clusters in turn, A B A B, so that whatever else this machine does
//! falls on both alike.

use crate::args::{CompareArgs, Lab, Target};
use crate::bail;
use crate::expect::Baseline;
use crate::objects::{Bench, Step, cluster_of, common_of, line, run_json, steps};
use crate::prelude::*;
use crate::report::Range;
use crate::results::Results;
use crate::shown::Shown;

/// One side.
struct Side {
    bench: Bench,
    results: Results,
    label: String,
}

/// `spirula bench compare`.
///
/// # Errors
/// When one of the clusters cannot be reached or refuses; what was written to either is removed
/// then, too.
pub fn compare(lab: &Lab, a: &CompareArgs) -> Result<()> {
    let o = &a.objects;
    let steps = steps(o);
    let common = common_of(o, &steps)?;
    let baseline =
        o.baseline.as_deref().map(crate::results::read).transpose()?.map(|v| Baseline::of(&v));
    let mut shown = Shown::new(lab, "compare", &o.output)?;
    let other = Target { conf: Some(a.with.clone()), ..o.target.clone() };
    let mut sides = Vec::new();
    for (name, target) in [("a", &o.target), ("b", &other)] {
        let label = [&a.label_a, &a.label_b][usize::from(name == "b")].clone();
        let dir = shown.results.dir.join(name);
        let way = (lab.connect)(target)?;
        let results = Results::new("bench", "objects", Some(&dir), Some(&label))?;
        let bench = Bench::begin(way, o, common.clone(), &steps, lab.stop.clone());
        sides.push((bench.with_context(|| format!("cluster {label}"))?, results, label));
    }
    let mut sides: Vec<Side> =
        sides.into_iter().map(|(bench, results, label)| Side { bench, results, label }).collect();
    for s in &mut sides {
        s.results.set("cluster", cluster_of(s.bench.session()));
        s.results.set("pool", s.bench.geometry.json());
    }
    let fsids: Vec<Value> =
        sides.iter().map(|s| s.results.value()["cluster"]["fsid"].clone()).collect();
    let outcome = if fsids.first() == fsids.get(1) {
        Err(anyhow::anyhow!("both are the same cluster, {}", fsids[0]))
    } else {
        turns(&mut sides, &steps, a, baseline.as_ref(), &mut shown)
    };
    let mut left = Ok(());
    // The later first: where both are one cluster, the pool is the earlier one's, and can only go
    // when nobody else's note is in it.
    for s in sides.into_iter().rev() {
        left = left.and(s.bench.finish(false).map(drop)).and(s.results.finish().map(drop));
    }
    outcome.and(left)?;
    shown.finish()
}

fn turns(
    sides: &mut [Side],
    steps: &[Step],
    a: &CompareArgs,
    baseline: Option<&Baseline>,
    shown: &mut Shown<'_>,
) -> Result<()> {
    let common = common_of(&a.objects, steps)?;
    for repeat in 0..a.objects.repeats.max(2) {
        for step in steps {
            for s in sides.iter_mut() {
                let found = s.bench.measure(step, &mut shown.progress)?;
                let run = run_json(step, &common, repeat, &found, &s.bench.geometry, baseline);
                shown.say(&format!("{:<10} {}", s.label, line(&run)));
                s.results.push(run)?;
            }
        }
    }
    let [first, second] = sides else { bail!("two clusters are compared") };
    let mut ratios = Vec::new();
    for step in steps {
        let name = crate::objects::name_of(step, &common);
        let of = |s: &Side, f: &dyn Fn(&Value) -> Option<f64>| {
            let runs = s.results.value()["runs"].as_array().cloned().unwrap_or_default();
            Range::of(runs.iter().filter(|r| r["name"] == name.as_str()).filter_map(f).collect())
        };
        let iops = |r: &Value| r["found"]["iops"].as_f64();
        let p99 = |r: &Value| r["found"]["latency_ms"]["p99"].as_f64();
        let (Some(x), Some(y)) = (of(first, &iops), of(second, &iops)) else { continue };
        let latency = of(first, &p99).zip(of(second, &p99)).map(|(x, y)| x.against(&y));
        let (rate, latency) = (x.against(&y), latency.unwrap_or_default());
        shown.say(&format!(
            "{name}: {} gives {rate} the operations of {}, its p99 is {latency}",
            first.label, second.label
        ));
        ratios.push(json!({"name": name, "iops": rate, "p99": latency}));
    }
    shown.results.set("ratios", ratios.into());
    Ok(())
}
