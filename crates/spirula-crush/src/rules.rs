//! Creating, removing and renaming rules.

use crate::error::CrushError;
use crate::lookup::NAME_MAX;
use crate::map::{CrushMap, Rule, Step, step_op};

/// Rule for replicated pools.
pub const RULE_REPLICATED: u8 = 1;
/// Rule for erasure-coded pools.
pub const RULE_ERASURE: u8 = 3;

/// What a simple rule does: take a root, choose one device in each of n failure domains.
#[derive(Debug, Clone)]
pub struct SimpleRule<'a> {
    /// Name of the rule.
    pub name: &'a str,
    /// Bucket to start from.
    pub root: &'a str,
    /// Type to spread over; empty or the device type chooses devices directly.
    pub failure_domain: &'a str,
    /// Only devices of this class.
    pub class: Option<&'a str>,
    /// Keep positions (indep, for erasure codes) instead of closing gaps (firstn).
    pub indep: bool,
    /// [`RULE_REPLICATED`] or [`RULE_ERASURE`].
    pub kind: u8,
}

impl CrushMap {
    /// Adds the rule that `osd crush rule create-replicated` makes. Returns its id.
    ///
    /// # Errors
    /// [`CrushError`]: name taken, no such root, type or class, no devices of the class.
    pub fn create_replicated(
        &mut self,
        name: &str,
        root: &str,
        failure_domain: &str,
        class: Option<&str>,
    ) -> Result<u32, CrushError> {
        self.create_simple(&SimpleRule {
            name,
            root,
            failure_domain,
            class,
            indep: false,
            kind: RULE_REPLICATED,
        })
    }

    /// Adds the rule that an erasure-code profile asks for, for `chunks` = k + m positions.
    /// Returns its id.
    ///
    /// # Errors
    /// As [`create_replicated`](Self::create_replicated).
    pub fn create_erasure(
        &mut self,
        name: &str,
        root: &str,
        failure_domain: &str,
        class: Option<&str>,
        chunks: u8,
    ) -> Result<u32, CrushError> {
        let id = self.create_simple(&SimpleRule {
            name,
            root,
            failure_domain,
            class,
            indep: true,
            kind: RULE_ERASURE,
        })?;
        if let Some(Some(rule)) = self.rules.get_mut(id as usize) {
            rule.max_size = chunks;
        }
        Ok(id)
    }

    /// Adds a rule of the simple form in the first free slot. Returns its id.
    ///
    /// # Errors
    /// As [`create_replicated`](Self::create_replicated).
    pub fn create_simple(&mut self, r: &SimpleRule<'_>) -> Result<u32, CrushError> {
        if self.rule_of_name(r.name).is_some() {
            return Err(CrushError::Exists(r.name.to_owned()));
        }
        // A coded pool's rule has the pool's name, with whatever characters.
        if r.name.len() > NAME_MAX {
            return Err(CrushError::BadName(r.name.to_owned()));
        }
        let mut root =
            self.item_id(r.root).ok_or_else(|| CrushError::NoSuchItem(r.root.to_owned()))?;
        let kind = match r.failure_domain {
            "" => 0,
            t => self.type_id(t).ok_or_else(|| CrushError::NoSuchType(t.to_owned()))?,
        };
        if let Some(class) = r.class.filter(|c| !c.is_empty()) {
            self.class_id(class).ok_or_else(|| CrushError::NoSuchClass(class.to_owned()))?;
            root = self.shadow_of(root, class).ok_or_else(|| CrushError::NoDevicesOfClass {
                root: r.root.to_owned(),
                class: class.to_owned(),
            })?;
        }
        let choose = match (r.indep, kind) {
            (false, 0) => step_op::CHOOSE_FIRSTN,
            (false, _) => step_op::CHOOSELEAF_FIRSTN,
            (true, 0) => step_op::CHOOSE_INDEP,
            (true, _) => step_op::CHOOSELEAF_INDEP,
        };
        let step = |op, arg1, arg2| Step { op, arg1, arg2 };
        let mut steps = Vec::with_capacity(5);
        if r.indep {
            steps.push(step(step_op::SET_CHOOSELEAF_TRIES, 5, 0));
            steps.push(step(step_op::SET_CHOOSE_TRIES, 100, 0));
        }
        steps.push(step(step_op::TAKE, root, 0));
        steps.push(step(choose, 0, kind));
        steps.push(step(step_op::EMIT, 0, 0));
        let (min_size, max_size) = if r.indep { (3, 20) } else { (1, 10) };
        let used = |id: usize| self.rules.iter().flatten().any(|x| usize::from(x.ruleset) == id);
        let id = (0..self.rules.len())
            .find(|i| self.rules[*i].is_none() && !used(*i))
            .unwrap_or(self.rules.len());
        // Pools name their rule in one byte.
        let ruleset =
            u8::try_from(id).map_err(|_| CrushError::Inconsistent("no free rule id".to_owned()))?;
        if id == self.rules.len() {
            self.rules.push(None);
        }
        self.rules[id] = Some(Rule { ruleset, kind: r.kind, min_size, max_size, steps });
        self.rule_names.insert(i32::from(ruleset), r.name.to_owned());
        Ok(u32::from(ruleset))
    }

    /// Removes a rule. The caller has checked that no pool uses it.
    ///
    /// # Errors
    /// [`CrushError::NoSuchRule`].
    pub fn remove_rule(&mut self, name: &str) -> Result<(), CrushError> {
        let missing = || CrushError::NoSuchRule(name.to_owned());
        let id = self.rule_of_name(name).ok_or_else(missing)?;
        self.transact(|m| {
            let slot = m.rules.get_mut(id as usize).filter(|s| s.is_some()).ok_or_else(missing)?;
            *slot = None;
            m.rule_names.remove(&(id as i32));
            m.rebuild_shadows()
        })
    }

    /// Renames a rule.
    ///
    /// # Errors
    /// [`CrushError::NoSuchRule`], [`CrushError::Exists`].
    pub fn rename_rule(&mut self, from: &str, to: &str) -> Result<(), CrushError> {
        let id = self.rule_of_name(from).ok_or_else(|| CrushError::NoSuchRule(from.to_owned()))?;
        if self.rule_of_name(to).is_some() {
            return Err(CrushError::Exists(to.to_owned()));
        }
        if to.len() > NAME_MAX {
            return Err(CrushError::BadName(to.to_owned()));
        }
        self.rule_names.insert(id as i32, to.to_owned());
        Ok(())
    }
}
