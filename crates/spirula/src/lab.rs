//! What the lab (`spirula bench`, `spirula drill`, `spirula report`) borrows from this program: the
//! way to a cluster.

use crate::cluster::{CLUSTER, host};
use crate::dir::ClusterDir;
use crate::options::{Names, Sources};
use crate::process::find_mons;
use crate::{keys, signals};
use anyhow::{Context, bail};
use spirula_auth::EntityId;
use spirula_lab::args::{Lab, Target};
use spirula_lab::session::Way;
use spirula_runtime::cephx::{DaemonAuth, Identity, Required};
use spirula_settings::Settings;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the lab works with. From now on SIGINT and SIGTERM ask it to end; a second one ends the
/// process.
///
/// # Errors
/// When signals cannot be caught.
pub fn lab() -> anyhow::Result<Lab> {
    crate::logs::init();
    let stop = Arc::new(AtomicBool::new(false));
    let asked = stop.clone();
    signals::on_stop(move || asked.store(true, Ordering::Relaxed))?;
    Ok(Lab { connect: Box::new(way), print: |text| crate::out!("{text}"), stop })
}

/// The keyring of a user: what the options name, or where Ceph's clients look.
fn keyring(settings: &Settings, dir: &Path, entity: &EntityId) -> anyhow::Result<PathBuf> {
    let set = settings.given("keyring").unwrap_or_default();
    let set = set.split(',').map(|p| PathBuf::from(p.trim())).filter(|p| !p.as_os_str().is_empty());
    let name = format!("{CLUSTER}.{entity}.keyring");
    let usual = [dir.join(&name), Path::new("/etc/ceph").join(&name), "/etc/ceph/keyring".into()];
    let all: Vec<PathBuf> = set.chain(usual).collect();
    let found = all.iter().find(|p| p.exists()).cloned();
    found.with_context(|| {
        let all: Vec<String> = all.iter().map(|p| p.display().to_string()).collect();
        format!("there is no keyring of {entity}; looked for {}", all.join(", "))
    })
}

/// The way to the cluster of a directory or a configuration file.
fn way(target: &Target) -> anyhow::Result<Way> {
    let parent = target
        .conf
        .as_deref()
        .map(|c| c.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")));
    let dir = ClusterDir::new(parent.unwrap_or(&target.dir))?;
    let sources = Sources::read(dir.path(), target.conf.as_deref(), &[])?;
    let Some((kind, user)) =
        target.name.split_once('.').filter(|(k, u)| *k == "client" && !u.is_empty())
    else {
        bail!("--name {}: a user is named client.NAME", target.name);
    };
    let here = host::hostname();
    let names = Names { cluster: CLUSTER, kind, id: user, host: &here };
    let settings = sources.settings(names, &[])?;
    let mons = find_mons(&settings, &dir).with_context(|| {
        format!(
            "no cluster is named: {} holds none, and no ceph.conf was found; give --dir or --conf",
            dir.path().display()
        )
    })?;
    let method = settings.get("auth_client_required").unwrap_or("cephx");
    let methods =
        Required::methods(method).map_err(|e| anyhow::anyhow!("auth_client_required: {e}"))?;
    let auth: Arc<dyn Fn() -> DaemonAuth + Send + Sync> = if methods == Required::none().service {
        Arc::new(DaemonAuth::none)
    } else {
        let entity: EntityId =
            target.name.parse().map_err(|e| anyhow::anyhow!("--name {}: {e}", target.name))?;
        let key = keys::read(&keyring(&settings, dir.path(), &entity)?, &entity)?;
        Arc::new(move || {
            let identity = Some(Identity::new(entity.clone(), key.clone()));
            DaemonAuth { identity, required: Required::cephx() }
        })
    };
    let own = dir.join("cluster.json").exists().then(|| dir.path().to_owned());
    let conf = target.conf.clone().or_else(|| Some(dir.conf())).filter(|c| c.exists());
    Ok(Way {
        mons,
        user: user.to_owned(),
        auth,
        modes: keys::modes(&settings, false)?,
        dir: own,
        conf,
    })
}
