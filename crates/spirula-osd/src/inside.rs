//! What `ceph tell` asks of the store and of the queues before it: caches, an object's omap,
//! fragmentation, who waits.
//!
//! Only who may do everything gets here ([`crate::access`]), so that an omap is shown to nobody who
//! could not read it as a client. Nothing here changes what is stored.

use crate::osd::OsdCore;
use crate::tell::Answer;
use bytes::Bytes;
use serde_json::json;
use spirula_pg::TurnKind;
use spirula_store::StoreError;
use spirula_types::{HObject, errno};

/// Bytes of an omap that one answer holds at most.
const OMAP_SHOWN: usize = 1 << 20;

/// `[NAMESPACE/]NAME`, as Ceph's OSD takes it.
fn split(name: &str) -> (&str, &str) {
    name.split_once('/').unwrap_or(("", name))
}

fn failed(e: &StoreError) -> Answer {
    Answer::fail(errno::EIO, e.to_string())
}

fn no_store() -> Answer {
    Answer::fail(errno::EAGAIN, "the store is closed")
}

impl OsdCore {
    /// Ceph's counts: objects with requests under way, objects' records, other parts of what the
    /// store remembers. Of data only that of large reads is kept here, if there is memory for it;
    /// other data is in the system's cache, which counts for itself.
    pub(crate) fn cache_status(&self) -> Answer {
        let cached = self.store.as_ref().map(spirula_store::Store::cached).unwrap_or_default();
        let busy: std::collections::BTreeSet<_> =
            self.requests.all().map(|(_, p)| (p.pg, &p.what.0)).collect();
        Answer::json(&json!({
            "object_ctx": busy.len(),
            "bluestore_onode": cached.heads,
            "bluestore_buffers": cached.parts,
            "metadata_bytes": cached.tree_bytes,
            "data_bytes": cached.kept_bytes,
        }))
    }

    pub(crate) fn drop_caches(&mut self) -> Answer {
        match self.store.as_mut().map(spirula_store::Store::drop_caches) {
            Some(Ok(())) => Answer::default(),
            Some(Err(e)) => failed(&e),
            None => no_store(),
        }
    }

    pub(crate) fn fragmentation(&self, by_lengths: bool) -> Answer {
        let Some(store) = &self.store else { return no_store() };
        let f = store.fragmentation();
        Answer::json(&json!({"fragmentation_rating": if by_lengths { f.score } else { f.pieces }}))
    }

    /// An object's omap in Ceph's one line.
    pub(crate) fn omap_of(&self, pool: &str, name: &str) -> Answer {
        let (Some(map), Some(store)) = (self.maps.map(), &self.store) else { return no_store() };
        let id = map
            .pool_names
            .iter()
            .find(|(_, n)| *n == pool)
            .map(|(id, _)| *id)
            .or_else(|| pool.parse().ok());
        let Some((id, stored_as)) = id.and_then(|id| Some((id, map.pool(id)?))) else {
            return Answer::fail(errno::ENOENT, format!("Invalid pool '{pool}'"));
        };
        if stored_as.is_erasure() {
            return Answer::fail(errno::EINVAL, "Must not call on ec pool");
        }
        let (namespace, name) = split(name);
        let object = HObject::head(
            id,
            Bytes::copy_from_slice(namespace.as_bytes()),
            Bytes::new(),
            Bytes::copy_from_slice(name.as_bytes()),
        );
        let held = map.hobject_to_pg(&object).is_some_and(|pg| self.led(pg).is_some());
        if !held {
            return Answer::fail(
                errno::ENOENT,
                format!("no PG of this OSD holds {name}: see `ceph osd map {pool} {name}`"),
            );
        }
        let header = store.omap_header(&object);
        let pairs = store.omap_range(&object, None, b"", usize::MAX, OMAP_SHOWN);
        match (header, pairs) {
            (Err(e), _) | (_, Err(e)) => failed(&e),
            (Ok(Some(_)), Ok(Some(page))) if page.more => {
                let why = format!(
                    "more than {OMAP_SHOWN} bytes: use `rados -p {pool} listomapvals {name}`"
                );
                Answer::fail(errno::E2BIG, why)
            }
            (Ok(Some(header)), Ok(Some(page))) => {
                let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
                let mut output = format!("header={}", text(&header));
                for (key, value) in &page.pairs {
                    output += &format!(" key={} val={}", text(key), text(value));
                }
                Answer { output: output + "\n", ..Answer::default() }
            }
            (Ok(None), _) | (_, Ok(None)) => Answer::fail(
                errno::ENOENT,
                format!("error 2 getting omap: no object {name} in pool {pool}"),
            ),
        }
    }

    /// One queue, since one loop serves all: background work that waits for a turn, by what it is,
    /// with Ceph's keys. Requests of clients wait in no queue but that of their object
    /// (`dump_ops_in_flight`).
    pub(crate) fn dump_queues(&self) -> Answer {
        let row = |(priority, what): (u32, TurnKind)| {
            let size =
                self.sched.wanted(|pg| self.pgs.get(pg).and_then(|p| p.turn_kind()) == Some(what));
            (size > 0).then(|| json!({"priority": priority, "size": size, "num_keys": size}))
        };
        let rows = [(3, TurnKind::Recovery), (2, TurnKind::Removal), (1, TurnKind::Scrub)];
        Answer::json(&json!({"OSD:ShardedOpWQ:0": {
            "high_queues": [],
            "queues": rows.into_iter().filter_map(row).collect::<Vec<_>>(),
        }}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_stands_before_the_first_slash() {
        assert_eq!(split("o"), ("", "o"));
        assert_eq!(split("ns/o"), ("ns", "o"));
        assert_eq!(split("ns/a/b"), ("ns", "a/b"));
    }
}
