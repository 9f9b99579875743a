//! Why a map could not be edited.

/// Refusals of the editing functions. After any of them the map is as it was.
/// The Ceph error number that goes with each is named in its description.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CrushError {
    /// No item (device or bucket) of that name. ENOENT.
    #[error("item '{0}' does not exist")]
    NoSuchItem(String),
    /// No item with that id where it was looked for. ENOENT.
    #[error("item {0} does not exist")]
    NoSuchId(i32),
    /// The item is a device where a bucket is needed. ENOTDIR.
    #[error("item '{0}' is not a bucket")]
    NotABucket(String),
    /// No bucket type of that name. EINVAL.
    #[error("unknown type '{0}'")]
    NoSuchType(String),
    /// No rule of that name. ENOENT.
    #[error("rule '{0}' does not exist")]
    NoSuchRule(String),
    /// No device class of that name. ENOENT.
    #[error("device class '{0}' does not exist")]
    NoSuchClass(String),
    /// The root holds no shadow tree of the class. EINVAL.
    #[error("root {root} has no devices with class {class}")]
    NoDevicesOfClass {
        /// Root bucket's name.
        root: String,
        /// Class name.
        class: String,
    },
    /// The device belongs to another class already. EBUSY.
    #[error("osd.{osd} has already bound to class '{class}'")]
    ClassBound {
        /// Device id.
        osd: i32,
        /// Its class.
        class: String,
    },
    /// A rule takes the class. EBUSY.
    #[error("device class '{0}' is still referenced by a rule")]
    ClassInUse(String),
    /// The name is taken. EEXIST.
    #[error("'{0}' already exists")]
    Exists(String),
    /// The name holds other characters than `-_.0-9a-zA-Z`, or none, or is longer than any may be.
    /// EINVAL.
    #[error("'{0}' does not match [-_.0-9a-zA-Z]+")]
    BadName(String),
    /// The location names no place this item can be in. EINVAL.
    #[error("bad location: {0}")]
    BadLocation(String),
    /// The change would put a bucket into itself, or the map has such a loop. ELOOP.
    #[error("bucket {0} would contain itself")]
    Loop(i32),
    /// The bucket still has items. ENOTEMPTY.
    #[error("bucket {0} is not empty")]
    NotEmpty(i32),
    /// A rule or a shadow tree refers to the bucket. EBUSY.
    #[error("bucket {0} is in use")]
    InUse(i32),
    /// The weight, or the bucket's sum with it, does not fit. EOVERFLOW.
    #[error("weight does not fit")]
    Weight,
    /// The bucket's algorithm cannot hold more items. ERANGE.
    #[error("bucket {0} is full")]
    Full(i32),
    /// No bucket algorithm is allowed by the tunables. EINVAL.
    #[error("no bucket algorithm is allowed")]
    NoAlgorithm,
    /// The pool has no weight set of its own. ENOENT.
    #[error("there is no weight set {0}")]
    NoWeightSet(i64),
    /// The number of weights is not the number of positions. EINVAL.
    #[error("weight set has {want} positions, {got} weights given")]
    Positions {
        /// Positions in the set.
        want: usize,
        /// Weights given.
        got: usize,
    },
    /// The map contradicts itself; the text says where. EINVAL.
    #[error("map is inconsistent: {0}")]
    Inconsistent(String),
}
