//! The CRUSH map as a value.

use std::collections::BTreeMap;

/// Bucket algorithm codes.
pub mod alg {
    /// All items weigh the same; chosen by a random permutation.
    pub const UNIFORM: u8 = 1;
    /// A linked list: cheap to grow, costly to shrink.
    pub const LIST: u8 = 2;
    /// A binary tree of weights.
    pub const TREE: u8 = 3;
    /// The first straw algorithm.
    pub const STRAW: u8 = 4;
    /// Straw with exact proportions: what everyone uses.
    pub const STRAW2: u8 = 5;
}

/// Rule step codes.
pub mod step_op {
    /// Nothing.
    pub const NOOP: u32 = 0;
    /// Start at bucket or device `arg1`.
    pub const TAKE: u32 = 1;
    /// Choose `arg1` items of type `arg2`, list without holes.
    pub const CHOOSE_FIRSTN: u32 = 2;
    /// Choose `arg1` items of type `arg2`, positions stable, holes kept.
    pub const CHOOSE_INDEP: u32 = 3;
    /// Append the working set to the result.
    pub const EMIT: u32 = 4;
    /// As 2, then one device under each.
    pub const CHOOSELEAF_FIRSTN: u32 = 6;
    /// As 3, then one device under each.
    pub const CHOOSELEAF_INDEP: u32 = 7;
    /// Overrides the total tries with `arg1`.
    pub const SET_CHOOSE_TRIES: u32 = 8;
    /// Overrides the tries of the leaf choice with `arg1`.
    pub const SET_CHOOSELEAF_TRIES: u32 = 9;
    /// Overrides `choose_local_tries` with `arg1`.
    pub const SET_CHOOSE_LOCAL_TRIES: u32 = 10;
    /// Overrides `choose_local_fallback_tries` with `arg1`.
    pub const SET_CHOOSE_LOCAL_FALLBACK_TRIES: u32 = 11;
    /// Overrides `chooseleaf_vary_r` with `arg1`.
    pub const SET_CHOOSELEAF_VARY_R: u32 = 12;
    /// Overrides `chooseleaf_stable` with `arg1`.
    pub const SET_CHOOSELEAF_STABLE: u32 = 13;
}

/// A whole CRUSH map: devices, buckets, rules, names, classes, weight sets.
///
/// Bucket `id` (negative) lives in slot `-1 - id` of [`buckets`](Self::buckets).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CrushMap {
    /// One more than the highest device id that may be chosen.
    pub max_devices: i32,
    /// Bucket slots; empty ones are free ids.
    pub buckets: Vec<Option<Bucket>>,
    /// Rule slots; the index is the rule id.
    pub rules: Vec<Option<Rule>>,
    /// Names of bucket types; type 0 is the device.
    pub type_names: BTreeMap<i32, String>,
    /// Names of devices and buckets.
    pub names: BTreeMap<i32, String>,
    /// Names of rules.
    pub rule_names: BTreeMap<i32, String>,
    /// Knobs of the mapper.
    pub tunables: Tunables,
    /// Device → class id.
    pub device_classes: BTreeMap<i32, i32>,
    /// Class id → class name.
    pub class_names: BTreeMap<i32, String>,
    /// Bucket → class id → the shadow bucket holding only that class.
    pub class_buckets: BTreeMap<i32, BTreeMap<i32, i32>>,
    /// Alternative weights by pool id; −1 is the compat set used by pools without their own.
    pub choose_args: BTreeMap<i64, ChooseArgs>,
}

/// Alternative weights and ids for some buckets, by bucket slot (`-1 - id`).
pub type ChooseArgs = BTreeMap<u32, ChooseArg>;

/// Alternative weights and ids for one straw2 bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChooseArg {
    /// Weights by result position; later positions use the last entry. Empty: the bucket's own.
    pub weight_sets: Vec<Vec<u32>>,
    /// Ids fed to the hash instead of the items'. Empty: the items themselves.
    pub ids: Vec<i32>,
}

/// An inner node of the hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// Negative id.
    pub id: i32,
    /// Type, a key of [`CrushMap::type_names`].
    pub kind: u16,
    /// Hash function; 0 is rjenkins1, others hash to 0.
    pub hash: u8,
    /// Sum of the items' weights, 16.16.
    pub weight: u32,
    /// Children: devices (≥ 0) or buckets (< 0).
    pub items: Vec<i32>,
    /// Algorithm and weights.
    pub data: BucketData,
}

/// What a bucket's algorithm needs besides the items. Lengths equal the number of items
/// except in a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BucketData {
    /// Every item weighs `item_weight`.
    Uniform {
        /// 16.16.
        item_weight: u32,
    },
    /// Weights and running sums.
    List {
        /// 16.16, per item.
        weights: Vec<u32>,
        /// Sum of weights up to and including the item.
        sums: Vec<u32>,
    },
    /// Weights of the nodes of a binary tree; item `i` is node `2i + 1`.
    Tree {
        /// 16.16, per node.
        nodes: Vec<u32>,
    },
    /// Weights and straw lengths.
    Straw {
        /// 16.16, per item.
        weights: Vec<u32>,
        /// Straw length, per item.
        straws: Vec<u32>,
    },
    /// Weights.
    Straw2 {
        /// 16.16, per item.
        weights: Vec<u32>,
    },
}

/// A placement rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    /// Historic second id; equals the rule id in every map made since Luminous.
    pub ruleset: u8,
    /// 1 replicated, 3 erasure.
    pub kind: u8,
    /// Least pool size it is meant for.
    pub min_size: u8,
    /// Greatest pool size it is meant for.
    pub max_size: u8,
    /// What to do.
    pub steps: Vec<Step>,
}

/// One step of a rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Step {
    /// One of [`step_op`].
    pub op: u32,
    /// First argument.
    pub arg1: i32,
    /// Second argument.
    pub arg2: i32,
}

/// Knobs of the mapper. The default is what a map without the field means ("legacy").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tunables {
    /// Retries in the same bucket after a collision.
    pub choose_local_tries: u32,
    /// Permutation retries in the same bucket.
    pub choose_local_fallback_tries: u32,
    /// Retries of a whole descent.
    pub choose_total_tries: u32,
    /// Non-zero: the leaf choice tries once and leaves retries to the outer choice.
    pub chooseleaf_descend_once: u32,
    /// Non-zero: feed the outer attempt into the leaf choice, shifted by value − 1.
    pub chooseleaf_vary_r: u8,
    /// Version of the straw length computation.
    pub straw_calc_version: u8,
    /// Bit mask of algorithms that may be created.
    pub allowed_bucket_algs: u32,
    /// Non-zero: firstn leaf choices do not depend on earlier positions.
    pub chooseleaf_stable: u8,
}

impl Default for Tunables {
    fn default() -> Self {
        Self {
            choose_local_tries: 2,
            choose_local_fallback_tries: 5,
            choose_total_tries: 19,
            chooseleaf_descend_once: 0,
            chooseleaf_vary_r: 0,
            straw_calc_version: 0,
            allowed_bucket_algs: (1 << alg::UNIFORM) | (1 << alg::LIST) | (1 << alg::STRAW),
            chooseleaf_stable: 0,
        }
    }
}

impl Bucket {
    /// The algorithm's code, one of [`alg`].
    pub fn alg(&self) -> u8 {
        match self.data {
            BucketData::Uniform { .. } => alg::UNIFORM,
            BucketData::List { .. } => alg::LIST,
            BucketData::Tree { .. } => alg::TREE,
            BucketData::Straw { .. } => alg::STRAW,
            BucketData::Straw2 { .. } => alg::STRAW2,
        }
    }

    /// Weight of the item at `pos`, 16.16; 0 if there is none.
    pub fn item_weight(&self, pos: usize) -> u32 {
        if pos >= self.items.len() {
            return 0;
        }
        match &self.data {
            BucketData::Uniform { item_weight } => *item_weight,
            BucketData::List { weights, .. }
            | BucketData::Straw { weights, .. }
            | BucketData::Straw2 { weights } => weights.get(pos).copied().unwrap_or(0),
            BucketData::Tree { nodes } => nodes.get(2 * pos + 1).copied().unwrap_or(0),
        }
    }
}

impl CrushMap {
    /// The slot of bucket `id`; `None` for devices.
    pub fn slot(id: i32) -> Option<usize> {
        if id < 0 { usize::try_from(!id).ok() } else { None }
    }

    /// Bucket `id`, if it exists.
    pub fn bucket(&self, id: i32) -> Option<&Bucket> {
        self.buckets.get(Self::slot(id)?)?.as_ref()
    }

    /// Rule `id`, if it exists.
    pub fn rule(&self, id: u32) -> Option<&Rule> {
        self.rules.get(id as usize)?.as_ref()
    }

    /// The weight set a pool uses: its own, else the compat one, else none.
    pub fn choose_args_for(&self, pool: i64) -> Option<&ChooseArgs> {
        self.choose_args.get(&pool).or_else(|| self.choose_args.get(&-1))
    }

    /// Sets [`max_devices`](Self::max_devices) to what buckets and names need, as Ceph does
    /// after every decode.
    pub(crate) fn compute_max_devices(&mut self) {
        let in_buckets = self.buckets.iter().flatten().flat_map(|b| b.items.iter().copied()).max();
        let named = self.names.keys().next_back().copied();
        self.max_devices = in_buckets.max(named).map_or(0, |m| m.saturating_add(1).max(0));
    }
}
