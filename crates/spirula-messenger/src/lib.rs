//! msgr2 without I/O: banner, frames, handshake, sessions, replay.
