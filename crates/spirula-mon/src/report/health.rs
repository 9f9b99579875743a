//! `health`, `health detail`, and what muting does to them.

use super::checks;
use crate::state::HealthMute;
use crate::view::ClusterView;
use serde_json::{Map, Value, json};
use spirula_encoding::UTime;
use spirula_format::{Format, age, to_json};
use std::collections::BTreeMap;

/// How bad a check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Something wants attention.
    Warning,
    /// Something is broken or about to be.
    Error,
}

impl Severity {
    /// `HEALTH_WARN`, `HEALTH_ERR`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Warning => "HEALTH_WARN",
            Self::Error => "HEALTH_ERR",
        }
    }

    fn tag(self) -> &'static str {
        match self {
            Self::Warning => "[WRN]",
            Self::Error => "[ERR]",
        }
    }
}

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// How bad.
    pub severity: Severity,
    /// One line.
    pub summary: String,
    /// How many things the summary counts.
    pub count: u64,
    /// One line per thing.
    pub detail: Vec<String>,
}

/// Checks by code (`OSD_DOWN`), in the order they are shown.
pub type Checks = BTreeMap<String, Check>;

/// A cluster's health at one moment.
#[derive(Clone, Debug)]
pub struct Health {
    checks: Checks,
    /// Mutes in force.
    mutes: BTreeMap<String, HealthMute>,
    ended: Vec<String>,
    now: UTime,
}

impl Health {
    /// Makes all checks.
    pub fn of(view: &ClusterView<'_>) -> Self {
        let checks = checks::all(view);
        let over = |code: &String, m: &HealthMute| {
            if !m.until.is_zero() && m.until <= view.now {
                return true;
            }
            !m.sticky && checks.get(code).is_none_or(|c| c.count > m.count)
        };
        let ended: Vec<String> =
            view.mutes.iter().filter(|(c, m)| over(c, m)).map(|(c, _)| c.clone()).collect();
        let mutes = view
            .mutes
            .iter()
            .filter(|(c, _)| !ended.contains(c))
            .map(|(c, m)| (c.clone(), m.clone()))
            .collect();
        Self { checks, mutes, ended, now: view.now }
    }

    /// The checks found, muted ones too.
    pub fn checks(&self) -> &Checks {
        &self.checks
    }

    /// Codes whose mute is over: its time has come, or (unless sticky) the check cleared or
    /// counts more than when it was muted. The monitor removes them.
    pub fn ended_mutes(&self) -> Vec<String> {
        self.ended.clone()
    }

    fn muted(&self, code: &str) -> bool {
        self.mutes.contains_key(code)
    }

    /// Checks that count: those not muted.
    fn active(&self) -> impl Iterator<Item = (&String, &Check)> {
        self.checks.iter().filter(|(code, _)| !self.muted(code))
    }

    /// `HEALTH_OK`, `HEALTH_WARN` or `HEALTH_ERR`, muted checks left out.
    pub fn status(&self) -> &'static str {
        self.active().map(|(_, c)| c.severity).max().map_or("HEALTH_OK", Severity::name)
    }

    /// Summaries of the checks not muted, in order.
    pub fn summaries(&self) -> Vec<&str> {
        self.active().map(|(_, c)| c.summary.as_str()).collect()
    }

    /// `(muted: OSD_DOWN(59m) OSDMAP_FLAGS)`, if anything is muted.
    pub fn mutes_text(&self) -> Option<String> {
        if self.mutes.is_empty() {
            return None;
        }
        let words: Vec<String> = self
            .mutes
            .iter()
            .map(|(code, m)| match self.left(m) {
                Some(left) => format!("{code}({left})"),
                None => code.clone(),
            })
            .collect();
        Some(format!("(muted: {})", words.join(" ")))
    }

    /// How long a mute still lasts.
    fn left(&self, m: &HealthMute) -> Option<String> {
        (!m.until.is_zero()).then(|| age(m.until.as_secs_f64() - self.now.as_secs_f64()))
    }

    /// The text form.
    pub fn text(&self, detail: bool) -> String {
        let mut out = self.status().to_owned();
        let mut parts: Vec<String> = self.summaries().into_iter().map(str::to_owned).collect();
        parts.extend(self.mutes_text());
        if !parts.is_empty() {
            out += &format!(" {}", parts.join("; "));
        }
        out.push('\n');
        if !detail {
            return out;
        }
        for (code, check) in &self.checks {
            if let Some(m) = self.mutes.get(code) {
                out += "(MUTED";
                if let Some(left) = self.left(m) {
                    out += &format!(" ttl {left}");
                }
                if m.sticky {
                    out += ", STICKY";
                }
                out += ") ";
            }
            out += &format!("{} {code}: {}\n", check.severity.tag(), check.summary);
            for line in &check.detail {
                out += &format!("    {line}\n");
            }
        }
        out
    }

    /// The JSON form.
    pub fn json(&self, detail: bool) -> Value {
        let mut checks = Map::new();
        for (code, c) in &self.checks {
            let mut one = Map::new();
            one.insert("severity".into(), c.severity.name().into());
            one.insert("summary".into(), json!({"message": c.summary, "count": c.count}));
            if detail {
                let lines: Vec<Value> = c.detail.iter().map(|l| json!({"message": l})).collect();
                one.insert("detail".into(), lines.into());
            }
            one.insert("muted".into(), self.muted(code).into());
            checks.insert(code.clone(), one.into());
        }
        let mutes: Vec<Value> = self
            .mutes
            .iter()
            .map(|(code, m)| {
                let mut one = Map::new();
                one.insert("code".into(), code.clone().into());
                if !m.until.is_zero() {
                    one.insert("ttl".into(), m.until.to_iso().into());
                }
                one.insert("sticky".into(), m.sticky.into());
                one.insert("summary".into(), m.summary.clone().into());
                one.insert("count".into(), m.count.into());
                one.into()
            })
            .collect();
        json!({"status": self.status(), "checks": checks, "mutes": mutes})
    }

    /// The mute that `health mute` makes.
    ///
    /// # Errors
    /// The status text for a check that is not raised, unless `sticky`.
    pub fn mute(&self, code: &str, until: UTime, sticky: bool) -> Result<HealthMute, String> {
        match self.checks.get(code) {
            Some(c) => Ok(HealthMute {
                until,
                sticky,
                // A sticky mute holds whatever comes, so it remembers nothing to compare.
                summary: if sticky { String::new() } else { c.summary.clone() },
                count: if sticky { 0 } else { c.count },
            }),
            None if sticky => Ok(HealthMute { until, sticky, summary: String::new(), count: 0 }),
            None => Err(format!("health alert {code} is not currently raised")),
        }
    }
}

/// Reads a length of time as `health mute` takes it: `90`, `30s`, `10m`, `1h`, `2d`, `1w`.
/// Seconds; `None` if it is not one.
pub fn parse_ttl(s: &str) -> Option<u32> {
    let digits = s.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.len());
    let (number, unit) = s.split_at(digits);
    let number: u32 = number.parse().ok()?;
    let factor = match unit.trim() {
        "" | "s" | "sec" | "secs" | "second" | "seconds" => 1,
        "m" | "min" | "mins" | "minute" | "minutes" => 60,
        "h" | "hr" | "hour" | "hours" => 3600,
        "d" | "day" | "days" => 86_400,
        "w" | "wk" | "week" | "weeks" => 604_800,
        "mo" | "month" | "months" => 2_592_000,
        "y" | "yr" | "year" | "years" => 31_536_000,
        _ => return None,
    };
    number.checked_mul(factor)
}

/// `ceph health` and `ceph health detail`.
pub fn health(view: &ClusterView<'_>, detail: bool, format: Format) -> String {
    let health = Health::of(view);
    if format.is_json() { to_json(&health.json(detail), format) } else { health.text(detail) }
}
