//! Work on a store that is not in use: checking, counting, showing, carrying its content
//! elsewhere. All of it goes through [`Store`], so that what the journal holds is seen too.

mod check;
mod export;
mod show;

pub use check::{Check, check};
pub use export::{Bad, Exported, Filter, Imported, examine, export, import};
pub use show::{DeviceInfo, FreeRuns, ObjectDump, Piece, Stats, devices, dump_object, stats};

use crate::error::Result;
use crate::store::Store;
use spirula_types::HObject;

/// Objects listed at a time.
const PAGE: usize = 512;

/// Calls `each` with every object, in order.
///
/// # Errors
/// Those of reading metadata, and of `each`.
pub fn for_each_object(store: &Store, mut each: impl FnMut(&HObject) -> Result<()>) -> Result<()> {
    let mut from = HObject::min();
    loop {
        let page = store.list(&from, &HObject::max(), PAGE)?;
        let more = page.len() == PAGE;
        for o in &page {
            // The last of one page is the first of the next.
            if *o != from {
                each(o)?;
            }
        }
        match page.into_iter().next_back() {
            Some(last) if more => from = last,
            _ => return Ok(()),
        }
    }
}
