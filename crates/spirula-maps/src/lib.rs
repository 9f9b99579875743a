//! Cluster maps: monitor, OSD (full and incremental), manager, file system; PG mapping; statistics.
