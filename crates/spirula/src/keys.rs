//! Keyrings of a directory, and what they make of a daemon: `DIR/ceph.osd.0.keyring` and its like.
//!
//! Each file holds one key, for its owner alone (mode 0600). The monitors' files hold the key
//! `mon.` that all of them share.

use crate::cluster::CLUSTER;
use crate::cluster::host::random;
use crate::dir::{ClusterDir, write_durably};
use anyhow::{Context, anyhow, bail};
use spirula_auth::db::{AuthDb, User};
use spirula_auth::rotating::{Lifetimes, ServiceKeys};
use spirula_auth::{CryptoKey, EntityId, KeyType, keyring};
use spirula_messenger::auth::{ModePolicy, Modes};
use spirula_runtime::auth::{Login, NoneLogin};
use spirula_runtime::cephx::{DaemonAuth, Identity, MonLogin, Realm, Required};
use spirula_runtime::{Peer, clock};
use spirula_settings::Settings;
use spirula_types::EntityType;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

/// Where the keyring of `name` (`client.admin`, `osd.0`, `mon.a`) is by default.
pub fn path(dir: &ClusterDir, name: &str) -> PathBuf {
    dir.join(format!("{CLUSTER}.{name}.keyring"))
}

/// A new random key.
///
/// # Errors
/// When the kernel has no random numbers.
pub fn draw(key_type: KeyType) -> anyhow::Result<CryptoKey> {
    let mut secret = vec![0; key_type.secret_len()];
    random(&mut secret).context("draw a key")?;
    CryptoKey::new(key_type, clock::wall(), &secret).map_err(|e| anyhow!("draw a key: {e}"))
}

fn caps(list: &[(&str, &str)]) -> std::collections::BTreeMap<String, String> {
    list.iter().map(|(service, text)| ((*service).to_owned(), (*text).to_owned())).collect()
}

/// A daemon's capabilities, as Ceph gives them.
pub fn daemon_caps(kind: &str) -> std::collections::BTreeMap<String, String> {
    match kind {
        "osd" => {
            caps(&[("mgr", "allow profile osd"), ("mon", "allow profile osd"), ("osd", "allow *")])
        }
        "mgr" => caps(&[("mds", "allow *"), ("mon", "allow profile mgr"), ("osd", "allow *")]),
        _ => caps(&[("mon", "allow *")]),
    }
}

/// The users of a new cluster: the administrator and the daemons given (`mon.a`, `mgr.x`, `osd.0`).
/// Their keyrings are written; a file that is there already is taken over.
///
/// # Errors
/// When a file cannot be read or written.
pub fn first_users(dir: &ClusterDir, daemons: &[String]) -> anyhow::Result<AuthDb> {
    let mut db = AuthDb::default();
    // Clients before Ceph 20 know only the older type.
    let admin =
        caps(&[("mds", "allow *"), ("mgr", "allow *"), ("mon", "allow *"), ("osd", "allow *")]);
    put(dir, &mut db, "client.admin", "client.admin", KeyType::Aes, admin)?;
    for name in daemons {
        let kind = name.split('.').next().unwrap_or_default();
        let entity = if kind == "mon" { "mon." } else { name.as_str() };
        put(dir, &mut db, name, entity, KeyType::Aes256k, daemon_caps(kind))?;
    }
    Ok(db)
}

fn put(
    dir: &ClusterDir,
    db: &mut AuthDb,
    name: &str,
    entity: &str,
    key_type: KeyType,
    caps: std::collections::BTreeMap<String, String>,
) -> anyhow::Result<()> {
    let file = path(dir, name);
    let entity: EntityId = entity.parse().map_err(|e| anyhow!("{entity}: {e}"))?;
    let user = match db.get(&entity) {
        // The monitors share one.
        Some(user) => user.clone(),
        None => {
            let key = if file.exists() { read(&file, &entity)? } else { draw(key_type)? };
            User { key, pending_key: None, caps }
        }
    };
    write(&file, &entity, &user)?;
    db.put(entity, user);
    Ok(())
}

/// Writes a keyring with one user, for its owner alone.
///
/// # Errors
/// When it cannot be written.
pub fn write(file: &Path, entity: &EntityId, user: &User) -> anyhow::Result<()> {
    write_durably(file, keyring::section(entity, user, true).as_bytes(), 0o600)
}

/// The key of `entity` in a keyring file.
///
/// # Errors
/// When the file cannot be read, is no keyring, or does not have it.
pub fn read(file: &Path, entity: &EntityId) -> anyhow::Result<CryptoKey> {
    let bytes = std::fs::read(file).with_context(|| {
        format!(
            "read the keyring {}; 'ceph auth get {entity} -o FILE' writes one, keyring = FILE \
                names it",
            file.display()
        )
    })?;
    let mut sections = keyring::parse(&bytes).map_err(|e| anyhow!("{}: {e}", file.display()))?;
    let key = sections.remove(entity).and_then(|s| s.key);
    key.with_context(|| format!("{}: it has no key of {entity}", file.display()))
}

/// First keys of the services.
pub fn first_service_keys() -> anyhow::Result<ServiceKeys> {
    let mut failed = None;
    let mut keys = ServiceKeys::default();
    let mut fill = |out: &mut [u8]| failed = random(out).err().or(failed.take());
    for (service, new) in keys.due(clock::wall(), Lifetimes::default(), &mut fill) {
        keys.set(service, new);
    }
    match failed {
        Some(e) => Err(e).context("draw the services' keys"),
        None => Ok(keys),
    }
}

/// What the options require of others.
///
/// # Errors
/// When a value names no method.
pub fn required(settings: &Settings) -> anyhow::Result<Required> {
    let of = |option: &str| {
        Required::methods(settings.get(option).unwrap_or_default())
            .map_err(|e| anyhow!("{option}: {e}"))
    };
    Ok(Required { cluster: of("auth_cluster_required")?, service: of("auth_service_required")? })
}

/// Connection modes of the options. Where none is set, daemons of several hosts prefer secure
/// connections among each other.
///
/// # Errors
/// When a value names no mode.
pub fn modes(settings: &Settings, between_hosts: bool) -> anyhow::Result<ModePolicy> {
    let mut policy = ModePolicy::default();
    if between_hosts {
        policy.cluster = policy.mon_cluster.clone();
    }
    let all = [
        ("ms_mon_cluster_mode", &mut policy.mon_cluster),
        ("ms_mon_service_mode", &mut policy.mon_service),
        ("ms_mon_client_mode", &mut policy.mon_client),
        ("ms_cluster_mode", &mut policy.cluster),
        ("ms_service_mode", &mut policy.service),
        ("ms_client_mode", &mut policy.client),
    ];
    for (option, modes) in all {
        if let Some(text) = settings.given(option) {
            *modes = text.parse::<Modes>().map_err(|e| anyhow!("{option}: {e}"))?;
        }
    }
    Ok(policy)
}

/// Where the options say that this daemon's keyring is.
fn keyring_of(settings: &Settings) -> &Path {
    Path::new(settings.given("keyring").unwrap_or_default())
}

/// How a manager or OSD goes out and lets others in; `realm` if a monitor of this process knows
/// the services' keys.
///
/// # Errors
/// When its keyring cannot be read.
pub fn daemon(
    name: &str,
    settings: &Settings,
    realm: Option<Arc<RwLock<Realm>>>,
) -> anyhow::Result<DaemonAuth> {
    let required = required(settings)?;
    if required == Required::none() {
        return Ok(DaemonAuth::none());
    }
    let entity: EntityId = name.parse().map_err(|e| anyhow!("{name}: {e}"))?;
    let key =
        read(keyring_of(settings), &entity).with_context(|| format!("{name} cannot start"))?;
    let identity = match realm {
        Some(realm) => Identity::beside(entity, key, realm),
        None => Identity::new(entity, key),
    };
    Ok(DaemonAuth { identity: Some(identity), required })
}

/// With what a monitor goes to the others.
///
/// # Errors
/// When its name cannot be one.
pub fn monitor_login(me: &Peer, auth: &MonAuth) -> anyhow::Result<Arc<dyn Login>> {
    let Some(key) = &auth.shared else { return Ok(NoneLogin::of(me)) };
    let own = EntityId::new(EntityType::Mon, &me.id).map_err(|e| anyhow!("mon.{}: {e}", me.id))?;
    Ok(MonLogin::of(own, key.clone()))
}

/// Writes a keyring with one key, capabilities left out.
///
/// # Errors
/// When it cannot be written.
pub fn write_key(
    dir: &ClusterDir,
    name: &str,
    entity: &str,
    key: &CryptoKey,
) -> anyhow::Result<()> {
    let entity: EntityId = entity.parse().map_err(|e| anyhow!("{entity}: {e}"))?;
    let user = User { key: key.clone(), pending_key: None, caps: caps(&[]) };
    write(&path(dir, name), &entity, &user)
}

/// How a monitor lets others in.
#[derive(Clone)]
pub struct MonAuth {
    /// What it asks of others.
    pub required: Required,
    /// The key that all monitors share; `None` without authentication.
    pub shared: Option<CryptoKey>,
    /// What it knows of users and keys; kept new by its shell.
    pub realm: Arc<RwLock<Realm>>,
}

/// The same for a monitor.
///
/// # Errors
/// When its keyring cannot be read.
pub fn monitor(name: &str, settings: &Settings) -> anyhow::Result<MonAuth> {
    let required = required(settings)?;
    let shared = if required == Required::none() {
        None
    } else {
        let entity: EntityId = "mon.".parse().map_err(|e| anyhow!("mon.: {e}"))?;
        Some(
            read(keyring_of(settings), &entity)
                .with_context(|| format!("mon.{name} cannot start"))?,
        )
    };
    if required.cluster.is_empty() || required.service.is_empty() {
        bail!("auth_cluster_required and auth_service_required must name a method");
    }
    Ok(MonAuth { required, shared, realm: Arc::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_settings::Source;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn keyrings_are_made_once_and_for_their_owner_alone() {
        let at = std::env::temp_dir().join(format!("spirula-keys-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&at);
        std::fs::create_dir_all(&at).unwrap();
        let dir = ClusterDir::new(&at).unwrap();
        let daemons = ["mon.a", "mon.b", "mgr.x", "osd.0"].map(str::to_owned);
        let db = first_users(&dir, &daemons).unwrap();
        assert_eq!(db.iter().count(), 4, "the monitors share one user");
        for name in ["client.admin", "mon.a", "mon.b", "mgr.x", "osd.0"] {
            assert_eq!(
                std::fs::metadata(path(&dir, name)).unwrap().permissions().mode() & 0o777,
                0o600
            );
        }
        let osd: EntityId = "osd.0".parse().unwrap();
        assert_eq!(&read(&path(&dir, "osd.0"), &osd).unwrap(), db.key(&osd).unwrap());
        assert!(
            read(&path(&dir, "mgr.x"), &osd).unwrap_err().to_string().contains("no key of osd.0")
        );
        let again = first_users(&dir, &daemons).unwrap();
        assert_eq!(again.key(&osd).unwrap(), db.key(&osd).unwrap());
        std::fs::remove_dir_all(&at).unwrap();
    }

    #[test]
    fn options_choose_methods_and_modes() {
        let mut s = Settings::default();
        assert_eq!(required(&s).unwrap(), Required::cephx());
        s.set(Source::File, "auth_service_required", "cephx, none").unwrap();
        assert!(!required(&s).unwrap().is_safe());
        s.set(Source::File, "auth_service_required", "kerberos").unwrap();
        assert!(required(&s).unwrap_err().to_string().contains("kerberos"));
        assert_eq!(modes(&s, true).unwrap().cluster.to_string(), "secure crc");
        s.set(Source::File, "ms_cluster_mode", "crc").unwrap();
        assert_eq!(modes(&s, true).unwrap().cluster.to_string(), "crc");
        s.set(Source::File, "ms_client_mode", "tls").unwrap();
        assert!(modes(&s, true).unwrap_err().to_string().contains("ms_client_mode"));
    }
}
