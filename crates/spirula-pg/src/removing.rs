//! A copy that is deleted, some objects for each turn that the shell gives, and its record last.

use crate::api::{PgEffect, ReadKey};
use crate::commits::After;
use crate::copy::Change;
use crate::copy::removals;
use crate::core::{Cx, PgCore};
use crate::erasure::undo;
use crate::exec::{ObjectReader, ReadError};
use spirula_types::HObject;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Removing {
    /// A deletion that could not go on does so then, monotonic milliseconds; 0: none waits.
    again_ms: u64,
    /// It waits for this read.
    read: Option<u64>,
}

impl Removing {
    /// Does it matter that time passes?
    pub fn wants_tick(&self) -> bool {
        self.again_ms > 0
    }

    /// Is this what it waits for? Then it may go on.
    pub fn is_read(&mut self, n: u64) -> bool {
        self.read.take_if(|read| *read == n).is_some()
    }

    /// Time passed.
    pub fn tick(&mut self, cx: &mut Cx<'_>) {
        if (1..=cx.now.mono_ms).contains(&self.again_ms) {
            self.again_ms = 0;
            cx.out.push(PgEffect::WantTurn);
        }
    }

    /// Deletes the next objects, and the last trace after the last object: then true.
    pub fn go_on(&mut self, core: &mut PgCore, cx: &mut Cx<'_>) -> bool {
        match next(core, cx.reader) {
            Ok(objects) if objects.is_empty() => {
                let change = core.copy.is_gone();
                core.submit(change, After::Gone, cx);
                return true;
            }
            Ok(objects) => {
                let change = Change::of_objects(removals(objects));
                core.submit(change, After::Remove, cx);
            }
            Err(ReadError::NotReady(what)) => {
                let n = core.seq();
                self.read = Some(n);
                cx.out.push(PgEffect::Prefetch(ReadKey::Recovery(n), what));
            }
            Err(e) => {
                tracing::error!(pg = %core.id, error = %e, "list objects for deletion: tried again \
                    later");
                self.again_ms = (cx.now.mono_ms + core.cfg.retry_ms).max(1);
            }
        }
        false
    }
}

/// What a deletion takes next: objects, then what was kept so that entries could be taken back.
fn next(core: &PgCore, reader: &dyn ObjectReader) -> Result<Vec<HObject>, ReadError> {
    let max = core.cfg.remove_batch.max(1);
    let (first, end) = core.span();
    let objects = reader.list(&first, &end, max)?;
    if !objects.is_empty() {
        return Ok(objects);
    }
    undo::undo_copies(core, reader, core.info().map_or(0, |i| i.pg_num), max)
}
