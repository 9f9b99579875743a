//! Block images for those who do not have Ceph's client: `spirula nbd serve`, `spirula image map`.
//!
//! * [`rados`]: a client of the cluster, in one thread
//! * [`nbd`]: images served by the protocol NBD
//! * [`map`]: an image as a block device; [`fuse`]: as a file
//!
//! What an image is, is in the crate `spirula-block`. All of one process runs in one thread.

mod fuse;
pub mod map;
pub mod nbd;
mod rados;

use crate::cluster::{CLUSTER, host};
use crate::dir::ClusterDir;
use crate::keys;
use crate::options::{Names, Sources};
use crate::process::find_mons;
use anyhow::{Context, anyhow};
use clap::Args as ClapArgs;
use rados::Client;
use spirula_block::{Image, Spec};
use spirula_types::EntityType;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// How long the end of a process waits for what is under way.
const LAST: Duration = Duration::from_secs(10);

/// How a client of a cluster finds it and gets in.
#[derive(Debug, Clone, ClapArgs)]
pub struct ClientArgs {
    /// Directory of a host or cluster of Spirula's that holds ceph.conf and keyrings
    #[arg(long, default_value = "./spirula-data")]
    dir: PathBuf,
    /// Configuration file [default: $SPIRULA_CONF, DIR/ceph.conf, $CEPH_CONF, /etc/ceph/ceph.conf]
    #[arg(long, short)]
    conf: Option<PathBuf>,
    /// The user is client.ID
    #[arg(long, default_value = "admin")]
    id: String,
    /// Keyring with that user's key [default: as the configuration says, else
    /// /etc/ceph/ceph.client.ID.keyring]
    #[arg(long, short)]
    keyring: Option<PathBuf>,
}

impl ClientArgs {
    async fn connect(&self) -> anyhow::Result<Rc<Client>> {
        let dir = ClusterDir::new(&self.dir)?;
        let mut set = Vec::new();
        set.extend(self.keyring.as_ref().map(|k| format!("keyring={}", k.display())));
        let sources = Sources::read(dir.path(), self.conf.as_deref(), &set)?;
        let here = host::hostname();
        let names = Names {
            cluster: CLUSTER,
            kind: EntityType::Client.as_str(),
            id: &self.id,
            host: &here,
        };
        let mut paths = dir.path_options();
        let own = keys::path(&dir, &names.name());
        let common = PathBuf::from(format!("/etc/ceph/{CLUSTER}.{}.keyring", names.name()));
        if !own.exists() && common.exists() {
            paths.retain(|(name, _)| *name != "keyring");
            paths.push(("keyring", common.display().to_string()));
        }
        let settings = sources.settings(names, &paths)?;
        let auth = keys::daemon(&names.name(), &settings, None)?;
        Client::connect(find_mons(&settings, &dir)?, &self.id, auth, &settings).await
    }
}

/// Runs something of images to its end, in this thread.
fn run<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start an event loop")?;
    let local = tokio::task::LocalSet::new();
    let result = local.block_on(&runtime, work);
    runtime.shutdown_background();
    result
}

/// Opens an image, with a client of its own: to the cluster they are one whom it can refuse, should
/// somebody take the image's lock for abandoned, and other images of the same process have nothing
/// to do with that.
async fn open(args: &ClientArgs, spec: &Spec, writes: bool) -> anyhow::Result<Rc<Image<Client>>> {
    let client = args.connect().await?;
    Image::open(&client, spec, writes).await.map_err(|e| anyhow!("{e}"))
}

/// Closes images, as far as the cluster lets them within [`LAST`].
async fn close(images: impl IntoIterator<Item = Rc<Image<Client>>>) {
    // Each by itself: one that is stuck keeps no other's lock.
    let closing: Vec<_> = images
        .into_iter()
        .map(|image| tokio::task::spawn_local(async move { image.close().await }))
        .collect();
    let all = async {
        for one in closing {
            // It does not end otherwise.
            let _ = one.await;
        }
    };
    if tokio::time::timeout(LAST, all).await.is_err() {
        tracing::warn!("the cluster does not answer; the images' locks are left to time");
    }
}
