//! The OSD daemon: PGs, store and connections put together.
