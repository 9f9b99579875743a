//! The table of users, with the semantics of `ceph auth …`.
//!
//! Pure: each operation gives its result or an error with Ceph's words and errno; the caller
//! decides about formats and makes the change durable. Capabilities are checked before they get in.

use crate::caps::{self, CapsError};
use crate::entity::EntityId;
use crate::error::AuthError;
use crate::key::{CryptoKey, KeyType};
use crate::keyring::{self, KeyringError};
use serde_json::{Map, Value, json};
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};
use spirula_types::errno::{EINVAL, ENOENT, ENOSPC};
use std::collections::BTreeMap;

/// Bytes, about, that the table may have for [`AuthDb::get_or_create`] to add to it: some 20,000
/// users. Monitors agree on all of it at once, and take 8 MiB.
pub const MADE_MAX: usize = 4 << 20;
/// The same for what only administrators do: whoever makes users with a bootstrap key leaves them
/// room.
pub const TABLE_MAX: usize = 6 << 20;

/// Capabilities by service (`mon`, `osd`, `mgr`, `mds`).
pub type CapsByService = BTreeMap<String, String>;

/// One user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Its key.
    pub key: CryptoKey,
    /// A key that replaces it once used: for changing a key without an interruption.
    pub pending_key: Option<CryptoKey>,
    /// What it may do.
    pub caps: CapsByService,
}

/// All users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthDb {
    users: BTreeMap<EntityId, User>,
    version: u64,
}

/// Why a change was refused; displays as Ceph's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DbError {
    /// No such name.
    #[error("bad entity name")]
    BadName(#[from] AuthError),
    /// An odd number of words.
    #[error("bad capabilities request; odd number of arguments")]
    OddCaps,
    /// A capability that is none.
    #[error(transparent)]
    Caps(#[from] CapsError),
    /// A keyring that is none.
    #[error("error decoding keyring {0}")]
    Keyring(#[from] KeyringError),
    /// The user has other capabilities than those asked for.
    #[error("key for {entity} exists but cap {service} does not match")]
    CapMismatch {
        /// Who.
        entity: EntityId,
        /// For which service.
        service: String,
    },
    /// To be added, but there, with other capabilities.
    #[error("entity {entity} exists but cap {service} does not match")]
    ExistsOtherCap {
        /// Who.
        entity: EntityId,
        /// For which service.
        service: String,
    },
    /// To be added, but there, with another number of capabilities.
    #[error("entity {0} exists but caps do not match")]
    ExistsOtherCaps(EntityId),
    /// To be added, but there, with another key.
    #[error("entity {0} exists but key does not match")]
    ExistsOtherKey(EntityId),
    /// The keyring given does not have the user.
    #[error("key for {0} not found in provided keyring")]
    NotInKeyring(EntityId),
    /// Capabilities in both places.
    #[error("caps cannot be specified both in keyring and in command")]
    CapsTwice,
    /// Nothing to import.
    #[error("auth import: no data supplied")]
    NoData,
    /// A section of a keyring to be imported has no capabilities (or no key).
    #[error("auth import: no caps supplied")]
    NoCaps,
    /// `ceph auth get`.
    #[error("failed to find {0} in keyring")]
    NotFound(EntityId),
    /// `ceph auth get-key`.
    #[error("don't have {0}")]
    DontHave(EntityId),
    /// `ceph auth caps`.
    #[error("couldn't find entry {0}")]
    NoEntry(EntityId),
    /// `ceph auth rotate` and pending keys.
    #[error("entity {0} does not exist")]
    NoEntity(EntityId),
    /// There are so many users that no more are added in this way.
    #[error(
        "there are {users} users, in more than {most} bytes: none is added before some are removed"
    )]
    Full {
        /// So many.
        users: usize,
        /// [`MADE_MAX`] or [`TABLE_MAX`].
        most: usize,
    },
    /// No pending key to commit.
    #[error("entity {0} has no pending key")]
    NoPending(EntityId),
}

impl DbError {
    /// The errno of the command, positive.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotFound(_)
            | Self::DontHave(_)
            | Self::NoEntry(_)
            | Self::NoEntity(_)
            | Self::NoPending(_) => ENOENT,
            Self::Full { .. } => ENOSPC,
            _ => EINVAL,
        }
    }
}

impl User {
    /// Bytes of it in the table, about.
    fn bytes(&self, entity: &EntityId) -> usize {
        128 + entity.id().len()
            + self.caps.iter().map(|(service, text)| 16 + service.len() + text.len()).sum::<usize>()
    }
}

/// `service, caps, service, caps…` of a command, checked.
///
/// # Errors
/// [`DbError::OddCaps`], [`DbError::Caps`].
pub fn caps_of_words(words: &[String]) -> Result<CapsByService, DbError> {
    if !words.len().is_multiple_of(2) {
        return Err(DbError::OddCaps);
    }
    let mut out = BTreeMap::new();
    for pair in words.chunks_exact(2) {
        if let [service, text] = pair {
            caps::validate(service, text)?;
            out.insert(service.clone(), text.clone());
        }
    }
    Ok(out)
}

/// The name in a command.
///
/// # Errors
/// [`DbError::BadName`].
pub fn entity_of_word(word: &str) -> Result<EntityId, DbError> {
    Ok(word.parse::<EntityId>()?)
}

impl AuthDb {
    /// A user.
    pub fn get(&self, entity: &EntityId) -> Option<&User> {
        self.users.get(entity)
    }

    /// All users, by name as Ceph orders them: mon, mds, osd, client, mgr.
    pub fn iter(&self) -> impl Iterator<Item = (&EntityId, &User)> {
        self.users.iter()
    }

    /// True without users.
    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// Counts changes.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether it may become larger.
    ///
    /// # Errors
    /// [`DbError::Full`].
    fn has_room(&self, most: usize) -> Result<(), DbError> {
        let bytes: usize = self.users.iter().map(|(entity, user)| user.bytes(entity)).sum();
        if bytes > most { Err(DbError::Full { users: self.users.len(), most }) } else { Ok(()) }
    }

    /// Sets a user, whatever was there. For making a cluster; commands use the others.
    pub fn put(&mut self, entity: EntityId, user: User) {
        self.users.insert(entity, user);
        self.version += 1;
    }

    /// `auth get`.
    ///
    /// # Errors
    /// [`DbError::NotFound`].
    pub fn require(&self, entity: &EntityId) -> Result<&User, DbError> {
        self.get(entity).ok_or_else(|| DbError::NotFound(entity.clone()))
    }

    /// `auth get-key`.
    ///
    /// # Errors
    /// [`DbError::DontHave`].
    pub fn key(&self, entity: &EntityId) -> Result<&CryptoKey, DbError> {
        self.get(entity).map(|u| &u.key).ok_or_else(|| DbError::DontHave(entity.clone()))
    }

    /// `auth get-or-create`: the user if it has every capability in `wanted`, a new one with
    /// `new_key` if there is none.
    ///
    /// # Errors
    /// [`DbError::CapMismatch`], [`DbError::Full`].
    pub fn get_or_create(
        &mut self,
        entity: &EntityId,
        wanted: CapsByService,
        new_key: CryptoKey,
    ) -> Result<&User, DbError> {
        if let Some(user) = self.users.get(entity)
            && let Some(service) =
                wanted.iter().find(|(s, c)| user.caps.get(*s) != Some(c)).map(|(s, _)| s.clone())
        {
            return Err(DbError::CapMismatch { entity: entity.clone(), service });
        }
        if !self.users.contains_key(entity) {
            self.has_room(MADE_MAX)?;
        }
        let version = &mut self.version;
        Ok(self.users.entry(entity.clone()).or_insert_with(|| {
            *version += 1;
            User { key: new_key, pending_key: None, caps: wanted }
        }))
    }

    /// `auth add`: a new user, with the key (and the capabilities, which are not judged) of
    /// `keyring` if that is not empty. Tells whether anything changed: adding again what is there
    /// is no error.
    ///
    /// # Errors
    /// [`DbError::Keyring`], [`DbError::NotInKeyring`], [`DbError::CapsTwice`], `Exists…`,
    /// [`DbError::Full`].
    pub fn add(
        &mut self,
        entity: &EntityId,
        caps: CapsByService,
        keyring: &[u8],
        new_key: CryptoKey,
    ) -> Result<bool, DbError> {
        let (key, caps) = if keyring.is_empty() {
            (None, caps)
        } else {
            let mut sections = keyring::parse(keyring)?;
            let missing = || DbError::NotInKeyring(entity.clone());
            let section = sections.remove(entity).ok_or_else(missing)?;
            let key = section.key.ok_or_else(missing)?;
            if !caps.is_empty() && !section.caps.is_empty() {
                return Err(DbError::CapsTwice);
            }
            bound_all(&section.caps)?;
            (Some(key), if caps.is_empty() { section.caps } else { caps })
        };
        if let Some(old) = self.users.get(entity) {
            if old.caps.len() != caps.len() {
                return Err(DbError::ExistsOtherCaps(entity.clone()));
            }
            if let Some(service) =
                caps.iter().find(|(s, c)| old.caps.get(*s) != Some(c)).map(|(s, _)| s.clone())
            {
                return Err(DbError::ExistsOtherCap { entity: entity.clone(), service });
            }
            if key.is_some_and(|k| k != old.key) {
                return Err(DbError::ExistsOtherKey(entity.clone()));
            }
            return Ok(false);
        }
        self.has_room(TABLE_MAX)?;
        self.put(entity.clone(), User { key: key.unwrap_or(new_key), pending_key: None, caps });
        Ok(true)
    }

    /// `auth caps`: replaces all capabilities.
    ///
    /// # Errors
    /// [`DbError::NoEntry`], [`DbError::Full`].
    pub fn set_caps(&mut self, entity: &EntityId, caps: CapsByService) -> Result<(), DbError> {
        let full = self.has_room(TABLE_MAX);
        let user = self.users.get_mut(entity).ok_or_else(|| DbError::NoEntry(entity.clone()))?;
        let old = user.bytes(entity);
        let new = User { caps, ..user.clone() };
        if new.bytes(entity) > old {
            full?;
        }
        *user = new;
        self.version += 1;
        Ok(())
    }

    /// `auth rm`: false if there is no such user.
    pub fn remove(&mut self, entity: &EntityId) -> bool {
        let there = self.users.remove(entity).is_some();
        self.version += u64::from(there);
        there
    }

    /// `auth import`: all sections of a keyring, each with a key and capabilities, which are not
    /// judged; all or nothing.
    ///
    /// # Errors
    /// [`DbError::NoData`], [`DbError::Keyring`], [`DbError::NoCaps`], [`DbError::Caps`],
    /// [`DbError::Full`].
    pub fn import(&mut self, keyring: &[u8]) -> Result<(), DbError> {
        if keyring.is_empty() {
            return Err(DbError::NoData);
        }
        let sections = keyring::parse(keyring)?;
        let mut users = Vec::with_capacity(sections.len());
        for (entity, section) in sections {
            let (Some(key), false) = (section.key, section.caps.is_empty()) else {
                return Err(DbError::NoCaps);
            };
            bound_all(&section.caps)?;
            users
                .push((entity, User { key, pending_key: section.pending_key, caps: section.caps }));
        }
        let mut all = self.clone();
        for (entity, user) in users {
            all.put(entity, user);
        }
        all.has_room(TABLE_MAX)?;
        *self = all;
        Ok(())
    }

    /// `auth rotate`: another key at once; the old one is worthless from now on.
    ///
    /// # Errors
    /// [`DbError::NoEntity`].
    pub fn rotate(&mut self, entity: &EntityId, key: CryptoKey) -> Result<&User, DbError> {
        let user = self.users.get_mut(entity).ok_or_else(|| DbError::NoEntity(entity.clone()))?;
        user.key = key;
        user.pending_key = None;
        self.version += 1;
        Ok(user)
    }

    /// `auth get-or-create-pending`: a second key that is good beside the first, which it replaces
    /// when used.
    ///
    /// # Errors
    /// [`DbError::NoEntity`].
    pub fn get_or_create_pending(
        &mut self,
        entity: &EntityId,
        key: CryptoKey,
    ) -> Result<&User, DbError> {
        let user = self.users.get_mut(entity).ok_or_else(|| DbError::NoEntity(entity.clone()))?;
        if user.pending_key.is_none() {
            user.pending_key = Some(key);
            self.version += 1;
        }
        Ok(user)
    }

    /// `auth clear-pending`: forgets the second key.
    ///
    /// # Errors
    /// [`DbError::NoEntity`].
    pub fn clear_pending(&mut self, entity: &EntityId) -> Result<(), DbError> {
        let user = self.users.get_mut(entity).ok_or_else(|| DbError::NoEntity(entity.clone()))?;
        if user.pending_key.take().is_some() {
            self.version += 1;
        }
        Ok(())
    }

    /// `auth commit-pending`, or the pending key was used: it becomes the key.
    ///
    /// # Errors
    /// [`DbError::NoEntity`], [`DbError::NoPending`].
    pub fn commit_pending(&mut self, entity: &EntityId) -> Result<(), DbError> {
        let user = self.users.get_mut(entity).ok_or_else(|| DbError::NoEntity(entity.clone()))?;
        user.key = user.pending_key.take().ok_or_else(|| DbError::NoPending(entity.clone()))?;
        self.version += 1;
        Ok(())
    }

    /// Who still has a key that is not `aes256k`: our daemons, then clients, among them daemons of
    /// Ceph's.
    pub fn weak_keys(&self) -> (Vec<&EntityId>, Vec<&EntityId>) {
        let weak =
            self.users.iter().filter(|(_, u)| u.key.key_type() != KeyType::Aes256k).map(|(e, _)| e);
        weak.partition(|e| e.is_own_daemon())
    }

    /// What health says about them, in the words of Ceph 20.2.4: check, severity is an error,
    /// summary, details.
    pub fn weak_key_checks(&self) -> Vec<WeakKeys> {
        let (daemons, clients) = self.weak_keys();
        let check = |code, error, kind: &str, of: Vec<&EntityId>| {
            let n = of.len();
            let noun = if n == 1 { "entity" } else { "entities" };
            let types = if n == 1 { "an insecure key type" } else { "insecure key types" };
            let detail =
                of.iter().map(|e| format!("entity {e} using insecure key type: aes")).collect();
            (n > 0).then(|| WeakKeys {
                code,
                error,
                summary: format!("{n} auth {kind} {noun} with {types}"),
                detail,
            })
        };
        [
            check("AUTH_INSECURE_SERVICE_KEY_TYPE", true, "service", daemons),
            check("AUTH_INSECURE_CLIENT_KEY_TYPE", false, "client", clients),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// `auth ls` as text.
    pub fn list_text(&self) -> String {
        let mut out = String::new();
        for (entity, user) in &self.users {
            out.push_str(&format!("{entity}\n\tkey: {}\n", user.key.to_base64().as_str()));
            if let Some(pending) = &user.pending_key {
                out.push_str(&format!("\tpending key: {}\n", pending.to_base64().as_str()));
            }
            for (service, caps) in &user.caps {
                out.push_str(&format!("\tcaps: [{service}] {caps}\n"));
            }
        }
        out
    }

    /// `auth ls -f json`.
    pub fn list_json(&self) -> Value {
        json!({"auth_dump": self.users.iter().map(|(e, u)| user_json(e, u)).collect::<Vec<_>>()})
    }

    /// `auth export` without a name.
    pub fn export_text(&self) -> String {
        self.users.iter().map(|(e, u)| keyring::section(e, u, true)).collect()
    }

    /// `auth export -f json` without a name.
    pub fn export_json(&self) -> Value {
        self.users.iter().map(|(e, u)| user_json(e, u)).collect()
    }
}

/// A health check about users with old keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeakKeys {
    /// Its name.
    pub code: &'static str,
    /// HEALTH_ERR rather than HEALTH_WARN.
    pub error: bool,
    /// One line.
    pub summary: String,
    /// One line for each user.
    pub detail: Vec<String>,
}

/// Capabilities of a keyring are kept as they stand there, as Ceph keeps them: they come from
/// another cluster or an older tool, say `caps mds = ""` or name a service that is not known, and
/// one of them must not stop the users of the whole file. What cannot be read grants nothing when
/// its user comes. Only their length is bounded.
fn bound_all(caps: &CapsByService) -> Result<(), DbError> {
    Ok(caps.values().try_for_each(|text| caps::bound(text))?)
}

/// One user as `auth get -f json` shows it.
pub fn user_json(entity: &EntityId, user: &User) -> Value {
    let mut out = Map::new();
    out.insert("entity".into(), entity.to_string().into());
    out.insert("key".into(), user.key.to_base64().as_str().into());
    if let Some(pending) = &user.pending_key {
        out.insert("pending_key".into(), pending.to_base64().as_str().into());
    }
    out.insert("caps".into(), json!(user.caps));
    Value::Object(out)
}

impl Encode for AuthDb {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(2, 2, |o| {
            o.u64(self.version);
            o.list(&self.users, |o, (entity, user)| {
                o.put(entity);
                o.put(&user.key);
                o.bool(user.pending_key.is_some());
                if let Some(pending) = &user.pending_key {
                    o.put(pending);
                }
                o.put(&user.caps);
            });
        });
    }
}

impl Decode for AuthDb {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("AuthDb", 2, |d, v| {
            let version = d.u64()?;
            let read_old = |d: &mut Decoder<'_>| {
                let bad = |what| DecodeError::Value { what, value: 0 };
                let entity = d.str()?.parse().map_err(|_| bad("entity name"))?;
                let key = CryptoKey::from_base64(d.str()?).map_err(|_| bad("key"))?;
                Ok((entity, User { key, pending_key: None, caps: d.get()? }))
            };
            let read = |d: &mut Decoder<'_>| {
                let (entity, key) = (d.get()?, d.get()?);
                let pending_key = if d.bool()? { Some(d.get()?) } else { None };
                Ok((entity, User { key, pending_key, caps: d.get()? }))
            };
            let users = if v < 2 { d.list(12, read_old)? } else { d.list(25, read)? };
            Ok(Self { version, users: users.into_iter().collect() })
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::entropy::seeded;
    use spirula_encoding::UTime;

    const KEY: &str = "AQDSqgBrQrX1IRAArw68htNs2j6F4VXG7iDfWQ==";

    fn new_key(t: KeyType) -> CryptoKey {
        CryptoKey::generate(t, UTime { sec: 1, nsec: 0 }, &mut seeded(9))
    }

    fn words(s: &[&str]) -> Vec<String> {
        s.iter().map(|s| (*s).to_owned()).collect()
    }

    fn id(s: &str) -> EntityId {
        s.parse().unwrap()
    }

    #[test]
    fn get_or_create_does_as_a_real_monitor_did() {
        let mut db = AuthDb::default();
        let caps =
            caps_of_words(&words(&["mon", "allow r", "osd", "allow rw pool=\"a b\""])).unwrap();
        let a = id("client.a");
        let made = db.get_or_create(&a, caps, new_key(KeyType::Aes)).unwrap().clone();
        let e = db.get_or_create(
            &a,
            caps_of_words(&words(&["mon", "allow rw"])).unwrap(),
            new_key(KeyType::Aes256k),
        );
        let e = e.unwrap_err();
        assert_eq!(
            (e.errno(), e.to_string().as_str()),
            (EINVAL, "key for client.a exists but cap mon does not match")
        );
        let same = db.get_or_create(
            &a,
            caps_of_words(&words(&["mon", "allow r"])).unwrap(),
            new_key(KeyType::Aes256k),
        );
        assert_eq!(*same.unwrap(), made);
        assert_eq!(db.version(), 1);
        assert_eq!(
            caps_of_words(&words(&["mon"])).unwrap_err().to_string(),
            "bad capabilities request; odd number of arguments"
        );
        assert_eq!(
            caps_of_words(&words(&["foo", "allow r"])).unwrap_err().to_string(),
            "unknown cap type 'foo'"
        );
        assert_eq!(
            caps_of_words(&words(&["mon", "allow q"])).unwrap_err().to_string(),
            "mon capability parse failed, stopped at 'allow q' of 'allow q'"
        );
        assert_eq!(entity_of_word("bad").unwrap_err().to_string(), "bad entity name");
    }

    #[test]
    fn add_rotate_import_and_remove_do_as_a_real_monitor_did() {
        let mut db = AuthDb::default();
        let text = |r: Result<bool, DbError>| r.unwrap_err().to_string();
        let k = || new_key(KeyType::Aes);
        let caps = |c: &[&str]| caps_of_words(&words(c)).unwrap();
        let g = id("client.g");
        assert_eq!(db.add(&g, caps(&["mon", "allow r"]), b"", k()), Ok(true));
        assert_eq!(db.add(&g, caps(&["mon", "allow r"]), b"", k()), Ok(false));
        assert_eq!(
            text(db.add(&g, caps(&["mon", "allow *"]), b"", k())),
            "entity client.g exists but cap mon does not match"
        );
        let ring = format!("[client.e]\nkey = {KEY}\ncaps mon = \"allow r\"\n");
        assert_eq!(
            text(db.add(&g, caps(&[]), ring.as_bytes(), k())),
            "key for client.g not found in provided keyring"
        );
        let e = id("client.e");
        assert_eq!(
            text(db.add(&e, caps(&["mon", "allow r"]), ring.as_bytes(), k())),
            "caps cannot be specified both in keyring and in command"
        );
        assert_eq!(db.add(&e, caps(&[]), ring.as_bytes(), k()), Ok(true));
        assert_eq!(*db.key(&e).unwrap().to_base64(), KEY);
        assert_eq!(
            db.set_caps(&id("client.no"), caps(&[])).unwrap_err().to_string(),
            "couldn't find entry client.no"
        );
        assert_eq!(db.import(b"").unwrap_err().to_string(), "auth import: no data supplied");
        let nocaps = format!("[client.f]\nkey = {KEY}\n");
        assert_eq!(
            db.import(nocaps.as_bytes()).unwrap_err().to_string(),
            "auth import: no caps supplied"
        );
        assert!(db.get(&id("client.f")).is_none());
        db.rotate(&e, new_key(KeyType::Aes256k)).unwrap();
        assert_ne!(*db.key(&e).unwrap().to_base64(), KEY);
        assert!(db.remove(&e) && !db.remove(&e));
        assert_eq!(db.require(&e).unwrap_err().to_string(), "failed to find client.e in keyring");
        assert_eq!(db.key(&e).unwrap_err().to_string(), "don't have client.e");
    }

    /// From another cluster or an old tool come capabilities that are empty, cannot be read, or are
    /// of no service: they are kept as they are.
    #[test]
    fn capabilities_of_a_keyring_are_kept_as_they_stand_there() {
        let mut db = AuthDb::default();
        let ring = format!(
            "[client.a]\n\tkey = {KEY}\n\tcaps mds = \"\"\n\tcaps mon = \"allow r\"\n\
             [client.b]\n\tkey = {KEY}\n\tcaps osd = \"allow rq\"\n\tcaps xyz = \"allow\"\n"
        );
        db.import(ring.as_bytes()).unwrap();
        let caps = |db: &AuthDb, name: &str| {
            user_json(&id(name), db.get(&id(name)).unwrap())["caps"].to_string()
        };
        assert_eq!(caps(&db, "client.a"), r#"{"mds":"","mon":"allow r"}"#);
        assert_eq!(caps(&db, "client.b"), r#"{"osd":"allow rq","xyz":"allow"}"#);
        // What was exported is imported again.
        db.import(db.export_text().as_bytes()).unwrap();
        assert_eq!(caps(&db, "client.b"), r#"{"osd":"allow rq","xyz":"allow"}"#);
        let mut other = AuthDb::default();
        for name in ["client.a", "client.b"] {
            assert_eq!(
                other.add(&id(name), BTreeMap::new(), ring.as_bytes(), new_key(KeyType::Aes)),
                Ok(true)
            );
            assert_eq!(caps(&other, name), caps(&db, name));
        }
        db.set_caps(&id("client.b"), BTreeMap::new()).unwrap();
        assert_eq!(caps(&db, "client.b"), "{}");
        let long = format!(
            "[client.c]\n\tkey = {KEY}\n\tcaps mon = \"{}\"\n",
            "r".repeat(caps::MAX_TEXT + 1)
        );
        assert_eq!(db.import(long.as_bytes()).unwrap_err().errno(), EINVAL);
        assert!(db.get(&id("client.c")).is_none());
    }

    #[test]
    fn old_keys_are_named_for_health() {
        let mut db = AuthDb::default();
        let mut add = |name: &str, t| {
            db.put(id(name), User { key: new_key(t), pending_key: None, caps: BTreeMap::new() });
        };
        add("client.a", KeyType::Aes);
        add("client.b", KeyType::Aes256k);
        add("osd.0", KeyType::Aes);
        add("osd.1", KeyType::Aes);
        let checks = db.weak_key_checks();
        assert_eq!(checks[0].summary, "2 auth service entities with insecure key types");
        assert!(checks[0].error && !checks[1].error);
        assert_eq!(checks[1].detail, ["entity client.a using insecure key type: aes"]);
        assert_eq!(checks[1].code, "AUTH_INSECURE_CLIENT_KEY_TYPE");
    }

    #[test]
    fn the_table_survives_encoding_and_reads_the_first_form() {
        let mut db = AuthDb::default();
        let caps = caps_of_words(&words(&["mon", "allow *"])).unwrap();
        db.get_or_create(&id("client.a"), caps.clone(), new_key(KeyType::Aes256k)).unwrap();
        db.get_or_create_pending(&id("client.a"), new_key(KeyType::Aes)).unwrap();
        let again: AuthDb = spirula_encoding::from_slice(&spirula_encoding::to_vec(&db)).unwrap();
        assert_eq!(again, db);
        let mut old = Encoder::new();
        old.versioned(1, 1, |o| {
            o.u64(5);
            o.list([("client.admin", KEY)], |o, (name, key)| {
                o.str(name);
                o.str(key);
                o.put(&caps);
            });
        });
        let read: AuthDb = spirula_encoding::from_slice(old.as_slice()).unwrap();
        assert_eq!(*read.key(&id("client.admin")).unwrap().to_base64(), KEY);
        assert_eq!(read.version(), 5);
    }

    #[test]
    fn lists_look_as_cephs() {
        let mut db = AuthDb::default();
        let user =
            |caps| User { key: CryptoKey::from_base64(KEY).unwrap(), pending_key: None, caps };
        db.put(
            id("client.a"),
            user(
                caps_of_words(&words(&["mon", "allow r", "osd", "allow rw pool=\"a b\""])).unwrap(),
            ),
        );
        db.put(id("osd.0"), user(BTreeMap::new()));
        assert_eq!(
            db.list_text(),
            format!(
                "osd.0\n\tkey: {KEY}\nclient.a\n\tkey: {KEY}\n\tcaps: [mon] allow r\n\tcaps: [osd] \
                    allow rw pool=\"a b\"\n"
            )
        );
        assert_eq!(
            user_json(&id("client.a"), db.get(&id("client.a")).unwrap()).to_string(),
            format!(
                r#"{{"entity":"client.a","key":"{KEY}","caps":{{"mon":"allow r","osd":"allow rw pool=\"a b\""}}}}"#
            )
        );
    }
}
