//! Placement groups without I/O: op execution, log, replication, peering.

pub mod exec;
