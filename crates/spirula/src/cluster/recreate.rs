//! An OSD whose store cannot be used gets a new, empty one with its number (`spirula osd
//! recreate`).
//!
//! To the cluster it is a new OSD: the old identity is destroyed first, so that nobody takes the
//! empty store for one that holds nothing because nothing was written. What is left of the old
//! store is moved aside, not deleted. Each step can be done again: one that was interrupted is
//! begun anew.

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
    /// When it runs, when its old store may hold the only copy of something, something else is done
    /// with an OSD, or a step fails.
    pub fn recreate_osd(&self, id: i32) -> anyhow::Result<String> {
        let inner = &self.0;
        // For all, since the cluster's manifest names them all.
        let _turn = inner.turns.of_all(&format!("making osd.{id} anew"))?;
        let n = usize::try_from(id).unwrap_or(usize::MAX);
        // Whoever was destroyed may not come up, however whole its store is: it runs and is
        // refused, or was stopped for that.
        let destroyed = self.is_given_up(id);
        let (runs, away) = match locked(&inner.osds).get(&id) {
            None => bail!(
                "there is no osd.{id}; this cluster has osd.0 to osd.{}",
                inner.manifest.osd_uuids.len() - 1
            ),
            Some(OsdSlot::Running(_)) if !destroyed => {
                bail!("osd.{id} is running; nothing is wrong with its store")
            }
            Some(OsdSlot::Running(_)) => (true, 1),
            Some(OsdSlot::Stopped(Stopped::Asked)) if !destroyed => {
                bail!(
                    "osd.{id} was stopped, and its store is whole for all that is known; 'spirula \
                        osd start {id}' starts it"
                )
            }
            Some(OsdSlot::Stopped(Stopped::Asked)) => (false, 1),
            Some(OsdSlot::Stopped(_)) => (false, 0),
        };
        self.spared(id, away)?;
        let data = osd_dir(&inner.dir, n);
        let aside = if runs {
            // Until something is moved it runs again, whatever fails.
            let aside = self.stop_for_a_while(id).and_then(|()| move_aside(&data));
            aside.inspect_err(|_| {
                if let Err(e) = self.bring_back(id) {
                    tracing::warn!("osd.{id} does not come back: {e:#}");
                }
            })?
        } else {
            move_aside(&data)?
        };
        // What is there now is no store that could be started, or a new one.
        inner.away.forget(id);
        let made = self.make_anew(id, n, aside);
        if let Err(e) = &made
            && let Some(slot @ OsdSlot::Stopped(_)) = locked(&inner.osds).get_mut(&id)
        {
            // Whatever it was before: its store is not whole now, and this can be done again.
            *slot = OsdSlot::Stopped(Stopped::Store(format!("it was not made anew: {e:#}")));
        }
        if made.is_err() {
            inner.tell_stopped();
        }
        made
    }

    /// [`Self::recreate_osd`] of one that is stopped, and that nobody needs; its old store was
    /// moved to `aside`.
    fn make_anew(&self, id: i32, n: usize, aside: Option<PathBuf>) -> anyhow::Result<String> {
        let inner = &self.0;
        let data = osd_dir(&inner.dir, n);
        let mut bytes = [0; 16];
        random(&mut bytes).context("draw an id")?;
        let uuid = Uuid::from_random(bytes);
        self.ask(json!({"prefix": "osd destroy", "id": id.to_string(), "force": true, "yes_i_really_mean_it": true}))?;
        self.ask(json!({"prefix": "osd new", "uuid": uuid.to_string(), "id": id.to_string()}))?;
        if inner.manifest.auth {
            let name = format!("osd.{id}");
            let caps: Vec<String> =
                keys::daemon_caps("osd").into_iter().flat_map(|(on, may)| [on, may]).collect();
            let key =
                self.ask(json!({"prefix": "auth get-or-create", "entity": name, "caps": caps}))?;
            dir::write_durably(&keys::path(&inner.dir, &name), &key, 0o600)?;
        }
        let opts = osd::store_options(inner.manifest.osd_size, 16 << 20, PayloadPool::new(1 << 20));
        Store::create(&data, inner.manifest.fsid, uuid, id, &opts)
            .map_err(|e| anyhow!("create osd.{id}: {e}"))?;
        let uuids = {
            let mut uuids = locked(&inner.uuids);
            if let Some(own) = uuids.get_mut(n) {
                *own = uuid;
            }
            uuids.clone()
        };
        inner.dir.write_manifest(&dir::Manifest { osd_uuids: uuids, ..inner.manifest.clone() })?;
        self.start_osd_in_turn(id)?;
        let left = aside.map_or_else(String::new, |a| {
            format!("; what was left of its old store is in {}", a.display())
        });
        Ok(format!("osd.{id} runs on a new, empty store, which the others fill{left}"))
    }

    /// Did somebody give up its data (`ceph osd destroy`), and perhaps its number, too (`ceph osd
    /// new`)? Not so, if the monitors do not say.
    fn is_given_up(&self, id: i32) -> bool {
        let map = self.ask(json!({"prefix": "osd dump", "format": "json"}));
        let map: serde_json::Value =
            map.ok().and_then(|m| serde_json::from_slice(&m).ok()).unwrap_or_default();
        let of_it = |o: &&serde_json::Value| o["osd"].as_i64() == Some(id.into());
        let Some(osd) = map["osds"].as_array().and_then(|all| all.iter().find(of_it)) else {
            return false;
        };
        let has =
            |state: &str| osd["state"].as_array().is_some_and(|all| all.iter().any(|s| s == state));
        let own = usize::try_from(id).ok().and_then(|n| locked(&self.0.uuids).get(n).copied());
        let theirs = osd["uuid"].as_str().and_then(Uuid::parse).filter(|u| !u.is_zero());
        // Whoever is up with another identity has its data elsewhere, and is left alone.
        has("destroyed") || theirs.is_some() && theirs != own && !has("up")
    }

    /// Fails unless the cluster has everything without this OSD: every PG is served, which takes
    /// `min_size` members that know of every acknowledged write, and no object is wanted in vain.
    /// `away`: it is not up, though it did not fail.
    fn spared(&self, id: i32, away: usize) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let states = self.pg_states_without(away);
            if states.is_some_and(|s| s.total == s.active && s.unfound == 0) {
                return Ok(());
            }
            if begun.elapsed() > STOP_PATIENCE {
                let what = states.map_or_else(
                    || "the cluster does not say how its placement groups are".to_owned(),
                    |s| {
                        format!(
                            "of {} placement groups {} are served, {} miss objects",
                            s.total, s.active, s.unfound
                        )
                    },
                );
                bail!(
                    "{what}: the old store of osd.{id} may hold the only copy of something \
                        ({CLUSTER} health detail)"
                );
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The monitor's answer to a command.
    fn ask(&self, command: serde_json::Value) -> anyhow::Result<bytes::Bytes> {
        let begun = Instant::now();
        loop {
            let (code, words, out) = self
                .0
                .admin
                .command(&command.to_string())
                .context("the monitor does not answer")?;
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
                "{} is a link to a device: replace the device, make its store with 'spirula osd \
                    prepare', and see docs/store.md",
                path.display()
            );
        }
    }
    for n in 1.. {
        let mut name = std::ffi::OsString::from(format!("old-{n}-"));
        name.push(data.file_name().unwrap_or_default());
        let to = data.with_file_name(name);
        if std::fs::symlink_metadata(&to).is_err() {
            std::fs::rename(data, &to)
                .with_context(|| format!("move {} to {}", data.display(), to.display()))?;
            return Ok(Some(to));
        }
    }
    Ok(None)
}
