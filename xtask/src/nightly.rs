//! `cargo xtask nightly`: all that takes too long for every change, one after the other, and what
//! came of it on one page.
//!
//! A step that fails does not end the night: the others say what they have to say, and the page
//! (`target/nightly.md`) is written anew after each, so that a machine that stops in between leaves
//! what was found until then. What did not run this night stays on the page as it was, with the day
//! on which it ran: each step, and each end-to-end test that is for the night alone.

use crate::run::{command, must, release_binary, root, status, target};
use crate::{ceph, run_line, tested};
use anyhow::Context;
use clap::{Args, ValueEnum};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

/// What a night consists of, in this order.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Step {
    /// What every change runs, the end-to-end tests that take too long for that, and all of them
    /// with Reef's clients, too
    Test,
    /// More cases of each property test, 5,000 seeds of the simulator, its planted bugs, fuzzing
    Soak,
    /// The store's campaigns
    Store,
    /// A cluster killed again and again
    Kill9,
    /// The thrash, for as long as `--minutes` says
    Thrash,
    /// Spirula's own client at a real Ceph, while its OSDs go down and PGs split
    Client,
    /// An administrator's commands on Spirula and on a real Ceph, answer beside answer
    Admin,
    /// Objects and block images measured beside a real Ceph
    Bench,
}

/// Which night.
#[derive(Args)]
pub struct Options {
    /// Only this step; may be given several times
    #[arg(long)]
    only: Vec<Step>,
    /// Minutes of the thrash
    #[arg(long, default_value_t = 120)]
    minutes: u32,
    /// Crash states that the store tries at least
    #[arg(long, default_value_t = 500_000)]
    states: u64,
}

/// Runs the steps; false if one of them failed.
///
/// # Errors
/// When the page cannot be written.
pub fn nightly(o: &Options) -> anyhow::Result<bool> {
    let at = target().join("nightly.md");
    let mut page = Page::read(&std::fs::read_to_string(&at).unwrap_or_default());
    let mut good = true;
    for step in Step::value_variants() {
        if !o.only.is_empty() && !o.only.contains(step) {
            continue;
        }
        let name = step.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default();
        eprintln!("xtask nightly: {name}");
        let begun = Instant::now();
        let outcome = match run(*step, o) {
            Ok(true) => "good".to_owned(),
            Ok(false) => "FAILED".to_owned(),
            Err(e) => format!("FAILED: {e:#}").replace(['|', '\n'], " "),
        };
        good &= outcome == "good";
        let when = tested::today()?;
        if *step == Step::Test {
            let told =
                std::fs::read_to_string(target().join("e2e-pacific/nightly")).unwrap_or_default();
            let tests = told.lines().filter_map(|l| l.split_once(' '));
            page.tests.extend(
                tests.map(|(outcome, test)| (test.to_owned(), format!("{outcome} | {when}"))),
            );
        }
        page.steps.insert(
            name,
            format!("{outcome} | {:.0} | {when}", begun.elapsed().as_secs_f64() / 60.0),
        );
        std::fs::create_dir_all(target())?;
        std::fs::write(&at, page.text()).with_context(|| format!("write {}", at.display()))?;
    }
    print!("{}", page.text());
    println!(
        "this page: {}; the thrash's report: {}",
        at.display(),
        target().join("thrash.md").display()
    );
    Ok(good)
}

/// The page: rows of two tables, by what stands first in them.
#[derive(Default)]
struct Page {
    steps: BTreeMap<String, String>,
    tests: BTreeMap<String, String>,
}

impl Page {
    const STEPS: &str =
        "# The night's campaigns\n\n| step | outcome | minutes | ran (UTC) |\n|---|---|---|---|\n";
    const TESTS: &str = "\n## End-to-end tests that only the night runs\n\n| test | outcome | ran \
        (UTC) |\n|---|---|---|\n";

    fn text(&self) -> String {
        let row = |(name, rest): (&String, &String)| format!("| {name} | {rest} |\n");
        let steps = Step::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        let steps = steps.map(|v| v.get_name().to_owned()).map(|name| {
            match self.steps.get_key_value(&name) {
                Some(known) => row(known),
                None => row((&name, &"never ran here | - | -".to_owned())),
            }
        });
        let tests: String = self.tests.iter().map(row).collect();
        Self::STEPS.to_owned() + &steps.collect::<String>() + Self::TESTS + &tests
    }

    /// What [`Page::text`] wrote; rows of pages from before there were days are not known.
    fn read(text: &str) -> Self {
        let mut page = Self::default();
        for line in text.lines() {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            match cells.as_slice() {
                ["step" | "test" | "---", ..] | [_, "never ran here", ..] => {}
                [step, outcome, minutes, when] => {
                    page.steps
                        .insert((*step).to_owned(), format!("{outcome} | {minutes} | {when}"));
                }
                [test, outcome, when] if test.contains("::") => {
                    page.tests.insert((*test).to_owned(), format!("{outcome} | {when}"));
                }
                _ => {}
            }
        }
        page
    }
}

fn run(step: Step, o: &Options) -> anyhow::Result<bool> {
    match step {
        Step::Test => run_line("test --reef --nightly"),
        Step::Soak => run_line("soak"),
        Step::Store => run_line(&format!("soak store --states {}", o.states)),
        Step::Kill9 => run_line("soak kill9"),
        Step::Thrash => run_line(&format!("soak thrash {}", o.minutes)),
        Step::Client => client(),
        Step::Admin => admin(),
        Step::Bench => Ok(run_line("ceph bench")? && run_line("ceph bench --rbd")?),
    }
}

/// `spirula-runtime`'s test `real`, which says what it lacks where there is no Ceph.
fn client() -> anyhow::Result<bool> {
    let mut c = command("cargo");
    c.args(["test", "-p", "spirula-runtime", "--test", "real", "--", "--ignored", "--nocapture"]);
    status(&mut c)
}

/// `tests/admin` on both clusters. That something differs is no failure: what may is in
/// `docs/differences.md`, and the file with all that does lies beside the records.
fn admin() -> anyhow::Result<bool> {
    let dir = target().join("admin");
    if dir.exists() {
        std::fs::remove_dir_all(&dir).context("clear the last run")?;
    }
    std::fs::create_dir_all(&dir)?;
    let (ours, theirs) = (dir.join("spirula"), dir.join("ceph"));
    let binary = release_binary()?;
    let record = |who: &str, cluster: &Path| {
        let out = dir.join(format!("{who}.jsonl.gz"));
        let mut path = binary.parent().unwrap_or(root().as_path()).as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut c = command(root().join("tests/admin/run.py"));
        c.args(["record", "--who", who, "--cluster"])
            .arg(cluster)
            .arg("--out")
            .arg(&out)
            .env("PATH", path);
        status(&mut c).map(|good| (good, out))
    };
    ceph::up(&theirs, 3, "8G", "")?;
    let real = record("real", &theirs);
    ceph::down(&theirs)?;
    must(command(&binary).arg("up").arg("--dir").arg(&ours).args([
        "--osds",
        "3",
        "--osd-size",
        "8G",
        "--port",
        "13400",
        "--detach",
    ]))?;
    let own = record("ours", &ours);
    must(command(&binary).arg("down").arg("--dir").arg(&ours))?;
    let ((real_good, real), (own_good, own)) = (real?, own?);
    let mut c = command(root().join("tests/admin/run.py"));
    c.arg("compare").arg(real).arg(own).arg("--out").arg(dir.join("differs.txt"));
    Ok(status(&mut c)? && real_good && own_good)
}

#[cfg(test)]
mod tests {
    use super::Page;

    #[test]
    fn what_did_not_run_stays_on_the_page_with_its_day() {
        let mut page = Page::default();
        page.steps.insert("soak".to_owned(), "good | 40 | 2026-11-01 02:00".to_owned());
        page.tests
            .insert("test_x.py::X::test_y".to_owned(), "passed | 2026-11-01 02:00".to_owned());
        let text = page.text();
        assert!(
            text.contains("| soak | good | 40 | 2026-11-01 02:00 |\n")
                && text.contains("| bench | never ran here | - | - |\n")
        );
        let mut again = Page::read(&text);
        assert_eq!((&again.steps, &again.tests), (&page.steps, &page.tests));
        again.steps.insert("bench".to_owned(), "FAILED | 9 | 2026-11-02 02:00".to_owned());
        assert!(again.text().contains("| soak | good | 40 | 2026-11-01 02:00 |\n"));
        assert!(!again.text().contains("| bench | never"));
    }
}
