//! CRUSH against Ceph: golden maps and mappings, and the installed `crushtool`.

mod golden;
