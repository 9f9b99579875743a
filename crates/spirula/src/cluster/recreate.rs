//! An OSD whose store cannot be used gets a new, empty one with its number (`spirula osd recreate`).
//!
//! To the cluster it is a new OSD: the old identity is destroyed first, so that nobody takes the empty
//! store for one that holds nothing because nothing was written. What is left of the old store is
//! moved aside, not deleted. Each step can be done again: one that was interrupted is begun anew.

use super::{CLUSTER, Cluster, OsdSlot, STOP_PATIENCE, Stopped, locked, osd, osd_dir};
use crate::cluster::host::random;
use crate::{dir, keys};
use anyhow::{Context, anyhow, bail};
use serde_json::json;
use spirula_buffer::PayloadPool;
use spirula_store::Store;
use spirula_types::Uuid;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

impl Cluster {
    /// Makes the store of a stopped OSD anew and starts it.
    ///
    /// # Errors
    /// When it runs, when its old store may hold the only copy of something, something else is done with an OSD, or a step fails.
    pub fn recreate_osd(&self, id: i32) -> anyhow::Result<String> {
        let inner = &self.0;
        // For all, since the cluster's manifest names them all.
        let _turn = inner.turns.of_all(&format!("making osd.{id} anew"))?;
        let n = usize::try_from(id).unwrap_or(usize::MAX);
        match locked(&inner.osds).get(&id) {
            None => bail!("there is no osd.{id}; this cluster has osd.0 to osd.{}", inner.manifest.osd_uuids.len() - 1),
            Some(OsdSlot::Running(_)) => bail!("osd.{id} is running; nothing is wrong with its store"),
            Some(OsdSlot::Stopped(Stopped::Asked)) => {
                bail!(
                    "osd.{id} was stopped, and its store is whole for all that is known; 'spirula osd start {id}' starts it"
                )
            }
            Some(OsdSlot::Stopped(_)) => {}
        }
        self.spared(id)?;
        let data = osd_dir(&inner.dir, n);
        let aside = move_aside(&data)?;
        let mut bytes = [0; 16];
        random(&mut bytes).context("draw an id")?;
        let uuid = Uuid::from_random(bytes);
        self.ask(json!({"prefix": "osd destroy", "id": id.to_string(), "force": true, "yes_i_really_mean_it": true}))?;
        self.ask(json!({"prefix": "osd new", "uuid": uuid.to_string(), "id": id.to_string()}))?;
        if inner.manifest.auth {
            let name = format!("osd.{id}");
            let caps: Vec<String> = keys::daemon_caps("osd").into_iter().flat_map(|(on, may)| [on, may]).collect();
            let key = self.ask(json!({"prefix": "auth get-or-create", "entity": name, "caps": caps}))?;
            dir::write_durably(&keys::path(&inner.dir, &name), &key, 0o600)?;
        }
        let opts = osd::store_options(inner.manifest.osd_size, 16 << 20, PayloadPool::new(1 << 20));
        Store::create(&data, inner.manifest.fsid, uuid, id, &opts).map_err(|e| anyhow!("create osd.{id}: {e}"))?;
        let uuids = {
            let mut uuids = locked(&inner.uuids);
            if let Some(own) = uuids.get_mut(n) {
                *own = uuid;
            }
            uuids.clone()
        };
        inner.dir.write_manifest(&dir::Manifest { osd_uuids: uuids, ..inner.manifest.clone() })?;
        self.start_osd_in_turn(id)?;
        let left =
            aside.map_or_else(String::new, |a| format!("; what was left of its old store is in {}", a.display()));
        Ok(format!("osd.{id} runs on a new, empty store, which the others fill{left}"))
    }

    /// Fails unless the cluster has everything without this OSD: every PG is served, which takes
    /// `min_size` members that know of every acknowledged write, and no object is wanted in vain.
    fn spared(&self, id: i32) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let states = self.pg_states();
            if states.is_some_and(|s| s.total == s.active && s.unfound == 0) {
                return Ok(());
            }
            if begun.elapsed() > STOP_PATIENCE {
                let what = states.map_or_else(
                    || "the cluster does not say how its placement groups are".to_owned(),
                    |s| format!("of {} placement groups {} are served, {} miss objects", s.total, s.active, s.unfound),
                );
                bail!(
                    "{what}: the old store of osd.{id} may hold the only copy of something ({CLUSTER} health detail)"
                );
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The monitor's answer to a command.
    fn ask(&self, command: serde_json::Value) -> anyhow::Result<bytes::Bytes> {
        let begun = Instant::now();
        loop {
            let (code, words, out) =
                self.0.admin.command(&command.to_string()).context("the monitor does not answer")?;
            if code == 0 {
                return Ok(out);
            }
            // It may not have learned yet that the OSD is down.
            if begun.elapsed() > STOP_PATIENCE || !words.contains("not `down`") {
                bail!("{}: {words}", command["prefix"].as_str().unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Moves what is left of a store out of the way. `None` if there is nothing.
fn move_aside(data: &Path) -> anyhow::Result<Option<PathBuf>> {
    if std::fs::symlink_metadata(data).is_err() {
        return Ok(None);
    }
    for name in ["block", "journal", "meta"] {
        let path = data.join(name);
        if path.is_symlink() {
            bail!(
                "{} is a link to a device: replace the device, make its store with 'spirula osd prepare', and see docs/store.md",
                path.display()
            );
        }
    }
    for n in 1.. {
        let mut name = std::ffi::OsString::from(format!("old-{n}-"));
        name.push(data.file_name().unwrap_or_default());
        let to = data.with_file_name(name);
        if std::fs::symlink_metadata(&to).is_err() {
            std::fs::rename(data, &to).with_context(|| format!("move {} to {}", data.display(), to.display()))?;
            return Ok(Some(to));
        }
    }
    Ok(None)
}
