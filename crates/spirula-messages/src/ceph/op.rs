//! One operation of an op vector: number, name, arguments.
//!
//! On the wire an op is 38 bytes (number, flags, a 28-byte union, length of its part of the
//! data segment); its input or output lies in the data segment. The union stays raw here
//! and is read through accessors, because which layout applies depends on the number and
//! most ops of a vector are looked at once. Source: `docs/protocol/osd.md` §2–§4.

use bytes::Bytes;
use spirula_encoding::{DecodeError, Decoder, Encode, Encoder};
use spirula_types::{HObject, ObjectLocator};

/// Encoded size of an op without its data.
pub(super) const OP_WIRE_LEN: usize = 38;

/// Bit of the number: the op reads.
pub const MODE_READ: u16 = 0x1000;
/// Bit of the number: the op writes.
pub const MODE_WRITE: u16 = 0x2000;
/// Bits of the number that tell what it works on.
pub const TYPE_MASK: u16 = 0x0f00;
/// [`TYPE_MASK`] of ops on a whole placement group.
pub const TYPE_PG: u16 = 0x0500;

/// Op flag: create fails if the object exists.
pub const FLAG_EXCL: u32 = 1;
/// Op flag: a failure of this op does not fail the vector.
pub const FLAG_FAILOK: u32 = 2;

macro_rules! ops {
    ($($(#[$doc:meta])* $id:ident = $num:literal, $name:literal;)*) => {
        $($(#[$doc])* pub const $id: u16 = $num;)*

        /// The name Ceph's tools print for an op number.
        pub fn name(op: u16) -> &'static str {
            match op { $($id => $name,)* _ => "???" }
        }
    };
}

ops! {
    /// Reads bytes.
    READ = 0x1201, "read";
    /// Size and modification time.
    STAT = 0x1202, "stat";
    /// Map of allocated extents.
    MAPEXT = 0x1203, "mapext";
    /// Reads bytes with their extents.
    SPARSE_READ = 0x1205, "sparse-read";
    /// Notifies all watchers.
    NOTIFY = 0x1206, "notify";
    /// A watcher's answer to a notification.
    NOTIFY_ACK = 0x1207, "notify-ack";
    /// Fails unless the object's user version is the given one.
    ASSERT_VER = 0x1208, "assert-version";
    /// Lists watchers.
    LIST_WATCHERS = 0x1209, "list-watchers";
    /// Lists clones and their snapshots.
    LIST_SNAPS = 0x120a, "list-snaps";
    /// Reads bytes (old synonym).
    SYNC_READ = 0x120b, "sync_read";
    /// Reads an old-style map.
    TMAPGET = 0x120c, "tmapget";
    /// Lists omap keys.
    OMAP_GET_KEYS = 0x1211, "omap-get-keys";
    /// Lists omap pairs.
    OMAP_GET_VALS = 0x1212, "omap-get-vals";
    /// Reads the omap header.
    OMAP_GET_HEADER = 0x1213, "omap-get-header";
    /// Reads given omap keys.
    OMAP_GET_VALS_BY_KEYS = 0x1214, "omap-get-vals-by-keys";
    /// Compares omap values.
    OMAP_CMP = 0x1219, "omap-cmp";
    /// Is the object dirty (cache tiers)?
    IS_DIRTY = 0x121b, "is-dirty";
    /// Reads an object for a copy.
    COPY_GET = 0x121e, "copy-get";
    /// Checksums of chunks.
    CHECKSUM = 0x121f, "checksum";
    /// Compares bytes.
    CMPEXT = 0x1220, "cmpext";
    /// Reads an attribute.
    GETXATTR = 0x1301, "getxattr";
    /// Reads all attributes.
    GETXATTRS = 0x1302, "getxattrs";
    /// Compares an attribute.
    CMPXATTR = 0x1303, "cmpxattr";
    /// Calls a class method.
    CALL = 0x1401, "call";
    /// Lists a PG (oldest form).
    PGLS = 0x1501, "pgls";
    /// Lists a PG with a filter (oldest form).
    PGLS_FILTER = 0x1502, "pgls-filter";
    /// Lists hit sets.
    PG_HITSET_LS = 0x1503, "pg-hitset-ls";
    /// Reads a hit set.
    PG_HITSET_GET = 0x1504, "pg-hitset-get";
    /// Lists a PG with namespaces.
    PGNLS = 0x1505, "pgnls";
    /// Lists a PG with namespaces and a filter.
    PGNLS_FILTER = 0x1506, "pgnls-filter";
    /// Lists inconsistencies found by scrub.
    SCRUBLS = 0x1507, "scrubls";
    /// Writes bytes.
    WRITE = 0x2201, "write";
    /// Replaces all bytes.
    WRITEFULL = 0x2202, "writefull";
    /// Sets the size.
    TRUNCATE = 0x2203, "truncate";
    /// Zeroes a range.
    ZERO = 0x2204, "zero";
    /// Deletes the object.
    DELETE = 0x2205, "delete";
    /// Appends bytes.
    APPEND = 0x2206, "append";
    /// Truncates if the sequence is newer.
    TRIMTRUNC = 0x2209, "trimtrunc";
    /// Updates an old-style map.
    TMAPUP = 0x220a, "tmapup";
    /// Replaces an old-style map.
    TMAPPUT = 0x220b, "tmapput";
    /// Creates the object.
    CREATE = 0x220d, "create";
    /// Makes the head what it was at a snapshot.
    ROLLBACK = 0x220e, "rollback";
    /// Watch, unwatch, reconnect, ping.
    WATCH = 0x220f, "watch";
    /// Sets omap pairs.
    OMAP_SET_VALS = 0x2215, "omap-set-vals";
    /// Sets the omap header.
    OMAP_SET_HEADER = 0x2216, "omap-set-header";
    /// Removes the whole omap.
    OMAP_CLEAR = 0x2217, "omap-clear";
    /// Removes omap keys.
    OMAP_RM_KEYS = 0x2218, "omap-rm-keys";
    /// Copies another object here.
    COPY_FROM = 0x221a, "copy-from";
    /// Marks as clean (cache tiers).
    UNDIRTY = 0x221c, "undirty";
    /// Hint about future sizes.
    SET_ALLOC_HINT = 0x2223, "set-alloc-hint";
    /// Keeps an object in its cache tier.
    CACHE_PIN = 0x2224, "cache-pin";
    /// Lets it go again.
    CACHE_UNPIN = 0x2225, "cache-unpin";
    /// Fills a range with a pattern.
    WRITESAME = 0x2226, "writesame";
    /// Removes a range of omap keys.
    OMAP_RM_KEY_RANGE = 0x222c, "omap-rm-key-range";
    /// Copies another object here, with a truncation.
    COPY_FROM2 = 0x222d, "copy-from2";
    /// Brings here what a manifest says is elsewhere.
    TIER_PROMOTE = 0x2229, "tier-promote";
    /// Writes a cache tier's object back to its base, and waits for others.
    CACHE_FLUSH = 0x821f, "cache-flush";
    /// Drops a clean object of a cache tier.
    CACHE_EVICT = 0x8220, "cache-evict";
    /// As [`CACHE_FLUSH`], but waits for nobody.
    CACHE_TRY_FLUSH = 0x8221, "cache-try-flush";
    /// Sets an attribute.
    SETXATTR = 0x2301, "setxattr";
    /// Removes an attribute.
    RMXATTR = 0x2304, "rmxattr";
}

/// Sub-operations of [`WATCH`].
pub mod watch {
    /// Stops watching.
    pub const UNWATCH: u8 = 0;
    /// Old form of [`WATCH`].
    pub const LEGACY_WATCH: u8 = 1;
    /// Starts watching.
    pub const WATCH: u8 = 3;
    /// Resumes after a connection or map change.
    pub const RECONNECT: u8 = 5;
    /// Keeps the watch alive.
    pub const PING: u8 = 7;
}

/// One operation with its input.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct OsdOp {
    /// Number, one of this module's constants.
    pub op: u16,
    /// [`FLAG_EXCL`], [`FLAG_FAILOK`] and access-pattern hints.
    pub flags: u32,
    /// Arguments of fixed size; read them through the accessors.
    pub union: [u8; 28],
    /// This op's part of the data segment (a slice of it).
    pub indata: Bytes,
}

impl std::fmt::Debug for OsdOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::fmt::Display for OsdOp {
    /// As in `dump_ops`: `write 0~4096`, `call rbd.get_id`, `getxattr foo (3)`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())?;
        match self.op {
            READ | SYNC_READ | SPARSE_READ | MAPEXT | WRITE | WRITEFULL | ZERO | APPEND
            | CMPEXT => {
                let e = self.extent();
                write!(f, " {}~{}", e.offset, e.length)?;
            }
            TRUNCATE => write!(f, " {}", self.extent().offset)?,
            GETXATTR | SETXATTR | RMXATTR | CMPXATTR => {
                if let Ok((name, value)) = self.xattr_parts() {
                    write!(f, " {} ({})", name.escape_ascii(), value.len())?;
                }
            }
            CALL => {
                if let Ok(c) = self.call_args() {
                    write!(
                        f,
                        " {}.{} in={}b",
                        c.class.escape_ascii(),
                        c.method.escape_ascii(),
                        c.input.len()
                    )?;
                }
            }
            WATCH => {
                let w = self.watch_args();
                write!(f, " {} cookie {} gen {}", watch_name(w.op), w.cookie, w.generation)?;
            }
            NOTIFY | NOTIFY_ACK => write!(f, " cookie {}", self.cookie())?,
            ROLLBACK => write!(f, " {}", self.snap())?,
            _ => {}
        }
        Ok(())
    }
}

fn watch_name(op: u8) -> &'static str {
    match op {
        watch::UNWATCH => "unwatch",
        watch::LEGACY_WATCH => "watch-legacy",
        watch::WATCH => "watch",
        watch::RECONNECT => "reconnect",
        watch::PING => "ping",
        _ => "???",
    }
}

/// Arguments of data ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Extent {
    /// First byte; the new size for [`TRUNCATE`].
    pub offset: u64,
    /// Number of bytes; 0 in a read means "to the end".
    pub length: u64,
    /// File-system truncation: size.
    pub truncate_size: u64,
    /// File-system truncation: sequence, 0 for none.
    pub truncate_seq: u32,
}

/// Arguments of [`CMPXATTR`] (lengths also of the other attribute ops).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct XattrArgs {
    /// Bytes of the name at the start of the input.
    pub name_len: u32,
    /// Bytes of the value behind it.
    pub value_len: u32,
    /// 1 eq, 2 ne, 3 gt, 4 gte, 5 lt, 6 lte.
    pub cmp_op: u8,
    /// 1 string, 2 u64.
    pub cmp_mode: u8,
}

/// Arguments of [`CALL`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallArgs {
    /// Class name.
    pub class: Bytes,
    /// Method name.
    pub method: Bytes,
    /// The method's input.
    pub input: Bytes,
}

/// Arguments of [`WATCH`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WatchArgs {
    /// Chosen by the client.
    pub cookie: u64,
    /// One of [`watch`].
    pub op: u8,
    /// Counts reconnects.
    pub generation: u32,
    /// Seconds, 0 for the default.
    pub timeout: u32,
}

/// Arguments of [`COPY_FROM`] and [`COPY_FROM2`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CopyFromArgs {
    /// Snapshot id of the source.
    pub src_snap: u64,
    /// User version the source must have, 0 for any.
    pub src_version: u64,
    /// Copy flags.
    pub flags: u8,
    /// Hints for reading the source.
    pub src_fadvise: u32,
}

/// Arguments of [`SET_ALLOC_HINT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AllocHint {
    /// Expected object size.
    pub object_size: u64,
    /// Expected size of writes.
    pub write_size: u64,
    /// Hint flags.
    pub flags: u32,
}

/// Arguments of [`CHECKSUM`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ChecksumArgs {
    /// First byte.
    pub offset: u64,
    /// Number of bytes, 0 for all.
    pub length: u64,
    /// Bytes per checksum, 0 for one over all.
    pub chunk: u32,
    /// 0 xxhash32, 1 xxhash64, 2 crc32c.
    pub kind: u8,
}

impl OsdOp {
    /// An op without arguments.
    pub fn new(op: u16) -> Self {
        Self { op, ..Self::default() }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        name(self.op)
    }

    /// True if the number says that it writes. Class calls carry no such bit: whether one
    /// writes is decided by the method's registration.
    pub fn is_write(&self) -> bool {
        self.op & MODE_WRITE != 0
    }

    /// True for ops on a placement group instead of an object.
    pub fn is_pg_op(&self) -> bool {
        self.op & TYPE_MASK == TYPE_PG
    }

    /// True if a failure does not fail the vector.
    pub fn fail_ok(&self) -> bool {
        self.flags & FLAG_FAILOK != 0
    }

    /// This op with more flags.
    pub fn with_flags(mut self, flags: u32) -> Self {
        self.flags |= flags;
        self
    }

    fn u64_at<const AT: usize>(&self) -> u64 {
        let mut b = [0; 8];
        b.copy_from_slice(&self.union[AT..AT + 8]);
        u64::from_le_bytes(b)
    }

    fn u32_at<const AT: usize>(&self) -> u32 {
        let mut b = [0; 4];
        b.copy_from_slice(&self.union[AT..AT + 4]);
        u32::from_le_bytes(b)
    }

    fn put_u64<const AT: usize>(mut self, v: u64) -> Self {
        self.union[AT..AT + 8].copy_from_slice(&v.to_le_bytes());
        self
    }

    fn put_u32<const AT: usize>(mut self, v: u32) -> Self {
        self.union[AT..AT + 4].copy_from_slice(&v.to_le_bytes());
        self
    }

    fn put_u8<const AT: usize>(mut self, v: u8) -> Self {
        self.union[AT] = v;
        self
    }

    /// Arguments of data ops.
    pub fn extent(&self) -> Extent {
        Extent {
            offset: self.u64_at::<0>(),
            length: self.u64_at::<8>(),
            truncate_size: self.u64_at::<16>(),
            truncate_seq: self.u32_at::<24>(),
        }
    }

    /// Sets the length of a data op (a reply tells how many bytes were read).
    pub fn set_length(&mut self, length: u64) {
        self.union[8..16].copy_from_slice(&length.to_le_bytes());
    }

    /// Arguments of attribute ops.
    pub fn xattr(&self) -> XattrArgs {
        XattrArgs {
            name_len: self.u32_at::<0>(),
            value_len: self.u32_at::<4>(),
            cmp_op: self.union[8],
            cmp_mode: self.union[9],
        }
    }

    /// Name and value of an attribute op.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if the input is shorter than the lengths say.
    pub fn xattr_parts(&self) -> Result<(Bytes, Bytes), DecodeError> {
        let a = self.xattr();
        let mut rest = self.indata.clone();
        let name = split(&mut rest, a.name_len as usize)?;
        let value = split(&mut rest, a.value_len as usize)?;
        Ok((name, value))
    }

    /// Class, method and input of a [`CALL`].
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if the input is shorter than the lengths say.
    pub fn call_args(&self) -> Result<CallArgs, DecodeError> {
        let mut rest = self.indata.clone();
        let class = split(&mut rest, usize::from(self.union[0]))?;
        let method = split(&mut rest, usize::from(self.union[1]))?;
        let input = split(&mut rest, self.u32_at::<3>() as usize)?;
        Ok(CallArgs { class, method, input })
    }

    /// Arguments of [`WATCH`].
    pub fn watch_args(&self) -> WatchArgs {
        WatchArgs {
            cookie: self.u64_at::<0>(),
            op: self.union[16],
            generation: self.u32_at::<17>(),
            timeout: self.u32_at::<21>(),
        }
    }

    /// Cookie of [`WATCH`] and [`NOTIFY`].
    pub fn cookie(&self) -> u64 {
        self.u64_at::<0>()
    }

    /// Snapshot id of [`ROLLBACK`].
    pub fn snap(&self) -> u64 {
        self.u64_at::<0>()
    }

    /// Version of [`ASSERT_VER`].
    pub fn assert_version(&self) -> u64 {
        self.u64_at::<8>()
    }

    /// Arguments of [`COPY_FROM`]; source name and locator are in the input.
    pub fn copy_from_args(&self) -> CopyFromArgs {
        CopyFromArgs {
            src_snap: self.u64_at::<0>(),
            src_version: self.u64_at::<8>(),
            flags: self.union[16],
            src_fadvise: self.u32_at::<17>(),
        }
    }

    /// Arguments of [`SET_ALLOC_HINT`].
    pub fn alloc_hint(&self) -> AllocHint {
        AllocHint {
            object_size: self.u64_at::<0>(),
            write_size: self.u64_at::<8>(),
            flags: self.u32_at::<16>(),
        }
    }

    /// Offset, length and pattern length of [`WRITESAME`].
    pub fn writesame_args(&self) -> (u64, u64, u64) {
        (self.u64_at::<0>(), self.u64_at::<8>(), self.u64_at::<16>())
    }

    /// Arguments of [`CHECKSUM`]; the seed is in the input.
    pub fn checksum_args(&self) -> ChecksumArgs {
        ChecksumArgs {
            offset: self.u64_at::<0>(),
            length: self.u64_at::<8>(),
            chunk: self.u32_at::<16>(),
            kind: self.union[20],
        }
    }

    /// Most entries to scan, and start epoch, of [`PGNLS`] and [`PGLS`].
    pub fn pgls_args(&self) -> (u64, u32) {
        (self.u64_at::<0>(), self.u32_at::<8>())
    }

    // ---- constructors (client side, tests) ----

    fn data_op(op: u16, offset: u64, data: Bytes) -> Self {
        let len = data.len() as u64;
        Self { indata: data, ..Self::new(op).put_u64::<0>(offset).put_u64::<8>(len) }
    }

    /// Reads `length` bytes, all if 0.
    pub fn read(offset: u64, length: u64) -> Self {
        Self::new(READ).put_u64::<0>(offset).put_u64::<8>(length)
    }
    /// Reads `length` bytes with their extents.
    pub fn sparse_read(offset: u64, length: u64) -> Self {
        Self::new(SPARSE_READ).put_u64::<0>(offset).put_u64::<8>(length)
    }
    /// Size and modification time.
    pub fn stat() -> Self {
        Self::new(STAT)
    }
    /// Writes `data` at `offset`.
    pub fn write(offset: u64, data: Bytes) -> Self {
        Self::data_op(WRITE, offset, data)
    }
    /// Replaces all bytes.
    pub fn write_full(data: Bytes) -> Self {
        Self::data_op(WRITEFULL, 0, data)
    }
    /// Appends.
    pub fn append(data: Bytes) -> Self {
        Self::data_op(APPEND, 0, data)
    }
    /// Compares bytes.
    pub fn cmpext(offset: u64, data: Bytes) -> Self {
        Self::data_op(CMPEXT, offset, data)
    }
    /// Fills `length` bytes with repetitions of `pattern`.
    pub fn writesame(offset: u64, length: u64, pattern: Bytes) -> Self {
        let n = pattern.len() as u64;
        Self {
            indata: pattern,
            ..Self::new(WRITESAME).put_u64::<0>(offset).put_u64::<8>(length).put_u64::<16>(n)
        }
    }
    /// Sets the size.
    pub fn truncate(size: u64) -> Self {
        Self::new(TRUNCATE).put_u64::<0>(size)
    }
    /// Zeroes a range.
    pub fn zero(offset: u64, length: u64) -> Self {
        Self::new(ZERO).put_u64::<0>(offset).put_u64::<8>(length)
    }
    /// Deletes the object.
    pub fn delete() -> Self {
        Self::new(DELETE)
    }
    /// Creates the object; exclusively if asked.
    pub fn create(exclusive: bool) -> Self {
        Self::new(CREATE).with_flags(if exclusive { FLAG_EXCL } else { 0 })
    }
    /// Makes the head what it was at `snap`.
    pub fn rollback(snap: u64) -> Self {
        Self::new(ROLLBACK).put_u64::<0>(snap)
    }
    /// Fails unless the user version is `version`.
    pub fn assert_ver(version: u64) -> Self {
        Self::new(ASSERT_VER).put_u64::<8>(version)
    }

    fn xattr_op(op: u16, name: &[u8], value: &[u8]) -> Self {
        let mut input = Vec::with_capacity(name.len() + value.len());
        input.extend_from_slice(name);
        input.extend_from_slice(value);
        Self {
            indata: input.into(),
            ..Self::new(op).put_u32::<0>(name.len() as u32).put_u32::<4>(value.len() as u32)
        }
    }
    /// Reads an attribute.
    pub fn getxattr(name: &[u8]) -> Self {
        Self::xattr_op(GETXATTR, name, &[])
    }
    /// Reads all attributes.
    pub fn getxattrs() -> Self {
        Self::new(GETXATTRS)
    }
    /// Sets an attribute.
    pub fn setxattr(name: &[u8], value: &[u8]) -> Self {
        Self::xattr_op(SETXATTR, name, value)
    }
    /// Removes an attribute.
    pub fn rmxattr(name: &[u8]) -> Self {
        Self::xattr_op(RMXATTR, name, &[])
    }
    /// Compares an attribute; see [`XattrArgs`] for `op` and `mode`.
    pub fn cmpxattr(name: &[u8], op: u8, mode: u8, value: &[u8]) -> Self {
        Self::xattr_op(CMPXATTR, name, value).put_u8::<8>(op).put_u8::<9>(mode)
    }

    /// An omap op with `input`, whose length the union repeats behind an unused field.
    fn omap_op(op: u16, input: impl FnOnce(&mut Encoder)) -> Self {
        let mut e = Encoder::new();
        input(&mut e);
        let n = e.len() as u64;
        Self { indata: e.into_bytes(), ..Self::new(op).put_u64::<8>(n) }
    }
    /// Lists up to `max` keys after `after`.
    pub fn omap_get_keys(after: &[u8], max: u64) -> Self {
        Self::omap_op(OMAP_GET_KEYS, |e| {
            e.blob(after);
            e.u64(max);
        })
    }
    /// Lists up to `max` pairs after `after` whose keys start with `prefix`.
    pub fn omap_get_vals(after: &[u8], max: u64, prefix: &[u8]) -> Self {
        Self::omap_op(OMAP_GET_VALS, |e| {
            e.blob(after);
            e.u64(max);
            e.blob(prefix);
        })
    }
    /// Reads the omap header.
    pub fn omap_get_header() -> Self {
        Self::new(OMAP_GET_HEADER)
    }
    /// Reads the values of `keys`.
    pub fn omap_get_vals_by_keys(keys: &[Bytes]) -> Self {
        Self::omap_op(OMAP_GET_VALS_BY_KEYS, |e| keys.encode(e))
    }
    /// Sets pairs.
    pub fn omap_set_vals(pairs: &[(Bytes, Bytes)]) -> Self {
        Self::omap_op(OMAP_SET_VALS, |e| pairs.encode(e))
    }
    /// Sets the omap header.
    pub fn omap_set_header(header: &[u8]) -> Self {
        Self::omap_op(OMAP_SET_HEADER, |e| e.raw(header))
    }
    /// Removes the whole omap.
    pub fn omap_clear() -> Self {
        Self::new(OMAP_CLEAR)
    }
    /// Removes keys.
    pub fn omap_rm_keys(keys: &[Bytes]) -> Self {
        Self::omap_op(OMAP_RM_KEYS, |e| keys.encode(e))
    }

    /// Calls `class.method`. Names longer than 255 bytes are cut; none exists.
    pub fn call(class: &str, method: &str, input: &[u8]) -> Self {
        let class = class.as_bytes();
        let class = &class[..class.len().min(255)];
        let method = method.as_bytes();
        let method = &method[..method.len().min(255)];
        let all = [class, method, input].concat();
        Self {
            indata: all.into(),
            ..Self::new(CALL)
                .put_u8::<0>(class.len() as u8)
                .put_u8::<1>(method.len() as u8)
                .put_u32::<3>(input.len() as u32)
        }
    }
    /// A watch op: `op` is one of [`watch`].
    pub fn watch(cookie: u64, op: u8, generation: u32, timeout: u32) -> Self {
        Self::new(WATCH)
            .put_u64::<0>(cookie)
            .put_u8::<16>(op)
            .put_u32::<17>(generation)
            .put_u32::<21>(timeout)
    }
    /// Notifies all watchers; `timeout` in seconds.
    pub fn notify(cookie: u64, timeout: u32, payload: &[u8]) -> Self {
        let mut e = Encoder::new();
        e.u32(1);
        e.u32(timeout);
        e.blob(payload);
        Self { indata: e.into_bytes(), ..Self::new(NOTIFY).put_u64::<0>(cookie) }
    }
    /// Answers a notification.
    pub fn notify_ack(notify_id: u64, cookie: u64, reply: &[u8]) -> Self {
        let mut e = Encoder::new();
        e.u64(notify_id);
        e.u64(cookie);
        e.blob(reply);
        Self { indata: e.into_bytes(), ..Self::new(NOTIFY_ACK) }
    }
    /// Lists objects of a PG from `cursor` on.
    pub fn pgnls(max: u64, start_epoch: u32, cursor: &HObject) -> Self {
        let mut e = Encoder::new();
        e.put(cursor);
        Self {
            indata: e.into_bytes(),
            ..Self::new(PGNLS).put_u64::<0>(max).put_u32::<8>(start_epoch)
        }
    }
    /// Copies another object here.
    pub fn copy_from(args: CopyFromArgs, name: &[u8], locator: &ObjectLocator) -> Self {
        let mut e = Encoder::new();
        e.blob(name);
        e.put(locator);
        Self {
            indata: e.into_bytes(),
            ..Self::new(COPY_FROM)
                .put_u64::<0>(args.src_snap)
                .put_u64::<8>(args.src_version)
                .put_u8::<16>(args.flags)
                .put_u32::<17>(args.src_fadvise)
        }
    }

    /// Writes the fixed part with `data_len` as the length of its data.
    pub(super) fn put_fixed(&self, out: &mut Encoder, data_len: usize) {
        out.u16(self.op);
        out.u32(self.flags);
        out.raw(&self.union);
        out.len32(data_len);
    }

    /// Reads the fixed part; returns the op without data, and the length of its data.
    pub(super) fn get_fixed(d: &mut Decoder<'_>) -> Result<(Self, usize), DecodeError> {
        let op = Self { op: d.u16()?, flags: d.u32()?, union: d.array()?, indata: Bytes::new() };
        Ok((op, d.u32()? as usize))
    }
}

/// Takes the first `n` bytes off `rest`.
pub(super) fn split(rest: &mut Bytes, n: usize) -> Result<Bytes, DecodeError> {
    if n == 0 {
        return Ok(Bytes::new());
    }
    if n > rest.len() {
        return Err(DecodeError::Truncated { need: n, have: rest.len() });
    }
    Ok(rest.split_to(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constructors_and_accessors_agree() {
        let e = OsdOp::write(7, Bytes::from_static(b"abc")).extent();
        assert_eq!((e.offset, e.length), (7, 3));
        let (n, v) = OsdOp::setxattr(b"name", b"value").xattr_parts().unwrap();
        assert_eq!((&n[..], &v[..]), (&b"name"[..], &b"value"[..]));
        let c = OsdOp::call("lock", "lock", b"in").call_args().unwrap();
        assert_eq!(
            (&c.class[..], &c.method[..], &c.input[..]),
            (&b"lock"[..], &b"lock"[..], &b"in"[..])
        );
        let w = OsdOp::watch(9, watch::RECONNECT, 3, 30).watch_args();
        assert_eq!((w.cookie, w.op, w.generation, w.timeout), (9, 5, 3, 30));
        assert_eq!(OsdOp::create(true).flags, FLAG_EXCL);
        assert_eq!(OsdOp::pgnls(1024, 3, &HObject::min()).pgls_args(), (1024, 3));
        assert_eq!(OsdOp::assert_ver(5).assert_version(), 5);
    }

    #[test]
    fn lengths_that_exceed_the_input_are_refused() {
        let mut op = OsdOp::setxattr(b"name", b"value");
        op.indata.truncate(6);
        assert!(op.xattr_parts().is_err());
        let mut op = OsdOp::call("lock", "lock", b"in");
        op.indata.truncate(5);
        assert!(op.call_args().is_err());
    }

    #[test]
    fn ops_print_as_in_dump_ops() {
        assert_eq!(OsdOp::read(0, 4096).to_string(), "read 0~4096");
        assert_eq!(OsdOp::call("rbd", "get_id", b"").to_string(), "call rbd.get_id in=0b");
        assert_eq!(OsdOp::getxattr(b"foo").to_string(), "getxattr foo (0)");
        assert_eq!(OsdOp::watch(1, watch::PING, 0, 0).to_string(), "watch ping cookie 1 gen 0");
    }
}
