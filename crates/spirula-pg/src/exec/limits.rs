//! Bounds on what one request may ask for. Defaults are Ceph 16.2's. What every member's
//! store must take besides is in [`spirula_types::limits`].

use spirula_types::limits::{ATTRS_MAX, KEY_MAX, TRANSACTION_MAX};

/// Limits applied while a request is executed. Sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest object (`osd_max_object_size`); beyond it EFBIG.
    pub max_object_size: u64,
    /// Most payload in one writing request (`osd_max_write_size`); beyond it EMSGSIZE.
    pub max_write_size: u64,
    /// Longest object name and locator key (`osd_max_object_name_len`); beyond it ENAMETOOLONG.
    pub max_name_len: usize,
    /// Longest namespace (`osd_max_object_namespace_len`); beyond it ENAMETOOLONG.
    pub max_namespace_len: usize,
    /// Longest attribute name (`osd_max_attr_name_len`); beyond it ENAMETOOLONG.
    pub max_attr_name_len: usize,
    /// Largest attribute value (`osd_max_attr_size`; 0 = unlimited); beyond it EFBIG.
    pub max_attr_size: usize,
    /// Most bytes of names and values an object's attributes may come to; beyond it E2BIG.
    /// Ceph has no such bound.
    pub max_attrs: usize,
    /// Longest omap key; beyond it ENAMETOOLONG. Ceph has no such bound.
    pub max_omap_key: usize,
    /// Most bytes a request may make of its input (`write_same`, a copy); beyond it E2BIG.
    /// Some are left for what the PG adds.
    pub max_change: usize,
    /// Most omap entries one op returns (`osd_max_omap_entries_per_request`).
    pub max_omap_entries: u64,
    /// Encoded omap bytes after which an op stops and says there is more
    /// (`osd_max_omap_bytes_per_request`, lowered to what a reply should hold).
    pub max_omap_bytes: usize,
    /// Most objects one listing op looks at (`osd_max_pgls`).
    pub max_list: u64,
    /// Largest output of one op of a writing request with RETURNVEC
    /// (`osd_max_write_op_reply_len`); beyond it EOVERFLOW.
    pub max_write_op_reply: usize,
    /// Most bytes of outputs and return codes (8 for each op) that are remembered of a writing
    /// request with RETURNVEC; beyond it EOVERFLOW. Ceph has no such bound.
    pub max_returns: usize,
    /// Most bytes all outputs of a request may hold, and most bytes `write_same` may make
    /// of its pattern; beyond it E2BIG. Ceph has no such bound.
    pub max_reply_size: u64,
    /// Most ops in a request; beyond it E2BIG. Ceph bounds it by the 16-bit count only.
    pub max_ops: usize,
    /// Most watches of an object; beyond it E2BIG. Ceph has no such bound.
    pub max_watchers: usize,
    /// Most snapshots that the context of a write names; beyond it EINVAL. Ceph has no such bound.
    pub max_snaps: usize,
    /// Most bytes that an object's history may come to when a clone is added; beyond it E2BIG. With
    /// all that is kept with an object beside it must stay below what stores take
    /// (`ATTRS_STORED_MAX`). Ceph has no such bound.
    pub max_history: usize,
    /// Longest payload of a notification, and longest answer to one, bytes; beyond it E2BIG. Ceph
    /// has no such bound.
    pub max_notify: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_object_size: 128 << 20,
            max_write_size: 90 << 20,
            max_name_len: 2048,
            max_namespace_len: 256,
            max_attr_name_len: 100,
            max_attr_size: 0,
            max_attrs: ATTRS_MAX,
            max_omap_key: KEY_MAX,
            max_change: TRANSACTION_MAX - (16 << 20),
            max_omap_entries: 1024,
            max_omap_bytes: 16 << 20,
            max_list: 1024,
            max_write_op_reply: 64,
            max_returns: 8 << 10,
            max_reply_size: 256 << 20,
            max_ops: 4096,
            max_watchers: 1024,
            max_snaps: 64 << 10,
            max_history: 4 << 20,
            max_notify: 1 << 20,
        }
    }
}
