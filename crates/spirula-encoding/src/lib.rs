//! Ceph's little-endian, versioned wire encoding: bounded decoder, encoder, crc32c.
