//! Is a snapshot that is open still there?
//!
//! A snapshot does not change, so that nobody need watch it. But it may be removed while it is
//! open, and then its objects go one by one: what was data looks like a hole. So an object of a
//! snapshot that does not exist counts as a hole only if the header says *afterwards* that the
//! snapshot is there. librbd removes one in this order: it moves it to the trash, has the monitors
//! give its number up, whereupon OSDs begin to trim, and forgets it. What is in the trash is
//! therefore as good as gone.
//!
//! Holes that are met while one question is under way share the next one. Snapshots that clones
//! have as parents are not asked for: they cannot be removed while they have any.

use crate::header::{self, ask};
use crate::image::{Image, outputs_of};
use crate::rados::Rados;
use spirula_types::errno;
use std::cell::Cell;
use tokio::sync::Mutex;

/// What is known of an open snapshot.
#[derive(Default)]
pub(crate) struct Presence {
    /// How often somebody wanted to know, and how many of them the newest answer is for.
    wanted: Cell<u64>,
    answered: Cell<u64>,
    asking: Mutex<()>,
    gone: Cell<bool>,
}

impl Presence {
    /// Was it seen to be removed?
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.get()
    }
}

impl<R: Rados> Image<R> {
    /// An object does not exist: was it so in the snapshot that is open, if one is?
    ///
    /// # Errors
    /// −errno: ENOENT if the snapshot is removed, for ever after.
    pub(crate) async fn is_hole(&self) -> Result<(), i32> {
        let Some(snap) = self.snap.filter(|_| !self.is_parent()) else { return Ok(()) };
        let p = &self.presence;
        let mine = p.wanted.get() + 1;
        p.wanted.set(mine);
        let _one = p.asking.lock().await;
        if p.is_gone() {
            return Err(-errno::ENOENT);
        }
        if p.answered.get() >= mine {
            return Ok(());
        }
        let all = p.wanted.get();
        let there =
            match outputs_of::<1>(self.on_header(vec![ask::at("snapshot_get", snap)], false).await)
            {
                Ok([answer]) => header::snapshot(&answer).map_err(|_| -errno::EIO)?.is_some(),
                Err(r) if r == -errno::ENOENT => false,
                Err(r) => return Err(r),
            };
        if !there {
            tracing::error!("{}: the snapshot has been removed", self.name);
            p.gone.set(true);
            return Err(-errno::ENOENT);
        }
        p.answered.set(all);
        Ok(())
    }
}
