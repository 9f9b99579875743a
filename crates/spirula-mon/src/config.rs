//! Options set in the cluster, by section, with their history.
//!
//! A section is `global`, a daemon type (`osd`, `client`, `client.rgw`), or one entity
//! (`osd.3`), optionally with a mask (`osd/host:a`, `osd/class:ssd`). An entity's value is
//! the most special one that applies: global, then type, then id; a masked value beats the
//! plain one of the same section, and of several masked ones the nearest place wins
//! (host, rack, root, by the numbers of their types), then a class. Source: `ConfigMap.cc` of Ceph
//! 16.2.
//!
//! The table holds what was stored, also by older versions, whose forms a client of today may not
//! read: it is handed out in the form of today. That is made of name and value alone, so that it is
//! the same on all monitors; the table, which they compare, stays as it is.

use spirula_crush::CrushMap;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use spirula_settings::options;
use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

/// Changes kept.
const HISTORY: usize = 200;
/// Bytes of the changes kept. The table is written with its history, as one value of one entry of
/// the monitors' log: a history that outgrew an entry would keep every later change from being
/// made.
const HISTORY_BYTES: usize = 1 << 20;

/// One option's change: the name with its section (`osd/osd_max_backfills`), old and new value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Section, a slash, option.
    pub name: String,
    /// Value before, if it was set.
    pub old: Option<String>,
    /// Value after, if it is set.
    pub new: Option<String>,
}

impl Change {
    /// Section, with its masks, and option. Masks have a colon; the names of a module's options
    /// have slashes (`mgr/balancer/active`).
    pub fn section_and_option(&self) -> Option<(&str, &str)> {
        let (mut end, mut parts) = (0, self.name.split('/'));
        end += parts.next()?.len();
        for mask in parts.take_while(|part| part.contains(':')) {
            end += 1 + mask.len();
        }
        Some((self.name.get(..end)?, self.name.get(end + 1..)?))
    }

    fn bytes(&self) -> usize {
        let value = |v: &Option<String>| v.as_ref().map_or(0, String::len);
        32 + self.name.len() + value(&self.old) + value(&self.new)
    }
}

/// One commit of changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeSet {
    /// Version that it led to.
    pub version: u64,
    /// When.
    pub stamp: UTime,
    /// Name of the command's purpose, e.g. `assimilate-conf`; mostly empty.
    pub name: String,
    /// What changed.
    pub changes: Vec<Change>,
}

/// All options set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigDb {
    /// Version: grows by one with each set of changes. A new cluster has 1.
    pub version: u64,
    /// Section → option → value.
    pub sections: BTreeMap<String, BTreeMap<String, String>>,
    /// Recent changes, oldest first.
    pub history: VecDeque<ChangeSet>,
}

impl Default for ConfigDb {
    fn default() -> Self {
        let first =
            ChangeSet { version: 1, stamp: UTime::ZERO, name: String::new(), changes: Vec::new() };
        Self { version: 1, sections: BTreeMap::new(), history: [first].into() }
    }
}

/// Facts about an entity that masks match against.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traits<'a> {
    /// CRUSH location: type → bucket name.
    pub location: Option<&'a BTreeMap<String, String>>,
    /// Device class.
    pub class: Option<&'a str>,
    /// The CRUSH map's types by number: the smaller, the nearer.
    pub types: Option<&'a BTreeMap<i32, String>>,
}

impl<'a> Traits<'a> {
    /// Those of an entity: an OSD (`osd.3`) is where it is in the tree; others are where their host
    /// is, if it is known and in the tree.
    pub fn of(
        crush: &'a CrushMap,
        entity: &str,
        hostname: &str,
        place: &'a mut Option<BTreeMap<String, String>>,
    ) -> Self {
        let osd = entity.strip_prefix("osd.").and_then(|o| o.parse::<i32>().ok());
        let host = || if hostname.is_empty() { None } else { crush.item_id(hostname) };
        *place = osd.or_else(host).map(|id| crush.full_location(id));
        Self {
            location: place.as_ref(),
            class: osd.and_then(|o| crush.class_of(o)),
            types: Some(&crush.type_names),
        }
    }

    /// How near the masks of a section are, less is nearer; `None` if one of them does not hold.
    fn nearness(&self, section: &str) -> Option<i64> {
        let mut nearest = i64::MAX;
        for mask in section.split('/').skip(1) {
            if !mask_applies(mask, *self) {
                return None;
            }
            let kind = mask.split_once(':').map_or("", |(kind, _)| kind);
            let number = self
                .types
                .and_then(|t| t.iter().find(|(_, name)| *name == kind))
                .map(|(n, _)| i64::from(*n));
            nearest = nearest.min(number.unwrap_or(i64::MAX - 1));
        }
        Some(nearest)
    }
}

impl ConfigDb {
    /// Sets (`Some`) or removes options, as one version.
    pub fn change(
        &mut self,
        stamp: UTime,
        name: &str,
        edits: Vec<(String, String, Option<String>)>,
    ) {
        let mut changes = Vec::new();
        for (who, option, value) in edits {
            let section = self.sections.entry(who.clone()).or_default();
            let old = match &value {
                Some(v) => section.insert(option.clone(), v.clone()),
                None => section.remove(&option),
            };
            if section.is_empty() {
                self.sections.remove(&who);
            }
            if old != value {
                changes.push(Change { name: format!("{who}/{option}"), old, new: value });
            }
        }
        if changes.is_empty() {
            return;
        }
        self.version += 1;
        self.history.push_back(ChangeSet {
            version: self.version,
            stamp,
            name: name.to_owned(),
            changes,
        });
        let size = |set: &ChangeSet| {
            64 + set.name.len() + set.changes.iter().map(Change::bytes).sum::<usize>()
        };
        let mut bytes: usize = self.history.iter().map(size).sum();
        // A single change may be too large to be remembered, too.
        while self.history.len() > HISTORY || bytes > HISTORY_BYTES {
            let Some(oldest) = self.history.pop_front() else { break };
            bytes -= size(&oldest);
        }
    }

    /// Everything that applies to `entity` (`osd.3`, `client.admin`, or a bare type), option
    /// → (value in its normal form, section it comes from).
    pub fn effective(
        &self,
        entity: &str,
        traits: Traits<'_>,
    ) -> BTreeMap<&str, (Cow<'_, str>, &str)> {
        let stored = self.stored_for(entity, traits).into_iter();
        stored.map(|(name, (value, section))| (name, (normal(name, value), section))).collect()
    }

    /// [`Self::effective`] as it was stored.
    pub(crate) fn stored_for(
        &self,
        entity: &str,
        traits: Traits<'_>,
    ) -> BTreeMap<&str, (&str, &str)> {
        let mut names = vec!["global".to_owned()];
        // `client.rgw.a` gets `client`, `client.rgw` and `client.rgw.a`, in this order.
        names.extend(
            entity.match_indices('.').map(|(i, _)| entity.get(..i).unwrap_or_default().to_owned()),
        );
        names.push(entity.to_owned());
        let mut out = BTreeMap::new();
        for name in names {
            let plain = self.sections.get_key_value(&name).into_iter();
            let prefix = format!("{name}/");
            let masked =
                self.sections.range(prefix.clone()..).take_while(|(k, _)| k.starts_with(&prefix));
            let mut here: Vec<_> = plain
                .chain(masked)
                .filter_map(|(k, v)| Some((traits.nearness(k)?, k, v)))
                .collect();
            // The nearest last; of equally near ones the order of their names stays.
            here.sort_by_key(|(near, ..)| std::cmp::Reverse(*near));
            for (_, section, options) in here {
                out.extend(
                    options.iter().map(|(k, v)| (k.as_str(), (v.as_str(), section.as_str()))),
                );
            }
        }
        out
    }

    /// One option's value for an entity or a type, if it is set anywhere for it.
    pub fn get_for(&self, entity: &str, option: &str) -> Option<String> {
        let stored = self.stored_for(entity, Traits::default());
        stored.get(option).map(|(v, _)| normal(option, v).into_owned())
    }

    /// Every option that is set, in the order of the sections' names: section, option, value in its
    /// normal form.
    pub fn rows(&self) -> impl Iterator<Item = (&str, &str, Cow<'_, str>)> {
        let all = self.sections.iter();
        all.flat_map(|(who, options)| {
            options.iter().map(move |(k, v)| (who.as_str(), k.as_str(), normal(k, v)))
        })
    }
}

/// A stored value in the form in which this version hands it out.
pub(crate) fn normal<'a>(name: &str, value: &'a str) -> Cow<'a, str> {
    options::find(name).map_or(Cow::Borrowed(value), |option| option.of_stored(value))
}

fn mask_applies(mask: &str, traits: Traits<'_>) -> bool {
    match mask.split_once(':') {
        Some(("class", class)) => traits.class == Some(class),
        Some((kind, name)) => traits.location.and_then(|l| l.get(kind)).is_some_and(|n| n == name),
        None => false,
    }
}

/// Checks the form of a section: type, optional id, optional masks.
pub fn valid_section(who: &str) -> bool {
    let mut parts = who.split('/');
    let name = parts.next().unwrap_or_default();
    let kind = name.split('.').next().unwrap_or_default();
    let known = matches!(kind, "global" | "mon" | "mgr" | "osd" | "mds" | "client");
    let id_ok = kind != "global" || name == "global";
    known
        && id_ok
        && parts.all(|m| m.split_once(':').is_some_and(|(k, v)| !k.is_empty() && !v.is_empty()))
}

fn put_opt(o: &mut Encoder, v: &Option<String>) {
    o.bool(v.is_some());
    if let Some(v) = v {
        o.str(v);
    }
}

fn get_opt(d: &mut Decoder<'_>) -> Result<Option<String>, DecodeError> {
    if d.bool()? { d.get().map(Some) } else { Ok(None) }
}

impl Encode for ConfigDb {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u64(self.version);
            o.put(&self.sections);
            o.list(&self.history, |o, s| {
                o.u64(s.version);
                o.put(&s.stamp);
                o.str(&s.name);
                o.list(&s.changes, |o, c| {
                    o.str(&c.name);
                    put_opt(o, &c.old);
                    put_opt(o, &c.new);
                });
            });
        });
    }
}

impl Decode for ConfigDb {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("ConfigDb", 1, |d, _| {
            let version = d.u64()?;
            let sections = d.get()?;
            let history = d.list(24, |d| {
                Ok(ChangeSet {
                    version: d.u64()?,
                    stamp: d.get()?,
                    name: d.get()?,
                    changes: d.list(6, |d| {
                        Ok(Change { name: d.get()?, old: get_opt(d)?, new: get_opt(d)? })
                    })?,
                })
            })?;
            Ok(Self { version, sections, history: history.into() })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(db: &mut ConfigDb, who: &str, k: &str, v: &str) {
        db.change(UTime::ZERO, "", vec![(who.into(), k.into(), Some(v.into()))]);
    }

    #[test]
    fn the_most_special_section_wins() {
        let mut db = ConfigDb::default();
        set(&mut db, "global", "a", "1");
        set(&mut db, "osd", "a", "2");
        set(&mut db, "osd/class:ssd", "a", "3");
        set(&mut db, "osd.1", "a", "4");
        assert_eq!(db.get_for("mon.a", "a").as_deref(), Some("1"));
        assert_eq!(db.get_for("osd.0", "a").as_deref(), Some("2"));
        assert_eq!(db.get_for("osd.1", "a").as_deref(), Some("4"));
        let ssd = Traits { class: Some("ssd"), ..Traits::default() };
        assert_eq!(db.stored_for("osd.0", ssd)["a"], ("3", "osd/class:ssd"));
        assert_eq!(db.stored_for("osd.1", ssd)["a"].0, "4");
    }

    #[test]
    fn of_several_masks_the_nearest_place_wins_and_every_place_over_a_class() {
        let mut db = ConfigDb::default();
        let types = [(0, "osd"), (1, "host"), (3, "rack"), (9, "datacenter"), (11, "root")];
        let types = types.map(|(n, name)| (n, name.to_owned())).into();
        let place = [("host", "hx"), ("rack", "r1"), ("datacenter", "aa"), ("root", "default")];
        let place = place.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let at = Traits { location: Some(&place), class: Some("hdd"), types: Some(&types) };
        for (who, value) in [
            ("osd", "10"),
            ("osd/class:hdd", "11"),
            ("osd/root:default", "12"),
            ("osd/datacenter:aa", "13"),
            ("osd/rack:r1", "14"),
            ("osd/host:hx", "15"),
        ] {
            set(&mut db, who, "a", value);
            assert_eq!(db.stored_for("osd.0", at)["a"], (value, who));
        }
        set(&mut db, "osd/host:hy", "a", "16");
        set(&mut db, "osd/class:ssd/host:hx", "a", "17");
        assert_eq!(db.stored_for("osd.0", at)["a"].0, "15");
        set(&mut db, "osd/class:hdd/host:hx", "b", "1");
        set(&mut db, "osd/class:hdd", "b", "2");
        assert_eq!(db.stored_for("osd.0", at)["b"].0, "1");
        // A section that is more special wins, masked or not.
        set(&mut db, "global/host:hx", "c", "1");
        set(&mut db, "osd", "c", "2");
        assert_eq!(db.stored_for("osd.0", at)["c"].0, "2");
    }

    #[test]
    fn masks_by_place_hold_for_who_is_on_a_host_of_the_tree() {
        let mut crush = CrushMap::new_default("host").unwrap();
        let at = [("root", "default"), ("rack", "r1"), ("host", "h1")];
        let at = at.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        crush.insert(0, 0x10000, "osd.0", &at).unwrap();
        let mut db = ConfigDb::default();
        set(&mut db, "global/rack:r1", "a", "7");
        let of = |entity: &str, host: &str| {
            let mut place = None;
            db.stored_for(entity, Traits::of(&crush, entity, host, &mut place))
                .get("a")
                .map(|(v, _)| (*v).to_owned())
        };
        assert_eq!(of("client.admin", "h1").as_deref(), Some("7"));
        assert_eq!(of("osd.0", "elsewhere").as_deref(), Some("7"));
        assert_eq!(of("client.admin", "h2"), None);
        assert_eq!(of("client.admin", ""), None);
    }

    /// Older versions had other types of some options, and stored texts as they were given. The
    /// table itself stays as it is.
    #[test]
    fn what_an_older_version_stored_is_handed_out_in_the_form_of_today() {
        let mut db = ConfigDb::default();
        for (who, name, stored) in [
            ("global", "client_mount_timeout", "90.000000"),
            ("client", "rbd_default_features", "layering,exclusive-lock"),
            ("client", "osd_op_queue", "forced"),
            ("client", "of_a_newer_version", "1.000000"),
            ("client.a", "mon_reweight_min_bytes_per_osd", "1048576"),
        ] {
            set(&mut db, who, name, stored);
        }
        let before = db.clone();
        let given = db.effective("client.a", Traits::default());
        let is = |name: &str| (given[name].0.as_ref(), given[name].1);
        assert_eq!(is("client_mount_timeout"), ("90", "global"));
        assert_eq!(is("rbd_default_features"), ("5", "client"));
        assert_eq!(is("osd_op_queue"), ("forced", "client"));
        assert_eq!(is("of_a_newer_version"), ("1.000000", "client"));
        assert_eq!(is("mon_reweight_min_bytes_per_osd"), ("1048576", "client.a"));
        assert_eq!(db.get_for("mon", "client_mount_timeout").as_deref(), Some("90"));
        assert!(db.rows().any(|row| row == ("global", "client_mount_timeout", "90".into())));
        assert_eq!(db, before);
    }

    #[test]
    fn history_records_old_and_new_values_and_skips_non_changes() {
        let mut db = ConfigDb::default();
        set(&mut db, "osd", "a", "2");
        set(&mut db, "osd", "a", "2");
        db.change(UTime::ZERO, "", vec![("osd".into(), "a".into(), None)]);
        assert_eq!(db.version, 3);
        let last = &db.history.back().unwrap().changes[0];
        assert_eq!(
            (last.name.as_str(), last.old.as_deref(), last.new.as_deref()),
            ("osd/a", Some("2"), None)
        );
        assert!(db.sections.is_empty());
        let bytes = spirula_encoding::to_vec(&db);
        assert_eq!(spirula_encoding::from_slice::<ConfigDb>(&bytes).unwrap(), db);
    }

    /// The history is bounded in bytes, too, also where one change alone is larger than that.
    #[test]
    fn history_is_bounded_in_bytes() {
        let mut db = ConfigDb::default();
        for n in 0..HISTORY - 10 {
            set(&mut db, "client", "a", &format!("{n:08}{}", "v".repeat(65_528)));
        }
        let bytes = spirula_encoding::to_vec(&db).len();
        assert!(bytes < HISTORY_BYTES + (128 << 10), "{bytes}");
        assert!(db.history.len() > 4, "those that fit are kept");
        assert_eq!(db.history.back().unwrap().version, db.version);
        let many =
            (0..40).map(|n| ("osd".into(), format!("o{n}"), Some("v".repeat(65_536)))).collect();
        db.change(UTime::ZERO, "", many);
        assert!(db.history.is_empty());
        set(&mut db, "osd", "o1", "1");
        assert_eq!(db.history.len(), 1);
    }

    #[test]
    fn a_changes_name_is_section_masks_and_option() {
        let of = |name: &str| {
            let c = Change { name: name.into(), old: None, new: None };
            c.section_and_option().map(|(s, o)| (s.to_owned(), o.to_owned()))
        };
        let is = |section: &str, option: &str| Some((section.to_owned(), option.to_owned()));
        assert_eq!(of("osd/osd_max_backfills"), is("osd", "osd_max_backfills"));
        assert_eq!(of("osd/class:ssd/host:a/x"), is("osd/class:ssd/host:a", "x"));
        assert_eq!(of("mgr/mgr/balancer/active"), is("mgr", "mgr/balancer/active"));
        assert_eq!(of("mgr.x/mgr/dashboard/server_addr"), is("mgr.x", "mgr/dashboard/server_addr"));
        assert_eq!(of("osd"), None);
    }

    #[test]
    fn sections_are_checked() {
        for ok in ["global", "osd", "osd.1", "client.admin", "osd/class:hdd", "osd/host:a", "mon.a"]
        {
            assert!(valid_section(ok), "{ok}");
        }
        for bad in ["", "foo", "global.x", "osd/class", "osd/:x"] {
            assert!(!valid_section(bad), "{bad}");
        }
    }
}
