//! Ceph's own messages, as its clients send and expect them (`shared/protocol`).
