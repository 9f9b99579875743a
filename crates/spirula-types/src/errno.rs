//! Error numbers as they travel: Linux's values, negated in results.

/// Operation not permitted; also "unknown object class".
pub const EPERM: i32 = 1;
/// No such object, pool or snapshot.
pub const ENOENT: i32 = 2;
/// Input or output error.
pub const EIO: i32 = 5;
/// No such address: a request that its sender's own map sends elsewhere.
pub const ENXIO: i32 = 6;
/// A value is too large (xattr).
pub const E2BIG: i32 = 7;
/// What is named is not what it should be.
pub const EBADF: i32 = 9;
/// Try again (a replica that cannot serve a balanced read).
pub const EAGAIN: i32 = 11;
/// Not of the format that was asked for.
pub const ENOEXEC: i32 = 8;
/// Out of memory.
pub const ENOMEM: i32 = 12;
/// Permission denied.
pub const EACCES: i32 = 13;
/// Busy.
pub const EBUSY: i32 = 16;
/// Already exists.
pub const EEXIST: i32 = 17;
/// A link between what may not be linked.
pub const EXDEV: i32 = 18;
/// Invalid argument.
pub const EINVAL: i32 = 22;
/// Object too large.
pub const EFBIG: i32 = 27;
/// No space left.
pub const ENOSPC: i32 = 28;
/// Read-only.
pub const EROFS: i32 = 30;
/// Out of range.
pub const ERANGE: i32 = 34;
/// Name too long.
pub const ENAMETOOLONG: i32 = 36;
/// Not implemented.
pub const ENOSYS: i32 = 38;
/// Not empty.
pub const ENOTEMPTY: i32 = 39;
/// No such attribute.
pub const ENODATA: i32 = 61;
/// What is stored is not what it should be.
pub const EBADMSG: i32 = 74;
/// Value too large for the version compared with.
pub const EOVERFLOW: i32 = 75;
/// Message too long: a write beyond the size limit.
pub const EMSGSIZE: i32 = 90;
/// Snapshot context is old.
pub const EOLDSNAPC: i32 = 85;
/// Not supported by this pool or object.
pub const EOPNOTSUPP: i32 = 95;
/// Not connected: unknown watch.
pub const ENOTCONN: i32 = 107;
/// The client is blocklisted.
pub const ESHUTDOWN: i32 = 108;
/// Timed out.
pub const ETIMEDOUT: i32 = 110;
/// Overtaken.
pub const ESTALE: i32 = 116;
/// Quota exceeded.
pub const EDQUOT: i32 = 122;
/// A comparison failed.
pub const ECANCELED: i32 = 125;

/// The symbolic name, as Ceph's tools print it.
pub fn name(errno: i32) -> &'static str {
    match errno.abs() {
        EPERM => "EPERM",
        ENOENT => "ENOENT",
        EIO => "EIO",
        ENXIO => "ENXIO",
        E2BIG => "E2BIG",
        EBADF => "EBADF",
        EAGAIN => "EAGAIN",
        ENOEXEC => "ENOEXEC",
        ENOMEM => "ENOMEM",
        EACCES => "EACCES",
        EBUSY => "EBUSY",
        EEXIST => "EEXIST",
        EXDEV => "EXDEV",
        EINVAL => "EINVAL",
        EFBIG => "EFBIG",
        ENOSPC => "ENOSPC",
        EROFS => "EROFS",
        ERANGE => "ERANGE",
        ENAMETOOLONG => "ENAMETOOLONG",
        ENOSYS => "ENOSYS",
        ENOTEMPTY => "ENOTEMPTY",
        ENODATA => "ENODATA",
        EBADMSG => "EBADMSG",
        EOVERFLOW => "EOVERFLOW",
        EMSGSIZE => "EMSGSIZE",
        EOLDSNAPC => "EOLDSNAPC",
        EOPNOTSUPP => "EOPNOTSUPP",
        ENOTCONN => "ENOTCONN",
        ESHUTDOWN => "ESHUTDOWN",
        ETIMEDOUT => "ETIMEDOUT",
        ESTALE => "ESTALE",
        EDQUOT => "EDQUOT",
        ECANCELED => "ECANCELED",
        _ => "E?",
    }
}
