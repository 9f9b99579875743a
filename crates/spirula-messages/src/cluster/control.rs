//! OSD ↔ monitor and OSD ↔ manager messages (types 0x5300–0x533f).
