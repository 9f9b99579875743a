//! Whether a map makes sense as a whole.

use crate::error::CrushError;
use crate::map::{CrushMap, Step, step_op};

/// Device ids are below this: what an OSD map can hold.
const DEVICES_MAX: i32 = 1 << 17;

impl CrushMap {
    /// Checks what the decoder does not: no loops, no links to missing buckets, arrays as
    /// long as their buckets, types and rules that make sense. For maps an operator sends.
    ///
    /// # Errors
    /// [`CrushError::Loop`], [`CrushError::Inconsistent`].
    pub fn check(&self) -> Result<(), CrushError> {
        self.bottom_up()?;
        let bad = |what: String| Err(CrushError::Inconsistent(what));
        if self.max_devices > DEVICES_MAX {
            return bad(format!(
                "device ids reach {}, at most {DEVICES_MAX} are allowed",
                self.max_devices
            ));
        }
        for b in self.buckets.iter().flatten() {
            if !b.is_well_formed() {
                return bad(format!("bucket {} has arrays of wrong length", b.id));
            }
            if b.kind == 0 || !self.type_names.contains_key(&i32::from(b.kind)) {
                return bad(format!("bucket {} has unknown type {}", b.id, b.kind));
            }
            if !self.names.contains_key(&b.id) {
                return bad(format!("bucket {} has no name", b.id));
            }
            if let Some(item) = b.items.iter().find(|i| **i < 0 && self.bucket(**i).is_none()) {
                return bad(format!("bucket {} holds {item}, which does not exist", b.id));
            }
        }
        for args in self.choose_args.values() {
            for (slot, arg) in args {
                let size = self
                    .buckets
                    .get(*slot as usize)
                    .and_then(Option::as_ref)
                    .map(|b| b.items.len());
                if arg.weight_sets.iter().any(|s| Some(s.len()) != size) {
                    return bad(format!(
                        "weight set of bucket {} has wrong length",
                        !(*slot as i32)
                    ));
                }
            }
        }
        for (id, rule) in self.rules.iter().enumerate() {
            let Some(rule) = rule else { continue };
            if usize::from(rule.ruleset) != id {
                return bad(format!("rule {id} has ruleset {}", rule.ruleset));
            }
            let missing =
                |s: &&Step| s.op == step_op::TAKE && s.arg1 < 0 && self.bucket(s.arg1).is_none();
            if let Some(s) = rule.steps.iter().find(missing) {
                return bad(format!("rule {id} takes {}, which does not exist", s.arg1));
            }
        }
        Ok(())
    }
}
