//! OSD ↔ OSD messages (types 0x5340–0x537f).
