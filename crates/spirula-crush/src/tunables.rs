//! Tunable profiles, and what clients must understand to use a map.

use crate::map::{CrushMap, Tunables, alg, step_op};

const LEGACY_ALGS: u32 = (1 << alg::UNIFORM) | (1 << alg::LIST) | (1 << alg::STRAW);
const HAMMER_ALGS: u32 = LEGACY_ALGS | (1 << alg::STRAW2);

/// The named sets of tunables, oldest first.
const PROFILES: [&str; 5] = ["argonaut", "bobtail", "firefly", "hammer", "jewel"];

impl Tunables {
    /// The values of a profile as `ceph osd crush tunables NAME` sets them, starting from
    /// `self`: `legacy`, `argonaut`, `bobtail`, `firefly`, `hammer`, `jewel`, `optimal`,
    /// `default`. The plain release names keep the straw version. `None` for other names.
    pub fn with_profile(self, name: &str) -> Option<Self> {
        let old = Self { straw_calc_version: self.straw_calc_version, ..Self::default() };
        let bobtail = Self {
            choose_local_tries: 0,
            choose_local_fallback_tries: 0,
            choose_total_tries: 50,
            chooseleaf_descend_once: 1,
            ..old
        };
        let firefly = Self { chooseleaf_vary_r: 1, ..bobtail };
        let hammer = Self { allowed_bucket_algs: HAMMER_ALGS, ..firefly };
        let jewel = Self { chooseleaf_stable: 1, ..hammer };
        Some(match name {
            "legacy" => Self { straw_calc_version: 0, ..old },
            "argonaut" => old,
            "bobtail" => bobtail,
            "firefly" => firefly,
            "hammer" => hammer,
            "jewel" => jewel,
            "optimal" | "default" => Self { straw_calc_version: 1, ..jewel },
            _ => return None,
        })
    }

    /// What new clusters use.
    pub fn optimal() -> Self {
        let t = Self::default();
        t.with_profile("optimal").unwrap_or(t)
    }

    /// The newest profile with these values, or `unknown`.
    pub fn profile(&self) -> &'static str {
        PROFILES
            .into_iter()
            .rev()
            .find(|p| self.with_profile(p).as_ref() == Some(self))
            .unwrap_or("unknown")
    }

    /// True if the retry counts differ from Argonaut's (client feature CRUSH_TUNABLES).
    pub fn needs_feature_1(&self) -> bool {
        (self.choose_local_tries, self.choose_local_fallback_tries, self.choose_total_tries)
            != (2, 5, 19)
    }

    /// True if leaf choices descend once (client feature CRUSH_TUNABLES2).
    pub fn needs_feature_2(&self) -> bool {
        self.chooseleaf_descend_once != 0
    }

    /// True if leaf choices vary r (client feature CRUSH_TUNABLES3).
    pub fn needs_feature_3(&self) -> bool {
        self.chooseleaf_vary_r != 0
    }

    /// True if leaf choices are stable (client feature CRUSH_TUNABLES5).
    pub fn needs_feature_5(&self) -> bool {
        self.chooseleaf_stable != 0
    }

    /// The algorithm for new buckets: the best one allowed.
    pub(crate) fn default_alg(&self) -> Option<u8> {
        [alg::STRAW2, alg::STRAW, alg::TREE, alg::LIST, alg::UNIFORM]
            .into_iter()
            .find(|a| self.allowed_bucket_algs & (1 << a) != 0)
    }
}

impl CrushMap {
    fn any_step(&self, ops: &[u32]) -> bool {
        self.rules.iter().flatten().flat_map(|r| &r.steps).any(|s| ops.contains(&s.op))
    }

    /// A rule uses indep or the first set_* steps (client feature CRUSH_V2).
    pub fn has_v2_rules(&self) -> bool {
        use step_op::{CHOOSE_INDEP, CHOOSELEAF_INDEP, SET_CHOOSE_TRIES, SET_CHOOSELEAF_TRIES};
        self.any_step(&[CHOOSE_INDEP, CHOOSELEAF_INDEP, SET_CHOOSE_TRIES, SET_CHOOSELEAF_TRIES])
    }

    /// A rule sets vary_r (client feature CRUSH_TUNABLES3).
    pub fn has_v3_rules(&self) -> bool {
        self.any_step(&[step_op::SET_CHOOSELEAF_VARY_R])
    }

    /// A bucket is straw2 (client feature CRUSH_V4).
    pub fn has_v4_buckets(&self) -> bool {
        self.buckets.iter().flatten().any(|b| b.alg() == alg::STRAW2)
    }

    /// A rule sets stable (client feature CRUSH_TUNABLES5).
    pub fn has_v5_rules(&self) -> bool {
        self.any_step(&[step_op::SET_CHOOSELEAF_STABLE])
    }

    /// The oldest release whose clients can map with this, as `osd crush show-tunables` says.
    pub fn min_required_version(&self) -> &'static str {
        let t = &self.tunables;
        if self.has_v5_rules() || t.needs_feature_5() {
            "jewel"
        } else if self.has_v4_buckets() {
            "hammer"
        } else if t.needs_feature_3() {
            "firefly"
        } else if t.needs_feature_2() || t.needs_feature_1() {
            "bobtail"
        } else {
            "argonaut"
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail that way")]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_recognised_whatever_the_straw_version() {
        for name in PROFILES {
            for straw_calc_version in [0, 1] {
                let t = Tunables { straw_calc_version, ..Tunables::default() }
                    .with_profile(name)
                    .unwrap();
                assert_eq!(t.profile(), name);
                assert_eq!(t.straw_calc_version, straw_calc_version);
            }
        }
        assert_eq!(Tunables::default().profile(), "argonaut");
        assert_eq!(Tunables::optimal().profile(), "jewel");
        assert_eq!(Tunables { choose_total_tries: 51, ..Tunables::optimal() }.profile(), "unknown");
        assert!(Tunables::default().with_profile("reef").is_none());
    }
}
