//! `spirula drill`: something breaks under a load that knows what it must read, and what came of it
//! is told.
//!
//! * [`load`] — the load; [`cluster`], [`daemon`], [`cut`] — what is hurt, and how it is put back;
//!   [`scenes`] — what happens
//! * [`watch`] — the runner: phases, what the cluster says meanwhile, waiting with a limit
//! * [`owed`] — the journal of what is to be undone
//!
//! Whatever a scene does to the cluster is first written down as what is to be undone; that is
//! worked off in the end, also after an error, also when somebody interrupts (Ctrl-C, SIGTERM,
//! SIGHUP), and by the next drill when this one is killed.

pub mod cluster;
pub mod cut;
pub mod daemon;
pub mod load;
pub mod owed;
pub mod scenes;
pub mod watch;

use crate::args::{DrillArgs, Lab};
use crate::bail;
use crate::expect::Geometry;
use crate::prelude::*;
use crate::progress::{Progress, ms};
use crate::results::Results;
use crate::session::{Session, Way};
use owed::{Journal, Taken};
use std::io::{BufRead, IsTerminal, Write};

/// Asks whether the cluster may be hurt.
fn ask(lab: &Lab, a: &DrillArgs, what: &str) -> Result<()> {
    if a.yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        bail!("this drill hurts the cluster ({what}); give --yes if that is meant");
    }
    lab.say(format!(
        "This drill hurts the cluster: {what}.\nEverything is put back in the end. Go on? [y/N]"
    ));
    // The question is there before the answer is waited for.
    let _ = std::io::stdout().flush();
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).context("read the answer")?;
    if !matches!(line.trim(), "y" | "Y" | "yes") {
        bail!("nothing was done");
    }
    Ok(())
}

/// What drills that were killed owe is put back.
///
/// # Errors
/// When something could not be.
pub fn settle(lab: &Lab, way: &Way) -> Result<()> {
    let Some(conf) = &way.conf else { return Ok(()) };
    match Journal::find(conf)? {
        Ok(mut journal) => owed::settle(&mut journal, way, &mut |text| lab.say(text)),
        Err(Taken::No) => Ok(()),
        Err(Taken::Yes(path)) => {
            lab.say(format!(
                "a drill is under way ({}): what it owes is left to it",
                path.display()
            ));
            Ok(())
        }
    }
}

/// What loads of drills on this host left in a pool goes, and the pool, if one of them made it and
/// nobody has an object in it. Where bits were flipped and the pool stays, its PGs are scrubbed
/// once more: what was found in the objects that are gone is forgotten.
///
/// # Errors
/// When the cluster does not do it.
fn leave_no_objects(session: &Session, pool: &str, made: bool, rotten: bool) -> Result<String> {
    let name = pool.to_owned();
    let Some(mut g) = session.look(move |m| Geometry::of(m, &name))? else {
        return Ok(format!("the pool {pool} is gone"));
    };
    crate::litter::clean(session, g.pool, &crate::used::hostname(), false)?;
    g.made = made && crate::litter::is_empty(session, g.pool, g.pg_num)?;
    if g.made && crate::objects::remove_pool(session, &g)?.is_none() {
        return Ok(format!("the pool {pool} is removed"));
    }
    if rotten {
        for pg in 0..g.pg_num {
            session.mgr_command(
                &json!({"prefix": "pg deep-scrub", "pgid": format!("{}.{pg:x}", g.pool)}),
            )?;
        }
    }
    Ok(format!("no object of a drill is left in the pool {pool}"))
}

/// `spirula drill …`.
///
/// # Errors
/// When the cluster cannot be reached or was not whole before, when it is not whole in the end, or
/// when anything acknowledged was lost or read wrongly.
pub fn drill(lab: &Lab, a: &DrillArgs) -> Result<()> {
    let scene = a.scene;
    if !(0.1..=100_000.0).contains(&a.rate) {
        bail!("--rate must be from 0.1 to 100000 operations a second");
    }
    let way = (lab.connect)(&a.target)?;
    let conf =
        way.conf.clone().context("drills need the cluster's ceph.conf; give --conf or --dir")?;
    let mut progress = Progress::new(a.output.json);
    let mut journal = Journal::open(&conf)?;
    owed::settle(&mut journal, &way, &mut |text| progress.say(text))?;
    let cluster = cluster::Cluster::find(&way)?;
    scene.can(&cluster)?;
    ask(lab, a, scene.does())?;
    let mut results =
        Results::new("drill", scene.name(), a.output.out.as_deref(), a.output.label.as_deref())?;
    let mut run = watch::Run::begin(way, cluster, journal, a, progress, lab.stop.clone())?;
    results.set("cluster", crate::objects::cluster_of(&run.session));
    results.set("pool", run.geometry.json());
    let outcome = run.play(scene);
    let (found, told) = run.end(outcome.is_ok());
    results.set("verdict", found["verdict"].clone());
    for key in ["phases", "events", "timeline"] {
        results.set(key, found[key].clone());
    }
    if let Err(e) = &outcome {
        results.set("failed", json!(format!("{e:#}")));
    }
    results.push(json!({"name": scene.name(), "repeat": 0, "mode": "drill", "found": found["found"].clone()}))?;
    let dir = results.dir.clone();
    let value = results.finish()?;
    if a.output.json {
        lab.say(value.to_string());
    } else {
        show(lab, &value);
        lab.say(format!(
            "results in {}; 'spirula report {}' makes a page of them",
            dir.display(),
            dir.display()
        ));
    }
    outcome?;
    told?;
    let v = &value["verdict"];
    if ["lost", "wrong", "errors"].iter().any(|k| v[*k] != 0) {
        bail!("the cluster did not keep its promise: {}", v["told"]);
    }
    Ok(())
}

fn show(lab: &Lab, v: &Value) {
    let verdict = &v["verdict"];
    let number = |key: &str| verdict[key].as_f64().unwrap_or(0.0);
    let seconds =
        |key: &str| verdict[key].as_f64().map_or("—".to_owned(), |s| format!("{s:.1} s"));
    lab.say(format!(
        "acknowledged writes lost: {}   wrong bytes: {}   errors: {}   ({} writes acknowledged, {} \
            reads compared)",
        number("lost"),
        number("wrong"),
        number("errors"),
        number("writes"),
        number("reads")
    ));
    lab.say(format!(
        "longest wait of a request: {}   longest time without any answer: {}",
        ms(number("longest_ms")),
        ms(number("silence_ms"))
    ));
    lab.say(format!(
        "noticed after {}   clean {} after it was put back   recovered about {:.1} MB   at most {} \
            copies of objects missing",
        seconds("detect_s"),
        seconds("clean_s"),
        number("moved_bytes") / 1e6,
        number("degraded_most")
    ));
    for p in v["phases"].as_array().into_iter().flatten() {
        let f = |key: &str| p[key].as_f64().unwrap_or(0.0);
        lab.say(format!(
            "{:<8} {:>7.1} s {:>9.1} op/s  p50 {:>8}  p99 {:>8}  max {:>8}",
            p["name"].as_str().unwrap_or_default(),
            f("seconds"),
            f("iops"),
            ms(f("p50")),
            ms(f("p99")),
            ms(f("max"))
        ));
    }
}
