//! config-keys, and what is known of the crash reports among them.
//!
//! Reports are users' bytes, up to some megabytes. The cluster's health is looked at every second
//! and at each `ceph status`, so what it needs of a report is read from it once, when its key is
//! set, and kept beside: a little for each, whatever the report has.

use crate::commands::crash::{self, Noted};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

/// All config-keys. Read as a map; changed by [`Self::insert`] and [`Self::remove`] alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kv {
    all: BTreeMap<String, Bytes>,
    /// By the report's id. What cannot be read as a report is not in here.
    crashes: Arc<BTreeMap<String, Noted>>,
}

impl Kv {
    /// Sets a key; gives back what it was.
    pub fn insert(&mut self, key: String, value: Bytes) -> Option<Bytes> {
        if let Some(id) = crash::id_of(&key) {
            match Noted::of(&value) {
                Some(noted) => Arc::make_mut(&mut self.crashes).insert(id.to_owned(), noted),
                None => Arc::make_mut(&mut self.crashes).remove(id),
            };
        }
        self.all.insert(key, value)
    }

    /// Removes a key; gives back what it was.
    pub fn remove(&mut self, key: &str) -> Option<Bytes> {
        if let Some(id) = crash::id_of(key) {
            Arc::make_mut(&mut self.crashes).remove(id);
        }
        self.all.remove(key)
    }

    /// What is known of each crash report, by its id.
    pub(crate) fn crashes(&self) -> &BTreeMap<String, Noted> {
        &self.crashes
    }
}

impl Deref for Kv {
    type Target = BTreeMap<String, Bytes>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl From<BTreeMap<String, Bytes>> for Kv {
    fn from(all: BTreeMap<String, Bytes>) -> Self {
        let known =
            all.iter().filter_map(|(k, v)| Some((crash::id_of(k)?.to_owned(), Noted::of(v)?)));
        let crashes = Arc::new(known.collect());
        Self { all, crashes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However a key comes and goes, what is known of reports is what their texts say.
    #[test]
    fn what_is_known_of_reports_follows_their_keys() {
        let report = |at: &str, more: &str| -> Bytes {
            format!(r#"{{"entity_name": "osd.1", "timestamp": "{at}"{more}}}"#).into_bytes().into()
        };
        let mut kv = Kv::default();
        let key = |id: &str| format!("mgr/crash/crash/{id}");
        kv.insert(key("a"), report("2026-11-21T15:24:12.130085Z", ""));
        kv.insert(key("b"), report("2026-11-22T15:24:12.130085Z", ""));
        kv.insert(key("c"), "no report"[..].into());
        kv.insert("mgr/crash/other".into(), report("2026-11-22T15:24:12.130085Z", ""));
        kv.insert(key("a"), report("2026-11-21T15:24:12.130085Z", r#", "archived": "now""#));
        kv.insert(key("b"), "no report any more"[..].into());
        kv.insert(key("d"), report("2026-11-23T15:24:12.130085Z", ""));
        kv.remove(&key("d"));
        assert_eq!(kv.crashes().keys().collect::<Vec<_>>(), ["a"]);
        assert!(!kv.crashes()["a"].is_new);
        assert_eq!(Kv::from(BTreeMap::clone(&kv)), kv);
    }

    /// Of a report no more is kept than a line.
    #[test]
    fn little_is_kept_of_a_large_report() {
        let long = "x".repeat(100_000);
        let report = format!(
            r#"{{"entity_name": "{long}", "utsname_hostname": "{long}", "timestamp": "2026-11-21T15:24:12.130085Z", "text": "{long}"}}"#
        );
        let noted = Noted::of(&Bytes::from(report)).unwrap();
        assert!(noted.line.len() < 300, "{}", noted.line.len());
    }
}
