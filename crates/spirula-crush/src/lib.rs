//! CRUSH placement, bit-exact with Ceph: map, codec, mapper, editing.
