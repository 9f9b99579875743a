//! The object store: journal, checksums, extents, omap; durable.
