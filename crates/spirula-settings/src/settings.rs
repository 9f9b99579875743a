//! What one daemon's options are set to, and by whom.

use crate::{known, options};
use std::collections::BTreeMap;

/// Who set a value. A later one in this list wins over an earlier one (Ceph's order).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The monitors' configuration database (`ceph config set`).
    Mon,
    /// The configuration file.
    File,
    /// The environment: `SPIRULA_…`, then `CEPH_ARGS`.
    Env,
    /// The command line.
    Args,
    /// `config set` at the running daemon; gone with its process.
    Override,
}

impl Source {
    /// As `config diff` names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mon => "mon",
            Self::File => "file",
            Self::Env => "env",
            Self::Args => "cmdline",
            Self::Override => "override",
        }
    }
}

/// The options of one daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    whose: String,
    set: BTreeMap<String, BTreeMap<Source, String>>,
}

impl Settings {
    /// The same as those of the daemon called so (`osd.0`).
    #[must_use]
    pub fn of(mut self, whose: impl Into<String>) -> Self {
        self.whose = whose.into();
        self
    }

    /// Sets an option; the value is checked and brought into its stored form.
    ///
    /// # Errors
    /// What is wrong with the name (with the nearest known one) or the value.
    pub fn set(&mut self, source: Source, name: &str, value: &str) -> Result<(), String> {
        let Some(option) = options::find(name) else { return Err(options::unknown(name)) };
        let value = option.normalise(value).map_err(|why| format!("{}: {why}", option.name))?;
        self.set.entry(option.name.to_owned()).or_default().insert(source, value);
        Ok(())
    }

    /// Takes back what `source` set; true if there was something.
    pub fn unset(&mut self, source: Source, name: &str) -> bool {
        let name = options::normal_name(name);
        let Some(by) = self.set.get_mut(&name) else { return false };
        let was = by.remove(&source).is_some();
        if by.is_empty() {
            self.set.remove(&name);
        }
        was
    }

    /// Replaces all that the monitors set. Options unknown here are left out.
    pub fn set_central(&mut self, central: &BTreeMap<String, String>) {
        for by in self.set.values_mut() {
            by.remove(&Source::Mon);
        }
        self.set.retain(|_, by| !by.is_empty());
        for (name, value) in central {
            // The monitors checked it; an option of a newer monitor means nothing to us.
            let _ = self.set(Source::Mon, name, value);
        }
    }

    /// The value that counts, the default if nobody set one; `None` for an unknown option.
    pub fn get(&self, name: &str) -> Option<&str> {
        let option = options::find(name)?;
        Some(self.given(option.name).unwrap_or(option.default))
    }

    /// The value that counts if somebody set one.
    pub fn given(&self, name: &str) -> Option<&str> {
        let by = self.set.get(name)?;
        by.last_key_value().map(|(_, v)| v.as_str())
    }

    /// The value as a number, the default's if it is none.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.get(name).and_then(|v| v.parse().ok())
    }

    /// True if the option is `true`.
    pub fn is_on(&self, name: &str) -> bool {
        self.get(name) == Some("true")
    }

    /// Every known option with the value that counts.
    pub fn all(&self) -> BTreeMap<String, String> {
        known::all()
            .iter()
            .map(|o| (o.name.to_owned(), self.given(o.name).unwrap_or(o.default).to_owned()))
            .collect()
    }

    /// For `config show`: every known option, and before them whose they are.
    pub fn shown(&self) -> BTreeMap<String, String> {
        let mut all = self.all();
        // Ceph's daemons take their cluster's name from the name of their file; there is one name
        // here.
        all.insert("cluster".to_owned(), "ceph".to_owned());
        all.insert("name".to_owned(), self.whose.clone());
        all
    }

    /// The options that differ from their defaults.
    pub fn changed(&self) -> BTreeMap<String, String> {
        let differ = |name: &String| {
            let value = self.given(name)?;
            (options::find(name).is_none_or(|o| o.default != value))
                .then(|| (name.clone(), value.to_owned()))
        };
        self.set.keys().filter_map(differ).collect()
    }

    /// What was set, by name: the value that counts, who set it, and by whom it was set to what
    /// besides, stronger ones first.
    pub fn sources(&self) -> BTreeMap<&str, Vec<(Source, &str)>> {
        let mut out = BTreeMap::new();
        for (name, by) in &self.set {
            out.insert(name.as_str(), by.iter().rev().map(|(s, v)| (*s, v.as_str())).collect());
        }
        out
    }

    /// The options that differ from their defaults, with every value that was set and by whom,
    /// stronger ones first: what a daemon tells of itself for `config show`.
    pub fn told(&self) -> BTreeMap<String, Vec<(String, String)>> {
        let changed = self.changed();
        let told = self.sources().into_iter().filter(|(name, _)| changed.contains_key(*name));
        let pair = |(source, value): (Source, &str)| (source.name().to_owned(), value.to_owned());
        told.map(|(name, by)| (name.to_owned(), by.into_iter().map(pair).collect())).collect()
    }

    /// For `config diff`: by option, the value of each source, `default` and `final`.
    pub fn diff(&self) -> BTreeMap<String, BTreeMap<String, String>> {
        let row = |name: &String| {
            let by = self.set.get(name)?;
            let mut row: BTreeMap<String, String> =
                by.iter().map(|(s, v)| (s.name().to_owned(), v.clone())).collect();
            row.insert("default".into(), options::find(name)?.default.to_owned());
            row.insert("final".into(), by.last_key_value()?.1.clone());
            Some((name.clone(), row))
        };
        self.changed().keys().filter_map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stronger_sources_win_and_weaker_ones_show_again() {
        let mut s = Settings::default();
        assert_eq!(s.get("osd_max_backfills"), Some("4"));
        s.set(Source::File, "osd max backfills", "3").unwrap();
        s.set(Source::Args, "osd-max-backfills", "5").unwrap();
        s.set_central(&[("osd_max_backfills".to_owned(), "7".to_owned())].into());
        assert_eq!(s.get("osd_max_backfills"), Some("5"));
        assert!(s.unset(Source::Args, "osd_max_backfills"));
        assert_eq!(s.get("osd_max_backfills"), Some("3"));
        s.unset(Source::File, "osd_max_backfills");
        assert_eq!(s.get("osd_max_backfills"), Some("7"));
        let row = &s.diff()["osd_max_backfills"];
        assert_eq!(
            (row["default"].as_str(), row["mon"].as_str(), row["final"].as_str()),
            ("4", "7", "7")
        );
        s.set_central(&BTreeMap::new());
        assert!(s.changed().is_empty() && s.diff().is_empty());
    }

    #[test]
    fn unknown_names_are_refused_with_the_nearest_and_bad_values_with_the_name() {
        let mut s = Settings::default();
        let e = s.set(Source::File, "osd_max_backfils", "3").unwrap_err();
        assert!(e.contains("'osd_max_backfills'"), "{e}");
        let e = s.set(Source::File, "osd_max_backfills", "many").unwrap_err();
        assert!(e.contains("osd_max_backfills") && e.contains("many"), "{e}");
        assert!(!s.set(Source::File, "completely unlike", "1").unwrap_err().contains("mean"));
    }
}
