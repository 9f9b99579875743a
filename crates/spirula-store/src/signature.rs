//! What is on a device that somebody wants to make a store of: file systems, volumes,
//! partition tables and other things that must not be overwritten, named by kind.

use crate::device::BlockDevice;
use crate::error::{Result, StoreError};
use crate::superblock::{self, Label};

/// Bytes looked at, at either end.
pub(crate) const ENDS: u64 = 1 << 20;

/// Kind, offset from the beginning, bytes there.
const KNOWN: &[(&str, usize, &[u8])] = &[
    ("a Ceph BlueStore device", 0, b"bluestore block device"),
    ("an encrypted volume (LUKS)", 0, b"LUKS\xba\xbe"),
    ("an xfs file system", 0, b"XFSB"),
    ("an LVM physical volume", 24, b"LVM2 001"),
    ("an LVM physical volume", 536, b"LVM2 001"),
    ("a partition table (GPT)", 512, b"EFI PART"),
    ("a partition table (GPT)", 4096, b"EFI PART"),
    ("an ntfs file system", 3, b"NTFS    "),
    ("a fat file system", 54, b"FAT1"),
    ("a fat file system", 82, b"FAT32"),
    ("an exfat file system", 3, b"EXFAT   "),
    ("an f2fs file system", 1024, b"\x10\x20\xf5\xf2"),
    ("an ext2/3/4 file system", 1080, b"\x53\xef"),
    ("a RAID member (md)", 0, b"\xfc\x4e\x2b\xa9"),
    ("a RAID member (md)", 4096, b"\xfc\x4e\x2b\xa9"),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("a bcache device", 4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca"),
    ("a btrfs file system", 0x1_0040, b"_BHRfS_M"),
    ("an iso9660 image", 0x8001, b"CD001"),
    ("a ZFS member", 0x2_0000, b"\x0c\xb1\xba\x00"),
    // Last: boot sectors of file systems have it too.
    ("a partition table (MBR) or boot sector", 510, b"\x55\xaa"),
];

/// Says what the device holds; `None` if both of its ends are all zeros.
///
/// # Errors
/// [`StoreError::Io`].
pub(crate) fn find(dev: &dyn BlockDevice) -> Result<Option<String>> {
    let fail = |e| StoreError::io("read", dev.name(), e);
    let size = dev.size().map_err(fail)?;
    let n = size.min(ENDS);
    let mut start = vec![0; n as usize];
    dev.read_at(&mut start, 0).map_err(fail)?;
    if superblock::looks_like_label(&start) {
        return Ok(Some(match Label::read(dev) {
            Ok(label) => label.describe(),
            Err(_) => "a spirula store, damaged or of another version".to_owned(),
        }));
    }
    let there =
        |(_, at, bytes): &&(&str, usize, &[u8])| start.get(*at..at + bytes.len()) == Some(*bytes);
    if let Some((kind, ..)) = KNOWN.iter().find(there) {
        return Ok(Some((*kind).to_owned()));
    }
    if start.iter().any(|b| *b != 0) {
        return Ok(Some("data (its first MiB is not empty)".to_owned()));
    }
    let mut end = vec![0; n as usize];
    dev.read_at(&mut end, size - n).map_err(fail)?;
    if end.windows(8).any(|w| w == b"EFI PART") {
        return Ok(Some(
            "a partition table (GPT), of which the copy at the end is left".to_owned(),
        ));
    }
    Ok(end.iter().any(|b| *b != 0).then(|| "data (its last MiB is not empty)".to_owned()))
}
