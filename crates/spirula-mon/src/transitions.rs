//! Health in the cluster log: a line when a check fails, when what it says changes, when it clears,
//! and when all is well.
//!
//! Whoever reads `ceph -w` or the log next morning sees what happened and when. The lines have the
//! shape of Ceph's, which log watchers know. Owned by the leading monitor and not kept: a new
//! leader begins with what it finds and says nothing of it. What changes all the time (`12/33
//! objects degraded`) is said at intervals only, so the log is not flooded.

use crate::report::health::{Checks, Severity};
use spirula_encoding::UTime;
use spirula_messages::ceph::log::severity;
use std::collections::BTreeMap;

/// Seconds between two looks at health.
const LOOK: f64 = 1.0;
/// Seconds between two lines about the same failing check.
const UPDATE: f64 = 10.0;

#[derive(Clone, Debug)]
struct Told {
    severity: Severity,
    summary: String,
    at: UTime,
}

/// What the log says of health.
#[derive(Clone, Debug, Default)]
pub struct Transitions {
    /// When this leader began; another value: begin anew.
    since: UTime,
    looked: UTime,
    told: BTreeMap<String, Told>,
}

fn seconds(from: UTime, to: UTime) -> f64 {
    to.as_secs_f64() - from.as_secs_f64()
}

impl Transitions {
    /// Is it time to look? A clock that went back does not keep it from looking.
    pub fn due(&self, since: UTime, now: UTime) -> bool {
        since != self.since || !(0.0..LOOK).contains(&seconds(self.looked, now))
    }

    /// Lines (severity, text) about what changed. `since` is when this monitor began to lead,
    /// `checks` what is wrong `now`.
    pub fn step(&mut self, since: UTime, now: UTime, checks: &Checks) -> Vec<(u16, String)> {
        self.looked = now;
        let told = |c: &crate::report::health::Check| Told {
            severity: c.severity,
            summary: c.summary.clone(),
            at: now,
        };
        if since != self.since {
            self.since = since;
            self.told = checks.iter().map(|(code, c)| (code.clone(), told(c))).collect();
            return Vec::new();
        }
        let mut lines = Vec::new();
        for (code, check) in checks {
            let level =
                if check.severity == Severity::Error { severity::ERROR } else { severity::WARN };
            let word = match self.told.get(code) {
                None => "failed",
                Some(old) if old.severity == check.severity && old.summary == check.summary => {
                    continue;
                }
                Some(old)
                    if (0.0..UPDATE).contains(&seconds(old.at, now))
                        && old.severity == check.severity =>
                {
                    continue;
                }
                Some(_) => "update",
            };
            lines.push((level, format!("Health check {word}: {} ({code})", check.summary)));
            self.told.insert(code.clone(), told(check));
        }
        let cleared: Vec<String> =
            self.told.keys().filter(|code| !checks.contains_key(*code)).cloned().collect();
        for code in &cleared {
            if let Some(old) = self.told.remove(code) {
                lines.push((
                    severity::INFO,
                    format!("Health check cleared: {code} (was: {})", old.summary),
                ));
            }
        }
        if !cleared.is_empty() && checks.is_empty() {
            lines.push((severity::INFO, "Cluster is now healthy".to_owned()));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::health::Check;

    fn at(sec: u32) -> UTime {
        UTime { sec, nsec: 0 }
    }

    fn checks(list: &[(&str, &str)]) -> Checks {
        let one = |(code, summary): &(&str, &str)| {
            let check = Check {
                severity: Severity::Warning,
                summary: (*summary).to_owned(),
                count: 1,
                detail: Vec::new(),
            };
            ((*code).to_owned(), check)
        };
        list.iter().map(one).collect()
    }

    #[test]
    fn failures_changes_and_their_end_are_told_once() {
        let mut t = Transitions::default();
        let lines = |v: Vec<(u16, String)>| v.into_iter().map(|(_, l)| l).collect::<Vec<_>>();
        assert!(t.step(at(5), at(5), &checks(&[("OLD", "was there before")])).is_empty());
        let down = checks(&[("OSD_DOWN", "1 osds down")]);
        let first = lines(t.step(at(5), at(10), &down));
        assert_eq!(
            first,
            [
                "Health check failed: 1 osds down (OSD_DOWN)",
                "Health check cleared: OLD (was: was there before)"
            ]
        );
        assert!(t.step(at(5), at(11), &down).is_empty());
        let more = checks(&[("OSD_DOWN", "2 osds down")]);
        assert!(t.step(at(5), at(12), &more).is_empty(), "too soon after the last line");
        assert_eq!(
            lines(t.step(at(5), at(21), &more)),
            ["Health check update: 2 osds down (OSD_DOWN)"]
        );
        let end = lines(t.step(at(5), at(30), &checks(&[])));
        assert_eq!(
            end,
            ["Health check cleared: OSD_DOWN (was: 2 osds down)", "Cluster is now healthy"]
        );
        assert!(t.step(at(5), at(31), &checks(&[])).is_empty());
    }

    #[test]
    fn a_new_leader_and_a_clock_that_went_back_do_not_silence_it() {
        let mut t = Transitions::default();
        let down = checks(&[("OSD_DOWN", "1 osds down")]);
        assert!(t.due(at(5), at(5)));
        assert!(t.step(at(5), at(100), &checks(&[])).is_empty());
        assert!(
            !t.due(at(5), at(100))
                && t.due(at(5), at(101))
                && t.due(at(5), at(50))
                && t.due(at(6), at(100))
        );
        assert_eq!(t.step(at(5), at(50), &down).len(), 1);
        assert!(t.step(at(60), at(61), &down).is_empty(), "a new leader begins with what it finds");
    }
}
