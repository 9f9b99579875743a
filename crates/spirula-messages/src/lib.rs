//! Bodies of every message we speak: Ceph's client messages and our own between daemons.
